/* storage/tiers/export_external.c - exports over an external store: keys come from the store's cursor,
 * rows are read by key. An export of changed rows reads a list of keys instead. */
#include "hotbed/export.h"

#include "base/stream.h"
#include "storage/external_tier.h"
#include "storage/storage.h"

#include <string.h>

enum { CHUNK_ROWS = 16384, CHUNK_BYTES = 8 << 20 }; /* limits of one chunk of keys */

/* The export of one window, with arrays for one chunk of keys. */
typedef struct exporter {
    hotbed_storage *storage;
    hotbed_stream *stream;
    const hotbed_export *e;
    const hotbed_table_view *table;
    uint64_t since;          /* epoch of e->since; 0: all rows */
    hotbed_store_walk *walk; /* the cursor or list of the table; NULL until it is known */
    uint64_t chunk;          /* keys */
    uint64_t given;          /* rows written to the batch so far */
    uint64_t refused;        /* rows that did not fit into the batch */
    uint64_t *keys;          /* [chunk] in host memory, as are the next five */
    uint64_t *numbers;       /* [chunk] */
    uint64_t *scores;        /* [chunk] */
    uint64_t *times;         /* [chunk] */
    uint8_t *found;          /* [chunk] */
    /* [chunk, row_bytes] as the cursor returns them; unused, since the upper tier may have newer
     * rows */
    void *rows;
    void *host;           /* the allocation of all these arrays */
    hotbed_memory device; /* keys, scores, times, found: [chunk] each */
} exporter;

static uint64_t *device_words(const exporter *x, uint32_t number) {
    return (uint64_t *)x->device.data + number * x->chunk;
}

static hotbed_status allocate_arrays(exporter *x) {
    uint64_t row_bytes = x->table->row_bytes, most = CHUNK_BYTES / row_bytes + 1;
    x->chunk = most < CHUNK_ROWS ? most : CHUNK_ROWS;
    x->chunk = x->chunk < x->e->slots ? x->chunk : x->e->slots;
    hotbed_carve carve = {NULL, 0};
    for (int pass = 0; pass < 2; pass++) {
        carve.used = 0;
        x->keys = hotbed_carve_take(&carve, x->chunk * sizeof *x->keys);
        x->numbers = hotbed_carve_take(&carve, x->chunk * sizeof *x->numbers);
        x->scores = hotbed_carve_take(&carve, x->chunk * sizeof *x->scores);
        x->times = hotbed_carve_take(&carve, x->chunk * sizeof *x->times);
        x->found = hotbed_carve_take(&carve, x->chunk);
        x->rows = hotbed_carve_take(&carve, x->chunk * row_bytes);
        if (pass == 0)
            x->host = carve.base = hotbed_new(carve.used);
        HOTBED_TRY_MEMORY(
            carve.base, "an export of %llu rows at a time", (unsigned long long)x->chunk);
    }
    HOTBED_TRY(hotbed_memory_alloc(
        x->stream, HOTBED_MEMORY_DEVICE, x->chunk * (3 * sizeof(uint64_t) + 1), NULL, &x->device));
    /* Scores and times that a key lacks are copied, but not used. */
    return hotbed_fill(x->device.data, 0, x->device.bytes, x->stream);
}

/* The caller's arrays, from item `given` on. */
static hotbed_rows rows_at(const exporter *x) {
    hotbed_rows rows = x->e->rows;
    const uint64_t at = x->given, bytes = hotbed_weights_bytes(x->table->dtype, x->table->dim);
    if (rows.weights != NULL)
        rows.weights = (uint8_t *)rows.weights + at * bytes;
    for (int s = 0; s < 2; s++)
        if (rows.states[s] != NULL)
            rows.states[s] = (uint8_t *)rows.states[s] + at * x->table->state_bytes[s];
    if (rows.scores != NULL)
        rows.scores += at;
    if (rows.times != NULL)
        rows.times += at;
    return rows;
}

/* Look up which keys of the chunk are in the table, with their scores and times. */
static hotbed_status look(exporter *x, uint64_t n) {
    uint64_t *keys = device_words(x, 0), *scores = device_words(x, 1), *times = device_words(x, 2);
    uint8_t *found = (uint8_t *)device_words(x, 3);
    bool timed = x->table->range.times != NULL;
    hotbed_rows rows = {.scores = scores, .times = timed ? times : NULL};
    HOTBED_TRY(hotbed_copy(keys, x->keys, n * sizeof *keys, x->stream));
    HOTBED_TRY(hotbed_storage_get_rows(x->storage, x->e->table, n, keys, &rows, found, x->stream));
    HOTBED_TRY(hotbed_copy(x->found, found, n, x->stream));
    HOTBED_TRY(hotbed_copy(x->scores, scores, n * sizeof *scores, x->stream));
    if (timed)
        HOTBED_TRY(hotbed_copy(x->times, times, n * sizeof *times, x->stream));
    return hotbed_stream_sync(x->stream);
}

/* Keep the keys of the chunk that are in the table, and return their number. */
static uint64_t present(exporter *x, uint64_t n) {
    uint64_t kept = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (x->found[i] == 0)
            continue;
        x->keys[kept] = x->keys[i];
        x->scores[kept] = x->scores[i];
        x->times[kept] = x->times[i];
        x->numbers[kept++] = x->numbers[i];
    }
    return kept;
}

/* Keep the selected keys of the chunk, and return their number. */
static uint64_t choose(exporter *x, uint64_t n) {
    uint64_t kept = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t score = x->table->is_static != 0 ? 0 : x->scores[i];
        if (score < x->e->min_score || (x->e->min_time != 0 && x->times[i] < x->e->min_time))
            continue;
        x->keys[kept] = x->keys[i];
        x->numbers[kept++] = x->numbers[i];
    }
    return kept;
}

/* Write the rows of the chunk's n keys to the batch. Changed rows are numbered here. */
static hotbed_status write_rows(exporter *x, uint64_t n) {
    uint64_t *keys = device_words(x, 0);
    hotbed_rows rows = rows_at(x);
    HOTBED_TRY(look(x, n));
    n = present(x, n);
    for (uint64_t i = 0; x->since != 0 && i < n; i++)
        x->numbers[i] = x->walk->at++;
    n = choose(x, n);
    if (n > x->e->capacity - x->given) {
        x->refused += n - (x->e->capacity - x->given);
        n = x->e->capacity - x->given;
    }
    if (n == 0)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_copy(keys, x->keys, n * sizeof *keys, x->stream));
    HOTBED_TRY(hotbed_storage_get_rows(x->storage, x->e->table, n, keys, &rows, NULL, x->stream));
    if (x->e->keys != NULL)
        HOTBED_TRY(hotbed_copy(x->e->keys + x->given, x->keys, n * sizeof *keys, x->stream));
    if (x->e->numbers != NULL)
        HOTBED_TRY(hotbed_copy(x->e->numbers + x->given, x->numbers, n * sizeof *keys, x->stream));
    x->given += n;
    return hotbed_stream_sync(x->stream);
}

/* --- keys ------------------------------------------------------------------------------------- */

/* The keys of a static table are its row numbers. */
static hotbed_status export_static(exporter *x) {
    uint64_t capacity = x->table->capacity, slots = x->e->slots;
    uint64_t first = x->e->first < capacity ? x->e->first : capacity;
    uint64_t end = capacity - first < slots ? capacity : first + slots;
    while (first < end) {
        uint64_t n = 0;
        for (; n < x->chunk && first < end; n++, first++)
            x->keys[n] = x->numbers[n] = first;
        HOTBED_TRY(write_rows(x, n));
    }
    return HOTBED_OK;
}

static void end_walk(hotbed_store_walk *walk) {
    hotbed_external_cursor_destroy(walk->cursor);
    hotbed_delete(walk->changed.items);
    *walk = (hotbed_store_walk){.cursor = NULL};
}

/* Start an export: list what was changed, or open a cursor after a flush has written all keys to the
 * store. */
static hotbed_status start_walk(exporter *x) {
    hotbed_store_walk *walk = x->walk;
    end_walk(walk);
    if (x->since != 0)
        return hotbed_changed_external(
            x->storage, x->e->table, x->e->since, x->since, x->stream, &walk->changed);
    HOTBED_TRY(hotbed_storage_flush_table(x->storage, x->e->table, false, x->stream));
    HOTBED_TRY(hotbed_stream_sync(x->stream));
    return hotbed_external_cursor_create(x->storage->external, x->e->table, &walk->cursor);
}

/* Set x->walk. A window that begins at slot 0 starts an export. */
static hotbed_status find_walk(exporter *x) {
    hotbed_storage *storage = x->storage;
    if (storage->walks == NULL)
        storage->walks = hotbed_new(storage->num_tables * sizeof *storage->walks);
    HOTBED_TRY_MEMORY(storage->walks, "exports of %u tables", storage->num_tables);
    hotbed_store_walk *walk = &storage->walks[x->e->table];
    const bool open = x->since == 0 ? walk->cursor != NULL : walk->changed.items != NULL;
    if (x->e->first == 0 || (open && (x->e->first == walk->at || walk->ended)))
        x->walk = walk;
    if (x->walk != NULL)
        return x->e->first == 0 ? start_walk(x) : HOTBED_OK;
    return hotbed_fail_limit(
        HOTBED_ERR_STATE, "first", x->e->first, walk->at,
        "first is %llu: over an external store it must be 0 or %llu, where the last window ended",
        (unsigned long long)x->e->first, (unsigned long long)walk->at);
}

static hotbed_status export_hash(exporter *x) {
    HOTBED_TRY(find_walk(x));
    hotbed_store_walk *walk = x->walk;
    for (uint64_t left = x->e->slots; left > 0 && !walk->ended;) {
        uint64_t n = 0, most = left < x->chunk ? left : x->chunk;
        HOTBED_TRY(
            hotbed_external_cursor_next(walk->cursor, most, x->keys, x->rows, x->scores, &n));
        walk->ended = n == 0;
        for (uint64_t i = 0; i < n; i++)
            x->numbers[i] = walk->at + i;
        if (n > 0)
            HOTBED_TRY(write_rows(x, n));
        walk->at += n;
        left -= n;
    }
    return HOTBED_OK;
}

/* Keys that were erased take no place in a window, so the windows end where the table's keys do. */
static hotbed_status export_changed(exporter *x) {
    HOTBED_TRY(find_walk(x));
    hotbed_store_walk *walk = x->walk;
    const uint64_t end = walk->at + x->e->slots;
    while (walk->at < end && walk->next < walk->changed.n) {
        uint64_t n = walk->changed.n - walk->next;
        n = n < x->chunk ? n : x->chunk;
        n = n < end - walk->at ? n : end - walk->at;
        memcpy(x->keys, walk->changed.items + walk->next, n * sizeof *x->keys);
        walk->next += n;
        HOTBED_TRY(write_rows(x, n));
    }
    walk->ended = walk->next == walk->changed.n;
    return HOTBED_OK;
}

static hotbed_status export_window(exporter *x) {
    if (x->since != 0)
        return export_changed(x);
    return x->table->is_static != 0 ? export_static(x) : export_hash(x);
}

static hotbed_status read_since(exporter *x) {
    hotbed_change_position since;
    if (x->e->since == NULL)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_copy(&since, x->e->since, sizeof since, x->stream));
    HOTBED_TRY(hotbed_stream_finish(x->stream));
    x->since = since.epoch;
    return HOTBED_OK;
}

hotbed_status hotbed_export_external(
    hotbed_storage *storage, const hotbed_export *batch, hotbed_stream *stream) {
    exporter x = {
        .storage = storage,
        .stream = stream,
        .e = batch,
        .table = &storage->tables[batch->table].view,
    };
    hotbed_held_fault held; /* of earlier work: stays for the caller's own hotbed_stream_sync() */
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    HOTBED_TRY(hotbed_stream_hold_fault(stream, &held));
    hotbed_status status = read_since(&x);
    HOTBED_THEN(status, allocate_arrays(&x));
    HOTBED_THEN(status, export_window(&x));
    if (status != HOTBED_OK && x.walk != NULL)
        end_walk(x.walk); /* keys may have been passed: the export must start again */
    uint64_t count = x.given + x.refused;
    HOTBED_THEN(status, hotbed_copy(batch->count, &count, sizeof count, stream));
    hotbed_status synced = hotbed_stream_sync(stream);
    hotbed_stream_return_fault(stream, &held);
    hotbed_memory_free(&x.device);
    hotbed_delete(x.host);
    return status != HOTBED_OK ? status : synced;
}

void hotbed_export_close_external(hotbed_storage *storage) {
    for (uint32_t t = 0; storage->walks != NULL && t < storage->num_tables; t++)
        end_walk(&storage->walks[t]);
    hotbed_delete(storage->walks);
    storage->walks = NULL;
}
