/* bench/exchange.h - the parts of hotbed-exchange: ranks, a collection that is timed, the measurements, the report.
 *
 * Every rank does the same; a time is the slowest rank's, which all ranks learn.
 */
#ifndef HOTBED_BENCH_EXCHANGE_H
#define HOTBED_BENCH_EXCHANGE_H

#include "bench/workload.h"
#include "hotbed/sharded.h"

enum { EXCHANGE_PLANS = 3, EXCHANGE_PHASES = 3, EXCHANGE_WORLDS = 8 };

/* A phase of a step, by its number: keys to their owners, rows to who asked, gradients back. */
extern const char *const exchange_phases[EXCHANGE_PHASES];
extern const char *const exchange_plans[EXCHANGE_PLANS]; /* by hotbed_plan */

/* --- results ------------------------------------------------------------------------------------ */

/* Seconds; 0 is not measured. */
typedef struct exchange_times {
    double phase[EXCHANGE_PHASES];
    double step; /* of steps one behind the other */
} exchange_times;

/* An all-to-all of bytes. */
typedef struct exchange_raw {
    double bytes; /* that a rank sends, its own part included */
    double own;   /* seconds of the transport's own call; threads: of a copy */
    double comm;  /* of the communicator's */
} exchange_raw;

typedef struct exchange_result {
    uint32_t size;
    /* Distinct keys to their owners and their rows back. */
    uint64_t keys, capacity; /* of a rank; of a message */
    uint32_t row_bytes;
    exchange_raw raw_keys, raw_rows;
    exchange_times eager[EXCHANGE_PLANS], graph[EXCHANGE_PLANS];
    /* Weak scaling: each rank has a batch of W1. */
    uint64_t step_keys, step_uniques; /* of a rank */
    exchange_times scaling_eager[EXCHANGE_PLANS], scaling_graph[EXCHANGE_PLANS];
    double single; /* of one rank: seconds of the same steps without a collection */
    double copy;   /* of a rank: bytes a second, read + write, of all ranks at once */
} exchange_result;

/* --- the program --------------------------------------------------------------------------------- */

/* In memory that all its processes share. */
typedef struct exchange_program {
    hotbed_transport transport;                   /* 0: not said yet */
    uint32_t worlds[EXCHANGE_WORLDS], num_worlds; /* sizes to try; MPI: the job's alone */
    double scale;
    uint32_t steps;
    bool scaling;
    bool reports; /* this process does */
    const char *json;
    workload_input input; /* of W1; of one world's process */
    workload_machine machine;
    exchange_result results[EXCHANGE_WORLDS];
    uint32_t num_results;
} exchange_program;

/* One rank. */
typedef struct exchange_rank {
    exchange_program *p;
    hotbed_comm *comm;
    hotbed_stream *stream;
    uint32_t rank, size;
    exchange_result *result; /* every rank has all of it; rank 0's is kept */
} exchange_rank;

/* Each time becomes the largest of all ranks'.  Waits for all. */
hotbed_status exchange_slowest(const exchange_rank *me, double *times, uint32_t n);

/* all[r * bytes] becomes what rank r has in `own`.  Waits. */
hotbed_status exchange_tell(const exchange_rank *me, const void *own, size_t bytes, void *all);

/* --- a collection that is timed ------------------------------------------------------------------- */

typedef struct exchange_batches {
    const int64_t *keys; /* host: [count][features * samples], one key a bag */
    uint32_t count, features, samples;
    bool distinct;          /* each key once a batch, as after dedup */
    const float *gradients; /* host: [features * samples][dim], of every step */
} exchange_batches;

typedef struct exchange_run {
    const exchange_rank *me;
    hotbed_plan plan;
    uint32_t dim, batches;
    uint64_t n; /* keys of a batch */
    hotbed_sharded *sharded;
    hotbed_sharded_context *context;
    hotbed_memory keys, fixed, output, gradient;
    hotbed_kjt kjt; /* reads `fixed` */
    hotbed_graph *graphs[EXCHANGE_PHASES];
    hotbed_event *marks[2 * EXCHANGE_PHASES];
    uint64_t steps; /* so far; step s has batch s mod batches */
} exchange_run;

/* `storage` as of the collection; `capacity` keys a message. */
hotbed_status exchange_run_create(
    const exchange_rank *me, const hotbed_storage_options *storage, hotbed_plan plan,
    uint64_t capacity, const exchange_batches *batches, exchange_run *out);
void exchange_run_destroy(exchange_run *run);

/* n steps.  The first two are those that warm up. */
hotbed_status exchange_run_steps(exchange_run *run, uint32_t n);

/* Record the phases; after steps, which gave buffers their sizes.  Not of TWO_PHASE, which waits. */
hotbed_status exchange_run_record(exchange_run *run);

/* Medians of each phase over n steps, each phase after a barrier of all ranks; and the time of n more steps without
 * barriers, divided by n.  With what was recorded, once it was. */
hotbed_status exchange_run_time(exchange_run *run, uint32_t n, exchange_times *out);

/* Forward alone, of step number `step`'s batch. */
hotbed_status exchange_run_forward(exchange_run *run, uint64_t step);

/* --- measurements ----------------------------------------------------------------------------------- */

/* Distinct keys and their rows, checked, beside all-to-alls of as many bytes, and copies. */
hotbed_status exchange_measure_keys(const exchange_rank *me);
/* Steps of W1, checked: all plans give the same rows. */
hotbed_status exchange_measure_scaling(const exchange_rank *me);

/* --- report ------------------------------------------------------------------------------------------- */

void exchange_print(FILE *to, const exchange_program *p, const exchange_result *result);
/* Errors: IO. */
hotbed_status exchange_write_json(const exchange_program *p);

#endif
