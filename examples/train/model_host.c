/* examples/train/model_host.c - the model's kernels on the host.  CUDA counterpart: model_kernels.cu. */
#include "examples/train/model.h"

/* Compute a sample's column sums, and return the logit. The inner loops run over columns, which are
 * contiguous, and each column still adds its fields in order. */
static float forward(
    const hotbed_fm_job *job, const float *restrict x, float *restrict sum,
    float *restrict square) {
    uint32_t width = job->dim + 1;
    size_t field = (size_t)job->samples * width;
    for (uint32_t j = 0; j < width; j++) {
        sum[j] = 0;
        square[j] = 0;
    }
    for (uint32_t f = 0; f < job->fields; f++)
        for (uint32_t j = 0; j < width; j++)
            hotbed_fm_add(x[f * field + j], &sum[j], &square[j]);
    float logit = job->dense->bias;
    for (uint32_t j = 0; j < width; j++)
        logit += hotbed_fm_part(j, sum[j], square[j]);
    return logit;
}

static void backward(
    const hotbed_fm_job *job, const float *restrict x, float *restrict gradients,
    const float *restrict sum, float error) {
    uint32_t width = job->dim + 1;
    for (uint32_t f = 0; f < job->fields; f++) {
        size_t row = (size_t)f * job->samples * width;
        gradients[row] = hotbed_fm_gradient(0, x[row], sum[0], error);
        for (uint32_t j = 1; j < width; j++)
            gradients[row + j] = hotbed_fm_gradient(1, x[row + j], sum[j], error);
    }
}

static void reduce(const hotbed_fm_job *job) {
    double loss[HOTBED_FM_LANES] = {0};
    double gradient[HOTBED_FM_LANES] = {0};
    for (uint32_t s = 0; s < job->samples; s++) {
        loss[s % HOTBED_FM_LANES] += job->losses[s];
        gradient[s % HOTBED_FM_LANES] += (double)job->errors[s];
    }
    for (uint32_t half = HOTBED_FM_LANES / 2; half > 0; half /= 2)
        for (uint32_t l = 0; l < half; l++) {
            loss[l] += loss[l + half];
            gradient[l] += gradient[l + half];
        }
    job->sums[0] = loss[0];
    job->sums[1] = gradient[0];
}

static void run_finish(void *argument) {
    const hotbed_fm_job *job = argument;
    hotbed_fm_finish(job->ranks, job->all_sums, job->loss, job->dense, job->learning_rate);
}

static void run_step(void *argument) {
    const hotbed_fm_job *job = argument;
    float sum[HOTBED_FM_MAX_DIM + 1];
    float square[HOTBED_FM_MAX_DIM + 1];
    for (uint32_t s = 0; s < job->samples; s++) {
        size_t at = (size_t)s * (job->dim + 1);
        const float *x = job->rows + at;
        hotbed_fm_point point = hotbed_fm_logistic(forward(job, x, sum, square), job->labels[s]);
        job->losses[s] = point.loss;
        job->errors[s] = point.error;
        backward(job, x, job->gradients + at, sum, point.error);
    }
    reduce(job);
}

static void run_score(void *argument) {
    const hotbed_fm_job *job = argument;
    float sum[HOTBED_FM_MAX_DIM + 1];
    float square[HOTBED_FM_MAX_DIM + 1];
    for (uint32_t s = 0; s < job->samples; s++)
        job->logits[s] = forward(job, job->rows + (size_t)s * (job->dim + 1), sum, square);
}

static hotbed_status step(const hotbed_fm_job *job, hotbed_stream *stream) {
    return hotbed_stream_call(stream, run_step, (void *)job);
}

static hotbed_status finish(const hotbed_fm_job *job, hotbed_stream *stream) {
    return hotbed_stream_call(stream, run_finish, (void *)job);
}

static hotbed_status score(const hotbed_fm_job *job, hotbed_stream *stream) {
    return hotbed_stream_call(stream, run_score, (void *)job);
}

const hotbed_fm_kernels hotbed_fm_kernels_host = {step, finish, score};
