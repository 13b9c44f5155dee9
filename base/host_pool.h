/* base/host_pool.h - the thread pool of the host backend, for host_stream.c. */
#pragma once

#include "base/host_launch.h"

/* Hold the thread pool, whose threads run while at least one stream holds it. Errors: ARGUMENT
 * (HOTBED_THREADS), MEMORY (a thread cannot be started). */
hotbed_status hotbed_pool_acquire(void);
void hotbed_pool_release(void);

/* Run all ranges on the calling thread and on idle threads of the pool, and return when all are
 * done. Allocates nothing. */
void hotbed_pool_run(uint64_t n, uint64_t grain, hotbed_host_body body, const void *args);
