/* bench/serving_peers.h - other stores of rows by key, to be timed beside a reader: RocksDB and Redis. */
#pragma once

#include <stdint.h>

/* A store. Every failure ends the program. */
typedef struct serving_peer {
    const char *name;
    /* Open a directory, which is created, or the socket of a server. */
    void *(*open)(const char *place, uint64_t row_bytes);
    void (*set)(void *store, uint64_t n, const uint64_t *keys, const void *rows);
    void (*settle)(void *store);   /* after the last row */
    void *(*connect)(void *store); /* for one thread */
    void (*get)(void *client, uint64_t n, const uint64_t *keys, void *rows);
    void (*disconnect)(void *client);
    void (*close)(void *store);
} serving_peer;

/* `open` is NULL in a build without the peer. */
extern const serving_peer serving_rocksdb, serving_redis;
