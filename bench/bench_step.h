/* bench/bench_step.h - one hash table, its index and a batch, for benchmarks of single kernels of
 * storage/. */
#pragma once

#include "bench/bench.h"
#include "storage/rows/rows_kernels.h"
#include "storage/step/lookup_kernels.h"
#include "storage/step/score_kernels.h"
#include "storage/step/unique_kernels.h"
#include "storage/step/update_kernels.h"

typedef struct bench_step_options {
    uint64_t slots;
    uint64_t bound;     /* keys of a batch */
    uint32_t bag;       /* keys of a bag; 0: pooling NONE */
    uint32_t dim;       /* a multiple of 4 */
    hotbed_dtype dtype; /* 0 is F32 */
    uint32_t states;    /* F32 states of dim elements */
    bool evicts;
    hotbed_initializer_kind init; /* of new rows; 0: zeros */
    hotbed_admission
        admission; /* FREQUENCY: no key reaches the threshold; PROBABILISTIC: half of the keys are admitted */
} bench_step_options;

typedef struct bench_step {
    hotbed_stream *stream;
    hotbed_step_view view;   /* the view of a training step */
    hotbed_table_view table; /* the table that view.tables points to, in host memory */
    uint64_t *keys;          /* view.keys, writable */
    const hotbed_unique_kernels *unique;
    const hotbed_lookup_kernels *lookup;
    const hotbed_update_kernels *update;
    const hotbed_rows_kernels *rows;
    const hotbed_score_kernels *score;
} bench_step;

/* Create an empty table and a batch without keys. False: the case is skipped. */
bool bench_step_create(bench_state *state, const bench_step_options *options, bench_step *out);

/* Insert the keys numbered first .. first + n - 1. */
bool bench_step_fill(bench_state *state, bench_step *step, uint64_t first, uint64_t n);

/* Set the batch to the keys of `bound` numbers. */
bool bench_step_batch(bench_state *state, bench_step *step, const uint64_t *numbers);

/* Set the unique keys to the keys of n distinct `numbers`, as dedup would. */
bool bench_step_uniques(bench_state *state, bench_step *step, const uint64_t *numbers, uint64_t n);

/* After a find of the unique keys: whether `expected` of them were missing. If not, the case is
 * skipped. Synchronous. */
bool bench_step_missed(bench_state *state, const bench_step *step, uint64_t expected);

/* Remove the keys of these numbers. */
bool bench_step_erase(bench_state *state, bench_step *step, const uint64_t *numbers, uint64_t n);

/* Number of unique keys of the last dedup. Synchronous. */
uint32_t bench_step_num_uniques(bench_state *state, const bench_step *step);

/* Dedup the batch, insert new keys, and pin. */
bool bench_step_prefetch(bench_state *state, bench_step *step, void *scratch);

/* The view of an eval of the same batch, in memory of the training step. */
hotbed_step_view bench_step_eval(const bench_step *step);
