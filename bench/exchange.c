/* bench/exchange.c - hotbed-exchange: exchanges of keys and rows, compared with the transport's own
 * all-to-all; weak scaling; arguments.
 *
 * Each world runs in its own process: a GPU error is permanent in its process, and the next world
 * must still be measured. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "bench/exchange.h"

#include "base/error.h"
#include "storage/types.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77 };

static const char usage[] =
    "usage: hotbed-exchange [--transport threads|mpi|nccl] [--ranks N,...] [--scale X]\n"
    "                       [--steps N] [--workload NAMES] [--plans NAMES] [--dtype NAME]\n"
    "                       [--outputs NAME] [--forward NAME] [--backward NAME]\n"
    "                       [--json FILE] [--commit TEXT]\n"
    "  --transport threads: ranks are threads of the host backend; nccl: a thread and a GPU each;\n"
    "              mpi: host backend, started by mpirun (default: nccl with a GPU, else threads)\n"
    "  --ranks     numbers of ranks (1,2,4); mpi: the size of the job\n"
    "  --scale     share of 131,072 keys for each rank, and of the workloads (1 on GPUs, 0.1 on "
    "the\n"
    "              host)\n"
    "  --steps     timed steps (50)\n"
    "  --workload  weak scaling of W1 and of W9 to W12, W12-256, each rank with batches of its "
    "own:\n"
    "              names, separated by commas, or none (default: all)\n"
    "  --plans     fixed, two_phase, one_sided, separated by commas (default: all); where the\n"
    "              transport has no windows one_sided is left out\n"
    "  --dtype     type of the rows of the workloads: f32, f16, ... (W11: f16, others: f32)\n"
    "  --outputs   type of W1's outputs and gradients: f32, f16 or bf16 (f32). With one that\n"
    "              rounds, only the plans are compared with each other\n"
    "  --forward   type in which rows or sums travel: f32, f16, bf16, int8 or fp8, and\n"
    "  --backward  gradients (default: as they are). With one that rounds only the plans are\n"
    "              compared with each other; limits are those of the default\n"
    "  --json      write the results of the worlds that succeeded to FILE\n"
    "  --commit    commit to write to the results (git describe when CMake ran)\n"
    "Output: (1.20x) is the time divided by the time of the same bytes through the transport's "
    "own\n"
    "all-to-all (ncclAlltoAll, MPI_Alltoall, or copies). \"limit / this 0.80\" is the least time, "
    "the\n"
    "step of one rank plus the rows and keys that must cross the link, divided by the time\n"
    "measured; \"alone / this\" is the step of one rank divided by it: 1 is best in both.\n"
    "Exit status: 0; 1 a world failed or its rows are wrong; 2 invalid arguments; 77 the machine\n"
    "lacks the transport or GPUs.\n";

/* --- ranks ------------------------------------------------------------------------------------ */

static hotbed_status measure(exchange_rank *me) {
    HOTBED_TRY(exchange_measure_keys(me));
    if (me->p->scaling)
        HOTBED_TRY(exchange_measure_scaling(me));
    return exchange_measure_bags(me);
}

/* Allocations and digests between operations may take long, so the deadline is long. */
static hotbed_comm_options patient(void) {
    hotbed_comm_options options = {.size = sizeof options, .deadline_ms = 300000};
    return options;
}

/* Run the measurements of a rank, whose communicator exists. */
static hotbed_status run_rank(exchange_rank *me) {
    exchange_program *p = me->p;
    hotbed_backend backend =
        p->transport == HOTBED_TRANSPORT_NCCL ? HOTBED_BACKEND_CUDA : HOTBED_BACKEND_HOST;
    exchange_result result = {.size = me->size};
    me->result = &result;
    hotbed_status status = hotbed_stream_create(
        backend, backend == HOTBED_BACKEND_CUDA ? (int)me->rank : 0, &me->stream);
    if (status == HOTBED_OK)
        status = measure(me);
    if (status != HOTBED_OK) {
        (void)fprintf(
            stderr, "hotbed-exchange: rank %u of %u: %s\n", me->rank, me->size,
            hotbed_last_error());
        hotbed_comm_abort(me->comm, NULL, NULL); /* the other ranks wait for this rank */
    } else if (me->rank == 0) {
        status = workload_machine_read(me->stream, &p->machine);
        p->results[p->num_results] = result;
    }
    hotbed_stream_destroy(me->stream);
    hotbed_comm_destroy(me->comm);
    return status;
}

typedef struct rank_thread {
    pthread_t thread;
    exchange_rank me;
    hotbed_comm *bootstrap;
    hotbed_status status;
} rank_thread;

static void *thread_main(void *argument) {
    rank_thread *t = argument;
    const hotbed_comm_options options = patient();
    t->me.comm = t->bootstrap;
    if (t->me.p->transport == HOTBED_TRANSPORT_NCCL) {
        t->status = hotbed_comm_create_nccl(&options, (int)t->me.rank, t->bootstrap, &t->me.comm);
        if (t->status != HOTBED_OK)
            (void)fprintf(stderr, "hotbed-exchange: %s\n", hotbed_last_error());
        hotbed_comm_destroy(t->bootstrap);
    }
    if (t->status == HOTBED_OK)
        t->status = run_rank(&t->me);
    return NULL;
}

static hotbed_status run_threads(exchange_program *p, uint32_t size) {
    static rank_thread threads[EXCHANGE_WORLDS];
    hotbed_comm *comms[EXCHANGE_WORLDS];
    hotbed_status first = HOTBED_OK;
    const hotbed_comm_options options = patient();
    HOTBED_TRY(hotbed_comm_create_threads(&options, size, comms));
    for (uint32_t r = 0; r < size; r++) {
        threads[r] = (rank_thread){
            .me = {.p = p, .rank = r, .size = size}, .bootstrap = comms[r], .status = HOTBED_OK};
        if (pthread_create(&threads[r].thread, NULL, thread_main, &threads[r]) != 0)
            abort();
    }
    for (uint32_t r = 0; r < size; r++) {
        (void)pthread_join(threads[r].thread, NULL);
        first = first == HOTBED_OK ? threads[r].status : first;
    }
    return first;
}

static hotbed_status run_mpi(exchange_program *p) {
    exchange_rank me = {.p = p};
    const hotbed_comm_options options = patient();
    HOTBED_TRY(hotbed_comm_create_mpi(&options, &me.comm));
    me.rank = hotbed_comm_rank(me.comm);
    p->reports = me.rank == 0;
    me.size = hotbed_comm_size(me.comm);
    return run_rank(&me);
}

/* Make the inputs of the workloads: those of an earlier process are not in this one. */
static hotbed_status make_inputs(exchange_program *p) {
    p->input = (workload_input){0};
    memset(p->inputs, 0, sizeof p->inputs);
    if (p->scaling)
        HOTBED_TRY(workload_input_for(&workloads[0], p->scale, &p->input));
    for (uint32_t i = 0; i < p->num_bags; i++) {
        uint32_t same = 0;
        while (same < i && !workload_input_serves(p->bags[i], p->scale, &p->inputs[same]))
            same++;
        p->input_of[i] = same;
        if (same < i)
            continue;
        HOTBED_TRY(workload_input_for(p->bags[i], p->scale, &p->inputs[i]));
        workload_round_gradients(&p->inputs[i]);
    }
    return HOTBED_OK;
}

static void destroy_inputs(exchange_program *p) {
    workload_input_destroy(&p->input);
    for (uint32_t i = 0; i < p->num_bags; i++)
        workload_input_destroy(&p->inputs[i]);
}

/* Run the ranks of one world in this process, and return the exit status. Stores the measurements
 * in the next free result. */
static int run_world(exchange_program *p, uint32_t size) {
    hotbed_status status = make_inputs(p);
    if (status == HOTBED_OK)
        status = p->transport == HOTBED_TRANSPORT_MPI ? run_mpi(p) : run_threads(p, size);
    const char *reason = hotbed_last_error(); /* empty if a thread failed, which printed it */
    if (status != HOTBED_OK)
        (void)fprintf(
            stderr, "hotbed-exchange: %s%s%s\n", hotbed_status_name(status),
            *reason == '\0' ? "" : ": ", reason);
    destroy_inputs(p);
    return status == HOTBED_OK ? 0 : 1;
}

/* --- worlds ----------------------------------------------------------------------------------- */

/* Run body() in a child process, and return its exit status. */
static int run_child(
    int (*body)(exchange_program *p, uint32_t size), exchange_program *p, uint32_t size) {
    int status = 0;
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        exit(body(p, size));
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static hotbed_status report(exchange_program *p) {
    p->num_results++;
    if (p->num_results == 1)
        printf("%s, commit %s\n", p->machine.device, p->machine.commit);
    exchange_print(stdout, p, &p->results[p->num_results - 1]);
    (void)fflush(stdout);
    return p->json != NULL ? exchange_write_json(p) : HOTBED_OK;
}

/* Run all worlds and write the results; false if any of it failed. */
static bool run_worlds(exchange_program *p) {
    bool mpi = p->transport == HOTBED_TRANSPORT_MPI, good = true;
    for (uint32_t w = 0; w < (mpi ? 1 : p->num_worlds); w++) {
        uint32_t size = p->worlds[w];
        int ended = mpi ? run_world(p, size) : run_child(run_world, p, size);
        if (ended != 0 && !mpi)
            (void)fprintf(stderr, "hotbed-exchange: %u ranks: status %d\n", size, ended);
        good = good && ended == 0;
        if (ended == 0 && p->reports && report(p) != HOTBED_OK) {
            (void)fprintf(stderr, "hotbed-exchange: %s\n", hotbed_last_error());
            return false;
        }
    }
    return good;
}

/* --- arguments -------------------------------------------------------------------------------- */

static bool read_worlds(const char *text, exchange_program *p) {
    p->num_worlds = 0;
    while (p->num_worlds < EXCHANGE_WORLDS) {
        char *end = NULL;
        unsigned long size = strtoul(text, &end, 10);
        if (end == text || size == 0 || size > EXCHANGE_WORLDS)
            return false;
        p->worlds[p->num_worlds++] = (uint32_t)size;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
        text = end + 1;
    }
    return false;
}

static bool read_transport(const char *text, exchange_program *p) {
    for (int t = HOTBED_TRANSPORT_THREADS; t <= HOTBED_TRANSPORT_NCCL; t++)
        if (strcmp(text, hotbed_transport_name((hotbed_transport)t)) == 0) {
            p->transport = (hotbed_transport)t;
            return true;
        }
    return false;
}

static bool read_workloads(const char *text, exchange_program *p) {
    const workload_program filter = {.chosen = text};
    p->num_bags = 0;
    p->scaling = workload_chosen(&filter, &workloads[0]);
    for (size_t w = 0; w < WORKLOADS; w++)
        if (workload_pooled(&workloads[w]) && workload_chosen(&filter, &workloads[w]))
            p->bags[p->num_bags++] = &workloads[w];
    return p->scaling || p->num_bags > 0 || strcmp(text, "none") == 0;
}

static bool read_plans(const char *text, exchange_program *p) {
    p->plans = 0;
    while (true) {
        const size_t length = strcspn(text, ",");
        int plan = 0;
        while (plan < EXCHANGE_PLANS && (strlen(exchange_plans[plan]) != length ||
                                         strncmp(text, exchange_plans[plan], length) != 0))
            plan++;
        if (plan == EXCHANGE_PLANS)
            return false;
        p->plans |= 1U << plan;
        if (text[length] == '\0')
            return true;
        text += length + 1;
    }
}

static bool take(exchange_program *p, const char *name, const char *value) {
    char *end = NULL;
    if (strcmp(name, "--transport") == 0)
        return read_transport(value, p);
    if (strcmp(name, "--ranks") == 0)
        return read_worlds(value, p);
    if (strcmp(name, "--scale") == 0) {
        p->scale = strtod(value, &end);
        return end != value && *end == '\0' && p->scale >= 1e-3 && p->scale <= 1;
    }
    if (strcmp(name, "--steps") == 0) {
        p->steps = (uint32_t)strtoul(value, &end, 10);
        return end != value && *end == '\0' && p->steps > 0 && p->steps <= 1000;
    }
    if (strcmp(name, "--workload") == 0)
        return read_workloads(value, p);
    if (strcmp(name, "--plans") == 0)
        return read_plans(value, p);
    if (strcmp(name, "--dtype") == 0)
        return workload_set_dtype(value);
    if (strcmp(name, "--outputs") == 0)
        return hotbed_dtype_read(value, &p->outputs) && hotbed_dtype_bytes(p->outputs) > 0;
    if (strcmp(name, "--forward") == 0)
        return hotbed_dtype_read(value, &p->forward);
    if (strcmp(name, "--backward") == 0)
        return hotbed_dtype_read(value, &p->backward);
    if (strcmp(name, "--json") == 0)
        p->json = value;
    else if (strcmp(name, "--commit") == 0)
        p->machine.commit = value;
    else
        return false;
    return true;
}

static bool parse(int argc, char **argv, exchange_program *p) {
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value == NULL || !take(p, name, value)) {
            (void)fprintf(stderr, "hotbed-exchange: %s\n%s", name, usage);
            return false;
        }
    }
    return true;
}

/* The reason why the worlds cannot run on this machine; NULL: they can. */
static const char *missing(const exchange_program *p) {
    static char text[64];
    if (hotbed_transport_probe(p->transport) != HOTBED_OK)
        return hotbed_last_error();
    for (uint32_t w = 0; w < p->num_worlds && p->transport == HOTBED_TRANSPORT_NCCL; w++) {
        hotbed_stream *stream = NULL;
        if (hotbed_stream_create(HOTBED_BACKEND_CUDA, (int)p->worlds[w] - 1, &stream) !=
            HOTBED_OK) {
            (void)snprintf(text, sizeof text, "there are not %u GPUs here", p->worlds[w]);
            return text;
        }
        hotbed_stream_destroy(stream);
    }
    return NULL;
}

/* Choose defaults for missing options. Returns 0, or SKIPPED if the worlds cannot run on this machine. */
static int settle(exchange_program *p, uint32_t size) {
    if (p->transport == 0)
        p->transport = hotbed_transport_probe(HOTBED_TRANSPORT_NCCL) == HOTBED_OK
                           ? HOTBED_TRANSPORT_NCCL
                           : HOTBED_TRANSPORT_THREADS;
    if (p->scale == 0)
        p->scale = p->transport == HOTBED_TRANSPORT_NCCL ? 1 : 0.1;
    const char *reason = missing(p);
    if (reason != NULL)
        (void)fprintf(stderr, "hotbed-exchange: skipped: %s\n", reason);
    return reason == NULL ? 0 : SKIPPED;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return fputs(usage, stdout) < 0 ? 2 : 0;
    static char command[512];
    exchange_program *p =
        mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return 1;
    *p = (exchange_program){
        .worlds = {1, 2, 4},
        .num_worlds = 3,
        .steps = 50,
        .reports = true,
        .plans = (1U << EXCHANGE_PLANS) - 1};
    (void)read_workloads("all", p);
    p->machine.commit = HOTBED_BENCH_COMMIT;
    p->machine.command = command;
    workload_command("hotbed-exchange", argc, argv, command, sizeof command);
    if (!parse(argc, argv, p))
        return 2;
    /* CUDA must not be initialized before fork(), because a child could not use it. MPI's ranks are
     * processes of the job. */
    int settled = p->transport == HOTBED_TRANSPORT_MPI ? settle(p, 0) : run_child(settle, p, 0);
    if (settled != 0)
        return settled;
    return run_worlds(p) ? 0 : 1;
}
