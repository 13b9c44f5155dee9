/* tests/dist/world.h - run a test's body on every rank of a communicator, over any transport.
 *
 * The environment variable HOTBED_TEST_TRANSPORT selects the transport: unset (self and threads on
 * the host), "gpu" (the same on one GPU, with CUDA streams), "mpi" (this process is a rank of an
 * MPI job), "sockets" (a rank found by RANK and the like), "nccl" (a thread for each of
 * HOTBED_TEST_GPUS GPUs), "nccl-processes" (this process is a rank, found by RANK and the like),
 * "nccl-mpi" (found by MPI). */
#pragma once

#include "hotbed/comm.h"
#include "hotbed/stream.h"

/* The arguments of a body on one rank.  Its stream is synced when the body returns. */
typedef struct world_rank {
    hotbed_comm *comm;
    hotbed_stream *stream;
    uint32_t rank, size;
    void *argument; /* as passed to world_run(), the same for all ranks */
} world_rank;

typedef void (*world_body)(world_rank *me);

/* The worlds to test with; the last one has size 0. Sizes 1 (self, and threads), 2, 3, 4, 8, 33, or the job's size. */
typedef struct world {
    hotbed_transport transport;
    uint32_t size;
} world;
const world *world_list(void);

/* Whether a test with up to `most` ranks runs in this world.  Short runs choose two ranks, or one
 * if no world is larger. */
bool world_is_wanted(const world *where, uint32_t most);

/* Why this environment has no worlds; NULL: it has some. */
const char *world_missing(void);

/* Whether each rank is a process. */
bool world_is_a_process(void);

/* Whether this rank's collectives can be recorded in a graph: not between threads on a GPU. */
bool world_records(const world_rank *me);

/* Deadline for ranks of the host in tests that are not about it: on a busy machine a rank may be minutes behind. */
enum { WORLD_DEADLINE_MS = 900000 };

/* Run `body` on the ranks of one world, on a thread each if they are threads.  `options` may be NULL.  Without a
 * deadline, ranks of the host get WORLD_DEADLINE_MS. */
void world_run(
    const world *where, const hotbed_comm_options *options, world_body body, void *argument);

/* The same without options, with communicators that are created once where creation is slow: NCCL's
 * (half a second) are kept from the first run to the end of the program, which then has one world
 * only.  Not for bodies that make communicators fail. */
void world_run_kept(const world *where, world_body body, void *argument);

/* world_run() for each world of world_list(); SKIPs the test if there are none. */
void world_run_all(const hotbed_comm_options *options, world_body body, void *argument);

/* Bytes in device memory, and a host array of the same size. */
typedef struct world_bytes {
    hotbed_memory device;
    uint8_t *host;
    size_t bytes;
} world_bytes;

world_bytes world_alloc(const world_rank *me, size_t bytes);     /* both filled with 0xa5 */
void world_upload(const world_rank *me, const world_bytes *b);   /* syncs */
void world_download(const world_rank *me, const world_bytes *b); /* syncs */
void world_free(world_bytes *b);
