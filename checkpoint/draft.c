/* checkpoint/draft.c - a directory that gets its name when it is complete and on disk. */
#define _DEFAULT_SOURCE /* getentropy() */
#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/stream.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
    const hotbed_io_calls *calls, const char *path, hotbed_checkpoint_id id, hotbed_draft *draft) {
    *draft = (hotbed_draft){.parent = HOTBED_IO_CLOSED, .directory = HOTBED_IO_CLOSED};
    char text[HOTBED_DIGEST_DIGITS + 1];
    hotbed_digest_text((hotbed_digest){.low = id.low, .high = id.high}, text);
    snprintf(draft->name, sizeof draft->name, ".tmp-%s", text);
    HOTBED_TRY(split(path, draft));
    return hotbed_io_open(calls, NULL, draft->parent_path, HOTBED_IO_DIRECTORY, &draft->parent);
}

hotbed_status hotbed_draft_make(hotbed_draft *draft) {
    const hotbed_io_calls *calls = draft->parent.calls;
    int found = calls->exists(calls->self, draft->parent.handle, draft->final_name);
    if (found == 0)
        return hotbed_fail(
            HOTBED_ERR_STATE, "%s/%s exists already", draft->parent.name, draft->final_name);
    if (found != -ENOENT)
        return hotbed_io_fail("cannot look for", draft->final_name, found);
    int made = calls->make_directory(calls->self, draft->parent.handle, draft->name);
    return made < 0 ? hotbed_io_fail("cannot make a directory in", draft->parent.name, made)
                    : HOTBED_OK;
}

hotbed_status hotbed_draft_enter(hotbed_draft *draft) {
    return hotbed_io_open(
        draft->parent.calls, &draft->parent, draft->name, HOTBED_IO_DIRECTORY, &draft->directory);
}

static hotbed_status write_file(
    hotbed_draft *draft, const char *name, const void *data, size_t bytes, hotbed_io_file *out) {
    HOTBED_TRY(hotbed_io_open(draft->parent.calls, &draft->directory, name, HOTBED_IO_CREATE, out));
    return hotbed_io_write(out, data, bytes, 0);
}

hotbed_status hotbed_draft_file(
    hotbed_draft *draft, const char *name, const void *data, size_t bytes) {
    hotbed_io_file file = HOTBED_IO_CLOSED;
    hotbed_status status = write_file(draft, name, data, bytes, &file);
    if (status == HOTBED_OK)
        status = hotbed_io_close(&file);
    hotbed_io_drop(&file);
    return status;
}

/* The name was given, but may not outlast a power cut: take it back, so that a failed save leaves no
 * name.  If even that fails the checkpoint stays, and is whole. */
static hotbed_status uncommit(hotbed_draft *draft) {
    const hotbed_io_calls *calls = draft->parent.calls;
    int back = calls->rename(calls->self, draft->parent.handle, draft->final_name, draft->name);
    return back == 0 ? HOTBED_ERR_IO
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
    return hotbed_io_sync(&draft->parent) == HOTBED_OK ? HOTBED_OK : uncommit(draft);
}

static void remove_file(hotbed_draft *draft, const char *name) {
    const hotbed_io_calls *calls = draft->parent.calls;
    char path[128];
    /* By names, in the parent: the draft's own handle may be the one that failed. */
    snprintf(path, sizeof path, "%s/%s", draft->name, name);
    calls->remove(calls->self, draft->parent.handle, path, false);
}

void hotbed_draft_remove(hotbed_draft *draft, uint32_t world) {
    const hotbed_io_calls *calls = draft->parent.calls;
    char name[32];
    if (draft->parent.handle < 0)
        return;
    hotbed_io_drop(&draft->directory);
    remove_file(draft, HOTBED_MANIFEST_NAME);
    remove_file(draft, HOTBED_INDEX_NAME);
    for (uint32_t i = 0; i < world; i++) {
        hotbed_shard_name(i, world, name);
        remove_file(draft, name);
        hotbed_shard_part_name(i, world, name);
        remove_file(draft, name);
    }
    calls->remove(calls->self, draft->parent.handle, draft->name, true);
}

void hotbed_draft_close(hotbed_draft *draft) {
    hotbed_io_drop(&draft->directory);
    hotbed_io_drop(&draft->parent);
    hotbed_delete(draft->parent_path);
    *draft = (hotbed_draft){.parent = HOTBED_IO_CLOSED, .directory = HOTBED_IO_CLOSED};
}

/* --- from shards to a checkpoint ----------------------------------------------------------------------- */

hotbed_status hotbed_new_id(hotbed_checkpoint_id *out) {
    return getentropy(out, sizeof *out) == 0
               ? HOTBED_OK
               : hotbed_fail(HOTBED_ERR_IO, "the system gives no random numbers");
}

hotbed_status hotbed_draft_describe(
    hotbed_draft *draft, const hotbed_manifest *m, uint32_t number) {
    char name[32], *text = NULL;
    size_t bytes = 0;
    hotbed_shard_part_name(number, m->world, name);
    HOTBED_TRY(hotbed_manifest_print_shard(m, number, &text, &bytes));
    /* It is gone before the checkpoint has its name, and need not be on disk. */
    hotbed_status status = hotbed_draft_file(draft, name, text, bytes);
    hotbed_delete(text);
    return status;
}

/* Read the description of a shard, and remove it. */
static hotbed_status add_shard(
    hotbed_draft *draft, uint32_t number, uint32_t world, hotbed_manifest *m) {
    const hotbed_io_calls *calls = draft->parent.calls;
    hotbed_io_file file = HOTBED_IO_CLOSED;
    char name[32], *text = NULL;
    uint64_t bytes = 0;
    hotbed_shard_part_name(number, world, name);
    HOTBED_TRY(hotbed_io_open(calls, &draft->directory, name, HOTBED_IO_READ, &file));
    hotbed_status status = hotbed_io_size(&file, &bytes);
    if (status == HOTBED_OK) {
        text = hotbed_new(bytes);
        if (text == NULL)
            status = hotbed_fail(HOTBED_ERR_MEMORY, "no %" PRIu64 " bytes for %s", bytes, name);
    }
    if (status == HOTBED_OK)
        status = hotbed_io_read(&file, text, bytes, 0);
    if (status == HOTBED_OK)
        status = hotbed_manifest_add_shard(file.name, text, bytes, number, m);
    if (status == HOTBED_OK && m->world != world)
        status = hotbed_fail(
            HOTBED_ERR_STATE, "%s is of %" PRIu32 " ranks, %" PRIu32 " were to write", file.name,
            m->world, world);
    hotbed_delete(text);
    hotbed_io_drop(&file);
    HOTBED_TRY(status);
    int removed = calls->remove(calls->self, draft->directory.handle, name, false);
    return removed < 0 ? hotbed_io_fail("cannot remove", name, removed) : HOTBED_OK;
}

/* Sync and close files that have `bytes` bytes.  A file system with a journal has all of them in its next commit
 * when the disk has begun with all of them. */
static hotbed_status sync_files(uint32_t n, hotbed_io_file *files, const size_t *bytes) {
    for (uint32_t i = 0; i < n; i++)
        hotbed_io_begin_sync(&files[i], bytes[i]);
    for (uint32_t i = 0; i < n; i++) {
        HOTBED_TRY(hotbed_io_sync(&files[i]));
        HOTBED_TRY(hotbed_io_close(&files[i]));
    }
    return HOTBED_OK;
}

hotbed_status hotbed_draft_manifest(hotbed_draft *draft, hotbed_manifest *m) {
    enum { INDEX, MANIFEST, FILES };
    hotbed_io_file files[FILES] = {HOTBED_IO_CLOSED, HOTBED_IO_CLOSED};
    size_t bytes[FILES] = {0};
    void *index = NULL;
    char *text = NULL;
    HOTBED_TRY(hotbed_manifest_complete(m));
    HOTBED_TRY(hotbed_layout_index(m, &index, &bytes[INDEX]));
    m->index_bytes = bytes[INDEX];
    m->index = hotbed_digest_root(index, bytes[INDEX], m->block_bytes);
    hotbed_status status = hotbed_manifest_print(m, &text, &bytes[MANIFEST]);
    if (status == HOTBED_OK)
        status = write_file(draft, HOTBED_INDEX_NAME, index, bytes[INDEX], &files[INDEX]);
    if (status == HOTBED_OK)
        status = write_file(draft, HOTBED_MANIFEST_NAME, text, bytes[MANIFEST], &files[MANIFEST]);
    if (status == HOTBED_OK)
        status = sync_files(FILES, files, bytes);
    for (uint32_t i = 0; i < FILES; i++)
        hotbed_io_drop(&files[i]);
    hotbed_delete(index);
    hotbed_delete(text);
    return status;
}

hotbed_status hotbed_draft_assemble(hotbed_draft *draft, uint32_t world) {
    hotbed_manifest m = {.world = 0};
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < world && status == HOTBED_OK; i++)
        status = add_shard(draft, i, world, &m);
    if (status == HOTBED_OK)
        status = hotbed_draft_manifest(draft, &m);
    hotbed_manifest_free(&m);
    HOTBED_TRY(status);
    return hotbed_draft_commit(draft);
}
