/* storage/step/distinct_core.h - finds a key that a call has twice.
 *
 * Two entries of one key would race: their parts could mix in one row, or the key could get two
 * slots. So a call that sets rows looks for such a key first, and then sets nothing. `places` is a
 * hash table from keys to their first positions; it does not grow, and is freed with the call. */
#pragma once

#include "base/fault.h"
#include "base/hash_core.h"
#include "hotbed/status.h"

#define HOTBED_DISTINCT_NONE UINT32_MAX /* no position */

typedef struct hotbed_distinct_args {
    const uint64_t *keys; /* [n] */
    uint32_t *places;     /* [slots] positions of keys; NONE: free. More slots than keys */
    uint32_t *twice;      /* position; NONE: no key has been found twice */
    hotbed_fault *faults;
    uint32_t n, slots, table_number;
} hotbed_distinct_args;

HOTBED_HD uint32_t hotbed_distinct_place(const hotbed_distinct_args *a, uint64_t key) {
    return hotbed_place_u32(key, a->slots);
}

/* One lane: enter key number i. Every place holds the first position of its key that was entered,
 * and of two positions of a key the later one is offered to *twice. So in the end *twice is the
 * first position whose key has an earlier one, in whatever order the keys are entered. */
HOTBED_HD void hotbed_distinct_enter(const hotbed_distinct_args *a, uint32_t i) {
    const uint64_t key = a->keys[i];
    uint32_t at = hotbed_distinct_place(a, key);
    uint32_t other = hotbed_load_relaxed_u32(&a->places[at]);
    for (;;) {
        if (other != HOTBED_DISTINCT_NONE && a->keys[other] != key) {
            at = at + 1 < a->slots ? at + 1 : 0;
            other = hotbed_load_relaxed_u32(&a->places[at]);
            continue;
        }
        if (other < i) {
            hotbed_min_relaxed_u32(a->twice, i);
            return;
        }
        const uint32_t seen = hotbed_cas_relaxed_u32(&a->places[at], other, i);
        if (seen == other)
            break;
        other = seen;
    }
    if (other != HOTBED_DISTINCT_NONE)
        hotbed_min_relaxed_u32(a->twice, other);
}

/* One lane, after all keys: latch a fault if a key was found twice. */
HOTBED_HD void hotbed_distinct_report(const hotbed_distinct_args *a) {
    const uint32_t twice = *a->twice;
    if (twice == HOTBED_DISTINCT_NONE)
        return;
    const uint64_t key = a->keys[twice];
    uint32_t at = hotbed_distinct_place(a, key);
    while (a->keys[a->places[at]] != key)
        at = at + 1 < a->slots ? at + 1 : 0;
    hotbed_fault_latch(
        a->faults, HOTBED_ERR_ARGUMENT, HOTBED_CAUSE_KEY_TWICE, a->table_number, key,
        (uint64_t)a->places[at] << 32 | twice);
}
