/* checkpoint/tool/tool_gc.c - hotbed-ckpt gc: choose which checkpoints to keep, and remove the others.
 *
 * A tree is a full checkpoint and all increments that follow it. Trees are kept or removed as a
 * whole. A tree is kept if it is among the newest, if it has the newest whole checkpoint, if a link
 * leads to it, or if something in it, or something that may follow it, is damaged. Links are neither
 * followed nor removed. */
#define _DEFAULT_SOURCE /* flock() */
#include "checkpoint/tool/tool.h"

#include "base/error.h"
#include "base/stream.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- what stays --------------------------------------------------------------------------------------------- */

static void keep_tree(tool_entry *entries, size_t at, size_t why) {
    tool_entry *root = entries[at].root == TOOL_NONE ? &entries[at] : &entries[entries[at].root];
    if (!root->kept)
        root->why = why;
    root->kept = true;
}

/* Keep the newest full checkpoints. Copies of a checkpoint count once. */
static void keep_newest(tool_entry *entries, size_t n, uint64_t keep) {
    for (size_t i = n; i-- > 0;) {
        tool_entry *e = &entries[i];
        bool copy = false;
        if (e->state != TOOL_WHOLE || e->increment)
            continue;
        for (size_t k = i + 1; k < n && !copy; k++)
            copy = entries[k].kept && hotbed_digest_equal(entries[k].id, e->id);
        e->kept = copy || keep > 0;
        keep -= !copy && keep > 0;
    }
}

/* Keep all trees that an entry may follow whose parents are not known, because its own MANIFEST or one of theirs
 * cannot be read. Entries are in order of step, and those without a readable MANIFEST come last. */
static void keep_before(tool_entry *entries, size_t at) {
    for (size_t i = 0; i < at; i++)
        if (entries[i].root == i)
            keep_tree(entries, i, at);
}

static void choose(tool_entry *entries, size_t n, uint64_t keep) {
    size_t newest = TOOL_NONE;
    keep_newest(entries, n, keep);
    for (size_t i = 0; i < n; i++) {
        const tool_entry *e = &entries[i];
        if (e->state == TOOL_WHOLE)
            newest = i; /* entries are in order */
        if (tool_is_broken(e))
            keep_tree(entries, i, i);
        if (tool_is_broken(e) && e->root == TOOL_NONE)
            keep_before(entries, i);
        if (e->state == TOOL_LINK && e->root != TOOL_NONE)
            keep_tree(entries, i, i);
        if (e->state == TOOL_LINK && e->target != TOOL_NONE)
            keep_tree(entries, e->target, i);
    }
    if (newest != TOOL_NONE)
        keep_tree(entries, newest, newest);
}

static bool stays(const tool_options *o, const tool_entry *entries, const tool_entry *e) {
    if (e->state == TOOL_UNFINISHED)
        return !o->unfinished || e->kept;
    return o->keep == 0 || e->state != TOOL_WHOLE || e->kept || entries[e->root].kept;
}

/* Sort entries for removal: the oldest tree first, and in a tree each increment before the
 * checkpoint that it follows, so an interrupted removal leaves no increment without its parent.
 * Unfinished saves come last. */
static int by_tree(const void *a, const void *b) {
    const tool_entry *x = *(const tool_entry *const *)a, *y = *(const tool_entry *const *)b;
    if (x->root != y->root)
        return x->root < y->root ? -1 : 1;
    if (x->depth != y->depth)
        return x->depth > y->depth ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* --- removal --------------------------------------------------------------------------------------------------- */

/* The directory whose entries are removed. */
typedef struct place {
    int handle;
    const char *path;
} place;

/* Fail at an entry of the directory; `in` is NULL, or the entry that contains it. */
static hotbed_status fail_at(const char *what, const place *p, const char *in, const char *name) {
    const int error = errno;
    char path[2048];
    snprintf(
        path, sizeof path, "%s/%s%s%s", p->path, in == NULL ? "" : in, in == NULL ? "" : "/", name);
    return hotbed_io_fail(what, path, -error);
}

/* Whether a call failed because another gc has removed the entry or file meanwhile, or has renamed it. */
static bool is_gone(int result) {
    return result != 0 && errno == ENOENT;
}

static bool is_dots(const char *name) {
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Open an entry that is a directory, for its names. *out is NULL if it is gone. Errors: IO, MEMORY. */
static hotbed_status open_list(const place *p, const char *name, DIR **out) {
    int handle = openat(p->handle, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    *out = NULL;
    if (handle < 0)
        return is_gone(handle) ? HOTBED_OK : fail_at("cannot open", p, NULL, name);
    *out = fdopendir(handle);
    if (*out != NULL)
        return HOTBED_OK;
    close(handle);
    return hotbed_fail(HOTBED_ERR_MEMORY, "no memory to read %s", name);
}

/* Refuse a checkpoint that contains a directory. No checkpoint has one, so it belongs to someone
 * else. */
static hotbed_status check_files(const place *p, DIR *files, const char *name) {
    struct stat stat;
    for (struct dirent *item; (item = readdir(files)) != NULL;) {
        if (is_dots(item->d_name))
            continue;
        const int found = fstatat(dirfd(files), item->d_name, &stat, AT_SYMLINK_NOFOLLOW);
        if (is_gone(found))
            continue;
        if (found != 0)
            return fail_at("cannot look at", p, name, item->d_name);
        if (S_ISDIR(stat.st_mode))
            return hotbed_fail(
                HOTBED_ERR_STATE,
                "%s/%s contains a directory, %s, and is not removed: move that elsewhere, and run "
                "gc again",
                p->path, name, item->d_name);
    }
    rewinddir(files);
    return HOTBED_OK;
}

/* Rename to ".tmp-gone-<name>", or to a numbered form if an earlier removal left that name. `gone` is empty if the
 * entry is gone. */
static hotbed_status take_name(const place *p, const char *name, char gone[TOOL_NAME_BYTES]) {
    enum { TRIES = 10000 };
    for (int i = 0; i < TRIES; i++) {
        struct stat stat;
        snprintf(
            gone, TOOL_NAME_BYTES, i == 0 ? ".tmp-gone-%.200s" : ".tmp-gone-%.200s.%d", name, i);
        if (fstatat(p->handle, gone, &stat, AT_SYMLINK_NOFOLLOW) == 0)
            continue;
        const int renamed = renameat(p->handle, name, p->handle, gone);
        if (is_gone(renamed))
            gone[0] = '\0';
        if (renamed == 0 || is_gone(renamed))
            return HOTBED_OK;
        if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR)
            return fail_at("cannot rename", p, NULL, name);
    }
    return hotbed_fail(
        HOTBED_ERR_STATE, "cannot rename %s/%s: %s and %d more names exist", p->path, name, gone,
        TRIES - 1);
}

/* Remove all files of entry `name`, and count them. */
static hotbed_status remove_files(const place *p, const char *name, DIR *files, size_t *removed) {
    for (struct dirent *item; (item = readdir(files)) != NULL;) {
        if (is_dots(item->d_name))
            continue;
        const int unlinked = unlinkat(dirfd(files), item->d_name, 0);
        if (unlinked != 0 && !is_gone(unlinked))
            return fail_at("cannot remove", p, name, item->d_name);
        ++*removed;
    }
    return HOTBED_OK;
}

/* Remove the files of directory `gone`, which was called `name`, and then the directory. */
static hotbed_status remove_named(const place *p, const char *name, const char *gone, DIR *files) {
    size_t removed = 0;
    hotbed_status status = HOTBED_OK;
    if (strcmp(name, gone) != 0 && fsync(p->handle) != 0)
        status = hotbed_io_fail("cannot sync", p->path, -errno);
    HOTBED_THEN(status, remove_files(p, gone, files, &removed));
    const int unlinked = status == HOTBED_OK ? unlinkat(p->handle, gone, AT_REMOVEDIR) : 0;
    if (unlinked != 0 && !is_gone(unlinked))
        status = fail_at("cannot remove", p, NULL, gone);
    if (status == HOTBED_OK || strcmp(name, gone) == 0)
        return status;
    if (removed == 0 && renameat(p->handle, gone, p->handle, name) == 0)
        return status; /* nothing was removed, and it has its name again */
    return hotbed_fail(
        status, "%s; what is left of %s is %s/%s, which gc --unfinished removes",
        hotbed_last_error(), name, p->path, gone);
}

/* Check that an entry is what was listed. `found` is the result of the call that set *stat. */
static hotbed_status check_same(
    const place *p, const tool_entry *e, int found, const struct stat *stat) {
    if (found != 0)
        return fail_at("cannot look at", p, NULL, e->name);
    return stat->st_dev == e->device && stat->st_ino == e->inode
               ? HOTBED_OK
               : hotbed_fail(HOTBED_ERR_STATE, "%s/%s was replaced meanwhile", p->path, e->name);
}

/* Remove a checkpoint. It is renamed first, so an interrupted removal leaves nothing that looks
 * like a checkpoint. With `dry`, only check that it can be removed. *removed is false if it is gone. */
static hotbed_status remove_open(
    const place *p, const tool_entry *e, DIR *files, bool dry, bool *removed) {
    char gone[TOOL_NAME_BYTES];
    struct stat stat;
    HOTBED_TRY(check_same(p, e, fstat(dirfd(files), &stat), &stat));
    HOTBED_TRY(check_files(p, files, e->name));
    snprintf(gone, sizeof gone, "%s", e->name);
    if (!dry && e->state != TOOL_UNFINISHED)
        HOTBED_TRY(take_name(p, e->name, gone));
    *removed = gone[0] != '\0';
    return *removed && !dry ? remove_named(p, e->name, gone, files) : HOTBED_OK;
}

/* Remove an unfinished export that is a plain file. */
static hotbed_status remove_file(const place *p, const tool_entry *e, bool dry, bool *removed) {
    struct stat stat;
    int result = fstatat(p->handle, e->name, &stat, AT_SYMLINK_NOFOLLOW);
    if (is_gone(result))
        return HOTBED_OK;
    HOTBED_TRY(check_same(p, e, result, &stat));
    result = dry ? 0 : unlinkat(p->handle, e->name, 0);
    if (is_gone(result))
        return HOTBED_OK;
    *removed = result == 0;
    return *removed ? HOTBED_OK : fail_at("cannot remove", p, NULL, e->name);
}

/* Remove an entry. *removed is false if it is gone, because another gc runs. */
static hotbed_status remove_entry(const place *p, const tool_entry *e, bool dry, bool *removed) {
    *removed = false;
    if (e->file)
        return remove_file(p, e, dry, removed);
    DIR *files = NULL;
    HOTBED_TRY(open_list(p, e->name, &files));
    if (files == NULL)
        return HOTBED_OK;
    hotbed_status status = remove_open(p, e, files, dry, removed);
    closedir(files);
    return status;
}

/* --- the command ------------------------------------------------------------------------------------------------ */

/* Fail if anything is damaged, after printing each damaged entry. */
static hotbed_status check_broken(const tool_options *o, const tool_entry *entries, size_t n) {
    bool broken = false;
    for (size_t i = 0; i < n; i++) {
        if (!tool_is_broken(&entries[i]))
            continue;
        broken = true;
        if (!o->leave_damaged)
            fprintf(
                stderr, "hotbed-ckpt: %s is %s: %s\n", tool_show(entries[i].name).text,
                tool_state_name(entries[i].state), entries[i].text);
    }
    if (!broken || o->leave_damaged)
        return HOTBED_OK;
    return hotbed_fail(
        HOTBED_ERR_CORRUPT,
        "%s: nothing was removed, because some checkpoints are damaged or unreadable: restore or "
        "remove the damaged ones; for unreadable ones run gc as a user who may read them, and in a "
        "version as new as theirs; or keep both with --leave-damaged",
        o->paths[0]);
}

/* Whether gc says why it keeps an entry: it is the first checkpoint of a tree, or a link in place
 * of one that increments follow. Links and other directories are always kept. */
static bool is_named_when_kept(const tool_entry *entries, size_t n, size_t at) {
    bool followed = false;
    if (entries[at].state != TOOL_LINK)
        return entries[at].state != TOOL_OTHER;
    for (size_t i = 0; i < n && !followed; i++)
        followed = i != at && entries[i].root == at;
    return followed;
}

/* Print why a tree is kept that is not among the newest. */
static void print_kept(const tool_entry *entries, const tool_entry *e) {
    const tool_entry *why = &entries[e->why];
    if (why == e && e->state == TOOL_LINK)
        printf("kept the increments that follow %s, a link\n", tool_show(e->name).text);
    else if (why->state == TOOL_LINK)
        printf(
            "kept %s: %s leads to it or to an increment that follows it\n", tool_show(e->name).text,
            tool_show(why->name).text);
    else if (why->state == TOOL_WHOLE)
        printf(
            "kept %s: the newest checkpoint, %s, follows it\n", tool_show(e->name).text,
            tool_show(why->name).text);
    else if (why != e)
        printf(
            "kept %s: %s, which %s it, is %s\n", tool_show(e->name).text, tool_show(why->name).text,
            why->root == TOOL_NONE ? "may follow" : "follows", tool_state_name(why->state));
    else
        printf("kept %s: it is %s\n", tool_show(e->name).text, tool_state_name(e->state));
}

/* Remove the entries in `order`, and print their names. */
static hotbed_status remove_all(
    const tool_options *o, const place *p, const tool_entry *const *order, size_t n) {
    hotbed_status result = HOTBED_OK;
    size_t failed = TOOL_NONE, removed = 0;
    for (size_t i = 0; i < n; i++) {
        const tool_entry *e = order[i];
        if (e->root != TOOL_NONE && e->root == failed)
            continue; /* an increment that follows it still exists */
        bool gone = false;
        hotbed_status status = remove_entry(p, e, o->dry_run, &gone);
        if (status != HOTBED_OK) {
            tool_fail(status);
            failed = e->root;
            result = status;
        }
        if (status != HOTBED_OK || !gone)
            continue;
        if (o->json) {
            printf("%s", removed == 0 ? "" : ", ");
            tool_json_text(e->name);
        } else {
            printf("%s%s\n", o->dry_run ? "would remove " : "removed ", tool_show(e->name).text);
        }
        removed++;
    }
    return result;
}

/* Copy the host from the text of a lock, "process NUMBER on HOST", if it is another one. */
static bool read_other_host(int file, char host[256]) {
    char text[320] = "", here[256] = "";
    *host = '\0';
    if (pread(file, text, sizeof text - 1, 0) > 0)
        (void)sscanf(text, "process %*u on %255[^\n]", host);
    return *host != '\0' && gethostname(here, sizeof here - 1) == 0 && strcmp(host, here) != 0;
}

/* Refuse to remove unfinished saves while a hotbed-train saves to the directory: one of them may be
 * its own. examples/train/save_lock.h makes the lock. */
static hotbed_status check_trainer(const place *p) {
    static const char name[] = ".hotbed-train.lock";
    char host[256];
    const int file = openat(p->handle, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) /* no such run; or the file system says why nothing can be removed */
        return HOTBED_OK;
    const bool locked = flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    const bool elsewhere = read_other_host(file, host);
    close(file);
    if (elsewhere)
        return hotbed_fail(
            HOTBED_ERR_STATE,
            "%s: a hotbed-train on %s may be saving here: if it has ended, remove %s, and run gc "
            "again",
            p->path, tool_show(host).text, name);
    if (!locked)
        return HOTBED_OK;
    return hotbed_fail(
        HOTBED_ERR_STATE,
        "%s: a hotbed-train that holds %s saves here: run gc --unfinished after it has ended, or "
        "gc without --unfinished now",
        p->path, name);
}

/* Print the newest whole checkpoint, which is kept. gc reads no rows, so they may be damaged. */
static void print_newest(const tool_entry *entries, size_t n) {
    for (size_t i = n; i-- > 0;)
        if (entries[i].state == TOOL_WHOLE) {
            printf(
                "newest kept: %s (its rows were not verified)\n", tool_show(entries[i].name).text);
            return;
        }
}

static int gc(const tool_options *o, tool_entry *entries, size_t n) {
    size_t num_gone = 0;
    hotbed_status status = o->keep == 0 ? HOTBED_OK : check_broken(o, entries, n);
    if (status != HOTBED_OK)
        return tool_fail(status);
    const tool_entry **order = hotbed_new(n * sizeof *order);
    if (order == NULL)
        return tool_fail(hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %zu names", n));
    choose(entries, n, o->keep);
    for (size_t i = 0; i < n; i++)
        if (!stays(o, entries, &entries[i]))
            order[num_gone++] = &entries[i];
        else if (
            o->keep > 0 && !o->json && entries[i].why != TOOL_NONE &&
            is_named_when_kept(entries, n, i))
            print_kept(entries, &entries[i]);
    if (num_gone > 0)
        qsort(order, num_gone, sizeof *order, by_tree);
    const place p = {open(o->paths[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC), o->paths[0]};
    if (p.handle < 0)
        status = hotbed_io_fail("cannot open", p.path, -errno);
    else if (o->unfinished)
        status = check_trainer(&p);
    if (status != HOTBED_OK) {
        if (p.handle >= 0)
            close(p.handle);
        hotbed_delete(order);
        return tool_fail(status);
    }
    if (o->json)
        printf("[");
    status = remove_all(o, &p, order, num_gone);
    if (o->json)
        printf(status == HOTBED_OK ? "]\n" : "\n"); /* after a failure the array has no end */
    else if (o->keep > 0)
        print_newest(entries, n);
    close(p.handle);
    hotbed_delete(order);
    return status == HOTBED_OK ? TOOL_SAME : TOOL_TROUBLE;
}

int tool_gc(const tool_options *o) {
    tool_entry *entries = NULL;
    size_t n = 0;
    if (o->keep == 0 && !o->unfinished)
        return tool_usage("gc needs --keep or --unfinished", "");
    if (o->keep == 0 && o->leave_damaged)
        return tool_usage("gc takes --leave-damaged only with --keep", "");
    hotbed_status status = tool_read_checkpoints(o->paths[0], &entries, &n);
    if (status != HOTBED_OK)
        return tool_fail(status);
    tool_note_empty(o->paths[0], entries, n);
    int result = gc(o, entries, n);
    hotbed_delete(entries);
    return result;
}
