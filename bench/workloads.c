/* bench/workloads.c - hotbed-workloads: the workloads of docs/performance.md, timed and checked; arguments. */
#include "bench/workload.h"

#include "base/error.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

static const char usage[] =
    "usage: hotbed-workloads [--workload W1,...|all] [--scale X] [--backend host|cuda|both]\n"
    "                        [--steps N] [--insertion plain|probation|both] [--overlap] [--check]\n"
    "                        [--dtype NAME] [--states NAME] [--random] [--track]\n"
    "                        [--json FILE] [--commit TEXT]\n"
    "                        [--digest | --replay N | --curves]\n"
    "  --workload  W1 to W8, bags of one key, odd numbers Adam, even ones SGD: W1, W2 all rows in\n"
    "              device memory; W3, W4 a cache for all used rows; W5, W6 a cache for 0.8 of "
    "them;\n"
    "              W7, W8 a tenth of the rows in device memory, the others in the lower tier.\n"
    "              W9 to W12, W12-256: sums of bags, row-wise AdaGrad, 26 tables, once with "
    "static\n"
    "              and once with hash tables.  W13: a quarter of the keys of W5, fresh "
    "ones\n"
    "              in each step, whose popularity drifts, with the scores STEP and LFU; W13-10:\n"
    "              with a cache of 0.1 (default: all)\n"
    "  --scale     share of the workload's rows and keys, above 0 up to 1 (1 on cuda, 0.1 on "
    "host)\n"
    "  --backend   host or cuda (cuda if the machine has a GPU); both: with --digest\n"
    "  --steps     timed steps of each pass (100 on cuda, 20 on host); with --digest: all steps "
    "(20)\n"
    "  --insertion policy of the caches of W3 to W8 and W13 (plain)\n"
    "  --overlap   also time steps whose prefetch runs beside the previous step\n"
    "  --check     compare with an oracle, bit for bit; status 1 if a bit differs\n"
    "  --dtype     type of the rows of all workloads: f32, f16, bf16, int8, fp8 (f16: W11)\n"
    "  --states    type of the optimizer states of all workloads: f32, bf16 (f32). bf16 "
    "implies\n"
    "              --random\n"
    "  --random    round rows and states at random, not to nearest; the oracle of --check does "
    "not\n"
    "  --track     track changes, as publishers need\n"
    "  --json      write the results to FILE\n"
    "  --commit    commit to write to the results (git describe when CMake ran)\n"
    "  --digest    print digests of all rows; status 1 if they differ between runs with the same "
    "keys\n"
    "              and optimizer: backends (--backend both), modes, cache sizes and policies\n"
    "  --curves    vary batch, bag length, dim, tables, load and skew instead, one at a time\n"
    "  --replay    replay one recorded step N times with changing keys, compare with eager steps\n"
    "Output: times of a step in ms: fwd, bwd, both (train), and eval. \"limit 1.80x 1.20x\" is "
    "the\n"
    "time divided by the least time of the machine, of training and of eval: 1.80x takes 1.8 "
    "times\n"
    "as long. The least time of training is its bytes at the rate of a copy that was timed in the\n"
    "same run, and its bytes over the link; that of eval is a gather of the same rows. floor, "
    "goal,\n"
    "dynamicemb and TBE compare with known times on an H100, at scale 1.\n"
    "Exit status: 0; 1 a run failed or differs; 2 invalid arguments; 77 the machine lacks the "
    "backend.\n";

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

static bool backend(const char *text, workload_program *p) {
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

static bool insertion(const char *text, workload_program *p) {
    bool both = text && strcmp(text, "both") == 0;
    p->insertions[HOTBED_INSERT_PLAIN] = both || (text && strcmp(text, "plain") == 0);
    p->insertions[HOTBED_INSERT_PROBATION] = both || (text && strcmp(text, "probation") == 0);
    return p->insertions[HOTBED_INSERT_PLAIN] || p->insertions[HOTBED_INSERT_PROBATION];
}

static bool text(const char *value, const char **out) {
    *out = value;
    return value != NULL;
}

/* Take one argument, and its value if it has one; returns the number of words taken, 0 for an
 * unknown argument. */
static int take(workload_program *p, const char *name, const char *value) {
    if (strcmp(name, "--check") == 0) {
        p->check = true;
        return 1;
    }
    if (strcmp(name, "--digest") == 0) {
        p->mode = WORKLOAD_DIGEST;
        return 1;
    }
    if (strcmp(name, "--curves") == 0) {
        p->mode = WORKLOAD_CURVES;
        return 1;
    }
    if (strcmp(name, "--overlap") == 0) {
        p->overlap = true;
        return 1;
    }
    if (strcmp(name, "--random") == 0) {
        workload_set_random();
        return 1;
    }
    if (strcmp(name, "--track") == 0) {
        workload_set_tracks();
        return 1;
    }
    bool ok = false;
    if (strcmp(name, "--workload") == 0)
        ok = text(value, &p->chosen);
    else if (strcmp(name, "--scale") == 0)
        ok = number(value, 1e-4, 1, &p->scale);
    else if (strcmp(name, "--insertion") == 0)
        ok = insertion(value, p);
    else if (strcmp(name, "--backend") == 0)
        ok = backend(value, p);
    else if (strcmp(name, "--steps") == 0)
        ok = count(value, &p->steps);
    else if (strcmp(name, "--dtype") == 0)
        ok = workload_set_dtype(value);
    else if (strcmp(name, "--states") == 0)
        ok = workload_set_states(value);
    else if (strcmp(name, "--json") == 0)
        ok = text(value, &p->json);
    else if (strcmp(name, "--commit") == 0)
        ok = text(value, &p->machine.commit);
    else if (strcmp(name, "--replay") == 0) {
        p->mode = WORKLOAD_REPLAY;
        ok = count(value, &p->replays);
    }
    return ok ? 2 : 0;
}

static bool parse(int argc, char **argv, workload_program *p) {
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
        p->steps = p->mode == WORKLOAD_MEASURE && p->backend == HOTBED_BACKEND_CUDA ? 100 : 20;
    if (p->scale == 0)
        p->scale = p->backend == HOTBED_BACKEND_CUDA ? 1 : 0.1;
    if (p->check && workloads[0].random) {
        (void)fputs(
            "hotbed-workloads: --check compares with an oracle that rounds to nearest: leave out "
            "--check, or --random and --states bf16\n",
            stderr);
        return false;
    }
    bool known = false;
    for (size_t w = 0; w < WORKLOADS; w++)
        known = known || workload_chosen(p, &workloads[w]);
    if (!known || (p->backend == 0 && p->mode != WORKLOAD_DIGEST)) {
        (void)fprintf(stderr, "%s", usage);
        return false;
    }
    return true;
}

static hotbed_status run_program(workload_program *p) {
    FILE *json = p->json ? fopen(p->json, "ae")
                         : NULL; /* opened before the run, so that an error is found early */
    if (p->json && !json)
        return hotbed_fail(HOTBED_ERR_IO, "%s: %s", p->json, strerror(errno));
    if (json)
        (void)fclose(json);
    if (p->mode == WORKLOAD_MEASURE)
        return workload_measure_all(p);
    if (p->mode == WORKLOAD_CURVES)
        return workload_curves_all(p);
    return p->mode == WORKLOAD_DIGEST ? workload_digest_all(p) : workload_replay_all(p);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return fputs(usage, stdout) < 0 ? 2 : 0;
    char command[512];
    bool cuda = hotbed_backend_probe(HOTBED_BACKEND_CUDA) == HOTBED_OK;
    workload_program p = {.chosen = "all", .insertions = {[HOTBED_INSERT_PLAIN] = true}};
    p.backend = cuda ? HOTBED_BACKEND_CUDA : HOTBED_BACKEND_HOST;
    p.machine.commit = HOTBED_BENCH_COMMIT;
    p.machine.command = command;
    workload_command("hotbed-workloads", argc, argv, command, sizeof command);
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
