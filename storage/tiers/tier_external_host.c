/* storage/tiers/tier_external_host.c - launches the passes over an external store's batches on host
 * threads. CUDA counterpart: tier_external.cu. */
#include "storage/tiers/tier_external_kernels.h"

#include "base/host_launch.h"

enum { GRAIN = 256 };

static uint64_t larger(uint64_t items, uint32_t tables) {
    return items > tables ? items : tables;
}

/* Define one kind of call, with arguments `a` of this type. Its passes are over up to `most` items, of
 * which `items` are there when a pass runs, and over tables. Item i and table i do not depend on the
 * others of the pass. */
#define HOTBED_PASSES(name, type, most, items, tables)                                             \
    typedef struct name##_args {                                                                   \
        type a;                                                                                    \
        hotbed_store_pass pass;                                                                    \
    } name##_args;                                                                                 \
    _Static_assert(sizeof(name##_args) <= HOTBED_HOST_ARGS_BYTES, "arguments of a body");          \
    static void name##_body(const void *args, uint64_t begin, uint64_t end) {                      \
        const name##_args *p = args;                                                               \
        const type *a = &p->a;                                                                     \
        for (uint64_t i = begin; i < end; i++) {                                                   \
            if (i < (items))                                                                       \
                hotbed_##name##_item(a, p->pass, (uint32_t)i, 1);                                  \
            if (i < (tables))                                                                      \
                hotbed_##name##_table(a, p->pass, (uint32_t)i);                                    \
        }                                                                                          \
    }                                                                                              \
    static hotbed_status name(const type *a, hotbed_store_pass pass, hotbed_stream *stream) {      \
        const name##_args args = {*a, pass};                                                       \
        return HOTBED_HOST_LAUNCH(stream, larger(most, tables), GRAIN, name##_body, &args);        \
    }
HOTBED_PASSES(
    step, hotbed_store_step, a->s.batch.bound, *a->s.unique.num_missing, a->s.storage.num_tables)
HOTBED_PASSES(
    eval, hotbed_store_eval, a->s.batch.bound, a->s.batch.feature_starts[a->s.storage.num_features],
    a->s.storage.num_tables)
HOTBED_PASSES(rows, hotbed_store_rows, a->count, a->count, a->num_tables)
HOTBED_PASSES(flush, hotbed_store_flush, a->count, a->count, a->num_tables)
#undef HOTBED_PASSES

const hotbed_tier_external_kernels hotbed_tier_external_kernels_host = {step, eval, rows, flush};
