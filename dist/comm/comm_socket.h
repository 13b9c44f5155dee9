/* dist/comm/comm_socket.h - TCP sockets with deadlines. A process that this one forks does not keep them.
 *
 * A rank's death is known by its closed connections. A child that it has forked, such as a data
 * loader's worker, would keep them open, so a handler of fork() closes them in the child. Deadlines
 * are times of hotbed_monotonic_now(). Functions may be called from any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HOTBED_SOCKET_REASON_BYTES = 128 };

/* What came of an attempt to connect. */
typedef enum hotbed_reach {
    HOTBED_REACH_OK = 0,
    HOTBED_REACH_NO_HOST = 1, /* the name service does not know the name, or does not answer */
    HOTBED_REACH_NO_PEER = 2, /* nobody listens there, or no answer in time */
} hotbed_reach;

/* Connect to a name or an address. `until` also ends the search for the name, which the C library
 * does without a limit: it goes on in a thread of its own. On NO_HOST `reason` has the system's
 * text. */
hotbed_reach hotbed_socket_connect(
    const char *host, uint32_t port, uint64_t until, int *out,
    char reason[HOTBED_SOCKET_REASON_BYTES]);

/* Listen on *port of all addresses (0: any free port, which is stored); -1 with errno on failure. */
int hotbed_socket_listen(uint32_t *port);

/* Accept a connection that is waiting; -1 with errno on failure. */
int hotbed_socket_accept(int listener);

/* Close *socket, unless it is -1, and set it to -1. */
void hotbed_socket_close(int *socket);

/* Write the address of the other side as text; false: it has none. */
bool hotbed_socket_peer(int socket, char *text, size_t capacity);

/* Whether the other side has closed a connection on which nothing has arrived. */
bool hotbed_socket_is_closed(int socket);

/* Send or receive all of the bytes. False: the connection failed or ended, or `until` has passed. */
bool hotbed_socket_send(int socket, const void *data, size_t bytes, uint64_t until);
bool hotbed_socket_recv(int socket, void *data, size_t bytes, uint64_t until);

/* The milliseconds until `until`, for poll(): 0 .. 1000. */
int hotbed_socket_left_ms(uint64_t until);
