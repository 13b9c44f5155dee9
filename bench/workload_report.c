/* bench/workload_report.c - results of the workloads as text, with limits and other libraries'
 * results. */
#include "bench/limits.h"
#include "bench/workload.h"
#include "bench/workload_rows.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

hotbed_status workload_machine_read(hotbed_stream *stream, workload_machine *out) {
    time_t now = time(NULL);
    struct tm utc;
    out->backend = hotbed_stream_backend(stream);
    if (!gmtime_r(&now, &utc) || !strftime(out->date, sizeof out->date, "%Y-%m-%dT%H:%M:%SZ", &utc))
        return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "report: no clock");
    return bench_device(stream, out->device, sizeof out->device, out->driver, sizeof out->driver);
}

void workload_command(const char *program, int argc, char **argv, char *out, size_t bytes) {
    size_t at = (size_t)snprintf(out, bytes, "%s", program);
    for (int i = 1; i < argc && at < bytes; i++) {
        if (strcmp(argv[i], "--json") == 0 || strcmp(argv[i], "--commit") == 0) {
            i++;
            continue;
        }
        at += (size_t)snprintf(out + at, bytes - at, " %s", argv[i]);
    }
}

void workload_result_limits(workload_result *result) {
    const workload_shape *shape = &result->shape;
    double keys = (double)workload_keys_a_step(shape);
    double uniques = (double)result->uniques;
    double outputs = (double)workload_bags_a_step(shape) * shape->dim * sizeof(float);
    const workload_row_form form = workload_form_of(result->what, shape);
    double row = (double)hotbed_dtype_row_bytes(form.dtype, form.dim);
    double states = (double)(form.state_bytes[0] + form.state_bytes[1]);
    double index = result->what->kind == HOTBED_TABLE_STATIC ? 0 : 32;
    /* read keys, a 32-byte sector of the index and the row of each unique key; write output rows */
    double forward = 8 * keys + (index + row) * uniques + outputs;
    /* read gradients and the grouping of keys, read and write each unique row and its state */
    double backward = outputs + 4 * keys + 2 * (row + states) * uniques;
    result->limit_forward = forward / result->limits.copy;
    result->limit_backward = backward / result->limits.copy;
    result->limit_eval = result->limits.gather;
    if (!workload_tiered(result->what))
        return;
    const workload_traffic *t = &result->traffic;
    const workload_link *link = &result->link;
    double down = t->read_bytes / link->down;
    double up = t->write_bytes / link->up;
    double both = (t->read_bytes + t->write_bytes) / link->both;
    result->limit_link = fmax(fmax(down, up), both);
}

/* --- text ----------------------------------------------------------------------------------- */

const char *const workload_train_stages[WORKLOAD_TRAIN_STAGES] = {"layout", "dedup",   "find",
                                                                  "place",  "forward", "update"};
const char *const workload_eval_stages[WORKLOAD_EVAL_STAGES] = {"eval_find", "eval_forward"};

const char *workload_variant(const workload *what, hotbed_insertion insertion) {
    if (workload_pooled(what))
        return what->kind == HOTBED_TABLE_STATIC ? " static" : " hash";
    if (what->score == HOTBED_SCORE_LFU)
        return insertion == HOTBED_INSERT_PROBATION ? " lfu probation" : " lfu";
    return insertion == HOTBED_INSERT_PROBATION ? " probation" : "";
}

void workload_result_name(const workload_result *result, char *out, size_t bytes) {
    (void)snprintf(
        out, bytes, "%s%s", result->what->name, workload_variant(result->what, result->insertion));
}

bool workload_comparable(const workload_machine *machine, const workload_result *result) {
    return machine->backend == HOTBED_BACKEND_CUDA && result->scale == 1.0;
}

double workload_limit_train(const workload_result *result) {
    return result->limit_forward + result->limit_backward + result->limit_link;
}

static void print_ratio(FILE *to, const char *name, double train, double eval) {
    (void)fprintf(to, " | %s", name);
    if (train > 0)
        (void)fprintf(to, " %.2fx", train);
    if (eval > 0)
        (void)fprintf(to, train > 0 ? " %.2fx" : " - %.2fx", eval);
}

/* Print ratios to the known figures. */
static void print_figures(
    FILE *to, const char *name, const workload_times *times, const workload_figures *f) {
    if (f->train > 0 || f->eval > 0)
        print_ratio(
            to, name, f->train > 0 ? times->train * 1e3 / f->train : 0,
            f->eval > 0 ? times->eval * 1e3 / f->eval : 0);
}

static void print_line(
    FILE *to, const workload_machine *machine, const workload_result *result, bool graph) {
    const workload *what = result->what;
    const workload_times *times = graph ? &result->graph : &result->eager;
    char name[32];
    workload_result_name(result, name, sizeof name);
    (void)fprintf(
        to, "%s %-4s %s %-5s fwd %.3f bwd %.3f train %.3f eval %.3f ms", name,
        hotbed_optimizer_name(what->optimizer), hotbed_backend_name(machine->backend),
        graph ? "graph" : "eager", times->forward * 1e3, times->backward * 1e3, times->train * 1e3,
        times->eval * 1e3);
    print_ratio(
        to, "limit", times->train / workload_limit_train(result), times->eval / result->limit_eval);
    if (workload_comparable(machine, result)) {
        print_figures(to, "floor", times, &what->floor);
        print_figures(to, "goal", times, &what->goal);
        print_figures(to, "dynamicemb", times, &what->dynamicemb);
        print_figures(to, "TBE", times, &what->tbe);
    }
    (void)fprintf(to, "\n");
}

/* Print the traffic over the link. */
static void print_tiers(FILE *to, const workload_result *result) {
    const workload_traffic *t = &result->traffic;
    (void)fprintf(
        to,
        "   tiers: %llu rows, %llu above; a step fetches %.0f rows, %.1f %% of its keys (exact LRU "
        "%.0f, "
        "exact LFU %.0f, Belady's optimum %.0f) and makes %.0f",
        (unsigned long long)result->keys, (unsigned long long)result->upper_rows, t->fetches,
        100 * t->fetches / (double)result->uniques, t->exact.lru, t->exact.lfu, t->exact.optimum,
        t->exact.created);
    (void)fprintf(
        to,
        ", uses %.0f in place, writes %.0f; reads %.1f MB, writes %.1f MB: "
        "%.1f GB/s of a step; "
        "prefetch %.3f ms; bytes over the link %.3f ms; flush %.0f ms, %.0f "
        "MB\n",
        t->in_place, t->write_backs, t->read_bytes * 1e-6, t->write_bytes * 1e-6,
        (t->read_bytes + t->write_bytes) * 1e-9 / result->eager.train, result->prefetch * 1e3,
        result->limit_link * 1e3, result->flush * 1e3, result->flush_bytes * 1e-6);
}

void workload_print_link(FILE *to, const workload_link *link) {
    (void)fprintf(
        to, "link: copies down %.1f, up %.1f, both %.1f GB/s; rows in %.2f GiB:", link->down * 1e-9,
        link->up * 1e-9, link->both * 1e-9, (double)link->bytes / (double)(1 << 30));
    for (int s = 0; s < WORKLOAD_LINK_SIZES; s++)
        for (int o = 0; o < 2; o++)
            (void)fprintf(
                to, "%s %s bytes%s: gather %.1f, scatter %.1f, gather by threads %.1f GB/s",
                s + o > 0 ? ";" : "", s == 0 ? "512" : "1536", o == 0 ? "" : " sorted",
                link->gather[s][o] * 1e-9, link->scatter[s][o] * 1e-9,
                link->host_gather[s][o] * 1e-9);
    (void)fprintf(to, "\n");
}

static void print_overlap(
    FILE *to, const workload_machine *machine, const workload_result *result) {
    const workload_overlap *o = &result->overlap;
    if (o->train <= 0)
        return;
    (void)fprintf(
        to,
        "   prefetch under the step before: %.3f ms a step with %.3f ms of a dense model in it; "
        "one after the other that is %.3f ms",
        o->train * 1e3, o->dense * 1e3, (result->eager.train + o->dense) * 1e3);
    if (workload_comparable(machine, result) && result->what->goal_overlap > 0)
        (void)fprintf(to, " | goal %.2fx", o->train * 1e3 / result->what->goal_overlap);
    (void)fprintf(
        to, "\n      in such a step: prefetch %.3f; forward %.3f, model %.3f, backward %.3f ms\n",
        o->prefetch * 1e3, o->forward * 1e3, o->dense_beside * 1e3, o->backward * 1e3);
}

static void print_stages(FILE *to, const workload_stages *stages) {
    (void)fprintf(to, "   stages:");
    for (int i = 0; i < WORKLOAD_TRAIN_STAGES; i++)
        (void)fprintf(to, " %s %.3f", workload_train_stages[i], stages->train[i] * 1e3);
    for (int i = 0; i < WORKLOAD_EVAL_STAGES; i++)
        (void)fprintf(to, " %s %.3f", workload_eval_stages[i], stages->eval[i] * 1e3);
    (void)fprintf(to, " ms\n");
}

void workload_print(FILE *to, const workload_machine *machine, const workload_result *result) {
    double host_steps = (double)result->host.steps;
    print_line(to, machine, result, false);
    print_line(to, machine, result, true);
    if (workload_tiered(result->what))
        print_tiers(to, result);
    else
        print_stages(to, &result->stages);
    print_overlap(to, machine, result);
    (void)fprintf(
        to,
        "   limits: copy %.0f GB/s, gather %.3f ms (%.0f GB/s), bytes of fwd %.3f bwd %.3f ms; "
        "unique %llu of %llu, load %.2f; a step: host waits %g, allocations %g; ",
        result->limits.copy * 1e-9, result->limits.gather * 1e3, result->limits.gather_rate * 1e-9,
        result->limit_forward * 1e3, result->limit_backward * 1e3,
        (unsigned long long)result->uniques,
        (unsigned long long)workload_keys_a_step(&result->shape), result->load,
        (double)result->host.waits / host_steps, (double)result->host.allocations / host_steps);
    if (result->checked > 0)
        (void)fprintf(to, "%llu rows right", (unsigned long long)result->checked);
    else
        (void)fprintf(to, "not checked");
    (void)fprintf(to, "; storage made in %.1f s, all in %.1f s\n", result->made, result->took);
}
