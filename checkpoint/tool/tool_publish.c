/* checkpoint/tool/tool_publish.c - hotbed-ckpt publish: a checkpoint as a cut that readers use. */
#include "checkpoint/tool/tool.h"

#include "base/error.h"
#include "base/stream.h"
#include "hotbed/publish.h"
#include "hotbed/storage.h"

#include <inttypes.h>
#include <stdio.h>

/* What is published: one storage for each table, without optimizer, since key types may differ. */
typedef struct publication {
    hotbed_chain chain;
    hotbed_stream *stream;
    hotbed_storage **storages; /* [num_storages] */
    uint32_t num_storages;
    uint64_t rows, done, total;
} publication;

static hotbed_status create_storage(publication *p, uint32_t number) {
    const hotbed_manifest *m = hotbed_chain_last(&p->chain);
    const hotbed_manifest_table *from = &m->tables[number];
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    table.name = from->name;
    table.dim = from->dim;
    table.dtype = from->dtype;
    table.kind = from->kind;
    table.evict = HOTBED_EVICT_NEVER;
    /* with room for buckets that are fuller than others */
    table.capacity =
        from->kind == HOTBED_TABLE_STATIC ? from->capacity : from->keys + from->keys / 8 + 1024;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.key_type = hotbed_manifest_origin(m, from)->key_type;
    HOTBED_TRY(hotbed_storage_create(&options, p->stream, &p->storages[number]));
    p->num_storages = number + 1;
    return HOTBED_OK;
}

/* Set the rows of a table. Those of a STATIC table come in the order of their numbers. */
static hotbed_status set_rows(
    publication *p, uint32_t number, hotbed_chain_table *from, const hotbed_chunk *chunk,
    const hotbed_progress *progress) {
    const bool hash = hotbed_chain_last(&p->chain)->tables[number].kind == HOTBED_TABLE_HASH;
    uint64_t *keys = hash ? chunk->columns[HOTBED_COLUMN_KEYS]
                          : hotbed_new((chunk->capacity + 1) * sizeof *keys);
    hotbed_status status = keys != NULL ? HOTBED_OK
                                        : hotbed_fail_value(
                                              HOTBED_ERR_MEMORY, NULL, (double)chunk->capacity,
                                              "no memory for %" PRIu64 " keys", chunk->capacity);
    uint64_t first = 0;
    for (uint64_t n = 1; n > 0 && status == HOTBED_OK; first += n) {
        const hotbed_rows rows = {.weights = chunk->columns[HOTBED_COLUMN_VALUES]};
        status = hotbed_chain_table_next(from, chunk->capacity, chunk->columns, &n);
        for (uint64_t i = 0; i < n && !hash && status == HOTBED_OK; i++)
            keys[i] = first + i;
        if (status == HOTBED_OK && n > 0)
            status = hotbed_storage_set_rows(p->storages[number], 0, n, keys, &rows, p->stream);
        if (status == HOTBED_OK)
            status = hotbed_stream_sync(p->stream);
        p->done += n;
        hotbed_progress_report(progress, p->done, p->total);
    }
    p->rows += first;
    if (!hash)
        hotbed_delete(keys);
    return status;
}

static hotbed_status read_table(publication *p, uint32_t number, const hotbed_progress *progress) {
    hotbed_chain_table from;
    hotbed_chunk chunk = {.capacity = 0};
    HOTBED_TRY(create_storage(p, number));
    hotbed_status status = hotbed_chain_table_open(&p->chain, number, HOTBED_CHAIN_ROWS, &from);
    if (status == HOTBED_OK)
        status = hotbed_chunk_create(from.row_bytes, &chunk);
    if (status == HOTBED_OK)
        status = set_rows(p, number, &from, &chunk, progress);
    hotbed_chunk_destroy(&chunk);
    hotbed_chain_table_close(&from);
    return status;
}

static hotbed_status write_cut(publication *p, const tool_options *o, uint64_t *number) {
    hotbed_publish_options options = {.size = sizeof options};
    hotbed_publish_stats stats = {.size = sizeof stats};
    hotbed_publisher *publisher = NULL;
    options.encoding = o->encoding;
    HOTBED_TRY(hotbed_publisher_create(
        o->paths[1], p->storages, p->num_storages, &options, p->stream, &publisher));
    hotbed_status status =
        hotbed_publisher_publish(publisher, hotbed_chain_last(&p->chain)->step, p->stream);
    if (status == HOTBED_OK)
        status = hotbed_publisher_wait(publisher);
    if (status == HOTBED_OK)
        status = hotbed_publisher_stats(publisher, &stats);
    hotbed_publisher_destroy(publisher);
    *number = stats.number;
    return status;
}

static hotbed_status publish(publication *p, const tool_options *o, uint64_t *number) {
    HOTBED_TRY(tool_open_chain(o->paths[0], &p->chain));
    const uint32_t tables = hotbed_chain_last(&p->chain)->num_tables;
    for (uint32_t t = 0; t < tables; t++)
        for (uint32_t i = 0; i < p->chain.n; i++)
            p->total += p->chain.links[i].manifest.tables[t].rows;
    p->storages = hotbed_new(tables * sizeof(hotbed_storage *));
    if (p->storages == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_MEMORY, NULL, tables, "no memory for %" PRIu32 " tables", tables);
    HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &p->stream));
    for (uint32_t t = 0; t < tables; t++)
        HOTBED_TRY(read_table(p, t, &o->progress));
    hotbed_progress_report(&o->progress, p->total, p->total);
    return write_cut(p, o, number);
}

int tool_publish(const tool_options *o) {
    publication p = {.rows = 0};
    uint64_t number = 0;
    const hotbed_status status = publish(&p, o, &number);
    for (uint32_t i = 0; i < p.num_storages; i++)
        hotbed_storage_destroy(p.storages[i]);
    hotbed_stream_destroy(p.stream);
    hotbed_delete(p.storages);
    hotbed_chain_close(&p.chain);
    if (status != HOTBED_OK)
        return tool_fail(status);
    if (o->json) {
        printf("{\"path\": ");
        tool_json_text(o->paths[1]);
        printf(", \"cut\": %" PRIu64 ", \"rows\": %" PRIu64 "}\n", number, p.rows);
    }
    return TOOL_SAME;
}
