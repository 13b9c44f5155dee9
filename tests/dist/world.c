/* tests/dist/world.c - run a test's body on every rank of a communicator, over any transport. */
#include "tests/dist/world.h"

#include "tests/support/harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 64 };

static const char *transport_name(void) {
    const char *name = getenv("HOTBED_TEST_TRANSPORT");
    return name == NULL ? "" : name;
}

/* Whether ranks that are threads, and the single rank, have streams of a GPU. */
static bool on_gpu(void) {
    return strcmp(transport_name(), "gpu") == 0;
}

static uint32_t number(const char *variable) {
    const char *text = getenv(variable);
    return text == NULL ? 0 : (uint32_t)strtoul(text, NULL, 10);
}

const world *world_list(void) {
    static const world host[] = {
        {HOTBED_TRANSPORT_SELF, 1},     {HOTBED_TRANSPORT_THREADS, 1},
        {HOTBED_TRANSPORT_THREADS, 2},  {HOTBED_TRANSPORT_THREADS, 3},
        {HOTBED_TRANSPORT_THREADS, 4},  {HOTBED_TRANSPORT_THREADS, 8},
        {HOTBED_TRANSPORT_THREADS, 33}, {HOTBED_TRANSPORT_SELF, 0},
    };
    static const world gpu[] = {
        {HOTBED_TRANSPORT_SELF, 1},    {HOTBED_TRANSPORT_THREADS, 2}, {HOTBED_TRANSPORT_THREADS, 3},
        {HOTBED_TRANSPORT_THREADS, 4}, {HOTBED_TRANSPORT_THREADS, 8}, {HOTBED_TRANSPORT_SELF, 0},
    };
    static world other[2];
    const char *name = transport_name();
    if (*name == '\0')
        return host;
    if (on_gpu())
        return gpu;
    if (strcmp(name, "nccl-mpi") == 0)
        other[0] = (world){HOTBED_TRANSPORT_NCCL, number("OMPI_COMM_WORLD_SIZE")};
    else if (strcmp(name, "mpi") == 0)
        other[0] = (world){HOTBED_TRANSPORT_MPI, number("OMPI_COMM_WORLD_SIZE")};
    else if (strcmp(name, "nccl") == 0)
        other[0] = (world){HOTBED_TRANSPORT_NCCL, number("HOTBED_TEST_GPUS")};
    else if (strcmp(name, "sockets") == 0)
        other[0] = (world){HOTBED_TRANSPORT_SOCKETS, number("WORLD_SIZE")};
    else
        other[0] = (world){HOTBED_TRANSPORT_NCCL, number("WORLD_SIZE")};
    return other;
}

bool world_is_wanted(const world *where, uint32_t most) {
    if (where->size > most)
        return false;
    bool choice = world_list()[1].size != 0;
    return !hotbed_test_is_small() || !choice || where->size == (most < 2 ? most : 2);
}

bool world_is_a_process(void) {
    const char *name = transport_name();
    return *name != '\0' && !on_gpu() && strcmp(name, "nccl") != 0;
}

bool world_records(const world_rank *me) {
    return hotbed_comm_transport(me->comm) != HOTBED_TRANSPORT_THREADS ||
           hotbed_stream_backend(me->stream) == HOTBED_BACKEND_HOST;
}

const char *world_missing(void) {
    static char reason[160];
    const world *where = world_list();
    if (where->size == 0)
        return "the environment does not say how many ranks there are";
    if (on_gpu() && hotbed_backend_probe(HOTBED_BACKEND_CUDA) != HOTBED_OK)
        return hotbed_last_error();
    if (where->transport == HOTBED_TRANSPORT_SELF)
        return NULL;
    if (hotbed_transport_probe(where->transport) != HOTBED_OK)
        return hotbed_last_error();
    if (where->transport != HOTBED_TRANSPORT_NCCL)
        return NULL;
    hotbed_stream *stream = NULL;
    if (hotbed_stream_create(HOTBED_BACKEND_CUDA, (int)where->size - 1, &stream) == HOTBED_OK) {
        hotbed_stream_destroy(stream);
        return NULL;
    }
    (void)snprintf(reason, sizeof reason, "there are not %u GPUs here", where->size);
    return reason;
}

typedef struct thread {
    pthread_t thread;
    const world *where;
    const hotbed_comm_options *options;
    world_body body;
    pthread_barrier_t *start;
    hotbed_comm *comm;  /* threads: the rank's communicator; nccl: the one that bootstraps it */
    hotbed_comm **keep; /* where world_run_kept() stores it for the next run, or NULL */
    world_rank me;
} thread;

/* The NCCL communicators of world_run_kept(), for the ranks of this process. */
static hotbed_comm *kept[RANKS_MAX];

static void destroy_kept(void) {
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        hotbed_comm_destroy(kept[r]);
}

/* Return the kept NCCL communicator, or create one. */
static hotbed_comm *create_nccl(const thread *t, int device, hotbed_comm *bootstrap) {
    hotbed_comm *comm = t->keep == NULL ? NULL : *t->keep;
    if (comm == NULL)
        CHECK_OK(hotbed_comm_create_nccl(t->options, device, bootstrap, &comm));
    if (t->keep != NULL)
        *t->keep = comm;
    return comm;
}

static void run_rank(thread *t, hotbed_comm *comm, hotbed_backend backend, int device) {
    t->me.comm = comm;
    t->me.rank = hotbed_comm_rank(comm);
    t->me.size = hotbed_comm_size(comm);
    CHECK_OK(hotbed_stream_create(backend, device, &t->me.stream));
    if (t->start != NULL) /* threads start slowly; that must not count against the deadline */
        (void)pthread_barrier_wait(t->start);
    t->body(&t->me);
    hotbed_stream_destroy(t->me.stream);
    if (t->keep == NULL)
        hotbed_comm_destroy(comm);
}

static void *thread_main(void *argument) {
    thread *t = argument;
    if (t->where->transport == HOTBED_TRANSPORT_THREADS) {
        run_rank(t, t->comm, on_gpu() ? HOTBED_BACKEND_CUDA : HOTBED_BACKEND_HOST, 0);
        return NULL;
    }
    int device = (int)hotbed_comm_rank(t->comm);
    run_rank(t, create_nccl(t, device, t->comm), HOTBED_BACKEND_CUDA, device);
    hotbed_comm_destroy(t->comm);
    return NULL;
}

/* Run the body in this process, which is one rank on a GPU. */
static void run_process(thread *t) {
    bool mpi = strcmp(transport_name(), "nccl-mpi") == 0;
    int device = (int)number(mpi ? "OMPI_COMM_WORLD_LOCAL_RANK" : "LOCAL_RANK");
    hotbed_comm *bootstrap = NULL;
    if (mpi)
        CHECK_OK(hotbed_comm_create_mpi(NULL, &bootstrap));
    hotbed_comm *comm = create_nccl(t, device, bootstrap);
    hotbed_comm_destroy(bootstrap); /* only needed to create the first */
    run_rank(t, comm, HOTBED_BACKEND_CUDA, device);
}

static void run_threads(
    const world *where, const hotbed_comm_options *options, bool keep, world_body body,
    void *argument) {
    static thread threads[RANKS_MAX];
    hotbed_comm *comms[RANKS_MAX];
    CHECK(where->size <= RANKS_MAX);
    pthread_barrier_t start;
    CHECK_EQ(pthread_barrier_init(&start, NULL, where->size), 0);
    bool bootstrap = where->transport == HOTBED_TRANSPORT_NCCL;
    CHECK_OK(hotbed_comm_create_threads(bootstrap ? NULL : options, where->size, comms));
    for (uint32_t r = 0; r < where->size; r++) {
        threads[r] = (thread){
            .where = where,
            .options = options,
            .body = body,
            .start = &start,
            .comm = comms[r],
            .keep = keep && bootstrap ? &kept[r] : NULL,
            .me.argument = argument,
        };
        CHECK_EQ(pthread_create(&threads[r].thread, NULL, thread_main, &threads[r]), 0);
    }
    for (uint32_t r = 0; r < where->size; r++)
        CHECK_EQ(pthread_join(threads[r].thread, NULL), 0);
    CHECK_EQ(pthread_barrier_destroy(&start), 0);
}

static void run(
    const world *where, const hotbed_comm_options *options, bool keep, world_body body,
    void *argument) {
    const char *missing = world_missing();
    if (missing != NULL) { /* the results that the test would check do not exist: end the program */
        printf("skipped, %s\n", missing);
        exit(77);
    }
    hotbed_comm_options patient = {.size = sizeof patient};
    if (options != NULL)
        patient = *options;
    if (patient.deadline_ms == 0 && where->transport != HOTBED_TRANSPORT_NCCL)
        patient.deadline_ms = WORLD_DEADLINE_MS;
    options = &patient;
    thread only = {.where = where, .options = options, .body = body, .me.argument = argument};
    hotbed_comm *comm = NULL;
    switch (where->transport) {
    case HOTBED_TRANSPORT_SELF:
        CHECK_OK(hotbed_comm_create_self(options, &comm));
        run_rank(&only, comm, on_gpu() ? HOTBED_BACKEND_CUDA : HOTBED_BACKEND_HOST, 0);
        return;
    case HOTBED_TRANSPORT_MPI:
        CHECK_OK(hotbed_comm_create_mpi(options, &comm));
        run_rank(&only, comm, HOTBED_BACKEND_HOST, 0);
        return;
    case HOTBED_TRANSPORT_SOCKETS:
        CHECK_OK(hotbed_comm_create_sockets(options, NULL, &comm));
        run_rank(&only, comm, HOTBED_BACKEND_HOST, 0);
        return;
    case HOTBED_TRANSPORT_THREADS:
        break;
    case HOTBED_TRANSPORT_NCCL:
        if (strcmp(transport_name(), "nccl") == 0)
            break;
        only.keep = keep ? &kept[0] : NULL;
        run_process(&only);
        return;
    }
    run_threads(where, options, keep, body, argument);
}

void world_run(
    const world *where, const hotbed_comm_options *options, world_body body, void *argument) {
    run(where, options, false, body, argument);
}

void world_run_kept(const world *where, world_body body, void *argument) {
    static bool registered;
    run(where, NULL, true, body, argument);
    if (!registered) /* after CUDA has registered its own handler, which must run later */
        CHECK_EQ(atexit(destroy_kept), 0);
    registered = true;
}

void world_run_all(const hotbed_comm_options *options, world_body body, void *argument) {
    const char *missing = world_missing();
    if (missing != NULL)
        SKIP(missing);
    bool all = !hotbed_test_is_small() || world_list()[1].size == 0;
    for (const world *where = world_list(); where->size > 0; where++)
        if (all || where->size == 1 || where->size == 3)
            world_run(where, options, body, argument);
}

world_bytes world_alloc(const world_rank *me, size_t bytes) {
    world_bytes b = {.bytes = bytes, .host = malloc(bytes + 1)};
    CHECK(b.host != NULL);
    memset(b.host, 0xa5, bytes);
    CHECK_OK(hotbed_memory_alloc(me->stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &b.device));
    world_upload(me, &b);
    return b;
}

/* On the host the rank copies after a sync, which returns at once if the stream has nothing to do; a copy on the stream
 * would make two threads wait for each other. */
static void transfer(const world_rank *me, void *to, const void *from, size_t bytes) {
    const bool host = hotbed_stream_backend(me->stream) == HOTBED_BACKEND_HOST;
    if (!host)
        CHECK_OK(hotbed_copy(to, from, bytes, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
    if (host && bytes > 0)
        memcpy(to, from, bytes);
}

void world_upload(const world_rank *me, const world_bytes *b) {
    transfer(me, b->device.data, b->host, b->bytes);
}

void world_download(const world_rank *me, const world_bytes *b) {
    transfer(me, b->host, b->device.data, b->bytes);
}

void world_free(world_bytes *b) {
    hotbed_memory_free(&b->device);
    free(b->host);
    *b = (world_bytes){0};
}
