/* serve/redis_reader.c - lookups of rows in Redis, behind a cache of the rows of one cut.
 *
 * A lookup sends one transaction: the head of the cut's record, and the rows that the cache lacks. If the head is
 * of another cut than the cache, the cache is emptied and the lookup asks for all its rows. */
#include "serve/redis_call.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/options.h"
#include "base/stream.h"
#include "serve/lookup.h"
#include "serve/metrics.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { ATTEMPTS = 16, WAYS = 4 };
enum { KEYS_MOST = (1 << 20) - 1 }; /* a command of Redis has at most 2^20 words */

/* A place of the cache. */
typedef struct cached {
    uint64_t key;
    uint32_t table;
    bool there;     /* false: the table lacks the key */
    uint64_t epoch; /* another one than the reader's: the place is empty */
} cached;

/* A key of a call whose row is not in the cache. */
typedef struct wanted {
    const unsigned char **row; /* of the call */
    uint64_t key;
    uint32_t table;
} wanted;

struct hotbed_redis_reader {
    hotbed_redis *redis;
    pid_t process; /* that opened the reader; a forked one has its socket, and its lock as it was */
    pthread_mutex_t lock;
    unsigned char *record; /* the file of the cut */
    hotbed_cut cut;
    uint64_t used_ns; /* monotonic: when it was first used */
    hotbed_version_table *tables;
    uint32_t row_bytes; /* longest row; in `rows`, the one of each place */
    uint64_t epoch;     /* counts the cuts that were used */
    uint64_t places, turn;
    cached *cache;       /* [places] */
    unsigned char *rows; /* [places, row_bytes] */
    unsigned char *call_rows;
    uint64_t call_capacity;
    hotbed_redis_stats stats;
};

/* Check the reader of a call. */
static hotbed_status check_reader(const hotbed_redis_reader *r, const char *call) {
    HOTBED_TRY(hotbed_check_pointer_of(call, "reader", r));
    if (r->process != getpid())
        return hotbed_fail_value(
            HOTBED_ERR_STATE, NULL, r->process,
            "%s: the reader was opened in process %ld, from which this one was forked: open a "
            "reader after the fork",
            call, (long)r->process);
    return HOTBED_OK;
}

/* --- the cut ---------------------------------------------------------------------------------- */

/* Get memory for the cache, if the rows are longer than before. */
static hotbed_status reserve_cache(hotbed_redis_reader *r, uint32_t row_bytes) {
    if (row_bytes <= r->row_bytes)
        return HOTBED_OK;
    cached *cache = r->cache != NULL ? r->cache : hotbed_new(r->places * sizeof *cache);
    unsigned char *rows = hotbed_new(r->places * row_bytes);
    r->cache = cache;
    if (cache == NULL || rows == NULL) {
        hotbed_delete(rows);
        return hotbed_fail_value(
            HOTBED_ERR_MEMORY, "cache_rows", r->places,
            "no memory for a cache of %" PRIu64 " rows of %" PRIu32 " bytes", r->places, row_bytes);
    }
    hotbed_delete(r->rows);
    r->rows = rows;
    r->row_bytes = row_bytes;
    r->epoch++; /* what the cache had is gone */
    return HOTBED_OK;
}

/* Use a record that was parsed. Takes ownership of it on success. */
static hotbed_status use_cut(hotbed_redis_reader *r, unsigned char *record, const hotbed_cut *cut) {
    uint32_t row_bytes = 1;
    if (r->record != NULL && !hotbed_cut_same_tables(&r->cut, cut))
        return hotbed_fail_value(
            HOTBED_ERR_STATE, "cut", cut->head->number,
            "cut %" PRIu64 " has other tables than the reader: open another one",
            cut->head->number);
    hotbed_version_table *tables = hotbed_new(cut->head->tables * sizeof *tables);
    if (tables == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_MEMORY, NULL, cut->head->tables, "no memory for %" PRIu32 " tables",
            cut->head->tables);
    for (uint32_t t = 0; t < cut->head->tables; t++) {
        tables[t].dim = cut->tables[t].dim;
        tables[t].encoding = (hotbed_encoding)cut->tables[t].encoding;
        tables[t].missing = cut->tables[t].missing;
        tables[t].row_bytes = hotbed_cut_row_bytes(&cut->tables[t]);
        row_bytes = tables[t].row_bytes > row_bytes ? tables[t].row_bytes : row_bytes;
    }
    const hotbed_status status = reserve_cache(r, (row_bytes + 3) / 4 * 4); /* F32 is aligned */
    if (status != HOTBED_OK) {
        hotbed_delete(tables);
        return status;
    }
    hotbed_delete(r->record);
    hotbed_delete(r->tables);
    r->record = record;
    r->cut = *cut;
    r->used_ns = hotbed_monotonic_now();
    r->tables = tables;
    r->epoch++; /* the cache is empty */
    r->stats.version = cut->head->number;
    r->stats.step = cut->head->step;
    r->stats.versions++;
    return HOTBED_OK;
}

/* Get the newest cut's record, from a Redis that keeps its keys. */
static hotbed_status read_cut(hotbed_redis_reader *r) {
    const hotbed_redis_name name = hotbed_redis_cut_name(r->redis);
    const hotbed_redis_text words[] = {{"GET", 3}, hotbed_redis_text_of(&name)};
    hotbed_redis_text answer;
    hotbed_cut cut;
    HOTBED_TRY(hotbed_redis_check(r->redis));
    HOTBED_TRY(hotbed_redis_send(r->redis, 2, words));
    HOTBED_TRY(hotbed_redis_receive(r->redis, &answer));
    if (answer.data == NULL)
        return hotbed_fail_path(
            HOTBED_ERR_STATE, hotbed_redis_at(r->redis), "Redis at %s has no cut",
            hotbed_redis_at(r->redis));
    unsigned char *record = hotbed_new(answer.bytes + 1);
    if (record == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_MEMORY, NULL, answer.bytes, "no %zu bytes for a cut", answer.bytes);
    memcpy(record, answer.data, answer.bytes);
    uint64_t number = 0;
    if (answer.bytes >= sizeof(hotbed_cut_head))
        number = ((const hotbed_cut_head *)(const void *)record)->number;
    hotbed_status status =
        hotbed_cut_parse(hotbed_redis_at(r->redis), number, record, answer.bytes, &cut);
    if (status == HOTBED_OK && number < r->stats.version)
        status = hotbed_fail_path_limit(
            HOTBED_ERR_STATE, hotbed_redis_at(r->redis), "cut", number, r->stats.version,
            "Redis at %s has cut %" PRIu64 ", and had %" PRIu64 " before: it was set back",
            hotbed_redis_at(r->redis), number, r->stats.version);
    HOTBED_THEN(status, use_cut(r, record, &cut));
    if (status != HOTBED_OK)
        hotbed_delete(record);
    return status;
}

/* --- the cache -------------------------------------------------------------------------------- */

static uint64_t place_of(const hotbed_redis_reader *r, uint32_t table, uint64_t key) {
    return hotbed_hash_u64(key ^ (uint64_t)table * 0x9e3779b97f4a7c15U) % (r->places / WAYS) * WAYS;
}

/* Find a row; false: the cache does not know it. */
static bool recall(
    const hotbed_redis_reader *r, uint32_t table, uint64_t key, const unsigned char **row) {
    const uint64_t first = place_of(r, table, key);
    for (uint64_t i = first; i < first + WAYS; i++)
        if (r->cache[i].epoch == r->epoch && r->cache[i].key == key && r->cache[i].table == table) {
            *row = r->cache[i].there ? r->rows + i * r->row_bytes : NULL;
            return true;
        }
    return false;
}

static void remember(
    hotbed_redis_reader *r, uint32_t table, uint64_t key, const unsigned char *row) {
    uint64_t at = place_of(r, table, key);
    const uint64_t first = at;
    while (at < first + WAYS && r->cache[at].epoch == r->epoch)
        at++;
    if (at == first + WAYS)
        at = first + r->turn++ % WAYS;
    r->cache[at] = (cached){.key = key, .table = table, .there = row != NULL, .epoch = r->epoch};
    if (row != NULL)
        memcpy(r->rows + at * r->row_bytes, row, r->tables[table].row_bytes);
}

/* --- lookups ---------------------------------------------------------------------------------- */

/* The rows of one call: of all keys of all its lookups. */
typedef struct call {
    const hotbed_lookup *lookups;
    uint32_t n;
    uint64_t num_keys, num_wanted;
    const unsigned char **rows; /* [num_keys] */
    wanted *wanted;             /* [num_keys] */
} call;

/* Find the version of a row that the cut has, in its value in Redis. */
static hotbed_status pick_version(
    const hotbed_redis_reader *r, uint32_t table, hotbed_redis_text value,
    const unsigned char **row) {
    const hotbed_cut_head *head = r->cut.head;
    const unsigned char *data = value.data;
    *row = NULL;
    for (size_t at = 0; data != NULL && at < value.bytes;) {
        uint64_t number, run;
        uint32_t bytes;
        if (value.bytes - at < HOTBED_REDIS_VERSION_BYTES)
            return hotbed_redis_corrupt(r->redis, "a row is damaged");
        memcpy(&number, data + at, 8);
        memcpy(&run, data + at + 8, 8);
        memcpy(&bytes, data + at + 16, 4);
        at += HOTBED_REDIS_VERSION_BYTES;
        const uint32_t size = bytes == HOTBED_REDIS_ERASED ? 0 : bytes;
        if (value.bytes - at < size)
            return hotbed_redis_corrupt(r->redis, "a row is damaged");
        if (run == head->run.low && number <= head->number) {
            if (bytes == HOTBED_REDIS_ERASED || number < head->base)
                return HOTBED_OK;
            if (bytes != r->tables[table].row_bytes)
                return hotbed_redis_corrupt(r->redis, "a row has another size");
            *row = data + at;
            return HOTBED_OK;
        }
        at += size;
    }
    return HOTBED_OK;
}

/* Ask for the head of the record and for the rows that are wanted. *same: they are of the cut. */
static hotbed_status ask(hotbed_redis_reader *r, call *c, bool *same) {
    static const hotbed_redis_text multi = {"MULTI", 5}, exec = {"EXEC", 4};
    const hotbed_redis_name cut = hotbed_redis_cut_name(r->redis);
    const hotbed_redis_text head[] = {
        {"GETRANGE", 8}, hotbed_redis_text_of(&cut), {"0", 1}, {"127", 3}};
    hotbed_redis_text answer;
    size_t parts = 0;
    HOTBED_TRY(hotbed_redis_send(r->redis, 1, &multi));
    HOTBED_TRY(hotbed_redis_send(r->redis, 4, head));
    if (c->num_wanted > 0) {
        hotbed_redis_text *words = hotbed_new((c->num_wanted + 1) * sizeof *words);
        hotbed_redis_name *names = hotbed_new(c->num_wanted * sizeof *names);
        hotbed_status status = words != NULL && names != NULL
                                   ? HOTBED_OK
                                   : hotbed_fail_value(
                                         HOTBED_ERR_MEMORY, "num_keys", c->num_wanted,
                                         "no memory to ask for %" PRIu64 " rows", c->num_wanted);
        for (uint64_t i = 0; i < c->num_wanted && status == HOTBED_OK; i++) {
            names[i] = hotbed_redis_row_name(r->redis, c->wanted[i].table, c->wanted[i].key);
            words[i + 1] = hotbed_redis_text_of(&names[i]);
        }
        if (status == HOTBED_OK) {
            words[0] = (hotbed_redis_text){"MGET", 4};
            status = hotbed_redis_send(r->redis, (uint32_t)c->num_wanted + 1, words);
        }
        hotbed_delete(words);
        hotbed_delete(names);
        HOTBED_TRY(status);
    }
    HOTBED_TRY(hotbed_redis_send(r->redis, 1, &exec));
    for (uint32_t i = 0; i < (c->num_wanted > 0 ? 3U : 2U);
         i++) /* OK, and QUEUED of each command */
        HOTBED_TRY(hotbed_redis_receive(r->redis, &answer));
    HOTBED_TRY(hotbed_redis_receive_list(r->redis, &parts));
    answer = hotbed_redis_item(r->redis, SIZE_MAX, 0);
    if (parts != (c->num_wanted > 0 ? 2U : 1U) || answer.data == NULL ||
        (c->num_wanted > 0 && hotbed_redis_count(r->redis, 1) != c->num_wanted))
        return hotbed_redis_corrupt(r->redis, "a transaction has another answer");
    *same = answer.bytes == sizeof *r->cut.head &&
            memcmp(answer.data, r->cut.head, sizeof *r->cut.head) == 0;
    return HOTBED_OK;
}

/* Find all rows of a call in the cache or in Redis. They are all of one cut, r->cut. */
static hotbed_status find_rows(hotbed_redis_reader *r, call *c) {
    for (uint32_t attempt = 0; attempt < ATTEMPTS; attempt++) {
        bool same = false;
        uint64_t at = 0;
        c->num_wanted = 0;
        for (uint32_t i = 0; i < c->n; i++)
            for (uint64_t k = 0; k < c->lookups[i].num_keys; k++, at++) {
                const uint64_t key = ((const uint64_t *)c->lookups[i].keys)[k];
                if (!recall(r, c->lookups[i].table, key, &c->rows[at]))
                    c->wanted[c->num_wanted++] = (wanted){&c->rows[at], key, c->lookups[i].table};
            }
        HOTBED_TRY(ask(r, c, &same));
        if (!same) {
            HOTBED_TRY(read_cut(r));
            for (uint32_t i = 0; i < c->n; i++) /* encodings may differ now */
                if (c->lookups[i].table >= r->cut.head->tables)
                    return hotbed_redis_corrupt(r->redis, "the cut has fewer tables");
            continue;
        }
        /* The cache changes below: rows that it had are copied first. */
        const uint64_t bytes = c->num_keys * r->row_bytes + 1;
        if (bytes > r->call_capacity) {
            hotbed_delete(r->call_rows);
            r->call_rows = hotbed_new(bytes);
            r->call_capacity = r->call_rows == NULL ? 0 : bytes;
            if (r->call_rows == NULL)
                return hotbed_fail_value(
                    HOTBED_ERR_MEMORY, "num_keys", c->num_keys, "no memory for %" PRIu64 " rows",
                    c->num_keys);
        }
        r->stats.cached += c->num_keys - c->num_wanted;
        for (uint64_t i = 0; i < c->num_wanted; i++) {
            HOTBED_TRY(pick_version(
                r, c->wanted[i].table, hotbed_redis_item(r->redis, 1, i), c->wanted[i].row));
        }
        at = 0;
        for (uint32_t i = 0; i < c->n; i++)
            for (uint64_t k = 0; k < c->lookups[i].num_keys; k++, at++)
                if (c->rows[at] != NULL) {
                    unsigned char *to = r->call_rows + at * r->row_bytes;
                    memcpy(to, c->rows[at], r->tables[c->lookups[i].table].row_bytes);
                    c->rows[at] = to;
                }
        for (uint64_t i = 0; i < c->num_wanted; i++)
            remember(r, c->wanted[i].table, c->wanted[i].key, *c->wanted[i].row);
        return HOTBED_OK;
    }
    return hotbed_fail_path(
        HOTBED_ERR_STATE, hotbed_redis_at(r->redis),
        "Redis at %s got a new cut with each of %d attempts", hotbed_redis_at(r->redis), ATTEMPTS);
}

/* Rows by position in the keys of a lookup. */
typedef struct positions {
    const uint64_t *keys;
    const unsigned char *const *rows;
} positions;

static void find_positions(
    const void *self, uint32_t table, uint32_t n, const uint64_t *keys,
    const unsigned char **rows) {
    const positions *p = self;
    for (uint32_t i = 0; i < n; i++)
        rows[i] = p->rows[keys - p->keys + i];
}

static hotbed_status answer(hotbed_redis_reader *r, call *c, uint64_t *version) {
    HOTBED_TRY(hotbed_redis_connect(r->redis));
    if (r->record == NULL)
        HOTBED_TRY(read_cut(r));
    hotbed_lookup_source source = {.tables = r->tables, .num_tables = r->cut.head->tables};
    for (uint32_t i = 0; i < c->n; i++)
        HOTBED_TRY(hotbed_lookup_check(&source, &c->lookups[i]));
    HOTBED_TRY(find_rows(r, c));
    source.tables = r->tables;
    const unsigned char *const *rows = c->rows;
    for (uint32_t i = 0; i < c->n; i++) {
        const positions at = {c->lookups[i].keys, rows};
        source.self = &at;
        source.find = find_positions;
        HOTBED_TRY(hotbed_lookup_check(&source, &c->lookups[i])); /* with this cut's dims */
        r->stats.missing += hotbed_lookup_answer(&source, &c->lookups[i]);
        rows += c->lookups[i].num_keys;
    }
    r->stats.lookups++;
    r->stats.keys += c->num_keys;
    if (version != NULL)
        *version = r->cut.head->number;
    return HOTBED_OK;
}

hotbed_status hotbed_redis_reader_lookup(
    hotbed_redis_reader *r, const hotbed_lookup *lookups, uint32_t n, uint64_t *version) {
    call c = {.lookups = lookups, .n = n};
    HOTBED_TRY(check_reader(r, "redis_reader_lookup"));
    if (lookups == NULL && n > 0)
        return hotbed_fail_null_of("redis_reader_lookup", "lookups");
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t keys = lookups[i].keys == NULL ? 0 : lookups[i].num_keys;
        if (keys > KEYS_MOST - c.num_keys)
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, "num_keys", keys, (KEYS_MOST - c.num_keys),
                "lookup %u has %" PRIu64 " keys; all lookups of a call take up to %d", i, keys,
                KEYS_MOST);
        c.num_keys += keys;
    }
    c.rows = hotbed_new((c.num_keys + 1) * sizeof *c.rows);
    c.wanted = hotbed_new((c.num_keys + 1) * sizeof *c.wanted);
    pthread_mutex_lock(&r->lock);
    const bool connected = hotbed_redis_connected(r->redis);
    hotbed_status status = c.rows != NULL && c.wanted != NULL
                               ? answer(r, &c, version)
                               : hotbed_fail_value(
                                     HOTBED_ERR_MEMORY, "num_keys", c.num_keys,
                                     "no memory for a lookup of %" PRIu64 " keys", c.num_keys);
    if (status == HOTBED_ERR_IO && connected) { /* Redis may have closed it long ago */
        hotbed_redis_drop(r->redis);
        status = answer(r, &c, version);
    }
    const bool asked_well = status != HOTBED_ERR_ARGUMENT && status != HOTBED_ERR_RANGE;
    if (asked_well)
        r->stats.healthy = status == HOTBED_OK;
    if (asked_well && status != HOTBED_OK) {
        hotbed_redis_drop(r->redis); /* answers may be missing */
        r->stats.refused++;
    }
    pthread_mutex_unlock(&r->lock);
    hotbed_delete(c.rows);
    hotbed_delete(c.wanted);
    return status;
}

/* --- calls ------------------------------------------------------------------------------------ */

hotbed_status hotbed_redis_reader_open(
    const hotbed_redis_options *options, hotbed_redis_reader **out) {
    hotbed_redis *redis = NULL;
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(hotbed_redis_create("redis_reader_open", options, &redis));
    hotbed_redis_reader *r = hotbed_new(sizeof *r);
    if (r == NULL) {
        hotbed_redis_destroy(redis);
        return hotbed_fail_value(
            HOTBED_ERR_MEMORY, NULL, sizeof *r, "redis_reader_open: no %zu bytes for a reader",
            sizeof *r);
    }
    r->redis = redis;
    r->process = getpid();
    r->places = ((uint64_t)hotbed_redis_cache_rows(redis) + WAYS - 1) / WAYS * WAYS;
    pthread_mutex_init(&r->lock, NULL);
    hotbed_status status = hotbed_redis_connect(redis);
    HOTBED_THEN(status, read_cut(r));
    r->stats.healthy = status == HOTBED_OK;
    if (status == HOTBED_OK)
        *out = r;
    else
        hotbed_redis_reader_close(r);
    return status;
}

void hotbed_redis_reader_close(hotbed_redis_reader *r) {
    if (r == NULL)
        return;
    pthread_mutex_destroy(&r->lock);
    hotbed_redis_destroy(r->redis);
    hotbed_delete(r->record);
    hotbed_delete(r->tables);
    hotbed_delete(r->cache);
    hotbed_delete(r->rows);
    hotbed_delete(r->call_rows);
    hotbed_delete(r);
}

hotbed_status hotbed_redis_reader_find(hotbed_redis_reader *r, const char *name, uint32_t *table) {
    HOTBED_TRY(check_reader(r, "redis_reader_find"));
    HOTBED_TRY(hotbed_check_pointer_of("redis_reader_find", "name", name));
    HOTBED_TRY(hotbed_check_pointer_of("redis_reader_find", "table", table));
    hotbed_status status = HOTBED_ERR_ARGUMENT;
    pthread_mutex_lock(&r->lock);
    for (uint32_t t = 0; t < r->cut.head->tables && status != HOTBED_OK; t++)
        if (strncmp(r->cut.tables[t].name, name, sizeof r->cut.tables[t].name) == 0) {
            *table = t;
            status = HOTBED_OK;
        }
    pthread_mutex_unlock(&r->lock);
    return status == HOTBED_OK
               ? HOTBED_OK
               : hotbed_fail_table(
                     HOTBED_ERR_ARGUMENT, name, "redis_reader_find: there is no table '%s'", name);
}

uint32_t hotbed_redis_reader_num_tables(const hotbed_redis_reader *reader) {
    hotbed_redis_reader *r = (hotbed_redis_reader *)reader; /* its lock changes */
    if (r == NULL || r->process != getpid())
        return 0;
    pthread_mutex_lock(&r->lock);
    const uint32_t n = r->cut.head->tables;
    pthread_mutex_unlock(&r->lock);
    return n;
}

hotbed_status hotbed_redis_reader_table_info(
    hotbed_redis_reader *r, uint32_t table, hotbed_reader_table *out) {
    HOTBED_TRY(check_reader(r, "redis_reader_table_info"));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_reader_table"));
    pthread_mutex_lock(&r->lock);
    const uint32_t n = r->cut.head->tables;
    hotbed_reader_table info = {.size = 0};
    if (table < n) {
        const hotbed_cut_table *from = &r->cut.tables[table];
        info.dim = from->dim;
        info.encoding = (hotbed_encoding)from->encoding;
        info.key_type = (hotbed_key_type)from->key_type;
        info.missing = from->missing;
        info.keys = from->keys;
        memcpy(info.name, from->name, sizeof info.name);
    }
    pthread_mutex_unlock(&r->lock);
    HOTBED_TRY(hotbed_check_below("table", table, n));
    hotbed_output_write(out, &info, sizeof info);
    return HOTBED_OK;
}

/* `stats` as callers see them. */
static hotbed_redis_stats read_stats(hotbed_redis_reader *r) {
    pthread_mutex_lock(&r->lock);
    hotbed_redis_stats stats = r->stats;
    stats.age = hotbed_cut_age(r->cut.head->created_ns, r->used_ns);
    pthread_mutex_unlock(&r->lock);
    return stats;
}

hotbed_status hotbed_redis_reader_stats(hotbed_redis_reader *r, hotbed_redis_stats *out) {
    HOTBED_TRY(check_reader(r, "redis_reader_stats"));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_redis_stats"));
    const hotbed_redis_stats stats = read_stats(r);
    hotbed_output_write(out, &stats, sizeof stats);
    return HOTBED_OK;
}

hotbed_status hotbed_redis_reader_metrics(
    hotbed_redis_reader *r, char *text, uint64_t capacity, uint64_t *bytes) {
    HOTBED_TRY(check_reader(r, "redis_reader_metrics"));
    HOTBED_TRY(hotbed_check_pointer_of("redis_reader_metrics", "bytes", bytes));
    const hotbed_redis_stats s = read_stats(r);
    hotbed_metrics out = {.prefix = "hotbed_redis_reader_", .to = text, .capacity = capacity};
    const struct {
        const char *name, *type, *help;
        double value;
    } all[] = {
        {"healthy", "gauge", "1 if the last lookup succeeded.", s.healthy},
        {"version", "gauge", "Number of the cut that answers lookups.", (double)s.version},
        {"step", "gauge", "Training step of that cut.", (double)s.step},
        {"age_seconds", "gauge", "Age of the rows.", s.age},
        {"versions_total", "counter", "Cuts used so far.", (double)s.versions},
        {"refused_total", "counter", "Lookup calls that failed.", s.refused},
        {"lookups_total", "counter", "Lookup calls that were answered.", (double)s.lookups},
        {"keys_total", "counter", "Keys looked up.", (double)s.keys},
        {"missing_keys_total", "counter", "Keys without a row.", (double)s.missing},
        {"cached_keys_total", "counter", "Keys whose rows the cache had.", (double)s.cached},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        hotbed_metrics_add(&out, all[i].name, all[i].type, all[i].help, NULL, all[i].value);
    return hotbed_metrics_end(&out, "redis_reader_metrics", bytes);
}
