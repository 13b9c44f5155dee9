/* tests/storage/test_external_faults.c - external stores that fail, lose rows, or return damaged ones.
 *
 * tests/support/bad_store.h misbehaves in a chosen call.  Each test checks the error, and that the store's contents
 * then equal the model (tests/storage/store_fixture.h) or that the store refuses all further calls.
 */
#include "hotbed/external.h"

#include "tests/storage/store_fixture.h"
#include "tests/support/bad_store.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <string.h>

/* --- stores that fail ------------------------------------------------------------------------ */

static void an_open_that_fails_leaves_nothing(hotbed_backend backend) {
    hotbed_external_options o = store_fixture_options();
    hotbed_external *x = NULL;
    bad_store bad;
    bad_store_start(&bad);
    bad_store_next(&bad, BAD_FAIL, 1);
    CHECK_STATUS(hotbed_external_create(&o, &bad_store_calls, &bad, &x), HOTBED_ERR_IO);
    CHECK(x == NULL && store_error_has("store bad: open failed: open fails on request"));
    bad.way = BAD_NOT; /* the test still owns the plug-in */
    CHECK_OK(hotbed_external_create(&o, &bad_store_calls, &bad, &x));
    hotbed_external_destroy(x);
    bad_store_end(&bad);
}

/* The caller may change or free the struct of calls and its name once the store exists. */
static void the_name_of_the_plug_in_is_copied(hotbed_backend backend) {
    hotbed_external_options o = store_fixture_options();
    hotbed_external_calls calls = bad_store_calls;
    hotbed_external *x = NULL;
    char name[] = "mine";
    uint64_t key = 1;
    uint8_t found;
    bad_store bad;
    bad_store_start(&bad);
    calls.name = name;
    CHECK_OK(hotbed_external_create(&o, &calls, &bad, &x));
    memset(name, 'x', sizeof name - 1);
    memset(&calls, 0, sizeof calls);
    bad_store_next(&bad, BAD_FAIL, 1);
    CHECK_STATUS(hotbed_external_find(x, 0, 1, &key, &found, NULL, NULL), HOTBED_ERR_IO);
    CHECK(store_error_has("store mine: find"));
    hotbed_external_destroy(x);
    bad_store_end(&bad);
}

/* Make a fixed sequence of calls; repeat a call that fails.  Returns the number of failures. */
static uint64_t run_script(store_fixture *b) {
    uint64_t failures = 0, size = 0;
    for (int i = 0; i < 6; i++) {
        uint32_t t = (uint32_t)i % STORE_TABLES;
        store_fixture_random_batch(b, t, 30);
        if (store_fixture_insert_batch(b, t) != HOTBED_OK) {
            failures++;
            CHECK(store_error_has("fails on request"));
            store_fixture_check(b); /* the failed insert has written nothing */
            store_fixture_random_batch(b, t, 30);
            CHECK_OK(store_fixture_insert_batch(b, t));
        }
        store_fixture_model_insert(b, t);
        store_fixture_random_batch(b, t, 10);
        if (hotbed_external_erase(b->external, t, 10, b->keys, b->found) != HOTBED_OK) {
            failures++;
            for (int k = 0; k < 10; k++)
                CHECK_EQ(b->found[k], HOTBED_EXTERNAL_UNKNOWN);
        } else {
            for (int k = 0; k < 10; k++)
                b->model[t].there[store_fixture_index(b->keys[k])] = false;
        }
        if (hotbed_external_find(b->external, t, 10, b->keys, b->found, b->rows, NULL) !=
            HOTBED_OK) {
            failures++;
            for (int k = 0; k < 10; k++)
                CHECK_EQ(b->found[k], HOTBED_EXTERNAL_UNKNOWN);
        }
    }
    failures += hotbed_external_flush(b->external) != HOTBED_OK;
    failures += hotbed_external_size(b->external, 0, &size) != HOTBED_OK;
    return failures;
}

static void a_store_may_fail_at_any_call(hotbed_backend backend) {
    static const hotbed_status statuses[] = {
        HOTBED_ERR_IO, HOTBED_ERR_MEMORY, HOTBED_ERR_FULL, HOTBED_ERR_CORRUPT};
    for (uint64_t n = 1;; n++) {
        store_fixture *b = store_fixture_open(STORE_BAD);
        b->bad.way = BAD_FAIL;
        b->bad.from = b->bad.to = n;
        b->bad.status = statuses[n % 4];
        uint64_t failures = run_script(b);
        bool done = b->bad.calls < n;
        CHECK_EQ(failures, done ? 0 : 1);
        b->bad.way = BAD_NOT;
        store_fixture_check(b);
        char text[256];
        CHECK_EQ(
            hotbed_external_failure(b->external, text, sizeof text),
            done ? HOTBED_OK : b->bad.status);
        CHECK(done ? text[0] == 0 : strstr(text, "fails on request") != NULL);
        store_fixture_close(b);
        if (done)
            break;
    }
}

static void an_export_can_go_on_after_a_failure(hotbed_backend backend) {
    store_fixture *b = store_fixture_open(STORE_BAD);
    store_fixture_insert(b, 0, 40);
    hotbed_external_cursor *cursor = NULL;
    uint64_t n = 9, total = 0;
    bad_store_next(&b->bad, BAD_FAIL, 1);
    CHECK_STATUS(hotbed_external_cursor_create(b->external, 0, &cursor), HOTBED_ERR_IO);
    CHECK(cursor == NULL);
    CHECK_OK(hotbed_external_cursor_create(b->external, 0, &cursor));
    do {
        bad_store_next(&b->bad, BAD_FAIL, 1);
        CHECK_STATUS(
            hotbed_external_cursor_next(cursor, 7, b->keys, b->rows, NULL, &n), HOTBED_ERR_IO);
        CHECK_EQ(n, 0);
        CHECK_OK(hotbed_external_cursor_next(cursor, 7, b->keys, b->rows, NULL, &n));
        total += n;
    } while (n > 0);
    CHECK_EQ(total, 40);
    hotbed_external_cursor_destroy(cursor);
    store_fixture_close(b);
}

/* --- stores that violate the contract --------------------------------------------------------- */

static void check_broken(store_fixture *b) {
    uint64_t size = 0;
    hotbed_external_cursor *cursor = NULL;
    const hotbed_status bad = HOTBED_ERR_CORRUPT;
    uint64_t calls = b->bad.calls;
    CHECK_STATUS(
        hotbed_external_find(b->external, 1, 1, b->keys, b->found, b->rows, b->scores), bad);
    CHECK(store_error_has("is broken"));
    CHECK_EQ(b->found[0], HOTBED_EXTERNAL_UNKNOWN);
    CHECK_STATUS(store_fixture_insert_batch(b, 0), bad);
    CHECK_STATUS(hotbed_external_erase(b->external, 0, 1, b->keys, NULL), bad);
    CHECK_STATUS(hotbed_external_flush(b->external), bad);
    CHECK_STATUS(hotbed_external_size(b->external, 0, &size), bad);
    CHECK_STATUS(hotbed_external_cursor_create(b->external, 0, &cursor), bad);
    CHECK_EQ(b->bad.calls, calls);
}

static void a_torn_batch_breaks_the_store(hotbed_backend backend) {
    store_fixture *b = store_fixture_open(STORE_BAD);
    store_fixture_insert(b, 0, 50);
    store_fixture_random_batch(b, 0, 10);
    bad_store_next(&b->bad, BAD_TEAR, 1);
    CHECK_STATUS(store_fixture_insert_batch(b, 0), HOTBED_ERR_CORRUPT);
    CHECK(store_error_has("5 of the 10 rows of a batch are in table user"));
    check_broken(b);
    store_fixture_close(b);
}

static void a_failed_insert_that_was_written_is_kept_whole(hotbed_backend backend) {
    store_fixture *b = store_fixture_open(STORE_BAD);
    store_fixture_insert(b, 0, 50);
    store_fixture_random_batch(b, 0, 10);
    bad_store_next(&b->bad, BAD_DONE, 1);
    CHECK_STATUS(store_fixture_insert_batch(b, 0), HOTBED_ERR_IO);
    CHECK(store_error_has("fails on request"));
    store_fixture_model_insert(b, 0); /* all rows were written */
    store_fixture_check(b);
    CHECK_OK(store_fixture_insert_batch(b, 0));
    store_fixture_check(b);
    store_fixture_close(b);
}

/* An insert fails, and reading back its rows, too.  The insert is resolved when the store answers again. */
static void a_failed_insert_is_resolved_when_the_store_is_back(hotbed_backend backend) {
    static const bad_way ways[] = {BAD_FAIL, BAD_DONE, BAD_TEAR};
    for (int w = 0; w < 3; w++) {
        store_fixture *b = store_fixture_open(STORE_BAD);
        store_fixture_insert(b, 0, 50);
        store_fixture_random_batch(b, 0, 10);
        /* The insert misbehaves, and all calls after it fail. */
        bad_store_next(&b->bad, ways[w], 1);
        b->bad.fail_after = b->bad.from;
        CHECK_STATUS(store_fixture_insert_batch(b, 0), HOTBED_ERR_IO);
        for (int i = 0; i < 3; i++) {
            CHECK_STATUS(
                hotbed_external_find(b->external, 1, 1, b->keys, b->found, NULL, NULL),
                HOTBED_ERR_IO);
            CHECK(store_error_has("reading back of 10 rows, table user, failed"));
        }
        b->bad.fail_after = 0;
        if (ways[w] == BAD_TEAR) {
            CHECK_STATUS(hotbed_external_flush(b->external), HOTBED_ERR_CORRUPT);
            check_broken(b);
        } else {
            if (ways[w] == BAD_DONE)
                store_fixture_model_insert(b, 0);
            store_fixture_check(b);
        }
        store_fixture_close(b);
    }
}

static void a_lost_row_is_found_when_writes_are_verified(hotbed_backend backend) {
    hotbed_external_options o = store_fixture_options();
    o.verify_writes = true;
    store_fixture *b = store_fixture_open_with(STORE_BAD, &o);
    store_fixture_insert(b, 0, 50);
    store_fixture_check(b);
    store_fixture_random_batch(b, 0, 10);
    bad_store_next(&b->bad, BAD_LOSE, 1);
    CHECK_STATUS(store_fixture_insert_batch(b, 0), HOTBED_ERR_CORRUPT);
    CHECK(store_error_has("5 of the 10 rows"));
    check_broken(b);
    store_fixture_close(b);
}

static void a_damaged_row_is_never_served(hotbed_backend backend) {
    static const bad_way ways[] = {BAD_BYTE, BAD_SCORE, BAD_OTHER_TABLE};
    static const hotbed_external_table alike[STORE_TABLES] = {
        {"user", STORE_ROW_MOST}, {"item", STORE_ROW_MOST}};
    hotbed_external_options o = store_fixture_options();
    o.tables = alike;
    store_fixture *b = store_fixture_open_with(STORE_BAD, &o);
    store_fixture_random_batch(b, 0, 20);
    CHECK_OK(store_fixture_insert_batch(b, 0));
    CHECK_OK(store_fixture_insert_batch(b, 1)); /* the same rows under the same keys */
    for (int w = 0; w < 3; w++) {
        bad_store_next(&b->bad, ways[w], 1);
        CHECK_STATUS(
            hotbed_external_find(b->external, 0, 20, b->keys, b->found, b->rows, b->scores),
            HOTBED_ERR_CORRUPT);
        CHECK(store_error_has("table user, key ") && store_error_has("the row is damaged"));
        for (int i = 0; i < 20; i++)
            CHECK_EQ(b->found[i], HOTBED_EXTERNAL_UNKNOWN);
        CHECK_OK(hotbed_external_find(b->external, 0, 20, b->keys, b->found, b->rows, NULL));
    }
    bad_store_next(&b->bad, BAD_HALF_ROW, 1);
    CHECK_OK(store_fixture_insert_batch(b, 0)); /* the damage is not noticed yet */
    CHECK_STATUS(
        hotbed_external_find(b->external, 0, 20, b->keys, b->found, b->rows, NULL),
        HOTBED_ERR_CORRUPT);
    CHECK_OK(hotbed_external_find(b->external, 0, 19, b->keys, b->found, b->rows, NULL));
    hotbed_external_cursor *cursor = NULL;
    uint64_t n = 0;
    static const bad_way export_ways[] = {BAD_BYTE, BAD_SCORE, BAD_COUNT};
    for (int w = 0; w < 3; w++) {
        CHECK_OK(hotbed_external_cursor_create(b->external, 1, &cursor));
        bad_store_next(&b->bad, export_ways[w], 1);
        for (int again = 0; again < 2; again++) { /* an export does not skip the damaged row */
            CHECK_STATUS(
                hotbed_external_cursor_next(cursor, 5, b->keys, b->rows, NULL, &n),
                HOTBED_ERR_CORRUPT);
            CHECK_EQ(n, 0);
            CHECK(again == 1 || w != 2 || store_error_has("gave 6 rows, 5 were asked for"));
        }
        hotbed_external_cursor_destroy(cursor);
    }
    store_fixture_close(b);
}

static void the_checksum_covers_every_byte_of_a_row(hotbed_backend backend) {
    /* Row lengths around the 8 and 32 bytes that the checksum processes at a time. */
    static const uint64_t lengths[] = {1, 7, 8, 9, 31, 32, 33, 40, 63, 64, 65, STORE_ROW_MOST};
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        hotbed_external_table one = {"one", lengths[l]};
        hotbed_external_options o = store_fixture_options();
        o.num_tables = 1;
        o.tables = &one;
        store_fixture *b = store_fixture_open_with(STORE_BAD, &o);
        uint64_t key = hotbed_test_random();
        for (uint64_t at = 0; at < lengths[l]; at++) {
            for (uint64_t i = 0; i < lengths[l]; i++)
                b->rows[i] = (uint8_t)hotbed_test_random();
            CHECK_OK(hotbed_external_insert(b->external, 0, 1, &key, b->rows, NULL));
            b->bad.row_bytes[0] = at + 1; /* BAD_BYTE changes the last byte */
            bad_store_next(&b->bad, BAD_BYTE, 1);
            CHECK_STATUS(
                hotbed_external_find(b->external, 0, 1, &key, b->found, b->rows, NULL),
                HOTBED_ERR_CORRUPT);
        }
        store_fixture_close(b);
    }
}

static void results_of_a_plug_in_are_checked(hotbed_backend backend) {
    store_fixture *b = store_fixture_open(STORE_BAD);
    store_fixture_insert(b, 0, 10);
    bad_store_next(&b->bad, BAD_FLAG, 1);
    CHECK_STATUS(
        hotbed_external_find(b->external, 0, 10, b->keys, b->found, NULL, NULL),
        HOTBED_ERR_CORRUPT);
    CHECK(store_error_has("flag 7 is not 0 or 1"));
    bad_store_next(&b->bad, BAD_FLAG, 1);
    CHECK_STATUS(hotbed_external_erase(b->external, 1, 10, b->keys, b->found), HOTBED_ERR_CORRUPT);
    b->bad.status = (hotbed_status)77;
    bad_store_next(&b->bad, BAD_FAIL, 1);
    CHECK_STATUS(hotbed_external_flush(b->external), HOTBED_ERR_CORRUPT);
    CHECK(store_error_has("flush returned 77"));
    store_fixture_close(b);
}

static void deadlines_reach_the_store_and_late_calls_are_counted(hotbed_backend backend) {
    hotbed_external_options o = store_fixture_options();
    hotbed_external_stats stats = {.size = sizeof stats};
    store_fixture *b = store_fixture_open_with(STORE_BAD, &o);
    store_fixture_insert(b, 0, 10);
    CHECK_EQ(b->bad.last_deadline, UINT64_MAX);
    CHECK_OK(hotbed_external_stats_read(b->external, &stats));
    CHECK_EQ(stats.late, 0);
    store_fixture_close(b);
    o.deadline_seconds = 1e-9; /* expires before the call returns */
    b = store_fixture_open_with(STORE_BAD, &o);
    store_fixture_insert(b, 0, 10);
    CHECK(b->bad.last_deadline < UINT64_MAX);
    store_fixture_find(b, 0, 10);
    store_fixture_check(b); /* late calls have had their effect */
    CHECK_OK(hotbed_external_stats_read(b->external, &stats));
    CHECK(stats.late > 2 && stats.late == stats.calls);
    CHECK(stats.inserts == 10 && stats.finds == 10 && stats.failures == 0);
    CHECK(stats.seconds > 0 && stats.stream_waits == 0);
    store_fixture_close(b);
}

static void failing_allocations_are_errors(hotbed_backend backend) {
    hotbed_external_options o = store_fixture_options();
    hotbed_external *x = NULL;
    for (uint64_t n = 1;; n++) {
        fault_arm(n);
        hotbed_status status = hotbed_external_create_memory(&o, &x);
        if (!fault_disarm()) {
            CHECK_OK(status);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(x == NULL);
    }
    hotbed_external_destroy(x);
    store_fixture *b = store_fixture_open(STORE_MEMORY);
    enum { N = 1000 };
    static uint64_t keys[N];
    static uint8_t rows[N * STORE_ROW_MOST], found[N];
    for (uint64_t i = 0; i < N; i++)
        keys[i] = i;
    for (uint64_t n = 1;; n++) {
        fault_arm(n);
        hotbed_status status = hotbed_external_insert(b->external, 0, N, keys, rows, NULL);
        if (!fault_disarm()) {
            CHECK_OK(status);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        uint64_t size = 1;
        CHECK_OK(hotbed_external_size(b->external, 0, &size));
        CHECK_EQ(size, 0);
    }
    CHECK_OK(hotbed_external_find(b->external, 0, N, keys, found, rows, NULL));
    for (uint64_t n = 1;; n++) {
        hotbed_external_cursor *cursor = NULL;
        fault_arm(n);
        hotbed_status status = hotbed_external_cursor_create(b->external, 0, &cursor);
        bool failed = fault_disarm();
        CHECK_STATUS(status, failed ? HOTBED_ERR_MEMORY : HOTBED_OK);
        hotbed_external_cursor_destroy(cursor);
        if (!failed)
            break;
    }
    store_fixture_close(b);
}

const hotbed_test hotbed_tests[] = {
    {TEST(an_open_that_fails_leaves_nothing)},
    {TEST(the_name_of_the_plug_in_is_copied)},
    {TEST(a_store_may_fail_at_any_call)},
    {TEST(an_export_can_go_on_after_a_failure)},
    {TEST(a_torn_batch_breaks_the_store)},
    {TEST(a_failed_insert_that_was_written_is_kept_whole)},
    {TEST(a_failed_insert_is_resolved_when_the_store_is_back)},
    {TEST(a_lost_row_is_found_when_writes_are_verified)},
    {TEST(a_damaged_row_is_never_served)},
    {TEST(the_checksum_covers_every_byte_of_a_row)},
    {TEST(results_of_a_plug_in_are_checked)},
    {TEST(deadlines_reach_the_store_and_late_calls_are_counted)},
    {TEST(failing_allocations_are_errors)},
    {NULL, NULL},
};
