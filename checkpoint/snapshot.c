/* checkpoint/snapshot.c - one cut of a storage, copied to host memory. */
#include "checkpoint/snapshot.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/plan.h"
#include "hotbed/export.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WINDOW_BYTES = 8 << 20 }; /* of rows that are on their way; two of them are */

/* A window of slots on its way: pinned memory that a kernel writes. */
typedef struct window {
    hotbed_memory memory;
    hotbed_export batch;
    void *columns[HOTBED_ROW_COLUMNS];
    hotbed_event *done;
    hotbed_event *kept; /* of the copier: its rows are in the image */
} window;

/* A table on its way into an image. */
typedef struct taker {
    hotbed_storage *storage;
    hotbed_stream *stream;
    hotbed_stream *
        copier; /* of the host backend: it copies, and first touches, memory with several threads */
    const char *name; /* of the table */
    hotbed_snapshot_table *to;
    size_t row_bytes[HOTBED_ROW_COLUMNS];
    window windows[2];
} taker;

static size_t align(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

static hotbed_status open_window(const taker *t, window *w, uint32_t table, uint64_t slots) {
    size_t bytes = 256, at = 256;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        bytes += align(slots * t->row_bytes[i]);
    HOTBED_TRY(hotbed_memory_alloc(t->stream, HOTBED_MEMORY_PINNED, bytes, NULL, &w->memory));
    HOTBED_TRY(hotbed_event_create(t->stream, &w->done));
    HOTBED_TRY(hotbed_event_create(t->copier, &w->kept));
    char *base = w->memory.data;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        w->columns[i] = t->row_bytes[i] == 0 ? NULL : base + at;
        at += align(slots * t->row_bytes[i]);
    }
    hotbed_export_init(&w->batch);
    w->batch.table = table;
    w->batch.slots = slots;
    w->batch.count = (uint64_t *)(void *)base;
    w->batch.keys = w->columns[HOTBED_COLUMN_KEYS];
    w->batch.rows.weights = w->columns[HOTBED_COLUMN_VALUES];
    w->batch.rows.scores = w->columns[HOTBED_COLUMN_SCORES];
    for (uint32_t s = 0; s < 2; s++)
        w->batch.rows.states[s] = w->columns[HOTBED_COLUMN_STATE + s];
    w->batch.rows.times = w->columns[HOTBED_COLUMN_TIMES];
    return HOTBED_OK;
}

static void close_window(window *w) {
    hotbed_event_destroy(w->kept);
    hotbed_event_destroy(w->done);
    hotbed_memory_free(&w->memory);
}

/* Have a window filled, when what it had is kept. */
static hotbed_status ask(const taker *t, window *w, uint64_t first) {
    HOTBED_TRY(hotbed_event_sync(w->kept));
    w->batch.first = first;
    HOTBED_TRY(hotbed_storage_export(t->storage, &w->batch, t->stream));
    return hotbed_event_record(w->done, t->stream);
}

/* Wait for a window, and have its rows kept. */
static hotbed_status keep(const taker *t, window *w) {
    hotbed_snapshot_table *to = t->to;
    HOTBED_TRY(hotbed_event_sync(w->done));
    uint64_t n = *w->batch.count;
    if (n > to->capacity - to->rows)
        return hotbed_fail(
            HOTBED_ERR_STATE, "table '%s' was changed while a snapshot of it was taken", t->name);
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        if (n * t->row_bytes[i] > 0)
            HOTBED_TRY(hotbed_copy(
                (char *)to->columns[i] + to->rows * t->row_bytes[i], w->columns[i],
                n * t->row_bytes[i], t->copier));
    to->rows += n;
    return hotbed_event_record(w->kept, t->copier);
}

/* Two windows in turn: one is filled while the other is copied away. */
static hotbed_status copy_windows(taker *t, uint64_t slots) {
    uint64_t step = t->windows[0].batch.slots, asked = 0, turn = 0;
    for (uint64_t kept = 0; kept < slots; kept += step, turn++) {
        for (; asked < slots && asked < kept + 2 * step; asked += step)
            HOTBED_TRY(ask(t, &t->windows[asked / step % 2], asked));
        HOTBED_TRY(keep(t, &t->windows[turn % 2]));
    }
    return HOTBED_OK;
}

static hotbed_status copy_table(
    hotbed_checkpoint_snapshot *s, hotbed_storage *storage, uint32_t number, hotbed_stream *stream,
    hotbed_stream *copier) {
    const hotbed_manifest_table *table = &s->manifest.tables[number];
    hotbed_snapshot_table *to = &s->tables[number];
    size_t row = 0;
    taker t = {
        .storage = storage, .stream = stream, .copier = copier, .name = table->name, .to = to};
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        t.row_bytes[i] = hotbed_manifest_row_bytes(&s->manifest, table, i);
        row += t.row_bytes[i];
        HOTBED_TRY(hotbed_memory_alloc(
            stream, HOTBED_MEMORY_PAGEABLE, to->capacity * t.row_bytes[i], NULL, &to->memory[i]));
        to->columns[i] = to->memory[i].data;
    }
    uint64_t slots = 0, step = WINDOW_BYTES / row + 1;
    HOTBED_TRY(hotbed_storage_export_end(storage, number, &slots, stream));
    step = step < slots ? step : slots;
    hotbed_status status = open_window(&t, &t.windows[0], number, step);
    if (status == HOTBED_OK)
        status = open_window(&t, &t.windows[1], number, step);
    if (status == HOTBED_OK)
        status = copy_windows(&t, slots);
    hotbed_status synced = hotbed_stream_sync(stream); /* of what a failure left enqueued */
    hotbed_status copied = hotbed_stream_sync(copier);
    close_window(&t.windows[0]);
    close_window(&t.windows[1]);
    HOTBED_TRY(status);
    HOTBED_TRY(synced);
    HOTBED_TRY(copied);
    return to->rows == to->capacity
               ? HOTBED_OK
               : hotbed_fail(
                     HOTBED_ERR_STATE, "table '%s' was changed while a snapshot of it was taken",
                     table->name);
}

/* A copy of the caller's routes, bytes and path. */
static hotbed_status copy_options(
    hotbed_checkpoint_snapshot *s, const hotbed_checkpoint_options *options, uint32_t tables) {
    if (s->share.routes != NULL) {
        hotbed_route *routes = hotbed_new(tables * sizeof *routes);
        if (routes != NULL)
            memcpy(routes, s->share.routes, tables * sizeof *routes);
        s->share.routes = routes;
        if (routes == NULL)
            return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu32 " routes", tables);
    }
    s->extra = hotbed_new(options->extra_bytes);
    if (s->extra == NULL)
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory for %" PRIu64 " bytes of extra", options->extra_bytes);
    if (options->extra_bytes > 0)
        memcpy(s->extra, options->extra, options->extra_bytes);
    s->mark = options->mark;
    if (options->parent != NULL) {
        size_t bytes = strlen(options->parent) + 1;
        s->parent = hotbed_new(bytes);
        if (s->parent == NULL)
            return hotbed_fail(HOTBED_ERR_MEMORY, "no %zu bytes for a path", bytes);
        memcpy(s->parent, options->parent, bytes);
    }
    return HOTBED_OK;
}

static hotbed_status take(
    hotbed_checkpoint_snapshot *s, const hotbed_checkpoint_config *config, hotbed_storage *storage,
    const hotbed_checkpoint_options *options, hotbed_stream *stream, hotbed_stream *copier) {
    uint32_t tables = hotbed_storage_num_tables(storage);
    hotbed_checkpoint_share share;
    HOTBED_TRY(hotbed_share_read(&options->share, storage, &share));
    s->share = share;
    HOTBED_TRY(copy_options(s, options, tables));
    HOTBED_TRY(hotbed_plan_head(config, storage, &s->share, options, &s->manifest, stream));
    s->tables = hotbed_new(tables * sizeof *s->tables);
    if (s->tables == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu32 " tables", tables);
    for (uint32_t t = 0; t < tables; t++) {
        hotbed_snapshot_table *to = &s->tables[t];
        HOTBED_TRY(
            hotbed_plan_table(config, storage, &s->share, t, &s->manifest, &to->capacity, stream));
        hotbed_table_info info;
        HOTBED_TRY(hotbed_storage_table(storage, t, &info));
        if (info.kind == HOTBED_TABLE_STATIC)
            to->capacity =
                info.capacity; /* rows that are not the rank's are left when it is written */
        HOTBED_TRY(hotbed_plan_counted(storage, &s->share, t, &s->manifest, &to->counted, stream));
        HOTBED_TRY(copy_table(s, storage, t, stream, copier));
    }
    return HOTBED_OK;
}

hotbed_status hotbed_snapshot_take(
    const hotbed_checkpoint_config *config, hotbed_storage *storage,
    const hotbed_checkpoint_options *options, hotbed_stream *stream,
    hotbed_checkpoint_snapshot **out) {
    *out = NULL;
    hotbed_stream *copier = NULL;
    hotbed_checkpoint_snapshot *s = hotbed_new(sizeof *s);
    if (s == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a snapshot");
    hotbed_status status = hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &copier);
    if (status == HOTBED_OK)
        status = take(s, config, storage, options, stream, copier);
    hotbed_stream_destroy(copier);
    if (status == HOTBED_OK)
        *out = s;
    else
        hotbed_checkpoint_snapshot_destroy(s);
    return status;
}

void hotbed_checkpoint_snapshot_destroy(hotbed_checkpoint_snapshot *s) {
    if (s == NULL)
        return;
    for (uint32_t t = 0; s->tables != NULL && t < s->manifest.num_tables; t++) {
        for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
            hotbed_memory_free(&s->tables[t].memory[i]);
        hotbed_delete(s->tables[t].counted);
    }
    hotbed_delete(s->tables);
    hotbed_delete(s->extra);
    hotbed_delete(s->parent);
    hotbed_delete((void *)s->share.routes); /* a copy of its own */
    hotbed_manifest_free(&s->manifest);
    hotbed_delete(s);
}
