/* checkpoint/draft.c - a directory that gets its name when it is complete and on disk. */
#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/stream.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Split off the last part of `path`, without slashes at its end. */
static hotbed_status split(const char *path, hotbed_draft *draft) {
    size_t n = strlen(path);
    while (n > 0 && path[n - 1] == '/')
        n--;
    size_t first = n;
    while (first > 0 && path[first - 1] != '/')
        first--;
    size_t name_bytes = n - first;
    char *text = hotbed_new(n + 4);
    if (text == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a path of %zu bytes", n);
    draft->parent_path = text;
    /* "parent\0name\0"; the parent of a bare name is the current directory. */
    size_t parent_bytes = first;
    if (parent_bytes == 0)
        text[parent_bytes++] = '.';
    else
        memcpy(text, path, parent_bytes);
    char *name = text + parent_bytes + 1;
    memcpy(name, path + first, name_bytes);
    draft->final_name = name;
    if (name_bytes == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "path '%s' ends in no name", path);
    if (strncmp(name, ".tmp-", 5) == 0)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "path '%s': names that begin with .tmp- are of unfinished ones",
            path);
    return HOTBED_OK;
}

hotbed_status hotbed_draft_open(
    const hotbed_io_calls *calls, const char *path, hotbed_draft *draft) {
    *draft = (hotbed_draft){.parent = HOTBED_IO_CLOSED, .directory = HOTBED_IO_CLOSED};
    HOTBED_TRY(split(path, draft));
    HOTBED_TRY(
        hotbed_io_open(calls, NULL, draft->parent_path, HOTBED_IO_DIRECTORY, &draft->parent));
    int found = calls->exists(calls->self, draft->parent.handle, draft->final_name);
    if (found == 0)
        return hotbed_fail(HOTBED_ERR_STATE, "%s exists already", path);
    return found == -ENOENT ? HOTBED_OK : hotbed_io_fail("cannot look for", path, found);
}

hotbed_status hotbed_draft_make(hotbed_draft *draft, hotbed_digest id) {
    const hotbed_io_calls *calls = draft->parent.calls;
    char text[HOTBED_DIGEST_DIGITS + 1];
    hotbed_digest_text(id, text);
    snprintf(draft->name, sizeof draft->name, ".tmp-%s", text);
    int made = calls->make_directory(calls->self, draft->parent.handle, draft->name);
    if (made < 0)
        return hotbed_io_fail("cannot make a directory in", draft->parent.name, made);
    draft->made = true;
    return hotbed_io_open(
        calls, &draft->parent, draft->name, HOTBED_IO_DIRECTORY, &draft->directory);
}

hotbed_status hotbed_draft_file(
    hotbed_draft *draft, const char *name, const void *data, size_t bytes) {
    hotbed_io_file file = HOTBED_IO_CLOSED;
    HOTBED_TRY(
        hotbed_io_open(draft->parent.calls, &draft->directory, name, HOTBED_IO_CREATE, &file));
    hotbed_status status = hotbed_io_write(&file, data, bytes, 0);
    if (status == HOTBED_OK)
        status = hotbed_io_sync(&file);
    if (status == HOTBED_OK)
        status = hotbed_io_close(&file);
    hotbed_io_drop(&file);
    return status;
}

/* The name was given, but may not outlast a power cut: take it back, so that a failed save leaves no
 * name.  If even that fails the checkpoint stays, and is whole. */
static hotbed_status uncommit(hotbed_draft *draft) {
    const hotbed_io_calls *calls = draft->parent.calls;
    draft->made =
        calls->rename(calls->self, draft->parent.handle, draft->final_name, draft->name) == 0;
    return draft->made ? HOTBED_ERR_IO
                       : hotbed_fail(
                             HOTBED_ERR_IO, "%s; %s is complete, but may not outlast a power cut",
                             hotbed_last_error(), draft->final_name);
}

hotbed_status hotbed_draft_commit(hotbed_draft *draft) {
    const hotbed_io_calls *calls = draft->parent.calls;
    HOTBED_TRY(hotbed_io_sync(&draft->directory));
    HOTBED_TRY(hotbed_io_close(&draft->directory));
    int renamed = calls->rename(calls->self, draft->parent.handle, draft->name, draft->final_name);
    if (renamed == -EEXIST || renamed == -ENOTEMPTY || renamed == -ENOTDIR)
        return hotbed_fail(
            HOTBED_ERR_STATE, "%s/%s has been made by another", draft->parent.name,
            draft->final_name);
    if (renamed < 0)
        return hotbed_io_fail("cannot rename the finished", draft->final_name, renamed);
    draft->made = false;
    if (hotbed_io_sync(&draft->parent) != HOTBED_OK)
        return uncommit(draft);
    return HOTBED_OK;
}

void hotbed_draft_discard(hotbed_draft *draft) {
    const hotbed_io_calls *calls = draft->parent.calls;
    hotbed_io_drop(&draft->directory);
    if (draft->made) {
        /* By names, in the parent: the draft's own handle may be the one that failed. */
        const char *names[] = {HOTBED_MANIFEST_NAME, HOTBED_INDEX_NAME, NULL};
        char shard[32], path[128];
        hotbed_shard_name(0, 1, shard);
        names[2] = shard;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            snprintf(path, sizeof path, "%s/%s", draft->name, names[i]);
            calls->remove(calls->self, draft->parent.handle, path, false);
        }
        calls->remove(calls->self, draft->parent.handle, draft->name, true);
    }
    hotbed_io_drop(&draft->parent);
    hotbed_delete(draft->parent_path);
    *draft = (hotbed_draft){.parent = HOTBED_IO_CLOSED, .directory = HOTBED_IO_CLOSED};
}
