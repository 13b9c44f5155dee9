/* tests/dist/test_comm_fail.c - ranks that abort, leave, are missing or disagree, and what the
 * other ranks report. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "base/clock.h"
#include "dist/comm/comm.h"
#include "tests/dist/world.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { LONG_MS = WORLD_DEADLINE_MS, SHORT_MS = 300, NCCL_MS = 15000 };

static hotbed_comm_options with_deadline(uint32_t deadline_ms) {
    hotbed_comm_options options = {.size = sizeof options, .deadline_ms = deadline_ms};
    return options;
}

/* This rank's communicator has failed for `reason`, blames `rank` (-1: any rank), and every call
 * says so; no call hangs. */
static void check_failed(world_rank *me, hotbed_comm_reason reason, int32_t rank) {
    hotbed_comm_fault fault = {.size = sizeof fault};
    CHECK_OK(hotbed_comm_failure(me->comm, &fault));
    CHECK_EQ(fault.reason, reason);
    if (rank >= 0)
        CHECK_EQ(fault.rank, rank);
    CHECK(fault.text[0] != '\0');
    uint64_t calls = 0, after = 0;
    CHECK_OK(hotbed_comm_log_digest(me->comm, &calls, NULL));
    CHECK_STATUS(hotbed_comm_barrier(me->comm, me->stream), HOTBED_ERR_COMM);
    CHECK(strstr(hotbed_last_error(), fault.text) != NULL);
    CHECK_EQ(hotbed_last_error_detail()->cause, HOTBED_CAUSE_COMM);
    CHECK_EQ((hotbed_last_error_detail()->has & HOTBED_HAS_RANK) != 0, fault.rank >= 0);
    CHECK_EQ(hotbed_last_error_detail()->rank, fault.rank >= 0 ? fault.rank : 0);
    CHECK_STATUS(hotbed_comm_all_gather(me->comm, 0, NULL, NULL, me->stream), HOTBED_ERR_COMM);
    CHECK_OK(hotbed_comm_log_digest(me->comm, &after, NULL));
    CHECK_EQ(after, calls);
    CHECK_OK(hotbed_stream_sync(me->stream)); /* the stream itself has not failed */
}

/* The failure's text names the operation, which was a barrier, and not only its number.  NCCL's marks
 * have only the number. */
static void check_title(const world_rank *me) {
    hotbed_comm_fault fault = {.size = sizeof fault};
    CHECK_OK(hotbed_comm_failure(me->comm, &fault));
    if (hotbed_comm_transport(me->comm) != HOTBED_TRANSPORT_NCCL)
        CHECK(strstr(fault.text, ", barrier with tag 0: rank ") != NULL);
    const int64_t none = hotbed_comm_transport(me->comm) == HOTBED_TRANSPORT_NCCL ? -1 : 0;
    CHECK_EQ(fault.tags[0], none);
    CHECK_EQ(fault.tags[1], -1);
}

/* Run a few exchanges without failures first, so that the failure comes in the middle of a job.
 * Returns COMM if another rank has already gone on and failed the communicator. */
static hotbed_status warm_up(world_rank *me) {
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < 3 && status == HOTBED_OK; i++)
        status = hotbed_comm_barrier(me->comm, me->stream);
    hotbed_status synced = hotbed_stream_sync(me->stream);
    return status == HOTBED_OK ? synced : status;
}

static void well_body(world_rank *me) {
    CHECK_OK(warm_up(me));
}

/* Run `body` in each world of more than one rank; then check that the next communicator of these
 * ranks works. */
static void run_worlds(uint32_t deadline_ms, world_body body) {
    const char *missing = world_missing();
    if (missing != NULL)
        SKIP(missing);
    bool nccl = world_list()->transport == HOTBED_TRANSPORT_NCCL; /* takes seconds to start */
    hotbed_comm_options options = with_deadline(nccl ? NCCL_MS : deadline_ms);
    for (const world *where = world_list(); where->size > 0; where++)
        if (where->size > 1) {
            world_run(where, &options, body, NULL);
            world_run(where, NULL, well_body, NULL);
        }
}

static uint32_t culprit(const world_rank *me) {
    return me->size / 2;
}

/* --- abort ---------------------------------------------------------------------------------- */

static void abort_body(world_rank *me) {
    hotbed_status status = warm_up(me); /* the abort may arrive before any of the calls */
    if (me->rank == culprit(me)) {
        CHECK_OK(status);
        hotbed_comm_abort(me->comm, NULL, NULL);
        hotbed_comm_abort(me->comm, NULL, NULL); /* a second abort has no effect */
    } else { /* the others wait for this rank, with more operations queued */
        world_bytes data = world_alloc(me, 64);
        world_bytes all = world_alloc(me, 64 * (size_t)me->size);
        for (uint32_t i = 0; i < 4 && status == HOTBED_OK; i++)
            status =
                hotbed_comm_all_gather(me->comm, 64, data.device.data, all.device.data, me->stream);
        hotbed_status synced = hotbed_stream_sync(me->stream);
        CHECK(status == HOTBED_ERR_COMM || synced == HOTBED_ERR_COMM);
        world_free(&data);
        world_free(&all);
    }
    check_failed(me, HOTBED_COMM_ABORTED, (int32_t)culprit(me));
}

static void an_abort_reaches_every_rank(hotbed_backend backend) {
    run_worlds(LONG_MS, abort_body);
}

static void *abort_main(void *argument) {
    hotbed_comm_abort(argument, NULL, NULL);
    return NULL;
}

/* The rank's own thread waits for its stream while another one aborts. */
static void abort_elsewhere_body(world_rank *me) {
    hotbed_status status = warm_up(me);
    if (me->rank == culprit(me)) {
        pthread_t thread;
        CHECK_OK(status);
        CHECK_EQ(pthread_create(&thread, NULL, abort_main, me->comm), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
    } else {
        if (status == HOTBED_OK)
            status = hotbed_comm_barrier(me->comm, me->stream);
        if (status == HOTBED_OK)
            status = hotbed_stream_sync(me->stream);
        CHECK_EQ(status, HOTBED_ERR_COMM);
    }
    check_failed(me, HOTBED_COMM_ABORTED, (int32_t)culprit(me));
}

static void an_abort_may_come_from_another_thread(hotbed_backend backend) {
    run_worlds(LONG_MS, abort_elsewhere_body);
}

/* --- leaving -------------------------------------------------------------------------------- */

static void leave_body(world_rank *me) {
    hotbed_status status = warm_up(me);
    bool threads = hotbed_comm_transport(me->comm) == HOTBED_TRANSPORT_THREADS;
    /* Operations before the departure complete.  A process that is late to complete them may learn
     * of the departure first. */
    if (me->rank == culprit(me) || threads)
        CHECK_OK(status);
    if (me->rank == culprit(me))
        return; /* world.c destroys its communicator */
    if (status == HOTBED_OK)
        status = hotbed_comm_barrier(me->comm, me->stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(me->stream);
    CHECK_EQ(status, HOTBED_ERR_COMM);
    check_failed(me, HOTBED_COMM_LEFT, (int32_t)culprit(me));
    check_title(me);
}

static void a_rank_that_leaves_is_noticed(hotbed_backend backend) {
    run_worlds(LONG_MS, leave_body);
}

/* --- deadline ------------------------------------------------------------------------------- */

static void sleep_ms(long ms) {
    (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* The missing rank is the one that the transport blames when several ranks are late: threads blame
 * the first, MPI the last.  So the right rank is blamed even where a busy machine delays others
 * beyond the deadline. */
static uint32_t absent(const world_rank *me) {
    return hotbed_comm_transport(me->comm) == HOTBED_TRANSPORT_THREADS ? 0 : me->size - 1;
}

/* Set the short deadline only once all ranks run: a busy machine is slow to start them. */
static void late_body(world_rank *me) {
    hotbed_comm_fault fault = {.size = sizeof fault};
    bool nccl = hotbed_comm_transport(me->comm) == HOTBED_TRANSPORT_NCCL;
    hotbed_status status =
        warm_up(me); /* COMM if the deadline has passed on another rank before this call ends */
    if (!nccl)
        me->comm->deadline_ms = SHORT_MS;
    if (me->rank == absent(me)) { /* never enters the barrier, and still learns of the failure */
        while (fault.reason == HOTBED_COMM_WELL) {
            sleep_ms(1);
            CHECK_OK(hotbed_comm_failure(me->comm, &fault));
        }
    } else {
        if (status == HOTBED_OK)
            status = hotbed_comm_barrier(me->comm, me->stream);
        if (status == HOTBED_OK) { /* else the call itself blocked: threads on a GPU */
            status = hotbed_stream_sync(me->stream);
            CHECK(strstr(hotbed_last_error(), "passed its deadline") != NULL);
        }
        CHECK_EQ(status, HOTBED_ERR_COMM);
    }
    check_failed(me, HOTBED_COMM_DEADLINE, nccl ? -1 : (int32_t)absent(me));
    check_title(me);
}

static void a_missing_rank_runs_into_the_deadline(hotbed_backend backend) {
    run_worlds(LONG_MS, late_body);
}

/* Rank 1 arrives shortly before the deadline, and its copy ends after the time that was left: the
 * first write to its buffer waits in a signal handler.  The library's threads block signals, so rank
 * 1 copies on its own thread. */
enum { SLOW_BYTES = 1 << 16, SLOW_DEADLINE_MS = 1500, SLOW_ARRIVES_MS = 1200, SLOW_COPY_MS = 500 };
static uint8_t *slow_buffer;
static bool slow_copies;      /* atomic; rank 1 has begun to copy */
static uint64_t slow_arrived; /* atomic; when rank 1 began the call */

static void wait_and_unlock(int number, siginfo_t *info, void *context) {
    uintptr_t at = (uintptr_t)info->si_addr, begin = (uintptr_t)slow_buffer;
    if (at - begin >= SLOW_BYTES) { /* the program's own fault: end it */
        (void)signal(number, SIG_DFL);
        return;
    }
    __atomic_store_n(&slow_copies, true, __ATOMIC_SEQ_CST);
    sleep_ms(SLOW_COPY_MS);
    (void)mprotect(slow_buffer, SLOW_BYTES, PROT_READ | PROT_WRITE);
}

static void slow_copy_body(world_rank *me) {
    uint64_t send_bytes[2] = {0}, recv_bytes[2] = {0};
    world_bytes data = world_alloc(me, SLOW_BYTES);
    hotbed_exchange x = {
        .send = data.device.data,
        .send_bytes = send_bytes,
        .recv = slow_buffer,
        .recv_bytes = recv_bytes,
    };
    CHECK_OK(warm_up(me));
    if (me->rank == 0) {
        send_bytes[1] = SLOW_BYTES;
        me->comm->deadline_ms = SLOW_DEADLINE_MS;
    } else {
        recv_bytes[0] = SLOW_BYTES;
        sleep_ms(SLOW_ARRIVES_MS);
        __atomic_store_n(&slow_arrived, hotbed_monotonic_now(), __ATOMIC_SEQ_CST);
    }
    hotbed_stream_options options = {.size = sizeof options};
    hotbed_stream *stream;
    options.backend = HOTBED_BACKEND_HOST;
    options.run_inline = true;
    CHECK_OK(hotbed_stream_create_with(&options, &stream));
    hotbed_status status = hotbed_comm_exchange(me->comm, 1, &x, stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(stream);
    hotbed_stream_destroy(stream);
    /* On a busy machine rank 1 may arrive too late, or its copy may take longer than the deadline. */
    if (status != HOTBED_OK) {
        CHECK_EQ(status, HOTBED_ERR_COMM);
        if (__atomic_load_n(&slow_copies, __ATOMIC_SEQ_CST))
            CHECK(
                hotbed_monotonic_now() - __atomic_load_n(&slow_arrived, __ATOMIC_SEQ_CST) >=
                SLOW_DEADLINE_MS * UINT64_C(1000000));
    }
    if (status == HOTBED_OK && me->rank == 1)
        CHECK_BYTES(slow_buffer, data.host, SLOW_BYTES);
    world_free(&data);
}

static void a_copy_after_a_late_arrival_has_its_own_deadline(hotbed_backend backend) {
    const world two = {HOTBED_TRANSPORT_THREADS, 2};
    if (getenv("HOTBED_TEST_TRANSPORT") != NULL)
        SKIP("is about threads on the host");
    struct sigaction action = {.sa_sigaction = wait_and_unlock, .sa_flags = SA_SIGINFO}, before;
    slow_buffer = mmap(NULL, SLOW_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(slow_buffer != MAP_FAILED);
    CHECK_EQ(sigaction(SIGSEGV, &action, &before), 0);
    world_run(&two, NULL, slow_copy_body, NULL);
    CHECK_EQ(sigaction(SIGSEGV, &before, NULL), 0);
    CHECK_EQ(munmap(slow_buffer, SLOW_BYTES), 0);
}

/* --- turns ---------------------------------------------------------------------------------- */

typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool open;
} gate;

static void wait_at_gate(void *argument) {
    gate *g = argument;
    pthread_mutex_lock(&g->lock);
    while (!g->open)
        pthread_cond_wait(&g->opened, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void open_gate(gate *g) {
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->opened);
    pthread_mutex_unlock(&g->lock);
}

/* Enqueue a barrier on a stream that a gate holds up, and a second barrier on another stream. */
static hotbed_status hold_up(world_rank *me, gate *g, hotbed_stream **second) {
    CHECK_OK(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, second));
    CHECK_OK(hotbed_stream_call(me->stream, wait_at_gate, g));
    hotbed_status status = hotbed_comm_barrier(me->comm, me->stream);
    return status == HOTBED_OK ? hotbed_comm_barrier(me->comm, *second) : status;
}

static void close_gate(gate *g, hotbed_stream *second) {
    hotbed_stream_destroy(second);
    CHECK_EQ(pthread_cond_destroy(&g->opened), 0);
    CHECK_EQ(pthread_mutex_destroy(&g->lock), 0);
}

/* The second barrier of every rank waits much longer than the deadline for the first one, which no
 * rank has reached.  The deadline is short only while no operation waits for another rank. */
static void turn_body(world_rank *me) {
    const uint32_t deadline_ms = me->comm->deadline_ms;
    gate g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    hotbed_stream *second = NULL;
    hotbed_comm_fault fault = {.size = sizeof fault};
    CHECK_OK(warm_up(me));
    me->comm->deadline_ms = 1;
    CHECK_OK(hold_up(me, &g, &second));
    uint64_t until = hotbed_monotonic_now() + 30 * UINT64_C(1000000);
    while (hotbed_monotonic_now() < until && fault.reason == HOTBED_COMM_WELL)
        CHECK_OK(hotbed_comm_failure(me->comm, &fault));
    CHECK_EQ(fault.reason, HOTBED_COMM_WELL);
    me->comm->deadline_ms = deadline_ms;
    open_gate(&g);
    CHECK_OK(hotbed_stream_sync(second));
    CHECK_OK(hotbed_stream_sync(me->stream));
    close_gate(&g, second);
}

/* An operation that waits for its turn ends as soon as another rank aborts. */
static void abort_in_turn_body(world_rank *me) {
    gate g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    hotbed_stream *second = NULL;
    hotbed_status status = warm_up(me);
    if (status == HOTBED_OK)
        status = hold_up(me, &g, &second);
    if (me->rank == culprit(me))
        hotbed_comm_abort(me->comm, NULL, NULL);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(second); /* the gate is still closed */
    CHECK_EQ(status, HOTBED_ERR_COMM);
    open_gate(&g);
    (void)!hotbed_stream_sync(me->stream);
    close_gate(&g, second);
    check_failed(me, HOTBED_COMM_ABORTED, (int32_t)culprit(me));
}

static bool takes_turns(void) {
    const char *transport = getenv("HOTBED_TEST_TRANSPORT");
    return transport == NULL || strcmp(transport, "") == 0 || strcmp(transport, "mpi") == 0 ||
           strcmp(transport, "sockets") == 0;
}

static void the_deadline_does_not_run_while_an_earlier_operation_is_held_up(
    hotbed_backend backend) {
    if (!takes_turns())
        SKIP("on a GPU the device orders the operations");
    run_worlds(LONG_MS, turn_body);
}

static void an_abort_ends_an_operation_that_waits_for_its_turn(hotbed_backend backend) {
    if (!takes_turns())
        SKIP("on a GPU the device orders the operations");
    run_worlds(LONG_MS, abort_in_turn_body);
}

/* --- disagreement --------------------------------------------------------------------------- */

static void check_mismatch(world_rank *me, hotbed_status status) {
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(me->stream);
    if (status == HOTBED_OK) /* a rank that did not take part may learn of it later */
        status = hotbed_comm_barrier(me->comm, me->stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(me->stream);
    CHECK_EQ(status, HOTBED_ERR_COMM);
    check_failed(me, HOTBED_COMM_MISMATCH, -1);
}

static void other_operation_body(world_rank *me) {
    hotbed_status status = warm_up(me);
    if (status == HOTBED_OK && me->rank == culprit(me))
        status = hotbed_comm_barrier(me->comm, me->stream);
    else if (status == HOTBED_OK)
        status = hotbed_comm_all_gather(me->comm, 0, NULL, NULL, me->stream);
    check_mismatch(me, status);
}

static void other_tag_body(world_rank *me) {
    hotbed_status status = warm_up(me);
    hotbed_comm_set_tag(me->comm, me->rank == culprit(me) ? 5 : 6);
    if (status == HOTBED_OK)
        status = hotbed_comm_barrier(me->comm, me->stream);
    check_mismatch(me, status);
}

/* Rank 0 sends the culprit more than it expects. */
static void other_sizes_body(world_rank *me) {
    uint64_t send_bytes[64] = {0}, recv_bytes[64] = {0};
    world_bytes data = world_alloc(me, 32), got = world_alloc(me, 32);
    hotbed_status status = warm_up(me);
    if (me->rank == 0)
        send_bytes[culprit(me)] = 17;
    if (me->rank == culprit(me))
        recv_bytes[0] = 16;
    hotbed_exchange x = {
        .send = data.device.data,
        .send_bytes = send_bytes,
        .recv = got.device.data,
        .recv_bytes = recv_bytes,
    };
    if (status == HOTBED_OK)
        status = hotbed_comm_exchange(me->comm, 1, &x, me->stream);
    check_mismatch(me, status);
    world_free(&data);
    world_free(&got);
}

static bool compares(void) {
    return world_missing() != NULL || world_list()->transport != HOTBED_TRANSPORT_NCCL;
}

static void ranks_that_disagree_on_an_operation_fail(hotbed_backend backend) {
    if (!compares())
        SKIP("NCCL does not compare what the ranks do");
    run_worlds(LONG_MS, other_operation_body);
    run_worlds(LONG_MS, other_tag_body);
    run_worlds(LONG_MS, other_sizes_body);
}

/* --- an abort during an exchange ------------------------------------------------------------ */

/* The culprit aborts during a transfer; each rank may free its memory as soon as its stream is done. */
static void midway_body(world_rank *me) {
    enum { BYTES = 300000, ROUNDS = 20 };
    world_bytes send = world_alloc(me, (size_t)BYTES * me->size);
    world_bytes recv = world_alloc(me, (size_t)BYTES * me->size);
    hotbed_status status = warm_up(me);
    for (uint32_t i = 0; i < ROUNDS && status == HOTBED_OK; i++) {
        if (i == ROUNDS / 2 && me->rank == culprit(me))
            hotbed_comm_abort(me->comm, NULL, NULL);
        status =
            hotbed_comm_all_to_all(me->comm, BYTES, send.device.data, recv.device.data, me->stream);
    }
    hotbed_status synced = hotbed_stream_sync(me->stream);
    CHECK(status == HOTBED_ERR_COMM || synced == HOTBED_ERR_COMM);
    world_free(&send);
    world_free(&recv);
    check_failed(me, HOTBED_COMM_ABORTED, (int32_t)culprit(me));
}

static void memory_may_be_freed_once_the_stream_is_done(hotbed_backend backend) {
    const char *missing = world_missing();
    if (missing != NULL)
        SKIP(missing);
    for (const world *where = world_list(); where->size > 0; where++)
        if (where->size > 1 && where->size <= 8)
            world_run(where, NULL, midway_body, NULL);
}

/* --- create --------------------------------------------------------------------------------- */

static void create_fails_at_any_allocation(hotbed_backend backend) {
    hotbed_comm_options options = with_deadline(0);
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
        hotbed_comm *comms[3] = {NULL};
        fault_arm(n);
        hotbed_status status = hotbed_comm_create_threads(&options, 3, comms);
        failed = fault_disarm();
        CHECK_STATUS(status, failed ? HOTBED_ERR_MEMORY : HOTBED_OK);
        for (uint32_t r = 0; r < 3; r++) {
            CHECK_EQ(comms[r] == NULL, failed);
            hotbed_comm_destroy(comms[r]);
        }
    }
    failed = true;
    for (uint64_t n = 1; failed; n++) {
        hotbed_comm *comm = NULL;
        fault_arm(n);
        hotbed_status status = hotbed_comm_create_self(&options, &comm);
        failed = fault_disarm();
        CHECK_STATUS(status, failed ? HOTBED_ERR_MEMORY : HOTBED_OK);
        CHECK_EQ(comm == NULL, failed);
        hotbed_comm_destroy(comm);
    }
}

static void a_rank_alone_can_abort(hotbed_backend backend) {
    world_rank me = {.size = 1};
    CHECK_OK(hotbed_comm_create_self(NULL, &me.comm));
    CHECK_OK(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &me.stream));
    hotbed_comm_abort(me.comm, NULL, NULL);
    check_failed(&me, HOTBED_COMM_ABORTED, 0);
    hotbed_comm_destroy(me.comm);
    hotbed_stream_destroy(me.stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(an_abort_reaches_every_rank)},
    {TEST(an_abort_may_come_from_another_thread)},
    {TEST(a_rank_that_leaves_is_noticed)},
    {TEST(a_missing_rank_runs_into_the_deadline)},
    {TEST(a_copy_after_a_late_arrival_has_its_own_deadline)},
    {TEST(the_deadline_does_not_run_while_an_earlier_operation_is_held_up)},
    {TEST(an_abort_ends_an_operation_that_waits_for_its_turn)},
    {TEST(ranks_that_disagree_on_an_operation_fail)},
    {TEST(memory_may_be_freed_once_the_stream_is_done)},
    {TEST(create_fails_at_any_allocation)},
    {TEST(a_rank_alone_can_abort)},
    {NULL, NULL},
};
