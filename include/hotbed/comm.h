/* hotbed/comm.h - communicators: ranks, and what they send each other.
 *
 * A communicator joins `size` ranks, numbered from 0.  Four transports stand behind one contract:
 *
 *   self     one rank; copies.  Host and CUDA streams.
 *   threads  ranks are threads of one process.  Host streams; and, to try several ranks on one GPU, CUDA
 *            streams of one GPU: there a call returns when all ranks have made it, and cannot be recorded.
 *   MPI      ranks are processes of an MPI job.  Host streams.
 *   NCCL     a GPU each; ranks are processes, threads, or both.  CUDA streams of that GPU.
 *
 * All ranks make the same calls in the same order, whatever their counts are: zero bytes is a size like
 * any other.  What every rank must give alike is said at each call; the transports on the host compare it
 * and fail with MISMATCH, NCCL does not.  The order log shows where two ranks parted.
 *
 * Collectives are async: they are enqueued on the stream and return.  Data is memory of the stream's
 * device.  Arrays of counts and offsets are host memory, which stays as it is until the stream has passed
 * the work; as long as the graph lives, when one is recorded.  Operations of one communicator run in the
 * order of the calls, also when they are on different streams; those of a graph run when it is launched, and
 * then it is the caller who orders streams.  Only create, destroy and the window calls marked so are
 * synchronous, and nothing else allocates or waits; sums take their scratch memory from the stream, which
 * allocates it when it is larger than any before.
 *
 * Sums are done by Hotbed, not by the transport: x(0) + x(1) + ... + x(size-1), in F32, in this order, then
 * times `scale`.  Every rank gets the same bits, on every transport, run after run.
 *
 * Failing.  A communicator fails once and for all: a rank called hotbed_comm_abort(), destroyed its
 * communicator or died while others needed it, did something else than the others, or did not come within
 * the deadline.  Then on every other rank, within the deadline and mostly at once:
 *   - operations that are under way end, and those enqueued behind them do nothing; what they were to
 *     write is undefined;
 *   - hotbed_stream_sync() of a stream with such an operation returns COMM with the reason;
 *   - later calls return COMM with the reason, which hotbed_comm_failure() has in parts.
 * Nothing hangs, and what is left to do is destroy; a graph that was recorded with it is not launched again.  A
 * new communicator of the ranks that are left works; over MPI, where a process has died, only if the MPI
 * library can go on (see hotbed_comm_create_mpi()).
 *
 * A communicator is used by one thread at a time, but hotbed_comm_abort() may come from any.
 */
#ifndef HOTBED_COMM_H
#define HOTBED_COMM_H

#include "hotbed/status.h"
#include "hotbed/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_comm hotbed_comm;     /* opaque; owned by who created it */
typedef struct hotbed_window hotbed_window; /* opaque; owned by who created it */

typedef enum hotbed_transport {
    HOTBED_TRANSPORT_SELF = 1,
    HOTBED_TRANSPORT_THREADS = 2,
    HOTBED_TRANSPORT_MPI = 3,
    HOTBED_TRANSPORT_NCCL = 4,
} hotbed_transport;

/* "self", "threads", "mpi", "nccl"; "unknown" for other numbers. */
HOTBED_API const char *hotbed_transport_name(hotbed_transport transport);

/* Whether this build and machine have `transport`.
 * Errors: UNSUPPORTED (not in this build; no GPU; the text says which), ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_transport_probe(hotbed_transport transport);

/* --- create and destroy ----------------------------------------------------------------------- */

/* Call hotbed_comm_options_init(), then set fields; the same on all ranks.  0 is every field's default.
 * Fields are only ever appended. */
typedef struct hotbed_comm_options {
    uint32_t size;        /* set by init */
    uint32_t deadline_ms; /* longest that an operation waits for other ranks once its stream has got
                           * to it, and that create waits for them; 0: 30000 */
    uint32_t log_records; /* how many of the latest operations the order log keeps; 0: none.  The
                           * digest is of all of them in any case */
} hotbed_comm_options;

static inline void hotbed_comm_options_init(hotbed_comm_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* A communicator of one rank, for host and CUDA streams.  Synchronous; `options` may be NULL.
 * Errors: ARGUMENT, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_create_self(const hotbed_comm_options *options, hotbed_comm **out);

/* `n` communicators that are the ranks of one world: comms[r] is rank r, for one thread of this process.
 * Each is destroyed by itself.  Synchronous; `options` may be NULL.  Where it fails, all of comms[] are
 * NULL.
 *
 *   comms  [n] out
 *
 * Errors: ARGUMENT (n not in 1 .. 1024), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_create_threads(const hotbed_comm_options *options, uint32_t n, hotbed_comm **comms);

/* The ranks of MPI_COMM_WORLD.  Synchronous: all ranks call it together.  `options` may be NULL.
 *
 * MPI is initialised when the program has not done so, and then finalised when the process ends; a program
 * that does it itself asks for MPI_THREAD_MULTIPLE.  Beside MPI each pair of ranks keeps a socket, by which
 * a rank's death is seen at once.  Most MPI libraries end the whole job when a process dies; Open MPI's
 * mpirun goes on with --enable-recovery.  After a failure the library leaves MPI unfinalised, since
 * MPI_Finalize waits for the dead: a survivor that called MPI_Init itself should not call it either.
 * Each call takes a communicator of MPI, which is MPI's until it is finalised (Open MPI: some 8 KiB, and
 * there are 65,536).
 *
 * Errors: UNSUPPORTED (not in this build; threads), COMM (MPI failed; a rank did not come within the
 * deadline), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_create_mpi(const hotbed_comm_options *options, hotbed_comm **out);

/* A communicator of GPUs, of which this rank uses number `device`.  Synchronous: all ranks call it
 * together.  `options` may be NULL.
 *
 *   bootstrap  in  a communicator of threads or over MPI, whose ranks these become; it is used during the
 *                  call only, with the host's memory.  NULL: processes find each other by the environment's
 *                  RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, where rank 0 listens.
 *
 * Each pair of ranks keeps a socket beside NCCL, by which a rank's death or abort is seen at once, and one
 * thread of the library watches over them and over the deadline.
 *
 * Errors: UNSUPPORTED (not in this build; no GPU), ARGUMENT (device; bootstrap failed; a variable is missing
 * or no number), COMM (NCCL failed, with its text; a rank did not come within the deadline), MEMORY,
 * DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_create_nccl(
    const hotbed_comm_options *options, int device, hotbed_comm *bootstrap, hotbed_comm **out);

/* Leave and free.  The caller's streams are done with its operations, and its windows, and graphs in which it
 * was recorded, are destroyed.  Other ranks fail if they have operations left that need this one.
 * Synchronous; does not wait for other ranks.  NULL is allowed. */
HOTBED_API void hotbed_comm_destroy(hotbed_comm *comm);

/* What the communicator was created as. */
HOTBED_API uint32_t hotbed_comm_rank(const hotbed_comm *comm);
HOTBED_API uint32_t hotbed_comm_size(const hotbed_comm *comm);
HOTBED_API hotbed_transport hotbed_comm_transport(const hotbed_comm *comm);

/* OK, or ARGUMENT where the collectives would refuse this stream: another backend, another GPU.
 * Never waits. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_check_stream(const hotbed_comm *comm, const hotbed_stream *stream);

/* --- exchanges: bytes ------------------------------------------------------------------------- */
/* Errors of all collectives: ARGUMENT (NULL where bytes are to be had, another backend's or GPU's stream,
 * what each says), COMM (the communicator failed before), DEVICE, MEMORY (sums only), STATE (a graph is
 * recorded: sums, where the stream's scratch memory has to grow), UNSUPPORTED (threads on CUDA, in a recording). */

/* Every rank gets every rank's part.  Async.
 *
 *   send   [bytes] in           this rank's part
 *   recv   [size * bytes] out   in rank order; send may be recv + rank * bytes
 *   bytes                       the same on all ranks */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_all_gather(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream);

/* Rank p gets the p-th part of every rank.  Async.
 *
 *   send   [size * bytes] in    part p is for rank p
 *   recv   [size * bytes] out   part p is from rank p; does not overlap send
 *   bytes                       of one part; the same on all ranks */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_all_to_all(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream);

/* One all-to-all whose parts have sizes of their own.  {0}, then set fields.  What rank r sends to p is what
 * p receives from r. */
typedef struct hotbed_exchange {
    const void *send;           /* in; device memory */
    const uint64_t *send_bytes; /* [size] host memory: of the part for each rank */
    const uint64_t
        *send_offsets;          /* [size] host memory: bytes from `send` to the part for each rank;
                                   * parts may overlap.  NULL: one after the other in rank order */
    void *recv;                 /* out; device memory; does not overlap send */
    const uint64_t *recv_bytes; /* [size] host memory: of the part from each rank */
    const uint64_t *recv_offsets; /* [size] host memory; parts do not overlap.  NULL: as above */
    uint64_t bound; /* for the order log: the most bytes that a rank could send, the same on all
                     * ranks; 0 where there is no bound */
} hotbed_exchange;

/* One such exchange.  Async.  Errors besides: ARGUMENT (a sum of sizes is over 2^64; bound is exceeded). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_all_to_all_v(hotbed_comm *comm, const hotbed_exchange *exchange, hotbed_stream *stream);

enum { HOTBED_EXCHANGES_MAX = 6 };

/* Up to HOTBED_EXCHANGES_MAX of them in one submission, which takes about the time of one.  Async.
 *
 *   n          the same on all ranks; 1 .. HOTBED_EXCHANGES_MAX
 *   exchanges  [n] in   copied; the arrays it points to are not
 *
 * Errors besides: as of hotbed_comm_all_to_all_v(), ARGUMENT (n). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_exchange(
    hotbed_comm *comm, uint32_t n, const hotbed_exchange *exchanges, hotbed_stream *stream);

/* Every rank gets root's bytes.  Async.
 *
 *   data   [bytes] in on root, out elsewhere
 *   bytes, root    the same on all ranks
 *
 * Errors besides: ARGUMENT (root is no rank). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_broadcast(
    hotbed_comm *comm, uint32_t root, uint64_t bytes, void *data, hotbed_stream *stream);

/* Work enqueued on `stream` from now on runs after every rank's stream has got to its barrier.  Async: to
 * wait for it on the host, sync the stream. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_barrier(hotbed_comm *comm, hotbed_stream *stream);

/* --- sums: F32 -------------------------------------------------------------------------------- */
/* Scaling.  Hotbed scales nothing by itself: a sum over ranks is a sum, and each call takes its factor.  With
 * a loss that is the mean over a rank's own samples, the gradient of the mean over all ranks is 1/size
 * times the sum, for dense parameters here (scale = 1.0F / size) as for embeddings in the backward of
 * their exchange (its gradient scale).  With a loss that is a sum over samples, or divided by the samples
 * of all ranks, it is 1.  Both must be given the same factor.  docs/design.md has the reasons. */

/* recv[i] = scale * (sum over ranks of send[i]), on every rank: the gradients of dense parameters.  Async.
 *
 *   n      floats; the same on all ranks
 *   scale  the same on all ranks
 *   send   [n] in
 *   recv   [n] out; may be send */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_all_reduce(
    hotbed_comm *comm, uint64_t n, float scale, const float *send, float *recv,
    hotbed_stream *stream);

/* Each rank gets its part of that sum: the pooled rows of its own samples.  Async.
 *
 *   counts  [size] in host memory: floats of each rank's part; the same on all ranks
 *   scale           the same on all ranks
 *   send    [sum of counts] in   parts in rank order
 *   recv    [counts[rank]] out   does not overlap send
 *
 * Errors besides: ARGUMENT (the sum of counts is over 2^61). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_reduce_scatter(
    hotbed_comm *comm, const uint64_t *counts, float scale, const float *send, float *recv,
    hotbed_stream *stream);

/* --- failing ---------------------------------------------------------------------------------- */

typedef enum hotbed_comm_reason {
    HOTBED_COMM_WELL = 0,      /* it did not fail */
    HOTBED_COMM_ABORTED = 1,   /* `rank` called hotbed_comm_abort() */
    HOTBED_COMM_LEFT = 2,      /* `rank` died, or destroyed its communicator */
    HOTBED_COMM_DEADLINE = 3,  /* `rank`, or some rank, did not come in time */
    HOTBED_COMM_MISMATCH = 4,  /* `rank` did another operation, or with other sizes */
    HOTBED_COMM_TRANSPORT = 5, /* MPI or NCCL reported an error */
} hotbed_comm_reason;

/* Why a communicator failed.  Plain data. */
typedef struct hotbed_comm_fault {
    hotbed_comm_reason reason;
    int32_t rank;       /* whom this rank blames; -1 where it cannot say */
    uint64_t operation; /* number of the operation, from 1; 0 where there was none */
    char text[240];     /* the same in words, with the values */
} hotbed_comm_fault;

/* Why `comm` failed, or WELL.  Never waits; from any thread.  Errors: ARGUMENT (NULL). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_failure(hotbed_comm *comm, hotbed_comm_fault *out);

/* Fail the communicator on all ranks, as ABORTED by this one.  From any thread, while the owner uses `comm`
 * too.  Does not wait for other ranks.  NULL is allowed. */
HOTBED_API void hotbed_comm_abort(hotbed_comm *comm);

/* --- order log -------------------------------------------------------------------------------- */

typedef enum hotbed_comm_operation {
    HOTBED_COMM_ALL_GATHER = 1,
    HOTBED_COMM_ALL_TO_ALL = 2,
    HOTBED_COMM_EXCHANGE = 3, /* all_to_all_v is an exchange of one */
    HOTBED_COMM_BROADCAST = 4,
    HOTBED_COMM_BARRIER = 5,
    HOTBED_COMM_ALL_REDUCE = 6,
    HOTBED_COMM_REDUCE_SCATTER = 7,
    HOTBED_COMM_WINDOW_CREATE = 8,
    HOTBED_COMM_WINDOW_BARRIER = 9,
} hotbed_comm_operation;

/* "all_gather", "all_to_all", ...; "unknown" for other numbers. */
HOTBED_API const char *hotbed_comm_operation_name(hotbed_comm_operation operation);

/* One call as it was made, in values that are the same on all ranks.  A call that is recorded in a graph is
 * logged once, not at each launch. */
typedef struct hotbed_comm_record {
    uint32_t operation; /* hotbed_comm_operation */
    uint32_t tag;       /* as set by hotbed_comm_set_tag() */
    uint64_t bytes;     /* all_gather, all_to_all, broadcast, window: `bytes`; exchange: sum of the
                         * bounds; sums: bytes of all that is summed */
} hotbed_comm_record;

/* Calls from now on carry `tag` in the log, in messages, and where ranks are compared; 0 at first. */
HOTBED_API void hotbed_comm_set_tag(hotbed_comm *comm, uint32_t tag);

/* How many calls were made since the communicator was created, and a digest of all their records: equal
 * on ranks that made the same calls.  NULL outputs are skipped.  Never waits.  Errors: ARGUMENT (NULL). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_log_digest(const hotbed_comm *comm, uint64_t *calls, uint64_t *digest);

/* Copy the records of calls [first, first + n), numbered from 0.  Never waits.
 * Errors: ARGUMENT (NULL; not made yet, or no longer kept: see log_records). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_log_read(const hotbed_comm *comm, uint64_t first, uint64_t n, hotbed_comm_record *out);

/* --- windows: memory that other ranks' kernels write ------------------------------------------ */
/* For exchanges without counts on the host: a kernel of one rank stores straight into another rank's memory,
 * and a barrier on the stream says when all have.  self and threads: ordinary memory.  NCCL: memory that
 * is mapped on all GPUs of an NVLink domain.  MPI: UNSUPPORTED. */

/* Allocate `bytes` on every rank, zeroed, each seen by all.  Synchronous: all ranks call it together.
 *
 *   bytes   of each rank; the same on all ranks; above 0
 *   stream  whose device the memory is on; the zeros are there for work enqueued on it next
 *
 * Errors: ARGUMENT, UNSUPPORTED (the transport, or the GPUs are not all in one NVLink domain), COMM,
 * MEMORY, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_window_create(hotbed_comm *comm, uint64_t bytes, hotbed_stream *stream, hotbed_window **out);

/* Free it.  This rank's streams are done with it, and all other ranks have passed a barrier since they last
 * wrote into it.  Synchronous; does not wait for other ranks, and memory that another rank still maps goes
 * with the communicator.  NULL is allowed. */
HOTBED_API void hotbed_window_destroy(hotbed_window *window);

/* This rank's part, device memory, 256-byte aligned. */
HOTBED_API void *hotbed_window_data(const hotbed_window *window);

/* [size] in device memory, for kernels: entry p is rank p's part as this rank addresses it. */
HOTBED_API void *const *hotbed_window_parts(const hotbed_window *window);

/* What this rank's work on `stream` has stored so far into any part is seen by the work that the part's
 * owner enqueues after its own barrier; and the other way round: work after the barrier may store where
 * the owner's work before it has read.  Async, also in a recorded graph; an operation like the others: one at
 * a time, in the same order on all ranks, with the same deadline.
 * Errors: ARGUMENT, COMM, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_window_barrier(hotbed_window *window, hotbed_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
