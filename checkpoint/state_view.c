/* checkpoint/state_view.c - the memory of a table's rows, and the row numbers of a state dict's
 * views. */
#include "checkpoint/state_view.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/format/bucket.h"
#include "hotbed/export.h"
#include "hotbed/storage.h"

#include <inttypes.h>

enum { WINDOW = 1 << 16 }; /* slots that one export reads */

/* --- memory ------------------------------------------------------------------------------------------------ */

/* Describe the memory that a table has at creation, a piece for each tier that is a backing
 * location of rows. Returns the number of pieces. */
static uint32_t first_pieces(
    const hotbed_storage *storage, const hotbed_table_info *info, hotbed_state_piece pieces[2]) {
    hotbed_mode mode = hotbed_storage_mode(storage);
    bool by_key = info->kind == HOTBED_TABLE_STATIC && mode == HOTBED_MODE_HBM_DIRECT;
    uint32_t n = 0;
    uint64_t above = 0;
    if (mode != HOTBED_MODE_CACHE) {
        above = by_key ? info->capacity : info->slots;
        pieces[n++] = (hotbed_state_piece){.data = info->weights, .rows = above};
    }
    if (info->lower_weights != NULL)
        pieces[n++] = (hotbed_state_piece){
            .data = info->lower_weights, .first_row = above, .rows = info->lower_slots};
    return n;
}

hotbed_status hotbed_view_pieces(const hotbed_storage *storage, uint32_t table, uint32_t *out) {
    hotbed_table_info info = {.size = sizeof info};
    hotbed_state_piece pieces[2];
    HOTBED_TRY(hotbed_storage_table(storage, table, &info));
    *out = first_pieces(storage, &info, pieces) + info.segments;
    return HOTBED_OK;
}

hotbed_status hotbed_view_piece(
    const hotbed_storage *storage, uint32_t table, uint32_t piece, hotbed_state_piece *out) {
    hotbed_table_info info = {.size = sizeof info};
    hotbed_state_piece pieces[2];
    HOTBED_TRY(hotbed_storage_table(storage, table, &info));
    uint32_t n = first_pieces(storage, &info, pieces);
    if (piece >= n + info.segments)
        return hotbed_fail_table_limit(
            HOTBED_ERR_ARGUMENT, info.name, "piece", piece, n + info.segments,
            "table '%s' has %" PRIu32 " pieces, so there is no piece %" PRIu32, info.name,
            n + info.segments, piece);
    if (piece < n) {
        *out = pieces[piece];
        return HOTBED_OK;
    }
    uint64_t first = n == 0 ? 0 : pieces[n - 1].first_row + pieces[n - 1].rows;
    for (uint32_t s = 0;; s++) {
        hotbed_segment_info segment = {.size = sizeof segment};
        HOTBED_TRY(hotbed_storage_segment(storage, table, s, &segment));
        if (n + s == piece) {
            *out = (hotbed_state_piece){
                .data = segment.weights, .first_row = first, .rows = segment.slots};
            return HOTBED_OK;
        }
        first += segment.slots;
    }
}

/* --- rows of keys -------------------------------------------------------------------------------------------- */

/* The state of listing keys and slots. */
typedef struct lister {
    hotbed_storage *storage;
    hotbed_stream *stream;
    hotbed_table_info info;
    hotbed_export batch;
    uint64_t none;     /* slots before the first row of the views */
    uint64_t n, at;    /* number of keys, and how many were listed */
    uint64_t *keys;    /* [n] */
    uint64_t *numbers; /* [n] */
    hotbed_memory memory;
} lister;

static hotbed_status list_window(lister *l) {
    HOTBED_TRY(hotbed_storage_export(l->storage, &l->batch, l->stream));
    HOTBED_TRY(hotbed_stream_sync(l->stream));
    uint64_t n = *l->batch.count;
    if (n > l->n - l->at)
        return hotbed_fail_table(
            HOTBED_ERR_STATE, l->info.name, "table '%s' was changed while it was collected",
            l->info.name);
    memcpy(l->keys + l->at, l->batch.keys, n * sizeof *l->keys);
    for (uint64_t i = 0; i < n; i++)
        l->numbers[l->at + i] = l->batch.numbers[i] - l->none;
    l->at += n;
    return HOTBED_OK;
}

static hotbed_status list(lister *l, uint32_t table, hotbed_view_rows *out) {
    uint64_t slots = 0;
    HOTBED_TRY(hotbed_storage_export_end(l->storage, table, &slots, l->stream));
    uint64_t step = slots < WINDOW ? slots : WINDOW;
    size_t bytes = (2 * step + 1) * sizeof(uint64_t);
    HOTBED_TRY(hotbed_memory_alloc(l->stream, HOTBED_MEMORY_PINNED, bytes, NULL, &l->memory));
    l->batch = (hotbed_export){
        .size = sizeof l->batch, .table = table, .slots = step, .count = l->memory.data};
    l->batch.keys = l->batch.count + 1;
    l->batch.numbers = l->batch.keys + step;
    for (l->batch.first = 0; l->batch.first < slots; l->batch.first += step)
        HOTBED_TRY(list_window(l));
    if (l->at < l->n)
        return hotbed_fail_table(
            HOTBED_ERR_STATE, l->info.name, "table '%s' was changed while it was collected",
            l->info.name);
    HOTBED_TRY(hotbed_bucket_sort_pairs(
        l->n, l->keys, hotbed_storage_key_type(l->storage), l->numbers, HOTBED_BUCKET_BITS,
        out->pairs));
    out->n = l->n;
    return HOTBED_OK;
}

hotbed_status hotbed_view_rows_read(
    hotbed_storage *storage, uint32_t table, hotbed_view_rows *out, hotbed_stream *stream) {
    lister l = {.storage = storage, .stream = stream, .info.size = sizeof l.info};
    uint32_t pieces = 0;
    *out = (hotbed_view_rows){.n = 0};
    HOTBED_TRY(hotbed_storage_table(storage, table, &l.info));
    HOTBED_TRY(hotbed_view_pieces(storage, table, &pieces));
    if (pieces == 0)
        return HOTBED_OK;
    l.none = hotbed_storage_mode(storage) == HOTBED_MODE_CACHE ? l.info.slots : 0;
    HOTBED_TRY(hotbed_storage_export_keys(storage, table, 0, NULL, NULL, &l.n, stream));
    size_t bytes = l.n * sizeof(uint64_t);
    l.keys = hotbed_new(bytes);
    l.numbers = hotbed_new(bytes);
    out->pairs = hotbed_new(2 * bytes);
    hotbed_status status = HOTBED_CHECK_MEMORY(
        l.keys != NULL && l.numbers != NULL && out->pairs != NULL, "the rows of %" PRIu64 " keys",
        l.n);
    HOTBED_THEN(status, list(&l, table, out));
    if (status != HOTBED_OK)
        status = hotbed_stream_settle(stream, status);
    hotbed_memory_free(&l.memory);
    hotbed_delete(l.keys);
    hotbed_delete(l.numbers);
    if (status != HOTBED_OK) {
        hotbed_delete(out->pairs);
        *out = (hotbed_view_rows){.n = 0};
    }
    return status;
}

uint64_t hotbed_view_row(const hotbed_view_rows *rows, uint64_t key) {
    uint64_t bucket = hotbed_logical_bucket(key, HOTBED_BUCKET_BITS), low = 0, high = rows->n;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2, there = rows->pairs[middle];
        uint64_t its = hotbed_logical_bucket(there, HOTBED_BUCKET_BITS);
        if (there == key)
            return rows->pairs[rows->n + middle];
        if (its < bucket || (its == bucket && there < key))
            low = middle + 1;
        else
            high = middle;
    }
    return HOTBED_SLOT_NONE;
}
