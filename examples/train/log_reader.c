/* examples/train/log_reader.c - a click log, plain or gzip, parsed ahead into a ring of batches. */
#include "examples/train/log_reader.h"

#include "examples/train/criteo.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { BUFFER_BYTES = 1 << 18, LINE_BYTES = 1 << 14 };

struct hotbed_reader {
    hotbed_reader_options options;
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex; /* guards what follows it up to `gz` */
    pthread_cond_t changed;
    uint64_t filled; /* batches parsed, taken and given back since the start */
    uint64_t taken;
    uint64_t given;
    uint64_t bad;
    bool ended;
    bool stopping;
    char error[512];
    gzFile gz; /* from here on the thread's own */
    double file_bytes;
    uint32_t epoch;
    uint64_t line;
    uint64_t epoch_bad;
    size_t begin; /* unread part of buffer */
    size_t end;
    bool eof;
    char buffer[BUFFER_BYTES];
};

static const char *shown_name(const hotbed_reader *reader) {
    return strcmp(reader->options.path, "-") == 0 ? "standard input" : reader->options.path;
}

static bool fail(hotbed_reader *reader, const char *format, ...) {
    va_list arguments;
    pthread_mutex_lock(&reader->mutex);
    va_start(arguments, format);
    vsnprintf(reader->error, sizeof reader->error, format, arguments);
    va_end(arguments);
    pthread_mutex_unlock(&reader->mutex);
    return false;
}

static bool open_file(hotbed_reader *reader) {
    const char *path = reader->options.path;
    errno = 0;
    if (strcmp(path, "-") == 0) {
        int copy = dup(STDIN_FILENO); /* gzclose() closes it */
        reader->gz = copy < 0 ? NULL : gzdopen(copy, "rb");
    } else {
        struct stat status;
        if (stat(path, &status) == 0) {
            if (S_ISDIR(status.st_mode))
                return fail(reader, "%s: is a directory", path);
            if (S_ISREG(status.st_mode))
                reader->file_bytes = (double)status.st_size;
        }
        reader->gz = gzopen(path, "rb");
    }
    if (reader->gz == NULL)
        return fail(reader, "%s: %s", shown_name(reader), strerror(errno != 0 ? errno : ENOMEM));
    gzbuffer(reader->gz, BUFFER_BYTES);
    reader->begin = 0;
    reader->end = 0;
    reader->eof = false;
    return true;
}

static void close_file(hotbed_reader *reader) {
    if (reader->gz != NULL)
        gzclose(reader->gz);
    reader->gz = NULL;
}

static const char *gz_text(int code) {
    switch (code) {
    case Z_ERRNO:
        return strerror(errno);
    case Z_BUF_ERROR:
        return "the gzip data ends too soon";
    case Z_MEM_ERROR:
        return "no memory to unpack";
    default:
        return "the gzip data is damaged";
    }
}

/* Move the unread part to the front and read more behind it. */
static bool refill(hotbed_reader *reader) {
    memmove(reader->buffer, reader->buffer + reader->begin, reader->end - reader->begin);
    reader->end -= reader->begin;
    reader->begin = 0;
    int n =
        gzread(reader->gz, reader->buffer + reader->end, (unsigned)(BUFFER_BYTES - reader->end));
    int code = Z_OK;
    gzerror(reader->gz, &code);
    if (n < 0 || (code != Z_OK && code != Z_STREAM_END))
        return fail(
            reader, "%s:%llu: %s", shown_name(reader), (unsigned long long)reader->line + 1,
            gz_text(code));
    reader->eof = n == 0;
    reader->end += (size_t)n;
    return true;
}

typedef enum line_result { LINE_OK, LINE_LONG, LINE_END, LINE_FAILED } line_result;

/* The next line, without its newline, in place.  LINE_LONG: it was passed over. */
static line_result next_line(hotbed_reader *reader, const char **line, size_t *length) {
    bool is_long = false;
    for (;;) {
        char *start = reader->buffer + reader->begin;
        size_t held = reader->end - reader->begin;
        char *stop = memchr(start, '\n', held);
        if (stop == NULL && !reader->eof && held <= LINE_BYTES) {
            if (!refill(reader))
                return LINE_FAILED;
            continue;
        }
        if (stop == NULL && !reader->eof) {
            is_long = true;
            reader->begin = reader->end;
            continue;
        }
        if (stop == NULL && held == 0 && !is_long)
            return LINE_END;
        *line = start;
        *length = stop != NULL ? (size_t)(stop - start) : held;
        reader->begin += *length + (stop != NULL);
        reader->line++;
        return is_long || *length > LINE_BYTES ? LINE_LONG : LINE_OK;
    }
}

/* Count a bad line; false when it is one too many. */
static bool bad_line(hotbed_reader *reader, const hotbed_criteo_fault *fault) {
    if (reader->epoch_bad >= reader->options.skip_bad) {
        const char *name = fault->column < 2 ? "label" : "too many fields";
        if (fault->column >= 2 && fault->column <= HOTBED_CRITEO_COLUMNS)
            name = hotbed_criteo_field_name(fault->column - 2);
        return fail(
            reader, "%s:%llu: field %u (%s): %s%s", shown_name(reader),
            (unsigned long long)reader->line, fault->column, name, fault->text,
            reader->options.skip_bad > 0 ? " (more bad lines than --skip-bad allows)" : "");
    }
    reader->epoch_bad++;
    pthread_mutex_lock(&reader->mutex);
    reader->bad++;
    pthread_mutex_unlock(&reader->mutex);
    return true;
}

/* Parse a line as row number `row` of the batch: to its place, where it is this rank's. */
static bool parse(
    hotbed_reader *reader, hotbed_reader_batch *batch, uint32_t row, const char *line,
    size_t length, hotbed_criteo_fault *fault) {
    int64_t keys[HOTBED_CRITEO_FIELDS];
    float label;
    uint32_t share = hotbed_reader_share(reader->options.batch_size, reader->options.ranks);
    if (row / share != reader->options.rank)
        return hotbed_criteo_parse(line, length, keys, 1, &label, fault);
    uint32_t at = row % share;
    if (!hotbed_criteo_parse(line, length, batch->keys + at, share, &batch->labels[at], fault))
        return false;
    batch->samples++;
    return true;
}

/* Fill a batch; *at_end: the file ended before the batch was full. */
static bool fill(hotbed_reader *reader, hotbed_reader_batch *batch, bool *at_end) {
    uint32_t share = hotbed_reader_share(reader->options.batch_size, reader->options.ranks);
    *at_end = false;
    batch->samples = 0;
    batch->rows = 0;
    while (batch->rows < reader->options.batch_size) {
        const char *line = NULL;
        size_t length = 0;
        hotbed_criteo_fault fault = {1, "the line is too long"};
        line_result result = next_line(reader, &line, &length);
        if (result == LINE_FAILED)
            return false;
        if (result == LINE_END) {
            *at_end = true;
            break;
        }
        if (result == LINE_OK && parse(reader, batch, batch->rows, line, length, &fault))
            batch->rows++;
        else if (!bad_line(reader, &fault))
            return false;
    }
    if (batch->samples < share) /* close the gaps between the features */
        for (uint32_t f = 1; f < HOTBED_CRITEO_FIELDS; f++)
            memmove(
                batch->keys + (size_t)f * batch->samples, batch->keys + (size_t)f * share,
                batch->samples * sizeof *batch->keys);
    batch->epoch = reader->epoch;
    batch->lines = reader->line;
    batch->bad = reader->epoch_bad;
    batch->fraction = -1;
    if (reader->file_bytes > 0) {
        batch->fraction = (double)gzoffset(reader->gz) / reader->file_bytes;
        if (gzdirect(reader->gz)) /* what is buffered but not parsed; packed bytes are not known */
            batch->fraction -= (double)(reader->end - reader->begin) / reader->file_bytes;
        if (batch->fraction > 1)
            batch->fraction = 1;
    }
    return true;
}

/* Wait for a free batch; NULL when the reader is being stopped. */
static hotbed_reader_batch *free_batch(hotbed_reader *reader) {
    hotbed_reader_batch *batch = NULL;
    pthread_mutex_lock(&reader->mutex);
    while (!reader->stopping && reader->filled - reader->given >= reader->options.num_batches)
        pthread_cond_wait(&reader->changed, &reader->mutex);
    if (!reader->stopping)
        batch = &reader->options.batches[reader->filled % reader->options.num_batches];
    pthread_mutex_unlock(&reader->mutex);
    return batch;
}

/* Where a resumed epoch begins. */
static bool skip_lines(hotbed_reader *reader, uint64_t lines) {
    while (reader->line < lines) {
        const char *line;
        size_t length;
        line_result result = next_line(reader, &line, &length);
        if (result == LINE_FAILED)
            return false;
        if (result == LINE_END)
            return fail(
                reader, "%s: has %llu lines, the checkpoint was saved after line %llu",
                shown_name(reader), (unsigned long long)reader->line, (unsigned long long)lines);
    }
    return true;
}

static bool read_epoch(hotbed_reader *reader) {
    bool resumed = reader->epoch == reader->options.first_epoch;
    reader->line = 0;
    if (resumed && !skip_lines(reader, reader->options.first_line))
        return false;
    reader->epoch_bad = resumed ? reader->options.first_bad : 0;
    for (bool at_end = false; !at_end;) {
        hotbed_reader_batch *batch = free_batch(reader);
        if (batch == NULL)
            return true;
        if (!fill(reader, batch, &at_end))
            return false;
        if (batch->rows == 0)
            break;
        pthread_mutex_lock(&reader->mutex);
        reader->filled++;
        pthread_cond_broadcast(&reader->changed);
        pthread_mutex_unlock(&reader->mutex);
    }
    return true;
}

static bool is_stopping(hotbed_reader *reader) {
    pthread_mutex_lock(&reader->mutex);
    bool stopping = reader->stopping;
    pthread_mutex_unlock(&reader->mutex);
    return stopping;
}

static void *run(void *argument) {
    hotbed_reader *reader = argument;
    bool ok = true;
    for (; ok && reader->epoch < reader->options.epochs && !is_stopping(reader); reader->epoch++) {
        if (reader->gz == NULL) /* the first epoch's file is open */
            ok = open_file(reader);
        ok = ok && read_epoch(reader);
        close_file(reader);
    }
    pthread_mutex_lock(&reader->mutex);
    reader->ended = true;
    pthread_cond_broadcast(&reader->changed);
    pthread_mutex_unlock(&reader->mutex);
    return NULL;
}

hotbed_reader *hotbed_reader_start(
    const hotbed_reader_options *options, char *message, size_t bytes) {
    hotbed_reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL) {
        snprintf(message, bytes, "no memory for the reader");
        return NULL;
    }
    reader->options = *options;
    reader->epoch = options->first_epoch;
    pthread_mutex_init(&reader->mutex, NULL);
    pthread_cond_init(&reader->changed, NULL);
    bool ok = reader->epoch >= options->epochs || open_file(reader);
    if (ok && pthread_create(&reader->thread, NULL, run, reader) != 0)
        ok = fail(reader, "cannot start the reader's thread");
    if (!ok) {
        snprintf(message, bytes, "%s", reader->error);
        hotbed_reader_stop(reader);
        return NULL;
    }
    reader->started = true;
    return reader;
}

hotbed_reader_batch *hotbed_reader_take(hotbed_reader *reader) {
    hotbed_reader_batch *batch = NULL;
    pthread_mutex_lock(&reader->mutex);
    while (reader->taken == reader->filled && !reader->ended)
        pthread_cond_wait(&reader->changed, &reader->mutex);
    if (reader->taken < reader->filled)
        batch = &reader->options.batches[reader->taken++ % reader->options.num_batches];
    pthread_mutex_unlock(&reader->mutex);
    return batch;
}

void hotbed_reader_give(hotbed_reader *reader) {
    pthread_mutex_lock(&reader->mutex);
    reader->given++;
    pthread_cond_broadcast(&reader->changed);
    pthread_mutex_unlock(&reader->mutex);
}

const char *hotbed_reader_error(const hotbed_reader *reader) {
    return reader->error[0] != '\0' ? reader->error : NULL; /* read once take() returned NULL */
}

uint64_t hotbed_reader_bad(const hotbed_reader *reader) {
    return reader->bad;
}

void hotbed_reader_stop(hotbed_reader *reader) {
    if (reader == NULL)
        return;
    pthread_mutex_lock(&reader->mutex);
    reader->stopping = true;
    pthread_cond_broadcast(&reader->changed);
    pthread_mutex_unlock(&reader->mutex);
    if (reader->started)
        pthread_join(reader->thread, NULL);
    close_file(reader);
    pthread_cond_destroy(&reader->changed);
    pthread_mutex_destroy(&reader->mutex);
    free(reader);
}
