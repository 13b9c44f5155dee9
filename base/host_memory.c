/* base/host_memory.c - host memory: pageable, or mapped from an unnamed file. */
#define _GNU_SOURCE /* NOLINT(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): mkostemp() */
#include "base/backend.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGN = 256 };
enum { HUGE_PAGE = 2 << 20, HUGE_LEAST = 8 << 20 };

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/* Map memory in huge pages. The system allocates pages at the first access. Rows and index lines
 * are read at random addresses; with small pages, most reads would miss the TLB. */
static void *map_huge(size_t bytes) {
    size_t size = round_up(bytes, HUGE_PAGE);
    uint8_t *map =
        mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    size_t before = (HUGE_PAGE - (uintptr_t)map % HUGE_PAGE) % HUGE_PAGE;
    if (before > 0)
        (void)munmap(map, before);
    (void)munmap(map + before + size, HUGE_PAGE - before);
    (void)madvise(map + before, size, MADV_HUGEPAGE); /* advice only: the system may ignore it */
    return map + before;
}

void *hotbed_host_alloc(size_t bytes) {
    if (bytes > (size_t)PTRDIFF_MAX - 2 * HUGE_PAGE)
        return NULL;
    if (bytes >= HUGE_LEAST)
        return map_huge(bytes);
    size_t size = round_up(bytes, ALIGN);
    void *data = aligned_alloc(ALIGN, size);
    if (data != NULL)
        memset(data, 0, size);
    return data;
}

void hotbed_host_free(void *data, size_t bytes) {
    if (data != NULL && bytes >= HUGE_LEAST)
        (void)munmap(data, round_up(bytes, HUGE_PAGE));
    else
        free(data);
}

/* Fail with IO and the system's text for `error`. */
static hotbed_status fail_file(const char *what, const char *directory, size_t bytes, int error) {
    char reason[HOTBED_REASON_BYTES];
    return hotbed_fail(
        HOTBED_ERR_IO, "cannot %s a file of %zu bytes in %s: %s", what, bytes, directory,
        hotbed_reason(error, reason));
}

/* Open a file without a name in `directory`. Returns -1 with errno set on failure. */
static int open_unnamed(const char *directory) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/hotbed-XXXXXX", directory);
    if (length < 0 || (size_t)length >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int file = mkostemp(path, O_CLOEXEC);
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
    close(file); /* the mapping keeps the file alive */
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
