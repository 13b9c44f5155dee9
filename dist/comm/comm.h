/* dist/comm/comm.h - the inside of communicators: what comm.c asks of a transport.
 *
 * To a transport, every collective is a batch of up to HOTBED_EXCHANGES_MAX parts. Each part says
 * which bytes go to each rank, and where the bytes from each rank are put. comm.c checks arguments,
 * keeps the order log, makes the batch and computes sums; comm_self.c, comm_threads.c, comm_mpi.c,
 * comm_sockets.c and comm_nccl.c move bytes. */
#pragma once

#include "dist/comm/comm_window.h"
#include "hotbed/comm.h"

#include <pthread.h>

typedef enum hotbed_comm_operation {
    HOTBED_COMM_ALL_GATHER = 1,
    HOTBED_COMM_ALL_TO_ALL = 2,
    HOTBED_COMM_EXCHANGE = 3,
    HOTBED_COMM_BROADCAST = 4,
    HOTBED_COMM_BARRIER = 5,
    HOTBED_COMM_ALL_REDUCE = 6,
    HOTBED_COMM_WINDOW_CREATE = 7,
    HOTBED_COMM_WINDOW_BARRIER = 8,
} hotbed_comm_operation;

/* Return "all_gather", "all_to_all", ...; "unknown" for other numbers. */
const char *hotbed_comm_operation_name(hotbed_comm_operation operation);

enum { HOTBED_COMM_RANKS_MAX = 1024 };

typedef enum hotbed_part_kind {
    HOTBED_PART_GATHER = 1, /* `bytes` from send to all; rank p's at recv + p * bytes */
    HOTBED_PART_EQUAL = 2,  /* bytes at send + p * bytes to rank p; rank p's at recv + p * bytes */
    HOTBED_PART_COUNTS = 3, /* sizes and offsets of a hotbed_exchange */
    HOTBED_PART_ROOT = 4,   /* `bytes` from root's recv to recv */
    HOTBED_PART_SCATTER =
        5, /* range p of send to rank p; from rank p, as long as this rank's range, to recv + p * that length */
    HOTBED_PART_COLLECT = 6, /* this rank's range of recv to all; from rank p, range p of recv */
} hotbed_part_kind;

typedef struct hotbed_comm_part {
    hotbed_part_kind kind;
    bool own_stays; /* the bytes for this rank itself stay in `send` */
    uint32_t root;
    uint64_t bytes;
    const uint8_t *send;
    uint8_t *recv;
    const uint64_t *send_bytes, *send_offsets, *recv_bytes, *recv_offsets; /* [size] COUNTS */
} hotbed_comm_part;

typedef struct hotbed_comm_batch {
    uint32_t operation; /* hotbed_comm_operation */
    uint32_t tag;
    uint32_t num_parts;
    hotbed_comm_part parts[HOTBED_EXCHANGES_MAX];
} hotbed_comm_batch;

/* The bytes [offset, offset + bytes) of a buffer. */
typedef struct hotbed_comm_span {
    uint64_t offset, bytes;
} hotbed_comm_span;

/* Rank p's range of a SCATTER or COLLECT part. If the bytes are divided evenly, all ranks but the
 * last have the same number of floats. */
hotbed_comm_span hotbed_comm_range(const hotbed_comm_part *part, uint32_t size, uint32_t p);

/* hotbed_comm_sends() returns the range that this rank sends to rank p: in part->send, or in
 * part->recv for ROOT and COLLECT. hotbed_comm_receives() returns the range of part->recv that
 * receives from rank p, or the range of part->send that stays. Both are empty for ROOT's own
 * rank. */
const uint8_t *hotbed_comm_sends(
    const hotbed_comm *comm, const hotbed_comm_part *part, uint32_t p, uint64_t *bytes);
uint8_t *hotbed_comm_receives(
    const hotbed_comm *comm, const hotbed_comm_part *part, uint32_t p, uint64_t *bytes);

typedef struct hotbed_comm_ops {
    hotbed_transport transport;
    /* Errors: ARGUMENT. */
    hotbed_status (*check_stream)(const hotbed_comm *comm, const hotbed_stream *stream);
    /* Enqueue the batch; the struct is copied. Called on host streams only if there is no `run`,
     * which comm.c enqueues there. */
    hotbed_status (*enqueue)(
        hotbed_comm *comm, const hotbed_comm_batch *batch, hotbed_stream *stream);
    /* Run the batch now, on a stream's worker thread; one at a time, in order. False: it failed,
     * and hotbed_comm_record_fault() has recorded it. */
    bool (*run)(hotbed_comm *comm, const hotbed_comm_batch *batch);
    /* Record a failure of another rank, if one has become known. NULL: the transport records
     * failures by itself. Called with every collective, so it must be cheap; it synchronizes
     * nothing. */
    void (*poll)(hotbed_comm *comm);
    /* Send comm->fault to all ranks. hotbed_comm_record_fault() calls it under comm->lock, before
     * this rank can act on the failure, so that a process which ends because of it has announced
     * it. NULL: the ranks share a process. */
    void (*announce)(hotbed_comm *comm);
    /* Make all ranks fail for the reason recorded here, after an abort. From any thread. NULL:
     * announce has done so. */
    void (*spread)(hotbed_comm *comm);
    /* Leave the job, and free everything but the struct and what hotbed_comm_new() allocated. */
    void (*destroy)(hotbed_comm *comm);
    /* NULL: no windows. The call sets data, parts and its own fields. */
    hotbed_status (*window_create)(
        hotbed_comm *comm, uint64_t bytes, hotbed_stream *stream, hotbed_window **out);
    void (*window_destroy)(hotbed_window *window);
    /* NULL: a batch without parts serves as barrier. */
    hotbed_status (*window_barrier)(hotbed_window *window, hotbed_stream *stream);
    /* hotbed_comm_bare_all_to_all(); NULL: the transport has only copies. */
    hotbed_status (*bare)(
        hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream);
} hotbed_comm_ops;

/* Each transport's own struct begins with it. */
struct hotbed_comm {
    const hotbed_comm_ops *ops;
    uint32_t rank, size;
    uint32_t deadline_ms;
    uint32_t tag;

    uint32_t collections; /* sharded collections that were created with it */
    enum { HOTBED_WINDOWS_UNKNOWN, HOTBED_WINDOWS_WORK, HOTBED_WINDOWS_FAIL } windows;

    uint64_t calls, digest; /* of the order log */

    uint32_t failed; /* atomic; a hotbed_comm_reason, set after `fault` */
    pthread_mutex_t lock;
    hotbed_comm_fault fault;
    int64_t tags[2]; /* of the batch that runs, and of another rank's; for the fault */

    /* Batches on host streams run in the order of the calls, whichever stream each is on. */
    pthread_cond_t turn;
    uint64_t turns;  /* numbers of batches given out; used by the caller's thread only */
    uint64_t served; /* under the lock */
    uint64_t runs;   /* batches run so far, including the current one: ranks compare it */
};

/* Allocate a transport's struct of `bytes` zeros, and initialize its base; NULL for `options` is all
 * defaults. Errors: ARGUMENT (options), MEMORY. */
hotbed_status hotbed_comm_new(
    size_t bytes, const hotbed_comm_ops *ops, uint32_t rank, uint32_t size,
    const hotbed_comm_options *options, hotbed_comm **out);

/* When the deadline of an operation that begins now is over, by hotbed_monotonic_now(). */
uint64_t hotbed_comm_deadline(const hotbed_comm *comm);

/* Record why the communicator failed, unless it has failed before, and announce it. Always returns
 * false. From any thread, not under the lock of a link. */
#if defined(__GNUC__) || defined(__clang__)
__attribute__((format(printf, 5, 6)))
#endif
bool hotbed_comm_record_fault(
    hotbed_comm *comm, hotbed_comm_reason reason, int32_t rank, uint64_t operation,
    const char *format, ...);

/* The same, with a fault that another rank has found. */
bool hotbed_comm_adopt_fault(hotbed_comm *comm, const hotbed_comm_fault *fault);

bool hotbed_comm_has_failed(const hotbed_comm *comm);

/* Return COMM with the recorded reason. The communicator has failed. */
hotbed_status hotbed_comm_fail(hotbed_comm *comm);

/* Check that the collectives accept this stream. Errors: ARGUMENT (another backend, another
 * GPU). */
HOTBED_MUST_USE hotbed_status
hotbed_comm_check_stream(const hotbed_comm *comm, const hotbed_stream *stream);

/* ARGUMENT unless the stream is of the host backend. */
hotbed_status hotbed_comm_check_host_stream(const hotbed_comm *comm, const hotbed_stream *stream);

/* A batch's name in messages: "operation 7, all_gather with tag 5"; with `batch` NULL,
 * "operation 7". */
typedef struct hotbed_comm_title {
    char text[80];
} hotbed_comm_title;
hotbed_comm_title hotbed_comm_title_of(uint64_t run, const hotbed_comm_batch *batch);

/* The description of a batch, which ranks compare before they move its bytes. */
typedef struct hotbed_comm_header {
    uint64_t run;
    uint32_t operation, tag, num_parts;
    uint32_t kinds[HOTBED_EXCHANGES_MAX];
    uint64_t
        bytes[HOTBED_EXCHANGES_MAX]; /* bytes that the sender sends to the receiver, per part */
} hotbed_comm_header;
/* The header of a batch for rank p. */
void hotbed_comm_header_of(
    const hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p, hotbed_comm_header *out);
/* Whether rank p is at the same batch as this rank; otherwise records MISMATCH and returns false. */
bool hotbed_comm_check_header(
    hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p,
    const hotbed_comm_header *theirs);

/* Copy what a batch sends from this rank to itself, in host memory. */
void hotbed_comm_copy_own(const hotbed_comm *comm, const hotbed_comm_batch *batch);

/* The checks that every collective begins with. Errors: ARGUMENT, COMM. */
hotbed_status hotbed_comm_check_call(
    const char *function, hotbed_comm *comm, const hotbed_stream *stream);

/* Record a call with valid arguments in the order log. */
void hotbed_comm_write_log(hotbed_comm *comm, hotbed_comm_operation operation, uint64_t bytes);

/* A batch with the current tag and empty parts. */
hotbed_comm_batch hotbed_comm_batch_of(
    const hotbed_comm *comm, hotbed_comm_operation operation, uint32_t num_parts);

hotbed_status hotbed_comm_enqueue(
    hotbed_comm *comm, const hotbed_comm_batch *batch, hotbed_stream *stream);

/* hotbed_comm_all_to_all() and hotbed_comm_exchange(), except that a rank's part for itself stays in
 * `send`, and its part of `recv` is not written. */
hotbed_status hotbed_comm_all_to_others(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream);
hotbed_status hotbed_comm_exchange_others(
    hotbed_comm *comm, uint32_t n, const hotbed_exchange *exchanges, hotbed_stream *stream);

/* hotbed_comm_all_to_all() by the transport's own call, NCCL's or MPI's; where ranks are threads, a
 * copy of as many bytes. It has no order log and no deadline, and does not compare calls or watch
 * the other ranks. Benchmarks use it as the upper limit. Errors: COMM, DEVICE. */
hotbed_status hotbed_comm_bare_all_to_all(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream);

/* OK if the transport can be used. Errors: UNSUPPORTED. */
hotbed_status hotbed_comm_probe_mpi(void);
hotbed_status hotbed_comm_probe_nccl(void);

/* Run a batch now, on the calling thread, after the batches enqueued before it. False: it
 * failed. */
bool hotbed_comm_run_now(hotbed_comm *comm, const hotbed_comm_batch *batch);

/* What a rank tells the others when a window is created: all create it, or none. */
typedef struct hotbed_window_notice {
    void *data; /* NULL: it has no memory */
    uint64_t bytes;
} hotbed_window_notice;

/* Whether all ranks have memory for a window of `bytes`. notices [size]. Errors: MEMORY, ARGUMENT. */
hotbed_status hotbed_window_check_notices(
    const hotbed_comm *comm, uint64_t bytes, const hotbed_window_notice *notices);

/* Windows of ordinary memory, for transports whose ranks share an address space. */
hotbed_status hotbed_comm_local_window_create(
    hotbed_comm *comm, uint64_t bytes, hotbed_stream *stream, hotbed_window **out);
void hotbed_comm_local_window_destroy(hotbed_window *base);
