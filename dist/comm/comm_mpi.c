/* dist/comm/comm_mpi.c - ranks that are processes of an MPI job; the only file that includes mpi.h.
 *
 * For each batch, ranks exchange a header with which they compare what they do, and then the bytes
 * of all parts, one after the other, in chunks. All messages are non-blocking and go through the
 * communicator's own buffers: MPI cannot cancel the requests of a failed operation, and they must
 * not touch the caller's memory. While nothing moves, the thread checks the link for ranks that
 * have died or failed. */
#include "dist/comm/comm_link.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/host_launch.h"
#include "base/stream.h"

#include <inttypes.h>
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_BYTES = 256 * 1024, /* requests: two per rank */
    IDLE_LOOKS = 64,          /* idle rounds between two checks of link and clock */
    DYING_MS = 200 /* an MPI error is often a death that the link reports a little later */
};

/* Progress of the transfer to or from another rank. */
typedef struct cursor {
    uint32_t part;
    uint64_t done; /* bytes of `part` that have moved */
    size_t bytes;  /* of the current chunk */
    bool started;  /* the header has been exchanged */
    bool done_all;
    MPI_Request request;
} cursor;

/* Memory that MPI reads and writes for one rank. */
typedef struct buffers {
    hotbed_comm_header to, from;
    uint8_t send[CHUNK_BYTES], recv[CHUNK_BYTES];
} buffers;

typedef struct peer {
    cursor send, recv;
    buffers *buffers;
} peer;

typedef struct mpi_comm {
    hotbed_comm base;
    struct mpi_comm *next; /* in `live` */
    uint64_t completed;    /* atomic; batches that have succeeded */
    MPI_Comm mpi;          /* MPI_COMM_NULL: not created yet */
    hotbed_link *link;
    buffers *buffers; /* [size] */
    hotbed_link_place place;
    peer peers[];
} mpi_comm;

/* How the communicators of this process have ended. */
typedef enum ending {
    ENDING_WELL = 0,
    ENDING_DOUBTFUL = 1, /* a rank may fail to reach MPI_Finalize */
    ENDING_DEAD = 2,     /* a rank will not reach MPI_Finalize */
} ending;
static uint32_t worst; /* atomic; an ending */
static uint32_t
    patience_ms; /* atomic; the longest deadline of the communicators that ended in doubt */

static void note_ending(const hotbed_comm *comm, ending how) {
    if (__atomic_load_n(&patience_ms, __ATOMIC_RELAXED) < comm->deadline_ms)
        __atomic_store_n(&patience_ms, comm->deadline_ms, __ATOMIC_RELAXED);
    if (__atomic_load_n(&worst, __ATOMIC_RELAXED) < (uint32_t)how)
        __atomic_store_n(&worst, (uint32_t)how, __ATOMIC_RELAXED);
}

/* Communicators that are neither destroyed nor announced to have left. */
static mpi_comm *live;
static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER; /* guards `live` and `next` */

static void add_live(mpi_comm *m) {
    pthread_mutex_lock(&live_lock);
    m->next = live;
    live = m;
    pthread_mutex_unlock(&live_lock);
}

static void remove_live(const mpi_comm *m) {
    pthread_mutex_lock(&live_lock);
    mpi_comm **at = &live;
    while (*at != NULL && *at != m)
        at = &(*at)->next;
    if (*at != NULL)
        *at = m->next;
    pthread_mutex_unlock(&live_lock);
}

/* Note the end of a communicator that has failed. `lost`: a rank was seen to have died. */
static void note_failure(const hotbed_comm *comm, bool lost) {
    if (hotbed_comm_has_failed(comm))
        note_ending(
            comm,
            lost || comm->fault.reason == HOTBED_COMM_TRANSPORT ? ENDING_DEAD : ENDING_DOUBTFUL);
}

/* Tell the other ranks that this process leaves the communicators that it has not destroyed. They
 * would otherwise wait for it until their deadline while it waits for them in MPI_Finalize. */
static void leave_all(void) {
    pthread_mutex_lock(&live_lock);
    for (mpi_comm *m = live; m != NULL; m = m->next) {
        hotbed_link_poll(m->link, &m->base, 0);
        uint64_t completed = __atomic_load_n(&m->completed, __ATOMIC_RELAXED);
        note_failure(&m->base, hotbed_link_leave(m->link, completed));
    }
    live = NULL;
    pthread_mutex_unlock(&live_lock);
}

/* --- MPI itself ----------------------------------------------------------------------------- */

/* At the end of the process. MPI_Finalize waits for all ranks, whatever has become of them; if that
 * is in doubt, first check whether they come. */
static void finalize(void) {
    int finalized = 0, here = 0;
    if (hotbed_forked() || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized)
        return;
    leave_all();
    uint32_t how = __atomic_load_n(&worst, __ATOMIC_RELAXED);
    if (how == ENDING_DEAD)
        return;
    uint64_t until = hotbed_monotonic_now() +
                     __atomic_load_n(&patience_ms, __ATOMIC_RELAXED) * (uint64_t)1000000U;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS)
        return;
    while (!here) {
        if (MPI_Test(&request, &here, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
            (how == ENDING_DOUBTFUL && hotbed_monotonic_now() > until))
            return;
        sched_yield();
    }
    (void)MPI_Finalize();
}

static int finalizing(MPI_Comm self, int key, void *value, void *extra) {
    leave_all();
    return MPI_SUCCESS;
}

/* Have MPI call finalizing() as MPI_Finalize begins, also if the program calls it: MPI_Finalize
 * first deletes the attributes of MPI_COMM_SELF. */
static void watch_finalize(void) {
    static bool watched;
    int key = MPI_KEYVAL_INVALID;
    if (!watched &&
        MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, finalizing, &key, NULL) == MPI_SUCCESS)
        watched = MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL) == MPI_SUCCESS;
}

/* MPI's own words for an error of its calls. */
typedef struct mpi_reason {
    char text[MPI_MAX_ERROR_STRING + 1];
} mpi_reason;

static mpi_reason reason_of(int error) {
    mpi_reason reason = {.text = ""};
    int length = 0;
    (void)MPI_Error_string(error, reason.text, &length);
    return reason;
}

static hotbed_status fail_mpi(const char *call, int error) {
    mpi_reason reason = reason_of(error);
    return hotbed_fail(HOTBED_ERR_COMM, "%s: %s", call, reason.text);
}

/* Make sure that MPI is initialized with threads, by us or by the program. */
static hotbed_status start_mpi(void) {
    int initialized = 0, finalized = 0, threads = MPI_THREAD_SINGLE;
    (void)MPI_Initialized(&initialized);
    (void)MPI_Finalized(&finalized);
    if (finalized)
        return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "MPI was finalized in this process");
    if (initialized) {
        (void)MPI_Query_thread(&threads);
    } else {
        int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &threads);
        if (error != MPI_SUCCESS)
            return fail_mpi("MPI_Init_thread", error);
        (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        (void)atexit(finalize);
    }
    if (threads < MPI_THREAD_MULTIPLE)
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED,
            "MPI was initialized with thread level %d, but streams need MPI_THREAD_MULTIPLE",
            threads);
    watch_finalize();
    return HOTBED_OK;
}

hotbed_status hotbed_comm_probe_mpi(void) {
    return HOTBED_OK;
}

/* Wait until the request is done, at most until the deadline of a create, which has begun. */
static hotbed_status finish(
    const mpi_comm *m, const char *call, int error, MPI_Request *request, uint64_t until) {
    int done = 0;
    while (error == MPI_SUCCESS && !done && hotbed_monotonic_now() < until) {
        error = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        sched_yield();
    }
    if (error != MPI_SUCCESS)
        return fail_mpi(call, error);
    if (!done)
        return hotbed_fail_bound(
            HOTBED_ERR_COMM, m->base.deadline_ms,
            "%s: rank %u of %u waited up to %u ms, but not all ranks of the MPI job created a "
            "communicator",
            call, m->base.rank, m->base.size, m->base.deadline_ms);
    return HOTBED_OK;
}

/* --- batches -------------------------------------------------------------------------------- */

static mpi_comm *mpi_of(hotbed_comm *comm) {
    return (mpi_comm *)comm;
}

static bool fail_call(
    hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p, const char *call, int error) {
    hotbed_link_poll(mpi_of(comm)->link, comm, DYING_MS);
    if (hotbed_comm_has_failed(comm))
        return false;
    (void)!fail_mpi(call, error);
    (void)hotbed_comm_record_fault(
        comm, HOTBED_COMM_TRANSPORT, (int32_t)p, comm->runs, "%s: %s",
        hotbed_comm_title_of(comm->runs, batch).text, hotbed_last_error());
    return false;
}

/* Copy the next chunk for or from rank p between the caller's memory and the chunk buffer; with
 * `copy` false, return only its size. 0: no bytes remain. */
static size_t move_chunk(
    hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p, cursor *at, uint8_t *chunk,
    bool sends, bool copy) {
    size_t filled = 0;
    cursor c = *at;
    while (c.part < batch->num_parts && filled < CHUNK_BYTES) {
        uint64_t bytes;
        const uint8_t *from = NULL;
        uint8_t *to = NULL;
        if (sends)
            from = hotbed_comm_sends(comm, &batch->parts[c.part], p, &bytes);
        else
            to = hotbed_comm_receives(comm, &batch->parts[c.part], p, &bytes);
        uint64_t rest = bytes - c.done;
        size_t n = rest < CHUNK_BYTES - filled ? (size_t)rest : CHUNK_BYTES - filled;
        if (copy && n > 0) {
            if (sends)
                memcpy(chunk + filled, from + c.done, n);
            else
                memcpy(to + c.done, chunk + filled, n);
        }
        filled += n;
        c.done += n;
        if (c.done == bytes) {
            c.part++;
            c.done = 0;
        }
    }
    if (copy)
        *at = c;
    return filled;
}

/* Advance what is sent to rank p, if possible. False: it failed. */
static bool step_send(hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p, bool *moved) {
    peer *with = &mpi_of(comm)->peers[p];
    cursor *c = &with->send;
    int done = 0;
    int error = MPI_Test(&c->request, &done, MPI_STATUS_IGNORE);
    if (error == MPI_SUCCESS && done) {
        *moved = true;
        c->bytes = move_chunk(comm, batch, p, c, with->buffers->send, true, true);
        c->done_all = c->bytes == 0;
        if (!c->done_all)
            error = MPI_Isend(
                with->buffers->send, (int)c->bytes, MPI_BYTE, (int)p, 0, mpi_of(comm)->mpi,
                &c->request);
    }
    return error == MPI_SUCCESS || fail_call(comm, batch, p, "sending", error);
}

static bool step_recv(hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p, bool *moved) {
    peer *with = &mpi_of(comm)->peers[p];
    cursor *c = &with->recv;
    int done = 0;
    int error = MPI_Test(&c->request, &done, MPI_STATUS_IGNORE);
    if (error == MPI_SUCCESS && done) {
        *moved = true;
        if (!c->started) {
            if (!hotbed_comm_check_header(comm, batch, p, &with->buffers->from))
                return false;
            c->started = true;
        } else {
            (void)move_chunk(comm, batch, p, c, with->buffers->recv, false, true);
        }
        c->bytes = move_chunk(comm, batch, p, c, NULL, false, false);
        c->done_all = c->bytes == 0;
        if (!c->done_all)
            error = MPI_Irecv(
                with->buffers->recv, (int)c->bytes, MPI_BYTE, (int)p, 0, mpi_of(comm)->mpi,
                &c->request);
    }
    return error == MPI_SUCCESS || fail_call(comm, batch, p, "receiving", error);
}

static bool start_peer(hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p) {
    mpi_comm *m = mpi_of(comm);
    peer *with = &m->peers[p];
    with->send = with->recv = (cursor){.request = MPI_REQUEST_NULL};
    hotbed_comm_header_of(comm, batch, p, &with->buffers->to);
    int error = MPI_Irecv(
        &with->buffers->from, (int)sizeof with->buffers->from, MPI_BYTE, (int)p, 0, m->mpi,
        &with->recv.request);
    if (error == MPI_SUCCESS)
        error = MPI_Isend(
            &with->buffers->to, (int)sizeof with->buffers->to, MPI_BYTE, (int)p, 0, m->mpi,
            &with->send.request);
    return error == MPI_SUCCESS || fail_call(comm, batch, p, "starting", error);
}

static bool waits(hotbed_comm *comm, uint32_t p) {
    const peer *with = &mpi_of(comm)->peers[p];
    return !with->send.done_all || !with->recv.done_all;
}

static bool transfer(hotbed_comm *comm, const hotbed_comm_batch *batch) {
    mpi_comm *m = mpi_of(comm);
    uint64_t until = hotbed_comm_deadline(comm);
    for (uint32_t k = 1; k < comm->size; k++) /* so that not all ranks send to the same one first */
        if (!start_peer(comm, batch, (comm->rank + k) % comm->size))
            return false;
    hotbed_comm_copy_own(comm, batch);
    uint32_t idle = 0;
    for (bool busy = comm->size > 1; busy;) {
        bool moved = false;
        busy = false;
        for (uint32_t p = 0; p < comm->size; p++) {
            peer *with = &m->peers[p];
            if (p == comm->rank)
                continue;
            if (!with->send.done_all && !step_send(comm, batch, p, &moved))
                return false;
            if (!with->recv.done_all && !step_recv(comm, batch, p, &moved))
                return false;
            busy = busy || !with->send.done_all || !with->recv.done_all;
        }
        if (moved) {
            idle = 0;
            until = hotbed_comm_deadline(comm);
        } else if (busy) {
            if (++idle % IDLE_LOOKS == 0 &&
                !hotbed_link_goes_on(mpi_of(comm)->link, comm, batch, until, waits))
                return false;
            sched_yield();
        }
    }
    return true;
}

static bool run(hotbed_comm *comm, const hotbed_comm_batch *batch) {
    if (!transfer(comm, batch))
        return false;
    __atomic_store_n(&mpi_of(comm)->completed, comm->runs, __ATOMIC_RELAXED);
    return true;
}

typedef struct bare_args {
    hotbed_comm *comm;
    int bytes;
    const void *send;
    void *recv;
} bare_args;

static void bare_body(const void *args, uint64_t begin, uint64_t end) {
    const bare_args *a = args;
    (void)begin, (void)end; /* one call */
    int error = MPI_Alltoall(
        a->send, a->bytes, MPI_BYTE, a->recv, a->bytes, MPI_BYTE, mpi_of(a->comm)->mpi);
    if (error == MPI_SUCCESS)
        return;
    mpi_reason reason = reason_of(error);
    (void)hotbed_comm_record_fault(
        a->comm, HOTBED_COMM_TRANSPORT, -1, 0, "MPI_Alltoall: %s", reason.text);
}

static hotbed_status bare(
    hotbed_comm *comm, uint64_t bytes, const void *send, void *recv, hotbed_stream *stream) {
    if (bytes > INT_MAX)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "bytes", bytes, INT_MAX,
            "MPI_Alltoall takes parts of up to %d bytes, not %" PRIu64, INT_MAX, bytes);
    bare_args args = {comm, (int)bytes, send, recv};
    return hotbed_host_launch(stream, 1, 0, bare_body, &args, sizeof args);
}

static void look(hotbed_comm *comm) {
    hotbed_link_poll(mpi_of(comm)->link, comm, 0);
}

static void announce(hotbed_comm *comm) {
    hotbed_link_announce(mpi_of(comm)->link, comm);
}

/* --- create and destroy ----------------------------------------------------------------------- */

/* Whether MPI is done with all buffers; received bytes are no longer of interest. */
static bool withdraw(mpi_comm *m) {
    bool done = true;
    for (uint32_t p = 0; p < m->base.size; p++) {
        MPI_Request *requests[] = {&m->peers[p].send.request, &m->peers[p].recv.request};
        for (int i = 0; i < 2; i++) {
            int passed = 1;
            if (*requests[i] == MPI_REQUEST_NULL)
                continue;
            if (i == 1) /* a send cannot be cancelled reliably */
                (void)MPI_Cancel(requests[i]);
            if (MPI_Test(requests[i], &passed, MPI_STATUS_IGNORE) != MPI_SUCCESS || !passed)
                done = false;
        }
    }
    return done;
}

static void destroy(hotbed_comm *comm) {
    mpi_comm *m = mpi_of(comm);
    remove_live(m);
    note_failure(comm, hotbed_link_close(m->link, comm->runs));
    /* MPI's communicator is not freed: other ranks may still send through it. Open MPI reuses its
     * number for the next communicator while that is being created, and would count such messages
     * as messages of MPI_COMM_WORLD.
     * If MPI may still use the buffers, they are abandoned to it too. */
    if (!hotbed_comm_has_failed(comm) || withdraw(m))
        hotbed_delete(m->buffers);
}

static const hotbed_comm_ops ops = {
    .transport = HOTBED_TRANSPORT_MPI,
    .check_stream = hotbed_comm_check_host_stream,
    .run = run,
    .poll = look,
    .announce = announce,
    .destroy = destroy,
    .bare = bare,
};

/* Rank 0 broadcasts the address where it listens, and all ranks rendezvous there. */
static hotbed_status meet(mpi_comm *m, uint64_t until) {
    int listener = -1;
    hotbed_status listening = HOTBED_OK;
    if (m->base.rank == 0)
        listening =
            hotbed_link_listen(0, &listener, &m->place); /* otherwise the others receive port 0 */
    MPI_Request request = MPI_REQUEST_NULL;
    int error = MPI_Ibcast(&m->place, (int)sizeof m->place, MPI_BYTE, 0, m->mpi, &request);
    HOTBED_TRY(finish(m, "MPI_Ibcast", error, &request, until));
    HOTBED_TRY(listening);
    if (m->place.port == 0)
        return hotbed_fail(HOTBED_ERR_COMM, "rank 0 cannot listen for the other ranks");
    return hotbed_link_open(
        m->base.rank, m->base.size, &m->place, listener, NULL, 0, until, &m->link);
}

static hotbed_status fill(mpi_comm *m, uint64_t until) {
    m->mpi = MPI_COMM_NULL;
    for (uint32_t p = 0; p < m->base.size; p++) {
        m->peers[p].send.request = m->peers[p].recv.request = MPI_REQUEST_NULL;
        m->peers[p].buffers = &m->buffers[p];
    }
    MPI_Request request = MPI_REQUEST_NULL;
    int error = MPI_Comm_idup(MPI_COMM_WORLD, &m->mpi, &request);
    HOTBED_TRY(finish(m, "MPI_Comm_idup", error, &request, until));
    (void)MPI_Comm_set_errhandler(m->mpi, MPI_ERRORS_RETURN);
    return meet(m, until);
}

hotbed_status hotbed_comm_create_mpi(const hotbed_comm_options *options, hotbed_comm **out) {
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(start_mpi());
    int rank = 0, size = 0;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size > HOTBED_COMM_RANKS_MAX)
        return hotbed_fail_limit(
            HOTBED_ERR_UNSUPPORTED, NULL, size, HOTBED_COMM_RANKS_MAX, "%d ranks are more than %d",
            size, HOTBED_COMM_RANKS_MAX);
    hotbed_comm *comm = NULL;
    buffers *all = hotbed_new((size_t)size * sizeof *all);
    HOTBED_TRY_MEMORY(all, "the buffers of %d ranks", size);
    const size_t bytes = sizeof(mpi_comm) + (size_t)size * sizeof(peer);
    hotbed_status status =
        hotbed_comm_new(bytes, &ops, (uint32_t)rank, (uint32_t)size, options, &comm);
    if (status != HOTBED_OK) {
        hotbed_delete(all);
        return status;
    }
    mpi_comm *m = mpi_of(comm);
    m->buffers = all;
    status = fill(m, hotbed_comm_deadline(comm));
    if (status == HOTBED_OK) {
        add_live(m);
        *out = comm;
    } else /* MPI may still write to its buffers, so none of them is freed */
        note_ending(comm, ENDING_DOUBTFUL);
    return status;
}
