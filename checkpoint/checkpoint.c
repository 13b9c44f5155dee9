/* checkpoint/checkpoint.c - the public calls: they check arguments and use the system's own
 * files. */
#include "checkpoint/checkpoint.h"

#include "base/check.h"
#include "base/error.h"
#include "base/options.h"
#include "checkpoint/format/arena.h"
#include "checkpoint/format/bucket_core.h"
#include "checkpoint/format/codec.h"
#include "checkpoint/redistribute.h"
#include "checkpoint/verify.h"
#include "dist/comm/comm.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

static const hotbed_checkpoint_config config = {
    .calls = &hotbed_io_system, .bucket_bits = HOTBED_BUCKET_BITS};

static hotbed_status copy_options(
    const hotbed_checkpoint_options *options, hotbed_checkpoint_options *out) {
    return HOTBED_OPTIONS_READ(out, hotbed_checkpoint_options, num_blobs, options);
}

static hotbed_status check_name(const char *what, uint32_t number, const char *name) {
    return name != NULL && hotbed_codec_is_name(name)
               ? HOTBED_OK
               : hotbed_fail_parameter(
                     HOTBED_ERR_ARGUMENT, what,
                     "checkpoint: %s[%" PRIu32 "]: '%.80s' is not a name of 1 to 63 characters "
                     "A-Z a-z 0-9 _ . -",
                     what, number, name == NULL ? "(NULL)" : name);
}

static hotbed_status check_options(const hotbed_checkpoint_options *o) {
    if (o->parent != NULL && o->mark == NULL)
        return hotbed_error_path(
            hotbed_fail_parameter(
                HOTBED_ERR_ARGUMENT, "mark", "checkpoint: an increment of %s needs a mark",
                o->parent),
            o->parent);
    HOTBED_TRY(hotbed_check_range("touched", o->touched, 0, 1));
    if (o->num_blobs > HOTBED_BLOBS_MAX || (o->num_blobs > 0 && o->blobs == NULL))
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "num_blobs", o->num_blobs, o->blobs == NULL ? 0 : HOTBED_BLOBS_MAX,
            "checkpoint: %" PRIu32 " blobs, at most %d", o->num_blobs,
            o->blobs == NULL ? 0 : HOTBED_BLOBS_MAX);
    for (uint32_t i = 0; i < o->num_blobs; i++) {
        const hotbed_checkpoint_blob *blob = &o->blobs[i];
        HOTBED_TRY(check_name("blobs", i, blob->name));
        if (blob->data == NULL && blob->bytes > 0)
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "blobs", blob->bytes,
                "checkpoint: the data of blob '%s' is NULL, but it has %" PRIu64 " bytes",
                blob->name, blob->bytes);
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(blob->name, o->blobs[k].name) == 0)
                return hotbed_fail_parameter(
                    HOTBED_ERR_ARGUMENT, "blobs", "checkpoint: two blobs '%s'", blob->name);
    }
    return HOTBED_OK;
}

/* Check the options of storages, and list their tables. The caller closes *out. */
static hotbed_status open_storages(
    const char *call, hotbed_storage *const *storages, uint32_t n, const char *const *names,
    hotbed_storages *out) {
    HOTBED_TRY(hotbed_storages_open(call, storages, n, out));
    for (uint32_t i = 0; names != NULL && i < n; i++)
        HOTBED_TRY(check_name("names", i, names[i]));
    return HOTBED_OK;
}

static hotbed_status read_options(
    const hotbed_checkpoint_options *options, hotbed_checkpoint_options *out) {
    HOTBED_TRY(copy_options(options, out));
    return check_options(out);
}

/* Check that the share has the rank and size of the communicator. */
static hotbed_status check_comm(const hotbed_comm *comm, const hotbed_checkpoint_share *share) {
    if (comm == NULL)
        return HOTBED_OK;
    uint32_t world = share->world == 0 ? 1 : share->world;
    if (share->rank != hotbed_comm_rank(comm) || world != hotbed_comm_size(comm))
        return hotbed_fail_rank_limit(
            HOTBED_ERR_ARGUMENT, share->rank, "share", share->rank, hotbed_comm_rank(comm),
            "checkpoint: share says rank %" PRIu32 " of %" PRIu32 ", the communicator %" PRIu32
            " of %" PRIu32,
            share->rank, world, hotbed_comm_rank(comm), hotbed_comm_size(comm));
    return HOTBED_OK;
}

/* Report the result of a rank's checks to all ranks of the communicator, if it is valid. */
static hotbed_status agree(hotbed_comm *comm, hotbed_status status, hotbed_stream *stream) {
    if (comm == NULL)
        return status;
    HOTBED_TRY(hotbed_comm_check_stream(comm, stream));
    return hotbed_vote(comm, status, stream);
}

hotbed_status hotbed_checkpoint_save(
    const char *path, hotbed_storage *const *storages, uint32_t num_storages,
    const hotbed_checkpoint_options *options, hotbed_stream *stream) {
    hotbed_checkpoint_options read;
    hotbed_storages all = {.n = 0};
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_save", "options", options));
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_save", "stream", stream));
    HOTBED_TRY(copy_options(options, &read));
    hotbed_status status = hotbed_check_pointer_of("checkpoint_save", "path", path);
    HOTBED_THEN(status, check_options(&read));
    HOTBED_THEN(status, check_comm(read.comm, &read.share));
    HOTBED_THEN(status, open_storages("checkpoint_save", storages, num_storages, read.names, &all));
    status = agree(read.comm, status, stream);
    if (status == HOTBED_OK && read.comm == NULL && read.share.world > 1)
        status = hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "world", read.share.world,
            "checkpoint_save: %" PRIu32 " ranks need a communicator, or begin, put and "
            "commit",
            read.share.world);
    HOTBED_THEN(status, hotbed_checkpoint_write(&config, path, &all, &read, stream));
    hotbed_storages_close(&all);
    return hotbed_error_path(status, path);
}

hotbed_status hotbed_checkpoint_begin(const char *path, hotbed_checkpoint_id *id) {
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_begin", "path", path));
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_begin", "id", id));
    return hotbed_error_path(hotbed_save_begin(&config, path, id), path);
}

hotbed_status hotbed_checkpoint_put(
    const char *path, hotbed_checkpoint_id id, hotbed_storage *const *storages,
    uint32_t num_storages, const hotbed_checkpoint_options *options, hotbed_stream *stream) {
    hotbed_checkpoint_options read;
    hotbed_storages all = {.n = 0};
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_put", "path", path));
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_put", "options", options));
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_put", "stream", stream));
    HOTBED_TRY(read_options(options, &read));
    hotbed_status status =
        open_storages("checkpoint_put", storages, num_storages, read.names, &all);
    HOTBED_THEN(status, hotbed_save_shard(&config, path, id, &all, &read, stream));
    hotbed_storages_close(&all);
    return hotbed_error_path(status, path);
}

hotbed_status hotbed_checkpoint_commit(const char *path, hotbed_checkpoint_id id, uint32_t world) {
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_commit", "path", path));
    HOTBED_TRY(hotbed_check_range("world", world, 1, HOTBED_WORLD_MAX));
    return hotbed_error_path(hotbed_save_commit(&config, path, id, world), path);
}

void hotbed_checkpoint_abort(const char *path, hotbed_checkpoint_id id) {
    if (path != NULL)
        hotbed_save_abort(&config, path, id);
}

hotbed_status hotbed_checkpoint_snapshot_take(
    hotbed_storage *const *storages, uint32_t num_storages,
    const hotbed_checkpoint_options *options, hotbed_stream *stream,
    hotbed_checkpoint_snapshot **out) {
    hotbed_checkpoint_options read;
    hotbed_storages all = {.n = 0};
    HOTBED_TRY(hotbed_check_pointer_of("snapshot_take", "out", out));
    *out = NULL;
    HOTBED_TRY(hotbed_check_pointer_of("snapshot_take", "options", options));
    HOTBED_TRY(hotbed_check_pointer_of("snapshot_take", "stream", stream));
    HOTBED_TRY(read_options(options, &read));
    if (read.comm != NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "snapshot_take: a communicator is set");
    if (read.touched != 0)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "touched", 1.0,
            "snapshot_take: touched is set, which is for saves");
    if (read.arena != NULL && (hotbed_arena_backend(read.arena) != hotbed_stream_backend(stream) ||
                               hotbed_arena_device(read.arena) != hotbed_stream_device(stream)))
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, "stream",
            "snapshot_take: the arena is on %s %d, the stream on %s %d",
            hotbed_backend_name(hotbed_arena_backend(read.arena)), hotbed_arena_device(read.arena),
            hotbed_backend_name(hotbed_stream_backend(stream)), hotbed_stream_device(stream));
    hotbed_status status = open_storages("snapshot_take", storages, num_storages, read.names, &all);
    HOTBED_THEN(status, hotbed_snapshot_take(&config, &all, &read, stream, out));
    hotbed_storages_close(&all);
    return status;
}

hotbed_status hotbed_checkpoint_snapshot_write(
    hotbed_checkpoint_snapshot *snapshot, const char *path) {
    HOTBED_TRY(hotbed_check_pointer_of("snapshot_write", "snapshot", snapshot));
    HOTBED_TRY(hotbed_check_pointer_of("snapshot_write", "path", path));
    return hotbed_error_path(hotbed_snapshot_write(&config, path, snapshot), path);
}

hotbed_status hotbed_checkpoint_snapshot_put(
    hotbed_checkpoint_snapshot *snapshot, const char *path, hotbed_checkpoint_id id) {
    HOTBED_TRY(hotbed_check_pointer_of("snapshot_put", "snapshot", snapshot));
    HOTBED_TRY(hotbed_check_pointer_of("snapshot_put", "path", path));
    return hotbed_error_path(hotbed_snapshot_put(&config, path, id, snapshot), path);
}

static hotbed_status check_increments(const hotbed_checkpoint_load_options *o) {
    enum { INCREMENTS_MOST = 65535 };
    HOTBED_TRY(hotbed_check_range("num_increments", o->num_increments, 0, INCREMENTS_MOST));
    for (uint32_t i = 0; i < o->num_increments; i++)
        if (o->increments == NULL || o->increments[i] == NULL)
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "increments", i,
                "checkpoint_load: path of increment %" PRIu32 " is NULL", i);
    return HOTBED_OK;
}

/* Read the inputs of the caller's report. */
static hotbed_status read_report(
    const hotbed_checkpoint_report *report, hotbed_checkpoint_report *out) {
    HOTBED_TRY(HOTBED_OPTIONS_READ(out, hotbed_checkpoint_report, step, report));
    if (out->tables == NULL && out->capacity > 0)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "capacity", out->capacity,
            "checkpoint_load: report: tables is NULL, but capacity is %" PRIu32, out->capacity);
    return HOTBED_OK;
}

hotbed_status hotbed_checkpoint_load(
    const char *path, hotbed_storage *const *storages, uint32_t num_storages,
    const hotbed_checkpoint_load_options *options, hotbed_checkpoint_report *report,
    hotbed_stream *stream) {
    hotbed_checkpoint_load_options read = {.size = sizeof read};
    hotbed_checkpoint_report out = {.num_tables = 0};
    hotbed_storages all = {.n = 0};
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_load", "stream", stream));
    if (options != NULL)
        HOTBED_TRY(
            HOTBED_OPTIONS_READ(&read, hotbed_checkpoint_load_options, num_increments, options));
    hotbed_status status = hotbed_check_pointer_of("checkpoint_load", "path", path);
    HOTBED_THEN(status, check_increments(&read));
    HOTBED_THEN(status, check_comm(read.comm, &read.share));
    if (status == HOTBED_OK && report != NULL)
        status = read_report(report, &out);
    HOTBED_THEN(status, open_storages("checkpoint_load", storages, num_storages, NULL, &all));
    status = agree(read.comm, status, stream);
    if (status == HOTBED_OK)
        status = hotbed_checkpoint_read(
            &config, path, &all, &read, report == NULL ? NULL : &out, stream);
    if (status == HOTBED_OK && report != NULL)
        hotbed_output_write(report, &out, sizeof out);
    hotbed_storages_close(&all);
    return hotbed_error_path(status, path);
}

hotbed_status hotbed_checkpoint_read_blob(
    const char *path, const char *name, void *data, uint64_t *bytes) {
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_read_blob", "path", path));
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_read_blob", "name", name));
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_read_blob", "bytes", bytes));
    return hotbed_error_path(hotbed_blob_read(config.calls, path, name, data, bytes), path);
}

hotbed_status hotbed_checkpoint_check(const char *path) {
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_check", "path", path));
    return hotbed_error_path(hotbed_checkpoint_verify(config.calls, path, NULL), path);
}
