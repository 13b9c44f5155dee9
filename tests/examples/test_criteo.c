/* tests/examples/test_criteo.c - parsing of one line: keys, empty fields, and what is malformed. */
#include "examples/train/criteo.h"
#include "tests/support/harness.h"

#include <stdio.h>
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
    (void)backend;
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
    (void)backend;
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
    CHECK(hotbed_criteo_parse(line, 40, keys, 1, &label, &fault)); /* all are empty */
    CHECK_EQ(keys[38], HOTBED_CRITEO_MISSING);
}

static void ignores_a_carriage_return(hotbed_backend backend) {
    (void)backend;
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

static void names_the_column_of_a_fault(hotbed_backend backend) {
    (void)backend;
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
    (void)backend;
    char line[LINE];
    int64_t keys[HOTBED_CRITEO_FIELDS];
    float label;
    hotbed_criteo_fault fault;
    size_t length = make_line(line, 0, "");
    uint32_t column = 1;
    for (size_t i = 0; i < length; i++) { /* every way to cut the line at a tab */
        if (line[i] != '\t')
            continue;
        CHECK(!hotbed_criteo_parse(line, i, keys, 1, &label, &fault));
        CHECK_EQ(fault.column, column);
        column++;
    }
    CHECK_EQ(column, 40);
    CHECK(!hotbed_criteo_parse(line, 0, keys, 1, &label, &fault));
    CHECK_EQ(fault.column, 1);
    line[length] = '\t';
    CHECK(!hotbed_criteo_parse(line, length + 1, keys, 1, &label, &fault));
    CHECK_EQ(fault.column, 41);
}

static void random_bytes_never_crash(hotbed_backend backend) {
    (void)backend;
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
            CHECK(fault.column >= 1 && fault.column <= 41);
    }
}

static void buckets_keep_the_order_and_are_few(hotbed_backend backend) {
    (void)backend;
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
    (void)backend;
    CHECK_STRING(hotbed_criteo_field_name(0), "i01");
    CHECK_STRING(hotbed_criteo_field_name(12), "i13");
    CHECK_STRING(hotbed_criteo_field_name(13), "c01");
    CHECK_STRING(hotbed_criteo_field_name(38), "c26");
}

const hotbed_test hotbed_tests[] = {
    {"reads_label_and_keys", reads_label_and_keys},
    {"empty_fields_have_a_key_of_their_own", empty_fields_have_a_key_of_their_own},
    {"ignores_a_carriage_return", ignores_a_carriage_return},
    {"names_the_column_of_a_fault", names_the_column_of_a_fault},
    {"refuses_too_few_and_too_many_columns", refuses_too_few_and_too_many_columns},
    {"random_bytes_never_crash", random_bytes_never_crash},
    {"buckets_keep_the_order_and_are_few", buckets_keep_the_order_and_are_few},
    {"field_names_follow_the_file", field_names_follow_the_file},
    {NULL, NULL},
};
