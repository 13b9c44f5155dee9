/* dist/comm_link.c - sockets between all ranks: rendezvous, and how each rank learns that another
 * has failed. */
#define _DEFAULT_SOURCE 1 /* getifaddrs */
#include "dist/comm_link.h"

#include "base/error.h"
#include "base/monotonic.h"
#include "base/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MAGIC = 0x68424c32,
    STRANGER_MS = 2000, /* time for a connecting peer to send its hello */
    REFUSE_MS = 5000,   /* how long rank 0 answers ranks after it has failed the rendezvous */
    RETRY_MS = 20,      /* between attempts to connect to a rank that does not listen yet */
    PORT_BYTES = 8
};

/* First message on a connection. */
typedef struct hello {
    uint32_t magic, rank, size;
    uint32_t to;   /* the rank that it wants to reach */
    uint32_t port; /* where the sender listens */
    uint64_t cookie;
} hello;

/* Rank 0's answer to a hello. */
typedef struct answer {
    uint32_t size;        /* number of ranks, as rank 0 knows it */
    uint32_t other, rank; /* `rank` says that there are `other` ranks, and all fail; 0: none does */
} answer;

/* The address at which a rank listens, as rank 0 sees it. */
typedef struct entry {
    char host[HOTBED_LINK_HOST_BYTES];
    uint32_t port;
} entry;

typedef enum news_kind {
    NEWS_FAILED = 1,
    NEWS_BYE = 2,
} news_kind;

typedef struct news {
    uint32_t kind;
    uint64_t runs; /* BYE: batches that the sender has done */
    hotbed_comm_fault fault;
} news;

typedef struct peer {
    int socket; /* -1: none, or closed */
    bool bye;
    bool gone;      /* its process ended without a word */
    uint64_t runs;  /* batches that the peer had done when it said goodbye */
    size_t partial; /* bytes of `news` received so far */
    news news;
} peer;

struct hotbed_link {
    pthread_mutex_t lock;
    uint32_t rank, size;
    uint32_t num_gone;
    hotbed_comm_fault announced; /* the first failure that a rank has announced; reason 0: none */
    peer peers[];
};

/* --- sockets with a deadline ------------------------------------------------------------------ */

static int left_ms(uint64_t until) {
    uint64_t now = hotbed_monotonic_now();
    uint64_t ms = until > now ? (until - now) / 1000000U : 0;
    return ms > 1000 ? 1000 : (int)ms;
}

/* Wait until the socket can be read or written; false once `until` has passed. */
static bool ready(int socket, short events, uint64_t until) {
    struct pollfd fd = {.fd = socket, .events = events};
    while (hotbed_monotonic_now() < until)
        if (poll(&fd, 1, left_ms(until) + 1) > 0)
            return true;
    return false;
}

static bool send_all(int socket, const void *data, size_t bytes, uint64_t until) {
    const char *at = data;
    while (bytes > 0) {
        ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!ready(socket, POLLOUT, until))
                return false;
            continue;
        }
        if (sent <= 0)
            return false;
        at += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

static bool recv_all(int socket, void *data, size_t bytes, uint64_t until) {
    char *at = data;
    while (bytes > 0) {
        ssize_t got = recv(socket, at, bytes, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!ready(socket, POLLIN, until))
                return false;
            continue;
        }
        if (got <= 0)
            return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

static void close_socket(int *socket) {
    if (*socket >= 0)
        (void)close(*socket);
    *socket = -1;
}

static void set_options(int socket) {
    int on = 1;
    (void)setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(
        socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on); /* the machine is unreachable */
    (void)fcntl(socket, F_SETFD, FD_CLOEXEC);
}

/* Try one address; -1 on failure. */
static int try_address(const struct addrinfo *address, uint64_t until) {
    int s = socket(address->ai_family, SOCK_STREAM, 0);
    if (s < 0)
        return -1;
    set_options(s);
    (void)fcntl(s, F_SETFL, O_NONBLOCK);
    int error = connect(s, address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    socklen_t length = sizeof error;
    if (error == EINPROGRESS &&
        (!ready(s, POLLOUT, until) || getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length) != 0))
        error = ETIMEDOUT;
    if (error != 0)
        close_socket(&s);
    return s;
}

static int try_host(const char *host, uint32_t port, uint64_t until) {
    char service[PORT_BYTES];
    (void)snprintf(service, sizeof service, "%u", port % 65536);
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    if (getaddrinfo(host, service, &hints, &found) != 0)
        return -1;
    int s = -1;
    for (const struct addrinfo *a = found; a != NULL && s < 0; a = a->ai_next) {
        uint64_t soon = hotbed_monotonic_now() + (uint64_t)STRANGER_MS * 1000000U;
        s = try_address(a, soon < until ? soon : until);
    }
    freeaddrinfo(found);
    return s;
}

static bool is_loopback(const char *host) {
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "::ffff:127.", 11) == 0;
}

/* Try each host of the place once, addresses before names: resolving a name can take long without a
 * server. */
static int try_place(const hotbed_link_place *place, uint64_t until) {
    char here[HOTBED_LINK_HOST_BYTES] = "";
    (void)gethostname(here, sizeof here - 1);
    bool known = place->machine[0] != '\0';
    bool same = known && strcmp(here, place->machine) == 0;
    int s = same ? try_host("127.0.0.1", place->port, until) : -1;
    for (uint32_t h = 0; h < HOTBED_LINK_HOSTS && place->hosts[h][0] != '\0' && s < 0; h++)
        if (!known || same ||
            !is_loopback(place->hosts[h])) /* another machine's loopback address is useless here */
            s = try_host(place->hosts[h], place->port, until);
    return s < 0 && known && !same ? try_host(place->machine, place->port, until) : s;
}

/* Connect to the place, retry until a rank listens there or `until` passes, and send the hello. */
static int connect_to(const hotbed_link_place *place, const hello *own, uint64_t until) {
    const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000L};
    while (hotbed_monotonic_now() < until) {
        int s = try_place(place, until);
        if (s >= 0 && send_all(s, own, sizeof *own, until))
            return s;
        close_socket(&s);
        (void)nanosleep(&pause, NULL);
    }
    return -1;
}

/* Accept the next connection of a rank of this rendezvous, which may know another number of ranks;
 * -1 once `until` has passed. */
static int accept_from(int listener, const hello *own, hello *theirs, uint64_t until) {
    while (ready(listener, POLLIN, until)) {
        int s = accept(listener, NULL, NULL);
        if (s < 0)
            continue;
        set_options(s);
        uint64_t soon = hotbed_monotonic_now() + (uint64_t)STRANGER_MS * 1000000U;
        if (recv_all(s, theirs, sizeof *theirs, soon < until ? soon : until) &&
            theirs->magic == MAGIC && theirs->cookie == own->cookie && theirs->to == own->rank &&
            theirs->rank > own->rank && theirs->rank < theirs->size)
            return s;
        close_socket(&s); /* another program, or a rank of another rendezvous */
    }
    return -1;
}

/* --- rendezvous ---------------------------------------------------------------------------- */

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

/* Listen on all addresses of a family; -1 on failure. *length: bytes written to *address. */
static int listen_on(
    sa_family_t family, uint32_t port, struct sockaddr_storage *address, socklen_t *length) {
    int s = socket(family, SOCK_STREAM, 0), on = 1, off = 0;
    memset(address, 0, sizeof *address);
    address->ss_family = family;
    ((struct sockaddr_in *)address)->sin_port =
        htons((uint16_t)port); /* sin_port and sin6_port have the same offset */
    *length = family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    (void)fcntl(s, F_SETFD, FD_CLOEXEC);
    (void)setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (family == AF_INET6)
        (void)setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (s < 0 || bind(s, (struct sockaddr *)address, *length) != 0 || listen(s, SOMAXCONN) != 0 ||
        getsockname(s, (struct sockaddr *)address, length) != 0)
        close_socket(&s);
    return s;
}

hotbed_status hotbed_link_listen(uint32_t port, int *listener, hotbed_link_place *place) {
    struct sockaddr_storage address;
    socklen_t length;
    int s = listen_on(AF_INET6, port, &address, &length);
    if (s < 0) /* the machine has no IPv6 */
        s = listen_on(AF_INET, port, &address, &length);
    char reason[HOTBED_REASON_BYTES];
    if (s < 0)
        return hotbed_fail(
            HOTBED_ERR_COMM, "cannot listen on port %u for the other ranks: %s%s", port,
            hotbed_reason(errno, reason), port == 0 ? "" : "; choose another MASTER_PORT");
    memset(place, 0, sizeof *place);
    list_hosts(place);
    place->port = ntohs(((const struct sockaddr_in *)&address)->sin_port);
    place->cookie = hotbed_monotonic_now() ^ (uint64_t)getpid() << 48;
    *listener = s;
    return HOTBED_OK;
}

void hotbed_link_unlisten(int listener) {
    close_socket(&listener);
}

/* One rank's part in a rendezvous. */
typedef struct rendezvous {
    hello own;
    const hotbed_link_place *place; /* where rank 0 listens */
    uint64_t since, until;
} rendezvous;

/* Some ranks, for messages: "ranks 2, 3". */
typedef struct rank_list {
    char text[160];
} rank_list;

/* The first ranks by name, and the number of the others. */
static rank_list list_ranks(const uint32_t *ranks, uint32_t n) {
    enum { NAMED = 8 };
    rank_list list;
    size_t length = (size_t)snprintf(list.text, sizeof list.text, "rank%s ", n == 1 ? "" : "s");
    for (uint32_t i = 0; i < n && i < NAMED; i++)
        length += (size_t)snprintf(
            list.text + length, sizeof list.text - length, i == 0 ? "%u" : ", %u", ranks[i]);
    if (n > NAMED)
        (void)snprintf(list.text + length, sizeof list.text - length, " and %u more", n - NAMED);
    return list;
}

/* The ranks from `first` on that have not come: by the table, or, if it is NULL, those without a
 * connection. */
static rank_list list_missing(const hotbed_link *l, const entry *table, uint32_t first) {
    uint32_t missing[HOTBED_COMM_RANKS_MAX], n = 0;
    for (uint32_t p = first; p < l->size; p++)
        if (table != NULL ? table[p].port == 0 : l->peers[p].socket < 0)
            missing[n++] = p;
    return list_ranks(missing, n);
}

static hotbed_status fail_wait(
    const rendezvous *r, const char *whom, const char *host, uint32_t port, const char *advice) {
    double seconds = (double)(hotbed_monotonic_now() - r->since) / 1e9;
    return hotbed_fail(
        HOTBED_ERR_COMM, "rank %u of %u waited %.*f s for %s at %s:%u; %s", r->own.rank,
        r->own.size, seconds < 10 ? 1 : 0, seconds, whom, host, port, advice);
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

static hotbed_status fail_sizes(const rendezvous *r, const answer *a) {
    return hotbed_fail(
        HOTBED_ERR_ARGUMENT, "rank %u: the number of ranks is %u on rank 0, but %u on rank %u; %s",
        r->own.rank, a->size, a->other, a->rank,
        r->place->machine[0] == '\0' ? "set WORLD_SIZE to the same number for all ranks"
                                     : "pass the same number on all ranks");
}

/* Send an answer to all ranks that have come, and the table unless the sizes differ. Returns the
 * first rank to which this failed; `size` if there is none. */
static uint32_t answer_all(
    const hotbed_link *l, const rendezvous *r, const answer *a, const entry *table) {
    uint32_t lost = l->size;
    for (uint32_t p = 1; p < l->size; p++) {
        int s = l->peers[p].socket;
        bool sent =
            s < 0 || (send_all(s, a, sizeof *a, r->until) &&
                      (a->other != 0 || send_all(s, table, l->size * sizeof *table, r->until)));
        if (!sent && lost == l->size)
            lost = p;
    }
    return lost;
}

/* Rank 0: the rank that sent `theirs` on `socket` knows another number of ranks. Answer the ranks
 * that have come, and for REFUSE_MS ranks that come later, until the larger world is complete. */
static hotbed_status refuse_sizes(
    const hotbed_link *l, const rendezvous *r, int listener, int socket, hello theirs) {
    const answer first = {.size = l->size, .other = theirs.size, .rank = theirs.rank};
    const uint64_t soon = hotbed_monotonic_now() + (uint64_t)REFUSE_MS * 1000000U;
    const uint64_t until = soon < r->until ? soon : r->until;
    uint32_t most = l->size, came = 1; /* rank 0 itself */
    (void)answer_all(l, r, &first, NULL);
    for (uint32_t p = 1; p < l->size; p++)
        came += l->peers[p].socket >= 0 ? 1 : 0;
    while (socket >= 0) {
        answer a = first;
        if (theirs.size != l->size)
            a.other = theirs.size, a.rank = theirs.rank;
        (void)send_all(socket, &a, sizeof a, r->until);
        close_socket(&socket);
        most = theirs.size > most ? theirs.size : most;
        if (++came < most)
            socket = accept_from(listener, &r->own, &theirs, until);
    }
    return fail_sizes(r, &first);
}

/* Rank 0: wait for all other ranks, then send the table of places to each of them. If a rank does
 * not come, the others get the table too: it has no port for the missing ranks. */
static hotbed_status host_rendezvous(
    hotbed_link *l, const rendezvous *r, int listener, const void *payload, size_t bytes,
    entry *table) {
    const answer well = {.size = l->size};
    for (uint32_t n = 1; n < l->size;) {
        hello theirs;
        int s = accept_from(listener, &r->own, &theirs, r->until);
        if (s < 0) {
            (void)answer_all(l, r, &well, table);
            return fail_meeting(r, list_missing(l, table, 1).text);
        }
        if (theirs.size != l->size)
            return refuse_sizes(l, r, listener, s, theirs);
        if (l->peers[theirs.rank].socket >= 0) {
            close_socket(&s);
            return hotbed_fail(
                HOTBED_ERR_COMM, "two processes say that they are rank %u of %u", theirs.rank,
                l->size);
        }
        l->peers[theirs.rank].socket = s;
        struct sockaddr_storage address;
        socklen_t length = sizeof address;
        if (getpeername(s, (struct sockaddr *)&address, &length) != 0 ||
            getnameinfo(
                (struct sockaddr *)&address, length, table[theirs.rank].host,
                HOTBED_LINK_HOST_BYTES, NULL, 0, NI_NUMERICHOST) != 0)
            return hotbed_fail(HOTBED_ERR_COMM, "rank %u has no address", theirs.rank);
        table[theirs.rank].port = theirs.port;
        n++;
    }
    uint32_t lost = answer_all(l, r, &well, table);
    for (uint32_t p = 1; p < l->size && lost == l->size; p++)
        if (!send_all(l->peers[p].socket, payload, bytes, r->until))
            lost = p;
    if (lost < l->size)
        return hotbed_fail(
            HOTBED_ERR_COMM, "rank %u left before all %u ranks had met", lost, l->size);
    return HOTBED_OK;
}

/* Connect to rank 0 and wait for its answer and the table of ranks. If the listener closes first, it
 * belonged to an earlier rendezvous on this port: retry. */
static hotbed_status visit_host(
    hotbed_link *l, const rendezvous *r, void *payload, size_t bytes, entry *table) {
    for (;;) {
        int *s = &l->peers[0].socket;
        *s = connect_to(r->place, &r->own, r->until);
        if (*s < 0)
            return fail_meeting(r, "rank 0");
        answer a = {.other = 0};
        bool answered = recv_all(*s, &a, sizeof a, r->until);
        if (answered && a.other != 0)
            return fail_sizes(r, &a);
        if (answered && recv_all(*s, table, l->size * sizeof *table, r->until)) {
            for (uint32_t p = 1; p < l->size; p++)
                if (table[p].port == 0)
                    return fail_meeting(r, list_missing(l, table, 1).text);
            if (recv_all(*s, payload, bytes, r->until))
                return HOTBED_OK;
        }
        close_socket(s);
        if (hotbed_monotonic_now() >= r->until)
            return fail_meeting(r, "other ranks, of which rank 0 knows the numbers,");
    }
}

/* Other ranks: connect to rank 0, receive the table, connect to ranks with smaller numbers, accept
 * the others. */
static hotbed_status join_rendezvous(
    hotbed_link *l, rendezvous *r, void *payload, size_t bytes, entry *table) {
    const hotbed_link_place *place = r->place;
    hotbed_link_place here;
    int listener = -1;
    HOTBED_TRY(hotbed_link_listen(0, &listener, &here));
    r->own.port = here.port;
    hotbed_status status = visit_host(l, r, payload, bytes, table);
    for (uint32_t p = 1; p < l->rank && status == HOTBED_OK; p++) {
        hotbed_link_place there = {.port = table[p].port};
        /* A rank on rank 0's machine may have registered a loopback address: also try rank 0's
         * hosts. */
        memcpy(there.machine, place->machine, sizeof there.machine);
        memcpy(there.hosts[1], place->hosts[0], sizeof there.hosts - sizeof there.hosts[0]);
        memcpy(there.hosts[0], table[p].host, sizeof there.hosts[0]);
        r->own.to = p;
        l->peers[p].socket = connect_to(&there, &r->own, r->until);
        if (l->peers[p].socket < 0) {
            char whom[32];
            (void)snprintf(whom, sizeof whom, "rank %u", p);
            status = fail_wait(r, whom, table[p].host, table[p].port, check_network);
        }
    }
    for (uint32_t n = l->rank + 1; n < l->size && status == HOTBED_OK; n++) {
        hello theirs = {0};
        int s = accept_from(listener, &r->own, &theirs, r->until);
        if (s >= 0 && theirs.size != l->size) /* rank 0 has compared the sizes of all ranks */
            close_socket(&s);
        if (s < 0)
            status = fail_wait(
                r, list_missing(l, NULL, l->rank + 1).text, here.machine, here.port, check_network);
        else
            l->peers[theirs.rank].socket = s;
    }
    close_socket(&listener);
    return status;
}

static void free_link(hotbed_link *l) {
    for (uint32_t p = 0; p < l->size; p++)
        close_socket(&l->peers[p].socket);
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
    rendezvous r = {
        .own = {.magic = MAGIC, .rank = rank, .size = size, .cookie = place->cookie},
        .place = place,
        .since = hotbed_monotonic_now(),
        .until = until,
    };
    hotbed_link *l = hotbed_new(sizeof *l + size * sizeof l->peers[0]);
    entry *table = hotbed_new(size * sizeof *table);
    hotbed_status status = HOTBED_OK;
    if (l == NULL || table == NULL) {
        hotbed_delete(l);
        l = NULL;
        status = hotbed_fail(HOTBED_ERR_MEMORY, "no memory for connections to %u ranks", size);
    } else {
        pthread_mutex_init(&l->lock, NULL);
        l->rank = rank;
        l->size = size;
        for (uint32_t p = 0; p < size; p++)
            l->peers[p].socket = -1;
        status = rank == 0 ? host_rendezvous(l, &r, listener, payload, bytes, table)
                           : join_rendezvous(l, &r, payload, bytes, table);
    }
    close_socket(&listener);
    hotbed_delete(table);
    if (status == HOTBED_OK)
        *out = l;
    else if (l != NULL)
        free_link(l);
    return status;
}

/* --- news ----------------------------------------------------------------------------------- */

/* Send a message to all ranks. Called under the lock. The message is small and the socket's buffer
 * empty, so a partial send does not occur. */
static void tell_all(hotbed_link *l, const news *what) {
    for (uint32_t p = 0; p < l->size; p++)
        if (l->peers[p].socket >= 0)
            (void)send(l->peers[p].socket, what, sizeof *what, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void hotbed_link_announce(hotbed_link *l, const hotbed_comm *comm) {
    news what;
    memset(&what, 0, sizeof what); /* clear the padding, which is sent too */
    what.kind = NEWS_FAILED;
    what.fault = comm->fault;
    pthread_mutex_lock(&l->lock);
    tell_all(l, &what);
    pthread_mutex_unlock(&l->lock);
}

bool hotbed_link_leave(hotbed_link *l, uint64_t runs) {
    news what;
    memset(&what, 0, sizeof what);
    what.kind = NEWS_BYE;
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

static void take_news(hotbed_link *l, peer *from) {
    from->partial = 0;
    if (from->news.kind == NEWS_BYE) {
        from->bye = true;
        from->runs = from->news.runs;
    } else if (l->announced.reason == HOTBED_COMM_WELL) {
        l->announced = from->news.fault;
        l->announced.text[sizeof l->announced.text - 1] = '\0';
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
            close_socket(&from->socket);
            from->gone = !from->bye;
            l->num_gone += from->gone ? 1 : 0;
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
    hotbed_comm_fault fault = {.reason = HOTBED_COMM_LEFT, .rank = n == 1 ? (int32_t)gone[0] : -1};
    (void)snprintf(
        fault.text, sizeof fault.text,
        n == 1 ? "%s is gone: its process ended without a word"
               : "%s are gone: their processes ended, it is not known which one first",
        list_ranks(gone, n).text);
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
        (void)hotbed_comm_record_fault(
            comm, fault.reason, fault.rank, fault.operation, "%s", fault.text);
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
