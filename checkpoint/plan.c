/* checkpoint/plan.c - describe the tables of a storage in a manifest. */
#include "checkpoint/plan.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/format/bucket.h"
#include "checkpoint/shard_reader.h"
#include "storage/storage.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

hotbed_status hotbed_plan_head(
    const hotbed_checkpoint_config *config, const hotbed_storages *storages,
    const hotbed_checkpoint_share *share, const hotbed_checkpoint_options *options,
    hotbed_manifest *m, hotbed_stream *stream) {
    m->created_ns = hotbed_realtime_now();
    m->step = options->step;
    hotbed_layout_writer(m->writer);
    m->world = share->world;
    m->block_bytes = config->block_bytes == 0 ? HOTBED_BLOCK_BYTES : config->block_bytes;
    m->num_storages = storages->n;
    m->num_tables = storages->num_tables;
    m->num_blobs = share->rank == 0 ? options->num_blobs : 0;
    HOTBED_TRY(hotbed_manifest_reserve(m));
    for (uint32_t i = 0; i < m->num_blobs; i++) {
        snprintf(m->blobs[i].name, sizeof m->blobs[i].name, "%s", options->blobs[i].name);
        m->blobs[i].extent.bytes = options->blobs[i].bytes;
    }
    for (uint32_t i = 0; i < m->num_storages; i++) {
        const hotbed_storage *storage = storages->all[i];
        hotbed_manifest_storage *out = &m->storages[i];
        if (options->names != NULL)
            snprintf(out->name, sizeof out->name, "%s", options->names[i]);
        else
            snprintf(out->name, sizeof out->name, "%" PRIu32, i);
        out->pooling = storage->pooling;
        out->key_type = hotbed_storage_key_type(storage);
        out->seed = storage->seed;
        out->optimizer = *hotbed_storage_optimizer(storage);
        out->state.size = sizeof out->state;
        HOTBED_TRY(hotbed_storage_get_state(storages->all[i], &out->state, stream));
    }
    return HOTBED_OK;
}

hotbed_status hotbed_plan_table(
    const hotbed_checkpoint_config *config, const hotbed_storages *storages,
    const hotbed_checkpoint_share *share, uint32_t number, hotbed_manifest *m,
    hotbed_stream *stream) {
    hotbed_table_info info;
    uint64_t keys = 0;
    HOTBED_TRY(hotbed_storages_info(storages, number, &info));
    HOTBED_TRY(hotbed_storage_size(
        hotbed_storages_of(storages, number), hotbed_storages_number(storages, number), &keys, NULL,
        stream));
    hotbed_manifest_table *table = &m->tables[number];
    hotbed_manifest_part *part = &m->parts[(uint64_t)number * m->world + share->rank];
    snprintf(table->name, sizeof table->name, "%s", info.name);
    table->storage = storages->tables[number].storage;
    table->kind = info.kind;
    table->dtype = info.dtype;
    table->state_dtype = hotbed_row_types_of(&info).states;
    table->dim = info.dim;
    table->times = info.score == HOTBED_SCORE_TIMESTAMP_LFU;
    hotbed_share_describe(share, number, table);
    if (table->kind == HOTBED_TABLE_HASH) {
        table->bucket_bits = config->bucket_bits;
        part->end = (uint64_t)1 << table->bucket_bits;
        /* Routes assign single keys, so every rank has rows of all buckets. */
        table->spread = share->world == 1 ? HOTBED_SPREAD_BUCKET : HOTBED_SPREAD_ANY;
        table->keys = keys;
    } else {
        hotbed_share_rows(share, number, info.capacity, &part->first, &part->end);
        table->capacity = part->end - part->first;
    }
    return HOTBED_OK;
}

hotbed_status hotbed_plan_counted(
    const hotbed_storages *storages, const hotbed_checkpoint_share *share, uint32_t number,
    hotbed_manifest *m, uint64_t **out, hotbed_stream *stream) {
    const hotbed_manifest_table *table = &m->tables[number];
    hotbed_storage *storage = hotbed_storages_of(storages, number);
    uint32_t local = hotbed_storages_number(storages, number);
    hotbed_key_type type = hotbed_storage_key_type(storage);
    uint64_t n = 0;
    *out = NULL;
    HOTBED_TRY(hotbed_storage_export_counts(storage, local, 0, NULL, NULL, &n, stream));
    if (n == 0)
        return HOTBED_OK;
    uint64_t *keys = hotbed_new(n * sizeof *keys), *counts = hotbed_new(n * sizeof *counts);
    uint64_t *pairs = hotbed_new(2 * n * sizeof *pairs);
    hotbed_status status = HOTBED_OK;
    if (keys == NULL || counts == NULL || pairs == NULL)
        status = hotbed_fail_table(
            HOTBED_ERR_MEMORY, table->name, "no memory for %" PRIu64 " counted keys of table '%s'",
            n, table->name);
    HOTBED_THEN(status, hotbed_storage_export_counts(storage, local, n, keys, counts, &n, stream));
    HOTBED_THEN(status, hotbed_bucket_sort_pairs(n, keys, type, counts, table->bucket_bits, pairs));
    HOTBED_THEN(status, hotbed_share_check_keys(share, m, number, n, pairs));
    hotbed_delete(keys);
    hotbed_delete(counts);
    if (status != HOTBED_OK) {
        hotbed_delete(pairs);
        return status;
    }
    m->parts[(uint64_t)number * m->world + share->rank].counted = n;
    *out = pairs;
    return HOTBED_OK;
}

/* Check that the parent has the same tables, and that their rows are assigned to ranks in the same
 * way: the rank that had a key lists it as erased. *m has all tables of the rank. */
static hotbed_status same_tables(
    const char *path, const hotbed_manifest *parent, const hotbed_checkpoint_share *share,
    const hotbed_manifest *m) {
    if (parent->num_tables != m->num_tables)
        return hotbed_fail_path_limit(
            HOTBED_ERR_STATE, path, "num_tables", parent->num_tables, m->num_tables,
            "%s has %" PRIu32 " tables, not %" PRIu32 ": save a full checkpoint", path,
            parent->num_tables, m->num_tables);
    for (uint32_t t = 0; t < m->num_tables; t++) {
        const hotbed_manifest_table *x = &parent->tables[t], *y = &m->tables[t];
        if (!hotbed_manifest_same_rows(parent, x, m, y) ||
            (share->world == 1 && x->capacity != y->capacity))
            return hotbed_fail_path_table(
                HOTBED_ERR_STATE, path, y->name,
                "table '%s' is another one than in %s, or has another place: save a full "
                "checkpoint",
                y->name, path);
        if (!hotbed_share_is(share, t, parent, x))
            return hotbed_error_path(
                hotbed_fail_table_limit(
                    HOTBED_ERR_STATE, x->name, "world", share->world, parent->world,
                    "the rows of table '%s' are assigned to %" PRIu32
                    " ranks in another way than in %s, which has %" PRIu32
                    " ranks: save a full checkpoint",
                    x->name, share->world, path, parent->world),
                path);
    }
    return HOTBED_OK;
}

hotbed_status hotbed_plan_parent(
    const hotbed_checkpoint_config *config, const char *path, const hotbed_checkpoint_mark *mark,
    const hotbed_checkpoint_share *share, hotbed_manifest *m, const hotbed_marked **base) {
    hotbed_io_file directory = HOTBED_IO_CLOSED;
    hotbed_manifest parent = {.world = 0};
    *base = NULL;
    hotbed_status status =
        hotbed_io_open(config->calls, NULL, path, HOTBED_IO_DIRECTORY, &directory);
    HOTBED_THEN(status, hotbed_manifest_read(&directory, &parent));
    if (status == HOTBED_OK) {
        *base = hotbed_mark_find(mark, parent.id);
        if (*base == NULL)
            status = hotbed_fail_path(
                HOTBED_ERR_STATE, path,
                "the mark does not belong to %s, so the changes since then are unknown: save a "
                "full checkpoint",
                path);
    }
    HOTBED_THEN(status, same_tables(path, &parent, share, m));
    m->increment = true;
    m->parent = parent.id;
    m->parent_digest = parent.digest;
    hotbed_io_drop(&directory);
    hotbed_manifest_free(&parent);
    return status;
}
