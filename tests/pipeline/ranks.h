/* tests/pipeline/ranks.h - sharded collections on ranks that are threads, each with a trainer.
 *
 * The ranks share a device, or have a GPU each if HOTBED_TEST_TRANSPORT is nccl
 * (tests/dist/world.h).  The model has two collections, a sequence and a pooled one, and its
 * gradients are its outputs.  Each rank has its own batches, of its own sizes. */
#pragma once

#include "hotbed/balance.h"
#include "hotbed/train.h"
#include "tests/support/harness.h"

enum {
    RANKS_MOST = 4,
    COLLECTIONS = 2,
    FEATURES = 2,
    SAMPLES = 8, /* of rank 0; rank r has SAMPLES - r */
    KEYS = FEATURES * SAMPLES,
    DIM = 4,
    KEY_SPACE = 50,
    BATCHES = 14,
    DEPTH = 4,
    ROWS = KEYS * DIM, /* largest number of floats of an output */
};

typedef struct batch {
    hotbed_kjt kjts[COLLECTIONS];
    uint64_t number;
} batch;

typedef float results[BATCHES][COLLECTIONS][ROWS];

typedef struct ranks ranks;

/* The state of one rank. */
typedef struct rank {
    ranks *all;
    uint32_t number;
    int device;
    hotbed_comm *comm, *agreeing; /* agreeing: over threads, whatever the transport of comm */
    hotbed_stream *stream;
    hotbed_sharded *collections[COLLECTIONS];
    hotbed_sharded_modules *modules;
    hotbed_module *module_list[COLLECTIONS];
    hotbed_model model;
    hotbed_trainer trainer;
    hotbed_memory memory;
    int64_t *keys[BATCHES][COLLECTIONS]; /* in pinned memory */
    int64_t *set_keys[DEPTH][COLLECTIONS];
    batch batches[BATCHES], sets[DEPTH];
    const hotbed_sharded_output *outputs[DEPTH][COLLECTIONS];
    float (*kept)[COLLECTIONS][ROWS]; /* in pinned memory: the outputs for each batch */
    hotbed_memory kept_memory;
    hotbed_balance *balances[DEPTH];
    uint64_t next, limit, period, iterations, fails_at, order;
    hotbed_status status;
    char text[512];
} rank;

struct ranks {
    hotbed_backend backend;
    uint32_t size;
    hotbed_plan exchange;
    const char *plan;
    uint64_t capacity; /* keys of a message; 0: the largest possible number */
    bool shuffled;     /* samples of the pooled collection are redistributed */
    bool aborts;       /* the test aborts the communicators */
    rank ranks[RANKS_MOST];
    results *expected[RANKS_MOST];
};

/* Numbers of ranks to test with, ended by 0: 1, 2, 4.  Short runs have 2; with a GPU for each rank,
 * HOTBED_TEST_GPUS. */
const uint32_t *ranks_sizes(void);

/* `sizes`, or with a GPU for each rank the only possible size. */
const uint32_t *ranks_sizes_of(const uint32_t *sizes);

/* The number of batches to train with: BATCHES, or in short runs as many as fill a pipeline. */
uint64_t ranks_batches(void);

/* Create a rank's stream, batches, collections, model and trainer; close them after its train pipeline. */
void rank_open(rank *r);
void rank_close(rank *r);

/* Create an agreement of the ranks, and its stream; the caller owns both. */
hotbed_comm_agreement *rank_agree(rank *r, hotbed_stream **stream);

/* The number of pinned rows of all tables of the rank. */
uint64_t rank_pinned(rank *r);

/* Create the train pipeline for this rank; `pipeline` NULL: its defaults. */
hotbed_train *rank_train(rank *r, const hotbed_pipeline_options *pipeline);

/* A loader of the batches r->next up to r->limit, which may be above BATCHES: batch i is batches[i
 * % period]. */
hotbed_loader rank_loader(rank *r);

/* Train up to batch `limit`. */
hotbed_status rank_run(rank *r, hotbed_train *train, uint64_t limit);

/* The function that each rank runs. */
typedef void (*rank_body)(rank *r);

/* A body that trains with the plain loop and writes to `expected` what all plans must equal. */
void rank_train_plainly(rank *r);

void ranks_open(ranks *t);
void ranks_close(ranks *t);

/* Run a body on ranks 0 .. size - 1, and wait for all of them. */
void ranks_run(
    hotbed_backend backend, uint32_t size, hotbed_plan exchange, const char *plan, rank_body body,
    ranks *t);
