/* checkpoint/mark.c - keys and digests of the rows that were saved. */
#include "checkpoint/mark.h"

#include "base/check.h"
#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/format/bucket_core.h"

#include <inttypes.h>

hotbed_status hotbed_checkpoint_mark_create(hotbed_checkpoint_mark **out) {
    HOTBED_TRY(hotbed_check_pointer_of("checkpoint_mark_create", "out", out));
    *out = hotbed_new(sizeof **out);
    return HOTBED_CHECK_MEMORY(*out, "a mark");
}

void hotbed_checkpoint_mark_destroy(hotbed_checkpoint_mark *mark) {
    if (mark != NULL) {
        hotbed_marked_clear(&mark->last);
        hotbed_marked_clear(&mark->before);
    }
    hotbed_delete(mark);
}

hotbed_status hotbed_marked_reserve(uint32_t num_tables, hotbed_marked *out) {
    *out = (hotbed_marked){.num_tables = num_tables};
    out->tables = hotbed_new(num_tables * sizeof *out->tables);
    return HOTBED_CHECK_MEMORY(out->tables, "marks of %" PRIu32 " tables", num_tables);
}

hotbed_status hotbed_mark_rows(hotbed_mark_table *table, uint64_t rows, uint64_t *keys) {
    table->rows = rows;
    table->keys = keys;
    table->digests = hotbed_new(rows * sizeof *table->digests);
    return HOTBED_CHECK_MEMORY(table->digests, "marks of %" PRIu64 " rows", rows);
}

void hotbed_marked_clear(hotbed_marked *marked) {
    for (uint32_t i = 0; marked->tables != NULL && i < marked->num_tables; i++) {
        hotbed_delete(marked->tables[i].keys);
        hotbed_delete(marked->tables[i].digests);
    }
    hotbed_delete(marked->tables);
    *marked = (hotbed_marked){.num_tables = 0};
}

const hotbed_marked *hotbed_mark_find(const hotbed_checkpoint_mark *mark, hotbed_digest id) {
    if (mark->last.tables != NULL && hotbed_digest_equal(mark->last.id, id))
        return &mark->last;
    if (mark->before.tables != NULL && hotbed_digest_equal(mark->before.id, id))
        return &mark->before;
    return NULL;
}

void hotbed_mark_push(hotbed_checkpoint_mark *mark, hotbed_mark_update *update) {
    if (mark == NULL)
        return;
    if (update->base == &mark->before) {
        hotbed_marked_clear(&mark->last);
    } else {
        hotbed_marked_clear(&mark->before);
        mark->before = mark->last;
    }
    mark->last = update->next;
    update->next = (hotbed_marked){.num_tables = 0};
}

void hotbed_mark_end(
    hotbed_checkpoint_mark *mark, hotbed_mark_update *update, hotbed_status status) {
    if (status == HOTBED_OK && mark != NULL) {
        hotbed_mark_push(mark, update);
        hotbed_marked_clear(&mark->before);
    }
    hotbed_marked_clear(&update->next);
}

/* Compare key i of a with key k of b in canonical order: below 0, 0, or above 0. The end of a table
 * is after all keys. */
static int order(
    const hotbed_mark_table *a, uint64_t i, const hotbed_mark_table *b, uint64_t k, uint32_t bits) {
    if (i == a->rows || k == b->rows)
        return i == a->rows ? k < b->rows : -1;
    uint64_t x = a->keys[i], y = b->keys[k];
    uint64_t p = hotbed_logical_bucket(x, bits), q = hotbed_logical_bucket(y, bits);
    if (p != q)
        return p < q ? -1 : 1;
    return x == y ? 0 : x < y ? -1 : 1;
}

static void compare_keys(
    const hotbed_mark_table *then, const hotbed_mark_table *now, uint32_t bits,
    hotbed_mark_changes *out) {
    for (uint64_t i = 0, k = 0; i < then->rows || k < now->rows;) {
        int side = order(then, i, now, k, bits);
        if (side < 0) {
            out->erased[out->num_erased++] = then->keys[i++];
            continue;
        }
        bool same = side == 0 && hotbed_digest_equal(then->digests[i], now->digests[k]);
        if (!same)
            out->changed[out->num_changed++] = now->keys[k];
        i += side == 0;
        k++;
    }
}

hotbed_status hotbed_mark_compare(
    const hotbed_mark_table *then, const hotbed_mark_table *now, uint32_t bucket_bits,
    hotbed_row_numbers numbers, hotbed_mark_changes *out) {
    *out = (hotbed_mark_changes){.num_changed = 0};
    if (then->position.epoch != 0)
        return hotbed_fail(
            HOTBED_ERR_STATE, "the mark has positions in the changes, and no digests, because the "
                              "save before had the option "
                              "touched: set it, or save a full checkpoint");
    if ((then->keys == NULL) != (now->keys == NULL))
        return hotbed_fail(
            HOTBED_ERR_STATE, "the mark belongs to another storage: kinds of tables differ");
    out->changed = hotbed_new(now->rows * sizeof *out->changed);
    out->erased = hotbed_new(then->rows * sizeof *out->erased);
    if (out->changed == NULL || out->erased == NULL) {
        hotbed_delete(out->changed);
        hotbed_delete(out->erased);
        *out = (hotbed_mark_changes){.num_changed = 0};
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory for the changes of %" PRIu64 " rows", now->rows);
    }
    if (now->keys != NULL) {
        compare_keys(then, now, bucket_bits, out);
        return HOTBED_OK;
    }
    for (uint64_t i = 0; i < now->rows; i++)
        if (i >= then->rows || !hotbed_digest_equal(then->digests[i], now->digests[i]))
            out->changed[out->num_changed++] = hotbed_numbers_at(numbers, i);
    return HOTBED_OK;
}
