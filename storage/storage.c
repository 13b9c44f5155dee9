/* storage/storage.c - creates and destroys storages: kernels, memory, and the description on the
 * device. */
#include "storage/storage.h"
#include "storage/external_tier.h"

#include "base/carve.h"
#include "base/check.h"
#include "storage/index/index_range.h"
#include "storage/step/row_layout.h"

enum { REMOVED_DEFAULT = 1 << 20, CHANGED_DEFAULT = 1 << 24 };

/* --- memory ----------------------------------------------------------------------------------- */

static hotbed_kernels kernels_of(hotbed_backend backend) {
    hotbed_kernels kernels = {
        HOTBED_OF_BACKEND(backend, hotbed_unique_kernels),
        HOTBED_OF_BACKEND(backend, hotbed_lookup_kernels),
        HOTBED_OF_BACKEND(backend, hotbed_update_kernels),
        HOTBED_OF_BACKEND(backend, hotbed_rows_kernels),
        HOTBED_OF_BACKEND(backend, hotbed_score_kernels),
        HOTBED_OF_BACKEND(backend, hotbed_stats_kernels),
        HOTBED_OF_BACKEND(backend, hotbed_export_kernels),
        HOTBED_OF_BACKEND(backend, hotbed_changes_kernels),
        HOTBED_OF_BACKEND(backend, hotbed_tier_kernels),
        HOTBED_OF_BACKEND(backend, hotbed_tier_external_kernels),
    };
    return kernels;
}

/* Allocate the rows of one tier of a table. */
static hotbed_status allocate_tier(
    const hotbed_table *table, hotbed_memory_kind kind, const char *directory, uint64_t slots,
    hotbed_stream *stream, hotbed_memory *rows) {
    uint64_t bytes = slots * table->view.row_bytes;
    hotbed_status status = hotbed_memory_alloc(stream, kind, bytes, directory, rows);
    if (status == HOTBED_ERR_MEMORY) /* the text of an IO error has the path and the reason */
        return hotbed_fail_table(
            status, table->name, "table %s: no memory for %llu rows of %llu bytes in the %s tier",
            table->name, (unsigned long long)slots, (unsigned long long)table->view.row_bytes,
            rows == &table->rows ? "upper" : "lower");
    HOTBED_TRY(status);
    if (table->kind == HOTBED_TABLE_HASH)
        hotbed_memory_start_small(rows);
    if (hotbed_memory_is_fresh_zero(rows) || slots == 0)
        return HOTBED_OK;
    /* Lanes without a key read the first row, and drop what they have read. */
    return hotbed_fill(
        rows->data, 0, hotbed_row_has_gaps(&table->view) ? bytes : table->view.row_bytes, stream);
}

/* TIMESTAMP_LFU: allocate a time for each slot. `apart`: the lower tier's index, with its times,
 * has memory of its own. */
static hotbed_status allocate_times(hotbed_table *table, bool apart, hotbed_stream *stream) {
    hotbed_table_view *view = &table->view;
    if (view->score != HOTBED_SCORE_TIMESTAMP_LFU)
        return HOTBED_OK;
    uint64_t slots = view->slots + (apart ? 0 : view->lower_slots);
    hotbed_status status = hotbed_memory_alloc(
        stream, HOTBED_MEMORY_DEVICE, slots * sizeof(uint64_t), NULL, &table->times);
    if (status != HOTBED_OK)
        return hotbed_fail_table(
            status, table->name, "table %s: no memory for the times of %llu slots", table->name,
            (unsigned long long)slots);
    hotbed_memory_start_small(&table->times);
    view->range.times = table->times.data;
    if (view->lower_slots > 0 && !apart)
        view->lower.times = view->range.times + view->slots;
    return HOTBED_OK;
}

/* Allocate what is kept of the slots of a tier, all 0. */
static hotbed_status allocate_slots_changed(
    const hotbed_table *table, hotbed_memory_kind kind, const char *directory, uint64_t slots,
    hotbed_stream *stream, hotbed_memory *changed) {
    const uint64_t bytes = hotbed_changed_bytes(slots);
    hotbed_status status = hotbed_memory_alloc(stream, kind, bytes, directory, changed);
    if (status != HOTBED_OK)
        return hotbed_fail_table(
            status, table->name, "table %s: no memory to track changes of %llu slots", table->name,
            (unsigned long long)slots);
    if (hotbed_table_indexed(&table->view))
        hotbed_memory_start_small(changed);
    return hotbed_memory_is_fresh_zero(changed) ? HOTBED_OK
                                                : hotbed_fill(changed->data, 0, bytes, stream);
}

/* With track_changes: allocate for both tiers, for the lower one where its index is. */
static hotbed_status allocate_changed(
    const hotbed_storage *storage, hotbed_table *table, hotbed_stream *stream) {
    hotbed_table_view *view = &table->view;
    if (!table->tracks)
        return HOTBED_OK;
    HOTBED_TRY(allocate_slots_changed(
        table, HOTBED_MEMORY_DEVICE, NULL, view->slots, stream, &table->changed));
    view->changed = table->changed.data;
    if (view->lower_slots == 0)
        return HOTBED_OK;
    HOTBED_TRY(allocate_slots_changed(
        table, storage->lower_index_memory, storage->lower_directory, view->lower_slots, stream,
        &table->lower_changed));
    view->lower_changed = table->lower_changed.data;
    return HOTBED_OK;
}

/* Allocate the index of a lower tier that is apart from the upper tier's. */
static hotbed_status allocate_lower_index(
    const hotbed_storage *storage, hotbed_table *table, hotbed_stream *stream) {
    hotbed_table_view *view = &table->view;
    bool timed = view->range.times != NULL;
    size_t bytes = view->lower_slots * (timed ? 3 : 2) * sizeof(uint64_t);
    hotbed_status status = hotbed_memory_alloc(
        stream, storage->lower_index_memory, bytes, storage->lower_directory, &table->lower_index);
    if (status == HOTBED_ERR_MEMORY)
        return hotbed_fail_table(
            status, table->name, "table %s: no %s memory for %llu bytes of the lower tier's index",
            table->name, hotbed_memory_name(storage->lower_index_memory),
            (unsigned long long)bytes);
    HOTBED_TRY(status);
    hotbed_memory_start_small(&table->lower_index);
    if (timed)
        view->lower.times = (uint64_t *)table->lower_index.data + 2 * view->lower_slots;
    return HOTBED_OK;
}

static hotbed_status allocate_rows(hotbed_storage *storage, hotbed_stream *stream) {
    bool apart = storage->lower_index_memory != HOTBED_MEMORY_DEVICE;
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        hotbed_table *table = &storage->tables[t];
        HOTBED_TRY(allocate_tier(
            table, HOTBED_MEMORY_DEVICE, NULL, table->view.slots, stream, &table->rows));
        table->view.rows = table->rows.data;
        HOTBED_TRY(allocate_times(table, apart, stream));
        HOTBED_TRY(allocate_changed(storage, table, stream));
        if (table->view.lower_slots == 0)
            continue;
        HOTBED_TRY(allocate_tier(
            table, storage->lower_memory, storage->lower_directory, table->view.lower_slots, stream,
            &table->lower_rows));
        table->view.lower_rows = table->lower_rows.data;
        if (apart)
            HOTBED_TRY(allocate_lower_index(storage, table, stream));
    }
    if (storage->tracks)
        HOTBED_TRY(hotbed_memory_alloc(
            stream, HOTBED_MEMORY_DEVICE, storage->removed_capacity * sizeof(hotbed_removal), NULL,
            &storage->removals));
    if (storage->tracks && storage->external != NULL)
        HOTBED_TRY(hotbed_stored_changes_create(
            storage->num_tables, storage->changed_capacity, stream, &storage->stored_changes));
    size_t bytes = storage->index_slots * sizeof(uint64_t);
    HOTBED_TRY(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &storage->index_keys));
    HOTBED_TRY(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &storage->index_metas));
    if (storage->check == HOTBED_CHECK_WARN || storage->nonfinite == HOTBED_NONFINITE_SKIP) {
        HOTBED_TRY(hotbed_memory_alloc(
            stream, HOTBED_MEMORY_PINNED, sizeof(hotbed_fault), NULL, &storage->warning));
        memset(storage->warning.data, 0, sizeof(hotbed_fault));
        if (storage->nonfinite == HOTBED_NONFINITE_SKIP)
            storage->optimizer_view.faults = storage->warning.data;
    }
    hotbed_memory_start_small(&storage->index_keys);
    hotbed_memory_start_small(&storage->index_metas);
    storage->index.keys = storage->index_keys.data;
    storage->index.metas = storage->index_metas.data;
    return HOTBED_OK;
}

/* Place the arrays of the description. Called twice: to compute the size, and to place them. */
static size_t carve_description(hotbed_storage *storage, uint8_t *base) {
    hotbed_carve carve = {base, 0};
    storage->device_tables =
        hotbed_carve_take(&carve, storage->num_tables * sizeof *storage->device_tables);
    storage->device_segments =
        hotbed_carve_take(&carve, storage->num_segments * sizeof *storage->device_segments);
    storage->device_feature_tables =
        hotbed_carve_take(&carve, storage->num_features * sizeof(uint32_t));
    storage->device_columns =
        hotbed_carve_take(&carve, ((size_t)storage->num_features + 1) * sizeof(uint64_t));
    storage->clock = hotbed_carve_take(&carve, sizeof *storage->clock);
    storage->tallies = hotbed_carve_take(&carve, storage->num_tables * sizeof *storage->tallies);
    storage->custom_scores =
        hotbed_carve_take(&carve, storage->num_tables * sizeof *storage->custom_scores);
    storage->expire_at =
        hotbed_carve_take(&carve, storage->num_tables * sizeof *storage->expire_at);
    storage->below = hotbed_carve_take(&carve, sizeof *storage->below);
    storage->twice = hotbed_carve_take(&carve, sizeof *storage->twice);
    storage->holding = hotbed_carve_take(&carve, sizeof *storage->holding);
    storage->zeros = hotbed_carve_take(&carve, HOTBED_REGISTER_DIM_MOST * sizeof *storage->zeros);
    storage->rates = NULL;
    if (storage->own_rates)
        storage->rates = hotbed_carve_take(&carve, storage->num_tables * sizeof *storage->rates);
    storage->timer = NULL;
    if (storage->timed)
        storage->timer = hotbed_carve_take(&carve, sizeof *storage->timer);
    storage->tracker = NULL;
    if (storage->tracks)
        storage->tracker = hotbed_carve_take(&carve, sizeof *storage->tracker);
    return carve.used;
}

/* A number that no other storage of the process has. */
static uint64_t next_number(void) {
    static uint64_t last; /* atomic */
    return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

/* Copy the description to the device. */
static hotbed_status describe(hotbed_storage *storage, hotbed_stream *stream) {
    size_t bytes = carve_description(storage, NULL);
    hotbed_memory staging = {0};
    hotbed_storage host = *storage;
    hotbed_status status =
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &storage->described);
    if (status == HOTBED_OK)
        status = hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, bytes, NULL, &staging);
    if (status != HOTBED_OK)
        goto done;
    memset(staging.data, 0, bytes);
    (void)carve_description(&host, staging.data);
    (void)carve_description(storage, storage->described.data);
    storage->optimizer_view.rates = storage->rates;
    if (storage->num_segments > 0)
        storage->index.segments = storage->device_segments;
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        const hotbed_table *table = &storage->tables[t];
        host.device_tables[t] = table->view;
        if (storage->own_rates)
            host.rates[t] = table->rates;
        if (table->lower_index.data != NULL)
            host.device_segments[table->view.lower_first >> HOTBED_SEGMENT_SHIFT] =
                hotbed_table_lower_segment(table);
    }
    for (uint32_t t = 0; t < storage->num_tables; t++)
        host.custom_scores[t] = 1;
    memcpy(
        host.device_feature_tables, storage->feature_tables,
        storage->num_features * sizeof(uint32_t));
    memcpy(
        host.device_columns, storage->columns,
        ((size_t)storage->num_features + 1) * sizeof(uint64_t));
    hotbed_optimizer_clock_init(&host.clock->optimizer, &storage->optimizer);
    if (storage->tracks)
        *host.tracker = (hotbed_tracker){
            .storage = next_number(),
            .epoch = 1,
            .capacity = storage->removed_capacity,
            .items = storage->removals.data,
            .forgotten = storage->stored_changes == NULL
                             ? NULL
                             : hotbed_stored_changes_forgotten(storage->stored_changes),
        };
    status = hotbed_copy(storage->described.data, staging.data, bytes, stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_finish(stream);
done:
    hotbed_memory_free(&staging);
    return status;
}

static hotbed_status keep_directory(hotbed_storage *storage, const char *directory) {
    if (directory == NULL)
        return HOTBED_OK;
    storage->lower_directory = hotbed_new(strlen(directory) + 1);
    HOTBED_TRY_MEMORY(storage->lower_directory, "the name of lower_directory");
    memcpy(storage->lower_directory, directory, strlen(directory) + 1);
    return HOTBED_OK;
}

static hotbed_status create(
    hotbed_storage *storage, const hotbed_storage_options *options, hotbed_stream *stream) {
    storage->backend = hotbed_stream_backend(stream);
    storage->device = hotbed_stream_device(stream);
    storage->kernels = kernels_of(storage->backend);
    storage->key_type = options->key_type == 0 ? HOTBED_KEY_I64 : options->key_type;
    storage->pooling = options->pooling;
    storage->output_dtype = options->output_dtype == 0 ? HOTBED_F32 : options->output_dtype;
    storage->optimizer = options->optimizer;
    storage->optimizer_view = hotbed_optimizer_make(&options->optimizer);
    storage->seed = options->seed;
    storage->check = options->check;
    storage->nonfinite = options->nonfinite;
    storage->removed_capacity = 1;
    const uint64_t removed = options->removed_capacity;
    while (storage->removed_capacity < (removed == 0 ? REMOVED_DEFAULT : removed))
        storage->removed_capacity *= 2;
    storage->changed_capacity =
        options->changed_capacity == 0 ? CHANGED_DEFAULT : options->changed_capacity;
    storage->optimizer_view.checks_finite = options->nonfinite != HOTBED_NONFINITE_PASS;
    storage->external = options->external;
    if (storage->external != NULL)
        pthread_mutex_init(&storage->call_batches_lock, NULL);
    storage->num_tables = options->num_tables;
    storage->num_features =
        options->num_features == 0 ? options->num_tables : options->num_features;
    storage->lower_memory =
        options->lower_memory == 0 ? HOTBED_MEMORY_PINNED : options->lower_memory;
    storage->lower_index_memory =
        options->lower_index_memory == 0 ? HOTBED_MEMORY_DEVICE : options->lower_index_memory;
    storage->move_sms = options->move_sms;
    HOTBED_TRY(keep_directory(storage, options->lower_directory));
    storage->tables = hotbed_new(storage->num_tables * sizeof *storage->tables);
    storage->feature_tables = hotbed_new(storage->num_features * sizeof(uint32_t));
    storage->columns = hotbed_new(((size_t)storage->num_features + 1) * sizeof(uint64_t));
    HOTBED_TRY_MEMORY(
        storage->tables != NULL && storage->feature_tables != NULL && storage->columns != NULL,
        "descriptions of %u tables and %u features", storage->num_tables, storage->num_features);
    HOTBED_TRY(hotbed_storage_read_tables(storage, options));
    storage->names = hotbed_table_names_create(
        storage->tables, storage->num_tables, sizeof *storage->tables, storage->key_type);
    HOTBED_TRY_MEMORY(storage->names, "the names of %u tables", storage->num_tables);
    for (uint32_t t = 0; t < storage->num_tables; t++)
        hotbed_table_names_set_keys(
            storage->names, t, &(hotbed_table_keys){.any = storage->tables[t].view.is_static == 0});
    if (storage->external != NULL)
        HOTBED_TRY(hotbed_storage_check_external(storage));
    HOTBED_TRY(hotbed_mode_choose(storage, options));
    hotbed_storage_lay_out(storage);
    for (uint32_t f = 0; f < storage->num_features; f++) {
        storage->feature_tables[f] = options->num_features == 0 ? f : options->feature_tables[f];
        storage->columns[f + 1] =
            storage->columns[f] + storage->tables[storage->feature_tables[f]].view.dim;
    }
    HOTBED_TRY(allocate_rows(storage, stream));
    HOTBED_TRY(hotbed_growth_create(storage, stream));
    HOTBED_TRY(describe(storage, stream));
    for (uint32_t t = 0; t < storage->num_tables; t++)
        HOTBED_TRY(hotbed_storage_empty_table(storage, t, true, stream));
    return HOTBED_OK;
}

hotbed_status hotbed_storage_create(
    const hotbed_storage_options *options, hotbed_stream *stream, hotbed_storage **out) {
    hotbed_storage_options o;
    HOTBED_TRY(hotbed_check_pointer("out", out));
    *out = NULL;
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    HOTBED_TRY(hotbed_storage_read_options(options, &o));
    hotbed_storage *storage = hotbed_new(sizeof *storage);
    HOTBED_TRY_MEMORY(storage, "a storage");
    hotbed_status status = create(storage, &o, stream);
    if (status != HOTBED_OK) {
        (void)!hotbed_stream_finish(stream); /* enqueued work uses the memory */
        hotbed_storage_destroy(storage);
        return status;
    }
    *out = storage;
    return HOTBED_OK;
}

void hotbed_storage_destroy(hotbed_storage *storage) {
    if (storage == NULL)
        return;
    for (uint32_t t = 0; storage->tables != NULL && t < storage->num_tables; t++) {
        hotbed_memory_free(&storage->tables[t].rows);
        hotbed_memory_free(&storage->tables[t].times);
        hotbed_memory_free(&storage->tables[t].changed);
        hotbed_memory_free(&storage->tables[t].lower_changed);
        hotbed_memory_free(&storage->tables[t].lower_rows);
        hotbed_memory_free(&storage->tables[t].lower_index);
        hotbed_growth_free(&storage->tables[t]);
    }
    hotbed_export_close_external(storage);
    hotbed_storage_close_external(storage);
    hotbed_growth_destroy(storage);
    hotbed_delete(storage->lower_directory);
    hotbed_memory_free(&storage->index_keys);
    hotbed_memory_free(&storage->index_metas);
    hotbed_memory_free(&storage->described);
    hotbed_memory_free(&storage->removals);
    hotbed_memory_free(&storage->warning);
    hotbed_table_names_release(storage->names);
    hotbed_delete(storage->tables);
    hotbed_delete(storage->feature_tables);
    hotbed_delete(storage->columns);
    hotbed_delete(storage);
}
