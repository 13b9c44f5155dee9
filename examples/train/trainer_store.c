/* examples/train/trainer_store.c - --store: rows in a RocksDB database, and tables as a cache. */
#include "examples/train/trainer.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

enum { PATH_BYTES = 4096 };

bool hotbed_run_open_store(hotbed_run *t, hotbed_storage_options *options) {
    const char *directory = t->options.store;
    hotbed_external_table tables[HOTBED_CRITEO_FIELDS];
    hotbed_external_options external = {.size = sizeof external};
    char path[PATH_BYTES];
    if (directory == NULL)
        return true;
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return hotbed_run_fail(t, "%s: %s", directory, strerror(errno));
    (void)snprintf(path, sizeof path, "%s/rank-%u-of-%u", directory, t->rank, t->ranks);
    external.num_tables = options->num_tables;
    external.tables = tables;
    if (!hotbed_run_ok(t, hotbed_storage_external_tables(options, tables), "--store") ||
        !hotbed_run_ok(
            t, hotbed_external_create_rocksdb(path, NULL, &external, &t->store), "--store"))
        return false;
    options->external = t->store;
    return true;
}

bool hotbed_run_flush_store(hotbed_run *t) {
    return t->store == NULL ||
           (hotbed_run_ok(t, hotbed_storage_flush(t->storage, t->stream), "flush") &&
            hotbed_run_sync(t) && hotbed_run_ok(t, hotbed_external_flush(t->store), "--store"));
}
