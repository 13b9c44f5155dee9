/* tests/dist/world.h - run a test's body on every rank of a communicator, whatever the transport.
 *
 * The environment's HOTBED_TEST_TRANSPORT says which: unset (self and threads on the host), "gpu" (the same on one
 * GPU, CUDA streams), "mpi" (this
 * process is a rank of an MPI job), "nccl" (a thread for each of HOTBED_TEST_GPUS GPUs), "nccl-processes"
 * (this process is a rank, found by RANK and the like), "nccl-mpi" (found by MPI).
 */
#ifndef HOTBED_TESTS_WORLD_H
#define HOTBED_TESTS_WORLD_H

#include "hotbed/comm.h"
#include "hotbed/stream.h"

/* What a rank's body has.  Its stream is synced when the body returns. */
typedef struct world_rank {
    hotbed_comm *comm;
    hotbed_stream *stream;
    uint32_t rank, size;
    void *argument; /* as given to world_run(), the same for all ranks */
} world_rank;

typedef void (*world_body)(world_rank *me);

/* Sizes of worlds to try here, ends with 0: 1 (twice: self and threads), 2, 3, 4, 8, 33, or the job's. */
typedef struct world {
    hotbed_transport transport;
    uint32_t size;
} world;
const world *world_list(void);

/* Whether a test of up to `most` ranks has this world.  Small tests have two ranks where they may choose, or one
 * where there are no more. */
bool world_is_wanted(const world *where, uint32_t most);

/* Why there are no such worlds here; NULL: there are. */
const char *world_missing(void);

/* Whether this rank's collectives can be recorded in a graph. Collectives of threads on a GPU cannot. */
bool world_records(const world_rank *me);

/* The ranks of one world, a thread each where they are threads.  `options` may be NULL. */
void world_run(
    const world *where, const hotbed_comm_options *options, world_body body, void *argument);

/* The same, without options, by existing communicators where creation takes long: NCCL communicators
 * (half a second) are kept from the first run to the end of the program, which has one world then.  Not for bodies
 * that make them fail. */
void world_run_kept(const world *where, world_body body, void *argument);

/* world_run() for each of world_list(); SKIPs the test where there is none. */
void world_run_all(const hotbed_comm_options *options, world_body body, void *argument);

/* Bytes in device memory, and beside them on the host. */
typedef struct world_bytes {
    hotbed_memory device;
    uint8_t *host;
    size_t bytes;
} world_bytes;

world_bytes world_alloc(const world_rank *me, size_t bytes);     /* both filled with 0xa5 */
void world_upload(const world_rank *me, const world_bytes *b);   /* syncs */
void world_download(const world_rank *me, const world_bytes *b); /* syncs */
void world_free(world_bytes *b);

#endif
