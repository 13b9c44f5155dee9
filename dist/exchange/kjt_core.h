/* dist/exchange/kjt_core.h - rows of a keyed jagged tensor, and features picked from it. */
#pragma once

#include "base/fault.h"
#include "storage/step/step_core.h"

/* A batch as kernels see it. */
typedef struct hotbed_kjt_view {
    const uint64_t *keys;   /* [bound] */
    const int64_t *lengths; /* [rows], or NULL */
    const int64_t *offsets; /* [rows + 1], or NULL; if lengths is NULL too: one key per row */
    const float *weights;   /* [bound], or NULL */
    uint64_t rows, bound;
    uint32_t *starts; /* [rows + 1] first key of each row, from lengths or offsets */
    uint32_t *bad; /* one word; 1: lengths or offsets are invalid, and `starts` must not be used */
    struct hotbed_fault *faults;
    uint32_t samples; /* of each feature; 0: they differ */
} hotbed_kjt_view;

/* Some features of a batch, each with batch_size rows: rows beyond the feature's own samples are
 * empty. */
typedef struct hotbed_pick_view {
    hotbed_kjt_view kjt;
    /* [num_features] their numbers in the batch; NULL: all features in order */
    const uint32_t *features;
    /* [features of the batch + 1] first row of each feature; NULL: each has `stride` rows */
    const uint32_t *bases;
    uint32_t stride;
    uint32_t num_features, batch_size;
    uint32_t *starts;  /* [num_features * batch_size + 1] */
    uint64_t *keys;    /* [bound] in the order of the picked rows */
    uint32_t *sources; /* [bound] position of each key in the batch */
    float *weights;    /* [bound]; NULL: not needed */
} hotbed_pick_view;

/* The first key of each table, whose features are adjacent and have batch_size rows each. */
typedef struct hotbed_table_starts_view {
    const uint32_t *starts; /* first key of each row; NULL: each row has one key */
    const uint32_t *bad;    /* one word; not 0: there are no keys. NULL: the rows are valid */
    uint32_t batch_size, num_tables;
    const uint32_t *features; /* [num_tables + 1] first feature of each table */
    uint32_t *table_starts;   /* [num_tables + 1] out */
} hotbed_table_starts_view;

HOTBED_HD void hotbed_table_start(const hotbed_table_starts_view *v, uint64_t t) {
    uint32_t row = v->features[t] * v->batch_size;
    if (v->bad != NULL && *v->bad != 0)
        v->table_starts[t] = 0;
    else
        v->table_starts[t] = v->starts == NULL ? row : v->starts[row];
}

/* The feature of key number `at`, which is in one of the features [low, high) of `batch_size` rows
 * each: hotbed_part_of() for every batch_size-th start. */
HOTBED_HD uint32_t hotbed_feature_in(
    const uint32_t *starts, uint32_t low, uint32_t high, uint32_t batch_size, uint32_t at) {
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (starts[(uint64_t)middle * batch_size] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#define HOTBED_NO_ROW UINT32_MAX

HOTBED_HD void hotbed_kjt_bad(
    const hotbed_kjt_view *k, hotbed_error_cause what, uint64_t row, int64_t value) {
    hotbed_fault_latch(k->faults, HOTBED_ERR_RANGE, what, k->samples, row, (uint64_t)value);
    (void)hotbed_cas_relaxed_u32(k->bad, 0, 1);
}

/* Return the length of row r by its offsets; -1 if the offset at its end is invalid. If the offset
 * at its start is invalid, the length is 0, since the row before reports that offset. */
HOTBED_HD int64_t hotbed_kjt_between(const hotbed_kjt_view *k, uint64_t r) {
    int64_t begin = k->offsets[r], end = k->offsets[r + 1], bound = (int64_t)k->bound;
    if (r == 0 && begin != 0)
        hotbed_kjt_bad(k, HOTBED_CAUSE_FIRST_OFFSET, 0, begin);
    if (begin < 0 || begin > bound)
        return 0;
    return end < begin || end > bound ? -1 : end - begin;
}

/* Write row r of `starts`: where the row begins or, if the batch has lengths, its length, and 0 past
 * the last row, which a scan turns into starts. */
HOTBED_HD void hotbed_kjt_length(const hotbed_kjt_view *k, uint64_t r) {
    const bool last = r == k->rows;
    int64_t length = last ? 0 : 1, begin = (int64_t)r;
    if (k->offsets != NULL) {
        length = last ? 0 : hotbed_kjt_between(k, r);
        begin = k->offsets[r];
    } else if (k->lengths != NULL) {
        length = last ? 0 : k->lengths[r];
        begin = length;
    }
    if (length < 0 || length > (int64_t)k->bound)
        hotbed_kjt_bad(k, HOTBED_CAUSE_OFFSET, r, k->offsets != NULL ? k->offsets[r + 1] : length);
    k->starts[r] = begin >= 0 && begin <= (int64_t)k->bound ? (uint32_t)begin : 0;
}

/* Whether row r ends within the keys; each length is at most 2^30, so a sum that wraps around
 * descends. */
HOTBED_HD void hotbed_kjt_check_row(const hotbed_kjt_view *k, uint64_t r) {
    uint32_t end = k->starts[r + 1];
    if (end < k->starts[r] || end > k->bound)
        hotbed_kjt_bad(k, HOTBED_CAUSE_OFFSET, r, (int64_t)end);
}

/* The first row of feature number f of the batch, and one past its last. */
HOTBED_HD uint32_t hotbed_pick_base(const hotbed_pick_view *p, uint32_t f) {
    return p->bases == NULL ? f * p->stride : p->bases[f];
}

/* The batch's row of picked row r, or HOTBED_NO_ROW beyond the feature's samples. */
HOTBED_HD uint32_t hotbed_pick_row(const hotbed_pick_view *p, uint32_t r) {
    uint32_t f = r / p->batch_size, sample = r - f * p->batch_size;
    uint32_t feature = p->features == NULL ? f : p->features[f];
    uint32_t base = hotbed_pick_base(p, feature);
    return sample < hotbed_pick_base(p, feature + 1) - base ? base + sample : HOTBED_NO_ROW;
}

/* Write the length of picked row r; 0 past the last one. */
HOTBED_HD void hotbed_pick_length(const hotbed_pick_view *p, uint32_t r) {
    uint32_t row = HOTBED_NO_ROW;
    if (r < p->num_features * p->batch_size && *p->kjt.bad == 0)
        row = hotbed_pick_row(p, r);
    p->starts[r] = row == HOTBED_NO_ROW ? 0 : p->kjt.starts[row + 1] - p->kjt.starts[row];
}

/* Write picked key number i, which belongs to picked feature f. The keys of a feature are adjacent,
 * in the batch too. */
HOTBED_HD void hotbed_pick_key_of(const hotbed_pick_view *p, uint32_t i, uint32_t f) {
    const uint32_t base = hotbed_pick_base(p, p->features == NULL ? f : p->features[f]);
    const uint32_t source = p->kjt.starts[base] + (i - p->starts[(uint64_t)f * p->batch_size]);
    p->keys[i] = p->kjt.keys[source];
    p->sources[i] = source;
    if (p->weights != NULL)
        p->weights[i] = p->kjt.weights == NULL ? 1.0F : p->kjt.weights[source];
}

HOTBED_HD void hotbed_pick_key(const hotbed_pick_view *p, uint32_t i) {
    hotbed_pick_key_of(p, i, hotbed_feature_in(p->starts, 0, p->num_features, p->batch_size, i));
}

/* Where picked row r begins among the picked keys or, if all features were picked in order and
 * `starts` is NULL, in the batch. r may be one past the last row. */
HOTBED_HD int64_t hotbed_pick_offset(const hotbed_pick_view *p, uint32_t r) {
    if (p->starts != NULL)
        return p->starts[r];
    if (*p->kjt.bad != 0)
        return 0;
    if (r == p->num_features * p->batch_size)
        return p->kjt.starts[p->kjt.rows];
    uint32_t row = hotbed_pick_row(p, r);
    return p->kjt.starts[row != HOTBED_NO_ROW ? row : hotbed_pick_base(p, r / p->batch_size + 1)];
}
