/* tests/storage/fixture.h - a storage beside its model, and lanes that drive both with the same batches. */
#ifndef HOTBED_TESTS_RIG_H
#define HOTBED_TESTS_RIG_H

#include "hotbed/external.h"
#include "hotbed/storage.h"
#include "tests/support/harness.h"
#include "tests/support/oracle.h"

enum { FIXTURE_MEMORIES = 512, FIXTURE_TABLES = 40, FIXTURE_FEATURES = 64 };

/* --- random numbers: seeded by the harness, the same on every machine ------------------------- */

typedef struct rng {
    uint64_t state;
} rng;

rng rng_start(uint64_t stream); /* of the run's seed; different for each `stream` */
uint64_t rng_next(rng *random);
uint64_t rng_below(rng *random, uint64_t bound); /* bound > 0 */
float rng_float(rng *random);                    /* [-1, 1), a multiple of 2^-23 */
uint64_t rng_extreme_key(rng *random); /* one of about 40 keys at the edges of their range */

/* --- memory of the process ------------------------------------------------------------------------- */

uint64_t fixture_resident(void); /* bytes that are in memory now */

/* --- descriptions -------------------------------------------------------------------------------- */

/* Options with all that they point to.  Not to be copied. */
typedef struct setup {
    hotbed_storage_options options;
    hotbed_table_options tables[FIXTURE_TABLES];
    char names[FIXTURE_TABLES][16];
    uint32_t features[FIXTURE_FEATURES];
} setup;

/* Hash tables "table-0" and so on, F32, uniform in [-0.5, 0.5), inserted plainly, SGD, no pooling; change at will. */
void setup_start(setup *s, uint32_t num_tables, uint32_t dim, uint64_t capacity);
void setup_feature(setup *s, uint32_t table); /* append a feature; tables ascend */

/* --- the fixture ---------------------------------------------------------------------------------- */

typedef struct fixture {
    hotbed_backend backend;
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_external *store; /* in memory, of HOTBED_TEST_MODE external; else NULL */
    oracle *model;          /* NULL after fixture_open_bare() */
    /* Gives first values of rows: hash tables of the same seed, in which rows are made and erased. */
    hotbed_storage *initial;
    hotbed_stream *initial_stream;
    hotbed_memory memories[FIXTURE_MEMORIES];
    uint32_t num_memories;
} fixture;

/* A store in memory for tables of these options. */
void fixture_store(const hotbed_storage_options *options, hotbed_external **out);
void fixture_open(fixture *r, hotbed_backend backend, const hotbed_storage_options *options);
void fixture_open_bare(fixture *r, hotbed_backend backend, const hotbed_storage_options *options);
bool fixture_moves(const fixture *r); /* whether its storage has two tiers */
void fixture_close(fixture *r);       /* checks that no pins are left when there is a model */

/* Device memory that lives as long as the fixture. */
void *fixture_alloc(fixture *r, uint64_t bytes);
void fixture_upload(fixture *r, void *device, const void *host, uint64_t bytes);   /* synchronous */
void fixture_download(fixture *r, void *host, const void *device, uint64_t bytes); /* synchronous */
/* Device copy of a host array. */
void *fixture_copy(fixture *r, const void *host, uint64_t bytes);

/* Every row, key, score, state, size, pin and statistic equals the model's. */
void fixture_check(fixture *r);
void fixture_check_rows(fixture *r); /* rows, keys, scores and states of the optimiser only */

uint64_t fixture_size(fixture *r, uint32_t table);
uint64_t fixture_pinned(fixture *r);

/* First values of n rows, from the initial.  [n, dim] of the table's dtype. */
void fixture_initial(void *self, uint32_t table, uint64_t n, const uint64_t *keys, void *weights);

/* --- lanes ------------------------------------------------------------------------------------ */

/* How to make a batch.  {0} besides the sizes is: one key a bag, no weights, any 64-bit key. */
typedef struct recipe {
    uint32_t batch_size;
    uint32_t max_bag;   /* bags have 0 .. max_bag keys; 0: one key each, offsets NULL */
    uint64_t key_space; /* keys below it, spread over 64 bits; 0: any */
    bool weights;
    bool counts;   /* keys stand for none, for some, or for very many occurrences */
    bool extremes; /* a third of the keys are extreme ones */
    bool one_key;  /* the whole batch is one key */
    bool bound;    /* num_keys is more than the last offset */
} recipe;

/* One ticket, here and in the model, with its batch and arrays. */
typedef struct lane {
    fixture *r;
    hotbed_ticket *ticket;
    oracle_ticket *model;
    uint64_t max_keys;
    uint64_t num_keys; /* real ones of this batch */
    uint64_t stride;   /* what calls are given: 0 or more than the least */
    uint64_t output_bytes;
    hotbed_batch host;   /* all arrays, and the sizes of this batch */
    hotbed_batch device; /* all arrays */
    bool use_offsets, use_weights, use_counts;
    void *output;   /* device */
    void *gradient; /* device */
    void *scratch[2];
} lane;

void lane_open(fixture *r, lane *l, uint64_t max_keys, uint32_t max_batch_size);
void lane_close(lane *l);
void lane_fill(lane *l, rng *random, const recipe *how);
/* Upload host keys, offsets, weights and counts as they are now. */
void lane_upload(lane *l);

/* The batch on the device, for calls without the model. */
hotbed_batch lane_batch(const lane *l);

void lane_prefetch(lane *l);
/* The model refuses what the library refused.  Synchronous; gives the sync's status. */
HOTBED_MUST_USE hotbed_status lane_prefetch_with_slots(lane *l);
void lane_forward(lane *l); /* and compare the outputs; synchronous */
void lane_backward(lane *l, rng *random);
void lane_cancel(lane *l);
void lane_eval(lane *l);  /* and compare the outputs; synchronous */
void lane_check(lane *l); /* the ticket's view against the model's; synchronous */
void lane_step(lane *l, rng *random, const recipe *how); /* all of them once */

/* Position of the first byte that differs, or `bytes`. */
uint64_t first_difference(const void *a, const void *b, uint64_t bytes);

#endif
