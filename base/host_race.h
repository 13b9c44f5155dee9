/* base/host_race.h - keep the host backend's own locks from hiding races of its callers.
 *
 * TSan treats every lock as an ordering. With a lock around a stream's queue, a caller that forgot
 * hotbed_stream_sync() would look ordered as soon as it enqueued something else. So the queue's
 * locks are hidden from TSan, together with the data that they protect, and atomics outside of the
 * hidden parts state the orderings that the contract promises. In other builds these functions do
 * nothing. */
#pragma once

#include "base/port.h"

#include <pthread.h>

#if defined(HOTBED_WITH_TSAN)
/* Functions of TSan's runtime, which has no header for them. */
void AnnotateIgnoreSyncBegin(const char *file, int line);
void AnnotateIgnoreSyncEnd(const char *file, int line);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#endif

/* From here to the matching hotbed_race_show(), TSan ignores this thread's accesses and locks. */
static inline void hotbed_race_hide(void) {
#if defined(HOTBED_WITH_TSAN)
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
}

static inline void hotbed_race_show(void) {
#if defined(HOTBED_WITH_TSAN)
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
#endif
}

/* A lock that is hidden, with what happens under it. */
static inline void hotbed_race_lock(pthread_mutex_t *lock) {
    hotbed_race_hide();
    pthread_mutex_lock(lock);
}

static inline void hotbed_race_unlock(pthread_mutex_t *lock) {
    pthread_mutex_unlock(lock);
    hotbed_race_show();
}
