/* checkpoint/unsupported.c - the public calls in a build without HDF5. */
#include "base/unsupported.h"
#include "hotbed/checkpoint.h"

static hotbed_status unsupported(void) {
    return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "this build has no checkpoints: HOTBED_HDF5 is OFF");
}

HOTBED_UNSUPPORTED(
    hotbed_checkpoint_save, const char *path, hotbed_storage *const *storages,
    uint32_t num_storages, const hotbed_checkpoint_options *options, hotbed_stream *stream)
HOTBED_UNSUPPORTED(hotbed_checkpoint_begin, const char *path, hotbed_checkpoint_id *id)
HOTBED_UNSUPPORTED(
    hotbed_checkpoint_put, const char *path, hotbed_checkpoint_id id,
    hotbed_storage *const *storages, uint32_t num_storages,
    const hotbed_checkpoint_options *options, hotbed_stream *stream)
HOTBED_UNSUPPORTED(
    hotbed_checkpoint_commit, const char *path, hotbed_checkpoint_id id, uint32_t world)
HOTBED_UNSUPPORTED_VOID(hotbed_checkpoint_abort, const char *path, hotbed_checkpoint_id id)
HOTBED_UNSUPPORTED(
    hotbed_checkpoint_load, const char *path, hotbed_storage *const *storages,
    uint32_t num_storages, const hotbed_checkpoint_load_options *options,
    hotbed_checkpoint_report *report, hotbed_stream *stream)
HOTBED_UNSUPPORTED(
    hotbed_checkpoint_read_blob, const char *path, const char *name, void *data, uint64_t *bytes)
HOTBED_UNSUPPORTED(hotbed_checkpoint_latest, const char *directory, hotbed_checkpoint_found *found)
HOTBED_UNSUPPORTED_VOID(hotbed_checkpoint_found_free, hotbed_checkpoint_found *found)
HOTBED_UNSUPPORTED(hotbed_checkpoint_check, const char *path)
HOTBED_UNSUPPORTED_OUT(hotbed_checkpoint_mark_create, hotbed_checkpoint_mark **out)
HOTBED_UNSUPPORTED_VOID(hotbed_checkpoint_mark_destroy, hotbed_checkpoint_mark *mark)
HOTBED_UNSUPPORTED_OUT(
    hotbed_checkpoint_arena_create, uint64_t device_bytes, uint64_t pinned_bytes,
    hotbed_stream *stream, hotbed_checkpoint_arena **out)
HOTBED_UNSUPPORTED_VOID(hotbed_checkpoint_arena_destroy, hotbed_checkpoint_arena *arena)
HOTBED_UNSUPPORTED_OUT(
    hotbed_checkpoint_snapshot_take, hotbed_storage *const *storages, uint32_t num_storages,
    const hotbed_checkpoint_options *options, hotbed_stream *stream,
    hotbed_checkpoint_snapshot **out)
HOTBED_UNSUPPORTED_VOID(hotbed_checkpoint_snapshot_destroy, hotbed_checkpoint_snapshot *snapshot)
HOTBED_UNSUPPORTED_VALUE(
    uint64_t, 0, hotbed_checkpoint_snapshot_bytes, const hotbed_checkpoint_snapshot *snapshot,
    hotbed_memory_kind kind)
HOTBED_UNSUPPORTED(
    hotbed_checkpoint_snapshot_write, hotbed_checkpoint_snapshot *snapshot, const char *path)
HOTBED_UNSUPPORTED(
    hotbed_checkpoint_snapshot_put, hotbed_checkpoint_snapshot *snapshot, const char *path,
    hotbed_checkpoint_id id)
