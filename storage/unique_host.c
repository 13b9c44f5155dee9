/* storage/unique_host.c - dedup on the host: one hash table per table. CUDA counterpart:
 * unique.cu. */
#include "storage/unique_kernels.h"

#include "base/host_launch.h"

typedef struct unique_args {
    hotbed_step_view s;
    /* [2 * bound] one hash table of numbers of unique keys for each table, from 2 * its start on */
    uint32_t *heads;
    /* [bound] first occurrence of each unique key; a table's begin at its start */
    uint32_t *firsts;
    uint32_t *number; /* [num_tables] unique keys of each table */
} unique_args;

#define NO_HEAD UINT32_MAX

/* Number the distinct keys of tables begin .. end-1. `inverse` and `counts` are relative to the
 * table until group_body(). */
static void number_body(const void *args, uint64_t begin, uint64_t end) {
    const unique_args *a = args;
    const uint64_t *keys = a->s.batch.keys;
    for (uint64_t t = begin; t < end; t++) {
        uint32_t start = a->s.batch.table_starts[t], stop = a->s.batch.table_starts[t + 1], n = 0;
        uint32_t capacity = 2 * (stop - start);
        uint32_t *heads = a->heads + 2 * (size_t)start, *firsts = a->firsts + start;
        memset(heads, 0xff, capacity * sizeof *heads);
        for (uint32_t i = start; i < stop; i++) {
            uint32_t at = hotbed_scale_u32((uint32_t)(hotbed_hash_u64(keys[i]) >> 32), capacity);
            while (heads[at] != NO_HEAD && keys[firsts[heads[at]]] != keys[i])
                at = at + 1 == capacity ? 0 : at + 1;
            if (heads[at] == NO_HEAD) {
                heads[at] = n;
                firsts[n++] = i;
            }
            a->s.unique.inverse[i] = heads[at];
        }
        a->number[t] = n;
    }
}

static void offsets_body(const void *args, uint64_t begin, uint64_t end) {
    const unique_args *a = args;
    (void)begin, (void)end;
    uint32_t total = 0;
    for (uint32_t t = 0; t < a->s.storage.num_tables; t++) {
        a->s.unique.offsets[t] = total;
        total += a->number[t];
        a->s.storage.tallies[t].keys += a->s.batch.table_starts[t + 1] - a->s.batch.table_starts[t];
        a->s.storage.tallies[t].uniques += a->number[t];
    }
    uint32_t n = a->s.batch.table_starts[a->s.storage.num_tables];
    a->s.unique.offsets[a->s.storage.num_tables] = total;
    a->s.unique.starts[total] = n;
    for (uint64_t i = n; i < a->s.batch.bound; i++)
        a->s.unique.inverse[i] = UINT32_MAX;
}

/* Group the occurrences of tables begin .. end-1 by unique key. */
static void group_body(const void *args, uint64_t begin, uint64_t end) {
    const unique_args *a = args;
    for (uint64_t t = begin; t < end; t++) {
        uint32_t start = a->s.batch.table_starts[t], stop = a->s.batch.table_starts[t + 1];
        uint32_t base = a->s.unique.offsets[t], n = a->number[t], at = start;
        uint32_t *firsts = a->firsts + start;
        uint64_t *counts = a->s.unique.counts + base;
        memset(counts, 0, n * sizeof *counts);
        for (uint32_t i = start; i < stop; i++)
            counts[a->s.unique.inverse[i]]++;
        for (uint32_t u = 0; u < n; u++) {
            a->s.unique.keys[base + u] = a->s.batch.keys[firsts[u]];
            a->s.unique.starts[base + u] = at;
            firsts[u] = at; /* from now on the position of the next occurrence */
            at += (uint32_t)counts[u];
        }
        for (uint32_t i = start; i < stop; i++) {
            uint32_t u = a->s.unique.inverse[i];
            a->s.unique.positions[firsts[u]++] = a->s.unique.by_bag != 0 ? a->s.batch.bags[i] : i;
            a->s.unique.inverse[i] = base + u;
        }
        if (a->s.batch.counts == NULL)
            continue;
        memset(counts, 0, n * sizeof *counts);
        for (uint32_t i = start; i < stop; i++)
            a->s.unique.counts[a->s.unique.inverse[i]] += a->s.batch.counts[i];
    }
}

static size_t scratch(uint64_t bound, uint32_t num_tables) {
    return (3 * (size_t)bound + num_tables) * sizeof(uint32_t);
}

static hotbed_status unique(
    const hotbed_step_view *step, void *memory, size_t scratch_bytes, hotbed_stream *stream,
    hotbed_stream *grouping) {
    (void)scratch_bytes, (void)grouping; /* the host has no branches */
    uint32_t *words = memory;
    unique_args args = {
        .s = *step,
        .heads = words,
        .firsts = words + 2 * step->batch.bound,
        .number = words + 3 * step->batch.bound,
    };
    hotbed_status status =
        hotbed_host_launch(stream, step->storage.num_tables, 1, number_body, &args, sizeof args);
    if (status == HOTBED_OK)
        status = hotbed_host_launch(stream, 1, 0, offsets_body, &args, sizeof args);
    if (status == HOTBED_OK)
        status =
            hotbed_host_launch(stream, step->storage.num_tables, 1, group_body, &args, sizeof args);
    return status;
}

const hotbed_unique_kernels hotbed_unique_kernels_host = {scratch, unique};
