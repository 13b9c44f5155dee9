/* tests/serve/test_redis.c - cuts in a real redis-server, which each test starts on a Unix socket.
 *
 * A reader answers exactly the cut that it names, or refuses: while a publisher writes, after failures, and when Redis
 * is stopped, restarted empty, or has no memory left. */
#define _DEFAULT_SOURCE /* usleep() */
#include "hotbed/hotbed.h"
#include "tests/checkpoint/sample.h"
#include "tests/serve/served.h"
#include "tests/support/harness.h"

#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A server, a trainer that publishes to it, and a reader. */
typedef struct world {
    char socket[128], directory[512];
    pid_t server;
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_redis_options redis;
    hotbed_redis_sink *sink;
    hotbed_publisher *publisher;
    hotbed_redis_reader *reader;
    served_cut *cuts; /* [SERVED_CUTS_MOST] by step */
    uint64_t step, refusals;
} world;

static const hotbed_encoding plain[SERVED_TABLES]; /* TABLE */

static void start_server(world *w, const char *memory, const char *policy) {
    w->server = fork();
    CHECK(w->server >= 0);
    if (w->server == 0) {
        CHECK(freopen("/dev/null", "w", stdout) != NULL);
        execl(
            HOTBED_TEST_REDIS_SERVER, "redis-server", "--port", "0", "--unixsocket", w->socket,
            "--save", "", "--appendonly", "no", "--maxmemory", memory, "--maxmemory-policy", policy,
            (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 3000; i++) { /* until it answers */
        redisContext *context = redisConnectUnix(w->socket);
        const bool there = context != NULL && context->err == 0;
        if (context != NULL)
            redisFree(context);
        if (there)
            return;
        CHECK_EQ(waitpid(w->server, NULL, WNOHANG), 0);
        usleep(10000);
    }
    CHECK(false);
}

static void stop_server(world *w) {
    if (w->server <= 0)
        return;
    CHECK_EQ(kill(w->server, SIGKILL), 0);
    CHECK_EQ(waitpid(w->server, NULL, 0), w->server);
    (void)unlink(w->socket);
    w->server = 0;
}

static void world_open(world *w, hotbed_backend backend, uint32_t tracks) {
    *w = (world){.stream = sample_stream(backend)};
    snprintf(w->directory, sizeof w->directory, "%s", sample_path("published"));
    snprintf(w->socket, sizeof w->socket, "%.100s", sample_path("redis.sock"));
    w->storage = served_create(5, tracks, w->stream);
    w->cuts = calloc(SERVED_CUTS_MOST, sizeof *w->cuts);
    CHECK(w->cuts != NULL);
    hotbed_redis_options_init(&w->redis);
    w->redis.path = w->socket;
    w->redis.prefix = "a*[b]";
    start_server(w, "0", "noeviction");
}

static void open_publisher(world *w, uint32_t base_every) {
    hotbed_publish_options options;
    hotbed_publish_options_init(&options);
    hotbed_publisher_destroy(w->publisher);
    hotbed_redis_sink_destroy(w->sink);
    w->publisher = NULL;
    CHECK_OK(hotbed_redis_sink_create(&w->redis, &w->sink));
    options.base_every = base_every;
    options.file = hotbed_redis_sink_file;
    options.context = w->sink;
    CHECK_OK(
        hotbed_publisher_create(w->directory, &w->storage, 1, &options, w->stream, &w->publisher));
}

static void world_close(world *w) {
    hotbed_redis_reader_close(w->reader);
    hotbed_publisher_destroy(w->publisher);
    hotbed_redis_sink_destroy(w->sink);
    hotbed_storage_destroy(w->storage);
    hotbed_stream_destroy(w->stream);
    stop_server(w);
    free(w->cuts);
}

static hotbed_status publish(world *w) {
    served_change(w->storage, w->stream);
    w->step++;
    served_look(w->storage, plain, w->step, &w->cuts[w->step], w->stream);
    hotbed_status status = hotbed_publisher_publish(w->publisher, w->step, w->stream);
    return status == HOTBED_OK ? hotbed_publisher_wait(w->publisher) : status;
}

/* Look up all keys; the answer is the cut of its step. */
static hotbed_status look(world *w) {
    float out[SERVED_TABLES][SERVED_KEYS * SERVED_DIM_MOST];
    hotbed_lookup lookups[SERVED_TABLES];
    hotbed_redis_stats stats = {.size = sizeof stats};
    uint64_t version = 0;
    if (w->reader == NULL) {
        hotbed_status status = hotbed_redis_reader_open(&w->redis, &w->reader);
        if (status != HOTBED_OK)
            return status;
    }
    for (uint32_t t = 0; t < SERVED_TABLES; t++) {
        const uint64_t n = 1 + hotbed_test_below(SERVED_KEYS);
        lookups[t] = (hotbed_lookup){
            .table = t,
            .num_keys = n,
            .keys = served_keys,
            .output = out[t],
            .stride = SERVED_DIM_MOST};
    }
    hotbed_status status = hotbed_redis_reader_lookup(w->reader, lookups, SERVED_TABLES, &version);
    if (status != HOTBED_OK)
        return status;
    CHECK_OK(hotbed_redis_reader_stats(w->reader, &stats));
    CHECK_EQ(stats.version, version);
    const served_cut *cut = &w->cuts[stats.step];
    CHECK_EQ(cut->step, stats.step);
    for (uint32_t t = 0; t < SERVED_TABLES; t++)
        for (uint64_t k = 0; k < lookups[t].num_keys; k++)
            CHECK_BYTES(
                out[t] + k * SERVED_DIM_MOST, cut->rows[t][k], served_dims[t] * sizeof(float));
    return HOTBED_OK;
}

static void a_reader_of_redis_answers_each_cut(hotbed_backend backend) {
    for (uint32_t tracks = 0; tracks < 8; tracks += 7) {
        world w;
        world_open(&w, backend, tracks);
        open_publisher(&w, 5);
        for (int i = 0; i < 24; i++) {
            CHECK_OK(publish(&w));
            CHECK_OK(look(&w));
            CHECK_OK(look(&w));
            hotbed_redis_stats stats = {.size = sizeof stats};
            CHECK_OK(hotbed_redis_reader_stats(w.reader, &stats));
            CHECK_EQ(stats.step, w.step);
            CHECK(i == 0 || stats.cached > 0);
        }
        world_close(&w);
    }
}

/* What a publisher that dies leaves of a cut is not seen, nor what is left of one that failed. */
static void parts_of_a_cut_are_not_seen(hotbed_backend backend) {
    world w;
    world_open(&w, backend, 0);
    for (int i = 0; i < 6; i++) {
        open_publisher(&w, 100);
        CHECK_OK(publish(&w));
        CHECK_OK(publish(&w));
        CHECK_OK(look(&w));
        /* the rows of the next cut, without its record */
        served_change(w.storage, w.stream);
        hotbed_publish_options options;
        hotbed_publish_options_init(&options);
        char path[512], other[512], name[64];
        snprintf(other, sizeof other, "%s-%d", sample_path("other"), i);
        hotbed_publisher *half = NULL;
        CHECK_OK(hotbed_publisher_create(other, &w.storage, 1, &options, w.stream, &half));
        for (int k = 0; k < 12; k++) { /* so that its number is higher */
            CHECK_OK(hotbed_publisher_publish(half, 1, w.stream));
            CHECK_OK(hotbed_publisher_wait(half));
        }
        hotbed_publisher_destroy(half);
        snprintf(name, sizeof name, "rows-%012d-00000", 1);
        snprintf(path, sizeof path, "%.400s/%s", other, name);
        size_t bytes = 0;
        void *data = sample_read_file(path, &bytes);
        CHECK(data != NULL);
        memset((char *)data + 40, 0xff, 5); /* number */
        CHECK_OK(hotbed_redis_sink_file(w.sink, name, data, bytes));
        free(data);
        CHECK_OK(look(&w));
        sample_remove(other);
    }
    world_close(&w);
}

static void redis_that_lost_its_rows_is_refused(hotbed_backend backend) {
    world w;
    world_open(&w, backend, 7);
    CHECK_STATUS(look(&w), HOTBED_ERR_STATE); /* no cut yet */
    open_publisher(&w, 100);
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    for (int i = 0; i < 3; i++) {
        stop_server(&w);
        CHECK_STATUS(look(&w), HOTBED_ERR_IO);
        CHECK_STATUS(publish(&w), HOTBED_ERR_IO);
        start_server(&w, "0", "noeviction"); /* empty */
        CHECK_STATUS(look(&w), HOTBED_ERR_STATE);
        CHECK_OK(publish(&w)); /* after a failure: a base */
        CHECK_OK(look(&w));
        CHECK_OK(publish(&w));
        stop_server(&w);
        start_server(&w, "0", "noeviction");
        CHECK_STATUS(look(&w), HOTBED_ERR_STATE);
        CHECK_STATUS(publish(&w), HOTBED_ERR_STATE); /* it lacks the cut before */
        CHECK_OK(publish(&w));
        CHECK_OK(look(&w));
    }
    redisContext *context = redisConnectUnix(w.socket);
    freeReplyObject(redisCommand(context, "FLUSHALL"));
    CHECK_STATUS(look(&w), HOTBED_ERR_STATE);
    CHECK_STATUS(publish(&w), HOTBED_ERR_STATE); /* it lacks the cut before */
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    freeReplyObject(redisCommand(context, "SET %s garbage", "a*[b]:cut"));
    CHECK_STATUS(look(&w), HOTBED_ERR_CORRUPT);
    redisFree(context);
    world_close(&w);
}

static void redis_without_memory_fails_the_cut(hotbed_backend backend) {
    world w;
    world_open(&w, backend, 0);
    open_publisher(&w, 100);
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    redisContext *context = redisConnectUnix(w.socket);
    freeReplyObject(redisCommand(context, "CONFIG SET maxmemory 1"));
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(publish(&w), HOTBED_ERR_MEMORY);
        CHECK_STATUS(look(&w), HOTBED_ERR_MEMORY); /* Redis takes no transactions then */
    }
    freeReplyObject(redisCommand(context, "CONFIG SET maxmemory 0"));
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    freeReplyObject(redisCommand(context, "CONFIG SET maxmemory-policy allkeys-lru"));
    redisFree(context);
    hotbed_redis_sink *sink = NULL;
    CHECK_STATUS(hotbed_redis_sink_create(&w.redis, &sink), HOTBED_ERR_STATE);
    world_close(&w);
}

/* A new directory begins with cut 1, which may not replace a later one. */
static void a_base_replaces_older_cuts_only(hotbed_backend backend) {
    world w;
    world_open(&w, backend, 0);
    open_publisher(&w, 1);
    CHECK_OK(publish(&w));
    CHECK_OK(publish(&w));
    snprintf(w.directory, sizeof w.directory, "%s", sample_path("second"));
    open_publisher(&w, 1);
    CHECK_STATUS(publish(&w), HOTBED_ERR_STATE);
    const hotbed_error_detail *detail = hotbed_last_error_detail();
    CHECK(detail->value == 1 && detail->limit == 2);
    CHECK_STRING(detail->path, w.socket);
    CHECK_OK(look(&w));
    hotbed_lookup many = {.num_keys = UINT64_MAX, .keys = served_keys};
    uint64_t version;
    CHECK_STATUS(hotbed_redis_reader_lookup(w.reader, &many, 1, &version), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "num_keys",
            .value = (double)UINT64_MAX, .limit = (1 << 20) - 1);
    world_close(&w);
}

static void redis_arguments_are_named(hotbed_backend backend) {
    hotbed_redis_options options;
    hotbed_redis_reader *reader = NULL;
    hotbed_redis_options_init(&options);
    CHECK_STATUS(hotbed_redis_reader_open(&options, &reader), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.parameter = "host");
    options.path = "/nowhere/redis.sock";
    CHECK_STATUS(hotbed_redis_reader_open(&options, &reader), HOTBED_ERR_IO);
    CHECK_FIELDS(.path = "/nowhere/redis.sock");
    options.prefix = "";
    CHECK_STATUS(hotbed_redis_reader_open(&options, &reader), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.parameter = "prefix");
    options.prefix = NULL;
    options.port = 65536;
    CHECK_STATUS(hotbed_redis_reader_open(&options, &reader), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "port", .value = 65536,
            .limit = 65535);
    CHECK_STATUS(hotbed_redis_reader_open(NULL, &reader), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.parameter = "options");
    hotbed_redis_sink_destroy(NULL);
    hotbed_redis_reader_close(NULL);
}

const hotbed_test hotbed_tests[] = {
    {"a_reader_of_redis_answers_each_cut", a_reader_of_redis_answers_each_cut},
    {"parts_of_a_cut_are_not_seen", parts_of_a_cut_are_not_seen},
    {"redis_that_lost_its_rows_is_refused", redis_that_lost_its_rows_is_refused},
    {"redis_without_memory_fails_the_cut", redis_without_memory_fails_the_cut},
    {"a_base_replaces_older_cuts_only", a_base_replaces_older_cuts_only},
    {"redis_arguments_are_named", redis_arguments_are_named},
    {NULL, NULL},
};
