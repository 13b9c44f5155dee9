/* storage/rows/export_slots.c - exports the selected slots of a window: workspace and passes. */
#include "base/carve.h"
#include "base/sort.h"
#include "base/stream.h"
#include "storage/storage.h"

/* Place the arrays of `args` and the scratch memory of the prefix sums in the stream's
 * workspace. */
static hotbed_status take_workspace(
    hotbed_export_args *args, void **scratch, size_t *scratch_bytes, hotbed_stream *stream) {
    hotbed_carve carve = {NULL, 0};
    void *memory = NULL;
    *scratch_bytes = hotbed_scan_scratch(hotbed_stream_backend(stream), args->groups + 1);
    for (int pass = 0; pass < 2; pass++) {
        carve.used = 0;
        args->bits = hotbed_carve_take(&carve, args->groups * sizeof *args->bits);
        args->starts = hotbed_carve_take(&carve, (args->groups + 1) * sizeof *args->starts);
        *scratch = hotbed_carve_take(&carve, *scratch_bytes);
        if (pass == 0)
            HOTBED_TRY(hotbed_stream_workspace(stream, carve.used, &memory));
        carve.base = memory;
    }
    return HOTBED_OK;
}

hotbed_status hotbed_export_slots(
    const hotbed_storage *storage, hotbed_export_args *args, hotbed_stream *stream) {
    void *scratch;
    size_t scratch_bytes;
    args->groups = (args->slots + HOTBED_EXPORT_GROUP - 1) / HOTBED_EXPORT_GROUP;
    HOTBED_TRY(take_workspace(args, &scratch, &scratch_bytes, stream));
    HOTBED_TRY(storage->kernels.exports->choose(args, stream));
    HOTBED_TRY(
        hotbed_scan(args->groups + 1, args->starts, args->starts, scratch, scratch_bytes, stream));
    return storage->kernels.exports->write(args, stream);
}
