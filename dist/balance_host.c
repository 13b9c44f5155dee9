/* dist/balance_host.c - kernels of batch balance on the host.  CUDA counterpart: balance.cu. */
#include "dist/balance_kernels.h"

#include "base/error.h"
#include "base/host_launch.h"

enum { KEYS_GRAIN = 2048, BYTES_GRAIN = 1 << 14 };

typedef struct bytes_args {
    const uint8_t *all;
    const uint32_t *samples, *real;
    uint8_t *rows;
    uint64_t row_bytes;
} bytes_args;

static void workloads_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_workload_args *a = args;
    uint32_t real = *a->bad != 0 ? 0 : a->real;
    for (uint64_t b = begin; b < end; b++)
        a->workloads[b] = b == a->batch_size ? real
                                             : hotbed_balance_workload(
                                                   a->given, a->starts, a->num_features,
                                                   a->batch_size, real, (uint32_t)b);
}

HOTBED_HOST_EACH(lengths_body, hotbed_balance_length(args, (uint32_t)i))

static uint64_t starts_of(const hotbed_balance_view *view) {
    return (uint64_t)view->num_features * view->batch_size + 1;
}

HOTBED_HOST_BELOW(offsets_body, hotbed_balance_view, starts_of(a), a->offsets[i] = a->starts[i])
HOTBED_HOST_BELOW(
    keys_body, hotbed_balance_view, a->starts[a->num_features * a->batch_size],
    hotbed_balance_key(a, (uint32_t)i))

static void bytes_body(const void *args, uint64_t begin, uint64_t end) {
    const bytes_args *a = args;
    for (uint64_t at = begin; at < end; at++)
        a->rows[at] = hotbed_balance_byte(a->all, a->samples, *a->real, a->row_bytes, at);
}

HOTBED_HOST_CALL(workloads, hotbed_workload_args, (uint64_t)a->batch_size + 1, KEYS_GRAIN)
HOTBED_HOST_CALL(lengths, hotbed_balance_view, starts_of(a), KEYS_GRAIN)

static hotbed_status fill(const hotbed_balance_view *view, hotbed_stream *stream) {
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, starts_of(view), KEYS_GRAIN, offsets_body, view));
    return HOTBED_HOST_LAUNCH(stream, view->bound, KEYS_GRAIN, keys_body, view);
}

static hotbed_status rows(
    uint32_t batch_size, uint64_t row_bytes, const void *all, const uint32_t *samples,
    const uint32_t *real, void *to, hotbed_stream *stream) {
    bytes_args args = {all, samples, real, to, row_bytes};
    return HOTBED_HOST_LAUNCH(stream, batch_size * row_bytes, BYTES_GRAIN, bytes_body, &args);
}

const hotbed_balance_kernels hotbed_balance_kernels_host = {workloads, lengths, fill, rows};
