/* examples/train/train.c - hotbed-train: a click-through model on Criteo-format logs. */
#include "examples/train/trainer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void print_training(const hotbed_run *t) {
    unsigned long long rows = t->place.rows - t->first_rows;
    unsigned long long steps = t->place.steps - t->first_step;
    hotbed_run_waits waits = hotbed_run_waits_of(t);
    if (steps == 0) {
        hotbed_train_say("%s: nothing is left to train", t->options.data);
        return;
    }
    hotbed_train_say(
        "trained %llu rows in %.1f s (%.0f rows/s), %llu steps, mean loss %.5f, bound by %s", rows,
        t->seconds, t->seconds > 0 ? (double)rows / t->seconds : 0.0, steps,
        (t->place.loss - t->first_loss) / (double)rows, waits.bound);
    hotbed_train_say(
        "waited: reading %.0f %% of that time, parsing %.0f %%, link %.0f %%, compute %.0f %%",
        100 * waits.reading, 100 * waits.parsing, 100 * waits.link, 100 * waits.compute);
}

static void print_summary(const hotbed_run *t) {
    print_training(t);
    if (t->options.eval != NULL)
        hotbed_train_say(
            "%s: %llu rows, AUC %.5f, logloss %.5f", t->options.eval,
            (unsigned long long)t->scores.rows, t->auc, t->logloss);
    if (t->bad_lines > 0)
        hotbed_train_say("%llu malformed lines left out", (unsigned long long)t->bad_lines);
}

static bool check_input(hotbed_run *t, const char *option, const char *path) {
    struct stat status;
    if (path == NULL || strcmp(path, "-") == 0)
        return true;
    if (stat(path, &status) != 0 || access(path, R_OK) != 0)
        return hotbed_run_fail(t, "%s %s: cannot read: %s", option, path, strerror(errno));
    if (S_ISDIR(status.st_mode))
        return hotbed_run_fail(t, "%s %s: is a directory, not a file", option, path);
    return !S_ISREG(status.st_mode) || status.st_size > 0 ||
           hotbed_run_fail(t, "%s %s: is empty", option, path);
}

static bool check_output(hotbed_run *t, const char *option, const char *path) {
    FILE *file = path == NULL ? NULL : fopen(path, "ae");
    if (path == NULL || (file != NULL && fclose(file) == 0))
        return true;
    return hotbed_run_fail(t, "%s %s: cannot write: %s", option, path, strerror(errno));
}

/* Check the files before training, not hours later. */
static bool check_files(hotbed_run *t) {
    const hotbed_run_options *o = &t->options;
    return check_input(t, "--data", o->data) && check_input(t, "--eval", o->eval) &&
           (t->rank > 0 || check_output(t, "--json", o->json)) &&
           check_output(t, "--trace", o->trace) && check_output(t, "--picture", o->picture);
}

static bool work(hotbed_run *t) {
    const hotbed_run_options *o = &t->options;
    if (o->save != NULL && !hotbed_run_lock_save(t))
        return false;
    if ((o->load != NULL || o->resume) && !hotbed_run_load(t))
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
    hotbed_comm *joined; /* NULL: the only rank */
    pthread_t thread;
    bool ok;
} rank_run;

static void *run_rank(void *argument) {
    rank_run *run = argument;
    hotbed_run *t = calloc(1, sizeof *t); /* large; calls of streams point into it */
    if (t == NULL) {
        hotbed_train_say("no memory");
        hotbed_comm_abort(run->joined, NULL, NULL);
        return NULL;
    }
    run->ok = hotbed_run_create(t, &run->options, run->joined) && check_files(t) && work(t);
    if (!run->ok) {
        if (t->ranks > 1)
            hotbed_train_say("rank %u: %s", t->rank, t->error);
        else
            hotbed_train_say("%s", t->error);
        hotbed_comm_abort(t->comm, NULL, NULL); /* so that no rank waits for this one */
        hotbed_comm_abort(run->joined, NULL, NULL);
    }
    hotbed_run_destroy(t);
    free(t);
    return NULL;
}

/* Set up a rank's run. Only rank 0 prints, and writes the files for all ranks. */
static void set_rank(rank_run *run, const hotbed_run_options *options, hotbed_comm *joined) {
    run->options = *options;
    run->joined = joined;
    if (joined != NULL && hotbed_comm_rank(joined) > 0) {
        run->options.quiet = true;
        run->options.trace = NULL;
        run->options.picture = NULL;
    }
}

/* Ranks wait for the slowest one, which may read from a slow disk. A death is noticed at once. */
static hotbed_comm_options patient(void) {
    hotbed_comm_options options = {.size = sizeof options, .deadline_ms = 600000};
    return options;
}

static bool run_threads(const hotbed_run_options *options) {
    static rank_run runs[64];
    static hotbed_comm *comms[64];
    uint32_t started = 0;
    bool ok = true;
    const hotbed_comm_options how = patient();
    if (hotbed_comm_create_threads(&how, options->ranks, comms) != HOTBED_OK) {
        hotbed_train_say("--ranks: %s", hotbed_last_error());
        return false;
    }
    for (uint32_t r = 0; r < options->ranks; r++)
        set_rank(&runs[r], options, comms[r]);
    for (; ok && started < options->ranks; started++)
        ok = pthread_create(&runs[started].thread, NULL, run_rank, &runs[started]) == 0;
    if (!ok) {
        hotbed_train_say("a rank's thread cannot be started");
        hotbed_comm_abort(comms[--started], NULL, NULL);
    }
    for (uint32_t r = 0; r < started; r++) {
        pthread_join(runs[r].thread, NULL);
        ok = ok && runs[r].ok;
    }
    for (uint32_t r = 0; r < options->ranks; r++)
        hotbed_comm_destroy(comms[r]);
    return ok;
}

/* Whether an MPI launcher started several processes. */
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
    const hotbed_comm_options how = patient();
    if (launched_by_mpi() && hotbed_comm_create_mpi(&how, &joined) != HOTBED_OK) {
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
    (void)signal(SIGXFSZ, SIG_IGN); /* a write beyond `ulimit -f` fails with a message */
    int code = hotbed_run_options_parse(argc, argv, &options);
    if (code >= 0)
        return code;
    if (options.ranks > 1 && launched_by_mpi()) {
        hotbed_train_say(
            "--ranks %u makes threads of one process the ranks, and an MPI launcher made processes "
            "the ranks: give one of them; see --help",
            options.ranks);
        return HOTBED_EXIT_USAGE;
    }
    bool ok = options.ranks > 1 ? run_threads(&options) : run_process(&options);
    return ok ? HOTBED_EXIT_OK : HOTBED_EXIT_FAILED;
}
