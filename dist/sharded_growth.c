/* dist/sharded_growth.c - when the tables of a collection grow, and what growth is ordered with. */
#include "dist/sharded.h"

#include "base/check.h"
#include "hotbed/storage.h"

enum { PREFETCHES_A_POLL = 16 };

hotbed_status hotbed_sharded_growth_create(hotbed_sharded *sharded, hotbed_stream *stream) {
    for (uint32_t t = 0; t < sharded->num_tables; t++)
        if (sharded->tables[t].max_capacity > sharded->tables[t].capacity)
            sharded->grows = true;
    if (!sharded->grows)
        return HOTBED_OK;
    if (sharded->options.growth_every == 0)
        sharded->options.growth_every = PREFETCHES_A_POLL;
    pthread_mutex_init(&sharded->growth_lock, NULL);
    return hotbed_event_create(stream, &sharded->searched);
}

void hotbed_sharded_growth_destroy(hotbed_sharded *sharded) {
    if (!sharded->grows)
        return;
    hotbed_event_destroy(sharded->searched);
    pthread_mutex_destroy(&sharded->growth_lock);
}

hotbed_status hotbed_sharded_search_begin(hotbed_sharded *sharded, hotbed_stream *stream) {
    if (!sharded->grows)
        return HOTBED_OK;
    pthread_mutex_lock(&sharded->growth_lock);
    hotbed_status status = hotbed_stream_wait(stream, sharded->searched);
    if (status != HOTBED_OK)
        pthread_mutex_unlock(&sharded->growth_lock);
    return status;
}

hotbed_status hotbed_sharded_search_end(
    hotbed_sharded *sharded, hotbed_status status, hotbed_stream *stream) {
    if (!sharded->grows)
        return status;
    hotbed_status marked = hotbed_event_record(sharded->searched, stream);
    pthread_mutex_unlock(&sharded->growth_lock);
    return status != HOTBED_OK ? status : marked;
}

hotbed_status hotbed_sharded_poll_growth(
    hotbed_sharded *sharded, hotbed_stream *stream, uint32_t *grown) {
    hotbed_status status = HOTBED_OK;
    uint32_t sum = 0;
    if (grown != NULL)
        *grown = 0;
    HOTBED_TRY(hotbed_check_pointer("sharded", sharded));
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    HOTBED_TRY(hotbed_stream_may_wait(stream)); /* polling never blocks, but cannot be recorded */
    HOTBED_TRY(hotbed_sharded_search_begin(sharded, stream));
    for (uint32_t g = 0; g < sharded->num_groups && status == HOTBED_OK; g++) {
        uint32_t n;
        status = hotbed_storage_poll_growth(sharded->groups[g].lookup, stream, &n);
        sum += n;
    }
    status = hotbed_sharded_search_end(sharded, status, stream);
    if (grown != NULL)
        *grown = sum;
    return status;
}

hotbed_status hotbed_sharded_growth_due(hotbed_sharded *sharded, hotbed_stream *stream) {
    if (!sharded->grows || hotbed_stream_recording(stream) ||
        ++sharded->unpolled < sharded->options.growth_every)
        return HOTBED_OK;
    sharded->unpolled = 0;
    return hotbed_sharded_poll_growth(sharded, stream, NULL);
}
