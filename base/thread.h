/* base/thread.h - the library's threads, and waits with a deadline. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Start a thread with all signals blocked, but for those of its own faults: the program's own threads
 * handle them. A blocked SIGSEGV would end the process before a handler that prints a backtrace.
 * Returns 0 or an errno value. */
int hotbed_thread_start(pthread_t *thread, void *(*function)(void *argument), void *argument);

/* A condition variable of the clock of hotbed_monotonic_now(), and a wait on it: false once `until`
 * has passed. */
void hotbed_cond_init(pthread_cond_t *condition);
bool hotbed_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t until);
