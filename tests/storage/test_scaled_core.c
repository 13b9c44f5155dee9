/* tests/storage/test_scaled_core.c - rows with scales (storage/step/row_core.h, update_core.h) at every tile width.
 *
 * Initial rows and steps of emulated tiles must have the bytes of a tile of one lane, which test_storage_scaled
 * compares with a model.
 */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "storage/step/registers_core.h"
#include "tests/support/emulate.h"
#include "tests/support/harness.h"

enum { DIM_MOST = 260, ROW = 320, STEPS = 6, STATE0 = 320, STATE1 = 1408, ROW_BYTES = 2496 };

typedef struct work {
    hotbed_table_view table;
    hotbed_optimizer_view o;
    hotbed_clock clock;
    uint8_t row[ROW_BYTES] HOTBED_ALIGN(16); /* the embedding and both states */
    float gradient[DIM_MOST + 4] HOTBED_ALIGN(16);
    float read[DIM_MOST + 4];
    uint32_t width, bits;
    bool registers; /* steps in registers */
    uint64_t lost;  /* steps that were lost to rounding */
} work;

static float *state_of(work *w, uint32_t state) {
    return (float *)(void *)(w->row + (state == 0 ? STATE0 : STATE1));
}

static void start(void *argument) {
    work *w = argument;
    hotbed_row_init_weights(&w->table, w->row, 77, w->width);
}

/* A step of key 77, the only one of a static table, in a sequence of one key. */
static void step_in_registers(void *argument) {
    work *w = argument;
    const uint32_t position = 0;
    uint64_t key = 77;
    hotbed_tally tally;
    hotbed_step_view s;
    memset(&tally, 0, sizeof tally);
    memset(&s, 0, sizeof s);
    s.storage.tables = &w->table;
    s.storage.clock = &w->clock;
    s.storage.tallies = &tally;
    s.unique.keys = &key;
    s.unique.positions = (uint32_t *)&position;
    const hotbed_gradient_view gradient = {w->gradient, DIM_MOST, HOTBED_F32, NULL};
    const hotbed_sum_source source = {0, 1, NULL, 0};
    const uint32_t groups = (w->table.dim + 3) / 4, quads = (groups + w->width - 1) / w->width;
    const hotbed_register_shape shape = {w->o.kind,      false, HOTBED_ROWS_SCALED, quads, 1,
                                         w->width == 32, false};
    hotbed_update_in_registers(&s, &w->o, gradient, &w->table, 0, 0, source, 0, shape, w->width);
    if (hotbed_tile_rank(w->width) == 0)
        w->lost += tally.rounded_away;
}

static void step(void *argument) {
    work *w = argument;
    const hotbed_rounding_view rounding =
        hotbed_rounding_of(&w->table, 77, w->clock.optimizer.steps);
    const hotbed_gradient_view gradient = {w->gradient, DIM_MOST, HOTBED_F32, NULL};
    const hotbed_sum_source source = {0, 0, NULL, 0};
    const hotbed_update_shape shape = {false, false, true, false, false};
    const uint32_t bits = hotbed_update_parts(
        NULL, &w->o, &w->clock, gradient, &w->table, &rounding, w->row, state_of(w, 0),
        state_of(w, 1), source, shape, w->width);
    const uint32_t all = hotbed_tile_or(w->width, bits);
    if (hotbed_tile_rank(w->width) != 0)
        return;
    w->bits = all;
    w->lost += all == HOTBED_ROW_STEPS ? 1 : 0;
}

static void read_row(void *argument) {
    work *w = argument;
    for (uint32_t e = 4 * hotbed_tile_rank(w->width); e < w->table.dim; e += 4 * w->width) {
        const hotbed_f32x4 v = hotbed_row_load4(
            true, w->table.dtype, w->table.dim, w->row, e, hotbed_count4(w->table.dim, e));
        memcpy(w->read + e, &v, sizeof v);
    }
}

static void make(work *w, uint32_t dtype, uint32_t dim, uint32_t kind, bool random) {
    memset(w, 0, sizeof *w);
    w->table.dtype = dtype;
    w->table.dim = dim;
    w->table.random = random;
    w->table.rows = w->row;
    w->table.row_bytes = ROW_BYTES;
    w->table.slots = 1;
    w->table.lower_first = UINT64_MAX;
    w->table.state_dtype[0] = w->table.state_dtype[1] = HOTBED_F32;
    w->table.state_offset[0] = STATE0, w->table.state_offset[1] = STATE1;
    w->table.init.kind = HOTBED_INIT_UNIFORM;
    w->table.init.offset = w->table.init.low = -0.5F;
    w->table.init.scale = 1.0F;
    w->table.init.high = 0.5F;
    w->o.kind = kind;
    w->o.form = hotbed_state_form_of(kind);
    w->o.beta1 = 0.9F, w->o.beta2 = 0.99F, w->o.eps = 1e-8F;
    w->clock.optimizer.learning_rate = 0.01F;
    w->clock.optimizer.beta1_power = w->clock.optimizer.beta2_power = 1.0;
}

/* The same gradients for each width; some steps move few elements, and one makes the row NaN in an element. */
static void take_steps(work *w) {
    uint64_t seed = 5;
    hotbed_emulate_run(w->width, start, w);
    for (uint32_t n = 0; n < STEPS; n++) {
        for (uint32_t e = 0; e < w->table.dim; e++) {
            seed = hotbed_hash_u64(seed + e);
            w->gradient[e] = (float)(seed & 1023U) / 512.0F - 1.0F;
            if (n == 2 && e % 5 != 0)
                w->gradient[e] = 0.0F;
        }
        if (n == STEPS - 1)
            w->gradient[0] = hotbed_bits_float(0x7fc00000U);
        hotbed_clock_step(&w->clock, w->o.beta1, w->o.beta2);
        hotbed_emulate_run(w->width, w->registers ? step_in_registers : step, w);
    }
    hotbed_emulate_run(w->width, read_row, w);
}

static void every_width_gives_the_same_bytes(hotbed_backend backend) {
    static const uint32_t widths[] = {4, 8, 16, 32}, types[] = {HOTBED_INT8, HOTBED_FP8};
    static const uint32_t dims[] = {1, 3, 4, 30, 64, 65, 96, 128, 131, 260};
    static work one, w;
    (void)backend;
    for (uint32_t t = 0; t < 2; t++)
        for (uint32_t d = 0; d < sizeof dims / sizeof *dims; d++)
            for (uint32_t kind = 1; kind <= HOTBED_OPT_LAST; kind++) {
                const bool random = (d + kind) % 3 != 0;
                make(&one, types[t], dims[d], kind, random);
                one.width = 1;
                take_steps(&one);
                for (uint32_t i = 0; i < 4; i++) {
                    make(&w, types[t], dims[d], kind, random);
                    w.width = widths[i];
                    take_steps(&w);
                    CHECK_BYTES(w.row, one.row, sizeof w.row);
                    CHECK_BYTES(w.read, one.read, dims[d] * sizeof *w.read);
                    CHECK_EQ(w.bits, one.bits);
                }
            }
}

/* Rows in registers have the bytes of a tile of one lane that goes through the row, for each dim that they may have. */
static void rows_in_registers_get_the_same_bytes(hotbed_backend backend) {
    static const uint32_t widths[] = {4, 8, 16, 32}, types[] = {HOTBED_INT8, HOTBED_FP8};
    static work one, w;
    (void)backend;
    for (uint32_t dim = 4; dim <= 128; dim += 4)
        for (uint32_t k = 0; k < 2 * HOTBED_OPT_LAST; k++) {
            const uint32_t kind = 1 + k / 2, type = types[k % 2];
            const bool random = (dim / 4 + kind) % 3 != 0;
            if (kind > HOTBED_OPT_COMPILED && dim % 32 != 0)
                continue;
            make(&one, type, dim, kind, random);
            one.width = 1;
            take_steps(&one);
            for (uint32_t i = 0; i < 4; i++) {
                if (dim > 4 * HOTBED_QUADS_MOST * widths[i])
                    continue;
                make(&w, type, dim, kind, random);
                w.width = widths[i];
                w.registers = true;
                take_steps(&w);
                CHECK_BYTES(w.row, one.row, sizeof w.row);
                CHECK_BYTES(w.read, one.read, dim * sizeof *w.read);
                CHECK_EQ(w.lost, one.lost);
            }
        }
}

const hotbed_test hotbed_tests[] = {
    {TEST(rows_in_registers_get_the_same_bytes)},
    {TEST(every_width_gives_the_same_bytes)},
    {NULL, NULL},
};
