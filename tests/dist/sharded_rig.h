/* tests/dist/sharded_rig.h - a sharded collection beside one storage that gets all ranks' batches at once.
 *
 * Batches and gradients are functions of the case, the step and the rank, so each rank knows those of all.
 * Gradients, first values and rates are multiples of small powers of two where sums over ranks should not
 * depend on their order.  Then, and where no key is on two ranks, all bytes are the model's.
 */
#ifndef HOTBED_TESTS_SHARDED_RIG_H
#define HOTBED_TESTS_SHARDED_RIG_H

#include "hotbed/sharded.h"
#include "tests/dist/world.h"
#include "tests/support/harness.h"

enum {
    RIG_TABLES = 4,
    RIG_FEATURES = 5,
    RIG_BATCH = 4, /* most samples of a feature on a rank */
    RIG_BAG = 3,   /* most keys of a bag */
    RIG_ROWS = (RIG_FEATURES + 1) * RIG_BATCH,
    RIG_KEYS = RIG_ROWS * RIG_BAG,
    RIG_DIM = 6,
    RIG_CAPACITY = 4000,
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
    bool grows;    /* the collection's hash tables begin small; the model's have room at once */
    bool cached;   /* and have two tiers */
} sharded_case;

/* One rank's batch in host memory. */
typedef struct sharded_batch {
    uint32_t batch_size, strides[RIG_FEATURES + 1];
    uint32_t features
        [RIG_FEATURES + 1]; /* of the collection, by the batch's feature; RIG_FEATURES: none */
    const char *names[RIG_FEATURES + 1];
    uint32_t starts[RIG_FEATURES + 2]; /* first row of each feature */
    int64_t lengths[RIG_ROWS], offsets[RIG_ROWS + 1];
    uint64_t keys[RIG_KEYS];
    float weights[RIG_KEYS];
    uint64_t n;
} sharded_batch;

typedef struct sharded_rig {
    const sharded_case *how;
    world_rank *me;
    hotbed_table_options tables[RIG_TABLES];
    hotbed_route_kind routes[RIG_TABLES];
    hotbed_storage_options storage_options;
    hotbed_table_options
        own_tables[RIG_TABLES]; /* of the collection, where they are not the model's */
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
        all_at; /* [size][RIG_KEYS] where a rank's key stands in the model's batch, or UINT32_MAX */
    hotbed_kjt kjt;
} sharded_rig;

void sharded_rig_open(sharded_rig *r, world_rank *me, const sharded_case *how);
void sharded_rig_close(sharded_rig *r); /* compares all rows with the model's first */
void sharded_rig_free(sharded_rig *r);

/* Make all batches of a step, and upload them. */
void sharded_rig_fill(sharded_rig *r, int step);
/* The model's forward and backward, and comparison of what the collection gave in r->output. */
void sharded_rig_model_forward(sharded_rig *r);
void sharded_rig_model_eval(sharded_rig *r);
void sharded_rig_check_output(sharded_rig *r);
void sharded_rig_model_backward(sharded_rig *r);
/* All of a step by hand. */
void sharded_rig_step(sharded_rig *r, int step);

/* body on every rank of each world of up to `most` ranks. */
void sharded_rig_run(uint32_t most, world_body body, void *argument);

/* Whether the transport has windows: plans without them are left out. */
bool sharded_rig_has_windows(void);

/* Rows of this rank's lookups against the model's. */
void sharded_rig_check_rows(sharded_rig *r);

/* How often tables of this rank have grown. */
uint32_t sharded_rig_growths(const sharded_rig *r);

#endif
