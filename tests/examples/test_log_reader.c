/* tests/examples/test_log_reader.c - files to batches: gzip, ends of lines, bad lines, epochs, resuming. */
#include "examples/train/criteo.h"
#include "examples/train/log_reader.h"
#include "examples/train/plant.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { BATCH = 16, SLOTS = 3, LINES = 100, TEXT = LINES * HOTBED_PLANT_LINE };

typedef struct ring {
    hotbed_reader_batch batches[SLOTS];
    int64_t keys[SLOTS][HOTBED_CRITEO_FIELDS * BATCH];
    float labels[SLOTS][BATCH];
} ring;

/* The rows that a reader gave, one after the other. */
typedef struct rows {
    uint32_t n;
    int64_t keys[4 * LINES][HOTBED_CRITEO_FIELDS];
    float labels[4 * LINES];
    uint64_t bad;
    uint64_t batches;
    char error[512];
} rows;

static const char *in_directory(const char *name) {
    static char path[512];
    static const char *directory;
    if (directory == NULL)
        directory = hotbed_test_directory();
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

/* LINES rows of a planted model, each ended by `ending`. */
static size_t make_text(char *text, const char *ending) {
    hotbed_plant plant;
    hotbed_plant_settings settings = {.seed = hotbed_test_seed(), .alpha = 1.1, .vocab = 100};
    hotbed_plant_init(&plant, &settings);
    size_t used = 0;
    for (uint64_t i = 0; i < LINES; i++) {
        hotbed_plant_row row;
        hotbed_plant_draw(&plant, i, &row);
        used += hotbed_plant_print(&row, text + used) - 1;
        for (const char *p = ending; *p != '\0'; p++)
            text[used++] = *p;
    }
    return used;
}

static void write_file(const char *path, const char *text, size_t length) {
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(text, 1, length, file) == length);
    CHECK_EQ(fclose(file), 0);
}

static hotbed_reader_options options_of(ring *r, const char *path) {
    hotbed_reader_options options = {
        .path = path,
        .batch_size = BATCH,
        .num_batches = SLOTS,
        .batches = r->batches,
        .epochs = 1};
    for (int i = 0; i < SLOTS; i++) {
        r->batches[i].keys = r->keys[i];
        r->batches[i].labels = r->labels[i];
    }
    return options;
}

static void read_all(const hotbed_reader_options *options, rows *out) {
    memset(out, 0, sizeof *out);
    hotbed_reader *reader = hotbed_reader_start(options, out->error, sizeof out->error);
    if (reader == NULL)
        return;
    const hotbed_reader_batch *batch;
    while ((batch = hotbed_reader_take(reader)) != NULL) {
        CHECK(batch->samples > 0 && batch->samples <= BATCH);
        for (uint32_t s = 0; s < batch->samples; s++, out->n++) {
            CHECK(out->n < 4 * LINES);
            out->labels[out->n] = batch->labels[s];
            for (uint32_t f = 0; f < HOTBED_CRITEO_FIELDS; f++)
                out->keys[out->n][f] = batch->keys[f * batch->samples + s];
        }
        out->batches++;
        hotbed_reader_give(reader);
    }
    if (hotbed_reader_error(reader) != NULL)
        snprintf(out->error, sizeof out->error, "%s", hotbed_reader_error(reader));
    out->bad = hotbed_reader_bad(reader);
    hotbed_reader_stop(reader);
}

static ring the_ring;
static rows plain;
static rows other;
static char text[TEXT];

static void read_plain(void) {
    size_t length = make_text(text, "\n");
    write_file(in_directory("plain.tsv"), text, length);
    hotbed_reader_options options = options_of(&the_ring, in_directory("plain.tsv"));
    read_all(&options, &plain);
    CHECK_STRING(plain.error, "");
    CHECK_EQ(plain.n, LINES);
    CHECK_EQ(plain.batches, (LINES + BATCH - 1) / BATCH);
}

static void check_same(uint32_t n) {
    CHECK_STRING(other.error, "");
    CHECK_EQ(other.n, n);
    CHECK_BYTES(other.keys, plain.keys, n * sizeof plain.keys[0]);
    CHECK_BYTES(other.labels, plain.labels, n * sizeof plain.labels[0]);
}

static void gzip_crlf_and_no_last_newline_give_the_same(hotbed_backend backend) {
    (void)backend;
    read_plain();
    size_t length = make_text(text, "\n");
    const char *path = in_directory("rows.gz");
    gzFile gz = gzopen(path, "wb");
    CHECK(gz != NULL && gzwrite(gz, text, (unsigned)length) == (int)length);
    CHECK_EQ(gzclose(gz), Z_OK);
    hotbed_reader_options options = options_of(&the_ring, path);
    read_all(&options, &other);
    check_same(LINES);
    write_file(in_directory("cut.tsv"), text, length - 1);
    options = options_of(&the_ring, in_directory("cut.tsv"));
    read_all(&options, &other);
    check_same(LINES);
    length = make_text(text, "\r\n");
    write_file(in_directory("crlf.tsv"), text, length);
    options = options_of(&the_ring, in_directory("crlf.tsv"));
    read_all(&options, &other);
    check_same(LINES);
}

static void a_damaged_gzip_is_an_error(hotbed_backend backend) {
    (void)backend;
    static char packed[TEXT];
    size_t length = make_text(text, "\n");
    const char *path = in_directory("whole.gz");
    gzFile gz = gzopen(path, "wb");
    CHECK(gz != NULL && gzwrite(gz, text, (unsigned)length) == (int)length);
    CHECK_EQ(gzclose(gz), Z_OK);
    FILE *file = fopen(path, "rb");
    size_t bytes = fread(packed, 1, sizeof packed, file);
    fclose(file);
    write_file(in_directory("cut.gz"), packed, bytes / 2);
    hotbed_reader_options options = options_of(&the_ring, in_directory("cut.gz"));
    read_all(&options, &other);
    CHECK(strstr(other.error, "cut.gz:") != NULL && strstr(other.error, "too soon") != NULL);
    packed[bytes / 2] = (char)(packed[bytes / 2] ^ 0x55);
    packed[bytes - 6] = (char)(packed[bytes - 6] ^ 0x55); /* the checksum */
    write_file(in_directory("bad.gz"), packed, bytes);
    options = options_of(&the_ring, in_directory("bad.gz"));
    read_all(&options, &other);
    CHECK(other.error[0] != '\0');
}

/* plain.tsv with lines 7 and 50 spoilt and an overlong line put in front of line 20 */
static const char *make_bad(void) {
    size_t length = make_text(text, "\n");
    FILE *file = fopen(in_directory("bad.tsv"), "wb");
    CHECK(file != NULL);
    const char *p = text;
    for (int line = 1; p < text + length; line++) {
        const char *stop = memchr(p, '\n', (size_t)(text + length - p));
        if (line == 20) {
            for (int i = 0; i < 600000; i++)
                fputc('7', file);
            fputc('\n', file);
        }
        if (line == 7)
            fputs("0\tx", file);
        else
            fwrite(p, 1, (size_t)(stop - p), file);
        if (line == 50)
            fputs("\t", file);
        fputc('\n', file);
        p = stop + 1;
    }
    CHECK_EQ(fclose(file), 0);
    return in_directory("bad.tsv");
}

static void bad_lines_are_named_or_skipped(hotbed_backend backend) {
    (void)backend;
    read_plain();
    const char *path = make_bad();
    hotbed_reader_options options = options_of(&the_ring, path);
    read_all(&options, &other);
    CHECK(strstr(other.error, "bad.tsv:7: field 2 (i01): the line ends here") != NULL);
    options.skip_bad = 1;
    read_all(&options, &other);
    CHECK(strstr(other.error, "bad.tsv:20: field 1 (label): the line is too long") != NULL);
    options.skip_bad = 2;
    read_all(&options, &other);
    CHECK(strstr(other.error, "bad.tsv:51: field 41") != NULL);
    CHECK(strstr(other.error, "--skip-bad") != NULL);
    options.skip_bad = 3;
    read_all(&options, &other);
    CHECK_STRING(other.error, "");
    CHECK_EQ(other.n, LINES - 2);
    CHECK_EQ(other.bad, 3);
    CHECK_BYTES(other.keys[6], plain.keys[7], 42 * sizeof plain.keys[0]);
}

static void epochs_repeat_and_a_place_resumes(hotbed_backend backend) {
    (void)backend;
    read_plain();
    hotbed_reader_options options = options_of(&the_ring, in_directory("plain.tsv"));
    options.epochs = 3;
    read_all(&options, &other);
    CHECK_EQ(other.n, 3 * LINES);
    CHECK_BYTES(other.keys[2 * LINES], plain.keys, LINES * sizeof plain.keys[0]);
    options.first_epoch = 1;
    options.first_line = 2 * BATCH;
    read_all(&options, &other);
    CHECK_EQ(other.n, 2 * LINES - 2 * BATCH);
    CHECK_BYTES(other.keys, plain.keys[2 * BATCH], (LINES - 2 * BATCH) * sizeof plain.keys[0]);
    options.first_epoch = 2;
    options.first_line = LINES; /* saved at the end */
    read_all(&options, &other);
    CHECK_EQ(other.n, 0);
    CHECK_STRING(other.error, "");
    options.first_line = LINES + 1;
    read_all(&options, &other);
    CHECK(strstr(other.error, "has 100 lines") != NULL);
}

static void bad_files_are_errors(hotbed_backend backend) {
    (void)backend;
    hotbed_reader_options options = options_of(&the_ring, in_directory("none.tsv"));
    read_all(&options, &other);
    CHECK(strstr(other.error, "none.tsv: No such file") != NULL);
    options.path = hotbed_test_directory();
    read_all(&options, &other);
    CHECK(strstr(other.error, "is a directory") != NULL);
    write_file(in_directory("empty.tsv"), "", 0);
    options.path = in_directory("empty.tsv");
    read_all(&options, &other);
    CHECK_STRING(other.error, "");
    CHECK_EQ(other.n, 0);
    write_file(in_directory("blank.tsv"), "\n", 1);
    options.path = in_directory("blank.tsv");
    read_all(&options, &other);
    CHECK(strstr(other.error, "blank.tsv:1: field 1 (label)") != NULL);
}

static void can_be_stopped_at_any_time(hotbed_backend backend) {
    (void)backend;
    read_plain();
    hotbed_reader_options options = options_of(&the_ring, in_directory("plain.tsv"));
    options.epochs = 1000;
    char message[64];
    for (int taken = 0; taken < 5; taken++) {
        hotbed_reader *reader = hotbed_reader_start(&options, message, sizeof message);
        CHECK(reader != NULL);
        for (int i = 0; i < taken; i++) {
            CHECK(hotbed_reader_take(reader) != NULL);
            if (i > 0)
                hotbed_reader_give(reader);
        }
        hotbed_reader_stop(reader);
    }
    hotbed_reader_stop(NULL);
}

/* Ranks have the rows of a batch in order, and as many batches. */
static void shares_of_ranks_are_the_whole(hotbed_backend backend) {
    (void)backend;
    read_plain();
    for (uint32_t ranks = 2; ranks <= 5; ranks++) {
        hotbed_reader *readers[5];
        static ring rings[5];
        uint64_t n = 0;
        for (uint32_t r = 0; r < ranks; r++) {
            hotbed_reader_options options = options_of(&rings[r], in_directory("plain.tsv"));
            char message[200];
            options.rank = r;
            options.ranks = ranks;
            readers[r] = hotbed_reader_start(&options, message, sizeof message);
            CHECK(readers[r] != NULL);
        }
        for (uint32_t number = 0; number <= plain.batches; number++) {
            uint32_t whole = 0, in_all = 0;
            for (uint32_t r = 0; r < ranks; r++) {
                const hotbed_reader_batch *batch = hotbed_reader_take(readers[r]);
                CHECK_EQ(batch == NULL, number == plain.batches);
                if (batch == NULL)
                    continue;
                CHECK(batch->samples <= hotbed_reader_share(BATCH, ranks));
                for (uint32_t s = 0; s < batch->samples; s++, n++) {
                    CHECK(batch->labels[s] == plain.labels[n]);
                    for (uint32_t f = 0; f < HOTBED_CRITEO_FIELDS; f++)
                        CHECK_EQ(batch->keys[f * batch->samples + s], plain.keys[n][f]);
                }
                in_all += batch->samples;
                whole = batch->rows;
                hotbed_reader_give(readers[r]);
            }
            CHECK_EQ(in_all, whole);
        }
        CHECK_EQ(n, plain.n);
        for (uint32_t r = 0; r < ranks; r++)
            hotbed_reader_stop(readers[r]);
    }
}

const hotbed_test hotbed_tests[] = {
    {"gzip_crlf_and_no_last_newline_give_the_same", gzip_crlf_and_no_last_newline_give_the_same},
    {"a_damaged_gzip_is_an_error", a_damaged_gzip_is_an_error},
    {"bad_lines_are_named_or_skipped", bad_lines_are_named_or_skipped},
    {"epochs_repeat_and_a_place_resumes", epochs_repeat_and_a_place_resumes},
    {"bad_files_are_errors", bad_files_are_errors},
    {"can_be_stopped_at_any_time", can_be_stopped_at_any_time},
    {"shares_of_ranks_are_the_whole", shares_of_ranks_are_the_whole},
    {NULL, NULL},
};
