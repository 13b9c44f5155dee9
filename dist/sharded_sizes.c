/* dist/sharded_sizes.c - the plan and the sizes of a collection, where they are not given. */
#include "dist/sharded.h"

#include "dist/comm.h"

hotbed_status hotbed_sharded_probe_windows(hotbed_comm *comm, hotbed_stream *stream) {
    hotbed_window *window = NULL;
    if (comm->windows != HOTBED_WINDOWS_UNKNOWN)
        return HOTBED_OK;
    if (hotbed_comm_size(comm) == 1 || comm->ops->window_create == NULL) {
        comm->windows = HOTBED_WINDOWS_FAIL;
        return HOTBED_OK;
    }
    /* All ranks get the same result: a window cannot reach a rank outside of the domain. */
    hotbed_status status = hotbed_window_create(comm, 16, stream, &window);
    hotbed_window_destroy(window);
    if (status != HOTBED_OK && status != HOTBED_ERR_UNSUPPORTED)
        return status;
    comm->windows = status == HOTBED_OK ? HOTBED_WINDOWS_WORK : HOTBED_WINDOWS_FAIL;
    return HOTBED_OK;
}

hotbed_status hotbed_sharded_resize(
    hotbed_sharded *sharded, uint32_t max_batch_size, uint64_t max_keys, uint64_t capacity) {
    if (sharded == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "sharded is NULL");
    if (sharded->num_contexts > 0)
        return hotbed_fail(
            HOTBED_ERR_STATE, "the collection has %u contexts; destroy them before it is resized",
            sharded->num_contexts);
    return hotbed_sharded_set_sizes(sharded, max_batch_size, max_keys, capacity);
}
