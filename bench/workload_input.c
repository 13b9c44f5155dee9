/* bench/workload_input.c - the keys and the gradients of the workloads. */
#include "bench/workload.h"

#include "base/error.h"
#include "base/host_launch.h"

#include <math.h>
#include <stdlib.h>

/* Exponent of the power law of the workloads' keys. */
static const double workload_exponent = 1.05;
static const uint64_t key_seed = 0x9e3779b97f4a7c15U;
static const uint64_t gradient_seed = 0xd1b54a32d192ed03U;

enum { BAG_TABLES = 26 };

/* MLPerf's DLRM-DCNv2: rows of its tables (40 M reduced to 4 M), and keys in a bag of each. */
static const uint32_t bag_rows[BAG_TABLES] = {
    4000000, 39060,   17295,   7424,    20265,  3,     7122, 1543, 63,
    4000000, 3067956, 405282,  10,      2209,   11938, 155,  4,    976,
    14,      4000000, 4000000, 4000000, 590152, 12973, 108,  36};
static const uint8_t bag_keys[BAG_TABLES] = {3, 2, 1, 2, 6, 1, 1,  1,   1,  7,  3, 8, 1,
                                             6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1};
enum { BAG_BATCHES = 20 };

/* Keys that drift: steps before the timed ones, steps in all (five passes of WORKLOAD_DRIFT_STEPS follow), and
 * steps from one change of popularity to the next. */
enum { DRIFT_WARM = 60, DRIFT_BATCHES = DRIFT_WARM + 5 * WORKLOAD_DRIFT_STEPS, DRIFT_PERIOD = 20 };
enum {
    DRIFT_PART = 4
}; /* W13 has this part of the keys of W5, since fresh keys make three times as many rows */
static const uint64_t drift_seed = 0x94d049bb133111ebU;

static double power_law(double u, double span, double g) {
    return floor(pow(u * span + 1.0, 1.0 / g));
}

/* Generate keys 1 .. N-1, for tables of one size. */
static void make_keys(const void *args, uint64_t begin, uint64_t end) {
    const workload_input *input = *(const workload_input *const *)args;
    double n = (double)input->shape.range;
    double g = 1.0 - input->exponent;
    double span = pow(n, g) - 1.0;
    for (uint64_t i = begin; i < end; i++) {
        double u = (double)(workload_mix(key_seed * (i + 1)) >> 11) * 0x1p-53;
        double key = power_law(u, span, g);
        input->keys[i] = (int64_t)(key >= n ? n - 1.0 : key);
    }
}

/* Arguments of make_drift(). */
typedef struct drift_args {
    const workload_input *input;
    uint32_t *key_of; /* [tables][range] the key of each rank */
} drift_args;

/* Give other keys to a tenth of the ranks: the ranks first, first + 10, ... below n, where first is 1 .. 10, exchange
 * their keys by a Fisher-Yates shuffle.  `number` differs for each table and change. */
static void reshuffle(uint32_t *key_of, uint64_t n, uint64_t number) {
    uint64_t state = workload_mix(drift_seed * (number + 1));
    uint64_t first = 1 + state % 10;
    uint64_t count = n > first ? (n - first + 9) / 10 : 0;
    for (uint64_t i = count; i > 1; i--) {
        uint64_t other = workload_mix(state + i) % i;
        uint32_t *a = &key_of[first + 10 * (i - 1)];
        uint32_t *b = &key_of[first + 10 * other];
        uint32_t key = *a;
        *a = *b;
        *b = key;
    }
}

/* Generate the keys of tables [begin, end), whose popularity drifts.  The ranks 1 .. N-1 are drawn as make_keys() draws
 * keys.  A rank's key is the rank itself, until a tenth of the ranks exchange their keys before every DRIFT_PERIOD-th
 * batch. */
static void make_drift(const void *args, uint64_t begin, uint64_t end) {
    const drift_args *a = args;
    const workload_shape *shape = &a->input->shape;
    for (uint64_t t = begin; t < end; t++) {
        uint32_t *key_of = a->key_of + t * shape->range;
        for (uint64_t rank = 0; rank < shape->range; rank++)
            key_of[rank] = (uint32_t)rank;
        for (uint64_t b = 0; b < shape->batches; b++) {
            if (b > 0 && b % DRIFT_PERIOD == 0)
                reshuffle(key_of, shape->range, b * shape->tables + t);
            int64_t *keys = a->input->keys + (b * shape->tables + t) * shape->samples;
            for (uint64_t s = 0; s < shape->samples; s++)
                keys[s] = key_of[keys[s]];
        }
    }
}

/* Generate the keys of batches [begin, end), 0 .. N-1 of each table. */
static void make_bags(const void *args, uint64_t begin, uint64_t end) {
    const workload_input *input = *(const workload_input *const *)args;
    const workload_shape *shape = &input->shape;
    uint64_t keys = workload_keys_a_step(shape);
    double g = 1.0 - input->exponent;
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
    const workload_input *input;
    uint64_t *bits; /* [tables][words] */
    uint64_t words;
    uint32_t batches;   /* number of batches that are counted */
    uint64_t *distinct; /* out [tables] */
} distinct_args;

static void make_gradient(const void *args, uint64_t begin, uint64_t end) {
    const workload_input *input = *(const workload_input *const *)args;
    for (uint64_t i = begin; i < end; i++) {
        /* 24 bits, in [-0.5, 0.5): their sums round, so a wrong order of summation is detected */
        uint64_t bits = workload_mix(gradient_seed * (i + 1)) >> 40;
        input->gradient[i] = (float)bits * 0x1p-24F - 0.5F;
    }
}

/* Count the distinct keys of tables [begin, end) in the first batches, with one bit for each key. */
static void count_distinct(const void *args, uint64_t begin, uint64_t end) {
    const distinct_args *a = args;
    const workload_shape *shape = &a->input->shape;
    for (uint64_t t = begin; t < end; t++) {
        uint64_t *bits = a->bits + t * a->words;
        uint64_t count = 0;
        for (uint64_t b = 0; b < a->batches; b++) {
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
        a->distinct[t] = count;
    }
}

/* Count the distinct keys of each table in the first batches. */
static hotbed_status count_keys(
    hotbed_stream *stream, const workload_input *input, uint32_t batches, uint64_t *distinct) {
    distinct_args args = {input, NULL, input->shape.range / 64 + 1, batches, distinct};
    args.bits = calloc(input->shape.tables * args.words, sizeof *args.bits);
    if (!args.bits)
        return hotbed_fail(HOTBED_ERR_MEMORY, "input: no memory to count keys");
    hotbed_status status =
        hotbed_host_launch(stream, input->shape.tables, 1, count_distinct, &args, sizeof args);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(stream);
    free(args.bits);
    return status;
}

/* Fresh keys make rows in every step: tables have capacity for the keys of all batches. */
static hotbed_status size_tables(hotbed_stream *stream, workload_input *input) {
    workload_shape *shape = &input->shape;
    HOTBED_TRY(count_keys(stream, input, shape->batches, shape->table_rows));
    shape->rows = 0;
    for (uint32_t t = 0; t < shape->tables; t++)
        if (shape->table_rows[t] > shape->rows)
            shape->rows = shape->table_rows[t];
    return HOTBED_OK;
}

static hotbed_status make_all_drift(hotbed_stream *stream, workload_input *input) {
    const workload_shape *shape = &input->shape;
    drift_args args = {input, malloc(shape->tables * shape->range * sizeof *args.key_of)};
    if (!args.key_of)
        return hotbed_fail(HOTBED_ERR_MEMORY, "input: no memory for the keys of ranks");
    hotbed_status status =
        hotbed_host_launch(stream, shape->tables, 1, make_drift, &args, sizeof args);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(stream);
    free(args.key_of);
    return status == HOTBED_OK ? size_tables(stream, input) : status;
}

static hotbed_status make_with(
    hotbed_stream *stream, workload_input *input, uint64_t keys, uint64_t elements) {
    if (input->shape.pooled)
        HOTBED_TRY(
            hotbed_host_launch(stream, input->shape.batches, 1, make_bags, &input, sizeof input));
    else
        HOTBED_TRY(hotbed_host_launch(stream, keys, 1 << 16, make_keys, &input, sizeof input));
    if (input->stream == WORKLOAD_POWER_DRIFT)
        HOTBED_TRY(make_all_drift(stream, input));
    HOTBED_TRY(hotbed_host_launch(stream, elements, 1 << 18, make_gradient, &input, sizeof input));
    return count_keys(stream, input, input->shape.warm, input->distinct);
}

static hotbed_status make(workload_input *input, uint64_t keys, uint64_t elements) {
    hotbed_stream *stream = NULL;
    HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream));
    hotbed_status status = make_with(stream, input, keys, elements);
    hotbed_stream_destroy(stream);
    return status;
}

void workload_bag_tables(double scale, workload_shape *shape) {
    shape->tables = BAG_TABLES;
    shape->pooled = true;
    shape->rows = 0;
    for (uint32_t t = 0; t < BAG_TABLES; t++) {
        shape->before[t + 1] = shape->before[t] + bag_keys[t];
        shape->table_rows[t] = (uint64_t)ceil(bag_rows[t] * scale);
        if (shape->table_rows[t] > shape->rows)
            shape->rows = shape->table_rows[t];
    }
    shape->range = shape->rows;
}

/* The sizes at scale 1 are in docs/performance.md. */
static workload_shape shape_of_bags(const workload *what, double scale) {
    workload_shape shape = {.dim = 128, .batches = BAG_BATCHES, .warm = BAG_BATCHES};
    shape.samples = (uint32_t)ceil(what->samples * scale);
    workload_bag_tables(scale, &shape);
    return shape;
}

static workload_shape shape_of(const workload *what, double scale) {
    if (workload_pooled(what))
        return shape_of_bags(what, scale);
    workload_shape shape = {.tables = 10, .dim = 128, .batches = 100};
    bool tiered = workload_tiered(what);
    if (tiered)
        shape.batches = 60;
    shape.warm = shape.batches;
    if (what->stream == WORKLOAD_POWER_DRIFT) {
        scale /= DRIFT_PART;
        shape.batches = DRIFT_BATCHES;
        shape.warm = DRIFT_WARM;
    }
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
           a->pooled == b->pooled;
}

hotbed_status workload_input_create(
    const workload_shape *shape, workload_stream stream, double exponent, workload_input *out) {
    uint64_t keys = shape->batches * workload_keys_a_step(shape);
    uint64_t bags = workload_bags_a_step(shape);
    uint64_t elements = bags * shape->dim;
    workload_input input = {.shape = *shape, .stream = stream, .exponent = exponent};
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

bool workload_input_serves(const workload *what, double scale, const workload_input *input) {
    const workload_shape shape = shape_of(what, scale);
    return input->keys && input->stream == what->stream && same_shape(&shape, &input->shape);
}

hotbed_status workload_input_for(const workload *what, double scale, workload_input *input) {
    const workload_shape shape = shape_of(what, scale);
    if (workload_input_serves(what, scale, input))
        return HOTBED_OK;
    workload_input_destroy(input);
    return workload_input_create(&shape, what->stream, workload_exponent, input);
}

void workload_round_gradients(workload_input *input) {
    uint64_t elements = workload_bags_a_step(&input->shape) * input->shape.dim;
    for (uint64_t i = 0; i < elements; i++)
        input->gradient[i] = rintf(input->gradient[i] * 0x1p8F) * 0x1p-8F;
}

void workload_input_destroy(workload_input *input) {
    free(input->keys);
    free(input->offsets);
    free(input->gradient);
    *input = (workload_input){0};
}
