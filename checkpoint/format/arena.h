/* checkpoint/format/arena.h - memory for snapshot images, reused from one snapshot to the next.
 *
 * An arena has two parts, device and pinned memory. Only one snapshot at a time uses a part: the
 * first snapshot that asks for memory of the part keeps it until hotbed_arena_return().
 * Meanwhile snapshots of other threads get no memory of that part. */
#pragma once

#include "hotbed/checkpoint.h"

enum { HOTBED_ARENA_PARTS = 2, HOTBED_ARENA_ALIGN = 256 };

/* The memory of an arena that one snapshot uses. {0} is a lease without an arena. */
typedef struct hotbed_arena_lease {
    hotbed_checkpoint_arena *arena; /* borrowed; NULL: none */
    bool held[HOTBED_ARENA_PARTS];
    size_t used[HOTBED_ARENA_PARTS]; /* bytes, from the start of the part */
} hotbed_arena_lease;

/* Return the number of bytes that an allocation of `bytes` takes in an arena. */
static inline size_t hotbed_arena_align(size_t bytes) {
    return (bytes + HOTBED_ARENA_ALIGN - 1) / HOTBED_ARENA_ALIGN * HOTBED_ARENA_ALIGN;
}

/* Allocate DEVICE or PINNED memory of the arena. Returns NULL if too little is left, or if another
 * snapshot uses that part. */
void *hotbed_arena_take(hotbed_arena_lease *lease, hotbed_memory_kind kind, size_t bytes);

/* Return the lease's memory of this kind. Nothing may use it any more. */
void hotbed_arena_return(hotbed_arena_lease *lease, hotbed_memory_kind kind);

bool hotbed_arena_holds(const hotbed_arena_lease *lease, hotbed_memory_kind kind);

/* Return the backend and the device of the arena's memory. */
hotbed_backend hotbed_arena_backend(const hotbed_checkpoint_arena *arena);
int hotbed_arena_device(const hotbed_checkpoint_arena *arena);
