/* storage/tiers/tier_external_rows.c - a cache over an external store: rows by key, clear, size and
 * export. */
#include "storage/external/external.h"
#include "storage/external_tier.h"
#include "storage/storage.h"

#include <stdlib.h>

enum { LIST_BATCH = 1024 };

/* --- get, set, erase -------------------------------------------------------------------------- */

/* The store's call between two passes, and the pass that handles its answer. */
static hotbed_status ask(
    const hotbed_storage *storage, const hotbed_store_rows *args, hotbed_store_pass pass,
    hotbed_external_batch *batch, hotbed_stream *stream) {
    const hotbed_tier_external_kernels *kernels = storage->kernels.external;
    HOTBED_TRY(kernels->rows(args, HOTBED_PASS_ASK, stream));
    switch (pass) {
    case HOTBED_PASS_GET:
        HOTBED_TRY(hotbed_external_batch_find(batch, stream));
        return kernels->rows(args, HOTBED_PASS_GET_ANSWER, stream);
    case HOTBED_PASS_SET:
        HOTBED_TRY(hotbed_external_batch_find(batch, stream));
        HOTBED_TRY(kernels->rows(args, HOTBED_PASS_SET_ANSWER, stream));
        HOTBED_TRY(hotbed_external_batch_insert(batch, stream));
        return kernels->rows(args, HOTBED_PASS_FAULT, stream);
    default:
        HOTBED_TRY(hotbed_external_batch_erase(batch, stream));
        return kernels->rows(args, HOTBED_PASS_ERASE_ANSWER, stream);
    }
}

hotbed_status hotbed_storage_rows_external(
    hotbed_storage *storage, const hotbed_rows_args *rows, hotbed_store_pass pass,
    hotbed_stream *stream) {
    hotbed_external_scratch scratch;
    hotbed_external_batch *batch;
    uint64_t window = hotbed_call_batch_rows(storage, rows->n);
    if (rows->n == 0)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_call_batch_take(storage, window, stream, &batch));
    HOTBED_TRY(hotbed_external_scratch_take(storage, window, stream, &scratch));
    for (uint64_t first = 0; first < rows->n; first += window) {
        uint64_t left = rows->n - first;
        const hotbed_store_rows args = {
            .rows = *rows,
            .asked = {batch->view, scratch.ranks},
            .first = first,
            .count = (uint32_t)(left < window ? left : window),
            .num_tables = storage->num_tables,
        };
        HOTBED_TRY(storage->kernels.external->rows(&args, pass, stream));
        HOTBED_TRY(hotbed_external_scratch_scan(&scratch, args.count, stream));
        HOTBED_TRY(ask(storage, &args, pass, batch, stream));
    }
    return HOTBED_OK;
}

/* --- the store's keys ------------------------------------------------------------------------- */

/* A cursor over a table of the store, read in batches. */
typedef struct walk {
    hotbed_external_cursor *cursor;
    uint64_t *keys, *scores; /* [LIST_BATCH] of the current batch */
    uint64_t n;
    void *rows;
} walk;

static void walk_end(walk *w) {
    hotbed_external_cursor_destroy(w->cursor);
    hotbed_delete(w->keys);
    hotbed_delete(w->scores);
    hotbed_delete(w->rows);
}

static hotbed_status walk_start(const hotbed_storage *storage, uint32_t table, walk *w) {
    memset(w, 0, sizeof *w);
    w->keys = hotbed_new(LIST_BATCH * sizeof *w->keys);
    w->scores = hotbed_new(LIST_BATCH * sizeof *w->scores);
    w->rows = hotbed_new(LIST_BATCH * (size_t)storage->tables[table].view.row_bytes);
    HOTBED_TRY_MEMORY(
        w->keys != NULL && w->scores != NULL && w->rows != NULL,
        "a walk over a table of the store");
    return hotbed_external_cursor_create(storage->external, table, &w->cursor);
}

static hotbed_status walk_next(walk *w) {
    return hotbed_external_cursor_next(w->cursor, LIST_BATCH, w->keys, w->rows, w->scores, &w->n);
}

hotbed_status hotbed_storage_clear_external(hotbed_storage *storage, uint32_t table) {
    walk w;
    if (storage->tables[table].tracks) /* all positions are lost */
        hotbed_stored_changes_clear(storage->stored_changes);
    hotbed_status status = walk_start(storage, table, &w);
    while (status == HOTBED_OK && (status = walk_next(&w)) == HOTBED_OK && w.n > 0)
        status = hotbed_external_erase(storage->external, table, w.n, w.keys, NULL);
    walk_end(&w);
    return status;
}

/* --- size and export -------------------------------------------------------------------------- */

typedef struct upper_key {
    uint64_t key, score;
} upper_key;

/* The keys of the upper tier, copied to host memory and sorted. */
typedef struct upper_keys {
    upper_key *items;
    uint64_t n, pinned;
} upper_keys;

static int by_key(const void *a, const void *b) {
    const upper_key *x = a, *y = b;
    return x->key < y->key ? -1 : x->key > y->key;
}

static hotbed_status copy_upper(
    const uint64_t *device, uint64_t slots, upper_keys *out, hotbed_stream *stream) {
    uint64_t counts[2];
    HOTBED_TRY(hotbed_copy(counts, device + 2 * slots, sizeof counts, stream));
    HOTBED_TRY(hotbed_stream_finish(stream));
    out->n = counts[0];
    out->pinned = counts[1];
    uint64_t *words = hotbed_new((2 * out->n + 1) * sizeof *words);
    out->items = hotbed_new((out->n + 1) * sizeof *out->items);
    hotbed_status status = HOTBED_CHECK_MEMORY(
        words != NULL && out->items != NULL, "%llu keys", (unsigned long long)out->n);
    size_t bytes = out->n * sizeof *words;
    if (status == HOTBED_OK && out->n > 0)
        status = hotbed_copy(words, device, bytes, stream);
    if (status == HOTBED_OK && out->n > 0)
        status = hotbed_copy(words + out->n, device + slots, bytes, stream);
    HOTBED_THEN(status, hotbed_stream_finish(stream));
    for (uint64_t i = 0; status == HOTBED_OK && i < out->n; i++)
        out->items[i] = (upper_key){words[i], words[out->n + i]};
    if (status == HOTBED_OK)
        qsort(out->items, out->n, sizeof *out->items, by_key);
    hotbed_delete(words);
    return status;
}

/* The caller frees out->items, also after an error. */
static hotbed_status read_upper(
    const hotbed_storage *storage, const hotbed_rows_args *args, upper_keys *out,
    hotbed_stream *stream) {
    const uint64_t slots = args->table.slots;
    hotbed_rows_args all = *args;
    all.n = slots;
    hotbed_memory memory;
    memset(out, 0, sizeof *out);
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    HOTBED_TRY(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_DEVICE, (2 * slots + 2) * sizeof(uint64_t), NULL, &memory));
    uint64_t *device = memory.data;
    hotbed_status status = hotbed_fill(device + 2 * slots, 0, 2 * sizeof *device, stream);
    if (status == HOTBED_OK)
        status =
            storage->kernels.rows->list(&all, device, device + slots, device + 2 * slots, stream);
    HOTBED_THEN(status, copy_upper(device, slots, out, stream));
    hotbed_memory_free(&memory);
    return status;
}

/* Count keys of the upper tier that the store lacks. */
static hotbed_status count_new(
    const hotbed_storage *storage, uint32_t table, const upper_keys *upper, uint64_t *count) {
    uint64_t keys[LIST_BATCH];
    uint8_t found[LIST_BATCH];
    for (uint64_t first = 0; first < upper->n; first += LIST_BATCH) {
        uint64_t n = upper->n - first < LIST_BATCH ? upper->n - first : LIST_BATCH;
        for (uint64_t i = 0; i < n; i++)
            keys[i] = upper->items[first + i].key;
        HOTBED_TRY(hotbed_external_find(storage->external, table, n, keys, found, NULL, NULL));
        for (uint64_t i = 0; i < n; i++)
            *count += found[i] == HOTBED_EXTERNAL_MISSING;
    }
    return HOTBED_OK;
}

hotbed_status hotbed_storage_size_external(
    const hotbed_storage *storage, const hotbed_rows_args *args, uint64_t counts[2],
    hotbed_stream *stream) {
    uint32_t table = args->table_number;
    upper_keys upper;
    hotbed_status status = read_upper(storage, args, &upper, stream);
    counts[0] = args->table.capacity;
    counts[1] = upper.pinned;
    if (status == HOTBED_OK && args->table.is_static == 0) {
        status = hotbed_external_size(storage->external, table, &counts[0]);
        HOTBED_THEN(status, count_new(storage, table, &upper, &counts[0]));
    }
    hotbed_delete(upper.items);
    return status;
}

/* Append a key to the export if it fits; count it in any case. */
static void append(
    uint64_t key, uint64_t score, uint64_t capacity, uint64_t *keys, uint64_t *scores,
    uint64_t *n) {
    if (keys != NULL && *n < capacity)
        keys[*n] = key;
    if (scores != NULL && *n < capacity)
        scores[*n] = score;
    (*n)++;
}

hotbed_status hotbed_storage_export_external(
    const hotbed_storage *storage, const hotbed_rows_args *args, uint64_t capacity, uint64_t *keys,
    uint64_t *scores, uint64_t *n, hotbed_stream *stream) {
    upper_keys upper;
    walk w = {0};
    *n = 0;
    hotbed_status status = read_upper(storage, args, &upper, stream);
    for (uint64_t i = 0; status == HOTBED_OK && i < upper.n; i++)
        append(upper.items[i].key, upper.items[i].score, capacity, keys, scores, n);
    HOTBED_THEN(status, walk_start(storage, args->table_number, &w));
    while (status == HOTBED_OK && (status = walk_next(&w)) == HOTBED_OK && w.n > 0) {
        for (uint64_t i = 0; i < w.n; i++) {
            const upper_key key = {w.keys[i], 0};
            if (bsearch(&key, upper.items, upper.n, sizeof key, by_key) == NULL)
                append(w.keys[i], w.scores[i], capacity, keys, scores, n);
        }
    }
    walk_end(&w);
    hotbed_delete(upper.items);
    if (status == HOTBED_OK && (keys != NULL || scores != NULL) && capacity < *n)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "capacity", capacity,
            "capacity %llu is below the table's %llu keys", (unsigned long long)capacity,
            (unsigned long long)*n);
    return status;
}
