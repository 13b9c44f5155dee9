/* bench/workload.h - the modules of hotbed-workloads: input, run, passes, limits, check, report. */
#pragma once

#include "bench/limits.h"
#include "hotbed/route.h"
#include "hotbed/storage.h"

#include <stdio.h>

/* --- definition of the workloads ------------------------------------------------------------ */

enum { WORKLOAD_TABLES = 1000 }; /* the largest number */

/* Size of a workload: tables with one feature each, fp32 output, int64 keys.  W1 to W8 have equal
 * tables, bags of one key and pooling NONE; the others have pooling SUM, tables of different sizes,
 * and bags of a fixed size for each feature. */
typedef struct workload_shape {
    uint32_t tables;
    uint32_t dim;
    uint32_t samples; /* bags of a table in a step */
    uint32_t batches; /* step s uses batch s mod batches */
    uint32_t warm; /* steps before the first timed one: all batches, but for WORKLOAD_POWER_DRIFT */
    uint64_t range; /* keys of the largest table are below it */
    uint64_t rows;  /* capacity of the largest table, in all tiers */
    bool pooled;
    uint32_t before[WORKLOAD_TABLES + 1]; /* keys of a sample before the bag of table t */
    uint64_t table_rows[WORKLOAD_TABLES]; /* capacity; where pooled, keys are below it */
    double spare;                         /* capacity beyond table_rows, as a share of it */
} workload_shape;

/* Milliseconds of a step and of an eval at scale 1 on one H200, as in docs/performance.md; 0: unknown. */
typedef struct workload_figures {
    double forward, backward, train, eval;
} workload_figures;

/* The distribution of keys. */
typedef enum workload_stream {
    WORKLOAD_POWER_ONE = 0, /* bags of one key, power law from key 1 on */
    WORKLOAD_POWER_BAGS,    /* bags of MLPerf's DLRM-DCNv2, power law from key 0 on */
    WORKLOAD_UNIFORM_BAGS,  /* the same bags, all keys equally likely */
    WORKLOAD_POWER_DRIFT, /* as POWER_ONE, but the keys of a tenth of the ranks change now and then */
} workload_stream;

typedef struct workload {
    const char *name;
    hotbed_optimizer_kind optimizer;
    hotbed_mode mode;
    workload_stream stream;
    uint32_t samples;         /* number of bags at scale 1 */
    hotbed_table_kind kind;   /* bags: the same workload exists for each kind of table */
    hotbed_dtype dtype;       /* of the weights; 0: f32 */
    hotbed_dtype state_dtype; /* of the optimizer's states; 0: f32 */
    bool random; /* rows and states are rounded at random, which the oracle does not do */
    bool tracks; /* whether changes are tracked */
    hotbed_score_strategy score;
    /* Share of the rows in device memory.  CACHE: of the distinct keys of the first shape.warm
     * batches, which but for W13 are all rows that a run has; DEFAULT: of the capacity. */
    double upper;
    workload_figures floor; /* the lower bounds, from plain kernels or from bytes over the link */
    workload_figures goal;  /* the target */
    double goal_overlap;    /* the target of train with overlapped prefetch */
    workload_figures dynamicemb; /* results of dynamicemb: hash tables that grow by key */
    workload_figures tbe;        /* results of FBGEMM's static tables: no hash, no new keys */
} workload;

/* Whether the rows are in two tiers. */
static inline bool workload_tiered(const workload *what) {
    return what->mode == HOTBED_MODE_CACHE || what->mode == HOTBED_MODE_DEFAULT;
}

static inline bool workload_pooled(const workload *what) {
    return what->stream == WORKLOAD_POWER_BAGS || what->stream == WORKLOAD_UNIFORM_BAGS;
}

static inline uint64_t workload_keys_a_step(const workload_shape *shape) {
    return (uint64_t)shape->before[shape->tables] * shape->samples;
}

/* Number of keys in a bag of table t. */
static inline uint32_t workload_bag(const workload_shape *shape, uint32_t t) {
    return shape->before[t + 1] - shape->before[t];
}

/* Position of table t's first key in a batch; t may be the number of tables. */
static inline uint64_t workload_first_key(const workload_shape *shape, uint32_t t) {
    return (uint64_t)shape->before[t] * shape->samples;
}

static inline uint64_t workload_bags_a_step(const workload_shape *shape) {
    return (uint64_t)shape->tables * shape->samples;
}

/* Position of bag b's first element in the output and in its gradient. */
static inline uint64_t workload_element(const workload_shape *shape, uint64_t b) {
    uint64_t table = b / shape->samples;
    uint64_t at = shape->pooled ? b % shape->samples * shape->tables + table : b;
    return at * shape->dim;
}

/* --- input: keys and gradients, equal on all backends --------------------------------------- */

typedef struct workload_input {
    workload_shape shape;
    workload_stream stream;
    double exponent;  /* of the power law: the density of keys falls as key^-exponent */
    int64_t *keys;    /* [batches][tables][samples][bag] */
    int64_t *offsets; /* [tables * samples + 1] position of each bag's first key in a batch */
    float *gradient;  /* of every step, laid out as the output: see workload_element() */
    uint64_t
        distinct[WORKLOAD_TABLES]; /* distinct keys of each table in the first shape.warm batches */
} workload_input;

/* Keys that drift are fresh for this many steps in each pass of a measurement. */
enum { WORKLOAD_DRIFT_STEPS = 20 };

/* Whether an input is the workload's at the scale; {0} is nobody's. */
bool workload_input_serves(const workload *what, double scale, const workload_input *input);

/* Make *input the input of the workload at the scale, on all cores; an input of the same workload
 * is kept, another is freed first.  Initialise *input to {0}.  Errors: MEMORY. */
hotbed_status workload_input_for(const workload *what, double scale, workload_input *input);

/* Make the input of a shape that is in no workload. Errors: MEMORY. */
hotbed_status workload_input_create(
    const workload_shape *shape, workload_stream stream, double exponent, workload_input *out);

/* Set the tables of MLPerf's DLRM-DCNv2 with a share `scale` of their rows; samples and batches are the caller's. */
void workload_bag_tables(double scale, workload_shape *shape);
void workload_input_destroy(workload_input *input);

/* Round the gradients to multiples of 2^-8, so that their sums are exact in any order: several ranks
 * then train the same rows as one. */
void workload_round_gradients(workload_input *input);

/* A 64-bit mix (splitmix64's finalizer, Steele et al. 2014). */
static inline uint64_t workload_mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9U;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

/* --- what ranks must move ----------------------------------------------------------------------- */

/* Rows that a batch moves from other ranks, by what travels: for each feature partial sums of all
 * bags, of the bags with a key on the sending rank, or the distinct rows. */
typedef struct workload_moved {
    uint64_t sums, bags, distinct;
    uint64_t best;      /* for each feature the fewer of `bags` and `distinct` */
    uint64_t best_keys; /* keys that travel then, one way */
} workload_moved;

/* Count the rows that the first batch of `keys` moves to `rank` from the other ranks, at most 64.
 * Errors: MEMORY. */
hotbed_status workload_count_moved(
    const workload_shape *shape, const int64_t *keys, const hotbed_route *routes, uint32_t rank,
    workload_moved *out);

/* --- run: a storage and its buffers on one backend -------------------------------------------- */

typedef struct workload_run {
    const workload *what;
    const workload_input *input;
    hotbed_insertion insertion;
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_ticket *ticket;
    hotbed_memory keys;     /* all batches */
    hotbed_memory fixed;    /* the keys of one batch, which graphs read */
    hotbed_memory offsets;  /* of the bags of a batch */
    hotbed_memory gradient; /* [tables * samples][dim] */
    hotbed_memory output;   /* the same */
    uint64_t steps;         /* number of training steps enqueued */
    /* Sharded over ranks: the storage has the rows of `rank`, and in step s rank r trains batch
     * s * ranks + r mod batches. [tables]; NULL: the storage has all rows. */
    const hotbed_route *routes;
    uint32_t ranks, rank; /* 0: as 1 */
    /* [tables] the storage and the number there of each table; NULL: `storage`, with all tables */
    const struct workload_place *places;
} workload_run;

typedef struct workload_place {
    hotbed_storage *storage;
    uint32_t table;
} workload_place;

static inline workload_place workload_place_of(const workload_run *run, uint32_t table) {
    const workload_place whole = {run->storage, table};
    return run->places == NULL ? whole : run->places[table];
}

/* Whether the run's storage has the row of a key. */
static inline bool workload_owns(const workload_run *run, uint32_t table, uint64_t key) {
    return run->routes == NULL || hotbed_route_rank(&run->routes[table], key) == run->rank;
}

/* The key in the run's storage: a static table stores local ids. */
static inline uint64_t workload_stored_key(const workload_run *run, uint32_t table, uint64_t key) {
    return run->routes == NULL || run->what->kind != HOTBED_TABLE_STATIC
               ? key
               : hotbed_route_local(&run->routes[table], key);
}

/* The tables of a storage's options, which they must outlive. */
typedef struct workload_tables {
    hotbed_table_options options[WORKLOAD_TABLES];
    char names[WORKLOAD_TABLES][8];
} workload_tables;

/* Options of a storage with the workload's tables, all in device memory. */
void workload_storage_options(
    const workload *what, const workload_shape *shape, workload_tables *tables,
    hotbed_storage_options *out);

/* Rows of table t in device memory. */
uint64_t workload_upper_rows(const workload *what, const workload_input *input, uint32_t t);

hotbed_status workload_run_create(
    const workload *what, const workload_input *input, hotbed_insertion insertion,
    hotbed_backend backend, workload_run *out);
void workload_run_destroy(workload_run *run);

/* Enqueue a part of a step: prefetch and forward; backward; eval. */
hotbed_status workload_forward(workload_run *run, const void *keys);
hotbed_status workload_backward(workload_run *run);
hotbed_status workload_eval(workload_run *run, const void *keys);

/* Statistics, summed over all tables. */
hotbed_status workload_stats(workload_run *run, hotbed_table_stats *out);

/* Medians over the steps of a pass, in seconds; 0: the pass does not measure it. */
typedef struct workload_times {
    double forward; /* includes prefetch */
    double backward;
    double train;
    double eval;
} workload_times;

/* Counts of the library's host waits and allocations while the steps of a pass were enqueued. */
typedef struct workload_host {
    uint64_t steps, waits, allocations;
} workload_host;

/* The number of the step whose batch a pass over `steps` evals uses as its batch s: from the first step on; where keys
 * are fresh, the steps that were trained last. */
uint64_t workload_eval_batch(const workload_run *run, uint32_t steps, uint32_t s);

/* Enqueue one step that reads the keys directly from the input. */
hotbed_status workload_step(workload_run *run);

/* Passes: enqueue `steps` consecutive steps with events around each, then sync.
 *   eager  the calls themselves; keys are read directly from the input
 *   split  a graph of prefetch and forward, then a graph of backward
 *   graph  one graph of the whole step
 * Graphs read one fixed buffer; the copy of a batch's keys to it is timed with the step. */
hotbed_status workload_pass_eager(
    workload_run *run, uint32_t steps, workload_times *times, workload_times *least,
    workload_host *host);
hotbed_status workload_pass_split(
    workload_run *run, uint32_t steps, workload_times *times, workload_host *host);
hotbed_status workload_pass_graph(
    workload_run *run, uint32_t steps, workload_times *times, workload_host *host);
hotbed_status workload_pass_eval(
    workload_run *run, uint32_t steps, bool graph, workload_times *times, workload_times *least,
    workload_host *host);

/* The same steps with the prefetch of a batch on a second stream, beside forward and backward of
 * the previous batch; between these two the first stream runs a stand-in for a dense model
 * (bench/model.h). */
typedef struct workload_overlap {
    double train; /* seconds from step to step */
    double dense; /* of the model alone */
    double prefetch, forward, dense_beside,
        backward; /* seconds from begin to end, within such a step */
} workload_overlap;

hotbed_status workload_pass_overlap(
    workload_run *run, uint32_t steps, double dense, workload_overlap *out, workload_host *host);

/* Medians of the kernels of a step, with events around each: layout (with bags), dedup, find,
 * place, forward, update; and of an eval: find, forward.  Seconds. */
enum { WORKLOAD_TRAIN_STAGES = 6, WORKLOAD_EVAL_STAGES = 2 };

typedef struct workload_stages {
    double train[WORKLOAD_TRAIN_STAGES];
    double eval[WORKLOAD_EVAL_STAGES];
} workload_stages;

/* Each runs after another pass, which has sized the ticket's buffers.  Of tiered workloads the
 * prefetch is timed as a whole: `prefetch`, seconds. */
hotbed_status workload_pass_prefetch(
    workload_run *run, uint32_t steps, double *prefetch, workload_host *host);
hotbed_status workload_pass_stages(
    workload_run *run, uint32_t steps, workload_stages *stages, workload_host *host);
hotbed_status workload_pass_eval_stages(
    workload_run *run, uint32_t steps, workload_stages *stages, workload_host *host);

/* The keys of step number `step`, and the number of keys of a batch. */
const int64_t *workload_keys_of(const workload_run *run, uint64_t step);
hotbed_batch workload_batch_of(const workload_run *run, const void *keys);

/* The rates of plain code on this machine, in this run. */
typedef struct workload_limits {
    double copy; /* bytes per second, read + write, of a large device copy */
    /* Seconds to gather the rows of a batch by address, duplicates included, and to sum the bags: an eval with
     * known slots; the median over batches. Tiered workloads: the same bytes at the rate of a copy. */
    double gather;
    double gather_rate; /* its bytes per second, read + write */
} workload_limits;

hotbed_status workload_measure_limits(workload_run *run, workload_limits *out);
/* *rate is in bytes per second. */
hotbed_status workload_measure_copy(hotbed_stream *stream, double *rate);

/* The rates of the link between the tiers, bytes per second: pinned host memory on CUDA; on the
 * host backend both tiers are DRAM. */
enum { WORKLOAD_LINK_SIZES = 2 }; /* rows of 512 and of 1536 bytes */

typedef struct workload_link {
    size_t bytes; /* of the memory from which rows were read, and to which they were written */
    double down, up, both; /* large copies to the device, from it, both at once */
    /* Kernels that read, or write, random rows: in any order, sorted by address. */
    double gather[WORKLOAD_LINK_SIZES][2];
    double scatter[WORKLOAD_LINK_SIZES][2];
    double host_gather[WORKLOAD_LINK_SIZES][2]; /* host threads that read random rows into DRAM */
} workload_link;

/* Use a share `scale` of 8 GiB of pinned memory, and of 256 MiB moved at a time. */
hotbed_status workload_measure_link(hotbed_backend backend, double scale, workload_link *out);

/* Median seconds of `enqueue` between events, over `repetitions` after two that warm up. */
typedef struct workload_limit workload_limit;
struct workload_limit {
    hotbed_status (*enqueue)(const workload_limit *limit, uint32_t repetition);
    hotbed_stream *stream;
    void *to;
    const void *from;
    const struct bench_pool *pool;
    size_t bytes;
    uint64_t n;
    uint32_t row_bytes;
};

hotbed_status workload_time_limit(const workload_limit *l, uint32_t repetitions, double *seconds);

/* --- check: an oracle in plain C, and digests ------------------------------------------------- */

typedef struct workload_oracle workload_oracle;

/* Create an oracle that follows some keys, the most frequent and random ones, from their initial
 * rows on. Errors: MEMORY and errors of the storage. */
hotbed_status workload_oracle_create(
    const workload *what, const workload_input *input, hotbed_stream *stream,
    workload_oracle **out);
void workload_oracle_destroy(workload_oracle *oracle);

/* Advance the oracle to the run's step.  Compare the run's last output (of forward) with the
 * oracle's rows before that step, then the stored weights and states with the oracle's, bit for
 * bit. With several ranks the sums of a bag over ranks may round otherwise, so outputs are compared
 * within the rounding of their terms; and the input's gradients must be rounded
 * (workload_round_gradients()). Errors: CORRUPT (with the first difference and its values). */
hotbed_status workload_oracle_check(workload_oracle *oracle, workload_run *run);

/* Compare the output of an eval of batch `batch` with the oracle's rows, at the step of the last
 * check, whose steps have used all batches. */
hotbed_status workload_oracle_check_eval(
    const workload_oracle *oracle, workload_run *run, uint64_t batch);

/* The second half of workload_oracle_check(), at the step of the last check. */
hotbed_status workload_oracle_check_rows(const workload_oracle *oracle, workload_run *run);

/* Compare the output of an eval of batch `batch` with the stored rows, at random positions. */
hotbed_status workload_check_eval(workload_run *run, uint32_t batch);

uint64_t workload_oracle_rows(const workload_oracle *oracle); /* number of followed keys */

/* A digest of all keys, weights and states that does not depend on the memory or order of rows, and
 * a digest of the output. */
typedef struct workload_digest {
    uint64_t rows;
    uint64_t table[2]; /* two sums, of different hashes of the rows */
    uint64_t output;
} workload_digest;

hotbed_status workload_run_digest(workload_run *run, workload_digest *out);
/* The digest of the output alone. */
hotbed_status workload_run_digest_output(workload_run *run, uint64_t *out);

/* --- report ----------------------------------------------------------------------------------- */

/* Rows per step that caches fetch which have the size of the upper tier, and evict exactly by their policy. */
typedef struct workload_fetches {
    double lru,
        lfu; /* lfu: by all occurrences so far; among equal counts the key used longest ago */
    double optimum; /* Belady's: evicts the key whose next use is last */
    double created; /* keys that no earlier step had, which no policy fetches */
} workload_fetches;

/* Rows and bytes per step over the link, for tiered workloads. */
typedef struct workload_traffic {
    double fetches, in_place, write_backs;
    double read_bytes, write_bytes;
    workload_fetches exact; /* of other policies, in the same steps */
} workload_traffic;

typedef struct workload_result {
    const workload *what;
    hotbed_insertion insertion;
    workload_shape shape;
    double scale;
    uint32_t steps;
    uint64_t uniques;          /* distinct keys per step, all tables */
    uint64_t keys;             /* number of rows, all tables */
    uint64_t upper_rows;       /* rows that fit in device memory */
    double load;               /* keys / slots; tiered workloads: keys / capacity */
    workload_times eager;      /* all fields are measured */
    workload_times least;      /* the fastest eager steps; all fields are measured */
    workload_times graph;      /* forward, backward: split graphs; train: whole graph */
    workload_stages stages;    /* only without tiers */
    double prefetch;           /* with tiers: seconds of the prefetch in an eager forward */
    workload_overlap overlap;  /* zeros: not requested */
    workload_traffic traffic;  /* of the eager, split and graph passes */
    double flush, flush_bytes; /* seconds, and bytes written */
    double made, took;         /* elapsed seconds: to create the storage, and in total */
    workload_host host;        /* all passes together */
    workload_limits limits;    /* in this run */
    workload_link link;        /* in this process */
    double limit_forward,
        limit_backward, /* seconds for the bytes that must move, at the rate of a copy */
        limit_link,     /* for the bytes of a step over the link, in both directions at once */
        limit_eval;
    uint64_t checked; /* rows compared; 0: no check requested */
} workload_result;

/* Distinguishes results of one workload name: "", " probation", " lfu", " lfu probation", " static" or " hash". */
const char *workload_variant(const workload *what, hotbed_insertion insertion);

/* Name and variant: "W5", "W5 probation", "W9 static". */
void workload_result_name(const workload_result *result, char *out, size_t bytes);

/* Names of the fields of workload_stages. */
extern const char *const workload_train_stages[WORKLOAD_TRAIN_STAGES];
extern const char *const workload_eval_stages[WORKLOAD_EVAL_STAGES];

/* Count the rows that caches of capacities[t] keys for each table fetch in the first `steps` steps
 * after shape.warm. Errors: MEMORY. */
hotbed_status workload_count_fetches(
    const workload_input *input, const uint64_t *capacities, uint32_t steps, workload_fetches *out);

/* The machine and the program: texts for the JSON file. */
typedef struct workload_machine {
    hotbed_backend backend;
    char device[128];
    char driver[64];
    char date[32];
    const char *commit;
    const char *command;
} workload_machine;

/* Join the arguments to one text, without file names and the commit. */
void workload_command(const char *program, int argc, char **argv, char *out, size_t bytes);

hotbed_status workload_machine_read(hotbed_stream *stream, workload_machine *out);

/* Whether the workload's figures, which are for a GPU and scale 1, can be compared with the result. */
bool workload_comparable(const workload_machine *machine, const workload_result *result);

double workload_limit_train(const workload_result *result); /* seconds for all bytes of a step */

/* Compute the limits from the counts. */
void workload_result_limits(workload_result *result);

void workload_print(FILE *to, const workload_machine *machine, const workload_result *result);

void workload_print_link(FILE *to, const workload_link *link);

/* Open a JSON file and write its first fields, which say what was run where; close it.  Errors: IO. */
hotbed_status workload_json_open(
    const char *path, const char *format, const workload_machine *machine, FILE **out);
hotbed_status workload_json_close(FILE *file, const char *path);

/* Errors: IO. */
hotbed_status workload_write_json(
    const char *path, const workload_machine *machine, const workload_result *results,
    size_t count);

/* --- the program ------------------------------------------------------------------------------ */

typedef enum workload_mode {
    WORKLOAD_MEASURE,
    WORKLOAD_DIGEST,
    WORKLOAD_REPLAY,
    WORKLOAD_CURVES
} workload_mode;

enum { WORKLOADS = 22 };

extern workload workloads[WORKLOADS];

/* Give the rows of all workloads the type of this name; false: there is none. Call it before any use. */
bool workload_set_dtype(const char *name);

/* The same for optimizer states: f32, or bf16, which are rounded at random. */
bool workload_set_states(const char *name);

/* Round the rows and states of all workloads at random. */
void workload_set_random(void);

/* Track the changes of all workloads. */
void workload_set_tracks(void);

/* The options of the program. */
typedef struct workload_program {
    workload_mode mode;
    const char *chosen; /* "all", or names separated by commas */
    double scale;
    hotbed_backend backend; /* 0: both */
    uint32_t steps;
    uint32_t replays;
    bool insertions[HOTBED_INSERT_PROBATION + 1]; /* insertion policies to run caches with */
    bool check, overlap;
    const char *json;
    workload_machine machine; /* commit and command are set from the arguments */
} workload_program;

bool workload_chosen(const workload_program *p, const workload *what);

/* Whether the workload runs with the policy; only caches have a choice. */
bool workload_has_insertion(
    const workload_program *p, const workload *what, hotbed_insertion insertion);

/* Run a mode over all workloads.  After a failure the other workloads still run; the first failure
 * is returned. */
hotbed_status workload_measure_all(workload_program *p);
hotbed_status workload_digest_all(const workload_program *p);
hotbed_status workload_replay_all(const workload_program *p);
hotbed_status workload_curves_all(workload_program *p);
