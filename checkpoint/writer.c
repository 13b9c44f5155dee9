/* checkpoint/writer.c - save: one rank's rows into its shard. */
#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/bucket.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/share.h"
#include "checkpoint/staging.h"
#include "hotbed/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* What a save holds. */
typedef struct writer {
    const hotbed_checkpoint_config *config;
    hotbed_storage *storage;
    hotbed_stream *stream;
    hotbed_checkpoint_share share;
    hotbed_manifest manifest;
    hotbed_shard_writer shard;
} writer;

static hotbed_manifest_part *part_of(writer *w, uint32_t table) {
    return &w->manifest.parts[(uint64_t)table * w->manifest.world + w->share.rank];
}

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
    hotbed_manifest_part *part = part_of(w, number);
    snprintf(table->name, sizeof table->name, "%s", info.name);
    table->kind = info.kind;
    table->dtype = info.dtype;
    table->dim = info.dim;
    hotbed_share_describe(&w->share, number, table);
    if (table->kind == HOTBED_TABLE_HASH) {
        table->bucket_bits = w->config->bucket_bits;
        table->rows = keys;
        part->end = (uint64_t)1 << table->bucket_bits;
        /* Rules deal single keys out: every rank has rows of all buckets. */
        table->spread = w->share.world == 1 ? HOTBED_SPREAD_BUCKET : HOTBED_SPREAD_ANY;
    } else {
        hotbed_share_rows(&w->share, number, info.capacity, &part->first, &part->end);
        table->rows = part->end - part->first;
        table->capacity = table->rows;
    }
    part->rows = table->rows;
    return HOTBED_OK;
}

static hotbed_status plan(
    writer *w, hotbed_checkpoint_id id, const hotbed_checkpoint_options *options) {
    hotbed_manifest *m = &w->manifest;
    struct timespec now = {.tv_sec = 0};
    clock_gettime(CLOCK_REALTIME, &now);
    m->minor = HOTBED_FORMAT_MINOR;
    m->id = (hotbed_digest){.low = id.low, .high = id.high};
    m->created_ns = (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
    m->step = options->step;
    snprintf(m->writer, sizeof m->writer, "hotbed-%s", hotbed_version());
    m->world = w->share.world;
    m->block_bytes = w->config->block_bytes == 0 ? HOTBED_BLOCK_BYTES : w->config->block_bytes;
    m->num_tables = hotbed_storage_num_tables(w->storage);
    m->key_type = hotbed_storage_key_type(w->storage);
    m->seed = hotbed_storage_seed(w->storage);
    m->optimizer = *hotbed_storage_optimizer(w->storage);
    HOTBED_TRY(hotbed_storage_get_state(w->storage, &m->state, w->stream));
    HOTBED_TRY(hotbed_manifest_reserve(m));
    for (uint32_t i = 0; i < m->num_tables; i++)
        HOTBED_TRY(plan_table(w, i));
    m->shards[w->share.rank].extra.bytes = w->share.rank == 0 ? options->extra_bytes : 0;
    return HOTBED_OK;
}

/* --- rows ------------------------------------------------------------------------------------------ */

/* A table on its way to the shard. */
typedef struct table_writer {
    writer *w;
    uint32_t number;
    const hotbed_manifest_table *table;
    const hotbed_manifest_part *part;
    uint64_t *keys;   /* [rows] in canonical order; NULL for a static table */
    uint64_t *counts; /* [buckets] */
    hotbed_staging stagings[2];
} table_writer;

/* The keys of a hash table in canonical order, and the buckets' counts. */
static hotbed_status sort_keys(table_writer *t) {
    uint64_t rows = t->part->rows, found = 0;
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
    for (uint64_t i = 0; i < rows && status == HOTBED_OK; i++)
        unsorted[i] = hotbed_share_key(&t->w->share, t->number, unsorted[i]);
    if (status == HOTBED_OK)
        status = hotbed_bucket_sort(rows, unsorted, t->table->bucket_bits, t->keys, t->counts);
    hotbed_delete(unsorted);
    return status;
}

/* Enqueue the copy of rows [first, first + n). */
static hotbed_status fetch(table_writer *t, hotbed_staging *staging, uint64_t first, uint64_t n) {
    uint64_t *ids = staging->columns[HOTBED_COLUMN_KEYS];
    for (uint64_t i = 0; i < n; i++)
        ids[i] = t->keys == NULL ? first + i
                                 : hotbed_share_local(&t->w->share, t->number, t->keys[first + i]);
    return hotbed_staging_fetch(staging, t->w->storage, t->number, n, t->w->stream);
}

/* Wait for the copy of rows [first, first + n), and write them under their keys. */
static hotbed_status write_rows(
    table_writer *t, hotbed_staging *staging, uint64_t first, uint64_t n) {
    HOTBED_TRY(hotbed_staging_wait(staging));
    uint64_t *keys = staging->columns[HOTBED_COLUMN_KEYS];
    for (uint64_t i = 0; i < n; i++) {
        if (staging->found[i] == 0)
            return hotbed_fail(
                HOTBED_ERR_STATE,
                "table '%s' was changed while it was saved: key %" PRIu64 " is gone",
                t->table->name, keys[i]);
        keys[i] = t->keys == NULL ? t->part->first + first + i : t->keys[first + i];
    }
    return hotbed_shard_writer_rows(&t->w->shard, n, staging->columns, NULL);
}

/* Chunk by chunk, the copy of the next one running while this one is written. */
static hotbed_status stream_rows(table_writer *t) {
    uint64_t rows = t->part->rows, chunk = t->stagings[0].capacity;
    uint64_t asked = 0, written = 0;
    for (uint32_t ask = 0, turn = 0; written < rows; turn++) {
        for (; asked < rows && ask < turn + 2; ask++) {
            uint64_t n = rows - asked < chunk ? rows - asked : chunk;
            HOTBED_TRY(fetch(t, &t->stagings[ask % 2], asked, n));
            asked += n;
        }
        uint64_t n = rows - written < chunk ? rows - written : chunk;
        HOTBED_TRY(write_rows(t, &t->stagings[turn % 2], written, n));
        written += n;
    }
    return HOTBED_OK;
}

static hotbed_status write_columns(table_writer *t) {
    writer *w = t->w;
    HOTBED_TRY(hotbed_shard_writer_begin(&w->shard, t->number));
    if (t->table->kind == HOTBED_TABLE_HASH)
        HOTBED_TRY(sort_keys(t));
    for (uint32_t i = 0; i < 2; i++)
        HOTBED_TRY(hotbed_staging_create(
            &w->manifest, t->table, t->part->rows, w->stream, &t->stagings[i]));
    HOTBED_TRY(stream_rows(t));
    if (t->table->kind == HOTBED_TABLE_HASH)
        HOTBED_TRY(hotbed_shard_writer_column(
            &w->shard, HOTBED_COLUMN_BUCKET, t->counts,
            t->part->columns[HOTBED_COLUMN_BUCKET].bytes));
    return hotbed_shard_writer_end(&w->shard);
}

static hotbed_status write_table(writer *w, uint32_t number) {
    table_writer t = {
        .w = w,
        .number = number,
        .table = &w->manifest.tables[number],
        .part = part_of(w, number),
    };
    hotbed_status status = write_columns(&t);
    if (status != HOTBED_OK)
        status = hotbed_staging_settle(w->stream, status);
    hotbed_staging_destroy(&t.stagings[0]);
    hotbed_staging_destroy(&t.stagings[1]);
    hotbed_delete(t.counts);
    hotbed_delete(t.keys);
    return status;
}

/* --- the steps of a save ----------------------------------------------------------------------------- */

static hotbed_status write_shard(
    writer *w, hotbed_draft *draft, hotbed_checkpoint_id id,
    const hotbed_checkpoint_options *options) {
    HOTBED_TRY(plan(w, id, options));
    HOTBED_TRY(hotbed_draft_enter(draft));
    HOTBED_TRY(hotbed_shard_writer_open(
        &w->shard, &draft->directory, &w->manifest, w->share.rank, options->extra));
    for (uint32_t i = 0; i < w->manifest.num_tables; i++)
        HOTBED_TRY(write_table(w, i));
    HOTBED_TRY(hotbed_shard_writer_finish(&w->shard));
    return hotbed_draft_describe(draft, &w->manifest, w->share.rank);
}

hotbed_status hotbed_save_begin(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id *id) {
    hotbed_draft draft;
    hotbed_checkpoint_id made = {0};
    HOTBED_TRY(hotbed_new_id(&made));
    hotbed_status status = hotbed_draft_open(config->calls, path, made, &draft);
    if (status == HOTBED_OK)
        status = hotbed_draft_make(&draft);
    hotbed_draft_close(&draft);
    if (status == HOTBED_OK)
        *id = made;
    return status;
}

hotbed_status hotbed_save_shard(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    hotbed_storage *storage, const hotbed_checkpoint_options *options, hotbed_stream *stream) {
    writer w = {
        .config = config,
        .storage = storage,
        .stream = stream,
        .shard = {.file = HOTBED_IO_CLOSED},
    };
    hotbed_draft draft;
    HOTBED_TRY(hotbed_share_read(&options->share, storage, &w.share));
    hotbed_status status = hotbed_draft_open(config->calls, path, id, &draft);
    if (status == HOTBED_OK)
        status = write_shard(&w, &draft, id, options);
    hotbed_shard_writer_close(&w.shard);
    hotbed_draft_close(&draft);
    hotbed_manifest_free(&w.manifest);
    return status;
}

void hotbed_save_abort(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    uint32_t world) {
    hotbed_draft draft;
    if (hotbed_draft_open(config->calls, path, id, &draft) == HOTBED_OK)
        hotbed_draft_remove(&draft, world);
    hotbed_draft_close(&draft);
}

/* Remove what was written, and keep the error text. */
static hotbed_status abort_after(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    uint32_t world, hotbed_status status) {
    char text[1024];
    snprintf(text, sizeof text, "%s", hotbed_last_error());
    hotbed_save_abort(config, path, id, world);
    return hotbed_fail(status, "%s", text);
}

hotbed_status hotbed_save_commit(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    uint32_t world) {
    hotbed_draft draft;
    hotbed_status status = hotbed_draft_open(config->calls, path, id, &draft);
    if (status == HOTBED_OK)
        status = hotbed_draft_enter(&draft);
    if (status == HOTBED_OK)
        status = hotbed_draft_assemble(&draft, world);
    hotbed_draft_close(&draft);
    return status == HOTBED_OK ? status : abort_after(config, path, id, world, status);
}

hotbed_status hotbed_checkpoint_write(
    const hotbed_checkpoint_config *config, const char *path, hotbed_storage *storage,
    const hotbed_checkpoint_options *options, hotbed_stream *stream) {
    hotbed_checkpoint_id id;
    HOTBED_TRY(hotbed_save_begin(config, path, &id));
    hotbed_status status = hotbed_save_shard(config, path, id, storage, options, stream);
    if (status != HOTBED_OK)
        return abort_after(config, path, id, 1, status);
    return hotbed_save_commit(config, path, id, 1);
}
