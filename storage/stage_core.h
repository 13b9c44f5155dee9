/* storage/stage_core.h - notes for the host about a chunk of rows that goes through pinned memory.
 *
 * Rows in memory that kernels cannot reach are moved between it and a pinned staging area by a function
 * that the stream calls.  It must know which rows, and with a graph that differs from launch to launch: a
 * kernel writes a note with the slots first.
 */
#ifndef HOTBED_STORAGE_STAGE_CORE_H
#define HOTBED_STORAGE_STAGE_CORE_H

#include "base/port.h"
#include "storage/index_core.h"

enum { HOTBED_STAGE_PARTS = 3 }; /* embedding and two states */

typedef struct hotbed_stage_note {
    uint64_t n;
    uint32_t store;  /* staging to table; 0: table to staging */
    uint32_t parts;  /* bit p: part p is moved */
    uint64_t *slots; /* [n] pinned: rows of the table, HOTBED_SLOT_NONE for those skipped */
} hotbed_stage_note;

/* What the kernel of a chunk works on. */
typedef struct hotbed_stage_args {
    hotbed_stage_note note;    /* to be written */
    hotbed_stage_note *pinned; /* there */
    const uint64_t *slots;     /* [n] of the caller */
    uint64_t *places;          /* [n] device: rows of the staging area, or HOTBED_SLOT_NONE */
    uint64_t capacity;         /* rows of the table */
} hotbed_stage_args;

HOTBED_HD void hotbed_stage_write(const hotbed_stage_args *a, uint64_t i) {
    uint64_t slot = a->slots[i];
    bool good = slot < a->capacity;
    a->note.slots[i] = good ? slot : HOTBED_SLOT_NONE;
    a->places[i] = good ? i : HOTBED_SLOT_NONE;
    if (i == 0)
        *a->pinned = a->note;
}

#endif
