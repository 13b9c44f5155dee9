/* serve/lookup.c - rows are searched in windows of keys, and summed in the order of the bag. */
#include "serve/lookup.h"

#include "base/check.h"
#include "base/error.h"
#include "serve/encode.h"

#include <inttypes.h>
#include <string.h>

static hotbed_status check_offsets(const hotbed_lookup *l) {
    for (uint64_t b = 0; b <= l->batch_size; b++) {
        int64_t least = b == 0 ? 0 : l->offsets[b - 1];
        if (l->offsets[b] < least || (uint64_t)l->offsets[b] > l->num_keys)
            return hotbed_fail_limit(
                HOTBED_ERR_RANGE, "offsets", l->offsets[b],
                l->offsets[b] < least ? (double)least : (double)l->num_keys,
                "reader_lookup: offsets[%" PRIu64 "] is %" PRId64 ", not in %" PRId64
                " .. %" PRIu64,
                b, l->offsets[b], least, l->num_keys);
    }
    return HOTBED_OK;
}

hotbed_status hotbed_lookup_check(const hotbed_lookup_source *v, const hotbed_lookup *l) {
    HOTBED_TRY(hotbed_check_below("table", l->table, v->num_tables));
    HOTBED_TRY(hotbed_check_choice("pooling", l->pooling, HOTBED_POOL_NONE, HOTBED_POOL_MEAN));
    uint32_t dim = v->tables[l->table].dim;
    bool pooled = l->pooling != HOTBED_POOL_NONE;
    HOTBED_TRY(hotbed_check_array("keys", l->keys, l->num_keys));
    HOTBED_TRY(hotbed_check_array("output", l->output, pooled ? l->batch_size : l->num_keys));
    if (pooled)
        HOTBED_TRY(hotbed_check_pointer("offsets", l->offsets));
    if (l->stride != 0 && l->stride < dim)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "stride", l->stride, dim,
            "reader_lookup: stride %" PRIu64 " is below the dim of the table, %" PRIu32, l->stride,
            dim);
    return pooled ? check_offsets(l) : HOTBED_OK;
}

/* The rows of some of the keys. */
typedef struct window {
    uint64_t first, end;
    const unsigned char *rows[HOTBED_FIND_MOST];
} window;

/* Move the window to key number i; `end` is the end of the lookup's keys. */
static void slide(
    const hotbed_lookup_source *v, const hotbed_lookup *l, uint64_t i, uint64_t end, window *w) {
    w->first = i;
    w->end = end - i < HOTBED_FIND_MOST ? end : i + HOTBED_FIND_MOST;
    v->find(v->self, l->table, (uint32_t)(w->end - i), (const uint64_t *)l->keys + i, w->rows);
}

static void fill(float *out, uint32_t dim, float value) {
    for (uint32_t e = 0; e < dim; e++)
        out[e] = value;
}

static uint64_t answer_keys(
    const hotbed_lookup_source *v, const hotbed_lookup *l, uint64_t stride) {
    const hotbed_version_table *t = &v->tables[l->table];
    uint64_t missing = 0;
    window w = {.end = 0};
    for (uint64_t i = 0; i < l->num_keys; i++) {
        if (i == w.end)
            slide(v, l, i, l->num_keys, &w);
        const unsigned char *row = w.rows[i - w.first];
        missing += row == NULL;
        if (row == NULL)
            fill(l->output + i * stride, t->dim, t->missing);
        else
            hotbed_row_decode(t->encoding, t->dim, row, l->output + i * stride);
    }
    return missing;
}

static void add(
    const hotbed_version_table *t, const unsigned char *row, const float *weight, float *sum) {
    if (row == NULL) {
        const float value = weight == NULL ? t->missing : *weight * t->missing;
        for (uint32_t e = 0; e < t->dim; e++)
            sum[e] += value;
    } else if (weight == NULL) {
        hotbed_row_add_plain(t->encoding, t->dim, row, sum);
    } else {
        hotbed_row_add(t->encoding, t->dim, row, *weight, sum);
    }
}

static uint64_t answer_bags(
    const hotbed_lookup_source *v, const hotbed_lookup *l, uint64_t stride) {
    const hotbed_version_table *t = &v->tables[l->table];
    uint64_t missing = 0, end = (uint64_t)l->offsets[l->batch_size];
    window w = {.end = (uint64_t)l->offsets[0]};
    for (uint64_t b = 0; b < l->batch_size; b++) {
        float *sum = l->output + b * stride;
        uint64_t first = (uint64_t)l->offsets[b], last = (uint64_t)l->offsets[b + 1];
        fill(sum, t->dim, 0.0F);
        for (uint64_t i = first; i < last; i++) {
            if (i == w.end)
                slide(v, l, i, end, &w);
            missing += w.rows[i - w.first] == NULL;
            add(t, w.rows[i - w.first], l->weights == NULL ? NULL : &l->weights[i], sum);
        }
        if (l->pooling == HOTBED_POOL_MEAN && last > first)
            for (uint32_t e = 0; e < t->dim; e++)
                sum[e] = sum[e] / (float)(last - first);
    }
    return missing;
}

uint64_t hotbed_lookup_answer(const hotbed_lookup_source *v, const hotbed_lookup *l) {
    uint64_t stride = l->stride == 0 ? v->tables[l->table].dim : l->stride;
    return l->pooling == HOTBED_POOL_NONE ? answer_keys(v, l, stride) : answer_bags(v, l, stride);
}
