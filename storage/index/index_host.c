/* storage/index/index_host.c - launches the core of index calls on host threads. CUDA counterpart:
 * index.cu. */
#include "storage/index/index_kernels.h"

#include "base/host_launch.h"
#include "storage/index/index_search.h"

enum { GRAIN = 1024, SLOTS_GRAIN = 4096, AHEAD = 8 };

/* Find keys of a call with a table number per key. */
static void find_in_tables(const hotbed_index_args *a, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++) {
        hotbed_call_prefetch(a, i + AHEAD);
        hotbed_call_find(a, i, 1);
    }
}

static uint32_t batch_of(uint64_t first, uint64_t end) {
    return (uint32_t)(end - first < HOTBED_SEARCH_KEYS ? end - first : HOTBED_SEARCH_KEYS);
}

static void find_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_index_args *a = args;
    const hotbed_host_set set = hotbed_host_set_best();
    hotbed_search search[2];
    if (a->tables != NULL) {
        find_in_tables(a, begin, end);
        return;
    }
    uint32_t at = 0;
    hotbed_search_start(
        &search[at], set, a->index, a->range, a->keys + begin, batch_of(begin, end));
    for (uint64_t i = begin; i < end; i += search[at].n, at ^= 1) {
        const uint64_t next = i + search[at].n;
        hotbed_search_first(&search[at], a->slots + i);
        if (next < end)
            hotbed_search_start(
                &search[at ^ 1], set, a->index, a->range, a->keys + next, batch_of(next, end));
        hotbed_search_second(&search[at], a->slots + i);
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

HOTBED_HOST_EACH(release_body, hotbed_call_release(args, i))
HOTBED_HOST_EACH(erase_body, hotbed_call_erase(args, i, 1))
HOTBED_HOST_EACH(pin_body, hotbed_call_pin(args, i))
HOTBED_HOST_EACH(unpin_body, hotbed_call_unpin(args, i))
HOTBED_HOST_EACH(clear_body, hotbed_call_clear(args, i))

static void export_keys_body(const void *args, uint64_t begin, uint64_t end) {
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

HOTBED_HOST_CALL(find, hotbed_index_args, a->n, GRAIN)
HOTBED_HOST_CALL(claim, hotbed_index_args, a->n, GRAIN)
HOTBED_HOST_CALL(hold, hotbed_index_args, a->n, GRAIN)
HOTBED_HOST_CALL(place, hotbed_index_args, a->n, GRAIN)
HOTBED_HOST_CALL(release, hotbed_index_args, a->n, GRAIN)
HOTBED_HOST_CALL(erase, hotbed_index_args, a->n, GRAIN)
HOTBED_HOST_CALL(pin, hotbed_index_args, a->n, GRAIN)
HOTBED_HOST_CALL(unpin, hotbed_index_args, a->n, GRAIN)
HOTBED_HOST_CALL(clear, hotbed_index_args, hotbed_index_range_slots(a->range), SLOTS_GRAIN)
HOTBED_HOST_CALL(export_keys, hotbed_index_args, hotbed_index_range_slots(a->range), SLOTS_GRAIN)

const hotbed_index_kernels hotbed_index_kernels_host = {
    find, claim, hold, place, release, erase, pin, unpin, clear, export_keys,
};
