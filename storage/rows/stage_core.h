/* storage/rows/stage_core.h - descriptors of staged chunks of rows, for flat tables in memory that
 * kernels cannot address.
 *
 * A stream callback moves such rows between their memory and a pinned staging buffer. A recorded
 * graph may move other rows in each launch, so a kernel first writes the rows' slots to a
 * descriptor in pinned memory, which the callback reads.
 */
#pragma once

#include "base/port.h"
#include "hotbed/types.h"

enum { HOTBED_STAGE_PARTS = 3 }; /* embedding and two optimizer states */

typedef struct hotbed_stage_descriptor {
    uint64_t n;
    uint32_t store;  /* 1: staging buffer to table; 0: table to staging buffer */
    uint32_t parts;  /* bit p: move part p */
    uint64_t *slots; /* [n] pinned: rows of the table; HOTBED_SLOT_NONE entries are skipped */
} hotbed_stage_descriptor;

/* Arguments of the kernel that writes a descriptor. */
typedef struct hotbed_stage_args {
    hotbed_stage_descriptor descriptor; /* the contents to write */
    hotbed_stage_descriptor *pinned;    /* where to write them */
    const uint64_t *slots;              /* [n] the caller's */
    uint64_t *places;  /* [n] device: rows of the staging buffer, or HOTBED_SLOT_NONE */
    uint64_t capacity; /* rows of the table */
} hotbed_stage_args;

HOTBED_HD void hotbed_stage_write(const hotbed_stage_args *a, uint64_t i) {
    uint64_t slot = a->slots[i];
    bool good = slot < a->capacity;
    a->descriptor.slots[i] = good ? slot : HOTBED_SLOT_NONE;
    a->places[i] = good ? i : HOTBED_SLOT_NONE;
    if (i == 0)
        *a->pinned = a->descriptor;
}
