/* examples/train/model_kernels.cu - the model's kernels on CUDA.  Host counterpart: model_host.c. */
#include "examples/train/model.h"

#include <cuda_runtime.h>
#include <stdio.h>

/* A warp processes one sample, each lane every 32nd column: loads are contiguous across lanes. */
enum { WARP = 32, WARPS = 4, BLOCK = WARP * WARPS, MAX_BLOCKS = 4096 };

typedef struct column_sums {
    float sum[HOTBED_FM_MAX_DIM + 1];
    float part[HOTBED_FM_MAX_DIM + 1];
} column_sums;

/* Returns the logit in lane 0. All lanes find the column sums in `sums`. */
static __device__ float forward(
    const hotbed_fm_job &job, const float *x, column_sums *sums, uint32_t lane) {
    uint32_t width = job.dim + 1;
    size_t field = (size_t)job.samples * width;
    for (uint32_t j = lane; j < width; j += WARP) {
        float sum = 0, square = 0;
        for (uint32_t f = 0; f < job.fields; f++)
            hotbed_fm_add(x[f * field + j], &sum, &square);
        sums->sum[j] = sum;
        sums->part[j] = hotbed_fm_part(j, sum, square);
    }
    __syncwarp();
    float logit = job.dense->bias;
    if (lane == 0)
        for (uint32_t j = 0; j < width; j++)
            logit += sums->part[j];
    return logit;
}

static __global__ void __launch_bounds__(BLOCK) step_kernel(hotbed_fm_job job) {
    __shared__ column_sums shared[WARPS];
    uint32_t lane = threadIdx.x % WARP;
    column_sums *sums = &shared[threadIdx.x / WARP];
    uint32_t width = job.dim + 1;
    size_t field = (size_t)job.samples * width;
    for (uint32_t s = blockIdx.x * WARPS + threadIdx.x / WARP; s < job.samples;
         s += gridDim.x * WARPS) {
        const float *x = job.rows + (size_t)s * width;
        float *gradients = job.gradients + (size_t)s * width;
        float logit = forward(job, x, sums, lane);
        float error = 0;
        if (lane == 0) {
            hotbed_fm_point point = hotbed_fm_logistic(logit, job.labels[s]);
            job.losses[s] = point.loss;
            job.errors[s] = point.error;
            error = point.error;
        }
        error = __shfl_sync(0xffffffffU, error, 0);
        for (uint32_t j = lane; j < width; j += WARP)
            for (uint32_t f = 0; f < job.fields; f++)
                gradients[f * field + j] =
                    hotbed_fm_gradient(j, x[f * field + j], sums->sum[j], error);
        __syncwarp(); /* now `sums` is free for the next sample */
    }
}

/* Runs as one block. The order of the sums is given at HOTBED_FM_LANES. */
static __global__ void __launch_bounds__(HOTBED_FM_LANES) reduce_kernel(hotbed_fm_job job) {
    __shared__ double loss[HOTBED_FM_LANES];
    __shared__ double gradient[HOTBED_FM_LANES];
    uint32_t lane = threadIdx.x;
    double my_loss = 0, my_gradient = 0;
    for (uint32_t s = lane; s < job.samples; s += HOTBED_FM_LANES) {
        my_loss += job.losses[s];
        my_gradient += (double)job.errors[s];
    }
    loss[lane] = my_loss;
    gradient[lane] = my_gradient;
    __syncthreads();
    for (uint32_t half = HOTBED_FM_LANES / 2; half > 0; half /= 2) {
        if (lane < half) {
            loss[lane] += loss[lane + half];
            gradient[lane] += gradient[lane + half];
        }
        __syncthreads();
    }
    if (lane == 0) {
        job.sums[0] = loss[0];
        job.sums[1] = gradient[0];
    }
}

static __global__ void finish_kernel(hotbed_fm_job job) {
    hotbed_fm_finish(job.ranks, job.all_sums, job.loss, job.dense, job.learning_rate);
}

static __global__ void __launch_bounds__(BLOCK) score_kernel(hotbed_fm_job job) {
    __shared__ column_sums shared[WARPS];
    uint32_t lane = threadIdx.x % WARP;
    column_sums *sums = &shared[threadIdx.x / WARP];
    for (uint32_t s = blockIdx.x * WARPS + threadIdx.x / WARP; s < job.samples;
         s += gridDim.x * WARPS) {
        float logit = forward(job, job.rows + (size_t)s * (job.dim + 1), sums, lane);
        if (lane == 0)
            job.logits[s] = logit;
        __syncwarp();
    }
}

static uint32_t blocks(uint32_t samples) {
    uint32_t n = (samples + WARPS - 1) / WARPS;
    return n < (uint32_t)MAX_BLOCKS ? n : (uint32_t)MAX_BLOCKS;
}

/* The library's error text cannot be set from outside, so the kernel's name goes to stderr. */
static hotbed_status launched(const char *kernel) {
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess)
        return HOTBED_OK;
    fprintf(stderr, "%s: %s\n", kernel, cudaGetErrorString(error));
    return HOTBED_ERR_DEVICE;
}

static hotbed_status step(const hotbed_fm_job *job, hotbed_stream *stream) {
    cudaStream_t native = (cudaStream_t)hotbed_stream_native(stream);
    if (job->samples > 0)
        step_kernel<<<blocks(job->samples), BLOCK, 0, native>>>(*job);
    reduce_kernel<<<1, HOTBED_FM_LANES, 0, native>>>(*job);
    return launched("step_kernel");
}

static hotbed_status finish(const hotbed_fm_job *job, hotbed_stream *stream) {
    finish_kernel<<<1, 1, 0, (cudaStream_t)hotbed_stream_native(stream)>>>(*job);
    return launched("finish_kernel");
}

static hotbed_status score(const hotbed_fm_job *job, hotbed_stream *stream) {
    if (job->samples == 0)
        return HOTBED_OK;
    score_kernel<<<blocks(job->samples), BLOCK, 0, (cudaStream_t)hotbed_stream_native(stream)>>>(
        *job);
    return launched("score_kernel");
}

extern "C" const hotbed_fm_kernels hotbed_fm_kernels_cuda = {step, finish, score};
