/* checkpoint/positions.c - positions in the changes of storages, and exports of what changed since one. */
#include "checkpoint/positions.h"

#include "base/error.h"
#include "base/stream.h"

#include <inttypes.h>
#include <string.h>

/* Slots that one export looks at. Its workspace is half a byte per slot. */
#define WINDOW ((uint64_t)1 << 26)

/* What kernels write; pinned. */
typedef struct pinned_words {
    uint64_t count, lost;
    hotbed_change_position since, until;
} pinned_words;

struct hotbed_positions {
    const hotbed_storages *storages;
    hotbed_change_position *taken; /* [tables] */
    hotbed_memory words, keys;     /* pinned */
};

static pinned_words *words_of(const hotbed_positions *p) {
    return p->words.data;
}

hotbed_status hotbed_positions_create(
    const hotbed_storages *storages, hotbed_stream *stream, hotbed_positions **out) {
    const uint32_t n = storages->num_tables;
    hotbed_positions *p = *out = hotbed_new(sizeof *p);
    if (p != NULL) {
        p->storages = storages;
        p->taken = hotbed_new(n * sizeof *p->taken);
    }
    hotbed_status status =
        p != NULL && p->taken != NULL
            ? hotbed_memory_alloc(
                  stream, HOTBED_MEMORY_PINNED, sizeof(pinned_words), NULL, &p->words)
            : hotbed_fail_value(
                  HOTBED_ERR_MEMORY, NULL, n,
                  "no memory for positions in the changes of %" PRIu32 " tables", n);
    if (status != HOTBED_OK) {
        hotbed_positions_destroy(p);
        *out = NULL;
    }
    return status;
}

void hotbed_positions_destroy(hotbed_positions *p) {
    if (p == NULL)
        return;
    hotbed_memory_free(&p->words);
    hotbed_memory_free(&p->keys);
    hotbed_delete(p->taken);
    hotbed_delete(p);
}

hotbed_status hotbed_positions_take(hotbed_positions *p, hotbed_stream *stream) {
    const hotbed_storages *all = p->storages;
    hotbed_change_position last = {.epoch = 0};
    uint32_t taken = UINT32_MAX; /* the storage of `last` */
    for (uint32_t i = 0; i < all->num_tables; i++) {
        hotbed_table_info info;
        HOTBED_TRY(hotbed_storages_info(all, i, &info));
        if (info.change_bytes == 0)
            continue;
        if (taken != all->tables[i].storage) {
            HOTBED_TRY(
                hotbed_storage_position(hotbed_storages_of(all, i), &words_of(p)->until, stream));
            HOTBED_TRY(hotbed_stream_sync(stream));
            last = words_of(p)->until;
            taken = all->tables[i].storage;
        }
        p->taken[i] = last;
    }
    return HOTBED_OK;
}

hotbed_change_position hotbed_positions_of(const hotbed_positions *p, uint32_t table) {
    return p->taken[table];
}

hotbed_status hotbed_positions_info(
    const hotbed_positions *p, uint32_t table, hotbed_table_info *out) {
    return hotbed_storages_info(p->storages, table, out);
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Whether the windows of a table end where one is not full, so that the store need not count its keys. */
static bool ends_early(
    const hotbed_storage *storage, const hotbed_table_info *info,
    const hotbed_change_position *since) {
    return since != NULL && since->epoch != 0 && info->lower_slots == 0 &&
           hotbed_storage_mode(storage) == HOTBED_MODE_CACHE;
}

/* A window must be done before the next one: its count says where the next one's rows go. */
hotbed_status hotbed_positions_export(
    hotbed_positions *p, uint32_t table, const hotbed_change_position *since,
    const hotbed_positions_rows *to, hotbed_stream *stream, uint64_t *n) {
    hotbed_storage *storage = hotbed_storages_of(p->storages, table);
    pinned_words *words = words_of(p);
    hotbed_table_info info;
    uint64_t end = UINT64_MAX;
    hotbed_export e = {.size = sizeof e};
    HOTBED_TRY(hotbed_storages_info(p->storages, table, &info));
    const bool early = ends_early(storage, &info, since);
    const size_t row_bytes = hotbed_dtype_row_bytes(info.dtype, info.dim);
    const hotbed_optimizer_kind kind = hotbed_storage_optimizer(storage)->kind;
    const size_t state_bytes[2] = {
        hotbed_optimizer_state_dim(kind, 0, info.dim) * hotbed_dtype_bytes(info.state_dtypes[0]),
        hotbed_optimizer_state_dim(kind, 1, info.dim) * hotbed_dtype_bytes(info.state_dtypes[1])};
    e.table = hotbed_storages_number(p->storages, table);
    e.count = &words->count;
    if (since != NULL) {
        words->since = *since;
        e.since = &words->since;
    }
    if (!early)
        HOTBED_TRY(hotbed_storage_export_end(storage, e.table, &end, stream));
    for (*n = 0; e.first < end; e.first += e.slots) {
        const bool room = *n < to->capacity;
        e.slots = end - e.first < WINDOW ? end - e.first : WINDOW;
        e.capacity = room ? to->capacity - *n : 0;
        e.keys = room && to->keys != NULL ? to->keys + *n : NULL;
        e.rows.weights = room && to->weights != NULL ? (char *)to->weights + *n * row_bytes : NULL;
        e.rows.scores = room && to->scores != NULL ? to->scores + *n : NULL;
        for (uint32_t s = 0; s < 2; s++)
            e.rows.states[s] = room && to->states[s] != NULL
                                   ? (void *)((char *)to->states[s] + *n * state_bytes[s])
                                   : NULL;
        HOTBED_TRY(hotbed_storage_export(storage, &e, stream));
        HOTBED_TRY(hotbed_stream_sync(stream));
        *n += words->count;
        if (early && words->count < e.slots)
            break;
    }
    return HOTBED_OK;
}

/* --- lists of keys ---------------------------------------------------------------------------- */

/* What a list is made of. */
typedef struct request {
    uint32_t table;
    bool removed;
    hotbed_change_position since;
    uint64_t lost; /* out */
} request;

/* Write the keys, as far as there is pinned memory. *n is their number. */
static hotbed_status list_keys(
    hotbed_positions *p, request *r, hotbed_stream *stream, uint64_t *n) {
    const uint64_t capacity = p->keys.bytes / sizeof(uint64_t);
    pinned_words *words = words_of(p);
    if (!r->removed) {
        const hotbed_positions_rows to = {.capacity = capacity, .keys = p->keys.data};
        return hotbed_positions_export(p, r->table, &r->since, &to, stream, n);
    }
    hotbed_removed batch = {.size = sizeof batch};
    words->since = r->since;
    words->until = p->taken[r->table];
    batch.table = hotbed_storages_number(p->storages, r->table);
    batch.since = &words->since;
    batch.until = &words->until;
    batch.keys = p->keys.data;
    batch.capacity = capacity;
    batch.count = &words->count;
    batch.lost = &words->lost;
    HOTBED_TRY(hotbed_storage_removed(hotbed_storages_of(p->storages, r->table), &batch, stream));
    HOTBED_TRY(hotbed_stream_sync(stream));
    r->lost = words->lost;
    *n = r->lost != 0 ? 0 : words->count;
    return HOTBED_OK;
}

static hotbed_status list(
    hotbed_positions *p, request *r, hotbed_stream *stream, hotbed_key_list *out) {
    uint64_t n = 0;
    *out = (hotbed_key_list){.n = 0};
    HOTBED_TRY(list_keys(p, r, stream, &n));
    if (n * sizeof(uint64_t) > p->keys.bytes) { /* once more: now their number is known */
        hotbed_memory_free(&p->keys);
        HOTBED_TRY(hotbed_memory_alloc(
            stream, HOTBED_MEMORY_PINNED, (n + n / 2) * sizeof(uint64_t), NULL, &p->keys));
        HOTBED_TRY(list_keys(p, r, stream, &n));
    }
    uint64_t *keys = hotbed_new((n + 1) * sizeof *keys);
    if (keys == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_MEMORY, NULL, n, "no memory for %" PRIu64 " keys that changed", n);
    if (n > 0)
        memcpy(keys, p->keys.data, n * sizeof *keys);
    *out = (hotbed_key_list){.n = n, .keys = keys};
    return HOTBED_OK;
}

hotbed_status hotbed_positions_removed(
    hotbed_positions *p, uint32_t table, const hotbed_change_position *since, hotbed_stream *stream,
    hotbed_key_list *out, uint64_t *lost) {
    request r = {.table = table, .removed = true, .since = *since};
    HOTBED_TRY(list(p, &r, stream, out));
    *lost = r.lost;
    return HOTBED_OK;
}

hotbed_status hotbed_positions_changed(
    hotbed_positions *p, uint32_t table, const hotbed_change_position *since, hotbed_stream *stream,
    hotbed_key_list *out) {
    request r = {.table = table, .since = *since};
    return list(p, &r, stream, out);
}
