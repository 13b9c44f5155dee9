/* tests/pipeline/shop.h - a small model over real tables: users and items, looked up by two
 * modules.
 *
 * Each module is a storage; its gradient is its output (the loss is half the sum of squares), so
 * that a step needs no kernel but the storage's, on both backends.  Rows come back in `results`,
 * batch by batch, and equal bytes mean that every step read the rows that it should have read.
 */
#ifndef HOTBED_TESTS_SHOP_H
#define HOTBED_TESTS_SHOP_H

#include "hotbed/storage.h"
#include "hotbed/train.h"
#include "tests/support/harness.h"

enum {
    SHOP_MODULES = 2,
    SHOP_SAMPLES = 8,
    SHOP_DIM = 8,
    SHOP_KEYS = 40, /* distinct ones: batches share most */
    SHOP_BATCHES = 64,
    SHOP_DEPTH = 6,
    SHOP_ROWS = SHOP_SAMPLES * SHOP_DIM /* floats of a module's output */
};

/* On the host, pinned; on the device, one a slot. */
typedef struct shop_batch {
    uint64_t number;
    int64_t *keys[SHOP_MODULES];
    int64_t *labels;
} shop_batch;

typedef struct shop shop;

/* A module with its table. */
typedef struct shop_module {
    shop *all;
    hotbed_module module;
    hotbed_storage *storage;
    uint64_t starts, waits, prefetches, computes, backwards, cancels, contexts; /* atomic */
} shop_module;

struct shop {
    hotbed_backend backend;
    hotbed_stream *stream;
    shop_module modules[SHOP_MODULES];
    hotbed_module *module_list[SHOP_MODULES];
    hotbed_model inner, wrapper, *inner_list[1], *wrapper_list[1], model;
    hotbed_postproc postproc; /* between batch.items and module items when `with_postproc` */
    bool with_postproc;
    uint64_t postproc_runs, fused_runs;
    hotbed_trainer trainer;
    hotbed_memory memory;
    shop_batch batches[SHOP_BATCHES]; /* of the loader; host */
    shop_batch slots[SHOP_DEPTH];     /* device */
    int64_t *offsets;                 /* device: one key a row */
    int64_t *processed[SHOP_DEPTH];   /* of the postproc; device */
    float *results[SHOP_BATCHES];     /* pinned: [modules][rows] */
    const void *outputs[SHOP_DEPTH][SHOP_MODULES];
    uint64_t shuffles_started, shuffles_finished, losses, steps, zeroed, finalized; /* atomic */
    uint64_t pulled, limit, given_back, first;
    uint32_t fail_batch; /* loss of this batch + 1 fails */
};

extern const hotbed_batch_type shop_batch_type;

void shop_open(shop *s, hotbed_backend backend);
void shop_close(shop *s);

/* Make a train pipeline of the plan. */
hotbed_train *shop_train(shop *s, const char *plan, uint32_t depth);

/* Batches first .. first + n. */
hotbed_loader shop_loader(shop *s, uint64_t first, uint64_t n);
void shop_bind(shop *s, hotbed_train *train, uint64_t first, uint64_t n);

/* Progress to the end, then wait for the results: how many there were. */
uint64_t shop_run(hotbed_train *train);

/* Rows of all keys, [modules][SHOP_KEYS][SHOP_DIM]. */
void shop_rows(shop *s, float *rows);

/* Rows that are pinned, of both tables. */
uint64_t shop_pinned(shop *s);

#endif
