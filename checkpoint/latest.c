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

/* A checkpoint of the directory. */
typedef struct entry {
    char *path; /* owned */
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

static const entry *find_parent(const search *s, const entry *increment) {
    for (uint32_t i = 0; i < s->n; i++)
        if (hotbed_digest_equal(s->entries[i].id, increment->parent) &&
            hotbed_digest_equal(s->entries[i].digest, increment->parent_digest))
            return &s->entries[i];
    return NULL;
}

/* Find and check the checkpoints that lead to `last`. chain[n - 1] is `last`. */
static hotbed_status find_chain(
    const search *s, const entry *last, const entry **chain, uint32_t *n) {
    uint32_t length = 0;
    for (const entry *at = last; at != NULL; length++) {
        hotbed_status status = hotbed_checkpoint_verify_quick(s->calls, at->path);
        if (status == HOTBED_ERR_CORRUPT && at != last) /* `last` itself may be whole */
            status = HOTBED_FAIL_AFTER(
                HOTBED_ERR_STATE, "%s follows a damaged checkpoint: %s", last->path,
                hotbed_last_error());
        HOTBED_TRY(status);
        if (length == s->n)
            return hotbed_fail_path(
                HOTBED_ERR_CORRUPT, last->path, "%s follows itself", last->path);
        chain[length] = at;
        const entry *parent = at->increment ? find_parent(s, at) : NULL;
        if (at->increment && parent == NULL)
            return hotbed_fail_path(
                HOTBED_ERR_STATE, at->path, "%s is an increment, whose parent was not found",
                at->path);
        at = parent;
    }
    for (uint32_t i = 0; i < length / 2; i++) {
        const entry *swap = chain[i];
        chain[i] = chain[length - 1 - i];
        chain[length - 1 - i] = swap;
    }
    *n = length;
    return HOTBED_OK;
}

/* Move the texts to the result. */
static hotbed_status give(
    search *s, const entry **chain, uint32_t n, hotbed_checkpoint_found *out) {
    out->paths = hotbed_new((n + 1) * sizeof *out->paths);
    HOTBED_TRY_MEMORY(out->paths, "%" PRIu32 " paths", n);
    for (uint32_t i = 0; i < n; i++) {
        entry *from = &s->entries[chain[i] - s->entries];
        out->paths[i] = from->path;
        from->path = NULL;
    }
    out->num_paths = n;
    out->skipped = s->skipped;
    out->num_skipped = s->num_skipped;
    s->skipped = NULL;
    s->num_skipped = 0;
    return HOTBED_OK;
}

static hotbed_status find(search *s, hotbed_checkpoint_found *out) {
    uint32_t n = 0;
    HOTBED_TRY(hotbed_io_open(s->calls, NULL, s->path, HOTBED_IO_DIRECTORY, &s->directory));
    int listed = s->calls->list(s->calls->self, s->directory.handle, look_at, s);
    if (listed < 0)
        return hotbed_io_fail("cannot read", s->path, listed);
    HOTBED_TRY(s->status);
    if (s->n > 0)
        qsort(s->entries, s->n, sizeof *s->entries, by_age);
    const entry **chain = hotbed_new((s->n + 1) * sizeof *chain);
    HOTBED_TRY_MEMORY(chain, "%" PRIu32 " checkpoints", s->n);
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < s->n && n == 0 && status == HOTBED_OK; i++) {
        const bool again = i > 0 && s->entries[i].link &&
                           hotbed_digest_equal(s->entries[i].digest, s->entries[i - 1].digest);
        if (again) /* a link to a checkpoint that was skipped */
            continue;
        status = find_chain(s, &s->entries[i], chain, &n);
        if (is_unusable(status)) {
            skip(s, s->entries[i].path, status);
            status = s->status;
        }
    }
    HOTBED_THEN(status, give(s, chain, n, out));
    hotbed_delete(chain);
    return status;
}

hotbed_status hotbed_checkpoint_latest(const char *directory, hotbed_checkpoint_found *found) {
    hotbed_checkpoint_found out = {.num_paths = 0};
    search s = {.calls = &hotbed_io_system, .path = directory, .directory = HOTBED_IO_CLOSED};
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_latest", "directory", directory));
    HOTBED_TRY(hotbed_output_check(found, "hotbed_checkpoint_found"));
    hotbed_status status = find(&s, &out);
    if (status == HOTBED_OK)
        hotbed_output_write(found, &out, sizeof out);
    hotbed_io_drop(&s.directory);
    for (uint32_t i = 0; i < s.n; i++)
        hotbed_delete(s.entries[i].path);
    free_skipped(s.skipped, s.num_skipped);
    hotbed_delete(s.entries);
    return hotbed_error_path(status, directory);
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
