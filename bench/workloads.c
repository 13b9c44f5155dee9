/* bench/workloads.c - hotbed-workloads: the workloads of docs/performance.md, timed and checked.
 *
 * The keys of W1 and W2: 10 tables, one feature each, bags of one key, 104,857 keys a table and step, drawn
 * from a power law over the table's 1,677,721 rows; 100 batches replayed in a cycle, after one cycle that
 * warms up.  Every step reads another batch, so that nothing but the tables' own reuse is in the caches.
 */
#include "bench/workload.h"

#include "base/error.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

static const char usage[] =
    "usage: hotbed-workloads [--workload W1|W2|all] [--scale X] [--backend host|cuda|both]\n"
    "                        [--steps N] [--check] [--json FILE] [--previous DIR] [--commit TEXT]\n"
    "                        [--digest | --replay N]\n"
    "  --workload  W1 is Adam, W2 is SGD (all)\n"
    "  --scale     share of the workload's rows and keys, above 0 up to 1 (1 on cuda, 0.1 on "
    "host)\n"
    "  --backend   host or cuda (cuda if there is one); both: with --digest\n"
    "  --steps     timed steps of each pass (100 on cuda, 20 on host); with --digest: steps in all "
    "(20)\n"
    "  --check     compare with an oracle, bit for bit; status 1 when something differs\n"
    "  --json      write the results to FILE\n"
    "  --previous  where earlier results are (bench/results)\n"
    "  --commit    what was built, for the results (git describe when configured)\n"
    "  --digest    print a digest of all rows; --backend both compares the two, status 1 if they "
    "differ\n"
    "  --replay    replay one recorded step N times with changing keys, compare with eager steps\n"
    "Status: 0; 1 something failed or differs; 2 bad arguments; 77 the machine lacks the "
    "backend.\n";

static const workload workloads[] = {
    {"W1", HOTBED_OPT_ADAM, 0.71, 0.20, {0.920, 0.673, 1.601, 0.566}, {0.41, 0.96, 1.37, 0.36}},
    {"W2", HOTBED_OPT_SGD, 0.54, 0.20, {0.983, 0.500, 1.481, 0.568}, {0.38, 0.57, 0.96, 0.35}},
};

enum { WORKLOADS = 2 };

typedef enum program_mode { MODE_MEASURE, MODE_DIGEST, MODE_REPLAY } program_mode;

typedef struct program {
    program_mode mode;
    const char *workload;
    double scale;
    hotbed_backend backend; /* 0: both */
    uint32_t steps;
    uint32_t replays;
    bool check;
    const char *json;
    const char *previous;
    workload_machine machine; /* commit and command are set with the arguments */
} program;

/* --- measure --------------------------------------------------------------------------------------- */

static hotbed_status warm_up(workload_run *run) {
    for (uint32_t b = 0; b < run->input->shape.batches; b++)
        HOTBED_TRY(workload_step(run));
    return hotbed_stream_sync(run->stream);
}

static hotbed_status count_uniques(workload_run *run, uint64_t *out) {
    *out = 0;
    for (uint32_t t = 0; t < run->input->shape.tables; t++) {
        hotbed_table_stats stats;
        HOTBED_TRY(hotbed_storage_stats(run->storage, t, &stats, run->stream));
        *out += stats.uniques;
    }
    return HOTBED_OK;
}

static hotbed_status read_load(workload_run *run, double *load) {
    uint64_t keys = 0;
    uint64_t slots = 0;
    for (uint32_t t = 0; t < run->input->shape.tables; t++) {
        hotbed_table_info info;
        uint64_t n = 0;
        uint64_t pinned = 0;
        HOTBED_TRY(hotbed_storage_table(run->storage, t, &info));
        HOTBED_TRY(hotbed_storage_size(run->storage, t, &n, &pinned, run->stream));
        if (pinned != 0)
            return hotbed_fail(
                HOTBED_ERR_CORRUPT, "table %u: %llu slots are pinned between steps", t,
                (unsigned long long)pinned);
        keys += n;
        slots += info.slots;
    }
    *load = (double)keys / (double)slots;
    return HOTBED_OK;
}

static hotbed_status check_train(workload_oracle *oracle, workload_run *run) {
    return oracle ? workload_oracle_check(oracle, run) : HOTBED_OK;
}

static hotbed_status time_training(
    workload_run *run, uint32_t steps, workload_oracle *oracle, workload_result *result) {
    uint64_t before = 0;
    uint64_t after = 0;
    HOTBED_TRY(count_uniques(run, &before));
    HOTBED_TRY(workload_pass_eager(run, steps, &result->eager, &result->host));
    HOTBED_TRY(count_uniques(run, &after));
    result->uniques = (after - before) / steps;
    HOTBED_TRY(check_train(oracle, run));
    HOTBED_TRY(workload_pass_split(run, steps, &result->graph, &result->host));
    HOTBED_TRY(check_train(oracle, run));
    HOTBED_TRY(workload_pass_graph(run, steps, &result->graph, &result->host));
    HOTBED_TRY(check_train(oracle, run));
    HOTBED_TRY(workload_pass_stages(run, steps, &result->stages, &result->host));
    return check_train(oracle, run);
}

static hotbed_status time_eval(
    workload_run *run, uint32_t steps, bool check, workload_result *result) {
    uint32_t last = (steps - 1) % run->input->shape.batches;
    for (int pass = 0; pass < 3; pass++) {
        if (pass < 2)
            HOTBED_TRY(workload_pass_eval(
                run, steps, pass == 1, pass == 1 ? &result->graph : &result->eager, &result->host));
        else
            HOTBED_TRY(workload_pass_eval_stages(run, steps, &result->stages, &result->host));
        if (check)
            HOTBED_TRY(workload_check_eval(run, last));
    }
    return HOTBED_OK;
}

static hotbed_status measure_with(
    workload_run *run, const program *p, workload_oracle *oracle, workload_result *result) {
    HOTBED_TRY(warm_up(run));
    HOTBED_TRY(time_training(run, p->steps, oracle, result));
    HOTBED_TRY(time_eval(run, p->steps, p->check, result));
    HOTBED_TRY(read_load(run, &result->load));
    HOTBED_TRY(workload_measure_limits(run, &result->limits));
    workload_result_limits(result);
    result->checked = oracle ? workload_oracle_rows(oracle) : 0;
    if (result->host.waits != 0 || result->host.allocations != 0)
        return hotbed_fail(
            HOTBED_ERR_STATE, "%s: %llu host waits and %llu allocations in %llu steps",
            result->what->name, (unsigned long long)result->host.waits,
            (unsigned long long)result->host.allocations, (unsigned long long)result->host.steps);
    return HOTBED_OK;
}

static hotbed_status measure(
    const workload *what, const workload_input *input, program *p, workload_result *result) {
    workload_run run;
    workload_oracle *oracle = NULL;
    *result = (workload_result){
        .what = what, .shape = input->shape, .scale = p->scale, .steps = p->steps};
    HOTBED_TRY(workload_run_create(what, input, p->backend, &run));
    hotbed_status status = workload_machine_read(run.stream, &p->machine);
    if (status == HOTBED_OK && p->check)
        status = workload_oracle_create(what, input, run.stream, &oracle);
    if (status == HOTBED_OK)
        status = measure_with(&run, p, oracle, result);
    workload_oracle_destroy(oracle);
    workload_run_destroy(&run);
    return status;
}

static bool chosen(const program *p, const workload *what) {
    return strcmp(p->workload, "all") == 0 || strcmp(p->workload, what->name) == 0;
}

static hotbed_status measure_all(const workload_input *input, program *p) {
    workload_result results[WORKLOADS];
    workload_previous previous[WORKLOADS];
    size_t count = 0;
    for (size_t w = 0; w < WORKLOADS; w++) {
        if (!chosen(p, &workloads[w]))
            continue;
        HOTBED_TRY(measure(&workloads[w], input, p, &results[count]));
        if (count == 0)
            printf(
                "%s, driver %s, commit %s\n", p->machine.device, p->machine.driver,
                p->machine.commit);
        workload_previous_find(p->previous, &p->machine, &results[count], &previous[count]);
        workload_print(stdout, &p->machine, &results[count], &previous[count]);
        (void)fflush(stdout);
        count++;
    }
    return p->json ? workload_write_json(p->json, &p->machine, results, previous, count)
                   : HOTBED_OK;
}

/* --- digest ---------------------------------------------------------------------------------------- */

static hotbed_status digest(
    const workload *what, const workload_input *input, hotbed_backend backend, uint32_t steps,
    workload_digest *out) {
    workload_run run;
    HOTBED_TRY(workload_run_create(what, input, backend, &run));
    hotbed_status status = HOTBED_OK;
    for (uint32_t s = 0; s < steps && status == HOTBED_OK; s++)
        status = workload_step(&run);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(run.stream);
    if (status == HOTBED_OK)
        status = workload_run_digest(&run, out);
    workload_run_destroy(&run);
    if (status == HOTBED_OK)
        printf(
            "%s %s %s: %u steps, %llu rows, rows %016llx%016llx, output %016llx\n", what->name,
            hotbed_optimizer_name(what->optimizer), hotbed_backend_name(backend), steps,
            (unsigned long long)out->rows, (unsigned long long)out->table[0],
            (unsigned long long)out->table[1], (unsigned long long)out->output);
    return status;
}

static bool same_digest(const workload_digest *a, const workload_digest *b) {
    return a->rows == b->rows && a->table[0] == b->table[0] && a->table[1] == b->table[1] &&
           a->output == b->output;
}

static hotbed_status digest_all(const workload_input *input, const program *p) {
    for (size_t w = 0; w < WORKLOADS; w++) {
        workload_digest digests[2];
        if (!chosen(p, &workloads[w]))
            continue;
        if (p->backend != 0) {
            HOTBED_TRY(digest(&workloads[w], input, p->backend, p->steps, &digests[0]));
            continue;
        }
        HOTBED_TRY(digest(&workloads[w], input, HOTBED_BACKEND_HOST, p->steps, &digests[0]));
        HOTBED_TRY(digest(&workloads[w], input, HOTBED_BACKEND_CUDA, p->steps, &digests[1]));
        if (!same_digest(&digests[0], &digests[1]))
            return hotbed_fail(HOTBED_ERR_CORRUPT, "%s: host and cuda differ", workloads[w].name);
        printf("%s: host and cuda give the same bytes\n", workloads[w].name);
    }
    return HOTBED_OK;
}

/* --- replay ---------------------------------------------------------------------------------------- */

/* One eager step, so that both runs have what a first step makes; then n steps, and their digest. */
static hotbed_status replay_one(
    const workload *what, const workload_input *input, const program *p, bool graph,
    workload_host *host, workload_digest *out) {
    workload_run run;
    workload_times times = {0};
    HOTBED_TRY(workload_run_create(what, input, p->backend, &run));
    hotbed_status status = workload_step(&run);
    if (status == HOTBED_OK)
        status = graph ? workload_pass_graph(&run, p->replays, &times, host)
                       : workload_pass_eager(&run, p->replays, &times, host);
    if (status == HOTBED_OK)
        status = workload_run_digest(&run, out);
    workload_run_destroy(&run);
    return status;
}

static hotbed_status replay_all(const workload_input *input, const program *p) {
    for (size_t w = 0; w < WORKLOADS; w++) {
        const workload *what = &workloads[w];
        workload_digest digests[2];
        workload_host hosts[2] = {{0}, {0}};
        if (!chosen(p, what))
            continue;
        for (int graph = 0; graph < 2; graph++)
            HOTBED_TRY(replay_one(what, input, p, graph, &hosts[graph], &digests[graph]));
        if (!same_digest(&digests[0], &digests[1]))
            return hotbed_fail(
                HOTBED_ERR_CORRUPT, "%s: replayed and eager steps differ", what->name);
        if (hosts[1].waits != 0 || hosts[1].allocations != 0)
            return hotbed_fail(
                HOTBED_ERR_STATE, "%s: %llu host waits and %llu allocations in %llu replays",
                what->name, (unsigned long long)hosts[1].waits,
                (unsigned long long)hosts[1].allocations, (unsigned long long)hosts[1].steps);
        printf(
            "%s %s: one graph of a step, replayed %u times with changing keys, left the same bytes "
            "as "
            "eager steps: %llu rows, %016llx%016llx; host waits 0, allocations 0\n",
            what->name, hotbed_backend_name(p->backend), p->replays,
            (unsigned long long)digests[1].rows, (unsigned long long)digests[1].table[0],
            (unsigned long long)digests[1].table[1]);
    }
    return HOTBED_OK;
}

/* --- the program ----------------------------------------------------------------------------------- */

static bool number(const char *text, double least, double most, double *out) {
    char *end = NULL;
    double value = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end != '\0' || !(value >= least && value <= most))
        return false;
    *out = value;
    return true;
}

static bool count(const char *text, uint32_t *out) {
    double value = 0;
    if (!number(text, 1, 1e6, &value) || value != floor(value))
        return false;
    *out = (uint32_t)value;
    return true;
}

static bool backend(const char *text, program *p) {
    if (text && strcmp(text, "host") == 0)
        p->backend = HOTBED_BACKEND_HOST;
    else if (text && strcmp(text, "cuda") == 0)
        p->backend = HOTBED_BACKEND_CUDA;
    else if (text && strcmp(text, "both") == 0)
        p->backend = 0;
    else
        return false;
    return true;
}

static bool text(const char *value, const char **out) {
    *out = value;
    return value != NULL;
}

/* Take one argument, and its value if it has one: their number, or 0 for what is not known. */
static int take(program *p, const char *name, const char *value) {
    if (strcmp(name, "--check") == 0) {
        p->check = true;
        return 1;
    }
    if (strcmp(name, "--digest") == 0) {
        p->mode = MODE_DIGEST;
        return 1;
    }
    bool ok = false;
    if (strcmp(name, "--workload") == 0)
        ok = text(value, &p->workload);
    else if (strcmp(name, "--scale") == 0)
        ok = number(value, 1e-4, 1, &p->scale);
    else if (strcmp(name, "--backend") == 0)
        ok = backend(value, p);
    else if (strcmp(name, "--steps") == 0)
        ok = count(value, &p->steps);
    else if (strcmp(name, "--json") == 0)
        ok = text(value, &p->json);
    else if (strcmp(name, "--previous") == 0)
        ok = text(value, &p->previous);
    else if (strcmp(name, "--commit") == 0)
        ok = text(value, &p->machine.commit);
    else if (strcmp(name, "--replay") == 0) {
        p->mode = MODE_REPLAY;
        ok = count(value, &p->replays);
    }
    return ok ? 2 : 0;
}

static bool parse(int argc, char **argv, program *p) {
    for (int i = 1; i < argc;) {
        int taken = take(p, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
        if (taken == 0) {
            (void)fprintf(
                stderr, "hotbed-workloads: %s %s\n%s", argv[i], i + 1 < argc ? argv[i + 1] : "",
                usage);
            return false;
        }
        i += taken;
    }
    if (p->steps == 0)
        p->steps = p->mode == MODE_MEASURE && p->backend == HOTBED_BACKEND_CUDA ? 100 : 20;
    if (p->scale == 0)
        p->scale = p->backend == HOTBED_BACKEND_CUDA ? 1 : 0.1;
    bool known = strcmp(p->workload, "all") == 0;
    for (size_t w = 0; w < WORKLOADS; w++)
        known = known || strcmp(p->workload, workloads[w].name) == 0;
    if (!known || (p->backend == 0 && p->mode != MODE_DIGEST)) {
        (void)fprintf(stderr, "%s", usage);
        return false;
    }
    return true;
}

/* The arguments as one text, without the names of files. */
static void join(int argc, char **argv, char *out, size_t bytes) {
    size_t at = (size_t)snprintf(out, bytes, "hotbed-workloads");
    for (int i = 1; i < argc && at < bytes; i++) {
        if (strcmp(argv[i], "--json") == 0 || strcmp(argv[i], "--previous") == 0 ||
            strcmp(argv[i], "--commit") == 0) {
            i++;
            continue;
        }
        at += (size_t)snprintf(out + at, bytes - at, " %s", argv[i]);
    }
}

static hotbed_status run_program(program *p) {
    workload_shape shape = {.tables = 10, .dim = 128, .batches = 100};
    shape.samples = (uint32_t)floor(104857 * p->scale);
    shape.rows = (uint64_t)floor(1677721 * p->scale);
    workload_input input;
    FILE *json = p->json ? fopen(p->json, "a") : NULL; /* better known before than after the run */
    if (p->json && !json)
        return hotbed_fail(HOTBED_ERR_IO, "%s: %s", p->json, strerror(errno));
    if (json)
        (void)fclose(json);
    HOTBED_TRY(workload_input_create(&shape, &input));
    hotbed_status status = HOTBED_OK;
    if (p->mode == MODE_MEASURE)
        status = measure_all(&input, p);
    else if (p->mode == MODE_DIGEST)
        status = digest_all(&input, p);
    else
        status = replay_all(&input, p);
    workload_input_destroy(&input);
    return status;
}

int main(int argc, char **argv) {
    char command[512];
    bool cuda = hotbed_backend_probe(HOTBED_BACKEND_CUDA) == HOTBED_OK;
    program p = {.workload = "all", .previous = HOTBED_BENCH_RESULTS};
    p.backend = cuda ? HOTBED_BACKEND_CUDA : HOTBED_BACKEND_HOST;
    p.machine.commit = HOTBED_BENCH_COMMIT;
    p.machine.command = command;
    join(argc, argv, command, sizeof command);
    if (!parse(argc, argv, &p))
        return 2;
    hotbed_status status = hotbed_backend_probe(p.backend != 0 ? p.backend : HOTBED_BACKEND_CUDA);
    if (status == HOTBED_ERR_UNSUPPORTED) {
        (void)fprintf(stderr, "hotbed-workloads: skipped: %s\n", hotbed_last_error());
        return 77;
    }
    if (status == HOTBED_OK)
        status = run_program(&p);
    if (status != HOTBED_OK) {
        (void)fprintf(
            stderr, "hotbed-workloads: %s: %s\n", hotbed_status_name(status), hotbed_last_error());
        return 1;
    }
    return 0;
}
