/* checkpoint/verify.c - check every byte of a checkpoint, and compare the rows of two. */
#include "checkpoint/verify.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/format/bucket_core.h"
#include "checkpoint/shard_writer.h"
#include "storage/types.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- verify -------------------------------------------------------------------------------------------- */

typedef struct verifier {
    hotbed_chain_link link;
    const hotbed_progress *progress;
    uint64_t done, total;
} verifier;

/* Check the keys of COUNTED, with their counts, or of ERASED. */
static hotbed_status verify_keys(hotbed_part_reader *part, uint32_t column, uint64_t n) {
    uint64_t key = 0, count = 0;
    for (uint64_t i = 0; i < n; i++) {
        HOTBED_TRY(hotbed_part_reader_keys(part, column, 1, &key));
        if (column == HOTBED_COLUMN_COUNTED)
            HOTBED_TRY(hotbed_part_reader_counts(part, 1, &count));
    }
    return HOTBED_OK;
}

static hotbed_status verify_rows(verifier *v, hotbed_part_reader *part, hotbed_digest *content) {
    hotbed_chunk chunk;
    size_t row_bytes = 0;
    HOTBED_TRY(hotbed_chunk_create(part->row_bytes, &chunk));
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        row_bytes += part->row_bytes[i];
    unsigned char *row = hotbed_new(row_bytes);
    hotbed_status status = HOTBED_CHECK_MEMORY(row, "%zu bytes of a row", row_bytes);
    for (uint64_t left; status == HOTBED_OK && (left = hotbed_part_reader_left(part)) > 0;) {
        uint64_t n = left < chunk.capacity ? left : chunk.capacity;
        status = hotbed_part_reader_take(part, n, chunk.columns);
        if (status == HOTBED_OK)
            hotbed_digest_rows(n, chunk.columns, part->row_bytes, row, content, NULL);
        v->done += n;
        hotbed_progress_report(v->progress, v->done, v->total);
    }
    hotbed_delete(row);
    hotbed_chunk_destroy(&chunk);
    return status;
}

static hotbed_status verify_part(
    verifier *v, uint32_t shard, uint32_t table, hotbed_digest *content) {
    hotbed_part_reader part;
    hotbed_status status = hotbed_part_reader_open(&part, &v->link.shards[shard], table, true);
    HOTBED_THEN(status, verify_rows(v, &part, content));
    HOTBED_THEN(status, verify_keys(&part, HOTBED_COLUMN_COUNTED, part.part->counted));
    HOTBED_THEN(status, verify_keys(&part, HOTBED_COLUMN_ERASED, part.part->erased));
    hotbed_part_reader_close(&part);
    return status;
}

static hotbed_status verify_table(verifier *v, uint32_t table) {
    const hotbed_manifest *m = &v->link.manifest;
    hotbed_digest content = {0};
    for (uint32_t s = 0; s < m->world; s++)
        HOTBED_TRY(verify_part(v, s, table, &content));
    if (hotbed_digest_equal(content, m->tables[table].content))
        return HOTBED_OK;
    return hotbed_fail_path(
        HOTBED_ERR_CORRUPT, v->link.directory.name,
        "%s: %s: its rows differ from the rows that were saved (content)", v->link.directory.name,
        m->tables[table].name);
}

/* Check the whole index, all of which is HDF5 metadata. */
static hotbed_status verify_views(const hotbed_manifest *m, hotbed_io_file *file) {
    void *index = hotbed_new(m->index_bytes);
    HOTBED_TRY_MEMORY(index, "%" PRIu64 " bytes of the index", m->index_bytes);
    hotbed_status status = hotbed_io_read(file, index, m->index_bytes, 0);
    HOTBED_THEN(status, hotbed_layout_check_index(m, file->name, index));
    hotbed_delete(index);
    return status;
}

/* Check that a file of the checkpoint is a plain file of `right` bytes. */
static hotbed_status check_file(const hotbed_io_file *directory, const char *name, uint64_t right) {
    hotbed_io_file file = HOTBED_IO_CLOSED;
    uint64_t bytes = 0;
    HOTBED_TRY(hotbed_io_open_member(directory, name, &file));
    hotbed_status status = hotbed_io_size(&file, &bytes);
    if (status == HOTBED_OK && bytes != right)
        status = hotbed_fail_path_limit(
            HOTBED_ERR_CORRUPT, file.name, NULL, bytes, right,
            "%s has %" PRIu64 " bytes, expected %" PRIu64, file.name, bytes, right);
    hotbed_io_drop(&file);
    return status;
}

hotbed_status hotbed_checkpoint_check_files(
    const hotbed_io_file *directory, const hotbed_manifest *m) {
    for (uint32_t s = 0; s < m->world; s++)
        HOTBED_TRY(check_file(directory, hotbed_shard_name(s, m->world).text, m->shards[s].bytes));
    return check_file(directory, HOTBED_INDEX_NAME, m->index_bytes);
}

/* Open the index, and check its size and digest. The caller must drop *out even after an error. */
static hotbed_status open_index(const hotbed_chain_link *link, hotbed_io_file *out) {
    const hotbed_manifest *m = &link->manifest;
    *out = (hotbed_io_file)HOTBED_IO_CLOSED;
    HOTBED_TRY(check_file(&link->directory, HOTBED_INDEX_NAME, m->index_bytes));
    HOTBED_TRY(hotbed_io_open_member(&link->directory, HOTBED_INDEX_NAME, out));
    return hotbed_extent_check_bytes(out, "the index", 0, m->index_bytes, m->index, m->block_bytes);
}

hotbed_status hotbed_checkpoint_check_index(const hotbed_chain_link *link) {
    hotbed_io_file file;
    const hotbed_status status = open_index(link, &file);
    hotbed_io_drop(&file);
    return status;
}

static hotbed_status verify_index(verifier *v) {
    hotbed_io_file file;
    hotbed_status status = open_index(&v->link, &file);
    HOTBED_THEN(status, verify_views(&v->link.manifest, &file));
    hotbed_io_drop(&file);
    return status;
}

static hotbed_status only_zeros(hotbed_io_file *file, uint64_t from, uint64_t end) {
    unsigned char buffer[4096];
    while (from < end) {
        size_t n = end - from < sizeof buffer ? (size_t)(end - from) : sizeof buffer;
        HOTBED_TRY(hotbed_io_read(file, buffer, n, from));
        for (size_t i = 0; i < n; i++)
            if (buffer[i] != 0)
                return hotbed_fail_path_value(
                    HOTBED_ERR_CORRUPT, file->name, NULL, from + i,
                    "%s: byte %" PRIu64 " is in no extent, and not zero", file->name, from + i);
        from += n;
    }
    return HOTBED_OK;
}

/* Check that all bytes between the extents are zero, so that nothing is hidden there. */
static hotbed_status verify_gaps(verifier *v, uint32_t number) {
    const hotbed_manifest *m = &v->link.manifest;
    const hotbed_manifest_shard *shard = &m->shards[number];
    hotbed_extent *spans = NULL;
    size_t n = 0;
    HOTBED_TRY(hotbed_manifest_extents(m, number, &spans, &n));
    uint64_t at = shard->metadata_bytes;
    hotbed_status status = HOTBED_OK;
    for (size_t i = 0; i < n && status == HOTBED_OK; i++) {
        if (spans[i].offset > at)
            status = only_zeros(&v->link.shards[number].file, at, spans[i].offset);
        const uint64_t end = spans[i].offset + spans[i].bytes;
        at = end > at ? end : at;
    }
    hotbed_delete(spans);
    HOTBED_TRY(status);
    return only_zeros(&v->link.shards[number].file, at, shard->bytes);
}

/* Check the HDF5 metadata, so that nothing is hidden in it and h5py shows what MANIFEST says. */
static hotbed_status verify_layout(verifier *v, uint32_t number) {
    const hotbed_manifest *m = &v->link.manifest;
    hotbed_shard_reader *shard = &v->link.shards[number];
    uint64_t bytes = m->shards[number].metadata_bytes;
    void *metadata = hotbed_new(bytes);
    HOTBED_TRY_MEMORY(metadata, "%" PRIu64 " bytes of metadata", bytes);
    hotbed_status status = hotbed_io_read(&shard->file, metadata, bytes, 0);
    HOTBED_THEN(status, hotbed_layout_check(m, number, shard->file.name, metadata));
    hotbed_delete(metadata);
    return status;
}

static hotbed_status verify(verifier *v) {
    const hotbed_manifest *m = &v->link.manifest;
    for (uint32_t t = 0; t < m->num_tables; t++)
        v->total += m->tables[t].rows;
    HOTBED_TRY(verify_index(v));
    for (uint32_t s = 0; s < m->world; s++) {
        HOTBED_TRY(verify_gaps(v, s));
        HOTBED_TRY(verify_layout(v, s));
    }
    for (uint32_t i = 0; i < m->num_blobs; i++) {
        const hotbed_extent *blob = &m->blobs[i].extent;
        HOTBED_TRY(hotbed_extent_check_bytes(
            &v->link.shards[0].file, m->blobs[i].name, blob->offset, blob->bytes, blob->root,
            m->block_bytes));
    }
    for (uint32_t t = 0; t < m->num_tables; t++)
        HOTBED_TRY(verify_table(v, t));
    return HOTBED_OK;
}

hotbed_status hotbed_checkpoint_verify(
    const hotbed_io_calls *calls, const char *path, const hotbed_progress *progress) {
    verifier v = {.progress = progress};
    hotbed_status status = hotbed_chain_link_open(calls, path, &v.link);
    HOTBED_THEN(status, verify(&v));
    hotbed_chain_link_close(&v.link);
    return status;
}

hotbed_status hotbed_checkpoint_verify_quick(const hotbed_io_calls *calls, const char *path) {
    hotbed_chain_link link;
    hotbed_status status = hotbed_chain_link_open(calls, path, &link);
    HOTBED_THEN(status, hotbed_checkpoint_check_index(&link));
    hotbed_chain_link_close(&link);
    return status;
}

/* --- diff ------------------------------------------------------------------------------------------------ */

/* One of the two chains. */
typedef struct side {
    hotbed_chain_table table;
    hotbed_chunk chunk;
    uint64_t at, n;
    uint64_t bucket, key; /* of row `at` */
    hotbed_optimizer_kind optimizer;
} side;

static hotbed_status look(side *s) {
    if (s->at == s->n) {
        s->at = 0;
        HOTBED_TRY(hotbed_chain_table_next(&s->table, s->chunk.capacity, s->chunk.columns, &s->n));
        if (s->n == 0)
            return HOTBED_OK;
    }
    s->key = ((const uint64_t *)s->chunk.columns[HOTBED_COLUMN_KEYS])[s->at];
    s->bucket = s->table.hash ? hotbed_logical_bucket(s->key, s->table.bucket_bits) : 0;
    return HOTBED_OK;
}

static hotbed_status step(side *s) {
    s->at++;
    return look(s);
}

static bool is_state(uint32_t column) {
    return column == HOTBED_COLUMN_STATE || column == HOTBED_COLUMN_STATE + 1;
}

static bool is_score(uint32_t column) {
    return column != HOTBED_COLUMN_VALUES && !is_state(column);
}

/* Whether a column is compared: both chains must have it, with the same meaning. Times may exist on
 * one side only, and states depend on the optimizer. */
static bool is_compared(const side *a, const side *b, uint32_t column) {
    if (a->table.kind == HOTBED_CHAIN_COUNTED)
        return column == HOTBED_COLUMN_SCORES; /* the counts are in this column */
    return a->table.row_bytes[column] > 0 && b->table.row_bytes[column] > 0 &&
           (!is_state(column) || a->optimizer == b->optimizer);
}

static void compare_rows(
    const side *a, const side *b, const hotbed_manifest_table *t, bool ignore_scores,
    hotbed_difference *out) {
    bool weights = false, states = false, scores = false;
    for (uint32_t i = HOTBED_COLUMN_VALUES; i < HOTBED_ROW_COLUMNS; i++) {
        size_t width = a->table.row_bytes[i];
        const bool is_row = a->table.kind != HOTBED_CHAIN_COUNTED;
        if (!is_compared(a, b, i) || (is_row && ignore_scores && is_score(i)))
            continue;
        const char *x = (const char *)a->chunk.columns[i] + a->at * width;
        const char *y = (const char *)b->chunk.columns[i] + b->at * width;
        if (memcmp(x, y, width) == 0)
            continue;
        states = states || is_state(i);
        scores = scores || is_score(i);
        if (i != HOTBED_COLUMN_VALUES)
            continue;
        weights = true;
        float values[2][HOTBED_DIM_MOST];
        hotbed_weights_read(t->dtype, t->dim, x, values[0]);
        hotbed_weights_read(t->dtype, t->dim, y, values[1]);
        for (uint32_t e = 0; e < t->dim; e++) {
            const double d = fabs((double)values[0][e] - (double)values[1][e]);
            if (!isfinite(d))
                out->not_finite++;
            else if (d > out->largest)
                out->largest = d;
        }
    }
    out->changed += weights || states || scores;
    out->weights += weights;
    out->states += states;
    out->scores += scores;
}

static hotbed_status compare(
    side *a, side *b, const hotbed_manifest_table *t, bool ignore_scores, uint64_t total,
    const hotbed_progress *progress, hotbed_difference *out) {
    HOTBED_TRY(look(a));
    HOTBED_TRY(look(b));
    for (uint64_t done = 0; a->n > 0 || b->n > 0; done++) {
        bool same = a->n > 0 && b->n > 0 && a->bucket == b->bucket && a->key == b->key;
        bool of_a =
            b->n == 0 ||
            (a->n > 0 && (a->bucket < b->bucket || (a->bucket == b->bucket && a->key < b->key)));
        if (same)
            compare_rows(a, b, t, ignore_scores, out);
        else if (of_a)
            out->removed++;
        else
            out->added++;
        if (same || of_a)
            HOTBED_TRY(step(a));
        if (same || !of_a)
            HOTBED_TRY(step(b));
        if (done % 4096 == 0)
            hotbed_progress_report(progress, done, total);
    }
    return HOTBED_OK;
}

static hotbed_status open_side(
    hotbed_chain *chain, uint32_t table, hotbed_chain_kind kind, side *out) {
    const hotbed_manifest *m = hotbed_chain_last(chain);
    out->optimizer = hotbed_manifest_optimizer(m, &m->tables[table]);
    HOTBED_TRY(hotbed_chain_table_open(chain, table, kind, &out->table));
    return hotbed_chunk_create(out->table.row_bytes, &out->chunk);
}

static void close_side(side *s) {
    hotbed_chunk_destroy(&s->chunk);
    hotbed_chain_table_close(&s->table);
}

hotbed_status hotbed_checkpoint_diff(
    hotbed_chain *a, uint32_t table_a, hotbed_chain *b, uint32_t table_b, hotbed_chain_kind kind,
    bool ignore_scores, const hotbed_progress *progress, hotbed_difference *out) {
    const hotbed_manifest *x = hotbed_chain_last(a), *y = hotbed_chain_last(b);
    const hotbed_manifest_table *t = &x->tables[table_a], *u = &y->tables[table_b];
    *out = (hotbed_difference){.added = 0};
    const bool states = hotbed_manifest_optimizer(x, t) == hotbed_manifest_optimizer(y, u);
    if (t->kind != u->kind || t->dtype != u->dtype || t->dim != u->dim ||
        t->bucket_bits != u->bucket_bits || (states && t->state_dtype != u->state_dtype))
        return hotbed_fail_table(
            HOTBED_ERR_STATE, t->name,
            "table '%s': kind, dtype, dim, buckets or the type of states differ: %s, dim %" PRIu32
            ", 2^%" PRIu32 " buckets, states %s, and %s, dim %" PRIu32 ", 2^%" PRIu32 ", states %s",
            t->name, hotbed_dtype_name(t->dtype), t->dim, t->bucket_bits,
            hotbed_dtype_name(t->state_dtype), hotbed_dtype_name(u->dtype), u->dim, u->bucket_bits,
            hotbed_dtype_name(u->state_dtype));
    side s[2] = {{.n = 0}, {.n = 0}};
    hotbed_status status = open_side(a, table_a, kind, &s[0]);
    HOTBED_THEN(status, open_side(b, table_b, kind, &s[1]));
    if (status == HOTBED_OK)
        status = compare(
            &s[0], &s[1], t, ignore_scores, t->rows > u->rows ? t->rows : u->rows, progress, out);
    close_side(&s[0]);
    close_side(&s[1]);
    return status;
}
