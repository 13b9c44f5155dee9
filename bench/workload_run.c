/* bench/workload_run.c - a workload's storage and buffers, and its steps. */
#include "bench/workload.h"

#include "base/error.h"

#include <math.h>

void workload_storage_options(
    const workload *what, const workload_shape *shape, workload_tables *tables,
    hotbed_storage_options *out) {
    for (uint32_t t = 0; t < shape->tables; t++) {
        hotbed_table_options *table = &tables->options[t];
        *table = (hotbed_table_options){.size = sizeof *table};
        (void)snprintf(tables->names[t], sizeof tables->names[t], "t%u", t);
        table->name = tables->names[t];
        table->dim = shape->dim;
        table->capacity = (uint64_t)ceil((double)shape->table_rows[t] * (1 + shape->spare));
        table->kind = what->kind;
        table->dtype = what->dtype;
        table->state_dtype = what->state_dtype;
        table->rounding = what->random ? HOTBED_ROUND_STOCHASTIC : HOTBED_ROUND_NEAREST;
        table->track_changes = what->tracks;
        table->score = what->score;
        table->initializer.kind = HOTBED_INIT_UNIFORM;
        table->initializer.lower = -0.05F;
        table->initializer.upper = 0.05F;
    }
    hotbed_storage_options_init(out);
    out->num_tables = shape->tables;
    out->tables = tables->options;
    out->pooling = shape->pooled ? HOTBED_POOL_SUM : HOTBED_POOL_NONE;
    out->optimizer.kind = what->optimizer;
    out->seed = 20;
    out->mode = HOTBED_MODE_HBM_DIRECT;
}

uint64_t workload_upper_rows(const workload *what, const workload_input *input, uint32_t t) {
    if (!workload_tiered(what))
        return input->shape.table_rows[t];
    bool cache = what->mode == HOTBED_MODE_CACHE;
    uint64_t of = cache ? input->distinct[t] : input->shape.rows;
    uint64_t rows = (uint64_t)ceil(what->upper * (double)of);
    return rows < input->shape.rows ? rows : input->shape.rows;
}

static hotbed_status create_storage(workload_run *run) {
    const workload_shape *shape = &run->input->shape;
    workload_tables tables;
    hotbed_storage_options options;
    workload_storage_options(run->what, shape, &tables, &options);
    options.mode = run->what->mode;
    for (uint32_t t = 0; t < shape->tables && workload_tiered(run->what); t++) {
        tables.options[t].upper_capacity = workload_upper_rows(run->what, run->input, t);
        tables.options[t].insertion = run->insertion;
    }
    HOTBED_TRY(hotbed_storage_create(&options, run->stream, &run->storage));
    return hotbed_ticket_create(
        run->storage, workload_keys_a_step(shape), shape->samples, run->stream, &run->ticket);
}

static hotbed_status create_buffers(workload_run *run) {
    const workload_shape *shape = &run->input->shape;
    size_t keys = workload_keys_a_step(shape) * sizeof(int64_t);
    size_t rows = workload_bags_a_step(shape) * shape->dim * sizeof(float);
    size_t offsets = (workload_bags_a_step(shape) + 1) * sizeof(int64_t);
    hotbed_stream *s = run->stream;
    const hotbed_memory_kind device = HOTBED_MEMORY_DEVICE;
    HOTBED_TRY(hotbed_memory_alloc(s, device, keys * shape->batches, NULL, &run->keys));
    HOTBED_TRY(hotbed_memory_alloc(s, device, keys, NULL, &run->fixed));
    HOTBED_TRY(hotbed_memory_alloc(s, device, offsets, NULL, &run->offsets));
    HOTBED_TRY(hotbed_memory_alloc(s, device, rows, NULL, &run->gradient));
    HOTBED_TRY(hotbed_memory_alloc(s, device, rows, NULL, &run->output));
    HOTBED_TRY(hotbed_copy(run->keys.data, run->input->keys, keys * shape->batches, s));
    HOTBED_TRY(hotbed_copy(run->offsets.data, run->input->offsets, offsets, s));
    HOTBED_TRY(hotbed_copy(run->gradient.data, run->input->gradient, rows, s));
    return hotbed_stream_sync(s);
}

hotbed_status workload_run_create(
    const workload *what, const workload_input *input, hotbed_insertion insertion,
    hotbed_backend backend, workload_run *out) {
    *out = (workload_run){.what = what, .input = input, .insertion = insertion};
    hotbed_status status = hotbed_stream_create(backend, 0, &out->stream);
    if (status == HOTBED_OK)
        status = create_buffers(out);
    if (status == HOTBED_OK)
        status = create_storage(out);
    if (status != HOTBED_OK)
        workload_run_destroy(out);
    return status;
}

void workload_run_destroy(workload_run *run) {
    hotbed_ticket_destroy(run->ticket);
    hotbed_storage_destroy(run->storage);
    hotbed_memory_free(&run->keys);
    hotbed_memory_free(&run->fixed);
    hotbed_memory_free(&run->offsets);
    hotbed_memory_free(&run->gradient);
    hotbed_memory_free(&run->output);
    hotbed_stream_destroy(run->stream);
    *run = (workload_run){0};
}

/* --- parts of a step -------------------------------------------------------------------------- */

const int64_t *workload_keys_of(const workload_run *run, uint64_t step) {
    const workload_shape *shape = &run->input->shape;
    return (const int64_t *)run->keys.data + step % shape->batches * workload_keys_a_step(shape);
}

uint64_t workload_eval_batch(const workload_run *run, uint32_t steps, uint32_t s) {
    return run->what->stream == WORKLOAD_POWER_DRIFT ? run->steps - steps + s : s;
}

hotbed_batch workload_batch_of(const workload_run *run, const void *keys) {
    hotbed_batch batch = {.size = sizeof batch, .batch_size = run->input->shape.samples};
    batch.num_keys = workload_keys_a_step(&run->input->shape);
    batch.keys = keys;
    batch.offsets = run->input->shape.pooled ? run->offsets.data : NULL;
    return batch;
}

hotbed_status workload_forward(workload_run *run, const void *keys) {
    hotbed_batch batch = workload_batch_of(run, keys);
    return hotbed_storage_prefetch_forward(
        run->storage, &batch, run->ticket, run->output.data, 0, run->stream);
}

hotbed_status workload_backward(workload_run *run) {
    return hotbed_storage_backward(run->storage, run->ticket, run->gradient.data, 0, run->stream);
}

hotbed_status workload_eval(workload_run *run, const void *keys) {
    hotbed_batch batch = workload_batch_of(run, keys);
    return hotbed_storage_eval(run->storage, &batch, run->output.data, 0, run->stream);
}

hotbed_status workload_step(workload_run *run) {
    HOTBED_TRY(workload_forward(run, workload_keys_of(run, run->steps)));
    HOTBED_TRY(workload_backward(run));
    run->steps++;
    return HOTBED_OK;
}

hotbed_status workload_stats(workload_run *run, hotbed_table_stats *out) {
    *out = (hotbed_table_stats){0};
    for (uint32_t t = 0; t < run->input->shape.tables; t++) {
        hotbed_table_stats stats = {.size = sizeof stats};
        HOTBED_TRY(hotbed_storage_stats(run->storage, t, &stats, run->stream));
        out->uniques += stats.uniques;
        out->fetches += stats.fetches;
        out->in_place += stats.in_place;
        out->write_backs += stats.write_backs;
        out->link_read_bytes += stats.link_read_bytes;
        out->link_write_bytes += stats.link_write_bytes;
    }
    return HOTBED_OK;
}
