/* tests/base/test_text.c - text in a locale with a decimal comma, and control characters. */
#include "base/text.h"

#include "base/error.h"
#include "base/fault_text.h"
#include "tests/support/comma.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <string.h>

static void numbers_have_a_point_in_every_locale(hotbed_backend backend) {
    const char *missing = comma_begin();
    if (missing != NULL)
        SKIP(missing);
    char text[64], *end;
    CHECK_EQ(hotbed_format(text, sizeof text, "%g %.2f %s", 0.25, 1e3, "x"), 14);
    CHECK_STRING(text, "0.25 1000.00 x");
    CHECK(hotbed_parse_number("0.25,1", &end) == 0.25);
    CHECK_STRING(end, ",1");
    CHECK_STATUS(hotbed_fail(HOTBED_ERR_ARGUMENT, "rate %g", 0.5), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "rate 0.5");
    (void)snprintf(text, sizeof text, "%g", 0.5); /* the caller's locale is as before */
    CHECK_STRING(text, "0,5");
    comma_end();
}

static void control_characters_are_escaped(hotbed_backend backend) {
    static const char *const cases[][2] = {
        {"", ""},
        {"user 7", "user 7"},
        {"a\nb", "a\\x0ab"},
        {"\x1b[2J\x7f\r", "\\x1b[2J\\x7f\\x0d"},
        {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"}, /* UTF-8 */
        {"\xc2\x9b"
         "31m",
         "\\x9b31m"}, /* U+009B begins a sequence as ESC [ does */
        {"\xc2\xa0\xc2", "\xc2\xa0\xc2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "%s", cases[i][0]);
        hotbed_escape(text, sizeof text);
        CHECK_STRING(text, cases[i][1]);
    }
    /* At each capacity the text is a beginning of the whole one, without a part of an escape. */
    for (size_t capacity = 4; capacity < 16; capacity++) {
        char text[16] = "a\nb\n", *longer = "a\\x0ab\\x0a";
        CHECK(capacity > strlen(text) || capacity == 4);
        text[capacity - 1] = '\0';
        hotbed_escape(text, capacity);
        CHECK(strlen(text) < capacity);
        CHECK(strncmp(text, longer, strlen(text)) == 0);
        CHECK(text[0] == 'a' && strchr(text, '\n') == NULL);
    }
    (void)hotbed_fail(HOTBED_ERR_ARGUMENT, "table %s", "a\x1b[2Jb");
    CHECK_STRING(hotbed_last_error(), "table a\\x1b[2Jb");
}

/* Messages have a key as its caller wrote it. */
static void keys_have_their_own_sign(hotbed_backend backend) {
    static const struct {
        hotbed_key_type type;
        uint64_t key;
        const char *text;
    } cases[] = {
        {HOTBED_KEY_I64, UINT64_MAX, "-1"},
        {HOTBED_KEY_I64, 7, "7"},
        {HOTBED_KEY_U64, UINT64_MAX, "18446744073709551615"},
        {(hotbed_key_type)0, 7, "7"},
        {(hotbed_key_type)0, UINT64_MAX - 1, "18446744073709551614 (as int64 -2)"},
        {(hotbed_key_type)0, UINT64_C(1) << 63,
         "9223372036854775808 (as int64 -9223372036854775808)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char expected[128];
        hotbed_error error;
        CHECK_STRING(hotbed_key_text(cases[i].key, cases[i].type).text, cases[i].text);
        hotbed_table_names *names = hotbed_table_names_create("user", 1, 0, cases[i].type);
        hotbed_fault_sources sources = {.num = 0};
        hotbed_fault_sources_add(&sources, names, false);
        const hotbed_fault fault = {
            .what = HOTBED_CAUSE_TABLE_FULL, .key = cases[i].key, .bound = 64};
        hotbed_fault_describe(fault, &sources, &error);
        (void)snprintf(
            expected, sizeof expected,
            "table user is full: no slot for key %s, the table has 64 slots", cases[i].text);
        CHECK_STRING(error.text, expected);
        CHECK_EQ(error.fields.key, cases[i].key);
        CHECK_EQ(error.fields.key_type, cases[i].type);
        CHECK_STRING(error.fields.table, "user");
        hotbed_fault_sources_clear(&sources);
        hotbed_table_names_release(names);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(numbers_have_a_point_in_every_locale)},
    {TEST(control_characters_are_escaped)},
    {TEST(keys_have_their_own_sign)},
    {NULL, NULL},
};
