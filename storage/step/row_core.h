/* storage/step/row_core.h - the address of a row, and loads and stores of four of its elements. */
#pragma once

#include "base/port.h"
#include "base/tile.h"
#include "hotbed/storage.h"
#include "hotbed/types.h"
#include "storage/index/index_layout_core.h"
#include "storage/step/dtype_core.h"
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
    /* dims are multiples of 4, rows begin at multiples of 16 bytes; elements of one byte, with scales */
    HOTBED_ROWS_SCALED = 3,
} hotbed_rows_form;

/* The form of rows that begin at multiples of `row_bytes`. */
HOTBED_HD hotbed_rows_form hotbed_rows_form_of(uint32_t dtype, uint32_t dim, uint64_t row_bytes) {
    switch ((hotbed_dtype)dtype) {
    case HOTBED_F32:
        return dim % 4 == 0 ? HOTBED_ROWS_F32 : HOTBED_ROWS_ANY;
    case HOTBED_F16:
    case HOTBED_BF16:
        return dim % 8 == 0 ? HOTBED_ROWS_HALF : HOTBED_ROWS_ANY;
    case HOTBED_INT8:
    case HOTBED_FP8:
        return dim % 4 == 0 && row_bytes % 16 == 0 ? HOTBED_ROWS_SCALED : HOTBED_ROWS_ANY;
    }
    return HOTBED_ROWS_ANY;
}

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
    /* a static table of one of several ranks: row number i is of key first_key + i * key_step, by which
     * it is initialized and rounded; step 0: row numbers are keys */
    uint64_t first_key, key_step;
    float eval_value;     /* elements of keys that eval does not find */
    float state_value[2]; /* first values of optimizer states */
    uint32_t dim;
    uint32_t dtype;  /* hotbed_dtype */
    uint32_t random; /* whether updates round at random; false: to nearest */
    uint32_t is_static;
    uint32_t states;          /* number of optimizer states */
    uint32_t state_dtype[2];  /* hotbed_dtype of each; F32 without the state */
    uint32_t state_bytes[2];  /* 0 without the state */
    uint32_t state_offset[2]; /* bytes from the start of the row */
    uint32_t score;           /* hotbed_score_strategy */
    uint32_t probation;       /* whether new keys are on probation */
    uint32_t admission;       /* hotbed_admission */
    uint32_t tiers;           /* hotbed_tiers */
    /* a region of the lower tier has 2^bin_shift bytes, see hotbed_lower_bin() */
    uint32_t bin_shift;
    uint32_t unused; /* kernels read a view as whole words; copies would leave a gap unwritten */
    /* hotbed_changed_bytes() for `slots`, see change_core.h; NULL: changes are not tracked */
    uint32_t *changed;
    uint32_t *lower_changed; /* likewise for `lower_slots`; segments have their own */
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

/* Whether a state is narrower than f32. */
HOTBED_HD bool hotbed_table_has_narrow_states(const hotbed_table_view *table) {
    return table->state_dtype[0] != HOTBED_F32 || table->state_dtype[1] != HOTBED_F32;
}

/* What a lane has of a row that several lanes read; literals. */
typedef struct hotbed_part_shape {
    hotbed_rows_form form;
    uint32_t quads; /* groups of four elements. F32: 1; HALF: 2; SCALED: 1, 2 or 4 */
} hotbed_part_shape;

enum { HOTBED_PART_QUADS_MOST = 4 };

/* Bytes of an element. */
HOTBED_HD uint32_t hotbed_form_size(hotbed_rows_form form) {
    return form == HOTBED_ROWS_SCALED ? 1 : form == HOTBED_ROWS_HALF ? 2 : 4;
}

/* Up to 16 bytes of a row as they are stored. */
typedef struct HOTBED_ALIGN(16) hotbed_row16 {
    union {
        hotbed_f32x4 f32;
        hotbed_u16x4 half[2];
        uint32_t scaled[4];
    };
} hotbed_row16;

/* A lane's part. */
typedef struct hotbed_row_part {
    hotbed_row16 bytes;
    uint32_t word; /* SCALED: of the scale of its elements */
} hotbed_row_part;

/* Load the part that begins at byte `byte` of a row. SCALED: its scale is at byte `scale`; what lies behind
 * the elements is loaded too, since the memory of a row is a multiple of 16 bytes. */
HOTBED_HD hotbed_row_part
hotbed_part_load(hotbed_part_shape shape, uint64_t row, uint32_t byte, uint32_t scale) {
    const uint8_t *at = (const uint8_t *)(uintptr_t)row;
    hotbed_row_part part;
    HOTBED_POINT();
    if (shape.quads * hotbed_form_size(shape.form) == 1)
        part.bytes.scaled[0] = *(const uint32_t *)(const void *)(at + byte);
    else if (shape.quads * hotbed_form_size(shape.form) == 2)
        part.bytes.half[0] = *(const hotbed_u16x4 *)(const void *)(at + byte);
    else
        part.bytes = *(const hotbed_row16 *)(const void *)(at + byte);
    part.word = 0;
    if (shape.form == HOTBED_ROWS_SCALED)
        part.word = *(const uint32_t *)(const void *)(at + scale);
    return part;
}

/* Its elements as f32. */
HOTBED_HD void hotbed_part_to_f32(
    hotbed_part_shape shape, uint32_t dtype, const hotbed_row_part *part, hotbed_f32x4 *v) {
    const hotbed_row16 *bytes = &part->bytes;
    if (shape.form == HOTBED_ROWS_SCALED) {
        HOTBED_UNROLL
        for (uint32_t q = 0; q < shape.quads; q++)
            v[q] = hotbed_scaled4_to_f32(dtype, part->word, bytes->scaled[q]);
    } else if (shape.form != HOTBED_ROWS_HALF) {
        v[0] = bytes->f32;
    } else if (dtype != HOTBED_F16) {
        v[0] = hotbed_bf16x4_to_f32(bytes->half[0]);
        v[1] = hotbed_bf16x4_to_f32(bytes->half[1]);
    } else if ((hotbed_f16x4_has_nan(bytes->half[0]) | hotbed_f16x4_has_nan(bytes->half[1])) == 0) {
        v[0] = hotbed_f16x4_numbers_to_f32(bytes->half[0]);
        v[1] = hotbed_f16x4_numbers_to_f32(bytes->half[1]);
    } else {
        v[0] = hotbed_f16x4_to_f32(bytes->half[0]);
        v[1] = hotbed_f16x4_to_f32(bytes->half[1]);
    }
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

/* Return the key of a row that the table stores as `key`. */
HOTBED_HD uint64_t hotbed_row_key(const hotbed_table_view *table, uint64_t key) {
    return table->key_step == 0 ? key : table->first_key + key * table->key_step;
}

/* --- rounding of updates ------------------------------------------------------------------------
 *
 * A step computes a row in f32 and rounds it to the row's type: to nearest, or with random words that
 * are a function of the storage's seed, the table's name, the key, the element and the number of the
 * optimizer step alone. So the bytes do not depend on backend, mode, prefetch depth or ranks. */
typedef struct hotbed_rounding_view {
    bool random; /* false: to nearest, and the other fields are unused */
    uint32_t table, seed0, seed1;
    uint64_t key;
} hotbed_rounding_view;

/* The rounding of the row of `key` in the optimizer step with number `step`. */
HOTBED_HD hotbed_rounding_view
hotbed_rounding_of(const hotbed_table_view *table, uint64_t key, uint64_t step) {
    const uint64_t seed = (uint64_t)table->init.seed1 << 32 | table->init.seed0;
    const uint64_t mixed = hotbed_hash_u64(seed ^ hotbed_hash_u64(step));
    hotbed_rounding_view r = {
        table->random != 0, table->init.table, (uint32_t)mixed, (uint32_t)(mixed >> 32),
        hotbed_row_key(table, key)};
    return r;
}

HOTBED_HD hotbed_rounding_view hotbed_rounding_to_nearest(void) {
    hotbed_rounding_view r = {false, 0, 0, 0, 0};
    return r;
}

/* What is rounded. Each has counters of its own, so that its random words are independent of the others'. */
enum { HOTBED_ROUNDS_ROW = 0, HOTBED_ROUNDS_STATES = 1 };

/* Random words for elements e .. e+3 of `what`; e is a multiple of 4 and below 2^14. */
HOTBED_HD hotbed_u32x4
hotbed_rounding_words_of(const hotbed_rounding_view *r, uint32_t what, uint32_t e) {
    hotbed_u32x4 counter;
    counter.x = (uint32_t)r->key;
    counter.y = (uint32_t)(r->key >> 32);
    counter.z = e / 4 + (what << 12);
    counter.w = r->table;
    return hotbed_philox(counter, r->seed0, r->seed1);
}

HOTBED_HD hotbed_u32x4 hotbed_rounding_words(const hotbed_rounding_view *r, uint32_t e) {
    return hotbed_rounding_words_of(r, HOTBED_ROUNDS_ROW, e);
}

/* Elements e .. e+3 of a row of two-byte elements. */
HOTBED_HD hotbed_u16x4
hotbed_round_half4(const hotbed_rounding_view *r, uint32_t dtype, uint32_t e, hotbed_f32x4 v) {
    return r->random ? hotbed_f32_to_half4_random(dtype, v, hotbed_rounding_words(r, e))
                     : hotbed_f32_to_half4(dtype, v);
}

/* Whether bits of the elements differ. */
HOTBED_HD bool hotbed_half4_differ(hotbed_u16x4 a, hotbed_u16x4 b) {
    uint64_t first, second;
    memcpy(&first, &a, sizeof first);
    memcpy(&second, &b, sizeof second);
    return first != second;
}

HOTBED_HD bool hotbed_f32x4_differ(hotbed_f32x4 a, hotbed_f32x4 b) {
    return a.x != b.x || a.y != b.y || a.z != b.z || a.w != b.w;
}

/* Store elements e .. e+count-1 of an array of two-byte elements. Returns whether one of them changes. */
HOTBED_HD bool hotbed_half4_store(uint16_t *array, uint32_t e, uint32_t count, hotbed_u16x4 h) {
    uint16_t *at = array + e;
    HOTBED_POINT();
    if (count >= 4 && ((uintptr_t)at & 7U) == 0) {
        const bool changes = hotbed_half4_differ(*(const hotbed_u16x4 *)(void *)at, h);
        *(hotbed_u16x4 *)(void *)at = h;
        return changes;
    }
    const uint16_t each[4] = {h.x, h.y, h.z, h.w};
    bool changes = false;
    HOTBED_UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        if (k >= count)
            continue;
        changes = changes || at[k] != each[k];
        at[k] = each[k];
    }
    return changes;
}

/* Random words for elements e .. e+3 of the states. bf16 needs 16 bits for an element: the first state has the
 * upper halves of the words, the second the lower ones. */
HOTBED_HD hotbed_u32x4 hotbed_state_words(const hotbed_rounding_view *r, uint32_t e) {
    const hotbed_u32x4 none = {0, 0, 0, 0};
    return r->random ? hotbed_rounding_words_of(r, HOTBED_ROUNDS_STATES, e) : none;
}

/* Elements of state number s, which is bf16, after a step. */
HOTBED_HD hotbed_u16x4 hotbed_round_half_state4(
    const hotbed_rounding_view *r, hotbed_u32x4 words, uint32_t s, hotbed_f32x4 v) {
    const hotbed_u32x4 own = {
        words.x << 16 * s, words.y << 16 * s, words.z << 16 * s, words.w << 16 * s};
    return r->random ? hotbed_f32_to_half4_random(HOTBED_BF16, v, own)
                     : hotbed_f32_to_half4(HOTBED_BF16, v);
}

/* Store elements e .. e+count-1 of it. */
HOTBED_HD void hotbed_half_state_step4(
    const hotbed_rounding_view *r, uint32_t s, void *state, uint32_t e, uint32_t count,
    hotbed_f32x4 v) {
    (void)hotbed_half4_store(
        (uint16_t *)state, e, count, hotbed_round_half_state4(r, hotbed_state_words(r, e), s, v));
}

/* What a step does to a row of a type that rounds, as seen by one lane: bits. */
enum {
    HOTBED_ROW_STEPS = 1,   /* an element has another value in f32 */
    HOTBED_ROW_CHANGES = 2, /* a stored element changes */
};

/* Store elements e .. e+count-1 after a step, of which `before` are the values before it. Returns
 * HOTBED_ROW_ bits; those of f32 rows are not computed. */
HOTBED_HD_LARGE uint32_t hotbed_row_step4(
    uint32_t dtype, const hotbed_rounding_view *rounding, uint8_t *row, uint32_t e, uint32_t count,
    hotbed_f32x4 before, hotbed_f32x4 v) {
    switch ((hotbed_dtype)dtype) {
    case HOTBED_F32:
        hotbed_store4(dtype, row, e, count, v);
        return 0;
    case HOTBED_F16:
    case HOTBED_BF16: {
        const hotbed_u16x4 h = hotbed_round_half4(rounding, dtype, e, v);
        const uint32_t steps = hotbed_f32x4_differ(before, v) ? HOTBED_ROW_STEPS : 0;
        const bool changes = hotbed_half4_store((uint16_t *)(void *)row, e, count, h);
        return steps | (changes ? HOTBED_ROW_CHANGES : 0);
    }
    case HOTBED_INT8:
    case HOTBED_FP8:
        break; /* hotbed_update_scaled() */
    }
    return 0;
}

/* Write the initial embedding of `key` to a row of a type with scales. */
HOTBED_APART void hotbed_row_init_scaled(
    const hotbed_table_view *table, uint8_t *row, uint64_t key, uint32_t width) {
    const uint32_t dim = table->dim, dtype = table->dtype, lane = hotbed_tile_rank(width);
    const hotbed_scale_walk walk = hotbed_scale_walk_of(dtype, dim, width);
    const hotbed_u32x4 none = {0, 0, 0, 0};
    for (uint32_t from = 0; from < dim; from += walk.chunk) {
        const uint32_t end = dim - from < walk.chunk ? dim : from + walk.chunk;
        hotbed_scale_range range = hotbed_scale_range_start(dtype);
        for (uint32_t e = from + 4 * lane; e < end; e += 4 * width)
            hotbed_scale_range_add4(
                dtype, &range, hotbed_count4(end, e), hotbed_init_row4(&table->init, key, e));
        hotbed_scale_range_join(&range, walk.lanes, width);
        const uint32_t word = hotbed_scale_choose(dtype, range, 0, false);
        for (uint32_t e = from + 4 * lane; e < end; e += 4 * width)
            (void)hotbed_scaled4_store(
                row, e, hotbed_count4(end, e),
                hotbed_f32_to_scaled4(
                    dtype, word, hotbed_init_row4(&table->init, key, e), false, none));
        if (lane % walk.lanes == 0 && from + 4 * lane < end)
            hotbed_scale_store(dtype, dim, row, from + 4 * lane, word);
    }
}

/* Write the initial embedding of `key`. */
HOTBED_HD_LARGE void hotbed_row_init_weights(
    const hotbed_table_view *table, uint8_t *row, uint64_t key, uint32_t width) {
    if (hotbed_dtype_size(table->dtype) == 1) {
        hotbed_row_init_scaled(table, row, key, width);
        return;
    }
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < table->dim; e += 4 * width)
        hotbed_store4(
            table->dtype, row, e, hotbed_count4(table->dim, e),
            hotbed_init_row4(&table->init, key, e));
}

/* hotbed_row_init_state() of a state of two-byte elements. */
HOTBED_APART void hotbed_row_init_half_state(
    const hotbed_table_view *table, uint8_t *row, uint32_t s, uint32_t width) {
    const uint32_t dim = table->state_bytes[s] / (uint32_t)sizeof(uint16_t);
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < dim; e += 4 * width)
        hotbed_store4(
            table->state_dtype[s], row + table->state_offset[s], e, hotbed_count4(dim, e),
            hotbed_f32x4_of(table->state_value[s]));
}

/* Write the initial values of state s of a row. */
HOTBED_HD void hotbed_row_init_state(
    const hotbed_table_view *table, uint8_t *row, uint32_t s, uint32_t width) {
    if (table->state_dtype[s] != HOTBED_F32) {
        hotbed_row_init_half_state(table, row, s, width);
        return;
    }
    const uint32_t dim = table->state_bytes[s] / (uint32_t)sizeof(float);
    for (uint32_t e = 4 * hotbed_tile_rank(width); e < dim; e += 4 * width)
        hotbed_store4(
            HOTBED_F32, row + table->state_offset[s], e, hotbed_count4(dim, e),
            hotbed_f32x4_of(table->state_value[s]));
}

/* Write the initial row of `key`: embedding and states. */
HOTBED_HD void hotbed_row_init(
    const hotbed_table_view *table, uint8_t *row, uint64_t key, uint32_t width) {
    hotbed_row_init_weights(table, row, key, width);
    for (uint32_t s = 0; s < table->states; s++)
        hotbed_row_init_state(table, row, s, width);
}

/* Elements e .. e+3 of the initial embedding of `key` in a row of a type with scales. */
HOTBED_APART hotbed_f32x4
hotbed_row_absent_scaled4(const hotbed_table_view *table, uint64_t key, uint32_t e) {
    const uint32_t dim = table->dim, dtype = table->dtype, span = hotbed_scale_span(dtype, dim);
    const uint32_t from = e / span * span, end = dim - from < span ? dim : from + span;
    const hotbed_u32x4 none = {0, 0, 0, 0};
    hotbed_scale_range range = hotbed_scale_range_start(dtype);
    for (uint32_t k = from; k < end; k += 4)
        hotbed_scale_range_add4(
            dtype, &range, hotbed_count4(end, k), hotbed_init_row4(&table->init, key, k));
    const uint32_t word = hotbed_scale_choose(dtype, range, 0, false);
    const hotbed_f32x4 v = hotbed_init_row4(&table->init, key, e);
    return hotbed_scaled4_to_f32(dtype, word, hotbed_f32_to_scaled4(dtype, word, v, false, none));
}

/* The initial embedding of a key without a slot, rounded to the table's element type as a stored
 * row would be. */
HOTBED_HD hotbed_f32x4
hotbed_row_absent4(const hotbed_table_view *table, uint64_t key, uint32_t e) {
    if (hotbed_dtype_size(table->dtype) == 1)
        return hotbed_row_absent_scaled4(table, key, e);
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
