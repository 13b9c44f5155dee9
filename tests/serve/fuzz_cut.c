/* tests/serve/fuzz_cut.c - libFuzzer entry: reads any bytes as the files of a cut, and looks up keys in them.
 *
 * The input is the length of the cut's file, in 4 bytes, that file, and the rows file of rank 0. It is read as it
 * is, and again with correct digests, which a fuzzer does not find. Configure with clang, -DHOTBED_FUZZ=ON and a
 * sanitizer; test_fuzz_cut replays tests/serve/corpus in every build. */
#include "serve/lookup.h"
#include "tests/serve/served.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes); /* NOLINT: libFuzzer's name */

/* Bytes at an address of their own, so that ASan sees reads beyond them. */
typedef struct file {
    unsigned char *data;
    uint64_t bytes;
} file;

static file copy(const uint8_t *data, uint64_t bytes) {
    file f = {.data = aligned_alloc(64, (bytes + 64) / 64 * 64), .bytes = bytes};
    if (f.data == NULL)
        abort();
    memcpy(f.data, data, bytes);
    return f;
}

static void find(
    const void *version, uint32_t table, uint32_t n, const uint64_t *keys,
    const unsigned char **rows) {
    hotbed_version_find(version, table, n, keys, rows);
}

/* Read the states of the row of a key of the file, as hotbed_reader_fill() does. */
static void read_states(
    const hotbed_version *v, const hotbed_cut_table *table, uint32_t t, uint64_t key) {
    const unsigned char *row = NULL;
    uint32_t at = hotbed_cut_states_at(table);
    volatile float sum = 0;
    hotbed_version_find(v, t, 1, &key, &row);
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t e = 0; e < hotbed_cut_state_dim(table, s); e++, at += sizeof(float)) {
            float value;
            memcpy(&value, row + at, sizeof value);
            sum = sum + value;
        }
}

/* Look up keys of the file and others, in each table. */
static void look_up(const hotbed_version *v, const hotbed_cut *cut, const hotbed_rows_file *rows) {
    const hotbed_lookup_source source = {v->tables, v->num_tables, v, find};
    for (uint32_t t = 0; t < cut->head->tables && t < 8; t++) {
        float out[4 * HOTBED_CUT_DIM_MOST];
        uint64_t keys[4] = {0, UINT64_MAX, 12345, 7};
        if (rows->tables[t].rows > 0)
            memcpy(keys, hotbed_rows_column_of(rows, t, HOTBED_ROWS_KEYS), sizeof *keys);
        hotbed_lookup lookup = {.table = t, .num_keys = 4, .keys = keys, .output = out};
        if (hotbed_lookup_check(&source, &lookup) != HOTBED_OK)
            abort();
        uint64_t missing = hotbed_lookup_answer(&source, &lookup);
        if (rows->tables[t].rows > 0 && missing == 4)
            abort(); /* the first key of the file is there */
        if (rows->tables[t].rows > 0)
            read_states(v, &cut->tables[t], t, keys[0]);
    }
}

static void read_files(file cut_file, file rows_file) {
    hotbed_cut cut;
    hotbed_rows_file rows;
    uint64_t number = 1;
    if (cut_file.bytes >= sizeof(hotbed_cut_head))
        number = ((const hotbed_cut_head *)(const void *)cut_file.data)->number;
    if (hotbed_cut_parse("cut", number, cut_file.data, cut_file.bytes, &cut) != HOTBED_OK ||
        hotbed_rows_parse("rows", &cut, 0, rows_file.data, rows_file.bytes, &rows) != HOTBED_OK ||
        hotbed_rows_verify("rows", &cut, 0, &rows) != HOTBED_OK || cut.head->world != 1)
        return;
    hotbed_map map = {.data = NULL};
    hotbed_files files = {.users = 2, .cut = cut, .maps = &map, .rows = &rows};
    hotbed_version *v = NULL, *after = NULL;
    if (hotbed_version_of_base(&files, &v) != HOTBED_OK)
        return;
    look_up(v, &cut, &rows);
    /* the same rows again, as the increment after them */
    hotbed_cut_head head = *cut.head;
    head.parent = head.number, head.before = cut.digest, head.number++;
    hotbed_cut next = {.head = &head, .tables = cut.tables, .digest = cut.digest};
    hotbed_files more = {.users = 2, .cut = next, .maps = &map, .rows = &rows};
    if (hotbed_version_after(v, &more, &after) == HOTBED_OK)
        look_up(after, &cut, &rows);
    hotbed_version_free(after);
    hotbed_version_free(v);
}

/* Set all digests that lie inside of the files. */
static void sign(file cut, file rows) {
    hotbed_cut_head *head = (void *)cut.data;
    if (cut.bytes < hotbed_cut_bytes(1, 1))
        return;
    uint64_t tables = head->tables;
    uint64_t front = hotbed_rows_front_bytes(head->tables);
    if (tables <= HOTBED_CUT_TABLES_MOST && rows.bytes >= front) {
        hotbed_rows_head *rows_head = (void *)rows.data;
        hotbed_rows_table *table = (void *)(rows_head + 1);
        for (uint64_t t = 0; t < tables; t++)
            for (uint32_t c = 0; c < HOTBED_ROWS_COLUMNS; c++) {
                uint64_t at = table[t].offsets[c];
                if (table[t].rows > rows.bytes || table[t].bits > 24)
                    continue;
                uint64_t n = hotbed_rows_column_bytes(&table[t], c);
                if (at <= rows.bytes && n <= rows.bytes - at)
                    table[t].digests[c] = hotbed_digest_of(rows.data + at, n);
            }
        hotbed_digest digest = hotbed_digest_of(rows.data, front - sizeof digest);
        memcpy(rows.data + front - sizeof digest, &digest, sizeof digest);
        uint64_t part = sizeof *head + tables * sizeof(hotbed_cut_table);
        if (cut.bytes >= part + sizeof(hotbed_cut_part)) {
            hotbed_cut_part value = {.bytes = rows.bytes, .digest = digest};
            memcpy(cut.data + part, &value, sizeof value);
        }
    }
    hotbed_digest end = hotbed_digest_of(cut.data, cut.bytes - sizeof end);
    memcpy(cut.data + cut.bytes - sizeof end, &end, sizeof end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) { /* NOLINT: libFuzzer's name */
    uint32_t length = 0;
    if (bytes < sizeof length)
        return 0;
    memcpy(&length, data, sizeof length);
    data += sizeof length, bytes -= sizeof length;
    length = length <= bytes ? length : (uint32_t)bytes;
    file cut = copy(data, length), rows = copy(data + length, bytes - length);
    read_files(cut, rows);
    sign(cut, rows);
    read_files(cut, rows);
    free(cut.data);
    free(rows.data);
    return 0;
}
