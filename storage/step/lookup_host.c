/* storage/step/lookup_host.c - prefetch, forward and eval on the host. CUDA counterpart: lookup.cu.
 *
 * Slots and rows are at random addresses, so a thread prefetches the cache lines of the next few
 * keys before it handles the current one.
 */
#include "storage/step/lookup_kernels.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/host_launch.h"
#include "base/stream.h"
#include "storage/index/index_search.h"
#include "storage/step/pool_host.h"
#include "storage/step/row_layout.h"

enum { KEYS_GRAIN = 1024, ROWS_GRAIN = 256 };
/* items prefetched before the current one is used */
enum { LINES_AHEAD = 8, METAS_AHEAD = 16, ROWS_AHEAD = 12 };

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
        const bool counts = hotbed_batch_counts(s);
        if (counts)
            hotbed_count_prefetch(s->storage.clock);
        if (counts && s->storage.timer != NULL)
            hotbed_timer_tick(s->storage.timer, hotbed_monotonic_now() / 1000U);
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

HOTBED_HOST_BELOW(no_bags_body, hotbed_step_view, a->batch.bound, a->batch.bags[i] = HOTBED_NO_BAG)

/* Consecutive keys of one table, which are searched together. */
typedef struct key_run {
    uint32_t first, n, table;
    bool searched; /* by `search` */
    uint64_t slots[HOTBED_SEARCH_KEYS];
    hotbed_search search;
} key_run;

/* Prefetch the lines of a key's first two candidates. */
static void prefetch_lines(
    const hotbed_step_view *s, const hotbed_table_view *table, uint64_t key) {
    const uint64_t line = HOTBED_BUCKET_SLOTS * sizeof(uint64_t);
    const hotbed_probe probe = hotbed_index_probe(hotbed_table_range(table, key), key);
    hotbed_prefetch_item(hotbed_index_key(s->storage.index, probe.first), line);
    hotbed_prefetch_item(hotbed_index_key(s->storage.index, probe.second), line);
}

/* Begin to search keys[0 .. n-1] of table `table`, of which the first is number `first`. */
static void run_start(
    const hotbed_step_view *s, key_run *run, uint32_t table, const uint64_t *keys, uint32_t first,
    uint32_t n) {
    const hotbed_table_view *t = &s->storage.tables[table];
    run->first = first;
    run->n = n;
    run->table = table;
    run->searched = hotbed_table_indexed(t) && t->tiers != HOTBED_TIERS_HASH;
    if (run->searched) {
        hotbed_search_start(
            &run->search, hotbed_host_set_best(), s->storage.index, t->range, keys, n);
        return;
    }
    /* Keys without an index have no slot yet. With TIERS_HASH, two keys may have two ranges. */
    for (uint32_t k = 0; k < n; k++) {
        run->slots[k] = HOTBED_SLOT_NONE;
        if (!hotbed_table_indexed(t))
            continue;
        if (k + LINES_AHEAD < n)
            prefetch_lines(s, t, keys[k + LINES_AHEAD]);
        run->slots[k] =
            hotbed_index_find(s->storage.index, hotbed_table_range(t, keys[k]), keys[k], 1);
    }
}

static void run_first(key_run *run) {
    if (run->searched)
        hotbed_search_first(&run->search, run->slots);
}

static void run_second(key_run *run) {
    if (run->searched)
        hotbed_search_second(&run->search, run->slots);
}

/* The number of keys of a run that begins with key `first`, in a part that ends at key `part_end`. */
static inline uint32_t run_length(uint64_t first, uint64_t part_end, uint64_t end) {
    const uint64_t stop = part_end < end ? part_end : end;
    return (uint32_t)(stop - first < HOTBED_SEARCH_KEYS ? stop - first : HOTBED_SEARCH_KEYS);
}

/* Begin to search the unique keys from `first` on, up to `end`; *t is the table of an earlier
 * key. */
static void start_uniques(
    const hotbed_step_view *s, key_run *run, uint64_t first, uint64_t end, uint32_t *t) {
    run->n = 0;
    if (first >= end)
        return;
    while (first >= s->unique.offsets[*t + 1])
        (*t)++;
    run_start(
        s, run, *t, s->unique.keys + first, (uint32_t)first,
        run_length(first, s->unique.offsets[*t + 1], end));
}

static void find_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > uniques_of(s))
        end = uniques_of(s);
    if (begin >= end)
        return;
    key_run runs[2];
    uint32_t at = 0, t = hotbed_table_of_unique(s, (uint32_t)begin);
    start_uniques(s, &runs[at], begin, end, &t);
    for (; runs[at].n > 0; at ^= 1) {
        key_run *run = &runs[at];
        run_first(run);
        start_uniques(s, &runs[at ^ 1], (uint64_t)run->first + run->n, end, &t);
        run_second(run);
        for (uint32_t k = 0; k < run->n; k++)
            if (run->slots[k] != HOTBED_SLOT_NONE)
                hotbed_prefetch(hotbed_index_meta(s->storage.index, run->slots[k]));
        for (uint32_t k = 0; k < run->n; k++)
            hotbed_found_unique(s, run->table, run->first + k, run->slots[k]);
    }
}

/* eval: begin to search the keys from `first` on, up to `end`; *f is the feature of an earlier
 * key. */
static void start_keys(
    const hotbed_step_view *s, key_run *run, uint64_t first, uint64_t end, uint32_t *f) {
    run->n = 0;
    if (first >= end)
        return;
    while (first >= s->batch.feature_starts[*f + 1])
        (*f)++;
    run_start(
        s, run, s->storage.feature_tables[*f], s->batch.keys + first, (uint32_t)first,
        run_length(first, s->batch.feature_starts[*f + 1], end));
}

/* eval: the slots of keys first .. end-1, the first of which is in feature f or a later one. */
static void find_keys_of(
    const hotbed_step_view *s, uint64_t first, uint64_t end, uint32_t f, uint64_t *slots) {
    key_run runs[2];
    uint32_t at = 0;
    start_keys(s, &runs[at], first, end, &f);
    for (; runs[at].n > 0; at ^= 1) {
        key_run *run = &runs[at];
        const hotbed_table_view *table = &s->storage.tables[run->table];
        run_first(run);
        start_keys(s, &runs[at ^ 1], (uint64_t)run->first + run->n, end, &f);
        run_second(run);
        if (table->is_static != 0 || hotbed_table_moves(table))
            for (uint32_t k = 0; k < run->n; k++)
                if (run->slots[k] == HOTBED_SLOT_NONE)
                    run->slots[k] = hotbed_find_key(s, run->first + k, run->table, true, 1);
        memcpy(slots + (run->first - first), run->slots, run->n * sizeof *slots);
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
    if (begin < end)
        find_keys_of(
            s, begin, end,
            hotbed_part_of(s->batch.feature_starts, s->storage.num_features, (uint32_t)begin),
            s->unique.slots + begin);
}

static void prefetch_row(const hotbed_step_view *s, const hotbed_table_view *table, uint64_t slot) {
    if (slot != HOTBED_SLOT_NONE)
        hotbed_prefetch_item(
            hotbed_row_at(s->storage.index, table, slot),
            hotbed_weights_bytes(table->dtype, table->dim));
}

/* Write the output row of key number i. In eval, the key was found in `epoch`. */
static void forward_row(
    const forward_args *a, uint32_t i, uint32_t t, uint64_t slot, uint64_t epoch) {
    const hotbed_step_view *s = &a->s;
    const hotbed_table_view *table = &s->storage.tables[t];
    /* plain copy: nothing to convert or initialize */
    if (slot != HOTBED_SLOT_NONE && table->dtype == HOTBED_F32 &&
        s->storage.output_dtype == HOTBED_F32 && (s->eval.on == 0 || table->range.evicts == 0) &&
        hotbed_step_output_of(s) != HOTBED_TO_MANY_PACKED) {
        void *to = (float *)a->output + i * a->stride;
        if (s->to.on != 0) {
            const hotbed_scatter_place at = hotbed_scatter_at(&s->to, i);
            to = hotbed_scatter_address(&s->to, at);
            if (hotbed_forward_points(s, table, slot, at))
                return;
        }
        memcpy(to, hotbed_row_at(s->storage.index, table, slot), table->dim * sizeof(float));
        return;
    }
    hotbed_tile_keys keys = hotbed_keys_from(i, 1, epoch, 1);
    hotbed_forward_found(s, &keys, t, slot, true, a->output, a->stride, 1);
    hotbed_eval_queue_rereads(s, &keys, 1);
}

static void forward_rows_body(const void *args, uint64_t begin, uint64_t end) {
    const forward_args *a = args;
    const hotbed_step_view *s = &a->s;
    const hotbed_key_range keys =
        hotbed_scattered_keys(&s->to, s->batch.feature_starts[s->storage.num_features]);
    begin = begin < keys.begin ? keys.begin : begin;
    end = end > keys.end ? keys.end : end;
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
    uint64_t slots[ROWS_GRAIN];
    const uint32_t n = (uint32_t)(end - begin); /* at most the grain of eval_rows() */
    uint32_t f = hotbed_part_of(s->batch.feature_starts, s->storage.num_features, (uint32_t)begin);
    const uint64_t epoch = hotbed_eval_epoch(s);
    find_keys_of(s, begin, end, f, slots);
    hotbed_fence(); /* rows are read after their keys */
    for (uint32_t k = 0; k < n; k++) {
        while (begin + k >= s->batch.feature_starts[f + 1])
            f++;
        const uint32_t t = s->storage.feature_tables[f];
        if (k + ROWS_AHEAD < n && begin + k + ROWS_AHEAD < s->batch.feature_starts[f + 1])
            prefetch_row(s, &s->storage.tables[t], slots[k + ROWS_AHEAD]);
        forward_row(a, (uint32_t)begin + k, t, slots[k], epoch);
    }
}

/* The row of key number i, or NULL: it has no slot, or is out of the range of a static table. */
static inline const uint8_t *pooled_row(
    const hotbed_step_view *s, const hotbed_table_view *table, uint32_t i) {
    uint64_t slot = HOTBED_SLOT_NONE;
    if (s->unique.rows != NULL)
        return s->unique.rows[s->unique.inverse[i]];
    if (hotbed_table_indexed(table))
        slot = hotbed_forward_slot(s, i);
    else if (s->batch.keys[i] < table->capacity)
        slot = table->first_slot + s->batch.keys[i];
    return slot == HOTBED_SLOT_NONE ? NULL : hotbed_row_at(s->storage.index, table, slot);
}

/* Consecutive bags of a feature, whose keys are adjacent. */
typedef struct bag_walk {
    hotbed_host_set set;
    uint32_t stop; /* end of the feature's keys */
    hotbed_pool_rows rows;
} bag_walk;

/* Look up the rows of keys i .. i+n-1, and of the later keys that are prefetched meanwhile. n is at
 * most HOTBED_POOL_RING / 2. Returns false if one of the n keys has no row. */
static inline bool know_rows(
    const hotbed_step_view *s, const hotbed_table_view *table, bag_walk *walk, uint32_t i,
    uint32_t n) {
    hotbed_pool_rows *rows = &walk->rows;
    const uint32_t end =
        walk->stop - i < n + HOTBED_POOL_AHEAD ? walk->stop : i + n + HOTBED_POOL_AHEAD;
    const uint32_t started = rows->end == i ? i + HOTBED_POOL_AHEAD : 0;
    for (; rows->end < end; rows->end++) {
        rows->row[rows->end % HOTBED_POOL_RING] = pooled_row(s, table, rows->end);
        rows->weight[rows->end % HOTBED_POOL_RING] =
            s->batch.weights == NULL ? 1.0F : s->batch.weights[rows->end];
        if (rows->end < started && rows->row[rows->end % HOTBED_POOL_RING] != NULL)
            hotbed_prefetch_item(
                rows->row[rows->end % HOTBED_POOL_RING],
                hotbed_weights_bytes(table->dtype, table->dim));
    }
    bool all = true;
    for (uint32_t k = i; k < i + n; k++)
        all = all && rows->row[k % HOTBED_POOL_RING] != NULL;
    return all;
}

/* Pool bag b, whose rows no other stream changes meanwhile: the sums of hotbed_forward_bag(), row
 * by row. Returns false, and leaves the output undefined, if a key has no row or the offsets are
 * bad. */
static bool pool_bag(const forward_args *a, uint64_t b, uint32_t feature, bag_walk *walk) {
    const hotbed_step_view *s = &a->s;
    const hotbed_table_view *table = &s->storage.tables[s->storage.feature_tables[feature]];
    const hotbed_bag bag = hotbed_bag_at(s, b, feature);
    const uint64_t sample = b - (uint64_t)feature * s->batch.size;
    float scratch[HOTBED_DIM_MOST] HOTBED_ALIGN(16);
    if (!bag.good)
        return false;
    /* The output of a sum is the sum itself if it has the same type. */
    const bool direct = s->storage.output_dtype == HOTBED_F32 &&
                        s->storage.pooling == HOTBED_POOL_SUM && s->to.on == 0;
    float *sum =
        direct ? (float *)a->output + sample * a->stride + s->storage.columns[feature] : scratch;
    if (s->to.on != 0 && s->to.bags[b] == NULL)
        return true;
    memset(
        sum, 0, direct ? table->dim * sizeof *sum : (table->dim + 3U) / 4 * sizeof(hotbed_f32x4));
    for (uint32_t first = bag.begin; first < bag.end;) {
        const uint32_t left = bag.end - first, most = HOTBED_POOL_RING / 2;
        const uint32_t n = left < most ? left : most;
        if (!know_rows(s, table, walk, first, n))
            return false;
        hotbed_pool_add(walk->set, &walk->rows, first, n, table->dtype, table->dim, sum);
        first += n;
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
    bag_walk walk;
    walk.set = hotbed_host_set_best();
    walk.stop = 0;
    for (uint64_t b = begin; b < end; b++) {
        const uint32_t feature = (uint32_t)(b / s->batch.size);
        const uint32_t first = hotbed_bag_at(s, b, feature).begin;
        if (b == begin || b % s->batch.size == 0 || walk.rows.end < first) {
            walk.rows.end = first;
            walk.stop = s->batch.feature_starts[feature + 1];
        }
        const bool changes =
            s->eval.on != 0 &&
            s->storage.tables[s->storage.feature_tables[feature]].range.evicts != 0;
        if (changes || !pool_bag(a, b, feature, &walk)) {
            hotbed_forward_bag_checked(s, b, a->output, a->stride, 1);
            walk.rows.end = 0; /* start again at the next bag */
        }
    }
}

HOTBED_HOST_BELOW(
    again_body, forward_args, *a->s.eval.num_rereads,
    hotbed_eval_again(&a->s, (uint32_t)i, a->output, a->stride, 1))

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
        if (u + METAS_AHEAD < end && s->unique.slots[u + METAS_AHEAD] < s->storage.index_slots)
            hotbed_prefetch(hotbed_index_meta(s->storage.index, s->unique.slots[u + METAS_AHEAD]));
        hotbed_unpin_unique(s, u);
    }
}

HOTBED_HOST_BELOW(hold_body, hold_args, 1, hotbed_step_hold(&a->s, a->why, a->on))

static void pin_again_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > s->unique.offsets[s->storage.num_tables])
        end = s->unique.offsets[s->storage.num_tables];
    for (uint64_t u = begin; u < end; u++)
        if (s->unique.slots[u] < s->storage.index_slots)
            hotbed_index_pin_again(s->storage.index, s->unique.slots[u]);
}

HOTBED_HOST_CALL(layout, hotbed_step_view, 1, 0)

static hotbed_status bags(const hotbed_step_view *step, hotbed_stream *stream) {
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, step->batch.bound, KEYS_GRAIN, no_bags_body, step));
    return HOTBED_HOST_LAUNCH(
        stream, (uint64_t)step->storage.num_features * step->batch.size, ROWS_GRAIN, bags_body,
        step);
}

HOTBED_HOST_CALL(find, hotbed_step_view, a->batch.bound, KEYS_GRAIN)
HOTBED_HOST_CALL(place, hotbed_step_view, a->batch.bound, ROWS_GRAIN)
HOTBED_HOST_CALL(find_keys, hotbed_step_view, a->batch.bound, KEYS_GRAIN)

static hotbed_status eval_rows(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t max_dim,
    hotbed_stream *stream) {
    forward_args args = {.s = *step, .output = output, .stride = stride};
    return HOTBED_HOST_LAUNCH(stream, step->batch.bound, ROWS_GRAIN, eval_rows_body, &args);
}

static hotbed_status forward(
    const hotbed_step_view *step, void *output, uint64_t stride, uint32_t max_dim,
    hotbed_stream *stream) {
    forward_args args = {.s = *step, .output = output, .stride = stride};
    if (step->storage.pooling == HOTBED_POOL_NONE)
        return HOTBED_HOST_LAUNCH(stream, step->batch.bound, ROWS_GRAIN, forward_rows_body, &args);
    return HOTBED_HOST_LAUNCH(
        stream, (uint64_t)step->storage.num_features * step->batch.size, ROWS_GRAIN,
        forward_bags_body, &args);
}

static hotbed_status again(
    const hotbed_step_view *step, void *output, uint64_t stride, hotbed_stream *stream) {
    forward_args args = {.s = *step, .output = output, .stride = stride};
    return HOTBED_HOST_LAUNCH(stream, step->batch.bound, ROWS_GRAIN, again_body, &args);
}

static hotbed_status unpin(const hotbed_step_view *step, uint32_t why, hotbed_stream *stream) {
    const hold_args args = {*step, why, false};
    return HOTBED_HOST_LAUNCH(stream, step->batch.bound, KEYS_GRAIN, unpin_body, &args);
}

HOTBED_HOST_CALL(pin_again, hotbed_step_view, a->batch.bound, KEYS_GRAIN)

static hotbed_status hold(
    const hotbed_step_view *step, uint32_t why, bool on, hotbed_stream *stream) {
    const hold_args args = {*step, why, on};
    return HOTBED_HOST_LAUNCH(stream, 1, 0, hold_body, &args);
}

const hotbed_lookup_kernels hotbed_lookup_kernels_host = {
    layout, bags, find, place, find_keys, eval_rows, forward, again, unpin, pin_again, hold};
