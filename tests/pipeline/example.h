/* tests/pipeline/example.h - a small model over real tables: users and items, looked up by two
 * modules.
 *
 * Each module is a storage; its gradient is its output (the loss is half the sum of squares), so
 * that a step needs no kernel but the storage's, on both backends.  Rows come back in `results`,
 * batch by batch, and equal bytes mean that every step read the rows that it should have read.
 */
#ifndef HOTBED_TESTS_PIPELINE_EXAMPLE_H
#define HOTBED_TESTS_PIPELINE_EXAMPLE_H

#include "hotbed/storage.h"
#include "hotbed/train.h"
#include "tests/support/harness.h"

enum {
    EXAMPLE_MODULES = 2,
    EXAMPLE_SAMPLES = 8,
    EXAMPLE_DIM = 8,
    EXAMPLE_KEYS = 40, /* distinct ones: batches share most */
    EXAMPLE_BATCHES = 64,
    EXAMPLE_DEPTH = 6,
    EXAMPLE_ROWS = EXAMPLE_SAMPLES * EXAMPLE_DIM /* floats of a module's output */
};

/* On the host, pinned; on the device, one a slot. */
typedef struct example_batch {
    uint64_t number;
    int64_t *keys[EXAMPLE_MODULES];
    int64_t *labels;
} example_batch;

typedef struct example example;

/* A module with its table. */
typedef struct example_module {
    example *all;
    hotbed_module module;
    hotbed_storage *storage;
    uint64_t starts, waits, prefetches, computes, backwards, cancels, contexts; /* atomic */
} example_module;

struct example {
    hotbed_backend backend;
    hotbed_stream *stream;
    example_module modules[EXAMPLE_MODULES];
    hotbed_module *module_list[EXAMPLE_MODULES];
    hotbed_model inner, wrapper, *inner_list[1], *wrapper_list[1], model;
    hotbed_postproc postproc; /* between batch.items and module items when `with_postproc` */
    bool with_postproc;
    uint64_t postproc_runs, fused_runs;
    hotbed_trainer trainer;
    hotbed_memory memory;
    example_batch batches[EXAMPLE_BATCHES]; /* of the loader; host */
    example_batch slots[EXAMPLE_DEPTH];     /* device */
    int64_t *offsets;                       /* device: one key a row */
    int64_t *processed[EXAMPLE_DEPTH];      /* of the postproc; device */
    float *results[EXAMPLE_BATCHES];        /* pinned: [modules][rows] */
    const void *outputs[EXAMPLE_DEPTH][EXAMPLE_MODULES];
    uint64_t shuffles_started, shuffles_finished, losses, steps, zeroed, finalized; /* atomic */
    uint64_t pulled, limit, given_back, first;
    uint32_t fail_batch; /* loss of this batch + 1 fails */
};

extern const hotbed_batch_type example_batch_type;

void example_open(example *s, hotbed_backend backend);
void example_close(example *s);

/* Make a train pipeline of the plan. */
hotbed_train *example_train(example *s, const char *plan, uint32_t depth);

/* Batches first .. first + n. */
hotbed_loader example_loader(example *s, uint64_t first, uint64_t n);
void example_bind(example *s, hotbed_train *train, uint64_t first, uint64_t n);

/* Progress to the end, then wait for the results: how many there were. */
uint64_t example_run(hotbed_train *train);

/* Rows of all keys, [modules][EXAMPLE_KEYS][EXAMPLE_DIM]. */
void example_rows(example *s, float *rows);

/* Rows that are pinned, of both tables. */
uint64_t example_pinned(example *s);

#endif
