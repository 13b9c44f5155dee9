/* storage/index/index_search.h - the host's search for many keys of one table.
 *
 * A thread that searched key by key would wait for each line of the index. Here a batch of keys is
 * searched in three calls. Each call prefetches what the next one reads, so a thread works on
 * another batch in between:
 *
 *   hotbed_search_start(&a, set, index, range, keys, n);
 *   hotbed_search_first(&a, slots);
 *   ... hotbed_search_start(&b, ...) for the next batch
 *   hotbed_search_second(&a, slots);
 *
 * Each key gets the result of hotbed_index_find(). */
#pragma once

#include "base/host_set.h"
#include "storage/index/index_layout_core.h"

enum { HOTBED_SEARCH_KEYS = 64 }; /* tuned with benchmark index/alone_find */

typedef struct hotbed_search {
    hotbed_index_view index;
    hotbed_index_range range;
    const uint64_t *lines; /* the keys of the range's bucket 0 */
    hotbed_host_set set;
    uint32_t n, num_left;
    uint64_t keys[HOTBED_SEARCH_KEYS];
    uint32_t first[HOTBED_SEARCH_KEYS], second[HOTBED_SEARCH_KEYS]; /* candidate buckets */
    uint32_t step[HOTBED_SEARCH_KEYS];                              /* of probe sequences */
    uint32_t left[HOTBED_SEARCH_KEYS]; /* [num_left] numbers of the keys that are not found yet */
} hotbed_search;

/* Begin to search for n keys, at most HOTBED_SEARCH_KEYS, with the instructions of `set`. */
void hotbed_search_start(
    hotbed_search *q, hotbed_host_set set, hotbed_index_view index, hotbed_index_range range,
    const uint64_t *keys, uint32_t n);

/* Search the first candidates. slots[k] is undefined for keys that are not there. */
void hotbed_search_first(hotbed_search *q, uint64_t *slots);

/* Search the other candidates. All of slots[0 .. n-1] is then defined. */
void hotbed_search_second(hotbed_search *q, uint64_t *slots);
