/* dist/comm/comm_link.h - sockets between all ranks: rendezvous, and how each rank learns that another
 * has failed.
 *
 * MPI and NCCL move bytes well, but report the death of a process late or never. A link keeps a TCP
 * connection between each two ranks. A rank sends on it only the first failure that it learns of, or
 * that it leaves in order; a connection that closes without either means that the process died.
 * Functions may be called from any thread. */
#pragma once

#include "dist/comm/comm.h"

typedef struct hotbed_link hotbed_link;

enum { HOTBED_LINK_HOSTS = 8, HOTBED_LINK_HOST_BYTES = 256 };

/* Where rank 0 listens. Plain bytes, to be sent to the other ranks. */
typedef struct hotbed_link_place {
    char machine[HOTBED_LINK_HOST_BYTES]; /* the host's name; "": not known */
    /* Names or addresses to try; "" ends the list. */
    char hosts[HOTBED_LINK_HOSTS][HOTBED_LINK_HOST_BYTES];
    uint32_t port;
    /* The same on all ranks of one rendezvous: random, or from the job's word in the environment. */
    uint64_t cookie;
} hotbed_link_place;

/* What a rank sends on a link. */
typedef enum hotbed_news_kind {
    HOTBED_NEWS_FAILED = 1,
    HOTBED_NEWS_BYE = 2,
} hotbed_news_kind;

typedef struct hotbed_link_news {
    uint32_t kind; /* hotbed_news_kind */
    uint64_t runs; /* BYE: batches that the sender has done */
    hotbed_comm_fault fault;
} hotbed_link_news;

/* Listen on `port` of all addresses (0: any free port) as rank 0, and describe the place,
 * with a random cookie. hotbed_link_open() closes *listener. Errors: COMM (the port is in use). */
hotbed_status hotbed_link_listen(uint32_t port, int *listener, hotbed_link_place *place);

/* Find this rank's number: from `bootstrap`, or if that is NULL, from the environment's RANK and
 * WORLD_SIZE, with the place given by MASTER_ADDR and MASTER_PORT, and the cookie by HOTBED_JOB or
 * TORCHELASTIC_RUN_ID. Errors: ARGUMENT. */
hotbed_status hotbed_link_read(
    const hotbed_comm *bootstrap, uint32_t *rank, uint32_t *size, hotbed_link_place *place);

/* Make rank 0 listen, and send its address to the other ranks through `bootstrap`, unless it is
 * NULL. All ranks call it together. Errors: COMM. */
hotbed_status hotbed_link_find(
    hotbed_comm *bootstrap, uint32_t rank, hotbed_link_place *place, int *listener);

/* Close the listener if there is no rendezvous; -1 is allowed. */
void hotbed_link_unlisten(int listener);

/* The rendezvous: connect all ranks with each other. Synchronous.
 *
 * listener: rank 0's, which the call closes; -1 on the others. payload [bytes]: rank 0's, copied to the others;
 * NULL with 0. until: when to stop trying, by hotbed_monotonic_now().
 *
 * Errors: COMM (a rank did not come in time: the text says which, where, how long this rank
 * waited, and whether another program or no host answered; two processes with one number), ARGUMENT (`size` is
 * not the same on all ranks: the text has two sizes, with a rank for each; rank 0 answers so for up to five
 * seconds after it has found this), MEMORY. */
hotbed_status hotbed_link_open(
    uint32_t rank, uint32_t size, const hotbed_link_place *place, int listener, void *payload,
    size_t bytes, uint64_t until, hotbed_link **out);

/* Say goodbye after `runs` batches. Returns whether a rank was seen to have died. The link stays
 * open, for a process that ends. */
bool hotbed_link_leave(hotbed_link *link, uint64_t runs);

/* The same, and close the link. */
bool hotbed_link_close(hotbed_link *link, uint64_t runs);

/* Return the socket to rank p, to send data other than news; -1: there is none. The link keeps it. */
int hotbed_link_socket(const hotbed_link *link, uint32_t p);

/* Close a link without a goodbye. NULL is allowed. */
void hotbed_link_drop(hotbed_link *link);

/* Tell all ranks comm->fault: for a transport's `announce`. */
void hotbed_link_announce(hotbed_link *link, const hotbed_comm *comm);

/* Wait up to `milliseconds` for messages, and record a failure of `comm`: one that another rank
 * announced, or the end of processes. With several ended processes the fault has rank -1. */
void hotbed_link_poll(hotbed_link *link, hotbed_comm *comm, int milliseconds);

/* Whether rank p said goodbye before its batch number `run`; if so, that is recorded. `batch`: that
 * batch, for the text; NULL: only its number is known. */
bool hotbed_link_left(
    hotbed_link *link, hotbed_comm *comm, uint32_t p, uint64_t run, const hotbed_comm_batch *batch);

/* Called when no data of a batch has moved for a while: whether to wait on. If a rank that is waited for has
 * died, left, or not come by `until`, that is recorded. waits: whether data from or to rank p is outstanding. */
bool hotbed_link_goes_on(
    hotbed_link *link, hotbed_comm *comm, const hotbed_comm_batch *batch, uint64_t until,
    bool (*waits)(hotbed_comm *comm, uint32_t p));
