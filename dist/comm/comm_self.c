/* dist/comm/comm_self.c - a communicator of one rank: copies on the caller's stream. */
#include "dist/comm/comm.h"

#include "base/check.h"
#include "base/error.h"
#include "base/stream.h"

static hotbed_status check_stream(const hotbed_comm *comm, const hotbed_stream *stream) {
    return HOTBED_OK;
}

static hotbed_status enqueue(
    hotbed_comm *comm, const hotbed_comm_batch *batch, hotbed_stream *stream) {
    for (uint32_t i = 0; i < batch->num_parts; i++) {
        const hotbed_comm_part *part = &batch->parts[i];
        uint64_t sent, bytes;
        const uint8_t *from = hotbed_comm_sends(comm, part, 0, &sent);
        uint8_t *to = hotbed_comm_receives(comm, part, 0, &bytes);
        if (sent != bytes)
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, NULL, sent, bytes,
                "part %u: the rank sends itself %llu bytes, but expects %llu", i,
                (unsigned long long)sent, (unsigned long long)bytes);
        if (from != to)
            HOTBED_TRY(hotbed_copy(to, from, bytes, stream));
    }
    return HOTBED_OK;
}

static void nothing(hotbed_comm *comm) {
}

static const hotbed_comm_ops ops = {
    .transport = HOTBED_TRANSPORT_SELF,
    .check_stream = check_stream,
    .enqueue = enqueue,
    .destroy = nothing,
    .window_create = hotbed_comm_local_window_create,
    .window_destroy = hotbed_comm_local_window_destroy,
};

hotbed_status hotbed_comm_create_self(const hotbed_comm_options *options, hotbed_comm **out) {
    HOTBED_TRY_OUT(out);
    return hotbed_comm_new(sizeof **out, &ops, 0, 1, options, out);
}
