/* storage/step/unique_host.c - dedup on the host: one hash table per table. CUDA counterpart:
 * unique.cu. */
#include "storage/step/unique_kernels.h"

#include "base/error.h"
#include "base/host_launch.h"

typedef struct unique_args {
    hotbed_step_view s;
    /* [2 * bound] one hash table of numbers of unique keys for each table, from 2 * its start on */
    uint32_t *heads;
    /* [bound] first occurrence of each unique key; a table's begin at its start */
    uint32_t *firsts;
    uint32_t *number; /* [num_tables] unique keys of each table */
    uint64_t *items;  /* [bound] to sort with; a table's begin at its start */
} unique_args;

#define NO_HEAD UINT32_MAX

/* Sort n items by the `bits` bits from bit 32 on, with as much scratch memory. Stable. */
static void sort_items(uint64_t *items, uint64_t *scratch, uint32_t n, uint32_t bits) {
    enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS };
    uint64_t *from = items, *to = scratch;
    for (uint32_t shift = 32; shift < 32 + bits; shift += DIGIT_BITS) {
        uint32_t places[DIGITS] = {0}, place = 0;
        for (uint32_t i = 0; i < n; i++)
            places[from[i] >> shift & (DIGITS - 1)]++;
        for (uint32_t d = 0; d < DIGITS; d++) {
            uint32_t count = places[d];
            places[d] = place;
            place += count;
        }
        for (uint32_t i = 0; i < n; i++)
            to[places[from[i] >> shift & (DIGITS - 1)]++] = from[i];
        uint64_t *other = from;
        from = to;
        to = other;
    }
    if (from != items)
        memcpy(items, from, n * sizeof *items);
}

/* Key i, of table t, or its row if keys are ordered by row. */
static uint64_t key_of(const unique_args *a, uint64_t t, uint32_t i) {
    const uint64_t key = a->s.batch.keys[i];
    return a->s.storage.row_bits == 0 ? key : hotbed_static_row(&a->s.storage.tables[t], key);
}

/* Renumber the n distinct keys of table t by row. `heads`, of 2 * n words, is not needed any more. */
static void order_by_row(const unique_args *a, uint32_t t, uint32_t n) {
    uint32_t start = a->s.batch.table_starts[t], stop = a->s.batch.table_starts[t + 1];
    uint32_t *heads = a->heads + 2 * (size_t)start, *firsts = a->firsts + start;
    uint64_t *items = a->items + start;
    uint32_t bits = 1;
    while (a->s.storage.tables[t].capacity >> bits != 0)
        bits++;
    for (uint32_t u = 0; u < n; u++)
        items[u] = key_of(a, t, firsts[u]) << 32 | u;
    sort_items(items, (uint64_t *)(void *)heads, n, bits);
    uint32_t *numbers = heads, *ordered = heads + n;
    for (uint32_t k = 0; k < n; k++) {
        numbers[(uint32_t)items[k]] = k;
        ordered[k] = firsts[(uint32_t)items[k]];
    }
    memcpy(firsts, ordered, n * sizeof *firsts);
    for (uint32_t i = start; i < stop; i++)
        a->s.unique.inverse[i] = numbers[a->s.unique.inverse[i]];
}

/* Number the distinct keys of tables begin .. end-1. `inverse` and `counts` are relative to the
 * table until group_body(). */
static void number_body(const void *args, uint64_t begin, uint64_t end) {
    const unique_args *a = args;
    for (uint64_t t = begin; t < end; t++) {
        uint32_t start = a->s.batch.table_starts[t], stop = a->s.batch.table_starts[t + 1], n = 0;
        uint32_t capacity = 2 * (stop - start);
        uint32_t *heads = a->heads + 2 * (size_t)start, *firsts = a->firsts + start;
        memset(heads, 0xff, capacity * sizeof *heads);
        for (uint32_t i = start; i < stop; i++) {
            const uint64_t key = key_of(a, t, i);
            uint32_t at = hotbed_place_u32(key, capacity);
            while (heads[at] != NO_HEAD && key_of(a, t, firsts[heads[at]]) != key)
                at = at + 1 == capacity ? 0 : at + 1;
            if (heads[at] == NO_HEAD) {
                heads[at] = n;
                firsts[n++] = i;
            }
            a->s.unique.inverse[i] = heads[at];
        }
        if (a->s.storage.row_bits != 0)
            order_by_row(a, (uint32_t)t, n);
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
        hotbed_tally *tally = &a->s.storage.tallies[t]; /* a meter may read it meanwhile */
        (void)hotbed_add_relaxed_u64(
            &tally->keys, a->s.batch.table_starts[t + 1] - a->s.batch.table_starts[t]);
        (void)hotbed_add_relaxed_u64(&tally->uniques, a->number[t]);
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
    return bound * sizeof(uint64_t) + (3 * (size_t)bound + num_tables) * sizeof(uint32_t);
}

static hotbed_status unique(
    const hotbed_step_view *step, void *memory, hotbed_stream *stream, hotbed_stream *grouping) {
    (void)grouping; /* the host has no branches */
    uint64_t *items = memory;
    uint32_t *words = (uint32_t *)(void *)(items + step->batch.bound);
    unique_args args = {
        .s = *step,
        .items = items,
        .heads = words,
        .firsts = words + 2 * step->batch.bound,
        .number = words + 3 * step->batch.bound,
    };
    const uint64_t tables = step->storage.num_tables;
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, tables, 1, number_body, &args));
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, 1, 0, offsets_body, &args));
    return HOTBED_HOST_LAUNCH(stream, tables, 1, group_body, &args);
}

const hotbed_unique_kernels hotbed_unique_kernels_host = {scratch, unique};
