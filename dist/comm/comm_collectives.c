/* dist/comm/comm_collectives.c - the collectives: argument checks, batches, sums. */
#include "dist/comm/comm.h"

#include "base/check.h"
#include "base/error.h"
#include "base/stream.h"
#include "dist/comm/comm_sum_kernels.h"

#include <inttypes.h>

static hotbed_status check_data(const char *function, const void *data, uint64_t bytes) {
    if (data == NULL && bytes > 0)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "bytes", bytes, "%s: the data is NULL, but has %" PRIu64 " bytes",
            function, bytes);
    return HOTBED_OK;
}

/* Whether `count` elements of `bytes` each are at most `most` bytes. */
static hotbed_status check_product(
    const char *function, uint64_t count, uint64_t bytes, uint64_t most) {
    if (count > 0 && bytes > most / count)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "bytes", bytes,
            "%s: %" PRIu64 " times %" PRIu64 " bytes are too many", function, count, bytes);
    return HOTBED_OK;
}

/* all_gather and all_to_all. `part` has its kind. */
static hotbed_status enqueue_even(
    const char *function, hotbed_comm_operation operation, hotbed_comm_part part, hotbed_comm *comm,
    uint64_t bytes, const void *send, void *recv, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_comm_check_call(function, comm, stream));
    HOTBED_TRY(check_data(function, send, bytes));
    HOTBED_TRY(check_data(function, recv, bytes));
    HOTBED_TRY(check_product(function, comm->size, bytes, UINT64_MAX));
    hotbed_comm_batch batch = hotbed_comm_batch_of(comm, operation, 1);
    part.bytes = bytes;
    part.send = send;
    part.recv = recv;
    batch.parts[0] = part;
    hotbed_comm_write_log(comm, operation, bytes);
    return hotbed_comm_enqueue(comm, &batch, stream);
}

hotbed_status hotbed_comm_all_gather(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream) {
    return enqueue_even(
        "hotbed_comm_all_gather", HOTBED_COMM_ALL_GATHER,
        (hotbed_comm_part){.kind = HOTBED_PART_GATHER}, comm, bytes, send, recv, stream);
}

hotbed_status hotbed_comm_all_to_all(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream) {
    return enqueue_even(
        "hotbed_comm_all_to_all", HOTBED_COMM_ALL_TO_ALL,
        (hotbed_comm_part){.kind = HOTBED_PART_EQUAL}, comm, bytes, send, recv, stream);
}

hotbed_status hotbed_comm_all_to_others(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream) {
    return enqueue_even(
        "hotbed_comm_all_to_others", HOTBED_COMM_ALL_TO_ALL,
        (hotbed_comm_part){.kind = HOTBED_PART_EQUAL, .own_stays = true}, comm, bytes, send, recv,
        stream);
}

/* The sum of counts[size]. Errors: ARGUMENT if it exceeds UINT64_MAX. */
static hotbed_status add_counts(
    const char *function, const uint64_t *counts, uint32_t size, uint64_t *sum) {
    *sum = 0;
    for (uint32_t p = 0; p < size; p++) {
        if (counts[p] > UINT64_MAX - *sum)
            return hotbed_fail_rank_value(
                HOTBED_ERR_ARGUMENT, p, NULL, counts[p],
                "%s: the sizes up to rank %u's, which is %" PRIu64 ", are too large a sum",
                function, p, counts[p]);
        *sum += counts[p];
    }
    return HOTBED_OK;
}

static hotbed_status check_exchange(
    const char *function, const hotbed_comm *comm, const hotbed_exchange *x, bool own_stays) {
    HOTBED_TRY(hotbed_check_pointer_of(function, "send_bytes", x->send_bytes));
    HOTBED_TRY(hotbed_check_pointer_of(function, "recv_bytes", x->recv_bytes));
    uint64_t sent, received;
    HOTBED_TRY(add_counts(function, x->send_bytes, comm->size, &sent));
    HOTBED_TRY(add_counts(function, x->recv_bytes, comm->size, &received));
    HOTBED_TRY(check_data(function, x->send, sent));
    HOTBED_TRY(check_data(function, x->recv, received));
    if (!own_stays && x->send_bytes[comm->rank] != x->recv_bytes[comm->rank])
        return hotbed_fail_rank_limit(
            HOTBED_ERR_ARGUMENT, comm->rank, NULL, x->send_bytes[comm->rank],
            x->recv_bytes[comm->rank],
            "%s: rank %u sends itself %" PRIu64 " bytes and receives %" PRIu64, function,
            comm->rank, x->send_bytes[comm->rank], x->recv_bytes[comm->rank]);
    if (x->bound > 0 && sent > x->bound)
        return hotbed_fail_rank_limit(
            HOTBED_ERR_ARGUMENT, comm->rank, NULL, sent, x->bound,
            "%s: rank %u sends %" PRIu64 " bytes, the bound is %" PRIu64, function, comm->rank,
            sent, x->bound);
    return HOTBED_OK;
}

static hotbed_status enqueue_exchanges(
    const char *function, hotbed_comm *comm, uint32_t n, const hotbed_exchange *exchanges,
    bool own_stays, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_comm_check_call(function, comm, stream));
    HOTBED_TRY(hotbed_check_pointer_of(function, "exchanges", exchanges));
    if (n < 1 || n > HOTBED_EXCHANGES_MAX)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "n", n, hotbed_bound(n, 1, HOTBED_EXCHANGES_MAX),
            "%s: %u exchanges are not in [1, %d]", function, n, HOTBED_EXCHANGES_MAX);
    hotbed_comm_batch batch = hotbed_comm_batch_of(comm, HOTBED_COMM_EXCHANGE, n);
    uint64_t bound = 0;
    for (uint32_t i = 0; i < n; i++) {
        const hotbed_exchange *x = &exchanges[i];
        HOTBED_TRY(check_exchange(function, comm, x, own_stays));
        bound += x->bound;
        batch.parts[i] = (hotbed_comm_part){
            .kind = HOTBED_PART_COUNTS,
            .own_stays = own_stays,
            .send = x->send,
            .recv = x->recv,
            .send_bytes = x->send_bytes,
            .send_offsets = x->send_offsets,
            .recv_bytes = x->recv_bytes,
            .recv_offsets = x->recv_offsets,
        };
    }
    hotbed_comm_write_log(comm, HOTBED_COMM_EXCHANGE, bound);
    return hotbed_comm_enqueue(comm, &batch, stream);
}

hotbed_status hotbed_comm_bare_all_to_all(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream) {
    if (comm->ops->bare != NULL)
        return comm->ops->bare(comm, bytes, send, recv, stream);
    return hotbed_copy(recv, send, comm->size * bytes, stream);
}

hotbed_status hotbed_comm_exchange(
    hotbed_comm *comm, uint32_t n, const hotbed_exchange *exchanges, hotbed_stream *stream) {
    return enqueue_exchanges("hotbed_comm_exchange", comm, n, exchanges, false, stream);
}

hotbed_status hotbed_comm_exchange_others(
    hotbed_comm *comm, uint32_t n, const hotbed_exchange *exchanges, hotbed_stream *stream) {
    return enqueue_exchanges("hotbed_comm_exchange_others", comm, n, exchanges, true, stream);
}

hotbed_status hotbed_comm_broadcast(
    hotbed_comm *comm, uint32_t root, uint64_t bytes, void *data, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_comm_check_call("hotbed_comm_broadcast", comm, stream));
    HOTBED_TRY(check_data("hotbed_comm_broadcast", data, bytes));
    HOTBED_TRY(hotbed_check_below("root", root, comm->size));
    hotbed_comm_batch batch = hotbed_comm_batch_of(comm, HOTBED_COMM_BROADCAST, 1);
    batch.parts[0] = (hotbed_comm_part){
        .kind = HOTBED_PART_ROOT,
        .root = root,
        .bytes = bytes,
        .recv = data,
    };
    hotbed_comm_write_log(comm, HOTBED_COMM_BROADCAST, bytes);
    return hotbed_comm_enqueue(comm, &batch, stream);
}

hotbed_status hotbed_comm_barrier(hotbed_comm *comm, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_comm_check_call("hotbed_comm_barrier", comm, stream));
    hotbed_comm_batch batch = hotbed_comm_batch_of(comm, HOTBED_COMM_BARRIER, 0);
    hotbed_comm_write_log(comm, HOTBED_COMM_BARRIER, 0);
    return hotbed_comm_enqueue(comm, &batch, stream);
}

static hotbed_status add_up(const hotbed_comm_sum_args *args, hotbed_stream *stream) {
    if (args->n == 0)
        return HOTBED_OK;
    const hotbed_backend backend = hotbed_stream_backend(stream);
    return HOTBED_OF_BACKEND(backend, hotbed_comm_sum_kernels)->sum(args, stream);
}

/* Send each rank its range of `send`, and add up the received ranges into `to`. The sum is
 * logged, with the bytes of all ranges, when it has its scratch memory. */
static hotbed_status enqueue_sum(
    hotbed_comm *comm, hotbed_comm_part part, float scale, float *to, hotbed_stream *stream) {
    uint64_t bytes = hotbed_comm_range(&part, comm->size, comm->rank).bytes;
    HOTBED_TRY(check_product("a sum over ranks", comm->size, bytes, SIZE_MAX));
    void *scratch = NULL;
    HOTBED_TRY(hotbed_stream_workspace(stream, comm->size * bytes, &scratch));
    hotbed_comm_batch batch = hotbed_comm_batch_of(comm, HOTBED_COMM_ALL_REDUCE, 1);
    batch.parts[0] = part;
    batch.parts[0].recv = scratch;
    hotbed_comm_write_log(comm, HOTBED_COMM_ALL_REDUCE, part.bytes);
    HOTBED_TRY(hotbed_comm_enqueue(comm, &batch, stream));
    hotbed_comm_sum_args args = {
        .parts = scratch,
        .n = bytes / sizeof(float),
        .size = comm->size,
        .scale = scale,
        .out = to,
    };
    return add_up(&args, stream);
}

hotbed_status hotbed_comm_all_reduce(
    hotbed_comm *comm, uint64_t n, float scale, const float *send, float *recv,
    hotbed_stream *stream) {
    const char *function = "hotbed_comm_all_reduce";
    HOTBED_TRY(hotbed_comm_check_call(function, comm, stream));
    HOTBED_TRY(check_product(function, n, sizeof(float), UINT64_MAX / 2));
    uint64_t bytes = n * sizeof(float);
    HOTBED_TRY(check_data(function, send, bytes));
    HOTBED_TRY(check_data(function, recv, bytes));
    hotbed_comm_part part = {
        .kind = HOTBED_PART_SCATTER,
        .bytes = bytes,
        .send = (const uint8_t *)send,
    };
    float *own = recv;
    if (n > 0)
        own += hotbed_comm_range(&part, comm->size, comm->rank).offset / sizeof(float);
    HOTBED_TRY(enqueue_sum(comm, part, scale, own, stream));
    hotbed_comm_batch batch = hotbed_comm_batch_of(comm, HOTBED_COMM_ALL_REDUCE, 1);
    batch.parts[0] = (hotbed_comm_part){
        .kind = HOTBED_PART_COLLECT,
        .bytes = bytes,
        .recv = (uint8_t *)recv,
    };
    return hotbed_comm_enqueue(comm, &batch, stream);
}
