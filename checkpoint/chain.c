/* checkpoint/chain.c - a full checkpoint and its increments, merged row by row. */
#include "checkpoint/chain.h"

#include "base/error.h"
#include "base/stream.h"
#include "base/text.h"
#include "checkpoint/format/bucket_core.h"

#include <inttypes.h>
#include <string.h>

/* --- the links --------------------------------------------------------------------------------------- */

/* Fail because the increment's parent is another checkpoint than the one before it. */
static hotbed_status another_parent(
    const char *name, const char *parent_name, const hotbed_manifest *parent,
    const hotbed_manifest *increment) {
    return hotbed_fail_path(
        HOTBED_ERR_STATE, name,
        "%.400s does not follow the checkpoint before it: its parent has the id %s, but %.400s "
        "has the id %s",
        name, hotbed_digest_text(increment->parent).text, parent_name,
        hotbed_digest_text(parent->id).text);
}

static hotbed_status another(const char *name, const char *what) {
    return hotbed_fail_path(
        HOTBED_ERR_STATE, name, "%s does not follow the checkpoint before it: %s", name, what);
}

hotbed_status hotbed_chain_check(
    const char *name, const char *parent_name, const hotbed_manifest *parent,
    const hotbed_manifest *increment) {
    if (!increment->increment)
        return another(name, "it is a full one");
    if (!hotbed_digest_equal(increment->parent, parent->id))
        return another_parent(name, parent_name, parent, increment);
    if (!hotbed_digest_equal(increment->parent_digest, parent->digest))
        return another(name, "its parent has another digest");
    if (parent->num_tables != increment->num_tables || parent->world != increment->world)
        return another(name, "numbers of tables or ranks differ");
    for (uint32_t i = 0; i < parent->num_tables; i++) {
        const hotbed_manifest_table *x = &parent->tables[i], *y = &increment->tables[i];
        const hotbed_manifest_storage *s = hotbed_manifest_origin(parent, x);
        const hotbed_manifest_storage *t = hotbed_manifest_origin(increment, y);
        if (!hotbed_manifest_same_rows(parent, x, increment, y) || x->capacity != y->capacity ||
            s->key_type != t->key_type ||
            (parent->world > 1 && (x->route != y->route || x->route_rows != y->route_rows)))
            return another(name, y->name);
    }
    return HOTBED_OK;
}

hotbed_status hotbed_chain_link_open(
    const hotbed_io_calls *calls, const char *path, hotbed_chain_link *link) {
    *link = (hotbed_chain_link){.directory = HOTBED_IO_CLOSED};
    HOTBED_TRY(hotbed_io_open(calls, NULL, path, HOTBED_IO_DIRECTORY, &link->directory));
    HOTBED_TRY(hotbed_manifest_read(&link->directory, &link->manifest));
    uint32_t world = link->manifest.world;
    link->shards = hotbed_new(world * sizeof *link->shards);
    HOTBED_TRY_MEMORY(link->shards, "%" PRIu32 " shards", world);
    for (uint32_t i = 0; i < world; i++)
        link->shards[i].file = (hotbed_io_file)HOTBED_IO_CLOSED;
    for (uint32_t i = 0; i < world; i++) {
        HOTBED_TRY(
            hotbed_shard_reader_open(&link->shards[i], &link->directory, &link->manifest, i));
        HOTBED_TRY(hotbed_shard_reader_check(&link->shards[i]));
    }
    return HOTBED_OK;
}

void hotbed_chain_link_close(hotbed_chain_link *link) {
    for (uint32_t s = 0; link->shards != NULL && s < link->manifest.world; s++)
        hotbed_shard_reader_close(&link->shards[s]);
    hotbed_delete(link->shards);
    hotbed_io_drop(&link->directory);
    hotbed_manifest_free(&link->manifest);
    *link = (hotbed_chain_link){.directory = HOTBED_IO_CLOSED};
}

hotbed_status hotbed_chain_open(
    const hotbed_io_calls *calls, const char *const *paths, uint32_t n, hotbed_chain *out) {
    enum { KEEP_BYTES = 192 << 20 };
    *out = (hotbed_chain){
        .n = n, .links = hotbed_new(n * sizeof *out->links), .keep_bytes = KEEP_BYTES};
    if (out->links == NULL) {
        out->n = 0;
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu32 " checkpoints", n);
    }
    for (uint32_t i = 0; i < n; i++)
        out->links[i].directory = (hotbed_io_file)HOTBED_IO_CLOSED;
    for (uint32_t i = 0; i < n; i++) {
        HOTBED_TRY(hotbed_chain_link_open(calls, paths[i], &out->links[i]));
        const hotbed_manifest *m = &out->links[i].manifest;
        if (i == 0 && m->increment)
            return hotbed_fail_path(
                HOTBED_ERR_STATE, paths[i], "%s is an increment: start with the full checkpoint",
                paths[i]);
        if (i > 0)
            HOTBED_TRY(hotbed_chain_check(paths[i], paths[i - 1], &out->links[i - 1].manifest, m));
    }
    return HOTBED_OK;
}

void hotbed_chain_close(hotbed_chain *chain) {
    for (uint32_t i = 0; i < chain->n; i++)
        hotbed_chain_link_close(&chain->links[i]);
    hotbed_delete(chain->links);
    *chain = (hotbed_chain){.n = 0};
}

/* --- heads --------------------------------------------------------------------------------------------- */

static bool before(uint64_t bucket, uint64_t key, uint64_t other_bucket, uint64_t other_key) {
    return bucket < other_bucket || (bucket == other_bucket && key < other_key);
}

static bool of_rows(const hotbed_chain_table *t, const hotbed_chain_head *head) {
    return t->kind != HOTBED_CHAIN_COUNTED && head < t->heads + t->num_parts;
}

static uint32_t column_of(const hotbed_chain_table *t) {
    return t->kind == HOTBED_CHAIN_COUNTED ? HOTBED_COLUMN_COUNTED : HOTBED_COLUMN_ERASED;
}

/* Read the next key of a head. */
static hotbed_status look(hotbed_chain_table *t, hotbed_chain_head *head) {
    bool rows = of_rows(t, head);
    head->live = (rows ? hotbed_part_reader_left(head->part) : head->left) > 0;
    if (!head->live)
        return HOTBED_OK;
    /* The part reader checks the order. */
    HOTBED_TRY(
        rows ? hotbed_part_reader_key(head->part, &head->key)
             : hotbed_part_reader_keys(head->part, column_of(t), 1, &head->key));
    head->bucket = t->hash ? hotbed_logical_bucket(head->key, t->bucket_bits) : 0;
    return HOTBED_OK;
}

/* Limit the bytes of each column's block that parts opened from now on hold; 0: whole blocks. */
static void set_piece_bytes(hotbed_chain *chain, size_t piece_bytes) {
    for (uint32_t i = 0; i < chain->n; i++)
        for (uint32_t s = 0; s < chain->links[i].manifest.world; s++)
            chain->links[i].shards[s].piece_bytes = piece_bytes;
}

/* Whether a pass of this kind reads the column. The memory of all other columns is never
 * touched. */
static bool is_read(hotbed_chain_kind kind, uint32_t column) {
    bool counted = column == HOTBED_COLUMN_COUNTED || column == HOTBED_COLUMN_COUNTS;
    bool key = column == HOTBED_COLUMN_KEYS || column == HOTBED_COLUMN_ERASED;
    return kind == HOTBED_CHAIN_COUNTED ? counted : kind == HOTBED_CHAIN_KEYS ? key : !counted;
}

/* Make the parts opened from now on keep what a pass over keys reads. */
static void set_keep(hotbed_chain *chain, hotbed_chain_kind kind) {
    uint32_t keep = 0;
    for (uint32_t i = 0; i < HOTBED_COLUMNS && kind != HOTBED_CHAIN_ROWS; i++)
        keep |= (uint32_t)is_read(kind, i) << i;
    for (uint32_t i = 0; i < chain->n; i++)
        for (uint32_t s = 0; s < chain->links[i].manifest.world; s++) {
            chain->links[i].shards[s].keep_columns = keep;
            chain->links[i].shards[s].keep_bytes = &chain->keep_bytes;
        }
}

/* Return the number of bytes that the parts of a table hold, with at most `piece_bytes` bytes of
 * each column's block. */
static uint64_t bytes_held(const hotbed_chain_table *t, uint32_t first, size_t piece_bytes) {
    uint64_t sum = 0;
    for (uint32_t i = first; i < t->chain->n; i++) {
        const hotbed_manifest *m = &t->chain->links[i].manifest;
        uint64_t most = piece_bytes < m->block_bytes ? piece_bytes : m->block_bytes;
        for (uint64_t p = 0; p < (uint64_t)m->world * HOTBED_COLUMNS; p++) {
            const hotbed_manifest_part *part =
                &m->parts[(uint64_t)t->table * m->world + p / HOTBED_COLUMNS];
            uint32_t column = (uint32_t)(p % HOTBED_COLUMNS);
            uint64_t bytes = part->columns[column].bytes;
            if (is_read(t->kind, column))
                sum += bytes < most ? bytes : most;
        }
    }
    return sum;
}

/* Set the bytes that each part holds such that the sum over all parts stays within the limit. */
static void bound_memory(hotbed_chain_table *t, uint32_t first) {
    enum { HELD_BYTES = 128 << 20, PIECE_BYTES_LEAST = 512 };
    uint64_t most = t->chain->held_bytes == 0 ? HELD_BYTES : t->chain->held_bytes;
    size_t piece_bytes = HOTBED_BLOCK_BYTES_MOST;
    while (piece_bytes > PIECE_BYTES_LEAST && bytes_held(t, first, piece_bytes) > most)
        piece_bytes /= 2;
    set_piece_bytes(t->chain, piece_bytes);
}

static hotbed_status open_parts(hotbed_chain_table *t) {
    uint32_t at = 0;
    uint32_t first = t->kind == HOTBED_CHAIN_COUNTED ? t->chain->n - 1 : 0;
    bound_memory(t, first);
    for (uint32_t i = first; i < t->chain->n; i++)
        for (uint32_t s = 0; s < t->chain->links[i].manifest.world; s++, at++) {
            hotbed_chain_head *head = &t->heads[at], *erased = &t->heads[t->num_parts + at];
            HOTBED_TRY(hotbed_part_reader_open(
                &t->parts[at], &t->chain->links[i].shards[s], t->table,
                t->kind == HOTBED_CHAIN_ROWS));
            const hotbed_manifest_part *part = t->parts[at].part;
            *head = (hotbed_chain_head){.part = &t->parts[at], .link = i, .left = part->counted};
            *erased = (hotbed_chain_head){.part = &t->parts[at], .link = i, .left = part->erased};
            HOTBED_TRY(look(t, head));
            if (t->kind != HOTBED_CHAIN_COUNTED)
                HOTBED_TRY(look(t, erased));
        }
    return HOTBED_OK;
}

hotbed_status hotbed_chain_table_open(
    hotbed_chain *chain, uint32_t table, hotbed_chain_kind kind, hotbed_chain_table *out) {
    const hotbed_manifest *m = &chain->links[0].manifest;
    const hotbed_manifest_table *description = &m->tables[table];
    *out = (hotbed_chain_table){
        .chain = chain,
        .table = table,
        .kind = kind,
        .bucket_bits = description->bucket_bits,
        .hash = description->kind == HOTBED_TABLE_HASH,
    };
    out->sequential = chain->n == 1 && kind != HOTBED_CHAIN_COUNTED &&
                      (out->hash ? description->spread == HOTBED_SPREAD_BUCKET
                                 : !hotbed_manifest_deals(m, description));
    for (uint32_t i = kind == HOTBED_CHAIN_COUNTED ? chain->n - 1 : 0; i < chain->n; i++)
        out->num_parts += chain->links[i].manifest.world;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        out->row_bytes[i] = hotbed_manifest_row_bytes(m, description, i);
    uint32_t open = out->sequential ? 1 : out->num_parts;
    out->parts = hotbed_new(open * sizeof *out->parts);
    out->heads = hotbed_new((size_t)2 * open * sizeof *out->heads);
    HOTBED_TRY_MEMORY(out->parts != NULL && out->heads != NULL, "%" PRIu32 " parts", open);
    set_keep(chain, kind);
    return out->sequential ? HOTBED_OK : open_parts(out);
}

void hotbed_chain_table_close(hotbed_chain_table *t) {
    if (t->chain != NULL)
        set_piece_bytes(t->chain, 0);
    for (uint32_t i = 0; t->parts != NULL && i < (t->sequential ? 1 : t->num_parts); i++)
        hotbed_part_reader_close(&t->parts[i]);
    hotbed_delete(t->parts);
    hotbed_delete(t->heads);
    *t = (hotbed_chain_table){.num_parts = 0};
}

/* --- merging --------------------------------------------------------------------------------------------- */

/* Set `out` to the columns from row `at` on. */
static void columns_at(
    const hotbed_chain_table *t, void *const columns[HOTBED_ROW_COLUMNS], uint64_t at,
    void *out[HOTBED_ROW_COLUMNS]) {
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        out[i] = t->row_bytes[i] == 0 ? NULL : (char *)columns[i] + at * t->row_bytes[i];
}

/* Read rows of a table whose parts follow each other: a chunk of the first part that has rows
 * left. */
static hotbed_status next_of_one(
    hotbed_chain_table *t, uint64_t capacity, void *const columns[HOTBED_ROW_COLUMNS],
    uint64_t *n) {
    uint64_t *keys = columns[HOTBED_COLUMN_KEYS], left = 0;
    for (; t->next < t->num_parts && left == 0; t->next += left == 0) {
        if (!t->open) {
            hotbed_part_reader_close(&t->parts[0]);
            t->open = true;
            HOTBED_TRY(hotbed_part_reader_open(
                &t->parts[0], &t->chain->links[0].shards[t->next], t->table,
                t->kind == HOTBED_CHAIN_ROWS));
        }
        left = hotbed_part_reader_left(&t->parts[0]);
        t->open = left > 0;
    }
    *n = left < capacity ? left : capacity;
    if (t->kind != HOTBED_CHAIN_KEYS)
        return *n == 0 ? HOTBED_OK : hotbed_part_reader_take(&t->parts[0], *n, columns);
    for (uint64_t k = 0; k < *n; k++) {
        HOTBED_TRY(hotbed_part_reader_key(&t->parts[0], &keys[k]));
        HOTBED_TRY(hotbed_part_reader_skip(&t->parts[0]));
    }
    return HOTBED_OK;
}

/* Return the head with the lowest key, or NULL at the end. If several heads have this key, return
 * the head of the last link; within one link, rows precede erased keys. */
static hotbed_chain_head *least(hotbed_chain_table *t) {
    hotbed_chain_head *best = NULL;
    for (uint32_t i = 0; i < 2 * t->num_parts; i++) {
        hotbed_chain_head *head = &t->heads[i];
        if (!head->live)
            continue;
        bool same = best != NULL && head->bucket == best->bucket && head->key == best->key;
        if (best == NULL || before(head->bucket, head->key, best->bucket, best->key) ||
            (same && head->link > best->link))
            best = head;
    }
    return best;
}

/* Fail with CORRUPT: two shards of one checkpoint have the same key. */
static hotbed_status twice(const hotbed_chain_head *head) {
    const hotbed_part_reader *part = head->part;
    const hotbed_manifest *m = part->shard->manifest;
    return hotbed_error_path(
        hotbed_fail_table_key(
            HOTBED_ERR_CORRUPT, part->table->name, head->key,
            hotbed_manifest_origin(m, part->table)->key_type, "%s: %s: key %s is in two shards",
            part->shard->file.name, part->table->name,
            hotbed_key_text(head->key, hotbed_manifest_origin(m, part->table)->key_type).text),
        part->shard->file.name);
}

/* Skip the key in all other heads that are at (bucket, key). */
static hotbed_status pass(
    hotbed_chain_table *t, const hotbed_chain_head *best, uint64_t bucket, uint64_t key) {
    for (uint32_t i = 0; i < 2 * t->num_parts; i++) {
        hotbed_chain_head *head = &t->heads[i];
        if (!head->live || head == best || head->bucket != bucket || head->key != key)
            continue;
        bool rows = head < t->heads + t->num_parts;
        if (head->link == best->link && rows == (best < t->heads + t->num_parts))
            return twice(head);
        if (of_rows(t, head))
            HOTBED_TRY(hotbed_part_reader_skip(head->part));
        else
            head->left--;
        HOTBED_TRY(look(t, head));
    }
    return HOTBED_OK;
}

/* Return the row at `head`, or skip the key if the head's link erased it. */
static hotbed_status emit(
    hotbed_chain_table *t, hotbed_chain_head *head, void *const columns[HOTBED_ROW_COLUMNS],
    uint64_t *n) {
    void *to[HOTBED_ROW_COLUMNS];
    columns_at(t, columns, *n, to);
    if (!of_rows(t, head)) {
        if (t->kind == HOTBED_CHAIN_COUNTED) {
            memcpy(to[HOTBED_COLUMN_KEYS], &head->key, sizeof head->key);
            HOTBED_TRY(hotbed_part_reader_counts(head->part, 1, to[HOTBED_COLUMN_SCORES]));
            ++*n;
        }
        head->left--;
    } else if (t->kind == HOTBED_CHAIN_KEYS) {
        memcpy(to[HOTBED_COLUMN_KEYS], &head->key, sizeof head->key);
        HOTBED_TRY(hotbed_part_reader_skip(head->part));
        ++*n;
    } else {
        HOTBED_TRY(hotbed_part_reader_take(head->part, 1, to));
        ++*n;
    }
    return look(t, head);
}

hotbed_status hotbed_chain_table_next(
    hotbed_chain_table *t, uint64_t capacity, void *const columns[HOTBED_ROW_COLUMNS],
    uint64_t *n) {
    *n = 0;
    if (t->sequential)
        return next_of_one(t, capacity, columns, n);
    while (*n < capacity) {
        hotbed_chain_head *best = least(t);
        if (best == NULL)
            break;
        HOTBED_TRY(pass(t, best, best->bucket, best->key));
        HOTBED_TRY(emit(t, best, columns, n));
    }
    return HOTBED_OK;
}

/* --- memory for rows ---------------------------------------------------------------------------------- */

hotbed_status hotbed_chunk_create(const size_t row_bytes[HOTBED_ROW_COLUMNS], hotbed_chunk *out) {
    enum { BYTES = 1 << 20 };
    hotbed_chunk c = {.capacity = 0};
    size_t row = 0;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        row += row_bytes[i];
    c.capacity = BYTES / row < 1 ? 1 : BYTES / row;
    size_t starts[HOTBED_ROW_COLUMNS], bytes = 0;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        starts[i] = bytes;
        bytes += (c.capacity * row_bytes[i] + 7) & ~(size_t)7; /* int8 rows may end anywhere */
    }
    c.memory = hotbed_new(bytes);
    HOTBED_TRY_MEMORY(c.memory, "%zu bytes of rows", bytes);
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        c.columns[i] = row_bytes[i] == 0 ? NULL : (char *)c.memory + starts[i];
    *out = c;
    return HOTBED_OK;
}

void hotbed_chunk_destroy(hotbed_chunk *chunk) {
    hotbed_delete(chunk->memory);
    *chunk = (hotbed_chunk){.capacity = 0};
}
