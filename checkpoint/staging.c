/* checkpoint/staging.c - chunks of rows between the storage and host memory. */
#include "checkpoint/staging.h"

#include "base/error.h"
#include "storage/types.h"

#include <string.h>

enum {
    DEVICE_CHUNK_BYTES =
        4 << 20, /* of one staging; larger chunks did not increase a disk's write rate */
    HOST_CHUNK_BYTES = 1 << 20, /* fits in a core's cache until it is copied */
    ALIGNMENT = 256,
};

static uint64_t align(uint64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Set the columns' addresses in a memory at `base`, and return its size. */
static uint64_t place(const hotbed_staging *s, char *base, void **columns, uint8_t **found) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        columns[i] = s->row_bytes[i] == 0 || base == NULL ? NULL : base + at;
        at += align(s->width[i] * s->capacity);
    }
    *found = base == NULL ? NULL : (uint8_t *)base + at;
    return at + align(s->capacity);
}

hotbed_status hotbed_staging_open(uint64_t rows, hotbed_stream *stream, hotbed_staging *s) {
    uint64_t row = 1; /* found */
    s->row_bytes[HOTBED_COLUMN_KEYS] = sizeof(uint64_t);
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        const size_t stored =
            s->to[i].dim == 0 ? 0 : hotbed_dtype_row_bytes(s->to[i].dtype, s->to[i].dim);
        s->width[i] = stored > s->row_bytes[i] ? stored : s->row_bytes[i]; /* enough for both */
        row += s->width[i];
    }
    bool apart = hotbed_stream_backend(stream) != HOTBED_BACKEND_HOST;
    s->capacity = (apart ? DEVICE_CHUNK_BYTES : HOST_CHUNK_BYTES) / row;
    s->capacity = s->capacity < 1 ? 1 : s->capacity;
    if (s->capacity > rows)
        s->capacity = rows < 1 ? 1 : rows;
    uint64_t bytes = place(s, NULL, s->columns, &s->found);
    hotbed_status status = hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, bytes, NULL, &s->host);
    if (status == HOTBED_OK && apart)
        status = hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &s->device);
    HOTBED_THEN(status, hotbed_event_create(stream, &s->done));
    if (status != HOTBED_OK) {
        hotbed_staging_destroy(s);
        return status;
    }
    place(s, s->host.data, s->columns, &s->found);
    place(s, apart ? s->device.data : s->host.data, s->device_columns, &s->device_found);
    return HOTBED_OK;
}

hotbed_status hotbed_staging_create(
    const hotbed_manifest *m, const hotbed_manifest_table *table, hotbed_row_types to,
    uint64_t rows, hotbed_stream *stream, hotbed_staging *out) {
    *out = (hotbed_staging){.capacity = 0};
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        out->row_bytes[i] = hotbed_manifest_row_bytes(m, table, i);
        out->from[i] = hotbed_manifest_form(m, table, hotbed_manifest_types(table), i);
        out->to[i] = hotbed_manifest_form(m, table, to, i);
    }
    return hotbed_staging_open(rows, stream, out);
}

void hotbed_staging_destroy(hotbed_staging *s) {
    hotbed_event_destroy(s->done);
    hotbed_memory_free(&s->device);
    hotbed_memory_free(&s->host);
    *s = (hotbed_staging){.capacity = 0};
}

/* Enqueue a copy between host and device columns, if they are distinct. */
static hotbed_status copy(void *to, const void *from, uint64_t bytes, hotbed_stream *stream) {
    return to == from ? HOTBED_OK : hotbed_copy(to, from, bytes, stream);
}

/* Return the device columns. Times and states are dropped if the storage has none. */
static hotbed_status device_rows(
    const hotbed_staging *s, const hotbed_storage *storage, uint32_t table, hotbed_rows *out) {
    hotbed_table_info info = {.size = sizeof info};
    HOTBED_TRY(hotbed_storage_table(storage, table, &info));
    *out = (hotbed_rows){
        .weights = s->device_columns[HOTBED_COLUMN_VALUES],
        .scores = s->device_columns[HOTBED_COLUMN_SCORES],
    };
    uint32_t states = hotbed_optimizer_states(hotbed_storage_optimizer(storage)->kind);
    for (uint32_t i = 0; i < states; i++)
        out->states[i] = s->device_columns[HOTBED_COLUMN_STATE + i];
    if (info.score == HOTBED_SCORE_TIMESTAMP_LFU)
        out->times = s->device_columns[HOTBED_COLUMN_TIMES];
    return HOTBED_OK;
}

hotbed_status hotbed_staging_fetch(
    hotbed_staging *s, hotbed_storage *storage, uint32_t table, uint64_t n, hotbed_stream *stream) {
    hotbed_rows rows;
    HOTBED_TRY(device_rows(s, storage, table, &rows));
    void *keys = s->device_columns[HOTBED_COLUMN_KEYS];
    hotbed_status status = copy(keys, s->columns[HOTBED_COLUMN_KEYS], n * sizeof(uint64_t), stream);
    HOTBED_THEN(
        status, hotbed_storage_get_rows(storage, table, n, keys, &rows, s->device_found, stream));
    for (uint32_t i = HOTBED_COLUMN_VALUES; i < HOTBED_ROW_COLUMNS && status == HOTBED_OK; i++)
        if (s->row_bytes[i] > 0)
            status = copy(s->columns[i], s->device_columns[i], n * s->row_bytes[i], stream);
    HOTBED_THEN(status, copy(s->found, s->device_found, n, stream));
    HOTBED_THEN(status, hotbed_event_record(s->done, stream));
    return status;
}

/* Enqueue the copy of columns [0, end) to the device. */
static hotbed_status upload(hotbed_staging *s, uint64_t n, uint32_t end, hotbed_stream *stream) {
    for (uint32_t i = 0; i < end; i++)
        if (s->row_bytes[i] > 0)
            HOTBED_TRY(copy(s->device_columns[i], s->columns[i], n * s->width[i], stream));
    return HOTBED_OK;
}

hotbed_status hotbed_staging_store(
    hotbed_staging *s, hotbed_storage *storage, uint32_t table, uint64_t n, hotbed_stream *stream) {
    hotbed_rows rows;
    HOTBED_TRY(device_rows(s, storage, table, &rows));
    HOTBED_TRY(upload(s, n, HOTBED_ROW_COLUMNS, stream));
    HOTBED_TRY(hotbed_storage_offer_rows(
        storage, table, n, s->device_columns[HOTBED_COLUMN_KEYS], &rows, stream));
    return hotbed_event_record(s->done, stream);
}

hotbed_status hotbed_staging_erase(
    hotbed_staging *s, hotbed_storage *storage, uint32_t table, uint64_t n, hotbed_stream *stream) {
    HOTBED_TRY(upload(s, n, HOTBED_COLUMN_KEYS + 1, stream));
    HOTBED_TRY(hotbed_storage_erase(
        storage, table, n, s->device_columns[HOTBED_COLUMN_KEYS], NULL, stream));
    return hotbed_event_record(s->done, stream);
}

hotbed_status hotbed_staging_count(
    hotbed_staging *s, hotbed_storage *storage, uint32_t table, uint64_t n, hotbed_stream *stream) {
    HOTBED_TRY(upload(s, n, HOTBED_COLUMN_SCORES + 1, stream));
    HOTBED_TRY(hotbed_storage_import_counts(
        storage, table, n, s->device_columns[HOTBED_COLUMN_KEYS],
        s->device_columns[HOTBED_COLUMN_SCORES], stream));
    return hotbed_event_record(s->done, stream);
}

hotbed_status hotbed_staging_wait(hotbed_staging *s) {
    return hotbed_event_sync(s->done);
}
