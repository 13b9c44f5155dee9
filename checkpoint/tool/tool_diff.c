/* checkpoint/tool/tool_diff.c - hotbed-ckpt diff: how a load of one checkpoint differs from a load of
 * another. */
#include "checkpoint/tool/tool.h"
#include "checkpoint/verify.h"

#include "base/error.h"
#include "base/stream.h"
#include "storage/types.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct differ {
    const tool_options *options;
    hotbed_chain a, b;
    bool same;
    bool any;         /* an element of the JSON array was printed */
    uint32_t tables;  /* of both, together */
    uint32_t differs; /* of these */
} differ;

/* Start the next element of the JSON array. */
static void begin_item(differ *d) {
    if (d->options->json)
        printf("%s{", d->any ? ",\n " : "[");
    d->any = true;
}

/* --- tables ------------------------------------------------------------------------------------------------ */

static bool is_same(const hotbed_difference *d) {
    return d->added == 0 && d->removed == 0 && d->changed == 0;
}

/* Return which of the two has times, or NULL if both or neither have them. */
static const char *times_only_in(const hotbed_manifest_table *x, const hotbed_manifest_table *y) {
    return x->times == y->times ? NULL : x->times ? "a" : "b";
}

static void print_json(
    const char *table, const hotbed_difference *rows, const hotbed_difference *counts,
    const char *times) {
    printf(
        "\"table\": \"%s\", \"added\": %" PRIu64 ", \"removed\": %" PRIu64 ", \"changed\": %" PRIu64
        ", \"weights_changed\": %" PRIu64 ", \"states_changed\": %" PRIu64
        ", \"scores_changed\": %" PRIu64 ", \"largest_difference\": %.9g, \"not_finite\": %" PRIu64
        ", \"counts_added\": %" PRIu64 ", \"counts_removed\": %" PRIu64
        ", \"counts_changed\": %" PRIu64 ", \"times_only_in\": ",
        table, rows->added, rows->removed, rows->changed, rows->weights, rows->states, rows->scores,
        rows->largest, rows->not_finite, counts->added, counts->removed, counts->changed);
    printf(times == NULL ? "null}" : "\"%s\"}", times);
}

static void print_text(
    const char *table, const hotbed_difference *rows, const hotbed_difference *counts,
    const char *times) {
    printf(
        "table %-24s added %-10" PRIu64 " removed %-10" PRIu64 " changed %" PRIu64
        ": weights of %" PRIu64 ", states of %" PRIu64 ", scores of %" PRIu64
        "; largest difference of weights %.9g\n",
        table, rows->added, rows->removed, rows->changed, rows->weights, rows->states, rows->scores,
        rows->largest);
    if (rows->not_finite > 0)
        printf(
            "table %-24s NaN or infinite in a or b: %" PRIu64 " elements\n", table,
            rows->not_finite);
    if (!is_same(counts))
        printf(
            "table %-24s admission counts: added %" PRIu64 " removed %" PRIu64 " changed %" PRIu64
            "\n",
            table, counts->added, counts->removed, counts->changed);
    if (times != NULL)
        printf("table %-24s has times in %s only\n", table, times);
}

static hotbed_status diff_table(differ *d, uint32_t table, uint32_t other) {
    const hotbed_manifest_table *x = &hotbed_chain_last(&d->a)->tables[table];
    const hotbed_manifest_table *y = &hotbed_chain_last(&d->b)->tables[other];
    const hotbed_progress *progress = &d->options->progress;
    hotbed_difference rows, counts = {.added = 0};
    HOTBED_TRY(hotbed_checkpoint_diff(
        &d->a, table, &d->b, other, HOTBED_CHAIN_ROWS, d->options->ignore_scores, progress, &rows));
    if (x->kind == HOTBED_TABLE_HASH)
        HOTBED_TRY(hotbed_checkpoint_diff(
            &d->a, table, &d->b, other, HOTBED_CHAIN_COUNTED, false, progress, &counts));
    const char *times = d->options->ignore_scores ? NULL : times_only_in(x, y);
    const bool same = is_same(&rows) && is_same(&counts) && times == NULL;
    d->same = d->same && same;
    d->tables++;
    d->differs += same ? 0 : 1;
    begin_item(d);
    if (d->options->json)
        print_json(x->name, &rows, &counts, times);
    else if (!same)
        print_text(x->name, &rows, &counts, times);
    return HOTBED_OK;
}

static void print_alone(differ *d, const char *table, const char *where) {
    d->same = false;
    d->tables++;
    d->differs++;
    begin_item(d);
    if (d->options->json)
        printf("\"table\": \"%s\", \"only_in\": \"%s\"}", table, where);
    else
        printf("table %-24s is in %s only\n", table, where);
}

static hotbed_status diff_tables(differ *d) {
    const hotbed_manifest *x = hotbed_chain_last(&d->a), *y = hotbed_chain_last(&d->b);
    for (uint32_t t = 0; t < x->num_tables; t++) {
        uint32_t other = hotbed_manifest_find(y, x->tables[t].name);
        if (other == UINT32_MAX)
            print_alone(d, x->tables[t].name, "a");
        else
            HOTBED_TRY(diff_table(d, t, other));
    }
    for (uint32_t t = 0; t < y->num_tables; t++)
        if (hotbed_manifest_find(x, y->tables[t].name) == UINT32_MAX)
            print_alone(d, y->tables[t].name, "b");
    return HOTBED_OK;
}

/* --- what is not in tables ------------------------------------------------------------------------------------ */

static void print_field(differ *d, const char *field, const char *a, const char *b) {
    const char *format = d->options->json ? "\"field\": \"%s\", \"a\": \"%s\", \"b\": \"%s\"}"
                                          : "%s: %s in a, %s in b\n";
    d->same = false;
    begin_item(d);
    printf(format, field, a, b);
}

static void diff_number(differ *d, const char *field, uint64_t a, uint64_t b) {
    char x[24], y[24];
    snprintf(x, sizeof x, "%" PRIu64, a);
    snprintf(y, sizeof y, "%" PRIu64, b);
    if (a != b)
        print_field(d, field, x, y);
}

/* Compare by bits: NaN equals itself, and -0 differs from 0. */
static void diff_real(differ *d, const char *field, double a, double b) {
    char x[40], y[40];
    uint64_t p = 0, q = 0;
    memcpy(&p, &a, sizeof p);
    memcpy(&q, &b, sizeof q);
    snprintf(x, sizeof x, "%.17g", a);
    snprintf(y, sizeof y, "%.17g", b);
    if (p != q)
        print_field(d, field, x, y);
}

static const char *optimizer_name(hotbed_optimizer_kind kind) {
    return kind == 0 ? "none" : hotbed_optimizer_name(kind);
}

static void diff_optimizer(differ *d, const hotbed_optimizer *x, const hotbed_optimizer *y) {
    if (x->kind != y->kind)
        print_field(d, "optimizer", optimizer_name(x->kind), optimizer_name(y->kind));
    const hotbed_optimizer_parameter *p;
    for (uint32_t i = 0; (p = hotbed_optimizer_parameter_at(i)) != NULL; i++) {
        char field[64];
        snprintf(field, sizeof field, "optimizer.%s", p->name);
        diff_real(d, field, hotbed_optimizer_value(x, p), hotbed_optimizer_value(y, p));
    }
}

static void diff_storage(
    differ *d, const hotbed_manifest_storage *x, const hotbed_manifest_storage *y) {
    if (x->key_type != y->key_type)
        print_field(
            d, "key_type", x->key_type == HOTBED_KEY_I64 ? "i64" : "u64",
            y->key_type == HOTBED_KEY_I64 ? "i64" : "u64");
    diff_number(d, "seed", x->seed, y->seed);
    diff_optimizer(d, &x->optimizer, &y->optimizer);
    diff_number(d, "state.optimizer_steps", x->state.optimizer_steps, y->state.optimizer_steps);
    if (!d->options->ignore_scores) { /* they are the latest scores */
        diff_number(d, "state.clock", x->state.clock, y->state.clock);
        diff_number(d, "state.time", x->state.time, y->state.time);
    }
    diff_real(d, "state.beta1_power", x->state.beta1_power, y->state.beta1_power);
    diff_real(d, "state.beta2_power", x->state.beta2_power, y->state.beta2_power);
    diff_real(d, "state.learning_rate", x->state.learning_rate, y->state.learning_rate);
}

/* Compare the step and the storages. They are found by number: their names are information. */
static void diff_state(differ *d) {
    const hotbed_manifest *x = hotbed_chain_last(&d->a), *y = hotbed_chain_last(&d->b);
    diff_number(d, "step", x->step, y->step);
    diff_number(d, "storages", x->num_storages, y->num_storages);
    for (uint32_t i = 0; i < x->num_storages && i < y->num_storages; i++)
        diff_storage(d, &x->storages[i], &y->storages[i]);
}

/* Read blob `name` of the last checkpoint of a chain; *out is NULL if it has none. The caller frees
 * *out with hotbed_delete(). */
static hotbed_status read_blob(hotbed_chain *chain, const char *name, void **out, uint64_t *bytes) {
    const hotbed_manifest *m = hotbed_chain_last(chain);
    const hotbed_manifest_blob *blob = hotbed_manifest_find_blob(m, name);
    *out = NULL;
    *bytes = 0;
    if (blob == NULL)
        return HOTBED_OK;
    *bytes = blob->extent.bytes;
    *out = hotbed_new(*bytes);
    HOTBED_TRY_MEMORY(*out, "%" PRIu64 " bytes of blob '%s'", *bytes, name);
    return hotbed_shard_reader_blob(
        &chain->links[chain->n - 1].shards[0], (uint32_t)(blob - m->blobs), *out);
}

static hotbed_status diff_blob(differ *d, const char *name) {
    void *a = NULL, *b = NULL;
    uint64_t m = 0, n = 0;
    char field[80], x[40] = "absent", y[40] = "absent";
    hotbed_status status = read_blob(&d->a, name, &a, &m);
    HOTBED_THEN(status, read_blob(&d->b, name, &b, &n));
    if (a != NULL)
        snprintf(x, sizeof x, "%" PRIu64 " bytes", m);
    if (b != NULL)
        snprintf(y, sizeof y, "%" PRIu64 " %s", n, a != NULL && m == n ? "other bytes" : "bytes");
    snprintf(field, sizeof field, "blob.%s", name);
    if (status == HOTBED_OK &&
        ((a == NULL) != (b == NULL) || m != n || (m > 0 && memcmp(a, b, m) != 0)))
        print_field(d, field, x, y);
    hotbed_delete(a);
    hotbed_delete(b);
    return status;
}

static hotbed_status diff_blobs(differ *d) {
    const hotbed_manifest *x = hotbed_chain_last(&d->a), *y = hotbed_chain_last(&d->b);
    for (uint32_t i = 0; i < x->num_blobs; i++)
        HOTBED_TRY(diff_blob(d, x->blobs[i].name));
    for (uint32_t i = 0; i < y->num_blobs; i++)
        if (hotbed_manifest_find_blob(x, y->blobs[i].name) == NULL)
            HOTBED_TRY(diff_blob(d, y->blobs[i].name));
    return HOTBED_OK;
}

/* --- the command ------------------------------------------------------------------------------------------------ */

static hotbed_status open_chain(const char *path, hotbed_chain *out) {
    HOTBED_TRY(tool_open_chain(path, out));
    for (uint32_t i = 0; i < out->n; i++)
        HOTBED_TRY(hotbed_checkpoint_check_index(&out->links[i]));
    return HOTBED_OK;
}

static hotbed_status diff(differ *d, const char *a, const char *b) {
    hotbed_status status = open_chain(a, &d->a);
    HOTBED_THEN(status, open_chain(b, &d->b));
    HOTBED_THEN(status, diff_tables(d));
    HOTBED_THEN(status, diff_blobs(d));
    if (status == HOTBED_OK)
        diff_state(d);
    hotbed_chain_close(&d->a);
    hotbed_chain_close(&d->b);
    return status;
}

int tool_diff(const tool_options *o) {
    differ d = {.options = o, .same = true};
    hotbed_status status = diff(&d, o->paths[0], o->paths[1]);
    if (status != HOTBED_OK) {
        printf(o->json && d.any ? "\n" : ""); /* and no end of the array */
        tool_fail(status);
        return TOOL_TROUBLE; /* status 1 would mean that they differ */
    }
    begin_item(&d);
    if (o->json)
        printf("\"verdict\": \"%s\"}]\n", d.same ? "equal" : "different");
    else if (d.same)
        printf("equal: %" PRIu32 " tables\n", d.tables);
    else
        printf("different: %" PRIu32 " of %" PRIu32 " tables\n", d.differs, d.tables);
    return d.same ? TOOL_SAME : TOOL_DIFFERS;
}
