/* storage/rows/changes.c - the calls of hotbed/changes.h. */
#include "hotbed/changes.h"

#include "base/check.h"
#include "base/options.h"
#include "storage/external_tier.h"
#include "storage/storage.h"

hotbed_status hotbed_fail_untracked(const hotbed_storage *storage, uint32_t table) {
    return hotbed_fail_table(
        HOTBED_ERR_ARGUMENT, storage->tables[table].name,
        "table %s does not track changes: set track_changes when the storage is created",
        storage->tables[table].name);
}

hotbed_status hotbed_storage_position(
    hotbed_storage *storage, hotbed_change_position *position, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    HOTBED_TRY(hotbed_check_pointer("position", position));
    if (storage->tracker == NULL)
        return hotbed_fail_untracked(storage, 0);
    const hotbed_position_args args = {
        .tracker = storage->tracker,
        .position = position,
        .tables = storage->device_tables,
        .index = storage->index,
        .num_tables = storage->num_tables,
    };
    uint64_t slots = 0;
    for (uint32_t t = 0; t < storage->num_tables; t++)
        slots += hotbed_table_all_slots(&storage->tables[t]);
    return storage->kernels.changes->position(&args, slots, stream);
}

hotbed_status hotbed_storage_removed(
    hotbed_storage *storage, const hotbed_removed *batch, hotbed_stream *stream) {
    hotbed_removed r;
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    HOTBED_TRY(hotbed_options_read(
        &r, sizeof r, offsetof(hotbed_removed, lost) + sizeof r.lost, batch, "hotbed_removed"));
    HOTBED_TRY(hotbed_storage_check_table(storage, r.table, stream));
    HOTBED_TRY(hotbed_check_pointer("since", r.since));
    HOTBED_TRY(hotbed_check_pointer("until", r.until));
    HOTBED_TRY(hotbed_check_pointer("count", r.count));
    HOTBED_TRY(hotbed_check_pointer("lost", r.lost));
    if (r.keys == NULL && r.capacity > 0)
        return hotbed_fail_null("keys");
    const hotbed_table_view *table = &storage->tables[r.table].view;
    if (table->changed == NULL)
        return hotbed_fail_untracked(storage, r.table);
    hotbed_removed_args args = {
        .rows =
            {.table = *table,
             .index = storage->index,
             .tracker = storage->tracker,
             .table_number = r.table},
        .since = r.since,
        .until = r.until,
        .keys = r.keys,
        .capacity = r.capacity,
        .count = r.count,
        .lost = r.lost,
    };
    /* keys of a STATIC table do not leave */
    const uint64_t most = table->is_static != 0 ? 0 : storage->removed_capacity;
    if (storage->external != NULL && most > 0)
        return hotbed_removed_external(storage, &args, stream);
    return storage->kernels.changes->removed(&args, most, stream);
}
