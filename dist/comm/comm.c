/* dist/comm/comm.c - communicators: checks, order log, batches, failures; transports move the bytes. */
#include "dist/comm/comm.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash_core.h"
#include "base/host_launch.h"
#include "base/options.h"
#include "base/stream.h"
#include "base/text.h"
#include "base/thread.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

enum {
    DEADLINE_MS = 30000,
    LOOK_MS =
        10, /* interval of checks for failures of other ranks while a batch waits for its turn */
};

const char *hotbed_transport_name(hotbed_transport transport) {
    static const char *const names[] = {NULL, "self", "threads", "mpi", "nccl", "sockets"};
    return HOTBED_NAME(names, transport, "unknown");
}

const char *hotbed_comm_operation_name(hotbed_comm_operation operation) {
    static const char *const names[] = {NULL,         "all_gather",    "all_to_all",
                                        "exchange",   "broadcast",     "barrier",
                                        "all_reduce", "window_create", "window_barrier"};
    return HOTBED_NAME(names, operation, "unknown");
}

/* --- the base of a communicator --------------------------------------------------------------- */

hotbed_status hotbed_comm_new(
    size_t bytes, const hotbed_comm_ops *ops, uint32_t rank, uint32_t size,
    const hotbed_comm_options *options, hotbed_comm **out) {
    hotbed_comm_options o = {.size = sizeof o};
    if (options != NULL)
        HOTBED_TRY(HOTBED_OPTIONS_READ(&o, hotbed_comm_options, deadline_ms, options));
    hotbed_comm *comm = hotbed_new(bytes);
    HOTBED_TRY_MEMORY(comm, "a communicator of %u ranks", size);
    comm->ops = ops;
    comm->rank = rank;
    comm->size = size;
    comm->deadline_ms = o.deadline_ms == 0 ? DEADLINE_MS : o.deadline_ms;
    pthread_mutex_init(&comm->lock, NULL);
    hotbed_cond_init(&comm->turn);
    *out = comm;
    return HOTBED_OK;
}

void hotbed_comm_destroy(hotbed_comm *comm) {
    if (comm == NULL || hotbed_forked())
        return;
    comm->ops->destroy(comm);
    pthread_cond_destroy(&comm->turn);
    pthread_mutex_destroy(&comm->lock);
    hotbed_delete(comm);
}

uint64_t hotbed_comm_deadline(const hotbed_comm *comm) {
    return hotbed_monotonic_now() + comm->deadline_ms * UINT64_C(1000000);
}

uint32_t hotbed_comm_rank(const hotbed_comm *comm) {
    return comm == NULL ? 0 : comm->rank;
}

uint32_t hotbed_comm_size(const hotbed_comm *comm) {
    return comm == NULL ? 0 : comm->size;
}

hotbed_transport hotbed_comm_transport(const hotbed_comm *comm) {
    return comm == NULL ? (hotbed_transport)0 : comm->ops->transport;
}

hotbed_status hotbed_comm_check_host_stream(const hotbed_comm *comm, const hotbed_stream *stream) {
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_HOST)
        return HOTBED_OK;
    return hotbed_fail_parameter(
        HOTBED_ERR_ARGUMENT, "stream", "a communicator of %s takes streams of the host, not of %s",
        hotbed_transport_name(comm->ops->transport),
        hotbed_backend_name(hotbed_stream_backend(stream)));
}

hotbed_status hotbed_comm_check_stream(const hotbed_comm *comm, const hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_comm_check_stream", "comm", comm));
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_comm_check_stream", "stream", stream));
    return comm->ops->check_stream(comm, stream);
}

/* --- failing -------------------------------------------------------------------------------- */

bool hotbed_comm_has_failed(const hotbed_comm *comm) {
    return __atomic_load_n(&comm->failed, __ATOMIC_ACQUIRE) != HOTBED_COMM_WELL;
}

static hotbed_comm_fault fault_of(hotbed_comm_reason reason, int32_t rank) {
    hotbed_comm_fault fault;
    memset(&fault, 0, sizeof fault); /* the padding, too, since it is sent */
    fault.size = sizeof fault;
    fault.reason = reason;
    fault.rank = rank;
    fault.tags[0] = fault.tags[1] = -1;
    fault.error.size = sizeof fault.error;
    return fault;
}

bool hotbed_comm_record_fault(
    hotbed_comm *comm, hotbed_comm_reason reason, int32_t rank, uint64_t operation,
    const char *format, ...) {
    const bool runs = operation != 0 && operation == comm->runs;
    hotbed_comm_fault fault = fault_of(reason, rank);
    fault.operation = operation;
    if (runs)
        memcpy(fault.tags, comm->tags, sizeof fault.tags);
    va_list args;
    va_start(args, format);
    (void)hotbed_vformat(fault.text, sizeof fault.text, format, args);
    va_end(args);
    return hotbed_comm_adopt_fault(comm, &fault);
}

static void end_name(char *name, size_t capacity) {
    name[capacity - 1] = '\0';
    hotbed_escape(name, capacity);
}

bool hotbed_comm_adopt_fault(hotbed_comm *comm, const hotbed_comm_fault *fault) {
    pthread_mutex_lock(&comm->lock);
    if (!hotbed_comm_has_failed(comm)) {
        hotbed_error_detail *error = &comm->fault.error;
        comm->fault = *fault;
        hotbed_escape(comm->fault.text, sizeof comm->fault.text);
        end_name(error->table, sizeof error->table); /* they may come from another process */
        end_name(error->parameter, sizeof error->parameter);
        end_name(error->path, sizeof error->path);
        if (comm->ops->announce != NULL)
            comm->ops->announce(comm);
        /* Publishes the fault to every reader of `failed`. */
        __atomic_store_n(&comm->failed, (uint32_t)fault->reason, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&comm->turn);
    }
    pthread_mutex_unlock(&comm->lock);
    return false;
}

hotbed_status hotbed_comm_fail(hotbed_comm *comm) {
    const hotbed_comm_fault *fault = &comm->fault;
    hotbed_status failed = hotbed_fail_again(
        &fault->error, HOTBED_ERR_COMM, "communicator of %s, rank %u of %u: %s",
        hotbed_transport_name(comm->ops->transport), comm->rank, comm->size, fault->text);
    if (fault->operation != 0)
        failed = hotbed_error_value(failed, "operation", (double)fault->operation);
    return hotbed_error_cause_is(hotbed_error_rank(failed, fault->rank), HOTBED_CAUSE_COMM);
}

static void poll(hotbed_comm *comm) {
    if (comm->ops->poll != NULL && !hotbed_comm_has_failed(comm))
        comm->ops->poll(comm);
}

hotbed_status hotbed_comm_failure(hotbed_comm *comm, hotbed_comm_fault *out) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_comm_failure", "comm", comm));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_comm_fault"));
    HOTBED_TRY(hotbed_fork_check());
    poll(comm);
    const hotbed_comm_fault well = fault_of(HOTBED_COMM_WELL, -1);
    hotbed_output_write(out, hotbed_comm_has_failed(comm) ? &comm->fault : &well, sizeof well);
    return HOTBED_OK;
}

void hotbed_comm_abort(hotbed_comm *comm, const char *why, const hotbed_error_detail *error) {
    if (comm == NULL || hotbed_forked())
        return;
    hotbed_comm_fault fault = fault_of(HOTBED_COMM_ABORTED, (int32_t)comm->rank);
    (void)hotbed_format(
        fault.text, sizeof fault.text, "rank %u aborted%s%s", comm->rank, why == NULL ? "" : ": ",
        why == NULL ? "" : why);
    if (error != NULL)
        memcpy(
            &fault.error, error,
            error->size < sizeof fault.error ? error->size : sizeof fault.error);
    fault.error.size = sizeof fault.error;
    fault.error.has &= ~(uint32_t)HOTBED_HAS_RANK; /* `rank` of the fault is this one */
    (void)hotbed_comm_adopt_fault(comm, &fault);
    if (comm->ops->spread != NULL)
        comm->ops->spread(comm);
}

/* --- order log ------------------------------------------------------------------------------ */

void hotbed_comm_set_tag(hotbed_comm *comm, uint32_t tag) {
    if (comm != NULL)
        comm->tag = tag;
}

void hotbed_comm_write_log(hotbed_comm *comm, hotbed_comm_operation operation, uint64_t bytes) {
    comm->calls++;
    uint64_t what = (uint64_t)operation << 32 | comm->tag;
    comm->digest = hotbed_hash_u64(hotbed_hash_u64(comm->digest ^ what) + bytes);
}

hotbed_status hotbed_comm_log_digest(const hotbed_comm *comm, uint64_t *calls, uint64_t *digest) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_comm_log_digest", "comm", comm));
    if (calls != NULL)
        *calls = comm->calls;
    if (digest != NULL)
        *digest = comm->digest;
    return HOTBED_OK;
}

/* --- batches on host streams ---------------------------------------------------------------- */

/* Wait until all batches with earlier turns have run; turn 0, of a recorded batch, does not
 * wait. False if the communicator failed.
 *
 * There is no deadline here. An earlier batch may be on a stream that is busy with other work for
 * any length of time; the batch has its own deadline once it runs. Two batches cannot wait for each
 * other: a batch waits only for turns and events that existed before it was enqueued. */
static bool take_turn(hotbed_comm *comm, uint64_t turn) {
    pthread_mutex_lock(&comm->lock);
    while (turn != 0 && comm->served + 1 != turn && !hotbed_comm_has_failed(comm)) {
        if (comm->ops->poll == NULL) {
            (void)pthread_cond_wait(&comm->turn, &comm->lock);
            continue;
        }
        (void)hotbed_cond_wait(
            &comm->turn, &comm->lock, hotbed_monotonic_now() + LOOK_MS * UINT64_C(1000000));
        pthread_mutex_unlock(&comm->lock);
        poll(comm);
        pthread_mutex_lock(&comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
    return !hotbed_comm_has_failed(comm);
}

static void end_turn(hotbed_comm *comm, uint64_t turn) {
    if (turn == 0)
        return;
    pthread_mutex_lock(&comm->lock);
    if (comm->served < turn) /* after a failure, a later turn may already have been served */
        comm->served = turn;
    pthread_cond_broadcast(&comm->turn);
    pthread_mutex_unlock(&comm->lock);
}

static bool run(hotbed_comm *comm, const hotbed_comm_batch *batch, uint64_t turn) {
    bool well = take_turn(comm, turn);
    if (well) {
        comm->runs++;
        comm->tags[0] = batch->tag;
        comm->tags[1] = -1;
        well = comm->ops->run(comm, batch);
    }
    end_turn(comm, turn);
    return well;
}

bool hotbed_comm_run_now(hotbed_comm *comm, const hotbed_comm_batch *batch) {
    return run(comm, batch, ++comm->turns);
}

typedef struct batch_args {
    hotbed_comm *comm;
    hotbed_fault *fault;
    uint64_t turn;
    hotbed_comm_batch batch;
} batch_args;
static_assert(
    sizeof(batch_args) <= HOTBED_HOST_ARGS_BYTES, "a batch fits into the arguments of a task");

static void run_batch(const void *args, uint64_t begin, uint64_t end) {
    const batch_args *a = args;
    if (run(a->comm, &a->batch, a->turn))
        return;
    const hotbed_comm_fault *fault = &a->comm->fault;
    hotbed_fault_latch(
        a->fault, HOTBED_ERR_COMM, HOTBED_CAUSE_COMM, (uint32_t)fault->rank, fault->operation,
        (uint64_t)fault->reason);
}

hotbed_status hotbed_comm_enqueue(
    hotbed_comm *comm, const hotbed_comm_batch *batch, hotbed_stream *stream) {
    if (comm->ops->run == NULL || hotbed_stream_backend(stream) != HOTBED_BACKEND_HOST)
        return comm->ops->enqueue(comm, batch, stream);
    batch_args args = {
        .comm = comm,
        .fault = hotbed_stream_faults(stream),
        .turn = hotbed_stream_recording(stream) ? 0 : comm->turns + 1,
        .batch = *batch,
    };
    HOTBED_TRY(hotbed_host_launch(stream, 1, 0, run_batch, &args, sizeof args));
    if (args.turn != 0)
        comm->turns = args.turn;
    return HOTBED_OK;
}

hotbed_comm_batch hotbed_comm_batch_of(
    const hotbed_comm *comm, hotbed_comm_operation operation, uint32_t num_parts) {
    return (hotbed_comm_batch){
        .operation = (uint32_t)operation,
        .tag = comm->tag,
        .num_parts = num_parts,
    };
}

hotbed_status hotbed_comm_check_call(
    const char *function, hotbed_comm *comm, const hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer_of(function, "comm", comm));
    HOTBED_TRY(hotbed_check_pointer_of(function, "stream", stream));
    HOTBED_TRY(comm->ops->check_stream(comm, stream));
    poll(comm);
    return hotbed_comm_has_failed(comm) ? hotbed_comm_fail(comm) : HOTBED_OK;
}
