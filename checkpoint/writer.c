/* checkpoint/writer.c - save: write one rank's rows, or the rows that changed, into its shard. */
#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/stream.h"
#include "base/text.h"
#include "checkpoint/format/bucket.h"
#include "checkpoint/mark.h"
#include "checkpoint/plan.h"
#include "checkpoint/redistribute.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/share.h"
#include "checkpoint/staging.h"
#include "checkpoint/touched.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The rows of a table that are written. */
typedef struct table_plan {
    uint64_t *keys;    /* [rows] in canonical order; NULL: all rows of a static table */
    uint64_t *erased;  /* [erased] in canonical order */
    uint64_t *counted; /* [2 * counted] keys in canonical order, then their counts */
} table_plan;

/* The state of a save. */
typedef struct writer {
    const hotbed_checkpoint_config *config;
    const hotbed_storages *storages;
    hotbed_stream *stream;
    const hotbed_checkpoint_options *options;
    hotbed_checkpoint_share share;
    hotbed_manifest manifest;
    hotbed_shard_writer shard;
    table_plan *plans;         /* [num_tables] */
    const hotbed_marked *base; /* increment: the rows of the parent */
    hotbed_marked next;        /* the rows that options->mark will have */
    hotbed_positions *touched; /* with options->touched and a mark */
} writer;

static hotbed_manifest_part *part_of(writer *w, uint32_t table) {
    return &w->manifest.parts[(uint64_t)table * w->manifest.world + w->share.rank];
}

/* --- rows out of the storage --------------------------------------------------------------------------- */

/* Rows of a table that are copied from the storage. */
typedef struct row_stream {
    writer *w;
    uint32_t number;
    const hotbed_manifest_table *table;
    uint64_t rows;
    const uint64_t *keys; /* [rows], or NULL: the part's row numbers in order */
    hotbed_row_numbers numbers;
    hotbed_staging stagings[2];
    hotbed_status (*take)(
        struct row_stream *s, uint64_t first, uint64_t n, void *const columns[HOTBED_ROW_COLUMNS]);
    void *context;
} row_stream;

static uint64_t key_of(const row_stream *s, uint64_t row) {
    return s->keys == NULL ? hotbed_numbers_at(s->numbers, row) : s->keys[row];
}

/* Enqueue the copy of rows [first, first + n). */
static hotbed_status fetch(row_stream *s, hotbed_staging *staging, uint64_t first, uint64_t n) {
    uint64_t *ids = staging->columns[HOTBED_COLUMN_KEYS];
    bool is_static = s->w->manifest.tables[s->number].kind == HOTBED_TABLE_STATIC;
    for (uint64_t i = 0; i < n; i++)
        ids[i] = hotbed_share_local(&s->w->share, s->number, is_static, key_of(s, first + i));
    return hotbed_staging_fetch(
        staging, hotbed_storages_of(s->w->storages, s->number),
        hotbed_storages_number(s->w->storages, s->number), n, s->w->stream);
}

/* Wait for the copy of rows [first, first + n), and pass them to `take` under their keys. */
static hotbed_status pass_rows(row_stream *s, hotbed_staging *staging, uint64_t first, uint64_t n) {
    HOTBED_TRY(hotbed_staging_wait(staging));
    HOTBED_TRY(hotbed_stream_fault(s->w->stream)); /* an external store could not read the rows */
    uint64_t *keys = staging->columns[HOTBED_COLUMN_KEYS];
    for (uint64_t i = 0; i < n; i++) {
        if (staging->found[i] == 0)
            return hotbed_fail_table_key(
                HOTBED_ERR_STATE, s->table->name, key_of(s, first + i),
                hotbed_manifest_origin(&s->w->manifest, s->table)->key_type,
                "table '%s' was changed while it was saved: key %s is gone", s->table->name,
                hotbed_key_text(
                    key_of(s, first + i),
                    hotbed_manifest_origin(&s->w->manifest, s->table)->key_type)
                    .text);
        keys[i] = key_of(s, first + i);
    }
    return s->take(s, first, n, staging->columns);
}

/* Process chunk by chunk. The copy of the next chunk runs while this one is processed. */
static hotbed_status stream_chunks(row_stream *s) {
    uint64_t chunk = s->stagings[0].capacity, asked = 0, done = 0;
    for (uint32_t ask = 0, turn = 0; done < s->rows; turn++) {
        for (; asked < s->rows && ask < turn + 2; ask++) {
            uint64_t n = s->rows - asked < chunk ? s->rows - asked : chunk;
            HOTBED_TRY(fetch(s, &s->stagings[ask % 2], asked, n));
            asked += n;
        }
        uint64_t n = s->rows - done < chunk ? s->rows - done : chunk;
        HOTBED_TRY(pass_rows(s, &s->stagings[turn % 2], done, n));
        done += n;
    }
    return HOTBED_OK;
}

static hotbed_status stream_rows(row_stream *s) {
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < 2 && status == HOTBED_OK; i++)
        status = hotbed_staging_create(
            &s->w->manifest, s->table, hotbed_manifest_types(s->table), s->rows, s->w->stream,
            &s->stagings[i]);
    HOTBED_THEN(status, stream_chunks(s));
    if (status != HOTBED_OK)
        status = hotbed_stream_settle(s->w->stream, status);
    hotbed_staging_destroy(&s->stagings[0]);
    hotbed_staging_destroy(&s->stagings[1]);
    return status;
}

/* --- the plan -------------------------------------------------------------------------------------- */

/* Export the keys of a hash table in canonical order. `rows` is their number. The caller frees
 * *out. */
static hotbed_status sorted_keys(writer *w, uint32_t number, uint64_t rows, uint64_t **out) {
    const hotbed_manifest_table *table = &w->manifest.tables[number];
    hotbed_key_type type = hotbed_manifest_origin(&w->manifest, table)->key_type;
    uint64_t found = 0;
    uint64_t *unsorted = hotbed_new(rows * sizeof *unsorted);
    uint64_t *keys = hotbed_new(rows * sizeof *keys);
    uint64_t *counts = hotbed_new(((size_t)1 << table->bucket_bits) * sizeof *counts);
    hotbed_status status = HOTBED_OK;
    if (unsorted == NULL || keys == NULL || counts == NULL)
        status = hotbed_fail_table(
            HOTBED_ERR_MEMORY, table->name, "no memory to sort the %" PRIu64 " keys of table '%s'",
            rows, table->name);
    if (status == HOTBED_OK)
        status = hotbed_storage_export_keys(
            hotbed_storages_of(w->storages, number), hotbed_storages_number(w->storages, number),
            rows, unsorted, NULL, &found, w->stream);
    if (status == HOTBED_OK && found != rows)
        status = hotbed_fail_table_limit(
            HOTBED_ERR_STATE, table->name, NULL, found, rows,
            "table '%s' was changed while it was saved: it had %" PRIu64 " keys, now %" PRIu64,
            table->name, rows, found);
    HOTBED_THEN(status, hotbed_share_check_keys(&w->share, &w->manifest, number, rows, unsorted));
    HOTBED_THEN(status, hotbed_bucket_sort(rows, unsorted, type, table->bucket_bits, keys, counts));
    hotbed_delete(unsorted);
    hotbed_delete(counts);
    if (status == HOTBED_OK)
        *out = keys;
    else
        hotbed_delete(keys);
    return status;
}

static hotbed_status take_digests(
    row_stream *s, uint64_t first, uint64_t n, void *const columns[HOTBED_ROW_COLUMNS]) {
    hotbed_mark_table *mark = &s->w->next.tables[s->number];
    hotbed_digest sum = {0};
    hotbed_digest_rows(
        n, columns, s->stagings[0].row_bytes, s->context, &sum, mark->digests + first);
    return HOTBED_OK;
}

/* Return the rows that the rank has of a table. */
static uint64_t rows_of(const hotbed_manifest_table *table) {
    return table->kind == HOTBED_TABLE_HASH ? table->keys : table->capacity;
}

/* Compute the keys and digests of all rows of a table. */
static hotbed_status digest_table(writer *w, uint32_t number) {
    const hotbed_manifest_table *table = &w->manifest.tables[number];
    hotbed_mark_table *now = &w->next.tables[number];
    uint64_t *keys = NULL, rows = rows_of(table);
    if (table->kind == HOTBED_TABLE_HASH)
        HOTBED_TRY(sorted_keys(w, number, rows, &keys));
    HOTBED_TRY(hotbed_mark_rows(now, rows, keys));
    size_t row_bytes = 0;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        row_bytes += hotbed_manifest_row_bytes(&w->manifest, table, i);
    row_stream s = {
        .w = w,
        .number = number,
        .table = table,
        .rows = rows,
        .keys = keys,
        .numbers = hotbed_manifest_numbers(&w->manifest, table, w->share.rank),
        .take = take_digests,
        .context = hotbed_new(row_bytes),
    };
    hotbed_status status = HOTBED_CHECK_MEMORY(s.context, "%zu bytes of a row", row_bytes);
    HOTBED_THEN(status, stream_rows(&s));
    hotbed_delete(s.context);
    return status;
}

/* Whether the next mark has a position of a table. */
static bool is_touched(const writer *w, uint32_t number) {
    return w->touched != NULL && hotbed_positions_of(w->touched, number).epoch != 0;
}

/* Let the next mark have a position of a table, and no rows. */
static void mark_position(writer *w, uint32_t number) {
    hotbed_mark_table *next = &w->next.tables[number];
    hotbed_delete(next->keys);
    hotbed_delete(next->digests);
    *next = (hotbed_mark_table){.position = hotbed_positions_of(w->touched, number)};
}

/* Find what was touched since the position of the mark. */
static hotbed_status list_touched(writer *w, uint32_t number, hotbed_mark_changes *out) {
    const hotbed_manifest_table *table = &w->manifest.tables[number];
    const hotbed_change_position *since = &w->base->tables[number].position;
    HOTBED_TRY(hotbed_touched_list(w->touched, number, since, rows_of(table), w->stream, out));
    if (table->kind == HOTBED_TABLE_HASH) {
        HOTBED_TRY(hotbed_share_check_keys(
            &w->share, &w->manifest, number, out->num_changed, out->changed));
        return hotbed_touched_sort(
            hotbed_manifest_origin(&w->manifest, table)->key_type, table->bucket_bits, out);
    }
    hotbed_row_numbers numbers = hotbed_manifest_numbers(&w->manifest, table, w->share.rank);
    for (uint64_t i = 0; i < out->num_changed; i++)
        out->changed[i] = hotbed_numbers_at(numbers, out->changed[i]);
    return HOTBED_OK;
}

/* Compare the rows with the digests of the mark. */
static hotbed_status compare_digests(writer *w, uint32_t number, hotbed_mark_changes *out) {
    const hotbed_manifest_table *table = &w->manifest.tables[number];
    HOTBED_TRY(digest_table(w, number));
    return hotbed_mark_compare(
        &w->base->tables[number], &w->next.tables[number], table->bucket_bits,
        hotbed_manifest_numbers(&w->manifest, table, w->share.rank), out);
}

/* Find what changed since the mark. */
static hotbed_status plan_changes(writer *w, uint32_t number) {
    hotbed_manifest_table *table = &w->manifest.tables[number];
    hotbed_manifest_part *part = part_of(w, number);
    hotbed_mark_changes changes = {.num_changed = 0};
    const bool touched = is_touched(w, number);
    hotbed_status status = touched && w->base->tables[number].position.epoch != 0
                               ? list_touched(w, number, &changes)
                               : compare_digests(w, number, &changes);
    if (status != HOTBED_OK) {
        hotbed_delete(changes.changed);
        hotbed_delete(changes.erased);
        return status;
    }
    if (touched)
        mark_position(w, number);
    w->plans[number].keys = changes.changed;
    w->plans[number].erased = changes.erased;
    table->rows = changes.num_changed;
    part->rows = changes.num_changed;
    part->erased = changes.num_erased;
    return HOTBED_OK;
}

static hotbed_status plan_table(writer *w, uint32_t number) {
    hotbed_manifest_table *table = &w->manifest.tables[number];
    HOTBED_TRY(hotbed_plan_counted(
        w->storages, &w->share, number, &w->manifest, &w->plans[number].counted, w->stream));
    if (w->manifest.increment)
        return plan_changes(w, number);
    table->rows = rows_of(table);
    part_of(w, number)->rows = table->rows;
    return HOTBED_OK;
}

/* Describe all tables, without their rows. */
static hotbed_status plan_head(writer *w, hotbed_checkpoint_id id) {
    hotbed_manifest *m = &w->manifest;
    HOTBED_TRY(hotbed_plan_head(w->config, w->storages, &w->share, w->options, m, w->stream));
    m->id = (hotbed_digest){.low = id.low, .high = id.high};
    for (uint32_t i = 0; i < m->num_tables; i++)
        HOTBED_TRY(hotbed_plan_table(w->config, w->storages, &w->share, i, m, w->stream));
    return HOTBED_OK;
}

static hotbed_status take_positions(writer *w) {
    HOTBED_TRY(hotbed_positions_create(w->storages, w->stream, &w->touched));
    return hotbed_positions_take(w->touched, w->stream);
}

static hotbed_status plan(writer *w, hotbed_checkpoint_id id) {
    hotbed_manifest *m = &w->manifest;
    const hotbed_checkpoint_options *options = w->options;
    HOTBED_TRY(plan_head(w, id));
    if (options->parent != NULL)
        HOTBED_TRY(
            hotbed_plan_parent(w->config, options->parent, options->mark, &w->share, m, &w->base));
    if (options->mark != NULL)
        HOTBED_TRY(hotbed_marked_reserve(m->num_tables, &w->next));
    if (options->mark != NULL && options->touched != 0)
        HOTBED_TRY(take_positions(w));
    w->plans = hotbed_new(m->num_tables * sizeof *w->plans);
    HOTBED_TRY_MEMORY(w->plans, "%" PRIu32 " tables", m->num_tables);
    for (uint32_t i = 0; i < m->num_tables; i++)
        HOTBED_TRY(plan_table(w, i));
    return HOTBED_OK;
}

/* --- the shard --------------------------------------------------------------------------------------- */

static hotbed_status take_rows(
    row_stream *s, uint64_t first, uint64_t n, void *const columns[HOTBED_ROW_COLUMNS]) {
    hotbed_digest *digests = s->context;
    return hotbed_shard_writer_rows(
        &s->w->shard, n, columns, digests == NULL ? NULL : digests + first);
}

static void free_plan(table_plan *p) {
    hotbed_delete(p->keys);
    hotbed_delete(p->erased);
    hotbed_delete(p->counted);
    *p = (table_plan){.keys = NULL};
}

/* Move the keys of a table from the plan, which no longer needs them, to the mark. Full checkpoints
 * only. */
static void keep_keys(writer *w, uint32_t number) {
    if (w->options->mark == NULL || w->manifest.increment)
        return;
    if (is_touched(w, number)) {
        mark_position(w, number);
        return;
    }
    w->next.tables[number].keys = w->plans[number].keys;
    w->plans[number].keys = NULL;
}

static hotbed_status write_columns(writer *w, uint32_t number) {
    const hotbed_manifest_table *table = &w->manifest.tables[number];
    bool marks = w->options->mark != NULL && !w->manifest.increment && !is_touched(w, number);
    row_stream s = {
        .w = w,
        .number = number,
        .table = table,
        .rows = table->rows,
        .keys = w->plans[number].keys,
        .numbers = hotbed_manifest_numbers(&w->manifest, table, w->share.rank),
        .take = take_rows,
        .context = marks ? w->next.tables[number].digests : NULL,
    };
    HOTBED_TRY(hotbed_shard_writer_begin(&w->shard, number));
    HOTBED_TRY(stream_rows(&s));
    const table_plan *p = &w->plans[number];
    HOTBED_TRY(hotbed_shard_writer_alone(&w->shard, p->keys, p->counted, p->erased));
    return hotbed_shard_writer_end(&w->shard);
}

static hotbed_status write_table(writer *w, uint32_t number) {
    const hotbed_manifest_table *table = &w->manifest.tables[number];
    bool full = !w->manifest.increment;
    if (full && table->kind == HOTBED_TABLE_HASH)
        HOTBED_TRY(sorted_keys(w, number, table->rows, &w->plans[number].keys));
    if (full && w->options->mark != NULL && !is_touched(w, number))
        HOTBED_TRY(hotbed_mark_rows(&w->next.tables[number], table->rows, NULL));
    HOTBED_TRY(write_columns(w, number));
    keep_keys(w, number);
    free_plan(&w->plans[number]);
    return HOTBED_OK;
}

hotbed_status hotbed_save_open(
    hotbed_shard_writer *shard, const hotbed_io_file *directory, hotbed_manifest *manifest,
    uint32_t rank, const hotbed_checkpoint_blob *blobs) {
    const void **data = hotbed_new(manifest->num_blobs * sizeof *data);
    HOTBED_TRY_MEMORY(data, "the blobs");
    for (uint32_t i = 0; i < manifest->num_blobs; i++)
        data[i] = blobs[i].data;
    hotbed_status status = hotbed_shard_writer_open(shard, directory, manifest, rank, data);
    hotbed_delete(data);
    return status == HOTBED_OK ? hotbed_shard_writer_behind(shard, directory) : status;
}

static hotbed_status write_shard(writer *w, hotbed_draft *draft, hotbed_checkpoint_id id) {
    HOTBED_TRY(plan(w, id));
    HOTBED_TRY(hotbed_draft_enter(draft));
    HOTBED_TRY(hotbed_save_open(
        &w->shard, &draft->directory, &w->manifest, w->share.rank, w->options->blobs));
    for (uint32_t i = 0; i < w->manifest.num_tables; i++)
        HOTBED_TRY(write_table(w, i));
    HOTBED_TRY(hotbed_shard_writer_finish(&w->shard));
    return hotbed_draft_describe(draft, &w->manifest, w->share.rank);
}

/* --- the steps of a save ----------------------------------------------------------------------------- */

hotbed_status hotbed_save_begin(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id *id) {
    hotbed_draft draft;
    hotbed_checkpoint_id made = {0};
    const hotbed_status status = hotbed_draft_create(config->calls, path, &made, &draft);
    hotbed_draft_close(&draft);
    if (status == HOTBED_OK)
        *id = made;
    return status;
}

/* Put the shard. The caller clears update->next. */
static hotbed_status put_shard(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    const hotbed_storages *storages, const hotbed_checkpoint_options *options,
    hotbed_mark_update *update, hotbed_stream *stream) {
    writer w = {
        .config = config,
        .storages = storages,
        .stream = stream,
        .options = options,
        .shard = {.file = HOTBED_IO_CLOSED},
    };
    hotbed_draft draft;
    hotbed_held_fault held;
    *update = (hotbed_mark_update){.base = NULL};
    HOTBED_TRY(hotbed_share_read(&options->share, storages, &w.share));
    HOTBED_TRY(hotbed_stream_hold_fault(stream, &held)); /* a fault of earlier work is not ours */
    hotbed_status status = hotbed_draft_open(config->calls, path, id, &draft);
    HOTBED_THEN(status, write_shard(&w, &draft, id));
    w.next.id = w.manifest.id;
    *update = (hotbed_mark_update){.base = w.base, .next = w.next};
    for (uint32_t i = 0; w.plans != NULL && i < w.manifest.num_tables; i++)
        free_plan(&w.plans[i]);
    hotbed_delete(w.plans);
    hotbed_positions_destroy(w.touched);
    hotbed_shard_writer_close(&w.shard);
    hotbed_draft_close(&draft);
    hotbed_manifest_free(&w.manifest);
    hotbed_stream_return_fault(stream, &held);
    return status;
}

hotbed_status hotbed_save_shard(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    const hotbed_storages *storages, const hotbed_checkpoint_options *options,
    hotbed_stream *stream) {
    hotbed_mark_update update;
    hotbed_status status = put_shard(config, path, id, storages, options, &update, stream);
    if (status == HOTBED_OK)
        hotbed_mark_push(options->mark, &update);
    hotbed_marked_clear(&update.next);
    return status;
}

hotbed_status hotbed_save_mark(
    const hotbed_checkpoint_config *config, const hotbed_storages *storages,
    const hotbed_checkpoint_share *share, hotbed_checkpoint_id id, hotbed_checkpoint_mark *mark,
    hotbed_stream *stream) {
    hotbed_checkpoint_options options = {.size = sizeof options};
    writer w = {.config = config, .storages = storages, .stream = stream, .options = &options};
    hotbed_status status = hotbed_share_read(share, storages, &w.share);
    HOTBED_THEN(status, plan_head(&w, id));
    HOTBED_THEN(status, hotbed_marked_reserve(w.manifest.num_tables, &w.next));
    for (uint32_t i = 0; status == HOTBED_OK && i < w.manifest.num_tables; i++)
        status = digest_table(&w, i);
    w.next.id = w.manifest.id;
    hotbed_marked_clear(&mark->last);
    hotbed_marked_clear(&mark->before);
    if (status == HOTBED_OK)
        mark->last = w.next;
    else
        hotbed_marked_clear(&w.next);
    hotbed_manifest_free(&w.manifest);
    return status;
}

void hotbed_save_abort(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id) {
    hotbed_draft draft;
    if (hotbed_draft_open(config->calls, path, id, &draft) == HOTBED_OK)
        hotbed_draft_remove(&draft);
    hotbed_draft_close(&draft);
}

/* Remove what was written. Keeps the error. */
static hotbed_status abort_after(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    hotbed_status status) {
    hotbed_error error;
    hotbed_error_copy(&error);
    hotbed_save_abort(config, path, id);
    return hotbed_error_return(&error, status);
}

hotbed_status hotbed_save_commit(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    uint32_t world) {
    hotbed_draft draft;
    hotbed_status status = hotbed_draft_open(config->calls, path, id, &draft);
    HOTBED_THEN(status, hotbed_draft_enter(&draft));
    HOTBED_THEN(status, hotbed_draft_assemble(&draft, world));
    hotbed_draft_close(&draft);
    return status == HOTBED_OK ? status : abort_after(config, path, id, status);
}

/* A save that rank 0 has begun; sent to the other ranks. */
typedef struct begun_save {
    hotbed_checkpoint_id id;
    char path[HOTBED_VOTE_BYTES - sizeof(hotbed_checkpoint_id)]; /* the end of a longer path */
} begun_save;

static void copy_path(const char *path, begun_save *to) {
    size_t bytes = strlen(path), most = sizeof to->path - 1;
    snprintf(to->path, sizeof to->path, "%s", path + (bytes > most ? bytes - most : 0));
}

/* Whether two paths end in the same name. Their directories may have different paths on different
 * ranks. */
static bool same_name(const char *a, const char *b) {
    size_t a_bytes = 0, b_bytes = 0;
    const char *a_name = hotbed_path_name(a, &a_bytes), *b_name = hotbed_path_name(b, &b_bytes);
    return a_bytes == b_bytes && memcmp(a_name, b_name, a_bytes) == 0;
}

/* Put the shard of one of several ranks, if its path names the checkpoint that rank 0 has begun. */
static hotbed_status put_begun(
    const hotbed_checkpoint_config *config, const char *path, const begun_save *first,
    const hotbed_storages *storages, const hotbed_checkpoint_options *options,
    hotbed_mark_update *update, hotbed_stream *stream) {
    begun_save own;
    copy_path(path, &own);
    if (!same_name(own.path, first->path))
        return hotbed_fail_path(
            HOTBED_ERR_ARGUMENT, own.path,
            "path '%s' is not the path of rank 0, '%s'; pass the same path on all ranks", own.path,
            first->path);
    hotbed_status status = put_shard(config, path, first->id, storages, options, update, stream);
    if (status != HOTBED_OK && strcmp(own.path, first->path) != 0) /* another directory? */
        return HOTBED_FAIL_AFTER(
            status, "%s; rank 0 saves to '%s'", hotbed_last_error(), first->path);
    return status;
}

/* Save with all ranks of a communicator: rank 0 begins, all ranks write, and rank 0 commits. */
static hotbed_status write_together(
    const hotbed_checkpoint_config *config, const char *path, const hotbed_storages *storages,
    const hotbed_checkpoint_options *options, hotbed_mark_update *update, hotbed_stream *stream) {
    hotbed_comm *comm = options->comm;
    bool first = hotbed_comm_rank(comm) == 0;
    uint32_t world = hotbed_comm_size(comm);
    begun_save from = {.id = {0}};
    copy_path(path, &from);
    hotbed_status status = first ? hotbed_save_begin(config, path, &from.id) : HOTBED_OK;
    bool begun = first && status == HOTBED_OK;
    status = hotbed_vote_with(comm, status, &from, sizeof from, stream);
    if (status == HOTBED_OK) {
        status = put_begun(config, path, &from, storages, options, update, stream);
        status = hotbed_vote(comm, status, stream);
    }
    if (status != HOTBED_OK)
        return begun ? abort_after(config, path, from.id, status) : status;
    if (first)
        status = hotbed_save_commit(config, path, from.id, world);
    return hotbed_vote(comm, status, stream);
}

hotbed_status hotbed_save_end(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    hotbed_status status) {
    return status == HOTBED_OK ? hotbed_save_commit(config, path, id, 1)
                               : abort_after(config, path, id, status);
}

static hotbed_status write_alone(
    const hotbed_checkpoint_config *config, const char *path, const hotbed_storages *storages,
    const hotbed_checkpoint_options *options, hotbed_mark_update *update, hotbed_stream *stream) {
    hotbed_checkpoint_id id;
    HOTBED_TRY(hotbed_save_begin(config, path, &id));
    return hotbed_save_end(
        config, path, id, put_shard(config, path, id, storages, options, update, stream));
}

hotbed_status hotbed_checkpoint_write(
    const hotbed_checkpoint_config *config, const char *path, const hotbed_storages *storages,
    const hotbed_checkpoint_options *options, hotbed_stream *stream) {
    hotbed_mark_update update = {.base = NULL};
    hotbed_status status = options->comm != NULL
                               ? write_together(config, path, storages, options, &update, stream)
                               : write_alone(config, path, storages, options, &update, stream);
    hotbed_mark_end(options->mark, &update, status);
    return status;
}
