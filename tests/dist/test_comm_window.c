/* tests/dist/test_comm_window.c - windows: ranks write into each other's memory. */
#include "dist/comm/comm_window.h"
#include "tests/dist/window_case.h"
#include "tests/dist/world.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 12 };

typedef struct setting {
    hotbed_window *window;
    world_bytes bad;
    window_args args;
} setting;

static setting set_up(world_rank *me) {
    uint64_t bytes = (uint64_t)me->size * WINDOW_WORDS * sizeof(uint64_t);
    setting s = {.bad = world_alloc(me, sizeof(uint64_t))};
    memset(s.bad.host, 0, s.bad.bytes);
    world_upload(me, &s.bad);
    CHECK_OK(hotbed_window_create(me->comm, bytes, me->stream, &s.window));
    s.args = (window_args){
        .parts = s.window->parts,
        .own = s.window->data,
        .bad = s.bad.device.data,
        .rank = me->rank,
        .size = me->size,
    };
    return s;
}

static void tear_down(world_rank *me, setting *s) {
    world_download(me, &s->bad);
    const uint64_t none = 0;
    CHECK_BYTES(s->bad.host, &none, sizeof none);
    hotbed_window_destroy(s->window);
    world_free(&s->bad);
}

static void put_body(world_rank *me) {
    setting s = set_up(me);
    CHECK_EQ((uintptr_t)s.args.own % 256, 0);
    CHECK_EQ(window_device(s.args.own, me->stream), hotbed_stream_device(me->stream));
    world_bytes part = world_alloc(me, (size_t)me->size * WINDOW_WORDS * sizeof(uint64_t));
    world_bytes address = world_alloc(me, sizeof(void *));
    CHECK_OK(hotbed_copy(part.device.data, s.args.own, part.bytes, me->stream));
    CHECK_OK(hotbed_copy(address.device.data, s.args.parts + me->rank, address.bytes, me->stream));
    world_download(me, &part);
    world_download(me, &address);
    for (size_t i = 0; i < part.bytes; i++)
        CHECK_EQ(part.host[i], 0);
    /* NCCL may map the window at two addresses. */
    if (hotbed_comm_transport(me->comm) != HOTBED_TRANSPORT_NCCL)
        CHECK_BYTES(address.host, &s.args.own, sizeof s.args.own);
    CHECK_OK(hotbed_window_barrier(s.window, me->stream)); /* all ranks have checked */
    for (s.args.round = 1; s.args.round <= ROUNDS; s.args.round++) {
        CHECK_OK(window_put(&s.args, me->stream));
        CHECK_OK(hotbed_window_barrier(s.window, me->stream));
        CHECK_OK(window_check(&s.args, me->stream));
        CHECK_OK(hotbed_window_barrier(s.window, me->stream));
    }
    tear_down(me, &s);
    world_free(&part);
    world_free(&address);
}

static void ranks_write_into_each_others_parts(hotbed_backend backend) {
    world_run_all(NULL, put_body, NULL);
}

/* A graph with a put and a barrier, launched once and ten times. */
static void graph_body(world_rank *me) {
    if (!world_records(me))
        return;
    setting s = set_up(me);
    s.args.round = 9;
    hotbed_graph *graph = NULL;
    CHECK_OK(hotbed_graph_begin(me->stream));
    CHECK_OK(window_put(&s.args, me->stream));
    CHECK_OK(hotbed_window_barrier(s.window, me->stream));
    CHECK_OK(window_check(&s.args, me->stream));
    CHECK_OK(hotbed_window_barrier(s.window, me->stream));
    CHECK_OK(hotbed_graph_end(me->stream, &graph));
    for (uint32_t i = 0; i < 10; i++)
        CHECK_OK(hotbed_graph_launch(graph, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
    hotbed_graph_destroy(graph);
    tear_down(me, &s);
}

static void a_recorded_graph_has_its_barriers(hotbed_backend backend) {
    world_run_all(NULL, graph_body, NULL);
}

static void disagree_body(world_rank *me) {
    hotbed_window *window = NULL;
    uint64_t bytes = me->rank == me->size / 2 ? 64 : 128 << 10;
    CHECK_STATUS(hotbed_window_create(me->comm, 0, me->stream, &window), HOTBED_ERR_ARGUMENT);
    hotbed_status status = hotbed_window_create(me->comm, bytes, me->stream, &window);
    CHECK_EQ(status, me->size > 1 ? HOTBED_ERR_ARGUMENT : HOTBED_OK);
    CHECK_EQ(window == NULL, me->size > 1);
    hotbed_window_destroy(window);
    CHECK_STATUS(hotbed_window_barrier(NULL, me->stream), HOTBED_ERR_ARGUMENT);
    /* All ranks refused, so all continue. */
    CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
}

static void windows_have_one_size(hotbed_backend backend) {
    world_run_all(NULL, disagree_body, NULL);
}

/* If an allocation fails on one rank, no rank gets a window. */
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
    if (world_list()->transport == HOTBED_TRANSPORT_NCCL)
        SKIP("NCCL's own allocations are not ours to fail");
    world_run_all(NULL, no_memory_body, NULL);
}

/* Without symmetric memory NCCL returns a host handle, which kernels must not receive. */
static void refused_body(world_rank *me) {
    hotbed_window *window = NULL;
    CHECK_STATUS(hotbed_window_create(me->comm, 64, me->stream, &window), HOTBED_ERR_UNSUPPORTED);
    CHECK(window == NULL);
    CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
}

static void windows_are_refused_without_symmetric_memory(hotbed_backend backend) {
    const char *enabled = getenv("NCCL_WIN_ENABLE");
    if (enabled == NULL || strcmp(enabled, "0") != 0)
        SKIP("NCCL_WIN_ENABLE is not 0");
    world_run_all(NULL, refused_body, NULL);
}

static void abort_body(world_rank *me) {
    hotbed_window *window = NULL;
    CHECK_OK(hotbed_window_create(me->comm, 64, me->stream, &window));
    if (me->rank == me->size / 2)
        hotbed_comm_abort(me->comm, NULL, NULL);
    hotbed_status status = hotbed_window_barrier(window, me->stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(me->stream);
    CHECK_EQ(status, HOTBED_ERR_COMM);
    hotbed_window_destroy(window);
    CHECK_STATUS(hotbed_window_create(me->comm, 64, me->stream, &window), HOTBED_ERR_COMM);
}

static void an_abort_ends_a_barrier(hotbed_backend backend) {
    world_run_all(NULL, abort_body, NULL);
}

const hotbed_test hotbed_tests[] = {
    {TEST(ranks_write_into_each_others_parts)},
    {TEST(a_recorded_graph_has_its_barriers)},
    {TEST(windows_have_one_size)},
    {TEST(a_window_fails_at_any_allocation)},
    {TEST(windows_are_refused_without_symmetric_memory)},
    {TEST(an_abort_ends_a_barrier)},
    {NULL, NULL},
};
