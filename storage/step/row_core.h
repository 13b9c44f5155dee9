/* storage/step/row_core.h - the address of a row, and loads and stores of four of its elements. */
#ifndef HOTBED_STORAGE_ROW_CORE_H
#define HOTBED_STORAGE_ROW_CORE_H

#include "base/float.h"
#include "base/port.h"
#include "base/tile.h"
#include "hotbed/storage.h"
#include "hotbed/types.h"
#include "storage/index/index_layout_core.h"
#include "storage/step/init_core.h"

/* How a table's rows are spread over the tiers. */
typedef enum hotbed_tiers {
    HOTBED_TIERS_ONE = 0,      /* all rows in the upper tier: HBM_DIRECT */
    HOTBED_TIERS_CACHE = 1,    /* all rows in the lower tier, with copies in the upper tier */
    HOTBED_TIERS_SCORE = 2,    /* each row in one tier, chosen by score */
    HOTBED_TIERS_HASH = 3,     /* each row in one tier, chosen by a hash of its key */
    HOTBED_TIERS_EXTERNAL = 4, /* all rows in an external store, with copies in the upper tier */
} hotbed_tiers;

/* The properties of all rows that kernels may rely on. */
typedef enum hotbed_rows_form {
    HOTBED_ROWS_ANY = 0,
    HOTBED_ROWS_F32 = 1,  /* dims are multiples of 4; elements f32 */
    HOTBED_ROWS_HALF = 2, /* dims are multiples of 8; elements of two bytes */
} hotbed_rows_form;

enum {
    HOTBED_ROW_TIME = 16
}; /* at the end of a row, for its time, if rows go to an external store */

/* One table as kernels see it; device memory has an array of these. With CACHE and EXTERNAL, a
 * flagged slot of the upper tier has a row that has changed, and a flagged slot of the lower tier has
 * a row of which the upper tier has a copy. */
typedef struct hotbed_table_view {
    uint8_t *rows;      /* the row of slot first_slot + i is at rows + i * row_bytes */
    uint64_t row_bytes; /* embedding, then each state, every part padded to its alignment */
    uint64_t first_slot;
    uint64_t slots;
    uint8_t *lower_rows;  /* the row of slot lower_first + i, likewise */
    uint64_t lower_first; /* at least first_slot + slots; UINT64_MAX: no lower tier */
    uint64_t lower_slots;
    uint64_t lower_byte;        /* start of this table's rows among the lower tiers of all tables */
    uint64_t capacity;          /* STATIC: number of rows; valid keys are below it */
    uint64_t split;             /* TIERS_HASH: keys whose hash is below it are in the upper tier */
    hotbed_index_range range;   /* of the upper tier; 0 buckets: STATIC, slots are row numbers */
    hotbed_index_range lower;   /* of the lower tier; 0 buckets: none */
    hotbed_index_range counter; /* FREQUENCY: slots that count keys not yet admitted */
    /* FREQUENCY: count from which a key is admitted; PROBABILISTIC: random words below it admit */
    uint64_t admit;
    hotbed_init_view init;
    float eval_value;     /* elements of keys that eval does not find */
    float state_value[2]; /* first values of optimizer states */
    uint32_t dim;
    uint32_t dtype; /* hotbed_dtype */
    uint32_t is_static;
    uint32_t states;          /* number of f32 state vectors */
    uint32_t state_dim;       /* elements of each: dim or 1 */
    uint32_t state_offset[2]; /* bytes from the start of the row */
    uint32_t score;           /* hotbed_score_strategy */
    uint32_t probation;       /* whether new keys are on probation */
    uint32_t admission;       /* hotbed_admission */
    uint32_t tiers;           /* hotbed_tiers */
    /* a region of the lower tier has 2^bin_shift bytes, see hotbed_lower_bin() */
    uint32_t bin_shift;
} hotbed_table_view;

/* The range that growth extends: the lower tier's if there is one. */
HOTBED_HD hotbed_index_range hotbed_table_growing(const hotbed_table_view *table) {
    return table->lower.buckets != 0 ? table->lower : table->range;
}

/* Whether the table's keys are in the index. Keys of static tables in one tier are not. */
HOTBED_HD bool hotbed_table_indexed(const hotbed_table_view *table) {
    return table->range.buckets != 0;
}

/* Whether a key belongs in the lower tier by its hash. TIERS_HASH uses another hash than the index,
 * so that a key's bucket does not depend on its tier. */
HOTBED_HD bool hotbed_hashed_below(const hotbed_table_view *table, uint64_t key) {
    return table->tiers == HOTBED_TIERS_HASH &&
           hotbed_hash_u64(key ^ 0x9e3779b97f4a7c15U) >= table->split;
}

/* The range in which to search a key first; in TIERS_ONE and TIERS_HASH the only one. */
HOTBED_HD hotbed_index_range hotbed_table_range(const hotbed_table_view *table, uint64_t key) {
    return hotbed_hashed_below(table, key) ? table->lower : table->range;
}

/* Whether the upper tier has copies. Marked slots have copies that have changed. */
HOTBED_HD bool hotbed_table_copies(const hotbed_table_view *table) {
    return table->tiers == HOTBED_TIERS_CACHE || table->tiers == HOTBED_TIERS_EXTERNAL;
}

/* Whether a key that the upper tier lacks may be in the lower tier. */
HOTBED_HD bool hotbed_table_moves(const hotbed_table_view *table) {
    return table->tiers == HOTBED_TIERS_CACHE || table->tiers == HOTBED_TIERS_SCORE;
}

/* Whether `slot` is a slot of the lower tier. False for HOTBED_SLOT_NONE. */
HOTBED_HD bool hotbed_slot_below(const hotbed_table_view *table, uint64_t slot) {
    return slot >= table->lower_first && slot != HOTBED_SLOT_NONE;
}

/* Whether `slot` is in a segment. `slot` must not be HOTBED_SLOT_NONE. */
HOTBED_HD bool hotbed_slot_grown(hotbed_index_view index, uint64_t slot) {
    return index.segments != NULL &&
           slot - ((uint64_t)1 << HOTBED_SEGMENT_SHIFT) <
               HOTBED_SLOT_UNINDEXED - ((uint64_t)1 << HOTBED_SEGMENT_SHIFT);
}

/* The time of a slot, in a table that keeps times. */
HOTBED_HD uint64_t *hotbed_table_time(
    hotbed_index_view index, const hotbed_table_view *table, uint64_t slot) {
    if (hotbed_slot_grown(index, slot))
        return index.segments[slot >> HOTBED_SEGMENT_SHIFT].range.times +
               (slot & HOTBED_SEGMENT_SLOT);
    return hotbed_index_time(slot >= table->lower_first ? table->lower : table->range, slot);
}

/* One lane: copy the time of slot `from` to slot `to`. */
HOTBED_HD void hotbed_table_copy_time(
    hotbed_index_view index, const hotbed_table_view *table, uint64_t to, uint64_t from) {
    if (table->range.times != NULL)
        hotbed_store_relaxed_u64(
            hotbed_table_time(index, table, to),
            hotbed_load_relaxed_u64(hotbed_table_time(index, table, from)));
}

HOTBED_HD uint8_t *hotbed_row_at(
    hotbed_index_view index, const hotbed_table_view *table, uint64_t slot) {
    if (hotbed_slot_grown(index, slot))
        return index.segments[slot >> HOTBED_SEGMENT_SHIFT].rows +
               (slot & HOTBED_SEGMENT_SLOT) * table->row_bytes;
    if (slot >= table->lower_first)
        return table->lower_rows + (slot - table->lower_first) * table->row_bytes;
    return table->rows + (slot - table->first_slot) * table->row_bytes;
}

/* Slots of all tiers and segments of a table. */
HOTBED_HD uint64_t hotbed_table_slots(hotbed_index_view index, const hotbed_table_view *table) {
    uint64_t slots = table->slots + table->lower_slots;
    if (index.segments == NULL)
        return slots;
    const hotbed_index_range range = hotbed_table_growing(table);
    for (uint32_t g = 0; range.segment != 0 && hotbed_index_grown(index, range, g) != 0; g++)
        slots += hotbed_index_grown(index, range, g) * (uint64_t)HOTBED_BUCKET_SLOTS;
    return slots;
}

HOTBED_HD uint32_t hotbed_dtype_size(uint32_t dtype) {
    return dtype == HOTBED_F32 ? 4U : 2U;
}

/* Load one element of `dtype`. `shared`, a literal, is true if other threads may write it
 * meanwhile; see hotbed_load_shared_f32(). */
HOTBED_HD float hotbed_load1_as(bool shared, uint32_t dtype, const void *p, uint64_t i) {
    if (dtype == HOTBED_F32)
        return shared ? hotbed_load_shared_f32((const float *)p + i) : ((const float *)p)[i];
    const uint16_t *at = (const uint16_t *)p + i;
    uint16_t bits = shared ? hotbed_load_shared_u16(at) : *at;
    return dtype == HOTBED_F16 ? hotbed_f16_to_f32(bits) : hotbed_bf16_to_f32(bits);
}

HOTBED_HD float hotbed_load1(uint32_t dtype, const void *p, uint64_t i) {
    return hotbed_load1_as(false, dtype, p, i);
}

HOTBED_HD void hotbed_store1(uint32_t dtype, void *p, uint64_t i, float value) {
    if (dtype == HOTBED_F32)
        ((float *)p)[i] = value;
    else
        ((uint16_t *)p)[i] =
            dtype == HOTBED_F16 ? hotbed_f32_to_f16(value) : hotbed_f32_to_bf16(value);
}

typedef struct HOTBED_ALIGN(8) hotbed_u16x4 {
    uint16_t x, y, z, w;
} hotbed_u16x4;

HOTBED_HD hotbed_f32x4 hotbed_bf16x4_to_f32(hotbed_u16x4 h) {
    hotbed_f32x4 v = {
        hotbed_bf16_to_f32(h.x), hotbed_bf16_to_f32(h.y), hotbed_bf16_to_f32(h.z),
        hotbed_bf16_to_f32(h.w)};
    return v;
}

HOTBED_COLD hotbed_f32x4 hotbed_f16x4_to_f32(hotbed_u16x4 h) {
    hotbed_f32x4 v = {
        hotbed_f16_to_f32(h.x), hotbed_f16_to_f32(h.y), hotbed_f16_to_f32(h.z),
        hotbed_f16_to_f32(h.w)};
    return v;
}

/* The same without NaNs, which takes less time. */
HOTBED_HD hotbed_f32x4 hotbed_f16x4_numbers_to_f32(hotbed_u16x4 h) {
    hotbed_f32x4 v = {
        hotbed_f16_number_to_f32(h.x), hotbed_f16_number_to_f32(h.y), hotbed_f16_number_to_f32(h.z),
        hotbed_f16_number_to_f32(h.w)};
    return v;
}

/* Nonzero if one of the f16 is a NaN. */
HOTBED_HD uint32_t hotbed_f16x4_has_nan(hotbed_u16x4 h) {
    uint32_t pairs[2];
    memcpy(pairs, &h, sizeof pairs);
    return hotbed_f16x2_has_nan(pairs[0]) | hotbed_f16x2_has_nan(pairs[1]);
}

HOTBED_HD hotbed_f32x4 hotbed_half4_to_f32(uint32_t dtype, hotbed_u16x4 h) {
    if (dtype != HOTBED_F16)
        return hotbed_bf16x4_to_f32(h);
    return hotbed_f16x4_has_nan(h) == 0 ? hotbed_f16x4_numbers_to_f32(h) : hotbed_f16x4_to_f32(h);
}

HOTBED_HD hotbed_u16x4 hotbed_f32_to_half4(uint32_t dtype, hotbed_f32x4 v) {
    hotbed_u16x4 h;
    if (dtype == HOTBED_F16) {
        h.x = hotbed_f32_to_f16(v.x);
        h.y = hotbed_f32_to_f16(v.y);
        h.z = hotbed_f32_to_f16(v.z);
        h.w = hotbed_f32_to_f16(v.w);
    } else {
        h.x = hotbed_f32_to_bf16(v.x);
        h.y = hotbed_f32_to_bf16(v.y);
        h.z = hotbed_f32_to_bf16(v.z);
        h.w = hotbed_f32_to_bf16(v.w);
    }
    return h;
}

/* Load elements i .. i+count-1 of an array, with count in 1 .. 4; the rest is 0. `shared` as
 * above. */
HOTBED_HD hotbed_f32x4
hotbed_load4_as(bool shared, uint32_t dtype, const void *p, uint64_t i, uint32_t count) {
    hotbed_f32x4 v = {0.0F, 0.0F, 0.0F, 0.0F};
    const uint8_t *at = (const uint8_t *)p + i * hotbed_dtype_size(dtype);
    HOTBED_POINT();
    if (count >= 4 && dtype == HOTBED_F32 && ((uintptr_t)at & 15U) == 0)
        return shared ? hotbed_load_shared_f32x4(at) : *(const hotbed_f32x4 *)at;
    if (count >= 4 && dtype != HOTBED_F32 && ((uintptr_t)at & 7U) == 0) {
        hotbed_u16x4 h;
        if (shared) {
            const uint64_t bits = hotbed_load_relaxed_u64((const uint64_t *)(const void *)at);
            memcpy(&h, &bits, sizeof h);
        } else {
            h = *(const hotbed_u16x4 *)at;
        }
        return hotbed_half4_to_f32(dtype, h);
    }
    v.x = hotbed_load1_as(shared, dtype, at, 0);
    if (count > 1)
        v.y = hotbed_load1_as(shared, dtype, at, 1);
    if (count > 2)
        v.z = hotbed_load1_as(shared, dtype, at, 2);
    if (count > 3)
        v.w = hotbed_load1_as(shared, dtype, at, 3);
    return v;
}

HOTBED_HD hotbed_f32x4 hotbed_load4(uint32_t dtype, const void *p, uint64_t i, uint32_t count) {
    return hotbed_load4_as(false, dtype, p, i, count);
}

/* 16 bytes of a row. */
typedef struct HOTBED_ALIGN(16) hotbed_row16 {
    union {
        hotbed_f32x4 f32;
        hotbed_u16x4 half[2];
    };
} hotbed_row16;

/* Its elements as f32: v[0]; with `half`, a literal, they have two bytes, and v[1] has the others. */
HOTBED_HD void hotbed_row16_to_f32(
    bool half, uint32_t dtype, const hotbed_row16 *row, hotbed_f32x4 *v) {
    if (!half) {
        v[0] = v[1] = row->f32;
    } else if (dtype != HOTBED_F16) {
        v[0] = hotbed_bf16x4_to_f32(row->half[0]);
        v[1] = hotbed_bf16x4_to_f32(row->half[1]);
    } else if ((hotbed_f16x4_has_nan(row->half[0]) | hotbed_f16x4_has_nan(row->half[1])) == 0) {
        v[0] = hotbed_f16x4_numbers_to_f32(row->half[0]);
        v[1] = hotbed_f16x4_numbers_to_f32(row->half[1]);
    } else {
        v[0] = hotbed_f16x4_to_f32(row->half[0]);
        v[1] = hotbed_f16x4_to_f32(row->half[1]);
    }
}

/* Store elements e .. e+3 of an aligned row whose dim is a multiple of 4. `half`, a literal: the row
 * has two-byte elements of `dtype`; otherwise f32. */
HOTBED_HD void hotbed_row_store4(
    bool half, uint32_t dtype, uint8_t *row, uint32_t e, hotbed_f32x4 v) {
    HOTBED_POINT();
    if (half)
        *(hotbed_u16x4 *)(void *)(row + e * sizeof(uint16_t)) = hotbed_f32_to_half4(dtype, v);
    else
        *(hotbed_f32x4 *)(void *)(row + e * sizeof(float)) = v;
}

HOTBED_HD void hotbed_store4(uint32_t dtype, void *p, uint64_t i, uint32_t count, hotbed_f32x4 v) {
    uint8_t *at = (uint8_t *)p + i * hotbed_dtype_size(dtype);
    HOTBED_POINT();
    if (count >= 4 && dtype == HOTBED_F32 && ((uintptr_t)at & 15U) == 0) {
        *(hotbed_f32x4 *)at = v;
        return;
    }
    if (count >= 4 && dtype != HOTBED_F32 && ((uintptr_t)at & 7U) == 0) {
        *(hotbed_u16x4 *)at = hotbed_f32_to_half4(dtype, v);
        return;
    }
    hotbed_store1(dtype, at, 0, v.x);
    if (count > 1)
        hotbed_store1(dtype, at, 1, v.y);
    if (count > 2)
        hotbed_store1(dtype, at, 2, v.z);
    if (count > 3)
        hotbed_store1(dtype, at, 3, v.w);
}

/* How many of elements e .. e+3 are inside a vector of `dim`. */
HOTBED_HD uint32_t hotbed_count4(uint32_t dim, uint32_t e) {
    return dim - e < 4 ? dim - e : 4;
}

HOTBED_HD hotbed_f32x4 hotbed_f32x4_of(float value) {
    hotbed_f32x4 v = {value, value, value, value};
    return v;
}

HOTBED_HD hotbed_f32x4 hotbed_add4(hotbed_f32x4 a, hotbed_f32x4 b) {
    hotbed_f32x4 v = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
    return v;
}

HOTBED_HD hotbed_f32x4 hotbed_scale4(hotbed_f32x4 a, float s) {
    hotbed_f32x4 v = {a.x * s, a.y * s, a.z * s, a.w * s};
    return v;
}

/* Write the initial embedding of `key`. */
HOTBED_HD void hotbed_row_init_weights(
    const hotbed_table_view *table, uint8_t *row, uint64_t key, uint32_t width) {
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < table->dim; e += 4 * width)
        hotbed_store4(
            table->dtype, row, e, hotbed_count4(table->dim, e),
            hotbed_init_row4(&table->init, key, e));
}

/* Write the initial values of state s of a row. */
HOTBED_HD void hotbed_row_init_state(
    const hotbed_table_view *table, uint8_t *row, uint32_t s, uint32_t width) {
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < table->state_dim; e += 4 * width)
        hotbed_store4(
            HOTBED_F32, row + table->state_offset[s], e, hotbed_count4(table->state_dim, e),
            hotbed_f32x4_of(table->state_value[s]));
}

/* Write the initial row of `key`: embedding and states. */
HOTBED_HD void hotbed_row_init(
    const hotbed_table_view *table, uint8_t *row, uint64_t key, uint32_t width) {
    hotbed_row_init_weights(table, row, key, width);
    for (uint32_t s = 0; s < table->states; s++)
        hotbed_row_init_state(table, row, s, width);
}

/* The initial embedding of a key without a slot, rounded to the table's element type as a stored
 * row would be. */
HOTBED_HD hotbed_f32x4
hotbed_row_absent4(const hotbed_table_view *table, uint64_t key, uint32_t e) {
    hotbed_f32x4 v = hotbed_init_row4(&table->init, key, e);
    if (table->dtype == HOTBED_F32)
        return v;
    float bits[4]; /* large enough for any type */
    hotbed_store1(table->dtype, bits, 0, v.x);
    hotbed_store1(table->dtype, bits, 1, v.y);
    hotbed_store1(table->dtype, bits, 2, v.z);
    hotbed_store1(table->dtype, bits, 3, v.w);
    v.x = hotbed_load1(table->dtype, bits, 0);
    v.y = hotbed_load1(table->dtype, bits, 1);
    v.z = hotbed_load1(table->dtype, bits, 2);
    v.w = hotbed_load1(table->dtype, bits, 3);
    return v;
}

#endif
