/* checkpoint/checkpoint.h - the inside of save and load: with chosen system calls, and paths. */
#ifndef HOTBED_CHECKPOINT_CHECKPOINT_H
#define HOTBED_CHECKPOINT_CHECKPOINT_H

#include "checkpoint/io.h"
#include "checkpoint/manifest.h"
#include "hotbed/checkpoint.h"

/* What tests change. */
typedef struct hotbed_checkpoint_config {
    const hotbed_io_calls *calls;
    uint32_t bucket_bits; /* of hash tables */
} hotbed_checkpoint_config;

/* hotbed_checkpoint_save() and hotbed_checkpoint_load() after the check of their arguments. */
hotbed_status hotbed_checkpoint_write(
    const hotbed_checkpoint_config *config, const char *path, hotbed_storage *storage,
    const hotbed_checkpoint_options *options, hotbed_stream *stream);
hotbed_status hotbed_checkpoint_read(
    const hotbed_checkpoint_config *config, const char *path, hotbed_storage *storage,
    uint64_t *step, void *extra, uint64_t *extra_bytes, hotbed_stream *stream);

/* Files of a checkpoint that is being written, in a directory of its own beside its final name. */
typedef struct hotbed_draft {
    hotbed_io_file parent;    /* directory of the final name */
    hotbed_io_file directory; /* the draft */
    char *parent_path;        /* owned */
    const char *final_name;   /* last part of the path, in parent_path's allocation */
    char name[64];            /* ".tmp-<id>" */
    bool made;                /* the draft's directory exists */
} hotbed_draft;

/* Find the parent of `path`, and that nothing has the name.  Errors: ARGUMENT (no name in it; a name
 * that readers pass over), STATE (it exists), IO, MEMORY.  The caller calls hotbed_draft_discard()
 * in any case. */
hotbed_status hotbed_draft_open(
    const hotbed_io_calls *calls, const char *path, hotbed_draft *draft);

/* Make the directory. */
hotbed_status hotbed_draft_make(hotbed_draft *draft, hotbed_digest id);

/* Write a whole new file, and sync it. */
hotbed_status hotbed_draft_file(
    hotbed_draft *draft, const char *name, const void *data, size_t bytes);

/* Everything is written: sync, give the directory its final name, and sync that. */
hotbed_status hotbed_draft_commit(hotbed_draft *draft);

/* Close, and unless it was committed remove what was written; keeps the error text. */
void hotbed_draft_discard(hotbed_draft *draft);

/* Layouts of the files by libhdf5: set the offsets of *manifest's extents and its shard's sizes.
 * *metadata is freed with hotbed_delete().  checkpoint/layout.c */
hotbed_status hotbed_layout_shard(hotbed_manifest *manifest, uint32_t number, void **metadata);
hotbed_status hotbed_layout_index(const hotbed_manifest *manifest, void **file, size_t *bytes);

#endif
