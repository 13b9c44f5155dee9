/* tests/base/test_stream_faults.c - faults that kernels latch on a stream, and the errors that they become. */
#include "base/backend.h"
#include "tests/base/cases.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <string.h>

static void latch(hotbed_stream *stream, hotbed_memory *place, fault_case fault) {
    CHECK_OK(hotbed_copy(place->data, &fault, sizeof fault, stream));
    CHECK_OK(cases_launch(CASE_LATCH, 1, place->data, hotbed_stream_faults(stream), stream));
    hotbed_event *event = cases_event(stream);
    CHECK_OK(hotbed_event_record(event, stream));
    /* `fault` must live until the copy ran; a stream sync would clear the latched fault */
    CHECK_OK(hotbed_event_sync(event));
    hotbed_event_destroy(event);
}

static void faults_are_reported_with_their_values(hotbed_backend backend) {
    static const struct {
        fault_case fault;
        const char *words[4];
        hotbed_error_detail fields;
    } cases[] = {
        {{HOTBED_ERR_FULL, HOTBED_CAUSE_TABLE_FULL, 3, 41, 128},
         {"table number 3", "key 41", "128"},
         {.has = HOTBED_HAS_TABLE_NUMBER | HOTBED_HAS_KEY | HOTBED_HAS_LIMIT,
          .table_number = 3,
          .key = 41,
          .limit = 128}},
        {{HOTBED_ERR_RANGE, HOTBED_CAUSE_KEY_RANGE, 7, 99, 50},
         {"table number 7", "key 99", "50)"},
         {.has = HOTBED_HAS_TABLE_NUMBER | HOTBED_HAS_KEY | HOTBED_HAS_LIMIT,
          .table_number = 7,
          .key = 99,
          .limit = 50}},
        {{HOTBED_ERR_RANGE, HOTBED_CAUSE_KEY_RANGE, 0, UINT64_MAX - 4, 50},
         {"18446744073709551611", "-5"},
         {.has = HOTBED_HAS_TABLE_NUMBER | HOTBED_HAS_KEY | HOTBED_HAS_LIMIT,
          .key = UINT64_MAX - 4,
          .limit = 50}},
        {{HOTBED_ERR_ARGUMENT, HOTBED_CAUSE_OFFSET, 0, 12, (uint64_t)-3},
         {"bag 12", "-3"},
         {.has = HOTBED_HAS_VALUE, .value = -3}},
        {{HOTBED_ERR_ARGUMENT, HOTBED_CAUSE_OFFSET, 5, 12, 99},
         {"bag 12", "99"},
         {.has = HOTBED_HAS_VALUE | HOTBED_HAS_FEATURE | HOTBED_HAS_SAMPLE,
          .value = 99,
          .feature = 2,
          .sample = 2}},
        {{HOTBED_ERR_ARGUMENT, HOTBED_CAUSE_TABLE_NUMBER, 8, 12, 6},
         {"table 8", "key 12", "6"},
         {.has = HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT | HOTBED_HAS_KEY,
          .value = 8,
          .limit = 6,
          .key = 12}},
        {{HOTBED_ERR_IO, HOTBED_CAUSE_EXTERNAL, 1, 12, 0},
         {"12 rows", "table number 1"},
         {.has = HOTBED_HAS_VALUE | HOTBED_HAS_TABLE_NUMBER, .value = 12, .table_number = 1}},
        {{HOTBED_ERR_COMM, HOTBED_CAUSE_COMM, 2, 12, 1},
         {"rank 2", "operation 12"},
         {.has = HOTBED_HAS_VALUE | HOTBED_HAS_RANK, .value = 12, .rank = 2}},
        {{HOTBED_ERR_COMM, HOTBED_CAUSE_COMM, UINT32_MAX, 0, 1}, {"communicator"}, {.has = 0}},
        {{HOTBED_ERR_FULL, HOTBED_CAUSE_ALL_PINNED, 2, 5, 0},
         {"table number 2", "key 5", "in use"},
         {.has = HOTBED_HAS_TABLE_NUMBER | HOTBED_HAS_KEY, .table_number = 2, .key = 5}},
        {{HOTBED_ERR_STATE, 77, 2, 5, 9},
         {"fault 77", "table 2", "5", "9"},
         {.has = HOTBED_HAS_TABLE_NUMBER, .table_number = 2}},
    };
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_memory place = cases_device(stream, sizeof(fault_case), NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        latch(stream, &place, cases[i].fault);
        CHECK_STATUS(hotbed_stream_sync(stream), (hotbed_status)cases[i].fault.status);
        for (int w = 0; w < 4 && cases[i].words[w] != NULL; w++) {
            if (strstr(hotbed_last_error(), cases[i].words[w]) == NULL)
                hotbed_check_failed(
                    __FILE__, __LINE__, "no \"%s\" in \"%s\"", cases[i].words[w],
                    hotbed_last_error());
        }
        hotbed_error_detail fields = cases[i].fields;
        fields.cause = (hotbed_error_cause)cases[i].fault.what;
        hotbed_check_fields(__FILE__, __LINE__, hotbed_last_error_detail(), &fields);
        CHECK_OK(hotbed_stream_sync(stream)); /* the fault was cleared */
    }
    hotbed_memory_free(&place);
    hotbed_stream_destroy(stream);
}

static void the_first_fault_wins(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend), *other = hotbed_test_stream(backend);
    hotbed_memory place = cases_device(stream, sizeof(fault_case), NULL);
    CHECK_OK(hotbed_stream_fault(stream));
    latch(stream, &place, (fault_case){HOTBED_ERR_FULL, HOTBED_CAUSE_TABLE_FULL, 1, 10, 1});
    latch(stream, &place, (fault_case){HOTBED_ERR_RANGE, HOTBED_CAUSE_KEY_RANGE, 2, 20, 2});
    CHECK_OK(hotbed_stream_fault(other)); /* faults are kept per stream */
    hotbed_counters before = hotbed_test_counters();
    CHECK_STATUS(hotbed_stream_fault(stream), HOTBED_ERR_FULL);
    CHECK(strstr(hotbed_last_error(), "key 10") != NULL);
    CHECK_OK(hotbed_stream_fault(stream));
    CHECK_EQ(hotbed_test_counters().host_waits, before.host_waits);
    latch(stream, &place, (fault_case){HOTBED_ERR_RANGE, HOTBED_CAUSE_KEY_RANGE, 2, 20, 2});
    CHECK_STATUS(hotbed_stream_sync(stream), HOTBED_ERR_RANGE);
    latch(stream, &place, (fault_case){HOTBED_ERR_FULL, HOTBED_CAUSE_TABLE_FULL, 1, 10, 1});
    hotbed_memory_free(&place);
    hotbed_stream_destroy(other);
    hotbed_stream_destroy(stream); /* discards the fault */
}

static void one_of_many_concurrent_faults_is_kept_whole(hotbed_backend backend) {
    enum { N = 20000 };
    static fault_case faults[N];
    for (uint32_t i = 0; i < N; i++)
        faults[i] = (fault_case){
            i % 2 == 0 ? HOTBED_ERR_FULL : HOTBED_ERR_RANGE, 100, i, (uint64_t)i * 3,
            (uint64_t)i * 5};
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_memory in = cases_device(stream, sizeof faults, faults);
    for (int round = 0; round < 20; round++) {
        CHECK_OK(cases_launch(CASE_LATCH, N, in.data, hotbed_stream_faults(stream), stream));
        hotbed_status status = hotbed_stream_sync(stream);
        unsigned what, table;
        unsigned long long key, bound;
        int found = sscanf(/* NOLINT(cert-err34-c): the library's own text */
                           hotbed_last_error(), "fault %u: table %u, key %llu, bound %llu", &what,
                           &table, &key, &bound);
        CHECK_EQ(found, 4);
        CHECK_EQ(status, table % 2 == 0 ? HOTBED_ERR_FULL : HOTBED_ERR_RANGE);
        CHECK_EQ(key, (unsigned long long)table * 3);
        CHECK_EQ(bound, (unsigned long long)table * 5);
    }
    hotbed_memory_free(&in);
    hotbed_stream_destroy(stream);
}

/* hotbed_stream_fault() while kernels latch faults: each fault is read as one of them wrote it. */
static void faults_may_be_taken_while_work_runs(hotbed_backend backend) {
    enum { N = 5000 };
    static fault_case faults[N];
    for (uint32_t i = 0; i < N; i++)
        faults[i] = (fault_case){HOTBED_ERR_FULL, 100, i, (uint64_t)i * 3, (uint64_t)i * 5};
    hotbed_stream *stream = hotbed_test_stream(backend);
    hotbed_memory in = cases_device(stream, sizeof faults, faults);
    hotbed_event *event = cases_event(stream);
    for (int i = 0; i < 50; i++)
        CHECK_OK(cases_launch(CASE_LATCH, N, in.data, hotbed_stream_faults(stream), stream));
    CHECK_OK(hotbed_event_record(event, stream));
    int taken = 0;
    for (bool last = false; !last;) {
        last = cases_is_done(event);
        if (hotbed_stream_fault(stream) == HOTBED_OK)
            continue;
        unsigned what, table;
        unsigned long long key, bound;
        int found = sscanf(/* NOLINT(cert-err34-c): the library's own text */
                           hotbed_last_error(), "fault %u: table %u, key %llu, bound %llu", &what,
                           &table, &key, &bound);
        CHECK_EQ(found, 4);
        CHECK_EQ(key, (unsigned long long)table * 3);
        CHECK_EQ(bound, (unsigned long long)table * 5);
        taken++;
    }
    CHECK(taken > 0);
    hotbed_event_destroy(event);
    hotbed_memory_free(&in);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(faults_are_reported_with_their_values)},
    {TEST(the_first_fault_wins)},
    {TEST(one_of_many_concurrent_faults_is_kept_whole)},
    {TEST(faults_may_be_taken_while_work_runs)},
    {NULL, NULL},
};
