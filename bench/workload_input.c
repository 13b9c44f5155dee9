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
    double n = (double)input->shape.range;
    double g = 1.0 - exponent;
    double span = pow(n, g) - 1.0;
    for (uint64_t i = begin; i < end; i++) {
        double u = (double)(workload_mix(key_seed * (i + 1)) >> 11) * 0x1p-53;
        double key = floor(pow(u * span + 1.0, 1.0 / g));
        input->keys[i] = (int64_t)(key >= n ? n - 1.0 : key);
    }
}

/* Arguments of count_distinct(). */
typedef struct distinct_args {
    workload_input *input;
    uint64_t *bits; /* [tables][words] */
    uint64_t words;
} distinct_args;

static void make_gradient(const void *args, uint64_t begin, uint64_t end) {
    const workload_input *input = args;
    for (uint64_t i = begin; i < end; i++) {
        /* 24 bits, in [-0.5, 0.5): sums of them round, so a wrong order of sums shows */
        uint64_t bits = workload_mix(gradient_seed * (i + 1)) >> 40;
        input->gradient[i] = (float)bits * 0x1p-24F - 0.5F;
    }
}

/* Distinct keys of tables [begin, end), by a bit for each key. */
static void count_distinct(const void *args, uint64_t begin, uint64_t end) {
    const distinct_args *a = args;
    const workload_shape *shape = &a->input->shape;
    for (uint64_t t = begin; t < end; t++) {
        uint64_t *bits = a->bits + t * a->words;
        uint64_t count = 0;
        for (uint64_t b = 0; b < shape->batches; b++) {
            const int64_t *keys = a->input->keys + (b * shape->tables + t) * shape->samples;
            for (uint64_t i = 0; i < shape->samples; i++) {
                uint64_t key = (uint64_t)keys[i];
                uint64_t bit = (uint64_t)1 << (key & 63);
                count += (bits[key / 64] & bit) == 0;
                bits[key / 64] |= bit;
            }
        }
        a->input->distinct[t] = count;
    }
}

static hotbed_status make(workload_input *input, uint64_t keys, uint64_t elements) {
    hotbed_stream *stream = NULL;
    distinct_args counted = {.input = input, .words = input->shape.range / 64 + 1};
    HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream));
    counted.bits = calloc(input->shape.tables * counted.words, sizeof *counted.bits);
    hotbed_status status = HOTBED_OK;
    if (!counted.bits)
        status = hotbed_fail(HOTBED_ERR_MEMORY, "input: no memory to count keys");
    if (status == HOTBED_OK)
        status = hotbed_host_launch(stream, keys, 1 << 16, make_keys, input, sizeof *input);
    if (status == HOTBED_OK)
        status = hotbed_host_launch(stream, elements, 1 << 18, make_gradient, input, sizeof *input);
    if (status == HOTBED_OK)
        status = hotbed_host_launch(
            stream, input->shape.tables, 1, count_distinct, &counted, sizeof counted);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(stream);
    hotbed_stream_destroy(stream);
    free(counted.bits);
    return status;
}

/* Sizes at scale 1 are those of docs/performance.md. */
static workload_shape shape_of(const workload *what, double scale) {
    workload_shape shape = {.tables = WORKLOAD_TABLES, .dim = 128, .batches = 100};
    bool tiered = workload_tiered(what);
    if (tiered)
        shape.batches = 60;
    shape.samples = (uint32_t)floor(104857 * scale);
    shape.range = (uint64_t)floor((tiered ? 26843545 : 1677721) * scale);
    shape.rows = tiered ? (uint64_t)floor(2621440 * scale) : shape.range;
    return shape;
}

static bool same_shape(const workload_shape *a, const workload_shape *b) {
    return a->samples == b->samples && a->batches == b->batches && a->range == b->range &&
           a->rows == b->rows;
}

static hotbed_status create(const workload_shape *shape, workload_input *out) {
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

hotbed_status workload_input_for(const workload *what, double scale, workload_input *input) {
    workload_shape shape = shape_of(what, scale);
    if (input->keys && same_shape(&shape, &input->shape))
        return HOTBED_OK;
    workload_input_destroy(input);
    return create(&shape, input);
}

void workload_input_destroy(workload_input *input) {
    free(input->keys);
    free(input->gradient);
    *input = (workload_input){0};
}
