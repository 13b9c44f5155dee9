/* checkpoint/tool/tool_publish.c - hotbed-ckpt publish: a checkpoint as a cut that readers use. */
#include "checkpoint/tool/tool.h"

#include "base/error.h"
#include "base/stream.h"
#include "serve/base.h"

#include <inttypes.h>
#include <stdio.h>

/* What is published. */
typedef struct publication {
    hotbed_chain chain;
    hotbed_base_table *tables;
    hotbed_chain_table table; /* that is read */
    hotbed_chunk chunk;
    uint32_t number; /* of the table; UINT32_MAX: none is open */
    uint64_t rows, done, total;
    const hotbed_progress *progress;
} publication;

static void close_table(publication *p) {
    if (p->number == UINT32_MAX)
        return;
    hotbed_chunk_destroy(&p->chunk);
    hotbed_chain_table_close(&p->table);
    p->number = UINT32_MAX;
}

static hotbed_status open_table(publication *p, uint32_t number) {
    close_table(p);
    p->number = number;
    p->chunk = (hotbed_chunk){.capacity = 0};
    HOTBED_TRY(hotbed_chain_table_open(&p->chain, number, HOTBED_CHAIN_ROWS, &p->table));
    return hotbed_chunk_create(p->table.row_bytes, &p->chunk);
}

/* A hotbed_base_next. */
static hotbed_status next_rows(
    void *context, uint32_t table, uint64_t *n, const uint64_t **keys, const void **rows) {
    publication *p = context;
    if (p->number != table)
        HOTBED_TRY(open_table(p, table));
    HOTBED_TRY(hotbed_chain_table_next(&p->table, p->chunk.capacity, p->chunk.columns, n));
    *keys = p->chunk.columns[HOTBED_COLUMN_KEYS];
    *rows = p->chunk.columns[HOTBED_COLUMN_VALUES];
    p->done += *n;
    p->rows += *n;
    hotbed_progress_report(p->progress, p->done, p->total);
    return HOTBED_OK;
}

static void describe(publication *p) {
    const hotbed_manifest *m = hotbed_chain_last(&p->chain);
    for (uint32_t t = 0; t < m->num_tables; t++) {
        const hotbed_manifest_table *from = &m->tables[t];
        const bool hash = from->kind == HOTBED_TABLE_HASH;
        p->tables[t] = (hotbed_base_table){
            .name = from->name,
            .dim = from->dim,
            .dtype = from->dtype,
            .key_type = hotbed_manifest_origin(m, from)->key_type,
            .rows = hash ? from->keys : from->capacity,
            .hash = hash,
            .bits = from->bucket_bits,
        };
        for (uint32_t i = 0; i < p->chain.n; i++)
            p->total += p->chain.links[i].manifest.tables[t].rows;
    }
}

static hotbed_status publish(publication *p, const tool_options *o, uint64_t *number) {
    HOTBED_TRY(tool_open_chain(o->paths[0], &p->chain));
    const hotbed_manifest *m = hotbed_chain_last(&p->chain);
    p->tables = hotbed_new(m->num_tables * sizeof *p->tables);
    if (p->tables == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_MEMORY, NULL, m->num_tables, "no memory for %" PRIu32 " tables",
            m->num_tables);
    describe(p);
    HOTBED_TRY(hotbed_base_write(
        o->paths[1], p->tables, m->num_tables, o->encoding, m->step, next_rows, p, number));
    hotbed_progress_report(&o->progress, p->total, p->total);
    return HOTBED_OK;
}

int tool_publish(const tool_options *o) {
    publication p = {.number = UINT32_MAX, .progress = &o->progress};
    uint64_t number = 0;
    const hotbed_status status = publish(&p, o, &number);
    close_table(&p);
    hotbed_delete(p.tables);
    hotbed_chain_close(&p.chain);
    return tool_wrote(o, status, ", \"cut\": %" PRIu64 ", \"rows\": %" PRIu64, number, p.rows);
}
