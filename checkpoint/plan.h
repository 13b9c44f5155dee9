/* checkpoint/plan.h - describe one rank's part of a checkpoint before rows are read. */
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/mark.h"
#include "checkpoint/share.h"

/* Set the head of a new manifest, except its id, and allocate its tables and shards. Errors:
 * MEMORY, DEVICE. */
hotbed_status hotbed_plan_head(
    const hotbed_checkpoint_config *config, const hotbed_storages *storages,
    const hotbed_checkpoint_share *share, const hotbed_checkpoint_options *options,
    hotbed_manifest *manifest, hotbed_stream *stream);

/* Describe a table and the rank's part of it, except its rows. Sets table->keys, or table->capacity
 * of a STATIC table, to the number of the rank's rows. Errors: DEVICE. */
hotbed_status hotbed_plan_table(
    const hotbed_checkpoint_config *config, const hotbed_storages *storages,
    const hotbed_checkpoint_share *share, uint32_t number, hotbed_manifest *manifest,
    hotbed_stream *stream);

/* Read the keys that admission counts: *out is [2 * counted] keys in canonical order, then their
 * counts; NULL if there are none. The caller frees it. Errors: STATE (a key belongs to another
 * rank), MEMORY, DEVICE. */
hotbed_status hotbed_plan_counted(
    const hotbed_storages *storages, const hotbed_checkpoint_share *share, uint32_t number,
    hotbed_manifest *manifest, uint64_t **out, hotbed_stream *stream);

/* Make *manifest, whose tables are described, an increment after the checkpoint at `path`. *base is
 * set to the mark's rows of that checkpoint. Errors: STATE (the mark does not have that checkpoint;
 * the parent has other tables, or its rows were assigned to ranks in another way), IO, CORRUPT,
 * MEMORY, UNSUPPORTED. */
hotbed_status hotbed_plan_parent(
    const hotbed_checkpoint_config *config, const char *path, const hotbed_checkpoint_mark *mark,
    const hotbed_checkpoint_share *share, hotbed_manifest *manifest, const hotbed_marked **base);
