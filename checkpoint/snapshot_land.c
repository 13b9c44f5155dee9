/* checkpoint/snapshot_land.c - copy a snapshot's image from device memory to the host during
 * training. */
#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/snapshot.h"

/* Images in memory that is not pinned are copied through two windows of pinned memory. */
enum { WINDOW_BYTES = 16 << 20 };

typedef struct window {
    hotbed_memory memory; /* pinned */
    hotbed_event *done;   /* recorded on the stream: the window is filled */
    hotbed_event *kept;   /* of the copier: the window was copied */
} window;

typedef struct lander {
    hotbed_checkpoint_snapshot *s;
    hotbed_stream *stream; /* copies from the device */
    hotbed_stream *copier; /* host stream: copies to new memory with several threads */
    size_t step;           /* bytes of a window */
    window windows[2];     /* created on first use */
} lander;

static hotbed_status open_windows(lander *l) {
    if (l->copier != NULL)
        return HOTBED_OK;
    for (int i = 0; i < 2; i++) {
        window *w = &l->windows[i];
        HOTBED_TRY(hotbed_memory_alloc(l->stream, HOTBED_MEMORY_PINNED, l->step, NULL, &w->memory));
        HOTBED_TRY(hotbed_event_create(l->stream, &w->done));
    }
    HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &l->copier));
    for (int i = 0; i < 2; i++)
        HOTBED_TRY(hotbed_event_create(l->copier, &l->windows[i].kept));
    return HOTBED_OK;
}

/* Copy through two windows: one is filled while the other is copied to `to`. */
static hotbed_status copy_windows(lander *l, char *to, const char *from, size_t bytes) {
    size_t step = l->step, asked = 0;
    for (size_t kept = 0; kept < bytes; kept += step) {
        for (; asked < bytes && asked < kept + 2 * step; asked += step) {
            window *w = &l->windows[asked / step % 2];
            size_t n = bytes - asked < step ? bytes - asked : step;
            HOTBED_TRY(hotbed_event_sync(w->kept));
            HOTBED_TRY(hotbed_copy(w->memory.data, from + asked, n, l->stream));
            HOTBED_TRY(hotbed_event_record(w->done, l->stream));
        }
        window *w = &l->windows[kept / step % 2];
        size_t n = bytes - kept < step ? bytes - kept : step;
        HOTBED_TRY(hotbed_event_sync(w->done));
        HOTBED_TRY(hotbed_copy(to + kept, w->memory.data, n, l->copier));
        HOTBED_TRY(hotbed_event_record(w->kept, l->copier));
    }
    return HOTBED_OK;
}

/* Wait for both streams. Returns `status` if it is an error, otherwise the first error of the
 * streams. */
static hotbed_status settle(const lander *l, hotbed_status status) {
    hotbed_status streamed = hotbed_stream_finish(l->stream), copied = HOTBED_OK;
    if (l->copier != NULL)
        copied = hotbed_stream_finish(l->copier);
    if (status != HOTBED_OK)
        return status;
    return streamed != HOTBED_OK ? streamed : copied;
}

/* Copy a column to the arena's pinned memory in one copy, if it fits there; otherwise to memory of
 * the snapshot. */
static hotbed_status land_column(lander *l, hotbed_snapshot_table *table, uint32_t column) {
    size_t bytes = table->capacity * table->row_bytes[column];
    const void *from = table->columns[column];
    hotbed_memory memory = {.data = NULL};
    void *to = hotbed_arena_take(&l->s->lease, HOTBED_MEMORY_PINNED, bytes);
    bool pinned = to != NULL;
    hotbed_status status = HOTBED_OK;
    if (pinned) {
        status = hotbed_copy(to, from, bytes, l->stream);
    } else {
        HOTBED_TRY(open_windows(l));
        HOTBED_TRY(hotbed_memory_alloc(l->stream, HOTBED_MEMORY_PAGEABLE, bytes, NULL, &memory));
        to = memory.data;
        status = copy_windows(l, to, from, bytes);
    }
    status = settle(l, status);
    if (status != HOTBED_OK) {
        hotbed_memory_free(&memory);
        return status;
    }
    table->columns[column] = to;
    table->kinds[column] = pinned ? HOTBED_MEMORY_PINNED : HOTBED_MEMORY_PAGEABLE;
    table->memory[column] = memory;
    return HOTBED_OK;
}

static hotbed_status land_all(lander *l) {
    for (uint32_t t = 0; t < l->s->manifest.num_tables; t++)
        for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
            if (l->s->tables[t].kinds[i] == HOTBED_MEMORY_DEVICE)
                HOTBED_TRY(land_column(l, &l->s->tables[t], i));
    hotbed_arena_return(&l->s->lease, HOTBED_MEMORY_DEVICE);
    return HOTBED_OK;
}

hotbed_status hotbed_snapshot_land(
    const hotbed_checkpoint_config *config, hotbed_checkpoint_snapshot *s) {
    lander l = {.s = s, .step = config->window_bytes == 0 ? WINDOW_BYTES : config->window_bytes};
    if (!hotbed_arena_holds(&s->lease, HOTBED_MEMORY_DEVICE))
        return HOTBED_OK;
    const hotbed_checkpoint_arena *arena = s->lease.arena;
    HOTBED_TRY(
        hotbed_stream_create(hotbed_arena_backend(arena), hotbed_arena_device(arena), &l.stream));
    hotbed_status status = land_all(&l);
    for (int i = 0; i < 2; i++) {
        hotbed_event_destroy(l.windows[i].kept);
        hotbed_event_destroy(l.windows[i].done);
        hotbed_memory_free(&l.windows[i].memory);
    }
    hotbed_stream_destroy(l.copier);
    hotbed_stream_destroy(l.stream);
    return status;
}
