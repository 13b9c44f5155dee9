/* dist/comm/comm_nccl.c - ranks that are GPUs; with comm_nccl.cu the only file that includes NCCL.
 *
 * A batch is one group of ncclSend and ncclRecv, between two stamps that show the host how far the
 * GPU is. NCCL waits without a limit, so a thread watches: the link for ranks that die or fail, the
 * stamps for the deadline, and NCCL for its own errors. When the communicator fails, that thread
 * sets a word that the kernels read, and aborts NCCL's communicator, which ends NCCL's kernels.
 *
 * NCCL's communicators are blocking: a group of a non-blocking one is enqueued by a thread of
 * NCCL's, and the caller would have to wait for it before enqueueing anything behind it.
 * Connections are made at creation, so later only a full launch queue blocks. */
#define _GNU_SOURCE /* NOLINT(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): pthread_timedjoin_np() */
#include "dist/comm/comm_link.h"
#include "dist/comm/comm_nccl_kernels.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/stream.h"
#include "base/thread.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <nccl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LOOK_MS = 5, /* between two checks of the watching thread */
    LOCK_MS =
        2000, /* how long it waits for a call of NCCL to return before it goes on without it */
    EXIT_SECONDS = 2, /* how long the process's end waits for NCCL's communicators to be freed */
    DUMMY_BYTES = 16, /* bytes that a barrier sends, or a notice of a window */
    WINDOW_ALIGN = 4096,
    FLAG_ALIGN = 256
};

typedef struct nccl_comm {
    hotbed_comm base;
    int device;
    hotbed_link *link;
    hotbed_stream *own; /* for create and windows */
    hotbed_memory words, count, dummy;
    hotbed_comm_gpu gpu;
    pthread_mutex_t submit;    /* held over calls of NCCL, and guards `nccl` */
    ncclComm_t nccl;           /* NULL: not created yet, or aborted */
    const hotbed_stream *last; /* stream of the previous operation; compared, never dereferenced */
    hotbed_event *passed;      /* recorded after the previous operation */
    pthread_t watcher;
    bool watched;
    uint32_t stop; /* atomic; the watching thread should end */
} nccl_comm;

typedef struct nccl_window {
    hotbed_window base;
    void *data; /* from ncclMemAlloc */
    hotbed_memory parts;
    ncclWindow_t registered;
    hotbed_comm_flags flags;
} nccl_window;

static nccl_comm *nccl_of(const hotbed_comm *comm) {
    return (nccl_comm *)(uintptr_t)comm;
}

hotbed_status hotbed_comm_probe_nccl(void) {
    return hotbed_backend_probe(HOTBED_BACKEND_CUDA);
}

static hotbed_status check_nccl(ncclResult_t result, const char *call) {
    if (result == ncclSuccess)
        return HOTBED_OK;
    return hotbed_fail(
        HOTBED_ERR_COMM, "%s: %s: %s", call, ncclGetErrorString(result), ncclGetLastError(NULL));
}

#define CHECK_NCCL(call, ...) check_nccl(call(__VA_ARGS__), #call)

/* --- the end of NCCL's communicators ---------------------------------------------------------- */

/* ncclCommDestroy() and ncclCommAbort() return when the other processes have called them too,
 * because NCCL serves their connections until then. A caller that waited for that could be what
 * those processes wait for, so a thread waits instead. */
typedef struct ending {
    ncclComm_t nccl;
    int device;
    bool failed;
    uint32_t done; /* atomic; the thread is about to end */
    pthread_t thread;
    struct ending *next;
} ending;

static pthread_mutex_t endings_lock = PTHREAD_MUTEX_INITIALIZER;
static ending *endings; /* threads that have not been joined */
static bool awaited_at_exit;

static void *end_main(void *argument) {
    ending *e = argument;
    (void)cudaSetDevice(e->device);
    (void)(e->failed ? ncclCommAbort(e->nccl) : ncclCommDestroy(e->nccl));
    __atomic_store_n(&e->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Join the threads that are done, or that end before `until`. */
static void join_endings(const struct timespec *until) {
    pthread_mutex_lock(&endings_lock);
    for (ending **at = &endings; *at != NULL;) {
        ending *e = *at;
        const bool joined = until != NULL ? pthread_timedjoin_np(e->thread, NULL, until) == 0
                                          : __atomic_load_n(&e->done, __ATOMIC_ACQUIRE) != 0 &&
                                                pthread_join(e->thread, NULL) == 0;
        if (joined) {
            *at = e->next;
            hotbed_delete(e);
        } else {
            at = &e->next;
        }
    }
    pthread_mutex_unlock(&endings_lock);
}

/* A process must not end while NCCL frees memory of a GPU, nor while a thread that has used CUDA ends:
 * the driver frees what it has for a thread. */
static void await_endings(void) {
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += EXIT_SECONDS;
    if (hotbed_forked())
        return;
    join_endings(&until);
    pthread_mutex_lock(&endings_lock);
    awaited_at_exit = false;
    pthread_mutex_unlock(&endings_lock);
}

/* Called again for a communicator that an exit handler of the application destroys. */
static void await_endings_at_exit(void) {
    pthread_mutex_lock(&endings_lock);
    if (!awaited_at_exit)
        awaited_at_exit = atexit(await_endings) == 0;
    pthread_mutex_unlock(&endings_lock);
}

static bool end_on_a_thread(const nccl_comm *n, bool failed) {
    ending *e = hotbed_new(sizeof *e);
    if (e == NULL)
        return false;
    *e = (ending){.nccl = n->nccl, .device = n->device, .failed = failed};
    pthread_mutex_lock(&endings_lock);
    const bool started = hotbed_thread_start(&e->thread, end_main, e) == 0;
    if (started) {
        e->next = endings;
        endings = e;
    }
    pthread_mutex_unlock(&endings_lock);
    if (!started)
        hotbed_delete(e);
    return started;
}

/* Destroy, or abort after a failure, the communicator of NCCL. Without memory for a thread it stays
 * until the process ends: after a failure its operations would go on, so then the caller waits. */
static void end_nccl(nccl_comm *n) {
    await_endings_at_exit();
    join_endings(NULL);
    const bool failed = hotbed_comm_has_failed(&n->base);
    if (!end_on_a_thread(n, failed) && failed)
        (void)ncclCommAbort(n->nccl);
    n->nccl = NULL;
}

/* --- the watching thread -------------------------------------------------------------------- */

static bool wait_for_lock(pthread_mutex_t *lock, uint32_t milliseconds) {
    uint64_t until = hotbed_monotonic_now() + (uint64_t)milliseconds * 1000000U;
    int error = pthread_mutex_trylock(lock);
    while (error == EBUSY && hotbed_monotonic_now() < until) {
        sched_yield();
        error = pthread_mutex_trylock(lock);
    }
    return error == 0;
}

/* Abort the operations on the GPU after a failure of the communicator. */
static void abort_operations(nccl_comm *n) {
    hotbed_comm_words *words = n->gpu.words;
    __atomic_store_n(&words->rank, n->base.fault.rank, __ATOMIC_RELAXED);
    __atomic_store_n(&words->reason, (uint32_t)n->base.fault.reason, __ATOMIC_RELEASE);
    /* A caller that holds the lock for long is blocked inside NCCL, behind kernels that wait. The
     * abort unblocks it. */
    bool locked = wait_for_lock(&n->submit, LOCK_MS);
    end_nccl(n);
    if (locked)
        pthread_mutex_unlock(&n->submit);
}

typedef struct progress {
    uint64_t started, completed;
    uint64_t since; /* when this was first noticed */
} progress;

/* Whether the operation that the GPU runs takes too long, or waits for a rank that has left. */
static void look_at_stamps(nccl_comm *n, progress *last) {
    hotbed_comm *comm = &n->base;
    uint64_t completed = __atomic_load_n(&n->gpu.words->completed, __ATOMIC_ACQUIRE);
    uint64_t started = __atomic_load_n(&n->gpu.words->started, __ATOMIC_ACQUIRE);
    uint64_t now = hotbed_monotonic_now();
    if (started != last->started || completed != last->completed)
        *last = (progress){started, completed, now};
    if (started <= completed)
        return;
    for (uint32_t p = 0; p < comm->size; p++)
        if (hotbed_link_left(n->link, comm, p, started, NULL))
            return;
    if (now - last->since < (uint64_t)comm->deadline_ms * 1000000U)
        return;
    (void)hotbed_comm_record_fault(
        comm, HOTBED_COMM_DEADLINE, -1, started,
        "operation %" PRIu64 ": the other ranks did not all come within %u ms", started,
        comm->deadline_ms);
}

static void look_at_nccl(nccl_comm *n) {
    ncclResult_t error = ncclSuccess;
    ncclResult_t asked = ncclCommGetAsyncError(n->nccl, &error);
    if (asked == ncclSuccess && (error == ncclSuccess || error == ncclInProgress))
        return;
    (void)hotbed_comm_record_fault(
        &n->base, HOTBED_COMM_TRANSPORT, -1, 0, "NCCL: %s",
        ncclGetErrorString(asked == ncclSuccess ? error : asked));
}

static void *watch(void *argument) {
    nccl_comm *n = argument;
    progress last = {0};
    (void)cudaSetDevice(n->device);
    while (__atomic_load_n(&n->stop, __ATOMIC_ACQUIRE) == 0) {
        hotbed_link_poll(n->link, &n->base, LOOK_MS);
        if (!hotbed_comm_has_failed(&n->base))
            look_at_stamps(n, &last);
        if (!hotbed_comm_has_failed(&n->base))
            look_at_nccl(n);
        if (hotbed_comm_has_failed(&n->base)) {
            abort_operations(n);
            break;
        }
    }
    return NULL;
}

/* --- batches -------------------------------------------------------------------------------- */

static hotbed_status check_stream(const hotbed_comm *comm, const hotbed_stream *stream) {
    int device = nccl_of(comm)->device;
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA &&
        hotbed_stream_device(stream) == device)
        return HOTBED_OK;
    return hotbed_fail_parameter(
        HOTBED_ERR_ARGUMENT, "stream", "a communicator of cuda %d does not take streams of %s %d",
        device, hotbed_backend_name(hotbed_stream_backend(stream)), hotbed_stream_device(stream));
}

/* Operations run in the order of the calls, whatever their streams. In a recording the caller
 * ensures it. */
static hotbed_status take_turn(nccl_comm *n, hotbed_stream *stream) {
    if (n->last == NULL || n->last == stream || hotbed_stream_recording(stream))
        return HOTBED_OK;
    return hotbed_stream_wait(stream, n->passed);
}

static hotbed_status end_turn(nccl_comm *n, hotbed_stream *stream) {
    if (hotbed_stream_recording(stream))
        return HOTBED_OK;
    n->last = stream;
    return hotbed_event_record(n->passed, stream);
}

static hotbed_status send_part(
    nccl_comm *n, const hotbed_comm_part *part, uint32_t p, cudaStream_t native) {
    uint64_t bytes;
    const uint8_t *from = hotbed_comm_sends(&n->base, part, p, &bytes);
    if (bytes > 0) /* if it is 0 here, it is 0 at the other end */
        HOTBED_TRY(CHECK_NCCL(ncclSend, from, bytes, ncclUint8, (int)p, n->nccl, native));
    uint8_t *to = hotbed_comm_receives(&n->base, part, p, &bytes);
    if (bytes > 0)
        HOTBED_TRY(CHECK_NCCL(ncclRecv, to, bytes, ncclUint8, (int)p, n->nccl, native));
    return HOTBED_OK;
}

static hotbed_status send_parts(nccl_comm *n, const hotbed_comm_batch *batch, cudaStream_t native) {
    HOTBED_TRY(check_nccl(ncclGroupStart(), "ncclGroupStart"));
    hotbed_status status = HOTBED_OK;
    for (uint32_t k = 1; k < n->base.size && status == HOTBED_OK; k++)
        for (uint32_t i = 0; i < batch->num_parts && status == HOTBED_OK; i++)
            status = send_part(n, &batch->parts[i], (n->base.rank + k) % n->base.size, native);
    hotbed_status ended = check_nccl(ncclGroupEnd(), "ncclGroupEnd");
    return status == HOTBED_OK ? ended : status;
}

static hotbed_status copy_own(nccl_comm *n, const hotbed_comm_batch *batch, hotbed_stream *stream) {
    for (uint32_t i = 0; i < batch->num_parts; i++) {
        uint64_t bytes;
        const uint8_t *from = hotbed_comm_sends(&n->base, &batch->parts[i], n->base.rank, &bytes);
        uint8_t *to = hotbed_comm_receives(&n->base, &batch->parts[i], n->base.rank, &bytes);
        if (from != to)
            HOTBED_TRY(hotbed_copy(to, from, bytes, stream));
    }
    return HOTBED_OK;
}

/* Under the lock. */
static hotbed_status submit(nccl_comm *n, const hotbed_comm_batch *batch, hotbed_stream *stream) {
    if (hotbed_comm_has_failed(&n->base) || n->nccl == NULL)
        return hotbed_comm_fail(&n->base);
    hotbed_comm_batch barrier = *batch;
    if (batch->num_parts == 0) { /* every rank receives from every rank */
        barrier.num_parts = 1;
        barrier.parts[0] = (hotbed_comm_part){
            .kind = HOTBED_PART_EQUAL,
            .bytes = DUMMY_BYTES,
            .send = n->dummy.data,
            .recv = (uint8_t *)n->dummy.data + (size_t)n->base.size * DUMMY_BYTES,
        };
        batch = &barrier;
    }
    HOTBED_TRY(take_turn(n, stream));
    HOTBED_TRY(hotbed_comm_gpu_start(&n->gpu, stream));
    HOTBED_TRY(send_parts(n, batch, hotbed_stream_native(stream)));
    HOTBED_TRY(copy_own(n, batch, stream));
    HOTBED_TRY(hotbed_comm_gpu_end(&n->gpu, stream));
    return end_turn(n, stream);
}

/* Record a call that failed half-way: the ranks no longer agree on which calls were made. */
static hotbed_status fail_submit(nccl_comm *n, hotbed_status status) {
    if (status == HOTBED_OK || hotbed_comm_has_failed(&n->base))
        return status;
    (void)hotbed_comm_record_fault(
        &n->base, HOTBED_COMM_TRANSPORT, (int32_t)n->base.rank, 0, "%s", hotbed_last_error());
    return status;
}

static hotbed_status enqueue(
    hotbed_comm *comm, const hotbed_comm_batch *batch, hotbed_stream *stream) {
    nccl_comm *n = nccl_of(comm);
    pthread_mutex_lock(&n->submit);
    hotbed_status status = submit(n, batch, stream);
    pthread_mutex_unlock(&n->submit);
    return fail_submit(n, status);
}

static hotbed_status bare(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream) {
    nccl_comm *n = nccl_of(comm);
    pthread_mutex_lock(&n->submit);
    hotbed_status status = n->nccl == NULL ? hotbed_comm_fail(comm) : take_turn(n, stream);
    if (status == HOTBED_OK)
        status = CHECK_NCCL(
            ncclAlltoAll, send, recv, bytes, ncclUint8, n->nccl, hotbed_stream_native(stream));
    HOTBED_THEN(status, end_turn(n, stream));
    pthread_mutex_unlock(&n->submit);
    return status;
}

static void announce(hotbed_comm *comm) {
    hotbed_link_announce(nccl_of(comm)->link, comm); /* the watching thread does the rest */
}

/* Make the communicator's GPU current, and return the caller's, which is set again later. */
static int enter_gpu(const nccl_comm *n) {
    int callers = n->device;
    (void)cudaGetDevice(&callers);
    (void)cudaSetDevice(n->device);
    return callers;
}

/* --- windows -------------------------------------------------------------------------------- */

static void window_destroy(hotbed_window *base) {
    nccl_window *w = (nccl_window *)base;
    nccl_comm *n = nccl_of(base->comm);
    pthread_mutex_lock(&n->submit);
    if (w->registered != NULL && n->nccl != NULL) /* otherwise it was freed with the communicator */
        (void)ncclCommWindowDeregister(n->nccl, w->registered);
    pthread_mutex_unlock(&n->submit);
    hotbed_memory_free(&w->parts);
    if (w->data != NULL) {
        int callers = enter_gpu(n);
        (void)ncclMemFree(w->data);
        (void)cudaSetDevice(callers);
    }
    hotbed_delete(w);
}

static_assert(
    sizeof(hotbed_window_notice) <= DUMMY_BYTES, "a notice fits where a barrier's bytes are");

/* Whether all ranks have memory of one size. Subject to the deadline of any operation. */
static hotbed_status agree(nccl_comm *n, uint64_t bytes, const nccl_window *w) {
    hotbed_window_notice own = {w == NULL ? NULL : w->data, bytes}, all[HOTBED_COMM_RANKS_MAX];
    uint32_t size = n->base.size;
    uint8_t *device = n->dummy.data;
    hotbed_comm_batch batch = hotbed_comm_batch_of(&n->base, HOTBED_COMM_WINDOW_CREATE, 1);
    batch.parts[0] = (hotbed_comm_part){
        .kind = HOTBED_PART_GATHER,
        .bytes = sizeof own,
        .send = device,
        .recv = device + (size_t)size * DUMMY_BYTES,
    };
    HOTBED_TRY(hotbed_copy(device, &own, sizeof own, n->own));
    HOTBED_TRY(enqueue(&n->base, &batch, n->own));
    HOTBED_TRY(hotbed_copy(all, batch.parts[0].recv, size * sizeof own, n->own));
    HOTBED_TRY(hotbed_stream_sync(n->own));
    return own.data == NULL ? HOTBED_OK : hotbed_window_check_notices(&n->base, bytes, all);
}

static uint64_t round_up(uint64_t bytes, uint64_t to) {
    return (bytes + to - 1) / to * to;
}

static hotbed_status window_alloc(nccl_comm *n, uint64_t total, nccl_window *w) {
    HOTBED_TRY(hotbed_memory_alloc(
        n->own, HOTBED_MEMORY_DEVICE, n->base.size * sizeof(void *), NULL, &w->parts));
    int callers = enter_gpu(n); /* ncclMemAlloc() allocates on the current GPU */
    ncclResult_t allocated = ncclMemAlloc(&w->data, total);
    (void)cudaSetDevice(callers);
    if (allocated != ncclSuccess) {
        (void)cudaGetLastError();
        w->data = NULL;
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a window of %" PRIu64 " bytes", total);
    }
    HOTBED_TRY(hotbed_fill(w->data, 0, total, n->own));
    return hotbed_stream_finish(n->own);
}

/* Register the window; all ranks have allocated their memory. NCCL 2.28 has no symmetric memory for
 * one rank, whose part is the memory itself. */
static hotbed_status window_register(nccl_comm *n, uint64_t total, nccl_window *w) {
    if (n->base.size == 1) {
        HOTBED_TRY(hotbed_copy(w->parts.data, &w->data, sizeof w->data, n->own));
        return hotbed_stream_finish(n->own);
    }
    pthread_mutex_lock(&n->submit);
    hotbed_status status = n->nccl == NULL ? hotbed_comm_fail(&n->base) : HOTBED_OK;
    if (status == HOTBED_OK)
        status = CHECK_NCCL(
            ncclCommWindowRegister, n->nccl, w->data, total, &w->registered,
            NCCL_WIN_COLL_SYMMETRIC);
    uint32_t neighbours =
        status == HOTBED_OK ? hotbed_comm_gpu_neighbours(n->nccl, w->registered) : 0;
    pthread_mutex_unlock(&n->submit);
    HOTBED_TRY(status);
    if (neighbours != n->base.size)
        return hotbed_fail_rank_limit(
            HOTBED_ERR_UNSUPPORTED, n->base.rank, NULL, neighbours, n->base.size,
            "windows need all %u ranks in one NVLink domain with symmetric memory; rank %u has "
            "%u",
            n->base.size, n->base.rank, neighbours);
    HOTBED_TRY(hotbed_comm_gpu_parts(w->registered, n->base.size, w->parts.data, n->own));
    return hotbed_stream_finish(n->own);
}

static hotbed_status window_create(
    hotbed_comm *comm, uint64_t bytes, hotbed_stream *stream, hotbed_window **out) {
    nccl_comm *n = nccl_of(comm);
    uint64_t offset = round_up(bytes, FLAG_ALIGN);
    uint64_t total = round_up(offset + (comm->size + 1) * sizeof(uint64_t), WINDOW_ALIGN);
    (void)stream; /* any stream of the same GPU; the memory is ready for all */
    nccl_window *w = hotbed_new(sizeof *w);
    hotbed_status status = w == NULL ? hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a window")
                                     : window_alloc(n, total, w);
    hotbed_status agreed = agree(n, total, status == HOTBED_OK ? w : NULL);
    HOTBED_THEN(status, agreed);
    HOTBED_THEN(status, window_register(n, total, w));
    if (w == NULL)
        return status;
    w->base.comm = comm;
    w->base.data = w->data;
    w->base.parts = w->parts.data;
    w->flags = (hotbed_comm_flags){
        .parts = w->parts.data,
        .offset = offset,
        .rank = comm->rank,
        .size = comm->size,
    };
    if (status == HOTBED_OK)
        *out = &w->base;
    else
        window_destroy(&w->base);
    return status;
}

static hotbed_status window_barrier(hotbed_window *base, hotbed_stream *stream) {
    nccl_window *w = (nccl_window *)base;
    nccl_comm *n = nccl_of(base->comm);
    pthread_mutex_lock(&n->submit); /* one at a time, also with respect to NCCL's own operations */
    hotbed_status status = take_turn(n, stream);
    HOTBED_THEN(status, hotbed_comm_gpu_barrier(&n->gpu, &w->flags, stream));
    HOTBED_THEN(status, end_turn(n, stream));
    pthread_mutex_unlock(&n->submit);
    return fail_submit(n, status);
}

/* --- destroy -------------------------------------------------------------------------------- */

static void destroy(hotbed_comm *comm) {
    nccl_comm *n = nccl_of(comm);
    __atomic_store_n(&n->stop, 1, __ATOMIC_RELEASE);
    if (n->watched)
        (void)pthread_join(n->watcher, NULL);
    if (n->link != NULL)
        (void)hotbed_link_close(
            n->link,
            n->gpu.words == NULL ? 0 : __atomic_load_n(&n->gpu.words->completed, __ATOMIC_ACQUIRE));
    if (n->nccl != NULL)
        end_nccl(n);
    hotbed_event_destroy(n->passed);
    hotbed_memory_free(&n->dummy);
    hotbed_memory_free(&n->count);
    hotbed_memory_free(&n->words);
    hotbed_stream_destroy(n->own);
    pthread_mutex_destroy(&n->submit);
}

static const hotbed_comm_ops ops = {
    .transport = HOTBED_TRANSPORT_NCCL,
    .check_stream = check_stream,
    .enqueue = enqueue,
    .announce = announce,
    .destroy = destroy,
    .window_create = window_create,
    .window_destroy = window_destroy,
    .window_barrier = window_barrier,
    .bare = bare,
};

/* --- create: NCCL ----------------------------------------------------------------------------- */

/* ncclCommInitRank waits for the other ranks without a time limit, so it runs on a thread of its
 * own. The caller frees this struct, or, if the caller has stopped waiting, the thread does. */
typedef struct init {
    pthread_mutex_t lock;
    pthread_cond_t done_or_left;
    bool done, left;
    int device;
    uint32_t rank, size;
    ncclUniqueId id;
    ncclComm_t nccl;
    ncclResult_t result;
} init;

static void init_free(init *i) {
    pthread_cond_destroy(&i->done_or_left);
    pthread_mutex_destroy(&i->lock);
    hotbed_delete(i);
}

static void *init_main(void *argument) {
    init *i = argument;
    (void)cudaSetDevice(i->device);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    ncclComm_t nccl = NULL;
    ncclResult_t result = ncclCommInitRankConfig(&nccl, (int)i->size, i->id, (int)i->rank, &config);
    pthread_mutex_lock(&i->lock);
    i->nccl = nccl;
    i->result = result;
    i->done = true;
    bool left = i->left;
    pthread_cond_signal(&i->done_or_left);
    pthread_mutex_unlock(&i->lock);
    if (left) {
        if (nccl != NULL)
            (void)ncclCommAbort(nccl);
        init_free(i);
    }
    return NULL;
}

static hotbed_status start_nccl(nccl_comm *n, const ncclUniqueId *id, uint64_t until) {
    init *i = hotbed_new(sizeof *i);
    HOTBED_TRY_MEMORY(i, "the start of NCCL");
    pthread_mutex_init(&i->lock, NULL);
    hotbed_cond_init(&i->done_or_left);
    i->device = n->device;
    i->rank = n->base.rank;
    i->size = n->base.size;
    i->id = *id;
    pthread_t thread;
    if (hotbed_thread_start(&thread, init_main, i) != 0) {
        init_free(i);
        return hotbed_fail(HOTBED_ERR_MEMORY, "no thread to start NCCL");
    }
    pthread_mutex_lock(&i->lock);
    while (!i->done && hotbed_monotonic_now() < until && !hotbed_comm_has_failed(&n->base)) {
        hotbed_link_poll(n->link, &n->base, 0); /* a rank may die at this point */
        uint64_t soon = hotbed_monotonic_now() + (uint64_t)LOOK_MS * 1000000U;
        (void)hotbed_cond_wait(&i->done_or_left, &i->lock, soon);
    }
    bool done = i->done;
    i->left = true;
    pthread_mutex_unlock(&i->lock);
    (void)(done ? pthread_join(thread, NULL) : pthread_detach(thread));
    if (!done && hotbed_comm_has_failed(&n->base))
        return hotbed_comm_fail(&n->base);
    if (!done)
        return hotbed_fail_bound(
            HOTBED_ERR_COMM, n->base.deadline_ms,
            "ncclCommInitRankConfig: the %u ranks did not all come within %u ms", n->base.size,
            n->base.deadline_ms);
    n->nccl = i->nccl;
    ncclResult_t result = i->result;
    init_free(i);
    return check_nccl(result, "ncclCommInitRankConfig");
}

/* --- create --------------------------------------------------------------------------------- */

static hotbed_status alloc(nccl_comm *n) {
    HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_CUDA, n->device, &n->own));
    HOTBED_TRY(hotbed_event_create(n->own, &n->passed));
    HOTBED_TRY(hotbed_memory_alloc(
        n->own, HOTBED_MEMORY_PINNED, sizeof(hotbed_comm_words), NULL, &n->words));
    memset(n->words.data, 0, sizeof(hotbed_comm_words));
    n->gpu.words = n->words.data;
    HOTBED_TRY(
        hotbed_memory_alloc(n->own, HOTBED_MEMORY_DEVICE, sizeof(uint64_t), NULL, &n->count));
    n->gpu.count = n->count.data;
    size_t dummy = (size_t)n->base.size * 2 * DUMMY_BYTES;
    HOTBED_TRY(hotbed_memory_alloc(n->own, HOTBED_MEMORY_DEVICE, dummy, NULL, &n->dummy));
    HOTBED_TRY(hotbed_fill(n->count.data, 0, n->count.bytes, n->own));
    HOTBED_TRY(hotbed_fill(n->dummy.data, 0, n->dummy.bytes, n->own));
    return hotbed_stream_finish(n->own);
}

/* The first barrier connects all GPUs and loads the kernels, so that no later call has to. */
static hotbed_status start(nccl_comm *n, const ncclUniqueId *id, uint64_t until) {
    HOTBED_TRY(start_nccl(n, id, until));
    n->watched = hotbed_thread_start(&n->watcher, watch, n) == 0;
    if (!n->watched)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no thread to watch over NCCL");
    hotbed_comm_batch batch = hotbed_comm_batch_of(&n->base, HOTBED_COMM_BARRIER, 0);
    HOTBED_TRY(enqueue(&n->base, &batch, n->own));
    return hotbed_stream_sync(n->own);
}

static hotbed_status create(
    const hotbed_comm_options *options, int device, hotbed_comm *bootstrap, uint32_t rank,
    uint32_t size, hotbed_link_place *place, hotbed_comm **out) {
    hotbed_comm *comm = NULL;
    HOTBED_TRY(hotbed_comm_new(sizeof(nccl_comm), &ops, rank, size, options, &comm));
    nccl_comm *n = nccl_of(comm);
    pthread_mutex_init(&n->submit, NULL);
    n->device = device;
    const uint64_t until = hotbed_comm_deadline(comm);
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    int listener = -1;
    hotbed_status status = alloc(n);
    if (status == HOTBED_OK && rank == 0)
        status = CHECK_NCCL(ncclGetUniqueId, &id);
    /* A rank that has failed makes this call too, so that the others do not wait for it. It skips
     * the rendezvous. */
    hotbed_status listening = hotbed_link_find(bootstrap, rank, place, &listener);
    HOTBED_THEN(status, listening);
    if (status == HOTBED_OK)
        status = hotbed_link_open(rank, size, place, listener, &id, sizeof id, until, &n->link);
    else
        hotbed_link_unlisten(listener);
    HOTBED_THEN(status, start(n, &id, until));
    if (status != HOTBED_OK)
        hotbed_comm_destroy(comm);
    else
        *out = comm;
    return status;
}

hotbed_status hotbed_comm_create_nccl(
    const hotbed_comm_options *options, int device, hotbed_comm *bootstrap, hotbed_comm **out) {
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(hotbed_comm_probe_nccl());
    hotbed_link_place place;
    memset(&place, 0, sizeof place);
    uint32_t rank = 0, size = 1;
    HOTBED_TRY(hotbed_link_read(bootstrap, &rank, &size, &place));
    return create(options, device, bootstrap, rank, size, &place, out);
}
