/* storage/tiers/tier_host.c - moves rows between tiers on the host. CUDA counterpart: tier.cu.
 *
 * Both tiers are ordinary memory here, so moves run in the order in which keys were missed.
 */
#include "storage/tiers/tier_kernels.h"

#include "base/error.h"
#include "base/host_launch.h"

enum { GRAIN = 256 };

HOTBED_HOST_BELOW(
    seek_body, hotbed_step_view, *a->unique.num_missing, hotbed_seek_lower(a, (uint32_t)i, 1, 1))

HOTBED_HOST_BELOW(
    claim_body, hotbed_step_view, *a->unique.num_missing, hotbed_claim_missing(a, (uint32_t)i, 1))

HOTBED_HOST_BELOW(
    settle_body, hotbed_step_view, *a->unique.num_missing, hotbed_settle_missing(a, (uint32_t)i, 1))

static void transfer(const hotbed_step_view *s, uint32_t i, bool down) {
    hotbed_transfer row = hotbed_transfer_of(s, i, down);
    hotbed_row_copy(row.to, row.from, row.bytes, 1);
}

static bool writes(const hotbed_step_view *s, uint32_t i) {
    uint32_t u = s->unique.missing[i];
    if ((u & HOTBED_MISSING_REJECTED) != 0)
        return false;
    uint32_t t = hotbed_table_of_unique(s, u);
    return hotbed_move_writes(&s->storage.tables[t], &s->moves.items[i]);
}

/* Exchange and arrive are one pass on the host. */
static void write_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > *s->unique.num_missing)
        end = *s->unique.num_missing;
    for (uint64_t i = begin; i < end; i++) {
        if (writes(s, (uint32_t)i))
            transfer(s, (uint32_t)i, true);
        hotbed_leave_upper(s, (uint32_t)i);
    }
}

static void fetch_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_step_view *s = args;
    if (end > *s->unique.num_missing)
        end = *s->unique.num_missing;
    for (uint64_t i = begin; i < end; i++) {
        if (hotbed_move_fetches(&s->moves.items[i]))
            transfer(s, (uint32_t)i, false);
        hotbed_tally_moves(s, (uint32_t)i, 1, 1);
        hotbed_end_move(s, (uint32_t)i, 1);
    }
}

HOTBED_HOST_EACH(flush_body, hotbed_flush_slot(args, i, 1))

HOTBED_HOST_CALL(seek, hotbed_step_view, a->batch.bound, GRAIN)

static hotbed_status move(const hotbed_step_view *step, hotbed_stream *stream) {
    static const hotbed_host_body bodies[] = {claim_body, settle_body, write_body, fetch_body};
    for (size_t b = 0; b < sizeof bodies / sizeof bodies[0]; b++)
        HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, step->batch.bound, GRAIN, bodies[b], step));
    return HOTBED_OK;
}

HOTBED_HOST_CALL(flush, hotbed_flush_args, a->table.slots, GRAIN)

const hotbed_tier_kernels hotbed_tier_kernels_host = {seek, move, flush};
