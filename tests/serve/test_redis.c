/* tests/serve/test_redis.c - cuts in a real redis-server, which each test starts on a Unix socket.
 *
 * A reader answers exactly the cut that it names, or refuses: while a publisher writes, after failures, and when Redis
 * is stopped, restarted empty, or has no memory left. */
#include "base/error.h"
#include "hotbed/hotbed.h"
#include "serve/format.h"
#include "tests/checkpoint/sample.h"
#include "tests/serve/redis_server.h"
#include "tests/serve/served.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What happens between the rows of a cut and its record. */
typedef enum between {
    BETWEEN_NOTHING = 0,
    BETWEEN_DEATH,    /* of the publisher: Redis does not get the record */
    BETWEEN_RESTART,  /* Redis is empty */
    BETWEEN_FLUSH,    /* the same, and the connection stays */
    BETWEEN_LOST_ROW, /* the rows are lost on the way, the record is not */
    BETWEEN_OTHER,    /* another publisher begins a cut with the same prefix */
    BETWEEN_NO_DROP,  /* an allocation fails, perhaps while rows are removed */
} between;

/* A server, a trainer that publishes to it, and a reader. */
typedef struct world {
    char directory[512];
    redis_server server;
    between between;
    uint64_t allocation; /* of BETWEEN_NO_DROP */
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_redis_options redis;
    hotbed_redis_sink *sink;
    hotbed_publisher *publisher;
    hotbed_redis_reader *reader;
    served_cut *cuts; /* [SERVED_CUTS_MOST] by step */
    uint64_t step, refusals;
} world;

static void world_open(world *w, hotbed_backend backend, uint32_t tracks) {
    *w = (world){.stream = sample_stream(backend)};
    snprintf(w->directory, sizeof w->directory, "%s", sample_path("published"));
    snprintf(w->server.socket, sizeof w->server.socket, "%.100s", sample_path("redis.sock"));
    snprintf(w->server.directory, sizeof w->server.directory, "%.200s", sample_path("."));
    w->storage = served_create(5, tracks, w->stream);
    w->cuts = calloc(SERVED_CUTS_MOST, sizeof *w->cuts);
    CHECK(w->cuts != NULL);
    w->redis = (hotbed_redis_options){
        .size = sizeof w->redis, .path = w->server.socket, .prefix = "a*[b]"};
    redis_server_start(&w->server, "noeviction");
}

static hotbed_status publish_other(world *w);

/* Pass a file on to Redis. */
static hotbed_status pass_on(void *self, const char *name, const void *data, uint64_t bytes) {
    world *w = self;
    const between now = w->between;
    const bool cut = hotbed_cut_number(name) != 0;
    if (cut)
        w->between = BETWEEN_NOTHING;
    switch (now) {
    case BETWEEN_NOTHING:
        break;
    case BETWEEN_DEATH:
        if (cut)
            return hotbed_fail(HOTBED_ERR_IO, "the publisher is dead");
        break;
    case BETWEEN_RESTART:
        if (cut) {
            redis_server_kill(&w->server);
            redis_server_start(&w->server, "noeviction");
        }
        break;
    case BETWEEN_FLUSH:
        if (cut)
            redis_server_call(&w->server, "FLUSHALL");
        break;
    case BETWEEN_LOST_ROW:
        if (!cut)
            return HOTBED_OK;
        break;
    case BETWEEN_OTHER:
        if (cut)
            CHECK_OK(publish_other(w));
        break;
    case BETWEEN_NO_DROP:
        if (cut)
            fault_arm(w->allocation);
        break;
    }
    return hotbed_redis_sink_file(w->sink, name, data, bytes);
}

static void open_publisher(world *w, uint32_t base_every) {
    hotbed_publish_options options = {.size = sizeof options};
    hotbed_publisher_destroy(w->publisher);
    hotbed_redis_sink_destroy(w->sink);
    w->publisher = NULL;
    CHECK_OK(hotbed_redis_sink_create(&w->redis, &w->sink));
    options.base_every = base_every;
    options.file = pass_on;
    options.context = w;
    CHECK_OK(
        hotbed_publisher_create(w->directory, &w->storage, 1, &options, w->stream, &w->publisher));
}

static void world_close(world *w) {
    hotbed_redis_reader_close(w->reader);
    hotbed_publisher_destroy(w->publisher);
    hotbed_redis_sink_destroy(w->sink);
    hotbed_storage_destroy(w->storage);
    hotbed_stream_destroy(w->stream);
    redis_server_kill(&w->server);
    free(w->cuts);
}

static hotbed_status publish(world *w) {
    served_change(w->storage, w->stream);
    w->step++;
    served_look(w->storage, NULL, w->step, &w->cuts[w->step], w->stream);
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

/* Write the rows of a base as another publisher whose numbers are higher, and no record. */
static hotbed_status publish_other(world *w) {
    char path[640], other[512];
    hotbed_cut_file name = hotbed_rows_name(1, 0);
    hotbed_publish_options options = {.size = sizeof options};
    hotbed_publisher *half = NULL;
    hotbed_redis_sink *sink = NULL;
    size_t bytes = 0;
    snprintf(other, sizeof other, "%s", sample_path("other"));
    HOTBED_TRY(hotbed_publisher_create(other, &w->storage, 1, &options, w->stream, &half));
    CHECK_OK(hotbed_publisher_publish(half, 1, w->stream));
    CHECK_OK(hotbed_publisher_wait(half));
    hotbed_publisher_destroy(half);
    snprintf(path, sizeof path, "%s/%s", other, name.text);
    unsigned char *data = sample_read_file(path, &bytes);
    CHECK(data != NULL);
    hotbed_rows_head *head = (void *)data;
    head->number = 1000 + w->step;
    name = hotbed_rows_name(head->number, 0);
    const uint64_t front = hotbed_rows_front_bytes(head->tables) - sizeof(hotbed_digest);
    const hotbed_digest digest = hotbed_digest_of(data, front);
    memcpy(data + front, &digest, sizeof digest);
    CHECK_OK(hotbed_redis_sink_create(&w->redis, &sink));
    hotbed_status status = hotbed_redis_sink_file(sink, name.text, data, bytes);
    hotbed_redis_sink_destroy(sink);
    free(data);
    sample_remove(other);
    return status;
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
        served_change(w.storage, w.stream);
        CHECK_OK(publish_other(&w)); /* the rows of a cut, without its record */
        CHECK_OK(look(&w));
        w.between = BETWEEN_DEATH;
        CHECK_STATUS(publish(&w), HOTBED_ERR_IO);
        CHECK_OK(look(&w));
    }
    world_close(&w);
}

/* A record is written only if all rows of its cut are in Redis. */
static void a_cut_whose_rows_were_lost_has_no_record(hotbed_backend backend) {
    static const between losses[] = {
        BETWEEN_RESTART, BETWEEN_FLUSH, BETWEEN_LOST_ROW, BETWEEN_OTHER};
    world w;
    world_open(&w, backend, 7);
    open_publisher(&w, 100);
    for (int i = 0; i < 8; i++) {
        CHECK_OK(publish(&w));
        CHECK_OK(look(&w));
        for (int base = 0; base < 2; base++) { /* an increment, then a base */
            const between loss = losses[i % 4];
            w.between = loss;
            CHECK_STATUS(publish(&w), HOTBED_ERR_STATE);
            CHECK_STRING(hotbed_last_error_detail()->parameter, "cut");
            CHECK_STRING(hotbed_last_error_detail()->path, w.server.socket);
            if (loss == BETWEEN_RESTART || loss == BETWEEN_FLUSH)
                CHECK_STATUS(look(&w), HOTBED_ERR_STATE);
            else
                CHECK_OK(look(&w));
        }
    }
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    world_close(&w);
}

enum { RANKS = 2, RANK_KEYS = 40 };

/* A rank that publishes a base to a directory. */
typedef struct member {
    const char *directory;
    hotbed_comm *comm;
    hotbed_backend backend;
    pthread_t thread;
} member;

static void *publish_rank(void *self) {
    const member *m = self;
    const uint32_t rank = hotbed_comm_rank(m->comm);
    hotbed_stream *stream = hotbed_test_stream(m->backend);
    hotbed_storage *storage = NULL;
    hotbed_publisher *publisher = NULL;
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    hotbed_publish_options publish_options;
    hotbed_route route;
    CHECK_OK(hotbed_route_init(&route, HOTBED_ROUTE_ROUND_ROBIN, RANKS, 0));
    table.name = "keys", table.dim = 1, table.capacity = RANK_KEYS;
    hotbed_storage_options_init(&options);
    options.num_tables = 1, options.tables = &table;
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    for (uint64_t key = rank; key < RANK_KEYS; key += RANKS) {
        float value = (float)key + 1.0F;
        const hotbed_rows rows = {.weights = &value};
        CHECK_EQ(hotbed_route_rank(&route, key), rank);
        CHECK_OK(hotbed_storage_set_rows(storage, 0, 1, &key, &rows, stream));
        CHECK_OK(hotbed_stream_sync(stream));
    }
    publish_options =
        (hotbed_publish_options){.size = sizeof publish_options, .comm = m->comm, .routes = &route};
    CHECK_OK(
        hotbed_publisher_create(m->directory, &storage, 1, &publish_options, stream, &publisher));
    CHECK_OK(hotbed_publisher_publish(publisher, 1, stream));
    CHECK_OK(hotbed_publisher_wait(publisher));
    hotbed_publisher_destroy(publisher);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
    return NULL;
}

/* A record needs the rows of all ranks, whatever happened between one rank's and the next one's. */
static void rows_of_all_ranks_precede_the_record(hotbed_backend backend) {
    static const char *const orders[] = {"c",    "0c",   "1c",   "0F1c", "0R1c",
                                         "1F0c", "1R0c", "01Fc", "01Rc", "1R0R1c"};
    world w;
    hotbed_comm *comms[RANKS];
    member members[RANKS];
    void *files[RANKS + 1];
    size_t bytes[RANKS + 1];
    hotbed_cut_file names[RANKS + 1];
    char path[640];
    hotbed_redis_sink *sinks[RANKS];
    world_open(&w, backend, 0);
    CHECK_OK(hotbed_comm_create_threads(NULL, RANKS, comms));
    for (uint32_t r = 0; r < RANKS; r++) {
        members[r] = (member){.directory = w.directory, .comm = comms[r], .backend = backend};
        CHECK_EQ(pthread_create(&members[r].thread, NULL, publish_rank, &members[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_join(members[r].thread, NULL);
    for (uint32_t r = 0; r <= RANKS; r++) {
        if (r < RANKS) {
            hotbed_comm_destroy(comms[r]);
            names[r] = hotbed_rows_name(1, r);
            CHECK_OK(hotbed_redis_sink_create(&w.redis, &sinks[r]));
        } else {
            names[r] = hotbed_cut_name(1);
        }
        snprintf(path, sizeof path, "%.500s/%s", w.directory, names[r].text);
        files[r] = sample_read_file(path, &bytes[r]);
        CHECK(files[r] != NULL);
    }
    for (size_t i = 0; i <= sizeof orders / sizeof *orders; i++) {
        const bool last = i == sizeof orders / sizeof *orders; /* all is well */
        for (const char *at = last ? "01c" : orders[i]; *at != 0; at++) {
            if (*at == 'F') {
                redis_server_call(&w.server, "FLUSHALL");
            } else if (*at == 'R') {
                redis_server_kill(&w.server);
                redis_server_start(&w.server, "noeviction");
            } else {
                const uint32_t f = *at == 'c' ? RANKS : (uint32_t)(*at - '0');
                CHECK_STATUS(
                    hotbed_redis_sink_file(sinks[f % RANKS], names[f].text, files[f], bytes[f]),
                    f == RANKS && !last ? HOTBED_ERR_STATE : HOTBED_OK);
            }
        }
        if (!last) {
            CHECK_STATUS(look(&w), HOTBED_ERR_STATE);
            redis_server_call(&w.server, "FLUSHALL");
        }
    }
    CHECK_OK(hotbed_redis_reader_open(&w.redis, &w.reader));
    for (uint64_t key = 0; key < RANK_KEYS; key++) {
        float value = 0;
        hotbed_lookup lookup = {.num_keys = 1, .keys = &key, .output = &value};
        CHECK_OK(hotbed_redis_reader_lookup(w.reader, &lookup, 1, NULL));
        CHECK(value == (float)key + 1.0F);
    }
    for (uint32_t r = 0; r <= RANKS; r++)
        free(files[r]);
    for (uint32_t r = 0; r < RANKS; r++)
        hotbed_redis_sink_destroy(sinks[r]);
    world_close(&w);
}

/* A publisher that is started again may use the number of a cut that never got its name. */
static void rows_of_another_run_are_not_seen(hotbed_backend backend) {
    world w;
    char path[640];
    hotbed_cut_file name = hotbed_rows_name(1, 0);
    world_open(&w, backend, 0);
    for (int i = 0; i < 12; i++) {
        open_publisher(&w, 100);
        CHECK_OK(publish(&w));
        CHECK_OK(publish(&w));
        w.between = BETWEEN_DEATH;
        CHECK_STATUS(publish(&w), HOTBED_ERR_IO);
        const uint64_t number = served_newest(w.directory); /* Redis has rows of it */
        hotbed_publisher_destroy(w.publisher);
        w.publisher = NULL;
        name = hotbed_cut_name(number);
        snprintf(path, sizeof path, "%.500s/%s", w.directory, name.text);
        CHECK_EQ(unlink(path), 0);
        name = hotbed_rows_name(number, 0);
        snprintf(path, sizeof path, "%.500s/%s", w.directory, name.text);
        CHECK_EQ(unlink(path), 0);
        CHECK_OK(
            hotbed_storage_clear(w.storage, 0, w.stream)); /* so that the next base has fewer */
        open_publisher(&w, 100);
        w.between = BETWEEN_NO_DROP; /* what it leaves does not matter to a reader */
        w.allocation = (uint64_t)i + 1;
        const hotbed_status status = publish(&w);
        (void)fault_disarm();
        CHECK(status == HOTBED_OK || status == HOTBED_ERR_MEMORY);
        CHECK_EQ(served_newest(w.directory), number);
        CHECK_OK(look(&w));
    }
    world_close(&w);
}

/* The sink believes no byte of a file of rows. */
static void a_damaged_file_is_not_written(hotbed_backend backend) {
    world w;
    char path[640];
    hotbed_cut_file name = hotbed_rows_name(1, 0);
    size_t bytes = 0;
    world_open(&w, backend, 0);
    open_publisher(&w, 100);
    CHECK_OK(publish(&w));
    snprintf(path, sizeof path, "%.500s/%s", w.directory, name.text);
    unsigned char *data = sample_read_file(path, &bytes);
    CHECK(data != NULL);
    const hotbed_rows_table *tables = (const void *)(data + sizeof(hotbed_rows_head));
    redis_server_call(&w.server, "FLUSHALL");
    for (int i = 0; i < 300; i++) {
        const size_t at = hotbed_test_below(
            i % 2 == 0 ? hotbed_rows_front_bytes(SERVED_TABLES)
                       : tables[0].offsets[HOTBED_ROWS_VALUES] + tables[0].row_bytes);
        bool gap = at >= hotbed_rows_front_bytes(SERVED_TABLES); /* between columns */
        for (uint32_t c = 0; c < HOTBED_ROWS_COLUMNS; c++)
            gap = gap && (at < tables[0].offsets[c] ||
                          at >= tables[0].offsets[c] +
                                    hotbed_rows_column_bytes(&tables[0], (hotbed_rows_column)c));
        if (gap)
            continue;
        data[at] ^= (unsigned char)(1U << hotbed_test_below(8));
        const unsigned char kept = data[at];
        hotbed_status status = hotbed_redis_sink_file(w.sink, name.text, data, bytes);
        CHECK(status == HOTBED_ERR_CORRUPT || status == HOTBED_ERR_UNSUPPORTED);
        CHECK_EQ(data[at], kept);
        free(data);
        data = sample_read_file(path, &bytes);
        tables = (const void *)(data + sizeof(hotbed_rows_head));
    }
    for (size_t n = 0; n < bytes; n += 1 + n / 8)
        CHECK_STATUS(hotbed_redis_sink_file(w.sink, name.text, data, n), HOTBED_ERR_CORRUPT);
    name = hotbed_rows_name(2, 0);
    CHECK_STATUS(hotbed_redis_sink_file(w.sink, name.text, data, bytes), HOTBED_ERR_CORRUPT);
    CHECK_STRING(hotbed_last_error_detail()->path, name.text);
    CHECK(hotbed_last_error_detail()->value == 1);
    name = hotbed_rows_name(1, 1);
    CHECK_STATUS(hotbed_redis_sink_file(w.sink, name.text, data, bytes), HOTBED_ERR_CORRUPT);
    CHECK_STATUS(look(&w), HOTBED_ERR_STATE); /* and nothing is there */
    free(data);
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
        redis_server_kill(&w.server);
        CHECK_STATUS(look(&w), HOTBED_ERR_IO);
        CHECK_STATUS(publish(&w), HOTBED_ERR_IO);
        redis_server_start(&w.server, "noeviction"); /* empty */
        CHECK_STATUS(look(&w), HOTBED_ERR_STATE);
        CHECK_OK(publish(&w)); /* after a failure: a base */
        CHECK_OK(look(&w));
        CHECK_OK(publish(&w));
        redis_server_kill(&w.server);
        redis_server_start(&w.server, "noeviction");
        CHECK_STATUS(look(&w), HOTBED_ERR_STATE);
        CHECK_STATUS(publish(&w), HOTBED_ERR_STATE); /* it lacks the cut before */
        CHECK_OK(publish(&w));
        CHECK_OK(look(&w));
    }
    redis_server_call(&w.server, "FLUSHALL");
    CHECK_STATUS(look(&w), HOTBED_ERR_STATE);
    CHECK_STATUS(publish(&w), HOTBED_ERR_STATE); /* it lacks the cut before */
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    redis_server_call(&w.server, "SET %s garbage", "a*[b]:cut");
    CHECK_STATUS(look(&w), HOTBED_ERR_CORRUPT);
    world_close(&w);
}

static void redis_that_does_not_answer_is_named(hotbed_backend backend) {
    world w;
    world_open(&w, backend, 7);
    w.redis.timeout_ms = 100;
    open_publisher(&w, 100);
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    CHECK_EQ(kill(w.server.process, SIGSTOP), 0);
    for (int i = 0; i < 2; i++) { /* also while it connects */
        CHECK_STATUS(look(&w), HOTBED_ERR_IO);
        CHECK(strstr(hotbed_last_error(), "has not answered in 100 ms") != NULL);
        CHECK_STRING(hotbed_last_error_detail()->parameter, "timeout_ms");
    }
    CHECK_EQ(kill(w.server.process, SIGCONT), 0);
    world_close(&w);
}

static void redis_without_memory_fails_the_cut(hotbed_backend backend) {
    world w;
    world_open(&w, backend, 0);
    open_publisher(&w, 100);
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    redis_server_call(&w.server, "CONFIG SET maxmemory 1");
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(publish(&w), HOTBED_ERR_MEMORY);
        CHECK_STATUS(look(&w), HOTBED_ERR_MEMORY); /* Redis takes no transactions then */
    }
    redis_server_call(&w.server, "CONFIG SET maxmemory 0");
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    redis_server_call(&w.server, "CONFIG SET maxmemory-policy allkeys-lru");
    hotbed_redis_sink *sink = NULL;
    CHECK_STATUS(hotbed_redis_sink_create(&w.redis, &sink), HOTBED_ERR_STATE);
    world_close(&w);
}

/* A connection that fails before its policy is known is not used later without the check. */
static void the_policy_is_checked_after_any_failure(hotbed_backend backend) {
    world w;
    char path[640];
    hotbed_cut_file name = hotbed_rows_name(1, 0);
    size_t bytes = 0;
    world_open(&w, backend, 0);
    open_publisher(&w, 100);
    CHECK_OK(publish(&w));
    snprintf(path, sizeof path, "%.500s/%s", w.directory, name.text);
    void *data = sample_read_file(path, &bytes);
    CHECK(data != NULL);
    redis_server_call(&w.server, "CONFIG SET maxmemory-policy allkeys-lru");
    bool reached = true;
    for (uint64_t n = 1; reached; n++) {
        redis_server_call(&w.server, "CLIENT KILL TYPE normal SKIPME yes");
        fault_arm(n);
        const hotbed_status status = hotbed_redis_sink_file(w.sink, name.text, data, bytes);
        reached = fault_disarm();
        CHECK(status == HOTBED_ERR_MEMORY || status == HOTBED_ERR_IO || status == HOTBED_ERR_STATE);
        CHECK_STATUS(hotbed_redis_sink_file(w.sink, name.text, data, bytes), HOTBED_ERR_STATE);
        CHECK(strstr(hotbed_last_error(), "allkeys-lru") != NULL);
    }
    free(data);
    world_close(&w);
}

static void a_policy_that_changes_later_is_seen(hotbed_backend backend) {
    world w;
    world_open(&w, backend, 0);
    open_publisher(&w, 100);
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    redis_server_call(&w.server, "CONFIG SET maxmemory-policy allkeys-lru");
    CHECK_STATUS(publish(&w), HOTBED_ERR_STATE);
    CHECK(strstr(hotbed_last_error(), "allkeys-lru") != NULL);
    redis_server_call(&w.server, "CONFIG SET maxmemory-policy noeviction");
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    world_close(&w);
}

static int child_asks(hotbed_redis_reader *parents, const hotbed_redis_options *options) {
    hotbed_redis_reader *own = NULL;
    hotbed_redis_stats stats = {.size = sizeof stats};
    hotbed_lookup none = {.table = 0};
    uint64_t version;
    uint32_t table;
    if (hotbed_redis_reader_lookup(parents, &none, 1, &version) != HOTBED_ERR_STATE ||
        hotbed_redis_reader_find(parents, "hash", &table) != HOTBED_ERR_STATE ||
        hotbed_redis_reader_stats(parents, &stats) != HOTBED_ERR_STATE)
        return 1;
    if (hotbed_redis_reader_open(options, &own) != HOTBED_OK ||
        hotbed_redis_reader_lookup(own, &none, 1, &version) != HOTBED_OK || version != 1)
        return 2;
    hotbed_redis_reader_close(own);
    return 0;
}

/* A child of a fork has the parent's socket: each would read the other's answers. */
static void a_forked_process_opens_a_redis_reader_of_its_own(hotbed_backend backend) {
    int ended = 1;
    world w;
    world_open(&w, backend, 0);
    open_publisher(&w, 100);
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    const pid_t child = fork();
    if (child == 0)
        _exit(child_asks(w.reader, &w.redis));
    CHECK_EQ(waitpid(child, &ended, 0), child);
    CHECK_EQ(ended, 0);
    CHECK_OK(look(&w));
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
    CHECK_STRING(detail->path, w.server.socket);
    CHECK_OK(look(&w));
    hotbed_lookup many = {.num_keys = UINT64_MAX, .keys = served_keys};
    uint64_t version;
    CHECK_STATUS(hotbed_redis_reader_lookup(w.reader, &many, 1, &version), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "num_keys",
            .value = (double)UINT64_MAX, .limit = (1 << 20) - 1);
    world_close(&w);
}

/* "model:training1:cut" begins with "model:t", as the rows of "model" do, and is as long. */
static void a_base_keeps_the_cut_of_a_longer_prefix(hotbed_backend backend) {
    world w;
    world_open(&w, backend, 0);
    w.redis.prefix = "model:training1";
    open_publisher(&w, 1);
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    redis_server_call(&w.server, "SADD model:t-of-another- 1"); /* which is no string */
    w.redis.prefix = "model";
    open_publisher(&w, 1);
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w)); /* the reader of the longer prefix */
    world_close(&w);
}

/* The keys of a prefix with a hash tag are on one node, which any node names. */
static void a_cluster_names_the_node_of_a_prefix(hotbed_backend backend) {
    static const char *const prefixes[] = {"{a}", "x{b}", "{c}y", "{d}", "{e}", "{f}"};
    redis_server nodes[2] = {{.process = 0}};
    world w;
    world_open(&w, backend, 0);
    for (int n = 0; n < 2; n++) {
        const char *socket = sample_path(n == 0 ? "node-0.sock" : "node-1.sock");
        snprintf(nodes[n].socket, sizeof nodes[n].socket, "%.100s", socket);
        snprintf(nodes[n].directory, sizeof nodes[n].directory, "%s", w.server.directory);
    }
    nodes[0].password = nodes[1].password = w.redis.password = "secret";
    redis_server_start_cluster(nodes);
    w.redis.path = nodes[0].socket;
    CHECK_STATUS(hotbed_redis_sink_create(&w.redis, &w.sink), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.parameter = "prefix", .path = "/node-0.sock");
    w.redis.path = NULL;
    w.redis.host = "127.0.0.1";
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        hotbed_redis_reader_close(w.reader);
        w.reader = NULL;
        w.redis.port = nodes[i % 2].port;
        w.redis.prefix = prefixes[i];
        snprintf(w.directory, sizeof w.directory, "%s-%zu", sample_path("of"), i);
        open_publisher(&w, 2);
        for (int k = 0; k < 5; k++) {
            CHECK_OK(publish(&w));
            CHECK_OK(look(&w));
        }
    }
    CHECK(redis_server_keys(&nodes[0]) > 0 && redis_server_keys(&nodes[1]) > 0);
    world_close(&w);
    redis_server_kill(&nodes[0]);
    redis_server_kill(&nodes[1]);
}

/* The last error names the server and the option, and has no password. */
static void check_refused(const world *w, const char *parameter, const char *reason) {
    const hotbed_error_detail *detail = hotbed_last_error_detail();
    CHECK_EQ(detail->status, HOTBED_ERR_IO);
    CHECK_STRING(detail->path, w->server.socket);
    CHECK_STRING(detail->parameter, parameter);
    CHECK(strstr(hotbed_last_error(), w->server.socket) != NULL);
    CHECK(strstr(hotbed_last_error(), reason) != NULL);
    CHECK(strstr(hotbed_last_error(), "secret") == NULL);
}

static void check_counts(const world *w, uint32_t refused) {
    hotbed_redis_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_redis_reader_stats(w->reader, &stats));
    CHECK_EQ(stats.refused, refused);
    CHECK_EQ(stats.healthy, refused == 0);
}

static void a_password_is_sent_with_each_connection(hotbed_backend backend) {
    char password[] = "a secret"; /* the library has a copy */
    hotbed_redis_reader *none = NULL;
    hotbed_redis_sink *sink = NULL;
    world w;
    world_open(&w, backend, 7);
    redis_server_kill(&w.server);
    w.server.password = "a secret";
    redis_server_start(&w.server, "noeviction");
    CHECK_STATUS(hotbed_redis_sink_create(&w.redis, &sink), HOTBED_ERR_IO);
    check_refused(&w, "password", "NOAUTH");
    CHECK_STATUS(hotbed_redis_reader_open(&w.redis, &none), HOTBED_ERR_IO);
    check_refused(&w, "password", "NOAUTH");
    w.redis.password = "a secret, and more";
    CHECK_STATUS(hotbed_redis_reader_open(&w.redis, &none), HOTBED_ERR_IO);
    check_refused(&w, "password", "WRONGPASS");
    w.redis.password = password;
    open_publisher(&w, 100);
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    bool reached = true;
    for (uint64_t n = 1; reached; n++) {
        fault_arm(n);
        const hotbed_status status = hotbed_redis_sink_create(&w.redis, &sink);
        reached = fault_disarm();
        CHECK((status == HOTBED_OK) == !reached);
    }
    hotbed_redis_sink_destroy(sink);
    memset(password, 'x', sizeof password - 1);
    redis_server_call(&w.server, "CLIENT KILL TYPE normal SKIPME yes");
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    redis_server_kill(&w.server);
    redis_server_start(&w.server, "noeviction");
    CHECK_STATUS(publish(&w), HOTBED_ERR_STATE); /* it lacks the cut before */
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    check_counts(&w, 0);
    redis_server_call(&w.server, "CONFIG SET requirepass changed");
    w.server.password = "changed";
    redis_server_call(&w.server, "CLIENT KILL TYPE normal SKIPME yes");
    for (uint32_t i = 1; i <= 2; i++) { /* the publisher and the reader say so each time */
        CHECK_STATUS(look(&w), HOTBED_ERR_IO);
        check_refused(&w, "password", "WRONGPASS");
        check_counts(&w, i);
        CHECK_STATUS(publish(&w), HOTBED_ERR_IO);
        check_refused(&w, "password", "WRONGPASS");
    }
    redis_server_call(&w.server, "CONFIG SET requirepass %s", "a secret");
    w.server.password = "a secret";
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    world_close(&w);
}

/* A Redis without AUTH quotes the words that it got. */
static void an_error_of_redis_does_not_have_the_password(hotbed_backend backend) {
    hotbed_redis_reader *none = NULL;
    world w;
    world_open(&w, backend, 0);
    w.redis.password = "a secret";
    CHECK_STATUS(hotbed_redis_reader_open(&w.redis, &none), HOTBED_ERR_IO);
    check_refused(&w, "password", "without any password");
    redis_server_kill(&w.server);
    w.server.renamed = "AUTH";
    redis_server_start(&w.server, "noeviction");
    CHECK_STATUS(hotbed_redis_reader_open(&w.redis, &none), HOTBED_ERR_IO);
    check_refused(&w, "", "not shown");
    char token[200]; /* Redis quotes its beginning */
    memset(token, 's', sizeof token - 1);
    memcpy(token, "secret", 6);
    token[sizeof token - 1] = 0;
    w.redis.password = token;
    CHECK_STATUS(hotbed_redis_reader_open(&w.redis, &none), HOTBED_ERR_IO);
    check_refused(&w, "", "unknown command");
    world_close(&w);
}

/* With the rights that docs/guide/serving.md gives them, and with fewer. */
static void users_of_redis_need_few_rights(hotbed_backend backend) {
    static const char *const readers = "on >%s resetkeys ~m:* -@all +info +@read +@transaction";
    static const char *const writers =
        "on >%s resetkeys ~m:* -@all +info +@read +@write +@scripting";
    hotbed_redis_sink *sink = NULL;
    char rights[128];
    world w;
    world_open(&w, backend, 7);
    for (int i = 0; i < 2; i++) {
        snprintf(
            rights, sizeof rights, "ACL SETUSER %s %s", i == 0 ? "serve" : "train",
            i == 0 ? readers : writers);
        redis_server_call(&w.server, rights, "secret");
    }
    w.redis.prefix = "m";
    w.redis.password = "secret";
    w.redis.user = "serve";
    CHECK_STATUS(hotbed_redis_sink_create(&w.redis, &sink), HOTBED_ERR_IO);
    check_refused(&w, "user", "NOPERM");
    w.redis.user = "train";
    open_publisher(&w, 2);
    CHECK_OK(publish(&w));
    w.redis.user = "nobody";
    CHECK_STATUS(look(&w), HOTBED_ERR_IO);
    check_refused(&w, "password", "WRONGPASS");
    w.redis.user = "serve";
    for (int i = 0; i < 5; i++) {
        CHECK_OK(publish(&w));
        CHECK_OK(look(&w));
    }
    redis_server_call(
        &w.server, "ACL SETUSER serve -mget"); /* of connections that are there, too */
    CHECK_OK(publish(&w));
    CHECK_STATUS(look(&w), HOTBED_ERR_IO);
    check_refused(&w, "user", "NOPERM");
    check_counts(&w, 1);
    redis_server_call(&w.server, "ACL SETUSER train resetkeys ~other:*");
    CHECK_STATUS(publish(&w), HOTBED_ERR_IO);
    check_refused(&w, "user", "NOPERM");
    redis_server_call(&w.server, "ACL SETUSER train ~m:*");
    redis_server_call(&w.server, "ACL SETUSER serve +mget");
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    world_close(&w);
}

static void metrics_of_a_redis_reader_have_prometheus_format(hotbed_backend backend) {
    world w;
    char text[4096];
    uint64_t bytes = 0, again = 0;
    world_open(&w, backend, 0);
    open_publisher(&w, 100);
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    CHECK_OK(publish(&w));
    CHECK_OK(look(&w));
    for (uint32_t t = 0; t < SERVED_TABLES; t++) {
        hotbed_reader_table info = {.size = sizeof info};
        uint32_t found = 0;
        CHECK_OK(hotbed_redis_reader_table_info(w.reader, t, &info));
        CHECK_OK(hotbed_redis_reader_find(w.reader, info.name, &found));
        CHECK(found == t && info.dim == served_dims[t] && info.missing == 0.25F * (float)t);
        CHECK_EQ(info.keys, w.cuts[w.step].keys[t]);
    }
    CHECK_EQ(hotbed_redis_reader_num_tables(w.reader), SERVED_TABLES);
    CHECK_EQ(hotbed_redis_reader_num_tables(NULL), 0);
    hotbed_reader_table none = {.size = sizeof none};
    CHECK_STATUS(
        hotbed_redis_reader_table_info(w.reader, SERVED_TABLES, &none), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "table",
            .value = SERVED_TABLES, .limit = SERVED_TABLES);
    CHECK_OK(hotbed_redis_reader_metrics(w.reader, NULL, 0, &bytes));
    CHECK_OK(hotbed_redis_reader_metrics(w.reader, text, sizeof text, &again));
    CHECK_EQ(strlen(text), again);
    CHECK(
        strstr(text, "# TYPE hotbed_redis_reader_version gauge\nhotbed_redis_reader_version 2\n"));
    CHECK(strstr(text, "hotbed_redis_reader_healthy 1\n") != NULL);
    CHECK(strstr(text, "hotbed_redis_reader_versions_total 2\n") != NULL);
    CHECK(strstr(text, "hotbed_redis_reader_refused_total 0\n") != NULL);
    redis_server_kill(&w.server);
    CHECK_STATUS(look(&w), HOTBED_ERR_IO);
    hotbed_redis_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_redis_reader_stats(w.reader, &stats));
    CHECK(stats.healthy == 0 && stats.refused == 1 && stats.version == 2 && stats.age > 0);
    CHECK_STATUS(hotbed_redis_reader_metrics(w.reader, text, 10, &bytes), HOTBED_ERR_ARGUMENT);
    CHECK_EQ(strlen(text), 9);
    CHECK_STATUS(hotbed_redis_reader_metrics(w.reader, text, 10, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_redis_reader_metrics(NULL, text, 10, &bytes), HOTBED_ERR_ARGUMENT);
    world_close(&w);
}

static void redis_arguments_are_named(hotbed_backend backend) {
    hotbed_redis_options options = {.size = sizeof options};
    hotbed_redis_reader *reader = NULL;
    CHECK_STATUS(hotbed_redis_reader_open(&options, &reader), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.parameter = "host");
    options.path = "/nowhere/redis.sock";
    CHECK_STATUS(hotbed_redis_reader_open(&options, &reader), HOTBED_ERR_IO);
    CHECK_FIELDS(.path = "/nowhere/redis.sock");
    options.prefix = "";
    CHECK_STATUS(hotbed_redis_reader_open(&options, &reader), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "prefix", .value = 0,
            .limit = 63);
    options.prefix = NULL;
    options.port = 65536;
    CHECK_STATUS(hotbed_redis_reader_open(&options, &reader), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(
            .has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .parameter = "port", .value = 65536,
            .limit = 65535);
    options.port = 0;
    options.user = "user";
    CHECK_STATUS(hotbed_redis_reader_open(&options, &reader), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.parameter = "password");
    CHECK_STATUS(hotbed_redis_reader_open(NULL, &reader), HOTBED_ERR_ARGUMENT);
    CHECK_FIELDS(.parameter = "options");
    hotbed_redis_sink_destroy(NULL);
    hotbed_redis_reader_close(NULL);
}

/* A process that ends without redis_server_kill(), as a failed check ends it. */
static void a_server_ends_with_its_test(hotbed_backend backend) {
    int ends[2];
    pid_t server = 0;
    redis_server s = {.process = 0};
    hotbed_stream_destroy(sample_stream(backend)); /* makes the test's directory */
    snprintf(s.socket, sizeof s.socket, "%.100s", sample_path("ends.sock"));
    snprintf(s.directory, sizeof s.directory, "%.200s", sample_path("."));
    CHECK_EQ(pipe(ends), 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        redis_server_start(&s, "noeviction");
        CHECK_EQ(write(ends[1], &s.process, sizeof s.process), sizeof s.process);
        _exit(1);
    }
    close(ends[1]);
    CHECK_EQ(read(ends[0], &server, sizeof server), sizeof server);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    /* the server inherited the other end: the pipe ends with it */
    CHECK_EQ(read(ends[0], &server, sizeof server), 0);
    close(ends[0]);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_server_ends_with_its_test)},
    {TEST(a_reader_of_redis_answers_each_cut)},
    {TEST(parts_of_a_cut_are_not_seen)},
    {TEST(a_cut_whose_rows_were_lost_has_no_record)},
    {TEST(rows_of_all_ranks_precede_the_record)},
    {TEST(rows_of_another_run_are_not_seen)},
    {TEST(a_damaged_file_is_not_written)},
    {TEST(redis_that_lost_its_rows_is_refused)},
    {TEST(redis_that_does_not_answer_is_named)},
    {TEST(redis_without_memory_fails_the_cut)},
    {TEST(the_policy_is_checked_after_any_failure)},
    {TEST(a_policy_that_changes_later_is_seen)},
    {TEST(a_forked_process_opens_a_redis_reader_of_its_own)},
    {TEST(a_base_replaces_older_cuts_only)},
    {TEST(a_base_keeps_the_cut_of_a_longer_prefix)},
    {TEST(a_cluster_names_the_node_of_a_prefix)},
    {TEST(a_password_is_sent_with_each_connection)},
    {TEST(an_error_of_redis_does_not_have_the_password)},
    {TEST(users_of_redis_need_few_rights)},
    {TEST(metrics_of_a_redis_reader_have_prometheus_format)},
    {TEST(redis_arguments_are_named)},
    {NULL, NULL},
};
