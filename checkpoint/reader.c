/* checkpoint/reader.c - load: MANIFEST first, then rows, each block checked before it is used. */
#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/bucket.h"
#include "checkpoint/extent.h"
#include "checkpoint/staging.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What a load holds. */
typedef struct reader {
    hotbed_storage *storage;
    hotbed_stream *stream;
    hotbed_io_file directory, shard;
    hotbed_manifest manifest;
    uint32_t *numbers;      /* [num_tables] number in the storage of each table of the manifest */
    hotbed_digest *blocks;  /* of the shard, all of them */
    unsigned char *buffers; /* a block for each column */
    bool touched;           /* tables have been cleared */
} reader;

/* --- MANIFEST and the storage ----------------------------------------------------------------------- */

static hotbed_status read_manifest(reader *r, const hotbed_io_calls *calls) {
    hotbed_io_file file = HOTBED_IO_CLOSED;
    uint64_t bytes = 0;
    char *text = NULL;
    hotbed_status status =
        hotbed_io_open(calls, &r->directory, HOTBED_MANIFEST_NAME, HOTBED_IO_READ, &file);
    if (status == HOTBED_OK)
        status = hotbed_io_size(&file, &bytes);
    if (status == HOTBED_OK && bytes > HOTBED_MANIFEST_BYTES_MAX)
        status = hotbed_fail(
            HOTBED_ERR_CORRUPT, "%s has %" PRIu64 " bytes, more than any", file.name, bytes);
    if (status == HOTBED_OK) {
        text = hotbed_new(bytes);
        if (text == NULL)
            status = hotbed_fail(HOTBED_ERR_MEMORY, "no %" PRIu64 " bytes for a manifest", bytes);
    }
    if (status == HOTBED_OK)
        status = hotbed_io_read(&file, text, bytes, 0);
    if (status == HOTBED_OK)
        status = hotbed_manifest_parse(file.name, text, bytes, &r->manifest);
    hotbed_delete(text);
    hotbed_io_drop(&file);
    return status;
}

static hotbed_status differs(
    const char *table, const char *what, const char *saved, const char *here) {
    return hotbed_fail(
        HOTBED_ERR_STATE, "table '%s': %s is %s in the checkpoint, %s in the storage", table, what,
        saved, here);
}

static hotbed_status match_table(reader *r, uint32_t number) {
    hotbed_table_info info;
    uint64_t keys = 0, pinned = 0;
    char saved[24], here[24];
    HOTBED_TRY(hotbed_storage_table(r->storage, number, &info));
    uint32_t found = hotbed_manifest_find(&r->manifest, info.name);
    if (found == UINT32_MAX)
        return hotbed_fail(HOTBED_ERR_STATE, "%s has no table '%s'", r->directory.name, info.name);
    const hotbed_manifest_table *table = &r->manifest.tables[found];
    static const char *const kinds[] = {"hash", "static"};
    if (table->kind != info.kind)
        return differs(info.name, "the kind", kinds[table->kind], kinds[info.kind]);
    snprintf(saved, sizeof saved, "%" PRIu32, table->dim);
    snprintf(here, sizeof here, "%" PRIu32, info.dim);
    if (table->dim != info.dim)
        return differs(info.name, "dim", saved, here);
    if (table->dtype != info.dtype)
        return differs(
            info.name, "dtype", hotbed_dtype_name(table->dtype), hotbed_dtype_name(info.dtype));
    snprintf(saved, sizeof saved, "%" PRIu64, table->rows);
    snprintf(here, sizeof here, "%" PRIu64, info.capacity);
    if (info.kind == HOTBED_TABLE_STATIC && table->rows != info.capacity)
        return differs(info.name, "the number of rows", saved, here);
    HOTBED_TRY(hotbed_storage_size(r->storage, number, &keys, &pinned, r->stream));
    if (pinned > 0)
        return hotbed_fail(
            HOTBED_ERR_STATE, "table '%s': tickets hold %" PRIu64 " rows; finish or cancel them",
            info.name, pinned);
    r->numbers[found] = number;
    return HOTBED_OK;
}

static const char *optimizer_name(hotbed_optimizer_kind kind) {
    return kind == 0 ? "none" : hotbed_optimizer_name(kind);
}

/* The storage has the same tables, and every one of them as it was saved. */
static hotbed_status match(reader *r) {
    const hotbed_manifest *m = &r->manifest;
    hotbed_key_type key_type = hotbed_storage_key_type(r->storage);
    hotbed_optimizer_kind kind = hotbed_storage_optimizer(r->storage)->kind;
    uint32_t num_tables = hotbed_storage_num_tables(r->storage);
    if (m->world != 1)
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED, "%s was saved by %" PRIu32 " ranks; this version loads one",
            r->directory.name, m->world);
    if (m->key_type != key_type)
        return hotbed_fail(
            HOTBED_ERR_STATE, "keys are %s in the checkpoint, %s in the storage",
            m->key_type == HOTBED_KEY_I64 ? "i64" : "u64",
            key_type == HOTBED_KEY_I64 ? "i64" : "u64");
    if (m->optimizer.kind != kind)
        return hotbed_fail(
            HOTBED_ERR_STATE, "the optimizer is %s in the checkpoint, %s in the storage",
            optimizer_name(m->optimizer.kind), optimizer_name(kind));
    r->numbers = hotbed_new(m->num_tables * sizeof *r->numbers);
    if (r->numbers == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu32 " tables", m->num_tables);
    for (uint32_t i = 0; i < num_tables; i++)
        HOTBED_TRY(match_table(r, i));
    /* All names of the storage were found, and names differ: the same number is the same set. */
    if (m->num_tables != num_tables)
        return hotbed_fail(
            HOTBED_ERR_STATE, "%s has %" PRIu32 " tables, the storage %" PRIu32, r->directory.name,
            m->num_tables, num_tables);
    return HOTBED_OK;
}

/* --- the shard ------------------------------------------------------------------------------------ */

/* Open the shard and check its size, its metadata, and the digests of its blocks.  Nothing is allocated
 * by a size before the file is known to have it. */
static hotbed_status open_shard(reader *r, const hotbed_io_calls *calls) {
    const hotbed_manifest_shard *shard = &r->manifest.shards[0];
    char name[32];
    uint64_t bytes = 0;
    hotbed_shard_name(0, r->manifest.world, name);
    HOTBED_TRY(hotbed_io_open(calls, &r->directory, name, HOTBED_IO_READ, &r->shard));
    HOTBED_TRY(hotbed_io_size(&r->shard, &bytes));
    if (bytes != shard->bytes)
        return hotbed_fail(
            HOTBED_ERR_CORRUPT, "%s has %" PRIu64 " bytes, expected %" PRIu64, r->shard.name, bytes,
            shard->bytes);
    r->buffers = hotbed_new((size_t)HOTBED_COLUMNS * HOTBED_BLOCK_BYTES);
    r->blocks = hotbed_new(shard->blocks.bytes);
    if (r->buffers == NULL || r->blocks == NULL)
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory for %" PRIu64 " digests and %d blocks of %d bytes",
            shard->num_blocks, HOTBED_COLUMNS, HOTBED_BLOCK_BYTES);
    HOTBED_TRY(hotbed_extent_check_bytes(
        &r->shard, "HDF5 metadata", 0, shard->metadata_bytes, shard->metadata, r->buffers));
    HOTBED_TRY(hotbed_io_read(&r->shard, r->blocks, shard->blocks.bytes, shard->blocks.offset));
    hotbed_digest root = hotbed_digest_root(r->blocks, shard->blocks.bytes, HOTBED_BLOCK_BYTES);
    if (!hotbed_digest_equal(root, shard->blocks.root))
        return hotbed_fail(
            HOTBED_ERR_CORRUPT, "%s: integrity/blocks is damaged at %" PRIu64, r->shard.name,
            shard->blocks.offset);
    return HOTBED_OK;
}

static hotbed_extent_stream open_column(
    reader *r, const char *table, const char *column, hotbed_extent extent, uint32_t buffer) {
    return (hotbed_extent_stream){
        .file = &r->shard,
        .table = table,
        .column = column,
        .extent = extent,
        .blocks = r->blocks,
        .buffer = r->buffers + (size_t)buffer * HOTBED_BLOCK_BYTES,
    };
}

/* The roots of all extents hold, and extra does: what can be checked before any effect. */
static hotbed_status check_roots(reader *r) {
    const hotbed_manifest *m = &r->manifest;
    const hotbed_extent *extra = &m->shards[0].extra;
    HOTBED_TRY(hotbed_extent_check_bytes(
        &r->shard, "extra", extra->offset, extra->bytes, extra->root, r->buffers));
    for (uint32_t t = 0; t < m->num_tables; t++)
        for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
            if (!hotbed_manifest_has(m->tables[t].kind, m->optimizer.kind, i))
                continue;
            hotbed_extent_stream column = open_column(
                r, m->tables[t].name, hotbed_manifest_column_name(m->optimizer.kind, i),
                m->parts[t].columns[i], i);
            HOTBED_TRY(hotbed_extent_check_root(&column));
        }
    return HOTBED_OK;
}

/* --- rows ------------------------------------------------------------------------------------------ */

/* A table on its way into the storage. */
typedef struct table_reader {
    reader *r;
    uint32_t number; /* in the storage */
    const hotbed_manifest_table *table;
    const hotbed_manifest_part *part;
    uint64_t *counts; /* [buckets] keys that are still to come */
    uint64_t last_bucket, last_key;
    bool any; /* there was a key */
    hotbed_extent_stream columns[HOTBED_COLUMNS];
    hotbed_staging stagings[2];
} table_reader;

/* Keys come in canonical order, each once, and as many a bucket as the bucket column says. */
static hotbed_status check_keys(table_reader *t, const uint64_t *keys, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t bucket = hotbed_logical_bucket(keys[i], t->table->bucket_bits);
        bool ascends = !t->any || bucket > t->last_bucket ||
                       (bucket == t->last_bucket && keys[i] > t->last_key);
        if (!ascends || t->counts[bucket] == 0)
            return hotbed_fail(
                HOTBED_ERR_CORRUPT,
                "%s: %s: key %" PRIu64 " of bucket %" PRIu64 " is out of order or not counted",
                t->r->shard.name, t->table->name, keys[i], bucket);
        t->counts[bucket]--;
        t->last_bucket = bucket;
        t->last_key = keys[i];
        t->any = true;
    }
    return HOTBED_OK;
}

static hotbed_status read_counts(table_reader *t) {
    uint64_t bytes = t->part->columns[HOTBED_COLUMN_BUCKET].bytes, sum = 0;
    t->counts = hotbed_new(bytes);
    if (t->counts == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no %" PRIu64 " bytes for bucket counts", bytes);
    HOTBED_TRY(hotbed_extent_take(&t->columns[HOTBED_COLUMN_BUCKET], t->counts, bytes));
    for (uint64_t b = 0; b < bytes / sizeof *t->counts; b++) {
        if (t->counts[b] > t->part->rows - sum)
            return hotbed_fail(
                HOTBED_ERR_CORRUPT, "%s: %s: buckets count more than the %" PRIu64 " rows",
                t->r->shard.name, t->table->name, t->part->rows);
        sum += t->counts[b];
    }
    return HOTBED_OK;
}

/* Read rows [first, first + n) into the staging, and enqueue their way into the storage. */
static hotbed_status read_rows(
    table_reader *t, hotbed_staging *staging, uint64_t first, uint64_t n) {
    uint64_t *keys = staging->columns[HOTBED_COLUMN_KEYS];
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
        if (t->part->columns[i].bytes > 0 && i != HOTBED_COLUMN_BUCKET)
            HOTBED_TRY(
                hotbed_extent_take(&t->columns[i], staging->columns[i], n * staging->row_bytes[i]));
    if (t->table->kind == HOTBED_TABLE_HASH)
        HOTBED_TRY(check_keys(t, keys, n));
    else
        for (uint64_t i = 0; i < n; i++)
            keys[i] = first + i;
    return hotbed_staging_store(staging, t->r->storage, t->number, n, t->r->stream);
}

static hotbed_status read_columns(table_reader *t) {
    const hotbed_manifest *m = &t->r->manifest;
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
        t->columns[i] = open_column(
            t->r, t->table->name, hotbed_manifest_column_name(m->optimizer.kind, i),
            t->part->columns[i], i);
    for (uint32_t i = 0; i < 2; i++)
        HOTBED_TRY(
            hotbed_staging_create(t->table, m->optimizer.kind, t->r->stream, &t->stagings[i]));
    if (t->table->kind == HOTBED_TABLE_HASH)
        HOTBED_TRY(read_counts(t));
    uint64_t rows = t->table->rows, chunk = t->stagings[0].capacity;
    for (uint64_t first = 0; first < rows; first += chunk) {
        hotbed_staging *staging = &t->stagings[first / chunk % 2];
        uint64_t n = rows - first < chunk ? rows - first : chunk;
        HOTBED_TRY(hotbed_staging_wait(staging)); /* its last chunk is in the storage */
        HOTBED_TRY(read_rows(t, staging, first, n));
    }
    return hotbed_stream_sync(t->r->stream);
}

/* Every row of the checkpoint is in the storage.  (A table that evicts keeps the highest scores when
 * they do not fit: that is what it was made for.) */
static hotbed_status check_size(table_reader *t) {
    uint64_t keys = 0, pinned = 0;
    HOTBED_TRY(hotbed_storage_size(t->r->storage, t->number, &keys, &pinned, t->r->stream));
    if (keys > t->table->rows)
        return hotbed_fail(
            HOTBED_ERR_STATE,
            "table '%s' was changed while it was loaded: %" PRIu64 " keys, expected %" PRIu64,
            t->table->name, keys, t->table->rows);
    return HOTBED_OK;
}

static hotbed_status read_table(reader *r, uint32_t number) {
    table_reader t = {
        .r = r,
        .number = r->numbers[number],
        .table = &r->manifest.tables[number],
        .part = &r->manifest.parts[number],
    };
    hotbed_status status = read_columns(&t);
    if (status == HOTBED_OK)
        status = check_size(&t);
    else
        status = hotbed_staging_settle(r->stream, status);
    hotbed_staging_destroy(&t.stagings[0]);
    hotbed_staging_destroy(&t.stagings[1]);
    hotbed_delete(t.counts);
    return status;
}

static hotbed_status clear(reader *r) {
    uint32_t n = hotbed_storage_num_tables(r->storage);
    for (uint32_t i = 0; i < n; i++) {
        HOTBED_TRY(hotbed_storage_clear(r->storage, i, r->stream));
        r->touched = true;
    }
    return HOTBED_OK;
}

/* A failure in the middle leaves empty tables, not a part of the rows. */
static hotbed_status clear_after(reader *r, hotbed_status status) {
    char text[1024];
    snprintf(text, sizeof text, "%s", hotbed_last_error());
    if (clear(r) == HOTBED_OK)
        return status;
    return hotbed_fail(status, "%s; the tables could not be cleared", text);
}

static hotbed_status read_all(
    reader *r, const hotbed_io_calls *calls, const char *path, void *extra,
    const uint64_t *extra_bytes) {
    HOTBED_TRY(hotbed_stream_sync(r->stream)); /* a fault of before is not ours */
    HOTBED_TRY(hotbed_io_open(calls, NULL, path, HOTBED_IO_DIRECTORY, &r->directory));
    HOTBED_TRY(read_manifest(r, calls));
    const hotbed_extent *saved = &r->manifest.shards[0].extra;
    if (extra != NULL && *extra_bytes < saved->bytes)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "extra has room for %" PRIu64 " bytes, %" PRIu64 " were saved",
            *extra_bytes, saved->bytes);
    HOTBED_TRY(match(r));
    HOTBED_TRY(open_shard(r, calls));
    HOTBED_TRY(check_roots(r));
    HOTBED_TRY(clear(r));
    for (uint32_t i = 0; i < r->manifest.num_tables; i++)
        HOTBED_TRY(read_table(r, i));
    /* The caller's bytes were checked before, and come last: a call that fails leaves outputs alone. */
    hotbed_extent_stream column = open_column(r, "", "extra", *saved, 0);
    if (extra != NULL)
        HOTBED_TRY(hotbed_extent_take(&column, extra, column.extent.bytes));
    return hotbed_storage_set_state(r->storage, &r->manifest.state, r->stream);
}

hotbed_status hotbed_checkpoint_read(
    const hotbed_checkpoint_config *config, const char *path, hotbed_storage *storage,
    uint64_t *step, void *extra, uint64_t *extra_bytes, hotbed_stream *stream) {
    reader r = {
        .storage = storage,
        .stream = stream,
        .directory = HOTBED_IO_CLOSED,
        .shard = HOTBED_IO_CLOSED,
    };
    hotbed_status status = read_all(&r, config->calls, path, extra, extra_bytes);
    if (status != HOTBED_OK && r.touched)
        status = clear_after(&r, status);
    if (status == HOTBED_OK && step != NULL)
        *step = r.manifest.step;
    if (status == HOTBED_OK && extra_bytes != NULL)
        *extra_bytes = r.manifest.shards[0].extra.bytes;
    hotbed_io_drop(&r.shard);
    hotbed_io_drop(&r.directory);
    hotbed_delete(r.buffers);
    hotbed_delete(r.blocks);
    hotbed_delete(r.numbers);
    hotbed_manifest_free(&r.manifest);
    return status;
}
