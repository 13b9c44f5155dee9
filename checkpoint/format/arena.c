/* checkpoint/format/arena.c - memory for snapshot images, reused from one snapshot to the next. */
#include "checkpoint/format/arena.h"

#include "base/check.h"
#include "base/error.h"
#include "base/port.h"
#include "base/stream.h"

typedef struct arena_part {
    hotbed_memory memory;
    uint64_t taken; /* atomic: 1 while a snapshot uses the part */
} arena_part;

struct hotbed_checkpoint_arena {
    hotbed_backend backend;
    int device;
    arena_part parts[HOTBED_ARENA_PARTS];
};

static uint32_t part_of(hotbed_memory_kind kind) {
    return kind == HOTBED_MEMORY_DEVICE ? 0 : 1;
}

static hotbed_status make_part(
    arena_part *part, hotbed_memory_kind kind, uint64_t bytes, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_memory_alloc(stream, kind, (size_t)bytes, NULL, &part->memory));
    return hotbed_fill(part->memory.data, 0, part->memory.bytes, stream); /* touches the pages */
}

hotbed_status hotbed_checkpoint_arena_create(
    uint64_t device_bytes, uint64_t pinned_bytes, hotbed_stream *stream,
    hotbed_checkpoint_arena **out) {
    HOTBED_TRY(hotbed_check_pointer_of("arena_create", "out", out));
    *out = NULL;
    HOTBED_TRY(hotbed_check_pointer_of("arena_create", "stream", stream));
    hotbed_checkpoint_arena *arena = hotbed_new(sizeof *arena);
    HOTBED_TRY_MEMORY(arena, "an arena");
    arena->backend = hotbed_stream_backend(stream);
    arena->device = hotbed_stream_device(stream);
    hotbed_status status = make_part(&arena->parts[0], HOTBED_MEMORY_DEVICE, device_bytes, stream);
    HOTBED_THEN(status, make_part(&arena->parts[1], HOTBED_MEMORY_PINNED, pinned_bytes, stream));
    hotbed_status synced = hotbed_stream_finish(stream);
    HOTBED_THEN(status, synced);
    if (status == HOTBED_OK)
        *out = arena;
    else
        hotbed_checkpoint_arena_destroy(arena);
    return status;
}

void hotbed_checkpoint_arena_destroy(hotbed_checkpoint_arena *arena) {
    if (arena == NULL)
        return;
    for (uint32_t p = 0; p < HOTBED_ARENA_PARTS; p++)
        hotbed_memory_free(&arena->parts[p].memory);
    hotbed_delete(arena);
}

void *hotbed_arena_take(hotbed_arena_lease *lease, hotbed_memory_kind kind, size_t bytes) {
    uint32_t p = part_of(kind);
    if (lease->arena == NULL)
        return NULL;
    arena_part *part = &lease->arena->parts[p];
    size_t left = part->memory.bytes - lease->used[p], needed = hotbed_arena_align(bytes);
    if (needed > left || needed < bytes)
        return NULL;
    /* Acquire: the previous snapshot's work with the memory is complete and visible. */
    if (!lease->held[p] && !hotbed_cas_u64(&part->taken, 0, 1))
        return NULL;
    void *data = (char *)part->memory.data + lease->used[p];
    lease->held[p] = true;
    lease->used[p] += needed;
    return data;
}

void hotbed_arena_return(hotbed_arena_lease *lease, hotbed_memory_kind kind) {
    uint32_t p = part_of(kind);
    if (!lease->held[p])
        return;
    lease->held[p] = false;
    lease->used[p] = 0;
    hotbed_store_release_u64(
        &lease->arena->parts[p].taken, 0); /* publishes the end of this snapshot's work */
}

bool hotbed_arena_holds(const hotbed_arena_lease *lease, hotbed_memory_kind kind) {
    return lease->held[part_of(kind)];
}

hotbed_backend hotbed_arena_backend(const hotbed_checkpoint_arena *arena) {
    return arena->backend;
}

int hotbed_arena_device(const hotbed_checkpoint_arena *arena) {
    return arena->device;
}
