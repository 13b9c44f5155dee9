/* bench/workload_check.c - the oracle of the workloads, in plain C.
 *
 * The oracle has no slots, batches in flight or kernels: it has a map from key to row on the host,
 * sums in the documented order (hotbed_storage_backward()), and the formulas of hotbed/types.h in
 * fp32. */
#include "bench/workload.h"
#include "bench/workload_rows.h"

#include "base/error.h"
#include "base/float.h"
#include "base/host_launch.h"
#include "base/port.h"
#include "storage/step/dtype_core.h"
#include "storage/types.h"

#include <math.h>
#include <stdlib.h>

enum {
    HOTTEST = 8, /* most frequent keys of each table; the others are drawn from the stream */
    SAMPLE = 64, /* keys of each table, if bags have one key */
    LANES = 32,  /* partial sums of a row's sum of squares */
    GROUP = 32,  /* gradients that hotbed_storage_backward() sums in one group */
    LEVELS = 7,  /* 32^7 > 2^31 occurrences */
};

typedef struct sampled {
    uint64_t key;
    uint32_t table;
} sampled;

struct workload_oracle {
    const workload *what;
    const workload_input *input;
    workload_row_form form;
    hotbed_optimizer optimizer;
    uint32_t count, a_table; /* number of followed keys; largest number of one table */
    sampled *keys;           /* [count], table by table */
    bool *seen;              /* [count] a step had the key, so the storage has its row */
    int32_t *map;            /* [map_size] index of the key in `keys`, or -1 */
    uint32_t map_size;       /* a power of two, well above count */
    float *sums; /* [batches][count][dim] the sum of a key's gradients in a step on the batch */
    uint32_t *occurrences; /* [batches][count] */
    float *weights;        /* [count][dim] */
    float *before;         /* weights before the last step */
    float *sum;            /* [dim] scratch */
    float *states[2];      /* [count][state_dim] */
    uint64_t steps;        /* number of steps taken */
    double beta1_power, beta2_power;
};

static uint32_t place_of(const workload_oracle *o, uint32_t table, uint64_t key) {
    return (uint32_t)workload_mix(key * 32 + table) & (o->map_size - 1);
}

/* Index of a key in `keys`, or -1. */
static int32_t find(const workload_oracle *o, uint32_t table, uint64_t key) {
    for (uint32_t p = place_of(o, table, key);; p = (p + 1) & (o->map_size - 1)) {
        int32_t k = o->map[p];
        if (k < 0 || (o->keys[k].key == key && o->keys[k].table == table))
            return k;
    }
}

static void add(workload_oracle *o, uint32_t table, uint64_t key) {
    if (find(o, table, key) >= 0)
        return;
    uint32_t p = place_of(o, table, key);
    while (o->map[p] >= 0)
        p = (p + 1) & (o->map_size - 1);
    o->map[p] = (int32_t)o->count;
    o->keys[o->count++] = (sampled){key, table};
}

/* The largest number of keys that choose() takes from table t. */
static uint32_t most_of(const workload_shape *shape, uint32_t t) {
    return shape->pooled ? HOTTEST + shape->batches * workload_bag(shape, t) : SAMPLE;
}

/* The bag of table t that the oracle follows in a batch. */
static const int64_t *followed_bag(const workload_input *input, uint64_t batch, uint32_t t) {
    const workload_shape *shape = &input->shape;
    uint64_t sample = workload_mix(batch + 1) % shape->samples;
    return input->keys + batch * workload_keys_a_step(shape) + workload_first_key(shape, t) +
           sample * workload_bag(shape, t);
}

/* Choose keys.  If bags have one key: the most frequent keys, and random ones.  Otherwise the most
 * frequent keys, and all keys of one sample of each batch, so that the sums of its bags are known.
 */
static void choose(workload_oracle *o) {
    const workload_input *input = o->input;
    const workload_shape *shape = &input->shape;
    for (uint32_t p = 0; p < o->map_size; p++)
        o->map[p] = -1;
    for (uint32_t t = 0; t < shape->tables; t++) {
        uint32_t first = o->count;
        /* The most frequent key; the density falls with the key. */
        uint64_t hottest = shape->pooled ? 0 : 1;
        for (uint64_t key = hottest; key < hottest + HOTTEST; key++)
            if (!shape->pooled || key < shape->table_rows[t])
                add(o, t, key);
        for (uint32_t i = HOTTEST; i < SAMPLE && !shape->pooled; i++) {
            uint64_t random = workload_mix((uint64_t)t * SAMPLE + i + 1);
            uint64_t batch = random % shape->batches;
            uint64_t sample = (random >> 32) % shape->samples;
            uint64_t at = batch * workload_keys_a_step(shape) + workload_first_key(shape, t);
            add(o, t, (uint64_t)input->keys[at + sample]);
        }
        for (uint32_t b = 0; b < shape->batches && shape->pooled; b++)
            for (uint32_t i = 0; i < workload_bag(shape, t); i++)
                add(o, t, (uint64_t)followed_bag(input, b, t)[i]);
        if (o->count - first > o->a_table)
            o->a_table = o->count - first;
    }
}

/* --- sums ------------------------------------------------------------------------------------- */

/* Partial sums of one key: level 0 is the open group of gradients, level 1 the open group of sums
 * of level 0, ... */
typedef struct tower {
    float *level[LEVELS]; /* each [dim] */
    uint32_t filled[LEVELS];
} tower;

static void tower_add(tower *t, uint32_t level, const float *value, uint32_t dim) {
    float *sum = t->level[level];
    for (uint32_t e = 0; e < dim; e++)
        sum[e] = (t->filled[level] == 0 ? 0.0F : sum[e]) + value[e];
    if (++t->filled[level] == GROUP && level + 1 < LEVELS) {
        t->filled[level] = 0;
        tower_add(t, level + 1, sum, dim);
    }
}

/* Close the open groups, starting at the lowest level; the last level has the row's sum. */
static void tower_finish(tower *t, float *out, uint32_t dim) {
    for (uint32_t level = 0; level + 1 < LEVELS; level++) {
        if (t->filled[level] == 0)
            continue;
        t->filled[level] = 0;
        tower_add(t, level + 1, t->level[level], dim);
    }
    memcpy(out, t->level[LEVELS - 1], dim * sizeof *out);
}

/* Arguments of the sum: `towers` is [threads][count]; the pointers of their levels are set. */
typedef struct sum_args {
    const workload_oracle *oracle;
    tower *towers;
    uint64_t grain; /* batches for each thread */
} sum_args;

/* Sum one batch; `towers` is [count]; the pointers of their levels are set. */
static void sum_batch(const workload_oracle *o, uint64_t batch, tower *towers) {
    const workload_shape *shape = &o->input->shape;
    uint32_t dim = shape->dim;
    const int64_t *keys = o->input->keys + batch * workload_keys_a_step(shape);
    uint32_t *occurrences = o->occurrences + batch * o->count;
    for (uint32_t k = 0; k < o->count; k++) {
        occurrences[k] = 0;
        memset(towers[k].filled, 0, sizeof towers[k].filled);
    }
    for (uint64_t b = 0; b < workload_bags_a_step(shape); b++) {
        const float *gradient = o->input->gradient + workload_element(shape, b);
        for (int64_t i = o->input->offsets[b]; i < o->input->offsets[b + 1]; i++) {
            int32_t k = find(o, (uint32_t)(b / shape->samples), (uint64_t)keys[i]);
            if (k < 0)
                continue;
            occurrences[k]++;
            tower_add(&towers[k], 0, gradient, dim);
        }
    }
    for (uint32_t k = 0; k < o->count; k++) {
        if (occurrences[k] > 0)
            tower_finish(&towers[k], o->sums + (batch * o->count + k) * dim, dim);
    }
}

static void sum_body(const void *args, uint64_t begin, uint64_t end) {
    const sum_args *a = args;
    for (uint64_t batch = begin; batch < end; batch++)
        sum_batch(a->oracle, batch, a->towers + begin / a->grain * a->oracle->count);
}

static hotbed_status sum_with(
    const workload_oracle *o, tower *towers, float *memory, uint64_t sets) {
    uint32_t dim = o->input->shape.dim;
    uint64_t batches = o->input->shape.batches;
    for (uint64_t i = 0; i < sets * o->count; i++) {
        for (uint32_t level = 0; level < LEVELS; level++)
            towers[i].level[level] = memory + (i * LEVELS + level) * dim;
    }
    sum_args args = {o, towers, (batches + sets - 1) / sets};
    hotbed_stream *stream = NULL;
    HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream));
    hotbed_status status =
        hotbed_host_launch(stream, batches, args.grain, sum_body, &args, sizeof args);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(stream);
    hotbed_stream_destroy(stream);
    return status;
}

/* The gradients are the same in every step and batches repeat, so each batch is summed once. */
static hotbed_status sum_all(const workload_oracle *o) {
    uint64_t sets = hotbed_host_threads();
    float *memory = malloc(sets * o->count * LEVELS * o->input->shape.dim * sizeof *memory);
    tower *towers = malloc(sets * o->count * sizeof *towers);
    hotbed_status status = HOTBED_OK;
    if (!memory || !towers)
        status = hotbed_fail(HOTBED_ERR_MEMORY, "oracle: no memory for %u keys", o->count);
    else
        status = sum_with(o, towers, memory, sets);
    free(memory);
    free(towers);
    return status;
}

/* --- the optimizer -------------------------------------------------------------------------- */

/* Mean of the squares, summed in the order of hotbed/types.h. */
static float mean_square(const float *gradient, uint32_t dim) {
    float shares[LANES] = {0};
    for (uint32_t e = 0; e < dim; e++)
        shares[e / 4 % LANES] += gradient[e] * gradient[e];
    for (uint32_t apart = LANES / 2; apart > 0; apart /= 2)
        for (uint32_t k = 0; k < apart; k++)
            shares[k] += shares[k + apart];
    return shares[0] / (float)dim;
}

/* The direction of element e's step; updates its states. */
static float direction_of(const workload_oracle *o, uint32_t k, uint32_t e, float g) {
    const hotbed_optimizer *p = &o->optimizer;
    if (p->kind == HOTBED_OPT_SGD)
        return g;
    if (p->kind == HOTBED_OPT_ROWWISE_ADAGRAD)
        return g / (sqrtf(o->states[0][k]) + p->eps);
    float *m = o->states[0] + (size_t)k * o->form.dim + e;
    float *v = o->states[1] + (size_t)k * o->form.dim + e;
    *m = p->beta1 * *m + (1.0F - p->beta1) * g;
    *v = p->beta2 * *v + (1.0F - p->beta2) * (g * g);
    return *m / (float)(1.0 - o->beta1_power) /
           (sqrtf(*v / (float)(1.0 - o->beta2_power)) + p->eps);
}

static void update(const workload_oracle *o, uint32_t k, const float *gradient) {
    const hotbed_optimizer *p = &o->optimizer;
    uint32_t dim = o->form.dim;
    float *w = o->weights + (size_t)k * dim;
    if (p->kind == HOTBED_OPT_ROWWISE_ADAGRAD)
        o->states[0][k] += mean_square(gradient, dim);
    for (uint32_t e = 0; e < dim; e++) {
        float direction = direction_of(o, k, e, gradient[e]);
        w[e] -= p->learning_rate * (direction + p->weight_decay * w[e]);
    }
    if (o->form.dtype == HOTBED_F32)
        return;
    float packed[HOTBED_DIM_MOST];
    hotbed_weights_write(o->form.dtype, dim, w, packed);
    hotbed_weights_read(o->form.dtype, dim, packed, w);
}

/* Where the sum of key k's gradients in a step of all ranks is; NULL: no batch has the key. `sum`
 * has space for it. */
static const float *sum_of_ranks(const workload_oracle *o, uint32_t k, uint32_t ranks, float *sum) {
    const float *found = NULL;
    const uint32_t dim = o->input->shape.dim;
    for (uint32_t r = 0; r < ranks; r++) {
        uint64_t at = (o->steps * ranks + r) % o->input->shape.batches * o->count + k;
        if (o->occurrences[at] == 0)
            continue;
        const float *of_rank = o->sums + at * dim;
        for (uint32_t e = 0; e < dim && found != NULL; e++)
            sum[e] = found[e] + of_rank[e];
        found = found == NULL ? of_rank : sum;
    }
    return found;
}

static void take_step(workload_oracle *o, uint32_t ranks) {
    uint32_t dim = o->input->shape.dim;
    memcpy(o->before, o->weights, (size_t)o->count * dim * sizeof *o->before);
    o->beta1_power *= o->optimizer.beta1;
    o->beta2_power *= o->optimizer.beta2;
    for (uint32_t k = 0; k < o->count; k++) {
        const float *sum = sum_of_ranks(o, k, ranks, o->sum);
        if (sum == NULL)
            continue;
        o->seen[k] = true;
        update(o, k, sum);
    }
    o->steps++;
}

/* --- rows of the storage -------------------------------------------------------------------- */

/* Move n rows, which are together, to the places of the keys that the run has. */
static void spread(
    const workload_oracle *o, const workload_run *run, uint32_t first, uint32_t end, uint32_t n,
    float *rows, uint32_t dim) {
    for (uint32_t k = end; k > first; k--)
        if (workload_owns(run, o->keys[k - 1].table, o->keys[k - 1].key))
            memmove(
                rows + (size_t)(k - 1) * dim, rows + (size_t)(first + --n) * dim,
                dim * sizeof *rows);
}

/* Read the rows of the followed keys that the run has: weights [count][dim], states
 * [count][state_dim].  `insert` creates missing rows. */
static hotbed_status read_sample_with(
    const workload_oracle *o, const workload_run *run, bool insert, workload_row_buffers *b,
    uint64_t *keys, float *weights, float *const states[2]) {
    for (uint32_t first = 0, end; first < o->count; first = end) {
        uint32_t n = 0, table = o->keys[first].table;
        for (end = first; end < o->count && o->keys[end].table == table; end++)
            if (workload_owns(run, table, o->keys[end].key))
                keys[n++] = workload_stored_key(run, table, o->keys[end].key);
        if (n == 0)
            continue;
        void *const part[2] = {
            states[0] + (size_t)first * o->form.state_dim[0],
            states[1] + (size_t)first * o->form.state_dim[1]};
        const hotbed_rows nothing = {0};
        const workload_place place = workload_place_of(run, table);
        if (insert) {
            HOTBED_TRY(hotbed_copy(b->keys.data, keys, n * sizeof *keys, run->stream));
            HOTBED_TRY(hotbed_storage_set_rows(
                place.storage, place.table, n, b->keys.data, &nothing, run->stream));
        }
        HOTBED_TRY(workload_rows_read(
            place.storage, place.table, n, keys, b, weights + (size_t)first * o->form.dim, part,
            run->stream));
        spread(o, run, first, end, n, weights, o->form.dim);
        for (uint32_t s = 0; s < o->form.states; s++)
            spread(o, run, first, end, n, states[s], o->form.state_dim[s]);
    }
    return HOTBED_OK;
}

static hotbed_status read_sample(
    const workload_oracle *o, const workload_run *run, bool insert, float *weights,
    float *const states[2]) {
    workload_row_buffers b;
    HOTBED_TRY(workload_rows_alloc(o->a_table, o->form, run->stream, &b));
    uint64_t *keys = malloc(o->a_table * sizeof *keys);
    hotbed_status status = HOTBED_OK;
    if (!keys)
        status = hotbed_fail(HOTBED_ERR_MEMORY, "oracle: no memory for %u keys", o->a_table);
    else
        status = read_sample_with(o, run, insert, &b, keys, weights, states);
    free(keys);
    workload_rows_free(&b);
    return status;
}

/* Initial rows depend on seed, table and key only.  Read them from a small storage with the same
 * options, so that the timed storage is not changed. */
static hotbed_status read_initial(workload_oracle *o, hotbed_stream *stream) {
    workload_tables tables;
    hotbed_storage_options options;
    workload_run run = {.what = o->what, .stream = stream};
    workload_storage_options(o->what, &o->input->shape, &tables, &options);
    for (uint32_t t = 0; t < o->input->shape.tables; t++) {
        tables.options[t].kind = HOTBED_TABLE_HASH;
        tables.options[t].capacity = (uint64_t)4 * o->a_table;
    }
    o->optimizer = options.optimizer;
    HOTBED_TRY(hotbed_storage_create(&options, stream, &run.storage));
    hotbed_status status = read_sample(o, &run, true, o->weights, o->states);
    hotbed_storage_destroy(run.storage);
    return status;
}

/* --- create and check ------------------------------------------------------------------------- */

static hotbed_status fill_oracle(workload_oracle *o, hotbed_stream *stream) {
    const workload_shape *shape = &o->input->shape;
    size_t most = 0;
    for (uint32_t t = 0; t < shape->tables; t++)
        most += most_of(shape, t);
    for (o->map_size = 4096; o->map_size < 4 * most; o->map_size *= 2) {
    }
    o->form = workload_form_of(o->what, shape);
    o->keys = calloc(most, sizeof *o->keys);
    o->map = calloc(o->map_size, sizeof *o->map);
    if (!o->keys || !o->map)
        return hotbed_fail(HOTBED_ERR_MEMORY, "oracle: no memory for %zu keys", most);
    choose(o);
    size_t row = (size_t)o->count * shape->dim;
    o->seen = calloc(o->count, sizeof *o->seen);
    o->sums = calloc(shape->batches * row, sizeof *o->sums);
    o->occurrences = calloc((size_t)shape->batches * o->count, sizeof *o->occurrences);
    o->weights = calloc(4 * row + shape->dim, sizeof *o->weights);
    if (!o->seen || !o->sums || !o->occurrences || !o->weights)
        return hotbed_fail(HOTBED_ERR_MEMORY, "oracle: no memory for %u keys", o->count);
    o->before = o->weights + row;
    o->states[0] = o->weights + 2 * row;
    o->states[1] = o->weights + 3 * row;
    o->sum = o->weights + 4 * row;
    HOTBED_TRY(read_initial(o, stream));
    return sum_all(o);
}

hotbed_status workload_oracle_create(
    const workload *what, const workload_input *input, hotbed_stream *stream,
    workload_oracle **out) {
    workload_oracle *o = calloc(1, sizeof *o);
    *out = NULL;
    if (!o)
        return hotbed_fail(HOTBED_ERR_MEMORY, "oracle: no memory");
    o->what = what;
    o->input = input;
    o->beta1_power = 1;
    o->beta2_power = 1;
    hotbed_status status = fill_oracle(o, stream);
    if (status != HOTBED_OK) {
        workload_oracle_destroy(o);
        return status;
    }
    *out = o;
    return HOTBED_OK;
}

void workload_oracle_destroy(workload_oracle *oracle) {
    if (!oracle)
        return;
    free(oracle->keys);
    free(oracle->seen);
    free(oracle->map);
    free(oracle->sums);
    free(oracle->occurrences);
    free(oracle->weights);
    free(oracle);
}

uint64_t workload_oracle_rows(const workload_oracle *oracle) {
    return oracle->count;
}

/* Return CORRUPT, with the first element that differs. */
static hotbed_status compare(
    const char *what, uint32_t table, uint64_t key, const float *got, const float *want,
    uint32_t dim) {
    uint32_t e = 0;
    while (e < dim && hotbed_float_bits(got[e]) == hotbed_float_bits(want[e]))
        e++;
    if (e == dim)
        return HOTBED_OK;
    return hotbed_fail(
        HOTBED_ERR_CORRUPT,
        "check: %s of table %u, key %lld, element %u is %.9g (%a), not %.9g (%a)", what, table,
        (long long)key, e, (double)got[e], (double)got[e], (double)want[e], (double)want[e]);
}

static hotbed_status check_written(const float *output, uint64_t elements) {
    for (uint64_t i = 0; i < elements; i++) {
        if (isnan(output[i]))
            return hotbed_fail(
                HOTBED_ERR_CORRUPT, "check: element %llu of the output was not written",
                (unsigned long long)i);
    }
    return HOTBED_OK;
}

/* Sum `rows` [count][dim] of a bag's keys in order, and their magnitudes; false: a key is not
 * followed. */
static bool sum_bag(
    const workload_oracle *o, const float *rows, uint32_t table, const int64_t *keys, uint64_t n,
    float *sum, float *magnitude) {
    const uint32_t dim = o->form.dim;
    memset(magnitude, 0, dim * sizeof *magnitude);
    for (uint64_t i = 0; i < n; i++) {
        int32_t k = find(o, table, (uint64_t)keys[i]);
        if (k < 0)
            return false;
        const float *row = rows + (size_t)k * dim;
        /* Otherwise the sum begins at zero. */
        const bool copied = i == 0 && !o->input->shape.pooled;
        for (uint32_t e = 0; e < dim; e++) {
            sum[e] = copied ? row[e] : (i == 0 ? 0.0F : sum[e]) + row[e];
            magnitude[e] += fabsf(row[e]);
        }
    }
    return true;
}

/* Several ranks: replace each element of `want` by the output's if that is within the rounding of a
 * sum of n terms. */
static void accept_rounding(
    const float *got, const float *magnitude, uint64_t n, uint32_t dim, float *want) {
    for (uint32_t e = 0; e < dim; e++)
        if (fabsf(got[e] - want[e]) <= (float)n * 0x1p-23F * magnitude[e])
            want[e] = got[e];
}

/* Compare every bag of a batch whose keys are all followed. */
static hotbed_status check_bags(
    const workload_oracle *o, const workload_run *run, const char *what, const float *rows,
    uint64_t batch, const float *output, float *sum) {
    const workload_shape *shape = &o->input->shape;
    const int64_t *keys = o->input->keys + batch % shape->batches * workload_keys_a_step(shape);
    for (uint64_t b = 0; b < workload_bags_a_step(shape); b++) {
        uint32_t table = (uint32_t)(b / shape->samples);
        const int64_t *bag = keys + o->input->offsets[b];
        const float *got = output + workload_element(shape, b);
        const uint32_t n = workload_bag(shape, table);
        if (!sum_bag(o, rows, table, bag, n, sum, sum + shape->dim))
            continue;
        if (run->ranks > 1)
            accept_rounding(got, sum + shape->dim, n, shape->dim, sum);
        HOTBED_TRY(compare(what, table, (uint64_t)bag[0], got, sum, shape->dim));
    }
    return HOTBED_OK;
}

static hotbed_status check_output(
    const workload_oracle *o, workload_run *run, const char *what, const float *rows,
    uint64_t batch) {
    const workload_shape *shape = &o->input->shape;
    float *output = NULL;
    HOTBED_TRY(workload_read_output(run, &output));
    hotbed_status status = check_written(output, workload_bags_a_step(shape) * shape->dim);
    float *sum = malloc(2 * shape->dim * sizeof *sum);
    if (!sum)
        status = hotbed_fail(HOTBED_ERR_MEMORY, "check: no memory for a row");
    if (status == HOTBED_OK)
        status = check_bags(o, run, what, rows, batch, output, sum);
    free(sum);
    free(output);
    return status;
}

static hotbed_status check_rows(
    const workload_oracle *o, workload_run *run, float *weights, float *const states[2]) {
    static const char *const names[2] = {"state 0", "state 1"};
    uint32_t dim = o->form.dim;
    HOTBED_TRY(read_sample(o, run, false, weights, states));
    for (uint32_t k = 0; k < o->count; k++) {
        const sampled *key = &o->keys[k];
        if (!o->seen[k] || !workload_owns(run, key->table, key->key))
            continue;
        size_t at = (size_t)k * dim;
        HOTBED_TRY(compare("weight", key->table, key->key, weights + at, o->weights + at, dim));
        for (uint32_t s = 0; s < o->form.states; s++) {
            at = (size_t)k * o->form.state_dim[s];
            HOTBED_TRY(compare(
                names[s], key->table, key->key, states[s] + at, o->states[s] + at,
                o->form.state_dim[s]));
        }
    }
    return HOTBED_OK;
}

hotbed_status workload_oracle_check(workload_oracle *oracle, workload_run *run) {
    const uint32_t ranks = run->ranks > 0 ? run->ranks : 1;
    while (oracle->steps < run->steps)
        take_step(oracle, ranks);
    HOTBED_TRY(check_output(
        oracle, run, "output", oracle->before, (oracle->steps - 1) * ranks + run->rank));
    return workload_oracle_check_rows(oracle, run);
}

hotbed_status workload_oracle_check_eval(
    const workload_oracle *oracle, workload_run *run, uint64_t batch) {
    return check_output(oracle, run, "eval output", oracle->weights, batch);
}

hotbed_status workload_oracle_check_rows(const workload_oracle *oracle, workload_run *run) {
    size_t row = (size_t)oracle->count * oracle->input->shape.dim;
    if (row == 0)
        return HOTBED_OK;
    float *rows = malloc(3 * row * sizeof *rows);
    if (!rows)
        return hotbed_fail(HOTBED_ERR_MEMORY, "check: no memory for %u rows", oracle->count);
    float *const states[2] = {rows + row, rows + 2 * row};
    hotbed_status status = check_rows(oracle, run, rows, states);
    free(rows);
    return status;
}

/* --- eval ------------------------------------------------------------------------------------- */

enum { POSITIONS = 256 }; /* keys of each table, in whole bags */

static hotbed_status check_eval_table(
    workload_run *run, uint32_t batch, uint32_t table, const float *output, workload_row_buffers *b,
    float *rows) {
    const workload_shape *shape = &run->input->shape;
    const int64_t *keys = run->input->keys + batch * workload_keys_a_step(shape);
    const uint32_t dim = shape->dim;
    const uint32_t length = workload_bag(shape, table);
    const uint32_t bags = POSITIONS / length;
    uint64_t numbers[POSITIONS];
    uint64_t wanted[POSITIONS] = {0};
    for (uint32_t i = 0; i < bags; i++) {
        numbers[i] = (uint64_t)table * shape->samples +
                     workload_mix((uint64_t)table * POSITIONS + i + 1) % shape->samples;
        for (uint32_t k = 0; k < length; k++)
            wanted[i * length + k] = (uint64_t)keys[run->input->offsets[numbers[i]] + k];
    }
    const workload_place place = workload_place_of(run, table);
    HOTBED_TRY(workload_rows_read(
        place.storage, place.table, (uint64_t)bags * length, wanted, b, rows, NULL, run->stream));
    for (uint32_t i = 0; i < bags; i++) {
        float *sum = rows + (size_t)i * length * dim;
        for (uint32_t e = 0; e < dim && shape->pooled; e++)
            sum[e] = 0.0F + sum[e];
        for (uint32_t k = 1; k < length; k++)
            for (uint32_t e = 0; e < dim; e++)
                sum[e] += sum[(size_t)k * dim + e];
        HOTBED_TRY(compare(
            "eval output", table, wanted[i * length], output + workload_element(shape, numbers[i]),
            sum, dim));
    }
    return HOTBED_OK;
}

static hotbed_status check_eval_with(
    workload_run *run, uint32_t batch, const float *output, float *rows) {
    const workload_shape *shape = &run->input->shape;
    workload_row_buffers b;
    HOTBED_TRY(check_written(output, workload_bags_a_step(shape) * shape->dim));
    HOTBED_TRY(workload_rows_alloc(POSITIONS, workload_form_of(run->what, shape), run->stream, &b));
    hotbed_status status = HOTBED_OK;
    for (uint32_t t = 0; t < shape->tables && status == HOTBED_OK; t++)
        status = check_eval_table(run, batch, t, output, &b, rows);
    workload_rows_free(&b);
    return status;
}

hotbed_status workload_check_eval(workload_run *run, uint32_t batch) {
    float *output = NULL;
    HOTBED_TRY(workload_read_output(run, &output));
    float *rows = malloc((size_t)POSITIONS * run->input->shape.dim * sizeof *rows);
    hotbed_status status = HOTBED_OK;
    if (!rows)
        status = hotbed_fail(HOTBED_ERR_MEMORY, "check: no memory for %d rows", POSITIONS);
    else
        status = check_eval_with(run, batch, output, rows);
    free(rows);
    free(output);
    return status;
}
