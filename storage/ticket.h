/* storage/ticket.h - a ticket: the keys, slots and pins of one batch in flight. */
#pragma once

#include "storage/storage.h"

struct hotbed_ticket {
    hotbed_storage *storage;
    hotbed_stream *last; /* stream of the latest call */
    uint64_t max_keys;
    uint32_t max_batch_size;
    bool holds;    /* has a prefetched batch and its pins */
    bool recorded; /* calls on it are in graphs, so only the device knows whether it has pins */
    bool kept_recorded; /* hotbed_ticket_keep() is in a graph */
    bool kept;          /* has second pins, which remain after its backward */
    hotbed_step_view step;
    hotbed_memory memory;
    void *unique_scratch, *update_scratch;
    uint32_t *bags; /* storage for step.batch.bags, used if the batch has offsets and is pooled */
    /* Only with an external store: */
    hotbed_external_batch asked, leaving;
    uint32_t *asked_ranks, *leaving_ranks; /* [max_keys + 1] */
    void *scan_scratch;
    size_t scan_scratch_bytes;
};
