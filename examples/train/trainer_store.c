/* examples/train/trainer_store.c - --store: rows in a RocksDB database, the tables a cache in front of it. */
#include "examples/train/trainer.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

enum { PATH_BYTES = 4096 };

bool hotbed_trainer_open_store(hotbed_trainer *t, hotbed_storage_options *options) {
    const char *directory = t->options.store;
    hotbed_external_table tables[HOTBED_CRITEO_FIELDS];
    hotbed_external_options external;
    char path[PATH_BYTES];
    if (directory == NULL)
        return true;
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return hotbed_trainer_fail(t, "%s: %s", directory, strerror(errno));
    (void)snprintf(path, sizeof path, "%s/rank-%u-of-%u", directory, t->rank, t->ranks);
    hotbed_external_options_init(&external);
    external.num_tables = options->num_tables;
    external.tables = tables;
    if (!hotbed_trainer_ok(t, hotbed_storage_external_tables(options, tables), "--store") ||
        !hotbed_trainer_ok(
            t, hotbed_external_create_rocksdb(path, NULL, &external, &t->store), "--store"))
        return false;
    options->external = t->store;
    return true;
}

bool hotbed_trainer_flush_store(hotbed_trainer *t) {
    return t->store == NULL ||
           (hotbed_trainer_ok(t, hotbed_storage_flush(t->storage, t->compute), "flush") &&
            hotbed_trainer_sync(t) &&
            hotbed_trainer_ok(t, hotbed_external_flush(t->store), "--store"));
}
