/* bench/model.c - a stand-in for a dense model; see model.h. */
#include "bench/model.h"
#include "bench/limits.h"
#include "bench/workload.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>

/* Random numbers: inputs, or weights within +-sqrt(6 / width), which keep the magnitude of values
 * from layer to layer. Not zeros, for which GPUs draw less power and run faster. */
static void fill(float *numbers, size_t n, uint32_t width) {
    float most = sqrtf(6.0F / (float)width);
    for (size_t i = 0; i < n; i++)
        numbers[i] = most * ((float)(workload_mix(i + 1) >> 40) / (float)(1 << 23) - 1.0F);
}

/* Upload the input [values], followed by the weights, `n` numbers in all. The buffers between
 * layers begin as copies of the input, since a layer may have more rows than the previous one. */
static hotbed_status send(
    bench_model *model, const float *numbers, size_t n, size_t values, hotbed_stream *stream) {
    float *at = model->memory.data;
    model->in = at;
    model->weights = at + values;
    HOTBED_TRY(hotbed_copy(at, numbers, n * sizeof *numbers, stream));
    for (size_t i = 0; i < 2; i++) {
        model->between[i] = at + n + i * values;
        HOTBED_TRY(hotbed_copy(model->between[i], numbers, values * sizeof *numbers, stream));
    }
    return hotbed_stream_sync(stream);
}

hotbed_status bench_model_open(bench_model *model, hotbed_stream *stream) {
    bool cuda = hotbed_stream_backend(stream) == HOTBED_BACKEND_CUDA;
    *model =
        (bench_model){.rows = cuda ? 2048 : 128, .step = cuda ? 64 : 0, .width = cuda ? 1024 : 128};
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
        status = send(model, numbers, n, values, stream);
    free(numbers);
    if (status != HOTBED_OK)
        bench_model_close(model);
    return status;
}

void bench_model_close(bench_model *model) {
    hotbed_memory_free(&model->memory);
    *model = (bench_model){0};
}

hotbed_status bench_model_run(const bench_model *model, uint32_t n, hotbed_stream *stream) {
    bench_layer layer = {model->rows, model->width, model->in, model->weights, NULL};
    for (uint32_t i = 0; i < n; i++) {
        layer.rows = model->rows - i * 5 % 16 * model->step;
        layer.out = model->between[i % 2];
        HOTBED_TRY(bench_run_layer(&layer, stream));
        layer.in = layer.out;
    }
    return HOTBED_OK;
}

static hotbed_status enqueue(const workload_limit *l, uint32_t repetition) {
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
