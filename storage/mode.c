/* storage/mode.c - chooses the mode of a storage and the size of its upper tiers. */
#include "storage/storage.h"

#include "base/check.h"
#include "base/text.h"
#include "storage/index/index_range.h"
#include "storage/step/row_layout.h"

#include <stdio.h>

/* Slots of a table with all rows in one tier, at its largest size. */
static uint64_t direct_slots(const hotbed_table *table) {
    if (table->view.is_static != 0)
        return table->capacity;
    return hotbed_index_range_slots(hotbed_index_range_make(table->most, table->evicts, 0));
}

/* Rows of a table that count against the budget if all are in one tier. */
static uint64_t counted_rows(const hotbed_table *table, hotbed_budget budget) {
    return budget == HOTBED_BUDGET_KEYS ? table->most : direct_slots(table);
}

/* Most keys of a table that has at most `slots` slots; at least 1. */
static uint64_t keys_in(uint64_t slots) {
    uint64_t keys = slots / 100 * 97 + slots % 100 * 97 / 100;
    while (keys > 1 && hotbed_index_range_slots(hotbed_index_range_make(keys, true, 0)) > slots)
        keys -= keys > HOTBED_BUCKET_SLOTS ? HOTBED_BUCKET_SLOTS : 1;
    return keys > 0 ? keys : 1;
}

/* Format a number of bytes for messages. */
static const char *bytes_text(char text[32], uint64_t bytes) {
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1000.0 && unit < 6) {
        value /= 1000.0;
        unit++;
    }
    (void)hotbed_format(text, 32, unit == 0 ? "%.0f %s" : "%.3g %s", value, units[unit]);
    return text;
}

static const char *mode_name(const hotbed_storage *storage) {
    switch (storage->tiers) {
    case HOTBED_TIERS_CACHE:
        return "CACHE";
    case HOTBED_TIERS_EXTERNAL:
        return "CACHE over an external store";
    case HOTBED_TIERS_SCORE:
        return "DEFAULT by score";
    case HOTBED_TIERS_HASH:
        return "DEFAULT by hash";
    default:
        return "HBM_DIRECT";
    }
}

/* The largest number of keys for which an upper tier is sized. CACHE: a row that is also in the
 * upper tier is not evicted from the lower one, so some rows must be in the lower one alone. Of 2
 * million new keys none was refused with three fifths above, 2 with 0.7, 118 thousand with 0.9.
 * Over an external store the capacity limits nothing. */
static uint64_t most_above(const hotbed_storage *storage, const hotbed_table *table) {
    if (storage->external != NULL)
        return HOTBED_CAPACITY_MOST;
    if (storage->tiers != HOTBED_TIERS_CACHE || !table->evicts)
        return table->most;
    const uint64_t most = table->most / 5 * 3 + table->most % 5 * 3 / 5;
    return most > 0 ? most : 1;
}

/* Set each upper tier's number of keys: from the table's option, or its share of the budget in
 * proportion to bytes. */
static hotbed_status size_uppers(
    hotbed_storage *storage, const hotbed_storage_options *options, uint64_t bytes) {
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        hotbed_table *table = &storage->tables[t];
        uint64_t keys = table->upper_capacity;
        if (keys == 0 && options->hbm_bytes == 0)
            return hotbed_fail_table(
                HOTBED_ERR_ARGUMENT, table->name,
                "mode %s: table %s has no upper_capacity, and hbm_bytes is 0", mode_name(storage),
                table->name);
        if (keys == 0) {
            double rows = (double)counted_rows(table, options->budget);
            keys = (uint64_t)((double)options->hbm_bytes * rows / (double)bytes);
            keys = options->budget == HOTBED_BUDGET_KEYS ? keys : keys_in(keys);
            keys = keys > 0 ? keys : 1;
        }
        const uint64_t most = most_above(storage, table);
        table->upper_capacity = keys < most ? keys : most;
    }
    return HOTBED_OK;
}

/* Lengthen rows that move over the link to whole lines of 128 bytes, or of 64, if that takes at most
 * an eighth more: partial lines take longer (docs/decisions/032-whole-lines.md). Returns by how many
 * bytes the rows that the budget counts are longer. */
static uint64_t pad_rows(hotbed_storage *storage, hotbed_budget budget) {
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        hotbed_table_view *view = &storage->tables[t].view;
        const uint64_t most = view->row_bytes + view->row_bytes / 8;
        uint64_t padded = hotbed_round_up(view->row_bytes, 128);
        if (padded > most)
            padded = hotbed_round_up(view->row_bytes, 64);
        if (padded > most)
            continue;
        if (budget == HOTBED_BUDGET_SLOTS)
            bytes += counted_rows(&storage->tables[t], budget) * (padded - view->row_bytes);
        view->row_bytes = padded;
    }
    return bytes;
}

/* Whether new keys of a table are on probation. */
static bool puts_on_probation(const hotbed_storage *storage, const hotbed_table *table) {
    if (table->insertion != HOTBED_INSERT_AUTO)
        return table->insertion == HOTBED_INSERT_PROBATION;
    return table->kind == HOTBED_TABLE_HASH &&
           (hotbed_storage_moves(storage) || storage->tiers == HOTBED_TIERS_EXTERNAL);
}

hotbed_status hotbed_mode_choose(hotbed_storage *storage, const hotbed_storage_options *options) {
    uint64_t bytes = 0;
    char need[32], budget[32];
    for (uint32_t t = 0; t < storage->num_tables; t++)
        bytes +=
            counted_rows(&storage->tables[t], options->budget) * storage->tables[t].view.row_bytes;
    bool fits = options->hbm_bytes == 0 || bytes <= options->hbm_bytes;
    storage->mode = storage->external != NULL ? HOTBED_MODE_CACHE : options->mode;
    if (storage->mode == HOTBED_MODE_AUTO)
        storage->mode = fits               ? HOTBED_MODE_HBM_DIRECT
                        : options->caching ? HOTBED_MODE_CACHE
                                           : HOTBED_MODE_DEFAULT;
    storage->tiers = storage->external != NULL                    ? HOTBED_TIERS_EXTERNAL
                     : storage->mode == HOTBED_MODE_CACHE         ? HOTBED_TIERS_CACHE
                     : storage->mode != HOTBED_MODE_DEFAULT       ? HOTBED_TIERS_ONE
                     : options->placement == HOTBED_PLACE_BY_HASH ? HOTBED_TIERS_HASH
                                                                  : HOTBED_TIERS_SCORE;
    for (uint32_t t = 0; t < storage->num_tables; t++)
        storage->tables[t].view.probation = puts_on_probation(storage, &storage->tables[t]);
    for (uint32_t t = 0; t < storage->num_tables && storage->external != NULL; t++)
        if (storage->tables[t].most > storage->tables[t].capacity)
            return hotbed_fail_table(
                HOTBED_ERR_ARGUMENT, storage->tables[t].name,
                "table %s: max_capacity is %llu, but tables over an external store have no "
                "limit",
                storage->tables[t].name, (unsigned long long)storage->tables[t].most);
    (void)snprintf(
        storage->why, sizeof storage->why, "needs %s, budget %s, caching %s: %s%s",
        bytes_text(need, bytes),
        options->hbm_bytes == 0 ? "none" : bytes_text(budget, options->hbm_bytes),
        options->caching ? "on" : "off", mode_name(storage),
        options->mode == HOTBED_MODE_AUTO ? "" : " (as asked for)");
    if (storage->tiers == HOTBED_TIERS_ONE)
        return HOTBED_OK;
    if (storage->backend == HOTBED_BACKEND_CUDA && storage->lower_memory != HOTBED_MEMORY_PINNED)
        return hotbed_fail_value(
            HOTBED_ERR_UNSUPPORTED, "lower_memory", storage->lower_memory,
            "lower_memory %d: a GPU reads and writes PINNED memory only",
            (int)storage->lower_memory);
    if (storage->backend == HOTBED_BACKEND_CUDA &&
        storage->lower_index_memory > HOTBED_MEMORY_PINNED)
        return hotbed_fail_value(
            HOTBED_ERR_UNSUPPORTED, "lower_index_memory", storage->lower_index_memory,
            "lower_index_memory %d: a GPU reads and writes DEVICE and PINNED memory only",
            (int)storage->lower_index_memory);
    if (hotbed_storage_moves(storage))
        bytes += pad_rows(storage, options->budget);
    return size_uppers(storage, options, bytes);
}

/* Append what a row of a table takes; nothing if the text is full. */
static void explain_row(const hotbed_table *table, char *text, size_t capacity) {
    const hotbed_table_view *view = &table->view;
    const size_t length = strlen(text);
    (void)snprintf(
        text + length, capacity - length,
        "; a row of %s: %zu bytes of %s, %zu of states, %llu in all", table->name,
        hotbed_dtype_row_bytes(table->dtype, view->dim), hotbed_dtype_name(table->dtype),
        (size_t)view->state_bytes[0] + view->state_bytes[1], (unsigned long long)view->row_bytes);
}

hotbed_status hotbed_storage_explain(const hotbed_storage *storage, char *text, size_t capacity) {
    HOTBED_TRY(hotbed_check_pointer("storage", storage));
    HOTBED_TRY(hotbed_check_pointer("text", text));
    if (capacity == 0)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "capacity is 0");
    hotbed_index_bytes all = {0, 0};
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        hotbed_index_bytes bytes = hotbed_table_index_bytes(&storage->tables[t]);
        all.upper += bytes.upper;
        all.lower += bytes.lower;
    }
    char upper[32], lower[32];
    if (all.lower == 0)
        (void)snprintf(
            text, capacity, "%s; index %s in device memory", storage->why,
            bytes_text(upper, all.upper));
    else
        (void)snprintf(
            text, capacity, "%s; index %s in device memory, the lower tier's %s in %s memory",
            storage->why, bytes_text(upper, all.upper), bytes_text(lower, all.lower),
            hotbed_memory_name(storage->lower_index_memory));
    for (uint32_t t = 0; t < storage->num_tables; t++)
        explain_row(&storage->tables[t], text, capacity);
    return HOTBED_OK;
}
