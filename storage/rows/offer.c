/* storage/rows/offer.c - hotbed_storage_offer_rows(): rows for a table that they may fill.
 *
 * A key has few candidate slots. So a table refuses or evicts keys although some of its slots are
 * free, and the rows of a full table would not all fit into the same table again. A key whose
 * candidates are occupied therefore gets a slot by moving other rows: storage/rows/offer_core.h. */
#include "base/carve.h"
#include "storage/external_tier.h"
#include "storage/storage.h"

enum {
    /* buckets that the searches of a round may reach in all, at most. A search of the last round
     * may reach them all: of 100 million slots, about 100 stay free. */
    STEPS_MOST = 1 << 20,
    FIRST_STEPS = 2048, /* for each of the tiles of the first round: usually enough while one slot
                         * in 3,000 is free */
    FEWER = 4,          /* tiles in each further round */
    LANES = 32,         /* steps that a tile appends at once */
    /* candidate buckets at which searches may look until slots of the table are freed: so many, and
     * so many for each bucket of the table */
    WORK_LEAST = 1 << 24,
    WORK_PER_BUCKET = 1024
};

typedef struct offer {
    hotbed_storage *storage;
    hotbed_table *table;
    hotbed_stream *stream;
    hotbed_rows_args rows; /* of the call; its list of refused keys begins the stream's workspace */
    size_t list_bytes;     /* of that list */
    hotbed_offer_args args;
    hotbed_offer_state state; /* copy */
} offer;

/* The tier of a part of the table. */
static uint32_t tier_of(const hotbed_table *table, uint32_t part) {
    return part > 0 && table->view.lower.buckets != 0 ? HOTBED_LOWER : HOTBED_UPPER;
}

/* Whether a part of the table has rows of its own, not copies. */
static bool has_rows(const hotbed_table *table, uint32_t part) {
    return part > 0 || table->view.tiers != HOTBED_TIERS_CACHE;
}

/* Set rows in free slots, and list the keys that find none. */
static hotbed_status set_free(offer *o) {
    hotbed_carve list = {NULL, 0};
    void *memory;
    (void)hotbed_carve_take(&list, (o->rows.n + 1) * sizeof *o->rows.refused);
    o->list_bytes = list.used;
    HOTBED_TRY(hotbed_stream_workspace(o->stream, o->list_bytes, &memory));
    o->rows.refused = memory;
    HOTBED_TRY(hotbed_fill(memory, 0, sizeof *o->rows.refused, o->stream));
    hotbed_rows_args first = o->rows;
    first.table.range.evicts = first.table.lower.evicts = 0;
    return o->storage->kernels.rows->set(&first, o->stream);
}

/* Copy the number of refused keys to the host. Synchronous. */
static hotbed_status count_refused(const offer *o, uint64_t *refused) {
    HOTBED_TRY(hotbed_copy(refused, o->rows.refused, sizeof *refused, o->stream));
    return hotbed_stream_finish(o->stream);
}

static void carve_searches(hotbed_offer_args *args, uint64_t buckets, hotbed_carve *carve) {
    args->state = hotbed_carve_take(carve, sizeof *args->state);
    args->steps = hotbed_carve_take(carve, args->steps_most * sizeof *args->steps);
    args->seen = hotbed_carve_take(carve, buckets * sizeof *args->seen);
}

/* Prepare searches: write `state` and count the keys of each tier. */
static hotbed_status start_searches(offer *o) {
    hotbed_offer_args *args = &o->args;
    hotbed_index_part at;
    uint64_t buckets = 0;
    memset(args, 0, sizeof *args);
    args->rows = o->rows;
    for (uint32_t p = 0; hotbed_table_part(o->storage, o->table, p, &at); p++) {
        if (has_rows(o->table, p))
            args->slots[tier_of(o->table, p)] += hotbed_index_range_slots(at.range);
        buckets += at.range.buckets;
    }
    args->steps_most = (uint32_t)(buckets < STEPS_MOST ? buckets : STEPS_MOST) + LANES;
    args->work_most = WORK_LEAST + WORK_PER_BUCKET * buckets;
    hotbed_carve size = {NULL, o->list_bytes};
    carve_searches(args, buckets, &size);
    /* The list stays: the workspace is the same, or has grown and the earlier one is valid. */
    void *memory;
    HOTBED_TRY(hotbed_stream_workspace(o->stream, size.used, &memory));
    hotbed_carve carve = {memory, o->list_bytes};
    carve_searches(args, buckets, &carve);
    o->state =
        (hotbed_offer_state){.work = __atomic_load_n(&o->table->search_work, __ATOMIC_RELAXED)};
    HOTBED_TRY(hotbed_copy(args->state, &o->state, sizeof o->state, o->stream));
    HOTBED_TRY(hotbed_fill(args->seen, 0, buckets * sizeof *args->seen, o->stream));
    hotbed_rows_args one = o->rows;
    for (uint32_t p = 0; hotbed_table_part(o->storage, o->table, p, &at); p++) {
        if (!has_rows(o->table, p))
            continue;
        one.table.range = at.range;
        one.index = at.index;
        HOTBED_TRY(o->storage->kernels.rows->list(
            &one, NULL, NULL, args->state->used[tier_of(o->table, p)], o->stream));
    }
    return HOTBED_OK;
}

/* Insert the refused keys by moving other rows; *refused is the number of keys before and after. */
static hotbed_status insert_refused(offer *o, uint64_t *refused) {
    HOTBED_TRY(start_searches(o));
    hotbed_offer_args *args = &o->args;
    for (args->shares = args->steps_most / (FIRST_STEPS + LANES); args->shares > 1;
         args->shares /= FEWER)
        HOTBED_TRY(o->storage->kernels.rows->insert_refused(args, o->stream));
    args->shares = 1;
    HOTBED_TRY(o->storage->kernels.rows->insert_refused(args, o->stream));
    HOTBED_TRY(hotbed_copy(&o->state, args->state, sizeof o->state, o->stream));
    HOTBED_TRY(count_refused(o, refused));
    bool full = true, pinned = false; /* by launched graphs, unknown to the host */
    for (uint32_t tier = 0; tier < HOTBED_TIERS_MOST; tier++) {
        full = full && o->state.used[tier][0] == args->slots[tier];
        pinned = pinned || o->state.used[tier][1] > 0;
    }
    const bool enough = full || o->state.work >= args->work_most;
    if (!pinned && !__atomic_load_n(&o->table->graph_erases, __ATOMIC_RELAXED))
        __atomic_store_n(
            &o->table->search_work, enough ? UINT64_MAX : o->state.work, __ATOMIC_RELAXED);
    return HOTBED_OK;
}

/* Set n > 0 rows in free slots. *refused is the number of keys without a slot. */
static hotbed_status place_free(offer *o, uint64_t *refused) {
    HOTBED_TRY(set_free(o));
    HOTBED_TRY(count_refused(o, refused));
    return *refused == 0 ? HOTBED_OK : insert_refused(o, refused);
}

/* The same, with growth for keys that are left. */
static hotbed_status place_or_grow(offer *o, uint32_t table, uint64_t *refused) {
    bool grown = false;
    HOTBED_TRY(place_free(o, refused));
    if (*refused > 0 && o->state.left_for_growth > 0)
        HOTBED_TRY(
            hotbed_growth_exceed(o->storage, table, o->state.left_for_growth, o->stream, &grown));
    return grown ? place_free(o, refused) : HOTBED_OK;
}

hotbed_status hotbed_storage_offer_rows(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const hotbed_rows *rows,
    hotbed_stream *stream) {
    hotbed_rows_args args;
    HOTBED_TRY(hotbed_storage_rows_args(storage, table, n, keys, rows, NULL, stream, &args));
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    HOTBED_TRY(hotbed_storage_check_distinct(storage, &args, stream));
    hotbed_table *t = &storage->tables[table];
    args.offered = 1;
    if (storage->external != NULL)
        return hotbed_storage_rows_external(storage, &args, HOTBED_PASS_SET, stream);
    if (n == 0)
        return HOTBED_OK;
    uint64_t refused = n;
    if (hotbed_table_indexed(&args.table) &&
        (hotbed_growth_may_exceed(storage, t) ||
         __atomic_load_n(&t->search_work, __ATOMIC_RELAXED) != UINT64_MAX) &&
        __atomic_load_n(&storage->held, __ATOMIC_RELAXED) == 0) {
        offer o = {.storage = storage, .table = t, .stream = stream, .rows = args};
        const hotbed_status status = place_or_grow(&o, table, &refused);
        if (status != HOTBED_OK)
            (void)!hotbed_stream_finish(stream); /* enqueued work uses the memory */
        HOTBED_TRY(status);
    }
    return refused == 0 ? HOTBED_OK : storage->kernels.rows->set(&args, stream);
}
