/* dist/comm/comm_socket.c - TCP sockets with deadlines, which a forked child does not keep. */
#define _GNU_SOURCE /* NOLINT(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): accept4() */
#include "dist/comm/comm_socket.h"

#include "base/clock.h"
#include "base/stream.h"
#include "base/thread.h"
#include "dist/comm/comm.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ATTEMPT_MS = 2000, /* for one address of several */
    HOST_BYTES = 256,
    PORT_BYTES = 8,
};

/* --- all open sockets ------------------------------------------------------------------------- */

/* The sockets that a forked child closes. The lock is held from before a socket exists until it is
 * in the list, and fork() takes it, so no child receives a socket that is not in its list. */
static struct {
    pthread_mutex_t lock;
    pthread_once_t once;
    size_t n, capacity;
    int *sockets;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static void before_fork(void) {
    pthread_mutex_lock(&all.lock);
}

static void after_fork(void) {
    pthread_mutex_unlock(&all.lock);
}

static void in_child(void) {
    for (size_t i = 0; i < all.n; i++)
        (void)close(all.sockets[i]);
    all.n = 0;
    pthread_mutex_unlock(&all.lock);
}

static void watch_forks(void) {
    hotbed_fork_watch(); /* marks the child, whose calls on communicators then fail */
    (void)pthread_atfork(before_fork, after_fork, in_child);
}

/* Lock the list, with space for one more socket; false: out of memory, and not locked. */
static bool begin_open(void) {
    (void)pthread_once(&all.once, watch_forks);
    pthread_mutex_lock(&all.lock);
    if (all.n < all.capacity)
        return true;
    const size_t capacity = all.capacity == 0 ? 64 : 2 * all.capacity;
    int *larger = realloc(all.sockets, capacity * sizeof *larger);
    if (larger == NULL) {
        pthread_mutex_unlock(&all.lock);
        errno = ENOMEM;
        return false;
    }
    all.sockets = larger;
    all.capacity = capacity;
    return true;
}

/* Add the new socket; -1: there is none. Unlocks the list, and keeps errno. */
static int end_open(int s) {
    if (s >= 0)
        all.sockets[all.n++] = s;
    pthread_mutex_unlock(&all.lock);
    return s;
}

void hotbed_socket_close(int *socket) {
    if (*socket < 0)
        return;
    pthread_mutex_lock(&all.lock);
    for (size_t i = 0; i < all.n; i++)
        if (all.sockets[i] == *socket) {
            all.sockets[i] = all.sockets[--all.n];
            break;
        }
    (void)close(*socket);
    if (all.n == 0) { /* so that a process without sockets holds no memory */
        free(all.sockets);
        all.sockets = NULL;
        all.capacity = 0;
    }
    pthread_mutex_unlock(&all.lock);
    *socket = -1;
}

static int open_socket(int family) {
    return begin_open() ? end_open(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))
                        : -1;
}

static void set_options(int s) {
    int on = 1;
    (void)setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on); /* the machine is unreachable */
}

int hotbed_socket_accept(int listener) {
    if (!begin_open())
        return -1;
    const int s = end_open(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (s >= 0)
        set_options(s);
    return s;
}

/* --- deadlines -------------------------------------------------------------------------------- */

int hotbed_socket_left_ms(uint64_t until) {
    uint64_t now = hotbed_monotonic_now();
    uint64_t ms = until > now ? (until - now) / 1000000U + 1 : 0;
    return ms > 1000 ? 1000 : (int)ms;
}

/* Wait until the socket can be read or written; false once `until` has passed. */
static bool ready(int s, short events, uint64_t until) {
    struct pollfd fd = {.fd = s, .events = events};
    while (hotbed_monotonic_now() < until)
        if (poll(&fd, 1, hotbed_socket_left_ms(until)) > 0)
            return true;
    return false;
}

bool hotbed_socket_send(int s, const void *data, size_t bytes, uint64_t until) {
    const char *at = data;
    while (bytes > 0) {
        ssize_t sent = send(s, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!ready(s, POLLOUT, until))
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

bool hotbed_socket_recv(int s, void *data, size_t bytes, uint64_t until) {
    char *at = data;
    while (bytes > 0) {
        ssize_t got = recv(s, at, bytes, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!ready(s, POLLIN, until))
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

bool hotbed_socket_is_closed(int s) {
    char byte;
    ssize_t got = recv(s, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

bool hotbed_socket_peer(int s, char *text, size_t capacity) {
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    return getpeername(s, (struct sockaddr *)&address, &length) == 0 &&
           getnameinfo(
               (struct sockaddr *)&address, length, text, (socklen_t)capacity, NULL, 0,
               NI_NUMERICHOST) == 0;
}

/* --- names ------------------------------------------------------------------------------------ */

/* A search for a name. The thread and the caller share it, and the last one frees it: the thread
 * may outlast the call. */
typedef struct lookup {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done, abandoned;
    int error;
    struct addrinfo *found;
    char host[HOST_BYTES], service[PORT_BYTES];
} lookup;

static void free_lookup(lookup *l) {
    if (l->found != NULL)
        freeaddrinfo(l->found);
    pthread_cond_destroy(&l->ended);
    pthread_mutex_destroy(&l->lock);
    hotbed_delete(l);
}

static void *search(void *argument) {
    lookup *l = argument;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    const int error = getaddrinfo(l->host, l->service, &hints, &found);
    pthread_mutex_lock(&l->lock);
    l->error = error;
    l->found = error == 0 ? found : NULL;
    l->done = true;
    const bool abandoned = l->abandoned;
    pthread_cond_signal(&l->ended);
    pthread_mutex_unlock(&l->lock);
    if (abandoned)
        free_lookup(l);
    return NULL;
}

/* getaddrinfo() with a deadline; EAI_AGAIN once `until` has passed. */
static int find_name(
    const char *host, const char *service, uint64_t until, struct addrinfo **found) {
    lookup *l = hotbed_new(sizeof *l);
    pthread_t thread;
    if (l == NULL)
        return EAI_MEMORY;
    (void)snprintf(l->host, sizeof l->host, "%s", host);
    (void)snprintf(l->service, sizeof l->service, "%s", service);
    pthread_mutex_init(&l->lock, NULL);
    hotbed_cond_init(&l->ended);
    if (hotbed_thread_start(&thread, search, l) != 0) {
        free_lookup(l);
        return EAI_MEMORY;
    }
    (void)pthread_detach(thread);
    pthread_mutex_lock(&l->lock);
    while (!l->done && hotbed_cond_wait(&l->ended, &l->lock, until))
        continue;
    const bool done = l->done;
    const int error = done ? l->error : EAI_AGAIN;
    if (done)
        *found = l->found, l->found = NULL;
    l->abandoned = !done;
    pthread_mutex_unlock(&l->lock);
    if (done)
        free_lookup(l);
    return error;
}

/* --- connect and listen ----------------------------------------------------------------------- */

/* Try one address; -1 on failure. */
static int try_address(const struct addrinfo *address, uint64_t until) {
    int s = open_socket(address->ai_family);
    if (s < 0)
        return -1;
    set_options(s);
    int error = connect(s, address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    socklen_t length = sizeof error;
    if (error == EINPROGRESS &&
        (!ready(s, POLLOUT, until) || getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length) != 0))
        error = ETIMEDOUT;
    if (error != 0)
        hotbed_socket_close(&s);
    return s;
}

hotbed_reach hotbed_socket_connect(
    const char *host, uint32_t port, uint64_t until, int *out,
    char reason[HOTBED_SOCKET_REASON_BYTES]) {
    char service[PORT_BYTES];
    (void)snprintf(service, sizeof service, "%u", port % 65536);
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(host, service, &hints, &found); /* an address needs no search */
    if (error != 0)
        error = find_name(host, service, until, &found);
    if (error != 0) {
        (void)snprintf(reason, HOTBED_SOCKET_REASON_BYTES, "%s", gai_strerror(error));
        return HOTBED_REACH_NO_HOST;
    }
    int s = -1;
    for (const struct addrinfo *a = found; a != NULL && s < 0; a = a->ai_next) {
        uint64_t soon = hotbed_monotonic_now() + (uint64_t)ATTEMPT_MS * 1000000U;
        s = try_address(a, soon < until ? soon : until);
    }
    freeaddrinfo(found);
    *out = s;
    return s < 0 ? HOTBED_REACH_NO_PEER : HOTBED_REACH_OK;
}

/* Listen on all addresses of a family; -1 with errno on failure. */
static int listen_on(sa_family_t family, uint32_t *port) {
    struct sockaddr_storage address = {.ss_family = family};
    /* sin_port and sin6_port have the same offset */
    struct sockaddr_in *in = (struct sockaddr_in *)&address;
    socklen_t length =
        family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int s = open_socket(family), on = 1, off = 0;
    if (s < 0)
        return -1;
    in->sin_port = htons((uint16_t)*port);
    (void)setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (family == AF_INET6)
        (void)setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(s, (struct sockaddr *)&address, length) != 0 || listen(s, SOMAXCONN) != 0 ||
        getsockname(s, (struct sockaddr *)&address, &length) != 0) {
        int error = errno;
        hotbed_socket_close(&s);
        errno = error;
        return -1;
    }
    *port = ntohs(in->sin_port);
    return s;
}

int hotbed_socket_listen(uint32_t *port) {
    int s = listen_on(AF_INET6, port);
    return s >= 0 ? s : listen_on(AF_INET, port); /* the machine may have no IPv6 */
}
