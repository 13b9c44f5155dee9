/* tests/storage/fill.h - fills a table until it refuses a key, with keys of several patterns. */
#pragma once

#include "tests/support/harness.h"

typedef uint64_t key_maker(uint64_t i); /* key number i */

enum { KEY_MAKERS = 6 };

/* Sequential, multiples of 2^10, of 2^32, of 2^40, random, descending from 2^64 - 1. */
extern key_maker *const key_makers[KEY_MAKERS];

/* Insert `capacity` keys in batches of at most `batch`.  Check that none is refused, and that the table has no more
 * slots than a load of 0.97 needs.  Then insert more keys than the table has slots, and check which are kept. */
void fill_table(hotbed_backend backend, uint64_t capacity, key_maker *maker, uint64_t batch);
