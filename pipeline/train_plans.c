/* pipeline/train_plans.c - the train pipelines: each is a table that reads like the loop body of
 * the Python class that its comment names.
 *
 * The stage of a step says which batch it works on: in the period that hands out batch i, stage 2
 * works on batch i, stage 1 on i + 1, stage 0 on i + 2. Steps run in the order of the table (one
 * thread group), or each group in that order. `after` names further dependencies: "x" of the same
 * batch, "x+1" of the next batch, "x-2" of the batch before the previous one.
 *
 * Every plan that prefetches ahead has two edges, because prefetch and backward both write the
 * index and cache of the tables: "embedding_backward after prefetch+1", as in the Python
 * classes, and the reverse, "prefetch after embedding_backward-2", which one of them lacks. In
 * Python the whole backward waits for the prefetch; here only the tables' part of it does, so a
 * prefetch can also hide behind the dense backward.
 *
 * Tasks that may use a communicator take turns. Prefetch is one of them, because it sends a batch
 * that overflowed again. */
#include "pipeline/train.h"

#define MEMCPY   "memcpy"
#define DIST     "dist"
#define PREFETCH "prefetch"
#define DEFAULT  "default"

/* A step is {task, stage, ordered, stream, group, after}. */

/* none: one batch after the other; the forward does the whole lookup. */
static const hotbed_step none[] = {
    {"copy_batch_to_gpu", 0, false, DEFAULT, NULL, NULL},
    {"zero_grad", 0, false, DEFAULT, NULL, NULL},
    {"forward", 0, true, DEFAULT, NULL, "copy_batch_to_gpu"},
    {"backward", 0, true, DEFAULT, NULL, "zero_grad forward"},
    {"optimizer", 0, false, DEFAULT, NULL, "backward"},
    {"dequeue_batch", 0, false, DEFAULT, NULL, "optimizer"},
};

/* TrainPipelineSparseDist.progress(): three stages. */
static const hotbed_step sparse_dist[] = {
    {"zero_grad", 2, false, DEFAULT, NULL, NULL},
    {"wait_for_batch", 2, false, DEFAULT, NULL, "wait_sparse_data_dist"},
    {"start_sparse_data_dist", 1, true, DIST, NULL, "copy_batch_to_gpu"},
    {"copy_batch_to_gpu", 0, false, MEMCPY, NULL, NULL},
    {"forward", 2, true, DEFAULT, NULL, "wait_for_batch"},
    {"wait_sparse_data_dist", 1, true, DIST, NULL, "start_sparse_data_dist"},
    {"backward", 2, true, DEFAULT, NULL, "zero_grad forward"},
    {"optimizer", 2, false, DEFAULT, NULL, "backward"},
    {"dequeue_batch", 2, false, DEFAULT, NULL, "optimizer"},
};

/* PrefetchTrainPipelineSparseDist.progress(): four stages; each period ends with
 * start_sparse_data_dist. */
static const hotbed_step prefetch[] = {
    {"zero_grad", 2, false, DEFAULT, NULL, NULL},
    {"wait_for_batch", 2, false, DEFAULT, NULL, "prefetch"},
    {"copy_batch_to_gpu", 0, false, MEMCPY, NULL, NULL},
    {"wait_sparse_data_dist", 1, true, DIST, NULL, "start_sparse_data_dist"},
    {"forward", 2, true, DEFAULT, NULL, "wait_for_batch"},
    {"prefetch", 1, true, PREFETCH, NULL, "wait_sparse_data_dist embedding_backward-2"},
    {"backward", 2, true, DEFAULT, NULL, "zero_grad forward"},
    {"embedding_backward", 2, true, DEFAULT, NULL, "backward prefetch+1"},
    {"optimizer", 2, false, DEFAULT, NULL, "embedding_backward"},
    {"start_sparse_data_dist", 0, true, DIST, NULL, "copy_batch_to_gpu"},
    {"dequeue_batch", 2, false, DEFAULT, NULL, "optimizer"},
};

/* jagged-none: JaggedMegatronTrainNonePipeline. */
static const hotbed_step jagged_none[] = {
    {"zero_grad", 0, false, DEFAULT, NULL, NULL},
    {"copy_batch_to_gpu", 0, false, DEFAULT, NULL, NULL},
    {"start_shuffle", 0, true, DEFAULT, NULL, "copy_batch_to_gpu"},
    {"finish_shuffle", 0, true, DEFAULT, NULL, "start_shuffle"},
    {"global_tokens", 0, true, DEFAULT, NULL, "finish_shuffle"},
    {"forward", 0, true, DEFAULT, NULL, "finish_shuffle"},
    {"loss", 0, true, DEFAULT, NULL, "forward global_tokens"},
    {"backward", 0, true, DEFAULT, NULL, "zero_grad loss"},
    {"finalize_model_grads", 0, true, DEFAULT, NULL, "backward"},
    {"optimizer", 0, false, DEFAULT, NULL, "finalize_model_grads"},
    {"dequeue_batch", 0, false, DEFAULT, NULL, "optimizer"},
};

/* JaggedMegatronTrainPipelineSparseDist.progress(). The shuffle of the batch after the next one
 * runs around the forward. wait_sparse_data_dist comes before it, so that no exchange of keys is in
 * flight. The loss waits for the shuffle, with which it shares a communicator. */
static const hotbed_step jagged_sparse_dist[] = {
    {"zero_grad", 2, false, DEFAULT, NULL, NULL},
    {"global_tokens", 2, true, DEFAULT, NULL, "finish_shuffle"},
    {"wait_for_batch", 2, false, DEFAULT, NULL, "wait_sparse_data_dist"},
    {"start_sparse_data_dist", 1, true, DIST, NULL, "finish_shuffle"},
    {"copy_batch_to_gpu", 0, false, MEMCPY, NULL, NULL},
    {"wait_sparse_data_dist", 1, true, DIST, NULL, "start_sparse_data_dist"},
    {"start_shuffle", 0, true, MEMCPY, NULL, "copy_batch_to_gpu wait_sparse_data_dist-1"},
    {"forward", 2, true, DEFAULT, NULL, "wait_for_batch"},
    {"finish_shuffle", 0, true, MEMCPY, NULL, "start_shuffle"},
    {"loss", 2, true, DEFAULT, NULL, "forward global_tokens finish_shuffle+2"},
    {"backward", 2, true, DEFAULT, NULL, "zero_grad loss"},
    {"finalize_model_grads", 2, true, DEFAULT, NULL, "backward"},
    {"optimizer", 2, false, DEFAULT, NULL, "finalize_model_grads"},
    {"dequeue_batch", 2, false, DEFAULT, NULL, "optimizer"},
};

/* jagged-prefetch: JaggedMegatronPrefetchTrainPipelineSparseDist.progress(). */
static const hotbed_step jagged_prefetch[] = {
    {"zero_grad", 2, false, DEFAULT, NULL, NULL},
    {"global_tokens", 2, true, DEFAULT, NULL, "finish_shuffle"},
    {"wait_for_batch", 2, false, DEFAULT, NULL, "prefetch"},
    {"copy_batch_to_gpu", 0, false, MEMCPY, NULL, NULL},
    {"wait_sparse_data_dist", 1, true, DIST, NULL, "start_sparse_data_dist"},
    {"start_shuffle", 0, true, MEMCPY, NULL, "copy_batch_to_gpu wait_sparse_data_dist-1"},
    {"forward", 2, true, DEFAULT, NULL, "wait_for_batch"},
    {"finish_shuffle", 0, true, MEMCPY, NULL, "start_shuffle"},
    {"loss", 2, true, DEFAULT, NULL, "forward global_tokens finish_shuffle+2"},
    {"prefetch", 1, true, PREFETCH, NULL, "wait_sparse_data_dist embedding_backward-2"},
    {"backward", 2, true, DEFAULT, NULL, "zero_grad loss"},
    {"embedding_backward", 2, true, DEFAULT, NULL, "backward prefetch+1"},
    {"finalize_model_grads", 2, true, DEFAULT, NULL, "embedding_backward"},
    {"optimizer", 2, false, DEFAULT, NULL, "finalize_model_grads"},
    {"start_sparse_data_dist", 0, true, DIST, NULL, "finish_shuffle"},
    {"dequeue_batch", 2, false, DEFAULT, NULL, "optimizer"},
};

/* jagged-prefetch-async: the same with the prefetch on a background thread. It starts after the
 * forward (_start_prefetch_async); the next period (wait_for_batch) and the table update of the
 * backward wait for it. */
static const hotbed_step jagged_prefetch_async[] = {
    {"zero_grad", 2, false, DEFAULT, NULL, NULL},
    {"global_tokens", 2, true, DEFAULT, NULL, "finish_shuffle"},
    {"wait_for_batch", 2, false, DEFAULT, NULL, "prefetch"},
    {"copy_batch_to_gpu", 0, false, MEMCPY, NULL, NULL},
    {"wait_sparse_data_dist", 1, true, DIST, NULL, "start_sparse_data_dist"},
    {"start_shuffle", 0, true, MEMCPY, NULL, "copy_batch_to_gpu wait_sparse_data_dist-1"},
    {"forward", 2, true, DEFAULT, NULL, "wait_for_batch"},
    {"prefetch", 1, true, PREFETCH, "background", "wait_sparse_data_dist embedding_backward-2"},
    {"finish_shuffle", 0, true, MEMCPY, NULL, "start_shuffle"},
    {"loss", 2, true, DEFAULT, NULL, "forward global_tokens finish_shuffle+2"},
    {"backward", 2, true, DEFAULT, NULL, "zero_grad loss"},
    {"embedding_backward", 2, true, DEFAULT, NULL, "backward prefetch+1"},
    {"finalize_model_grads", 2, true, DEFAULT, NULL, "embedding_backward"},
    {"optimizer", 2, false, DEFAULT, NULL, "finalize_model_grads"},
    {"start_sparse_data_dist", 0, true, DIST, NULL, "finish_shuffle"},
    {"dequeue_batch", 2, false, DEFAULT, NULL, "optimizer"},
};

/* sw-serial: SWSerialTrainPipeline, a chain of eleven tasks in one stage. */
static const hotbed_step sw_serial[] = {
    {"H2DAndShuffle", 0, true, DEFAULT, NULL, NULL},
    {"EmbInputDistStart", 0, true, DEFAULT, NULL, "H2DAndShuffle"},
    {"EmbInputDistWait", 0, true, DEFAULT, NULL, "EmbInputDistStart"},
    {"EmbPrefetch", 0, true, DEFAULT, NULL, "EmbInputDistWait"},
    {"EmbForward", 0, true, DEFAULT, NULL, "EmbPrefetch"},
    {"DenseForward", 0, false, DEFAULT, NULL, "EmbForward"},
    {"LossPostprocess", 0, true, DEFAULT, NULL, "DenseForward"},
    {"DenseBackward", 0, false, DEFAULT, NULL, "LossPostprocess"},
    {"EmbBackward", 0, true, DEFAULT, NULL, "DenseBackward"},
    {"FinalizeGrads", 0, true, DEFAULT, NULL, "EmbBackward"},
    {"OptimStep", 0, false, DEFAULT, NULL, "FinalizeGrads"},
};

/* sw-pipelined: the same tasks over three batches. Only the plan differs. */
static const hotbed_step sw_pipelined[] = {
    {"H2DAndShuffle", 0, true, MEMCPY, "io", NULL},
    {"EmbInputDistStart", 1, true, DIST, "dist", "H2DAndShuffle"},
    {"EmbInputDistWait", 1, true, DIST, "dist", "EmbInputDistStart"},
    {"EmbPrefetch", 1, true, PREFETCH, "dist", "EmbInputDistWait EmbBackward-2"},
    {"EmbForward", 2, true, DEFAULT, NULL, "EmbPrefetch"},
    {"DenseForward", 2, false, DEFAULT, NULL, "EmbForward"},
    {"LossPostprocess", 2, true, DEFAULT, NULL, "DenseForward"},
    {"DenseBackward", 2, false, DEFAULT, NULL, "LossPostprocess"},
    {"EmbBackward", 2, true, DEFAULT, NULL, "DenseBackward EmbPrefetch+1"},
    {"FinalizeGrads", 2, true, DEFAULT, NULL, "EmbBackward"},
    {"OptimStep", 2, false, DEFAULT, NULL, "FinalizeGrads"},
};

#define STEPS(array) array, sizeof(array) / sizeof *(array)

static const hotbed_train_plan plans[] = {
    {"none", false, HOTBED_FORWARD_PIPELINED, STEPS(none)},
    {"sparse-dist", true, HOTBED_FORWARD_PIPELINED, STEPS(sparse_dist)},
    {"prefetch", true, HOTBED_FORWARD_PREFETCH, STEPS(prefetch)},
    {"jagged-none", false, HOTBED_FORWARD_PIPELINED, STEPS(jagged_none)},
    {"jagged-sparse-dist", true, HOTBED_FORWARD_PIPELINED, STEPS(jagged_sparse_dist)},
    {"jagged-prefetch", true, HOTBED_FORWARD_PREFETCH, STEPS(jagged_prefetch)},
    {"jagged-prefetch-async", true, HOTBED_FORWARD_PREFETCH, STEPS(jagged_prefetch_async)},
    {"sw-serial", true, HOTBED_FORWARD_PREFETCH, STEPS(sw_serial)},
    {"sw-pipelined", true, HOTBED_FORWARD_PREFETCH, STEPS(sw_pipelined)},
};

const hotbed_train_plan *hotbed_train_plan_at(uint32_t number) {
    return number < sizeof plans / sizeof *plans ? &plans[number] : NULL;
}

bool hotbed_train_plan_has(const hotbed_train_plan *plan, const char *task) {
    for (uint32_t s = 0; s < plan->num_steps; s++)
        if (strcmp(plan->steps[s].task, task) == 0)
            return true;
    return false;
}
