/* examples/train/model.h - the factorization machine on a stream, on either backend.
 *
 * Hotbed keeps the rows and their optimizer; this is the dense part of the model. All calls are
 * asynchronous. The job and its arrays must stay valid and unchanged until the stream has passed
 * the call. */
#pragma once

#include "examples/train/model_core.h"
#include "hotbed/stream.h"

HOTBED_BEGIN_DECLS

enum { HOTBED_FM_MAX_DIM = 256 };

/* One batch. Arrays are device memory unless marked as pinned. */
typedef struct hotbed_fm_job {
    uint32_t samples;
    uint32_t fields;
    uint32_t dim;           /* factors per field; a row has dim + 1 elements */
    const float *rows;      /* [fields, samples, dim + 1] */
    float *gradients;       /* step: out, of the same shape; must not overlap rows */
    const float *labels;    /* step: [samples] 0 or 1 */
    hotbed_fm_dense *dense; /* bias; updated by finish */
    float learning_rate;    /* learning rate of the bias */
    double *losses;         /* step: [samples] scratch buffer */
    float *errors;          /* step: [samples] scratch buffer */
    double *sums;           /* step: [2] out: the sums of the samples' losses and of their errors */
    const double *all_sums; /* finish: [2 * ranks] the sums of all ranks */
    uint32_t ranks;
    double *loss;  /* finish: out, pinned: the sum of all samples' losses */
    float *logits; /* score: [samples] out, pinned */
} hotbed_fm_job;

typedef struct hotbed_fm_kernels {
    /* Forward, loss and backward. The loss is a sum over the samples, not a mean, so a learning
     * rate means the same at every batch size and number of ranks. */
    hotbed_status (*step)(const hotbed_fm_job *job, hotbed_stream *stream);
    /* Loss and bias from the sums of all ranks, which are added in rank order. */
    hotbed_status (*finish)(const hotbed_fm_job *job, hotbed_stream *stream);
    /* Forward only. */
    hotbed_status (*score)(const hotbed_fm_job *job, hotbed_stream *stream);
} hotbed_fm_kernels;

extern const hotbed_fm_kernels hotbed_fm_kernels_host;
extern const hotbed_fm_kernels hotbed_fm_kernels_cuda; /* with HOTBED_WITH_CUDA only */

HOTBED_END_DECLS
