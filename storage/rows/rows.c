/* storage/rows/rows.c - rows of a storage by key (hotbed/storage.h): get, set, erase, clear, list. */
#include "storage/external_tier.h"
#include "storage/storage.h"

#include "base/check.h"

hotbed_status hotbed_storage_rows_view(
    const hotbed_storage *storage, uint32_t table, const hotbed_rows *rows, hotbed_rows_view *out) {
    memset(out, 0, sizeof *out);
    if (rows == NULL)
        return HOTBED_OK;
    uint32_t states = storage->tables[table].view.states;
    for (uint32_t s = states; s < 2; s++)
        if (rows->states[s] != NULL)
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, "states", s, states,
                "rows: states[%u] is set, but optimizer %s has %u states", s,
                hotbed_optimizer_name(storage->optimizer.kind), states);
    if (rows->times != NULL && storage->tables[table].view.range.times == NULL)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, storage->tables[table].name,
            "rows: times is set, but table %s is not TIMESTAMP_LFU", storage->tables[table].name);
    out->weights = rows->weights;
    out->states[0] = rows->states[0];
    out->states[1] = rows->states[1];
    out->scores = rows->scores;
    out->times = rows->times;
    return HOTBED_OK;
}

hotbed_status hotbed_storage_rows_args(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const hotbed_rows *rows,
    uint8_t *flags, hotbed_stream *stream, hotbed_rows_args *out) {
    HOTBED_TRY(hotbed_storage_check_table(storage, table, stream));
    HOTBED_TRY(hotbed_check_array("keys", keys, n));
    HOTBED_TRY(hotbed_check_below("n", n, (uint64_t)1 << 48));
    hotbed_rows_args args = {
        .table = storage->tables[table].view,
        .index = storage->index,
        .clock = storage->clock,
        .timer = storage->timer,
        .custom_scores = storage->custom_scores,
        .faults = hotbed_stream_table_faults(stream, storage->names),
        .keys = keys,
        .flags = flags,
        .n = n,
        .tally = storage->tallies + table,
        .tracker = storage->tables[table].view.changed == NULL ? NULL : storage->tracker,
        .table_number = table,
    };
    HOTBED_TRY(hotbed_storage_rows_view(storage, table, rows, &args.rows));
    *out = args;
    return HOTBED_OK;
}

hotbed_status hotbed_storage_get_rows(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const hotbed_rows *rows,
    uint8_t *found, hotbed_stream *stream) {
    hotbed_rows_args args;
    HOTBED_TRY(hotbed_storage_rows_args(storage, table, n, keys, rows, found, stream, &args));
    if (storage->external != NULL)
        return hotbed_storage_rows_external(storage, &args, HOTBED_PASS_GET, stream);
    return n == 0 ? HOTBED_OK : storage->kernels.rows->get(&args, stream);
}

hotbed_status hotbed_storage_check_distinct(
    const hotbed_storage *storage, hotbed_rows_args *args, hotbed_stream *stream) {
    void *memory;
    if (args->n < 2)
        return HOTBED_OK;
    if (args->n > (uint64_t)1 << 31)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "n", args->n, 0x1p31,
            "n %llu is over 2^31: set rows in several calls", (unsigned long long)args->n);
    hotbed_distinct_args distinct = {
        .keys = args->keys,
        .twice = storage->twice,
        .faults = args->faults,
        .n = (uint32_t)args->n,
        .slots = (uint32_t)(args->n + args->n / 2),
        .table_number = args->table_number,
    };
    const size_t bytes = distinct.slots * sizeof *distinct.places;
    HOTBED_TRY(hotbed_stream_workspace(stream, bytes, &memory));
    distinct.places = memory;
    HOTBED_TRY(hotbed_fill(memory, 0xFF, bytes, stream));
    HOTBED_TRY(hotbed_fill(storage->twice, 0xFF, sizeof *storage->twice, stream));
    args->twice = storage->twice;
    return storage->kernels.rows->distinct(&distinct, stream);
}

hotbed_status hotbed_storage_set_rows(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const hotbed_rows *rows,
    hotbed_stream *stream) {
    hotbed_rows_args args;
    HOTBED_TRY(hotbed_storage_rows_args(storage, table, n, keys, rows, NULL, stream, &args));
    HOTBED_TRY(hotbed_storage_check_distinct(storage, &args, stream));
    if (storage->external != NULL)
        return hotbed_storage_rows_external(storage, &args, HOTBED_PASS_SET, stream);
    return n == 0 ? HOTBED_OK : storage->kernels.rows->set(&args, stream);
}

hotbed_status hotbed_storage_erase(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, uint8_t *erased,
    hotbed_stream *stream) {
    hotbed_rows_args args;
    HOTBED_TRY(hotbed_storage_rows_args(storage, table, n, keys, NULL, erased, stream, &args));
    if (args.table.is_static != 0)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, storage->tables[table].name,
            "table %s is static: its rows cannot be erased", storage->tables[table].name);
    if (storage->external != NULL)
        return hotbed_storage_rows_external(storage, &args, HOTBED_PASS_ERASE, stream);
    __atomic_store_n(&storage->tables[table].search_work, 0, __ATOMIC_RELAXED);
    if (hotbed_stream_recording(stream))
        __atomic_store_n(&storage->tables[table].graph_erases, true, __ATOMIC_RELAXED);
    return n == 0 ? HOTBED_OK : storage->kernels.rows->erase(&args, stream);
}

/* STATE if tickets hold pins, taken by enqueued calls or by launched graphs. Synchronous. */
static hotbed_status check_free(hotbed_storage *storage, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    uint32_t held = __atomic_load_n(&storage->held, __ATOMIC_RELAXED);
    if (held == 0) {
        HOTBED_TRY(hotbed_copy(&held, storage->holding, sizeof held, stream));
        HOTBED_TRY(hotbed_stream_finish(stream));
    }
    return hotbed_storage_check_held(held);
}

hotbed_status hotbed_storage_clear(hotbed_storage *storage, uint32_t table, hotbed_stream *stream) {
    hotbed_rows_args args;
    HOTBED_TRY(hotbed_storage_rows_args(storage, table, 0, NULL, NULL, NULL, stream, &args));
    HOTBED_TRY(check_free(storage, stream));
    if (args.tracker != NULL) /* before the first key leaves: the store may fail in between */
        HOTBED_TRY(storage->kernels.changes->lose(args.tracker, stream));
    /* check_free() has waited for the stream, so no earlier step still writes to the store. */
    if (storage->external != NULL)
        HOTBED_TRY(hotbed_storage_clear_external(storage, table));
    return hotbed_storage_empty_table(storage, table, false, stream);
}

static bool is_zero(float value) {
    return value == 0.0F && !signbit(value);
}

/* Whether all initial values are zero bits. The scale of an FP8 row of zeros is 1. */
static bool starts_as_zeros(const hotbed_table_view *view) {
    return view->dtype != HOTBED_FP8 && view->init.kind == HOTBED_INIT_CONSTANT &&
           is_zero(view->init.offset) && is_zero(view->state_value[0]) &&
           is_zero(view->state_value[1]);
}

hotbed_status hotbed_storage_free_slots(
    const hotbed_storage *storage, const hotbed_rows_args *args, bool zero, hotbed_stream *stream) {
    bool indexed = hotbed_table_indexed(&args->table);
    if (!zero || (!indexed && !starts_as_zeros(&args->table)))
        return storage->kernels.rows->clear(args, stream);
    if (indexed) /* no other thread or stream knows the memory yet */
        hotbed_index_start(args->index, args->table.range);
    return HOTBED_OK;
}

hotbed_status hotbed_storage_empty_table(
    hotbed_storage *storage, uint32_t table, bool fresh, hotbed_stream *stream) {
    /* `described`, from the same allocator, tells whether fresh memory is zero */
    bool zero = fresh && hotbed_memory_is_fresh_zero(&storage->described);
    hotbed_rows_args args;
    hotbed_index_part at;
    hotbed_table *t = &storage->tables[table];
    HOTBED_TRY(hotbed_storage_rows_args(storage, table, 0, NULL, NULL, NULL, stream, &args));
    __atomic_store_n(&t->search_work, 0, __ATOMIC_RELAXED);
    for (uint32_t part = 0; hotbed_table_part(storage, t, part, &at); part++) {
        hotbed_rows_args one = args;
        one.table.range = at.range;
        one.index = at.index;
        HOTBED_TRY(hotbed_storage_free_slots(storage, &one, zero, stream));
    }
    if (args.table.counter.buckets > 0) {
        hotbed_rows_args counter = args;
        counter.table.range = args.table.counter;
        HOTBED_TRY(hotbed_storage_free_slots(storage, &counter, zero, stream));
    }
    if (args.table.is_static != 0 && args.table.lower.buckets > 0) {
        args.n = args.table.capacity; /* initialize keys 0 .. capacity - 1 */
        HOTBED_TRY(storage->kernels.rows->set(&args, stream));
    }
    return hotbed_stream_finish(stream);
}

/* Count keys and pinned slots of `table`, or of the range of *args if `table` is NULL; also list
 * the keys, at most `capacity` of them, if `keys` is not NULL. With CACHE, scores are those of the
 * lower tier. */
static hotbed_status list(
    const hotbed_storage *storage, const hotbed_table *table, const hotbed_rows_args *args,
    uint64_t capacity, uint64_t *keys, uint64_t *scores, uint64_t counts[2],
    hotbed_stream *stream) {
    uint64_t *device;
    uint64_t host[4];
    void *memory;
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    HOTBED_TRY(hotbed_stream_workspace(stream, sizeof host, &memory));
    device = memory;
    HOTBED_TRY(hotbed_fill(device, 0, sizeof host, stream));
    /* With CACHE the upper tier has copies only: count its pins, but not its keys. */
    bool copies = args->table.tiers == HOTBED_TIERS_CACHE;
    hotbed_rows_args one = *args;
    one.n = capacity;
    if (table == NULL)
        HOTBED_TRY(storage->kernels.rows->list(&one, keys, scores, device, stream));
    hotbed_index_part at;
    for (uint32_t part = 0; table != NULL && hotbed_table_part(storage, table, part, &at); part++) {
        bool skip = copies && part == 0;
        one.table.range = at.range;
        one.index = at.index;
        HOTBED_TRY(storage->kernels.rows->list(
            &one, skip ? NULL : keys, skip ? NULL : scores, skip ? device + 2 : device, stream));
    }
    HOTBED_TRY(hotbed_copy(host, device, sizeof host, stream));
    HOTBED_TRY(hotbed_stream_finish(stream));
    counts[0] = host[0];
    counts[1] = host[1] + host[3];
    return HOTBED_OK;
}

hotbed_status hotbed_storage_size(
    hotbed_storage *storage, uint32_t table, uint64_t *keys, uint64_t *pinned,
    hotbed_stream *stream) {
    hotbed_rows_args args;
    uint64_t counts[2] = {0, 0};
    HOTBED_TRY(hotbed_storage_rows_args(storage, table, 0, NULL, NULL, NULL, stream, &args));
    if (!hotbed_table_indexed(&args.table))
        counts[0] = args.table.capacity;
    else if (storage->external != NULL)
        HOTBED_TRY(hotbed_storage_size_external(storage, &args, counts, stream));
    else
        HOTBED_TRY(list(storage, &storage->tables[table], &args, 0, NULL, NULL, counts, stream));
    if (keys != NULL)
        *keys = counts[0];
    if (pinned != NULL)
        *pinned = counts[1];
    return HOTBED_OK;
}

static hotbed_status export_static(
    uint64_t rows, uint64_t capacity, uint64_t *keys, uint64_t *scores, uint64_t *n) {
    *n = rows;
    if (keys == NULL && scores == NULL)
        return HOTBED_OK;
    if (capacity < rows)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "capacity", capacity,
            "capacity %llu is below the table's %llu keys", (unsigned long long)capacity,
            (unsigned long long)rows);
    for (uint64_t i = 0; i < rows; i++) {
        if (keys != NULL)
            keys[i] = i;
        if (scores != NULL)
            scores[i] = 0;
    }
    return HOTBED_OK;
}

/* Replace the scores of n keys, in device memory, by their newest ones. Keys that have left keep theirs. */
static hotbed_status get_scores(
    const hotbed_storage *storage, const hotbed_rows_args *args, uint64_t n, const uint64_t *keys,
    uint64_t *scores, hotbed_stream *stream) {
    hotbed_rows_args get = *args;
    get.n = n;
    get.keys = keys;
    get.rows.scores = scores;
    return storage->kernels.rows->get(&get, stream);
}

/* Export the keys and scores that list() finds. Other streams may insert keys meanwhile. */
static hotbed_status export_listed(
    hotbed_storage *storage, const hotbed_table *table, const hotbed_rows_args *args,
    uint64_t capacity, uint64_t *keys, uint64_t *scores, uint64_t *n, hotbed_stream *stream) {
    uint64_t counts[2];
    HOTBED_TRY(list(storage, table, args, 0, NULL, NULL, counts, stream));
    for (;;) {
        const uint64_t room = *n = counts[0];
        if (room == 0 || (keys == NULL && scores == NULL))
            return HOTBED_OK;
        if (capacity < room)
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "capacity", capacity,
                "capacity %llu is below the table's %llu keys", (unsigned long long)capacity,
                (unsigned long long)room);
        hotbed_memory memory;
        HOTBED_TRY(hotbed_memory_alloc(
            stream, HOTBED_MEMORY_DEVICE, 2 * room * sizeof(uint64_t), NULL, &memory));
        uint64_t *device = memory.data;
        hotbed_status status =
            list(storage, table, args, room, device, device + room, counts, stream);
        const bool all = status == HOTBED_OK && counts[0] <= room;
        if (all) {
            *n = counts[0];
            if (scores != NULL && table != NULL && args->table.tiers == HOTBED_TIERS_CACHE)
                status = get_scores(storage, args, counts[0], device, device + room, stream);
            if (status == HOTBED_OK && keys != NULL)
                status = hotbed_copy(keys, device, *n * sizeof(uint64_t), stream);
            if (status == HOTBED_OK && scores != NULL)
                status = hotbed_copy(scores, device + room, *n * sizeof(uint64_t), stream);
            HOTBED_THEN(status, hotbed_stream_finish(stream));
        }
        hotbed_memory_free(&memory);
        if (all || status != HOTBED_OK)
            return status;
    }
}

hotbed_status hotbed_storage_export_keys(
    hotbed_storage *storage, uint32_t table, uint64_t capacity, uint64_t *keys, uint64_t *scores,
    uint64_t *n, hotbed_stream *stream) {
    hotbed_rows_args args;
    HOTBED_TRY(hotbed_check_pointer("n", n));
    HOTBED_TRY(hotbed_storage_rows_args(storage, table, 0, NULL, NULL, NULL, stream, &args));
    if (args.table.is_static != 0)
        return export_static(args.table.capacity, capacity, keys, scores, n);
    if (storage->external != NULL)
        return hotbed_storage_export_external(storage, &args, capacity, keys, scores, n, stream);
    return export_listed(
        storage, &storage->tables[table], &args, capacity, keys, scores, n, stream);
}

hotbed_status hotbed_storage_export_counts(
    hotbed_storage *storage, uint32_t table, uint64_t capacity, uint64_t *keys, uint64_t *counts,
    uint64_t *n, hotbed_stream *stream) {
    hotbed_rows_args args;
    HOTBED_TRY(hotbed_check_pointer("n", n));
    HOTBED_TRY(hotbed_storage_rows_args(storage, table, 0, NULL, NULL, NULL, stream, &args));
    if (args.table.counter.buckets == 0) {
        *n = 0;
        return HOTBED_OK;
    }
    args.table.range = args.table.counter;
    args.table.slots = hotbed_index_range_slots(args.table.counter);
    return export_listed(storage, NULL, &args, capacity, keys, counts, n, stream);
}

hotbed_status hotbed_storage_import_counts(
    hotbed_storage *storage, uint32_t table, uint64_t n, const void *keys, const uint64_t *counts,
    hotbed_stream *stream) {
    hotbed_rows_args args;
    HOTBED_TRY(hotbed_storage_rows_args(storage, table, n, keys, NULL, NULL, stream, &args));
    if (n > 0 && counts == NULL)
        return hotbed_fail_null("counts");
    if (n == 0 || args.table.counter.buckets == 0)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_storage_check_distinct(storage, &args, stream));
    args.table.range = args.table.counter;
    args.rows.scores = (uint64_t *)counts; /* the kernel only reads them */
    return storage->kernels.rows->count(&args, stream);
}
