/* base/host_stream.c - the host backend: a stream is an in-order queue of tasks with a worker
 * thread.
 *
 * The caller's thread puts tasks into a ring; the worker thread takes them out and runs them one
 * after the other. Tasks are numbered from 1. An event is a mark (queue, number), and has passed
 * once the queue has completed that number. Memory is ordered when a task is enqueued (caller
 * before task, by the task's number), when it completes (task before every waiting thread, by
 * `completed`), and by nothing else that TSan sees (host_race.h). So TSan reports a missing wait in
 * the caller's program.
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
#include "base/clock.h"
#include "base/host_pool.h"
#include "base/host_race.h"
#include "base/thread.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

enum {
    RING_TASKS = 8192,       /* 4.6 MiB; only the tasks in use occupy pages */
    COPY_GRAIN = 1024 * 1024 /* bytes a thread copies or fills at a time */
};

typedef enum task_kind {
    TASK_LAUNCH, /* body(args) over n */
    TASK_CALL,   /* function(pointer) */
    TASK_STAMP,  /* store the time in pointer, an event that this task completes */
    TASK_WAIT,   /* wait for task number n of pointer, another queue */
    TASK_GRAPH,  /* run the tasks of pointer, a graph */
} task_kind;

typedef struct work {
    task_kind kind;
    uint64_t n, grain;
    hotbed_host_body body;
    void (*function)(void *argument);
    void *pointer;
} work;

typedef struct task {
    uint64_t number; /* atomic; set last: publishes the caller's memory to the worker thread */
    work does;
    _Alignas(16) unsigned char args[HOTBED_HOST_ARGS_BYTES];
} task;

/* A stream's queue. It outlives the stream while an event or a waiting task refers to it. */
typedef struct queue {
    uint32_t references; /* atomic */
    pthread_mutex_t lock;
    pthread_cond_t work; /* the ring got a task, or stop was set */
    pthread_cond_t done; /* `completed` has reached `wanted` */
    uint64_t enqueued;
    uint64_t completed; /* atomic; publishes the tasks' memory to waiting threads */
    uint64_t wanted;    /* the lowest number that a thread waits for; UINT64_MAX: none */
    uint64_t head,
        count; /* first task and number of tasks in the ring; a task leaves it at its end */
    bool stop;
    bool run_inline; /* no ring and no worker thread */
    task *ring;      /* [RING_TASKS]; NULL once the stream is destroyed */
    pthread_t thread;
} queue;

typedef struct host_event {
    hotbed_event base;
    uint32_t references;
    pthread_mutex_t lock;
    queue *marked; /* holds a reference; NULL: never recorded */
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
    uint64_t num_tasks, max_tasks;
    graph_event *events;
    uint64_t num_events, max_events;
    bool no_memory; /* an allocation failed, so the recording is incomplete */
} host_graph;

typedef struct host_stream {
    hotbed_stream base;
    queue *queue;
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

static void queue_drop(queue *q) {
    if (q == NULL || !drop(&q->references))
        return;
    pthread_cond_destroy(&q->done);
    pthread_cond_destroy(&q->work);
    pthread_mutex_destroy(&q->lock);
    hotbed_delete(q);
}

/* Block until task `number` is completed. Called under the lock and hidden from TSan: it orders
 * nothing. */
static void queue_block(queue *q, uint64_t number) {
    while (hotbed_load_relaxed_u64(&q->completed) < number) {
        if (number < q->wanted)
            q->wanted = number;
        pthread_cond_wait(&q->done, &q->lock);
    }
}

/* Whether task `number` is completed. If so, its effects are visible to the caller. */
static bool queue_passed(queue *q, uint64_t number) {
    return hotbed_load_relaxed_u64(&q->completed) >= number &&
           hotbed_load_acquire_u64(&q->completed) >= number;
}

/* Wait until task `number` is completed. */
static void queue_await(queue *q, uint64_t number) {
    if (queue_passed(q, number))
        return;
    hotbed_race_lock(&q->lock);
    queue_block(q, number);
    hotbed_race_unlock(&q->lock);
    (void)queue_passed(q, number); /* acquires */
}

/* `number` is the running task's number, or the number of the graph that contains the task. */
static void run_task(const task *t, const queue *q, uint64_t number) {
    const work *w = &t->does;
    switch (w->kind) {
    case TASK_LAUNCH:
        hotbed_pool_run(w->n, w->grain, w->body, t->args);
        break;
    case TASK_CALL:
        w->function(w->pointer);
        break;
    case TASK_STAMP: {
        host_event *event = w->pointer;
        hotbed_race_lock(&event->lock);
        if (event->marked == q && event->number == number) /* otherwise it was recorded again */
            event->seconds = hotbed_monotonic_seconds();
        hotbed_race_unlock(&event->lock);
        break;
    }
    case TASK_WAIT:
        queue_await(w->pointer, w->n);
        break;
    case TASK_GRAPH: {
        const host_graph *graph = w->pointer;
        for (size_t i = 0; i < graph->num_tasks; i++)
            run_task(&graph->tasks[i], q, number);
        break;
    }
    }
}

static void event_drop(host_event *event);

/* Drop the references that an enqueued task held. */
static void release_work(const work *w) {
    if (w->kind == TASK_STAMP)
        event_drop(w->pointer);
    else if (w->kind == TASK_WAIT)
        queue_drop(w->pointer);
}

/* Wait for the next task. NULL: the stream is being destroyed. */
static const task *queue_next(queue *q) {
    const task *t = NULL;
    hotbed_race_lock(&q->lock);
    while (q->count == 0 && !q->stop) {
        q->head = 0; /* keeps short queues in the cache */
        pthread_cond_wait(&q->work, &q->lock);
    }
    if (q->count > 0)
        t = &q->ring[q->head];
    hotbed_race_unlock(&q->lock);
    if (t != NULL) /* pairs with queue_publish() */
        (void)hotbed_load_acquire_u64(&t->number);
    return t;
}

static void queue_complete(queue *q, uint64_t number) {
    hotbed_store_release_u64(&q->completed, number); /* pairs with queue_passed() */
    hotbed_race_lock(&q->lock);
    if (!q->run_inline) {
        q->head = (q->head + 1) % RING_TASKS;
        q->count--;
    }
    if (number >= q->wanted) {
        q->wanted = UINT64_MAX; /* threads that still wait will set it again */
        pthread_cond_broadcast(&q->done);
    }
    hotbed_race_unlock(&q->lock);
}

/* Run task `number`, and complete it. */
static void queue_run(queue *q, const task *t, uint64_t number) {
    run_task(t, q, number);
    release_work(&t->does);
    queue_complete(q, number);
    hotbed_host_look_at_pages();
}

static void *queue_main(void *argument) {
    queue *q = argument;
    uint64_t number = 0;
    for (const task *t = queue_next(q); t != NULL; t = queue_next(q))
        queue_run(q, t, ++number);
    return NULL;
}

/* Begin to enqueue: take the lock, hide from TSan, and return the next free task of the ring, after
 * waiting for one if the ring is full. Its number is q->enqueued. The caller fills it and calls
 * queue_publish(). */
static task *queue_push(queue *q) {
    hotbed_race_lock(&q->lock);
    if (q->count == RING_TASKS) {
        hotbed_count_wait();
        queue_block(q, q->enqueued - RING_TASKS / 2);
    }
    q->enqueued++;
    return &q->ring[(q->head + q->count) % RING_TASKS];
}

static void queue_publish(queue *q, task *t) {
    q->count++;
    hotbed_race_show();
    hotbed_store_release_u64(&t->number, q->enqueued); /* pairs with queue_next() */
    hotbed_race_hide();
    pthread_cond_signal(&q->work);
    hotbed_race_unlock(&q->lock);
}

static void fill_task(task *t, const work *w, const void *args, size_t bytes) {
    t->does = *w;
    if (bytes > 0)
        memcpy(t->args, args, bytes);
}

/* --- recording ------------------------------------------------------------------------------ */

static hotbed_status fail_recording(host_graph *graph) {
    graph->no_memory = true;
    return hotbed_fail(
        HOTBED_ERR_MEMORY, "no memory to record task %" PRIu64 " of a graph", graph->num_tasks + 1);
}

static hotbed_status record_task(host_graph *graph, task **out) {
    if (!hotbed_reserve(
            &graph->tasks, graph->num_tasks, 1, &graph->max_tasks, sizeof *graph->tasks))
        return fail_recording(graph);
    *out = &graph->tasks[graph->num_tasks++];
    return HOTBED_OK;
}

static hotbed_status record_event(host_graph *graph, host_event *event, bool wait) {
    if (!hotbed_reserve(
            &graph->events, graph->num_events, 1, &graph->max_events, sizeof *graph->events))
        return fail_recording(graph);
    hold(&event->references);
    graph->events[graph->num_events++] = (graph_event){event, wait};
    return HOTBED_OK;
}

static void graph_destroy(hotbed_graph *base) {
    host_graph *graph = (host_graph *)base;
    for (size_t i = 0; i < graph->num_events; i++)
        event_drop(graph->events[i].event);
    hotbed_delete(graph->events);
    hotbed_delete(graph->tasks);
    hotbed_delete(graph);
}

/* --- streams -------------------------------------------------------------------------------- */

static hotbed_status probe(void) {
    return HOTBED_OK;
}

/* Not zeroed: calloc() writes to memory that malloc() reuses, 4.6 MiB for each stream. */
static task *new_ring(void) {
    task *ring = malloc(RING_TASKS * sizeof *ring);
    if (ring != NULL)
        hotbed_count_allocation(RING_TASKS * sizeof *ring);
    return ring;
}

static hotbed_status queue_create(bool run_inline, queue **out) {
    queue *q = hotbed_new(sizeof *q);
    task *ring = run_inline ? NULL : new_ring();
    if (q == NULL || (ring == NULL && !run_inline)) {
        hotbed_delete(ring);
        hotbed_delete(q);
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory for a stream of %zu bytes", RING_TASKS * sizeof *ring);
    }
    q->references = 1;
    q->wanted = UINT64_MAX;
    q->ring = ring;
    q->run_inline = run_inline;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    pthread_cond_init(&q->done, NULL);
    const int error = run_inline ? 0 : hotbed_thread_start(&q->thread, queue_main, q);
    if (error != 0) {
        hotbed_delete(ring);
        queue_drop(q);
        return hotbed_fail_os(HOTBED_ERR_MEMORY, error, "a stream's thread cannot be started");
    }
    *out = q;
    return HOTBED_OK;
}

/* Host streams have no priority, and only CUDA streams can be wrapped. */
static hotbed_status stream_create(const hotbed_stream_spec *spec, hotbed_stream **out) {
    if (spec->device != 0)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "device", spec->device, 0, "device %d: the host has device 0 only",
            spec->device);
    host_stream *stream = hotbed_new(sizeof *stream);
    HOTBED_TRY_MEMORY(stream, "a stream");
    hotbed_status status = hotbed_pool_acquire();
    if (status != HOTBED_OK) {
        hotbed_delete(stream);
        return status;
    }
    status = queue_create(spec->run_inline, &stream->queue);
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
    queue *q = stream->queue;
    if (!q->run_inline) {
        hotbed_race_lock(&q->lock);
        q->stop = true;
        pthread_cond_signal(&q->work);
        hotbed_race_unlock(&q->lock);
        pthread_join(q->thread, NULL);
    }
    hotbed_delete(q->ring);
    q->ring = NULL;
    queue_drop(q);
    hotbed_pool_release();
    hotbed_delete(stream);
}

static void *stream_native(const hotbed_stream *base) {
    return NULL;
}

static bool stream_captured(const hotbed_stream *base) {
    return false;
}

static hotbed_status stream_sync(hotbed_stream *base) {
    queue *q = host(base)->queue;
    queue_await(q, q->enqueued);
    return HOTBED_OK;
}

/* Move the event's mark to task `number` of the queue. Called under the queue's lock, hidden from
 * TSan, and before the task can run. Lock order: the queue's lock first, then the event's. */
static void event_mark(host_event *event, queue *q, uint64_t number) {
    hold(&q->references);
    pthread_mutex_lock(&event->lock);
    queue *before = event->marked;
    event->marked = q;
    event->number = number;
    pthread_mutex_unlock(&event->lock);
    queue_drop(before); /* never the last reference to `q`, since its stream holds one */
}

/* event_mark() of all events that the work records. */
static void mark_events(const work *w, queue *q, uint64_t number) {
    if (w->kind == TASK_STAMP)
        event_mark(w->pointer, q, number);
    const host_graph *graph = w->kind == TASK_GRAPH ? w->pointer : NULL;
    for (size_t i = 0; graph != NULL && i < graph->num_events; i++)
        if (!graph->events[i].wait)
            event_mark(graph->events[i].event, q, number);
}

/* Number the next task of an inline stream. The task is not completed before queue_run()
 * returns. */
static uint64_t queue_begin(queue *q, const work *w) {
    hotbed_race_lock(&q->lock);
    uint64_t number = ++q->enqueued;
    mark_events(w, q, number);
    hotbed_race_unlock(&q->lock);
    return number;
}

/* Enqueue, record, or run the work at once. */
static hotbed_status submit(
    hotbed_stream *base, const work *w, const void *args, size_t args_bytes) {
    const host_stream *stream = host(base);
    queue *q = stream->queue;
    if (stream->recording != NULL) {
        task *t = NULL;
        HOTBED_TRY(record_task(stream->recording, &t));
        fill_task(t, w, args, args_bytes);
        return HOTBED_OK;
    }
    if (q->run_inline) {
        if (w->kind == TASK_WAIT && !queue_passed(w->pointer, w->n))
            hotbed_count_wait();
        task own;
        fill_task(&own, w, args, args_bytes);
        queue_run(q, &own, queue_begin(q, w));
        return HOTBED_OK;
    }
    task *t = queue_push(q);
    fill_task(t, w, args, args_bytes);
    mark_events(w, q, q->enqueued);
    queue_publish(q, t);
    return HOTBED_OK;
}

static hotbed_status stream_call(
    hotbed_stream *base, void (*function)(void *argument), void *argument) {
    const work w = {.kind = TASK_CALL, .function = function, .pointer = argument};
    return submit(base, &w, NULL, 0);
}

static hotbed_status queue_launch(
    hotbed_stream *stream, uint64_t n, uint64_t grain, hotbed_host_body body, const void *args,
    size_t args_bytes) {
    const work w = {.kind = TASK_LAUNCH, .n = n, .grain = grain, .body = body};
    HOTBED_TRY(hotbed_fork_check());
    return submit(stream, &w, args, args_bytes);
}

hotbed_status hotbed_host_launch(
    hotbed_stream *stream, uint64_t n, uint64_t grain, hotbed_host_body body, const void *args,
    size_t args_bytes) {
    if (stream->backend != HOTBED_BACKEND_HOST)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "hotbed_host_launch: the stream is of backend %s",
            hotbed_backend_name(stream->backend));
    if (args_bytes > HOTBED_HOST_ARGS_BYTES)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, NULL, args_bytes, HOTBED_HOST_ARGS_BYTES,
            "hotbed_host_launch: %zu bytes of arguments, at most %d", args_bytes,
            (int)HOTBED_HOST_ARGS_BYTES);
    if (n == 0)
        return HOTBED_OK;
    hotbed_count_launch();
    return queue_launch(stream, n, grain, body, args, args_bytes);
}

/* --- events --------------------------------------------------------------------------------- */

static hotbed_status event_create(hotbed_stream *stream, hotbed_event **out) {
    host_event *event = hotbed_new(sizeof *event);
    HOTBED_TRY_MEMORY(event, "an event");
    event->references = 1;
    pthread_mutex_init(&event->lock, NULL);
    *out = &event->base;
    return HOTBED_OK;
}

static void event_drop(host_event *event) {
    if (!drop(&event->references))
        return;
    queue_drop(event->marked);
    pthread_mutex_destroy(&event->lock);
    hotbed_delete(event);
}

static void event_destroy(hotbed_event *base) {
    event_drop((host_event *)base);
}

/* Read the event's mark. *marked is NULL, or holds a reference for the caller. */
static void event_read(host_event *event, queue **marked, uint64_t *number) {
    hotbed_race_lock(&event->lock);
    *marked = event->marked;
    *number = event->number;
    if (*marked != NULL)
        hold(&(*marked)->references);
    hotbed_race_unlock(&event->lock);
}

static hotbed_status event_record(hotbed_event *base, hotbed_stream *stream) {
    host_event *event = (host_event *)base;
    const work w = {.kind = TASK_STAMP, .pointer = event};
    if (host(stream)->recording != NULL)
        HOTBED_TRY(record_event(host(stream)->recording, event, false));
    else
        hold(&event->references);
    return submit(stream, &w, NULL, 0);
}

static hotbed_status stream_wait(hotbed_stream *base, hotbed_event *event_base) {
    host_stream *stream = host(base);
    host_event *event = (host_event *)event_base;
    if (stream->recording != NULL)
        return record_event(stream->recording, event, true);
    queue *marked = NULL;
    uint64_t number = 0;
    event_read(event, &marked, &number);
    if (marked == NULL)
        return HOTBED_OK;
    const work w = {.kind = TASK_WAIT, .n = number, .pointer = marked};
    return submit(base, &w, NULL, 0);
}

static hotbed_status event_query(hotbed_event *base, bool *recorded, bool *done) {
    queue *marked = NULL;
    uint64_t number = 0;
    event_read((host_event *)base, &marked, &number);
    *recorded = marked != NULL;
    *done = marked == NULL || queue_passed(marked, number);
    queue_drop(marked);
    return HOTBED_OK;
}

static hotbed_status event_sync(hotbed_event *base) {
    queue *marked = NULL;
    uint64_t number = 0;
    event_read((host_event *)base, &marked, &number);
    if (marked == NULL)
        return HOTBED_OK;
    queue_await(marked, number);
    queue_drop(marked);
    return HOTBED_OK;
}

static double event_time(hotbed_event *base) {
    host_event *event = (host_event *)base;
    hotbed_race_lock(&event->lock);
    double seconds = event->seconds;
    hotbed_race_unlock(&event->lock);
    return seconds;
}

static hotbed_status event_seconds(hotbed_event *start, hotbed_event *stop, double *seconds) {
    *seconds = event_time(stop) - event_time(start);
    return HOTBED_OK;
}

/* --- memory --------------------------------------------------------------------------------- */

static hotbed_status memory_alloc(int device, hotbed_memory_kind kind, size_t bytes, void **out) {
    *out = hotbed_host_alloc(bytes);
    return HOTBED_OK; /* the caller reports the request if *out is NULL */
}

static void memory_free(int device, hotbed_memory_kind kind, void *data, size_t bytes) {
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
    return queue_launch(stream, bytes, COPY_GRAIN, copy_body, &args, sizeof args);
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
    return queue_launch(stream, bytes, COPY_GRAIN, fill_body, &args, sizeof args);
}

/* --- graphs --------------------------------------------------------------------------------- */

static hotbed_status graph_begin(hotbed_stream *base) {
    host_graph *graph = hotbed_new(sizeof *graph);
    HOTBED_TRY_MEMORY(graph, "a graph");
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

static hotbed_status graph_launch(hotbed_graph *base, hotbed_stream *stream) {
    host_graph *graph = (host_graph *)base;
    for (size_t i = 0; i < graph->num_events; i++) {
        if (graph->events[i].wait)
            HOTBED_TRY(stream_wait(stream, &graph->events[i].event->base));
    }
    const work w = {.kind = TASK_GRAPH, .pointer = graph};
    return submit(stream, &w, NULL, 0);
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
