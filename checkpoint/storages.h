/* checkpoint/storages.h - the storages of one checkpoint, and their tables, numbered through. */
#pragma once

#include "hotbed/storage.h"

/* A table: its storage, and its number there. */
typedef struct hotbed_storages_table {
    uint32_t storage, number;
} hotbed_storages_table;

/* The tables of the first storage come first, in order, then the tables of the second, and so on. */
typedef struct hotbed_storages {
    uint32_t n, num_tables;
    hotbed_storage *const *all;    /* [n], borrowed */
    hotbed_storages_table *tables; /* [num_tables] */
} hotbed_storages;

/* List the tables. The caller must call hotbed_storages_close(), even after an error. Errors:
 * ARGUMENT (no storage, a NULL, the same storage twice, two tables of one name), MEMORY. */
hotbed_status hotbed_storages_open(
    const char *call, hotbed_storage *const *all, uint32_t n, hotbed_storages *out);

void hotbed_storages_close(hotbed_storages *storages); /* {0} is allowed */

static inline hotbed_storage *hotbed_storages_of(const hotbed_storages *s, uint32_t table) {
    return s->all[s->tables[table].storage];
}

static inline uint32_t hotbed_storages_number(const hotbed_storages *s, uint32_t table) {
    return s->tables[table].number;
}

/* Describe a table. */
static inline hotbed_status hotbed_storages_info(
    const hotbed_storages *s, uint32_t table, hotbed_table_info *info) {
    *info = (hotbed_table_info){.size = sizeof *info};
    return hotbed_storage_table(
        hotbed_storages_of(s, table), hotbed_storages_number(s, table), info);
}
