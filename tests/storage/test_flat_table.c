/* tests/storage/test_flat_table.c - contract of hotbed/flat_table.h, against plain arrays.
 *
 * Random rows are stored and loaded by slot, in every kind of memory, for all element types and optimizers; weights and
 * states must be the bytes that were stored last.
 */
#include "storage/rows/flat_table.h"

#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { ROWS = 301, MOST = 400, DIM_MOST = 257, PARTS = 3 };

static const hotbed_memory_kind kinds[] = {
    HOTBED_MEMORY_DEVICE, HOTBED_MEMORY_PINNED, HOTBED_MEMORY_PAGEABLE, HOTBED_MEMORY_FILE};
static const hotbed_dtype dtypes[] = {HOTBED_F32, HOTBED_F16, HOTBED_BF16, HOTBED_INT8, HOTBED_FP8};
static const hotbed_optimizer_kind optimizers[] = {
    (hotbed_optimizer_kind)0,
    HOTBED_OPT_SGD,
    HOTBED_OPT_ADAM,
    HOTBED_OPT_ADAGRAD,
    HOTBED_OPT_ROWWISE_ADAGRAD,
    HOTBED_OPT_PARTIAL_ROWWISE_ADAM};

/* Arrays of a call, in host and in device memory: slots, and weights and states of as many rows. */
typedef struct arrays {
    uint64_t slots[MOST];
    uint8_t parts[PARTS][MOST * DIM_MOST * 4];
} arrays;

typedef struct table_fixture {
    hotbed_stream *stream;
    hotbed_flat_table *table;
    hotbed_flat_table_view view;
    uint32_t part_bytes[PARTS]; /* of a row; 0 if the table has no such part */
    hotbed_memory memory;
    arrays *device, *host;
    uint8_t *model[PARTS]; /* [ROWS] */
} table_fixture;

static hotbed_flat_table_options options_of(
    hotbed_memory_kind kind, hotbed_dtype dtype, hotbed_optimizer_kind optimizer, uint32_t dim) {
    hotbed_flat_table_options o = {.size = sizeof o};
    o.capacity = ROWS;
    o.dim = dim;
    o.dtype = dtype;
    o.state_dtype = dtype == HOTBED_F16 || dtype == HOTBED_INT8 ? HOTBED_BF16 : HOTBED_F32;
    o.optimizer = optimizer;
    o.memory = kind;
    static const char *directory; /* shared by all tests */
    if (directory == NULL)
        directory = hotbed_test_directory();
    o.directory = directory;
    return o;
}

/* `chunk`: rows in the staging area, which the host backend then uses, too; 0: the default. */
static void open_fixture(
    table_fixture *b, hotbed_backend backend, const hotbed_flat_table_options *o, uint64_t chunk) {
    memset(b, 0, sizeof *b);
    b->view.size = sizeof b->view;
    CHECK_OK(hotbed_stream_create(backend, 0, &b->stream));
    if (chunk > 0)
        CHECK_OK(hotbed_flat_table_create_staged(o, chunk, b->stream, &b->table));
    else
        CHECK_OK(hotbed_flat_table_create(o, b->stream, &b->table));
    CHECK_OK(hotbed_flat_table_read(b->table, &b->view));
    b->part_bytes[0] = (uint32_t)hotbed_dtype_row_bytes(b->view.dtype, b->view.dim);
    for (uint32_t s = 0; s < hotbed_optimizer_states(o->optimizer); s++)
        b->part_bytes[1 + s] =
            b->view.state_dim[s] * (uint32_t)hotbed_dtype_bytes(b->view.state_dtypes[s]);
    CHECK_OK(
        hotbed_memory_alloc(b->stream, HOTBED_MEMORY_DEVICE, sizeof(arrays), NULL, &b->memory));
    b->device = b->memory.data;
    b->host = calloc(1, sizeof(arrays));
    CHECK(b->host != NULL);
    for (int p = 0; p < PARTS; p++)
        CHECK((b->model[p] = calloc(ROWS, DIM_MOST * 4)) != NULL);
}

static void close_fixture(table_fixture *b) {
    CHECK_OK(hotbed_stream_sync(b->stream));
    hotbed_flat_table_destroy(b->table);
    hotbed_memory_free(&b->memory);
    hotbed_stream_destroy(b->stream);
    free(b->host);
    for (int p = 0; p < PARTS; p++)
        free(b->model[p]);
}

/* Device arrays of the parts whose bits are set, as far as the table has them. */
static hotbed_rows rows_of(const table_fixture *b, uint32_t parts) {
    hotbed_rows rows = {0};
    if ((parts & 1U) != 0)
        rows.weights = b->device->parts[0];
    for (int s = 0; s < 2; s++)
        if ((parts >> (1 + s) & 1U) != 0 && b->part_bytes[1 + s] > 0)
            rows.states[s] = (float *)(void *)b->device->parts[1 + s];
    return rows;
}

static bool has_part(const table_fixture *b, uint32_t parts, int p) {
    return (parts >> p & 1U) != 0 && b->part_bytes[p] > 0;
}

static void upload(table_fixture *b) {
    CHECK_OK(hotbed_copy(b->device, b->host, sizeof(arrays), b->stream));
    CHECK_OK(hotbed_stream_sync(b->stream));
}

static void download(table_fixture *b) {
    CHECK_OK(hotbed_copy(b->host, b->device, sizeof(arrays), b->stream));
    CHECK_OK(hotbed_stream_sync(b->stream));
}

/* Choose n random slots, some of which have no row.  `distinct`: all are different. */
static void random_slots(table_fixture *b, uint64_t n, bool distinct) {
    static const uint64_t none[] = {HOTBED_SLOT_NONE, ROWS, ROWS + 1, (uint64_t)1 << 63};
    uint64_t first = hotbed_test_below(ROWS);
    for (uint64_t i = 0; i < n; i++) {
        b->host->slots[i] = distinct ? (first + i * 100) % ROWS : hotbed_test_below(ROWS);
        if (hotbed_test_below(8) == 0 || (distinct && i >= ROWS))
            b->host->slots[i] = none[hotbed_test_below(4)];
    }
}

static void random_parts(table_fixture *b, uint64_t n) {
    for (int p = 0; p < PARTS; p++)
        for (uint64_t i = 0; i < n * b->part_bytes[p]; i++)
            b->host->parts[p][i] = (uint8_t)hotbed_test_random();
}

static void model_store(table_fixture *b, uint64_t n, uint32_t parts) {
    for (uint64_t i = 0; i < n; i++)
        for (int p = 0; p < PARTS && b->host->slots[i] < ROWS; p++)
            if (has_part(b, parts, p))
                memcpy(
                    b->model[p] + b->host->slots[i] * b->part_bytes[p],
                    b->host->parts[p] + i * b->part_bytes[p], b->part_bytes[p]);
}

static void store(table_fixture *b, uint64_t n, uint32_t parts) {
    random_slots(b, n, true);
    random_parts(b, n);
    upload(b);
    hotbed_rows rows = rows_of(b, parts);
    CHECK_OK(hotbed_flat_table_store(b->table, n, b->device->slots, &rows, b->stream));
    model_store(b, n, parts);
}

/* Load some parts of random rows: they must equal the model's, and other bytes must stay unchanged. */
static void load(table_fixture *b, uint64_t n, uint32_t parts) {
    random_slots(b, n, false);
    memset(b->host->parts, 0xa5, sizeof b->host->parts);
    upload(b);
    hotbed_rows rows = rows_of(b, parts);
    CHECK_OK(hotbed_flat_table_load(b->table, n, b->device->slots, &rows, b->stream));
    download(b);
    static uint8_t untouched[DIM_MOST * 4];
    memset(untouched, 0xa5, sizeof untouched);
    for (int p = 0; p < PARTS; p++)
        for (uint64_t i = 0; i <= n && b->part_bytes[p] > 0; i++) {
            bool given = i < n && has_part(b, parts, p) && b->host->slots[i] < ROWS;
            CHECK_BYTES(
                b->host->parts[p] + i * b->part_bytes[p],
                given ? b->model[p] + b->host->slots[i] * b->part_bytes[p] : untouched,
                b->part_bytes[p]);
        }
}

/* Store all rows, so that no row is undefined. */
static void store_all(table_fixture *b) {
    random_parts(b, ROWS);
    for (uint64_t i = 0; i < ROWS; i++)
        b->host->slots[i] = i;
    upload(b);
    hotbed_rows rows = rows_of(b, 7);
    CHECK_OK(hotbed_flat_table_store(b->table, ROWS, b->device->slots, &rows, b->stream));
    model_store(b, ROWS, 7);
}

static void exercise(table_fixture *b) {
    store_all(b);
    load(b, MOST - 1, 7);
    for (uint32_t parts = 0; parts < 8; parts += hotbed_test_is_small() ? 5 : 1) {
        store(b, 1 + hotbed_test_below(ROWS), parts);
        load(b, 1 + hotbed_test_below(MOST - 1), 7 - parts);
        load(b, 1 + hotbed_test_below(MOST - 1), 7);
    }
}

/* --- rows ------------------------------------------------------------------------------------ */

static void rows_are_kept_in(hotbed_backend backend, hotbed_memory_kind kind, uint64_t chunk) {
    static const uint32_t dims[] = {1, 3, 16, DIM_MOST};
    for (uint32_t d = 0; d < 4; d++)
        for (uint32_t t = 0; t < 3; t++) {
            if (hotbed_test_is_small() && t != d % 3)
                continue;
            table_fixture b;
            hotbed_optimizer_kind optimizer = optimizers[(d + t) % 6];
            hotbed_flat_table_options o = options_of(kind, dtypes[t], optimizer, dims[d]);
            open_fixture(&b, backend, &o, chunk);
            CHECK_EQ(b.view.memory, kind);
            exercise(&b);
            close_fixture(&b);
        }
}

static void rows_are_kept_in_device_memory(hotbed_backend backend) {
    rows_are_kept_in(backend, HOTBED_MEMORY_DEVICE, 0);
}

static void rows_are_kept_in_pinned_memory(hotbed_backend backend) {
    rows_are_kept_in(backend, HOTBED_MEMORY_PINNED, 0);
}

static void rows_are_kept_in_pageable_memory(hotbed_backend backend) {
    rows_are_kept_in(backend, HOTBED_MEMORY_PAGEABLE, 0);
}

static void rows_are_kept_in_a_file(hotbed_backend backend) {
    rows_are_kept_in(backend, HOTBED_MEMORY_FILE, 0);
}

/* With chunks of a few rows, a call needs many, and the last one is short. */
static void rows_go_through_the_staging_area(hotbed_backend backend) {
    rows_are_kept_in(backend, HOTBED_MEMORY_PAGEABLE, 7);
    rows_are_kept_in(backend, HOTBED_MEMORY_FILE, ROWS);
    rows_are_kept_in(backend, HOTBED_MEMORY_PAGEABLE, 1000); /* more rows than the table has */
}

static void rows_have_the_states_of_their_optimizer(hotbed_backend backend) {
    for (uint32_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++)
        for (uint32_t t = 0; t < 3; t++) {
            table_fixture b;
            hotbed_flat_table_options o =
                options_of(HOTBED_MEMORY_DEVICE, dtypes[t], optimizers[i], 5);
            open_fixture(&b, backend, &o, 0);
            uint32_t states = hotbed_optimizer_states(optimizers[i]);
            CHECK_EQ(b.view.optimizer, optimizers[i]);
            for (uint32_t s = 0; s < 2; s++)
                CHECK_EQ(b.view.state_dim[s], hotbed_optimizer_state_dim(optimizers[i], s, 5));
            uint64_t end = b.part_bytes[0];
            for (uint32_t s = 0; s < 2; s++) {
                if (s >= states) {
                    CHECK_EQ(b.view.state_offsets[s], 0);
                    continue;
                }
                CHECK(b.view.state_offsets[s] >= end);
                CHECK_EQ(b.view.state_offsets[s] % 4, 0);
                end = b.view.state_offsets[s] + b.part_bytes[1 + s];
            }
            CHECK(b.view.row_bytes >= end && b.view.row_bytes < end + 16);
            exercise(&b);
            close_fixture(&b);
        }
}

/* Stored rows are at the addresses of the view. */
static void the_view_shows_the_rows(hotbed_backend backend) {
    for (uint32_t k = 0; k < 4; k++) {
        table_fixture b;
        hotbed_flat_table_options o = options_of(kinds[k], HOTBED_F16, HOTBED_OPT_ADAM, 10);
        open_fixture(&b, backend, &o, 0);
        CHECK_EQ(b.view.capacity, ROWS);
        CHECK_EQ(b.view.dim, 10);
        store_all(&b);
        CHECK_OK(hotbed_stream_sync(b.stream));
        uint8_t *rows = malloc(ROWS * b.view.row_bytes);
        CHECK(rows != NULL);
        CHECK_OK(hotbed_copy(rows, b.view.rows, ROWS * b.view.row_bytes, b.stream));
        CHECK_OK(hotbed_stream_sync(b.stream));
        for (uint64_t i = 0; i < ROWS; i++) {
            const uint8_t *row = rows + i * b.view.row_bytes;
            CHECK_BYTES(row, b.model[0] + i * b.part_bytes[0], b.part_bytes[0]);
            for (int s = 0; s < 2; s++)
                CHECK_BYTES(
                    row + b.view.state_offsets[s], b.model[1 + s] + i * b.part_bytes[1 + s],
                    b.part_bytes[1 + s]);
        }
        free(rows);
        close_fixture(&b);
    }
}

static void *dirty_allocate(void *self, int device, size_t bytes, void *native) {
    (void)self, (void)device, (void)native;
    const size_t whole = (bytes + 255) / 256 * 256;
    void *data = aligned_alloc(256, whole);
    return data == NULL ? NULL : memset(data, 0xa5, whole);
}

static void dirty_release(void *self, int device, void *data, size_t bytes) {
    (void)self, (void)device, (void)bytes;
    free(data);
}

/* Updates read a scale as whole words, whose last bytes may be padding. */
static void padding_is_zero_in_used_memory(hotbed_backend backend) {
    const hotbed_allocator dirty = {
        .size = sizeof dirty, .allocate = dirty_allocate, .release = dirty_release};
    if (backend == HOTBED_BACKEND_HOST)
        CHECK_OK(hotbed_memory_set_allocator(backend, &dirty));
    table_fixture b;
    const hotbed_flat_table_options o =
        options_of(HOTBED_MEMORY_DEVICE, HOTBED_INT8, HOTBED_OPT_ADAM, 7);
    open_fixture(&b, backend, &o, 0);
    CHECK(b.part_bytes[0] % 4 != 0);
    store_all(&b);
    uint8_t *rows = malloc(ROWS * b.view.row_bytes);
    CHECK(rows != NULL);
    CHECK_OK(hotbed_copy(rows, b.view.rows, ROWS * b.view.row_bytes, b.stream));
    CHECK_OK(hotbed_stream_sync(b.stream));
    for (uint64_t i = 0; i < ROWS; i++) {
        uint8_t *row = rows + i * b.view.row_bytes;
        memset(row, 0, b.part_bytes[0]);
        for (int s = 0; s < 2; s++)
            memset(row + b.view.state_offsets[s], 0, b.part_bytes[1 + s]);
        for (uint64_t k = 0; k < b.view.row_bytes; k++)
            CHECK_EQ(row[k], 0);
    }
    free(rows);
    close_fixture(&b);
    if (backend == HOTBED_BACKEND_HOST)
        CHECK_OK(hotbed_memory_set_allocator(backend, NULL));
}

/* --- streams --------------------------------------------------------------------------------- */

static void graph_in(hotbed_backend backend, hotbed_memory_kind kind, uint64_t chunk) {
    enum { N = 50 };
    table_fixture b;
    hotbed_graph *graph;
    hotbed_flat_table_options o = options_of(kind, HOTBED_F32, HOTBED_OPT_ADAM, 6);
    open_fixture(&b, backend, &o, chunk);
    store_all(&b);
    hotbed_rows weights = rows_of(&b, 1), states = rows_of(&b, 6);
    CHECK_OK(hotbed_graph_begin(b.stream));
    CHECK_OK(hotbed_flat_table_store(b.table, N, b.device->slots, &weights, b.stream));
    CHECK_OK(hotbed_flat_table_load(b.table, N, b.device->slots, &states, b.stream));
    CHECK_OK(hotbed_graph_end(b.stream, &graph));
    for (int launch = 0; launch < 10; launch++) {
        random_slots(&b, N, true);
        random_parts(&b, N);
        upload(&b);
        model_store(&b, N, 1);
        CHECK_OK(hotbed_graph_launch(graph, b.stream));
        download(&b);
        for (uint64_t i = 0; i < N; i++)
            for (int p = 1; p < PARTS && b.host->slots[i] < ROWS; p++)
                CHECK_BYTES(
                    b.host->parts[p] + i * b.part_bytes[p],
                    b.model[p] + b.host->slots[i] * b.part_bytes[p], b.part_bytes[p]);
    }
    load(&b, MOST - 1, 7);
    hotbed_graph_destroy(graph);
    close_fixture(&b);
}

static void a_recorded_graph_serves_changing_slots(hotbed_backend backend) {
    for (uint32_t k = 0; k < 4; k++)
        graph_in(backend, kinds[k], 0);
    graph_in(backend, HOTBED_MEMORY_PAGEABLE, 8);
}

static void calls_neither_wait_nor_allocate(hotbed_backend backend) {
    for (uint32_t k = 0; k < 5; k++) {
        table_fixture b;
        hotbed_flat_table_options o =
            options_of(k < 4 ? kinds[k] : HOTBED_MEMORY_PAGEABLE, HOTBED_F32, HOTBED_OPT_ADAM, 6);
        open_fixture(&b, backend, &o, k < 4 ? 0 : 40);
        store_all(&b);
        random_slots(&b, MOST, true);
        upload(&b);
        hotbed_rows rows = rows_of(&b, 7);
        hotbed_counters before = hotbed_test_counters();
        CHECK_OK(hotbed_flat_table_load(b.table, MOST, b.device->slots, &rows, b.stream));
        CHECK_OK(hotbed_flat_table_store(b.table, MOST, b.device->slots, &rows, b.stream));
        hotbed_counters after = hotbed_test_counters();
        CHECK_EQ(after.host_waits, before.host_waits);
        CHECK_EQ(after.allocations, before.allocations);
        close_fixture(&b);
    }
}

/* --- failing --------------------------------------------------------------------------------- */

static void bad_arguments_are_refused(hotbed_backend backend) {
    table_fixture b;
    hotbed_flat_table *none;
    hotbed_flat_table_view view = {.size = sizeof view};
    hotbed_flat_table_options good =
        options_of(HOTBED_MEMORY_DEVICE, HOTBED_F32, HOTBED_OPT_ADAGRAD, 4);
    open_fixture(&b, backend, &good, 0);
    hotbed_stream *s = b.stream;
    hotbed_flat_table_options o = good;
    CHECK_STATUS(hotbed_flat_table_create(&o, s, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_flat_table_create(&o, NULL, &none), HOTBED_ERR_ARGUMENT);
    CHECK(none == NULL);
    CHECK_STATUS(hotbed_flat_table_create(NULL, s, &none), HOTBED_ERR_ARGUMENT);
    o.size = 1;
    CHECK_STATUS(hotbed_flat_table_create(&o, s, &none), HOTBED_ERR_ARGUMENT);
    static const uint32_t dims[2] = {0, 4097};
    static const uint64_t capacities[2] = {0, ((uint64_t)1 << 36) + 1};
    for (int i = 0; i < 2; i++) {
        o = good;
        o.dim = dims[i];
        CHECK_STATUS(hotbed_flat_table_create(&o, s, &none), HOTBED_ERR_ARGUMENT);
        o = good;
        o.capacity = capacities[i];
        CHECK_STATUS(hotbed_flat_table_create(&o, s, &none), HOTBED_ERR_ARGUMENT);
    }
    o = good;
    o.state_dtype = HOTBED_F16;
    CHECK_STATUS(hotbed_flat_table_create(&o, s, &none), HOTBED_ERR_ARGUMENT);
    o = good;
    o.dtype = (hotbed_dtype)9;
    CHECK_STATUS(hotbed_flat_table_create(&o, s, &none), HOTBED_ERR_ARGUMENT);
    o = good;
    o.optimizer = (hotbed_optimizer_kind)99;
    CHECK_STATUS(hotbed_flat_table_create(&o, s, &none), HOTBED_ERR_ARGUMENT);
    o = good;
    o.memory = (hotbed_memory_kind)9;
    CHECK_STATUS(hotbed_flat_table_create(&o, s, &none), HOTBED_ERR_ARGUMENT);
    CHECK(none == NULL);
    hotbed_flat_table_destroy(NULL);

    hotbed_rows rows = rows_of(&b, 1);
    const uint64_t *slots = b.device->slots;
    CHECK_STATUS(hotbed_flat_table_load(NULL, 1, slots, &rows, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_flat_table_load(b.table, 1, NULL, &rows, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_flat_table_load(b.table, 1, slots, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_flat_table_store(b.table, 1, slots, &rows, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_flat_table_store(b.table, 1, NULL, &rows, s), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_flat_table_store(b.table, 0, NULL, &rows, s));
    CHECK_OK(hotbed_flat_table_load(b.table, 0, NULL, &rows, s));
    rows.states[1] = (float *)(void *)b.device->parts[2]; /* ADAGRAD has one state */
    CHECK_STATUS(hotbed_flat_table_load(b.table, 1, slots, &rows, s), HOTBED_ERR_ARGUMENT);
    rows.states[1] = NULL;
    rows.scores = b.device->slots;
    CHECK_STATUS(hotbed_flat_table_store(b.table, 1, slots, &rows, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_flat_table_read(b.table, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_flat_table_read(NULL, &view), HOTBED_ERR_ARGUMENT);
    close_fixture(&b);
}

static void failing_allocations_are_errors(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (uint32_t k = 0; k < 5; k++) {
        hotbed_flat_table *table;
        hotbed_flat_table_options o =
            options_of(k < 4 ? kinds[k] : HOTBED_MEMORY_FILE, HOTBED_F32, HOTBED_OPT_ADAM, 20);
        for (uint64_t n = 1;; n++) {
            fault_arm(n);
            hotbed_status status = k < 4 ? hotbed_flat_table_create(&o, stream, &table)
                                         : hotbed_flat_table_create_staged(&o, 0, stream, &table);
            if (!fault_disarm()) {
                CHECK_OK(status);
                break;
            }
            CHECK_STATUS(status, HOTBED_ERR_MEMORY);
            CHECK(table == NULL);
        }
        hotbed_flat_table_destroy(table);
    }
    hotbed_stream_destroy(stream);
}

static void files_that_cannot_be_made_are_errors(hotbed_backend backend) {
    hotbed_flat_table *table;
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_flat_table_options o = options_of(HOTBED_MEMORY_FILE, HOTBED_F32, HOTBED_OPT_SGD, 64);
    const char *directory = o.directory;
    o.directory = "/no/such/directory";
    CHECK_STATUS(hotbed_flat_table_create(&o, stream, &table), HOTBED_ERR_IO);
    CHECK(table == NULL);
    /* A limit of the file size acts like a full disk. */
    struct rlimit was, small = {.rlim_cur = 4096};
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &was), 0);
    small.rlim_max = was.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    o.directory = directory;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    hotbed_status status = hotbed_flat_table_create(&o, stream, &table);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &was), 0);
    CHECK_STATUS(status, HOTBED_ERR_IO);
    CHECK(table == NULL);
    CHECK_OK(hotbed_flat_table_create(&o, stream, &table));
    hotbed_flat_table_destroy(table);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(rows_are_kept_in_device_memory)},
    {TEST(rows_are_kept_in_pinned_memory)},
    {TEST(rows_are_kept_in_pageable_memory)},
    {TEST(rows_are_kept_in_a_file)},
    {TEST(rows_go_through_the_staging_area)},
    {TEST(rows_have_the_states_of_their_optimizer)},
    {TEST(the_view_shows_the_rows)},
    {TEST(padding_is_zero_in_used_memory)},
    {TEST(a_recorded_graph_serves_changing_slots)},
    {TEST(calls_neither_wait_nor_allocate)},
    {TEST(bad_arguments_are_refused)},
    {TEST(failing_allocations_are_errors)},
    {TEST(files_that_cannot_be_made_are_errors)},
    {NULL, NULL},
};
