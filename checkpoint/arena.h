/* checkpoint/arena.h - memory for images of snapshots that stays from one to the next.
 *
 * A part of it, the device's or the pinned one, is one snapshot's at a time: the first that asks has it until it gives
 * it back.  Snapshots of other threads get nothing meanwhile.
 */
#ifndef HOTBED_CHECKPOINT_ARENA_H
#define HOTBED_CHECKPOINT_ARENA_H

#include "hotbed/checkpoint.h"

enum { HOTBED_ARENA_PARTS = 2, HOTBED_ARENA_ALIGN = 256 };

/* What one snapshot has of an arena; {0} is nothing, of none. */
typedef struct hotbed_arena_lease {
    hotbed_checkpoint_arena *arena; /* borrowed; NULL: none */
    bool held[HOTBED_ARENA_PARTS];
    size_t used[HOTBED_ARENA_PARTS]; /* bytes, from the part's start */
} hotbed_arena_lease;

/* Bytes that `bytes` take in an arena. */
static inline size_t hotbed_arena_align(size_t bytes) {
    return (bytes + HOTBED_ARENA_ALIGN - 1) / HOTBED_ARENA_ALIGN * HOTBED_ARENA_ALIGN;
}

/* DEVICE or PINNED memory; NULL: not so much is left, or another snapshot has that part. */
void *hotbed_arena_take(hotbed_arena_lease *lease, hotbed_memory_kind kind, size_t bytes);

/* Nothing uses the lease's memory of that kind any more. */
void hotbed_arena_give_back(hotbed_arena_lease *lease, hotbed_memory_kind kind);

bool hotbed_arena_holds(const hotbed_arena_lease *lease, hotbed_memory_kind kind);

/* The backend and device of its memory. */
hotbed_backend hotbed_arena_backend(const hotbed_checkpoint_arena *arena);
int hotbed_arena_device(const hotbed_checkpoint_arena *arena);

#endif
