/* storage/storage.c - a storage: its options, memory and description. */
#include "storage/storage.h"

#include "base/options.h"
#include "storage/index_range.h"
#include "storage/row_layout.h"
#include "storage/types.h"

#include <math.h>
#include <stdio.h>

/* --- options ---------------------------------------------------------------------------------- */

static hotbed_status check_scoring(const hotbed_table_options *o) {
    if ((int)o->score < HOTBED_SCORE_STEP || o->score > HOTBED_SCORE_TIMESTAMP_LFU)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: unknown score %d", o->name, (int)o->score);
    if ((int)o->insertion < HOTBED_INSERT_AUTO || o->insertion > HOTBED_INSERT_PROBATION)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: unknown insertion %d", o->name, (int)o->insertion);
    if ((int)o->admission < HOTBED_ADMIT_ALL || o->admission > HOTBED_ADMIT_PROBABILISTIC)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: unknown admission %d", o->name, (int)o->admission);
    bool plain = o->score == HOTBED_SCORE_STEP && o->insertion != HOTBED_INSERT_PROBATION &&
                 o->admission == HOTBED_ADMIT_ALL;
    if (o->kind == HOTBED_TABLE_STATIC && !plain)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: a static table has no score, insertion or admission",
            o->name);
    if (o->admission == HOTBED_ADMIT_FREQUENCY &&
        (o->admission_threshold < 1 || o->admission_threshold > HOTBED_SCORE_MOST))
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: admission_threshold %llu is not in [1, 2^52 - 1]",
            o->name, (unsigned long long)o->admission_threshold);
    if (o->admission_capacity > HOTBED_CAPACITY_MOST)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: admission_capacity %llu is over 2^35", o->name,
            (unsigned long long)o->admission_capacity);
    if (o->admission == HOTBED_ADMIT_PROBABILISTIC &&
        !(o->admission_probability > 0.0F && o->admission_probability <= 1.0F))
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: admission_probability %g is not in (0, 1]", o->name,
            (double)o->admission_probability);
    return HOTBED_OK;
}

static hotbed_status check_growth(const hotbed_table_options *o) {
    if (o->max_capacity != 0 && o->kind == HOTBED_TABLE_STATIC)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "table %s: a static table cannot grow", o->name);
    if (o->max_capacity != 0 &&
        (o->max_capacity < o->capacity || o->max_capacity > HOTBED_CAPACITY_MOST))
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: max_capacity %llu is not in [%llu, 2^35]", o->name,
            (unsigned long long)o->max_capacity, (unsigned long long)o->capacity);
    if (!(o->growth_load >= 0.0F && o->growth_load <= 1.0F))
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: growth_load %g is not in [0, 1]", o->name,
            (double)o->growth_load);
    return HOTBED_OK;
}

static hotbed_status check_table(const hotbed_table_options *o, uint32_t number) {
    char what[64];
    HOTBED_TRY(hotbed_name_check(o->name, number));
    if (o->dim < 1 || o->dim > HOTBED_DIM_MOST)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: dim %u is not in [1, %d]", o->name, o->dim,
            HOTBED_DIM_MOST);
    if (o->capacity < 1 || o->capacity > HOTBED_CAPACITY_MOST)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: capacity %llu is not in [1, 2^35]", o->name,
            (unsigned long long)o->capacity);
    if (o->kind != HOTBED_TABLE_HASH && o->kind != HOTBED_TABLE_STATIC)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "table %s: unknown kind %d", o->name, (int)o->kind);
    if (o->dtype != 0 && hotbed_dtype_bytes(o->dtype) == 0)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: unknown dtype %d", o->name, (int)o->dtype);
    if (o->evict != HOTBED_EVICT_NEVER && o->evict != HOTBED_EVICT_LOWEST)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: unknown evict %d", o->name, (int)o->evict);
    if (o->evict != HOTBED_EVICT_NEVER && o->kind == HOTBED_TABLE_STATIC)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "table %s: a static table cannot evict", o->name);
    HOTBED_TRY(check_scoring(o));
    HOTBED_TRY(check_growth(o));
    (void)snprintf(what, sizeof what, "table %u: initializer", number);
    HOTBED_TRY(hotbed_initializer_check(&o->initializer, what));
    (void)snprintf(what, sizeof what, "table %u: eval_initializer", number);
    HOTBED_TRY(hotbed_initializer_check(&o->eval_initializer, what));
    if (o->eval_initializer.kind != HOTBED_INIT_CONSTANT)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s: eval_initializer kind %d is not CONSTANT", o->name,
            (int)o->eval_initializer.kind);
    return HOTBED_OK;
}

/* Check the options about rows that are not in device memory. */
static hotbed_status check_lower_tier(const hotbed_storage_options *o) {
    if ((int)o->lower_memory != 0 &&
        (o->lower_memory < HOTBED_MEMORY_PINNED || o->lower_memory > HOTBED_MEMORY_FILE))
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "lower_memory %d is not PINNED, PAGEABLE or FILE",
            (int)o->lower_memory);
    if ((int)o->lower_index_memory != 0 && (o->lower_index_memory < HOTBED_MEMORY_DEVICE ||
                                            o->lower_index_memory > HOTBED_MEMORY_FILE))
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "lower_index_memory %d is not DEVICE, PINNED, PAGEABLE or FILE",
            (int)o->lower_index_memory);
    if (o->move_sms > HOTBED_MOVE_SMS_MOST)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "move_sms %u is over %d", o->move_sms, HOTBED_MOVE_SMS_MOST);
    if (o->external == NULL)
        return HOTBED_OK;
    if (o->lower_memory != 0 || o->lower_index_memory != 0 || o->lower_directory != NULL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "external and %s are set: set only one of them",
            o->lower_memory != 0         ? "lower_memory"
            : o->lower_index_memory != 0 ? "lower_index_memory"
                                         : "lower_directory");
    if (o->mode != HOTBED_MODE_AUTO && o->mode != HOTBED_MODE_CACHE)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "external is set, but mode %d is not CACHE", (int)o->mode);
    return HOTBED_OK;
}

static hotbed_status check_storage(const hotbed_storage_options *o) {
    if (o->num_tables < 1 || o->num_tables > HOTBED_TABLES_MOST)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "num_tables %u is not in [1, %d]", o->num_tables,
            HOTBED_TABLES_MOST);
    if (o->tables == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "tables is NULL");
    if (o->num_features > 0 && o->feature_tables == NULL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "num_features is %u, but feature_tables is NULL", o->num_features);
    for (uint32_t f = 0; f < o->num_features; f++) {
        if (o->feature_tables[f] >= o->num_tables)
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "feature %u: table %u is not below %u", f,
                o->feature_tables[f], o->num_tables);
        if (f > 0 && o->feature_tables[f] < o->feature_tables[f - 1])
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "feature %u: table %u comes after table %u; sort features", f,
                o->feature_tables[f], o->feature_tables[f - 1]);
    }
    if (o->key_type != 0 && o->key_type != HOTBED_KEY_I64 && o->key_type != HOTBED_KEY_U64)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "unknown key_type %d", (int)o->key_type);
    if ((int)o->pooling < HOTBED_POOL_NONE || o->pooling > HOTBED_POOL_MEAN)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "unknown pooling %d", (int)o->pooling);
    if (o->output_dtype != 0 && hotbed_dtype_bytes(o->output_dtype) == 0)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "unknown output_dtype %d", (int)o->output_dtype);
    if (o->optimizer.kind != 0)
        HOTBED_TRY(hotbed_optimizer_check(&o->optimizer));
    if ((int)o->mode < HOTBED_MODE_AUTO || o->mode > HOTBED_MODE_DEFAULT)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "unknown mode %d", (int)o->mode);
    if ((int)o->placement < HOTBED_PLACE_BY_SCORE || o->placement > HOTBED_PLACE_BY_HASH)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "unknown placement %d", (int)o->placement);
    if ((int)o->budget < HOTBED_BUDGET_SLOTS || o->budget > HOTBED_BUDGET_KEYS)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "unknown budget %d", (int)o->budget);
    HOTBED_TRY(check_lower_tier(o));
    if ((int)o->check < HOTBED_CHECK_ERROR || o->check > HOTBED_CHECK_IGNORE)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "unknown check %d", (int)o->check);
    return HOTBED_OK;
}

/* --- layout ----------------------------------------------------------------------------------- */

static hotbed_dtype table_dtype(const hotbed_table_options *o) {
    return o->dtype == 0 ? HOTBED_F32 : o->dtype;
}

/* Compute the row layout. With an external store, rows of tables that keep times have space for
 * the time at their end. */
static void lay_out_row(
    hotbed_table_view *view, hotbed_optimizer_kind kind, const hotbed_table_options *o,
    bool external) {
    hotbed_row_lay_out(view, kind);
    if (external && o->score == HOTBED_SCORE_TIMESTAMP_LFU)
        view->row_bytes = hotbed_round_up(view->row_bytes, HOTBED_ROW_TIME) + HOTBED_ROW_TIME;
}

static void make_table(
    hotbed_storage *storage, hotbed_table *table, const hotbed_table_options *o) {
    hotbed_table_view *view = &table->view;
    memcpy(table->name, o->name, strlen(o->name) + 1);
    table->kind = o->kind;
    table->dtype = table_dtype(o);
    table->capacity = o->capacity;
    table->most = o->max_capacity == 0 ? o->capacity : o->max_capacity;
    table->growth_load = o->growth_load == 0.0F ? 0.9F : o->growth_load;
    table->counted = o->admission_capacity == 0 ? o->capacity : o->admission_capacity;
    view->capacity = o->capacity;
    view->dim = o->dim;
    view->dtype = (uint32_t)table->dtype;
    view->is_static = o->kind == HOTBED_TABLE_STATIC;
    view->eval_value = o->eval_initializer.value;
    view->state_value = storage->optimizer.initial_accumulator;
    view->init = hotbed_init_make(&o->initializer, o->name, storage->seed);
    lay_out_row(view, storage->optimizer.kind, o, storage->external != NULL);
    table->evicts = o->evict == HOTBED_EVICT_LOWEST;
    table->upper_capacity = o->upper_capacity;
    view->score = (uint32_t)o->score;
    table->insertion = o->insertion;
    view->admission = (uint32_t)o->admission;
    if (o->admission == HOTBED_ADMIT_FREQUENCY)
        view->admit = o->admission_threshold;
    if (o->admission == HOTBED_ADMIT_PROBABILISTIC)
        view->admit = (uint64_t)ceil((double)o->admission_probability * 4294967296.0);
    storage->timed = storage->timed || o->score == HOTBED_SCORE_TIMESTAMP ||
                     o->score == HOTBED_SCORE_TIMESTAMP_LFU;
    storage->admits = storage->admits || o->admission != HOTBED_ADMIT_ALL;
}

/* Read and check table number t of `options`. */
static hotbed_status read_table(
    const hotbed_storage_options *options, uint32_t t, hotbed_table_options *o) {
    uint32_t stride;
    memcpy(&stride, options->tables, sizeof stride);
    HOTBED_TRY(hotbed_options_read(
        o, sizeof *o, offsetof(hotbed_table_options, kind),
        (const unsigned char *)options->tables + (size_t)t * stride, "hotbed_table_options"));
    if (o->size != stride)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %u: size %u is not the first table's %u", t, o->size,
            stride);
    return check_table(o, t);
}

static hotbed_status read_tables(hotbed_storage *storage, const hotbed_storage_options *options) {
    storage->plain_rows = true;
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        hotbed_table_options o;
        HOTBED_TRY(read_table(options, t, &o));
        make_table(storage, &storage->tables[t], &o);
        if (o.dim > storage->max_dim)
            storage->max_dim = o.dim;
        if (storage->tables[t].dtype != HOTBED_F32 || o.dim % 4 != 0)
            storage->plain_rows = false;
    }
    return hotbed_names_check(storage->tables, storage->num_tables, sizeof *storage->tables);
}

/* Copy the options to the library's struct and check them, without the tables. */
static hotbed_status read_storage(
    const hotbed_storage_options *options, hotbed_storage_options *out) {
    HOTBED_TRY(hotbed_options_read(
        out, sizeof *out, offsetof(hotbed_storage_options, num_features), options,
        "hotbed_storage_options"));
    return check_storage(out);
}

hotbed_status hotbed_storage_external_tables(
    const hotbed_storage_options *options, hotbed_external_table *tables) {
    hotbed_storage_options all;
    if (tables == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "tables is NULL");
    HOTBED_TRY(read_storage(options, &all));
    for (uint32_t t = 0; t < all.num_tables; t++) {
        hotbed_table_options o;
        HOTBED_TRY(read_table(&all, t, &o));
        hotbed_table_view view = {.dim = o.dim, .dtype = (uint32_t)table_dtype(&o)};
        lay_out_row(&view, all.optimizer.kind, &o, true);
        tables[t] = (hotbed_external_table){o.name, view.row_bytes};
    }
    return HOTBED_OK;
}

/* --- memory ----------------------------------------------------------------------------------- */

static hotbed_kernels kernels_of(hotbed_backend backend) {
#if defined(HOTBED_WITH_CUDA)
    if (backend == HOTBED_BACKEND_CUDA) {
        hotbed_kernels cuda = {&hotbed_unique_kernels_cuda,       &hotbed_lookup_kernels_cuda,
                               &hotbed_update_kernels_cuda,       &hotbed_rows_kernels_cuda,
                               &hotbed_score_kernels_cuda,        &hotbed_stats_kernels_cuda,
                               &hotbed_export_kernels_cuda,       &hotbed_tier_kernels_cuda,
                               &hotbed_tier_external_kernels_cuda};
        return cuda;
    }
#endif
    (void)backend;
    hotbed_kernels host = {&hotbed_unique_kernels_host,       &hotbed_lookup_kernels_host,
                           &hotbed_update_kernels_host,       &hotbed_rows_kernels_host,
                           &hotbed_score_kernels_host,        &hotbed_stats_kernels_host,
                           &hotbed_export_kernels_host,       &hotbed_tier_kernels_host,
                           &hotbed_tier_external_kernels_host};
    return host;
}

/* Allocate the rows of one tier of a table. */
static hotbed_status allocate_tier(
    const hotbed_table *table, hotbed_memory_kind kind, const char *directory, uint64_t slots,
    hotbed_stream *stream, hotbed_memory *rows) {
    uint64_t bytes = slots * table->view.row_bytes;
    hotbed_status status = hotbed_memory_alloc(stream, kind, bytes, directory, rows);
    if (status != HOTBED_OK)
        return hotbed_fail(
            status, "table %s: no memory for %llu rows of %llu bytes in the %s tier", table->name,
            (unsigned long long)slots, (unsigned long long)table->view.row_bytes,
            rows == &table->rows ? "upper" : "lower");
    return hotbed_row_has_gaps(&table->view) && !hotbed_memory_is_fresh_zero(rows)
               ? hotbed_fill(rows->data, 0, bytes, stream)
               : HOTBED_OK;
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
        return hotbed_fail(
            status, "table %s: no memory for the times of %llu slots", table->name,
            (unsigned long long)slots);
    view->range.times = table->times.data;
    if (view->lower_slots > 0 && !apart)
        view->lower.times = view->range.times + view->slots;
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
    if (status != HOTBED_OK)
        return hotbed_fail(
            status, "table %s: no %s memory for %llu bytes of the lower tier's index", table->name,
            hotbed_memory_name(storage->lower_index_memory), (unsigned long long)bytes);
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
        if (table->view.lower_slots == 0)
            continue;
        HOTBED_TRY(allocate_tier(
            table, storage->lower_memory, storage->lower_directory, table->view.lower_slots, stream,
            &table->lower_rows));
        table->view.lower_rows = table->lower_rows.data;
        if (apart)
            HOTBED_TRY(allocate_lower_index(storage, table, stream));
    }
    size_t bytes = storage->index_slots * sizeof(uint64_t);
    HOTBED_TRY(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &storage->index_keys));
    HOTBED_TRY(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &storage->index_metas));
    if (storage->check == HOTBED_CHECK_WARN) {
        HOTBED_TRY(hotbed_memory_alloc(
            stream, HOTBED_MEMORY_PINNED, sizeof(hotbed_fault), NULL, &storage->warning));
        memset(storage->warning.data, 0, sizeof(hotbed_fault));
    }
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
    storage->below = hotbed_carve_take(&carve, sizeof *storage->below);
    storage->holding = hotbed_carve_take(&carve, sizeof *storage->holding);
    storage->timer = NULL;
    if (storage->timed)
        storage->timer = hotbed_carve_take(&carve, sizeof *storage->timer);
    return carve.used;
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
    if (storage->num_segments > 0)
        storage->index.segments = storage->device_segments;
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        const hotbed_table *table = &storage->tables[t];
        host.device_tables[t] = table->view;
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
    if (storage->lower_directory == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for the name of lower_directory");
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
    if (storage->tables == NULL || storage->feature_tables == NULL || storage->columns == NULL)
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory to describe %u tables and %u features",
            storage->num_tables, storage->num_features);
    HOTBED_TRY(read_tables(storage, options));
    if (storage->external != NULL)
        HOTBED_TRY(hotbed_storage_check_external(storage));
    HOTBED_TRY(hotbed_mode_choose(storage, options));
    hotbed_mode_lay_out(storage);
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
    if (out == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    if (stream == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "stream is NULL");
    HOTBED_TRY(read_storage(options, &o));
    hotbed_storage *storage = hotbed_new(sizeof *storage);
    if (storage == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a storage");
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
    hotbed_storage_take_back(storage, NULL);
    for (uint32_t t = 0; storage->tables != NULL && t < storage->num_tables; t++) {
        hotbed_memory_free(&storage->tables[t].rows);
        hotbed_memory_free(&storage->tables[t].times);
        hotbed_memory_free(&storage->tables[t].lower_rows);
        hotbed_memory_free(&storage->tables[t].lower_index);
        hotbed_growth_free(&storage->tables[t]);
    }
    hotbed_storage_close_external(storage);
    hotbed_growth_destroy(storage);
    hotbed_delete(storage->lower_directory);
    hotbed_memory_free(&storage->index_keys);
    hotbed_memory_free(&storage->index_metas);
    hotbed_memory_free(&storage->described);
    hotbed_memory_free(&storage->warning);
    hotbed_delete(storage->tables);
    hotbed_delete(storage->feature_tables);
    hotbed_delete(storage->columns);
    hotbed_delete(storage);
}

/* --- description ------------------------------------------------------------------------------ */

hotbed_status hotbed_storage_same_device(
    const hotbed_storage *storage, const hotbed_stream *stream) {
    if (storage == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "storage is NULL");
    if (stream == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "stream is NULL");
    if (hotbed_stream_backend(stream) != storage->backend ||
        hotbed_stream_device(stream) != storage->device)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "the stream is of %s %d, the storage of %s %d",
            hotbed_backend_name(hotbed_stream_backend(stream)), hotbed_stream_device(stream),
            hotbed_backend_name(storage->backend), storage->device);
    return HOTBED_OK;
}

hotbed_status hotbed_storage_check_table(
    const hotbed_storage *storage, uint32_t table, const hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    if (table >= storage->num_tables)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %u is not below %u", table, storage->num_tables);
    return HOTBED_OK;
}

hotbed_status hotbed_storage_may_wait(const hotbed_stream *stream) {
    if (hotbed_stream_recording(stream))
        return hotbed_fail(HOTBED_ERR_STATE, "cannot wait for the stream while it records a graph");
    return HOTBED_OK;
}

hotbed_fault *hotbed_storage_faults(const hotbed_storage *storage, hotbed_stream *stream) {
    if (storage->check == HOTBED_CHECK_ERROR)
        return hotbed_stream_faults(stream);
    return storage->warning.data; /* NULL unless WARN */
}

/* Number of lower-tier rows from which reading them by address pays: four per 2 MiB page, so that
 * rows share the link's page lookups. */
static uint32_t below_from(const hotbed_storage *storage) {
    enum { ROWS_A_PAGE = 4, PAGE_SHIFT = 21 };
    uint64_t bytes = __atomic_load_n(&storage->lower_bytes, __ATOMIC_RELAXED);
    uint64_t rows = (bytes >> PAGE_SHIFT) * ROWS_A_PAGE + 1;
    return rows < UINT32_MAX ? (uint32_t)rows : UINT32_MAX;
}

hotbed_step_view hotbed_storage_step(const hotbed_storage *storage) {
    hotbed_step_view step = {
        .tables = storage->device_tables,
        .feature_tables = storage->device_feature_tables,
        .columns = storage->device_columns,
        .index = storage->index,
        .index_slots = HOTBED_SLOT_UNINDEXED,
        .clock = storage->clock,
        .tallies = storage->tallies,
        .timer = storage->timer,
        .custom_scores = storage->custom_scores,
        .below = storage->below,
        .holding = storage->holding,
        .num_tables = storage->num_tables,
        .num_features = storage->num_features,
        .pooling = (uint32_t)storage->pooling,
        .output_dtype = (uint32_t)storage->output_dtype,
        .bulk_bytes = storage->bulk_bytes,
        .move_sms = storage->move_sms,
        .below_from = below_from(storage),
        .plain_rows = storage->plain_rows,
    };
    return step;
}

hotbed_status hotbed_storage_table(
    const hotbed_storage *storage, uint32_t table, hotbed_table_info *out) {
    if (storage == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "storage is NULL");
    HOTBED_TRY(hotbed_output_check(out, "hotbed_table_info"));
    if (table >= storage->num_tables)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %u is not below %u", table, storage->num_tables);
    const hotbed_table *t = &storage->tables[table];
    hotbed_index_bytes bytes = hotbed_table_index_bytes(t);
    hotbed_table_info info = {
        .name = t->name,
        .dim = t->view.dim,
        .kind = t->kind,
        .dtype = t->dtype,
        .capacity = t->capacity,
        .slots = t->view.slots,
        .first_slot = t->view.first_slot,
        .row_bytes = t->view.row_bytes,
        .index_bytes = bytes.upper + bytes.lower,
        .weights = t->view.rows,
        .state_offsets = {t->view.state_offset[0], t->view.state_offset[1]},
        .upper_capacity = t->upper_capacity,
        .lower_slots = t->view.lower_slots,
        .first_lower_slot = t->view.lower_slots == 0 ? HOTBED_SLOT_NONE : t->view.lower_first,
        .lower_weights = t->view.lower_rows,
        .max_capacity = t->most,
        .segment_slots = hotbed_table_all_slots(t) - t->view.slots - t->view.lower_slots,
        .segments = t->num_grown,
        .score = (hotbed_score_strategy)t->view.score,
        .lower_index_bytes = bytes.lower,
        .lower_index_memory =
            t->view.lower_slots == 0 ? (hotbed_memory_kind)0 : storage->lower_index_memory,
        .insertion = t->view.probation != 0 ? HOTBED_INSERT_PROBATION : HOTBED_INSERT_PLAIN,
    };
    hotbed_output_write(out, &info, sizeof info);
    return HOTBED_OK;
}

uint32_t hotbed_storage_num_tables(const hotbed_storage *storage) {
    return storage->num_tables;
}

uint32_t hotbed_storage_num_features(const hotbed_storage *storage) {
    return storage->num_features;
}

hotbed_key_type hotbed_storage_key_type(const hotbed_storage *storage) {
    return storage->key_type;
}

const hotbed_optimizer *hotbed_storage_optimizer(const hotbed_storage *storage) {
    return &storage->optimizer;
}

uint64_t hotbed_storage_seed(const hotbed_storage *storage) {
    return storage->seed;
}

hotbed_mode hotbed_storage_mode(const hotbed_storage *storage) {
    return storage->mode;
}

uint64_t hotbed_storage_column(const hotbed_storage *storage, uint32_t feature) {
    return storage->columns[feature < storage->num_features ? feature : storage->num_features];
}

uint64_t hotbed_storage_columns(const hotbed_storage *storage) {
    return storage->columns[storage->num_features];
}

/* --- state ------------------------------------------------------------------------------------ */

hotbed_status hotbed_storage_get_state(
    hotbed_storage *storage, hotbed_storage_state *out, hotbed_stream *stream) {
    hotbed_clock clock;
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_storage_state"));
    HOTBED_TRY(hotbed_storage_may_wait(stream));
    HOTBED_TRY(hotbed_copy(&clock, storage->clock, sizeof clock, stream));
    HOTBED_TRY(hotbed_stream_finish(stream));
    hotbed_storage_state state = {
        .optimizer_steps = clock.optimizer.steps,
        .clock = clock.prefetches,
        .beta1_power = clock.optimizer.beta1_power,
        .beta2_power = clock.optimizer.beta2_power,
        .learning_rate = clock.optimizer.learning_rate,
    };
    hotbed_output_write(out, &state, sizeof state);
    return HOTBED_OK;
}

hotbed_status hotbed_storage_set_state(
    hotbed_storage *storage, const hotbed_storage_state *state, hotbed_stream *stream) {
    hotbed_storage_state s;
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    HOTBED_TRY(hotbed_options_read(
        &s, sizeof s, offsetof(hotbed_storage_state, learning_rate) + sizeof s.learning_rate, state,
        "hotbed_storage_state"));
    const double power[2] = {s.beta1_power, s.beta2_power};
    for (int b = 0; b < 2; b++)
        if (!(power[b] >= 0.0 && power[b] <= 1.0))
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "beta%d_power %g is not in [0, 1]", b + 1, power[b]);
    if (s.clock > HOTBED_SCORE_MOST)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "clock %llu is over 2^52 - 1", (unsigned long long)s.clock);
    if (!isfinite(s.learning_rate))
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "learning_rate is not finite");
    hotbed_clock clock = {
        .prefetches = s.clock,
        .optimizer =
            {.steps = s.optimizer_steps,
             .beta1_power = s.beta1_power,
             .beta2_power = s.beta2_power,
             .learning_rate = s.learning_rate},
    };
    hotbed_clock_correct(&clock);
    HOTBED_TRY(hotbed_storage_may_wait(stream));
    HOTBED_TRY(hotbed_copy(storage->clock, &clock, sizeof clock, stream));
    return hotbed_stream_finish(stream);
}

hotbed_status hotbed_storage_now(
    hotbed_storage *storage, uint32_t table, uint64_t *now, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_check_table(storage, table, stream));
    if (now == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "now is NULL");
    const hotbed_table_view *view = &storage->tables[table].view;
    bool timed = view->score == HOTBED_SCORE_TIMESTAMP || view->score == HOTBED_SCORE_TIMESTAMP_LFU;
    if (view->is_static != 0 || (!timed && view->score != HOTBED_SCORE_STEP))
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "table %s has no clock: it is %s", storage->tables[table].name,
            view->is_static != 0                 ? "STATIC"
            : view->score == HOTBED_SCORE_CUSTOM ? "CUSTOM"
                                                 : "LFU");
    HOTBED_TRY(hotbed_storage_may_wait(stream));
    hotbed_timer timer = {0};
    hotbed_clock clock = {0};
    if (timed)
        HOTBED_TRY(hotbed_copy(&timer, storage->timer, sizeof timer, stream));
    else
        HOTBED_TRY(hotbed_copy(&clock, storage->clock, sizeof clock, stream));
    HOTBED_TRY(hotbed_stream_finish(stream));
    uint64_t time = timer.now > timer.newest ? timer.now : timer.newest;
    *now = timed ? time : clock.prefetches;
    return HOTBED_OK;
}

hotbed_status hotbed_storage_stats(
    hotbed_storage *storage, uint32_t table, hotbed_table_stats *out, hotbed_stream *stream) {
    hotbed_tally tally;
    HOTBED_TRY(hotbed_storage_check_table(storage, table, stream));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_table_stats"));
    HOTBED_TRY(hotbed_storage_may_wait(stream));
    HOTBED_TRY(hotbed_copy(&tally, storage->tallies + table, sizeof tally, stream));
    HOTBED_TRY(hotbed_stream_finish(stream));
    hotbed_table_stats stats = hotbed_stats_of(tally, storage->tables[table].view.row_bytes);
    hotbed_output_write(out, &stats, sizeof stats);
    return HOTBED_OK;
}

hotbed_table_stats hotbed_stats_of(hotbed_tally tally, uint64_t row_bytes) {
    hotbed_table_stats stats = {
        .size = sizeof stats,
        .keys = tally.keys,
        .uniques = tally.uniques,
        .hits = tally.uniques - tally.inserts - tally.refused - tally.rejected,
        .inserts = tally.inserts,
        .evictions = tally.evictions,
        .refused = tally.refused,
        .rejected = tally.rejected,
        .fetches = tally.fetches,
        .in_place = tally.in_place,
        .write_backs = tally.write_backs,
        .link_read_bytes = tally.fetches * row_bytes,
        .link_write_bytes = tally.write_backs * row_bytes,
    };
    return stats;
}

hotbed_status hotbed_storage_warning(hotbed_storage *storage, char *text, size_t capacity) {
    if (storage == NULL || text == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "%s is NULL", storage == NULL ? "storage" : "text");
    if (capacity == 0)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "capacity is 0");
    text[0] = 0;
    if (storage->warning.data != NULL)
        hotbed_fault_text(storage->warning.data, text, capacity);
    return HOTBED_OK;
}
