/* bench/bench_time.c - streams, events and memory of the benchmarks. */
#include "bench/bench.h"
#include "bench/limits.h"

#include "base/error.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* State that the benchmarks of one backend share. */
typedef struct environment {
    hotbed_stream *stream;
    hotbed_event *start, *stop;
    hotbed_memory flush;
    double copy_rate;
    bool failed; /* an event of the current iteration could not be recorded */
} environment;

enum { ALLOCATIONS_MOST = 64, COPIES = 11 };

static environment environments[2]; /* host, cuda */
static hotbed_memory allocations[ALLOCATIONS_MOST];
static int num_allocations;

static environment *environment_of(hotbed_stream *stream) {
    return &environments[hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA ? 1 : 0];
}

static hotbed_status open_environment(hotbed_backend backend, environment *e) {
    size_t bytes = backend == HOTBED_BACKEND_CUDA ? (size_t)512 << 20 : (size_t)256 << 20;
    HOTBED_TRY(hotbed_stream_create(backend, 0, &e->stream));
    HOTBED_TRY(hotbed_event_create(e->stream, &e->start));
    HOTBED_TRY(hotbed_event_create(e->stream, &e->stop));
    HOTBED_TRY(hotbed_memory_alloc(e->stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &e->flush));
    HOTBED_TRY(hotbed_fill(e->flush.data, 1, bytes, e->stream));
    return hotbed_stream_sync(e->stream);
}

static void close_environment(environment *e) {
    hotbed_event_destroy(e->start);
    hotbed_event_destroy(e->stop);
    hotbed_memory_free(&e->flush);
    hotbed_stream_destroy(e->stream);
    *e = (environment){0};
}

hotbed_stream *bench_open(hotbed_backend backend) {
    environment *e = &environments[backend == HOTBED_BACKEND_CUDA ? 1 : 0];
    if (hotbed_backend_probe(backend) != HOTBED_OK)
        return NULL;
    if (open_environment(backend, e) != HOTBED_OK) {
        (void)fprintf(stderr, "%s: %s\n", hotbed_backend_name(backend), hotbed_last_error());
        close_environment(e);
    }
    return e->stream;
}

void bench_close(void) {
    close_environment(&environments[0]);
    close_environment(&environments[1]);
}

/* --- time ------------------------------------------------------------------------------------- */

/* Copy one half of the flush buffer to the other, and measure the rate. */
static hotbed_status measure_copy(environment *e) {
    double seconds[COPIES];
    size_t half = e->flush.bytes / 2;
    for (int i = 0; i < COPIES; i++) {
        char *to = (char *)e->flush.data + (i % 2 == 0 ? half : 0);
        char *from = (char *)e->flush.data + (i % 2 == 0 ? 0 : half);
        HOTBED_TRY(hotbed_event_record(e->start, e->stream));
        HOTBED_TRY(hotbed_copy(to, from, half, e->stream));
        HOTBED_TRY(hotbed_event_record(e->stop, e->stream));
        HOTBED_TRY(hotbed_stream_sync(e->stream));
        HOTBED_TRY(hotbed_event_seconds(e->start, e->stop, &seconds[i]));
    }
    e->copy_rate = 2.0 * (double)half / bench_median(seconds, COPIES);
    return HOTBED_OK;
}

double bench_copy_rate(hotbed_stream *stream) {
    environment *e = environment_of(stream);
    if (e->copy_rate == 0 && measure_copy(e) != HOTBED_OK)
        (void)fprintf(stderr, "copy rate: %s\n", hotbed_last_error());
    return e->copy_rate;
}

/* --- lines ------------------------------------------------------------------------------------ */

typedef struct lines {
    hotbed_stream *stream;
    uint64_t n, slots;
    double seconds;
} lines;

enum { LINES_MOST = 32, LINE = 128, LINE_SLOTS = 16 };

static lines measured_lines[LINES_MOST];
static int num_measured_lines;

static hotbed_status time_lines(environment *e, const bench_probe *probe, double *out) {
    double seconds[COPIES];
    for (int i = 0; i < COPIES; i++) {
        bench_flush_cache(e->stream);
        HOTBED_TRY(hotbed_event_record(e->start, e->stream));
        HOTBED_TRY(bench_probe_lines(probe, e->stream));
        HOTBED_TRY(hotbed_event_record(e->stop, e->stream));
        HOTBED_TRY(hotbed_stream_sync(e->stream));
        HOTBED_TRY(hotbed_event_seconds(e->start, e->stop, &seconds[i]));
    }
    *out = bench_median(seconds, COPIES);
    return HOTBED_OK;
}

static hotbed_status measure_lines(environment *e, lines *l) {
    const hotbed_memory_kind device = HOTBED_MEMORY_DEVICE;
    const uint64_t all = (l->slots + LINE_SLOTS - 1) / LINE_SLOTS;
    hotbed_memory memory[3] = {{0}, {0}, {0}};
    const size_t sizes[3] = {all * LINE, l->n * sizeof(uint32_t), l->n * sizeof(uint64_t)};
    uint32_t *numbers = malloc(sizes[1]);
    hotbed_status status =
        numbers ? HOTBED_OK
                : hotbed_fail(HOTBED_ERR_MEMORY, "lines: no memory for %zu bytes", sizes[1]);
    for (uint64_t i = 0; numbers && i < l->n; i++)
        numbers[i] = (uint32_t)bench_random(i, all);
    for (int i = 0; i < 3 && status == HOTBED_OK; i++)
        status = hotbed_memory_alloc(e->stream, device, sizes[i], NULL, &memory[i]);
    if (status == HOTBED_OK)
        status = hotbed_fill(memory[0].data, 1, sizes[0], e->stream);
    if (status == HOTBED_OK)
        status = hotbed_copy(memory[1].data, numbers, sizes[1], e->stream);
    if (status == HOTBED_OK) {
        const bench_probe probe = {l->n, memory[1].data, memory[0].data, memory[2].data};
        status = time_lines(e, &probe, &l->seconds);
    }
    for (int i = 0; i < 3; i++)
        hotbed_memory_free(&memory[i]);
    free(numbers);
    return status;
}

double bench_lines_seconds(hotbed_stream *stream, uint64_t n, uint64_t slots) {
    lines new = {.stream = stream, .n = n, .slots = slots};
    for (int i = 0; i < num_measured_lines; i++) {
        const lines *l = &measured_lines[i];
        if (l->stream == stream && l->n == n && l->slots == slots)
            return l->seconds;
    }
    if (measure_lines(environment_of(stream), &new) != HOTBED_OK)
        (void)fprintf(stderr, "rate of lines: %s\n", hotbed_last_error());
    if (num_measured_lines < LINES_MOST)
        measured_lines[num_measured_lines++] = new;
    return new.seconds;
}

void bench_flush_cache(hotbed_stream *stream) {
    environment *e = environment_of(stream);
    if (hotbed_fill(e->flush.data, 2, e->flush.bytes, stream) != HOTBED_OK)
        e->failed = true;
}

void bench_start(hotbed_stream *stream) {
    environment *e = environment_of(stream);
    if (hotbed_event_record(e->start, stream) != HOTBED_OK)
        e->failed = true;
}

void bench_stop(hotbed_stream *stream, bench_state *state) {
    environment *e = environment_of(stream);
    double seconds = 0;
    bool ok = !e->failed && hotbed_event_record(e->stop, stream) == HOTBED_OK &&
              hotbed_stream_sync(stream) == HOTBED_OK &&
              hotbed_event_seconds(e->start, e->stop, &seconds) == HOTBED_OK;
    e->failed = false;
    if (ok)
        bench_seconds(state, seconds);
    else
        bench_skip(state, hotbed_last_error());
}

double bench_own_time(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* --- files ------------------------------------------------------------------------------------ */

void bench_remove_directory(const char *path) {
    DIR *d = opendir(path);
    if (d == NULL)
        return;
    for (const struct dirent *entry = readdir(d); entry != NULL; entry = readdir(d))
        (void)!unlinkat(dirfd(d), entry->d_name, 0); /* "." and ".." stay */
    closedir(d);
    (void)!rmdir(path);
}

/* --- memory ----------------------------------------------------------------------------------- */

bool bench_ok(bench_state *state, hotbed_status status) {
    if (status != HOTBED_OK)
        bench_skip(state, hotbed_last_error());
    return status == HOTBED_OK;
}

void *bench_alloc(bench_state *state, size_t bytes) {
    if (num_allocations == ALLOCATIONS_MOST) {
        bench_skip(state, "too many allocations in one benchmark");
        return NULL;
    }
    hotbed_memory *memory = &allocations[num_allocations];
    if (!bench_ok(
            state,
            hotbed_memory_alloc(bench_stream(state), HOTBED_MEMORY_DEVICE, bytes, NULL, memory)))
        return NULL;
    num_allocations++;
    return memory->data;
}

void *bench_upload(bench_state *state, const void *from, size_t bytes) {
    hotbed_stream *stream = bench_stream(state);
    void *to = from ? bench_alloc(state, bytes) : NULL;
    if (!to)
        return NULL;
    if (!bench_ok(state, hotbed_copy(to, from, bytes, stream)) ||
        !bench_ok(state, hotbed_stream_sync(stream)))
        return NULL;
    return to;
}

void bench_free_all(void) {
    while (num_allocations > 0)
        hotbed_memory_free(&allocations[--num_allocations]);
}
