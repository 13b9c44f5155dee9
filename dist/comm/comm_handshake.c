/* dist/comm/comm_handshake.c - how the ranks of a rendezvous recognize each other and connect. */
#define _DEFAULT_SOURCE 1 /* getifaddrs */
#include "dist/comm/comm_handshake.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/stream.h"
#include "base/text.h"
#include "dist/comm/comm_socket.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CALLERS = 256,      /* connections whose hello has not arrived yet, at a time */
    STRANGER_MS = 2000, /* time for a caller to send its hello */
    REFUSE_MS = 5000,   /* how long rank 0 answers ranks after it has failed the rendezvous */
    RETRY_MS = 20,      /* between attempts to connect to a rank that does not listen yet */
};

static uint64_t in_ms(uint64_t ms, uint64_t until) {
    uint64_t then = hotbed_monotonic_now() + ms * 1000000U;
    return then < until ? then : until;
}

static void take_a_breath(void) {
    const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000L};
    (void)nanosleep(&pause, NULL);
}

/* --- where rank 0 listens ----------------------------------------------------------------------- */

/* This machine's name, and its addresses. */
static void list_hosts(hotbed_link_place *place) {
    struct ifaddrs *list = NULL;
    uint32_t n = 0;
    (void)gethostname(place->machine, sizeof place->machine - 1);
    if (getifaddrs(&list) != 0)
        list = NULL;
    for (const struct ifaddrs *i = list; i != NULL && n < HOTBED_LINK_HOSTS; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET ||
            (i->ifa_flags & IFF_UP) == 0)
            continue;
        if (getnameinfo(
                i->ifa_addr, sizeof(struct sockaddr_in), place->hosts[n], HOTBED_LINK_HOST_BYTES,
                NULL, 0, NI_NUMERICHOST) == 0)
            n++;
    }
    freeifaddrs(list);
}

hotbed_status hotbed_link_listen(uint32_t port, int *listener, hotbed_link_place *place) {
    const uint32_t wanted = port;
    const int s = hotbed_socket_listen(&port);
    if (s < 0)
        return hotbed_fail_os(
            HOTBED_ERR_COMM, errno, "cannot listen on port %u for the other ranks%s", wanted,
            wanted == 0 ? "" : "; choose another MASTER_PORT");
    memset(place, 0, sizeof *place);
    list_hosts(place);
    place->port = port;
    if (getrandom(&place->cookie, sizeof place->cookie, GRND_NONBLOCK) !=
        (ssize_t)sizeof place->cookie)
        place->cookie = hotbed_monotonic_now() ^ (uint64_t)getpid() << 48;
    *listener = s;
    return HOTBED_OK;
}

void hotbed_link_unlisten(int listener) {
    hotbed_socket_close(&listener);
}

hotbed_rank_list hotbed_list_ranks(const uint32_t *ranks, uint32_t n) {
    enum { NAMED = 8 };
    hotbed_rank_list list;
    hotbed_writer w = {list.text, sizeof list.text, 0};
    hotbed_write(&w, "rank%s ", n == 1 ? "" : "s");
    for (uint32_t i = 0; i < n && i < NAMED; i++)
        hotbed_write(&w, i == 0 ? "%u" : ", %u", ranks[i]);
    if (n > NAMED)
        hotbed_write(&w, " and %u more", n - NAMED);
    return list;
}

/* --- one rank's part ---------------------------------------------------------------------------- */

/* Why the last attempt to reach a rank failed, for the message. */
typedef enum met {
    MET_NOBODY = 0,
    MET_NO_HOST,  /* the name is unknown: `reason` */
    MET_SILENCE,  /* somebody listens, and does not answer */
    MET_STRANGER, /* another program */
    MET_VERSION,  /* another version of Hotbed: `version` */
    MET_JOB,      /* a rank of another job */
} met;

typedef struct rendezvous {
    hotbed_hello own;
    const hotbed_link_place *place; /* where rank 0 listens */
    uint64_t since, until;
    int *sockets;
    met met;
    uint32_t version;
    int error; /* errno of the last accept; 0: it has not failed */
    char reason[HOTBED_SOCKET_REASON_BYTES];
} rendezvous;

/* The ranks from `first` on that have not come: by the table, or, if it is NULL, those without a
 * connection. */
static hotbed_rank_list list_missing(
    const rendezvous *r, const hotbed_seat *table, uint32_t first) {
    uint32_t missing[HOTBED_COMM_RANKS_MAX], n = 0;
    for (uint32_t p = first; p < r->own.size; p++)
        if (table != NULL ? table[p].port == 0 : r->sockets[p] < 0)
            missing[n++] = p;
    return hotbed_list_ranks(missing, n);
}

/* Write what the last attempt met, and what to do; "": nobody. */
static void describe_met(const rendezvous *r, const char *port, char *text, size_t capacity) {
    char why[HOTBED_REASON_BYTES];
    text[0] = '\0';
    switch (r->met) {
    case MET_NOBODY:
        break;
    case MET_NO_HOST:
        (void)snprintf(text, capacity, "the name of the host is unknown: %s", r->reason);
        return;
    case MET_SILENCE:
        (void)snprintf(
            text, capacity,
            "a program accepts connections there and does not answer; if it is not rank 0, choose "
            "another %s",
            port);
        return;
    case MET_STRANGER:
        (void)snprintf(
            text, capacity, "another program answers there, which is no rank; choose another %s",
            port);
        return;
    case MET_VERSION:
        (void)snprintf(
            text, capacity,
            "a rank with version %u of the rendezvous answers there, this rank has version %d; use "
            "one version of Hotbed on all ranks",
            r->version, HOTBED_HANDSHAKE_VERSION);
        return;
    case MET_JOB:
        (void)snprintf(
            text, capacity,
            "a rank of another job answers there, with another HOTBED_JOB or TORCHELASTIC_RUN_ID; "
            "choose another %s",
            port);
        return;
    }
    if (r->error != 0)
        (void)snprintf(
            text, capacity, "connections could not be accepted: %s", hotbed_reason(r->error, why));
}

static hotbed_status fail_wait(
    const rendezvous *r, const char *whom, const char *host, uint32_t port, const char *advice) {
    char found[400];
    double seconds = (double)(hotbed_monotonic_now() - r->since) / 1e9;
    describe_met(r, r->place->machine[0] == '\0' ? "MASTER_PORT" : "port", found, sizeof found);
    const hotbed_status failed = hotbed_fail_limit(
        HOTBED_ERR_COMM, NULL, port, seconds, "rank %u of %u waited %.*f s for %s at %s:%u; %s",
        r->own.rank, r->own.size, seconds < 10 ? 1 : 0, seconds, whom, host, port,
        found[0] == '\0' ? advice : found);
    return hotbed_error_os(failed, r->error);
}

static const char *const check_network = "check that the other machines can reach this address";

/* `whom` did not come to rank 0's place. The place has no machine if it is from the environment. */
static hotbed_status fail_meeting(const rendezvous *r, const char *whom) {
    const hotbed_link_place *place = r->place;
    if (place->machine[0] != '\0')
        return fail_wait(r, whom, place->machine, place->port, check_network);
    return fail_wait(
        r, whom, place->hosts[0], place->port,
        "start all ranks, or check MASTER_ADDR and MASTER_PORT");
}

static hotbed_status fail_sizes(const rendezvous *r, const hotbed_answer *a) {
    return hotbed_fail_rank_limit(
        HOTBED_ERR_ARGUMENT, a->rank, "size", a->other, a->size,
        "rank %u: the number of ranks is %u on rank 0, but %u on rank %u; %s", r->own.rank, a->size,
        a->other, a->rank,
        r->place->machine[0] == '\0' ? "set WORLD_SIZE to the same number for all ranks"
                                     : "pass the same number on all ranks");
}

/* --- the rank that listens ---------------------------------------------------------------------- */

/* A connection whose hello has not arrived completely. */
typedef struct caller {
    int socket;
    size_t got;
    uint64_t until;
    hotbed_hello hello;
} caller;

/* The connections to a listener, oldest first. All are read side by side, so a silent one delays
 * no other. */
typedef struct reception {
    int listener;
    uint32_t n;
    caller callers[CALLERS];
} reception;

static void dismiss(reception *at, uint32_t i) {
    hotbed_socket_close(&at->callers[i].socket);
    at->n--;
    memmove(&at->callers[i], &at->callers[i + 1], (at->n - i) * sizeof at->callers[0]);
}

/* End a reception; the listener is the caller's. */
static void dismiss_all(reception *at) {
    while (at->n > 0)
        dismiss(at, at->n - 1);
}

/* Read what caller i has sent. Returns whether its hello is complete; a caller that has gone is
 * dismissed, and *gone is set. */
static bool hear_caller(reception *at, uint32_t i, bool *gone) {
    caller *c = &at->callers[i];
    *gone = false;
    while (c->got < sizeof c->hello) {
        ssize_t got =
            recv(c->socket, (char *)&c->hello + c->got, sizeof c->hello - c->got, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN && hotbed_monotonic_now() < c->until)
            return false;
        if (got <= 0) {
            dismiss(at, i);
            *gone = true;
            return false;
        }
        c->got += (size_t)got;
    }
    return true;
}

/* Answer a complete hello. Returns whether it is of a rank of this rendezvous, which may know
 * another number of ranks. Another program gets no answer. */
static bool welcome(const hotbed_hello *own, const caller *c) {
    const hotbed_hello *theirs = &c->hello;
    if (theirs->magic != HOTBED_HELLO_MAGIC)
        return false;
    hotbed_welcome w = {
        .magic = HOTBED_WELCOME_MAGIC, .version = HOTBED_HANDSHAKE_VERSION, .rank = own->rank};
    const bool known = theirs->version == HOTBED_HANDSHAKE_VERSION && theirs->cookie == own->cookie;
    if (known)
        w.cookie = own->cookie;
    if (known &&
        (theirs->to != own->rank || theirs->rank <= own->rank || theirs->rank >= theirs->size ||
         theirs->size > HOTBED_COMM_RANKS_MAX || theirs->port < 1 || theirs->port > 65535))
        return false;
    /* The buffer of a new connection has space for it, so this never waits. */
    return send(c->socket, &w, sizeof w, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof w && known;
}

/* Accept the connections that wait. If there are too many, the oldest silent ones go: a rank sends
 * its hello at once. */
static void accept_all(rendezvous *r, reception *at) {
    for (uint32_t i = 0; i < CALLERS; i++) {
        if (at->n == CALLERS)
            dismiss(at, 0);
        const int s = hotbed_socket_accept(at->listener);
        if (s < 0) {
            const int error = errno;
            if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
                r->error = error;
                if (at->n > 0)
                    dismiss(at, 0);
                else
                    take_a_breath();
            }
            return;
        }
        r->error = 0;
        at->callers[at->n++] = (caller){.socket = s, .until = in_ms(STRANGER_MS, UINT64_MAX)};
        bool gone;
        (void)hear_caller(at, at->n - 1, &gone);
    }
}

/* The next caller with a complete hello of this rendezvous; its socket, or -1. */
static int next_rank(const hotbed_hello *own, reception *at, hotbed_hello *theirs) {
    for (uint32_t i = 0; i < at->n;) {
        bool gone;
        if (!hear_caller(at, i, &gone)) {
            i += gone ? 0 : 1;
            continue;
        }
        caller *c = &at->callers[i];
        if (!welcome(own, c)) {
            dismiss(at, i);
            continue;
        }
        const int s = c->socket;
        *theirs = c->hello;
        c->socket = -1; /* the caller of this function has it */
        dismiss(at, i);
        return s;
    }
    return -1;
}

/* Accept the next connection of a rank of this rendezvous, which may know another number of ranks;
 * -1 once `until` has passed. */
static int accept_rank(rendezvous *r, reception *at, hotbed_hello *theirs, uint64_t until) {
    for (;;) {
        int s = next_rank(&r->own, at, theirs);
        if (s >= 0 || hotbed_monotonic_now() >= until)
            return s;
        struct pollfd fds[CALLERS + 1];
        uint64_t soon = until;
        for (uint32_t i = 0; i < at->n; i++) {
            fds[i] = (struct pollfd){.fd = at->callers[i].socket, .events = POLLIN};
            soon = at->callers[i].until < soon ? at->callers[i].until : soon;
        }
        fds[at->n] = (struct pollfd){.fd = at->listener, .events = POLLIN};
        const uint32_t n = at->n;
        if (poll(fds, n + 1, hotbed_socket_left_ms(soon)) > 0 && fds[n].revents != 0)
            accept_all(r, at);
    }
}

/* Keep the socket of the rank that sent `theirs`. False: the rank is already there. A process that
 * has ended makes place for its successor. */
static bool seat_rank(rendezvous *r, const hotbed_hello *theirs, int socket) {
    int *held = &r->sockets[theirs->rank];
    if (*held >= 0 && !hotbed_socket_is_closed(*held)) {
        hotbed_socket_close(&socket);
        return false;
    }
    hotbed_socket_close(held);
    *held = socket;
    return true;
}

static hotbed_status fail_twice(const rendezvous *r, uint32_t rank) {
    return hotbed_fail_rank(
        HOTBED_ERR_COMM, rank, "two processes say that they are rank %u of %u", rank, r->own.size);
}

/* --- rank 0 ------------------------------------------------------------------------------------- */

/* Send an answer to all ranks that have come, and the table unless the sizes differ. Returns the
 * first rank to which this failed; `size` if there is none. */
static uint32_t answer_all(const rendezvous *r, const hotbed_answer *a, const hotbed_seat *table) {
    const uint32_t size = r->own.size;
    uint32_t lost = size;
    for (uint32_t p = 1; p < size; p++) {
        int s = r->sockets[p];
        bool sent =
            s < 0 ||
            (hotbed_socket_send(s, a, sizeof *a, r->until) &&
             (a->other != 0 || hotbed_socket_send(s, table, size * sizeof *table, r->until)));
        if (!sent && lost == size)
            lost = p;
    }
    return lost;
}

/* The rank that sent `theirs` on `socket` knows another number of ranks. Answer the ranks that have
 * come, and for REFUSE_MS ranks that come later, until the larger world is complete. */
static hotbed_status refuse_sizes(rendezvous *r, reception *at, int socket, hotbed_hello theirs) {
    const uint32_t size = r->own.size;
    const hotbed_answer first = {.size = size, .other = theirs.size, .rank = theirs.rank};
    const uint64_t until = in_ms(REFUSE_MS, r->until);
    uint32_t most = size, came = 1; /* rank 0 itself */
    (void)answer_all(r, &first, NULL);
    for (uint32_t p = 1; p < size; p++)
        came += r->sockets[p] >= 0 ? 1 : 0;
    while (socket >= 0) {
        hotbed_answer a = first;
        if (theirs.size != size)
            a.other = theirs.size, a.rank = theirs.rank;
        (void)hotbed_socket_send(socket, &a, sizeof a, r->until);
        hotbed_socket_close(&socket);
        most = theirs.size > most ? theirs.size : most;
        if (++came < most)
            socket = accept_rank(r, at, &theirs, until);
    }
    return fail_sizes(r, &first);
}

/* Wait for all other ranks, then send the table of seats to each of them. If a rank does not come,
 * the others get the table too: it has no port for the missing ranks. */
static hotbed_status host_rendezvous(
    rendezvous *r, reception *at, const void *payload, size_t bytes, hotbed_seat *table) {
    const uint32_t size = r->own.size;
    const hotbed_answer well = {.size = size};
    for (uint32_t n = 1; n < size;) {
        hotbed_hello theirs;
        int s = accept_rank(r, at, &theirs, r->until);
        if (s < 0) {
            (void)answer_all(r, &well, table);
            return fail_meeting(r, list_missing(r, table, 1).text);
        }
        if (theirs.size != size)
            return refuse_sizes(r, at, s, theirs);
        hotbed_seat *seat = &table[theirs.rank];
        char host[HOTBED_LINK_HOST_BYTES] = "";
        if (!hotbed_socket_peer(s, host, sizeof host)) { /* its process has ended already */
            hotbed_socket_close(&s);
            continue;
        }
        n += seat->port == 0 ? 1 : 0;
        if (!seat_rank(r, &theirs, s))
            return fail_twice(r, theirs.rank);
        memcpy(seat->host, host, sizeof host);
        seat->port = theirs.port;
    }
    uint32_t lost = answer_all(r, &well, table);
    for (uint32_t p = 1; p < size && lost == size; p++)
        if (!hotbed_socket_send(r->sockets[p], payload, bytes, r->until))
            lost = p;
    if (lost < size)
        return hotbed_fail_rank(
            HOTBED_ERR_COMM, lost, "rank %u left before all %u ranks had met", lost, size);
    return HOTBED_OK;
}

/* --- the rank that connects --------------------------------------------------------------------- */

static bool is_loopback(const char *host) {
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "::ffff:127.", 11) == 0;
}

static void try_host(rendezvous *r, const char *host, uint32_t port, int *socket) {
    if (hotbed_socket_connect(host, port, r->until, socket, r->reason) == HOTBED_REACH_NO_PEER)
        r->met = MET_NOBODY;
}

/* Try each host of the place once, addresses before names: resolving a name can take long without a
 * server. */
static int try_place(rendezvous *r, const hotbed_link_place *place) {
    char here[HOTBED_LINK_HOST_BYTES] = "";
    int s = -1;
    (void)gethostname(here, sizeof here - 1);
    const bool known = place->machine[0] != '\0';
    const bool same = known && strcmp(here, place->machine) == 0;
    r->met = MET_NO_HOST; /* unless one host has an address */
    if (same)
        try_host(r, "127.0.0.1", place->port, &s);
    for (uint32_t h = 0; h < HOTBED_LINK_HOSTS && place->hosts[h][0] != '\0' && s < 0; h++)
        if (!known || same ||
            !is_loopback(place->hosts[h])) /* another machine's loopback address is useless here */
            try_host(r, place->hosts[h], place->port, &s);
    if (s < 0 && known && !same)
        try_host(r, place->machine, place->port, &s);
    return s;
}

/* Send the hello and receive the welcome. False: no rank of this job answers, and r->met says who
 * does. */
static bool greet(rendezvous *r, int s) {
    enum { BEGIN = 2 * sizeof(uint32_t) }; /* magic and version */
    hotbed_welcome w;
    memset(&w, 0, sizeof w);
    r->met = MET_SILENCE;
    if (!hotbed_socket_send(s, &r->own, sizeof r->own, r->until))
        return false;
    if (!hotbed_socket_recv(s, &w, BEGIN, r->until)) {
        /* The listener of an earlier rendezvous closes connections that it never accepted. */
        if (hotbed_socket_is_closed(s))
            r->met = MET_NOBODY;
        return false;
    }
    r->met = MET_STRANGER;
    if (w.magic != HOTBED_WELCOME_MAGIC)
        return false;
    r->version = w.version;
    r->met = MET_VERSION;
    if (w.version != HOTBED_HANDSHAKE_VERSION)
        return false;
    r->met = MET_STRANGER;
    if (!hotbed_socket_recv(s, (char *)&w + BEGIN, sizeof w - BEGIN, r->until))
        return false;
    if (w.cookie != r->own.cookie)
        r->met = w.cookie == 0 ? MET_JOB : MET_STRANGER;
    else if (w.rank == r->own.to)
        r->met = MET_NOBODY;
    return r->met == MET_NOBODY;
}

/* Connect to rank r->own.to at the place. Retry until it answers; -1 once the deadline has passed. */
static int connect_to(rendezvous *r, const hotbed_link_place *place) {
    for (met before = MET_NOBODY;; before = r->met) {
        int s = try_place(r, place);
        if (s >= 0 && greet(r, s))
            return s;
        hotbed_socket_close(&s);
        if (hotbed_monotonic_now() >= r->until) {
            /* The deadline cut this attempt short: the one before knows more. */
            if (before != MET_NOBODY && (r->met == MET_NOBODY || r->met == MET_SILENCE))
                r->met = before;
            return -1;
        }
        take_a_breath();
    }
}

/* Whether the text ends within its array. */
static bool ends(const char text[HOTBED_LINK_HOST_BYTES]) {
    return memchr(text, '\0', HOTBED_LINK_HOST_BYTES) != NULL;
}

/* Whether the ranks' seats are addresses; those of missing ranks have no port. */
static bool check_table(const hotbed_seat *table, uint32_t size) {
    for (uint32_t p = 1; p < size; p++) {
        if (table[p].port == 0)
            continue;
        if (table[p].port > 65535 || !ends(table[p].host) || table[p].host[0] == '\0' ||
            strspn(table[p].host, "0123456789abcdefABCDEF.:") < strcspn(table[p].host, "%"))
            return false; /* after a %, an IPv6 address has the name of an interface */
    }
    return true;
}

/* Connect to rank 0 and wait for its answer and the table of ranks. If the connection closes first,
 * rank 0 belonged to an earlier rendezvous on this port: retry. */
static hotbed_status visit_host(rendezvous *r, void *payload, size_t bytes, hotbed_seat *table) {
    const uint32_t size = r->own.size;
    for (;;) {
        int *s = &r->sockets[0];
        *s = connect_to(r, r->place);
        if (*s < 0)
            return fail_meeting(r, "rank 0");
        hotbed_answer a = {.other = 0};
        const bool answered = hotbed_socket_recv(*s, &a, sizeof a, r->until);
        if (answered && a.other != 0)
            return fail_sizes(r, &a);
        if (answered && a.size != size)
            return hotbed_fail_rank_limit(
                HOTBED_ERR_COMM, 0, "size", a.size, size,
                "rank %u of %u: rank 0 answers for %u ranks", r->own.rank, size, a.size);
        if (answered && hotbed_socket_recv(*s, table, size * sizeof *table, r->until)) {
            if (!check_table(table, size))
                return hotbed_fail_rank(
                    HOTBED_ERR_COMM, 0,
                    "rank %u of %u: rank 0 sent a list of ranks without addresses", r->own.rank,
                    size);
            for (uint32_t p = 1; p < size; p++)
                if (table[p].port == 0)
                    return fail_meeting(r, list_missing(r, table, 1).text);
            if (hotbed_socket_recv(*s, payload, bytes, r->until))
                return HOTBED_OK;
        }
        hotbed_socket_close(s);
        if (hotbed_monotonic_now() >= r->until)
            return fail_meeting(r, "other ranks, of which rank 0 knows the numbers,");
        take_a_breath();
    }
}

/* Connect to the ranks with smaller numbers, at their seats. */
static hotbed_status visit_others(rendezvous *r, const hotbed_seat *table) {
    const hotbed_link_place *place = r->place;
    for (uint32_t p = 1; p < r->own.rank; p++) {
        hotbed_link_place there = {.port = table[p].port};
        /* A rank on rank 0's machine may have registered a loopback address: also try rank 0's
         * hosts. */
        memcpy(there.machine, place->machine, sizeof there.machine);
        memcpy(there.hosts[1], place->hosts[0], sizeof there.hosts - sizeof there.hosts[0]);
        memcpy(there.hosts[0], table[p].host, sizeof there.hosts[0]);
        r->own.to = p;
        r->sockets[p] = connect_to(r, &there);
        if (r->sockets[p] < 0) {
            char whom[32];
            (void)snprintf(whom, sizeof whom, "rank %u", p);
            return fail_wait(r, whom, table[p].host, table[p].port, check_network);
        }
    }
    r->met = MET_NOBODY;
    return HOTBED_OK;
}

/* Accept the ranks with larger numbers. */
static hotbed_status receive_others(rendezvous *r, reception *at, const hotbed_link_place *here) {
    for (uint32_t n = r->own.rank + 1; n < r->own.size;) {
        hotbed_hello theirs;
        int s = accept_rank(r, at, &theirs, r->until);
        if (s < 0)
            return fail_wait(
                r, list_missing(r, NULL, r->own.rank + 1).text, here->machine, here->port,
                check_network);
        if (theirs.size != r->own.size) { /* rank 0 has compared the sizes of all ranks */
            hotbed_socket_close(&s);
            continue;
        }
        n += r->sockets[theirs.rank] < 0 ? 1 : 0;
        if (!seat_rank(r, &theirs, s))
            return fail_twice(r, theirs.rank);
    }
    return HOTBED_OK;
}

/* Ranks other than 0: connect to rank 0, receive the table, connect to ranks with smaller numbers,
 * accept the others. */
static hotbed_status join_rendezvous(
    rendezvous *r, reception *at, void *payload, size_t bytes, hotbed_seat *table) {
    hotbed_link_place here;
    HOTBED_TRY(hotbed_link_listen(0, &at->listener, &here));
    r->own.port = here.port;
    HOTBED_TRY(visit_host(r, payload, bytes, table));
    HOTBED_TRY(visit_others(r, table));
    return receive_others(r, at, &here);
}

/* Whether a place that came from another rank has a port, and hosts that end. */
static bool check_place(const hotbed_link_place *place) {
    bool ok = place->port >= 1 && place->port <= 65535 && ends(place->machine);
    for (uint32_t h = 0; h < HOTBED_LINK_HOSTS; h++)
        ok = ok && ends(place->hosts[h]);
    return ok;
}

hotbed_status hotbed_handshake(
    uint32_t rank, uint32_t size, const hotbed_link_place *place, int listener, void *payload,
    size_t bytes, uint64_t until, int *sockets) {
    rendezvous r = {
        .own =
            {.magic = HOTBED_HELLO_MAGIC,
             .version = HOTBED_HANDSHAKE_VERSION,
             .cookie = place->cookie,
             .rank = rank,
             .size = size},
        .place = place,
        .since = hotbed_monotonic_now(),
        .until = until,
        .sockets = sockets,
    };
    for (uint32_t p = 0; p < size; p++)
        sockets[p] = -1;
    hotbed_seat *table = hotbed_new(size * sizeof *table);
    reception *at = hotbed_new(sizeof *at);
    hotbed_status status = HOTBED_OK;
    if (table == NULL || at == NULL) {
        status = hotbed_fail(HOTBED_ERR_MEMORY, "no memory for connections to %u ranks", size);
        hotbed_socket_close(&listener);
    } else if (!check_place(place)) {
        status = hotbed_fail_rank(
            HOTBED_ERR_COMM, 0, "rank %u of %u: rank 0 sent a place to meet that is no address",
            rank, size);
        hotbed_socket_close(&listener);
    } else {
        at->listener = listener;
        status = rank == 0 ? host_rendezvous(&r, at, payload, bytes, table)
                           : join_rendezvous(&r, at, payload, bytes, table);
        dismiss_all(at);
        hotbed_socket_close(&at->listener);
    }
    hotbed_delete(at);
    hotbed_delete(table);
    return status;
}
