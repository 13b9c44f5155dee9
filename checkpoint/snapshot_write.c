/* checkpoint/snapshot_write.c - write a snapshot as a checkpoint or an increment while training
 * goes on. */
#include "base/error.h"
#include "base/port.h"
#include "base/stream.h"
#include "checkpoint/chain.h"
#include "checkpoint/format/bucket.h"
#include "checkpoint/plan.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/snapshot.h"

#include <inttypes.h>
#include <string.h>

/* The rows of a table's image, in canonical order of their keys. */
typedef struct order {
    uint64_t rows;
    uint64_t *pairs; /* [2 * rows] keys, then the rows' positions in the image */
} order;

/* The rows of a table that are written. */
typedef struct part_plan {
    order rows;
    uint64_t *erased; /* [erased] in canonical order */
} part_plan;

/* The state of a write. */
typedef struct snapshot_writer {
    const hotbed_checkpoint_config *config;
    hotbed_checkpoint_snapshot *s;
    hotbed_shard_writer shard;
    part_plan *plans; /* [num_tables]; full checkpoint: only the table that is being written */
    const hotbed_marked *base; /* increment: the rows of the parent */
    hotbed_marked next;        /* the rows that the mark will have */
} snapshot_writer;

static hotbed_manifest_part *part_of(snapshot_writer *w, uint32_t table) {
    hotbed_manifest *m = &w->s->manifest;
    return &m->parts[(uint64_t)table * m->world + w->s->share.rank];
}

/* --- rows of an image ------------------------------------------------------------------------------------ */

/* Sort the rows of the image into the order of the file. Rows of a static table that belong to
 * other ranks are left out. */
static hotbed_status order_rows(snapshot_writer *w, uint32_t number, order *out) {
    const hotbed_manifest *m = &w->s->manifest;
    const hotbed_manifest_table *table = &m->tables[number];
    hotbed_key_type type = hotbed_manifest_origin(m, table)->key_type;
    const hotbed_snapshot_table *from = &w->s->tables[number];
    const uint64_t *ids = from->columns[HOTBED_COLUMN_KEYS];
    const hotbed_manifest_part *part = part_of(w, number);
    const hotbed_row_numbers of_rank =
        hotbed_manifest_numbers(&w->s->manifest, table, w->s->share.rank);
    bool hash = table->kind == HOTBED_TABLE_HASH;
    uint64_t n = from->rows, rows = hash ? n : part->end - part->first;
    uint64_t *keys = hotbed_new(n * sizeof *keys), *numbers = hotbed_new(n * sizeof *numbers);
    uint64_t *pairs = hotbed_new(2 * rows * sizeof *pairs);
    hotbed_status status = HOTBED_OK;
    if (keys == NULL || numbers == NULL || pairs == NULL)
        status = hotbed_fail_table(
            HOTBED_ERR_MEMORY, table->name, "no memory to sort the %" PRIu64 " keys of table '%s'",
            n, table->name);
    for (uint64_t i = 0; i < n && status == HOTBED_OK; i++) {
        numbers[i] = i;
        keys[i] = ids[i];
        if (!hash && ids[i] < rows) { /* by number: a static table has each row once */
            pairs[ids[i]] = hotbed_numbers_at(of_rank, ids[i]);
            pairs[rows + ids[i]] = i;
        }
    }
    if (status == HOTBED_OK && hash)
        status = hotbed_share_check_keys(&w->s->share, m, number, n, keys);
    if (status == HOTBED_OK && hash)
        status = hotbed_bucket_sort_pairs(n, keys, type, numbers, table->bucket_bits, pairs);
    hotbed_delete(keys);
    hotbed_delete(numbers);
    if (status != HOTBED_OK)
        hotbed_delete(pairs);
    else
        *out = (order){.rows = rows, .pairs = pairs};
    return status;
}

/* Rows that are gathered from an image, chunk by chunk. */
typedef struct gather {
    const hotbed_snapshot_table *from;
    const order *rows;
    size_t row_bytes[HOTBED_ROW_COLUMNS];
    hotbed_chunk chunk;
} gather;

static hotbed_status gather_open(
    const snapshot_writer *w, uint32_t number, const order *rows, gather *out) {
    const hotbed_manifest *m = &w->s->manifest;
    *out = (gather){.from = &w->s->tables[number], .rows = rows};
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        out->row_bytes[i] = hotbed_manifest_row_bytes(m, &m->tables[number], i);
    return hotbed_chunk_create(out->row_bytes, &out->chunk);
}

/* Copy row `row` of the image to position `to` of the chunk. */
static void copy_row(const gather *g, uint64_t row, uint64_t to) {
    for (uint32_t c = HOTBED_COLUMN_VALUES; c < HOTBED_ROW_COLUMNS; c++)
        if (g->row_bytes[c] > 0)
            memcpy(
                (char *)g->chunk.columns[c] + to * g->row_bytes[c],
                (const char *)g->from->columns[c] + row * g->row_bytes[c], g->row_bytes[c]);
}

/* Prefetch a row. Rows are scattered in the image, so each is prefetched shortly before it is
 * copied. */
static void want_row(const gather *g, uint64_t row) {
    for (uint32_t c = HOTBED_COLUMN_VALUES; c < HOTBED_ROW_COLUMNS; c++)
        if (g->row_bytes[c] > 0)
            hotbed_prefetch_item(
                (const char *)g->from->columns[c] + row * g->row_bytes[c], g->row_bytes[c]);
}

/* Fill the chunk with rows from `first` on, and return their number. */
static uint64_t gather_rows(const gather *g, uint64_t first) {
    enum { AHEAD = 8 };
    uint64_t rows = g->rows->rows, left = rows - first;
    uint64_t n = left < g->chunk.capacity ? left : g->chunk.capacity;
    const uint64_t *numbers = g->rows->pairs + rows;
    memcpy(g->chunk.columns[HOTBED_COLUMN_KEYS], g->rows->pairs + first, n * sizeof *numbers);
    for (uint64_t i = 0; i < n; i++) {
        if (first + i + AHEAD < rows)
            want_row(g, numbers[first + i + AHEAD]);
        copy_row(g, numbers[first + i], i);
    }
    return n;
}

/* --- the plan ------------------------------------------------------------------------------------------- */

/* Allocate the rows in the next mark, and set their keys. */
static hotbed_status mark_rows(snapshot_writer *w, uint32_t number, const order *rows) {
    uint64_t *keys = NULL;
    if (w->s->manifest.tables[number].kind == HOTBED_TABLE_HASH) {
        keys = hotbed_new(rows->rows * sizeof *keys);
        HOTBED_TRY_MEMORY(keys, "marks of %" PRIu64 " keys", rows->rows);
        memcpy(keys, rows->pairs, rows->rows * sizeof *keys);
    }
    return hotbed_mark_rows(&w->next.tables[number], rows->rows, keys);
}

/* Compute the digests of all rows. */
static hotbed_status digest_rows(snapshot_writer *w, uint32_t number, const order *rows) {
    gather g;
    hotbed_digest sum = {0};
    size_t row_bytes = 0;
    HOTBED_TRY(gather_open(w, number, rows, &g));
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        row_bytes += g.row_bytes[i];
    unsigned char *row = hotbed_new(row_bytes);
    for (uint64_t first = 0; row != NULL && first < rows->rows;) {
        uint64_t n = gather_rows(&g, first);
        hotbed_digest_rows(
            n, g.chunk.columns, g.row_bytes, row, &sum, w->next.tables[number].digests + first);
        first += n;
    }
    hotbed_delete(row);
    hotbed_chunk_destroy(&g.chunk);
    return HOTBED_CHECK_MEMORY(row, "%zu bytes of a row", row_bytes);
}

/* Select the rows whose keys are `changed`, [n], in the same order. */
static hotbed_status choose(const order *all, const uint64_t *changed, uint64_t n, order *out) {
    *out = (order){.rows = n, .pairs = hotbed_new(2 * n * sizeof *out->pairs)};
    HOTBED_TRY_MEMORY(out->pairs, "%" PRIu64 " changed rows", n);
    for (uint64_t i = 0, at = 0; i < n; i++, at++) {
        while (all->pairs[at] != changed[i])
            at++;
        out->pairs[i] = changed[i];
        out->pairs[n + i] = all->pairs[all->rows + at];
    }
    return HOTBED_OK;
}

/* Find what changed since the mark. */
static hotbed_status plan_changes(snapshot_writer *w, uint32_t number, const order *all) {
    hotbed_manifest_part *part = part_of(w, number);
    part_plan *p = &w->plans[number];
    hotbed_mark_changes changes;
    HOTBED_TRY(mark_rows(w, number, all));
    HOTBED_TRY(digest_rows(w, number, all));
    HOTBED_TRY(hotbed_mark_compare(
        &w->base->tables[number], &w->next.tables[number],
        w->s->manifest.tables[number].bucket_bits,
        hotbed_manifest_numbers(&w->s->manifest, &w->s->manifest.tables[number], w->s->share.rank),
        &changes));
    p->erased = changes.erased;
    part->erased = changes.num_erased;
    hotbed_status status = choose(all, changes.changed, changes.num_changed, &p->rows);
    hotbed_delete(changes.changed);
    return status;
}

/* Set the number of rows to write, which the layout of the shard needs. */
static hotbed_status plan_table(snapshot_writer *w, uint32_t number) {
    hotbed_manifest_table *table = &w->s->manifest.tables[number];
    hotbed_manifest_part *part = part_of(w, number);
    bool hash = table->kind == HOTBED_TABLE_HASH;
    part->erased = 0; /* the snapshot may have been written before */
    table->content = (hotbed_digest){0};
    part->rows = hash ? w->s->tables[number].rows : part->end - part->first;
    if (w->base != NULL) {
        order all = {.rows = 0};
        HOTBED_TRY(order_rows(w, number, &all));
        hotbed_status status = plan_changes(w, number, &all);
        hotbed_delete(all.pairs);
        HOTBED_TRY(status);
        part->rows = w->plans[number].rows.rows;
    }
    table->rows = part->rows;
    return HOTBED_OK;
}

static hotbed_status plan(snapshot_writer *w) {
    hotbed_checkpoint_snapshot *s = w->s;
    hotbed_manifest *m = &s->manifest;
    if (s->parent != NULL)
        HOTBED_TRY(hotbed_plan_parent(w->config, s->parent, s->mark, &s->share, m, &w->base));
    if (s->mark != NULL)
        HOTBED_TRY(hotbed_marked_reserve(m->num_tables, &w->next));
    w->plans = hotbed_new(m->num_tables * sizeof *w->plans);
    HOTBED_TRY_MEMORY(w->plans, "%" PRIu32 " tables", m->num_tables);
    for (uint32_t t = 0; t < m->num_tables; t++)
        HOTBED_TRY(plan_table(w, t));
    return HOTBED_OK;
}

static void free_plan(part_plan *p) {
    hotbed_delete(p->rows.pairs);
    hotbed_delete(p->erased);
    *p = (part_plan){.erased = NULL};
}

/* --- the shard ------------------------------------------------------------------------------------------ */

static hotbed_status write_rows(snapshot_writer *w, uint32_t number) {
    gather g;
    const order *rows = &w->plans[number].rows;
    bool marks = w->s->mark != NULL && w->base == NULL;
    hotbed_digest *digests = marks ? w->next.tables[number].digests : NULL;
    HOTBED_TRY(gather_open(w, number, rows, &g));
    hotbed_status status = HOTBED_OK;
    for (uint64_t first = 0, n; first < rows->rows && status == HOTBED_OK; first += n) {
        n = gather_rows(&g, first);
        status = hotbed_shard_writer_rows(
            &w->shard, n, g.chunk.columns, digests == NULL ? NULL : digests + first);
    }
    hotbed_chunk_destroy(&g.chunk);
    return status;
}

static hotbed_status write_table(snapshot_writer *w, uint32_t number) {
    part_plan *p = &w->plans[number];
    HOTBED_TRY(hotbed_shard_writer_begin(&w->shard, number));
    if (w->base == NULL) {
        HOTBED_TRY(order_rows(w, number, &p->rows));
        if (w->s->mark != NULL)
            HOTBED_TRY(mark_rows(w, number, &p->rows));
    }
    HOTBED_TRY(write_rows(w, number));
    HOTBED_TRY(hotbed_shard_writer_alone(
        &w->shard, p->rows.pairs, w->s->tables[number].counted, p->erased));
    free_plan(p);
    return hotbed_shard_writer_end(&w->shard);
}

static hotbed_status write_shard(snapshot_writer *w, hotbed_draft *draft) {
    hotbed_checkpoint_snapshot *s = w->s;
    hotbed_manifest *m = &s->manifest;
    HOTBED_TRY(plan(w));
    HOTBED_TRY(hotbed_draft_enter(draft));
    HOTBED_TRY(hotbed_save_open(&w->shard, &draft->directory, m, s->share.rank, s->blobs));
    for (uint32_t t = 0; t < m->num_tables; t++)
        HOTBED_TRY(write_table(w, t));
    HOTBED_TRY(hotbed_shard_writer_finish(&w->shard));
    return hotbed_draft_describe(draft, m, s->share.rank);
}

/* Put the shard. The caller clears update->next. */
static hotbed_status put_shard(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    hotbed_checkpoint_snapshot *s, hotbed_mark_update *update) {
    snapshot_writer w = {.config = config, .s = s, .shard = {.file = HOTBED_IO_CLOSED}};
    hotbed_draft draft;
    s->manifest.id = (hotbed_digest){.low = id.low, .high = id.high};
    hotbed_status status = hotbed_draft_open(config->calls, path, id, &draft);
    HOTBED_THEN(status, hotbed_snapshot_land(config, s));
    HOTBED_THEN(status, write_shard(&w, &draft));
    w.next.id = s->manifest.id;
    *update = (hotbed_mark_update){.base = w.base, .next = w.next};
    for (uint32_t t = 0; w.plans != NULL && t < s->manifest.num_tables; t++)
        free_plan(&w.plans[t]);
    hotbed_delete(w.plans);
    hotbed_shard_writer_close(&w.shard);
    hotbed_draft_close(&draft);
    return status;
}

hotbed_status hotbed_snapshot_put(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    hotbed_checkpoint_snapshot *s) {
    hotbed_mark_update update;
    hotbed_status status = put_shard(config, path, id, s, &update);
    if (status == HOTBED_OK)
        hotbed_mark_push(s->mark, &update);
    hotbed_marked_clear(&update.next);
    return status;
}

hotbed_status hotbed_snapshot_write(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_snapshot *s) {
    hotbed_checkpoint_id id;
    hotbed_mark_update update;
    if (s->share.world > 1)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "world", s->share.world,
            "snapshot: %" PRIu32 " ranks need begin, put and commit", s->share.world);
    HOTBED_TRY(hotbed_save_begin(config, path, &id));
    const hotbed_status status =
        hotbed_save_end(config, path, id, put_shard(config, path, id, s, &update));
    hotbed_mark_end(s->mark, &update, status);
    return status;
}
