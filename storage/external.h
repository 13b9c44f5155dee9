/* storage/external.h - the inside of external stores, for requests, plug-ins of ours and tests. */
#ifndef HOTBED_STORAGE_EXTERNAL_H
#define HOTBED_STORAGE_EXTERNAL_H

#include "hotbed/external.h"

#define HOTBED_EXTERNAL_BATCH_MOST ((uint64_t)1 << 30)

/* Make batches of up to n keys need no allocation. */
hotbed_status hotbed_external_reserve(hotbed_external *external, uint64_t n);

/* OK, or ARGUMENT for a table number out of range. */
hotbed_status hotbed_external_check_table(const hotbed_external *external, uint32_t table);

/* Keep status and last error text for hotbed_external_failure(), and return the status. */
hotbed_status hotbed_external_failed(hotbed_external *external, hotbed_status status);

void hotbed_external_count_stream_wait(hotbed_external *external, uint64_t nanoseconds);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t hotbed_external_now(void);

/* The plug-in in memory; `self` of it, NULL when there is no memory. */
extern const hotbed_external_calls hotbed_external_memory_calls;
void *hotbed_external_memory_new(void);

#endif
