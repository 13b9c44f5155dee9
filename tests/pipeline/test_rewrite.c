/* tests/pipeline/test_rewrite.c - finding modules, tracing their arguments, replacing and restoring
 * forwards, states of module contexts. */
#include "pipeline/rewrite.h"
#include "tests/pipeline/example.h"
#include "tests/support/fault.h"

#include "base/error.h"
#include "base/port.h"

#include <string.h>

/* --- a model whose forward the tests write ---------------------------------------------------- */

/* A batch with fields of every kind; lists and dictionaries hold more such batches. */
typedef struct nested_batch {
    int sparse, labels, dense;
    const struct nested_batch *inner, *list[3];
} nested_batch;

static const void *get_sparse(const void *b) {
    return &((const nested_batch *)b)->sparse;
}
static const void *get_labels(const void *b) {
    return &((const nested_batch *)b)->labels;
}
static const void *get_dense(const void *b) {
    return &((const nested_batch *)b)->dense;
}
static const void *get_inner(const void *b) {
    return ((const nested_batch *)b)->inner;
}
static const void *get_list(const void *b) {
    return b;
}
static const void *at(const void *b, uint64_t i) {
    return i < 3 ? ((const nested_batch *)b)->list[i] : NULL;
}
static const void *key(const void *b, const char *name) {
    return strcmp(name, "second") == 0 ? ((const nested_batch *)b)->list[2] : NULL;
}

static const hotbed_batch_type nested_batch_type;
static const hotbed_batch_type list_type = {
    .name = "list", .at = at, .key = key, .element = &nested_batch_type};
static const hotbed_field nested_batch_fields[] = {
    {"sparse", get_sparse, NULL},   {"labels", get_labels, NULL},
    {"dense", get_dense, NULL},     {"inner", get_inner, &nested_batch_type},
    {"list", get_list, &list_type},
};
static const hotbed_batch_type nested_batch_type = {
    .name = "batch", .fields = nested_batch_fields, .num_fields = 5};

enum { MODULES = 3 };

/* Modules that record their arguments. */
typedef struct fixture fixture;
struct fixture {
    hotbed_stream *stream;
    hotbed_module modules[MODULES], *list[MODULES];
    hotbed_model leaf, middle, wrapper, root, *leaf_list[1], *middle_list[1], *wrapper_list[1];
    hotbed_postproc trim, hash;
    hotbed_status (*forward)(fixture *l, hotbed_ref batch);
    const void *arguments[MODULES][HOTBED_ARGUMENTS_MOST];
    uint32_t num_arguments[MODULES];
    uint64_t starts[MODULES], computes[MODULES], cancels[MODULES], contexts, trims, launches;
    hotbed_awaitable tensors[MODULES];
    hotbed_status fail;
};

static uint32_t number(const fixture *l, const void *self) {
    return (uint32_t)((const hotbed_module *)self - l->modules);
}

static fixture *current;

static hotbed_status make_context(void *self, hotbed_stream *stream, void **context) {
    current->contexts++;
    *context = self;
    return HOTBED_OK;
}
static void free_context(void *self, void *context) {
    current->contexts--;
}
static hotbed_status wait_tensors(void *self, hotbed_stream *stream, void **result) {
    *result = self;
    return HOTBED_OK;
}
static hotbed_status wait_splits(void *self, hotbed_stream *stream, void **result) {
    hotbed_awaitable *tensors = &current->tensors[number(current, self)];
    *tensors = (hotbed_awaitable){wait_tensors, self};
    *result = tensors;
    return HOTBED_OK;
}
static hotbed_status input_dist(
    void *self, void *context, const void *const *arguments, uint32_t n, hotbed_stream *stream,
    hotbed_awaitable *splits) {
    uint32_t m = number(current, self);
    if (current->fail != HOTBED_OK)
        return hotbed_fail(current->fail, "input_dist was asked to fail");
    current->starts[m]++;
    current->num_arguments[m] = n;
    for (uint32_t i = 0; i < n; i++)
        current->arguments[m][i] = arguments[i];
    *splits = (hotbed_awaitable){wait_splits, self};
    return HOTBED_OK;
}
static hotbed_status compute(
    void *self, void *context, void *input, hotbed_stream *stream, const void **output) {
    CHECK(input == self);
    current->computes[number(current, self)]++;
    *output = self;
    return HOTBED_OK;
}
static hotbed_status cancel(void *self, void *context, hotbed_stream *stream) {
    current->cancels[number(current, self)]++;
    return HOTBED_OK;
}

static const hotbed_module_calls calls = {
    .context_create = make_context,
    .context_destroy = free_context,
    .input_dist = input_dist,
    .compute_and_output_dist = compute,
    .cancel = cancel};

static hotbed_status run_trim(
    void *self, uint32_t set, const void *const *arguments, uint32_t n, hotbed_stream *stream,
    const void **output) {
    fixture *l = self;
    l->trims++;
    *output = arguments[n - 1];
    return HOTBED_OK;
}

static hotbed_status forward(void *self, hotbed_ref batch, hotbed_stream *stream) {
    fixture *l = self;
    return l->forward(l, batch);
}

static void fixture_open(
    fixture *l, hotbed_backend backend, hotbed_status (*run)(fixture *, hotbed_ref)) {
    static const char *const names[MODULES] = {"users", "items", "shops"};
    memset(l, 0, sizeof *l);
    current = l;
    CHECK_OK(hotbed_stream_create(backend, 0, &l->stream));
    for (int m = 0; m < MODULES; m++) {
        CHECK_OK(hotbed_module_init(&l->modules[m], names[m], &calls, &l->modules[m]));
        l->list[m] = &l->modules[m];
    }
    l->forward = run;
    l->trim = (hotbed_postproc){.name = "trim", .call = run_trim, .self = l};
    l->hash = (hotbed_postproc){.name = "hash", .call = run_trim, .self = l};
    l->leaf = (hotbed_model){.name = "sparse", .modules = l->list + 1, .num_modules = 2};
    l->leaf_list[0] = &l->leaf;
    l->middle = (hotbed_model){
        .name = "over",
        .modules = l->list,
        .num_modules = 1,
        .models = l->leaf_list,
        .num_models = 1,
        .forward = forward,
        .self = l};
    l->middle_list[0] = &l->middle;
    l->wrapper = (hotbed_model){.models = l->middle_list, .num_models = 1};
    l->wrapper_list[0] = &l->wrapper;
    l->root = (hotbed_model){.name = "", .models = l->wrapper_list, .num_models = 1};
}

static void fixture_close(fixture *l) {
    for (int m = 0; m < MODULES; m++)
        hotbed_module_close(&l->modules[m]);
    CHECK_EQ(l->contexts, 0);
    hotbed_stream_destroy(l->stream);
}

static hotbed_status create(fixture *l, hotbed_rewrite_kind kind, hotbed_rewrite **out) {
    return hotbed_rewrite_create(&l->root, &nested_batch_type, 2, kind, l->stream, out);
}

static hotbed_rewrite *rewrite(fixture *l) {
    hotbed_rewrite *r;
    CHECK_OK(create(l, HOTBED_FORWARD_PIPELINED, &r));
    return r;
}

static void check_report(
    hotbed_rewrite *r, uint32_t m, const char *name, bool pipelined, const char *text) {
    hotbed_rewrite_report report = {.size = sizeof report};
    CHECK_OK(hotbed_rewrite_module(r, m, &report));
    CHECK_STRING(report.module, name);
    CHECK_STRING(report.text, text);
    CHECK_EQ(report.pipelined, pipelined);
}

static hotbed_status call(fixture *l, int m, hotbed_ref argument) {
    hotbed_ref output;
    return hotbed_module_forward(&l->modules[m], &argument, 1, l->stream, &output);
}

/* --- tracing -------------------------------------------------------------------------------- */

static const int constant = 7;

static hotbed_status nested_forward(fixture *l, hotbed_ref batch) {
    hotbed_ref inner = hotbed_ref_field(batch, "inner");
    hotbed_ref list = hotbed_ref_field(inner, "list");
    hotbed_ref arguments[2] = {
        hotbed_ref_field(hotbed_ref_at(list, 1), "sparse"), hotbed_ref_constant(batch, &constant)};
    hotbed_ref output, trimmed, hashed,
        of = hotbed_ref_field(hotbed_ref_key(list, "second"), "dense");
    HOTBED_TRY(hotbed_module_forward(&l->modules[0], arguments, 2, l->stream, &output));
    HOTBED_TRY(hotbed_postproc_call(&l->trim, &of, 1, l->stream, &trimmed));
    HOTBED_TRY(hotbed_postproc_call(&l->hash, &trimmed, 1, l->stream, &hashed));
    HOTBED_TRY(call(l, 1, hashed));
    return call(l, 2, trimmed); /* the previous module shares the postproc */
}

static void nested_paths_constants_and_postprocs_are_traced(hotbed_backend backend) {
    fixture l;
    nested_batch nested[4] = {{0}};
    fixture_open(&l, backend, nested_forward);
    nested[0].inner = &nested[1];
    nested[1].list[1] = &nested[2];
    nested[1].list[2] = &nested[3];
    hotbed_counters before = hotbed_test_counters();
    hotbed_rewrite *r = rewrite(&l);
    hotbed_counters after = hotbed_test_counters();
    CHECK_EQ(after.launches, before.launches); /* a trace enqueues nothing */
    CHECK_EQ(after.copies, before.copies);
    CHECK_EQ(hotbed_rewrite_modules(r), 3);
    check_report(r, 0, "over.users", true, "batch.inner.list[1].sparse, constant");
    check_report(r, 1, "over.sparse.items", true, "hash(trim(batch.inner.list['second'].dense))");
    check_report(r, 2, "over.sparse.shops", true, "trim(batch.inner.list['second'].dense)");
    CHECK_OK(hotbed_context_start(r, 0, &nested[0], l.stream));
    CHECK(l.arguments[0][0] == &nested[2].sparse);
    CHECK(l.arguments[0][1] == &constant);
    CHECK_EQ(l.num_arguments[0], 2);
    CHECK(l.arguments[1][0] == &nested[3].dense);
    CHECK(l.arguments[2][0] == &nested[3].dense);
    CHECK_EQ(l.trims, 2); /* trim and hash, once each */
    CHECK_OK(hotbed_context_wait(r, 0, l.stream));
    CHECK_OK(hotbed_context_forward(r, 0, &nested[0], l.stream));
    CHECK_EQ(l.trims, 2); /* served from the context */
    for (int m = 0; m < MODULES; m++)
        CHECK_EQ(l.computes[m], 1);
    CHECK_OK(hotbed_context_finish(r, 0, false, l.stream));
    CHECK_OK(hotbed_context_dequeue(r, 0, l.stream));
    CHECK_OK(hotbed_context_start(r, 0, &nested[0], l.stream));
    CHECK_EQ(l.trims, 4); /* again for the next batch */
    nested[1].list[1] = NULL;
    CHECK_STATUS(hotbed_context_start(r, 1, &nested[0], l.stream), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "batch.inner.list[1]") != NULL);
    hotbed_rewrite_destroy(r);
    fixture_close(&l);
}

static hotbed_status opaque_forward(fixture *l, hotbed_ref batch) {
    hotbed_ref sparse = hotbed_ref_field(batch, "sparse"), output, mixed;
    HOTBED_TRY(hotbed_module_forward(&l->modules[0], &sparse, 1, l->stream, &output));
    HOTBED_TRY(hotbed_postproc_call(&l->trim, &output, 1, l->stream, &mixed));
    HOTBED_TRY(call(l, 1, mixed));
    return call(l, 2, hotbed_ref_computed(batch, &constant, "tokens of the decoder"));
}

static void arguments_that_need_the_model_are_reported(hotbed_backend backend) {
    fixture l;
    const nested_batch b = {0};
    fixture_open(&l, backend, opaque_forward);
    hotbed_rewrite *r = rewrite(&l);
    check_report(r, 0, "over.users", true, "batch.sparse");
    check_report(
        r, 1, "over.sparse.items", false, "an argument needs the model: the output of a module");
    check_report(
        r, 2, "over.sparse.shops", false, "an argument needs the model: tokens of the decoder");
    CHECK_OK(hotbed_context_start(r, 0, &b, l.stream));
    CHECK_OK(hotbed_context_wait(r, 0, l.stream));
    CHECK_EQ(l.starts[1], 0);
    CHECK_OK(hotbed_context_forward(r, 0, &b, l.stream));
    CHECK_EQ(l.starts[1], 1); /* by its plain forward */
    CHECK_EQ(l.computes[1], 1);
    CHECK_EQ(l.computes[2], 1);
    CHECK_OK(hotbed_context_finish(r, 0, false, l.stream));
    CHECK_OK(hotbed_context_dequeue(r, 0, l.stream));
    CHECK_EQ(l.cancels[1], 1);
    hotbed_rewrite_destroy(r);
    fixture_close(&l);
}

static hotbed_status odd_forward(fixture *l, hotbed_ref batch) {
    hotbed_ref sparse = hotbed_ref_field(batch, "sparse"), dense = hotbed_ref_field(batch, "dense");
    hotbed_ref one, other;
    HOTBED_TRY(call(l, 0, sparse));
    HOTBED_TRY(call(l, 0, sparse));
    HOTBED_TRY(hotbed_postproc_call(&l->trim, &sparse, 1, l->stream, &one));
    HOTBED_TRY(hotbed_postproc_call(&l->trim, &dense, 1, l->stream, &other));
    return call(l, 1, other);
}

static hotbed_status trained_forward(fixture *l, hotbed_ref batch) {
    hotbed_ref sparse = hotbed_ref_field(batch, "sparse"), trimmed, hashed;
    HOTBED_TRY(hotbed_postproc_call(&l->trim, &sparse, 1, l->stream, &trimmed));
    HOTBED_TRY(hotbed_postproc_call(&l->hash, &trimmed, 1, l->stream, &hashed));
    HOTBED_TRY(call(l, 0, trimmed));
    HOTBED_TRY(call(l, 1, hashed));
    return call(l, 2, hotbed_ref_field(batch, "nothing"));
}

static void unusual_calls_are_reported(hotbed_backend backend) {
    fixture l;
    fixture_open(&l, backend, odd_forward);
    hotbed_rewrite *r = rewrite(&l);
    check_report(r, 0, "over.users", false, "the model's forward calls it more than once");
    check_report(
        r, 1, "over.sparse.items", false,
        "an argument comes from postproc trim, which is called with different arguments");
    check_report(r, 2, "over.sparse.shops", false, "the model's forward did not call it");
    hotbed_rewrite_destroy(r);
    fixture_close(&l);
    fixture_open(&l, backend, trained_forward);
    l.hash.trainable = true;
    r = rewrite(&l);
    check_report(r, 0, "over.users", true, "trim(batch.sparse)");
    check_report(
        r, 1, "over.sparse.items", false,
        "an argument comes from postproc hash, which training changes");
    check_report(
        r, 2, "over.sparse.shops", false, "an argument needs the model: a field that is not there");
    hotbed_rewrite_destroy(r);
    fixture_close(&l);
}

static hotbed_status local_text_forward(fixture *l, hotbed_ref batch) {
    char text[16] = "second";
    hotbed_ref list = hotbed_ref_field(batch, "list"), element = hotbed_ref_key(list, text);
    HOTBED_TRY(call(l, 0, hotbed_ref_field(element, "sparse")));
    (void)strcpy(text, "tokens");
    HOTBED_TRY(call(l, 1, hotbed_ref_computed(batch, &constant, text)));
    memset(text, 'x', sizeof text - 1); /* as later calls overwrite the stack */
    return HOTBED_OK;
}

/* Keys and reasons that a model builds in local arrays are copied. */
static void texts_of_a_model_need_not_outlive_its_forward(hotbed_backend backend) {
    fixture l;
    nested_batch nested[2] = {{0}};
    fixture_open(&l, backend, local_text_forward);
    nested[0].list[2] = &nested[1];
    hotbed_rewrite *r = rewrite(&l);
    check_report(r, 0, "over.users", true, "batch.list['second'].sparse");
    check_report(r, 1, "over.sparse.items", false, "an argument needs the model: tokens");
    CHECK_OK(hotbed_context_start(r, 0, &nested[0], l.stream));
    CHECK(l.arguments[0][0] == &nested[1].sparse);
    hotbed_rewrite_destroy(r);
    fixture_close(&l);
}

static void create_survives_any_allocation(hotbed_backend backend) {
    fixture l;
    fixture_open(&l, backend, local_text_forward);
    uint64_t failures = 0;
    for (uint64_t n = 1;; n++) {
        hotbed_rewrite *r = NULL;
        fault_arm(n);
        hotbed_status status = create(&l, HOTBED_FORWARD_PIPELINED, &r);
        bool failed = fault_disarm();
        if (!failed)
            CHECK_OK(status);
        hotbed_rewrite_destroy(r);
        if (!failed)
            break;
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(r == NULL);
        CHECK(l.modules[0].owner == NULL);
        failures++;
    }
    CHECK(failures > 3); /* the rewrite, two texts, the contexts */
    fixture_close(&l);
}

/* --- forward hooks -------------------------------------------------------------------------- */

static hotbed_status plain_calls(fixture *l, hotbed_ref batch) {
    for (int m = 0; m < MODULES; m++)
        HOTBED_TRY(call(l, m, hotbed_ref_field(batch, "sparse")));
    return HOTBED_OK;
}

static bool same_forward(hotbed_forward a, hotbed_forward b) {
    return a.call == b.call && a.self == b.self;
}

static void forwards_are_restored(hotbed_backend backend) {
    fixture l;
    hotbed_forward before[MODULES], pipelined[MODULES];
    const nested_batch b = {0};
    fixture_open(&l, backend, plain_calls);
    for (int m = 0; m < MODULES; m++)
        before[m] = l.modules[m].forward;
    hotbed_rewrite *r = rewrite(&l), *other;
    for (int m = 0; m < MODULES; m++) {
        pipelined[m] = l.modules[m].forward;
        CHECK(!same_forward(pipelined[m], before[m]));
    }
    CHECK_STATUS(create(&l, HOTBED_FORWARD_PIPELINED, &other), HOTBED_ERR_STATE);
    CHECK(other == NULL);
    CHECK(same_forward(l.modules[0].forward, pipelined[0]));
    CHECK_STATUS(hotbed_rewrite_attach(r), HOTBED_ERR_STATE);
    /* detach with a batch in flight, call a plain forward, then continue the batch */
    CHECK_OK(hotbed_context_start(r, 1, &b, l.stream));
    CHECK_OK(hotbed_rewrite_detach(r));
    for (int m = 0; m < MODULES; m++)
        CHECK(same_forward(l.modules[m].forward, before[m]));
    CHECK_OK(plain_calls(&l, hotbed_ref_batch(&nested_batch_type, &b)));
    CHECK_EQ(l.computes[0], 1);
    CHECK_STATUS(hotbed_rewrite_detach(r), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_rewrite_attach(r));
    for (int m = 0; m < MODULES; m++)
        CHECK(same_forward(l.modules[m].forward, pipelined[m]));
    CHECK_OK(hotbed_context_wait(r, 1, l.stream));
    CHECK_OK(hotbed_context_forward(r, 1, &b, l.stream));
    CHECK_EQ(l.computes[0], 2);
    /* a change by someone else is detected, and nothing is restored over it */
    l.modules[1].forward.self = &l;
    CHECK_STATUS(hotbed_rewrite_detach(r), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "over.sparse.items") != NULL);
    CHECK(same_forward(l.modules[0].forward, pipelined[0]));
    l.modules[1].forward = pipelined[1];
    hotbed_rewrite_destroy(r);
    for (int m = 0; m < MODULES; m++)
        CHECK(same_forward(l.modules[m].forward, before[m]));
    fixture_close(&l);
}

static hotbed_status trim_users(fixture *l, hotbed_ref batch) {
    hotbed_ref sparse = hotbed_ref_field(batch, "sparse"), trimmed;
    HOTBED_TRY(hotbed_postproc_call(&l->trim, &sparse, 1, l->stream, &trimmed));
    return call(l, 0, trimmed);
}

static hotbed_status trim_items(fixture *l, hotbed_ref batch) {
    hotbed_ref sparse = hotbed_ref_field(batch, "sparse"), trimmed;
    HOTBED_TRY(hotbed_postproc_call(&l->trim, &sparse, 1, l->stream, &trimmed));
    return call(l, 1, trimmed);
}

/* Two models with different modules share a postproc. Only one rewrite at a time runs it ahead, because its results
 * are found through its owner. */
static void a_postproc_belongs_to_one_rewrite(hotbed_backend backend) {
    static const char refused[] = "postproc 'trim' is run ahead by another rewrite";
    fixture l;
    nested_batch b = {0};
    hotbed_rewrite *users, *items;
    fixture_open(&l, backend, trim_users);
    users = rewrite(&l);
    l.forward = trim_items;
    CHECK_STATUS(create(&l, HOTBED_FORWARD_PIPELINED, &items), HOTBED_ERR_STATE);
    CHECK_STRING(hotbed_last_error(), refused);
    CHECK(items == NULL);
    CHECK(l.trim.owner == users);
    CHECK(l.modules[1].owner == NULL); /* nothing is attached */
    CHECK_OK(hotbed_rewrite_detach(users));
    CHECK(l.trim.owner == NULL);
    items = rewrite(&l);
    CHECK_STATUS(hotbed_rewrite_attach(users), HOTBED_ERR_STATE);
    CHECK_STRING(hotbed_last_error(), refused);
    CHECK(l.modules[0].owner == NULL);
    CHECK_OK(hotbed_context_start(items, 0, &b, l.stream));
    CHECK_EQ(l.trims, 1);
    CHECK_OK(hotbed_context_wait(items, 0, l.stream));
    CHECK_OK(hotbed_context_forward(items, 0, &b, l.stream));
    CHECK_EQ(l.trims, 1); /* served from the context */
    CHECK_OK(hotbed_context_cancel(items, 0, l.stream));
    hotbed_rewrite_destroy(items);
    CHECK_OK(hotbed_rewrite_attach(users));
    CHECK(l.trim.owner == users);
    hotbed_rewrite_destroy(users);
    CHECK(l.trim.owner == NULL);
    fixture_close(&l);
}

/* --- states of module contexts -------------------------------------------------------------- */

static hotbed_status twice_forward(fixture *l, hotbed_ref batch) {
    HOTBED_TRY(plain_calls(l, batch));
    return hotbed_ref_traced(batch) ? HOTBED_OK : plain_calls(l, batch);
}

static void check_state(hotbed_rewrite *r, hotbed_cell_state expected) {
    for (uint32_t m = 0; m < MODULES; m++)
        CHECK_EQ(r->contexts[0].cells[m].state, expected);
}

/* Each stage in each state: it does its work, or returns an error and changes nothing. */
static void cells_follow_their_states(hotbed_backend backend) {
    const nested_batch b = {0};
    for (int kind = 0; kind < 2; kind++) {
        fixture l;
        hotbed_rewrite *r;
        fixture_open(&l, backend, plain_calls);
        CHECK_OK(create(&l, kind == 0 ? HOTBED_FORWARD_PIPELINED : HOTBED_FORWARD_PREFETCH, &r));
        for (int at_state = HOTBED_CELL_EMPTY; at_state <= HOTBED_CELL_BACKWARD; at_state++) {
            hotbed_cell_state now = (hotbed_cell_state)at_state;
            if (kind == 0 && now == HOTBED_CELL_PREFETCHED)
                continue;
            check_state(r, now);
            bool forward_next = now == (kind == 0 ? HOTBED_CELL_TENSORS : HOTBED_CELL_PREFETCHED);
            if (now != HOTBED_CELL_EMPTY)
                CHECK_STATUS(hotbed_context_start(r, 0, &b, l.stream), HOTBED_ERR_STATE);
            if (now != HOTBED_CELL_STARTED)
                CHECK_STATUS(hotbed_context_wait(r, 0, l.stream), HOTBED_ERR_STATE);
            if (now != HOTBED_CELL_TENSORS)
                CHECK_STATUS(hotbed_context_prefetch(r, 0, l.stream), HOTBED_ERR_STATE);
            if (!forward_next)
                CHECK_STATUS(hotbed_context_forward(r, 0, &b, l.stream), HOTBED_ERR_STATE);
            if (now != HOTBED_CELL_CONSUMED)
                CHECK_STATUS(hotbed_context_finish(r, 0, true, l.stream), HOTBED_ERR_STATE);
            if (now != HOTBED_CELL_BACKWARD) {
                CHECK_STATUS(hotbed_context_dequeue(r, 0, l.stream), HOTBED_ERR_STATE);
                CHECK(
                    strstr(
                        hotbed_last_error(), "module 'over.users' of batch 0 of context 0 is ") !=
                    NULL);
                CHECK(strstr(hotbed_last_error(), hotbed_cell_state_name(now)) != NULL);
            }
            check_state(r, now);
            if (now == HOTBED_CELL_EMPTY)
                CHECK_OK(hotbed_context_start(r, 0, &b, l.stream));
            else if (now == HOTBED_CELL_STARTED)
                CHECK_OK(hotbed_context_wait(r, 0, l.stream));
            else if (forward_next)
                CHECK_OK(hotbed_context_forward(r, 0, &b, l.stream));
            else if (now == HOTBED_CELL_TENSORS)
                CHECK_OK(hotbed_context_prefetch(r, 0, l.stream));
            else if (now == HOTBED_CELL_CONSUMED)
                CHECK_OK(hotbed_context_finish(r, 0, true, l.stream));
            else
                CHECK_OK(hotbed_context_dequeue(r, 0, l.stream));
        }
        check_state(r, HOTBED_CELL_EMPTY);
        CHECK_EQ(l.cancels[0], 1); /* these modules have no backward */
        CHECK_OK(hotbed_context_start(r, 0, &b, l.stream));
        CHECK_OK(hotbed_context_cancel(r, 0, l.stream)); /* allowed in any state */
        CHECK_EQ(l.cancels[0], 2);
        check_state(r, HOTBED_CELL_EMPTY);
        CHECK_EQ(hotbed_load_relaxed_u64(&r->exchanges), 6);
        CHECK_STATUS(hotbed_context_start(r, 0, NULL, l.stream), HOTBED_ERR_ARGUMENT);
        CHECK_STRING(hotbed_cell_state_name((hotbed_cell_state)77), "UNKNOWN");
        hotbed_rewrite_destroy(r);
        fixture_close(&l);
    }
}

static void a_forward_consumes_a_module_once(hotbed_backend backend) {
    fixture l;
    const nested_batch b = {0};
    fixture_open(&l, backend, twice_forward);
    hotbed_rewrite *r = rewrite(&l);
    CHECK_OK(hotbed_context_start(r, 0, &b, l.stream));
    CHECK_OK(hotbed_context_wait(r, 0, l.stream));
    CHECK_STATUS(hotbed_context_forward(r, 0, &b, l.stream), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "'over.users' was consumed") != NULL);
    CHECK_STATUS(plain_calls(&l, hotbed_ref_batch(&nested_batch_type, &b)), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "no context is bound") != NULL);
    hotbed_rewrite_destroy(r);
    fixture_close(&l);
}

static void bad_arguments(hotbed_backend backend) {
    fixture l;
    hotbed_rewrite *r;
    hotbed_module module;
    hotbed_ref ref = {0}, output;
    const hotbed_module_calls none = {0};
    fixture_open(&l, backend, plain_calls);
    const hotbed_model empty = {.name = "empty"};
    CHECK_STATUS(
        hotbed_rewrite_create(
            &empty, &nested_batch_type, 2, HOTBED_FORWARD_PIPELINED, l.stream, &r),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_module_init(&module, "m", &none, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_module_init(NULL, "m", &calls, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_module_backward(&l.modules[0], l.stream), HOTBED_ERR_STATE);
    CHECK_STATUS(
        hotbed_module_forward(&l.modules[0], &ref, 0, l.stream, &output), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_module_forward(&l.modules[0], &ref, 1, l.stream, &output), HOTBED_ERR_ARGUMENT);
    l.fail = HOTBED_ERR_COMM;
    const nested_batch b = {0};
    r = rewrite(&l);
    CHECK_STATUS(hotbed_context_start(r, 0, &b, l.stream), HOTBED_ERR_COMM);
    hotbed_rewrite_destroy(r);
    fixture_close(&l);
}

const hotbed_test hotbed_tests[] = {
    {TEST(nested_paths_constants_and_postprocs_are_traced)},
    {TEST(arguments_that_need_the_model_are_reported)},
    {TEST(unusual_calls_are_reported)},
    {TEST(texts_of_a_model_need_not_outlive_its_forward)},
    {TEST(create_survives_any_allocation)},
    {TEST(forwards_are_restored)},
    {TEST(a_postproc_belongs_to_one_rewrite)},
    {TEST(cells_follow_their_states)},
    {TEST(a_forward_consumes_a_module_once)},
    {TEST(bad_arguments)},
    {NULL, NULL},
};
