/* tests/checkpoint/gc_beside.c - a gc of another process, at the worst moment of a list or of a gc.
 *
 * Loaded into hotbed-ckpt by LD_PRELOAD. With GC_VICTIM: when the tool opens that directory, it is renamed and
 * loses its MANIFEST, as gc removes it. With GC_COMMAND and GC_CALL: before the GC_CALL-th call that opens,
 * examines, renames or removes a file in a directory, the command runs. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*open_function)(int directory, const char *name, int flags, ...);
typedef int (*stat_function)(int directory, const char *name, struct stat *stat, int flags);
typedef int (*rename_function)(int from, const char *name, int to, const char *new_name);
typedef int (*unlink_function)(int directory, const char *name, int flags);

static bool run(const char *command) {
    int status = 1;
    const pid_t child = fork();
    if (child == 0) {
        (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(99);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* Return the C library's function, after the command of the other process if this is its moment. */
static void *below(const char *function) {
    static long calls;
    const char *command = getenv("GC_COMMAND"), *call = getenv("GC_CALL");
    if (command != NULL && call != NULL && ++calls == strtol(call, NULL, 10))
        if (unsetenv("LD_PRELOAD") != 0 || !run(command))
            _exit(99);
    return dlsym(RTLD_NEXT, function);
}

static int open_then_remove(int directory, const char *name, int flags, unsigned mode) {
    static bool done;
    const char *victim = getenv("GC_VICTIM");
    open_function call;
    *(void **)&call = below("openat");
    const int file = call(directory, name, flags, mode);
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

int fstatat(int fd, const char *file, struct stat *buf, int flag) {
    stat_function call;
    *(void **)&call = below("fstatat");
    return call(fd, file, buf, flag);
}

int renameat(int oldfd, const char *old, int newfd, const char *new) {
    rename_function call;
    *(void **)&call = below("renameat");
    return call(oldfd, old, newfd, new);
}

int unlinkat(int fd, const char *name, int flag) {
    unlink_function call;
    *(void **)&call = below("unlinkat");
    return call(fd, name, flag);
}
