/* examples/train/trainer_save.c - checkpoints: the tables, the bias and the place in the data. */
#include "examples/train/trainer.h"
#include "hotbed/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { PATH_BYTES = 4096 };

/* The step of a name "step-0000000010"; false for another name. */
static bool parse_step(const char *name, uint64_t *step) {
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return false;
    errno = 0;
    *step = strtoull(name + 5, &end, 10);
    return errno == 0 && *end == '\0';
}

/* The newest checkpoint of a directory; *found is false when there is none. */
static bool newest(
    hotbed_run *t, const char *directory, bool *found, uint64_t *step, char name[256]) {
    DIR *list = opendir(directory);
    *found = false;
    if (list == NULL)
        return hotbed_run_fail(t, "%s: %s", directory, strerror(errno));
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
    /* A slot's loss is pinned, 256 bytes, and free between steps. */
    void *pinned = t->slots[0].loss;
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

/* Which rows of the tables this rank has. */
static bool share_of(
    hotbed_run *t, hotbed_route routes[HOTBED_CRITEO_FIELDS], hotbed_checkpoint_share *share) {
    for (uint32_t f = 0; f < HOTBED_CRITEO_FIELDS; f++) {
        hotbed_sharded_table table;
        if (!hotbed_run_ok(t, hotbed_sharded_table_read(t->sharded, f, &table), "table"))
            return false;
        routes[f] = table.route;
    }
    *share = (hotbed_checkpoint_share){.rank = t->rank, .world = t->ranks, .routes = routes};
    return true;
}

/* Fill the tables, and the place that is read, on all ranks together. */
static bool load(hotbed_run *t, const char *path, hotbed_status *status) {
    uint64_t step = 0, bytes = sizeof t->loaded;
    hotbed_route routes[HOTBED_CRITEO_FIELDS];
    hotbed_checkpoint_load_options options;
    hotbed_checkpoint_load_options_init(&options);
    options.comm = t->comm;
    if (!share_of(t, routes, &options.share))
        return false;
    memset(&t->loaded, 0, sizeof t->loaded);
    *status = hotbed_checkpoint_load_with(
        path, t->storage, &options, &step, &t->loaded, &bytes, t->stream);
    if (bytes != sizeof t->loaded)
        t->loaded.magic[0] = 0;
    return true;
}

/* Take the place over. */
static bool place_loaded(hotbed_run *t, const char *path) {
    if (memcmp(t->loaded.magic, t->place.magic, sizeof t->place.magic) != 0)
        return hotbed_run_fail(t, "%s: was not saved by this hotbed-train", path);
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
    return copy_dense(t, true);
}

bool hotbed_run_prepare_save(hotbed_run *t) {
    bool found;
    uint64_t step = 0;
    char name[256];
    const char *directory = t->options.save;
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return hotbed_run_fail(t, "%s: %s", directory, strerror(errno));
    if (!newest(t, directory, &found, &step, name))
        return false;
    if (found && step > t->place.steps)
        return hotbed_run_fail(
            t, "%s has %s of an earlier run: --load it, or save to another directory", directory,
            name);
    return true;
}

bool hotbed_run_load(hotbed_run *t) {
    char path[PATH_BYTES];
    char name[256];
    bool found;
    uint64_t step = 0;
    struct stat file;
    hotbed_status status = HOTBED_OK;
    const char *directory = t->options.load;
    snprintf(path, sizeof path, "%s/MANIFEST", directory);
    if (stat(path, &file) == 0) {
        snprintf(path, sizeof path, "%s", directory);
    } else {
        if (!newest(t, directory, &found, &step, name))
            return false;
        if (!found)
            return hotbed_run_fail(
                t, "%s: neither a checkpoint nor a directory of them", directory);
        snprintf(path, sizeof path, "%s/%s", directory, name);
    }
    return load(t, path, &status) && hotbed_run_ok(t, status, "--load") && place_loaded(t, path);
}

/* The name of the newest checkpoint, as rank 0 finds it; "" when there is none. */
static bool newest_of_all(hotbed_run *t, const char *directory, char name[256]) {
    bool found;
    uint64_t step = 0;
    memset(name, 0, 256);
    return (t->rank > 0 || newest(t, directory, &found, &step, name)) &&
           hotbed_run_share(t, 256, name);
}

/* Rank 0 does it, while the others wait for the next name. */
static bool put_aside(hotbed_run *t, const char *path) {
    char aside[PATH_BYTES + 16];
    if (t->rank > 0)
        return true;
    hotbed_train_say("%s is damaged, and put aside: %s", path, hotbed_last_error());
    snprintf(aside, sizeof aside, "%s.damaged", path);
    return rename(path, aside) == 0 || hotbed_run_fail(t, "%s: %s", aside, strerror(errno));
}

bool hotbed_run_resume(hotbed_run *t) {
    char path[PATH_BYTES], name[256];
    const char *directory = t->options.save;
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return hotbed_run_fail(t, "%s: %s", directory, strerror(errno));
    while (newest_of_all(t, directory, name)) {
        hotbed_status status = HOTBED_OK;
        if (name[0] == '\0')
            return true;
        snprintf(path, sizeof path, "%.3800s/%s", directory, name);
        if (!load(t, path, &status))
            return false;
        if (status != HOTBED_ERR_CORRUPT)
            return hotbed_run_ok(t, status, "--resume") && place_loaded(t, path);
        if (!put_aside(t, path))
            return false;
    }
    return false;
}

static bool save(hotbed_run *t, const char *path) {
    hotbed_route routes[HOTBED_CRITEO_FIELDS];
    hotbed_checkpoint_options options;
    hotbed_checkpoint_options_init(&options);
    options.step = t->place.steps;
    options.extra = &t->place;
    options.extra_bytes = sizeof t->place;
    options.comm = t->comm;
    return share_of(t, routes, &options.share) &&
           hotbed_run_ok(
               t, hotbed_checkpoint_save(path, t->storage, &options, t->stream), "--save");
}

bool hotbed_run_save(hotbed_run *t) {
    char path[PATH_BYTES];
    struct stat status;
    if (!hotbed_run_sync(t)) /* all steps so far are done, and counted in `place` */
        return false;
    int n = snprintf(
        path, sizeof path, "%s/step-%010llu", t->options.save, (unsigned long long)t->place.steps);
    if (n < 0 || (size_t)n >= sizeof path)
        return hotbed_run_fail(t, "%s: the name is too long", t->options.save);
    uint8_t saved = stat(path, &status) == 0 ? 1 : 0;
    if (!hotbed_run_share(t, sizeof saved, &saved))
        return false;
    if (saved == 1)
        return true; /* this step is saved: --save-every fell on the last one */
    return copy_dense(t, false) && save(t, path);
}
