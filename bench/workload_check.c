/* bench/workload_check.c - the oracle of the workloads, in plain C.
 *
 * The oracle knows nothing of slots, batches in flight or kernels: a map from key to row on the host, sums
 * in the documented order (hotbed_storage_backward()), and the formulas of hotbed/types.h in fp32.
 */
#include "bench/workload.h"
#include "bench/workload_rows.h"

#include "base/error.h"
#include "base/host_launch.h"
#include "base/port.h"

#include <math.h>
#include <stdlib.h>

enum {
    HOTTEST = 8, /* of each table; the rest are drawn from the stream */
    SAMPLE = 64, /* keys of each table */
    MAP = 4096,  /* places of the map, a power of two well above 10 * SAMPLE */
    GROUP = 32,  /* of hotbed_storage_backward()'s order of sums */
    LEVELS = 7,  /* 32^7 > 2^31 occurrences */
};

typedef struct sampled {
    uint64_t key;
    uint32_t table;
} sampled;

struct workload_oracle {
    const workload *what;
    const workload_input *input;
    hotbed_optimizer optimizer;
    uint32_t count;
    sampled *keys;         /* [count] */
    bool *seen;            /* [count] a step had the key: the storage has a row */
    int32_t *map;          /* [MAP] number of the key, or -1 */
    float *sums;           /* [batches][count][dim] summed gradient of a step on that batch */
    uint32_t *occurrences; /* [batches][count] */
    float *weights;        /* [count][dim] */
    float *before;         /* the same, before the last step */
    float *states[2];      /* [count][dim] */
    uint64_t steps;        /* taken so far */
    double beta1_power, beta2_power;
};

static uint32_t place_of(uint32_t table, uint64_t key) {
    return (uint32_t)workload_mix(key * 16 + table) & (MAP - 1);
}

/* Number of the key in the sample, or -1. */
static int32_t find(const workload_oracle *o, uint32_t table, uint64_t key) {
    for (uint32_t p = place_of(table, key);; p = (p + 1) & (MAP - 1)) {
        int32_t k = o->map[p];
        if (k < 0 || (o->keys[k].key == key && o->keys[k].table == table))
            return k;
    }
}

static void add(workload_oracle *o, uint32_t table, uint64_t key) {
    if (find(o, table, key) >= 0)
        return;
    uint32_t p = place_of(table, key);
    while (o->map[p] >= 0)
        p = (p + 1) & (MAP - 1);
    o->map[p] = (int32_t)o->count;
    o->keys[o->count++] = (sampled){key, table};
}

static void choose(workload_oracle *o) {
    const workload_shape *shape = &o->input->shape;
    for (uint32_t p = 0; p < MAP; p++)
        o->map[p] = -1;
    for (uint32_t t = 0; t < shape->tables; t++) {
        for (uint64_t key = 1; key <= HOTTEST; key++) /* the density falls from key 1 on */
            add(o, t, key);
        for (uint32_t i = HOTTEST; i < SAMPLE; i++) {
            uint64_t random = workload_mix((uint64_t)t * SAMPLE + i + 1);
            uint64_t batch = random % shape->batches;
            uint64_t sample = (random >> 32) % shape->samples;
            uint64_t at = batch * workload_keys_a_step(shape) + (uint64_t)t * shape->samples;
            add(o, t, (uint64_t)o->input->keys[at + sample]);
        }
    }
}

/* --- sums ---------------------------------------------------------------------------------------- */

/* Running sums of one key: level 0 is the open group of gradients, level 1 of groups' sums, ... */
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

/* Close the open groups from the lowest level on; the last one is the row's sum. */
static void tower_finish(tower *t, float *out, uint32_t dim) {
    for (uint32_t level = 0; level + 1 < LEVELS; level++) {
        if (t->filled[level] == 0)
            continue;
        t->filled[level] = 0;
        tower_add(t, level + 1, t->level[level], dim);
    }
    memcpy(out, t->level[LEVELS - 1], dim * sizeof *out);
}

/* What summing needs: `towers` [threads][count], each with its levels in `room`. */
typedef struct sum_args {
    const workload_oracle *oracle;
    tower *towers;
    uint64_t grain; /* batches a thread */
} sum_args;

/* Sum one batch with `towers` [count], whose levels are in place. */
static void sum_batch(const workload_oracle *o, uint64_t batch, tower *towers) {
    const workload_shape *shape = &o->input->shape;
    uint32_t dim = shape->dim;
    const int64_t *keys = o->input->keys + batch * workload_keys_a_step(shape);
    uint32_t *occurrences = o->occurrences + batch * o->count;
    for (uint32_t k = 0; k < o->count; k++) {
        occurrences[k] = 0;
        memset(towers[k].filled, 0, sizeof towers[k].filled);
    }
    for (uint64_t i = 0; i < workload_keys_a_step(shape); i++) {
        int32_t k = find(o, (uint32_t)(i / shape->samples), (uint64_t)keys[i]);
        if (k < 0)
            continue;
        occurrences[k]++;
        tower_add(&towers[k], 0, o->input->gradient + i * dim, dim);
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

static hotbed_status sum_with(const workload_oracle *o, tower *towers, float *room, uint64_t sets) {
    uint32_t dim = o->input->shape.dim;
    uint64_t batches = o->input->shape.batches;
    for (uint64_t i = 0; i < sets * o->count; i++) {
        for (uint32_t level = 0; level < LEVELS; level++)
            towers[i].level[level] = room + (i * LEVELS + level) * dim;
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

/* The gradients are fixed and the batches come again, so a batch's sums are made once. */
static hotbed_status sum_all(const workload_oracle *o) {
    uint64_t sets = hotbed_host_threads();
    float *room = malloc(sets * o->count * LEVELS * o->input->shape.dim * sizeof *room);
    tower *towers = malloc(sets * o->count * sizeof *towers);
    hotbed_status status = HOTBED_OK;
    if (!room || !towers)
        status = hotbed_fail(HOTBED_ERR_MEMORY, "oracle: no memory for %u keys", o->count);
    else
        status = sum_with(o, towers, room, sets);
    free(room);
    free(towers);
    return status;
}

/* --- the optimiser ------------------------------------------------------------------------------- */

static void update(const workload_oracle *o, uint32_t k, const float *gradient) {
    const hotbed_optimizer *p = &o->optimizer;
    uint32_t dim = o->input->shape.dim;
    float *w = o->weights + (size_t)k * dim;
    float *m = o->states[0] + (size_t)k * dim;
    float *v = o->states[1] + (size_t)k * dim;
    float lr = p->learning_rate;
    float correction1 = (float)(1.0 - o->beta1_power);
    float correction2 = (float)(1.0 - o->beta2_power);
    for (uint32_t e = 0; e < dim; e++) {
        float g = gradient[e];
        if (p->kind == HOTBED_OPT_SGD) {
            w[e] -= lr * (g + p->weight_decay * w[e]);
            continue;
        }
        m[e] = p->beta1 * m[e] + (1.0F - p->beta1) * g;
        v[e] = p->beta2 * v[e] + (1.0F - p->beta2) * (g * g);
        float step = m[e] / correction1 / (sqrtf(v[e] / correction2) + p->eps);
        w[e] -= lr * (step + p->weight_decay * w[e]);
    }
}

static void take_step(workload_oracle *o) {
    uint32_t dim = o->input->shape.dim;
    uint64_t batch = o->steps % o->input->shape.batches;
    memcpy(o->before, o->weights, (size_t)o->count * dim * sizeof *o->before);
    o->beta1_power *= o->optimizer.beta1;
    o->beta2_power *= o->optimizer.beta2;
    for (uint32_t k = 0; k < o->count; k++) {
        uint64_t at = batch * o->count + k;
        if (o->occurrences[at] == 0)
            continue;
        o->seen[k] = true;
        update(o, k, o->sums + at * dim);
    }
    o->steps++;
}

/* --- rows of the library ------------------------------------------------------------------------- */

/* Rows of the sampled keys into weights and states, [count][dim] each.  `insert` makes absent ones. */
static hotbed_status read_sample(
    const workload_oracle *o, hotbed_storage *storage, bool insert, float *weights,
    float *const states[2], hotbed_stream *stream) {
    uint32_t dim = o->input->shape.dim;
    uint64_t keys[SAMPLE];
    workload_row_buffers b;
    HOTBED_TRY(
        workload_rows_alloc(SAMPLE, dim, hotbed_optimizer_states(o->what->optimizer), stream, &b));
    hotbed_status status = HOTBED_OK;
    for (uint32_t first = 0, n; first < o->count && status == HOTBED_OK; first += n) {
        uint32_t table = o->keys[first].table;
        for (n = 0; first + n < o->count && o->keys[first + n].table == table; n++)
            keys[n] = o->keys[first + n].key;
        size_t at = (size_t)first * dim;
        float *part[2] = {states[0] + at, states[1] + at};
        const hotbed_rows nothing = {0};
        if (insert)
            status = hotbed_copy(b.keys.data, keys, n * sizeof *keys, stream);
        if (insert && status == HOTBED_OK)
            status = hotbed_storage_set_rows(storage, table, n, b.keys.data, &nothing, stream);
        if (status == HOTBED_OK)
            status =
                workload_rows_read(storage, table, n, keys, dim, &b, weights + at, part, stream);
    }
    workload_rows_free(&b);
    return status;
}

/* Initial rows depend on seed, table and key alone: they are read from a small storage of the same
 * options, which leaves the one that is timed as it is. */
static hotbed_status read_initial(workload_oracle *o, hotbed_stream *stream) {
    hotbed_table_options tables[WORKLOAD_TABLES];
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    workload_storage_options(o->what, &o->input->shape, (uint64_t)4 * SAMPLE, tables, &options);
    o->optimizer = options.optimizer;
    HOTBED_TRY(hotbed_storage_create(&options, stream, &storage));
    hotbed_status status = read_sample(o, storage, true, o->weights, o->states, stream);
    hotbed_storage_destroy(storage);
    return status;
}

/* --- create and check ---------------------------------------------------------------------------- */

static hotbed_status fill_oracle(workload_oracle *o, hotbed_stream *stream) {
    const workload_shape *shape = &o->input->shape;
    size_t most = (size_t)shape->tables * SAMPLE;
    size_t row = most * shape->dim;
    o->keys = calloc(most, sizeof *o->keys);
    o->seen = calloc(most, sizeof *o->seen);
    o->map = calloc(MAP, sizeof *o->map);
    o->sums = calloc(shape->batches * row, sizeof *o->sums);
    o->occurrences = calloc(shape->batches * most, sizeof *o->occurrences);
    o->weights = calloc(4 * row, sizeof *o->weights);
    if (!o->keys || !o->seen || !o->map || !o->sums || !o->occurrences || !o->weights)
        return hotbed_fail(HOTBED_ERR_MEMORY, "oracle: no memory for %zu keys", most);
    o->before = o->weights + row;
    o->states[0] = o->weights + 2 * row;
    o->states[1] = o->weights + 3 * row;
    choose(o);
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

/* CORRUPT with the first element that differs. */
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
        "check: %s of table %u, key %llu, element %u is %.9g (%a), not %.9g (%a)", what, table,
        (unsigned long long)key, e, (double)got[e], (double)got[e], (double)want[e],
        (double)want[e]);
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

/* Every position of the last step's batch that has a sampled key. */
static hotbed_status check_output(const workload_oracle *o, const float *output) {
    const workload_shape *shape = &o->input->shape;
    uint64_t n = workload_keys_a_step(shape);
    const int64_t *keys = o->input->keys + (o->steps - 1) % shape->batches * n;
    HOTBED_TRY(check_written(output, n * shape->dim));
    for (uint64_t i = 0; i < n; i++) {
        uint32_t table = (uint32_t)(i / shape->samples);
        int32_t k = find(o, table, (uint64_t)keys[i]);
        if (k >= 0)
            HOTBED_TRY(compare(
                "output", table, (uint64_t)keys[i], output + i * shape->dim,
                o->before + (size_t)k * shape->dim, shape->dim));
    }
    return HOTBED_OK;
}

static hotbed_status check_rows(
    const workload_oracle *o, workload_run *run, float *weights, float *const states[2]) {
    static const char *const names[2] = {"state 0", "state 1"};
    uint32_t dim = o->input->shape.dim;
    HOTBED_TRY(read_sample(o, run->storage, false, weights, states, run->stream));
    for (uint32_t k = 0; k < o->count; k++) {
        if (!o->seen[k])
            continue;
        size_t at = (size_t)k * dim;
        const sampled *key = &o->keys[k];
        HOTBED_TRY(compare("weight", key->table, key->key, weights + at, o->weights + at, dim));
        for (uint32_t s = 0; s < 2 && s < hotbed_optimizer_states(o->what->optimizer); s++)
            HOTBED_TRY(
                compare(names[s], key->table, key->key, states[s] + at, o->states[s] + at, dim));
    }
    return HOTBED_OK;
}

hotbed_status workload_oracle_check(workload_oracle *oracle, workload_run *run) {
    while (oracle->steps < run->steps)
        take_step(oracle);
    float *output = NULL;
    HOTBED_TRY(workload_read_output(run, &output));
    hotbed_status status = check_output(oracle, output);
    free(output);
    return status == HOTBED_OK ? workload_oracle_check_rows(oracle, run) : status;
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

/* --- eval ---------------------------------------------------------------------------------------- */

enum { POSITIONS = 256 }; /* of each table */

static hotbed_status check_eval_table(
    workload_run *run, uint32_t batch, uint32_t table, const float *output, workload_row_buffers *b,
    float *rows) {
    const workload_shape *shape = &run->input->shape;
    uint64_t first = (uint64_t)table * shape->samples;
    const int64_t *keys = run->input->keys + batch * workload_keys_a_step(shape);
    uint64_t positions[POSITIONS];
    uint64_t wanted[POSITIONS];
    for (uint32_t i = 0; i < POSITIONS; i++) {
        positions[i] = first + workload_mix((uint64_t)table * POSITIONS + i + 1) % shape->samples;
        wanted[i] = (uint64_t)keys[positions[i]];
    }
    HOTBED_TRY(workload_rows_read(
        run->storage, table, POSITIONS, wanted, shape->dim, b, rows, NULL, run->stream));
    for (uint32_t i = 0; i < POSITIONS; i++)
        HOTBED_TRY(compare(
            "eval output", table, wanted[i], output + positions[i] * shape->dim,
            rows + (size_t)i * shape->dim, shape->dim));
    return HOTBED_OK;
}

static hotbed_status check_eval_with(
    workload_run *run, uint32_t batch, const float *output, float *rows) {
    const workload_shape *shape = &run->input->shape;
    workload_row_buffers b;
    HOTBED_TRY(check_written(output, workload_keys_a_step(shape) * shape->dim));
    HOTBED_TRY(workload_rows_alloc(POSITIONS, shape->dim, 0, run->stream, &b));
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
