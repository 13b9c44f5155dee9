/* checkpoint/draft.c - a directory that gets its final name when it is complete and on disk. */
#define _DEFAULT_SOURCE /* getentropy() */
#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/stream.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *hotbed_path_name(const char *path, size_t *bytes) {
    size_t n = strlen(path);
    while (n > 0 && path[n - 1] == '/')
        n--;
    size_t first = n;
    while (first > 0 && path[first - 1] != '/')
        first--;
    *bytes = n - first;
    return path + first;
}

/* Split off the last part of `path`. */
static hotbed_status split(const char *path, hotbed_draft *draft) {
    size_t name_bytes = 0;
    const char *last = hotbed_path_name(path, &name_bytes);
    size_t first = (size_t)(last - path), n = first + name_bytes;
    char *text = hotbed_new(n + 4);
    HOTBED_TRY_MEMORY(text, "a path of %zu bytes", n);
    draft->parent_path = text;
    /* "parent\0name\0"; the parent of a bare name is the current directory. */
    size_t parent_bytes = first;
    if (parent_bytes == 0)
        text[parent_bytes++] = '.';
    else
        memcpy(text, path, parent_bytes);
    while (parent_bytes > 1 && text[parent_bytes - 1] == '/')
        text[--parent_bytes] = '\0';
    char *name = text + parent_bytes + 1;
    memcpy(name, last, name_bytes);
    draft->final_name = name;
    if (name_bytes == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, "path", "path '%s' does not end in a name", path);
    if (strncmp(name, ".tmp-", 5) == 0)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, "path",
            "path '%s': names that begin with .tmp- belong to unfinished saves", path);
    return HOTBED_OK;
}

hotbed_status hotbed_draft_open(
    const hotbed_io_calls *calls, const char *path, hotbed_checkpoint_id id, hotbed_draft *draft) {
    *draft = (hotbed_draft){.parent = HOTBED_IO_CLOSED, .directory = HOTBED_IO_CLOSED};
    snprintf(
        draft->name, sizeof draft->name, ".tmp-%s",
        hotbed_digest_text((hotbed_digest){.low = id.low, .high = id.high}).text);
    HOTBED_TRY(split(path, draft));
    hotbed_status status =
        hotbed_io_open(calls, NULL, draft->parent_path, HOTBED_IO_DIRECTORY, &draft->parent);
    if (status != HOTBED_ERR_IO ||
        calls->exists(calls->self, HOTBED_IO_HERE, draft->parent_path) != -ENOENT)
        return status;
    return hotbed_fail_path(
        HOTBED_ERR_IO, draft->parent_path,
        "the directory %.700s, in which %.255s is to be saved, does not exist: create it",
        draft->parent_path, draft->final_name);
}

hotbed_status hotbed_draft_check_free(const hotbed_draft *draft) {
    const hotbed_io_calls *calls = draft->parent.calls;
    int found = calls->exists(calls->self, draft->parent.handle, draft->final_name);
    if (found == 0)
        return hotbed_fail(
            HOTBED_ERR_STATE, "%s/%s exists already", draft->parent.name, draft->final_name);
    if (calls->exists(calls->self, draft->parent.handle, HOTBED_MANIFEST_NAME) == 0)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "%s is a checkpoint, in which nothing can be saved as %s",
            draft->parent.name, draft->final_name);
    return found == -ENOENT ? HOTBED_OK
                            : hotbed_io_fail("cannot check for", draft->final_name, found);
}

hotbed_status hotbed_draft_create(
    const hotbed_io_calls *calls, const char *path, hotbed_checkpoint_id *id, hotbed_draft *draft) {
    *draft = (hotbed_draft){.parent = HOTBED_IO_CLOSED, .directory = HOTBED_IO_CLOSED};
    HOTBED_TRY(hotbed_new_id(id));
    HOTBED_TRY(hotbed_draft_open(calls, path, *id, draft));
    HOTBED_TRY(hotbed_draft_check_free(draft));
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

static hotbed_status write_and_close(
    hotbed_draft *draft, const char *name, const void *data, size_t bytes) {
    hotbed_io_file file = HOTBED_IO_CLOSED;
    hotbed_status status = write_file(draft, name, data, bytes, &file);
    HOTBED_THEN(status, hotbed_io_close(&file));
    hotbed_io_drop(&file);
    return status;
}

/* Check that a written file still exists and has its size. */
static hotbed_status check_file(hotbed_draft *draft, const char *name, uint64_t bytes) {
    hotbed_io_file file = HOTBED_IO_CLOSED;
    uint64_t found = 0;
    hotbed_status status =
        hotbed_io_open(draft->parent.calls, &draft->directory, name, HOTBED_IO_READ, &file);
    HOTBED_THEN(status, hotbed_io_size(&file, &found));
    if (status == HOTBED_OK && found != bytes)
        status = hotbed_fail_path_limit(
            HOTBED_ERR_IO, file.name, NULL, found, bytes,
            "%s has %" PRIu64 " bytes, %" PRIu64 " were written", file.name, found, bytes);
    hotbed_io_drop(&file);
    return status;
}

static hotbed_status check_files(hotbed_draft *draft, const hotbed_manifest *m) {
    if (m == NULL)
        return HOTBED_OK;
    for (uint32_t i = 0; i < m->world; i++)
        HOTBED_TRY(check_file(draft, hotbed_shard_name(i, m->world).text, m->shards[i].bytes));
    HOTBED_TRY(check_file(draft, HOTBED_INDEX_NAME, m->index_bytes));
    return check_file(draft, HOTBED_MANIFEST_NAME, draft->manifest_bytes);
}

hotbed_status hotbed_draft_rename(const hotbed_draft *draft) {
    const hotbed_io_calls *calls = draft->parent.calls;
    int renamed =
        calls->rename_new(calls->self, draft->parent.handle, draft->name, draft->final_name);
    if (renamed == -EEXIST || renamed == -ENOTEMPTY || renamed == -ENOTDIR)
        return hotbed_fail(
            HOTBED_ERR_STATE,
            "%s/%s was created meanwhile, by another program or by another rank or thread of this "
            "one",
            draft->parent.name, draft->final_name);
    return renamed < 0 ? hotbed_io_fail("cannot rename the finished", draft->final_name, renamed)
                       : HOTBED_OK;
}

/* Rename the checkpoint back to the draft's name after a failed commit, so that a failed save
 * leaves no final name: the checkpoint is incomplete, or its name may not survive a power failure.
 * If this rename fails too, the final name remains. */
static hotbed_status uncommit(hotbed_draft *draft, hotbed_status status) {
    const hotbed_io_calls *calls = draft->parent.calls;
    int back = calls->rename_new(calls->self, draft->parent.handle, draft->final_name, draft->name);
    return back == 0 ? status
                     : HOTBED_FAIL_AFTER(
                           status, "%s; %s remains, and may be incomplete after a power failure",
                           hotbed_last_error(), draft->final_name);
}

hotbed_status hotbed_draft_commit(hotbed_draft *draft, const hotbed_manifest *m) {
    HOTBED_TRY(hotbed_io_sync(&draft->directory));
    HOTBED_TRY(check_files(draft, m));
    HOTBED_TRY(hotbed_draft_rename(draft));
    hotbed_status status = hotbed_io_sync(&draft->parent);
    HOTBED_THEN(status, check_files(draft, m));
    return status == HOTBED_OK ? HOTBED_OK : uncommit(draft, status);
}

/* Whether a save creates files with this name. */
static bool is_written(const char *name) {
    const char *end = strrchr(name, '.');
    bool shard = strncmp(name, "shard-", 6) == 0 && end != NULL;
    return strcmp(name, HOTBED_MANIFEST_NAME) == 0 || strcmp(name, HOTBED_INDEX_NAME) == 0 ||
           (shard && (strcmp(end, ".h5") == 0 || strcmp(end, ".part") == 0));
}

static void remove_file(void *context, const char *name) {
    hotbed_draft *draft = context;
    if (is_written(name))
        draft->parent.calls->remove(
            draft->parent.calls->self, draft->directory.handle, name, false);
}

/* After a failure of the communicator, other ranks may still be creating their files, between the
 * list and the removal of the directory. Each creates a few, so several tries succeed. */
void hotbed_draft_remove(hotbed_draft *draft) {
    enum { TRIES_MOST = 100 };
    const hotbed_io_calls *calls = draft->parent.calls;
    if (draft->parent.handle < 0)
        return;
    hotbed_io_drop(&draft->directory); /* this handle may be the one that failed */
    int removed = -ENOTEMPTY;
    for (int i = 0; i < TRIES_MOST && (removed == -ENOTEMPTY || removed == -EEXIST); i++) {
        int handle =
            calls->open(calls->self, draft->parent.handle, draft->name, HOTBED_IO_DIRECTORY);
        if (handle < 0) { /* for example too many open files: an empty directory can still go */
            (void)calls->remove(calls->self, draft->parent.handle, draft->name, true);
            return;
        }
        draft->directory.calls = calls;
        draft->directory.handle = handle;
        (void)calls->list(calls->self, handle, remove_file, draft);
        hotbed_io_drop(&draft->directory);
        removed = calls->remove(calls->self, draft->parent.handle, draft->name, true);
    }
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
               : hotbed_fail_os(HOTBED_ERR_IO, errno, "cannot make a random checkpoint id");
}

hotbed_status hotbed_draft_describe(
    hotbed_draft *draft, const hotbed_manifest *m, uint32_t number) {
    char *text = NULL;
    size_t bytes = 0;
    HOTBED_TRY(hotbed_manifest_print_shard(m, number, &text, &bytes));
    /* No sync: the file is removed before the checkpoint gets its name. */
    hotbed_status status =
        write_and_close(draft, hotbed_shard_part_name(number, m->world).text, text, bytes);
    hotbed_delete(text);
    return status;
}

/* Read the description of a shard, and remove its file. */
static hotbed_status add_shard(
    hotbed_draft *draft, uint32_t number, uint32_t world, hotbed_manifest *m) {
    const hotbed_io_calls *calls = draft->parent.calls;
    hotbed_io_file file = HOTBED_IO_CLOSED;
    const hotbed_file_name name = hotbed_shard_part_name(number, world);
    char *text = NULL;
    uint64_t bytes = 0;
    if (calls->exists(calls->self, draft->directory.handle, name.text) == -ENOENT)
        return hotbed_error_path(
            hotbed_fail_rank(
                HOTBED_ERR_STATE, number, "%s: rank %" PRIu32 " of %" PRIu32 " has put no shard",
                draft->directory.name, number, world),
            draft->directory.name);
    HOTBED_TRY(hotbed_io_open(calls, &draft->directory, name.text, HOTBED_IO_READ, &file));
    hotbed_status status = hotbed_io_size(&file, &bytes);
    if (status == HOTBED_OK) {
        text = hotbed_new(bytes);
        status = HOTBED_CHECK_MEMORY(text, "%" PRIu64 " bytes of %s", bytes, name.text);
    }
    HOTBED_THEN(status, hotbed_io_read(&file, text, bytes, 0));
    HOTBED_THEN(status, hotbed_manifest_add_shard(file.name, text, bytes, number, m));
    if (status == HOTBED_OK && m->world != world)
        status = hotbed_fail_path_limit(
            HOTBED_ERR_STATE, file.name, "world", m->world, world,
            "%s has %" PRIu32 " ranks, expected %" PRIu32, file.name, m->world, world);
    hotbed_delete(text);
    hotbed_io_drop(&file);
    HOTBED_TRY(status);
    int removed = calls->remove(calls->self, draft->directory.handle, name.text, false);
    return removed < 0 ? hotbed_io_fail("cannot remove", name.text, removed) : HOTBED_OK;
}

/* Sync and close files that have `bytes` bytes each. Writeback of all files starts before the first
 * sync, so a journaling file system can put all of them into one commit. */
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
    draft->manifest_bytes = bytes[MANIFEST];
    HOTBED_THEN(status, write_file(draft, HOTBED_INDEX_NAME, index, bytes[INDEX], &files[INDEX]));
    HOTBED_THEN(
        status, write_file(draft, HOTBED_MANIFEST_NAME, text, bytes[MANIFEST], &files[MANIFEST]));
    HOTBED_THEN(status, sync_files(FILES, files, bytes));
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
    HOTBED_THEN(status, hotbed_draft_manifest(draft, &m));
    HOTBED_THEN(status, hotbed_draft_commit(draft, &m));
    hotbed_manifest_free(&m);
    return status;
}
