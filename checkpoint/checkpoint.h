/* checkpoint/checkpoint.h - the inside of save and load: with chosen system calls, and paths. */
#ifndef HOTBED_CHECKPOINT_CHECKPOINT_H
#define HOTBED_CHECKPOINT_CHECKPOINT_H

#include "checkpoint/h5.h"
#include "checkpoint/io.h"
#include "checkpoint/manifest.h"
#include "hotbed/checkpoint.h"

/* What tests change. */
typedef struct hotbed_checkpoint_config {
    const hotbed_io_calls *calls;
    uint32_t bucket_bits;  /* of hash tables */
    uint32_t block_bytes;  /* a power of two; 0: HOTBED_BLOCK_BYTES */
    uint64_t window_slots; /* that go to an arena in one export; 0: 2^26 */
    size_t window_bytes;   /* that come from device memory at a time; 0: 16 MiB */
} hotbed_checkpoint_config;

/* A whole save by one rank, or by those of options->comm: the three below, and an abort when one fails. */
hotbed_status hotbed_checkpoint_write(
    const hotbed_checkpoint_config *config, const char *path, hotbed_storage *storage,
    const hotbed_checkpoint_options *options, hotbed_stream *stream);

/* The public calls of these names after the check of their arguments. */
hotbed_status hotbed_save_begin(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id *id);
hotbed_status hotbed_save_shard(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    hotbed_storage *storage, const hotbed_checkpoint_options *options, hotbed_stream *stream);
hotbed_status hotbed_save_commit(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    uint32_t world);
void hotbed_save_abort(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    uint32_t world);
hotbed_status hotbed_checkpoint_read(
    const hotbed_checkpoint_config *config, const char *path, hotbed_storage *storage,
    const hotbed_checkpoint_load_options *options, uint64_t *step, void *extra,
    uint64_t *extra_bytes, hotbed_stream *stream);

/* The public calls on snapshots. */
hotbed_status hotbed_snapshot_take(
    const hotbed_checkpoint_config *config, hotbed_storage *storage,
    const hotbed_checkpoint_options *options, hotbed_stream *stream,
    hotbed_checkpoint_snapshot **out);
hotbed_status hotbed_snapshot_put(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_id id,
    hotbed_checkpoint_snapshot *snapshot);
hotbed_status hotbed_snapshot_write(
    const hotbed_checkpoint_config *config, const char *path, hotbed_checkpoint_snapshot *snapshot);

/* --- files that are being written ---------------------------------------------------------------------- */

/* Files of a checkpoint that is being written, in a directory of its own beside its final name. */
typedef struct hotbed_draft {
    hotbed_io_file parent;    /* directory of the final name */
    hotbed_io_file directory; /* the draft */
    char *parent_path;        /* owned */
    const char *final_name;   /* last part of the path, in parent_path's allocation */
    char name[64];            /* ".tmp-<id>" */
} hotbed_draft;

/* Find the parent of `path`, for the draft of checkpoint `id`.  Errors: ARGUMENT (no name in it; a name
 * that readers pass over), IO, MEMORY.  The caller calls hotbed_draft_close() in any case. */
hotbed_status hotbed_draft_open(
    const hotbed_io_calls *calls, const char *path, hotbed_checkpoint_id id, hotbed_draft *draft);

/* Make the directory.  Errors: STATE (something has the final name), IO. */
hotbed_status hotbed_draft_make(hotbed_draft *draft);

/* Open the directory that another made. */
hotbed_status hotbed_draft_enter(hotbed_draft *draft);

/* Write a whole new file. */
hotbed_status hotbed_draft_file(
    hotbed_draft *draft, const char *name, const void *data, size_t bytes);

/* Everything is written: sync, give the directory its final name, and sync that. */
hotbed_status hotbed_draft_commit(hotbed_draft *draft);

/* Remove what `world` ranks may have written; keeps the error text. */
void hotbed_draft_remove(hotbed_draft *draft, uint32_t world);

void hotbed_draft_close(hotbed_draft *draft);

/* An id, the time and who writes, in a new manifest.  Errors: IO (no random numbers). */
hotbed_status hotbed_new_id(hotbed_checkpoint_id *out);

/* All shards are described in *manifest: complete it, write it and the index. */
hotbed_status hotbed_draft_manifest(hotbed_draft *draft, hotbed_manifest *manifest);

/* All shards and their descriptions are in the draft: put MANIFEST together, write it and the index, and
 * commit. */
hotbed_status hotbed_draft_assemble(hotbed_draft *draft, uint32_t world);

/* Write the description of shard `number` for hotbed_draft_assemble(). */
hotbed_status hotbed_draft_describe(
    hotbed_draft *draft, const hotbed_manifest *manifest, uint32_t number);

/* Layouts of the files by libhdf5: set the offsets of *manifest's extents and its shard's sizes.
 * *metadata is freed with hotbed_delete().  checkpoint/layout.c */
hotbed_status hotbed_layout_shard(hotbed_manifest *manifest, uint32_t number, void **metadata);
hotbed_status hotbed_layout_index(const hotbed_manifest *manifest, void **file, size_t *bytes);

/* Who writes: library and libhdf5, which together give the same manifest the same layout. */
void hotbed_layout_writer(char name[64]);

/* Whether the metadata of shard `number`, `bytes` at its start, is what this library makes for *manifest, byte
 * for byte.  What another writer made is not looked at.  Errors: CORRUPT, IO, MEMORY. */
hotbed_status hotbed_layout_check(
    const hotbed_manifest *manifest, uint32_t number, const char *file, const void *metadata);

/* The same for all of the index. */
hotbed_status hotbed_layout_check_index(
    const hotbed_manifest *manifest, const char *file, const void *index);

/* Type and shape of a column with `rows` rows (buckets of the bucket column). */
hotbed_h5_shape hotbed_layout_shape(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table, uint32_t column,
    uint64_t rows);

#endif
