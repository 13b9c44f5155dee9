/* checkpoint/touched.c - what was changed since a position, for increments. */
#include "checkpoint/touched.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/format/bucket.h"
#include "hotbed/export.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW ((uint64_t)1 << 26) /* slots that one export looks at */

/* What kernels write; pinned. */
typedef struct touched_words {
    uint64_t count, lost;
    hotbed_change_position since, until;
} touched_words;

struct hotbed_touched {
    const hotbed_storages *storages;
    hotbed_change_position *positions; /* [tables] */
    hotbed_memory words, keys;         /* pinned */
};

static touched_words *words_of(const hotbed_touched *t) {
    return t->words.data;
}

static hotbed_status take_positions(hotbed_touched *t, hotbed_stream *stream) {
    const hotbed_storages *all = t->storages;
    hotbed_change_position last = {.epoch = 0};
    uint32_t taken = UINT32_MAX; /* the storage of `last` */
    HOTBED_TRY(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, sizeof(touched_words), NULL, &t->words));
    for (uint32_t i = 0; i < all->num_tables; i++) {
        hotbed_table_info info;
        HOTBED_TRY(hotbed_storages_info(all, i, &info));
        if (info.change_bytes == 0)
            continue;
        if (taken != all->tables[i].storage) {
            HOTBED_TRY(
                hotbed_storage_position(hotbed_storages_of(all, i), &words_of(t)->until, stream));
            HOTBED_TRY(hotbed_stream_sync(stream));
            last = words_of(t)->until;
            taken = all->tables[i].storage;
        }
        t->positions[i] = last;
    }
    return HOTBED_OK;
}

hotbed_status hotbed_touched_create(
    const hotbed_storages *storages, hotbed_stream *stream, hotbed_touched **out) {
    hotbed_touched *t = *out = hotbed_new(sizeof *t);
    if (t != NULL) {
        t->storages = storages;
        t->positions = hotbed_new(storages->num_tables * sizeof *t->positions);
    }
    return t != NULL && t->positions != NULL
               ? take_positions(t, stream)
               : hotbed_fail(HOTBED_ERR_MEMORY, "no memory for positions in the changes");
}

void hotbed_touched_destroy(hotbed_touched *t) {
    if (t == NULL)
        return;
    hotbed_memory_free(&t->words);
    hotbed_memory_free(&t->keys);
    hotbed_delete(t->positions);
    hotbed_delete(t);
}

hotbed_change_position hotbed_touched_position(const hotbed_touched *t, uint32_t table) {
    return t->positions[table];
}

/* Get pinned memory for n keys. */
static hotbed_status reserve(hotbed_touched *t, uint64_t n, hotbed_stream *stream) {
    if (n * sizeof(uint64_t) <= t->keys.bytes)
        return HOTBED_OK;
    hotbed_memory_free(&t->keys);
    return hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, n * sizeof(uint64_t), NULL, &t->keys);
}

/* Copy n keys from pinned memory. */
static hotbed_status keep(const hotbed_touched *t, uint64_t n, uint64_t **out) {
    *out = hotbed_new((n + 1) * sizeof **out);
    if (*out == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for the keys of an increment");
    if (n > 0)
        memcpy(*out, t->keys.data, n * sizeof **out);
    return HOTBED_OK;
}

/* Export the changed keys, as far as there is memory; *n is their number. */
static hotbed_status export_changed(
    hotbed_touched *t, uint32_t table, hotbed_stream *stream, uint64_t *n) {
    hotbed_storage *storage = hotbed_storages_of(t->storages, table);
    const uint64_t capacity = t->keys.bytes / sizeof(uint64_t);
    uint64_t end = 0;
    hotbed_export e;
    hotbed_export_init(&e);
    e.table = hotbed_storages_number(t->storages, table);
    e.slots = WINDOW;
    e.count = &words_of(t)->count;
    e.since = &words_of(t)->since;
    HOTBED_TRY(hotbed_storage_export_end(storage, e.table, &end, stream));
    for (*n = 0; e.first < end; e.first += WINDOW) {
        const bool room = *n < capacity;
        e.keys = room ? (uint64_t *)t->keys.data + *n : NULL;
        e.capacity = room ? capacity - *n : 0;
        HOTBED_TRY(hotbed_storage_export(storage, &e, stream));
        HOTBED_TRY(hotbed_stream_sync(stream));
        *n += words_of(t)->count;
    }
    return HOTBED_OK;
}

/* Copy out the keys that have left; *n is their number. */
static hotbed_status export_removed(
    hotbed_touched *t, uint32_t table, hotbed_stream *stream, uint64_t *n) {
    touched_words *words = words_of(t);
    hotbed_removed r;
    hotbed_removed_init(&r);
    r.table = hotbed_storages_number(t->storages, table);
    r.since = &words->since;
    r.until = &words->until;
    r.keys = t->keys.data;
    r.capacity = t->keys.bytes / sizeof(uint64_t);
    r.count = &words->count;
    r.lost = &words->lost;
    HOTBED_TRY(hotbed_storage_removed(hotbed_storages_of(t->storages, table), &r, stream));
    HOTBED_TRY(hotbed_stream_sync(stream));
    *n = words->count;
    if (words->lost == 0)
        return HOTBED_OK;
    hotbed_table_info info;
    HOTBED_TRY(hotbed_storages_info(t->storages, table, &info));
    return hotbed_error_table(
        hotbed_fail_value(
            HOTBED_ERR_STATE, "touched", (double)words->lost,
            "table '%s': more keys have left since the parent than the storage remembers, or it is "
            "another "
            "storage's, or a table was cleared: save a full checkpoint, or raise removed_capacity",
            info.name),
        info.name);
}

typedef hotbed_status (*lister)(
    hotbed_touched *t, uint32_t table, hotbed_stream *stream, uint64_t *n);

/* Call `list`, twice if there were more keys than memory. */
static hotbed_status list_with(
    lister list, hotbed_touched *t, uint32_t table, hotbed_stream *stream, uint64_t **out,
    uint64_t *n) {
    HOTBED_TRY(list(t, table, stream, n));
    if (*n * sizeof(uint64_t) > t->keys.bytes) {
        HOTBED_TRY(reserve(t, *n, stream));
        HOTBED_TRY(list(t, table, stream, n));
    }
    return keep(t, *n, out);
}

static int by_key(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Sort row numbers, and drop those past the rank's, which are nobody's. */
static void keep_rows(uint64_t *numbers, uint64_t *n, uint64_t rows) {
    uint64_t kept = 0;
    for (uint64_t i = 0; i < *n; i++)
        if (numbers[i] < rows)
            numbers[kept++] = numbers[i];
    *n = kept;
    if (kept > 0)
        qsort(numbers, kept, sizeof *numbers, by_key);
}

hotbed_status hotbed_touched_list(
    hotbed_touched *t, uint32_t table, const hotbed_change_position *since, uint64_t rows,
    hotbed_stream *stream, hotbed_mark_changes *out) {
    hotbed_table_info info;
    *out = (hotbed_mark_changes){.num_changed = 0};
    HOTBED_TRY(hotbed_storages_info(t->storages, table, &info));
    words_of(t)->since = *since;
    words_of(t)->until = t->positions[table];
    HOTBED_TRY(list_with(export_removed, t, table, stream, &out->erased, &out->num_erased));
    HOTBED_TRY(list_with(export_changed, t, table, stream, &out->changed, &out->num_changed));
    if (info.kind == HOTBED_TABLE_STATIC)
        keep_rows(out->changed, &out->num_changed, rows);
    return HOTBED_OK;
}

/* Sort n distinct keys. */
static hotbed_status sort_keys(
    uint64_t n, uint64_t **keys, hotbed_key_type type, uint32_t bits, uint64_t *counts) {
    uint64_t *sorted = hotbed_new((n + 1) * sizeof *sorted);
    if (sorted == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory to sort the keys of an increment");
    hotbed_status status = hotbed_bucket_sort(n, *keys, type, bits, sorted, counts);
    if (status != HOTBED_OK) {
        hotbed_delete(sorted);
        return status;
    }
    hotbed_delete(*keys);
    *keys = sorted;
    return HOTBED_OK;
}

hotbed_status hotbed_touched_sort(
    hotbed_key_type type, uint32_t bucket_bits, hotbed_mark_changes *changes) {
    uint64_t *counts = hotbed_new(((size_t)1 << bucket_bits) * sizeof *counts), distinct = 0;
    if (counts == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory to sort the keys of an increment");
    uint64_t *erased = changes->erased;
    qsort(erased, changes->num_erased, sizeof *erased, by_key);
    for (uint64_t i = 0; i < changes->num_erased; i++)
        if (distinct == 0 || erased[i] != erased[distinct - 1])
            erased[distinct++] = erased[i];
    changes->num_erased = distinct;
    hotbed_status status =
        sort_keys(changes->num_changed, &changes->changed, type, bucket_bits, counts);
    if (status == HOTBED_OK)
        status = sort_keys(distinct, &changes->erased, type, bucket_bits, counts);
    hotbed_delete(counts);
    return status;
}
