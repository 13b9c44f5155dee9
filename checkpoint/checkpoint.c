/* checkpoint/checkpoint.c - the public calls: arguments, and the system's own files. */
#include "checkpoint/checkpoint.h"

#include "base/error.h"
#include "base/options.h"
#include "checkpoint/bucket_core.h"

#include <inttypes.h>
#include <stddef.h>

static const hotbed_checkpoint_config config = {
    .calls = &hotbed_io_system, .bucket_bits = HOTBED_BUCKET_BITS};

static const uint64_t extra_most = (uint64_t)1 << 30;

static hotbed_status read_options(
    const hotbed_checkpoint_options *options, hotbed_checkpoint_options *out) {
    HOTBED_TRY(hotbed_options_read(
        out, sizeof *out, offsetof(hotbed_checkpoint_options, step), options,
        "hotbed_checkpoint_options"));
    if (out->extra == NULL && out->extra_bytes > 0)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "checkpoint: extra is NULL, and has %" PRIu64 " bytes",
            out->extra_bytes);
    if (out->extra_bytes > extra_most)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "checkpoint: extra has %" PRIu64 " bytes, at most %" PRIu64,
            out->extra_bytes, extra_most);
    return HOTBED_OK;
}

hotbed_status hotbed_checkpoint_save(
    const char *path, hotbed_storage *storage, const hotbed_checkpoint_options *options,
    hotbed_stream *stream) {
    hotbed_checkpoint_options read;
    if (path == NULL || storage == NULL || options == NULL || stream == NULL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "checkpoint_save: path, storage, options or stream is NULL");
    HOTBED_TRY(read_options(options, &read));
    return hotbed_checkpoint_write(&config, path, storage, &read, stream);
}

hotbed_status hotbed_checkpoint_load(
    const char *path, hotbed_storage *storage, uint64_t *step, void *extra, uint64_t *extra_bytes,
    hotbed_stream *stream) {
    if (path == NULL || storage == NULL || stream == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "checkpoint_load: path, storage or stream is NULL");
    if (extra != NULL && extra_bytes == NULL)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "checkpoint_load: extra without extra_bytes, its room");
    return hotbed_checkpoint_read(&config, path, storage, step, extra, extra_bytes, stream);
}
