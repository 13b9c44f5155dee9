/* checkpoint/layout.c - the groups, datasets and attributes of a shard and of the index. */
#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/stream.h"
#include "hotbed/version.h"
#include "storage/types.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 256, TRIES = 8 };

/* Bytes reserved for the metadata of a shard, and of each of its tables, storages and blobs. A table
 * with every column uses slightly less. In an index nothing follows the metadata, so libhdf5
 * allocates as much as it needs, in steps. */
enum {
    METADATA_BYTES = 4 << 10,
    METADATA_BYTES_TABLE = 4 << 10,
    METADATA_BYTES_STORAGE = 2 << 10,
    METADATA_BYTES_BLOB = 1 << 9,
    INDEX_STEP = 2 << 10,
};
enum { LAYOUT = 4 }; /* incremented when the same manifest gets other bytes */

static const char *const key_types[] = {"", "i64", "u64"};
static const char *const poolings[] = {"none", "sum", "mean"};

/* Return a name as a part of an HDF5 path, where "." alone would mean the group itself. */
static const char *part_name(const char *name) {
    return strcmp(name, ".") == 0 ? "+" : name;
}

static const char *optimizer_name(hotbed_optimizer_kind kind) {
    return kind == 0 ? "none" : hotbed_optimizer_name(kind);
}

/* Return a state's name, without "opt/". */
static const char *state_name(hotbed_optimizer_kind optimizer, uint32_t column) {
    return hotbed_manifest_column_name(optimizer, column) + strlen("opt/");
}

hotbed_h5_shape hotbed_layout_shape(
    const hotbed_manifest *m, const hotbed_manifest_table *table, uint32_t column, uint64_t rows) {
    const hotbed_manifest_storage *origin = hotbed_manifest_origin(m, table);
    hotbed_h5_shape shape = {.type = HOTBED_H5_U64, .rows = rows, .width = 0};
    if (column == HOTBED_COLUMN_VALUES) {
        shape.width = table->dim;
        switch (table->dtype) {
        case HOTBED_F32:
            shape.type = HOTBED_H5_F32;
            break;
        case HOTBED_F16:
            shape.type = HOTBED_H5_F16;
            break;
        case HOTBED_BF16:
            shape.type = HOTBED_H5_BF16;
            break;
        case HOTBED_INT8:
        case HOTBED_FP8:
            shape.type = HOTBED_H5_U8;
            shape.width = hotbed_dtype_row_bytes(table->dtype, table->dim);
            break;
        }
    }
    bool keys = column == HOTBED_COLUMN_KEYS || column == HOTBED_COLUMN_COUNTED ||
                column == HOTBED_COLUMN_ERASED;
    if (keys && origin->key_type == HOTBED_KEY_I64)
        shape.type = HOTBED_H5_I64;
    if (column >= HOTBED_COLUMN_STATE && column < HOTBED_COLUMN_TIMES) {
        shape.type = hotbed_manifest_form(m, table, hotbed_manifest_types(table), column).dtype ==
                             HOTBED_BF16
                         ? HOTBED_H5_BF16
                         : HOTBED_H5_F32;
        /* One number per row is a vector, as in TorchRec. */
        if (!hotbed_state_is_one((uint32_t)origin->optimizer.kind, column - HOTBED_COLUMN_STATE))
            shape.width = hotbed_optimizer_state_dim(
                origin->optimizer.kind, column - HOTBED_COLUMN_STATE, table->dim);
    }
    return shape;
}

static uint64_t rows_of(const hotbed_manifest_part *part, uint32_t column) {
    switch (column) {
    case HOTBED_COLUMN_BUCKET:
        return part->columns[column].bytes / sizeof(uint64_t);
    case HOTBED_COLUMN_COUNTED:
    case HOTBED_COLUMN_COUNTS:
        return part->counted;
    case HOTBED_COLUMN_ERASED:
        return part->erased;
    default:
        return part->rows;
    }
}

/* --- the shard ------------------------------------------------------------------------------------ */

/* Write the attributes of the root group. Creation time and state differ between ranks. MANIFEST
 * has the values of rank 0, so only shard 0 and the index have them (`first`). */
static hotbed_status put_head(
    hotbed_h5 *h5, const hotbed_manifest *m, const char *role, bool first) {
    HOTBED_TRY(hotbed_h5_text(h5, "/", "format", "hotbed-checkpoint"));
    HOTBED_TRY(hotbed_h5_number(h5, "/", "version", HOTBED_FORMAT));
    HOTBED_TRY(hotbed_h5_text(h5, "/", "kind", m->increment ? "delta" : "full"));
    HOTBED_TRY(hotbed_h5_text(h5, "/", "role", role));
    HOTBED_TRY(hotbed_h5_text(h5, "/", "writer", m->writer));
    HOTBED_TRY(hotbed_h5_text(h5, "/", "checkpoint_id", hotbed_digest_text(m->id).text));
    HOTBED_TRY(hotbed_h5_number(h5, "/", "step", m->step));
    if (first)
        HOTBED_TRY(hotbed_h5_number(h5, "/", "created_unix_ns", m->created_ns));
    return hotbed_h5_number(h5, "/", "world", m->world);
}

/* As in MANIFEST. The learning rate is of the state. */
static hotbed_status put_parameters(hotbed_h5 *h5, const char *at, const hotbed_optimizer *o) {
    const hotbed_optimizer_info *info = hotbed_optimizer_describe(o->kind);
    const uint32_t used = ((info == NULL ? 0 : info->parameters) | HOTBED_USES_IN_EVERY_LINE) &
                          ~(uint32_t)HOTBED_USES_LEARNING_RATE;
    const hotbed_optimizer_parameter *p;
    for (uint32_t i = 0; (p = hotbed_optimizer_parameter_at(i)) != NULL; i++)
        if ((used >> i & 1U) != 0 && ((HOTBED_USES_IN_EVERY_LINE >> i & 1U) != 0 ||
                                      hotbed_optimizer_value(o, p) != 0.0F)) /* as in MANIFEST */
            HOTBED_TRY(hotbed_h5_real(h5, at, p->name, hotbed_optimizer_value(o, p)));
    return HOTBED_OK;
}

static hotbed_status put_storage(
    hotbed_h5 *h5, const hotbed_manifest_storage *m, uint32_t number, bool first) {
    char at[PATH_BYTES];
    snprintf(at, sizeof at, "/storages/%" PRIu32, number);
    HOTBED_TRY(hotbed_h5_group(h5, at));
    HOTBED_TRY(hotbed_h5_text(h5, at, "name", m->name));
    HOTBED_TRY(hotbed_h5_text(h5, at, "pooling", poolings[m->pooling]));
    HOTBED_TRY(hotbed_h5_text(h5, at, "key_type", key_types[m->key_type]));
    HOTBED_TRY(hotbed_h5_number(h5, at, "seed", m->seed));
    HOTBED_TRY(hotbed_h5_text(h5, at, "optimizer", optimizer_name(m->optimizer.kind)));
    HOTBED_TRY(put_parameters(h5, at, &m->optimizer));
    if (!first)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_h5_real(h5, at, "learning_rate", m->state.learning_rate));
    HOTBED_TRY(hotbed_h5_number(h5, at, "optimizer_steps", m->state.optimizer_steps));
    HOTBED_TRY(hotbed_h5_number(h5, at, "clock", m->state.clock));
    HOTBED_TRY(hotbed_h5_number(h5, at, "time", m->state.time));
    HOTBED_TRY(hotbed_h5_real(h5, at, "beta1_power", m->state.beta1_power));
    return hotbed_h5_real(h5, at, "beta2_power", m->state.beta2_power);
}

static hotbed_status put_storages(hotbed_h5 *h5, const hotbed_manifest *m, bool first) {
    HOTBED_TRY(hotbed_h5_group(h5, "/storages"));
    for (uint32_t i = 0; i < m->num_storages; i++)
        HOTBED_TRY(put_storage(h5, &m->storages[i], i, first));
    return HOTBED_OK;
}

static hotbed_status put_blobs(hotbed_h5 *h5, hotbed_manifest *m) {
    HOTBED_TRY(hotbed_h5_group(h5, "/blobs"));
    for (uint32_t i = 0; i < m->num_blobs; i++) {
        hotbed_extent *extent = &m->blobs[i].extent;
        hotbed_h5_shape shape = {.type = HOTBED_H5_U8, .rows = extent->bytes};
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "/blobs/%s", part_name(m->blobs[i].name));
        HOTBED_TRY(hotbed_h5_dataset(h5, path, shape, &extent->offset));
        HOTBED_TRY(hotbed_h5_number(h5, path, "first_block", extent->first_block));
    }
    return HOTBED_OK;
}

static hotbed_status put_table(
    hotbed_h5 *h5, const hotbed_manifest *m, const hotbed_manifest_table *table, uint32_t shard) {
    hotbed_manifest_part *part = &m->parts[(uint64_t)(table - m->tables) * m->world + shard];
    char at[PATH_BYTES / 2], fqn[PATH_BYTES], path[PATH_BYTES];
    snprintf(at, sizeof at, "/tables/%s", part_name(table->name));
    snprintf(fqn, sizeof fqn, "embeddings.%s.weight", table->name);
    HOTBED_TRY(hotbed_h5_group(h5, at));
    HOTBED_TRY(hotbed_h5_text(h5, at, "fqn", fqn));
    HOTBED_TRY(hotbed_h5_number(h5, at, "storage", table->storage));
    HOTBED_TRY(hotbed_h5_number(h5, at, "rows", part->rows));
    HOTBED_TRY(hotbed_h5_number(h5, at, "dim", table->dim));
    HOTBED_TRY(hotbed_h5_text(h5, at, "dtype", hotbed_dtype_name(table->dtype)));
    if (table->kind == HOTBED_TABLE_HASH) {
        HOTBED_TRY(hotbed_h5_text(h5, at, "table_kind", "hash"));
        HOTBED_TRY(hotbed_h5_text(h5, at, "key_hash", "fmix64"));
        HOTBED_TRY(hotbed_h5_text(h5, at, "row_order", "bucket,key"));
        HOTBED_TRY(hotbed_h5_number(h5, at, "num_buckets", (uint64_t)1 << table->bucket_bits));
        HOTBED_TRY(hotbed_h5_number(h5, at, "first_bucket", part->first));
        HOTBED_TRY(hotbed_h5_number(h5, at, "end_bucket", part->end));
    } else {
        HOTBED_TRY(hotbed_h5_text(h5, at, "table_kind", "static"));
        const bool deals = hotbed_manifest_deals(m, table);
        const hotbed_row_numbers numbers = hotbed_manifest_numbers(m, table, shard);
        HOTBED_TRY(hotbed_h5_text(h5, at, "row_order", "row"));
        HOTBED_TRY(hotbed_h5_number(h5, at, "first_row", numbers.first));
        HOTBED_TRY(hotbed_h5_number(h5, at, "end_row", deals ? table->route_rows : part->end));
        if (deals)
            HOTBED_TRY(hotbed_h5_number(h5, at, "row_step", numbers.step));
    }
    static const char *const groups[] = {"opt", "admission"};
    const bool has[] = {
        hotbed_manifest_has(m, table, HOTBED_COLUMN_STATE),
        hotbed_manifest_has(m, table, HOTBED_COLUMN_COUNTED)};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", at, groups[i]);
        if (has[i])
            HOTBED_TRY(hotbed_h5_group(h5, path));
    }
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
        if (!hotbed_manifest_has(m, table, i))
            continue;
        hotbed_extent *extent = &part->columns[i];
        snprintf(
            path, sizeof path, "%s/%s", at,
            hotbed_manifest_column_name(hotbed_manifest_optimizer(m, table), i));
        HOTBED_TRY(hotbed_h5_dataset(
            h5, path, hotbed_layout_shape(m, table, i, rows_of(part, i)), &extent->offset));
        HOTBED_TRY(hotbed_h5_number(h5, path, "first_block", extent->first_block));
    }
    return HOTBED_OK;
}

static hotbed_status put_shard(hotbed_h5 *h5, hotbed_manifest *m, uint32_t number) {
    hotbed_manifest_shard *shard = &m->shards[number];
    HOTBED_TRY(put_head(h5, m, "shard", number == 0));
    HOTBED_TRY(hotbed_h5_text(h5, "/", "byte_order", "little"));
    HOTBED_TRY(hotbed_h5_number(h5, "/", "shard", number));
    HOTBED_TRY(put_storages(h5, m, number == 0));
    if (number == 0)
        HOTBED_TRY(put_blobs(h5, m));
    HOTBED_TRY(hotbed_h5_group(h5, "/tables"));
    for (uint32_t t = 0; t < m->num_tables; t++)
        HOTBED_TRY(put_table(h5, m, &m->tables[t], number));
    hotbed_h5_shape blocks = {.type = HOTBED_H5_U64, .rows = shard->num_blocks, .width = 2};
    HOTBED_TRY(hotbed_h5_group(h5, "/integrity"));
    HOTBED_TRY(hotbed_h5_dataset(h5, "/integrity/blocks", blocks, &shard->blocks.offset));
    HOTBED_TRY(hotbed_h5_text(h5, "/integrity", "algorithm", "xxh3_128"));
    return hotbed_h5_number(h5, "/integrity", "block_bytes", m->block_bytes);
}

hotbed_status hotbed_layout_shard(hotbed_manifest *m, uint32_t number, void **metadata) {
    size_t bytes = METADATA_BYTES + (size_t)m->num_tables * METADATA_BYTES_TABLE +
                   (size_t)m->num_storages * METADATA_BYTES_STORAGE +
                   (number == 0 ? (size_t)m->num_blobs * METADATA_BYTES_BLOB : 0);
    for (int i = 0; i < TRIES; i++, bytes *= 2) {
        hotbed_h5 *h5;
        hotbed_h5_image image = {.metadata = NULL};
        HOTBED_TRY(hotbed_h5_create(bytes, &h5));
        hotbed_status status = put_shard(h5, m, number);
        HOTBED_THEN(status, hotbed_h5_finish(h5, &image));
        hotbed_h5_destroy(h5);
        HOTBED_TRY(status);
        if (image.metadata == NULL)
            continue;
        m->shards[number].bytes = image.file_bytes;
        m->shards[number].metadata_bytes = image.metadata_bytes;
        m->shards[number].metadata =
            hotbed_digest_root(image.metadata, image.metadata_bytes, m->block_bytes);
        *metadata = image.metadata;
        return HOTBED_OK;
    }
    bytes /= 2;
    return hotbed_fail_bound(
        HOTBED_ERR_UNSUPPORTED, bytes, "HDF5 metadata of %" PRIu32 " tables is over %zu bytes",
        m->num_tables, bytes);
}

void hotbed_layout_writer(char name[64]) {
    char version[32];
    hotbed_h5_version(version);
    snprintf(name, 64, "hotbed-%.16s-layout-%d-hdf5-%.16s", hotbed_version(), LAYOUT, version);
}

/* Copy *m, so that the layout may change its shards and parts. */
static hotbed_status copy_manifest(const hotbed_manifest *m, hotbed_manifest *out) {
    *out = *m;
    HOTBED_TRY(hotbed_manifest_reserve(out));
    memcpy(out->storages, m->storages, m->num_storages * sizeof *m->storages);
    memcpy(out->blobs, m->blobs, m->num_blobs * sizeof *m->blobs);
    memcpy(out->shards, m->shards, m->world * sizeof *m->shards);
    memcpy(out->tables, m->tables, m->num_tables * sizeof *m->tables);
    memcpy(out->parts, m->parts, (size_t)m->num_tables * m->world * sizeof *m->parts);
    return HOTBED_OK;
}

/* Whether another version of the library wrote *m. This version cannot reproduce the bytes of its
 * files. */
static bool is_anothers(const hotbed_manifest *m) {
    char writer[64];
    hotbed_layout_writer(writer);
    return strcmp(writer, m->writer) != 0;
}

/* Compare metadata that was found in a file with metadata that was made again. */
static hotbed_status compare(
    const hotbed_manifest *m, const char *file, const void *found, const void *made, uint64_t bytes,
    bool same_size) {
    uint64_t at = 0;
    while (same_size && at < bytes && ((const char *)made)[at] == ((const char *)found)[at])
        at++;
    if (same_size && at == bytes)
        return HOTBED_OK;
    return hotbed_fail_path_value(
        HOTBED_ERR_CORRUPT, file, NULL, at,
        "%s: its HDF5 metadata is not what %s makes for this MANIFEST, from byte %" PRIu64 " on",
        file, m->writer, at);
}

hotbed_status hotbed_layout_check(
    const hotbed_manifest *m, uint32_t number, const char *file, const void *metadata) {
    hotbed_manifest again;
    void *made = NULL;
    if (is_anothers(m))
        return HOTBED_OK;
    HOTBED_TRY(copy_manifest(m, &again));
    hotbed_status status = hotbed_layout_shard(&again, number, &made);
    const hotbed_manifest_shard *x = &m->shards[number], *y = &again.shards[number];
    if (status == HOTBED_OK)
        status = compare(
            m, file, metadata, made, x->metadata_bytes,
            x->metadata_bytes == y->metadata_bytes && x->bytes == y->bytes);
    hotbed_delete(made);
    hotbed_manifest_free(&again);
    return status;
}

hotbed_status hotbed_layout_check_index(
    const hotbed_manifest *m, const char *file, const void *index) {
    void *made = NULL;
    size_t bytes = 0;
    if (is_anothers(m))
        return HOTBED_OK;
    hotbed_status status = hotbed_layout_index(m, &made, &bytes);
    HOTBED_THEN(status, compare(m, file, index, made, bytes, bytes == m->index_bytes));
    hotbed_delete(made);
    return status;
}

/* --- the index ------------------------------------------------------------------------------------ */

static const char how_to_read[] =
    "The tables as views of the shard files, under the names of a PyTorch state dict: "
    "/state_dict/embeddings.<table>.weight has a row a key, .weight_id the keys, .metadata the "
    "scores, "
    ".bucket, where there is one, the rows of each logical bucket. A shard that is missing reads "
    "as NaN (weight_id: the "
    "least number). MANIFEST names every file and its digest.";

/* Add a view of a column: its parts, one after the other, or its rows in the order of their
 * numbers. */
static hotbed_status put_view(
    hotbed_h5 *h5, const hotbed_manifest *m, uint32_t number, uint32_t column, const char *path,
    hotbed_h5_source *sources, const hotbed_file_name *files) {
    const hotbed_manifest_table *table = &m->tables[number];
    char source[PATH_BYTES];
    snprintf(
        source, sizeof source, "/tables/%s/%s", part_name(table->name),
        hotbed_manifest_column_name(hotbed_manifest_optimizer(m, table), column));
    uint64_t rows = 0;
    for (uint32_t i = 0; i < m->world; i++) {
        const hotbed_manifest_part *part = &m->parts[(uint64_t)number * m->world + i];
        sources[i] = (hotbed_h5_source){
            .file = files[i].text,
            .path = source,
            .first = rows,
            .step = 1,
            .rows = rows_of(part, column)};
        rows += sources[i].rows;
        if (m->increment || !hotbed_manifest_deals(m, table))
            continue; /* the parts follow each other */
        const hotbed_row_numbers numbers = hotbed_manifest_numbers(m, table, i);
        sources[i].first = numbers.first;
        sources[i].step = numbers.step;
    }
    return hotbed_h5_view(h5, path, hotbed_layout_shape(m, table, column, rows), sources, m->world);
}

/* Whether the bucket columns of all shards together cover all buckets. */
static bool counts_all(const hotbed_manifest *m, uint32_t number) {
    const hotbed_manifest_table *table = &m->tables[number];
    uint64_t counted = 0;
    for (uint32_t i = 0; i < m->world; i++)
        counted += rows_of(&m->parts[(uint64_t)number * m->world + i], HOTBED_COLUMN_BUCKET);
    return table->spread == HOTBED_SPREAD_BUCKET && counted == hotbed_manifest_range(table);
}

static hotbed_status put_views(
    hotbed_h5 *h5, const hotbed_manifest *m, uint32_t number, hotbed_h5_source *sources,
    const hotbed_file_name *files) {
    static const char *const names[] = {"weight_id", "weight", "metadata", "bucket"};
    const hotbed_manifest_table *table = &m->tables[number];
    char path[PATH_BYTES], link[PATH_BYTES];
    snprintf(path, sizeof path, "/embeddings/%s", part_name(table->name));
    HOTBED_TRY(hotbed_h5_group(h5, path));
    snprintf(path, sizeof path, "/optimizer/embeddings.%s.weight", table->name);
    if (hotbed_manifest_has(m, table, HOTBED_COLUMN_STATE))
        HOTBED_TRY(hotbed_h5_group(h5, path));
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        if ((i == HOTBED_COLUMN_BUCKET && !counts_all(m, number)) ||
            !hotbed_manifest_has(m, table, i))
            continue;
        if (i < HOTBED_COLUMN_STATE || i == HOTBED_COLUMN_TIMES)
            snprintf(
                path, sizeof path, "/embeddings/%s/%s", part_name(table->name),
                i == HOTBED_COLUMN_TIMES ? "times" : names[i]);
        else
            snprintf(
                path, sizeof path, "/optimizer/embeddings.%s.weight/%s.%s", table->name,
                table->name, state_name(hotbed_manifest_optimizer(m, table), i));
        HOTBED_TRY(put_view(h5, m, number, i, path, sources, files));
        if (i >= HOTBED_COLUMN_STATE)
            continue;
        snprintf(link, sizeof link, "/state_dict/embeddings.%s.%s", table->name, names[i]);
        HOTBED_TRY(hotbed_h5_link(h5, link, path));
    }
    return HOTBED_OK;
}

static hotbed_status put_index(hotbed_h5 *h5, const hotbed_manifest *m) {
    HOTBED_TRY(put_head(h5, m, "index", true));
    HOTBED_TRY(hotbed_h5_text(h5, "/", "README", how_to_read));
    HOTBED_TRY(put_storages(h5, m, true));
    /* Create these groups explicitly: groups that libhdf5 creates implicitly contain the time, and
     * the index would differ each time. */
    HOTBED_TRY(hotbed_h5_group(h5, "/embeddings"));
    HOTBED_TRY(hotbed_h5_group(h5, "/state_dict"));
    uint32_t states = 0;
    for (uint32_t i = 0; i < m->num_storages; i++)
        states += hotbed_optimizer_states(m->storages[i].optimizer.kind);
    if (states > 0)
        HOTBED_TRY(hotbed_h5_group(h5, "/optimizer"));
    hotbed_h5_source *sources = hotbed_new(m->world * sizeof *sources);
    hotbed_file_name *files = hotbed_new(m->world * sizeof *files);
    hotbed_status status =
        HOTBED_CHECK_MEMORY(sources != NULL && files != NULL, "%" PRIu32 " shards", m->world);
    for (uint32_t i = 0; i < m->world && status == HOTBED_OK; i++)
        files[i] = hotbed_shard_name(i, m->world);
    for (uint32_t t = 0; t < m->num_tables && status == HOTBED_OK; t++)
        status = put_views(h5, m, t, sources, files);
    hotbed_delete(files);
    hotbed_delete(sources);
    return status;
}

hotbed_status hotbed_layout_index(const hotbed_manifest *m, void **file, size_t *bytes) {
    hotbed_h5 *h5;
    hotbed_h5_image image = {.metadata = NULL};
    HOTBED_TRY(hotbed_h5_create(INDEX_STEP, &h5));
    hotbed_status status = put_index(h5, m);
    HOTBED_THEN(
        status, hotbed_h5_finish(h5, &image)); /* there are no datasets: all bytes are metadata */
    hotbed_h5_destroy(h5);
    *file = image.metadata;
    *bytes = image.metadata_bytes;
    return status;
}
