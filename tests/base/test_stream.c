/* tests/base/test_stream.c - contract of hotbed/stream.h: streams, events, faults, graphs, workspace, counters.
 *
 * Work is enqueued behind a gate (tests/base/cases.h), which keeps the stream blocked while the test checks its state.
 * Where the order of calls matters, the calls append to a list.  Each documented error is provoked.
 */
#include "base/backend.h"
#include "tests/base/cases.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <sched.h>
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

static void add_one(void *counter) {
    ++*(int *)counter;
}

static hotbed_event *new_event(hotbed_stream *stream) {
    hotbed_event *event = NULL;
    CHECK_OK(hotbed_event_create(stream, &event));
    return event;
}

static bool is_done(hotbed_event *event) {
    bool done = false;
    CHECK_OK(hotbed_event_query(event, &done));
    return done;
}

static hotbed_counters read_counters(void) {
    hotbed_counters counters = {.size = sizeof counters};
    hotbed_counters_read(&counters);
    return counters;
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
    hotbed_stream *stream = cases_stream(backend);
    CHECK_EQ(hotbed_stream_backend(stream), backend);
    CHECK_EQ(hotbed_stream_device(stream), 0);
    CHECK_EQ(hotbed_stream_native(stream) != NULL, backend == HOTBED_BACKEND_CUDA);
    hotbed_stream_destroy(stream);
}

static void streams_keep_their_priority(hotbed_backend backend) {
    static const hotbed_priority priorities[] = {HOTBED_PRIORITY_NORMAL, HOTBED_PRIORITY_HIGH};
    hotbed_stream *stream = NULL;
    hotbed_stream_options options;
    hotbed_stream_options_init(&options);
    options.backend = backend;
    int data = 0;
    for (int i = 0; i < 2; i++) {
        options.priority = priorities[i];
        CHECK_OK(hotbed_stream_create_with(&options, &stream));
        CHECK_EQ(stream->priority, priorities[i]);
        CHECK_OK(hotbed_stream_call(stream, add_one, &data));
        CHECK_OK(hotbed_stream_sync(stream));
        CHECK_EQ(data, i + 1);
        hotbed_stream_destroy(stream);
    }
    stream = cases_stream(backend);
    CHECK_EQ(stream->priority, HOTBED_PRIORITY_NORMAL);
    hotbed_stream_destroy(stream);
    CHECK_STATUS(hotbed_stream_create_with(&options, NULL), HOTBED_ERR_ARGUMENT);
    options.priority = (hotbed_priority)2;
    CHECK_STATUS(hotbed_stream_create_with(&options, &stream), HOTBED_ERR_ARGUMENT);
    CHECK(stream == NULL);
}

static void null_is_refused_or_ignored(hotbed_backend backend) {
    hotbed_stream *stream = cases_stream(backend);
    hotbed_event *event = new_event(stream), *none = NULL;
    hotbed_graph *graph = NULL;
    bool done;
    double seconds;
    int data = 0;
    CHECK_STATUS(hotbed_stream_sync(NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_stream_fault(NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_stream_call(NULL, add_one, &data), HOTBED_ERR_ARGUMENT);
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
    hotbed_stream *stream = cases_stream(backend), *host = cases_stream(HOTBED_BACKEND_HOST);
    hotbed_event *event = new_event(host);
    CHECK_STATUS(hotbed_event_record(event, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_stream_wait(stream, event), HOTBED_ERR_ARGUMENT);
    hotbed_event_destroy(event);
    hotbed_stream_destroy(host);
    hotbed_stream_destroy(stream);
}

static void a_wrapped_stream_belongs_to_the_caller(hotbed_backend backend) {
    if (backend == HOTBED_BACKEND_HOST)
        SKIP("wraps a cudaStream_t");
    hotbed_stream *owner = cases_stream(backend), *wrapped = NULL;
    int calls = 0;
    CHECK_OK(hotbed_stream_wrap_cuda(0, hotbed_stream_native(owner), &wrapped));
    CHECK(hotbed_stream_native(wrapped) == hotbed_stream_native(owner));
    CHECK_OK(hotbed_stream_call(wrapped, add_one, &calls));
    /* ordered: both are the same CUDA stream */
    CHECK_OK(hotbed_stream_call(owner, add_one, &calls));
    CHECK_OK(hotbed_stream_sync(wrapped));
    hotbed_stream_destroy(wrapped);
    CHECK_OK(hotbed_stream_call(owner, add_one, &calls)); /* the owner still works */
    CHECK_OK(hotbed_stream_sync(owner));
    CHECK_EQ(calls, 3);
    hotbed_stream_destroy(owner);
}

/* As torch.cuda.graph() does: the caller captures the CUDA stream that Hotbed has wrapped. */
static void a_capture_by_the_caller_is_a_recording(hotbed_backend backend) {
    if (backend == HOTBED_BACKEND_HOST)
        SKIP("captures a cudaStream_t");
    hotbed_stream *owner = cases_stream(backend), *wrapped = NULL;
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
    CHECK_OK(hotbed_stream_call(wrapped, add_one, &calls));
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
    CHECK_OK(hotbed_stream_call(stream, add_one, &calls));
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_EQ(calls, 1);
    hotbed_stream_destroy(stream);
}

/* --- order ----------------------------------------------------------------------------------- */

static void a_stream_runs_its_work_in_order_and_asynchronously(hotbed_backend backend) {
    enum { N = 300 };
    static journal l = {.lock = PTHREAD_MUTEX_INITIALIZER};
    static entry entries[N];
    hotbed_stream *stream = cases_stream(backend);
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
    hotbed_stream *stream = cases_stream(backend);
    for (int i = 0; i < 100; i++)
        CHECK_OK(hotbed_stream_call(stream, add_one, &calls));
    hotbed_stream_destroy(stream);
    CHECK_EQ(calls, 100);
}

static void copies_and_fills_run_in_order(hotbed_backend backend) {
    enum { BYTES = 3 * 1024 * 1024 + 5 };
    hotbed_stream *stream = cases_stream(backend);
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
    hotbed_stream *a = cases_stream(backend), *b = cases_stream(backend);
    hotbed_event *event = new_event(a);
    gate *g = gate_create();
    CHECK(is_done(event)); /* never recorded */
    CHECK_OK(hotbed_stream_call(a, gate_wait, g));
    CHECK_OK(hotbed_stream_call(a, append, &first));
    CHECK_OK(hotbed_event_record(event, a));
    CHECK_OK(hotbed_stream_wait(b, event));
    CHECK_OK(hotbed_stream_call(b, append, &second));
    CHECK(!is_done(event));
    gate_open(g);
    CHECK_OK(hotbed_stream_sync(b));
    CHECK(is_done(event));
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
    hotbed_stream *a = cases_stream(backend), *b = cases_stream(backend),
                  *c = cases_stream(backend);
    hotbed_event *event = new_event(a);
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
    CHECK(!is_done(event));
    gate_open(g);
    CHECK_OK(hotbed_event_sync(event));
    CHECK(is_done(event));
    hotbed_stream_destroy(a);
    CHECK(is_done(event)); /* the event outlives the stream */
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
    hotbed_stream *a = cases_stream(backend), *b = cases_stream(backend),
                  *c = cases_stream(backend);
    hotbed_event *event = new_event(a), *seen = new_event(c);
    gate *g = gate_create();
    CHECK_OK(hotbed_stream_call(a, gate_wait, g));
    CHECK_OK(hotbed_event_record(event, a));
    CHECK_OK(hotbed_stream_wait(c, event)); /* behind the gate */
    CHECK_OK(hotbed_event_record(seen, c));
    CHECK_OK(hotbed_event_record(event, b)); /* newer, and passes immediately */
    CHECK_OK(hotbed_event_sync(event));
    CHECK(!is_done(seen));
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
    hotbed_stream *a = cases_stream(backend), *b = cases_stream(backend);
    hotbed_event *event = new_event(a);
    gate *g = gate_create();
    int calls = 0;
    CHECK_OK(hotbed_stream_call(a, gate_wait, g));
    CHECK_OK(hotbed_stream_call(a, add_one, &calls));
    CHECK_OK(hotbed_event_record(event, a));
    CHECK_OK(hotbed_stream_wait(b, event));
    CHECK_OK(hotbed_stream_call(b, add_one, &calls));
    hotbed_event_destroy(event);
    gate_open(g);
    CHECK_OK(hotbed_stream_sync(b));
    CHECK_EQ(calls, 2);
    hotbed_stream_destroy(a);
    hotbed_stream_destroy(b);
    gate_destroy(g);
}

static void seconds_need_two_passed_events(hotbed_backend backend) {
    hotbed_stream *stream = cases_stream(backend);
    hotbed_event *start = new_event(stream), *stop = new_event(stream);
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

/* --- faults ---------------------------------------------------------------------------------- */

static void latch(hotbed_stream *stream, hotbed_memory *place, fault_case fault) {
    CHECK_OK(hotbed_copy(place->data, &fault, sizeof fault, stream));
    CHECK_OK(cases_launch(CASE_LATCH, 1, place->data, hotbed_stream_faults(stream), stream));
    hotbed_event *event = new_event(stream);
    CHECK_OK(hotbed_event_record(event, stream));
    /* `fault` must live until the copy ran; a stream sync would clear the latched fault */
    CHECK_OK(hotbed_event_sync(event));
    hotbed_event_destroy(event);
}

static void faults_are_reported_with_their_values(hotbed_backend backend) {
    static const struct {
        fault_case fault;
        const char *words[4];
        hotbed_error_detail fields;
    } cases[] = {
        {{HOTBED_ERR_FULL, HOTBED_CAUSE_TABLE_FULL, 3, 41, 128},
         {"table number 3", "key 41", "128"},
         {.has = HOTBED_HAS_TABLE_NUMBER | HOTBED_HAS_KEY | HOTBED_HAS_LIMIT,
          .table_number = 3,
          .key = 41,
          .limit = 128}},
        {{HOTBED_ERR_RANGE, HOTBED_CAUSE_KEY_RANGE, 7, 99, 50},
         {"table number 7", "key 99", "50)"},
         {.has = HOTBED_HAS_TABLE_NUMBER | HOTBED_HAS_KEY | HOTBED_HAS_LIMIT,
          .table_number = 7,
          .key = 99,
          .limit = 50}},
        {{HOTBED_ERR_RANGE, HOTBED_CAUSE_KEY_RANGE, 0, UINT64_MAX - 4, 50},
         {"18446744073709551611", "-5"},
         {.has = HOTBED_HAS_TABLE_NUMBER | HOTBED_HAS_KEY | HOTBED_HAS_LIMIT,
          .key = UINT64_MAX - 4,
          .limit = 50}},
        {{HOTBED_ERR_ARGUMENT, HOTBED_CAUSE_OFFSET, 0, 12, (uint64_t)-3},
         {"bag 12", "-3"},
         {.has = HOTBED_HAS_VALUE, .value = -3}},
        {{HOTBED_ERR_ARGUMENT, HOTBED_CAUSE_OFFSET, 5, 12, 99},
         {"bag 12", "99"},
         {.has = HOTBED_HAS_VALUE | HOTBED_HAS_FEATURE | HOTBED_HAS_SAMPLE,
          .value = 99,
          .feature = 2,
          .sample = 2}},
        {{HOTBED_ERR_ARGUMENT, HOTBED_CAUSE_TABLE_NUMBER, 8, 12, 6},
         {"table 8", "key 12", "6"},
         {.has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT | HOTBED_HAS_KEY,
          .value = 8,
          .limit = 6,
          .key = 12}},
        {{HOTBED_ERR_IO, HOTBED_CAUSE_EXTERNAL, 1, 12, 0},
         {"12 rows", "table number 1"},
         {.has = HOTBED_HAS_VALUE | HOTBED_HAS_TABLE_NUMBER, .value = 12, .table_number = 1}},
        {{HOTBED_ERR_COMM, HOTBED_CAUSE_COMM, 2, 12, 1},
         {"rank 2", "operation 12"},
         {.has = HOTBED_HAS_VALUE | HOTBED_HAS_RANK, .value = 12, .rank = 2}},
        {{HOTBED_ERR_COMM, HOTBED_CAUSE_COMM, UINT32_MAX, 0, 1}, {"communicator"}, {.has = 0}},
        {{HOTBED_ERR_FULL, HOTBED_CAUSE_ALL_PINNED, 2, 5, 0},
         {"table number 2", "key 5", "in use"},
         {.has = HOTBED_HAS_TABLE_NUMBER | HOTBED_HAS_KEY, .table_number = 2, .key = 5}},
        {{HOTBED_ERR_STATE, 77, 2, 5, 9},
         {"fault 77", "table 2", "5", "9"},
         {.has = HOTBED_HAS_TABLE_NUMBER, .table_number = 2}},
    };
    hotbed_stream *stream = cases_stream(backend);
    hotbed_memory place = cases_device(stream, sizeof(fault_case), NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        latch(stream, &place, cases[i].fault);
        CHECK_STATUS(hotbed_stream_sync(stream), (hotbed_status)cases[i].fault.status);
        for (int w = 0; w < 4 && cases[i].words[w] != NULL; w++) {
            if (strstr(hotbed_last_error(), cases[i].words[w]) == NULL)
                hotbed_check_failed(
                    __FILE__, __LINE__, "no \"%s\" in \"%s\"", cases[i].words[w],
                    hotbed_last_error());
        }
        hotbed_error_detail fields = cases[i].fields;
        fields.cause = (hotbed_error_cause)cases[i].fault.what;
        hotbed_check_fields(__FILE__, __LINE__, hotbed_last_error_detail(), &fields);
        CHECK_OK(hotbed_stream_sync(stream)); /* the fault was cleared */
    }
    hotbed_memory_free(&place);
    hotbed_stream_destroy(stream);
}

static void the_first_fault_wins(hotbed_backend backend) {
    hotbed_stream *stream = cases_stream(backend), *other = cases_stream(backend);
    hotbed_memory place = cases_device(stream, sizeof(fault_case), NULL);
    CHECK_OK(hotbed_stream_fault(stream));
    latch(stream, &place, (fault_case){HOTBED_ERR_FULL, HOTBED_CAUSE_TABLE_FULL, 1, 10, 1});
    latch(stream, &place, (fault_case){HOTBED_ERR_RANGE, HOTBED_CAUSE_KEY_RANGE, 2, 20, 2});
    CHECK_OK(hotbed_stream_fault(other)); /* faults are kept per stream */
    hotbed_counters before = read_counters();
    CHECK_STATUS(hotbed_stream_fault(stream), HOTBED_ERR_FULL);
    CHECK(strstr(hotbed_last_error(), "key 10") != NULL);
    CHECK_OK(hotbed_stream_fault(stream));
    CHECK_EQ(read_counters().host_waits, before.host_waits);
    latch(stream, &place, (fault_case){HOTBED_ERR_RANGE, HOTBED_CAUSE_KEY_RANGE, 2, 20, 2});
    CHECK_STATUS(hotbed_stream_sync(stream), HOTBED_ERR_RANGE);
    latch(stream, &place, (fault_case){HOTBED_ERR_FULL, HOTBED_CAUSE_TABLE_FULL, 1, 10, 1});
    hotbed_memory_free(&place);
    hotbed_stream_destroy(other);
    hotbed_stream_destroy(stream); /* discards the fault */
}

static void one_of_many_concurrent_faults_is_kept_whole(hotbed_backend backend) {
    enum { N = 20000 };
    static fault_case faults[N];
    for (uint32_t i = 0; i < N; i++)
        faults[i] = (fault_case){
            i % 2 == 0 ? HOTBED_ERR_FULL : HOTBED_ERR_RANGE, 100, i, (uint64_t)i * 3,
            (uint64_t)i * 5};
    hotbed_stream *stream = cases_stream(backend);
    hotbed_memory in = cases_device(stream, sizeof faults, faults);
    for (int round = 0; round < 20; round++) {
        CHECK_OK(cases_launch(CASE_LATCH, N, in.data, hotbed_stream_faults(stream), stream));
        hotbed_status status = hotbed_stream_sync(stream);
        unsigned what, table;
        unsigned long long key, bound;
        int found = sscanf(/* NOLINT(cert-err34-c): the library's own text */
                           hotbed_last_error(), "fault %u: table %u, key %llu, bound %llu", &what,
                           &table, &key, &bound);
        CHECK_EQ(found, 4);
        CHECK_EQ(status, table % 2 == 0 ? HOTBED_ERR_FULL : HOTBED_ERR_RANGE);
        CHECK_EQ(key, (unsigned long long)table * 3);
        CHECK_EQ(bound, (unsigned long long)table * 5);
    }
    hotbed_memory_free(&in);
    hotbed_stream_destroy(stream);
}

/* hotbed_stream_fault() while kernels latch faults: each fault is read as one of them wrote it. */
static void faults_may_be_taken_while_work_runs(hotbed_backend backend) {
    enum { N = 5000 };
    static fault_case faults[N];
    for (uint32_t i = 0; i < N; i++)
        faults[i] = (fault_case){HOTBED_ERR_FULL, 100, i, (uint64_t)i * 3, (uint64_t)i * 5};
    hotbed_stream *stream = cases_stream(backend);
    hotbed_memory in = cases_device(stream, sizeof faults, faults);
    hotbed_event *event = new_event(stream);
    for (int i = 0; i < 50; i++)
        CHECK_OK(cases_launch(CASE_LATCH, N, in.data, hotbed_stream_faults(stream), stream));
    CHECK_OK(hotbed_event_record(event, stream));
    int taken = 0;
    for (bool last = false; !last;) {
        last = is_done(event);
        if (hotbed_stream_fault(stream) == HOTBED_OK)
            continue;
        unsigned what, table;
        unsigned long long key, bound;
        int found = sscanf(/* NOLINT(cert-err34-c): the library's own text */
                           hotbed_last_error(), "fault %u: table %u, key %llu, bound %llu", &what,
                           &table, &key, &bound);
        CHECK_EQ(found, 4);
        CHECK_EQ(key, (unsigned long long)table * 3);
        CHECK_EQ(bound, (unsigned long long)table * 5);
        taken++;
    }
    CHECK(taken > 0);
    hotbed_event_destroy(event);
    hotbed_memory_free(&in);
    hotbed_stream_destroy(stream);
}

/* --- workspace ------------------------------------------------------------------------------- */

static void a_workspace_stays_until_it_must_grow(hotbed_backend backend) {
    hotbed_stream *stream = cases_stream(backend);
    void *small = NULL, *again = NULL, *large = NULL;
    CHECK_OK(hotbed_stream_workspace(stream, 100, &small));
    CHECK(small != NULL);
    CHECK_EQ((uintptr_t)small % 256, 0);
    hotbed_counters before = read_counters();
    CHECK_OK(hotbed_stream_workspace(stream, 50, &again));
    CHECK(again == small);
    CHECK_EQ(read_counters().allocations, before.allocations);
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
    hotbed_stream *stream = cases_stream(backend);
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
    hotbed_stream *stream = cases_stream(backend);
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
    CHECK_OK(hotbed_stream_call(stream, add_one, &calls));
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
    hotbed_stream *stream = cases_stream(backend);
    hotbed_graph *graph = NULL, *empty = NULL;
    int calls = 0;
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_OK(hotbed_graph_end(stream, &empty));
    CHECK_OK(hotbed_graph_begin(stream));
    for (int i = 0; i < 40; i++)
        CHECK_OK(hotbed_stream_call(stream, add_one, &calls));
    CHECK_OK(hotbed_graph_end(stream, &graph));
    hotbed_counters before = read_counters();
    for (int i = 0; i < 200; i++) {
        CHECK_OK(hotbed_graph_launch(graph, stream));
        CHECK_OK(hotbed_graph_launch(empty, stream));
    }
    hotbed_counters after = read_counters();
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
    hotbed_stream *stream = cases_stream(backend), *other = cases_stream(backend);
    hotbed_graph *graph = NULL, *second = NULL, *first = NULL;
    hotbed_event *event = new_event(stream);
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
    CHECK(is_done(event));
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
    hotbed_stream *stream = cases_stream(backend);
    int calls = 0;
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_OK(hotbed_stream_call(stream, add_one, &calls));
    hotbed_stream_destroy(stream);
    CHECK_EQ(calls, 0);
}

static void each_launch_of_a_graph_records_its_events(hotbed_backend backend) {
    hotbed_stream *a = cases_stream(backend), *b = cases_stream(backend);
    hotbed_event *out = new_event(a), *in = new_event(a);
    hotbed_graph *graph = NULL;
    int calls = 0;
    CHECK_OK(hotbed_graph_begin(a));
    CHECK_OK(hotbed_stream_wait(a, in));
    CHECK_OK(hotbed_stream_call(a, add_one, &calls));
    CHECK_OK(hotbed_event_record(out, a));
    CHECK_OK(hotbed_graph_end(a, &graph));
    CHECK(is_done(out)); /* not launched yet */
    for (int round = 0; round < 5; round++) {
        gate *g = gate_create();
        CHECK_OK(hotbed_stream_call(b, gate_wait, g));
        CHECK_OK(hotbed_stream_call(b, add_one, &calls));
        CHECK_OK(hotbed_event_record(in, b));
        CHECK_OK(hotbed_graph_launch(graph, a)); /* waits for b */
        CHECK(!is_done(out));
        CHECK_OK(hotbed_stream_wait(b, out)); /* waits for the graph */
        CHECK_OK(hotbed_stream_call(b, add_one, &calls));
        gate_open(g);
        CHECK_OK(hotbed_stream_sync(b));
        CHECK(is_done(out));
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

static void counters_count_waits_copies_and_allocations(hotbed_backend backend) {
    hotbed_stream *stream = cases_stream(backend);
    hotbed_event *event = new_event(stream);
    hotbed_memory a = cases_device(stream, 1000, NULL), b = cases_device(stream, 1000, NULL);
    int calls = 0;
    bool done;
    hotbed_counters before = read_counters();
    for (int i = 0; i < 50; i++) {
        CHECK_OK(hotbed_fill(b.data, i, 1000, stream));
        CHECK_OK(hotbed_copy(a.data, b.data, 1000, stream));
        CHECK_OK(hotbed_stream_call(stream, add_one, &calls));
        CHECK_OK(hotbed_event_record(event, stream));
        CHECK_OK(hotbed_stream_wait(stream, event));
        CHECK_OK(hotbed_event_query(event, &done));
        CHECK_OK(hotbed_stream_fault(stream));
    }
    hotbed_counters after = read_counters();
    CHECK_EQ(after.host_waits, before.host_waits);
    CHECK_EQ(after.allocations, before.allocations);
    CHECK_EQ(after.copies - before.copies, 50);
    CHECK_EQ(after.copied_bytes - before.copied_bytes, 50000);
    CHECK_EQ(after.launches - before.launches, 100);
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_OK(hotbed_event_sync(event));
    CHECK_EQ(read_counters().host_waits - after.host_waits, 2);
    hotbed_memory c;
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, 777, NULL, &c));
    CHECK_EQ(read_counters().allocations - after.allocations, 1);
    CHECK_EQ(read_counters().allocated_bytes - after.allocated_bytes, 777);
    for (int kind = 0; kind <= HOTBED_MEMORY_FILE; kind++)
        CHECK_EQ(
            read_counters().memory_bytes[kind] - after.memory_bytes[kind],
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
    hotbed_stream *stream = cases_stream(backend);
    hotbed_memory memory = cases_device(stream, sizeof pageable, NULL);
    hotbed_counters before = read_counters();
    CHECK_OK(hotbed_copy(memory.data, pageable, sizeof pageable, stream));
    CHECK_OK(hotbed_copy(pageable, memory.data, sizeof pageable, stream));
    CHECK_OK(hotbed_fill(pageable, 3, sizeof pageable, stream));
    CHECK_EQ(read_counters().host_waits - before.host_waits, 3);
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_EQ(pageable[999], 3);
    hotbed_memory_free(&memory);
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
        hotbed_stream *a = cases_stream(w->backend), *b = cases_stream(w->backend);
        hotbed_event *event = new_event(a);
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
    hotbed_stream_options options;
    hotbed_stream *stream = NULL;
    hotbed_stream_options_init(&options);
    options.backend = HOTBED_BACKEND_HOST;
    options.run_inline = true;
    CHECK_OK(hotbed_stream_create_with(&options, &stream));
    return stream;
}

static void an_inline_stream_is_done_when_a_call_returns(hotbed_backend backend) {
    hotbed_stream *stream = new_inline_stream();
    hotbed_event *event = new_event(stream);
    hotbed_graph *graph = NULL;
    uint8_t bytes[64] = {0}, copy[64];
    int calls = 0;
    const uint64_t waits = read_counters().host_waits;
    CHECK_OK(hotbed_fill(bytes, 7, sizeof bytes, stream));
    CHECK_EQ(bytes[63], 7);
    CHECK_OK(hotbed_copy(copy, bytes, sizeof bytes, stream));
    CHECK_BYTES(copy, bytes, sizeof bytes);
    CHECK_OK(hotbed_stream_call(stream, add_one, &calls));
    CHECK_EQ(calls, 1);
    CHECK_OK(hotbed_event_record(event, stream));
    CHECK(is_done(event));
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_OK(hotbed_stream_call(stream, add_one, &calls));
    CHECK_OK(hotbed_event_record(event, stream));
    CHECK_OK(hotbed_graph_end(stream, &graph));
    CHECK_EQ(calls, 1);
    CHECK_OK(hotbed_graph_launch(graph, stream));
    CHECK_EQ(calls, 2);
    CHECK(is_done(event));
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_EQ(read_counters().host_waits, waits);
    hotbed_graph_destroy(graph);
    hotbed_event_destroy(event);
    hotbed_stream_destroy(stream);
}

static void inline_and_other_streams_wait_for_each_other(hotbed_backend backend) {
    (void)backend; /* inline streams are of the host backend */
    hotbed_stream *own = new_inline_stream(), *other = NULL;
    int calls = 0;
    CHECK_OK(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &other));
    hotbed_event *first = new_event(other), *second = new_event(own);
    for (int i = 0; i < 50; i++) {
        CHECK_OK(hotbed_stream_call(other, add_one, &calls));
        CHECK_OK(hotbed_event_record(first, other));
        CHECK_OK(hotbed_stream_wait(own, first));
        CHECK_EQ(calls, 2 * i + 1);
        CHECK_OK(hotbed_stream_call(own, add_one, &calls));
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
    hotbed_stream_options options;
    hotbed_stream *stream = NULL;
    hotbed_stream_options_init(&options);
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
        hotbed_stream_call(stream, add_one, &nothing),
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
    hotbed_stream *stream = NULL;
    hotbed_graph *graph = NULL;
    hotbed_memory memory;
    int status = 0, calls = 0;
    CHECK_OK(hotbed_stream_create(backend, 0, &stream));
    hotbed_event *event = new_event(stream);
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, 4096, NULL, &memory));
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_OK(hotbed_stream_call(stream, add_one, &calls));
    CHECK_OK(hotbed_graph_end(stream, &graph));
    CHECK_OK(hotbed_stream_call(stream, add_one, &calls));
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
    while (read_counters().host_waits == c->waits &&
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
    full_stream c = {.waits = read_counters().host_waits};
    hotbed_stream *stream;
    CHECK_OK(hotbed_stream_create(backend, 0, &stream));
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

const hotbed_test hotbed_tests[] = {
    {"backends_have_names", backends_have_names},
    {"probe_reports_which_backends_can_run", probe_reports_which_backends_can_run},
    {"create_refuses_missing_devices_and_backends", create_refuses_missing_devices_and_backends},
    {"streams_report_their_backend_and_device", streams_report_their_backend_and_device},
    {"streams_keep_their_priority", streams_keep_their_priority},
    {"null_is_refused_or_ignored", null_is_refused_or_ignored},
    {"events_of_another_backend_are_refused", events_of_another_backend_are_refused},
    {"a_wrapped_stream_belongs_to_the_caller", a_wrapped_stream_belongs_to_the_caller},
    {"a_capture_by_the_caller_is_a_recording", a_capture_by_the_caller_is_a_recording},
    {"the_default_stream_can_be_wrapped", the_default_stream_can_be_wrapped},
    {"a_stream_runs_its_work_in_order_and_asynchronously",
     a_stream_runs_its_work_in_order_and_asynchronously},
    {"destroy_finishes_the_work", destroy_finishes_the_work},
    {"copies_and_fills_run_in_order", copies_and_fills_run_in_order},
    {"an_event_holds_another_stream_back", an_event_holds_another_stream_back},
    {"a_wait_is_for_the_latest_record_before_it", a_wait_is_for_the_latest_record_before_it},
    {"an_older_record_of_another_stream_still_blocks",
     an_older_record_of_another_stream_still_blocks},
    {"an_event_may_be_destroyed_before_it_is_passed",
     an_event_may_be_destroyed_before_it_is_passed},
    {"seconds_need_two_passed_events", seconds_need_two_passed_events},
    {"faults_are_reported_with_their_values", faults_are_reported_with_their_values},
    {"the_first_fault_wins", the_first_fault_wins},
    {"one_of_many_concurrent_faults_is_kept_whole", one_of_many_concurrent_faults_is_kept_whole},
    {"faults_may_be_taken_while_work_runs", faults_may_be_taken_while_work_runs},
    {"a_workspace_stays_until_it_must_grow", a_workspace_stays_until_it_must_grow},
    {"a_workspace_does_not_grow_in_a_recording", a_workspace_does_not_grow_in_a_recording},
    {"a_graph_reads_memory_when_it_is_launched", a_graph_reads_memory_when_it_is_launched},
    {"launches_of_a_graph_run_one_after_the_other", launches_of_a_graph_run_one_after_the_other},
    {"a_recording_refuses_calls_that_wait_or_allocate",
     a_recording_refuses_calls_that_wait_or_allocate},
    {"a_recording_may_be_abandoned", a_recording_may_be_abandoned},
    {"each_launch_of_a_graph_records_its_events", each_launch_of_a_graph_records_its_events},
    {"counters_count_waits_copies_and_allocations", counters_count_waits_copies_and_allocations},
    {"pageable_copies_count_as_waits_on_cuda", pageable_copies_count_as_waits_on_cuda},
    {"threads_have_streams_of_their_own", threads_have_streams_of_their_own},
    {"an_inline_stream_is_done_when_a_call_returns", an_inline_stream_is_done_when_a_call_returns},
    {"inline_and_other_streams_wait_for_each_other", inline_and_other_streams_wait_for_each_other},
    {"options_of_a_stream_are_checked", options_of_a_stream_are_checked},
    {"a_forked_child_gets_errors_and_does_not_hang", a_forked_child_gets_errors_and_does_not_hang},
    {"a_full_stream_runs_every_task_in_order", a_full_stream_runs_every_task_in_order},
    {NULL, NULL},
};
