/* tests/pipeline/ranks.h - sharded collections on ranks that are threads, each with a trainer.
 *
 * They share a device, or have a GPU each where HOTBED_TEST_TRANSPORT is nccl (tests/dist/world.h).  Two collections, a
 * sequence and a pooled one, in a model whose gradients are its outputs.  Each rank has batches of its own, of its own
 * sizes.
 */
#ifndef HOTBED_TESTS_PIPELINE_RANKS_H
#define HOTBED_TESTS_PIPELINE_RANKS_H

#include "hotbed/balance.h"
#include "hotbed/sharded_module.h"
#include "hotbed/train.h"
#include "tests/support/harness.h"

enum {
    RANKS_MOST = 4,
    COLLECTIONS = 2,
    FEATURES = 2,
    SAMPLES = 8, /* most; rank r has SAMPLES - r */
    KEYS = FEATURES * SAMPLES,
    DIM = 4,
    KEY_SPACE = 50,
    BATCHES = 14,
    DEPTH = 4,
    ROWS = KEYS * DIM, /* floats of an output, at most */
};

typedef struct batch {
    hotbed_kjt kjts[COLLECTIONS];
    uint64_t number;
} batch;

typedef float results[BATCHES][COLLECTIONS][ROWS];

typedef struct ranks ranks;

/* What a rank has. */
typedef struct rank {
    ranks *all;
    uint32_t number;
    int device;
    hotbed_comm *comm, *agreeing; /* agreeing: threads, whatever comm is */
    hotbed_stream *stream;
    hotbed_sharded *collections[COLLECTIONS];
    hotbed_sharded_modules *modules;
    hotbed_module *module_list[COLLECTIONS];
    hotbed_model model;
    hotbed_trainer trainer;
    hotbed_memory memory;
    int64_t *keys[BATCHES][COLLECTIONS]; /* pinned */
    int64_t *slot_keys[DEPTH][COLLECTIONS];
    batch batches[BATCHES], slots[DEPTH];
    const hotbed_sharded_output *outputs[DEPTH][COLLECTIONS];
    float (*kept)[COLLECTIONS][ROWS]; /* pinned: of each batch */
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
    uint64_t capacity; /* keys of a message; 0: all there can be */
    bool shuffled;     /* samples of the pooled collection are balanced over ranks */
    bool aborts;       /* bodies end their communicator */
    rank ranks[RANKS_MOST];
    results *expected[RANKS_MOST];
};

/* Sizes of teams to try, ends with 0: 1, 2, 4.  Small tests have 2; teams with a GPU each, as many as are asked for. */
const uint32_t *ranks_sizes(void);

/* These sizes, or the one there is. */
const uint32_t *ranks_sizes_of(const uint32_t *sizes);

/* Batches to train with: BATCHES, or, small, as many as fill a pipeline. */
uint64_t ranks_batches(void);

/* A rank's stream, batches, collections, model and trainer; they are closed after its train pipeline. */
void rank_open(rank *r);
void rank_close(rank *r);

/* An agreement of the ranks on a stream of its own; both are the caller's. */
hotbed_comm_agreement *rank_agree(rank *r, hotbed_stream **stream);

/* Rows that are pinned, of all its tables. */
uint64_t rank_pinned(rank *r);

/* The plan of the ranks for this rank; `pipeline` NULL: its defaults. */
hotbed_train *rank_train(rank *r, const hotbed_pipeline_options *pipeline);

/* Batches from r->next on up to r->limit, which may be above BATCHES: number i is i % period. */
hotbed_loader rank_loader(rank *r);

/* Train up to batch `limit`. */
hotbed_status rank_run(rank *r, hotbed_train *train, uint64_t limit);

/* What a rank does in a ranks. */
typedef void (*rank_body)(rank *r);

/* The plain loop, a body: what all plans are to equal goes to `expected`. */
void rank_train_plainly(rank *r);

void ranks_open(ranks *t);
void ranks_close(ranks *t);

/* Run a body on ranks 0 .. size - 1, to their ends. */
void ranks_run(
    hotbed_backend backend, uint32_t size, hotbed_plan exchange, const char *plan, rank_body body,
    ranks *t);

#endif
