/* examples/train/save_lock.h - a lock file, so that only one run at a time saves to a directory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The file's name in the directory. It contains the owner's process number and host. */
#define HOTBED_SAVE_LOCK_NAME ".hotbed-train.lock"

/* A lock that is all zero is not held. */
typedef struct hotbed_save_lock {
    bool held;
    int file;
    char path[4096];
} hotbed_save_lock;

/* Lock an existing directory. The lock of a process of this host that has died is taken over. A
 * lock of another host is an error, since this host cannot know whether the owner still runs. So is
 * a symbolic link in place of the lock. On failure returns false, with the reason in message[bytes].
 *
 * While the lock is held, SIGHUP, SIGINT and SIGTERM remove it before they end the process, unless
 * the program ignores or handles them. A process holds one lock at a time. */
bool hotbed_save_lock_take(
    hotbed_save_lock *lock, const char *directory, char *message, size_t bytes);

/* Whether the path still names the lock that is held. It does not if the directory was renamed or
 * replaced, or the lock removed; then the reason is in message[bytes]. */
bool hotbed_save_lock_check(const hotbed_save_lock *lock, char *message, size_t bytes);

/* Unlock, and remove the file, unless another file has its path. Does nothing if the lock is not held. */
void hotbed_save_lock_release(hotbed_save_lock *lock);
