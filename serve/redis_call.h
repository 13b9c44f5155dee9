/* serve/redis_call.h - a connection to Redis, and the values that rows have there.
 *
 * Redis keys:
 *   PREFIX:cut      the file of the newest cut
 *   PREFIX:writing  a hash, of the cut whose rows are being written, or of the newest one: "id" is its run and
 *                   number, and rank r has the digest of its rows file once all its rows are there
 *   PREFIX:t, the table's number and the key, in binary: a row
 *
 * A row is one version or two, the newer one first. A version is the number of its cut, 8 bytes, the first 8
 * bytes of its run, the bytes of the encoded row, 4 bytes (ERASED: the key was removed), and the encoded row.
 * Versions of other runs than the cut's, and those older than its base, are dead. */
#pragma once

#include "hotbed/redis.h"
#include "serve/format.h"

#define HOTBED_REDIS_ERASED UINT32_MAX

enum {
    HOTBED_REDIS_PREFIX_MOST = 63,
    HOTBED_REDIS_KEY_BYTES = HOTBED_REDIS_PREFIX_MOST + 2 + 4 + 8 + 1, /* with a 0 at the end */
    HOTBED_REDIS_VERSION_BYTES = 20,                                   /* without the row */
};

typedef struct hotbed_redis hotbed_redis;

/* An argument of a command, and an answer. */
typedef struct hotbed_redis_text {
    const void *data; /* NULL: nil */
    size_t bytes;
} hotbed_redis_text;

/* Copy and check options; nothing is connected. Errors: ARGUMENT, MEMORY. */
hotbed_status hotbed_redis_create(
    const char *call, const hotbed_redis_options *options, hotbed_redis **out);
void hotbed_redis_destroy(hotbed_redis *redis); /* NULL is allowed */

uint32_t hotbed_redis_cache_rows(const hotbed_redis *redis);

/* Connect, if there is no connection, and check that Redis keeps its keys. After a failure there is no
 * connection. Errors: IO, STATE, MEMORY. */
hotbed_status hotbed_redis_connect(hotbed_redis *redis);

bool hotbed_redis_connected(const hotbed_redis *redis);

/* Check that Redis still keeps its keys: its configuration may change while it runs. Errors: as
 * hotbed_redis_connect(). */
hotbed_status hotbed_redis_check(hotbed_redis *redis);

/* Close the connection after a failure: answers may be missing. */
void hotbed_redis_drop(hotbed_redis *redis);

/* Append a command; the answers come in order. Errors: MEMORY. */
hotbed_status hotbed_redis_send(hotbed_redis *redis, uint32_t n, const hotbed_redis_text *words);

/* Wait for the next answer: a text or nil. Valid until the next call. Errors: IO, MEMORY (Redis has none
 * left). */
hotbed_status hotbed_redis_receive(hotbed_redis *redis, hotbed_redis_text *out);

/* Wait for an answer that is a list, and then get its texts. NULL for lists in it. */
hotbed_status hotbed_redis_receive_list(hotbed_redis *redis, size_t *n);
hotbed_redis_text hotbed_redis_item(const hotbed_redis *redis, size_t list, size_t i);
size_t hotbed_redis_count(const hotbed_redis *redis, size_t list); /* texts of a list in the list */

/* A key of Redis. */
typedef struct hotbed_redis_name {
    size_t bytes;
    char text[HOTBED_REDIS_KEY_BYTES];
} hotbed_redis_name;

static inline hotbed_redis_text hotbed_redis_text_of(const hotbed_redis_name *name) {
    return (hotbed_redis_text){name->text, name->bytes};
}

hotbed_redis_name hotbed_redis_cut_name(const hotbed_redis *redis);
hotbed_redis_name hotbed_redis_writing_name(const hotbed_redis *redis);
hotbed_redis_name hotbed_redis_row_name(const hotbed_redis *redis, uint32_t table, uint64_t key);

/* Fail because Redis has other bytes than expected. */
hotbed_status hotbed_redis_corrupt(const hotbed_redis *redis, const char *what);
/* Host and port, or the path, for messages. */
const char *hotbed_redis_at(const hotbed_redis *redis);
