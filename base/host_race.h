/* base/host_race.h - keep the host backend's own locks from hiding races of its callers.
 *
 * TSan takes every lock for an ordering: with a lock around a lane's queue, a caller that forgot
 * hotbed_stream_sync() would look ordered as soon as it enqueued something else.  So the queue's locks
 * are hidden from TSan, together with what they protect, and the orderings that the contract promises
 * are stated by atomics outside of the hidden parts.  In other builds these are nothing.
 */
#ifndef HOTBED_BASE_HOST_RACE_H
#define HOTBED_BASE_HOST_RACE_H

#include "base/port.h"

#if defined(HOTBED_WITH_TSAN)
/* Of TSan's runtime, which has no header for them. */
void AnnotateIgnoreSyncBegin(const char *file, int line);
void AnnotateIgnoreSyncEnd(const char *file, int line);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#endif

/* From here to the matching hotbed_race_show(), this thread's accesses and locks are unseen. */
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

#endif
