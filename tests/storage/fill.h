/* tests/storage/fill.h - fills a table to the first refused key, with keys of several structures. */
#ifndef HOTBED_TESTS_FILL_H
#define HOTBED_TESTS_FILL_H

#include "tests/support/harness.h"

typedef uint64_t key_maker(uint64_t i); /* key number i */

enum { KEY_MAKERS = 6 };

/* Sequential, multiples of 2^10 and of 2^32, high bits, scattered, descending. */
extern key_maker *const key_makers[KEY_MAKERS];

/* Insert `capacity` keys in batches of at most `batch`: none may be refused, and the table may not have
 * more slots than a load of 0.97 needs.  Then go on to the first refusal. */
void fill_table(hotbed_backend backend, uint64_t capacity, key_maker *maker, uint64_t batch);

#endif
