/* storage/index/index.c - hotbed_index: options, memory, argument checks, choice of the backend. */
#include "base/check.h"
#include "base/error.h"
#include "base/options.h"
#include "base/stream.h"
#include "storage/index/index_kernels.h"
#include "storage/index/index_range.h"
#include "storage/types.h"

struct hotbed_index {
    const hotbed_index_kernels *kernels;
    hotbed_backend backend;
    int device;
    uint32_t num_tables;
    bool evicts; /* at least one table evicts */
    uint64_t slots;
    hotbed_index_view view;
    uint64_t *capacities;              /* [num_tables] */
    hotbed_index_range *ranges;        /* [num_tables] */
    hotbed_index_range *device_ranges; /* [num_tables] */
    hotbed_memory keys, metas, described;
};

static const hotbed_index_kernels *kernels_of(hotbed_backend backend) {
    return HOTBED_OF_BACKEND(backend, hotbed_index_kernels);
}

static hotbed_status check_options(const hotbed_index_options *o) {
    HOTBED_TRY(hotbed_check_range("num_tables", o->num_tables, 1, HOTBED_TABLES_MOST));
    HOTBED_TRY(hotbed_check_pointer("capacities", o->capacities));
    for (uint32_t t = 0; t < o->num_tables; t++) {
        hotbed_status status =
            hotbed_check_range("capacity", o->capacities[t], 1, HOTBED_CAPACITY_MOST);
        if (status == HOTBED_OK && o->evict != NULL)
            status =
                hotbed_check_choice("evict", o->evict[t], HOTBED_EVICT_NEVER, HOTBED_EVICT_LOWEST);
        if (status != HOTBED_OK)
            return HOTBED_FAIL_AFTER(status, "table %u: %s", t, hotbed_last_error());
    }
    return HOTBED_OK;
}

/* Copy the ranges to the device and free all slots. */
static hotbed_status start(hotbed_index *index, hotbed_stream *stream) {
    size_t bytes = index->num_tables * sizeof *index->ranges;
    hotbed_memory staging = {0};
    hotbed_status status = hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, bytes, NULL, &staging);
    if (status != HOTBED_OK)
        return status;
    memcpy(staging.data, index->ranges, bytes);
    status = hotbed_copy(index->device_ranges, staging.data, bytes, stream);
    for (uint32_t t = 0; status == HOTBED_OK && t < index->num_tables; t++) {
        if (hotbed_memory_is_fresh_zero(&index->keys))
            hotbed_index_start(index->view, index->ranges[t]);
        else
            status = hotbed_index_clear(index, t, stream);
    }
    hotbed_status finished = hotbed_stream_finish(stream);
    hotbed_memory_free(&staging);
    return status == HOTBED_OK ? finished : status;
}

static hotbed_status create(
    hotbed_index *index, const hotbed_index_options *options, hotbed_stream *stream) {
    index->backend = hotbed_stream_backend(stream);
    index->device = hotbed_stream_device(stream);
    index->kernels = kernels_of(index->backend);
    index->num_tables = options->num_tables;
    index->capacities = hotbed_new(index->num_tables * sizeof *index->capacities);
    index->ranges = hotbed_new(index->num_tables * sizeof *index->ranges);
    HOTBED_TRY_MEMORY(
        index->capacities != NULL && index->ranges != NULL, "descriptions of %u tables",
        index->num_tables);
    for (uint32_t t = 0; t < index->num_tables; t++) {
        bool evicts = options->evict != NULL && options->evict[t] == HOTBED_EVICT_LOWEST;
        index->capacities[t] = options->capacities[t];
        index->ranges[t] = hotbed_index_range_make(
            options->capacities[t], evicts, index->slots / HOTBED_BUCKET_SLOTS);
        index->slots += hotbed_index_range_slots(index->ranges[t]);
        index->evicts = index->evicts || evicts;
    }
    size_t bytes = index->slots * sizeof(uint64_t);
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &index->keys));
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &index->metas));
    HOTBED_TRY(hotbed_memory_alloc(
        stream, HOTBED_MEMORY_DEVICE, index->num_tables * sizeof *index->ranges, NULL,
        &index->described));
    hotbed_memory_start_small(&index->keys);
    hotbed_memory_start_small(&index->metas);
    index->view.keys = index->keys.data;
    index->view.metas = index->metas.data;
    index->device_ranges = index->described.data;
    return start(index, stream);
}

hotbed_status hotbed_index_create(
    const hotbed_index_options *options, hotbed_stream *stream, hotbed_index **out) {
    hotbed_index_options o;
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    HOTBED_TRY(HOTBED_OPTIONS_READ(&o, hotbed_index_options, evict, options));
    HOTBED_TRY(check_options(&o));
    hotbed_index *index = hotbed_new(sizeof *index);
    HOTBED_TRY_MEMORY(index, "an index");
    hotbed_status status = create(index, &o, stream);
    if (status == HOTBED_OK)
        *out = index;
    else
        hotbed_index_destroy(index);
    return status;
}

void hotbed_index_destroy(hotbed_index *index) {
    if (index == NULL)
        return;
    hotbed_memory_free(&index->keys);
    hotbed_memory_free(&index->metas);
    hotbed_memory_free(&index->described);
    hotbed_delete(index->capacities);
    hotbed_delete(index->ranges);
    hotbed_delete(index);
}

/* --- calls by key or slot --------------------------------------------------------------------- */

static hotbed_status check(const hotbed_index *index, const hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer("index", index));
    return hotbed_check_stream(stream, "index", index->backend, index->device);
}

static hotbed_status check_table(
    const hotbed_index *index, uint32_t table, const hotbed_stream *stream) {
    HOTBED_TRY(check(index, stream));
    return hotbed_check_below("table", table, index->num_tables);
}

/* Arguments that every call needs. `table` is used if keys have no table numbers. */
static hotbed_index_args args_of(
    const hotbed_index *index, uint32_t table, uint64_t n, hotbed_stream *stream) {
    hotbed_index_args args = {
        .index = index->view,
        .range = index->ranges[table],
        .ranges = index->device_ranges,
        .faults = hotbed_stream_table_faults(stream, NULL),
        .n = n,
        .index_slots = index->slots,
        .num_tables = index->num_tables,
    };
    return args;
}

hotbed_status hotbed_index_find_keys(
    hotbed_index *index, uint64_t n, const void *keys, const uint32_t *tables, uint64_t *slots,
    hotbed_stream *stream) {
    HOTBED_TRY(check(index, stream));
    HOTBED_TRY(hotbed_check_array("keys", keys, n));
    HOTBED_TRY(hotbed_check_array("slots", slots, n));
    hotbed_index_args args = args_of(index, 0, n, stream);
    args.keys = keys;
    args.tables = tables;
    args.slots = slots;
    return n == 0 ? HOTBED_OK : index->kernels->find(&args, stream);
}

static hotbed_status check_insert(const hotbed_index_insert *o) {
    HOTBED_TRY(hotbed_check_choice("rule", o->rule, HOTBED_SCORE_KEEP, HOTBED_SCORE_ADD));
    HOTBED_TRY(hotbed_check_array("keys", o->keys, o->n));
    HOTBED_TRY(hotbed_check_array("slots", o->slots, o->n));
    bool lists = o->evicted_keys != NULL || o->evicted_scores != NULL || o->evicted_slots != NULL;
    if (lists && o->num_evicted == NULL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "a list of evicted keys is set, but num_evicted is NULL");
    return HOTBED_OK;
}

hotbed_status hotbed_index_find_or_insert(
    hotbed_index *index, const hotbed_index_insert *insert, hotbed_stream *stream) {
    hotbed_index_insert o;
    HOTBED_TRY(check(index, stream));
    HOTBED_TRY(HOTBED_OPTIONS_READ(&o, hotbed_index_insert, outcomes, insert));
    HOTBED_TRY(check_insert(&o));
    if (o.num_evicted != NULL)
        HOTBED_TRY(hotbed_fill(o.num_evicted, 0, sizeof *o.num_evicted, stream));
    if (o.n == 0)
        return HOTBED_OK;
    hotbed_index_args args = args_of(index, 0, o.n, stream);
    args.keys = o.keys;
    args.tables = o.tables;
    args.scores = o.scores;
    args.score = o.score;
    args.rule = o.rule;
    args.pins = o.pin ? 1 : 0;
    args.slots = o.slots;
    args.outcomes = o.outcomes;
    args.evicted_keys = o.evicted_keys;
    args.evicted_scores = o.evicted_scores;
    args.evicted_slots = o.evicted_slots;
    args.num_evicted = o.num_evicted;
    if (!(o.tables == NULL ? args.range.evicts != 0 : index->evicts))
        return index->kernels->claim(&args, stream);
    HOTBED_TRY(index->kernels->hold(&args, stream));
    HOTBED_TRY(index->kernels->place(&args, stream));
    return o.pin ? HOTBED_OK : index->kernels->release(&args, stream);
}

hotbed_status hotbed_index_erase_keys(
    hotbed_index *index, uint64_t n, const void *keys, const uint32_t *tables, uint8_t *erased,
    hotbed_stream *stream) {
    HOTBED_TRY(check(index, stream));
    HOTBED_TRY(hotbed_check_array("keys", keys, n));
    hotbed_index_args args = args_of(index, 0, n, stream);
    args.keys = keys;
    args.tables = tables;
    args.outcomes = erased;
    return n == 0 ? HOTBED_OK : index->kernels->erase(&args, stream);
}

/* For pin and unpin. Neither kernel writes to `slots`, hence the cast. */
static hotbed_status by_slot(
    hotbed_index *index, hotbed_status (*kernel)(const hotbed_index_args *, hotbed_stream *),
    uint64_t n, const uint64_t *slots, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_array("slots", slots, n));
    hotbed_index_args args = args_of(index, 0, n, stream);
    args.slots = (uint64_t *)slots;
    return n == 0 ? HOTBED_OK : kernel(&args, stream);
}

hotbed_status hotbed_index_pin_slots(
    hotbed_index *index, uint64_t n, const uint64_t *slots, hotbed_stream *stream) {
    HOTBED_TRY(check(index, stream));
    return by_slot(index, index->kernels->pin, n, slots, stream);
}

hotbed_status hotbed_index_unpin_slots(
    hotbed_index *index, uint64_t n, const uint64_t *slots, hotbed_stream *stream) {
    HOTBED_TRY(check(index, stream));
    return by_slot(index, index->kernels->unpin, n, slots, stream);
}

/* --- whole tables ----------------------------------------------------------------------------- */

hotbed_status hotbed_index_clear(hotbed_index *index, uint32_t table, hotbed_stream *stream) {
    HOTBED_TRY(check_table(index, table, stream));
    hotbed_index_args args = args_of(index, table, 0, stream);
    return index->kernels->clear(&args, stream);
}

hotbed_status hotbed_index_export(
    hotbed_index *index, uint32_t table, uint64_t capacity, uint64_t *keys, uint64_t *slots,
    uint64_t *scores, uint64_t counts[2], hotbed_stream *stream) {
    HOTBED_TRY(check_table(index, table, stream));
    HOTBED_TRY(hotbed_check_pointer("counts", counts));
    hotbed_index_args args = args_of(index, table, 0, stream);
    args.capacity = capacity;
    args.export_keys = keys;
    args.export_scores = scores;
    args.slots = slots;
    args.export_counts = counts;
    HOTBED_TRY(hotbed_fill(counts, 0, 2 * sizeof *counts, stream));
    return index->kernels->export_keys(&args, stream);
}

hotbed_status hotbed_index_size(
    hotbed_index *index, uint32_t table, uint64_t *keys, uint64_t *pinned, hotbed_stream *stream) {
    uint64_t counts[2];
    void *device_counts;
    HOTBED_TRY(check_table(index, table, stream));
    if (hotbed_stream_recording(stream))
        return hotbed_fail(
            HOTBED_ERR_STATE,
            "hotbed_index_size: cannot wait for the stream while it records a graph");
    HOTBED_TRY(hotbed_stream_workspace(stream, sizeof counts, &device_counts));
    HOTBED_TRY(hotbed_index_export(index, table, 0, NULL, NULL, NULL, device_counts, stream));
    HOTBED_TRY(hotbed_copy(counts, device_counts, sizeof counts, stream));
    HOTBED_TRY(hotbed_stream_finish(stream));
    if (keys != NULL)
        *keys = counts[0];
    if (pinned != NULL)
        *pinned = counts[1];
    return HOTBED_OK;
}

hotbed_status hotbed_index_table(
    const hotbed_index *index, uint32_t table, hotbed_index_info *out) {
    HOTBED_TRY(hotbed_check_pointer("index", index));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_index_info"));
    HOTBED_TRY(hotbed_check_below("table", table, index->num_tables));
    const hotbed_index_range range = index->ranges[table];
    hotbed_index_info info = {
        .capacity = index->capacities[table],
        .first_slot = hotbed_index_slot(range, 0),
        .slots = hotbed_index_range_slots(range),
        .bytes_per_slot = sizeof *index->view.keys + sizeof *index->view.metas,
        .evict = range.evicts != 0 ? HOTBED_EVICT_LOWEST : HOTBED_EVICT_NEVER,
    };
    hotbed_output_write(out, &info, sizeof info);
    return HOTBED_OK;
}
