/* examples/train/report.c - the JSON report of hotbed-train. */
#include "examples/train/trainer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static void print_string(FILE *file, const char *text) {
    fputc('"', file);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else if (c < 0x20)
            fprintf(file, "\\u%04x", c);
        else
            fputc(c, file);
    }
    fputc('"', file);
}

/* Numbers have 17 digits: equal text means equal bits. */
static void print_number(FILE *file, const char *name, double value) {
    if (value - value == 0) /* finite */
        fprintf(file, "  \"%s\": %.17g,\n", name, value);
    else
        fprintf(file, "  \"%s\": null,\n", name);
}

static void print_count(FILE *file, const char *name, uint64_t value) {
    fprintf(file, "  \"%s\": %llu,\n", name, (unsigned long long)value);
}

static void print_curve(const hotbed_run *t, FILE *file) {
    fprintf(file, "  \"loss_curve_every\": %d,\n  \"loss_curve\": [\n", HOTBED_TRAIN_CURVE_STEPS);
    for (uint64_t i = 0; i < t->curve_points; i++)
        fprintf(
            file, "    [%llu, %.17g]%s\n", (unsigned long long)t->curve[i].step, t->curve[i].loss,
            i + 1 < t->curve_points ? "," : "");
    fputs("  ],\n", file);
}

/* Counts of a table: current capacity, number of growths, keys stored, then counters of
 * hotbed_table_stats in its order, without bytes and without counts of rows used in place. */
enum { COUNTS = 13 };

typedef struct table_counts {
    uint64_t count[HOTBED_CRITEO_FIELDS][COUNTS];
} table_counts;

/* Add up the counts of all ranks. */
static bool count_tables(hotbed_run *t, table_counts *sums) {
    table_counts own = {{{0}}};
    bool ok = true;
    for (uint32_t i = 0; ok && i < HOTBED_CRITEO_FIELDS; i++) {
        hotbed_table_stats s = {.size = sizeof s};
        hotbed_table_info info = {.size = sizeof info};
        uint64_t keys = 0;
        ok = hotbed_run_ok(t, hotbed_storage_stats(t->storage, i, &s, t->stream), "statistics") &&
             hotbed_run_ok(t, hotbed_storage_table(t->storage, i, &info), "table") &&
             hotbed_run_ok(t, hotbed_storage_size(t->storage, i, &keys, NULL, t->stream), "size");
        if (ok)
            memcpy(
                own.count[i],
                (const uint64_t[COUNTS]){
                    info.capacity, info.segments, keys, s.keys, s.uniques, s.hits, s.inserts,
                    s.evictions, s.refused, s.rejected, s.fetches, s.write_backs, s.rounded_away},
                sizeof own.count[i]);
    }
    table_counts *all = calloc(t->ranks, sizeof *all);
    ok = hotbed_run_agree(t, ok && (all != NULL || hotbed_run_fail(t, "no memory"))) &&
         hotbed_run_gather(t, sizeof own, &own, all);
    memset(sums, 0, sizeof *sums);
    for (uint32_t r = 0; ok && r < t->ranks; r++)
        for (uint32_t i = 0; i < HOTBED_CRITEO_FIELDS; i++)
            for (int c = 0; c < COUNTS; c++)
                sums->count[i][c] += all[r].count[i][c];
    free(all);
    return ok;
}

/* Add up what all ranks have exchanged. All ranks call it. */
static bool count_exchanges(hotbed_run *t, hotbed_exchange_stats *sums) {
    hotbed_exchange_stats own = {.size = sizeof own};
    bool ok =
        hotbed_run_ok(t, hotbed_sharded_stats(t->sharded, &own, t->stream), "exchange statistics");
    hotbed_exchange_stats *all = calloc(t->ranks, sizeof *all);
    ok = hotbed_run_agree(t, ok && (all != NULL || hotbed_run_fail(t, "no memory"))) &&
         hotbed_run_gather(t, sizeof own, &own, all);
    *sums = (hotbed_exchange_stats){.size = sizeof *sums};
    for (uint32_t r = 0; ok && r < t->ranks; r++) {
        sums->batches += all[r].batches;
        sums->overflows += all[r].overflows;
        sums->keys_sent += all[r].keys_sent;
        sums->keys_received += all[r].keys_received;
        sums->rows_sent += all[r].rows_sent;
        sums->rows_received += all[r].rows_received;
        sums->gradients_sent += all[r].gradients_sent;
        sums->gradients_received += all[r].gradients_received;
    }
    free(all);
    return ok;
}

/* Bytes of a rank and batch, batches of --eval included, by phase. */
static void print_exchanges(const hotbed_run *t, const hotbed_exchange_stats *s, FILE *file) {
    const double batches = s->batches > 0 ? (double)s->batches : 1;
    print_count(file, "exchanged_batches", s->batches / t->ranks);
    print_count(file, "overflows", s->overflows / t->ranks);
    print_number(file, "key_bytes_sent", (double)s->keys_sent / batches);
    print_number(file, "key_bytes_received", (double)s->keys_received / batches);
    print_number(file, "row_bytes_sent", (double)s->rows_sent / batches);
    print_number(file, "row_bytes_received", (double)s->rows_received / batches);
    print_number(file, "gradient_bytes_sent", (double)s->gradients_sent / batches);
    print_number(file, "gradient_bytes_received", (double)s->gradients_received / batches);
}

static bool print_tables(hotbed_run *t, const table_counts *counts, FILE *file) {
    static const char *const names[COUNTS] = {
        "grown_capacity", "growths",     "keys_stored", "keys",    "uniques",
        "hits",           "inserts",     "evictions",   "refused", "rejected",
        "fetches",        "write_backs", "rounded_away"};
    fputs("  \"tables\": [\n", file);
    for (uint32_t i = 0; i < HOTBED_CRITEO_FIELDS; i++) {
        hotbed_table_info info = {.size = sizeof info};
        hotbed_sharded_table table = {.size = sizeof table};
        if (!hotbed_run_ok(t, hotbed_storage_table(t->storage, i, &info), "table") ||
            !hotbed_run_ok(t, hotbed_sharded_table_read(t->sharded, i, &table), "table"))
            return false;
        fprintf(
            file,
            "    {\"name\": \"%s\", \"dim\": %u, \"row_bytes\": %llu, \"capacity\": %llu, "
            "\"max_capacity\": %llu",
            info.name, info.dim, (unsigned long long)info.row_bytes,
            (unsigned long long)table.capacity, (unsigned long long)table.max_capacity);
        for (int c = 0; c < COUNTS; c++)
            fprintf(file, ", \"%s\": %llu", names[c], (unsigned long long)counts->count[i][c]);
        fputs(i + 1 < HOTBED_CRITEO_FIELDS ? "},\n" : "}\n", file);
    }
    fputs("  ]\n", file);
    return true;
}

bool hotbed_run_report(hotbed_run *t, const char *path) {
    const hotbed_run_options *o = &t->options;
    uint64_t steps = t->place.steps - t->first_step;
    double counted = t->counted > 0 ? (double)t->counted : 1;
    uint64_t rows = t->place.rows - t->first_rows;
    double no_number = (double)NAN;
    table_counts counts;
    hotbed_exchange_stats exchanges;
    if (!count_tables(t, &counts) || !count_exchanges(t, &exchanges))
        return false;
    if (t->rank > 0)
        return true;
    FILE *file = fopen(path, "we");
    if (file == NULL)
        return hotbed_run_fail(t, "%s: %s", path, strerror(errno));
    fputs("{\n  \"data\": ", file);
    print_string(file, o->data);
    fprintf(
        file, ",\n  \"backend\": \"%s\",\n  \"pipeline\": \"%s\",\n  \"optimizer\": \"%s\",\n",
        hotbed_backend_name(t->backend), o->pipeline, hotbed_optimizer_name(o->optimizer));
    print_number(file, "lr", (double)t->place.learning_rate);
    print_count(file, "dim", o->dim);
    print_count(file, "batch", o->batch);
    print_count(file, "ranks", t->ranks);
    print_count(file, "epochs", o->epochs);
    print_count(file, "seed", o->seed);
    print_number(file, "auc", o->eval != NULL ? t->auc : no_number);
    print_number(file, "logloss", o->eval != NULL ? t->logloss : no_number);
    print_count(file, "eval_rows", t->scores.rows);
    print_number(
        file, "train_logloss",
        t->place.rows > 0 ? t->place.loss / (double)t->place.rows : no_number);
    print_count(file, "rows", rows);
    print_count(file, "steps", steps);
    print_count(file, "first_step", t->first_step);
    print_count(file, "total_rows", t->place.rows);
    print_count(file, "bad_lines", t->bad_lines);
    print_number(file, "seconds", t->seconds);
    print_number(file, "rows_per_s", t->seconds > 0 ? (double)rows / t->seconds : no_number);
    print_number(file, "host_waits_per_step", (double)t->host_waits / counted);
    print_number(file, "allocations_per_step", (double)t->allocations / counted);
    print_number(file, "signal_waits_per_step", t->signal_waits);
    hotbed_run_waits waits = hotbed_run_waits_of(t);
    fprintf(file, "  \"bound\": \"%s\",\n", waits.bound);
    print_number(file, "reading_waits", waits.reading);
    print_number(file, "parsing_waits", waits.parsing);
    print_number(file, "link_waits", waits.link);
    print_number(file, "compute_waits", waits.compute);
    print_count(file, "parse_threads", t->reader_times.threads);
    print_count(file, "full_faults", t->full_faults);
    print_exchanges(t, &exchanges, file);
    print_curve(t, file);
    bool ok = print_tables(t, &counts, file);
    fputs("}\n", file);
    bool written = ferror(file) == 0;
    written = fclose(file) == 0 && written;
    if (ok && t->curve_lost)
        return hotbed_run_fail(t, "no memory for the loss curve");
    return ok && (written || hotbed_run_fail(t, "%s: %s", path, strerror(errno)));
}
