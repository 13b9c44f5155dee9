/* serve/redis_unsupported.c - the calls of hotbed/redis.h in a build without HOTBED_REDIS. */
#include "hotbed/redis.h"

#include "base/unsupported.h"

static hotbed_status unsupported(void) {
    return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "this build has no Redis: HOTBED_REDIS is OFF");
}

HOTBED_UNSUPPORTED_OUT(
    hotbed_redis_sink_create, const hotbed_redis_options *options, hotbed_redis_sink **out)
HOTBED_UNSUPPORTED_VOID(hotbed_redis_sink_destroy, hotbed_redis_sink *sink)
HOTBED_UNSUPPORTED(
    hotbed_redis_sink_file, void *sink, const char *name, const void *data, uint64_t bytes)
HOTBED_UNSUPPORTED_OUT(
    hotbed_redis_reader_open, const hotbed_redis_options *options, hotbed_redis_reader **out)
HOTBED_UNSUPPORTED_VALUE(
    uint32_t, 0, hotbed_redis_reader_num_tables, const hotbed_redis_reader *reader)
HOTBED_UNSUPPORTED(
    hotbed_redis_reader_table_info, hotbed_redis_reader *reader, uint32_t table,
    hotbed_reader_table *out)
HOTBED_UNSUPPORTED_VOID(hotbed_redis_reader_close, hotbed_redis_reader *reader)
HOTBED_UNSUPPORTED(
    hotbed_redis_reader_find, hotbed_redis_reader *reader, const char *name, uint32_t *table)
HOTBED_UNSUPPORTED(
    hotbed_redis_reader_lookup, hotbed_redis_reader *reader, const hotbed_lookup *lookups,
    uint32_t n, uint64_t *version)
HOTBED_UNSUPPORTED(hotbed_redis_reader_stats, hotbed_redis_reader *reader, hotbed_redis_stats *out)
HOTBED_UNSUPPORTED(
    hotbed_redis_reader_metrics, hotbed_redis_reader *reader, char *text, uint64_t capacity,
    uint64_t *bytes)
