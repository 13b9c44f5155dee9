/* hotbed/balance.h - batch balance: redistributes samples so that all ranks have about the same
 * work.
 *
 * Experimental: all calls.
 *
 * For training on several ranks where samples differ much in length. Each rank contributes up to
 * batch_size samples, each with a workload. All samples are partitioned into sets of batch_size
 * samples with nearly equal sums of workloads, and rank r continues with set r. Everything is
 * asynchronous: the workloads of all ranks are gathered, a thread of the stream computes the
 * partition, and the samples are exchanged.
 *
 *     hotbed_balance_options options = {
 *         .size = sizeof options, .num_features = 2, .batch_size = 1024, .max_keys = 65536};
 *     status = hotbed_balance_create(&options, comm, stream, &balance);
 *
 *     hotbed_balanced balanced = {.size = sizeof balanced};
 *     status = hotbed_balance_start(balance, &kjt, NULL, stream);
 *     status = hotbed_balance_finish(balance, &balanced, stream);
 *     status = hotbed_balance_rows(balance, sizeof(float), labels, new_labels, stream);
 *
 *   hotbed_balance_start    gathers workloads and features from all ranks, computes the partition
 *   hotbed_balance_finish   returns this rank's new batch
 *   hotbed_balance_rows     moves the same samples' rows of another tensor: labels, dense features
 *
 * Other work may run between the calls; they are made on one stream, or ordered by events. Several
 * batches can be in flight with several of these objects. All ranks make the same calls. A rank
 * with fewer samples is padded with samples that have no work and no keys. In a new batch real
 * samples come first; each kind is ordered by the rank and sample that it came from.
 *
 * The partition is Karmarkar and Karp's differencing for sets of equal size (The Differencing
 * Method of Set Partitioning, 1982). It is the same on all ranks and backends, since workloads are
 * integers. Modelled on the batch shuffler of recsys-examples. */
#ifndef HOTBED_BALANCE_H
#define HOTBED_BALANCE_H

#include "hotbed/comm.h"
#include "hotbed/sharded.h"
#include "hotbed/status.h"
#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_balance hotbed_balance; /* opaque; owned by the caller */

/* Options of a batch balance; the same on all ranks. 0 is the default of every field but `size`. */
typedef struct hotbed_balance_options {
    uint32_t size;         /* sizeof(hotbed_balance_options) */
    uint32_t num_features; /* features of the batches; required */
    uint32_t batch_size;   /* samples per rank; required */
    bool weighted;         /* keys have weights */
    uint64_t max_keys;     /* keys of a rank's original batch; required */
    /* Keys of a rank's new batch; 0: world * max_keys, which is always enough. */
    uint64_t max_new_keys;
    /* Largest size of a row in hotbed_balance_rows(), at most 2^30; 0: 64. */
    uint64_t max_row_bytes;
} hotbed_balance_options;

/* Create the memory for one batch. Synchronous; does not communicate. `comm` must outlive it.
 * Errors: ARGUMENT (the field and its value), MEMORY, STATE (the stream records a graph),
 * DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_balance_create(
    const hotbed_balance_options *options, hotbed_comm *comm, hotbed_stream *stream,
    hotbed_balance **out);

/* Free it. The work that uses it must be complete. NULL is allowed. */
HOTBED_API void hotbed_balance_destroy(hotbed_balance *balance);

/* Start with a batch, whose arrays must not change until the stream has passed the call.
 * Asynchronous.
 *
 *   workloads  in  [batch_size of kjt] device, the sum over all ranks below 2^64; NULL: the number
 *                  of keys of each sample
 *
 * Errors: ARGUMENT (as hotbed_kjt_check(); another number of features, more samples or keys than the
 * options allow; weights without `weighted`; a stream of another backend or device), COMM, MEMORY
 * (recording), DEVICE. Faults: RANGE (invalid lengths or offsets: the batch then counts as empty). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_balance_start(
    hotbed_balance *balance, const hotbed_kjt *kjt, const uint64_t *workloads,
    hotbed_stream *stream);

/* The new batch of a rank. Device arrays of the object, valid until its next start. */
typedef struct hotbed_balanced {
    uint32_t size; /* set by the caller: sizeof(hotbed_balanced) */
    /* [batch_size] the origin of each sample: rank * batch_size + sample. */
    const uint32_t *samples;
    const uint32_t *num_samples; /* one word: number of real samples, which come first */
    const uint64_t *workload;    /* one word: the sum of their workloads */
    /* batch_size samples; the original features, without names. Stays the last field, since it
     * grows with hotbed_kjt. */
    hotbed_kjt kjt;
} hotbed_balanced;

/* Return this rank's new batch. Asynchronous. A batch of more than max_new_keys keys raises a fault
 * RANGE where it is used, and none of its parts is complete.
 * Errors: ARGUMENT (NULL, a stream of another backend or device), STATE (not started), MEMORY,
 * DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_balance_finish(hotbed_balance *balance, hotbed_balanced *out, hotbed_stream *stream);

/* Exchange the rows of any other tensor for the samples of the new batch. Asynchronous.
 *
 *   rows      in   [batch_size of the kjt, row_bytes] device, for this rank's original samples
 *   new_rows  out  [batch_size, row_bytes] device; zeros for samples that are not real
 *
 * Errors: ARGUMENT (NULL, row_bytes of 0 or over max_row_bytes, a stream of another backend or
 * device), STATE (not finished), COMM, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_balance_rows(
    hotbed_balance *balance, uint64_t row_bytes, const void *rows, void *new_rows,
    hotbed_stream *stream);

HOTBED_END_DECLS
#endif
