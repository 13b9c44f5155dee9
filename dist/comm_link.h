/* dist/comm_link.h - sockets between all ranks: where they meet, and how each learns that another has failed.
 *
 * MPI and NCCL move bytes well, but say late or never that a process has died.  A link keeps a TCP connection
 * between each two ranks, on which nothing is sent but why a rank gives up, or that it leaves in good order; a
 * connection that ends without a word is a death.  Its functions may be called from any thread.
 */
#ifndef HOTBED_DIST_COMM_LINK_H
#define HOTBED_DIST_COMM_LINK_H

#include "dist/comm.h"

typedef struct hotbed_link hotbed_link;

enum { HOTBED_LINK_HOSTS = 8, HOTBED_LINK_HOST_BYTES = 256 };

/* Where rank 0 listens.  Plain bytes, to be sent to the other ranks. */
typedef struct hotbed_link_place {
    char machine[HOTBED_LINK_HOST_BYTES]; /* its name; "": not known */
    /* Names or addresses to try; "": no more. */
    char hosts[HOTBED_LINK_HOSTS][HOTBED_LINK_HOST_BYTES];
    uint32_t port;
    uint64_t cookie; /* the same on all ranks of one meeting */
} hotbed_link_place;

/* Listen on `port` of all addresses (0: any free port) for rank 0, and say where.  *listener is closed by
 * hotbed_link_open().  Errors: COMM (the port is taken). */
hotbed_status hotbed_link_listen(uint32_t port, int *listener, hotbed_link_place *place);

/* Who this rank is: as of `bootstrap`, or, where that is NULL, by the environment's RANK and WORLD_SIZE, with the
 * place of MASTER_ADDR and MASTER_PORT.  Errors: ARGUMENT. */
hotbed_status hotbed_link_read(
    const hotbed_comm *bootstrap, uint32_t *rank, uint32_t *size, hotbed_link_place *place);

/* Rank 0 listens, and `bootstrap`, where there is one, tells the others where.  All its ranks call it together.
 * Errors: COMM. */
hotbed_status hotbed_link_find(
    hotbed_comm *bootstrap, uint32_t rank, hotbed_link_place *place, int *listener);

/* Close it, where there is no meeting; -1 is allowed. */
void hotbed_link_unlisten(int listener);

/* The meeting: connect all ranks with all.  Synchronous.
 *
 *   listener  rank 0's; -1 on the others
 *   payload   [bytes] rank 0's, which the others get; NULL with 0
 *   until     when to give up, by hotbed_comm_now()
 *
 * Errors: COMM (a rank did not come in time), MEMORY. */
hotbed_status hotbed_link_open(
    uint32_t rank, uint32_t size, const hotbed_link_place *place, int listener, void *payload,
    size_t bytes, uint64_t until, hotbed_link **out);

/* Say goodbye after `runs` batches, and before that why `comm` has failed, if it has; close.  Whether a rank was
 * seen to have died. */
bool hotbed_link_close(hotbed_link *link, const hotbed_comm *comm, uint64_t runs);

/* Tell all ranks why `comm` has failed. */
void hotbed_link_spread(hotbed_link *link, const hotbed_comm *comm);

/* Wait up to `milliseconds`, above 0 in one thread only, for news, and record what fails `comm` in it: what another rank told, or that
 * one has died. */
void hotbed_link_poll(hotbed_link *link, hotbed_comm *comm, int milliseconds);

/* Whether rank p said goodbye before its run number `run`; if so, that is recorded. */
bool hotbed_link_left(hotbed_link *link, hotbed_comm *comm, uint32_t p, uint64_t run);

#endif
