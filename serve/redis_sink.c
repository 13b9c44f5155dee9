/* serve/redis_sink.c - writes the files of a publisher to Redis: rows first, the record of the cut last. */
#include "serve/redis_call.h"

#include "base/error.h"
#include "base/stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { AHEAD = 256, SCANNED = 1000 }; /* commands whose answers are awaited together */

/* Put version ARGV[2] of a row before the newest one that is not newer than cut ARGV[1]. */
static const char put_script[] =
    "local old = redis.call('GET', KEYS[1]) local keep = '' "
    "local at = 1 "
    "while old and at <= #old do "
    "  local number, n = struct.unpack('<I8I4', old, at) "
    "  local size = 12 "
    "  if n ~= 4294967295 then size = size + n end "
    "  if number <= tonumber(ARGV[1]) then keep = string.sub(old, at, at + size - 1) break end "
    "  at = at + size "
    "end "
    "redis.call('SET', KEYS[1], ARGV[2] .. keep) return redis.status_reply('OK')";

/* Remove the rows whose newest version is older than base ARGV[1]. */
static const char drop_script[] = "for _, key in ipairs(KEYS) do "
                                  "  local old = redis.call('GETRANGE', key, 0, 7) "
                                  "  if #old == 8 and struct.unpack('<I8', old) < "
                                  "tonumber(ARGV[1]) then redis.call('DEL', key) end "
                                  "end return redis.status_reply('OK')";

struct hotbed_redis_sink {
    hotbed_redis *redis;
    char put[41], drop[41]; /* names of the scripts */
    unsigned char *version; /* [version_bytes] of a row */
    size_t version_bytes;
    uint64_t waiting; /* answers */
};

static hotbed_redis_text word(const char *text) {
    return (hotbed_redis_text){text, strlen(text)};
}

/* Send a script to Redis, which names it. */
static hotbed_status load_script(hotbed_redis *redis, const char *script, char name[41]) {
    const hotbed_redis_text words[] = {{"SCRIPT", 6}, {"LOAD", 4}, word(script)};
    hotbed_redis_text answer;
    HOTBED_TRY(hotbed_redis_send(redis, 3, words));
    HOTBED_TRY(hotbed_redis_receive(redis, &answer));
    if (answer.bytes != 40)
        return hotbed_redis_corrupt(redis, "a script has no name");
    memcpy(name, answer.data, 41);
    return HOTBED_OK;
}

static hotbed_status load_scripts(hotbed_redis_sink *s) {
    HOTBED_TRY(hotbed_redis_connect(s->redis));
    HOTBED_TRY(load_script(s->redis, put_script, s->put));
    return load_script(s->redis, drop_script, s->drop);
}

static hotbed_status connect_sink(hotbed_redis_sink *s) {
    const bool connected = hotbed_redis_connected(s->redis);
    hotbed_status status = load_scripts(s);
    if (status != HOTBED_ERR_IO || !connected)
        return status;
    hotbed_redis_drop(s->redis); /* Redis may have closed it long ago */
    return load_scripts(s);
}

hotbed_status hotbed_redis_sink_create(
    const hotbed_redis_options *options, hotbed_redis_sink **out) {
    hotbed_redis *redis = NULL;
    if (out == NULL)
        return hotbed_fail_null_of("redis_sink_create", "out");
    *out = NULL;
    HOTBED_TRY(hotbed_redis_create("redis_sink_create", options, &redis));
    hotbed_redis_sink *s = hotbed_new(sizeof *s);
    hotbed_status status = HOTBED_OK;
    if (s == NULL) {
        hotbed_redis_destroy(redis);
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a sink");
    }
    s->redis = redis;
    status = connect_sink(s);
    if (status == HOTBED_OK)
        *out = s;
    else
        hotbed_redis_sink_destroy(s);
    return status;
}

void hotbed_redis_sink_destroy(hotbed_redis_sink *s) {
    if (s == NULL)
        return;
    hotbed_redis_destroy(s->redis);
    hotbed_delete(s->version);
    hotbed_delete(s);
}

/* --- rows ------------------------------------------------------------------------------------- */

static hotbed_status receive_all(hotbed_redis_sink *s) {
    hotbed_redis_text answer;
    for (; s->waiting > 0; s->waiting--)
        HOTBED_TRY(hotbed_redis_receive(s->redis, &answer));
    return HOTBED_OK;
}

/* Put a version of a row; `row` NULL: the key is removed. */
static hotbed_status put_row(
    hotbed_redis_sink *s, const char *committed, uint64_t number, uint32_t table, uint64_t key,
    const unsigned char *row, uint32_t row_bytes) {
    char at[HOTBED_REDIS_KEY_BYTES];
    const uint32_t bytes = row == NULL ? HOTBED_REDIS_ERASED : row_bytes;
    memcpy(s->version, &number, 8);
    memcpy(s->version + 8, &bytes, 4);
    if (row != NULL)
        memcpy(s->version + HOTBED_REDIS_VERSION_BYTES, row, row_bytes);
    const hotbed_redis_text words[] = {
        {"EVALSHA", 7},  word(s->put),
        {"1", 1},        {at, hotbed_redis_key(s->redis, table, key, at)},
        word(committed), {s->version, HOTBED_REDIS_VERSION_BYTES + (row == NULL ? 0 : row_bytes)}};
    HOTBED_TRY(hotbed_redis_send(s->redis, 6, words));
    return ++s->waiting < AHEAD ? HOTBED_OK : receive_all(s);
}

static hotbed_status put_table(
    hotbed_redis_sink *s, const char *committed, const hotbed_rows_file *file, uint32_t t,
    uint64_t number) {
    const hotbed_rows_table *table = &file->tables[t];
    const uint64_t *keys = hotbed_rows_column_of(file, t, HOTBED_ROWS_KEYS);
    const unsigned char *rows = hotbed_rows_column_of(file, t, HOTBED_ROWS_VALUES);
    const uint64_t *erased = hotbed_rows_column_of(file, t, HOTBED_ROWS_ERASED);
    const size_t bytes = HOTBED_REDIS_VERSION_BYTES + (size_t)table->row_bytes;
    if (bytes > s->version_bytes) {
        hotbed_delete(s->version);
        s->version = hotbed_new(bytes);
        s->version_bytes = s->version == NULL ? 0 : bytes;
        if (s->version == NULL)
            return hotbed_fail(HOTBED_ERR_MEMORY, "no %zu bytes for a row", bytes);
    }
    for (uint64_t i = 0; i < table->rows; i++)
        HOTBED_TRY(put_row(
            s, committed, number, t, keys[i], rows + i * table->row_bytes, table->row_bytes));
    for (uint64_t i = 0; i < table->erased; i++)
        HOTBED_TRY(put_row(s, committed, number, t, erased[i], NULL, 0));
    return receive_all(s);
}

/* The head of the cut that Redis has; number 0: it has none. */
static hotbed_status read_head(hotbed_redis_sink *s, hotbed_cut_head *head) {
    char at[HOTBED_REDIS_KEY_BYTES];
    const hotbed_redis_text words[] = {
        {"GETRANGE", 8}, {at, hotbed_redis_key(s->redis, UINT32_MAX, 0, at)}, {"0", 1}, {"127", 3}};
    hotbed_redis_text answer;
    HOTBED_TRY(hotbed_redis_send(s->redis, 4, words));
    HOTBED_TRY(hotbed_redis_receive(s->redis, &answer));
    memset(head, 0, sizeof *head);
    if (answer.bytes == sizeof *head)
        memcpy(head, answer.data, sizeof *head);
    if (memcmp(head->magic, HOTBED_CUT_MAGIC, sizeof head->magic) != 0)
        memset(head, 0, sizeof *head);
    return HOTBED_OK;
}

static hotbed_status write_rows(hotbed_redis_sink *s, const void *data, uint64_t bytes) {
    const hotbed_rows_head *head = data;
    hotbed_cut_head there;
    char committed[24];
    if (bytes < sizeof *head || bytes < hotbed_rows_front_bytes(head->tables))
        return hotbed_redis_corrupt(s->redis, "a file of rows is too short");
    const hotbed_rows_file file = {.data = data, .tables = (const void *)(head + 1)};
    HOTBED_TRY(read_head(s, &there));
    if (head->parent != 0 &&
        (there.number != head->parent || !hotbed_digest_equal(there.run, head->run)))
        return hotbed_error_path(
            hotbed_fail_limit(
                HOTBED_ERR_STATE, "cut", (double)there.number, (double)head->parent,
                "Redis at %s has cut %" PRIu64 ", not %" PRIu64 ", which cut %" PRIu64
                " follows: its rows were lost or are another publisher's",
                hotbed_redis_name(s->redis), there.number, head->parent, head->number),
            hotbed_redis_name(s->redis));
    if (head->parent == 0 && there.number >= head->number)
        return hotbed_error_path(
            hotbed_fail_limit(
                HOTBED_ERR_STATE, "cut", (double)head->number, (double)there.number,
                "Redis at %s has cut %" PRIu64 ", so cut %" PRIu64
                " cannot follow: give a new directory another prefix, or remove the old rows",
                hotbed_redis_name(s->redis), there.number, head->number),
            hotbed_redis_name(s->redis));
    snprintf(committed, sizeof committed, "%" PRIu64, there.number);
    for (uint32_t t = 0; t < head->tables; t++)
        HOTBED_TRY(put_table(s, committed, &file, t, head->number));
    return HOTBED_OK;
}

/* --- the cut ---------------------------------------------------------------------------------- */

/* Remove the keys of the last scan that no base has. */
static hotbed_status drop_rows(hotbed_redis_sink *s, size_t n, const char *base) {
    hotbed_redis_text *words = hotbed_new((n + 4) * sizeof *words);
    char number[24];
    if (words == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %zu keys of Redis", n);
    snprintf(number, sizeof number, "%zu", n);
    words[0] = word("EVALSHA");
    words[1] = word(s->drop);
    words[2] = word(number);
    for (size_t i = 0; i < n; i++)
        words[3 + i] = hotbed_redis_item(s->redis, 1, i);
    words[3 + n] = word(base);
    hotbed_redis_text answer;
    hotbed_status status = hotbed_redis_send(s->redis, (uint32_t)n + 4, words);
    hotbed_delete(words);
    return status == HOTBED_OK ? hotbed_redis_receive(s->redis, &answer) : status;
}

/* Remove all rows that are older than a base. */
static hotbed_status drop_older(hotbed_redis_sink *s, uint64_t base) {
    char pattern[2 * HOTBED_REDIS_KEY_BYTES], cursor[24] = "0", count[24], text[24];
    char at[HOTBED_REDIS_KEY_BYTES];
    const size_t n = hotbed_redis_key(s->redis, 0, 0, at) - 12; /* PREFIX:t */
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (strchr("*?[]\\", at[i]) != NULL)
            pattern[used++] = '\\';
        pattern[used++] = at[i];
    }
    memset(pattern + used, '?', 12); /* and no keys of a longer prefix */
    used += 12;
    snprintf(count, sizeof count, "%d", SCANNED);
    snprintf(text, sizeof text, "%" PRIu64, base);
    do {
        const hotbed_redis_text words[] = {{"SCAN", 4},     word(cursor), {"MATCH", 5},
                                           {pattern, used}, {"COUNT", 5}, word(count)};
        size_t parts = 0, keys = 0;
        HOTBED_TRY(hotbed_redis_send(s->redis, 6, words));
        HOTBED_TRY(hotbed_redis_receive_list(s->redis, &parts));
        const hotbed_redis_text next = hotbed_redis_item(s->redis, SIZE_MAX, 0);
        if (parts != 2 || next.data == NULL || next.bytes >= sizeof cursor)
            return hotbed_redis_corrupt(s->redis, "a SCAN has another answer");
        memcpy(cursor, next.data, next.bytes);
        cursor[next.bytes] = 0;
        while (hotbed_redis_item(s->redis, 1, keys).data != NULL)
            keys++;
        if (keys > 0)
            HOTBED_TRY(drop_rows(s, keys, text));
    } while (strcmp(cursor, "0") != 0);
    return HOTBED_OK;
}

static hotbed_status write_cut(
    hotbed_redis_sink *s, const char *name, const void *data, uint64_t bytes) {
    hotbed_cut cut;
    char at[HOTBED_REDIS_KEY_BYTES];
    HOTBED_TRY(hotbed_cut_parse(name, hotbed_cut_number(name), data, bytes, &cut));
    const hotbed_redis_text words[] = {
        {"SET", 3}, {at, hotbed_redis_key(s->redis, UINT32_MAX, 0, at)}, {data, bytes}};
    hotbed_redis_text answer;
    HOTBED_TRY(hotbed_redis_send(s->redis, 3, words));
    HOTBED_TRY(hotbed_redis_receive(s->redis, &answer));
    return cut.head->parent == 0 ? drop_older(s, cut.head->number) : HOTBED_OK;
}

hotbed_status hotbed_redis_sink_file(
    void *sink, const char *name, const void *data, uint64_t bytes) {
    hotbed_redis_sink *s = sink;
    if (s == NULL || name == NULL || data == NULL)
        return hotbed_fail_null_of(
            "redis_sink_file", s == NULL      ? "sink"
                               : name == NULL ? "name"
                                              : "data");
    s->waiting = 0;
    HOTBED_TRY(connect_sink(s));
    hotbed_status status =
        hotbed_cut_number(name) != 0 ? write_cut(s, name, data, bytes) : write_rows(s, data, bytes);
    if (status != HOTBED_OK) {
        hotbed_error error;
        hotbed_error_copy(&error);
        hotbed_redis_drop(s->redis); /* answers may be missing */
        return hotbed_error_return(&error, status);
    }
    return HOTBED_OK;
}
