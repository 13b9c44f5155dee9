/* storage/tiers/tier_external_host.c - launches the passes over an external store's batches on host
 * threads. CUDA counterpart: tier_external.cu. */
#include "storage/tiers/tier_external_kernels.h"

#include "base/host_launch.h"

enum { GRAIN = 256 };

/* Arguments of the kernel bodies, one struct per kind of call. */
typedef struct step_pass {
    hotbed_store_step a;
    hotbed_store_pass pass;
} step_pass;

typedef struct eval_pass {
    hotbed_store_eval a;
    hotbed_store_pass pass;
} eval_pass;

typedef struct rows_pass {
    hotbed_store_rows a;
    hotbed_store_pass pass;
} rows_pass;

typedef struct flush_pass {
    hotbed_store_flush a;
    hotbed_store_pass pass;
} flush_pass;

_Static_assert(sizeof(rows_pass) <= HOTBED_HOST_ARGS_BYTES, "the largest");

/* Item i and table i; neither depends on the others of the pass. */
static void step_body(const void *args, uint64_t begin, uint64_t end) {
    const step_pass *p = args;
    for (uint64_t i = begin; i < end; i++) {
        if (i < *p->a.s.unique.num_missing)
            hotbed_step_item(&p->a, p->pass, (uint32_t)i, 1);
        if (i < p->a.s.storage.num_tables)
            hotbed_step_table(&p->a, p->pass, (uint32_t)i);
    }
}

static void eval_body(const void *args, uint64_t begin, uint64_t end) {
    const eval_pass *p = args;
    for (uint64_t i = begin; i < end; i++) {
        if (i < p->a.s.batch.feature_starts[p->a.s.storage.num_features])
            hotbed_eval_item(&p->a, p->pass, (uint32_t)i, 1);
        if (i < p->a.s.storage.num_tables)
            hotbed_eval_table(&p->a, p->pass, (uint32_t)i);
    }
}

static void rows_body(const void *args, uint64_t begin, uint64_t end) {
    const rows_pass *p = args;
    for (uint64_t i = begin; i < end; i++) {
        if (i < p->a.count)
            hotbed_rows_item(&p->a, p->pass, (uint32_t)i, 1);
        if (i < p->a.num_tables)
            hotbed_rows_table(&p->a, p->pass, (uint32_t)i);
    }
}

static void flush_body(const void *args, uint64_t begin, uint64_t end) {
    const flush_pass *p = args;
    for (uint64_t i = begin; i < end; i++) {
        if (i < p->a.count)
            hotbed_flush_item(&p->a, p->pass, (uint32_t)i, 1);
        if (i < p->a.num_tables)
            hotbed_flush_table(&p->a, p->pass, (uint32_t)i);
    }
}

static uint64_t larger(uint64_t items, uint32_t tables) {
    return items > tables ? items : tables;
}

static hotbed_status step(
    const hotbed_store_step *args, hotbed_store_pass pass, hotbed_stream *stream) {
    const step_pass p = {*args, pass};
    return HOTBED_HOST_LAUNCH(
        stream, larger(args->s.batch.bound, args->s.storage.num_tables), GRAIN, step_body, &p);
}

static hotbed_status eval(
    const hotbed_store_eval *args, hotbed_store_pass pass, hotbed_stream *stream) {
    const eval_pass p = {*args, pass};
    return HOTBED_HOST_LAUNCH(
        stream, larger(args->s.batch.bound, args->s.storage.num_tables), GRAIN, eval_body, &p);
}

static hotbed_status rows(
    const hotbed_store_rows *args, hotbed_store_pass pass, hotbed_stream *stream) {
    const rows_pass p = {*args, pass};
    return HOTBED_HOST_LAUNCH(stream, larger(args->count, args->num_tables), GRAIN, rows_body, &p);
}

static hotbed_status flush(
    const hotbed_store_flush *args, hotbed_store_pass pass, hotbed_stream *stream) {
    const flush_pass p = {*args, pass};
    return HOTBED_HOST_LAUNCH(stream, larger(args->count, args->num_tables), GRAIN, flush_body, &p);
}

const hotbed_tier_external_kernels hotbed_tier_external_kernels_host = {step, eval, rows, flush};
