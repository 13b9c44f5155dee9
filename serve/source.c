/* serve/source.c - copies rows: those that changed since a position, or all, with their digests. */
#include "serve/source.h"

#include "base/error.h"
#include "base/hash_core.h"
#include "base/sort.h"
#include "base/stream.h"
#include "checkpoint/format/digest.h"
#include "checkpoint/positions.h"
#include "serve/encode.h"
#include "serve/format.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Keys that readers have, in the order of their hashes, with digests of their encoded rows. */
typedef struct marked {
    uint64_t rows;
    uint64_t *keys;
    hotbed_digest *digests;
    unsigned char *encoded; /* the rows, [rows, hotbed_cut_row_bytes()]; NULL without min_change */
    uint64_t *scores;       /* when the rows were published; NULL without min_occurrences */
} marked;

/* A table. */
typedef struct source_table {
    hotbed_table_info info;
    hotbed_cut_table *cut;
    const hotbed_route *route; /* NULL: one rank */
    hotbed_change_filter filter;
    bool tracks;                      /* changes; false with a filter */
    hotbed_memory keys, rows, scores; /* pinned: the copy, in no particular order */
    hotbed_memory states[2];          /* of the copy */
    uint64_t capacity;                /* rows for which there is memory */
    uint64_t num_rows;                /* rows in the copy */
    uint64_t keys_after;              /* keys of the table */
    hotbed_change_position settled;   /* of the last cut, if the table tracks changes */
    hotbed_key_list removed;          /* keys that have left since, in no particular order */
    /* `last` is the cut that was settled, of tables that do not track changes. `next` is the one after it; of
     * tables that do, what changed. */
    marked last, next;
} source_table;

struct hotbed_source {
    const hotbed_storages *storages;
    uint32_t rank;
    source_table *tables;
    hotbed_positions *positions; /* of the next cut; NULL before the first one */
    bool whole;                  /* the copy has all rows */
    /* of the table that hotbed_source_changes() was called for last */
    uint32_t *places, *changed_places;
    uint64_t *changed_keys, *erased;
};

static void clear_mark(marked *mark) {
    hotbed_delete(mark->keys);
    hotbed_delete(mark->digests);
    hotbed_delete(mark->encoded);
    hotbed_delete(mark->scores);
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
    const hotbed_storages *storages, hotbed_cut_table *cut, const hotbed_route *routes,
    const hotbed_change_filter *filters, uint32_t rank, hotbed_source **out) {
    hotbed_source *s = hotbed_new(sizeof *s);
    source_table *tables = s == NULL ? NULL : hotbed_new(storages->num_tables * sizeof *s->tables);
    if (tables == NULL) {
        hotbed_delete(s);
        return hotbed_fail_value(
            HOTBED_ERR_MEMORY, NULL, storages->num_tables,
            "no memory for a publisher of %" PRIu32 " tables", storages->num_tables);
    }
    s->storages = storages;
    s->rank = rank;
    s->tables = tables;
    for (uint32_t t = 0; t < storages->num_tables; t++) {
        tables[t].cut = &cut[t];
        tables[t].route = routes == NULL ? NULL : &routes[t];
        if (filters != NULL)
            tables[t].filter = filters[t];
    }
    *out = s;
    return HOTBED_OK;
}

static void free_copy(source_table *t) {
    hotbed_memory_free(&t->keys);
    hotbed_memory_free(&t->rows);
    hotbed_memory_free(&t->scores);
    hotbed_memory_free(&t->states[0]);
    hotbed_memory_free(&t->states[1]);
    t->capacity = 0;
}

void hotbed_source_destroy(hotbed_source *s) {
    if (s == NULL)
        return;
    for (uint32_t t = 0; t < s->storages->num_tables; t++) {
        free_copy(&s->tables[t]);
        hotbed_delete(s->tables[t].removed.keys);
        clear_mark(&s->tables[t].last);
        clear_mark(&s->tables[t].next);
    }
    clear_changes(s);
    hotbed_positions_destroy(s->positions);
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

static bool by_score(const source_table *t) {
    return t->filter.min_score != 0 || t->filter.min_occurrences != 0 || t->filter.most_rows != 0;
}

static bool is_filtered(const source_table *t) {
    return by_score(t) || t->filter.min_change > 0;
}

/* Get memory for n rows, with some for growth: new pinned memory is slow. */
static hotbed_status reserve(source_table *t, uint64_t n, hotbed_stream *stream) {
    if (n <= t->capacity)
        return HOTBED_OK;
    free_copy(t);
    uint64_t capacity = t->info.kind == HOTBED_TABLE_STATIC ? n : n + n / 8;
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, 8 * capacity, NULL, &t->keys));
    HOTBED_TRY(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, capacity * row_bytes(t), NULL, &t->rows));
    if (by_score(t))
        HOTBED_TRY(
            hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, 8 * capacity, NULL, &t->scores));
    for (uint32_t s = 0; s < 2; s++)
        if (hotbed_cut_state_dim(t->cut, s) > 0)
            HOTBED_TRY(hotbed_memory_alloc(
                stream, HOTBED_MEMORY_PINNED,
                capacity * hotbed_cut_state_dim(t->cut, s) *
                    hotbed_dtype_bytes(t->info.state_dtypes[s]),
                NULL, &t->states[s]));
    t->capacity = capacity;
    return HOTBED_OK;
}

/* --- positions -------------------------------------------------------------------------------- */

/* Take the positions of all storages, and list the keys that have left their tables. */
static hotbed_status take_positions(hotbed_source *s, bool *whole, hotbed_stream *stream) {
    if (s->positions == NULL)
        HOTBED_TRY(hotbed_positions_create(s->storages, stream, &s->positions));
    HOTBED_TRY(hotbed_positions_take(s->positions, stream));
    for (uint32_t i = 0; i < s->storages->num_tables; i++) {
        source_table *t = &s->tables[i];
        uint64_t lost = 0;
        HOTBED_TRY(hotbed_storages_info(s->storages, i, &t->info));
        t->tracks = t->info.change_bytes != 0 && !is_filtered(t);
        hotbed_delete(t->removed.keys);
        t->removed = (hotbed_key_list){.n = 0};
        *whole = *whole || (t->tracks && t->settled.epoch == 0); /* there is no cut yet */
        if (t->tracks && !*whole)
            HOTBED_TRY(
                hotbed_positions_removed(s->positions, i, &t->settled, stream, &t->removed, &lost));
        *whole = *whole || lost != 0;
    }
    return HOTBED_OK;
}

/* --- the copy --------------------------------------------------------------------------------- */

/* Copy the rows of a table that changed, or all, as far as there is memory. *n is their number. */
static hotbed_status copy_rows(
    const hotbed_source *s, uint32_t number, bool whole, hotbed_stream *stream, uint64_t *n) {
    const source_table *t = &s->tables[number];
    const hotbed_positions_rows to = {
        .capacity = t->capacity,
        .keys = t->keys.data,
        .weights = t->rows.data,
        .scores = t->scores.data,
        .states = {t->states[0].data, t->states[1].data},
    };
    return hotbed_positions_export(
        s->positions, number, t->tracks && !whole ? &t->settled : NULL, &to, stream, n);
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

/* Copy the count of steps, which belongs to the states. */
static hotbed_status copy_steps(const hotbed_source *s, uint32_t number, hotbed_stream *stream) {
    hotbed_cut_table *to = s->tables[number].cut;
    hotbed_storage_state state = {.size = sizeof state};
    if (to->optimizer == 0)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_storage_get_state(hotbed_storages_of(s->storages, number), &state, stream));
    to->optimizer_steps = state.optimizer_steps;
    to->beta1_power = state.beta1_power;
    to->beta2_power = state.beta2_power;
    return HOTBED_OK;
}

static hotbed_status copy_tables(hotbed_source *s, bool whole, hotbed_stream *stream) {
    s->whole = whole;
    for (uint32_t t = 0; t < s->storages->num_tables; t++) {
        HOTBED_TRY(copy_steps(s, t, stream));
        HOTBED_TRY(copy_table(s, t, whole, stream));
    }
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

static hotbed_status fail_memory(const source_table *t, uint64_t rows) {
    return hotbed_fail_table_value(
        HOTBED_ERR_MEMORY, t->info.name, NULL, rows,
        "table '%s': no memory for a cut of %" PRIu64 " rows", t->info.name, rows);
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
    bool memory = items != NULL && sorted != NULL && starts != NULL && s->places != NULL &&
                  t->next.keys != NULL;
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
    return memory ? HOTBED_OK : fail_memory(t, t->num_rows);
}

static hotbed_status check_ranks(const hotbed_source *s, const source_table *t) {
    if (t->route == NULL)
        return HOTBED_OK;
    for (uint64_t i = 0; i < t->next.rows; i++) {
        uint32_t owner = hotbed_route_rank(t->route, t->next.keys[i]);
        if (owner != s->rank)
            return hotbed_fail_table_key(
                HOTBED_ERR_STATE, t->info.name, t->next.keys[i], 0,
                "table '%s' of rank %" PRIu32 " has key %" PRIu64
                ", which its route assigns to rank %" PRIu32,
                t->info.name, s->rank, t->next.keys[i], owner);
    }
    return HOTBED_OK;
}

/* --- changes ---------------------------------------------------------------------------------- */

static uint64_t score_of(const hotbed_source *s, const source_table *t, uint64_t now) {
    return ((const uint64_t *)t->scores.data)[s->places[now]];
}

/* Changes that have the rows of the copy, and no keys yet. */
static hotbed_changes copy_of(const source_table *t) {
    return (hotbed_changes){
        .keys_after = t->keys_after,
        .rows = t->rows.data,
        .states = {t->states[0].data, t->states[1].data},
        .state_dtypes = {t->info.state_dtypes[0], t->info.state_dtypes[1]}};
}

/* Set the digests of the next mark, and its rows and scores if the filter needs them. */
static hotbed_status digest_rows(const hotbed_source *s, source_table *t) {
    const size_t bytes = hotbed_cut_row_bytes(t->cut);
    const hotbed_changes copy = copy_of(t);
    const bool keeps = t->filter.min_change > 0, counts = t->filter.min_occurrences != 0;
    const uint64_t n = t->next.rows;
    unsigned char *row = hotbed_new(bytes);
    t->next.digests = hotbed_new((n + 1) * sizeof *t->next.digests);
    t->next.encoded = keeps ? hotbed_new((n + 1) * bytes) : NULL;
    t->next.scores = counts ? hotbed_new((n + 1) * sizeof *t->next.scores) : NULL;
    hotbed_status status = row == NULL || t->next.digests == NULL ||
                                   (keeps && t->next.encoded == NULL) ||
                                   (counts && t->next.scores == NULL)
                               ? fail_memory(t, n)
                               : HOTBED_OK;
    for (uint64_t i = 0; i < n && t->next.scores != NULL; i++)
        t->next.scores[i] = score_of(s, t, i);
    for (uint64_t i = 0; i < n && status == HOTBED_OK; i++) {
        unsigned char *to = keeps ? t->next.encoded + i * bytes : row;
        const hotbed_row_states row_states = hotbed_changes_states(t->cut, &copy, s->places[i]);
        status = hotbed_cut_row_encode(
            t->cut, t->next.keys[i], t->info.dtype,
            (const char *)t->rows.data + s->places[i] * row_bytes(t), &row_states, to);
        if (status == HOTBED_OK)
            t->next.digests[i] = hotbed_digest_of(to, bytes);
    }
    hotbed_delete(row);
    return status;
}

/* A row that differs from the one that readers have. */
typedef struct difference {
    uint64_t now;  /* its place in the next mark */
    uint64_t then; /* in the last one; UINT64_MAX: readers do not have the key */
} difference;

/* Compare two marks in the order of hashes: list rows that differ, and keys that have left. */
static void compare(
    const source_table *t, difference *rows, uint64_t *num_rows, uint64_t *erased,
    uint64_t *num_erased) {
    const marked *then = &t->last, *now = &t->next;
    for (uint64_t i = 0, k = 0; i < then->rows || k < now->rows;) {
        uint64_t old = i < then->rows ? hotbed_hash_u64(then->keys[i]) : UINT64_MAX;
        uint64_t new = k < now->rows ? hotbed_hash_u64(now->keys[k]) : UINT64_MAX;
        if (i < then->rows && (k == now->rows || old < new)) {
            erased[(*num_erased)++] = then->keys[i++];
            continue;
        }
        bool same = i < then->rows && old == new;
        if (!same || !hotbed_digest_equal(then->digests[i], now->digests[k]))
            rows[(*num_rows)++] = (difference){.now = k, .then = same ? i : UINT64_MAX};
        i += same;
        k++;
    }
}

/* --- filters ---------------------------------------------------------------------------------- */

/* How often batches had the key since its row was published. */
static uint64_t occurrences_of(const source_table *t, const difference *d) {
    const uint64_t now = t->next.scores[d->now];
    const uint64_t then = d->then == UINT64_MAX ? 0 : t->last.scores[d->then];
    return now >= then ? now - then : now; /* the key has left meanwhile, and is back */
}

/* Euclidean norm of a change, in double. */
static double norm_of(const source_table *t, const difference *d) {
    const uint32_t dim = t->info.dim;
    const hotbed_encoding encoding = (hotbed_encoding)t->cut->encoding;
    const size_t bytes = hotbed_cut_row_bytes(t->cut);
    float now[HOTBED_CUT_DIM_MOST], then[HOTBED_CUT_DIM_MOST];
    double sum = 0;
    hotbed_row_decode(encoding, dim, t->next.encoded + d->now * bytes, now);
    if (d->then != UINT64_MAX)
        hotbed_row_decode(encoding, dim, t->last.encoded + d->then * bytes, then);
    for (uint32_t e = 0; e < dim; e++) {
        const double change =
            (double)now[e] - (double)(d->then == UINT64_MAX ? t->info.eval_value : then[e]);
        sum += change * change;
    }
    return sqrt(sum);
}

/* What the filter looks at, of rows that differ. */
typedef struct measures {
    uint64_t *scores, *occurrences;
    double *changes;
    bool *passes;
} measures;

static hotbed_status measure(
    const hotbed_source *s, const source_table *t, uint64_t n, const difference *rows,
    measures *m) {
    m->scores = hotbed_new((n + 1) * sizeof *m->scores);
    m->occurrences = hotbed_new((n + 1) * sizeof *m->occurrences);
    m->changes = hotbed_new((n + 1) * sizeof *m->changes);
    m->passes = hotbed_new((n + 1) * sizeof *m->passes);
    if (m->scores == NULL || m->occurrences == NULL || m->changes == NULL || m->passes == NULL)
        return fail_memory(t, n);
    for (uint64_t i = 0; i < n; i++) {
        m->scores[i] = by_score(t) ? score_of(s, t, rows[i].now) : 0;
        m->occurrences[i] = t->filter.min_occurrences != 0 ? occurrences_of(t, &rows[i]) : 0;
        m->changes[i] = t->filter.min_change > 0 ? norm_of(t, &rows[i]) : 0;
    }
    return hotbed_change_filter_select(
        &t->filter, n, m->scores, m->occurrences, m->changes, m->passes);
}

/* Let the next mark have what readers have after the cut: a row that was left out as before, and no such key that
 * is new. */
static void hold_back(source_table *t, uint64_t n, const difference *rows, const bool *passes) {
    const size_t bytes = hotbed_cut_row_bytes(t->cut);
    marked *now = &t->next;
    uint64_t kept = 0;
    for (uint64_t k = 0, i = 0; k < now->rows; k++) {
        const bool differs = i < n && rows[i].now == k;
        const bool hold = differs && !passes[i];
        const uint64_t then = differs ? rows[i].then : UINT64_MAX;
        i += differs;
        if (hold && then == UINT64_MAX)
            continue;
        now->keys[kept] = now->keys[k];
        now->digests[kept] = hold ? t->last.digests[then] : now->digests[k];
        if (now->scores != NULL)
            now->scores[kept] = hold ? t->last.scores[then] : now->scores[k];
        if (now->encoded != NULL)
            memmove(
                now->encoded + kept * bytes,
                hold ? t->last.encoded + then * bytes : now->encoded + k * bytes, bytes);
        kept++;
    }
    now->rows = kept;
}

/* List the rows that the filter lets pass. */
static hotbed_status filter_rows(
    hotbed_source *s, source_table *t, const difference *rows, uint64_t *n) {
    uint64_t passed = 0;
    measures m = {.scores = NULL};
    const hotbed_status status = measure(s, t, *n, rows, &m);
    for (uint64_t i = 0; i < *n && status == HOTBED_OK; i++)
        if (m.passes[i]) {
            s->changed_keys[passed] = t->next.keys[rows[i].now];
            s->changed_places[passed++] = s->places[rows[i].now];
        }
    if (status == HOTBED_OK) {
        hold_back(t, *n, rows, m.passes);
        *n = passed;
    }
    hotbed_delete(m.scores);
    hotbed_delete(m.occurrences);
    hotbed_delete(m.changes);
    hotbed_delete(m.passes);
    return status;
}

/* Find what changed by digests. */
static hotbed_status compare_marks(hotbed_source *s, source_table *t, hotbed_changes *out) {
    const uint64_t n = t->next.rows;
    difference *rows = hotbed_new((n + 1) * sizeof *rows);
    s->changed_keys = hotbed_new((n + 1) * sizeof *s->changed_keys);
    s->changed_places = hotbed_new((n + 1) * sizeof *s->changed_places);
    s->erased = hotbed_new((t->last.rows + 1) * sizeof *s->erased);
    hotbed_status status = HOTBED_OK;
    if (rows == NULL || s->changed_keys == NULL || s->changed_places == NULL || s->erased == NULL)
        status = fail_memory(t, n);
    if (status == HOTBED_OK)
        compare(t, rows, &out->num_rows, s->erased, &out->num_erased);
    HOTBED_THEN(status, filter_rows(s, t, rows, &out->num_rows));
    hotbed_delete(rows);
    out->keys = s->changed_keys;
    out->places = s->changed_places;
    out->erased = s->erased;
    out->keys_after = t->next.rows;
    return status;
}

/* List the keys that have left the table, each once, in the order of hashes. */
static void order_removed(source_table *t, hotbed_changes *out) {
    uint64_t *removed = t->removed.keys;
    for (uint64_t i = 0; i < t->removed.n; i++)
        removed[i] = hotbed_hash_u64(removed[i]);
    out->num_erased = t->removed.n = hotbed_distinct_words(t->removed.n, removed);
    for (uint64_t i = 0; i < t->removed.n; i++)
        removed[i] = hotbed_unhash_u64(removed[i]);
    out->erased = removed;
}

hotbed_status hotbed_source_changes(
    hotbed_source *s, uint32_t table, bool whole, hotbed_changes *out) {
    source_table *t = &s->tables[table];
    clear_changes(s);
    clear_mark(&t->next);
    HOTBED_TRY(order_keys(s, t));
    HOTBED_TRY(check_ranks(s, t));
    if (!t->tracks)
        HOTBED_TRY(digest_rows(s, t));
    *out = copy_of(t);
    if (!t->tracks && !whole)
        return compare_marks(s, t, out);
    if (whole)
        out->keys_after = t->next.rows; /* without rows that the route assigns to nobody */
    else if (t->route != NULL && t->info.kind == HOTBED_TABLE_STATIC)
        out->keys_after = hotbed_route_rows(t->route, s->rank);
    out->num_rows = t->next.rows;
    out->keys = t->next.keys;
    out->places = s->places;
    if (!whole)
        order_removed(t, out);
    return HOTBED_OK;
}

void hotbed_source_settle(hotbed_source *s) {
    clear_changes(s);
    for (uint32_t i = 0; i < s->storages->num_tables; i++) {
        source_table *t = &s->tables[i];
        t->settled = hotbed_positions_of(s->positions, i);
        if (!t->tracks) {
            clear_mark(&t->last);
            t->last = t->next;
            t->next = (marked){.rows = 0};
            continue;
        }
        clear_mark(&t->next);
        if (s->whole) { /* a table that tracks changes needs no copy of all rows until the next base */
            free_copy(t);
        }
    }
}
