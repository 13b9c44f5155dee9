/* storage/external/external_rocksdb.c - an external store in a RocksDB database.
 *
 * Format 1, integers little-endian unless noted:
 *   "hotbed"            -> u32 format
 *   "t" name            -> u32 format, u32 id, u64 row_bytes, u64 checksum of these and the name
 *   "l" u32 id          -> how the table's rows are laid out, as text; id is big-endian
 *   "r" u32 id, u64 key -> u64 score, u64 stamp, u64 checksum, the row; id and key are big-endian,
 *                          so that rows are in the order of table and unsigned key
 */
#include "storage/external/external.h"

#include "base/check.h"
#include "base/error.h"
#include "base/hash_core.h"
#include "base/options.h"
#include "base/stream.h"
#include "base/text.h"

#include <rocksdb/c.h>
#include <stdio.h>

enum {
    FORMAT = 1,
    CHUNK = 1024, /* keys per call of RocksDB */
    KEY_BYTES = 13,
    BOUND_BYTES = 5, /* "r" and a table's id */
    METADATA_BYTES = 24,
    TABLE_BYTES = 24,
    NAME_KEY_BYTES = 64, /* "t" and the longest name */
    LOG_FATAL_ONLY = 4,  /* rocksdb::InfoLogLevel::FATAL_LEVEL */
    BLOOM_BITS = 10
};
#define DEFAULT_BYTES ((uint64_t)64 << 20)
#define BYTES_MOST    ((uint64_t)1 << 44)

static const char header_key[] = "hotbed";

typedef struct table {
    uint32_t id;
    uint64_t row_bytes;
} table;

typedef struct store {
    char *path;
    hotbed_rocksdb_options options;
    uint32_t num_tables;
    table *tables;
    rocksdb_t *db;
    rocksdb_column_family_handle_t *family; /* the default column family */
    rocksdb_options_t *db_options;
    rocksdb_readoptions_t *read_options;
    rocksdb_writeoptions_t *write_options;
    struct cursor *cursors; /* that are open */
    bool failed;            /* a write: RocksDB may refuse all later ones */
    /* Scratch arrays of one call: */
    uint8_t keys[CHUNK][KEY_BYTES];
    const char *key_list[CHUNK];
    size_t key_sizes[CHUNK];
    rocksdb_pinnableslice_t *values[CHUNK];
    char *errors[CHUNK];
} store;

typedef struct cursor {
    struct cursor *next; /* of the store */
    const table *table;
    rocksdb_readoptions_t *options;
    rocksdb_iterator_t *at;      /* NULL: `lost` is set */
    uint8_t end[BOUND_BYTES];    /* RocksDB keeps a pointer to it */
    uint8_t from[KEY_BYTES + 1]; /* lower bound of the keys not returned yet */
    size_t from_bytes;
    bool lost; /* after an error: position the iterator at `from` again */
} cursor;

/* --- bytes ------------------------------------------------------------------------------------ */

static void put_u64(uint8_t *to, uint64_t value) {
    for (int i = 0; i < 8; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static void put_u32(uint8_t *to, uint32_t value) {
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_u64(const uint8_t *from) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | from[i];
    return value;
}

static uint32_t get_u32(const uint8_t *from) {
    uint32_t value = 0;
    for (int i = 3; i >= 0; i--)
        value = value << 8 | from[i];
    return value;
}

/* Write the prefix that all row keys of table `id` share. */
static void put_bound(uint8_t *to, uint32_t id) {
    to[0] = 'r';
    for (int i = 0; i < 4; i++)
        to[1 + i] = (uint8_t)(id >> (24 - 8 * i));
}

static void put_key(uint8_t *to, uint32_t id, uint64_t key) {
    put_bound(to, id);
    for (int i = 0; i < 8; i++)
        to[BOUND_BYTES + i] = (uint8_t)(key >> (56 - 8 * i));
}

static uint64_t key_of(const uint8_t *from) {
    uint64_t key = 0;
    for (int i = 0; i < 8; i++)
        key = key << 8 | from[BOUND_BYTES + i];
    return key;
}

static void put_metadata(uint8_t *to, const hotbed_external_metadata *one) {
    put_u64(to, one->score);
    put_u64(to + 8, one->stamp);
    put_u64(to + 16, one->checksum);
}

static hotbed_external_metadata get_metadata(const uint8_t *from) {
    return (hotbed_external_metadata){get_u64(from), get_u64(from + 8), get_u64(from + 16)};
}

/* --- errors ----------------------------------------------------------------------------------- */

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* Set the call's reason from RocksDB's message, free the message, and return the error class. */
static hotbed_status fail_rocksdb(hotbed_external_call *call, char *error) {
    hotbed_status status = HOTBED_ERR_IO;
    if (begins(error, "Corruption"))
        status = HOTBED_ERR_CORRUPT;
    else if (begins(error, "Not implemented"))
        status = HOTBED_ERR_UNSUPPORTED;
    else if (begins(error, "Operation aborted: Memory limit"))
        status = HOTBED_ERR_MEMORY;
    snprintf(call->reason, sizeof call->reason, "%s", error);
    rocksdb_free(error);
    return status;
}

static hotbed_status fail_length(
    hotbed_external_call *call, const table *t, uint64_t key, size_t bytes) {
    unsigned long long want = METADATA_BYTES + t->row_bytes;
    snprintf(
        call->reason, sizeof call->reason, "key %s: a value of %zu bytes where rows have %llu",
        hotbed_key_text(key, (hotbed_key_type)0).text, bytes, want);
    return HOTBED_ERR_CORRUPT;
}

/* --- opening ---------------------------------------------------------------------------------- */

static void make_options(store *s) {
    const hotbed_rocksdb_options *o = &s->options;
    s->db_options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(s->db_options, !o->must_exist);
    rocksdb_options_set_paranoid_checks(s->db_options, 1);
    /* floats hardly compress */
    rocksdb_options_set_compression(s->db_options, rocksdb_no_compression);
    rocksdb_options_set_keep_log_file_num(s->db_options, 2);
    /* Log only the start: on a full disk, a write to the file LOG fails, and if RocksDB is built with assertions, as
     * in Debian, the write after it ends the process. */
    rocksdb_options_set_info_log_level(s->db_options, LOG_FATAL_ONLY);
    rocksdb_options_set_write_buffer_size(
        s->db_options, o->buffer_bytes == 0 ? DEFAULT_BYTES : o->buffer_bytes);
    /* Drop a batch whose write was cut off. Report any other damage. */
    rocksdb_options_set_wal_recovery_mode(
        s->db_options, rocksdb_tolerate_corrupted_tail_records_recovery);
    rocksdb_block_based_table_options_t *blocks = rocksdb_block_based_options_create();
    rocksdb_cache_t *cache =
        rocksdb_cache_create_lru(o->cache_bytes == 0 ? DEFAULT_BYTES : o->cache_bytes);
    rocksdb_block_based_options_set_block_cache(blocks, cache);
    /* The filter answers most misses without reading a data block. */
    rocksdb_block_based_options_set_filter_policy(
        blocks, rocksdb_filterpolicy_create_bloom_full(BLOOM_BITS));
    rocksdb_options_set_block_based_table_factory(s->db_options, blocks);
    rocksdb_cache_destroy(cache); /* the options hold references */
    rocksdb_block_based_options_destroy(blocks);
    s->read_options = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(s->read_options, 1);
    s->write_options = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(s->write_options, o->sync);
}

static hotbed_status open_database(store *s, hotbed_external_call *call) {
    const char *names[] = {"default"};
    const rocksdb_options_t *options[] = {s->db_options};
    char *error = NULL;
    s->db =
        rocksdb_open_column_families(s->db_options, s->path, 1, names, options, &s->family, &error);
    return error == NULL ? HOTBED_OK : fail_rocksdb(call, error);
}

static void end_iterator(cursor *c) {
    if (c->at != NULL)
        rocksdb_iter_destroy(c->at);
    c->at = NULL;
    c->lost = true;
}

static void close_database(store *s) {
    for (cursor *c = s->cursors; c != NULL; c = c->next)
        end_iterator(c);
    if (s->family != NULL)
        rocksdb_column_family_handle_destroy(s->family);
    if (s->db != NULL)
        rocksdb_close(s->db);
    s->family = NULL;
    s->db = NULL;
}

/* Begin a call. After a failed write, for example to a full disk, RocksDB fails all later writes and flushes until
 * the database is opened again; reads go on. All rows that were written are in its log. */
static hotbed_status begin(store *s, bool writes, hotbed_external_call *call) {
    if (s->db != NULL && !(writes && s->failed))
        return HOTBED_OK;
    close_database(s);
    HOTBED_TRY(open_database(s, call));
    s->failed = false;
    return HOTBED_OK;
}

/* End a write. A damaged database is not opened again: it has to fail. */
static hotbed_status end_write(store *s, char *error, hotbed_external_call *call) {
    const hotbed_status status = error == NULL ? HOTBED_OK : fail_rocksdb(call, error);
    s->failed = status == HOTBED_ERR_IO;
    return status;
}

/* Check that the database is one of Hotbed's. An empty database becomes one. */
static hotbed_status check_header(store *s, hotbed_external_call *call) {
    char *error = NULL;
    size_t bytes = 0;
    char *value =
        rocksdb_get(s->db, s->read_options, header_key, strlen(header_key), &bytes, &error);
    if (error != NULL)
        return fail_rocksdb(call, error);
    if (value != NULL) {
        uint32_t format = bytes == 4 ? get_u32((const uint8_t *)value) : 0;
        rocksdb_free(value);
        if (format == FORMAT)
            return HOTBED_OK;
        snprintf(
            call->reason, sizeof call->reason, "%s has format %u, this library knows format %d",
            s->path, format, FORMAT);
        return format == 0 ? HOTBED_ERR_CORRUPT : HOTBED_ERR_UNSUPPORTED;
    }
    rocksdb_iterator_t *any = rocksdb_create_iterator(s->db, s->read_options);
    rocksdb_iter_seek_to_first(any);
    bool empty = !rocksdb_iter_valid(any);
    rocksdb_iter_get_error(any, &error);
    rocksdb_iter_destroy(any);
    if (error != NULL)
        return fail_rocksdb(call, error);
    if (!empty) {
        snprintf(
            call->reason, sizeof call->reason, "%s is a database of something else than Hotbed",
            s->path);
        return HOTBED_ERR_CORRUPT;
    }
    uint8_t format[4];
    put_u32(format, FORMAT);
    rocksdb_put(
        s->db, s->write_options, header_key, strlen(header_key), (const char *)format,
        sizeof format, &error);
    return error == NULL ? HOTBED_OK : fail_rocksdb(call, error);
}

static uint64_t table_check(const uint8_t *record, const char *name, size_t name_bytes) {
    uint64_t check = get_u64(record) ^ hotbed_hash_u64(get_u64(record + 8));
    for (size_t i = 0; i < name_bytes; i++)
        check = hotbed_hash_u64(check ^ (uint8_t)name[i]);
    return check;
}

/* Read a table's record. `name` need not be terminated. */
static hotbed_status read_table(
    hotbed_external_call *call, const char *name, size_t name_bytes, const void *value,
    size_t bytes, table *out) {
    const uint8_t *record = value;
    int shown = name_bytes < 64 ? (int)name_bytes : 64;
    if (bytes != TABLE_BYTES || get_u64(record + 16) != table_check(record, name, name_bytes)) {
        snprintf(
            call->reason, sizeof call->reason, "the record of table %.*s is damaged", shown, name);
        return HOTBED_ERR_CORRUPT;
    }
    if (get_u32(record) != FORMAT) {
        snprintf(
            call->reason, sizeof call->reason,
            "table %.*s has format %u, this library knows format %d", shown, name, get_u32(record),
            FORMAT);
        return HOTBED_ERR_UNSUPPORTED;
    }
    *out = (table){get_u32(record + 4), get_u64(record + 8)};
    return HOTBED_OK;
}

/* Smallest id above the ids of all tables. */
static hotbed_status next_id(store *s, hotbed_external_call *call, uint32_t *out) {
    char *error = NULL;
    hotbed_status status = HOTBED_OK;
    rocksdb_iterator_t *at = rocksdb_create_iterator(s->db, s->read_options);
    uint32_t id = 0;
    for (rocksdb_iter_seek(at, "t", 1); status == HOTBED_OK && rocksdb_iter_valid(at);
         rocksdb_iter_next(at)) {
        size_t key_bytes = 0, bytes = 0;
        const char *key = rocksdb_iter_key(at, &key_bytes);
        const char *value = rocksdb_iter_value(at, &bytes);
        table t = {0};
        if (key_bytes < 1 || key[0] != 't')
            break;
        status = read_table(call, key + 1, key_bytes - 1, value, bytes, &t);
        if (t.id >= id)
            id = t.id + 1;
    }
    rocksdb_iter_get_error(at, &error);
    rocksdb_iter_destroy(at);
    if (error != NULL && status == HOTBED_OK)
        return fail_rocksdb(call, error);
    rocksdb_free(error);
    *out = id;
    return status;
}

/* Find the tables. Records of new tables go into `batch`. */
static hotbed_status find_tables(
    store *s, const hotbed_external_table *tables, rocksdb_writebatch_t *batch,
    hotbed_external_call *call) {
    uint32_t id = 0;
    hotbed_status status = next_id(s, call, &id);
    for (uint32_t i = 0; status == HOTBED_OK && i < s->num_tables; i++) {
        char key[NAME_KEY_BYTES + 1], *error = NULL;
        size_t bytes = 0;
        snprintf(key, sizeof key, "t%s", tables[i].name);
        size_t name_bytes = strlen(key + 1);
        char *value = rocksdb_get(s->db, s->read_options, key, 1 + name_bytes, &bytes, &error);
        if (error != NULL)
            return fail_rocksdb(call, error);
        if (value != NULL) {
            status = read_table(call, key + 1, name_bytes, value, bytes, &s->tables[i]);
            rocksdb_free(value);
            if (status == HOTBED_OK && s->tables[i].row_bytes != tables[i].row_bytes) {
                snprintf(
                    call->reason, sizeof call->reason,
                    "table %s: row_bytes is %llu, but the table in %s was created with %llu",
                    tables[i].name, (unsigned long long)tables[i].row_bytes, s->path,
                    (unsigned long long)s->tables[i].row_bytes);
                status = HOTBED_ERR_ARGUMENT;
            }
            continue;
        }
        uint8_t record[TABLE_BYTES];
        s->tables[i] = (table){id++, tables[i].row_bytes};
        put_u32(record, FORMAT);
        put_u32(record + 4, s->tables[i].id);
        put_u64(record + 8, s->tables[i].row_bytes);
        put_u64(record + 16, table_check(record, key + 1, name_bytes));
        rocksdb_writebatch_put(batch, key, 1 + name_bytes, (const char *)record, sizeof record);
    }
    return status;
}

static hotbed_status write_batch(
    store *s, rocksdb_writebatch_t *batch, hotbed_external_call *call) {
    char *error = NULL;
    rocksdb_write(s->db, s->write_options, batch, &error);
    rocksdb_writebatch_destroy(batch);
    return end_write(s, error, call);
}

static hotbed_status open_tables(
    void *self, uint32_t num_tables, const hotbed_external_table *tables,
    hotbed_external_call *call) {
    store *s = self;
    s->num_tables = num_tables;
    s->tables = hotbed_new(num_tables * sizeof *s->tables);
    if (s->tables == NULL) {
        snprintf(call->reason, sizeof call->reason, "no memory for %u tables", num_tables);
        return HOTBED_ERR_MEMORY;
    }
    for (size_t i = 0; i < CHUNK; i++) {
        s->key_list[i] = (const char *)s->keys[i];
        s->key_sizes[i] = KEY_BYTES;
    }
    make_options(s);
    HOTBED_TRY(open_database(s, call));
    HOTBED_TRY(check_header(s, call));
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    hotbed_status status = find_tables(s, tables, batch, call);
    if (status != HOTBED_OK) {
        rocksdb_writebatch_destroy(batch);
        return status;
    }
    return write_batch(s, batch, call);
}

static void close_store(void *self) {
    store *s = self;
    close_database(s);
    if (s->write_options != NULL)
        rocksdb_writeoptions_destroy(s->write_options);
    if (s->read_options != NULL)
        rocksdb_readoptions_destroy(s->read_options);
    if (s->db_options != NULL)
        rocksdb_options_destroy(s->db_options);
    hotbed_delete(s->tables);
    hotbed_delete(s->path);
    hotbed_delete(s);
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Copy one value, or its error, to the caller's arrays. Frees both. */
static hotbed_status take_value(
    const table *t, uint64_t key, rocksdb_pinnableslice_t *value, char *error, uint8_t *found,
    uint8_t *row, hotbed_external_metadata *one, hotbed_external_call *call) {
    if (error != NULL) {
        if (value != NULL)
            rocksdb_pinnableslice_destroy(value);
        return fail_rocksdb(call, error);
    }
    *found = value != NULL;
    if (value == NULL)
        return HOTBED_OK;
    size_t bytes = 0;
    const uint8_t *data = (const uint8_t *)rocksdb_pinnableslice_value(value, &bytes);
    hotbed_status status = HOTBED_OK;
    if (bytes != METADATA_BYTES + t->row_bytes) {
        status = fail_length(call, t, key, bytes);
    } else {
        *one = get_metadata(data);
        if (row != NULL)
            memcpy(row, data + METADATA_BYTES, t->row_bytes);
    }
    rocksdb_pinnableslice_destroy(value);
    return status;
}

/* Look up at most CHUNK keys. */
static hotbed_status find_chunk(
    store *s, const table *t, size_t n, const uint64_t *keys, uint8_t *found, uint8_t *rows,
    hotbed_external_metadata *metadata, hotbed_external_call *call) {
    for (size_t i = 0; i < n; i++) {
        put_key(s->keys[i], t->id, keys[i]);
        s->values[i] = NULL;
        s->errors[i] = NULL;
    }
    rocksdb_batched_multi_get_cf(
        s->db, s->read_options, s->family, n, s->key_list, s->key_sizes, s->values, s->errors,
        false);
    hotbed_status status = HOTBED_OK;
    for (size_t i = 0; i < n; i++) { /* to the end, because every value has to be freed */
        hotbed_status one = take_value(
            t, keys[i], s->values[i], s->errors[i], &found[i],
            rows == NULL ? NULL : rows + i * t->row_bytes, &metadata[i], call);
        HOTBED_THEN(status, one);
    }
    return status;
}

static hotbed_status find(
    void *self, uint32_t number, uint64_t n, const uint64_t *keys, uint8_t *found, void *rows,
    hotbed_external_metadata *metadata, hotbed_external_call *call) {
    store *s = self;
    const table *t = &s->tables[number];
    HOTBED_TRY(begin(s, false, call));
    for (uint64_t first = 0; first < n; first += CHUNK) {
        size_t count = (size_t)(n - first < CHUNK ? n - first : CHUNK);
        uint8_t *to = rows == NULL ? NULL : (uint8_t *)rows + first * t->row_bytes;
        HOTBED_TRY(
            find_chunk(s, t, count, keys + first, found + first, to, metadata + first, call));
    }
    return HOTBED_OK;
}

static hotbed_status insert(
    void *self, uint32_t number, uint64_t n, const uint64_t *keys, const void *rows,
    const hotbed_external_metadata *metadata, hotbed_external_call *call) {
    store *s = self;
    const table *t = &s->tables[number];
    HOTBED_TRY(begin(s, true, call));
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    for (uint64_t i = 0; i < n; i++) {
        uint8_t key[KEY_BYTES], head[METADATA_BYTES];
        put_key(key, t->id, keys[i]);
        put_metadata(head, &metadata[i]);
        const char *key_parts[] = {(const char *)key};
        const char *value_parts[] = {(const char *)head, (const char *)rows + i * t->row_bytes};
        const size_t key_bytes[] = {KEY_BYTES}, value_bytes[] = {METADATA_BYTES, t->row_bytes};
        rocksdb_writebatch_putv(batch, 1, key_parts, key_bytes, 2, value_parts, value_bytes);
    }
    return write_batch(s, batch, call);
}

/* Find out which of n keys exist. */
static hotbed_status look(
    store *s, const table *t, uint64_t n, const uint64_t *keys, uint8_t *found,
    hotbed_external_call *call) {
    hotbed_external_metadata metadata[CHUNK];
    for (uint64_t first = 0; first < n; first += CHUNK) {
        size_t count = (size_t)(n - first < CHUNK ? n - first : CHUNK);
        HOTBED_TRY(find_chunk(s, t, count, keys + first, found + first, NULL, metadata, call));
    }
    return HOTBED_OK;
}

static hotbed_status erase(
    void *self, uint32_t number, uint64_t n, const uint64_t *keys, uint8_t *erased,
    hotbed_external_call *call) {
    store *s = self;
    const table *t = &s->tables[number];
    HOTBED_TRY(begin(s, true, call));
    if (erased != NULL)
        HOTBED_TRY(look(s, t, n, keys, erased, call));
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    for (uint64_t i = 0; i < n; i++) {
        uint8_t key[KEY_BYTES];
        put_key(key, t->id, keys[i]);
        rocksdb_writebatch_delete(batch, (const char *)key, KEY_BYTES);
    }
    return write_batch(s, batch, call);
}

/* --- cursors ---------------------------------------------------------------------------------- */

static void cursor_close(void *self, void *cursor_of) {
    store *s = self;
    cursor *c = cursor_of, **link = &s->cursors;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    end_iterator(c);
    rocksdb_readoptions_destroy(c->options);
    hotbed_delete(c);
}

static void cursor_seek(const store *s, cursor *c) {
    if (c->at == NULL)
        c->at = rocksdb_create_iterator(s->db, c->options);
    rocksdb_iter_seek(c->at, (const char *)c->from, c->from_bytes);
    c->lost = false;
}

static hotbed_status cursor_open(
    void *self, uint32_t number, void **out, hotbed_external_call *call) {
    store *s = self;
    HOTBED_TRY(begin(s, false, call));
    cursor *c = hotbed_new(sizeof *c);
    if (c == NULL) {
        snprintf(call->reason, sizeof call->reason, "no memory for a cursor");
        return HOTBED_ERR_MEMORY;
    }
    c->table = &s->tables[number];
    put_bound(c->from, c->table->id);
    c->from_bytes = BOUND_BYTES;
    put_bound(c->end, c->table->id + 1);
    c->options = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(c->options, 1);
    rocksdb_readoptions_set_fill_cache(c->options, 0);
    rocksdb_readoptions_set_iterate_upper_bound(c->options, (const char *)c->end, BOUND_BYTES);
    c->at = rocksdb_create_iterator(s->db, c->options);
    c->lost = true;
    c->next = s->cursors;
    s->cursors = c;
    *out = c;
    return HOTBED_OK;
}

/* Copy out the cursor's current row. */
static hotbed_status take_row(
    const cursor *c, uint64_t *key, uint8_t *row, hotbed_external_metadata *one,
    hotbed_external_call *call) {
    size_t key_bytes = 0, bytes = 0;
    const uint8_t *key_data = (const uint8_t *)rocksdb_iter_key(c->at, &key_bytes);
    const uint8_t *data = (const uint8_t *)rocksdb_iter_value(c->at, &bytes);
    if (key_bytes != KEY_BYTES) {
        snprintf(
            call->reason, sizeof call->reason, "a key of %zu bytes where rows have %d", key_bytes,
            KEY_BYTES);
        return HOTBED_ERR_CORRUPT;
    }
    *key = key_of(key_data);
    if (bytes != METADATA_BYTES + c->table->row_bytes)
        return fail_length(call, c->table, *key, bytes);
    *one = get_metadata(data);
    memcpy(row, data + METADATA_BYTES, c->table->row_bytes);
    return HOTBED_OK;
}

static hotbed_status cursor_next(
    void *self, void *cursor_of, uint64_t capacity, uint64_t *keys, void *rows,
    hotbed_external_metadata *metadata, uint64_t *n, hotbed_external_call *call) {
    cursor *c = cursor_of;
    uint64_t given = 0;
    char *error = NULL;
    HOTBED_TRY(begin(self, false, call));
    if (c->lost)
        cursor_seek(self, c);
    for (; given < capacity && rocksdb_iter_valid(c->at); rocksdb_iter_next(c->at), given++) {
        uint8_t *row = (uint8_t *)rows + given * c->table->row_bytes;
        hotbed_status status = take_row(c, &keys[given], row, &metadata[given], call);
        if (status != HOTBED_OK) {
            /* the caller discards this call's rows, so the next call starts at `from` again */
            c->lost = true;
            return status;
        }
    }
    rocksdb_iter_get_error(c->at, &error);
    if (error != NULL) {
        c->lost = true;
        return fail_rocksdb(call, error);
    }
    if (given > 0) {
        put_key(c->from, c->table->id, keys[given - 1]);
        c->from[KEY_BYTES] = 0; /* the smallest key above the last one */
        c->from_bytes = KEY_BYTES + 1;
    }
    *n = given;
    return HOTBED_OK;
}

static hotbed_status count(
    void *self, uint32_t number, uint64_t *keys, hotbed_external_call *call) {
    void *walk = NULL;
    char *error = NULL;
    HOTBED_TRY(cursor_open(self, number, &walk, call));
    cursor *c = walk;
    uint64_t counted = 0;
    for (cursor_seek(self, c); rocksdb_iter_valid(c->at); rocksdb_iter_next(c->at))
        counted++;
    rocksdb_iter_get_error(c->at, &error);
    cursor_close(self, c);
    if (error != NULL)
        return fail_rocksdb(call, error);
    *keys = counted;
    return HOTBED_OK;
}

static hotbed_status flush(void *self, hotbed_external_call *call) {
    store *s = self;
    char *error = NULL;
    HOTBED_TRY(begin(s, true, call));
    rocksdb_flush_wal(s->db, 1, &error);
    return end_write(s, error, call);
}

static hotbed_status layout(
    void *self, uint32_t number, const char *text, hotbed_external_call *call) {
    store *s = self;
    uint8_t key[BOUND_BYTES];
    char *error = NULL;
    size_t bytes = 0;
    HOTBED_TRY(begin(s, true, call));
    put_bound(key, s->tables[number].id);
    key[0] = 'l';
    char *there =
        rocksdb_get(s->db, s->read_options, (const char *)key, sizeof key, &bytes, &error);
    if (error != NULL)
        return fail_rocksdb(call, error);
    if (there == NULL) {
        rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
        rocksdb_writebatch_put(batch, (const char *)key, sizeof key, text, strlen(text));
        return write_batch(s, batch, call);
    }
    const bool same = bytes == strlen(text) && memcmp(there, text, bytes) == 0;
    if (!same)
        snprintf(
            call->reason, sizeof call->reason, "rows in %.60s are %.*s, not %s", s->path,
            (int)(bytes < HOTBED_EXTERNAL_LAYOUT_BYTES ? bytes : HOTBED_EXTERNAL_LAYOUT_BYTES),
            there, text);
    rocksdb_free(there);
    return same ? HOTBED_OK : HOTBED_ERR_ARGUMENT;
}

static const hotbed_external_calls calls = {
    .size = sizeof(hotbed_external_calls),
    .name = "rocksdb",
    .open = open_tables,
    .find = find,
    .insert = insert,
    .erase = erase,
    .cursor_open = cursor_open,
    .cursor_next = cursor_next,
    .cursor_close = cursor_close,
    .count = count,
    .flush = flush,
    .close = close_store,
    .layout = layout,
};

/* --- creation --------------------------------------------------------------------------------- */

static hotbed_status read_options(
    store *s, const char *path, const hotbed_rocksdb_options *rocksdb) {
    hotbed_rocksdb_options defaults = {.size = sizeof defaults};
    HOTBED_TRY(hotbed_options_read(
        &s->options, sizeof s->options, sizeof(uint32_t), rocksdb == NULL ? &defaults : rocksdb,
        "hotbed_rocksdb_options"));
    if (s->options.cache_bytes > BYTES_MOST || s->options.buffer_bytes > BYTES_MOST)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT,
            s->options.cache_bytes > BYTES_MOST ? "cache_bytes" : "buffer_bytes",
            (s->options.cache_bytes > BYTES_MOST ? s->options.cache_bytes
                                                 : s->options.buffer_bytes),
            BYTES_MOST, "cache_bytes %llu or buffer_bytes %llu is more than 2^44",
            (unsigned long long)s->options.cache_bytes,
            (unsigned long long)s->options.buffer_bytes);
    size_t bytes = strlen(path) + 1;
    s->path = hotbed_new(bytes);
    HOTBED_TRY_MEMORY(s->path, "a path of %zu bytes", bytes);
    memcpy(s->path, path, bytes);
    return HOTBED_OK;
}

hotbed_status hotbed_external_create_rocksdb(
    const char *path, const hotbed_rocksdb_options *rocksdb, const hotbed_external_options *options,
    hotbed_external **out) {
    HOTBED_TRY(hotbed_check_pointer("out", out));
    *out = NULL;
    if (path == NULL || path[0] == 0)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, "path", "path is %s", path == NULL ? "NULL" : "empty");
    store *s = hotbed_new(sizeof *s);
    HOTBED_TRY_MEMORY(s, "an external store");
    hotbed_status status = read_options(s, path, rocksdb);
    HOTBED_THEN(status, hotbed_external_create(options, &calls, s, out));
    if (status != HOTBED_OK)
        close_store(s);
    return hotbed_error_path(status, path);
}
