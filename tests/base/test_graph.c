/* tests/base/test_graph.c - contract of hotbed/stream.h: workspaces, graphs, counters. */
#include "base/float.h"
#include "base/stream.h"
#include "tests/base/cases.h"
#include "tests/support/harness.h"

/* --- workspace ------------------------------------------------------------------------------- */

static void a_workspace_stays_until_it_must_grow(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    void *small = NULL, *again = NULL, *large = NULL;
    CHECK_OK(hotbed_stream_workspace(stream, 100, &small));
    CHECK(small != NULL);
    CHECK_EQ((uintptr_t)small % 256, 0);
    hotbed_counters before = hotbed_test_counters();
    CHECK_OK(hotbed_stream_workspace(stream, 50, &again));
    CHECK(again == small);
    CHECK_EQ(hotbed_test_counters().allocations, before.allocations);
    gate *g = gate_create();
    if (backend == HOTBED_BACKEND_HOST) /* a CUDA allocation may wait for the GPU */
        CHECK_OK(hotbed_stream_call(stream, gate_wait, g));
    /* runs after the growth: the old workspace must still exist */
    CHECK_OK(hotbed_fill(small, 1, 100, stream));
    CHECK_OK(hotbed_stream_workspace(stream, 10000000, &large));
    CHECK(large != small);
    CHECK_EQ((uintptr_t)large % 256, 0);
    CHECK_OK(hotbed_fill(large, 2, 10000000, stream));
    gate_open(g);
    CHECK_OK(hotbed_stream_sync(stream));
    unsigned char byte = 0;
    cases_download(stream, &byte, (unsigned char *)large + 9999999, 1);
    CHECK_EQ(byte, 2);
    gate_destroy(g);
    hotbed_stream_destroy(stream);
}

static void a_workspace_does_not_grow_in_a_recording(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_graph *graph = NULL;
    void *memory = NULL, *other = NULL;
    CHECK_OK(hotbed_stream_workspace(stream, 1000, &memory));
    CHECK(!hotbed_stream_recording(stream));
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK(hotbed_stream_recording(stream));
    CHECK_OK(hotbed_stream_workspace(stream, 1000, &other));
    CHECK(other == memory);
    CHECK_STATUS(hotbed_stream_workspace(stream, 100000000, &other), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_graph_end(stream, &graph));
    CHECK(!hotbed_stream_recording(stream));
    hotbed_graph_destroy(graph);
    hotbed_stream_destroy(stream);
}

/* --- graphs ---------------------------------------------------------------------------------- */

static void a_graph_reads_memory_when_it_is_launched(hotbed_backend backend) {
    enum { N = 1000 };
    static uint16_t in[N];
    static float out[N];
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_memory from = cases_device(stream, sizeof in, NULL);
    hotbed_memory to = cases_device(stream, sizeof out, NULL);
    hotbed_memory copy = cases_device(stream, sizeof out, NULL);
    hotbed_graph *graph = NULL;
    int calls = 0;
    CHECK_OK(hotbed_fill(copy.data, 0, sizeof out, stream));
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_OK(hotbed_fill(to.data, 0xff, sizeof out, stream));
    CHECK_OK(cases_launch(CASE_BF16_TO_F32, N, from.data, to.data, stream));
    CHECK_OK(hotbed_copy(copy.data, to.data, sizeof out, stream));
    CHECK_OK(hotbed_stream_call(stream, cases_add_one, &calls));
    CHECK_OK(hotbed_graph_end(stream, &graph));
    cases_download(stream, out, copy.data, sizeof out);
    CHECK_EQ(calls, 0); /* recorded, not run */
    CHECK(out[1] == 0);
    for (int round = 1; round <= 20; round++) {
        for (int i = 0; i < N; i++)
            in[i] = (uint16_t)(0x3f80 + (i + round) % 64);
        CHECK_OK(hotbed_copy(from.data, in, sizeof in, stream));
        CHECK_OK(hotbed_graph_launch(graph, stream));
        cases_download(stream, out, copy.data, sizeof out);
        CHECK_EQ(calls, round);
        for (int i = 0; i < N; i++)
            CHECK_EQ(hotbed_float_bits(out[i]), (uint32_t)in[i] << 16);
    }
    hotbed_graph_destroy(graph);
    hotbed_memory_free(&copy);
    hotbed_memory_free(&to);
    hotbed_memory_free(&from);
    hotbed_stream_destroy(stream);
}

static void launches_of_a_graph_run_one_after_the_other(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_graph *graph = NULL, *empty = NULL;
    int calls = 0;
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_OK(hotbed_graph_end(stream, &empty));
    CHECK_OK(hotbed_graph_begin(stream));
    for (int i = 0; i < 40; i++)
        CHECK_OK(hotbed_stream_call(stream, cases_add_one, &calls));
    CHECK_OK(hotbed_graph_end(stream, &graph));
    hotbed_counters before = hotbed_test_counters();
    for (int i = 0; i < 200; i++) {
        CHECK_OK(hotbed_graph_launch(graph, stream));
        CHECK_OK(hotbed_graph_launch(empty, stream));
    }
    hotbed_counters after = hotbed_test_counters();
    CHECK_EQ(after.host_waits, before.host_waits);
    CHECK_EQ(after.allocations, before.allocations);
    CHECK_EQ(after.launches - before.launches, 400);
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_EQ(calls, 8000);
    hotbed_graph_destroy(empty);
    hotbed_graph_destroy(graph);
    hotbed_stream_destroy(stream);
}

static void a_recording_refuses_calls_that_wait_or_allocate(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend), *other = hotbed_test_stream(backend);
    hotbed_graph *graph = NULL, *second = NULL, *first = NULL;
    hotbed_event *event = cases_event(stream);
    hotbed_memory memory;
    CHECK_STATUS(hotbed_graph_end(stream, &graph), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_OK(hotbed_graph_end(stream, &first));
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_STATUS(hotbed_graph_begin(stream), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_stream_sync(stream), HOTBED_ERR_STATE);
    CHECK_STATUS(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, 100, NULL, &memory), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_graph_launch(first, stream), HOTBED_ERR_STATE);
    if (backend == HOTBED_BACKEND_CUDA) {
        static unsigned char pageable[100];
        void *place = NULL;
        CHECK_STATUS(hotbed_stream_workspace(stream, 100, &place), HOTBED_ERR_STATE);
        CHECK_STATUS(hotbed_copy(pageable, pageable + 50, 50, stream), HOTBED_ERR_STATE);
        CHECK_STATUS(hotbed_fill(pageable, 0, 50, stream), HOTBED_ERR_STATE);
    }
    CHECK_OK(hotbed_stream_fault(stream)); /* neither waits nor allocates */
    CHECK(cases_is_done(event));
    CHECK_OK(hotbed_memory_alloc(other, HOTBED_MEMORY_DEVICE, 100, NULL, &memory));
    hotbed_memory_free(&memory); /* other streams may still allocate */
    CHECK_OK(hotbed_graph_end(stream, &graph));
    CHECK_STATUS(hotbed_graph_end(stream, &second), HOTBED_ERR_STATE);
    CHECK(second == NULL);
    CHECK_STATUS(hotbed_graph_launch(graph, other), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_graph_launch(graph, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_graph_launch(graph, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    hotbed_event_destroy(event);
    hotbed_graph_destroy(first);
    hotbed_graph_destroy(graph);
    hotbed_stream_destroy(other);
    hotbed_stream_destroy(stream);
}

static void a_recording_may_be_abandoned(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    int calls = 0;
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_OK(hotbed_stream_call(stream, cases_add_one, &calls));
    hotbed_stream_destroy(stream);
    CHECK_EQ(calls, 0);
}

static void each_launch_of_a_graph_records_its_events(hotbed_backend backend) {
    hotbed_stream *a = hotbed_test_stream(backend), *b = hotbed_test_stream(backend);
    hotbed_event *out = cases_event(a), *in = cases_event(a);
    hotbed_graph *graph = NULL;
    int calls = 0;
    CHECK_OK(hotbed_graph_begin(a));
    CHECK_OK(hotbed_stream_wait(a, in));
    CHECK_OK(hotbed_stream_call(a, cases_add_one, &calls));
    CHECK_OK(hotbed_event_record(out, a));
    CHECK_OK(hotbed_graph_end(a, &graph));
    CHECK(cases_is_done(out)); /* not launched yet */
    for (int round = 0; round < 5; round++) {
        gate *g = gate_create();
        CHECK_OK(hotbed_event_record(out, b)); /* the launch records it later, on a */
        CHECK_OK(hotbed_stream_call(b, gate_wait, g));
        CHECK_OK(hotbed_stream_call(b, cases_add_one, &calls));
        CHECK_OK(hotbed_event_record(in, b));
        CHECK_OK(hotbed_graph_launch(graph, a)); /* waits for b */
        CHECK(!cases_is_done(out));
        CHECK_OK(hotbed_stream_wait(b, out)); /* waits for the graph */
        CHECK_OK(hotbed_stream_call(b, cases_add_one, &calls));
        gate_open(g);
        CHECK_OK(hotbed_stream_sync(b));
        CHECK(cases_is_done(out));
        CHECK_EQ(calls, 3 * (round + 1));
        gate_destroy(g);
    }
    hotbed_graph_destroy(graph);
    hotbed_event_destroy(in);
    hotbed_event_destroy(out);
    hotbed_stream_destroy(b);
    hotbed_stream_destroy(a);
}

/* --- counters -------------------------------------------------------------------------------- */

/* Write `last` to the last byte of the memory on the innermost of the branches of the stream beside, after
 * writes that take long, and leave all of them open. */
static void fill_on_branches(hotbed_stream *stream, const hotbed_memory *memory, int last) {
    hotbed_stream *beside, *branch, *inner;
    CHECK_OK(hotbed_stream_beside(stream, &beside));
    CHECK_OK(hotbed_stream_branch(beside, &branch));
    CHECK_OK(hotbed_stream_branch(branch, &inner));
    for (int i = 0; i < 20; i++)
        CHECK_OK(hotbed_fill(memory->data, i, memory->bytes, inner));
    CHECK_OK(hotbed_fill((unsigned char *)memory->data + memory->bytes - 1, last, 1, inner));
    CHECK_OK(hotbed_stream_join_beside(stream)); /* closes the outermost only */
}

static void open_branches_are_joined_by_syncs_and_recordings(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend), *other = hotbed_test_stream(backend);
    hotbed_memory memory = cases_device(stream, 32 << 20, NULL);
    const unsigned char *end = (const unsigned char *)memory.data + memory.bytes - 1;
    hotbed_graph *graph = NULL;
    unsigned char byte = 0;
    fill_on_branches(stream, &memory, 77);
    CHECK_OK(hotbed_stream_sync(stream));
    cases_download(other, &byte, end, 1);
    CHECK_EQ(byte, 77);
    fill_on_branches(stream, &memory, 78);
    CHECK_OK(hotbed_graph_begin(stream)); /* joins them */
    fill_on_branches(stream, &memory, 79);
    CHECK_OK(hotbed_graph_end(stream, &graph));
    CHECK_OK(hotbed_stream_sync(stream));
    cases_download(other, &byte, end, 1);
    CHECK_EQ(byte, 78);
    CHECK_OK(hotbed_graph_launch(graph, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    cases_download(other, &byte, end, 1);
    CHECK_EQ(byte, 79);
    hotbed_graph_destroy(graph);
    hotbed_memory_free(&memory);
    hotbed_stream_destroy(other);
    hotbed_stream_destroy(stream);
}

static void a_stream_follows_a_branch_that_stays_open(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend), *branch, *inner;
    hotbed_memory memory = cases_device(stream, 32 << 20, NULL);
    unsigned char byte = 0;
    CHECK(hotbed_stream_keeps_branches(stream));
    CHECK_OK(hotbed_stream_branch(stream, &branch));
    CHECK_OK(hotbed_stream_branch(branch, &inner));
    for (int i = 0; i < 20; i++)
        CHECK_OK(hotbed_fill(memory.data, i, memory.bytes, inner));
    CHECK_OK(hotbed_stream_follow(stream, inner));
    CHECK_OK(hotbed_fill(memory.data, 80, 1, stream)); /* after all fills of the branch */
    CHECK_OK(hotbed_stream_sync(stream));
    cases_download(stream, &byte, memory.data, 1);
    CHECK_EQ(byte, 80);
    hotbed_memory_free(&memory);
    hotbed_stream_destroy(stream);
}

static void recordings_have_numbers_of_their_own(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_graph *graph = NULL;
    CHECK_EQ(hotbed_stream_recording_number(stream), 0);
    uint64_t before = 0;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hotbed_graph_begin(stream));
        const uint64_t number = hotbed_stream_recording_number(stream);
        CHECK(number != 0 && number != before);
        before = number;
        CHECK_OK(hotbed_graph_end(stream, &graph));
        hotbed_graph_destroy(graph);
    }
    CHECK_EQ(hotbed_stream_recording_number(stream), 0);
    hotbed_stream_destroy(stream);
}

static void counters_count_waits_copies_and_allocations(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_event *event = cases_event(stream);
    hotbed_memory a = cases_device(stream, 1000, NULL), b = cases_device(stream, 1000, NULL);
    int calls = 0;
    bool done;
    hotbed_counters before = hotbed_test_counters();
    for (int i = 0; i < 50; i++) {
        CHECK_OK(hotbed_fill(b.data, i, 1000, stream));
        CHECK_OK(hotbed_copy(a.data, b.data, 1000, stream));
        CHECK_OK(hotbed_stream_call(stream, cases_add_one, &calls));
        CHECK_OK(hotbed_event_record(event, stream));
        CHECK_OK(hotbed_stream_wait(stream, event));
        CHECK_OK(hotbed_event_query(event, &done));
        CHECK_OK(hotbed_stream_fault(stream));
    }
    hotbed_counters after = hotbed_test_counters();
    CHECK_EQ(after.host_waits, before.host_waits);
    CHECK_EQ(after.allocations, before.allocations);
    CHECK_EQ(after.copies - before.copies, 50);
    CHECK_EQ(after.copied_bytes - before.copied_bytes, 50000);
    CHECK_EQ(after.launches - before.launches, 100);
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_OK(hotbed_event_sync(event));
    CHECK_EQ(hotbed_test_counters().host_waits - after.host_waits, 2);
    hotbed_memory c;
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, 777, NULL, &c));
    CHECK_EQ(hotbed_test_counters().allocations - after.allocations, 1);
    CHECK_EQ(hotbed_test_counters().allocated_bytes - after.allocated_bytes, 777);
    for (int kind = 0; kind <= HOTBED_MEMORY_FILE; kind++)
        CHECK_EQ(
            hotbed_test_counters().memory_bytes[kind] - after.memory_bytes[kind],
            kind == HOTBED_MEMORY_PINNED ? 777 : 0);
    hotbed_memory_free(&c);
    hotbed_memory_free(&b);
    hotbed_memory_free(&a);
    hotbed_event_destroy(event);
    hotbed_stream_destroy(stream);
}

static void pageable_copies_count_as_waits_on_cuda(hotbed_backend backend) {
    if (backend == HOTBED_BACKEND_HOST)
        SKIP("the host backend never waits for pageable memory");
    static unsigned char pageable[1000];
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_memory memory = cases_device(stream, sizeof pageable, NULL);
    hotbed_counters before = hotbed_test_counters();
    CHECK_OK(hotbed_copy(memory.data, pageable, sizeof pageable, stream));
    CHECK_OK(hotbed_copy(pageable, memory.data, sizeof pageable, stream));
    CHECK_OK(hotbed_fill(pageable, 3, sizeof pageable, stream));
    CHECK_EQ(hotbed_test_counters().host_waits - before.host_waits, 3);
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_EQ(pageable[999], 3);
    hotbed_memory_free(&memory);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_workspace_stays_until_it_must_grow)},
    {TEST(a_workspace_does_not_grow_in_a_recording)},
    {TEST(a_graph_reads_memory_when_it_is_launched)},
    {TEST(launches_of_a_graph_run_one_after_the_other)},
    {TEST(a_recording_refuses_calls_that_wait_or_allocate)},
    {TEST(a_recording_may_be_abandoned)},
    {TEST(each_launch_of_a_graph_records_its_events)},
    {TEST(open_branches_are_joined_by_syncs_and_recordings)},
    {TEST(a_stream_follows_a_branch_that_stays_open)},
    {TEST(recordings_have_numbers_of_their_own)},
    {TEST(counters_count_waits_copies_and_allocations)},
    {TEST(pageable_copies_count_as_waits_on_cuda)},
    {NULL, NULL},
};
