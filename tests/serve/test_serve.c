/* tests/serve/test_serve.c - publishing and reading: each documented result and error. */
#include "base/float.h"
#include "base/hash_core.h"
#include "hotbed/hotbed.h"
#include "serve/encode.h"
#include "serve/format.h"
#include "tests/checkpoint/sample.h"
#include "tests/serve/served.h"
#include "tests/support/harness.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What most tests need. */
typedef struct bench {
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_publish_options options;
    hotbed_publisher *publisher;
    hotbed_reader *reader;
    char directory[512];
    served_cut cut;
    uint64_t step;
    hotbed_external *store; /* NULL without one */
} bench;

static const hotbed_encoding plain[SERVED_TABLES]; /* TABLE */

/* Tables whose bit is set in `tracks` record their changes. `stored`: over an external store. */
static void begin_with(bench *b, hotbed_backend backend, uint32_t tracks, bool stored) {
    *b = (bench){.stream = sample_stream(backend)};
    b->storage = stored ? served_create_stored(7, tracks, b->stream, &b->store)
                        : served_create(7, tracks, b->stream);
    b->options = (hotbed_publish_options){.size = sizeof b->options};
    snprintf(b->directory, sizeof b->directory, "%s", sample_path("published"));
}

static void begin_tracked(bench *b, hotbed_backend backend, uint32_t tracks) {
    begin_with(b, backend, tracks, false);
}

static void begin(bench *b, hotbed_backend backend) {
    begin_tracked(b, backend, 0);
}

static void create(bench *b) {
    CHECK_OK(hotbed_publisher_create(
        b->directory, &b->storage, 1, &b->options, b->stream, &b->publisher));
}

/* Change the storage and publish it. */
static void publish(bench *b) {
    for (int i = 0; i < 3; i++)
        served_change(b->storage, b->stream);
    served_look(
        b->storage, b->options.encodings == NULL ? plain : b->options.encodings, ++b->step, &b->cut,
        b->stream);
    CHECK_OK(hotbed_publisher_publish(b->publisher, b->step, b->stream));
    CHECK_OK(hotbed_publisher_wait(b->publisher));
}

static void finish(bench *b) {
    hotbed_reader_close(b->reader);
    hotbed_publisher_destroy(b->publisher);
    hotbed_storage_destroy(b->storage);
    hotbed_external_destroy(b->store);
    hotbed_stream_destroy(b->stream);
}

static const char *file_of(const bench *b, const char *name) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", b->directory, name);
    return path;
}

/* --- what is read is what was published --------------------------------------------------------------- */

static void a_reader_follows_a_publisher(hotbed_backend backend) {
    bench b;
    begin(&b, backend);
    b.options.base_every = 4;
    create(&b);
    publish(&b);
    CHECK_OK(hotbed_reader_open(b.directory, NULL, &b.reader));
    for (uint64_t cut = 1; cut <= 12; cut++) {
        hotbed_reader_stats stats = {.size = sizeof stats};
        CHECK_OK(hotbed_reader_poll(b.reader));
        served_check(b.reader, &b.cut);
        CHECK_OK(hotbed_reader_get_stats(b.reader, &stats));
        CHECK_EQ(stats.version, cut);
        CHECK_EQ(stats.newest, cut);
        CHECK_EQ(stats.behind, 0);
        CHECK_EQ(stats.base, (cut - 1) / 4 * 4 + 1);
        CHECK_EQ(stats.versions, cut);
        CHECK_EQ(stats.bases, (cut + 3) / 4);
        CHECK(stats.mapped_bytes > 0 && stats.memory_bytes > 0 && stats.age >= 0);
        CHECK_EQ(stats.keys, cut * SERVED_TABLES * SERVED_KEYS);
        publish(&b);
    }
    finish(&b);
}

/* Threads of the program handle its signals. */
static void signals_do_not_reach_the_librarys_threads(hotbed_backend backend) {
    const hotbed_reader_options follow = {.size = sizeof follow, .follow_ms = 1};
    bench b;
    sigset_t usr1, before;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    begin(&b, backend);
    CHECK_EQ(pthread_sigmask(SIG_UNBLOCK, &usr1, NULL), 0);
    create(&b);
    publish(&b);
    CHECK_OK(hotbed_reader_open(b.directory, &follow, &b.reader));
    CHECK_EQ(pthread_sigmask(SIG_BLOCK, &usr1, &before), 0);
    CHECK_EQ(
        kill(getpid(), SIGUSR1), 0); /* ends the process if a thread takes it, which now runs */
    publish(&b);
    for (hotbed_reader_stats stats = {.size = sizeof stats}; stats.version < 2; sched_yield())
        CHECK_OK(hotbed_reader_get_stats(b.reader, &stats));
    CHECK_EQ(sigtimedwait(&usr1, NULL, &(struct timespec){0}), SIGUSR1);
    CHECK_EQ(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
    finish(&b);
}

static void lookups_have_the_bytes_of_eval(hotbed_backend backend) {
    bench b;
    begin(&b, backend);
    create(&b);
    publish(&b);
    publish(&b);
    CHECK_OK(hotbed_reader_open(b.directory, NULL, &b.reader));
    enum { BAGS = 9, KEYS = 70 };
    for (int pooling = HOTBED_POOL_SUM; pooling <= HOTBED_POOL_MEAN; pooling++)
        for (int weighted = 0; weighted < 2; weighted++) {
            uint64_t keys[KEYS];
            int64_t offsets[BAGS + 1] = {0};
            float weights[KEYS], got[BAGS * SERVED_DIM_MOST] = {0}, want[SERVED_DIM_MOST];
            for (int i = 0; i < KEYS; i++) {
                keys[i] = served_keys[hotbed_test_below(SERVED_KEYS)];
                weights[i] = hotbed_test_float();
            }
            for (int i = 1; i <= BAGS; i++)
                offsets[i] = i == 3 ? offsets[2] : i == BAGS ? KEYS : offsets[i - 1] + (i * 5) % 16;
            for (uint32_t t = 0; t < 2; t++) {
                hotbed_lookup lookup = {
                    .table = t,
                    .pooling = (hotbed_pooling)pooling,
                    .batch_size = BAGS,
                    .num_keys = KEYS,
                    .keys = keys,
                    .offsets = offsets,
                    .weights = weighted ? weights : NULL,
                    .output = got,
                    .stride = SERVED_DIM_MOST};
                CHECK_OK(hotbed_reader_lookup(b.reader, &lookup, 1, NULL));
                for (int bag = 0; bag < BAGS; bag++) { /* as hotbed_storage_eval() computes it */
                    memset(want, 0, sizeof want);
                    for (int64_t i = offsets[bag]; i < offsets[bag + 1]; i++) {
                        uint32_t k = 0;
                        while (served_keys[k] != keys[i])
                            k++;
                        for (uint32_t e = 0; e < served_dims[t]; e++)
                            want[e] +=
                                weighted ? weights[i] * b.cut.rows[t][k][e] : b.cut.rows[t][k][e];
                    }
                    int64_t n = offsets[bag + 1] - offsets[bag];
                    for (uint32_t e = 0; e < served_dims[t] && n > 0; e++)
                        want[e] = pooling == HOTBED_POOL_MEAN ? want[e] / (float)n : want[e];
                    CHECK_BYTES(&got[bag * SERVED_DIM_MOST], want, served_dims[t] * sizeof(float));
                }
            }
        }
    finish(&b);
}

/* The library's own eval, over a storage that pools. */
static void pooled_lookups_are_those_of_the_storage(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    hotbed_table_options table;
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    hotbed_publish_options publish_options;
    hotbed_publisher *publisher = NULL;
    hotbed_reader *reader = NULL;
    enum { N = 40, DIM = 7, BAGS = 5 };
    uint64_t keys[N];
    float rows[N * DIM], weights[N], want[BAGS * DIM], got[BAGS * DIM];
    int64_t offsets[BAGS + 1] = {0, 3, 3, 20, 33, N};
    for (int i = 0; i < N; i++) {
        keys[i] = 3 + 7 * (uint64_t)i;
        weights[i] = hotbed_test_float();
        for (int e = 0; e < DIM; e++)
            rows[i * DIM + e] = hotbed_test_float();
    }
    table = (hotbed_table_options){.size = sizeof table};
    table.name = "t", table.dim = DIM, table.capacity = 100;
    table.eval_initializer.value = 0.3F;
    hotbed_storage_options_init(&options);
    options.num_tables = 1, options.tables = &table, options.pooling = HOTBED_POOL_MEAN;
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    hotbed_rows set = {.weights = rows};
    CHECK_OK(hotbed_storage_set_rows(storage, 0, N / 2, keys, &set, stream));
    hotbed_batch batch = {.size = sizeof batch};
    batch.batch_size = BAGS, batch.num_keys = N, batch.keys = keys, batch.offsets = offsets;
    batch.weights = weights;
    CHECK_OK(hotbed_storage_eval(storage, &batch, want, DIM, stream));
    CHECK_OK(hotbed_stream_sync(stream));
    publish_options = (hotbed_publish_options){.size = sizeof publish_options};
    CHECK_OK(hotbed_publisher_create(
        sample_path("p"), &storage, 1, &publish_options, stream, &publisher));
    CHECK_OK(hotbed_publisher_publish(publisher, 1, stream));
    CHECK_OK(hotbed_publisher_wait(publisher));
    CHECK_OK(hotbed_reader_open(sample_path("p"), NULL, &reader));
    hotbed_lookup lookup = {
        .pooling = HOTBED_POOL_MEAN,
        .batch_size = BAGS,
        .num_keys = N,
        .keys = keys,
        .offsets = offsets,
        .weights = weights,
        .output = got};
    CHECK_OK(hotbed_reader_lookup(reader, &lookup, 1, NULL));
    CHECK_BYTES(got, want, sizeof want);
    hotbed_reader_close(reader);
    hotbed_publisher_destroy(publisher);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

static void each_encoding_is_as_near_as_it_says(hotbed_backend backend) {
    enum { DIM = 33 };
    for (int round = 0; round < 300; round++) {
        float row[DIM], out[DIM], value, least = INFINITY, most = -INFINITY;
        unsigned char bytes[4 * DIM + 8];
        float scale = ldexpf(1.0F, (int)hotbed_test_below(30) - 20);
        float shift = round % 3 == 0 ? 0.0F : 100.0F * scale * hotbed_test_float();
        for (int e = 0; e < DIM; e++) {
            row[e] = round == 0 ? 0.75F : scale * hotbed_test_float() + shift;
            least = fminf(least, row[e]);
            most = fmaxf(most, row[e]);
        }
        CHECK(hotbed_row_encode(HOTBED_ENCODING_F32, DIM, HOTBED_F32, row, bytes, &value));
        hotbed_row_decode(HOTBED_ENCODING_F32, DIM, bytes, out);
        CHECK_BYTES(row, out, sizeof row);
        CHECK(hotbed_row_encode(HOTBED_ENCODING_BF16, DIM, HOTBED_F32, row, bytes, &value));
        hotbed_row_decode(HOTBED_ENCODING_BF16, DIM, bytes, out);
        for (int e = 0; e < DIM; e++)
            CHECK(fabsf(row[e] - out[e]) <= 0.004F * fabsf(row[e]));
        if (fabsf(least) > 60000.0F || fabsf(most) > 60000.0F)
            continue;
        CHECK(hotbed_row_encode(HOTBED_ENCODING_F16, DIM, HOTBED_F32, row, bytes, &value));
        hotbed_row_decode(HOTBED_ENCODING_F16, DIM, bytes, out);
        for (int e = 0; e < DIM; e++)
            CHECK(fabsf(row[e] - out[e]) <= 0.0005F * fabsf(row[e]) + 3e-8F);
        CHECK(hotbed_row_encode(HOTBED_ENCODING_INT8, DIM, HOTBED_F32, row, bytes, &value));
        hotbed_row_decode(HOTBED_ENCODING_INT8, DIM, bytes, out);
        uint16_t step;
        memcpy(&step, bytes + DIM + 1, sizeof step);
        for (int e = 0; e < DIM; e++)
            CHECK(fabsf(row[e] - out[e]) <= 0.51F * hotbed_f16_to_f32(step) + 1e-7F * fabsf(shift));
        CHECK(
            hotbed_f16_to_f32(step) <=
            1.01F * (most - least) / 255.0F + 0.0011F * fabsf(least) / 255.0F + 1.3e-7F);
    }
}

/* With digests, and in tables that record their changes. */
static void check_values(hotbed_backend backend, uint32_t tracks) {
    bench b;
    begin_tracked(&b, backend, tracks);
    b.options.encoding = HOTBED_ENCODING_INT8;
    create(&b);
    float row[5] = {1, 2, NAN, 4, 5};
    hotbed_rows rows = {.weights = row};
    CHECK_OK(hotbed_storage_set_rows(b.storage, 0, 1, &served_keys[3], &rows, b.stream));
    CHECK_OK(hotbed_publisher_publish(b.publisher, 1, b.stream));
    CHECK_STATUS(hotbed_publisher_wait(b.publisher), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "'hash', key 3: int8 does not have the value") != NULL);
    CHECK_STRING(hotbed_last_error_detail()->table, "hash");
    CHECK_EQ(hotbed_last_error_detail()->key, 3);
    CHECK_STATUS(hotbed_reader_open(b.directory, NULL, &b.reader), HOTBED_ERR_STATE);
    row[2] = 3; /* the next cut can be published */
    CHECK_OK(hotbed_storage_set_rows(b.storage, 0, 1, &served_keys[3], &rows, b.stream));
    CHECK_OK(hotbed_publisher_publish(b.publisher, 2, b.stream));
    CHECK_OK(hotbed_publisher_wait(b.publisher));
    row[0] = 1e6F;
    hotbed_publisher_destroy(b.publisher);
    b.options.encoding = HOTBED_ENCODING_F16;
    create(&b);
    CHECK_OK(hotbed_storage_set_rows(b.storage, 0, 1, &served_keys[3], &rows, b.stream));
    CHECK_OK(hotbed_publisher_publish(b.publisher, 3, b.stream));
    CHECK_STATUS(
        hotbed_publisher_publish(b.publisher, 4, b.stream), HOTBED_ERR_ARGUMENT); /* once */
    CHECK_OK(hotbed_publisher_wait(b.publisher));
    finish(&b);
}

static void a_value_without_an_encoding_is_refused(hotbed_backend backend) {
    check_values(backend, 0);
    check_values(backend, 7);
    /* a row of an int8 table is copied: its scale and its offset are looked at */
    for (int part = 0; part < 2; part++)
        for (int bad = 0; bad < 2; bad++) {
            const uint16_t infinite = 0x7c00;
            unsigned char row[8] = {1, 2, 3, 4}, out[8];
            float value = 0;
            if (bad)
                memcpy(row + 4 + 2 * part, &infinite, sizeof infinite);
            CHECK(
                hotbed_row_encode(HOTBED_ENCODING_INT8, 4, HOTBED_INT8, row, out, &value) == !bad);
            CHECK(!bad || value == INFINITY);
        }
}

/* --- filters ------------------------------------------------------------------------------------------ */

/* What readers have of a key, by a filter's rules. */
typedef struct published {
    bool there;
    uint64_t score; /* of the key, when they got it */
    float row[SERVED_DIM_MOST];
} published;

/* A key whose row differs from the one that readers have. */
typedef struct candidate {
    uint32_t k;
    uint64_t score;
} candidate;

static int by_rank(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    const uint64_t p = hotbed_hash_u64(served_keys[x->k]), q = hotbed_hash_u64(served_keys[y->k]);
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return p < q ? -1 : p > q;
}

/* Apply a filter as its comment in hotbed/changes.h says. Returns whether it has left a row out. */
static bool expect_table(
    bench *b, uint32_t t, const hotbed_change_filter *f, bool base, published *all) {
    uint64_t scores[SERVED_KEYS];
    uint8_t found[SERVED_KEYS];
    const hotbed_rows rows = {.scores = scores};
    candidate passed[SERVED_KEYS];
    uint64_t n = 0, differ = 0;
    CHECK_OK(
        hotbed_storage_get_rows(b->storage, t, SERVED_KEYS, served_keys, &rows, found, b->stream));
    CHECK_OK(hotbed_stream_sync(b->stream));
    for (uint32_t k = 0; k < SERVED_KEYS; k++) {
        const float *now = b->cut.rows[t][k];
        const size_t bytes = served_dims[t] * sizeof *now;
        double sum = 0;
        if (found[k] == 0) {
            all[k].there = false;
            continue;
        }
        if (!base && all[k].there && memcmp(all[k].row, now, bytes) == 0)
            continue;
        for (uint32_t e = 0; e < served_dims[t]; e++) {
            const double d =
                (double)now[e] - (all[k].there ? (double)all[k].row[e] : 0.25 * (double)t);
            sum += d * d;
        }
        differ++;
        const uint64_t then = all[k].there ? all[k].score : 0;
        const uint64_t occurrences = scores[k] < then ? scores[k] : scores[k] - then;
        if (base || (scores[k] >= f->min_score && occurrences >= f->min_occurrences &&
                     sqrt(sum) >= (double)f->min_change))
            passed[n++] = (candidate){.k = k, .score = scores[k]};
    }
    qsort(passed, n, sizeof *passed, by_rank);
    if (!base && f->most_rows != 0 && n > f->most_rows)
        n = f->most_rows;
    for (uint64_t i = 0; i < n; i++) {
        published *to = &all[passed[i].k];
        to->there = true;
        to->score = passed[i].score;
        memcpy(to->row, b->cut.rows[t][passed[i].k], sizeof to->row);
    }
    return n < differ;
}

/* An increment has what its filters let pass, and readers have the rest as before. */
static void filters_leave_rows_out(hotbed_backend backend) {
    static published all[SERVED_TABLES][SERVED_KEYS];
    uint64_t left_out[5] = {0};
    for (int round = 0; round < 20; round++) {
        bench b;
        hotbed_change_filter filters[SERVED_TABLES] = {{.min_score = 0}};
        begin_tracked(&b, backend, (uint32_t)hotbed_test_below(8));
        for (uint32_t t = 0; t < SERVED_TABLES; t++) {
            filters[t].min_score = round % 5 == 0 && t < 2 ? 2 + hotbed_test_below(3) : 0;
            filters[t].most_rows = round % 5 == 1 && t < 2 ? 1 + hotbed_test_below(6) : 0;
            filters[t].min_change = round % 5 == 2 ? 0.2F * (float)(1 + hotbed_test_below(9)) : 0;
            filters[t].min_occurrences = round % 5 == 4 && t == 1 ? 2 + hotbed_test_below(3) : 0;
            if (round % 5 == 3)
                filters[t] = (hotbed_change_filter){
                    .min_score = t < 2 ? 2 : 0, .most_rows = t < 2 ? 4 : 0, .min_change = 0.5F};
        }
        b.options.base_every = 7;
        b.options.filters = filters;
        create(&b);
        memset(all, 0, sizeof all);
        for (int i = 0, bases = 0; i < 16; i++) {
            hotbed_publish_stats stats = {.size = sizeof stats};
            publish(&b);
            CHECK_OK(hotbed_publisher_stats(b.publisher, &stats));
            const bool base = stats.bases > (uint64_t)bases; /* also after a clear of a table */
            bases = (int)stats.bases;
            for (uint32_t t = 0; t < SERVED_TABLES; t++)
                left_out[round % 5] += expect_table(&b, t, &filters[t], base, all[t]);
            served_cut want = {.step = b.step};
            for (uint32_t t = 0; t < SERVED_TABLES; t++)
                for (uint32_t k = 0; k < SERVED_KEYS; k++) {
                    want.keys[t] += all[t][k].there;
                    for (uint32_t e = 0; e < served_dims[t]; e++)
                        want.rows[t][k][e] = all[t][k].there ? all[t][k].row[e] : 0.25F * (float)t;
                }
            if (i == 0)
                CHECK_OK(hotbed_reader_open(b.directory, NULL, &b.reader));
            CHECK_OK(hotbed_reader_poll(b.reader));
            served_check(b.reader, &want);
        }
        finish(&b);
        sample_remove(b.directory);
    }
    for (int kind = 0; kind < 5; kind++)
        CHECK(left_out[kind] > 0);
}

static void a_wrong_filter_is_named(hotbed_backend backend) {
    bench b;
    hotbed_change_filter filters[SERVED_TABLES] = {{.min_score = 0}};
    begin(&b, backend);
    b.options.filters = filters;
    filters[2].most_rows = 5;
    CHECK_STATUS(
        hotbed_publisher_create(b.directory, &b.storage, 1, &b.options, b.stream, &b.publisher),
        HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.has = HOTBED_HAS_VALUE, .parameter = "most_rows", .table = "rows", .value = 5);
    filters[2].most_rows = 0;
    filters[1].min_change = -1;
    CHECK_STATUS(
        hotbed_publisher_create(b.directory, &b.storage, 1, &b.options, b.stream, &b.publisher),
        HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.has = HOTBED_HAS_VALUE, .parameter = "min_change", .table = "half", .value = -1);
    filters[1].min_change = 0;
    filters[0].min_occurrences = 2; /* its scores are times */
    CHECK_STATUS(
        hotbed_publisher_create(b.directory, &b.storage, 1, &b.options, b.stream, &b.publisher),
        HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE, .parameter = "min_occurrences", .table = "hash", .value = 2);
    finish(&b);
}

/* With tables that record their changes, and with digests. */
static void check_increments(hotbed_backend backend, uint32_t tracks, bool stored) {
    bench b;
    begin_with(&b, backend, tracks, stored);
    create(&b);
    publish(&b);
    hotbed_publish_stats stats = {.size = sizeof stats};
    float row[16] = {9, 8, 7};
    hotbed_rows rows = {.weights = row};
    CHECK_OK(hotbed_storage_set_rows(b.storage, 1, 1, &served_keys[20], &rows, b.stream));
    CHECK_OK(hotbed_storage_set_rows(b.storage, 1, 1, &served_keys[21], &rows, b.stream));
    CHECK_OK(hotbed_publisher_publish(b.publisher, 2, b.stream));
    CHECK_OK(hotbed_storage_erase(b.storage, 1, 1, &served_keys[20], NULL, b.stream));
    CHECK_OK(hotbed_publisher_publish(b.publisher, 3, b.stream));
    CHECK_OK(hotbed_publisher_wait(b.publisher));
    CHECK_OK(hotbed_publisher_stats(b.publisher, &stats));
    CHECK_EQ(stats.last_rows, 0);
    CHECK_EQ(stats.last_erased, 1);
    CHECK_EQ(stats.cuts, 3);
    CHECK_EQ(stats.bases, 1);
    CHECK_EQ(stats.number, 3);
    CHECK_EQ(stats.step, 3);
    CHECK_EQ(stats.erased, 1);
    /* the same bytes in this encoding: nothing to write */
    CHECK_OK(hotbed_publisher_publish(b.publisher, 4, b.stream));
    CHECK_OK(hotbed_publisher_wait(b.publisher));
    CHECK_OK(hotbed_publisher_stats(b.publisher, &stats));
    CHECK_EQ(stats.last_rows + stats.last_erased, 0);
    CHECK_OK(hotbed_reader_open(b.directory, NULL, &b.reader));
    served_look(b.storage, plain, 4, &b.cut, b.stream);
    served_check(b.reader, &b.cut);
    finish(&b);
}

static void an_increment_has_what_changed(hotbed_backend backend) {
    for (uint32_t tracks = 0; tracks < 8; tracks += 7)
        for (int stored = 0; stored < 2; stored++)
            check_increments(backend, tracks, stored == 1);
}

/* Most rows that are trained are not in the upper tier when they are published. */
static void a_storage_over_a_store_is_published(hotbed_backend backend) {
    bench b;
    begin_with(&b, backend, 7, true);
    create(&b);
    publish(&b);
    CHECK_OK(hotbed_reader_open(b.directory, NULL, &b.reader));
    for (int cut = 0; cut < 40; cut++) {
        CHECK_OK(hotbed_reader_poll(b.reader));
        served_check(b.reader, &b.cut);
        publish(&b);
    }
    hotbed_publish_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_publisher_stats(b.publisher, &stats));
    CHECK(stats.bases < stats.cuts / 2);
    finish(&b);
}

/* Rows that are written with the same bytes are published again, if writes are what is recorded. */
static void touched_rows_are_published(hotbed_backend backend) {
    bench b;
    begin_tracked(&b, backend, 7);
    create(&b);
    publish(&b);
    hotbed_publish_stats stats = {.size = sizeof stats};
    float row[16] = {9, 8, 7};
    hotbed_rows rows = {.weights = row};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hotbed_storage_set_rows(b.storage, 1, 2, &served_keys[20], &rows, b.stream));
        CHECK_OK(hotbed_publisher_publish(b.publisher, 2, b.stream));
        CHECK_OK(hotbed_publisher_wait(b.publisher));
        CHECK_OK(hotbed_publisher_stats(b.publisher, &stats));
        CHECK_EQ(stats.last_rows, 2);
        CHECK_EQ(stats.bases, 1);
    }
    finish(&b);
}

/* More keys leave than the log holds. */
static void a_cut_after_lost_keys_is_a_base(hotbed_backend backend) {
    bench b;
    begin_tracked(&b, backend, 7);
    create(&b);
    publish(&b);
    CHECK_OK(hotbed_reader_open(b.directory, NULL, &b.reader));
    hotbed_publish_stats stats = {.size = sizeof stats};
    float row[16 * SERVED_KEYS] = {0};
    hotbed_rows rows = {.weights = row};
    for (uint64_t n = 16; n <= 17; n++) {
        CHECK_OK(hotbed_storage_set_rows(b.storage, 1, n, served_keys, &rows, b.stream));
        CHECK_OK(hotbed_publisher_publish(b.publisher, 8, b.stream));
        CHECK_OK(hotbed_storage_erase(b.storage, 1, n, served_keys, NULL, b.stream));
        CHECK_OK(hotbed_publisher_publish(b.publisher, 9, b.stream));
        CHECK_OK(hotbed_publisher_wait(b.publisher));
        CHECK_OK(hotbed_publisher_stats(b.publisher, &stats));
        CHECK_EQ(stats.bases, n - 15);
        CHECK_EQ(stats.last_erased, n == 16 ? 16 : 0);
        served_look(b.storage, plain, 9, &b.cut, b.stream);
        CHECK_OK(hotbed_reader_poll(b.reader));
        served_check(b.reader, &b.cut);
    }
    CHECK_OK(hotbed_storage_clear(b.storage, 2, b.stream));
    publish(&b);
    CHECK_OK(hotbed_publisher_stats(b.publisher, &stats));
    CHECK_EQ(stats.bases, 3);
    finish(&b);
}

/* --- the directory -------------------------------------------------------------------------------------- */

static void old_files_go_with_old_bases(hotbed_backend backend) {
    bench b;
    begin(&b, backend);
    b.options.base_every = 3;
    b.options.keep_bases = 2;
    create(&b);
    for (int i = 0; i < 7; i++) /* bases 1, 4, 7 */
        publish(&b);
    CHECK(access(file_of(&b, "cut-000000000003"), F_OK) != 0);
    CHECK(access(file_of(&b, "rows-000000000003-00000"), F_OK) != 0);
    CHECK(access(file_of(&b, "cut-000000000004"), F_OK) == 0);
    CHECK_EQ(sample_count_names(b.directory), 4 * 2 + 1); /* and the lock */
    /* a new publisher knows the bases that are there */
    hotbed_publisher_destroy(b.publisher);
    create(&b);
    publish(&b);
    CHECK(access(file_of(&b, "cut-000000000006"), F_OK) != 0);
    CHECK(access(file_of(&b, "cut-000000000007"), F_OK) == 0);
    CHECK(access(file_of(&b, "cut-000000000008"), F_OK) == 0);
    finish(&b);
}

static void a_directory_has_one_publisher(hotbed_backend backend) {
    bench b;
    hotbed_publisher *second = NULL;
    begin(&b, backend);
    create(&b);
    CHECK_STATUS(
        hotbed_publisher_create(b.directory, &b.storage, 1, &b.options, b.stream, &second),
        HOTBED_ERR_STATE);
    CHECK(second == NULL);
    CHECK(strstr(hotbed_last_error(), "another publisher") != NULL);
    publish(&b); /* the first one goes on */
    hotbed_publisher_destroy(b.publisher);
    create(&b);
    finish(&b);
}

/* A process that was forked, as a data loader's, has the lock's file open. In a process of its own, since this
 * one has no streams yet. */
static void a_directory_is_free_after_its_publisher(hotbed_backend backend) {
    int ended = 1;
    const char *directory = sample_directory();
    const pid_t child = fork();
    if (child == 0) {
        bench b;
        hotbed_publisher *second = NULL;
        begin(&b, HOTBED_BACKEND_HOST);
        snprintf(b.directory, sizeof b.directory, "%s", directory);
        create(&b);
        int ends[2];
        char word = 0;
        if (pipe(ends) != 0)
            _exit(1);
        const pid_t forked = fork();
        if (forked == 0) { /* its destroy does not unlock the directory of the other process */
            hotbed_publisher_destroy(b.publisher);
            if (write(ends[1], &word, 1) != 1)
                _exit(1);
            for (;;)
                pause();
        }
        if (read(ends[0], &word, 1) != 1)
            _exit(1);
        hotbed_status status =
            hotbed_publisher_create(directory, &b.storage, 1, &b.options, b.stream, &second);
        const bool locked = status == HOTBED_ERR_STATE;
        hotbed_publisher_destroy(b.publisher);
        status =
            hotbed_publisher_create(directory, &b.storage, 1, &b.options, b.stream, &b.publisher);
        kill(forked, SIGKILL);
        _exit(locked && status == HOTBED_OK ? 0 : 1);
    }
    CHECK_EQ(waitpid(child, &ended, 0), child);
    CHECK_EQ(ended, 0);
}

static void leftovers_of_a_killed_publisher_are_removed(hotbed_backend backend) {
    bench b;
    begin(&b, backend);
    create(&b);
    hotbed_publisher_destroy(b.publisher);
    sample_write_file(file_of(&b, ".tmp-cut-000000000007"), "x", 1);
    sample_write_file(file_of(&b, ".tmp-rows-000000000007-00000"), "x", 1);
    sample_write_file(file_of(&b, "rows-000000000009-00000"), "x", 1); /* of no cut */
    sample_write_file(file_of(&b, "notes.txt"), "x", 1);
    create(&b);
    CHECK(access(file_of(&b, ".tmp-cut-000000000007"), F_OK) != 0);
    CHECK(access(file_of(&b, ".tmp-rows-000000000007-00000"), F_OK) != 0);
    CHECK(access(file_of(&b, "notes.txt"), F_OK) == 0);
    publish(&b);
    CHECK_EQ(served_newest(b.directory), 10);
    finish(&b);
}

/* A process is killed while its publisher's thread has just written its n-th file. */
static hotbed_status kill_self(void *context, const char *name, const void *data, uint64_t bytes) {
    int *left = context;
    if (--*left == 0)
        kill(getpid(), SIGKILL);
    return HOTBED_OK;
}

static void a_killed_process_leaves_a_whole_cut(hotbed_backend backend) {
    for (int n = 1; n <= 6; n++) {
        bench b;
        int left = n, ended = 0;
        const char *directory = sample_directory();
        pid_t child = fork();
        if (child == 0) {
            begin(&b, HOTBED_BACKEND_HOST);
            snprintf(b.directory, sizeof b.directory, "%s", directory);
            b.options.file = kill_self;
            b.options.context = &left;
            create(&b);
            for (int i = 0; i < 6; i++)
                publish(&b);
            _exit(1);
        }
        CHECK_EQ(waitpid(child, &ended, 0), child);
        CHECK(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
        /* files come in pairs; the second of a pair makes the cut */
        CHECK_EQ(served_newest(directory), n / 2);
        hotbed_reader *reader = NULL;
        CHECK_STATUS(
            hotbed_reader_open(directory, NULL, &reader), n < 2 ? HOTBED_ERR_STATE : HOTBED_OK);
        hotbed_reader_close(reader);
    }
}

/* In a process of its own: this one must have no streams when it forks. */
static int child_reads(hotbed_reader *reader, const char *directory) {
    hotbed_lookup none = {.table = 0};
    bool refused = hotbed_reader_lookup(reader, &none, 1, NULL) == HOTBED_ERR_STATE &&
                   strstr(hotbed_last_error(), "after the fork") != NULL &&
                   hotbed_reader_health(reader, 0) == HOTBED_ERR_STATE &&
                   hotbed_reader_poll(reader) == HOTBED_ERR_STATE;
    hotbed_reader_close(reader); /* does not wait for the thread, which is not here */
    hotbed_reader *own = NULL;
    bool works = hotbed_reader_open(directory, NULL, &own) == HOTBED_OK &&
                 hotbed_reader_lookup(own, &none, 1, NULL) == HOTBED_OK;
    hotbed_reader_close(own);
    return refused && works ? 0 : 1;
}

static void a_forked_process_opens_a_reader_of_its_own(hotbed_backend backend) {
    int ended = 1;
    bench b;
    const char *directory = sample_directory();
    pid_t child = fork();
    if (child == 0) {
        begin(&b, HOTBED_BACKEND_HOST);
        snprintf(b.directory, sizeof b.directory, "%s", directory);
        create(&b);
        publish(&b);
        _exit(0);
    }
    CHECK_EQ(waitpid(child, &ended, 0), child);
    CHECK_EQ(ended, 0);
    hotbed_reader *reader = NULL;
    hotbed_reader_options options = {.size = sizeof options, .follow_ms = 1};
    CHECK_OK(hotbed_reader_open(directory, &options, &reader));
    child = fork();
    if (child == 0)
        _exit(child_reads(reader, directory));
    CHECK_EQ(waitpid(child, &ended, 0), child);
    CHECK_EQ(ended, 0);
    hotbed_lookup none = {.table = 0};
    CHECK_OK(hotbed_reader_lookup(reader, &none, 1, NULL));
    hotbed_reader_close(reader);
}

/* --- the callback --------------------------------------------------------------------------------------- */

typedef struct copied {
    char directory[512];
    uint64_t files;
    bool fails;
} copied;

static hotbed_status copy_file(void *context, const char *name, const void *data, uint64_t bytes) {
    copied *c = context;
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", c->directory, name);
    if (c->fails)
        return hotbed_error_set(HOTBED_ERR_IO, "the network is down");
    sample_write_file(path, data, bytes);
    c->files++;
    return HOTBED_OK;
}

static void a_callback_gets_the_same_bytes(hotbed_backend backend) {
    bench b;
    copied copy = {.files = 0};
    begin(&b, backend);
    snprintf(copy.directory, sizeof copy.directory, "%s", sample_path("copy"));
    CHECK_EQ(mkdir(copy.directory, 0777), 0);
    b.options.file = copy_file;
    b.options.context = &copy;
    create(&b);
    publish(&b);
    publish(&b);
    CHECK_EQ(copy.files, 4);
    CHECK_OK(hotbed_reader_open(copy.directory, NULL, &b.reader));
    served_check(b.reader, &b.cut);
    copy.fails = true;
    CHECK_OK(hotbed_publisher_publish(b.publisher, 3, b.stream));
    CHECK_STATUS(hotbed_publisher_wait(b.publisher), HOTBED_ERR_IO);
    CHECK_STRING(hotbed_last_error(), "the network is down");
    copy.fails = false; /* the cut after a failure follows the last one that both have */
    publish(&b);
    CHECK_OK(hotbed_reader_poll(b.reader));
    b.cut.step = b.step;
    served_check(b.reader, &b.cut);
    finish(&b);
}

/* A disk that is as slow as the test wants. */
typedef struct slow {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool in, may_go;
} slow;

static hotbed_status wait_to_go(void *context, const char *name, const void *data, uint64_t bytes) {
    slow *s = context;
    pthread_mutex_lock(&s->lock);
    s->in = true;
    pthread_cond_broadcast(&s->changed);
    while (!s->may_go)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return HOTBED_OK;
}

static void training_goes_on_while_a_cut_is_written(hotbed_backend backend) {
    bench b;
    slow s = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    begin(&b, backend);
    b.options.file = wait_to_go;
    b.options.context = &s;
    create(&b);
    CHECK(!hotbed_publisher_busy(b.publisher));
    served_change(b.storage, b.stream);
    served_look(b.storage, plain, 1, &b.cut, b.stream);
    CHECK_OK(hotbed_publisher_publish(b.publisher, 1, b.stream));
    pthread_mutex_lock(&s.lock);
    while (!s.in)
        pthread_cond_wait(&s.changed, &s.lock);
    pthread_mutex_unlock(&s.lock);
    CHECK(hotbed_publisher_busy(b.publisher)); /* and publish() has returned */
    for (int i = 0; i < 5; i++)                /* the cut has the rows of the copy, not these */
        served_change(b.storage, b.stream);
    pthread_mutex_lock(&s.lock);
    s.may_go = true;
    pthread_cond_broadcast(&s.changed);
    pthread_mutex_unlock(&s.lock);
    CHECK_OK(hotbed_publisher_wait(b.publisher));
    CHECK(!hotbed_publisher_busy(b.publisher));
    CHECK_OK(hotbed_reader_open(b.directory, NULL, &b.reader));
    served_check(b.reader, &b.cut);
    finish(&b);
}

/* --- refusals ------------------------------------------------------------------------------------------- */

static void a_lost_cut_is_named(hotbed_backend backend) {
    bench b;
    begin(&b, backend);
    create(&b);
    publish(&b);
    served_cut first = b.cut;
    publish(&b);
    publish(&b);
    char hidden[1024];
    snprintf(hidden, sizeof hidden, "%s", file_of(&b, "hidden"));
    CHECK_EQ(rename(file_of(&b, "cut-000000000002"), hidden), 0);
    CHECK_OK(hotbed_reader_open(b.directory, NULL, &b.reader));
    served_check(b.reader, &first);
    CHECK_STATUS(hotbed_reader_poll(b.reader), HOTBED_ERR_STATE);
    CHECK_STRING(hotbed_last_error(), "cut 3 follows cut 2; the reader has cut 1");
    CHECK_STATUS(hotbed_reader_health(b.reader, 0), HOTBED_ERR_STATE);
    hotbed_reader_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_reader_get_stats(b.reader, &stats));
    CHECK_EQ(stats.behind, 1);
    CHECK_EQ(stats.newest, 3);
    CHECK_EQ(stats.refused, 2);
    CHECK_EQ(rename(hidden, file_of(&b, "cut-000000000002")), 0); /* it was only late */
    CHECK_OK(hotbed_reader_poll(b.reader));
    served_check(b.reader, &b.cut);
    hotbed_reader *second = NULL;
    CHECK_EQ(rename(file_of(&b, "cut-000000000001"), hidden), 0);
    CHECK_STATUS(hotbed_reader_open(b.directory, NULL, &second), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "cut 2 and those after it follow one") != NULL);
    CHECK_EQ(rename(hidden, file_of(&b, "cut-000000000001")), 0);
    CHECK_OK(hotbed_reader_health(b.reader, 3600));
    CHECK_STATUS(hotbed_reader_health(b.reader, 1e-9), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "seconds old") != NULL);
    finish(&b);
}

static void a_replaced_directory_is_not_followed(hotbed_backend backend) {
    bench b;
    begin(&b, backend);
    create(&b);
    publish(&b);
    const served_cut first = b.cut;
    CHECK_OK(hotbed_reader_open(b.directory, NULL, &b.reader));
    hotbed_publisher_destroy(b.publisher);
    CHECK_EQ(unlink(file_of(&b, "cut-000000000001")), 0);
    CHECK_EQ(unlink(file_of(&b, "rows-000000000001-00000")), 0);
    create(&b);
    publish(&b); /* has number 1 again */
    CHECK_STATUS(hotbed_reader_poll(b.reader), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "is not the cut that the reader uses") != NULL);
    CHECK_STATUS(hotbed_reader_health(b.reader, 0), HOTBED_ERR_STATE);
    served_check(b.reader, &first);
    finish(&b);
}

/* The trainer's clock was ahead of the reader's, or the reader's was set back. */
static void a_cut_of_the_future_grows_old(hotbed_backend backend) {
    bench b;
    begin(&b, backend);
    create(&b);
    publish(&b);
    size_t bytes;
    unsigned char *data = sample_read_file(file_of(&b, "cut-000000000001"), &bytes);
    ((hotbed_cut_head *)(void *)data)->created_ns += 3600U * (uint64_t)1000000000;
    const hotbed_digest digest = hotbed_digest_of(data, bytes - sizeof digest);
    memcpy(data + bytes - sizeof digest, &digest, sizeof digest);
    sample_write_file(file_of(&b, "cut-000000000001"), data, bytes);
    free(data);
    CHECK_OK(hotbed_reader_open(b.directory, NULL, &b.reader));
    CHECK_OK(hotbed_reader_health(b.reader, 3600));
    CHECK_STATUS(hotbed_reader_health(b.reader, 1e-9), HOTBED_ERR_STATE);
    hotbed_reader_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_reader_get_stats(b.reader, &stats));
    CHECK(stats.age > 0 && stats.age < 3600 && stats.lag < 3600);
    CHECK_STATUS(hotbed_reader_health(b.reader, -1), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_reader_health(b.reader, NAN), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error_detail()->parameter, "most_seconds");
    finish(&b);
}

static void an_absent_file_is_a_field_of_the_error(hotbed_backend backend) {
    bench b;
    begin(&b, backend);
    create(&b);
    publish(&b);
    const char *path = file_of(&b, "rows-000000000001-00000");
    CHECK_EQ(unlink(path), 0);
    CHECK_STATUS(hotbed_reader_open(b.directory, NULL, &b.reader), HOTBED_ERR_STATE);
    CHECK_STRING(hotbed_last_error_detail()->path, path);
    CHECK_EQ(symlink("/dev/null", path), 0);
    CHECK_STATUS(hotbed_reader_open(b.directory, NULL, &b.reader), HOTBED_ERR_STATE);
    CHECK_STRING(hotbed_last_error_detail()->path, path);
    path = file_of(&b, "nothing");
    CHECK_STATUS(hotbed_reader_open(path, NULL, &b.reader), HOTBED_ERR_IO);
    CHECK_STRING(hotbed_last_error_detail()->path, path);
    finish(&b);
}

static void every_byte_of_the_files_is_checked(hotbed_backend backend) {
    bench b;
    begin(&b, backend);
    b.options.states = true;
    create(&b);
    publish(&b);
    for (int which = 0; which < 2; which++) {
        char path[1024];
        size_t bytes;
        snprintf(
            path, sizeof path, "%s",
            file_of(&b, which == 0 ? "cut-000000000001" : "rows-000000000001-00000"));
        unsigned char *data = sample_read_file(path, &bytes);
        uint64_t step = hotbed_test_is_small() ? 97 : 7;
        for (uint64_t at = hotbed_test_below(step); at < bytes; at += step) {
            data[at] ^= 16;
            sample_write_file(path, data, bytes);
            hotbed_status status = hotbed_reader_open(b.directory, NULL, &b.reader);
            if (which == 1 && status == HOTBED_OK) { /* a gap between columns */
                served_check(b.reader, &b.cut);
                hotbed_reader_close(b.reader);
                b.reader = NULL;
            } else {
                CHECK_EQ(status, HOTBED_ERR_STATE);
                CHECK(strstr(hotbed_last_error(), "has no whole cut: ") != NULL);
            }
            data[at] ^= 16;
        }
        sample_write_file(path, data, bytes);
        free(data);
    }
    finish(&b);
}

static void other_tables_need_a_new_reader(hotbed_backend backend) {
    bench b;
    begin(&b, backend);
    create(&b);
    publish(&b);
    CHECK_OK(hotbed_reader_open(b.directory, NULL, &b.reader));
    hotbed_publisher_destroy(b.publisher);
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    hotbed_storage *others[SERVED_TABLES], *other = NULL;
    hotbed_storage_options_init(&options);
    options.num_tables = 1, options.tables = &table;
    table.dim = 4, table.capacity = 10;
    for (int t = SERVED_TABLES - 1; t >= 0; t--) {
        static const char *const names[SERVED_TABLES] = {"hash", "none", "more"};
        table.name = names[t];
        CHECK_OK(hotbed_storage_create(&options, b.stream, &other));
        others[t] = other;
    }
    b.publisher = NULL;
    for (uint32_t n = 1; n <= SERVED_TABLES; n += 2) {
        const char *why = n == 1 ? "1 tables, but cut-000000000001 of "
                                 : "table 'hash' has dim 4, but 5 in cut-000000000001";
        CHECK_STATUS(
            hotbed_publisher_create(b.directory, others, n, &b.options, b.stream, &b.publisher),
            HOTBED_ERR_STATE);
        CHECK(strstr(hotbed_last_error(), why) != NULL);
    }
    char cut[600];
    snprintf(cut, sizeof cut, "%s/cut-000000000001", b.directory);
    CHECK_EQ(unlink(cut), 0); /* as the message says */
    CHECK_OK(hotbed_publisher_create(b.directory, &other, 1, &b.options, b.stream, &b.publisher));
    CHECK_OK(hotbed_publisher_publish(b.publisher, 2, b.stream));
    CHECK_OK(hotbed_publisher_wait(b.publisher));
    CHECK_STATUS(hotbed_reader_poll(b.reader), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "open it again") != NULL);
    served_check(b.reader, &b.cut);
    hotbed_publisher_destroy(b.publisher);
    b.publisher = NULL;
    for (int t = 0; t < SERVED_TABLES; t++)
        hotbed_storage_destroy(others[t]);
    finish(&b);
}

/* --- threads -------------------------------------------------------------------------------------------- */

typedef struct server {
    hotbed_reader *reader;
    uint64_t stop; /* atomic */
    uint64_t answers[4];
    pthread_t threads[4];
    uint64_t next;
} server;

/* Every row of a cut has the cut's step in all elements, so a mixture of two is seen. */
static void *serve(void *argument) {
    server *s = argument;
    uint64_t keys[64], last = 0, me = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED);
    float out[64 * 4];
    for (uint64_t i = 0; i < 64; i++)
        keys[i] = i;
    while (__atomic_load_n(&s->stop, __ATOMIC_RELAXED) == 0) {
        hotbed_lookup lookup = {.num_keys = 64, .keys = keys, .output = out};
        uint64_t version = 0;
        CHECK_OK(hotbed_reader_lookup(s->reader, &lookup, 1, &version));
        CHECK(version >= last);
        last = version;
        for (int i = 0; i < 64 * 4; i++)
            CHECK(out[i] == (float)version);
        s->answers[me]++;
    }
    return NULL;
}

static void a_version_is_visible_whole_or_not_at_all(hotbed_backend backend) {
    hotbed_stream *stream = sample_stream(backend);
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    hotbed_publish_options publish_options = {.size = sizeof publish_options};
    hotbed_publisher *publisher = NULL;
    hotbed_reader_options reader_options;
    server s = {.stop = 0};
    uint64_t keys[64], cuts = hotbed_test_is_small() ? 20 : 60;
    float rows[64 * 4];
    for (uint64_t i = 0; i < 64; i++)
        keys[i] = i;
    table.name = "t", table.dim = 4, table.capacity = 100;
    hotbed_storage_options_init(&options);
    options.num_tables = 1, options.tables = &table;
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    publish_options.base_every = 5;
    publish_options.keep_bases = 1;
    CHECK_OK(hotbed_publisher_create(
        sample_path("p"), &storage, 1, &publish_options, stream, &publisher));
    reader_options = (hotbed_reader_options){.size = sizeof reader_options, .follow_ms = 1};
    for (uint64_t cut = 1; cut <= cuts; cut++) {
        for (int i = 0; i < 64 * 4; i++)
            rows[i] = (float)cut;
        hotbed_rows set = {.weights = rows};
        CHECK_OK(hotbed_storage_set_rows(storage, 0, 64, keys, &set, stream));
        CHECK_OK(hotbed_publisher_publish(publisher, cut, stream));
        if (cut > 1)
            continue;
        CHECK_OK(hotbed_publisher_wait(publisher));
        CHECK_OK(hotbed_reader_open(sample_path("p"), &reader_options, &s.reader));
        for (int i = 0; i < 4; i++)
            CHECK_EQ(pthread_create(&s.threads[i], NULL, serve, &s), 0);
    }
    CHECK_OK(hotbed_publisher_wait(publisher));
    CHECK_OK(hotbed_reader_poll(s.reader));
    __atomic_store_n(&s.stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 4; i++)
        pthread_join(s.threads[i], NULL);
    hotbed_reader_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_reader_get_stats(s.reader, &stats));
    CHECK_EQ(stats.version, cuts);
    CHECK(stats.versions > 1);
    hotbed_reader_close(s.reader);
    hotbed_publisher_destroy(publisher);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
}

/* --- errors --------------------------------------------------------------------------------------------- */

static void bad_arguments_are_named(hotbed_backend backend) {
    bench b;
    begin(&b, backend);
    hotbed_publish_options bad = b.options;
    hotbed_publisher *none = NULL;
    bad.encoding = (hotbed_encoding)9;
    CHECK_STATUS(
        hotbed_publisher_create(b.directory, &b.storage, 1, &bad, b.stream, &none),
        HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "encoding 9") != NULL);
    hotbed_route route;
    CHECK_OK(hotbed_route_init(&route, HOTBED_ROUTE_HASH_ROUND_ROBIN, 2, 0));
    bad = b.options;
    bad.routes = &route;
    CHECK_STATUS(
        hotbed_publisher_create(b.directory, &b.storage, 1, &bad, b.stream, &none),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_publisher_create(b.directory, NULL, 1, &b.options, b.stream, &none),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_publisher_create(NULL, &b.storage, 1, &b.options, b.stream, &none),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_publisher_create("", &b.storage, 1, &b.options, b.stream, &none),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_publisher_create(b.directory, &b.storage, 1, NULL, b.stream, &none),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_publisher_create("/nowhere/published", &b.storage, 1, &b.options, b.stream, &none),
        HOTBED_ERR_IO);
    CHECK(none == NULL);
    CHECK_STATUS(hotbed_publisher_publish(NULL, 1, b.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_publisher_wait(NULL), HOTBED_ERR_ARGUMENT);
    CHECK(!hotbed_publisher_busy(NULL));
    CHECK(hotbed_encoding_name((hotbed_encoding)5) == NULL);
    CHECK_STRING(hotbed_encoding_name(HOTBED_ENCODING_INT8), "int8");
    create(&b);
    CHECK_STATUS(hotbed_publisher_publish(b.publisher, 1, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_publisher_stats(b.publisher, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_reader_open("/nowhere", NULL, &b.reader), HOTBED_ERR_IO);
    CHECK_STATUS(hotbed_reader_open(NULL, NULL, &b.reader), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_reader_open(b.directory, NULL, &b.reader), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "nothing is published yet") != NULL);
    publish(&b);
    CHECK_OK(hotbed_reader_open(b.directory, NULL, &b.reader));
    CHECK_EQ(hotbed_reader_num_tables(b.reader), SERVED_TABLES);
    uint32_t table = 0;
    CHECK_OK(hotbed_reader_find(b.reader, "rows", &table));
    CHECK_EQ(table, 2);
    CHECK_STATUS(hotbed_reader_find(b.reader, "../rows", &table), HOTBED_ERR_ARGUMENT);
    hotbed_reader_table info = {.size = sizeof info};
    CHECK_STATUS(hotbed_reader_table_info(b.reader, 3, &info), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_reader_table_info(b.reader, 1, &info));
    CHECK_STRING(info.name, "half");
    CHECK_EQ(info.encoding, HOTBED_ENCODING_F16);
    CHECK_EQ(info.key_type, HOTBED_KEY_U64);
    CHECK(info.missing == 0.25F);

    uint64_t keys[4] = {0, 1, 2, 3};
    int64_t offsets[3] = {0, 3, 2};
    float out[64];
    hotbed_lookup lookup = {
        .pooling = HOTBED_POOL_SUM,
        .batch_size = 2,
        .num_keys = 4,
        .keys = keys,
        .offsets = offsets,
        .output = out};
    CHECK_STATUS(hotbed_reader_lookup(b.reader, &lookup, 1, NULL), HOTBED_ERR_RANGE);
    CHECK(strstr(hotbed_last_error(), "offsets[2] is 2, not in 3 .. 4") != NULL);
    offsets[2] = 5;
    CHECK_STATUS(hotbed_reader_lookup(b.reader, &lookup, 1, NULL), HOTBED_ERR_RANGE);
    offsets[0] = -1;
    CHECK_STATUS(hotbed_reader_lookup(b.reader, &lookup, 1, NULL), HOTBED_ERR_RANGE);
    lookup.stride = 4;
    CHECK_STATUS(hotbed_reader_lookup(b.reader, &lookup, 1, NULL), HOTBED_ERR_ARGUMENT);
    lookup.stride = 0, lookup.table = 3;
    CHECK_STATUS(hotbed_reader_lookup(b.reader, &lookup, 1, NULL), HOTBED_ERR_ARGUMENT);
    lookup.table = 0, lookup.pooling = (hotbed_pooling)3;
    CHECK_STATUS(hotbed_reader_lookup(b.reader, &lookup, 1, NULL), HOTBED_ERR_ARGUMENT);
    lookup.pooling = HOTBED_POOL_SUM, lookup.offsets = NULL;
    CHECK_STATUS(hotbed_reader_lookup(b.reader, &lookup, 1, NULL), HOTBED_ERR_ARGUMENT);
    lookup.pooling = HOTBED_POOL_NONE, lookup.keys = NULL;
    CHECK_STATUS(hotbed_reader_lookup(b.reader, &lookup, 1, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_reader_lookup(NULL, &lookup, 1, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_reader_lookup(b.reader, NULL, 1, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_reader_lookup(b.reader, NULL, 0, NULL));
    finish(&b);
}

static void metrics_have_prometheus_format(hotbed_backend backend) {
    bench b;
    char text[8192];
    uint64_t bytes = 0, again = 0;
    begin(&b, backend);
    create(&b);
    publish(&b);
    CHECK_OK(hotbed_reader_open(b.directory, NULL, &b.reader));
    CHECK_OK(hotbed_reader_metrics(b.reader, NULL, 0, &bytes));
    CHECK_OK(hotbed_reader_metrics(b.reader, text, sizeof text, &again));
    CHECK_EQ(strlen(text), again);
    CHECK(strstr(text, "# TYPE hotbed_reader_version gauge\nhotbed_reader_version 1\n") != NULL);
    CHECK(strstr(text, "hotbed_reader_healthy 1\n") != NULL);
    CHECK(strstr(text, "hotbed_reader_table_keys{table=\"rows\"} 6\n") != NULL);
    CHECK(text[again - 1] == '\n');
    CHECK_STATUS(hotbed_reader_metrics(b.reader, text, 10, &bytes), HOTBED_ERR_ARGUMENT);
    CHECK_EQ(strlen(text), 9);
    CHECK_STATUS(hotbed_reader_metrics(b.reader, text, 10, NULL), HOTBED_ERR_ARGUMENT);
    finish(&b);
}

const hotbed_test hotbed_tests[] = {
    /* first: they fork, which a process with streams may not do */
    {TEST(a_killed_process_leaves_a_whole_cut)},
    {TEST(a_forked_process_opens_a_reader_of_its_own)},
    {TEST(a_directory_is_free_after_its_publisher)},
    {TEST(a_reader_follows_a_publisher)},
    {TEST(signals_do_not_reach_the_librarys_threads)},
    {TEST(lookups_have_the_bytes_of_eval)},
    {TEST(pooled_lookups_are_those_of_the_storage)},
    {TEST(each_encoding_is_as_near_as_it_says)},
    {TEST(a_value_without_an_encoding_is_refused)},
    {TEST(filters_leave_rows_out)},
    {TEST(a_wrong_filter_is_named)},
    {TEST(an_increment_has_what_changed)},
    {TEST(a_storage_over_a_store_is_published)},
    {TEST(touched_rows_are_published)},
    {TEST(a_cut_after_lost_keys_is_a_base)},
    {TEST(old_files_go_with_old_bases)},
    {TEST(a_directory_has_one_publisher)},
    {TEST(leftovers_of_a_killed_publisher_are_removed)},
    {TEST(a_callback_gets_the_same_bytes)},
    {TEST(training_goes_on_while_a_cut_is_written)},
    {TEST(a_lost_cut_is_named)},
    {TEST(a_replaced_directory_is_not_followed)},
    {TEST(a_cut_of_the_future_grows_old)},
    {TEST(an_absent_file_is_a_field_of_the_error)},
    {TEST(every_byte_of_the_files_is_checked)},
    {TEST(other_tables_need_a_new_reader)},
    {TEST(a_version_is_visible_whole_or_not_at_all)},
    {TEST(bad_arguments_are_named)},
    {TEST(metrics_have_prometheus_format)},
    {NULL, NULL},
};
