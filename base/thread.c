/* base/thread.c - start threads, and wait with a deadline. */
#include "base/thread.h"

#include <signal.h>
#include <time.h>

int hotbed_thread_start(pthread_t *thread, void *(*function)(void *argument), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

void hotbed_cond_init(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool hotbed_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t until) {
    const struct timespec time = {
        .tv_sec = (time_t)(until / 1000000000U), .tv_nsec = (long)(until % 1000000000U)};
    return pthread_cond_timedwait(condition, lock, &time) == 0;
}
