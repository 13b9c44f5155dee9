/* storage/table_parts.c - the parts of a table's index: upper tier, lower tier, and segments. */
#include "storage/index/index_range.h"
#include "storage/storage.h"

uint64_t hotbed_table_all_slots(const hotbed_table *table) {
    uint64_t slots = table->view.slots + table->view.lower_slots;
    for (const hotbed_grown *g = table->grown; g != NULL; g = g->next)
        slots += hotbed_index_range_slots(g->segment.range);
    return slots;
}

hotbed_index_part hotbed_segment_part(const hotbed_index_segment *segment) {
    hotbed_index_part part = {{segment->keys, segment->metas, NULL}, segment->range, 0};
    return part;
}

hotbed_index_segment hotbed_table_lower_segment(const hotbed_table *table) {
    const hotbed_table_view *view = &table->view;
    uint64_t *words = table->lower_index.data;
    hotbed_index_segment segment = {
        .keys = words,
        .metas = words == NULL ? NULL : words + view->lower_slots,
        .rows = view->lower_rows,
        .lower_byte = view->lower_byte,
        .range = view->lower,
        .changed = view->lower_changed,
    };
    segment.range.first_bucket = 0;
    return segment;
}

bool hotbed_table_part(
    const hotbed_storage *storage, const hotbed_table *table, uint32_t part,
    hotbed_index_part *out) {
    const hotbed_table_view *view = &table->view;
    uint32_t grown = view->lower.buckets != 0 ? 2 : 1;
    if (part < grown) {
        hotbed_index_part at = {storage->index, part == 0 ? view->range : view->lower, 0};
        hotbed_index_segment lower = hotbed_table_lower_segment(table);
        *out = part == 1 && lower.keys != NULL ? hotbed_segment_part(&lower) : at;
        return true;
    }
    const hotbed_grown *g = table->grown;
    for (; g != NULL && grown < part; grown++)
        g = g->next;
    if (g == NULL)
        return false;
    *out = hotbed_segment_part(&g->segment);
    return true;
}

hotbed_index_bytes hotbed_table_index_bytes(const hotbed_table *table) {
    const hotbed_table_view *view = &table->view;
    uint64_t slot = (view->range.times != NULL ? 3 : 2) * sizeof(uint64_t), grown = 0;
    for (const hotbed_grown *g = table->grown; g != NULL; g = g->next)
        grown += hotbed_index_range_slots(g->segment.range) * slot;
    bool below = view->lower.buckets != 0;
    hotbed_index_bytes bytes = {
        .upper = hotbed_index_range_slots(view->range) * slot +
                 hotbed_index_range_slots(view->counter) * 2 * sizeof(uint64_t) +
                 (below ? 0 : grown),
        .lower = below ? view->lower_slots * slot + grown : 0,
    };
    return bytes;
}
