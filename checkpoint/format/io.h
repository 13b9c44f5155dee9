/* checkpoint/format/io.h - files and directories: a table of system calls, and functions that complete
 * them.
 *
 * Everything that a checkpoint writes or reads goes through a hotbed_io_calls, so tests can make
 * the n-th call fail, transfer fewer bytes, or be the last one. The functions here add what a bare
 * call lacks: they continue after short transfers and EINTR, and report failures as IO with path,
 * position and reason. A failed sync or close is never retried, because the kernel may have dropped
 * the pages; the caller starts over with new files.
 *
 * A file may have a second handle that bypasses the kernel's page cache. Whole pages at page
 * boundaries of memory and file use this handle, all other bytes the first one. */
#pragma once

#include "hotbed/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum hotbed_io_open {
    HOTBED_IO_READ = 1,      /* an existing file; the last part of its name is not a link */
    HOTBED_IO_CREATE = 2,    /* a new file, for writing */
    HOTBED_IO_DIRECTORY = 3, /* an existing directory */
    /* Like READ, and an existing file for writing, but bypassing the page cache. -EINVAL and
     * -EOPNOTSUPP, from the open or from a transfer, are not errors: the file system does not
     * support it. */
    HOTBED_IO_READ_DIRECT = 4,
    HOTBED_IO_WRITE_DIRECT = 5,
} hotbed_io_open_kind;

typedef struct hotbed_io_info {
    uint64_t bytes;
    bool regular; /* a plain file */
} hotbed_io_info;

enum {
    HOTBED_IO_HERE = -1, /* in place of a directory: the process's current one */
    HOTBED_IO_PAGE =
        4096, /* direct transfers: offset, size and address must be multiples of this */
};

/* The system calls. Each call except `hint` returns a negative errno on failure. On success open
 * returns a handle, the transfers return a number of bytes, and all others return 0. */
typedef struct hotbed_io_calls {
    void *self; /* first argument of each call */
    int (*open)(void *self, int directory, const char *name, hotbed_io_open_kind kind);
    int (*close)(void *self, int file);
    int (*info)(void *self, int file, hotbed_io_info *out);
    int (*allocate)(
        void *self, int file,
        uint64_t bytes); /* reserves disk space; -EOPNOTSUPP is not an error */
    int64_t (*write_at)(void *self, int file, const void *data, size_t bytes, uint64_t offset);
    int64_t (*read_at)(void *self, int file, void *data, size_t bytes, uint64_t offset);
    /* Called after a transfer through the page cache: starts writeback of the bytes that were
     * written, or reads ahead as many bytes as were read. */
    void (*hint)(void *self, int file, bool written, uint64_t offset, uint64_t bytes);
    int (*sync)(void *self, int file);                          /* files and directories */
    int (*exists)(void *self, int directory, const char *name); /* 0, or -ENOENT */
    /* Call each(context, name) for every name in the directory except "." and "..". */
    int (*list)(
        void *self, int directory, void (*each)(void *context, const char *name), void *context);
    int (*make_directory)(void *self, int directory, const char *name);
    int (*rename)(void *self, int directory, const char *from, const char *to);
    /* Like rename, but -EEXIST if `to` exists, which is never replaced: neither a file nor an empty
     * directory. */
    int (*rename_new)(void *self, int directory, const char *from, const char *to);
    int (*remove)(void *self, int directory, const char *name, bool is_directory);
} hotbed_io_calls;

/* The calls of the operating system. */
extern const hotbed_io_calls hotbed_io_system;

/* Bytes of a name for messages. The text of an error, of 1024 bytes, has space for more words. */
enum { HOTBED_IO_NAME_BYTES = 800 };

/* An open file or directory, with the name that messages use. */
typedef struct hotbed_io_file {
    const hotbed_io_calls *calls;
    int handle; /* below 0: closed */
    int direct; /* bypasses the page cache; below 0: there is none */
    char name[HOTBED_IO_NAME_BYTES];
} hotbed_io_file;

#define HOTBED_IO_CLOSED                                                                           \
    { .calls = NULL, .handle = -1, .direct = -1 }

/* Write "directory/name", or `name` if `directory` is NULL, to `out`. If it is too long, "..."
 * replaces its beginning, up to the end of a UTF-8 character. */
void hotbed_io_name(char out[HOTBED_IO_NAME_BYTES], const char *directory, const char *name);

/* Fail with IO: "`what` `name`: reason of -error", and what to do about too many open files. */
hotbed_status hotbed_io_fail(const char *what, const char *name, int error);

/* Open `name` in `directory` (NULL: the current one). Errors: IO. */
hotbed_status hotbed_io_open(
    const hotbed_io_calls *calls, const hotbed_io_file *directory, const char *name,
    hotbed_io_open_kind kind, hotbed_io_file *out);

/* Open a file that every complete checkpoint has in its directory, for reading. Errors: IO, CORRUPT
 * (the file is missing, or is a link). */
hotbed_status hotbed_io_open_member(
    const hotbed_io_file *directory, const char *name, hotbed_io_file *out);

/* Give an open file its second handle, READ_DIRECT or WRITE_DIRECT, if the file system supports it.
 * `directory` and `name` are the arguments of the first open. Errors: IO. */
hotbed_status hotbed_io_open_direct(
    hotbed_io_file *file, const hotbed_io_file *directory, const char *name,
    hotbed_io_open_kind kind);

/* Close a file. The status says whether the system accepted everything that was written. Returns OK
 * if the file is closed already. Errors: IO. */
hotbed_status hotbed_io_close(hotbed_io_file *file);

/* Close a file after a failure. Keeps the error text. The file may be closed already. */
void hotbed_io_drop(hotbed_io_file *file);

/* Return the size of a plain file. Errors: IO, CORRUPT (not a plain file). */
hotbed_status hotbed_io_size(hotbed_io_file *file, uint64_t *bytes);

hotbed_status hotbed_io_allocate(hotbed_io_file *file, uint64_t bytes);
hotbed_status hotbed_io_write(
    hotbed_io_file *file, const void *data, size_t bytes, uint64_t offset);

/* Read bytes at `offset`. Errors: IO, CORRUPT (the file ends earlier). */
hotbed_status hotbed_io_read(hotbed_io_file *file, void *data, size_t bytes, uint64_t offset);
hotbed_status hotbed_io_sync(hotbed_io_file *file);

/* Start writeback of the first `bytes` bytes, so that a later sync has less to wait for. */
void hotbed_io_begin_sync(hotbed_io_file *file, uint64_t bytes);
