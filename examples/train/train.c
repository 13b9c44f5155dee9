/* examples/train/train.c - hotbed-train: a click-through model on Criteo-format logs. */
#include "examples/train/trainer.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_summary(const hotbed_run *t) {
    uint64_t rows = t->place.rows - t->first_rows;
    hotbed_train_say(
        "trained %llu rows in %.1f s (%.0f rows/s), %llu steps, mean loss %.5f",
        (unsigned long long)rows, t->seconds, t->seconds > 0 ? (double)rows / t->seconds : 0.0,
        (unsigned long long)(t->place.steps - t->first_step),
        t->place.rows > 0 ? t->place.loss / (double)t->place.rows : 0.0);
    if (t->options.eval != NULL)
        hotbed_train_say(
            "%s: %llu rows, AUC %.5f, logloss %.5f", t->options.eval,
            (unsigned long long)t->scores.rows, t->auc, t->logloss);
    if (t->bad_lines > 0)
        hotbed_train_say("%llu malformed lines left out", (unsigned long long)t->bad_lines);
}

/* Find out now, not after hours of training. */
static bool check_files(hotbed_run *t) {
    const hotbed_run_options *o = &t->options;
    const char *const inputs[] = {o->data, o->eval};
    const char *const outputs[] = {t->rank == 0 ? o->json : NULL, o->trace, o->picture};
    for (int i = 0; i < 2; i++)
        if (inputs[i] != NULL && strcmp(inputs[i], "-") != 0 && access(inputs[i], R_OK) != 0)
            return hotbed_run_fail(t, "%s: %s", inputs[i], strerror(errno));
    for (int i = 0; i < 3; i++) {
        FILE *file = outputs[i] == NULL ? NULL : fopen(outputs[i], "a");
        if (file != NULL)
            fclose(file);
        else if (outputs[i] != NULL)
            return hotbed_run_fail(t, "%s: %s", outputs[i], strerror(errno));
    }
    return true;
}

static bool work(hotbed_run *t) {
    const hotbed_run_options *o = &t->options;
    if (o->load != NULL && !hotbed_run_load(t))
        return false;
    if (o->resume && !hotbed_run_resume(t))
        return false;
    if (o->save != NULL && !hotbed_run_prepare_save(t))
        return false;
    if (!o->quiet)
        hotbed_train_say(
            "%s backend, %u tables of %u elements, %s, rate %g, batches of %u, pipeline %s",
            hotbed_backend_name(t->backend), (unsigned)HOTBED_CRITEO_FIELDS, o->dim + 1,
            hotbed_optimizer_name(o->optimizer), (double)t->place.learning_rate, o->batch,
            o->pipeline);
    if (!hotbed_run_train(t) || !hotbed_run_flush_store(t) ||
        (o->eval != NULL && !hotbed_run_eval(t)))
        return false;
    if (!o->quiet)
        print_summary(t);
    return o->json == NULL || hotbed_run_report(t, o->json);
}

/* One rank of a run. */
typedef struct rank_run {
    hotbed_run_options options;
    hotbed_comm *joined; /* NULL: the only one */
    pthread_t thread;
    bool ok;
} rank_run;

static void *run_rank(void *argument) {
    rank_run *run = argument;
    hotbed_run *t = calloc(1, sizeof *t); /* large, and streams' calls point into it */
    if (t == NULL) {
        hotbed_train_say("no memory");
        hotbed_comm_abort(run->joined);
        return NULL;
    }
    run->ok = hotbed_run_create(t, &run->options, run->joined) && check_files(t) && work(t);
    if (!run->ok) {
        if (t->ranks > 1)
            hotbed_train_say("rank %u: %s", t->rank, t->error);
        else
            hotbed_train_say("%s", t->error);
        hotbed_comm_abort(t->comm); /* nobody waits for a rank that is gone */
        hotbed_comm_abort(run->joined);
    }
    hotbed_run_destroy(t);
    free(t);
    return NULL;
}

/* Rank 0 speaks and writes for all. */
static void set_rank(rank_run *run, const hotbed_run_options *options, hotbed_comm *joined) {
    run->options = *options;
    run->joined = joined;
    if (joined != NULL && hotbed_comm_rank(joined) > 0) {
        run->options.quiet = true;
        run->options.trace = NULL;
        run->options.picture = NULL;
    }
}

static bool run_threads(const hotbed_run_options *options) {
    static rank_run runs[64];
    static hotbed_comm *comms[64];
    uint32_t started = 0;
    bool ok = true;
    if (hotbed_comm_create_threads(NULL, options->ranks, comms) != HOTBED_OK) {
        hotbed_train_say("--ranks: %s", hotbed_last_error());
        return false;
    }
    for (uint32_t r = 0; r < options->ranks; r++)
        set_rank(&runs[r], options, comms[r]);
    for (; ok && started < options->ranks; started++)
        ok = pthread_create(&runs[started].thread, NULL, run_rank, &runs[started]) == 0;
    if (!ok) {
        hotbed_train_say("a rank's thread cannot be started");
        hotbed_comm_abort(comms[--started]);
    }
    for (uint32_t r = 0; r < started; r++) {
        pthread_join(runs[r].thread, NULL);
        ok = ok && runs[r].ok;
    }
    for (uint32_t r = 0; r < options->ranks; r++)
        hotbed_comm_destroy(comms[r]);
    return ok;
}

/* Whether an MPI launcher started several of us. */
static bool launched_by_mpi(void) {
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (int i = 0; i < 2; i++) {
        const char *size = getenv(variables[i]);
        if (size != NULL && strtoul(size, NULL, 10) > 1)
            return true;
    }
    return false;
}

static bool run_process(const hotbed_run_options *options) {
    static rank_run run;
    hotbed_comm *joined = NULL;
    if (launched_by_mpi() && hotbed_comm_create_mpi(NULL, &joined) != HOTBED_OK) {
        hotbed_train_say("MPI: %s", hotbed_last_error());
        return false;
    }
    set_rank(&run, options, joined);
    (void)run_rank(&run);
    hotbed_comm_destroy(joined);
    return run.ok;
}

int main(int argc, char **argv) {
    hotbed_run_options options;
    int code = hotbed_run_options_parse(argc, argv, &options);
    if (code >= 0)
        return code;
    bool ok = options.ranks > 1 ? run_threads(&options) : run_process(&options);
    return ok ? HOTBED_EXIT_OK : HOTBED_EXIT_FAILED;
}
