/* dist/comm/comm_threads.c - ranks that are threads of one process: they copy from each other's memory.
 *
 * A batch has two barriers on the worker threads of the ranks' streams. At the first, each rank
 * has published its batch, and the batches are compared; then each rank copies from the memory of
 * the others. At the second, all have copied, and memory may be written again.
 *
 * On CUDA the callers have these two barriers instead, and between them each rank's stream waits
 * for the events of the other ranks. So several ranks can run on one GPU. */
#include "dist/comm/comm.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/stream.h"
#include "base/thread.h"

#include <string.h>

/* The state of a rank that other ranks read. */
typedef struct member {
    const hotbed_comm *comm;
    const hotbed_comm_batch *batch; /* batch of run `arrived`, valid until all have finished it */
    uint64_t arrived, finished;     /* numbers of runs */
    bool left;
    hotbed_event *ready, *copied; /* CUDA: its stream before the batch, and after its copies */
} member;

typedef struct group {
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t moved; /* all have arrived or finished, or the communicator failed */
    uint32_t size;
    uint32_t references;
    uint32_t copying;        /* ranks that are reading other ranks' memory */
    uint32_t failed;         /* atomic; whether `fault` is set */
    hotbed_comm_fault fault; /* of the first rank that failed */
    member members[];
} group;

typedef struct threads_comm {
    hotbed_comm base;
    group *group;
    hotbed_stream *stream; /* stream of the current CUDA call; NULL: it runs on a worker thread */
} threads_comm;

static group *group_of(const hotbed_comm *comm) {
    return ((const threads_comm *)comm)->group;
}

static hotbed_stream *stream_of(const hotbed_comm *comm) {
    return ((const threads_comm *)comm)->stream;
}

/* --- barriers: under the lock ------------------------------------------------------------------- */

/* Copy the reason of the first rank that failed. */
static void adopt(hotbed_comm *comm, const group *g) {
    (void)hotbed_comm_adopt_fault(comm, &g->fault);
}

static void fail_group(hotbed_comm *comm, group *g) {
    if (g->fault.reason == HOTBED_COMM_WELL) {
        g->fault = comm->fault;
        __atomic_store_n(&g->failed, 1, __ATOMIC_RELAXED); /* a hint only: the lock decides */
    }
    pthread_cond_broadcast(&g->moved);
}

/* The first rank that has not reached run `number`; `size` if all have. */
static uint32_t first_missing(const group *g, uint64_t number, bool finished) {
    uint32_t p = 0;
    while (p < g->size && (finished ? g->members[p].finished : g->members[p].arrived) >= number)
        p++;
    return p;
}

/* Wait until all ranks have arrived at this rank's run, or, if `finished`, have finished it. Each of
 * the two waits has the whole deadline: the last rank to arrive begins to copy only then. A rank
 * that failed may free its memory after it has arrived. Failures after all have finished do not
 * concern this run. */
static bool meet(hotbed_comm *comm, group *g, bool finished) {
    const uint64_t until = hotbed_comm_deadline(comm);
    for (bool in_time = true;;) {
        uint32_t missing = first_missing(g, comm->runs, finished);
        if (missing == g->size && (finished || g->fault.reason == HOTBED_COMM_WELL)) {
            pthread_cond_broadcast(&g->moved);
            return true;
        }
        if (g->fault.reason != HOTBED_COMM_WELL) {
            adopt(comm, g);
            return false;
        }
        const hotbed_comm_batch *batch = g->members[comm->rank].batch;
        if (g->members[missing].left)
            (void)hotbed_comm_record_fault(
                comm, HOTBED_COMM_LEFT, (int32_t)missing, comm->runs,
                "%s: rank %u destroyed its communicator before",
                hotbed_comm_title_of(comm->runs, batch).text, missing);
        else if (!in_time)
            (void)hotbed_comm_record_fault(
                comm, HOTBED_COMM_DEADLINE, (int32_t)missing, comm->runs,
                "%s: rank %u did not %s within %u ms", hotbed_comm_title_of(comm->runs, batch).text,
                missing, finished ? "finish" : "come", comm->deadline_ms);
        if (hotbed_comm_has_failed(comm)) {
            fail_group(comm, g);
            return false;
        }
        in_time = hotbed_cond_wait(&g->moved, &g->lock, until);
    }
}

/* --- batches -------------------------------------------------------------------------------- */

static bool compare_all(hotbed_comm *comm, const group *g, const hotbed_comm_batch *batch) {
    for (uint32_t p = 0; p < g->size; p++) {
        hotbed_comm_header theirs;
        hotbed_comm_header_of(g->members[p].comm, g->members[p].batch, comm->rank, &theirs);
        if (!hotbed_comm_check_header(comm, batch, p, &theirs))
            return false;
    }
    return true;
}

static hotbed_status copy(void *to, const void *from, uint64_t bytes, hotbed_stream *stream) {
    if (stream != NULL)
        return hotbed_copy(to, from, bytes, stream);
    memcpy(to, from, bytes);
    return HOTBED_OK;
}

static hotbed_status copy_all(
    const hotbed_comm *comm, const group *g, const hotbed_comm_batch *batch) {
    hotbed_stream *stream = stream_of(comm);
    for (uint32_t k = 0; k < g->size; k++) {
        uint32_t p =
            (comm->rank + k) % g->size; /* so that not all ranks read from the same one at once */
        const member *from = &g->members[p];
        if (stream != NULL)
            HOTBED_TRY(hotbed_stream_wait(stream, from->ready));
        for (uint32_t i = 0; i < batch->num_parts; i++) {
            uint64_t bytes;
            const uint8_t *data =
                hotbed_comm_sends(from->comm, &from->batch->parts[i], comm->rank, &bytes);
            uint8_t *to = hotbed_comm_receives(comm, &batch->parts[i], p, &bytes);
            if (bytes > 0 && to != data)
                HOTBED_TRY(copy(to, data, bytes, stream));
        }
    }
    return stream == NULL ? HOTBED_OK : hotbed_event_record(g->members[comm->rank].copied, stream);
}

/* Between the two barriers. */
static bool compare_and_copy(hotbed_comm *comm, const group *g, const hotbed_comm_batch *batch) {
    return compare_all(comm, g, batch) &&
           (copy_all(comm, g, batch) == HOTBED_OK ||
            hotbed_comm_record_fault(
                comm, HOTBED_COMM_TRANSPORT, (int32_t)comm->rank, comm->runs, "rank %u: %s",
                comm->rank, hotbed_last_error()));
}

static bool run(hotbed_comm *comm, const hotbed_comm_batch *batch) {
    group *g = group_of(comm);
    member *me = &g->members[comm->rank];
    pthread_mutex_lock(&g->lock);
    me->batch = batch;
    me->arrived = comm->runs;
    bool well = meet(comm, g, false);
    if (well) {
        g->copying++;
        pthread_mutex_unlock(&g->lock);
        well = compare_and_copy(comm, g, batch);
        pthread_mutex_lock(&g->lock);
        g->copying--;
        if (well) {
            me->finished = comm->runs;
            well = meet(comm, g, true);
        } else {
            fail_group(comm, g);
        }
    }
    if (!well) { /* no rank may read this rank's memory once it has returned */
        pthread_cond_broadcast(&g->moved);
        while (g->copying > 0)
            pthread_cond_wait(&g->moved, &g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return well;
}

/* On CUDA: the calls of all ranks wait for each other here. */
static hotbed_status enqueue(
    hotbed_comm *comm, const hotbed_comm_batch *batch, hotbed_stream *stream) {
    group *g = group_of(comm);
    member *me = &g->members[comm->rank];
    if (hotbed_stream_recording(stream))
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED,
            "a communicator of threads cannot be recorded in a graph of a CUDA stream");
    if (me->ready == NULL)
        HOTBED_TRY(hotbed_event_create(stream, &me->ready));
    if (me->copied == NULL)
        HOTBED_TRY(hotbed_event_create(stream, &me->copied));
    HOTBED_TRY(hotbed_stream_wait(
        stream, me->copied)); /* after the previous operation, on whatever stream */
    HOTBED_TRY(hotbed_event_record(me->ready, stream));
    ((threads_comm *)comm)->stream = stream;
    bool well = hotbed_comm_run_now(comm, batch);
    ((threads_comm *)comm)->stream = NULL;
    if (!well)
        return hotbed_comm_fail(comm);
    for (uint32_t p = 0; p < g->size;
         p++) /* later work of this stream may overwrite what the others read */
        HOTBED_TRY(hotbed_stream_wait(stream, g->members[p].copied));
    return HOTBED_OK;
}

static hotbed_status check_stream(const hotbed_comm *comm, const hotbed_stream *stream) {
    return HOTBED_OK;
}

static void poll(hotbed_comm *comm) {
    group *g = group_of(comm);
    if (__atomic_load_n(&g->failed, __ATOMIC_RELAXED) == 0)
        return;
    pthread_mutex_lock(&g->lock);
    adopt(comm, g);
    pthread_mutex_unlock(&g->lock);
}

static void spread(hotbed_comm *comm) {
    group *g = group_of(comm);
    pthread_mutex_lock(&g->lock);
    fail_group(comm, g);
    pthread_mutex_unlock(&g->lock);
}

/* --- create and destroy ----------------------------------------------------------------------- */

static void drop_group(group *g, uint32_t references) {
    pthread_mutex_lock(&g->lock);
    g->references -= references;
    bool last = g->references == 0;
    pthread_mutex_unlock(&g->lock);
    if (!last)
        return;
    for (uint32_t p = 0; p < g->size; p++) { /* other ranks may have waited for them until now */
        hotbed_event_destroy(g->members[p].ready);
        hotbed_event_destroy(g->members[p].copied);
    }
    pthread_cond_destroy(&g->moved);
    pthread_mutex_destroy(&g->lock);
    hotbed_delete(g);
}

static void destroy(hotbed_comm *comm) {
    group *g = group_of(comm);
    pthread_mutex_lock(&g->lock);
    g->members[comm->rank].left = true;
    pthread_cond_broadcast(&g->moved);
    pthread_mutex_unlock(&g->lock);
    drop_group(g, 1);
}

static const hotbed_comm_ops ops = {
    .transport = HOTBED_TRANSPORT_THREADS,
    .check_stream = check_stream,
    .enqueue = enqueue,
    .run = run,
    .poll = poll,
    .spread = spread,
    .destroy = destroy,
    .window_create = hotbed_comm_local_window_create,
    .window_destroy = hotbed_comm_local_window_destroy,
};

static hotbed_status create_member(
    group *g, uint32_t rank, const hotbed_comm_options *options, hotbed_comm **out) {
    HOTBED_TRY(hotbed_comm_new(sizeof(threads_comm), &ops, rank, g->size, options, out));
    ((threads_comm *)*out)->group = g;
    g->members[rank].comm = *out;
    return HOTBED_OK;
}

hotbed_status hotbed_comm_create_threads(
    const hotbed_comm_options *options, uint32_t n, hotbed_comm **comms) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_comm_create_threads", "comms", comms));
    if (n < 1 || n > HOTBED_COMM_RANKS_MAX)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "n", n, hotbed_bound(n, 1, HOTBED_COMM_RANKS_MAX),
            "%u ranks are not in [1, %d]", n, HOTBED_COMM_RANKS_MAX);
    memset(comms, 0, n * sizeof *comms);
    group *g = hotbed_new(sizeof *g + n * sizeof g->members[0]);
    HOTBED_TRY_MEMORY(g, "%u ranks", n);
    pthread_mutex_init(&g->lock, NULL);
    hotbed_cond_init(&g->moved);
    g->size = n;
    g->references = n;
    for (uint32_t r = 0; r < n; r++) {
        hotbed_status status = create_member(g, r, options, &comms[r]);
        if (status == HOTBED_OK)
            continue;
        for (uint32_t p = 0; p < r; p++) {
            hotbed_comm_destroy(comms[p]);
            comms[p] = NULL;
        }
        drop_group(g, n - r);
        return status;
    }
    return HOTBED_OK;
}
