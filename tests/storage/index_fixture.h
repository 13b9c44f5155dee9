/* tests/storage/index_fixture.h - an index and one batch of keys, for tests of hotbed/index.h.
 *
 * A test fills the batch in host memory; each call copies it to the device, makes the call of the index, and copies it
 * back.
 */
#pragma once

#include "hotbed/index.h"

#include <stdbool.h>
#include <stdint.h>

enum { INDEX_BATCH_MOST = 2048 };

/* All arguments and results of the calls; host and device each have one. */
typedef struct index_batch {
    uint64_t n;
    uint64_t keys[INDEX_BATCH_MOST], scores[INDEX_BATCH_MOST], slots[INDEX_BATCH_MOST];
    uint64_t evicted_keys[INDEX_BATCH_MOST], evicted_scores[INDEX_BATCH_MOST];
    uint64_t evicted_slots[INDEX_BATCH_MOST];
    uint64_t num_evicted, counts[2];
    uint32_t tables[INDEX_BATCH_MOST];
    uint8_t outcomes[INDEX_BATCH_MOST];
} index_batch;

typedef struct index_fixture {
    hotbed_stream *stream;
    hotbed_index *index;
    hotbed_memory memory;
    index_batch *device;
    index_batch *host;
} index_fixture;

void index_fixture_open(
    index_fixture *b, hotbed_backend backend, uint32_t tables, const uint64_t *capacities,
    const hotbed_evict *evict);
void index_fixture_open_one(
    index_fixture *b, hotbed_backend backend, uint64_t capacity,
    hotbed_evict evict); /* one table */
void index_fixture_close(index_fixture *b);

void index_fixture_upload(index_fixture *b); /* synchronous */
/* returns the status of the sync */
HOTBED_MUST_USE hotbed_status index_fixture_download(index_fixture *b);

/* Arguments of an insert: the batch's arrays in device memory. */
hotbed_index_insert index_fixture_insert_of(
    const index_fixture *b, hotbed_score_rule rule, bool pin);

/* Upload the batch, make the call, download the batch.  index_fixture_insert() returns the status of the sync. */
HOTBED_MUST_USE hotbed_status
index_fixture_insert(index_fixture *b, hotbed_score_rule rule, bool pin);
void index_fixture_find(index_fixture *b);
void index_fixture_erase(index_fixture *b);
void index_fixture_pin(index_fixture *b, bool on); /* pin or unpin the slots */

uint64_t index_fixture_size(index_fixture *b, uint32_t table); /* keys */
/* Number of keys of the batch with this outcome. */
uint64_t index_fixture_outcomes(const index_fixture *b, hotbed_index_outcome what);

/* Make a batch of n distinct pseudorandom keys of table 0, numbers first .. first + n - 1, with score 1. */
void index_fixture_number_keys(index_fixture *b, uint64_t first, uint64_t n);
/* Write the edges of both key types, and keys that mark free slots in the index; returns how many. */
uint64_t index_fixture_edge_keys(uint64_t *keys);
