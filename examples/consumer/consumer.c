/* examples/consumer/consumer.c - a program outside of the library's tree: a table, one training
 * step, and a check of the rows.
 *
 * The program of README.md with its values checked. On the host backend device memory is ordinary
 * memory, so the arrays here are plain arrays. */
#include <hotbed/storage.h>
#include <hotbed/version.h>
#include <stdio.h>
#include <string.h>

enum { SAMPLES = 4, KEYS = 6, DIM = 8 };

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, hotbed_last_error());
    return 1;
}

/* Run one step of SGD with learning rate 1 on bags of keys. The gradient is 1 everywhere. */
static hotbed_status train(hotbed_storage *storage, hotbed_stream *stream, float *output) {
    static const int64_t keys[KEYS] = {7, -1, 7, 1000000007, 42, 7};
    static const int64_t offsets[SAMPLES + 1] = {0, 2, 3, 3, 6}; /* sample 2 has an empty bag */
    static float gradient[SAMPLES * DIM];
    for (int i = 0; i < SAMPLES * DIM; i++)
        gradient[i] = 1.0F;
    hotbed_batch batch = {.size = sizeof batch};
    batch.batch_size = SAMPLES;
    batch.num_keys = KEYS;
    batch.keys = keys;
    batch.offsets = offsets;
    hotbed_ticket *ticket = NULL;
    hotbed_status status = hotbed_ticket_create(storage, KEYS, SAMPLES, stream, &ticket);
    if (status == HOTBED_OK)
        status = hotbed_storage_prefetch(storage, &batch, ticket, stream);
    if (status == HOTBED_OK)
        status = hotbed_storage_forward(storage, ticket, output, DIM, stream);
    if (status == HOTBED_OK)
        status = hotbed_storage_backward(storage, ticket, gradient, DIM, stream);
    if (status == HOTBED_OK)
        status = hotbed_storage_eval(storage, &batch, output + SAMPLES * DIM, DIM, stream);
    hotbed_status synced = hotbed_stream_sync(stream);
    hotbed_ticket_destroy(ticket);
    return status != HOTBED_OK ? status : synced;
}

int main(void) {
    hotbed_table_options table = {
        .size = sizeof table, .name = "user", .dim = DIM, .capacity = 1000};
    hotbed_storage_options options;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.pooling = HOTBED_POOL_SUM;
    options.optimizer.kind = HOTBED_OPT_SGD;
    options.optimizer.learning_rate = 1.0F;

    if (strcmp(hotbed_version(), HOTBED_VERSION) != 0) {
        fprintf(stderr, "headers %s, library %s\n", HOTBED_VERSION, hotbed_version());
        return 1;
    }
    static float output[2 * SAMPLES * DIM]; /* before the step and after it */
    hotbed_stream *stream = NULL;
    hotbed_storage *storage = NULL;
    if (hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream) != HOTBED_OK)
        return failed("stream");
    if (hotbed_storage_create(&options, stream, &storage) != HOTBED_OK)
        return failed("storage");
    if (train(storage, stream, output) != HOTBED_OK)
        return failed("training step");
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);

    /* Rows start at 0. Key 7 occurs in three bags, so its gradient is 3; all others are 1. */
    const float expected[SAMPLES] = {-4.0F, -3.0F, 0.0F, -5.0F};
    for (int sample = 0; sample < SAMPLES; sample++) {
        float before = output[sample * DIM], after = output[(SAMPLES + sample) * DIM];
        printf("sample %d: %g before the step, %g after\n", sample, before, after);
        if (before != 0.0F || after != expected[sample])
            return 1;
    }
    return 0;
}
