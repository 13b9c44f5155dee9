/* storage/stats_host.c - meters and histograms on the host. CUDA counterpart: stats.cu. */
#include "storage/stats_kernels.h"

#include "base/host_launch.h"
#include "hotbed/stats.h"

enum { GRAIN = 1024 };

typedef struct load_args {
    hotbed_index_view index;
    hotbed_index_range range;
    uint64_t *loads;
} load_args;

static void record_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_meter_view *m = args;
    uint64_t number = *m->number + 1;
    *m->number = number;
    hotbed_store_system_u64(hotbed_meter_record(m, number), number);
    hotbed_fence_system(); /* a reader that sees a new count sees the record's number */
    for (uint64_t w = 0; w < m->words; w++)
        hotbed_meter_word(m, number, w);
    hotbed_fence_system(); /* a reader that sees `latest` sees the counts */
    hotbed_store_system_u64(m->latest, number);
}

static void load_body(const void *args, uint64_t begin, uint64_t end) {
    const load_args *a = args;
    uint64_t loads[HOTBED_LOADS] = {0};
    for (uint64_t b = begin; b < end; b++)
        loads[hotbed_bucket_load(a->index, a->range, (uint32_t)b)]++;
    for (int k = 0; k < HOTBED_LOADS; k++)
        if (loads[k] != 0)
            hotbed_add_relaxed_u64(&a->loads[k], loads[k]);
}

HOTBED_HOST_CALL(record, hotbed_meter_view, 1, 0)

static hotbed_status load(
    hotbed_index_view index, hotbed_index_range range, uint64_t *loads, hotbed_stream *stream) {
    load_args args = {index, range, loads};
    return HOTBED_HOST_LAUNCH(stream, range.buckets, GRAIN, load_body, &args);
}

const hotbed_stats_kernels hotbed_stats_kernels_host = {record, load};
