/* checkpoint/plan.h - describe one rank's part of a checkpoint before rows are read. */
#ifndef HOTBED_CHECKPOINT_PLAN_H
#define HOTBED_CHECKPOINT_PLAN_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/mark.h"
#include "checkpoint/share.h"

/* Set the head of a new manifest, except its id, and allocate its tables and shards. Errors:
 * MEMORY, DEVICE. */
hotbed_status hotbed_plan_head(
    const hotbed_checkpoint_config *config, hotbed_storage *storage,
    const hotbed_checkpoint_share *share, const hotbed_checkpoint_options *options,
    hotbed_manifest *manifest, hotbed_stream *stream);

/* Describe a table and the rank's part of it, except its rows. *rows is the number of rows in the
 * storage. Errors: STATE (tickets hold rows), DEVICE. */
hotbed_status hotbed_plan_table(
    const hotbed_checkpoint_config *config, hotbed_storage *storage,
    const hotbed_checkpoint_share *share, uint32_t number, hotbed_manifest *manifest,
    uint64_t *rows, hotbed_stream *stream);

/* Read the keys that admission counts: *out is [2 * counted] keys in canonical order, then their
 * counts; NULL if there are none. The caller frees it. Errors: STATE (a key belongs to another
 * rank), MEMORY, DEVICE. */
hotbed_status hotbed_plan_counted(
    hotbed_storage *storage, const hotbed_checkpoint_share *share, uint32_t number,
    hotbed_manifest *manifest, uint64_t **out, hotbed_stream *stream);

/* Make *manifest an increment after the checkpoint at `path`. *base is set to the mark's rows of
 * that checkpoint. Errors: STATE (the mark does not have that checkpoint; the parent's rows were
 * assigned to ranks in another way), IO, CORRUPT, MEMORY, UNSUPPORTED. */
hotbed_status hotbed_plan_parent(
    const hotbed_checkpoint_config *config, const char *path, const hotbed_checkpoint_mark *mark,
    const hotbed_checkpoint_share *share, hotbed_manifest *manifest, const hotbed_marked **base);

#endif
