/* storage/rows_host.c - rows by key and whole-table work on the host.  CUDA counterpart: rows.cu. */
#include "storage/rows_kernels.h"

#include "base/host_launch.h"

enum { GRAIN = 256, SLOTS_GRAIN = 4096 };

typedef struct list_args {
    hotbed_rows_args a;
    uint64_t *keys;
    uint64_t *scores;
    uint64_t *counts;
} list_args;

static void get_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        hotbed_rows_get(args, i, 1);
}

static void set_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        hotbed_rows_set(args, i, 1);
}

static void erase_body(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        hotbed_rows_erase(args, i, 1);
}

static void clear_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_rows_args *a = args;
    for (uint64_t i = begin; i < end; i++) {
        if (a->table.is_static != 0)
            hotbed_row_init(&a->table, a->table.rows + i * a->table.row_bytes, i, 1);
        else
            hotbed_rows_clear_slot(a, i);
    }
}

static void list_body(const void *args, uint64_t begin, uint64_t end) {
    const list_args *l = args;
    for (uint64_t i = begin; i < end; i++) {
        if (!hotbed_rows_occupied(&l->a, i))
            continue;
        uint64_t slot = l->a.table.first_slot + i;
        uint64_t meta = hotbed_load_relaxed_u64(&l->a.index.metas[slot]);
        uint64_t at = hotbed_add_relaxed_u64(&l->counts[0], 1);
        if ((meta & HOTBED_META_PINS) != 0)
            hotbed_add_relaxed_u64(&l->counts[1], 1);
        if (l->keys != NULL)
            l->keys[at] = l->a.index.keys[slot];
        if (l->scores != NULL)
            l->scores[at] = hotbed_meta_score(meta);
    }
}

static void load_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_rows_args *a = args;
    for (uint64_t i = begin; i < end; i++)
        if (a->keys[i] < a->table.slots)
            hotbed_row_get(
                &a->table, a->table.rows + a->keys[i] * a->table.row_bytes, a->rows, i, 1);
}

static void store_body(const void *args, uint64_t begin, uint64_t end) {
    const hotbed_rows_args *a = args;
    for (uint64_t i = begin; i < end; i++)
        if (a->keys[i] < a->table.slots)
            hotbed_row_set(
                &a->table, a->table.rows + a->keys[i] * a->table.row_bytes, a->rows, i, 1);
}

static hotbed_status get(const hotbed_rows_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, get_body, args, sizeof *args);
}

static hotbed_status set(const hotbed_rows_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, set_body, args, sizeof *args);
}

static hotbed_status erase(const hotbed_rows_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, erase_body, args, sizeof *args);
}

static hotbed_status clear(const hotbed_rows_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(
        stream, args->table.slots, SLOTS_GRAIN, clear_body, args, sizeof *args);
}

static hotbed_status list(
    const hotbed_rows_args *args, uint64_t *keys, uint64_t *scores, uint64_t *counts,
    hotbed_stream *stream) {
    list_args l = {.a = *args, .keys = keys, .scores = scores, .counts = counts};
    return hotbed_host_launch(stream, args->table.slots, SLOTS_GRAIN, list_body, &l, sizeof l);
}

static hotbed_status load(const hotbed_rows_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, load_body, args, sizeof *args);
}

static hotbed_status store(const hotbed_rows_args *args, hotbed_stream *stream) {
    return hotbed_host_launch(stream, args->n, GRAIN, store_body, args, sizeof *args);
}

const hotbed_rows_kernels hotbed_rows_kernels_host = {get, set, erase, clear, list, load, store};
