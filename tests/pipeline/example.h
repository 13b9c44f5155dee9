/* tests/pipeline/example.h - an example model over real tables: two modules look up users and
 * items.
 *
 * Each module is a storage, and its gradient is its output (the loss is half the sum of squares),
 * so that a step needs no kernels but the storage's, on both backends.  The rows of each batch are
 * copied to `results`; if their bytes are equal, every step has read the rows that it should read.
 */
#pragma once

#include "hotbed/storage.h"
#include "hotbed/train.h"
#include "tests/support/harness.h"

enum {
    EXAMPLE_MODULES = 2,
    EXAMPLE_SAMPLES = 8,
    EXAMPLE_DIM = 8,
    EXAMPLE_KEYS = 40, /* distinct keys: batches share most of them */
    EXAMPLE_BATCHES = 64,
    EXAMPLE_DEPTH = 6,
    EXAMPLE_ROWS = EXAMPLE_SAMPLES * EXAMPLE_DIM /* floats of a module's output */
};

/* In pinned memory for the loader, in device memory for each buffer set. */
typedef struct example_batch {
    uint64_t number;
    int64_t *keys[EXAMPLE_MODULES];
    int64_t *labels;
} example_batch;

typedef struct example example;

/* A module and its table. */
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
    hotbed_postproc postproc; /* between batch.items and module items, if `with_postproc` */
    bool with_postproc;
    uint64_t postproc_runs, fused_runs;
    hotbed_trainer trainer;
    hotbed_memory memory;
    example_batch batches[EXAMPLE_BATCHES]; /* of the loader; in host memory */
    example_batch sets[EXAMPLE_DEPTH];      /* in device memory */
    int64_t *offsets;                       /* in device memory: one key for each row */
    int64_t *processed[EXAMPLE_DEPTH];      /* by the postproc; in device memory */
    float *results[EXAMPLE_BATCHES];        /* in pinned memory: [modules][rows] */
    const void *outputs[EXAMPLE_DEPTH][EXAMPLE_MODULES];
    uint64_t shuffles_started, shuffles_finished, losses, steps, zeroed, finalized; /* atomic */
    uint64_t pulled, limit, given_back, first;
    uint32_t fail_batch; /* 1 + the batch whose loss fails; 0: none */
};

extern const hotbed_batch_type example_batch_type;

void example_open(example *s, hotbed_backend backend);
void example_close(example *s);

/* Create a train pipeline with the plan. */
hotbed_train *example_train(example *s, const char *plan, uint32_t depth);

/* A loader of the batches first .. first + n - 1. */
hotbed_loader example_loader(example *s, uint64_t first, uint64_t n);
void example_bind(example *s, hotbed_train *train, uint64_t first, uint64_t n);

/* Make progress to the end, and wait for the results; returns the number of results. */
uint64_t example_run(hotbed_train *train);

/* Read the rows of all keys, [modules][EXAMPLE_KEYS][EXAMPLE_DIM]. */
void example_rows(example *s, float *rows);

/* The number of pinned rows of both tables. */
uint64_t example_pinned(example *s);
