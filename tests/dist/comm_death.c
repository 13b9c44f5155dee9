/* tests/dist/comm_death.c - rank 1 of a job kills its process, or ends it without destroying its
 * communicator; the other ranks report that in time.
 *
 * The environment variable PHASE names the phase in which rank 1 dies or leaves.  The others print
 * "survivor RANK: ...", or fail a check.  comm_death.sh runs this program over MPI, sockets or
 * NCCL. */
#define _DEFAULT_SOURCE 1 /* setenv */
#include "base/clock.h"
#include "dist/comm/comm.h"
#include "tests/dist/world.h"
#include "tests/support/harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DYING_RANK = 1, BYTES = 4 << 20, ROUNDS = 16, DEADLINE_MS = 120000 };

static void die(void *argument) {
    (void)kill(getpid(), SIGKILL);
}

static hotbed_status create(
    const world *where, uint32_t deadline_ms, uint32_t rank, hotbed_comm **out) {
    hotbed_comm_options options = {.size = sizeof options, .deadline_ms = deadline_ms};
    if (where->transport == HOTBED_TRANSPORT_MPI)
        return hotbed_comm_create_mpi(&options, out);
    if (where->transport == HOTBED_TRANSPORT_SOCKETS)
        return hotbed_comm_create_sockets(&options, NULL, out);
    return hotbed_comm_create_nccl(&options, (int)rank, NULL, out);
}

static void exchange(const world_rank *me, const world_bytes *send, const world_bytes *recv) {
    hotbed_status status = HOTBED_OK; /* COMM once the death is known */
    for (uint32_t i = 0; i < ROUNDS && status == HOTBED_OK; i++)
        status = hotbed_comm_all_to_all(
            me->comm, BYTES / me->size, send->device.data, recv->device.data, me->stream);
}

static hotbed_status barrier(const world_rank *me) {
    hotbed_status status = hotbed_comm_barrier(me->comm, me->stream);
    return status == HOTBED_OK ? hotbed_stream_sync(me->stream) : status;
}

static void say(uint32_t rank, const char *what) {
    printf("survivor %u: %s\n", rank, what);
    (void)fflush(stdout);
}

/* The survivors detect the death itself, and do not wait for the deadline. */
static void check_in_time(uint64_t start) {
    CHECK(hotbed_monotonic_now() - start < (uint64_t)DEADLINE_MS / 2 * 1000000U);
}

/* A program that initialized MPI itself calls it.  NULL: this build has no MPI. */
int MPI_Finalize(void) __attribute__((weak)); /* NOLINT(readability-identifier-naming) */

/* End this process without destroying its communicator. */
static void leave(const char *phase) {
    if (strcmp(phase, "finalize") == 0)
        CHECK_EQ(MPI_Finalize(), 0);
    exit(0);
}

static void live_and_die(world_rank *me, const char *phase) {
    uint64_t start = hotbed_monotonic_now();
    bool dying = me->rank == DYING_RANK;
    bool leaves = strcmp(phase, "exit") == 0 || strcmp(phase, "finalize") == 0;
    world_bytes send = world_alloc(me, BYTES), recv = world_alloc(me, BYTES);
    if ((strcmp(phase, "idle") == 0 || strcmp(phase, "forget") == 0) && dying)
        die(NULL);
    if (strcmp(phase, "before") == 0) { /* the others run an operation, rank 1 does not */
        CHECK_OK(barrier(me));
        if (dying)
            CHECK_OK(hotbed_stream_call(me->stream, die, NULL));
    }
    if (strcmp(phase, "between") == 0) /* all ranks are between two operations of a stream */
        for (uint32_t i = 0; i < 50; i++)
            if (hotbed_comm_barrier(me->comm, me->stream) == HOTBED_OK && i == 25 && dying)
                CHECK_OK(hotbed_stream_call(me->stream, die, NULL));
    exchange(me, &send, &recv);
    if (dying && leaves) {
        CHECK_OK(hotbed_stream_sync(me->stream));
        leave(phase);
    }
    if (strcmp(phase, "middle") == 0 && dying)
        die(NULL);                                   /* while its stream runs the operation */
    if (hotbed_stream_sync(me->stream) != HOTBED_OK) /* operations have numbers from 1 */
        CHECK(strstr(hotbed_last_error(), "operation 0") == NULL);
    if (strcmp(phase, "end") == 0) { /* after the communicator is destroyed */
        hotbed_comm_destroy(me->comm);
        if (dying)
            die(NULL);
        say(me->rank, "end");
        _exit(0); /* MPI_Finalize would wait for the dead rank */
    }
    CHECK_EQ(barrier(me), HOTBED_ERR_COMM);
    check_in_time(start);
    hotbed_comm_fault fault = {.size = sizeof fault};
    CHECK_OK(hotbed_comm_failure(me->comm, &fault));
    CHECK_EQ(fault.reason, HOTBED_COMM_LEFT);
    CHECK_EQ(fault.rank, DYING_RANK);
    if (leaves || strcmp(phase, "forget") == 0) {
        say(me->rank, "left");
        leave(phase); /* must end, although a rank is gone */
    }
    hotbed_comm_destroy(me->comm);
    world_free(&send);
    world_free(&recv);
}

/* Create the next communicator, among the survivors. */
static void create_next(world_rank *me, const world *where) {
    me->comm = NULL;
    /* MPI cannot create one without the dead rank, and returns an error. */
    if (where->transport == HOTBED_TRANSPORT_MPI) {
        CHECK_STATUS(create(where, 200, me->rank, &me->comm), HOTBED_ERR_COMM);
        CHECK(me->comm == NULL);
        return;
    }
    char text[16];
    (void)snprintf(text, sizeof text, "%u", me->size - 1);
    CHECK_EQ(setenv("WORLD_SIZE", text, 1), 0);
    (void)snprintf(text, sizeof text, "%u", me->rank > DYING_RANK ? me->rank - 1 : me->rank);
    CHECK_EQ(setenv("RANK", text, 1), 0);
    CHECK_OK(create(where, DEADLINE_MS, me->rank, &me->comm));
    CHECK_EQ(hotbed_comm_size(me->comm), me->size - 1);
    CHECK_OK(barrier(me));
    hotbed_comm_destroy(me->comm);
}

static void run(hotbed_backend backend) {
    const char *phase = getenv("PHASE"), *missing = world_missing();
    const char *number = getenv("RANK") == NULL ? getenv("OMPI_COMM_WORLD_RANK") : getenv("RANK");
    if (phase == NULL || number == NULL)
        SKIP("not run by comm_death.sh");
    if (missing != NULL)
        SKIP(missing);
    const world *where = world_list();
    bool gpu = where->transport == HOTBED_TRANSPORT_NCCL;
    world_rank me = {.rank = (uint32_t)strtoul(number, NULL, 10), .size = where->size};
    CHECK_OK(create(where, DEADLINE_MS, me.rank, &me.comm));
    CHECK_OK(hotbed_stream_create(
        gpu ? HOTBED_BACKEND_CUDA : HOTBED_BACKEND_HOST, gpu ? (int)me.rank : 0, &me.stream));
    if (strcmp(phase, "create") == 0) { /* rank 1 dies before it calls create */
        hotbed_comm *second = NULL;
        if (me.rank == DYING_RANK)
            die(NULL);
        CHECK_STATUS(create(where, gpu ? 15000 : 1000, me.rank, &second), HOTBED_ERR_COMM);
        CHECK(second == NULL);
    }
    live_and_die(&me, phase);
    create_next(&me, where);
    hotbed_stream_destroy(me.stream);
    say(me.rank, "left");
}

const hotbed_test hotbed_tests[] = {{"the_others_see_a_death", run}, {NULL, NULL}};
