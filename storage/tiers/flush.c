/* storage/tiers/flush.c - writes the changed rows of a cache to their backing locations. */
#include "storage/external_tier.h"
#include "storage/storage.h"

hotbed_status hotbed_storage_flush_table(
    hotbed_storage *storage, uint32_t table, bool drop, hotbed_stream *stream) {
    if (storage->external != NULL)
        return hotbed_storage_flush_external(storage, table, drop, stream);
    if (storage->tiers != HOTBED_TIERS_CACHE)
        return HOTBED_OK;
    hotbed_flush_args args = {
        .table = storage->tables[table].view,
        .index = storage->index,
        .tally = storage->tallies + table,
        .drop = drop,
    };
    return storage->kernels.tier->flush(&args, stream);
}

hotbed_status hotbed_storage_flush(hotbed_storage *storage, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    for (uint32_t t = 0; t < storage->num_tables; t++)
        HOTBED_TRY(hotbed_storage_flush_table(storage, t, false, stream));
    return HOTBED_OK;
}

hotbed_status hotbed_storage_reset(hotbed_storage *storage, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    HOTBED_TRY(hotbed_storage_check_held(__atomic_load_n(&storage->held, __ATOMIC_RELAXED)));
    for (uint32_t t = 0; t < storage->num_tables; t++)
        HOTBED_TRY(hotbed_storage_flush_table(storage, t, true, stream));
    return HOTBED_OK;
}
