/* checkpoint/unsupported.c - the public calls in a build without HDF5. */
#include "base/error.h"
#include "hotbed/checkpoint.h"

static hotbed_status unsupported(void) {
    return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "this build has no checkpoints: HOTBED_HDF5 is OFF");
}

hotbed_status hotbed_checkpoint_save(
    const char *path, hotbed_storage *const *storages, uint32_t num_storages,
    const hotbed_checkpoint_options *options, hotbed_stream *stream) {
    (void)path;
    (void)storages;
    (void)num_storages;
    (void)options;
    (void)stream;
    return unsupported();
}

hotbed_status hotbed_checkpoint_begin(const char *path, hotbed_checkpoint_id *id) {
    (void)path;
    (void)id;
    return unsupported();
}

hotbed_status hotbed_checkpoint_put(
    const char *path, hotbed_checkpoint_id id, hotbed_storage *const *storages,
    uint32_t num_storages, const hotbed_checkpoint_options *options, hotbed_stream *stream) {
    (void)path;
    (void)id;
    (void)storages;
    (void)num_storages;
    (void)options;
    (void)stream;
    return unsupported();
}

hotbed_status hotbed_checkpoint_commit(const char *path, hotbed_checkpoint_id id, uint32_t world) {
    (void)path;
    (void)id;
    (void)world;
    return unsupported();
}

void hotbed_checkpoint_abort(const char *path, hotbed_checkpoint_id id) {
    (void)path;
    (void)id;
}

hotbed_status hotbed_checkpoint_load(
    const char *path, hotbed_storage *const *storages, uint32_t num_storages,
    const hotbed_checkpoint_load_options *options, hotbed_checkpoint_report *report,
    hotbed_stream *stream) {
    (void)path;
    (void)storages;
    (void)num_storages;
    (void)options;
    (void)report;
    (void)stream;
    return unsupported();
}

hotbed_status hotbed_checkpoint_read_blob(
    const char *path, const char *name, void *data, uint64_t *bytes) {
    (void)path;
    (void)name;
    (void)data;
    (void)bytes;
    return unsupported();
}

hotbed_status hotbed_checkpoint_latest(const char *directory, hotbed_checkpoint_found *found) {
    (void)directory;
    (void)found;
    return unsupported();
}

void hotbed_checkpoint_found_free(hotbed_checkpoint_found *found) {
    (void)found;
}

hotbed_status hotbed_checkpoint_check(const char *path) {
    (void)path;
    return unsupported();
}

hotbed_status hotbed_checkpoint_mark_create(hotbed_checkpoint_mark **out) {
    if (out != NULL)
        *out = NULL;
    return unsupported();
}

void hotbed_checkpoint_mark_destroy(hotbed_checkpoint_mark *mark) {
    (void)mark;
}

hotbed_status hotbed_checkpoint_arena_create(
    uint64_t device_bytes, uint64_t pinned_bytes, hotbed_stream *stream,
    hotbed_checkpoint_arena **out) {
    (void)device_bytes;
    (void)pinned_bytes;
    (void)stream;
    if (out != NULL)
        *out = NULL;
    return unsupported();
}

void hotbed_checkpoint_arena_destroy(hotbed_checkpoint_arena *arena) {
    (void)arena;
}

hotbed_status hotbed_checkpoint_snapshot_take(
    hotbed_storage *const *storages, uint32_t num_storages,
    const hotbed_checkpoint_options *options, hotbed_stream *stream,
    hotbed_checkpoint_snapshot **out) {
    (void)storages;
    (void)num_storages;
    (void)options;
    (void)stream;
    if (out != NULL)
        *out = NULL;
    return unsupported();
}

void hotbed_checkpoint_snapshot_destroy(hotbed_checkpoint_snapshot *snapshot) {
    (void)snapshot;
}

uint64_t hotbed_checkpoint_snapshot_bytes(
    const hotbed_checkpoint_snapshot *snapshot, hotbed_memory_kind kind) {
    (void)snapshot;
    (void)kind;
    return 0;
}

hotbed_status hotbed_checkpoint_snapshot_write(
    hotbed_checkpoint_snapshot *snapshot, const char *path) {
    (void)snapshot;
    (void)path;
    return unsupported();
}

hotbed_status hotbed_checkpoint_snapshot_put(
    hotbed_checkpoint_snapshot *snapshot, const char *path, hotbed_checkpoint_id id) {
    (void)snapshot;
    (void)path;
    (void)id;
    return unsupported();
}
