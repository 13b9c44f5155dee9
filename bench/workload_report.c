/* bench/workload_report.c - results of the workloads as lines and as JSON, beside the earlier ones. */
#include "bench/limits.h"
#include "bench/workload.h"

#include "base/error.h"

#include <dirent.h>
#include <errno.h>
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

void workload_result_limits(workload_result *result) {
    const workload_shape *shape = &result->shape;
    double keys = (double)workload_keys_a_step(shape);
    double uniques = (double)result->uniques;
    double row = (double)shape->dim * sizeof(float);
    double states = hotbed_optimizer_states(result->what->optimizer);
    /* keys in, a 32-byte sector of the index and the row of each unique key, output rows out */
    double forward = 8 * keys + (32 + row) * uniques + row * keys;
    /* gradients and their grouping in, each unique row and its state in and out */
    double backward = (row + 4) * keys + 2 * row * (1 + states) * uniques;
    result->limit_forward = forward / result->limits.copy;
    result->limit_backward = backward / result->limits.copy;
}

/* --- earlier results ------------------------------------------------------------------------------ */

static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    if (!file)
        return NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        long bytes = ftell(file);
        rewind(file);
        if (bytes > 0 && bytes < (1 << 20))
            text = calloc(1, (size_t)bytes + 1);
        if (text && fread(text, 1, (size_t)bytes, file) != (size_t)bytes) {
            free(text);
            text = NULL;
        }
    }
    (void)fclose(file);
    return text;
}

/* What follows "name": in the text, which is one that workload_write_json() wrote; NULL: it is not there. */
static const char *value_of(const char *text, const char *name) {
    char quoted[64];
    (void)snprintf(quoted, sizeof quoted, "\"%s\": ", name);
    const char *found = strstr(text, quoted);
    return found ? found + strlen(quoted) : NULL;
}

static bool text_is(const char *text, const char *name, const char *value) {
    const char *found = value_of(text, name);
    size_t n = strlen(value);
    return found && found[0] == '"' && strncmp(found + 1, value, n) == 0 && found[n + 1] == '"';
}

static double number_of(const char *text, const char *name) {
    const char *found = value_of(text, name);
    return found ? strtod(found, NULL) : 0;
}

/* The part of the text that is about one workload. */
static const char *section_of(const char *text, const char *name) {
    char quoted[64];
    (void)snprintf(quoted, sizeof quoted, "\"workload\": \"%s\"", name);
    return strstr(text, quoted);
}

/* Take the file's figures if it is of the same kind and later than `date`. */
static void consider(
    const char *path, const char *name, const workload_machine *machine,
    const workload_result *result, char date[32], workload_previous *out) {
    char *text = read_text(path);
    const char *section = text ? section_of(text, result->what->name) : NULL;
    const char *when = section ? value_of(text, "date") : NULL;
    if (when && text_is(text, "device", machine->device) &&
        text_is(text, "backend", hotbed_backend_name(machine->backend)) &&
        number_of(section, "scale") == result->scale && strncmp(when + 1, date, 20) > 0) {
        (void)snprintf(date, 32, "%.20s", when + 1);
        (void)snprintf(out->file, sizeof out->file, "%s", name);
        out->train = number_of(section, "graph_train_ms");
        out->eval = number_of(section, "graph_eval_ms");
    }
    free(text);
}

void workload_previous_find(
    const char *directory, const workload_machine *machine, const workload_result *result,
    workload_previous *out) {
    char date[32] = "";
    *out = (workload_previous){0};
    DIR *folder = opendir(directory);
    if (!folder)
        return;
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        size_t n = strlen(entry->d_name);
        char path[4096];
        if (n < 5 || strcmp(entry->d_name + n - 5, ".json") != 0)
            continue;
        int length = snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (length > 0 && (size_t)length < sizeof path)
            consider(path, entry->d_name, machine, result, date, out);
    }
    (void)closedir(folder);
}

/* --- lines ---------------------------------------------------------------------------------------- */

static void print_ratio(FILE *to, const char *name, double train, double eval) {
    (void)fprintf(to, " | %s %.2fx %.2fx", name, train, eval);
}

static void print_line(
    FILE *to, const workload_machine *machine, const workload_result *result, bool graph,
    const workload_previous *previous) {
    const workload *what = result->what;
    const workload_times *times = graph ? &result->graph : &result->eager;
    double train = times->train * 1e3;
    double eval = times->eval * 1e3;
    (void)fprintf(
        to, "%s %-4s %s %-5s fwd %.3f bwd %.3f train %.3f eval %.3f ms", what->name,
        hotbed_optimizer_name(what->optimizer), hotbed_backend_name(machine->backend),
        graph ? "graph" : "eager", times->forward * 1e3, times->backward * 1e3, train, eval);
    print_ratio(
        to, "limit", times->train / (result->limit_forward + result->limit_backward),
        times->eval / result->limits.gather);
    if (machine->backend == HOTBED_BACKEND_CUDA && result->scale == 1.0) {
        print_ratio(to, "floor", train / what->floor_train, eval / what->floor_eval);
        print_ratio(to, "dynamicemb", train / what->dynamicemb.train, eval / what->dynamicemb.eval);
        print_ratio(to, "TBE", train / what->tbe.train, eval / what->tbe.eval);
    }
    if (previous->train > 0 && previous->eval > 0 && graph)
        print_ratio(to, "previous", train / previous->train, eval / previous->eval);
    (void)fprintf(to, "\n");
}

/* As in workload_stages. */
static const char *const train_stages[WORKLOAD_TRAIN_STAGES] = {"layout", "dedup",   "find",
                                                                "place",  "forward", "update"};
static const char *const eval_stages[WORKLOAD_EVAL_STAGES] = {"eval_find", "eval_forward"};

static void print_stages(FILE *to, const workload_stages *stages) {
    (void)fprintf(to, "   stages:");
    for (int i = 0; i < WORKLOAD_TRAIN_STAGES; i++)
        (void)fprintf(to, " %s %.3f", train_stages[i], stages->train[i] * 1e3);
    for (int i = 0; i < WORKLOAD_EVAL_STAGES; i++)
        (void)fprintf(to, " %s %.3f", eval_stages[i], stages->eval[i] * 1e3);
    (void)fprintf(to, " ms\n");
}

void workload_print(
    FILE *to, const workload_machine *machine, const workload_result *result,
    const workload_previous *previous) {
    double host_steps = (double)result->host.steps;
    print_line(to, machine, result, false, previous);
    print_line(to, machine, result, true, previous);
    print_stages(to, &result->stages);
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
        (void)fprintf(to, "%llu rows right\n", (unsigned long long)result->checked);
    else
        (void)fprintf(to, "not checked\n");
}

/* --- JSON ----------------------------------------------------------------------------------------- */

static void write_text(FILE *to, const char *name, const char *text) {
    (void)fprintf(to, "  \"%s\": \"", name);
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\')
            (void)fputc('\\', to);
        if ((unsigned char)*c >= ' ')
            (void)fputc(*c, to);
    }
    (void)fprintf(to, "\",\n");
}

static void write_times(FILE *to, const char *mode, const workload_times *times) {
    (void)fprintf(
        to,
        "      \"%s_forward_ms\": %.6f, \"%s_backward_ms\": %.6f,\n"
        "      \"%s_train_ms\": %.6f, \"%s_eval_ms\": %.6f,\n",
        mode, times->forward * 1e3, mode, times->backward * 1e3, mode, times->train * 1e3, mode,
        times->eval * 1e3);
}

static void write_stages(FILE *to, const workload_stages *stages) {
    for (int i = 0; i < WORKLOAD_TRAIN_STAGES; i++)
        (void)fprintf(
            to, "%s\"stage_%s_ms\": %.6f,%s", i % 3 == 0 ? "      " : " ", train_stages[i],
            stages->train[i] * 1e3, i % 3 == 2 ? "\n" : "");
    (void)fprintf(
        to, "      \"stage_%s_ms\": %.6f, \"stage_%s_ms\": %.6f,\n", eval_stages[0],
        stages->eval[0] * 1e3, eval_stages[1], stages->eval[1] * 1e3);
}

static void write_peer(FILE *to, const char *name, const workload_peer *peer) {
    (void)fprintf(
        to,
        "      \"%s_forward_ms\": %g, \"%s_backward_ms\": %g, "
        "\"%s_train_ms\": %g, \"%s_eval_ms\": %g,\n",
        name, peer->forward, name, peer->backward, name, peer->train, name, peer->eval);
}

static void write_ratios(
    FILE *to, const workload_machine *machine, const workload_result *result,
    const workload_previous *previous) {
    const workload *what = result->what;
    double train = result->graph.train * 1e3;
    double eval = result->graph.eval * 1e3;
    (void)fprintf(
        to, "      \"train_to_limit\": %.4f, \"eval_to_limit\": %.4f,\n",
        result->graph.train / (result->limit_forward + result->limit_backward),
        result->graph.eval / result->limits.gather);
    if (machine->backend == HOTBED_BACKEND_CUDA && result->scale == 1.0) {
        write_peer(to, "dynamicemb", &what->dynamicemb);
        write_peer(to, "tbe", &what->tbe);
        (void)fprintf(
            to, "      \"floor_train_ms\": %g, \"floor_eval_ms\": %g,\n", what->floor_train,
            what->floor_eval);
        (void)fprintf(
            to,
            "      \"train_to_floor\": %.4f, \"eval_to_floor\": %.4f,\n"
            "      \"train_to_dynamicemb\": %.4f, \"eval_to_dynamicemb\": %.4f,\n"
            "      \"train_to_tbe\": %.4f, \"eval_to_tbe\": %.4f,\n",
            train / what->floor_train, eval / what->floor_eval, train / what->dynamicemb.train,
            eval / what->dynamicemb.eval, train / what->tbe.train, eval / what->tbe.eval);
    }
    if (previous->train > 0 && previous->eval > 0)
        (void)fprintf(
            to,
            "      \"previous\": \"%s\", \"train_to_previous\": %.4f, "
            "\"eval_to_previous\": %.4f,\n",
            previous->file, train / previous->train, eval / previous->eval);
}

static void write_result(
    FILE *to, const workload_machine *machine, const workload_result *result,
    const workload_previous *previous, bool last) {
    const workload_shape *shape = &result->shape;
    double host_steps = (double)result->host.steps;
    (void)fprintf(
        to,
        "    {\n      \"workload\": \"%s\", \"optimizer\": \"%s\", \"scale\": %g,\n"
        "      \"tables\": %u, \"rows\": %llu, \"dim\": %u, \"keys_a_step\": %llu, "
        "\"unique_a_step\": %llu,\n"
        "      \"load\": %.4f, \"batches\": %u, \"steps\": %u,\n",
        result->what->name, hotbed_optimizer_name(result->what->optimizer), result->scale,
        shape->tables, (unsigned long long)shape->rows, shape->dim,
        (unsigned long long)workload_keys_a_step(shape), (unsigned long long)result->uniques,
        result->load, shape->batches, result->steps);
    write_times(to, "eager", &result->eager);
    write_times(to, "graph", &result->graph);
    write_stages(to, &result->stages);
    (void)fprintf(
        to,
        "      \"limit_copy_gb_per_s\": %.2f, \"limit_gather_gb_per_s\": %.2f,\n"
        "      \"limit_forward_ms\": %.6f, \"limit_backward_ms\": %.6f, "
        "\"limit_eval_ms\": %.6f,\n",
        result->limits.copy * 1e-9, result->limits.gather_rate * 1e-9, result->limit_forward * 1e3,
        result->limit_backward * 1e3, result->limits.gather * 1e3);
    write_ratios(to, machine, result, previous);
    (void)fprintf(
        to,
        "      \"host_waits_a_step\": %g, \"allocations_a_step\": %g, \"rows_checked\": %llu\n"
        "    }%s\n",
        (double)result->host.waits / host_steps, (double)result->host.allocations / host_steps,
        (unsigned long long)result->checked, last ? "" : ",");
}

hotbed_status workload_write_json(
    const char *path, const workload_machine *machine, const workload_result *results,
    const workload_previous *previous, size_t count) {
    FILE *to = fopen(path, "w");
    if (!to)
        return hotbed_fail(HOTBED_ERR_IO, "%s: %s", path, strerror(errno));
    (void)fprintf(to, "{\n  \"format\": \"hotbed-workloads 1\",\n");
    write_text(to, "commit", machine->commit);
    write_text(to, "date", machine->date);
    write_text(to, "backend", hotbed_backend_name(machine->backend));
    write_text(to, "device", machine->device);
    write_text(to, "driver", machine->driver);
    write_text(to, "command", machine->command);
    (void)fprintf(to, "  \"results\": [\n");
    for (size_t i = 0; i < count; i++)
        write_result(to, machine, &results[i], &previous[i], i + 1 == count);
    (void)fprintf(to, "  ]\n}\n");
    bool written = !ferror(to);
    if (fclose(to) != 0 || !written)
        return hotbed_fail(HOTBED_ERR_IO, "%s: not written whole", path);
    return HOTBED_OK;
}
