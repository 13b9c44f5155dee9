/* tests/storage/test_step_core.c - cores of forward, backward, eval and initial values, at every tile width.
 *
 * A storage on the host prefetches a batch.  Then tiles of 1, 4, 8, 16 and 32 emulated lanes run the cores on the
 * ticket's arrays, in the order in which the CUDA kernels call them, with the partial sums of frequent keys, and with
 * backward in one call or as reduce and apply.  All results must have the same bytes as the library's on the host.
 */
#define HOTBED_TILE_EMULATE
#include "base/tile.h"

#include "storage/step/registers_core.h"
#include "storage/storage.h"
#include "storage/ticket.h"
#include "tests/storage/fixture.h"
#include "tests/support/emulate.h"

#include <stdlib.h>

static const uint32_t widths[] = {1, 4, 8, 16, 32};

enum {
    WIDTHS = sizeof widths / sizeof widths[0],
    TABLES = 3,
    PARTS = 400,
    EVAL_KEYS = 600,
    TURN = 3
};

/* Arguments of the kernels. */
typedef struct work {
    hotbed_step_view s;
    hotbed_optimizer_view o;
    hotbed_gradient_view gradient;
    hotbed_update_shape shape;
    hotbed_register_shape registers;
    hotbed_part_shape part;
    void *output;
    uint64_t stride;
    uint32_t width;
    uint32_t bags; /* that a tile takes at once */
    /* partial sums in the layout of update.cu: [PARTS, row] */
    float *leaf_sums, *group_sums;
    uint64_t row;
    hotbed_sums_view sums;                          /* of reduce */
    uint32_t first_leaf[PARTS], first_group[PARTS]; /* of each distinct key */
    uint32_t leaf_begin[PARTS], leaf_end[PARTS], leaves;
    uint32_t group_begin[PARTS], group_end[PARTS], groups;
} work;

/* --- kernels, as in lookup.cu and update.cu ------------------------------------------------- */

static void forward_rows(void *argument) {
    const work *w = argument;
    const uint64_t n = w->s.batch.feature_starts[w->s.storage.num_features];
    for (uint64_t i = 0; i < n; i += w->width) {
        const uint64_t first = hotbed_tile_first(&w->s.to, n, i, w->width), left = n - first;
        hotbed_forward_rows(
            &w->s, (uint32_t)first, left < w->width ? (uint32_t)left : w->width, w->output,
            w->stride, w->width);
    }
}

static void forward_bags(void *argument) {
    const work *w = argument;
    uint64_t bags = (uint64_t)w->s.storage.num_features * w->s.batch.size;
    for (uint64_t b = 0; b < bags; b++)
        hotbed_forward_bag(&w->s, b, w->output, w->stride, w->width);
}

/* As the pool_bags kernel, with `w->bags` bags at once. */
static void pool_bags(void *argument) {
    const work *w = argument;
    const hotbed_part_shape shape = w->part;
    for (uint32_t f = 0; f < w->s.storage.num_features; f++)
        for (uint32_t first = 0; first < w->s.batch.size; first += w->bags) {
            const uint32_t left = w->s.batch.size - first, n = left < w->bags ? left : w->bags;
            const uint64_t b = (uint64_t)f * w->s.batch.size + first;
            const hotbed_table_view *table = &w->s.storage.tables[w->s.storage.feature_tables[f]];
            if (!hotbed_forward_bags(&w->s, table, b, n, f, w->output, w->stride, shape, w->width))
                for (uint32_t k = 0; k < n; k++)
                    hotbed_forward_bag(&w->s, b + k, w->output, w->stride, w->width);
        }
}

static void fill_bags(void *argument) {
    const work *w = argument;
    uint64_t bags = (uint64_t)w->s.storage.num_features * w->s.batch.size;
    for (uint64_t b = 0; b < bags; b += w->bags)
        hotbed_fill_bags(
            &w->s, b, bags - b < w->bags ? (uint32_t)(bags - b) : w->bags, w->bags, w->width);
}

/* the two passes of eval by address */
static void eval_rows(void *argument) {
    const work *w = argument;
    const uint64_t n = w->s.batch.feature_starts[w->s.storage.num_features];
    uint64_t epoch = hotbed_eval_epoch(&w->s);
    for (uint64_t i = 0; i < n; i += w->width) {
        const uint64_t first = hotbed_tile_first(&w->s.to, n, i, w->width), left = n - first;
        hotbed_eval_rows(
            &w->s, (uint32_t)first, left < w->width ? (uint32_t)left : w->width, w->output,
            w->stride, true, &epoch, w->width < 4 ? w->width : 4, w->width);
    }
}

static void eval_below(void *argument) {
    const work *w = argument;
    uint32_t n = w->s.eval.sort.bins[0], turn = TURN < w->width ? TURN : w->width;
    for (uint32_t i = 0; i < n; i += turn)
        hotbed_eval_below(
            &w->s, i, n - i < turn ? n - i : turn, w->output, w->stride,
            w->width < 4 ? w->width : 4, w->width);
}

static void sum_leaves(void *argument) {
    const work *w = argument;
    for (uint32_t leaf = 0; leaf < w->leaves; leaf++) {
        uint32_t begin = w->leaf_begin[leaf];
        uint32_t dim =
            w->s.storage
                .tables[hotbed_part_of(w->s.batch.table_starts, w->s.storage.num_tables, begin)]
                .dim;
        for (uint32_t first = 0; first < dim; first += 4 * w->width) {
            uint32_t e = first + 4 * hotbed_tile_rank(w->width);
            uint32_t count = e < dim ? hotbed_count4(dim, e) : 0;
            hotbed_f32x4 sum = hotbed_sum_group(
                &w->s, &w->o, w->gradient, w->shape, begin, w->leaf_end[leaf], e, count, w->width);
            if (count > 0)
                hotbed_store4(HOTBED_F32, w->leaf_sums, leaf * w->row + e, 4, sum);
        }
    }
}

static void sum_groups(void *argument) {
    const work *w = argument;
    for (uint32_t g = 0; g < w->groups; g++) {
        hotbed_sum_source source = {w->group_begin[g], w->group_end[g], w->leaf_sums, w->row};
        for (uint32_t e = 4 * hotbed_tile_rank(w->width); e < w->row; e += 4 * w->width)
            hotbed_store4(
                HOTBED_F32, w->group_sums, g * w->row + e, 4, hotbed_sum_partials(source, e));
    }
}

static hotbed_sum_source source_of(const work *w, uint32_t u) {
    hotbed_sum_source source = {w->s.unique.starts[u], w->s.unique.starts[u + 1], NULL, w->row};
    if (w->shape.reduced)
        source.begin = u;
    uint32_t parts = (source.end - source.begin + HOTBED_SUM_GROUP - 1) / HOTBED_SUM_GROUP;
    if (w->shape.reduced || !w->shape.split || parts <= 1)
        return source;
    bool many = parts > HOTBED_SUM_GROUP;
    source.partials = many ? w->group_sums : w->leaf_sums;
    source.begin = many ? w->first_group[u] : w->first_leaf[u];
    source.end = source.begin + (many ? (parts + HOTBED_SUM_GROUP - 1) / HOTBED_SUM_GROUP : parts);
    return source;
}

HOTBED_HD void update_rows_of(const work *w, uint32_t width) {
    for (uint32_t u = 0; u < w->s.unique.offsets[w->s.storage.num_tables]; u++)
        if (w->s.unique.slots[u] != HOTBED_SLOT_NONE) {
            uint32_t t = hotbed_part_of(w->s.unique.offsets, w->s.storage.num_tables, u);
            hotbed_update_row(
                &w->s, &w->o, w->gradient, &w->s.storage.tables[t], w->s.unique.slots[u], u,
                source_of(w, u), w->shape, width);
        }
}

/* In a kernel the width is a literal, so here, too. */
static void update_rows(void *argument) {
    const work *w = argument;
    switch (w->width) {
    case 1:
        update_rows_of(w, 1);
        break;
    case 4:
        update_rows_of(w, 4);
        break;
    case 8:
        update_rows_of(w, 8);
        break;
    case 16:
        update_rows_of(w, 16);
        break;
    default:
        CHECK_EQ(w->width, 32);
        update_rows_of(w, 32);
        break;
    }
}

/* As the kernels for rows in registers. */
static void sum_leaves_in_registers(void *argument) {
    const work *w = argument;
    for (uint32_t leaf = 0; leaf < w->leaves; leaf++) {
        hotbed_sum_source source = {w->leaf_begin[leaf], w->leaf_end[leaf], NULL, 0};
        uint32_t t = hotbed_part_of(w->s.batch.table_starts, w->s.storage.num_tables, source.begin);
        uint32_t dim = w->s.storage.tables[t].dim;
        uint32_t i = hotbed_addend_occurrence(&w->s, source, source.begin, w->width);
        hotbed_quads sum =
            hotbed_sum_addends(&w->s, w->gradient, source, i, dim, w->registers, w->width);
        for (uint32_t q = 0; q < w->registers.quads; q++) {
            uint32_t e = hotbed_quad_at(q, w->width);
            if (e < dim)
                hotbed_store4(HOTBED_F32, w->leaf_sums, leaf * w->row + e, 4, sum.q[q]);
        }
    }
}

static void update_in_registers(void *argument) {
    const work *w = argument;
    for (uint32_t u = 0; u < w->s.unique.offsets[w->s.storage.num_tables]; u++) {
        if (w->s.unique.slots[u] == HOTBED_SLOT_NONE)
            continue;
        const hotbed_table_view *table =
            &w->s.storage.tables[hotbed_part_of(w->s.unique.offsets, w->s.storage.num_tables, u)];
        hotbed_sum_source source = source_of(w, u);
        if (source.end - source.begin <= HOTBED_SUM_GROUP)
            hotbed_update_in_registers(
                &w->s, &w->o, w->gradient, table, w->s.unique.slots[u], u, source,
                hotbed_addend_occurrence(&w->s, source, source.begin, w->width), w->registers,
                w->width);
        else
            hotbed_update_row(
                &w->s, &w->o, w->gradient, table, w->s.unique.slots[u], u, source, w->shape,
                w->width);
    }
}

static void reduce_rows(void *argument) {
    const work *w = argument;
    for (uint32_t u = 0; u < w->s.unique.offsets[w->s.storage.num_tables]; u++) {
        uint32_t t = hotbed_part_of(w->s.unique.offsets, w->s.storage.num_tables, u);
        hotbed_reduce_row(
            &w->s, &w->o, w->gradient, w->s.storage.tables[t].dim, u, source_of(w, u), w->shape,
            w->sums, w->width);
    }
}

/* Lay out the partial sums of distinct keys with more than 32 occurrences. */
static void split(work *w) {
    w->leaves = w->groups = 0;
    for (uint32_t u = 0; u < w->s.unique.offsets[w->s.storage.num_tables]; u++) {
        uint32_t begin = w->s.unique.starts[u], end = w->s.unique.starts[u + 1];
        if (end - begin <= HOTBED_SUM_GROUP)
            continue;
        CHECK(u < PARTS);
        w->first_leaf[u] = w->leaves;
        for (; begin < end; begin += HOTBED_SUM_GROUP) {
            CHECK(w->leaves < PARTS);
            w->leaf_begin[w->leaves] = begin;
            w->leaf_end[w->leaves++] =
                end - begin < HOTBED_SUM_GROUP ? end : begin + HOTBED_SUM_GROUP;
        }
        w->first_group[u] = w->groups;
        uint32_t leaves_end = w->leaves;
        for (uint32_t leaf = w->first_leaf[u]; leaf < leaves_end; leaf += HOTBED_SUM_GROUP) {
            w->group_begin[w->groups] = leaf;
            w->group_end[w->groups++] =
                leaves_end - leaf < HOTBED_SUM_GROUP ? leaves_end : leaf + HOTBED_SUM_GROUP;
        }
    }
}

/* --- images of all rows --------------------------------------------------------------------- */

typedef struct image {
    void *rows[TABLES];
    uint64_t row_bytes[TABLES];
    void *metas;
    uint64_t meta_bytes;
    hotbed_clock clock;
    hotbed_tally tallies[TABLES];
} image;

static void *allocate(uint64_t bytes) {
    void *block = calloc(1, bytes == 0 ? 1 : (size_t)bytes);
    CHECK(block != NULL);
    return block;
}

static image image_of(const hotbed_storage *storage) {
    image m = {.meta_bytes = storage->index_slots * sizeof(uint64_t)};
    for (uint32_t t = 0; t < TABLES; t++) {
        m.row_bytes[t] = storage->tables[t].rows.bytes;
        m.rows[t] = allocate(m.row_bytes[t]);
        memcpy(m.rows[t], storage->tables[t].rows.data, (size_t)m.row_bytes[t]);
    }
    m.metas = allocate(m.meta_bytes);
    memcpy(m.metas, storage->index.metas, (size_t)m.meta_bytes);
    m.clock = *storage->clock;
    memcpy(m.tallies, storage->tallies, sizeof m.tallies);
    return m;
}

static void restore(hotbed_storage *storage, const image *m) {
    for (uint32_t t = 0; t < TABLES; t++)
        memcpy(storage->tables[t].rows.data, m->rows[t], (size_t)m->row_bytes[t]);
    memcpy(storage->index.metas, m->metas, (size_t)m->meta_bytes);
    *storage->clock = m->clock;
    memcpy(storage->tallies, m->tallies, sizeof m->tallies);
}

static void compare(const hotbed_storage *storage, const image *m) {
    for (uint32_t t = 0; t < TABLES; t++)
        CHECK_BYTES(storage->tables[t].rows.data, m->rows[t], (size_t)m->row_bytes[t]);
    CHECK_BYTES(storage->index.metas, m->metas, (size_t)m->meta_bytes);
    for (uint32_t t = 0; t < TABLES; t++)
        CHECK_EQ(storage->tallies[t].rounded_away, m->tallies[t].rounded_away);
}

static void free_image(image *m) {
    for (uint32_t t = 0; t < TABLES; t++)
        free(m->rows[t]);
    free(m->metas);
}

/* --- tests ----------------------------------------------------------------------------------- */

static void update_all(work *w, bool split_sums) {
    w->shape.split = split_sums;
    hotbed_clock_step(w->s.storage.clock, w->o.beta1, w->o.beta2);
    if (split_sums) {
        split(w);
        hotbed_emulate_run(w->width, sum_leaves, w);
        hotbed_emulate_run(w->width, sum_groups, w);
    }
    hotbed_emulate_run(w->width, update_rows, w);
}

/* As update_all(), with rows in registers, of which a lane has up to HOTBED_QUADS_MOST groups. */
static void update_all_in_registers(work *w, uint32_t max_dim, uint32_t ahead) {
    const bool pooled = w->s.storage.pooling != HOTBED_POOL_NONE;
    const uint32_t groups = max_dim <= 64 ? 16 : 32;
    w->registers = (hotbed_register_shape){
        w->o.narrow ? (uint32_t)HOTBED_OPT_ANY : w->o.kind,
        pooled,
        (hotbed_rows_form)w->s.storage.rows_form,
        w->width < groups ? groups / w->width : 1,
        ahead,
        w->width == 32,
        w->o.narrow};
    w->shape = (hotbed_update_shape){true, false, false, true, w->o.narrow};
    hotbed_clock_step(w->s.storage.clock, w->o.beta1, w->o.beta2);
    split(w);
    hotbed_emulate_run(w->width, sum_leaves_in_registers, w);
    hotbed_emulate_run(w->width, sum_groups, w);
    hotbed_emulate_run(w->width, update_in_registers, w);
}

/* How reduce returns the sums: it writes them, adds them to zeros, or writes each to its address. */
typedef enum sums_form { WRITTEN, ADDED, ADDRESSED, SUMS_FORMS } sums_form;

/* As update_all(), in two calls: reduce and apply. */
static void update_in_halves(work *w, float *sums, uint64_t max_dim, sums_form form) {
    hotbed_gradient_view gradient = w->gradient;
    static uint8_t *rows[4000];
    CHECK(w->s.batch.bound <= 4000);
    for (uint64_t u = 0; u < w->s.batch.bound; u++)
        rows[u] = (uint8_t *)(sums + u * max_dim);
    w->sums = (hotbed_sums_view){.data = sums, .stride = max_dim, .add = form == ADDED};
    if (form == ADDRESSED)
        w->sums = (hotbed_sums_view){.rows = rows, .dtype = HOTBED_F32, .scale = 1.0F};
    if (!w->shape.split) {
        w->shape.split = true;
        split(w);
        hotbed_emulate_run(w->width, sum_leaves, w);
        hotbed_emulate_run(w->width, sum_groups, w);
    }
    if (form == ADDED)
        memset(sums, 0, w->s.batch.bound * max_dim * sizeof *sums);
    hotbed_emulate_run(w->width, reduce_rows, w);
    hotbed_clock_step(w->s.storage.clock, w->o.beta1, w->o.beta2);
    w->gradient = (hotbed_gradient_view){sums, max_dim, HOTBED_F32, NULL};
    w->shape.reduced = true;
    hotbed_emulate_run(w->width, update_rows, w);
    w->shape.reduced = false;
    w->gradient = gradient;
}

/* Compare scattered rows at the step's width with the rows in scratch[1]. */
static void same_scattered(test_ticket *l, work *w) {
    test_scatter scatter;
    test_scatter_open(l, &scatter);
    w->s.to = scatter.to;
    hotbed_emulate_run(w->width, forward_rows, w);
    test_scatter_close(l, &scatter);
    w->s.to.on = 0;
}

/* Rows that are packed: those of width 1, and those of another width. */
typedef struct packed_rows {
    uint8_t *want, *got;
    uint64_t n, row_bytes;
} packed_rows;

static packed_rows packed_open(const hotbed_storage *storage, hotbed_dtype dtype, uint64_t n) {
    packed_rows p = {.n = n, .row_bytes = hotbed_travel_bytes((uint32_t)dtype, storage->max_dim)};
    p.want = allocate(n * p.row_bytes + 4); /* a scale is read with the words around it */
    p.got = allocate(n * p.row_bytes + 4);
    return p;
}

static void packed_close(packed_rows *p) {
    CHECK_BYTES(p->got, p->want, p->n * p->row_bytes);
    free(p->want);
    free(p->got);
}

/* Compare packed rows at the step's width with those at width 1. */
static void same_packed(test_ticket *l, work *w) {
    const uint64_t n = w->s.batch.feature_starts[w->s.storage.num_features];
    const uint32_t starts[2] = {0, (uint32_t)n}, firsts[1] = {0}, width = w->width;
    for (int dtype = HOTBED_INT8; dtype <= (int)HOTBED_FP8; dtype++) {
        packed_rows p = packed_open(l->r->storage, (hotbed_dtype)dtype, n);
        for (int k = 0; k < 2; k++) {
            uint8_t *const arrays[1] = {k == 0 ? p.want : p.got};
            w->s.to = (hotbed_scatter_view){
                .on = 1,
                .arrays = arrays,
                .row_bytes = p.row_bytes,
                .starts = starts,
                .firsts = firsts,
                .num_runs = 1,
                .num_arrays = 1,
                .packed = (uint32_t)dtype,
            };
            w->width = k == 0 ? 1 : width;
            hotbed_emulate_run(w->width, forward_rows, w);
        }
        w->s.to.on = 0;
        packed_close(&p);
    }
}

/* The same for packed sums of gradients. */
static void same_packed_sums(test_ticket *l, work *w, hotbed_dtype dtype) {
    const hotbed_storage *storage = l->r->storage;
    const uint64_t n = w->s.unique.offsets[w->s.storage.num_tables], step = 3;
    const uint32_t width = w->width;
    packed_rows p = packed_open(storage, dtype, n);
    uint8_t **at = allocate(n * sizeof *at);
    for (int k = 0; k < 2; k++) {
        for (uint64_t u = 0; u < n; u++)
            at[u] = (k == 0 ? p.want : p.got) + u * p.row_bytes;
        w->width = k == 0 ? 1 : width;
        w->sums = (hotbed_sums_view){
            .rows = at,
            .scale = 0.5F,
            .pack = {(uint32_t)dtype, 1, storage->max_dim, 2, 99, &step},
        };
        w->shape.split = true;
        split(w);
        hotbed_emulate_run(w->width, sum_leaves, w);
        hotbed_emulate_run(w->width, sum_groups, w);
        hotbed_emulate_run(w->width, reduce_rows, w);
    }
    free(at);
    packed_close(&p);
}

/* Compare bags of keys and pooled output, computed several bags at once, with the library's. */
static void same_bags(test_ticket *l, work *w) {
    const uint32_t *bags = w->s.batch.bags;
    uint32_t *filled = allocate(w->s.batch.bound * sizeof *filled);
    for (uint32_t n = w->width < 4 ? w->width : 4; n <= w->width;
         n = n < w->width ? w->width : 2 * n) {
        w->bags = n;
        if (bags != NULL) {
            memset(filled, 0xff, w->s.batch.bound * sizeof *filled);
            w->s.batch.bags = filled;
            hotbed_emulate_run(w->width, fill_bags, w);
            CHECK_BYTES(filled, bags, w->s.batch.bound * sizeof *filled);
            w->s.batch.bags = l->ticket->step.batch.bags;
        }
        if (w->s.storage.rows_form == HOTBED_ROWS_ANY || w->stride % 4 != 0)
            continue;
        const hotbed_rows_form rows = (hotbed_rows_form)w->s.storage.rows_form;
        const uint32_t most = rows == HOTBED_ROWS_SCALED ? 4 : rows == HOTBED_ROWS_HALF ? 2 : 1;
        for (uint32_t quads = rows == HOTBED_ROWS_HALF ? 2 : 1; quads <= most; quads *= 2) {
            w->part = (hotbed_part_shape){rows, quads};
            memset(l->output, 0, (size_t)l->output_bytes);
            hotbed_emulate_run(w->width, pool_bags, w);
            CHECK_BYTES(l->output, l->scratch[1], (size_t)l->output_bytes);
        }
    }
    free(filled);
}

/* Which kernels can run: those for rows and gradients of any form, those for plain rows of
 * sequences, or those for rows in registers. ALIGNED: those for any form, with outputs that several
 * bags at once can be pooled to. */
typedef enum kernels { ANY, PLAIN, REGISTERS, ALIGNED } kernels;

/* Compare forward at every width with the model, and backward at every width with the library's. */
static void same_bytes(test_ticket *l, rng *random, kernels form) {
    static work w;
    hotbed_storage *storage = l->r->storage;
    hotbed_dtype dtype = l->r->model->options.output_dtype;
    memset(&w, 0, sizeof w);
    test_ticket_prefetch(l);
    CHECK_OK(hotbed_stream_sync(l->r->stream));
    w.s = l->ticket->step;
    w.o = storage->optimizer_view;
    w.stride = l->stride == 0 ? oracle_least_stride(l->r->model) : l->stride;
    w.output = l->output;
    memset(l->scratch[1], 0, (size_t)l->output_bytes);
    oracle_forward(l->model, l->scratch[1], l->stride);
    for (uint32_t i = 0; i < WIDTHS; i++) {
        w.width = widths[i];
        memset(l->output, 0, (size_t)l->output_bytes);
        bool pooled = storage->pooling != HOTBED_POOL_NONE;
        hotbed_emulate_run(w.width, pooled ? forward_bags : forward_rows, &w);
        CHECK_BYTES(l->output, l->scratch[1], (size_t)l->output_bytes);
        if (pooled)
            same_bags(l, &w);
        else
            same_scattered(l, &w);
        if (!pooled)
            same_packed(l, &w);
    }
    for (uint64_t i = 0; i < l->output_bytes / hotbed_dtype_bytes(dtype); i++)
        oracle_store(dtype, l->gradient, i, rng_float(random));
    w.gradient = (hotbed_gradient_view){l->gradient, w.stride, (uint32_t)dtype, NULL};
    w.row = (storage->max_dim + 3U) / 4U * 4U;
    w.leaf_sums = aligned_alloc(256, (PARTS * w.row * sizeof(float) + 255) / 256 * 256);
    w.group_sums = aligned_alloc(256, (PARTS * w.row * sizeof(float) + 255) / 256 * 256);
    uint64_t sums_bytes = w.s.batch.bound * storage->max_dim * sizeof(float);
    float *sums = aligned_alloc(256, (sums_bytes + 255) / 256 * 256);
    CHECK(w.leaf_sums != NULL && w.group_sums != NULL && sums != NULL);
    image before = image_of(storage);
    CHECK_OK(hotbed_storage_backward(storage, l->ticket, l->gradient, w.stride, l->r->stream));
    CHECK_OK(hotbed_stream_sync(l->r->stream));
    image after = image_of(storage);
    for (uint32_t i = 0; i < WIDTHS; i++) {
        restore(storage, &before);
        w.width = widths[i];
        same_packed_sums(l, &w, i % 2 == 0 ? HOTBED_INT8 : HOTBED_FP8);
        w.shape.plain = form == PLAIN;
        w.shape.narrow = w.o.narrow;
        /* at width 1, take the path that the library has not taken */
        update_all(&w, i > 0 || form == PLAIN);
        compare(storage, &after);
        restore(storage, &before);
        update_in_halves(&w, sums, storage->max_dim, (sums_form)(i % SUMS_FORMS));
        compare(storage, &after);
        if (form != REGISTERS || 4 * w.width * HOTBED_QUADS_MOST < storage->max_dim)
            continue;
        restore(storage, &before);
        update_all_in_registers(&w, storage->max_dim, i);
        compare(storage, &after);
    }
    free(sums);
    memcpy(l->scratch[0], l->gradient, (size_t)l->output_bytes);
    oracle_backward(l->model, l->scratch[0], w.stride);
    free_image(&before);
    free_image(&after);
    free(w.leaf_sums);
    free(w.group_sums);
}

static void train(setup *s, kernels form) {
    const bool weights = form != REGISTERS, pooled = s->options.pooling != HOTBED_POOL_NONE;
    fixture r;
    test_ticket l;
    rng random = rng_start(s->tables[0].dim);
    fixture_open(&r, HOTBED_BACKEND_HOST, &s->options);
    test_ticket_open(&r, &l, 2000, 700);
    if (form != ANY) {
        l.stride = 0;
        l.output = fixture_alloc(&r, l.output_bytes); /* aligned */
        l.gradient = fixture_alloc(&r, l.output_bytes);
    }
    const batch_shape recipes[] = {
        {.batch_size = 20,
         .max_bag = pooled || form == ANY ? 3 : 0,
         .key_space = 30,
         .weights = weights},
        {.batch_size = 200, .key_space = 2},  /* leaves */
        {.batch_size = 520, .one_key = true}, /* and with two features of a table, groups */
    };
    for (uint32_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        test_ticket_fill(&l, &random, &recipes[i]);
        same_bytes(&l, &random, form);
    }
    fixture_check(&r);
    fixture_close(&r);
}

static void three_tables(setup *s, hotbed_optimizer_kind kind, hotbed_pooling pooling) {
    setup_start(s, TABLES, 4, 64);
    s->tables[2].kind = HOTBED_TABLE_STATIC;
    s->options.optimizer.kind = kind;
    setup_decay(&s->options.optimizer, 0.01F);
    s->options.pooling = pooling;
    setup_feature(s, 0);
    setup_feature(s, 1);
    setup_feature(s, 1);
}

static void every_optimizer_and_pooling_is_the_same_at_every_width(hotbed_backend backend) {
    for (int i = 0; i < 6 + HOTBED_OPT_LAST - 4; i++) {
        setup s;
        three_tables(
            &s, (hotbed_optimizer_kind)(i < 6 ? 1 + i % 4 : i - 1), (hotbed_pooling)(i % 3));
        s.tables[0].dim = 5;
        s.tables[1].dim = i % 2 == 0 ? 70 : 131;
        s.tables[1].dtype = (hotbed_dtype)(1 + i % HOTBED_DTYPE_LAST);
        s.tables[1].state_dtype = i % 3 != 0 ? HOTBED_BF16 : HOTBED_F32;
        s.options.output_dtype = (hotbed_dtype)(1 + (i + 1) % 3);
        s.options.optimizer.max_gradient = i % 2 == 0 ? 0.0F : 0.5F;
        train(&s, ANY);
    }
}

/* F32 rows whose dimension is a multiple of 4 use kernels without checks. */
static void plain_rows_are_the_same_at_every_width(hotbed_backend backend) {
    for (int i = 0; i < 4; i++) {
        setup s;
        three_tables(&s, (hotbed_optimizer_kind)(1 + i), HOTBED_POOL_NONE);
        s.tables[0].dim = 12;
        s.tables[1].dim = 132;
        s.tables[2].dim = 64;
        train(&s, PLAIN);
    }
}

/* Rows whose dims are multiples of 4 (8 if elements have two bytes), and gradients of sequences or of sums without
 * weights, in F32 or 16 bits, are summed in registers. */
static void rows_in_registers_are_the_same_at_every_width(hotbed_backend backend) {
    for (int i = 0; i < 12; i += hotbed_test_is_small() ? 5 : 1) {
        const int form = i / 4; /* sequences, bags, bags of two-byte elements */
        setup s;
        three_tables(
            &s, (hotbed_optimizer_kind)(1 + i % 4), form == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM);
        s.tables[0].dim = form < 2 ? 12 : 24;
        s.tables[1].dim = 64;
        s.tables[2].dim = 32;
        s.options.output_dtype = (hotbed_dtype)(1 + i % 3);
        for (uint32_t t = 0; t < TABLES; t++)
            s.tables[t].dtype = form < 2                ? HOTBED_F32
                                : (i + (int)t) % 2 == 0 ? HOTBED_F16
                                                        : HOTBED_BF16;
        train(&s, REGISTERS);
    }
}

/* As above, for rows with scales. An fp8 row of more than 64 elements has several. */
static void scaled_rows_in_registers_are_the_same_at_every_width(hotbed_backend backend) {
    static const uint32_t dims[][TABLES] = {{12, 64, 32}, {8, 128, 96}, {36, 100, 20}};
    for (uint32_t i = 0; i < 24; i += hotbed_test_is_small() ? 5 : 1) {
        setup s;
        three_tables(
            &s, (hotbed_optimizer_kind)(1 + i % 4),
            i / 4 % 2 == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM);
        s.options.output_dtype = (hotbed_dtype)(1 + i % 3);
        for (uint32_t t = 0; t < TABLES; t++) {
            s.tables[t].dim = dims[i / 8][t];
            s.tables[t].dtype = (i + t) % 2 == 0 ? HOTBED_INT8 : HOTBED_FP8;
            s.tables[t].rounding =
                (i + t) % 3 == 0 ? HOTBED_ROUND_NEAREST : HOTBED_ROUND_STOCHASTIC;
        }
        train(&s, REGISTERS);
    }
}

/* As above, for states of bf16, in tables beside one with f32 states. Of two states, the second may be one number
 * (PARTIAL_ROWWISE_ADAM), or f32 with a count at its end (ROW_STEPS_ADAM). */
static void narrow_states_in_registers_are_the_same_at_every_width(hotbed_backend backend) {
    static const hotbed_optimizer_kind kinds[] = {
        HOTBED_OPT_ADAM, HOTBED_OPT_ADAGRAD, HOTBED_OPT_PARTIAL_ROWWISE_ADAM,
        HOTBED_OPT_ROW_STEPS_ADAM, HOTBED_OPT_LAMB};
    static const hotbed_dtype dtypes[][2] = {
        {HOTBED_F32, HOTBED_F32}, {HOTBED_F16, HOTBED_BF16}, {HOTBED_INT8, HOTBED_FP8}};
    enum { KINDS = sizeof kinds / sizeof kinds[0] };
    for (uint32_t i = 0; i < 3 * KINDS; i += hotbed_test_is_small() ? 4 : 1) {
        const uint32_t form = i / KINDS;
        setup s;
        three_tables(&s, kinds[i % KINDS], i % 2 == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM);
        s.tables[0].dim = form == 1 ? 24 : 12;
        s.tables[1].dim = i % 3 == 0 ? 128 : 64;
        s.tables[2].dim = 32;
        s.options.output_dtype = (hotbed_dtype)(1 + i % 3);
        for (uint32_t t = 0; t < TABLES; t++) {
            s.tables[t].dtype = dtypes[form][(i + t) % 2];
            s.tables[t].state_dtype = t == i % 4 ? HOTBED_F32 : HOTBED_BF16;
            s.tables[t].rounding = t == i % 5 ? HOTBED_ROUND_NEAREST : HOTBED_ROUND_STOCHASTIC;
        }
        train(&s, REGISTERS);
    }
}

/* Means with weights of several bags at once, of rows of each form. */
static void weighted_means_are_the_same_at_every_width(hotbed_backend backend) {
    for (int i = 0; i < (int)HOTBED_DTYPE_LAST; i++) {
        setup s;
        three_tables(&s, HOTBED_OPT_SGD, HOTBED_POOL_MEAN);
        for (uint32_t t = 0; t < TABLES; t++) {
            s.tables[t].dim = 24 + 16 * t;
            s.tables[t].dtype = (hotbed_dtype)(1 + i);
        }
        s.options.output_dtype = (hotbed_dtype)(1 + i % 3);
        train(&s, ALIGNED);
    }
}

/* --- eval by address ------------------------------------------------------------------------- */

/* Turn counts of bins into their starts and order the deferred keys by bin.  Check that each key occurs once and that
 * bins ascend.  Returns the number of bins with keys. */
static uint32_t order_keys(const work *w, uint32_t below) {
    uint32_t *bins = w->s.eval.sort.bins, n = w->s.batch.feature_starts[w->s.storage.num_features],
             all = 0;
    for (uint32_t b = 1; b <= HOTBED_BINS; b++) {
        uint32_t count = bins[b];
        bins[b] = all;
        all += count;
    }
    bins[0] = all;
    CHECK_EQ(all, below);
    for (uint32_t i = 0; i < n; i++)
        hotbed_order_key(&w->s, i);
    uint32_t parts = all > 0;
    bool seen[EVAL_KEYS] = {false};
    for (uint32_t k = 0, last = 0; k < all; k++) {
        uint32_t i = w->s.eval.sort.order[k];
        CHECK(i < n && !seen[i]);
        seen[i] = true;
        const hotbed_table_view *table = &w->s.storage.tables[hotbed_table_of_key(&w->s, i)];
        CHECK(hotbed_slot_below(table, w->s.eval.deferred[i]));
        uint32_t bin = hotbed_lower_bin(w->s.storage.index, table, w->s.eval.deferred[i]);
        CHECK(k == 0 || bin >= last);
        parts += k > 0 && bin != last;
        last = bin;
    }
    return parts;
}

/* Compare the library's eval with its passes at every width.  The count of the previous eval decides whether rows of
 * the lower tier are read at once or deferred; both are tested. */
static void same_eval(test_ticket *l) {
    enum { FILL = 0x5a, FROM = 7 };
    static work w;
    static uint64_t slots[EVAL_KEYS];
    static uint32_t order[EVAL_KEYS], bins[HOTBED_BIN_WORDS], starts[2 * TABLES];
    hotbed_storage *storage = l->r->storage;
    hotbed_table_view tables[TABLES];
    hotbed_step_view *s = &w.s;
    const hotbed_batch batch = test_ticket_batch(l);
    test_ticket_eval(l);
    memset(l->output, FILL, (size_t)l->output_bytes);
    CHECK_OK(hotbed_storage_eval(storage, &batch, l->output, l->stride, l->r->stream));
    CHECK_OK(hotbed_stream_sync(l->r->stream));
    memcpy(l->scratch[1], l->output, (size_t)l->output_bytes);
    memset(&w, 0, sizeof w);
    *s = hotbed_storage_step(storage);
    CHECK_EQ(s->eval.below_from, 1); /* the lower tier has few pages */
    uint32_t last = FROM - 1, below = 0;
    s->eval.below = &last;
    s->eval.below_from = FROM;
    s->eval.on = 1;
    s->batch.keys = batch.keys;
    s->eval.deferred = slots;
    s->eval.sort.order = order;
    s->eval.sort.bins = bins;
    s->batch.feature_starts = starts;
    uint64_t begun = 0;
    uint32_t again = 0;
    s->eval.begun = &begun;
    s->eval.num_rereads = &again;
    hotbed_eval_begin(s);
    for (uint32_t f = 0; f <= s->storage.num_features; f++)
        starts[f] = f * batch.batch_size;
    CHECK(starts[s->storage.num_features] == batch.num_keys && batch.num_keys <= EVAL_KEYS);
    memcpy(tables, s->storage.tables, sizeof tables);
    for (uint32_t t = 0; t < TABLES; t++)
        tables[t].bin_shift = 11; /* a bin has some rows */
    s->storage.tables = tables;
    w.stride = l->stride == 0 ? oracle_least_stride(l->r->model) : l->stride;
    w.output = l->output;
    uint64_t row = w.stride * hotbed_dtype_bytes(l->r->model->options.output_dtype);
    for (uint32_t i = 0; i < 2 * WIDTHS; i++) {
        const bool deferred = i % 2 == 1;
        w.width = widths[i / 2];
        last = deferred ? FROM : FROM - 1;
        memset(bins, 0, sizeof bins);
        memset(l->output, FILL, (size_t)l->output_bytes);
        hotbed_emulate_run(w.width, eval_rows, &w);
        uint32_t counted = bins[HOTBED_BINS + 1];
        below = i == 0 ? counted : below;
        CHECK(below > 100 && counted == (deferred ? 0 : below));
        uint32_t parts = order_keys(&w, deferred ? below : 0);
        CHECK(deferred ? parts > 3 : parts == 0);
        for (uint32_t k = 0; k < bins[0]; k++)
            for (uint64_t b = 0; b < row; b++)
                CHECK_EQ(((uint8_t *)l->output)[order[k] * row + b], FILL);
        hotbed_emulate_run(w.width, eval_below, &w);
        CHECK_EQ(again, 0);
        CHECK_BYTES(l->output, l->scratch[1], (size_t)l->output_bytes);
        test_scatter scatter;
        test_scatter_open(l, &scatter);
        s->to = scatter.to;
        memset(bins, 0, sizeof bins);
        hotbed_emulate_run(w.width, eval_rows, &w);
        CHECK(order_keys(&w, deferred ? below : 0) == parts);
        hotbed_emulate_run(w.width, eval_below, &w);
        test_scatter_close(l, &scatter);
        s->to.on = 0;
    }
}

/* For each kind of two tiers: rows that are copied unchanged, and rows that are checked or converted. */
static void eval_by_address_is_the_same_at_every_width(hotbed_backend backend) {
    for (uint32_t way = 0; way < 6; way++) {
        const bool plain = way >= 3;
        setup s;
        fixture r;
        test_ticket l;
        rng random = rng_start(way);
        setup_start(&s, TABLES, 12, 400);
        setup_feature(&s, 0);
        setup_feature(&s, 1);
        setup_feature(&s, 1);
        s.tables[1].dim = 132;
        s.tables[2].kind = HOTBED_TABLE_STATIC;
        s.options.mode = way % 3 == 0 ? HOTBED_MODE_CACHE : HOTBED_MODE_DEFAULT;
        s.options.placement = way % 3 == 1 ? HOTBED_PLACE_BY_SCORE : HOTBED_PLACE_BY_HASH;
        for (uint32_t t = 0; t < TABLES; t++)
            s.tables[t].upper_capacity = 40;
        if (!plain) {
            s.tables[0].dim = 5;
            s.tables[1].dtype = HOTBED_BF16;
            s.options.output_dtype = HOTBED_F16;
        }
        fixture_open(&r, HOTBED_BACKEND_HOST, &s.options);
        test_ticket_open(&r, &l, EVAL_KEYS, 100);
        if (plain) {
            l.stride = 0;
            l.output = fixture_alloc(&r, l.output_bytes); /* aligned */
        }
        batch_shape how = {.batch_size = 100, .key_space = 200};
        for (int step = 0; step < 3; step++)
            test_ticket_step(&l, &random, &how);
        how.key_space = 280; /* some keys are missing */
        test_ticket_fill(&l, &random, &how);
        same_eval(&l);
        fixture_close(&r);
    }
}

typedef struct init_work {
    const hotbed_table_view *table;
    uint8_t *row;
    uint64_t key;
    uint32_t width;
} init_work;

static void init_row(void *argument) {
    const init_work *w = argument;
    hotbed_row_init(w->table, w->row, w->key, w->width);
}

static void initial_values_are_the_same_at_every_width(hotbed_backend backend) {
    static const uint32_t dims[TABLES] = {1, 130, 515};
    for (int kind = 0; kind <= HOTBED_INIT_DEBUG; kind++) {
        setup s;
        fixture r;
        three_tables(&s, HOTBED_OPT_ADAM, HOTBED_POOL_NONE);
        for (int t = 0; t < TABLES; t++) {
            s.tables[t].dim = dims[t];
            s.tables[t].dtype = (hotbed_dtype)(1 + (t + kind) % (int)HOTBED_DTYPE_LAST);
            s.tables[t].state_dtype = (t + kind) % 2 == 0 ? HOTBED_BF16 : HOTBED_F32;
            s.tables[t].initializer.kind = (hotbed_initializer_kind)kind;
            s.tables[t].initializer.std = 0.5F;
        }
        fixture_open_bare(&r, backend, &s.options);
        for (int t = 0; t < TABLES; t++) {
            const hotbed_table_view *view = &r.storage->tables[t].view;
            uint64_t bytes = (view->row_bytes + 255) / 256 * 256;
            uint8_t *rows[2] = {aligned_alloc(256, bytes), aligned_alloc(256, bytes)};
            CHECK(rows[0] != NULL && rows[1] != NULL);
            for (uint32_t i = 0; i < WIDTHS; i++) {
                init_work w = {view, rows[i > 0], hotbed_test_seed() * 77, widths[i]};
                memset(w.row, 0, bytes);
                hotbed_emulate_run(w.width, init_row, &w);
                if (i > 0)
                    CHECK_BYTES(rows[1], rows[0], view->row_bytes);
            }
            free(rows[0]);
            free(rows[1]);
        }
        fixture_close(&r);
    }
}

/* Each tile has one turn, for any number of keys, arrays and runs. */
static void each_tile_of_scattered_rows_has_a_turn(hotbed_backend backend) {
    enum { MOST = 300 };
    for (uint32_t k = 0; k < WIDTHS * 8 * 8; k++) {
        const uint32_t width = widths[k / 64];
        hotbed_scatter_view to = {.on = 1, .num_arrays = 1 + k / 8 % 8, .writer = k % 8};
        to.num_runs = 3 * to.num_arrays;
        for (uint64_t n = 1; n < MOST && to.writer < to.num_arrays; n += 1 + n / 8) {
            bool seen[MOST] = {false};
            for (uint64_t i = 0; i < n; i += width) {
                const uint64_t first = hotbed_tile_first(&to, n, i, width);
                CHECK(first < n && first % width == 0 && !seen[first]);
                seen[first] = true;
            }
        }
    }
    const uint64_t most = UINT32_MAX;
    const hotbed_scatter_view four = {.on = 1, .num_arrays = 4, .num_runs = 40, .writer = 3};
    CHECK_EQ(hotbed_tile_first(&four, most, 0, 1), 3 * (most / 40));
    CHECK_EQ(
        hotbed_tile_first(&four, most, most - 1, 1),
        2 * (most / 4) + 2 + most / 4 + 3 * (most / 40));
}

/* Consecutive turns are of distant tiles, and each writer begins with a run of its own. */
static void writers_of_scattered_rows_begin_apart(hotbed_backend backend) {
    enum { N = 2400, ARRAYS = 4, WIDTH = 8 };
    hotbed_scatter_view to = {.on = 1, .num_arrays = ARRAYS, .num_runs = 3 * ARRAYS};
    for (to.writer = 0; to.writer < ARRAYS; to.writer++)
        for (uint64_t turn = 0; turn < ARRAYS; turn++)
            CHECK_EQ(
                hotbed_tile_first(&to, N, turn * WIDTH, WIDTH),
                (to.writer * N / to.num_runs + turn * N / ARRAYS) % N);
}

static void a_part_is_found_from_the_part_of_any_earlier_position(hotbed_backend backend) {
    enum { RANGES = 40 };
    for (int round = 0; round < 200; round++) {
        uint32_t starts[RANGES + 1] = {0};
        for (uint32_t i = 0; i < RANGES; i++) /* half of the parts are empty */
            starts[i + 1] = starts[i] + (uint32_t)(hotbed_test_random() % 4 / 2);
        uint32_t part = 0;
        for (uint32_t at = 0; at < starts[RANGES]; at++) {
            while (starts[part + 1] <= at)
                part++;
            CHECK_EQ(hotbed_part_of(starts, RANGES, at), part);
            for (uint32_t earlier = 0; earlier <= part; earlier++)
                CHECK_EQ(hotbed_part_after(starts, RANGES, earlier, at), part);
        }
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(every_optimizer_and_pooling_is_the_same_at_every_width)},
    {TEST(plain_rows_are_the_same_at_every_width)},
    {TEST(rows_in_registers_are_the_same_at_every_width)},
    {TEST(weighted_means_are_the_same_at_every_width)},
    {TEST(scaled_rows_in_registers_are_the_same_at_every_width)},
    {TEST(narrow_states_in_registers_are_the_same_at_every_width)},
    {TEST(eval_by_address_is_the_same_at_every_width)},
    {TEST(initial_values_are_the_same_at_every_width)},
    {TEST(each_tile_of_scattered_rows_has_a_turn)},
    {TEST(writers_of_scattered_rows_begin_apart)},
    {TEST(a_part_is_found_from_the_part_of_any_earlier_position)},
    {NULL, NULL},
};
