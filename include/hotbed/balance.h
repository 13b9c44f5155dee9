/* hotbed/balance.h - samples dealt out anew, so that all ranks have about the same work.
 *
 * Each rank brings up to batch_size samples, each with a workload; a partition of all of them into sets of
 * batch_size samples and nearly equal sums is found, and rank r goes on with set r.  All is async: the
 * workloads of all ranks are gathered, a thread of the stream partitions them, and the samples follow.
 *
 *   hotbed_balance_start    workloads to all ranks, the partition, features to all ranks
 *   hotbed_balance_finish   this rank's new batch
 *   hotbed_balance_rows     the same samples' rows of another tensor: labels, dense features
 *
 * Between the calls other work may run; they are on one stream, or ordered by events.  Several batches are
 * in flight with several of these objects.  All ranks make the same calls.  A rank that brings fewer samples is
 * filled up with samples of no work and no keys; in a new batch real samples come first, each kind by rank
 * and sample they come from.
 *
 * The partition is Karmarkar and Karp's differencing for sets of equal size (The Differencing Method of Set
 * Partitioning, 1982): the same on all ranks and backends, since workloads are whole numbers.  Ideas: the
 * batch shuffler of recsys-examples.
 */
#ifndef HOTBED_BALANCE_H
#define HOTBED_BALANCE_H

#include "hotbed/comm.h"
#include "hotbed/kjt.h"
#include "hotbed/status.h"
#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_balance hotbed_balance; /* opaque; owned by the caller */

/* Call hotbed_balance_options_init(), then set fields; the same on all ranks. */
typedef struct hotbed_balance_options {
    uint32_t size;          /* set by init */
    uint32_t num_features;  /* of the batches; required */
    uint32_t batch_size;    /* samples of a rank; required */
    bool weighted;          /* keys come with weights */
    uint64_t max_keys;      /* keys of a rank's batch as it comes; required */
    uint64_t max_new_keys;  /* of a rank's new batch; 0: world * max_keys, which is always enough */
    uint64_t max_row_bytes; /* of a row in hotbed_balance_rows(); 0: 64 */
} hotbed_balance_options;

static inline void hotbed_balance_options_init(hotbed_balance_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* Memory for one batch.  Synchronous; needs nothing of other ranks.  `comm` outlives it.
 * Errors: ARGUMENT (the field and its value), MEMORY, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_balance_create(
    const hotbed_balance_options *options, hotbed_comm *comm, hotbed_stream *stream,
    hotbed_balance **out);

/* Free it; the work that uses it is done.  NULL is allowed. */
HOTBED_API void hotbed_balance_destroy(hotbed_balance *balance);

/* Start with a batch, whose arrays stay unchanged until the stream has passed the call.  Async.
 *
 *   workloads  in  [batch_size of kjt] device, the sum over all ranks below 2^64; NULL: keys of each sample
 *
 * Errors: ARGUMENT (as of hotbed_kjt_check(); more features, samples or keys than the options say), COMM,
 * MEMORY (recording), DEVICE.  Faults: RANGE (bad lengths or offsets: the batch then counts as empty). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_balance_start(
    hotbed_balance *balance, const hotbed_kjt *kjt, const uint64_t *workloads,
    hotbed_stream *stream);

/* What a rank got.  Device arrays of the object, valid until its next start. */
typedef struct hotbed_balanced {
    hotbed_kjt kjt;              /* batch_size samples; features as they were, without names */
    const uint32_t *samples;     /* [batch_size] rank * batch_size + sample that each was */
    const uint32_t *num_samples; /* one word: real ones, which come first */
    const uint64_t *workload;    /* one word: their sum */
} hotbed_balanced;

/* This rank's new batch.  Async.  A batch of more than max_new_keys keys is a fault RANGE of who uses it, and
 * is whole in none of its parts.
 * Errors: ARGUMENT, STATE (not started), MEMORY, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_balance_finish(hotbed_balance *balance, hotbed_balanced *out, hotbed_stream *stream);

/* Rows of the new batch's samples, of any other tensor.  Async.
 *
 *   rows      in   [batch_size, row_bytes] device, of this rank's samples as they came; those beyond the
 *                  kjt's are not looked at
 *   new_rows  out  [batch_size, row_bytes] device; zeros for samples that are not real
 *
 * Errors: ARGUMENT (NULL, row_bytes of 0 or over max_row_bytes), STATE (not finished), COMM, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_balance_rows(
    hotbed_balance *balance, uint64_t row_bytes, const void *rows, void *new_rows,
    hotbed_stream *stream);

/* The partition alone, in host memory: items 0 .. sets * items_a_set - 1 into `sets` sets.  Synchronous, and
 * needs no stream.
 *
 *   workloads  in   [sets * items_a_set]
 *   items      out  [sets * items_a_set] set s has items[s * items_a_set] and so on, ascending
 *
 * Errors: ARGUMENT (NULL; sizes of 0; over 2^31 items), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_balance_partition(
    uint32_t sets, uint32_t items_a_set, const uint64_t *workloads, uint32_t *items);

#ifdef __cplusplus
}
#endif
#endif
