/* checkpoint/io.h - files and directories: the system calls in a table, and what makes them whole.
 *
 * Everything that a checkpoint writes or reads goes through a hotbed_io_calls, so that tests make the
 * n-th call fail, be cut short or be the last.  The functions here add what a bare call lacks: short
 * transfers and EINTR are gone on with, and a failure is IO with path, place and reason.  A failed sync
 * or close is never tried again: the kernel may have dropped the pages (the caller starts over with
 * new files).
 *
 * A file may have a second handle whose transfers go past the kernel's cache: whole pages to and from
 * memory at page boundaries take it, what is left takes the first one.
 */
#ifndef HOTBED_CHECKPOINT_IO_H
#define HOTBED_CHECKPOINT_IO_H

#include "hotbed/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum hotbed_io_open {
    HOTBED_IO_READ = 1,      /* an existing file; the last part of its name is no link */
    HOTBED_IO_CREATE = 2,    /* a new file, for writing */
    HOTBED_IO_DIRECTORY = 3, /* an existing directory */
    /* As READ, and an existing file for writing, past the kernel's cache.  -EINVAL or -EOPNOTSUPP, of the
     * open or of a transfer, is no fault: the file system has no such way. */
    HOTBED_IO_READ_DIRECT = 4,
    HOTBED_IO_WRITE_DIRECT = 5,
} hotbed_io_open_kind;

typedef struct hotbed_io_info {
    uint64_t bytes;
    bool regular; /* a plain file */
} hotbed_io_info;

enum {
    HOTBED_IO_HERE = -1,   /* as a directory: the process's current one */
    HOTBED_IO_PAGE = 4096, /* direct transfers: divides place, size and address */
};

/* Each call but the hint returns 0 (open a handle, the transfers a number of bytes), or a negative errno. */
typedef struct hotbed_io_calls {
    void *self; /* first argument of each call */
    int (*open)(void *self, int directory, const char *name, hotbed_io_open_kind kind);
    int (*close)(void *self, int file);
    int (*info)(void *self, int file, hotbed_io_info *out);
    int (*allocate)(void *self, int file, uint64_t bytes); /* disk space; -EOPNOTSUPP is no fault */
    int64_t (*write_at)(void *self, int file, const void *data, size_t bytes, uint64_t offset);
    int64_t (*read_at)(void *self, int file, void *data, size_t bytes, uint64_t offset);
    /* Of a transfer that the kernel's cache took part in: the disk begins with what was written, and fetches as
     * much again behind what was read. */
    void (*hint)(void *self, int file, bool written, uint64_t offset, uint64_t bytes);
    int (*sync)(void *self, int file);                          /* files and directories */
    int (*exists)(void *self, int directory, const char *name); /* 0, or -ENOENT */
    int (*make_directory)(void *self, int directory, const char *name);
    int (*rename)(void *self, int directory, const char *from, const char *to);
    int (*remove)(void *self, int directory, const char *name, bool is_directory);
} hotbed_io_calls;

/* The operating system's. */
extern const hotbed_io_calls hotbed_io_system;

/* An open file or directory, with the name that messages use. */
typedef struct hotbed_io_file {
    const hotbed_io_calls *calls;
    int handle; /* below 0: closed */
    int direct; /* past the kernel's cache; below 0: there is none */
    char name[256];
} hotbed_io_file;

#define HOTBED_IO_CLOSED                                                                           \
    { .calls = NULL, .handle = -1, .direct = -1 }

/* IO: "`what` `name`: reason of -error". */
hotbed_status hotbed_io_fail(const char *what, const char *name, int error);

/* Open `name` in `directory` (NULL: the current one).  Errors: IO. */
hotbed_status hotbed_io_open(
    const hotbed_io_calls *calls, const hotbed_io_file *directory, const char *name,
    hotbed_io_open_kind kind, hotbed_io_file *out);

/* Give an open file its second handle, READ_DIRECT or WRITE_DIRECT, where the file system has one; names as
 * above.  Errors: IO. */
hotbed_status hotbed_io_open_direct(
    hotbed_io_file *file, const hotbed_io_file *directory, const char *name,
    hotbed_io_open_kind kind);

/* Close; the status says whether everything that was written was accepted.  Closed already: OK. */
hotbed_status hotbed_io_close(hotbed_io_file *file);

/* Close after a failure: keeps the error text.  Closed already is fine. */
void hotbed_io_drop(hotbed_io_file *file);

/* Size of a plain file.  Errors: IO, CORRUPT (not a plain file). */
hotbed_status hotbed_io_size(hotbed_io_file *file, uint64_t *bytes);

hotbed_status hotbed_io_allocate(hotbed_io_file *file, uint64_t bytes);
hotbed_status hotbed_io_write(
    hotbed_io_file *file, const void *data, size_t bytes, uint64_t offset);

/* Errors: IO, CORRUPT (the file ends before). */
hotbed_status hotbed_io_read(hotbed_io_file *file, void *data, size_t bytes, uint64_t offset);
hotbed_status hotbed_io_sync(hotbed_io_file *file);

/* The disk begins with the first `bytes` bytes, which a sync will wait for: it then goes faster. */
void hotbed_io_begin_sync(hotbed_io_file *file, uint64_t bytes);

#endif
