/* checkpoint/writer.c - save: plan, lay out, stream the rows, commit. */
#define _DEFAULT_SOURCE /* getentropy() */
#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/bucket.h"
#include "checkpoint/extent.h"
#include "checkpoint/staging.h"
#include "hotbed/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What a save holds. */
typedef struct writer {
    const hotbed_checkpoint_config *config;
    hotbed_storage *storage;
    hotbed_stream *stream;
    hotbed_manifest manifest;
    hotbed_draft draft;
    hotbed_io_file shard;
    hotbed_digest *blocks;  /* [num_blocks] of the shard */
    unsigned char *buffers; /* a block for each column */
    void *metadata;         /* of the shard */
    void *index;
    size_t index_bytes;
} writer;

/* --- the plan -------------------------------------------------------------------------------------- */

static hotbed_status plan_table(writer *w, uint32_t number) {
    hotbed_table_info info;
    uint64_t keys = 0, pinned = 0;
    HOTBED_TRY(hotbed_storage_table(w->storage, number, &info));
    HOTBED_TRY(hotbed_storage_size(w->storage, number, &keys, &pinned, w->stream));
    if (pinned > 0)
        return hotbed_fail(
            HOTBED_ERR_STATE, "table '%s': tickets hold %" PRIu64 " rows; finish or cancel them",
            info.name, pinned);
    hotbed_manifest_table *table = &w->manifest.tables[number];
    hotbed_manifest_part *part = &w->manifest.parts[number];
    snprintf(table->name, sizeof table->name, "%s", info.name);
    table->kind = info.kind;
    table->dtype = info.dtype;
    table->dim = info.dim;
    table->rows = info.kind == HOTBED_TABLE_STATIC ? info.capacity : keys;
    part->rows = table->rows;
    if (table->kind == HOTBED_TABLE_HASH) {
        table->bucket_bits = w->config->bucket_bits;
        part->end_bucket = (uint64_t)1 << table->bucket_bits;
    }
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
        part->columns[i].bytes = hotbed_manifest_column_bytes(&w->manifest, table, part, i);
    return HOTBED_OK;
}

static hotbed_status plan(writer *w, const hotbed_checkpoint_options *options) {
    hotbed_manifest *m = &w->manifest;
    struct timespec now = {.tv_sec = 0};
    if (getentropy(&m->id, sizeof m->id) != 0)
        return hotbed_fail(HOTBED_ERR_IO, "the system gives no random numbers");
    clock_gettime(CLOCK_REALTIME, &now);
    m->created_ns = (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
    m->step = options->step;
    snprintf(m->writer, sizeof m->writer, "hotbed-%s", hotbed_version());
    m->world = 1;
    m->num_tables = hotbed_storage_num_tables(w->storage);
    m->key_type = hotbed_storage_key_type(w->storage);
    m->seed = hotbed_storage_seed(w->storage);
    m->optimizer = *hotbed_storage_optimizer(w->storage);
    HOTBED_TRY(hotbed_storage_get_state(w->storage, &m->state, w->stream));
    HOTBED_TRY(hotbed_manifest_reserve(m));
    for (uint32_t i = 0; i < m->num_tables; i++)
        HOTBED_TRY(plan_table(w, i));
    m->shards[0].extra.bytes = options->extra_bytes;
    hotbed_manifest_number_blocks(m);
    m->shards[0].blocks.bytes = m->shards[0].num_blocks * sizeof(hotbed_digest);
    HOTBED_TRY(hotbed_layout_shard(m, 0, &w->metadata));
    HOTBED_TRY(hotbed_layout_index(m, &w->index, &w->index_bytes));
    m->index_bytes = w->index_bytes;
    m->index = hotbed_digest_root(w->index, w->index_bytes, HOTBED_BLOCK_BYTES);
    w->blocks = hotbed_new(m->shards[0].blocks.bytes);
    w->buffers = hotbed_new((size_t)HOTBED_COLUMNS * HOTBED_BLOCK_BYTES);
    if (w->blocks == NULL || w->buffers == NULL)
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory for %" PRIu64 " digests and %d blocks of %d bytes",
            m->shards[0].num_blocks, HOTBED_COLUMNS, HOTBED_BLOCK_BYTES);
    return HOTBED_OK;
}

/* --- rows ------------------------------------------------------------------------------------------ */

/* A table on its way to the shard. */
typedef struct table_writer {
    writer *w;
    uint32_t number;
    hotbed_manifest_table *table;
    hotbed_manifest_part *part;
    uint64_t *keys;     /* [rows] in canonical order; NULL for a static table */
    uint64_t *counts;   /* [buckets] */
    unsigned char *row; /* one row's bytes, for its digest */
    hotbed_extent_stream columns[HOTBED_COLUMNS];
    hotbed_staging stagings[2];
} table_writer;

static hotbed_extent_stream open_column(
    writer *w, const char *table, const char *column, hotbed_extent extent, uint32_t buffer) {
    return (hotbed_extent_stream){
        .file = &w->shard,
        .table = table,
        .column = column,
        .extent = extent,
        .blocks = w->blocks,
        .buffer = w->buffers + (size_t)buffer * HOTBED_BLOCK_BYTES,
    };
}

/* The keys of a hash table in canonical order, and the buckets' counts. */
static hotbed_status sort_keys(table_writer *t) {
    uint64_t rows = t->table->rows, found = 0;
    uint64_t *unsorted = hotbed_new(rows * sizeof *unsorted);
    t->keys = hotbed_new(rows * sizeof *t->keys);
    t->counts = hotbed_new(((size_t)1 << t->table->bucket_bits) * sizeof *t->counts);
    hotbed_status status = HOTBED_OK;
    if (unsorted == NULL || t->keys == NULL || t->counts == NULL)
        status = hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory to sort the %" PRIu64 " keys of table '%s'", rows,
            t->table->name);
    if (status == HOTBED_OK)
        status = hotbed_storage_export_keys(
            t->w->storage, t->number, rows, unsorted, NULL, &found, t->w->stream);
    if (status == HOTBED_OK && found != rows)
        status = hotbed_fail(
            HOTBED_ERR_STATE,
            "table '%s' was changed while it was saved: it had %" PRIu64 " keys, now %" PRIu64,
            t->table->name, rows, found);
    if (status == HOTBED_OK)
        status = hotbed_bucket_sort(rows, unsorted, t->table->bucket_bits, t->keys, t->counts);
    hotbed_delete(unsorted);
    return status;
}

/* Enqueue the copy of rows [first, first + n). */
static hotbed_status fetch(table_writer *t, hotbed_staging *staging, uint64_t first, uint64_t n) {
    uint64_t *keys = staging->columns[HOTBED_COLUMN_KEYS];
    for (uint64_t i = 0; i < n; i++)
        keys[i] = t->keys == NULL ? first + i : t->keys[first + i];
    return hotbed_staging_fetch(staging, t->w->storage, t->number, n, t->w->stream);
}

/* Sum of the rows' digests: key, then the columns in order. */
static hotbed_digest digest_rows(table_writer *t, const hotbed_staging *staging, uint64_t n) {
    hotbed_digest sum = {0};
    for (uint64_t i = 0; i < n; i++) {
        size_t bytes = 0;
        for (uint32_t c = 0; c < HOTBED_COLUMNS; c++) {
            size_t width = staging->row_bytes[c];
            if (width == 0)
                continue;
            memcpy(t->row + bytes, (const char *)staging->columns[c] + i * width, width);
            bytes += width;
        }
        sum = hotbed_digest_add(sum, hotbed_digest_of(t->row, bytes));
    }
    return sum;
}

/* Wait for the copy of n rows, and write them. */
static hotbed_status write_rows(table_writer *t, hotbed_staging *staging, uint64_t n) {
    HOTBED_TRY(hotbed_staging_wait(staging));
    for (uint64_t i = 0; i < n; i++)
        if (staging->found[i] == 0)
            return hotbed_fail(
                HOTBED_ERR_STATE,
                "table '%s' was changed while it was saved: key %" PRIu64 " is gone",
                t->table->name, ((const uint64_t *)staging->columns[HOTBED_COLUMN_KEYS])[i]);
    t->table->content = hotbed_digest_add(t->table->content, digest_rows(t, staging, n));
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
        if (t->part->columns[i].bytes > 0 && i != HOTBED_COLUMN_BUCKET)
            HOTBED_TRY(
                hotbed_extent_put(&t->columns[i], staging->columns[i], n * staging->row_bytes[i]));
    return HOTBED_OK;
}

/* Chunk by chunk, the copy of the next one running while this one is written. */
static hotbed_status stream_rows(table_writer *t) {
    uint64_t rows = t->table->rows, chunk = t->stagings[0].capacity;
    uint64_t asked = 0, written = 0;
    for (uint32_t ask = 0, turn = 0; written < rows; turn++) {
        for (; asked < rows && ask < turn + 2; ask++) {
            uint64_t n = rows - asked < chunk ? rows - asked : chunk;
            HOTBED_TRY(fetch(t, &t->stagings[ask % 2], asked, n));
            asked += n;
        }
        uint64_t n = rows - written < chunk ? rows - written : chunk;
        HOTBED_TRY(write_rows(t, &t->stagings[turn % 2], n));
        written += n;
    }
    return HOTBED_OK;
}

static hotbed_status write_columns(table_writer *t) {
    hotbed_manifest *m = &t->w->manifest;
    size_t row = 0;
    if (t->table->kind == HOTBED_TABLE_HASH)
        HOTBED_TRY(sort_keys(t));
    for (uint32_t i = 0; i < 2; i++)
        HOTBED_TRY(
            hotbed_staging_create(t->table, m->optimizer.kind, t->w->stream, &t->stagings[i]));
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
        row += t->stagings[0].row_bytes[i];
        t->columns[i] = open_column(
            t->w, t->table->name, hotbed_manifest_column_name(m->optimizer.kind, i),
            t->part->columns[i], i);
    }
    t->row = hotbed_new(row);
    if (t->row == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no %zu bytes for a row", row);
    HOTBED_TRY(stream_rows(t));
    if (t->table->kind == HOTBED_TABLE_HASH)
        HOTBED_TRY(hotbed_extent_put(
            &t->columns[HOTBED_COLUMN_BUCKET], t->counts,
            t->part->columns[HOTBED_COLUMN_BUCKET].bytes));
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
        if (hotbed_manifest_has(t->table->kind, m->optimizer.kind, i))
            HOTBED_TRY(hotbed_extent_end(&t->columns[i], &t->part->columns[i].root));
    return HOTBED_OK;
}

static hotbed_status write_table(writer *w, uint32_t number) {
    table_writer t = {
        .w = w,
        .number = number,
        .table = &w->manifest.tables[number],
        .part = &w->manifest.parts[number],
    };
    hotbed_status status = write_columns(&t);
    if (status != HOTBED_OK)
        status = hotbed_staging_settle(w->stream, status);
    hotbed_staging_destroy(&t.stagings[0]);
    hotbed_staging_destroy(&t.stagings[1]);
    hotbed_delete(t.row);
    hotbed_delete(t.counts);
    hotbed_delete(t.keys);
    return status;
}

/* --- files ----------------------------------------------------------------------------------------- */

static hotbed_status write_shard(writer *w, const hotbed_checkpoint_options *options) {
    hotbed_manifest *m = &w->manifest;
    hotbed_manifest_shard *shard = &m->shards[0];
    char name[32];
    hotbed_shard_name(0, m->world, name);
    HOTBED_TRY(
        hotbed_io_open(w->config->calls, &w->draft.directory, name, HOTBED_IO_CREATE, &w->shard));
    HOTBED_TRY(hotbed_io_allocate(&w->shard, shard->bytes));
    HOTBED_TRY(hotbed_io_write(&w->shard, w->metadata, shard->metadata_bytes, 0));
    hotbed_extent_stream extra = open_column(w, "", "extra", shard->extra, 0);
    HOTBED_TRY(hotbed_extent_write(&extra, options->extra, &shard->extra.root));
    for (uint32_t i = 0; i < m->num_tables; i++)
        HOTBED_TRY(write_table(w, i));
    HOTBED_TRY(hotbed_io_write(&w->shard, w->blocks, shard->blocks.bytes, shard->blocks.offset));
    shard->blocks.root = hotbed_digest_root(w->blocks, shard->blocks.bytes, HOTBED_BLOCK_BYTES);
    /* A file system that could not reserve may have left the file short of its last gap. */
    uint64_t bytes = 0;
    HOTBED_TRY(hotbed_io_size(&w->shard, &bytes));
    if (bytes < shard->bytes)
        HOTBED_TRY(hotbed_io_write(&w->shard, "", 1, shard->bytes - 1));
    HOTBED_TRY(hotbed_io_sync(&w->shard));
    return hotbed_io_close(&w->shard);
}

static hotbed_status write_all(writer *w, const hotbed_checkpoint_options *options) {
    char *text = NULL;
    size_t bytes = 0;
    HOTBED_TRY(plan(w, options));
    HOTBED_TRY(hotbed_draft_make(&w->draft, w->manifest.id));
    HOTBED_TRY(write_shard(w, options));
    HOTBED_TRY(hotbed_draft_file(&w->draft, HOTBED_INDEX_NAME, w->index, w->index_bytes));
    HOTBED_TRY(hotbed_manifest_print(&w->manifest, &text, &bytes));
    hotbed_status status = hotbed_draft_file(&w->draft, HOTBED_MANIFEST_NAME, text, bytes);
    hotbed_delete(text);
    HOTBED_TRY(status);
    return hotbed_draft_commit(&w->draft);
}

hotbed_status hotbed_checkpoint_write(
    const hotbed_checkpoint_config *config, const char *path, hotbed_storage *storage,
    const hotbed_checkpoint_options *options, hotbed_stream *stream) {
    writer w = {.config = config, .storage = storage, .stream = stream, .shard = HOTBED_IO_CLOSED};
    hotbed_status status = hotbed_draft_open(config->calls, path, &w.draft);
    if (status == HOTBED_OK)
        status = write_all(&w, options);
    hotbed_io_drop(&w.shard);
    hotbed_draft_discard(&w.draft); /* of a committed one only the handles are left */
    hotbed_delete(w.index);
    hotbed_delete(w.metadata);
    hotbed_delete(w.buffers);
    hotbed_delete(w.blocks);
    hotbed_manifest_free(&w.manifest);
    return status;
}
