/* checkpoint/format/manifest_check.c - checks of a manifest before a reader trusts it. */
#include "checkpoint/format/manifest.h"

#include "base/error.h"
#include "base/stream.h"
#include "hotbed/route.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static hotbed_status wrong(
    const char *file, const char *table, const char *what, uint64_t found, uint64_t right) {
    return hotbed_error_path(
        hotbed_fail_table_limit(
            HOTBED_ERR_CORRUPT, table, NULL, found, right,
            "%s: %s: %s is %" PRIu64 ", expected %" PRIu64, file, table, what, found, right),
        file);
}

/* Return the rows that ROUND_ROBIN gives a rank of all rows of a STATIC table. */
static uint64_t rows_dealt(
    const hotbed_manifest *m, const hotbed_manifest_table *table, uint32_t rank) {
    hotbed_route route = {
        .kind = HOTBED_ROUTE_ROUND_ROBIN, .world = m->world, .rows = table->capacity};
    return hotbed_route_rows(&route, rank);
}

/* Check that the parts of a table follow each other without gap or overlap, and that their columns
 * have the bytes that their rows need. */
static hotbed_status check_table(const char *file, const hotbed_manifest *m, uint32_t number_of) {
    const hotbed_manifest_table *table = &m->tables[number_of];
    bool shared = table->kind == HOTBED_TABLE_HASH && table->spread == HOTBED_SPREAD_ANY;
    uint64_t row = 0, next = 0, range = hotbed_manifest_range(table);
    if (shared && m->world > 1 && table->route == 0)
        return hotbed_fail_path_table(
            HOTBED_ERR_CORRUPT, file, table->name,
            "%s: %s: %" PRIu32 " ranks share its buckets without a route", file, table->name,
            m->world);
    if (table->route == HOTBED_ROUTE_CONTINUOUS + 1 &&
        (table->route_rows < 1 || table->route_rows > (uint64_t)1 << 62))
        return wrong(file, table->name, "the route's rows", table->route_rows, range);
    if (table->kind == HOTBED_TABLE_STATIC && table->route == HOTBED_ROUTE_ROUND_ROBIN + 1 &&
        table->route_rows != range)
        return wrong(file, table->name, "the route's rows", table->route_rows, range);
    for (uint32_t shard = 0; shard < m->world; shard++) {
        const hotbed_manifest_part *part = &m->parts[(uint64_t)number_of * m->world + shard];
        if (part->first_row != row)
            return wrong(file, table->name, "a part's first row", part->first_row, row);
        if (!shared && part->first != next)
            return wrong(file, table->name, "a part's first bucket", part->first, next);
        if (part->end > range)
            return wrong(file, table->name, "a part's last bucket", part->end, range);
        if (table->kind == HOTBED_TABLE_STATIC &&
            (m->increment ? part->rows > part->end - part->first
                          : part->rows != part->end - part->first))
            return wrong(file, table->name, "a part's rows", part->rows, part->end - part->first);
        const uint64_t dealt = rows_dealt(m, table, shard);
        if (hotbed_manifest_deals(m, table) && part->end - part->first != dealt)
            return wrong(
                file, table->name, "a part's range of rows", part->end - part->first, dealt);
        row += part->rows; /* at most 2^16 parts of 2^48 rows */
        next = shared ? range : part->end;
        for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
            uint64_t bytes = hotbed_manifest_column_bytes(m, table, part, i);
            if (part->columns[i].bytes != bytes)
                return wrong(
                    file, table->name,
                    hotbed_manifest_column_name(hotbed_manifest_optimizer(m, table), i),
                    part->columns[i].bytes, bytes);
        }
    }
    if (row != table->rows)
        return wrong(file, table->name, "the parts' sum of rows", row, table->rows);
    if (table->kind == HOTBED_TABLE_HASH && !m->increment && table->keys != row)
        return wrong(file, table->name, "the number of keys", table->keys, row);
    if (next != range)
        return wrong(file, table->name, "the parts' last bucket", next, range);
    return HOTBED_OK;
}

static int by_offset(const void *a, const void *b) {
    const hotbed_extent *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

hotbed_status hotbed_manifest_extents(
    const hotbed_manifest *m, uint32_t shard, hotbed_extent **out, size_t *num) {
    const size_t most = (size_t)m->num_tables * HOTBED_COLUMNS + m->num_blobs + 1;
    size_t n = 0;
    hotbed_extent *all = hotbed_new(most * sizeof *all);
    HOTBED_TRY_MEMORY(all, "%zu extents", most);
    all[n++] = m->shards[shard].blocks;
    for (uint32_t i = 0; shard == 0 && i < m->num_blobs; i++)
        all[n++] = m->blobs[i].extent;
    for (uint32_t t = 0; t < m->num_tables; t++)
        for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
            all[n++] = m->parts[(uint64_t)t * m->world + shard].columns[i];
    qsort(all, n, sizeof *all, by_offset);
    *out = all;
    *num = n;
    return HOTBED_OK;
}

/* Check that the extents of a shard lie after its metadata, inside the file, and do not overlap. */
static hotbed_status check_shard(
    const char *file, const hotbed_manifest *m, uint32_t number_of, const hotbed_extent *spans,
    size_t n) {
    const hotbed_manifest_shard *shard = &m->shards[number_of];
    if (shard->blocks.bytes != shard->num_blocks * sizeof(hotbed_digest))
        return wrong(
            file, "blocks", "length", shard->blocks.bytes,
            shard->num_blocks * sizeof(hotbed_digest));
    uint64_t end = shard->metadata_bytes;
    for (size_t i = 0; i < n; i++) {
        if (spans[i].bytes == 0 && spans[i].offset != 0)
            return wrong(file, "an empty extent", "offset", spans[i].offset, 0);
        if (spans[i].bytes == 0)
            continue;
        if (spans[i].offset < end || spans[i].bytes > shard->bytes ||
            spans[i].offset > shard->bytes - spans[i].bytes)
            return hotbed_fail_path_limit(
                HOTBED_ERR_CORRUPT, file, NULL, (double)spans[i].offset, end,
                "%s: an extent of %" PRIu64 " bytes at %" PRIu64
                " is not within the free bytes %" PRIu64 " to %" PRIu64 " of shard %" PRIu32,
                file, spans[i].bytes, spans[i].offset, end, shard->bytes, number_of);
        end = spans[i].offset + spans[i].bytes;
    }
    return HOTBED_OK;
}

typedef struct named {
    const char *name;
    uint32_t number;
} named;

static int by_name(const void *a, const void *b) {
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

static hotbed_status sort_names(const char *file, hotbed_manifest *m) {
    named *names = hotbed_new(m->num_tables * sizeof *names);
    HOTBED_TRY_MEMORY(names, "%" PRIu32 " names", m->num_tables);
    for (uint32_t i = 0; i < m->num_tables; i++)
        names[i] = (named){.name = m->tables[i].name, .number = i};
    qsort(names, m->num_tables, sizeof *names, by_name);
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < m->num_tables; i++) {
        m->by_name[i] = names[i].number;
        if (i > 0 && strcmp(names[i].name, names[i - 1].name) == 0)
            status = hotbed_fail_path_table(
                HOTBED_ERR_CORRUPT, file, names[i].name, "%s: two tables '%s'", file,
                names[i].name);
    }
    hotbed_delete(names);
    return status;
}

static hotbed_status check_blobs(const char *file, const hotbed_manifest *m) {
    for (uint32_t i = 0; i < m->num_blobs; i++)
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(m->blobs[i].name, m->blobs[k].name) == 0)
                return hotbed_fail_path(
                    HOTBED_ERR_CORRUPT, file, "%s: two blobs '%s'", file, m->blobs[i].name);
    return HOTBED_OK;
}

hotbed_status hotbed_manifest_check(const char *file, hotbed_manifest *m) {
    HOTBED_TRY(sort_names(file, m));
    HOTBED_TRY(check_blobs(file, m));
    for (uint32_t i = 0; i < m->num_tables; i++)
        HOTBED_TRY(check_table(file, m, i));
    hotbed_manifest_number_blocks(m);
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < m->world && status == HOTBED_OK; i++) {
        hotbed_extent *spans = NULL;
        size_t n = 0;
        HOTBED_TRY(hotbed_manifest_extents(m, i, &spans, &n));
        status = check_shard(file, m, i, spans, n);
        hotbed_delete(spans);
    }
    return status;
}
