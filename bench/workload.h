/* bench/workload.h - the parts of hotbed-workloads: input, run, check, report. */
#ifndef HOTBED_BENCH_WORKLOAD_H
#define HOTBED_BENCH_WORKLOAD_H

#include "hotbed/storage.h"

#include <stdio.h>

/* --- what is run ------------------------------------------------------------------------------ */

/* Size of a workload: tables with one feature each, bags of one key, pooling NONE, fp32, int64 keys. */
typedef struct workload_shape {
    uint32_t tables;
    uint32_t dim;
    uint32_t samples; /* keys a table and step */
    uint32_t batches; /* step s uses batch s mod batches */
    uint64_t rows;    /* a table: capacity, and N of the key stream */
} workload_shape;

/* Milliseconds of a step and of an eval at scale 1 on one H200, as docs/performance.md has them. */
typedef struct workload_peer {
    double forward, backward, train, eval;
} workload_peer;

typedef struct workload {
    const char *name;
    hotbed_optimizer_kind optimizer;
    double floor_train, floor_eval; /* the ideals, as measured with plain kernels */
    workload_peer dynamicemb;       /* hash tables that grow by key */
    workload_peer tbe;              /* FBGEMM's static tables: no hash, no new keys */
} workload;

static inline uint64_t workload_keys_a_step(const workload_shape *shape) {
    return (uint64_t)shape->tables * shape->samples;
}

/* --- input: keys and gradients, the same for every backend ------------------------------------ */

typedef struct workload_input {
    workload_shape shape;
    int64_t *keys;   /* [batches][tables][samples] */
    float *gradient; /* [tables * samples][dim], of every step */
} workload_input;

/* Make the input on all cores.  Errors: MEMORY. */
hotbed_status workload_input_create(const workload_shape *shape, workload_input *out);
void workload_input_destroy(workload_input *input);

/* Mix of 64 bits (splitmix64's finaliser, Steele et al. 2014). */
static inline uint64_t workload_mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9U;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

/* --- run: a storage and its buffers on one backend --------------------------------------------- */

typedef struct workload_run {
    const workload *what;
    const workload_input *input;
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_ticket *ticket;
    hotbed_memory keys;     /* all batches */
    hotbed_memory fixed;    /* keys of one batch: what graphs read */
    hotbed_memory gradient; /* [tables * samples][dim] */
    hotbed_memory output;   /* the same */
    uint64_t steps;         /* training steps enqueued so far */
} workload_run;

/* Options of the workload's storage with `rows` rows a table; *tables has room for shape->tables and must
 * outlive the options. */
void workload_storage_options(
    const workload *what, const workload_shape *shape, uint64_t rows, hotbed_table_options *tables,
    hotbed_storage_options *out);

hotbed_status workload_run_create(
    const workload *what, const workload_input *input, hotbed_backend backend, workload_run *out);
void workload_run_destroy(workload_run *run);

/* Medians over the steps of a pass, in seconds; 0 where the pass does not measure it. */
typedef struct workload_times {
    double forward; /* prefetch and forward */
    double backward;
    double train;
    double eval;
} workload_times;

/* What the library did on the host while the steps of a pass were enqueued. */
typedef struct workload_host {
    uint64_t steps, waits, allocations;
} workload_host;

/* One step, enqueued, keys read where the input lies. */
hotbed_status workload_step(workload_run *run);

/* Passes: `steps` steps enqueued one behind the other, each between events; then a sync.
 *   eager  the calls themselves, keys read where the input lies
 *   split  a graph of prefetch and forward, then a graph of backward
 *   graph  one graph of the whole step
 * Graphs read one fixed buffer; the copy of a batch's keys into it is timed with the step. */
hotbed_status workload_pass_eager(
    workload_run *run, uint32_t steps, workload_times *times, workload_host *host);
hotbed_status workload_pass_split(
    workload_run *run, uint32_t steps, workload_times *times, workload_host *host);
hotbed_status workload_pass_graph(
    workload_run *run, uint32_t steps, workload_times *times, workload_host *host);
hotbed_status workload_pass_eval(
    workload_run *run, uint32_t steps, bool graph, workload_times *times, workload_host *host);

/* Medians of the kernels of a step, each between events: layout, dedup, find, place, forward, update;
 * and of an eval: find, forward.  Seconds. */
enum { WORKLOAD_TRAIN_STAGES = 6, WORKLOAD_EVAL_STAGES = 2 };

typedef struct workload_stages {
    double train[WORKLOAD_TRAIN_STAGES];
    double eval[WORKLOAD_EVAL_STAGES];
} workload_stages;

/* Each after another pass, which gave the ticket its sizes. */
hotbed_status workload_pass_stages(
    workload_run *run, uint32_t steps, workload_stages *stages, workload_host *host);
hotbed_status workload_pass_eval_stages(
    workload_run *run, uint32_t steps, workload_stages *stages, workload_host *host);

/* Keys of step number `step`, and a batch of keys. */
const int64_t *workload_keys_of(const workload_run *run, uint64_t step);
hotbed_batch workload_batch_of(const workload_run *run, const void *keys);

double workload_median(double *values, uint32_t n); /* sorts them */

/* What this machine reaches with plain code, in this run. */
typedef struct workload_limits {
    double copy;   /* bytes per second, read + write, of a large device copy */
    double gather; /* seconds to gather the rows of a batch straight by address, duplicates and all:
                    * what eval would take if it knew the slots; median over batches */
    double gather_rate; /* bytes per second, read + write, of that */
} workload_limits;

hotbed_status workload_measure_limits(workload_run *run, workload_limits *out);

/* --- check: an oracle in plain C, and digests --------------------------------------------------- */

typedef struct workload_oracle workload_oracle;

/* Follow a sample of keys, the hottest and random ones, from their initial rows on.
 * Errors: MEMORY and what the storage returns. */
hotbed_status workload_oracle_create(
    const workload *what, const workload_input *input, hotbed_stream *stream,
    workload_oracle **out);
void workload_oracle_destroy(workload_oracle *oracle);

/* Take the oracle to where the run is, and compare the run's last output (its forward) with the sample's
 * rows before that step, then the stored weights and states with the sample's, bit for bit.
 * Errors: CORRUPT (the first difference, with its values). */
hotbed_status workload_oracle_check(workload_oracle *oracle, workload_run *run);

/* Compare the output, taken as that of an eval of batch `batch`, with the stored rows at random positions. */
hotbed_status workload_check_eval(workload_run *run, uint32_t batch);

uint64_t workload_oracle_rows(const workload_oracle *oracle); /* keys followed */

/* A digest of all keys, weights and states that does not depend on where rows lie, and one of the output. */
typedef struct workload_digest {
    uint64_t rows;
    uint64_t table[2]; /* two sums of different hashes of the rows */
    uint64_t output;
} workload_digest;

hotbed_status workload_run_digest(workload_run *run, workload_digest *out);

/* --- report ------------------------------------------------------------------------------------- */

typedef struct workload_result {
    const workload *what;
    workload_shape shape;
    double scale;
    uint32_t steps;
    uint64_t uniques;     /* a step, all tables */
    double load;          /* keys / slots */
    workload_times eager; /* every field */
    workload_times graph; /* forward and backward from the split graphs, train from the whole one */
    workload_stages stages;
    workload_host host;     /* all passes together */
    workload_limits limits; /* of the run */
    double limit_forward,
        limit_backward; /* seconds: the bytes that must move, at the copy's rate */
    uint64_t checked;   /* rows compared; 0: no check was asked for */
} workload_result;

/* Who ran: all text is for the JSON file. */
typedef struct workload_machine {
    hotbed_backend backend;
    char device[128];
    char driver[64];
    char date[32];
    const char *commit;
    const char *command;
} workload_machine;

hotbed_status workload_machine_read(hotbed_stream *stream, workload_machine *out);

/* Fill in limit_forward and limit_backward from the counts. */
void workload_result_limits(workload_result *result);

/* Earlier result of the same workload, device, backend and scale: the newest file of `directory`. */
typedef struct workload_previous {
    double train, eval; /* milliseconds; 0: there is none */
    char file[256];
} workload_previous;

void workload_previous_find(
    const char *directory, const workload_machine *machine, const workload_result *result,
    workload_previous *out);

void workload_print(
    FILE *to, const workload_machine *machine, const workload_result *result,
    const workload_previous *previous);

/* Errors: IO. */
hotbed_status workload_write_json(
    const char *path, const workload_machine *machine, const workload_result *results,
    const workload_previous *previous, size_t count);

#endif
