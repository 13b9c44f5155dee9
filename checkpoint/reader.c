/* checkpoint/reader.c - load: MANIFEST first, then rows; each block is checked before it is
 * used. */
#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/chain.h"
#include "checkpoint/mark.h"
#include "checkpoint/redistribute.h"
#include "checkpoint/share.h"
#include "checkpoint/staging.h"
#include "storage/storage.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A checkpoint of the chain. */
typedef struct link {
    hotbed_io_file directory;
    hotbed_manifest manifest;
} link;

/* The state of a load. */
typedef struct reader {
    const hotbed_checkpoint_config *config;
    const hotbed_storages *storages;
    hotbed_stream *stream;
    hotbed_checkpoint_share share;
    hotbed_comm *comm; /* NULL: this rank loads alone */
    bool strict;       /* all tables must fit */
    uint32_t num_links;
    link *links; /* the full checkpoint, then the increments */
    /* [num_tables] number in `storages` of each table of the manifests; UINT32_MAX: it is not loaded */
    uint32_t *numbers;
    hotbed_checkpoint_taken *taken; /* [num_tables] */
    bool *is_new;              /* [storages->num_tables] the checkpoint does not have the table */
    bool touched;              /* tables have been cleared */
    hotbed_io_workers workers; /* num 0: none */
} reader;

static const hotbed_manifest *last_of(const reader *r) {
    return &r->links[r->num_links - 1].manifest;
}

/* --- MANIFEST and the storages ---------------------------------------------------------------------- */

static hotbed_status differs(
    const char *table, const char *what, const char *saved, const char *here) {
    return hotbed_fail_table(
        HOTBED_ERR_STATE, table, "table '%s': %s is %s in the checkpoint, %s in the storage", table,
        what, saved, here);
}

static const char *optimizer_name(hotbed_optimizer_kind kind) {
    return kind == 0 ? "none" : hotbed_optimizer_name(kind);
}

/* Return the number of rows of a STATIC table on all ranks. */
static uint64_t rows_of(const reader *r, uint32_t number, const hotbed_table_info *info) {
    return r->share.routes == NULL ? info->capacity : r->share.routes[number].rows;
}

/* Compare what must be equal for any load of a table. */
static hotbed_status match_storage(
    const reader *r, uint32_t number, const hotbed_table_info *info,
    const hotbed_manifest_storage *origin) {
    hotbed_storage *storage = hotbed_storages_of(r->storages, number);
    hotbed_key_type key_type = hotbed_storage_key_type(storage);
    hotbed_optimizer_kind kind = hotbed_storage_optimizer(storage)->kind;
    uint64_t keys = 0, pinned = 0;
    if (origin->key_type != key_type)
        return differs(
            info->name, "the key type", origin->key_type == HOTBED_KEY_I64 ? "i64" : "u64",
            key_type == HOTBED_KEY_I64 ? "i64" : "u64");
    if (origin->optimizer.kind != kind && kind != 0) /* without optimizer: weights only */
        return hotbed_error_value(
            differs(
                info->name, "the optimizer", optimizer_name(origin->optimizer.kind),
                optimizer_name(kind)),
            "optimizer", origin->optimizer.kind);
    HOTBED_TRY(hotbed_storage_size(
        storage, hotbed_storages_number(r->storages, number), &keys, &pinned, r->stream));
    if (pinned > 0)
        return hotbed_error_cause_is(
            hotbed_error_value(
                hotbed_fail_table(
                    HOTBED_ERR_STATE, info->name,
                    "table '%s': tickets hold %" PRIu64 " rows; finish or cancel them", info->name,
                    pinned),
                "rows", (double)pinned),
            HOTBED_CAUSE_HELD);
    return HOTBED_OK;
}

/* Find the table in the checkpoint, and decide whether its rows are loaded. */
static hotbed_status match_table(reader *r, uint32_t number) {
    static const char *const kinds[] = {"hash", "static"};
    hotbed_table_info info;
    char saved[24], here[24];
    HOTBED_TRY(hotbed_storages_info(r->storages, number, &info));
    const hotbed_manifest *m = &r->links[0].manifest;
    uint32_t found = hotbed_manifest_find(m, info.name);
    r->is_new[number] = found == UINT32_MAX;
    if (found == UINT32_MAX)
        return !r->strict ? HOTBED_OK
                          : hotbed_fail_path_table(
                                HOTBED_ERR_STATE, r->links[0].directory.name, info.name,
                                "%s has no table '%s', which the storage has",
                                r->links[0].directory.name, info.name);
    const hotbed_manifest_table *table = &m->tables[found];
    if (table->kind != info.kind) {
        r->taken[found] = HOTBED_TAKEN_KIND;
        return r->strict ? differs(info.name, "the kind", kinds[table->kind], kinds[info.kind])
                         : HOTBED_OK;
    }
    snprintf(saved, sizeof saved, "%" PRIu32, table->dim);
    snprintf(here, sizeof here, "%" PRIu32, info.dim);
    if (table->dim != info.dim) {
        r->taken[found] = HOTBED_TAKEN_DIM;
        return !r->strict
                   ? HOTBED_OK
                   : hotbed_error_value(differs(info.name, "dim", saved, here), "dim", table->dim);
    }
    if (r->strict && table->dtype != info.dtype)
        return hotbed_error_value(
            differs(
                info.name, "dtype", hotbed_dtype_name(table->dtype), hotbed_dtype_name(info.dtype)),
            "dtype", table->dtype);
    uint64_t rows = rows_of(r, number, &info);
    snprintf(saved, sizeof saved, "%" PRIu64, table->capacity);
    snprintf(here, sizeof here, "%" PRIu64, rows);
    if (r->strict && info.kind == HOTBED_TABLE_STATIC && table->capacity != rows)
        return differs(info.name, "the number of rows", saved, here);
    HOTBED_TRY(match_storage(r, number, &info, hotbed_manifest_origin(m, table)));
    const hotbed_dtype states = hotbed_row_types_of(&info).states;
    const bool trains =
        hotbed_storage_optimizer(hotbed_storages_of(r->storages, number))->kind != 0;
    if (r->strict && trains && table->state_dtype != states)
        return hotbed_error_value(
            differs(
                info.name, "state_dtype", hotbed_dtype_name(table->state_dtype),
                hotbed_dtype_name(states)),
            "state_dtype", table->state_dtype);
    r->taken[found] = HOTBED_TAKEN;
    r->numbers[found] = number;
    return HOTBED_OK;
}

/* Fail because no table is loaded, and say why one is not, at best one that both have. */
static hotbed_status fail_none(const reader *r) {
    const hotbed_manifest *m = &r->links[0].manifest;
    uint32_t t = 0;
    while (t + 1 < m->num_tables && r->taken[t] == HOTBED_TAKEN_DROPPED)
        t++;
    const char *why = r->taken[t] == HOTBED_TAKEN_KIND  ? "is of another kind there, hash or static"
                      : r->taken[t] == HOTBED_TAKEN_DIM ? "has another dim there"
                                                        : "is not among them";
    return hotbed_fail_path_table(
        HOTBED_ERR_STATE, r->links[0].directory.name, m->tables[t].name,
        "%s has no rows for any table of the storages: its table '%s' %s",
        r->links[0].directory.name, m->tables[t].name, why);
}

/* Find the tables of the storages in the checkpoint. */
static hotbed_status match(reader *r) {
    const hotbed_manifest *m = &r->links[0].manifest;
    uint32_t left = 0, loaded = 0;
    if (m->increment)
        return hotbed_fail_value(
            HOTBED_ERR_STATE, "increments", r->num_links - 1,
            "%s is an increment: load the full checkpoint at the start of its chain, with this one "
            "in `increments`",
            r->links[0].directory.name);
    r->numbers = hotbed_new(m->num_tables * sizeof *r->numbers);
    r->taken = hotbed_new(m->num_tables * sizeof *r->taken);
    r->is_new = hotbed_new(r->storages->num_tables * sizeof *r->is_new);
    HOTBED_TRY_MEMORY(
        r->numbers != NULL && r->taken != NULL && r->is_new != NULL, "%" PRIu32 " tables",
        m->num_tables);
    for (uint32_t i = 0; i < m->num_tables; i++) {
        r->numbers[i] = UINT32_MAX;
        r->taken[i] = HOTBED_TAKEN_DROPPED;
    }
    for (uint32_t i = 0; i < r->storages->num_tables; i++)
        HOTBED_TRY(match_table(r, i));
    for (uint32_t i = 0; i < m->num_tables; i++) {
        loaded += r->numbers[i] != UINT32_MAX;
        left = r->numbers[i] == UINT32_MAX ? i : left;
    }
    if (loaded == 0)
        return fail_none(r);
    if (r->strict && loaded < m->num_tables)
        return hotbed_error_path(
            hotbed_fail_table_limit(
                HOTBED_ERR_STATE, m->tables[left].name, NULL, m->num_tables,
                r->storages->num_tables,
                "%s has %" PRIu32 " tables, but the storages have %" PRIu32
                ": the storages have no table '%s'",
                r->links[0].directory.name, m->num_tables, r->storages->num_tables,
                m->tables[left].name),
            r->links[0].directory.name);
    return HOTBED_OK;
}

/* Return the storage of a table that is loaded, and the table's number there. */
static hotbed_storage *storage_of(const reader *r, uint32_t table) {
    return hotbed_storages_of(r->storages, r->numbers[table]);
}

static uint32_t number_of(const reader *r, uint32_t table) {
    return hotbed_storages_number(r->storages, r->numbers[table]);
}

/* Set the state that a storage gets: of the origin of its first loaded table, with the highest clock
 * and time of all origins. Returns this origin, or NULL: no table of the storage is loaded. */
static const hotbed_manifest_storage *state_of(
    const reader *r, uint32_t storage, hotbed_storage_state *out) {
    const hotbed_manifest *m = last_of(r);
    const hotbed_manifest_storage *first = NULL;
    uint32_t least = UINT32_MAX;
    uint64_t clock = 0, time = 0;
    for (uint32_t t = 0; t < m->num_tables; t++) {
        const hotbed_manifest_storage *origin = hotbed_manifest_origin(m, &m->tables[t]);
        if (r->numbers[t] == UINT32_MAX || r->storages->tables[r->numbers[t]].storage != storage)
            continue;
        clock = origin->state.clock > clock ? origin->state.clock : clock;
        time = origin->state.time > time ? origin->state.time : time;
        first = r->numbers[t] < least ? origin : first;
        least = r->numbers[t] < least ? r->numbers[t] : least;
    }
    if (first != NULL) {
        *out = first->state;
        out->size = sizeof *out;
        out->clock = clock;
        out->time = time;
    }
    return first;
}

/* --- rows ------------------------------------------------------------------------------------------ */

/* A table that is being loaded. */
typedef struct table_reader {
    reader *r;
    const hotbed_manifest *m;
    uint32_t number; /* in the storages */
    uint32_t table;  /* in the manifest */
    uint64_t rows;   /* STATIC: of the table on all ranks */
    uint32_t turn;   /* counts the stagings that were used */
    hotbed_staging stagings[2];
} table_reader;

/* Keep the rows of this rank, with the keys that its storage uses, and return their number. */
static uint64_t keep(table_reader *t, hotbed_staging *staging, uint64_t n) {
    const hotbed_checkpoint_share *share = &t->r->share;
    uint64_t *keys = staging->columns[HOTBED_COLUMN_KEYS], kept = 0;
    bool is_static = t->m->tables[t->table].kind == HOTBED_TABLE_STATIC;
    if (share->routes == NULL && !is_static)
        return n;
    for (uint64_t i = 0; i < n; i++) {
        if ((is_static && keys[i] >= t->rows) || !hotbed_share_has(share, t->number, keys[i]))
            continue;
        keys[kept] = hotbed_share_local(share, t->number, is_static, keys[i]);
        for (uint32_t c = HOTBED_COLUMN_VALUES; c < HOTBED_ROW_COLUMNS && kept < i; c++)
            if (staging->row_bytes[c] > 0)
                memcpy(
                    (char *)staging->columns[c] + kept * staging->row_bytes[c],
                    (const char *)staging->columns[c] + i * staging->row_bytes[c],
                    staging->row_bytes[c]);
        kept++;
    }
    return kept;
}

/* Convert the first n rows to the types of the storage, in place. */
static hotbed_status convert(const table_reader *t, hotbed_staging *s, uint64_t n) {
    const hotbed_manifest_table *table = &t->m->tables[t->table];
    const hotbed_checkpoint_share *share = &t->r->share;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        hotbed_unfit unfit;
        if (s->row_bytes[i] == 0 || s->from[i].dim == 0 || s->from[i].dtype == s->to[i].dtype ||
            hotbed_weights_convert(
                s->from[i].dtype, s->columns[i], s->to[i].dtype, s->columns[i], s->from[i].dim, n,
                &unfit))
            continue;
        uint64_t key = ((const uint64_t *)s->columns[HOTBED_COLUMN_KEYS])[unfit.row];
        if (share->routes != NULL && table->kind == HOTBED_TABLE_STATIC)
            key = hotbed_route_key(&share->routes[t->number], share->rank, key);
        return hotbed_manifest_unfit_fail(t->m, table, i, key, s->to[i].dtype, unfit.value);
    }
    return HOTBED_OK;
}

/* Return the next staging, after its last chunk is in the storage. */
static hotbed_status next_staging(table_reader *t, hotbed_staging **out) {
    *out = &t->stagings[t->turn++ % 2];
    return hotbed_staging_wait(*out);
}

/* Load the rows of a part, chunk by chunk. Files are read while the chunk before is stored. */
static hotbed_status read_rows(table_reader *t, hotbed_part_reader *part) {
    for (uint64_t left; (left = hotbed_part_reader_left(part)) > 0;) {
        hotbed_staging *staging;
        HOTBED_TRY(next_staging(t, &staging));
        uint64_t n = left < staging->capacity ? left : staging->capacity;
        HOTBED_TRY(hotbed_part_reader_take(part, n, staging->columns));
        n = keep(t, staging, n);
        HOTBED_TRY(convert(t, staging, n));
        HOTBED_TRY(hotbed_staging_store(
            staging, storage_of(t->r, t->table), number_of(t->r, t->table), n, t->r->stream));
    }
    return HOTBED_OK;
}

/* Read the keys of a column that has no rows: erase those that an increment lists as erased, before its
 * rows are loaded, or load those that admission counts, with the counts in the SCORES column. */
static hotbed_status read_keys(
    table_reader *t, hotbed_part_reader *part, uint32_t column, uint64_t left) {
    const bool counted = column == HOTBED_COLUMN_COUNTED;
    while (left > 0) {
        hotbed_staging *staging;
        HOTBED_TRY(next_staging(t, &staging));
        uint64_t n = left < staging->capacity ? left : staging->capacity;
        HOTBED_TRY(hotbed_part_reader_keys(part, column, n, staging->columns[HOTBED_COLUMN_KEYS]));
        if (counted)
            HOTBED_TRY(hotbed_part_reader_counts(part, n, staging->columns[HOTBED_COLUMN_SCORES]));
        left -= n;
        n = keep(t, staging, n);
        HOTBED_TRY((counted ? hotbed_staging_count : hotbed_staging_erase)(
            staging, storage_of(t->r, t->table), number_of(t->r, t->table), n, t->r->stream));
    }
    return HOTBED_OK;
}

/* Whether the ranks read the rows of a table for each other, and redistribute them. */
static bool redistributed(const reader *r, const hotbed_manifest *m, uint32_t table) {
    return r->comm != NULL && r->share.world > 1 && r->numbers[table] != UINT32_MAX &&
           !hotbed_share_is(&r->share, r->numbers[table], m, &m->tables[table]);
}

/* Whether the rows of a rank, here or in the checkpoint, are not a block of rows. */
static bool is_scattered(const reader *r, const hotbed_manifest *m, uint32_t table) {
    return m->tables[table].kind == HOTBED_TABLE_HASH ||
           hotbed_manifest_deals(m, &m->tables[table]) ||
           hotbed_share_deals(&r->share, r->numbers[table]);
}

/* Limit a part of a static table to the rows of this rank. An increment may have any of them, so it
 * is not limited. */
static void narrow(const table_reader *t, hotbed_part_reader *part) {
    uint64_t least = part->part->first, most = part->part->end, first = 0, end = 0;
    if (t->m->increment || is_scattered(t->r, t->m, t->table))
        return;
    hotbed_share_rows(&t->r->share, t->number, part->table->capacity, &first, &end);
    first = first < least ? least : first > most ? most : first;
    end = end < first ? first : end > most ? most : end;
    hotbed_part_reader_range(part, first - least, end - least);
}

/* Load this rank's rows of one part. */
static hotbed_status read_part(table_reader *t, hotbed_shard_reader *shard, bool last) {
    hotbed_part_reader part;
    bool rows = !redistributed(t->r, t->m, t->table);
    hotbed_status status = hotbed_part_reader_open(&part, shard, t->table, rows);
    HOTBED_THEN(status, read_keys(t, &part, HOTBED_COLUMN_ERASED, part.part->erased));
    if (status == HOTBED_OK && rows) {
        if (part.table->kind == HOTBED_TABLE_STATIC)
            narrow(t, &part);
        status = read_rows(t, &part);
    }
    if (status == HOTBED_OK && last)
        status = read_keys(t, &part, HOTBED_COLUMN_COUNTED, part.part->counted);
    hotbed_part_reader_close(&part);
    return status;
}

/* Whether a part may have rows of this rank. */
static bool needs(const reader *r, const hotbed_manifest *m, uint32_t table, uint32_t shard) {
    const hotbed_manifest_part *part = &m->parts[(uint64_t)table * m->world + shard];
    if (r->numbers[table] == UINT32_MAX)
        return false;
    if (redistributed(r, m, table))
        return part->erased > 0 || part->counted > 0;
    if (is_scattered(r, m, table))
        return !hotbed_share_is(&r->share, r->numbers[table], m, &m->tables[table]) ||
               shard == r->share.rank;
    uint64_t first = 0, end = 0;
    hotbed_share_rows(&r->share, r->numbers[table], m->tables[table].capacity, &first, &end);
    return first < part->end && part->first < end;
}

static hotbed_status read_table(
    reader *r, const hotbed_manifest *m, hotbed_shard_reader *shard, uint32_t table, bool last) {
    table_reader t = {.r = r, .m = m, .number = r->numbers[table], .table = table};
    hotbed_table_info info;
    HOTBED_TRY(hotbed_storages_info(r->storages, t.number, &info));
    t.rows = rows_of(r, t.number, &info);
    const hotbed_manifest_part *part = &m->parts[(uint64_t)table * m->world + shard->number];
    uint64_t rows = part->rows > part->counted ? part->rows : part->counted;
    rows = rows > part->erased ? rows : part->erased;
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < 2 && status == HOTBED_OK; i++)
        status = hotbed_staging_create(
            m, &m->tables[table], hotbed_row_types_of(&info), rows, r->stream, &t.stagings[i]);
    HOTBED_THEN(status, read_part(&t, shard, last));
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(r->stream);
    else
        status = hotbed_stream_settle(r->stream, status);
    hotbed_staging_destroy(&t.stagings[0]);
    hotbed_staging_destroy(&t.stagings[1]);
    return status;
}

/* Open workers for the largest shard. */
static hotbed_status open_workers(reader *r) {
    uint64_t most = 0;
    for (uint32_t k = 0; k < r->num_links; k++)
        for (uint32_t i = 0; i < r->links[k].manifest.world; i++) {
            uint64_t blocks = r->links[k].manifest.shards[i].num_blocks;
            most = blocks > most ? blocks : most;
        }
    return hotbed_io_workers_open(&r->workers, hotbed_io_workers_for(most));
}

static hotbed_io_workers *workers_of(reader *r) {
    return r->workers.num == 0 ? NULL : &r->workers;
}

/* Whether no other rank reads the rows of a shard. Ranks that share a shard find its bytes in the
 * page cache. */
static bool is_alone(const reader *r, const hotbed_manifest *m, uint32_t number) {
    return r->share.world == 1 || r->comm != NULL ||
           (m->world == r->share.world && number == r->share.rank);
}

static hotbed_status read_shard(reader *r, uint32_t number_of, uint32_t number) {
    const link *from = &r->links[number_of];
    const hotbed_manifest *m = &from->manifest;
    hotbed_shard_reader shard;
    bool wanted = false, last = number_of == r->num_links - 1;
    for (uint32_t i = 0; i < m->num_tables && !wanted; i++)
        wanted = needs(r, m, i, number);
    if (!wanted)
        return HOTBED_OK;
    hotbed_status status = hotbed_shard_reader_open(&shard, &from->directory, m, number);
    if (status == HOTBED_OK)
        status = hotbed_shard_reader_ahead(
            &shard, &from->directory, workers_of(r), is_alone(r, m, number));
    for (uint32_t i = 0; i < m->num_tables && status == HOTBED_OK; i++)
        if (needs(r, m, i, number))
            status = read_table(r, m, &shard, i, last);
    hotbed_shard_reader_close(&shard);
    return status;
}

/* Check what can be checked before any effect: every shard exists and has the right size, metadata
 * and roots. The ranks of a communicator divide the shards. */
static hotbed_status check_shards(const reader *r, const link *from) {
    const hotbed_manifest *m = &from->manifest;
    uint32_t ranks = r->comm == NULL ? 1 : r->share.world;
    for (uint32_t i = 0; i < m->world; i++) {
        hotbed_shard_reader shard;
        if (i % ranks != (r->comm == NULL ? 0 : r->share.rank))
            continue;
        hotbed_status status = hotbed_shard_reader_open(&shard, &from->directory, m, i);
        HOTBED_THEN(status, hotbed_shard_reader_check(&shard));
        hotbed_shard_reader_close(&shard);
        HOTBED_TRY(status);
    }
    return HOTBED_OK;
}

/* Count the rows of a table on this rank after the load, and check that nothing but this load has
 * inserted rows. A table may have fewer keys than the checkpoint: if rows do not fit, eviction keeps
 * the highest scores. */
static hotbed_status count_table(reader *r, uint32_t table, uint64_t *rows) {
    const hotbed_manifest_table *saved = &r->links[0].manifest.tables[table];
    uint64_t most = 0;
    *rows = 0;
    if (r->numbers[table] == UINT32_MAX)
        return HOTBED_OK;
    if (saved->kind == HOTBED_TABLE_STATIC) {
        hotbed_table_info info;
        HOTBED_TRY(hotbed_storages_info(r->storages, r->numbers[table], &info));
        *rows = hotbed_share_count(&r->share, r->numbers[table], info.capacity, saved->capacity);
        return HOTBED_OK;
    }
    HOTBED_TRY(
        hotbed_storage_size(storage_of(r, table), number_of(r, table), rows, NULL, r->stream));
    for (uint32_t i = 0; i < r->num_links; i++)
        most += r->links[i].manifest.tables[table].rows;
    return *rows <= most ? HOTBED_OK
                         : hotbed_fail_table_limit(
                               HOTBED_ERR_STATE, saved->name, NULL, *rows, most,
                               "table '%s' was changed while it was loaded: %" PRIu64
                               " keys, expected %" PRIu64,
                               saved->name, *rows, most);
}

static hotbed_status clear(reader *r) {
    for (uint32_t i = 0; i < r->links[0].manifest.num_tables; i++) {
        if (r->numbers[i] == UINT32_MAX)
            continue;
        HOTBED_TRY(hotbed_storage_clear(storage_of(r, i), number_of(r, i), r->stream));
        r->touched = true;
    }
    return HOTBED_OK;
}

/* Grow a table before its rows are loaded, so far that the first batches after the load find space
 * for their new keys. A rank of a routed table has about an equal share; six standard deviations
 * above the mean bound it. */
static hotbed_status grow_table(reader *r, uint32_t table) {
    const uint32_t number = r->numbers[table];
    uint64_t rows = 0;
    if (number == UINT32_MAX)
        return HOTBED_OK;
    for (uint32_t i = 0; i < r->num_links; i++)
        rows += r->links[i].manifest.tables[table].rows;
    if (r->share.routes != NULL && r->share.routes[number].world > 1) {
        uint64_t mean = rows / r->share.routes[number].world + 1;
        uint64_t most = mean + (uint64_t)(6.0 * sqrt((double)mean)) + 1;
        rows = most < rows ? most : rows;
    }
    return hotbed_growth_reserve(storage_of(r, table), number_of(r, table), rows, r->stream);
}

static hotbed_status grow_tables(reader *r) {
    for (uint32_t i = 0; i < r->links[0].manifest.num_tables; i++)
        HOTBED_TRY(grow_table(r, i));
    return HOTBED_OK;
}

/* Clear the loaded tables after a failure, so that no part of the rows remains. */
static hotbed_status clear_after(reader *r, hotbed_status status) {
    hotbed_error error;
    hotbed_error_copy(&error);
    if (clear(r) == HOTBED_OK)
        return status;
    return hotbed_fail_again(
        &error.fields, status, "%s; the tables could not be cleared", error.text);
}

/* Add to a failure for lack of slots how many a table needs. */
static hotbed_status explain_full(const reader *r, hotbed_status status) {
    uint64_t most = 0;
    if (status != HOTBED_ERR_FULL)
        return status;
    for (uint32_t i = 0; i < r->num_links; i++)
        for (uint32_t t = 0; t < r->links[i].manifest.num_tables; t++) {
            const uint64_t rows = r->links[i].manifest.tables[t].rows;
            most = rows > most ? rows : most;
        }
    return HOTBED_FAIL_AFTER(
        status, "%s; the largest table of the checkpoint has %" PRIu64 " rows%s",
        hotbed_last_error(), most, r->num_links > 1 ? " or more" : "");
}

/* Load the tables whose rows the ranks redistribute. */
static hotbed_status read_redistributed(reader *r, const link *from) {
    for (uint32_t t = 0; t < from->manifest.num_tables; t++) {
        hotbed_table_info info;
        if (!redistributed(r, &from->manifest, t))
            continue;
        HOTBED_TRY(hotbed_storages_info(r->storages, r->numbers[t], &info));
        hotbed_redistribution job = {
            .comm = r->comm,
            .stream = r->stream,
            .storage = storage_of(r, t),
            .number = number_of(r, t),
            .share = &r->share,
            .route = r->numbers[t],
            .directory = &from->directory,
            .manifest = &from->manifest,
            .table = t,
            .types = hotbed_row_types_of(&info),
            .rows = rows_of(r, r->numbers[t], &info),
            .workers = workers_of(r),
        };
        HOTBED_TRY(hotbed_vote(r->comm, hotbed_redistribute(&job), r->stream));
    }
    return HOTBED_OK;
}

static hotbed_status read_link(reader *r, uint32_t number) {
    for (uint32_t i = 0; i < r->links[number].manifest.world; i++)
        HOTBED_TRY(read_shard(r, number, i));
    return HOTBED_OK;
}

/* Return this rank's status or, with a communicator, the result of a vote of all ranks. */
static hotbed_status agree(reader *r, hotbed_status status) {
    return r->comm == NULL ? status : hotbed_vote(r->comm, status, r->stream);
}

static hotbed_status read_rows_of_all(reader *r) {
    HOTBED_TRY(agree(r, open_workers(r)));
    HOTBED_TRY(agree(r, clear(r)));
    HOTBED_TRY(agree(r, grow_tables(r)));
    for (uint32_t k = 0; k < r->num_links; k++) {
        HOTBED_TRY(agree(r, read_link(r, k)));
        HOTBED_TRY(read_redistributed(r, &r->links[k]));
    }
    for (uint32_t i = 0; i < r->storages->n; i++) {
        hotbed_storage_state state;
        if (state_of(r, i, &state) != NULL)
            HOTBED_TRY(hotbed_storage_set_state(r->storages->all[i], &state, r->stream));
    }
    return HOTBED_OK;
}

/* Read the MANIFEST of the checkpoint and of its increments, and check that each follows the one
 * before. */
static hotbed_status read_links(
    reader *r, const hotbed_io_calls *calls, const char *path,
    const hotbed_checkpoint_load_options *options) {
    uint32_t n = options->num_increments + 1;
    r->links = hotbed_new(n * sizeof *r->links);
    HOTBED_TRY_MEMORY(r->links, "%" PRIu32 " checkpoints", n);
    r->num_links = n;
    for (uint32_t i = 0; i < n; i++)
        r->links[i].directory = (hotbed_io_file)HOTBED_IO_CLOSED;
    for (uint32_t i = 0; i < n; i++) {
        link *here = &r->links[i];
        HOTBED_TRY(hotbed_io_open(
            calls, NULL, i == 0 ? path : options->increments[i - 1], HOTBED_IO_DIRECTORY,
            &here->directory));
        HOTBED_TRY(hotbed_manifest_read(&here->directory, &here->manifest));
        if (i > 0)
            HOTBED_TRY(hotbed_chain_check(
                here->directory.name, r->links[i - 1].directory.name, &r->links[i - 1].manifest,
                &here->manifest));
    }
    return HOTBED_OK;
}

/* Do everything that can fail before anything changes. */
static hotbed_status prepare(
    reader *r, const char *path, const hotbed_checkpoint_load_options *options) {
    HOTBED_TRY(hotbed_share_read(&options->share, r->storages, &r->share));
    HOTBED_TRY(read_links(r, r->config->calls, path, options));
    HOTBED_TRY(match(r));
    for (uint32_t i = 0; i < r->storages->n; i++) {
        hotbed_storage_state state;
        if (state_of(r, i, &state) != NULL)
            HOTBED_TRY(hotbed_storage_check_state(
                &state, hotbed_storage_optimizer(r->storages->all[i])->kind));
    }
    for (uint32_t i = 0; i < r->num_links; i++)
        HOTBED_TRY(check_shards(r, &r->links[i]));
    return hotbed_stream_sync(r->stream); /* a fault of earlier work must not end the load later */
}

/* The chain that a rank loads, and the tables that it loads of it. */
typedef struct chain_name {
    uint64_t num_links, strict;
    hotbed_digest taken;
    hotbed_digest first, all; /* digest of the full checkpoint, and of the digests of all links */
} chain_name;

/* Check that all ranks load the same tables of the same chain as rank 0. Identical copies of a checkpoint are equal. */
static hotbed_status compare_links(const reader *r) {
    if (r->comm == NULL)
        return HOTBED_OK;
    chain_name own = {.num_links = r->num_links, .strict = r->strict}, first;
    hotbed_digest *digests = hotbed_new(r->num_links * sizeof *digests);
    hotbed_status status = HOTBED_CHECK_MEMORY(digests, "%" PRIu32 " checkpoints", r->num_links);
    for (uint32_t i = 0; status == HOTBED_OK && i < r->num_links; i++)
        digests[i] = r->links[i].manifest.digest;
    if (status == HOTBED_OK) {
        own.first = digests[0];
        own.all = hotbed_digest_of(digests, r->num_links * sizeof *digests);
        own.taken = hotbed_digest_of(r->taken, r->links[0].manifest.num_tables * sizeof *r->taken);
    }
    hotbed_delete(digests);
    first = own;
    HOTBED_TRY(hotbed_vote_with(r->comm, status, &first, sizeof first, r->stream));
    const uint32_t rank = hotbed_comm_rank(r->comm);
    if (!hotbed_digest_equal(own.first, first.first))
        status = hotbed_error_path(
            hotbed_fail_rank(
                HOTBED_ERR_STATE, rank, "rank %" PRIu32 " loads another checkpoint than rank 0: %s",
                rank, r->links[0].directory.name),
            r->links[0].directory.name);
    else if (own.num_links != first.num_links)
        status = hotbed_fail_rank_limit(
            HOTBED_ERR_STATE, rank, NULL, (double)own.num_links - 1, (double)first.num_links - 1,
            "rank %" PRIu32 " loads %" PRIu64 " increments, rank 0 %" PRIu64, rank,
            own.num_links - 1, first.num_links - 1);
    else if (!hotbed_digest_equal(own.all, first.all))
        status = hotbed_fail_rank(
            HOTBED_ERR_STATE, rank, "rank %" PRIu32 " loads other increments than rank 0", rank);
    else if (!hotbed_digest_equal(own.taken, first.taken) || own.strict != first.strict)
        status = hotbed_fail_rank(
            HOTBED_ERR_STATE, rank,
            "rank %" PRIu32 " has other tables than rank 0, or only one of the two "
            "asks for a report",
            rank);
    return hotbed_vote(r->comm, status, r->stream);
}

/* --- the result -------------------------------------------------------------------------------------- */

/* Count the rows of every table of the checkpoint: on all ranks of the communicator, or on this
 * rank. */
static hotbed_status count_rows(reader *r, uint64_t *loaded) {
    const hotbed_manifest *m = last_of(r);
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < m->num_tables && status == HOTBED_OK; i++)
        status = count_table(r, i, &loaded[i]);
    return r->comm == NULL ? status
                           : hotbed_vote_sum(r->comm, status, loaded, m->num_tables, r->stream);
}

static uint64_t saved_rows(const hotbed_manifest_table *table) {
    return table->kind == HOTBED_TABLE_HASH ? table->keys : table->capacity;
}

/* Whether rows of a table were not loaded. Without a communicator, a rank does not know what others
 * have loaded. */
static bool is_lossy(const reader *r, uint32_t table, uint64_t loaded) {
    const bool known = r->comm != NULL || r->share.world == 1 || r->taken[table] != HOTBED_TAKEN;
    return known && loaded < saved_rows(&last_of(r)->tables[table]);
}

static void add_to_report(hotbed_checkpoint_report *report, const hotbed_checkpoint_table *table) {
    if (report->num_tables < report->capacity)
        report->tables[report->num_tables] = *table;
    report->num_tables++;
}

static hotbed_status describe(
    const reader *r, const uint64_t *loaded, hotbed_checkpoint_report *report) {
    const hotbed_manifest *m = last_of(r);
    report->step = m->step;
    report->num_tables = report->num_lossy = 0;
    for (uint32_t i = 0; i < m->num_tables; i++) {
        hotbed_checkpoint_table table = {
            .taken = r->taken[i],
            .dim = m->tables[i].dim,
            .saved = saved_rows(&m->tables[i]),
            .loaded = loaded[i],
            .optimizer_steps = hotbed_manifest_origin(m, &m->tables[i])->state.optimizer_steps,
            .learning_rate = hotbed_manifest_origin(m, &m->tables[i])->state.learning_rate,
        };
        snprintf(table.name, sizeof table.name, "%s", m->tables[i].name);
        add_to_report(report, &table);
        report->num_lossy += is_lossy(r, i, loaded[i]);
    }
    for (uint32_t i = 0; i < r->storages->num_tables; i++) {
        hotbed_table_info info;
        HOTBED_TRY(hotbed_storages_info(r->storages, i, &info));
        hotbed_checkpoint_table table = {.taken = HOTBED_TAKEN_NEW, .dim = info.dim};
        snprintf(table.name, sizeof table.name, "%s", info.name);
        if (r->is_new[i])
            add_to_report(report, &table);
    }
    return HOTBED_OK;
}

/* Whether the storages now have the rows of the last checkpoint, all and unchanged, in the same
 * tables and on the same ranks, so that an increment can follow it. */
static bool is_exact(const reader *r, const uint64_t *loaded) {
    const hotbed_manifest *m = last_of(r);
    if (r->storages->num_tables != m->num_tables)
        return false;
    for (uint32_t i = 0; i < m->num_tables; i++) {
        hotbed_table_info info;
        if (r->numbers[i] != i || is_lossy(r, i, loaded[i]) ||
            (r->comm == NULL && r->share.world > 1) || /* what others lost is unknown */
            hotbed_storages_info(r->storages, i, &info) != HOTBED_OK ||
            info.dtype != m->tables[i].dtype ||
            hotbed_row_types_of(&info).states != m->tables[i].state_dtype ||
            !hotbed_share_is(&r->share, i, m, &m->tables[i]) ||
            hotbed_storage_optimizer(hotbed_storages_of(r->storages, i))->kind !=
                hotbed_manifest_optimizer(m, &m->tables[i]) ||
            (info.score == HOTBED_SCORE_TIMESTAMP_LFU) != m->tables[i].times ||
            (info.kind == HOTBED_TABLE_HASH &&
             m->tables[i].bucket_bits != r->config->bucket_bits) ||
            (info.kind == HOTBED_TABLE_STATIC && rows_of(r, i, &info) != m->tables[i].capacity))
            return false;
    }
    return true;
}

static hotbed_status fill_mark(
    const reader *r, const uint64_t *loaded, hotbed_checkpoint_mark *mark, bool *marked) {
    const hotbed_digest id = last_of(r)->id;
    *marked = mark != NULL && is_exact(r, loaded);
    if (mark == NULL)
        return HOTBED_OK;
    if (*marked)
        return hotbed_save_mark(
            r->config, r->storages, &r->share,
            (hotbed_checkpoint_id){.low = id.low, .high = id.high}, mark, r->stream);
    hotbed_marked_clear(&mark->last);
    hotbed_marked_clear(&mark->before);
    return HOTBED_OK;
}

static hotbed_status load(
    reader *r, const hotbed_checkpoint_load_options *options, hotbed_checkpoint_report *report) {
    HOTBED_TRY(agree(r, read_rows_of_all(r)));
    const uint32_t n = last_of(r)->num_tables;
    bool marked = false;
    uint64_t *loaded = hotbed_new(n * sizeof *loaded);
    hotbed_status status = HOTBED_CHECK_MEMORY(loaded, "%" PRIu32 " tables", n);
    status = agree(r, status);
    assert(status != HOTBED_OK || loaded != NULL);
    HOTBED_THEN(status, count_rows(r, loaded));
    HOTBED_THEN(status, agree(r, fill_mark(r, loaded, options->mark, &marked)));
    if (status == HOTBED_OK && report != NULL) {
        status = describe(r, loaded, report);
        report->marked = marked;
    }
    hotbed_delete(loaded);
    return status;
}

/* Note in the storages whose seeds differ from the checkpoint's that this matters. Conversions of
 * other formats have no steps, and no seed. */
static void warn_of_seeds(const reader *r) {
    for (uint32_t i = 0; i < r->storages->n; i++) {
        hotbed_storage_state state;
        const hotbed_manifest_storage *origin = state_of(r, i, &state);
        if (origin != NULL && origin->state.optimizer_steps > 0)
            hotbed_storage_warn_of_seed(r->storages->all[i], origin->seed);
    }
}

hotbed_status hotbed_checkpoint_read(
    const hotbed_checkpoint_config *config, const char *path, const hotbed_storages *storages,
    const hotbed_checkpoint_load_options *options, hotbed_checkpoint_report *report,
    hotbed_stream *stream) {
    reader r = {
        .config = config,
        .storages = storages,
        .stream = stream,
        .comm = options->comm,
        .strict = report == NULL,
    };
    hotbed_status status = agree(&r, prepare(&r, path, options));
    HOTBED_THEN(status, compare_links(&r));
    HOTBED_THEN(status, explain_full(&r, load(&r, options, report)));
    if (status != HOTBED_OK && r.touched)
        status = clear_after(&r, status);
    if (status == HOTBED_OK)
        warn_of_seeds(&r);
    hotbed_io_workers_close(&r.workers);
    for (uint32_t i = 0; i < r.num_links; i++) {
        hotbed_io_drop(&r.links[i].directory);
        hotbed_manifest_free(&r.links[i].manifest);
    }
    hotbed_delete(r.links);
    hotbed_delete(r.numbers);
    hotbed_delete(r.taken);
    hotbed_delete(r.is_new);
    return status;
}

/* --- blobs ------------------------------------------------------------------------------------------- */

static hotbed_status read_blob(
    const hotbed_io_file *directory, const hotbed_manifest *m, const char *name, void *data,
    uint64_t *bytes) {
    const hotbed_manifest_blob *blob = hotbed_manifest_find_blob(m, name);
    if (blob == NULL)
        return hotbed_fail_path(
            HOTBED_ERR_ARGUMENT, directory->name, "%s has no blob '%.80s'; it has %" PRIu32 "%s%s",
            directory->name, name, m->num_blobs, m->num_blobs == 0 ? "" : ", the first is ",
            m->num_blobs == 0 ? "" : m->blobs[0].name);
    if (data != NULL && *bytes < blob->extent.bytes)
        return hotbed_fail_path_limit(
            HOTBED_ERR_ARGUMENT, directory->name, "bytes", *bytes, blob->extent.bytes,
            "%s: blob '%s' has %" PRIu64 " bytes, but the buffer has %" PRIu64, directory->name,
            name, blob->extent.bytes, *bytes);
    hotbed_shard_reader shard;
    hotbed_status status = HOTBED_OK;
    if (data != NULL) {
        status = hotbed_shard_reader_open(&shard, directory, m, 0);
        HOTBED_THEN(status, hotbed_shard_reader_blob(&shard, (uint32_t)(blob - m->blobs), data));
        hotbed_shard_reader_close(&shard);
    }
    if (status == HOTBED_OK)
        *bytes = blob->extent.bytes;
    return status;
}

hotbed_status hotbed_blob_read(
    const hotbed_io_calls *calls, const char *path, const char *name, void *data, uint64_t *bytes) {
    hotbed_io_file directory = HOTBED_IO_CLOSED;
    hotbed_manifest m = {.world = 0};
    hotbed_status status = hotbed_io_open(calls, NULL, path, HOTBED_IO_DIRECTORY, &directory);
    HOTBED_THEN(status, hotbed_manifest_read(&directory, &m));
    HOTBED_THEN(status, read_blob(&directory, &m, name, data, bytes));
    hotbed_io_drop(&directory);
    hotbed_manifest_free(&m);
    return status;
}
