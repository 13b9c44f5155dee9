/* base/cuda_stream.cu - the CUDA backend: streams, events, memory, copies, graphs, launch helpers.
 *
 * Each operation makes the stream's GPU current for the calling thread and restores the previous
 * one at its end, so that callers with several GPUs notice nothing. Faults are latched in a word of
 * pinned memory that kernels write and the host reads without a copy. */
#include "base/backend.h"
#include "base/cuda_launch.h"

typedef struct cuda_stream cuda_stream;

/* A branch of a stream, or the stream beside it. */
typedef struct cuda_branch {
    cuda_stream *stream;        /* NULL before the first use */
    cudaEvent_t forked, joined; /* the order of work between it and its parent */
    bool open;                  /* its work may not be joined yet */
} cuda_branch;

struct cuda_stream {
    hotbed_stream base;
    cudaStream_t native;
    bool owned;
    cuda_branch branches[2]; /* hotbed_stream_branch(), hotbed_stream_beside() */
    unsigned processors;
    int shared; /* the most bytes that a block can have */
};

typedef struct cuda_event {
    hotbed_event base;
    cudaEvent_t native;
    uint32_t recorded; /* atomic */
} cuda_event;

typedef struct cuda_graph {
    hotbed_graph base;
    cudaGraphExec_t executable;
} cuda_graph;

static cuda_stream *cuda(hotbed_stream *stream) {
    return (cuda_stream *)stream;
}

static const cuda_stream *cuda(const hotbed_stream *stream) {
    return (const cuda_stream *)stream;
}

/* --- errors, devices ------------------------------------------------------------------------ */

hotbed_status hotbed_cuda_check(cudaError_t error, const char *call) {
    if (error == cudaSuccess)
        return HOTBED_OK;
    (void)cudaGetLastError(); /* clears it: otherwise the next launch would report it again */
    return hotbed_fail(
        error == cudaErrorMemoryAllocation ? HOTBED_ERR_MEMORY : HOTBED_ERR_DEVICE, "%s: %s (%s)",
        call, cudaGetErrorString(error), cudaGetErrorName(error));
}

hotbed_status hotbed_cuda_launched(const char *kernel) {
    hotbed_count_launch();
    return hotbed_cuda_check(cudaGetLastError(), kernel);
}

hotbed_cuda_device::hotbed_cuda_device(int device) : status(HOTBED_OK), before(-1) {
    int current = -1;
    if (cudaGetDevice(&current) == cudaSuccess && current == device)
        return;
    status = HOTBED_CUDA_CHECK(cudaSetDevice, device);
    if (status == HOTBED_OK)
        before = current;
}

hotbed_cuda_device::~hotbed_cuda_device() {
    if (before >= 0)
        (void)cudaSetDevice(before);
}

/* Make the device current, until the calling function returns. */
#define ENTER(device)                                                                              \
    hotbed_cuda_device here(device);                                                               \
    HOTBED_TRY(here.status)

/* While this thread records a graph on one stream, CUDA rejects calls such as cudaMalloc and
 * cudaEventQuery from the thread, and they invalidate the recording. They are safe here because
 * they concern other work: while this object exists, CUDA accepts them. */
class beside_capture {
    cudaStreamCaptureMode mode;

  public:
    beside_capture() : mode(cudaStreamCaptureModeRelaxed) {
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    }
    ~beside_capture() {
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    }
};

/* --- launch helpers ------------------------------------------------------------------------- */

/* If the GPU cannot be made current, the launch fails too. */
hotbed_cuda_native::hotbed_cuda_native(hotbed_stream *stream)
    : device(stream->device), native(cuda(stream)->native) {
}

unsigned hotbed_cuda_blocks(
    const hotbed_stream *stream, uint64_t threads, unsigned block, unsigned waves) {
    uint64_t blocks = (threads + block - 1) / block;
    uint64_t most = (uint64_t)waves * 2048 * cuda(stream)->processors / block;
    if (blocks > most)
        blocks = most;
    if (blocks > INT32_MAX)
        blocks = INT32_MAX;
    return blocks == 0 ? 1 : (unsigned)blocks;
}

hotbed_status hotbed_cuda_own_sm(const hotbed_stream *stream, const void *kernel, size_t *bytes) {
    const int shared = cuda(stream)->shared;
    *bytes = (size_t)shared;
    ENTER(stream->device);
    return HOTBED_CUDA_CHECK(
        cudaFuncSetAttribute, kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
}

/* --- streams -------------------------------------------------------------------------------- */

static hotbed_status count_devices(int *count) {
    *count = 0;
    cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaSuccess && *count > 0)
        return HOTBED_OK;
    (void)cudaGetLastError();
    if (error == cudaSuccess || error == cudaErrorNoDevice)
        return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "backend cuda: this machine has no GPU");
    if (error == cudaErrorInsufficientDriver)
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED, "backend cuda: no driver, or one older than CUDA %d.%d",
            CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return hotbed_fail(
        HOTBED_ERR_UNSUPPORTED, "backend cuda: %s (%s)", cudaGetErrorString(error),
        cudaGetErrorName(error));
}

static hotbed_status probe(void) {
    int count;
    return count_devices(&count);
}

/* Never launched; its attributes show whether this build has code for a GPU. */
static __global__ void probe_kernel(uint32_t *out) {
    *out = 0;
}

static hotbed_status check_device(int device) {
    int count;
    HOTBED_TRY(count_devices(&count));
    if (device >= count)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "device", device, count, "device %d: this machine has %d GPUs",
            device, count);
    ENTER(device);
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, probe_kernel);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
        (void)cudaGetLastError();
        return hotbed_fail_value(
            HOTBED_ERR_UNSUPPORTED, "device", device,
            "device %d: this build has no code for that kind of GPU", device);
    }
    return hotbed_cuda_check(error, "cudaFuncGetAttributes");
}

static void free_branch(cuda_branch *branch) {
    if (branch->forked != NULL)
        (void)cudaEventDestroy(branch->forked);
    if (branch->joined != NULL)
        (void)cudaEventDestroy(branch->joined);
    branch->forked = branch->joined = NULL;
    if (branch->stream == NULL)
        return;
    for (int which = 0; which < 2; which++)
        free_branch(&branch->stream->branches[which]);
    if (branch->stream->native != NULL)
        (void)cudaStreamDestroy(branch->stream->native);
    hotbed_delete(branch->stream); /* its faults are its parent's */
    branch->stream = NULL;
}

static void free_stream(cuda_stream *stream) {
    for (int which = 0; which < 2; which++)
        free_branch(&stream->branches[which]);
    if (stream->base.fault != NULL)
        (void)cudaFreeHost(stream->base.fault);
    if (stream->owned && stream->native != NULL)
        (void)cudaStreamDestroy(stream->native);
    hotbed_delete(stream);
}

/* Create what a new stream owns. On failure the caller frees the stream. */
static hotbed_status fill_stream(cuda_stream *stream, const hotbed_stream_spec *spec) {
    int processors = 0;
    HOTBED_TRY(HOTBED_CUDA_CHECK(
        cudaDeviceGetAttribute, &processors, cudaDevAttrMultiProcessorCount, spec->device));
    stream->processors = (unsigned)processors;
    HOTBED_TRY(HOTBED_CUDA_CHECK(
        cudaDeviceGetAttribute, &stream->shared, cudaDevAttrMaxSharedMemoryPerBlockOptin,
        spec->device));
    void *fault = NULL;
    HOTBED_TRY(HOTBED_CUDA_CHECK(
        cudaHostAlloc, &fault, sizeof(hotbed_fault), cudaHostAllocPortable | cudaHostAllocMapped));
    hotbed_count_allocation(sizeof(hotbed_fault));
    memset(fault, 0, sizeof(hotbed_fault));
    stream->base.fault = (hotbed_fault *)fault;
    if (spec->wrap) {
        stream->native = (cudaStream_t)spec->native;
        return HOTBED_OK;
    }
    stream->owned = true;
    int least = 0, greatest = 0; /* the greatest priority has the lowest number */
    HOTBED_TRY(HOTBED_CUDA_CHECK(cudaDeviceGetStreamPriorityRange, &least, &greatest));
    return HOTBED_CUDA_CHECK(
        cudaStreamCreateWithPriority, &stream->native, cudaStreamNonBlocking,
        spec->priority == HOTBED_PRIORITY_HIGH ? greatest : least);
}

static hotbed_status stream_create(const hotbed_stream_spec *spec, hotbed_stream **out) {
    if (spec->run_inline)
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED, "run_inline: work of a CUDA stream runs on the GPU");
    HOTBED_TRY(check_device(spec->device));
    ENTER(spec->device);
    cuda_stream *stream = (cuda_stream *)hotbed_new(sizeof *stream);
    HOTBED_TRY_MEMORY(stream, "a stream");
    const beside_capture relaxed;
    hotbed_status status = fill_stream(stream, spec);
    if (status == HOTBED_OK)
        *out = &stream->base;
    else
        free_stream(stream);
    return status;
}

static void stream_destroy(hotbed_stream *stream) {
    hotbed_cuda_device here(stream->device);
    free_stream(cuda(stream));
}

/* Open a branch or, if `which` is 1, a stream beside. A branch has the greatest priority, because its
 * kernels are short and depend on each other, and would otherwise start only when the blocks of the
 * kernels beside them run out. */
static cudaError_t open_branch(cuda_branch *branch, int which) {
    int least = 0, greatest = 0;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithPriority(
            &branch->stream->native, cudaStreamNonBlocking, which == 0 ? greatest : 0);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&branch->forked, cudaEventDisableTiming);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&branch->joined, cudaEventDisableTiming);
    return error;
}

static void create_branch(cuda_stream *stream, int which) {
    cuda_stream *branch = (cuda_stream *)hotbed_new(sizeof *branch);
    if (branch == NULL)
        return;
    branch->base.ops = stream->base.ops;
    branch->base.backend = stream->base.backend;
    branch->base.device = stream->base.device;
    branch->base.fault = stream->base.fault;
    branch->base.parent = &stream->base;
    branch->processors = stream->processors;
    branch->shared = stream->shared;
    stream->branches[which].stream = branch;
    const beside_capture relaxed;
    if (open_branch(&stream->branches[which], which) != cudaSuccess) {
        (void)cudaGetLastError();
        free_branch(&stream->branches[which]);
    }
}

/* Work of `after` that is enqueued from now on follows the work of `before`. */
static hotbed_status follow(cuda_stream *after, const cuda_stream *before, cudaEvent_t event) {
    HOTBED_TRY(HOTBED_CUDA_CHECK(cudaEventRecord, event, before->native));
    return HOTBED_CUDA_CHECK(cudaStreamWaitEvent, after->native, event, cudaEventWaitDefault);
}

static hotbed_status stream_branch(hotbed_stream *base, int which, hotbed_stream **out) {
    cuda_stream *stream = cuda(base);
    cuda_branch *branch = &stream->branches[which];
    ENTER(base->device);
    if (branch->stream == NULL)
        create_branch(stream, which);
    if (branch->stream == NULL)
        return HOTBED_OK;
    branch->stream->base.recording = base->recording;
    HOTBED_TRY(follow(branch->stream, stream, branch->forked));
    branch->open = true;
    *out = &branch->stream->base;
    return HOTBED_OK;
}

static hotbed_status stream_join(hotbed_stream *base, int which) {
    cuda_stream *stream = cuda(base);
    cuda_branch *branch = &stream->branches[which];
    if (!branch->open)
        return HOTBED_OK;
    ENTER(base->device);
    branch->open = false;
    return follow(stream, branch->stream, branch->joined);
}

static hotbed_status stream_follow(hotbed_stream *base, hotbed_stream *other) {
    ENTER(base->device);
    cuda_stream *parent = cuda(other->parent);
    for (int which = 0; which < 2; which++)
        if (parent->branches[which].stream == cuda(other))
            return follow(cuda(base), cuda(other), parent->branches[which].joined);
    return HOTBED_OK; /* not reached: `other` is a branch */
}

/* Join the branches that calls left open, and theirs. *any: whether there was one. */
static hotbed_status join_all(hotbed_stream *stream, bool *any) {
    for (int which = 0; which < 2; which++) {
        cuda_branch *branch = &cuda(stream)->branches[which];
        if (branch->stream != NULL)
            HOTBED_TRY(join_all(&branch->stream->base, &branch->open));
        *any = *any || branch->open;
        HOTBED_TRY(stream_join(stream, which));
    }
    return HOTBED_OK;
}

static hotbed_status join_open(hotbed_stream *stream) {
    bool any = false;
    return join_all(stream, &any);
}

static void *stream_native(const hotbed_stream *stream) {
    return cuda(stream)->native;
}

static bool stream_captured(const hotbed_stream *stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(cuda(stream)->native, &status) != cudaSuccess) {
        (void)cudaGetLastError(); /* the default stream, while another is captured */
        return true;
    }
    return status != cudaStreamCaptureStatusNone;
}

static hotbed_status stream_sync(hotbed_stream *stream) {
    ENTER(stream->device);
    HOTBED_TRY(join_open(stream));
    const beside_capture relaxed;
    cudaError_t error = cudaStreamSynchronize(cuda(stream)->native);
    return hotbed_cuda_check(error, "cudaStreamSynchronize");
}

static hotbed_status stream_call(
    hotbed_stream *stream, void (*function)(void *argument), void *argument) {
    ENTER(stream->device);
    return HOTBED_CUDA_CHECK(cudaLaunchHostFunc, cuda(stream)->native, function, argument);
}

/* --- events --------------------------------------------------------------------------------- */

/* Events record timing, because hotbed_event_seconds() accepts any two events. Timing adds a time
 * stamp to each record and does not change the order of work: a stream that waits for such an event
 * waits for the same work. */
static hotbed_status event_create(hotbed_stream *stream, hotbed_event **out) {
    ENTER(stream->device);
    cuda_event *event = (cuda_event *)hotbed_new(sizeof *event);
    HOTBED_TRY_MEMORY(event, "an event");
    hotbed_status status = HOTBED_CUDA_CHECK(cudaEventCreate, &event->native);
    if (status == HOTBED_OK)
        *out = &event->base;
    else
        hotbed_delete(event);
    return status;
}

static void event_destroy(hotbed_event *base) {
    cuda_event *event = (cuda_event *)base;
    hotbed_cuda_device here(base->device);
    (void)cudaEventDestroy(event->native);
    hotbed_delete(event);
}

/* In a recording, events are "external": each launch of the graph records the event, or waits for
 * the event as it was last recorded. Otherwise CUDA would turn the event into an edge inside the
 * graph. */
static hotbed_status event_record(hotbed_event *base, hotbed_stream *stream) {
    cuda_event *event = (cuda_event *)base;
    ENTER(stream->device);
    unsigned flags = stream->recording ? cudaEventRecordExternal : cudaEventRecordDefault;
    HOTBED_TRY(
        HOTBED_CUDA_CHECK(cudaEventRecordWithFlags, event->native, cuda(stream)->native, flags));
    __atomic_store_n(&event->recorded, 1, __ATOMIC_RELEASE);
    return HOTBED_OK;
}

static hotbed_status stream_wait(hotbed_stream *stream, hotbed_event *base) {
    ENTER(stream->device);
    unsigned flags = stream->recording ? cudaEventWaitExternal : cudaEventWaitDefault;
    return HOTBED_CUDA_CHECK(
        cudaStreamWaitEvent, cuda(stream)->native, ((cuda_event *)base)->native, flags);
}

static hotbed_status event_query(hotbed_event *base, bool *recorded, bool *done) {
    cuda_event *event = (cuda_event *)base;
    ENTER(base->device);
    const beside_capture relaxed;
    cudaError_t error = cudaEventQuery(event->native);
    if (error != cudaSuccess && error != cudaErrorNotReady)
        return hotbed_cuda_check(error, "cudaEventQuery");
    if (error == cudaErrorNotReady)
        (void)cudaGetLastError();
    *recorded = __atomic_load_n(&event->recorded, __ATOMIC_ACQUIRE) != 0;
    *done = error == cudaSuccess;
    return HOTBED_OK;
}

static hotbed_status event_sync(hotbed_event *base) {
    ENTER(base->device);
    const beside_capture relaxed;
    cudaError_t error = cudaEventSynchronize(((cuda_event *)base)->native);
    return hotbed_cuda_check(error, "cudaEventSynchronize");
}

static hotbed_status event_seconds(hotbed_event *start, hotbed_event *stop, double *seconds) {
    ENTER(start->device);
    float milliseconds = 0;
    cudaError_t error = cudaEventElapsedTime(
        &milliseconds, ((cuda_event *)start)->native, ((cuda_event *)stop)->native);
    if (error == cudaErrorNotReady || error == cudaErrorInvalidResourceHandle) {
        (void)cudaGetLastError(); /* recorded in a graph that has not been launched yet */
        return hotbed_fail(
            HOTBED_ERR_STATE, "hotbed_event_seconds: an event was not recorded or passed yet");
    }
    HOTBED_TRY(hotbed_cuda_check(error, "cudaEventElapsedTime"));
    *seconds = 1e-3 * (double)milliseconds;
    return HOTBED_OK;
}

/* --- memory --------------------------------------------------------------------------------- */

static hotbed_status memory_alloc(int device, hotbed_memory_kind kind, size_t bytes, void **out) {
    ENTER(device);
    const beside_capture relaxed;
    cudaError_t error =
        kind == HOTBED_MEMORY_DEVICE
            ? cudaMalloc(out, bytes)
            : cudaHostAlloc(out, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == cudaErrorMemoryAllocation || error == cudaErrorInvalidValue) {
        (void)cudaGetLastError();
        *out = NULL; /* the caller fails, and names the size */
        return HOTBED_OK;
    }
    return hotbed_cuda_check(error, kind == HOTBED_MEMORY_DEVICE ? "cudaMalloc" : "cudaHostAlloc");
}

static void memory_free(int device, hotbed_memory_kind kind, void *data, size_t bytes) {
    (void)bytes;
    hotbed_cuda_device here(device);
    const beside_capture relaxed;
    if (kind == HOTBED_MEMORY_DEVICE)
        (void)cudaFree(data);
    else
        (void)cudaFreeHost(data);
}

/* Whether CUDA does not know the memory, so that a copy to or from it goes through the host. */
static hotbed_status is_pageable(const void *data, bool *pageable) {
    cudaPointerAttributes attributes;
    HOTBED_TRY(HOTBED_CUDA_CHECK(cudaPointerGetAttributes, &attributes, data));
    *pageable = attributes.type == cudaMemoryTypeUnregistered;
    return HOTBED_OK;
}

/* Count the wait for pageable memory. Errors: STATE (the stream records a graph). */
static hotbed_status wait_for_pageable(const char *function, const hotbed_stream *stream) {
    if (stream->recording || stream_captured(stream))
        return hotbed_fail(
            HOTBED_ERR_STATE,
            "%s: the stream records a graph, and pageable memory would make it wait", function);
    hotbed_count_wait();
    return HOTBED_OK;
}

static hotbed_status copy(void *to, const void *from, size_t bytes, hotbed_stream *stream) {
    ENTER(stream->device);
    bool pageable_to, pageable_from;
    HOTBED_TRY(is_pageable(to, &pageable_to));
    HOTBED_TRY(is_pageable(from, &pageable_from));
    if (pageable_to || pageable_from)
        HOTBED_TRY(wait_for_pageable("hotbed_copy", stream));
    return HOTBED_CUDA_CHECK(
        cudaMemcpyAsync, to, from, bytes, cudaMemcpyDefault, cuda(stream)->native);
}

static hotbed_status fill(void *to, int value, size_t bytes, hotbed_stream *stream) {
    ENTER(stream->device);
    bool pageable;
    HOTBED_TRY(is_pageable(to, &pageable));
    if (!pageable)
        return HOTBED_CUDA_CHECK(cudaMemsetAsync, to, value, bytes, cuda(stream)->native);
    /* The GPU cannot access `to`: the host fills it after the stream's work. */
    HOTBED_TRY(wait_for_pageable("hotbed_fill", stream));
    HOTBED_TRY(stream_sync(stream));
    memset(to, value, bytes);
    return HOTBED_OK;
}

/* --- graphs --------------------------------------------------------------------------------- */

static hotbed_status graph_begin(hotbed_stream *stream) {
    ENTER(stream->device);
    HOTBED_TRY(join_open(stream));
    return HOTBED_CUDA_CHECK(
        cudaStreamBeginCapture, cuda(stream)->native, cudaStreamCaptureModeThreadLocal);
}

static hotbed_status instantiate(cudaGraph_t recorded, cuda_graph *graph, hotbed_stream *stream) {
    HOTBED_TRY(HOTBED_CUDA_CHECK(
        cudaGraphInstantiate, &graph->executable, recorded,
        cudaGraphInstantiateFlagUseNodePriority));
    return HOTBED_CUDA_CHECK(cudaGraphUpload, graph->executable, cuda(stream)->native);
}

static void graph_destroy(hotbed_graph *base) {
    cuda_graph *graph = (cuda_graph *)base;
    if (graph->executable != NULL)
        (void)cudaGraphExecDestroy(graph->executable);
    hotbed_delete(graph);
}

static hotbed_status graph_end(hotbed_stream *stream, hotbed_graph **out) {
    ENTER(stream->device);
    cudaGraph_t recorded = NULL;
    const hotbed_status joined = join_open(stream);
    hotbed_status status = HOTBED_CUDA_CHECK(cudaStreamEndCapture, cuda(stream)->native, &recorded);
    status = joined != HOTBED_OK ? joined : status;
    if (status == HOTBED_OK && out != NULL) {
        cuda_graph *graph = (cuda_graph *)hotbed_new(sizeof *graph);
        status = graph == NULL ? hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a graph")
                               : instantiate(recorded, graph, stream);
        if (status == HOTBED_OK)
            *out = &graph->base;
        else if (graph != NULL)
            graph_destroy(&graph->base);
    }
    if (recorded != NULL)
        (void)cudaGraphDestroy(recorded);
    return status;
}

static hotbed_status graph_launch(hotbed_graph *base, hotbed_stream *stream) {
    ENTER(stream->device);
    return HOTBED_CUDA_CHECK(
        cudaGraphLaunch, ((cuda_graph *)base)->executable, cuda(stream)->native);
}

const hotbed_backend_ops hotbed_cuda_ops = {
    .probe = probe,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_native = stream_native,
    .stream_captured = stream_captured,
    .stream_sync = stream_sync,
    .stream_call = stream_call,
    .stream_branch = stream_branch,
    .stream_join = stream_join,
    .stream_follow = stream_follow,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .stream_wait = stream_wait,
    .event_query = event_query,
    .event_sync = event_sync,
    .event_seconds = event_seconds,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .copy = copy,
    .fill = fill,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
};
