/* tests/storage/test_storage_lower.c - option lower_index_memory: the lower tier's index in each kind of memory.
 *
 * The same random training must give the same bytes with the index in device, pinned, pageable and file memory.  The
 * allocated bytes must equal the documented ones, also after a growth.
 */
#include "hotbed/storage.h"
#include "storage/index/index_layout_core.h"
#include "storage/storage.h"
#include "tests/storage/fixture.h"
#include "tests/support/fault.h"

#include <stdio.h>
#include <string.h>

enum { TABLES = 4, SAMPLES = 64, STEPS = 30, SPACE = 500, DIM = 8, MODES = 3 };

static const hotbed_memory_kind kinds[] = {
    HOTBED_MEMORY_DEVICE, HOTBED_MEMORY_PINNED, HOTBED_MEMORY_PAGEABLE, HOTBED_MEMORY_FILE};

/* Kinds that the backend allows; CUDA the first two only. */
static int num_kinds(hotbed_backend backend) {
    return backend == HOTBED_BACKEND_CUDA ? 2 : 4;
}

static void set_mode(setup *s, int mode, hotbed_memory_kind kind) {
    s->options.mode = mode == 0 ? HOTBED_MODE_CACHE : HOTBED_MODE_DEFAULT;
    s->options.placement = mode == 2 ? HOTBED_PLACE_BY_HASH : HOTBED_PLACE_BY_SCORE;
    s->options.lower_index_memory = kind;
    s->options.lower_directory = kind == HOTBED_MEMORY_FILE ? hotbed_test_directory() : NULL;
}

/* Tables with everything that a lower tier's index may hold: counts, times, static rows, admission, growth. */
static void mixture(setup *s, int mode, hotbed_memory_kind kind) {
    setup_start(s, TABLES, DIM, SPACE);
    for (uint32_t t = 0; t < TABLES; t++)
        s->tables[t].upper_capacity = 40;
    s->tables[0].score = HOTBED_SCORE_LFU;
    s->tables[0].insertion = HOTBED_INSERT_PROBATION;
    s->tables[1].score = HOTBED_SCORE_TIMESTAMP_LFU;
    s->tables[2].kind = HOTBED_TABLE_STATIC;
    s->tables[2].capacity = 300;
    s->tables[3].admission = HOTBED_ADMIT_FREQUENCY;
    s->tables[3].admission_threshold = 3;
    /* never full, because a GPU's choice of forgotten counts depends on timing */
    s->tables[3].admission_capacity = 4 * SPACE;
    s->tables[3].capacity = 150;
    s->tables[3].max_capacity = 600;
    s->options.optimizer.kind = HOTBED_OPT_ADAM;
    set_mode(s, mode, kind);
}

static hotbed_table_info info_of(const fixture *r, uint32_t table) {
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(r->storage, table, &info));
    return info;
}

/* --- bytes ----------------------------------------------------------------------------------- */

/* Results of a run. */
typedef struct image {
    float outputs[STEPS][TABLES * SAMPLES * DIM];
    float weights[TABLES][SPACE * DIM], states[TABLES][2][SPACE * DIM];
    uint64_t scores[TABLES][SPACE];
    uint8_t found[TABLES][SPACE];
    hotbed_table_stats stats[TABLES];
    uint64_t keys[TABLES];
} image;

static uint64_t key_number(uint32_t table, uint64_t i) {
    return table == 2 ? i : i * UINT64_C(0x9e3779b97f4a7c15);
}

/* Read all keys that the storage may have. */
static void read_all(fixture *r, image *out) {
    uint64_t keys[SPACE];
    float *device = fixture_alloc(r, 3 * sizeof out->weights[0]);
    uint64_t *scores = fixture_alloc(r, sizeof out->scores[0]);
    uint8_t *found = fixture_alloc(r, sizeof out->found[0]);
    void *device_keys = fixture_alloc(r, sizeof keys);
    const hotbed_rows rows = {
        .weights = device,
        .states = {device + SPACE * DIM, device + 2 * SPACE * DIM},
        .scores = scores};
    for (uint32_t t = 0; t < TABLES; t++) {
        for (uint64_t i = 0; i < SPACE; i++)
            keys[i] = key_number(t, i);
        fixture_upload(r, device_keys, keys, sizeof keys);
        CHECK_OK(hotbed_fill(device, 0, 3 * sizeof out->weights[0], r->stream));
        CHECK_OK(hotbed_fill(scores, 0, sizeof out->scores[0], r->stream));
        CHECK_OK(
            hotbed_storage_get_rows(r->storage, t, SPACE, device_keys, &rows, found, r->stream));
        fixture_download(r, out->weights[t], rows.weights, sizeof out->weights[t]);
        for (int s = 0; s < 2; s++)
            fixture_download(r, out->states[t][s], rows.states[s], sizeof out->states[t][s]);
        fixture_download(r, out->scores[t], scores, sizeof out->scores[t]);
        fixture_download(r, out->found[t], found, sizeof out->found[t]);
        out->stats[t].size = sizeof out->stats[t];
        CHECK_OK(hotbed_storage_stats(r->storage, t, &out->stats[t], r->stream));
        out->keys[t] = fixture_size(r, t);
    }
}

static void run(hotbed_backend backend, int mode, hotbed_memory_kind kind, image *out) {
    setup s;
    fixture r;
    hotbed_ticket *ticket;
    hotbed_batch batch = {.size = sizeof batch};
    uint64_t keys[TABLES * SAMPLES];
    rng random = rng_start((uint64_t)mode);
    memset(out, 0, sizeof *out);
    mixture(&s, mode, kind);
    fixture_open_bare(&r, backend, &s.options);
    batch.num_keys = TABLES * SAMPLES;
    batch.batch_size = SAMPLES;
    batch.keys = fixture_alloc(&r, sizeof keys);
    float *output = fixture_alloc(&r, sizeof out->outputs[0]);
    CHECK_OK(hotbed_ticket_create(r.storage, batch.num_keys, SAMPLES, r.stream, &ticket));
    for (int step = 0; step < STEPS; step++) {
        for (uint32_t t = 0; t < TABLES; t++)
            for (uint32_t i = 0; i < SAMPLES; i++)
                keys[t * SAMPLES + i] = key_number(t, rng_below(&random, t == 2 ? 300 : SPACE));
        if (step == 10 || step == 20)
            CHECK_OK(hotbed_storage_grow(r.storage, 3, step == 10 ? 300 : 600, r.stream));
        fixture_upload(&r, (void *)batch.keys, keys, sizeof keys);
        CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, ticket, r.stream));
        CHECK_OK(hotbed_storage_forward(r.storage, ticket, output, 0, r.stream));
        CHECK_OK(hotbed_storage_backward(r.storage, ticket, output, 0, r.stream));
        fixture_download(&r, out->outputs[step], output, sizeof out->outputs[step]);
    }
    read_all(&r, out);
    hotbed_ticket_destroy(ticket);
    CHECK_EQ(fixture_pinned(&r), 0);
    fixture_close(&r);
}

static void results_do_not_depend_on_the_memory_of_the_index(hotbed_backend backend) {
    static image device, other;
    for (int mode = 0; mode < MODES; mode++) {
        run(backend, mode, HOTBED_MEMORY_DEVICE, &device);
        CHECK(device.stats[3].rejected > 100 && device.keys[3] > 200);
        for (int k = 1; k < num_kinds(backend); k++) {
            if (hotbed_test_is_small() && (mode + k) % 2 == 0)
                continue;
            run(backend, mode, kinds[k], &other);
            CHECK_BYTES(other.outputs, device.outputs, sizeof device.outputs);
            CHECK_BYTES(other.found, device.found, sizeof device.found);
            CHECK_BYTES(other.weights, device.weights, sizeof device.weights);
            CHECK_BYTES(other.states, device.states, sizeof device.states);
            CHECK_BYTES(other.scores, device.scores, sizeof device.scores);
            for (uint32_t t = 0; t < TABLES; t++) {
                CHECK_EQ(other.keys[t], device.keys[t]);
                CHECK_EQ(other.stats[t].hits, device.stats[t].hits);
                CHECK_EQ(other.stats[t].inserts, device.stats[t].inserts);
                CHECK_EQ(other.stats[t].rejected, device.stats[t].rejected);
                CHECK_EQ(other.stats[t].refused, 0);
            }
        }
    }
}

/* The lower tier evicts its lowest scores, with its index in any memory. */
static void a_full_lower_tier_evicts(hotbed_backend backend) {
    enum { KEYS = 900, BATCH = 50, CAPACITY = 200 };
    for (int mode = 0; mode < MODES; mode++) {
        setup s;
        fixture r;
        hotbed_ticket *ticket;
        hotbed_batch batch = {.size = sizeof batch};
        hotbed_table_stats stats = {.size = sizeof stats};
        uint64_t keys[BATCH];
        uint8_t found[BATCH];
        setup_start(&s, 1, DIM, CAPACITY);
        s.tables[0].upper_capacity = 60;
        s.tables[0].evict = HOTBED_EVICT_LOWEST;
        set_mode(&s, mode, HOTBED_MEMORY_PINNED);
        fixture_open_bare(&r, backend, &s.options);
        batch.num_keys = batch.batch_size = BATCH;
        batch.keys = fixture_alloc(&r, sizeof keys);
        uint8_t *flags = fixture_alloc(&r, sizeof found);
        CHECK_OK(hotbed_ticket_create(r.storage, BATCH, BATCH, r.stream, &ticket));
        for (uint64_t first = 0; first < KEYS; first += BATCH) {
            for (uint64_t i = 0; i < BATCH; i++)
                keys[i] = key_number(0, first + i);
            fixture_upload(&r, (void *)batch.keys, keys, sizeof keys);
            CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, ticket, r.stream));
            CHECK_OK(hotbed_ticket_cancel(ticket, r.stream));
            CHECK_OK(hotbed_stream_sync(r.stream));
        }
        CHECK_OK(hotbed_storage_stats(r.storage, 0, &stats, r.stream));
        CHECK_EQ(stats.inserts, KEYS);
        CHECK_EQ(stats.evictions, KEYS - fixture_size(&r, 0));
        CHECK(fixture_size(&r, 0) >= CAPACITY * 9 / 10);
        const hotbed_rows nothing = {0};
        CHECK_OK(
            hotbed_storage_get_rows(r.storage, 0, BATCH, batch.keys, &nothing, flags, r.stream));
        fixture_download(&r, found, flags, sizeof found);
        for (uint32_t i = 0; i < BATCH; i++) /* keys of the last batch */
            CHECK_EQ(found[i], 1);
        hotbed_ticket_destroy(ticket);
        CHECK_EQ(fixture_pinned(&r), 0);
        fixture_close(&r);
    }
}

/* --- memory ---------------------------------------------------------------------------------- */

/* The changes of the library's memory counters since `before`. */
static hotbed_counters since(const hotbed_counters *before) {
    hotbed_counters now = hotbed_test_counters();
    for (int k = 0; k <= HOTBED_MEMORY_FILE; k++)
        now.memory_bytes[k] -= before->memory_bytes[k];
    return now;
}

/* Open a storage.  Returns the memory that this has allocated. */
static hotbed_counters open_counted(fixture *r, hotbed_backend backend, const setup *s) {
    hotbed_counters before = hotbed_test_counters();
    fixture_open_bare(r, backend, &s->options);
    return since(&before);
}

static uint64_t lower_index(const fixture *r, hotbed_memory_kind kind) {
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < hotbed_storage_num_tables(r->storage); t++) {
        hotbed_table_info info = info_of(r, t);
        CHECK_EQ(info.lower_index_memory, kind);
        CHECK(info.lower_index_bytes > 0 && info.lower_index_bytes < info.index_bytes);
        bytes += info.lower_index_bytes;
    }
    return bytes;
}

/* Bytes of device memory for the descriptions of that many segments. */
static uint64_t described(uint64_t segments) {
    return (segments * sizeof(hotbed_index_segment) + 255) / 256 * 256;
}

/* With the index in another kind of memory, less device memory is allocated and more of that kind, by the reported
 * bytes. Each table has a description in addition, which is copied through pinned memory. */
static void allocated_memory_is_as_reported(hotbed_backend backend) {
    /* descriptions of the table that may grow */
    const uint64_t segments = 1 + HOTBED_GROWTHS_MOST + 1;
    const uint64_t more = described(segments + TABLES) - described(segments);
    CHECK(more <= TABLES * 128);
    for (int mode = 0; mode < MODES; mode++) {
        setup s;
        fixture r;
        mixture(&s, mode, HOTBED_MEMORY_DEVICE);
        hotbed_counters device = open_counted(&r, backend, &s);
        uint64_t bytes = lower_index(&r, HOTBED_MEMORY_DEVICE);
        CHECK_EQ(
            info_of(&r, 0).lower_index_bytes, info_of(&r, 0).lower_slots * 2 * sizeof(uint64_t));
        CHECK_EQ(
            info_of(&r, 1).lower_index_bytes, info_of(&r, 1).lower_slots * 3 * sizeof(uint64_t));
        fixture_close(&r);
        for (int k = 1; k < num_kinds(backend); k++) {
            mixture(&s, mode, kinds[k]);
            hotbed_counters other = open_counted(&r, backend, &s);
            CHECK_EQ(lower_index(&r, kinds[k]), bytes);
            CHECK_EQ(
                other.memory_bytes[HOTBED_MEMORY_DEVICE] + bytes,
                device.memory_bytes[HOTBED_MEMORY_DEVICE] + more);
            for (int kind = HOTBED_MEMORY_PINNED; kind <= HOTBED_MEMORY_FILE; kind++)
                CHECK_EQ(
                    other.memory_bytes[kind] - device.memory_bytes[kind],
                    (kind == (int)kinds[k] ? bytes : 0) +
                        (kind == HOTBED_MEMORY_PINNED ? more : 0));
            fixture_close(&r);
        }
    }
}

static void no_memory_is_an_error(hotbed_backend backend) {
    setup s;
    mixture(&s, 0, HOTBED_MEMORY_PINNED);
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (uint64_t n = 1;; n++) {
        hotbed_storage *storage;
        fault_arm(n);
        hotbed_status status = hotbed_storage_create(&s.options, stream, &storage);
        if (!fault_disarm()) {
            CHECK_OK(status);
            hotbed_storage_destroy(storage);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(storage == NULL);
    }
    hotbed_stream_destroy(stream);
}

/* --- growth ---------------------------------------------------------------------------------- */

/* A growth allocates the index of its segment in the same kind of memory. */
static void a_growth_uses_the_memory_of_the_index(hotbed_backend backend) {
    for (int mode = 0; mode < MODES; mode++) {
        for (int k = 0; k < num_kinds(backend); k++) {
            setup s;
            fixture r;
            test_ticket l;
            rng random = rng_start((uint64_t)mode << 8 | (uint64_t)k);
            setup_start(&s, 2, DIM, 100);
            s.tables[0].upper_capacity = s.tables[1].upper_capacity = 40;
            s.tables[1].max_capacity = 1600;
            set_mode(&s, mode, kinds[k]);
            fixture_open(&r, backend, &s.options);
            test_ticket_open(&r, &l, 2 * 16, 16);
            for (uint64_t capacity = 100; capacity <= 1600;
                 capacity *= hotbed_test_is_small() ? 4 : 2) {
                hotbed_table_info then = info_of(&r, 1);
                hotbed_counters before = hotbed_test_counters();
                CHECK_OK(hotbed_storage_grow(r.storage, 1, capacity, r.stream));
                hotbed_counters grown = since(&before);
                hotbed_table_info now = info_of(&r, 1);
                uint64_t slots = now.segment_slots - then.segment_slots;
                CHECK_EQ(slots > 0, capacity > 100);
                CHECK_EQ(now.lower_index_bytes - then.lower_index_bytes, slots * 16);
                CHECK_EQ(now.index_bytes - then.index_bytes, slots * 16);
                for (int kind = HOTBED_MEMORY_DEVICE; kind <= HOTBED_MEMORY_FILE; kind++)
                    CHECK_EQ(
                        grown.memory_bytes[kind],
                        (kind == (int)kinds[k] ? slots * 16 : 0) +
                            (kind == HOTBED_MEMORY_PINNED && slots > 0
                                 ? slots * now.row_bytes + sizeof(hotbed_index_segment)
                                 : 0));
                const batch_shape how = {.batch_size = 16, .key_space = capacity == 100 ? 60 : 90};
                for (int step = 0; step < (hotbed_test_is_small() ? 3 : 6); step++)
                    test_ticket_step(&l, &random, &how);
            }
            fixture_check(&r);
            fixture_close(&r);
        }
    }
}

/* --- descriptions ---------------------------------------------------------------------------- */

static void check_explanation(const fixture *r, const char *format, hotbed_table_info info) {
    char text[512], rest[128];
    CHECK_OK(hotbed_storage_explain(r->storage, text, sizeof text));
    char *rows = strstr(text, "; a row of ");
    CHECK(rows != NULL);
    *rows = 0;
    (void)snprintf(
        rest, sizeof rest, format, (double)(info.index_bytes - info.lower_index_bytes) / 1000.0,
        (double)info.lower_index_bytes / 1000.0);
    const char *index = strstr(text, "; index ");
    CHECK(index != NULL);
    CHECK_STRING(index + 2, rest);
}

static void rows_are_explained(hotbed_backend backend) {
    setup s;
    fixture r;
    char text[1024];
    setup_start(&s, 3, 16, 100);
    s.tables[0].name = "item", s.tables[0].dtype = HOTBED_INT8;
    s.tables[1].name = "user", s.tables[1].dtype = HOTBED_FP8, s.tables[1].dim = 128;
    s.options.optimizer.kind = HOTBED_OPT_ROWWISE_ADAGRAD;
    fixture_open_bare(&r, backend, &s.options);
    CHECK_OK(hotbed_storage_explain(r.storage, text, sizeof text));
    CHECK(strstr(text, "; a row of item: 20 bytes of int8, 4 of states, 32 in all;") != NULL);
    CHECK(strstr(text, "; a row of user: 144 bytes of fp8, 4 of states, 160 in all;") != NULL);
    CHECK(strstr(text, ": 64 bytes of f32, 4 of states, 80 in all") != NULL);
    fixture_close(&r);
    s.tables[1].state_dtype = HOTBED_BF16;
    s.options.optimizer.kind = HOTBED_OPT_ADAM;
    fixture_open_bare(&r, backend, &s.options);
    CHECK_OK(hotbed_storage_explain(r.storage, text, sizeof text));
    CHECK(strstr(text, "; a row of item: 20 bytes of int8, 128 of states, 160 in all;") != NULL);
    CHECK(strstr(text, "; a row of user: 144 bytes of fp8, 512 of states, 656 in all;") != NULL);
    fixture_close(&r);
}

static void both_indexes_are_explained(hotbed_backend backend) {
    static const char *const names[] = {"device", "pinned", "pageable", "file"};
    for (int k = 0; k < num_kinds(backend); k++) {
        setup s;
        fixture r;
        char format[128];
        setup_start(&s, 1, DIM, 5000);
        s.tables[0].upper_capacity = 500;
        s.tables[0].max_capacity = 20000;
        set_mode(&s, 0, kinds[k]);
        fixture_open_bare(&r, backend, &s.options);
        (void)snprintf(
            format, sizeof format,
            "index %%.3g KB in device memory, the lower tier's %%.3g KB in %s memory", names[k]);
        check_explanation(&r, format, info_of(&r, 0));
        uint64_t before = info_of(&r, 0).lower_index_bytes;
        CHECK_OK(hotbed_storage_grow(r.storage, 0, 20000, r.stream));
        CHECK(info_of(&r, 0).lower_index_bytes > 3 * before);
        check_explanation(&r, format, info_of(&r, 0));
        CHECK_OK(hotbed_stream_sync(r.stream));
        fixture_close(&r);
        s.options.mode = HOTBED_MODE_HBM_DIRECT; /* without a lower tier */
        fixture_open_bare(&r, backend, &s.options);
        CHECK_EQ(info_of(&r, 0).lower_index_bytes, 0);
        CHECK_EQ(info_of(&r, 0).lower_index_memory, 0);
        check_explanation(&r, "index %.3g KB in device memory", info_of(&r, 0));
        fixture_close(&r);
    }
}

/* The budget counts rows only, so the mode does not depend on the memory of the index. */
static void no_index_counts_against_the_budget(hotbed_backend backend) {
    for (int k = 0; k < num_kinds(backend); k++) {
        for (int less = 0; less < 2; less++) {
            setup s;
            fixture r;
            setup_start(&s, 2, 16, 970); /* 1,008 slots of 64 bytes in each table */
            set_mode(&s, 0, kinds[k]);
            s.options.mode = HOTBED_MODE_AUTO;
            s.options.hbm_bytes = 2 * 1008 * 64 - (uint64_t)less;
            fixture_open_bare(&r, backend, &s.options);
            CHECK_EQ(
                hotbed_storage_mode(r.storage),
                less ? HOTBED_MODE_DEFAULT : HOTBED_MODE_HBM_DIRECT);
            fixture_close(&r);
        }
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(results_do_not_depend_on_the_memory_of_the_index)},
    {TEST(a_full_lower_tier_evicts)},
    {TEST(allocated_memory_is_as_reported)},
    {TEST(no_memory_is_an_error)},
    {TEST(a_growth_uses_the_memory_of_the_index)},
    {TEST(rows_are_explained)},
    {TEST(both_indexes_are_explained)},
    {TEST(no_index_counts_against_the_budget)},
    {NULL, NULL},
};
