/* base/host_memory.c - memory of the host: pageable, and mapped from an unnamed file. */
#define _DEFAULT_SOURCE /* madvise */
#include "base/backend.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGN = 256, REASON_BYTES = 128 };
enum { HUGE_PAGE = 2 << 20, HUGE_LEAST = 8 << 20 };

/* Rows and index lines are read at random: with small pages most reads would look up a page first. */
void *hotbed_host_alloc(size_t bytes) {
    size_t align = bytes < HUGE_LEAST ? ALIGN : HUGE_PAGE;
    if (bytes > (size_t)PTRDIFF_MAX - align)
        return NULL;
    void *data = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (data != NULL && align == HUGE_PAGE)
        (void)madvise(data, bytes, MADV_HUGEPAGE); /* advice: it may not be followed */
    return data;
}

void hotbed_host_free(void *data) {
    free(data);
}

/* IO with the system's words for `error`. */
static hotbed_status fail_file(const char *what, const char *directory, size_t bytes, int error) {
    char reason[REASON_BYTES];
    if (strerror_r(error, reason, sizeof reason) != 0)
        snprintf(reason, sizeof reason, "error %d", error);
    return hotbed_fail(
        HOTBED_ERR_IO, "cannot %s a file of %zu bytes in %s: %s", what, bytes, directory, reason);
}

/* An open file without a name in `directory`, or -1 with errno set. */
static int open_unnamed(const char *directory) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/hotbed-XXXXXX", directory);
    if (length < 0 || (size_t)length >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int file = mkstemp(path);
    if (file >= 0)
        unlink(path);
    return file;
}

hotbed_status hotbed_file_alloc(const char *directory, size_t bytes, void **out) {
    if (directory == NULL)
        directory = getenv("TMPDIR");
    if (directory == NULL || directory[0] == '\0')
        directory = "/tmp";
    if (bytes > (size_t)PTRDIFF_MAX)
        return fail_file("make", directory, bytes, EFBIG);
    int file = open_unnamed(directory);
    if (file < 0)
        return fail_file("make", directory, bytes, errno);
    int error = posix_fallocate(file, 0, (off_t)bytes);
    if (error != 0) {
        close(file);
        return fail_file("fill", directory, bytes, error);
    }
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    error = errno;
    close(file); /* the mapping keeps the file */
    if (data == MAP_FAILED) {
        if (error == ENOMEM)
            return hotbed_fail(
                HOTBED_ERR_MEMORY, "no address space to map a file of %zu bytes in %s", bytes,
                directory);
        return fail_file("map", directory, bytes, error);
    }
    *out = data;
    return HOTBED_OK;
}

void hotbed_file_free(void *data, size_t bytes) {
    munmap(data, bytes);
}
