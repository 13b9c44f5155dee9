/* storage/external/external_unsupported.c - hotbed_external_create_rocksdb() in builds without RocksDB. */
#include "base/error.h"
#include "hotbed/external.h"

hotbed_status hotbed_external_create_rocksdb(
    const char *path, const hotbed_rocksdb_options *rocksdb, const hotbed_external_options *options,
    hotbed_external **out) {
    if (out != NULL)
        *out = NULL;
    return hotbed_fail(
        HOTBED_ERR_UNSUPPORTED, "this build has no RocksDB stores: HOTBED_ROCKSDB is OFF");
}
