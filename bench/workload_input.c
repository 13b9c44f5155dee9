/* bench/workload_input.c - the key stream and the gradients of the workloads. */
#include "bench/workload.h"

#include "base/error.h"
#include "base/host_launch.h"

#include <math.h>
#include <stdlib.h>

/* Power law of the key stream: density falls as key^-exponent. */
static const double exponent = 1.05;
static const uint64_t key_seed = 0x9e3779b97f4a7c15U;
static const uint64_t gradient_seed = 0xd1b54a32d192ed03U;

static void make_keys(const void *args, uint64_t begin, uint64_t end) {
    const workload_input *input = args;
    double n = (double)input->shape.rows;
    double g = 1.0 - exponent;
    double span = pow(n, g) - 1.0;
    for (uint64_t i = begin; i < end; i++) {
        double u = (double)(workload_mix(key_seed * (i + 1)) >> 11) * 0x1p-53;
        double key = floor(pow(u * span + 1.0, 1.0 / g));
        input->keys[i] = (int64_t)(key >= n ? n - 1.0 : key);
    }
}

static void make_gradient(const void *args, uint64_t begin, uint64_t end) {
    const workload_input *input = args;
    for (uint64_t i = begin; i < end; i++) {
        /* 24 bits, in [-0.5, 0.5): sums of them round, so a wrong order of sums shows */
        uint64_t bits = workload_mix(gradient_seed * (i + 1)) >> 40;
        input->gradient[i] = (float)bits * 0x1p-24F - 0.5F;
    }
}

static hotbed_status make(const workload_input *input, uint64_t keys, uint64_t elements) {
    hotbed_stream *stream = NULL;
    HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream));
    hotbed_status status =
        hotbed_host_launch(stream, keys, 1 << 16, make_keys, input, sizeof *input);
    if (status == HOTBED_OK)
        status = hotbed_host_launch(stream, elements, 1 << 18, make_gradient, input, sizeof *input);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(stream);
    hotbed_stream_destroy(stream);
    return status;
}

hotbed_status workload_input_create(const workload_shape *shape, workload_input *out) {
    uint64_t keys = shape->batches * workload_keys_a_step(shape);
    uint64_t elements = workload_keys_a_step(shape) * shape->dim;
    workload_input input = {.shape = *shape};
    input.keys = malloc(keys * sizeof *input.keys);
    input.gradient = malloc(elements * sizeof *input.gradient);
    hotbed_status status = HOTBED_OK;
    if (!input.keys || !input.gradient)
        status = hotbed_fail(
            HOTBED_ERR_MEMORY, "input: no memory for %llu keys and %llu gradients",
            (unsigned long long)keys, (unsigned long long)elements);
    else
        status = make(&input, keys, elements);
    if (status != HOTBED_OK) {
        workload_input_destroy(&input);
        return status;
    }
    *out = input;
    return HOTBED_OK;
}

void workload_input_destroy(workload_input *input) {
    free(input->keys);
    free(input->gradient);
    *input = (workload_input){0};
}
