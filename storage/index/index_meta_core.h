/* storage/index/index_meta_core.h - the meta of a key in its slot: score, flag and pins. */
#pragma once

#include "base/port.h"
#include "storage/index/index_layout_core.h"

/* --- scores ----------------------------------------------------------------------------------- */

HOTBED_HD uint64_t hotbed_meta_score(uint64_t meta) {
    return meta >> HOTBED_META_SCORE_SHIFT;
}

/* Order of eviction: the lowest rank goes first, and keys on probation before all others. Keys on
 * probation have equal rank, so the lowest slot goes first. Evicting the oldest of them instead
 * would, for keys that recur in a cycle longer than the table, evict each key just before it
 * recurs. */
HOTBED_HD uint64_t hotbed_meta_rank(uint64_t meta) {
    return (meta & HOTBED_META_PROBATION) != 0 ? 0 : hotbed_meta_score(meta) + 1;
}

HOTBED_HD uint64_t hotbed_meta_rescore(uint64_t meta, hotbed_score_rule rule, uint64_t score) {
    uint64_t old = hotbed_meta_score(meta);
    uint64_t value = rule == HOTBED_SCORE_KEEP     ? old
                     : rule == HOTBED_SCORE_ASSIGN ? score
                                                   : old + score;
    if (value > HOTBED_SCORE_MOST)
        value = HOTBED_SCORE_MOST;
    meta &= ((uint64_t)1 << HOTBED_META_SCORE_SHIFT) - 1;
    if (rule != HOTBED_SCORE_KEEP)
        meta &= ~HOTBED_META_PROBATION;
    return meta | value << HOTBED_META_SCORE_SHIFT;
}

/* Meta of a slot claimed for a new key. */
HOTBED_HD uint64_t hotbed_meta_new(uint64_t score, uint64_t pins) {
    return hotbed_meta_rescore(
        HOTBED_META_OCCUPIED | HOTBED_META_LOCKED | pins, HOTBED_SCORE_ASSIGN, score);
}

/* One lane: score the key that was found in `slot` and add to its pins. Only for tables whose keys
 * stay in their slots during the call: other threads then change pins only, so an addition
 * suffices. */
HOTBED_HD void hotbed_index_touch_found(
    hotbed_index_view index, uint64_t slot, hotbed_score_rule rule, uint64_t score, uint64_t pins) {
    uint64_t *meta = hotbed_index_meta(index, slot);
    uint64_t old = hotbed_load_relaxed_u64(meta);
    hotbed_add_relaxed_u64(meta, hotbed_meta_rescore(old, rule, score) - old + pins);
}

/* One lane: the same while other keys are being placed; false if the key has been evicted since it
 * was found. The key is compared under the lock, because a meta loaded after the find may belong
 * to the slot's next key. */
HOTBED_HD bool hotbed_index_touch(
    hotbed_index_view index, uint64_t slot, uint64_t key, hotbed_score_rule rule, uint64_t score,
    uint64_t pins) {
    uint64_t *meta = hotbed_index_meta(index, slot);
    uint64_t old = hotbed_load_relaxed_u64(meta);
    for (; (old & HOTBED_META_LOCKED) == 0 && old != 0; old = hotbed_load_relaxed_u64(meta)) {
        if (!hotbed_cas_u64(meta, old, old | HOTBED_META_LOCKED))
            continue;
        bool same = hotbed_load_relaxed_u64(hotbed_index_key(index, slot)) == key;
        uint64_t change = same ? hotbed_meta_rescore(old, rule, score) - old + pins : 0;
        hotbed_add_release_u64(meta, change - HOTBED_META_LOCKED);
        return same;
    }
    return false;
}

/* One lane: set the flag of a slot that holds a key, if it is not set. */
HOTBED_HD void hotbed_index_flag(hotbed_index_view index, uint64_t slot) {
    uint64_t *meta = hotbed_index_meta(index, slot);
    if ((hotbed_load_relaxed_u64(meta) & HOTBED_META_FLAGGED) == 0)
        hotbed_add_relaxed_u64(meta, HOTBED_META_FLAGGED);
}

/* --- pins ----------------------------------------------------------------------------------------
 *
 * A pin keeps a key in its slot and a row in its tier. The owner of a pin may read and write the
 * row. Pins are counted in the meta, and they order accesses to the row:
 *
 * - Adding a pin orders nothing (relaxed): an earlier pass or step found the key, after its row was
 *   published.
 * - Releasing a pin has release order: all accesses to the row by the ticket happen before the meta
 *   loses the pin. Later additions by others continue the release sequence, so the order in which
 *   pins are released does not matter.
 * - Moving or replacing a row needs a meta without other pins, and reading that meta has acquire
 *   order: the compare-and-swap that claims an evicted row's slot, or the load that claims a row of
 *   the lower tier (hotbed_claim_missing()). On CUDA both are relaxed: only a later kernel of the
 *   same stream touches the row, and the end of a kernel orders its reads before the next kernel's
 *   accesses.
 */

/* One lane: add a pin to a slot that is already pinned, so its key cannot change. */
HOTBED_HD void hotbed_index_pin_again(hotbed_index_view index, uint64_t slot) {
    hotbed_add_release_u64(hotbed_index_meta(index, slot), HOTBED_META_PIN);
}

/* One lane: release a pin. If the slot may then be reused (`evicts`), the release orders the
 * tile's accesses to the row before the accesses by a prefetch on another stream. */
HOTBED_HD void hotbed_index_unpin(hotbed_index_view index, uint64_t slot, bool evicts) {
    uint64_t *meta = hotbed_index_meta(index, slot);
    if (evicts)
        hotbed_add_release_u64(meta, (uint64_t)0 - HOTBED_META_PIN);
    else
        hotbed_add_relaxed_u64(meta, (uint64_t)0 - HOTBED_META_PIN);
}
