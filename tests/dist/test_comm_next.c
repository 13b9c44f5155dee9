/* tests/dist/test_comm_next.c - consecutive communicators, when some ranks leave the first one early. */
#include "tests/dist/world.h"
#include "tests/support/harness.h"

#include <time.h>

/* All ranks run `barriers`; then the last rank goes on to the next communicator while messages that
 * the others sent over the first communicator are still in flight. */
static void leave_early(world_rank *me) {
    const uint32_t *barriers = me->argument;
    hotbed_status status = HOTBED_OK; /* COMM on a slow rank, if the last rank has already left */
    for (uint32_t i = 0; i < *barriers && status == HOTBED_OK; i++)
        status = hotbed_comm_barrier(me->comm, me->stream);
    hotbed_status synced = hotbed_stream_sync(me->stream);
    if (status == HOTBED_OK)
        status = synced;
    if (me->rank == me->size - 1) {
        CHECK_OK(status);
        return;
    }
    /* The result must not depend on the delay. */
    (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    if (status == HOTBED_OK)
        status = hotbed_comm_barrier(me->comm, me->stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(me->stream);
    CHECK_EQ(status, HOTBED_ERR_COMM);
}

static void next_body(world_rank *me) {
    CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
}

/* After several numbers of operations, because MPI counts messages. */
static void late_messages_do_not_reach_the_next_communicator(hotbed_backend backend) {
    const char *missing = world_missing();
    if (missing != NULL)
        SKIP(missing);
    for (const world *where = world_list(); where->size > 0; where++) {
        uint32_t most = where->transport == HOTBED_TRANSPORT_MPI ? 12 : 2;
        for (uint32_t barriers = 0; where->size > 1 && barriers < most; barriers++) {
            world_run(where, NULL, leave_early, &barriers);
            world_run(where, NULL, next_body, NULL);
        }
    }
}

const hotbed_test hotbed_tests[] = {
    {"late_messages_do_not_reach_the_next_communicator",
     late_messages_do_not_reach_the_next_communicator},
    {NULL, NULL},
};
