/* bench/workload_input.c - the keys and the gradients of the workloads. */
#include "bench/workload.h"

#include "base/error.h"
#include "base/host_launch.h"

#include <math.h>
#include <stdlib.h>

/* Exponent of the power law of keys: the density falls as key^-exponent. */
static const double exponent = 1.05;
static const uint64_t key_seed = 0x9e3779b97f4a7c15U;
static const uint64_t gradient_seed = 0xd1b54a32d192ed03U;

/* MLPerf's DLRM-DCNv2: rows of its tables (40 M reduced to 4 M), and keys in a bag of each. */
static const uint32_t bag_rows[WORKLOAD_TABLES] = {
    4000000, 39060,   17295,   7424,    20265,  3,     7122, 1543, 63,
    4000000, 3067956, 405282,  10,      2209,   11938, 155,  4,    976,
    14,      4000000, 4000000, 4000000, 590152, 12973, 108,  36};
static const uint8_t bag_keys[WORKLOAD_TABLES] = {3, 2, 1, 2, 6, 1, 1,  1,   1,  7,  3, 8, 1,
                                                  6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1};
enum { BAG_BATCHES = 20 };

static double power_law(double u, double span, double g) {
    return floor(pow(u * span + 1.0, 1.0 / g));
}

/* Generate keys 1 .. N-1, for tables of one size. */
static void make_keys(const void *args, uint64_t begin, uint64_t end) {
    const workload_input *input = *(const workload_input *const *)args;
    double n = (double)input->shape.range;
    double g = 1.0 - exponent;
    double span = pow(n, g) - 1.0;
    for (uint64_t i = begin; i < end; i++) {
        double u = (double)(workload_mix(key_seed * (i + 1)) >> 11) * 0x1p-53;
        double key = power_law(u, span, g);
        input->keys[i] = (int64_t)(key >= n ? n - 1.0 : key);
    }
}

/* Generate the keys of batches [begin, end), 0 .. N-1 of each table. */
static void make_bags(const void *args, uint64_t begin, uint64_t end) {
    const workload_input *input = *(const workload_input *const *)args;
    const workload_shape *shape = &input->shape;
    uint64_t keys = workload_keys_a_step(shape);
    double g = 1.0 - exponent;
    for (uint64_t batch = begin; batch < end; batch++) {
        uint64_t i = batch * keys;
        for (uint32_t t = 0; t < shape->tables; t++) {
            double n = (double)shape->table_rows[t];
            double span = pow(n, g) - 1.0;
            for (uint64_t stop = batch * keys + workload_first_key(shape, t + 1); i < stop; i++) {
                double u = (double)(workload_mix(key_seed * (i + 1)) >> 11) * 0x1p-53;
                double key = input->stream == WORKLOAD_UNIFORM_BAGS ? floor(u * n)
                                                                    : power_law(u, span, g) - 1.0;
                input->keys[i] = (int64_t)(key >= n ? n - 1.0 : key);
            }
        }
    }
}

static void make_offsets(const workload_input *input) {
    const workload_shape *shape = &input->shape;
    for (uint32_t t = 0; t < shape->tables; t++)
        for (uint64_t s = 0; s <= shape->samples; s++)
            input->offsets[(uint64_t)t * shape->samples + s] =
                (int64_t)(workload_first_key(shape, t) + s * workload_bag(shape, t));
}

/* Arguments of count_distinct(). */
typedef struct distinct_args {
    workload_input *input;
    uint64_t *bits; /* [tables][words] */
    uint64_t words;
} distinct_args;

static void make_gradient(const void *args, uint64_t begin, uint64_t end) {
    const workload_input *input = *(const workload_input *const *)args;
    for (uint64_t i = begin; i < end; i++) {
        /* 24 bits, in [-0.5, 0.5): their sums round, so a wrong order of summation is detected */
        uint64_t bits = workload_mix(gradient_seed * (i + 1)) >> 40;
        input->gradient[i] = (float)bits * 0x1p-24F - 0.5F;
    }
}

/* Count the distinct keys of tables [begin, end), with one bit for each key. */
static void count_distinct(const void *args, uint64_t begin, uint64_t end) {
    const distinct_args *a = args;
    const workload_shape *shape = &a->input->shape;
    for (uint64_t t = begin; t < end; t++) {
        uint64_t *bits = a->bits + t * a->words;
        uint64_t count = 0;
        for (uint64_t b = 0; b < shape->batches; b++) {
            const int64_t *keys = a->input->keys + b * workload_keys_a_step(shape) +
                                  workload_first_key(shape, (uint32_t)t);
            for (uint64_t i = 0; i < (uint64_t)workload_bag(shape, (uint32_t)t) * shape->samples;
                 i++) {
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
    if (status == HOTBED_OK && input->shape.pooled)
        status =
            hotbed_host_launch(stream, input->shape.batches, 1, make_bags, &input, sizeof input);
    else if (status == HOTBED_OK)
        status = hotbed_host_launch(stream, keys, 1 << 16, make_keys, &input, sizeof input);
    if (status == HOTBED_OK)
        status = hotbed_host_launch(stream, elements, 1 << 18, make_gradient, &input, sizeof input);
    if (status == HOTBED_OK)
        status = hotbed_host_launch(
            stream, input->shape.tables, 1, count_distinct, &counted, sizeof counted);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(stream);
    hotbed_stream_destroy(stream);
    free(counted.bits);
    return status;
}

/* The sizes at scale 1 are in docs/performance.md. */
static workload_shape shape_of_bags(const workload *what, double scale) {
    workload_shape shape = {.tables = WORKLOAD_TABLES, .dim = 128, .batches = BAG_BATCHES};
    shape.pooled = true;
    shape.samples = (uint32_t)ceil(what->samples * scale);
    for (uint32_t t = 0; t < shape.tables; t++) {
        shape.before[t + 1] = shape.before[t] + bag_keys[t];
        shape.table_rows[t] = (uint64_t)ceil(bag_rows[t] * scale);
        if (shape.table_rows[t] > shape.rows)
            shape.rows = shape.table_rows[t];
    }
    shape.range = shape.rows;
    return shape;
}

static workload_shape shape_of(const workload *what, double scale) {
    if (workload_pooled(what))
        return shape_of_bags(what, scale);
    workload_shape shape = {.tables = 10, .dim = 128, .batches = 100};
    bool tiered = workload_tiered(what);
    if (tiered)
        shape.batches = 60;
    shape.samples = (uint32_t)floor(104857 * scale);
    shape.range = (uint64_t)floor((tiered ? 26843545 : 1677721) * scale);
    shape.rows = tiered ? (uint64_t)floor(2621440 * scale) : shape.range;
    for (uint32_t t = 0; t < shape.tables; t++) {
        shape.before[t + 1] = t + 1;
        shape.table_rows[t] = shape.rows;
    }
    return shape;
}

static bool same_shape(const workload_shape *a, const workload_shape *b) {
    return a->samples == b->samples && a->batches == b->batches && a->range == b->range &&
           a->rows == b->rows && a->pooled == b->pooled;
}

static hotbed_status create(
    const workload_shape *shape, workload_stream stream, workload_input *out) {
    uint64_t keys = shape->batches * workload_keys_a_step(shape);
    uint64_t bags = workload_bags_a_step(shape);
    uint64_t elements = bags * shape->dim;
    workload_input input = {.shape = *shape, .stream = stream};
    input.keys = malloc(keys * sizeof *input.keys);
    input.gradient = malloc(elements * sizeof *input.gradient);
    input.offsets = malloc((bags + 1) * sizeof *input.offsets);
    hotbed_status status = HOTBED_OK;
    if (input.offsets)
        make_offsets(&input);
    if (!input.keys || !input.gradient || !input.offsets)
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
    if (input->keys && input->stream == what->stream && same_shape(&shape, &input->shape))
        return HOTBED_OK;
    workload_input_destroy(input);
    return create(&shape, what->stream, input);
}

void workload_input_destroy(workload_input *input) {
    free(input->keys);
    free(input->offsets);
    free(input->gradient);
    *input = (workload_input){0};
}
