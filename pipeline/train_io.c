/* pipeline/train_io.c - what the tasks of train pipelines change besides their values, for
 * shortcuts.
 *
 * A task calls functions of the trainer, whose effects the trainer declares, and changes cells of a
 * context, which hotbed_context_capture() and hotbed_context_restore() can repeat. */
#include "pipeline/train.h"

#include <assert.h>

typedef struct task_effects {
    const char *task;
    const char *functions; /* function of the trainer; NULL: none */
    bool cells;            /* the task changes the context's cells */
    bool forward;          /* the task calls the forwards of modules */
    const char *final;     /* the reason why the task can never be skipped; NULL: it can be */
    const char *beside;    /* applies only to plans that have this task too; NULL: to all plans */
} task_effects;

#define ROWS "it changes rows of tables"
#define ENDS "it ends the batch"

static const task_effects effects[] = {
    {"copy_batch_to_gpu", "copy_batch", false, false, NULL, NULL},
    {"start_shuffle", "shuffle_start", false, false, NULL, NULL},
    {"finish_shuffle", "shuffle_finish", false, false, NULL, NULL},
    {"start_sparse_data_dist", NULL, true, false, NULL, NULL},
    {"wait_sparse_data_dist", NULL, true, false, NULL, NULL},
    {"prefetch", NULL, true, false, NULL, NULL},
    {"wait_for_batch", NULL, false, false, NULL, NULL},
    {"zero_grad", "zero_grad", false, false, NULL, NULL},
    {"global_tokens", "global_tokens", false, false, NULL, NULL},
    {"forward", "forward dense_forward", true, true, NULL, NULL},
    {"loss", "loss", false, false, NULL, NULL},
    {"backward", "loss dense_backward", false, false, NULL, "embedding_backward"},
    {"backward", NULL, false, false, ROWS, NULL},
    {"embedding_backward", NULL, false, false, ROWS, NULL},
    {"finalize_model_grads", "finalize_grads", false, false, NULL, NULL},
    {"optimizer", "optimizer", false, false, NULL, NULL},
    {"dequeue_batch", NULL, false, false, ENDS, NULL},
    {"H2DAndShuffle", "copy_batch shuffle_start shuffle_finish", false, false, NULL, NULL},
    {"EmbInputDistStart", NULL, true, false, NULL, NULL},
    {"EmbInputDistWait", NULL, true, false, NULL, NULL},
    {"EmbPrefetch", NULL, true, false, NULL, NULL},
    {"EmbForward", "zero_grad forward", true, true, NULL, NULL},
    {"DenseForward", "dense_forward", false, false, NULL, NULL},
    {"LossPostprocess", "global_tokens loss", false, false, NULL, NULL},
    {"DenseBackward", "dense_backward", false, false, NULL, NULL},
    {"EmbBackward", NULL, false, false, ROWS, NULL},
    {"FinalizeGrads", "finalize_grads", false, false, NULL, NULL},
    {"OptimStep", NULL, false, false, ENDS, NULL},
};

static hotbed_status effects_of(
    const hotbed_train_plan *plan, const char *task, const task_effects **out) {
    for (size_t n = 0; n < sizeof effects / sizeof *effects; n++)
        if (strcmp(effects[n].task, task) == 0 &&
            (effects[n].beside == NULL || hotbed_train_plan_has(plan, effects[n].beside))) {
            *out = &effects[n];
            return HOTBED_OK;
        }
    return hotbed_fail(
        HOTBED_ERR_ARGUMENT, "nothing says what task '%s' of a train pipeline changes", task);
}

/* --- the trainer's functions ------------------------------------------------------------------ */

/* Whether the trainer has a function; *known: whether hotbed_trainer has a field of that name. */
static bool has_function(const hotbed_trainer *t, const char *name, size_t length, bool *known) {
    const struct {
        const char *name;
        bool there;
    } functions[] = {
        {"copy_batch", t->copy_batch != NULL},
        {"shuffle_start", t->shuffle_start != NULL},
        {"shuffle_finish", t->shuffle_finish != NULL},
        {"zero_grad", t->zero_grad != NULL},
        {"global_tokens", t->global_tokens != NULL},
        {"forward", true},
        {"dense_forward", t->dense_forward != NULL},
        {"loss", t->loss != NULL},
        {"dense_backward", t->dense_backward != NULL},
        {"finalize_grads", t->finalize_grads != NULL},
        {"optimizer", t->optimizer != NULL},
    };
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        *known =
            strlen(functions[f].name) == length && memcmp(functions[f].name, name, length) == 0;
        if (*known)
            return functions[f].there;
    }
    return false;
}

static const hotbed_trainer_io *find_io(const hotbed_trainer *t, const char *name, size_t length) {
    for (uint32_t i = 0; i < t->num_io; i++)
        if (strlen(t->io[i].function) == length && memcmp(t->io[i].function, name, length) == 0)
            return &t->io[i];
    return NULL;
}

hotbed_status hotbed_train_check_io(const hotbed_trainer *trainer) {
    if (trainer->num_io > 0 && trainer->io == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "num_io", trainer->num_io, "trainer: %u io, but NULL",
            trainer->num_io);
    for (uint32_t i = 0; i < trainer->num_io; i++) {
        const hotbed_trainer_io *io = &trainer->io[i];
        bool known = false;
        if (io->function != NULL)
            (void)has_function(trainer, io->function, strlen(io->function), &known);
        if (!known)
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "io", i,
                "trainer: io %u is of '%s', which is no function of trainers", i,
                io->function == NULL ? "" : io->function);
        if ((io->io.capture == NULL) != (io->io.restore == NULL))
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "trainer: io of '%s' has capture or restore alone",
                io->function);
    }
    return HOTBED_OK;
}

/* --- contexts --------------------------------------------------------------------------------- */

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
    const hotbed_train *train = self;
    return hotbed_context_restore(
        train->rewrite, hotbed_iteration_buffer_set(iteration), snapshot, stream);
}

static void release_cells(void *self, void *snapshot) {
    const hotbed_train *train = self;
    hotbed_context_drop(snapshot, train->streams[HOTBED_TRAIN_STREAMS - 1]);
}

/* --- tasks ------------------------------------------------------------------------------------ */

/* The rows of `effects` bound the number of a task's io, so more is a bug in that table. */
static void add_io(hotbed_declared_io *io, uint32_t *num_io, hotbed_declared_io added) {
    assert(*num_io < HOTBED_TRAIN_IO_MOST);
    io[(*num_io)++] = added;
}

hotbed_status hotbed_train_declare(
    hotbed_train *train, const char *task, hotbed_declared_io *io, uint32_t *num_io) {
    const task_effects *e = NULL;
    const char *word;
    uint32_t n = 0;
    HOTBED_TRY(effects_of(train->plan, task, &e));
    const char *list = e->functions;
    for (size_t l = hotbed_next_word(&list, &word); l > 0; l = hotbed_next_word(&list, &word)) {
        const hotbed_trainer_io *declared = find_io(&train->trainer, word, l);
        if (declared != NULL && declared->io.capture != NULL)
            add_io(io, &n, declared->io);
    }
    if (e->cells)
        add_io(io, &n, (hotbed_declared_io){capture_cells, restore_cells, release_cells, train});
    *num_io = n;
    return HOTBED_OK;
}

static hotbed_status refuse(hotbed_train *train, uint32_t step) {
    const task_effects *e = NULL;
    const char *word;
    bool known = false;
    HOTBED_TRY(effects_of(train->plan, train->pipeline->program->steps[step].name, &e));
    const char *list = e->functions;
    if (e->final != NULL)
        hotbed_pipeline_refuse(train->pipeline, step, "%s", e->final);
    else if (e->cells && hotbed_context_capturable(train->rewrite, e->forward) != HOTBED_OK)
        hotbed_pipeline_refuse(train->pipeline, step, "%s", hotbed_last_error());
    for (size_t l = hotbed_next_word(&list, &word); l > 0; l = hotbed_next_word(&list, &word))
        if (has_function(&train->trainer, word, l, &known) &&
            find_io(&train->trainer, word, l) == NULL)
            hotbed_pipeline_refuse(
                train->pipeline, step, "the trainer declares no io of %.*s", (int)l, word);
    return HOTBED_OK;
}

hotbed_status hotbed_train_refuse(hotbed_train *train) {
    for (uint32_t s = 0; s < train->pipeline->program->num_steps; s++)
        HOTBED_TRY(refuse(train, s));
    return HOTBED_OK;
}
