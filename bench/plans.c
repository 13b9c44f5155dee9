/* bench/plans.c - hotbed-plans: how much of exchange and prefetch train pipelines hide behind a dense model.
 *
 * Runs a workload's steps (W5: cache backed by host memory, Adam) through a sharded collection of one rank, beside
 * layers that take as long as the work that runs ahead of them.  One run
 *   - profiles the serial pipeline, derives candidate schedules from the profile, and takes the fastest in training;
 *   - times all plans in turn, in several rounds: medians of a step, and of a step whose exchange and prefetch
 *     shortcuts replay.  The minimum of the latter is the floor: time above the floor is exposed;
 *   - writes the figures as JSON, and pictures of the serial plan and of the plan with prefetch.
 */
#include "bench/plans.h"

#include "base/error.h"
#include "hotbed/profile.h"

#include <math.h>
#include <stdlib.h>

static const char usage[] =
    "usage: hotbed-plans [--workload W5] [--backend host|cuda] [--scale X] [--insertion "
    "plain|probation]\n"
    "                    [--move-sms N] [--dense X] [--rounds N] [--steps N] [--json FILE] "
    "[--pictures PREFIX]\n"
    "  --move-sms  SMs that move rows between tiers (0: as many as saturate the link)\n"
    "  --dense     time of the dense model, as a multiple of exchange and prefetch (1)\n"
    "  --rounds    number of rounds; each round times every plan once (5)\n"
    "  --steps     steps of one timing (as many as the workload has batches)\n"
    "  --pictures  write PREFIX.serial.svg, PREFIX.prefetch.svg, and .trace files for Perfetto\n"
    "Output: \"exposed\" is the time of exchange and prefetch that a plan does not hide under the "
    "dense\n"
    "model, \"hidden\" the share that it hides; \"floor\" is the fastest step in which they are\n"
    "left out. sw-auto / prefetch below 1: the searched plan is faster than the plan prefetch.\n"
    "Exit status: 0; 1 a run failed; 2 invalid arguments; 77 the machine lacks the backend.\n";

typedef struct program {
    const workload *what;
    double scale, dense;
    hotbed_backend backend;
    hotbed_insertion insertion;
    uint32_t rounds, steps, move_sms;
    const char *json, *pictures;
    workload_machine machine;
} program;

static const char legacy_ahead[] = "start_sparse_data_dist wait_sparse_data_dist prefetch";
static const char tasks_ahead[] = "EmbInputDistStart EmbInputDistWait EmbPrefetch";

enum { SERIAL, SPARSE_DIST, PREFETCH, SAME_PRIORITY, ASYNC, SW, AUTO, ENTRIES };

typedef struct figures {
    double wanted, dense, floor; /* seconds */
    hotbed_profile profile;
    hotbed_schedule *schedule;
    double predicted[HOTBED_SCHEDULE_CANDIDATES_MOST], tuned[HOTBED_SCHEDULE_CANDIDATES_MOST];
    plans_entry entries[ENTRIES];
    double medians[ENTRIES][2]; /* of the step, and of the step without exchange and prefetch */
    double *times, *sorted;     /* one allocation for both */
} figures;

/* --- measuring -------------------------------------------------------------------------------- */

static hotbed_status profile_serial(plans_trainer *example, bool schedule, figures *f) {
    enum { ROUNDS = 3, BATCHES_MOST = 128 };
    void *batches[BATCHES_MOST];
    const uint32_t n = example->input.shape.batches;
    hotbed_train *train = NULL;
    hotbed_profile_options options = {.size = sizeof options};
    HOTBED_TRY(plans_make(example, &f->entries[SERIAL], 0, &train));
    options.batches = batches;
    options.num_batches = n < BATCHES_MOST ? n : BATCHES_MOST;
    for (uint32_t i = 0; i < options.num_batches; i++)
        batches[i] = plans_batch(example, i);
    options.rounds = ROUNDS;
    options.iterations = (n + ROUNDS - 1) / ROUNDS;
    options.stream = hotbed_train_stream(train, "default");
    double unused = 0.0;
    hotbed_status status = /* every batch once, which fills the cache */
        plans_time(example, train, 0, n, &unused);
    if (status == HOTBED_OK)
        status = hotbed_profile_run(hotbed_train_pipeline(train), &options, &f->profile);
    if (status == HOTBED_OK && schedule)
        status = hotbed_train_schedule(train, &f->profile, 3, &f->schedule);
    hotbed_train_destroy(train);
    return status;
}

/* Let the pipeline try the candidates and take the fastest. */
static hotbed_status tune(plans_trainer *example, const program *p, figures *f) {
    hotbed_train_options options;
    hotbed_tune_options tune;
    for (uint32_t c = 0; c < hotbed_schedule_candidates(f->schedule); c++) {
        HOTBED_TRY(hotbed_schedule_take(f->schedule, c));
        f->predicted[c] = hotbed_schedule_seconds(f->schedule);
    }
    plans_options(example, &f->entries[SERIAL], 0, &options);
    tune = (hotbed_tune_options){.size = sizeof tune, .iterations = p->steps};
    tune.loader = plans_loader(example);
    example->pulled = 0;
    return hotbed_train_tune(&example->trainer, &options, &tune, f->schedule, f->tuned);
}

static hotbed_status time_entry(
    plans_trainer *example, const program *p, plans_entry *entry, uint32_t round) {
    hotbed_train *train = NULL;
    HOTBED_TRY(plans_make(example, entry, 0, &train));
    hotbed_status status = plans_time(example, train, 6, p->steps, &entry->step[round]);
    if (status == HOTBED_OK && entry->ahead != NULL)
        status = hotbed_pipeline_shortcut(hotbed_train_pipeline(train), entry->ahead);
    if (status == HOTBED_OK && entry->ahead != NULL)
        status = plans_time(example, train, 6, p->steps, &entry->without[round]);
    hotbed_train_destroy(train);
    return status;
}

static void set_entries(const program *p, figures *f) {
    const plans_entry entries[ENTRIES] = {
        [SERIAL] = {.name = "sw-serial", .plan = "sw-serial", .ahead = tasks_ahead},
        [SPARSE_DIST] = {.name = "sparse-dist", .plan = "sparse-dist"},
        [PREFETCH] = {.name = "prefetch", .plan = "prefetch", .ahead = legacy_ahead},
        [SAME_PRIORITY] =
            {.name = "prefetch, one priority",
             .plan = "prefetch",
             .same_priority = true,
             .ahead = legacy_ahead},
        [ASYNC] =
            {.name = "jagged-prefetch-async",
             .plan = "jagged-prefetch-async",
             .ahead = legacy_ahead},
        [SW] = {.name = "sw-pipelined", .plan = "sw-pipelined", .ahead = tasks_ahead},
        [AUTO] = {.name = "sw-auto", .plan = "sw-serial", .ahead = tasks_ahead},
    };
    memcpy(f->entries, entries, sizeof entries);
    f->sorted = f->times + (size_t)2 * ENTRIES * p->rounds;
    for (uint32_t e = 0; e < ENTRIES; e++) {
        f->entries[e].step = f->times + (size_t)2 * e * p->rounds;
        f->entries[e].without = f->entries[e].step + p->rounds;
    }
}

/* Median of rounds; the rounds keep their order, so that plans can be compared round by round. */
static double median(const figures *f, const double *rounds, uint32_t n) {
    memcpy(f->sorted, rounds, n * sizeof *rounds);
    return bench_median(f->sorted, n);
}

static hotbed_status measure(plans_trainer *example, const program *p, figures *f) {
    HOTBED_TRY(profile_serial(example, false, f));
    for (uint32_t t = 0; t < f->profile.num_tasks; t++) /* no task's name is part of another's */
        if (strstr(tasks_ahead, f->profile.tasks[t].name) != NULL)
            f->wanted += f->profile.tasks[t].alone;
    HOTBED_TRY(plans_set_dense(example, p->dense * f->wanted, &f->dense));
    HOTBED_TRY(profile_serial(example, true, f));
    HOTBED_TRY(tune(example, p, f));
    plans_entry *found = &f->entries[AUTO];
    found->steps = hotbed_schedule_steps(f->schedule, &found->num_steps);
    for (uint32_t round = 0; round < p->rounds; round++)
        for (uint32_t e = 0; e < ENTRIES; e++)
            HOTBED_TRY(time_entry(example, p, &f->entries[e], round));
    f->floor = INFINITY;
    for (uint32_t e = 0; e < ENTRIES; e++) {
        f->medians[e][0] = median(f, f->entries[e].step, p->rounds);
        f->medians[e][1] = median(f, f->entries[e].without, p->rounds);
        if (f->entries[e].ahead != NULL && f->medians[e][1] < f->floor)
            f->floor = f->medians[e][1];
    }
    return HOTBED_OK;
}

/* --- pictures --------------------------------------------------------------------------------- */

static hotbed_status draw(
    plans_trainer *example, const program *p, const plans_entry *entry, const char *name) {
    char path[512];
    hotbed_train *train = NULL;
    double unused = 0.0;
    HOTBED_TRY(plans_make(example, entry, 1024, &train));
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    /* Draw steps one whole cycle of batches after the last picture, so that their rows have left
     * the cache. */
    hotbed_status status = plans_time(example, train, example->input.shape.batches, 12, &unused);
    (void)snprintf(path, sizeof path, "%s.%s.svg", p->pictures, name);
    if (status == HOTBED_OK)
        status = hotbed_timeline_write_picture(1, &pipeline, 6, path);
    (void)snprintf(path, sizeof path, "%s.%s.trace", p->pictures, name);
    if (status == HOTBED_OK)
        status = hotbed_timeline_write_trace(1, &pipeline, path);
    hotbed_train_destroy(train);
    return status;
}

/* --- results ---------------------------------------------------------------------------------- */

static double exposed(const figures *f, uint32_t e) {
    return f->medians[e][0] > f->floor ? f->medians[e][0] - f->floor : 0.0;
}

/* The fraction of the serial plan's exposed time that this plan hides. */
static double hidden(const figures *f, uint32_t e) {
    double before = exposed(f, SERIAL);
    return before > 0.0 ? 1.0 - exposed(f, e) / before : 0.0;
}

static void print_steps(FILE *to, const hotbed_schedule *schedule) {
    uint32_t n;
    const hotbed_step *steps = hotbed_schedule_steps(schedule, &n);
    for (uint32_t s = 0; s < n; s++)
        (void)fprintf(to, "%s%s:%u", s == 0 ? "" : " ", steps[s].task, steps[s].stage);
}

static void print(const program *p, const figures *f) {
    char table[4096];
    printf(
        "%s, %s, scale %g, %s: %s\n", p->what->name, hotbed_backend_name(p->backend), p->scale,
        p->insertion == HOTBED_INSERT_PROBATION ? "probation" : "plain", p->machine.device);
    printf(
        "exchange and prefetch %.3f ms in a serial step; dense model %.3f ms\n\n", 1e3 * f->wanted,
        1e3 * f->dense);
    if (hotbed_profile_print(&f->profile, table, sizeof table, NULL) == HOTBED_OK)
        printf("%s\n", table);
    for (uint32_t c = 0; c < hotbed_schedule_candidates(f->schedule); c++)
        printf(
            "candidate %2u: %10.3f ms predicted, %10.3f ms measured\n", c, 1e3 * f->predicted[c],
            1e3 * f->tuned[c]);
    printf("taken: %u, task:stage:\n  ", hotbed_schedule_taken(f->schedule));
    print_steps(stdout, f->schedule);
    printf("\n\n%-24s %10s %12s %10s\n", "plan (medians)", "step ms", "exposed ms", "hidden");
    for (uint32_t e = 0; e < ENTRIES; e++)
        printf(
            "%-24s %10.3f %12.3f %9.1f%%\n", f->entries[e].name, 1e3 * f->medians[e][0],
            1e3 * exposed(f, e), 100.0 * hidden(f, e));
    printf(
        "%-24s %10.3f\nsw-auto / prefetch: %.3f\n", "floor", 1e3 * f->floor,
        f->medians[AUTO][0] / f->medians[PREFETCH][0]);
}

static void write_rounds(FILE *to, const char *name, const double *seconds, uint32_t n) {
    (void)fprintf(to, ", \"%s\": [", name);
    for (uint32_t i = 0; i < n; i++)
        (void)fprintf(to, "%s%.6f", i == 0 ? "" : ", ", 1e3 * seconds[i]);
    (void)fprintf(to, "]");
}

static hotbed_status write_json(const program *p, const figures *f) {
    FILE *to = NULL;
    HOTBED_TRY(workload_json_open(p->json, "hotbed-plans 1", &p->machine, &to));
    (void)fprintf(
        to,
        "  \"workload\": \"%s\", \"scale\": %g, \"insertion\": \"%s\", \"move_sms\": %u, "
        "\"steps\": %u, \"rounds\": %u,\n"
        "  \"ahead_ms\": %.6f, \"dense_ms\": %.6f, \"floor_ms\": %.6f,\n"
        "  \"predicted_ms\": %.6f, \"auto_over_prefetch\": %.4f, \"schedule\": \"",
        p->what->name, p->scale, p->insertion == HOTBED_INSERT_PROBATION ? "probation" : "plain",
        p->move_sms, p->steps, p->rounds, 1e3 * f->wanted, 1e3 * f->dense, 1e3 * f->floor,
        1e3 * hotbed_schedule_seconds(f->schedule), f->medians[AUTO][0] / f->medians[PREFETCH][0]);
    print_steps(to, f->schedule);
    (void)fprintf(to, "\",\n  \"candidates\": [");
    for (uint32_t c = 0; c < hotbed_schedule_candidates(f->schedule); c++)
        (void)fprintf(
            to, "%s{\"predicted_ms\": %.6f, \"measured_ms\": %.6f}", c == 0 ? "" : ", ",
            1e3 * f->predicted[c], 1e3 * f->tuned[c]);
    (void)fprintf(to, "],\n  \"profile\": [\n");
    for (uint32_t t = 0; t < f->profile.num_tasks; t++)
        (void)fprintf(
            to,
            "    {\"task\": \"%s\", \"exposed_ms\": %.6f, \"alone_ms\": %.6f, \"skipped\": %s}%s\n",
            f->profile.tasks[t].name, 1e3 * f->profile.tasks[t].exposed,
            1e3 * f->profile.tasks[t].alone, f->profile.tasks[t].skipped ? "true" : "false",
            t + 1 < f->profile.num_tasks ? "," : "");
    (void)fprintf(to, "  ],\n  \"plans\": [\n");
    for (uint32_t e = 0; e < ENTRIES; e++) {
        (void)fprintf(
            to, "    {\"plan\": \"%s\", \"step_ms\": %.6f, \"exposed_ms\": %.6f, \"hidden\": %.4f",
            f->entries[e].name, 1e3 * f->medians[e][0], 1e3 * exposed(f, e), hidden(f, e));
        write_rounds(to, "step_ms_rounds", f->entries[e].step, p->rounds);
        if (f->entries[e].ahead != NULL)
            write_rounds(to, "without_ms_rounds", f->entries[e].without, p->rounds);
        (void)fprintf(to, "}%s\n", e + 1 < ENTRIES ? "," : "");
    }
    (void)fprintf(to, "  ]\n}\n");
    return workload_json_close(to, p->json);
}

/* --- arguments -------------------------------------------------------------------------------- */

static bool number(const char *text, double least, double most, double *out) {
    char *end = NULL;
    *out = text == NULL ? 0.0 : strtod(text, &end);
    return text != NULL && end != text && *end == '\0' && *out >= least && *out <= most;
}

static bool take(program *p, const char *name, const char *value) {
    double n = 0.0;
    bool ok = value != NULL;
    if (!ok)
        return false;
    if (strcmp(name, "--workload") == 0) {
        p->what = NULL;
        for (size_t w = 0; w < WORKLOADS; w++)
            if (strcmp(workloads[w].name, value) == 0)
                p->what = &workloads[w];
        return p->what != NULL;
    }
    if (strcmp(name, "--backend") == 0) {
        p->backend = strcmp(value, "cuda") == 0 ? HOTBED_BACKEND_CUDA : HOTBED_BACKEND_HOST;
        return strcmp(value, hotbed_backend_name(p->backend)) == 0;
    }
    if (strcmp(name, "--insertion") == 0) {
        p->insertion =
            strcmp(value, "probation") == 0 ? HOTBED_INSERT_PROBATION : HOTBED_INSERT_PLAIN;
        return p->insertion == HOTBED_INSERT_PROBATION || strcmp(value, "plain") == 0;
    }
    if (strcmp(name, "--json") == 0)
        p->json = value;
    else if (strcmp(name, "--pictures") == 0)
        p->pictures = value;
    else if (strcmp(name, "--commit") == 0)
        p->machine.commit = value;
    else if (strcmp(name, "--scale") == 0)
        ok = number(value, 1e-4, 1.0, &p->scale);
    else if (strcmp(name, "--dense") == 0)
        ok = number(value, 0.01, 100.0, &p->dense);
    else if (strcmp(name, "--move-sms") == 0) {
        ok = number(value, 0.0, (double)HOTBED_MOVE_SMS_MOST, &n);
        p->move_sms = (uint32_t)n;
    } else if (strcmp(name, "--rounds") == 0 || strcmp(name, "--steps") == 0) {
        ok = number(value, 1.0, 1000.0, &n);
        *(name[2] == 'r' ? &p->rounds : &p->steps) = (uint32_t)n;
    } else
        ok = false;
    return ok;
}

static hotbed_status run(program *p) {
    plans_trainer example;
    static figures f;
    HOTBED_TRY(plans_open(p->what, p->scale, p->insertion, p->move_sms, p->backend, &example));
    if (p->steps == 0)
        p->steps = example.input.shape.batches;
    f.times = calloc((size_t)(2 * ENTRIES + 1) * p->rounds, sizeof *f.times);
    hotbed_status status = HOTBED_OK;
    if (f.times == NULL)
        status = hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %u rounds", p->rounds);
    if (status == HOTBED_OK)
        status = workload_machine_read(example.stream, &p->machine);
    if (status == HOTBED_OK) {
        set_entries(p, &f);
        status = measure(&example, p, &f);
    }
    if (status == HOTBED_OK)
        print(p, &f);
    if (status == HOTBED_OK && p->json != NULL)
        status = write_json(p, &f);
    if (status == HOTBED_OK && p->pictures != NULL)
        status = draw(&example, p, &f.entries[SERIAL], "serial");
    if (status == HOTBED_OK && p->pictures != NULL)
        status = draw(&example, p, &f.entries[PREFETCH], "prefetch");
    hotbed_schedule_destroy(f.schedule);
    free(f.times);
    plans_close(&example);
    return status;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return fputs(usage, stdout) < 0 ? 2 : 0;
    bool cuda = hotbed_backend_probe(HOTBED_BACKEND_CUDA) == HOTBED_OK;
    program p = {
        .what = &workloads[4],
        .dense = 1.0,
        .rounds = 5,
        .insertion = HOTBED_INSERT_PLAIN,
        .backend = cuda ? HOTBED_BACKEND_CUDA : HOTBED_BACKEND_HOST};
    char command[512];
    p.machine.commit = HOTBED_BENCH_COMMIT;
    p.machine.command = command;
    workload_command("hotbed-plans", argc, argv, command, sizeof command);
    for (int i = 1; i < argc; i += 2)
        if (!take(&p, argv[i], argv[i + 1])) {
            (void)fprintf(stderr, "hotbed-plans: %s\n%s", argv[i], usage);
            return 2;
        }
    if (p.scale == 0.0)
        p.scale = p.backend == HOTBED_BACKEND_CUDA ? 1.0 : 0.02;
    hotbed_status status = hotbed_backend_probe(p.backend);
    if (status == HOTBED_ERR_UNSUPPORTED) {
        (void)fprintf(stderr, "hotbed-plans: skipped: %s\n", hotbed_last_error());
        return 77;
    }
    if (status == HOTBED_OK)
        status = run(&p);
    if (status == HOTBED_OK)
        return 0;
    (void)fprintf(
        stderr, "hotbed-plans: %s: %s\n", hotbed_status_name(status), hotbed_last_error());
    return 1;
}
