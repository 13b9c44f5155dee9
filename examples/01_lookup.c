/* examples/01_lookup.c - an embedding table: look up keys, and read a row by its key. */
#include "hotbed/storage.h"

#include <stdio.h>
#include <stdlib.h>

/* Every call returns a status; hotbed_last_error() describes the last failure. */
static void check(hotbed_status status) {
    if (status == HOTBED_OK)
        return;
    fprintf(stderr, "%s: %s\n", hotbed_status_name(status), hotbed_last_error());
    exit(1);
}

enum { DIM = 4, KEYS = 3 };

int main(void) {
    /* Use a GPU if there is one. The calls are the same on both backends. */
    hotbed_backend backend = HOTBED_BACKEND_HOST;
    if (hotbed_backend_probe(HOTBED_BACKEND_CUDA) == HOTBED_OK)
        backend = HOTBED_BACKEND_CUDA;
    hotbed_stream *stream;
    check(hotbed_stream_create(backend, 0, &stream));

    /* One hash table: it accepts any 64-bit key and creates a row when a key is first seen. */
    hotbed_table_options table = {.size = sizeof table};
    table.name = "words";
    table.dim = DIM;
    table.capacity = 1000;
    table.initializer.kind = HOTBED_INIT_UNIFORM;
    table.initializer.lower = -1;
    table.initializer.upper = 1;
    hotbed_storage_options options;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.optimizer.kind = HOTBED_OPT_SGD;
    hotbed_storage *storage;
    check(hotbed_storage_create(&options, stream, &storage));

    /* Keys and rows are in device memory. Host and GPU can both access pinned memory. */
    hotbed_memory keys;
    hotbed_memory rows;
    check(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, KEYS * sizeof(int64_t), NULL, &keys));
    check(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, KEYS * DIM * sizeof(float), NULL, &rows));
    int64_t *key = keys.data;
    key[0] = 42;
    key[1] = -7;
    key[2] = 42;

    /* A ticket carries a batch from prefetch to forward, and to backward (see 02_train_step.c). */
    hotbed_ticket *ticket;
    check(hotbed_ticket_create(storage, KEYS, KEYS, stream, &ticket));
    hotbed_batch batch = {
        .size = sizeof batch, .batch_size = KEYS, .num_keys = KEYS, .keys = keys.data};
    check(hotbed_storage_prefetch(storage, &batch, ticket, stream));
    check(hotbed_storage_forward(storage, ticket, rows.data, DIM, stream));
    check(hotbed_ticket_cancel(ticket, stream));
    check(hotbed_stream_sync(stream)); /* no call has blocked until here */

    const float *row = rows.data;
    printf("on the %s backend:\n", hotbed_backend_name(backend));
    for (int i = 0; i < KEYS; i++, row += DIM)
        printf(
            "  key %3lld: %9.6f %9.6f %9.6f %9.6f\n", (long long)key[i], (double)row[0],
            (double)row[1], (double)row[2], (double)row[3]);
    uint64_t stored;
    uint64_t pinned;
    check(hotbed_storage_size(storage, 0, &stored, &pinned, stream));
    printf("the table has %llu keys\n", (unsigned long long)stored);

    hotbed_ticket_destroy(ticket);
    hotbed_storage_destroy(storage);
    hotbed_memory_free(&keys);
    hotbed_memory_free(&rows);
    hotbed_stream_destroy(stream);
    return stored == 2 ? 0 : 1;
}
