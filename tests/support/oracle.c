/* tests/support/oracle.c - the plain model of a storage: rows, steps, optimizers. */
#include "tests/support/oracle.h"

#include "storage/index/index_layout_core.h"
#include "storage/step/init_core.h"

#include <math.h>
#include <stdlib.h>

#define NONE       UINT32_MAX /* not an enumerator, because it does not fit an int */
#define SCORE_MOST (((uint64_t)1 << 52) - 1)
enum { GROUP = 32 };

static void *allocate(uint64_t count, size_t bytes) {
    void *block = calloc(count == 0 ? 1 : (size_t)count, bytes);
    if (block == NULL)
        abort();
    return block;
}

static void *copy_of(const void *from, uint64_t count, size_t bytes) {
    void *block = allocate(count, bytes);
    if (count != 0)
        memcpy(block, from, (size_t)count * bytes);
    return block;
}

/* --- element types --------------------------------------------------------------------------- */

static uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t to_bf16(float value) {
    uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U) /* keeps a NaN a NaN */
        return (uint16_t)((bits >> 16) | 0x40U);
    return (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/* Unlike the library, computes with values, not bits: scales so that neighbouring halves differ by 1, then rounds
 * with rint(). */
static uint16_t to_f16(float value) {
    uint16_t sign = (uint16_t)((float_bits(value) >> 16) & 0x8000U);
    if (isnan(value))
        return (uint16_t)(sign | 0x7e00U);
    double size = fabs((double)value);
    if (size >= 65520.0) /* rounds up to infinity */
        return (uint16_t)(sign | 0x7c00U);
    int exponent = 0;
    (void)frexp(size, &exponent); /* size in [2^(exponent-1), 2^exponent) */
    int step = exponent - 11;
    if (size == 0.0 || step < -24)
        step = -24;
    uint32_t steps = (uint32_t)rint(ldexp(size, -step)); /* at most 2048 */
    /* exponent field, minus 1 for normal numbers: `steps` carries into it */
    uint32_t field = (uint32_t)(step + 24);
    return (uint16_t)(sign | ((field << 10) + steps));
}

static float from_f16(uint16_t half) {
    uint32_t field = (half >> 10) & 31U, fraction = half & 1023U;
    double size = 0.0;
    if (field == 31U)
        size = fraction == 0 ? HUGE_VAL : (double)NAN;
    else if (field == 0U)
        size = ldexp((double)fraction, -24);
    else
        size = ldexp((double)(fraction + 1024U), (int)field - 25);
    return (half & 0x8000U) != 0 ? (float)-size : (float)size;
}

float oracle_load(hotbed_dtype dtype, const void *array, uint64_t index) {
    switch (dtype) {
    case HOTBED_F16:
        return from_f16(((const uint16_t *)array)[index]);
    case HOTBED_BF16:
        return bits_float((uint32_t)((const uint16_t *)array)[index] << 16);
    case HOTBED_F32:
    case HOTBED_INT8: /* read_scaled() */
    case HOTBED_FP8:
        break;
    }
    return ((const float *)array)[index];
}

void oracle_store(hotbed_dtype dtype, void *array, uint64_t index, float value) {
    switch (dtype) {
    case HOTBED_F16:
        ((uint16_t *)array)[index] = to_f16(value);
        return;
    case HOTBED_BF16:
        ((uint16_t *)array)[index] = to_bf16(value);
        return;
    case HOTBED_F32:
    case HOTBED_INT8:
    case HOTBED_FP8:
        break;
    }
    ((float *)array)[index] = value;
}

static float rounded(hotbed_dtype dtype, float value) {
    float place = 0.0F;
    oracle_store(dtype, &place, 0, value);
    return oracle_load(dtype, &place, 0);
}

enum { ROW, FIRST, SECOND }; /* what is rounded: the row, or one of its states */

/* The random word for element e of the row of `key`, or of a state, in the present optimizer step. The
 * states share a word: the second has its lower half. */
static uint32_t rounding_word(
    const oracle *model, const oracle_table *table, uint64_t key, uint32_t what, uint32_t e) {
    const uint64_t mixed =
        hotbed_hash_u64(model->options.seed ^ hotbed_hash_u64(model->state.optimizer_steps));
    hotbed_u32x4 counter = {
        (uint32_t)key, (uint32_t)(key >> 32), e / 4 + (what == ROW ? 0 : 4096), table->name_hash};
    counter = hotbed_philox(counter, (uint32_t)mixed, (uint32_t)(mixed >> 32));
    const uint32_t words[4] = {counter.x, counter.y, counter.z, counter.w};
    return what == SECOND ? words[e % 4] << 16 : words[e % 4];
}

/* Round to one of the two neighbours of a value whose type has `digits` binary digits and is a multiple of
 * 2^least: away from zero with a probability that is its distance from the other. */
static float rounded_by(float value, int digits, int least, double infinite, uint32_t word) {
    if (!isfinite(value))
        return value;
    double size = fabs((double)value);
    int exponent = 0;
    (void)frexp(size, &exponent);
    int step = exponent - digits;
    if (size == 0.0 || step < least)
        step = least;
    double units = ldexp(size, -step), low = floor(units);
    if ((double)word < floor((units - low) * 0x1p32))
        low += 1.0;
    size = ldexp(low, step);
    return copysignf(size >= infinite ? INFINITY : (float)size, value);
}

/* Element e after a step that computed w. */
static float stepped(
    const oracle *model, const oracle_table *table, hotbed_dtype dtype, uint64_t key, uint32_t what,
    uint32_t e, float w) {
    const bool random = table->options.rounding == HOTBED_ROUND_STOCHASTIC;
    switch (dtype) {
    case HOTBED_F32:
    case HOTBED_INT8:
    case HOTBED_FP8:
        break;
    case HOTBED_F16:
        if (random && !isnan(w))
            return rounded_by(w, 11, -24, 65536.0, rounding_word(model, table, key, what, e));
        break;
    case HOTBED_BF16:
        if (random && !isnan(w))
            return rounded_by(w, 8, -133, 0x1p128, rounding_word(model, table, key, what, e));
        break;
    }
    return rounded(dtype, w);
}

/* --- rows with scales -------------------------------------------------------------------------- */

/* How many elements have one scale; 0: the type has none. */
static uint32_t span_of(hotbed_dtype dtype, uint32_t dim) {
    return dtype == HOTBED_INT8 || (dtype == HOTBED_FP8 && dim <= 64) ? dim
           : dtype == HOTBED_FP8                                      ? 32
                                                                      : 0;
}

static float read_f16(const uint8_t *at) {
    return from_f16((uint16_t)(at[0] | at[1] << 8));
}

static void write_f16(uint8_t *at, uint16_t half) {
    at[0] = (uint8_t)half;
    at[1] = (uint8_t)(half >> 8);
}

/* The f16 next to a value: the least one that is not below, or the greatest one that is not above. */
static uint16_t f16_bound(float value, bool up) {
    int exponent = 0;
    (void)frexp((double)value, &exponent);
    const int step = value == 0.0F || exponent - 11 < -24 ? -24 : exponent - 11;
    const double units = ldexp((double)value, -step);
    return to_f16((float)ldexp(up ? ceil(units) : floor(units), step));
}

static float from_fp8(uint8_t byte) {
    const int field = byte >> 3 & 15, fraction = byte & 7;
    const double size = (byte & 127) == 127 ? (double)NAN
                        : field == 0        ? ldexp(fraction, -9)
                                            : ldexp(fraction + 8, field - 10);
    return (byte & 128) != 0 ? (float)-size : (float)size;
}

/* Whole steps of a size, rounded with a random word or to nearest. */
static double whole(double steps, const uint32_t *word) {
    const double low = floor(steps);
    return word == NULL ? rint(steps) : low + ((double)*word < floor((steps - low) * 0x1p32));
}

static uint8_t to_fp8(double value, const uint32_t *word) {
    const double size = fabs(value);
    if (!isfinite(value))
        return 127;
    int exponent = 0;
    (void)frexp(size, &exponent);
    const int step = size == 0.0 || exponent - 4 < -9 ? -9 : exponent - 4;
    const uint32_t code =
        size >= 448.0 ? 126
                      : (uint32_t)(8 * (step + 9)) + (uint32_t)whole(ldexp(size, -step), word);
    return (uint8_t)(code | (signbit(value) ? 128U : 0U));
}

static float read_scaled(hotbed_dtype dtype, uint32_t dim, const uint8_t *row, uint32_t e) {
    float scale;
    if (dtype == HOTBED_INT8)
        return (float)row[e] * read_f16(row + dim) + read_f16(row + dim + 2);
    memcpy(&scale, row + dim + 4 * (e / span_of(dtype, dim)), sizeof scale);
    return from_fp8(row[e]) * scale;
}

/* The scale of n elements of an fp8 row. */
static float fp8_scale(const float *values, uint32_t n) {
    double most = 0.0;
    int exponent = -126;
    for (uint32_t e = 0; e < n; e++)
        if (isfinite(values[e]) && fabs((double)values[e]) > most)
            most = fabs((double)values[e]);
    while (ldexp(most, -exponent) > 448.0)
        exponent++;
    return most == 0.0 ? 1.0F : (float)ldexp(1.0, exponent);
}

/* Choose scale and offset of an int8 row.  `updates`: the row has others, which stay if they fit. */
static void int8_scale(const float *values, uint32_t dim, bool updates, uint8_t *row) {
    float low = INFINITY, high = -INFINITY;
    for (uint32_t e = 0; e < dim; e++) {
        low = fminf(low, isfinite(values[e]) ? values[e] : -INFINITY);
        high = fmaxf(high, isfinite(values[e]) ? values[e] : INFINITY);
    }
    if (!isfinite(low) || !isfinite(high)) {
        write_f16(row + dim, 0x7e00);
        write_f16(row + dim + 2, 0x7e00);
        return;
    }
    low = fminf(fmaxf(low, -65504.0F), 65504.0F);
    high = fminf(fmaxf(high, -65504.0F), 65504.0F);
    if (updates) {
        const float offset = read_f16(row + dim + 2), span = 255.0F * read_f16(row + dim);
        if (span > 0.0F && low >= offset && high <= offset + span && 2.0F * (high - low) >= span)
            return;
        const float room = (high - low) / 16.0F;
        low = fmaxf(low - room, -65504.0F);
        high = fminf(high + room, 65504.0F);
    }
    const uint16_t offset = f16_bound(low == 0.0F ? 0.0F : low, false);
    write_f16(row + dim, f16_bound((high - from_f16(offset)) / 255.0F, true));
    write_f16(row + dim + 2, offset);
}

static uint8_t to_int8(uint32_t dim, const uint8_t *row, float value, const uint32_t *word) {
    const float scale = read_f16(row + dim);
    const float steps = scale > 0.0F ? (value - read_f16(row + dim + 2)) / scale : 0.0F;
    return !(steps > 0.0F) ? 0 : steps >= 255.0F ? 255 : (uint8_t)whole((double)steps, word);
}

/* Take the remainder out of a state's number, or round the number by the lowest byte of a random word and put
 * one in. */
static int8_t take_remainder(float *number) {
    const uint32_t bits = float_bits(*number);
    *number = bits_float(bits & ~255U);
    return (int8_t)(bits & 255U);
}

static void put_remainder(float *number, int8_t rest, uint32_t word) {
    const uint32_t bits = float_bits(*number) + (isfinite(*number) ? word & 255U : 0U);
    *number = bits_float((bits & ~255U) | (uint8_t)rest);
}

/* Whether the first state has the remainders of a row's elements in its lowest bytes. */
static bool carries(const oracle *model, const oracle_table *table) {
    return span_of(table->options.dtype, table->options.dim) != 0 &&
           table->options.rounding == HOTBED_ROUND_STOCHASTIC &&
           hotbed_optimizer_state_dim(model->options.optimizer.kind, 0, 2) == 2 &&
           table->state_dtype[0] == HOTBED_F32;
}

/* Element e of a row whose remainder is `rest` 256ths of the distance to the next byte. */
static float read_carried(
    hotbed_dtype dtype, uint32_t dim, const uint8_t *row, uint32_t e, int8_t rest) {
    float scale;
    if (dtype == HOTBED_INT8)
        return ((float)row[e] + (float)rest / 256.0F) * read_f16(row + dim) +
               read_f16(row + dim + 2);
    memcpy(&scale, row + dim + 4 * (e / span_of(dtype, dim)), sizeof scale);
    const int field = row[e] >> 3 & 15;
    const double part = ldexp(1.0, (field == 0 ? 1 : field) - 10 - 8);
    return (float)(((double)from_fp8(row[e]) + rest * part) * (double)scale);
}

/* Element e of a row as the nearest byte; returns the remainder. */
static int8_t write_carried(
    hotbed_dtype dtype, uint32_t dim, uint8_t *row, const uint8_t *scale_at, uint32_t e,
    float value, uint32_t word) {
    float parts;
    if (dtype == HOTBED_INT8) {
        const float scale = read_f16(row + dim);
        float steps = scale > 0.0F ? (value - read_f16(row + dim + 2)) / scale : 0.0F;
        steps = !(steps > 0.0F) ? 0.0F : fminf(steps, 255.0F);
        row[e] = (uint8_t)rint((double)steps);
        parts = (steps - (float)row[e]) * 256.0F;
    } else {
        float scale;
        memcpy(&scale, scale_at, sizeof scale);
        const double steps = (double)value / (double)scale;
        row[e] = to_fp8(steps, NULL);
        const int field = row[e] >> 3 & 15;
        parts = (float)ldexp(steps - (double)from_fp8(row[e]), 18 - (field == 0 ? 1 : field));
    }
    if (isnan(parts))
        return 0;
    return (int8_t)fmin(whole((double)(parts + 128.0F), &word) - 128.0, 127.0);
}

/* Store values as a row.  A step has `words`, or rounds to nearest if they are NULL, and begins with the values
 * `before` of the row; a new row has none.  With `rests`, the step replaces the remainders there. */
static void write_scaled(
    hotbed_dtype dtype, uint32_t dim, const float *values, const float *before,
    const uint32_t *words, int8_t *rests, uint8_t *row) {
    const uint32_t span = span_of(dtype, dim);
    for (uint32_t from = 0; from < dim; from += span) {
        const uint32_t n = dim - from < span ? dim - from : span;
        uint8_t *at = row + dim + 4 * (from / span), old[4];
        memcpy(old, at, sizeof old);
        if (dtype == HOTBED_INT8) {
            int8_scale(values, dim, before != NULL, row);
        } else {
            const float scale = fp8_scale(values + from, n);
            memcpy(at, &scale, sizeof scale);
        }
        const bool same = before != NULL && memcmp(old, at, sizeof old) == 0;
        for (uint32_t e = from; e < from + n; e++) {
            const uint32_t *word = words == NULL ? NULL : words + e;
            float scale;
            memcpy(&scale, at, sizeof scale);
            if (same && values[e] == before[e])
                continue;
            if (rests != NULL) {
                rests[e] = write_carried(dtype, dim, row, at, e, values[e], *word);
                continue;
            }
            row[e] = dtype == HOTBED_INT8 ? to_int8(dim, row, values[e], word)
                                          : to_fp8((double)values[e] / (double)scale, word);
        }
    }
}

/* --- rows ------------------------------------------------------------------------------------ */

static uint64_t stored_bytes(const oracle_table *table) {
    return hotbed_dtype_row_bytes(table->options.dtype, table->options.dim);
}

void oracle_row_round(
    hotbed_dtype dtype, uint32_t dim, const float *weights, void *array, uint64_t index) {
    uint8_t *row = (uint8_t *)array + index * hotbed_dtype_row_bytes(dtype, dim);
    if (span_of(dtype, dim) != 0)
        write_scaled(dtype, dim, weights, NULL, NULL, NULL, row);
    for (uint32_t e = 0; span_of(dtype, dim) == 0 && e < dim; e++)
        oracle_store(dtype, row, e, weights[e]);
}

void oracle_row_get(const oracle_table *table, const oracle_row *row, void *array, uint64_t index) {
    uint8_t *to = (uint8_t *)array + index * stored_bytes(table);
    if (row->stored != NULL)
        memcpy(to, row->stored, stored_bytes(table));
    for (uint32_t e = 0; row->stored == NULL && e < table->options.dim; e++)
        oracle_store(table->options.dtype, to, e, row->weights[e]);
}

void oracle_state_get(
    const oracle_table *table, const oracle_row *row, uint32_t state, void *array, uint64_t index) {
    uint8_t *to = (uint8_t *)array + index * table->state_bytes[state];
    for (uint32_t e = 0; e < table->state_dim[state]; e++)
        oracle_store(table->state_dtype[state], to, e, row->states[state][e]);
}

void oracle_state_set(
    const oracle_table *table, oracle_row *row, uint32_t state, const void *array, uint64_t index) {
    const uint8_t *from = (const uint8_t *)array + index * table->state_bytes[state];
    for (uint32_t e = 0; e < table->state_dim[state]; e++)
        row->states[state][e] = oracle_load(table->state_dtype[state], from, e);
}

static void read_row(const oracle_table *table, const uint8_t *from, float *weights) {
    const uint32_t dim = table->options.dim;
    const hotbed_dtype dtype = table->options.dtype;
    for (uint32_t e = 0; e < dim; e++)
        weights[e] = span_of(dtype, dim) != 0 ? read_scaled(dtype, dim, from, e)
                                              : oracle_load(dtype, from, e);
}

void oracle_row_set(const oracle_table *table, oracle_row *row, const void *array, uint64_t index) {
    const uint8_t *from = (const uint8_t *)array + index * stored_bytes(table);
    if (row->stored != NULL)
        memcpy(row->stored, from, stored_bytes(table));
    read_row(table, from, row->weights);
}

static uint32_t head_of(const oracle_table *table, uint64_t key) {
    uint64_t hash = key * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
    hash *= 0xBF58476D1CE4E5B9U;
    return (uint32_t)(hash >> 32) & (table->num_heads - 1U);
}

static void link_rows(oracle_table *table) {
    for (uint32_t i = 0; i < table->num_heads; i++)
        table->heads[i] = NONE;
    for (uint32_t i = 0; i < table->num_rows; i++) {
        if (!table->rows[i].live)
            continue;
        uint32_t head = head_of(table, table->rows[i].key);
        table->rows[i].next = table->heads[head];
        table->heads[head] = i;
    }
}

static void grow(oracle_table *table) {
    uint32_t max_rows = table->max_rows == 0 ? 64 : 2 * table->max_rows;
    oracle_row *rows = realloc(table->rows, max_rows * sizeof *rows);
    uint32_t *heads = realloc(table->heads, max_rows * sizeof *heads);
    if (rows == NULL || heads == NULL)
        abort();
    table->rows = rows;
    table->heads = heads;
    table->max_rows = max_rows;
    table->num_heads = max_rows;
    link_rows(table);
}

static uint32_t find(const oracle_table *table, uint64_t key) {
    if (table->max_rows == 0)
        return NONE;
    uint32_t row = table->heads[head_of(table, key)];
    while (row != NONE && table->rows[row].key != key)
        row = table->rows[row].next;
    return row;
}

oracle_row *oracle_find(oracle *model, uint32_t table, uint64_t key) {
    uint32_t row = find(&model->tables[table], key);
    return row == NONE ? NULL : &model->tables[table].rows[row];
}

/* Initial values of n rows, as they are stored. */
static void *initial_block(oracle *model, uint32_t table, uint64_t n, const uint64_t *keys) {
    void *block = allocate(n * stored_bytes(&model->tables[table]), 1);
    if (n != 0)
        model->initial(model->self, table, n, keys, block);
    return block;
}

/* Row number `index` of a block of initial values, as floats. */
static float *initial_weights(const oracle_table *table, const void *block, uint64_t index) {
    float *weights = allocate(table->options.dim, sizeof *weights);
    read_row(table, (const uint8_t *)block + index * stored_bytes(table), weights);
    return weights;
}

float oracle_first_state(const hotbed_optimizer *o, uint32_t state) {
    switch (o->kind) {
    case HOTBED_OPT_ADAM:
    case HOTBED_OPT_ADAGRAD:
    case HOTBED_OPT_ROWWISE_ADAGRAD:
        return o->initial_accumulator;
    case HOTBED_OPT_FTRL:
        return state == 1 ? o->initial_accumulator : 0.0F;
    case HOTBED_OPT_SGD:
    case HOTBED_OPT_MOMENTUM:
    case HOTBED_OPT_RMSPROP:
    case HOTBED_OPT_ADADELTA:
    case HOTBED_OPT_LION:
    case HOTBED_OPT_PARTIAL_ROWWISE_ADAM:
    case HOTBED_OPT_LAMB:
    case HOTBED_OPT_LARS:
    case HOTBED_OPT_NESTEROV:
    case HOTBED_OPT_ROW_STEPS_ADAM:
    case HOTBED_OPT_ROWWISE_ADAM:
        break;
    }
    return 0.0F;
}

/* The row of a key.  A new row gets initial values from `block`, row `index`. */
static uint32_t put(
    oracle *model, uint32_t number, uint64_t key, const void *block, uint64_t index) {
    oracle_table *table = &model->tables[number];
    uint32_t place = find(table, key);
    if (place != NONE)
        return place;
    if (table->free_rows == NONE && table->num_rows == table->max_rows)
        grow(table);
    place = table->free_rows;
    if (place == NONE)
        place = table->num_rows++;
    else
        table->free_rows = table->rows[place].next;
    oracle_row *row = &table->rows[place];
    memset(row, 0, sizeof *row);
    row->key = key;
    row->live = true;
    row->weights = initial_weights(table, block, index);
    if (span_of(table->options.dtype, table->options.dim) != 0)
        row->stored =
            copy_of((const uint8_t *)block + index * stored_bytes(table), stored_bytes(table), 1);
    for (uint32_t s = 0; s < hotbed_optimizer_states(model->options.optimizer.kind); s++) {
        row->states[s] = allocate(table->state_dim[s], sizeof(float));
        for (uint32_t i = 0; i < table->state_dim[s]; i++)
            row->states[s][i] =
                rounded(table->state_dtype[s], oracle_first_state(&model->options.optimizer, s));
        for (uint32_t i = 0; s == 0 && i < table->options.dim && carries(model, table); i++)
            (void)take_remainder(&row->states[0][i]);
    }
    uint32_t head = head_of(table, key);
    row->next = table->heads[head];
    table->heads[head] = place;
    table->size++;
    return place;
}

oracle_row *oracle_put(oracle *model, uint32_t table, uint64_t key) {
    void *block = initial_block(model, table, 1, &key);
    uint32_t row = put(model, table, key, block, 0);
    free(block);
    return &model->tables[table].rows[row];
}

static void drop(oracle_row *row) {
    free(row->weights);
    free(row->stored);
    free(row->states[0]);
    free(row->states[1]);
    row->stored = NULL;
    row->weights = row->states[0] = row->states[1] = NULL;
    row->live = false;
}

bool oracle_erase(oracle *model, uint32_t table, uint64_t key) {
    oracle_table *t = &model->tables[table];
    uint32_t place = find(t, key);
    if (place == NONE || t->rows[place].pins != 0)
        return false;
    uint32_t *link = &t->heads[head_of(t, key)];
    while (*link != place)
        link = &t->rows[*link].next;
    *link = t->rows[place].next;
    drop(&t->rows[place]);
    t->rows[place].next = t->free_rows;
    t->free_rows = place;
    t->size--;
    return true;
}

bool oracle_evict(oracle *model, uint32_t table, uint64_t key) {
    bool evicted = oracle_erase(model, table, key);
    model->tables[table].stats.evictions += evicted;
    return evicted;
}

uint64_t *oracle_count(oracle *model, uint32_t table, uint64_t key) {
    oracle_table *t = &model->tables[table];
    for (uint32_t i = 0; i < t->num_counted; i++)
        if (t->counted[i].key == key)
            return &t->counted[i].count;
    return NULL;
}

void oracle_set_count(oracle *model, uint32_t table, uint64_t key, uint64_t count) {
    oracle_table *t = &model->tables[table];
    uint64_t *place = oracle_count(model, table, key);
    if (place == NULL) {
        t->counted = realloc(t->counted, (t->num_counted + 1) * sizeof *t->counted);
        if (t->counted == NULL)
            abort();
        t->counted[t->num_counted].key = key;
        place = &t->counted[t->num_counted++].count;
    }
    *place = count < SCORE_MOST ? count : SCORE_MOST;
}

void oracle_forget_count(oracle *model, uint32_t table, uint64_t key) {
    oracle_table *t = &model->tables[table];
    for (uint32_t i = 0; i < t->num_counted; i++)
        if (t->counted[i].key == key) {
            t->counted[i] = t->counted[--t->num_counted];
            return;
        }
}

void oracle_clear(oracle *model, uint32_t table) {
    oracle_table *t = &model->tables[table];
    t->num_counted = 0;
    for (uint32_t i = 0; i < t->num_rows; i++)
        if (t->rows[i].live)
            drop(&t->rows[i]);
    t->num_rows = 0;
    t->size = 0;
    t->free_rows = NONE;
    link_rows(t);
    if (t->options.kind != HOTBED_TABLE_STATIC)
        return;
    uint64_t *keys = allocate(t->options.capacity, sizeof *keys);
    for (uint64_t key = 0; key < t->options.capacity; key++)
        keys[key] = key;
    void *block = initial_block(model, table, t->options.capacity, keys);
    for (uint64_t key = 0; key < t->options.capacity; key++)
        (void)put(model, table, key, block, key);
    free(block);
    free(keys);
}

uint64_t oracle_pinned(const oracle *model, uint32_t table) {
    const oracle_table *t = &model->tables[table];
    uint64_t pinned = 0;
    if (t->options.kind == HOTBED_TABLE_STATIC)
        return 0; /* the library does not pin rows that cannot be evicted */
    for (uint32_t i = 0; i < t->num_rows; i++)
        pinned += t->rows[i].live && t->rows[i].pins != 0;
    return pinned;
}

/* --- the storage ----------------------------------------------------------------------------- */

oracle *oracle_create(const hotbed_storage_options *options, oracle_initial initial, void *self) {
    oracle *model = allocate(1, sizeof *model);
    model->options = *options;
    model->initial = initial;
    model->self = self;
    model->num_tables = options->num_tables;
    model->num_features = options->num_features == 0 ? options->num_tables : options->num_features;
    model->tables = allocate(model->num_tables, sizeof *model->tables);
    model->feature_tables = allocate(model->num_features, sizeof *model->feature_tables);
    model->columns = allocate(model->num_features + 1U, sizeof *model->columns);
    for (uint32_t t = 0; t < model->num_tables; t++) {
        oracle_table *table = &model->tables[t];
        table->options = options->tables[t];
        if (table->options.dtype == 0)
            table->options.dtype = HOTBED_F32;
        table->optimizer =
            table->options.optimizer == NULL ? options->optimizer : *table->options.optimizer;
        for (uint32_t s = 0; s < 2; s++) {
            const hotbed_optimizer_kind kind = options->optimizer.kind;
            table->state_dim[s] = hotbed_optimizer_state_dim(kind, s, table->options.dim);
            table->state_dtype[s] =
                hotbed_optimizer_state_dtype(kind, s, table->options.state_dtype);
            table->state_bytes[s] = table->state_dim[s] * hotbed_dtype_bytes(table->state_dtype[s]);
        }
        table->free_rows = NONE;
        table->name_hash = 2166136261U;
        for (const char *c = table->options.name; *c != 0; c++) /* FNV-1a */
            table->name_hash = (table->name_hash ^ (unsigned char)*c) * 16777619U;
        table->custom_score = 1;
        grow(table);
        oracle_clear(model, t); /* creates the rows of a static table */
        if (table->options.dim > model->max_dim)
            model->max_dim = table->options.dim;
    }
    for (uint32_t f = 0; f < model->num_features; f++) {
        uint32_t t = options->num_features == 0 ? f : options->feature_tables[f];
        model->feature_tables[f] = t;
        model->columns[f + 1] = model->columns[f] + options->tables[t].dim;
    }
    if (model->options.output_dtype == 0)
        model->options.output_dtype = HOTBED_F32;
    model->state.beta1_power = 1.0;
    model->state.beta2_power = 1.0;
    model->state.learning_rate = options->optimizer.learning_rate;
    return model;
}

void oracle_destroy(oracle *model) {
    if (model == NULL)
        return;
    for (uint32_t t = 0; t < model->num_tables; t++) {
        for (uint32_t i = 0; i < model->tables[t].num_rows; i++)
            drop(&model->tables[t].rows[i]);
        free(model->tables[t].rows);
        free(model->tables[t].heads);
        free(model->tables[t].counted);
    }
    free(model->tables);
    free(model->feature_tables);
    free(model->columns);
    free(model);
}

uint64_t oracle_least_stride(const oracle *model) {
    return model->options.pooling == HOTBED_POOL_NONE ? model->max_dim
                                                      : model->columns[model->num_features];
}

/* --- the step -------------------------------------------------------------------------------- */

oracle_ticket *oracle_ticket_create(oracle *model) {
    oracle_ticket *ticket = allocate(1, sizeof *ticket);
    ticket->model = model;
    return ticket;
}

static void empty(oracle_ticket *ticket) {
    if (ticket->initials != NULL)
        for (uint32_t u = 0; u < ticket->unique_offsets[ticket->model->num_tables]; u++)
            free(ticket->initials[u]);
    free((void *)ticket->batch.keys);
    free((void *)ticket->batch.weights);
    free((void *)ticket->batch.counts);
    free(ticket->offsets);
    free(ticket->bags);
    free(ticket->unique_offsets);
    free(ticket->unique_keys);
    free(ticket->counts);
    free(ticket->occurrences);
    free(ticket->inverse);
    free(ticket->rows);
    free(ticket->initials);
    oracle *model = ticket->model;
    memset(ticket, 0, sizeof *ticket);
    ticket->model = model;
}

void oracle_ticket_destroy(oracle_ticket *ticket) {
    if (ticket == NULL)
        return;
    oracle_cancel(ticket);
    empty(ticket);
    free(ticket);
}

static uint32_t table_of(const oracle_ticket *ticket, uint64_t position) {
    return ticket->model->feature_tables[ticket->bags[position] / ticket->batch.batch_size];
}

static void copy_batch(oracle_ticket *ticket, const hotbed_batch *batch) {
    uint64_t bags = (uint64_t)ticket->model->num_features * batch->batch_size;
    ticket->batch = *batch;
    ticket->offsets = allocate(bags + 1, sizeof *ticket->offsets);
    for (uint64_t b = 0; b <= bags; b++)
        ticket->offsets[b] = batch->offsets == NULL ? (int64_t)b : batch->offsets[b];
    ticket->num_keys = (uint64_t)ticket->offsets[bags];
    ticket->batch.keys = copy_of(batch->keys, ticket->num_keys, sizeof(uint64_t));
    if (batch->weights != NULL)
        ticket->batch.weights = copy_of(batch->weights, ticket->num_keys, sizeof(float));
    if (batch->counts != NULL)
        ticket->batch.counts = copy_of(batch->counts, ticket->num_keys, sizeof(uint32_t));
    ticket->bags = allocate(ticket->num_keys, sizeof *ticket->bags);
    for (uint64_t b = 0; b < bags; b++)
        for (int64_t i = ticket->offsets[b]; i < ticket->offsets[b + 1]; i++)
            ticket->bags[i] = (uint32_t)b;
}

/* The key that dedup compares. */
static uint64_t compared(const oracle *model, uint32_t table, uint64_t key) {
    const uint64_t rows = model->tables[table].options.capacity;
    return model->by_row && key > rows ? rows : key;
}

typedef struct occurrence {
    uint64_t key; /* as compared() */
    uint64_t i;
} occurrence;

static int by_key(const void *one, const void *other) {
    const occurrence *a = one, *b = other;
    return a->key != b->key ? (a->key < b->key ? -1 : 1) : a->i < b->i ? -1 : a->i > b->i;
}

/* Find the distinct keys of each table, in the order of their first occurrence or by row, by a hash table that is
 * emptied for each table: equal keys of two tables are distinct. */
static void find_uniques(oracle_ticket *ticket) {
    const oracle *model = ticket->model;
    const uint64_t *keys = ticket->batch.keys;
    uint64_t places = 1;
    while (places < 2 * ticket->num_keys)
        places *= 2;
    uint32_t *seen = allocate(places, sizeof *seen); /* number of the distinct key + 1, or 0 */
    ticket->unique_offsets = allocate(model->num_tables + 1U, sizeof(uint32_t));
    ticket->unique_keys = allocate(ticket->num_keys, sizeof(uint64_t));
    ticket->counts = allocate(ticket->num_keys, sizeof(uint64_t));
    ticket->occurrences = allocate(ticket->num_keys, sizeof(uint32_t));
    ticket->inverse = allocate(ticket->num_keys, sizeof(uint32_t));
    occurrence *order = allocate(ticket->num_keys, sizeof *order);
    uint32_t uniques = 0;
    uint64_t start = 0; /* positions are ordered by table, because features are */
    for (uint32_t t = 0; t < model->num_tables; t++) {
        uint64_t n = 0;
        for (uint64_t i = start; i < ticket->num_keys && table_of(ticket, i) == t; i++)
            order[n++] = (occurrence){compared(model, t, keys[i]), i};
        start += n;
        if (model->by_row)
            qsort(order, n, sizeof *order, by_key);
        memset(seen, 0, (size_t)places * sizeof *seen);
        for (uint64_t k = 0; k < n; k++) {
            const uint64_t i = order[k].i, key = order[k].key;
            uint64_t at = (key * 0x9E3779B97F4A7C15U >> 17) & (places - 1);
            while (seen[at] != 0 && compared(model, t, ticket->unique_keys[seen[at] - 1]) != key)
                at = (at + 1) & (places - 1);
            if (seen[at] == 0) {
                ticket->unique_keys[uniques] = keys[i];
                seen[at] = ++uniques;
            }
            ticket->inverse[i] = seen[at] - 1;
            ticket->counts[seen[at] - 1] +=
                ticket->batch.counts == NULL ? 1 : ticket->batch.counts[i];
            ticket->occurrences[seen[at] - 1]++;
        }
        ticket->unique_offsets[t + 1] = uniques;
    }
    free(order);
    free(seen);
}

/* Whether a key without a row is admitted.  `refused`: the library gave it no slot. */
static bool admits(oracle *model, uint32_t number, uint64_t key, uint64_t count, bool refused) {
    oracle_table *table = &model->tables[number];
    if (table->options.kind == HOTBED_TABLE_STATIC || table->options.admission == HOTBED_ADMIT_ALL)
        return true;
    if (table->options.admission == HOTBED_ADMIT_PROBABILISTIC)
        return !refused;
    const uint64_t *before = oracle_count(model, number, key);
    uint64_t sum = (before == NULL ? 0 : *before) + count;
    if (sum < table->options.admission_threshold) {
        oracle_set_count(model, number, key, sum);
        return false;
    }
    oracle_forget_count(model, number, key);
    return true;
}

/* Update score and time of a key that occurs `count` times in the batch. */
static void score_row(
    const oracle *model, const oracle_table *table, oracle_row *row, uint64_t count) {
    hotbed_score_strategy kind = table->options.score;
    if (kind == HOTBED_SCORE_LFU || kind == HOTBED_SCORE_TIMESTAMP_LFU)
        row->score = row->score + count < SCORE_MOST ? row->score + count : SCORE_MOST;
    else if (kind == HOTBED_SCORE_CUSTOM)
        row->score = table->custom_score;
    else if (kind == HOTBED_SCORE_STEP)
        row->score = model->state.clock;
    row->time = model->time;
    row->set_time = false;
}

/* Find or create the row of a distinct key and pin it.  NONE if the key is refused or rejected.  A key without a row
 * takes the next initial values of `block`. */
static uint32_t unique_row(
    oracle_ticket *ticket, uint32_t number, uint32_t unique, bool refused, const void *block,
    uint64_t *used) {
    oracle *model = ticket->model;
    oracle_table *table = &model->tables[number];
    uint64_t key = ticket->unique_keys[unique], count = ticket->counts[unique];
    table->stats.keys += ticket->occurrences[unique];
    table->stats.uniques++;
    bool absent = find(table, key) == NONE;
    uint32_t place = refused ? NONE : find(table, key);
    if (place != NONE)
        table->stats.hits++;
    bool rejected = absent && !admits(model, number, key, count, refused);
    if (place == NONE && (rejected || refused || table->options.kind == HOTBED_TABLE_STATIC)) {
        table->stats.rejected += rejected;
        table->stats.refused += !rejected;
        ticket->initials[unique] = initial_weights(table, block, (*used)++);
        return NONE;
    }
    if (place == NONE) {
        table->stats.inserts++;
        place = put(model, number, key, block, (*used)++);
    }
    if (table->options.kind == HOTBED_TABLE_HASH)
        score_row(model, table, &table->rows[place], count);
    table->rows[place].pins++;
    return place;
}

/* A key may also be refused though it has a row: if its external store fails. */
static bool is_refused(const uint64_t *slots, uint32_t u) {
    return slots != NULL && slots[u] == HOTBED_SLOT_NONE;
}

void oracle_prefetch(
    oracle *model, const hotbed_batch *batch, oracle_ticket *ticket, const uint64_t *slots) {
    oracle_cancel(ticket);
    empty(ticket);
    copy_batch(ticket, batch);
    find_uniques(ticket);
    uint32_t uniques = ticket->unique_offsets[model->num_tables];
    ticket->rows = allocate(uniques, sizeof *ticket->rows);
    ticket->initials = allocate(uniques, sizeof *ticket->initials);
    model->state.clock++;
    model->time = model->state.clock;
    uint64_t *absent = allocate(uniques, sizeof *absent);
    for (uint32_t t = 0; t < model->num_tables; t++) {
        uint64_t n = 0, used = 0;
        for (uint32_t u = ticket->unique_offsets[t]; u < ticket->unique_offsets[t + 1]; u++)
            if (is_refused(slots, u) || find(&model->tables[t], ticket->unique_keys[u]) == NONE)
                absent[n++] = ticket->unique_keys[u];
        void *block = initial_block(model, t, n, absent);
        for (uint32_t u = ticket->unique_offsets[t]; u < ticket->unique_offsets[t + 1]; u++) {
            ticket->rows[u] = unique_row(ticket, t, u, is_refused(slots, u), block, &used);
        }
        free(block);
    }
    free(absent);
    ticket->held = true;
}

static void unpin(oracle_ticket *ticket) {
    const oracle *model = ticket->model;
    for (uint32_t t = 0; t < model->num_tables; t++)
        for (uint32_t u = ticket->unique_offsets[t]; u < ticket->unique_offsets[t + 1]; u++)
            if (ticket->rows[u] != NONE)
                model->tables[t].rows[ticket->rows[u]].pins--;
    ticket->held = false;
}

void oracle_cancel(oracle_ticket *ticket) {
    if (ticket->held)
        unpin(ticket);
}

/* Pool the n rows of a bag, in bag order, into output[at ...]. */
static void pool_bag(
    const oracle *model, uint32_t dim, uint64_t n, const float *const *rows, const float *weights,
    void *output, uint64_t at) {
    for (uint32_t e = 0; e < dim; e++) {
        float sum = 0.0F;
        for (uint64_t i = 0; i < n; i++)
            sum += weights == NULL ? rows[i][e] : weights[i] * rows[i][e];
        if (model->options.pooling == HOTBED_POOL_MEAN && n != 0)
            sum = sum / (float)n;
        oracle_store(model->options.output_dtype, output, at + e, sum);
    }
}

/* Write the output of a batch whose key i reads as rows[i]. */
static void pool(
    const oracle *model, const hotbed_batch *batch, const int64_t *offsets,
    const float *const *rows, void *output, uint64_t stride) {
    uint64_t step = stride == 0 ? oracle_least_stride(model) : stride;
    for (uint32_t f = 0; f < model->num_features; f++) {
        uint32_t dim = model->tables[model->feature_tables[f]].options.dim;
        for (uint32_t s = 0; s < batch->batch_size; s++) {
            uint64_t bag = (uint64_t)f * batch->batch_size + s;
            uint64_t first = (uint64_t)offsets[bag];
            uint64_t n = (uint64_t)offsets[bag + 1] - first;
            if (model->options.pooling != HOTBED_POOL_NONE) {
                pool_bag(
                    model, dim, n, rows + first,
                    batch->weights == NULL ? NULL : batch->weights + first, output,
                    s * step + model->columns[f]);
                continue;
            }
            for (uint64_t i = first; i < first + n; i++)
                for (uint32_t e = 0; e < dim; e++)
                    oracle_store(model->options.output_dtype, output, i * step + e, rows[i][e]);
        }
    }
}

void oracle_forward(const oracle_ticket *ticket, void *output, uint64_t stride) {
    oracle *model = ticket->model;
    const float **rows = allocate(ticket->num_keys, sizeof *rows);
    float **own = allocate(
        ticket->num_keys, sizeof *own); /* keys that count as one differ in their initial rows */
    for (uint64_t i = 0; i < ticket->num_keys; i++) {
        uint32_t unique = ticket->inverse[i], row = ticket->rows[unique], t = table_of(ticket, i);
        const uint64_t *key = (const uint64_t *)ticket->batch.keys + i;
        if (row == NONE && *key != ticket->unique_keys[unique]) {
            void *block = initial_block(model, t, 1, key);
            own[i] = initial_weights(&model->tables[t], block, 0);
            free(block);
        }
        rows[i] = row != NONE      ? model->tables[t].rows[row].weights
                  : own[i] != NULL ? own[i]
                                   : ticket->initials[unique];
    }
    pool(model, &ticket->batch, ticket->offsets, rows, output, stride);
    for (uint64_t i = 0; i < ticket->num_keys; i++)
        free(own[i]);
    free(own);
    free(rows);
}

void oracle_eval(oracle *model, const hotbed_batch *batch, void *output, uint64_t stride) {
    oracle_ticket *ticket = oracle_ticket_create(model);
    copy_batch(ticket, batch);
    find_uniques(ticket);
    const float **rows = allocate(ticket->num_keys, sizeof *rows);
    float **missing = allocate(model->num_tables, sizeof *missing);
    for (uint32_t t = 0; t < model->num_tables; t++) {
        const hotbed_table_options *options = &model->tables[t].options;
        missing[t] = allocate(options->dim, sizeof(float));
        for (uint32_t e = 0; e < options->dim; e++)
            missing[t][e] = options->eval_initializer.value;
    }
    for (uint64_t i = 0; i < ticket->num_keys; i++) {
        uint32_t t = table_of(ticket, i);
        const oracle_row *row = oracle_find(model, t, ((const uint64_t *)ticket->batch.keys)[i]);
        rows[i] = row == NULL ? missing[t] : row->weights;
    }
    pool(model, &ticket->batch, ticket->offsets, rows, output, stride);
    for (uint32_t t = 0; t < model->num_tables; t++)
        free(missing[t]);
    free(missing);
    free(rows);
    oracle_ticket_destroy(ticket);
}

/* --- the optimizer --------------------------------------------------------------------------- */

/* Sum in the documented order: groups of 32 values, then groups of 32 sums, until one is left. */
static float tree_sum(float *values, uint64_t n) {
    do {
        uint64_t groups = (n + GROUP - 1) / GROUP;
        for (uint64_t g = 0; g < groups; g++) {
            float sum = 0.0F;
            for (uint64_t i = g * GROUP; i < n && i < (g + 1) * GROUP; i++)
                sum += values[i];
            values[g] = sum;
        }
        n = groups;
    } while (n > 1);
    return values[0];
}

/* Without decay the weight is not read: 0 times an infinite weight would be NaN. */
static float decayed(const hotbed_optimizer *o, float direction, float w) {
    return o->weight_decay == 0.0F ? direction : direction + o->weight_decay * w;
}

/* Sum in the order of storage/step/optimizer_core.h: groups of four elements go to 32 sums in turn, which are
 * then added pairwise, 16, 8, 4, 2 and 1 apart. */
static float square_sum(const float *g, uint32_t dim) {
    float sums[32] = {0};
    for (uint32_t e = 0; e < dim; e++)
        sums[e / 4 % 32] += g[e] * g[e];
    for (uint32_t apart = 16; apart > 0; apart /= 2)
        for (uint32_t k = 0; k < apart; k++)
            sums[k] += sums[k + apart];
    return sums[0];
}

/* The same of the elements. */
static float plain_sum(const float *g, uint32_t dim) {
    float sums[32] = {0};
    for (uint32_t e = 0; e < dim; e++)
        sums[e / 4 % 32] += g[e];
    for (uint32_t apart = 16; apart > 0; apart /= 2)
        for (uint32_t k = 0; k < apart; k++)
            sums[k] += sums[k + apart];
    return sums[0];
}

/* What a step of an element uses. */
typedef struct step_of {
    const hotbed_optimizer *o;
    float lr, unbias1, unbias2;
} step_of;

/* Update a moment: keep `share` of it. */
static void average(float *m, float share, float value) {
    *m = share * *m + (1.0F - share) * value;
}

static float adam(const step_of *s, float m, float v) {
    return m / s->unbias1 / (sqrtf(v / s->unbias2) + s->o->eps);
}

static float power(float n, float p) {
    return p == -0.5F ? sqrtf(n) : (float)pow((double)n, -(double)p);
}

static float ftrl(const step_of *s, float w, float g, float *z, float *n) {
    const hotbed_optimizer *o = s->o;
    const float before = power(*n, o->learning_rate_power);
    *n += g * g;
    const float after = power(*n, o->learning_rate_power);
    *z += g - (after - before) / s->lr * w;
    if (fabsf(*z) <= o->l1_reg)
        return 0.0F;
    return (copysignf(o->l1_reg, *z) - *z) / ((o->ftrl_beta + after) / s->lr + o->l2_reg);
}

/* The new value of a weight; a and b are its states. */
static float step_element(const step_of *s, float w, float g, float *a, float *b) {
    const hotbed_optimizer *o = s->o;
    float d;
    switch (o->kind) {
    case HOTBED_OPT_SGD:
        return w - s->lr * decayed(o, g, w);
    case HOTBED_OPT_ADAM:
    case HOTBED_OPT_ROW_STEPS_ADAM:
    case HOTBED_OPT_LAMB:
        average(a, o->beta1, g);
        average(b, o->beta2, g * g);
        return w - s->lr * decayed(o, adam(s, *a, *b), w);
    case HOTBED_OPT_ROWWISE_ADAM:
        return w - s->lr * decayed(o, adam(s, *a, *b), w);
    case HOTBED_OPT_PARTIAL_ROWWISE_ADAM:
        average(a, o->beta1, g);
        return w - s->lr * decayed(o, adam(s, *a, *b), w);
    case HOTBED_OPT_ADAGRAD:
        *a += g * g;
        return w - s->lr * decayed(o, g / (sqrtf(*a) + o->eps), w);
    case HOTBED_OPT_ROWWISE_ADAGRAD:
        return w - s->lr * decayed(o, g / (sqrtf(*a) + o->eps), w);
    case HOTBED_OPT_FTRL:
        return ftrl(s, w, g, a, b);
    case HOTBED_OPT_MOMENTUM:
        *a = o->momentum * *a + g;
        return w - s->lr * decayed(o, *a, w);
    case HOTBED_OPT_NESTEROV:
        *a = o->momentum * *a + g;
        return w - s->lr * decayed(o, g + o->momentum * *a, w);
    case HOTBED_OPT_RMSPROP:
        average(a, o->rho, g * g);
        return w - s->lr * decayed(o, g / (sqrtf(*a) + o->eps), w);
    case HOTBED_OPT_ADADELTA:
        average(a, o->rho, g * g);
        d = sqrtf(*b + o->eps) / sqrtf(*a + o->eps) * g;
        average(b, o->rho, d * d);
        return w - s->lr * decayed(o, d, w);
    case HOTBED_OPT_LION:
        d = o->beta1 * *a + (1.0F - o->beta1) * g;
        average(a, o->beta2, g);
        return w - s->lr * decayed(o, d == 0.0F ? d : copysignf(1.0F, d), w);
    case HOTBED_OPT_LARS:
        *a = o->momentum * *a + s->lr * (g + o->weight_decay * w);
        return w - *a;
    }
    return w;
}

/* The factor by which norms of the row change the learning rate. */
static float rate_factor(const step_of *s, const oracle_row *row, const float *g, uint32_t dim) {
    const hotbed_optimizer *o = s->o;
    float *along = copy_of(g, dim, sizeof *g);
    for (uint32_t e = 0; e < dim && o->kind == HOTBED_OPT_LAMB; e++) {
        float m = row->states[0][e], v = row->states[1][e];
        average(&m, o->beta1, g[e]);
        average(&v, o->beta2, g[e] * g[e]);
        along[e] = decayed(o, adam(s, m, v), row->weights[e]);
    }
    const float w = sqrtf(square_sum(row->weights, dim)), u = sqrtf(square_sum(along, dim));
    free(along);
    if (w == 0.0F || u == 0.0F)
        return 1.0F;
    return o->kind == HOTBED_OPT_LAMB ? w / u : o->trust * w / (u + o->weight_decay * w + o->eps);
}

/* Store the values of a step that began with `before` in a row with scales, and replace its remainders, if there are
 * any.  Returns whether the row changes. */
static bool store_scaled(
    const oracle *model, const oracle_table *table, oracle_row *row, const float *values,
    const float *before, int8_t *rests) {
    const uint32_t dim = table->options.dim;
    uint8_t *old = copy_of(row->stored, stored_bytes(table), 1);
    int8_t *old_rests = rests == NULL ? NULL : copy_of(rests, dim, 1);
    uint32_t *words = NULL;
    if (table->options.rounding == HOTBED_ROUND_STOCHASTIC) {
        words = allocate(dim, sizeof *words);
        for (uint32_t e = 0; e < dim; e++)
            words[e] = rounding_word(model, table, row->key, ROW, e);
    }
    write_scaled(table->options.dtype, dim, values, before, words, rests, row->stored);
    read_row(table, row->stored, row->weights);
    bool changes = memcmp(old, row->stored, stored_bytes(table)) != 0;
    for (uint32_t e = 0; rests != NULL && e < dim; e++) {
        changes = changes || rests[e] != old_rests[e];
        put_remainder(&row->states[0][e], rests[e], words[e]);
    }
    free(words);
    free(old_rests);
    free(old);
    return changes;
}

/* The bias correction for the next step of a row that counts its own, and count it. */
static void count_row_step(step_of *s, float *steps) {
    *steps += 1.0F;
    s->unbias1 = (float)(1.0 - pow((double)s->o->beta1, (double)*steps));
    s->unbias2 = (float)(1.0 - pow((double)s->o->beta2, (double)*steps));
}

static void update_row(oracle *model, oracle_table *table, oracle_row *row, const float *sums) {
    const hotbed_optimizer *o = &table->optimizer;
    uint32_t dim = table->options.dim;
    const bool own = table->options.optimizer != NULL;
    step_of s = {o, own ? o->learning_rate : model->state.learning_rate, 0.0F, 0.0F};
    s.unbias1 = (float)(1.0 - model->state.beta1_power);
    s.unbias2 = (float)(1.0 - model->state.beta2_power);
    if (o->kind == HOTBED_OPT_ROW_STEPS_ADAM)
        count_row_step(&s, &row->states[1][dim]);
    float *g = copy_of(sums, dim, sizeof *sums);
    for (uint32_t e = 0; e < dim && o->l2_decay != 0.0F; e++)
        g[e] += row->weights[e] * o->l2_decay;
    if (o->kind == HOTBED_OPT_ROWWISE_ADAGRAD)
        row->states[0][0] += square_sum(g, dim) / (float)dim;
    if (o->kind == HOTBED_OPT_ROWWISE_ADAM)
        average(row->states[0], o->beta1, plain_sum(g, dim) / (float)dim);
    if (o->kind == HOTBED_OPT_PARTIAL_ROWWISE_ADAM || o->kind == HOTBED_OPT_ROWWISE_ADAM)
        average(row->states[1], o->beta2, square_sum(g, dim) / (float)dim);
    if (o->kind == HOTBED_OPT_LAMB || o->kind == HOTBED_OPT_LARS)
        s.lr *= rate_factor(&s, row, g, dim);
    bool steps = false, changes = false;
    float *from = copy_of(row->weights, dim, sizeof *from);
    int8_t *rests = carries(model, table) ? allocate(dim, 1) : NULL;
    for (uint32_t e = 0; rests != NULL && e < dim; e++) {
        rests[e] = take_remainder(&row->states[0][e]);
        from[e] = read_carried(table->options.dtype, dim, row->stored, e, rests[e]);
    }
    for (uint32_t e = 0; e < dim; e++) {
        float none = 0.0F, *a = &none, *b = &none;
        if (table->state_dim[0] != 0)
            a = &row->states[0][table->state_dim[0] == 1 ? 0 : e];
        if (table->state_dim[1] != 0)
            b = &row->states[1][table->state_dim[1] == 1 ? 0 : e];
        const float before = from[e], w = step_element(&s, before, g[e], a, b);
        for (uint32_t i = 0; i < 2; i++)
            if (table->state_dtype[i] != HOTBED_F32)
                row->states[i][e] = stepped(
                    model, table, table->state_dtype[i], row->key, FIRST + i, e, row->states[i][e]);
        steps = steps || w != before;
        if (row->stored != NULL) {
            g[e] = w;
            continue;
        }
        row->weights[e] = stepped(model, table, table->options.dtype, row->key, ROW, e, w);
        changes = changes || float_bits(row->weights[e]) != float_bits(before);
    }
    if (row->stored != NULL)
        changes = store_scaled(model, table, row, g, from, rests);
    table->stats.rounded_away += table->options.dtype != HOTBED_F32 && steps && !changes;
    free(rests);
    free(from);
    free(g);
}

/* The share of position i of the batch in element e of its row's gradient. */
static float share(
    const oracle_ticket *ticket, const oracle_table *table, const void *gradient, uint64_t stride,
    uint64_t i, uint32_t e) {
    const oracle *model = ticket->model;
    hotbed_dtype dtype = model->options.output_dtype;
    float limit = table->optimizer.max_gradient;
    uint32_t bag = ticket->bags[i], batch_size = ticket->batch.batch_size;
    bool pooled = model->options.pooling != HOTBED_POOL_NONE;
    uint64_t at =
        pooled ? bag % batch_size * stride + model->columns[bag / batch_size] + e : i * stride + e;
    float g = oracle_load(dtype, gradient, at);
    if (limit > 0.0F)
        g = g > limit ? limit : g < -limit ? -limit : g;
    if (!pooled)
        return g;
    if (model->options.pooling == HOTBED_POOL_MEAN)
        g = g * (1.0F / (float)(ticket->offsets[bag + 1] - ticket->offsets[bag]));
    return ticket->batch.weights == NULL ? g : g * ticket->batch.weights[i];
}

/* Positions of each distinct key, in batch order: list[starts[u] .. starts[u + 1]). */
static uint64_t *positions(const oracle_ticket *ticket, uint64_t *starts) {
    uint32_t uniques = ticket->unique_offsets[ticket->model->num_tables];
    uint64_t *list = allocate(ticket->num_keys, sizeof *list);
    for (uint32_t u = 0; u < uniques; u++)
        starts[u + 1] = starts[u] + ticket->occurrences[u];
    uint64_t *next = copy_of(starts, uniques, sizeof *next);
    for (uint64_t i = 0; i < ticket->num_keys; i++)
        list[next[ticket->inverse[i]]++] = i;
    free(next);
    return list;
}

void oracle_reduce(
    const oracle_ticket *ticket, const void *gradient, uint64_t stride, bool add, float *sums) {
    const oracle *model = ticket->model;
    uint64_t step = stride == 0 ? oracle_least_stride(model) : stride;
    uint32_t uniques = ticket->unique_offsets[model->num_tables];
    uint64_t *starts = allocate(uniques + 1U, sizeof *starts);
    uint64_t *list = positions(ticket, starts);
    float *values = allocate(ticket->num_keys, sizeof *values);
    for (uint32_t t = 0; t < model->num_tables; t++)
        for (uint32_t u = ticket->unique_offsets[t]; u < ticket->unique_offsets[t + 1]; u++)
            for (uint32_t e = 0; e < model->tables[t].options.dim; e++) {
                float *sum = sums + (uint64_t)u * model->max_dim + e;
                for (uint64_t i = starts[u]; i < starts[u + 1]; i++)
                    values[i - starts[u]] =
                        share(ticket, &model->tables[t], gradient, step, list[i], e);
                *sum = (add ? *sum : 0.0F) + tree_sum(values, ticket->occurrences[u]);
            }
    free(values);
    free(list);
    free(starts);
}

void oracle_apply(oracle_ticket *ticket, const float *sums) {
    oracle *model = ticket->model;
    model->state.optimizer_steps++;
    model->state.beta1_power *= (double)model->options.optimizer.beta1;
    model->state.beta2_power *= (double)model->options.optimizer.beta2;
    for (uint32_t t = 0; t < model->num_tables; t++) {
        oracle_table *table = &model->tables[t];
        for (uint32_t u = ticket->unique_offsets[t]; u < ticket->unique_offsets[t + 1]; u++)
            if (ticket->rows[u] != NONE)
                update_row(
                    model, table, &table->rows[ticket->rows[u]],
                    sums + (uint64_t)u * model->max_dim);
    }
    unpin(ticket);
}

void oracle_backward(oracle_ticket *ticket, const void *gradient, uint64_t stride) {
    const oracle *model = ticket->model;
    uint64_t uniques = ticket->unique_offsets[model->num_tables];
    float *sums = allocate(uniques * model->max_dim, sizeof *sums);
    oracle_reduce(ticket, gradient, stride, false, sums);
    oracle_apply(ticket, sums);
    free(sums);
}
