/* checkpoint/tool/tool_files.c - read from more files than a process may have open.
 *
 * The handle of a file for reading is a number of this module, from FIRST on. A file that was
 * closed is reopened when it is used, and the file that was opened longest ago is closed for it.
 * All other handles are the system's. */
#define _DEFAULT_SOURCE
#include "checkpoint/tool/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FIRST = 1 << 24, NAME_BYTES = 128, NONE = -1 };

typedef struct pooled {
    char name[NAME_BYTES];
    int directory;
    int file; /* the system's handle, or NONE if it is closed */
    int turn; /* open: position in `turns`; unused: the next unused number */
    uint64_t device, inode;
} pooled;

static struct {
    pooled *files; /* [capacity], of which n were used */
    int n, capacity, first_free;
    int turns[TOOL_FILES]; /* numbers of open files, or NONE */
    int oldest;            /* position in `turns` that is used next */
} pool = {.first_free = NONE};

static const hotbed_io_calls *const below = &hotbed_io_system;

static int close_file(pooled *f) {
    if (f->file == NONE)
        return 0;
    int closed = below->close(below->self, f->file);
    f->file = NONE;
    pool.turns[f->turn] = NONE;
    return closed;
}

/* Open the file of a number unless it is open. Returns 0 or a negative errno. */
static int open_file(int number, bool again) {
    pooled *f = &pool.files[number];
    struct stat stat;
    if (f->file != NONE)
        return 0;
    if (pool.turns[pool.oldest] != NONE)
        (void)close_file(&pool.files[pool.turns[pool.oldest]]);
    int file = below->open(below->self, f->directory, f->name, HOTBED_IO_READ);
    if (file < 0)
        return file;
    f->file = file;
    f->turn = pool.oldest;
    pool.turns[pool.oldest] = number;
    pool.oldest = (pool.oldest + 1) % TOOL_FILES;
    if (fstat(file, &stat) != 0)
        return -errno;
    if (again && (f->device != stat.st_dev || f->inode != stat.st_ino))
        return -ESTALE;
    f->device = stat.st_dev;
    f->inode = stat.st_ino;
    return 0;
}

/* Return a free number, or NONE if there is no memory. */
static int take_number(void) {
    if (pool.first_free != NONE) {
        int number = pool.first_free;
        pool.first_free = pool.files[number].turn;
        return number;
    }
    if (pool.n == pool.capacity) {
        int capacity = 2 * pool.capacity + TOOL_FILES;
        pooled *grown = realloc(pool.files, (size_t)capacity * sizeof *grown);
        if (grown == NULL)
            return NONE;
        if (pool.files == NULL)
            for (int i = 0; i < TOOL_FILES; i++)
                pool.turns[i] = NONE;
        pool.files = grown;
        pool.capacity = capacity;
    }
    return pool.n++;
}

static void free_number(int number) {
    pool.files[number].turn = pool.first_free;
    pool.first_free = number;
}

static int pool_open(void *self, int directory, const char *name, hotbed_io_open_kind kind) {
    if (kind != HOTBED_IO_READ || strlen(name) >= NAME_BYTES)
        return below->open(below->self, directory, name, kind);
    int number = take_number();
    if (number == NONE)
        return -ENOMEM;
    pooled *f = &pool.files[number];
    *f = (pooled){.directory = directory, .file = NONE};
    snprintf(f->name, sizeof f->name, "%s", name);
    int opened = open_file(number, false);
    if (opened == 0)
        return FIRST + number;
    (void)close_file(f);
    free_number(number);
    return opened;
}

static int pool_close(void *self, int file) {
    if (file < FIRST)
        return below->close(below->self, file);
    int closed = close_file(&pool.files[file - FIRST]);
    free_number(file - FIRST);
    return closed;
}

/* Return the system's handle, or a negative errno. */
static int open_handle(int file) {
    if (file < FIRST)
        return file;
    int opened = open_file(file - FIRST, true);
    return opened < 0 ? opened : pool.files[file - FIRST].file;
}

static int pool_info(void *self, int file, hotbed_io_info *out) {
    int handle = open_handle(file);
    return handle < 0 ? handle : below->info(below->self, handle, out);
}

static int64_t pool_read_at(void *self, int file, void *data, size_t bytes, uint64_t offset) {
    int handle = open_handle(file);
    return handle < 0 ? handle : below->read_at(below->self, handle, data, bytes, offset);
}

static void pool_hint(void *self, int file, bool written, uint64_t offset, uint64_t bytes) {
    int handle = open_handle(file);
    if (handle >= 0)
        below->hint(below->self, handle, written, offset, bytes);
}

const hotbed_io_calls *tool_files(void) {
    static hotbed_io_calls calls;
    calls = hotbed_io_system;
    calls.open = pool_open;
    calls.close = pool_close;
    calls.info = pool_info;
    calls.read_at = pool_read_at;
    calls.hint = pool_hint;
    return &calls;
}
