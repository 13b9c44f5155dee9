/* tests/pipeline/test_train_ranks.c - sharded collections under every plan, on 1, 2 and 4 ranks.
 *
 * Two collections, a sequence and a pooled one, in a model whose gradients are its outputs.  Ranks
 * are threads, each with batches of its own and its own sizes.  Every plan gives the bytes of the
 * plain loop, rank by rank.
 */
#include "hotbed/balance.h"
#include "hotbed/sharded_module.h"
#include "hotbed/timeline.h"
#include "hotbed/train.h"
#include "tests/support/harness.h"

#include "base/error.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS_MOST = 4,
    COLLECTIONS = 2,
    FEATURES = 2,
    SAMPLES = 8, /* most; rank r has SAMPLES - r */
    KEYS = FEATURES * SAMPLES,
    DIM = 4,
    KEY_SPACE = 50,
    BATCHES = 14,
    DEPTH = 4,
    ROWS = KEYS * DIM, /* floats of an output, at most */
};

typedef struct batch {
    hotbed_kjt kjts[COLLECTIONS];
    uint64_t number;
} batch;

typedef float results[BATCHES][COLLECTIONS][ROWS];

typedef struct team team;

/* What a rank has. */
typedef struct rank {
    team *all;
    uint32_t number;
    hotbed_comm *comm, *agreeing;
    hotbed_stream *stream;
    hotbed_sharded *collections[COLLECTIONS];
    hotbed_sharded_modules *modules;
    hotbed_module *module_list[COLLECTIONS];
    hotbed_model model;
    hotbed_trainer trainer;
    hotbed_memory memory;
    int64_t *keys[BATCHES][COLLECTIONS]; /* pinned */
    int64_t *slot_keys[DEPTH][COLLECTIONS];
    batch batches[BATCHES], slots[DEPTH];
    const hotbed_sharded_output *outputs[DEPTH][COLLECTIONS];
    float (*kept)[COLLECTIONS][ROWS]; /* pinned: of each batch */
    hotbed_memory kept_memory;
    hotbed_balance *balances[DEPTH];
    uint64_t next, limit, iterations, fails_at;
    hotbed_status status;
    char text[512];
} rank;

struct team {
    hotbed_backend backend;
    uint32_t size;
    hotbed_plan exchange;
    const char *plan;
    bool shuffled; /* samples of the pooled collection are dealt out anew */
    rank ranks[RANKS_MOST];
    results *expected[RANKS_MOST];
};

/* --- model and trainer ------------------------------------------------------------------------ */

static const void *get_first(const void *b) {
    return &((const batch *)b)->kjts[0];
}
static const void *get_second(const void *b) {
    return &((const batch *)b)->kjts[1];
}
static const hotbed_field fields[] = {
    {"sequence", HOTBED_FIELD_JAGGED, false, get_first, NULL},
    {"pooled", HOTBED_FIELD_JAGGED, false, get_second, NULL}};
static const hotbed_batch_type batch_type = {
    .name = "batch", .fields = fields, .num_fields = COLLECTIONS};

/* The second module first: a model need not call them in the order of their set. */
static hotbed_status forward(void *self, hotbed_ref b, hotbed_stream *stream) {
    rank *r = self;
    for (int m = COLLECTIONS; m-- > 0;) {
        const hotbed_ref argument = hotbed_ref_field(b, fields[m].name);
        hotbed_ref output;
        HOTBED_TRY(hotbed_module_forward(r->module_list[m], &argument, 1, stream, &output));
        if (hotbed_ref_traced(b))
            continue;
        for (int slot = 0; slot < DEPTH; slot++)
            if (hotbed_ref_data(b) == &r->slots[slot])
                r->outputs[slot][m] = hotbed_ref_data(output);
    }
    return HOTBED_OK;
}

static hotbed_status copy_batch(
    void *self, uint32_t slot, void *host, hotbed_stream *stream, void **out) {
    rank *r = self;
    const batch *from = host;
    batch *to = &r->slots[slot];
    to->number = from == NULL ? BATCHES : from->number;
    for (int c = 0; c < COLLECTIONS; c++) {
        hotbed_kjt *kjt = &to->kjts[c];
        *kjt = from == NULL ? r->batches[0].kjts[c] : from->kjts[c];
        kjt->keys = r->slot_keys[slot][c];
        if (from == NULL)
            kjt->batch_size = 0;
        kjt->num_keys = (uint64_t)kjt->batch_size * FEATURES;
        if (from != NULL)
            HOTBED_TRY(hotbed_copy(
                r->slot_keys[slot][c], from->kjts[c].keys, kjt->num_keys * sizeof(int64_t),
                stream));
    }
    *out = to;
    return HOTBED_OK;
}

static hotbed_status shuffle_start(void *self, uint32_t slot, void *b, hotbed_stream *stream) {
    const rank *r = self;
    CHECK(b != NULL);
    return hotbed_balance_start(r->balances[slot], &((batch *)b)->kjts[1], NULL, stream);
}

static hotbed_status shuffle_finish(
    void *self, uint32_t slot, void *b, hotbed_stream *stream, void **out) {
    const rank *r = self;
    hotbed_balanced balanced;
    CHECK(b != NULL);
    HOTBED_TRY(hotbed_balance_finish(r->balances[slot], &balanced, stream));
    ((batch *)b)->kjts[1] = balanced.kjt;
    *out = b;
    return HOTBED_OK;
}

static hotbed_status keep(void *self, uint32_t slot, void *b, hotbed_stream *stream) {
    rank *r = self;
    CHECK(b != NULL);
    uint64_t number = ((const batch *)b)->number;
    if (r->fails_at == number + 1)
        return hotbed_fail(HOTBED_ERR_RANGE, "the loss is nan");
    for (int c = 0; c < COLLECTIONS && number < BATCHES; c++)
        HOTBED_TRY(hotbed_copy(
            r->kept[number][c], r->outputs[slot][c]->rows, r->outputs[slot][c]->bytes, stream));
    return HOTBED_OK;
}

static hotbed_status gradients(void *self, uint32_t slot, void *b, hotbed_stream *stream) {
    rank *r = self;
    (void)b;
    for (int c = 0; c < COLLECTIONS; c++)
        HOTBED_TRY(hotbed_copy(
            r->outputs[slot][c]->gradient, r->outputs[slot][c]->rows, r->outputs[slot][c]->bytes,
            stream));
    return HOTBED_OK;
}

/* --- ranks ------------------------------------------------------------------------------------ */

static void open_collection(rank *r, int c) {
    static const char *const names[COLLECTIONS][FEATURES] = {{"user", "item"}, {"shop", "city"}};
    hotbed_table_options tables[FEATURES];
    hotbed_storage_options storage;
    hotbed_sharded_options options;
    for (int t = 0; t < FEATURES; t++) {
        hotbed_table_options_init(&tables[t]);
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
    options.max_batch_size = SAMPLES;
    options.max_keys = (uint64_t)r->all->size * KEYS; /* as many as a shuffle may give */
    CHECK_OK(hotbed_sharded_create(&options, r->comm, r->stream, &r->collections[c]));
}

static void open_batches(rank *r) {
    size_t host = (size_t)BATCHES * COLLECTIONS * KEYS * sizeof(int64_t);
    size_t slots = (size_t)DEPTH * COLLECTIONS * KEYS * sizeof(int64_t);
    uint64_t random = hotbed_test_seed() * 1000 + r->number;
    CHECK_OK(hotbed_memory_alloc(r->stream, HOTBED_MEMORY_PINNED, host + slots, NULL, &r->memory));
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
            hotbed_kjt_init(kjt);
            kjt->num_features = FEATURES;
            kjt->batch_size = SAMPLES - r->number;
            kjt->num_keys = (uint64_t)kjt->batch_size * FEATURES;
            kjt->keys = at;
        }
    }
    for (int slot = 0; slot < DEPTH; slot++)
        for (int c = 0; c < COLLECTIONS; c++, at += KEYS)
            r->slot_keys[slot][c] = at;
}

static void open_balances(rank *r) {
    hotbed_balance_options options;
    hotbed_balance_options_init(&options);
    options.num_features = FEATURES;
    options.batch_size = SAMPLES;
    options.max_keys = KEYS;
    for (int slot = 0; slot < DEPTH; slot++)
        CHECK_OK(hotbed_balance_create(&options, r->comm, r->stream, &r->balances[slot]));
    r->trainer.shuffle_start = shuffle_start;
    r->trainer.shuffle_finish = shuffle_finish;
}

static void rank_open(rank *r) {
    static const char *const names[] = {"sequence", "pooled"};
    CHECK_OK(hotbed_stream_create(r->all->backend, 0, &r->stream));
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
    hotbed_trainer_init(&r->trainer);
    r->trainer.model = &r->model;
    r->trainer.batch = &batch_type;
    r->trainer.self = r;
    r->trainer.copy_batch = copy_batch;
    r->trainer.loss = keep;
    r->trainer.dense_backward = gradients;
    if (r->all->shuffled)
        open_balances(r);
}

static void rank_close(rank *r) {
    CHECK_OK(hotbed_stream_sync(r->stream));
    hotbed_sharded_modules_destroy(r->modules);
    for (int slot = 0; slot < DEPTH; slot++)
        hotbed_balance_destroy(r->balances[slot]);
    for (int c = 0; c < COLLECTIONS; c++)
        hotbed_sharded_destroy(r->collections[c]);
    hotbed_memory_free(&r->memory);
    hotbed_memory_free(&r->kept_memory);
    hotbed_stream_destroy(r->stream);
}

static uint64_t pinned_rows(rank *r) {
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

static void run_team(
    hotbed_backend backend, uint32_t size, hotbed_plan exchange, const char *plan,
    void *(*body)(void *rank), team *t) {
    hotbed_comm *comms[RANKS_MOST], *agreeing[RANKS_MOST];
    pthread_t threads[RANKS_MOST];
    memset(t->ranks, 0, sizeof t->ranks);
    t->backend = backend;
    t->size = size;
    t->exchange = exchange;
    t->plan = plan;
    CHECK_OK(hotbed_comm_create_threads(NULL, size, comms));
    CHECK_OK(hotbed_comm_create_threads(NULL, size, agreeing));
    for (uint32_t r = 0; r < size; r++) {
        t->ranks[r].all = t;
        t->ranks[r].number = r;
        t->ranks[r].comm = comms[r];
        t->ranks[r].agreeing = agreeing[r];
        CHECK_EQ(pthread_create(&threads[r], NULL, body, &t->ranks[r]), 0);
    }
    for (uint32_t r = 0; r < size; r++) {
        CHECK_EQ(pthread_join(threads[r], NULL), 0);
        hotbed_comm_destroy(comms[r]);
        hotbed_comm_destroy(agreeing[r]);
    }
}

/* --- bodies ----------------------------------------------------------------------------------- */

/* The plain loop, written out: what all plans are to equal. */
static void *train_plainly(void *argument) {
    rank *r = argument;
    rank_open(r);
    for (int b = 0; b < BATCHES; b++) {
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
    CHECK_EQ(pinned_rows(r), 0);
    rank_close(r);
    return NULL;
}

static hotbed_status next_batch(void *self, void **out, bool *end) {
    rank *r = self;
    *end = r->next == r->limit;
    if (!*end)
        *out = &r->batches[r->next++];
    return HOTBED_OK;
}

static hotbed_train *make_train(rank *r, const hotbed_pipeline_options *pipeline) {
    hotbed_train_options options;
    hotbed_train *train;
    hotbed_train_options_init(&options);
    options.plan = r->all->plan;
    options.backend = r->all->backend;
    if (pipeline != NULL)
        options.pipeline = *pipeline;
    CHECK_OK(hotbed_train_create(&r->trainer, &options, &train));
    return train;
}

static hotbed_status run(rank *r, hotbed_train *train, uint64_t batches) {
    const hotbed_loader loader = {.next = next_batch, .self = r};
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    const hotbed_iteration *iteration;
    r->limit = batches;
    CHECK_OK(hotbed_pipeline_bind(pipeline, &loader));
    for (;;) {
        HOTBED_TRY(hotbed_pipeline_progress(pipeline, &iteration));
        if (iteration == NULL)
            return hotbed_stream_sync(hotbed_pipeline_stream(pipeline));
        r->iterations++;
    }
}

static void *train_by_plan(void *argument) {
    rank *r = argument;
    rank_open(r);
    hotbed_train *train = make_train(r, NULL);
    CHECK_OK(run(r, train, BATCHES));
    CHECK_EQ(r->iterations, BATCHES);
    CHECK_BYTES(r->kept, *r->all->expected[r->number], sizeof(results));
    hotbed_train_destroy(train);
    CHECK_EQ(pinned_rows(r), 0);
    rank_close(r);
    return NULL;
}

static const uint32_t sizes[] = {1, 2, 4};

static void team_open(team *t) {
    memset(t, 0, sizeof *t);
    for (int r = 0; r < RANKS_MOST; r++) {
        t->expected[r] = calloc(1, sizeof(results));
        CHECK(t->expected[r] != NULL);
    }
}

static void team_close(team *t) {
    for (int r = 0; r < RANKS_MOST; r++)
        free(t->expected[r]);
}

static void check_plans(hotbed_backend backend, hotbed_plan exchange, bool all) {
    static team t;
    team_open(&t);
    for (int n = 0; n < 3; n++) {
        const char *plan;
        run_team(backend, sizes[n], exchange, NULL, train_plainly, &t);
        for (uint32_t p = 0; (plan = hotbed_train_plan_name(p)) != NULL; p++)
            if (all || strcmp(plan, "prefetch") == 0 || strcmp(plan, "sparse-dist") == 0)
                run_team(backend, sizes[n], exchange, plan, train_by_plan, &t);
    }
    team_close(&t);
}

static void every_plan_gives_the_bytes_of_the_plain_loop(hotbed_backend backend) {
    check_plans(backend, HOTBED_PLAN_FIXED, true);
}

static void so_with_sizes_that_are_waited_for(hotbed_backend backend) {
    check_plans(backend, HOTBED_PLAN_TWO_PHASE, false);
}

static void and_with_one_sided_exchanges(hotbed_backend backend) {
    check_plans(backend, HOTBED_PLAN_ONE_SIDED, false);
}

/* The jagged plans with a shuffle: balanced over the ranks, in turn with all else that they
 * exchange. */
static void shuffled_batches_give_the_bytes_of_the_plain_loop(hotbed_backend backend) {
    static const char *const plans[] = {"jagged-none",     "jagged-sparse-dist",
                                        "jagged-prefetch", "jagged-prefetch-async",
                                        "sw-serial",       "sw-pipelined"};
    static team t;
    team_open(&t);
    t.shuffled = true;
    for (int n = 0; n < 3; n++) {
        run_team(backend, sizes[n], HOTBED_PLAN_FIXED, NULL, train_plainly, &t);
        for (int p = 0; p < 6; p++)
            run_team(backend, sizes[n], HOTBED_PLAN_FIXED, plans[p], train_by_plan, &t);
    }
    team_close(&t);
}

/* Rank r has 5 + 2 r batches; the ranks without go on with empty ones. */
static void *train_unequally(void *argument) {
    rank *r = argument;
    hotbed_comm_agreement *agreement;
    hotbed_pipeline_options options;
    hotbed_stream *stream;
    uint64_t calls, digest, least = 0;
    rank_open(r);
    CHECK_OK(hotbed_stream_create(r->all->backend, 0, &stream));
    CHECK_OK(hotbed_comm_agreement_create(r->agreeing, stream, &agreement));
    for (int last = 0; last < 2; last++) {
        hotbed_pipeline_options_init(&options);
        options.agreement = hotbed_comm_agreement_of(agreement);
        options.end = last ? HOTBED_END_LAST : HOTBED_END_FIRST;
        hotbed_train *train = make_train(r, &options);
        r->next = 0;
        r->iterations = 0;
        CHECK_OK(run(r, train, 5 + 2 * r->number));
        CHECK_EQ(r->iterations, last ? 5 + 2 * (r->all->size - 1) : 5);
        hotbed_train_destroy(train);
        CHECK_OK(hotbed_comm_log_digest(r->comm, &calls, &digest)); /* all did the same */
        CHECK_OK(options.agreement.least(options.agreement.self, digest, &least));
        CHECK_EQ(least, digest);
        CHECK_OK(options.agreement.least(options.agreement.self, ~digest, &least));
        CHECK_EQ(least, ~digest);
    }
    CHECK_EQ(pinned_rows(r), 0);
    hotbed_comm_agreement_destroy(agreement);
    hotbed_stream_destroy(stream);
    rank_close(r);
    return NULL;
}

static void unequal_ranks_end_together(hotbed_backend backend) {
    static const char *const plans[] = {"prefetch", "jagged-prefetch-async", "sw-pipelined"};
    static team t;
    team_open(&t);
    for (int n = 0; n < 3; n++)
        for (int p = 0; p < 3; p++)
            run_team(backend, sizes[n], HOTBED_PLAN_FIXED, plans[p], train_unequally, &t);
    team_close(&t);
}

/* Evaluation of other batches in between, given up in the middle. */
static void *train_and_evaluate(void *argument) {
    rank *r = argument;
    rank_open(r);
    hotbed_train *train = make_train(r, NULL);
    hotbed_pipeline *pipeline = hotbed_train_pipeline(train);
    const hotbed_loader loader = {.next = next_batch, .self = r};
    const hotbed_iteration *iteration;
    CHECK_OK(run(r, train, 6));
    CHECK_OK(hotbed_train_set_training(train, false));
    CHECK(!hotbed_sharded_training(r->collections[1]));
    r->limit = BATCHES;
    CHECK_OK(hotbed_pipeline_bind(pipeline, &loader));
    for (int i = 0; i < 3; i++)
        CHECK_OK(hotbed_pipeline_progress(pipeline, &iteration));
    CHECK_OK(hotbed_pipeline_drain(pipeline));
    CHECK_EQ(pinned_rows(r), 0);
    CHECK_OK(hotbed_train_set_training(train, true));
    r->next = 6;
    CHECK_OK(run(r, train, BATCHES));
    CHECK_BYTES(r->kept, *r->all->expected[r->number], sizeof(results));
    hotbed_train_destroy(train);
    rank_close(r);
    return NULL;
}

static void evaluation_in_between_changes_nothing(hotbed_backend backend) {
    static const char *const plans[] = {"none", "sparse-dist", "prefetch", "sw-pipelined"};
    static team t;
    team_open(&t);
    for (int n = 0; n < 2; n++) {
        run_team(backend, sizes[n], HOTBED_PLAN_FIXED, NULL, train_plainly, &t);
        for (int p = 0; p < 4; p++)
            run_team(backend, sizes[n], HOTBED_PLAN_FIXED, plans[p], train_and_evaluate, &t);
    }
    team_close(&t);
}

static void revoke(void *self) {
    hotbed_comm_abort(self);
}

/* A task fails on the last rank; the others learn of it by the communicator, and name what they
 * were at. */
static void *train_to_a_failure(void *argument) {
    rank *r = argument;
    hotbed_pipeline_options options;
    rank_open(r);
    r->fails_at = r->number == r->all->size - 1 ? 4 : 0;
    hotbed_pipeline_options_init(&options);
    options.revoke = revoke;
    options.revoke_self = r->comm;
    hotbed_train *train = make_train(r, &options);
    r->status = run(r, train, BATCHES);
    (void)snprintf(r->text, sizeof r->text, "%s", hotbed_last_error());
    hotbed_train_destroy(train);
    rank_close(r);
    return NULL;
}

static void a_failure_ends_all_ranks(hotbed_backend backend) {
    static team t;
    team_open(&t);
    for (int n = 0; n < 3; n++) {
        run_team(backend, sizes[n], HOTBED_PLAN_FIXED, "jagged-prefetch", train_to_a_failure, &t);
        for (uint32_t r = 0; r < sizes[n]; r++) {
            bool failed_here = r == sizes[n] - 1;
            CHECK_EQ(t.ranks[r].status, failed_here ? HOTBED_ERR_RANGE : HOTBED_ERR_COMM);
            if (failed_here)
                CHECK(strstr(t.ranks[r].text, "task loss of iteration 3: the loss is nan") != NULL);
        }
    }
    team_close(&t);
}

const hotbed_test hotbed_tests[] = {
    {"every_plan_gives_the_bytes_of_the_plain_loop", every_plan_gives_the_bytes_of_the_plain_loop},
    {"so_with_sizes_that_are_waited_for", so_with_sizes_that_are_waited_for},
    {"and_with_one_sided_exchanges", and_with_one_sided_exchanges},
    {"shuffled_batches_give_the_bytes_of_the_plain_loop",
     shuffled_batches_give_the_bytes_of_the_plain_loop},
    {"unequal_ranks_end_together", unequal_ranks_end_together},
    {"evaluation_in_between_changes_nothing", evaluation_in_between_changes_nothing},
    {"a_failure_ends_all_ranks", a_failure_ends_all_ranks},
    {NULL, NULL},
};
