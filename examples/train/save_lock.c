/* examples/train/save_lock.c - a lock file, so that only one run at a time saves to a directory.
 *
 * The owner holds flock() on the file. The system releases it when the process ends, however it
 * ends. On one host the text in the file is for messages only. Some network file systems apply
 * flock() to one host only: there the text is the only sign of an owner on another host. */
#define _GNU_SOURCE /* NOLINT(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): flock() */
#include "examples/train/save_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HOST_BYTES = 256 };

typedef struct owner {
    long process; /* 0: the file does not name it */
    char host[HOST_BYTES];
} owner;

static owner this_process(void) {
    owner o = {.process = (long)getpid()};
    if (gethostname(o.host, sizeof o.host - 1) != 0 || o.host[0] == '\0')
        snprintf(o.host, sizeof o.host, "unknown");
    return o;
}

/* Parse "process NUMBER on HOST". */
static owner read_owner(int file) {
    static const char process[] = "process ", on[] = " on ";
    char text[HOST_BYTES + 64] = "", *end = text;
    owner o = {0};
    ssize_t n = pread(file, text, sizeof text - 1, 0);
    if (n <= 0 || strncmp(text, process, sizeof process - 1) != 0)
        return o;
    long number = strtol(text + sizeof process - 1, &end, 10);
    if (number <= 0 || strncmp(end, on, sizeof on - 1) != 0)
        return o;
    o.process = number;
    snprintf(
        o.host, sizeof o.host, "%.*s", (int)strcspn(end + sizeof on - 1, "\n"),
        end + sizeof on - 1);
    return o;
}

static bool write_owner(int file) {
    char text[HOST_BYTES + 64];
    owner o = this_process();
    int length = snprintf(text, sizeof text, "process %ld on %s\n", o.process, o.host);
    return ftruncate(file, 0) == 0 && pwrite(file, text, (size_t)length, 0) == length;
}

/* Whether the path still names the open file: its last owner may have removed it meanwhile. */
static bool is_named(const hotbed_save_lock *lock) {
    struct stat named, opened;
    return lstat(lock->path, &named) == 0 && fstat(lock->file, &opened) == 0 &&
           named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

/* Open and lock the file at the path. On failure errno has the reason. */
static bool open_locked(hotbed_save_lock *lock) {
    for (;;) {
        lock->file = open(lock->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (lock->file < 0)
            return false;
        if (flock(lock->file, LOCK_EX | LOCK_NB) != 0)
            return false;
        if (is_named(lock))
            return true;
        close(lock->file);
    }
}

static bool refuse(hotbed_save_lock *lock) {
    if (lock->file >= 0)
        close(lock->file);
    return false;
}

/* Signals that end a run. With its lock left behind, a run that continues on another host, for
 * example in a new container, would need a person. */
static const int ending[] = {SIGHUP, SIGINT, SIGTERM};
static const hotbed_save_lock *volatile held; /* the lock that such a signal removes */

/* Remove the lock, and end the process by the signal, whose handler is reset. */
static void end_by(int number) {
    const hotbed_save_lock *lock = held;
    if (lock != NULL && is_named(lock))
        (void)unlink(lock->path);
    (void)raise(number);
}

/* Remove `lock` when a signal ends the process; NULL: leave the signals as they were. */
static void handle_signals(const hotbed_save_lock *lock) {
    struct sigaction to = {.sa_handler = SIG_DFL}, from;
    if (lock != NULL) {
        to.sa_handler = end_by;
        to.sa_flags = (int)SA_RESETHAND;
    }
    held = lock;
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++)
        if (sigaction(ending[i], NULL, &from) == 0 &&
            from.sa_handler == (lock != NULL ? SIG_DFL : end_by)) /* not ignored, as by nohup */
            (void)sigaction(ending[i], &to, NULL);
}

bool hotbed_save_lock_take(
    hotbed_save_lock *lock, const char *directory, char *message, size_t bytes) {
    int length = snprintf(lock->path, sizeof lock->path, "%s/%s", directory, HOTBED_SAVE_LOCK_NAME);
    lock->held = false;
    if (length < 0 || (size_t)length >= sizeof lock->path) {
        snprintf(message, bytes, "%.60s...: the name is too long", directory);
        return false;
    }
    bool locked = open_locked(lock);
    int why = errno;
    owner before = lock->file >= 0 ? read_owner(lock->file) : (owner){0};
    if (!locked && why == EWOULDBLOCK) {
        snprintf(
            message, bytes,
            "%s: process %ld on %s saves there: wait for it, or save to another directory",
            directory, before.process, before.host);
        return refuse(lock);
    }
    if (!locked && why == ELOOP) {
        snprintf(message, bytes, "%s: is a symbolic link, not a lock: remove it", lock->path);
        return refuse(lock);
    }
    if (!locked) {
        snprintf(message, bytes, "%s: cannot make the lock: %s", lock->path, strerror(why));
        return refuse(lock);
    }
    if (before.process != 0 && strcmp(before.host, this_process().host) != 0) {
        snprintf(
            message, bytes,
            "%s: process %ld on %s may be saving there: if it has ended, remove that file",
            lock->path, before.process, before.host);
        return refuse(lock);
    }
    if (!write_owner(lock->file)) {
        snprintf(message, bytes, "%s: cannot write: %s", lock->path, strerror(errno));
        return refuse(lock);
    }
    lock->held = true;
    handle_signals(lock);
    return true;
}

bool hotbed_save_lock_check(const hotbed_save_lock *lock, char *message, size_t bytes) {
    if (is_named(lock))
        return true;
    snprintf(
        message, bytes,
        "%s is not this run's lock any more: the directory was replaced, or the lock was removed, "
        "during the run",
        lock->path);
    return false;
}

void hotbed_save_lock_release(hotbed_save_lock *lock) {
    if (!lock->held)
        return;
    handle_signals(NULL);
    if (is_named(lock)) /* otherwise the file is another run's */
        (void)unlink(lock->path);
    close(lock->file);
    lock->held = false;
}
