/* tests/dist/window_case.c - kernels over a window: dispatch, and the host backend. */
#include "tests/dist/window_case.h"

#include "base/host_launch.h"

static void put(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        window_put_one(args, i);
}

static void check(const void *args, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        window_check_one(args, i);
}

hotbed_status window_put(const window_args *args, hotbed_stream *stream) {
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA)
        return window_put_cuda(args, stream);
#endif
    return hotbed_host_launch(
        stream, (uint64_t)args->size * WINDOW_WORDS, WINDOW_WORDS, put, args, sizeof *args);
}

hotbed_status window_check(const window_args *args, hotbed_stream *stream) {
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA)
        return window_check_cuda(args, stream);
#endif
    return hotbed_host_launch(
        stream, (uint64_t)args->size * WINDOW_WORDS, WINDOW_WORDS, check, args, sizeof *args);
}

int window_device(const void *data, const hotbed_stream *stream) {
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA)
        return window_device_cuda(data);
#else
#endif
    return hotbed_stream_device(stream);
}
