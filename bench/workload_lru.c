/* bench/workload_lru.c - the number of rows that a cache with exact LRU eviction fetches in a step,
 * for comparison.
 *
 * All keys of a batch are used at one time, and a batch does not evict its own keys.  Of the keys
 * of one batch, the earlier ones are evicted first. */
#include "bench/workload.h"

#include "base/error.h"
#include "base/host_launch.h"

#include <stdlib.h>

enum { CYCLES = 2 }; /* the second one is counted */

/* The cache of one table.  `uses` lists the keys of each time.  A key in the cache is in the list
 * of its last use; entries in older lists are stale. */
typedef struct lru {
    uint32_t *used;   /* [range] 1 + time of the last use; 0: not in the cache */
    uint32_t *uses;   /* [CYCLES * batches][samples] keys used at each time */
    uint32_t *counts; /* [CYCLES * batches] */
    uint64_t size, capacity;
    uint32_t oldest, next; /* where eviction continues: list, and position in it */
} lru;

typedef struct lru_args {
    const workload_input *input;
    const uint64_t *capacities;
    lru *tables;
    uint64_t *fetched; /* [tables] rows fetched in the last cycle */
} lru_args;

static void evict(lru *l, uint32_t samples, uint32_t now) {
    while (l->size > l->capacity && l->oldest < now) {
        if (l->next == l->counts[l->oldest]) {
            l->oldest++;
            l->next = 0;
            continue;
        }
        uint32_t key = l->uses[(uint64_t)l->oldest * samples + l->next++];
        if (l->used[key] == l->oldest + 1) {
            l->used[key] = 0;
            l->size--;
        }
    }
}

/* Use the keys of a batch; returns how many were not in the cache. */
static uint64_t use_batch(lru *l, const int64_t *keys, uint32_t samples, uint32_t now) {
    uint64_t missed = 0;
    for (uint32_t i = 0; i < samples; i++) {
        uint32_t *used = &l->used[keys[i]];
        if (*used == now + 1)
            continue;
        missed += *used == 0;
        *used = now + 1;
        l->uses[(uint64_t)now * samples + l->counts[now]++] = (uint32_t)keys[i];
    }
    l->size += missed;
    evict(l, samples, now);
    return missed;
}

static void run_tables(const void *args, uint64_t begin, uint64_t end) {
    const lru_args *a = args;
    const workload_shape *shape = &a->input->shape;
    for (uint64_t t = begin; t < end; t++) {
        lru *l = &a->tables[t];
        l->capacity = a->capacities[t];
        for (uint32_t now = 0, batch = 0; now < CYCLES * shape->batches; now++) {
            const int64_t *keys =
                a->input->keys + ((uint64_t)batch * shape->tables + t) * shape->samples;
            uint64_t missed = use_batch(l, keys, shape->samples, now);
            a->fetched[t] += now >= shape->batches ? missed : 0;
            batch = batch + 1 < shape->batches ? batch + 1 : 0;
        }
    }
}

static bool create(const workload_shape *shape, lru *l) {
    uint64_t times = (uint64_t)CYCLES * shape->batches;
    l->used = calloc(shape->range, sizeof *l->used);
    l->uses = calloc(times * shape->samples, sizeof *l->uses);
    l->counts = calloc(times, sizeof *l->counts);
    return l->used && l->uses && l->counts;
}

static hotbed_status run(lru_args *args) {
    hotbed_stream *stream = NULL;
    HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream));
    hotbed_status status =
        hotbed_host_launch(stream, args->input->shape.tables, 1, run_tables, args, sizeof *args);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(stream);
    hotbed_stream_destroy(stream);
    return status;
}

hotbed_status workload_lru(
    const workload_input *input, const uint64_t *capacities, double *rows_a_step) {
    lru tables[WORKLOAD_TABLES] = {0};
    uint64_t fetched[WORKLOAD_TABLES] = {0};
    lru_args args = {input, capacities, tables, fetched};
    bool made = true;
    for (uint32_t t = 0; t < input->shape.tables; t++)
        made = made && create(&input->shape, &tables[t]);
    hotbed_status status =
        made ? run(&args) : hotbed_fail(HOTBED_ERR_MEMORY, "LRU: no memory for its tables");
    uint64_t sum = 0;
    for (uint32_t t = 0; t < input->shape.tables; t++) {
        sum += fetched[t];
        free(tables[t].used);
        free(tables[t].uses);
        free(tables[t].counts);
    }
    if (status == HOTBED_OK)
        *rows_a_step = (double)sum / input->shape.batches;
    return status;
}
