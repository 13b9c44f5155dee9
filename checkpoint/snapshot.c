/* checkpoint/snapshot.c - one cut of a storage in host memory, written while training goes on. */
#include "base/error.h"
#include "base/port.h"
#include "base/stream.h"
#include "checkpoint/bucket.h"
#include "checkpoint/chain.h"
#include "checkpoint/plan.h"
#include "checkpoint/shard_writer.h"
#include "hotbed/export.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WINDOW_BYTES = 8 << 20 }; /* of rows that are on their way; two of them are */

/* A table's rows in order of slots. */
typedef struct image {
    uint64_t rows, capacity;
    hotbed_memory memory[HOTBED_ROW_COLUMNS];
    void *columns[HOTBED_ROW_COLUMNS]; /* [capacity], in memory */
    uint64_t *counted;                 /* as hotbed_plan_counted() */
} image;

struct hotbed_checkpoint_snapshot {
    hotbed_checkpoint_share share; /* with routes of its own */
    hotbed_manifest manifest;
    void *extra;
    image *images; /* [num_tables] */
};

/* --- taking ---------------------------------------------------------------------------------------------- */

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
    image *to;
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
    image *to = t->to;
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
    image *to = &s->images[number];
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

/* A copy of the caller's routes and bytes. */
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
    s->images = hotbed_new(tables * sizeof *s->images);
    if (s->images == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu32 " tables", tables);
    for (uint32_t t = 0; t < tables; t++) {
        image *to = &s->images[t];
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
    for (uint32_t t = 0; s->images != NULL && t < s->manifest.num_tables; t++) {
        for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
            hotbed_memory_free(&s->images[t].memory[i]);
        hotbed_delete(s->images[t].counted);
    }
    hotbed_delete(s->images);
    hotbed_delete(s->extra);
    hotbed_delete((void *)s->share.routes); /* a copy of its own */
    hotbed_manifest_free(&s->manifest);
    hotbed_delete(s);
}

/* --- writing ---------------------------------------------------------------------------------------------- */

/* Which row of the image comes when: [2 * rows] keys in canonical order, then their rows.  *rows is how many
 * are the rank's. */
static hotbed_status order_rows(
    hotbed_checkpoint_snapshot *s, uint32_t number, uint64_t *rows, uint64_t **out) {
    const hotbed_manifest_table *table = &s->manifest.tables[number];
    const image *from = &s->images[number];
    const uint64_t *ids = from->columns[HOTBED_COLUMN_KEYS];
    const hotbed_manifest_part *part =
        &s->manifest.parts[(uint64_t)number * s->manifest.world + s->share.rank];
    bool hash = table->kind == HOTBED_TABLE_HASH;
    uint64_t n = from->rows;
    uint64_t *keys = hotbed_new(n * sizeof *keys), *numbers = hotbed_new(n * sizeof *numbers);
    uint64_t *pairs = hotbed_new(2 * n * sizeof *pairs);
    hotbed_status status = HOTBED_OK;
    if (keys == NULL || numbers == NULL || pairs == NULL)
        status = hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory to sort the %" PRIu64 " keys of table '%s'", n,
            table->name);
    *rows = hash ? n : part->end - part->first;
    for (uint64_t i = 0; i < n && status == HOTBED_OK; i++) {
        numbers[i] = i;
        keys[i] = ids[i];
        if (!hash && ids[i] < *rows) { /* by number: a static table has each row once */
            pairs[ids[i]] = part->first + ids[i];
            pairs[*rows + ids[i]] = i;
        }
    }
    if (status == HOTBED_OK && hash)
        status = hotbed_bucket_sort_pairs(n, keys, numbers, table->bucket_bits, pairs);
    hotbed_delete(keys);
    hotbed_delete(numbers);
    if (status != HOTBED_OK)
        hotbed_delete(pairs);
    else
        *out = pairs;
    return status;
}

/* Copy row `row` of the image to place `to` of a chunk. */
static void copy_row(
    const size_t row_bytes[HOTBED_ROW_COLUMNS], const image *from, uint64_t row,
    const hotbed_chunk *chunk, uint64_t to) {
    for (uint32_t c = HOTBED_COLUMN_VALUES; c < HOTBED_ROW_COLUMNS; c++)
        if (row_bytes[c] > 0)
            memcpy(
                (char *)chunk->columns[c] + to * row_bytes[c],
                (const char *)from->columns[c] + row * row_bytes[c], row_bytes[c]);
}

/* Rows lie anywhere in the image: ask for one a little before it is copied. */
static void want_row(const size_t row_bytes[HOTBED_ROW_COLUMNS], const image *from, uint64_t row) {
    for (uint32_t c = HOTBED_COLUMN_VALUES; c < HOTBED_ROW_COLUMNS; c++)
        if (row_bytes[c] > 0)
            hotbed_prefetch_item((const char *)from->columns[c] + row * row_bytes[c], row_bytes[c]);
}

static hotbed_status write_rows(
    hotbed_shard_writer *shard, const image *from, const uint64_t *pairs, uint64_t rows) {
    enum { AHEAD = 8 };
    const uint64_t *numbers = pairs + rows;
    hotbed_chunk chunk;
    HOTBED_TRY(hotbed_chunk_create(shard->row_bytes, &chunk));
    hotbed_status status = HOTBED_OK;
    for (uint64_t first = 0; first < rows && status == HOTBED_OK; first += chunk.capacity) {
        uint64_t n = rows - first < chunk.capacity ? rows - first : chunk.capacity;
        memcpy(chunk.columns[HOTBED_COLUMN_KEYS], pairs + first, n * sizeof *pairs);
        for (uint64_t i = 0; i < n; i++) {
            if (first + i + AHEAD < rows)
                want_row(shard->row_bytes, from, numbers[first + i + AHEAD]);
            copy_row(shard->row_bytes, from, numbers[first + i], &chunk, i);
        }
        status = hotbed_shard_writer_rows(shard, n, chunk.columns, NULL);
    }
    hotbed_chunk_destroy(&chunk);
    return status;
}

static hotbed_status write_alone(
    hotbed_shard_writer *shard, const image *from, const uint64_t *pairs, uint64_t rows) {
    const hotbed_manifest_part *part = shard->part;
    if (shard->table->kind == HOTBED_TABLE_STATIC)
        return HOTBED_OK;
    uint64_t bytes = part->columns[HOTBED_COLUMN_BUCKET].bytes;
    uint64_t *counts = hotbed_new(bytes);
    if (counts == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no %" PRIu64 " bytes for bucket counts", bytes);
    for (uint64_t i = 0; i < rows; i++)
        counts[hotbed_logical_bucket(pairs[i], shard->table->bucket_bits)]++;
    hotbed_status status = hotbed_shard_writer_column(shard, HOTBED_COLUMN_BUCKET, counts, bytes);
    hotbed_delete(counts);
    HOTBED_TRY(status);
    if (part->counted == 0)
        return HOTBED_OK;
    bytes = part->counted * sizeof(uint64_t);
    HOTBED_TRY(hotbed_shard_writer_column(shard, HOTBED_COLUMN_COUNTED, from->counted, bytes));
    return hotbed_shard_writer_column(
        shard, HOTBED_COLUMN_COUNTS, from->counted + part->counted, bytes);
}

static hotbed_status write_table(
    hotbed_checkpoint_snapshot *s, hotbed_shard_writer *shard, uint32_t number) {
    uint64_t *pairs = NULL, rows = 0;
    HOTBED_TRY(hotbed_shard_writer_begin(shard, number));
    HOTBED_TRY(order_rows(s, number, &rows, &pairs));
    hotbed_status status = write_rows(shard, &s->images[number], pairs, rows);
    if (status == HOTBED_OK)
        status = write_alone(shard, &s->images[number], pairs, rows);
    hotbed_delete(pairs);
    HOTBED_TRY(status);
    return hotbed_shard_writer_end(shard);
}

static hotbed_status write_shard(
    hotbed_checkpoint_snapshot *s, hotbed_shard_writer *shard, hotbed_draft *draft) {
    hotbed_manifest *m = &s->manifest;
    for (uint32_t t = 0; t < m->num_tables; t++) {
        hotbed_manifest_part *part = &m->parts[(uint64_t)t * m->world + s->share.rank];
        part->rows =
            m->tables[t].kind == HOTBED_TABLE_HASH ? s->images[t].rows : part->end - part->first;
        m->tables[t].rows = part->rows;
        m->tables[t].content = (hotbed_digest){0}; /* it may have been written before */
    }
    HOTBED_TRY(hotbed_draft_enter(draft));
    HOTBED_TRY(hotbed_shard_writer_open(shard, &draft->directory, m, s->share.rank, s->extra));
    HOTBED_TRY(hotbed_shard_writer_behind(shard, &draft->directory));
    for (uint32_t t = 0; t < m->num_tables; t++)
        HOTBED_TRY(write_table(s, shard, t));
    HOTBED_TRY(hotbed_shard_writer_finish(shard));
    return hotbed_draft_describe(draft, m, s->share.rank);
}

hotbed_status hotbed_snapshot_put(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    hotbed_checkpoint_snapshot *s) {
    hotbed_shard_writer shard = {.file = HOTBED_IO_CLOSED};
    hotbed_draft draft;
    s->manifest.id = (hotbed_digest){.low = id.low, .high = id.high};
    hotbed_status status = hotbed_draft_open(config->calls, path, id, &draft);
    if (status == HOTBED_OK)
        status = write_shard(s, &shard, &draft);
    hotbed_shard_writer_close(&shard);
    hotbed_draft_close(&draft);
    return status;
}

hotbed_status hotbed_snapshot_write(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_snapshot *s) {
    hotbed_checkpoint_id id;
    char text[1024];
    if (s->share.world > 1)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "snapshot: %" PRIu32 " ranks write with begin, put and commit",
            s->share.world);
    HOTBED_TRY(hotbed_save_begin(config, path, &id));
    hotbed_status status = hotbed_snapshot_put(config, path, id, s);
    if (status == HOTBED_OK)
        return hotbed_save_commit(config, path, id, 1);
    snprintf(text, sizeof text, "%s", hotbed_last_error());
    hotbed_save_abort(config, path, id, 1);
    return hotbed_fail(status, "%s", text);
}
