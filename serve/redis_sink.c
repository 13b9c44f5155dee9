/* serve/redis_sink.c - writes the files of a publisher to Redis: rows first, the record of the cut last.
 *
 * Scripts of the server keep the order, whatever happens between two of them. Redis may be restarted, empty or
 * with an older state, or another publisher may begin a cut. Each script looks at PREFIX:writing, and does
 * nothing but answer LOST if that is not as this sink has left it. So a record is written only if all rows of
 * its cut are in Redis. */
#include "serve/redis_call.h"

#include "base/check.h"
#include "base/error.h"
#include "base/stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { AHEAD = 256 };    /* commands whose answers are awaited together */
enum { SCANNED = 1000 }; /* keys of a scan */

/* The keys of all scripts: 1 PREFIX:cut, 2 PREFIX:writing, then rows. In the files of a cut and of rows, the
 * bytes 25 to 48 are run and number. In the cut's, 49 to 56 are the base, 57 to 64 the parent and 65 to 80 the
 * parent's digest. */
typedef enum script {
    SCRIPT_BEGIN = 0,
    SCRIPT_PUT = 1,
    SCRIPT_END = 2,
    SCRIPT_CUT = 3,
    SCRIPT_DROP = 4,
    SCRIPTS = 5,
} script;

static const char *const scripts[SCRIPTS] = {
    /* Begin the rows of rank ARGV[3] of the cut with id ARGV[1], if the record still begins with ARGV[2]. */
    "if redis.call('GETRANGE', KEYS[1], 0, 127) ~= ARGV[2] then return 'LOST' end "
    "if redis.call('HGET', KEYS[2], 'id') ~= ARGV[1] then "
    "  redis.call('DEL', KEYS[2]) redis.call('HSET', KEYS[2], 'id', ARGV[1]) "
    "end "
    "redis.call('HDEL', KEYS[2], ARGV[3]) return 'OK'",

    /* Put version ARGV[3] of a row before its newest one of the cut ARGV[2], whose number and first bytes of
     * the run these are, or of an earlier one. */
    "if redis.call('HGET', KEYS[2], 'id') ~= ARGV[1] then return 'LOST' end "
    "local old = redis.call('GET', KEYS[3]) local keep = '' local at = 1 "
    "local newest, run = struct.unpack('<I8', ARGV[2]), string.sub(ARGV[2], 9, 16) "
    "while old and at + 19 <= #old do "
    "  local number, n = struct.unpack('<I8', old, at), struct.unpack('<I4', old, at + 16) "
    "  local size = 20 "
    "  if n ~= 4294967295 then size = size + n end "
    "  if string.sub(old, at + 8, at + 15) == run and number <= newest then "
    "    keep = string.sub(old, at, at + size - 1) break "
    "  end "
    "  at = at + size "
    "end "
    "redis.call('SET', KEYS[3], ARGV[3] .. keep) return 'OK'",

    /* All rows of rank ARGV[2] are there; the digest of their file is ARGV[3]. */
    "if redis.call('HGET', KEYS[2], 'id') ~= ARGV[1] then return 'LOST' end "
    "redis.call('HSET', KEYS[2], ARGV[2], ARGV[3]) return 'OK'",

    /* Write record ARGV[1], with ARGV[2] ranks, whose digests are in it from byte ARGV[3] on. */
    "local cut, there = ARGV[1], redis.call('GET', KEYS[1]) "
    "if there == cut then return 'OK' end "
    "if redis.call('HGET', KEYS[2], 'id') ~= string.sub(cut, 25, 48) then return 'LOST' end "
    "for rank = 0, tonumber(ARGV[2]) - 1 do "
    "  local at = tonumber(ARGV[3]) + 32 * rank "
    "  if redis.call('HGET', KEYS[2], tostring(rank)) ~= string.sub(cut, at, at + 15) then "
    "    return 'LOST' "
    "  end "
    "end "
    "if struct.unpack('<I8', cut, 57) ~= 0 and "
    "   (not there or string.sub(there, -16) ~= string.sub(cut, 65, 80)) then return 'LOST' end "
    "redis.call('SET', KEYS[1], cut) return 'OK'",

    /* Remove rows that have no version of the newest cut, and none of the one that is being written. */
    "local head = redis.call('GETRANGE', KEYS[1], 0, 127) "
    "local id = redis.call('HGET', KEYS[2], 'id') or '' "
    "if #head < 128 then return 'OK' end "
    "local base, run = struct.unpack('<I8', head, 49), string.sub(head, 25, 32) "
    "local writing = string.sub(id, 17, 24) .. string.sub(id, 1, 8) "
    "for i = 3, #KEYS do "
    "  local row, at, live = redis.call('GET', KEYS[i]), 1, false "
    "  while row and at + 19 <= #row and not live do "
    "    local number, n = struct.unpack('<I8', row, at), struct.unpack('<I4', row, at + 16) "
    "    live = (string.sub(row, at + 8, at + 15) == run and number >= base) or "
    "           string.sub(row, at, at + 15) == writing "
    "    at = at + 20 "
    "    if n ~= 4294967295 then at = at + n end "
    "  end "
    "  if not live then redis.call('DEL', KEYS[i]) end "
    "end return 'OK'",
};

struct hotbed_redis_sink {
    hotbed_redis *redis;
    hotbed_redis_name cut, writing;
    char names[SCRIPTS][41]; /* that the server gave the scripts */
    unsigned char *version;  /* [version_bytes] of a row */
    size_t version_bytes;
    uint64_t waiting; /* answers */
};

/* The cut whose rows are being written. */
typedef struct writing {
    uint64_t number;
    hotbed_redis_text id;        /* run and number, in the file */
    unsigned char committed[16]; /* the cut that Redis has: number, first bytes of the run */
    unsigned char own[16];       /* the same of this one */
} writing;

static hotbed_redis_text word(const char *text) {
    return (hotbed_redis_text){text, strlen(text)};
}

/* --- the connection --------------------------------------------------------------------------- */

/* Send a script to Redis, which names it. */
static hotbed_status load_script(hotbed_redis_sink *s, script number) {
    const hotbed_redis_text words[] = {{"SCRIPT", 6}, {"LOAD", 4}, word(scripts[number])};
    hotbed_redis_text answer;
    HOTBED_TRY(hotbed_redis_send(s->redis, 3, words));
    HOTBED_TRY(hotbed_redis_receive(s->redis, &answer));
    if (answer.bytes != 40)
        return hotbed_redis_corrupt(s->redis, "a script has no name");
    memcpy(s->names[number], answer.data, 41);
    return HOTBED_OK;
}

static hotbed_status connect_sink(hotbed_redis_sink *s) {
    if (hotbed_redis_connected(s->redis)) {
        const hotbed_status status = hotbed_redis_check(s->redis);
        if (status != HOTBED_ERR_IO)
            return status;
        hotbed_redis_drop(s->redis); /* Redis may have closed it long ago */
    }
    HOTBED_TRY(hotbed_redis_connect(s->redis));
    for (uint32_t i = 0; i < SCRIPTS; i++)
        HOTBED_TRY(load_script(s, (script)i));
    return HOTBED_OK;
}

hotbed_status hotbed_redis_sink_create(
    const hotbed_redis_options *options, hotbed_redis_sink **out) {
    hotbed_redis *redis = NULL;
    HOTBED_TRY(hotbed_check_pointer_of("redis_sink_create", "out", out));
    *out = NULL;
    HOTBED_TRY(hotbed_redis_create("redis_sink_create", options, &redis));
    hotbed_redis_sink *s = hotbed_new(sizeof *s);
    hotbed_status status = HOTBED_OK;
    if (s == NULL) {
        hotbed_redis_destroy(redis);
        return hotbed_fail_value(
            HOTBED_ERR_MEMORY, NULL, sizeof *s, "redis_sink_create: no %zu bytes for a sink",
            sizeof *s);
    }
    s->redis = redis;
    s->cut = hotbed_redis_cut_name(redis);
    s->writing = hotbed_redis_writing_name(redis);
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

/* --- scripts ---------------------------------------------------------------------------------- */

/* Start a script with 0 or 1 rows and three arguments at most. */
static hotbed_status call_script(
    hotbed_redis_sink *s, script number, const hotbed_redis_name *row, uint32_t n,
    const hotbed_redis_text *arguments) {
    hotbed_redis_text words[9] = {
        {"EVALSHA", 7},
        word(s->names[number]),
        word(row == NULL ? "2" : "3"),
        hotbed_redis_text_of(&s->cut),
        hotbed_redis_text_of(&s->writing)};
    uint32_t used = 5;
    if (row != NULL)
        words[used++] = hotbed_redis_text_of(row);
    for (uint32_t i = 0; i < n; i++)
        words[used++] = arguments[i];
    HOTBED_TRY(hotbed_redis_send(s->redis, used, words));
    s->waiting++;
    return HOTBED_OK;
}

/* Wait for the answers of all scripts, of cut `number`. */
static hotbed_status receive_all(hotbed_redis_sink *s, uint64_t number) {
    hotbed_redis_text answer;
    for (; s->waiting > 0; s->waiting--) {
        HOTBED_TRY(hotbed_redis_receive(s->redis, &answer));
        if (answer.bytes != 2 || memcmp(answer.data, "OK", 2) != 0)
            return hotbed_fail_path_value(
                HOTBED_ERR_STATE, hotbed_redis_at(s->redis), "cut", number,
                "Redis at %s does not have what was written of cut %" PRIu64
                ": it was restarted or emptied, or another publisher uses its prefix",
                hotbed_redis_at(s->redis), number);
    }
    return HOTBED_OK;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Put a version of a row; `row` NULL: the key is removed. */
static hotbed_status put_row(
    hotbed_redis_sink *s, const writing *w, uint32_t table, uint64_t key, const unsigned char *row,
    uint32_t row_bytes) {
    const hotbed_redis_name name = hotbed_redis_row_name(s->redis, table, key);
    const uint32_t bytes = row == NULL ? HOTBED_REDIS_ERASED : row_bytes;
    memcpy(s->version, w->own, 16);
    memcpy(s->version + 16, &bytes, 4);
    if (row != NULL)
        memcpy(s->version + HOTBED_REDIS_VERSION_BYTES, row, row_bytes);
    const hotbed_redis_text arguments[] = {
        w->id,
        {w->committed, sizeof w->committed},
        {s->version, HOTBED_REDIS_VERSION_BYTES + (row == NULL ? 0 : row_bytes)}};
    HOTBED_TRY(call_script(s, SCRIPT_PUT, &name, 3, arguments));
    return s->waiting < AHEAD ? HOTBED_OK : receive_all(s, w->number);
}

static hotbed_status put_table(
    hotbed_redis_sink *s, const writing *w, const hotbed_rows_file *file, uint32_t t) {
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
            return hotbed_fail_value(
                HOTBED_ERR_MEMORY, NULL, bytes, "no %zu bytes for a row", bytes);
    }
    for (uint64_t i = 0; i < table->rows; i++)
        HOTBED_TRY(put_row(s, w, t, keys[i], rows + i * table->row_bytes, table->row_bytes));
    for (uint64_t i = 0; i < table->erased; i++)
        HOTBED_TRY(put_row(s, w, t, erased[i], NULL, 0));
    return HOTBED_OK;
}

/* The cut that Redis has does not allow this one to follow. */
static hotbed_status fail_order(
    const hotbed_redis_sink *s, const hotbed_rows_head *head, uint64_t there) {
    const char *at = hotbed_redis_at(s->redis);
    if (head->parent != 0)
        return hotbed_fail_path_limit(
            HOTBED_ERR_STATE, at, "cut", there, head->parent,
            "Redis at %s has cut %" PRIu64 ", not this publisher's cut %" PRIu64
            ", which cut %" PRIu64 " follows: its rows were lost or are another publisher's",
            at, there, head->parent, head->number);
    return hotbed_fail_path_limit(
        HOTBED_ERR_STATE, at, "cut", head->number, there,
        "Redis at %s has cut %" PRIu64 ", so cut %" PRIu64
        " cannot follow: give a new directory another prefix, or remove the old rows",
        at, there, head->number);
}

/* Read what Redis has, and begin the rows of a rank if they may follow. */
static hotbed_status begin_rows(
    hotbed_redis_sink *s, const hotbed_rows_head *head, const char *rank, writing *w) {
    const hotbed_redis_text words[] = {
        {"GETRANGE", 8}, hotbed_redis_text_of(&s->cut), {"0", 1}, {"127", 3}};
    hotbed_cut_head there = {.number = 0};
    hotbed_redis_text answer;
    char raw[sizeof there];
    HOTBED_TRY(hotbed_redis_send(s->redis, 4, words));
    HOTBED_TRY(hotbed_redis_receive(s->redis, &answer));
    const size_t bytes = answer.bytes < sizeof raw ? answer.bytes : sizeof raw;
    if (bytes > 0)
        memcpy(raw, answer.data, bytes);
    /* other bytes are no cut: a base replaces them */
    if (bytes == sizeof there && memcmp(raw, HOTBED_CUT_MAGIC, sizeof there.magic) == 0)
        memcpy(&there, raw, sizeof there);
    const bool follows = head->parent == 0 ? there.number < head->number
                                           : there.number == head->parent &&
                                                 hotbed_digest_equal(there.run, head->run);
    if (!follows)
        return fail_order(s, head, there.number);
    *w = (writing){.number = head->number, .id = {&head->run, sizeof head->run + 8}};
    memcpy(w->committed, &there.number, 8);
    memcpy(w->committed + 8, &there.run, 8);
    memcpy(w->own, &head->number, 8);
    memcpy(w->own + 8, &head->run, 8);
    const hotbed_redis_text arguments[] = {w->id, {raw, bytes}, word(rank)};
    HOTBED_TRY(call_script(s, SCRIPT_BEGIN, NULL, 3, arguments));
    return receive_all(s, head->number);
}

static hotbed_status write_rows(
    hotbed_redis_sink *s, const char *name, const void *data, uint64_t bytes) {
    const hotbed_rows_head *head = data;
    hotbed_rows_file file;
    writing w;
    char rank[16];
    HOTBED_TRY(hotbed_rows_check(name, data, bytes, &file));
    snprintf(rank, sizeof rank, "%" PRIu32, head->rank);
    HOTBED_TRY(begin_rows(s, head, rank, &w));
    for (uint32_t t = 0; t < head->tables; t++)
        HOTBED_TRY(put_table(s, &w, &file, t));
    HOTBED_TRY(receive_all(s, w.number));
    const uint64_t front = hotbed_rows_front_bytes(head->tables);
    const hotbed_redis_text arguments[] = {
        w.id,
        word(rank),
        {(const char *)data + front - sizeof(hotbed_digest), sizeof(hotbed_digest)}};
    HOTBED_TRY(call_script(s, SCRIPT_END, NULL, 3, arguments));
    return receive_all(s, w.number);
}

/* --- the cut ---------------------------------------------------------------------------------- */

/* Remove the rows of the last scan that no cut has. */
static hotbed_status drop_rows(hotbed_redis_sink *s, size_t n) {
    hotbed_redis_text *words = hotbed_new((n + 5) * sizeof *words);
    char number[24];
    if (words == NULL)
        return hotbed_fail_value(HOTBED_ERR_MEMORY, NULL, n, "no memory for %zu keys of Redis", n);
    snprintf(number, sizeof number, "%zu", n + 2);
    words[0] = word("EVALSHA");
    words[1] = word(s->names[SCRIPT_DROP]);
    words[2] = word(number);
    words[3] = hotbed_redis_text_of(&s->cut);
    words[4] = hotbed_redis_text_of(&s->writing);
    for (size_t i = 0; i < n; i++)
        words[5 + i] = hotbed_redis_item(s->redis, 1, i);
    hotbed_redis_text answer;
    hotbed_status status = hotbed_redis_send(s->redis, (uint32_t)n + 5, words);
    hotbed_delete(words);
    return status == HOTBED_OK ? hotbed_redis_receive(s->redis, &answer) : status;
}

/* Remove all rows that no cut has any more. */
static hotbed_status drop_older(hotbed_redis_sink *s) {
    char pattern[2 * HOTBED_REDIS_KEY_BYTES], cursor[24] = "0", count[24];
    const hotbed_redis_name name = hotbed_redis_row_name(s->redis, 0, 0);
    size_t used = 0;
    for (size_t i = 0; i < name.bytes - 12; i++) { /* PREFIX:t */
        if (strchr("*?[]\\", name.text[i]) != NULL)
            pattern[used++] = '\\';
        pattern[used++] = name.text[i];
    }
    /* A number of a table, less than 2^16, and a key: no key of a longer prefix, whose text has no zeros. */
    memset(pattern + used, '?', 12);
    memset(pattern + used + 2, 0, 2);
    used += 12;
    snprintf(count, sizeof count, "%d", SCANNED);
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
            HOTBED_TRY(drop_rows(s, keys));
    } while (strcmp(cursor, "0") != 0);
    return HOTBED_OK;
}

static hotbed_status write_cut(
    hotbed_redis_sink *s, const char *name, const void *data, uint64_t bytes) {
    hotbed_cut cut;
    char world[16], digests[16];
    HOTBED_TRY(hotbed_cut_parse(name, hotbed_cut_number(name), data, bytes, &cut));
    const size_t first =
        (size_t)((const char *)&cut.parts->digest - (const char *)data); /* of the first rank */
    snprintf(world, sizeof world, "%" PRIu32, cut.head->world);
    snprintf(digests, sizeof digests, "%zu", first + 1);
    const hotbed_redis_text arguments[] = {{data, bytes}, word(world), word(digests)};
    HOTBED_TRY(call_script(s, SCRIPT_CUT, NULL, 3, arguments));
    HOTBED_TRY(receive_all(s, cut.head->number));
    return cut.head->parent == 0 ? drop_older(s) : HOTBED_OK;
}

hotbed_status hotbed_redis_sink_file(
    void *sink, const char *name, const void *data, uint64_t bytes) {
    hotbed_redis_sink *s = sink;
    HOTBED_TRY(hotbed_check_pointer_of("redis_sink_file", "sink", s));
    HOTBED_TRY(hotbed_check_pointer_of("redis_sink_file", "name", name));
    HOTBED_TRY(hotbed_check_pointer_of("redis_sink_file", "data", data));
    s->waiting = 0;
    hotbed_status status = connect_sink(s);
    if (status == HOTBED_OK)
        status = hotbed_cut_number(name) != 0 ? write_cut(s, name, data, bytes)
                                              : write_rows(s, name, data, bytes);
    if (status != HOTBED_OK)
        hotbed_redis_drop(s->redis); /* answers may be missing */
    return status;
}
