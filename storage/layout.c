/* storage/layout.c - gives each table its slots in the index and in the tiers, and its regions. */
#include "storage/storage.h"

#include "hotbed/storage.h"
#include "storage/index/index_range.h"

#include <math.h>

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

uint64_t hotbed_layout_growing_keys(
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
    uint64_t keys = hotbed_layout_growing_keys(storage, table, table->capacity);
    view->lower_first = storage->index_slots;
    view->lower = storage->lower_index_memory == HOTBED_MEMORY_DEVICE
                      ? take_range(storage, keys, table->evicts)
                      : hotbed_index_range_make(keys, table->evicts, 0);
    view->lower.flags = storage->tiers == HOTBED_TIERS_CACHE;
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
        hotbed_layout_growing_keys(storage, table, table->most), table->evicts, 0));
}

/* Choose the regions of the lower tier by which moves are sorted. */
static void lay_out_bins(hotbed_storage *storage) {
    uint64_t bytes = 0;
    uint32_t shift = 24; /* 16 MiB */
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
    while (bytes >> shift >= HOTBED_BINS)
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

/* Bits of hotbed_row_number(), with one number to spare. 0 if a table has an index, or if the number
 * does not fit. */
static uint32_t row_bits(const hotbed_storage *storage) {
    uint64_t numbers = storage->num_tables + 1U;
    for (uint32_t t = 0; t < storage->num_tables; t++)
        numbers +=
            storage->tables[t].capacity < UINT32_MAX ? storage->tables[t].capacity : UINT32_MAX;
    uint32_t bits = 1;
    while (numbers >> bits != 0)
        bits++;
    return storage->indexed || bits > 31 ? 0 : bits;
}

void hotbed_storage_lay_out(hotbed_storage *storage) {
    for (uint32_t t = 0; t < storage->num_tables; t++)
        lay_out_upper(storage, &storage->tables[t]);
    for (uint32_t t = 0; t < storage->num_tables; t++)
        lay_out_lower(storage, &storage->tables[t]);
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        const hotbed_table_view *view = &storage->tables[t].view;
        storage->indexed = storage->indexed || hotbed_table_indexed(view);
        storage->keys_leave = storage->keys_leave || view->range.evicts != 0;
    }
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
    storage->row_bits = row_bits(storage);
    lay_out_segments(storage);
    lay_out_bins(storage);
    storage->bulk_bytes = bulk_bytes(storage);
}
