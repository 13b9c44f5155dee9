/* hotbed/redis.h - publish cuts to a Redis server, and look up rows there.
 *
 * Experimental: all calls.
 *
 * For rows that outgrow the memory of a serving machine. A *sink* gets the files that a publisher
 * (hotbed/publish.h) writes to its directory, and writes their rows to one Redis server, one Redis key for
 * each row; the cut's own record comes last. A *Redis reader* answers lookups from there, behind a cache of
 * its own.
 *
 *       hotbed_redis_options redis = {.size = sizeof redis};
 *       redis.path = "/run/redis/redis.sock";
 *       hotbed_redis_sink *sink;
 *       status = hotbed_redis_sink_create(&redis, &sink);
 *       hotbed_publish_options publish = {
 *           .size = sizeof publish, .file = hotbed_redis_sink_file, .context = sink};
 *       // hotbed_publisher_create(), and a publish every few minutes; each rank has a sink of its own
 *       hotbed_redis_reader *rows; // in a process that serves
 *       status = hotbed_redis_reader_open(&redis, &rows);
 *       hotbed_lookup lookup = {.num_keys = 3, .keys = keys, .output = output};
 *       status = hotbed_redis_reader_find(rows, "user", &lookup.table);
 *       uint64_t version;
 *       status = hotbed_redis_reader_lookup(rows, &lookup, 1, &version);
 *
 * A lookup is one transaction of Redis, so all of its rows are of the cut that it names. A row keeps its
 * version before, until the cut after has its record, so a reader never sees a part of a cut.
 *
 * A reader refuses instead of answering from less than a cut: if Redis does not answer (IO), has no cut, an
 * older one than before, or one of another format (STATE, CORRUPT, UNSUPPORTED), or is set up to drop keys
 * when memory is short (STATE), which is checked with each new cut. If Redis has no memory left, it takes no
 * transactions (MEMORY).
 *
 * One row that somebody deletes from Redis, past the sink, is not noticed: it reads as a missing key until the next
 * base.
 *
 * A connection begins with AUTH if a password is set, also after a failure and on each node of a cluster. If
 * Redis refuses it, or needs one that is not set, or does not let the user run a command, the call is IO with
 * Redis's reason. The error's parameter is then "password", or "user" if rights are missing; its path is the
 * server. Nothing that the library writes has the password. There is no TLS: use a Unix socket, or stunnel.
 *
 * A sink fails the cut if Redis does not have the cut before, or lost rows of this one before its record came,
 * of any rank; if a base is not newer than the cut that Redis has, or another publisher uses the prefix
 * (STATE); or if Redis has no memory for it (MEMORY). The publisher's next cut is then a base, which has
 * everything.
 *
 * Redis 5 or later. All keys of a prefix are on one server, because a transaction of Redis is; models of
 * different prefixes may be on different ones. Of a Redis Cluster any node can be named. The prefix then has a
 * hash tag, as "{model}", and the node with its slot is found when a connection begins, and again after it has
 * moved.
 *
 * A process that was forked opens a reader of its own; calls with the parent's return STATE. */
#ifndef HOTBED_REDIS_H
#define HOTBED_REDIS_H

#include "hotbed/read.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_redis_sink hotbed_redis_sink;     /* opaque; owned by the caller */
typedef struct hotbed_redis_reader hotbed_redis_reader; /* opaque; owned by the caller */

/* Where Redis is. 0 is the default of every field but `size`. Strings are copied. */
typedef struct hotbed_redis_options {
    uint32_t size;    /* sizeof(hotbed_redis_options) */
    uint32_t port;    /* of `host`; 0: 6379 */
    const char *host; /* a name or an address, or */
    const char *path; /* the path of a Unix socket; one of them is required */
    /* of all Redis keys, 1 .. 63 bytes; in a cluster with {..}; NULL: "hotbed" */
    const char *prefix;
    uint32_t timeout_ms; /* for a connection, and for each answer; 0: 10000 */
    uint32_t cache_rows; /* of a reader: rows that it remembers until the next cut; 0: 65536 */
    const char *user;    /* of Redis 6 or later, with `password`; NULL: "default" */
    /* NULL: none. The sink or reader keeps its copy to connect again, and overwrites it when it is destroyed;
     * the caller may overwrite its own when the call has returned. */
    const char *password;
} hotbed_redis_options;

/* Connect a sink. Synchronous.
 * Errors: ARGUMENT (also a prefix without a hash tag, if Redis is a cluster; a user without a password), IO (no
 * connection; no access), STATE (Redis may drop keys when memory is short), MEMORY, UNSUPPORTED (a build
 * without HOTBED_REDIS). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_redis_sink_create(const hotbed_redis_options *options, hotbed_redis_sink **out);
HOTBED_API void hotbed_redis_sink_destroy(hotbed_redis_sink *sink); /* NULL is allowed */

/* Write a file of a cut: a hotbed_publish_file, with a sink as its context. The file is checked first.
 * Synchronous; connects again after a failure. Rows of a base that are no rows of the next one are removed
 * once the base is there. `data` is aligned to 8 bytes.
 * Errors: IO, MEMORY (Redis has none left), STATE (Redis does not have the cut before, or rows of this one,
 * with the number of the cut), CORRUPT (the file is damaged, or is not what its name says), UNSUPPORTED (its
 * format). */
HOTBED_API hotbed_status
hotbed_redis_sink_file(void *sink, const char *name, const void *data, uint64_t bytes);

/* Connect a reader. Synchronous.
 * Errors: as hotbed_redis_sink_create(); STATE (Redis has no cut yet). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_redis_reader_open(const hotbed_redis_options *options, hotbed_redis_reader **out);
HOTBED_API void hotbed_redis_reader_close(hotbed_redis_reader *reader); /* NULL is allowed */

/* Find a table by name.
 * Errors: ARGUMENT (there is no such table). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_redis_reader_find(hotbed_redis_reader *reader, const char *name, uint32_t *table);

/* Return the number of tables, which does not change; 0 for NULL. */
HOTBED_API uint32_t hotbed_redis_reader_num_tables(const hotbed_redis_reader *reader);

/* Describe a table as it is in the cut that the reader used last. Waits for a lookup of another thread, not
 * for Redis.
 * Errors: ARGUMENT, STATE (forked). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_redis_reader_table_info(
    hotbed_redis_reader *reader, uint32_t table, hotbed_reader_table *out);

/* Answer n lookups from one version, as hotbed_reader_lookup() does. Waits for Redis, also if all rows are
 * in the cache: Redis says whether they are still of the newest cut. Any thread may call it; calls wait for
 * each other. All lookups have at most 2^20 - 1 keys.
 * Errors: as hotbed_reader_lookup(); IO, STATE, CORRUPT, MEMORY. Outputs may have been written then. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_redis_reader_lookup(
    hotbed_redis_reader *reader, const hotbed_lookup *lookups, uint32_t n, uint64_t *version);

/* What a Redis reader has done. */
typedef struct hotbed_redis_stats {
    uint32_t size;    /* set by the caller: sizeof(hotbed_redis_stats) */
    uint32_t refused; /* lookups that failed */
    uint64_t version, step;
    uint64_t lookups, keys, missing;
    uint64_t cached;   /* keys whose rows the cache had */
    double age;        /* as in hotbed_reader_stats */
    uint64_t versions; /* cuts used so far */
    uint32_t healthy;  /* 1 if the last lookup, or the open, succeeded */
    uint32_t reserved;
} hotbed_redis_stats;

/* Read the counts of a reader.
 * Errors: ARGUMENT. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_redis_reader_stats(hotbed_redis_reader *reader, hotbed_redis_stats *out);

/* Write the state in Prometheus's text format, as hotbed_reader_metrics() does. Waits for a lookup of
 * another thread, not for Redis.
 *   text      out  [capacity], always terminated by 0; NULL: return the size only
 *   capacity  in   bytes of `text`
 *   bytes     out  length of the whole text, without the 0
 * Errors: ARGUMENT (`text` is too small, with the bytes needed in *bytes). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_redis_reader_metrics(
    hotbed_redis_reader *reader, char *text, uint64_t capacity, uint64_t *bytes);

HOTBED_END_DECLS
#endif
