/* tests/dist/test_comm_window.c - windows: ranks write into each other's memory. */
#include "base/host_launch.h"
#include "tests/dist/world.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <string.h>

enum { WORDS = 64, ROUNDS = 12 };

/* A host kernel of rank `me`: word w of its column in everyone's part. */
typedef struct put_args {
    void *const *parts;
    uint32_t me, size, round;
} put_args;

static uint64_t word_of(uint32_t from, uint32_t to, uint32_t w, uint32_t round) {
    return (uint64_t)round << 48 | (uint64_t)from << 32 | (uint64_t)to << 16 | w;
}

static void put(const void *args, uint64_t begin, uint64_t end) {
    const put_args *a = args;
    for (uint64_t to = begin; to < end; to++)
        for (uint32_t w = 0; w < WORDS; w++)
            ((uint64_t *)a->parts[to])[a->me * WORDS + w] =
                word_of(a->me, (uint32_t)to, w, a->round);
}

typedef struct check_args {
    const uint64_t *words;
    uint32_t me, size, round;
} check_args;

static void check(const void *args, uint64_t begin, uint64_t end) {
    const check_args *a = args;
    for (uint64_t from = begin; from < end; from++)
        for (uint32_t w = 0; w < WORDS; w++)
            CHECK_EQ(a->words[from * WORDS + w], word_of((uint32_t)from, a->me, w, a->round));
}

static void put_body(world_rank *me) {
    hotbed_window *window = NULL;
    CHECK_OK(
        hotbed_window_create(me->comm, me->size * WORDS * sizeof(uint64_t), me->stream, &window));
    uint64_t *own = hotbed_window_data(window);
    CHECK_EQ((uintptr_t)own % 256, 0);
    CHECK_EQ(hotbed_window_parts(window)[me->rank], own);
    for (uint32_t w = 0; w < me->size * WORDS; w++)
        CHECK_EQ(own[w], 0);
    CHECK_OK(hotbed_window_barrier(window, me->stream)); /* all have looked */
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        put_args p = {hotbed_window_parts(window), me->rank, me->size, round};
        CHECK_OK(hotbed_host_launch(me->stream, me->size, 1, put, &p, sizeof p));
        CHECK_OK(hotbed_window_barrier(window, me->stream));
        check_args c = {own, me->rank, me->size, round};
        CHECK_OK(hotbed_host_launch(me->stream, me->size, 1, check, &c, sizeof c));
        CHECK_OK(hotbed_window_barrier(window, me->stream));
    }
    CHECK_OK(hotbed_stream_sync(me->stream));
    hotbed_window_destroy(window);
}

static void ranks_write_into_each_others_parts(hotbed_backend backend) {
    (void)backend;
    world_run_all(NULL, put_body, NULL);
}

/* One launch is a put and a barrier, ten launches are ten. */
static void graph_body(world_rank *me) {
    hotbed_window *window = NULL;
    CHECK_OK(
        hotbed_window_create(me->comm, me->size * WORDS * sizeof(uint64_t), me->stream, &window));
    hotbed_graph *graph = NULL;
    put_args p = {hotbed_window_parts(window), me->rank, me->size, 9};
    check_args c = {hotbed_window_data(window), me->rank, me->size, 9};
    CHECK_OK(hotbed_graph_begin(me->stream));
    CHECK_OK(hotbed_host_launch(me->stream, me->size, 1, put, &p, sizeof p));
    CHECK_OK(hotbed_window_barrier(window, me->stream));
    CHECK_OK(hotbed_host_launch(me->stream, me->size, 1, check, &c, sizeof c));
    CHECK_OK(hotbed_window_barrier(window, me->stream));
    CHECK_OK(hotbed_graph_end(me->stream, &graph));
    for (uint32_t i = 0; i < 10; i++)
        CHECK_OK(hotbed_graph_launch(graph, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
    hotbed_graph_destroy(graph);
    hotbed_window_destroy(window);
}

static void a_recorded_graph_has_its_barriers(hotbed_backend backend) {
    (void)backend;
    world_run_all(NULL, graph_body, NULL);
}

static void disagree_body(world_rank *me) {
    hotbed_window *window = NULL;
    uint64_t bytes = me->rank == me->size / 2 ? 64 : 128;
    CHECK_STATUS(hotbed_window_create(me->comm, 0, me->stream, &window), HOTBED_ERR_ARGUMENT);
    hotbed_status status = hotbed_window_create(me->comm, bytes, me->stream, &window);
    CHECK_EQ(status, me->size > 1 ? HOTBED_ERR_ARGUMENT : HOTBED_OK);
    CHECK_EQ(window == NULL, me->size > 1);
    hotbed_window_destroy(window);
    CHECK_STATUS(hotbed_window_barrier(NULL, me->stream), HOTBED_ERR_ARGUMENT);
    /* Refused by all, so all go on. */
    CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
}

static void windows_have_one_size(hotbed_backend backend) {
    (void)backend;
    world_run_all(NULL, disagree_body, NULL);
}

/* Some rank has no memory for its n-th allocation, so none has a window. */
static void no_memory_body(world_rank *me) {
    bool well = false;
    for (uint64_t n = 1; !well; n++) {
        hotbed_window *window = NULL;
        CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
        CHECK_OK(hotbed_stream_sync(me->stream));
        if (me->rank == 0)
            fault_arm(n);
        CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
        CHECK_OK(hotbed_stream_sync(me->stream));
        hotbed_status status = hotbed_window_create(me->comm, 4096, me->stream, &window);
        well = status == HOTBED_OK;
        if (!well)
            CHECK_EQ(status, HOTBED_ERR_MEMORY);
        CHECK_EQ(window != NULL, well);
        CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
        CHECK_OK(hotbed_stream_sync(me->stream));
        if (me->rank == 0)
            CHECK_EQ(fault_disarm(), !well);
        hotbed_window_destroy(window);
    }
}

static void a_window_fails_at_any_allocation(hotbed_backend backend) {
    (void)backend;
    if (world_list()->transport == HOTBED_TRANSPORT_NCCL)
        SKIP("NCCL's own allocations are not ours to fail");
    world_run_all(NULL, no_memory_body, NULL);
}

static void abort_body(world_rank *me) {
    hotbed_window *window = NULL;
    CHECK_OK(hotbed_window_create(me->comm, 64, me->stream, &window));
    if (me->rank == me->size / 2)
        hotbed_comm_abort(me->comm);
    hotbed_status status = hotbed_window_barrier(window, me->stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(me->stream);
    CHECK_EQ(status, HOTBED_ERR_COMM);
    hotbed_window_destroy(window);
    CHECK_STATUS(hotbed_window_create(me->comm, 64, me->stream, &window), HOTBED_ERR_COMM);
}

static void an_abort_ends_a_barrier(hotbed_backend backend) {
    (void)backend;
    world_run_all(NULL, abort_body, NULL);
}

const hotbed_test hotbed_tests[] = {
    {"ranks_write_into_each_others_parts", ranks_write_into_each_others_parts},
    {"a_recorded_graph_has_its_barriers", a_recorded_graph_has_its_barriers},
    {"windows_have_one_size", windows_have_one_size},
    {"a_window_fails_at_any_allocation", a_window_fails_at_any_allocation},
    {"an_abort_ends_a_barrier", an_abort_ends_a_barrier},
    {NULL, NULL},
};
