/* checkpoint/export.c - write tables of a checkpoint as files for other programs. */
#include "checkpoint/format/h5.h"
#include "checkpoint/import.h"

#include "base/error.h"
#include "base/stream.h"
#include "storage/types.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { HEADER_BYTES = 128, PATH_BYTES = 256 };

/* A column that is written. */
typedef struct target {
    hotbed_io_file *file;
    uint64_t at;        /* offset of the next byte */
    size_t row_bytes;   /* in the file */
    hotbed_dtype widen; /* the type of the rows, which are converted to f32; 0: they are not */
    uint32_t dim;
} target;

static const char *const part_names[] = {"weight_id", "weight", "metadata", ""};

static const char *column_title(
    const hotbed_manifest *m, const hotbed_manifest_table *t, uint32_t column) {
    if (column == HOTBED_COLUMN_TIMES)
        return "times";
    return column < HOTBED_COLUMN_STATE
               ? part_names[column]
               : hotbed_manifest_column_name(hotbed_manifest_optimizer(m, t), column) +
                     strlen("opt/");
}

static bool is_out(const hotbed_manifest *m, const hotbed_manifest_table *t, uint32_t column) {
    if (column == HOTBED_COLUMN_KEYS)
        return t->kind == HOTBED_TABLE_HASH;
    return hotbed_manifest_row_bytes(m, t, column) > 0;
}

/* Append `n` rows to a column, widened through `scratch` if the target asks for it. */
static hotbed_status put(
    target *to, const void *rows, uint64_t n, size_t row_bytes, float *scratch) {
    const void *data = rows;
    if (to->widen != 0) {
        for (uint64_t i = 0; i < n; i++)
            hotbed_weights_read(
                to->widen, to->dim, (const char *)rows + i * row_bytes, scratch + i * to->dim);
        data = scratch;
    }
    HOTBED_TRY(hotbed_io_write(to->file, data, n * to->row_bytes, to->at));
    to->at += n * to->row_bytes;
    return HOTBED_OK;
}

/* Write a table's rows to the targets of its columns. */
static hotbed_status send_rows(
    hotbed_chain_table *from, const hotbed_chunk *chunk, float *scratch,
    target targets[HOTBED_ROW_COLUMNS], const hotbed_progress *progress, uint64_t *done,
    uint64_t total) {
    for (uint64_t n = 1; n > 0;) {
        HOTBED_TRY(hotbed_chain_table_next(from, chunk->capacity, chunk->columns, &n));
        for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
            if (targets[i].file != NULL)
                HOTBED_TRY(put(&targets[i], chunk->columns[i], n, from->row_bytes[i], scratch));
        *done += n;
        hotbed_progress_report(progress, *done, total);
    }
    return HOTBED_OK;
}

static hotbed_status send_table(
    hotbed_chain *chain, uint32_t table, target targets[HOTBED_ROW_COLUMNS],
    const hotbed_progress *progress, uint64_t *done, uint64_t total) {
    const uint32_t dim = hotbed_chain_last(chain)->tables[table].dim;
    hotbed_chain_table from;
    hotbed_chunk chunk = {.capacity = 0};
    float *scratch = NULL;
    hotbed_status status = hotbed_chain_table_open(chain, table, HOTBED_CHAIN_ROWS, &from);
    HOTBED_THEN(status, hotbed_chunk_create(from.row_bytes, &chunk));
    if (status == HOTBED_OK) {
        scratch = hotbed_new(chunk.capacity * dim * sizeof *scratch);
        status = HOTBED_CHECK_MEMORY(scratch, "rows of a table");
    }
    HOTBED_THEN(status, send_rows(&from, &chunk, scratch, targets, progress, done, total));
    hotbed_delete(scratch);
    hotbed_chunk_destroy(&chunk);
    hotbed_chain_table_close(&from);
    return status;
}

/* Count the rows of a table. For a chain with increments this reads all keys. */
static hotbed_status count_rows(hotbed_chain *chain, uint32_t table, uint64_t *rows) {
    hotbed_chain_table from;
    hotbed_chunk chunk = {.capacity = 0};
    *rows = chain->links[0].manifest.tables[table].rows;
    if (chain->n == 1)
        return HOTBED_OK;
    *rows = 0;
    hotbed_status status = hotbed_chain_table_open(chain, table, HOTBED_CHAIN_KEYS, &from);
    HOTBED_THEN(status, hotbed_chunk_create(from.row_bytes, &chunk));
    for (uint64_t n = 1; status == HOTBED_OK && n > 0; *rows += n)
        status = hotbed_chain_table_next(&from, chunk.capacity, chunk.columns, &n);
    hotbed_chunk_destroy(&chunk);
    hotbed_chain_table_close(&from);
    return status;
}

static uint64_t total_rows(const hotbed_chain *chain) {
    uint64_t total = 0;
    for (uint32_t t = 0; t < hotbed_chain_last(chain)->num_tables; t++)
        for (uint32_t i = 0; i < chain->n; i++)
            total += chain->links[i].manifest.tables[t].rows;
    return total;
}

/* --- .npy -------------------------------------------------------------------------------------------------- */

static const char *npy_type(
    const hotbed_manifest *m, const hotbed_manifest_table *t, uint32_t column) {
    if (column == HOTBED_COLUMN_KEYS)
        return hotbed_manifest_origin(m, t)->key_type == HOTBED_KEY_I64 ? "<i8" : "<u8";
    if (column == HOTBED_COLUMN_SCORES || column == HOTBED_COLUMN_TIMES)
        return "<u8";
    return hotbed_dtype_npy(hotbed_manifest_form(m, t, hotbed_manifest_types(t), column).dtype);
}

/* Write the header of .npy format 1.0: magic, length, a Python dict, blanks, a newline. */
static void npy_header(
    char header[HEADER_BYTES], const char *type, uint64_t rows, uint64_t width, bool flat) {
    char shape[48];
    if (flat)
        snprintf(shape, sizeof shape, "(%" PRIu64 ",)", rows);
    else
        snprintf(shape, sizeof shape, "(%" PRIu64 ", %" PRIu64 ")", rows, width);
    memset(header, ' ', HEADER_BYTES);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = HEADER_BYTES - 10;
    header[9] = 0;
    int n = snprintf(
        header + 10, HEADER_BYTES - 10, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
        type, shape);
    header[10 + n] = ' ';
    header[HEADER_BYTES - 1] = '\n';
}

static void npy_name(
    const hotbed_manifest *m, const hotbed_manifest_table *t, uint32_t column,
    char name[PATH_BYTES]) {
    snprintf(name, PATH_BYTES, "%s.%s.npy", t->name, column_title(m, t, column));
}

static hotbed_status open_npy(
    const hotbed_manifest *m, const hotbed_manifest_table *t, uint32_t column, uint64_t rows,
    const hotbed_io_file *directory, hotbed_io_file *file, target *out) {
    char name[PATH_BYTES], header[HEADER_BYTES];
    const char *type = npy_type(m, t, column);
    size_t width = hotbed_manifest_row_bytes(m, t, column);
    const hotbed_column_form form = hotbed_manifest_form(m, t, hotbed_manifest_types(t), column);
    *out = (target){.file = file, .at = HEADER_BYTES, .row_bytes = width, .dim = form.dim};
    if (form.dim != 0 && form.dtype != HOTBED_F32 && strcmp(type, "<f4") == 0) {
        out->widen = form.dtype;
        out->row_bytes = form.dim * sizeof(float);
    }
    bool flat = column == HOTBED_COLUMN_KEYS || column == HOTBED_COLUMN_SCORES ||
                column == HOTBED_COLUMN_TIMES ||
                (column >= HOTBED_COLUMN_STATE && column < HOTBED_COLUMN_TIMES &&
                 hotbed_state_is_one(
                     (uint32_t)hotbed_manifest_optimizer(m, t), column - HOTBED_COLUMN_STATE));
    npy_header(header, type, rows, out->row_bytes / (size_t)(type[2] - '0'), flat);
    npy_name(m, t, column, name);
    HOTBED_TRY(hotbed_io_open(directory->calls, directory, name, HOTBED_IO_CREATE, file));
    return hotbed_io_write(file, header, sizeof header, 0);
}

static hotbed_status export_npy_table(
    hotbed_chain *chain, uint32_t table, const hotbed_io_file *directory,
    const hotbed_progress *progress, uint64_t *done, uint64_t total) {
    const hotbed_manifest *m = hotbed_chain_last(chain);
    const hotbed_manifest_table *t = &m->tables[table];
    hotbed_io_file files[HOTBED_ROW_COLUMNS];
    target targets[HOTBED_ROW_COLUMNS] = {{.file = NULL}};
    uint64_t rows = 0;
    HOTBED_TRY(count_rows(chain, table, &rows));
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        files[i] = (hotbed_io_file)HOTBED_IO_CLOSED;
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS && status == HOTBED_OK; i++)
        if (is_out(m, t, i))
            status = open_npy(m, t, i, rows, directory, &files[i], &targets[i]);
    HOTBED_THEN(status, send_table(chain, table, targets, progress, done, total));
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS && status == HOTBED_OK; i++)
        if (targets[i].file != NULL) {
            status = hotbed_io_sync(&files[i]);
            HOTBED_THEN(status, hotbed_io_close(&files[i]));
        }
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        hotbed_io_drop(&files[i]);
    return status;
}

/* Remove what a failed export wrote. Keeps the error text. */
static void remove_npy(const hotbed_manifest *m, hotbed_draft *draft) {
    const hotbed_io_calls *calls = draft->parent.calls;
    char name[PATH_BYTES], path[2 * PATH_BYTES];
    hotbed_io_drop(&draft->directory);
    for (uint32_t t = 0; t < m->num_tables; t++)
        for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
            if (!is_out(m, &m->tables[t], i))
                continue;
            npy_name(m, &m->tables[t], i, name);
            snprintf(path, sizeof path, "%s/%s", draft->name, name);
            calls->remove(calls->self, draft->parent.handle, path, false);
        }
    calls->remove(calls->self, draft->parent.handle, draft->name, true);
}

static hotbed_status export_npy(
    hotbed_chain *chain, hotbed_draft *draft, const hotbed_progress *progress) {
    uint64_t done = 0, total = total_rows(chain);
    HOTBED_TRY(hotbed_draft_enter(draft));
    for (uint32_t t = 0; t < hotbed_chain_last(chain)->num_tables; t++)
        HOTBED_TRY(export_npy_table(chain, t, &draft->directory, progress, &done, total));
    return hotbed_draft_commit(draft, NULL);
}

hotbed_status hotbed_checkpoint_export_npy(
    const hotbed_io_calls *calls, hotbed_chain *chain, const char *path,
    const hotbed_progress *progress) {
    hotbed_checkpoint_id id;
    hotbed_draft draft;
    hotbed_status status = hotbed_draft_create(calls, path, &id, &draft);
    if (status == HOTBED_OK) {
        status = export_npy(chain, &draft, progress);
        if (status != HOTBED_OK)
            remove_npy(hotbed_chain_last(chain), &draft);
    }
    hotbed_draft_close(&draft);
    return status;
}

/* --- one HDF5 file ------------------------------------------------------------------------------------------- */

typedef struct h5_export {
    hotbed_chain *chain;
    uint64_t *rows;    /* [num_tables] */
    uint64_t *offsets; /* [num_tables * HOTBED_ROW_COLUMNS] */
} h5_export;

static hotbed_status put_datasets(h5_export *e, hotbed_h5 *h5) {
    const hotbed_manifest *m = hotbed_chain_last(e->chain);
    char path[2 * PATH_BYTES];
    for (uint32_t t = 0; t < m->num_tables; t++) {
        const hotbed_manifest_table *table = &m->tables[t];
        for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
            if (!is_out(m, table, i))
                continue;
            if (i < HOTBED_COLUMN_STATE || i == HOTBED_COLUMN_TIMES)
                snprintf(
                    path, sizeof path, "/embeddings/%s/%s",
                    strcmp(table->name, ".") == 0 ? "+" : table->name, column_title(m, table, i));
            else
                snprintf(
                    path, sizeof path, "/optimizer/embeddings.%s.weight/%s.%s", table->name,
                    table->name, column_title(m, table, i));
            HOTBED_TRY(hotbed_h5_dataset(
                h5, path, hotbed_layout_shape(m, table, i, e->rows[t]),
                &e->offsets[(size_t)t * HOTBED_ROW_COLUMNS + i]));
            if (i == HOTBED_COLUMN_VALUES) { /* int8 and fp8 rows are bytes in the file */
                HOTBED_TRY(hotbed_h5_text(h5, path, "dtype", hotbed_dtype_name(table->dtype)));
                HOTBED_TRY(hotbed_h5_number(h5, path, "dim", table->dim));
            }
        }
    }
    return HOTBED_OK;
}

static hotbed_status lay_out(h5_export *e, hotbed_h5_image *image) {
    size_t bytes = ((size_t)16 << 10) + (size_t)hotbed_chain_last(e->chain)->num_tables * 8192;
    *image = (hotbed_h5_image){.metadata = NULL};
    for (int i = 0; i < 8 && image->metadata == NULL; i++, bytes *= 2) {
        hotbed_h5 *h5;
        HOTBED_TRY(hotbed_h5_create(bytes, &h5));
        hotbed_status status = put_datasets(e, h5);
        HOTBED_THEN(status, hotbed_h5_finish(h5, image));
        hotbed_h5_destroy(h5);
        HOTBED_TRY(status);
    }
    if (image->metadata != NULL)
        return HOTBED_OK;
    bytes /= 2;
    return hotbed_fail_bound(
        HOTBED_ERR_UNSUPPORTED, bytes, "HDF5 metadata is over %zu bytes", bytes);
}

static hotbed_status write_h5(
    h5_export *e, const hotbed_h5_image *image, hotbed_io_file *file,
    const hotbed_progress *progress) {
    const hotbed_manifest *m = hotbed_chain_last(e->chain);
    uint64_t done = 0, total = total_rows(e->chain), bytes = 0;
    HOTBED_TRY(hotbed_io_write(file, image->metadata, image->metadata_bytes, 0));
    for (uint32_t t = 0; t < m->num_tables; t++) {
        target targets[HOTBED_ROW_COLUMNS] = {{.file = NULL}};
        for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
            if (is_out(m, &m->tables[t], i))
                targets[i] = (target){
                    .file = file,
                    .at = e->offsets[(size_t)t * HOTBED_ROW_COLUMNS + i],
                    .row_bytes = hotbed_manifest_row_bytes(m, &m->tables[t], i),
                };
        HOTBED_TRY(send_table(e->chain, t, targets, progress, &done, total));
    }
    HOTBED_TRY(hotbed_io_size(file, &bytes));
    if (bytes < image->file_bytes)
        HOTBED_TRY(hotbed_io_write(file, "", 1, image->file_bytes - 1));
    HOTBED_TRY(hotbed_io_sync(file));
    return hotbed_io_close(file);
}

/* Write the file under the draft's name, and rename it to its final name. */
static hotbed_status write_draft(
    h5_export *e, const hotbed_h5_image *image, hotbed_draft *draft,
    const hotbed_progress *progress) {
    const hotbed_io_calls *calls = draft->parent.calls;
    hotbed_io_file file = HOTBED_IO_CLOSED;
    HOTBED_TRY(hotbed_io_open(calls, &draft->parent, draft->name, HOTBED_IO_CREATE, &file));
    hotbed_status status = write_h5(e, image, &file, progress);
    hotbed_io_drop(&file);
    HOTBED_THEN(status, hotbed_draft_check_free(draft));
    HOTBED_THEN(status, hotbed_draft_rename(draft));
    if (status == HOTBED_OK) {
        status = hotbed_io_sync(&draft->parent);
        if (status == HOTBED_OK)
            return HOTBED_OK;
        /* The name may not survive a power failure, so the failed export removes it. */
        calls->rename_new(calls->self, draft->parent.handle, draft->final_name, draft->name);
    }
    calls->remove(calls->self, draft->parent.handle, draft->name, false);
    return status;
}

static hotbed_status export_h5(
    h5_export *e, const hotbed_io_calls *calls, const char *path, const hotbed_progress *progress) {
    hotbed_h5_image image;
    hotbed_checkpoint_id id;
    hotbed_draft draft;
    uint32_t tables = hotbed_chain_last(e->chain)->num_tables;
    e->rows = hotbed_new(tables * sizeof *e->rows);
    e->offsets = hotbed_new((size_t)tables * HOTBED_ROW_COLUMNS * sizeof *e->offsets);
    HOTBED_TRY_MEMORY(e->rows != NULL && e->offsets != NULL, "%" PRIu32 " tables", tables);
    HOTBED_TRY(hotbed_new_id(&id));
    for (uint32_t t = 0; t < tables; t++)
        HOTBED_TRY(count_rows(e->chain, t, &e->rows[t]));
    HOTBED_TRY(lay_out(e, &image));
    hotbed_status status = hotbed_draft_open(calls, path, id, &draft);
    HOTBED_THEN(status, hotbed_draft_check_free(&draft));
    HOTBED_THEN(status, write_draft(e, &image, &draft, progress));
    hotbed_draft_close(&draft);
    hotbed_delete(image.metadata);
    return status;
}

hotbed_status hotbed_checkpoint_export_h5(
    const hotbed_io_calls *calls, hotbed_chain *chain, const char *path,
    const hotbed_progress *progress) {
    h5_export e = {.chain = chain};
    hotbed_status status = export_h5(&e, calls, path, progress);
    hotbed_delete(e.rows);
    hotbed_delete(e.offsets);
    return status;
}
