/* tests/base/race_missing_sync.c - programs with and without a missing wait for a stream, for TSan.
 *
 * On the host backend TSan must report the race of each faulty program in every run, however the threads are scheduled,
 * and nothing in the correct programs.  The first argument selects the program:
 *   no_sync    reads a buffer that a stream writes, without hotbed_stream_sync()
 *   enqueue    as no_sync, but enqueues other work before it reads, which does not order the read
 *   no_event   two streams write one buffer without an event between them
 *   sync       no_sync, corrected by hotbed_stream_sync()
 *   event      no_event, corrected by an event
 */
#include "hotbed/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 4096 };

static void must(hotbed_status status) {
    if (status == HOTBED_OK)
        return;
    printf("%s: %s\n", hotbed_status_name(status), hotbed_last_error());
    exit(2);
}

static void nothing(void *unused) {
}

static int read_result(const unsigned char *bytes) {
    int sum = 0;
    for (int i = 0; i < BYTES; i++)
        sum += bytes[i];
    return sum;
}

static void one_stream(hotbed_stream *stream, unsigned char *bytes, bool enqueue, bool sync) {
    must(hotbed_fill(bytes, 1, BYTES, stream));
    for (int i = 0; enqueue && i < 100; i++)
        must(hotbed_stream_call(stream, nothing, NULL));
    if (sync)
        must(hotbed_stream_sync(stream));
    printf("sum %d\n", read_result(bytes));
}

static void two_streams(hotbed_stream *a, hotbed_stream *b, unsigned char *bytes, bool wait) {
    hotbed_event *event = NULL;
    must(hotbed_event_create(a, &event));
    must(hotbed_fill(bytes, 1, BYTES, a));
    must(hotbed_event_record(event, a));
    if (wait)
        must(hotbed_stream_wait(b, event));
    must(hotbed_fill(bytes, 2, BYTES, b));
    must(hotbed_stream_sync(b));
    printf("sum %d\n", read_result(bytes));
    hotbed_event_destroy(event);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "no_sync";
    hotbed_stream *a = NULL, *b = NULL;
    hotbed_memory memory;
    must(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &a));
    must(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &b));
    must(hotbed_memory_alloc(a, HOTBED_MEMORY_DEVICE, BYTES, NULL, &memory));
    if (strstr(name, "event") != NULL)
        two_streams(a, b, memory.data, strcmp(name, "event") == 0);
    else
        one_stream(a, memory.data, strcmp(name, "enqueue") == 0, strcmp(name, "sync") == 0);
    must(hotbed_stream_sync(a)); /* before the memory is freed */
    hotbed_memory_free(&memory);
    hotbed_stream_destroy(b);
    hotbed_stream_destroy(a);
    return 0;
}
