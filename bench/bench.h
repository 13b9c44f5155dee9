/* bench/bench.h - microbenchmarks in C: tables of cases, run by Google Benchmark (bench.cc).
 *
 * A case runs on each backend that the build and the machine have, for each row of its arguments.
 * Its name becomes module/operation/backend/arg:value.  It sets up, then loops:
 *
 *   while (bench_next(state)) {
 *       bench_flush_cache(stream);
 *       bench_start(stream);
 *       ... enqueue the measured work ...
 *       bench_stop(stream, state);
 *   }
 *   bench_items(state, n);
 *   bench_bytes(state, bytes that must move);
 *   bench_lines(state, n, slots); (operations of an index)
 *
 * Reported are time, median, items and bytes per second, and the limit of the same run: limit_us,
 * and to_limit, the median over it.  The limit of an index is the rate at which plain code reads
 * random lines of as many slots; the limit of others is the rate of a large copy.  pipeline/engine
 * moves no bytes and has no limit. */
#pragma once

#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

typedef struct bench_state bench_state;

typedef struct bench_case {
    const char *name; /* module/operation */
    void (*run)(bench_state *state);
    const char *const *arg_names; /* NULL-terminated */
    const int64_t *args;          /* rows of as many numbers as arg_names has, ended by INT64_MIN */
    const int64_t
        *cuda_args; /* for CUDA, with larger sizes; NULL: as args. An empty list: no case */
} bench_case;

/* One table per file; each ends with a NULL name. */
extern const bench_case bench_base_cases[];
extern const bench_case bench_index_cases[];
extern const bench_case bench_unique_cases[];
extern const bench_case bench_lookup_cases[];
extern const bench_case bench_update_cases[];
extern const bench_case bench_score_cases[];
extern const bench_case bench_rows_cases[];
extern const bench_case bench_storage_cases[];
extern const bench_case bench_growth_cases[];
extern const bench_case bench_external_cases[];
extern const bench_case bench_pipeline_cases[];
extern const bench_case bench_checkpoint_cases[];
extern const bench_case bench_peer_cases[]; /* none without HOTBED_BENCH_PEERS */

/* Arguments of index/alone_find on the host. */
extern const int64_t bench_find_host[];

/* --- in a case -------------------------------------------------------------------------------- */

bool bench_next(bench_state *state); /* while (bench_next(s)) { one iteration } */
int64_t bench_arg(const bench_state *state, int index);
void bench_seconds(bench_state *state, double seconds); /* items of each iteration; required */
void bench_items(bench_state *state, int64_t per_iteration);
void bench_bytes(bench_state *state, int64_t per_iteration); /* bytes moved */
/* Each of the n keys of an iteration reads at least one random line of an index of `slots` slots. */
void bench_lines(bench_state *state, uint64_t n, uint64_t slots);
void bench_counter(bench_state *state, const char *name, double value);
void bench_skip(bench_state *state, const char *why); /* ends the loop; the case must return */

/* The stream of the state's backend. It is synchronized between iterations. */
hotbed_stream *bench_stream(const bench_state *state);

/* Skip the case with hotbed_last_error() unless status is OK: if (!bench_ok(state, call)) return; */
bool bench_ok(bench_state *state, hotbed_status status);

/* --- time ------------------------------------------------------------------------------------- */

/* Overwrite the caches with other memory, so that the iteration starts cold. */
void bench_flush_cache(hotbed_stream *stream);

/* Record events around the work that is enqueued in between. stop waits for the events, and adds
 * the time to the state. */
void bench_start(hotbed_stream *stream);
void bench_stop(hotbed_stream *stream, bench_state *state);

/* Remove a directory that contains only files, if it exists. */
void bench_remove_directory(const char *path);

/* Processor seconds used by this program, all threads together. */
double bench_own_time(void);

/* --- device memory that is freed when the case returns -------------------------------------- */

/* NULL without memory; the case is then skipped. */
void *bench_alloc(bench_state *state, size_t bytes);
void *bench_upload(bench_state *state, const void *from, size_t bytes);

/* --- keys ------------------------------------------------------------------------------------- */

/* The key of number i: a bijection, so distinct numbers give distinct keys. */
uint64_t bench_key(uint64_t i);

/* A number below n, as a function of i. */
uint64_t bench_random(uint64_t i, uint64_t n);

/* n numbers from a power law with exponent alpha over [1, range); alpha 0: uniform below range. */
void bench_zipf(double alpha, uint64_t range, uint64_t n, uint64_t seed, uint64_t *out);

/* n distinct numbers: `hits` percent of them below `filled`, the others from `fresh` on. */
void bench_choose(uint64_t n, uint64_t filled, uint64_t hits, uint64_t fresh, uint64_t *out);

/* --- for bench.cc ----------------------------------------------------------------------------- */

/* The stream of a backend, created once with its events. NULL if the machine cannot run it. */
hotbed_stream *bench_open(hotbed_backend backend);
double bench_copy_rate(hotbed_stream *stream); /* bytes per second, read + write; measured once */
/* Seconds to read n random lines of 128 bytes, each the keys of 16 of the `slots` slots; measured once for a pair. */
double bench_lines_seconds(hotbed_stream *stream, uint64_t n, uint64_t slots);
void bench_free_all(void); /* memory that cases allocated */
void bench_close(void);

HOTBED_END_DECLS
