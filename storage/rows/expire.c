/* storage/rows/expire.c - hotbed_storage_expire(): removes keys by age and value. */
#include "base/options.h"
#include "storage/storage.h"

static hotbed_status check(const hotbed_storage *storage, const hotbed_expiry *e) {
    const hotbed_table *table = &storage->tables[e->table];
    const uint32_t score = table->view.score;
    if (table->view.is_static != 0)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, table->name, "table %s is static: its rows do not expire",
            table->name);
    if (storage->external != NULL)
        return hotbed_fail_table(
            HOTBED_ERR_UNSUPPORTED, table->name,
            "table %s: rows in an external store do not expire; erase their keys", table->name);
    if (!(e->min_norm >= 0.0F))
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "min_norm", e->min_norm, 0,
            "table %s: min_norm %g is not at least 0", table->name, (double)e->min_norm);
    if (e->unseen != 0 && (score == HOTBED_SCORE_LFU || score == HOTBED_SCORE_CUSTOM))
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, table->name,
            "table %s has no clock for unseen %llu: it is %s; use min_score", table->name,
            (unsigned long long)e->unseen, score == HOTBED_SCORE_LFU ? "LFU" : "CUSTOM");
    if (e->unseen == 0 && e->min_score == 0 && e->min_norm == 0.0F)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, table->name,
            "table %s: unseen, min_score and min_norm are 0, so nothing can expire; "
            "hotbed_storage_clear() removes all keys",
            table->name);
    return HOTBED_OK;
}

hotbed_status hotbed_storage_expire(
    hotbed_storage *storage, const hotbed_expiry *expiry, hotbed_stream *stream) {
    hotbed_expiry e;
    hotbed_expire_args args = {.at = NULL};
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    HOTBED_TRY(HOTBED_OPTIONS_READ(&e, hotbed_expiry, slots, expiry));
    HOTBED_TRY(hotbed_storage_rows_args(storage, e.table, 0, NULL, NULL, NULL, stream, &args.rows));
    HOTBED_TRY(check(storage, &e));
    hotbed_table *table = &storage->tables[e.table];
    args.at = storage->expire_at + e.table;
    args.all = hotbed_table_all_slots(table);
    args.slots = e.slots == 0 || e.slots > args.all ? args.all : e.slots;
    args.unseen = e.unseen;
    args.min_score = e.min_score;
    args.min_norm = e.min_norm;
    __atomic_store_n(&table->search_work, 0, __ATOMIC_RELAXED);
    if (hotbed_stream_recording(stream))
        __atomic_store_n(&table->graph_erases, true, __ATOMIC_RELAXED);
    return storage->kernels.rows->expire(&args, stream);
}
