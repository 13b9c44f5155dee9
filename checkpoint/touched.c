/* checkpoint/touched.c - what was changed since a position, for increments. */
#include "checkpoint/touched.h"

#include "base/error.h"
#include "base/sort.h"
#include "base/stream.h"
#include "checkpoint/format/bucket.h"

#include <inttypes.h>

/* Keep the row numbers below the rank's rows, in order; others are nobody's. */
static void keep_rows(uint64_t *numbers, uint64_t *n, uint64_t rows) {
    uint64_t kept = 0;
    for (uint64_t i = 0; i < *n; i++)
        if (numbers[i] < rows)
            numbers[kept++] = numbers[i];
    *n = kept;
    hotbed_sort_words(kept, numbers);
}

hotbed_status hotbed_touched_list(
    hotbed_positions *positions, uint32_t table, const hotbed_change_position *since, uint64_t rows,
    hotbed_stream *stream, hotbed_mark_changes *out) {
    hotbed_table_info info;
    hotbed_key_list keys;
    uint64_t lost = 0;
    *out = (hotbed_mark_changes){.num_changed = 0};
    HOTBED_TRY(hotbed_positions_info(positions, table, &info));
    HOTBED_TRY(hotbed_positions_removed(positions, table, since, stream, &keys, &lost));
    out->erased = keys.keys;
    out->num_erased = keys.n;
    if (lost == UINT64_MAX)
        return hotbed_error_table(
            hotbed_fail_parameter(
                HOTBED_ERR_STATE, "touched",
                "table '%s' was cleared or loaded since the parent, or the parent is another "
                "storage's: save a full checkpoint",
                info.name),
            info.name);
    if (lost != 0)
        return hotbed_fail_table_value(
            HOTBED_ERR_STATE, info.name, "touched", lost,
            "table '%s': %" PRIu64 " keys that have left or were changed since the parent are no "
            "longer remembered: save a full checkpoint, or raise removed_capacity or "
            "changed_capacity",
            info.name, lost);
    HOTBED_TRY(hotbed_positions_changed(positions, table, since, stream, &keys));
    out->changed = keys.keys;
    out->num_changed = keys.n;
    if (info.kind == HOTBED_TABLE_STATIC)
        keep_rows(out->changed, &out->num_changed, rows);
    return HOTBED_OK;
}

static hotbed_status fail_sort(uint64_t n) {
    return hotbed_fail_value(
        HOTBED_ERR_MEMORY, NULL, n, "no memory to sort %" PRIu64 " keys of an increment", n);
}

/* Sort n distinct keys. */
static hotbed_status sort_keys(
    uint64_t n, uint64_t **keys, hotbed_key_type type, uint32_t bits, uint64_t *counts) {
    uint64_t *sorted = hotbed_new((n + 1) * sizeof *sorted);
    if (sorted == NULL)
        return fail_sort(n);
    hotbed_status status = hotbed_bucket_sort(n, *keys, type, bits, sorted, counts);
    if (status != HOTBED_OK) {
        hotbed_delete(sorted);
        return status;
    }
    hotbed_delete(*keys);
    *keys = sorted;
    return HOTBED_OK;
}

hotbed_status hotbed_touched_sort(
    hotbed_key_type type, uint32_t bucket_bits, hotbed_mark_changes *changes) {
    uint64_t *counts = hotbed_new(((size_t)1 << bucket_bits) * sizeof *counts);
    if (counts == NULL)
        return fail_sort(changes->num_changed);
    changes->num_erased = hotbed_distinct_words(changes->num_erased, changes->erased);
    hotbed_status status =
        sort_keys(changes->num_changed, &changes->changed, type, bucket_bits, counts);
    HOTBED_THEN(
        status, sort_keys(changes->num_erased, &changes->erased, type, bucket_bits, counts));
    hotbed_delete(counts);
    return status;
}
