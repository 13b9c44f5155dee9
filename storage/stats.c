/* storage/stats.c - meters (hotbed/stats.h), which read counts without waiting, and histograms of
 * bucket loads. */
#include "hotbed/stats.h"

#include "base/check.h"
#include "base/options.h"

#include "storage/storage.h"

struct hotbed_meter {
    hotbed_storage *storage;
    hotbed_meter_view view;
    hotbed_memory device; /* `number` and `before` */
    hotbed_memory pinned; /* `latest` and the records */
};

static hotbed_status make_meter(hotbed_meter *meter, hotbed_stream *stream) {
    const hotbed_storage *storage = meter->storage;
    hotbed_meter_view *view = &meter->view;
    view->tallies = storage->tallies;
    view->clock = storage->clock;
    view->words = 1 + (uint64_t)storage->num_tables * HOTBED_TALLY_WORDS;
    size_t device = (1 + view->words) * sizeof(uint64_t);
    size_t pinned = (1 + HOTBED_METER_RECORDS * (1 + 2 * view->words)) * sizeof(uint64_t);
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, device, NULL, &meter->device));
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, pinned, NULL, &meter->pinned));
    view->number = meter->device.data;
    view->before = view->number + 1;
    view->latest = meter->pinned.data;
    view->records = view->latest + 1;
    memset(meter->pinned.data, 0, pinned);
    HOTBED_TRY(hotbed_fill(view->number, 0, sizeof *view->number, stream));
    /* Counts from before the meter's creation must not appear in its first step. The clock and
     * tallies have the layout of a record. */
    HOTBED_TRY(hotbed_copy(view->before, &view->clock->prefetches, sizeof view->before[0], stream));
    HOTBED_TRY(hotbed_copy(
        view->before + 1, view->tallies, (view->words - 1) * sizeof view->before[0], stream));
    return hotbed_stream_finish(stream);
}

hotbed_status hotbed_meter_create(
    hotbed_storage *storage, hotbed_stream *stream, hotbed_meter **out) {
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    hotbed_meter *meter = hotbed_new(sizeof *meter);
    HOTBED_TRY_MEMORY(meter, "a meter");
    meter->storage = storage;
    hotbed_status status = make_meter(meter, stream);
    if (status == HOTBED_OK)
        *out = meter;
    else
        hotbed_meter_destroy(meter);
    return status;
}

void hotbed_meter_destroy(hotbed_meter *meter) {
    if (meter == NULL)
        return;
    hotbed_memory_free(&meter->device);
    hotbed_memory_free(&meter->pinned);
    hotbed_delete(meter);
}

hotbed_status hotbed_meter_request(hotbed_meter *meter, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer("meter", meter));
    HOTBED_TRY(hotbed_storage_same_device(meter->storage, stream));
    return meter->storage->kernels.stats->record(&meter->view, stream);
}

/* Read a tally while kernels may be writing to it. */
static hotbed_tally read_tally(const uint64_t *words) {
    uint64_t copy[HOTBED_TALLY_WORDS];
    hotbed_tally tally;
    for (int w = 0; w < HOTBED_TALLY_WORDS; w++)
        copy[w] = hotbed_load_acquire_u64(&words[w]);
    memcpy(&tally, copy, sizeof tally);
    return tally;
}

hotbed_status hotbed_meter_read(
    const hotbed_meter *meter, uint32_t table, hotbed_reading *out, hotbed_table_stats *total,
    hotbed_table_stats *step) {
    HOTBED_TRY(hotbed_check_pointer("meter", meter));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_reading"));
    if (total != NULL)
        HOTBED_TRY(hotbed_output_check(total, "hotbed_table_stats"));
    if (step != NULL)
        HOTBED_TRY(hotbed_output_check(step, "hotbed_table_stats"));
    HOTBED_TRY(hotbed_check_below("table", table, meter->storage->num_tables));
    const hotbed_meter_view *view = &meter->view;
    uint64_t row_bytes = meter->storage->tables[table].view.row_bytes;
    for (;;) {
        hotbed_reading reading = {.request = hotbed_load_acquire_u64(view->latest)};
        hotbed_table_stats both[2] = {{0}};
        if (reading.request != 0) {
            uint64_t *record = hotbed_meter_record(view, reading.request);
            const uint64_t *all = record + 1, *last = all + view->words;
            reading.prefetches = hotbed_load_acquire_u64(all);
            reading.step_prefetches = hotbed_load_acquire_u64(last);
            size_t at = 1 + (size_t)table * HOTBED_TALLY_WORDS;
            both[0] = hotbed_stats_of(read_tally(all + at), row_bytes);
            both[1] = hotbed_stats_of(read_tally(last + at), row_bytes);
            if (hotbed_load_acquire_u64(record) != reading.request)
                continue; /* the ring has wrapped around: read the newest record */
        }
        hotbed_output_write(out, &reading, sizeof reading);
        if (total != NULL)
            hotbed_output_write(total, &both[0], sizeof both[0]);
        if (step != NULL)
            hotbed_output_write(step, &both[1], sizeof both[1]);
        return HOTBED_OK;
    }
}

hotbed_status hotbed_storage_load_histogram(
    hotbed_storage *storage, uint32_t table, uint64_t *buckets, hotbed_stream *stream) {
    void *loads;
    HOTBED_TRY(hotbed_storage_check_table(storage, table, stream));
    HOTBED_TRY(hotbed_check_pointer("buckets", buckets));
    const hotbed_table *t = &storage->tables[table];
    if (!hotbed_table_indexed(&t->view))
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, t->name, "table %s is static: it has no index", t->name);
    size_t bytes = HOTBED_LOADS * sizeof *buckets;
    /* counted in device memory, since atomics over the bus are slow */
    HOTBED_TRY(hotbed_stream_workspace(stream, bytes, &loads));
    HOTBED_TRY(hotbed_fill(loads, 0, bytes, stream));
    hotbed_index_part at;
    for (uint32_t part = 0; hotbed_table_part(storage, t, part, &at); part++)
        HOTBED_TRY(storage->kernels.stats->load(at.index, at.range, loads, stream));
    return hotbed_copy(buckets, loads, bytes, stream);
}
