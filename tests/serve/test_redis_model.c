/* tests/serve/test_redis_model.c - random histories of a trainer, its publishers, Redis and a reader: the reader
 * answers exactly the cut that it names, or refuses.
 *
 * In a history, Redis is killed and restarted, empty or from an older snapshot, is emptied, or runs out of
 * memory; files are lost or damaged on the way to it, or come again later; publishers die.
 * HOTBED_TEST_HISTORIES sets the number of histories (default 60). */
#define _DEFAULT_SOURCE /* usleep() */
#include "base/error.h"
#include "hotbed/hotbed.h"
#include "serve/format.h"
#include "tests/checkpoint/sample.h"
#include "tests/serve/redis_server.h"
#include "tests/serve/served.h"
#include "tests/support/harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* What happens to a file on its way to Redis, or to Redis before it arrives. */
typedef enum accident {
    ACCIDENT_NONE = 0,
    ACCIDENT_LOST,     /* the file does not arrive, and nobody notices */
    ACCIDENT_REFUSED,  /* the publisher dies before it sends the file */
    ACCIDENT_DAMAGED,  /* a bit is another one, or the end is missing */
    ACCIDENT_RESTART,  /* Redis was restarted */
    ACCIDENT_KILL,     /* Redis is killed while it gets the file, and restarted */
    ACCIDENT_FLUSH,    /* Redis was emptied */
    ACCIDENT_EARLIER,  /* a file of an earlier time comes again before it */
    ACCIDENT_SNAPSHOT, /* none; Redis writes a snapshot before it gets the file */
    ACCIDENTS,
} accident;

enum { KEPT = 8 };

/* A file that may come again. */
typedef struct kept_file {
    char name[HOTBED_CUT_NAME_BYTES];
    void *data;
    size_t bytes;
} kept_file;

typedef struct history {
    char directory[512];
    redis_server server;
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_encoding encodings[SERVED_TABLES];
    hotbed_redis_options redis;
    hotbed_redis_sink *sink;
    hotbed_publisher *publisher;
    hotbed_redis_reader *reader;
    served_cut *cuts; /* [SERVED_CUTS_MOST] by step */
    kept_file kept[KEPT];
    uint64_t step, answers, refusals;
    uint64_t
        shown; /* step of the cut that Redis has for sure; 0: it may have another one or none */
    accident rows, cut; /* of the next files */
    bool short_of_memory;
} history;

/* --- Redis ------------------------------------------------------------------------------------ */

static void lose_snapshot(history *h) {
    char path[512];
    snprintf(path, sizeof path, "%.255s/dump.rdb", h->server.directory);
    (void)unlink(path);
}

static void restart(history *h) {
    redis_server_kill(&h->server);
    if (hotbed_test_below(2) == 0)
        lose_snapshot(h);
    redis_server_start(&h->server, "noeviction");
    h->short_of_memory = false;
}

/* Give the file to Redis while a process kills Redis. */
static hotbed_status send_and_kill(
    history *h, const char *name, const void *data, uint64_t bytes, uint64_t microseconds) {
    const pid_t killer = fork();
    CHECK(killer >= 0);
    if (killer == 0) {
        usleep((useconds_t)microseconds);
        (void)kill(h->server.process, SIGKILL);
        _exit(0);
    }
    const hotbed_status status = hotbed_redis_sink_file(h->sink, name, data, bytes);
    CHECK_EQ(waitpid(killer, NULL, 0), killer);
    restart(h);
    return status;
}

/* A copy with one wrong bit in what a sink reads, or without its end. */
static hotbed_status send_damaged(history *h, const char *name, const void *data, size_t bytes) {
    unsigned char *copy = malloc(bytes);
    size_t n = bytes;
    CHECK(copy != NULL);
    memcpy(copy, data, bytes);
    if (hotbed_test_below(4) == 0)
        n = hotbed_test_below(bytes);
    else
        copy[hotbed_test_below(sizeof(hotbed_rows_head))] ^=
            (unsigned char)(1U << hotbed_test_below(8));
    hotbed_status status = hotbed_redis_sink_file(h->sink, name, copy, n);
    CHECK(status != HOTBED_OK);
    free(copy);
    return status;
}

/* --- the publisher ---------------------------------------------------------------------------- */

static void keep_file(history *h, const char *name, const void *data, size_t bytes) {
    kept_file *k = &h->kept[hotbed_test_below(KEPT)];
    free(k->data);
    k->data = malloc(bytes);
    CHECK(k->data != NULL);
    memcpy(k->data, data, bytes);
    k->bytes = bytes;
    snprintf(k->name, sizeof k->name, "%s", name);
}

/* An earlier file comes again. Redis may take it, if it fits what Redis has. */
static void send_earlier(history *h) {
    const kept_file *k = &h->kept[hotbed_test_below(KEPT)];
    if (k->data != NULL &&
        hotbed_redis_sink_file(h->sink, k->name, k->data, k->bytes) == HOTBED_OK &&
        hotbed_cut_number(k->name) != 0)
        h->shown = 0; /* the same cut, or after a loss an earlier one */
}

static hotbed_status pass_on(void *self, const char *name, const void *data, uint64_t bytes) {
    history *h = self;
    const bool cut = hotbed_cut_number(name) != 0;
    const accident now = cut ? h->cut : h->rows;
    if (cut)
        h->cut = ACCIDENT_NONE;
    else
        h->rows = ACCIDENT_NONE;
    keep_file(h, name, data, bytes);
    switch (now) {
    case ACCIDENT_LOST:
        return HOTBED_OK;
    case ACCIDENT_REFUSED:
        return hotbed_fail(HOTBED_ERR_IO, "the publisher is dead");
    case ACCIDENT_DAMAGED:
        return send_damaged(h, name, data, bytes);
    case ACCIDENT_RESTART:
        restart(h);
        break;
    case ACCIDENT_KILL:
        return send_and_kill(h, name, data, bytes, hotbed_test_below(2000));
    case ACCIDENT_FLUSH:
        redis_server_call(&h->server, "FLUSHALL");
        break;
    case ACCIDENT_EARLIER:
        send_earlier(h);
        break;
    case ACCIDENT_SNAPSHOT:
        redis_server_call(&h->server, "SAVE");
        break;
    case ACCIDENT_NONE:
    case ACCIDENTS:
        break;
    }
    return hotbed_redis_sink_file(h->sink, name, data, bytes);
}

static void close_publisher(history *h) {
    hotbed_publisher_destroy(h->publisher);
    hotbed_redis_sink_destroy(h->sink);
    h->publisher = NULL;
    h->sink = NULL;
}

static void open_publisher(history *h) {
    hotbed_publish_options options = {.size = sizeof options};
    close_publisher(h);
    CHECK_OK(hotbed_redis_sink_create(&h->redis, &h->sink));
    options.encodings = h->encodings;
    options.states = hotbed_test_below(2) == 0;
    options.base_every = 1 + (uint32_t)hotbed_test_below(6);
    options.file = pass_on;
    options.context = h;
    CHECK_OK(
        hotbed_publisher_create(h->directory, &h->storage, 1, &options, h->stream, &h->publisher));
}

static void publish(history *h) {
    if (h->step + 1 == SERVED_CUTS_MOST)
        return;
    served_change(h->storage, h->stream);
    served_look(h->storage, h->encodings, h->step + 1, &h->cuts[h->step + 1], h->stream);
    h->step++;
    const accident rows = h->rows, cut = h->cut;
    h->shown = 0;
    hotbed_status status = hotbed_publisher_publish(h->publisher, h->step, h->stream);
    if (status == HOTBED_OK)
        status = hotbed_publisher_wait(h->publisher);
    h->rows = h->cut = ACCIDENT_NONE;
    if (status == HOTBED_OK && cut != ACCIDENT_LOST && cut != ACCIDENT_KILL)
        h->shown = h->step; /* whatever happened to the rows before */
    CHECK(status != HOTBED_OK || rows != ACCIDENT_LOST || cut == ACCIDENT_LOST);
}

/* --- the reader ------------------------------------------------------------------------------- */

static hotbed_status look(history *h) {
    float out[SERVED_TABLES][SERVED_KEYS * SERVED_DIM_MOST];
    hotbed_lookup lookups[SERVED_TABLES];
    hotbed_redis_stats stats = {.size = sizeof stats};
    uint64_t version = 0, first[SERVED_TABLES];
    hotbed_status status = HOTBED_OK;
    if (h->reader == NULL)
        status = hotbed_redis_reader_open(&h->redis, &h->reader);
    for (uint32_t t = 0; t < SERVED_TABLES; t++) {
        first[t] = hotbed_test_below(SERVED_KEYS);
        lookups[t] = (hotbed_lookup){
            .table = t,
            .num_keys = 1 + hotbed_test_below(SERVED_KEYS - first[t]),
            .keys = served_keys + first[t],
            .output = out[t],
            .stride = SERVED_DIM_MOST};
    }
    if (status == HOTBED_OK)
        status = hotbed_redis_reader_lookup(h->reader, lookups, SERVED_TABLES, &version);
    if (status != HOTBED_OK) {
        CHECK(
            status == HOTBED_ERR_STATE || status == HOTBED_ERR_IO ||
            (status == HOTBED_ERR_MEMORY && h->short_of_memory));
        CHECK(h->shown == 0 || h->short_of_memory);
        h->refusals++;
        return status;
    }
    CHECK_OK(hotbed_redis_reader_stats(h->reader, &stats));
    CHECK_EQ(stats.version, version);
    CHECK(h->shown == 0 || stats.step == h->shown);
    CHECK(stats.step > 0 && stats.step <= h->step);
    const served_cut *cut = &h->cuts[stats.step];
    for (uint32_t t = 0; t < SERVED_TABLES; t++)
        for (uint64_t k = 0; k < lookups[t].num_keys; k++)
            CHECK_BYTES(
                out[t] + k * SERVED_DIM_MOST, cut->rows[t][first[t] + k],
                served_dims[t] * sizeof(float));
    h->answers++;
    return HOTBED_OK;
}

static void close_reader(history *h) {
    hotbed_redis_reader_close(h->reader);
    h->reader = NULL;
}

/* --- histories -------------------------------------------------------------------------------- */

static void take_step(history *h) {
    switch (hotbed_test_below(16)) {
    case 0:
        h->shown = 0;
        restart(h);
        break;
    case 1:
        h->shown = 0;
        redis_server_call(&h->server, "FLUSHALL");
        break;
    case 2:
        redis_server_call(&h->server, "SAVE");
        break;
    case 3:
        if (!h->short_of_memory)
            open_publisher(h);
        break;
    case 4:
        close_reader(h);
        break;
    case 5:
        send_earlier(h);
        break;
    case 6: /* so little memory that some cut fails, now or later */
        redis_server_call(
            &h->server, "CONFIG SET maxmemory %d", (int)(1000000 + hotbed_test_below(60000)));
        h->short_of_memory = true;
        break;
    case 7:
        redis_server_call(&h->server, "CONFIG SET maxmemory 0");
        h->short_of_memory = false;
        break;
    default:
        if (hotbed_test_below(2) == 0)
            h->rows = (accident)hotbed_test_below(ACCIDENTS);
        else
            h->cut = (accident)hotbed_test_below(ACCIDENTS);
        if (hotbed_test_below(2) == 0)
            h->rows = h->cut = ACCIDENT_NONE;
        publish(h);
        break;
    }
    (void)look(h);
}

/* In the end all is well: a new publisher's cut is what the reader answers. */
static void end(history *h) {
    redis_server_call(&h->server, "CONFIG SET maxmemory 0");
    h->short_of_memory = false;
    open_publisher(h);
    publish(h);
    CHECK_EQ(h->shown, h->step);
    CHECK_OK(look(h));
}

static void a_reader_of_redis_answers_the_cut_that_it_names(hotbed_backend backend) {
    const char *wanted = getenv("HOTBED_TEST_HISTORIES");
    uint64_t histories = wanted != NULL           ? strtoull(wanted, NULL, 10)
                         : hotbed_test_is_small() ? 10
                                                  : 60;
    served_cut *cuts = calloc(SERVED_CUTS_MOST, sizeof *cuts);
    uint64_t answers = 0, refusals = 0, published = 0;
    redis_server server = {.process = 0};
    sample_directory();
    snprintf(server.socket, sizeof server.socket, "%.100s", sample_path("redis.sock"));
    snprintf(server.directory, sizeof server.directory, "%.200s", sample_path("."));
    redis_server_start(&server, "noeviction");
    for (uint64_t i = 0; i < histories; i++) {
        history h = {.stream = hotbed_test_stream(backend), .cuts = cuts, .server = server};
        memset(cuts, 0, SERVED_CUTS_MOST * sizeof *cuts);
        snprintf(h.directory, sizeof h.directory, "%s", sample_path("published"));
        h.storage = served_create(i, (uint32_t)hotbed_test_below(8), h.stream);
        for (uint32_t t = 0; t < SERVED_TABLES; t++)
            h.encodings[t] = (hotbed_encoding)hotbed_test_below(5);
        h.redis = (hotbed_redis_options){.size = sizeof h.redis, .path = h.server.socket};
        h.redis.cache_rows = 1 + (uint32_t)hotbed_test_below(100);
        redis_server_call(&h.server, "FLUSHALL");
        lose_snapshot(&h);
        CHECK_EQ(mkdir(h.directory, 0777), 0);
        open_publisher(&h);
        for (uint64_t steps = 4 + hotbed_test_below(24); steps > 0; steps--)
            take_step(&h);
        end(&h);
        server = h.server;
        close_reader(&h);
        close_publisher(&h);
        hotbed_storage_destroy(h.storage);
        hotbed_stream_destroy(h.stream);
        sample_remove(h.directory);
        for (uint32_t k = 0; k < KEPT; k++)
            free(h.kept[k].data);
        answers += h.answers;
        refusals += h.refusals;
        published += h.step;
    }
    redis_server_kill(&server);
    free(cuts);
    printf(
        "%llu histories, %llu cuts, %llu answers, %llu refusals\n", (unsigned long long)histories,
        (unsigned long long)published, (unsigned long long)answers, (unsigned long long)refusals);
    CHECK(histories < 10 || (answers > 0 && refusals > 0));
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_reader_of_redis_answers_the_cut_that_it_names)},
    {NULL, NULL},
};
