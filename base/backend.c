/* base/backend.c - what stream.c and the backends share: counters, allocation of structs, names. */
#include "base/backend.h"
#include "base/options.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static hotbed_counters counters; /* read and written with relaxed atomics */

void hotbed_count_wait(void) {
    hotbed_add_relaxed_u64(&counters.host_waits, 1);
}

void hotbed_count_launch(void) {
    hotbed_add_relaxed_u64(&counters.launches, 1);
}

void hotbed_count_allocation(size_t bytes) {
    hotbed_add_relaxed_u64(&counters.allocations, 1);
    hotbed_add_relaxed_u64(&counters.allocated_bytes, bytes);
}

void hotbed_count_memory(hotbed_memory_kind kind, size_t bytes) {
    hotbed_count_allocation(bytes);
    hotbed_add_relaxed_u64(&counters.memory_bytes[kind], bytes);
}

void hotbed_count_copy(size_t bytes) {
    hotbed_add_relaxed_u64(&counters.copies, 1);
    hotbed_add_relaxed_u64(&counters.copied_bytes, bytes);
}

hotbed_status hotbed_counters_read(hotbed_counters *out) {
    HOTBED_TRY(hotbed_output_check(out, "hotbed_counters"));
    hotbed_counters now = {
        .host_waits = hotbed_load_relaxed_u64(&counters.host_waits),
        .allocations = hotbed_load_relaxed_u64(&counters.allocations),
        .allocated_bytes = hotbed_load_relaxed_u64(&counters.allocated_bytes),
        .launches = hotbed_load_relaxed_u64(&counters.launches),
        .copies = hotbed_load_relaxed_u64(&counters.copies),
        .copied_bytes = hotbed_load_relaxed_u64(&counters.copied_bytes),
    };
    for (int k = 0; k <= HOTBED_MEMORY_FILE; k++)
        now.memory_bytes[k] = hotbed_load_relaxed_u64(&counters.memory_bytes[k]);
    hotbed_output_write(out, &now, sizeof now);
    return HOTBED_OK;
}

void *hotbed_new(size_t bytes) {
    void *pointer = calloc(1, bytes);
    if (pointer != NULL)
        hotbed_count_allocation(bytes);
    return pointer;
}

void hotbed_delete(void *pointer) {
    free(pointer);
}

bool hotbed_reserve(void *array, uint64_t n, uint64_t more, uint64_t *capacity, size_t bytes) {
    if (more <= *capacity - n)
        return true;
    uint64_t larger = *capacity == 0 ? 16 : 2 * *capacity;
    larger = larger > n + more ? larger : n + more;
    void *old, *longer = hotbed_new(larger * bytes);
    if (longer == NULL)
        return false;
    memcpy(&old, array, sizeof old);
    if (n > 0)
        memcpy(longer, old, n * bytes);
    hotbed_delete(old);
    memcpy(array, &longer, sizeof longer);
    *capacity = larger;
    return true;
}

const char *hotbed_backend_name(hotbed_backend backend) {
    static const char *const names[] = {NULL, "host", "cuda"};
    return HOTBED_NAME(names, backend, "unknown");
}
