/* bench/bench_step.c - one hash table, its index and a batch; see bench_step.h. */
#include "bench/bench_step.h"

#include "base/error.h"
#include "base/stream.h"
#include "storage/index/index_range.h"
#include "storage/types.h"

#include <stdio.h>
#include <stdlib.h>

/* --- create ----------------------------------------------------------------------------------- */

static void choose_kernels(bench_step *step) {
    step->unique = &hotbed_unique_kernels_host;
    step->lookup = &hotbed_lookup_kernels_host;
    step->update = &hotbed_update_kernels_host;
    step->rows = &hotbed_rows_kernels_host;
    step->score = &hotbed_score_kernels_host;
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(step->stream) == HOTBED_BACKEND_CUDA) {
        step->unique = &hotbed_unique_kernels_cuda;
        step->lookup = &hotbed_lookup_kernels_cuda;
        step->update = &hotbed_update_kernels_cuda;
        step->rows = &hotbed_rows_kernels_cuda;
        step->score = &hotbed_score_kernels_cuda;
    }
#endif
}

/* Set the admission. The counter of FREQUENCY has capacity for as many keys as the table has slots.
 * Returns the slots of both. */
static uint64_t set_admission(hotbed_admission admission, hotbed_table_view *t) {
    t->admission = (uint32_t)admission;
    t->admit = admission == HOTBED_ADMIT_FREQUENCY ? UINT64_MAX : (uint64_t)1 << 31;
    if (admission != HOTBED_ADMIT_FREQUENCY)
        return t->slots;
    t->counter = hotbed_index_range_make(t->slots, true, t->range.buckets);
    return t->slots + hotbed_index_range_slots(t->counter);
}

static bool create_table(bench_state *state, const bench_step_options *o, bench_step *step) {
    hotbed_table_view *t = &step->table;
    const hotbed_initializer initializer = {.kind = o->init, .std = 1, .upper = 1};
    t->dim = o->dim;
    t->lower_first = UINT64_MAX; /* a single tier */
    t->init = hotbed_init_make(&initializer, "table", 1);
    t->dtype = o->dtype == 0 ? HOTBED_F32 : o->dtype;
    t->states = o->states;
    t->state_dtype[0] = t->state_dtype[1] = HOTBED_F32;
    t->row_bytes = (hotbed_weights_bytes(t->dtype, o->dim) + 15U) / 16 * 16;
    for (uint32_t s = 0; s < o->states; s++) {
        t->state_bytes[s] = o->dim * (uint32_t)sizeof(float);
        t->state_offset[s] = (uint32_t)t->row_bytes;
        t->row_bytes += t->state_bytes[s];
    }
    t->range.buckets = (uint32_t)((o->slots + HOTBED_BUCKET_SLOTS - 1) / HOTBED_BUCKET_SLOTS);
    uint32_t choices = o->evicts ? HOTBED_WALK_EVICT : HOTBED_WALK_MOST;
    t->range.choices = choices < t->range.buckets ? choices : t->range.buckets - 1;
    t->range.evicts = o->evicts;
    t->slots = (uint64_t)t->range.buckets * HOTBED_BUCKET_SLOTS;
    t->capacity = t->slots;
    t->rows = bench_alloc(state, t->slots * t->row_bytes);
    step->view.storage.index_slots = set_admission(o->admission, t);
    step->view.storage.index.keys =
        bench_alloc(state, step->view.storage.index_slots * sizeof(uint64_t));
    step->view.storage.index.metas =
        bench_alloc(state, step->view.storage.index_slots * sizeof(uint64_t));
    step->view.storage.tables = bench_upload(state, t, sizeof *t);
    return t->rows && step->view.storage.index.keys && step->view.storage.index.metas &&
           step->view.storage.tables;
}

static bool create_batch(bench_state *state, const bench_step_options *o, bench_step *step) {
    hotbed_step_view *v = &step->view;
    const uint32_t zero = 0;
    const uint64_t columns[2] = {0, o->dim};
    const float zeros[HOTBED_REGISTER_DIM_MOST] = {0};
    v->batch.bound = o->bound;
    v->storage.num_tables = 1;
    v->storage.num_features = 1;
    v->batch.size = (uint32_t)(o->bag > 0 ? o->bound / o->bag : o->bound);
    v->storage.pooling = o->bag > 0 ? HOTBED_POOL_SUM : HOTBED_POOL_NONE;
    v->storage.output_dtype = HOTBED_F32;
    v->storage.indexed = 1;
    v->storage.rows_form =
        hotbed_rows_form_of((uint32_t)step->table.dtype, o->dim, step->table.row_bytes);
    v->storage.zeros = bench_upload(state, zeros, sizeof zeros);
    v->batch.faults = hotbed_stream_faults(step->stream);
    step->keys = bench_alloc(state, o->bound * sizeof(uint64_t));
    v->batch.keys = step->keys;
    v->storage.feature_tables = bench_upload(state, &zero, sizeof zero);
    v->storage.columns = bench_upload(state, columns, sizeof columns);
    v->batch.feature_starts = bench_alloc(state, 2 * sizeof(uint32_t));
    v->batch.table_starts = bench_alloc(state, 2 * sizeof(uint32_t));
    v->unique.offsets = bench_alloc(state, 2 * sizeof(uint32_t));
    v->unique.inverse = bench_alloc(state, o->bound * sizeof(uint32_t));
    v->unique.keys = bench_alloc(state, o->bound * sizeof(uint64_t));
    v->unique.slots = bench_alloc(state, o->bound * sizeof(uint64_t));
    v->unique.starts = bench_alloc(state, (o->bound + 1) * sizeof(uint32_t));
    v->unique.positions = bench_alloc(state, o->bound * sizeof(uint32_t));
    v->unique.counts = bench_alloc(state, o->bound * sizeof(uint64_t));
    v->unique.missing = bench_alloc(state, o->bound * sizeof(uint32_t));
    v->unique.num_missing = bench_upload(state, &zero, sizeof zero);
    return step->keys && v->storage.zeros && v->storage.feature_tables && v->storage.columns &&
           v->batch.feature_starts && v->batch.table_starts && v->unique.offsets &&
           v->unique.inverse && v->unique.keys && v->unique.slots && v->unique.starts &&
           v->unique.positions && v->unique.counts && v->unique.missing && v->unique.num_missing;
}

/* Bags of equal length. */
static bool create_bags(bench_state *state, const bench_step_options *o, bench_step *step) {
    if (o->bag == 0)
        return true;
    uint64_t bags = step->view.batch.size;
    int64_t *offsets = malloc((bags + 1) * sizeof *offsets);
    for (uint64_t b = 0; offsets && b <= bags; b++)
        offsets[b] = (int64_t)(b * o->bag);
    step->view.batch.offsets = bench_upload(state, offsets, (bags + 1) * sizeof *offsets);
    step->view.batch.bags = bench_alloc(state, o->bound * sizeof(uint32_t));
    free(offsets);
    return step->view.batch.offsets && step->view.batch.bags;
}

static hotbed_rows_args rows_args(const bench_step *step) {
    hotbed_rows_args args = {.table = step->table, .index = step->view.storage.index};
    args.clock = step->view.storage.clock;
    args.faults = step->view.batch.faults;
    return args;
}

bool bench_step_create(bench_state *state, const bench_step_options *options, bench_step *out) {
    const hotbed_clock clock = {
        .optimizer = {.learning_rate = 0.01F, .beta1_power = 1, .beta2_power = 1}};
    const hotbed_tally tally = {0};
    const uint32_t held[2] = {0, 0};
    *out = (bench_step){.stream = bench_stream(state)};
    choose_kernels(out);
    out->view.storage.clock = bench_upload(state, &clock, sizeof clock);
    out->view.storage.tallies = bench_upload(state, &tally, sizeof tally);
    out->view.unique.held = bench_upload(state, held, sizeof held);
    out->view.storage.holding = out->view.unique.held + 1;
    out->view.unique.released = 1; /* benchmarks release pins explicitly */
    if (!out->view.storage.clock || !out->view.storage.tallies || !out->view.unique.held ||
        !create_table(state, options, out) || !create_batch(state, options, out) ||
        !create_bags(state, options, out)) {
        bench_skip(state, "no memory");
        return false;
    }
    hotbed_rows_args args = rows_args(out);
    args.n = out->table.slots;
    hotbed_rows_args counter = args;
    counter.table.range = args.table.counter;
    if (!bench_ok(state, out->rows->clear(&args, out->stream)) ||
        (out->table.counter.buckets > 0 &&
         !bench_ok(state, out->rows->clear(&counter, out->stream))) ||
        !bench_ok(state, out->lookup->layout(&out->view, out->stream)))
        return false;
    if (out->view.batch.bags && !bench_ok(state, out->lookup->bags(&out->view, out->stream)))
        return false;
    return bench_ok(state, hotbed_stream_sync(out->stream));
}

/* --- keys ------------------------------------------------------------------------------------- */

/* Copy the keys of n numbers to device memory. Synchronous. */
static hotbed_status send_keys(
    const uint64_t *numbers, uint64_t n, uint64_t *to, hotbed_stream *stream) {
    uint64_t *keys = malloc(n * sizeof *keys);
    if (!keys)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %llu keys", (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++)
        keys[i] = bench_key(numbers[i]);
    hotbed_status status = hotbed_copy(to, keys, n * sizeof *keys, stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(stream);
    free(keys);
    return status;
}

bool bench_step_batch(bench_state *state, bench_step *step, const uint64_t *numbers) {
    return bench_ok(state, send_keys(numbers, step->view.batch.bound, step->keys, step->stream));
}

bool bench_step_uniques(bench_state *state, bench_step *step, const uint64_t *numbers, uint64_t n) {
    const uint32_t offsets[2] = {0, (uint32_t)n};
    const uint32_t zero = 0;
    hotbed_step_view *v = &step->view;
    return bench_ok(state, send_keys(numbers, n, v->unique.keys, step->stream)) &&
           bench_ok(state, hotbed_copy(v->unique.offsets, offsets, sizeof offsets, step->stream)) &&
           bench_ok(state, hotbed_copy(v->unique.num_missing, &zero, sizeof zero, step->stream)) &&
           bench_ok(state, hotbed_stream_sync(step->stream));
}

bool bench_step_fill(bench_state *state, bench_step *step, uint64_t first, uint64_t n) {
    uint64_t *numbers = malloc(step->view.batch.bound * sizeof *numbers);
    if (!numbers) {
        bench_skip(state, "no memory");
        return false;
    }
    bool ok = true;
    while (n > 0 && ok) {
        uint64_t part = n < step->view.batch.bound ? n : step->view.batch.bound;
        for (uint64_t i = 0; i < part; i++)
            numbers[i] = first + i;
        ok = bench_step_uniques(state, step, numbers, part) &&
             bench_ok(state, step->lookup->find(&step->view, step->stream)) &&
             bench_ok(state, step->lookup->place(&step->view, step->stream)) &&
             bench_ok(state, step->lookup->unpin(&step->view, HOTBED_HELD_BATCH, step->stream)) &&
             bench_ok(state, hotbed_stream_sync(step->stream));
        first += part;
        n -= part;
    }
    free(numbers);
    return ok;
}

bool bench_step_missed(bench_state *state, const bench_step *step, uint64_t expected) {
    uint32_t missed = 0;
    char text[80];
    if (!bench_ok(
            state,
            hotbed_copy(&missed, step->view.unique.num_missing, sizeof missed, step->stream)) ||
        !bench_ok(state, hotbed_stream_sync(step->stream)))
        return false;
    if (missed == expected)
        return true;
    (void)snprintf(
        text, sizeof text, "%u keys were not found, not %llu", missed,
        (unsigned long long)expected);
    bench_skip(state, text);
    return false;
}

bool bench_step_erase(bench_state *state, bench_step *step, const uint64_t *numbers, uint64_t n) {
    hotbed_rows_args args = rows_args(step);
    args.keys = step->keys;
    args.n = n;
    return bench_ok(state, send_keys(numbers, n, step->keys, step->stream)) &&
           bench_ok(state, step->rows->erase(&args, step->stream)) &&
           bench_ok(state, hotbed_stream_sync(step->stream));
}

bool bench_step_prefetch(bench_state *state, bench_step *step, void *scratch) {
    const hotbed_step_view *v = &step->view;
    return bench_ok(state, step->lookup->layout(v, step->stream)) &&
           bench_ok(state, step->unique->unique(v, scratch, step->stream, step->stream)) &&
           bench_ok(state, step->lookup->find(v, step->stream)) &&
           bench_ok(state, step->lookup->place(v, step->stream)) &&
           bench_ok(state, hotbed_stream_sync(step->stream));
}

hotbed_step_view bench_step_eval(const bench_step *step) {
    hotbed_step_view view = step->view;
    view.eval.on = 1;
    view.eval.begun = view.unique.counts;
    view.eval.rereads = view.unique.missing;
    view.eval.num_rereads = view.unique.num_missing;
    view.unique.inverse = NULL;
    return view;
}

uint32_t bench_step_num_uniques(bench_state *state, const bench_step *step) {
    uint32_t n = 0;
    const uint32_t *from = step->view.unique.offsets + 1;
    bool ok = bench_ok(state, hotbed_copy(&n, from, sizeof n, step->stream)) &&
              bench_ok(state, hotbed_stream_sync(step->stream));
    return ok ? n : 0;
}
