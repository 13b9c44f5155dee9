/* checkpoint/format/io.c - the system's calls, whole transfers, and errors with path and reason. */
#define _GNU_SOURCE /* O_DIRECT, sync_file_range() */
#include "checkpoint/format/io.h"

#include "base/error.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- the operating system's calls ----------------------------------------------------------- */

static int native(int directory) {
    return directory == HOTBED_IO_HERE ? AT_FDCWD : directory;
}

static int result(int value) {
    return value < 0 ? -errno : value;
}

static int system_open(void *self, int directory, const char *name, hotbed_io_open_kind kind) {
    int flags = O_CLOEXEC;
    switch (kind) {
    case HOTBED_IO_READ_DIRECT:
        flags |= O_DIRECT;
        /* fall through */
    case HOTBED_IO_READ:
        flags |= O_RDONLY | O_NOFOLLOW |
                 O_NONBLOCK; /* if a pipe replaces the file, open must not block */
        break;
    case HOTBED_IO_WRITE_DIRECT:
        flags |= O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_DIRECT;
        break;
    case HOTBED_IO_CREATE:
        flags |= O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW;
        break;
    case HOTBED_IO_DIRECTORY:
        flags |= O_RDONLY | O_DIRECTORY;
        break;
    }
    return result(openat(native(directory), name, flags, 0666));
}

static int system_close(void *self, int file) {
    /* Linux has released the handle even if close returns EINTR. */
    int closed = result(close(file));
    return closed == -EINTR ? 0 : closed;
}

static int system_info(void *self, int file, hotbed_io_info *out) {
    struct stat stat;
    if (fstat(file, &stat) != 0)
        return -errno;
    out->regular = S_ISREG(stat.st_mode);
    out->bytes = stat.st_size < 0 ? 0 : (uint64_t)stat.st_size;
    return 0;
}

static int system_allocate(void *self, int file, uint64_t bytes) {
    if (bytes > (uint64_t)INT64_MAX)
        return -EFBIG;
    return bytes == 0 ? 0 : -posix_fallocate(file, 0, (off_t)bytes);
}

static int64_t system_write_at(
    void *self, int file, const void *data, size_t bytes, uint64_t offset) {
    ssize_t n = pwrite(file, data, bytes, (off_t)offset);
    return n < 0 ? -errno : n;
}

static int64_t system_read_at(void *self, int file, void *data, size_t bytes, uint64_t offset) {
    ssize_t n = pread(file, data, bytes, (off_t)offset);
    return n < 0 ? -errno : n;
}

static void system_hint(void *self, int file, bool written, uint64_t offset, uint64_t bytes) {
    if (written) /* little is left for the final sync, which reports errors */
        (void)!sync_file_range(file, (off_t)offset, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
    else
        (void)posix_fadvise(file, (off_t)(offset + bytes), (off_t)bytes, POSIX_FADV_WILLNEED);
}

static int system_sync(void *self, int file) {
    return result(fsync(file));
}

static int system_exists(void *self, int directory, const char *name) {
    struct stat stat;
    return result(fstatat(native(directory), name, &stat, AT_SYMLINK_NOFOLLOW));
}

static int system_list(
    void *self, int directory, void (*each)(void *context, const char *name), void *context) {
    /* Use a separate handle: reading a directory moves the handle's position. */
    int handle = openat(native(directory), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = handle < 0 ? NULL : fdopendir(handle);
    if (list == NULL) {
        int error = errno;
        if (handle >= 0)
            close(handle);
        return -error;
    }
    errno = 0;
    for (struct dirent *item; (item = readdir(list)) != NULL; errno = 0)
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
            each(context, item->d_name);
    int error = errno;
    closedir(list);
    return -error;
}

static int system_make_directory(void *self, int directory, const char *name) {
    return result(mkdirat(native(directory), name, 0777));
}

static int system_rename(void *self, int directory, const char *from, const char *to) {
    return result(renameat(native(directory), from, native(directory), to));
}

/* Where the file system cannot rename without replacing, as NFS cannot, a file gets a second name: a
 * link replaces nothing. A directory has no links, so between the check and the rename an empty one
 * that another process creates can be replaced. */
static int system_rename_new(void *self, int directory, const char *from, const char *to) {
    const int in = native(directory);
    int error = result(renameat2(in, from, in, to, RENAME_NOREPLACE));
    if (error != -EINVAL && error != -ENOSYS)
        return error;
    error = result(linkat(in, from, in, to, 0));
    if (error == 0)
        (void)unlinkat(in, from, 0); /* if it stays, the file has two names */
    if (error != -EPERM && error != -EOPNOTSUPP && error != -ENOSYS)
        return error;
    error = system_exists(self, directory, to);
    return error == 0         ? -EEXIST
           : error != -ENOENT ? error
                              : system_rename(self, directory, from, to);
}

static int system_remove(void *self, int directory, const char *name, bool is_directory) {
    return result(unlinkat(native(directory), name, is_directory ? AT_REMOVEDIR : 0));
}

const hotbed_io_calls hotbed_io_system = {
    .self = NULL,
    .open = system_open,
    .close = system_close,
    .info = system_info,
    .allocate = system_allocate,
    .write_at = system_write_at,
    .read_at = system_read_at,
    .hint = system_hint,
    .sync = system_sync,
    .exists = system_exists,
    .list = system_list,
    .make_directory = system_make_directory,
    .rename = system_rename,
    .rename_new = system_rename_new,
    .remove = system_remove,
};

/* --- whole calls ------------------------------------------------------------------------------ */

hotbed_status hotbed_io_fail(const char *what, const char *name, int error) {
    hotbed_status status = hotbed_fail_path_os(HOTBED_ERR_IO, name, -error, "%s %s", what, name);
    return error != -EMFILE
               ? status
               : HOTBED_FAIL_AFTER(
                     status, "%s: raise the limit of the process (ulimit -n)", hotbed_last_error());
}

/* Copy the end of `text` to the `*space` bytes before out[*space], and shorten *space. Returns
 * false if the beginning of `text` has no space. */
static bool put_end(char *out, size_t *space, const char *text) {
    size_t length = strlen(text), n = length < *space ? length : *space;
    *space -= n;
    memcpy(out + *space, text + length - n, n);
    return n == length;
}

void hotbed_io_name(char out[HOTBED_IO_NAME_BYTES], const char *directory, const char *name) {
    static const char dots[] = "...";
    size_t begin = HOTBED_IO_NAME_BYTES - 1;
    out[begin] = '\0';
    bool whole =
        put_end(out, &begin, name) &&
        (directory == NULL || (put_end(out, &begin, "/") && put_end(out, &begin, directory)));
    if (!whole) {
        begin = sizeof dots - 1;
        while (((unsigned char)out[begin] & 0xc0) == 0x80)
            begin++;
        begin -= sizeof dots - 1;
        memcpy(out + begin, dots, sizeof dots - 1);
    }
    memmove(out, out + begin, HOTBED_IO_NAME_BYTES - begin);
}

/* Open a file. Returns a handle, or a negative errno. */
static int open_any(
    const hotbed_io_calls *calls, const hotbed_io_file *directory, const char *name,
    hotbed_io_open_kind kind) {
    int handle, from = directory == NULL ? HOTBED_IO_HERE : directory->handle;
    do
        handle = calls->open(calls->self, from, name, kind);
    while (handle == -EINTR);
    return handle;
}

/* Open a file. Returns 0 or a negative errno, and sets the name of *out in both cases. */
static int open_named(
    const hotbed_io_calls *calls, const hotbed_io_file *directory, const char *name,
    hotbed_io_open_kind kind, hotbed_io_file *out) {
    hotbed_io_name(out->name, directory == NULL ? NULL : directory->name, name);
    int handle = open_any(calls, directory, name, kind);
    out->calls = calls;
    out->handle = handle < 0 ? -1 : handle;
    out->direct = -1;
    return handle < 0 ? handle : 0;
}

hotbed_status hotbed_io_open(
    const hotbed_io_calls *calls, const hotbed_io_file *directory, const char *name,
    hotbed_io_open_kind kind, hotbed_io_file *out) {
    int error = open_named(calls, directory, name, kind, out);
    return error == 0 ? HOTBED_OK : hotbed_io_fail("cannot open", out->name, error);
}

hotbed_status hotbed_io_open_member(
    const hotbed_io_file *directory, const char *name, hotbed_io_file *out) {
    int error = open_named(directory->calls, directory, name, HOTBED_IO_READ, out);
    if (error == -ENOENT)
        return hotbed_fail_path(HOTBED_ERR_CORRUPT, out->name, "%s is missing", out->name);
    if (error == -ELOOP)
        return hotbed_fail_path(
            HOTBED_ERR_CORRUPT, out->name, "%s is a symbolic link, not a file", out->name);
    return error == 0 ? HOTBED_OK : hotbed_io_fail("cannot open", out->name, error);
}

/* Whether the error means that the file system or its disk does not support direct transfers, or
 * refuses this one. */
static bool no_direct(int64_t error) {
    return error == -EINVAL || error == -EOPNOTSUPP;
}

hotbed_status hotbed_io_open_direct(
    hotbed_io_file *file, const hotbed_io_file *directory, const char *name,
    hotbed_io_open_kind kind) {
    int handle = open_any(file->calls, directory, name, kind);
    if (handle < 0 && !no_direct(handle))
        return hotbed_io_fail("cannot open", file->name, handle);
    file->direct = handle < 0 ? -1 : handle;
    return HOTBED_OK;
}

/* Close a handle. Returns 0 or a negative errno; 0 if it is closed already. */
static int close_handle(const hotbed_io_file *file, int *handle) {
    int closed = *handle < 0 ? 0 : file->calls->close(file->calls->self, *handle);
    *handle = -1;
    return closed;
}

hotbed_status hotbed_io_close(hotbed_io_file *file) {
    int direct = close_handle(file, &file->direct), closed = close_handle(file, &file->handle);
    closed = closed < 0 ? closed : direct;
    return closed < 0 ? hotbed_io_fail("cannot close", file->name, closed) : HOTBED_OK;
}

void hotbed_io_drop(hotbed_io_file *file) {
    (void)close_handle(file, &file->direct);
    (void)close_handle(file, &file->handle);
}

hotbed_status hotbed_io_size(hotbed_io_file *file, uint64_t *bytes) {
    hotbed_io_info info = {.bytes = 0};
    int error = file->calls->info(file->calls->self, file->handle, &info);
    if (error < 0)
        return hotbed_io_fail("cannot read the size of", file->name, error);
    if (!info.regular)
        return hotbed_fail_path(
            HOTBED_ERR_CORRUPT, file->name, "%s is not a plain file", file->name);
    *bytes = info.bytes;
    return HOTBED_OK;
}

hotbed_status hotbed_io_allocate(hotbed_io_file *file, uint64_t bytes) {
    int error;
    do
        error = file->calls->allocate(file->calls->self, file->handle, bytes);
    while (error == -EINTR);
    if (error == 0 || error == -EOPNOTSUPP || error == -EINVAL)
        return HOTBED_OK; /* a file system without reservation reports a full disk at the write */
    char what[64];
    snprintf(what, sizeof what, "cannot reserve %" PRIu64 " bytes for", bytes);
    return hotbed_io_fail(what, file->name, error);
}

enum { HINT_BYTES = 1 << 20 }; /* the smallest transfer that gets a hint */

static void hint(hotbed_io_file *file, bool written, uint64_t offset, int64_t bytes) {
    if (bytes >= HINT_BYTES)
        file->calls->hint(file->calls->self, file->handle, written, offset, (uint64_t)bytes);
}

/* Return how many of the bytes the direct handle transfers. */
static size_t whole_pages(int direct, const void *data, size_t bytes, uint64_t offset) {
    bool fits =
        direct >= 0 && offset % HOTBED_IO_PAGE == 0 && (uintptr_t)data % HOTBED_IO_PAGE == 0;
    return fits ? bytes / HOTBED_IO_PAGE * HOTBED_IO_PAGE : 0;
}

hotbed_status hotbed_io_write(
    hotbed_io_file *file, const void *data, size_t bytes, uint64_t offset) {
    const hotbed_io_calls *calls = file->calls;
    const char *from = data;
    int direct = file->direct;
    while (bytes > 0) {
        size_t pages = whole_pages(direct, from, bytes, offset);
        int64_t n = pages > 0 ? calls->write_at(calls->self, direct, from, pages, offset)
                              : calls->write_at(calls->self, file->handle, from, bytes, offset);
        if (n == -EINTR)
            continue;
        if (pages > 0 && no_direct(n)) {
            direct = -1;
            continue;
        }
        if (n <= 0) { /* retrying a transfer of 0 bytes without an error would never end */
            char what[96];
            snprintf(what, sizeof what, "cannot write %zu bytes at %" PRIu64 " of", bytes, offset);
            return hotbed_io_fail(what, file->name, n == 0 ? -EIO : (int)n);
        }
        if (pages == 0)
            hint(file, true, offset, n);
        from += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return HOTBED_OK;
}

hotbed_status hotbed_io_read(hotbed_io_file *file, void *data, size_t bytes, uint64_t offset) {
    const hotbed_io_calls *calls = file->calls;
    char *to = data;
    int direct = file->direct;
    while (bytes > 0) {
        size_t pages = whole_pages(direct, to, bytes, offset);
        int64_t n = pages > 0 ? calls->read_at(calls->self, direct, to, pages, offset)
                              : calls->read_at(calls->self, file->handle, to, bytes, offset);
        if (n == -EINTR)
            continue;
        if (pages > 0 && no_direct(n)) {
            direct = -1;
            continue;
        }
        if (n < 0) {
            char what[96];
            snprintf(what, sizeof what, "cannot read %zu bytes at %" PRIu64 " of", bytes, offset);
            return hotbed_io_fail(what, file->name, (int)n);
        }
        if (n == 0)
            return hotbed_fail_path_value(
                HOTBED_ERR_CORRUPT, file->name, NULL, offset,
                "%s ends at %" PRIu64 ", %zu bytes early", file->name, offset, bytes);
        if (pages == 0)
            hint(file, false, offset, n);
        to += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return HOTBED_OK;
}

hotbed_status hotbed_io_sync(hotbed_io_file *file) {
    int error = file->calls->sync(file->calls->self, file->handle);
    return error < 0 ? hotbed_io_fail("cannot sync", file->name, error) : HOTBED_OK;
}

void hotbed_io_begin_sync(hotbed_io_file *file, uint64_t bytes) {
    file->calls->hint(file->calls->self, file->handle, true, 0, bytes);
}
