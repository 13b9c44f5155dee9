/* bench/bench_update.c - backward: sums of gradients fused with each optimiser. */
#include "bench/bench_step.h"

#include <stdlib.h>

/* Random gradients on the device. */
static float *gradients(bench_state *state, uint64_t elements) {
    float *values = malloc(elements * sizeof *values);
    for (uint64_t i = 0; values && i < elements; i++)
        values[i] = (float)(bench_key(i) >> 40) * 0x1p-24F - 0.5F;
    float *sent = bench_upload(state, values, elements * sizeof *values);
    if (!values)
        bench_skip(state, "no memory");
    free(values);
    return sent;
}

/* What an update needs beside the table. */
typedef struct update_room {
    void *dedup, *sums;
    size_t dedup_bytes, sums_bytes;
    float *gradient;
    uint64_t *numbers;
} update_room;

static bool make_room(bench_state *state, const bench_step *step, update_room *room) {
    uint64_t n = step->view.bound;
    *room = (update_room){0};
    room->dedup_bytes = step->unique->scratch(n, 1);
    room->sums_bytes = step->update->scratch(n, step->table.dim);
    room->dedup = bench_alloc(state, room->dedup_bytes);
    room->sums = bench_alloc(state, room->sums_bytes);
    room->gradient = gradients(state, n * step->table.dim);
    room->numbers = malloc(n * sizeof *room->numbers);
    if (!room->numbers)
        bench_skip(state, "no memory");
    return room->dedup && (room->sums || room->sums_bytes == 0) && room->gradient && room->numbers;
}

/* One iteration: another batch, prefetched; then the update alone is timed. */
static bool iterate(
    bench_state *state, bench_step *step, const hotbed_optimizer_view *optimizer,
    const update_room *room, uint64_t round) {
    double alpha = (double)bench_arg(state, 2) * 0.01;
    bench_zipf(alpha, step->view.bound, step->view.bound, round, room->numbers);
    if (!bench_step_batch(state, step, room->numbers) ||
        !bench_step_prefetch(state, step, room->dedup, room->dedup_bytes))
        return false;
    hotbed_gradient_view gradient = {room->gradient, step->table.dim};
    bench_flush_cache(step->stream);
    bench_start(step->stream);
    bool ok = bench_ok(
        state, step->update->update(
                   &step->view, optimizer, gradient, step->table.dim, room->sums, room->sums_bytes,
                   step->stream));
    bench_stop(step->stream, state);
    return ok;
}

/* Arguments: n, dim, exponent of the keys' power law in hundredths. */
static void update(bench_state *state, hotbed_optimizer_kind kind) {
    bench_step step;
    update_room room;
    uint64_t n = (uint64_t)bench_arg(state, 0);
    bench_step_options options = {.slots = 2 * n, .bound = n};
    hotbed_optimizer_view optimizer = {.kind = kind, .beta1 = 0.9F, .beta2 = 0.999F, .eps = 1e-8F};
    options.dim = (uint32_t)bench_arg(state, 1);
    options.states = kind == HOTBED_OPT_ADAM ? 2 : kind == HOTBED_OPT_SGD ? 0 : 1;
    if (!bench_step_create(state, &options, &step))
        return;
    bool ok = make_room(state, &step, &room);
    for (uint64_t round = 0; ok && bench_next(state); round++)
        ok = iterate(state, &step, &optimizer, &room, round);
    if (ok) {
        uint64_t uniques = bench_step_num_uniques(state, &step);
        uint64_t row = options.dim * sizeof(float);
        uint64_t moved =
            kind == HOTBED_OPT_ROWWISE_ADAGRAD ? 2 * row + 64 : 2 * row * (1 + options.states);
        bench_counter(state, "uniques", (double)uniques);
        bench_items(state, (int64_t)n);
        /* gradients and positions in, rows with their states in and out */
        bench_bytes(state, (int64_t)(n * (row + 4) + uniques * (moved + 16)));
    }
    free(room.numbers);
}

static void sgd(bench_state *state) {
    update(state, HOTBED_OPT_SGD);
}

static void adam(bench_state *state) {
    update(state, HOTBED_OPT_ADAM);
}

static void adagrad(bench_state *state) {
    update(state, HOTBED_OPT_ADAGRAD);
}

static void rowwise_adagrad(bench_state *state) {
    update(state, HOTBED_OPT_ROWWISE_ADAGRAD);
}

static const char *const names[] = {"n", "dim", "alpha_x100", NULL};
static const int64_t host[] = {50000, 128, 105, INT64_MIN};
static const int64_t cuda[] = {1048570, 128, 105, 1048570, 128, 0, 1048570, 16, 105, INT64_MIN};

const bench_case bench_update_cases[] = {
    {"update/sgd", sgd, names, host, cuda},
    {"update/adam", adam, names, host, cuda},
    {"update/adagrad", adagrad, names, host, cuda},
    {"update/rowwise_adagrad", rowwise_adagrad, names, host, cuda},
    {NULL, NULL, NULL, NULL, NULL},
};
