/* examples/train/trace.c - a timeline that Perfetto and chrome://tracing open. */
#include "examples/train/trace.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TRACKS = 5, MAX_EVENTS = 1 << 22 };

typedef struct event {
    uint64_t nanoseconds;
    uint8_t track;
    uint8_t phase;
    bool begin;
} event;

/* What a stream's mark needs; made once for every kind of mark. */
typedef struct mark_argument {
    hotbed_trace *trace;
    hotbed_trace_track track;
    hotbed_phase phase;
    bool begin;
} mark_argument;

struct hotbed_trace {
    pthread_mutex_t mutex;
    event *events; /* [room]; later ones than MAX_EVENTS are dropped */
    size_t num_events;
    size_t room;
    mark_argument marks[TRACKS][HOTBED_PHASES][2];
};

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

hotbed_trace *hotbed_trace_create(void) {
    hotbed_trace *trace = calloc(1, sizeof *trace);
    if (trace == NULL)
        return NULL;
    pthread_mutex_init(&trace->mutex, NULL);
    for (int track = 0; track < TRACKS; track++)
        for (int phase = 0; phase < HOTBED_PHASES; phase++)
            for (int begin = 0; begin < 2; begin++)
                trace->marks[track][phase][begin] = (mark_argument){
                    trace, (hotbed_trace_track)track, (hotbed_phase)phase, begin == 1};
    return trace;
}

void hotbed_trace_destroy(hotbed_trace *trace) {
    if (trace == NULL)
        return;
    pthread_mutex_destroy(&trace->mutex);
    free(trace->events);
    free(trace);
}

void hotbed_trace_mark(
    hotbed_trace *trace, hotbed_trace_track track, hotbed_phase phase, bool begin) {
    if (trace == NULL)
        return;
    pthread_mutex_lock(&trace->mutex);
    if (trace->num_events == trace->room && trace->room < MAX_EVENTS) {
        size_t room = trace->room == 0 ? 4096 : trace->room * 2;
        event *events = realloc(trace->events, room * sizeof *events);
        if (events != NULL) {
            trace->events = events;
            trace->room = room;
        }
    }
    if (trace->num_events < trace->room)
        trace->events[trace->num_events++] = (event){now(), (uint8_t)track, (uint8_t)phase, begin};
    pthread_mutex_unlock(&trace->mutex);
}

static void run_mark(void *argument) {
    const mark_argument *mark = argument;
    hotbed_trace_mark(mark->trace, mark->track, mark->phase, mark->begin);
}

hotbed_status hotbed_trace_enqueue(
    hotbed_trace *trace, hotbed_trace_track track, hotbed_phase phase, bool begin,
    hotbed_stream *stream) {
    if (trace == NULL)
        return HOTBED_OK;
    return hotbed_stream_call(stream, run_mark, &trace->marks[track][phase][begin ? 1 : 0]);
}

bool hotbed_trace_write(hotbed_trace *trace, const char *path) {
    static const char *const tracks[TRACKS] = {
        "", "reader", "main", "prefetch stream", "compute stream"};
    static const char *const phases[HOTBED_PHASES] = {"read",     "prefetch", "forward", "model",
                                                      "backward", "eval",     "save"};
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return false;
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", file);
    for (int track = 1; track < TRACKS; track++)
        fprintf(
            file,
            "{\"ph\": \"M\", \"pid\": 1, \"tid\": %d, \"name\": \"thread_name\", \"args\": "
            "{\"name\": \"%s\"}}%s\n",
            track, tracks[track], track + 1 < TRACKS || trace->num_events > 0 ? "," : "");
    uint64_t first = trace->num_events > 0 ? trace->events[0].nanoseconds : 0;
    for (size_t i = 0; i < trace->num_events; i++) {
        const event *e = &trace->events[i];
        fprintf(
            file, "{\"ph\": \"%c\", \"pid\": 1, \"tid\": %u, \"ts\": %.3f, \"name\": \"%s\"}%s\n",
            e->begin ? 'B' : 'E', e->track, (double)(e->nanoseconds - first) / 1e3,
            phases[e->phase], i + 1 < trace->num_events ? "," : "");
    }
    fputs("]}\n", file);
    bool ok = ferror(file) == 0;
    return fclose(file) == 0 && ok;
}
