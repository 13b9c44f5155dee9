/* dist/comm/comm_handshake.h - how the ranks of a rendezvous recognize each other, and what they send.
 *
 * Any program can connect to rank 0's port, and any program can listen there. So each side of a
 * connection first proves that it is a rank of this job: the caller sends a hello, the rank that
 * listens a welcome, both with a magic number, a version and the job's cookie. Everything that
 * follows is checked too. docs/design/dist.md has the order of the messages. */
#pragma once

#include "dist/comm/comm_link.h"

enum {
    HOTBED_HELLO_MAGIC = 0x4f4c4548,   /* "HELO"; differs from the welcome's, so an echo is none */
    HOTBED_WELCOME_MAGIC = 0x43574248, /* "HBWC" */
    HOTBED_HANDSHAKE_VERSION = 3,
};

/* First message of the rank that connects. All versions begin with magic and version. */
typedef struct hotbed_hello {
    uint32_t magic, version;
    uint64_t cookie; /* the same on all ranks of a rendezvous */
    uint32_t rank, size;
    uint32_t to;   /* the rank that it wants to reach */
    uint32_t port; /* where the sender listens */
} hotbed_hello;

/* First message of the rank that listens. */
typedef struct hotbed_welcome {
    uint32_t magic, version;
    uint64_t cookie; /* 0 for a hello with another cookie: the caller must not learn this one */
    uint32_t rank;   /* the sender */
    uint32_t unused; /* 0 */
} hotbed_welcome;

/* Rank 0's answer, when all ranks have come or one will not come. The table follows, with one seat
 * for each rank, unless the sizes differ; then the payload. */
typedef struct hotbed_answer {
    uint32_t size;        /* number of ranks, as rank 0 knows it */
    uint32_t other, rank; /* `rank` says that there are `other` ranks, and all fail; 0: none does */
} hotbed_answer;

/* Where a rank listens, as rank 0 sees it. */
typedef struct hotbed_seat {
    char host[HOTBED_LINK_HOST_BYTES]; /* an address */
    uint32_t port;                     /* 0: the rank has not come */
} hotbed_seat;

/* Some ranks, for messages: "ranks 2, 3". The first ones by number, and how many more. */
typedef struct hotbed_rank_list {
    char text[160];
} hotbed_rank_list;
hotbed_rank_list hotbed_list_ranks(const uint32_t *ranks, uint32_t n);

/* Connect all ranks: hotbed_link_open() has the parameters and errors. sockets [size] out; on an
 * error the caller closes those that are not -1. Closes the listener. */
hotbed_status hotbed_handshake(
    uint32_t rank, uint32_t size, const hotbed_link_place *place, int listener, void *payload,
    size_t bytes, uint64_t until, int *sockets);
