/* bench/workload_curve.c - curves: the time of a training step and of an eval while one parameter varies.
 *
 * The tables are hash tables with all their keys, SUM, f32 and row-wise AdaGrad.  Batches vary with the 26
 * tables of W9. The other parameters vary with the 10 tables of W1, of 128 floats a row, and 1,048,570 keys a
 * step in bags of one key. */
#include "bench/workload.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>

enum { POINTS = 10, CHUNK = 1 << 16, WARM_UPS = 3 };

static const double base_load = 0.75;   /* keys over slots */
static const double base_skew = 1.05;   /* exponent of the power law of keys */
static const double full_load = 0.97;   /* of a table with as many keys as its capacity */
static const uint32_t base_tables = 10; /* as in W1, like the next two */
static const double base_rows = 1677721;
static const double base_keys = 1048570; /* of all tables */

typedef enum parameter { BATCH, BAG, DIM, TABLES, LOAD, SKEW } parameter;

static const struct {
    parameter varied;
    const char *name;
    double values[POINTS]; /* ended by -1 */
} curves[] = {
    {BATCH, "batch", {256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, -1}},
    {BAG, "bag", {1, 2, 5, 10, 20, 50, 100, -1}},
    {DIM, "dim", {8, 16, 32, 64, 128, 256, 512, 1024, -1}},
    {TABLES, "tables", {1, 3, 10, 30, 100, 300, 1000, -1}},
    {LOAD, "load", {0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, -1}},
    {SKEW, "skew", {0, 0.4, 0.8, 1.05, 1.2, 1.4, -1}},
};

/* The pooled power law with exponent 0 is the uniform distribution. */
static const workload curve_workload = {
    .name = "curve",
    .optimizer = HOTBED_OPT_ROWWISE_ADAGRAD,
    .mode = HOTBED_MODE_HBM_DIRECT,
    .stream = WORKLOAD_POWER_BAGS,
    .kind = HOTBED_TABLE_HASH,
    .dtype = HOTBED_F32,
    .upper = 1,
};

typedef struct point {
    const char *curve;
    double value;
    workload_result result;
} point;

/* Set *shape and *skew for one point. */
static void shape_of(
    parameter varied, double value, double scale, workload_shape *shape, double *skew) {
    const double load = varied == LOAD ? value : base_load;
    const uint32_t tables = varied == TABLES ? (uint32_t)value : base_tables;
    const uint32_t bag = varied == BAG ? (uint32_t)value : 1;
    *skew = varied == SKEW ? value : base_skew;
    *shape = (workload_shape){.dim = varied == DIM ? (uint32_t)value : 128, .pooled = true};
    if (varied == BATCH) {
        workload_bag_tables(scale, shape);
        shape->samples = (uint32_t)fmax(1, floor(value * scale));
    } else {
        shape->tables = tables;
        shape->samples = (uint32_t)fmax(1, floor(base_keys * scale / tables / bag));
        shape->rows = shape->range =
            (uint64_t)fmax(4, floor(base_rows * scale * base_tables / tables));
        for (uint32_t t = 0; t < tables; t++) {
            shape->before[t + 1] = shape->before[t] + bag;
            shape->table_rows[t] = shape->rows;
        }
    }
    shape->spare = full_load / load - 1;
    /* More rows than a cache holds, and fewer keys than take long to generate. */
    shape->batches = workload_keys_a_step(shape) > 4000000 ? 5 : 20;
    shape->warm = WARM_UPS;
}

/* Make a row for each key of each table. */
static hotbed_status fill(workload_run *run, uint64_t *host, void *device) {
    const workload_shape *shape = &run->input->shape;
    const hotbed_rows initial = {0};
    for (uint32_t t = 0; t < shape->tables; t++) {
        for (uint64_t first = 0; first < shape->table_rows[t]; first += CHUNK) {
            uint64_t left = shape->table_rows[t] - first;
            uint64_t n = left < CHUNK ? left : CHUNK;
            for (uint64_t i = 0; i < n; i++)
                host[i] = first + i;
            HOTBED_TRY(hotbed_copy(device, host, n * sizeof *host, run->stream));
            HOTBED_TRY(hotbed_storage_set_rows(run->storage, t, n, device, &initial, run->stream));
            HOTBED_TRY(hotbed_stream_sync(run->stream));
        }
    }
    return HOTBED_OK;
}

static hotbed_status fill_tables(workload_run *run) {
    uint64_t *host = malloc(CHUNK * sizeof *host);
    hotbed_memory device = {0};
    hotbed_status status =
        host ? hotbed_memory_alloc(
                   run->stream, HOTBED_MEMORY_DEVICE, CHUNK * sizeof *host, NULL, &device)
             : hotbed_fail(HOTBED_ERR_MEMORY, "curve: no memory for keys");
    if (status == HOTBED_OK)
        status = fill(run, host, device.data);
    hotbed_memory_free(&device);
    free(host);
    return status;
}

static hotbed_status time_point(
    workload_run *run, const workload_program *p, workload_oracle *oracle, point *out) {
    workload_result *r = &out->result;
    hotbed_table_stats before = {.size = sizeof before};
    hotbed_table_stats after = {.size = sizeof after};
    HOTBED_TRY(fill_tables(run));
    for (uint32_t s = 0; s < run->input->shape.warm; s++)
        HOTBED_TRY(workload_step(run));
    HOTBED_TRY(workload_stats(run, &before));
    HOTBED_TRY(workload_pass_graph(run, p->steps, &r->graph, &r->host));
    HOTBED_TRY(workload_stats(run, &after));
    r->uniques = (after.uniques - before.uniques) / p->steps;
    if (oracle)
        HOTBED_TRY(workload_oracle_check(oracle, run));
    HOTBED_TRY(workload_pass_eval(run, p->steps, true, &r->graph, &r->least, &r->host));
    if (oracle)
        HOTBED_TRY(workload_check_eval(run, (p->steps - 1) % run->input->shape.batches));
    r->checked = oracle ? workload_oracle_rows(oracle) : 0;
    workload_result_limits(r);
    r->limit_eval = r->limit_forward; /* the same bytes must move */
    return HOTBED_OK;
}

static hotbed_status measure_input(const workload_input *input, workload_program *p, point *out) {
    workload_run run;
    workload_oracle *oracle = NULL;
    HOTBED_TRY(workload_run_create(&curve_workload, input, HOTBED_INSERT_PLAIN, p->backend, &run));
    hotbed_status status = HOTBED_OK;
    if (p->check)
        status = workload_oracle_create(&curve_workload, input, run.stream, &oracle);
    if (status == HOTBED_OK)
        status = time_point(&run, p, oracle, out);
    workload_oracle_destroy(oracle);
    workload_run_destroy(&run);
    return status;
}

static hotbed_status measure_point(parameter varied, workload_program *p, point *out) {
    workload_result *r = &out->result;
    workload_input input = {0};
    double skew = 0;
    shape_of(varied, out->value, p->scale, &r->shape, &skew);
    if (varied == BATCH)
        out->value = r->shape.samples;
    r->what = &curve_workload;
    HOTBED_TRY(workload_input_create(&r->shape, curve_workload.stream, skew, &input));
    hotbed_status status = measure_input(&input, p, out);
    workload_input_destroy(&input);
    return status;
}

/* --- report ----------------------------------------------------------------------------------- */

static void print_point(const point *at) {
    const workload_result *r = &at->result;
    double keys = (double)workload_keys_a_step(&r->shape);
    printf(
        "%s %g: %.0f keys, %llu distinct: train %.3f ms, %.2f ns a key, limit %.2fx; eval %.3f ms, "
        "%.2f ns a "
        "key, limit %.2fx\n",
        at->curve, at->value, keys, (unsigned long long)r->uniques, r->graph.train * 1e3,
        r->graph.train * 1e9 / keys, r->graph.train / workload_limit_train(r), r->graph.eval * 1e3,
        r->graph.eval * 1e9 / keys, r->graph.eval / r->limit_eval);
    (void)fflush(stdout);
}

static void write_point(FILE *to, const point *at, bool first) {
    const workload_result *r = &at->result;
    (void)fprintf(
        to,
        "%s    {\"curve\": \"%s\", \"value\": %g, \"keys_a_step\": %llu, \"unique_a_step\": %llu, "
        "\"dim\": %u, \"rows_checked\": %llu,\n"
        "     \"train_ms\": %.6f, \"limit_train_ms\": %.6f, \"train_to_limit\": %.4f,\n"
        "     \"eval_ms\": %.6f, \"limit_eval_ms\": %.6f, \"eval_to_limit\": %.4f}",
        first ? "" : ",\n", at->curve, at->value,
        (unsigned long long)workload_keys_a_step(&r->shape), (unsigned long long)r->uniques,
        r->shape.dim, (unsigned long long)r->checked, r->graph.train * 1e3,
        workload_limit_train(r) * 1e3, r->graph.train / workload_limit_train(r),
        r->graph.eval * 1e3, r->limit_eval * 1e3, r->graph.eval / r->limit_eval);
}

/* Measure all points; those for which the device lacks memory are left out. */
static hotbed_status measure_all(workload_program *p, double copy, FILE *json) {
    point *at = malloc(sizeof *at);
    bool first = true;
    if (!at)
        return hotbed_fail(HOTBED_ERR_MEMORY, "curve: no memory for a point");
    hotbed_status status = HOTBED_OK;
    for (size_t c = 0; c < sizeof curves / sizeof curves[0]; c++) {
        for (size_t i = 0; curves[c].values[i] >= 0 && status == HOTBED_OK; i++) {
            *at = (point){.curve = curves[c].name, .value = curves[c].values[i]};
            at->result.limits.copy = copy;
            status = measure_point(curves[c].varied, p, at);
            if (status == HOTBED_ERR_MEMORY) {
                printf("%s %g: left out: %s\n", at->curve, at->value, hotbed_last_error());
                status = HOTBED_OK;
                continue;
            }
            if (status != HOTBED_OK)
                break;
            print_point(at);
            if (json)
                write_point(json, at, first);
            first = false;
        }
    }
    free(at);
    return status;
}

hotbed_status workload_curves_all(workload_program *p) {
    hotbed_stream *stream = NULL;
    FILE *json = NULL;
    double copy = 0;
    HOTBED_TRY(hotbed_stream_create(p->backend, 0, &stream));
    hotbed_status status = workload_machine_read(stream, &p->machine);
    if (status == HOTBED_OK)
        status = workload_measure_copy(stream, &copy);
    hotbed_stream_destroy(stream);
    if (status == HOTBED_OK && p->json)
        status = workload_json_open(p->json, "hotbed-curves 1", &p->machine, &json);
    if (status != HOTBED_OK)
        return status;
    printf(
        "%s, driver %s, commit %s; copy %.0f GB/s\n", p->machine.device, p->machine.driver,
        p->machine.commit, copy * 1e-9);
    if (json)
        (void)fprintf(
            json, "  \"scale\": %g, \"limit_copy_gb_per_s\": %.2f,\n  \"results\": [\n", p->scale,
            copy * 1e-9);
    status = measure_all(p, copy, json);
    if (!json)
        return status;
    (void)fprintf(json, "\n  ]\n}\n");
    hotbed_status written = workload_json_close(json, p->json);
    return status != HOTBED_OK ? status : written;
}
