/* storage/optimizer.c - hotbed_optimizer_*(): optimizer steps on rows outside of storages; argument
 * checks. */
#include "hotbed/optimizer.h"

#include "base/check.h"
#include "base/error.h"
#include "base/options.h"
#include "base/stream.h"
#include "storage/step/row_layout.h"
#include "storage/step/update_kernels.h"
#include "storage/types.h"

static const hotbed_update_kernels *kernels_of(const hotbed_stream *stream) {
    return HOTBED_OF_BACKEND(hotbed_stream_backend(stream), hotbed_update_kernels);
}

static hotbed_status check_call(
    const hotbed_optimizer *optimizer, const hotbed_optimizer_clock *clock,
    const hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer("optimizer", optimizer));
    HOTBED_TRY(hotbed_check_pointer("clock", clock));
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    return hotbed_optimizer_check(optimizer);
}

hotbed_status hotbed_optimizer_step(
    const hotbed_optimizer *optimizer, hotbed_optimizer_clock *clock, hotbed_stream *stream) {
    HOTBED_TRY(check_call(optimizer, clock, stream));
    hotbed_optimizer_view view = hotbed_optimizer_make(optimizer);
    return kernels_of(stream)->count_step(&view, clock, stream);
}

/* Check the distance in bytes between rows of a part. Scales of int8 and fp8 rows are read in aligned words. */
static hotbed_status check_row_bytes(const hotbed_row_update *u, hotbed_optimizer_kind kind) {
    const uint32_t states = hotbed_optimizer_states(kind);
    const bool scaled = hotbed_scale_span((uint32_t)u->dtype, u->dim) != 0;
    if (scaled && (uintptr_t)u->rows.weights % sizeof(float) != 0)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "weights", (double)((uintptr_t)u->rows.weights % sizeof(float)),
            "rows: weights of %s begin %u bytes after a multiple of 4", hotbed_dtype_name(u->dtype),
            (unsigned)((uintptr_t)u->rows.weights % sizeof(float)));
    uint64_t unit = scaled ? sizeof(float) : hotbed_dtype_bytes(u->dtype);
    for (uint32_t s = 0; s < states; s++) {
        const uint64_t bytes =
            hotbed_dtype_bytes(hotbed_optimizer_state_dtype(kind, s, u->state_dtype));
        unit = bytes > unit ? bytes : unit;
    }
    uint64_t least = hotbed_dtype_row_bytes(u->dtype, u->dim);
    if (scaled && u->row_bytes == 0 && least % unit != 0)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "row_bytes", 0.0,
            "row_bytes is 0, but %s rows of %u elements have %llu bytes, no multiple of 4; set "
            "row_bytes to the distance between rows, a multiple of 4",
            hotbed_dtype_name(u->dtype), u->dim, (unsigned long long)least);
    for (uint32_t s = 0; s < states; s++) {
        const uint64_t bytes = hotbed_state_bytes(kind, s, u->state_dtype, u->dim);
        least = bytes > least ? bytes : least;
    }
    if (u->row_bytes != 0 && (u->row_bytes < least || u->row_bytes % unit != 0))
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "row_bytes", u->row_bytes,
            "row_bytes %llu is less than a row's longest part (%llu bytes) or no multiple of %llu",
            (unsigned long long)u->row_bytes, (unsigned long long)least, (unsigned long long)unit);
    return HOTBED_OK;
}

static hotbed_status check_update(const hotbed_row_update *u, hotbed_optimizer_kind kind) {
    uint32_t states = hotbed_optimizer_states(kind);
    HOTBED_TRY(hotbed_check_range("dim", u->dim, 1, HOTBED_DIM_MOST));
    if (hotbed_dtype_row_bytes(u->dtype, u->dim) == 0)
        return hotbed_fail_unknown("dtype", u->dtype);
    if (u->rows.scores != NULL || u->rows.times != NULL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "rows: an optimizer does not change scores or times");
    for (uint32_t s = states; s < 2; s++)
        if (u->rows.states[s] != NULL)
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, "states", s, states,
                "rows: states[%u] is set, but optimizer %s has %u states", s,
                hotbed_optimizer_name(kind), states);
    HOTBED_TRY(hotbed_state_dtype_check(u->state_dtype));
    HOTBED_TRY(check_row_bytes(u, kind));
    if (u->n == 0)
        return HOTBED_OK;
    if (u->rows.weights == NULL || u->gradients == NULL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "n is %llu, but %s is NULL", (unsigned long long)u->n,
            u->rows.weights == NULL ? "rows.weights" : "gradients");
    if (u->keys != NULL && u->name == NULL)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, "name",
            "keys is set, but name is NULL; random rounding depends on a table's name");
    for (uint32_t s = 0; s < states; s++)
        if (u->rows.states[s] == NULL)
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, "states", s, states,
                "rows: states[%u] is NULL, but optimizer %s has %u states", s,
                hotbed_optimizer_name(kind), states);
    return HOTBED_OK;
}

/* Distance in bytes between rows of a state. */
static uint64_t state_bytes(
    const hotbed_optimizer *optimizer, const hotbed_row_update *u, uint32_t state) {
    return u->row_bytes != 0 ? u->row_bytes
                             : hotbed_state_bytes(optimizer->kind, state, u->state_dtype, u->dim);
}

static uint32_t state_dtype(
    const hotbed_optimizer *optimizer, const hotbed_row_update *u, uint32_t state) {
    return (uint32_t)hotbed_optimizer_state_dtype(optimizer->kind, state, u->state_dtype);
}

hotbed_status hotbed_optimizer_update_rows(
    const hotbed_optimizer *optimizer, const hotbed_optimizer_clock *clock,
    const hotbed_row_update *update, hotbed_stream *stream) {
    hotbed_row_update u;
    HOTBED_TRY(check_call(optimizer, clock, stream));
    HOTBED_TRY(HOTBED_OPTIONS_READ(&u, hotbed_row_update, dtype, update));
    if (u.dtype == 0)
        u.dtype = HOTBED_F32;
    HOTBED_TRY(check_update(&u, optimizer->kind));
    if (u.n == 0)
        return HOTBED_OK;
    uint64_t dense = hotbed_dtype_row_bytes(u.dtype, u.dim);
    uint8_t *state0 = u.rows.states[0] == NULL ? u.rows.weights : (uint8_t *)u.rows.states[0];
    uint8_t *state1 = u.rows.states[1] == NULL ? state0 : (uint8_t *)u.rows.states[1];
    hotbed_update_rows_args args = {
        .o = hotbed_optimizer_make(optimizer),
        .clock = clock,
        .row =
            {.dim = u.dim,
             .dtype = (uint32_t)u.dtype,
             .random = u.keys != NULL,
             .state_dtype = {state_dtype(optimizer, &u, 0), state_dtype(optimizer, &u, 1)}},
        .keys = u.keys,
        .weights = u.rows.weights,
        .states = {state0, state1},
        .weights_bytes = u.row_bytes == 0 ? dense : u.row_bytes,
        .state_bytes = {state_bytes(optimizer, &u, 0), state_bytes(optimizer, &u, 1)},
        .gradients = u.gradients,
        .n = u.n,
    };
    const hotbed_initializer none = {0};
    if (u.keys != NULL)
        args.row.init = hotbed_init_make(&none, u.name, u.seed);
    args.o.narrow = u.keys != NULL || hotbed_table_has_narrow_states(&args.row);
    return kernels_of(stream)->update_rows(&args, stream);
}
