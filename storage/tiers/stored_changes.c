/* storage/tiers/stored_changes.c - when rows of an external store were changed: maps from keys to epochs. */
#include "storage/tiers/stored_changes.h"

#include "base/error.h"
#include "base/hash_core.h"
#include "base/stream.h"

#include <pthread.h>

enum { SLOTS_LEAST = 64 };

typedef struct entry {
    uint64_t key;
    uint32_t epoch; /* 0: the slot is free */
    uint32_t unused;
} entry;

/* Open addressing with linear probes, at most three quarters full. */
typedef struct map {
    entry *entries; /* [slots]; NULL if slots is 0 */
    uint64_t slots; /* a power of two */
    uint64_t n;
} map;

typedef struct generation {
    map *maps; /* [num_tables] */
    uint64_t n;
    uint32_t newest; /* largest epoch */
} generation;

struct hotbed_stored_changes {
    pthread_mutex_t lock;
    uint32_t num_tables;
    uint64_t half; /* of the capacity */
    generation young, old;
    hotbed_memory pinned;
    hotbed_forgotten *forgotten; /* in `pinned` */
};

/* --- lists ------------------------------------------------------------------------------------ */

hotbed_status hotbed_changed_keys_reserve(hotbed_changed_keys *keys, uint64_t n) {
    HOTBED_TRY_MEMORY(
        hotbed_reserve(&keys->items, keys->n, n, &keys->capacity, sizeof *keys->items),
        "%llu keys that were changed", (unsigned long long)(keys->n + n));
    return HOTBED_OK;
}

/* --- maps ------------------------------------------------------------------------------------- */

/* The entry of a key, or the free one where it belongs. */
static entry *place_of(const map *m, uint64_t key) {
    uint64_t at = hotbed_hash_u64(key) & (m->slots - 1);
    while (m->entries[at].epoch != 0 && m->entries[at].key != key)
        at = (at + 1) & (m->slots - 1);
    return &m->entries[at];
}

/* The entry of a key, or NULL. */
static entry *find(const map *m, uint64_t key) {
    entry *e = m->slots == 0 ? NULL : place_of(m, key);
    return e == NULL || e->epoch == 0 ? NULL : e;
}

/* Make room for one more key. False without memory. */
static bool grow(map *m) {
    if (m->n < m->slots / 4 * 3)
        return true;
    map larger = {.slots = m->slots == 0 ? SLOTS_LEAST : 2 * m->slots, .n = m->n};
    larger.entries = hotbed_new(larger.slots * sizeof *larger.entries);
    if (larger.entries == NULL)
        return false;
    for (uint64_t i = 0; i < m->slots; i++)
        if (m->entries[i].epoch != 0)
            *place_of(&larger, m->entries[i].key) = m->entries[i];
    hotbed_delete(m->entries);
    *m = larger;
    return true;
}

static void empty(hotbed_stored_changes *c, generation *g) {
    for (uint32_t t = 0; t < c->num_tables; t++) {
        hotbed_delete(g->maps[t].entries);
        g->maps[t] = (map){.slots = 0};
    }
    g->n = 0;
    g->newest = 0;
}

/* --- generations ------------------------------------------------------------------------------ */

/* Kernels that read this run after the call of the store, in the order of the caller's streams. */
static void forget(hotbed_stored_changes *c, uint32_t newest, uint64_t keys) {
    if (newest > c->forgotten->epoch)
        hotbed_store_relaxed_u64(&c->forgotten->epoch, newest);
    hotbed_store_relaxed_u64(&c->forgotten->keys, c->forgotten->keys + keys);
}

static void forget_generation(hotbed_stored_changes *c, generation *g) {
    forget(c, g->newest, g->n);
    empty(c, g);
}

/* The young generation is full. */
static void turn(hotbed_stored_changes *c) {
    forget_generation(c, &c->old);
    const generation none = c->old;
    c->old = c->young;
    c->young = none;
}

static void put(hotbed_stored_changes *c, uint32_t table, uint64_t key, uint32_t epoch) {
    entry *e = find(&c->young.maps[table], key);
    if (e == NULL) {
        const entry *before = find(&c->old.maps[table], key);
        if (epoch <= c->forgotten->epoch || (before != NULL && before->epoch >= epoch))
            return;
        if (c->young.n >= c->half)
            turn(c);
        map *m = &c->young.maps[table];
        if (!grow(m)) {
            forget_generation(c, &c->old);
            forget_generation(c, &c->young);
            forget(c, epoch, 1);
            return;
        }
        e = place_of(m, key);
        e->key = key;
        m->n++;
        c->young.n++;
    }
    if (e->epoch < epoch)
        e->epoch = epoch;
    if (c->young.newest < epoch)
        c->young.newest = epoch;
}

void hotbed_stored_changes_put(
    hotbed_stored_changes *c, uint32_t table, uint64_t n, const uint64_t *keys,
    const uint32_t *epochs) {
    pthread_mutex_lock(&c->lock);
    for (uint64_t i = 0; i < n; i++)
        if (epochs[i] != 0)
            put(c, table, keys[i], epochs[i]);
    pthread_mutex_unlock(&c->lock);
}

void hotbed_stored_changes_clear(hotbed_stored_changes *c) {
    pthread_mutex_lock(&c->lock);
    empty(c, &c->young);
    empty(c, &c->old);
    pthread_mutex_unlock(&c->lock);
}

static hotbed_status list(const map *m, uint64_t since, hotbed_changed_keys *keys) {
    for (uint64_t i = 0; i < m->slots; i++)
        if (m->entries[i].epoch != 0 && m->entries[i].epoch >= since) {
            HOTBED_TRY(hotbed_changed_keys_reserve(keys, 1));
            keys->items[keys->n++] = m->entries[i].key;
        }
    return HOTBED_OK;
}

hotbed_status hotbed_stored_changes_list(
    hotbed_stored_changes *c, uint32_t table, uint64_t since, hotbed_changed_keys *keys) {
    pthread_mutex_lock(&c->lock);
    hotbed_status status = HOTBED_OK;
    if (since <= c->forgotten->epoch)
        status = hotbed_fail_value(
            HOTBED_ERR_STATE, "since", c->forgotten->keys,
            "since: %llu changed rows are no longer remembered; export all rows, or raise "
            "changed_capacity",
            (unsigned long long)c->forgotten->keys);
    HOTBED_THEN(status, list(&c->old.maps[table], since, keys));
    HOTBED_THEN(status, list(&c->young.maps[table], since, keys));
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* --- create and destroy ----------------------------------------------------------------------- */

hotbed_status hotbed_stored_changes_create(
    uint32_t num_tables, uint64_t capacity, hotbed_stream *stream, hotbed_stored_changes **out) {
    hotbed_stored_changes *c = *out = hotbed_new(sizeof *c);
    HOTBED_TRY_MEMORY(c, "changes of %u tables", num_tables);
    pthread_mutex_init(&c->lock, NULL);
    c->num_tables = num_tables;
    c->half = capacity > 1 ? capacity / 2 : 1;
    c->young.maps = hotbed_new(num_tables * sizeof *c->young.maps);
    c->old.maps = hotbed_new(num_tables * sizeof *c->old.maps);
    hotbed_status status =
        c->young.maps == NULL || c->old.maps == NULL
            ? hotbed_fail(HOTBED_ERR_MEMORY, "no memory for changes of %u tables", num_tables)
            : hotbed_memory_alloc(
                  stream, HOTBED_MEMORY_PINNED, sizeof *c->forgotten, NULL, &c->pinned);
    if (status != HOTBED_OK) {
        hotbed_stored_changes_destroy(c);
        *out = NULL;
        return status;
    }
    c->forgotten = c->pinned.data;
    *c->forgotten = (hotbed_forgotten){.epoch = 0};
    return HOTBED_OK;
}

void hotbed_stored_changes_destroy(hotbed_stored_changes *c) {
    if (c == NULL)
        return;
    if (c->young.maps != NULL && c->old.maps != NULL) {
        empty(c, &c->young);
        empty(c, &c->old);
    }
    hotbed_delete(c->young.maps);
    hotbed_delete(c->old.maps);
    hotbed_memory_free(&c->pinned);
    pthread_mutex_destroy(&c->lock);
    hotbed_delete(c);
}

const hotbed_forgotten *hotbed_stored_changes_forgotten(const hotbed_stored_changes *c) {
    return c->forgotten;
}
