/* tests/storage/store_fixture.h - an external store and its model, driven with the same calls.
 *
 * The model is an array of rows with flags.  Each kind of store is tested: in memory, misbehaving on request
 * (tests/support/bad_store.h), RocksDB.
 */
#pragma once

#include "hotbed/external.h"
#include "tests/support/bad_store.h"

#include <stdbool.h>
#include <stdint.h>

enum { STORE_TABLES = 2, STORE_SPACE = 300, STORE_ROW_MOST = 72, STORE_BATCH_MOST = 120 };

typedef enum store_kind { STORE_MEMORY, STORE_BAD, STORE_ROCKSDB } store_kind;

extern const store_kind store_kinds[];
int store_num_kinds(void); /* kinds that this build has: RocksDB, the last one, is optional */

bool store_error_has(const char *part); /* whether hotbed_last_error() contains `part` */

typedef struct store_model {
    bool there[STORE_SPACE];
    uint64_t scores[STORE_SPACE];
    uint8_t rows[STORE_SPACE][STORE_ROW_MOST];
} store_model;

typedef struct store_fixture {
    hotbed_external *external;
    bad_store bad; /* valid if is_bad */
    bool is_bad;
    store_model model[STORE_TABLES];
    /* the batch of a call */
    uint64_t n, keys[STORE_BATCH_MOST], scores[STORE_BATCH_MOST];
    uint8_t rows[STORE_BATCH_MOST * STORE_ROW_MOST], found[STORE_BATCH_MOST];
} store_fixture;

/* Tables "user" with rows of STORE_ROW_MOST bytes and "item.id" with rows of 37 bytes. */
hotbed_external_options store_fixture_options(void);
store_fixture *store_fixture_open(store_kind kind); /* with store_fixture_options() */
store_fixture *store_fixture_open_with(store_kind kind, const hotbed_external_options *o);
void store_fixture_close(store_fixture *b);

/* Position of a key in the model.  The keys are the first STORE_SPACE / 3 from 0 up, from 2^63 up and from 2^64 - 1
 * down. */
uint64_t store_fixture_index(uint64_t key);

/* Make a batch of n distinct random keys with random rows and scores. */
void store_fixture_random_batch(store_fixture *b, uint32_t t, uint64_t n);
/* Insert the batch into the store, or into the model. */
HOTBED_MUST_USE hotbed_status store_fixture_insert_batch(store_fixture *b, uint32_t t);
void store_fixture_model_insert(store_fixture *b, uint32_t t);

/* Insert or erase a random batch in both. */
void store_fixture_insert(store_fixture *b, uint32_t t, uint64_t n);
void store_fixture_erase(store_fixture *b, uint32_t t, uint64_t n);
/* Find n random keys, with repetitions, and compare with the model.  Rows of missing keys must stay unchanged. */
void store_fixture_find(store_fixture *b, uint32_t t, uint64_t n);
/* Walk through all tables and compare them with the model. */
void store_fixture_check(store_fixture *b);
