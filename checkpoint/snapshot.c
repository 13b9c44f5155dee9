/* checkpoint/snapshot.c - copy a storage at one point in time to memory that training does not
 * use. */
#include "checkpoint/snapshot.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/plan.h"
#include "hotbed/export.h"

#include <inttypes.h>
#include <string.h>

enum { WINDOW_BYTES = 8 << 20 }; /* rows in one window; there are two windows */

/* Slots that one export copies to an arena. Its workspace is half a byte per slot. */
#define ARENA_SLOTS ((uint64_t)1 << 26)

/* A window of slots: pinned memory that a kernel fills. */
typedef struct window {
    hotbed_memory memory;
    hotbed_export batch;
    void *columns[HOTBED_ROW_COLUMNS];
    hotbed_event *done;
    hotbed_event *kept; /* recorded on the copier: the window's rows are in the image */
} window;

/* State that exists while a snapshot is taken. */
typedef struct taker {
    const hotbed_checkpoint_config *config;
    hotbed_checkpoint_snapshot *s;
    const hotbed_storages *storages;
    hotbed_stream *stream;
    /* Host stream that copies to new memory with several threads; created on first use. */
    hotbed_stream *copier;
    /* pinned, [num_tables]: rows of the last export of each table to an arena */
    hotbed_memory counts;
} taker;

/* The columns of a table that are copied through windows. */
typedef struct table_taker {
    const taker *t;
    hotbed_snapshot_table *to;
    const char *name;                     /* of the table */
    size_t row_bytes[HOTBED_ROW_COLUMNS]; /* 0: not through windows */
    hotbed_storage *storage;
    uint64_t rows; /* rows in the image so far */
    window windows[2];
} table_taker;

static hotbed_status fail_changed(const char *table) {
    return hotbed_fail_table(
        HOTBED_ERR_STATE, table, "table '%s' was changed while a snapshot of it was taken", table);
}

/* Set the columns as the outputs of an export. */
static void point(hotbed_export *batch, void *const columns[HOTBED_ROW_COLUMNS]) {
    batch->keys = columns[HOTBED_COLUMN_KEYS];
    batch->rows.weights = columns[HOTBED_COLUMN_VALUES];
    batch->rows.scores = columns[HOTBED_COLUMN_SCORES];
    for (uint32_t s = 0; s < 2; s++)
        batch->rows.states[s] = columns[HOTBED_COLUMN_STATE + s];
    batch->rows.times = columns[HOTBED_COLUMN_TIMES];
}

static bool is_arena(hotbed_memory_kind kind) {
    return kind == HOTBED_MEMORY_DEVICE || kind == HOTBED_MEMORY_PINNED;
}

/* Whether the table has columns in the arena (`arena`), or elsewhere. */
static bool has_columns(const hotbed_snapshot_table *table, bool arena) {
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        if (table->row_bytes[i] > 0 && is_arena(table->kinds[i]) == arena)
            return true;
    return false;
}

/* --- into memory of the snapshot's own ------------------------------------------------------------------ */

static hotbed_status open_window(const table_taker *t, window *w, uint32_t table, uint64_t slots) {
    size_t bytes = HOTBED_ARENA_ALIGN, at = HOTBED_ARENA_ALIGN;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        bytes += hotbed_arena_align(slots * t->row_bytes[i]);
    HOTBED_TRY(hotbed_memory_alloc(t->t->stream, HOTBED_MEMORY_PINNED, bytes, NULL, &w->memory));
    HOTBED_TRY(hotbed_event_create(t->t->stream, &w->done));
    HOTBED_TRY(hotbed_event_create(t->t->copier, &w->kept));
    char *base = w->memory.data;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        w->columns[i] = t->row_bytes[i] == 0 ? NULL : base + at;
        at += hotbed_arena_align(slots * t->row_bytes[i]);
    }
    w->batch = (hotbed_export){
        .size = sizeof w->batch, .table = table, .slots = slots, .count = (uint64_t *)(void *)base};
    point(&w->batch, w->columns);
    return HOTBED_OK;
}

static void close_window(window *w) {
    hotbed_event_destroy(w->kept);
    hotbed_event_destroy(w->done);
    hotbed_memory_free(&w->memory);
}

/* Start to fill a window, after its last rows were copied to the image. */
static hotbed_status ask(const table_taker *t, window *w, uint64_t first) {
    HOTBED_TRY(hotbed_event_sync(w->kept));
    w->batch.first = first;
    HOTBED_TRY(hotbed_storage_export(t->storage, &w->batch, t->t->stream));
    return hotbed_event_record(w->done, t->t->stream);
}

/* Wait for a window, and copy its rows to the image. */
static hotbed_status keep(table_taker *t, window *w) {
    hotbed_snapshot_table *to = t->to;
    HOTBED_TRY(hotbed_event_sync(w->done));
    uint64_t n = *w->batch.count;
    if (n > to->capacity - t->rows)
        return fail_changed(t->name);
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        if (n * t->row_bytes[i] > 0)
            HOTBED_TRY(hotbed_copy(
                (char *)to->columns[i] + t->rows * t->row_bytes[i], w->columns[i],
                n * t->row_bytes[i], t->t->copier));
    t->rows += n;
    return hotbed_event_record(w->kept, t->t->copier);
}

/* Copy all slots through two windows: one is filled while the other is copied to the image. */
static hotbed_status copy_windows(table_taker *t, uint64_t slots) {
    uint64_t step = t->windows[0].batch.slots, asked = 0, turn = 0;
    for (uint64_t kept = 0; kept < slots; kept += step, turn++) {
        for (; asked < slots && asked < kept + 2 * step; asked += step)
            HOTBED_TRY(ask(t, &t->windows[asked / step % 2], asked));
        HOTBED_TRY(keep(t, &t->windows[turn % 2]));
    }
    return HOTBED_OK;
}

/* Copy the PAGEABLE columns of a table. Synchronous. */
static hotbed_status copy_table(taker *all, uint32_t number, uint64_t slots) {
    hotbed_snapshot_table *to = &all->s->tables[number];
    size_t row = 0;
    table_taker t = {.t = all, .to = to, .name = all->s->manifest.tables[number].name};
    t.storage = hotbed_storages_of(all->storages, number);
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        t.row_bytes[i] = to->kinds[i] == HOTBED_MEMORY_PAGEABLE ? to->row_bytes[i] : 0;
        row += t.row_bytes[i];
    }
    if (all->copier == NULL)
        HOTBED_TRY(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &all->copier));
    uint64_t step = WINDOW_BYTES / row + 1;
    step = step < slots ? step : slots;
    uint32_t local = hotbed_storages_number(all->storages, number);
    hotbed_status status = open_window(&t, &t.windows[0], local, step);
    HOTBED_THEN(status, open_window(&t, &t.windows[1], local, step));
    HOTBED_THEN(status, copy_windows(&t, slots));
    hotbed_status synced =
        hotbed_stream_sync(all->stream); /* wait for work that a failure left enqueued */
    hotbed_status copied = hotbed_stream_sync(all->copier);
    close_window(&t.windows[0]);
    close_window(&t.windows[1]);
    HOTBED_TRY(status);
    HOTBED_TRY(synced);
    HOTBED_TRY(copied);
    return t.rows == to->capacity ? HOTBED_OK : fail_changed(t.name);
}

/* --- into an arena -------------------------------------------------------------------------------------- */

/* Export a table's columns to the arena. The rows of the last export are counted in `counts`, the
 * rows of all exports before in to->rows. Waits once for each export except the last. */
static hotbed_status export_table(taker *t, uint32_t number, uint64_t slots) {
    hotbed_snapshot_table *to = &t->s->tables[number];
    uint64_t *count = (uint64_t *)t->counts.data + number;
    uint64_t most = t->config->window_slots == 0 ? ARENA_SLOTS : t->config->window_slots;
    hotbed_export batch = {.size = sizeof batch};
    batch.table = hotbed_storages_number(t->storages, number);
    batch.count = count;
    for (; batch.first < slots; batch.first += batch.slots) {
        if (batch.first > 0) {
            HOTBED_TRY(hotbed_stream_sync(t->stream));
            if (*count > to->capacity - to->rows)
                return fail_changed(t->s->manifest.tables[number].name);
            to->rows += *count;
        }
        void *columns[HOTBED_ROW_COLUMNS] = {NULL};
        for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS && to->rows < to->capacity; i++)
            if (is_arena(to->kinds[i]))
                columns[i] = (char *)to->columns[i] + to->rows * to->row_bytes[i];
        point(&batch, columns);
        batch.capacity = to->capacity - to->rows; /* if 0, all columns are NULL */
        batch.slots = slots - batch.first < most ? slots - batch.first : most;
        HOTBED_TRY(
            hotbed_storage_export(hotbed_storages_of(t->storages, number), &batch, t->stream));
    }
    return HOTBED_OK;
}

/* --- all storages --------------------------------------------------------------------------------------- */

static hotbed_status copy_blobs(
    hotbed_checkpoint_snapshot *s, const hotbed_checkpoint_options *options) {
    const uint32_t n = s->manifest.num_blobs;
    s->blobs = hotbed_new(n * sizeof *s->blobs);
    HOTBED_TRY_MEMORY(s->blobs, "%" PRIu32 " blobs", n);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = options->blobs[i].bytes;
        void *data = hotbed_new(bytes);
        HOTBED_TRY_MEMORY(data, "%" PRIu64 " bytes of blob '%s'", bytes, options->blobs[i].name);
        if (bytes > 0)
            memcpy(data, options->blobs[i].data, bytes);
        s->blobs[i].data = data;
    }
    return HOTBED_OK;
}

/* Copy the caller's routes and path. */
static hotbed_status copy_options(
    hotbed_checkpoint_snapshot *s, const hotbed_checkpoint_options *options, uint32_t tables) {
    if (s->share.routes != NULL) {
        hotbed_route *routes = hotbed_new(tables * sizeof *routes);
        if (routes != NULL)
            memcpy(routes, s->share.routes, tables * sizeof *routes);
        s->share.routes = routes;
        HOTBED_TRY_MEMORY(routes, "%" PRIu32 " routes", tables);
    }
    s->mark = options->mark;
    if (options->parent != NULL) {
        size_t bytes = strlen(options->parent) + 1;
        s->parent = hotbed_new(bytes);
        HOTBED_TRY_MEMORY(s->parent, "%zu bytes of a path", bytes);
        memcpy(s->parent, options->parent, bytes);
    }
    return HOTBED_OK;
}

/* Choose where the table's columns go. Rows that are all in device memory go to the arena's device
 * memory, or else to its pinned memory, while it lasts; rows with a lower tier go to pinned memory.
 * Everything else goes to memory of the snapshot. All columns of a table over an external store go
 * through windows, together: its cursor may return the rows in another order the next time. */
static hotbed_status place_table(taker *t, uint32_t number) {
    hotbed_checkpoint_snapshot *s = t->s;
    hotbed_snapshot_table *to = &s->tables[number];
    hotbed_table_info info;
    HOTBED_TRY(hotbed_storages_info(t->storages, number, &info));
    bool one_tier =
        hotbed_storage_mode(hotbed_storages_of(t->storages, number)) == HOTBED_MODE_HBM_DIRECT;
    bool external = !one_tier && info.lower_slots == 0;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        to->row_bytes[i] = hotbed_manifest_row_bytes(&s->manifest, &s->manifest.tables[number], i);
        size_t bytes = to->capacity * to->row_bytes[i];
        if (to->row_bytes[i] == 0)
            continue;
        if (one_tier) {
            to->columns[i] = hotbed_arena_take(&s->lease, HOTBED_MEMORY_DEVICE, bytes);
            to->kinds[i] = HOTBED_MEMORY_DEVICE;
        }
        if (to->columns[i] == NULL && !external) {
            to->columns[i] = hotbed_arena_take(&s->lease, HOTBED_MEMORY_PINNED, bytes);
            to->kinds[i] = HOTBED_MEMORY_PINNED;
        }
        if (to->columns[i] != NULL)
            continue;
        to->kinds[i] = HOTBED_MEMORY_PAGEABLE;
        HOTBED_TRY(
            hotbed_memory_alloc(t->stream, HOTBED_MEMORY_PAGEABLE, bytes, NULL, &to->memory[i]));
        to->columns[i] = to->memory[i].data;
    }
    return HOTBED_OK;
}

static hotbed_status plan_table(taker *t, uint32_t number) {
    hotbed_checkpoint_snapshot *s = t->s;
    hotbed_snapshot_table *to = &s->tables[number];
    hotbed_table_info info;
    HOTBED_TRY(
        hotbed_plan_table(t->config, t->storages, &s->share, number, &s->manifest, t->stream));
    HOTBED_TRY(hotbed_storages_info(t->storages, number, &info));
    /* rows of other ranks of a static table are left out when the snapshot is written */
    to->capacity =
        info.kind == HOTBED_TABLE_STATIC ? info.capacity : s->manifest.tables[number].keys;
    HOTBED_TRY(
        hotbed_plan_counted(t->storages, &s->share, number, &s->manifest, &to->counted, t->stream));
    return place_table(t, number);
}

/* Copy the rows of all tables: first enqueue everything that goes to the arena, then copy the rest,
 * table by table. */
static hotbed_status copy_tables(taker *t, uint32_t tables) {
    hotbed_checkpoint_snapshot *s = t->s;
    uint64_t slots = 0;
    if (s->lease.arena != NULL)
        HOTBED_TRY(hotbed_memory_alloc(
            t->stream, HOTBED_MEMORY_PINNED, tables * sizeof(uint64_t), NULL, &t->counts));
    for (int arena = 1; arena >= 0; arena--)
        for (uint32_t i = 0; i < tables; i++) {
            if (!has_columns(&s->tables[i], arena == 1))
                continue;
            HOTBED_TRY(hotbed_storage_export_end(
                hotbed_storages_of(t->storages, i), hotbed_storages_number(t->storages, i), &slots,
                t->stream));
            HOTBED_TRY(arena == 1 ? export_table(t, i, slots) : copy_table(t, i, slots));
        }
    HOTBED_TRY(hotbed_stream_sync(t->stream));
    for (uint32_t i = 0; i < tables; i++) {
        hotbed_snapshot_table *to = &s->tables[i];
        if (has_columns(to, true) &&
            to->rows + ((const uint64_t *)t->counts.data)[i] != to->capacity)
            return fail_changed(s->manifest.tables[i].name);
        to->rows = to->capacity;
    }
    return HOTBED_OK;
}

static hotbed_status take(taker *t, const hotbed_checkpoint_options *options) {
    hotbed_checkpoint_snapshot *s = t->s;
    uint32_t tables = t->storages->num_tables;
    hotbed_checkpoint_share share;
    HOTBED_TRY(hotbed_share_read(&options->share, t->storages, &share));
    s->share = share;
    s->lease.arena = options->arena;
    HOTBED_TRY(copy_options(s, options, tables));
    HOTBED_TRY(
        hotbed_plan_head(t->config, t->storages, &s->share, options, &s->manifest, t->stream));
    HOTBED_TRY(copy_blobs(s, options));
    s->tables = hotbed_new(tables * sizeof *s->tables);
    HOTBED_TRY_MEMORY(s->tables, "%" PRIu32 " tables", tables);
    for (uint32_t i = 0; i < tables; i++)
        HOTBED_TRY(plan_table(t, i));
    return copy_tables(t, tables);
}

hotbed_status hotbed_snapshot_take(
    const hotbed_checkpoint_config *config, const hotbed_storages *storages,
    const hotbed_checkpoint_options *options, hotbed_stream *stream,
    hotbed_checkpoint_snapshot **out) {
    hotbed_held_fault held; /* of earlier work: stays for the caller's own hotbed_stream_sync() */
    *out = NULL;
    HOTBED_TRY(hotbed_stream_hold_fault(stream, &held));
    hotbed_checkpoint_snapshot *s = hotbed_new(sizeof *s);
    taker t = {.config = config, .s = s, .storages = storages, .stream = stream};
    hotbed_status status =
        s != NULL ? take(&t, options) : hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a snapshot");
    if (status != HOTBED_OK) /* exports to the arena may be in flight */
        status = hotbed_stream_settle(stream, status);
    hotbed_stream_return_fault(stream, &held);
    hotbed_stream_destroy(t.copier);
    hotbed_memory_free(&t.counts);
    if (status == HOTBED_OK)
        *out = s;
    else
        hotbed_checkpoint_snapshot_destroy(s);
    return status;
}

uint64_t hotbed_checkpoint_snapshot_bytes(
    const hotbed_checkpoint_snapshot *s, hotbed_memory_kind kind) {
    uint64_t bytes = 0;
    for (uint32_t t = 0; s != NULL && t < s->manifest.num_tables; t++)
        for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
            if (s->tables[t].kinds[i] == kind)
                bytes += hotbed_arena_align(s->tables[t].capacity * s->tables[t].row_bytes[i]);
    return bytes;
}

void hotbed_checkpoint_snapshot_destroy(hotbed_checkpoint_snapshot *s) {
    if (s == NULL)
        return;
    for (uint32_t t = 0; s->tables != NULL && t < s->manifest.num_tables; t++) {
        for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
            hotbed_memory_free(&s->tables[t].memory[i]);
        hotbed_delete(s->tables[t].counted);
    }
    hotbed_arena_return(&s->lease, HOTBED_MEMORY_DEVICE);
    hotbed_arena_return(&s->lease, HOTBED_MEMORY_PINNED);
    hotbed_delete(s->tables);
    for (uint32_t i = 0; s->blobs != NULL && i < s->manifest.num_blobs; i++)
        hotbed_delete((void *)s->blobs[i].data); /* copied by copy_blobs() */
    hotbed_delete(s->blobs);
    hotbed_delete(s->parent);
    hotbed_delete((void *)s->share.routes); /* copied by copy_options() */
    hotbed_manifest_free(&s->manifest);
    hotbed_delete(s);
}
