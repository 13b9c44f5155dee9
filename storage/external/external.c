/* storage/external/external.c - external stores: options, locking, checks of a plug-in's answers, retries
 * after failed inserts. */
#include "storage/external/external.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash_core.h"
#include "base/options.h"
#include "base/stream.h"
#include "base/text.h"
#include "storage/types.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>

enum { ROW_BYTES_MOST = 1 << 20, SCRATCH_LEAST = 256, TEXT_BYTES = 512 };

typedef struct own_table {
    char name[HOTBED_NAME_BYTES]; /* first member, for hotbed_names_check() */
    uint64_t row_bytes;
    uint64_t name_hash;
} own_table;

/* An insert that failed, and whose effect is not known yet. */
typedef struct pending {
    bool set;
    uint32_t table;
    uint64_t n, stamp; /* the keys are in `kept_keys` */
} pending;

struct hotbed_external {
    hotbed_external_calls calls;
    char name[64]; /* of the plug-in */
    void *self;
    uint32_t num_tables;
    own_table *tables;
    uint64_t deadline_ns; /* limit of one call; 0: none */
    bool verify_writes;

    /* Held from the start to the end of a call. Guards the members up to `tally`. */
    pthread_mutex_t turn;
    hotbed_external_call call;
    uint64_t stamp;           /* of the newest batch */
    hotbed_key_type key_type; /* for error texts; 0: not known */
    pending pending;
    char broken[TEXT_BYTES]; /* reason; empty while the store works */
    /* Scratch arrays of one batch: */
    uint64_t scratch; /* length of each of them */
    hotbed_external_metadata *metadata, *back;
    uint8_t *flags;
    uint64_t *kept_keys;

    /* Guards the counters. Held briefly only. */
    pthread_mutex_t tally;
    hotbed_external_stats stats;
    uint64_t nanoseconds, stream_nanoseconds;
    hotbed_status failure;
    char failure_text[TEXT_BYTES];
};

struct hotbed_external_cursor {
    hotbed_external *external;
    uint32_t table;
    bool damaged; /* the plug-in returned a bad row and its cursor has moved past it */
    void *inner;
};

/* --- checksums -------------------------------------------------------------------------------- */

/* x -> (x ^ word) * odd is a bijection, so a change of one word always changes its accumulator. */
static uint64_t absorb(uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * 0x9e3779b97f4a7c15U;
    return sum ^ (sum >> 29);
}

static uint64_t load_word(const uint8_t *from, size_t bytes) {
    uint64_t word = 0;
    memcpy(&word, from, bytes);
    return word;
}

/* Four independent accumulators, so that their multiplications overlap. Frozen: stores keep these
 * checksums. */
static uint64_t row_checksum(
    const own_table *t, uint64_t key, const void *row, uint64_t score, uint64_t stamp) {
    const uint8_t *bytes = row;
    uint64_t sums[4] = {t->name_hash, hotbed_hash_u64(key), score, stamp};
    uint64_t i = 0;
    for (; i + 32 <= t->row_bytes; i += 32)
        for (size_t l = 0; l < 4; l++)
            sums[l] = absorb(sums[l], load_word(bytes + i + 8 * l, 8));
    for (size_t l = 0; i < t->row_bytes; i += 8, l++) {
        uint64_t left = t->row_bytes - i;
        sums[l] = absorb(sums[l], load_word(bytes + i, left < 8 ? (size_t)left : 8));
    }
    uint64_t sum = hotbed_hash_u64(t->row_bytes);
    for (size_t l = 0; l < 4; l++)
        sum = hotbed_hash_u64(absorb(sum, sums[l]));
    return sum;
}

static uint64_t hash_name(const char *name) {
    uint64_t hash = 0;
    for (; *name != 0; name++)
        hash = hotbed_hash_u64(hash ^ (uint8_t)*name);
    return hash;
}

/* --- options ---------------------------------------------------------------------------------- */

static hotbed_status read_options(
    hotbed_external *external, const hotbed_external_options *options) {
    hotbed_external_options o;
    HOTBED_TRY(HOTBED_OPTIONS_READ(&o, hotbed_external_options, deadline_seconds, options));
    HOTBED_TRY(hotbed_check_range("num_tables", o.num_tables, 1, HOTBED_TABLES_MOST));
    HOTBED_TRY(hotbed_check_pointer("tables", o.tables));
    HOTBED_TRY(hotbed_check_interval("deadline_seconds", (double)o.deadline_seconds, 0, 1e6));
    external->tables = hotbed_new(o.num_tables * sizeof *external->tables);
    HOTBED_TRY_MEMORY(external->tables, "%u tables", o.num_tables);
    external->num_tables = o.num_tables;
    external->deadline_ns = (uint64_t)ceil(o.deadline_seconds * 1e9);
    external->verify_writes = o.verify_writes;
    for (uint32_t t = 0; t < o.num_tables; t++) {
        HOTBED_TRY(hotbed_name_check(o.tables[t].name, t));
        uint64_t row_bytes = o.tables[t].row_bytes;
        if (row_bytes < 1 || row_bytes > ROW_BYTES_MOST)
            return hotbed_fail_table_value(
                HOTBED_ERR_ARGUMENT, o.tables[t].name, "row_bytes", row_bytes,
                "table %s: row_bytes %llu is not in [1, 2^20]", o.tables[t].name,
                (unsigned long long)row_bytes);
        snprintf(external->tables[t].name, sizeof external->tables[t].name, "%s", o.tables[t].name);
        external->tables[t].row_bytes = row_bytes;
        external->tables[t].name_hash = hash_name(o.tables[t].name);
    }
    return hotbed_names_check(external->tables, o.num_tables, sizeof *external->tables);
}

static hotbed_status read_calls(hotbed_external *external, const hotbed_external_calls *calls) {
    HOTBED_TRY(hotbed_options_read(
        &external->calls, sizeof external->calls,
        offsetof(hotbed_external_calls, close) + sizeof calls->close, calls,
        "hotbed_external_calls"));
    const hotbed_external_calls *c = &external->calls;
    const char *missing = c->name == NULL           ? "name"
                          : c->open == NULL         ? "open"
                          : c->find == NULL         ? "find"
                          : c->insert == NULL       ? "insert"
                          : c->erase == NULL        ? "erase"
                          : c->cursor_open == NULL  ? "cursor_open"
                          : c->cursor_next == NULL  ? "cursor_next"
                          : c->cursor_close == NULL ? "cursor_close"
                          : c->count == NULL        ? "count"
                          : c->close == NULL        ? "close"
                                                    : NULL;
    if (missing != NULL)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, missing, "hotbed_external_calls: %s is NULL", missing);
    (void)snprintf(external->name, sizeof external->name, "%s", c->name);
    external->calls.name = external->name;
    return HOTBED_OK;
}

/* --- calls of the plug-in --------------------------------------------------------------------- */

static uint64_t begin(hotbed_external *external) {
    uint64_t start = hotbed_monotonic_now();
    external->call.deadline_ns =
        external->deadline_ns == 0 ? UINT64_MAX : start + external->deadline_ns;
    external->call.size = sizeof external->call;
    external->call.reason[0] = 0;
    return start;
}

/* Count the call that began at `start`. If it failed, set the error text. `name` is the table's
 * name, or NULL. */
static hotbed_status end(
    hotbed_external *external, uint64_t start, hotbed_status status, const char *what, uint64_t n,
    const char *name) {
    uint64_t now = hotbed_monotonic_now();
    pthread_mutex_lock(&external->tally);
    external->stats.calls++;
    external->stats.late += status == HOTBED_OK && now > external->call.deadline_ns;
    external->nanoseconds += now - start;
    pthread_mutex_unlock(&external->tally);
    if (status == HOTBED_OK)
        return HOTBED_OK;
    external->call.reason[HOTBED_EXTERNAL_REASON_BYTES - 1] = 0;
    const char *reason =
        external->call.reason[0] != 0 ? external->call.reason : hotbed_status_name(status);
    if (strcmp(hotbed_status_name(status), "UNKNOWN") == 0)
        return hotbed_fail(
            HOTBED_ERR_CORRUPT, "store %s: %s returned %d, which is no hotbed_status: %s",
            external->calls.name, what, (int)status, reason);
    if (name == NULL)
        return hotbed_fail(status, "store %s: %s failed: %s", external->calls.name, what, reason);
    status = hotbed_error_cause_is(
        hotbed_fail_table(
            status, name, "store %s: %s of %llu rows, table %s, failed: %s", external->calls.name,
            what, (unsigned long long)n, name, reason),
        HOTBED_CAUSE_EXTERNAL);
    return hotbed_error_value(status, NULL, (double)n);
}

static hotbed_status check_flags(
    const hotbed_external *external, uint32_t t, uint64_t n, const uint64_t *keys,
    const uint8_t *flags) {
    for (uint64_t i = 0; i < n; i++)
        if (flags[i] > 1)
            return hotbed_error_key(
                hotbed_fail_table_value(
                    HOTBED_ERR_CORRUPT, external->tables[t].name, "flag", flags[i],
                    "store %s: table %s, key %s: flag %u is not 0 or 1", external->calls.name,
                    external->tables[t].name, hotbed_key_text(keys[i], external->key_type).text,
                    flags[i]),
                keys[i], (uint32_t)external->key_type);
    return HOTBED_OK;
}

static hotbed_status check_checksums(
    const hotbed_external *external, uint32_t number, uint64_t n, const uint64_t *keys,
    const uint8_t *found, const void *rows) {
    const own_table *t = &external->tables[number];
    for (uint64_t i = 0; i < n; i++) {
        if (found != NULL && found[i] == 0)
            continue;
        const uint8_t *row = (const uint8_t *)rows + i * t->row_bytes;
        const hotbed_external_metadata *one = &external->metadata[i];
        if (row_checksum(t, keys[i], row, one->score, one->stamp) != one->checksum)
            return hotbed_fail_table_key(
                HOTBED_ERR_CORRUPT, t->name, keys[i], (uint32_t)external->key_type,
                "store %s: table %s, key %s: the row is damaged", external->calls.name, t->name,
                hotbed_key_text(keys[i], external->key_type).text);
    }
    return HOTBED_OK;
}

/* --- locking ---------------------------------------------------------------------------------- */

/* Record `status` and the last error text for hotbed_external_failure(). Returns `status`. */
static hotbed_status failed(hotbed_external *external, hotbed_status status) {
    pthread_mutex_lock(&external->tally);
    external->stats.failures++;
    external->failure = status;
    snprintf(external->failure_text, sizeof external->failure_text, "%s", hotbed_last_error());
    pthread_mutex_unlock(&external->tally);
    return status;
}

static void free_scratch(hotbed_external *external) {
    hotbed_delete(external->metadata);
    hotbed_delete(external->back);
    hotbed_delete(external->flags);
    hotbed_delete(external->kept_keys);
    external->metadata = external->back = NULL;
    external->flags = NULL;
    external->kept_keys = NULL;
    external->scratch = 0;
}

/* Grow the scratch arrays to n keys. No insert may be pending, because its keys would be lost. */
static hotbed_status reserve(hotbed_external *external, uint64_t n) {
    if (n <= external->scratch)
        return HOTBED_OK;
    uint64_t larger = external->scratch * 2 > n ? external->scratch * 2 : n;
    if (larger < SCRATCH_LEAST)
        larger = SCRATCH_LEAST;
    free_scratch(external);
    external->metadata = hotbed_new(larger * sizeof *external->metadata);
    external->back = hotbed_new(larger * sizeof *external->back);
    external->flags = hotbed_new(larger);
    external->kept_keys = hotbed_new(larger * sizeof *external->kept_keys);
    if (external->metadata == NULL || external->back == NULL || external->flags == NULL ||
        external->kept_keys == NULL) {
        free_scratch(external);
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "store %s: no memory for a batch of %llu keys", external->calls.name,
            (unsigned long long)n);
    }
    external->scratch = larger;
    return HOTBED_OK;
}

/* Set *there to the number of the n keys whose stored row is from batch `stamp`. */
static hotbed_status read_back(
    hotbed_external *external, uint32_t t, uint64_t n, const uint64_t *keys, uint64_t stamp,
    uint64_t *there) {
    uint64_t start = begin(external);
    memset(external->flags, 0, n);
    hotbed_status status = external->calls.find(
        external->self, t, n, keys, external->flags, NULL, external->back, &external->call);
    HOTBED_TRY(end(external, start, status, "reading back", n, external->tables[t].name));
    HOTBED_TRY(check_flags(external, t, n, keys, external->flags));
    *there = 0;
    for (uint64_t i = 0; i < n; i++)
        *there += external->flags[i] == 1 && external->back[i].stamp == stamp;
    return HOTBED_OK;
}

static hotbed_status fail_broken(
    hotbed_external *external, uint32_t t, uint64_t n, uint64_t there) {
    snprintf(
        external->broken, sizeof external->broken,
        "store %s is broken: %llu of the %llu rows of a batch are in table %s, the others are not",
        external->calls.name, (unsigned long long)there, (unsigned long long)n,
        external->tables[t].name);
    return hotbed_fail(HOTBED_ERR_CORRUPT, "%s", external->broken);
}

/* After a failed insert, find out whether its rows are in the store. */
static hotbed_status settle(hotbed_external *external) {
    pending *p = &external->pending;
    if (!p->set)
        return HOTBED_OK;
    uint64_t there = 0;
    HOTBED_TRY(read_back(external, p->table, p->n, external->kept_keys, p->stamp, &there));
    p->set = false;
    return there == 0 || there == p->n ? HOTBED_OK : fail_broken(external, p->table, p->n, there);
}

/* Lock the store for a batch of n keys. The caller must call leave(), whatever this returns. */
static hotbed_status enter(hotbed_external *external, uint64_t n) {
    pthread_mutex_lock(&external->turn);
    if (external->broken[0] != 0)
        return hotbed_fail(HOTBED_ERR_CORRUPT, "%s", external->broken);
    HOTBED_TRY(settle(external));
    return reserve(external, n);
}

static hotbed_status leave(hotbed_external *external, hotbed_status status) {
    pthread_mutex_unlock(&external->turn);
    return status == HOTBED_OK ? HOTBED_OK : failed(external, status);
}

hotbed_status hotbed_external_reserve(hotbed_external *external, uint64_t n) {
    return leave(external, enter(external, n));
}

void hotbed_external_set_key_type(hotbed_external *external, hotbed_key_type type) {
    pthread_mutex_lock(&external->turn);
    external->key_type = type;
    pthread_mutex_unlock(&external->turn);
}

hotbed_status hotbed_external_check_layout(
    hotbed_external *external, uint32_t table, const char *layout) {
    const char *name = external->tables[table].name;
    char what[HOTBED_NAME_BYTES + 32];
    hotbed_status status = enter(external, 0);
    if (status == HOTBED_OK && external->calls.layout != NULL) {
        snprintf(what, sizeof what, "comparing the rows of table %s", name);
        uint64_t start = begin(external);
        status = external->calls.layout(external->self, table, layout, &external->call);
        status = end(external, start, status, what, 0, NULL);
        if (status != HOTBED_OK)
            status = hotbed_error_table(status, name);
    }
    return leave(external, status);
}

/* --- create and destroy ----------------------------------------------------------------------- */

/* Free everything except the plug-in's own state. */
static void delete_external(hotbed_external *external) {
    pthread_mutex_destroy(&external->tally);
    pthread_mutex_destroy(&external->turn);
    free_scratch(external);
    hotbed_delete(external->tables);
    hotbed_delete(external);
}

static hotbed_status open_store(hotbed_external *external) {
    hotbed_external_table *tables = hotbed_new(external->num_tables * sizeof *tables);
    HOTBED_TRY_MEMORY(tables, "%u tables", external->num_tables);
    for (uint32_t t = 0; t < external->num_tables; t++)
        tables[t] =
            (hotbed_external_table){external->tables[t].name, external->tables[t].row_bytes};
    uint64_t start = begin(external);
    hotbed_status status =
        external->calls.open(external->self, external->num_tables, tables, &external->call);
    hotbed_delete(tables);
    return end(external, start, status, "open", 0, NULL);
}

hotbed_status hotbed_external_create(
    const hotbed_external_options *options, const hotbed_external_calls *calls, void *self,
    hotbed_external **out) {
    HOTBED_TRY(hotbed_check_pointer("out", out));
    *out = NULL;
    HOTBED_TRY(hotbed_fork_check());
    hotbed_fork_watch(); /* a store may have threads */
    hotbed_external *external = hotbed_new(sizeof *external);
    HOTBED_TRY_MEMORY(external, "an external store");
    pthread_mutex_init(&external->turn, NULL);
    pthread_mutex_init(&external->tally, NULL);
    external->self = self;
    /* Start at the current time in nanoseconds: a batch takes longer than 1 ns, so the stamps of a
     * reopened store are above all earlier ones. */
    external->stamp = hotbed_realtime_now();
    hotbed_status status = read_calls(external, calls);
    HOTBED_THEN(status, read_options(external, options));
    HOTBED_THEN(status, reserve(external, SCRATCH_LEAST));
    HOTBED_THEN(status, open_store(external));
    if (status != HOTBED_OK) {
        delete_external(external);
        return status;
    }
    *out = external;
    return HOTBED_OK;
}

void hotbed_external_destroy(hotbed_external *external) {
    if (external == NULL || hotbed_forked())
        return;
    external->calls.close(external->self);
    delete_external(external);
}

/* --- direct calls ----------------------------------------------------------------------------- */

hotbed_status hotbed_external_check_table(const hotbed_external *external, uint32_t table) {
    HOTBED_TRY(hotbed_check_pointer("external", external));
    HOTBED_TRY(hotbed_fork_check());
    return hotbed_check_below("table", table, external->num_tables);
}

static hotbed_status check_batch(
    const hotbed_external *external, uint32_t t, uint64_t n, const uint64_t *keys) {
    HOTBED_TRY(hotbed_external_check_table(external, t));
    HOTBED_TRY(hotbed_check_range("n", n, 0, HOTBED_EXTERNAL_BATCH_MOST));
    if (n > 0 && keys == NULL)
        return hotbed_fail_null("keys");
    return HOTBED_OK;
}

/* Add n to a counter of the statistics. */
static void count(hotbed_external *external, uint64_t *counter, uint64_t n) {
    pthread_mutex_lock(&external->tally);
    *counter += n;
    pthread_mutex_unlock(&external->tally);
}

static hotbed_status find(
    hotbed_external *external, uint32_t t, uint64_t n, const uint64_t *keys, uint8_t *found,
    void *rows, uint64_t *scores) {
    memset(found, 0, n); /* plug-ins may leave zeros unset */
    uint64_t start = begin(external);
    hotbed_status status = external->calls.find(
        external->self, t, n, keys, found, rows, external->metadata, &external->call);
    HOTBED_TRY(end(external, start, status, "find", n, external->tables[t].name));
    HOTBED_TRY(check_flags(external, t, n, keys, found));
    if (rows != NULL)
        HOTBED_TRY(check_checksums(external, t, n, keys, found, rows));
    uint64_t hits = 0;
    for (uint64_t i = 0; i < n; i++) {
        hits += found[i];
        if (scores != NULL && found[i] == 1)
            scores[i] = external->metadata[i].score;
    }
    count(external, &external->stats.finds, n);
    count(external, &external->stats.hits, hits);
    return HOTBED_OK;
}

hotbed_status hotbed_external_find(
    hotbed_external *external, uint32_t table, uint64_t n, const uint64_t *keys, uint8_t *found,
    void *rows, uint64_t *scores) {
    HOTBED_TRY(check_batch(external, table, n, keys));
    if (n == 0)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_check_pointer("found", found));
    hotbed_status status = enter(external, n);
    HOTBED_THEN(status, find(external, table, n, keys, found, rows, scores));
    if (status != HOTBED_OK)
        memset(found, HOTBED_EXTERNAL_UNKNOWN, n);
    return leave(external, status);
}

static hotbed_status insert(
    hotbed_external *external, uint32_t number, uint64_t n, const uint64_t *keys, const void *rows,
    const uint64_t *scores) {
    const own_table *t = &external->tables[number];
    uint64_t stamp = ++external->stamp;
    for (uint64_t i = 0; i < n; i++) {
        hotbed_external_metadata *one = &external->metadata[i];
        one->score = scores == NULL ? 0 : scores[i];
        one->stamp = stamp;
        one->checksum =
            row_checksum(t, keys[i], (const uint8_t *)rows + i * t->row_bytes, one->score, stamp);
    }
    uint64_t start = begin(external);
    hotbed_status status = external->calls.insert(
        external->self, number, n, keys, rows, external->metadata, &external->call);
    status = end(external, start, status, "insert", n, t->name);
    if (status == HOTBED_OK && !external->verify_writes) {
        count(external, &external->stats.inserts, n);
        return HOTBED_OK;
    }
    hotbed_error error; /* of the insert, since reading back may fail too */
    hotbed_error_copy(&error);
    uint64_t there = 0;
    hotbed_status back = read_back(external, number, n, keys, stamp, &there);
    if (back != HOTBED_OK) {
        memcpy(external->kept_keys, keys, n * sizeof *keys);
        external->pending = (pending){true, number, n, stamp};
        return status == HOTBED_OK ? back : hotbed_error_return(&error, status);
    }
    if (there != n && (there != 0 || status == HOTBED_OK))
        return fail_broken(external, number, n, there);
    if (status != HOTBED_OK)
        return hotbed_error_return(&error, status);
    count(external, &external->stats.inserts, n);
    return HOTBED_OK;
}

hotbed_status hotbed_external_insert(
    hotbed_external *external, uint32_t table, uint64_t n, const uint64_t *keys, const void *rows,
    const uint64_t *scores) {
    HOTBED_TRY(check_batch(external, table, n, keys));
    if (n == 0)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_check_pointer("rows", rows));
    hotbed_status status = enter(external, n);
    HOTBED_THEN(status, insert(external, table, n, keys, rows, scores));
    return leave(external, status);
}

static hotbed_status erase(
    hotbed_external *external, uint32_t t, uint64_t n, const uint64_t *keys, uint8_t *erased) {
    if (erased != NULL)
        memset(erased, 0, n);
    uint64_t start = begin(external);
    hotbed_status status =
        external->calls.erase(external->self, t, n, keys, erased, &external->call);
    HOTBED_TRY(end(external, start, status, "erase", n, external->tables[t].name));
    if (erased != NULL)
        HOTBED_TRY(check_flags(external, t, n, keys, erased));
    count(external, &external->stats.erases, n);
    return HOTBED_OK;
}

hotbed_status hotbed_external_erase(
    hotbed_external *external, uint32_t table, uint64_t n, const uint64_t *keys, uint8_t *erased) {
    HOTBED_TRY(check_batch(external, table, n, keys));
    if (n == 0)
        return HOTBED_OK;
    hotbed_status status = enter(external, n);
    HOTBED_THEN(status, erase(external, table, n, keys, erased));
    if (status != HOTBED_OK && erased != NULL)
        memset(erased, HOTBED_EXTERNAL_UNKNOWN, n);
    return leave(external, status);
}

hotbed_status hotbed_external_flush(hotbed_external *external) {
    HOTBED_TRY(hotbed_check_pointer("external", external));
    HOTBED_TRY(hotbed_fork_check());
    hotbed_status status = enter(external, 0);
    if (status == HOTBED_OK && external->calls.flush != NULL) {
        uint64_t start = begin(external);
        status = external->calls.flush(external->self, &external->call);
        status = end(external, start, status, "flush", 0, NULL);
    }
    return leave(external, status);
}

hotbed_status hotbed_external_size(hotbed_external *external, uint32_t table, uint64_t *keys) {
    HOTBED_TRY(hotbed_external_check_table(external, table));
    HOTBED_TRY(hotbed_check_pointer("keys", keys));
    uint64_t counted = 0;
    hotbed_status status = enter(external, 0);
    if (status == HOTBED_OK) {
        uint64_t start = begin(external);
        status = external->calls.count(external->self, table, &counted, &external->call);
        status = end(external, start, status, "count", 0, external->tables[table].name);
    }
    status = leave(external, status);
    if (status == HOTBED_OK)
        *keys = counted;
    return status;
}

/* --- cursors ---------------------------------------------------------------------------------- */

hotbed_status hotbed_external_cursor_create(
    hotbed_external *external, uint32_t table, hotbed_external_cursor **out) {
    HOTBED_TRY(hotbed_check_pointer("out", out));
    *out = NULL;
    HOTBED_TRY(hotbed_external_check_table(external, table));
    hotbed_external_cursor *cursor = hotbed_new(sizeof *cursor);
    HOTBED_TRY_MEMORY(cursor, "a cursor");
    cursor->external = external;
    cursor->table = table;
    hotbed_status status = enter(external, 0);
    if (status == HOTBED_OK) {
        uint64_t start = begin(external);
        status =
            external->calls.cursor_open(external->self, table, &cursor->inner, &external->call);
        status = end(external, start, status, "export", 0, external->tables[table].name);
    }
    status = leave(external, status);
    if (status != HOTBED_OK) {
        hotbed_delete(cursor);
        return status;
    }
    *out = cursor;
    return HOTBED_OK;
}

/* Check what cursor_next() returned. */
static hotbed_status check_export(
    const hotbed_external_cursor *cursor, uint64_t capacity, const uint64_t *keys, const void *rows,
    uint64_t given) {
    const hotbed_external *external = cursor->external;
    if (given > capacity)
        return hotbed_fail_table(
            HOTBED_ERR_CORRUPT, external->tables[cursor->table].name,
            "store %s: table %s: export gave %llu rows, %llu were asked for", external->calls.name,
            external->tables[cursor->table].name, (unsigned long long)given,
            (unsigned long long)capacity);
    return check_checksums(external, cursor->table, given, keys, NULL, rows);
}

static hotbed_status next(
    hotbed_external_cursor *cursor, uint64_t capacity, uint64_t *keys, void *rows, uint64_t *scores,
    uint64_t *n) {
    hotbed_external *external = cursor->external;
    const char *name = external->tables[cursor->table].name;
    if (cursor->damaged)
        return hotbed_fail_table(
            HOTBED_ERR_CORRUPT, name, "store %s: table %s: the export stopped at a damaged row",
            external->calls.name, name);
    uint64_t given = 0, start = begin(external);
    hotbed_status status = external->calls.cursor_next(
        external->self, cursor->inner, capacity, keys, rows, external->metadata, &given,
        &external->call);
    HOTBED_TRY(end(external, start, status, "export", capacity, name));
    status = check_export(cursor, capacity, keys, rows, given);
    if (status != HOTBED_OK) {
        cursor->damaged = true;
        return status;
    }
    for (uint64_t i = 0; scores != NULL && i < given; i++)
        scores[i] = external->metadata[i].score;
    *n = given;
    return HOTBED_OK;
}

hotbed_status hotbed_external_cursor_next(
    hotbed_external_cursor *cursor, uint64_t capacity, uint64_t *keys, void *rows, uint64_t *scores,
    uint64_t *n) {
    HOTBED_TRY(hotbed_check_pointer("cursor", cursor));
    HOTBED_TRY(hotbed_check_pointer("keys", keys));
    HOTBED_TRY(hotbed_check_pointer("rows", rows));
    HOTBED_TRY(hotbed_check_pointer("n", n));
    HOTBED_TRY(hotbed_check_range("capacity", capacity, 1, HOTBED_EXTERNAL_BATCH_MOST));
    *n = 0;
    HOTBED_TRY(hotbed_fork_check());
    hotbed_status status = enter(cursor->external, capacity);
    HOTBED_THEN(status, next(cursor, capacity, keys, rows, scores, n));
    return leave(cursor->external, status);
}

void hotbed_external_cursor_destroy(hotbed_external_cursor *cursor) {
    if (cursor == NULL || hotbed_forked())
        return;
    hotbed_external *external = cursor->external;
    pthread_mutex_lock(&external->turn);
    external->calls.cursor_close(external->self, cursor->inner);
    pthread_mutex_unlock(&external->turn);
    hotbed_delete(cursor);
}

/* --- description ------------------------------------------------------------------------------ */

uint32_t hotbed_external_num_tables(const hotbed_external *external) {
    return external->num_tables;
}

hotbed_status hotbed_external_table_read(
    const hotbed_external *external, uint32_t table, hotbed_external_table *out) {
    HOTBED_TRY(hotbed_external_check_table(external, table));
    HOTBED_TRY(hotbed_check_pointer("out", out));
    *out = (hotbed_external_table){external->tables[table].name, external->tables[table].row_bytes};
    return HOTBED_OK;
}

hotbed_status hotbed_external_enqueue(
    const hotbed_external *external, hotbed_stream *stream, void (*function)(void *argument),
    void *argument) {
    if (!external->calls.on_callers_thread)
        return hotbed_stream_call(stream, function, argument);
    if (hotbed_stream_recording(stream))
        return hotbed_fail(
            HOTBED_ERR_STATE, "store %s is called on the caller's thread, not by a recorded graph",
            external->calls.name);
    HOTBED_TRY(hotbed_stream_finish(stream));
    function(argument);
    return HOTBED_OK;
}

void hotbed_external_count_stream_wait(hotbed_external *external, uint64_t nanoseconds) {
    pthread_mutex_lock(&external->tally);
    external->stats.stream_waits++;
    external->stream_nanoseconds += nanoseconds;
    pthread_mutex_unlock(&external->tally);
}

hotbed_status hotbed_external_stats_read(hotbed_external *external, hotbed_external_stats *out) {
    HOTBED_TRY(hotbed_check_pointer("external", external));
    HOTBED_TRY(hotbed_fork_check());
    HOTBED_TRY(hotbed_output_check(out, "hotbed_external_stats"));
    pthread_mutex_lock(&external->tally);
    hotbed_external_stats stats = external->stats;
    stats.seconds = 1e-9 * (double)external->nanoseconds;
    stats.stream_seconds = 1e-9 * (double)external->stream_nanoseconds;
    pthread_mutex_unlock(&external->tally);
    hotbed_output_write(out, &stats, sizeof stats);
    return HOTBED_OK;
}

hotbed_status hotbed_external_failure(hotbed_external *external, char *text, size_t bytes) {
    if (external == NULL || (text == NULL && bytes > 0))
        return hotbed_fail_null(external == NULL ? "external" : "text");
    HOTBED_TRY(hotbed_fork_check());
    pthread_mutex_lock(&external->tally);
    hotbed_status status = external->failure;
    if (bytes > 0)
        snprintf(text, bytes, "%s", external->failure_text);
    pthread_mutex_unlock(&external->tally);
    return status;
}
