/* tests/checkpoint/gc_beside.c - a gc of another process, at the worst moment of a list.
 *
 * Loaded into hotbed-ckpt by LD_PRELOAD: when the tool opens the directory GC_VICTIM, that directory is renamed and
 * loses its MANIFEST, as gc removes it. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*open_function)(int directory, const char *name, int flags, ...);

static int open_then_remove(int directory, const char *name, int flags, unsigned mode) {
    static open_function below;
    static bool done;
    const char *victim = getenv("GC_VICTIM");
    if (below == NULL)
        *(void **)&below = dlsym(RTLD_NEXT, "openat");
    const int file = below(directory, name, flags, mode);
    if (done || file < 0 || victim == NULL || strcmp(name, victim) != 0)
        return file;
    char gone[256];
    done = true;
    (void)snprintf(gone, sizeof gone, ".tmp-gone-%s", name);
    if (renameat(directory, name, directory, gone) != 0 || unlinkat(file, "MANIFEST", 0) != 0)
        _exit(99);
    return file;
}

int openat(int fd, const char *file, int oflag, ...) {
    va_list args;
    va_start(args, oflag);
    const unsigned mode = (oflag & O_CREAT) != 0 ? va_arg(args, unsigned) : 0;
    va_end(args);
    return open_then_remove(fd, file, oflag, mode);
}

int openat64(int fd, const char *file, int oflag, ...) {
    va_list args;
    va_start(args, oflag);
    const unsigned mode = (oflag & O_CREAT) != 0 ? va_arg(args, unsigned) : 0;
    va_end(args);
    return open_then_remove(fd, file, oflag, mode);
}
