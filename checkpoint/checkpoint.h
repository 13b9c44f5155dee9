/* checkpoint/checkpoint.h - the internals of save and load, with configurable system calls and
 * sizes. */
#pragma once

#include "checkpoint/format/h5.h"
#include "checkpoint/format/io.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/storages.h"
#include "hotbed/checkpoint.h"

/* Settings that tests change. */
typedef struct hotbed_checkpoint_config {
    const hotbed_io_calls *calls;
    uint32_t bucket_bits;  /* of hash tables */
    uint32_t block_bytes;  /* a power of two; 0: HOTBED_BLOCK_BYTES */
    uint64_t window_slots; /* slots that one export copies to an arena; 0: 2^26 */
    size_t window_bytes;   /* bytes that are copied from device memory at a time; 0: 16 MiB */
} hotbed_checkpoint_config;

/* Open the writer of a rank's shard, whose blobs are `blobs`. Errors: as hotbed_shard_writer_open() and
 * hotbed_shard_writer_behind(). */
hotbed_status hotbed_save_open(
    hotbed_shard_writer *shard, const hotbed_io_file *directory, hotbed_manifest *manifest,
    uint32_t rank, const hotbed_checkpoint_blob *blobs);

/* Save a whole checkpoint, by one rank or by all ranks of options->comm: begin, put the shards,
 * commit, and abort if one of these fails. */
hotbed_status hotbed_checkpoint_write(
    const hotbed_checkpoint_config *config, const char *path, const hotbed_storages *storages,
    const hotbed_checkpoint_options *options, hotbed_stream *stream);

/* The public calls of the same names, after their arguments were checked. */
hotbed_status hotbed_save_begin(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id *id);
hotbed_status hotbed_save_shard(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    const hotbed_storages *storages, const hotbed_checkpoint_options *options,
    hotbed_stream *stream);
hotbed_status hotbed_save_commit(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    uint32_t world);
void hotbed_save_abort(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id);

/* Commit the draft of a save by one rank, if `status` is OK; otherwise abort it. Returns `status`, or
 * the error of the commit. */
hotbed_status hotbed_save_end(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    hotbed_status status);
hotbed_status hotbed_checkpoint_read(
    const hotbed_checkpoint_config *config, const char *path, const hotbed_storages *storages,
    const hotbed_checkpoint_load_options *options, hotbed_checkpoint_report *report,
    hotbed_stream *stream);

/* hotbed_checkpoint_read_blob(), after its arguments were checked. */
hotbed_status hotbed_blob_read(
    const hotbed_io_calls *calls, const char *path, const char *name, void *data, uint64_t *bytes);

/* Set *mark to the rows of the storages, as the rows of checkpoint `id`. The mark becomes empty
 * after an error. Errors: as a save without files. */
hotbed_status hotbed_save_mark(
    const hotbed_checkpoint_config *config, const hotbed_storages *storages,
    const hotbed_checkpoint_share *share, hotbed_checkpoint_id id, hotbed_checkpoint_mark *mark,
    hotbed_stream *stream);

/* The public calls on snapshots, after their arguments were checked. */
hotbed_status hotbed_snapshot_take(
    const hotbed_checkpoint_config *config, const hotbed_storages *storages,
    const hotbed_checkpoint_options *options, hotbed_stream *stream,
    hotbed_checkpoint_snapshot **out);
hotbed_status hotbed_snapshot_put(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    hotbed_checkpoint_snapshot *snapshot);
hotbed_status hotbed_snapshot_write(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_snapshot *snapshot);

/* --- files that are being written ---------------------------------------------------------------------- */

/* The files of a checkpoint that is being written. They are in a directory beside its final
 * name. */
typedef struct hotbed_draft {
    hotbed_io_file parent;    /* directory of the final name */
    hotbed_io_file directory; /* the draft */
    char *parent_path;        /* owned */
    const char *final_name;   /* last part of the path, in parent_path's allocation */
    char name[64];            /* ".tmp-<id>" */
    uint64_t manifest_bytes;  /* size of MANIFEST, once it is written */
} hotbed_draft;

/* Find the parent of `path`, for the draft of checkpoint `id`. The caller must call
 * hotbed_draft_close() even after an error. Errors: ARGUMENT (`path` has no name, or a name that
 * readers ignore), IO, MEMORY. */
hotbed_status hotbed_draft_open(
    const hotbed_io_calls *calls, const char *path, hotbed_checkpoint_id id, hotbed_draft *draft);

/* Return the last part of `path`, without the slashes that follow it; *bytes is its length. */
const char *hotbed_path_name(const char *path, size_t *bytes);

/* Whether the name of a checkpoint ends in ".damaged" or ".damaged-<number>". hotbed-train --resume
 * renames a checkpoint so after a load of it found wrong bytes. Implemented in latest.c. */
bool hotbed_is_damaged_name(const char *name);

/* Open the draft of a new checkpoint or export, and create its directory. *id is its random id. The
 * caller must call hotbed_draft_close() even after an error. Errors: as hotbed_draft_open(); STATE (the
 * final name exists), IO. */
hotbed_status hotbed_draft_create(
    const hotbed_io_calls *calls, const char *path, hotbed_checkpoint_id *id, hotbed_draft *draft);

/* Check that the final name does not exist. Errors: STATE (it does), IO. */
hotbed_status hotbed_draft_check_free(const hotbed_draft *draft);

/* Open the draft's directory, which another rank created. */
hotbed_status hotbed_draft_enter(hotbed_draft *draft);

/* Rename a complete draft, a directory or a file, to its final name, which must not exist. Errors:
 * STATE (it exists), IO. */
hotbed_status hotbed_draft_rename(const hotbed_draft *draft);

/* Sync the complete draft, rename it to its final name, and sync the parent directory. Before and
 * after the rename, check that all files named by *manifest still exist and have their sizes,
 * because another process may have removed them. `manifest` is NULL for an export, which has no
 * MANIFEST. Errors: STATE (the final name exists), IO (a file is missing, or has another size). */
hotbed_status hotbed_draft_commit(hotbed_draft *draft, const hotbed_manifest *manifest);

/* Remove the draft and all files that ranks have written to it. Keeps the error text. */
void hotbed_draft_remove(hotbed_draft *draft);

void hotbed_draft_close(hotbed_draft *draft);

/* Create a random id. Errors: IO (no random numbers). */
hotbed_status hotbed_new_id(hotbed_checkpoint_id *out);

/* Complete *manifest, which describes all shards, and write MANIFEST and the index. */
hotbed_status hotbed_draft_manifest(hotbed_draft *draft, hotbed_manifest *manifest);

/* Combine the descriptions of all shards, which are in the draft, into MANIFEST, write it and the
 * index, and commit. Errors: STATE (a rank has put no shard), CORRUPT, MEMORY, and the errors of
 * hotbed_draft_commit(). */
hotbed_status hotbed_draft_assemble(hotbed_draft *draft, uint32_t world);

/* Write the description of shard `number`, which hotbed_draft_assemble() reads. */
hotbed_status hotbed_draft_describe(
    hotbed_draft *draft, const hotbed_manifest *manifest, uint32_t number);

/* Lay out a shard, or the index, with libhdf5. The first call sets the offsets of *manifest's
 * extents and the sizes of the shard. The caller frees *metadata or *file with hotbed_delete().
 * Implemented in checkpoint/layout.c. */
hotbed_status hotbed_layout_shard(hotbed_manifest *manifest, uint32_t number, void **metadata);
hotbed_status hotbed_layout_index(const hotbed_manifest *manifest, void **file, size_t *bytes);

/* Set `name` to the writer: the versions of this library and of libhdf5. The layout of
 * a manifest depends on nothing but its text and the writer. */
void hotbed_layout_writer(char name[64]);

/* Check that `metadata`, the bytes at the start of shard `number`, equals byte for byte what this
 * library makes for *manifest. The metadata of another writer is not examined. Errors: CORRUPT, IO,
 * MEMORY. */
hotbed_status hotbed_layout_check(
    const hotbed_manifest *manifest, uint32_t number, const char *file, const void *metadata);

/* Check the whole index in the same way. */
hotbed_status hotbed_layout_check_index(
    const hotbed_manifest *manifest, const char *file, const void *index);

/* Return the type and shape of a column with `rows` rows (for the bucket column: buckets). */
hotbed_h5_shape hotbed_layout_shape(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table, uint32_t column,
    uint64_t rows);
