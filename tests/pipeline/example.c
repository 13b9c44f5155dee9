/* tests/pipeline/example.c - a small model over real tables, see example.h. */
#include "tests/pipeline/example.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static void count(uint64_t *counter) {
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

/* --- a module --------------------------------------------------------------------------------- */

typedef struct module_context module_context;

/* One exchange of splits for all modules; its result is an array of theirs. */
typedef struct fused_exchange {
    uint32_t n;
    module_context *contexts[EXAMPLE_MODULES];
    hotbed_awaitable splits[EXAMPLE_MODULES], tensors[EXAMPLE_MODULES];
} fused_exchange;

struct module_context {
    example_module *of;
    hotbed_ticket *ticket;
    hotbed_memory memory;
    int64_t *sent, *local; /* keys before and after the exchange */
    float *output, *gradient;
    const int64_t *argument;
    hotbed_awaitable tensors;
    fused_exchange fused; /* for all modules; the one in the first module's context is used */
};

static hotbed_status context_create(void *self, hotbed_stream *stream, void **out) {
    example_module *m = self;
    module_context *c = calloc(1, sizeof *c);
    CHECK(c != NULL);
    c->of = m;
    CHECK_OK(
        hotbed_ticket_create(m->storage, EXAMPLE_SAMPLES, EXAMPLE_SAMPLES, stream, &c->ticket));
    CHECK_OK(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, 4096, NULL, &c->memory));
    unsigned char *at = c->memory.data;
    c->sent = (int64_t *)at;
    c->local = (int64_t *)(at + 512);
    c->output = (float *)(at + 1024);
    c->gradient = (float *)(at + 2048);
    count(&m->contexts);
    *out = c;
    return HOTBED_OK;
}

static void context_destroy(void *self, void *context) {
    module_context *c = context;
    hotbed_ticket_destroy(c->ticket);
    hotbed_memory_free(&c->memory);
    free(c);
}

/* Exchange 2 is a copy that this call starts. */
static hotbed_status wait_tensors(void *self, hotbed_stream *stream, void **result) {
    module_context *c = self;
    HOTBED_TRY(hotbed_copy(c->local, c->sent, EXAMPLE_SAMPLES * sizeof *c->sent, stream));
    *result = c;
    return HOTBED_OK;
}

static hotbed_status wait_splits(void *self, hotbed_stream *stream, void **result) {
    module_context *c = self;
    count(&c->of->waits);
    HOTBED_TRY(hotbed_copy(c->sent, c->argument, EXAMPLE_SAMPLES * sizeof *c->sent, stream));
    c->tensors = (hotbed_awaitable){wait_tensors, c};
    *result = &c->tensors;
    return HOTBED_OK;
}

static hotbed_status input_dist(
    void *self, void *context, const void *const *arguments, uint32_t n, hotbed_stream *stream,
    hotbed_awaitable *splits) {
    example_module *m = self;
    module_context *c = context;
    CHECK_EQ(n, 1);
    count(&m->starts);
    c->argument = arguments[0];
    *splits = (hotbed_awaitable){wait_splits, c};
    return HOTBED_OK;
}

static hotbed_status wait_fused(void *self, hotbed_stream *stream, void **result) {
    fused_exchange *f = self;
    for (uint32_t i = 0; i < f->n; i++) {
        void *tensors = NULL;
        HOTBED_TRY(f->splits[i].wait(f->splits[i].self, stream, &tensors));
        f->tensors[i] = *(const hotbed_awaitable *)tensors;
    }
    *result = f->tensors;
    return HOTBED_OK;
}

static hotbed_status fuse(
    void *group, uint32_t n, void *const *contexts, const hotbed_awaitable *splits,
    hotbed_stream *stream, hotbed_awaitable *fused) {
    example *s = group;
    CHECK(n <= EXAMPLE_MODULES);
    fused_exchange *f = &((module_context *)contexts[0])->fused;
    f->n = n;
    for (uint32_t i = 0; i < n; i++) {
        f->contexts[i] = contexts[i];
        f->splits[i] = splits[i];
    }
    count(&s->fused_runs);
    *fused = (hotbed_awaitable){wait_fused, f};
    return HOTBED_OK;
}

static hotbed_status prefetch(void *self, void *context, void *input, hotbed_stream *stream) {
    example_module *m = self;
    module_context *c = context;
    hotbed_batch batch = {.size = sizeof batch};
    CHECK(input == c);
    count(&m->prefetches);
    batch.batch_size = EXAMPLE_SAMPLES;
    batch.num_keys = EXAMPLE_SAMPLES;
    batch.keys = c->local;
    batch.offsets = m->all->offsets;
    return hotbed_storage_prefetch(m->storage, &batch, c->ticket, stream);
}

static hotbed_status compute(
    void *self, void *context, void *input, hotbed_stream *stream, const void **output) {
    example_module *m = self;
    module_context *c = context;
    count(&m->computes);
    *output = c->output;
    HOTBED_TRY(hotbed_storage_forward(m->storage, c->ticket, c->output, 0, stream));
    return hotbed_copy(c->gradient, c->output, EXAMPLE_ROWS * sizeof(float), stream);
}

static hotbed_status backward(void *self, void *context, hotbed_stream *stream) {
    example_module *m = self;
    module_context *c = context;
    count(&m->backwards);
    return hotbed_storage_backward(m->storage, c->ticket, c->gradient, 0, stream);
}

static hotbed_status cancel(void *self, void *context, hotbed_stream *stream) {
    example_module *m = self;
    module_context *c = context;
    count(&m->cancels);
    return hotbed_ticket_cancel(c->ticket, stream);
}

/* The state of a context to which cancel returns. */
typedef struct module_point {
    bool holds;
} module_point;

static hotbed_status capture(void *self, void *context, hotbed_stream *stream, void **out) {
    const module_context *c = context;
    hotbed_ticket_view view = {.size = sizeof view};
    module_point *point = calloc(1, sizeof *point);
    CHECK(point != NULL);
    point->holds = hotbed_ticket_read(c->ticket, &view) == HOTBED_OK;
    *out = point;
    return point->holds ? hotbed_ticket_keep(c->ticket, stream) : HOTBED_OK;
}

static hotbed_status restore(void *self, void *context, const void *point, hotbed_stream *stream) {
    const module_context *c = context;
    return ((const module_point *)point)->holds ? hotbed_ticket_retake(c->ticket, stream)
                                                : hotbed_ticket_cancel(c->ticket, stream);
}

static void forget(void *self, void *context, void *point, hotbed_stream *stream) {
    const module_context *c = context;
    CHECK_OK(hotbed_ticket_forget(c->ticket, stream));
    free(point);
}

static hotbed_status graft(void *self, void *context, hotbed_stream *stream) {
    const module_context *c = context;
    return hotbed_fill(c->gradient, 0, EXAMPLE_ROWS * sizeof(float), stream);
}

static hotbed_module_calls calls = {
    .context_create = context_create,
    .context_destroy = context_destroy,
    .input_dist = input_dist,
    .prefetch = prefetch,
    .compute_and_output_dist = compute,
    .backward = backward,
    .cancel = cancel,
    .fuse = fuse,
    .capture = capture,
    .restore = restore,
    .forget = forget,
    .graft = graft};

/* --- batches ---------------------------------------------------------------------------------- */

static const void *get_users(const void *batch) {
    return ((const example_batch *)batch)->keys[0];
}

static const void *get_items(const void *batch) {
    return ((const example_batch *)batch)->keys[1];
}

static const void *get_labels(const void *batch) {
    return ((const example_batch *)batch)->labels;
}

static const hotbed_field fields[] = {
    {"users", get_users, NULL},
    {"items", get_items, NULL},
    {"labels", get_labels, NULL},
};

const hotbed_batch_type example_batch_type = {.name = "batch", .fields = fields, .num_fields = 3};

/* Exchange neighbouring keys by copies, in place of a kernel. */
static hotbed_status process(
    void *self, uint32_t set, const void *const *arguments, uint32_t n, hotbed_stream *stream,
    const void **output) {
    example *s = self;
    const int64_t *keys = arguments[0];
    CHECK_EQ(n, 1);
    count(&s->postproc_runs);
    for (int i = 0; i < EXAMPLE_SAMPLES; i++)
        HOTBED_TRY(hotbed_copy(&s->processed[set][i], &keys[i ^ 1], sizeof *keys, stream));
    *output = s->processed[set];
    return HOTBED_OK;
}

/* The model calls both modules; while it is traced it computes nothing. */
static hotbed_status forward(void *self, hotbed_ref batch, hotbed_stream *stream) {
    example *s = self;
    hotbed_ref arguments[EXAMPLE_MODULES] = {
        hotbed_ref_field(batch, "users"), hotbed_ref_field(batch, "items")};
    if (s->with_postproc)
        HOTBED_TRY(hotbed_postproc_call(&s->postproc, &arguments[1], 1, stream, &arguments[1]));
    for (int m = 0; m < EXAMPLE_MODULES; m++) {
        hotbed_ref output;
        HOTBED_TRY(hotbed_module_forward(&s->modules[m].module, &arguments[m], 1, stream, &output));
        if (hotbed_ref_traced(batch))
            continue;
        const example_batch *b = hotbed_ref_data(batch);
        for (int set = 0; set < EXAMPLE_DEPTH; set++)
            if (b == &s->sets[set])
                s->outputs[set][m] = hotbed_ref_data(output);
    }
    return HOTBED_OK;
}

/* --- a trainer -------------------------------------------------------------------------------- */

static hotbed_status copy_batch(
    void *self, uint32_t set, void *host, hotbed_stream *stream, void **out) {
    example *s = self;
    const example_batch *from = host;
    example_batch *to = &s->sets[set];
    to->number = from->number;
    for (int m = 0; m < EXAMPLE_MODULES; m++)
        HOTBED_TRY(
            hotbed_copy(to->keys[m], from->keys[m], EXAMPLE_SAMPLES * sizeof(int64_t), stream));
    *out = to;
    return HOTBED_OK;
}

static hotbed_status shuffle_start(void *self, uint32_t set, void *batch, hotbed_stream *stream) {
    example *s = self;
    count(&s->shuffles_started);
    return HOTBED_OK;
}

static hotbed_status shuffle_finish(
    void *self, uint32_t set, void *batch, hotbed_stream *stream, void **out) {
    example *s = self;
    CHECK(batch == &s->sets[set]);
    count(&s->shuffles_finished);
    *out = batch;
    return HOTBED_OK;
}

static hotbed_status zero_grad(void *self, uint32_t set, void *batch, hotbed_stream *stream) {
    example *s = self;
    CHECK(batch == NULL);
    count(&s->zeroed);
    return HOTBED_OK;
}

static hotbed_status keep_results(void *self, uint32_t set, void *batch, hotbed_stream *stream) {
    example *s = self;
    const example_batch *b = batch;
    count(&s->losses);
    if (s->fail_batch == b->number + 1)
        return hotbed_fail(
            HOTBED_ERR_RANGE, "the loss of batch %llu is nan", (unsigned long long)b->number);
    for (int m = 0; m < EXAMPLE_MODULES; m++)
        HOTBED_TRY(hotbed_copy(
            s->results[b->number] + (ptrdiff_t)m * EXAMPLE_ROWS, s->outputs[set][m],
            EXAMPLE_ROWS * sizeof(float), stream));
    return HOTBED_OK;
}

static hotbed_status finalize(void *self, uint32_t set, void *batch, hotbed_stream *stream) {
    example *s = self;
    count(&s->finalized);
    return HOTBED_OK;
}

static hotbed_status step(void *self, uint32_t set, void *batch, hotbed_stream *stream) {
    example *s = self;
    count(&s->steps);
    return HOTBED_OK;
}

/* These functions write only to their buffer set, and to counters. */
static const hotbed_trainer_io trainer_io[] = {
    {.function = "copy_batch"}, {.function = "shuffle_start"},  {.function = "shuffle_finish"},
    {.function = "zero_grad"},  {.function = "forward"},        {.function = "loss"},
    {.function = "optimizer"},  {.function = "finalize_grads"},
};

/* --- open and close --------------------------------------------------------------------------- */

static void open_module(example *s, int number) {
    static const char *const names[] = {"users", "items"};
    example_module *m = &s->modules[number];
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    table.name = names[number];
    table.dim = EXAMPLE_DIM;
    table.capacity = 4 * EXAMPLE_KEYS;
    table.initializer.kind = HOTBED_INIT_UNIFORM;
    table.initializer.lower = -1.0F;
    table.initializer.upper = 1.0F;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.seed = (uint64_t)number;
    hotbed_optimizer_init(&options.optimizer);
    options.optimizer.kind = HOTBED_OPT_ADAGRAD;
    options.optimizer.learning_rate = 0.1F;
    CHECK_OK(hotbed_storage_create(&options, s->stream, &m->storage));
    m->all = s;
    CHECK_OK(hotbed_module_init(&m->module, names[number], &calls, m));
    s->module_list[number] = &m->module;
}

static void open_batches(example *s) {
    size_t host =
        (size_t)EXAMPLE_BATCHES * (EXAMPLE_MODULES + 1) * EXAMPLE_SAMPLES * sizeof(int64_t);
    size_t results = (size_t)EXAMPLE_BATCHES * EXAMPLE_MODULES * EXAMPLE_ROWS * sizeof(float);
    size_t sets = (size_t)EXAMPLE_DEPTH * (EXAMPLE_MODULES + 1) * 256 + 256;
    CHECK_OK(hotbed_memory_alloc(
        s->stream, HOTBED_MEMORY_PINNED, host + results + sets, NULL, &s->memory));
    unsigned char *at = s->memory.data;
    uint64_t random = hotbed_test_seed(); /* the same batches in every example */
    memset(at, 0, s->memory.bytes);
    for (uint64_t b = 0; b < EXAMPLE_BATCHES; b++) {
        s->batches[b].number = b;
        for (int m = 0; m < EXAMPLE_MODULES; m++, at += EXAMPLE_SAMPLES * sizeof(int64_t)) {
            s->batches[b].keys[m] = (int64_t *)at;
            for (int i = 0; i < EXAMPLE_SAMPLES; i++)
                s->batches[b].keys[m][i] = (int64_t)(hotbed_test_random_r(&random) % EXAMPLE_KEYS);
        }
        s->batches[b].labels = (int64_t *)at;
        at += EXAMPLE_SAMPLES * sizeof(int64_t);
        s->results[b] = (float *)at;
        at += (size_t)EXAMPLE_MODULES * EXAMPLE_ROWS * sizeof(float);
    }
    for (int set = 0; set < EXAMPLE_DEPTH; set++) { /* the GPU addresses pinned memory directly */
        for (int m = 0; m < EXAMPLE_MODULES; m++, at += 256)
            s->sets[set].keys[m] = (int64_t *)at;
        s->processed[set] = (int64_t *)at;
        at += 256;
    }
    s->offsets = (int64_t *)at;
    for (int i = 0; i <= EXAMPLE_SAMPLES; i++)
        s->offsets[i] = i;
}

void example_open(example *s, hotbed_backend backend) {
    memset(s, 0, sizeof *s);
    s->backend = backend;
    calls.group = s;
    CHECK_OK(hotbed_stream_create(backend, 0, &s->stream));
    for (int m = 0; m < EXAMPLE_MODULES; m++)
        open_module(s, m);
    open_batches(s);
    s->inner = (hotbed_model){
        .name = "sparse",
        .modules = s->module_list,
        .num_modules = EXAMPLE_MODULES,
        .forward = forward,
        .self = s};
    s->inner_list[0] = &s->inner;
    s->wrapper = (hotbed_model){.models = s->inner_list, .num_models = 1};
    s->wrapper_list[0] = &s->wrapper;
    s->model = (hotbed_model){.name = "ranker", .models = s->wrapper_list, .num_models = 1};
    s->postproc = (hotbed_postproc){.name = "exchange", .call = process, .self = s};
    s->trainer = (hotbed_trainer){.size = sizeof s->trainer};
    s->trainer.model = &s->model;
    s->trainer.batch = &example_batch_type;
    s->trainer.self = s;
    s->trainer.copy_batch = copy_batch;
    s->trainer.shuffle_start = shuffle_start;
    s->trainer.shuffle_finish = shuffle_finish;
    s->trainer.zero_grad = zero_grad;
    s->trainer.loss = keep_results;
    s->trainer.finalize_grads = finalize;
    s->trainer.optimizer = step;
    s->trainer.io = trainer_io;
    s->trainer.num_io = sizeof trainer_io / sizeof *trainer_io;
}

void example_close(example *s) {
    for (int m = 0; m < EXAMPLE_MODULES; m++) {
        hotbed_module_close(&s->modules[m].module);
        hotbed_storage_destroy(s->modules[m].storage);
    }
    hotbed_memory_free(&s->memory);
    hotbed_stream_destroy(s->stream);
}

hotbed_train *example_train(example *s, const char *plan, uint32_t depth) {
    hotbed_train_options options = {.size = sizeof options};
    hotbed_train *train;
    options.plan = plan;
    options.depth = depth;
    options.backend = s->backend;
    options.pipeline =
        (hotbed_pipeline_options){.size = sizeof options.pipeline, .log_entries = 2048};
    CHECK_OK(hotbed_train_create(&s->trainer, &options, &train));
    return train;
}

static hotbed_status next_batch(void *self, void **batch, bool *end) {
    example *s = self;
    *end = s->pulled == s->limit;
    if (!*end)
        *batch = &s->batches[s->first + s->pulled++];
    return HOTBED_OK;
}

static void batch_done(void *self, void *batch, hotbed_event *event) {
    example *s = self;
    CHECK(batch == &s->batches[s->first + s->given_back]);
    CHECK(event != NULL);
    s->given_back++;
}

hotbed_loader example_loader(example *s, uint64_t first, uint64_t n) {
    CHECK(first + n <= EXAMPLE_BATCHES);
    s->first = first;
    s->limit = n;
    s->pulled = 0;
    s->given_back = 0;
    return (hotbed_loader){next_batch, batch_done, s};
}

void example_bind(example *s, hotbed_train *train, uint64_t first, uint64_t n) {
    const hotbed_loader loader = example_loader(s, first, n);
    CHECK_OK(hotbed_pipeline_bind(hotbed_train_pipeline(train), &loader));
}

uint64_t example_run(hotbed_train *train) {
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    const hotbed_iteration *iteration;
    for (uint64_t n = 0;; n++) {
        CHECK_OK(hotbed_pipeline_progress(pipeline, &iteration));
        if (iteration == NULL) {
            CHECK_OK(hotbed_stream_sync(hotbed_pipeline_stream(pipeline)));
            return n;
        }
    }
}

void example_rows(example *s, float *rows) {
    hotbed_memory memory;
    size_t bytes = (size_t)EXAMPLE_KEYS * EXAMPLE_DIM * sizeof(float);
    CHECK_OK(hotbed_memory_alloc(s->stream, HOTBED_MEMORY_PINNED, 4096 + bytes, NULL, &memory));
    int64_t *keys = memory.data;
    float *weights = (float *)(void *)((unsigned char *)memory.data + 4096);
    for (int64_t k = 0; k < EXAMPLE_KEYS; k++)
        keys[k] = k;
    for (int m = 0; m < EXAMPLE_MODULES; m++) {
        const hotbed_rows out = {.weights = weights};
        memset(weights, 0, bytes);
        CHECK_OK(hotbed_storage_get_rows(
            s->modules[m].storage, 0, EXAMPLE_KEYS, keys, &out, NULL, s->stream));
        CHECK_OK(hotbed_stream_sync(s->stream));
        memcpy(rows + (size_t)m * EXAMPLE_KEYS * EXAMPLE_DIM, weights, bytes);
    }
    hotbed_memory_free(&memory);
}

uint64_t example_pinned(example *s) {
    uint64_t all = 0;
    for (int m = 0; m < EXAMPLE_MODULES; m++) {
        uint64_t keys, pinned;
        CHECK_OK(hotbed_storage_size(s->modules[m].storage, 0, &keys, &pinned, s->stream));
        all += pinned;
    }
    return all;
}
