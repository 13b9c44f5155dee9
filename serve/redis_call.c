/* serve/redis_call.c - a connection to Redis by hiredis. */
#define _DEFAULT_SOURCE /* struct timeval, explicit_bzero() */
#include "serve/redis_call.h"

#include "base/check.h"
#include "base/error.h"
#include "base/options.h"
#include "base/stream.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

enum { PORT = 6379, TIMEOUT_MS = 10000, CACHE_ROWS = 65536, TEXT = 256, MOVES_MOST = 5 };

struct hotbed_redis {
    char host[TEXT], path[TEXT], prefix[HOTBED_REDIS_PREFIX_MOST + 1];
    char name[TEXT + 16]; /* for messages */
    char node[TEXT];      /* of a cluster, which has the keys; "": host or path */
    uint32_t node_port;
    uint32_t port, timeout_ms, cache_rows;
    char *user, *password; /* NULL: none */
    redisContext *context; /* NULL: not connected */
    redisReply *reply;     /* the last answer */
};

static hotbed_status fail_argument(const char *call, const char *what, const char *why) {
    return hotbed_fail_parameter(HOTBED_ERR_ARGUMENT, what, "%s: %s %s", call, what, why);
}

static void forget_text(char *text) {
    if (text != NULL)
        explicit_bzero(text, strlen(text));
    hotbed_delete(text);
}

/* Copy user and password, which may be long tokens. */
static hotbed_status copy_access(hotbed_redis *r, const char *call, const hotbed_redis_options *o) {
    const struct {
        const char *from;
        char **to;
    } texts[] = {{o->user, &r->user}, {o->password, &r->password}};
    for (int i = 0; i < 2; i++) {
        const size_t bytes = texts[i].from == NULL ? 0 : strlen(texts[i].from) + 1;
        if (bytes == 0)
            continue;
        *texts[i].to = hotbed_new(bytes);
        if (*texts[i].to == NULL)
            return hotbed_fail(HOTBED_ERR_MEMORY, "%s: no memory for a user and a password", call);
        memcpy(*texts[i].to, texts[i].from, bytes);
    }
    return HOTBED_OK;
}

hotbed_status hotbed_redis_create(
    const char *call, const hotbed_redis_options *options, hotbed_redis **out) {
    hotbed_redis_options o;
    HOTBED_TRY(hotbed_check_pointer_of(call, "out", out));
    *out = NULL;
    HOTBED_TRY(hotbed_check_pointer_of(call, "options", options));
    HOTBED_TRY(HOTBED_OPTIONS_READ(&o, hotbed_redis_options, prefix, options));
    if ((o.host == NULL) == (o.path == NULL))
        return fail_argument(
            call, "host", o.host == NULL ? "and path are NULL" : "and path are both set");
    if (o.user != NULL && o.password == NULL)
        return fail_argument(call, "password", "is NULL, but user is set");
    HOTBED_TRY(hotbed_check_range("port", o.port, 0, UINT16_MAX));
    const char *prefix = o.prefix == NULL ? "hotbed" : o.prefix;
    const size_t prefix_bytes = strlen(prefix);
    if (prefix_bytes < 1 || prefix_bytes > HOTBED_REDIS_PREFIX_MOST)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "prefix", prefix_bytes, HOTBED_REDIS_PREFIX_MOST,
            "%s: the prefix has %zu bytes, not 1 to %d", call, prefix_bytes,
            HOTBED_REDIS_PREFIX_MOST);
    const char *where = o.host == NULL ? "path" : "host";
    const size_t where_bytes = strlen(o.host == NULL ? o.path : o.host);
    if (where_bytes >= TEXT)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, where, where_bytes, TEXT - 1,
            "%s: the %s has %zu bytes; at most %d are allowed", call, where, where_bytes, TEXT - 1);
    hotbed_redis *r = hotbed_new(sizeof *r);
    if (r == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_MEMORY, NULL, sizeof *r, "%s: no %zu bytes for a connection to Redis", call,
            sizeof *r);
    const hotbed_status status = copy_access(r, call, &o);
    if (status != HOTBED_OK) {
        hotbed_redis_destroy(r);
        return status;
    }
    r->port = o.port == 0 ? PORT : o.port;
    r->timeout_ms = o.timeout_ms == 0 ? TIMEOUT_MS : o.timeout_ms;
    r->cache_rows = o.cache_rows == 0 ? CACHE_ROWS : o.cache_rows;
    snprintf(r->prefix, sizeof r->prefix, "%s", prefix);
    if (o.host != NULL) {
        snprintf(r->host, sizeof r->host, "%s", o.host);
        snprintf(r->name, sizeof r->name, "%s:%" PRIu32, o.host, r->port);
    } else {
        snprintf(r->path, sizeof r->path, "%s", o.path);
        snprintf(r->name, sizeof r->name, "%s", o.path);
    }
    *out = r;
    return HOTBED_OK;
}

static void forget_reply(hotbed_redis *r) {
    if (r->reply != NULL)
        freeReplyObject(r->reply);
    r->reply = NULL;
}

void hotbed_redis_drop(hotbed_redis *r) {
    forget_reply(r);
    if (r->context != NULL)
        redisFree(r->context);
    r->context = NULL;
}

void hotbed_redis_destroy(hotbed_redis *r) {
    if (r == NULL)
        return;
    hotbed_redis_drop(r);
    forget_text(r->user);
    forget_text(r->password);
    hotbed_delete(r);
}

bool hotbed_redis_connected(const hotbed_redis *r) {
    return r->context != NULL;
}

uint32_t hotbed_redis_cache_rows(const hotbed_redis *r) {
    return r->cache_rows;
}

const char *hotbed_redis_at(const hotbed_redis *r) {
    return r->name;
}

hotbed_status hotbed_redis_corrupt(const hotbed_redis *r, const char *what) {
    return hotbed_fail_path(HOTBED_ERR_CORRUPT, r->name, "Redis at %s: %s", r->name, what);
}

/* The connection has failed, or there is none. */
static hotbed_status fail_connection(hotbed_redis *r) {
    if (r->context != NULL && r->context->err == REDIS_ERR_IO && errno == EAGAIN) {
        hotbed_redis_drop(r);
        return hotbed_fail_path_value(
            HOTBED_ERR_IO, r->name, "timeout_ms", r->timeout_ms,
            "Redis at %s has not answered in %" PRIu32 " ms", r->name, r->timeout_ms);
    }
    const hotbed_status status = hotbed_fail_path(
        HOTBED_ERR_IO, r->name, "Redis at %s: %s", r->name,
        r->context == NULL           ? "no memory to connect"
        : r->context->errstr[0] != 0 ? r->context->errstr
                                     : "the connection has ended");
    hotbed_redis_drop(r);
    return status;
}

/* Whether all keys of the prefix are in one slot of a cluster: it has a hash tag, {..}. */
static bool has_tag(const char *prefix) {
    const char *open = strchr(prefix, '{');
    const char *close = open == NULL ? NULL : strchr(open, '}');
    return close != NULL && close > open + 1;
}

/* Redis keeps its keys, whatever memory it has, and a cluster keeps them together. */
hotbed_status hotbed_redis_check(hotbed_redis *r) {
    static const hotbed_redis_text words = {"INFO", 4};
    hotbed_redis_text info;
    HOTBED_TRY(hotbed_redis_send(r, 1, &words));
    HOTBED_TRY(hotbed_redis_receive(r, &info));
    const char *policy = info.data == NULL ? NULL : strstr(info.data, "maxmemory_policy:");
    const char *cluster = info.data == NULL ? NULL : strstr(info.data, "cluster_enabled:1");
    if (cluster != NULL && !has_tag(r->prefix))
        return hotbed_error_path(
            hotbed_fail_parameter(
                HOTBED_ERR_ARGUMENT, "prefix",
                "Redis at %s is of a cluster: put a part of the prefix '%s' in braces, as in "
                "'{model}', so that one node has all its keys",
                r->name, r->prefix),
            r->name);
    if (policy == NULL || strncmp(policy, "maxmemory_policy:noeviction", 27) == 0)
        return HOTBED_OK;
    policy += strlen("maxmemory_policy:");
    return hotbed_fail_path(
        HOTBED_ERR_STATE, r->name,
        "Redis at %s drops keys when memory is short: its maxmemory-policy is %.*s; set it to "
        "noeviction",
        r->name, (int)strcspn(policy, "\r\n"), policy);
}

/* Read "MOVED <slot> <host>:<port>". An empty host, or "?", is the one that answered. */
static bool read_moved(hotbed_redis *r, const char *text) {
    const char *address = strncmp(text, "MOVED ", 6) == 0 ? strchr(text + 6, ' ') : NULL;
    const char *colon = address == NULL ? NULL : strrchr(address, ':');
    const unsigned long port = colon == NULL ? 0 : strtoul(colon + 1, NULL, 10);
    if (port == 0 || port > 65535 || colon - address > TEXT)
        return false;
    const size_t bytes = (size_t)(colon - address) - 1;
    if (bytes > 0 && !(bytes == 1 && address[1] == '?')) {
        memcpy(r->node, address + 1, bytes);
        r->node[bytes] = 0;
    } else if (r->node[0] == 0) {
        snprintf(r->node, sizeof r->node, "%s", r->host[0] != 0 ? r->host : "127.0.0.1");
    }
    r->node_port = (uint32_t)port;
    return true;
}

static hotbed_status fail_reply(hotbed_redis *r);
static hotbed_status get_any(hotbed_redis *r);

/* Ask for a key of the prefix. *moved: another node has it. */
static hotbed_status find_node(hotbed_redis *r, bool *moved) {
    const hotbed_redis_name name = hotbed_redis_cut_name(r);
    const hotbed_redis_text words[] = {{"STRLEN", 6}, hotbed_redis_text_of(&name)};
    HOTBED_TRY(hotbed_redis_send(r, 2, words));
    HOTBED_TRY(get_any(r));
    const bool error = r->reply->type == REDIS_REPLY_ERROR;
    *moved = error && read_moved(r, r->reply->str);
    return error && !*moved ? fail_reply(r) : HOTBED_OK;
}

/* The option that an error of Redis is about; NULL: none. Redis 5 has no codes for a wrong password, and for
 * one that it does not have. */
static const char *option_of(const char *error) {
    static const char *const begins[] = {
        "NOAUTH", "WRONGPASS", "ERR AUTH ", "ERR Client sent AUTH", "ERR invalid password"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(error, begins[i], strlen(begins[i])) == 0)
            return "password";
    return strncmp(error, "NOPERM", 6) == 0 ? "user" : NULL;
}

/* Give the user and the password, if there are any. Some servers and proxies quote the words of a command in
 * their error, so the text of ours ends before a quote, and is left out if it has the password. */
static hotbed_status authenticate(hotbed_redis *r) {
    hotbed_redis_text words[3] = {{"AUTH", 4}};
    uint32_t n = 1;
    if (r->password == NULL)
        return HOTBED_OK;
    if (r->user != NULL)
        words[n++] = (hotbed_redis_text){r->user, strlen(r->user)};
    words[n++] = (hotbed_redis_text){r->password, strlen(r->password)};
    HOTBED_TRY(hotbed_redis_send(r, n, words));
    HOTBED_TRY(get_any(r));
    if (r->reply->type != REDIS_REPLY_ERROR)
        return HOTBED_OK;
    const bool quoted = strstr(r->reply->str, r->password) != NULL;
    const char *text = quoted ? "an error that is not shown" : r->reply->str;
    return hotbed_error_parameter(
        hotbed_fail_path(
            HOTBED_ERR_IO, r->name, "Redis at %s answers AUTH with %.*s", r->name,
            (int)strcspn(text, "'`\""), text),
        option_of(r->reply->str));
}

static hotbed_status connect_node(hotbed_redis *r, bool *moved) {
    const struct timeval limit = {
        .tv_sec = r->timeout_ms / 1000, .tv_usec = r->timeout_ms % 1000 * 1000};
    r->context = r->node[0] != 0   ? redisConnectWithTimeout(r->node, (int)r->node_port, limit)
                 : r->path[0] != 0 ? redisConnectUnixWithTimeout(r->path, limit)
                                   : redisConnectWithTimeout(r->host, (int)r->port, limit);
    if (r->context == NULL || r->context->err != 0 ||
        redisSetTimeout(r->context, limit) != REDIS_OK)
        return fail_connection(r);
    HOTBED_TRY(authenticate(r));
    HOTBED_TRY(hotbed_redis_check(r));
    return find_node(r, moved);
}

hotbed_status hotbed_redis_connect(hotbed_redis *r) {
    if (r->context != NULL)
        return HOTBED_OK;
    hotbed_status status = HOTBED_OK;
    bool moved = true;
    r->node[0] = 0;
    for (int i = 0; i <= MOVES_MOST && moved && status == HOTBED_OK; i++) {
        hotbed_redis_drop(r); /* of the node before */
        moved = false;
        status = connect_node(r, &moved);
    }
    if (status == HOTBED_OK && moved)
        status = hotbed_fail_path_limit(
            HOTBED_ERR_IO, r->name, NULL, MOVES_MOST + 1, MOVES_MOST,
            "Redis at %s: after %d moves the cluster names another node, %s:%" PRIu32, r->name,
            MOVES_MOST, r->node, r->node_port);
    if (status != HOTBED_OK) /* the next call checks again */
        hotbed_redis_drop(r);
    return status;
}

hotbed_status hotbed_redis_send(hotbed_redis *r, uint32_t n, const hotbed_redis_text *words) {
    const char **data = hotbed_new(n * sizeof *data);
    size_t *bytes = hotbed_new(n * sizeof *bytes);
    hotbed_status status = HOTBED_OK;
    if (data == NULL || bytes == NULL)
        status = hotbed_fail_value(
            HOTBED_ERR_MEMORY, NULL, n,
            "no memory for a command of %" PRIu32 " words to Redis at %s", n, r->name);
    for (uint32_t i = 0; i < n && status == HOTBED_OK; i++) {
        data[i] = words[i].data;
        bytes[i] = words[i].bytes;
    }
    if (status == HOTBED_OK && redisAppendCommandArgv(r->context, (int)n, data, bytes) != REDIS_OK)
        status = fail_connection(r);
    hotbed_delete(data);
    hotbed_delete(bytes);
    return status;
}

static hotbed_status fail_reply(hotbed_redis *r) {
    const bool full = strncmp(r->reply->str, "OOM", 3) == 0 ||
                      strstr(r->reply->str, "OOM command not allowed") != NULL;
    const hotbed_status status = hotbed_error_parameter(
        hotbed_fail_path(
            full ? HOTBED_ERR_MEMORY : HOTBED_ERR_IO, r->name, "Redis at %s: %.160s", r->name,
            r->reply->str),
        option_of(r->reply->str));
    hotbed_redis_drop(r);
    return status;
}

/* Send what was appended, and wait for an answer. hiredis writes to a connection that has ended as any
 * program does, which raises SIGPIPE; the signal must not reach the caller's process. */
static int get_reply(redisContext *context, void **reply) {
    static const struct timespec now = {0, 0};
    sigset_t pipe, mask, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigemptyset(&pending);
    (void)sigpending(&pending);
    const bool earlier = sigismember(&pending, SIGPIPE) == 1;
    (void)pthread_sigmask(SIG_BLOCK, &pipe, &mask);
    const int result = redisGetReply(context, reply);
    if (!earlier)
        (void)sigtimedwait(&pipe, NULL, &now);
    (void)pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return result;
}

/* Wait for the next answer, which may be an error. */
static hotbed_status get_any(hotbed_redis *r) {
    void *reply = NULL;
    forget_reply(r);
    if (get_reply(r->context, &reply) != REDIS_OK || reply == NULL)
        return fail_connection(r);
    r->reply = reply;
    return HOTBED_OK;
}

static hotbed_status next(hotbed_redis *r) {
    HOTBED_TRY(get_any(r));
    return r->reply->type == REDIS_REPLY_ERROR ? fail_reply(r) : HOTBED_OK;
}

static hotbed_redis_text text_of(const redisReply *reply) {
    const bool text = reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_STATUS;
    return (hotbed_redis_text){text ? reply->str : NULL, text ? reply->len : 0};
}

hotbed_status hotbed_redis_receive(hotbed_redis *r, hotbed_redis_text *out) {
    HOTBED_TRY(next(r));
    *out = text_of(r->reply);
    return HOTBED_OK;
}

hotbed_status hotbed_redis_receive_list(hotbed_redis *r, size_t *n) {
    HOTBED_TRY(next(r));
    for (size_t i = 0; r->reply->type == REDIS_REPLY_ARRAY && i < r->reply->elements; i++)
        if (r->reply->element[i]->type == REDIS_REPLY_ERROR) { /* of a command in a transaction */
            redisReply *all = r->reply;
            r->reply = all->element[i];
            all->element[i] = NULL;
            freeReplyObject(all);
            return fail_reply(r);
        }
    *n = r->reply->type == REDIS_REPLY_ARRAY ? r->reply->elements : 0;
    return HOTBED_OK;
}

hotbed_redis_text hotbed_redis_item(const hotbed_redis *r, size_t list, size_t i) {
    const redisReply *of = r->reply;
    if (list != SIZE_MAX)
        of = of->type == REDIS_REPLY_ARRAY && list < of->elements ? of->element[list] : NULL;
    if (of == NULL || of->type != REDIS_REPLY_ARRAY || i >= of->elements)
        return (hotbed_redis_text){NULL, 0};
    return text_of(of->element[i]);
}

size_t hotbed_redis_count(const hotbed_redis *r, size_t list) {
    const redisReply *of = list < r->reply->elements ? r->reply->element[list] : NULL;
    return of != NULL && of->type == REDIS_REPLY_ARRAY ? of->elements : 0;
}

/* --- keys ------------------------------------------------------------------------------------- */

static hotbed_redis_name name_of(const hotbed_redis *r, const char *what) {
    hotbed_redis_name name;
    name.bytes = (size_t)snprintf(name.text, sizeof name.text, "%s:%s", r->prefix, what);
    return name;
}

hotbed_redis_name hotbed_redis_cut_name(const hotbed_redis *r) {
    return name_of(r, "cut");
}

hotbed_redis_name hotbed_redis_writing_name(const hotbed_redis *r) {
    return name_of(r, "writing");
}

hotbed_redis_name hotbed_redis_row_name(const hotbed_redis *r, uint32_t table, uint64_t key) {
    hotbed_redis_name name = name_of(r, "t");
    memcpy(name.text + name.bytes, &table, sizeof table);
    memcpy(name.text + name.bytes + sizeof table, &key, sizeof key);
    name.bytes += sizeof table + sizeof key;
    return name;
}
