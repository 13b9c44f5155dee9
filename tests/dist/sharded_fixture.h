/* tests/dist/sharded_fixture.h - a sharded collection, and a model of it: one storage that receives
 * the batches of all ranks at once.
 *
 * Batches and gradients are functions of the case, the step and the rank, so each rank computes the
 * batches of all ranks.  Where sums over ranks must not depend on their order, gradients, initial
 * values and rates are multiples of small powers of two.  Then, and where no key occurs on two
 * ranks, all bytes equal the model's. */
#pragma once

#include "hotbed/sharded.h"
#include "tests/dist/world.h"
#include "tests/support/harness.h"

enum {
    FIXTURE_TABLES = 4,
    FIXTURE_FEATURES = 5,
    FIXTURE_BATCH = 4, /* largest number of samples of a feature on a rank */
    FIXTURE_BAG = 3,   /* largest number of keys in a bag */
    FIXTURE_ROWS = (FIXTURE_FEATURES + 1) * FIXTURE_BATCH,
    FIXTURE_KEYS = FIXTURE_ROWS * FIXTURE_BAG,
    FIXTURE_DIM = 6,
    FIXTURE_CAPACITY = 4000,
};

/* What travels for pooled features. BY_BOTH: rows of the tables "item" and "word", otherwise sums. */
typedef enum fixture_exchange {
    FIXTURE_BY_RULE,
    FIXTURE_BY_ROWS,
    FIXTURE_BY_SUMS,
    FIXTURE_BY_BOTH
} fixture_exchange;

typedef struct sharded_case {
    uint64_t seed;
    hotbed_pooling pooling;
    hotbed_plan plan;
    hotbed_overflow overflow;
    hotbed_dedup dedup;
    hotbed_optimizer_kind optimizer;
    hotbed_dtype output_dtype;
    hotbed_dtype forward_dtype, backward_dtype;
    hotbed_dtype dtype;       /* of rows; without `rounds`; 0: F32 */
    hotbed_dtype state_dtype; /* 0: F32 */
    float gradient_scale, max_gradient;
    uint64_t capacity;
    uint64_t key_space; /* all but a few extreme keys are below it */
    int steps;
    bool statics; /* one table is static */
    bool dealt;   /* its rows are dealt to the ranks in turn */
    bool weighted;
    bool own_keys;       /* no key occurs on two ranks, so gradients need not be dyadic */
    bool one_rule;       /* all tables are routed by hash */
    bool scale_by_world; /* gradient_scale is 1/world, which rounds */
    bool one_sign; /* rows and their updates have one sign, so that rounding errors stay relative */
    bool counted;  /* tables count occurrences: LFU, TIMESTAMP_LFU, and admission by frequency */
    bool steady;   /* batches differ only in their keys, as launches of a graph require */
    bool grows; /* the collection's hash tables begin small; the model's begin with full capacity */
    bool cached;         /* tables are in mode CACHE */
    bool own_parameters; /* two tables have an optimizer of their own, with clipping of their own */
    /* batches have the collection's features in its order, and no others; in some, each row has one
     * key */
    bool in_order;
    fixture_exchange exchange; /* pooled */
} sharded_case;

/* The batch of one rank in host memory. */
typedef struct sharded_batch {
    uint32_t num_features, batch_size, strides[FIXTURE_FEATURES + 1];
    uint32_t features
        [FIXTURE_FEATURES + 1]; /* table of each feature of the batch; FIXTURE_FEATURES: none */
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
    hotbed_pooled_exchange exchanges[FIXTURE_FEATURES];
    hotbed_optimizer own_optimizers[2];
    hotbed_storage_options storage_options;
    hotbed_table_options
        own_tables[FIXTURE_TABLES]; /* of the collection, where they differ from the model's */
    hotbed_storage_options own_options;
    hotbed_sharded_options options;
    hotbed_sharded *sharded;
    hotbed_sharded_context *context;
    hotbed_storage *model;
    hotbed_ticket *ticket;
    bool rounds; /* values summed over ranks: rows are within 1e-6 of the model's, relative */
    bool moved;  /* rows have been trained, so their sums round */
    sharded_batch *batches;                                        /* [size], of this step */
    world_bytes keys, lengths, offsets, weights, output, gradient; /* of this rank */
    world_bytes all_keys, all_offsets, all_weights, all_output, all_gradient,
        all_sums; /* of the model */
    uint32_t *
        all_at; /* [size][FIXTURE_KEYS], position of a rank's key in the model's batch, or UINT32_MAX */
    hotbed_kjt kjt;
} sharded_fixture;

void sharded_fixture_open(sharded_fixture *r, world_rank *me, const sharded_case *how);
void sharded_fixture_close(sharded_fixture *r); /* compares all rows with the model's first */
void sharded_fixture_free(sharded_fixture *r);

/* Generate the batches of all ranks for a step, and upload this rank's. */
void sharded_fixture_fill(sharded_fixture *r, int step);
/* Run the model's forward or backward; compare r->output, which the collection wrote, with the model's. */
void sharded_fixture_model_forward(sharded_fixture *r);
void sharded_fixture_model_eval(sharded_fixture *r);
void sharded_fixture_check_output(sharded_fixture *r);
void sharded_fixture_model_backward(sharded_fixture *r);
/* Run a whole step of collection and model, call by call, and compare. */
void sharded_fixture_step(sharded_fixture *r, int step);

/* Run `body` on every rank of each world of up to `most` ranks. */
void sharded_fixture_run(uint32_t most, world_body body, void *argument);

/* Whether the transport supports windows; plans that need them are skipped otherwise. */
bool sharded_fixture_has_windows(void);

/* Compare the rows of this rank's lookups with the model's. */
void sharded_fixture_check_rows(sharded_fixture *r);

/* How often the tables of this rank have grown. */
uint32_t sharded_fixture_growths(const sharded_fixture *r);
