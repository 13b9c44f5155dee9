/* bench/exchange_report.c - results of hotbed-exchange as text and as JSON. */
#include "bench/exchange.h"

#include "base/error.h"

#include <errno.h>

static double over(double a, double b) {
    return b > 0 ? a / b : 0;
}

/* The name of the transport's own all-to-all. */
static const char *own_name(const exchange_program *p) {
    return p->transport == HOTBED_TRANSPORT_NCCL  ? "ncclAlltoAll"
           : p->transport == HOTBED_TRANSPORT_MPI ? "MPI_Alltoall"
                                                  : "copies";
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
    if (!p->scaling)
        return;
    (void)fprintf(
        to, "  W1, %llu keys a rank and step, up to %llu distinct\n",
        (unsigned long long)r->step_keys, (unsigned long long)r->step_uniques);
    for (int plan = 0; plan < EXCHANGE_PLANS; plan++)
        print_scaling(to, p, r, plan);
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void write_text(FILE *to, const char *name, const char *text) {
    (void)fprintf(to, "  \"%s\": \"", name);
    for (const char *c = text; *c != '\0'; c++)
        if (*c != '"' && *c != '\\' && (unsigned char)*c >= ' ')
            (void)fputc(*c, to);
    (void)fprintf(to, "\",\n");
}

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

static void write_result(FILE *to, const exchange_result *r, bool scaling, bool last) {
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
    (void)fprintf(to, "\n    }%s\n", last ? "" : ",");
}

hotbed_status exchange_write_json(const exchange_program *p) {
    const workload_machine *m = &p->machine;
    FILE *to = fopen(p->json, "w");
    if (to == NULL)
        return hotbed_fail(HOTBED_ERR_IO, "%s: %s", p->json, strerror(errno));
    (void)fprintf(to, "{\n  \"format\": \"hotbed-exchange 1\",\n");
    write_text(to, "commit", m->commit);
    write_text(to, "date", m->date);
    write_text(to, "device", m->device);
    write_text(to, "driver", m->driver);
    write_text(to, "command", m->command);
    write_text(to, "transport", hotbed_transport_name(p->transport));
    write_text(to, "own", own_name(p));
    (void)fprintf(to, "  \"scale\": %g, \"steps\": %u,\n  \"results\": [\n", p->scale, p->steps);
    for (uint32_t i = 0; i < p->num_results; i++)
        write_result(to, &p->results[i], p->scaling, i + 1 == p->num_results);
    (void)fprintf(to, "  ]\n}\n");
    bool written = !ferror(to);
    if (fclose(to) != 0 || !written)
        return hotbed_fail(HOTBED_ERR_IO, "%s: not written whole", p->json);
    return HOTBED_OK;
}
