/* tests/examples/test_criteo.c - parsing one line of a Criteo log: keys, empty fields, malformed lines. */
#include "examples/train/criteo.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 2048 };

/* A line of 40 columns: integers 1 .. 13, categories 00000001 .. 0000001a; column `column` is `text`. */
static size_t make_line(char *line, uint32_t column, const char *text) {
    size_t used = 0;
    for (uint32_t c = 1; c <= HOTBED_CRITEO_COLUMNS; c++) {
        char normal[16] = "1";
        if (c > 14)
            snprintf(normal, sizeof normal, "%08x", c - 14);
        else if (c > 1)
            snprintf(normal, sizeof normal, "%u", c - 1);
        used += (size_t)snprintf(
            line + used, LINE - used, "%s%s", c > 1 ? "\t" : "", c == column ? text : normal);
    }
    return used;
}

static void reads_label_and_keys(hotbed_backend backend) {
    char line[LINE];
    int64_t keys[HOTBED_CRITEO_FIELDS * 3];
    float label = -1;
    hotbed_criteo_fault fault;
    size_t length = make_line(line, 0, "");
    CHECK(hotbed_criteo_parse(line, length, keys, 3, &label, &fault));
    CHECK_NEAR(label, 1, 0);
    for (uint32_t f = 0; f < HOTBED_CRITEO_INTEGERS; f++)
        CHECK_EQ(keys[f * 3], hotbed_criteo_bucket((int64_t)f + 1));
    for (uint32_t f = HOTBED_CRITEO_INTEGERS; f < HOTBED_CRITEO_FIELDS; f++)
        CHECK_EQ(keys[f * 3], f - HOTBED_CRITEO_INTEGERS + 1);
    length = make_line(line, 1, "0");
    CHECK(hotbed_criteo_parse(line, length, keys, 1, &label, &fault));
    CHECK_NEAR(label, 0, 0);
    length = make_line(line, 20, "FFffFffF");
    CHECK(hotbed_criteo_parse(line, length, keys, 1, &label, &fault));
    CHECK_EQ(keys[18], 0xffffffff);
}

static void empty_fields_have_a_key_of_their_own(hotbed_backend backend) {
    char line[LINE];
    int64_t keys[HOTBED_CRITEO_FIELDS];
    float label;
    hotbed_criteo_fault fault;
    for (uint32_t column = 2; column <= HOTBED_CRITEO_COLUMNS; column++) {
        size_t length = make_line(line, column, "");
        CHECK(hotbed_criteo_parse(line, length, keys, 1, &label, &fault));
        for (uint32_t f = 0; f < HOTBED_CRITEO_FIELDS; f++)
            CHECK_EQ(keys[f] == HOTBED_CRITEO_MISSING, f == column - 2);
    }
    memset(line, '\t', 40);
    line[0] = '0';
    line[1] = '\t';
    CHECK(hotbed_criteo_parse(line, 40, keys, 1, &label, &fault)); /* all fields are empty */
    CHECK_EQ(keys[38], HOTBED_CRITEO_MISSING);
}

static void ignores_a_carriage_return(hotbed_backend backend) {
    char line[LINE];
    int64_t keys[HOTBED_CRITEO_FIELDS];
    float label;
    hotbed_criteo_fault fault;
    size_t length = make_line(line, 40, "0000001a\r");
    CHECK(hotbed_criteo_parse(line, length, keys, 1, &label, &fault));
    CHECK_EQ(keys[38], 0x1a);
    length = make_line(line, 40, "\r");
    CHECK(hotbed_criteo_parse(line, length, keys, 1, &label, &fault));
    CHECK_EQ(keys[38], HOTBED_CRITEO_MISSING);
    length = make_line(line, 39, "\r");
    CHECK(!hotbed_criteo_parse(line, length, keys, 1, &label, &fault));
    CHECK_EQ(fault.column, 39);
}

static void takes_every_64_bit_integer(hotbed_backend backend) {
    static const char *const integers[] = {
        "-9223372036854775808", "9223372036854775807", "-0", "0"};
    const int64_t values[] = {INT64_MIN, INT64_MAX, 0, 0};
    char line[LINE];
    int64_t keys[HOTBED_CRITEO_FIELDS];
    float label;
    hotbed_criteo_fault fault;
    for (size_t i = 0; i < 4; i++) {
        size_t length = make_line(line, 2, integers[i]);
        CHECK(hotbed_criteo_parse(line, length, keys, 1, &label, &fault));
        CHECK_EQ(keys[0], hotbed_criteo_bucket(values[i]));
    }
}

static void a_fault_names_its_column(hotbed_backend backend) {
    static const char *const integers[] = {
        "x",
        "-",
        "1.5",
        " 1",
        "1 ",
        "+1",
        "9223372036854775808",
        "-9223372036854775809",
        "99999999999999999999999",
        "0x10",
        "\x01"};
    static const char *const categories[] = {"1",        "0000001",  "000000001", "0000000g",
                                             "-0000001", "0x000001", "        "};
    static const char *const labels[] = {"", "2", "-1", "1.0", "01", "x"};
    char line[LINE];
    int64_t keys[HOTBED_CRITEO_FIELDS];
    float label;
    hotbed_criteo_fault fault;
    for (uint32_t column = 1; column <= HOTBED_CRITEO_COLUMNS; column++) {
        const char *const *texts = column == 1 ? labels : column <= 14 ? integers : categories;
        size_t num = column == 1    ? sizeof labels / sizeof *labels
                     : column <= 14 ? sizeof integers / sizeof *integers
                                    : sizeof categories / sizeof *categories;
        for (size_t i = 0; i < num; i++) {
            size_t length = make_line(line, column, texts[i]);
            CHECK(!hotbed_criteo_parse(line, length, keys, 1, &label, &fault));
            CHECK_EQ(fault.column, column);
            CHECK(fault.text[0] != '\0');
        }
    }
}

static void refuses_too_few_and_too_many_columns(hotbed_backend backend) {
    char line[LINE];
    int64_t keys[HOTBED_CRITEO_FIELDS];
    float label;
    hotbed_criteo_fault fault;
    size_t length = make_line(line, 0, "");
    uint32_t column = 1;
    for (size_t i = 0; i < length; i++) { /* cut the line at each tab */
        if (line[i] != '\t')
            continue;
        CHECK(!hotbed_criteo_parse(line, i, keys, 1, &label, &fault));
        column++;
        CHECK_EQ(fault.column, column); /* the first that is missing */
    }
    CHECK_EQ(column, 40);
    CHECK(!hotbed_criteo_parse(line, 0, keys, 1, &label, &fault));
    CHECK_EQ(fault.column, 1);
    line[length] = '\t';
    CHECK(!hotbed_criteo_parse(line, length + 1, keys, 1, &label, &fault));
    CHECK_EQ(fault.column, 0); /* the line, not one of its fields */
}

static void random_bytes_never_crash(hotbed_backend backend) {
    static const char some[] = "01\t\t\t-9af\r\n x";
    char line[LINE];
    int64_t keys[HOTBED_CRITEO_FIELDS];
    float label;
    hotbed_criteo_fault fault;
    for (int round = 0; round < 20000; round++) {
        size_t length = hotbed_test_below(200);
        for (size_t i = 0; i < length; i++)
            line[i] = some[hotbed_test_below(sizeof some)];
        if (!hotbed_criteo_parse(line, length, keys, 1, &label, &fault))
            CHECK(fault.column <= 40);
    }
}

/* Text of a random field: ordinary, at a limit, or malformed. */
static void make_field(char *out, uint32_t column) {
    static const char *const odd[] = {
        "-0",
        "-",
        "007",
        "00000000000000000000012",
        "9223372036854775807",
        "-9223372036854775808",
        "1.5",
        "9999999",
        "-999999",
        "12345678",
        "99999999999999999999",
        "-12345678",
        "--1",
        "1-",
        "0000000g",
        "0000000G",
        "ABCDEFab",
        "\xb0\xb1",
        " 1",
        "0x00000a",
        "12345678\r",
        "/0000000",
        ":0000000",
        "@0000000",
        "\r",
        "`0000000",
        "1234567",
        "1234567890",
        "\x81",
        "{{{{{{{{"};
    unsigned kind = (unsigned)hotbed_test_below(40);
    if (kind == 0)
        snprintf(out, 32, "%s", odd[hotbed_test_below(sizeof odd / sizeof *odd)]);
    else if (kind < 8 && column > 1)
        out[0] = '\0';
    else if (column == 1)
        snprintf(out, 32, "%u", (unsigned)hotbed_test_below(2));
    else if (column > 14)
        snprintf(
            out, 32, hotbed_test_below(2) == 0 ? "%08x" : "%08X", (uint32_t)hotbed_test_random());
    else
        snprintf(
            out, 32, "%lld", (long long)((int64_t)hotbed_test_random() >> hotbed_test_below(64)));
}

static size_t make_random_line(char *line) {
    size_t length = 0;
    uint32_t columns = HOTBED_CRITEO_COLUMNS;
    if (hotbed_test_below(20) == 0)
        columns = (uint32_t)hotbed_test_below(50);
    for (uint32_t c = 1; c <= columns; c++) {
        char field[32];
        make_field(field, c);
        length += (size_t)snprintf(line + length, LINE - length, "%s%s", c > 1 ? "\t" : "", field);
    }
    for (uint64_t damage = hotbed_test_below(40); damage < 3 && length > 0; damage++)
        line[hotbed_test_below(length)] = (char)hotbed_test_random();
    for (size_t i = 0; i < length; i++)
        if (line[i] == '\n')
            line[i] = '0';
    if (hotbed_test_below(4) == 0)
        line[length++] = '\r';
    return length;
}

/* The fast parser agrees with the slow one.  The line is allocated by itself, so that ASan reports
 * each byte read past it, and random bytes follow it. */
static void the_fast_parser_equals_the_slow_one(hotbed_backend backend) {
    char line[LINE];
    int64_t keys[HOTBED_CRITEO_FIELDS], scanned[HOTBED_CRITEO_FIELDS];
    float label = 0, scanned_label = 0;
    hotbed_criteo_fault fault;
    uint32_t accepted = 0, fallen_back = 0;
    for (int round = 0; round < 20000; round++) {
        size_t length = make_random_line(line);
        char *text = malloc(length + 1 + HOTBED_CRITEO_PADDING);
        CHECK(text != NULL);
        memcpy(text, line, length);
        text[length] = '\n';
        for (int i = 1; i <= HOTBED_CRITEO_PADDING; i++)
            text[length + (size_t)i] = "0\t-a\n\r"[hotbed_test_below(6)];
        bool good = hotbed_criteo_parse(line, length, keys, 1, &label, &fault);
        const char *next = hotbed_criteo_scan(text, scanned, 1, &scanned_label);
        CHECK(next == NULL || good);
        if (next != NULL) {
            CHECK_EQ(next - text, length + 1);
            CHECK_BYTES(scanned, keys, sizeof keys);
            CHECK_NEAR(scanned_label, label, 0);
            accepted++;
        } else if (good) {
            fallen_back++;
        }
        free(text);
    }
    CHECK(accepted > 2000);
    CHECK(fallen_back * 50 < accepted); /* more would make the fast parser slow */
}

static void buckets_keep_the_order_and_are_few(hotbed_backend backend) {
    for (int64_t v = 0; v < 8; v++)
        CHECK_EQ(hotbed_criteo_bucket(v), v);
    int64_t last = hotbed_criteo_bucket(-100000);
    for (int64_t v = -100000; v < 100000; v++) {
        int64_t bucket = hotbed_criteo_bucket(v);
        CHECK(bucket == last || bucket == last + 1);
        last = bucket;
    }
    int64_t range = hotbed_criteo_bucket(INT64_MAX) - hotbed_criteo_bucket(INT64_MIN) + 1;
    CHECK(range > 0 && range < HOTBED_CRITEO_BUCKETS);
}

static void field_names_follow_the_file(hotbed_backend backend) {
    CHECK_STRING(hotbed_criteo_field_name(0), "i01");
    CHECK_STRING(hotbed_criteo_field_name(12), "i13");
    CHECK_STRING(hotbed_criteo_field_name(13), "c01");
    CHECK_STRING(hotbed_criteo_field_name(38), "c26");
}

const hotbed_test hotbed_tests[] = {
    {TEST(reads_label_and_keys)},
    {TEST(empty_fields_have_a_key_of_their_own)},
    {TEST(ignores_a_carriage_return)},
    {TEST(takes_every_64_bit_integer)},
    {TEST(a_fault_names_its_column)},
    {TEST(refuses_too_few_and_too_many_columns)},
    {TEST(random_bytes_never_crash)},
    {TEST(the_fast_parser_equals_the_slow_one)},
    {TEST(buckets_keep_the_order_and_are_few)},
    {TEST(field_names_follow_the_file)},
    {NULL, NULL},
};
