/* checkpoint/storages.c - the storages of one checkpoint, and their tables. */
#include "checkpoint/storages.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/format/manifest.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static hotbed_status check_storages(const char *call, hotbed_storage *const *all, uint32_t n) {
    if (all == NULL || n == 0 || n > HOTBED_STORAGES_MAX)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "storages", n, hotbed_bound(n, 1, HOTBED_STORAGES_MAX),
            "%s: storages has %" PRIu32 " storages, not 1 to %d", call, all == NULL ? 0 : n,
            HOTBED_STORAGES_MAX);
    for (uint32_t i = 0; i < n; i++)
        if (all[i] == NULL)
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "storages", i, "%s: storages[%" PRIu32 "] is NULL", call, i);
    return HOTBED_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Check that no two tables have one name. A storage that is listed twice has each name twice. */
static hotbed_status check_names(const char *call, const hotbed_storages *s) {
    const char **names = hotbed_new(s->num_tables * sizeof *names);
    hotbed_status status = HOTBED_CHECK_MEMORY(names, "%" PRIu32 " names", s->num_tables);
    for (uint32_t i = 0; i < s->num_tables && status == HOTBED_OK; i++) {
        hotbed_table_info info;
        status = hotbed_storages_info(s, i, &info);
        names[i] = info.name;
    }
    if (status == HOTBED_OK)
        qsort(names, s->num_tables, sizeof *names, by_name);
    for (uint32_t i = 1; i < s->num_tables && status == HOTBED_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = hotbed_fail_table(
                HOTBED_ERR_ARGUMENT, names[i],
                "%s: two tables have the name '%s'; a checkpoint finds its tables by name", call,
                names[i]);
    hotbed_delete(names);
    return status;
}

hotbed_status hotbed_storages_open(
    const char *call, hotbed_storage *const *all, uint32_t n, hotbed_storages *out) {
    *out = (hotbed_storages){.n = n, .all = all};
    HOTBED_TRY(check_storages(call, all, n));
    for (uint32_t i = 0; i < n; i++)
        out->num_tables += hotbed_storage_num_tables(all[i]);
    out->tables = hotbed_new(out->num_tables * sizeof *out->tables);
    HOTBED_TRY_MEMORY(out->tables, "%" PRIu32 " tables", out->num_tables);
    for (uint32_t i = 0, at = 0; i < n; i++)
        for (uint32_t t = 0; t < hotbed_storage_num_tables(all[i]); t++)
            out->tables[at++] = (hotbed_storages_table){.storage = i, .number = t};
    return check_names(call, out);
}

void hotbed_storages_close(hotbed_storages *s) {
    hotbed_delete(s->tables);
    *s = (hotbed_storages){.n = 0};
}
