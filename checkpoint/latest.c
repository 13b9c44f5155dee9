/* checkpoint/latest.c - the newest whole checkpoint of a directory. */
#define _DEFAULT_SOURCE /* readlink() */
#include "base/check.h"
#include "base/error.h"
#include "base/options.h"
#include "base/stream.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/verify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is known of a checkpoint and those before it in its chain. */
typedef enum finding {
    NOT_CHECKED,
    FOLLOWING, /* it is whole itself; the search is looking for a whole parent */
    WHOLE,
    NOT_WHOLE,
} finding;

/* A checkpoint of the directory. */
typedef struct entry {
    char *path; /* owned */
    finding finding;
    /* FOLLOWING: how many entries were tried as its parent. */
    uint32_t tried;
    struct entry *before; /* WHOLE increments: the parent */
    struct entry *cause; /* NOT_WHOLE: the checkpoint that has `status` and `why`; perhaps itself */
    hotbed_status status;
    char *why; /* owned */
    bool increment;
    bool link; /* a symbolic link, perhaps to another checkpoint of the directory */
    hotbed_digest id, digest, parent, parent_digest;
    uint64_t step, created_ns;
} entry;

typedef struct search {
    const hotbed_io_calls *calls;
    hotbed_io_file directory;
    const char *path;
    uint32_t n, num_skipped;
    uint64_t capacity, skipped_capacity;
    entry *entries;
    hotbed_checkpoint_skipped *skipped; /* [num_skipped]; texts owned */
    hotbed_status status;
} search;

static char *copy_text(const char *a, const char *between, const char *b) {
    size_t bytes = strlen(a) + strlen(between) + strlen(b) + 1;
    char *text = hotbed_new(bytes);
    if (text != NULL)
        snprintf(text, bytes, "%s%s%s", a, between, b);
    return text;
}

static void fail_memory(search *s) {
    s->status = hotbed_fail(HOTBED_ERR_MEMORY, "no memory for the checkpoints in %s", s->path);
}

/* Note a checkpoint that is not whole, for the reason of the last error. */
static void skip(search *s, const char *path, hotbed_status status) {
    if (!hotbed_reserve(&s->skipped, s->num_skipped, 1, &s->skipped_capacity, sizeof *s->skipped)) {
        fail_memory(s);
        return;
    }
    hotbed_checkpoint_skipped *last = &s->skipped[s->num_skipped++];
    *last = (hotbed_checkpoint_skipped){
        .path = copy_text(path, "", ""),
        .why = copy_text(hotbed_last_error(), "", ""),
        .status = status,
    };
    if (last->path == NULL || last->why == NULL)
        fail_memory(s);
}

static void free_skipped(hotbed_checkpoint_skipped *skipped, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        hotbed_delete(skipped[i].path);
        hotbed_delete(skipped[i].why);
    }
    hotbed_delete(skipped);
}

static bool is_unusable(hotbed_status status) {
    return status == HOTBED_ERR_CORRUPT || status == HOTBED_ERR_STATE;
}

bool hotbed_is_damaged_name(const char *name) {
    static const char word[] = ".damaged";
    const char *end = strrchr(name, '.');
    if (end == NULL || strncmp(end, word, sizeof word - 1) != 0)
        return false;
    end += sizeof word - 1;
    return *end == '\0' ||
           (*end == '-' && end[1] != '\0' && end[1 + strspn(end + 1, "0123456789")] == '\0');
}

static bool is_link(const char *path) {
    char target;
    return readlink(path, &target, 1) >= 0;
}

static hotbed_status read_entry(
    search *s, const char *name, const char *path, bool *found, hotbed_manifest *m) {
    const hotbed_io_calls *calls = s->calls;
    hotbed_io_file directory = HOTBED_IO_CLOSED;
    *found = false;
    int handle = calls->open(calls->self, s->directory.handle, name, HOTBED_IO_DIRECTORY);
    if (handle == -ENOENT && is_link(path)) /* perhaps to a file system that is not mounted */
        return hotbed_fail(HOTBED_ERR_STATE, "a symbolic link whose target does not exist");
    if (handle == -ENOTDIR || handle == -ENOENT) /* a file, or removed just now */
        return HOTBED_OK;
    if (handle >= 0)
        (void)calls->close(calls->self, handle);
    HOTBED_TRY(hotbed_io_open(calls, &s->directory, name, HOTBED_IO_DIRECTORY, &directory));
    *found = calls->exists(calls->self, directory.handle, HOTBED_MANIFEST_NAME) != -ENOENT ||
             calls->exists(calls->self, directory.handle, HOTBED_INDEX_NAME) != -ENOENT;
    hotbed_status status = *found ? hotbed_manifest_read(&directory, m) : HOTBED_OK;
    hotbed_io_drop(&directory);
    return status;
}

static void add(search *s, char *path, const hotbed_manifest *m) {
    if (!hotbed_reserve(&s->entries, s->n, 1, &s->capacity, sizeof *s->entries)) {
        hotbed_delete(path);
        fail_memory(s);
        return;
    }
    s->entries[s->n++] = (entry){
        .path = path,
        .link = is_link(path),
        .increment = m->increment,
        .id = m->id,
        .digest = m->digest,
        .parent = m->parent,
        .parent_digest = m->parent_digest,
        .step = m->step,
        .created_ns = m->created_ns,
    };
}

static void look_at(void *context, const char *name) {
    search *s = context;
    hotbed_manifest m = {.world = 0};
    bool found = false;
    if (s->status != HOTBED_OK || strncmp(name, ".tmp-", 5) == 0 || hotbed_is_damaged_name(name))
        return;
    char *path = copy_text(s->path, "/", name);
    if (path == NULL) {
        fail_memory(s);
        return;
    }
    hotbed_status status = read_entry(s, name, path, &found, &m);
    if (is_unusable(status)) {
        skip(s, path, status);
    } else if (status != HOTBED_OK) {
        s->status = status;
    } else if (found) {
        add(s, path, &m);
        path = NULL;
    }
    hotbed_delete(path);
    hotbed_manifest_free(&m);
}

/* The newest first, and a checkpoint before links to it. */
static int by_age(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    if (x->created_ns != y->created_ns)
        return x->created_ns > y->created_ns ? -1 : 1;
    if (x->link != y->link)
        return x->link ? 1 : -1;
    return strcmp(x->path, y->path);
}

/* Set why an entry is not whole, from the last error. */
static hotbed_status set_cause(search *s, entry *e, hotbed_status status) {
    e->finding = NOT_WHOLE;
    e->cause = e;
    e->status = status;
    e->why = copy_text(hotbed_last_error(), "", "");
    if (e->why == NULL)
        fail_memory(s);
    return s->status;
}

/* Check an entry without those before it. Errors: IO, UNSUPPORTED, MEMORY. */
static hotbed_status check_itself(search *s, entry *e) {
    hotbed_status status = hotbed_checkpoint_verify_quick(s->calls, e->path);
    if (is_unusable(status))
        return set_cause(s, e, status);
    if (status == HOTBED_OK)
        e->finding = e->increment ? FOLLOWING : WHOLE;
    return status;
}

/* Return the next entry that an increment names as its parent, or NULL. A parent may exist several
 * times, and some of its copies may be damaged. The search begins behind the increment, because a
 * parent is older. */
static entry *next_parent(search *s, entry *e) {
    while (e->tried < s->n) {
        entry *p = &s->entries[((uint32_t)(e - s->entries) + ++e->tried) % s->n];
        if (hotbed_digest_equal(p->id, e->parent) &&
            hotbed_digest_equal(p->digest, e->parent_digest))
            return p;
    }
    return NULL;
}

/* Look for a whole parent of a FOLLOWING entry. If a parent must be checked first, set *check to it;
 * else set the entry's finding. */
static hotbed_status find_parent(search *s, entry *e, entry **check) {
    *check = NULL;
    for (entry *p; (p = next_parent(s, e)) != NULL;) {
        if (p->finding == WHOLE) {
            e->before = p;
            e->finding = WHOLE;
            return HOTBED_OK;
        }
        if (p->finding == NOT_CHECKED) {
            e->tried--; /* for this parent again, when its finding is known */
            *check = p;
            return HOTBED_OK;
        }
        if (p->finding == NOT_WHOLE && e->cause == NULL)
            e->cause = p->cause;
    }
    e->finding = NOT_WHOLE;
    if (e->cause != NULL)
        return HOTBED_OK;
    return set_cause(
        s, e,
        hotbed_fail_path(
            HOTBED_ERR_STATE, e->path, "%s is an increment, whose parent was not found", e->path));
}

/* Check an entry and those before it in its chain, unless this was done. `path` has space for all
 * entries. */
static hotbed_status check_chain(search *s, entry *last, entry **path) {
    uint32_t n = 0;
    path[n++] = last;
    while (n > 0) {
        entry *e = path[n - 1], *check = NULL;
        if (e->finding == NOT_CHECKED)
            HOTBED_TRY(check_itself(s, e));
        if (e->finding == FOLLOWING)
            HOTBED_TRY(find_parent(s, e, &check));
        if (check != NULL)
            path[n++] = check;
        else
            n--;
    }
    return HOTBED_OK;
}

/* Skip an entry that is not whole. It may be whole itself. */
static hotbed_status skip_entry(search *s, const entry *e) {
    const entry *cause = e->cause;
    hotbed_status status = cause->status;
    if (status == HOTBED_ERR_CORRUPT && cause != e)
        status = hotbed_fail(
            HOTBED_ERR_STATE, "%s follows a damaged checkpoint: %s", e->path, cause->why);
    else
        status = hotbed_fail(status, "%s", cause->why);
    skip(s, e->path, status);
    return s->status;
}

/* Move the texts to the result. `last` is NULL if there is no whole checkpoint. */
static hotbed_status give(search *s, entry *last, hotbed_checkpoint_found *out) {
    uint32_t n = 0;
    for (const entry *e = last; e != NULL; e = e->before)
        n++;
    out->paths = hotbed_new((n + 1) * sizeof *out->paths);
    HOTBED_TRY_MEMORY(out->paths, "%" PRIu32 " paths", n);
    out->num_paths = n;
    for (entry *e = last; e != NULL; e = e->before) {
        out->paths[--n] = e->path;
        e->path = NULL;
    }
    out->skipped = s->skipped;
    out->num_skipped = s->num_skipped;
    s->skipped = NULL;
    s->num_skipped = 0;
    return HOTBED_OK;
}

/* Find the newest whole entry, and skip those before it. */
static hotbed_status choose(search *s, entry **path, entry **out) {
    for (uint32_t i = 0; i < s->n && *out == NULL; i++) {
        entry *e = &s->entries[i];
        const bool again =
            i > 0 && e->link && hotbed_digest_equal(e->digest, s->entries[i - 1].digest);
        if (again) /* a link to a checkpoint that was skipped */
            continue;
        HOTBED_TRY(check_chain(s, e, path));
        if (e->finding == WHOLE)
            *out = e;
        else
            HOTBED_TRY(skip_entry(s, e));
    }
    return HOTBED_OK;
}

static bool has(const search *s, const char *name) {
    return s->calls->exists(s->calls->self, s->directory.handle, name) == 0;
}

static hotbed_status find(search *s, hotbed_checkpoint_found *out) {
    entry *newest = NULL;
    HOTBED_TRY(hotbed_io_open(s->calls, NULL, s->path, HOTBED_IO_DIRECTORY, &s->directory));
    if (has(s, HOTBED_MANIFEST_NAME) || has(s, HOTBED_INDEX_NAME))
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, "directory",
            "%s is a checkpoint, not a directory of checkpoints: give the directory that contains "
            "it",
            s->path);
    int listed = s->calls->list(s->calls->self, s->directory.handle, look_at, s);
    if (listed < 0)
        return hotbed_io_fail("cannot read", s->path, listed);
    HOTBED_TRY(s->status);
    if (s->n > 0)
        qsort(s->entries, s->n, sizeof *s->entries, by_age);
    entry **path = hotbed_new((s->n + 1) * sizeof(entry *));
    HOTBED_TRY_MEMORY(path, "%" PRIu32 " checkpoints", s->n);
    hotbed_status status = choose(s, path, &newest);
    HOTBED_THEN(status, give(s, newest, out));
    hotbed_delete(path);
    return status;
}

hotbed_status hotbed_checkpoint_find_latest(
    const hotbed_io_calls *calls, const char *directory, hotbed_checkpoint_found *out) {
    search s = {.calls = calls, .path = directory, .directory = HOTBED_IO_CLOSED};
    hotbed_status status = find(&s, out);
    hotbed_io_drop(&s.directory);
    for (uint32_t i = 0; i < s.n; i++) {
        hotbed_delete(s.entries[i].path);
        hotbed_delete(s.entries[i].why);
    }
    free_skipped(s.skipped, s.num_skipped);
    hotbed_delete(s.entries);
    return hotbed_error_path(status, directory);
}

hotbed_status hotbed_checkpoint_latest(const char *directory, hotbed_checkpoint_found *found) {
    hotbed_checkpoint_found out = {.num_paths = 0};
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_latest", "directory", directory));
    HOTBED_TRY(hotbed_output_check(found, "hotbed_checkpoint_found"));
    HOTBED_TRY(hotbed_checkpoint_find_latest(&hotbed_io_system, directory, &out));
    hotbed_output_write(found, &out, sizeof out);
    return HOTBED_OK;
}

void hotbed_checkpoint_found_free(hotbed_checkpoint_found *found) {
    if (found == NULL)
        return;
    for (uint32_t i = 0; i < found->num_paths; i++)
        hotbed_delete(found->paths[i]);
    free_skipped(found->skipped, found->num_skipped);
    hotbed_delete(found->paths);
    found->num_paths = found->num_skipped = 0;
    found->paths = NULL;
    found->skipped = NULL;
}
