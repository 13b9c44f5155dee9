/* storage/storage_info.c - argument checks that all calls share, the view of a storage for
 * kernels, and calls that describe a storage. */
#include "storage/storage.h"

#include "base/check.h"
#include "base/options.h"
#include "base/stream.h"

#include <stdio.h>

/* --- checks and views for other files --------------------------------------------------------- */

hotbed_status hotbed_storage_same_device(
    const hotbed_storage *storage, const hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer("storage", storage));
    return hotbed_check_stream(stream, "storage", storage->backend, storage->device);
}

hotbed_status hotbed_storage_check_held(uint32_t held) {
    if (held > 0)
        return hotbed_error_cause_is(
            hotbed_fail_value(
                HOTBED_ERR_STATE, "tickets", held,
                "%u tickets hold rows: end each batch by backward or hotbed_ticket_cancel(), and "
                "forget tickets that are kept",
                held),
            HOTBED_CAUSE_HELD);
    return HOTBED_OK;
}

hotbed_status hotbed_storage_check_table(
    const hotbed_storage *storage, uint32_t table, const hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    return hotbed_check_below("table", table, storage->num_tables);
}

hotbed_fault *hotbed_storage_faults(const hotbed_storage *storage, hotbed_fault *of_stream) {
    return storage->check == HOTBED_CHECK_ERROR ? of_stream
                                                : storage->warning.data; /* NULL unless WARN */
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
        .storage =
            {
                .tables = storage->device_tables,
                .feature_tables = storage->device_feature_tables,
                .columns = storage->device_columns,
                .index = storage->index,
                .index_slots = HOTBED_SLOT_UNINDEXED,
                .clock = storage->clock,
                .tallies = storage->tallies,
                .timer = storage->timer,
                .custom_scores = storage->custom_scores,
                .holding = storage->holding,
                .zeros = storage->zeros,
                .tracker = storage->tracker,
                .num_tables = storage->num_tables,
                .num_features = storage->num_features,
                .pooling = (uint32_t)storage->pooling,
                .output_dtype = (uint32_t)storage->output_dtype,
                .indexed = storage->indexed,
                .keys_leave = storage->keys_leave,
                .rows_form = storage->rows_form,
                .row_bits = storage->row_bits,
            },
        .moves = {.bulk_bytes = storage->bulk_bytes, .sms = storage->move_sms},
        .eval = {.below = storage->below, .below_from = below_from(storage)},
    };
    return step;
}

/* --- description ------------------------------------------------------------------------------ */

/* Bytes of what a table with track_changes keeps of its slots. */
static uint64_t changed_bytes(const hotbed_table *table) {
    uint64_t bytes =
        hotbed_changed_bytes(table->view.slots) + hotbed_changed_bytes(table->view.lower_slots);
    for (const hotbed_grown *g = table->grown; g != NULL; g = g->next)
        bytes += hotbed_changed_bytes(hotbed_index_range_slots(g->segment.range));
    return bytes;
}

hotbed_status hotbed_storage_table(
    const hotbed_storage *storage, uint32_t table, hotbed_table_info *out) {
    HOTBED_TRY(hotbed_check_pointer("storage", storage));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_table_info"));
    HOTBED_TRY(hotbed_check_below("table", table, storage->num_tables));
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
        .state_dtypes =
            {(hotbed_dtype)t->view.state_dtype[0], (hotbed_dtype)t->view.state_dtype[1]},
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
        .eval_value = t->view.eval_value,
        .change_bytes = t->tracks ? changed_bytes(t) : 0,
    };
    hotbed_output_write(out, &info, sizeof info);
    return HOTBED_OK;
}

uint32_t hotbed_storage_num_tables(const hotbed_storage *storage) {
    return storage == NULL ? 0 : storage->num_tables;
}

hotbed_key_type hotbed_storage_key_type(const hotbed_storage *storage) {
    return storage == NULL ? (hotbed_key_type)0 : storage->key_type;
}

const hotbed_optimizer *hotbed_storage_optimizer(const hotbed_storage *storage) {
    return storage == NULL ? NULL : &storage->optimizer;
}

hotbed_mode hotbed_storage_mode(const hotbed_storage *storage) {
    return storage == NULL ? (hotbed_mode)0 : storage->mode;
}

uint64_t hotbed_storage_columns(const hotbed_storage *storage) {
    return storage == NULL ? 0 : storage->columns[storage->num_features];
}

/* Whether rows or admissions of new keys depend on the seed. */
static bool draws(const hotbed_storage *storage) {
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        const hotbed_table_view *view = &storage->tables[t].view;
        bool random =
            view->init.kind != HOTBED_INIT_CONSTANT && view->init.kind != HOTBED_INIT_DEBUG;
        if (storage->tables[t].kind == HOTBED_TABLE_HASH &&
            (random || view->admission == HOTBED_ADMIT_PROBABILISTIC))
            return true;
    }
    return false;
}

void hotbed_storage_warn_of_seed(hotbed_storage *storage, uint64_t saved) {
    /* Acquires the reader's release: it no longer reads the text. */
    bool unread = __atomic_load_n(&storage->load_warned, __ATOMIC_ACQUIRE) != 0;
    if (saved == storage->seed || !draws(storage) || unread)
        return;
    (void)snprintf(
        storage->load_warning, sizeof storage->load_warning,
        "the checkpoint was saved with seed %llu, but the storage has seed %llu: new keys get "
        "other "
        "initial rows than in the run that saved it",
        (unsigned long long)saved, (unsigned long long)storage->seed);
    __atomic_store_n(&storage->load_warned, 1, __ATOMIC_RELEASE);
}

hotbed_status hotbed_storage_set_keys(
    hotbed_storage *storage, uint32_t table, const hotbed_table_keys *keys, hotbed_stream *stream) {
    hotbed_table_view *view = &storage->tables[table].view;
    hotbed_memory staging = {0};
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, sizeof *view, NULL, &staging));
    view->first_key = keys->first;
    view->key_step = keys->step;
    memcpy(staging.data, view, sizeof *view);
    hotbed_status status =
        hotbed_copy(&storage->device_tables[table], staging.data, sizeof *view, stream);
    HOTBED_THEN(status, hotbed_stream_finish(stream));
    hotbed_memory_free(&staging);
    hotbed_table_names_set_keys(storage->names, table, keys);
    return status;
}

hotbed_status hotbed_storage_warning(
    hotbed_storage *storage, char *text, size_t capacity, hotbed_error_detail *detail) {
    HOTBED_TRY(hotbed_check_pointer("storage", storage));
    HOTBED_TRY(hotbed_check_pointer("text", text));
    if (capacity == 0)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "capacity is 0");
    if (detail != NULL)
        HOTBED_TRY(hotbed_output_check(detail, "hotbed_error_detail"));
    hotbed_error found = {.fields = {.size = sizeof found.fields}};
    if (__atomic_load_n(&storage->load_warned, __ATOMIC_ACQUIRE) != 0) {
        (void)snprintf(found.text, sizeof found.text, "%s", storage->load_warning);
        __atomic_store_n(&storage->load_warned, 0, __ATOMIC_RELEASE);
    } else if (storage->warning.data != NULL) {
        (void)hotbed_fault_take(storage->warning.data, storage->names, &found);
    }
    (void)snprintf(text, capacity, "%s", found.text);
    if (detail != NULL)
        hotbed_output_write(detail, &found.fields, sizeof found.fields);
    return HOTBED_OK;
}
