/* serve/unsupported.c - the public calls in a build without HOTBED_SERVE. */
#include "base/unsupported.h"
#include "hotbed/read.h"
#include "serve/base.h"

static hotbed_status unsupported(void) {
    return hotbed_fail(
        HOTBED_ERR_UNSUPPORTED, "this build has no publisher and no reader: HOTBED_SERVE is OFF");
}

HOTBED_UNSUPPORTED_VALUE(const char *, NULL, hotbed_encoding_name, hotbed_encoding encoding)
HOTBED_UNSUPPORTED(
    hotbed_base_write, const char *directory, const hotbed_base_table *tables, uint32_t n,
    hotbed_encoding encoding, uint64_t step, hotbed_base_next next, void *context, uint64_t *number)
HOTBED_UNSUPPORTED_OUT(
    hotbed_publisher_create, const char *directory, hotbed_storage *const *storages,
    uint32_t num_storages, const hotbed_publish_options *options, hotbed_stream *stream,
    hotbed_publisher **out)
HOTBED_UNSUPPORTED_VOID(hotbed_publisher_destroy, hotbed_publisher *publisher)
HOTBED_UNSUPPORTED(
    hotbed_publisher_publish, hotbed_publisher *publisher, uint64_t step, hotbed_stream *stream)
HOTBED_UNSUPPORTED(hotbed_publisher_wait, hotbed_publisher *publisher)
HOTBED_UNSUPPORTED_VALUE(bool, false, hotbed_publisher_busy, const hotbed_publisher *publisher)
HOTBED_UNSUPPORTED(
    hotbed_publisher_stats, const hotbed_publisher *publisher, hotbed_publish_stats *out)
HOTBED_UNSUPPORTED_OUT(
    hotbed_reader_open, const char *directory, const hotbed_reader_options *options,
    hotbed_reader **out)
HOTBED_UNSUPPORTED_VOID(hotbed_reader_close, hotbed_reader *reader)
HOTBED_UNSUPPORTED(hotbed_reader_poll, hotbed_reader *reader)
HOTBED_UNSUPPORTED(
    hotbed_reader_lookup, hotbed_reader *reader, const hotbed_lookup *lookups, uint32_t n,
    uint64_t *version)
HOTBED_UNSUPPORTED(
    hotbed_reader_fill, hotbed_reader *reader, hotbed_storage *const *storages, uint32_t n,
    hotbed_stream *stream, uint64_t *version)
HOTBED_UNSUPPORTED_VALUE(uint32_t, 0, hotbed_reader_num_tables, const hotbed_reader *reader)
HOTBED_UNSUPPORTED(
    hotbed_reader_find, const hotbed_reader *reader, const char *name, uint32_t *table)
HOTBED_UNSUPPORTED(
    hotbed_reader_table_info, hotbed_reader *reader, uint32_t table, hotbed_reader_table *out)
HOTBED_UNSUPPORTED(hotbed_reader_get_stats, hotbed_reader *reader, hotbed_reader_stats *out)
HOTBED_UNSUPPORTED(hotbed_reader_health, hotbed_reader *reader, double most_seconds)
HOTBED_UNSUPPORTED(
    hotbed_reader_metrics, hotbed_reader *reader, char *text, uint64_t capacity, uint64_t *bytes)
