/* storage/rows/rows_host.c - rows by key and whole-table calls on the host. CUDA counterpart:
 * rows.cu. */
#include "storage/rows/rows_kernels.h"

#include "base/error.h"
#include "base/host_launch.h"
#include "storage/index/index_kernels.h"

enum { GRAIN = 256, ROWS_GRAIN = 4096, AHEAD = 8, PLACES_AHEAD = 32 };

/* Prefetch the lines where key number i may be. */
static void want(const hotbed_rows_args *a, uint64_t i, uint64_t end) {
    const uint64_t line = HOTBED_BUCKET_SLOTS * sizeof(uint64_t);
    if (i >= end || !hotbed_table_indexed(&a->table))
        return;
    uint64_t key = hotbed_rows_key(a, i);
    hotbed_probe probe = hotbed_index_probe(hotbed_table_range(&a->table, key), key);
    hotbed_prefetch_item(hotbed_index_key(a->index, probe.first), line);
    hotbed_prefetch_item(hotbed_index_key(a->index, probe.second), line);
}

/* Find AHEAD keys and prefetch their rows before copying them. */
static void get_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_rows_args *a = args;
    for (uint64_t i = begin; i < begin + AHEAD; i++)
        want(a, i, end);
    for (uint64_t i = begin; i < end; i += AHEAD) {
        uint64_t slots[AHEAD], n = end - i < AHEAD ? end - i : AHEAD;
        for (uint64_t k = 0; k < n; k++) {
            want(a, i + AHEAD + k, end);
            slots[k] = hotbed_rows_find(a, i + k, 1);
            if (slots[k] == HOTBED_SLOT_NONE)
                continue;
            if (hotbed_table_indexed(&a->table))
                hotbed_prefetch(hotbed_index_meta(a->index, slots[k]));
            hotbed_prefetch_item(hotbed_row_at(a->index, &a->table, slots[k]), a->table.row_bytes);
        }
        for (uint64_t k = 0; k < n; k++)
            hotbed_rows_get_slot(a, i + k, slots[k], 1);
    }
}

static void enter_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_distinct_args *a = args;
    for (uint64_t i = begin; i < end; i++) {
        if (i + PLACES_AHEAD < end)
            hotbed_prefetch(a->places + hotbed_distinct_place(a, a->keys[i + PLACES_AHEAD]));
        hotbed_distinct_enter(a, (uint32_t)i);
    }
}

HOTBED_HOST_EACH(report_body, hotbed_distinct_report(args))

/* The keys to process: none if the call has a key twice. */
static uint64_t unbarred(const hotbed_rows_args *a) {
    return hotbed_rows_barred(a) ? 0 : a->n;
}

HOTBED_HOST_BELOW(
    set_body, hotbed_rows_args, unbarred(a), hotbed_rows_set(a, i, HOTBED_ROWS_SET, 1))
HOTBED_HOST_BELOW(
    hold_body, hotbed_rows_args, unbarred(a), hotbed_rows_set(a, i, HOTBED_ROWS_HOLD, 1))
HOTBED_HOST_BELOW(
    place_body, hotbed_rows_args, unbarred(a), hotbed_rows_set(a, i, HOTBED_ROWS_PLACE, 1))
HOTBED_HOST_BELOW(
    release_body, hotbed_rows_args, unbarred(a), hotbed_rows_set(a, i, HOTBED_ROWS_RELEASE, 1))
HOTBED_HOST_EACH(insert_shares_body, hotbed_offer_insert_share(args, i, 1))
HOTBED_HOST_EACH(insert_rest_body, hotbed_offer_insert_rest(args, 1))
HOTBED_HOST_EACH(erase_body, hotbed_rows_erase(args, i, 1))
HOTBED_HOST_EACH(expire_body, hotbed_expire_slot(args, i, 1))
HOTBED_HOST_EACH(advance_body, hotbed_expire_advance(args))
HOTBED_HOST_BELOW(count_body, hotbed_rows_args, unbarred(a), hotbed_rows_count(a, i, 1))
HOTBED_HOST_BELOW(
    init_rows_body, hotbed_rows_args, a->table.slots,
    hotbed_row_init(
        &a->table, a->table.rows + i * a->table.row_bytes, hotbed_row_key(&a->table, i), 1))

static void load_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_rows_args *a = args;
    for (uint64_t i = begin; i < end; i++)
        if (a->keys[i] < a->table.slots)
            hotbed_row_get(
                &a->table, a->table.rows + a->keys[i] * a->table.row_bytes, a->rows, i, 1);
}

static void store_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_rows_args *a = args;
    for (uint64_t i = begin; i < end; i++)
        if (a->keys[i] < a->table.slots)
            hotbed_row_set(
                &a->table, a->table.rows + a->keys[i] * a->table.row_bytes, a->rows, i, 1);
}

HOTBED_HOST_CALL(get, hotbed_rows_args, a->n, GRAIN)

static hotbed_status set(const hotbed_rows_args *args, hotbed_stream *stream) {
    static const hotbed_host_body passes[] = {hold_body, place_body, release_body};
    if (!hotbed_rows_evicts(&args->table))
        return HOTBED_HOST_LAUNCH(stream, args->n, GRAIN, set_body, args);
    for (size_t p = 0; p < sizeof passes / sizeof passes[0]; p++)
        HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, args->n, GRAIN, passes[p], args));
    return HOTBED_OK;
}

static hotbed_status distinct(const hotbed_distinct_args *args, hotbed_stream *stream) {
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, args->n, ROWS_GRAIN, enter_body, args));
    return HOTBED_HOST_LAUNCH(stream, 1, 0, report_body, args);
}

static hotbed_status insert_refused(const hotbed_offer_args *args, hotbed_stream *stream) {
    return HOTBED_HOST_LAUNCH(
        stream, args->shares, 1, args->shares > 1 ? insert_shares_body : insert_rest_body, args);
}

static hotbed_status erase(const hotbed_rows_args *args, hotbed_stream *stream) {
    if (args->table.tiers != HOTBED_TIERS_ONE || args->index.segments != NULL ||
        args->tracker != NULL)
        return HOTBED_HOST_LAUNCH(stream, args->n, GRAIN, erase_body, args);
    hotbed_index_args index = hotbed_rows_index(args);
    return hotbed_index_kernels_host.erase(&index, stream);
}

static hotbed_status expire(const hotbed_expire_args *args, hotbed_stream *stream) {
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, args->slots, GRAIN, expire_body, args));
    return HOTBED_HOST_LAUNCH(stream, 1, 0, advance_body, args);
}

HOTBED_HOST_CALL(count, hotbed_rows_args, a->n, GRAIN)

static hotbed_status clear(const hotbed_rows_args *args, hotbed_stream *stream) {
    if (!hotbed_table_indexed(&args->table))
        return HOTBED_HOST_LAUNCH(stream, args->table.slots, ROWS_GRAIN, init_rows_body, args);
    hotbed_index_args index = hotbed_rows_index(args);
    return hotbed_index_kernels_host.clear(&index, stream);
}

static hotbed_status list(
    const hotbed_rows_args *args, uint64_t *keys, uint64_t *scores, uint64_t *counts,
    hotbed_stream *stream) {
    hotbed_index_args index = hotbed_rows_export(args, keys, scores, counts);
    return hotbed_index_kernels_host.export_keys(&index, stream);
}

HOTBED_HOST_CALL(load, hotbed_rows_args, a->n, GRAIN)
HOTBED_HOST_CALL(store, hotbed_rows_args, a->n, GRAIN)

const hotbed_rows_kernels hotbed_rows_kernels_host = {
    get, set, distinct, insert_refused, erase, expire, count, clear, list, load, store};
