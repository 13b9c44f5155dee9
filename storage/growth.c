/* storage/growth.c - growth of tables (hotbed/storage.h): adding segments, and deciding when. */
#include "hotbed/storage.h"

#include "base/check.h"
#include "base/options.h"

#include "storage/index/index_range.h"
#include "storage/step/row_layout.h"
#include "storage/storage.h"

/* --- segments --------------------------------------------------------------------------------- */

static void free_grown(hotbed_grown *grown) {
    hotbed_memory_free(&grown->index);
    hotbed_memory_free(&grown->rows);
    hotbed_memory_free(&grown->staging);
    hotbed_delete(grown);
}

void hotbed_growth_free(hotbed_table *table) {
    for (hotbed_grown *g = table->grown, *next; g != NULL; g = next) {
        next = g->next;
        free_grown(g);
    }
    table->grown = NULL;
}

/* Number of the table's next segment. */
static uint64_t next_number(const hotbed_table *table) {
    return (uint64_t)hotbed_table_growing(&table->view).segment + table->num_grown;
}

/* Allocate a segment of `slots` slots. */
static hotbed_status allocate(
    const hotbed_storage *storage, const hotbed_table *table, uint64_t slots, hotbed_stream *stream,
    hotbed_grown *grown) {
    bool lower = table->view.lower_slots > 0, timed = table->times.data != NULL;
    size_t words = slots * sizeof(uint64_t), bytes = slots * table->view.row_bytes;
    size_t changed = table->tracks ? hotbed_changed_bytes(slots) : 0;
    hotbed_status status = hotbed_memory_alloc(
        stream, lower ? storage->lower_memory : HOTBED_MEMORY_DEVICE, bytes,
        storage->lower_directory, &grown->rows);
    if (status == HOTBED_OK)
        status = hotbed_memory_alloc(
            stream, lower ? storage->lower_index_memory : HOTBED_MEMORY_DEVICE,
            words * (timed ? 3 : 2) + changed, storage->lower_directory, &grown->index);
    if (status == HOTBED_OK)
        status = hotbed_memory_alloc(
            stream, HOTBED_MEMORY_PINNED, sizeof grown->segment, NULL, &grown->staging);
    if (status != HOTBED_OK)
        return hotbed_error_table(
            HOTBED_FAIL_AFTER(
                status, "table %s cannot grow by %llu slots, %llu bytes of rows: %s", table->name,
                (unsigned long long)slots, (unsigned long long)bytes, hotbed_last_error()),
            table->name);
    hotbed_memory_start_small(&grown->rows);
    hotbed_memory_start_small(&grown->index);
    hotbed_index_segment *segment = &grown->segment;
    segment->rows = grown->rows.data;
    segment->keys = grown->index.data;
    segment->metas = segment->keys + slots;
    segment->range.times = timed ? segment->metas + slots : NULL;
    segment->changed =
        changed == 0 ? NULL : (uint32_t *)(void *)(segment->keys + (timed ? 3 : 2) * slots);
    if (changed > 0 && !hotbed_memory_is_fresh_zero(&grown->index))
        HOTBED_TRY(hotbed_fill(segment->changed, 0, changed, stream));
    return hotbed_row_has_gaps(&table->view) && !hotbed_memory_is_fresh_zero(&grown->rows)
               ? hotbed_fill(segment->rows, 0, bytes, stream)
               : HOTBED_OK;
}

/* Free the segment's slots, then publish its description: from then on kernels search it. */
static hotbed_status publish(
    const hotbed_storage *storage, const hotbed_table *table, const hotbed_grown *grown,
    hotbed_stream *stream) {
    hotbed_index_part part = hotbed_segment_part(&grown->segment);
    hotbed_rows_args args = {.table = table->view, .index = part.index};
    args.table.range = part.range;
    HOTBED_TRY(hotbed_storage_free_slots(
        storage, &args, hotbed_memory_is_fresh_zero(&grown->index), stream));
    memcpy(grown->staging.data, &grown->segment, sizeof grown->segment);
    return hotbed_copy(
        storage->device_segments + next_number(table), grown->staging.data, sizeof grown->segment,
        stream);
}

/* Keys by which the part of a table that grows is larger at capacity `to` than at `from`. */
static uint64_t growing_keys(
    const hotbed_storage *storage, const hotbed_table *table, uint64_t from, uint64_t to) {
    return hotbed_layout_growing_keys(storage, table, to) -
           hotbed_layout_growing_keys(storage, table, from);
}

/* Grow to `capacity` by a segment for `keys` keys. */
static hotbed_status grow(
    hotbed_storage *storage, hotbed_table *table, uint64_t capacity, uint64_t keys,
    hotbed_stream *stream) {
    const hotbed_index_range first = hotbed_table_growing(&table->view);
    hotbed_grown *grown = hotbed_new(sizeof *grown), **end = &table->grown;
    if (grown == NULL)
        return hotbed_fail_table(
            HOTBED_ERR_MEMORY, table->name, "table %s: no memory for a segment", table->name);
    uint64_t below = table->view.lower_slots;
    for (; *end != NULL; end = &(*end)->next)
        below += hotbed_index_range_slots((*end)->segment.range);
    hotbed_index_segment *segment = &grown->segment;
    segment->lower_byte = table->view.lower_byte + below * table->view.row_bytes;
    segment->range = hotbed_index_range_make(keys > 0 ? keys : 1, first.evicts != 0, 0);
    segment->range.flags = first.flags;
    if (hotbed_table_moves(&table->view))
        hotbed_index_range_regions(&segment->range);
    uint64_t slots = hotbed_index_range_slots(segment->range);
    hotbed_status status = allocate(storage, table, slots, stream, grown);
    if (status == HOTBED_OK) {
        status = publish(storage, table, grown, stream);
        if (status != HOTBED_OK)
            (void)!hotbed_stream_finish(stream); /* enqueued work uses the memory */
    }
    if (status != HOTBED_OK) {
        free_grown(grown);
        return status;
    }
    *end = grown;
    __atomic_store_n(&table->search_work, 0, __ATOMIC_RELAXED);
    table->num_grown++;
    table->capacity = capacity;
    if (table->view.lower_slots > 0)
        __atomic_add_fetch(&storage->lower_bytes, slots * table->view.row_bytes, __ATOMIC_RELAXED);
    return HOTBED_OK;
}

hotbed_status hotbed_storage_grow(
    hotbed_storage *storage, uint32_t table, uint64_t capacity, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_check_table(storage, table, stream));
    hotbed_table *t = &storage->tables[table];
    if (!hotbed_table_grows(t))
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, t->name,
            "table %s does not grow: max_capacity is not above its capacity %llu", t->name,
            (unsigned long long)t->capacity);
    if (capacity > t->most)
        return hotbed_fail_table_value(
            HOTBED_ERR_ARGUMENT, t->name, "capacity", capacity,
            "table %s: capacity %llu is over max_capacity %llu", t->name,
            (unsigned long long)capacity, (unsigned long long)t->most);
    if (hotbed_stream_recording(stream))
        return hotbed_fail(
            HOTBED_ERR_STATE, "cannot grow a table while the stream records a graph");
    if (capacity <= t->capacity)
        return HOTBED_OK;
    if (t->num_grown == HOTBED_GROWTHS_MOST)
        return hotbed_fail_table(
            HOTBED_ERR_STATE, t->name, "table %s has grown %d times, and cannot grow again",
            t->name, HOTBED_GROWTHS_MOST);
    return grow(storage, t, capacity, growing_keys(storage, t, t->capacity, capacity), stream);
}

hotbed_status hotbed_growth_reserve(
    hotbed_storage *storage, uint32_t table, uint64_t keys, hotbed_stream *stream) {
    const hotbed_table *t = &storage->tables[table];
    if (!hotbed_table_grows(t) || t->num_grown == HOTBED_GROWTHS_MOST)
        return HOTBED_OK;
    const double wanted = (double)keys / (double)t->growth_load;
    const uint64_t spacious = wanted < (double)t->most ? (uint64_t)wanted + 1 : t->most;
    const hotbed_status status = hotbed_storage_grow(storage, table, spacious, stream);
    return status == HOTBED_OK
               ? HOTBED_OK
               : hotbed_storage_grow(storage, table, keys < t->most ? keys : t->most, stream);
}

/* A table that has grown in many steps has more slots than one that grows at once, because growths
 * round up, and its rows must fit into that one. */
enum { EXCESS_MOST = HOTBED_GROWTHS_MOST * 2 * HOTBED_BUCKET_SLOTS };

/* Slots that may be added beyond max_capacity: all that a table that grows at once lacks to
 * EXCESS_MOST more than it has at max_capacity. So that table can add as many rows as this one. */
static uint64_t excess_left(const hotbed_storage *storage, const hotbed_table *table) {
    const uint64_t keys = growing_keys(storage, table, table->first, table->most);
    const uint64_t most =
        hotbed_index_range_slots(hotbed_index_range_make(keys > 0 ? keys : 1, false, 0)) +
        EXCESS_MOST;
    uint64_t slots = 0;
    for (const hotbed_grown *g = table->grown; g != NULL; g = g->next)
        slots += hotbed_index_range_slots(g->segment.range);
    return slots < most ? most - slots : 0;
}

bool hotbed_growth_may_exceed(const hotbed_storage *storage, const hotbed_table *table) {
    return hotbed_table_grows(table) && hotbed_table_growing(&table->view).evicts == 0 &&
           table->capacity >= table->most && table->num_grown < HOTBED_GROWTHS_MOST &&
           excess_left(storage, table) >= 2 * HOTBED_BUCKET_SLOTS;
}

hotbed_status hotbed_growth_exceed(
    hotbed_storage *storage, uint32_t table, uint64_t keys, hotbed_stream *stream, bool *grown) {
    hotbed_table *t = &storage->tables[table];
    /* The fewest slots, because rows may take each of them. A range has two buckets at least. */
    uint64_t buckets = (keys + HOTBED_BUCKET_SLOTS - 1) / HOTBED_BUCKET_SLOTS;
    buckets = buckets < 2 ? 2 : buckets;
    *grown = hotbed_growth_may_exceed(storage, t) &&
             buckets * HOTBED_BUCKET_SLOTS <= excess_left(storage, t);
    if (!*grown)
        return HOTBED_OK;
    uint64_t fewer = buckets * HOTBED_BUCKET_SLOTS;
    while (hotbed_index_range_make(fewer, false, 0).buckets > buckets)
        fewer--;
    const hotbed_status status = grow(storage, t, t->capacity + keys, fewer, stream);
    if (status != HOTBED_ERR_MEMORY)
        return status;
    *grown = false; /* the keys are refused: the table is at max_capacity */
    return HOTBED_OK;
}

hotbed_status hotbed_storage_segment(
    const hotbed_storage *storage, uint32_t table, uint32_t segment, hotbed_segment_info *out) {
    HOTBED_TRY(hotbed_check_pointer("storage", storage));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_segment_info"));
    HOTBED_TRY(hotbed_check_below("table", table, storage->num_tables));
    const hotbed_table *t = &storage->tables[table];
    if (segment >= t->num_grown)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, t->name, "table %s: segment %u is not below %u", t->name, segment,
            t->num_grown);
    const hotbed_grown *g = t->grown;
    for (uint32_t i = 0; i < segment; i++)
        g = g->next;
    uint64_t number = (uint64_t)hotbed_table_growing(&t->view).segment + segment;
    hotbed_segment_info info = {
        .first_slot = number << HOTBED_SEGMENT_SHIFT,
        .slots = hotbed_index_range_slots(g->segment.range),
        .weights = g->segment.rows,
    };
    hotbed_output_write(out, &info, sizeof info);
    return HOTBED_OK;
}

/* --- polling ---------------------------------------------------------------------------------- */

hotbed_status hotbed_growth_create(hotbed_storage *storage, hotbed_stream *stream) {
    hotbed_growth *growth = &storage->growth;
    size_t bytes = (size_t)storage->num_tables * sizeof *growth->counts;
    uint32_t t = 0;
    while (t < storage->num_tables && !hotbed_table_grows(&storage->tables[t]))
        t++;
    if (t == storage->num_tables)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &growth->counting));
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, bytes, NULL, &growth->counted));
    growth->counts = growth->counted.data;
    return hotbed_event_create(stream, &growth->arrived);
}

void hotbed_growth_destroy(hotbed_storage *storage) {
    hotbed_event_destroy(storage->growth.arrived);
    hotbed_memory_free(&storage->growth.counting);
    hotbed_memory_free(&storage->growth.counted);
}

/* Whether the latest counts on the host say that the table should grow. */
static bool loaded(const hotbed_storage *storage, uint32_t number) {
    const hotbed_table *table = &storage->tables[number];
    return (double)storage->growth.counts[number].keys >=
           (double)table->growth_load * (double)table->capacity;
}

/* Enqueue the count of the table's keys. With CACHE the upper tier has copies only and is not
 * counted. */
static hotbed_status count(hotbed_storage *storage, uint32_t number, hotbed_stream *stream) {
    const hotbed_table *table = &storage->tables[number];
    hotbed_key_counts *device = storage->growth.counting.data;
    uint64_t *counts = &device[number].keys;
    hotbed_rows_args args = {.table = table->view};
    hotbed_index_part at;
    for (uint32_t part = storage->tiers == HOTBED_TIERS_CACHE ? 1 : 0;
         hotbed_table_part(storage, table, part, &at); part++) {
        args.table.range = at.range;
        args.index = at.index;
        HOTBED_TRY(storage->kernels.rows->list(&args, NULL, NULL, counts, stream));
    }
    return HOTBED_OK;
}

/* Whether a table may grow any further. */
static bool may_grow(const hotbed_table *table) {
    return table->capacity < table->most && table->num_grown < HOTBED_GROWTHS_MOST;
}

static hotbed_status count_all(hotbed_storage *storage, hotbed_stream *stream) {
    hotbed_growth *growth = &storage->growth;
    bool any = false;
    for (uint32_t t = 0; t < storage->num_tables && !any; t++)
        any = may_grow(&storage->tables[t]);
    if (!any)
        return HOTBED_OK;
    size_t bytes = (size_t)storage->num_tables * sizeof *growth->counts;
    HOTBED_TRY(hotbed_fill(growth->counting.data, 0, bytes, stream));
    for (uint32_t t = 0; t < storage->num_tables; t++)
        if (may_grow(&storage->tables[t]))
            HOTBED_TRY(count(storage, t, stream));
    HOTBED_TRY(hotbed_copy(growth->counts, growth->counting.data, bytes, stream));
    HOTBED_TRY(hotbed_event_record(growth->arrived, stream));
    growth->under_way = true;
    return HOTBED_OK;
}

hotbed_status hotbed_storage_poll_growth(
    hotbed_storage *storage, hotbed_stream *stream, uint32_t *grown) {
    uint32_t none;
    if (grown == NULL)
        grown = &none;
    *grown = 0;
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    if (hotbed_stream_recording(stream))
        return hotbed_fail(
            HOTBED_ERR_STATE, "cannot grow a table while the stream records a graph");
    if (storage->growth.under_way) {
        bool done;
        HOTBED_TRY(hotbed_event_query(storage->growth.arrived, &done));
        if (!done)
            return HOTBED_OK;
        storage->growth.under_way = false;
        for (uint32_t t = 0; t < storage->num_tables; t++) {
            const hotbed_table *table = &storage->tables[t];
            if (!may_grow(table) || !loaded(storage, t))
                continue;
            bool last = table->capacity > table->most / 2;
            HOTBED_TRY(
                hotbed_storage_grow(storage, t, last ? table->most : 2 * table->capacity, stream));
            ++*grown;
        }
    }
    return count_all(storage, stream);
}
