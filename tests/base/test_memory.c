/* tests/base/test_memory.c - contract of hotbed_memory_alloc(), for every kind of memory.
 *
 * Contents survive copies between all kinds; impossible sizes, failing allocations (tests/support/fault.h) and failing
 * files give the documented errors and leave nothing; a caller's allocator supplies device memory.
 */
#define _GNU_SOURCE /* NOLINT(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): madvise() */
#include "base/stream.h"
#include "tests/base/cases.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const hotbed_memory_kind kinds[] = {
    HOTBED_MEMORY_DEVICE, HOTBED_MEMORY_PINNED, HOTBED_MEMORY_PAGEABLE, HOTBED_MEMORY_FILE};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static bool is_empty(const hotbed_memory *memory) {
    return memory->data == NULL && memory->bytes == 0 && memory->kind == 0 &&
           memory->backend == 0 && memory->device == 0;
}

static void fill_bytes(unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)hotbed_test_random();
}

static void every_kind_keeps_the_bytes_copied_to_it(hotbed_backend backend) {
    enum { BYTES = 2 * 1024 * 1024 + 3 };
    hotbed_stream *stream = hotbed_test_stream(backend);
    unsigned char *in = malloc(BYTES), *out = malloc(BYTES);
    CHECK(in != NULL && out != NULL);
    fill_bytes(in, BYTES);
    for (int k = 0; k < KINDS; k++) {
        hotbed_memory memory;
        CHECK_OK(hotbed_memory_alloc(stream, kinds[k], BYTES, NULL, &memory));
        CHECK(memory.data != NULL);
        CHECK_EQ((uintptr_t)memory.data % 256, 0);
        CHECK_EQ(memory.bytes, BYTES);
        CHECK_EQ(memory.kind, kinds[k]);
        CHECK_EQ(memory.backend, backend);
        CHECK_EQ(memory.device, 0);
        CHECK_OK(hotbed_copy(memory.data, in, BYTES, stream));
        CHECK_OK(hotbed_fill(out, 0, BYTES, stream));
        CHECK_OK(hotbed_copy(out, memory.data, BYTES, stream));
        CHECK_OK(hotbed_stream_sync(stream));
        CHECK_BYTES(out, in, BYTES);
        if (kinds[k] != HOTBED_MEMORY_DEVICE)
            CHECK_BYTES(memory.data, in, BYTES); /* the host can read all other kinds */
        hotbed_memory_free(&memory);
        CHECK(is_empty(&memory));
        hotbed_memory_free(&memory); /* {0} is allowed */
    }
    hotbed_memory_free(NULL);
    free(out);
    free(in);
    hotbed_stream_destroy(stream);
}

static void every_kind_copies_to_every_other(hotbed_backend backend) {
    enum { BYTES = 5000 };
    hotbed_stream *stream = hotbed_test_stream(backend);
    unsigned char in[BYTES], out[BYTES];
    for (int a = 0; a < KINDS; a++) {
        for (int b = 0; b < KINDS; b++) {
            hotbed_memory from, to;
            CHECK_OK(hotbed_memory_alloc(stream, kinds[a], BYTES, NULL, &from));
            CHECK_OK(hotbed_memory_alloc(stream, kinds[b], BYTES, NULL, &to));
            fill_bytes(in, BYTES);
            CHECK_OK(hotbed_copy(from.data, in, BYTES, stream));
            CHECK_OK(hotbed_copy(to.data, from.data, BYTES, stream));
            CHECK_OK(hotbed_copy(out, to.data, BYTES, stream));
            CHECK_OK(hotbed_stream_sync(stream));
            CHECK_BYTES(out, in, BYTES);
            hotbed_memory_free(&to);
            hotbed_memory_free(&from);
        }
    }
    hotbed_stream_destroy(stream);
}

/* Kernels use the same address as the host. */
static void kernels_use_pinned_memory(hotbed_backend backend) {
    enum { N = 64 };
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_memory memory;
    size_t bytes = N * (sizeof(float) + sizeof(uint16_t));
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, bytes, NULL, &memory));
    float *out = memory.data;
    uint16_t *in = (void *)(out + N);
    for (int i = 0; i < N; i++)
        in[i] = (uint16_t)(0x3f80 + i);
    CHECK_OK(cases_launch(CASE_BF16_TO_F32, N, in, out, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    for (int i = 0; i < N; i++)
        CHECK_EQ(hotbed_float_bits(out[i]), (uint32_t)in[i] << 16);
    hotbed_memory_free(&memory);
    hotbed_stream_destroy(stream);
}

static void zero_bytes_give_empty_memory(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (int k = 0; k < KINDS; k++) {
        hotbed_memory memory = {.data = stream};
        CHECK_OK(hotbed_memory_alloc(stream, kinds[k], 0, NULL, &memory));
        CHECK(memory.data == NULL);
        CHECK_EQ(memory.bytes, 0);
        hotbed_memory_free(&memory);
    }
    hotbed_stream_destroy(stream);
}

static void an_impossible_size_is_refused_and_named(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (int k = 0; k < KINDS; k++) {
        hotbed_memory memory = {.data = stream};
        CHECK_STATUS(
            hotbed_memory_alloc(stream, kinds[k], SIZE_MAX - 100, NULL, &memory),
            kinds[k] == HOTBED_MEMORY_FILE ? HOTBED_ERR_IO : HOTBED_ERR_MEMORY);
        CHECK(strstr(hotbed_last_error(), "18446744073709551515") != NULL);
        CHECK(is_empty(&memory));
    }
    CHECK_OK(hotbed_stream_sync(stream)); /* the stream still works */
    hotbed_stream_destroy(stream);
}

/* --- pages of host memory ------------------------------------------------------------------------ */

enum { HUGE_PAGE = 2 << 20, COLLAPSE = 25 /* MADV_COLLAPSE of Linux 6.1 */ };

static void ignore(void *argument) {
}

/* A number of kB that /proc/self/smaps has for the mapping of an address. */
static uint64_t kilobytes(const void *address, const char *name) {
    char line[512];
    bool inside = false;
    uint64_t found = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        char *end;
        const uint64_t first = strtoull(line, &end, 16);
        if (*end == '-') {
            const uint64_t last = strtoull(end + 1, NULL, 16);
            inside = first <= (uintptr_t)address && (uintptr_t)address < last;
        } else if (inside && strncmp(line, name, strlen(name)) == 0) {
            found = strtoull(line + strlen(name), NULL, 10);
        }
    }
    (void)fclose(file);
    return found;
}

/* Run so many tasks that a thread of the stream looks at the pages. */
static void run_tasks(hotbed_stream *stream) {
    for (int i = 0; i < 64; i++)
        CHECK_OK(hotbed_stream_call(stream, ignore, NULL));
    CHECK_OK(hotbed_stream_sync(stream));
}

static bool system_has_huge_pages(void) {
    unsigned char *map =
        mmap(NULL, 2 * HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(map != MAP_FAILED);
    unsigned char *part = map + (HUGE_PAGE - (uintptr_t)map % HUGE_PAGE) % HUGE_PAGE;
    memset(part, 1, HUGE_PAGE);
    const bool has = madvise(part, HUGE_PAGE, COLLAPSE) == 0;
    CHECK_EQ(munmap(map, 2 * HUGE_PAGE), 0);
    return has;
}

/* A table that is nearly empty has its few keys at random places. */
static void memory_that_is_used_in_few_places_has_small_pages(hotbed_backend backend) {
    static const size_t bytes = 256U << 20, step = 128U << 10;
    hotbed_memory memory;
    if (backend != HOTBED_BACKEND_HOST)
        SKIP("a property of the host backend");
    hotbed_stream *stream = hotbed_test_stream(backend);
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &memory));
    hotbed_memory_start_small(&memory);
    for (size_t at = 0; at < bytes; at += step)
        ((unsigned char *)memory.data)[at] = 1;
    run_tasks(stream);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    CHECK(kilobytes(memory.data, "Rss:") < 2 * (bytes / step) * page / 1024);
    hotbed_memory_free(&memory);
    hotbed_stream_destroy(stream);
}

static void memory_that_is_used_densely_gets_huge_pages(hotbed_backend backend) {
    static const size_t bytes = 32U << 20, page = 4096;
    hotbed_memory memory;
    if (backend != HOTBED_BACKEND_HOST)
        SKIP("a property of the host backend");
    if (!system_has_huge_pages())
        SKIP("the system gives no huge pages");
    hotbed_stream *stream = hotbed_test_stream(backend);
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &memory));
    hotbed_memory_start_small(&memory);
    for (size_t at = 0; at < bytes; at += page)
        ((unsigned char *)memory.data)[at] = (unsigned char)(at / page);
    /* the thread looks after it has completed a task */
    for (int i = 0; i < 100 && kilobytes(memory.data, "AnonHugePages:") == 0; i++)
        run_tasks(stream);
    CHECK(kilobytes(memory.data, "AnonHugePages:") > 0);
    for (size_t at = 0; at < bytes; at += page)
        CHECK_EQ(((unsigned char *)memory.data)[at], (unsigned char)(at / page));
    hotbed_memory_free(&memory);
    hotbed_stream_destroy(stream);
}

static void bad_arguments_are_refused(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_memory memory = {.data = stream};
    CHECK_STATUS(
        hotbed_memory_alloc(stream, (hotbed_memory_kind)9, 10, NULL, &memory), HOTBED_ERR_ARGUMENT);
    CHECK(is_empty(&memory));
    CHECK_STATUS(
        hotbed_memory_alloc(stream, (hotbed_memory_kind)0, 10, NULL, &memory), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_memory_alloc(NULL, HOTBED_MEMORY_DEVICE, 10, NULL, &memory), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, 10, NULL, NULL), HOTBED_ERR_ARGUMENT);
    hotbed_stream_destroy(stream);
}

static void a_file_is_unlinked_and_zeroed(hotbed_backend backend) {
    enum { BYTES = 3 * 1024 * 1024 + 1 };
    const char *directory = hotbed_test_directory();
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_memory memory;
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_FILE, BYTES, directory, &memory));
    CHECK_EQ(rmdir(directory), 0); /* empty: the file has no name */
    const unsigned char *bytes = memory.data;
    for (size_t i = 0; i < BYTES; i++)
        CHECK_EQ(bytes[i], 0);
    hotbed_memory_free(&memory);
    CHECK_STATUS(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_FILE, 10, directory, &memory), HOTBED_ERR_IO);
    CHECK(strstr(hotbed_last_error(), directory) != NULL);
    CHECK(strstr(hotbed_last_error(), strerror(ENOENT)) != NULL);
    CHECK(is_empty(&memory));
    hotbed_stream_destroy(stream);
}

static void a_file_too_large_for_the_disk_is_an_error(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_memory memory;
    CHECK_STATUS(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_FILE, (size_t)1 << 55, NULL, &memory),
        HOTBED_ERR_IO);
    CHECK(strstr(hotbed_last_error(), "36028797018963968") != NULL);
    CHECK(is_empty(&memory));
    hotbed_stream_destroy(stream);
}

static void a_path_that_is_too_long_is_an_error(hotbed_backend backend) {
    static char path[100000];
    memset(path, 'x', sizeof path - 1);
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_memory memory;
    CHECK_STATUS(hotbed_memory_alloc(stream, HOTBED_MEMORY_FILE, 10, path, &memory), HOTBED_ERR_IO);
    hotbed_stream_destroy(stream);
}

/* --- the n-th allocation fails ------------------------------------------------------------------- */

static void a_failed_allocation_is_an_error_for_every_kind(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (int k = 0; k < KINDS; k++) {
        bool on_cuda = backend == HOTBED_BACKEND_CUDA &&
                       (kinds[k] == HOTBED_MEMORY_DEVICE || kinds[k] == HOTBED_MEMORY_PINNED);
        if (on_cuda)
            continue; /* fault.h does not see CUDA's own allocations */
        hotbed_memory memory = {.data = stream};
        fault_arm(1);
        hotbed_status status = hotbed_memory_alloc(stream, kinds[k], 12345, NULL, &memory);
        CHECK(fault_disarm());
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(strstr(hotbed_last_error(), "12345") != NULL);
        CHECK(is_empty(&memory));
    }
    hotbed_stream_destroy(stream);
}

static void a_failed_stream_creation_leaves_nothing(hotbed_backend backend) {
    uint64_t failures = 0;
    for (uint64_t n = 1;; n++) {
        hotbed_stream *stream = NULL;
        fault_arm(n);
        hotbed_status status = hotbed_stream_create(backend, 0, &stream);
        if (!fault_disarm()) {
            CHECK_OK(status);
            hotbed_stream_destroy(stream);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(stream == NULL);
        failures++;
    }
    CHECK(failures >= 1);
}

static void an_event_without_memory_is_an_error(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_event *event = NULL;
    fault_arm(1);
    hotbed_status status = hotbed_event_create(stream, &event);
    CHECK(fault_disarm());
    CHECK_STATUS(status, HOTBED_ERR_MEMORY);
    CHECK(event == NULL);
    hotbed_stream_destroy(stream);
}

/* Whichever call of the recording runs out of memory: no graph is created, and the recording has ended. */
static void a_recording_that_runs_out_of_memory_gives_no_graph(hotbed_backend backend) {
    if (backend == HOTBED_BACKEND_CUDA)
        SKIP("fault.h does not see CUDA's own allocations");
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_event *event = NULL;
    CHECK_OK(hotbed_event_create(stream, &event));
    uint64_t failures = 0;
    for (uint64_t n = 1;; n++) {
        hotbed_graph *graph = NULL;
        fault_arm(n);
        hotbed_status status = hotbed_graph_begin(stream);
        if (status == HOTBED_OK) {
            for (int i = 0; i < 100; i++) {
                (void)!hotbed_stream_call(stream, ignore, NULL);
                (void)!hotbed_event_record(event, stream);
            }
            status = hotbed_graph_end(stream, &graph);
        }
        if (!fault_disarm()) {
            CHECK_OK(status);
            hotbed_graph_destroy(graph);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(graph == NULL);
        CHECK(!hotbed_stream_recording(stream));
        failures++;
    }
    CHECK(failures >= 4);
    hotbed_event_destroy(event);
    hotbed_stream_destroy(stream);
}

static void a_workspace_that_cannot_grow_stays(hotbed_backend backend) {
    if (backend == HOTBED_BACKEND_CUDA)
        SKIP("fault.h does not see CUDA's own allocations");
    hotbed_stream *stream = hotbed_test_stream(backend);
    void *before = NULL, *after = NULL;
    CHECK_OK(hotbed_stream_workspace(stream, 1000, &before));
    fault_arm(1);
    hotbed_status status = hotbed_stream_workspace(stream, 10000000, &after);
    CHECK(fault_disarm());
    CHECK_STATUS(status, HOTBED_ERR_MEMORY);
    CHECK_OK(hotbed_stream_workspace(stream, 1000, &after));
    CHECK(after == before);
    hotbed_stream_destroy(stream);
}

/* --- the caller's allocator ------------------------------------------------------------------- */

typedef struct pool {
    uint64_t live, most;
    size_t bytes;
    bool empty, odd;
} pool;

static void *pool_allocate(void *self, int device, size_t bytes, void *native) {
    pool *p = self;
    CHECK_EQ(device, 0);
    CHECK(native == NULL);
    if (p->empty)
        return NULL;
    p->live++;
    p->most = p->live > p->most ? p->live : p->most;
    p->bytes += bytes;
    return (char *)aligned_alloc(256, (bytes + 511) / 256 * 256) + (p->odd ? 8 : 0);
}

static void pool_release(void *self, int device, void *data, size_t bytes) {
    pool *p = self;
    CHECK_EQ(device, 0);
    p->live--;
    p->bytes -= bytes;
    free((char *)data - (p->odd ? 8 : 0));
}

static void device_memory_comes_from_the_callers_allocator(hotbed_backend backend) {
    pool p = {.live = 0};
    hotbed_allocator allocator = {sizeof allocator, pool_allocate, pool_release, &p};
    hotbed_memory memory, pageable;
    hotbed_stream *stream = hotbed_test_stream(HOTBED_BACKEND_HOST);
    CHECK_OK(hotbed_memory_set_allocator(HOTBED_BACKEND_HOST, &allocator));
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, 1000, NULL, &memory));
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_PAGEABLE, 1000, NULL, &pageable));
    CHECK_EQ(p.live, 1);
    CHECK_EQ(p.bytes, 1000);
    CHECK_STATUS(hotbed_memory_set_allocator(HOTBED_BACKEND_HOST, NULL), HOTBED_ERR_STATE);
    hotbed_memory_free(&memory);
    hotbed_memory_free(&pageable);
    CHECK_EQ(p.live, 0);
    CHECK_EQ(p.bytes, 0);
    p.empty = true;
    CHECK_STATUS(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, 64, NULL, &memory), HOTBED_ERR_MEMORY);
    p.empty = false;
    p.odd = true;
    CHECK_STATUS(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, 64, NULL, &memory), HOTBED_ERR_STATE);
    CHECK_EQ(p.live, 0);
    allocator.release = NULL;
    CHECK_STATUS(hotbed_memory_set_allocator(HOTBED_BACKEND_HOST, &allocator), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_memory_set_allocator((hotbed_backend)7, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_memory_set_allocator(HOTBED_BACKEND_HOST, NULL));
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, 64, NULL, &memory));
    hotbed_memory_free(&memory);
    CHECK_EQ(p.most, 1);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(every_kind_keeps_the_bytes_copied_to_it)},
    {TEST(every_kind_copies_to_every_other)},
    {TEST(kernels_use_pinned_memory)},
    {TEST(zero_bytes_give_empty_memory)},
    {TEST(an_impossible_size_is_refused_and_named)},
    {TEST(memory_that_is_used_in_few_places_has_small_pages)},
    {TEST(memory_that_is_used_densely_gets_huge_pages)},
    {TEST(bad_arguments_are_refused)},
    {TEST(a_file_is_unlinked_and_zeroed)},
    {TEST(a_file_too_large_for_the_disk_is_an_error)},
    {TEST(a_path_that_is_too_long_is_an_error)},
    {TEST(a_failed_allocation_is_an_error_for_every_kind)},
    {TEST(a_failed_stream_creation_leaves_nothing)},
    {TEST(an_event_without_memory_is_an_error)},
    {TEST(a_recording_that_runs_out_of_memory_gives_no_graph)},
    {TEST(a_workspace_that_cannot_grow_stays)},
    {TEST(device_memory_comes_from_the_callers_allocator)},
    {NULL, NULL},
};
