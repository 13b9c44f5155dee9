/* tests/storage/test_scaled_core.c - rows with scales (storage/step/row_core.h, update_core.h) at every tile width.
 *
 * Initial rows and steps of emulated tiles must have the bytes of a tile of one lane, which test_storage_scaled compares
 * with a model.
 */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "storage/step/update_core.h"
#include "tests/support/emulate.h"
#include "tests/support/harness.h"

enum { DIM_MOST = 260, ROW = 320, STEPS = 6 };

typedef struct work {
    hotbed_table_view table;
    hotbed_optimizer_view o;
    hotbed_clock clock;
    uint8_t row[ROW] HOTBED_ALIGN(16);
    float states[2][DIM_MOST + 4] HOTBED_ALIGN(16);
    float gradient[DIM_MOST + 4] HOTBED_ALIGN(16);
    float read[DIM_MOST + 4];
    uint32_t width, bits;
} work;

static void start(void *argument) {
    work *w = argument;
    hotbed_row_init_weights(&w->table, w->row, 77, w->width);
}

static void step(void *argument) {
    work *w = argument;
    const hotbed_rounding_view rounding =
        hotbed_rounding_of(&w->table, 77, w->clock.optimizer.steps);
    const hotbed_gradient_view gradient = {w->gradient, DIM_MOST, HOTBED_F32, NULL};
    const hotbed_sum_source source = {0, 0, NULL, 0};
    const hotbed_update_shape shape = {false, false, true, false};
    const uint32_t bits = hotbed_update_parts(
        NULL, &w->o, &w->clock, gradient, &w->table, &rounding, w->row, w->states[0], w->states[1],
        source, shape, w->width);
    const uint32_t all = hotbed_tile_or(w->width, bits);
    if (hotbed_tile_rank(w->width) == 0)
        w->bits = all;
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
        hotbed_emulate_run(w->width, step, w);
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
                    CHECK_BYTES(w.states, one.states, sizeof w.states);
                    CHECK_BYTES(w.read, one.read, dims[d] * sizeof *w.read);
                    CHECK_EQ(w.bits, one.bits);
                }
            }
}

const hotbed_test hotbed_tests[] = {
    {"every_width_gives_the_same_bytes", every_width_gives_the_same_bytes},
    {NULL, NULL},
};
