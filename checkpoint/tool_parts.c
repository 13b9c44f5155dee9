/* checkpoint/tool_parts.c - checkpoints of parts.
 *
 * The Python package saves a collection of several storages as one directory, which contains a
 * checkpoint for each storage. The file PARTS lists their names; docs/formats.md describes it.
 * Directories of older versions have no PARTS. They are recognized by the names of their parts,
 * which the package chooses. */
#define _DEFAULT_SOURCE
#include "checkpoint/tool.h"

#include "base/error.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARTS_WORD "hotbed-parts "
#define PARTS_HEAD PARTS_WORD "1\n"

bool tool_is_part_name(const char *name) {
    static const char *const poolings[] = {"sum", "mean", "none"};
    static const char *const routes[] = {"", "-hash_round_robin", "-round_robin", "-continuous"};
    for (size_t p = 0; p < sizeof poolings / sizeof *poolings; p++) {
        size_t bytes = strlen(poolings[p]);
        for (size_t r = 0; strncmp(name, poolings[p], bytes) == 0 && r < 4; r++)
            if (strcmp(name + bytes, routes[r]) == 0)
                return true;
    }
    return false;
}

bool tool_has_part(const tool_parts *parts, const char *name) {
    for (uint32_t i = 0; i < parts->n; i++)
        if (strcmp(parts->names[i], name) == 0)
            return true;
    return false;
}

void tool_parts_text(const tool_parts *parts, char text[TOOL_PARTS_TEXT_BYTES]) {
    size_t n = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < parts->n; i++)
        n += (size_t)snprintf(
            text + n, TOOL_PARTS_TEXT_BYTES - n, "%s%s", i == 0 ? "" : ", ", parts->names[i]);
}

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

/* --- the file ----------------------------------------------------------------------------------------------- */

static hotbed_status fail_file(const hotbed_io_file *file, const char *why) {
    return hotbed_fail(HOTBED_ERR_CORRUPT, "%s is damaged: %s", file->name, why);
}

/* Add the name of `bytes` bytes. */
static hotbed_status add_name(
    const hotbed_io_file *file, const char *name, size_t bytes, tool_parts *out) {
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    char copy[TOOL_PART_BYTES] = "";
    if (bytes == 0 || bytes >= TOOL_PART_BYTES || name[0] == '.')
        return fail_file(file, "a line is not the name of a part");
    memcpy(copy, name, bytes);
    if (strspn(copy, allowed) != bytes)
        return fail_file(file, "a line is not the name of a part");
    if (tool_has_part(out, copy))
        return fail_file(file, "it has a name twice");
    if (out->n == TOOL_PARTS)
        return fail_file(file, "it has too many names");
    memcpy(out->names[out->n++], copy, sizeof copy);
    return HOTBED_OK;
}

static hotbed_status parse(
    const hotbed_io_file *file, const char *text, size_t bytes, tool_parts *out) {
    const size_t head = sizeof PARTS_HEAD - 1, word = sizeof PARTS_WORD - 1;
    if (bytes < head || memcmp(text, PARTS_HEAD, head) != 0)
        return bytes > word && memcmp(text, PARTS_WORD, word) == 0 && text[word] > '1' &&
                       text[word] <= '9'
                   ? hotbed_fail(
                         HOTBED_ERR_UNSUPPORTED, "%s has a format that is newer than 1", file->name)
                   : fail_file(file, "it does not begin with 'hotbed-parts 1'");
    for (size_t at = head; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        if (end == NULL)
            return fail_file(file, "its last line is incomplete");
        HOTBED_TRY(add_name(file, text + at, (size_t)(end - text) - at, out));
        at = (size_t)(end - text) + 1;
    }
    return out->n == 0 ? fail_file(file, "it has no names") : HOTBED_OK;
}

static hotbed_status read_file(const hotbed_io_file *directory, tool_parts *out) {
    char text[sizeof PARTS_HEAD + TOOL_PARTS * TOOL_PART_BYTES];
    hotbed_io_file file = HOTBED_IO_CLOSED;
    uint64_t bytes = 0;
    hotbed_status status = hotbed_io_open_member(directory, TOOL_PARTS_NAME, &file);
    if (status == HOTBED_OK)
        status = hotbed_io_size(&file, &bytes);
    if (status == HOTBED_OK && bytes > sizeof text)
        status = fail_file(&file, "it is too large");
    if (status == HOTBED_OK)
        status = hotbed_io_read(&file, text, (size_t)bytes, 0);
    if (status == HOTBED_OK)
        status = parse(&file, text, (size_t)bytes, out);
    hotbed_io_drop(&file);
    return status;
}

hotbed_status tool_write_parts(const hotbed_io_file *directory, const tool_parts *parts) {
    char text[sizeof PARTS_HEAD + TOOL_PARTS * TOOL_PART_BYTES];
    hotbed_io_file file = HOTBED_IO_CLOSED;
    size_t n = (size_t)snprintf(text, sizeof text, "%s", PARTS_HEAD);
    for (uint32_t i = 0; i < parts->n; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\n", parts->names[i]);
    hotbed_status status =
        hotbed_io_open(directory->calls, directory, TOOL_PARTS_NAME, HOTBED_IO_CREATE, &file);
    if (status == HOTBED_OK)
        status = hotbed_io_write(&file, text, n, 0);
    if (status == HOTBED_OK)
        status = hotbed_io_sync(&file);
    if (status == HOTBED_OK)
        status = hotbed_io_close(&file);
    hotbed_io_drop(&file);
    return status;
}

/* --- directories without the file ----------------------------------------------------------------------------- */

bool tool_is_checkpoint_file(const char *name) {
    const char *end = strrchr(name, '.');
    return strcmp(name, HOTBED_MANIFEST_NAME) == 0 || strcmp(name, HOTBED_INDEX_NAME) == 0 ||
           (strncmp(name, "shard-", 6) == 0 && end != NULL && strcmp(end, ".h5") == 0);
}

/* Whether `name` in a directory is a directory, not a link, that contains files of a checkpoint.
 * False if it cannot be read. */
static bool is_checkpoint(int directory, const char *name) {
    int handle = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *list = handle < 0 ? NULL : fdopendir(handle);
    bool found = false;
    if (list == NULL) {
        if (handle >= 0)
            close(handle);
        return false;
    }
    for (struct dirent *item; !found && (item = readdir(list)) != NULL;)
        found = tool_is_checkpoint_file(item->d_name);
    closedir(list);
    return found;
}

static hotbed_status find_by_name(const hotbed_io_file *directory, tool_parts *out) {
    int handle = openat(directory->handle, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = handle < 0 ? NULL : fdopendir(handle);
    bool others = false;
    if (list == NULL) {
        int error = errno;
        if (handle >= 0)
            close(handle);
        return hotbed_io_fail("cannot read", directory->name, -error);
    }
    for (struct dirent *item; (item = readdir(list)) != NULL;)
        if (tool_is_part_name(item->d_name) && is_checkpoint(handle, item->d_name))
            snprintf(
                out->names[out->n++], TOOL_PART_BYTES, "%.*s", TOOL_PART_BYTES - 1, item->d_name);
    rewinddir(list);
    for (struct dirent *item; out->n > 0 && !others && (item = readdir(list)) != NULL;)
        others = item->d_name[0] != '.' && !tool_is_part_name(item->d_name) &&
                 is_checkpoint(handle, item->d_name);
    closedir(list);
    out->mixed = others;
    out->n = others ? 0 : out->n;
    return HOTBED_OK;
}

hotbed_status tool_read_parts(const hotbed_io_file *directory, tool_parts *out) {
    const hotbed_io_calls *calls = directory->calls;
    *out = (tool_parts){.n = 0};
    out->listed = calls->exists(calls->self, directory->handle, TOOL_PARTS_NAME) != -ENOENT;
    hotbed_status status = out->listed ? read_file(directory, out) : find_by_name(directory, out);
    if (status == HOTBED_OK && out->n > 0)
        qsort(out->names, out->n, sizeof *out->names, by_name);
    return status;
}
