/* serve/lookup.h - the answer to one lookup, from one cut. */
#pragma once

#include "hotbed/read.h"
#include "serve/version.h"

/* Where the rows of a lookup come from. Of the tables, `dim`, `encoding` and `missing` are used. */
typedef struct hotbed_lookup_source {
    const hotbed_version_table *tables;
    uint32_t num_tables;
    const void *self; /* first argument of `find` */
    /* Find the encoded rows of n keys, at most HOTBED_FIND_MOST, neighbours in the lookup's keys; NULL for
     * a missing key. */
    void (*find)(
        const void *self, uint32_t table, uint32_t n, const uint64_t *keys,
        const unsigned char **rows);
} hotbed_lookup_source;

/* Check a lookup. Errors: ARGUMENT, RANGE. */
hotbed_status hotbed_lookup_check(const hotbed_lookup_source *view, const hotbed_lookup *lookup);

/* Answer a lookup that was checked. Returns the number of missing keys. */
uint64_t hotbed_lookup_answer(const hotbed_lookup_source *view, const hotbed_lookup *lookup);
