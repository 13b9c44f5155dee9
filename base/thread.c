/* base/thread.c - start threads, and wait with a deadline. */
#include "base/thread.h"

#include <signal.h>
#include <time.h>

int hotbed_thread_start(pthread_t *thread, void *(*function)(void *argument), void *argument) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS};
    sigset_t others, before;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&others, faults[i]);
    pthread_sigmask(SIG_SETMASK, &others, &before);
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
