/* storage/mode.c - which mode a storage has, how its tables are laid out, and the flush of a
 * cache. */
#include "storage/storage.h"

#include "hotbed/growth.h"
#include "storage/index_range.h"

#include <math.h>
#include <stdio.h>

/* --- choice ----------------------------------------------------------------------------------- */

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

/* Most keys of a table that has at most `slots` slots; at least the keys of the smallest range. */
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
    (void)snprintf(text, 32, unit == 0 ? "%.0f %s" : "%.3g %s", value, units[unit]);
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

/* Set each upper tier's number of keys: from the table's option, or its share of the budget in
 * proportion to bytes. */
static hotbed_status size_uppers(
    hotbed_storage *storage, const hotbed_storage_options *options, uint64_t bytes) {
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        hotbed_table *table = &storage->tables[t];
        uint64_t keys = table->upper_capacity;
        if (keys == 0 && options->hbm_bytes == 0)
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "mode %s: table %s has no upper_capacity, and hbm_bytes is 0",
                mode_name(storage), table->name);
        if (keys == 0) {
            double rows = (double)counted_rows(table, options->budget);
            keys = (uint64_t)((double)options->hbm_bytes * rows / (double)bytes);
            keys = options->budget == HOTBED_BUDGET_KEYS ? keys : keys_in(keys);
            keys = keys > 0 ? keys : 1;
        }
        table->upper_capacity = keys < table->most ? keys : table->most;
    }
    return HOTBED_OK;
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
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT,
                "table %s: max_capacity is %llu, but tables over an external store have no limit",
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
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED, "lower_memory %d: a GPU reads and writes PINNED memory only",
            (int)storage->lower_memory);
    if (storage->backend == HOTBED_BACKEND_CUDA &&
        storage->lower_index_memory > HOTBED_MEMORY_PINNED)
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED,
            "lower_index_memory %d: a GPU reads and writes DEVICE and PINNED memory only",
            (int)storage->lower_index_memory);
    return size_uppers(storage, options, bytes);
}

hotbed_status hotbed_storage_explain(const hotbed_storage *storage, char *text, size_t capacity) {
    if (storage == NULL || text == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "%s is NULL", storage == NULL ? "storage" : "text");
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
    return HOTBED_OK;
}

/* --- layout ----------------------------------------------------------------------------------- */

/* Take the next slots of the index. */
static hotbed_index_range take_range(hotbed_storage *storage, uint64_t capacity, bool evicts) {
    hotbed_index_range range =
        hotbed_index_range_make(capacity, evicts, storage->index_slots / HOTBED_BUCKET_SLOTS);
    storage->index_slots += hotbed_index_range_slots(range);
    return range;
}

/* Capacity for an expected number of keys that is chosen by hash: six standard deviations more. */
static uint64_t with_spread(uint64_t share) {
    return share + (uint64_t)(6.0 * sqrt((double)share)) + 1;
}

static void lay_out_upper(hotbed_storage *storage, hotbed_table *table) {
    hotbed_table_view *view = &table->view;
    uint64_t keys = table->upper_capacity;
    view->tiers = (uint32_t)storage->tiers;
    if (storage->tiers == HOTBED_TIERS_ONE) {
        if (view->is_static != 0)
            return; /* rows without an index come after the index's slots */
        keys = table->capacity;
    }
    bool hash = storage->tiers == HOTBED_TIERS_HASH;
    bool evicts = hash || storage->tiers == HOTBED_TIERS_ONE ? table->evicts : true;
    view->first_slot = storage->index_slots;
    view->range = take_range(storage, hash ? with_spread(keys) : keys, evicts);
    view->slots = hotbed_index_range_slots(view->range);
}

/* How many of `capacity` keys hashing puts into the upper tier. Integer arithmetic makes the
 * remainder monotonic in `capacity`: a growth adds the difference of two remainders. */
static uint64_t upper_share(const hotbed_table *table, uint64_t capacity) {
    __extension__ typedef unsigned __int128 wide; /* both factors may have 35 bits */
    return (uint64_t)((wide)capacity * table->upper_capacity / table->most);
}

uint64_t hotbed_mode_growing_keys(
    const hotbed_storage *storage, const hotbed_table *table, uint64_t capacity) {
    uint64_t upper = table->upper_capacity;
    switch (storage->tiers) {
    case HOTBED_TIERS_SCORE:
        /* Rows are demoted before others are promoted, so the lower tier needs extra slots. */
        return capacity - (upper < capacity ? upper : capacity) / 2;
    case HOTBED_TIERS_HASH:
        return with_spread(capacity - upper_share(table, capacity));
    default:
        return capacity;
    }
}

static void lay_out_lower(hotbed_storage *storage, hotbed_table *table) {
    hotbed_table_view *view = &table->view;
    if (storage->tiers == HOTBED_TIERS_ONE || storage->tiers == HOTBED_TIERS_EXTERNAL)
        return;
    if (storage->tiers == HOTBED_TIERS_HASH) {
        double share = (double)table->upper_capacity / (double)table->most;
        view->split = share >= 1.0 ? UINT64_MAX : (uint64_t)(share * 18446744073709551616.0);
    }
    uint64_t keys = hotbed_mode_growing_keys(storage, table, table->capacity);
    view->lower_first = storage->index_slots;
    view->lower = storage->lower_index_memory == HOTBED_MEMORY_DEVICE
                      ? take_range(storage, keys, table->evicts)
                      : hotbed_index_range_make(keys, table->evicts, 0);
    view->lower.marks = storage->tiers == HOTBED_TIERS_CACHE;
    if (hotbed_table_moves(view)) {
        hotbed_index_range_regions(&view->range);
        hotbed_index_range_regions(&view->lower);
    }
    view->lower_slots = hotbed_index_range_slots(view->lower);
}

/* Number the segments of tables that grow. A lower tier that is a segment comes before the
 * segments that growth adds to it. */
static void lay_out_segments(hotbed_storage *storage) {
    uint32_t next = 1;
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        hotbed_table *table = &storage->tables[t];
        hotbed_table_view *view = &table->view;
        if (view->lower_slots > 0 && storage->lower_index_memory != HOTBED_MEMORY_DEVICE) {
            view->lower.first_bucket = (uint64_t)next << HOTBED_SEGMENT_BUCKET_SHIFT;
            view->lower_first = hotbed_index_slot(view->lower, 0);
            next++;
        }
        if (table->most == table->capacity)
            continue;
        hotbed_index_range *range = view->lower.buckets != 0 ? &view->lower : &view->range;
        range->segment = next;
        next += HOTBED_GROWTHS_MOST + 1;
    }
    storage->num_segments = next == 1 ? 0 : next;
}

/* Slots of a table's lower tier at its largest size. */
static uint64_t lower_most(const hotbed_storage *storage, const hotbed_table *table) {
    return hotbed_index_range_slots(hotbed_index_range_make(
        hotbed_mode_growing_keys(storage, table, table->most), table->evicts, 0));
}

/* Choose the regions of the lower tier by which moves are sorted. */
static void lay_out_bins(hotbed_storage *storage) {
    uint64_t bytes = 0;
    uint32_t shift = 27; /* 128 MiB */
    storage->lower_bytes = 0;
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        const hotbed_table *table = &storage->tables[t];
        hotbed_table_view *view = &storage->tables[t].view;
        view->lower_byte = bytes;
        if (view->lower_slots == 0)
            continue;
        bytes += lower_most(storage, table) * view->row_bytes;
        storage->lower_bytes += view->lower_slots * view->row_bytes;
    }
    while (bytes >> shift >= HOTBED_MOVE_BINS)
        shift++;
    for (uint32_t t = 0; t < storage->num_tables; t++)
        storage->tables[t].view.bin_shift = shift;
}

/* Longest row of the tables whose rows move; 0 if any row's size is not a multiple of 16 bytes. */
static uint32_t bulk_bytes(const hotbed_storage *storage) {
    uint64_t most = 0;
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        const hotbed_table_view *view = &storage->tables[t].view;
        if (!hotbed_table_moves(view))
            continue;
        if (view->row_bytes % 16 != 0)
            return 0;
        most = view->row_bytes > most ? view->row_bytes : most;
    }
    return (uint32_t)most;
}

void hotbed_mode_lay_out(hotbed_storage *storage) {
    for (uint32_t t = 0; t < storage->num_tables; t++)
        lay_out_upper(storage, &storage->tables[t]);
    for (uint32_t t = 0; t < storage->num_tables; t++)
        lay_out_lower(storage, &storage->tables[t]);
    for (uint32_t t = 0; t < storage->num_tables; t++)
        storage->keys_leave = storage->keys_leave || storage->tables[t].view.range.evicts != 0;
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        hotbed_table *table = &storage->tables[t];
        if (table->view.admission == HOTBED_ADMIT_FREQUENCY)
            table->view.counter = take_range(storage, table->counted, true);
    }
    uint64_t next = HOTBED_SLOT_UNINDEXED;
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        hotbed_table_view *view = &storage->tables[t].view;
        if (hotbed_table_indexed(view))
            continue;
        view->first_slot = next;
        view->slots = view->capacity;
        next += view->slots;
    }
    lay_out_segments(storage);
    lay_out_bins(storage);
    storage->bulk_bytes = bulk_bytes(storage);
}

/* --- flush ------------------------------------------------------------------------------------ */

hotbed_status hotbed_storage_flush_table(
    hotbed_storage *storage, uint32_t table, bool drop, hotbed_stream *stream) {
    if (storage->external != NULL)
        return hotbed_storage_flush_external(storage, table, drop, stream);
    if (storage->tiers != HOTBED_TIERS_CACHE)
        return HOTBED_OK;
    hotbed_flush_args args = {
        .table = storage->tables[table].view,
        .index = storage->index,
        .tally = storage->tallies + table,
        .drop = drop,
    };
    return storage->kernels.tier->flush(&args, stream);
}

hotbed_status hotbed_storage_flush(hotbed_storage *storage, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    for (uint32_t t = 0; t < storage->num_tables; t++)
        HOTBED_TRY(hotbed_storage_flush_table(storage, t, false, stream));
    return HOTBED_OK;
}

hotbed_status hotbed_storage_reset(hotbed_storage *storage, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    if (!hotbed_stream_recording(stream))
        hotbed_storage_take_back(storage, stream);
    uint32_t held = __atomic_load_n(&storage->held, __ATOMIC_RELAXED);
    if (held > 0)
        return hotbed_fail(HOTBED_ERR_STATE, "%u tickets hold rows", held);
    for (uint32_t t = 0; t < storage->num_tables; t++)
        HOTBED_TRY(hotbed_storage_flush_table(storage, t, true, stream));
    return HOTBED_OK;
}
