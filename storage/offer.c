/* storage/offer.c - hotbed_storage_offer_rows(): rows for a table that they may fill.
 *
 * A key has few candidate slots. So a table refuses or evicts keys although some of its slots are
 * free, and the rows of a full table would not all fit into the same table again. A key whose
 * candidates are occupied therefore gets a slot by moving other keys: a breadth-first search over
 * buckets finds the shortest sequence of keys of which each can move to the bucket of the next,
 * and the last one to a free slot. The search works on a copy of the table's index on the host.
 *
 * Source: cuckoo hashing, Pagh and Rodler 2004. */
#include "storage/index_place_core.h"
#include "storage/storage.h"

enum {
    PARTS_MOST = HOTBED_GROWTHS_MOST + 1,
    MOVES_MOST = 6, /* keys that move for one other key */
    VISITS = 32     /* of each bucket on average by the searches of a call */
};

/* A part of the table on the host: slots are counted from 0. */
typedef struct part_copy {
    hotbed_index_view index;
    hotbed_index_range range;
    uint8_t *seen; /* [buckets] by this search */
} part_copy;

/* A bucket of a search. */
typedef struct step {
    uint32_t part, bucket;
    uint32_t from; /* the step from whose bucket a key moves here; NONE: it is the new key's */
    uint32_t slot; /* that key's, in its bucket */
} step;

#define NONE UINT32_MAX

typedef struct offer {
    hotbed_storage *storage;
    hotbed_table *table;
    uint32_t number;      /* of the table */
    const uint64_t *keys; /* device, as given */
    const hotbed_rows *rows;
    hotbed_stream *stream;
    hotbed_fault *faults; /* device: faults of keys that find no slot yet, which nobody reads */
    hotbed_memory device; /* faults, the moved rows, flags */
    uint64_t *moved_keys; /* device: [MOVES_MOST] */
    hotbed_rows moved;    /* device: [MOVES_MOST] */
    uint8_t *flags;       /* device: [n + MOVES_MOST] */
    part_copy parts[PARTS_MOST];
    uint32_t num_parts;
    uint64_t free;        /* free slots of the table */
    uint64_t visits_left; /* of buckets by this call */
    step *steps;          /* [buckets of all parts] */
    uint32_t num_steps;
} offer;

/* --- calls on rows ---------------------------------------------------------------------------- */

static void *advance(void *data, uint64_t bytes) {
    return data == NULL ? NULL : (uint8_t *)data + bytes;
}

/* Row i of `rows`, and those after it. */
static hotbed_rows rows_from(const offer *o, const hotbed_rows *rows, uint64_t i) {
    const hotbed_table_view *view = &o->table->view;
    hotbed_rows from = *rows;
    from.weights = advance(from.weights, i * view->dim * hotbed_dtype_size(view->dtype));
    for (uint32_t s = 0; s < view->states; s++)
        from.states[s] = advance(from.states[s], i * view->state_dim * sizeof(float));
    from.scores = advance(from.scores, i * sizeof(uint64_t));
    from.times = advance(from.times, i * sizeof(uint64_t));
    return from;
}

/* Set n rows in free slots; the others are skipped. */
static hotbed_status set_free(
    const offer *o, uint64_t n, const uint64_t *keys, const hotbed_rows *rows) {
    hotbed_rows_args args;
    HOTBED_TRY(
        hotbed_storage_rows_args(o->storage, o->number, n, keys, rows, NULL, o->stream, &args));
    args.table.range.evicts = 0;
    args.faults = o->faults;
    args.offered = 1;
    return o->storage->kernels.rows->set(&args, o->stream);
}

/* Set flags[i] for each key that has a row. */
static hotbed_status find(const offer *o, uint64_t n, const uint64_t *keys, uint8_t *flags) {
    hotbed_rows_args args;
    HOTBED_TRY(
        hotbed_storage_rows_args(o->storage, o->number, n, keys, NULL, flags, o->stream, &args));
    return o->storage->kernels.rows->get(&args, o->stream);
}

/* --- the copy on the host --------------------------------------------------------------------- */

static void drop_copy(offer *o) {
    for (uint32_t p = 0; p < o->num_parts; p++) {
        hotbed_delete(o->parts[p].index.keys);
        hotbed_delete(o->parts[p].index.metas);
        hotbed_delete(o->parts[p].seen);
    }
    hotbed_delete(o->steps);
    o->steps = NULL;
    o->num_parts = 0;
}

static hotbed_status fail_copy(const offer *o, uint64_t slots) {
    return hotbed_fail(
        HOTBED_ERR_MEMORY, "table %s: no memory for a copy of %llu slots", o->table->name,
        (unsigned long long)slots);
}

static hotbed_status copy_index(offer *o) {
    hotbed_index_part at;
    drop_copy(o);
    uint64_t buckets = 0;
    o->free = 0;
    for (uint32_t p = 0; hotbed_table_part(o->storage, o->table, p, &at); p++) {
        part_copy *part = &o->parts[o->num_parts++];
        const uint64_t slots = hotbed_index_range_slots(at.range),
                       first = hotbed_index_slot(at.range, 0);
        part->range = at.range;
        part->range.first_bucket = 0;
        part->range.segment = 0;
        part->range.evicts = 0;
        part->range.times = NULL;
        part->index = (hotbed_index_view){
            hotbed_new(slots * sizeof(uint64_t)), hotbed_new(slots * sizeof(uint64_t)), NULL};
        part->seen = hotbed_new(at.range.buckets);
        if (part->index.keys == NULL || part->index.metas == NULL || part->seen == NULL)
            return fail_copy(o, slots);
        buckets += at.range.buckets;
        HOTBED_TRY(hotbed_copy(
            part->index.keys, at.index.keys + first, slots * sizeof(uint64_t), o->stream));
        HOTBED_TRY(hotbed_copy(
            part->index.metas, at.index.metas + first, slots * sizeof(uint64_t), o->stream));
    }
    HOTBED_TRY(hotbed_stream_finish(o->stream));
    o->steps = hotbed_new(buckets * sizeof *o->steps);
    if (o->steps == NULL)
        return fail_copy(o, buckets * HOTBED_BUCKET_SLOTS);
    for (uint32_t p = 0; p < o->num_parts; p++)
        for (uint64_t s = 0; s < hotbed_index_range_slots(o->parts[p].range); s++)
            o->free += o->parts[p].index.metas[s] == 0;
    return HOTBED_OK;
}

/* Place a key in the copy as kernels place it in the table: in the newest part that has space. */
static void place_copy(offer *o, uint64_t key) {
    for (uint32_t p = o->num_parts; p-- > 0;) {
        part_copy *part = &o->parts[p];
        const hotbed_index_result r = hotbed_index_place_in(
            part->index, part->range, key, HOTBED_META_OCCUPIED, false, hotbed_evict_any(), 1);
        if (r.slot == HOTBED_SLOT_NONE)
            continue;
        part->index.keys[r.slot] = key;
        return;
    }
}

/* --- search ----------------------------------------------------------------------------------- */

static uint64_t *metas_of(const offer *o, const step *at) {
    const part_copy *part = &o->parts[at->part];
    return hotbed_index_meta(part->index, hotbed_index_slot(part->range, at->bucket));
}

static uint64_t key_of(const offer *o, const step *at, uint32_t slot) {
    const part_copy *part = &o->parts[at->part];
    return *hotbed_index_key(part->index, hotbed_index_slot(part->range, at->bucket) + slot);
}

/* Append the buckets that may hold `key` and that the search has not seen. Returns whether the last
 * one has a free slot. */
static bool add_buckets(offer *o, uint64_t key, uint32_t from, uint32_t slot) {
    for (uint32_t p = 0; p < o->num_parts; p++) {
        const part_copy *part = &o->parts[p];
        const hotbed_candidates c = hotbed_index_candidates(part->range, key);
        for (uint32_t choice = 0; choice < part->range.choices; choice++) {
            const uint32_t bucket = hotbed_index_candidate(part->range, c, choice);
            if (part->seen[bucket] != 0)
                continue;
            part->seen[bucket] = 1;
            step *at = &o->steps[o->num_steps++];
            *at = (step){p, bucket, from, slot};
            for (uint32_t s = 0; s < HOTBED_BUCKET_SLOTS; s++)
                if (metas_of(o, at)[s] == 0)
                    return true;
        }
    }
    return false;
}

/* Find the keys that have to move so that `key` gets a slot, the one that moves to a free slot
 * first. Returns their number, or NONE. */
static uint32_t find_moves(offer *o, uint64_t key, uint64_t moves[MOVES_MOST]) {
    o->num_steps = 0;
    bool found = add_buckets(o, key, NONE, 0);
    for (uint32_t at = 0; !found && at < o->num_steps; at++)
        for (uint32_t s = 0; s < HOTBED_BUCKET_SLOTS && !found; s++)
            if ((metas_of(o, &o->steps[at])[s] & (HOTBED_META_PINS | HOTBED_META_LOCKED)) == 0)
                found = add_buckets(o, key_of(o, &o->steps[at], s), at, s);
    for (uint32_t i = 0; i < o->num_steps; i++)
        o->parts[o->steps[i].part].seen[o->steps[i].bucket] = 0;
    o->visits_left -= o->num_steps < o->visits_left ? o->num_steps : o->visits_left;
    uint32_t n = 0;
    for (uint32_t at = o->num_steps - 1; found && o->steps[at].from != NONE; n++) {
        const uint32_t slot = o->steps[at].slot;
        at = o->steps[at].from;
        if (n == MOVES_MOST)
            return NONE;
        moves[n] = key_of(o, &o->steps[at], slot);
    }
    return found ? n : NONE;
}

/* Remove a key from the copy. */
static void remove_copy(offer *o, uint64_t key) {
    for (uint32_t p = 0; p < o->num_parts; p++) {
        const part_copy *part = &o->parts[p];
        if (hotbed_index_erase(part->index, part->range, key, 1))
            return;
    }
}

/* --- moves ------------------------------------------------------------------------------------ */

/* Give key number i of the call a slot by moving other keys. *placed is false if that is not
 * possible. */
static hotbed_status place_by_moves(offer *o, uint64_t i, uint64_t key, bool *placed) {
    uint64_t moves[MOVES_MOST];
    const uint32_t n = find_moves(o, key, moves);
    *placed = n != NONE;
    if (n == NONE)
        return HOTBED_OK;
    const hotbed_rows its = rows_from(o, o->rows, i);
    if (n > 0) {
        HOTBED_TRY(hotbed_copy(o->moved_keys, moves, n * sizeof *moves, o->stream));
        HOTBED_TRY(hotbed_storage_get_rows(
            o->storage, o->number, n, o->moved_keys, &o->moved, NULL, o->stream));
        HOTBED_TRY(hotbed_storage_erase(o->storage, o->number, n, o->moved_keys, NULL, o->stream));
    }
    HOTBED_TRY(set_free(o, 1, o->keys + i, &its));
    for (uint32_t m = 0; m < n; m++)
        remove_copy(o, moves[m]);
    place_copy(o, key);
    for (uint32_t m = n; m-- > 0;) {
        const hotbed_rows row = rows_from(o, &o->moved, m);
        HOTBED_TRY(set_free(o, 1, o->moved_keys + m, &row));
        place_copy(o, moves[m]);
    }
    o->free--;
    uint8_t flags[MOVES_MOST + 1];
    HOTBED_TRY(find(o, 1, o->keys + i, o->flags));
    if (n > 0)
        HOTBED_TRY(find(o, n, o->moved_keys, o->flags + 1));
    HOTBED_TRY(hotbed_copy(flags, o->flags, n + 1, o->stream));
    HOTBED_TRY(hotbed_stream_finish(o->stream));
    *placed = flags[0] != 0;
    bool as_planned = *placed; /* unless another call has taken a slot */
    for (uint32_t m = 0; m < n; m++) {
        if (flags[m + 1] != 0)
            continue;
        const hotbed_rows row = rows_from(o, &o->moved, m);
        HOTBED_TRY(
            hotbed_storage_set_rows(o->storage, o->number, 1, o->moved_keys + m, &row, o->stream));
        as_planned = false;
    }
    return as_planned ? HOTBED_OK : copy_index(o);
}

/* Give slots to keys without one, as long as the table has free slots. *missing is the number of
 * keys that have none at the end. */
static hotbed_status place_missing(
    offer *o, uint64_t n, const uint64_t *keys, uint8_t *found, uint64_t *missing) {
    bool all = true;
    HOTBED_TRY(copy_index(o));
    for (uint32_t p = 0; p < o->num_parts; p++)
        o->visits_left += (uint64_t)VISITS * o->parts[p].range.buckets;
    for (uint64_t i = 0; i < n && o->free > 0; i++) {
        if (found[i] != 0)
            continue;
        bool placed = false;
        if (o->visits_left > 0)
            HOTBED_TRY(place_by_moves(o, i, keys[i], &placed));
        *missing -= placed;
        all = all && placed;
    }
    __atomic_store_n(&o->table->filled, o->free == 0 || !all, __ATOMIC_RELAXED);
    return HOTBED_OK;
}

static size_t aligned(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

/* Allocate the device memory of a call of n rows. */
static hotbed_status allocate(offer *o, uint64_t n) {
    hotbed_memory_free(&o->device); /* of the call's first round */
    const hotbed_table_view *view = &o->table->view;
    const size_t faults = aligned(sizeof(hotbed_fault)),
                 words = aligned(MOVES_MOST * sizeof(uint64_t)),
                 weights = aligned(MOVES_MOST * view->dim * hotbed_dtype_size(view->dtype)),
                 states = aligned(MOVES_MOST * view->state_dim * sizeof(float));
    HOTBED_TRY(hotbed_memory_alloc(
        o->stream, HOTBED_MEMORY_DEVICE,
        faults + 3 * words + weights + 2 * states + aligned(n + MOVES_MOST), NULL, &o->device));
    uint8_t *at = o->device.data;
    o->faults = (hotbed_fault *)(void *)at;
    at += faults;
    o->moved_keys = (uint64_t *)(void *)at;
    at += words;
    o->moved.scores = (uint64_t *)(void *)at;
    at += words;
    if (view->range.times != NULL)
        o->moved.times = (uint64_t *)(void *)at;
    at += words;
    o->moved.weights = at;
    at += weights;
    for (uint32_t s = 0; s < view->states; s++)
        o->moved.states[s] = (float *)(void *)(at + s * states);
    o->flags = at + 2 * states;
    return hotbed_fill(o->faults, 0, sizeof *o->faults, o->stream);
}

/* Place n > 0 rows in free slots. *missing is the number of keys without a slot. */
static hotbed_status place_free(offer *o, uint64_t n, uint64_t *missing) {
    HOTBED_TRY(allocate(o, n));
    HOTBED_TRY(set_free(o, n, o->keys, o->rows));
    HOTBED_TRY(find(o, n, o->keys, o->flags));
    uint8_t *found = hotbed_new(n);
    uint64_t *keys = NULL;
    hotbed_status status =
        found == NULL
            ? hotbed_fail(
                  HOTBED_ERR_MEMORY, "no memory for the flags of %llu keys", (unsigned long long)n)
            : hotbed_copy(found, o->flags, n, o->stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_finish(o->stream);
    *missing = 0;
    for (uint64_t i = 0; i < n && status == HOTBED_OK; i++)
        *missing += found[i] == 0;
    if (status == HOTBED_OK && *missing > 0) {
        keys = hotbed_new(n * sizeof *keys);
        status =
            keys == NULL
                ? hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %llu keys", (unsigned long long)n)
                : hotbed_copy(keys, o->keys, n * sizeof *keys, o->stream);
        if (status == HOTBED_OK)
            status = hotbed_stream_finish(o->stream);
        if (status == HOTBED_OK)
            status = place_missing(o, n, keys, found, missing);
    }
    hotbed_delete(keys);
    hotbed_delete(found);
    return status;
}

/* Whether n more keys leave a quarter of the slots free, so that each finds a slot. With a tenth, a
 * few keys in a million do not. */
static bool is_spacious(const hotbed_storage *storage, hotbed_table *table, uint64_t n) {
    enum { SLOTS_LEAST = 1024 }; /* smaller tables may be uneven */
    hotbed_index_part at;
    uint64_t slots = 0;
    for (uint32_t p = 0; hotbed_table_part(storage, table, p, &at); p++)
        slots += hotbed_index_range_slots(at.range);
    table->offered = n < UINT64_MAX - table->offered ? table->offered + n : UINT64_MAX;
    return table->emptied == __atomic_load_n(&storage->inserts, __ATOMIC_RELAXED) &&
           slots >= SLOTS_LEAST && table->offered <= slots - slots / 4;
}

hotbed_status hotbed_storage_offer_rows(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const hotbed_rows *rows,
    hotbed_stream *stream) {
    static const hotbed_rows no_rows;
    hotbed_rows_args args;
    HOTBED_TRY(hotbed_storage_rows_args(storage, table, n, keys, rows, NULL, stream, &args));
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    hotbed_table *t = &storage->tables[table];
    args.offered = 1;
    if (storage->external != NULL)
        return hotbed_storage_rows_external(storage, &args, HOTBED_PASS_SET, stream);
    if (n == 0)
        return HOTBED_OK;
    uint64_t missing = n;
    /* Rows that tickets hold do not move, nor do rows of two tiers. */
    if (hotbed_table_indexed(&args.table) && args.table.tiers == HOTBED_TIERS_ONE &&
        !is_spacious(storage, t, n) && !__atomic_load_n(&t->filled, __ATOMIC_RELAXED) &&
        __atomic_load_n(&storage->held, __ATOMIC_RELAXED) == 0) {
        offer *o = hotbed_new(sizeof *o);
        if (o == NULL)
            return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for the search of free slots");
        o->storage = storage;
        o->table = t;
        o->number = table;
        o->keys = keys;
        o->rows = rows == NULL ? &no_rows : rows;
        o->stream = stream;
        hotbed_status status = place_free(o, n, &missing);
        bool grown = false;
        if (status == HOTBED_OK && missing > 0)
            status = hotbed_growth_exceed(storage, table, missing, stream, &grown);
        if (status == HOTBED_OK && grown)
            status = place_free(o, n, &missing);
        if (status != HOTBED_OK)
            (void)!hotbed_stream_finish(stream); /* enqueued work uses the memory */
        drop_copy(o);
        hotbed_memory_free(&o->device);
        hotbed_delete(o);
        HOTBED_TRY(status);
    }
    return missing == 0 ? HOTBED_OK : storage->kernels.rows->set(&args, stream);
}
