/* hotbed/comm.h - communicators: ranks, and the data that they exchange.
 *
 * Experimental: hotbed_transport_probe(), hotbed_comm_all_to_all(), hotbed_comm_exchange(),
 * hotbed_comm_set_tag(), hotbed_comm_log_digest(). Stable: all other calls.
 *
 * Needed by programs with more than one rank, for sharded collections (hotbed/sharded.h),
 * checkpoints of several ranks, and the gradients of dense parameters. A communicator joins `size`
 * ranks, numbered from 0. Five transports implement one contract:
 *
 *   self     one rank; copies. Host and CUDA streams.
 *   threads  ranks are threads of one process. Host streams; and, to try several ranks on one GPU,
 *            CUDA streams of one GPU: there a call returns when all ranks have made it, and cannot
 *            be recorded in a graph.
 *   MPI      ranks are processes of an MPI job. Host streams.
 *   sockets  ranks are processes, on one or several machines, connected by TCP. Host streams. Needs
 *            no other library.
 *   NCCL     one GPU per rank; ranks are processes, threads, or both. CUDA streams of that GPU.
 *
 * Average the gradients of dense parameters over all ranks:
 *
 *     hotbed_comm *comm;
 *     hotbed_comm_options options = {.size = sizeof options, .deadline_ms = 60000};
 *     status = hotbed_comm_create_nccl(&options, device, NULL, &comm);
 *     float scale = 1.0F / (float)hotbed_comm_size(comm);
 *     status = hotbed_comm_all_reduce(comm, n, scale, gradient, gradient, stream);
 *     status = hotbed_stream_sync(stream);
 *     if (status == HOTBED_ERR_COMM) {
 *         hotbed_comm_fault fault = {.size = sizeof fault};
 *         if (hotbed_comm_failure(comm, &fault) == HOTBED_OK)
 *             puts(fault.text);
 *     }
 *     hotbed_comm_destroy(comm);
 *
 * All ranks make the same calls in the same order, whatever their counts are: zero bytes is a valid
 * size. Each call documents which arguments must be equal on all ranks. The transports on the host
 * compare them and fail with MISMATCH; NCCL does not compare them. The order log shows where two
 * ranks diverged.
 *
 * Collectives are asynchronous: they are enqueued on the stream and return. Data is in memory of
 * the stream's device. Arrays of counts and offsets are in host memory, and must not change until
 * the stream has passed the work, or, if a graph is recorded, as long as the graph exists.
 * Operations of one communicator run in the order of the calls, also on different streams;
 * operations in a graph run when it is launched, and then the caller orders the streams. Only
 * create, destroy and the window calls marked so are synchronous; nothing else allocates or waits,
 * except that sums use the stream's scratch memory, which the stream allocates when it must be
 * larger than before.
 *
 * Sums are computed by Hotbed, not by the transport: x(0) + x(1) + ... + x(size-1), in F32, in this
 * order, then times `scale`. Every rank gets the same bits, on every transport, run after run.
 *
 * Failures are final. A communicator fails if a rank called hotbed_comm_abort(), destroyed its
 * communicator or ended its process while other ranks needed it, performed another operation than
 * the other ranks, or did not arrive within the deadline. Then on every other rank, within the
 * deadline and usually immediately:
 *   - operations in progress end, and operations enqueued behind them do nothing; their output is
 *   undefined;
 *   - hotbed_stream_sync() of a stream with such an operation returns COMM with the reason;
 *   - later calls return COMM with the reason, whose parts hotbed_comm_failure() returns.
 * Nothing hangs. The failed communicator can only be destroyed; a graph that was recorded with it
 * must not be launched again. A new communicator of the remaining ranks works; over MPI, if a
 * process has died, only if the MPI library can continue (see hotbed_comm_create_mpi()).
 *
 * A rank announces the first failure that it learns of before its own calls return it. So a process
 * that ends because of a failure is not named as its cause, even if it does not destroy its
 * communicator. Two cases cannot be decided. If several processes have ended when a rank looks, and
 * none of them announced a failure, as when a launcher ends them all, the text names them all and
 * the fault's rank is -1; a rank that looked earlier may name one of them. And a machine that loses
 * its power or network closes no connection: a process that ends later may be named, or the
 * deadline passes.
 *
 * A communicator is used by one thread at a time, but hotbed_comm_abort() may be called from any
 * thread. */
#ifndef HOTBED_COMM_H
#define HOTBED_COMM_H

#include "hotbed/status.h"
#include "hotbed/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

HOTBED_BEGIN_DECLS

typedef struct hotbed_comm hotbed_comm; /* opaque; owned by the creator */

typedef enum hotbed_transport {
    HOTBED_TRANSPORT_SELF = 1,
    HOTBED_TRANSPORT_THREADS = 2,
    HOTBED_TRANSPORT_MPI = 3,
    HOTBED_TRANSPORT_NCCL = 4,
    HOTBED_TRANSPORT_SOCKETS = 5,
} hotbed_transport;

/* Return "self", "threads", "mpi", "nccl" or "sockets"; "unknown" for other numbers. */
HOTBED_API const char *hotbed_transport_name(hotbed_transport transport);

/* Check whether this build and machine support `transport`.
 * Errors: UNSUPPORTED (not in this build; no GPU; the text says which), ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_transport_probe(hotbed_transport transport);

/* --- create and destroy ----------------------------------------------------------------------- */

/* Options of a communicator; the same on all ranks. 0 is the default of every field but `size`.
 * Fields are only ever appended. */
typedef struct hotbed_comm_options {
    uint32_t size; /* sizeof(hotbed_comm_options) */
    /* The longest time that an operation waits for other ranks, counted from when its stream has
     * reached it and this rank's earlier operations are complete; create waits as long for other
     * ranks; 0: 30000. */
    uint32_t deadline_ms;
} hotbed_comm_options;

/* Create a communicator of one rank, for host and CUDA streams. Synchronous; `options` may be NULL.
 * Errors: ARGUMENT, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_create_self(const hotbed_comm_options *options, hotbed_comm **out);

/* Create `n` communicators that are the ranks of one world, each for one thread of this process:
 * comms[r] is rank r. Each is destroyed separately. Synchronous; `options` may be NULL. On an error
 * all of comms[] are NULL.
 *
 *   comms  [n] out
 *
 * Errors: ARGUMENT (n not in 1 .. 1024), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_create_threads(const hotbed_comm_options *options, uint32_t n, hotbed_comm **comms);

/* Create a communicator of the ranks of MPI_COMM_WORLD. Synchronous: all ranks call it together.
 * `options` may be NULL.
 *
 * MPI is initialized if the program has not done so, and is then finalized when the process ends; a
 * program that initializes MPI itself requests MPI_THREAD_MULTIPLE. Beside MPI, a socket connects
 * each pair of ranks and reports a rank's death at once. Most MPI libraries end the whole job when
 * a process dies; Open MPI's mpirun continues with --enable-recovery. After a failure the library
 * leaves MPI unfinalized, since MPI_Finalize waits for dead processes; a surviving process that
 * called MPI_Init itself should not call MPI_Finalize either. A process that calls exit() or
 * MPI_Finalize leaves the communicators that it has not destroyed. Each call uses up one MPI
 * communicator until MPI is finalized (Open MPI: about 8 KiB each, and 65,536 in all).
 *
 * Errors: UNSUPPORTED (not in this build; threads), COMM (MPI failed; a rank did not arrive within
 * the deadline), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_create_mpi(const hotbed_comm_options *options, hotbed_comm **out);

/* How the ranks of a new communicator find each other, in a program whose processes are already
 * connected by other means, such as a key-value store or another library's process group. */
typedef struct hotbed_rendezvous {
    uint32_t size;  /* set by the caller: sizeof(hotbed_rendezvous) */
    uint32_t rank;  /* this rank */
    uint32_t world; /* number of ranks: 1 .. 1024; the same on all ranks */
    /* Copy `bytes` bytes at `data` from rank 0 to all other ranks, and return whether that
     * succeeded. Every rank calls it once, on the thread that creates the communicator. */
    bool (*broadcast)(void *self, void *data, uint64_t bytes);
    void *self; /* passed to broadcast */
} hotbed_rendezvous;

/* Create a communicator of processes that are connected by TCP. Synchronous: all ranks call it
 * together. `options` may be NULL.
 *
 *   rendezvous  in  used only during the call. NULL: the environment variables RANK, WORLD_SIZE,
 *                   MASTER_ADDR and MASTER_PORT, where rank 0 listens. HOTBED_JOB, or without it
 *                   TORCHELASTIC_RUN_ID (torchrun's --rdzv-id), is a word that only the ranks of
 *                   this job have; a rank with another word is refused. Without a word, ranks of
 *                   any job with that port are taken.
 *
 * Rank 0 listens on a free port of its own, and `broadcast` tells the other ranks where. Two
 * connections join each pair of ranks: one for data, and one that reports a rank's death or abort at
 * once. Programs that connect to the port, or listen in rank 0's place, are recognized and named;
 * they delay no rank. The connections are neither encrypted nor authenticated: a program that knows
 * the protocol and reads the traffic can take part. Ranks must be of one architecture. A process
 * that this one forks closes the connections, and cannot use Hotbed (STATE).
 *
 * Errors: ARGUMENT (rank or world; a variable is missing or not a number; a rank passes another
 * number of ranks than rank 0: the text has both numbers), COMM (broadcast failed; a rank did not
 * arrive within the deadline), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_create_sockets(
    const hotbed_comm_options *options, const hotbed_rendezvous *rendezvous, hotbed_comm **out);

/* Create a communicator of GPUs; this rank uses GPU number `device`. Synchronous: all ranks call it
 * together. `options` may be NULL.
 *
 *   bootstrap  in  a communicator of threads, sockets or MPI, whose ranks become the ranks of this
 *                  one; it is used only during the call, with host memory. NULL: processes find each
 *                  other through the environment variables RANK, WORLD_SIZE, MASTER_ADDR and
 *                  MASTER_PORT, where rank 0 listens, and HOTBED_JOB or TORCHELASTIC_RUN_ID, as
 *                  hotbed_comm_create_sockets() does.
 *
 * Beside NCCL, a socket connects each pair of ranks and reports a rank's death or abort at once.
 * One thread of the library watches these sockets and the deadline.
 *
 * Errors: UNSUPPORTED (not in this build; no GPU), ARGUMENT (device; bootstrap failed; a variable
 * is missing or not a number; WORLD_SIZE of a rank is not rank 0's: the text has both), COMM (NCCL
 * failed, with its text; a rank did not arrive within the deadline), MEMORY, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_create_nccl(
    const hotbed_comm_options *options, int device, hotbed_comm *bootstrap, hotbed_comm **out);

/* Leave the communicator and free it. The caller's streams must have completed its operations, and
 * its windows and the graphs that recorded it must have been destroyed. Other ranks fail if they
 * have operations left that need this rank. Synchronous; does not wait for other ranks: with NCCL, a
 * thread of the library frees what NCCL holds when the other ranks have destroyed theirs, and the
 * end of the process waits up to two seconds for it. NULL is allowed. */
HOTBED_API void hotbed_comm_destroy(hotbed_comm *comm);

/* Return this rank's number, the number of ranks, and the transport. */
HOTBED_API uint32_t hotbed_comm_rank(const hotbed_comm *comm);
HOTBED_API uint32_t hotbed_comm_size(const hotbed_comm *comm);
HOTBED_API hotbed_transport hotbed_comm_transport(const hotbed_comm *comm);

/* --- exchanges: bytes ------------------------------------------------------------------------- */
/* Errors of all collectives: ARGUMENT (NULL with a size above zero, a stream of another backend or
 * GPU, and the causes given at each function), COMM (the communicator failed before), DEVICE,
 * MEMORY (sums only), STATE (sums only: a graph is recorded and the stream's scratch memory would
 * have to grow), UNSUPPORTED (threads on CUDA, in a recording). */

/* Send this rank's part to every rank, and receive every rank's part. Asynchronous.
 *
 *   send   [bytes] in           this rank's part
 *   recv   [size * bytes] out   in rank order; send may be recv + rank * bytes
 *   bytes                       the same on all ranks
 */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_all_gather(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream);

/* Send part p to rank p, and receive one part from every rank. Asynchronous.
 *
 *   send   [size * bytes] in    part p is for rank p
 *   recv   [size * bytes] out   part p is from rank p; must not overlap send
 *   bytes                       size of one part; the same on all ranks
 */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_all_to_all(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream);

/* One all-to-all whose parts have individual sizes. Start from {0}, then set fields. The size that
 * rank r sends to p must equal the size that p receives from r. Frozen: it has no size field, since
 * calls take arrays of it. */
typedef struct hotbed_exchange {
    const void *send;           /* in; device memory */
    const uint64_t *send_bytes; /* [size] host memory: size of the part for each rank */
    /* [size] host memory: bytes from `send` to the part for each rank; parts may overlap. NULL: one
     * after the other in rank order. */
    const uint64_t *send_offsets;
    void *recv;                 /* out; device memory; must not overlap send */
    const uint64_t *recv_bytes; /* [size] host memory: size of the part from each rank */
    /* [size] host memory: bytes from `recv`; parts must not overlap. NULL: one after the other in
     * rank order. */
    const uint64_t *recv_offsets;
    /* For the order log: the largest number of bytes that a rank could send, the same on all ranks;
     * 0: there is no bound. */
    uint64_t bound;
} hotbed_exchange;

enum { HOTBED_EXCHANGES_MAX = 6 };

/* Perform one to HOTBED_EXCHANGES_MAX exchanges in one submission, which takes about as long as one
 * exchange. Asynchronous.
 *
 *   n          the same on all ranks; 1 .. HOTBED_EXCHANGES_MAX
 *   exchanges  [n] in   copied; the arrays that they point to are not copied
 *
 * Other errors: ARGUMENT (n; a sum of sizes is over 2^64; bound is exceeded). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_exchange(
    hotbed_comm *comm, uint32_t n, const hotbed_exchange *exchanges, hotbed_stream *stream);

/* Copy root's bytes to every rank. Asynchronous.
 *
 *   data   [bytes] in on root, out elsewhere
 *   bytes, root    the same on all ranks
 *
 * Other errors: ARGUMENT (root is not a rank). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_broadcast(
    hotbed_comm *comm, uint32_t root, uint64_t bytes, void *data, hotbed_stream *stream);

/* Order later work on `stream` after the barriers of all ranks: it runs when every rank's stream
 * has reached its barrier. Asynchronous; to wait on the host, synchronize the stream. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_barrier(hotbed_comm *comm, hotbed_stream *stream);

/* --- sums: F32 -------------------------------------------------------------------------------- */
/* Scaling. Hotbed scales nothing by itself: a sum over ranks is a sum, and each call takes its
 * factor. If the loss is the mean over a rank's own samples, the gradient of the mean over all
 * ranks is 1/size times the sum, both for dense parameters (here: scale = 1.0F / size) and for
 * embeddings (in the backward of their exchange: its gradient scale). If the loss is a sum over
 * samples, or is divided by the number of samples on all ranks, the factor is 1. Both must use the
 * same factor. docs/design/dist.md gives the reasons. */

/* Sum over ranks, for example the gradients of dense parameters: recv[i] = scale * (sum over ranks
 * of send[i]) on every rank. Asynchronous.
 *
 *   n      number of floats; the same on all ranks
 *   scale  the same on all ranks
 *   send   [n] in
 *   recv   [n] out; may be send
 */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_comm_all_reduce(
    hotbed_comm *comm, uint64_t n, float scale, const float *send, float *recv,
    hotbed_stream *stream);

/* --- failures --------------------------------------------------------------------------------- */

typedef enum hotbed_comm_reason {
    HOTBED_COMM_WELL = 0,      /* it has not failed */
    HOTBED_COMM_ABORTED = 1,   /* `rank` called hotbed_comm_abort() */
    HOTBED_COMM_LEFT = 2,      /* `rank` destroyed its communicator, or its process ended */
    HOTBED_COMM_DEADLINE = 3,  /* `rank`, or some rank, did not arrive in time */
    HOTBED_COMM_MISMATCH = 4,  /* `rank` performed another operation, or used other sizes */
    HOTBED_COMM_TRANSPORT = 5, /* the transport reported an error: MPI, NCCL, a socket */
} hotbed_comm_reason;

/* Why a communicator failed. Plain data; set size before hotbed_comm_failure(). */
typedef struct hotbed_comm_fault {
    uint32_t size;
    hotbed_comm_reason reason;
    /* The rank that caused the failure, as far as this rank knows; -1: unknown, or one of several
     * whose processes ended. */
    int32_t rank;
    uint64_t operation; /* number of the operation, from 1; 0: no operation */
    /* The tags that the text has: of the operation of the rank that found the failure, and, if it
     * compared operations, of the other rank's. -1: none. */
    int64_t tags[2];
    char text[240]; /* the same in words, with the values */
    /* ABORTED: the fields that the rank passed to hotbed_comm_abort(); status OK: none. The last
     * member, so that both structs can grow. */
    hotbed_error_detail error;
} hotbed_comm_fault;

/* Return why `comm` failed; reason WELL if it has not. Never waits; may be called from any thread.
 * Errors: ARGUMENT (NULL, out->size). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_failure(hotbed_comm *comm, hotbed_comm_fault *out);

/* Fail the communicator on all ranks, as ABORTED by this one. May be called from any thread, also
 * while the owner uses `comm`. Does not wait for other ranks.
 *
 *   comm  in  NULL is allowed
 *   why   in  one line, at most about 200 bytes, which follows "rank N aborted: " in the fault's text;
 *             NULL: no reason is given
 *   error in  the fields of the error that is the reason, such as hotbed_last_error_detail(), which
 *             become fields of the other ranks' errors; NULL: none */
HOTBED_API void hotbed_comm_abort(
    hotbed_comm *comm, const char *why, const hotbed_error_detail *error);

/* --- order log -------------------------------------------------------------------------------- */

/* Set the tag of later calls, which is part of the digest, appears in messages, and is compared
 * between ranks. It is 0 at first. */
HOTBED_API void hotbed_comm_set_tag(hotbed_comm *comm, uint32_t tag);

/* Return the number of calls since the communicator was created, and a digest of their operations,
 * tags and bytes, which is equal on ranks that made the same calls. A call that is recorded in a
 * graph counts once, not at each launch. NULL outputs are skipped. Never waits.
 * Errors: ARGUMENT (NULL). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_comm_log_digest(const hotbed_comm *comm, uint64_t *calls, uint64_t *digest);

HOTBED_END_DECLS
#endif
