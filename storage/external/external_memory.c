/* storage/external/external_memory.c - an external store in the memory of this process.
 *
 * This is the simplest plug-in; read it first. A table consists of three dense arrays (keys,
 * metadata, rows) and a hash table of row numbers. An insert allocates all memory before it stores
 * the first row, so it cannot fail halfway. */
#include "storage/external/external.h"

#include "base/check.h"
#include "base/error.h"
#include "base/hash_core.h"
#include "base/stream.h"

#include <stdio.h>

#define NOWHERE UINT64_MAX
enum { PLACES_LEAST = 64 };

typedef struct table {
    uint64_t row_bytes;
    char layout[HOTBED_EXTERNAL_LAYOUT_BYTES];
    uint64_t count, capacity; /* rows stored, and rows that the arrays can hold */
    uint64_t *keys;
    hotbed_external_metadata *metadata;
    uint8_t *rows;
    uint64_t *places; /* [num_places] row numbers, or NOWHERE; at most half are in use */
    uint64_t num_places;
} table;

typedef struct store {
    uint32_t num_tables;
    table *tables;
} store;

typedef struct cursor {
    uint32_t table;
    uint64_t next, count;
    uint64_t *keys; /* keys at the time it was opened */
} cursor;

static hotbed_status fail_memory(hotbed_external_call *call, uint64_t rows) {
    snprintf(
        call->reason, sizeof call->reason, "no memory for %llu rows", (unsigned long long)rows);
    return HOTBED_ERR_MEMORY;
}

/* --- a table ---------------------------------------------------------------------------------- */

/* The position at which a search for a key begins. Not by the hash that routes use: of that, all keys of a
 * rank may have the last bits in common. */
static uint64_t home_of(const table *t, uint64_t key) {
    return hotbed_hash_u64(~key) & (t->num_places - 1);
}

/* Position of `key` in `places`, or the free position where it belongs. */
static uint64_t place_of(const table *t, uint64_t key) {
    uint64_t p = home_of(t, key);
    while (t->places[p] != NOWHERE && t->keys[t->places[p]] != key)
        p = (p + 1) & (t->num_places - 1);
    return p;
}

/* Row number of the key, or NOWHERE. */
static uint64_t row_of(const table *t, uint64_t key) {
    return t->count == 0 ? NOWHERE : t->places[place_of(t, key)];
}

static bool grow(table *t, uint64_t rows) {
    if (rows <= t->capacity)
        return true;
    table larger = *t;
    larger.num_places = PLACES_LEAST;
    while (larger.num_places / 2 < rows)
        larger.num_places *= 2;
    larger.capacity = larger.num_places / 2;
    larger.keys = hotbed_new(larger.capacity * sizeof *larger.keys);
    larger.metadata = hotbed_new(larger.capacity * sizeof *larger.metadata);
    larger.rows = hotbed_new(larger.capacity * t->row_bytes);
    larger.places = hotbed_new(larger.num_places * sizeof *larger.places);
    table *unused = &larger;
    bool grown = larger.keys != NULL && larger.metadata != NULL && larger.rows != NULL &&
                 larger.places != NULL;
    if (grown) {
        if (t->count > 0) {
            memcpy(larger.keys, t->keys, t->count * sizeof *t->keys);
            memcpy(larger.metadata, t->metadata, t->count * sizeof *t->metadata);
            memcpy(larger.rows, t->rows, t->count * t->row_bytes);
        }
        for (uint64_t p = 0; p < larger.num_places; p++)
            larger.places[p] = NOWHERE;
        for (uint64_t i = 0; i < larger.count; i++)
            larger.places[place_of(&larger, larger.keys[i])] = i;
        table before = *t;
        *t = larger;
        larger = before;
    }
    hotbed_delete(unused->keys);
    hotbed_delete(unused->metadata);
    hotbed_delete(unused->rows);
    hotbed_delete(unused->places);
    return grown;
}

/* Free position p. Later keys of the same run move forward, so that a search still reaches
 * them. */
static void free_place(table *t, uint64_t p) {
    uint64_t mask = t->num_places - 1;
    for (uint64_t q = (p + 1) & mask; t->places[q] != NOWHERE; q = (q + 1) & mask) {
        uint64_t start = home_of(t, t->keys[t->places[q]]);
        if (((q - start) & mask) >= ((q - p) & mask)) { /* a search for q's key passes p */
            t->places[p] = t->places[q];
            p = q;
        }
    }
    t->places[p] = NOWHERE;
}

/* Remove row i by moving the last row into its position. */
static void remove_row(table *t, uint64_t i) {
    free_place(t, place_of(t, t->keys[i]));
    uint64_t last = --t->count;
    if (i == last)
        return;
    t->places[place_of(t, t->keys[last])] = i;
    t->keys[i] = t->keys[last];
    t->metadata[i] = t->metadata[last];
    memcpy(t->rows + i * t->row_bytes, t->rows + last * t->row_bytes, t->row_bytes);
}

/* --- the plug-in ------------------------------------------------------------------------------ */

static hotbed_status open_tables(
    void *self, uint32_t num_tables, const hotbed_external_table *tables,
    hotbed_external_call *call) {
    store *s = self;
    s->tables = hotbed_new(num_tables * sizeof *s->tables);
    if (s->tables == NULL)
        return fail_memory(call, num_tables);
    s->num_tables = num_tables;
    for (uint32_t i = 0; i < num_tables; i++)
        s->tables[i].row_bytes = tables[i].row_bytes;
    return HOTBED_OK;
}

static hotbed_status find(
    void *self, uint32_t number, uint64_t n, const uint64_t *keys, uint8_t *found, void *rows,
    hotbed_external_metadata *metadata, hotbed_external_call *call) {
    const table *t = &((store *)self)->tables[number];
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = row_of(t, keys[i]);
        found[i] = at != NOWHERE;
        if (at == NOWHERE)
            continue;
        metadata[i] = t->metadata[at];
        if (rows != NULL)
            memcpy((uint8_t *)rows + i * t->row_bytes, t->rows + at * t->row_bytes, t->row_bytes);
    }
    return HOTBED_OK;
}

static hotbed_status insert(
    void *self, uint32_t number, uint64_t n, const uint64_t *keys, const void *rows,
    const hotbed_external_metadata *metadata, hotbed_external_call *call) {
    table *t = &((store *)self)->tables[number];
    uint64_t added = 0;
    for (uint64_t i = 0; i < n; i++)
        added += row_of(t, keys[i]) == NOWHERE;
    if (!grow(t, t->count + added))
        return fail_memory(call, t->count + added);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t *place = &t->places[place_of(t, keys[i])];
        if (*place == NOWHERE) {
            *place = t->count++;
            t->keys[*place] = keys[i];
        }
        t->metadata[*place] = metadata[i];
        memcpy(
            t->rows + *place * t->row_bytes, (const uint8_t *)rows + i * t->row_bytes,
            t->row_bytes);
    }
    return HOTBED_OK;
}

static hotbed_status erase(
    void *self, uint32_t number, uint64_t n, const uint64_t *keys, uint8_t *erased,
    hotbed_external_call *call) {
    table *t = &((store *)self)->tables[number];
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = row_of(t, keys[i]);
        if (erased != NULL)
            erased[i] = at != NOWHERE;
        if (at != NOWHERE)
            remove_row(t, at);
    }
    return HOTBED_OK;
}

static hotbed_status cursor_open(
    void *self, uint32_t number, void **out, hotbed_external_call *call) {
    const table *t = &((store *)self)->tables[number];
    cursor *c = hotbed_new(sizeof *c);
    if (c == NULL)
        return fail_memory(call, t->count);
    c->table = number;
    c->count = t->count;
    c->keys = hotbed_new((t->count + 1) * sizeof *c->keys);
    if (c->keys == NULL) {
        hotbed_delete(c);
        return fail_memory(call, t->count);
    }
    if (t->count > 0)
        memcpy(c->keys, t->keys, t->count * sizeof *c->keys);
    *out = c;
    return HOTBED_OK;
}

static hotbed_status cursor_next(
    void *self, void *cursor_of, uint64_t capacity, uint64_t *keys, void *rows,
    hotbed_external_metadata *metadata, uint64_t *n, hotbed_external_call *call) {
    cursor *c = cursor_of;
    const table *t = &((store *)self)->tables[c->table];
    uint64_t given = 0;
    for (; c->next < c->count && given < capacity; c->next++) {
        uint64_t at = row_of(t, c->keys[c->next]);
        if (at == NOWHERE)
            continue; /* erased since the cursor was opened */
        keys[given] = t->keys[at];
        metadata[given] = t->metadata[at];
        memcpy((uint8_t *)rows + given * t->row_bytes, t->rows + at * t->row_bytes, t->row_bytes);
        given++;
    }
    *n = given;
    return HOTBED_OK;
}

static void cursor_close(void *self, void *cursor_of) {
    cursor *c = cursor_of;
    hotbed_delete(c->keys);
    hotbed_delete(c);
}

static hotbed_status count(
    void *self, uint32_t number, uint64_t *keys, hotbed_external_call *call) {
    *keys = ((store *)self)->tables[number].count;
    return HOTBED_OK;
}

static hotbed_status layout(
    void *self, uint32_t number, const char *text, hotbed_external_call *call) {
    table *t = &((store *)self)->tables[number];
    if (t->layout[0] == 0)
        snprintf(t->layout, sizeof t->layout, "%s", text);
    if (strcmp(t->layout, text) == 0)
        return HOTBED_OK;
    snprintf(call->reason, sizeof call->reason, "rows are %s, not %s", t->layout, text);
    return HOTBED_ERR_ARGUMENT;
}

static void close_store(void *self) {
    store *s = self;
    for (uint32_t i = 0; i < s->num_tables; i++) {
        hotbed_delete(s->tables[i].keys);
        hotbed_delete(s->tables[i].metadata);
        hotbed_delete(s->tables[i].rows);
        hotbed_delete(s->tables[i].places);
    }
    hotbed_delete(s->tables);
    hotbed_delete(s);
}

const hotbed_external_calls hotbed_external_memory_calls = {
    .size = sizeof(hotbed_external_calls),
    .name = "memory",
    .open = open_tables,
    .find = find,
    .insert = insert,
    .erase = erase,
    .cursor_open = cursor_open,
    .cursor_next = cursor_next,
    .cursor_close = cursor_close,
    .count = count,
    .flush = NULL,
    .close = close_store,
    .layout = layout,
};

void *hotbed_external_memory_new(void) {
    return hotbed_new(sizeof(store));
}

hotbed_status hotbed_external_create_memory(
    const hotbed_external_options *options, hotbed_external **out) {
    HOTBED_TRY(hotbed_check_pointer("out", out));
    *out = NULL;
    void *self = hotbed_external_memory_new();
    HOTBED_TRY_MEMORY(self, "an external store");
    hotbed_status status =
        hotbed_external_create(options, &hotbed_external_memory_calls, self, out);
    if (status != HOTBED_OK)
        close_store(self);
    return status;
}
