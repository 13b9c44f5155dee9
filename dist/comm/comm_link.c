/* dist/comm/comm_link.c - sockets between all ranks: how each rank learns that another has failed. */
#include "dist/comm/comm_link.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/stream.h"
#include "dist/comm/comm_handshake.h"
#include "dist/comm/comm_socket.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

typedef struct peer {
    int socket; /* -1: none, or closed */
    bool bye;
    bool gone;      /* its process ended without a word */
    uint64_t runs;  /* batches that the peer had done when it said goodbye */
    size_t partial; /* bytes of `news` received so far */
    hotbed_link_news news;
} peer;

struct hotbed_link {
    pthread_mutex_t lock;
    uint32_t rank, size;
    uint32_t num_gone;
    hotbed_comm_fault announced; /* the first failure that a rank has announced; reason 0: none */
    peer peers[];
};

/* --- open and close --------------------------------------------------------------------------- */

static void free_link(hotbed_link *l) {
    for (uint32_t p = 0; p < l->size; p++)
        hotbed_socket_close(&l->peers[p].socket);
    pthread_mutex_destroy(&l->lock);
    hotbed_delete(l);
}

int hotbed_link_socket(const hotbed_link *l, uint32_t p) {
    return l->peers[p].socket;
}

void hotbed_link_drop(hotbed_link *l) {
    if (l != NULL)
        free_link(l);
}

hotbed_status hotbed_link_open(
    uint32_t rank, uint32_t size, const hotbed_link_place *place, int listener, void *payload,
    size_t bytes, uint64_t until, hotbed_link **out) {
    hotbed_link *l = hotbed_new(sizeof *l + size * sizeof l->peers[0]);
    int *sockets = hotbed_new(size * sizeof *sockets);
    if (l == NULL || sockets == NULL) {
        hotbed_delete(l);
        hotbed_delete(sockets);
        hotbed_socket_close(&listener);
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for connections to %u ranks", size);
    }
    pthread_mutex_init(&l->lock, NULL);
    l->rank = rank;
    l->size = size;
    const hotbed_status status =
        hotbed_handshake(rank, size, place, listener, payload, bytes, until, sockets);
    for (uint32_t p = 0; p < size; p++)
        l->peers[p].socket = sockets[p];
    hotbed_delete(sockets);
    if (status == HOTBED_OK)
        *out = l;
    else
        free_link(l);
    return status;
}

/* --- news ----------------------------------------------------------------------------------- */

/* Send a message to all ranks. Called under the lock. The message is small and the socket's buffer
 * empty, so a partial send does not occur. */
static void tell_all(hotbed_link *l, const hotbed_link_news *what) {
    for (uint32_t p = 0; p < l->size; p++)
        if (l->peers[p].socket >= 0)
            (void)send(l->peers[p].socket, what, sizeof *what, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void hotbed_link_announce(hotbed_link *l, const hotbed_comm *comm) {
    hotbed_link_news what;
    memset(&what, 0, sizeof what); /* clear the padding, which is sent too */
    what.kind = HOTBED_NEWS_FAILED;
    what.fault = comm->fault;
    pthread_mutex_lock(&l->lock);
    tell_all(l, &what);
    pthread_mutex_unlock(&l->lock);
}

bool hotbed_link_leave(hotbed_link *l, uint64_t runs) {
    hotbed_link_news what;
    memset(&what, 0, sizeof what);
    what.kind = HOTBED_NEWS_BYE;
    what.runs = runs;
    pthread_mutex_lock(&l->lock);
    tell_all(l, &what);
    bool lost = l->num_gone > 0;
    pthread_mutex_unlock(&l->lock);
    return lost;
}

bool hotbed_link_close(hotbed_link *l, uint64_t runs) {
    bool lost = hotbed_link_leave(l, runs);
    free_link(l);
    return lost;
}

/* Whether news can have been written by tell_all(). */
static bool is_news(const hotbed_link *l, const hotbed_link_news *n) {
    const hotbed_comm_fault *f = &n->fault;
    if (n->kind == HOTBED_NEWS_BYE)
        return true;
    return n->kind == HOTBED_NEWS_FAILED && (int)f->reason >= HOTBED_COMM_ABORTED &&
           f->reason <= HOTBED_COMM_TRANSPORT && f->rank >= -1 && f->rank < (int32_t)l->size &&
           memchr(f->text, '\0', sizeof f->text) != NULL;
}

/* The process of a peer has ended, or it sent what no rank sends. */
static void lose(hotbed_link *l, peer *from) {
    hotbed_socket_close(&from->socket);
    from->gone = !from->bye;
    l->num_gone += from->gone ? 1 : 0;
}

static void take_news(hotbed_link *l, peer *from) {
    from->partial = 0;
    if (!is_news(l, &from->news)) {
        lose(l, from);
    } else if (from->news.kind == HOTBED_NEWS_BYE) {
        from->bye = true;
        from->runs = from->news.runs;
    } else if (l->announced.reason == HOTBED_COMM_WELL) {
        l->announced = from->news.fault;
    }
}

/* Read what rank p has sent. */
static void hear(hotbed_link *l, uint32_t p) {
    peer *from = &l->peers[p];
    while (from->socket >= 0) {
        ssize_t got = recv(
            from->socket, (char *)&from->news + from->partial, sizeof from->news - from->partial,
            MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0) {
            lose(l, from);
            return;
        }
        from->partial += (size_t)got;
        if (from->partial == sizeof from->news)
            take_news(l, from);
    }
}

/* The failure that the link knows; reason WELL: none. A rank announces a failure before its process
 * ends because of it, so announced failures come first. If several processes have ended, none is
 * known to be the first. */
static hotbed_comm_fault failure_of(const hotbed_link *l) {
    uint32_t gone[HOTBED_COMM_RANKS_MAX], n = 0;
    if (l->announced.reason != HOTBED_COMM_WELL || l->num_gone == 0)
        return l->announced;
    for (uint32_t p = 0; p < l->size; p++)
        if (l->peers[p].gone)
            gone[n++] = p;
    hotbed_comm_fault fault = {
        .size = sizeof fault,
        .reason = HOTBED_COMM_LEFT,
        .rank = n == 1 ? (int32_t)gone[0] : -1,
        .tags = {-1, -1},
        .error = {.size = sizeof fault.error}};
    (void)snprintf(
        fault.text, sizeof fault.text,
        n == 1 ? "%s is gone: its process ended without a word"
               : "%s are gone: their processes ended, it is not known which one first",
        hotbed_list_ranks(gone, n).text);
    return fault;
}

void hotbed_link_poll(hotbed_link *l, hotbed_comm *comm, int milliseconds) {
    struct pollfd fds
        [HOTBED_COMM_RANKS_MAX]; /* owned by this thread: another thread may poll at the same time */
    pthread_mutex_lock(&l->lock);
    for (uint32_t p = 0; p < l->size; p++)
        fds[p] = (struct pollfd){.fd = l->peers[p].socket, .events = POLLIN};
    if (milliseconds > 0) /* unlock, so that a sender need not wait for the poll */
        pthread_mutex_unlock(&l->lock);
    (void)poll(fds, l->size, milliseconds);
    if (milliseconds > 0)
        pthread_mutex_lock(&l->lock);
    for (uint32_t p = 0; p < l->size; p++)
        if (fds[p].revents != 0)
            hear(l, p);
    const hotbed_comm_fault fault = failure_of(l);
    pthread_mutex_unlock(&l->lock);
    if (fault.reason != HOTBED_COMM_WELL)
        (void)hotbed_comm_adopt_fault(comm, &fault);
}

bool hotbed_link_left(
    hotbed_link *l, hotbed_comm *comm, uint32_t p, uint64_t run, const hotbed_comm_batch *batch) {
    pthread_mutex_lock(&l->lock);
    /* A failure that the link knows is older, and the next poll records it. */
    bool left = l->peers[p].bye && l->peers[p].runs < run &&
                l->announced.reason == HOTBED_COMM_WELL && l->num_gone == 0;
    pthread_mutex_unlock(&l->lock);
    if (left)
        (void)hotbed_comm_record_fault(
            comm, HOTBED_COMM_LEFT, (int32_t)p, run,
            "%s: rank %u left before: it destroyed its communicator, or its process ended",
            hotbed_comm_title_of(run, batch).text, p);
    return left;
}

bool hotbed_link_goes_on(
    hotbed_link *l, hotbed_comm *comm, const hotbed_comm_batch *batch, uint64_t until,
    bool (*waits)(hotbed_comm *comm, uint32_t p)) {
    hotbed_link_poll(l, comm, 0);
    uint32_t late = comm->size;
    for (uint32_t p = 0; p < comm->size && !hotbed_comm_has_failed(comm); p++) {
        if (p == comm->rank || !waits(comm, p))
            continue;
        late = p;
        (void)hotbed_link_left(l, comm, p, comm->runs, batch);
    }
    if (hotbed_comm_has_failed(comm))
        return false;
    if (hotbed_monotonic_now() < until)
        return true;
    (void)hotbed_comm_record_fault(
        comm, HOTBED_COMM_DEADLINE, (int32_t)late, comm->runs,
        "%s: rank %u did not come within %u ms", hotbed_comm_title_of(comm->runs, batch).text, late,
        comm->deadline_ms);
    return false;
}
