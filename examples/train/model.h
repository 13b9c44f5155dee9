/* examples/train/model.h - the factorisation machine on a stream, on either backend.
 *
 * Hotbed keeps the rows and their optimiser; this is the dense rest of a model.  All calls are async.
 * The job and its arrays stay valid and unchanged until the stream has passed the call.
 */
#ifndef HOTBED_EXAMPLES_MODEL_H
#define HOTBED_EXAMPLES_MODEL_H

#include "examples/train/model_core.h"
#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { HOTBED_FM_MAX_DIM = 256 };

/* One batch.  Device memory, or pinned where said. */
typedef struct hotbed_fm_job {
    uint32_t samples;
    uint32_t fields;
    uint32_t dim;           /* factors a field; a row has dim + 1 elements */
    const float *rows;      /* [fields, samples, dim + 1] */
    float *gradients;       /* the same shape; out; apart from rows; step only */
    const float *labels;    /* [samples] 0 or 1; step only */
    hotbed_fm_dense *dense; /* bias; finish: updated */
    float learning_rate;    /* of the bias */
    double *losses;         /* [samples] scratch; step only */
    float *errors;          /* [samples] scratch; step only */
    double *sums;           /* [2] step: out: sums of the samples' losses, and of their errors */
    const double *all_sums; /* [2 * ranks] finish: those of all ranks */
    uint32_t ranks;
    double *loss;  /* out: sum of all samples' losses; pinned; finish only */
    float *logits; /* [samples] out; pinned; score only */
} hotbed_fm_job;

typedef struct hotbed_fm_kernels {
    /* Forward, loss, backward.  The loss is a sum over the samples and not a mean, so a learning rate
     * means the same at every batch size and number of ranks. */
    hotbed_status (*step)(const hotbed_fm_job *job, hotbed_stream *stream);
    /* Loss and bias of all ranks, whose sums are added in rank order. */
    hotbed_status (*finish)(const hotbed_fm_job *job, hotbed_stream *stream);
    /* Forward only. */
    hotbed_status (*score)(const hotbed_fm_job *job, hotbed_stream *stream);
} hotbed_fm_kernels;

extern const hotbed_fm_kernels hotbed_fm_kernels_host;
extern const hotbed_fm_kernels hotbed_fm_kernels_cuda; /* with HOTBED_WITH_CUDA only */

#ifdef __cplusplus
}
#endif
#endif
