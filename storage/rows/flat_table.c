/* storage/rows/flat_table.c - flat tables (hotbed/flat_table.h): options, memory, and rows through
 * kernels or a staging buffer. */
#include "storage/rows/flat_table.h"

#include "base/check.h"
#include "base/error.h"
#include "base/options.h"
#include "base/stream.h"
#include "storage/rows/rows_kernels.h"
#include "storage/rows/stage_kernels.h"
#include "storage/step/row_layout.h"
#include "storage/types.h"

#define CAPACITY_MOST ((uint64_t)1 << 36)
enum { STAGING_BYTES = 8 << 20 }; /* takes a few hundred microseconds on the host link */

struct hotbed_flat_table {
    const hotbed_rows_kernels *rows_kernels;
    const hotbed_stage_kernels *stage_kernels;
    hotbed_backend backend;
    int device;
    hotbed_optimizer_kind optimizer; /* 0: rows have no optimizer state */
    hotbed_table_view view;          /* `rows` is the allocation */
    hotbed_memory memory;
    /* If kernels cannot address the rows: */
    uint64_t chunk; /* rows that the staging buffer holds; 0: kernels use the rows directly */
    hotbed_memory staging;               /* pinned: descriptor, slots, rows */
    hotbed_memory placing;               /* device: places */
    hotbed_stage_descriptor *descriptor; /* in staging */
    uint64_t *staged_slots;              /* in staging */
    uint8_t *staged_rows;                /* in staging */
};

static void kernels_of(hotbed_flat_table *table) {
    table->rows_kernels = HOTBED_OF_BACKEND(table->backend, hotbed_rows_kernels);
    table->stage_kernels = HOTBED_OF_BACKEND(table->backend, hotbed_stage_kernels);
}

static hotbed_status check_options(const hotbed_flat_table_options *o) {
    HOTBED_TRY(hotbed_check_range("dim", o->dim, 1, HOTBED_DIM_MOST));
    HOTBED_TRY(hotbed_check_range("capacity", o->capacity, 1, CAPACITY_MOST));
    if (o->dtype != 0 && hotbed_dtype_row_bytes(o->dtype, 1) == 0)
        return hotbed_fail_unknown("dtype", o->dtype);
    HOTBED_TRY(hotbed_state_dtype_check(o->state_dtype));
    if (o->optimizer != 0 && hotbed_optimizer_describe(o->optimizer) == NULL)
        return hotbed_fail_unknown("optimizer", o->optimizer);
    if (o->memory != 0 && (o->memory < HOTBED_MEMORY_DEVICE || o->memory > HOTBED_MEMORY_FILE))
        return hotbed_fail_unknown("memory", o->memory);
    return HOTBED_OK;
}

/* Clear memory whose rows have padding: kernels read it as part of words. */
static hotbed_status clear_gaps(hotbed_flat_table *table, hotbed_stream *stream) {
    const hotbed_table_view *view = &table->view;
    if (!hotbed_row_has_gaps(view) || hotbed_memory_is_fresh_zero(&table->memory))
        return HOTBED_OK;
    HOTBED_TRY(hotbed_fill(table->memory.data, 0, view->capacity * view->row_bytes, stream));
    return hotbed_stream_finish(stream);
}

/* Layout of the staging buffer: descriptor, slots, rows, each aligned to 256 bytes. */
static hotbed_status allocate_staging(
    hotbed_flat_table *table, uint64_t chunk, hotbed_stream *stream) {
    uint64_t row_bytes = table->view.row_bytes;
    if (chunk == 0)
        chunk = STAGING_BYTES / row_bytes;
    if (chunk > table->view.capacity)
        chunk = table->view.capacity;
    uint64_t descriptor_bytes = hotbed_round_up(sizeof(hotbed_stage_descriptor), 256);
    uint64_t slot_bytes = hotbed_round_up(chunk * sizeof(uint64_t), 256);
    HOTBED_TRY(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_PINNED, descriptor_bytes + slot_bytes + chunk * row_bytes, NULL,
        &table->staging));
    HOTBED_TRY(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_DEVICE, chunk * sizeof(uint64_t), NULL, &table->placing));
    uint8_t *base = table->staging.data;
    table->descriptor = table->staging.data;
    table->staged_slots = (uint64_t *)(void *)(base + descriptor_bytes);
    table->staged_rows = base + descriptor_bytes + slot_bytes;
    table->chunk = chunk;
    return HOTBED_OK;
}

static hotbed_status create(
    const hotbed_flat_table_options *options, bool stage, uint64_t chunk, hotbed_stream *stream,
    hotbed_flat_table **out) {
    hotbed_flat_table_options o;
    HOTBED_TRY(hotbed_check_pointer("out", out));
    *out = NULL;
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    HOTBED_TRY(HOTBED_OPTIONS_READ(&o, hotbed_flat_table_options, dtype, options));
    HOTBED_TRY(check_options(&o));
    hotbed_flat_table *table = hotbed_new(sizeof *table);
    HOTBED_TRY_MEMORY(table, "a flat table");
    table->backend = hotbed_stream_backend(stream);
    table->device = hotbed_stream_device(stream);
    kernels_of(table);
    table->optimizer = o.optimizer;
    table->view.dim = o.dim;
    table->view.dtype = (uint32_t)(o.dtype == 0 ? HOTBED_F32 : o.dtype);
    table->view.capacity = table->view.slots = o.capacity;
    hotbed_row_lay_out(&table->view, o.optimizer, o.state_dtype);
    hotbed_memory_kind kind = o.memory == 0 ? HOTBED_MEMORY_DEVICE : o.memory;
    bool reached = kind == HOTBED_MEMORY_DEVICE || kind == HOTBED_MEMORY_PINNED;
    hotbed_status status = hotbed_memory_alloc(
        stream, kind, o.capacity * table->view.row_bytes, o.directory, &table->memory);
    if (status == HOTBED_OK && !reached && stage)
        status = allocate_staging(table, chunk, stream);
    if (status == HOTBED_OK)
        status = clear_gaps(table, stream);
    if (status != HOTBED_OK) {
        hotbed_flat_table_destroy(table);
        return status;
    }
    table->view.rows = table->memory.data;
    *out = table;
    return HOTBED_OK;
}

hotbed_status hotbed_flat_table_create(
    const hotbed_flat_table_options *options, hotbed_stream *stream, hotbed_flat_table **out) {
    bool stage = stream != NULL && hotbed_stream_backend(stream) != HOTBED_BACKEND_HOST;
    return create(options, stage, 0, stream, out);
}

hotbed_status hotbed_flat_table_create_staged(
    const hotbed_flat_table_options *options, uint64_t chunk, hotbed_stream *stream,
    hotbed_flat_table **out) {
    return create(options, true, chunk, stream, out);
}

void hotbed_flat_table_destroy(hotbed_flat_table *table) {
    if (table == NULL)
        return;
    hotbed_memory_free(&table->memory);
    hotbed_memory_free(&table->staging);
    hotbed_memory_free(&table->placing);
    hotbed_delete(table);
}

/* --- rows ------------------------------------------------------------------------------------- */

static hotbed_status make_args(
    const hotbed_flat_table *table, uint64_t n, const uint64_t *slots, const hotbed_rows *rows,
    hotbed_stream *stream, hotbed_rows_args *out) {
    HOTBED_TRY(hotbed_check_pointer("table", table));
    HOTBED_TRY(hotbed_check_stream(stream, "table", table->backend, table->device));
    HOTBED_TRY(hotbed_check_pointer("rows", rows));
    HOTBED_TRY(hotbed_check_array("slots", slots, n));
    if (rows->scores != NULL || rows->times != NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "rows: a flat table has no scores or times");
    for (uint32_t s = table->view.states; s < 2; s++)
        if (rows->states[s] != NULL)
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, "states", s, table->view.states,
                "rows: states[%u] is set, but a row has %u states", s, table->view.states);
    hotbed_rows_args args = {
        .table = table->view,
        .faults = hotbed_stream_table_faults(stream, NULL),
        .keys = slots,
        .rows = {.weights = rows->weights, .states = {rows->states[0], rows->states[1]}},
        .n = n,
    };
    *out = args;
    return HOTBED_OK;
}

/* Stream callback: move the described parts between the staging buffer and the table. */
static void move_staged(void *argument) {
    const hotbed_flat_table *table = argument;
    const hotbed_table_view *view = &table->view;
    const hotbed_stage_descriptor descriptor = *table->descriptor;
    size_t offset[HOTBED_STAGE_PARTS] = {0, view->state_offset[0], view->state_offset[1]};
    size_t bytes[HOTBED_STAGE_PARTS] = {
        hotbed_weights_bytes(view->dtype, view->dim), view->state_bytes[0], view->state_bytes[1]};
    for (uint64_t i = 0; i < descriptor.n; i++) {
        if (descriptor.slots[i] == HOTBED_SLOT_NONE)
            continue;
        uint8_t *row = view->rows + descriptor.slots[i] * view->row_bytes;
        uint8_t *staged = table->staged_rows + i * view->row_bytes;
        for (uint32_t p = 0; p < HOTBED_STAGE_PARTS; p++) {
            if ((descriptor.parts >> p & 1U) == 0)
                continue;
            if (descriptor.store != 0)
                memcpy(row + offset[p], staged + offset[p], bytes[p]);
            else
                memcpy(staged + offset[p], row + offset[p], bytes[p]);
        }
    }
}

/* Arguments for rows first .. first+count-1 of the call. */
static hotbed_rows_args chunk_args(
    const hotbed_flat_table *table, const hotbed_rows_args *all, uint64_t first, uint64_t count) {
    hotbed_rows_args args = *all;
    const hotbed_table_view *view = &table->view;
    args.table.rows = table->staged_rows;
    args.table.slots = count;
    args.keys = table->placing.data;
    args.n = count;
    if (args.rows.weights != NULL)
        args.rows.weights += first * hotbed_weights_bytes(view->dtype, view->dim);
    for (uint32_t s = 0; s < 2; s++)
        if (args.rows.states[s] != NULL)
            args.rows.states[s] += first * view->state_bytes[s];
    return args;
}

static hotbed_status move_in_chunks(
    hotbed_flat_table *table, const hotbed_rows_args *all, bool store, hotbed_stream *stream) {
    uint32_t parts = (all->rows.weights != NULL ? 1U : 0U) |
                     (all->rows.states[0] != NULL ? 2U : 0U) |
                     (all->rows.states[1] != NULL ? 4U : 0U);
    for (uint64_t first = 0; parts != 0 && first < all->n; first += table->chunk) {
        uint64_t left = all->n - first;
        uint64_t count = left < table->chunk ? left : table->chunk;
        hotbed_stage_args stage = {
            .descriptor =
                {.n = count, .store = store, .parts = parts, .slots = table->staged_slots},
            .pinned = table->descriptor,
            .slots = all->keys + first,
            .places = table->placing.data,
            .capacity = table->view.capacity,
        };
        hotbed_rows_args args = chunk_args(table, all, first, count);
        HOTBED_TRY(table->stage_kernels->write(&stage, stream));
        if (store)
            HOTBED_TRY(table->rows_kernels->store(&args, stream));
        HOTBED_TRY(hotbed_stream_call(stream, move_staged, table));
        if (!store)
            HOTBED_TRY(table->rows_kernels->load(&args, stream));
    }
    return HOTBED_OK;
}

static hotbed_status move_rows(
    hotbed_flat_table *table, uint64_t n, const uint64_t *slots, const hotbed_rows *rows,
    bool store, hotbed_stream *stream) {
    hotbed_rows_args args;
    HOTBED_TRY(make_args(table, n, slots, rows, stream, &args));
    if (n == 0)
        return HOTBED_OK;
    if (table->chunk > 0)
        return move_in_chunks(table, &args, store, stream);
    return store ? table->rows_kernels->store(&args, stream)
                 : table->rows_kernels->load(&args, stream);
}

hotbed_status hotbed_flat_table_load(
    hotbed_flat_table *table, uint64_t n, const uint64_t *slots, const hotbed_rows *rows,
    hotbed_stream *stream) {
    return move_rows(table, n, slots, rows, false, stream);
}

hotbed_status hotbed_flat_table_store(
    hotbed_flat_table *table, uint64_t n, const uint64_t *slots, const hotbed_rows *rows,
    hotbed_stream *stream) {
    return move_rows(table, n, slots, rows, true, stream);
}

hotbed_status hotbed_flat_table_read(const hotbed_flat_table *table, hotbed_flat_table_view *out) {
    HOTBED_TRY(hotbed_check_pointer("table", table));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_flat_table_view"));
    hotbed_flat_table_view view = {
        .rows = table->view.rows,
        .row_bytes = table->view.row_bytes,
        .capacity = table->view.capacity,
        .state_offsets = {table->view.state_offset[0], table->view.state_offset[1]},
        .dim = table->view.dim,
        .state_dim =
            {hotbed_optimizer_state_dim(table->optimizer, 0, table->view.dim),
             hotbed_optimizer_state_dim(table->optimizer, 1, table->view.dim)},
        .dtype = (hotbed_dtype)table->view.dtype,
        .optimizer = table->optimizer,
        .memory = table->memory.kind,
        .state_dtypes =
            {(hotbed_dtype)table->view.state_dtype[0], (hotbed_dtype)table->view.state_dtype[1]},
    };
    hotbed_output_write(out, &view, sizeof view);
    return HOTBED_OK;
}
