/* bench/model.c - a stand-in of a dense model. */
#include "bench/model.h"
#include "bench/limits.h"
#include "bench/workload.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>

/* Random numbers that keep their size from layer to layer, and not zeros, for which GPUs draw less power and run
 * faster: weights within +-sqrt(6 / width). */
static void fill(float *numbers, size_t n, uint32_t width) {
    float most = sqrtf(6.0F / (float)width);
    for (size_t i = 0; i < n; i++)
        numbers[i] = most * ((float)(workload_mix(i + 1) >> 40) / (float)(1 << 23) - 1.0F);
}

hotbed_status bench_model_open(bench_model *model, hotbed_stream *stream) {
    bool cuda = hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA;
    *model = (bench_model){.rows = cuda ? 2048 : 128, .width = cuda ? 1024 : 128};
    size_t values = (size_t)model->rows * model->width,
           n = values + (size_t)model->width * model->width;
    float *numbers = malloc(n * sizeof *numbers);
    if (numbers == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a model of %zu numbers", n);
    fill(numbers, n, model->width);
    size_t bytes = (n + 2 * values) * sizeof(float);
    hotbed_status status =
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &model->memory);
    if (status == HOTBED_OK)
        status = hotbed_copy(model->memory.data, numbers, n * sizeof *numbers, stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(stream);
    free(numbers);
    float *at = model->memory.data;
    if (status != HOTBED_OK) {
        bench_model_close(model);
        return status;
    }
    model->in = at;
    model->weights = at + values;
    model->between[0] = at + n;
    model->between[1] = at + n + values;
    return HOTBED_OK;
}

void bench_model_close(bench_model *model) {
    hotbed_memory_free(&model->memory);
    *model = (bench_model){0};
}

hotbed_status bench_model_run(const bench_model *model, uint32_t n, hotbed_stream *stream) {
    bench_layer layer = {model->rows, model->width, model->in, model->weights, NULL};
    for (uint32_t i = 0; i < n; i++) {
        layer.out = model->between[i % 2];
        HOTBED_TRY(bench_run_layer(&layer, stream));
        layer.in = layer.out;
    }
    return HOTBED_OK;
}

static hotbed_status enqueue(const workload_limit *l, uint32_t repetition) {
    (void)repetition;
    return bench_model_run(l->from, (uint32_t)l->n, l->stream);
}

hotbed_status bench_model_size(
    const bench_model *model, double wanted, uint32_t *layers, double *seconds,
    hotbed_stream *stream) {
    workload_limit l = {.enqueue = enqueue, .stream = stream, .from = model, .n = 16};
    HOTBED_TRY(workload_time_limit(&l, 3, seconds));
    double n = wanted / *seconds * (double)l.n + 0.5;
    *layers = n < 1.0 ? 1 : (uint32_t)n;
    l.n = *layers;
    return workload_time_limit(&l, 3, seconds);
}
