/* storage/row_core.h - where a table's rows are, and how four elements are read and written. */
#ifndef HOTBED_STORAGE_ROW_CORE_H
#define HOTBED_STORAGE_ROW_CORE_H

#include "base/float.h"
#include "base/port.h"
#include "hotbed/storage.h"
#include "hotbed/types.h"
#include "storage/index_core.h"
#include "storage/init_core.h"

/* How a table's rows are spread over memory. */
typedef enum hotbed_tiers {
    HOTBED_TIERS_ONE = 0,   /* all rows are in the upper tier: HBM_DIRECT */
    HOTBED_TIERS_CACHE = 1, /* every row is in the lower tier, the upper tier has copies */
    HOTBED_TIERS_SCORE = 2, /* a row is in one of them; those in use come up, the lowest go down */
    HOTBED_TIERS_HASH = 3,  /* a row is in one of them, by its key */
    HOTBED_TIERS_EXTERNAL = 4, /* every row is in an external store, the upper tier has copies */
} hotbed_tiers;

enum {
    HOTBED_ROW_TIME = 16
}; /* bytes at a row's end for its time, where it goes to an external store */

/* One table as kernels see it: an array of these is in device memory.  A marked slot of CACHE and EXTERNAL is, in
 * the upper tier, a row that was changed and, in the lower, a row of which the upper has a copy. */
typedef struct hotbed_table_view {
    uint8_t *rows;      /* row of slot first_slot + i is at rows + i * row_bytes */
    uint64_t row_bytes; /* embedding, then each state, every part padded to its alignment */
    uint64_t first_slot;
    uint64_t slots;
    uint8_t *lower_rows;  /* row of slot lower_first + i, as `rows` */
    uint64_t lower_first; /* over first_slot + slots; UINT64_MAX: there is no lower tier */
    uint64_t lower_slots;
    uint64_t lower_byte; /* all tables' lower tiers one after the other: where this one begins */
    uint64_t capacity;   /* STATIC: number of rows, keys below it are valid */
    uint64_t split;      /* TIERS_HASH: keys that hash below it are in the upper tier */
    hotbed_index_range range;   /* of the upper tier; no buckets: slots are row numbers, STATIC */
    hotbed_index_range lower;   /* of the lower tier; no buckets: there is none */
    hotbed_index_range counter; /* FREQUENCY: where keys are counted that are not yet admitted */
    uint64_t admit; /* FREQUENCY: the count that admits; PROBABILISTIC: random words below it do */
    hotbed_init_view init;
    float eval_value;  /* of a key that eval does not find */
    float state_value; /* of a new row's optimiser state */
    uint32_t dim;
    uint32_t dtype; /* hotbed_dtype */
    uint32_t is_static;
    uint32_t states;          /* number of F32 state vectors */
    uint32_t state_dim;       /* elements of each: dim or 1 */
    uint32_t state_offset[2]; /* bytes from the row's start */
    uint32_t score;           /* hotbed_score_strategy */
    uint32_t probation;       /* new keys are on probation */
    uint32_t admission;       /* hotbed_admission */
    uint32_t tiers;           /* hotbed_tiers */
    uint32_t bin_shift;       /* a bin of hotbed_step_view.move_bins has 2^bin_shift bytes */
    uint32_t unused;
} hotbed_table_view;

/* The range to which growth adds: of the lower tier, where there is one. */
HOTBED_HD hotbed_index_range hotbed_table_growing(const hotbed_table_view *table) {
    return table->lower.buckets != 0 ? table->lower : table->range;
}

/* Whether the table's keys are in the index. Keys of a static table in one tier are not. */
HOTBED_HD bool hotbed_table_indexed(const hotbed_table_view *table) {
    return table->range.buckets != 0;
}

/* Where to look for a key first, and the only place in tables of TIERS_ONE and TIERS_HASH.  By another hash
 * than the index's: which bucket a key has says nothing of its tier. */
HOTBED_HD hotbed_index_range hotbed_table_range(const hotbed_table_view *table, uint64_t key) {
    return table->tiers == HOTBED_TIERS_HASH &&
                   hotbed_hash_u64(key ^ 0x9e3779b97f4a7c15U) >= table->split
               ? table->lower
               : table->range;
}

/* Whether the upper tier has copies, which are marked when they differ from the rows that they copy. */
HOTBED_HD bool hotbed_table_copies(const hotbed_table_view *table) {
    return table->tiers == HOTBED_TIERS_CACHE || table->tiers == HOTBED_TIERS_EXTERNAL;
}

/* Whether a key that is not there may be in the lower tier. */
HOTBED_HD bool hotbed_table_moves(const hotbed_table_view *table) {
    return table->tiers == HOTBED_TIERS_CACHE || table->tiers == HOTBED_TIERS_SCORE;
}

/* Whether a slot of the table, or HOTBED_SLOT_NONE, is one of its lower tier. */
HOTBED_HD bool hotbed_slot_below(const hotbed_table_view *table, uint64_t slot) {
    return slot >= table->lower_first && slot != HOTBED_SLOT_NONE;
}

/* Whether a slot, not HOTBED_SLOT_NONE, is in a segment. */
HOTBED_HD bool hotbed_slot_grown(hotbed_index_view index, uint64_t slot) {
    return index.segments != NULL &&
           slot - ((uint64_t)1 << HOTBED_SEGMENT_SHIFT) <
               HOTBED_SLOT_UNINDEXED - ((uint64_t)1 << HOTBED_SEGMENT_SHIFT);
}

/* Where the time of a slot is, in a table that keeps times. */
HOTBED_HD uint64_t *hotbed_table_time(
    hotbed_index_view index, const hotbed_table_view *table, uint64_t slot) {
    if (hotbed_slot_grown(index, slot))
        return index.segments[slot >> HOTBED_SEGMENT_SHIFT].range.times +
               (slot & HOTBED_SEGMENT_SLOT);
    return hotbed_index_time(slot >= table->lower_first ? table->lower : table->range, slot);
}

/* One lane: the key in slot `to` was seen when the one in `from` was. */
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

/* All slots of a table's tiers and of the segments that it has grown. */
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

/* One element of `dtype`; `shared`, a literal: it may be written meanwhile, see hotbed_load_shared_f32(). */
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

/* Elements i .. i+count-1 of an array, count in 1 .. 4; elements past count read as 0.  `shared` as above. */
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
        if (dtype == HOTBED_F16) {
            v.x = hotbed_f16_to_f32(h.x);
            v.y = hotbed_f16_to_f32(h.y);
            v.z = hotbed_f16_to_f32(h.z);
            v.w = hotbed_f16_to_f32(h.w);
        } else {
            v.x = hotbed_bf16_to_f32(h.x);
            v.y = hotbed_bf16_to_f32(h.y);
            v.z = hotbed_bf16_to_f32(h.z);
            v.w = hotbed_bf16_to_f32(h.w);
        }
        return v;
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

HOTBED_HD void hotbed_store4(uint32_t dtype, void *p, uint64_t i, uint32_t count, hotbed_f32x4 v) {
    uint8_t *at = (uint8_t *)p + i * hotbed_dtype_size(dtype);
    HOTBED_POINT();
    if (count >= 4 && dtype == HOTBED_F32 && ((uintptr_t)at & 15U) == 0) {
        *(hotbed_f32x4 *)at = v;
        return;
    }
    if (count >= 4 && dtype != HOTBED_F32 && ((uintptr_t)at & 7U) == 0) {
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
        *(hotbed_u16x4 *)at = h;
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

/* Elements e .. of a vector of `dim`: how many of the four are inside. */
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

/* The embedding of `key` as it is when new. */
HOTBED_HD void hotbed_row_init_weights(
    const hotbed_table_view *table, uint8_t *row, uint64_t key, uint32_t width) {
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < table->dim; e += 4 * width)
        hotbed_store4(
            table->dtype, row, e, hotbed_count4(table->dim, e),
            hotbed_init_row4(&table->init, key, e));
}

/* State s of a row as it is when new. */
HOTBED_HD void hotbed_row_init_state(
    const hotbed_table_view *table, uint8_t *row, uint32_t s, uint32_t width) {
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < table->state_dim; e += 4 * width)
        hotbed_store4(
            HOTBED_F32, row + table->state_offset[s], e, hotbed_count4(table->state_dim, e),
            hotbed_f32x4_of(table->state_value));
}

/* The row of `key` as it is when new: embedding at `row`, and its states. */
HOTBED_HD void hotbed_row_init(
    const hotbed_table_view *table, uint8_t *row, uint64_t key, uint32_t width) {
    hotbed_row_init_weights(table, row, key, width);
    for (uint32_t s = 0; s < table->states; s++)
        hotbed_row_init_state(table, row, s, width);
}

/* The row of a key that has no slot, in the table's own type: what a new row would hold, rounded as the
 * row would be. */
HOTBED_HD hotbed_f32x4
hotbed_row_absent4(const hotbed_table_view *table, uint64_t key, uint32_t e) {
    hotbed_f32x4 v = hotbed_init_row4(&table->init, key, e);
    if (table->dtype == HOTBED_F32)
        return v;
    float bits[4]; /* room for any type */
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
