/* bench/exchange_report.c - results of hotbed-exchange as text and as JSON. */
#include "bench/exchange.h"

#include "base/error.h"

static double over(double a, double b) {
    return b > 0 ? a / b : 0;
}

/* The name of the transport's own all-to-all. */
static const char *own_name(const exchange_program *p) {
    return p->transport == HOTBED_TRANSPORT_NCCL  ? "ncclAlltoAll"
           : p->transport == HOTBED_TRANSPORT_MPI ? "MPI_Alltoall"
                                                  : "copies";
}

double exchange_link(const exchange_result *r) {
    const exchange_raw *raw = &r->raw_rows;
    const double bytes = raw->bytes * (r->size - 1) / r->size;
    return over(bytes, raw->comm > 0 && raw->comm < raw->own ? raw->comm : raw->own);
}

double exchange_bags_limit(const exchange_result *r, const exchange_bags *bags, int step) {
    const double rows =
        (double)bags->must.best * bags->row_bytes * (step == EXCHANGE_TRAIN ? 2 : 1);
    const double keys = (double)bags->must.best_keys * sizeof(int64_t);
    const double alone = bags->alone.graph[step];
    return r->size == 1 ? alone : alone + over(rows + keys, exchange_link(r));
}

/* --- text ----------------------------------------------------------------------------------- */

static void print_raw(
    FILE *to, const exchange_program *p, const char *what, const exchange_raw *raw) {
    (void)fprintf(
        to, "  %-5s %8.3f MB a rank: %s %.3f ms (%.1f GB/s), communicator %.3f ms (%.2fx)\n", what,
        raw->bytes * 1e-6, own_name(p), raw->own * 1e3, over(raw->bytes, raw->own) * 1e-9,
        raw->comm * 1e3, over(raw->comm, raw->own));
}

static void print_times(
    FILE *to, const exchange_result *r, const char *plan, const char *how,
    const exchange_times *times) {
    const double own[EXCHANGE_PHASES] = {r->raw_keys.own, r->raw_rows.own, r->raw_rows.own};
    if (times->step <= 0)
        return;
    (void)fprintf(to, "  %-10s%-6s", plan, how);
    for (int phase = 0; phase < EXCHANGE_PHASES; phase++)
        (void)fprintf(
            to, "  %s %.3f ms (%.2fx)", exchange_phases[phase], times->phase[phase] * 1e3,
            over(times->phase[phase], own[phase]));
    (void)fprintf(to, "\n");
}

/* The step of the same plan on one rank, if it was measured. */
static double step_alone(const exchange_program *p, int plan, bool graph) {
    for (uint32_t i = 0; i < p->num_results; i++) {
        const exchange_result *r = &p->results[i];
        if (r->size == 1)
            return graph ? r->scaling_graph[plan].step : r->scaling_eager[plan].step;
    }
    return 0;
}

static void print_scaling(FILE *to, const exchange_program *p, const exchange_result *r, int plan) {
    for (int graph = 0; graph < 2; graph++) {
        const exchange_times *t = graph == 1 ? &r->scaling_graph[plan] : &r->scaling_eager[plan];
        if (t->step <= 0)
            continue;
        (void)fprintf(
            to, "  %-10s%-6s  step %.3f ms", exchange_plans[plan], graph == 1 ? "graph" : "eager",
            t->step * 1e3);
        for (int phase = 0; phase < EXCHANGE_PHASES; phase++)
            (void)fprintf(to, ", %s %.3f", exchange_phases[phase], t->phase[phase] * 1e3);
        if (r->size > 1 && step_alone(p, plan, graph == 1) > 0)
            (void)fprintf(
                to, "; one rank's time / this %.3f", step_alone(p, plan, graph == 1) / t->step);
        if (r->single > 0)
            (void)fprintf(to, "; a storage's / this %.3f", r->single / t->step);
        (void)fprintf(to, "\n");
    }
}

static void print_bag_plan(
    FILE *to, const exchange_result *r, const exchange_bags *b, int plan, bool graph) {
    const exchange_bag_times *t = &b->times[plan];
    const double *steps = graph ? t->graph : t->eager;
    const double *stages = graph ? t->graph_stages : t->eager_stages;
    if (steps[EXCHANGE_TRAIN] <= 0)
        return;
    (void)fprintf(to, "    %-10s%-6s", exchange_plans[plan], graph ? "graph" : "eager");
    for (int step = 0; step < EXCHANGE_STEPS; step++)
        (void)fprintf(
            to, " %s %.3f ms (limit / this %.2f, alone / this %.2f)", exchange_steps[step],
            steps[step] * 1e3, over(exchange_bags_limit(r, b, step), steps[step]),
            over(graph ? b->alone.graph[step] : b->alone.eager[step], steps[step]));
    (void)fprintf(to, "\n                    ");
    for (int stage = 0; stage < EXCHANGE_STAGES; stage++)
        (void)fprintf(to, " %s %.3f", exchange_stages[stage], stages[stage] * 1e3);
    (void)fprintf(to, "\n");
}

static void print_bags(FILE *to, const exchange_result *r, const exchange_bags *b) {
    const double mb = b->row_bytes * 1e-6;
    (void)fprintf(
        to,
        "  %s%s, %u samples, %llu keys a rank and step; %llu rows right, digest %016llx%016llx\n",
        b->what->name, workload_variant(b->what, HOTBED_INSERT_PLAIN), b->samples,
        (unsigned long long)b->keys, (unsigned long long)b->checked,
        (unsigned long long)b->digest[0], (unsigned long long)b->digest[1]);
    (void)fprintf(
        to,
        "    MB a rank and direction: sums of all bags %.1f, of bags with a key %.1f, distinct "
        "rows "
        "%.1f, best of each feature %.1f; link %.1f GB/s\n"
        "    alone: train %.3f, eval %.3f ms; limit: train %.3f, eval %.3f ms\n",
        (double)b->must.sums * mb, (double)b->must.bags * mb, (double)b->must.distinct * mb,
        (double)b->must.best * mb, exchange_link(r) * 1e-9, b->alone.graph[EXCHANGE_TRAIN] * 1e3,
        b->alone.graph[EXCHANGE_EVAL] * 1e3, exchange_bags_limit(r, b, EXCHANGE_TRAIN) * 1e3,
        exchange_bags_limit(r, b, EXCHANGE_EVAL) * 1e3);
    for (int plan = 0; plan < EXCHANGE_PLANS; plan++) {
        const double *sent = b->times[plan].sent;
        if (!(b->times[plan].eager[EXCHANGE_TRAIN] > 0))
            continue;
        (void)fprintf(
            to, "    %-10ssends %.3f MB of keys, %.3f of rows or sums, %.3f of gradients a step\n",
            exchange_plans[plan], sent[0] * 1e-6, sent[1] * 1e-6, sent[2] * 1e-6);
        print_bag_plan(to, r, b, plan, false);
        print_bag_plan(to, r, b, plan, true);
    }
}

void exchange_print(FILE *to, const exchange_program *p, const exchange_result *r) {
    (void)fprintf(
        to,
        "%u ranks, %s: %llu keys a rank, messages of %llu, rows of %u bytes; copy %.1f GB/s a "
        "rank\n",
        r->size, hotbed_transport_name(p->transport), (unsigned long long)r->keys,
        (unsigned long long)r->capacity, r->row_bytes, r->copy * 1e-9);
    print_raw(to, p, "keys", &r->raw_keys);
    print_raw(to, p, "rows", &r->raw_rows);
    for (int plan = 0; plan < EXCHANGE_PLANS; plan++) {
        print_times(to, r, exchange_plans[plan], "eager", &r->eager[plan]);
        print_times(to, r, exchange_plans[plan], "graph", &r->graph[plan]);
    }
    if (p->scaling)
        (void)fprintf(
            to, "  W1, %llu keys a rank and step, up to %llu distinct\n",
            (unsigned long long)r->step_keys, (unsigned long long)r->step_uniques);
    for (int plan = 0; plan < EXCHANGE_PLANS && p->scaling; plan++)
        print_scaling(to, p, r, plan);
    for (uint32_t i = 0; i < p->num_bags; i++)
        print_bags(to, r, &r->bags[i]);
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void write_raw(FILE *to, const char *name, const exchange_raw *raw) {
    (void)fprintf(
        to, "      \"%s_bytes\": %.0f, \"%s_own_ms\": %.6f, \"%s_comm_ms\": %.6f,\n", name,
        raw->bytes, name, raw->own * 1e3, name, raw->comm * 1e3);
}

static void write_times(FILE *to, const char *name, const exchange_times *times, bool *first) {
    if (times->step <= 0)
        return;
    (void)fprintf(to, "%s\n        \"%s\": {", *first ? "" : ",", name);
    for (int phase = 0; phase < EXCHANGE_PHASES; phase++)
        (void)fprintf(to, "\"%s_ms\": %.6f, ", exchange_phases[phase], times->phase[phase] * 1e3);
    (void)fprintf(to, "\"step_ms\": %.6f}", times->step * 1e3);
    *first = false;
}

static void write_plans(
    FILE *to, const char *name, const exchange_times *eager, const exchange_times *graph) {
    bool first = true;
    (void)fprintf(to, "      \"%s\": {", name);
    for (int plan = 0; plan < EXCHANGE_PLANS; plan++) {
        char label[32];
        (void)snprintf(label, sizeof label, "%s_eager", exchange_plans[plan]);
        write_times(to, label, &eager[plan], &first);
        (void)snprintf(label, sizeof label, "%s_graph", exchange_plans[plan]);
        write_times(to, label, &graph[plan], &first);
    }
    (void)fprintf(to, "\n      }");
}

static void write_bag_times(FILE *to, const char *name, const double *steps, const double *stages) {
    (void)fprintf(to, ",\n          \"%s\": {", name);
    for (int step = 0; step < EXCHANGE_STEPS; step++)
        (void)fprintf(
            to, "%s\"%s_ms\": %.6f", step == 0 ? "" : ", ", exchange_steps[step],
            steps[step] * 1e3);
    for (int stage = 0; stage < EXCHANGE_STAGES && stages != NULL; stage++)
        (void)fprintf(to, ", \"%s_ms\": %.6f", exchange_stages[stage], stages[stage] * 1e3);
    (void)fprintf(to, "}");
}

static void write_bags(FILE *to, const exchange_result *r, const exchange_bags *b, bool last) {
    (void)fprintf(
        to,
        "        {\"name\": \"%s%s\", \"samples\": %u, \"keys\": %llu, \"row_bytes\": %u,\n"
        "          \"rows_all_bags\": %llu, \"rows_bags_with_keys\": %llu, "
        "\"rows_distinct\": %llu, \"rows_best\": %llu, \"keys_best\": %llu,\n"
        "          \"link_gb_per_s\": %.3f, \"limit_train_ms\": %.6f, \"limit_eval_ms\": %.6f,\n"
        "          \"checked\": %llu, \"rows\": %llu, \"digest\": \"%016llx%016llx\"",
        b->what->name, workload_variant(b->what, HOTBED_INSERT_PLAIN), b->samples,
        (unsigned long long)b->keys, b->row_bytes, (unsigned long long)b->must.sums,
        (unsigned long long)b->must.bags, (unsigned long long)b->must.distinct,
        (unsigned long long)b->must.best, (unsigned long long)b->must.best_keys,
        exchange_link(r) * 1e-9, exchange_bags_limit(r, b, EXCHANGE_TRAIN) * 1e3,
        exchange_bags_limit(r, b, EXCHANGE_EVAL) * 1e3, (unsigned long long)b->checked,
        (unsigned long long)b->rows, (unsigned long long)b->digest[0],
        (unsigned long long)b->digest[1]);
    write_bag_times(to, "alone_eager", b->alone.eager, NULL);
    write_bag_times(to, "alone_graph", b->alone.graph, NULL);
    for (int plan = 0; plan < EXCHANGE_PLANS; plan++) {
        const exchange_bag_times *t = &b->times[plan];
        char label[32];
        (void)fprintf(
            to,
            ",\n          \"%s_sent\": {\"keys_bytes\": %.0f, \"rows_bytes\": %.0f, "
            "\"gradients_bytes\": %.0f}",
            exchange_plans[plan], t->sent[0], t->sent[1], t->sent[2]);
        (void)snprintf(label, sizeof label, "%s_eager", exchange_plans[plan]);
        if (t->eager[EXCHANGE_TRAIN] > 0)
            write_bag_times(to, label, t->eager, t->eager_stages);
        (void)snprintf(label, sizeof label, "%s_graph", exchange_plans[plan]);
        if (t->graph[EXCHANGE_TRAIN] > 0)
            write_bag_times(to, label, t->graph, t->graph_stages);
    }
    (void)fprintf(to, "}%s\n", last ? "" : ",");
}

static void write_result(FILE *to, const exchange_program *p, const exchange_result *r, bool last) {
    const bool scaling = p->scaling;
    (void)fprintf(
        to,
        "    {\n      \"ranks\": %u, \"copy_gb_per_s\": %.3f,\n"
        "      \"keys\": %llu, \"capacity\": %llu, \"row_bytes\": %u,\n",
        r->size, r->copy * 1e-9, (unsigned long long)r->keys, (unsigned long long)r->capacity,
        r->row_bytes);
    write_raw(to, "keys", &r->raw_keys);
    write_raw(to, "rows", &r->raw_rows);
    write_plans(to, "exchange", r->eager, r->graph);
    if (scaling) {
        (void)fprintf(
            to, ",\n      \"step_keys\": %llu, \"step_uniques\": %llu, \"single_ms\": %.6f,\n",
            (unsigned long long)r->step_keys, (unsigned long long)r->step_uniques, r->single * 1e3);
        write_plans(to, "scaling", r->scaling_eager, r->scaling_graph);
    }
    if (p->num_bags > 0)
        (void)fprintf(to, ",\n      \"bags\": [\n");
    for (uint32_t i = 0; i < p->num_bags; i++)
        write_bags(to, r, &r->bags[i], i + 1 == p->num_bags);
    (void)fprintf(to, "%s\n    }%s\n", p->num_bags > 0 ? "      ]" : "", last ? "" : ",");
}

hotbed_status exchange_write_json(const exchange_program *p) {
    FILE *to = NULL;
    HOTBED_TRY(workload_json_open(p->json, "hotbed-exchange 1", &p->machine, &to));
    (void)fprintf(
        to,
        "  \"transport\": \"%s\",\n  \"own\": \"%s\",\n  \"scale\": %g, \"steps\": %u,\n"
        "  \"outputs\": \"%s\", \"forward\": \"%s\", \"backward\": \"%s\",\n"
        "  \"results\": [\n",
        hotbed_transport_name(p->transport), own_name(p), p->scale, p->steps,
        hotbed_dtype_name(p->outputs == 0 ? HOTBED_F32 : p->outputs),
        p->forward == 0 ? "default" : hotbed_dtype_name(p->forward),
        p->backward == 0 ? "default" : hotbed_dtype_name(p->backward));
    for (uint32_t i = 0; i < p->num_results; i++)
        write_result(to, p, &p->results[i], i + 1 == p->num_results);
    (void)fprintf(to, "  ]\n}\n");
    return workload_json_close(to, p->json);
}
