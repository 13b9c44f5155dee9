/* base/fork.c - detect that this process was forked from a process that had streams, stores or
 * connections to other ranks.
 *
 * fork() copies memory and one thread. The worker threads and the pool's threads are missing in the
 * child, and their locks stay locked. A handler marks the child, and its calls then fail instead of
 * waiting for those threads. */
#include "base/error.h"
#include "base/stream.h"

#include <pthread.h>

static uint32_t forked; /* atomic */

static void mark_child(void) {
    __atomic_store_n(&forked, 1, __ATOMIC_RELAXED);
}

static void watch(void) {
    (void)pthread_atfork(NULL, NULL, mark_child);
}

void hotbed_fork_watch(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, watch);
}

bool hotbed_forked(void) {
    return __atomic_load_n(&forked, __ATOMIC_RELAXED) != 0;
}

hotbed_status hotbed_fork_check(void) {
    if (!hotbed_forked())
        return HOTBED_OK;
    return hotbed_fail(
        HOTBED_ERR_STATE,
        "this process was forked from one that had created streams, communicators or external "
        "stores, whose threads and connections it does not have: start processes that use Hotbed "
        "with spawn or exec, or fork before the first of them is created");
}
