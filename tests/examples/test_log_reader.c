/* tests/examples/test_log_reader.c - log files to batches: gzip, line ends, malformed lines,
 * epochs, resuming, and any number of threads. */
#include "examples/train/criteo.h"
#include "examples/train/log_reader.h"
#include "examples/train/plant.h"
#include "examples/train/trainer.h"
#include "tests/support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { BATCH = 16, SLOTS = 3, LINES = 100, TEXT = LINES * HOTBED_PLANT_LINE };

typedef struct ring {
    hotbed_log_reader_batch batches[SLOTS];
    int64_t keys[SLOTS][HOTBED_CRITEO_FIELDS * BATCH];
    float labels[SLOTS][BATCH];
} ring;

/* The rows that a reader returned, in order. */
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

/* Write LINES rows of a planted model, each ended by `ending`. */
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

static hotbed_log_reader_options options_of(ring *r, const char *path) {
    hotbed_log_reader_options options = {
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

static void read_all(const hotbed_log_reader_options *options, rows *out) {
    memset(out, 0, sizeof *out);
    hotbed_log_reader *reader = hotbed_log_reader_start(options, out->error, sizeof out->error);
    if (reader == NULL)
        return;
    const hotbed_log_reader_batch *batch;
    while ((batch = hotbed_log_reader_take(reader)) != NULL) {
        CHECK(batch->samples > 0 && batch->samples <= BATCH);
        for (uint32_t s = 0; s < batch->samples; s++, out->n++) {
            CHECK(out->n < 4 * LINES);
            out->labels[out->n] = batch->labels[s];
            for (uint32_t f = 0; f < HOTBED_CRITEO_FIELDS; f++)
                out->keys[out->n][f] = batch->keys[f * batch->samples + s];
        }
        out->batches++;
        hotbed_log_reader_give(reader);
    }
    if (hotbed_log_reader_error(reader) != NULL)
        snprintf(out->error, sizeof out->error, "%s", hotbed_log_reader_error(reader));
    out->bad = hotbed_log_reader_bad(reader);
    hotbed_log_reader_stop(reader);
}

static ring the_ring;
static rows plain;
static rows other;
static char text[TEXT];

static void read_plain(void) {
    size_t length = make_text(text, "\n");
    write_file(in_directory("plain.tsv"), text, length);
    hotbed_log_reader_options options = options_of(&the_ring, in_directory("plain.tsv"));
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
    read_plain();
    size_t length = make_text(text, "\n");
    const char *path = in_directory("rows.gz");
    gzFile gz = gzopen(path, "wb");
    CHECK(gz != NULL && gzwrite(gz, text, (unsigned)length) == (int)length);
    CHECK_EQ(gzclose(gz), Z_OK);
    hotbed_log_reader_options options = options_of(&the_ring, path);
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
    hotbed_log_reader_options options = options_of(&the_ring, in_directory("cut.gz"));
    read_all(&options, &other);
    CHECK(strstr(other.error, "cut.gz:") != NULL && strstr(other.error, "too soon") != NULL);
    packed[bytes / 2] = (char)(packed[bytes / 2] ^ 0x55);
    packed[bytes - 6] = (char)(packed[bytes - 6] ^ 0x55); /* the checksum */
    write_file(in_directory("bad.gz"), packed, bytes);
    options = options_of(&the_ring, in_directory("bad.gz"));
    read_all(&options, &other);
    CHECK(other.error[0] != '\0');
}

/* plain.tsv with lines 7 and 50 damaged, and an overlong line before line 20 */
static const char *make_bad(void) {
    size_t length = make_text(text, "\n");
    FILE *file = fopen(in_directory("bad.tsv"), "wb");
    CHECK(file != NULL);
    const char *p = text;
    for (int line = 1; p < text + length; line++) {
        const char *stop = memchr(p, '\n', (size_t)(text + length - p));
        if (line == 20) {
            for (int i = 0; i < 2 * (1 << 18) + 6000;
                 i++) /* the rest alone would not be too long */
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
    read_plain();
    const char *path = make_bad();
    hotbed_log_reader_options options = options_of(&the_ring, path);
    read_all(&options, &other);
    CHECK(strstr(other.error, "bad.tsv:7: field 2 (i01): 'x' is not a 64-bit integer") != NULL);
    options.skip_bad = 1;
    read_all(&options, &other);
    CHECK(strstr(other.error, "bad.tsv:20: the line is too long") != NULL);
    options.skip_bad = 2;
    read_all(&options, &other);
    CHECK(strstr(other.error, "bad.tsv:51: the line has more than 40 fields") != NULL);
    CHECK(strstr(other.error, "--skip-bad") != NULL);
    options.skip_bad = 3;
    read_all(&options, &other);
    CHECK_STRING(other.error, "");
    CHECK_EQ(other.n, LINES - 2);
    CHECK_EQ(other.bad, 3);
    CHECK_BYTES(other.keys[6], plain.keys[7], 42 * sizeof plain.keys[0]);
}

static void epochs_repeat_and_positions_resume(hotbed_backend backend) {
    read_plain();
    hotbed_log_reader_options options = options_of(&the_ring, in_directory("plain.tsv"));
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
    write_file(
        in_directory("cut.tsv"), text, make_text(text, "\n") - 1); /* the last line counts too */
    options.path = in_directory("cut.tsv");
    read_all(&options, &other);
    CHECK(strstr(other.error, "has 100 lines") != NULL);
}

static void bad_files_are_errors(hotbed_backend backend) {
    hotbed_log_reader_options options = options_of(&the_ring, in_directory("none.tsv"));
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

/* After the gzip data of a log, more gzip data and zero bytes are accepted; anything else is an error. */
static void bytes_after_gzip_data_are_not_ignored(hotbed_backend backend) {
    static char packed[TEXT];
    read_plain();
    const char *path = in_directory("members.gz");
    size_t length = make_text(text, "\n");
    size_t half = length / 2; /* in the middle of a line */
    for (int part = 0; part < 2; part++) {
        gzFile gz = gzopen(path, part == 0 ? "wb" : "ab");
        size_t bytes = part == 0 ? half : length - half;
        CHECK(
            gz != NULL &&
            gzwrite(gz, text + (part == 0 ? 0 : half), (unsigned)bytes) == (int)bytes);
        CHECK_EQ(gzclose(gz), Z_OK);
    }
    hotbed_log_reader_options options = options_of(&the_ring, path);
    read_all(&options, &other);
    check_same(LINES);
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    size_t bytes = fread(packed, 1, sizeof packed - 8, file);
    fclose(file);
    static const char *const behind[] = {"\0\0\0",   "garbage\n", "\0\0x",
                                         "\x1f\x8c", "\x1f",      "\0\x1f\x8b"};
    static const char *const messages[] = {
        "",         "and something else follows", "and something else follows", "damaged",
        "too soon", "and something else follows"};
    static const size_t sizes[] = {3, 8, 3, 2, 1, 3};
    for (int i = 0; i < 6; i++) {
        memcpy(packed + bytes, behind[i], sizes[i]);
        write_file(path, packed, bytes + sizes[i]);
        options = options_of(&the_ring, path);
        read_all(&options, &other);
        CHECK_EQ(other.error[0] == '\0', i == 0);
        CHECK(strstr(other.error, messages[i]) != NULL);
        CHECK(i == 0 || strstr(other.error, "members.gz:101: the gzip data") != NULL);
    }
    char number[32];
    snprintf(number, sizeof number, "at byte %zu, ", bytes);
    write_file(path, packed, bytes);
    file = fopen(path, "ab");
    CHECK(file != NULL && fputs("0\t1\n", file) >= 0);
    CHECK_EQ(fclose(file), 0);
    read_all(&options, &other);
    CHECK(strstr(other.error, number) != NULL);
}

/* --- against a simple, slow reader ---------------------------------------------------------- */

enum { MODEL_LINES = 4 * LINES };

/* The batches of one epoch that the simple reader returns. */
typedef struct model {
    uint32_t rows, batches;
    int64_t keys[MODEL_LINES][HOTBED_CRITEO_FIELDS];
    float labels[MODEL_LINES];
    uint64_t lines[MODEL_LINES], bad[MODEL_LINES]; /* at the end of each batch */
    uint64_t all_bad;
    uint64_t failed_line; /* 0: none */
    uint32_t failed_column;
} model;

static model expected;

static void end_batch(uint64_t line, uint64_t bad) {
    expected.lines[expected.batches] = line;
    expected.bad[expected.batches++] = bad;
}

static void make_model(
    const char *log, size_t length, uint32_t batch, uint64_t skip_bad, uint64_t first_line) {
    const char *end = log + length;
    uint64_t line = 0, bad = 0;
    memset(&expected, 0, sizeof expected);
    for (const char *p = log, *stop; p < end; p = stop + 1) {
        stop = memchr(p, '\n', (size_t)(end - p));
        stop = stop == NULL ? end : stop;
        if (++line <= first_line)
            continue;
        hotbed_criteo_fault fault = {1, ""};
        if (stop - p <= HOTBED_READER_LINE_BYTES &&
            hotbed_criteo_parse(
                p, (size_t)(stop - p), expected.keys[expected.rows], 1,
                &expected.labels[expected.rows], &fault)) {
            if (++expected.rows % batch == 0)
                end_batch(line, bad);
        } else if (bad++ == skip_bad) {
            expected.failed_line = line;
            expected.failed_column = fault.column;
            /* Only whole batches are returned before the error. */
            expected.rows -= expected.rows % batch;
            expected.all_bad = skip_bad;
            return;
        }
    }
    expected.all_bad = bad;
    if (expected.rows % batch != 0)
        end_batch(line, bad);
}

/* Read with a reader, and compare each batch with the model's. */
static void check_against_model(const hotbed_log_reader_options *options, const char *name) {
    char message[512];
    uint32_t n = 0, batches = 0;
    hotbed_log_reader *reader = hotbed_log_reader_start(options, message, sizeof message);
    CHECK(reader != NULL);
    for (const hotbed_log_reader_batch *batch; (batch = hotbed_log_reader_take(reader)) != NULL;
         batches++) {
        CHECK(batches < expected.batches && n + batch->samples <= expected.rows);
        CHECK_EQ(batch->rows, batch->samples);
        CHECK_EQ(batch->lines, expected.lines[batches]);
        CHECK_EQ(batch->bad, expected.bad[batches]);
        CHECK(batch->fraction >= 0 && batch->fraction <= 1);
        CHECK_BYTES(batch->labels, expected.labels + n, batch->samples * sizeof(float));
        for (uint32_t s = 0; s < batch->samples; s++, n++)
            for (uint32_t f = 0; f < HOTBED_CRITEO_FIELDS; f++)
                CHECK_EQ(batch->keys[f * batch->samples + s], expected.keys[n][f]);
        hotbed_log_reader_give(reader);
    }
    CHECK_EQ(n, expected.rows);
    CHECK_EQ(batches, expected.batches);
    CHECK_EQ(hotbed_log_reader_bad(reader), expected.all_bad);
    const char *error = hotbed_log_reader_error(reader);
    CHECK_EQ(error != NULL, expected.failed_line > 0);
    if (error != NULL) {
        char place[64];
        snprintf(
            place, sizeof place, "%s:%llu: field %u (", name,
            (unsigned long long)expected.failed_line, expected.failed_column);
        CHECK(strstr(error, place) != NULL);
    }
    hotbed_log_reader_stop(reader);
}

/* Write a log of n lines, some of them damaged; `wild`: also with overlong lines. */
static size_t make_damaged(char *log, uint32_t n, bool wild) {
    hotbed_plant plant;
    hotbed_plant_settings settings = {.seed = hotbed_test_random(), .alpha = 1.1, .vocab = 100};
    hotbed_plant_init(&plant, &settings);
    size_t used = 0;
    for (uint32_t i = 0; i < n; i++) {
        hotbed_plant_row row;
        hotbed_plant_draw(&plant, i, &row);
        size_t begin = used;
        used += hotbed_plant_print(&row, log + used);
        uint64_t damage = hotbed_test_below(10);
        if (damage == 0)
            log[begin + hotbed_test_below(used - begin)] = "\n\t0-x\r"[hotbed_test_below(6)];
        /* The next line follows in the same line. */
        if (damage == 1)
            used = begin + hotbed_test_below(used - begin);
        if (damage == 2)
            log[used++] = '\n';
        if (wild && damage == 3) { /* zeros before the first integer: valid up to the limit */
            size_t length = hotbed_test_below(3) == 0 ? 40000 : HOTBED_READER_LINE_BYTES;
            size_t zeros = length - 1 + hotbed_test_below(4) - (used - 1 - begin);
            memmove(log + begin + 2 + zeros, log + begin + 2, used - begin - 2);
            memset(log + begin + 2, '0', zeros);
            used += zeros;
        }
    }
    return used - hotbed_test_below(2); /* also without the last newline */
}

/* Chunks may end at every byte of a log, with any number of threads. */
static void chunks_may_end_anywhere(hotbed_backend backend) {
    size_t length = make_damaged(text, 6, false);
    const char *path = in_directory("chunks.tsv");
    write_file(path, text, length);
    for (uint32_t bytes = 1; bytes <= length + 2; bytes += hotbed_test_is_small() ? 11 : 1) {
        hotbed_log_reader_options options = options_of(&the_ring, path);
        options.batch_size = 1 + bytes % 4;
        options.skip_bad = bytes % 5 == 0 ? 0 : 100;
        options.first_line = bytes % 7 == 0 ? 2 : 0;
        options.chunk_bytes = bytes;
        options.threads = 1 + bytes % 3;
        make_model(text, length, options.batch_size, options.skip_bad, options.first_line);
        check_against_model(&options, "chunks.tsv");
    }
}

/* Chunks as long as the longest line, a byte shorter, and a byte longer. */
static void the_longest_line_is_read(hotbed_backend backend) {
    static char log[4 * HOTBED_READER_LINE_BYTES];
    const char *path = in_directory("long.tsv");
    size_t used = 0;
    for (int longer = -1; longer < 2; longer++) {
        size_t zeros = HOTBED_READER_LINE_BYTES - 40 + (size_t)(longer + 1) - 1;
        log[used] = '0', log[used + 1] = '\t';
        memset(log + used + 2, '0', zeros);
        memset(log + used + 2 + zeros, '\t', 38);
        used += zeros + 40;
        log[used++] = '\n';
    }
    write_file(path, log, used);
    for (int shift = -2; shift < 3; shift++) {
        hotbed_log_reader_options options = options_of(&the_ring, path);
        options.batch_size = 1;
        options.skip_bad = 1;
        options.chunk_bytes = (uint32_t)(HOTBED_READER_LINE_BYTES + shift);
        make_model(log, used, 1, 1, 0);
        CHECK_EQ(expected.rows, 2);
        check_against_model(&options, "long.tsv");
    }
}

static void random_logs_are_read_as_by_a_simple_reader(hotbed_backend backend) {
    static char log[MODEL_LINES * HOTBED_PLANT_LINE + 40 * 40000];
    const char *path = in_directory("random.tsv");
    for (int round = 0; round < (hotbed_test_is_small() ? 12 : 60); round++) {
        bool wild = round % 4 == 0;
        size_t length = make_damaged(log, 1 + (uint32_t)hotbed_test_below(wild ? 40 : 300), wild);
        hotbed_log_reader_options options = options_of(&the_ring, path);
        options.batch_size = 1 + (uint32_t)hotbed_test_below(BATCH);
        options.skip_bad = hotbed_test_below(3) == 0 ? hotbed_test_below(10) : MODEL_LINES;
        options.first_line = hotbed_test_below(2) == 0 ? 0 : hotbed_test_below(3);
        options.threads = 1 + (uint32_t)hotbed_test_below(5);
        options.chunk_bytes = 1 + (uint32_t)hotbed_test_below(wild ? 100000 : 3000);
        if (round % 3 == 0) { /* as gzip */
            gzFile gz = gzopen(path, "wb1");
            CHECK(gz != NULL && gzwrite(gz, log, (unsigned)length) == (int)length);
            CHECK_EQ(gzclose(gz), Z_OK);
        } else {
            write_file(path, log, length);
        }
        make_model(log, length, options.batch_size, options.skip_bad, options.first_line);
        check_against_model(&options, "random.tsv");
    }
}

static void the_stage_that_waits_least_bounds_a_run(hotbed_backend backend) {
    static const struct {
        double reading, parsing, linked, starved; /* seconds of 10; with 4 parsing threads */
        const char *bound;
    } runs[] = {
        {9.5, 8, 1, 6, "reading"},  {2, 39, 1, 7, "parsing"},   {2, 12, 9.6, 0, "link"},
        {2, 12, 3, 0.2, "compute"}, {11, 44, 0, 10, "reading"}, {0, 0, 0, 0, "compute"},
    };
    static hotbed_run run;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        run.seconds = 10;
        run.reader_times = (hotbed_log_reader_times){runs[i].reading, runs[i].parsing, 4};
        run.linked = runs[i].linked;
        run.starved = runs[i].starved;
        hotbed_run_waits waits = hotbed_run_waits_of(&run);
        bool tie = i == 4; /* both are always busy */
        CHECK(tie || strcmp(waits.bound, runs[i].bound) == 0);
        CHECK(waits.reading >= 0 && waits.parsing >= 0 && waits.link >= 0 && waits.compute >= 0);
        CHECK_NEAR(waits.parsing, runs[i].parsing > 40 ? 0 : 1 - runs[i].parsing / 40, 1e-12);
        CHECK_NEAR(waits.compute, runs[i].starved / 10, 1e-12);
    }
}

static void can_be_stopped_at_any_time(hotbed_backend backend) {
    read_plain();
    hotbed_log_reader_options options = options_of(&the_ring, in_directory("plain.tsv"));
    options.epochs = 1000;
    options.threads = 3;
    options.chunk_bytes = 1000;
    char message[64];
    for (int taken = 0; taken < 5; taken++) {
        hotbed_log_reader *reader = hotbed_log_reader_start(&options, message, sizeof message);
        CHECK(reader != NULL);
        for (int i = 0; i < taken; i++) {
            CHECK(hotbed_log_reader_take(reader) != NULL);
            if (i > 0)
                hotbed_log_reader_give(reader);
        }
        hotbed_log_reader_stop(reader);
    }
    hotbed_log_reader_stop(NULL);
}

/* Ranks have the rows of each batch in order, and all have the same number of batches. */
static void shares_of_ranks_cover_all_rows(hotbed_backend backend) {
    read_plain();
    for (uint32_t ranks = 2; ranks <= 5; ranks++) {
        hotbed_log_reader *readers[5];
        static ring rings[5];
        uint64_t n = 0;
        for (uint32_t r = 0; r < ranks; r++) {
            hotbed_log_reader_options options = options_of(&rings[r], in_directory("plain.tsv"));
            char message[200];
            options.rank = r;
            options.threads = 2;
            options.chunk_bytes = 1500; /* several chunks for each batch */
            options.ranks = ranks;
            readers[r] = hotbed_log_reader_start(&options, message, sizeof message);
            CHECK(readers[r] != NULL);
        }
        for (uint32_t number = 0; number <= plain.batches; number++) {
            uint32_t whole = 0, in_all = 0;
            for (uint32_t r = 0; r < ranks; r++) {
                const hotbed_log_reader_batch *batch = hotbed_log_reader_take(readers[r]);
                CHECK_EQ(batch == NULL, number == plain.batches);
                if (batch == NULL)
                    continue;
                CHECK(batch->samples <= hotbed_log_reader_share(BATCH, ranks));
                for (uint32_t s = 0; s < batch->samples; s++, n++) {
                    CHECK(batch->labels[s] == plain.labels[n]);
                    for (uint32_t f = 0; f < HOTBED_CRITEO_FIELDS; f++)
                        CHECK_EQ(batch->keys[f * batch->samples + s], plain.keys[n][f]);
                }
                in_all += batch->samples;
                whole = batch->rows;
                hotbed_log_reader_give(readers[r]);
            }
            CHECK_EQ(in_all, whole);
        }
        CHECK_EQ(n, plain.n);
        for (uint32_t r = 0; r < ranks; r++)
            hotbed_log_reader_stop(readers[r]);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(gzip_crlf_and_no_last_newline_give_the_same)},
    {TEST(a_damaged_gzip_is_an_error)},
    {TEST(bad_lines_are_named_or_skipped)},
    {TEST(epochs_repeat_and_positions_resume)},
    {TEST(bad_files_are_errors)},
    {TEST(bytes_after_gzip_data_are_not_ignored)},
    {TEST(chunks_may_end_anywhere)},
    {TEST(the_longest_line_is_read)},
    {TEST(random_logs_are_read_as_by_a_simple_reader)},
    {TEST(the_stage_that_waits_least_bounds_a_run)},
    {TEST(can_be_stopped_at_any_time)},
    {TEST(shares_of_ranks_cover_all_rows)},
    {NULL, NULL},
};
