/* storage/lookup_host.c - prefetch, forward and eval on the host. CUDA counterpart: lookup.cu.
 *
 * Slots and rows are at random addresses, so a thread prefetches the cache lines of the next few
 * keys before it handles the current one.
 */
#include "storage/lookup_kernels.h"

#include "base/host_launch.h"
#include "base/stream.h"
#include "storage/row_layout.h"

#include <time.h>

enum { KEYS_GRAIN = 1024, ROWS_GRAIN = 256 };
enum { BATCH = 16 };      /* keys that are searched together */
enum { ROWS_AHEAD = 12 }; /* rows prefetched before the current one is read */
enum {
    BAG_ROWS = 32,       /* rows of a bag that are added together */
    BAG_ROWS_AHEAD = 16, /* rows prefetched before the current one is taken */
    BAG_PART = 32,       /* elements that are summed in registers */
};

typedef struct forward_args {
    hotbed_step_view s;
    void *output;
    uint64_t stride;
} forward_args;

static uint32_t uniques_of(const hotbed_step_view *s) {
    return s->unique.offsets[s->storage.num_tables];
}

static void layout_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    (void)begin, (void)end;
    bool good = true;
    if (s->eval.on == 0) {
        const bool pinned = s->unique.released == 0 && (*s->unique.held & HOTBED_HELD_BATCH) != 0;
        for (uint32_t u = 0; pinned && u < uniques_of(s); u++)
            hotbed_unpin_unique(s, u);
        hotbed_step_hold(s, HOTBED_HELD_BATCH, true);
    }
    for (uint32_t f = 0; f <= s->storage.num_features; f++) {
        bool this_good = true;
        uint64_t start = hotbed_feature_start(s, f, &this_good);
        good = good && this_good;
        s->batch.feature_starts[f] = (uint32_t)start;
    }
    for (uint32_t f = 0; f <= s->storage.num_features && !good; f++)
        s->batch.feature_starts[f] = 0;
    uint32_t f = 0;
    for (uint32_t t = 0; t <= s->storage.num_tables; t++) {
        while (f < s->storage.num_features && s->storage.feature_tables[f] < t)
            f++;
        s->batch.table_starts[t] = s->batch.feature_starts[f];
    }
    if (s->eval.on == 0) {
        hotbed_count_prefetch(s->storage.clock);
        if (s->storage.timer != NULL) {
            struct timespec now;
            (void)clock_gettime(CLOCK_MONOTONIC, &now);
            hotbed_timer_tick(
                s->storage.timer, (uint64_t)now.tv_sec * 1000000U + (uint64_t)now.tv_nsec / 1000U);
        }
        *s->unique.num_missing = 0;
    } else {
        hotbed_eval_begin(s);
    }
}

static void bags_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    for (uint64_t b = begin; b < end; b++) {
        uint32_t feature = (uint32_t)(b / s->batch.size);
        hotbed_bag bag = hotbed_bag_at(s, b, feature);
        if (!bag.good)
            hotbed_bag_fault(s, b, feature);
        for (uint32_t i = bag.begin; i < bag.end; i++)
            s->batch.bags[i] = (uint32_t)b;
    }
}

static void no_bags_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    for (uint64_t i = begin; i < end; i++)
        s->batch.bags[i] = HOTBED_NO_BAG;
}

/* A key of a search: its table, its candidates, and its slot. */
typedef struct wanted_key {
    hotbed_probe probe;
    uint64_t slot;
    uint32_t table;
} wanted_key;

static void want(const hotbed_step_view *s, wanted_key *w, uint32_t table, uint64_t key) {
    w->table = table;
    w->slot = HOTBED_SLOT_NONE;
    if (!hotbed_table_indexed(&s->storage.tables[table]))
        return;
    const uint64_t line = HOTBED_BUCKET_SLOTS * sizeof(uint64_t);
    w->probe = hotbed_index_probe(hotbed_table_range(&s->storage.tables[table], key), key);
    hotbed_prefetch_item(hotbed_index_key(s->storage.index, w->probe.first), line);
    hotbed_prefetch_item(hotbed_index_key(s->storage.index, w->probe.second), line);
}

/* Search one key; in static tables without an index, check its range. */
static void find_wanted(const hotbed_step_view *s, wanted_key *w) {
    const hotbed_table_view *table = &s->storage.tables[w->table];
    if (hotbed_table_indexed(table))
        w->slot = hotbed_index_find_probe(
            s->storage.index, hotbed_table_range(table, w->probe.key), w->probe, 1);
}

/* eval: find keys first .. first+n-1, at most BATCH, starting in feature *f; *f advances. */
static void find_keys_of(
    const hotbed_step_view *s, wanted_key *wanted, uint64_t first, uint32_t n, uint32_t *f) {
    for (uint32_t k = 0; k < n; k++) {
        while (first + k >= s->batch.feature_starts[*f + 1])
            (*f)++;
        want(s, &wanted[k], s->storage.feature_tables[*f], s->batch.keys[first + k]);
    }
    for (uint32_t k = 0; k < n; k++) {
        find_wanted(s, &wanted[k]);
        const hotbed_table_view *table = &s->storage.tables[wanted[k].table];
        if (wanted[k].slot == HOTBED_SLOT_NONE &&
            (table->is_static != 0 || hotbed_table_moves(table)))
            wanted[k].slot = hotbed_find_key(s, (uint32_t)first + k, wanted[k].table, true, 1);
    }
}

static inline uint32_t batch_of(uint64_t first, uint64_t end) {
    return (uint32_t)(end - first < BATCH ? end - first : BATCH);
}

static void find_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > s->unique.offsets[s->storage.num_tables])
        end = s->unique.offsets[s->storage.num_tables];
    if (begin >= end)
        return;
    wanted_key wanted[BATCH];
    uint32_t t = hotbed_table_of_unique(s, (uint32_t)begin);
    for (uint64_t first = begin; first < end; first += BATCH) {
        uint32_t n = batch_of(first, end);
        for (uint32_t k = 0; k < n; k++) {
            while (first + k >= s->unique.offsets[t + 1])
                t++;
            want(s, &wanted[k], t, s->unique.keys[first + k]);
        }
        for (uint32_t k = 0; k < n; k++) {
            find_wanted(s, &wanted[k]);
            if (wanted[k].slot != HOTBED_SLOT_NONE)
                hotbed_prefetch(hotbed_index_meta(s->storage.index, wanted[k].slot));
        }
        for (uint32_t k = 0; k < n; k++)
            hotbed_found_unique(s, wanted[k].table, (uint32_t)first + k, wanted[k].slot);
    }
}

/* Prefetch the metas that decide which slot key number i of `missing` gets. */
static void prefetch_place(const hotbed_step_view *s, uint64_t i) {
    uint32_t u = s->unique.missing[i];
    if ((u & HOTBED_MISSING_REJECTED) != 0)
        return;
    uint32_t t = hotbed_table_of_unique(s, u);
    const uint64_t line = HOTBED_BUCKET_SLOTS * sizeof(uint64_t);
    uint64_t key = s->unique.keys[u];
    hotbed_probe probe = hotbed_index_probe(hotbed_table_range(&s->storage.tables[t], key), key);
    hotbed_prefetch_item(hotbed_index_meta(s->storage.index, probe.first), line);
    hotbed_prefetch_item(hotbed_index_meta(s->storage.index, probe.second), line);
}

static void place_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > *s->unique.num_missing)
        end = *s->unique.num_missing;
    for (uint64_t i = begin; i < end; i++) {
        if (i + ROWS_AHEAD < end)
            prefetch_place(s, i + ROWS_AHEAD);
        const hotbed_placed p = hotbed_place_uniques(s, (uint32_t)i, 1, 1);
        hotbed_tally_places(s, p.t, p.r, p.mine, 1);
    }
}

static void find_keys_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > s->batch.feature_starts[s->storage.num_features])
        end = s->batch.feature_starts[s->storage.num_features];
    if (begin >= end)
        return;
    wanted_key wanted[BATCH];
    uint32_t f = hotbed_part_of(s->batch.feature_starts, s->storage.num_features, (uint32_t)begin);
    for (uint64_t first = begin; first < end; first += BATCH) {
        uint32_t n = batch_of(first, end);
        find_keys_of(s, wanted, first, n, &f);
        for (uint32_t k = 0; k < n; k++)
            s->unique.slots[first + k] = wanted[k].slot;
    }
}

static void prefetch_row(const hotbed_step_view *s, const hotbed_table_view *table, uint64_t slot) {
    if (slot != HOTBED_SLOT_NONE)
        hotbed_prefetch_item(
            hotbed_row_at(s->storage.index, table, slot),
            (uint64_t)table->dim * hotbed_dtype_size(table->dtype));
}

/* Write the output row of key number i. In eval, the key was found in `epoch`. */
static void forward_row(
    const forward_args *a, uint32_t i, uint32_t t, uint64_t slot, uint64_t epoch) {
    const hotbed_step_view *s = &a->s;
    const hotbed_table_view *table = &s->storage.tables[t];
    /* plain copy: nothing to convert or initialize */
    if (slot != HOTBED_SLOT_NONE && table->dtype == HOTBED_F32 &&
        s->storage.output_dtype == HOTBED_F32 && (s->eval.on == 0 || table->range.evicts == 0)) {
        memcpy(
            (float *)a->output + i * a->stride, hotbed_row_at(s->storage.index, table, slot),
            table->dim * sizeof(float));
        return;
    }
    hotbed_tile_keys keys = hotbed_keys_from(i, 1, epoch, 1);
    hotbed_forward_found(s, &keys, t, slot, true, a->output, a->stride, 1);
    hotbed_eval_queue_rereads(s, &keys, 1);
}

static void forward_rows_body(const void *args, uint64_t begin, uint64_t end) {
    const forward_args *a = args;
    const hotbed_step_view *s = &a->s;
    if (end > s->batch.feature_starts[s->storage.num_features])
        end = s->batch.feature_starts[s->storage.num_features];
    if (begin >= end)
        return;
    uint32_t f = hotbed_part_of(s->batch.feature_starts, s->storage.num_features, (uint32_t)begin);
    const uint64_t epoch = hotbed_forward_epoch(s);
    for (uint32_t i = (uint32_t)begin; i < end; i++) {
        while (i >= s->batch.feature_starts[f + 1])
            f++;
        uint32_t t = s->storage.feature_tables[f];
        if (i + ROWS_AHEAD < s->batch.feature_starts[f + 1])
            prefetch_row(s, &s->storage.tables[t], hotbed_forward_slot(s, i + ROWS_AHEAD));
        forward_row(a, i, t, hotbed_forward_slot(s, i), epoch);
    }
}

static void eval_rows_body(const void *args, uint64_t begin, uint64_t end) {
    const forward_args *a = args;
    const hotbed_step_view *s = &a->s;
    if (end > s->batch.feature_starts[s->storage.num_features])
        end = s->batch.feature_starts[s->storage.num_features];
    if (begin >= end)
        return;
    wanted_key wanted[ROWS_GRAIN];
    uint32_t n = (uint32_t)(end - begin); /* at most the grain of eval_rows() */
    uint32_t f = hotbed_part_of(s->batch.feature_starts, s->storage.num_features, (uint32_t)begin);
    const uint64_t epoch = hotbed_eval_epoch(s);
    for (uint32_t k = 0; k < n; k += BATCH)
        find_keys_of(s, wanted + k, begin + k, batch_of(k, n), &f);
    hotbed_fence(); /* rows are read after their keys */
    for (uint32_t k = 0; k < n; k++) {
        if (k + ROWS_AHEAD < n)
            prefetch_row(
                s, &s->storage.tables[wanted[k + ROWS_AHEAD].table], wanted[k + ROWS_AHEAD].slot);
        forward_row(a, (uint32_t)begin + k, wanted[k].table, wanted[k].slot, epoch);
    }
}

/* Rows of one bag, in the order in which they are added. */
typedef struct bag_rows {
    const uint8_t *row[BAG_ROWS];
    float weight[BAG_ROWS];
    uint32_t n;
} bag_rows;

/* Four elements that the compiler keeps in one register. */
typedef float vector4 __attribute__((vector_size(16)));

/* Prefetch the row of key number i. Eval has not checked the keys of static tables yet. */
static inline void prefetch_bag_row(
    const hotbed_step_view *s, const hotbed_table_view *table, uint32_t i) {
    if (hotbed_table_indexed(table))
        prefetch_row(s, table, hotbed_forward_slot(s, i));
    else if (s->batch.keys[i] < table->capacity)
        prefetch_row(s, table, table->first_slot + s->batch.keys[i]);
}

/* Take the rows of keys first .. first+n-1, and prefetch the rows of later keys of the feature, which
 * ends with key end-1. Returns false if a key has no slot. */
static inline bool take_rows(
    const hotbed_step_view *s, const hotbed_table_view *table, uint32_t first, uint32_t n,
    uint32_t end, bag_rows *out) {
    out->n = n;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t i = first + k;
        const uint64_t slot = hotbed_pooled_slot(s, table, i);
        if (slot == HOTBED_SLOT_NONE)
            return false;
        out->row[k] = hotbed_row_at(s->storage.index, table, slot);
        out->weight[k] = s->batch.weights == NULL ? 1.0F : s->batch.weights[i];
        if (i + BAG_ROWS_AHEAD < end)
            prefetch_bag_row(s, table, i + BAG_ROWS_AHEAD);
    }
    return true;
}

static inline __attribute__((always_inline)) vector4 load_vector(
    uint32_t dtype, const uint8_t *row, uint32_t e) {
    vector4 v;
    if (dtype == HOTBED_F32)
        memcpy(&v, row + e * sizeof(float), sizeof v);
    else
        for (uint32_t j = 0; j < 4; j++)
            v[j] = hotbed_load1(dtype, row, e + j);
    return v;
}

/* Add elements e .. e+BAG_PART-1 of the rows to sum. `dtype` and `weighted` are literals. */
static inline __attribute__((always_inline)) void add_part(
    const bag_rows *rows, uint32_t dtype, bool weighted, uint32_t e, float *sum) {
    vector4 part[BAG_PART / 4];
    memcpy(part, sum, sizeof part);
    for (uint32_t k = 0; k < rows->n; k++) {
        const uint8_t *row = rows->row[k];
        const float weight = rows->weight[k];
#pragma GCC unroll 8
        for (uint32_t j = 0; j < BAG_PART / 4; j++) {
            const vector4 v = load_vector(dtype, row, e + 4 * j);
            part[j] += weighted ? v * weight : v;
        }
    }
    memcpy(sum, part, sizeof part);
}

/* Add the rows to sum[0 .. dim-1]. */
static inline __attribute__((always_inline)) void add_rows(
    const bag_rows *rows, uint32_t dtype, bool weighted, uint32_t dim, float *sum) {
    uint32_t e = 0;
    for (; e + BAG_PART <= dim; e += BAG_PART)
        add_part(rows, dtype, weighted, e, sum + e);
    for (; e < dim; e++)
        for (uint32_t k = 0; k < rows->n; k++) {
            const float x = hotbed_load1(dtype, rows->row[k], e);
            sum[e] += weighted ? x * rows->weight[k] : x;
        }
}

static void add_bag(
    const hotbed_step_view *s, const hotbed_table_view *table, const bag_rows *rows, float *sum) {
    const bool weighted = s->batch.weights != NULL;
    if (table->dtype == HOTBED_F32 && !weighted)
        add_rows(rows, HOTBED_F32, false, table->dim, sum);
    else if (table->dtype == HOTBED_F32)
        add_rows(rows, HOTBED_F32, true, table->dim, sum);
    else if (table->dtype == HOTBED_F16)
        add_rows(rows, HOTBED_F16, weighted, table->dim, sum);
    else
        add_rows(rows, HOTBED_BF16, weighted, table->dim, sum);
}

/* Pool bag b, whose rows no other stream changes meanwhile: the sums of hotbed_forward_bag(), row
 * by row. Returns false, and leaves the output undefined, if a key has no slot or the offsets are
 * bad. */
static bool pool_bag(const forward_args *a, uint64_t b, uint32_t feature) {
    const hotbed_step_view *s = &a->s;
    const hotbed_table_view *table = &s->storage.tables[s->storage.feature_tables[feature]];
    const hotbed_bag bag = hotbed_bag_at(s, b, feature);
    const uint64_t sample = b - (uint64_t)feature * s->batch.size;
    float scratch[HOTBED_DIM_MOST] HOTBED_ALIGN(16);
    bag_rows rows;
    if (!bag.good)
        return false;
    /* The output of a sum is the sum itself if it has the same type. */
    const bool direct =
        s->storage.output_dtype == HOTBED_F32 && s->storage.pooling == HOTBED_POOL_SUM;
    float *sum =
        direct ? (float *)a->output + sample * a->stride + s->storage.columns[feature] : scratch;
    memset(
        sum, 0, direct ? table->dim * sizeof *sum : (table->dim + 3U) / 4 * sizeof(hotbed_f32x4));
    for (uint32_t first = bag.begin; first < bag.end; first += BAG_ROWS) {
        const uint32_t n = bag.end - first < BAG_ROWS ? bag.end - first : BAG_ROWS;
        if (!take_rows(s, table, first, n, s->batch.feature_starts[feature + 1], &rows))
            return false;
        add_bag(s, table, &rows, sum);
    }
    for (uint32_t e = 0; e < table->dim && !direct; e += 4)
        hotbed_bag_write(
            s, table->dim, feature, sample, bag.end - bag.begin, e,
            *(const hotbed_f32x4 *)(const void *)(sum + e), a->output, a->stride);
    return true;
}

static void forward_bags_body(const void *args, uint64_t begin, uint64_t end) {
    const forward_args *a = args;
    const hotbed_step_view *s = &a->s;
    for (uint64_t b = begin; b < end; b++) {
        const uint32_t feature = (uint32_t)(b / s->batch.size);
        const bool changes =
            s->eval.on != 0 &&
            s->storage.tables[s->storage.feature_tables[feature]].range.evicts != 0;
        if (changes || !pool_bag(a, b, feature))
            hotbed_forward_bag_checked(s, b, a->output, a->stride, 1);
    }
}

static void again_body(const void *args, uint64_t begin, uint64_t end) {
    const forward_args *a = args;
    if (end > *a->s.eval.num_rereads)
        end = *a->s.eval.num_rereads;
    for (uint64_t i = begin; i < end; i++)
        hotbed_eval_again(&a->s, (uint32_t)i, a->output, a->stride, 1);
}

/* Which pins of a ticket to change, and how. */
typedef struct hold_args {
    hotbed_step_view s;
    uint32_t why;
    bool on;
} hold_args;

static void unpin_body(const void *args, uint64_t begin, uint64_t end) {
    const hold_args *a = args;
    const hotbed_step_view *s = &a->s;
    if ((*s->unique.held & a->why) == 0)
        return;
    if (end > uniques_of(s))
        end = uniques_of(s);
    for (uint64_t u = begin; u < end; u++) {
        if (u + BATCH < end && s->unique.slots[u + BATCH] < s->storage.index_slots)
            hotbed_prefetch(hotbed_index_meta(s->storage.index, s->unique.slots[u + BATCH]));
        hotbed_unpin_unique(s, u);
    }
}

static void hold_body(const void *args, uint64_t begin, uint64_t end) {
    const hold_args *a = args;
    (void)begin, (void)end;
    hotbed_step_hold(&a->s, a->why, a->on);
}

static void pin_again_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > s->unique.offsets[s->storage.num_tables])
        end = s->unique.offsets[s->storage.num_tables];
    for (uint64_t u = begin; u < end; u++)
        if (s->unique.slots[u] < s->storage.index_slots)
            hotbed_index_pin_again(s->storage.index, s->unique.slots[u]);
}

static hotbed_status layout(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_host_launch(stream, 1, 0, layout_body, step, sizeof *step);
}

static hotbed_status bags(const hotbed_step_view *step, hotbed_stream *stream) {
    hotbed_status status =
        hotbed_host_launch(stream, step->batch.bound, KEYS_GRAIN, no_bags_body, step, sizeof *step);
    if (status != HOTBED_OK)
        return status;
    return hotbed_host_launch(
        stream, (uint64_t)step->storage.num_features * step->batch.size, ROWS_GRAIN, bags_body,
        step, sizeof *step);
}

static hotbed_status find(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_host_launch(stream, step->batch.bound, KEYS_GRAIN, find_body, step, sizeof *step);
}

static hotbed_status place(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_host_launch(
        stream, step->batch.bound, ROWS_GRAIN, place_body, step, sizeof *step);
}

static hotbed_status find_keys(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_host_launch(
        stream, step->batch.bound, KEYS_GRAIN, find_keys_body, step, sizeof *step);
}

static hotbed_status eval_rows(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t max_dim,
    hotbed_stream *stream) {
    forward_args args = {.s = *step, .output = output, .stride = stride};
    (void)max_dim;
    return hotbed_host_launch(
        stream, step->batch.bound, ROWS_GRAIN, eval_rows_body, &args, sizeof args);
}

static hotbed_status forward(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t max_dim,
    hotbed_stream *stream) {
    forward_args args = {.s = *step, .output = output, .stride = stride};
    (void)max_dim;
    if (step->storage.pooling == HOTBED_POOL_NONE)
        return hotbed_host_launch(
            stream, step->batch.bound, ROWS_GRAIN, forward_rows_body, &args, sizeof args);
    return hotbed_host_launch(
        stream, (uint64_t)step->storage.num_features * step->batch.size, ROWS_GRAIN,
        forward_bags_body, &args, sizeof args);
}

static hotbed_status again(
    const hotbed_step_view *step, void *output, uint64_t stride, hotbed_stream *stream) {
    forward_args args = {.s = *step, .output = output, .stride = stride};
    return hotbed_host_launch(
        stream, step->batch.bound, ROWS_GRAIN, again_body, &args, sizeof args);
}

static hotbed_status unpin(const hotbed_step_view *step, uint32_t why, hotbed_stream *stream) {
    const hold_args args = {*step, why, false};
    return hotbed_host_launch(
        stream, step->batch.bound, KEYS_GRAIN, unpin_body, &args, sizeof args);
}

static hotbed_status pin_again(const hotbed_step_view *step, hotbed_stream *stream) {
    return hotbed_host_launch(
        stream, step->batch.bound, KEYS_GRAIN, pin_again_body, step, sizeof *step);
}

static hotbed_status hold(
    const hotbed_step_view *step, uint32_t why, bool on, hotbed_stream *stream) {
    const hold_args args = {*step, why, on};
    return hotbed_host_launch(stream, 1, 0, hold_body, &args, sizeof args);
}

const hotbed_lookup_kernels hotbed_lookup_kernels_host = {
    layout, bags, find, place, find_keys, eval_rows, forward, again, unpin, pin_again, hold};
