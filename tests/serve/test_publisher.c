/* tests/serve/test_publisher.c - what a publisher writes, and what it leaves when it fails or is killed. */
#include "base/float.h"
#include "base/hash_core.h"
#include "hotbed/hotbed.h"
#include "serve/encode.h"
#include "serve/publisher.h"
#include "tests/checkpoint/sample.h"
#include "tests/serve/served.h"
#include "tests/support/harness.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- encodings --------------------------------------------------------------------------------------- */

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
    served s;
    served_begin_with(&s, backend, tracks, false);
    s.options.encoding = HOTBED_ENCODING_INT8;
    served_start(&s);
    float row[5] = {1, 2, NAN, 4, 5};
    hotbed_rows rows = {.weights = row};
    CHECK_OK(hotbed_storage_set_rows(s.storage, 0, 1, &served_keys[3], &rows, s.stream));
    CHECK_OK(hotbed_publisher_publish(s.publisher, 1, s.stream));
    CHECK_STATUS(hotbed_publisher_wait(s.publisher), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "'hash', key 3: int8 does not have the value") != NULL);
    CHECK_STRING(hotbed_last_error_detail()->table, "hash");
    CHECK_EQ(hotbed_last_error_detail()->key, 3);
    CHECK_STATUS(hotbed_reader_open(s.directory, NULL, &s.reader), HOTBED_ERR_STATE);
    row[2] = 3; /* the next cut can be published */
    CHECK_OK(hotbed_storage_set_rows(s.storage, 0, 1, &served_keys[3], &rows, s.stream));
    CHECK_OK(hotbed_publisher_publish(s.publisher, 2, s.stream));
    CHECK_OK(hotbed_publisher_wait(s.publisher));
    row[0] = 1e6F;
    hotbed_publisher_destroy(s.publisher);
    s.options.encoding = HOTBED_ENCODING_F16;
    served_start(&s);
    CHECK_OK(hotbed_storage_set_rows(s.storage, 0, 1, &served_keys[3], &rows, s.stream));
    CHECK_OK(hotbed_publisher_publish(s.publisher, 3, s.stream));
    CHECK_STATUS(
        hotbed_publisher_publish(s.publisher, 4, s.stream), HOTBED_ERR_ARGUMENT); /* once */
    CHECK_OK(hotbed_publisher_wait(s.publisher));
    served_finish(&s);
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

/* --- filters ----------------------------------------------------------------------------------------- */

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
    served *s, uint32_t t, const hotbed_change_filter *f, bool base, published *all) {
    uint64_t scores[SERVED_KEYS];
    uint8_t found[SERVED_KEYS];
    const hotbed_rows rows = {.scores = scores};
    candidate passed[SERVED_KEYS];
    uint64_t n = 0, differ = 0;
    CHECK_OK(
        hotbed_storage_get_rows(s->storage, t, SERVED_KEYS, served_keys, &rows, found, s->stream));
    CHECK_OK(hotbed_stream_sync(s->stream));
    for (uint32_t k = 0; k < SERVED_KEYS; k++) {
        const float *now = s->cut.rows[t][k];
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
        memcpy(to->row, s->cut.rows[t][passed[i].k], sizeof to->row);
    }
    return n < differ;
}

/* An increment has what its filters let pass, and readers have the rest as before. */
static void filters_leave_rows_out(hotbed_backend backend) {
    static published all[SERVED_TABLES][SERVED_KEYS];
    uint64_t left_out[5] = {0};
    for (int round = 0; round < 20; round++) {
        served s;
        hotbed_change_filter filters[SERVED_TABLES] = {{.min_score = 0}};
        served_begin_with(&s, backend, (uint32_t)hotbed_test_below(8), false);
        for (uint32_t t = 0; t < SERVED_TABLES; t++) {
            filters[t].min_score = round % 5 == 0 && t < 2 ? 2 + hotbed_test_below(3) : 0;
            filters[t].most_rows = round % 5 == 1 && t < 2 ? 1 + hotbed_test_below(6) : 0;
            filters[t].min_change = round % 5 == 2 ? 0.2F * (float)(1 + hotbed_test_below(9)) : 0;
            filters[t].min_occurrences = round % 5 == 4 && t == 1 ? 2 + hotbed_test_below(3) : 0;
            if (round % 5 == 3)
                filters[t] = (hotbed_change_filter){
                    .min_score = t < 2 ? 2 : 0, .most_rows = t < 2 ? 4 : 0, .min_change = 0.5F};
        }
        s.options.base_every = 7;
        s.options.filters = filters;
        served_start(&s);
        memset(all, 0, sizeof all);
        for (int i = 0, bases = 0; i < 16; i++) {
            hotbed_publish_stats stats = {.size = sizeof stats};
            served_publish(&s);
            CHECK_OK(hotbed_publisher_stats(s.publisher, &stats));
            const bool base = stats.bases > (uint64_t)bases; /* also after a clear of a table */
            bases = (int)stats.bases;
            for (uint32_t t = 0; t < SERVED_TABLES; t++)
                left_out[round % 5] += expect_table(&s, t, &filters[t], base, all[t]);
            served_cut want = {.step = s.step};
            for (uint32_t t = 0; t < SERVED_TABLES; t++)
                for (uint32_t k = 0; k < SERVED_KEYS; k++) {
                    want.keys[t] += all[t][k].there;
                    for (uint32_t e = 0; e < served_dims[t]; e++)
                        want.rows[t][k][e] = all[t][k].there ? all[t][k].row[e] : 0.25F * (float)t;
                }
            if (i == 0)
                CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
            CHECK_OK(hotbed_reader_poll(s.reader));
            served_check(s.reader, &want);
        }
        served_finish(&s);
        sample_remove(s.directory);
    }
    for (int kind = 0; kind < 5; kind++)
        CHECK(left_out[kind] > 0);
}

static void a_wrong_filter_is_named(hotbed_backend backend) {
    served s;
    hotbed_change_filter filters[SERVED_TABLES] = {{.min_score = 0}};
    served_begin(&s, backend);
    s.options.filters = filters;
    filters[2].most_rows = 5;
    CHECK_STATUS(
        hotbed_publisher_create(s.directory, &s.storage, 1, &s.options, s.stream, &s.publisher),
        HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.has = HOTBED_HAS_VALUE, .parameter = "most_rows", .table = "rows", .value = 5);
    filters[2].most_rows = 0;
    filters[1].min_change = -1;
    CHECK_STATUS(
        hotbed_publisher_create(s.directory, &s.storage, 1, &s.options, s.stream, &s.publisher),
        HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.has = HOTBED_HAS_VALUE, .parameter = "min_change", .table = "half", .value = -1);
    filters[1].min_change = 0;
    filters[0].min_occurrences = 2; /* its scores are times */
    CHECK_STATUS(
        hotbed_publisher_create(s.directory, &s.storage, 1, &s.options, s.stream, &s.publisher),
        HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE, .parameter = "min_occurrences", .table = "hash", .value = 2);
    served_finish(&s);
}

/* --- increments -------------------------------------------------------------------------------------- */

/* With tables that record their changes, and with digests. */
static void check_increments(hotbed_backend backend, uint32_t tracks, bool stored) {
    served s;
    served_begin_with(&s, backend, tracks, stored);
    served_start(&s);
    served_publish(&s);
    hotbed_publish_stats stats = {.size = sizeof stats};
    float row[16] = {9, 8, 7};
    hotbed_rows rows = {.weights = row};
    CHECK_OK(hotbed_storage_set_rows(s.storage, 1, 1, &served_keys[20], &rows, s.stream));
    CHECK_OK(hotbed_storage_set_rows(s.storage, 1, 1, &served_keys[21], &rows, s.stream));
    CHECK_OK(hotbed_publisher_publish(s.publisher, 2, s.stream));
    CHECK_OK(hotbed_storage_erase(s.storage, 1, 1, &served_keys[20], NULL, s.stream));
    CHECK_OK(hotbed_publisher_publish(s.publisher, 3, s.stream));
    CHECK_OK(hotbed_publisher_wait(s.publisher));
    CHECK_OK(hotbed_publisher_stats(s.publisher, &stats));
    CHECK_EQ(stats.last_rows, 0);
    CHECK_EQ(stats.last_erased, 1);
    CHECK_EQ(stats.cuts, 3);
    CHECK_EQ(stats.bases, 1);
    CHECK_EQ(stats.number, 3);
    CHECK_EQ(stats.step, 3);
    CHECK_EQ(stats.erased, 1);
    /* the same bytes in this encoding: nothing to write */
    CHECK_OK(hotbed_publisher_publish(s.publisher, 4, s.stream));
    CHECK_OK(hotbed_publisher_wait(s.publisher));
    CHECK_OK(hotbed_publisher_stats(s.publisher, &stats));
    CHECK_EQ(stats.last_rows + stats.last_erased, 0);
    CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
    served_look(s.storage, NULL, 4, &s.cut, s.stream);
    served_check(s.reader, &s.cut);
    served_finish(&s);
}

static void an_increment_has_what_changed(hotbed_backend backend) {
    for (uint32_t tracks = 0; tracks < 8; tracks += 7)
        for (int stored = 0; stored < 2; stored++)
            check_increments(backend, tracks, stored == 1);
}

/* Most rows that are trained are not in the upper tier when they are published. */
static void a_storage_over_a_store_is_published(hotbed_backend backend) {
    served s;
    served_begin_with(&s, backend, 7, true);
    served_start(&s);
    served_publish(&s);
    CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
    for (int cut = 0; cut < 40; cut++) {
        CHECK_OK(hotbed_reader_poll(s.reader));
        served_check(s.reader, &s.cut);
        served_publish(&s);
    }
    hotbed_publish_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_publisher_stats(s.publisher, &stats));
    CHECK(stats.bases < stats.cuts / 2);
    served_finish(&s);
}

/* Rows that are written with the same bytes are published again, if writes are what is recorded. */
static void touched_rows_are_published(hotbed_backend backend) {
    served s;
    served_begin_with(&s, backend, 7, false);
    served_start(&s);
    served_publish(&s);
    hotbed_publish_stats stats = {.size = sizeof stats};
    float row[16] = {9, 8, 7};
    hotbed_rows rows = {.weights = row};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hotbed_storage_set_rows(s.storage, 1, 2, &served_keys[20], &rows, s.stream));
        CHECK_OK(hotbed_publisher_publish(s.publisher, 2, s.stream));
        CHECK_OK(hotbed_publisher_wait(s.publisher));
        CHECK_OK(hotbed_publisher_stats(s.publisher, &stats));
        CHECK_EQ(stats.last_rows, 2);
        CHECK_EQ(stats.bases, 1);
    }
    served_finish(&s);
}

/* More keys leave than the log holds. */
static void a_cut_after_lost_keys_is_a_base(hotbed_backend backend) {
    served s;
    served_begin_with(&s, backend, 7, false);
    served_start(&s);
    served_publish(&s);
    CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
    hotbed_publish_stats stats = {.size = sizeof stats};
    float row[16 * SERVED_KEYS] = {0};
    hotbed_rows rows = {.weights = row};
    for (uint64_t n = 16; n <= 17; n++) {
        CHECK_OK(hotbed_storage_set_rows(s.storage, 1, n, served_keys, &rows, s.stream));
        CHECK_OK(hotbed_publisher_publish(s.publisher, 8, s.stream));
        CHECK_OK(hotbed_storage_erase(s.storage, 1, n, served_keys, NULL, s.stream));
        CHECK_OK(hotbed_publisher_publish(s.publisher, 9, s.stream));
        CHECK_OK(hotbed_publisher_wait(s.publisher));
        CHECK_OK(hotbed_publisher_stats(s.publisher, &stats));
        CHECK_EQ(stats.bases, n - 15);
        CHECK_EQ(stats.last_erased, n == 16 ? 16 : 0);
        served_look(s.storage, NULL, 9, &s.cut, s.stream);
        CHECK_OK(hotbed_reader_poll(s.reader));
        served_check(s.reader, &s.cut);
    }
    CHECK_OK(hotbed_storage_clear(s.storage, 2, s.stream));
    served_publish(&s);
    CHECK_OK(hotbed_publisher_stats(s.publisher, &stats));
    CHECK_EQ(stats.bases, 3);
    served_finish(&s);
}

/* --- the directory ----------------------------------------------------------------------------------- */

static void old_files_go_with_old_bases(hotbed_backend backend) {
    served s;
    served_begin(&s, backend);
    s.options.base_every = 3;
    s.options.keep_bases = 2;
    served_start(&s);
    for (int i = 0; i < 7; i++) /* bases 1, 4, 7 */
        served_publish(&s);
    CHECK(access(served_file(&s, "cut-000000000003"), F_OK) != 0);
    CHECK(access(served_file(&s, "rows-000000000003-00000"), F_OK) != 0);
    CHECK(access(served_file(&s, "cut-000000000004"), F_OK) == 0);
    CHECK_EQ(sample_count_names(s.directory), 4 * 2 + 1); /* and the lock */
    /* a new publisher knows the bases that are there */
    hotbed_publisher_destroy(s.publisher);
    served_start(&s);
    served_publish(&s);
    CHECK(access(served_file(&s, "cut-000000000006"), F_OK) != 0);
    CHECK(access(served_file(&s, "cut-000000000007"), F_OK) == 0);
    CHECK(access(served_file(&s, "cut-000000000008"), F_OK) == 0);
    served_finish(&s);
}

static void a_directory_has_one_publisher(hotbed_backend backend) {
    served s;
    hotbed_publisher *second = NULL;
    served_begin(&s, backend);
    served_start(&s);
    CHECK_STATUS(
        hotbed_publisher_create(s.directory, &s.storage, 1, &s.options, s.stream, &second),
        HOTBED_ERR_STATE);
    CHECK(second == NULL);
    CHECK(strstr(hotbed_last_error(), "another publisher") != NULL);
    served_publish(&s); /* the first one goes on */
    hotbed_publisher_destroy(s.publisher);
    served_start(&s);
    served_finish(&s);
}

/* Each system call fails in turn; those that clean up afterwards succeed. */
static void a_create_that_fails_leaves_no_directory(hotbed_backend backend) {
    served s;
    sample_disk disk;
    uint64_t at = 0, failed = 0;
    served_begin(&s, backend);
    do {
        sample_disk_init(&disk, SAMPLE_FAULT_EIO, ++at);
        const hotbed_status status = hotbed_publisher_create_with(
            &disk.calls, s.directory, &s.storage, 1, &s.options, s.stream, &s.publisher);
        if (status != HOTBED_OK) {
            CHECK_EQ(status, HOTBED_ERR_IO);
            CHECK(access(s.directory, F_OK) != 0);
            failed++;
            continue;
        }
        hotbed_publisher_destroy(s.publisher);
        s.publisher = NULL;
        CHECK_EQ(unlink(served_file(&s, "lock")), 0);
        CHECK_EQ(rmdir(s.directory), 0);
    } while (disk.count >= at);
    CHECK(failed >= 5); /* it makes, opens and lists the directory, three times */
    served_finish(&s);
}

/* A process that was forked, as a data loader's, has the lock's file open. In a process of its own, since this
 * one has no streams yet. */
static void a_directory_is_free_after_its_publisher(hotbed_backend backend) {
    int ended = 1;
    const char *directory = sample_directory();
    const pid_t child = fork();
    if (child == 0) {
        served s;
        hotbed_publisher *second = NULL;
        served_begin(&s, HOTBED_BACKEND_HOST);
        snprintf(s.directory, sizeof s.directory, "%s", directory);
        served_start(&s);
        int ends[2];
        char word = 0;
        if (pipe(ends) != 0)
            _exit(1);
        const pid_t forked = fork();
        if (forked == 0) { /* its destroy does not unlock the directory of the other process */
            hotbed_publisher_destroy(s.publisher);
            if (write(ends[1], &word, 1) != 1)
                _exit(1);
            for (;;)
                pause();
        }
        if (read(ends[0], &word, 1) != 1)
            _exit(1);
        hotbed_status status =
            hotbed_publisher_create(directory, &s.storage, 1, &s.options, s.stream, &second);
        const bool locked = status == HOTBED_ERR_STATE;
        hotbed_publisher_destroy(s.publisher);
        status =
            hotbed_publisher_create(directory, &s.storage, 1, &s.options, s.stream, &s.publisher);
        kill(forked, SIGKILL);
        _exit(locked && status == HOTBED_OK ? 0 : 1);
    }
    CHECK_EQ(waitpid(child, &ended, 0), child);
    CHECK_EQ(ended, 0);
}

static void leftovers_of_a_killed_publisher_are_removed(hotbed_backend backend) {
    served s;
    served_begin(&s, backend);
    served_start(&s);
    hotbed_publisher_destroy(s.publisher);
    sample_write_file(served_file(&s, ".tmp-cut-000000000007"), "x", 1);
    sample_write_file(served_file(&s, ".tmp-rows-000000000007-00000"), "x", 1);
    sample_write_file(served_file(&s, "rows-000000000009-00000"), "x", 1); /* of no cut */
    sample_write_file(served_file(&s, "notes.txt"), "x", 1);
    served_start(&s);
    CHECK(access(served_file(&s, ".tmp-cut-000000000007"), F_OK) != 0);
    CHECK(access(served_file(&s, ".tmp-rows-000000000007-00000"), F_OK) != 0);
    CHECK(access(served_file(&s, "notes.txt"), F_OK) == 0);
    served_publish(&s);
    CHECK_EQ(served_newest(s.directory), 10);
    served_finish(&s);
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
        served s;
        int left = n, ended = 0;
        const char *directory = sample_directory();
        pid_t child = fork();
        if (child == 0) {
            served_begin(&s, HOTBED_BACKEND_HOST);
            snprintf(s.directory, sizeof s.directory, "%s", directory);
            s.options.file = kill_self;
            s.options.context = &left;
            served_start(&s);
            for (int i = 0; i < 6; i++)
                served_publish(&s);
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

/* --- the callback ------------------------------------------------------------------------------------ */

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
    served s;
    copied copy = {.files = 0};
    served_begin(&s, backend);
    snprintf(copy.directory, sizeof copy.directory, "%s", sample_path("copy"));
    CHECK_EQ(mkdir(copy.directory, 0777), 0);
    s.options.file = copy_file;
    s.options.context = &copy;
    served_start(&s);
    served_publish(&s);
    served_publish(&s);
    CHECK_EQ(copy.files, 4);
    CHECK_OK(hotbed_reader_open(copy.directory, NULL, &s.reader));
    served_check(s.reader, &s.cut);
    copy.fails = true;
    CHECK_OK(hotbed_publisher_publish(s.publisher, 3, s.stream));
    CHECK_STATUS(hotbed_publisher_wait(s.publisher), HOTBED_ERR_IO);
    CHECK_STRING(hotbed_last_error(), "the network is down");
    copy.fails = false; /* the cut after a failure follows the last one that both have */
    served_publish(&s);
    CHECK_OK(hotbed_reader_poll(s.reader));
    s.cut.step = s.step;
    served_check(s.reader, &s.cut);
    served_finish(&s);
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
    served s;
    slow disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    served_begin(&s, backend);
    s.options.file = wait_to_go;
    s.options.context = &disk;
    served_start(&s);
    CHECK(!hotbed_publisher_busy(s.publisher));
    served_change(s.storage, s.stream);
    served_look(s.storage, NULL, 1, &s.cut, s.stream);
    CHECK_OK(hotbed_publisher_publish(s.publisher, 1, s.stream));
    pthread_mutex_lock(&disk.lock);
    while (!disk.in)
        pthread_cond_wait(&disk.changed, &disk.lock);
    pthread_mutex_unlock(&disk.lock);
    CHECK(hotbed_publisher_busy(s.publisher)); /* and publish() has returned */
    for (int i = 0; i < 5; i++)                /* the cut has the rows of the copy, not these */
        served_change(s.storage, s.stream);
    pthread_mutex_lock(&disk.lock);
    disk.may_go = true;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.lock);
    CHECK_OK(hotbed_publisher_wait(s.publisher));
    CHECK(!hotbed_publisher_busy(s.publisher));
    CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
    served_check(s.reader, &s.cut);
    served_finish(&s);
}

/* --- errors ------------------------------------------------------------------------------------------ */

static void bad_arguments_of_a_publisher_are_named(hotbed_backend backend) {
    served s;
    served_begin(&s, backend);
    hotbed_publish_options bad = s.options;
    hotbed_publisher *none = NULL;
    bad.encoding = (hotbed_encoding)9;
    CHECK_STATUS(
        hotbed_publisher_create(s.directory, &s.storage, 1, &bad, s.stream, &none),
        HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "encoding 9") != NULL);
    hotbed_route route;
    CHECK_OK(hotbed_route_init(&route, HOTBED_ROUTE_HASH_ROUND_ROBIN, 2, 0));
    bad = s.options;
    bad.routes = &route;
    CHECK_STATUS(
        hotbed_publisher_create(s.directory, &s.storage, 1, &bad, s.stream, &none),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_publisher_create(s.directory, NULL, 1, &s.options, s.stream, &none),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_publisher_create(NULL, &s.storage, 1, &s.options, s.stream, &none),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_publisher_create("", &s.storage, 1, &s.options, s.stream, &none),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_publisher_create(s.directory, &s.storage, 1, NULL, s.stream, &none),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_publisher_create("/nowhere/published", &s.storage, 1, &s.options, s.stream, &none),
        HOTBED_ERR_IO);
    CHECK(none == NULL);
    CHECK_STATUS(hotbed_publisher_publish(NULL, 1, s.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_publisher_wait(NULL), HOTBED_ERR_ARGUMENT);
    CHECK(!hotbed_publisher_busy(NULL));
    CHECK(hotbed_encoding_name((hotbed_encoding)5) == NULL);
    CHECK_STRING(hotbed_encoding_name(HOTBED_ENCODING_INT8), "int8");
    served_start(&s);
    CHECK_STATUS(hotbed_publisher_publish(s.publisher, 1, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_publisher_stats(s.publisher, NULL), HOTBED_ERR_ARGUMENT);
    served_finish(&s);
}

const hotbed_test hotbed_tests[] = {
    /* first: they fork, which a process with streams may not do */
    {TEST(a_killed_process_leaves_a_whole_cut)},
    {TEST(a_directory_is_free_after_its_publisher)},
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
    {TEST(a_create_that_fails_leaves_no_directory)},
    {TEST(leftovers_of_a_killed_publisher_are_removed)},
    {TEST(a_callback_gets_the_same_bytes)},
    {TEST(training_goes_on_while_a_cut_is_written)},
    {TEST(bad_arguments_of_a_publisher_are_named)},
    {NULL, NULL},
};
