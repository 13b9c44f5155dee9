/* storage/stats_core.h - writing counts to pinned memory, and the number of used slots per bucket.
 *
 * A request writes the next record of a ring: first the number of the request,
 * then the counts. It then stores the number in `latest`. A reader copies the record of `latest`,
 * and starts over if the number has changed meanwhile, because then the ring has wrapped around.
 */
#pragma once

#include "storage/step/step_core.h"

enum {
    HOTBED_METER_RECORDS = 4,
    HOTBED_TALLY_WORDS = sizeof(hotbed_tally) / sizeof(uint64_t), /* a tally has only words */
};

/* A record is [number, total[words], step[words]]. The words are the number of prefetches and one
 * tally per table. */
typedef struct hotbed_meter_view {
    const hotbed_tally *tallies; /* [num_tables] */
    const hotbed_clock *clock;
    uint64_t *number;  /* device: number of requests so far */
    uint64_t *before;  /* device [words]: counts at the last request */
    uint64_t *latest;  /* pinned: number of the newest complete record */
    uint64_t *records; /* pinned [HOTBED_METER_RECORDS, 1 + 2 * words] */
    uint64_t words;
} hotbed_meter_view;

HOTBED_HD uint64_t *hotbed_meter_record(const hotbed_meter_view *m, uint64_t number) {
    return m->records + number % HOTBED_METER_RECORDS * (1 + 2 * m->words);
}

/* Write count w of request `number`. The number has been written before. Relaxed: a prefetch on
 * another stream may add to the counts meanwhile, and is then counted in part. */
HOTBED_HD void hotbed_meter_word(const hotbed_meter_view *m, uint64_t number, uint64_t w) {
    uint64_t *record = hotbed_meter_record(m, number);
    uint64_t now = hotbed_load_relaxed_u64(
        w == 0 ? &m->clock->prefetches : (const uint64_t *)m->tallies + (w - 1));
    hotbed_store_system_u64(&record[1 + w], now);
    hotbed_store_system_u64(&record[1 + m->words + w], now - m->before[w]);
    m->before[w] = now;
}

/* Used slots of bucket b of the range. */
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
