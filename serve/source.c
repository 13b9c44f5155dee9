/* serve/source.c - copies rows: those that changed since a position, or all, with their digests. */
#include "serve/source.h"

#include "base/error.h"
#include "base/hash_core.h"
#include "base/stream.h"
#include "checkpoint/format/digest.h"
#include "hotbed/changes.h"
#include "hotbed/export.h"
#include "serve/encode.h"
#include "serve/format.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Slots that one export copies. Its workspace is half a byte per slot. */
#define EXPORT_SLOTS ((uint64_t)1 << 26)

/* Keys, in the order of their hashes, and digests of their encoded rows. */
typedef struct marked {
    uint64_t rows;
    uint64_t *keys;
    hotbed_digest *digests;
} marked;

/* A table. */
typedef struct source_table {
    hotbed_table_info info;
    hotbed_encoding encoding;
    const hotbed_route *route; /* NULL: one rank */
    bool tracks;               /* changes */
    hotbed_memory keys, rows;  /* pinned: the copy, in no particular order */
    uint64_t capacity;         /* rows for which there is memory */
    uint64_t num_rows;         /* rows in the copy */
    uint64_t keys_after;       /* keys of the table */
    hotbed_memory removed;     /* pinned: keys that have left, in no particular order */
    uint64_t num_removed;
    /* Of tables that do not track changes: the cut that was settled. `next` is the one after it, of tables that do,
     * what changed. */
    marked last, next;
} source_table;

/* Positions in the changes of a storage: of the last cut that was settled, and of the one after it. */
typedef struct source_positions {
    hotbed_change_position last, next;
} source_positions;

/* What kernels write; pinned. */
typedef struct source_words {
    uint64_t count, lost;
    hotbed_change_position since, until;
} source_words;

struct hotbed_source {
    const hotbed_storages *storages;
    uint32_t rank;
    source_table *tables;
    source_positions *positions; /* [storages] */
    hotbed_memory words;         /* pinned: source_words */
    /* of the table that hotbed_source_changes() was called for last */
    uint32_t *places, *changed_places;
    uint64_t *changed_keys, *erased;
};

static void clear_mark(marked *mark) {
    hotbed_delete(mark->keys);
    hotbed_delete(mark->digests);
    *mark = (marked){.rows = 0};
}

static void clear_changes(hotbed_source *s) {
    hotbed_delete(s->places);
    hotbed_delete(s->changed_places);
    hotbed_delete(s->changed_keys);
    hotbed_delete(s->erased);
    s->places = s->changed_places = NULL;
    s->changed_keys = s->erased = NULL;
}

hotbed_status hotbed_source_create(
    const hotbed_storages *storages, const hotbed_encoding *encodings, const hotbed_route *routes,
    uint32_t rank, hotbed_source **out) {
    hotbed_source *s = hotbed_new(sizeof *s);
    source_table *tables = s == NULL ? NULL : hotbed_new(storages->num_tables * sizeof *s->tables);
    source_positions *positions = s == NULL ? NULL : hotbed_new(storages->n * sizeof *positions);
    if (tables == NULL || positions == NULL) {
        hotbed_delete(tables);
        hotbed_delete(positions);
        hotbed_delete(s);
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a publisher");
    }
    s->storages = storages;
    s->rank = rank;
    s->tables = tables;
    s->positions = positions;
    for (uint32_t t = 0; t < storages->num_tables; t++) {
        tables[t].encoding = encodings[t];
        tables[t].route = routes == NULL ? NULL : &routes[t];
    }
    *out = s;
    return HOTBED_OK;
}

void hotbed_source_destroy(hotbed_source *s) {
    if (s == NULL)
        return;
    for (uint32_t t = 0; t < s->storages->num_tables; t++) {
        hotbed_memory_free(&s->tables[t].keys);
        hotbed_memory_free(&s->tables[t].rows);
        hotbed_memory_free(&s->tables[t].removed);
        clear_mark(&s->tables[t].last);
        clear_mark(&s->tables[t].next);
    }
    clear_changes(s);
    hotbed_memory_free(&s->words);
    hotbed_delete(s->positions);
    hotbed_delete(s->tables);
    hotbed_delete(s);
}

/* --- sizes ------------------------------------------------------------------------------------ */

static hotbed_status fail_changed(const source_table *t) {
    return hotbed_fail_table(
        HOTBED_ERR_STATE, t->info.name, "table '%s' was changed while it was copied", t->info.name);
}

/* Set *n to the keys of the table. */
static hotbed_status count_rows(
    const hotbed_source *s, uint32_t number, hotbed_stream *stream, uint64_t *n) {
    const source_table *t = &s->tables[number];
    if (t->info.kind == HOTBED_TABLE_STATIC)
        *n = t->info.capacity;
    else
        HOTBED_TRY(hotbed_storage_size(
            hotbed_storages_of(s->storages, number), hotbed_storages_number(s->storages, number), n,
            NULL, stream));
    if (*n > UINT32_MAX - 1)
        return hotbed_fail_table(
            HOTBED_ERR_UNSUPPORTED, t->info.name,
            "table '%s' has %" PRIu64 " rows on this rank; a cut has at most %" PRIu32,
            t->info.name, *n, UINT32_MAX - 1);
    return HOTBED_OK;
}

static size_t row_bytes(const source_table *t) {
    return hotbed_dtype_row_bytes(t->info.dtype, t->info.dim);
}

/* Get memory for n rows, with some for growth: new pinned memory is slow. */
static hotbed_status reserve(source_table *t, uint64_t n, hotbed_stream *stream) {
    if (n <= t->capacity)
        return HOTBED_OK;
    hotbed_memory_free(&t->keys);
    hotbed_memory_free(&t->rows);
    t->capacity = 0;
    uint64_t capacity = t->info.kind == HOTBED_TABLE_STATIC ? n : n + n / 8;
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, 8 * capacity, NULL, &t->keys));
    HOTBED_TRY(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, capacity * row_bytes(t), NULL, &t->rows));
    t->capacity = capacity;
    return HOTBED_OK;
}

/* --- positions -------------------------------------------------------------------------------- */

static source_words *words_of(const hotbed_source *s) {
    return s->words.data;
}

/* List the keys that have left a table since the last cut. */
static hotbed_status list_removed(
    hotbed_source *s, uint32_t number, bool *whole, hotbed_stream *stream) {
    source_table *t = &s->tables[number];
    source_words *words = words_of(s);
    hotbed_removed batch;
    hotbed_removed_init(&batch);
    batch.table = hotbed_storages_number(s->storages, number);
    batch.since = &words->since;
    batch.until = &words->until;
    batch.count = &words->count;
    batch.lost = &words->lost;
    for (;;) {
        batch.keys = t->removed.data;
        batch.capacity = t->removed.bytes / sizeof(uint64_t);
        HOTBED_TRY(hotbed_storage_removed(hotbed_storages_of(s->storages, number), &batch, stream));
        HOTBED_TRY(hotbed_stream_sync(stream));
        *whole = *whole || words->lost != 0;
        t->num_removed = words->count;
        if (*whole || words->count <= batch.capacity)
            return HOTBED_OK;
        const uint64_t bytes = (words->count + words->count / 2) * sizeof(uint64_t);
        hotbed_memory_free(&t->removed);
        HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, bytes, NULL, &t->removed));
    }
}

/* Take the positions of all storages, and list the keys that have left their tables. */
static hotbed_status take_positions(hotbed_source *s, bool *whole, hotbed_stream *stream) {
    if (s->words.data == NULL)
        HOTBED_TRY(hotbed_memory_alloc(
            stream, HOTBED_MEMORY_PINNED, sizeof(source_words), NULL, &s->words));
    source_words *words = words_of(s);
    uint32_t taken = UINT32_MAX; /* the storage whose position has been taken */
    for (uint32_t t = 0; t < s->storages->num_tables; t++) {
        HOTBED_TRY(hotbed_storages_info(s->storages, t, &s->tables[t].info));
        s->tables[t].tracks = s->tables[t].info.change_bytes != 0;
        s->tables[t].num_removed = 0;
        if (!s->tables[t].tracks)
            continue;
        const uint32_t storage = s->storages->tables[t].storage;
        source_positions *at = &s->positions[storage];
        if (storage != taken) {
            HOTBED_TRY(hotbed_storage_position(s->storages->all[storage], &words->until, stream));
            HOTBED_TRY(hotbed_stream_sync(stream));
            at->next = words->until;
            taken = storage;
        }
        *whole = *whole || at->last.epoch == 0; /* there is no cut yet */
        words->since = at->last;
        if (!*whole)
            HOTBED_TRY(list_removed(s, t, whole, stream));
    }
    return HOTBED_OK;
}

/* --- the copy --------------------------------------------------------------------------------- */

/* Copy the rows of a table that changed, or all, as far as there is memory. *n is their number. A window
 * must be done before the next one: its count says where the next one's rows go. */
static hotbed_status copy_rows(
    hotbed_source *s, uint32_t number, bool whole, hotbed_stream *stream, uint64_t *n) {
    source_table *t = &s->tables[number];
    source_words *words = words_of(s);
    hotbed_storage *storage = hotbed_storages_of(s->storages, number);
    uint64_t slots = 0;
    hotbed_export batch;
    hotbed_export_init(&batch);
    batch.table = hotbed_storages_number(s->storages, number);
    batch.count = &words->count;
    if (t->tracks && !whole) {
        words->since = s->positions[s->storages->tables[number].storage].last;
        batch.since = &words->since;
    }
    HOTBED_TRY(hotbed_storage_export_end(storage, batch.table, &slots, stream));
    for (*n = 0; batch.first < slots; batch.first += batch.slots) {
        batch.slots = slots - batch.first < EXPORT_SLOTS ? slots - batch.first : EXPORT_SLOTS;
        bool none = *n >= t->capacity;
        batch.capacity = none ? 0 : t->capacity - *n;
        batch.keys = none ? NULL : (uint64_t *)t->keys.data + *n;
        batch.rows.weights = none ? NULL : (char *)t->rows.data + *n * row_bytes(t);
        HOTBED_TRY(hotbed_storage_export(storage, &batch, stream));
        HOTBED_TRY(hotbed_stream_sync(stream));
        *n += words->count;
    }
    return HOTBED_OK;
}

static hotbed_status copy_table(
    hotbed_source *s, uint32_t number, bool whole, hotbed_stream *stream) {
    source_table *t = &s->tables[number];
    uint64_t n = 0;
    HOTBED_TRY(count_rows(s, number, stream, &t->keys_after));
    if (whole || !t->tracks)
        HOTBED_TRY(reserve(t, t->keys_after, stream));
    HOTBED_TRY(copy_rows(s, number, whole, stream, &n));
    if (n > t->capacity && t->tracks && !whole) { /* now the number of changes is known */
        HOTBED_TRY(reserve(t, n, stream));
        HOTBED_TRY(copy_rows(s, number, whole, stream, &n));
    }
    t->num_rows = n;
    const bool all = t->tracks && !whole ? n <= t->capacity : n == t->keys_after;
    return all ? HOTBED_OK : fail_changed(t);
}

static hotbed_status copy_tables(hotbed_source *s, bool whole, hotbed_stream *stream) {
    for (uint32_t t = 0; t < s->storages->num_tables; t++)
        HOTBED_TRY(copy_table(s, t, whole, stream));
    return HOTBED_OK;
}

/* End a call after a fault of earlier work, which stays for the caller's own hotbed_stream_sync(). */
static hotbed_status settle_stream(
    hotbed_status status, hotbed_stream *stream, hotbed_held_fault *held) {
    if (status != HOTBED_OK)
        status = hotbed_stream_settle(stream, status);
    hotbed_stream_return_fault(stream, held);
    return status;
}

hotbed_status hotbed_source_begin(hotbed_source *s, bool *whole, hotbed_stream *stream) {
    hotbed_held_fault held;
    HOTBED_TRY(hotbed_stream_hold_fault(stream, &held));
    return settle_stream(take_positions(s, whole, stream), stream, &held);
}

hotbed_status hotbed_source_take(hotbed_source *s, bool whole, hotbed_stream *stream) {
    hotbed_held_fault held;
    HOTBED_TRY(hotbed_stream_hold_fault(stream, &held));
    return settle_stream(copy_tables(s, whole, stream), stream, &held);
}

/* --- order ------------------------------------------------------------------------------------ */

typedef struct hashed {
    uint64_t hash;
    uint32_t place;
} hashed;

static int by_hash(const void *a, const void *b) {
    uint64_t x = ((const hashed *)a)->hash, y = ((const hashed *)b)->hash;
    return x < y ? -1 : x > y;
}

/* Sort a few items. */
static void sort_bucket(hashed *items, uint32_t n) {
    if (n > 64) { /* keys that were chosen to have similar hashes */
        qsort(items, n, sizeof *items, by_hash);
        return;
    }
    for (uint32_t i = 1; i < n; i++) {
        hashed item = items[i];
        uint32_t k = i;
        for (; k > 0 && items[k - 1].hash > item.hash; k--)
            items[k] = items[k - 1];
        items[k] = item;
    }
}

static uint64_t bucket_of(uint64_t hash, uint32_t bits) {
    return bits == 0 ? 0 : hash >> (64 - bits);
}

/* Sort [n] items into `sorted`: by bucket, then in each bucket. `starts` has 2^bits + 1 zeros. */
static void sort_hashes(
    const hashed *items, uint64_t n, uint32_t bits, uint32_t *starts, hashed *sorted) {
    uint64_t buckets = (uint64_t)1 << bits;
    for (uint64_t i = 0; i < n; i++)
        starts[bucket_of(items[i].hash, bits) + 1]++;
    for (uint64_t b = 1; b <= buckets; b++)
        starts[b] += starts[b - 1];
    for (uint64_t i = 0; i < n; i++)
        sorted[starts[bucket_of(items[i].hash, bits)]++] = items[i];
    for (uint64_t b = 0, at = 0; b < buckets; at = starts[b++])
        sort_bucket(sorted + at, starts[b] - (uint32_t)at);
}

/* Return the key of row number `place` of the copy, and whether the row belongs to the table: a rank of
 * a STATIC table may have more rows than the route assigns to it. */
static bool key_at(const hotbed_source *s, const source_table *t, uint64_t place, uint64_t *key) {
    uint64_t local = ((const uint64_t *)t->keys.data)[place];
    *key = local;
    if (t->route == NULL || t->info.kind != HOTBED_TABLE_STATIC)
        return true;
    if (local >= hotbed_route_rows(t->route, s->rank))
        return false;
    *key = hotbed_route_key(t->route, s->rank, local);
    return true;
}

/* Set the keys of the next mark, and s->places, in the order of hashes. */
static hotbed_status order_keys(hotbed_source *s, source_table *t) {
    uint32_t bits = hotbed_rows_bits(t->num_rows);
    uint64_t n = 0;
    hashed *items = hotbed_new((t->num_rows + 1) * sizeof *items);
    hashed *sorted = hotbed_new((t->num_rows + 1) * sizeof *sorted);
    uint32_t *starts = hotbed_new((((uint64_t)1 << bits) + 1) * sizeof *starts);
    s->places = hotbed_new((t->num_rows + 1) * sizeof *s->places);
    t->next.keys = hotbed_new((t->num_rows + 1) * sizeof *t->next.keys);
    t->next.digests = hotbed_new((t->num_rows + 1) * sizeof *t->next.digests);
    bool memory = items != NULL && sorted != NULL && starts != NULL && s->places != NULL &&
                  t->next.keys != NULL && t->next.digests != NULL;
    for (uint64_t i = 0, key; memory && i < t->num_rows; i++)
        if (key_at(s, t, i, &key))
            items[n++] = (hashed){.hash = hotbed_hash_u64(key), .place = (uint32_t)i};
    if (memory)
        sort_hashes(items, n, bits, starts, sorted);
    for (uint64_t i = 0; memory && i < n; i++) {
        t->next.keys[i] = hotbed_unhash_u64(sorted[i].hash);
        s->places[i] = sorted[i].place;
    }
    t->next.rows = n;
    hotbed_delete(items);
    hotbed_delete(sorted);
    hotbed_delete(starts);
    return memory
               ? HOTBED_OK
               : hotbed_fail(HOTBED_ERR_MEMORY, "no memory to sort %" PRIu64 " keys", t->num_rows);
}

static hotbed_status check_ranks(const hotbed_source *s, const source_table *t) {
    if (t->route == NULL)
        return HOTBED_OK;
    for (uint64_t i = 0; i < t->next.rows; i++) {
        uint32_t owner = hotbed_route_rank(t->route, t->next.keys[i]);
        if (owner != s->rank)
            return hotbed_error_key(
                hotbed_fail_table(
                    HOTBED_ERR_STATE, t->info.name,
                    "table '%s' of rank %" PRIu32 " has key %" PRIu64
                    ", which its route assigns to rank %" PRIu32,
                    t->info.name, s->rank, t->next.keys[i], owner),
                t->next.keys[i], 0);
    }
    return HOTBED_OK;
}

/* --- changes ---------------------------------------------------------------------------------- */

static hotbed_status digest_rows(const hotbed_source *s, source_table *t) {
    size_t bytes = hotbed_encoded_bytes(t->encoding, t->info.dim);
    unsigned char *row = hotbed_new(bytes);
    if (row == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no %zu bytes for a row", bytes);
    hotbed_status status = HOTBED_OK;
    for (uint64_t i = 0; i < t->next.rows && status == HOTBED_OK; i++) {
        float value = 0;
        if (hotbed_row_encode(
                t->encoding, t->info.dim, t->info.dtype,
                (const char *)t->rows.data + s->places[i] * row_bytes(t), row, &value))
            t->next.digests[i] = hotbed_digest_of(row, bytes);
        else
            status = hotbed_error_key(
                hotbed_error_table(
                    hotbed_fail_value(
                        HOTBED_ERR_ARGUMENT, "encoding", (double)value,
                        "table '%s', key %" PRIu64 ": %s does not have the value %g", t->info.name,
                        t->next.keys[i], hotbed_encoding_name(t->encoding), (double)value),
                    t->info.name),
                t->next.keys[i], 0);
    }
    hotbed_delete(row);
    return status;
}

static int by_word(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Compare two marks in the order of hashes. */
static void compare(hotbed_source *s, const source_table *t, hotbed_changes *out) {
    const marked *then = &t->last, *now = &t->next;
    for (uint64_t i = 0, k = 0; i < then->rows || k < now->rows;) {
        uint64_t old = i < then->rows ? hotbed_hash_u64(then->keys[i]) : UINT64_MAX;
        uint64_t new = k < now->rows ? hotbed_hash_u64(now->keys[k]) : UINT64_MAX;
        if (i < then->rows && (k == now->rows || old < new)) {
            s->erased[out->num_erased++] = then->keys[i++];
            continue;
        }
        bool same = i < then->rows && old == new;
        if (!same || !hotbed_digest_equal(then->digests[i], now->digests[k])) {
            s->changed_keys[out->num_rows] = now->keys[k];
            s->changed_places[out->num_rows++] = s->places[k];
        }
        i += same;
        k++;
    }
}

/* List the keys that have left the table, each once. */
static hotbed_status order_removed(hotbed_source *s, const source_table *t, hotbed_changes *out) {
    const uint64_t *removed = t->removed.data, n = t->num_removed;
    s->erased = hotbed_new((n + 1) * sizeof *s->erased);
    if (s->erased == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu64 " removed keys", n);
    for (uint64_t i = 0; i < n; i++)
        s->erased[i] = hotbed_hash_u64(removed[i]);
    qsort(s->erased, n, sizeof *s->erased, by_word);
    for (uint64_t i = 0; i < n; i++)
        if (out->num_erased == 0 || s->erased[i] != s->erased[out->num_erased - 1])
            s->erased[out->num_erased++] = s->erased[i];
    for (uint64_t i = 0; i < out->num_erased; i++)
        s->erased[i] = hotbed_unhash_u64(s->erased[i]);
    out->erased = s->erased;
    return HOTBED_OK;
}

hotbed_status hotbed_source_changes(
    hotbed_source *s, uint32_t table, bool whole, hotbed_changes *out) {
    source_table *t = &s->tables[table];
    clear_changes(s);
    clear_mark(&t->next);
    HOTBED_TRY(order_keys(s, t));
    HOTBED_TRY(check_ranks(s, t));
    HOTBED_TRY(digest_rows(s, t));
    *out = (hotbed_changes){.keys_after = t->keys_after, .rows = t->rows.data};
    if (whole || !t->tracks)
        out->keys_after = t->next.rows; /* without rows that the route assigns to nobody */
    else if (t->route != NULL && t->info.kind == HOTBED_TABLE_STATIC)
        out->keys_after = hotbed_route_rows(t->route, s->rank);
    if (whole || t->tracks) {
        out->num_rows = t->next.rows;
        out->keys = t->next.keys;
        out->places = s->places;
        return whole ? HOTBED_OK : order_removed(s, t, out);
    }
    s->changed_keys = hotbed_new((t->next.rows + 1) * sizeof *s->changed_keys);
    s->changed_places = hotbed_new((t->next.rows + 1) * sizeof *s->changed_places);
    s->erased = hotbed_new((t->last.rows + 1) * sizeof *s->erased);
    if (s->changed_keys == NULL || s->changed_places == NULL || s->erased == NULL)
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory for the changes of %" PRIu64 " rows", t->next.rows);
    compare(s, t, out);
    out->keys = s->changed_keys;
    out->places = s->changed_places;
    out->erased = s->erased;
    return HOTBED_OK;
}

/* A table that tracks changes needs no copy of all rows until the next base. */
static void settle_tracked(source_table *t) {
    const bool base = t->num_rows == t->keys_after;
    clear_mark(&t->next);
    if (!base)
        return;
    hotbed_memory_free(&t->keys);
    hotbed_memory_free(&t->rows);
    t->capacity = 0;
}

void hotbed_source_settle(hotbed_source *s) {
    clear_changes(s);
    for (uint32_t i = 0; i < s->storages->n; i++)
        s->positions[i].last = s->positions[i].next;
    for (uint32_t t = 0; t < s->storages->num_tables; t++) {
        if (s->tables[t].tracks) {
            settle_tracked(&s->tables[t]);
            continue;
        }
        clear_mark(&s->tables[t].last);
        s->tables[t].last = s->tables[t].next;
        s->tables[t].next = (marked){.rows = 0};
    }
}
