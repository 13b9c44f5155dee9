/* examples/02_train_step.c - the training step: prefetch, forward, your model, backward.
 *
 * Two tables, "user" and "item". A sample has one user and a bag of items. Its prediction is the
 * sum of all elements of its rows; the target is 1 for even users and -1 for odd users. */
#include "hotbed/storage.h"

#include <stdio.h>
#include <stdlib.h>

static void check(hotbed_status status) {
    if (status == HOTBED_OK)
        return;
    fprintf(stderr, "%s: %s\n", hotbed_status_name(status), hotbed_last_error());
    exit(1);
}

enum { DIM = 8, SAMPLES = 4, FEATURES = 2, KEYS = 4 + 7, COLUMNS = FEATURES * DIM, STEPS = 40 };

static void *pinned(hotbed_stream *stream, size_t bytes, hotbed_memory *memory) {
    check(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, bytes, NULL, memory));
    return memory->data;
}

/* The model: the squared error of the sum of the rows. Overwrites the rows with the gradient. */
static double model(float *rows, const int64_t *users) {
    double loss = 0;
    for (int s = 0; s < SAMPLES; s++) {
        float *row = rows + s * COLUMNS;
        float error = users[s] % 2 == 0 ? -1.0F : 1.0F;
        for (int j = 0; j < COLUMNS; j++)
            error += row[j];
        loss += (double)(error * error);
        for (int j = 0; j < COLUMNS; j++)
            row[j] = 2 * error;
    }
    return loss;
}

int main(void) {
    /* Keys of all bags, feature by feature. Bag b: keys[offsets[b]] up to keys[offsets[b + 1]]. */
    static const int64_t the_keys[KEYS] = {0,  1,  2,  3, /* users */ 10, 11, 12,
                                           10, 13, 14, 11 /* items */};
    static const int64_t the_offsets[FEATURES * SAMPLES + 1] = {0, 1, 2, 3, 4, 6, 7, 7, 11};
    hotbed_backend backend = HOTBED_BACKEND_HOST;
    if (hotbed_backend_probe(HOTBED_BACKEND_CUDA) == HOTBED_OK)
        backend = HOTBED_BACKEND_CUDA;
    hotbed_stream *stream;
    check(hotbed_stream_create(backend, 0, &stream));

    hotbed_table_options tables[FEATURES];
    for (int t = 0; t < FEATURES; t++) {
        tables[t] = (hotbed_table_options){.size = sizeof tables[t]};
        tables[t].name = t == 0 ? "user" : "item";
        tables[t].dim = DIM;
        tables[t].capacity = 1000;
        tables[t].initializer.kind = HOTBED_INIT_NORMAL;
        tables[t].initializer.std = 0.1F;
    }
    hotbed_storage_options options;
    hotbed_storage_options_init(&options);
    options.num_tables = FEATURES;
    options.tables = tables;
    options.pooling = HOTBED_POOL_SUM;
    options.optimizer.kind = HOTBED_OPT_ADAM;
    options.optimizer.learning_rate = 0.02F;
    hotbed_storage *storage;
    hotbed_ticket *ticket;
    check(hotbed_storage_create(&options, stream, &storage));
    check(hotbed_ticket_create(storage, KEYS, SAMPLES, stream, &ticket));

    hotbed_memory memory[3];
    int64_t *keys = pinned(stream, sizeof the_keys, &memory[0]);
    int64_t *offsets = pinned(stream, sizeof the_offsets, &memory[1]);
    float *rows = pinned(stream, SAMPLES * COLUMNS * sizeof(float), &memory[2]);
    memcpy(keys, the_keys, sizeof the_keys);
    memcpy(offsets, the_offsets, sizeof the_offsets);
    hotbed_batch batch = {.size = sizeof batch};
    batch.batch_size = SAMPLES;
    batch.num_keys = KEYS;
    batch.keys = keys;
    batch.offsets = offsets;

    double first = 0;
    double loss = 0;
    for (int step = 1; step <= STEPS; step++) {
        check(hotbed_storage_prefetch(storage, &batch, ticket, stream));
        check(hotbed_storage_forward(storage, ticket, rows, COLUMNS, stream));
        check(hotbed_stream_sync(stream)); /* this model runs on the host */
        loss = model(rows, keys);
        check(hotbed_storage_backward(storage, ticket, rows, COLUMNS, stream));
        if (step == 1)
            first = loss;
        if (step == 1 || step % 10 == 0)
            printf("step %2d: loss %.6f\n", step, loss);
    }
    check(hotbed_stream_sync(stream));

    hotbed_ticket_destroy(ticket);
    hotbed_storage_destroy(storage);
    for (int i = 0; i < 3; i++)
        hotbed_memory_free(&memory[i]);
    hotbed_stream_destroy(stream);
    return loss < first / 10 ? 0 : 1;
}
