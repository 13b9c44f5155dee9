/* checkpoint/rewrite.c - write checkpoints for another number of ranks, and merge increments. */
#include "checkpoint/rewrite.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/format/bucket_core.h"
#include "checkpoint/shard_writer.h"
#include "hotbed/route.h"
#include "storage/types.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The current bucket of a shard, and its rows so far. */
typedef struct bucket_count {
    uint64_t bucket; /* in the part */
    uint64_t rows;
} bucket_count;

/* Rows of a column in another type than the chain's. */
typedef struct converted {
    void *data;
    size_t bytes;
} converted;

typedef struct rewriter {
    hotbed_chain *chain;
    const hotbed_rewrite_options *options;
    uint64_t done, total; /* rows, over both passes */
    hotbed_manifest manifest;
    hotbed_shard_writer *shards; /* [world] */
    bucket_count *counts;        /* [world], for the hash table that is being written */
    converted converted[HOTBED_ROW_COLUMNS];
} rewriter;

void hotbed_progress_report(const hotbed_progress *progress, uint64_t done, uint64_t total) {
    if (progress != NULL && progress->report != NULL)
        progress->report(progress->self, done, total);
}

static hotbed_manifest_part *part_of(rewriter *w, uint32_t table, uint32_t shard) {
    return &w->manifest.parts[(uint64_t)table * w->manifest.world + shard];
}

/* Return the route of a STATIC table, whose rows HASH_ROUND_ROBIN cannot assign. */
static hotbed_route route_of_rows(const rewriter *w, const hotbed_manifest_table *t) {
    const uint64_t world = w->manifest.world;
    const bool dealt = w->options->route == HOTBED_ROUTE_ROUND_ROBIN + 1;
    return (hotbed_route){
        .kind = dealt ? HOTBED_ROUTE_ROUND_ROBIN : HOTBED_ROUTE_CONTINUOUS,
        .world = w->manifest.world,
        .rows = t->capacity,
        .block = dealt ? 0 : (t->capacity + world - 1) / world,
    };
}

/* Return the rank that gets a key of table `t`. */
static uint32_t rank_of(const rewriter *w, const hotbed_manifest_table *t, uint64_t key) {
    uint64_t world = w->manifest.world;
    if (t->kind == HOTBED_TABLE_STATIC) {
        const hotbed_route route = route_of_rows(w, t);
        return hotbed_route_rank(&route, key);
    }
    if (w->options->route != 0) {
        hotbed_route route = {
            .kind = (hotbed_route_kind)(w->options->route - 1), .world = w->manifest.world};
        return hotbed_route_rank(&route, key);
    }
    /* Rank r has buckets [r * B / W, (r + 1) * B / W). */
    uint64_t bucket = hotbed_logical_bucket(key, t->bucket_bits);
    return (uint32_t)(((bucket + 1) * world - 1) >> t->bucket_bits);
}

/* --- the plan ------------------------------------------------------------------------------------------ */

static void plan_ranges(rewriter *w, uint32_t number) {
    hotbed_manifest_table *t = &w->manifest.tables[number];
    uint64_t range = hotbed_manifest_range(t), world = w->manifest.world;
    const hotbed_route rows = route_of_rows(w, t);
    for (uint32_t r = 0; r < world; r++) {
        hotbed_manifest_part *part = part_of(w, number, r);
        if (t->kind == HOTBED_TABLE_STATIC) {
            part->first = r == 0 ? 0 : part_of(w, number, r - 1)->end;
            part->end = part->first + hotbed_route_rows(&rows, r);
        } else if (w->options->route != 0) {
            part->end = range;
        } else {
            part->first = r * range / world;
            part->end = (r + 1) * range / world;
        }
    }
}

static void plan_table(rewriter *w, uint32_t number) {
    const hotbed_manifest_table *from = &hotbed_chain_last(w->chain)->tables[number];
    hotbed_manifest_table *t = &w->manifest.tables[number];
    *t = *from;
    const hotbed_row_types types = w->options->types;
    t->dtype = types.values != 0 ? types.values : t->dtype;
    if (types.states != 0)
        t->state_dtype =
            hotbed_states_dtype(hotbed_manifest_optimizer(&w->manifest, t), types.states);
    t->rows = 0;
    t->content = (hotbed_digest){0};
    t->route = 0;
    t->route_rows = 0;
    t->spread = HOTBED_SPREAD_BUCKET;
    if (t->kind == HOTBED_TABLE_STATIC) {
        t->route = w->manifest.world == 1 ? 0 : (uint32_t)route_of_rows(w, t).kind + 1;
        t->route_rows = w->manifest.world == 1 ? 0 : t->capacity;
    } else if (w->options->route != 0) {
        t->route = w->options->route;
        t->spread = HOTBED_SPREAD_ANY;
    }
    plan_ranges(w, number);
}

/* Return the block size. A route assigns rows to all shards in turn, so each shard holds one block
 * of each column in memory. If there are many shards, their blocks are smaller. Ranges of buckets
 * are completed one after the other, so they keep the default size. */
static uint32_t block_bytes(const hotbed_rewrite_options *options) {
    enum { HELD_BYTES = 128 << 20, COLUMNS = 7 }; /* columns of a row, and the buckets */
    uint32_t bytes = options->block_bytes == 0 ? HOTBED_BLOCK_BYTES : options->block_bytes;
    while (options->block_bytes == 0 && options->route != 0 && bytes > HOTBED_BLOCK_BYTES_LEAST &&
           (uint64_t)options->world * COLUMNS * bytes > HELD_BYTES)
        bytes /= 2;
    return bytes;
}

static hotbed_status plan(rewriter *w, hotbed_checkpoint_id id) {
    const hotbed_manifest *last = hotbed_chain_last(w->chain);
    hotbed_manifest *m = &w->manifest;
    m->id = (hotbed_digest){.low = id.low, .high = id.high};
    m->created_ns = hotbed_realtime_now();
    m->step = last->step;
    hotbed_layout_writer(m->writer);
    m->world = w->options->world;
    m->block_bytes = block_bytes(w->options);
    m->num_tables = last->num_tables;
    m->num_storages = last->num_storages;
    m->num_blobs = last->num_blobs;
    HOTBED_TRY(hotbed_manifest_reserve(m));
    memcpy(m->storages, last->storages, m->num_storages * sizeof *m->storages);
    for (uint32_t i = 0; i < m->num_blobs; i++) {
        m->blobs[i] = last->blobs[i];
        m->blobs[i].extent = (hotbed_extent){.bytes = last->blobs[i].extent.bytes};
    }
    for (uint32_t i = 0; i < m->num_tables; i++)
        plan_table(w, i);
    for (uint32_t i = 0; i < w->chain->n; i++)
        for (uint32_t t = 0; t < m->num_tables; t++)
            w->total += 2 * w->chain->links[i].manifest.tables[t].rows;
    return HOTBED_OK;
}

/* --- passes ---------------------------------------------------------------------------------------------- */

/* A function that handles n rows of a chunk, which all go to `rank`. */
typedef hotbed_status (*take_run)(
    rewriter *w, uint32_t table, uint32_t rank, uint64_t n,
    void *const columns[HOTBED_ROW_COLUMNS]);

static hotbed_status count_rows(
    rewriter *w, uint32_t table, uint32_t rank, uint64_t n,
    void *const columns[HOTBED_ROW_COLUMNS]) {
    hotbed_manifest_table *t = &w->manifest.tables[table];
    part_of(w, table, rank)->rows += n;
    t->rows += n;
    t->keys = t->kind == HOTBED_TABLE_HASH ? t->rows : 0;
    return HOTBED_OK;
}

static hotbed_status count_counted(
    rewriter *w, uint32_t table, uint32_t rank, uint64_t n,
    void *const columns[HOTBED_ROW_COLUMNS]) {
    part_of(w, table, rank)->counted += n;
    return HOTBED_OK;
}

/* Write the counts of all buckets before `bucket`. They are complete, because rows arrive in the
 * order of their buckets. */
static hotbed_status end_buckets(rewriter *w, uint32_t table, uint32_t rank, uint64_t bucket) {
    bucket_count *count = &w->counts[rank];
    if (part_of(w, table, rank)->columns[HOTBED_COLUMN_BUCKET].bytes == 0)
        return HOTBED_OK;
    for (; count->bucket < bucket; count->bucket++, count->rows = 0)
        HOTBED_TRY(hotbed_shard_writer_column(
            &w->shards[rank], HOTBED_COLUMN_BUCKET, &count->rows, sizeof count->rows));
    return HOTBED_OK;
}

/* Have *values point to the rows of n keys, of a column, in the type that is written. */
static hotbed_status convert(
    rewriter *w, uint32_t table, uint32_t column, uint64_t n, const uint64_t *keys, void **values) {
    const hotbed_manifest_table *t = &w->manifest.tables[table];
    const hotbed_row_types types =
        hotbed_manifest_types(&hotbed_chain_last(w->chain)->tables[table]);
    const hotbed_column_form from = hotbed_manifest_form(&w->manifest, t, types, column);
    const hotbed_column_form to =
        hotbed_manifest_form(&w->manifest, t, hotbed_manifest_types(t), column);
    converted *out = &w->converted[column];
    if (from.dim == 0 || from.dtype == to.dtype)
        return HOTBED_OK;
    const size_t bytes = n * hotbed_dtype_row_bytes(to.dtype, to.dim);
    if (bytes > out->bytes) {
        hotbed_delete(out->data);
        out->bytes = 0;
        out->data = hotbed_new(bytes);
        HOTBED_TRY_MEMORY(out->data, "%zu bytes of rows to convert", bytes);
        out->bytes = bytes;
    }
    hotbed_unfit unfit;
    if (!hotbed_weights_convert(from.dtype, *values, to.dtype, out->data, from.dim, n, &unfit))
        return hotbed_manifest_unfit_fail(
            &w->manifest, t, column, keys[unfit.row], to.dtype, unfit.value);
    *values = out->data;
    return HOTBED_OK;
}

static hotbed_status write_rows(
    rewriter *w, uint32_t table, uint32_t rank, uint64_t n,
    void *const columns[HOTBED_ROW_COLUMNS]) {
    const hotbed_manifest_table *t = &w->manifest.tables[table];
    const uint64_t *keys = columns[HOTBED_COLUMN_KEYS];
    uint64_t first = part_of(w, table, rank)->first;
    for (uint64_t i = 0; t->kind == HOTBED_TABLE_HASH && i < n; i++) {
        HOTBED_TRY(
            end_buckets(w, table, rank, hotbed_logical_bucket(keys[i], t->bucket_bits) - first));
        w->counts[rank].rows++;
    }
    void *written[HOTBED_ROW_COLUMNS];
    memcpy(written, columns, sizeof written);
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        HOTBED_TRY(convert(w, table, i, n, keys, &written[i]));
    return hotbed_shard_writer_rows(&w->shards[rank], n, written, NULL);
}

static hotbed_status write_counted(
    rewriter *w, uint32_t table, uint32_t rank, uint64_t n,
    void *const columns[HOTBED_ROW_COLUMNS]) {
    HOTBED_TRY(hotbed_shard_writer_column(
        &w->shards[rank], HOTBED_COLUMN_COUNTED, columns[HOTBED_COLUMN_KEYS],
        n * sizeof(uint64_t)));
    return hotbed_shard_writer_column(
        &w->shards[rank], HOTBED_COLUMN_COUNTS, columns[HOTBED_COLUMN_SCORES],
        n * sizeof(uint64_t));
}

/* Pass the rows of a chunk to `take`, in runs that go to one rank. */
static hotbed_status distribute(
    rewriter *w, uint32_t table, const hotbed_chain_table *from, const hotbed_chunk *chunk,
    uint64_t n, take_run take) {
    const hotbed_manifest_table *t = &w->manifest.tables[table];
    const uint64_t *keys = chunk->columns[HOTBED_COLUMN_KEYS];
    for (uint64_t first = 0, end; first < n; first = end) {
        uint32_t rank = rank_of(w, t, keys[first]);
        for (end = first + 1; end < n && rank_of(w, t, keys[end]) == rank; end++)
            continue;
        void *columns[HOTBED_ROW_COLUMNS];
        for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
            columns[i] = chunk->columns[i] == NULL
                             ? NULL
                             : (char *)chunk->columns[i] + first * from->row_bytes[i];
        HOTBED_TRY(take(w, table, rank, end - first, columns));
    }
    return HOTBED_OK;
}

static hotbed_status pass_open(
    rewriter *w, uint32_t table, hotbed_chain_table *from, take_run take) {
    hotbed_chunk chunk;
    uint64_t n = 0;
    HOTBED_TRY(hotbed_chunk_create(from->row_bytes, &chunk));
    hotbed_status status;
    do {
        status = hotbed_chain_table_next(from, chunk.capacity, chunk.columns, &n);
        HOTBED_THEN(status, distribute(w, table, from, &chunk, n, take));
        w->done += from->kind == HOTBED_CHAIN_COUNTED ? 0 : n;
        hotbed_progress_report(w->options->progress, w->done, w->total);
    } while (status == HOTBED_OK && n > 0);
    hotbed_chunk_destroy(&chunk);
    return status;
}

static hotbed_status pass(rewriter *w, uint32_t table, hotbed_chain_kind kind, take_run take) {
    hotbed_chain_table from;
    hotbed_status status = hotbed_chain_table_open(w->chain, table, kind, &from);
    HOTBED_THEN(status, pass_open(w, table, &from, take));
    hotbed_chain_table_close(&from);
    return status;
}

static hotbed_status count(rewriter *w) {
    for (uint32_t t = 0; t < w->manifest.num_tables; t++) {
        HOTBED_TRY(pass(w, t, HOTBED_CHAIN_KEYS, count_rows));
        HOTBED_TRY(pass(w, t, HOTBED_CHAIN_COUNTED, count_counted));
    }
    return HOTBED_OK;
}

static hotbed_status write_table(rewriter *w, uint32_t number) {
    const hotbed_manifest_table *t = &w->manifest.tables[number];
    uint32_t world = w->manifest.world;
    for (uint32_t r = 0; r < world; r++)
        HOTBED_TRY(hotbed_shard_writer_begin(&w->shards[r], number));
    memset(w->counts, 0, world * sizeof *w->counts);
    HOTBED_TRY(pass(w, number, HOTBED_CHAIN_ROWS, write_rows));
    HOTBED_TRY(pass(w, number, HOTBED_CHAIN_COUNTED, write_counted));
    for (uint32_t r = 0; r < world; r++) {
        const hotbed_manifest_part *part = part_of(w, number, r);
        if (t->kind == HOTBED_TABLE_HASH)
            HOTBED_TRY(end_buckets(w, number, r, part->end - part->first));
        HOTBED_TRY(hotbed_shard_writer_end(&w->shards[r]));
    }
    return HOTBED_OK;
}

/* --- the call -------------------------------------------------------------------------------------------- */

static hotbed_status allocate_arrays(rewriter *w) {
    uint32_t world = w->manifest.world;
    w->counts = hotbed_new(world * sizeof *w->counts);
    w->shards = hotbed_new(world * sizeof *w->shards);
    HOTBED_TRY_MEMORY(w->counts != NULL && w->shards != NULL, "%" PRIu32 " shards", world);
    for (uint32_t r = 0; r < world; r++)
        w->shards[r].file = (hotbed_io_file)HOTBED_IO_CLOSED;
    return HOTBED_OK;
}

/* Read the blobs of the chain's last checkpoint. The caller frees them. */
static hotbed_status read_blobs(rewriter *w, void **blobs) {
    for (uint32_t i = 0; i < w->manifest.num_blobs; i++) {
        uint64_t bytes = w->manifest.blobs[i].extent.bytes;
        blobs[i] = hotbed_new(bytes);
        HOTBED_TRY_MEMORY(
            blobs[i], "%" PRIu64 " bytes of blob '%s'", bytes, w->manifest.blobs[i].name);
        HOTBED_TRY(
            hotbed_shard_reader_blob(&w->chain->links[w->chain->n - 1].shards[0], i, blobs[i]));
    }
    return HOTBED_OK;
}

static hotbed_status write_shards(rewriter *w, hotbed_draft *draft) {
    uint32_t world = w->manifest.world;
    void **blobs = hotbed_new(w->manifest.num_blobs * sizeof *blobs);
    hotbed_status status = blobs != NULL
                               ? read_blobs(w, blobs)
                               : hotbed_fail(HOTBED_ERR_MEMORY, "no memory for the blobs");
    for (uint32_t r = 0; r < world && status == HOTBED_OK; r++)
        status = hotbed_shard_writer_open(
            &w->shards[r], &draft->directory, &w->manifest, r, (const void *const *)blobs);
    for (uint32_t i = 0; blobs != NULL && i < w->manifest.num_blobs; i++)
        hotbed_delete(blobs[i]);
    hotbed_delete(blobs);
    HOTBED_TRY(status);
    for (uint32_t t = 0; t < w->manifest.num_tables; t++)
        HOTBED_TRY(write_table(w, t));
    for (uint32_t r = 0; r < world; r++)
        HOTBED_TRY(hotbed_shard_writer_finish(&w->shards[r]));
    return HOTBED_OK;
}

static hotbed_status rewrite(rewriter *w, hotbed_draft *draft, hotbed_checkpoint_id id) {
    HOTBED_TRY(plan(w, id));
    HOTBED_TRY(allocate_arrays(w));
    HOTBED_TRY(count(w));
    HOTBED_TRY(hotbed_draft_enter(draft));
    HOTBED_TRY(write_shards(w, draft));
    HOTBED_TRY(hotbed_draft_manifest(draft, &w->manifest));
    return hotbed_draft_commit(draft, &w->manifest);
}

/* Return the number of decimal digits. */
static uint64_t digits(uint64_t value) {
    uint64_t n = 1;
    for (; value >= 10; value /= 10)
        n++;
    return n;
}

/* SHARD is the length of a shard's two lines without names and numbers, PART and EXTENT are the
 * lengths of a part's and an extent's line. No number in MANIFEST is larger than the bytes of all
 * shards. */
uint64_t hotbed_rewrite_manifest_bytes(
    const hotbed_chain *chain, const hotbed_rewrite_options *options) {
    enum { HEAD = 1024, STORAGE = 1024, BLOB = 192, TABLE = 512, SHARD = 123, PART = 52 };
    enum { EXTENT = 63 };
    hotbed_manifest m = *hotbed_chain_last(chain);
    uint64_t bytes = block_bytes(options);
    for (uint32_t i = 0; i < chain->n; i++)
        for (uint32_t s = 0; s < chain->links[i].manifest.world; s++)
            bytes += chain->links[i].manifest.shards[s].bytes;
    uint64_t number = digits(2 * bytes), shard = SHARD + 4 * number;
    m.increment = false;
    for (uint32_t t = 0; t < m.num_tables; t++) {
        uint64_t name = strlen(m.tables[t].name);
        shard += PART + name + 4 * number + 2 * digits(hotbed_manifest_range(&m.tables[t]));
        for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
            if (hotbed_manifest_has(&m, &m.tables[t], i))
                shard += EXTENT + name + 2 * number +
                         strlen(hotbed_manifest_column_name(
                             hotbed_manifest_optimizer(&m, &m.tables[t]), i));
    }
    return HEAD + m.num_storages * (uint64_t)STORAGE + m.num_blobs * (uint64_t)BLOB +
           m.num_tables * (uint64_t)TABLE + options->world * shard;
}

static hotbed_status check_options(const hotbed_chain *chain, const hotbed_rewrite_options *o) {
    uint64_t most = HOTBED_MANIFEST_BYTES_MAX;
    HOTBED_TRY(hotbed_check_range("world", o->world, 1, HOTBED_WORLD_MAX));
    if (o->route > HOTBED_ROUTE_ROUND_ROBIN + 1)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "this route cannot assign the rows of hash tables");
    uint64_t bytes = hotbed_rewrite_manifest_bytes(chain, o);
    if (bytes > most)
        return hotbed_fail_value(
            HOTBED_ERR_UNSUPPORTED, "world", o->world,
            "%" PRIu32 " tables in %" PRIu32 " shards may need a MANIFEST of %" PRIu64
            " bytes, over %" PRIu64 ": write at most %" PRIu64 " shards",
            hotbed_chain_last(chain)->num_tables, o->world, bytes, most,
            (uint64_t)((double)most / (double)bytes * o->world));
    return HOTBED_OK;
}

hotbed_status hotbed_checkpoint_rewrite(
    const hotbed_io_calls *calls, hotbed_chain *chain, const char *path,
    const hotbed_rewrite_options *options) {
    rewriter w = {.chain = chain, .options = options};
    hotbed_checkpoint_id id;
    hotbed_draft draft;
    HOTBED_TRY(check_options(chain, options));
    hotbed_status status = hotbed_draft_create(calls, path, &id, &draft);
    const bool made = status == HOTBED_OK;
    HOTBED_THEN(status, rewrite(&w, &draft, id));
    for (uint32_t r = 0; w.shards != NULL && r < w.manifest.world; r++)
        hotbed_shard_writer_close(&w.shards[r]);
    if (made && status != HOTBED_OK)
        hotbed_draft_remove(&draft);
    hotbed_draft_close(&draft);
    hotbed_delete(w.shards);
    hotbed_delete(w.counts);
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        hotbed_delete(w.converted[i].data);
    hotbed_manifest_free(&w.manifest);
    return status;
}
