/* examples/train/trainer_save.c - checkpoints: tables, bias and position in the data. */
#include "examples/train/trainer.h"
#include "hotbed/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static const char place_name[] = "place"; /* of the blob with bias, dense part and position */

/* Parse the step of a name like "step-0000000010". False for any other name. */
static bool parse_step(const char *name, uint64_t *step) {
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return false;
    errno = 0;
    *step = strtoull(name + 5, &end, 10);
    return errno == 0 && *end == '\0';
}

/* Find the name with the highest step in a directory; *found is false if there is none. */
static bool newest(
    hotbed_run *t, const char *directory, bool *found, uint64_t *step, char name[256]) {
    DIR *list = opendir(directory);
    *found = false;
    if (list == NULL)
        return hotbed_run_fail(t, "cannot read %s: %s", directory, strerror(errno));
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        uint64_t number;
        if (parse_step(entry->d_name, &number) && (!*found || number > *step)) {
            *found = true;
            *step = number;
            snprintf(name, 256, "%s", entry->d_name);
        }
    }
    closedir(list);
    return true;
}

static bool copy_dense(hotbed_run *t, bool to_device) {
    /* A buffer set's loss is pinned memory of 256 bytes, and is free between steps. */
    void *pinned = t->buffer_sets[0].loss;
    if (to_device)
        memcpy(pinned, &t->place.dense, sizeof t->place.dense);
    if (!hotbed_run_ok(
            t,
            hotbed_copy(
                to_device ? (void *)t->dense : pinned, to_device ? pinned : (void *)t->dense,
                sizeof t->place.dense, t->stream),
            "copy") ||
        !hotbed_run_sync(t))
        return false;
    if (!to_device)
        memcpy(&t->place.dense, pinned, sizeof t->place.dense);
    return true;
}

/* Describe which rows of the tables this rank has. */
static bool share_of(
    hotbed_run *t, hotbed_route routes[HOTBED_CRITEO_FIELDS], hotbed_checkpoint_share *share) {
    for (uint32_t f = 0; f < HOTBED_CRITEO_FIELDS; f++) {
        hotbed_sharded_table table = {.size = sizeof table};
        if (!hotbed_run_ok(t, hotbed_sharded_table_read(t->sharded, f, &table), "table"))
            return false;
        routes[f] = table.route;
    }
    *share = (hotbed_checkpoint_share){.rank = t->rank, .world = t->ranks, .routes = routes};
    return true;
}

/* Load the tables and the position on all ranks together; *status is the result. */
static bool load(hotbed_run *t, const char *path, hotbed_status *status) {
    uint64_t bytes = sizeof t->loaded;
    hotbed_route routes[HOTBED_CRITEO_FIELDS];
    hotbed_checkpoint_load_options options = {.size = sizeof options, .comm = t->comm};
    if (!share_of(t, routes, &options.share))
        return false;
    memset(&t->loaded, 0, sizeof t->loaded);
    *status = hotbed_checkpoint_load(path, &t->storage, 1, &options, NULL, t->stream);
    /* Without this blob there is no position; place_loaded() says so. */
    if (*status == HOTBED_OK &&
        (hotbed_checkpoint_read_blob(path, place_name, &t->loaded, &bytes) != HOTBED_OK ||
         bytes != sizeof t->loaded))
        t->loaded.magic[0] = 0;
    return true;
}

/* Say what `path` is if it is not a directory; advice[bytes] becomes "" if it is one. */
static void describe(const char *path, char *advice, size_t bytes) {
    char target[PATH_BYTES];
    struct stat file;
    ssize_t n = readlink(path, target, sizeof target - 1);
    bool found = stat(path, &file) == 0;
    advice[0] = '\0';
    if (n >= 0 && !found)
        (void)snprintf(
            advice, bytes,
            ": it is a symbolic link to %.*s: mount the file system of that path, or remove the "
            "link",
            (int)n, target);
    else if (found && !S_ISDIR(file.st_mode))
        (void)snprintf(
            advice, bytes, ": it is a %s, not a checkpoint: rename or remove it",
            S_ISREG(file.st_mode)    ? "plain file"
            : S_ISFIFO(file.st_mode) ? "pipe"
                                     : "special file");
}

/* Whether the thread's last error is about an option or argument, and has its value. */
static bool is_about(const char *parameter) {
    const hotbed_error_detail *detail = hotbed_last_error_detail();
    return (detail->has & HOTBED_HAS_VALUE) != 0 && strcmp(detail->parameter, parameter) == 0;
}

/* The advice to give after a failed load of `path`, or "". */
static void advise(hotbed_status status, const char *path, char *advice, size_t bytes) {
    advice[0] = '\0';
    if (status == HOTBED_ERR_FULL)
        (void)snprintf(advice, bytes, ": give a larger --capacity or --max-capacity");
    else if (status == HOTBED_ERR_CORRUPT)
        (void)snprintf(advice, bytes, ": restore the file, or load an older checkpoint");
    else if (status == HOTBED_ERR_IO)
        describe(path, advice, bytes);
    else if (is_about("dim"))
        (void)snprintf(
            advice, bytes, ": it was saved with --dim %.0f", hotbed_last_error_detail()->value - 1);
}

/* Fail if a checkpoint was not loaded. Unlike in training, a full table is a failure too. */
static bool check_load(hotbed_run *t, const char *option, const char *path, hotbed_status status) {
    char advice[PATH_BYTES + 128];
    if (status == HOTBED_OK)
        return true;
    if (status == HOTBED_ERR_STATE && is_about("increments")) /* its text is for programmers */
        return hotbed_run_fail(
            t, "%s: %s: %s is an increment: make it a full checkpoint with 'hotbed-ckpt compact'",
            option, hotbed_status_name(status), path);
    advise(status, path, advice, sizeof advice);
    return hotbed_run_fail(
        t, "%s: %s: %s: %s%s", option, path, hotbed_status_name(status), hotbed_last_error(),
        advice);
}

/* Print what the library warns of, on rank 0: the ranks have the same seed. */
static bool warn_of_load(hotbed_run *t, const char *path) {
    char text[256];
    if (!hotbed_run_ok(t, hotbed_storage_warning(t->storage, text, sizeof text, NULL), "warning"))
        return false;
    if (t->rank == 0 && text[0] != '\0')
        hotbed_train_say("warning: %s: %s; to continue that run, give its --seed", path, text);
    return true;
}

/* Continue from the loaded position. */
static bool place_loaded(hotbed_run *t, const char *path) {
    if (memcmp(t->loaded.magic, t->place.magic, sizeof t->place.magic) != 0)
        return hotbed_run_fail(
            t,
            "%s has no position in the data: it was converted, or saved by another program or "
            "version",
            path);
    t->place = t->loaded;
    if (t->options.learning_rate > 0) {
        t->place.learning_rate = t->options.learning_rate;
        if (!hotbed_run_ok(
                t, hotbed_sharded_set_learning_rate(t->sharded, t->place.learning_rate, t->stream),
                "--lr"))
            return false;
    }
    if (!t->options.quiet)
        hotbed_train_say(
            "loaded %s: step %llu, %llu rows", path, (unsigned long long)t->place.steps,
            (unsigned long long)t->place.rows);
    snprintf(t->loaded_path, sizeof t->loaded_path, "%s", path);
    return warn_of_load(t, path) && copy_dense(t, true);
}

static bool is_checkpoint(const char *path) {
    char manifest[PATH_BYTES + 16];
    snprintf(manifest, sizeof manifest, "%s/MANIFEST", path);
    return access(manifest, F_OK) == 0;
}

bool hotbed_run_lock_save(hotbed_run *t) {
    const char *directory = t->options.save;
    char why[sizeof t->error];
    bool ok = true;
    if (t->rank == 0 && is_checkpoint(directory))
        ok = hotbed_run_fail(
            t,
            "--save %s: is a checkpoint, not a directory of checkpoints: give the directory that "
            "contains it",
            directory);
    else if (t->rank == 0 && mkdir(directory, 0777) != 0 && errno != EEXIST)
        ok = hotbed_run_fail(
            t, "--save %s: cannot make the directory: %s", directory, strerror(errno));
    else if (t->rank == 0 && !hotbed_save_lock_take(&t->save_lock, directory, why, sizeof why))
        ok = hotbed_run_fail(t, "--save %s", why);
    return hotbed_run_agree(t, ok);
}

static bool is_same_file(const char *a, const char *b) {
    struct stat first, second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

/* The name with the highest step in the directory must be older than this run's first step, or be
 * the checkpoint that the run loaded: the run would come to save under this name. */
static bool check_newest(hotbed_run *t) {
    bool found;
    uint64_t step = 0;
    char name[256], path[PATH_BYTES], advice[PATH_BYTES + 128];
    const char *directory = t->options.save;
    if (!newest(t, directory, &found, &step, name))
        return false;
    if (!found || step < t->place.steps)
        return true;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    bool loaded = is_same_file(path, t->loaded_path);
    if (loaded && step != t->place.steps)
        return hotbed_run_fail(
            t,
            "%s has the number %llu in its name, but it was saved at step %llu: rename it to "
            "step-%010llu",
            path, (unsigned long long)step, (unsigned long long)t->place.steps,
            (unsigned long long)t->place.steps);
    t->saved = loaded;
    describe(path, advice, sizeof advice);
    if (!loaded && advice[0] != '\0')
        return hotbed_run_fail(t, "%s%s", path, advice);
    if (!loaded && !is_checkpoint(path))
        return hotbed_run_fail(
            t, "%s: it has no MANIFEST, so it is not a checkpoint: rename or remove it", path);
    return t->saved ||
           hotbed_run_fail(
               t,
               "%s has %s of an earlier run: continue from it with --resume or --load, or save to "
               "another directory",
               directory, name);
}

bool hotbed_run_prepare_save(hotbed_run *t) {
    bool ok = t->rank > 0 || check_newest(t);
    t->saved_step = t->place.steps;
    return hotbed_run_agree(t, ok) && hotbed_run_share(t, sizeof t->saved, &t->saved);
}

bool hotbed_run_load(hotbed_run *t) {
    char path[PATH_BYTES];
    char name[256];
    bool found;
    uint64_t step = 0;
    hotbed_status status = HOTBED_OK;
    const char *directory = t->options.load;
    if (is_checkpoint(directory)) {
        snprintf(path, sizeof path, "%s", directory);
    } else {
        if (!newest(t, directory, &found, &step, name))
            return false;
        if (!found)
            return hotbed_run_fail(
                t, "%s: neither a checkpoint nor a directory of them", directory);
        snprintf(path, sizeof path, "%s/%s", directory, name);
    }
    return load(t, path, &status) && check_load(t, "--load", path, status) && place_loaded(t, path);
}

/* Rename a damaged checkpoint; hotbed-ckpt knows these names. */
static bool put_aside(hotbed_run *t, const char *path, const char *why) {
    char aside[PATH_BYTES + 32];
    struct stat file;
    snprintf(aside, sizeof aside, "%s.damaged", path);
    for (unsigned number = 2; stat(aside, &file) == 0; number++)
        snprintf(aside, sizeof aside, "%s.damaged-%u", path, number);
    if (rename(path, aside) != 0)
        return hotbed_run_fail(
            t, "%s is damaged (%s), and cannot be renamed to %s: %s", path, why, aside,
            strerror(errno));
    hotbed_train_say("%s is damaged, and was renamed to %s: %s", path, aside, why);
    return true;
}

/* The step in the name at the end of a path; 0 for any other name. */
static uint64_t step_of(const char *path) {
    uint64_t step;
    const char *name = strrchr(path, '/');
    return name != NULL && parse_step(name + 1, &step) ? step : 0;
}

/* Put a checkpoint aside that is not whole, or fail if it is not damaged but cannot be used. */
static bool handle_skipped(hotbed_run *t, const hotbed_checkpoint_skipped *skipped) {
    char advice[PATH_BYTES + 128];
    if (skipped->status == HOTBED_ERR_CORRUPT)
        return put_aside(t, skipped->path, skipped->why);
    describe(skipped->path, advice, sizeof advice);
    if (advice[0] != '\0')
        return hotbed_run_fail(t, "%s%s", skipped->path, advice);
    return hotbed_run_fail(
        t, "%s: make it a full checkpoint with 'hotbed-ckpt compact', or remove it", skipped->why);
}

/* Find the newest whole checkpoint of a directory, and handle those that have a later step in their
 * names; `path` is "" if there is none. */
static bool find_whole(hotbed_run *t, const char *directory, char path[PATH_BYTES], bool *renamed) {
    hotbed_checkpoint_found found = {.size = sizeof found};
    if (!hotbed_run_ok(t, hotbed_checkpoint_latest(directory, &found), "--resume"))
        return false;
    if (found.num_paths > 0)
        snprintf(path, PATH_BYTES, "%s", found.paths[found.num_paths - 1]);
    bool ok = true;
    for (uint32_t i = 0; i < found.num_skipped && ok; i++) {
        if (step_of(found.skipped[i].path) <= step_of(path) && found.num_paths > 0)
            continue;
        ok = handle_skipped(t, &found.skipped[i]);
        *renamed = true;
    }
    hotbed_checkpoint_found_free(&found);
    return ok;
}

bool hotbed_run_resume(hotbed_run *t) {
    char path[PATH_BYTES];
    const char *directory = t->options.save;
    bool renamed = false;
    for (;;) {
        hotbed_status status = HOTBED_OK;
        uint32_t first;
        memset(path, 0, sizeof path);
        const bool found = t->rank > 0 || find_whole(t, directory, path, &renamed);
        if (!hotbed_run_agree(t, found) || !hotbed_run_share(t, sizeof path, path))
            return false;
        if (path[0] == '\0') {
            if (t->rank == 0 && (renamed || !t->options.quiet))
                hotbed_train_say(
                    "%s has no %scheckpoint: training begins at step 0", directory,
                    renamed ? "other " : "");
            return true;
        }
        /* The search reads no rows. The ranks may find other errors. */
        if (!load(t, path, &status) || !hotbed_run_find(t, status == HOTBED_ERR_CORRUPT, &first))
            return false;
        if (first == t->ranks)
            return hotbed_run_agree(t, check_load(t, "--resume", path, status)) &&
                   place_loaded(t, path);
        const char *why = status == HOTBED_OK ? "another rank cannot load it" : hotbed_last_error();
        if (!hotbed_run_agree(t, t->rank > 0 || put_aside(t, path, why)))
            return false;
        renamed = true;
    }
}

static bool save(hotbed_run *t, const char *path) {
    hotbed_route routes[HOTBED_CRITEO_FIELDS];
    hotbed_checkpoint_options options = {.size = sizeof options, .step = t->place.steps};
    const hotbed_checkpoint_blob place = {place_name, &t->place, sizeof t->place};
    options.blobs = &place;
    options.num_blobs = 1;
    options.comm = t->comm;
    return share_of(t, routes, &options.share) &&
           hotbed_run_ok(
               t, hotbed_checkpoint_save(path, &t->storage, 1, &options, t->stream), "--save");
}

/* Check on rank 0, for all ranks, that no other run may save to the directory. */
static bool check_lock(hotbed_run *t) {
    char why[sizeof t->error];
    bool ok =
        t->rank > 0 || hotbed_save_lock_check(&t->save_lock, why, sizeof why) ||
        hotbed_run_fail(
            t, "--save: step %llu was not saved: %s", (unsigned long long)t->place.steps, why);
    return hotbed_run_agree(t, ok);
}

bool hotbed_run_save(hotbed_run *t) {
    char path[PATH_BYTES];
    if (!hotbed_run_sync(t)) /* all steps so far are done and counted in `place` */
        return false;
    if (t->saved && t->saved_step == t->place.steps)
        return true; /* --save-every fell on the last step, or no step was trained since a load */
    int n = snprintf(
        path, sizeof path, "%s/step-%010llu", t->options.save, (unsigned long long)t->place.steps);
    if (n < 0 || (size_t)n >= sizeof path)
        return hotbed_run_fail(t, "%s: the name is too long", t->options.save);
    if (!check_lock(t))
        return false;
    t->saved = copy_dense(t, false) && save(t, path);
    t->saved_step = t->place.steps;
    return t->saved;
}
