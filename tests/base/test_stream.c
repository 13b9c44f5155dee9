/* tests/base/test_stream.c - contract of hotbed/stream.h: streams, events, streams that run inline, fork.
 *
 * Work is enqueued behind a gate (tests/base/cases.h), which keeps the stream blocked while the test checks its state.
 * Where the order of calls matters, the calls append to a list.  Each documented error is provoked.
 */
#include "base/backend.h"
#include "tests/base/cases.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOG_MAX = 4096 };

/* A list of numbers; each call on a stream appends one. */
typedef struct journal {
    pthread_mutex_t lock;
    int items[LOG_MAX];
    int count;
} journal;

typedef struct entry {
    journal *to;
    int item;
} entry;

static void append(void *argument) {
    const entry *e = argument;
    pthread_mutex_lock(&e->to->lock);
    CHECK(e->to->count < LOG_MAX);
    e->to->items[e->to->count++] = e->item;
    pthread_mutex_unlock(&e->to->lock);
}

static int journal_count(journal *l) {
    pthread_mutex_lock(&l->lock);
    int count = l->count;
    pthread_mutex_unlock(&l->lock);
    return count;
}

/* --- backends, creation, arguments ----------------------------------------------------------- */

static void backends_have_names(hotbed_backend backend) {
    CHECK_STRING(hotbed_backend_name(HOTBED_BACKEND_HOST), "host");
    CHECK_STRING(hotbed_backend_name(HOTBED_BACKEND_CUDA), "cuda");
    CHECK_STRING(hotbed_backend_name((hotbed_backend)9), "unknown");
}

static void probe_reports_which_backends_can_run(hotbed_backend backend) {
    CHECK_OK(hotbed_backend_probe(backend));
    CHECK_OK(hotbed_backend_probe(HOTBED_BACKEND_HOST));
    CHECK_STATUS(hotbed_backend_probe((hotbed_backend)0), HOTBED_ERR_ARGUMENT);
#if !defined(HOTBED_WITH_CUDA)
    hotbed_stream *stream = NULL;
    CHECK_STATUS(hotbed_backend_probe(HOTBED_BACKEND_CUDA), HOTBED_ERR_UNSUPPORTED);
    CHECK(strstr(hotbed_last_error(), "HOTBED_CUDA") != NULL);
    CHECK_STATUS(hotbed_stream_create(HOTBED_BACKEND_CUDA, 0, &stream), HOTBED_ERR_UNSUPPORTED);
    CHECK_STATUS(hotbed_stream_wrap_cuda(0, NULL, &stream), HOTBED_ERR_UNSUPPORTED);
    CHECK(stream == NULL);
#endif
}

static void create_refuses_missing_devices_and_backends(hotbed_backend backend) {
    static int something;
    static const int devices[] = {-1, 1000};
    CHECK_STATUS(hotbed_stream_create(backend, 0, NULL), HOTBED_ERR_ARGUMENT);
    for (int i = 0; i < 2; i++) {
        hotbed_stream *stream = (void *)&something;
        CHECK_STATUS(hotbed_stream_create(backend, devices[i], &stream), HOTBED_ERR_ARGUMENT);
        CHECK(stream == NULL);
    }
    hotbed_stream *stream = (void *)&something;
    CHECK_STATUS(hotbed_stream_create((hotbed_backend)7, 0, &stream), HOTBED_ERR_ARGUMENT);
    CHECK(stream == NULL);
    CHECK_STATUS(hotbed_stream_wrap_cuda(0, NULL, NULL), HOTBED_ERR_ARGUMENT);
}

static void streams_report_their_backend_and_device(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    CHECK_EQ(hotbed_stream_backend(stream), backend);
    CHECK_EQ(hotbed_stream_device(stream), 0);
    CHECK_EQ(hotbed_stream_native(stream) != NULL, backend == HOTBED_BACKEND_CUDA);
    hotbed_stream_destroy(stream);
}

static void streams_keep_their_priority(hotbed_backend backend) {
    static const hotbed_priority priorities[] = {HOTBED_PRIORITY_NORMAL, HOTBED_PRIORITY_HIGH};
    hotbed_stream *stream = NULL;
    hotbed_stream_options options = {.size = sizeof options, .backend = backend};
    int data = 0;
    for (int i = 0; i < 2; i++) {
        options.priority = priorities[i];
        CHECK_OK(hotbed_stream_create_with(&options, &stream));
        CHECK_EQ(stream->priority, priorities[i]);
        CHECK_OK(hotbed_stream_call(stream, cases_add_one, &data));
        CHECK_OK(hotbed_stream_sync(stream));
        CHECK_EQ(data, i + 1);
        hotbed_stream_destroy(stream);
    }
    stream = hotbed_test_stream(backend);
    CHECK_EQ(stream->priority, HOTBED_PRIORITY_NORMAL);
    hotbed_stream_destroy(stream);
}

static void null_is_refused_or_ignored(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_event *event = cases_event(stream), *none = NULL;
    hotbed_graph *graph = NULL;
    bool done;
    double seconds;
    int data = 0;
    CHECK_STATUS(hotbed_stream_sync(NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_stream_fault(NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_stream_call(NULL, cases_add_one, &data), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_stream_call(stream, NULL, &data), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_event_create(NULL, &none), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_event_create(stream, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_event_record(NULL, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_event_record(event, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_stream_wait(NULL, event), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_stream_wait(stream, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_event_query(NULL, &done), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_event_query(event, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_event_sync(NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_event_seconds(NULL, event, &seconds), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_event_seconds(event, NULL, &seconds), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_event_seconds(event, event, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_copy(NULL, &data, 1, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_copy(&data, NULL, 1, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_copy(&data, &data, 1, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_fill(NULL, 0, 1, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_fill(&data, 0, 1, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_graph_begin(NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_graph_end(NULL, &graph), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_graph_end(stream, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_graph_launch(NULL, stream), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_copy(NULL, NULL, 0, stream));
    CHECK_OK(hotbed_fill(NULL, 0, 0, stream));
    hotbed_counters_read(NULL);
    hotbed_event_destroy(NULL);
    hotbed_graph_destroy(NULL);
    hotbed_stream_destroy(NULL);
    hotbed_event_destroy(event);
    CHECK_OK(hotbed_stream_sync(stream));
    hotbed_stream_destroy(stream);
}

static void events_of_another_backend_are_refused(hotbed_backend backend) {
    if (backend == HOTBED_BACKEND_HOST)
        SKIP("takes two backends: see the cuda entry");
    hotbed_stream *stream = hotbed_test_stream(backend),
                  *host = hotbed_test_stream(HOTBED_BACKEND_HOST);
    hotbed_event *event = cases_event(host);
    CHECK_STATUS(hotbed_event_record(event, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_stream_wait(stream, event), HOTBED_ERR_ARGUMENT);
    hotbed_event_destroy(event);
    hotbed_stream_destroy(host);
    hotbed_stream_destroy(stream);
}

static void a_wrapped_stream_belongs_to_the_caller(hotbed_backend backend) {
    if (backend == HOTBED_BACKEND_HOST)
        SKIP("wraps a cudaStream_t");
    hotbed_stream *owner = hotbed_test_stream(backend), *wrapped = NULL;
    int calls = 0;
    CHECK_OK(hotbed_stream_wrap_cuda(0, hotbed_stream_native(owner), &wrapped));
    CHECK(hotbed_stream_native(wrapped) == hotbed_stream_native(owner));
    CHECK_OK(hotbed_stream_call(wrapped, cases_add_one, &calls));
    /* ordered: both are the same CUDA stream */
    CHECK_OK(hotbed_stream_call(owner, cases_add_one, &calls));
    CHECK_OK(hotbed_stream_sync(wrapped));
    hotbed_stream_destroy(wrapped);
    CHECK_OK(hotbed_stream_call(owner, cases_add_one, &calls)); /* the owner still works */
    CHECK_OK(hotbed_stream_sync(owner));
    CHECK_EQ(calls, 3);
    hotbed_stream_destroy(owner);
}

/* As torch.cuda.graph() does: the caller captures the CUDA stream that Hotbed has wrapped. */
static void a_capture_by_the_caller_is_a_recording(hotbed_backend backend) {
    if (backend == HOTBED_BACKEND_HOST)
        SKIP("captures a cudaStream_t");
    hotbed_stream *owner = hotbed_test_stream(backend), *wrapped = NULL;
    hotbed_graph *graph = NULL;
    hotbed_memory memory;
    void *space;
    int calls = 0;
    CHECK_OK(hotbed_stream_wrap_cuda(0, hotbed_stream_native(owner), &wrapped));
    CHECK_OK(hotbed_graph_begin(owner)); /* not through `wrapped` */
    CHECK_STATUS(hotbed_stream_workspace(wrapped, 1 << 20, &space), HOTBED_ERR_STATE);
    CHECK_STATUS(
        hotbed_memory_alloc(wrapped, HOTBED_MEMORY_DEVICE, 64, NULL, &memory), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_stream_sync(wrapped), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_graph_begin(wrapped), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_stream_call(wrapped, cases_add_one, &calls));
    /* the refused calls did not invalidate the capture */
    CHECK_OK(hotbed_graph_end(owner, &graph));
    CHECK_OK(hotbed_graph_launch(graph, owner));
    CHECK_OK(hotbed_stream_sync(owner));
    CHECK_EQ(calls, 1);
    CHECK_OK(hotbed_stream_workspace(wrapped, 1 << 20, &space));
    hotbed_graph_destroy(graph);
    hotbed_stream_destroy(wrapped);
    hotbed_stream_destroy(owner);
}

static void the_default_stream_can_be_wrapped(hotbed_backend backend) {
    if (backend == HOTBED_BACKEND_HOST)
        SKIP("wraps a cudaStream_t");
    hotbed_stream *stream = NULL;
    int calls = 0;
    CHECK_OK(hotbed_stream_wrap_cuda(0, NULL, &stream));
    CHECK_OK(hotbed_stream_call(stream, cases_add_one, &calls));
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_EQ(calls, 1);
    hotbed_stream_destroy(stream);
}

/* --- order ----------------------------------------------------------------------------------- */

static void a_stream_runs_its_work_in_order_and_asynchronously(hotbed_backend backend) {
    enum { N = 300 };
    static journal l = {.lock = PTHREAD_MUTEX_INITIALIZER};
    static entry entries[N];
    hotbed_stream *stream = hotbed_test_stream(backend);
    gate *g = gate_create();
    CHECK_OK(hotbed_stream_call(stream, gate_wait, g));
    for (int i = 0; i < N; i++) {
        entries[i] = (entry){&l, i};
        CHECK_OK(hotbed_stream_call(stream, append, &entries[i]));
    }
    CHECK_EQ(journal_count(&l), 0); /* none has run yet */
    gate_open(g);
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_EQ(l.count, N);
    for (int i = 0; i < N; i++)
        CHECK_EQ(l.items[i], i);
    gate_destroy(g);
    hotbed_stream_destroy(stream);
}

static void destroy_finishes_the_work(hotbed_backend backend) {
    int calls = 0;
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (int i = 0; i < 100; i++)
        CHECK_OK(hotbed_stream_call(stream, cases_add_one, &calls));
    hotbed_stream_destroy(stream);
    CHECK_EQ(calls, 100);
}

static void copies_and_fills_run_in_order(hotbed_backend backend) {
    enum { BYTES = 3 * 1024 * 1024 + 5 };
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_memory a = cases_device(stream, BYTES, NULL), b = cases_device(stream, BYTES, NULL);
    hotbed_memory pinned;
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, BYTES, NULL, &pinned));
    unsigned char *bytes = pinned.data;
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * 7 + i / 1000);
    CHECK_OK(hotbed_copy(a.data, bytes, BYTES, stream));
    CHECK_OK(hotbed_copy(b.data, a.data, BYTES, stream));
    CHECK_OK(hotbed_fill(a.data, 0x1ff, BYTES, stream)); /* fills with the low byte */
    CHECK_OK(hotbed_fill(bytes, 0, BYTES, stream));
    CHECK_OK(hotbed_copy(bytes, b.data, BYTES - 1, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    for (int i = 0; i < BYTES - 1; i++)
        CHECK_EQ(bytes[i], (unsigned char)(i * 7 + i / 1000));
    CHECK_EQ(bytes[BYTES - 1], 0);
    CHECK_OK(hotbed_copy(bytes, a.data, BYTES, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    for (int i = 0; i < BYTES; i++)
        CHECK_EQ(bytes[i], 0xff);
    hotbed_memory_free(&pinned);
    hotbed_memory_free(&b);
    hotbed_memory_free(&a);
    hotbed_stream_destroy(stream);
}

/* --- events ---------------------------------------------------------------------------------- */

static void an_event_holds_another_stream_back(hotbed_backend backend) {
    static journal l = {.lock = PTHREAD_MUTEX_INITIALIZER};
    static entry first = {&l, 1}, second = {&l, 2};
    hotbed_stream *a = hotbed_test_stream(backend), *b = hotbed_test_stream(backend);
    hotbed_event *event = cases_event(a);
    gate *g = gate_create();
    CHECK(cases_is_done(event)); /* never recorded */
    CHECK_OK(hotbed_stream_call(a, gate_wait, g));
    CHECK_OK(hotbed_stream_call(a, append, &first));
    CHECK_OK(hotbed_event_record(event, a));
    CHECK_OK(hotbed_stream_wait(b, event));
    CHECK_OK(hotbed_stream_call(b, append, &second));
    CHECK(!cases_is_done(event));
    gate_open(g);
    CHECK_OK(hotbed_stream_sync(b));
    CHECK(cases_is_done(event));
    CHECK_EQ(l.count, 2);
    CHECK_EQ(l.items[0], 1);
    CHECK_EQ(l.items[1], 2);
    CHECK_OK(hotbed_stream_sync(a));
    gate_destroy(g);
    hotbed_event_destroy(event);
    hotbed_stream_destroy(b);
    hotbed_stream_destroy(a);
}

static void a_wait_is_for_the_latest_record_before_it(hotbed_backend backend) {
    hotbed_stream *a = hotbed_test_stream(backend), *b = hotbed_test_stream(backend),
                  *c = hotbed_test_stream(backend);
    hotbed_event *event = cases_event(a);
    gate *g = gate_create();
    hotbed_memory pinned;
    CHECK_OK(hotbed_memory_alloc(c, HOTBED_MEMORY_PINNED, 1, NULL, &pinned));
    CHECK_OK(hotbed_fill(pinned.data, 1, 1, c));
    CHECK_OK(hotbed_stream_sync(c));
    CHECK_OK(hotbed_stream_wait(c, event)); /* never recorded, so it counts as passed */
    CHECK_OK(hotbed_event_record(event, b));
    CHECK_OK(hotbed_stream_wait(c, event)); /* waits for the record on b */
    CHECK_OK(hotbed_stream_call(a, gate_wait, g));
    CHECK_OK(hotbed_event_record(event, a)); /* a later record, behind the gate */
    /* not a call: CUDA may run the calls of all streams on one thread */
    CHECK_OK(hotbed_fill(pinned.data, 2, 1, c));
    CHECK_OK(hotbed_stream_sync(c)); /* returns: c does not wait for the later record */
    CHECK_EQ(*(unsigned char *)pinned.data, 2);
    CHECK(!cases_is_done(event));
    gate_open(g);
    CHECK_OK(hotbed_event_sync(event));
    CHECK(cases_is_done(event));
    hotbed_stream_destroy(a);
    CHECK(cases_is_done(event)); /* the event outlives the stream */
    CHECK_OK(hotbed_event_sync(event));
    CHECK_OK(hotbed_stream_wait(c, event));
    CHECK_OK(hotbed_stream_sync(c));
    gate_destroy(g);
    hotbed_memory_free(&pinned);
    hotbed_event_destroy(event);
    hotbed_stream_destroy(c);
    hotbed_stream_destroy(b);
}

static void an_older_record_of_another_stream_still_blocks(hotbed_backend backend) {
    hotbed_stream *a = hotbed_test_stream(backend), *b = hotbed_test_stream(backend),
                  *c = hotbed_test_stream(backend);
    hotbed_event *event = cases_event(a), *seen = cases_event(c);
    gate *g = gate_create();
    CHECK_OK(hotbed_stream_call(a, gate_wait, g));
    CHECK_OK(hotbed_event_record(event, a));
    CHECK_OK(hotbed_stream_wait(c, event)); /* behind the gate */
    CHECK_OK(hotbed_event_record(seen, c));
    CHECK_OK(hotbed_event_record(event, b)); /* newer, and passes immediately */
    CHECK_OK(hotbed_event_sync(event));
    CHECK(!cases_is_done(seen));
    gate_open(g);
    CHECK_OK(hotbed_event_sync(seen));
    CHECK_OK(hotbed_stream_sync(a));
    gate_destroy(g);
    hotbed_event_destroy(seen);
    hotbed_event_destroy(event);
    hotbed_stream_destroy(c);
    hotbed_stream_destroy(b);
    hotbed_stream_destroy(a);
}

static void an_event_may_be_destroyed_before_it_is_passed(hotbed_backend backend) {
    hotbed_stream *a = hotbed_test_stream(backend), *b = hotbed_test_stream(backend);
    hotbed_event *event = cases_event(a);
    gate *g = gate_create();
    int calls = 0;
    CHECK_OK(hotbed_stream_call(a, gate_wait, g));
    CHECK_OK(hotbed_stream_call(a, cases_add_one, &calls));
    CHECK_OK(hotbed_event_record(event, a));
    CHECK_OK(hotbed_stream_wait(b, event));
    CHECK_OK(hotbed_stream_call(b, cases_add_one, &calls));
    hotbed_event_destroy(event);
    gate_open(g);
    CHECK_OK(hotbed_stream_sync(b));
    CHECK_EQ(calls, 2);
    hotbed_stream_destroy(a);
    hotbed_stream_destroy(b);
    gate_destroy(g);
}

static void seconds_need_two_passed_events(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_event *start = cases_event(stream), *stop = cases_event(stream);
    gate *g = gate_create();
    double seconds = -1;
    CHECK_OK(hotbed_event_record(start, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_STATUS(hotbed_event_seconds(start, stop, &seconds), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_event_seconds(stop, start, &seconds), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_stream_call(stream, gate_wait, g));
    CHECK_OK(hotbed_event_record(stop, stream));
    CHECK_STATUS(hotbed_event_seconds(start, stop, &seconds), HOTBED_ERR_STATE);
    CHECK(seconds == -1); /* unchanged by the failed calls */
    gate_open(g);
    CHECK_OK(hotbed_event_sync(stop));
    CHECK_OK(hotbed_event_seconds(start, stop, &seconds));
    CHECK(seconds >= 0 && seconds < 60);
    gate_destroy(g);
    hotbed_event_destroy(stop);
    hotbed_event_destroy(start);
    hotbed_stream_destroy(stream);
}

/* --- threads --------------------------------------------------------------------------------- */

typedef struct worker {
    hotbed_backend backend;
    pthread_t thread;
} worker;

/* A thread creates, uses and destroys streams of its own. */
static void *work(void *argument) {
    worker *w = argument;
    for (int round = 0; round < 3; round++) {
        hotbed_stream *a = hotbed_test_stream(w->backend), *b = hotbed_test_stream(w->backend);
        hotbed_event *event = cases_event(a);
        hotbed_memory memory = cases_device(a, 64, NULL);
        unsigned char bytes[64];
        for (int i = 0; i < 30; i++) {
            CHECK_OK(hotbed_fill(memory.data, i, 64, a));
            CHECK_OK(hotbed_event_record(event, a));
            CHECK_OK(hotbed_stream_wait(b, event));
            CHECK_OK(hotbed_fill(memory.data, i + 100, 32, b));
            CHECK_OK(hotbed_event_record(event, b));
            CHECK_OK(hotbed_stream_wait(a, event));
        }
        cases_download(a, bytes, memory.data, 64);
        CHECK_EQ(bytes[0], 129);
        CHECK_EQ(bytes[63], 29);
        CHECK_OK(hotbed_stream_sync(b));
        hotbed_memory_free(&memory);
        hotbed_event_destroy(event);
        hotbed_stream_destroy(a);
        hotbed_stream_destroy(b);
    }
    return NULL;
}

static void threads_have_streams_of_their_own(hotbed_backend backend) {
    enum { THREADS = 4 };
    worker workers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i].backend = backend;
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
}

/* --- streams that run inline ----------------------------------------------------------------- */

static hotbed_stream *new_inline_stream(void) {
    hotbed_stream_options options = {.size = sizeof options};
    hotbed_stream *stream = NULL;
    options.backend = HOTBED_BACKEND_HOST;
    options.run_inline = true;
    CHECK_OK(hotbed_stream_create_with(&options, &stream));
    return stream;
}

static void an_inline_stream_is_done_when_a_call_returns(hotbed_backend backend) {
    hotbed_stream *stream = new_inline_stream();
    hotbed_event *event = cases_event(stream);
    hotbed_graph *graph = NULL;
    uint8_t bytes[64] = {0}, copy[64];
    int calls = 0;
    const uint64_t waits = hotbed_test_counters().host_waits;
    CHECK_OK(hotbed_fill(bytes, 7, sizeof bytes, stream));
    CHECK_EQ(bytes[63], 7);
    CHECK_OK(hotbed_copy(copy, bytes, sizeof bytes, stream));
    CHECK_BYTES(copy, bytes, sizeof bytes);
    CHECK_OK(hotbed_stream_call(stream, cases_add_one, &calls));
    CHECK_EQ(calls, 1);
    CHECK_OK(hotbed_event_record(event, stream));
    CHECK(cases_is_done(event));
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_OK(hotbed_stream_call(stream, cases_add_one, &calls));
    CHECK_OK(hotbed_event_record(event, stream));
    CHECK_OK(hotbed_graph_end(stream, &graph));
    CHECK_EQ(calls, 1);
    CHECK_OK(hotbed_graph_launch(graph, stream));
    CHECK_EQ(calls, 2);
    CHECK(cases_is_done(event));
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_EQ(hotbed_test_counters().host_waits, waits);
    hotbed_graph_destroy(graph);
    hotbed_event_destroy(event);
    hotbed_stream_destroy(stream);
}

static void inline_and_other_streams_wait_for_each_other(hotbed_backend backend) {
    (void)backend; /* inline streams are of the host backend */
    hotbed_stream *own = new_inline_stream(), *other = NULL;
    int calls = 0;
    CHECK_OK(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &other));
    hotbed_event *first = cases_event(other), *second = cases_event(own);
    for (int i = 0; i < 50; i++) {
        CHECK_OK(hotbed_stream_call(other, cases_add_one, &calls));
        CHECK_OK(hotbed_event_record(first, other));
        CHECK_OK(hotbed_stream_wait(own, first));
        CHECK_EQ(calls, 2 * i + 1);
        CHECK_OK(hotbed_stream_call(own, cases_add_one, &calls));
        CHECK_OK(hotbed_event_record(second, own));
        CHECK_OK(hotbed_stream_wait(other, second));
    }
    CHECK_OK(hotbed_stream_sync(other));
    CHECK_EQ(calls, 100);
    hotbed_event_destroy(first);
    hotbed_event_destroy(second);
    hotbed_stream_destroy(other);
    hotbed_stream_destroy(own);
}

static void options_of_a_stream_are_checked(hotbed_backend backend) {
    hotbed_stream_options options = {.size = sizeof options};
    hotbed_stream *stream = NULL;
    CHECK_STATUS(hotbed_stream_create_with(&options, &stream), HOTBED_ERR_ARGUMENT);
    options.backend = backend;
    options.priority = (hotbed_priority)2;
    CHECK_STATUS(hotbed_stream_create_with(&options, &stream), HOTBED_ERR_ARGUMENT);
    options.priority = HOTBED_PRIORITY_HIGH;
    options.device = -1;
    CHECK_STATUS(hotbed_stream_create_with(&options, &stream), HOTBED_ERR_ARGUMENT);
    CHECK(stream == NULL);
    options.device = 0;
    options.run_inline = backend == HOTBED_BACKEND_CUDA;
    if (options.run_inline)
        CHECK_STATUS(hotbed_stream_create_with(&options, &stream), HOTBED_ERR_UNSUPPORTED);
    options.run_inline = false;
    CHECK_OK(hotbed_stream_create_with(&options, &stream));
    CHECK_EQ(stream->priority, HOTBED_PRIORITY_HIGH);
    hotbed_stream_destroy(stream);
    CHECK_STATUS(hotbed_stream_create_with(NULL, &stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_stream_create_with(&options, NULL), HOTBED_ERR_ARGUMENT);
}

/* --- fork ------------------------------------------------------------------------------------ */

/* In the child: each call on the parent's objects fails with STATE, none blocks, and the objects can be destroyed.
 * Returns 0, or which check failed. */
static int forked_child(
    hotbed_stream *stream, hotbed_event *event, hotbed_graph *graph, hotbed_memory *memory) {
    hotbed_stream *other = NULL;
    hotbed_memory more;
    bool done;
    int nothing = 0;
    const hotbed_status statuses[] = {
        hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &other),
        hotbed_stream_sync(stream),
        hotbed_stream_call(stream, cases_add_one, &nothing),
        hotbed_event_record(event, stream),
        hotbed_event_query(event, &done),
        hotbed_event_sync(event),
        hotbed_stream_wait(stream, event),
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, 64, NULL, &more),
        hotbed_fill(memory->data, 1, 64, stream),
        hotbed_copy(memory->data, &more, sizeof more, stream),
        hotbed_graph_launch(graph, stream),
        hotbed_graph_begin(stream),
    };
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i] != HOTBED_ERR_STATE)
            return (int)i + 1;
    if (strstr(hotbed_last_error(), "forked") == NULL)
        return 100;
    hotbed_graph_destroy(graph);
    hotbed_event_destroy(event);
    hotbed_stream_destroy(stream);
    return 0;
}

static void a_forked_child_gets_errors_and_does_not_hang(hotbed_backend backend) {
    hotbed_graph *graph = NULL;
    hotbed_memory memory;
    int status = 0, calls = 0;
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_event *event = cases_event(stream);
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, 4096, NULL, &memory));
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_OK(hotbed_stream_call(stream, cases_add_one, &calls));
    CHECK_OK(hotbed_graph_end(stream, &graph));
    CHECK_OK(hotbed_stream_call(stream, cases_add_one, &calls));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(forked_child(stream, event, graph, &memory));
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
    CHECK_OK(hotbed_stream_sync(stream)); /* the parent goes on */
    CHECK_EQ(calls, 1);
    hotbed_memory_free(&memory);
    hotbed_graph_destroy(graph);
    hotbed_event_destroy(event);
    hotbed_stream_destroy(stream);
}

/* --- a full stream --------------------------------------------------------------------------- */

/* The first task blocks the stream until the enqueueing thread waits because the stream is full, or has enqueued all
 * tasks. */
typedef struct full_stream {
    uint64_t waits; /* the counter before the first task */
    int done;       /* atomic: all tasks are enqueued */
    int next;       /* number of the task that must run next */
    int wrong;      /* tasks that ran out of order */
} full_stream;

typedef struct numbered_task {
    full_stream *of;
    int number;
} numbered_task;

static void hold_until_full(void *argument) {
    const full_stream *c = argument;
    while (hotbed_test_counters().host_waits == c->waits &&
           __atomic_load_n(&c->done, __ATOMIC_ACQUIRE) == 0)
        (void)sched_yield();
}

static void count_in_order(void *argument) {
    const numbered_task *task = argument;
    if (task->of->next++ != task->number)
        task->of->wrong++;
}

static void a_full_stream_runs_every_task_in_order(hotbed_backend backend) {
    if (backend != HOTBED_BACKEND_HOST)
        SKIP("CUDA decides how many tasks a stream holds");
    enum { TASKS = 20000 };
    static numbered_task tasks[TASKS];
    full_stream c = {.waits = hotbed_test_counters().host_waits};
    hotbed_stream *stream = hotbed_test_stream(backend);
    CHECK_OK(hotbed_stream_call(stream, hold_until_full, &c));
    for (int i = 0; i < TASKS; i++) {
        tasks[i] = (numbered_task){&c, i};
        CHECK_OK(hotbed_stream_call(stream, count_in_order, &tasks[i]));
    }
    __atomic_store_n(&c.done, 1, __ATOMIC_RELEASE);
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_EQ(c.next, TASKS);
    CHECK_EQ(c.wrong, 0);
    hotbed_stream_destroy(stream);
}

static void read_mask(void *argument) {
    CHECK_EQ(pthread_sigmask(SIG_BLOCK, NULL, argument), 0);
}

/* The program's threads handle its signals. A thread's own faults come to the thread, whose handler prints a
 * backtrace, for instance. */
static void threads_block_all_signals_but_faults(hotbed_backend backend) {
    (void)backend; /* on a GPU a thread of CUDA's makes the call */
    hotbed_stream *stream = hotbed_test_stream(HOTBED_BACKEND_HOST);
    sigset_t mask;
    CHECK_OK(hotbed_stream_call(stream, read_mask, &mask));
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_EQ(sigismember(&mask, SIGINT), 1);
    CHECK_EQ(sigismember(&mask, SIGABRT), 1);
    CHECK_EQ(sigismember(&mask, SIGSEGV), 0);
    CHECK_EQ(sigismember(&mask, SIGFPE), 0);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(backends_have_names)},
    {TEST(probe_reports_which_backends_can_run)},
    {TEST(create_refuses_missing_devices_and_backends)},
    {TEST(streams_report_their_backend_and_device)},
    {TEST(streams_keep_their_priority)},
    {TEST(null_is_refused_or_ignored)},
    {TEST(events_of_another_backend_are_refused)},
    {TEST(a_wrapped_stream_belongs_to_the_caller)},
    {TEST(a_capture_by_the_caller_is_a_recording)},
    {TEST(the_default_stream_can_be_wrapped)},
    {TEST(a_stream_runs_its_work_in_order_and_asynchronously)},
    {TEST(destroy_finishes_the_work)},
    {TEST(copies_and_fills_run_in_order)},
    {TEST(an_event_holds_another_stream_back)},
    {TEST(a_wait_is_for_the_latest_record_before_it)},
    {TEST(an_older_record_of_another_stream_still_blocks)},
    {TEST(an_event_may_be_destroyed_before_it_is_passed)},
    {TEST(seconds_need_two_passed_events)},
    {TEST(threads_have_streams_of_their_own)},
    {TEST(an_inline_stream_is_done_when_a_call_returns)},
    {TEST(inline_and_other_streams_wait_for_each_other)},
    {TEST(options_of_a_stream_are_checked)},
    {TEST(a_forked_child_gets_errors_and_does_not_hang)},
    {TEST(a_full_stream_runs_every_task_in_order)},
    {TEST(threads_block_all_signals_but_faults)},
    {NULL, NULL},
};
