/* base/host_stream.c - the host backend: an in-order lane of tasks with its own thread.
 *
 * A stream owns a lane.  The caller's thread puts tasks into the lane's ring, the lane's thread takes
 * them out and runs them one after the other.  Tasks are numbered from 1; an event is a mark (lane,
 * number), passed once the lane has completed that number.  Memory is ordered at enqueueing (caller
 * before task, by the task's number), at completion (task before who waited for it, by `completed`), and
 * by nothing else as TSan sees it (host_race.h): a missing wait in the caller's program is reported.
 *
 * The ring is allocated with the stream.  When it is full, which takes RING_TASKS tasks that have not
 * run, the caller waits for room, and that counts as a host wait.
 *
 * A recorded graph is a list of tasks that run as one task of the lane.  Events that it records are
 * passed at its end; events that it waits for are waited for before it starts, as they are marked when
 * the graph is launched.
 */
#include "base/backend.h"
#include "base/host_lane.h"
#include "base/host_race.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

enum {
    RING_TASKS = 8192,       /* 4.6 MiB, of which only what is used is touched */
    COPY_GRAIN = 1024 * 1024 /* bytes a thread copies or fills at a time */
};

typedef enum task_kind {
    TASK_LAUNCH, /* body(args) over n */
    TASK_CALL,   /* function(pointer) */
    TASK_STAMP,  /* note the time in pointer, an event that is marked with this task */
    TASK_WAIT,   /* for task number n of pointer, a lane */
    TASK_GRAPH,  /* the tasks of pointer, a graph */
} task_kind;

typedef struct task {
    uint64_t number; /* atomic; set last: publishes the caller's memory to the lane */
    task_kind kind;
    uint64_t n, grain;
    hotbed_host_body body;
    void (*function)(void *argument);
    void *pointer;
    size_t args_bytes;
    _Alignas(16) unsigned char args[HOTBED_HOST_ARGS_BYTES];
} task;

/* Outlives its stream while an event or a waiting task names it. */
typedef struct lane {
    uint32_t references; /* atomic */
    pthread_mutex_t lock;
    pthread_cond_t work; /* the ring got a task, or stop was set */
    pthread_cond_t done; /* completed reached wanted */
    uint64_t enqueued;
    uint64_t completed;   /* atomic; publishes the tasks' memory to who waits */
    uint64_t wanted;      /* lowest number that someone waits for, UINT64_MAX for none */
    uint64_t head, count; /* of the ring; the running task is still in it */
    bool stop;
    task *ring; /* [RING_TASKS], NULL once the stream is gone */
    pthread_t thread;
} lane;

typedef struct host_event {
    hotbed_event base;
    uint32_t references;
    pthread_mutex_t lock;
    lane *marked; /* holds a reference; NULL: never recorded */
    uint64_t number;
    double seconds; /* when the mark was passed */
} host_event;

/* What a recording met: an event to mark, or to wait for, at each launch. */
typedef struct graph_event {
    host_event *event; /* holds a reference */
    bool wait;
} graph_event;

typedef struct host_graph {
    hotbed_graph base;
    task *tasks;
    size_t num_tasks, max_tasks;
    graph_event *events;
    size_t num_events, max_events;
    bool no_memory; /* the recording is not whole */
} host_graph;

typedef struct host_stream {
    hotbed_stream base;
    lane *lane;
    host_graph *recording; /* NULL: tasks go to the lane */
    hotbed_fault fault;
} host_stream;

static host_stream *host(hotbed_stream *stream) {
    return (host_stream *)stream;
}

/* --- lanes ---------------------------------------------------------------------------------- */

static void hold(uint32_t *references) {
    __atomic_fetch_add(references, 1, __ATOMIC_RELAXED);
}

/* Whether it was the last one; then all uses by others are before what follows. */
static bool drop(uint32_t *references) {
    if (__atomic_sub_fetch(references, 1, __ATOMIC_RELEASE) != 0)
        return false;
    (void)__atomic_load_n(references, __ATOMIC_ACQUIRE); /* not earlier: others need no order */
    return true;
}

static void lane_drop(lane *l) {
    if (l == NULL || !drop(&l->references))
        return;
    pthread_cond_destroy(&l->done);
    pthread_cond_destroy(&l->work);
    pthread_mutex_destroy(&l->lock);
    hotbed_delete(l);
}

/* Block until task `number` is completed.  Under the lock, hidden: orders nothing. */
static void lane_block(lane *l, uint64_t number) {
    while (hotbed_load_relaxed_u64(&l->completed) < number) {
        if (number < l->wanted)
            l->wanted = number;
        pthread_cond_wait(&l->done, &l->lock);
    }
}

/* Whether task `number` is completed; if so, what it did is seen by the caller. */
static bool lane_passed(lane *l, uint64_t number) {
    return hotbed_load_relaxed_u64(&l->completed) >= number &&
           hotbed_load_acquire_u64(&l->completed) >= number;
}

/* Wait until it is. */
static void lane_await(lane *l, uint64_t number) {
    if (lane_passed(l, number))
        return;
    hotbed_race_hide();
    pthread_mutex_lock(&l->lock);
    lane_block(l, number);
    pthread_mutex_unlock(&l->lock);
    hotbed_race_show();
    (void)lane_passed(l, number); /* acquires */
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* `number` is that of the task which runs, or of the graph it is in. */
static void run_task(const task *t, const lane *l, uint64_t number) {
    switch (t->kind) {
    case TASK_LAUNCH:
        hotbed_pool_run(t->n, t->grain, t->body, t->args);
        break;
    case TASK_CALL:
        t->function(t->pointer);
        break;
    case TASK_STAMP: {
        host_event *event = t->pointer;
        hotbed_race_hide();
        pthread_mutex_lock(&event->lock);
        if (event->marked == l && event->number == number) /* else it was recorded again since */
            event->seconds = now();
        pthread_mutex_unlock(&event->lock);
        hotbed_race_show();
        break;
    }
    case TASK_WAIT:
        lane_await(t->pointer, t->n);
        break;
    case TASK_GRAPH: {
        const host_graph *graph = t->pointer;
        for (size_t i = 0; i < graph->num_tasks; i++)
            run_task(&graph->tasks[i], l, number);
        break;
    }
    }
}

static void event_drop(host_event *event);

/* Give back what an enqueued task held. */
static void release_task(const task *t) {
    if (t->kind == TASK_STAMP)
        event_drop(t->pointer);
    else if (t->kind == TASK_WAIT)
        lane_drop(t->pointer);
}

/* The next task, or NULL when the stream is destroyed. */
static const task *lane_next(lane *l) {
    const task *t = NULL;
    hotbed_race_hide();
    pthread_mutex_lock(&l->lock);
    while (l->count == 0 && !l->stop) {
        l->head = 0; /* short queues stay in the cache */
        pthread_cond_wait(&l->work, &l->lock);
    }
    if (l->count > 0)
        t = &l->ring[l->head];
    pthread_mutex_unlock(&l->lock);
    hotbed_race_show();
    if (t != NULL) /* pairs with lane_publish() */
        (void)hotbed_load_acquire_u64(&t->number);
    return t;
}

static void lane_complete(lane *l, uint64_t number) {
    hotbed_store_release_u64(&l->completed, number); /* pairs with lane_passed() */
    hotbed_race_hide();
    pthread_mutex_lock(&l->lock);
    l->head = (l->head + 1) % RING_TASKS;
    l->count--;
    if (number >= l->wanted) {
        l->wanted = UINT64_MAX; /* who still waits asks again */
        pthread_cond_broadcast(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    hotbed_race_show();
}

static void *lane_main(void *argument) {
    lane *l = argument;
    uint64_t number = 0;
    for (const task *t = lane_next(l); t != NULL; t = lane_next(l)) {
        run_task(t, l, ++number);
        release_task(t);
        lane_complete(l, number);
    }
    return NULL;
}

/* Start to enqueue: takes the lock, hides, and returns the ring's next free task, after waiting for one
 * if need be.  The caller fills it and calls lane_publish(); l->enqueued is its number. */
static task *lane_push(lane *l) {
    hotbed_race_hide();
    pthread_mutex_lock(&l->lock);
    if (l->count == RING_TASKS) {
        hotbed_count_wait();
        lane_block(l, l->enqueued - RING_TASKS / 2);
    }
    l->enqueued++;
    return &l->ring[(l->head + l->count) % RING_TASKS];
}

static void lane_publish(lane *l, task *t) {
    l->count++;
    hotbed_race_show();
    hotbed_store_release_u64(&t->number, l->enqueued); /* pairs with lane_next() */
    hotbed_race_hide();
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->lock);
    hotbed_race_show();
}

static void fill_task(
    task *t, task_kind kind, uint64_t n, void *pointer, void (*function)(void *argument)) {
    t->kind = kind;
    t->n = n;
    t->pointer = pointer;
    t->function = function;
    t->args_bytes = 0;
}

/* --- recording ------------------------------------------------------------------------------ */

/* Room for one more item; what doubles is counted as the library's other memory is. */
static bool grow(void **items, size_t item_bytes, size_t count, size_t *max) {
    if (count < *max)
        return true;
    size_t larger = *max == 0 ? 16 : *max * 2;
    void *moved = realloc(*items, larger * item_bytes);
    if (moved == NULL)
        return false;
    hotbed_count_allocation(larger * item_bytes);
    *items = moved;
    *max = larger;
    return true;
}

static hotbed_status fail_recording(host_graph *graph) {
    graph->no_memory = true;
    return hotbed_fail(
        HOTBED_ERR_MEMORY, "no memory to record task %zu of a graph", graph->num_tasks + 1);
}

static hotbed_status record_task(host_graph *graph, task **out) {
    void *items = graph->tasks;
    if (!grow(&items, sizeof(task), graph->num_tasks, &graph->max_tasks))
        return fail_recording(graph);
    graph->tasks = items;
    *out = &graph->tasks[graph->num_tasks++];
    return HOTBED_OK;
}

static hotbed_status record_event(host_graph *graph, host_event *event, bool wait) {
    void *items = graph->events;
    if (!grow(&items, sizeof(graph_event), graph->num_events, &graph->max_events))
        return fail_recording(graph);
    graph->events = items;
    hold(&event->references);
    graph->events[graph->num_events++] = (graph_event){event, wait};
    return HOTBED_OK;
}

static void graph_destroy(hotbed_graph *base) {
    host_graph *graph = (host_graph *)base;
    for (size_t i = 0; i < graph->num_events; i++)
        event_drop(graph->events[i].event);
    free(graph->events);
    free(graph->tasks);
    hotbed_delete(graph);
}

/* --- streams -------------------------------------------------------------------------------- */

static hotbed_status probe(void) {
    return HOTBED_OK;
}

static hotbed_status start_lane(lane *l) {
    sigset_t all, before;
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&l->thread, NULL, lane_main, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "a stream's thread cannot be started: error %d", error);
    return HOTBED_OK;
}

static hotbed_status lane_create(lane **out) {
    lane *l = hotbed_new(sizeof *l);
    task *ring = hotbed_new(RING_TASKS * sizeof *ring);
    if (l == NULL || ring == NULL) {
        hotbed_delete(ring);
        hotbed_delete(l);
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory for a stream of %zu bytes", RING_TASKS * sizeof *ring);
    }
    l->references = 1;
    l->wanted = UINT64_MAX;
    l->ring = ring;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, NULL);
    hotbed_status status = start_lane(l);
    if (status != HOTBED_OK) {
        hotbed_delete(ring);
        lane_drop(l);
        return status;
    }
    *out = l;
    return HOTBED_OK;
}

static hotbed_status stream_create(
    int device, hotbed_priority priority, bool wrap, void *native, hotbed_stream **out) {
    (void)priority; /* lanes are all alike */
    (void)wrap;     /* only cudaStream_t are wrapped */
    (void)native;
    if (device != 0)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "device %d: the host has device 0 only", device);
    host_stream *stream = hotbed_new(sizeof *stream);
    if (stream == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a stream");
    hotbed_status status = hotbed_pool_acquire();
    if (status != HOTBED_OK) {
        hotbed_delete(stream);
        return status;
    }
    status = lane_create(&stream->lane);
    if (status != HOTBED_OK) {
        hotbed_pool_release();
        hotbed_delete(stream);
        return status;
    }
    stream->base.fault = &stream->fault;
    *out = &stream->base;
    return HOTBED_OK;
}

static void stream_destroy(hotbed_stream *base) {
    host_stream *stream = host(base);
    lane *l = stream->lane;
    hotbed_race_hide();
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->lock);
    hotbed_race_show();
    pthread_join(l->thread, NULL);
    hotbed_delete(l->ring);
    l->ring = NULL;
    lane_drop(l);
    hotbed_pool_release();
    hotbed_delete(stream);
}

static void *stream_native(const hotbed_stream *base) {
    (void)base;
    return NULL;
}

static hotbed_status stream_sync(hotbed_stream *base) {
    lane *l = host(base)->lane;
    lane_await(l, l->enqueued);
    return HOTBED_OK;
}

/* Enqueue, or record, a task without arguments to copy. */
static hotbed_status enqueue(
    host_stream *stream, task_kind kind, uint64_t n, void *pointer,
    void (*function)(void *argument)) {
    if (stream->recording != NULL) {
        task *t = NULL;
        HOTBED_TRY(record_task(stream->recording, &t));
        fill_task(t, kind, n, pointer, function);
        return HOTBED_OK;
    }
    lane *l = stream->lane;
    task *t = lane_push(l);
    fill_task(t, kind, n, pointer, function);
    lane_publish(l, t);
    return HOTBED_OK;
}

static hotbed_status stream_call(
    hotbed_stream *base, void (*function)(void *argument), void *argument) {
    return enqueue(host(base), TASK_CALL, 0, argument, function);
}

static void fill_launch(
    task *t, uint64_t n, uint64_t grain, hotbed_host_body body, const void *args,
    size_t args_bytes) {
    fill_task(t, TASK_LAUNCH, n, NULL, NULL);
    t->grain = grain;
    t->body = body;
    t->args_bytes = args_bytes;
    if (args_bytes > 0)
        memcpy(t->args, args, args_bytes);
}

hotbed_status hotbed_lane_launch(
    hotbed_stream *stream, uint64_t n, uint64_t grain, hotbed_host_body body, const void *args,
    size_t args_bytes) {
    host_stream *own = host(stream);
    if (own->recording != NULL) {
        task *t = NULL;
        HOTBED_TRY(record_task(own->recording, &t));
        fill_launch(t, n, grain, body, args, args_bytes);
        return HOTBED_OK;
    }
    lane *l = own->lane;
    task *t = lane_push(l);
    fill_launch(t, n, grain, body, args, args_bytes);
    lane_publish(l, t);
    return HOTBED_OK;
}

/* --- events --------------------------------------------------------------------------------- */

static hotbed_status event_create(hotbed_stream *stream, hotbed_event **out) {
    (void)stream;
    host_event *event = hotbed_new(sizeof *event);
    if (event == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for an event");
    event->references = 1;
    pthread_mutex_init(&event->lock, NULL);
    *out = &event->base;
    return HOTBED_OK;
}

static void event_drop(host_event *event) {
    if (!drop(&event->references))
        return;
    lane_drop(event->marked);
    pthread_mutex_destroy(&event->lock);
    hotbed_delete(event);
}

static void event_destroy(hotbed_event *base) {
    event_drop((host_event *)base);
}

/* Move the event's mark to task `number` of the lane.  Under the lane's lock, hidden, and before the
 * task can run; an event's lock is taken inside of a lane's, never the other way round. */
static void event_mark(host_event *event, lane *l, uint64_t number) {
    hold(&l->references);
    pthread_mutex_lock(&event->lock);
    lane *before = event->marked;
    event->marked = l;
    event->number = number;
    pthread_mutex_unlock(&event->lock);
    lane_drop(before); /* never the last reference to `l`, which its stream holds */
}

/* The event's mark; *marked is NULL or holds a reference for the caller. */
static void event_read(host_event *event, lane **marked, uint64_t *number) {
    hotbed_race_hide();
    pthread_mutex_lock(&event->lock);
    *marked = event->marked;
    *number = event->number;
    if (*marked != NULL)
        hold(&(*marked)->references);
    pthread_mutex_unlock(&event->lock);
    hotbed_race_show();
}

static hotbed_status event_record(hotbed_event *base, hotbed_stream *stream_base) {
    host_event *event = (host_event *)base;
    host_stream *stream = host(stream_base);
    if (stream->recording != NULL) {
        HOTBED_TRY(record_event(stream->recording, event, false));
        return enqueue(stream, TASK_STAMP, 0, event, NULL);
    }
    lane *l = stream->lane;
    hold(&event->references);
    task *t = lane_push(l);
    fill_task(t, TASK_STAMP, 0, event, NULL);
    event_mark(event, l, l->enqueued);
    lane_publish(l, t);
    return HOTBED_OK;
}

static hotbed_status stream_wait(hotbed_stream *base, hotbed_event *event_base) {
    host_stream *stream = host(base);
    host_event *event = (host_event *)event_base;
    if (stream->recording != NULL)
        return record_event(stream->recording, event, true);
    lane *marked = NULL;
    uint64_t number = 0;
    event_read(event, &marked, &number);
    if (marked == NULL)
        return HOTBED_OK;
    return enqueue(stream, TASK_WAIT, number, marked, NULL);
}

static hotbed_status event_query(hotbed_event *base, bool *recorded, bool *done) {
    lane *marked = NULL;
    uint64_t number = 0;
    event_read((host_event *)base, &marked, &number);
    *recorded = marked != NULL;
    *done = marked == NULL || lane_passed(marked, number);
    lane_drop(marked);
    return HOTBED_OK;
}

static hotbed_status event_sync(hotbed_event *base) {
    lane *marked = NULL;
    uint64_t number = 0;
    event_read((host_event *)base, &marked, &number);
    if (marked == NULL)
        return HOTBED_OK;
    lane_await(marked, number);
    lane_drop(marked);
    return HOTBED_OK;
}

static double event_time(hotbed_event *base) {
    host_event *event = (host_event *)base;
    hotbed_race_hide();
    pthread_mutex_lock(&event->lock);
    double seconds = event->seconds;
    pthread_mutex_unlock(&event->lock);
    hotbed_race_show();
    return seconds;
}

static hotbed_status event_seconds(hotbed_event *start, hotbed_event *stop, double *seconds) {
    *seconds = event_time(stop) - event_time(start);
    return HOTBED_OK;
}

/* --- memory --------------------------------------------------------------------------------- */

static hotbed_status memory_alloc(int device, hotbed_memory_kind kind, size_t bytes, void **out) {
    (void)device;
    (void)kind;
    *out = hotbed_host_alloc(bytes);
    return HOTBED_OK; /* the caller tells what was asked for when *out is NULL */
}

static void memory_free(int device, hotbed_memory_kind kind, void *data) {
    (void)device;
    (void)kind;
    hotbed_host_free(data);
}

typedef struct copy_args {
    unsigned char *to;
    const unsigned char *from;
} copy_args;

static void copy_body(const void *args, uint64_t begin, uint64_t end) {
    const copy_args *a = args;
    memcpy(a->to + begin, a->from + begin, (size_t)(end - begin));
}

static hotbed_status copy(void *to, const void *from, size_t bytes, hotbed_stream *stream) {
    copy_args args = {.to = to, .from = from};
    return hotbed_lane_launch(stream, bytes, COPY_GRAIN, copy_body, &args, sizeof args);
}

typedef struct fill_args {
    unsigned char *to;
    int value;
} fill_args;

static void fill_body(const void *args, uint64_t begin, uint64_t end) {
    const fill_args *a = args;
    memset(a->to + begin, a->value, (size_t)(end - begin));
}

static hotbed_status fill(void *to, int value, size_t bytes, hotbed_stream *stream) {
    fill_args args = {.to = to, .value = value};
    return hotbed_lane_launch(stream, bytes, COPY_GRAIN, fill_body, &args, sizeof args);
}

/* --- graphs --------------------------------------------------------------------------------- */

static hotbed_status graph_begin(hotbed_stream *base) {
    host_graph *graph = hotbed_new(sizeof *graph);
    if (graph == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a graph");
    host(base)->recording = graph;
    return HOTBED_OK;
}

static hotbed_status graph_end(hotbed_stream *base, hotbed_graph **out) {
    host_graph *graph = host(base)->recording;
    host(base)->recording = NULL;
    if (out == NULL || graph->no_memory) {
        size_t tasks = graph->num_tasks;
        graph_destroy(&graph->base);
        if (out == NULL)
            return HOTBED_OK;
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "the graph is not whole: there was no memory after %zu tasks",
            tasks);
    }
    *out = &graph->base;
    return HOTBED_OK;
}

static hotbed_status graph_launch(hotbed_graph *base, hotbed_stream *stream_base) {
    host_graph *graph = (host_graph *)base;
    host_stream *stream = host(stream_base);
    for (size_t i = 0; i < graph->num_events; i++) {
        if (graph->events[i].wait)
            HOTBED_TRY(stream_wait(stream_base, &graph->events[i].event->base));
    }
    lane *l = stream->lane;
    task *t = lane_push(l);
    fill_task(t, TASK_GRAPH, 0, graph, NULL);
    for (size_t i = 0; i < graph->num_events; i++) {
        if (!graph->events[i].wait)
            event_mark(graph->events[i].event, l, l->enqueued);
    }
    lane_publish(l, t);
    return HOTBED_OK;
}

const hotbed_backend_ops hotbed_host_ops = {
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
