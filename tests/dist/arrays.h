/* tests/dist/arrays.h - a stream, and device arrays that are freed with it. */
#pragma once

#include "tests/support/harness.h"

enum { ARRAYS_MOST = 256 };

typedef struct arrays {
    hotbed_stream *stream;
    hotbed_memory memory[ARRAYS_MOST];
    uint32_t n;
} arrays;

static inline arrays arrays_open(hotbed_backend backend) {
    arrays a = {.stream = NULL};
    CHECK_OK(hotbed_stream_create(backend, 0, &a.stream));
    return a;
}

static inline void arrays_close(arrays *a) {
    CHECK_OK(hotbed_stream_sync(a->stream));
    for (uint32_t i = 0; i < a->n; i++)
        hotbed_memory_free(&a->memory[i]);
    hotbed_stream_destroy(a->stream);
}

/* Allocate an array filled with a pattern, so that no value is correct by chance.  Never NULL. */
static inline void *arrays_alloc(arrays *a, uint64_t bytes) {
    CHECK(a->n < ARRAYS_MOST);
    hotbed_memory *m = &a->memory[a->n++];
    CHECK_OK(hotbed_memory_alloc(a->stream, HOTBED_MEMORY_DEVICE, bytes + 1, NULL, m));
    CHECK_OK(hotbed_fill(m->data, 0xa5, bytes + 1, a->stream));
    return m->data;
}

/* Copy a host array to a new device array. */
static inline void *arrays_copy(arrays *a, const void *host, uint64_t bytes) {
    void *device = arrays_alloc(a, bytes);
    CHECK_OK(hotbed_copy(device, host, bytes, a->stream));
    CHECK_OK(hotbed_stream_sync(a->stream));
    return device;
}

static inline void arrays_read(arrays *a, void *host, const void *device, uint64_t bytes) {
    CHECK_OK(hotbed_copy(host, device, bytes, a->stream));
    CHECK_OK(hotbed_stream_sync(a->stream));
}
