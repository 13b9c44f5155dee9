/* serve/redis_unsupported.c - the calls of hotbed/redis.h in a build without HOTBED_REDIS. */
#include "hotbed/redis.h"

#include "base/error.h"

static hotbed_status unsupported(void) {
    return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "this build has no Redis: HOTBED_REDIS is OFF");
}

hotbed_status hotbed_redis_sink_create(
    const hotbed_redis_options *options, hotbed_redis_sink **out) {
    return unsupported();
}

void hotbed_redis_sink_destroy(hotbed_redis_sink *sink) {
}

hotbed_status hotbed_redis_sink_file(
    void *sink, const char *name, const void *data, uint64_t bytes) {
    return unsupported();
}

hotbed_status hotbed_redis_reader_open(
    const hotbed_redis_options *options, hotbed_redis_reader **out) {
    return unsupported();
}

uint32_t hotbed_redis_reader_num_tables(const hotbed_redis_reader *reader) {
    return 0;
}

hotbed_status hotbed_redis_reader_table_info(
    hotbed_redis_reader *reader, uint32_t table, hotbed_reader_table *out) {
    return unsupported();
}

void hotbed_redis_reader_close(hotbed_redis_reader *reader) {
}

hotbed_status hotbed_redis_reader_find(
    hotbed_redis_reader *reader, const char *name, uint32_t *table) {
    return unsupported();
}

hotbed_status hotbed_redis_reader_lookup(
    hotbed_redis_reader *reader, const hotbed_lookup *lookups, uint32_t n, uint64_t *version) {
    return unsupported();
}

hotbed_status hotbed_redis_reader_stats(hotbed_redis_reader *reader, hotbed_redis_stats *out) {
    return unsupported();
}

hotbed_status hotbed_redis_reader_metrics(
    hotbed_redis_reader *reader, char *text, uint64_t capacity, uint64_t *bytes) {
    return unsupported();
}
