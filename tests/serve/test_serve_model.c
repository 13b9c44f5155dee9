/* tests/serve/test_serve_model.c - random histories of a trainer, its publishers and a reader: the reader
 * answers exactly the cut that it names, or refuses.
 *
 * A history publishes with system calls that fail, or stop as after a kill, and damages, hides and returns
 * files. HOTBED_TEST_HISTORIES sets their number (default 100). */
#include "serve/format.h"
#include "serve/publisher.h"
#include "tests/checkpoint/sample.h"
#include "tests/serve/served.h"
#include "tests/support/harness.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a history does to a file. */
typedef struct wound {
    char path[512], hidden[512]; /* hidden: where the file is now; "": nowhere else */
    bool open;                   /* the file can be put back */
} wound;

typedef struct history {
    hotbed_stream *stream;
    hotbed_storage *storage;
    hotbed_encoding encodings[SERVED_TABLES];
    char directory[512];
    sample_disk disk;
    hotbed_publisher *publisher;
    hotbed_reader *reader;
    uint64_t step;
    uint64_t published; /* step of the last publish that returned OK; 0: none */
    bool whole;         /* no file was damaged since */
    served_cut *cuts;   /* [SERVED_CUTS_MOST] by step */
    wound wound;
    uint64_t refusals;
} history;

static void close_publisher(history *h) {
    hotbed_publisher_destroy(h->publisher);
    h->publisher = NULL;
}

/* Create a publisher whose n-th system call fails, if n is not 0. */
static void open_publisher(history *h, sample_fault fault, uint64_t at) {
    hotbed_publish_options options = {.size = sizeof options, .encodings = h->encodings};
    options.states = hotbed_test_below(2) == 0;
    options.base_every = 1 + (uint32_t)hotbed_test_below(5);
    options.keep_bases = 1 + (uint32_t)hotbed_test_below(2);
    close_publisher(h);
    sample_disk_init(&h->disk, fault, at);
    hotbed_status status = hotbed_publisher_create_with(
        &h->disk.calls, h->directory, &h->storage, 1, &options, h->stream, &h->publisher);
    CHECK(status == HOTBED_OK || status == HOTBED_ERR_IO);
}

static void publish(history *h) {
    if (h->publisher == NULL || h->step + 1 == SERVED_CUTS_MOST)
        return;
    served_look(h->storage, h->encodings, h->step + 1, &h->cuts[h->step + 1], h->stream);
    h->step++;
    hotbed_status status = hotbed_publisher_publish(h->publisher, h->step, h->stream);
    if (status == HOTBED_OK)
        status = hotbed_publisher_wait(h->publisher);
    CHECK(status == HOTBED_OK || status == HOTBED_ERR_IO);
    if (status == HOTBED_OK)
        h->published = h->step;
}

/* A random file of the directory; false: there is none. */
static bool choose(const history *h, char path[512]) {
    uint64_t n = 0;
    DIR *list = opendir(h->directory);
    CHECK(list != NULL);
    for (struct dirent *item; (item = readdir(list)) != NULL;)
        if (item->d_name[0] != '.' && strcmp(item->d_name, "lock") != 0 &&
            hotbed_test_below(++n) == 0)
            snprintf(path, 512, "%.255s/%.250s", h->directory, item->d_name);
    closedir(list);
    return n > 0;
}

/* Damage, shorten, remove, hide or replace a file. The change is made to a copy, since readers may have
 * mapped the file. */
static void harm(history *h) {
    wound *w = &h->wound;
    if (w->open || !choose(h, w->path))
        return;
    size_t bytes = 0;
    unsigned char *data = sample_read_file(w->path, &bytes);
    snprintf(w->hidden, sizeof w->hidden, "%.255s/hidden", h->directory);
    CHECK_EQ(rename(w->path, w->hidden), 0);
    w->open = true;
    h->whole = false;
    char other[512];
    switch (hotbed_test_below(5)) {
    case 0:
        data[hotbed_test_below(bytes)] ^= (unsigned char)(1U << hotbed_test_below(8));
        sample_write_file(w->path, data, bytes);
        break;
    case 1:
        sample_write_file(w->path, data, hotbed_test_below(bytes));
        break;
    case 2: /* another file under its name */
        if (choose(h, other) && strcmp(other, w->hidden) != 0)
            CHECK_EQ(link(other, w->path), 0);
        break;
    case 3: /* a link to the right file is none of the publisher's */
        CHECK_EQ(symlink(w->hidden, w->path), 0);
        break;
    default: /* it is missing, perhaps for some time */
        break;
    }
    free(data);
}

static void heal(history *h) {
    if (!h->wound.open)
        return;
    h->wound.open = false;
    CHECK_EQ(rename(h->wound.hidden, h->wound.path), 0);
}

static void look(history *h) {
    hotbed_reader_stats stats = {.size = sizeof stats};
    hotbed_status status = HOTBED_OK;
    if (h->reader == NULL)
        status = hotbed_reader_open(h->directory, NULL, &h->reader);
    if (status == HOTBED_OK) /* an open succeeds with an older cut, a poll says why */
        status = hotbed_reader_poll(h->reader);
    CHECK(
        status == HOTBED_OK || status == HOTBED_ERR_CORRUPT || status == HOTBED_ERR_STATE ||
        status == HOTBED_ERR_IO);
    h->refusals += status != HOTBED_OK;
    if (h->reader == NULL)
        return;
    CHECK_OK(hotbed_reader_get_stats(h->reader, &stats));
    CHECK(stats.step <= h->step && h->cuts[stats.step].step == stats.step);
    served_check(h->reader, &h->cuts[stats.step]);
    if (status == HOTBED_OK && h->whole) /* perhaps a cut of a publisher that was killed after it */
        CHECK(stats.step >= h->published && stats.version == served_newest(h->directory));
    CHECK_STATUS(hotbed_reader_health(h->reader, 0), status);
}

static void take_step(history *h) {
    static const sample_fault faults[] = {SAMPLE_FAULT_ENOSPC, SAMPLE_FAULT_EIO, SAMPLE_FAULT_DEAD};
    switch (hotbed_test_below(10)) {
    case 0:
        open_publisher(h, faults[hotbed_test_below(3)], 1 + hotbed_test_below(60));
        break;
    case 1:
        open_publisher(h, SAMPLE_FAULT_NONE, 0);
        break;
    case 2:
        harm(h);
        break;
    case 3:
        heal(h);
        break;
    case 4:
        hotbed_reader_close(h->reader);
        h->reader = NULL;
        break;
    default:
        served_change(h->storage, h->stream);
        publish(h);
        break;
    }
    look(h);
}

/* In the end all is well: a new publisher's cut is what a reader answers. */
static void end(history *h) {
    heal(h);
    open_publisher(h, SAMPLE_FAULT_NONE, 0);
    served_change(h->storage, h->stream);
    publish(h);
    h->whole = true;
    hotbed_status status = h->reader == NULL ? hotbed_reader_open(h->directory, NULL, &h->reader)
                                             : hotbed_reader_poll(h->reader);
    CHECK_OK(status);
    served_check(h->reader, &h->cuts[h->step]);
}

static void a_reader_answers_the_cut_that_it_names(hotbed_backend backend) {
    const char *wanted = getenv("HOTBED_TEST_HISTORIES");
    uint64_t histories = wanted != NULL           ? strtoull(wanted, NULL, 10)
                         : hotbed_test_is_small() ? 20
                                                  : 100;
    sample_directory();
    served_cut *cuts = calloc(SERVED_CUTS_MOST, sizeof *cuts);
    uint64_t refusals = 0, published = 0;
    for (uint64_t i = 0; i < histories; i++) {
        history h = {.stream = hotbed_test_stream(backend), .cuts = cuts, .whole = true};
        memset(cuts, 0, SERVED_CUTS_MOST * sizeof *cuts);
        snprintf(h.directory, sizeof h.directory, "%s", sample_path("published"));
        h.storage = served_create(i, (uint32_t)hotbed_test_below(8), h.stream);
        for (uint32_t t = 0; t < SERVED_TABLES; t++)
            h.encodings[t] = (hotbed_encoding)hotbed_test_below(5);
        CHECK_EQ(mkdir(h.directory, 0777), 0);
        open_publisher(&h, SAMPLE_FAULT_NONE, 0);
        for (uint64_t steps = 4 + hotbed_test_below(24); steps > 0; steps--)
            take_step(&h);
        end(&h);
        close_publisher(&h);
        hotbed_reader_close(h.reader);
        hotbed_storage_destroy(h.storage);
        hotbed_stream_destroy(h.stream);
        sample_remove(h.directory);
        refusals += h.refusals;
        published += h.step;
    }
    free(cuts);
    printf(
        "%llu histories, %llu cuts, %llu refusals\n", (unsigned long long)histories,
        (unsigned long long)published, (unsigned long long)refusals);
    CHECK(histories < 20 || refusals > 0);
}

/* Each system call in turn fails, or is the publisher's last one: a reader has each cut that is named, and
 * the publisher goes on. */
static void fail_each_call(hotbed_backend backend, sample_fault fault) {
    sample_directory();
    served_cut *cuts = calloc(SERVED_CUTS_MOST, sizeof *cuts);
    bool ended = false;
    for (uint64_t at = 1; !ended; at++) {
        history h = {.stream = hotbed_test_stream(backend), .cuts = cuts, .whole = true};
        memset(cuts, 0, SERVED_CUTS_MOST * sizeof *cuts);
        snprintf(h.directory, sizeof h.directory, "%s", sample_path("published"));
        h.storage = served_create(at, at % 2 == 0 ? 7 : 0, h.stream);
        CHECK_EQ(mkdir(h.directory, 0777), 0);
        open_publisher(&h, fault, at);
        for (int i = 0; i < 5; i++) {
            served_change(h.storage, h.stream);
            publish(&h);
            if (served_newest(h.directory) > 0)
                look(&h);
        }
        CHECK_EQ(h.refusals, 0);
        ended = h.disk.count < at;
        end(&h);
        close_publisher(&h);
        hotbed_reader_close(h.reader);
        hotbed_storage_destroy(h.storage);
        hotbed_stream_destroy(h.stream);
        sample_remove(h.directory);
    }
    free(cuts);
}

static void a_publisher_may_die_at_any_call(hotbed_backend backend) {
    fail_each_call(backend, SAMPLE_FAULT_DEAD);
}

static void a_publisher_goes_on_after_any_failed_call(hotbed_backend backend) {
    fail_each_call(backend, SAMPLE_FAULT_ENOSPC);
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_reader_answers_the_cut_that_it_names)},
    {TEST(a_publisher_may_die_at_any_call)},
    {TEST(a_publisher_goes_on_after_any_failed_call)},
    {NULL, NULL},
};
