/* storage/tiers/changes_external.c - hotbed/changes.h over an external store: which rows were changed, and
 * which keys have left. */
#include "base/sort.h"
#include "base/stream.h"
#include "storage/external_tier.h"
#include "storage/storage.h"

enum { WINDOW = 1 << 18, FIND_BATCH = 1024 };

/* --- changed rows ----------------------------------------------------------------------------- */

/* Append the keys of a window of the upper tier. `device`: for the keys and their number. */
static hotbed_status append_window(
    hotbed_storage *storage, hotbed_export_args *args, uint64_t *device, hotbed_stream *stream,
    hotbed_changed_keys *keys) {
    uint64_t n = 0;
    args->keys = device + 1;
    args->count = device;
    HOTBED_TRY(hotbed_export_slots(storage, args, stream));
    HOTBED_TRY(hotbed_copy(&n, device, sizeof n, stream));
    HOTBED_TRY(hotbed_stream_finish(stream));
    HOTBED_TRY(hotbed_changed_keys_reserve(keys, n));
    if (n > 0)
        HOTBED_TRY(hotbed_copy(keys->items + keys->n, device + 1, n * sizeof n, stream));
    keys->n += n;
    return hotbed_stream_finish(stream);
}

/* Append the keys of the upper tier. */
static hotbed_status append_upper(
    hotbed_storage *storage, uint32_t table, const hotbed_change_position *since,
    hotbed_stream *stream, hotbed_changed_keys *keys) {
    const hotbed_table_view *view = &storage->tables[table].view;
    const uint64_t window = view->slots < WINDOW ? view->slots : WINDOW;
    hotbed_memory device;
    HOTBED_TRY(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_DEVICE, (window + 1) * sizeof(uint64_t), NULL, &device));
    hotbed_status status = HOTBED_OK;
    for (uint64_t first = 0; first < view->slots; first += window) {
        const uint64_t left = view->slots - first;
        hotbed_export_args args = {
            .table = *view,
            .index = storage->index,
            .capacity = window,
            .since = since,
            .first = first,
            .slots = left < window ? left : window,
        };
        HOTBED_THEN(status, append_window(storage, &args, device.data, stream, keys));
    }
    hotbed_memory_free(&device);
    return status;
}

hotbed_status hotbed_changed_external(
    hotbed_storage *storage, uint32_t table, const hotbed_change_position *since, uint64_t epoch,
    hotbed_stream *stream, hotbed_changed_keys *keys) {
    HOTBED_TRY(hotbed_changed_keys_reserve(keys, 1)); /* `items` is not NULL */
    HOTBED_TRY(append_upper(storage, table, since, stream, keys));
    HOTBED_TRY(hotbed_stored_changes_list(storage->stored_changes, table, epoch, keys));
    keys->n = hotbed_distinct_words(keys->n, keys->items);
    return HOTBED_OK;
}

/* --- keys that have left ---------------------------------------------------------------------- */

/* A call of hotbed_storage_removed(). */
typedef struct removal_call {
    hotbed_storage *storage;
    const hotbed_removed_args *args;
    hotbed_stream *stream;
    hotbed_memory device; /* for count, lost and keys */
    uint64_t *keys;       /* in host memory */
    uint64_t counts[2];   /* count, lost */
} removal_call;

/* How many keys of the log lie between the positions, at most; the kernel checks them. */
static hotbed_status most_keys(const removal_call *c, uint64_t *n) {
    hotbed_change_position since, until;
    HOTBED_TRY(hotbed_copy(&since, c->args->since, sizeof since, c->stream));
    HOTBED_TRY(hotbed_copy(&until, c->args->until, sizeof until, c->stream));
    HOTBED_TRY(hotbed_stream_finish(c->stream));
    *n = until.removed - since.removed;
    if (*n > c->storage->removed_capacity)
        *n = 0;
    return HOTBED_OK;
}

/* Get the keys that are not in the upper tier. */
static hotbed_status read_keys(removal_call *c, uint64_t most) {
    hotbed_removed_args args = *c->args;
    HOTBED_TRY(hotbed_memory_alloc(
        c->stream, HOTBED_MEMORY_DEVICE, (most + 2) * sizeof(uint64_t), NULL, &c->device));
    args.count = c->device.data;
    args.lost = args.count + 1;
    args.keys = args.count + 2;
    args.capacity = most;
    HOTBED_TRY(c->storage->kernels.changes->removed(&args, most, c->stream));
    HOTBED_TRY(hotbed_copy(c->counts, args.count, sizeof c->counts, c->stream));
    HOTBED_TRY(hotbed_stream_finish(c->stream));
    const uint64_t n = c->counts[0];
    c->keys = hotbed_new((n + 1) * sizeof *c->keys);
    HOTBED_TRY_MEMORY(c->keys, "%llu keys that have left", (unsigned long long)n);
    if (n > 0)
        HOTBED_TRY(hotbed_copy(c->keys, args.keys, n * sizeof *c->keys, c->stream));
    return hotbed_stream_finish(c->stream);
}

/* Drop the keys that are back in the store. */
static hotbed_status drop_stored(removal_call *c) {
    uint8_t found[FIND_BATCH];
    uint64_t kept = 0;
    for (uint64_t first = 0; first < c->counts[0]; first += FIND_BATCH) {
        const uint64_t left = c->counts[0] - first, n = left < FIND_BATCH ? left : FIND_BATCH;
        HOTBED_TRY(hotbed_external_find(
            c->storage->external, c->args->rows.table_number, n, c->keys + first, found, NULL,
            NULL));
        for (uint64_t i = 0; i < n; i++)
            if (found[i] == HOTBED_EXTERNAL_MISSING)
                c->keys[kept++] = c->keys[first + i];
    }
    c->counts[0] = kept;
    return HOTBED_OK;
}

static hotbed_status write_keys(const removal_call *c) {
    const hotbed_removed_args *to = c->args;
    const uint64_t n = c->counts[0] < to->capacity ? c->counts[0] : to->capacity;
    if (n > 0)
        HOTBED_TRY(hotbed_copy(to->keys, c->keys, n * sizeof *c->keys, c->stream));
    HOTBED_TRY(hotbed_copy(to->count, &c->counts[0], sizeof *to->count, c->stream));
    HOTBED_TRY(hotbed_copy(to->lost, &c->counts[1], sizeof *to->lost, c->stream));
    return hotbed_stream_finish(c->stream);
}

hotbed_status hotbed_removed_external(
    hotbed_storage *storage, const hotbed_removed_args *args, hotbed_stream *stream) {
    removal_call c = {.storage = storage, .args = args, .stream = stream};
    uint64_t most = 0;
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    hotbed_status status = most_keys(&c, &most);
    HOTBED_THEN(status, read_keys(&c, most));
    HOTBED_THEN(status, drop_stored(&c));
    HOTBED_THEN(status, write_keys(&c));
    hotbed_memory_free(&c.device);
    hotbed_delete(c.keys);
    return status;
}
