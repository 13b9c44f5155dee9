/* tests/storage/test_storage_wide.c - a table and an output of more than 2^31 elements and 2^32 bytes.
 *
 * Finds address computations in 32 bits.  Only the used rows are written; on the host the rest is reserved address
 * space.
 */
#include "hotbed/storage.h"
#include "tests/support/harness.h"

#include <stdlib.h>

enum { DIM = 4096, KEYS = 2000, HIGH = 5 };

#define CAPACITY 540000
#define STRIDE   ((UINT64_C(1) << 29) + 8)
#define ONE      0x3c00U /* 1 in F16 */

typedef struct wide {
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_ticket *ticket;
    hotbed_memory keys, rows, output;
    uint64_t high[HIGH]; /* the keys of the highest slots */
    uint16_t host[KEYS * DIM];
} wide;

/* A number below 2048 in F16. */
static uint16_t narrow(int number) {
    uint32_t size = (uint32_t)abs(number), exponent = 15;
    uint16_t sign = number < 0 ? 0x8000U : 0;
    if (size == 0)
        return 0;
    for (; size >= 2U << (exponent - 15); exponent++)
        continue;
    return (uint16_t)(sign | exponent << 10 | ((size << (25 - exponent)) & 0x3ffU));
}

static hotbed_status allocate(wide *w, hotbed_backend backend) {
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    table.name = "wide";
    table.dim = DIM;
    table.capacity = CAPACITY;
    table.dtype = HOTBED_F16;
    table.initializer.kind = HOTBED_INIT_DEBUG;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.output_dtype = HOTBED_F16;
    options.optimizer.kind = HOTBED_OPT_SGD;
    options.optimizer.learning_rate = 1.0F;
    CHECK_OK(hotbed_stream_create(backend, 0, &w->stream));
    hotbed_status status = hotbed_storage_create(&options, w->stream, &w->storage);
    if (status == HOTBED_OK)
        status = hotbed_memory_alloc(
            w->stream, HOTBED_MEMORY_DEVICE, ((HIGH - 1) * STRIDE + DIM) * sizeof(uint16_t), NULL,
            &w->output);
    if (status != HOTBED_OK)
        return status;
    CHECK_OK(hotbed_ticket_create(w->storage, KEYS, KEYS, w->stream, &w->ticket));
    CHECK_OK(hotbed_memory_alloc(
        w->stream, HOTBED_MEMORY_DEVICE, KEYS * sizeof(uint64_t), NULL, &w->keys));
    return hotbed_memory_alloc(w->stream, HOTBED_MEMORY_DEVICE, sizeof w->host, NULL, &w->rows);
}

static void prefetch(wide *w, uint32_t n, const uint64_t *keys) {
    hotbed_batch batch = {
        .size = sizeof batch, .batch_size = n, .num_keys = n, .keys = w->keys.data};
    CHECK_OK(hotbed_copy(w->keys.data, keys, n * sizeof *keys, w->stream));
    CHECK_OK(hotbed_storage_prefetch(w->storage, &batch, w->ticket, w->stream));
    CHECK_OK(hotbed_stream_sync(w->stream));
}

static void read_rows(wide *w, uint32_t n, const uint64_t *keys) {
    const hotbed_rows rows = {.weights = w->rows.data};
    CHECK_OK(hotbed_copy(w->keys.data, keys, n * sizeof *keys, w->stream));
    CHECK_OK(hotbed_storage_get_rows(w->storage, 0, n, w->keys.data, &rows, NULL, w->stream));
    CHECK_OK(hotbed_copy(w->host, w->rows.data, (size_t)n * DIM * sizeof(uint16_t), w->stream));
    CHECK_OK(hotbed_stream_sync(w->stream));
}

static void check_row(const uint16_t *row, int number) {
    for (int e = 0; e < DIM; e++)
        CHECK_EQ(row[e], narrow(number));
}

/* Insert the keys 0 .. KEYS-1, and find those with the highest slots. */
static void fill(wide *w) {
    uint64_t keys[KEYS], slots[KEYS];
    hotbed_ticket_view view = {.size = sizeof view};
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(w->storage, 0, &info));
    CHECK(info.slots * DIM > UINT64_C(1) << 31);
    CHECK(info.slots * info.row_bytes > UINT64_C(1) << 32);
    for (uint64_t i = 0; i < KEYS; i++)
        keys[i] = i;
    prefetch(w, KEYS, keys);
    CHECK_OK(hotbed_ticket_read(w->ticket, &view));
    CHECK_OK(hotbed_copy(slots, view.slots, sizeof slots, w->stream));
    CHECK_OK(hotbed_ticket_cancel(w->ticket, w->stream));
    CHECK_OK(hotbed_stream_sync(w->stream));
    for (int h = 0; h < HIGH; h++) {
        uint64_t best = 0;
        for (uint64_t i = 1; i < KEYS; i++)
            if (slots[i] > slots[best])
                best = i;
        CHECK(slots[best] * DIM > UINT64_C(1) << 31);
        w->high[h] = best;
        /* The row is at the documented address, computed in 64 bits. */
        const uint8_t *row =
            (uint8_t *)info.weights + (slots[best] - info.first_slot) * info.row_bytes;
        CHECK_OK(hotbed_copy(w->host, row, DIM * sizeof(uint16_t), w->stream));
        CHECK_OK(hotbed_stream_sync(w->stream));
        check_row(w->host, (int)best);
        slots[best] = 0;
    }
    read_rows(w, KEYS, keys);
    for (int i = 0; i < KEYS; i++)
        check_row(w->host + (ptrdiff_t)i * DIM, i);
}

/* Forward and backward of rows beyond 2^31 elements, with an output of that size. */
static void step(wide *w) {
    static uint16_t ones[DIM];
    uint16_t *output = w->output.data;
    for (int e = 0; e < DIM; e++)
        ones[e] = ONE;
    prefetch(w, HIGH, w->high);
    CHECK_OK(hotbed_storage_forward(w->storage, w->ticket, output, STRIDE, w->stream));
    for (uint64_t i = 0; i < HIGH; i++) {
        CHECK_OK(hotbed_copy(w->host, output + i * STRIDE, sizeof ones, w->stream));
        CHECK_OK(hotbed_stream_sync(w->stream));
        check_row(w->host, (int)w->high[i]);
        CHECK_OK(hotbed_copy(output + i * STRIDE, ones, sizeof ones, w->stream));
    }
    CHECK_OK(hotbed_storage_backward(w->storage, w->ticket, output, STRIDE, w->stream));
    read_rows(w, HIGH, w->high);
    for (int i = 0; i < HIGH; i++)
        check_row(w->host + (ptrdiff_t)i * DIM, (int)w->high[i] - 1);
}

static void rows_beyond_2_to_the_31_elements_are_addressed(hotbed_backend backend) {
    static wide w;
    hotbed_status status = allocate(&w, backend);
    if (status == HOTBED_OK) {
        fill(&w);
        step(&w);
    }
    hotbed_memory_free(&w.output);
    hotbed_memory_free(&w.rows);
    hotbed_memory_free(&w.keys);
    hotbed_ticket_destroy(w.ticket);
    hotbed_storage_destroy(w.storage);
    hotbed_stream_destroy(w.stream);
    if (status == HOTBED_ERR_MEMORY)
        SKIP("9 GB of address space or of device memory are not to be had");
    CHECK_EQ(status, HOTBED_OK);
}

const hotbed_test hotbed_tests[] = {
    {TEST(rows_beyond_2_to_the_31_elements_are_addressed)},
    {NULL, NULL},
};
