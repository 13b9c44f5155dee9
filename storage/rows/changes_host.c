/* storage/rows/changes_host.c - positions and removed keys on host threads. CUDA counterpart:
 * changes.cu. */
#include "storage/rows/changes_kernels.h"

#include "base/error.h"
#include "base/host_launch.h"

enum { GRAIN = 4096 };

/* On one thread: four bytes for 32 slots are little to read. */
static void position_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_position_args *a = args;
    (void)begin, (void)end;
    hotbed_position_settle(a, 0, 1);
    hotbed_position_take(a->tracker, a->position);
}

HOTBED_HOST_EACH(lose_body, hotbed_position_lose(*(hotbed_tracker *const *)args))
HOTBED_HOST_EACH(begin_body, hotbed_removed_begin(args))
HOTBED_HOST_BELOW(
    removed_body, hotbed_removed_args, hotbed_removed_items(a), hotbed_removed_key(a, i))

static hotbed_status position(
    const hotbed_position_args *args, uint64_t slots, hotbed_stream *stream) {
    (void)slots;
    return HOTBED_HOST_LAUNCH(stream, 1, 0, position_body, args);
}

static hotbed_status lose(hotbed_tracker *tracker, hotbed_stream *stream) {
    return HOTBED_HOST_LAUNCH(stream, 1, 0, lose_body, &tracker);
}

static hotbed_status removed(
    const hotbed_removed_args *args, uint64_t most, hotbed_stream *stream) {
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, 1, 0, begin_body, args));
    return HOTBED_HOST_LAUNCH(stream, most, GRAIN, removed_body, args);
}

const hotbed_changes_kernels hotbed_changes_kernels_host = {position, lose, removed};
