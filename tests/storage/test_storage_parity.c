/* tests/storage/test_storage_parity.c - host and CUDA give the same bytes.
 *
 * One process trains the same batches on both backends and compares outputs and rows.
 */
#include "tests/storage/fixture.h"

#include <stdlib.h>

enum { TABLES = 6, BACKENDS = 2 };

/* Compare the rows of all keys of the host's tables. */
static void compare_tables(fixture fixtures[BACKENDS]) {
    for (uint32_t t = 0; t < TABLES; t++) {
        hotbed_table_info info = {.size = sizeof info};
        CHECK_OK(hotbed_storage_table(fixtures[0].storage, t, &info));
        hotbed_optimizer_kind kind = hotbed_storage_optimizer(fixtures[0].storage)->kind;
        bool hash = info.kind == HOTBED_TABLE_HASH;
        uint64_t n = 0, m = 0;
        CHECK_OK(hotbed_storage_export_keys(
            fixtures[0].storage, t, 0, NULL, NULL, &n, fixtures[0].stream));
        uint64_t *keys = calloc(n + 1, sizeof *keys);
        CHECK(keys != NULL);
        CHECK_OK(hotbed_storage_export_keys(
            fixtures[0].storage, t, n, keys, NULL, &m, fixtures[0].stream));
        uint64_t sizes[4] = {
            n * hotbed_dtype_row_bytes(info.dtype, info.dim),
            n * hotbed_optimizer_state_dim(kind, 0, info.dim) *
                hotbed_dtype_bytes(info.state_dtypes[0]),
            n * hotbed_optimizer_state_dim(kind, 1, info.dim) *
                hotbed_dtype_bytes(info.state_dtypes[1]),
            hash ? n * sizeof(uint64_t) : 0};
        void *parts[BACKENDS][4];
        for (int b = 0; b < BACKENDS; b++) {
            fixture *r = &fixtures[b];
            CHECK_EQ(fixture_size(r, t), n);
            void *device[4];
            for (int p = 0; p < 4; p++) {
                device[p] = sizes[p] != 0 ? fixture_alloc(r, sizes[p]) : NULL;
                parts[b][p] = calloc(1, (size_t)sizes[p] + 1);
                CHECK(parts[b][p] != NULL);
            }
            const hotbed_rows rows = {device[0], {device[1], device[2]}, device[3], NULL};
            CHECK_OK(hotbed_storage_get_rows(
                r->storage, t, n, fixture_copy(r, keys, n * sizeof *keys), &rows, NULL, r->stream));
            for (int p = 0; p < 4; p++)
                fixture_download(r, parts[b][p], device[p], sizes[p]);
        }
        for (int p = 0; p < 4; p++) {
            CHECK_BYTES(parts[0][p], parts[1][p], (size_t)sizes[p]);
            free(parts[0][p]);
            free(parts[1][p]);
        }
        free(keys);
    }
}

static bool own_parameters; /* two tables have an optimizer of their own */
static bool narrow_states;  /* tables but one have BF16 states */
static int
    in_registers; /* updates keep rows in registers: of F32, of two bytes, or of one; 0: not of all tables */

static void same_bytes(hotbed_optimizer_kind kind, hotbed_pooling pooling) {
    static fixture fixtures[BACKENDS];
    test_ticket tickets[BACKENDS];
    static const hotbed_backend backends[] = {HOTBED_BACKEND_HOST, HOTBED_BACKEND_CUDA};
    setup s;
    setup_start(&s, TABLES, 16, 6000);
    s.tables[1].dim = 33;
    s.tables[1].dtype = HOTBED_F16;
    s.tables[2].dim = 128;
    s.tables[2].dtype = HOTBED_BF16;
    s.tables[2].initializer.kind = HOTBED_INIT_NORMAL;
    s.tables[2].initializer.std = 0.25F;
    s.tables[3].kind = HOTBED_TABLE_STATIC;
    s.tables[3].capacity = 1000;
    s.tables[3].dim = 7;
    s.tables[3].initializer.kind = HOTBED_INIT_TRUNCATED_NORMAL;
    s.tables[3].initializer.std = 0.25F;
    s.tables[4].dim = 48;
    s.tables[4].dtype = HOTBED_INT8;
    s.tables[5].dim = 131;
    s.tables[5].dtype = HOTBED_FP8;
    for (uint32_t t = 0; t < TABLES && in_registers != 0; t++) {
        static const hotbed_dtype types[][2] = {
            {HOTBED_F32, HOTBED_F32}, {HOTBED_F16, HOTBED_BF16}, {HOTBED_INT8, HOTBED_FP8}};
        s.tables[t].dtype = types[in_registers - 1][t % 2];
        s.tables[t].dim = (uint32_t)kind % 2 == 0 ? 8 + 8 * (t % 4) : 8 + 24 * t;
    }
    for (uint32_t t = 0; t < TABLES; t++)
        s.tables[t].state_dtype = narrow_states && t != 4 ? HOTBED_BF16 : HOTBED_F32;
    s.options.pooling = pooling;
    s.options.output_dtype = (hotbed_dtype)(1 + (int)pooling);
    s.options.optimizer.kind = kind;
    setup_decay(&s.options.optimizer, 0.01F);
    hotbed_optimizer own = s.options.optimizer;
    own.learning_rate = 0.25F, own.l2_decay = 0.5F, own.max_gradient = 0.125F;
    s.tables[0].optimizer = s.tables[3].optimizer = own_parameters ? &own : NULL;
    rng randoms[BACKENDS] = {rng_start(1), rng_start(1)};
    for (int b = 0; b < BACKENDS; b++) {
        fixture_open(&fixtures[b], backends[b], &s.options);
        test_ticket_open(&fixtures[b], &tickets[b], 4000, 256);
        if (in_registers != 0) {
            tickets[b].stride = 0;
            tickets[b].gradient =
                fixture_alloc(&fixtures[b], tickets[b].output_bytes); /* aligned */
        }
    }
    for (int i = 0; i < 4; i++) {
        const batch_shape how = {
            .batch_size = 256,
            .max_bag = 6,
            .key_space = i == 0 ? 100 : 2000,
            .weights = in_registers == 0,
            .extremes = i == 2};
        for (int b = 0; b < BACKENDS; b++)
            test_ticket_step(&tickets[b], &randoms[b], &how);
        void *outputs[BACKENDS];
        for (int b = 0; b < BACKENDS; b++) {
            outputs[b] = calloc(1, (size_t)tickets[b].output_bytes);
            CHECK(outputs[b] != NULL);
            fixture_download(&fixtures[b], outputs[b], tickets[b].output, tickets[b].output_bytes);
        }
        uint64_t stride =
            tickets[0].stride == 0 ? oracle_least_stride(fixtures[0].model) : tickets[0].stride;
        uint64_t rows = pooling == HOTBED_POOL_NONE ? tickets[0].num_keys : 256;
        CHECK_EQ(tickets[0].stride, tickets[1].stride);
        CHECK_BYTES(
            outputs[0], outputs[1], rows * stride * hotbed_dtype_bytes(s.options.output_dtype));
        free(outputs[0]);
        free(outputs[1]);
    }
    compare_tables(fixtures);
    for (int b = 0; b < BACKENDS; b++) {
        fixture_close(&fixtures[b]);
    }
}

static void both(void (*run)(void)) {
    if (hotbed_backend_probe(HOTBED_BACKEND_CUDA) != HOTBED_OK)
        SKIP(hotbed_last_error());
    run();
}

static void sgd_everywhere(void) {
    same_bytes(HOTBED_OPT_SGD, HOTBED_POOL_NONE);
    same_bytes(HOTBED_OPT_SGD, HOTBED_POOL_SUM);
}

static void adam_everywhere(void) {
    same_bytes(HOTBED_OPT_ADAM, HOTBED_POOL_SUM);
    same_bytes(HOTBED_OPT_ADAM, HOTBED_POOL_MEAN);
}

static void adagrad_everywhere(void) {
    same_bytes(HOTBED_OPT_ADAGRAD, HOTBED_POOL_MEAN);
    same_bytes(HOTBED_OPT_ROWWISE_ADAGRAD, HOTBED_POOL_SUM);
}

static void own_parameters_everywhere(void) {
    own_parameters = true;
    same_bytes(HOTBED_OPT_ADAM, HOTBED_POOL_NONE);
    same_bytes(HOTBED_OPT_ROWWISE_ADAGRAD, HOTBED_POOL_SUM);
    same_bytes(HOTBED_OPT_LAMB, HOTBED_POOL_MEAN);
    own_parameters = false;
}

static void narrow_states_everywhere(void) {
    narrow_states = true;
    for (int kind = 1; kind <= HOTBED_OPT_LAST; kind++) {
        own_parameters = kind % 4 == 0;
        same_bytes((hotbed_optimizer_kind)kind, (hotbed_pooling)(kind % 3));
    }
    own_parameters = false;
    for (in_registers = 3; in_registers > 0; in_registers--)
        for (int kind = 1; kind <= HOTBED_OPT_LAST; kind++)
            if (!hotbed_test_is_small() || kind % 3 == in_registers - 1)
                same_bytes(
                    (hotbed_optimizer_kind)kind, (hotbed_pooling)((kind + in_registers) % 2));
    narrow_states = false;
}

static void narrow_states_give_the_same_bytes_on_both_backends(hotbed_backend backend) {
    both(narrow_states_everywhere);
}

static void tables_with_own_parameters_give_the_same_bytes_on_both_backends(
    hotbed_backend backend) {
    both(own_parameters_everywhere);
}

static void others_everywhere(void) {
    for (int kind = HOTBED_OPT_ROWWISE_ADAGRAD + 1; kind <= HOTBED_OPT_LAST; kind++)
        same_bytes((hotbed_optimizer_kind)kind, (hotbed_pooling)(kind % 3));
}

static void the_other_optimizers_give_the_same_bytes_on_both_backends(hotbed_backend backend) {
    both(others_everywhere);
}

static void sgd_gives_the_same_bytes_on_both_backends(hotbed_backend backend) {
    both(sgd_everywhere);
}

static void adam_gives_the_same_bytes_on_both_backends(hotbed_backend backend) {
    both(adam_everywhere);
}

static void adagrad_gives_the_same_bytes_on_both_backends(hotbed_backend backend) {
    both(adagrad_everywhere);
}

const hotbed_test hotbed_tests[] = {
    {TEST(the_other_optimizers_give_the_same_bytes_on_both_backends)},
    {TEST(tables_with_own_parameters_give_the_same_bytes_on_both_backends)},
    {TEST(narrow_states_give_the_same_bytes_on_both_backends)},
    {TEST(sgd_gives_the_same_bytes_on_both_backends)},
    {TEST(adam_gives_the_same_bytes_on_both_backends)},
    {TEST(adagrad_gives_the_same_bytes_on_both_backends)},
    {NULL, NULL},
};
