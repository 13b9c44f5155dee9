/* storage/stats_core.h - counts that go into pinned memory, and how full buckets are.
 *
 * A request writes the next of a ring of records, marked with its number before the counts, and then puts
 * the number into `latest`.  A reader takes the record of `latest`, and takes it again when the mark has
 * changed meanwhile: then the ring has come round.
 */
#ifndef HOTBED_STORAGE_STATS_CORE_H
#define HOTBED_STORAGE_STATS_CORE_H

#include "storage/step_core.h"

enum {
    HOTBED_METER_RECORDS = 4,
    HOTBED_TALLY_WORDS = sizeof(hotbed_tally) / sizeof(uint64_t), /* it has nothing but counts */
};

/* A record is [mark, total[words], step[words]]; the words are the prefetches, then a tally a table. */
typedef struct hotbed_meter_view {
    const hotbed_tally *tallies; /* [num_tables] */
    const hotbed_clock *clock;
    uint64_t *number;  /* device: of requests so far */
    uint64_t *before;  /* device [words]: what the last request saw */
    uint64_t *latest;  /* pinned: number of the newest record that is whole */
    uint64_t *records; /* pinned [HOTBED_METER_RECORDS, 1 + 2 * words] */
    uint64_t words;
} hotbed_meter_view;

HOTBED_HD uint64_t *hotbed_meter_record(const hotbed_meter_view *m, uint64_t number) {
    return m->records + number % HOTBED_METER_RECORDS * (1 + 2 * m->words);
}

/* Count number w of request `number`, after its mark. */
HOTBED_HD void hotbed_meter_word(const hotbed_meter_view *m, uint64_t number, uint64_t w) {
    uint64_t *record = hotbed_meter_record(m, number);
    uint64_t now = w == 0 ? m->clock->prefetches : ((const uint64_t *)m->tallies)[w - 1];
    hotbed_store_system_u64(&record[1 + w], now);
    hotbed_store_system_u64(&record[1 + m->words + w], now - m->before[w]);
    m->before[w] = now;
}

/* Slots of bucket b of the range that are taken. */
HOTBED_HD uint32_t
hotbed_bucket_load(hotbed_index_view index, hotbed_index_range range, uint32_t b) {
    const uint64_t *line = index.metas + hotbed_index_slot(range, b);
    uint32_t load = 0;
    for (uint32_t pair = 0; pair < HOTBED_BUCKET_SLOTS / 2; pair++) {
        hotbed_u64x2 metas = hotbed_load_relaxed_u64x2(line + (size_t)2 * pair);
        load += (metas.a != 0 ? 1U : 0U) + (metas.b != 0 ? 1U : 0U);
    }
    return load;
}

#endif
