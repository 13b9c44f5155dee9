/* tests/examples/test_model.c - the factorization machine: its functions, its gradient, and equal
 * bytes on both backends. */
#include "examples/train/model.h"
#include "tests/support/harness.h"

#include <math.h>

enum { FIELDS = 39, DIM = 19, WIDTH = DIM + 1, ELEMENTS = FIELDS * WIDTH, SAMPLES = 700 };

/* A batch and its results in memory of a backend. */
typedef struct batch {
    hotbed_stream *stream;
    hotbed_memory memory;
    float *rows, *labels; /* the rows and labels of the job */
    hotbed_fm_job job;
} batch;

static void create(batch *b, hotbed_backend backend, uint64_t seed) {
    size_t bytes = sizeof(float) * SAMPLES * (2 * ELEMENTS + 3) + sizeof(double) * (SAMPLES + 4);
    CHECK_OK(hotbed_stream_create(backend, 0, &b->stream));
    /* Pinned memory can be reached from both sides. */
    CHECK_OK(hotbed_memory_alloc(b->stream, HOTBED_MEMORY_PINNED, bytes, NULL, &b->memory));
    double *d = b->memory.data;
    float *rows = (float *)(d + SAMPLES + 4);
    float *gradients = rows + SAMPLES * ELEMENTS;
    float *labels = gradients + SAMPLES * ELEMENTS;
    b->rows = rows;
    b->labels = labels;
    b->job = (hotbed_fm_job){
        .samples = SAMPLES,
        .fields = FIELDS,
        .dim = DIM,
        .rows = rows,
        .gradients = gradients,
        .labels = labels,
        .dense = (hotbed_fm_dense *)(d + SAMPLES + 1),
        .learning_rate = 0.1F,
        .losses = d,
        .errors = labels + SAMPLES,
        .sums = d + SAMPLES + 2,
        .all_sums = d + SAMPLES + 2,
        .ranks = 1,
        .loss = d + SAMPLES,
        .logits = labels + 2 * SAMPLES};
    for (uint32_t i = 0; i < SAMPLES * ELEMENTS; i++)
        rows[i] = (float)(int32_t)(hotbed_test_random_r(&seed) >> 40) * 0x1p-24F - 0.4F;
    for (uint32_t s = 0; s < SAMPLES; s++)
        labels[s] = (float)(hotbed_test_random_r(&seed) >> 63);
    *b->job.dense = (hotbed_fm_dense){-0.3F, 0.5F};
}

static void destroy(batch *b) {
    hotbed_memory_free(&b->memory);
    hotbed_stream_destroy(b->stream);
}

static const hotbed_fm_kernels *kernels_of(hotbed_backend backend) {
#if HOTBED_WITH_CUDA
    if (backend == HOTBED_BACKEND_CUDA)
        return &hotbed_fm_kernels_cuda;
#endif
    return &hotbed_fm_kernels_host;
}

static void exp_and_log_equal_libm(hotbed_backend backend) {
    for (int i = 0; i < 100000; i++) {
        double unit = (double)(hotbed_test_random() >> 11) * 0x1p-53;
        double x = -unit * (i % 2 == 0 ? 40.0 : 690.0);
        CHECK_NEAR(hotbed_fm_exp(x) / exp(x), 1, 1e-14);
        CHECK_NEAR(hotbed_fm_log1p(unit) / log1p(unit), 1, 1e-13);
    }
    CHECK_NEAR(hotbed_fm_exp(0), 1, 0);
    CHECK_NEAR(hotbed_fm_exp(-1e30), 0, 1e-300);
    CHECK_NEAR(hotbed_fm_log1p(0), 0, 0);
    CHECK_NEAR(hotbed_fm_logistic(0, 0).loss, log(2), 1e-14);
    CHECK_NEAR(hotbed_fm_logistic(1e30F, 1).loss, 0, 1e-15);
    CHECK_NEAR(hotbed_fm_logistic(-50, 1).loss, 50, 1e-12);
    CHECK(isnan(hotbed_fm_logistic(NAN, 1).loss));
}

/* The loss by its definition, over all pairs, in double. */
static double loss_of(const double *x, double bias, double label) {
    double logit = bias;
    for (int f = 0; f < FIELDS; f++) {
        logit += x[f * WIDTH];
        for (int g = 0; g < f; g++)
            for (int j = 1; j < WIDTH; j++)
                logit += x[f * WIDTH + j] * x[g * WIDTH + j];
    }
    return log1p(exp(-fabs(logit))) + (logit > 0 ? logit : 0) - logit * label;
}

/* The index of element i of a sample's fields. */
static size_t place(const batch *b, uint32_t sample, int i) {
    uint32_t field = (uint32_t)i / WIDTH;
    return ((size_t)field * b->job.samples + sample) * WIDTH + (uint32_t)i % WIDTH;
}

static void the_gradient_is_the_derivative_of_the_loss(hotbed_backend backend) {
    batch b;
    static double x[ELEMENTS];
    create(&b, backend, hotbed_test_seed());
    for (int i = 0; i < ELEMENTS; i++) {
        b.rows[place(&b, 5, i)] *= 0.5F;
        x[i] = (double)b.rows[place(&b, 5, i)];
    }
    double bias = (double)b.job.dense->bias;
    /* The less likely label: with the other one the gradients may be close to 0. */
    double label = loss_of(x, bias, 0) > loss_of(x, bias, 1) ? 0 : 1;
    b.labels[5] = (float)label;
    CHECK_OK(kernels_of(backend)->step(&b.job, b.stream));
    CHECK_OK(hotbed_stream_sync(b.stream));
    CHECK_NEAR(b.job.losses[5], loss_of(x, bias, label), 1e-3);
    for (int i = 0; i < ELEMENTS; i++) {
        double at = x[i];
        x[i] = at + 1e-4;
        double above = loss_of(x, bias, label);
        x[i] = at - 1e-4;
        double below = loss_of(x, bias, label);
        x[i] = at;
        CHECK_NEAR((double)b.job.gradients[place(&b, 5, i)], (above - below) / 2e-4, 1e-3);
    }
    destroy(&b);
}

static void every_backend_gives_the_host_kernels_bytes(hotbed_backend backend) {
    batch here;
    batch host;
    const uint32_t sizes[] = {0, 1, 3, 255, 256, 257, SAMPLES};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        create(&here, backend, hotbed_test_seed() + i);
        create(&host, HOTBED_BACKEND_HOST, hotbed_test_seed() + i);
        here.job.samples = sizes[i];
        host.job.samples = sizes[i];
        CHECK_OK(kernels_of(backend)->score(&here.job, here.stream));
        CHECK_OK(kernels_of(backend)->step(&here.job, here.stream));
        CHECK_OK(kernels_of(backend)->finish(&here.job, here.stream));
        CHECK_OK(hotbed_stream_sync(here.stream));
        CHECK_OK(hotbed_fm_kernels_host.score(&host.job, host.stream));
        CHECK_OK(hotbed_fm_kernels_host.step(&host.job, host.stream));
        CHECK_OK(hotbed_fm_kernels_host.finish(&host.job, host.stream));
        CHECK_OK(hotbed_stream_sync(host.stream));
        CHECK_BYTES(here.job.loss, host.job.loss, sizeof(double));
        CHECK_BYTES(here.job.dense, host.job.dense, sizeof(hotbed_fm_dense));
        CHECK_BYTES(here.job.logits, host.job.logits, sizes[i] * sizeof(float));
        CHECK_BYTES(here.job.gradients, host.job.gradients, sizeof(float) * sizes[i] * ELEMENTS);
        double sum = 0;
        for (uint32_t s = 0; s < sizes[i]; s++)
            sum += here.job.losses[s];
        CHECK_NEAR(*here.job.loss, sum, 1e-12 * sum);
        destroy(&here);
        destroy(&host);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(exp_and_log_equal_libm)},
    {TEST(the_gradient_is_the_derivative_of_the_loss)},
    {TEST(every_backend_gives_the_host_kernels_bytes)},
    {NULL, NULL},
};
