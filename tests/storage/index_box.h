/* tests/storage/index_box.h - an index, and one batch that its calls read and write. */
#ifndef HOTBED_TESTS_INDEX_BOX_H
#define HOTBED_TESTS_INDEX_BOX_H

#include "hotbed/index.h"

#include <stdbool.h>
#include <stdint.h>

enum { INDEX_BOX_MOST = 2048 };

/* Everything a call reads and writes; the device has the same struct. */
typedef struct index_batch {
    uint64_t n;
    uint64_t keys[INDEX_BOX_MOST], scores[INDEX_BOX_MOST], slots[INDEX_BOX_MOST];
    uint64_t evicted_keys[INDEX_BOX_MOST], evicted_scores[INDEX_BOX_MOST];
    uint64_t evicted_slots[INDEX_BOX_MOST];
    uint64_t num_evicted, counts[2];
    uint32_t tables[INDEX_BOX_MOST];
    uint8_t outcomes[INDEX_BOX_MOST];
} index_batch;

typedef struct index_box {
    hotbed_stream *stream;
    hotbed_index *index;
    hotbed_memory memory;
    index_batch *device;
    index_batch *host;
} index_box;

void index_box_open(
    index_box *b, hotbed_backend backend, uint32_t tables, const uint64_t *capacities,
    const hotbed_evict *evict);
void index_box_open_one(
    index_box *b, hotbed_backend backend, uint64_t capacity, hotbed_evict evict); /* one table */
void index_box_close(index_box *b);

void index_box_upload(index_box *b);                            /* synchronous */
HOTBED_MUST_USE hotbed_status index_box_download(index_box *b); /* the sync's status */

/* The batch's arrays, in device memory. */
hotbed_index_insert index_box_insert_of(const index_box *b, hotbed_score_rule rule, bool pin);

/* The batch goes up, through a call, and comes down; `insert` gives the sync's status. */
HOTBED_MUST_USE hotbed_status index_box_insert(index_box *b, hotbed_score_rule rule, bool pin);
void index_box_find(index_box *b);
void index_box_erase(index_box *b);
void index_box_pin(index_box *b, bool on); /* or off */

uint64_t index_box_size(index_box *b, uint32_t table); /* keys */
/* How many of the batch had this outcome. */
uint64_t index_box_outcomes(const index_box *b, hotbed_index_outcome what);

/* Make a batch of n keys of table 0 from number `first` on, distinct and random, score 1. */
void index_box_number_keys(index_box *b, uint64_t first, uint64_t n);
/* The edges of both key types, and the small numbers that mark free slots inside; gives their number. */
uint64_t index_box_edge_keys(uint64_t *keys);

#endif
