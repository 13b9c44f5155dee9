/* storage/rows/export.c - hotbed_storage_export(): the keys and rows of a table in batches; used by
 * checkpoints. */
#include "hotbed/export.h"

#include "base/check.h"
#include "base/options.h"
#include "storage/external_tier.h"
#include "storage/storage.h"

#define WINDOW_MOST ((uint64_t)1 << 30)

hotbed_status hotbed_storage_export(
    hotbed_storage *storage, const hotbed_export *batch, hotbed_stream *stream) {
    hotbed_export e;
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    HOTBED_TRY(HOTBED_OPTIONS_READ(&e, hotbed_export, rows, batch));
    HOTBED_TRY(hotbed_storage_check_table(storage, e.table, stream));
    HOTBED_TRY(hotbed_check_range("slots", e.slots, 1, WINDOW_MOST));
    HOTBED_TRY(hotbed_check_pointer("count", e.count));
    if (e.capacity == 0)
        e.capacity = e.slots;
    const hotbed_table_view *table = &storage->tables[e.table].view;
    hotbed_export_args args = {
        .table = *table,
        .index = storage->index,
        .keys = e.keys,
        .numbers = e.numbers,
        .count = e.count,
        .capacity = e.capacity,
        .min_score = e.min_score,
        .min_time = e.min_time,
        .since = e.since,
    };
    if (e.since != NULL && table->changed == NULL)
        return hotbed_fail_untracked(storage, e.table);
    if (e.min_time != 0 && table->range.times == NULL)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, storage->tables[e.table].name,
            "min_time is set, but table %s is not TIMESTAMP_LFU", storage->tables[e.table].name);
    HOTBED_TRY(hotbed_storage_rows_view(storage, e.table, &e.rows, &args.rows));
    if (storage->external != NULL)
        return hotbed_export_external(storage, &e, stream);
    uint64_t slots = hotbed_table_all_slots(&storage->tables[e.table]);
    args.first = e.first < slots ? e.first : slots;
    args.slots = slots - args.first < e.slots ? slots - args.first : e.slots;
    return hotbed_export_slots(storage, &args, stream);
}

hotbed_status hotbed_storage_export_end(
    hotbed_storage *storage, uint32_t table, uint64_t *end, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_check_table(storage, table, stream));
    HOTBED_TRY(hotbed_check_pointer("end", end));
    if (storage->external != NULL)
        return hotbed_storage_size(storage, table, end, NULL, stream);
    *end = hotbed_table_all_slots(&storage->tables[table]);
    return HOTBED_OK;
}
