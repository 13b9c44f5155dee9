/* tests/storage/test_storage_depth.c - results do not depend on the prefetch depth, the run, or the capacity.
 *
 * The same batches are trained with prefetches 1 to 4 batches ahead, twice, and in tables of another capacity.  Rows,
 * states and scores must have the same bytes.
 */
#include "tests/storage/fixture.h"

#include <stdlib.h>

enum { TABLES = 3, STEPS = 24, DEPTH_MOST = 4, BATCH = 8, MAX_KEYS = 64, ROWS = 512, DIM = 9 };

/* Contents of a table, in the order of keys. */
typedef struct image {
    uint64_t n;
    uint64_t keys[ROWS], scores[ROWS];
    float parts[3][ROWS * DIM]; /* weights and two states */
} image;

static int by_key(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void take_image(fixture *r, uint32_t table, image *m) {
    hotbed_table_info info = {.size = sizeof info};
    memset(m, 0, sizeof *m);
    CHECK_OK(hotbed_storage_table(r->storage, table, &info));
    CHECK_OK(hotbed_storage_export_keys(r->storage, table, ROWS, m->keys, NULL, &m->n, r->stream));
    qsort(m->keys, m->n, sizeof m->keys[0], by_key);
    float *device[3];
    for (int p = 0; p < 3; p++)
        device[p] = fixture_alloc(r, m->n * info.dim * sizeof(float));
    bool hash = info.kind == HOTBED_TABLE_HASH;
    uint64_t *scores = hash ? fixture_alloc(r, m->n * sizeof *scores) : NULL;
    const hotbed_rows rows = {device[0], {device[1], device[2]}, scores, NULL};
    CHECK_OK(hotbed_storage_get_rows(
        r->storage, table, m->n, fixture_copy(r, m->keys, m->n * sizeof m->keys[0]), &rows, NULL,
        r->stream));
    for (int p = 0; p < 3; p++)
        fixture_download(r, m->parts[p], device[p], m->n * info.dim * sizeof(float));
    if (hash)
        fixture_download(r, m->scores, scores, m->n * sizeof *scores);
}

/* Train STEPS batches, each prefetched `depth` steps ahead. */
static void train(hotbed_backend backend, uint32_t depth, uint64_t capacity, image images[TABLES]) {
    setup s;
    fixture r;
    test_ticket tickets[DEPTH_MOST];
    setup_start(&s, TABLES, DIM, capacity);
    s.tables[1].dim = 4;
    s.tables[2].kind = HOTBED_TABLE_STATIC;
    s.tables[2].capacity = 37;
    s.options.pooling = HOTBED_POOL_SUM;
    s.options.optimizer.kind = HOTBED_OPT_ADAM;
    fixture_open(&r, backend, &s.options);
    for (uint32_t i = 0; i < depth; i++) {
        test_ticket_open(&r, &tickets[i], MAX_KEYS, BATCH);
        /* random strides would differ between the tickets, and use up random numbers */
        tickets[i].stride = 0;
    }
    rng batches = rng_start(100), gradients = rng_start(101); /* equal at every depth */
    const batch_shape how = {.batch_size = BATCH, .max_bag = 2, .key_space = 30, .weights = true};
    for (uint32_t step = 0; step < STEPS + depth; step++) {
        test_ticket *l = &tickets[step % depth];
        if (step >= depth) {
            test_ticket_forward(l);
            test_ticket_backward(l, &gradients);
        }
        if (step < STEPS) {
            test_ticket_fill(l, &batches, &how);
            test_ticket_prefetch(l);
        }
    }
    fixture_check(&r);
    for (uint32_t t = 0; t < TABLES; t++)
        take_image(&r, t, &images[t]);
    fixture_close(&r);
}

static void every_depth_and_run_gives_the_same_bytes(hotbed_backend backend) {
    static image first[TABLES], other[TABLES];
    train(backend, 1, 1000, first);
    CHECK(first[0].n >= 20 && first[1].n >= 20);
    for (uint32_t depth = 1; depth <= DEPTH_MOST; depth += hotbed_test_is_small() ? 2 : 1) {
        train(backend, depth, depth == 3 ? 5000 : 1000, other);
        for (uint32_t t = 0; t < TABLES; t++)
            CHECK_BYTES(&first[t], &other[t], sizeof other[t]);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(every_depth_and_run_gives_the_same_bytes)},
    {NULL, NULL},
};
