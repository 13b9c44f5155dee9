/* tests/storage/store_box.h - an external store beside its model, and calls that drive both. */
#ifndef HOTBED_TESTS_STORE_BOX_H
#define HOTBED_TESTS_STORE_BOX_H

#include "hotbed/external.h"
#include "tests/support/bad_store.h"

#include <stdbool.h>
#include <stdint.h>

enum { STORE_TABLES = 2, STORE_SPACE = 300, STORE_ROW_MOST = 72, STORE_BATCH_MOST = 120 };

typedef enum store_kind { STORE_MEMORY, STORE_BAD, STORE_ROCKSDB } store_kind;

extern const store_kind store_kinds[];
int store_num_kinds(void); /* how many of `store_kinds` this build has: RocksDB is the last */

bool store_error_has(const char *part); /* whether the last error's text does */

typedef struct store_model {
    bool there[STORE_SPACE];
    uint64_t scores[STORE_SPACE];
    uint8_t rows[STORE_SPACE][STORE_ROW_MOST];
} store_model;

typedef struct store_box {
    hotbed_external *external;
    bad_store bad; /* of STORE_BAD */
    bool is_bad;
    store_model model[STORE_TABLES];
    /* A batch: */
    uint64_t n, keys[STORE_BATCH_MOST], scores[STORE_BATCH_MOST];
    uint8_t rows[STORE_BATCH_MOST * STORE_ROW_MOST], found[STORE_BATCH_MOST];
} store_box;

/* Tables "user", rows of STORE_ROW_MOST bytes, and "item.id", of 37. */
hotbed_external_options store_box_options(void);
store_box *store_box_open(store_kind kind); /* with these */
store_box *store_box_open_with(store_kind kind, const hotbed_external_options *o);
void store_box_close(store_box *b);

/* Where the model has a key; the keys are 0, 1, 2 ..., and from both ends of their range. */
uint64_t store_box_index(uint64_t key);

/* Make a batch of n distinct random keys with random rows and scores. */
void store_box_random_batch(store_box *b, uint32_t t, uint64_t n);
/* The batch into the store, and into the model. */
HOTBED_MUST_USE hotbed_status store_box_insert_batch(store_box *b, uint32_t t);
void store_box_model_insert(store_box *b, uint32_t t);

/* A random batch into both, or out of both. */
void store_box_insert(store_box *b, uint32_t t, uint64_t n);
void store_box_erase(store_box *b, uint32_t t, uint64_t n);
/* n random keys, repeats allowed, are as in the model; rows of missing keys are left alone. */
void store_box_find(store_box *b, uint32_t t, uint64_t n);
/* All of every table is the model's. */
void store_box_check(store_box *b);

#endif
