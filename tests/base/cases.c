/* tests/base/cases.c - run_case() on the host backend; device arrays and gates. */
#include "tests/base/cases.h"
#include "base/host_launch.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct case_args {
    case_kind kind;
    const void *in;
    void *out;
} case_args;

static void case_body(const void *args, uint64_t begin, uint64_t end) {
    const case_args *a = args;
    for (uint64_t i = begin; i < end; i++)
        run_case(a->kind, i, a->in, a->out);
}

hotbed_status cases_launch(
    case_kind kind, uint64_t n, const void *in, void *out, hotbed_stream *stream) {
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA)
        return cases_launch_cuda(kind, n, in, out, stream);
#endif
    case_args args = {.kind = kind, .in = in, .out = out};
    return hotbed_host_launch(stream, n, 4096, case_body, &args, sizeof args);
}

void cases_run(
    hotbed_stream *stream, case_kind kind, uint64_t n, const void *in, size_t in_bytes, void *out,
    size_t out_bytes) {
    hotbed_memory from = cases_device(stream, in_bytes, in);
    hotbed_memory to = cases_device(stream, out_bytes, NULL);
    CHECK_OK(cases_launch(kind, n, from.data, to.data, stream));
    cases_download(stream, out, to.data, out_bytes);
    hotbed_memory_free(&from);
    hotbed_memory_free(&to);
}

void cases_add_one(void *counter) {
    ++*(int *)counter;
}

hotbed_event *cases_event(hotbed_stream *stream) {
    hotbed_event *event = NULL;
    CHECK_OK(hotbed_event_create(stream, &event));
    return event;
}

bool cases_is_done(hotbed_event *event) {
    bool done = false;
    CHECK_OK(hotbed_event_query(event, &done));
    return done;
}

hotbed_memory cases_device(hotbed_stream *stream, size_t bytes, const void *data) {
    hotbed_memory memory;
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &memory));
    if (data != NULL) {
        CHECK_OK(hotbed_copy(memory.data, data, bytes, stream));
        CHECK_OK(hotbed_stream_sync(stream));
    }
    return memory;
}

void cases_download(hotbed_stream *stream, void *to, const void *from, size_t bytes) {
    CHECK_OK(hotbed_copy(to, from, bytes, stream));
    CHECK_OK(hotbed_stream_sync(stream));
}

/* --- gates ---------------------------------------------------------------------------------- */

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool open;
};

gate *gate_create(void) {
    gate *g = calloc(1, sizeof *g);
    CHECK(g != NULL);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->opened, NULL);
    return g;
}

void gate_wait(void *held) {
    gate *g = held;
    pthread_mutex_lock(&g->lock);
    while (!g->open)
        pthread_cond_wait(&g->opened, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

void gate_open(gate *g) {
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->opened);
    pthread_mutex_unlock(&g->lock);
}

void gate_destroy(gate *g) {
    pthread_cond_destroy(&g->opened);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
