/* tests/dist/comm_death.c - a rank of an MPI job kills itself; the others say what they saw.
 *
 * Rank 1 dies in the phase that the environment's PHASE names.  The others print "survivor RANK: ...", or fail
 * a check.  comm_death.sh runs it.
 */
#include "hotbed/comm.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VICTIM = 1, BYTES = 4 << 20, ROUNDS = 16 };

static void die(void *argument) {
    (void)argument;
    (void)kill(getpid(), SIGKILL);
}

static void exchange(hotbed_comm *comm, hotbed_stream *stream, uint8_t *send, uint8_t *recv) {
    hotbed_status status = HOTBED_OK; /* COMM as soon as the death is known */
    for (uint32_t i = 0; i < ROUNDS && status == HOTBED_OK; i++)
        status = hotbed_comm_all_to_all(comm, BYTES / hotbed_comm_size(comm), send, recv, stream);
}

static hotbed_status barrier(hotbed_comm *comm, hotbed_stream *stream) {
    hotbed_status status = hotbed_comm_barrier(comm, stream);
    return status == HOTBED_OK ? hotbed_stream_sync(stream) : status;
}

static void run(hotbed_backend backend) {
    (void)backend;
    const char *phase = getenv("PHASE"), *number = getenv("OMPI_COMM_WORLD_RANK");
    if (phase == NULL || number == NULL)
        SKIP("not run by comm_death.sh");
    hotbed_comm_options options;
    hotbed_comm_options_init(&options);
    options.deadline_ms = 1000;
    int rank = (int)strtol(number, NULL, 10);
    bool victim = rank == VICTIM;
    hotbed_comm *comm = NULL;
    if (strcmp(phase, "create") == 0) { /* it is there, but does not come */
        hotbed_comm *first = NULL;
        CHECK_OK(hotbed_comm_create_mpi(&options, &first)); /* so that MPI is up everywhere */
        if (victim)
            die(NULL);
        CHECK_STATUS(hotbed_comm_create_mpi(&options, &comm), HOTBED_ERR_COMM);
        printf("survivor %d: create\n", rank);
        comm = first;
    } else {
        CHECK_OK(hotbed_comm_create_mpi(&options, &comm));
    }
    hotbed_stream *stream = NULL;
    CHECK_OK(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream));
    uint8_t *send = malloc(BYTES), *recv = malloc(BYTES);
    CHECK(send != NULL && recv != NULL);
    memset(send, rank, BYTES);
    if (strcmp(phase, "idle") == 0 && victim)
        die(NULL);
    if (strcmp(phase, "before") == 0) { /* the others are in an operation, it is not */
        CHECK_OK(barrier(comm, stream));
        if (victim)
            CHECK_OK(hotbed_stream_call(stream, die, NULL));
    }
    if (strcmp(phase, "between") == 0) /* all are between two operations of a stream */
        for (uint32_t i = 0; i < 50; i++)
            if (hotbed_comm_barrier(comm, stream) == HOTBED_OK && i == 25 && victim)
                CHECK_OK(hotbed_stream_call(stream, die, NULL));
    exchange(comm, stream, send, recv);
    if (strcmp(phase, "middle") == 0 && victim)
        die(NULL); /* its lane is on the way */
    (void)!hotbed_stream_sync(stream);
    if (strcmp(phase, "end") == 0) { /* all is done and the communicator gone */
        hotbed_comm_destroy(comm);
        if (victim)
            die(NULL);
        printf("survivor %d: end\n", rank);
        (void)fflush(stdout);
        _exit(0); /* MPI_Finalize would wait for it */
    }
    CHECK_EQ(barrier(comm, stream), HOTBED_ERR_COMM);
    hotbed_comm_fault fault;
    CHECK_OK(hotbed_comm_failure(comm, &fault));
    CHECK_EQ(fault.reason, HOTBED_COMM_LEFT);
    CHECK_EQ(fault.rank, VICTIM);
    hotbed_comm_destroy(comm);
    /* Over MPI there is no next one without the dead; among those in the process there is. */
    options.deadline_ms = 200;
    CHECK_STATUS(hotbed_comm_create_mpi(&options, &comm), HOTBED_ERR_COMM);
    CHECK(comm == NULL);
    CHECK_OK(hotbed_comm_create_self(NULL, &comm));
    CHECK_OK(barrier(comm, stream));
    hotbed_comm_destroy(comm);
    hotbed_stream_destroy(stream);
    free(send);
    free(recv);
    printf("survivor %d: left\n", rank);
}

const hotbed_test hotbed_tests[] = {{"the_others_see_a_death", run}, {NULL, NULL}};
