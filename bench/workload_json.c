/* bench/workload_json.c - results of the workloads as JSON. */
#include "bench/workload.h"
#include "bench/workload_rows.h"

#include "base/error.h"

#include <errno.h>
#include <stdlib.h>

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
            to, "%s\"stage_%s_ms\": %.6f,%s", i % 3 == 0 ? "      " : " ", workload_train_stages[i],
            stages->train[i] * 1e3, i % 3 == 2 ? "\n" : "");
    (void)fprintf(
        to, "      \"stage_%s_ms\": %.6f, \"stage_%s_ms\": %.6f,\n", workload_eval_stages[0],
        stages->eval[0] * 1e3, workload_eval_stages[1], stages->eval[1] * 1e3);
}

/* Write the known figures of one kind. */
static void write_figures(FILE *to, const char *name, const workload_figures *f) {
    const struct {
        const char *phase;
        double value;
    } all[] = {
        {"forward", f->forward}, {"backward", f->backward}, {"train", f->train}, {"eval", f->eval}};
    bool any = false;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].value > 0)
            (void)fprintf(
                to, "%s\"%s_%s_ms\": %g,", any ? " " : "      ", name, all[i].phase, all[i].value);
        any = any || all[i].value > 0;
    }
    if (any)
        (void)fprintf(to, "\n");
}

static void write_quotients(
    FILE *to, const workload_result *result, const char *name, const workload_figures *f) {
    if (f->train > 0)
        (void)fprintf(
            to, "      \"train_to_%s\": %.4f,\n", name, result->graph.train * 1e3 / f->train);
    if (f->eval > 0)
        (void)fprintf(
            to, "      \"eval_to_%s\": %.4f,\n", name, result->graph.eval * 1e3 / f->eval);
}

static void write_ratios(FILE *to, const workload_machine *machine, const workload_result *result) {
    const workload *what = result->what;
    const struct {
        const char *name;
        const workload_figures *figures;
    } all[] = {
        {"floor", &what->floor},
        {"goal", &what->goal},
        {"dynamicemb", &what->dynamicemb},
        {"tbe", &what->tbe}};
    (void)fprintf(
        to, "      \"train_to_limit\": %.4f, \"eval_to_limit\": %.4f,\n",
        result->graph.train / workload_limit_train(result),
        result->graph.eval / result->limit_eval);
    for (size_t i = 0; i < sizeof all / sizeof all[0] && workload_comparable(machine, result);
         i++) {
        write_figures(to, all[i].name, all[i].figures);
        write_quotients(to, result, all[i].name, all[i].figures);
    }
    if (workload_comparable(machine, result) && what->goal_overlap > 0)
        (void)fprintf(to, "      \"goal_overlap_ms\": %g,\n", what->goal_overlap);
}

/* Write the results that only workloads with two tiers have. */
static void write_tiers(FILE *to, const workload_result *result) {
    const workload_traffic *t = &result->traffic;
    uint64_t capacity = result->shape.rows * result->shape.tables;
    (void)fprintf(
        to,
        "      \"mode\": \"%s\", \"insertion\": \"%s\", \"capacity\": %llu, "
        "\"upper_rows\": %llu,\n"
        "      \"fetched_a_step\": %.1f, \"lru_rows_a_step\": %.1f, \"lfu_rows_a_step\": %.1f,\n"
        "      \"optimal_rows_a_step\": %.1f, \"created_a_step\": %.1f, "
        "\"in_place_a_step\": %.1f, \"written_a_step\": %.1f,\n"
        "      \"link_read_mb_a_step\": %.3f, \"link_write_mb_a_step\": %.3f,\n"
        "      \"link_gb_per_s\": %.3f, \"limit_link_ms\": %.6f, \"prefetch_ms\": %.6f,\n"
        "      \"flush_ms\": %.3f, \"flush_mb\": %.1f,\n",
        result->what->mode == HOTBED_MODE_CACHE ? "CACHE" : "DEFAULT",
        result->insertion == HOTBED_INSERT_PROBATION ? "probation" : "plain",
        (unsigned long long)capacity, (unsigned long long)result->upper_rows, t->fetches,
        t->exact.lru, t->exact.lfu, t->exact.optimum, t->exact.created, t->in_place, t->write_backs,
        t->read_bytes * 1e-6, t->write_bytes * 1e-6,
        (t->read_bytes + t->write_bytes) * 1e-9 / result->eager.train, result->limit_link * 1e3,
        result->prefetch * 1e3, result->flush * 1e3, result->flush_bytes * 1e-6);
}

static void write_overlap(FILE *to, const workload_result *result) {
    if (result->overlap.train > 0)
        (void)fprintf(
            to,
            "      \"overlap_train_ms\": %.6f, \"overlap_dense_ms\": %.6f,\n"
            "      \"overlap_prefetch_ms\": %.6f, \"overlap_forward_ms\": %.6f,\n"
            "      \"overlap_dense_beside_ms\": %.6f, \"overlap_backward_ms\": %.6f,\n",
            result->overlap.train * 1e3, result->overlap.dense * 1e3,
            result->overlap.prefetch * 1e3, result->overlap.forward * 1e3,
            result->overlap.dense_beside * 1e3, result->overlap.backward * 1e3);
}

static void write_link(FILE *to, const workload_link *link) {
    static const char *const sizes[WORKLOAD_LINK_SIZES] = {"512", "1536"};
    static const char *const orders[2] = {"", "sorted_"};
    (void)fprintf(
        to,
        "  \"link\": {\n    \"footprint_gib\": %.3f, \"down_gb_per_s\": %.2f, "
        "\"up_gb_per_s\": %.2f, \"both_gb_per_s\": %.2f",
        (double)link->bytes / (double)(1 << 30), link->down * 1e-9, link->up * 1e-9,
        link->both * 1e-9);
    for (int s = 0; s < WORKLOAD_LINK_SIZES; s++)
        for (int o = 0; o < 2; o++)
            (void)fprintf(
                to,
                ",\n    \"gather_%s%s_gb_per_s\": %.2f, \"scatter_%s%s_gb_per_s\": %.2f, "
                "\"host_gather_%s%s_gb_per_s\": %.2f",
                orders[o], sizes[s], link->gather[s][o] * 1e-9, orders[o], sizes[s],
                link->scatter[s][o] * 1e-9, orders[o], sizes[s], link->host_gather[s][o] * 1e-9);
    (void)fprintf(to, "\n  },\n");
}

static void write_result(
    FILE *to, const workload_machine *machine, const workload_result *result, bool last) {
    const workload_shape *shape = &result->shape;
    char name[32];
    workload_result_name(result, name, sizeof name);
    const workload_row_form form = workload_form_of(result->what, shape);
    double host_steps = (double)result->host.steps;
    (void)fprintf(
        to,
        "    {\n      \"workload\": \"%s\", \"optimizer\": \"%s\", \"scale\": %g, \"weights\": "
        "\"%s\", "
        "\"states\": \"%s\", \"random\": %s, \"samples\": %u,\n"
        "      \"tables\": %u, \"range\": %llu, \"rows\": %llu, \"dim\": %u, \"keys_a_step\": "
        "%llu, "
        "\"unique_a_step\": %llu,\n"
        "      \"keys\": %llu, \"load\": %.4f, \"batches\": %u, \"steps\": %u,\n",
        name, hotbed_optimizer_name(result->what->optimizer), result->scale,
        hotbed_dtype_name(form.dtype), hotbed_dtype_name(form.state_dtype),
        result->what->random ? "true" : "false", shape->samples, shape->tables,
        (unsigned long long)shape->range, (unsigned long long)shape->rows, shape->dim,
        (unsigned long long)workload_keys_a_step(shape), (unsigned long long)result->uniques,
        (unsigned long long)result->keys, result->load, shape->batches, result->steps);
    write_times(to, "eager", &result->eager);
    write_times(to, "least", &result->least);
    write_times(to, "graph", &result->graph);
    if (workload_tiered(result->what))
        write_tiers(to, result);
    else
        write_stages(to, &result->stages);
    write_overlap(to, result);
    (void)fprintf(
        to,
        "      \"limit_copy_gb_per_s\": %.2f, \"limit_gather_gb_per_s\": %.2f,\n"
        "      \"limit_forward_ms\": %.6f, \"limit_backward_ms\": %.6f, "
        "\"limit_eval_ms\": %.6f,\n",
        result->limits.copy * 1e-9, result->limits.gather_rate * 1e-9, result->limit_forward * 1e3,
        result->limit_backward * 1e3, result->limit_eval * 1e3);
    write_ratios(to, machine, result);
    (void)fprintf(
        to,
        "      \"made_s\": %.2f, \"took_s\": %.2f,\n"
        "      \"host_waits_a_step\": %g, \"allocations_a_step\": %g, \"rows_checked\": %llu\n"
        "    }%s\n",
        result->made, result->took, (double)result->host.waits / host_steps,
        (double)result->host.allocations / host_steps, (unsigned long long)result->checked,
        last ? "" : ",");
}

hotbed_status workload_json_open(
    const char *path, const char *format, const workload_machine *machine, FILE **out) {
    FILE *to = fopen(path, "we");
    if (!to)
        return hotbed_fail(HOTBED_ERR_IO, "%s: %s", path, strerror(errno));
    (void)fprintf(to, "{\n");
    write_text(to, "format", format);
    write_text(to, "commit", machine->commit);
    write_text(to, "date", machine->date);
    write_text(to, "backend", hotbed_backend_name(machine->backend));
    write_text(to, "device", machine->device);
    write_text(to, "driver", machine->driver);
    write_text(to, "command", machine->command);
    *out = to;
    return HOTBED_OK;
}

hotbed_status workload_json_close(FILE *file, const char *path) {
    bool written = !ferror(file);
    if (fclose(file) != 0 || !written)
        return hotbed_fail(HOTBED_ERR_IO, "%s: not written whole", path);
    return HOTBED_OK;
}

hotbed_status workload_write_json(
    const char *path, const workload_machine *machine, const workload_result *results,
    size_t count) {
    FILE *to = NULL;
    HOTBED_TRY(workload_json_open(path, "hotbed-workloads 1", machine, &to));
    const workload_link *link = NULL;
    for (size_t i = 0; i < count; i++)
        if (workload_tiered(results[i].what))
            link = &results[i].link;
    if (link)
        write_link(to, link);
    (void)fprintf(to, "  \"results\": [\n");
    for (size_t i = 0; i < count; i++)
        write_result(to, machine, &results[i], i + 1 == count);
    (void)fprintf(to, "  ]\n}\n");
    return workload_json_close(to, path);
}
