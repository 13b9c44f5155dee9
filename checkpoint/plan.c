/* checkpoint/plan.c - describe the tables of a storage in a manifest. */
#include "checkpoint/plan.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/bucket.h"
#include "checkpoint/shard_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

hotbed_status hotbed_plan_head(
    const hotbed_checkpoint_config *config, hotbed_storage *storage,
    const hotbed_checkpoint_share *share, const hotbed_checkpoint_options *options,
    hotbed_manifest *m, hotbed_stream *stream) {
    struct timespec now = {.tv_sec = 0};
    clock_gettime(CLOCK_REALTIME, &now);
    m->minor = HOTBED_FORMAT_MINOR;
    m->created_ns = (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
    m->step = options->step;
    hotbed_layout_writer(m->writer);
    m->world = share->world;
    m->block_bytes = config->block_bytes == 0 ? HOTBED_BLOCK_BYTES : config->block_bytes;
    m->num_tables = hotbed_storage_num_tables(storage);
    m->key_type = hotbed_storage_key_type(storage);
    m->seed = hotbed_storage_seed(storage);
    m->optimizer = *hotbed_storage_optimizer(storage);
    m->state.size = sizeof m->state;
    HOTBED_TRY(hotbed_storage_get_state(storage, &m->state, stream));
    HOTBED_TRY(hotbed_manifest_reserve(m));
    m->shards[share->rank].extra.bytes = share->rank == 0 ? options->extra_bytes : 0;
    return HOTBED_OK;
}

hotbed_status hotbed_plan_table(
    const hotbed_checkpoint_config *config, hotbed_storage *storage,
    const hotbed_checkpoint_share *share, uint32_t number, hotbed_manifest *m, uint64_t *rows,
    hotbed_stream *stream) {
    hotbed_table_info info = {.size = sizeof info};
    uint64_t keys = 0, pinned = 0;
    HOTBED_TRY(hotbed_storage_table(storage, number, &info));
    HOTBED_TRY(hotbed_storage_size(storage, number, &keys, &pinned, stream));
    if (pinned > 0)
        return hotbed_fail(
            HOTBED_ERR_STATE, "table '%s': tickets hold %" PRIu64 " rows; finish or cancel them",
            info.name, pinned);
    hotbed_manifest_table *table = &m->tables[number];
    hotbed_manifest_part *part = &m->parts[(uint64_t)number * m->world + share->rank];
    snprintf(table->name, sizeof table->name, "%s", info.name);
    table->kind = info.kind;
    table->dtype = info.dtype;
    table->dim = info.dim;
    table->times = info.score == HOTBED_SCORE_TIMESTAMP_LFU;
    hotbed_share_describe(share, number, table);
    if (table->kind == HOTBED_TABLE_HASH) {
        table->bucket_bits = config->bucket_bits;
        part->end = (uint64_t)1 << table->bucket_bits;
        /* Routes assign single keys, so every rank has rows of all buckets. */
        table->spread = share->world == 1 ? HOTBED_SPREAD_BUCKET : HOTBED_SPREAD_ANY;
        *rows = keys;
    } else {
        hotbed_share_rows(share, number, info.capacity, &part->first, &part->end);
        table->capacity = part->end - part->first;
        *rows = table->capacity;
    }
    return HOTBED_OK;
}

static hotbed_status sort_counted(
    hotbed_storage *storage, uint32_t number, uint32_t bits, uint64_t n, uint64_t *keys,
    uint64_t *counts, uint64_t *pairs, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_export_counts(storage, number, n, keys, counts, &n, stream));
    return hotbed_bucket_sort_pairs(n, keys, counts, bits, pairs);
}

hotbed_status hotbed_plan_counted(
    hotbed_storage *storage, const hotbed_checkpoint_share *share, uint32_t number,
    hotbed_manifest *m, uint64_t **out, hotbed_stream *stream) {
    const hotbed_manifest_table *table = &m->tables[number];
    uint64_t n = 0;
    *out = NULL;
    HOTBED_TRY(hotbed_storage_export_counts(storage, number, 0, NULL, NULL, &n, stream));
    if (n == 0)
        return HOTBED_OK;
    uint64_t *keys = hotbed_new(n * sizeof *keys), *counts = hotbed_new(n * sizeof *counts);
    uint64_t *pairs = hotbed_new(2 * n * sizeof *pairs);
    hotbed_status status = HOTBED_OK;
    if (keys == NULL || counts == NULL || pairs == NULL)
        status = hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory for %" PRIu64 " counted keys of table '%s'", n,
            table->name);
    if (status == HOTBED_OK)
        status = sort_counted(storage, number, table->bucket_bits, n, keys, counts, pairs, stream);
    if (status == HOTBED_OK)
        status = hotbed_share_check_keys(share, number, table->name, n, pairs);
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

/* Check that rows are assigned to ranks as in the parent: the rank that had a key lists it as
 * erased. */
static hotbed_status same_shares(
    const char *path, const hotbed_manifest *parent, const hotbed_checkpoint_share *share) {
    for (uint32_t t = 0; t < parent->num_tables; t++)
        if (!hotbed_share_is(share, t, parent, &parent->tables[t]))
            return hotbed_fail(
                HOTBED_ERR_STATE,
                "the rows of table '%s' are assigned to %" PRIu32
                " ranks in another way than in %s, which has %" PRIu32
                " ranks: save a full checkpoint",
                parent->tables[t].name, share->world, path, parent->world);
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
    if (status == HOTBED_OK)
        status = hotbed_manifest_read(&directory, &parent);
    if (status == HOTBED_OK) {
        *base = hotbed_mark_find(mark, parent.id);
        if (*base == NULL || (*base)->num_tables != m->num_tables)
            status = hotbed_fail(
                HOTBED_ERR_STATE,
                "the mark does not belong to %s, so the changes since then are unknown: save a "
                "full checkpoint",
                path);
    }
    if (status == HOTBED_OK)
        status = same_shares(path, &parent, share);
    m->increment = true;
    m->parent = parent.id;
    m->parent_digest = parent.digest;
    hotbed_io_drop(&directory);
    hotbed_manifest_free(&parent);
    return status;
}
