/* checkpoint/reader.c - load: MANIFEST first, then rows; each block is checked before it is
 * used. */
#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/chain.h"
#include "checkpoint/redistribute.h"
#include "checkpoint/share.h"
#include "checkpoint/staging.h"
#include "storage/storage.h"

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
    hotbed_storage *storage;
    hotbed_stream *stream;
    hotbed_checkpoint_share share;
    hotbed_comm *comm; /* NULL: this rank loads alone */
    uint32_t num_links;
    link *links;       /* the full checkpoint, then the increments */
    uint32_t *numbers; /* [num_tables] number in the storage of each table of the manifests */
    bool touched;      /* tables have been cleared */
    hotbed_io_workers workers; /* num 0: none */
} reader;

/* --- MANIFEST and the storage ----------------------------------------------------------------------- */

static hotbed_status differs(
    const char *table, const char *what, const char *saved, const char *here) {
    return hotbed_fail(
        HOTBED_ERR_STATE, "table '%s': %s is %s in the checkpoint, %s in the storage", table, what,
        saved, here);
}

static hotbed_status match_table(reader *r, uint32_t number) {
    hotbed_table_info info = {.size = sizeof info};
    uint64_t keys = 0, pinned = 0;
    char saved[24], here[24];
    HOTBED_TRY(hotbed_storage_table(r->storage, number, &info));
    const hotbed_manifest *m = &r->links[0].manifest;
    uint32_t found = hotbed_manifest_find(m, info.name);
    if (found == UINT32_MAX)
        return hotbed_fail(
            HOTBED_ERR_STATE, "%s has no table '%s', which the storage has",
            r->links[0].directory.name, info.name);
    const hotbed_manifest_table *table = &m->tables[found];
    static const char *const kinds[] = {"hash", "static"};
    if (table->kind != info.kind)
        return differs(info.name, "the kind", kinds[table->kind], kinds[info.kind]);
    snprintf(saved, sizeof saved, "%" PRIu32, table->dim);
    snprintf(here, sizeof here, "%" PRIu32, info.dim);
    if (table->dim != info.dim)
        return differs(info.name, "dim", saved, here);
    if (table->dtype != info.dtype)
        return differs(
            info.name, "dtype", hotbed_dtype_name(table->dtype), hotbed_dtype_name(info.dtype));
    uint64_t rows = r->share.routes == NULL ? info.capacity : r->share.routes[number].rows;
    snprintf(saved, sizeof saved, "%" PRIu64, table->capacity);
    snprintf(here, sizeof here, "%" PRIu64, rows);
    if (info.kind == HOTBED_TABLE_STATIC && table->capacity != rows)
        return differs(info.name, "the number of rows", saved, here);
    HOTBED_TRY(hotbed_storage_size(r->storage, number, &keys, &pinned, r->stream));
    if (pinned > 0)
        return hotbed_fail(
            HOTBED_ERR_STATE, "table '%s': tickets hold %" PRIu64 " rows; finish or cancel them",
            info.name, pinned);
    r->numbers[found] = number;
    return HOTBED_OK;
}

static const char *optimizer_name(hotbed_optimizer_kind kind) {
    return kind == 0 ? "none" : hotbed_optimizer_name(kind);
}

/* Fail because the checkpoint has more tables than the storage, and name one of them. */
static hotbed_status fail_extra_table(const reader *r, uint32_t num_tables) {
    const hotbed_manifest *m = &r->links[0].manifest;
    uint32_t extra = 0;
    while (extra + 1 < m->num_tables && r->numbers[extra] != UINT32_MAX)
        extra++;
    return hotbed_fail(
        HOTBED_ERR_STATE,
        "%s has %" PRIu32 " tables, but the storage has %" PRIu32 ": the storage has no table '%s'",
        r->links[0].directory.name, m->num_tables, num_tables, m->tables[extra].name);
}

/* Check that the storage has the tables of the checkpoint, with the same properties. */
static hotbed_status match(reader *r) {
    const hotbed_manifest *m = &r->links[0].manifest;
    hotbed_key_type key_type = hotbed_storage_key_type(r->storage);
    hotbed_optimizer_kind kind = hotbed_storage_optimizer(r->storage)->kind;
    uint32_t num_tables = hotbed_storage_num_tables(r->storage);
    if (m->increment)
        return hotbed_fail(
            HOTBED_ERR_STATE,
            "%s is an increment: load the full checkpoint at the start of its chain, with this one "
            "in `increments`",
            r->links[0].directory.name);
    if (m->key_type != key_type)
        return hotbed_fail(
            HOTBED_ERR_STATE, "keys are %s in the checkpoint, %s in the storage",
            m->key_type == HOTBED_KEY_I64 ? "i64" : "u64",
            key_type == HOTBED_KEY_I64 ? "i64" : "u64");
    if (m->optimizer.kind != kind && kind != 0) /* a storage without optimizer takes weights only */
        return hotbed_fail(
            HOTBED_ERR_STATE, "the optimizer is %s in the checkpoint, %s in the storage",
            optimizer_name(m->optimizer.kind), optimizer_name(kind));
    r->numbers = hotbed_new(m->num_tables * sizeof *r->numbers);
    if (r->numbers == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu32 " tables", m->num_tables);
    for (uint32_t i = 0; i < m->num_tables; i++)
        r->numbers[i] = UINT32_MAX;
    for (uint32_t i = 0; i < num_tables; i++)
        HOTBED_TRY(match_table(r, i));
    /* All names of the storage were found, and names are distinct: equal numbers mean equal
     * sets. */
    return m->num_tables == num_tables ? HOTBED_OK : fail_extra_table(r, num_tables);
}

/* --- rows ------------------------------------------------------------------------------------------ */

/* A table that is being loaded. */
typedef struct table_reader {
    reader *r;
    const hotbed_manifest *m;
    uint32_t number; /* in the storage */
    uint32_t table;  /* in the manifest */
    uint32_t turn;   /* counts the stagings that were used */
    hotbed_staging stagings[2];
} table_reader;

/* Keep the rows of this rank, with the keys that its storage uses, and return their number. */
static uint64_t keep(table_reader *t, hotbed_staging *staging, uint64_t n) {
    const hotbed_checkpoint_share *share = &t->r->share;
    uint64_t *keys = staging->columns[HOTBED_COLUMN_KEYS], kept = 0;
    bool is_static = t->m->tables[t->table].kind == HOTBED_TABLE_STATIC;
    if (share->routes == NULL)
        return n;
    for (uint64_t i = 0; i < n; i++) {
        if (!hotbed_share_has(share, t->number, keys[i]))
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
        HOTBED_TRY(hotbed_staging_store(staging, t->r->storage, t->number, n, t->r->stream));
    }
    return HOTBED_OK;
}

/* Erase the keys that an increment lists as erased. Runs before its rows are loaded. */
static hotbed_status read_erased(table_reader *t, hotbed_part_reader *part) {
    for (uint64_t left = part->part->erased; left > 0;) {
        hotbed_staging *staging;
        HOTBED_TRY(next_staging(t, &staging));
        uint64_t n = left < staging->capacity ? left : staging->capacity;
        HOTBED_TRY(hotbed_part_reader_keys(
            part, HOTBED_COLUMN_ERASED, n, staging->columns[HOTBED_COLUMN_KEYS]));
        left -= n;
        n = keep(t, staging, n);
        HOTBED_TRY(hotbed_staging_erase(staging, t->r->storage, t->number, n, t->r->stream));
    }
    return HOTBED_OK;
}

/* Load the keys that admission counts, with the counts in the SCORES column. */
static hotbed_status read_counted(table_reader *t, hotbed_part_reader *part) {
    for (uint64_t left = part->part->counted; left > 0;) {
        hotbed_staging *staging;
        HOTBED_TRY(next_staging(t, &staging));
        uint64_t n = left < staging->capacity ? left : staging->capacity;
        HOTBED_TRY(hotbed_part_reader_keys(
            part, HOTBED_COLUMN_COUNTED, n, staging->columns[HOTBED_COLUMN_KEYS]));
        HOTBED_TRY(hotbed_part_reader_counts(part, n, staging->columns[HOTBED_COLUMN_SCORES]));
        left -= n;
        n = keep(t, staging, n);
        HOTBED_TRY(hotbed_staging_count(staging, t->r->storage, t->number, n, t->r->stream));
    }
    return HOTBED_OK;
}

/* Whether the ranks read the rows of a table for each other, and redistribute them. */
static bool redistributed(const reader *r, const hotbed_manifest *m, uint32_t table) {
    return r->comm != NULL && r->share.world > 1 &&
           !hotbed_share_is(&r->share, r->numbers[table], m, &m->tables[table]);
}

/* Limit a part of a static table to the rows of this rank. An increment may have any of them, so it
 * is not limited. */
static void narrow(const table_reader *t, hotbed_part_reader *part) {
    uint64_t least = part->part->first, most = part->part->end, first = 0, end = 0;
    if (t->m->increment)
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
    if (status == HOTBED_OK)
        status = read_erased(t, &part);
    if (status == HOTBED_OK && rows) {
        if (part.table->kind == HOTBED_TABLE_STATIC)
            narrow(t, &part);
        status = read_rows(t, &part);
    }
    if (status == HOTBED_OK && last)
        status = read_counted(t, &part);
    hotbed_part_reader_close(&part);
    return status;
}

/* Whether a part may have rows of this rank. */
static bool needs(const reader *r, const hotbed_manifest *m, uint32_t table, uint32_t shard) {
    const hotbed_manifest_part *part = &m->parts[(uint64_t)table * m->world + shard];
    if (redistributed(r, m, table))
        return part->erased > 0 || part->counted > 0;
    if (m->tables[table].kind == HOTBED_TABLE_HASH)
        return !hotbed_share_is(&r->share, r->numbers[table], m, &m->tables[table]) ||
               shard == r->share.rank;
    uint64_t first = 0, end = 0;
    hotbed_share_rows(&r->share, r->numbers[table], m->tables[table].capacity, &first, &end);
    return first < part->end && part->first < end;
}

static hotbed_status read_table(
    reader *r, const hotbed_manifest *m, hotbed_shard_reader *shard, uint32_t table, bool last) {
    table_reader t = {.r = r, .m = m, .number = r->numbers[table], .table = table};
    const hotbed_manifest_part *part = &m->parts[(uint64_t)table * m->world + shard->number];
    uint64_t rows = part->rows > part->counted ? part->rows : part->counted;
    rows = rows > part->erased ? rows : part->erased;
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < 2 && status == HOTBED_OK; i++)
        status = hotbed_staging_create(m, &m->tables[table], rows, r->stream, &t.stagings[i]);
    if (status == HOTBED_OK)
        status = read_part(&t, shard, last);
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
 * and roots. The ranks of a communicator divide the shards. Also reads the caller's bytes, which
 * are in the last checkpoint. */
static hotbed_status check_shards(const reader *r, const link *from, void *extra) {
    const hotbed_manifest *m = &from->manifest;
    uint32_t ranks = r->comm == NULL ? 1 : r->share.world;
    for (uint32_t i = 0; i < m->world; i++) {
        bool mine = i % ranks == (r->comm == NULL ? 0 : r->share.rank);
        bool extra_here = i == 0 && from == &r->links[r->num_links - 1];
        if (!mine && (!extra_here || m->shards[i].extra.bytes == 0))
            continue;
        hotbed_shard_reader shard;
        hotbed_status status = hotbed_shard_reader_open(&shard, &from->directory, m, i);
        if (status == HOTBED_OK && mine)
            status = hotbed_shard_reader_check(&shard);
        if (status == HOTBED_OK && extra_here)
            status = hotbed_shard_reader_extra(&shard, extra);
        hotbed_shard_reader_close(&shard);
        HOTBED_TRY(status);
    }
    return HOTBED_OK;
}

/* Check that nothing but this load has inserted rows. A table may have fewer keys than the
 * checkpoint: if rows do not fit, eviction keeps the highest scores. */
static hotbed_status check_size(reader *r, uint32_t table) {
    uint64_t keys = 0, most = 0;
    HOTBED_TRY(hotbed_storage_size(r->storage, r->numbers[table], &keys, NULL, r->stream));
    const hotbed_manifest_table *saved = &r->links[0].manifest.tables[table];
    for (uint32_t i = 0; i < r->num_links; i++)
        most += r->links[i].manifest.tables[table].rows;
    if (saved->kind == HOTBED_TABLE_HASH && keys > most)
        return hotbed_fail(
            HOTBED_ERR_STATE,
            "table '%s' was changed while it was loaded: %" PRIu64 " keys, expected %" PRIu64,
            saved->name, keys, most);
    return HOTBED_OK;
}

static hotbed_status clear(reader *r) {
    uint32_t n = hotbed_storage_num_tables(r->storage);
    for (uint32_t i = 0; i < n; i++) {
        HOTBED_TRY(hotbed_storage_clear(r->storage, i, r->stream));
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
    for (uint32_t i = 0; i < r->num_links; i++)
        rows += r->links[i].manifest.tables[table].rows;
    if (r->share.routes != NULL && r->share.routes[number].world > 1) {
        uint64_t mean = rows / r->share.routes[number].world + 1;
        uint64_t most = mean + (uint64_t)(6.0 * sqrt((double)mean)) + 1;
        rows = most < rows ? most : rows;
    }
    return hotbed_growth_reserve(r->storage, number, rows, r->stream);
}

static hotbed_status grow_tables(reader *r) {
    for (uint32_t i = 0; i < r->links[0].manifest.num_tables; i++)
        HOTBED_TRY(grow_table(r, i));
    return HOTBED_OK;
}

/* Clear all tables after a failure, so that no part of the rows remains. */
static hotbed_status clear_after(reader *r, hotbed_status status) {
    char text[1024];
    snprintf(text, sizeof text, "%s", hotbed_last_error());
    if (clear(r) == HOTBED_OK)
        return status;
    return hotbed_fail(status, "%s; the tables could not be cleared", text);
}

static const hotbed_manifest *last_of(const reader *r) {
    return &r->links[r->num_links - 1].manifest;
}

/* Load the tables whose rows the ranks redistribute. */
static hotbed_status read_redistributed(reader *r, const link *from) {
    for (uint32_t t = 0; t < from->manifest.num_tables; t++) {
        hotbed_redistribution job = {
            .comm = r->comm,
            .stream = r->stream,
            .storage = r->storage,
            .share = &r->share,
            .number = r->numbers[t],
            .directory = &from->directory,
            .manifest = &from->manifest,
            .table = t,
            .workers = workers_of(r),
        };
        if (redistributed(r, &from->manifest, t))
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
    for (uint32_t i = 0; i < r->links[0].manifest.num_tables; i++)
        HOTBED_TRY(check_size(r, i));
    hotbed_storage_state state = last_of(r)->state;
    state.size = sizeof state;
    return hotbed_storage_set_state(r->storage, &state, r->stream);
}

/* Read the MANIFEST of the checkpoint and of its increments, and check that each follows the one
 * before. */
static hotbed_status read_links(
    reader *r, const hotbed_io_calls *calls, const char *path,
    const hotbed_checkpoint_load_options *options) {
    uint32_t n = options->num_increments + 1;
    r->links = hotbed_new(n * sizeof *r->links);
    if (r->links == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu32 " checkpoints", n);
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

/* Do everything that can fail before anything changes. *held gets the caller's bytes. A failed load
 * must not change its outputs, so these are copied at the end of the load. */
static hotbed_status prepare(
    reader *r, const hotbed_io_calls *calls, const char *path,
    const hotbed_checkpoint_load_options *options, const uint64_t *capacity, void **held) {
    HOTBED_TRY(hotbed_share_read(&options->share, r->storage, &r->share));
    HOTBED_TRY(read_links(r, calls, path, options));
    uint64_t saved = last_of(r)->shards[0].extra.bytes;
    if (capacity != NULL && *capacity < saved)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT,
            "extra has capacity for %" PRIu64 " bytes, but %" PRIu64 " were saved", *capacity,
            saved);
    HOTBED_TRY(match(r));
    HOTBED_TRY(hotbed_storage_check_state(&last_of(r)->state));
    *held = hotbed_new(saved);
    if (*held == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no %" PRIu64 " bytes for extra", saved);
    for (uint32_t i = 0; i < r->num_links; i++)
        HOTBED_TRY(check_shards(r, &r->links[i], *held));
    return hotbed_stream_sync(r->stream); /* a fault of earlier work must not end the load later */
}

/* The chain that a rank loads. */
typedef struct chain_name {
    uint64_t num_links;
    hotbed_digest first, all; /* digest of the full checkpoint, and of the digests of all links */
} chain_name;

/* Check that all ranks load the same chain as rank 0. Identical copies of a checkpoint are equal. */
static hotbed_status compare_links(const reader *r) {
    if (r->comm == NULL)
        return HOTBED_OK;
    chain_name own = {.num_links = r->num_links}, first;
    hotbed_digest *digests = hotbed_new(r->num_links * sizeof *digests);
    hotbed_status status = HOTBED_OK;
    if (digests == NULL)
        status =
            hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu32 " checkpoints", r->num_links);
    for (uint32_t i = 0; status == HOTBED_OK && i < r->num_links; i++)
        digests[i] = r->links[i].manifest.digest;
    if (status == HOTBED_OK) {
        own.first = digests[0];
        own.all = hotbed_digest_of(digests, r->num_links * sizeof *digests);
    }
    hotbed_delete(digests);
    first = own;
    HOTBED_TRY(hotbed_vote_with(r->comm, status, &first, sizeof first, r->stream));
    const uint32_t rank = hotbed_comm_rank(r->comm);
    if (!hotbed_digest_equal(own.first, first.first))
        status = hotbed_fail(
            HOTBED_ERR_STATE, "rank %" PRIu32 " loads another checkpoint than rank 0: %s", rank,
            r->links[0].directory.name);
    else if (own.num_links != first.num_links)
        status = hotbed_fail(
            HOTBED_ERR_STATE, "rank %" PRIu32 " loads %" PRIu64 " increments, rank 0 %" PRIu64,
            rank, own.num_links - 1, first.num_links - 1);
    else if (!hotbed_digest_equal(own.all, first.all))
        status = hotbed_fail(
            HOTBED_ERR_STATE, "rank %" PRIu32 " loads other increments than rank 0", rank);
    return hotbed_vote(r->comm, status, r->stream);
}

hotbed_status hotbed_checkpoint_read(
    const hotbed_checkpoint_config *config, const char *path, hotbed_storage *storage,
    const hotbed_checkpoint_load_options *options, uint64_t *step, void *extra,
    uint64_t *extra_bytes, hotbed_stream *stream) {
    reader r = {.storage = storage, .stream = stream, .comm = options->comm};
    void *held = NULL;
    hotbed_status status = agree(
        &r, prepare(&r, config->calls, path, options, extra == NULL ? NULL : extra_bytes, &held));
    if (status == HOTBED_OK)
        status = compare_links(&r);
    if (status == HOTBED_OK)
        status = agree(&r, read_rows_of_all(&r));
    if (status != HOTBED_OK && r.touched)
        status = clear_after(&r, status);
    /* Conversions of other formats have no steps, and no seed. */
    if (status == HOTBED_OK && last_of(&r)->state.optimizer_steps > 0)
        hotbed_storage_warn_of_seed(storage, last_of(&r)->seed);
    if (status == HOTBED_OK && step != NULL)
        *step = last_of(&r)->step;
    if (status == HOTBED_OK && extra != NULL && last_of(&r)->shards[0].extra.bytes > 0)
        memcpy(extra, held, last_of(&r)->shards[0].extra.bytes);
    if (status == HOTBED_OK && extra_bytes != NULL)
        *extra_bytes = last_of(&r)->shards[0].extra.bytes;
    hotbed_delete(held);
    hotbed_io_workers_close(&r.workers);
    for (uint32_t i = 0; i < r.num_links; i++) {
        hotbed_io_drop(&r.links[i].directory);
        hotbed_manifest_free(&r.links[i].manifest);
    }
    hotbed_delete(r.links);
    hotbed_delete(r.numbers);
    return status;
}
