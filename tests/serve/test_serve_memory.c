/* tests/serve/test_serve_memory.c - each allocation of a publisher and of a reader fails once. */
#include "tests/checkpoint/sample.h"
#include "tests/serve/served.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <stdio.h>

static const hotbed_encoding plain[SERVED_TABLES]; /* TABLE */

typedef struct bench {
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_publish_options options;
    char directory[512];
    served_cut cut;
} bench;

static void begin(bench *b, hotbed_backend backend) {
    *b = (bench){.stream = sample_stream(backend)};
    b->storage = served_create(3, 5, b->stream);
    b->options = (hotbed_publish_options){.size = sizeof b->options};
    snprintf(b->directory, sizeof b->directory, "%s", sample_path("published"));
}

static hotbed_publisher *create(bench *b) {
    hotbed_publisher *publisher = NULL;
    CHECK_OK(
        hotbed_publisher_create(b->directory, &b->storage, 1, &b->options, b->stream, &publisher));
    return publisher;
}

static void change(bench *b, uint64_t step) {
    for (int i = 0; i < 3; i++)
        served_change(b->storage, b->stream);
    served_look(b->storage, plain, step, &b->cut, b->stream);
}

static void finish(bench *b) {
    hotbed_storage_destroy(b->storage);
    hotbed_stream_destroy(b->stream);
}

static void a_publisher_is_created_or_not(hotbed_backend backend) {
    bench b;
    begin(&b, backend);
    hotbed_publisher *publisher = create(&b); /* so that there are cuts to list */
    change(&b, 1);
    CHECK_OK(hotbed_publisher_publish(publisher, 1, b.stream));
    hotbed_publisher_destroy(publisher);
    for (uint64_t n = 1;; n++) {
        fault_arm(n);
        hotbed_status status =
            hotbed_publisher_create(b.directory, &b.storage, 1, &b.options, b.stream, &publisher);
        if (!fault_disarm()) {
            CHECK_OK(status);
            break;
        }
        CHECK_STATUS(status, HOTBED_ERR_MEMORY);
        CHECK(publisher == NULL);
    }
    hotbed_publisher_destroy(publisher);
    finish(&b);
}

/* A cut fails or is complete, and the next one is what a reader answers. */
static void a_cut_without_memory_is_published_later(hotbed_backend backend) {
    bench b;
    hotbed_reader *reader = NULL;
    begin(&b, backend);
    b.options.base_every = 3;
    hotbed_publisher *publisher = create(&b);
    bool reached = true;
    uint64_t step = 0;
    for (uint64_t n = 1; reached; n++) {
        change(&b, ++step);
        fault_arm(n);
        hotbed_status status = hotbed_publisher_publish(publisher, step, b.stream);
        if (status == HOTBED_OK)
            status = hotbed_publisher_wait(publisher);
        reached = fault_disarm();
        CHECK(status == HOTBED_OK || status == HOTBED_ERR_MEMORY);
        change(&b, ++step);
        CHECK_OK(hotbed_publisher_publish(publisher, step, b.stream));
        CHECK_OK(hotbed_publisher_wait(publisher));
        if (reader == NULL)
            CHECK_OK(hotbed_reader_open(b.directory, NULL, &reader));
        CHECK_OK(hotbed_reader_poll(reader));
        served_check(reader, &b.cut);
    }
    hotbed_reader_close(reader);
    hotbed_publisher_destroy(publisher);
    finish(&b);
}

static void a_reader_without_memory_keeps_its_version(hotbed_backend backend) {
    bench b;
    served_cut cuts[3];
    begin(&b, backend);
    hotbed_publisher *publisher = create(&b);
    for (uint64_t step = 1; step <= 2; step++) {
        change(&b, step);
        CHECK_OK(hotbed_publisher_publish(publisher, step, b.stream));
        CHECK_OK(hotbed_publisher_wait(publisher));
        cuts[step] = b.cut;
    }
    for (uint64_t n = 1;; n++) {
        hotbed_reader *reader = NULL;
        hotbed_reader_stats stats = {.size = sizeof stats};
        fault_arm(n);
        hotbed_status status = hotbed_reader_open(b.directory, NULL, &reader);
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
    hotbed_publisher_destroy(publisher);
    finish(&b);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_publisher_is_created_or_not)},
    {TEST(a_cut_without_memory_is_published_later)},
    {TEST(a_reader_without_memory_keeps_its_version)},
    {NULL, NULL},
};
