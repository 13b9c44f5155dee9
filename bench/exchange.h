/* bench/exchange.h - the modules of hotbed-exchange: ranks, a timed collection, measurements, the
 * report.
 *
 * Every rank does the same work. All ranks receive each time, which is the slowest rank's rank. */
#pragma once

#include "bench/workload.h"
#include "hotbed/sharded.h"

enum { EXCHANGE_PLANS = 3, EXCHANGE_PHASES = 3, EXCHANGE_WORLDS = 8 };
enum { EXCHANGE_BAGS = 10, EXCHANGE_STAGES = 8 }; /* workloads with bags; stages of their steps */

/* The phases of a step: keys to their owners, rows to the requesting ranks, gradients back. */
extern const char *const exchange_phases[EXCHANGE_PHASES];
extern const char *const exchange_plans[EXCHANGE_PLANS]; /* by hotbed_plan */

/* The stages of a step, one call each but for wait_input, which includes wait_splits. */
extern const char *const exchange_stages[EXCHANGE_STAGES];

enum { EXCHANGE_TRAIN, EXCHANGE_EVAL, EXCHANGE_STEPS };
extern const char *const exchange_steps[EXCHANGE_STEPS];

/* --- results ---------------------------------------------------------------------------------- */

/* Times in seconds; 0: not measured. */
typedef struct exchange_times {
    double phase[EXCHANGE_PHASES];
    double step; /* seconds of a step, without barriers between steps */
} exchange_times;

/* An all-to-all of bytes. */
typedef struct exchange_raw {
    double bytes; /* bytes that a rank sends, including its own part */
    double own;   /* seconds of the transport's own call; threads: of a copy */
    double comm;  /* seconds of the communicator's call */
} exchange_raw;

typedef struct exchange_bag_times {
    double eager[EXCHANGE_STEPS], graph[EXCHANGE_STEPS]; /* without barriers between steps */
    double eager_stages[EXCHANGE_STAGES], graph_stages[EXCHANGE_STAGES]; /* of training */
    double sent[EXCHANGE_PHASES]; /* bytes that rank 0 sends in a training step, counted */
} exchange_bag_times;

/* Steps of W9 to W12 in which each rank has batches of its own. */
typedef struct exchange_bags {
    const workload *what;
    uint64_t keys; /* of a rank's batch */
    uint32_t samples, row_bytes;
    workload_moved must;      /* of the first batch of rank 0 */
    exchange_bag_times alone; /* a rank by itself, all ranks at once */
    exchange_bag_times times[EXCHANGE_PLANS];
    uint64_t checked;         /* rows compared with the oracle */
    uint64_t rows, digest[2]; /* of all rows of all ranks after training, equal for all plans */
} exchange_bags;

typedef struct exchange_result {
    uint32_t size;
    /* An exchange of distinct keys and their rows. */
    uint64_t keys, capacity; /* keys of a rank; keys that a message holds */
    uint32_t row_bytes;
    exchange_raw raw_keys, raw_rows;
    exchange_times eager[EXCHANGE_PLANS], graph[EXCHANGE_PLANS];
    /* Weak scaling: each rank has a batch of W1. */
    uint64_t step_keys, step_uniques; /* keys and distinct keys of a rank */
    exchange_times scaling_eager[EXCHANGE_PLANS], scaling_graph[EXCHANGE_PLANS];
    double single; /* seconds of the same steps on one rank, without a collection */
    double copy;   /* of a rank: bytes a second, read + write, of all ranks at once */
    exchange_bags bags[EXCHANGE_BAGS];
} exchange_result;

/* --- the program ------------------------------------------------------------------------------ */

/* State in memory that all processes of the program share. */
typedef struct exchange_program {
    hotbed_transport transport;                   /* 0: not chosen yet */
    uint32_t worlds[EXCHANGE_WORLDS], num_worlds; /* sizes to measure; MPI: only the job's size */
    double scale;
    uint32_t steps;
    bool scaling;                   /* whether to measure W1 */
    uint32_t plans;                 /* bit p: measure hotbed_plan p */
    hotbed_dtype forward, backward; /* types that travel; 0: the default of the options */
    hotbed_dtype outputs;           /* of the keys and of W1, and of their gradients; 0: f32 */
    const workload *bags[EXCHANGE_BAGS];
    uint32_t num_bags;
    bool reports; /* this process prints and writes the results */
    const char *json;
    workload_input input;                 /* of W1; filled by the process of each world */
    workload_input inputs[EXCHANGE_BAGS]; /* of workloads with bags; some serve several */
    uint32_t input_of[EXCHANGE_BAGS];
    workload_machine machine;
    exchange_result results[EXCHANGE_WORLDS];
    uint32_t num_results;
} exchange_program;

/* Whether rows, outputs or gradients have a type that rounds: then there is no model to check rows by. */
bool exchange_is_narrow(const exchange_program *p);

/* Whether to measure a plan. */
bool exchange_measures(const exchange_program *p, int plan);

/* One rank. */
typedef struct exchange_rank {
    exchange_program *p;
    hotbed_comm *comm;
    hotbed_stream *stream;
    uint32_t rank, size;
    exchange_result *result; /* every rank computes the whole result; rank 0 stores it */
} exchange_rank;

/* Replace each time by the largest of all ranks. Blocks until all ranks call it. */
hotbed_status exchange_slowest(const exchange_rank *me, double *times, uint32_t n);

/* Gather: all[r * bytes] receives rank r's `own`. Blocks. */
hotbed_status exchange_tell(const exchange_rank *me, const void *own, size_t bytes, void *all);

/* --- a timed collection --------------------------------------------------------------------- */

typedef struct exchange_batches {
    const int64_t *keys; /* host memory: [count][features * samples], bags of one key */
    uint32_t count, features, samples;
    bool distinct;          /* the keys of a batch are distinct, as after dedup */
    const float *gradients; /* host memory: [features * samples][dim], for every step */
} exchange_batches;

typedef struct exchange_run {
    const exchange_rank *me;
    hotbed_plan plan;
    uint32_t dim, batches;
    uint64_t n; /* number of keys of a batch */
    hotbed_sharded *sharded;
    hotbed_sharded_context *context;
    hotbed_memory keys, fixed, output, gradient;
    hotbed_kjt kjt;                                /* with the keys in `fixed` */
    hotbed_graph *graphs[EXCHANGE_PHASES], *whole; /* of the phases, and of a step */
    hotbed_event *marks[2 * EXCHANGE_PHASES];
    uint64_t steps; /* number of steps so far; step s uses batch s mod batches */
} exchange_run;

/* Create a collection with the options `storage`, for `capacity` keys per message. */
hotbed_status exchange_run_create(
    const exchange_rank *me, const hotbed_storage_options *storage, hotbed_plan plan,
    uint64_t capacity, const exchange_batches *batches, exchange_run *out);
void exchange_run_destroy(exchange_run *run);

/* Run n steps. The first two warm up. */
hotbed_status exchange_run_steps(exchange_run *run, uint32_t n);

/* Record the step and its phases as graphs. Call it after steps, which set the sizes of buffers. Not for
 * TWO_PHASE, which blocks. */
hotbed_status exchange_run_record(exchange_run *run);

/* Measure the median of each phase over n steps, each phase after a barrier of all ranks, and the
 * mean time of n more steps without barriers. Uses the graphs if they were recorded. */
hotbed_status exchange_run_time(exchange_run *run, uint32_t n, exchange_times *out);

/* Run forward only, on the batch of step `step`. */
hotbed_status exchange_run_forward(exchange_run *run, uint64_t step);

/* --- measurements ----------------------------------------------------------------------------- */

/* Measure and check the exchange of distinct keys and their rows, all-to-alls of as many bytes, and
 * copies. */
hotbed_status exchange_measure_keys(const exchange_rank *me);
/* Measure steps of W1, and check that all plans give the same rows. */
hotbed_status exchange_measure_scaling(const exchange_rank *me);
/* Measure steps of the chosen workloads with bags, and check them. */
hotbed_status exchange_measure_bags(const exchange_rank *me);

/* Digest of all rows of all ranks, and of this rank's output of the last forward. */
hotbed_status exchange_digest(const exchange_rank *me, workload_run *run, workload_digest *out);
/* Errors: CORRUPT (the digests differ). */
hotbed_status exchange_compare(
    const exchange_rank *me, const char *name, const workload_digest *want,
    const workload_digest *got);

/* --- report ----------------------------------------------------------------------------------- */

/* Bytes a second of one direction of a rank's link: the faster all-to-all of rows. 0: one rank. */
double exchange_link(const exchange_result *r);

/* Seconds of a rank by itself, and of the bytes that must travel over the link. */
double exchange_bags_limit(const exchange_result *r, const exchange_bags *bags, int step);

void exchange_print(FILE *to, const exchange_program *p, const exchange_result *result);
/* Errors: IO. */
hotbed_status exchange_write_json(const exchange_program *p);
