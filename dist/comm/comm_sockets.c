/* dist/comm/comm_sockets.c - ranks that are processes connected by TCP, with nothing but sockets.
 *
 * Two connections join each pair of ranks: the link's, and one for data. For each batch a rank sends
 * every other rank a header, with which the two compare what they do, and then the bytes of all
 * parts, straight from and to the caller's memory. A socket never touches that memory after a call
 * has returned, so an operation can be abandoned at any time. While nothing moves, the thread checks
 * the link for ranks that have died or failed. */
#include "dist/comm/comm_link.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/options.h"
#include "base/stream.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

enum {
    LOOK_MS = 10,   /* between two checks of link and clock while nothing moves */
    DYING_MS = 200, /* a broken connection is often a death that the link reports a little later */
};

/* Progress of the transfer to or from another rank: first the header, then each part. */
typedef struct cursor {
    size_t header; /* bytes */
    uint32_t part;
    uint64_t done; /* bytes of that part */
    bool done_all;
} cursor;

typedef struct peer {
    int socket;
    cursor send, recv;
    hotbed_comm_header to, from;
} peer;

typedef struct sockets_comm {
    hotbed_comm base;
    hotbed_link *link;
    hotbed_link *data; /* owns the sockets of `peers` */
    peer peers[];
} sockets_comm;

static sockets_comm *sockets_of(hotbed_comm *comm) {
    return (sockets_comm *)comm;
}

/* --- batches -------------------------------------------------------------------------------- */

static bool fail_socket(
    hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p, const char *what, int error) {
    hotbed_link *link = sockets_of(comm)->link;
    uint64_t until = hotbed_monotonic_now() + DYING_MS * UINT64_C(1000000);
    char reason[HOTBED_REASON_BYTES];
    while (hotbed_monotonic_now() < until) {
        hotbed_link_poll(link, comm, LOOK_MS);
        if (hotbed_link_left(link, comm, p, comm->runs, batch) || hotbed_comm_has_failed(comm))
            return false;
    }
    (void)hotbed_comm_record_fault(
        comm, HOTBED_COMM_TRANSPORT, (int32_t)p, comm->runs, "%s: %s rank %u: %s",
        hotbed_comm_title_of(comm->runs, batch).text, what, p,
        error == 0 ? "the connection is closed" : hotbed_reason(error, reason));
    return false;
}

/* Skip parts that are complete; false: all are. */
static bool next_part(
    hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p, cursor *c, bool sends,
    uint64_t *bytes) {
    for (; c->part < batch->num_parts; c->part++, c->done = 0) {
        const hotbed_comm_part *part = &batch->parts[c->part];
        if (sends)
            (void)hotbed_comm_sends(comm, part, p, bytes);
        else
            (void)hotbed_comm_receives(comm, part, p, bytes);
        if (c->done < *bytes)
            return true;
    }
    c->done_all = true;
    return false;
}

/* Whether a call that moved nothing can be repeated later. */
static bool again(ssize_t moved) {
    return moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

/* Send to rank p as much as its connection takes. False: it failed. */
static bool step_send(hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p, bool *moved) {
    peer *with = &sockets_of(comm)->peers[p];
    cursor *c = &with->send;
    while (!c->done_all) {
        uint64_t bytes = 0;
        bool header = c->header < sizeof with->to;
        const uint8_t *from = (const uint8_t *)&with->to + c->header;
        size_t n = sizeof with->to - c->header;
        if (!header) {
            if (!next_part(comm, batch, p, c, true, &bytes))
                return true;
            from = hotbed_comm_sends(comm, &batch->parts[c->part], p, &bytes) + c->done;
            n = (size_t)(bytes - c->done);
        }
        ssize_t sent = send(with->socket, from, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (again(sent))
            return true;
        if (sent <= 0)
            return fail_socket(comm, batch, p, "sending to", errno);
        *moved = true;
        if (header)
            c->header += (size_t)sent;
        else
            c->done += (size_t)sent;
    }
    return true;
}

/* Receive from rank p what has arrived. False: it failed. */
static bool step_recv(hotbed_comm *comm, const hotbed_comm_batch *batch, uint32_t p, bool *moved) {
    peer *with = &sockets_of(comm)->peers[p];
    cursor *c = &with->recv;
    while (!c->done_all) {
        uint64_t bytes = 0;
        bool header = c->header < sizeof with->from;
        uint8_t *to = (uint8_t *)&with->from + c->header;
        size_t n = sizeof with->from - c->header;
        if (!header) {
            if (!next_part(comm, batch, p, c, false, &bytes))
                return true;
            to = hotbed_comm_receives(comm, &batch->parts[c->part], p, &bytes) + c->done;
            n = (size_t)(bytes - c->done);
        }
        ssize_t got = recv(with->socket, to, n, MSG_DONTWAIT);
        if (again(got))
            return true;
        if (got <= 0)
            return fail_socket(comm, batch, p, "receiving from", got == 0 ? 0 : errno);
        *moved = true;
        if (!header) {
            c->done += (size_t)got;
            continue;
        }
        c->header += (size_t)got;
        if (c->header == sizeof with->from &&
            !hotbed_comm_check_header(comm, batch, p, &with->from))
            return false;
    }
    return true;
}

static bool waits(hotbed_comm *comm, uint32_t p) {
    const peer *with = &sockets_of(comm)->peers[p];
    return !with->send.done_all || !with->recv.done_all;
}

/* Move what can be moved. *busy: data is left. False: it failed. */
static bool step(hotbed_comm *comm, const hotbed_comm_batch *batch, bool *moved, bool *busy) {
    *moved = *busy = false;
    for (uint32_t k = 1; k < comm->size; k++) { /* so that not all ranks send to the same one */
        uint32_t p = (comm->rank + k) % comm->size;
        const peer *with = &sockets_of(comm)->peers[p];
        if (!step_send(comm, batch, p, moved) || !step_recv(comm, batch, p, moved))
            return false;
        *busy = *busy || !with->send.done_all || !with->recv.done_all;
    }
    return true;
}

/* Wait until a connection is ready, or until it is time to check the other ranks. */
static void wait_for_data(hotbed_comm *comm) {
    struct pollfd fds[HOTBED_COMM_RANKS_MAX];
    for (uint32_t p = 0; p < comm->size; p++) {
        const peer *with = &sockets_of(comm)->peers[p];
        short events = 0;
        if (!with->send.done_all)
            events |= POLLOUT;
        if (!with->recv.done_all)
            events |= POLLIN;
        bool waits = p != comm->rank && events != 0;
        fds[p] = (struct pollfd){.fd = waits ? with->socket : -1, .events = events};
    }
    (void)poll(fds, comm->size, LOOK_MS);
}

static bool run(hotbed_comm *comm, const hotbed_comm_batch *batch) {
    uint64_t now = hotbed_monotonic_now(), until = hotbed_comm_deadline(comm);
    uint64_t look = now + LOOK_MS * UINT64_C(1000000);
    for (uint32_t p = 0; p < comm->size; p++) {
        peer *with = &sockets_of(comm)->peers[p];
        with->send = with->recv = (cursor){.done_all = false};
        hotbed_comm_header_of(comm, batch, p, &with->to);
    }
    hotbed_comm_copy_own(comm, batch);
    for (;;) {
        bool moved, busy;
        if (!step(comm, batch, &moved, &busy))
            return false;
        if (!busy)
            return true;
        now = hotbed_monotonic_now();
        if (moved)
            until = hotbed_comm_deadline(comm);
        else
            wait_for_data(comm);
        if (now < look) /* also while some ranks send without end */
            continue;
        look = now + LOOK_MS * UINT64_C(1000000);
        if (!hotbed_link_goes_on(sockets_of(comm)->link, comm, batch, until, waits))
            return false;
    }
}

static void look(hotbed_comm *comm) {
    hotbed_link_poll(sockets_of(comm)->link, comm, 0);
}

static void announce(hotbed_comm *comm) {
    hotbed_link_announce(sockets_of(comm)->link, comm);
}

/* --- create and destroy ----------------------------------------------------------------------- */

static void destroy(hotbed_comm *comm) {
    sockets_comm *s = sockets_of(comm);
    if (s->link != NULL) /* the goodbye first: a closed connection alone would look like a death */
        (void)hotbed_link_close(s->link, comm->runs);
    hotbed_link_drop(s->data);
}

static const hotbed_comm_ops ops = {
    .transport = HOTBED_TRANSPORT_SOCKETS,
    .check_stream = hotbed_comm_check_host_stream,
    .run = run,
    .poll = look,
    .announce = announce,
    .destroy = destroy,
};

/* Open rank 0's listeners for both rendezvous, and broadcast the address of the first. */
static hotbed_status find(
    const hotbed_rendezvous *by, uint32_t rank, hotbed_link_place places[2], int listeners[2]) {
    hotbed_link_place here;
    hotbed_status status = HOTBED_OK;
    if (rank == 0) {
        status = hotbed_link_listen(places[0].port, &listeners[0], &here);
        HOTBED_THEN(status, hotbed_link_listen(0, &listeners[1], &places[1]));
    }
    if (by == NULL)
        return status;
    /* A rank 0 that cannot listen takes part in this too, with port 0. */
    memset(&places[0], 0, sizeof places[0]);
    if (rank == 0 && status == HOTBED_OK)
        places[0] = here;
    if (!by->broadcast(by->self, &places[0], sizeof places[0]))
        return hotbed_fail_rank(
            HOTBED_ERR_COMM, rank, "rank %u of %u: rendezvous.broadcast failed", rank, by->world);
    HOTBED_TRY(status);
    if (places[0].port == 0)
        return hotbed_fail(HOTBED_ERR_COMM, "rank 0 cannot listen for the other ranks");
    return HOTBED_OK;
}

/* Open the link, through which rank 0 tells where the rendezvous for the data connections is. */
static hotbed_status meet(
    sockets_comm *s, const hotbed_rendezvous *by, hotbed_link_place places[2], uint64_t until) {
    int listeners[2] = {-1, -1};
    const hotbed_comm *comm = &s->base;
    hotbed_status status = find(by, comm->rank, places, listeners);
    if (status == HOTBED_OK) {
        status = hotbed_link_open(
            comm->rank, comm->size, &places[0], listeners[0], &places[1], sizeof places[1], until,
            &s->link);
        listeners[0] = -1;
    }
    if (status == HOTBED_OK) {
        status = hotbed_link_open(
            comm->rank, comm->size, &places[1], listeners[1], NULL, 0, until, &s->data);
        listeners[1] = -1;
    }
    hotbed_link_unlisten(listeners[0]);
    hotbed_link_unlisten(listeners[1]);
    for (uint32_t p = 0; p < comm->size && status == HOTBED_OK; p++)
        s->peers[p].socket = hotbed_link_socket(s->data, p);
    return status;
}

static hotbed_status read_rendezvous(
    const hotbed_rendezvous *from, hotbed_rendezvous *to, hotbed_link_place *place) {
    memset(to, 0, sizeof *to);
    if (from == NULL)
        return hotbed_link_read(NULL, &to->rank, &to->world, place);
    HOTBED_TRY(HOTBED_OPTIONS_READ(to, hotbed_rendezvous, self, from));
    if (to->world < 1 || to->world > HOTBED_COMM_RANKS_MAX || to->rank >= to->world)
        return hotbed_fail_rank_limit(
            HOTBED_ERR_ARGUMENT, to->rank, "rank", to->rank, to->world,
            "rank %u of %u ranks: ranks are below the world, which is in [1, %d]", to->rank,
            to->world, HOTBED_COMM_RANKS_MAX);
    return to->broadcast != NULL ? HOTBED_OK
                                 : hotbed_fail_null_of("hotbed_rendezvous", "broadcast");
}

hotbed_status hotbed_comm_create_sockets(
    const hotbed_comm_options *options, const hotbed_rendezvous *rendezvous, hotbed_comm **out) {
    HOTBED_TRY_OUT(out);
    hotbed_rendezvous by;
    hotbed_comm *comm = NULL;
    hotbed_link_place places[2];
    memset(places, 0, sizeof places);
    HOTBED_TRY(read_rendezvous(rendezvous, &by, &places[0]));
    const size_t bytes = sizeof(sockets_comm) + by.world * sizeof(peer);
    HOTBED_TRY(hotbed_comm_new(bytes, &ops, by.rank, by.world, options, &comm));
    const hotbed_status status =
        meet(sockets_of(comm), rendezvous == NULL ? NULL : &by, places, hotbed_comm_deadline(comm));
    if (status != HOTBED_OK)
        hotbed_comm_destroy(comm);
    else
        *out = comm;
    return status;
}
