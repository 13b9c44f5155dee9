/* tests/base/test_launch.c - contract of hotbed_host_launch(), which runs a loop body on the host backend's threads.
 *
 * Bodies count how often each item is processed, and in what ranges; launches that depend on each other show their
 * order.  The library's counters show that a launch neither allocates nor waits.
 */
#include "base/host_launch.h"
#include "base/port.h"
#include "tests/base/cases.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

typedef struct mark_args {
    uint8_t *marks; /* [n] times that each item was processed */
    uint64_t n, grain;
    uint64_t *ranges; /* atomic */
} mark_args;

static void mark_body(const void *args, uint64_t begin, uint64_t end) {
    const mark_args *a = args;
    CHECK(begin < end && end <= a->n);
    if (a->grain != 0) {
        CHECK_EQ(begin % a->grain, 0);
        CHECK(end - begin == a->grain || end == a->n);
    }
    hotbed_add_relaxed_u64(a->ranges, 1);
    for (uint64_t i = begin; i < end; i++)
        a->marks[i]++;
}

static void every_item_is_processed_once(hotbed_backend backend) {
    static const uint64_t sizes[] = {1, 2, 7, 64, 1000, 4097};
    static const uint64_t grains[] = {0, 1, 3, 64, 1000, 5000, UINT64_MAX};
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t g = 0; g < sizeof grains / sizeof grains[0]; g++) {
            uint64_t n = sizes[s], grain = grains[g], ranges = 0;
            uint8_t *marks = calloc(n, 1);
            CHECK(marks != NULL);
            mark_args args = {marks, n, grain, &ranges};
            CHECK_OK(hotbed_host_launch(stream, n, grain, mark_body, &args, sizeof args));
            CHECK_OK(hotbed_stream_sync(stream));
            for (uint64_t i = 0; i < n; i++)
                CHECK_EQ(marks[i], 1);
            CHECK_EQ(ranges, grain == 0 || grain >= n ? 1 : (n - 1) / grain + 1);
            free(marks);
        }
    }
    hotbed_stream_destroy(stream);
}

typedef struct chain_args {
    uint64_t *words;
    uint64_t n, step;
} chain_args;

/* Reads items that other threads wrote in the previous launch. */
static void chain_body(const void *args, uint64_t begin, uint64_t end) {
    const chain_args *a = args;
    const uint64_t *from = a->words + (a->step % 2) * a->n;
    uint64_t *to = a->words + (1 - a->step % 2) * a->n;
    for (uint64_t i = begin; i < end; i++)
        to[i] = from[(i + 37) % a->n] + i;
}

static void a_launch_sees_all_writes_of_the_previous_launch(hotbed_backend backend) {
    enum { N = 2000, STEPS = 100 };
    static uint64_t words[2 * N], want[2][N];
    memset(words, 0, sizeof words);
    memset(want, 0, sizeof want);
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (uint64_t step = 0; step < STEPS; step++) {
        chain_args args = {words, N, step};
        CHECK_OK(hotbed_host_launch(stream, N, 64, chain_body, &args, sizeof args));
        memset(&args, 0xee, sizeof args); /* the launch copied them */
        for (uint64_t i = 0; i < N; i++)
            want[1 - step % 2][i] = want[step % 2][(i + 37) % N] + i;
    }
    CHECK_OK(hotbed_stream_sync(stream));
    CHECK_BYTES(words, want, sizeof want);
    hotbed_stream_destroy(stream);
}

static void streams_share_the_threads(hotbed_backend backend) {
    enum { N = 3000, STREAMS = 3 };
    static uint8_t marks[STREAMS][N];
    uint64_t ranges = 0;
    hotbed_stream *streams[STREAMS];
    memset(marks, 0, sizeof marks);
    for (int s = 0; s < STREAMS; s++)
        streams[s] = hotbed_test_stream(backend);
    for (int round = 0; round < 40; round++) {
        for (int s = 0; s < STREAMS; s++) {
            mark_args args = {marks[s], N, 100, &ranges};
            CHECK_OK(hotbed_host_launch(streams[s], N, 100, mark_body, &args, sizeof args));
        }
    }
    for (int s = 0; s < STREAMS; s++)
        hotbed_stream_destroy(streams[s]);
    for (int s = 0; s < STREAMS; s++) {
        for (int i = 0; i < N; i++)
            CHECK_EQ(marks[s][i], 40);
    }
    CHECK_EQ(ranges, 40 * STREAMS * 30);
}

static void no_items_launch_nothing_and_large_arguments_are_refused(hotbed_backend backend) {
    static unsigned char args[HOTBED_HOST_ARGS_BYTES + 1];
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_counters before = hotbed_test_counters();
    CHECK_OK(hotbed_host_launch(stream, 0, 10, mark_body, args, 10));
    hotbed_counters after = hotbed_test_counters();
    CHECK_EQ(after.launches, before.launches);
    CHECK_STATUS(
        hotbed_host_launch(stream, 1, 10, mark_body, args, sizeof args), HOTBED_ERR_ARGUMENT);
    hotbed_stream_destroy(stream);
}

static void launches_do_not_allocate_or_wait(hotbed_backend backend) {
    enum { N = 5000 };
    static uint8_t marks[N];
    uint64_t ranges = 0;
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_counters before = hotbed_test_counters();
    for (int i = 0; i < 100; i++) {
        mark_args args = {marks, N, 1000, &ranges};
        CHECK_OK(hotbed_host_launch(stream, N, 1000, mark_body, &args, sizeof args));
    }
    hotbed_counters after = hotbed_test_counters();
    CHECK_EQ(after.allocations, before.allocations);
    CHECK_EQ(after.host_waits, before.host_waits);
    CHECK_EQ(after.launches - before.launches, 100);
    hotbed_stream_destroy(stream);
}

/* --- a full ring ----------------------------------------------------------------------------- */

enum { TASKS = 20000 };

typedef struct flood {
    hotbed_stream *stream;
    int run; /* tasks */
} flood;

static void count_task(void *argument) {
    ++*(int *)argument;
}

static void *enqueue_many(void *argument) {
    flood *f = argument;
    for (int i = 0; i < TASKS; i++)
        CHECK_OK(hotbed_stream_call(f->stream, count_task, &f->run));
    return NULL;
}

static void a_full_ring_makes_the_caller_wait_and_counts_the_wait(hotbed_backend backend) {
    flood f = {.stream = hotbed_test_stream(backend)};
    gate *g = gate_create();
    hotbed_counters before = {.size = sizeof before}, now = {.size = sizeof now};
    pthread_t thread;
    hotbed_counters_read(&before);
    CHECK_OK(hotbed_stream_call(f.stream, gate_wait, g));
    CHECK_EQ(pthread_create(&thread, NULL, enqueue_many, &f), 0);
    do { /* the ring has fewer than TASKS places, and the gate keeps it from being emptied */
        sched_yield();
        hotbed_counters_read(&now);
    } while (now.host_waits == before.host_waits);
    gate_open(g);
    pthread_join(thread, NULL);
    CHECK_OK(hotbed_stream_sync(f.stream));
    CHECK_EQ(f.run, TASKS);
    gate_destroy(g);
    hotbed_stream_destroy(f.stream);
}

/* --- HOTBED_THREADS -------------------------------------------------------------------------- */

static void the_environment_sets_the_number_of_threads(hotbed_backend backend) {
    static const char *const bad[] = {"0", "-1", "x", "3x", "1025", "99999999999999999999"};
    const char *set = getenv("HOTBED_THREADS");
    char *kept = set == NULL ? NULL : strdup(set);
    hotbed_stream *stream = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_EQ(setenv("HOTBED_THREADS", bad[i], 1), 0);
        CHECK_STATUS(hotbed_stream_create(backend, 0, &stream), HOTBED_ERR_ARGUMENT);
        CHECK(strstr(hotbed_last_error(), bad[i]) != NULL);
        CHECK(stream == NULL);
    }
    for (unsigned threads = 1; threads <= 5; threads += 2) {
        const char text[2] = {(char)('0' + threads), '\0'};
        CHECK_EQ(setenv("HOTBED_THREADS", text, 1), 0);
        CHECK_EQ(hotbed_host_threads(), threads);
        every_item_is_processed_once(backend);
        a_launch_sees_all_writes_of_the_previous_launch(backend);
        stream = hotbed_test_stream(backend);
        /* ignored: the variable is read when the first stream is created */
        CHECK_EQ(setenv("HOTBED_THREADS", "7", 1), 0);
        CHECK_EQ(hotbed_host_threads(), threads);
        hotbed_stream_destroy(stream);
    }
    CHECK_EQ(unsetenv("HOTBED_THREADS"), 0);
    CHECK(hotbed_host_threads() >= 1);
    if (kept != NULL)
        CHECK_EQ(setenv("HOTBED_THREADS", kept, 1), 0);
    free(kept);
}

const hotbed_test hotbed_tests[] = {
    {TEST(every_item_is_processed_once)},
    {TEST(a_launch_sees_all_writes_of_the_previous_launch)},
    {TEST(streams_share_the_threads)},
    {TEST(no_items_launch_nothing_and_large_arguments_are_refused)},
    {TEST(launches_do_not_allocate_or_wait)},
    {TEST(a_full_ring_makes_the_caller_wait_and_counts_the_wait)},
    {TEST(the_environment_sets_the_number_of_threads)},
    {NULL, NULL},
};
