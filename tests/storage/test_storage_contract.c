/* tests/storage/test_storage_contract.c - documented errors of hotbed/storage.h, and descriptions of tables.
 *
 * Each error is provoked once, and its text is searched for the wrong value.  Afterwards the storage must train on
 * with the bytes of the model.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "tests/storage/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DIM = 4, CAPACITY = 200, MAX_KEYS = 64, MAX_BATCH = 16 };

/* Check that the last error's text contains `words`. */
static void check_message(const char *words) {
    if (strstr(hotbed_last_error(), words) == NULL)
        (void)fprintf(stderr, "\"%s\" does not have \"%s\"\n", hotbed_last_error(), words);
    CHECK(strstr(hotbed_last_error(), words) != NULL);
}

/* --- create ---------------------------------------------------------------------------------- */

static void refuse(
    hotbed_backend backend, const setup *s, hotbed_status status, const char *words) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_storage *storage = (hotbed_storage *)stream; /* not NULL, to see that create sets it */
    CHECK_STATUS(hotbed_storage_create(&s->options, stream, &storage), status);
    CHECK(storage == NULL);
    check_message(words);
    hotbed_stream_destroy(stream);
}

static void refuse_argument(hotbed_backend backend, const setup *s, const char *words) {
    refuse(backend, s, HOTBED_ERR_ARGUMENT, words);
}

static void create_refuses_null(hotbed_backend backend) {
    setup s;
    hotbed_storage *storage = NULL;
    setup_start(&s, 1, DIM, CAPACITY);
    hotbed_stream *stream = hotbed_test_stream(backend);
    CHECK_STATUS(hotbed_storage_create(NULL, stream, &storage), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_create(&s.options, NULL, &storage), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_create(&s.options, stream, NULL), HOTBED_ERR_ARGUMENT);
    hotbed_storage_destroy(NULL);
    hotbed_ticket_destroy(NULL);
    hotbed_stream_destroy(stream);
}

static void create_refuses_bad_sizes(hotbed_backend backend) {
    setup s;
    setup_start(&s, 2, DIM, CAPACITY);
    s.options.num_tables = 0;
    refuse_argument(backend, &s, "num_tables");
    s.options.num_tables = 65536;
    refuse_argument(backend, &s, "65536");
    s.options.num_tables = 2;
    s.options.tables = NULL;
    refuse_argument(backend, &s, "tables");
    static const uint32_t dims[] = {0, 4097, UINT32_MAX};
    for (int i = 0; i < 3; i++) {
        char value[16];
        setup_start(&s, 2, DIM, CAPACITY);
        s.tables[1].dim = dims[i];
        (void)snprintf(value, sizeof value, "%u", dims[i]);
        refuse_argument(backend, &s, value);
        check_message("dim");
    }
    static const uint64_t capacities[] = {0, (UINT64_C(1) << 36) + 1, UINT64_MAX};
    for (int i = 0; i < 3; i++) {
        char value[32];
        setup_start(&s, 2, DIM, CAPACITY);
        s.tables[1].capacity = capacities[i];
        (void)snprintf(value, sizeof value, "%llu", (unsigned long long)capacities[i]);
        refuse_argument(backend, &s, value);
        check_message("capacity");
    }
}

static void create_refuses_bad_names(hotbed_backend backend) {
    static const char long_name[] =
        "a234567890123456789012345678901234567890123456789012345678901234"; /* 64 */
    const char *const bad[] = {NULL, "", "a b", "a/b", "a\n", "\xc3\xa4", "a:b", "..x/", long_name};
    setup s;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setup_start(&s, 2, DIM, CAPACITY);
        s.tables[1].name = bad[i];
        refuse_argument(backend, &s, "name");
    }
    setup_start(&s, 3, DIM, CAPACITY);
    s.tables[2].name = "table-0";
    refuse_argument(backend, &s, "table-0");
    setup_start(&s, 2, DIM, CAPACITY);
    s.tables[0].name = long_name + 1; /* 63 characters */
    s.tables[1].name = "A.Z_09-z";
    fixture r;
    fixture_open_bare(&r, backend, &s.options);
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(r.storage, 0, &info));
    CHECK_STRING(info.name, long_name + 1);
    fixture_close(&r);
}

static void create_refuses_bad_enums(hotbed_backend backend) {
    setup s;
    setup_start(&s, 1, DIM, CAPACITY);
    s.tables[0].kind = (hotbed_table_kind)2;
    refuse_argument(backend, &s, "kind");
    setup_start(&s, 1, DIM, CAPACITY);
    s.tables[0].dtype = (hotbed_dtype)99;
    refuse_argument(backend, &s, "dtype");
    for (int dtype = HOTBED_F16; dtype <= (int)HOTBED_FP8 + 1; dtype++) {
        setup_start(&s, 1, DIM, CAPACITY);
        s.tables[0].state_dtype = (hotbed_dtype)dtype;
        if (dtype != HOTBED_BF16)
            refuse_argument(backend, &s, "state_dtype");
    }
    setup_start(&s, 1, DIM, CAPACITY);
    s.tables[0].evict = (hotbed_evict)2;
    refuse_argument(backend, &s, "evict");
    setup_start(&s, 1, DIM, CAPACITY);
    s.options.key_type = (hotbed_key_type)3;
    refuse_argument(backend, &s, "key_type");
    setup_start(&s, 1, DIM, CAPACITY);
    s.options.pooling = (hotbed_pooling)3;
    refuse_argument(backend, &s, "pooling");
    setup_start(&s, 1, DIM, CAPACITY);
    s.options.output_dtype = (hotbed_dtype)-1;
    refuse_argument(backend, &s, "dtype");
    setup_start(&s, 1, DIM, CAPACITY);
    s.options.mode = (hotbed_mode)4;
    refuse_argument(backend, &s, "mode");
    setup_start(&s, 1, DIM, CAPACITY);
    s.options.optimizer.kind = (hotbed_optimizer_kind)99;
    refuse_argument(backend, &s, "optimizer");
}

static void create_refuses_bad_tiers(hotbed_backend backend) {
    setup s;
    setup_start(&s, 2, DIM, CAPACITY);
    s.options.mode = HOTBED_MODE_CACHE; /* needs a size of the upper tier */
    refuse(backend, &s, HOTBED_ERR_ARGUMENT, "table-0");
    s.tables[0].upper_capacity = 16;
    refuse(backend, &s, HOTBED_ERR_ARGUMENT, "table-1");
    s.options.mode = HOTBED_MODE_DEFAULT;
    refuse(backend, &s, HOTBED_ERR_ARGUMENT, "upper_capacity");
    s.options.hbm_bytes = 4096;
    s.options.placement = (hotbed_placement)2;
    refuse(backend, &s, HOTBED_ERR_ARGUMENT, "placement 2");
    s.options.placement = HOTBED_PLACE_BY_HASH;
    s.options.lower_memory = HOTBED_MEMORY_DEVICE;
    refuse(backend, &s, HOTBED_ERR_ARGUMENT, "lower_memory 1");
    s.options.lower_memory = (hotbed_memory_kind)5;
    refuse(backend, &s, HOTBED_ERR_ARGUMENT, "lower_memory 5");
    s.options.lower_memory = HOTBED_MEMORY_PAGEABLE;
    if (backend == HOTBED_BACKEND_CUDA)
        refuse(backend, &s, HOTBED_ERR_UNSUPPORTED, "lower_memory 3");
    s.options.lower_memory = (hotbed_memory_kind)0;
    s.options.lower_index_memory = (hotbed_memory_kind)5;
    refuse(backend, &s, HOTBED_ERR_ARGUMENT, "lower_index_memory 5");
    s.options.lower_index_memory = (hotbed_memory_kind)-1;
    refuse(backend, &s, HOTBED_ERR_ARGUMENT, "lower_index_memory -1");
    s.options.lower_index_memory = (hotbed_memory_kind)0;
    s.options.move_sms = HOTBED_MOVE_SMS_MOST + 1;
    refuse(backend, &s, HOTBED_ERR_ARGUMENT, "move_sms 65 is not in [0, 64]");
    s.options.move_sms = 0;
    s.options.lower_index_memory = HOTBED_MEMORY_FILE;
    if (backend == HOTBED_BACKEND_CUDA)
        refuse(backend, &s, HOTBED_ERR_UNSUPPORTED, "lower_index_memory 4");
    if (backend != HOTBED_BACKEND_HOST)
        return;
    s.options.lower_directory = "/no/such";
    refuse(backend, &s, HOTBED_ERR_IO, "/no/such: No such file");
    s.options.lower_index_memory = (hotbed_memory_kind)0;
    s.options.lower_memory = HOTBED_MEMORY_FILE;
    refuse(backend, &s, HOTBED_ERR_IO, "/no/such: No such file");
}

static void create_refuses_a_recording_stream(hotbed_backend backend) {
    setup s;
    hotbed_storage *storage = NULL;
    hotbed_graph *graph;
    setup_start(&s, 1, DIM, CAPACITY);
    hotbed_stream *stream = hotbed_test_stream(backend);
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_STATUS(hotbed_storage_create(&s.options, stream, &storage), HOTBED_ERR_STATE);
    check_message("cannot wait for the stream while it records a graph");
    CHECK(storage == NULL);
    CHECK_OK(hotbed_graph_end(stream, &graph)); /* the recording goes on */
    hotbed_graph_destroy(graph);
    hotbed_stream_destroy(stream);
}

static void create_refuses_bad_initializers(hotbed_backend backend) {
    static const hotbed_initializer bad[] = {
        {.kind = (hotbed_initializer_kind)5},
        {.kind = (hotbed_initializer_kind)-1},
        {.kind = HOTBED_INIT_CONSTANT, .value = NAN},
        {.kind = HOTBED_INIT_CONSTANT, .value = INFINITY},
        {.kind = HOTBED_INIT_UNIFORM, .lower = 1.0F, .upper = 1.0F},
        {.kind = HOTBED_INIT_UNIFORM, .lower = 1.0F, .upper = -1.0F},
        {.kind = HOTBED_INIT_UNIFORM, .lower = NAN, .upper = 1.0F},
        {.kind = HOTBED_INIT_UNIFORM, .lower = 0.0F, .upper = INFINITY},
        {.kind = HOTBED_INIT_NORMAL, .std = 0.0F},
        {.kind = HOTBED_INIT_NORMAL, .std = -1.0F},
        {.kind = HOTBED_INIT_NORMAL, .mean = NAN, .std = 1.0F},
        {.kind = HOTBED_INIT_TRUNCATED_NORMAL, .std = 1.0F},
        {.kind = HOTBED_INIT_TRUNCATED_NORMAL, .std = 0.0F, .lower = -1.0F, .upper = 1.0F},
        {.kind = HOTBED_INIT_TRUNCATED_NORMAL, .std = 1.0F, .lower = 1.0F, .upper = -1.0F},
        /* All keys would get one value: NaN becomes `lower`, and probabilities round to 0 or 1. */
        {.kind = HOTBED_INIT_UNIFORM, .lower = -2e38F, .upper = 2e38F},
        {.kind = HOTBED_INIT_TRUNCATED_NORMAL,
         .mean = 1.0F,
         .std = 0.1F,
         .lower = 1.6F,
         .upper = 2.0F},
        {.kind = HOTBED_INIT_TRUNCATED_NORMAL, .std = 1.0F, .lower = -9.0F, .upper = -6.0F},
    };
    setup s;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setup_start(&s, 1, DIM, CAPACITY);
        s.tables[0].initializer = bad[i];
        refuse_argument(backend, &s, "initializer");
    }
    setup_start(&s, 1, DIM, CAPACITY);
    s.tables[0].initializer.upper = INFINITY;
    refuse_argument(backend, &s, "upper inf is not finite");
    setup_start(&s, 1, DIM, CAPACITY);
    s.tables[0].initializer = bad[sizeof bad / sizeof bad[0] - 1];
    refuse_argument(backend, &s, "lower -9 to upper -6 is more than 5 std 1 away from mean 0");
    setup_start(&s, 1, DIM, CAPACITY);
    s.tables[0].eval_initializer.kind = HOTBED_INIT_NORMAL; /* must be CONSTANT */
    s.tables[0].eval_initializer.std = 1.0F;
    refuse_argument(backend, &s, "eval_initializer");
}

static void create_refuses_bad_optimizers(hotbed_backend backend) {
    const float bad_anywhere[] = {NAN, INFINITY, -INFINITY};
    for (int field = 0; field < 7; field++) {
        for (int i = 0; i < 5; i++) {
            setup s;
            setup_start(&s, 1, DIM, CAPACITY);
            hotbed_optimizer *o = &s.options.optimizer;
            o->kind = HOTBED_OPT_ADAM;
            float *fields[] = {
                &o->beta1,
                &o->beta2,
                &o->eps,
                &o->max_gradient,
                &o->learning_rate,
                &o->weight_decay,
                &o->initial_accumulator};
            if (i == 3 && field >= 4)
                continue; /* a negative learning rate or decay is allowed */
            if (i == 4 && field >= 2)
                continue;
            /* betas must be below 1 */
            *fields[field] = i < 3 ? bad_anywhere[i] : i == 3 ? -0.5F : 1.0F;
            char value[32];
            (void)snprintf(value, sizeof value, " %g is not ", (double)*fields[field]);
            refuse_argument(backend, &s, value);
        }
    }
}

static void create_refuses_bad_features(hotbed_backend backend) {
    setup s;
    setup_start(&s, 2, DIM, CAPACITY);
    s.options.num_features = 2;
    refuse_argument(backend, &s, "feature_tables"); /* NULL */
    setup_start(&s, 2, DIM, CAPACITY);
    setup_feature(&s, 0);
    setup_feature(&s, 2);
    refuse_argument(backend, &s, "feature");
    setup_start(&s, 3, DIM, CAPACITY);
    setup_feature(&s, 0);
    setup_feature(&s, 2);
    setup_feature(&s, 1);
    refuse_argument(backend, &s, "feature 2");
}

/* A newer caller's struct has a larger `size`; the fields that this version does not know must be 0. */
static void unknown_fields_of_newer_callers_must_be_zero(hotbed_backend backend) {
    enum { MORE = 16 };
    hotbed_storage *storage = NULL;
    setup s;
    setup_start(&s, 1, DIM, CAPACITY);
    hotbed_stream *stream = hotbed_test_stream(backend);
    char *options = calloc(1, sizeof s.options + MORE);
    char *table = calloc(1, sizeof s.tables[0] + MORE);
    CHECK(options != NULL && table != NULL);
    const uint32_t options_size = (uint32_t)sizeof s.options + MORE;
    const uint32_t table_size = (uint32_t)sizeof s.tables[0] + MORE;
    memcpy(table, s.tables, sizeof s.tables[0]);
    memcpy(table, &table_size, sizeof table_size);
    s.options.tables = (const hotbed_table_options *)(void *)table;
    memcpy(options, &s.options, sizeof s.options);
    memcpy(options, &options_size, sizeof options_size);
    const hotbed_storage_options *both = (const hotbed_storage_options *)(void *)options;
    CHECK_OK(hotbed_storage_create(both, stream, &storage));
    hotbed_storage_destroy(storage);
    options[sizeof s.options + MORE - 1] = 1;
    CHECK_STATUS(hotbed_storage_create(both, stream, &storage), HOTBED_ERR_ARGUMENT);
    CHECK(storage == NULL);
    options[sizeof s.options + MORE - 1] = 0;
    table[sizeof s.tables[0]] = 1;
    CHECK_STATUS(hotbed_storage_create(both, stream, &storage), HOTBED_ERR_ARGUMENT);
    CHECK(storage == NULL);
    free(options);
    free(table);
    hotbed_stream_destroy(stream);
}

/* On the host, pages are allocated when rows are written; creation writes neither rows nor index.  The tables below
 * reserve about 3 GB: two tiers, times, counters, and a static table of zeros. */
static void creation_touches_no_memory(hotbed_backend backend) {
    if (backend != HOTBED_BACKEND_HOST)
        SKIP("a property of the host backend");
    for (int tiers = 0; tiers < 2; tiers++) {
        setup s;
        fixture r;
        setup_start(&s, 2, 50, UINT64_C(1) << 21);
        s.tables[0].score = HOTBED_SCORE_TIMESTAMP_LFU;
        s.tables[0].admission = HOTBED_ADMIT_FREQUENCY;
        s.tables[0].admission_threshold = 2;
        s.tables[1].kind = tiers == 0 ? HOTBED_TABLE_STATIC : HOTBED_TABLE_HASH;
        s.tables[1].initializer = (hotbed_initializer){.kind = HOTBED_INIT_CONSTANT};
        s.tables[1].dtype = HOTBED_F16;
        s.options.mode = tiers == 0 ? HOTBED_MODE_HBM_DIRECT : HOTBED_MODE_CACHE;
        s.tables[0].upper_capacity = s.tables[1].upper_capacity = UINT64_C(1) << 18;
        s.options.optimizer.kind = HOTBED_OPT_ADAGRAD;
        uint64_t before = fixture_resident();
        fixture_open_bare(&r, backend, &s.options);
        CHECK(fixture_resident() < before + (UINT64_C(16) << 20));
        CHECK_EQ(fixture_pinned(&r), 0);
        fixture_close(&r);
    }
}

/* An uninitialised struct at the end of mapped memory: an impossible size must not be read beyond the struct. */
static void an_impossible_size_is_refused_without_reading_on(hotbed_backend backend) {
    static const uint32_t sizes[] = {UINT32_MAX, 0xdeadbeefU, 1U << 20, 2050, 4095};
    setup s;
    setup_start(&s, 1, DIM, CAPACITY);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    CHECK_EQ(mprotect(pages + page, page, PROT_NONE), 0);
    hotbed_storage_options *options = (void *)(pages + page - sizeof *options);
    hotbed_table_options *table = (void *)(pages + page - sizeof *table);
    hotbed_storage *storage;
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char words[32];
        (void)snprintf(words, sizeof words, "size %u", sizes[i]);
        memcpy(options, &s.options, sizeof *options);
        options->size = sizes[i];
        CHECK_STATUS(hotbed_storage_create(options, stream, &storage), HOTBED_ERR_ARGUMENT);
        check_message(words);
        hotbed_storage_options good = s.options;
        memcpy(table, s.tables, sizeof *table);
        table->size = sizes[i];
        good.tables = table;
        CHECK_STATUS(hotbed_storage_create(&good, stream, &storage), HOTBED_ERR_ARGUMENT);
        check_message(words);
    }
    CHECK_EQ(munmap(pages, 2 * page), 0);
    hotbed_stream_destroy(stream);
}

/* Fields beyond the `size` of an older caller's struct count as 0, whatever the memory holds. */
static void fields_beyond_the_size_of_an_older_caller_are_zero(hotbed_backend backend) {
    setup s;
    setup_start(&s, 1, DIM, CAPACITY);
    s.options.mode = HOTBED_MODE_CACHE; /* would be an error, but is beyond `size` */
    s.options.hbm_bytes = 1;
    s.options.size = (uint32_t)offsetof(hotbed_storage_options, mode);
    s.tables[0].eval_initializer.kind = (hotbed_initializer_kind)99; /* the same */
    s.tables[0].size = (uint32_t)offsetof(hotbed_table_options, eval_initializer);
    fixture r;
    memset(&r, 0, sizeof r);
    fixture_open_bare(&r, backend, &s.options);
    CHECK_EQ(hotbed_storage_mode(r.storage), HOTBED_MODE_HBM_DIRECT);
    fixture_close(&r);
    setup_start(&s, 1, DIM, CAPACITY);
    s.options.size = 0;
    refuse_argument(backend, &s, "size");
    setup_start(&s, 1, DIM, CAPACITY);
    s.tables[0].size = 0;
    refuse_argument(backend, &s, "size");
    setup_start(&s, 1, DIM, CAPACITY);
    s.options.optimizer.size = 0;
    refuse_argument(backend, &s, "size");
}

/* --- calls on a storage ---------------------------------------------------------------------- */

/* A storage of two hash tables and a static one, and a ticket with a valid batch. */
typedef struct subject {
    fixture r;
    test_ticket good;
    rng random;
    hotbed_batch batch; /* of `good`, in device memory */
} subject;

static void subject_open(subject *v, hotbed_backend backend, hotbed_pooling pooling) {
    setup s;
    setup_start(&s, 3, DIM, CAPACITY);
    s.tables[1].dim = 2 * DIM;
    s.tables[2].kind = HOTBED_TABLE_STATIC;
    s.options.pooling = pooling;
    v->random = rng_start(1);
    fixture_open(&v->r, backend, &s.options);
    test_ticket_open(&v->r, &v->good, MAX_KEYS, MAX_BATCH);
    const batch_shape how = {.batch_size = MAX_BATCH, .key_space = 50};
    test_ticket_fill(&v->good, &v->random, &how);
    v->batch = test_ticket_batch(&v->good);
}

/* Check that the storage trains on as if no call had failed. */
static void subject_close(subject *v) {
    const batch_shape how = {.batch_size = MAX_BATCH, .key_space = 50};
    test_ticket_step(&v->good, &v->random, &how);
    test_ticket_step(&v->good, &v->random, &how);
    fixture_check(&v->r);
    fixture_close(&v->r);
}

static void ticket_create_refuses_bad_arguments(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend, HOTBED_POOL_SUM);
    hotbed_ticket *ticket = v.good.ticket;
    hotbed_storage *storage = v.r.storage;
    hotbed_stream *stream = v.r.stream;
    CHECK_STATUS(hotbed_ticket_create(NULL, 8, 8, stream, &ticket), HOTBED_ERR_ARGUMENT);
    CHECK(ticket == NULL);
    CHECK_STATUS(hotbed_ticket_create(storage, 8, 8, NULL, &ticket), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_ticket_create(storage, 8, 8, stream, NULL), HOTBED_ERR_ARGUMENT);
    ticket = v.good.ticket;
    CHECK_STATUS(
        hotbed_ticket_create(storage, UINT64_C(1) << 31, 8, stream, &ticket), HOTBED_ERR_ARGUMENT);
    CHECK(ticket == NULL);
    check_message("2147483648");
    CHECK_STATUS(
        hotbed_ticket_create(storage, UINT64_MAX, 8, stream, &ticket), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_ticket_create(storage, 8, 0, stream, &ticket), HOTBED_ERR_ARGUMENT);
    check_message("max_batch_size 0 * 3 features = 0 bags is not in [1, 2^30]");
    subject_close(&v);
}

static void prefetch_refuses_bad_arguments(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend, HOTBED_POOL_SUM);
    hotbed_storage *storage = v.r.storage;
    hotbed_stream *stream = v.r.stream;
    hotbed_ticket *ticket = v.good.ticket;
    hotbed_batch bad = v.batch;
    CHECK_STATUS(hotbed_storage_prefetch(NULL, &bad, ticket, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_prefetch(storage, NULL, ticket, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_prefetch(storage, &bad, NULL, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_prefetch(storage, &bad, ticket, NULL), HOTBED_ERR_ARGUMENT);
    bad.size = 0;
    CHECK_STATUS(hotbed_storage_prefetch(storage, &bad, ticket, stream), HOTBED_ERR_ARGUMENT);
    bad = v.batch;
    bad.keys = NULL;
    CHECK_STATUS(hotbed_storage_prefetch(storage, &bad, ticket, stream), HOTBED_ERR_ARGUMENT);
    check_message("keys");
    bad = v.batch;
    bad.num_keys--; /* without offsets it must be features * samples */
    CHECK_STATUS(hotbed_storage_prefetch(storage, &bad, ticket, stream), HOTBED_ERR_ARGUMENT);
    check_message("47");
    bad = v.batch;
    bad.num_keys++;
    CHECK_STATUS(hotbed_storage_prefetch(storage, &bad, ticket, stream), HOTBED_ERR_ARGUMENT);
    bad = v.batch;
    bad.offsets = v.good.device.offsets;
    bad.num_keys = MAX_KEYS + 1;
    CHECK_STATUS(hotbed_storage_prefetch(storage, &bad, ticket, stream), HOTBED_ERR_ARGUMENT);
    check_message("65");
    bad.num_keys = UINT64_MAX;
    CHECK_STATUS(hotbed_storage_prefetch(storage, &bad, ticket, stream), HOTBED_ERR_ARGUMENT);
    bad.num_keys = 3U * MAX_BATCH;
    bad.batch_size = MAX_BATCH + 1;
    CHECK_STATUS(hotbed_storage_prefetch(storage, &bad, ticket, stream), HOTBED_ERR_ARGUMENT);
    check_message("17");
    bad.batch_size = UINT32_MAX;
    CHECK_STATUS(hotbed_storage_prefetch(storage, &bad, ticket, stream), HOTBED_ERR_ARGUMENT);
    hotbed_ticket_view view = {.size = sizeof view};
    /* no refused prefetch had an effect */
    CHECK_STATUS(hotbed_ticket_read(ticket, &view), HOTBED_ERR_STATE);
    subject_close(&v);
}

/* A ticket keeps its batch when a prefetch is refused. */
static void a_refused_prefetch_has_no_effect(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend, HOTBED_POOL_SUM);
    test_ticket_prefetch(&v.good);
    hotbed_batch bad = v.batch;
    bad.num_keys = 1;
    CHECK_STATUS(
        hotbed_storage_prefetch(v.r.storage, &bad, v.good.ticket, v.r.stream), HOTBED_ERR_ARGUMENT);
    test_ticket_check(&v.good);
    test_ticket_forward(&v.good);
    test_ticket_backward(&v.good, &v.random);
    subject_close(&v);
}

static void a_ticket_of_another_storage_is_refused(hotbed_backend backend) {
    subject v, other;
    subject_open(&v, backend, HOTBED_POOL_SUM);
    subject_open(&other, backend, HOTBED_POOL_SUM);
    hotbed_ticket *foreign = other.good.ticket;
    CHECK_STATUS(
        hotbed_storage_prefetch(v.r.storage, &v.batch, foreign, v.r.stream), HOTBED_ERR_ARGUMENT);
    test_ticket_prefetch(&other.good);
    CHECK_STATUS(
        hotbed_storage_forward(v.r.storage, foreign, v.good.output, 0, v.r.stream),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_storage_backward(v.r.storage, foreign, v.good.gradient, 0, v.r.stream),
        HOTBED_ERR_ARGUMENT);
    test_ticket_cancel(&other.good);
    subject_close(&v);
    subject_close(&other);
}

static void forward_and_backward_refuse_bad_arguments(hotbed_backend backend) {
    static const uint64_t least[] = {2 * DIM, 4 * DIM, 4 * DIM};
    for (int pooling = 0; pooling < 3; pooling++) {
        subject v;
        subject_open(&v, backend, (hotbed_pooling)pooling);
        hotbed_storage *t = v.r.storage;
        hotbed_stream *s = v.r.stream;
        hotbed_ticket *k = v.good.ticket;
        void *out = v.good.output, *grad = v.good.gradient;
        uint64_t below = least[pooling] - 1;
        CHECK_STATUS(hotbed_storage_forward(t, k, out, 0, s), HOTBED_ERR_STATE);
        CHECK_STATUS(hotbed_storage_backward(t, k, grad, 0, s), HOTBED_ERR_STATE);
        test_ticket_prefetch(&v.good);
        CHECK_STATUS(hotbed_storage_forward(NULL, k, out, 0, s), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_storage_forward(t, NULL, out, 0, s), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_storage_forward(t, k, NULL, 0, s), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_storage_forward(t, k, out, 0, NULL), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_storage_forward(t, k, out, below, s), HOTBED_ERR_ARGUMENT);
        check_message("stride");
        CHECK_STATUS(hotbed_storage_forward(t, k, out, (uint64_t)1 << 62, s), HOTBED_ERR_ARGUMENT);
        check_message("more than 2^63 bytes");
        CHECK_STATUS(hotbed_storage_backward(NULL, k, grad, 0, s), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_storage_backward(t, NULL, grad, 0, s), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_storage_backward(t, k, NULL, 0, s), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_storage_backward(t, k, grad, 0, NULL), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_storage_backward(t, k, grad, below, s), HOTBED_ERR_ARGUMENT);
        check_message("stride");
        CHECK_STATUS(
            hotbed_storage_backward(t, k, grad, (uint64_t)1 << 62, s), HOTBED_ERR_ARGUMENT);
        check_message("more than 2^63 bytes");
        test_ticket_forward(&v.good); /* still prefetched */
        test_ticket_forward(&v.good);
        test_ticket_backward(&v.good, &v.random);
        CHECK_STATUS(hotbed_storage_forward(t, k, out, 0, s), HOTBED_ERR_STATE);
        CHECK_STATUS(hotbed_storage_backward(t, k, grad, 0, s), HOTBED_ERR_STATE);
        const hotbed_batch batch = test_ticket_batch(&v.good);
        hotbed_batch bad = batch;
        bad.keys = NULL;
        CHECK_STATUS(
            hotbed_storage_prefetch_forward(NULL, &batch, k, out, 0, s), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_storage_prefetch_forward(t, NULL, k, out, 0, s), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_storage_prefetch_forward(t, &bad, k, out, 0, s), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(
            hotbed_storage_prefetch_forward(t, &batch, NULL, out, 0, s), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(
            hotbed_storage_prefetch_forward(t, &batch, k, NULL, 0, s), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(
            hotbed_storage_prefetch_forward(t, &batch, k, out, 0, NULL), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(
            hotbed_storage_prefetch_forward(t, &batch, k, out, below, s), HOTBED_ERR_ARGUMENT);
        check_message("stride");
        CHECK_STATUS(hotbed_storage_forward(t, k, out, 0, s), HOTBED_ERR_STATE); /* unchanged */
        subject_close(&v);
    }
}

static void cancel_and_read_refuse_bad_arguments(hotbed_backend backend) {
    subject v;
    hotbed_ticket_view view = {.size = sizeof view};
    subject_open(&v, backend, HOTBED_POOL_SUM);
    CHECK_STATUS(hotbed_ticket_cancel(NULL, v.r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_ticket_cancel(v.good.ticket, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_ticket_cancel(v.good.ticket, v.r.stream)); /* an empty ticket stays empty */
    CHECK_STATUS(hotbed_ticket_read(v.good.ticket, &view), HOTBED_ERR_STATE);
    test_ticket_prefetch(&v.good);
    CHECK_STATUS(hotbed_ticket_read(NULL, &view), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_ticket_read(v.good.ticket, NULL), HOTBED_ERR_ARGUMENT);
    test_ticket_cancel(&v.good);
    CHECK_STATUS(hotbed_ticket_read(v.good.ticket, &view), HOTBED_ERR_STATE);
    CHECK_STATUS(
        hotbed_storage_forward(v.r.storage, v.good.ticket, v.good.output, 0, v.r.stream),
        HOTBED_ERR_STATE);
    subject_close(&v);
}

static void eval_refuses_bad_arguments(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend, HOTBED_POOL_SUM);
    hotbed_storage *t = v.r.storage;
    hotbed_stream *s = v.r.stream;
    void *out = v.good.output;
    hotbed_batch bad = v.batch;
    CHECK_STATUS(hotbed_storage_eval(NULL, &bad, out, 0, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_eval(t, NULL, out, 0, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_eval(t, &bad, NULL, 0, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_eval(t, &bad, out, 0, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_eval(t, &bad, out, 4 * DIM - 1, s), HOTBED_ERR_ARGUMENT);
    bad.keys = NULL;
    CHECK_STATUS(hotbed_storage_eval(t, &bad, out, 0, s), HOTBED_ERR_ARGUMENT);
    bad = v.batch;
    bad.size = 0;
    CHECK_STATUS(hotbed_storage_eval(t, &bad, out, 0, s), HOTBED_ERR_ARGUMENT);
    bad = v.batch;
    bad.num_keys--;
    CHECK_STATUS(hotbed_storage_eval(t, &bad, out, 0, s), HOTBED_ERR_ARGUMENT);
    bad.offsets = v.good.device.offsets;
    bad.num_keys = UINT64_C(1) << 31;
    CHECK_STATUS(hotbed_storage_eval(t, &bad, out, 0, s), HOTBED_ERR_ARGUMENT);
    subject_close(&v);
}

static void bad_learning_rates_and_backward_without_optimizer_are_refused(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend, HOTBED_POOL_SUM);
    hotbed_storage *t = v.r.storage;
    hotbed_stream *s = v.r.stream;
    CHECK_STATUS(hotbed_storage_set_learning_rate(NULL, 0.1F, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_set_learning_rate(t, 0.1F, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_set_learning_rate(t, NAN, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_set_learning_rate(t, -INFINITY, s), HOTBED_ERR_ARGUMENT);
    subject_close(&v);
    setup o;
    fixture r;
    test_ticket l;
    rng random = rng_start(2);
    setup_start(&o, 1, DIM, CAPACITY);
    o.options.optimizer.kind = (hotbed_optimizer_kind)0;
    fixture_open(&r, backend, &o.options);
    test_ticket_open(&r, &l, MAX_KEYS, MAX_BATCH);
    const batch_shape how = {.batch_size = MAX_BATCH};
    test_ticket_fill(&l, &random, &how);
    test_ticket_prefetch(&l);
    CHECK_STATUS(
        hotbed_storage_backward(r.storage, l.ticket, l.gradient, 0, r.stream), HOTBED_ERR_STATE);
    test_ticket_forward(&l);
    test_ticket_cancel(&l);
    fixture_check(&r);
    fixture_close(&r);
}

static void get_and_set_rows_refuse_bad_arguments(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend, HOTBED_POOL_SUM);
    hotbed_storage *t = v.r.storage;
    hotbed_stream *s = v.r.stream;
    const void *keys = v.batch.keys;
    hotbed_rows rows = {.weights = v.good.output};
    CHECK_STATUS(hotbed_storage_get_rows(NULL, 0, 1, keys, &rows, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_get_rows(t, 3, 1, keys, &rows, NULL, s), HOTBED_ERR_ARGUMENT);
    check_message("3");
    CHECK_STATUS(hotbed_storage_get_rows(t, 0, 1, NULL, &rows, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_get_rows(t, 0, 1, keys, &rows, NULL, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_set_rows(NULL, 0, 1, keys, &rows, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_set_rows(t, 3, 1, keys, &rows, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_set_rows(t, 0, 1, NULL, &rows, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_set_rows(t, 0, 1, keys, &rows, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_storage_get_rows(t, 0, 0, NULL, &rows, NULL, s)); /* no keys */
    CHECK_OK(hotbed_storage_set_rows(t, 0, 0, NULL, &rows, s));
    rows.states[0] = v.good.output; /* SGD has no state */
    CHECK_STATUS(hotbed_storage_get_rows(t, 0, 1, keys, &rows, NULL, s), HOTBED_ERR_ARGUMENT);
    check_message("state");
    CHECK_STATUS(hotbed_storage_set_rows(t, 0, 1, keys, &rows, s), HOTBED_ERR_ARGUMENT);
    subject_close(&v);
}

static void erase_and_clear_refuse_bad_arguments(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend, HOTBED_POOL_SUM);
    hotbed_storage *t = v.r.storage;
    hotbed_stream *s = v.r.stream;
    const void *keys = v.batch.keys;
    CHECK_STATUS(hotbed_storage_erase(NULL, 0, 1, keys, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_erase(t, 3, 1, keys, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_erase(t, 0, 1, NULL, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_erase(t, 0, 1, keys, NULL, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_erase(t, 2, 1, keys, NULL, s), HOTBED_ERR_ARGUMENT); /* static */
    CHECK_OK(hotbed_storage_erase(t, 0, 0, NULL, NULL, s));
    CHECK_STATUS(hotbed_storage_clear(NULL, 0, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_clear(t, 3, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_clear(t, 0, NULL), HOTBED_ERR_ARGUMENT);
    test_ticket_prefetch(&v.good);
    CHECK_STATUS(hotbed_storage_clear(t, 0, s), HOTBED_ERR_STATE);
    check_message("1 tickets hold rows: end each batch by backward or hotbed_ticket_cancel()");
    CHECK_FIELDS(
            .cause = HOTBED_CAUSE_HELD, .has = HOTBED_HAS_VALUE, .value = 1,
            .parameter = "tickets");
    CHECK_STATUS(hotbed_storage_reset(t, s), HOTBED_ERR_STATE);
    check_message("1 tickets hold rows: end each batch by backward or hotbed_ticket_cancel()");
    test_ticket_backward(&v.good, &v.random);
    subject_close(&v);
}

static void export_keys_refuses_bad_arguments(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend, HOTBED_POOL_SUM);
    test_ticket_prefetch(&v.good);
    test_ticket_backward(&v.good, &v.random);
    hotbed_storage *t = v.r.storage;
    hotbed_stream *s = v.r.stream;
    uint64_t keys[CAPACITY], n = 0, size = v.r.model->tables[0].size;
    CHECK_STATUS(hotbed_storage_export_keys(NULL, 0, 0, NULL, NULL, &n, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_export_keys(t, 3, 0, NULL, NULL, &n, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_export_keys(t, 0, 0, NULL, NULL, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_export_keys(t, 0, 0, NULL, NULL, &n, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_storage_export_keys(t, 0, 0, NULL, NULL, &n, s));
    CHECK_EQ(n, size);
    n = 0;
    CHECK_STATUS(
        hotbed_storage_export_keys(t, 0, size - 1, keys, NULL, &n, s), HOTBED_ERR_ARGUMENT);
    CHECK_EQ(n, size);
    CHECK_OK(hotbed_storage_export_keys(t, 0, size, keys, NULL, &n, s));
    subject_close(&v);
}

static void descriptions_refuse_bad_arguments(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend, HOTBED_POOL_SUM);
    hotbed_storage *t = v.r.storage;
    hotbed_stream *s = v.r.stream;
    hotbed_storage_state state = {.size = sizeof state};
    hotbed_table_info info = {.size = sizeof info};
    hotbed_table_stats stats = {.size = sizeof stats};
    uint64_t keys, pinned;
    CHECK_STATUS(hotbed_storage_get_state(NULL, &state, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_get_state(t, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_get_state(t, &state, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_set_state(NULL, &state, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_set_state(t, NULL, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_table(NULL, 0, &info), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_table(t, 3, &info), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_table(t, 0, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_size(NULL, 0, &keys, &pinned, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_size(t, 3, &keys, &pinned, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_size(t, 0, &keys, &pinned, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_stats(NULL, 0, &stats, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_stats(t, 3, &stats, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_stats(t, 0, NULL, s), HOTBED_ERR_ARGUMENT);
    subject_close(&v);
}

static void descriptions_equal_the_options(hotbed_backend backend) {
    setup s;
    fixture r;
    setup_start(&s, 3, DIM, CAPACITY);
    s.tables[0].dtype = HOTBED_BF16;
    s.tables[1].dim = 7;
    s.tables[2].kind = HOTBED_TABLE_STATIC;
    s.tables[1].state_dtype = HOTBED_BF16;
    setup_feature(&s, 0);
    setup_feature(&s, 1);
    setup_feature(&s, 1);
    setup_feature(&s, 2);
    s.options.pooling = HOTBED_POOL_MEAN;
    s.options.key_type = HOTBED_KEY_U64;
    s.options.optimizer.kind = HOTBED_OPT_ADAM;
    fixture_open_bare(&r, backend, &s.options);
    CHECK_EQ(hotbed_storage_num_tables(r.storage), 3);
    CHECK_EQ(hotbed_storage_key_type(r.storage), HOTBED_KEY_U64);
    CHECK_EQ(hotbed_storage_mode(r.storage), HOTBED_MODE_HBM_DIRECT);
    CHECK_EQ(hotbed_storage_optimizer(r.storage)->kind, HOTBED_OPT_ADAM);
    CHECK_EQ(hotbed_storage_columns(r.storage), 2 * DIM + 14);
    static const hotbed_dtype dtypes[] = {HOTBED_BF16, HOTBED_F32, HOTBED_F32};
    uint64_t end = 0;
    for (uint32_t t = 0; t < 3; t++) {
        hotbed_table_info info = {.size = sizeof info};
        CHECK_OK(hotbed_storage_table(r.storage, t, &info));
        CHECK_STRING(info.name, s.names[t]);
        CHECK_EQ(info.dim, s.tables[t].dim);
        CHECK_EQ(info.dtype, dtypes[t]);
        CHECK_EQ(info.kind, s.tables[t].kind);
        CHECK_EQ(info.capacity, CAPACITY);
        CHECK(info.slots >= CAPACITY);
        CHECK(info.first_slot >= end);
        end = info.first_slot + info.slots;
        CHECK(info.weights != NULL);
        uint64_t embedding = hotbed_dtype_row_bytes(info.dtype, info.dim);
        CHECK(info.state_offsets[0] >= embedding);
        const uint64_t state = info.dim * (t == 1 ? sizeof(uint16_t) : sizeof(float));
        CHECK_EQ(info.state_dtypes[0], t == 1 ? HOTBED_BF16 : HOTBED_F32);
        CHECK_EQ(info.state_dtypes[1], info.state_dtypes[0]);
        CHECK(info.state_offsets[1] >= info.state_offsets[0] + state);
        CHECK(info.row_bytes >= info.state_offsets[1] + state);
        CHECK(info.row_bytes < embedding + 2 * state + 48);
        CHECK_EQ(info.index_bytes, t == 2 ? 0 : 16 * info.slots);
    }
    fixture_close(&r);
}

/* AUTO becomes PROBATION for hash tables whose rows move between memories. */
static void automatic_insertion_is_probation_where_rows_move(hotbed_backend backend) {
    enum { ONE, CACHE, BY_SCORE, BY_HASH, STORE, WAYS };
    for (int way = 0; way < WAYS; way++) {
        setup s;
        fixture r;
        hotbed_external *store = NULL;
        setup_start(&s, 4, DIM, CAPACITY);
        for (uint32_t t = 0; t < 4; t++) {
            s.tables[t].upper_capacity = CAPACITY / 2;
            s.tables[t].insertion = t < 3 ? (hotbed_insertion)t : HOTBED_INSERT_AUTO;
        }
        if (way == STORE)
            fixture_store(&s.options, &store);
        else
            s.tables[3].kind = HOTBED_TABLE_STATIC;
        s.options.external = store;
        s.options.mode = way == ONE                     ? HOTBED_MODE_HBM_DIRECT
                         : way == CACHE || way == STORE ? HOTBED_MODE_CACHE
                                                        : HOTBED_MODE_DEFAULT;
        s.options.placement = way == BY_HASH ? HOTBED_PLACE_BY_HASH : HOTBED_PLACE_BY_SCORE;
        fixture_open_bare(&r, backend, &s.options);
        const bool moves = way == CACHE || way == BY_SCORE || way == STORE;
        const bool probation[] = {moves, false, true, way == STORE};
        for (uint32_t t = 0; t < 4; t++) {
            hotbed_table_info info = {.size = sizeof info};
            CHECK_OK(hotbed_storage_table(r.storage, t, &info));
            CHECK_EQ(info.insertion, probation[t] ? HOTBED_INSERT_PROBATION : HOTBED_INSERT_PLAIN);
        }
        fixture_close(&r);
        hotbed_external_destroy(store);
    }
}

/* A row is at weights + (slot - first_slot) * row_bytes, as documented. */
static void the_address_of_a_row_follows_from_its_slot(hotbed_backend backend) {
    subject v;
    subject_open(&v, backend, HOTBED_POOL_SUM);
    test_ticket_prefetch(&v.good);
    const oracle_ticket *m = v.good.model;
    hotbed_ticket_view view = {.size = sizeof view};
    CHECK_OK(hotbed_ticket_read(v.good.ticket, &view));
    uint32_t uniques = m->unique_offsets[3];
    uint64_t *slots = calloc(uniques, sizeof *slots);
    CHECK(slots != NULL);
    fixture_download(&v.r, slots, view.slots, uniques * sizeof *slots);
    for (uint32_t t = 0; t < 3; t++) {
        hotbed_table_info info = {.size = sizeof info};
        CHECK_OK(hotbed_storage_table(v.r.storage, t, &info));
        for (uint32_t u = m->unique_offsets[t]; u < m->unique_offsets[t + 1]; u++) {
            float weights[2 * DIM];
            fixture_download(
                &v.r, weights, (char *)info.weights + (slots[u] - info.first_slot) * info.row_bytes,
                info.dim * sizeof(float));
            const oracle_row *row = oracle_find(v.r.model, t, m->unique_keys[u]);
            CHECK_BYTES(weights, row->weights, info.dim * sizeof(float));
            if (t == 2)
                CHECK_EQ(slots[u] - info.first_slot, m->unique_keys[u]);
        }
    }
    free(slots);
    test_ticket_cancel(&v.good);
    subject_close(&v);
}

const hotbed_test hotbed_tests[] = {
    {TEST(create_refuses_null)},
    {TEST(create_refuses_bad_sizes)},
    {TEST(create_refuses_bad_names)},
    {TEST(create_refuses_bad_enums)},
    {TEST(create_refuses_bad_tiers)},
    {TEST(create_refuses_a_recording_stream)},
    {TEST(create_refuses_bad_initializers)},
    {TEST(create_refuses_bad_optimizers)},
    {TEST(create_refuses_bad_features)},
    {TEST(unknown_fields_of_newer_callers_must_be_zero)},
    {TEST(creation_touches_no_memory)},
    {TEST(an_impossible_size_is_refused_without_reading_on)},
    {TEST(fields_beyond_the_size_of_an_older_caller_are_zero)},
    {TEST(ticket_create_refuses_bad_arguments)},
    {TEST(prefetch_refuses_bad_arguments)},
    {TEST(a_refused_prefetch_has_no_effect)},
    {TEST(a_ticket_of_another_storage_is_refused)},
    {TEST(forward_and_backward_refuse_bad_arguments)},
    {TEST(cancel_and_read_refuse_bad_arguments)},
    {TEST(eval_refuses_bad_arguments)},
    {TEST(bad_learning_rates_and_backward_without_optimizer_are_refused)},
    {TEST(get_and_set_rows_refuse_bad_arguments)},
    {TEST(erase_and_clear_refuse_bad_arguments)},
    {TEST(export_keys_refuses_bad_arguments)},
    {TEST(descriptions_refuse_bad_arguments)},
    {TEST(descriptions_equal_the_options)},
    {TEST(automatic_insertion_is_probation_where_rows_move)},
    {TEST(the_address_of_a_row_follows_from_its_slot)},
    {NULL, NULL},
};
