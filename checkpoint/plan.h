/* checkpoint/plan.h - what one rank's part of a checkpoint is about, before rows are read. */
#ifndef HOTBED_CHECKPOINT_PLAN_H
#define HOTBED_CHECKPOINT_PLAN_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/mark.h"
#include "checkpoint/share.h"

/* The head of a new manifest, with room for tables and shards; all but its id.  Errors: MEMORY, DEVICE. */
hotbed_status hotbed_plan_head(
    const hotbed_checkpoint_config *config, hotbed_storage *storage,
    const hotbed_checkpoint_share *share, const hotbed_checkpoint_options *options,
    hotbed_manifest *manifest, hotbed_stream *stream);

/* Describe a table and the rank's part of it, but for its rows: *rows is how many the storage has.
 * Errors: STATE (tickets hold rows), DEVICE. */
hotbed_status hotbed_plan_table(
    const hotbed_checkpoint_config *config, hotbed_storage *storage,
    const hotbed_checkpoint_share *share, uint32_t number, hotbed_manifest *manifest,
    uint64_t *rows, hotbed_stream *stream);

/* What admission has counted of it: *out is [2 * counted] keys in canonical order, then their counts; NULL
 * when there is nothing.  The caller frees it.  Errors: MEMORY, DEVICE. */
hotbed_status hotbed_plan_counted(
    hotbed_storage *storage, const hotbed_checkpoint_share *share, uint32_t number,
    hotbed_manifest *manifest, uint64_t **out, hotbed_stream *stream);

/* Make *manifest that of an increment after the checkpoint at `path`; *base is what the mark knows of that.
 * Errors: STATE (it knows nothing of it), IO, CORRUPT, MEMORY, UNSUPPORTED. */
hotbed_status hotbed_plan_parent(
    const hotbed_checkpoint_config *config, const char *path, const hotbed_checkpoint_mark *mark,
    hotbed_manifest *manifest, const hotbed_marked **base);

#endif
