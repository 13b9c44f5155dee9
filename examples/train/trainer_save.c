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

/* The path of the checkpoint of a step. False if it is too long. */
static bool step_path(hotbed_run *t, const char *directory, uint64_t step, char path[PATH_BYTES]) {
    int n = snprintf(path, PATH_BYTES, "%s/step-%010llu", directory, (unsigned long long)step);
    return (n > 0 && n < PATH_BYTES) || hotbed_run_fail(t, "%s: the name is too long", directory);
}

/* Parse the step of a name that step_path() makes. False for any other name. */
static bool parse_step(const char *name, uint64_t *step) {
    char own[32];
    if (strncmp(name, "step-", 5) != 0)
        return false;
    *step = strtoull(name + 5, NULL, 10);
    snprintf(own, sizeof own, "step-%010llu", (unsigned long long)*step);
    return strcmp(name, own) == 0;
}

/* Whether an errno says that a file does not exist. After any other one it may exist. */
static bool is_absent(int error) {
    return error == ENOENT || error == ENOTDIR;
}

/* Read the next entry of a directory. NULL: there are no more if *error is 0, else it is an errno. */
static struct dirent *next_entry(DIR *list, int *error) {
    errno = 0;
    struct dirent *entry = readdir(list);
    *error = entry == NULL ? errno : 0;
    return entry;
}

/* Find the highest step below `below` that a name in a directory has; *found is false if there is
 * none. `option` gave the directory. */
static bool newest(
    hotbed_run *t, const char *option, const char *directory, uint64_t below, bool *found,
    uint64_t *step) {
    DIR *list = opendir(directory);
    int error = errno;
    *found = false;
    for (struct dirent *entry; list != NULL && (entry = next_entry(list, &error)) != NULL;) {
        uint64_t number;
        if (parse_step(entry->d_name, &number) && number < below && (!*found || number > *step)) {
            *found = true;
            *step = number;
        }
    }
    if (list != NULL)
        closedir(list);
    return error == 0 ||
           hotbed_run_fail(t, "%s %s: cannot read: %s", option, directory, strerror(error));
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

/* Load the tables on all ranks together; *status is the result. */
static bool load(hotbed_run *t, const char *path, hotbed_status *status) {
    hotbed_route routes[HOTBED_CRITEO_FIELDS];
    hotbed_checkpoint_load_options options = {.size = sizeof options, .comm = t->comm};
    if (!share_of(t, routes, &options.share))
        return false;
    *status = hotbed_checkpoint_load(path, &t->storage, 1, &options, NULL, t->stream);
    return true;
}

/* Read the position that a checkpoint has; its magic is 0 if it has none. */
static hotbed_status read_place(const char *path, hotbed_train_place *place) {
    uint64_t bytes = sizeof *place;
    hotbed_status status = hotbed_checkpoint_read_blob(path, place_name, place, &bytes);
    if (status != HOTBED_OK || bytes != sizeof *place)
        memset(place, 0, sizeof *place);
    return status == HOTBED_ERR_ARGUMENT ? HOTBED_OK : status; /* no such blob */
}

/* Say what `path` is if it is not a directory; advice[bytes] becomes "" if it is one. */
static void describe(const char *path, char *advice, size_t bytes) {
    char target[PATH_BYTES];
    struct stat file;
    ssize_t n = readlink(path, target, sizeof target - 1);
    bool found = stat(path, &file) == 0;
    bool absent = !found && is_absent(errno);
    advice[0] = '\0';
    if (n >= 0 && absent)
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
static void advise(
    const hotbed_run *t, hotbed_status status, const char *path, char *advice, size_t bytes) {
    const int saved = (int)hotbed_last_error_detail()->value;
    const hotbed_run_options *o = &t->options;
    char name[32];
    advice[0] = '\0';
    if (status == HOTBED_ERR_FULL)
        (void)snprintf(advice, bytes, ": give a larger --capacity or --max-capacity");
    else if (status == HOTBED_ERR_CORRUPT)
        (void)snprintf(advice, bytes, ": restore the file, or load an older checkpoint");
    else if (status == HOTBED_ERR_IO)
        describe(path, advice, bytes);
    else if (is_about("dim"))
        (void)snprintf(advice, bytes, ": it was saved with --dim %d", saved - 1);
    else if (is_about("optimizer")) {
        hotbed_train_optimizer_name((hotbed_optimizer_kind)saved, name);
        (void)snprintf(advice, bytes, ": it was saved with --optimizer %s", name);
    } else if (is_about("dtype") || is_about("state_dtype")) {
        const bool states = is_about("state_dtype");
        const char *option = states ? "--state-dtype" : "--dtype";
        const hotbed_dtype here = states ? o->state_dtype : o->dtype;
        (void)snprintf(
            advice, bytes,
            ": it was saved with %s %s: give this, or convert the checkpoint into another "
            "directory with 'hotbed-ckpt convert %s %s'",
            option, hotbed_dtype_name((hotbed_dtype)saved), option,
            hotbed_dtype_name(here == 0 ? HOTBED_F32 : here));
    }
}

/* Fail if a checkpoint was not loaded. Unlike in training, a full table is a failure too. */
static bool check_load(hotbed_run *t, const char *option, const char *path, hotbed_status status) {
    char advice[PATH_BYTES + 128];
    if (status == HOTBED_OK)
        return true;
    if (status == HOTBED_ERR_STATE && is_about("increments")) /* its text is for programmers */
        return hotbed_run_fail(
            t,
            "%s: %s: %s is an increment: make it a full checkpoint with 'hotbed-ckpt compact', or "
            "remove it",
            option, hotbed_status_name(status), path);
    advise(t, status, path, advice, sizeof advice);
    return hotbed_run_fail(
        t, "%s: %s: %s: %s%s", option, path, hotbed_status_name(status), hotbed_last_error(),
        advice);
}

/* Print which options differ from those of the run that saved the checkpoint, and what the library
 * warns of, on rank 0: the ranks have the same options. */
static bool warn_of_load(hotbed_run *t, const char *path, const hotbed_train_place *saved) {
    const hotbed_run_options *o = &t->options;
    char text[256];
    if (!hotbed_run_ok(t, hotbed_storage_warning(t->storage, text, sizeof text, NULL), "warning"))
        return false;
    if (t->rank == 0 && text[0] != '\0')
        hotbed_train_say("warning: %s: %s; to continue that run, give its --seed", path, text);
    if (t->rank == 0 && saved->batch != o->batch)
        hotbed_train_say(
            "warning: %s was saved with --batch %u, and this run has --batch %u", path,
            saved->batch, o->batch);
    if (t->rank == 0 && o->learning_rate > 0 && saved->learning_rate != o->learning_rate)
        hotbed_train_say(
            "warning: %s was saved with --lr %g, and this run has --lr %g", path,
            (double)saved->learning_rate, (double)o->learning_rate);
    return true;
}

/* Continue from the position of a loaded checkpoint. `instead`: of a newer one, which is damaged. */
static bool place_loaded(
    hotbed_run *t, const char *path, const hotbed_train_place *saved, bool instead) {
    if (memcmp(saved->magic, t->place.magic, sizeof t->place.magic) != 0)
        return hotbed_run_fail(
            t,
            "%s has no position in the data, so hotbed-train cannot continue from it: it was made "
            "from other files, or saved by another program or version",
            path);
    t->place = *saved;
    t->place.batch = t->options.batch;
    if (t->options.learning_rate > 0) {
        t->place.learning_rate = t->options.learning_rate;
        if (!hotbed_run_ok(
                t, hotbed_sharded_set_learning_rate(t->sharded, t->place.learning_rate, t->stream),
                "--lr"))
            return false;
    }
    if (instead || !t->options.quiet)
        hotbed_train_say(
            "loaded %s%s: step %llu, %llu rows", path, instead ? " instead" : "",
            (unsigned long long)t->place.steps, (unsigned long long)t->place.rows);
    snprintf(t->loaded_path, sizeof t->loaded_path, "%s", path);
    return warn_of_load(t, path, saved) && copy_dense(t, true);
}

static bool is_directory(const char *path) {
    struct stat file;
    return stat(path, &file) == 0 && S_ISDIR(file.st_mode);
}

/* Set *found to whether a directory is a checkpoint, perhaps a damaged one. Returns 0, or an errno if
 * this cannot be found out. */
static int look_for_checkpoint(const char *path, bool *found) {
    static const char *const names[] = {"MANIFEST", "index.h5"};
    int error = 0;
    *found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && !*found; i++) {
        char file[2 * PATH_BYTES];
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        *found = access(file, F_OK) == 0;
        if (!*found && !is_absent(errno))
            error = errno;
    }
    return *found ? 0 : error;
}

/* The same; false if it cannot be found out. A run that took such a path for no checkpoint might begin at
 * step 0 beside one. */
static bool find_checkpoint(hotbed_run *t, const char *path, bool *found) {
    int error = look_for_checkpoint(path, found);
    return error == 0 ||
           hotbed_run_fail(
               t, "%s: cannot find out whether it is a checkpoint: %s", path, strerror(error));
}

bool hotbed_run_lock_save(hotbed_run *t) {
    const char *directory = t->options.save;
    char why[sizeof t->error];
    bool found = false, ok = t->rank > 0 || find_checkpoint(t, directory, &found);
    if (found)
        ok = hotbed_run_fail(
            t,
            "--save %s: is a checkpoint, not a directory of checkpoints: give the directory that "
            "contains it",
            directory);
    else if (ok && t->rank == 0 && mkdir(directory, 0777) != 0 && errno != EEXIST)
        ok = hotbed_run_fail(
            t, "--save %s: cannot make the directory: %s", directory, strerror(errno));
    else if (
        ok && t->rank == 0 && !hotbed_save_lock_take(&t->save_lock, directory, why, sizeof why))
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
    char path[PATH_BYTES];
    const char *directory = t->options.save;
    if (!newest(t, "--save", directory, UINT64_MAX, &found, &step))
        return false;
    if (!found || step < t->place.steps)
        return true;
    if (!step_path(t, directory, step, path))
        return false;
    t->saved = step == t->place.steps && is_same_file(path, t->loaded_path);
    return t->saved ||
           hotbed_run_fail(
               t,
               "%s is of an earlier run: continue from it with --resume, move it away, or save to "
               "another directory",
               path);
}

bool hotbed_run_prepare_save(hotbed_run *t) {
    bool ok = t->rank > 0 || check_newest(t);
    t->saved_step = t->place.steps;
    return hotbed_run_agree(t, ok) && hotbed_run_share(t, sizeof t->saved, &t->saved);
}

/* --- the newest checkpoint of a directory ------------------------------------------------------ */

/* A search for the newest checkpoint that can be loaded. */
typedef struct search {
    const char *option, *directory;
    uint64_t below; /* checkpoints of this step and later ones are damaged */
    bool damaged;   /* rank 0: there are such ones */
} search;

/* What rank 0 has found. */
typedef struct choice {
    char path[PATH_BYTES]; /* "": nothing */
    bool given;            /* it is the path of the option, and no other one is tried */
    uint64_t step;         /* in its name */
    hotbed_train_place place;
} choice;

/* Go on to older checkpoints than a damaged one. --resume renames it; hotbed-ckpt knows these
 * names. */
static bool pass_over(hotbed_run *t, search *s, const choice *c, const char *why) {
    char aside[PATH_BYTES + 32];
    struct stat file;
    s->below = c->step;
    s->damaged = true;
    if (!t->options.resume) {
        hotbed_train_say("%s is damaged, and is not loaded: %s", c->path, why);
        return true;
    }
    snprintf(aside, sizeof aside, "%s.damaged", c->path);
    for (unsigned number = 2; stat(aside, &file) == 0; number++)
        snprintf(aside, sizeof aside, "%s.damaged-%u", c->path, number);
    if (rename(c->path, aside) != 0)
        return hotbed_run_fail(
            t, "%s is damaged (%s), and cannot be renamed to %s: %s", c->path, why, aside,
            strerror(errno));
    hotbed_train_say("%s is damaged, and was renamed to %s: %s", c->path, aside, why);
    return true;
}

/* Fail if a name step-N is not a directory with files of a checkpoint. */
static bool check_kind(hotbed_run *t, const char *path) {
    char advice[PATH_BYTES + 128];
    bool found;
    describe(path, advice, sizeof advice);
    if (advice[0] != '\0')
        return hotbed_run_fail(t, "%s%s", path, advice);
    return find_checkpoint(t, path, &found) &&
           (found ||
            hotbed_run_fail(
                t, "%s: it has no MANIFEST, so it is not a checkpoint: rename or remove it", path));
}

/* Choose the checkpoint with the highest step in its name, and read its position. */
static bool choose(hotbed_run *t, search *s, choice *c) {
    char why[96];
    bool found;
    if (!t->options.resume && !find_checkpoint(t, s->directory, &c->given))
        return false;
    if (c->given) {
        snprintf(c->path, sizeof c->path, "%s", s->directory);
        return check_load(t, s->option, c->path, read_place(c->path, &c->place));
    }
    while (newest(t, s->option, s->directory, s->below, &found, &c->step)) {
        if (!found) {
            c->path[0] = '\0';
            return true;
        }
        if (!step_path(t, s->directory, c->step, c->path) || !check_kind(t, c->path))
            return false;
        hotbed_status status = read_place(c->path, &c->place);
        const bool other = c->place.magic[0] != '\0' && c->place.steps != c->step;
        if (status != HOTBED_ERR_CORRUPT && !other)
            return check_load(t, s->option, c->path, status);
        snprintf(why, sizeof why, "it was saved at step %llu", (unsigned long long)c->place.steps);
        if (!pass_over(t, s, c, other ? why : hotbed_last_error()))
            return false;
    }
    return false;
}

/* Whether a name cannot be that of a checkpoint: hidden ones, and the directory of a file system's repairs, which only
 * root can read. */
static bool is_no_checkpoint(const char *name) {
    return name[0] == '.' || strcmp(name, "lost+found") == 0;
}

/* Say which checkpoints of a directory are newer than the loaded one, but do not have the names of
 * this run's: copies, for example. */
static void mention_others(const search *s, const choice *c) {
    DIR *list = opendir(s->directory);
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;) {
        char path[PATH_BYTES + 256];
        uint64_t step;
        hotbed_train_place place;
        bool found;
        snprintf(path, sizeof path, "%s/%s", s->directory, entry->d_name);
        if (is_no_checkpoint(entry->d_name) || strstr(entry->d_name, ".damaged") != NULL ||
            parse_step(entry->d_name, &step))
            continue;
        int error = look_for_checkpoint(path, &found);
        if (error != 0)
            hotbed_train_say(
                "warning: %s: cannot find out whether it is a checkpoint: %s: ignored", path,
                strerror(error));
        if (found && read_place(path, &place) == HOTBED_OK && place.steps > c->step)
            hotbed_train_say(
                "warning: %s, saved at step %llu, is not one of this run's checkpoints: ignored",
                path, (unsigned long long)place.steps);
    }
    if (list != NULL)
        closedir(list);
}

/* List the names of checkpoints that cannot be loaded: damaged ones, and copies. */
static bool list_others(hotbed_run *t, const char *directory, char *names, size_t bytes) {
    DIR *list = opendir(directory);
    int error = errno;
    size_t used = 0;
    bool ok = true;
    names[0] = '\0';
    for (struct dirent *entry; ok && list != NULL && (entry = next_entry(list, &error)) != NULL;) {
        char path[PATH_BYTES + 256];
        bool found = false;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        const bool aside = strncmp(entry->d_name, "step-", 5) == 0 &&
                           strstr(entry->d_name, ".damaged") != NULL && is_directory(path);
        if (!is_no_checkpoint(entry->d_name) && !aside)
            ok = find_checkpoint(t, path, &found);
        if (!aside && !found)
            continue;
        if (used + strlen(entry->d_name) + 8 > bytes) {
            snprintf(names + used, bytes - used, ", ...");
            break;
        }
        used += (size_t)snprintf(
            names + used, bytes - used, "%s%s", used > 0 ? ", " : "", entry->d_name);
    }
    if (list != NULL)
        closedir(list);
    if (ok && error != 0)
        ok = hotbed_run_fail(t, "%s: cannot read: %s", directory, strerror(error));
    return ok;
}

/* There is nothing to load. Only a run without any checkpoint begins at step 0. */
static bool begin_anew(hotbed_run *t, const search *s) {
    char names[512];
    if (t->rank > 0)
        return true;
    if (!list_others(t, s->directory, names, sizeof names))
        return false;
    if (names[0] != '\0')
        return hotbed_run_fail(
            t,
            "%s %s: it has no whole checkpoint of this run, but %s: restore one, check it with "
            "'hotbed-ckpt verify', and name it step-NNNNNNNNNN by its step%s",
            s->option, s->directory, names,
            t->options.resume ? ", or move them away to begin at step 0" : "");
    if (!t->options.resume)
        return hotbed_run_fail(
            t, "--load %s: neither a checkpoint nor a directory of them", s->directory);
    if (!t->options.quiet)
        hotbed_train_say("%s has no checkpoint: training begins at step 0", s->directory);
    return true;
}

bool hotbed_run_load(hotbed_run *t) {
    const bool resume = t->options.resume;
    search s = {
        .option = resume ? "--resume" : "--load",
        .directory = resume ? t->options.save : t->options.load,
        .below = UINT64_MAX,
    };
    for (;;) {
        hotbed_status status = HOTBED_OK;
        uint32_t first;
        choice c;
        memset(&c, 0, sizeof c);
        if (!hotbed_run_agree(t, t->rank > 0 || choose(t, &s, &c)) ||
            !hotbed_run_share(t, sizeof c, &c))
            return false;
        if (c.path[0] == '\0')
            return hotbed_run_agree(t, begin_anew(t, &s));
        /* The choice reads no rows. The ranks may find other errors. */
        if (!load(t, c.path, &status) || !hotbed_run_find(t, status == HOTBED_ERR_CORRUPT, &first))
            return false;
        if (first == t->ranks || c.given) {
            if (!hotbed_run_agree(t, check_load(t, s.option, c.path, status)) ||
                !place_loaded(t, c.path, &c.place, s.damaged))
                return false;
            if (t->rank == 0 && !c.given)
                mention_others(&s, &c);
            return true;
        }
        const char *why = status == HOTBED_OK ? "another rank cannot load it" : hotbed_last_error();
        if (!hotbed_run_agree(t, t->rank > 0 || pass_over(t, &s, &c, why)))
            return false;
    }
}

/* Check that this run still saves to the directory: no other run may save there. */
static bool check_lock(hotbed_run *t) {
    char why[sizeof t->error];
    const char *directory = t->options.save;
    if (!is_directory(directory))
        (void)snprintf(
            why, sizeof why,
            "the directory %s is gone: if it was moved, its checkpoints are where it is now, and "
            "the run can resume there",
            directory);
    else if (t->rank > 0 || hotbed_save_lock_check(&t->save_lock, why, sizeof why))
        return true;
    return hotbed_run_fail(
        t, "--save: step %llu was not saved: %s", (unsigned long long)t->place.steps, why);
}

static bool save(hotbed_run *t, const char *path) {
    hotbed_route routes[HOTBED_CRITEO_FIELDS];
    hotbed_checkpoint_options options = {.size = sizeof options, .step = t->place.steps};
    const hotbed_checkpoint_blob place = {place_name, &t->place, sizeof t->place};
    options.blobs = &place;
    options.num_blobs = 1;
    options.comm = t->comm;
    if (!share_of(t, routes, &options.share))
        return false;
    hotbed_status status = hotbed_checkpoint_save(path, &t->storage, 1, &options, t->stream);
    return (status == HOTBED_OK || check_lock(t)) && hotbed_run_ok(t, status, "--save");
}

bool hotbed_run_save(hotbed_run *t) {
    char path[PATH_BYTES];
    if (!hotbed_run_sync(t)) /* all steps so far are done and counted in `place` */
        return false;
    if (t->saved && t->saved_step == t->place.steps)
        return true; /* --save-every fell on the last step, or no step was trained since a load */
    if (!step_path(t, t->options.save, t->place.steps, path) || !hotbed_run_agree(t, check_lock(t)))
        return false;
    t->saved = copy_dense(t, false) && save(t, path);
    t->saved_step = t->place.steps;
    return t->saved;
}
