/* base/host_stream.c - the host backend: a stream is an in-order queue of tasks with a worker
 * thread.
 *
 * The code calls the queue and its worker thread a `lane`. The caller's thread puts tasks into a
 * ring; the worker thread takes them out and runs them one after the other. Tasks are numbered from
 * 1. An event is a mark (queue, number), and has passed once the queue has completed that number.
 * Memory is ordered when a task is enqueued (caller before task, by the task's number), when it
 * completes (task before every waiting thread, by `completed`), and by nothing else that TSan sees
 * (host_race.h). So TSan reports a missing wait in the caller's program.
 *
 * An inline stream has no ring and no worker thread: a task runs on the caller's thread as soon as
 * it has a number.
 *
 * The ring is allocated with the stream. When RING_TASKS tasks have not run, it is full; the caller
 * then waits for free space, which counts as a host wait.
 *
 * A recorded graph is a list of tasks that run as one task of the stream. Events that it records
 * pass when it ends. Events that it waits for are waited for before it starts, as they are marked
 * when the graph is launched. */
#include "base/backend.h"
#include "base/host_pool.h"
#include "base/host_race.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

enum {
    RING_TASKS = 8192,       /* 4.6 MiB, of which only the used part is touched */
    COPY_GRAIN = 1024 * 1024 /* bytes a thread copies or fills at a time */
};

typedef enum task_kind {
    TASK_LAUNCH, /* body(args) over n */
    TASK_CALL,   /* function(pointer) */
    TASK_STAMP,  /* store the time in pointer, an event that is marked with this task */
    TASK_WAIT,   /* wait for task number n of pointer, another queue */
    TASK_GRAPH,  /* run the tasks of pointer, a graph */
} task_kind;

typedef struct task {
    uint64_t number; /* atomic; set last: publishes the caller's memory to the worker thread */
    task_kind kind;
    uint64_t n, grain;
    hotbed_host_body body;
    void (*function)(void *argument);
    void *pointer;
    size_t args_bytes;
    _Alignas(16) unsigned char args[HOTBED_HOST_ARGS_BYTES];
} task;

/* A stream's queue. It outlives the stream while an event or a waiting task refers to it. */
typedef struct lane {
    uint32_t references; /* atomic */
    pthread_mutex_t lock;
    pthread_cond_t work; /* the ring got a task, or stop was set */
    pthread_cond_t done; /* `completed` has reached `wanted` */
    uint64_t enqueued;
    uint64_t completed;   /* atomic; publishes the tasks' memory to waiting threads */
    uint64_t wanted;      /* the lowest number that a thread waits for; UINT64_MAX: none */
    uint64_t head, count; /* of the ring, which still contains the running task */
    bool stop;
    bool run_inline; /* no ring and no worker thread */
    task *ring;      /* [RING_TASKS]; NULL once the stream is destroyed */
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

/* An event that a recording contains: marked, or waited for, at each launch. */
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
    bool no_memory; /* the recording is incomplete */
} host_graph;

typedef struct host_stream {
    hotbed_stream base;
    lane *lane;
    host_graph *recording; /* NULL: tasks go to the queue */
    hotbed_fault fault;
} host_stream;

static host_stream *host(hotbed_stream *stream) {
    return (host_stream *)stream;
}

/* --- queues --------------------------------------------------------------------------------- */

static void hold(uint32_t *references) {
    __atomic_fetch_add(references, 1, __ATOMIC_RELAXED);
}

/* Drop a reference. True if it was the last; then everything that other threads did with the object
 * happened before. */
static bool drop(uint32_t *references) {
    if (__atomic_sub_fetch(references, 1, __ATOMIC_RELEASE) != 0)
        return false;
    (void)__atomic_load_n(references, __ATOMIC_ACQUIRE); /* only the last owner needs the order */
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

/* Block until task `number` is completed. Called under the lock and hidden from TSan: it orders
 * nothing. */
static void lane_block(lane *l, uint64_t number) {
    while (hotbed_load_relaxed_u64(&l->completed) < number) {
        if (number < l->wanted)
            l->wanted = number;
        pthread_cond_wait(&l->done, &l->lock);
    }
}

/* Whether task `number` is completed. If so, its effects are visible to the caller. */
static bool lane_passed(lane *l, uint64_t number) {
    return hotbed_load_relaxed_u64(&l->completed) >= number &&
           hotbed_load_acquire_u64(&l->completed) >= number;
}

/* Wait until task `number` is completed. */
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

/* `number` is the number of the running task, or of the graph that contains it. */
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
        if (event->marked == l && event->number == number) /* otherwise it was recorded again */
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

/* Drop the references that an enqueued task held. */
static void release_task(const task *t) {
    if (t->kind == TASK_STAMP)
        event_drop(t->pointer);
    else if (t->kind == TASK_WAIT)
        lane_drop(t->pointer);
}

/* Wait for the next task. NULL: the stream is being destroyed. */
static const task *lane_next(lane *l) {
    const task *t = NULL;
    hotbed_race_hide();
    pthread_mutex_lock(&l->lock);
    while (l->count == 0 && !l->stop) {
        l->head = 0; /* keeps short queues in the cache */
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
        l->wanted = UINT64_MAX; /* threads that still wait will set it again */
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

/* Begin to enqueue: take the lock, hide from TSan, and return the next free task of the ring, after
 * waiting for one if the ring is full. Its number is l->enqueued. The caller fills it and calls
 * lane_publish(). */
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

/* Make space for one more item. Each growth is counted like the library's other allocations. */
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
    char reason[HOTBED_REASON_BYTES];
    if (error != 0)
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "a stream's thread cannot be started: %s",
            hotbed_reason(error, reason));
    return HOTBED_OK;
}

static hotbed_status lane_create(bool run_inline, lane **out) {
    lane *l = hotbed_new(sizeof *l);
    task *ring = run_inline ? NULL : hotbed_new(RING_TASKS * sizeof *ring);
    if (l == NULL || (ring == NULL && !run_inline)) {
        hotbed_delete(ring);
        hotbed_delete(l);
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory for a stream of %zu bytes", RING_TASKS * sizeof *ring);
    }
    l->references = 1;
    l->wanted = UINT64_MAX;
    l->ring = ring;
    l->run_inline = run_inline;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, NULL);
    hotbed_status status = run_inline ? HOTBED_OK : start_lane(l);
    if (status != HOTBED_OK) {
        hotbed_delete(ring);
        lane_drop(l);
        return status;
    }
    *out = l;
    return HOTBED_OK;
}

/* Host streams have no priority, and only CUDA streams can be wrapped. */
static hotbed_status stream_create(const hotbed_stream_spec *spec, hotbed_stream **out) {
    if (spec->device != 0)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "device %d: the host has device 0 only", spec->device);
    host_stream *stream = hotbed_new(sizeof *stream);
    if (stream == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a stream");
    hotbed_status status = hotbed_pool_acquire();
    if (status != HOTBED_OK) {
        hotbed_delete(stream);
        return status;
    }
    status = lane_create(spec->run_inline, &stream->lane);
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
    if (!l->run_inline) {
        hotbed_race_hide();
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_signal(&l->work);
        pthread_mutex_unlock(&l->lock);
        hotbed_race_show();
        pthread_join(l->thread, NULL);
    }
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

static bool stream_captured(const hotbed_stream *base) {
    (void)base;
    return false;
}

static hotbed_status stream_sync(hotbed_stream *base) {
    lane *l = host(base)->lane;
    lane_await(l, l->enqueued);
    return HOTBED_OK;
}

/* Number the next task of an inline stream. The task is not completed before lane_run() returns. */
static uint64_t lane_begin(lane *l) {
    hotbed_race_hide();
    pthread_mutex_lock(&l->lock);
    uint64_t number = ++l->enqueued;
    pthread_mutex_unlock(&l->lock);
    hotbed_race_show();
    return number;
}

/* Run task `number` of an inline stream on this thread, and complete it. */
static void lane_run(lane *l, const task *t, uint64_t number) {
    run_task(t, l, number);
    release_task(t);
    hotbed_store_release_u64(&l->completed, number); /* pairs with lane_passed() */
    hotbed_race_hide();
    pthread_mutex_lock(&l->lock);
    if (number >= l->wanted) {
        l->wanted = UINT64_MAX;
        pthread_cond_broadcast(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    hotbed_race_show();
}

/* Enqueue or record a task without arguments to copy. */
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
    if (l->run_inline) {
        if (kind == TASK_WAIT && !lane_passed(pointer, n))
            hotbed_count_wait();
        task own = {.kind = kind, .n = n, .pointer = pointer, .function = function};
        lane_run(l, &own, lane_begin(l));
        return HOTBED_OK;
    }
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

static hotbed_status lane_launch(
    hotbed_stream *stream, uint64_t n, uint64_t grain, hotbed_host_body body, const void *args,
    size_t args_bytes) {
    host_stream *own = host(stream);
    HOTBED_TRY(hotbed_fork_check());
    if (own->recording != NULL) {
        task *t = NULL;
        HOTBED_TRY(record_task(own->recording, &t));
        fill_launch(t, n, grain, body, args, args_bytes);
        return HOTBED_OK;
    }
    lane *l = own->lane;
    if (l->run_inline) {
        task direct;
        fill_launch(&direct, n, grain, body, args, args_bytes);
        lane_run(l, &direct, lane_begin(l));
        return HOTBED_OK;
    }
    task *t = lane_push(l);
    fill_launch(t, n, grain, body, args, args_bytes);
    lane_publish(l, t);
    return HOTBED_OK;
}

hotbed_status hotbed_host_launch(
    hotbed_stream *stream, uint64_t n, uint64_t grain, hotbed_host_body body, const void *args,
    size_t args_bytes) {
    if (stream->backend != HOTBED_BACKEND_HOST)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "hotbed_host_launch: the stream is of backend %s",
            hotbed_backend_name(stream->backend));
    if (args_bytes > HOTBED_HOST_ARGS_BYTES)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "hotbed_host_launch: %zu bytes of arguments, at most %d",
            args_bytes, (int)HOTBED_HOST_ARGS_BYTES);
    if (n == 0)
        return HOTBED_OK;
    hotbed_count_launch();
    return lane_launch(stream, n, grain, body, args, args_bytes);
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

/* Move the event's mark to task `number` of the queue. Called under the queue's lock, hidden from
 * TSan, and before the task can run. Lock order: the queue's lock first, then the event's. */
static void event_mark(host_event *event, lane *l, uint64_t number) {
    hold(&l->references);
    pthread_mutex_lock(&event->lock);
    lane *before = event->marked;
    event->marked = l;
    event->number = number;
    pthread_mutex_unlock(&event->lock);
    lane_drop(before); /* never the last reference to `l`, since its stream holds one */
}

/* event_mark() for an inline stream: task `number` runs on this thread afterwards. */
static void mark_inline(host_event *event, lane *l, uint64_t number) {
    hotbed_race_hide();
    pthread_mutex_lock(&l->lock);
    event_mark(event, l, number);
    pthread_mutex_unlock(&l->lock);
    hotbed_race_show();
}

/* Read the event's mark. *marked is NULL, or holds a reference for the caller. */
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
    if (l->run_inline) {
        task own = {.kind = TASK_STAMP, .pointer = event};
        uint64_t number = lane_begin(l);
        mark_inline(event, l, number);
        lane_run(l, &own, number);
        return HOTBED_OK;
    }
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
    return HOTBED_OK; /* the caller reports the request if *out is NULL */
}

static void memory_free(int device, hotbed_memory_kind kind, void *data, size_t bytes) {
    (void)device;
    (void)kind;
    hotbed_host_free(data, bytes);
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
    return lane_launch(stream, bytes, COPY_GRAIN, copy_body, &args, sizeof args);
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
    return lane_launch(stream, bytes, COPY_GRAIN, fill_body, &args, sizeof args);
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
    if (l->run_inline) {
        task own = {.kind = TASK_GRAPH, .pointer = graph};
        uint64_t number = lane_begin(l);
        for (size_t i = 0; i < graph->num_events; i++) {
            if (!graph->events[i].wait)
                mark_inline(graph->events[i].event, l, number);
        }
        lane_run(l, &own, number);
        return HOTBED_OK;
    }
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
    .stream_captured = stream_captured,
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
