/* checkpoint/tool/tool_directory.c - the content of a directory of checkpoints, and their chains. */
#define _DEFAULT_SOURCE /* realpath() */
#include "checkpoint/tool/tool.h"
#include "checkpoint/verify.h"

#include "base/error.h"
#include "base/stream.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *tool_state_name(tool_state state) {
    static const char *const names[] = {"whole",      "orphaned", "damaged", "unreadable",
                                        "unfinished", "link",     "other"};
    return names[state];
}

bool tool_is_broken(const tool_entry *e) {
    return e->state == TOOL_DAMAGED || e->state == TOOL_ORPHANED || e->state == TOOL_UNREADABLE;
}

/* --- one entry ------------------------------------------------------------------------------------------- */

static void set_error(tool_entry *e, tool_state state) {
    e->state = state;
    snprintf(e->text, sizeof e->text, "%s", hotbed_last_error());
}

/* Whether a checkpoint has files of this name. */
static bool is_checkpoint_file(const char *name) {
    const char *end = strrchr(name, '.');
    return strcmp(name, HOTBED_MANIFEST_NAME) == 0 || strcmp(name, HOTBED_INDEX_NAME) == 0 ||
           (strncmp(name, "shard-", 6) == 0 && end != NULL && strcmp(end, ".h5") == 0);
}

/* Find a file of a checkpoint in a directory. `name` is empty if there is none. Errors: IO. */
static hotbed_status find_file(const hotbed_io_file *directory, char name[TOOL_NAME_BYTES]) {
    int handle = openat(directory->handle, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = handle < 0 ? NULL : fdopendir(handle);
    name[0] = '\0';
    if (list == NULL) {
        int error = errno;
        if (handle >= 0)
            close(handle);
        return hotbed_io_fail("cannot read", directory->name, -error);
    }
    for (struct dirent *item; name[0] == '\0' && (item = readdir(list)) != NULL;)
        if (is_checkpoint_file(item->d_name))
            snprintf(name, TOOL_NAME_BYTES, "%s", item->d_name);
    closedir(list);
    return HOTBED_OK;
}

static void copy_manifest(const hotbed_manifest *m, tool_entry *e) {
    e->described = true;
    e->increment = m->increment;
    e->id = m->id;
    e->digest = m->digest;
    e->parent = m->parent;
    e->parent_digest = m->parent_digest;
    e->step = m->step;
    e->created_ns = m->created_ns;
    e->world = m->world;
    e->tables = m->num_tables;
    for (uint32_t t = 0; t < m->num_tables; t++)
        e->rows += m->tables[t].rows;
    for (uint32_t s = 0; s < m->world; s++)
        e->bytes += m->shards[s].bytes;
}

static tool_state state_of(hotbed_status status) {
    return status == HOTBED_ERR_CORRUPT ? TOOL_DAMAGED : TOOL_UNREADABLE;
}

/* Describe a directory without MANIFEST. It is no checkpoint unless it has other files of one. */
static void describe_rest(const hotbed_io_file *directory, tool_entry *e) {
    char file[TOOL_NAME_BYTES];
    e->state = TOOL_OTHER;
    if (find_file(directory, file) != HOTBED_OK) {
        set_error(e, TOOL_UNREADABLE);
    } else if (file[0] != '\0') {
        hotbed_fail_path(
            HOTBED_ERR_CORRUPT, directory->name, "%s/%s is missing, but %s is there",
            directory->name, HOTBED_MANIFEST_NAME, file);
        set_error(e, TOOL_DAMAGED);
    }
}

/* Describe a directory: read MANIFEST, and compare it with the files. */
static void describe_open(const hotbed_io_file *directory, tool_entry *e) {
    hotbed_manifest m = {.world = 0};
    const hotbed_io_calls *calls = directory->calls;
    if (calls->exists(calls->self, directory->handle, HOTBED_MANIFEST_NAME) == -ENOENT) {
        describe_rest(directory, e);
        return;
    }
    hotbed_status status = hotbed_manifest_read(directory, &m);
    if (status == HOTBED_OK) {
        copy_manifest(&m, e);
        status = hotbed_checkpoint_check_files(directory, &m);
    }
    if (status != HOTBED_OK)
        set_error(e, state_of(status));
    else
        e->state = TOOL_WHOLE;
    e->good = status == HOTBED_OK;
    hotbed_manifest_free(&m);
}

/* Describe an entry of directory `in`; NULL: the current directory. */
static void describe(const hotbed_io_file *in, const char *name, tool_entry *e) {
    hotbed_io_file directory = HOTBED_IO_CLOSED;
    if (hotbed_io_open(&hotbed_io_system, in, name, HOTBED_IO_DIRECTORY, &directory) == HOTBED_OK)
        describe_open(&directory, e);
    else
        set_error(e, TOOL_UNREADABLE);
    hotbed_io_drop(&directory);
}

/* Describe a link. In chains, a link to a checkpoint counts as the checkpoint. */
static void describe_link(const hotbed_io_file *in, tool_entry *e) {
    struct stat stat;
    if (fstatat(in->handle, e->name, &stat, 0) == 0 && S_ISDIR(stat.st_mode))
        describe(in, e->name, e);
    e->state = TOOL_LINK;
    ssize_t n = readlinkat(in->handle, e->name, e->text, sizeof e->text - 1);
    e->text[n < 0 ? 0 : n] = '\0';
}

/* Count a checkpoint that was renamed as damaged, even if its files have the right sizes. */
static void mark_by_name(tool_entry *e) {
    if (e->state != TOOL_WHOLE || !hotbed_is_damaged_name(e->name))
        return;
    e->good = false;
    e->state = TOOL_DAMAGED;
    snprintf(
        e->text, sizeof e->text,
        "a load found damage and renamed it; 'hotbed-ckpt verify' shows where");
}

bool tool_is_draft_name(const char *name) {
    return strncmp(name, ".tmp-", 5) == 0 && strlen(name + 5) == HOTBED_DIGEST_DIGITS &&
           strspn(name + 5, "0123456789abcdef") == HOTBED_DIGEST_DIGITS;
}

/* Read an entry. Returns false for a plain file that no command wrote, or if the entry was removed
 * meanwhile. */
static bool read_entry(const hotbed_io_file *in, const char *name, tool_entry *e) {
    struct stat stat;
    *e =
        (tool_entry){.before = TOOL_NONE, .root = TOOL_NONE, .target = TOOL_NONE, .why = TOOL_NONE};
    snprintf(e->name, sizeof e->name, "%s", name);
    if (fstatat(in->handle, name, &stat, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT)
            return false;
        hotbed_io_fail("cannot examine", name, -errno);
        set_error(e, TOOL_UNREADABLE);
        return true;
    }
    if (S_ISLNK(stat.st_mode)) {
        describe_link(in, e);
        return true;
    }
    e->file = S_ISREG(stat.st_mode) && tool_is_draft_name(name);
    if (!S_ISDIR(stat.st_mode) && !e->file)
        return false;
    e->device = stat.st_dev;
    e->inode = stat.st_ino;
    if (strncmp(name, ".tmp-", 5) == 0) {
        e->state = TOOL_UNFINISHED;
    } else {
        describe(in, name, e);
        mark_by_name(e);
    }
    return true;
}

/* --- which follows which ------------------------------------------------------------------------------------ */

static int by_step(const void *a, const void *b) {
    const tool_entry *x = a, *y = b;
    bool p = x->described && x->state != TOOL_LINK, q = y->described && y->state != TOOL_LINK;
    if (p != q)
        return p ? -1 : 1;
    if (p && x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (p && x->created_ns != y->created_ns)
        return x->created_ns < y->created_ns ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_digests(hotbed_digest a, hotbed_digest b) {
    if (a.high != b.high)
        return a.high < b.high ? -1 : 1;
    return a.low < b.low ? -1 : a.low > b.low;
}

static int by_parent(const void *a, const void *b) {
    const tool_entry *x = *(const tool_entry *const *)a, *y = *(const tool_entry *const *)b;
    return compare_digests(x->parent, y->parent);
}

/* The walk from full checkpoints to the increments that follow them. */
typedef struct walk {
    tool_entry *entries;
    tool_entry **increments; /* in order of their parents' ids */
    size_t num_increments;
    size_t *queue; /* entries that were reached */
    size_t num_reached;
} walk;

/* Return the first of the increments whose parent has this id. */
static size_t first_after(const walk *w, hotbed_digest id) {
    size_t low = 0, high = w->num_increments;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_digests(w->increments[middle]->parent, id) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Reach all increments that follow the entries of the queue from `at` on. If `good`, only through
 * entries whose files are right. */
static void reach(walk *w, size_t at, bool good) {
    for (; at < w->num_reached; at++) {
        tool_entry *p = &w->entries[w->queue[at]];
        for (size_t i = first_after(w, p->id);
             i < w->num_increments && hotbed_digest_equal(w->increments[i]->parent, p->id); i++) {
            tool_entry *e = w->increments[i];
            if (e->root != TOOL_NONE || (good && !e->good) ||
                !hotbed_digest_equal(e->parent_digest, p->digest))
                continue;
            e->whole = good;
            e->before = w->queue[at];
            e->root = p->root;
            e->depth = p->depth + 1;
            w->queue[w->num_reached++] = (size_t)(e - w->entries);
        }
    }
}

static void add_roots(walk *w, size_t n, bool good, bool links) {
    for (size_t i = 0; i < n; i++) {
        tool_entry *e = &w->entries[i];
        if (!e->described || e->increment || e->root != TOOL_NONE || (good && !e->good) ||
            (e->state == TOOL_LINK) != links)
            continue;
        e->whole = good;
        e->root = i;
        w->queue[w->num_reached++] = i;
    }
}

/* Set the reason why an increment cannot be used, which is its parent. */
static void blame_parent(tool_entry *e, const tool_entry *parent) {
    if (parent->state == TOOL_LINK)
        snprintf(
            e->text, sizeof e->text, "it follows %s, a link to a checkpoint that cannot be used",
            parent->name);
    else
        snprintf(
            e->text, sizeof e->text, "it follows %s, which is %s", parent->name,
            tool_state_name(parent->state));
    hotbed_escape(e->text, sizeof e->text);
}

/* Set the reason why an increment cannot be used, for increments that were not reached, or only
 * through a damaged checkpoint. */
static void set_orphans(const walk *w, size_t n) {
    for (size_t i = 0; i < w->num_increments; i++) {
        tool_entry *e = w->increments[i];
        if (e->state == TOOL_ORPHANED && e->before == TOOL_NONE)
            snprintf(
                e->text, sizeof e->text, "its parent %s was not found in this directory",
                hotbed_digest_text(e->parent).text);
        else if (e->state == TOOL_ORPHANED)
            blame_parent(e, &w->entries[e->before]);
    }
    for (size_t at = 0; at < n; at++) { /* parents that were not reached either */
        const tool_entry *p = &w->entries[at];
        for (size_t i = p->described ? first_after(w, p->id) : w->num_increments;
             i < w->num_increments && hotbed_digest_equal(w->increments[i]->parent, p->id); i++) {
            tool_entry *e = w->increments[i];
            if (e->state == TOOL_ORPHANED && e->before == TOOL_NONE &&
                hotbed_digest_equal(e->parent_digest, p->digest))
                blame_parent(e, p);
        }
    }
}

/* Walk undamaged chains first, so that an increment whose parent exists twice, once damaged,
 * follows the undamaged copy. Then walk damaged chains, to find the increments that belong to
 * them. */
static void walk_chains(walk *w, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (w->entries[i].described && w->entries[i].increment)
            w->increments[w->num_increments++] = &w->entries[i];
    if (w->num_increments > 0)
        qsort(w->increments, w->num_increments, sizeof *w->increments, by_parent);
    add_roots(w, n, true, false);
    add_roots(w, n, true, true);
    reach(w, 0, true);
    for (size_t i = 0; i < w->num_increments; i++)
        if (w->increments[i]->state == TOOL_WHOLE && !w->increments[i]->whole)
            w->increments[i]->state = TOOL_ORPHANED;
    add_roots(w, n, false, false);
    add_roots(w, n, false, true);
    reach(w, 0, false);
    set_orphans(w, n);
}

static hotbed_status find_chains(tool_entry *entries, size_t n) {
    walk w = {.entries = entries};
    w.increments = hotbed_new(n * sizeof *w.increments);
    w.queue = hotbed_new(n * sizeof *w.queue);
    hotbed_status status =
        HOTBED_CHECK_MEMORY(w.increments != NULL && w.queue != NULL, "%zu names", n);
    if (status == HOTBED_OK)
        walk_chains(&w, n);
    hotbed_delete(w.increments);
    hotbed_delete(w.queue);
    return status;
}

/* --- where links lead ----------------------------------------------------------------------------------------- */

char *tool_join(const char *directory, const char *name) {
    size_t bytes = strlen(directory) + strlen(name) + 2;
    char *path = malloc(bytes);
    if (path != NULL)
        snprintf(path, bytes, "%s/%s", directory, name);
    return path;
}

/* Return the entry at `path`, or the entry that contains `path`. Both paths are without links. */
static size_t find_target(
    const char *path, const char *directory, const tool_entry *entries, size_t n) {
    size_t prefix = strlen(directory);
    if (prefix == 1) /* the root directory */
        prefix = 0;
    if (strncmp(path, directory, prefix) != 0 || path[prefix] != '/')
        return TOOL_NONE;
    const char *name = path + prefix + 1;
    size_t bytes = strcspn(name, "/");
    for (size_t i = 0; i < n; i++)
        if (entries[i].state != TOOL_LINK && strlen(entries[i].name) == bytes &&
            memcmp(entries[i].name, name, bytes) == 0)
            return i;
    return TOOL_NONE;
}

static hotbed_status find_targets(const char *path, tool_entry *entries, size_t n) {
    char *directory = realpath(path, NULL);
    hotbed_status status = HOTBED_OK;
    if (directory == NULL)
        return hotbed_io_fail("cannot resolve", path, -errno);
    for (size_t i = 0; i < n && status == HOTBED_OK; i++) {
        if (entries[i].state != TOOL_LINK)
            continue;
        char *link = tool_join(directory, entries[i].name);
        char *target = link == NULL ? NULL : realpath(link, NULL);
        if (target != NULL)
            entries[i].target = find_target(target, directory, entries, n);
        else if (link == NULL || errno == ENOMEM)
            status = hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a link's path");
        free(link);
        free(target);
    }
    free(directory);
    return status;
}

/* --- the directory ------------------------------------------------------------------------------------------------ */

static hotbed_status read_entries(DIR *list, const char *path, tool_entry **out, size_t *n) {
    hotbed_io_file in = {.calls = &hotbed_io_system, .handle = dirfd(list), .direct = -1};
    uint64_t capacity = 0;
    hotbed_io_name(in.name, NULL, path);
    for (;;) {
        errno = 0;
        struct dirent *item = readdir(list);
        if (item == NULL)
            return errno == 0 ? HOTBED_OK : hotbed_io_fail("cannot read", path, -errno);
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0)
            continue;
        HOTBED_TRY_MEMORY(hotbed_reserve(out, *n, 1, &capacity, sizeof **out), "%zu names", *n + 1);
        *n += read_entry(&in, item->d_name, &(*out)[*n]);
    }
}

/* Whether an entry that seems damaged was removed while the directory was read, by a gc that runs
 * beside this command: it is not damaged, it is gone. */
static bool is_gone(int directory, const tool_entry *e) {
    struct stat stat;
    if (!tool_is_broken(e))
        return false;
    if (fstatat(directory, e->name, &stat, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT;
    return e->inode != 0 && (stat.st_dev != e->device || stat.st_ino != e->inode);
}

/* Read the entries of a directory once. *changed: an entry was removed meanwhile. */
static hotbed_status read_once(const char *path, tool_entry **out, size_t *n, bool *changed) {
    *changed = false;
    *out = NULL;
    *n = 0;
    DIR *list = opendir(path);
    if (list == NULL)
        return hotbed_io_fail("cannot read", path, -errno);
    hotbed_status status = read_entries(list, path, out, n);
    if (*n > 0)
        qsort(*out, *n, sizeof **out, by_step);
    HOTBED_THEN(status, find_chains(*out, *n));
    HOTBED_THEN(status, find_targets(path, *out, *n));
    for (size_t i = 0; i < *n && status == HOTBED_OK; i++)
        *changed = *changed || is_gone(dirfd(list), &(*out)[i]);
    closedir(list);
    if (status == HOTBED_OK)
        return HOTBED_OK;
    hotbed_delete(*out);
    *out = NULL;
    *n = 0;
    return status;
}

/* Reads again while a gc removes entries. */
hotbed_status tool_read_directory(const char *path, tool_entry **out, size_t *n) {
    enum { MOST = 100 }; /* a gc ends */
    bool changed;
    hotbed_status status = read_once(path, out, n, &changed);
    for (int i = 0; i < MOST && status == HOTBED_OK && changed; i++) {
        hotbed_delete(*out);
        status = read_once(path, out, n, &changed);
    }
    return status;
}

hotbed_status tool_read_checkpoints(const char *path, tool_entry **out, size_t *n) {
    tool_entry itself = {.described = false};
    *out = NULL;
    *n = 0;
    describe(NULL, path, &itself);
    if (itself.described)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT,
            "%s is a checkpoint, not a directory of checkpoints: give the directory that contains "
            "it",
            path);
    if (itself.state == TOOL_DAMAGED)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT,
            "%s seems to be a damaged checkpoint, not a directory of checkpoints: %s: give the "
            "directory that contains it, or remove the file if it does not belong there",
            path, itself.text);
    return tool_read_directory(path, out, n);
}

/* Names of files in a directory. */
typedef struct place {
    bool manifest, published;
} place;

static void see_name(void *context, const char *name) {
    place *p = context;
    p->manifest = p->manifest || strcmp(name, HOTBED_MANIFEST_NAME) == 0;
    p->published = p->published || strncmp(name, "cut-", 4) == 0 ||
                   strcmp(name, "lock") == 0; /* before the first cut */
}

bool tool_is_published(const char *path) {
    hotbed_io_file directory = HOTBED_IO_CLOSED;
    place p = {.manifest = false};
    if (hotbed_io_open(&hotbed_io_system, NULL, path, HOTBED_IO_DIRECTORY, &directory) == HOTBED_OK)
        (void)hotbed_io_system.list(hotbed_io_system.self, directory.handle, see_name, &p);
    hotbed_io_drop(&directory);
    return p.published && !p.manifest;
}

void tool_note_empty(const char *path, const tool_entry *entries, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (entries[i].described || tool_is_broken(&entries[i]))
            return;
    fprintf(
        stderr, "hotbed-ckpt: no checkpoints in %s%s\n", tool_show(path).text,
        tool_is_published(path) ? ": it is a published directory, which 'verify' checks" : "");
}

hotbed_status tool_explain(const char *path, hotbed_status status) {
    tool_entry *entries = NULL;
    size_t n = 0, checkpoints = 0;
    hotbed_error error;
    const char *what = NULL, *command = NULL;
    if (status != HOTBED_ERR_CORRUPT)
        return status;
    hotbed_error_copy(&error);
    if (tool_read_directory(path, &entries, &n) == HOTBED_OK)
        for (size_t i = 0; i < n; i++)
            checkpoints += entries[i].described;
    hotbed_delete(entries);
    if (checkpoints > 0)
        what = "contains checkpoints: see", command = "list";
    else if (tool_is_published(path))
        what = "is a published directory: see", command = "verify";
    return what == NULL ? hotbed_error_return(&error, status)
                        : hotbed_fail_again(
                              &error.fields, status, "%s; it %s 'hotbed-ckpt %s %s'", error.text,
                              what, command, path);
}

/* --- a chain ------------------------------------------------------------------------------------------------------ */

/* Return the directory of `path`, as written, or NULL if there is no memory. The caller frees it
 * with free(). */
static char *directory_of(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    while (n > 1 && path[n - 1] == '/')
        n--;
    char *out = malloc(n + 2);
    if (out != NULL)
        snprintf(out, n + 2, "%.*s", (int)(n == 0 ? 1 : n), n == 0 ? "." : path);
    return out;
}

/* Open the chain of `path`: entries[at] of `directory`, everything that it follows, and `path`
 * after it. */
static hotbed_status open_entries(
    const char *directory, const tool_entry *entries, size_t at, const char *path,
    hotbed_chain *out) {
    uint32_t before = (uint32_t)entries[at].depth + 1;
    const char **order = hotbed_new((before + 1) * sizeof *order);
    char **paths = hotbed_new(before * sizeof *paths);
    bool good = order != NULL && paths != NULL;
    for (uint32_t i = before; good && i-- > 0; at = entries[at].before) {
        order[i] = paths[i] = tool_join(directory, entries[at].name);
        good = paths[i] != NULL;
    }
    hotbed_status status = HOTBED_OK;
    if (good) {
        order[before] = path;
        status = hotbed_chain_open(tool_files(), order, before + 1, out);
    } else {
        status = hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu32 " paths", before);
    }
    for (uint32_t i = 0; paths != NULL && i < before; i++)
        free(paths[i]);
    hotbed_delete(paths);
    hotbed_delete(order);
    return status;
}

/* Return the entry that an increment follows, preferably a whole copy, or TOOL_NONE. */
static size_t find_parent(const tool_entry *entries, size_t n, const tool_entry *increment) {
    size_t at = TOOL_NONE;
    for (size_t i = 0; i < n; i++)
        if (entries[i].described && hotbed_digest_equal(entries[i].id, increment->parent) &&
            hotbed_digest_equal(entries[i].digest, increment->parent_digest) &&
            (at == TOOL_NONE || entries[i].whole))
            at = i;
    return at;
}

/* Why a chain is not whole: CORRUPT or IO with the entry that is damaged or unreadable, or STATE
 * with the entry whose parent was not found. */
typedef struct breach {
    hotbed_status status;
    size_t at;
} breach;

static breach find_breach(const tool_entry *entries, size_t n, size_t at) {
    for (size_t steps = 0; steps < n; steps++) {
        const tool_entry *e = &entries[at];
        if (e->state == TOOL_DAMAGED || (e->state == TOOL_LINK && !e->good))
            return (breach){HOTBED_ERR_CORRUPT, at};
        if (e->state == TOOL_UNREADABLE)
            return (breach){HOTBED_ERR_IO, at};
        size_t parent = e->increment ? find_parent(entries, n, e) : TOOL_NONE;
        if (parent == TOOL_NONE)
            break;
        at = parent;
    }
    return (breach){HOTBED_ERR_STATE, at};
}

/* Fail because the parent of `path` was not found in a directory. An entry without a valid MANIFEST
 * may be it, and is named. */
static hotbed_status fail_not_found(
    const char *path, const tool_entry *increment, const char *directory, const tool_entry *entries,
    size_t n) {
    const hotbed_digits id = hotbed_digest_text(increment->parent);
    for (size_t i = 0; i < n; i++)
        if (!entries[i].described && tool_is_broken(&entries[i]))
            return hotbed_fail(
                HOTBED_ERR_STATE,
                "%s: its parent %s was not found in %s; it may be %s, which is %s: %s", path,
                id.text, directory, entries[i].name, tool_state_name(entries[i].state),
                entries[i].text);
    return hotbed_fail(
        HOTBED_ERR_STATE, "%s: its parent %s was not found in %s", path, id.text, directory);
}

/* Fail because the chain of `path`, which follows entries[at], is not whole. */
static hotbed_status fail_broken(
    const char *path, const char *directory, const tool_entry *entries, size_t n, size_t at) {
    const breach b = find_breach(entries, n, at);
    const tool_entry *e = &entries[b.at];
    char member[1024];
    if (b.status == HOTBED_ERR_STATE) {
        snprintf(member, sizeof member, "%s follows %s/%s", path, directory, e->name);
        return fail_not_found(member, e, directory, entries, n);
    }
    if (e->state == TOOL_LINK)
        return hotbed_fail(
            b.status, "%s follows %s/%s, a link to a checkpoint that cannot be used: %s", path,
            directory, e->name, e->text);
    return hotbed_fail(
        b.status, "%s follows %s/%s, which is %s: %s", path, directory, e->name,
        tool_state_name(e->state), e->text);
}

/* Open the chain of `path`, an increment described by `last`, if its parent is an entry of
 * `directory` with a whole chain. Otherwise set *why and the message `text`, unless an earlier call
 * has set them and this one knows no more: the parent was not found. Errors: as hotbed_chain_open(). */
static hotbed_status open_beside(
    const char *directory, const char *path, const tool_entry *last, bool *found,
    hotbed_status *why, char text[1024], hotbed_chain *out) {
    tool_entry *entries = NULL;
    size_t n = 0;
    HOTBED_TRY(tool_read_directory(directory, &entries, &n));
    size_t at = find_parent(entries, n, last);
    hotbed_status status = HOTBED_OK;
    if (at != TOOL_NONE && entries[at].whole) {
        *found = true;
        status = open_entries(directory, entries, at, path, out);
    } else if (*why == HOTBED_OK || (*why == HOTBED_ERR_STATE && at != TOOL_NONE)) {
        *why = at == TOOL_NONE ? fail_not_found(path, last, directory, entries, n)
                               : fail_broken(path, directory, entries, n, at);
        snprintf(text, 1024, "%s", hotbed_last_error());
    }
    hotbed_delete(entries);
    return status;
}

hotbed_status tool_open_chain(const char *path, hotbed_chain *out) {
    tool_entry last = {.described = false};
    bool found = false;
    *out = (hotbed_chain){.n = 0};
    describe(NULL, path, &last);
    if (!last.described || !last.increment)
        return tool_explain(path, hotbed_chain_open(tool_files(), &path, 1, out));
    char *real = realpath(path, NULL);
    char *named = directory_of(path), *led = real == NULL ? NULL : directory_of(real);
    hotbed_status status = HOTBED_OK, why = HOTBED_OK;
    char text[1024] = "";
    status = HOTBED_CHECK_MEMORY(named != NULL && led != NULL, "the path of %s", path);
    HOTBED_THEN(status, open_beside(named, path, &last, &found, &why, text, out));
    if (status == HOTBED_OK && !found && strcmp(named, led) != 0)
        status = open_beside(led, path, &last, &found, &why, text, out);
    if (status == HOTBED_OK && !found)
        status = hotbed_fail(why, "%s", text);
    free(real);
    free(named);
    free(led);
    return status;
}
