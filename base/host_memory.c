/* base/host_memory.c - host memory: pageable, or mapped from an unnamed file. */
#define _GNU_SOURCE /* NOLINT(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): mkostemp() */
#include "base/backend.h"
#include "base/host_race.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { ALIGN = 256 };
enum { HUGE_PAGE = 2 << 20, HUGE_LEAST = 8 << 20 };

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/* --- pages ---------------------------------------------------------------------------------------
 *
 * The system allocates pages at the first access. Rows and index lines are read at random addresses;
 * with small pages, most reads of a large table would miss the TLB. So large memory has huge pages.
 * But the keys of a hash table that is nearly empty are at random addresses, too, and each would
 * take a huge page. So memory of hashed slots starts with small pages. When half of the small pages
 * in the places that are used are there, the memory gets huge pages, and takes at most twice as much.
 * The threads of host streams look for such memory, after so many page faults that the answer may
 * have changed. */

enum {
    MAPPINGS_MOST = 1024,
    TASKS = 32,            /* between two looks at the count of faults */
    FAULTS_LEAST = 512,    /* between two looks at the pages */
    FAULTS_SHARE = 64,     /* the same, as a part of all pages that are looked at */
    LOOK_BYTES = 32 << 20, /* of one call of mincore() */
    SMALLEST_PAGE = 4 << 10,
    COLLAPSE = 25, /* MADV_COLLAPSE of Linux 6.1; before, the system moves to huge pages in time */
};

/* Memory that has small pages. */
static struct {
    pthread_mutex_t lock;
    uint8_t *data[MAPPINGS_MOST];
    size_t bytes[MAPPINGS_MOST];
    size_t all_bytes;
    uint32_t num;   /* atomic */
    long looked;    /* atomic: number of faults at the last look */
    uint32_t tasks; /* atomic */
} small = {.lock = PTHREAD_MUTEX_INITIALIZER};

static long count_faults(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_minflt : 0;
}

static void use_huge(uint8_t *data, size_t bytes) {
    (void)madvise(data, bytes, MADV_HUGEPAGE); /* advice only: the system may ignore it */
}

/* Whether the parts of 2 MiB that are used have half of their pages. */
static bool is_dense(uint8_t *data, size_t bytes) {
    static unsigned char there[LOOK_BYTES / SMALLEST_PAGE];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = HUGE_PAGE / page;
    size_t used = 0, parts = 0;
    for (size_t at = 0; at < bytes; at += LOOK_BYTES) {
        const size_t n = bytes - at < LOOK_BYTES ? bytes - at : LOOK_BYTES;
        if (mincore(data + at, n, there) != 0)
            return false;
        for (size_t first = 0; first < n / page; first += pages) {
            size_t count = 0;
            for (size_t i = first; i < first + pages; i++)
                count += there[i] & 1;
            used += count;
            parts += count > 0;
        }
    }
    return parts > 0 && 2 * used >= parts * pages;
}

/* Called under the lock. */
static void forget(uint32_t number) {
    const uint32_t last = small.num - 1;
    small.all_bytes -= small.bytes[number];
    small.data[number] = small.data[last];
    small.bytes[number] = small.bytes[last];
    __atomic_store_n(&small.num, last, __ATOMIC_RELAXED);
}

void hotbed_host_start_small(void *data, size_t bytes) {
    if (bytes < HUGE_LEAST)
        return;
    hotbed_race_lock(&small.lock);
    if (small.num < MAPPINGS_MOST) {
        const size_t size = round_up(bytes, HUGE_PAGE);
        (void)madvise(data, size, MADV_NOHUGEPAGE);
        small.data[small.num] = data;
        small.bytes[small.num] = size;
        small.all_bytes += size;
        __atomic_store_n(&small.num, small.num + 1, __ATOMIC_RELAXED);
    }
    hotbed_race_unlock(&small.lock);
}

static void end_small(const uint8_t *data) {
    hotbed_race_lock(&small.lock);
    for (uint32_t i = 0; i < small.num; i++)
        if (small.data[i] == data) {
            forget(i);
            break;
        }
    hotbed_race_unlock(&small.lock);
}

/* Give huge pages to memory that is dense, unless another thread does so. */
static void look(void) {
    const long faults = count_faults();
    if (faults - __atomic_load_n(&small.looked, __ATOMIC_RELAXED) < FAULTS_LEAST ||
        pthread_mutex_trylock(&small.lock) != 0)
        return;
    const size_t pages = small.all_bytes / (size_t)sysconf(_SC_PAGESIZE);
    if ((size_t)(faults - small.looked) >= pages / FAULTS_SHARE) {
        __atomic_store_n(&small.looked, faults, __ATOMIC_RELAXED);
        for (uint32_t i = small.num; i-- > 0;) {
            if (!is_dense(small.data[i], small.bytes[i]))
                continue;
            use_huge(small.data[i], small.bytes[i]); /* also for pages that come later */
            (void)madvise(small.data[i], small.bytes[i], COLLAPSE);
            forget(i);
        }
    }
    (void)pthread_mutex_unlock(&small.lock);
}

void hotbed_host_look_at_pages(void) {
    if (__atomic_load_n(&small.num, __ATOMIC_RELAXED) == 0 ||
        __atomic_add_fetch(&small.tasks, 1, __ATOMIC_RELAXED) % TASKS != 0)
        return;
    hotbed_race_hide();
    look();
    hotbed_race_show();
}

/* --- memory -------------------------------------------------------------------------------------- */

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
    use_huge(map + before, size);
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
    if (data == NULL || bytes < HUGE_LEAST) {
        free(data);
        return;
    }
    end_small(data);
    (void)munmap(data, round_up(bytes, HUGE_PAGE));
}

/* Fail with IO and the system's text for `error`. */
static hotbed_status fail_file(const char *what, const char *directory, size_t bytes, int error) {
    hotbed_status failed = hotbed_fail_os(
        HOTBED_ERR_IO, error, "cannot %s a file of %zu bytes in %s", what, bytes, directory);
    return hotbed_error_path(hotbed_error_value(failed, NULL, (double)bytes), directory);
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
