/* storage/tiers/tier_external_host.c - launches the passes over an external store's batches on host
 * threads. CUDA counterpart: tier_external.cu. */
#include "storage/tiers/tier_external_kernels.h"

#include "base/error.h"
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

static void step_body(const void *args, uint64_t begin, uint64_t end) {
    const step_pass *p = args;
    if (end > *p->a.s.unique.num_missing)
        end = *p->a.s.unique.num_missing;
    for (uint64_t i = begin; i < end; i++)
        hotbed_step_item(&p->a, p->pass, (uint32_t)i, 1);
}

static void step_tables_body(const void *args, uint64_t begin, uint64_t end) {
    const step_pass *p = args;
    for (uint64_t t = begin; t < end; t++)
        hotbed_step_table(&p->a, p->pass, (uint32_t)t);
}

static void eval_body(const void *args, uint64_t begin, uint64_t end) {
    const eval_pass *p = args;
    if (end > p->a.s.batch.feature_starts[p->a.s.storage.num_features])
        end = p->a.s.batch.feature_starts[p->a.s.storage.num_features];
    for (uint64_t i = begin; i < end; i++)
        hotbed_eval_item(&p->a, p->pass, (uint32_t)i, 1);
}

static void eval_tables_body(const void *args, uint64_t begin, uint64_t end) {
    const eval_pass *p = args;
    for (uint64_t t = begin; t < end; t++)
        hotbed_eval_table(&p->a, p->pass, (uint32_t)t);
}

static void rows_body(const void *args, uint64_t begin, uint64_t end) {
    const rows_pass *p = args;
    for (uint64_t i = begin; i < end; i++)
        hotbed_rows_item(&p->a, p->pass, (uint32_t)i, 1);
}

static void rows_tables_body(const void *args, uint64_t begin, uint64_t end) {
    const rows_pass *p = args;
    for (uint64_t t = begin; t < end; t++)
        hotbed_rows_table(&p->a, p->pass, (uint32_t)t);
}

static void flush_body(const void *args, uint64_t begin, uint64_t end) {
    const flush_pass *p = args;
    for (uint64_t i = begin; i < end; i++)
        hotbed_flush_item(&p->a, p->pass, (uint32_t)i, 1);
}

static void flush_tables_body(const void *args, uint64_t begin, uint64_t end) {
    const flush_pass *p = args;
    for (uint64_t t = begin; t < end; t++)
        hotbed_flush_table(&p->a, p->pass, (uint32_t)t);
}

static hotbed_status step(
    const hotbed_store_step *args, hotbed_store_pass pass, hotbed_stream *stream) {
    const step_pass p = {*args, pass};
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, args->s.batch.bound, GRAIN, step_body, &p));
    return HOTBED_HOST_LAUNCH(stream, args->s.storage.num_tables, GRAIN, step_tables_body, &p);
}

static hotbed_status eval(
    const hotbed_store_eval *args, hotbed_store_pass pass, hotbed_stream *stream) {
    const eval_pass p = {*args, pass};
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, args->s.batch.bound, GRAIN, eval_body, &p));
    return HOTBED_HOST_LAUNCH(stream, args->s.storage.num_tables, GRAIN, eval_tables_body, &p);
}

static hotbed_status rows(
    const hotbed_store_rows *args, hotbed_store_pass pass, hotbed_stream *stream) {
    const rows_pass p = {*args, pass};
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, args->count, GRAIN, rows_body, &p));
    return HOTBED_HOST_LAUNCH(stream, args->num_tables, GRAIN, rows_tables_body, &p);
}

static hotbed_status flush(
    const hotbed_store_flush *args, hotbed_store_pass pass, hotbed_stream *stream) {
    const flush_pass p = {*args, pass};
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, args->count, GRAIN, flush_body, &p));
    return HOTBED_HOST_LAUNCH(stream, args->num_tables, GRAIN, flush_tables_body, &p);
}

const hotbed_tier_external_kernels hotbed_tier_external_kernels_host = {step, eval, rows, flush};
