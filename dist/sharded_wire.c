/* dist/sharded_wire.c - the statistics of a collection: bytes by phase, and overflows. */
#include "dist/sharded.h"

#include "base/check.h"
#include "base/options.h"
#include "dist/comm/comm.h"

hotbed_status hotbed_wire_create(hotbed_sharded *sharded, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_DEVICE, sizeof(hotbed_wire_counts), NULL, &sharded->wire));
    HOTBED_TRY(hotbed_fill(sharded->wire.data, 0, sizeof(hotbed_wire_counts), stream));
    return hotbed_stream_finish(stream); /* a later failure frees the memory at once */
}

hotbed_wire_view hotbed_wire_keys(const hotbed_part *part) {
    const hotbed_sharded_context *context = part->context;
    const hotbed_path *path = part->path;
    /* A message of fixed size travels whole, unless kernels write it where it is read. */
    const bool whole = path->capacity != 0 && context->window == NULL;
    hotbed_wire_view view = {
        .counts = part->sharded->wire.data,
        .sent = whole ? NULL : part->bucketize.counts,
        .received = whole ? NULL : path->arrived,
        .most = path->capacity != 0 ? path->capacity : UINT32_MAX,
        .shape = part->bucketize.shape,
        .phase = HOTBED_WIRE_KEYS,
        .world = context->world,
        .rank = context->rank,
    };
    return view;
}

hotbed_wire_view hotbed_wire_rows(const hotbed_part *part, hotbed_wire_phase phase) {
    const bool gradients = phase == HOTBED_WIRE_GRADIENTS;
    hotbed_wire_view view = hotbed_wire_keys(part);
    view.phase = phase;
    view.row_bytes = gradients ? part->group->gradient_bytes : part->group->row_bytes;
    view.overflow = view.sent == NULL ? NULL : part->path->gather.overflow;
    if (!gradients) { /* the rows of the keys that came */
        const uint32_t *sent = view.sent;
        view.sent = view.received;
        view.received = sent;
    }
    return view;
}

hotbed_status hotbed_sharded_stats(
    const hotbed_sharded *sharded, hotbed_exchange_stats *out, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer("sharded", sharded));
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_exchange_stats"));
    HOTBED_TRY(hotbed_comm_check_stream(sharded->comm, stream));
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    hotbed_memory memory = {0};
    HOTBED_TRY(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_PINNED, sizeof(hotbed_wire_counts), NULL, &memory));
    hotbed_status status =
        hotbed_copy(memory.data, sharded->wire.data, sizeof(hotbed_wire_counts), stream);
    hotbed_status finished = hotbed_stream_finish(stream);
    status = status != HOTBED_OK ? status : finished;
    if (status == HOTBED_OK) {
        const hotbed_wire_counts *counts = memory.data;
        const hotbed_exchange_stats stats = {
            .batches = counts->batches,
            .overflows = counts->overflows,
            .keys_sent = counts->sent[HOTBED_WIRE_KEYS],
            .keys_received = counts->received[HOTBED_WIRE_KEYS],
            .rows_sent = counts->sent[HOTBED_WIRE_ROWS],
            .rows_received = counts->received[HOTBED_WIRE_ROWS],
            .gradients_sent = counts->sent[HOTBED_WIRE_GRADIENTS],
            .gradients_received = counts->received[HOTBED_WIRE_GRADIENTS],
        };
        hotbed_output_write(out, &stats, sizeof stats);
    }
    hotbed_memory_free(&memory);
    return status;
}

hotbed_status hotbed_sharded_repeated_overflows(
    const hotbed_sharded_context *context, uint32_t *out) {
    HOTBED_TRY(hotbed_check_pointer("context", context));
    HOTBED_TRY(hotbed_check_pointer("out", out));
    /* Every batch's kernels write it, in recorded graphs too; it is a hint, so nothing orders it. */
    *out = (uint32_t)hotbed_load_relaxed_u64(context->host_repeated);
    return HOTBED_OK;
}
