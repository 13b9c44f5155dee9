/* tests/storage/fixture.h - a storage and its model, driven with the same calls.
 *
 *     setup s;
 *     setup_start(&s, 1, 8, 1000);                   // options: one table of dimension 8, capacity 1000
 *     fixture f;
 *     fixture_open(&f, backend, &s.options);         // a storage and its model, tests/support/oracle.h
 *     test_ticket t;
 *     test_ticket_open(&f, &t, 256, 32);             // a ticket of each, and arrays for one batch
 *     test_ticket_step(&t, &random, &shape);         // a random batch through both; outputs must be equal
 *     fixture_check(&f);                             // all rows, scores, counts and pins must be equal
 *     fixture_close(&f);
 *
 * All comparisons are of bytes.  The environment variable HOTBED_TEST_MODE selects the mode of storages whose test does
 * not choose one, so that a test runs in all modes.
 */
#pragma once

#include "hotbed/external.h"
#include "hotbed/storage.h"
#include "storage/step/scatter.h"
#include "tests/support/harness.h"
#include "tests/support/oracle.h"

enum { FIXTURE_MEMORIES = 512, FIXTURE_TABLES = 40, FIXTURE_FEATURES = 64 };

/* --- random numbers -------------------------------------------------------------------------- */

typedef struct rng {
    uint64_t state;
} rng;

/* A generator of the run's seed; each `stream` has its own numbers. */
rng rng_start(uint64_t stream);
uint64_t rng_next(rng *random);
uint64_t rng_below(rng *random, uint64_t bound); /* bound > 0 */
float rng_float(rng *random);                    /* [-1, 1), a multiple of 2^-23 */
uint64_t rng_extreme_key(rng *random);           /* one of 36 keys around 0, 2^31, 2^32 and 2^63 */

/* --- memory of the process ------------------------------------------------------------------- */

uint64_t fixture_resident(void); /* bytes of resident memory */

/* --- options --------------------------------------------------------------------------------- */

/* Options of a storage and the arrays to which they point.  It must not be copied. */
typedef struct setup {
    hotbed_storage_options options;
    hotbed_table_options tables[FIXTURE_TABLES];
    char names[FIXTURE_TABLES][16];
    uint32_t features[FIXTURE_FEATURES];
} setup;

/* Hash tables "table-0", "table-1", ... of F32, uniform in [-0.5, 0.5), HOTBED_INSERT_PLAIN; SGD; no pooling.  The
 * caller may change any option. */
void setup_start(setup *s, uint32_t num_tables, uint32_t dim, uint64_t capacity);
/* Set the weight decay, or for an optimizer that has none the L2 decay. */
void setup_decay(hotbed_optimizer *optimizer, float decay);
void setup_feature(setup *s, uint32_t table); /* append a feature; tables must ascend */

/* --- the fixture ----------------------------------------------------------------------------- */

typedef struct fixture {
    hotbed_backend backend;
    hotbed_stream *stream;
    hotbed_storage *storage;
    /* an external store in memory, if HOTBED_TEST_MODE is external; else NULL */
    hotbed_external *store;
    oracle *model; /* NULL after fixture_open_bare() */
    /* The model's source of initial values: a storage of the same seed, in which rows are created, read and erased. */
    hotbed_storage *initial;
    hotbed_stream *initial_stream;
    hotbed_memory memories[FIXTURE_MEMORIES];
    uint32_t num_memories;
    struct test_ticket *tickets; /* open ones, the latest first */
} fixture;

/* Create an external store in memory for the tables of these options. */
void fixture_store(const hotbed_storage_options *options, hotbed_external **out);
/* Create a storage, with its model or without it (bare). */
void fixture_open(fixture *r, hotbed_backend backend, const hotbed_storage_options *options);
void fixture_open_bare(fixture *r, hotbed_backend backend, const hotbed_storage_options *options);
bool fixture_moves(const fixture *r);  /* whether the storage has two tiers */
bool fixture_by_row(const fixture *r); /* see oracle.by_row */
/* Close the open tickets, check that no pins are left if there is a model, and free everything. */
void fixture_close(fixture *r);

/* Device memory, freed by fixture_close(). */
void *fixture_alloc(fixture *r, uint64_t bytes);
void fixture_upload(fixture *r, void *device, const void *host, uint64_t bytes);   /* synchronous */
void fixture_download(fixture *r, void *host, const void *device, uint64_t bytes); /* synchronous */
/* Allocate device memory and copy a host array to it. */
void *fixture_copy(fixture *r, const void *host, uint64_t bytes);

/* Check that all rows, keys, scores, states, sizes, pins and statistics equal the model's. */
void fixture_check(fixture *r);
void fixture_check_rows(fixture *r); /* only rows, keys, scores and optimizer states */

uint64_t fixture_size(fixture *r, uint32_t table); /* keys */
uint64_t fixture_pinned(fixture *r);               /* pinned rows of all tables */

/* Initial values of n rows, read from fixture.initial, [n, dim] of the table's dtype.  An oracle_initial. */
void fixture_initial(void *self, uint32_t table, uint64_t n, const uint64_t *keys, void *weights);

/* --- tickets --------------------------------------------------------------------------------- */

/* The shape of a random batch.  With all fields but the size 0, it has one key per bag, any 64-bit keys and no
 * weights. */
typedef struct batch_shape {
    uint32_t batch_size;
    uint32_t max_bag;   /* bags have 0 .. max_bag keys; 0: one key each, and offsets are NULL */
    uint64_t key_space; /* number of different keys, spread over 64 bits; 0: any key */
    bool weights;
    bool counts;   /* `counts` of the batch: keys stand for no, some, or very many occurrences */
    bool extremes; /* a third of the keys are rng_extreme_key() */
    bool one_key;  /* the whole batch is one key */
    bool bound;    /* num_keys is larger than the last offset */
} batch_shape;

/* A ticket of the storage and one of the model, with arrays for one batch. */
typedef struct test_ticket {
    fixture *r;
    struct test_ticket *next; /* in fixture.tickets */
    hotbed_ticket *ticket;
    oracle_ticket *model;
    uint64_t max_keys;
    uint64_t num_keys; /* of this batch: its last offset */
    uint64_t stride;   /* of outputs and gradients: 0, or at least the smallest that is allowed */
    uint64_t output_bytes;
    hotbed_batch host;   /* host arrays, and the sizes of this batch */
    hotbed_batch device; /* device arrays */
    bool use_offsets, use_weights, use_counts;
    bool forwarded; /* the last prefetch was hotbed_storage_prefetch_forward() */
    void *output;   /* device */
    void *gradient; /* device */
    void *scratch[2];
} test_ticket;

void test_ticket_open(fixture *r, test_ticket *l, uint64_t max_keys, uint32_t max_batch_size);
void test_ticket_close(test_ticket *l); /* before fixture_close() does it */
void test_ticket_fill(test_ticket *l, rng *random, const batch_shape *how);
/* Copy the host's keys, offsets, weights and counts to the device, after the test has changed them. */
void test_ticket_upload(test_ticket *l);

/* The batch in device memory, for calls on the storage alone. */
hotbed_batch test_ticket_batch(const test_ticket *l);

void test_ticket_prefetch(test_ticket *l);
/* Prefetch; the model refuses the keys that the library refused.  Synchronous; returns the status of the sync. */
HOTBED_MUST_USE hotbed_status test_ticket_prefetch_with_slots(test_ticket *l);
/* Forward or eval, and compare the outputs; synchronous. Rows of sequences are also scattered
 * (storage/step/scatter.h). */
void test_ticket_forward(test_ticket *l);
/* Backward with a random gradient. */
void test_ticket_backward(test_ticket *l, rng *random);
void test_ticket_cancel(test_ticket *l);
void test_ticket_eval(test_ticket *l);
void test_ticket_check(test_ticket *l); /* compare the views of both tickets; synchronous */
/* fill, prefetch, check, forward, backward */
void test_ticket_step(test_ticket *l, rng *random, const batch_shape *how);

/* Arrays in device memory for the rows of a ticket's batch of sequences, filled with guards. close() compares all bytes
 * with the outputs in scratch[1]. */
enum { TEST_SCATTER_ARRAYS = 3, TEST_SCATTER_RUNS = 3 * TEST_SCATTER_ARRAYS };
typedef struct test_scatter {
    hotbed_memory views, rows;
    uint64_t array_bytes;
    uint32_t starts[TEST_SCATTER_RUNS + 1], firsts[TEST_SCATTER_RUNS];
    hotbed_scatter_view to;
} test_scatter;
void test_scatter_open(test_ticket *l, test_scatter *s);
void test_scatter_close(test_ticket *l, test_scatter *s);

/* Position of the first byte that differs, or `bytes`. */
uint64_t first_difference(const void *a, const void *b, uint64_t bytes);
