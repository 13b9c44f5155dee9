/* bench/serving_peers.c - RocksDB and Redis with the rows of a published table, used as their manuals advise. */
#include "serving_peers.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef SERVING_ROCKSDB
#include <rocksdb/c.h>
#endif
#ifdef SERVING_REDIS
#include <hiredis/hiredis.h>
#endif

enum { KEYS_MOST = 1024 }; /* of a call */

#if defined(SERVING_ROCKSDB) || defined(SERVING_REDIS)
static void need(bool ok, const char *peer, const char *what) {
    if (ok)
        return;
    fprintf(stderr, "hotbed-serving: %s: %s\n", peer, what == NULL ? "out of memory" : what);
    exit(1);
}
#endif

/* --- RocksDB: options for point lookups, a cache for all rows, compacted, MultiGet -------------------------------- */

#ifdef SERVING_ROCKSDB
enum { CACHE_MB = 8192 };

typedef struct rocksdb_store {
    rocksdb_t *db;
    rocksdb_column_family_handle_t *family; /* the default one */
    uint64_t row_bytes;
    rocksdb_writeoptions_t *write;
} rocksdb_store;

typedef struct rocksdb_client {
    const rocksdb_store *store;
    rocksdb_readoptions_t *read;
} rocksdb_client;

static void *start_rocksdb(const char *place, uint64_t row_bytes) {
    char *error = NULL;
    rocksdb_store *s = malloc(sizeof *s);
    need(s != NULL, "RocksDB", NULL);
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_optimize_for_point_lookup(options, CACHE_MB);
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_error_if_exists(options, 1);
    rocksdb_options_set_compression(options, rocksdb_no_compression);
    rocksdb_options_prepare_for_bulk_load(options);
    s->row_bytes = row_bytes;
    const char *const family = "default";
    s->db = rocksdb_open_column_families(
        options, place, 1, &family, (const rocksdb_options_t *const *)&options, &s->family, &error);
    need(error == NULL, "RocksDB", error);
    s->write = rocksdb_writeoptions_create();
    rocksdb_writeoptions_disable_WAL(s->write, 1);
    rocksdb_options_destroy(options);
    return s;
}

static void set_rocksdb(void *store, uint64_t n, const uint64_t *keys, const void *rows) {
    const rocksdb_store *s = store;
    char *error = NULL;
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    for (uint64_t i = 0; i < n; i++)
        rocksdb_writebatch_put(
            batch, (const char *)&keys[i], sizeof *keys, (const char *)rows + i * s->row_bytes,
            s->row_bytes);
    rocksdb_write(s->db, s->write, batch, &error);
    need(error == NULL, "RocksDB", error);
    rocksdb_writebatch_destroy(batch);
}

static void settle_rocksdb(void *store) {
    const rocksdb_store *s = store;
    char *error = NULL;
    rocksdb_flushoptions_t *flush = rocksdb_flushoptions_create();
    rocksdb_flush(s->db, flush, &error);
    need(error == NULL, "RocksDB", error);
    rocksdb_flushoptions_destroy(flush);
    rocksdb_compact_range(s->db, NULL, 0, NULL, 0);
}

static void *connect_rocksdb(void *store) {
    const rocksdb_store *s = store;
    rocksdb_client *c = malloc(sizeof *c);
    need(c != NULL, "RocksDB", NULL);
    *c = (rocksdb_client){s, rocksdb_readoptions_create()};
    rocksdb_readoptions_set_verify_checksums(c->read, 0);
    return c;
}

static void get_rocksdb(void *client, uint64_t n, const uint64_t *keys, void *rows) {
    const rocksdb_client *c = client;
    const char *list[KEYS_MOST] = {NULL};
    size_t sizes[KEYS_MOST] = {0}, bytes;
    rocksdb_pinnableslice_t *values[KEYS_MOST];
    char *errors[KEYS_MOST];
    for (uint64_t i = 0; i < n; i++) {
        list[i] = (const char *)&keys[i];
        sizes[i] = sizeof *keys;
    }
    rocksdb_batched_multi_get_cf(
        c->store->db, c->read, c->store->family, n, list, sizes, values, errors, false);
    for (uint64_t i = 0; i < n; i++) {
        need(errors[i] == NULL, "RocksDB", errors[i]);
        const char *value =
            values[i] == NULL ? NULL : rocksdb_pinnableslice_value(values[i], &bytes);
        need(value != NULL && bytes == c->store->row_bytes, "RocksDB", "a row is missing");
        memcpy((char *)rows + i * bytes, value, bytes);
        rocksdb_pinnableslice_destroy(values[i]);
    }
}

static void disconnect_rocksdb(void *client) {
    rocksdb_client *c = client;
    rocksdb_readoptions_destroy(c->read);
    free(c);
}

static void stop_rocksdb(void *store) {
    rocksdb_store *s = store;
    rocksdb_writeoptions_destroy(s->write);
    rocksdb_column_family_handle_destroy(s->family);
    rocksdb_close(s->db);
    free(s);
}

const serving_peer serving_rocksdb = {"RocksDB",          start_rocksdb,   set_rocksdb,
                                      settle_rocksdb,     connect_rocksdb, get_rocksdb,
                                      disconnect_rocksdb, stop_rocksdb};
#else
const serving_peer serving_rocksdb = {.name = "RocksDB"};
#endif

/* --- Redis: MSET and MGET over a socket of the machine --------------------------------------------- */

#ifdef SERVING_REDIS
typedef struct redis_client {
    redisContext *context;
    char place[256];
    uint64_t row_bytes;
} redis_client;

static void *start_redis(const char *place, uint64_t row_bytes) {
    redis_client *c = calloc(1, sizeof *c);
    need(c != NULL, "Redis", NULL);
    need(strlen(place) < sizeof c->place, "Redis", "the path of the socket is too long");
    memcpy(c->place, place, strlen(place) + 1);
    c->row_bytes = row_bytes;
    c->context = redisConnectUnix(place);
    need(c->context != NULL && c->context->err == 0, "Redis", "no server at the socket");
    return c;
}

/* Send a command of n words, and check the answer. */
static redisReply *ask_redis(
    const redis_client *c, int n, const char **words, const size_t *sizes, int type) {
    redisReply *reply = redisCommandArgv(c->context, n, words, sizes);
    need(reply != NULL, "Redis", c->context->errstr);
    need(reply->type == type, "Redis", reply->str == NULL ? "another answer" : reply->str);
    return reply;
}

static void set_redis(void *store, uint64_t n, const uint64_t *keys, const void *rows) {
    const redis_client *c = store;
    const char *words[2 * KEYS_MOST + 1] = {"MSET"};
    size_t sizes[2 * KEYS_MOST + 1] = {4};
    for (uint64_t first = 0, m; first < n; first += m) {
        m = n - first < KEYS_MOST ? n - first : KEYS_MOST;
        for (uint64_t i = 0; i < m; i++) {
            words[2 * i + 1] = (const char *)&keys[first + i];
            words[2 * i + 2] = (const char *)rows + (first + i) * c->row_bytes;
            sizes[2 * i + 1] = sizeof *keys;
            sizes[2 * i + 2] = c->row_bytes;
        }
        freeReplyObject(ask_redis(c, (int)(2 * m + 1), words, sizes, REDIS_REPLY_STATUS));
    }
}

static void settle_redis(void *store) {
    (void)store;
}

static void *connect_redis(void *store) {
    const redis_client *c = store;
    return start_redis(c->place, c->row_bytes);
}

static void get_redis(void *client, uint64_t n, const uint64_t *keys, void *rows) {
    const redis_client *c = client;
    const char *words[KEYS_MOST + 1] = {"MGET"};
    size_t sizes[KEYS_MOST + 1] = {4};
    for (uint64_t i = 0; i < n; i++) {
        words[i + 1] = (const char *)&keys[i];
        sizes[i + 1] = sizeof *keys;
    }
    redisReply *reply = ask_redis(c, (int)n + 1, words, sizes, REDIS_REPLY_ARRAY);
    for (uint64_t i = 0; i < n; i++) {
        const redisReply *row = reply->element[i];
        need(
            row->type == REDIS_REPLY_STRING && row->len == c->row_bytes, "Redis",
            "a row is missing");
        memcpy((char *)rows + i * c->row_bytes, row->str, c->row_bytes);
    }
    freeReplyObject(reply);
}

static void stop_redis(void *client) {
    redis_client *c = client;
    redisFree(c->context);
    free(c);
}

const serving_peer serving_redis = {"Redis",       start_redis, set_redis,  settle_redis,
                                    connect_redis, get_redis,   stop_redis, stop_redis};
#else
const serving_peer serving_redis = {.name = "Redis"};
#endif
