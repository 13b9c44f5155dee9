/* base/stream.c - streams, events, memory and graphs: checks, and dispatch to the backends. */
#include "base/backend.h"
#include "base/check.h"
#include "base/options.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>

/* --- backends ------------------------------------------------------------------------------- */

/* Find a backend's operations. Only this function knows which backends are built. *out is set if
 * the function returns OK. */
static hotbed_status find_backend(hotbed_backend backend, const hotbed_backend_ops **out) {
    switch (backend) {
    case HOTBED_BACKEND_HOST:
        *out = &hotbed_host_ops;
        return HOTBED_OK;
    case HOTBED_BACKEND_CUDA:
#if defined(HOTBED_WITH_CUDA)
        *out = &hotbed_cuda_ops;
        return HOTBED_OK;
#else
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED, "backend cuda is not in this build (HOTBED_CUDA is OFF)");
#endif
    }
    return hotbed_fail_unknown("backend", backend);
}

hotbed_status hotbed_backend_probe(hotbed_backend backend) {
    const hotbed_backend_ops *ops = NULL;
    HOTBED_TRY(find_backend(backend, &ops));
    return ops->probe();
}

static hotbed_status fail_recording(const char *function, const char *why) {
    return hotbed_fail(
        HOTBED_ERR_STATE, "%s: the stream records a graph, and the call %s", function, why);
}

/* --- streams -------------------------------------------------------------------------------- */

static void free_workspace(hotbed_workspace *workspace);
static uint64_t streams; /* atomic: created so far */

/* cudaStreamPerThread: another stream in each thread. */
#define CUDA_PER_THREAD ((void *)(uintptr_t)0x2)

static hotbed_status create(
    hotbed_backend backend, const hotbed_stream_spec *spec, hotbed_stream **out) {
    const hotbed_backend_ops *ops = NULL;
    HOTBED_TRY(hotbed_fork_check());
    HOTBED_TRY(find_backend(backend, &ops));
    if (spec->device < 0)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "device", spec->device, 0, "device %d is negative", spec->device);
    HOTBED_TRY(hotbed_check_choice(
        "priority", spec->priority, HOTBED_PRIORITY_NORMAL, HOTBED_PRIORITY_HIGH));
    hotbed_stream *stream = NULL;
    hotbed_fork_watch();
    HOTBED_TRY(ops->stream_create(spec, &stream));
    stream->ops = ops;
    stream->backend = backend;
    stream->device = spec->device;
    if (!spec->wrap || spec->native != CUDA_PER_THREAD)
        stream->number = __atomic_add_fetch(&streams, 1, __ATOMIC_RELAXED);
    stream->priority = spec->priority;
    stream->run_inline = spec->run_inline;
    *out = stream;
    return HOTBED_OK;
}

hotbed_status hotbed_stream_create(hotbed_backend backend, int device, hotbed_stream **out) {
    HOTBED_TRY_OUT(out);
    return create(backend, &(hotbed_stream_spec){.device = device}, out);
}

hotbed_status hotbed_stream_create_with(const hotbed_stream_options *options, hotbed_stream **out) {
    hotbed_stream_options o;
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(HOTBED_OPTIONS_READ(&o, hotbed_stream_options, device, options));
    hotbed_stream_spec spec = {
        .device = o.device,
        .priority = o.priority,
        .run_inline = o.run_inline,
    };
    return create(o.backend, &spec, out);
}

hotbed_status hotbed_stream_wrap_cuda(int device, void *native, hotbed_stream **out) {
    HOTBED_TRY_OUT(out);
    hotbed_stream_spec spec = {.device = device, .wrap = true, .native = native};
    return create(HOTBED_BACKEND_CUDA, &spec, out);
}

hotbed_status hotbed_check_stream(
    const hotbed_stream *stream, const char *object, hotbed_backend backend, int device) {
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    const hotbed_backend given = hotbed_stream_backend(stream);
    if (given == backend && hotbed_stream_device(stream) == device)
        return HOTBED_OK;
    return hotbed_fail_parameter(
        HOTBED_ERR_ARGUMENT, "stream", "the stream is of %s %d, the %s of %s %d",
        hotbed_backend_name(given), hotbed_stream_device(stream), object,
        hotbed_backend_name(backend), device);
}

/* An inline stream has completed its work already, so there is nothing to wait for. */
static void count_stream_wait(const hotbed_stream *stream) {
    if (!stream->run_inline)
        hotbed_count_wait();
}

void hotbed_stream_destroy(hotbed_stream *stream) {
    if (stream == NULL || hotbed_forked())
        return;
    if (stream->recording)
        (void)!stream->ops->graph_end(stream, NULL);
    count_stream_wait(stream);
    (void)!stream->ops->stream_sync(stream);
    free_workspace(&stream->device_workspace);
    free_workspace(&stream->pinned_workspace);
    hotbed_fault_sources_clear(&stream->sources);
    stream->ops->stream_destroy(stream);
}

hotbed_backend hotbed_stream_backend(const hotbed_stream *stream) {
    return stream == NULL ? (hotbed_backend)0 : stream->backend;
}

int hotbed_stream_device(const hotbed_stream *stream) {
    return stream == NULL ? 0 : stream->device;
}

void *hotbed_stream_native(const hotbed_stream *stream) {
    return stream == NULL ? NULL : stream->ops->stream_native(stream);
}

hotbed_fault *hotbed_stream_faults(hotbed_stream *stream) {
    return stream->fault;
}

hotbed_fault *hotbed_stream_table_faults(hotbed_stream *stream, hotbed_table_names *names) {
    const bool recording = hotbed_stream_recording(stream);
    while (stream->parent != NULL)
        stream = stream->parent;
    hotbed_fault_sources_add(&stream->sources, names, recording);
    return stream->fault;
}

bool hotbed_stream_recording(const hotbed_stream *stream) {
    if (hotbed_forked()) /* CUDA cannot be called here; the next call reports the error */
        return false;
    return stream->recording || stream->ops->stream_captured(stream);
}

uint64_t hotbed_stream_recording_number(const hotbed_stream *stream) {
    return stream->recording ? stream->recording_number : 0;
}

static hotbed_status fork_off(hotbed_stream *stream, int which, hotbed_stream **out) {
    *out = stream;
    return stream->ops->stream_branch == NULL ? HOTBED_OK
                                              : stream->ops->stream_branch(stream, which, out);
}

static hotbed_status join_in(hotbed_stream *stream, int which) {
    return stream->ops->stream_join == NULL ? HOTBED_OK : stream->ops->stream_join(stream, which);
}

hotbed_status hotbed_stream_branch(hotbed_stream *stream, hotbed_stream **branch) {
    return fork_off(stream, 0, branch);
}

hotbed_status hotbed_stream_join(hotbed_stream *stream) {
    return join_in(stream, 0);
}

hotbed_status hotbed_stream_beside(hotbed_stream *stream, hotbed_stream **beside) {
    return fork_off(stream, 1, beside);
}

hotbed_status hotbed_stream_join_beside(hotbed_stream *stream) {
    return join_in(stream, 1);
}

hotbed_status hotbed_stream_follow(hotbed_stream *stream, hotbed_stream *branch) {
    return stream == branch || stream->ops->stream_follow == NULL
               ? HOTBED_OK
               : stream->ops->stream_follow(stream, branch);
}

bool hotbed_stream_keeps_branches(const hotbed_stream *stream) {
    return stream->recording || !stream->ops->stream_captured(stream);
}

hotbed_status hotbed_stream_may_wait(const hotbed_stream *stream) {
    if (hotbed_stream_recording(stream))
        return hotbed_fail(HOTBED_ERR_STATE, "cannot wait for the stream while it records a graph");
    return HOTBED_OK;
}

/* Take the latched fault and clear it. The status of the result is OK if no fault is latched. */
static hotbed_fault take_latched(hotbed_fault *fault) {
    /* Pairs with the release in hotbed_fault_latch(): if status is set, the values are complete. */
    hotbed_fault copy = {.status = __atomic_load_n(&fault->status, __ATOMIC_ACQUIRE)};
    if (copy.status == HOTBED_OK)
        return copy;
    copy.what = fault->what;
    copy.table = fault->table;
    copy.key = fault->key;
    copy.bound = fault->bound;
    __atomic_store_n(&fault->status, 0, __ATOMIC_RELAXED);
    /* Last: the next thread that claims the fault sees status 0, and the values are no longer read
     * here. */
    __atomic_store_n(&fault->taken, fault->taken + 1, __ATOMIC_RELEASE);
    return copy;
}

/* Fail with the latched fault, if there is one. `done`: all work of the stream is done. */
static hotbed_status take_fault(hotbed_stream *stream, bool done) {
    hotbed_error error;
    hotbed_fault taken = take_latched(stream->fault);
    if (taken.status != HOTBED_OK)
        hotbed_fault_describe(taken, &stream->sources, &error);
    hotbed_fault_sources_passed(&stream->sources, done);
    if (taken.status == HOTBED_OK)
        return HOTBED_OK;
    return hotbed_error_return(&error, (hotbed_status)taken.status);
}

bool hotbed_fault_take(hotbed_fault *fault, hotbed_table_names *names, hotbed_error *out) {
    const hotbed_fault_sources sources = {.names = {names}, .num = 1};
    hotbed_fault taken = take_latched(fault);
    if (taken.status != HOTBED_OK)
        hotbed_fault_describe(taken, &sources, out);
    return taken.status != HOTBED_OK;
}

hotbed_status hotbed_stream_sync(hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_stream_sync", "stream", stream));
    if (hotbed_stream_recording(stream))
        return fail_recording("hotbed_stream_sync", "waits");
    HOTBED_TRY(hotbed_fork_check());
    count_stream_wait(stream);
    HOTBED_TRY(stream->ops->stream_sync(stream));
    return take_fault(stream, true);
}

hotbed_status hotbed_stream_finish(hotbed_stream *stream) {
    if (hotbed_stream_recording(stream))
        return hotbed_stream_may_wait(stream);
    HOTBED_TRY(hotbed_fork_check());
    count_stream_wait(stream);
    return stream->ops->stream_sync(stream);
}

hotbed_status hotbed_stream_settle(hotbed_stream *stream, hotbed_status status) {
    hotbed_error error;
    hotbed_error_copy(&error);
    if (hotbed_stream_sync(stream) == HOTBED_OK)
        return status;
    return hotbed_error_return(&error, status);
}

static void add_sources(hotbed_fault_sources *to, const hotbed_fault_sources *from) {
    for (uint32_t i = 0; i < from->num; i++)
        hotbed_fault_sources_add(to, from->names[i], false);
    if (from->unnamed)
        hotbed_fault_sources_add(to, NULL, false);
}

hotbed_status hotbed_stream_hold_fault(hotbed_stream *stream, hotbed_held_fault *held) {
    *held = (hotbed_held_fault){.fault = {.status = HOTBED_OK}};
    HOTBED_TRY(hotbed_stream_finish(stream));
    held->fault = take_latched(stream->fault);
    if (held->fault.status != HOTBED_OK)
        add_sources(&held->sources, &stream->sources);
    hotbed_fault_sources_passed(&stream->sources, true);
    return HOTBED_OK;
}

void hotbed_stream_return_fault(hotbed_stream *stream, hotbed_held_fault *held) {
    const hotbed_fault f = held->fault;
    if (f.status == HOTBED_OK)
        return;
    (void)stream->ops->stream_sync(stream);
    (void)take_latched(stream->fault);
    add_sources(&stream->sources, &held->sources);
    hotbed_fault_sources_clear(&held->sources);
    hotbed_fault_latch(stream->fault, f.status, f.what, f.table, f.key, f.bound);
}

hotbed_status hotbed_stream_fault(hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_stream_fault", "stream", stream));
    return take_fault(stream, stream->run_inline);
}

hotbed_status hotbed_stream_call(
    hotbed_stream *stream, void (*function)(void *argument), void *argument) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_stream_call", "stream", stream));
    if (function == NULL)
        return hotbed_fail_null_of("hotbed_stream_call", "function");
    HOTBED_TRY(hotbed_fork_check());
    hotbed_count_launch();
    return stream->ops->stream_call(stream, function, argument);
}

/* --- workspace ------------------------------------------------------------------------------ */

/* Sizes are powers of two from 64 KiB, so all retired memory together is smaller than the memory in
 * use. */
static size_t workspace_size(size_t bytes) {
    size_t size = (size_t)1 << 16;
    while (size < bytes && size <= SIZE_MAX / 2)
        size *= 2;
    return size < bytes ? bytes : size;
}

static hotbed_status grow_workspace(
    hotbed_stream *stream, hotbed_workspace *workspace, hotbed_memory_kind kind, size_t bytes,
    void **out) {
    if (workspace->memory.bytes < bytes) {
        if (hotbed_stream_recording(stream))
            return fail_recording("workspace", "would have to grow it");
        hotbed_memory memory;
        HOTBED_TRY(hotbed_memory_alloc(stream, kind, workspace_size(bytes), NULL, &memory));
        if (workspace->memory.data != NULL)
            workspace->retired[workspace->num_retired++] = workspace->memory;
        workspace->memory = memory;
    }
    *out = workspace->memory.data;
    return HOTBED_OK;
}

static void free_workspace(hotbed_workspace *workspace) {
    for (uint32_t i = 0; i < workspace->num_retired; i++)
        hotbed_memory_free(&workspace->retired[i]);
    hotbed_memory_free(&workspace->memory);
}

hotbed_status hotbed_stream_workspace(hotbed_stream *stream, size_t bytes, void **out) {
    /* Always allocate something: callers that ask for 0 bytes take its address. */
    return grow_workspace(
        stream, &stream->device_workspace, HOTBED_MEMORY_DEVICE, bytes > 0 ? bytes : 1, out);
}

hotbed_status hotbed_stream_pinned_workspace(hotbed_stream *stream, size_t bytes, void **out) {
    size_t before = stream->pinned_workspace.memory.bytes;
    HOTBED_TRY(grow_workspace(stream, &stream->pinned_workspace, HOTBED_MEMORY_PINNED, bytes, out));
    if (stream->pinned_workspace.memory.bytes > before)
        memset(*out, 0, stream->pinned_workspace.memory.bytes);
    return HOTBED_OK;
}

/* --- events --------------------------------------------------------------------------------- */

hotbed_status hotbed_event_create(hotbed_stream *stream, hotbed_event **out) {
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_event_create", "stream", stream));
    hotbed_event *event = NULL;
    HOTBED_TRY(stream->ops->event_create(stream, &event));
    event->ops = stream->ops;
    event->device = stream->device;
    *out = event;
    return HOTBED_OK;
}

void hotbed_event_destroy(hotbed_event *event) {
    if (event != NULL && !hotbed_forked())
        event->ops->event_destroy(event);
}

/* Check that an event and a stream belong to the same backend and device. */
static hotbed_status check_event(
    const char *function, const hotbed_event *event, const hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer_of(function, "event", event));
    HOTBED_TRY(hotbed_check_pointer_of(function, "stream", stream));
    if (event->ops != stream->ops || event->device != stream->device)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, "event",
            "%s: the event was made for another backend or device than %s %d", function,
            hotbed_backend_name(stream->backend), stream->device);
    return hotbed_fork_check();
}

hotbed_status hotbed_event_record(hotbed_event *event, hotbed_stream *stream) {
    HOTBED_TRY(check_event("hotbed_event_record", event, stream));
    if (stream->recording)
        __atomic_store_n(&event->in_graph, true, __ATOMIC_RELAXED);
    __atomic_store_n(&event->recorder, 0, __ATOMIC_RELAXED);
    HOTBED_TRY(stream->ops->event_record(event, stream));
    const bool any = __atomic_load_n(&event->in_graph, __ATOMIC_RELAXED);
    __atomic_store_n(&event->recorder, any ? 0 : stream->number, __ATOMIC_RELAXED);
    return HOTBED_OK;
}

/* A stream that recorded the event itself has nothing to wait for, which saves the driver's call. */
hotbed_status hotbed_stream_wait(hotbed_stream *stream, hotbed_event *event) {
    HOTBED_TRY(check_event("hotbed_stream_wait", event, stream));
    const uint64_t recorder = __atomic_load_n(&event->recorder, __ATOMIC_RELAXED);
    if (recorder != 0 && recorder == stream->number && !stream->recording)
        return HOTBED_OK;
    return stream->ops->stream_wait(stream, event);
}

hotbed_status hotbed_event_query(hotbed_event *event, bool *done) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_event_query", "event", event));
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_event_query", "done", done));
    HOTBED_TRY(hotbed_fork_check());
    bool recorded = false;
    return event->ops->event_query(event, &recorded, done);
}

hotbed_status hotbed_event_sync(hotbed_event *event) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_event_sync", "event", event));
    HOTBED_TRY(hotbed_fork_check());
    hotbed_count_wait();
    return event->ops->event_sync(event);
}

hotbed_status hotbed_event_await(hotbed_event *event) {
    HOTBED_TRY(hotbed_fork_check());
    return event->ops->event_sync(event);
}

/* Return STATE unless the event is recorded and has passed. */
static hotbed_status check_passed(hotbed_event *event, const char *name) {
    bool recorded = false, done = false;
    HOTBED_TRY(event->ops->event_query(event, &recorded, &done));
    if (!recorded || !done)
        return hotbed_fail(
            HOTBED_ERR_STATE, "hotbed_event_seconds: %s was not %s yet", name,
            recorded ? "passed" : "recorded");
    return HOTBED_OK;
}

hotbed_status hotbed_event_seconds(hotbed_event *start, hotbed_event *stop, double *seconds) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_event_seconds", "start", start));
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_event_seconds", "stop", stop));
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_event_seconds", "seconds", seconds));
    if (start->ops != stop->ops || start->device != stop->device)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "hotbed_event_seconds: the events are of two backends or devices");
    HOTBED_TRY(check_passed(start, "start"));
    HOTBED_TRY(check_passed(stop, "stop"));
    return start->ops->event_seconds(start, stop, seconds);
}

/* --- memory --------------------------------------------------------------------------------- */

const char *hotbed_memory_name(hotbed_memory_kind kind) {
    static const char *const names[] = {NULL, "device", "pinned", "pageable", "file"};
    return HOTBED_NAME(names, kind, NULL);
}

/* The caller's allocator for the DEVICE memory of a backend. */
typedef struct device_pool {
    hotbed_allocator allocator; /* size 0: not set */
    uint64_t live;              /* atomic: DEVICE allocations that exist, whoever made them */
} device_pool;

static device_pool pools[HOTBED_BACKEND_CUDA + 1];

hotbed_status hotbed_memory_set_allocator(
    hotbed_backend backend, const hotbed_allocator *allocator) {
    const hotbed_backend_ops *ops = NULL;
    hotbed_allocator own = {.size = 0};
    HOTBED_TRY(find_backend(backend, &ops));
    if (allocator != NULL) {
        HOTBED_TRY(HOTBED_OPTIONS_READ(&own, hotbed_allocator, self, allocator));
        if (own.allocate == NULL || own.release == NULL)
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "hotbed_allocator: %s is NULL",
                own.allocate == NULL ? "allocate" : "release");
    }
    uint64_t live = hotbed_load_relaxed_u64(&pools[backend].live);
    if (live > 0)
        return hotbed_fail_value(
            HOTBED_ERR_STATE, NULL, live,
            "hotbed_memory_set_allocator: %" PRIu64
            " allocations of %s memory exist; set the allocator before anything is created",
            live, hotbed_backend_name(backend));
    pools[backend].allocator = own;
    return HOTBED_OK;
}

/* Allocate DEVICE memory. *out is NULL if there is none. */
static hotbed_status allocate_device(hotbed_stream *stream, size_t bytes, void **out) {
    device_pool *pool = &pools[stream->backend];
    const hotbed_allocator *a = &pool->allocator;
    if (a->size == 0) {
        HOTBED_TRY(stream->ops->memory_alloc(stream->device, HOTBED_MEMORY_DEVICE, bytes, out));
    } else {
        *out = a->allocate(a->self, stream->device, bytes, stream->ops->stream_native(stream));
        if ((uintptr_t)*out % 256 != 0) {
            a->release(a->self, stream->device, *out, bytes);
            return hotbed_fail(
                HOTBED_ERR_STATE, "the allocator's memory at %p is not 256-byte aligned", *out);
        }
    }
    if (*out != NULL)
        hotbed_add_relaxed_u64(&pool->live, 1);
    return HOTBED_OK;
}

static void release_device(const hotbed_backend_ops *ops, const hotbed_memory *memory) {
    device_pool *pool = &pools[memory->backend];
    const hotbed_allocator *a = &pool->allocator;
    if (a->size == 0)
        ops->memory_free(memory->device, memory->kind, memory->data, memory->bytes);
    else
        a->release(a->self, memory->device, memory->data, memory->bytes);
    hotbed_add_relaxed_u64(&pool->live, UINT64_MAX);
}

hotbed_status hotbed_memory_alloc(
    hotbed_stream *stream, hotbed_memory_kind kind, size_t bytes, const char *directory,
    hotbed_memory *out) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_memory_alloc", "out", out));
    *out = (hotbed_memory){0};
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_memory_alloc", "stream", stream));
    if (hotbed_memory_name(kind) == NULL)
        return hotbed_fail_unknown("kind", kind);
    if (hotbed_stream_recording(stream))
        return fail_recording("hotbed_memory_alloc", "allocates");
    HOTBED_TRY(hotbed_fork_check());
    hotbed_memory memory = {
        .data = NULL,
        .bytes = bytes,
        .kind = kind,
        .backend = stream->backend,
        .device = stream->device,
    };
    if (bytes > 0) {
        if (kind == HOTBED_MEMORY_FILE)
            HOTBED_TRY(hotbed_file_alloc(directory, bytes, &memory.data));
        else if (kind == HOTBED_MEMORY_DEVICE)
            HOTBED_TRY(allocate_device(stream, bytes, &memory.data));
        else if (kind != HOTBED_MEMORY_PAGEABLE)
            HOTBED_TRY(stream->ops->memory_alloc(stream->device, kind, bytes, &memory.data));
        else
            memory.data = hotbed_host_alloc(bytes);
        if (memory.data == NULL)
            return hotbed_fail(
                HOTBED_ERR_MEMORY, "no %s memory for %zu bytes on %s %d", hotbed_memory_name(kind),
                bytes, hotbed_backend_name(stream->backend), stream->device);
        hotbed_count_memory(kind, bytes);
    }
    *out = memory;
    return HOTBED_OK;
}

void hotbed_memory_free(hotbed_memory *memory) {
    if (memory == NULL)
        return;
    if (memory->data != NULL) {
        const hotbed_backend_ops *ops = NULL;
        if (memory->kind == HOTBED_MEMORY_FILE)
            hotbed_file_free(memory->data, memory->bytes);
        else if (memory->kind == HOTBED_MEMORY_PAGEABLE)
            hotbed_host_free(memory->data, memory->bytes);
        else if (find_backend(memory->backend, &ops) != HOTBED_OK)
            ; /* the memory was not allocated by a backend */
        else if (memory->kind == HOTBED_MEMORY_DEVICE)
            release_device(ops, memory);
        else
            ops->memory_free(memory->device, memory->kind, memory->data, memory->bytes);
    }
    *memory = (hotbed_memory){0};
}

bool hotbed_memory_is_fresh_zero(const hotbed_memory *memory) {
    if (memory->kind == HOTBED_MEMORY_PAGEABLE || memory->kind == HOTBED_MEMORY_FILE)
        return true;
    bool given = memory->kind == HOTBED_MEMORY_DEVICE && pools[memory->backend].allocator.size != 0;
    return memory->backend == HOTBED_BACKEND_HOST && !given;
}

void hotbed_memory_start_small(const hotbed_memory *memory) {
    if (memory->backend == HOTBED_BACKEND_HOST && memory->kind != HOTBED_MEMORY_FILE &&
        hotbed_memory_is_fresh_zero(memory))
        hotbed_host_start_small(memory->data, memory->bytes);
}

hotbed_status hotbed_copy(void *to, const void *from, size_t bytes, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_copy", "stream", stream));
    if (bytes == 0)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_copy", "to", to));
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_copy", "from", from));
    HOTBED_TRY(hotbed_fork_check());
    HOTBED_TRY(stream->ops->copy(to, from, bytes, stream));
    hotbed_count_copy(bytes);
    return HOTBED_OK;
}

hotbed_status hotbed_fill(void *to, int value, size_t bytes, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_fill", "stream", stream));
    if (bytes == 0)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_fill", "to", to));
    HOTBED_TRY(hotbed_fork_check());
    hotbed_count_launch();
    return stream->ops->fill(to, value, bytes, stream);
}

/* --- graphs --------------------------------------------------------------------------------- */

hotbed_status hotbed_graph_begin(hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_graph_begin", "stream", stream));
    if (hotbed_stream_recording(stream))
        return fail_recording("hotbed_graph_begin", "would start a second one");
    HOTBED_TRY(hotbed_fork_check());
    HOTBED_TRY(stream->ops->graph_begin(stream));
    static uint64_t recordings; /* atomic */
    stream->recording = true;
    stream->recording_number = __atomic_add_fetch(&recordings, 1, __ATOMIC_RELAXED);
    return HOTBED_OK;
}

hotbed_status hotbed_graph_end(hotbed_stream *stream, hotbed_graph **out) {
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_graph_end", "stream", stream));
    if (!stream->recording)
        return hotbed_fail(HOTBED_ERR_STATE, "hotbed_graph_end: the stream records no graph");
    stream->recording = false;
    hotbed_graph *graph = NULL;
    HOTBED_TRY(stream->ops->graph_end(stream, &graph));
    graph->ops = stream->ops;
    graph->stream = stream;
    *out = graph;
    return HOTBED_OK;
}

hotbed_status hotbed_graph_launch(hotbed_graph *graph, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_graph_launch", "graph", graph));
    HOTBED_TRY(hotbed_check_pointer_of("hotbed_graph_launch", "stream", stream));
    if (graph->stream != stream)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "hotbed_graph_launch: the graph was recorded on another stream");
    if (hotbed_stream_recording(stream))
        return fail_recording("hotbed_graph_launch", "would launch another graph in it");
    HOTBED_TRY(hotbed_fork_check());
    hotbed_count_launch();
    return stream->ops->graph_launch(graph, stream);
}

void hotbed_graph_destroy(hotbed_graph *graph) {
    if (graph != NULL && !hotbed_forked())
        graph->ops->graph_destroy(graph);
}
