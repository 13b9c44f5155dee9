/* base/cuda_stream.cu - the CUDA backend: streams, events, memory, copies, graphs, launch helpers.
 *
 * Each operation makes the stream's GPU the calling thread's current one, and leaves it so: kernels that
 * the caller launches next go there.  Faults are latched in a word of pinned memory that kernels write
 * and the host reads without a copy.
 */
#include "base/backend.h"
#include "base/cuda_launch.h"

typedef struct cuda_stream {
    hotbed_stream base;
    cudaStream_t native;
    bool owned;
    unsigned processors;
    int shared; /* bytes that a block can have */
} cuda_stream;

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
    (void)cudaGetLastError(); /* else the next launch would report it again */
    return hotbed_fail(
        error == cudaErrorMemoryAllocation ? HOTBED_ERR_MEMORY : HOTBED_ERR_DEVICE, "%s: %s (%s)",
        call, cudaGetErrorString(error), cudaGetErrorName(error));
}

hotbed_status hotbed_cuda_launched(const char *kernel) {
    hotbed_count_launch();
    return hotbed_cuda_check(cudaGetLastError(), kernel);
}

static hotbed_status use_device(int device) {
    int current = -1;
    if (cudaGetDevice(&current) == cudaSuccess && current == device)
        return HOTBED_OK;
    return hotbed_cuda_check(cudaSetDevice(device), "cudaSetDevice");
}

/* While this thread records a graph on one stream, CUDA refuses calls such as cudaMalloc and
 * cudaEventQuery in it, and breaks the recording.  They are safe here: they concern other work. */
static void swap_capture_mode(cudaStreamCaptureMode *mode) {
    (void)cudaThreadExchangeStreamCaptureMode(mode);
}

/* --- launch helpers ------------------------------------------------------------------------- */

cudaStream_t hotbed_cuda_native(hotbed_stream *stream) {
    (void)!use_device(stream->device); /* a failure is the launch's failure too */
    return cuda(stream)->native;
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
    HOTBED_TRY(use_device(stream->device));
    return hotbed_cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "cudaFuncSetAttribute");
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

/* Never launched: tells whether this build has code for a GPU. */
static __global__ void probe_kernel(uint32_t *out) {
    *out = 0;
}

static hotbed_status check_device(int device) {
    int count;
    HOTBED_TRY(count_devices(&count));
    if (device >= count)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "device %d: this machine has %d GPUs", device, count);
    HOTBED_TRY(use_device(device));
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, probe_kernel);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
        (void)cudaGetLastError();
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED, "device %d: this build has no code for that kind of GPU",
            device);
    }
    return hotbed_cuda_check(error, "cudaFuncGetAttributes");
}

static void free_stream(cuda_stream *stream) {
    if (stream->base.fault != NULL)
        (void)cudaFreeHost(stream->base.fault);
    if (stream->owned && stream->native != NULL)
        (void)cudaStreamDestroy(stream->native);
    hotbed_delete(stream);
}

/* What a new stream owns; the caller frees the stream when it fails. */
static hotbed_status fill_stream(
    cuda_stream *stream, int device, hotbed_priority priority, bool wrap, void *native) {
    int processors = 0;
    HOTBED_TRY(hotbed_cuda_check(
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute"));
    stream->processors = (unsigned)processors;
    HOTBED_TRY(hotbed_cuda_check(
        cudaDeviceGetAttribute(&stream->shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "cudaDeviceGetAttribute"));
    void *fault = NULL;
    HOTBED_TRY(hotbed_cuda_check(
        cudaHostAlloc(&fault, sizeof(hotbed_fault), cudaHostAllocPortable | cudaHostAllocMapped),
        "cudaHostAlloc"));
    hotbed_count_allocation(sizeof(hotbed_fault));
    memset(fault, 0, sizeof(hotbed_fault));
    stream->base.fault = (hotbed_fault *)fault;
    if (wrap) {
        stream->native = (cudaStream_t)native;
        return HOTBED_OK;
    }
    stream->owned = true;
    int least = 0, greatest = 0; /* the greatest one has the lowest number */
    HOTBED_TRY(hotbed_cuda_check(
        cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange"));
    return hotbed_cuda_check(
        cudaStreamCreateWithPriority(
            &stream->native, cudaStreamNonBlocking,
            priority == HOTBED_PRIORITY_HIGH ? greatest : least),
        "cudaStreamCreateWithPriority");
}

static hotbed_status stream_create(
    int device, hotbed_priority priority, bool wrap, void *native, hotbed_stream **out) {
    HOTBED_TRY(check_device(device));
    cuda_stream *stream = (cuda_stream *)hotbed_new(sizeof *stream);
    if (stream == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a stream");
    hotbed_status status = fill_stream(stream, device, priority, wrap, native);
    if (status != HOTBED_OK) {
        free_stream(stream);
        return status;
    }
    *out = &stream->base;
    return HOTBED_OK;
}

static void stream_destroy(hotbed_stream *stream) {
    (void)!use_device(stream->device);
    free_stream(cuda(stream));
}

static void *stream_native(const hotbed_stream *stream) {
    return cuda(stream)->native;
}

static hotbed_status stream_sync(hotbed_stream *stream) {
    HOTBED_TRY(use_device(stream->device));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    swap_capture_mode(&mode);
    cudaError_t error = cudaStreamSynchronize(cuda(stream)->native);
    swap_capture_mode(&mode);
    return hotbed_cuda_check(error, "cudaStreamSynchronize");
}

static hotbed_status stream_call(
    hotbed_stream *stream, void (*function)(void *argument), void *argument) {
    HOTBED_TRY(use_device(stream->device));
    return hotbed_cuda_check(
        cudaLaunchHostFunc(cuda(stream)->native, function, argument), "cudaLaunchHostFunc");
}

/* --- events --------------------------------------------------------------------------------- */

static hotbed_status event_create(hotbed_stream *stream, hotbed_event **out) {
    HOTBED_TRY(use_device(stream->device));
    cuda_event *event = (cuda_event *)hotbed_new(sizeof *event);
    if (event == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for an event");
    hotbed_status status = hotbed_cuda_check(cudaEventCreate(&event->native), "cudaEventCreate");
    if (status != HOTBED_OK) {
        hotbed_delete(event);
        return status;
    }
    *out = &event->base;
    return HOTBED_OK;
}

static void event_destroy(hotbed_event *base) {
    cuda_event *event = (cuda_event *)base;
    (void)!use_device(base->device);
    (void)cudaEventDestroy(event->native);
    hotbed_delete(event);
}

/* In a recording an event is "external": each launch of the graph records it, or waits for what it then
 * marks.  Otherwise CUDA would make it an edge inside of the recording. */
static hotbed_status event_record(hotbed_event *base, hotbed_stream *stream) {
    cuda_event *event = (cuda_event *)base;
    HOTBED_TRY(use_device(stream->device));
    unsigned flags = stream->recording ? cudaEventRecordExternal : cudaEventRecordDefault;
    HOTBED_TRY(hotbed_cuda_check(
        cudaEventRecordWithFlags(event->native, cuda(stream)->native, flags),
        "cudaEventRecordWithFlags"));
    __atomic_store_n(&event->recorded, 1, __ATOMIC_RELEASE);
    return HOTBED_OK;
}

static hotbed_status stream_wait(hotbed_stream *stream, hotbed_event *base) {
    HOTBED_TRY(use_device(stream->device));
    unsigned flags = stream->recording ? cudaEventWaitExternal : cudaEventWaitDefault;
    return hotbed_cuda_check(
        cudaStreamWaitEvent(cuda(stream)->native, ((cuda_event *)base)->native, flags),
        "cudaStreamWaitEvent");
}

static hotbed_status event_query(hotbed_event *base, bool *recorded, bool *done) {
    cuda_event *event = (cuda_event *)base;
    HOTBED_TRY(use_device(base->device));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    swap_capture_mode(&mode);
    cudaError_t error = cudaEventQuery(event->native);
    swap_capture_mode(&mode);
    if (error != cudaSuccess && error != cudaErrorNotReady)
        return hotbed_cuda_check(error, "cudaEventQuery");
    if (error == cudaErrorNotReady)
        (void)cudaGetLastError();
    *recorded = __atomic_load_n(&event->recorded, __ATOMIC_ACQUIRE) != 0;
    *done = error == cudaSuccess;
    return HOTBED_OK;
}

static hotbed_status event_sync(hotbed_event *base) {
    HOTBED_TRY(use_device(base->device));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    swap_capture_mode(&mode);
    cudaError_t error = cudaEventSynchronize(((cuda_event *)base)->native);
    swap_capture_mode(&mode);
    return hotbed_cuda_check(error, "cudaEventSynchronize");
}

static hotbed_status event_seconds(hotbed_event *start, hotbed_event *stop, double *seconds) {
    HOTBED_TRY(use_device(start->device));
    float milliseconds = 0;
    cudaError_t error = cudaEventElapsedTime(
        &milliseconds, ((cuda_event *)start)->native, ((cuda_event *)stop)->native);
    if (error == cudaErrorNotReady || error == cudaErrorInvalidResourceHandle) {
        (void)cudaGetLastError(); /* recorded in a graph that was not launched yet */
        return hotbed_fail(
            HOTBED_ERR_STATE, "hotbed_event_seconds: an event was not recorded or passed yet");
    }
    HOTBED_TRY(hotbed_cuda_check(error, "cudaEventElapsedTime"));
    *seconds = 1e-3 * (double)milliseconds;
    return HOTBED_OK;
}

/* --- memory --------------------------------------------------------------------------------- */

static hotbed_status memory_alloc(int device, hotbed_memory_kind kind, size_t bytes, void **out) {
    HOTBED_TRY(use_device(device));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    swap_capture_mode(&mode);
    cudaError_t error =
        kind == HOTBED_MEMORY_DEVICE
            ? cudaMalloc(out, bytes)
            : cudaHostAlloc(out, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    swap_capture_mode(&mode);
    if (error == cudaErrorMemoryAllocation || error == cudaErrorInvalidValue) {
        (void)cudaGetLastError();
        *out = NULL; /* the caller tells what was asked for */
        return HOTBED_OK;
    }
    return hotbed_cuda_check(error, kind == HOTBED_MEMORY_DEVICE ? "cudaMalloc" : "cudaHostAlloc");
}

static void memory_free(int device, hotbed_memory_kind kind, void *data) {
    (void)!use_device(device);
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    swap_capture_mode(&mode);
    if (kind == HOTBED_MEMORY_DEVICE)
        (void)cudaFree(data);
    else
        (void)cudaFreeHost(data);
    swap_capture_mode(&mode);
}

/* Whether CUDA knows nothing of the memory, so that a copy to or from it goes through the host. */
static hotbed_status is_pageable(const void *data, bool *pageable) {
    cudaPointerAttributes attributes;
    HOTBED_TRY(
        hotbed_cuda_check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes"));
    *pageable = attributes.type == cudaMemoryTypeUnregistered;
    return HOTBED_OK;
}

static hotbed_status fail_pageable(const char *function) {
    return hotbed_fail(
        HOTBED_ERR_STATE, "%s: the stream records a graph, and pageable memory would make it wait",
        function);
}

static hotbed_status copy(void *to, const void *from, size_t bytes, hotbed_stream *stream) {
    HOTBED_TRY(use_device(stream->device));
    bool pageable_to, pageable_from;
    HOTBED_TRY(is_pageable(to, &pageable_to));
    HOTBED_TRY(is_pageable(from, &pageable_from));
    if (pageable_to || pageable_from) {
        if (stream->recording)
            return fail_pageable("hotbed_copy");
        hotbed_count_wait();
    }
    return hotbed_cuda_check(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda(stream)->native),
        "cudaMemcpyAsync");
}

static hotbed_status fill(void *to, int value, size_t bytes, hotbed_stream *stream) {
    HOTBED_TRY(use_device(stream->device));
    bool pageable;
    HOTBED_TRY(is_pageable(to, &pageable));
    if (!pageable)
        return hotbed_cuda_check(
            cudaMemsetAsync(to, value, bytes, cuda(stream)->native), "cudaMemsetAsync");
    if (stream->recording)
        return fail_pageable("hotbed_fill");
    hotbed_count_wait(); /* the GPU does not reach it: the host sets it when the stream is there */
    HOTBED_TRY(stream_sync(stream));
    memset(to, value, bytes);
    return HOTBED_OK;
}

/* --- graphs --------------------------------------------------------------------------------- */

static hotbed_status graph_begin(hotbed_stream *stream) {
    HOTBED_TRY(use_device(stream->device));
    return hotbed_cuda_check(
        cudaStreamBeginCapture(cuda(stream)->native, cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
}

static hotbed_status instantiate(cudaGraph_t recorded, cuda_graph *graph, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_cuda_check(
        cudaGraphInstantiate(&graph->executable, recorded, 0), "cudaGraphInstantiate"));
    return hotbed_cuda_check(
        cudaGraphUpload(graph->executable, cuda(stream)->native), "cudaGraphUpload");
}

static void graph_destroy(hotbed_graph *base) {
    cuda_graph *graph = (cuda_graph *)base;
    if (graph->executable != NULL)
        (void)cudaGraphExecDestroy(graph->executable);
    hotbed_delete(graph);
}

static hotbed_status graph_end(hotbed_stream *stream, hotbed_graph **out) {
    HOTBED_TRY(use_device(stream->device));
    cudaGraph_t recorded = NULL;
    hotbed_status status = hotbed_cuda_check(
        cudaStreamEndCapture(cuda(stream)->native, &recorded), "cudaStreamEndCapture");
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
    HOTBED_TRY(use_device(stream->device));
    return hotbed_cuda_check(
        cudaGraphLaunch(((cuda_graph *)base)->executable, cuda(stream)->native), "cudaGraphLaunch");
}

const hotbed_backend_ops hotbed_cuda_ops = {
    .probe = probe,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_native = stream_native,
    .stream_sync = stream_sync,
    .stream_call = stream_call,
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
