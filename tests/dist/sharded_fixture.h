/* tests/dist/sharded_fixture.h - a sharded collection beside one storage that gets all ranks' batches at once.
 *
 * Batches and gradients are functions of the case, the step and the rank, so each rank knows the batches of all.
 * Gradients, first values and rates are multiples of small powers of two where sums over ranks should not
 * depend on their order.  Then, and where no key is on two ranks, all bytes are the model's.
 */
#ifndef HOTBED_TESTS_SHARDED_FIXTURE_H
#define HOTBED_TESTS_SHARDED_FIXTURE_H

#include "hotbed/sharded.h"
#include "tests/dist/world.h"
#include "tests/support/harness.h"

enum {
    FIXTURE_TABLES = 4,
    FIXTURE_FEATURES = 5,
    FIXTURE_BATCH = 4, /* most samples of a feature on a rank */
    FIXTURE_BAG = 3,   /* most keys of a bag */
    FIXTURE_ROWS = (FIXTURE_FEATURES + 1) * FIXTURE_BATCH,
    FIXTURE_KEYS = FIXTURE_ROWS * FIXTURE_BAG,
    FIXTURE_DIM = 6,
    FIXTURE_CAPACITY = 4000,
};

typedef struct sharded_case {
    uint64_t seed;
    hotbed_pooling pooling;
    hotbed_plan plan;
    hotbed_overflow overflow;
    hotbed_dedup dedup;
    hotbed_optimizer_kind optimizer;
    hotbed_dtype output_dtype;
    float gradient_scale, max_gradient;
    uint64_t capacity;
    uint64_t key_space; /* keys below it and a few at the edges; 0: no edges */
    int steps;
    bool statics; /* a table is static */
    bool weighted;
    bool own_keys;       /* no key on two ranks: gradients may be any */
    bool one_rule;       /* all tables are routed by hash */
    bool scale_by_world; /* gradient_scale is 1/world, which rounds */
    bool one_sign; /* rows and what they lose are of one sign, so that roundings stay relative */
    bool counted;  /* tables count occurrences: LFU, its pair, and admission by frequency */
    bool steady;   /* batches differ in their keys only, as a graph wants them */
    bool
        grows; /* the collection's hash tables begin small; the model's have their full size at once */
    bool cached; /* and have two tiers */
} sharded_case;

/* One rank's batch in host memory. */
typedef struct sharded_batch {
    uint32_t batch_size, strides[FIXTURE_FEATURES + 1];
    uint32_t features
        [FIXTURE_FEATURES +
         1]; /* of the collection, by the batch's feature; FIXTURE_FEATURES: none */
    const char *names[FIXTURE_FEATURES + 1];
    uint32_t starts[FIXTURE_FEATURES + 2]; /* first row of each feature */
    int64_t lengths[FIXTURE_ROWS], offsets[FIXTURE_ROWS + 1];
    uint64_t keys[FIXTURE_KEYS];
    float weights[FIXTURE_KEYS];
    uint64_t n;
} sharded_batch;

typedef struct sharded_fixture {
    const sharded_case *how;
    world_rank *me;
    hotbed_table_options tables[FIXTURE_TABLES];
    hotbed_route_kind routes[FIXTURE_TABLES];
    hotbed_storage_options storage_options;
    hotbed_table_options
        own_tables[FIXTURE_TABLES]; /* of the collection, where they are not the model's */
    hotbed_storage_options own_options;
    hotbed_sharded_options options;
    hotbed_sharded *sharded;
    hotbed_sharded_context *context;
    hotbed_storage *model;
    hotbed_ticket *ticket;
    bool rounds; /* what is summed over ranks: rows are within 1e-6 of the model's, relatively */
    bool moved;  /* rows are no longer their first values: sums of them round */
    sharded_batch *batches;                                        /* [size] of this step */
    world_bytes keys, lengths, offsets, weights, output, gradient; /* this rank's */
    world_bytes all_keys, all_offsets, all_weights, all_output, all_gradient,
        all_sums; /* the model's */
    uint32_t *
        all_at; /* [size][FIXTURE_KEYS] where a rank's key stands in the model's batch, or UINT32_MAX */
    hotbed_kjt kjt;
} sharded_fixture;

void sharded_fixture_open(sharded_fixture *r, world_rank *me, const sharded_case *how);
void sharded_fixture_close(sharded_fixture *r); /* compares all rows with the model's first */
void sharded_fixture_free(sharded_fixture *r);

/* Make all batches of a step, and upload them. */
void sharded_fixture_fill(sharded_fixture *r, int step);
/* The model's forward and backward, and comparison of what the collection gave in r->output. */
void sharded_fixture_model_forward(sharded_fixture *r);
void sharded_fixture_model_eval(sharded_fixture *r);
void sharded_fixture_check_output(sharded_fixture *r);
void sharded_fixture_model_backward(sharded_fixture *r);
/* All of a step by hand. */
void sharded_fixture_step(sharded_fixture *r, int step);

/* body on every rank of each world of up to `most` ranks. */
void sharded_fixture_run(uint32_t most, world_body body, void *argument);

/* Whether the transport has windows: plans without them are left out. */
bool sharded_fixture_has_windows(void);

/* Rows of this rank's lookups against the model's. */
void sharded_fixture_check_rows(sharded_fixture *r);

/* How often tables of this rank have grown. */
uint32_t sharded_fixture_growths(const sharded_fixture *r);

#endif
