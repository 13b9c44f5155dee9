/* tests/serve/test_reader.c - what a reader of a directory answers, follows and refuses. */
#include "hotbed/hotbed.h"
#include "serve/format.h"
#include "serve/reader.h"
#include "tests/checkpoint/sample.h"
#include "tests/serve/served.h"
#include "tests/support/harness.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* --- what is read is what was published -------------------------------------------------------------- */

static void a_reader_follows_a_publisher(hotbed_backend backend) {
    served s;
    served_begin(&s, backend);
    s.options.base_every = 4;
    served_start(&s);
    served_publish(&s);
    CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
    for (uint64_t cut = 1; cut <= 12; cut++) {
        hotbed_reader_stats stats = {.size = sizeof stats};
        CHECK_OK(hotbed_reader_poll(s.reader));
        served_check(s.reader, &s.cut);
        CHECK_OK(hotbed_reader_get_stats(s.reader, &stats));
        CHECK_EQ(stats.version, cut);
        CHECK_EQ(stats.newest, cut);
        CHECK_EQ(stats.behind, 0);
        CHECK_EQ(stats.base, (cut - 1) / 4 * 4 + 1);
        CHECK_EQ(stats.versions, cut);
        CHECK_EQ(stats.bases, (cut + 3) / 4);
        CHECK(stats.mapped_bytes > 0 && stats.memory_bytes > 0 && stats.age >= 0);
        CHECK_EQ(stats.keys, cut * SERVED_TABLES * SERVED_KEYS);
        served_publish(&s);
    }
    served_finish(&s);
}

/* Threads of the program handle its signals. */
static void signals_do_not_reach_the_librarys_threads(hotbed_backend backend) {
    const hotbed_reader_options follow = {.size = sizeof follow, .follow_ms = 1};
    served s;
    sigset_t usr1, before;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    served_begin(&s, backend);
    CHECK_EQ(pthread_sigmask(SIG_UNBLOCK, &usr1, NULL), 0);
    served_start(&s);
    served_publish(&s);
    CHECK_OK(hotbed_reader_open(s.directory, &follow, &s.reader));
    CHECK_EQ(pthread_sigmask(SIG_BLOCK, &usr1, &before), 0);
    CHECK_EQ(
        kill(getpid(), SIGUSR1), 0); /* ends the process if a thread takes it, which now runs */
    served_publish(&s);
    for (hotbed_reader_stats stats = {.size = sizeof stats}; stats.version < 2; sched_yield())
        CHECK_OK(hotbed_reader_get_stats(s.reader, &stats));
    CHECK_EQ(sigtimedwait(&usr1, NULL, &(struct timespec){0}), SIGUSR1);
    CHECK_EQ(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
    served_finish(&s);
}

static void lookups_have_the_bytes_of_eval(hotbed_backend backend) {
    served s;
    served_begin(&s, backend);
    served_start(&s);
    served_publish(&s);
    served_publish(&s);
    CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
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
                CHECK_OK(hotbed_reader_lookup(s.reader, &lookup, 1, NULL));
                for (int bag = 0; bag < BAGS; bag++) { /* as hotbed_storage_eval() computes it */
                    memset(want, 0, sizeof want);
                    for (int64_t i = offsets[bag]; i < offsets[bag + 1]; i++) {
                        uint32_t k = 0;
                        while (served_keys[k] != keys[i])
                            k++;
                        for (uint32_t e = 0; e < served_dims[t]; e++)
                            want[e] +=
                                weighted ? weights[i] * s.cut.rows[t][k][e] : s.cut.rows[t][k][e];
                    }
                    int64_t n = offsets[bag + 1] - offsets[bag];
                    for (uint32_t e = 0; e < served_dims[t] && n > 0; e++)
                        want[e] = pooling == HOTBED_POOL_MEAN ? want[e] / (float)n : want[e];
                    CHECK_BYTES(&got[bag * SERVED_DIM_MOST], want, served_dims[t] * sizeof(float));
                }
            }
        }
    served_finish(&s);
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
    served s;
    const char *directory = sample_directory();
    pid_t child = fork();
    if (child == 0) {
        served_begin(&s, HOTBED_BACKEND_HOST);
        snprintf(s.directory, sizeof s.directory, "%s", directory);
        served_start(&s);
        served_publish(&s);
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

/* --- refusals ---------------------------------------------------------------------------------------- */

static void a_lost_cut_is_named(hotbed_backend backend) {
    served s;
    served_begin(&s, backend);
    served_start(&s);
    served_publish(&s);
    served_cut first = s.cut;
    served_publish(&s);
    served_publish(&s);
    char hidden[1024];
    snprintf(hidden, sizeof hidden, "%s", served_file(&s, "hidden"));
    CHECK_EQ(rename(served_file(&s, "cut-000000000002"), hidden), 0);
    CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
    served_check(s.reader, &first);
    CHECK_STATUS(hotbed_reader_poll(s.reader), HOTBED_ERR_STATE);
    CHECK_STRING(hotbed_last_error(), "cut 3 follows cut 2; the reader has cut 1");
    CHECK_STATUS(hotbed_reader_health(s.reader, 0), HOTBED_ERR_STATE);
    hotbed_reader_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_reader_get_stats(s.reader, &stats));
    CHECK_EQ(stats.behind, 1);
    CHECK_EQ(stats.newest, 3);
    CHECK_EQ(stats.refused, 2);
    CHECK_EQ(rename(hidden, served_file(&s, "cut-000000000002")), 0); /* it was only late */
    CHECK_OK(hotbed_reader_poll(s.reader));
    served_check(s.reader, &s.cut);
    hotbed_reader *second = NULL;
    CHECK_EQ(rename(served_file(&s, "cut-000000000001"), hidden), 0);
    CHECK_STATUS(hotbed_reader_open(s.directory, NULL, &second), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "cut 2 and those after it follow one") != NULL);
    CHECK_EQ(rename(hidden, served_file(&s, "cut-000000000001")), 0);
    CHECK_OK(hotbed_reader_health(s.reader, 3600));
    CHECK_STATUS(hotbed_reader_health(s.reader, 1e-9), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "seconds old") != NULL);
    served_finish(&s);
}

/* A publisher whose next cuts appear just after a reader has listed the directory. */
typedef struct racing {
    hotbed_io_calls calls;
    served *s;
    uint32_t publishes; /* cuts of the next list */
    bool always;        /* of each list */
    const char *stays;  /* this file is not removed yet, or NULL */
    uint32_t lists;
} racing;

static int list_then_publish(
    void *self, int directory, void (*each)(void *context, const char *name), void *context) {
    racing *race = self;
    served *s = race->s;
    char kept[1024];
    const int error = hotbed_io_system.list(NULL, directory, each, context);
    snprintf(kept, sizeof kept, "%s", served_file(s, "kept"));
    race->lists++;
    if (race->stays != NULL)
        CHECK_EQ(link(served_file(s, race->stays), kept), 0);
    for (uint32_t i = 0; i < race->publishes; i++)
        served_publish(s);
    if (race->stays != NULL)
        CHECK_EQ(rename(kept, served_file(s, race->stays)), 0);
    race->stays = NULL;
    race->publishes = race->always ? race->publishes : 0;
    return error;
}

/* Every second cut is a base, and removes the cuts before it. */
static void cuts_that_are_removed_after_the_list_are_not_missed(hotbed_backend backend) {
    served s;
    served_begin(&s, backend);
    s.options.base_every = 2;
    s.options.keep_bases = 1;
    racing race = {.s = &s, .calls = {.self = &race, .list = list_then_publish}};
    served_start(&s);
    served_publish(&s);
    served_publish(&s);
    race.publishes = 1; /* listed: 1, 2; there: 2 and 3 */
    race.stays = "cut-000000000002";
    CHECK_OK(hotbed_reader_open_with(&race.calls, s.directory, NULL, &s.reader));
    served_check(s.reader, &s.cut);
    CHECK_OK(hotbed_reader_health(s.reader, 0));
    hotbed_reader_close(s.reader);
    race.publishes = 2; /* listed: 2, 3; there: 5 */
    CHECK_OK(hotbed_reader_open_with(&race.calls, s.directory, NULL, &s.reader));
    served_check(s.reader, &s.cut);
    race.publishes = 2; /* the reader's own cut is the newest one, and then gone */
    CHECK_OK(hotbed_reader_poll(s.reader));
    served_check(s.reader, &s.cut);
    served_publish(&s);
    served_publish(&s);
    race.publishes = 2; /* a newer base was listed, and is gone */
    CHECK_OK(hotbed_reader_poll(s.reader));
    served_check(s.reader, &s.cut);
    CHECK_EQ(race.lists, 8);
    for (int i = 0; i < 3; i++)
        served_publish(&s);
    race.publishes =
        1; /* listed: base 13 and 14; there: 14, which does not follow the reader's cut, and 15 */
    race.stays = "cut-000000000014";
    CHECK_EQ(s.step, 14);
    CHECK_OK(hotbed_reader_poll(s.reader));
    served_check(s.reader, &s.cut);
    race.always = true;
    race.publishes = 2;
    CHECK_STATUS(hotbed_reader_poll(s.reader), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "was listed 100 times") != NULL);
    race.always = false;
    CHECK_OK(hotbed_reader_poll(s.reader));
    CHECK_OK(hotbed_reader_poll(s.reader));
    served_check(s.reader, &s.cut);
    served_finish(&s);
}

static void a_replaced_directory_is_not_followed(hotbed_backend backend) {
    served s;
    served_begin(&s, backend);
    served_start(&s);
    served_publish(&s);
    const served_cut first = s.cut;
    CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
    hotbed_publisher_destroy(s.publisher);
    CHECK_EQ(unlink(served_file(&s, "cut-000000000001")), 0);
    CHECK_EQ(unlink(served_file(&s, "rows-000000000001-00000")), 0);
    served_start(&s);
    served_publish(&s); /* has number 1 again */
    CHECK_STATUS(hotbed_reader_poll(s.reader), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "is not the cut that the reader uses") != NULL);
    CHECK_STATUS(hotbed_reader_health(s.reader, 0), HOTBED_ERR_STATE);
    served_check(s.reader, &first);
    served_finish(&s);
}

/* The trainer's clock was ahead of the reader's, or the reader's was set back. */
static void a_cut_of_the_future_grows_old(hotbed_backend backend) {
    served s;
    served_begin(&s, backend);
    served_start(&s);
    served_publish(&s);
    size_t bytes;
    unsigned char *data = sample_read_file(served_file(&s, "cut-000000000001"), &bytes);
    ((hotbed_cut_head *)(void *)data)->created_ns += 3600U * (uint64_t)1000000000;
    const hotbed_digest digest = hotbed_digest_of(data, bytes - sizeof digest);
    memcpy(data + bytes - sizeof digest, &digest, sizeof digest);
    sample_write_file(served_file(&s, "cut-000000000001"), data, bytes);
    free(data);
    CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
    CHECK_OK(hotbed_reader_health(s.reader, 3600));
    CHECK_STATUS(hotbed_reader_health(s.reader, 1e-9), HOTBED_ERR_STATE);
    hotbed_reader_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_reader_get_stats(s.reader, &stats));
    CHECK(stats.age > 0 && stats.age < 3600 && stats.lag < 3600);
    CHECK_STATUS(hotbed_reader_health(s.reader, -1), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_reader_health(s.reader, NAN), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error_detail()->parameter, "most_seconds");
    served_finish(&s);
}

static void an_absent_file_is_a_field_of_the_error(hotbed_backend backend) {
    served s;
    served_begin(&s, backend);
    served_start(&s);
    served_publish(&s);
    const char *path = served_file(&s, "rows-000000000001-00000");
    CHECK_EQ(unlink(path), 0);
    CHECK_STATUS(hotbed_reader_open(s.directory, NULL, &s.reader), HOTBED_ERR_STATE);
    CHECK_STRING(hotbed_last_error_detail()->path, path);
    CHECK_EQ(symlink("/dev/null", path), 0);
    CHECK_STATUS(hotbed_reader_open(s.directory, NULL, &s.reader), HOTBED_ERR_STATE);
    CHECK_STRING(hotbed_last_error_detail()->path, path);
    path = served_file(&s, "nothing");
    CHECK_STATUS(hotbed_reader_open(path, NULL, &s.reader), HOTBED_ERR_IO);
    CHECK_STRING(hotbed_last_error_detail()->path, path);
    served_finish(&s);
}

static void every_byte_of_the_files_is_checked(hotbed_backend backend) {
    served s;
    served_begin(&s, backend);
    s.options.states = true;
    served_start(&s);
    served_publish(&s);
    for (int which = 0; which < 2; which++) {
        char path[1024];
        size_t bytes;
        snprintf(
            path, sizeof path, "%s",
            served_file(&s, which == 0 ? "cut-000000000001" : "rows-000000000001-00000"));
        unsigned char *data = sample_read_file(path, &bytes);
        uint64_t step = hotbed_test_is_small() ? 97 : 7;
        for (uint64_t at = hotbed_test_below(step); at < bytes; at += step) {
            data[at] ^= 16;
            sample_write_file(path, data, bytes);
            hotbed_status status = hotbed_reader_open(s.directory, NULL, &s.reader);
            if (which == 1 && status == HOTBED_OK) { /* a gap between columns */
                served_check(s.reader, &s.cut);
                hotbed_reader_close(s.reader);
                s.reader = NULL;
            } else {
                CHECK_EQ(status, HOTBED_ERR_STATE);
                CHECK(strstr(hotbed_last_error(), "has no whole cut: ") != NULL);
            }
            data[at] ^= 16;
        }
        sample_write_file(path, data, bytes);
        free(data);
    }
    served_finish(&s);
}

static void other_tables_need_a_new_reader(hotbed_backend backend) {
    served s;
    served_begin(&s, backend);
    served_start(&s);
    served_publish(&s);
    CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
    hotbed_publisher_destroy(s.publisher);
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    hotbed_storage *others[SERVED_TABLES], *other = NULL;
    hotbed_storage_options_init(&options);
    options.num_tables = 1, options.tables = &table;
    table.dim = 4, table.capacity = 10;
    for (int t = SERVED_TABLES - 1; t >= 0; t--) {
        static const char *const names[SERVED_TABLES] = {"hash", "none", "more"};
        table.name = names[t];
        CHECK_OK(hotbed_storage_create(&options, s.stream, &other));
        others[t] = other;
    }
    s.publisher = NULL;
    for (uint32_t n = 1; n <= SERVED_TABLES; n += 2) {
        const char *why = n == 1 ? "1 tables, but cut-000000000001 of "
                                 : "table 'hash' has dim 4, but 5 in cut-000000000001";
        CHECK_STATUS(
            hotbed_publisher_create(s.directory, others, n, &s.options, s.stream, &s.publisher),
            HOTBED_ERR_STATE);
        CHECK(strstr(hotbed_last_error(), why) != NULL);
    }
    char cut[600];
    snprintf(cut, sizeof cut, "%s/cut-000000000001", s.directory);
    CHECK_EQ(unlink(cut), 0); /* as the message says */
    CHECK_OK(hotbed_publisher_create(s.directory, &other, 1, &s.options, s.stream, &s.publisher));
    CHECK_OK(hotbed_publisher_publish(s.publisher, 2, s.stream));
    CHECK_OK(hotbed_publisher_wait(s.publisher));
    CHECK_STATUS(hotbed_reader_poll(s.reader), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "open it again") != NULL);
    served_check(s.reader, &s.cut);
    hotbed_publisher_destroy(s.publisher);
    s.publisher = NULL;
    for (int t = 0; t < SERVED_TABLES; t++)
        hotbed_storage_destroy(others[t]);
    served_finish(&s);
}

/* --- threads ----------------------------------------------------------------------------------------- */

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

/* --- errors ------------------------------------------------------------------------------------------ */

static void bad_arguments_of_a_reader_are_named(hotbed_backend backend) {
    served s;
    served_begin(&s, backend);
    served_start(&s);
    CHECK_STATUS(hotbed_reader_open("/nowhere", NULL, &s.reader), HOTBED_ERR_IO);
    CHECK_STATUS(hotbed_reader_open(NULL, NULL, &s.reader), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_reader_open(s.directory, NULL, &s.reader), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "nothing is published yet") != NULL);
    served_publish(&s);
    CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
    CHECK_EQ(hotbed_reader_num_tables(s.reader), SERVED_TABLES);
    uint32_t table = 0;
    CHECK_OK(hotbed_reader_find(s.reader, "rows", &table));
    CHECK_EQ(table, 2);
    CHECK_STATUS(hotbed_reader_find(s.reader, "../rows", &table), HOTBED_ERR_ARGUMENT);
    hotbed_reader_table info = {.size = sizeof info};
    CHECK_STATUS(hotbed_reader_table_info(s.reader, 3, &info), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_reader_table_info(s.reader, 1, &info));
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
    CHECK_STATUS(hotbed_reader_lookup(s.reader, &lookup, 1, NULL), HOTBED_ERR_RANGE);
    CHECK(strstr(hotbed_last_error(), "offsets[2] is 2, not in 3 .. 4") != NULL);
    offsets[2] = 5;
    CHECK_STATUS(hotbed_reader_lookup(s.reader, &lookup, 1, NULL), HOTBED_ERR_RANGE);
    offsets[0] = -1;
    CHECK_STATUS(hotbed_reader_lookup(s.reader, &lookup, 1, NULL), HOTBED_ERR_RANGE);
    lookup.stride = 4;
    CHECK_STATUS(hotbed_reader_lookup(s.reader, &lookup, 1, NULL), HOTBED_ERR_ARGUMENT);
    lookup.stride = 0, lookup.table = 3;
    CHECK_STATUS(hotbed_reader_lookup(s.reader, &lookup, 1, NULL), HOTBED_ERR_ARGUMENT);
    lookup.table = 0, lookup.pooling = (hotbed_pooling)3;
    CHECK_STATUS(hotbed_reader_lookup(s.reader, &lookup, 1, NULL), HOTBED_ERR_ARGUMENT);
    lookup.pooling = HOTBED_POOL_SUM, lookup.offsets = NULL;
    CHECK_STATUS(hotbed_reader_lookup(s.reader, &lookup, 1, NULL), HOTBED_ERR_ARGUMENT);
    lookup.pooling = HOTBED_POOL_NONE, lookup.keys = NULL;
    CHECK_STATUS(hotbed_reader_lookup(s.reader, &lookup, 1, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_reader_lookup(NULL, &lookup, 1, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_reader_lookup(s.reader, NULL, 1, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_reader_lookup(s.reader, NULL, 0, NULL));
    served_finish(&s);
}

static void metrics_have_prometheus_format(hotbed_backend backend) {
    served s;
    char text[8192];
    uint64_t bytes = 0, again = 0;
    served_begin(&s, backend);
    served_start(&s);
    served_publish(&s);
    CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
    CHECK_OK(hotbed_reader_metrics(s.reader, NULL, 0, &bytes));
    CHECK_OK(hotbed_reader_metrics(s.reader, text, sizeof text, &again));
    CHECK_EQ(strlen(text), again);
    CHECK(strstr(text, "# TYPE hotbed_reader_version gauge\nhotbed_reader_version 1\n") != NULL);
    CHECK(strstr(text, "hotbed_reader_healthy 1\n") != NULL);
    CHECK(strstr(text, "hotbed_reader_table_keys{table=\"rows\"} 6\n") != NULL);
    CHECK(text[again - 1] == '\n');
    CHECK_STATUS(hotbed_reader_metrics(s.reader, text, 10, &bytes), HOTBED_ERR_ARGUMENT);
    CHECK_EQ(strlen(text), 9);
    CHECK_STATUS(hotbed_reader_metrics(s.reader, text, 10, NULL), HOTBED_ERR_ARGUMENT);
    served_finish(&s);
}

const hotbed_test hotbed_tests[] = {
    /* first: it forks, which a process with streams may not do */
    {TEST(a_forked_process_opens_a_reader_of_its_own)},
    {TEST(a_reader_follows_a_publisher)},
    {TEST(signals_do_not_reach_the_librarys_threads)},
    {TEST(lookups_have_the_bytes_of_eval)},
    {TEST(pooled_lookups_are_those_of_the_storage)},
    {TEST(a_lost_cut_is_named)},
    {TEST(cuts_that_are_removed_after_the_list_are_not_missed)},
    {TEST(a_replaced_directory_is_not_followed)},
    {TEST(a_cut_of_the_future_grows_old)},
    {TEST(an_absent_file_is_a_field_of_the_error)},
    {TEST(every_byte_of_the_files_is_checked)},
    {TEST(other_tables_need_a_new_reader)},
    {TEST(a_version_is_visible_whole_or_not_at_all)},
    {TEST(bad_arguments_of_a_reader_are_named)},
    {TEST(metrics_have_prometheus_format)},
    {NULL, NULL},
};
