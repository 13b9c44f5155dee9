/* bench/limits.c - limits: dispatch, and the host backend. */
#include "bench/limits.h"

#include "base/error.h"
#include "base/host_launch.h"

#include <stdio.h>
#include <string.h>

typedef struct gather_args {
    const void *const *rows;
    char *output;
    uint32_t bytes;
} gather_args;

static void gather_body(const void *args, uint64_t begin, uint64_t end) {
    const gather_args *a = args;
    for (uint64_t i = begin; i < end; i++) {
        memcpy(a->output + i * a->bytes, a->rows[i], a->bytes);
    }
}

hotbed_status bench_gather_host(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream) {
    gather_args args = {rows, output, bytes};
    return hotbed_host_launch(stream, n, 4096, gather_body, &args, sizeof args);
}

hotbed_status bench_gather(
    uint64_t n, const void *const *rows, uint32_t bytes, void *output, hotbed_stream *stream) {
    if (bytes < 16 || (bytes & (bytes - 1)) != 0)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "gather: bytes %u is not a power of two from 16 on", bytes);
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA)
        return bench_gather_cuda(n, rows, bytes, output, stream);
#endif
    return bench_gather_host(n, rows, bytes, output, stream);
}

/* "model name : X" of /proc/cpuinfo, and the number of threads. */
static void host_name(char *device, size_t bytes) {
    char line[256];
    char name[96] = "unknown processor";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    }
    if (file)
        (void)fclose(file);
    (void)snprintf(device, bytes, "%s, %u threads", name, hotbed_host_threads());
}

hotbed_status bench_device(
    hotbed_stream *stream, char *device, size_t device_bytes, char *driver, size_t driver_bytes) {
#if defined(HOTBED_WITH_CUDA)
    if (hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA)
        return bench_device_cuda(stream, device, device_bytes, driver, driver_bytes);
#endif
    (void)stream;
    host_name(device, device_bytes);
    (void)snprintf(driver, driver_bytes, "%s", "");
    return HOTBED_OK;
}
