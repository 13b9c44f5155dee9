/* dist/comm.h - the inside of communicators: what comm.c asks of a transport.
 *
 * Every collective is one kind of work for a transport: a batch of up to HOTBED_EXCHANGES_MAX parts, each of
 * which says what bytes go to each rank and where those from each rank are put.  comm.c checks, logs, makes
 * the batch and does the sums; comm_self.c, comm_threads.c, comm_mpi.c and comm_nccl.c move bytes.
 */
#ifndef HOTBED_DIST_COMM_H
#define HOTBED_DIST_COMM_H

#include "hotbed/comm.h"

#include <pthread.h>

enum { HOTBED_COMM_RANKS_MAX = 1024 };

typedef enum hotbed_part_kind {
    HOTBED_PART_GATHER = 1, /* `bytes` from send to all; rank p's at recv + p * bytes */
    HOTBED_PART_EQUAL = 2,  /* send + p * bytes to p; p's at recv + p * bytes */
    HOTBED_PART_COUNTS = 3, /* as a hotbed_exchange says */
    HOTBED_PART_ROOT = 4,   /* `bytes` from root's recv to recv */
    HOTBED_PART_SCATTER =
        5, /* range p of send to p; p's, as long as this rank's range, at recv + p * it */
    HOTBED_PART_COLLECT = 6, /* this rank's range of recv to all; range p of recv from p */
} hotbed_part_kind;

typedef struct hotbed_comm_part {
    hotbed_part_kind kind;
    uint32_t root;
    uint64_t bytes;
    const uint8_t *send;
    uint8_t *recv;
    union {
        struct {
            const uint64_t *send_bytes, *send_offsets, *recv_bytes, *recv_offsets; /* [size] */
        };
        const uint64_t
            *counts; /* [size] SCATTER, COLLECT: floats of each range; NULL: `bytes`, evenly */
    };
} hotbed_comm_part;

typedef struct hotbed_comm_batch {
    uint32_t operation; /* hotbed_comm_operation */
    uint32_t tag;
    uint32_t num_parts;
    hotbed_comm_part parts[HOTBED_EXCHANGES_MAX];
} hotbed_comm_batch;

/* Bytes [offset, offset + bytes) of something. */
typedef struct hotbed_comm_span {
    uint64_t offset, bytes;
} hotbed_comm_span;

/* Rank p's range of a SCATTER or COLLECT part.  Cut evenly, all but the last ranks have the same number of
 * floats. */
hotbed_comm_span hotbed_comm_range(const hotbed_comm_part *part, uint32_t size, uint32_t p);

/* What this rank sends to rank p: from part->send, or part->recv for ROOT and COLLECT; and where what it
 * gets from rank p goes in part->recv.  Both are 0 bytes for ROOT's own rank. */
const uint8_t *hotbed_comm_sends(
    const hotbed_comm *comm, const hotbed_comm_part *part, uint32_t p, uint64_t *bytes);
uint8_t *hotbed_comm_receives(
    const hotbed_comm *comm, const hotbed_comm_part *part, uint32_t p, uint64_t *bytes);

typedef struct hotbed_comm_ops {
    hotbed_transport transport;
    /* Errors: ARGUMENT. */
    hotbed_status (*check_stream)(const hotbed_comm *comm, const hotbed_stream *stream);
    /* Enqueue the batch, of which the struct is copied.  On host streams only where there is no `run`, which
     * comm.c enqueues there. */
    hotbed_status (*enqueue)(
        hotbed_comm *comm, const hotbed_comm_batch *batch, hotbed_stream *stream);
    /* Do the batch now, on a lane's thread; one at a time, in order.  False: it failed, and that is recorded
     * by hotbed_comm_record_fault(). */
    bool (*run)(hotbed_comm *comm, const hotbed_comm_batch *batch);
    /* Record a failure of another rank that this one can see now; NULL: they are recorded as they come.  Orders
     * nothing: it is called with every collective. */
    void (*poll)(hotbed_comm *comm);
    /* Make all ranks fail for the reason that is recorded here.  From any thread. */
    void (*spread)(hotbed_comm *comm);
    /* Leave, and free all but the base, which hotbed_comm_finish() frees. */
    void (*destroy)(hotbed_comm *comm);
    /* NULL: no windows.  The operation sets data, parts and its own fields. */
    hotbed_status (*window_create)(
        hotbed_comm *comm, uint64_t bytes, hotbed_stream *stream, hotbed_window **out);
    void (*window_destroy)(hotbed_window *window);
    /* NULL: a batch without parts. */
    hotbed_status (*window_barrier)(hotbed_window *window, hotbed_stream *stream);
    /* hotbed_comm_bare_all_to_all(); NULL: copies are all there is. */
    hotbed_status (*bare)(
        hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream);
} hotbed_comm_ops;

/* A transport's own struct starts with it. */
struct hotbed_comm {
    const hotbed_comm_ops *ops;
    uint32_t rank, size;
    uint32_t deadline_ms;
    uint32_t tag;

    uint64_t calls, digest; /* of the order log */
    uint32_t log_records;
    hotbed_comm_record *log; /* [log_records], a ring */

    uint32_t failed; /* atomic; a hotbed_comm_reason, set after `fault` */
    pthread_mutex_t lock;
    hotbed_comm_fault fault;

    /* Batches on lanes: the order of the calls, whatever lane each is on. */
    pthread_cond_t turn;
    uint64_t tickets; /* given out; of the caller's thread */
    uint64_t served;  /* under the lock */
    uint64_t runs;    /* batches run so far, this one included: what ranks compare */
};

struct hotbed_window {
    hotbed_comm *comm;
    void *data;
    void **parts; /* [size], device memory */
};

/* Set up the base of a transport's struct, zeroed before.  Errors: ARGUMENT (options), MEMORY. */
hotbed_status hotbed_comm_start(
    hotbed_comm *comm, const hotbed_comm_ops *ops, uint32_t rank, uint32_t size,
    const hotbed_comm_options *options);
/* Free what hotbed_comm_start() took, and the struct. */
void hotbed_comm_finish(hotbed_comm *comm);

/* Options as this library knows them, defaults filled in; NULL is all defaults.  Errors: ARGUMENT. */
hotbed_status hotbed_comm_read_options(const hotbed_comm_options *from, hotbed_comm_options *to);

/* Record why the communicator failed, unless it has failed before.  Always false.  From any thread. */
#if defined(__GNUC__) || defined(__clang__)
__attribute__((format(printf, 5, 6)))
#endif
bool hotbed_comm_record_fault(
    hotbed_comm *comm, hotbed_comm_reason reason, int32_t rank, uint64_t operation,
    const char *format, ...);

bool hotbed_comm_has_failed(const hotbed_comm *comm);

/* COMM with the recorded reason.  The communicator has failed. */
hotbed_status hotbed_comm_fail(hotbed_comm *comm);

/* ARGUMENT unless the stream is of the host backend. */
hotbed_status hotbed_comm_check_host_stream(const hotbed_comm *comm, const hotbed_stream *stream);

/* What a rank tells another of a batch before its bytes. */
typedef struct hotbed_comm_outline {
    uint32_t operation, tag, num_parts;
    uint32_t kinds[HOTBED_EXCHANGES_MAX];
    uint64_t bytes[HOTBED_EXCHANGES_MAX]; /* what rank p sends here of each part */
} hotbed_comm_outline;
void hotbed_comm_outline_of(
    const hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p, hotbed_comm_outline *out);
/* Whether rank p's batch agrees with this rank's; else records MISMATCH and returns false. */
bool hotbed_comm_compare(
    hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p,
    const hotbed_comm_outline *theirs);

/* What every collective checks first.  Errors: ARGUMENT, COMM. */
hotbed_status hotbed_comm_check_call(
    const char *function, hotbed_comm *comm, const hotbed_stream *stream);

/* Note a call whose arguments are good. */
void hotbed_comm_write_log(hotbed_comm *comm, hotbed_comm_operation operation, uint64_t bytes);

/* A batch with the current tag and empty parts. */
hotbed_comm_batch hotbed_comm_batch_of(
    const hotbed_comm *comm, hotbed_comm_operation operation, uint32_t num_parts);

hotbed_status hotbed_comm_enqueue(
    hotbed_comm *comm, const hotbed_comm_batch *batch, hotbed_stream *stream);

/* hotbed_comm_all_to_all() as the transport itself does it, NCCL's or MPI's own; where ranks are threads, a copy of as
 * many bytes.  Without order log, comparison, deadline or a watch over the others: it is there to be measured
 * beside.  Errors: COMM, DEVICE. */
hotbed_status hotbed_comm_bare_all_to_all(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream);

/* OK where the transport can be used.  Errors: UNSUPPORTED. */
hotbed_status hotbed_comm_probe_mpi(void);
hotbed_status hotbed_comm_probe_nccl(void);

/* Nanoseconds of the monotonic clock. */
uint64_t hotbed_comm_now(void);
/* A condition that is waited for by that clock, and the wait: false when `until` has come. */
void hotbed_comm_cond_init(pthread_cond_t *condition);
bool hotbed_comm_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t until);

/* Run a batch now, on the calling thread, in turn with those enqueued before.  False: it failed. */
bool hotbed_comm_run_now(hotbed_comm *comm, const hotbed_comm_batch *batch);

/* Windows of ordinary memory, for transports whose ranks share their addresses. */
hotbed_status hotbed_comm_local_window_create(
    hotbed_comm *comm, uint64_t bytes, hotbed_stream *stream, hotbed_window **out);
void hotbed_comm_local_window_destroy(hotbed_window *base);

#endif
