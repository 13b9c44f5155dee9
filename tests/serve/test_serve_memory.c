/* tests/serve/test_serve_memory.c - each allocation of a publisher and of a reader fails once. */
#include "tests/serve/served.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

static void a_publisher_is_created_or_not(hotbed_backend backend) {
    served s;
    served_begin_with(&s, backend, 5, false);
    served_start(&s);
    served_publish(&s); /* so that there are cuts to list */
    hotbed_publisher_destroy(s.publisher);
    for (uint64_t n = 1;; n++) {
        fault_arm(n);
        hotbed_status status =
            hotbed_publisher_create(s.directory, &s.storage, 1, &s.options, s.stream, &s.publisher);
        if (!fault_disarm()) {
            CHECK_OK(status);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(s.publisher == NULL);
    }
    served_finish(&s);
}

/* A cut fails or is complete, and the next one is what a reader answers. */
static void a_cut_without_memory_is_published_later(hotbed_backend backend) {
    served s;
    served_begin_with(&s, backend, 5, false);
    s.options.base_every = 3;
    served_start(&s);
    bool reached = true;
    for (uint64_t n = 1; reached; n++) {
        served_step(&s);
        fault_arm(n);
        hotbed_status status = hotbed_publisher_publish(s.publisher, s.step, s.stream);
        if (status == HOTBED_OK)
            status = hotbed_publisher_wait(s.publisher);
        reached = fault_disarm();
        CHECK(status == HOTBED_OK || status == HOTBED_ERR_MEMORY);
        served_publish(&s);
        if (s.reader == NULL)
            CHECK_OK(hotbed_reader_open(s.directory, NULL, &s.reader));
        CHECK_OK(hotbed_reader_poll(s.reader));
        served_check(s.reader, &s.cut);
    }
    served_finish(&s);
}

static void a_reader_without_memory_keeps_its_version(hotbed_backend backend) {
    served s;
    served_cut cuts[3];
    served_begin_with(&s, backend, 5, false);
    served_start(&s);
    for (uint64_t step = 1; step <= 2; step++) {
        served_publish(&s);
        cuts[step] = s.cut;
    }
    for (uint64_t n = 1;; n++) {
        hotbed_reader *reader = NULL;
        hotbed_reader_stats stats = {.size = sizeof stats};
        fault_arm(n);
        hotbed_status status = hotbed_reader_open(s.directory, NULL, &reader);
        bool reached = fault_disarm();
        CHECK(status == HOTBED_OK || status == HOTBED_ERR_MEMORY);
        CHECK((reader != NULL) == (status == HOTBED_OK));
        if (reader != NULL) { /* the base at least; the increment comes with the next poll */
            CHECK_OK(hotbed_reader_get_stats(reader, &stats));
            CHECK(stats.step == 1 || stats.step == 2);
            served_check(reader, &cuts[stats.step]);
            CHECK_OK(hotbed_reader_poll(reader));
            served_check(reader, &cuts[2]);
        }
        hotbed_reader_close(reader);
        if (!reached)
            break;
    }
    served_finish(&s);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_publisher_is_created_or_not)},
    {TEST(a_cut_without_memory_is_published_later)},
    {TEST(a_reader_without_memory_keeps_its_version)},
    {NULL, NULL},
};
