/* storage/index_host.c - launches the core of index calls on host threads. CUDA counterpart:
 * index.cu. */
#include "storage/index_kernels.h"

#include "base/host_launch.h"

enum { GRAIN = 1024, SLOTS_GRAIN = 4096, AHEAD = 8 };
enum { FIND_AHEAD = 16 }; /* tuned with benchmark index/alone_find; a power of two */

/* A key of a find, with its candidates. */
typedef struct wanted_key {
    hotbed_index_range range;
    hotbed_probe probe;
    bool good; /* its table number is in range */
} wanted_key;

static void want(const hotbed_index_args *a, uint64_t i, wanted_key *w) {
    const uint64_t line = HOTBED_BUCKET_SLOTS * sizeof(uint64_t);
    w->good = hotbed_call_range(a, i, &w->range);
    if (!w->good)
        return;
    w->probe = hotbed_index_probe(w->range, a->keys[i]);
    hotbed_prefetch_item(a->index.keys + w->probe.first, line);
    hotbed_prefetch_item(a->index.keys + w->probe.second, line);
}

static void find_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_index_args *a = args;
    wanted_key wanted[FIND_AHEAD];
    for (uint64_t i = begin; i < end && i < begin + FIND_AHEAD; i++)
        want(a, i, &wanted[i % FIND_AHEAD]);
    for (uint64_t i = begin; i < end; i++) {
        wanted_key *w = &wanted[i % FIND_AHEAD];
        if (!w->good)
            hotbed_call_no_table(a, i);
        a->slots[i] =
            w->good ? hotbed_index_find_probe(a->index, w->range, w->probe, 1) : HOTBED_SLOT_NONE;
        if (i + FIND_AHEAD < end)
            want(a, i + FIND_AHEAD, w);
    }
}

static void claim_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++) {
        hotbed_call_prefetch(args, i + AHEAD);
        hotbed_call_claim(args, i, 1);
    }
}

static void hold_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++) {
        hotbed_call_prefetch(args, i + AHEAD);
        hotbed_call_hold(args, i, 1);
    }
}

static void place_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_index_args *a = args;
    for (uint64_t i = begin; i < end; i++) {
        hotbed_index_result r = hotbed_call_place(a, i, 1);
        if (r.outcome == HOTBED_INDEX_EVICTED && a->num_evicted != NULL)
            hotbed_call_evicted(a, r, hotbed_add_relaxed_u64(a->num_evicted, 1));
    }
}

static void release_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        hotbed_call_release(args, i);
}

static void erase_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        hotbed_call_erase(args, i, 1);
}

static void pin_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        hotbed_call_pin(args, i);
}

static void unpin_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        hotbed_call_unpin(args, i);
}

static void clear_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        hotbed_call_clear(args, i);
}

static void export_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_index_args *a = args;
    for (uint64_t i = begin; i < end; i++) {
        uint64_t meta = hotbed_call_meta(a, i);
        if (meta == 0)
            continue;
        uint64_t at = hotbed_add_relaxed_u64(&a->export_counts[0], 1);
        if ((meta & HOTBED_META_PINS) != 0)
            hotbed_add_relaxed_u64(&a->export_counts[1], 1);
        hotbed_call_export(a, i, meta, at);
    }
}

static hotbed_status find(const hotbed_index_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, find_body, args, sizeof *args);
}

static hotbed_status claim(const hotbed_index_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, claim_body, args, sizeof *args);
}

static hotbed_status hold(const hotbed_index_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, hold_body, args, sizeof *args);
}

static hotbed_status place(const hotbed_index_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, place_body, args, sizeof *args);
}

static hotbed_status release(const hotbed_index_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, release_body, args, sizeof *args);
}

static hotbed_status erase(const hotbed_index_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, erase_body, args, sizeof *args);
}

static hotbed_status pin(const hotbed_index_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, pin_body, args, sizeof *args);
}

static hotbed_status unpin(const hotbed_index_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, unpin_body, args, sizeof *args);
}

static hotbed_status clear(const hotbed_index_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(
        stream, hotbed_index_range_slots(args->range), SLOTS_GRAIN, clear_body, args, sizeof *args);
}

static hotbed_status export_keys(const hotbed_index_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(
        stream, hotbed_index_range_slots(args->range), SLOTS_GRAIN, export_body, args,
        sizeof *args);
}

const hotbed_index_kernels hotbed_index_kernels_host = {
    find, claim, hold, place, release, erase, pin, unpin, clear, export_keys,
};
