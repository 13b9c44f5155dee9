/* tests/pipeline/ranks.c - ranks with a trainer each, see ranks.h. */
#include "tests/pipeline/ranks.h"

#include "base/error.h"
#include "tests/dist/world.h"

#include <stdlib.h>
#include <string.h>

/* --- model and trainer ------------------------------------------------------------------------ */

static const void *get_first(const void *b) {
    return &((const batch *)b)->kjts[0];
}
static const void *get_second(const void *b) {
    return &((const batch *)b)->kjts[1];
}
static const hotbed_field fields[] = {{"sequence", get_first, NULL}, {"pooled", get_second, NULL}};
static const hotbed_batch_type batch_type = {
    .name = "batch", .fields = fields, .num_fields = COLLECTIONS};

/* Call the second module first: the order of calls may differ from the order in the list. */
static hotbed_status forward(void *self, hotbed_ref b, hotbed_stream *stream) {
    rank *r = self;
    for (int m = COLLECTIONS; m-- > 0;) {
        const hotbed_ref argument = hotbed_ref_field(b, fields[m].name);
        hotbed_ref output;
        HOTBED_TRY(hotbed_module_forward(r->module_list[m], &argument, 1, stream, &output));
        if (hotbed_ref_traced(b))
            continue;
        for (int set = 0; set < DEPTH; set++)
            if (hotbed_ref_data(b) == &r->sets[set])
                r->outputs[set][m] = hotbed_ref_data(output);
    }
    return HOTBED_OK;
}

static hotbed_status copy_batch(
    void *self, uint32_t set, void *host, hotbed_stream *stream, void **out) {
    rank *r = self;
    const batch *from = host;
    batch *to = &r->sets[set];
    to->number = from == NULL ? BATCHES : from->number;
    for (int c = 0; c < COLLECTIONS; c++) {
        hotbed_kjt *kjt = &to->kjts[c];
        *kjt = from == NULL ? r->batches[0].kjts[c] : from->kjts[c];
        kjt->keys = r->set_keys[set][c];
        if (from == NULL)
            kjt->batch_size = 0;
        kjt->num_keys = (uint64_t)kjt->batch_size * FEATURES;
        if (from != NULL)
            HOTBED_TRY(hotbed_copy(
                r->set_keys[set][c], from->kjts[c].keys, kjt->num_keys * sizeof(int64_t), stream));
    }
    *out = to;
    return HOTBED_OK;
}

static hotbed_status shuffle_start(void *self, uint32_t set, void *b, hotbed_stream *stream) {
    const rank *r = self;
    CHECK(b != NULL);
    return hotbed_balance_start(r->balances[set], &((batch *)b)->kjts[1], NULL, stream);
}

static hotbed_status shuffle_finish(
    void *self, uint32_t set, void *b, hotbed_stream *stream, void **out) {
    const rank *r = self;
    hotbed_balanced balanced = {.size = sizeof balanced};
    CHECK(b != NULL);
    HOTBED_TRY(hotbed_balance_finish(r->balances[set], &balanced, stream));
    ((batch *)b)->kjts[1] = balanced.kjt;
    *out = b;
    return HOTBED_OK;
}

static hotbed_status keep(void *self, uint32_t set, void *b, hotbed_stream *stream) {
    rank *r = self;
    CHECK(b != NULL);
    uint64_t number = ((const batch *)b)->number;
    if (r->fails_at == number + 1)
        return hotbed_fail(HOTBED_ERR_RANGE, "the loss is nan");
    for (int c = 0; c < COLLECTIONS && number < BATCHES; c++)
        HOTBED_TRY(hotbed_copy(
            r->kept[number][c], r->outputs[set][c]->rows, r->outputs[set][c]->bytes, stream));
    return HOTBED_OK;
}

static hotbed_status gradients(void *self, uint32_t set, void *b, hotbed_stream *stream) {
    rank *r = self;
    for (int c = 0; c < COLLECTIONS; c++)
        HOTBED_TRY(hotbed_copy(
            r->outputs[set][c]->gradient, r->outputs[set][c]->rows, r->outputs[set][c]->bytes,
            stream));
    return HOTBED_OK;
}

/* These functions write only to their buffer set. */
static const hotbed_trainer_io trainer_io[] = {
    {.function = "copy_batch"}, {.function = "shuffle_start"}, {.function = "shuffle_finish"},
    {.function = "forward"},    {.function = "loss"},          {.function = "dense_backward"}};

/* --- sizes ------------------------------------------------------------------------------------ */

static bool have_a_gpu_each(void) {
    return world_list()->transport == HOTBED_TRANSPORT_NCCL;
}

const uint32_t *ranks_sizes_of(const uint32_t *sizes) {
    static uint32_t only[2];
    only[0] = world_list()->size;
    return have_a_gpu_each() ? only : sizes;
}

const uint32_t *ranks_sizes(void) {
    static const uint32_t all[] = {1, 2, 4, 0}, small[] = {2, 0};
    return ranks_sizes_of(hotbed_test_is_small() ? small : all);
}

uint64_t ranks_batches(void) {
    return hotbed_test_is_small() ? DEPTH : BATCHES;
}

/* --- ranks ------------------------------------------------------------------------------------ */

static void open_collection(rank *r, int c) {
    static const char *const names[COLLECTIONS][FEATURES] = {{"user", "item"}, {"example", "city"}};
    hotbed_table_options tables[FEATURES];
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    for (int t = 0; t < FEATURES; t++) {
        tables[t] = (hotbed_table_options){.size = sizeof tables[t]};
        tables[t].name = names[c][t];
        tables[t].dim = DIM;
        tables[t].capacity = (uint64_t)8 * KEY_SPACE;
        tables[t].initializer.kind = HOTBED_INIT_UNIFORM;
        tables[t].initializer.lower = -1.0F;
        tables[t].initializer.upper = 1.0F;
    }
    hotbed_storage_options_init(&storage);
    storage.num_tables = FEATURES;
    storage.tables = tables;
    storage.pooling = c == 0 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM;
    hotbed_optimizer_init(&storage.optimizer);
    storage.optimizer.kind = HOTBED_OPT_ADAGRAD;
    storage.optimizer.learning_rate = 0.25F;
    hotbed_sharded_options_init(&options);
    options.storage = &storage;
    options.plan = r->all->exchange;
    options.capacity = r->all->capacity;
    options.max_batch_size = SAMPLES;
    /* A shuffle can give one rank the samples of all. */
    options.max_keys = (uint64_t)r->all->size * KEYS;
    CHECK_OK(hotbed_sharded_create(&options, r->comm, r->stream, &r->collections[c]));
}

static void open_batches(rank *r) {
    size_t host = (size_t)BATCHES * COLLECTIONS * KEYS * sizeof(int64_t);
    size_t sets = (size_t)DEPTH * COLLECTIONS * KEYS * sizeof(int64_t);
    uint64_t random = hotbed_test_seed() * 1000 + r->number;
    CHECK_OK(hotbed_memory_alloc(r->stream, HOTBED_MEMORY_PINNED, host + sets, NULL, &r->memory));
    CHECK_OK(hotbed_memory_alloc(
        r->stream, HOTBED_MEMORY_PINNED, sizeof(results), NULL, &r->kept_memory));
    r->kept = r->kept_memory.data;
    int64_t *at = r->memory.data;
    for (int b = 0; b < BATCHES; b++) {
        r->batches[b].number = (uint64_t)b;
        for (int c = 0; c < COLLECTIONS; c++, at += KEYS) {
            hotbed_kjt *kjt = &r->batches[b].kjts[c];
            for (int k = 0; k < KEYS; k++)
                at[k] = (int64_t)(hotbed_test_random_r(&random) % KEY_SPACE);
            *kjt = (hotbed_kjt){.size = sizeof *kjt};
            if (c == 1) /* an older caller's struct, next to one of the library's size */
                kjt->size = offsetof(hotbed_kjt, weights);
            kjt->num_features = FEATURES;
            kjt->batch_size = SAMPLES - r->number;
            kjt->num_keys = (uint64_t)kjt->batch_size * FEATURES;
            kjt->keys = at;
        }
    }
    for (int set = 0; set < DEPTH; set++)
        for (int c = 0; c < COLLECTIONS; c++, at += KEYS)
            r->set_keys[set][c] = at;
}

static void open_balances(rank *r) {
    hotbed_balance_options options = {
        .size = sizeof options, .num_features = FEATURES, .batch_size = SAMPLES, .max_keys = KEYS};
    for (int set = 0; set < DEPTH; set++)
        CHECK_OK(hotbed_balance_create(&options, r->comm, r->stream, &r->balances[set]));
    r->trainer.shuffle_start = shuffle_start;
    r->trainer.shuffle_finish = shuffle_finish;
}

void rank_open(rank *r) {
    static const char *const names[] = {"sequence", "pooled"};
    CHECK_OK(hotbed_stream_create(r->all->backend, r->device, &r->stream));
    open_batches(r);
    memset(r->kept, 0, sizeof(results));
    for (int c = 0; c < COLLECTIONS; c++)
        open_collection(r, c);
    CHECK_OK(hotbed_sharded_modules_create(COLLECTIONS, names, r->collections, &r->modules));
    for (uint32_t c = 0; c < COLLECTIONS; c++)
        r->module_list[c] = hotbed_sharded_modules_get(r->modules, c);
    CHECK(hotbed_sharded_modules_get(r->modules, COLLECTIONS) == NULL);
    r->model = (hotbed_model){
        .modules = r->module_list, .num_modules = COLLECTIONS, .forward = forward, .self = r};
    r->trainer = (hotbed_trainer){.size = sizeof r->trainer};
    r->trainer.model = &r->model;
    r->trainer.batch = &batch_type;
    r->trainer.self = r;
    r->trainer.copy_batch = copy_batch;
    r->trainer.loss = keep;
    r->trainer.dense_backward = gradients;
    r->trainer.io = trainer_io;
    r->trainer.num_io = sizeof trainer_io / sizeof *trainer_io;
    if (r->all->shuffled)
        open_balances(r);
}

void rank_close(rank *r) {
    CHECK_OK(hotbed_stream_sync(r->stream));
    hotbed_sharded_modules_destroy(r->modules);
    for (int set = 0; set < DEPTH; set++)
        hotbed_balance_destroy(r->balances[set]);
    for (int c = 0; c < COLLECTIONS; c++)
        hotbed_sharded_destroy(r->collections[c]);
    hotbed_memory_free(&r->memory);
    hotbed_memory_free(&r->kept_memory);
    hotbed_stream_destroy(r->stream);
}

hotbed_comm_agreement *rank_agree(rank *r, hotbed_stream **stream) {
    hotbed_comm_agreement *agreement;
    CHECK_OK(
        hotbed_stream_create(have_a_gpu_each() ? HOTBED_BACKEND_HOST : r->all->backend, 0, stream));
    CHECK_OK(hotbed_comm_agreement_create(r->agreeing, *stream, &agreement));
    return agreement;
}

uint64_t rank_pinned(rank *r) {
    uint64_t all = 0;
    for (int c = 0; c < COLLECTIONS; c++)
        for (uint32_t l = 0; l < hotbed_sharded_num_lookups(r->collections[c]); l++) {
            hotbed_storage *lookup = hotbed_sharded_lookup(r->collections[c], l);
            for (uint32_t t = 0; t < hotbed_storage_num_tables(lookup); t++) {
                uint64_t keys, pinned;
                CHECK_OK(hotbed_storage_size(lookup, t, &keys, &pinned, r->stream));
                all += pinned;
            }
        }
    return all;
}

typedef struct job {
    ranks *t;
    rank_body body;
} job;

static void run_body(world_rank *me) {
    const job *j = me->argument;
    rank *r = &j->t->ranks[me->rank];
    r->comm = me->comm;
    r->device = have_a_gpu_each() ? (int)me->rank : 0;
    j->body(r);
}

void ranks_run(
    hotbed_backend backend, uint32_t size, hotbed_plan exchange, const char *plan, rank_body body,
    ranks *t) {
    const world where = {
        have_a_gpu_each() ? HOTBED_TRANSPORT_NCCL : HOTBED_TRANSPORT_THREADS, size};
    hotbed_comm *agreeing[RANKS_MOST];
    hotbed_comm_options options = {.size = sizeof options, .deadline_ms = WORLD_DEADLINE_MS};
    job j = {t, body};
    CHECK(size <= RANKS_MOST);
    memset(t->ranks, 0, sizeof t->ranks);
    t->backend = backend;
    t->size = size;
    t->exchange = exchange;
    t->plan = plan;
    CHECK_OK(hotbed_comm_create_threads(&options, size, agreeing));
    for (uint32_t r = 0; r < size; r++) {
        t->ranks[r].all = t;
        t->ranks[r].period = BATCHES;
        t->ranks[r].number = r;
        t->ranks[r].agreeing = agreeing[r];
    }
    if (t->aborts)
        world_run(&where, NULL, run_body, &j);
    else
        world_run_kept(&where, run_body, &j);
    for (uint32_t r = 0; r < size; r++)
        hotbed_comm_destroy(agreeing[r]);
}

/* --- running ---------------------------------------------------------------------------------- */

/* The plain loop, with which the results of all plans are compared. */
void rank_train_plainly(rank *r) {
    rank_open(r);
    for (uint64_t b = 0; b < ranks_batches(); b++) {
        void *device = NULL;
        CHECK_OK(copy_batch(r, 0, &r->batches[b], r->stream, &device));
        if (r->all->shuffled) {
            CHECK_OK(shuffle_start(r, 0, device, r->stream));
            CHECK_OK(shuffle_finish(r, 0, device, r->stream, &device));
        }
        CHECK_OK(forward(r, hotbed_ref_batch(&batch_type, device), r->stream));
        CHECK_OK(keep(r, 0, device, r->stream));
        CHECK_OK(gradients(r, 0, device, r->stream));
        for (int m = COLLECTIONS; m-- > 0;)
            CHECK_OK(hotbed_module_backward(r->module_list[m], r->stream));
    }
    CHECK_OK(hotbed_stream_sync(r->stream));
    memcpy(*r->all->expected[r->number], r->kept, sizeof(results));
    CHECK_EQ(rank_pinned(r), 0);
    rank_close(r);
}

static hotbed_status next_batch(void *self, void **out, bool *end) {
    rank *r = self;
    *end = r->next == r->limit;
    if (!*end)
        *out = &r->batches[r->next++ % r->period];
    return HOTBED_OK;
}

hotbed_loader rank_loader(rank *r) {
    return (hotbed_loader){.next = next_batch, .self = r};
}

hotbed_train *rank_train(rank *r, const hotbed_pipeline_options *pipeline) {
    hotbed_train_options options = {.size = sizeof options};
    hotbed_train *train;
    options.plan = r->all->plan;
    options.backend = r->all->backend;
    options.device = r->device;
    if (pipeline != NULL)
        options.pipeline = *pipeline;
    CHECK_OK(hotbed_train_create(&r->trainer, &options, &train));
    return train;
}

hotbed_status rank_run(rank *r, hotbed_train *train, uint64_t limit) {
    const hotbed_loader loader = rank_loader(r);
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    const hotbed_iteration *iteration;
    r->limit = limit;
    CHECK_OK(hotbed_pipeline_bind(pipeline, &loader));
    for (;;) {
        HOTBED_TRY(hotbed_pipeline_progress(pipeline, &iteration));
        if (iteration == NULL)
            return hotbed_stream_sync(hotbed_pipeline_stream(pipeline));
        r->iterations++;
    }
}

void ranks_open(ranks *t) {
    memset(t, 0, sizeof *t);
    for (int r = 0; r < RANKS_MOST; r++) {
        t->expected[r] = calloc(1, sizeof(results));
        CHECK(t->expected[r] != NULL);
    }
}

void ranks_close(ranks *t) {
    for (int r = 0; r < RANKS_MOST; r++)
        free(t->expected[r]);
}
