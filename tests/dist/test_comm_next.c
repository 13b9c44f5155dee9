/* tests/dist/test_comm_next.c - communicators one after the other, of which ranks have not seen the same end. */
#include "tests/dist/world.h"
#include "tests/support/harness.h"

#include <time.h>

/* All do `barriers`; then the last rank is through with the communicator and goes on to the next, while what the
 * others still send it is on its way. */
static void leave_early(world_rank *me) {
    const uint32_t *barriers = me->argument;
    hotbed_status status =
        HOTBED_OK; /* COMM on a rank that is slow: the others are through, and one has left */
    for (uint32_t i = 0; i < *barriers && status == HOTBED_OK; i++)
        status = hotbed_comm_barrier(me->comm, me->stream);
    hotbed_status synced = hotbed_stream_sync(me->stream);
    if (status == HOTBED_OK)
        status = synced;
    if (me->rank == me->size - 1) {
        CHECK_OK(status);
        return;
    }
    (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL); /* right or wrong at any speed */
    if (status == HOTBED_OK)
        status = hotbed_comm_barrier(me->comm, me->stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(me->stream);
    CHECK_EQ(status, HOTBED_ERR_COMM);
}

static void meet(world_rank *me) {
    CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
}

/* After any number of operations: MPI counts messages. */
static void what_is_sent_late_harms_no_other(hotbed_backend backend) {
    (void)backend;
    const char *missing = world_missing();
    if (missing != NULL)
        SKIP(missing);
    for (const world *where = world_list(); where->size > 0; where++) {
        uint32_t most = where->transport == HOTBED_TRANSPORT_MPI ? 12 : 2;
        for (uint32_t barriers = 0; where->size > 1 && barriers < most; barriers++) {
            world_run(where, NULL, leave_early, &barriers);
            world_run(where, NULL, meet, NULL);
        }
    }
}

const hotbed_test hotbed_tests[] = {
    {"what_is_sent_late_harms_no_other", what_is_sent_late_harms_no_other},
    {NULL, NULL},
};
