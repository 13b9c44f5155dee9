/* bench/bench_update.c - backward: gradient sums fused with each optimizer, and both steps separately. */
#include "bench/bench_step.h"
#include "hotbed/optimizer.h"

#include <stdlib.h>

/* Random gradients on the device. */
static float *gradients(bench_state *state, uint64_t elements) {
    float *values = calloc(elements, sizeof *values);
    for (uint64_t i = 0; values && i < elements; i++)
        values[i] = (float)(bench_key(i) >> 40) * 0x1p-24F - 0.5F;
    float *sent = bench_upload(state, values, elements * sizeof *values);
    if (!values)
        bench_skip(state, "no memory");
    free(values);
    return sent;
}

/* The inputs of an update besides the table. */
typedef struct update_buffers {
    void *dedup, *sums;
    size_t sums_bytes;
    float *gradient;
    float *unique_gradient; /* not for a fused update */
    uint64_t *numbers;
} update_buffers;

/* The part that is timed: the fused update, or one of its two steps. */
typedef enum update_part { IN_ONE, REDUCE, APPLY } update_part;

static bool make_buffers(
    bench_state *state, const bench_step *step, update_part part, update_buffers *buffers) {
    uint64_t n = step->view.batch.bound;
    *buffers = (update_buffers){0};
    buffers->sums_bytes = step->update->scratch(n, step->table.dim);
    buffers->dedup = bench_alloc(state, step->unique->scratch(n, 1));
    buffers->sums = bench_alloc(state, buffers->sums_bytes);
    buffers->gradient = gradients(state, n * step->table.dim);
    if (part != IN_ONE)
        buffers->unique_gradient = bench_alloc(state, n * step->table.dim * sizeof(float));
    buffers->numbers = malloc(n * sizeof *buffers->numbers);
    if (!buffers->numbers)
        bench_skip(state, "no memory");
    return buffers->dedup && (buffers->sums || buffers->sums_bytes == 0) && buffers->gradient &&
           (buffers->unique_gradient || part == IN_ONE) && buffers->numbers;
}

static hotbed_status update_in_one(
    const bench_step *step, const hotbed_optimizer_view *optimizer, const update_buffers *buffers) {
    hotbed_gradient_view gradient = {buffers->gradient, step->table.dim, HOTBED_F32, NULL};
    return step->update->update(
        &step->view, optimizer, gradient, step->table.dim, buffers->sums, step->stream);
}

static hotbed_status reduce(
    const bench_step *step, const hotbed_optimizer_view *optimizer, const update_buffers *buffers) {
    hotbed_gradient_view gradient = {buffers->gradient, step->table.dim, HOTBED_F32, NULL};
    hotbed_sums_view sums = {.data = buffers->unique_gradient, .stride = step->table.dim};
    return step->update->reduce(
        &step->view, optimizer, gradient, sums, step->table.dim, buffers->sums, step->stream);
}

static hotbed_status apply(
    const bench_step *step, const hotbed_optimizer_view *optimizer, const update_buffers *buffers) {
    hotbed_gradient_view sums = {buffers->unique_gradient, step->table.dim, HOTBED_F32, NULL};
    return step->update->apply(
        &step->view, optimizer, sums, step->table.dim, buffers->sums, step->stream);
}

/* One iteration: prefetch the next batch, then time the update or a part of it. */
static bool iterate(
    bench_state *state, bench_step *step, const hotbed_optimizer_view *optimizer,
    const update_buffers *buffers, update_part part, uint64_t round) {
    double alpha = (double)bench_arg(state, 2) * 0.01;
    bench_zipf(alpha, step->view.batch.bound, step->view.batch.bound, round, buffers->numbers);
    if (!bench_step_batch(state, step, buffers->numbers) ||
        !bench_step_prefetch(state, step, buffers->dedup))
        return false;
    bool ok = part != APPLY || bench_ok(state, reduce(step, optimizer, buffers));
    bench_flush_cache(step->stream);
    bench_start(step->stream);
    ok = ok && bench_ok(
                   state, part == IN_ONE   ? update_in_one(step, optimizer, buffers)
                          : part == REDUCE ? reduce(step, optimizer, buffers)
                                           : apply(step, optimizer, buffers));
    bench_stop(step->stream, state);
    if (part == REDUCE)
        ok = ok && bench_ok(state, apply(step, optimizer, buffers)); /* releases the pins */
    return ok;
}

/* Bytes per unique row: row and states that the optimizer reads and writes, or the sum. */
static uint64_t bytes_of(hotbed_optimizer_kind kind, update_part part, uint64_t row) {
    uint64_t moved = kind == HOTBED_OPT_ROWWISE_ADAGRAD
                         ? 2 * row + 64
                         : 2 * row * (1 + hotbed_optimizer_states(kind));
    if (part == REDUCE)
        return row;
    return part == APPLY ? moved + row + 16 : moved + 16;
}

/* Arguments: n, dim, exponent of the power law in hundredths. */
static void update(bench_state *state, hotbed_optimizer_kind kind, update_part part) {
    bench_step step;
    update_buffers buffers;
    uint64_t n = (uint64_t)bench_arg(state, 0);
    bench_step_options options = {.slots = 2 * n, .bound = n};
    hotbed_optimizer_view optimizer = {
        .kind = kind,
        .form = hotbed_state_form_of((uint32_t)kind),
        .beta1 = 0.9F,
        .beta2 = 0.999F,
        .eps = 1e-8F};
    options.dim = (uint32_t)bench_arg(state, 1);
    options.states = hotbed_optimizer_states(kind);
    if (!bench_step_create(state, &options, &step))
        return;
    bool ok = make_buffers(state, &step, part, &buffers);
    for (uint64_t round = 0; ok && bench_next(state); round++)
        ok = iterate(state, &step, &optimizer, &buffers, part, round);
    if (ok) {
        uint64_t uniques = bench_step_num_uniques(state, &step);
        uint64_t row = options.dim * sizeof(float);
        bench_counter(state, "uniques", (double)uniques);
        bench_items(state, (int64_t)n);
        /* read gradients and positions, read and write rows and states */
        uint64_t in = part == APPLY ? 0 : n * (row + 4);
        bench_bytes(state, (int64_t)(in + uniques * bytes_of(kind, part, row)));
    }
    free(buffers.numbers);
}

static void sgd(bench_state *state) {
    update(state, HOTBED_OPT_SGD, IN_ONE);
}

static void adam(bench_state *state) {
    update(state, HOTBED_OPT_ADAM, IN_ONE);
}

static void adagrad(bench_state *state) {
    update(state, HOTBED_OPT_ADAGRAD, IN_ONE);
}

static void rowwise_adagrad(bench_state *state) {
    update(state, HOTBED_OPT_ROWWISE_ADAGRAD, IN_ONE);
}

/* Gradient accumulation: the sums of a batch, and a step with sums. */
static void reduce_alone(bench_state *state) {
    update(state, HOTBED_OPT_ADAM, REDUCE);
}

static void apply_alone(bench_state *state) {
    update(state, HOTBED_OPT_ADAM, APPLY);
}

/* --- rows in the caller's memory ------------------------------------------------------------ */

/* Adam on n rows in dense arrays. */
static void given_rows(bench_state *state) {
    hotbed_stream *stream = bench_stream(state);
    hotbed_optimizer optimizer;
    hotbed_optimizer_clock clock;
    hotbed_row_update rows = {.size = sizeof rows};
    hotbed_optimizer_init(&optimizer);
    optimizer.kind = HOTBED_OPT_ADAM;
    hotbed_optimizer_clock_init(&clock, &optimizer);
    rows.n = (uint64_t)bench_arg(state, 0);
    rows.dim = (uint32_t)bench_arg(state, 1);
    hotbed_optimizer_clock *sent = bench_upload(state, &clock, sizeof clock);
    uint64_t elements = rows.n * rows.dim;
    rows.rows.weights = gradients(state, elements);
    rows.rows.states[0] = gradients(state, elements);
    rows.rows.states[1] = bench_alloc(state, elements * sizeof(float));
    float *gradient = gradients(state, elements);
    rows.gradients = gradient;
    bool ok =
        sent && rows.rows.weights && rows.rows.states[0] && rows.rows.states[1] && gradient &&
        bench_ok(state, hotbed_fill(rows.rows.states[1], 0, elements * sizeof(float), stream));
    while (ok && bench_next(state)) {
        bench_flush_cache(stream);
        bench_start(stream);
        ok = bench_ok(state, hotbed_optimizer_step(&optimizer, sent, stream)) &&
             bench_ok(state, hotbed_optimizer_update_rows(&optimizer, sent, &rows, stream));
        bench_stop(stream, state);
    }
    bench_items(state, (int64_t)rows.n);
    /* read the gradient, read and write row and two states */
    bench_bytes(state, (int64_t)(elements * 7 * sizeof(float)));
}

static const char *const names[] = {"n", "dim", "alpha_x100", NULL};
static const int64_t host[] = {50000, 128, 105, INT64_MIN};
static const int64_t cuda[] = {1048570, 128, 105, 1048570, 128, 0, 1048570, 16, 105, INT64_MIN};

static const char *const rows_names[] = {"n", "dim", NULL};
static const int64_t rows_host[] = {20000, 128, INT64_MIN};
static const int64_t rows_cuda[] = {1 << 19, 128, 1 << 19, 16, INT64_MIN};

const bench_case bench_update_cases[] = {
    {"update/sgd", sgd, names, host, cuda},
    {"update/adam", adam, names, host, cuda},
    {"update/adagrad", adagrad, names, host, cuda},
    {"update/rowwise_adagrad", rowwise_adagrad, names, host, cuda},
    {"update/reduce", reduce_alone, names, host, cuda},
    {"update/apply_adam", apply_alone, names, host, cuda},
    {"update/given_rows_adam", given_rows, rows_names, rows_host, rows_cuda},
    {NULL, NULL, NULL, NULL, NULL},
};
