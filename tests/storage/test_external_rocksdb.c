/* tests/storage/test_external_rocksdb.c - RocksDB stores: contents after a restart, damaged and foreign databases.
 *
 * Databases are closed and opened again, damaged with ordinary file calls, or written through RocksDB's own API.  Their
 * bytes are compared with docs/formats.md.
 */
#include "hotbed/external.h"

#include "tests/support/harness.h"

#include <dirent.h>
#include <rocksdb/c.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { N = 400, ROW = 48, PATH_BYTES = 600 };

static uint64_t keys[N], scores[N], keys_back[N], scores_back[N];
static uint8_t rows[N * ROW], rows_back[N * ROW], found[N];

static void path_of(char *path, const char *name) {
    static const char *directory; /* of all tests */
    if (directory == NULL)
        directory = hotbed_test_directory();
    snprintf(path, PATH_BYTES, "%s/%s", directory, name);
}

/* Make distinct keys, spread over 64 bits, and random rows. */
static void random_rows(void) {
    uint64_t start = hotbed_test_random();
    for (uint64_t i = 0; i < N; i++) {
        keys[i] = start + i * 0x9e3779b97f4a7c15U;
        scores[i] = hotbed_test_random();
    }
    for (size_t i = 0; i < sizeof rows; i++)
        rows[i] = (uint8_t)hotbed_test_random();
}

static hotbed_status open_tables(
    const char *path, uint32_t num_tables, const hotbed_external_table *tables,
    const hotbed_rocksdb_options *rocksdb, hotbed_external **out) {
    hotbed_external_options o = {.size = sizeof o, .num_tables = num_tables, .tables = tables};
    return hotbed_external_create_rocksdb(path, rocksdb, &o, out);
}

static hotbed_status open_one(const char *path, uint64_t row_bytes, hotbed_external **out) {
    hotbed_external_table one = {"one", row_bytes};
    return open_tables(path, 1, &one, NULL, out);
}

static void check_rows(hotbed_external *x, uint32_t table, uint64_t n) {
    memset(rows_back, 0, sizeof rows_back);
    CHECK_OK(hotbed_external_find(x, table, n, keys, found, rows_back, scores_back));
    CHECK_BYTES(rows_back, rows, n * ROW);
    CHECK_BYTES(scores_back, scores, n * sizeof scores[0]);
    uint64_t size = 0;
    CHECK_OK(hotbed_external_size(x, table, &size));
    CHECK_EQ(size, n);
}

static bool last_error_has(const char *part) {
    return strstr(hotbed_last_error(), part) != NULL;
}

/* --- files ----------------------------------------------------------------------------------- */

/* Find the largest file in `directory` whose name has this ending.  Returns whether there is one. */
static bool file_of(const char *directory, const char *ending, char *path, long *bytes) {
    DIR *d = opendir(directory);
    CHECK(d != NULL);
    *bytes = -1;
    for (const struct dirent *entry = readdir(d); entry != NULL; entry = readdir(d)) {
        size_t length = strlen(entry->d_name), end = strlen(ending);
        if (length < end || strcmp(entry->d_name + length - end, ending) != 0)
            continue;
        char one[PATH_BYTES + 300];
        snprintf(one, sizeof one, "%s/%s", directory, entry->d_name);
        FILE *f = fopen(one, "rb");
        CHECK(f != NULL && fseek(f, 0, SEEK_END) == 0);
        if (ftell(f) > *bytes) {
            *bytes = ftell(f);
            snprintf(path, PATH_BYTES, "%.*s", PATH_BYTES - 1, one);
        }
        fclose(f);
    }
    closedir(d);
    return *bytes >= 0;
}

static void flip_byte(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL && fseek(f, at, SEEK_SET) == 0);
    int byte = fgetc(f);
    CHECK(byte != EOF && fseek(f, at, SEEK_SET) == 0);
    CHECK(fputc(byte ^ 0x10, f) != EOF);
    CHECK_EQ(fclose(f), 0);
}

/* --- tests ----------------------------------------------------------------------------------- */

static void rows_persist_after_the_store_is_closed(hotbed_backend backend) {
    char path[PATH_BYTES];
    path_of(path, "again");
    random_rows();
    hotbed_external_table tables[3] = {{"b", ROW}, {"a", ROW}, {"c", 5}};
    hotbed_rocksdb_options synced = {.size = sizeof synced, .sync = true};
    hotbed_external *x = NULL;
    CHECK_OK(open_tables(path, 2, tables, &synced, &x));
    CHECK_OK(hotbed_external_insert(x, 0, N, keys, rows, scores));
    CHECK_OK(hotbed_external_insert(x, 1, N / 2, keys, rows, scores));
    CHECK_OK(hotbed_external_flush(x));
    hotbed_external_destroy(x);
    /* Tables are found by name, in any order; a new table is empty. */
    hotbed_external_table others[3] = {{"c", 5}, {"a", ROW}, {"b", ROW}};
    CHECK_OK(open_tables(path, 3, others, NULL, &x));
    check_rows(x, 2, N);
    check_rows(x, 1, N / 2);
    uint64_t size = 9;
    CHECK_OK(hotbed_external_size(x, 0, &size));
    CHECK_EQ(size, 0);
    CHECK_OK(hotbed_external_insert(x, 0, 3, keys, rows, scores));
    hotbed_external_destroy(x);
    /* Tables that are not opened stay unchanged. */
    CHECK_OK(open_tables(path, 1, others, NULL, &x));
    CHECK_OK(hotbed_external_size(x, 0, &size));
    CHECK_EQ(size, 3);
    hotbed_external_destroy(x);
    CHECK_OK(open_tables(path, 3, tables, NULL, &x));
    check_rows(x, 0, N);
    hotbed_external_destroy(x);
}

static void rows_are_in_the_order_of_their_keys(hotbed_backend backend) {
    char path[PATH_BYTES];
    path_of(path, "order");
    random_rows();
    keys[0] = UINT64_MAX, keys[1] = 0, keys[2] = (uint64_t)1 << 63;
    hotbed_external_table tables[2] = {{"one", ROW}, {"two", ROW}};
    hotbed_external *x = NULL;
    CHECK_OK(open_tables(path, 2, tables, NULL, &x));
    CHECK_OK(hotbed_external_insert(x, 0, N, keys, rows, NULL));
    CHECK_OK(hotbed_external_insert(x, 1, 9, keys, rows, NULL));
    hotbed_external_cursor *cursor = NULL;
    CHECK_OK(hotbed_external_cursor_create(x, 0, &cursor));
    uint64_t n = 0;
    CHECK_OK(hotbed_external_cursor_next(cursor, N, keys_back, rows_back, NULL, &n));
    CHECK_EQ(n, N);
    for (uint64_t i = 1; i < N; i++)
        CHECK(keys_back[i - 1] < keys_back[i]);
    CHECK_OK(hotbed_external_cursor_next(cursor, N, keys_back, rows_back, NULL, &n));
    CHECK_EQ(n, 0);
    hotbed_external_cursor_destroy(cursor);
    hotbed_external_destroy(x);
}

static void rows_of_another_size_are_refused(hotbed_backend backend) {
    char path[PATH_BYTES];
    path_of(path, "size");
    random_rows();
    hotbed_external *x = NULL;
    CHECK_OK(open_one(path, ROW, &x));
    CHECK_OK(hotbed_external_insert(x, 0, N, keys, rows, scores));
    hotbed_external_destroy(x);
    CHECK_STATUS(open_one(path, ROW + 4, &x), HOTBED_ERR_ARGUMENT);
    CHECK(x == NULL && last_error_has("table one: row_bytes is 52") && last_error_has("with 48"));
    CHECK_OK(open_one(path, ROW, &x));
    check_rows(x, 0, N);
    hotbed_external_destroy(x);
}

static void a_database_has_one_owner_and_a_valid_path(hotbed_backend backend) {
    char path[PATH_BYTES], deeper[PATH_BYTES + 20];
    path_of(path, "owner");
    hotbed_external_table one = {"one", ROW};
    hotbed_rocksdb_options options = {.size = sizeof options, .must_exist = true};
    hotbed_external *x = NULL, *second = NULL;
    CHECK_STATUS(open_tables(path, 1, &one, &options, &x), HOTBED_ERR_IO);
    CHECK(x == NULL && last_error_has("does not exist"));
    CHECK_OK(open_one(path, ROW, &x));
    CHECK_STATUS(open_one(path, ROW, &second), HOTBED_ERR_IO);
    CHECK(second == NULL && last_error_has("LOCK"));
    CHECK_STRING(hotbed_last_error_detail()->path, path);
    hotbed_external_destroy(x);
    CHECK_OK(open_tables(path, 1, &one, &options, &x));
    hotbed_external_destroy(x);
    snprintf(deeper, sizeof deeper, "%s/CURRENT/under", path); /* CURRENT is a file */
    CHECK_STATUS(open_one(deeper, ROW, &x), HOTBED_ERR_IO);
    CHECK_STATUS(open_one("", ROW, &x), HOTBED_ERR_ARGUMENT);
    options.cache_bytes = UINT64_MAX;
    CHECK_STATUS(open_tables(path, 1, &one, &options, &x), HOTBED_ERR_ARGUMENT);
    CHECK(x == NULL);
}

/* Write a value into the database at `path`, not through Hotbed. */
static void put(
    const char *path, const char *key, size_t key_bytes, const char *value, size_t bytes) {
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_writeoptions_t *write = rocksdb_writeoptions_create();
    char *error = NULL;
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_t *db = rocksdb_open(options, path, &error);
    CHECK(error == NULL);
    rocksdb_put(db, write, key, key_bytes, value, bytes, &error);
    CHECK(error == NULL);
    rocksdb_close(db);
    rocksdb_writeoptions_destroy(write);
    rocksdb_options_destroy(options);
}

static void databases_of_other_programs_are_refused(hotbed_backend backend) {
    char path[PATH_BYTES];
    hotbed_external *x = NULL;
    path_of(path, "foreign");
    put(path, "somebody", 8, "else", 4);
    CHECK_STATUS(open_one(path, ROW, &x), HOTBED_ERR_CORRUPT);
    CHECK(x == NULL && last_error_has("something else than Hotbed"));
    path_of(path, "newer");
    CHECK_OK(open_one(path, ROW, &x));
    hotbed_external_destroy(x);
    put(path, "hotbed", 6, "\002\000\000\000", 4);
    CHECK_STATUS(open_one(path, ROW, &x), HOTBED_ERR_UNSUPPORTED);
    CHECK(last_error_has("format 2, this library knows format 1"));
    put(path, "hotbed", 6, "?", 1);
    CHECK_STATUS(open_one(path, ROW, &x), HOTBED_ERR_CORRUPT);
    put(path, "hotbed", 6, "\001\000\000\000", 4);
    CHECK_OK(open_one(path, ROW, &x));
    hotbed_external_destroy(x);
    put(path, "tone", 4, "\001\000\000\000\000\000\000\000", 8);
    CHECK_STATUS(open_one(path, ROW, &x), HOTBED_ERR_CORRUPT);
    CHECK(last_error_has("the record of table one is damaged"));
}

/* Values that Hotbed did not write: of a wrong length, and of the right length without a checksum. */
static void foreign_rows_are_not_served(hotbed_backend backend) {
    char path[PATH_BYTES], value[24 + ROW] = {0};
    path_of(path, "rows");
    random_rows();
    hotbed_external *x = NULL;
    CHECK_OK(open_one(path, ROW, &x));
    for (uint64_t i = 0; i < 30; i++)
        keys[i] = i;
    CHECK_OK(hotbed_external_insert(x, 0, 30, keys, rows, scores));
    hotbed_external_destroy(x);
    put(path, "r\0\0\0\0\0\0\0\0\0\0\0\007", 13, value, sizeof value);
    put(path, "r\0\0\0\0\0\0\0\0\0\0\0\011", 13, value, 20);
    CHECK_OK(open_one(path, ROW, &x));
    uint64_t damaged[] = {7, 9};
    CHECK_STATUS(
        hotbed_external_find(x, 0, 1, &damaged[0], found, rows_back, NULL), HOTBED_ERR_CORRUPT);
    CHECK(last_error_has("key 7: the row is damaged"));
    CHECK_STATUS(
        hotbed_external_find(x, 0, 1, &damaged[1], found, rows_back, NULL), HOTBED_ERR_CORRUPT);
    CHECK(last_error_has("key 9: a value of 20 bytes where rows have 72"));
    hotbed_external_cursor *cursor = NULL;
    uint64_t n = 9;
    CHECK_OK(hotbed_external_cursor_create(x, 0, &cursor));
    CHECK_OK(hotbed_external_cursor_next(cursor, 5, keys_back, rows_back, NULL, &n));
    CHECK_EQ(n, 5);
    CHECK_STATUS(
        hotbed_external_cursor_next(cursor, 5, keys_back, rows_back, NULL, &n), HOTBED_ERR_CORRUPT);
    /* A cursor gives the rows before the damaged one, and no later ones. */
    CHECK_OK(hotbed_external_cursor_next(cursor, 2, keys_back, rows_back, NULL, &n));
    CHECK(n == 2 && keys_back[0] == 5 && keys_back[1] == 6);
    for (int i = 0; i < 3; i++)
        CHECK_STATUS(
            hotbed_external_cursor_next(cursor, 1, keys_back, rows_back, NULL, &n),
            HOTBED_ERR_CORRUPT);
    hotbed_external_cursor_destroy(cursor);
    CHECK_OK(hotbed_external_erase(x, 0, 2, damaged, NULL));
    CHECK_OK(hotbed_external_insert(x, 0, 30, keys, rows, scores));
    check_rows(x, 0, 30);
    hotbed_external_destroy(x);
}

/* The log looks as if the process died while it wrote the last batch. */
static void a_truncated_batch_is_dropped_whole(hotbed_backend backend) {
    char path[PATH_BYTES], log[PATH_BYTES];
    long bytes = 0;
    path_of(path, "cut");
    random_rows();
    hotbed_external *x = NULL;
    CHECK_OK(open_one(path, ROW, &x));
    CHECK_OK(hotbed_external_insert(x, 0, N / 2, keys, rows, scores));
    CHECK_OK(hotbed_external_insert(
        x, 0, N / 2, keys + N / 2, rows + (size_t)N / 2 * ROW, scores + N / 2));
    hotbed_external_destroy(x);
    CHECK(file_of(path, ".log", log, &bytes) && bytes > N * ROW);
    CHECK_EQ(truncate(log, bytes - 500), 0);
    CHECK_OK(open_one(path, ROW, &x));
    check_rows(x, 0, N / 2);
    hotbed_external_destroy(x);
}

static void a_damaged_log_is_an_error(hotbed_backend backend) {
    char path[PATH_BYTES], log[PATH_BYTES];
    long bytes = 0;
    path_of(path, "log");
    random_rows();
    hotbed_external *x = NULL;
    CHECK_OK(open_one(path, ROW, &x));
    CHECK_OK(hotbed_external_insert(x, 0, N, keys, rows, scores));
    CHECK_OK(hotbed_external_insert(x, 0, N, keys, rows, scores));
    hotbed_external_destroy(x);
    CHECK(file_of(path, ".log", log, &bytes) && bytes > N * ROW);
    flip_byte(log, bytes / 4);
    CHECK_STATUS(open_one(path, ROW, &x), HOTBED_ERR_CORRUPT);
    CHECK(x == NULL && last_error_has("store rocksdb: open failed: Corruption"));
}

static void a_damaged_table_file_is_an_error(hotbed_backend backend) {
    char path[PATH_BYTES], file[PATH_BYTES];
    long bytes = 0;
    path_of(path, "file");
    random_rows();
    hotbed_external_table one = {"one", ROW};
    hotbed_rocksdb_options options = {.size = sizeof options};
    hotbed_external *x = NULL;
    CHECK_OK(open_tables(path, 1, &one, &options, &x));
    CHECK_OK(hotbed_external_insert(x, 0, N, keys, rows, scores));
    hotbed_external_destroy(x);
    /* RocksDB moves the log's contents into a table file */
    CHECK_OK(open_tables(path, 1, &one, &options, &x));
    check_rows(x, 0, N);
    hotbed_external_destroy(x);
    CHECK(file_of(path, ".sst", file, &bytes) && bytes > N * ROW);
    flip_byte(file, bytes / 3);
    /* blocks are only checked when they are read */
    CHECK_OK(open_tables(path, 1, &one, &options, &x));
    CHECK_STATUS(
        hotbed_external_find(x, 0, N, keys, found, rows_back, scores_back), HOTBED_ERR_CORRUPT);
    CHECK(last_error_has("Corruption: block checksum mismatch"));
    for (int i = 0; i < N; i++)
        CHECK_EQ(found[i], HOTBED_EXTERNAL_UNKNOWN);
    uint64_t size = 0;
    CHECK_STATUS(hotbed_external_size(x, 0, &size), HOTBED_ERR_CORRUPT);
    hotbed_external_cursor *cursor = NULL;
    uint64_t n = 1;
    hotbed_status status = HOTBED_OK;
    CHECK_OK(hotbed_external_cursor_create(x, 0, &cursor));
    while (status == HOTBED_OK && n > 0)
        status = hotbed_external_cursor_next(cursor, 50, keys_back, rows_back, NULL, &n);
    CHECK_EQ(status, HOTBED_ERR_CORRUPT);
    /* A cursor gives the rows before the damaged block, then the error, and the error again. */
    CHECK_OK(hotbed_external_cursor_next(cursor, 1, keys_back, rows_back, NULL, &n));
    CHECK_EQ(n, 1);
    CHECK_STATUS(
        hotbed_external_cursor_next(cursor, 50, keys_back, rows_back, NULL, &n),
        HOTBED_ERR_CORRUPT);
    hotbed_external_cursor_destroy(cursor);
    hotbed_external_destroy(x);
    CHECK(file_of(path, "CURRENT", file, &bytes));
    flip_byte(file, 0);
    CHECK(open_one(path, ROW, &x) != HOTBED_OK);
    CHECK(x == NULL);
}

/* --- a reader written from docs/formats.md --------------------------------------------------- */

static uint64_t hash(uint64_t key) {
    key = (key ^ key >> 33) * 0xff51afd7ed558ccdU;
    key = (key ^ key >> 33) * 0xc4ceb9fe1a85ec53U;
    return key ^ key >> 33;
}

static uint64_t step(uint64_t a, uint64_t word) {
    a = (a ^ word) * 0x9e3779b97f4a7c15U;
    return a ^ a >> 29;
}

static uint64_t number(const uint8_t *at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* Read the value of `key`, and check that it has `bytes` bytes. */
static void get(rocksdb_t *db, const char *key, size_t key_bytes, uint8_t *value, size_t bytes) {
    rocksdb_readoptions_t *options = rocksdb_readoptions_create();
    char *error = NULL;
    size_t got = 0;
    char *data = rocksdb_get(db, options, key, key_bytes, &got, &error);
    CHECK(error == NULL && data != NULL);
    CHECK_EQ(got, bytes);
    memcpy(value, data, bytes);
    rocksdb_free(data);
    rocksdb_readoptions_destroy(options);
}

static void a_database_has_the_documented_format(hotbed_backend backend) {
    enum { BYTES = 45 }; /* five 8-byte words and a rest */
    char path[PATH_BYTES];
    path_of(path, "format");
    random_rows();
    hotbed_external_table tables[2] = {{"zero", 8}, {"one", BYTES}};
    hotbed_external *x = NULL;
    uint64_t key = 0x0102030405060708U;
    CHECK_OK(open_tables(path, 2, tables, NULL, &x));
    CHECK_OK(hotbed_external_insert(x, 1, 1, &key, rows, scores));
    hotbed_external_destroy(x);
    rocksdb_options_t *options = rocksdb_options_create();
    char *error = NULL;
    rocksdb_t *db = rocksdb_open(options, path, &error);
    CHECK(error == NULL);
    uint8_t format[4], record[24], value[24 + BYTES], padded[48] = {0};
    get(db, "hotbed", 6, format, 4);
    CHECK_EQ(number(format, 4), 1);
    get(db, "tone", 4, record, 24);
    CHECK_EQ(number(record, 4), 1);
    CHECK_EQ(number(record + 4, 4), 1);
    CHECK_EQ(number(record + 8, 8), BYTES);
    uint64_t check = number(record, 8) ^ hash(BYTES), name = 0;
    for (int i = 0; i < 3; i++) {
        check = hash(check ^ (uint64_t) "one"[i]);
        name = hash(name ^ (uint64_t) "one"[i]);
    }
    CHECK_EQ(number(record + 16, 8), check);
    get(db, "r\0\0\0\1\1\2\3\4\5\6\7\10", 13, value, sizeof value);
    CHECK_EQ(number(value, 8), scores[0]);
    CHECK_BYTES(value + 24, rows, BYTES);
    memcpy(padded, rows, BYTES);
    uint64_t sums[4] = {name, hash(key), scores[0], number(value + 8, 8)}, sum = hash(BYTES);
    for (size_t i = 0; i < 6; i++)
        sums[i % 4] = step(sums[i % 4], number(padded + 8 * i, 8));
    for (int l = 0; l < 4; l++)
        sum = hash(step(sum, sums[l]));
    CHECK_EQ(number(value + 16, 8), sum);
    rocksdb_close(db);
    rocksdb_options_destroy(options);
}

/* More rows than fit into the write buffer: some are in the buffer, some in files, some in merged files. */
static void tables_may_be_larger_than_the_buffers(hotbed_backend backend) {
    char path[PATH_BYTES];
    path_of(path, "small");
    random_rows();
    hotbed_external_table one = {"one", ROW};
    hotbed_rocksdb_options options = {.size = sizeof options};
    options.buffer_bytes = (uint64_t)64 << 10;
    options.cache_bytes = (uint64_t)16 << 10;
    hotbed_external *x = NULL;
    CHECK_OK(open_tables(path, 1, &one, &options, &x));
    for (int i = 0; i < 12; i++) {
        for (size_t k = 0; k < sizeof rows; k++)
            rows[k] = (uint8_t)hotbed_test_random();
        CHECK_OK(hotbed_external_insert(x, 0, N, keys, rows, scores));
        check_rows(x, 0, N);
    }
    CHECK_OK(hotbed_external_erase(x, 0, N / 2, keys + N / 2, found));
    check_rows(x, 0, N / 2);
    hotbed_external_destroy(x);
    CHECK_OK(open_tables(path, 1, &one, &options, &x));
    check_rows(x, 0, N / 2);
    hotbed_external_destroy(x);
}

/* Insert rows again and again while files have at most `most` bytes. Returns how many inserts failed. */
static int fill_up(hotbed_external *x, rlim_t most) {
    struct rlimit before, small;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    int failures = 0;
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){.rlim_cur = most, .rlim_max = before.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < 20; i++) {
        const hotbed_status status =
            hotbed_external_insert(x, 0, N / 2, keys + N / 2, rows, scores);
        CHECK(status == HOTBED_OK || status == HOTBED_ERR_IO);
        failures += status != HOTBED_OK;
    }
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    return failures;
}

/* When a disk has space again, a store that is open can be written again. */
static void writes_go_on_after_a_full_disk(hotbed_backend backend) {
    char path[PATH_BYTES];
    hotbed_external *x = NULL;
    hotbed_external_cursor *cursor = NULL;
    uint64_t read = 0, n = 0;
    path_of(path, "full");
    random_rows();
    CHECK_OK(open_one(path, ROW, &x));
    CHECK_OK(hotbed_external_insert(x, 0, N, keys, rows, scores));
    CHECK_OK(hotbed_external_cursor_create(x, 0, &cursor));
    CHECK_OK(hotbed_external_cursor_next(cursor, N / 4, keys_back, rows_back, NULL, &read));
    const int some = fill_up(x, (rlim_t)40 << 10);
    CHECK(some > 0 && some < 20);
    CHECK_OK(hotbed_external_flush(x));
    CHECK_EQ(fill_up(x, (rlim_t)10 << 10), 20);
    CHECK_OK(hotbed_external_insert(x, 0, N / 2, keys + N / 2, rows + N / 2 * ROW, scores + N / 2));
    check_rows(x, 0, N);
    do { /* a cursor goes on in the database that was opened again */
        CHECK_OK(hotbed_external_cursor_next(cursor, 7, keys_back, rows_back, NULL, &n));
        read += n;
    } while (n > 0);
    CHECK_EQ(read, N);
    hotbed_external_cursor_destroy(cursor);
    hotbed_external_destroy(x);
}

const hotbed_test hotbed_tests[] = {
    {TEST(rows_persist_after_the_store_is_closed)},
    {TEST(rows_are_in_the_order_of_their_keys)},
    {TEST(rows_of_another_size_are_refused)},
    {TEST(a_database_has_one_owner_and_a_valid_path)},
    {TEST(databases_of_other_programs_are_refused)},
    {TEST(foreign_rows_are_not_served)},
    {TEST(a_truncated_batch_is_dropped_whole)},
    {TEST(a_damaged_log_is_an_error)},
    {TEST(a_damaged_table_file_is_an_error)},
    {TEST(a_database_has_the_documented_format)},
    {TEST(tables_may_be_larger_than_the_buffers)},
    {TEST(writes_go_on_after_a_full_disk)},
    {NULL, NULL},
};
