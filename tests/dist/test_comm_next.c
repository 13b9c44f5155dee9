/* tests/dist/test_comm_next.c - several communicators, which some ranks leave or destroy early. */
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

/* Destroy a second communicator on rank 0 before, and on the other ranks after, a barrier of the first. */
static void outlive(world_rank *me) {
    const world_rank *outer = me->argument;
    if (me->rank > 0)
        next_body((world_rank *)outer);
}

static void destroy_early(world_rank *me) {
    world_run(me->argument, NULL, outlive, me);
    if (me->rank == 0)
        next_body(me);
}

static void destroying_waits_for_no_rank(hotbed_backend backend) {
    const char *missing = world_missing();
    if (missing != NULL)
        SKIP(missing);
    const world *where = world_list();
    if (!world_is_a_process())
        SKIP("ranks that are threads destroy their communicators one after the other anyway");
    world_run(where, NULL, destroy_early, (void *)where);
}

const hotbed_test hotbed_tests[] = {
    {TEST(destroying_waits_for_no_rank)},
    {TEST(late_messages_do_not_reach_the_next_communicator)},
    {NULL, NULL},
};
