/* pipeline/train_tasks.c - the tasks of train pipelines: what they do, and what shortcuts of them
 * capture.
 *
 * A task consists of actions. An action calls a function of the trainer, whose effects the trainer
 * declares, or changes cells of a context, which hotbed_context_capture() and
 * hotbed_context_restore() can repeat. */
#include "pipeline/train.h"

#include "base/check.h"

#include <assert.h>

/* --- actions ---------------------------------------------------------------------------------- */

typedef struct hotbed_train_action {
    const char *name; /* of a function of the trainer: its field */
    /* NULL: the trainer's function is called for the batch */
    hotbed_status (*run)(hotbed_iteration *it, hotbed_train *train, hotbed_stream *stream);
    size_t function;   /* where a trainer has the function; 0: the action calls none */
    bool trains;       /* not done in evaluation */
    bool cells;        /* it changes the context's cells */
    const char *final; /* the reason why it can never be skipped; NULL: it can be */
} action;

static void *batch_of(const hotbed_iteration *it) {
    return hotbed_iteration_value(it, HOTBED_TRAIN_BATCH);
}

/* Copy the batch to the device. Without a shuffle, the copy is the final batch. */
static hotbed_status copy_batch(hotbed_iteration *it, hotbed_train *train, hotbed_stream *s) {
    void *batch = NULL;
    HOTBED_TRY(train->trainer.copy_batch(
        train->trainer.self, hotbed_iteration_buffer_set(it), hotbed_iteration_batch(it), s,
        &batch));
    if (batch == NULL)
        return hotbed_fail(HOTBED_ERR_STATE, "copy_batch gave no batch");
    HOTBED_TRY(hotbed_iteration_set(it, HOTBED_TRAIN_COPIED, batch));
    return hotbed_iteration_set(it, HOTBED_TRAIN_BATCH, batch);
}

static hotbed_status finish_shuffle(hotbed_iteration *it, hotbed_train *train, hotbed_stream *s) {
    void *shuffled = NULL;
    if (train->trainer.shuffle_finish == NULL)
        return HOTBED_OK;
    HOTBED_TRY(train->trainer.shuffle_finish(
        train->trainer.self, hotbed_iteration_buffer_set(it),
        hotbed_iteration_value(it, HOTBED_TRAIN_COPIED), s, &shuffled));
    return hotbed_iteration_set(it, HOTBED_TRAIN_BATCH, shuffled);
}

static hotbed_status zero_grad(hotbed_iteration *it, hotbed_train *train, hotbed_stream *s) {
    if (train->trainer.zero_grad == NULL)
        return HOTBED_OK;
    return train->trainer.zero_grad(train->trainer.self, hotbed_iteration_buffer_set(it), NULL, s);
}

static hotbed_status start_dist(hotbed_iteration *it, hotbed_train *train, hotbed_stream *s) {
    return hotbed_context_start(train->rewrite, hotbed_iteration_buffer_set(it), batch_of(it), s);
}

static hotbed_status wait_dist(hotbed_iteration *it, hotbed_train *train, hotbed_stream *s) {
    return hotbed_context_wait(train->rewrite, hotbed_iteration_buffer_set(it), s);
}

static hotbed_status prefetch(hotbed_iteration *it, hotbed_train *train, hotbed_stream *s) {
    return hotbed_context_prefetch(train->rewrite, hotbed_iteration_buffer_set(it), s);
}

static hotbed_status forward(hotbed_iteration *it, hotbed_train *train, hotbed_stream *s) {
    return hotbed_context_forward(train->rewrite, hotbed_iteration_buffer_set(it), batch_of(it), s);
}

static hotbed_status backward(hotbed_iteration *it, hotbed_train *train, hotbed_stream *s) {
    return hotbed_context_finish(
        train->rewrite, hotbed_iteration_buffer_set(it), train->training, s);
}

static hotbed_status dequeue(hotbed_iteration *it, hotbed_train *train, hotbed_stream *s) {
    return hotbed_context_dequeue(train->rewrite, hotbed_iteration_buffer_set(it), s);
}

#define CALLS(field) .function = offsetof(hotbed_trainer, field)

static const action actions[] = {
    {"copy_batch", copy_batch, CALLS(copy_batch)},
    {"shuffle_start", NULL, CALLS(shuffle_start)},
    {"shuffle_finish", finish_shuffle, CALLS(shuffle_finish)},
    {"start_dist", start_dist, .cells = true},
    {"wait_dist", wait_dist, .cells = true},
    {"prefetch", prefetch, .cells = true},
    {"zero_grad", zero_grad, CALLS(zero_grad), .trains = true},
    {"global_tokens", NULL, CALLS(global_tokens), .trains = true},
    {"forward", forward, CALLS(model), .cells = true}, /* the function is the model's forward */
    {"dense_forward", NULL, CALLS(dense_forward)},
    {"loss", NULL, CALLS(loss)},
    {"dense_backward", NULL, CALLS(dense_backward), .trains = true},
    {"embedding_backward", backward, .final = "it changes rows of tables"},
    {"finalize_grads", NULL, CALLS(finalize_grads), .trains = true},
    {"optimizer", NULL, CALLS(optimizer), .trains = true},
    {"dequeue", dequeue, .final = "it ends the batch"},
};

static const action *find_action(const char *name, size_t length) {
    for (size_t a = 0; a < sizeof actions / sizeof *actions; a++)
        if (strlen(actions[a].name) == length && memcmp(actions[a].name, name, length) == 0)
            return &actions[a];
    return NULL;
}

/* The trainer's function of an action, to be called unless the action has its own `run`; NULL: there
 * is none. */
static hotbed_train_function function_of(const hotbed_trainer *trainer, const action *a) {
    hotbed_train_function function = NULL;
    if (a->function != 0)
        memcpy(&function, (const unsigned char *)trainer + a->function, sizeof function);
    return function;
}

/* The work of a task. */
static hotbed_status run(hotbed_iteration *it, void *self, hotbed_stream *stream) {
    const hotbed_train_work *work = self;
    const hotbed_trainer *trainer = &work->train->trainer;
    for (uint32_t i = 0; i < work->num_actions; i++) {
        const action *a = work->actions[i];
        const hotbed_train_function function = function_of(trainer, a);
        if (a->trains && !work->train->training)
            continue;
        if (a->run != NULL)
            HOTBED_TRY(a->run(it, work->train, stream));
        else if (function != NULL)
            HOTBED_TRY(
                function(trainer->self, hotbed_iteration_buffer_set(it), batch_of(it), stream));
    }
    return HOTBED_OK;
}

/* --- tasks ------------------------------------------------------------------------------------ */

/* The tasks, each with its actions. The states: `tables` is index and cache, which prefetch and
 * backward change in any order. `rows` is read by the forward and changed by the backward; no batch
 * may see old rows. `scores` is written by prefetches. `dense` is the dense parameters and their
 * gradients. Values are named after the states of contexts' cells (pipeline/rewrite.h). */
static const struct {
    const char *does;
    hotbed_task task;
} tasks[] = {
    {"copy_batch", {.name = "copy_batch_to_gpu", .writes = "copied batch"}},
    {"shuffle_start", {.name = "start_shuffle", .reads = "copied"}},
    {"shuffle_finish", {.name = "finish_shuffle", .reads = "copied", .writes = "batch"}},
    {"start_dist", {.name = "start_sparse_data_dist", .reads = "batch", .writes = "started"}},
    {"wait_dist", {.name = "wait_sparse_data_dist", .reads = "started", .writes = "tensors"}},
    {"prefetch",
     {.name = "prefetch",
      .reads = "tensors",
      .writes = "prefetched",
      .states = "tables",
      .serial = "scores"}},
    {NULL, {.name = "wait_for_batch", .reads = "tensors"}},
    {"zero_grad", {.name = "zero_grad", .serial = "dense"}},
    {"global_tokens", {.name = "global_tokens", .reads = "batch"}},
    {"forward dense_forward",
     {.name = "forward", .reads = "batch", .writes = "output", .serial = "rows dense"}},
    {"loss", {.name = "loss", .reads = "output"}},
    {"loss dense_backward embedding_backward",
     {.name = "backward", .reads = "output", .states = "tables", .serial = "rows dense"}},
    {"embedding_backward",
     {.name = "embedding_backward", .reads = "output", .states = "tables", .serial = "rows"}},
    {"finalize_grads", {.name = "finalize_model_grads", .serial = "dense"}},
    {"optimizer", {.name = "optimizer", .serial = "dense"}},
    {"dequeue", {.name = "dequeue_batch", .reads = "output"}},
    {"copy_batch shuffle_start shuffle_finish",
     {.name = "H2DAndShuffle", .writes = "copied batch"}},
    {"start_dist", {.name = "EmbInputDistStart", .reads = "batch", .writes = "started"}},
    {"wait_dist", {.name = "EmbInputDistWait", .reads = "started", .writes = "tensors"}},
    {"prefetch",
     {.name = "EmbPrefetch",
      .reads = "tensors",
      .writes = "prefetched",
      .states = "tables",
      .serial = "scores"}},
    {"zero_grad forward",
     {.name = "EmbForward",
      .reads = "batch prefetched",
      .writes = "output",
      .serial = "rows dense"}},
    {"dense_forward", {.name = "DenseForward", .reads = "output", .serial = "dense"}},
    {"global_tokens loss", {.name = "LossPostprocess", .reads = "output"}},
    {"dense_backward", {.name = "DenseBackward", .reads = "output", .serial = "dense"}},
    {"embedding_backward",
     {.name = "EmbBackward", .reads = "output", .states = "tables", .serial = "rows"}},
    {"finalize_grads", {.name = "FinalizeGrads", .serial = "dense"}},
    {"optimizer dequeue", {.name = "OptimStep", .serial = "dense"}},
};

/* Collect the actions of a task; an action that the plan has a task of its own for is that task's. */
static void take_actions(
    const hotbed_train_plan *plan, const char *task, const char *list, hotbed_train_work *to) {
    const char *word;
    for (size_t l = hotbed_next_word(&list, &word); l > 0; l = hotbed_next_word(&list, &word)) {
        const action *a = find_action(word, l);
        assert(a != NULL);
        if (strcmp(a->name, task) != 0 && hotbed_train_plan_has(plan, a->name))
            continue;
        assert(to->num_actions < HOTBED_TRAIN_ACTIONS_MOST);
        to->actions[to->num_actions++] = a;
    }
}

/* Adapt the values and states of a task to the plan. */
static void adapt(const hotbed_train_plan *plan, hotbed_task *to) {
    const bool prefetches = hotbed_train_plan_has(plan, "prefetch");
    if (strcmp(to->name, "copy_batch_to_gpu") == 0 && hotbed_train_plan_has(plan, "finish_shuffle"))
        to->writes = "copied";
    if (strcmp(to->name, "backward") == 0 && hotbed_train_plan_has(plan, "embedding_backward")) {
        to->states = NULL;
        to->serial = "dense";
    }
    if (strcmp(to->name, "forward") != 0)
        return;
    if (plan->pipelined)
        to->reads = prefetches ? "batch prefetched" : "batch tensors";
    if (!prefetches)
        to->states = "tables"; /* without a prefetch task, the forward prefetches */
}

/* --- shortcuts -------------------------------------------------------------------------------- */

static const hotbed_trainer_io *find_io(const hotbed_trainer *t, const char *function) {
    for (uint32_t i = 0; i < t->num_io; i++)
        if (strcmp(t->io[i].function, function) == 0)
            return &t->io[i];
    return NULL;
}

hotbed_status hotbed_train_check_io(const hotbed_trainer *trainer) {
    HOTBED_TRY(hotbed_check_array("io", trainer->io, trainer->num_io));
    for (uint32_t i = 0; i < trainer->num_io; i++) {
        const hotbed_trainer_io *io = &trainer->io[i];
        const char *name = io->function == NULL ? "" : io->function;
        const action *a = find_action(name, strlen(name));
        if (a == NULL || a->function == 0)
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "io", i,
                "trainer: io %u is of '%s', which is no function of trainers", i, name);
        if ((io->io.capture == NULL) != (io->io.restore == NULL))
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "trainer: io of '%s' has capture or restore alone", name);
    }
    return HOTBED_OK;
}

static hotbed_status capture_cells(
    void *self, hotbed_iteration *iteration, hotbed_stream *stream, void **snapshot) {
    const hotbed_train *train = self;
    hotbed_context_snapshot *taken = NULL;
    HOTBED_TRY(hotbed_context_capture(
        train->rewrite, hotbed_iteration_buffer_set(iteration), stream, &taken));
    *snapshot = taken;
    return HOTBED_OK;
}

static hotbed_status restore_cells(
    void *self, hotbed_iteration *iteration, hotbed_stream *stream, void *snapshot) {
    (void)self;
    (void)iteration; /* its buffer set is the snapshot's */
    return hotbed_context_restore(snapshot, stream);
}

static void release_cells(void *self, void *snapshot) {
    const hotbed_train *train = self;
    hotbed_context_drop(snapshot, train->streams[HOTBED_TRAIN_STREAMS - 1]);
}

/* Collect the declared io of all actions. */
static void take_io(hotbed_train_work *work) {
    for (uint32_t i = 0; i < work->num_actions; i++) {
        const hotbed_trainer_io *declared = find_io(&work->train->trainer, work->actions[i]->name);
        assert(work->num_io + 2 <= HOTBED_TRAIN_IO_MOST);
        if (declared != NULL && declared->io.capture != NULL)
            work->io[work->num_io++] = declared->io;
        if (work->actions[i]->cells)
            work->io[work->num_io++] =
                (hotbed_declared_io){capture_cells, restore_cells, release_cells, work->train};
    }
}

void hotbed_train_take(hotbed_train *train, uint32_t step, hotbed_task *to) {
    const char *name = train->plan->steps[step].task;
    size_t t = 0;
    while (strcmp(tasks[t].task.name, name) != 0)
        t++; /* plans have tasks of this table only */
    hotbed_train_work *work = &train->work[step];
    if (work->train == NULL) { /* otherwise threads may read it */
        work->train = train;
        take_actions(train->plan, name, tasks[t].does, work);
        take_io(work);
    }
    *to = tasks[t].task;
    to->run = work->num_actions > 0 ? run : NULL;
    to->self = work;
    to->by_buffer_set = true;
    to->io = work->io;
    to->num_io = work->num_io;
    adapt(train->plan, to);
}

static void refuse(hotbed_train *train, uint32_t step) {
    const hotbed_train_work *work = train->pipeline->program->steps[step].self;
    for (uint32_t i = 0; i < work->num_actions; i++) {
        const action *a = work->actions[i];
        if (a->final != NULL)
            hotbed_pipeline_refuse(train->pipeline, step, "%s", a->final);
        else if (
            function_of(&train->trainer, a) != NULL && find_io(&train->trainer, a->name) == NULL)
            hotbed_pipeline_refuse(
                train->pipeline, step, "the trainer declares no io of %s", a->name);
        else if (
            a->cells && hotbed_context_capturable(train->rewrite, a->function != 0) != HOTBED_OK)
            hotbed_pipeline_refuse(train->pipeline, step, "%s", hotbed_last_error());
    }
}

void hotbed_train_refuse(hotbed_train *train) {
    for (uint32_t s = 0; s < train->pipeline->program->num_steps; s++)
        refuse(train, s);
}
