/* examples/train/log_reader.c - a click log, parsed ahead by several threads into batches.
 *
 *   read_log()    one thread: reads the file into chunks of whole lines, in order
 *   parse_log()   several threads: each claims a chunk, parses its lines into the chunk's arrays,
 * waits for its turn, gets a place in the batches from place_chunk(), and copies the
 *                 rows there
 *   take(), give()  the caller: takes and returns batches in order
 *
 * place_chunk() handles one chunk at a time, in the order of the file, and only adds up numbers of
 * rows and lines; all other work runs side by side.  So the rows of a batch, the line numbers, and
 * the malformed line that exceeds the limit do not depend on the number of threads.
 */
#define _GNU_SOURCE /* NOLINT(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): affinity */
#include "examples/train/log_reader.h"

#include "examples/train/criteo.h"
#include "examples/train/log_source.h"
#include "examples/train/progress.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_BYTES = 1 << 18, /* parsed in a fifth of a millisecond; the rows of a chunk fit into L2 */
    LEAST_LINE = 41,       /* length of a line with a label and empty fields */
    THREADS_MOST = 256
};

/* Whole lines, and the rows parsed from them. */
typedef struct chunk {
    bool in_use; /* under the reader's mutex */
    uint32_t epoch;
    bool last;         /* of its epoch */
    double begin, end; /* fractions of the file read before and after it; below 0: not known */
    char *text;
    size_t length;
    char error[256]; /* why reading ended after these lines; "": it did not */
    bool error_has_line;
    uint32_t rows, num_bad;
    int64_t *keys; /* [fields * max_rows], feature-major */
    float *labels; /* [max_rows] */
    uint32_t *bad; /* [num_bad] number of the chunk's rows before each malformed line */
} chunk;

/* A position in the data: where the next row goes. */
typedef struct place {
    uint64_t batch;
    uint32_t row;  /* of the batch */
    uint64_t line; /* lines of the epoch before this position, and malformed ones among them */
    uint64_t bad;
} place;

/* A batch that is being filled. */
typedef struct filling {
    uint32_t copied; /* rows of all ranks */
    uint32_t rows;   /* rows that it will have: batch_size, or fewer at the end of an epoch */
    bool whole;
} filling;

struct hotbed_log_reader {
    hotbed_log_reader_options options;
    uint32_t own_first, own_rows; /* this rank's rows of a full batch */
    size_t max_rows;              /* of a chunk */
    uint32_t num_chunks;
    chunk *chunks;
    pthread_t reading, parsing[THREADS_MOST];
    bool reading_started;
    uint32_t parsing_started;
    pthread_mutex_t mutex;     /* guards what follows up to `source` */
    pthread_cond_t chunk_free; /* conditions, named after the change they signal */
    pthread_cond_t chunk_read;
    pthread_cond_t chunk_placed;
    pthread_cond_t batch_free;
    pthread_cond_t batch_filled;
    uint64_t read, claimed, placed; /* chunks */
    bool read_all;                  /* all chunks have been read */
    place next;
    uint64_t bad; /* malformed lines left out, in all epochs */
    uint64_t filled, taken, given;
    uint64_t num_batches; /* total; UINT64_MAX: not known yet */
    filling *fillings;    /* [options.num_batches] */
    bool stopping;
    char error[4096 + 512];
    hotbed_log_reader_times times;
    hotbed_log_source *source; /* from here on used by read_log() only */
    bool at_end;               /* the source has no more bytes */
    bool passing_over;         /* dropping the rest of a line that is too long */
    const char *carry;         /* the start of a line, in the previous chunk */
    size_t carried;
};

static uint32_t least(uint64_t a, uint32_t b) {
    return a < b ? (uint32_t)a : b;
}

/* Number of this rank's rows among the first `rows` rows of a batch. */
static uint32_t own_part(const hotbed_log_reader *reader, uint32_t rows) {
    if (rows <= reader->own_first)
        return 0;
    return least(rows - reader->own_first, reader->own_rows);
}

/* --- reading ------------------------------------------------------------------------------------------ */

/* Read more bytes after the `held` bytes of a chunk; returns the new number of bytes. */
static size_t read_more(hotbed_log_reader *reader, chunk *c, size_t held) {
    size_t wanted = reader->options.chunk_bytes;
    size_t n = hotbed_log_source_read(reader->source, c->text + held, wanted);
    reader->at_end = n < wanted;
    return held + n;
}

/* Move the bytes from p on to the start of the chunk; returns their number. */
static size_t keep_from(chunk *c, const char *p, size_t held) {
    size_t left = held - (size_t)(p - c->text);
    memmove(c->text, p, left);
    return left;
}

/* Drop the lines before first_line; returns how many bytes after them the chunk holds. */
static size_t skip_lines(hotbed_log_reader *reader, chunk *c) {
    uint64_t lines = 0, wanted = reader->options.first_line;
    bool in_line = false;
    while (lines < wanted && !reader->at_end) {
        size_t held = read_more(reader, c, 0);
        const char *p = c->text;
        const char *end = p + held;
        for (const char *newline; lines < wanted && p < end; p = newline + 1, lines++) {
            newline = memchr(p, '\n', (size_t)(end - p));
            if (newline == NULL)
                break;
        }
        in_line = p < end;
        if (lines == wanted)
            return keep_from(c, p, held);
    }
    lines += in_line ? 1 : 0;
    if (lines < wanted)
        snprintf(
            c->error, sizeof c->error,
            "has %llu %s, but the checkpoint was saved after line %llu: give the --data of that "
            "run",
            (unsigned long long)lines, lines == 1 ? "line" : "lines", (unsigned long long)wanted);
    return 0;
}

/* Drop the rest of a line that was too long; returns how many bytes after it the chunk holds. */
static size_t pass_over(hotbed_log_reader *reader, chunk *c) {
    while (!reader->at_end) {
        size_t held = read_more(reader, c, 0);
        const char *newline = memchr(c->text, '\n', held);
        if (newline != NULL)
            return keep_from(c, newline + 1, held);
    }
    return 0;
}

static size_t end_of_lines(const char *text, size_t held) {
    while (held > 0 && text[held - 1] != '\n')
        held--;
    return held;
}

/* Fill a chunk, which holds `held` bytes, with whole lines. The start of a line after them is
 * carried to the next chunk. A line that is too long is cut, but stays longer than the allowed
 * length. */
static void fill(hotbed_log_reader *reader, chunk *c, size_t held) {
    size_t length;
    while ((length = end_of_lines(c->text, held)) == 0 && !reader->at_end &&
           held <= HOTBED_READER_LINE_BYTES)
        held = read_more(reader, c, held);
    bool is_long = length == 0 && !reader->at_end;
    bool failed = hotbed_log_source_error(reader->source) != NULL;
    if (failed) {
        snprintf(c->error, sizeof c->error, "%s", hotbed_log_source_error(reader->source));
        c->error_has_line = true;
    } else if (is_long || (reader->at_end && length < held)) {
        c->text[held] = '\n';
        length = ++held;
    }
    c->length = length;
    c->last = reader->at_end && !failed;
    reader->passing_over = is_long;
    reader->carry = c->text + length;
    reader->carried = held - length;
}

/* Wait for the chunk to read next. NULL: the reader stops. */
static chunk *free_chunk(hotbed_log_reader *reader) {
    chunk *c = &reader->chunks[reader->read % reader->num_chunks];
    pthread_mutex_lock(&reader->mutex);
    while (c->in_use && !reader->stopping && reader->error[0] == '\0')
        pthread_cond_wait(&reader->chunk_free, &reader->mutex);
    bool stop = reader->stopping || reader->error[0] != '\0';
    pthread_mutex_unlock(&reader->mutex);
    if (stop)
        return NULL;
    c->error[0] = '\0';
    c->error_has_line = false;
    c->last = false;
    c->length = 0;
    return c;
}

static void read_chunk(hotbed_log_reader *reader, chunk *c, bool first) {
    size_t held = reader->carried;
    c->begin = hotbed_log_source_fraction(reader->source);
    if (first && c->epoch == reader->options.first_epoch)
        held = skip_lines(reader, c);
    else if (reader->passing_over)
        held = pass_over(reader, c);
    else if (held > 0)
        memcpy(c->text, reader->carry, held);
    if (c->error[0] == '\0')
        fill(reader, c, held);
    c->end = hotbed_log_source_fraction(reader->source);
}

/* Open the file for an epoch. On failure the chunk has the reason. */
static bool open_source(hotbed_log_reader *reader, chunk *c) {
    reader->at_end = false;
    reader->passing_over = false;
    reader->carried = 0;
    if (reader->source == NULL) /* the first epoch's file is already open */
        reader->source = hotbed_log_source_open(reader->options.path, c->error, sizeof c->error);
    return reader->source != NULL;
}

static void hand_over(hotbed_log_reader *reader, chunk *c, double seconds) {
    pthread_mutex_lock(&reader->mutex);
    c->in_use = true;
    reader->read++;
    reader->times.reading += seconds;
    pthread_cond_signal(&reader->chunk_read);
    pthread_mutex_unlock(&reader->mutex);
}

static void *read_log(void *argument) {
    hotbed_log_reader *reader = argument;
    bool ok = true;
    for (uint32_t epoch = reader->options.first_epoch; ok && epoch < reader->options.epochs;
         epoch++) {
        chunk *c = NULL;
        for (bool first = true; ok && (first || !reader->at_end); first = false) {
            c = free_chunk(reader);
            if (c == NULL) {
                ok = false;
                break;
            }
            double begin = hotbed_progress_clock();
            c->epoch = epoch;
            if (!first || open_source(reader, c))
                read_chunk(reader, c, first);
            ok = c->error[0] == '\0';
            hand_over(reader, c, hotbed_progress_clock() - begin);
        }
        hotbed_log_source_close(reader->source);
        reader->source = NULL;
    }
    pthread_mutex_lock(&reader->mutex);
    reader->read_all = true;
    pthread_cond_broadcast(&reader->chunk_read);
    pthread_mutex_unlock(&reader->mutex);
    return NULL;
}

/* --- parsing ------------------------------------------------------------------------------------------ */

static bool parse_line(
    const char *line, size_t length, int64_t *keys, size_t stride, float *label,
    hotbed_criteo_fault *fault) {
    if (length > HOTBED_READER_LINE_BYTES) {
        *fault = (hotbed_criteo_fault){0, "the line is too long"};
        return false;
    }
    return hotbed_criteo_parse(line, length, keys, stride, label, fault);
}

static void parse(const hotbed_log_reader *reader, chunk *c) {
    const char *p = c->text;
    const char *end = p + c->length;
    c->rows = 0;
    c->num_bad = 0;
    while (p < end) {
        int64_t *keys = c->keys + c->rows;
        float *label = &c->labels[c->rows];
        const char *next = hotbed_criteo_scan(p, keys, reader->max_rows, label);
        bool good = next != NULL;
        if (!good) {
            hotbed_criteo_fault fault;
            const char *newline = memchr(p, '\n', (size_t)(end - p));
            good = parse_line(p, (size_t)(newline - p), keys, reader->max_rows, label, &fault);
            next = newline + 1;
        }
        if (good)
            c->rows++;
        else
            c->bad[c->num_bad++] = c->rows;
        p = next;
    }
}

/* --- placing ------------------------------------------------------------------------------------------ */

/* Stop reading with an error message. Called under the mutex. */
static void fail(hotbed_log_reader *reader, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reader->error, sizeof reader->error, format, arguments);
    va_end(arguments);
    reader->num_batches = reader->next.batch; /* whole batches only */
    pthread_cond_broadcast(&reader->chunk_free);
    pthread_cond_broadcast(&reader->chunk_read);
    pthread_cond_broadcast(&reader->batch_filled);
}

/* Fail because of malformed line number `number` of a chunk, which follows `line` lines. */
static void fail_line(hotbed_log_reader *reader, const chunk *c, uint32_t number, uint64_t line) {
    const char *p = c->text;
    const char *newline = memchr(p, '\n', c->length);
    int64_t keys[HOTBED_CRITEO_FIELDS];
    float label;
    hotbed_criteo_fault fault = {0};
    for (uint32_t before = c->bad[number] + number; before > 0; before--) {
        p = newline + 1;
        newline = memchr(p, '\n', c->length - (size_t)(p - c->text));
    }
    (void)parse_line(p, (size_t)(newline - p), keys, 1, &label, &fault);
    char field[32] = "";
    if (fault.column > 0)
        (void)snprintf(
            field, sizeof field, "field %u (%s): ", fault.column,
            fault.column == 1 ? "label" : hotbed_criteo_field_name(fault.column - 2));
    fail(
        reader, "%s:%llu: %s%s%s", hotbed_log_source_name(reader->options.path),
        (unsigned long long)line + 1, field, fault.text,
        reader->options.skip_bad > 0 ? " (more bad lines than --skip-bad allows)" : "");
}

/* If a chunk has more malformed lines than are allowed, drop the rows after the first malformed
 * line beyond the limit. Returns the number of that malformed line in the chunk; num_bad if all are
 * allowed. */
static uint32_t check_bad(const hotbed_log_reader *reader, chunk *c) {
    uint64_t skip = reader->options.skip_bad, before = reader->next.bad;
    uint32_t allowed = least(skip > before ? skip - before : 0, c->num_bad);
    if (allowed < c->num_bad)
        c->rows = c->bad[allowed];
    return allowed;
}

static void advance(hotbed_log_reader *reader, const chunk *c, uint32_t bad) {
    place *next = &reader->next;
    uint64_t row = (uint64_t)next->row + c->rows;
    next->batch += row / reader->options.batch_size;
    next->row = (uint32_t)(row % reader->options.batch_size);
    next->line += (uint64_t)c->rows + bad;
    next->bad += bad;
    reader->bad += bad;
    if (!c->last)
        return;
    *next = (place){.batch = next->batch + (next->row > 0)};
    if (c->epoch + 1 == reader->options.epochs) {
        reader->num_batches = next->batch;
        pthread_cond_broadcast(&reader->batch_filled);
    }
}

/* Wait until all earlier chunks have their places, then write this chunk's place to *at. False if
 * the reader was stopped, or failed in an earlier chunk. */
static bool place_chunk(hotbed_log_reader *reader, chunk *c, uint64_t number, place *at) {
    pthread_mutex_lock(&reader->mutex);
    while (reader->placed < number && !reader->stopping && reader->error[0] == '\0')
        pthread_cond_wait(&reader->chunk_placed, &reader->mutex);
    bool ok = !reader->stopping && reader->error[0] == '\0';
    if (ok) {
        *at = reader->next;
        uint32_t bad = check_bad(reader, c);
        bool too_many = bad < c->num_bad;
        c->last = c->last && !too_many;
        advance(reader, c, bad);
        if (too_many)
            fail_line(reader, c, bad, reader->next.line);
        else if (c->error_has_line)
            fail(
                reader, "%s:%llu: %s", hotbed_log_source_name(reader->options.path),
                (unsigned long long)reader->next.line + 1, c->error);
        else if (c->error[0] != '\0')
            fail(reader, "%s: %s", hotbed_log_source_name(reader->options.path), c->error);
        reader->placed++;
    }
    pthread_cond_broadcast(&reader->chunk_placed);
    pthread_mutex_unlock(&reader->mutex);
    return ok;
}

/* --- filling batches ---------------------------------------------------------------------------------- */

/* Wait until a batch's arrays are free. False: the reader stops. */
static bool await_batch(hotbed_log_reader *reader, uint64_t number, double *waited) {
    pthread_mutex_lock(&reader->mutex);
    if (!reader->stopping && number >= reader->given + reader->options.num_batches) {
        double begin = hotbed_progress_clock();
        while (!reader->stopping && number >= reader->given + reader->options.num_batches)
            pthread_cond_wait(&reader->batch_free, &reader->mutex);
        *waited += hotbed_progress_clock() - begin;
    }
    bool ok = !reader->stopping;
    pthread_mutex_unlock(&reader->mutex);
    return ok;
}

/* Copy n rows of a chunk, from row `from` on, to a batch, from row `to` on. Copies only this rank's
 * rows. */
static void copy_rows(
    const hotbed_log_reader *reader, const chunk *c, uint32_t from, hotbed_log_reader_batch *batch,
    uint32_t to, uint32_t n) {
    uint32_t begin = own_part(reader, to), end = own_part(reader, to + n);
    if (begin == end)
        return;
    from += reader->own_first + begin - to;
    memcpy(batch->labels + begin, c->labels + from, (end - begin) * sizeof *c->labels);
    for (size_t f = 0; f < HOTBED_CRITEO_FIELDS; f++)
        memcpy(
            batch->keys + f * reader->own_rows + begin, c->keys + f * reader->max_rows + from,
            (end - begin) * sizeof *c->keys);
}

/* Close the gaps between the features of a batch that is not full. */
static void close_gaps(const hotbed_log_reader *reader, hotbed_log_reader_batch *batch) {
    batch->samples = own_part(reader, batch->rows);
    if (batch->samples < reader->own_rows)
        for (size_t f = 1; f < HOTBED_CRITEO_FIELDS; f++)
            memmove(
                batch->keys + f * batch->samples, batch->keys + f * reader->own_rows,
                batch->samples * sizeof *batch->keys);
}

/* Count n copied rows of a batch. The call for the batch's last rows passes the batch's other
 * members in `end`; other calls pass NULL. */
static void add_rows(
    hotbed_log_reader *reader, uint64_t number, uint32_t n, const hotbed_log_reader_batch *end) {
    uint32_t turn = (uint32_t)(number % reader->options.num_batches);
    hotbed_log_reader_batch *batch = &reader->options.batches[turn];
    filling *f = &reader->fillings[turn];
    pthread_mutex_lock(&reader->mutex);
    if (end != NULL) {
        f->rows = end->rows;
        batch->rows = end->rows;
        batch->epoch = end->epoch;
        batch->lines = end->lines;
        batch->bad = end->bad;
        batch->fraction = end->fraction;
    }
    f->copied += n;
    bool whole = f->copied == f->rows;
    pthread_mutex_unlock(&reader->mutex);
    if (!whole)
        return;
    close_gaps(reader, batch);
    pthread_mutex_lock(&reader->mutex);
    *f = (filling){.rows = reader->options.batch_size, .whole = true};
    for (; (f = &reader->fillings[reader->filled % reader->options.num_batches])->whole;
         reader->filled++)
        f->whole = false;
    pthread_cond_broadcast(&reader->batch_filled);
    pthread_mutex_unlock(&reader->mutex);
}

/* The members of a batch that ends before row `row` of a chunk, with `bad` malformed lines of the
 * chunk before that row. */
static hotbed_log_reader_batch end_of_batch(
    const chunk *c, const place *begin, uint32_t rows, uint32_t row, uint32_t bad) {
    hotbed_log_reader_batch end = {
        .rows = rows,
        .epoch = c->epoch,
        .lines = begin->line + row + bad,
        .bad = begin->bad + bad,
        .fraction = -1};
    if (c->end >= 0)
        end.fraction =
            c->rows == 0 ? c->end : c->begin + (c->end - c->begin) * ((double)row / c->rows);
    return end;
}

/* Copy the rows of a chunk to their batches, starting at `begin`. */
static bool copy_chunk(
    hotbed_log_reader *reader, const chunk *c, const place *begin, double *waited) {
    uint64_t batch = begin->batch;
    uint32_t at = begin->row, row = 0, bad = 0;
    while (row < c->rows || (c->last && at > 0)) {
        uint32_t n = least(c->rows - row, reader->options.batch_size - at);
        if (!await_batch(reader, batch, waited))
            return false;
        copy_rows(
            reader, c, row, &reader->options.batches[batch % reader->options.num_batches], at, n);
        row += n;
        at += n;
        bool full = at == reader->options.batch_size;
        if (!full && (row < c->rows || !c->last)) { /* the next chunk continues it */
            add_rows(reader, batch, n, NULL);
            return true;
        }
        while (bad < c->num_bad && (c->bad[bad] < row || !full))
            bad++;
        hotbed_log_reader_batch end = end_of_batch(c, begin, at, row, bad);
        add_rows(reader, batch, n, &end);
        batch++;
        at = 0;
    }
    return true;
}

/* --- the parsing threads ------------------------------------------------------------------------------ */

/* Wait for a chunk to parse. NULL: no more chunks. */
static chunk *claim(hotbed_log_reader *reader, uint64_t *number) {
    chunk *c = NULL;
    pthread_mutex_lock(&reader->mutex);
    while (!reader->stopping && reader->error[0] == '\0' && reader->claimed == reader->read &&
           !reader->read_all)
        pthread_cond_wait(&reader->chunk_read, &reader->mutex);
    if (!reader->stopping && reader->error[0] == '\0' && reader->claimed < reader->read) {
        *number = reader->claimed++;
        c = &reader->chunks[*number % reader->num_chunks];
    }
    pthread_mutex_unlock(&reader->mutex);
    return c;
}

static void release(hotbed_log_reader *reader, chunk *c, double seconds) {
    pthread_mutex_lock(&reader->mutex);
    c->in_use = false;
    reader->times.parsing += seconds;
    pthread_cond_signal(&reader->chunk_free);
    pthread_mutex_unlock(&reader->mutex);
}

static void *parse_log(void *argument) {
    hotbed_log_reader *reader = argument;
    uint64_t number;
    for (chunk *c; (c = claim(reader, &number)) != NULL;) {
        double begin = hotbed_progress_clock(), waited = 0;
        place at;
        parse(reader, c);
        if (place_chunk(reader, c, number, &at))
            (void)copy_chunk(reader, c, &at, &waited);
        release(reader, c, hotbed_progress_clock() - begin - waited);
    }
    return NULL;
}

/* --- the caller's side -------------------------------------------------------------------------------- */

uint32_t hotbed_log_reader_cores(void) {
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0)
        return 1;
    int count = CPU_COUNT(&cores);
    return count < 1 ? 1 : (uint32_t)count;
}

static bool create_chunks(hotbed_log_reader *reader) {
    size_t text = (size_t)HOTBED_READER_LINE_BYTES + reader->options.chunk_bytes + 1;
    reader->num_chunks = 2 * reader->options.threads + 1;
    reader->max_rows = text / LEAST_LINE + 1;
    reader->chunks = calloc(reader->num_chunks, sizeof *reader->chunks);
    reader->fillings = calloc(reader->options.num_batches, sizeof *reader->fillings);
    if (reader->chunks == NULL || reader->fillings == NULL)
        return false;
    for (uint32_t b = 0; b < reader->options.num_batches; b++)
        reader->fillings[b].rows = reader->options.batch_size;
    for (uint32_t i = 0; i < reader->num_chunks; i++) {
        chunk *c = &reader->chunks[i];
        c->text = calloc(1, text + HOTBED_CRITEO_PADDING);
        c->keys = malloc(HOTBED_CRITEO_FIELDS * reader->max_rows * sizeof *c->keys);
        c->labels = malloc(reader->max_rows * sizeof *c->labels);
        c->bad = malloc(text * sizeof *c->bad);
        if (c->text == NULL || c->keys == NULL || c->labels == NULL || c->bad == NULL)
            return false;
    }
    return true;
}

static bool start_threads(hotbed_log_reader *reader) {
    uint32_t *n = &reader->parsing_started;
    for (; *n < reader->options.threads; (*n)++)
        if (pthread_create(&reader->parsing[*n], NULL, parse_log, reader) != 0)
            return false;
    reader->reading_started = pthread_create(&reader->reading, NULL, read_log, reader) == 0;
    return reader->reading_started;
}

static void set_options(hotbed_log_reader *reader, const hotbed_log_reader_options *options) {
    hotbed_log_reader_options *o = &reader->options;
    *o = *options;
    o->threads = o->threads == 0 ? 1 : least(o->threads, THREADS_MOST);
    o->chunk_bytes = o->chunk_bytes == 0 ? CHUNK_BYTES : o->chunk_bytes;
    uint32_t share = hotbed_log_reader_share(o->batch_size, o->ranks);
    uint64_t first = (uint64_t)share * o->rank;
    reader->own_first = least(first, o->batch_size);
    reader->own_rows = least(o->batch_size - reader->own_first, share);
    reader->next = (place){.line = o->first_line, .bad = o->first_bad};
    reader->num_batches = UINT64_MAX;
    reader->times.threads = o->threads;
}

hotbed_log_reader *hotbed_log_reader_start(
    const hotbed_log_reader_options *options, char *message, size_t bytes) {
    hotbed_log_reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL) {
        snprintf(message, bytes, "no memory for the reader");
        return NULL;
    }
    set_options(reader, options);
    pthread_mutex_init(&reader->mutex, NULL);
    pthread_cond_init(&reader->chunk_free, NULL);
    pthread_cond_init(&reader->chunk_read, NULL);
    pthread_cond_init(&reader->chunk_placed, NULL);
    pthread_cond_init(&reader->batch_free, NULL);
    pthread_cond_init(&reader->batch_filled, NULL);
    if (options->first_epoch >= options->epochs) {
        reader->num_batches = 0;
        return reader;
    }
    char why[256];
    reader->source = hotbed_log_source_open(options->path, why, sizeof why);
    if (reader->source == NULL)
        snprintf(message, bytes, "%s: %s", hotbed_log_source_name(options->path), why);
    else if (!create_chunks(reader))
        snprintf(message, bytes, "no memory for %u chunks of the reader", reader->num_chunks);
    else if (!start_threads(reader))
        snprintf(message, bytes, "cannot start the reader's threads");
    else
        return reader;
    hotbed_log_reader_stop(reader);
    return NULL;
}

hotbed_log_reader_batch *hotbed_log_reader_take(hotbed_log_reader *reader) {
    hotbed_log_reader_batch *batch = NULL;
    pthread_mutex_lock(&reader->mutex);
    while (reader->taken == reader->filled && reader->taken < reader->num_batches)
        pthread_cond_wait(&reader->batch_filled, &reader->mutex);
    if (reader->taken < reader->filled)
        batch = &reader->options.batches[reader->taken++ % reader->options.num_batches];
    pthread_mutex_unlock(&reader->mutex);
    return batch;
}

void hotbed_log_reader_give(hotbed_log_reader *reader) {
    pthread_mutex_lock(&reader->mutex);
    reader->given++;
    pthread_cond_broadcast(&reader->batch_free);
    pthread_mutex_unlock(&reader->mutex);
}

const char *hotbed_log_reader_error(const hotbed_log_reader *reader) {
    return reader->error[0] != '\0' ? reader->error : NULL;
}

uint64_t hotbed_log_reader_bad(hotbed_log_reader *reader) {
    pthread_mutex_lock(&reader->mutex);
    uint64_t bad = reader->bad;
    pthread_mutex_unlock(&reader->mutex);
    return bad;
}

hotbed_log_reader_times hotbed_log_reader_times_of(hotbed_log_reader *reader) {
    pthread_mutex_lock(&reader->mutex);
    hotbed_log_reader_times times = reader->times;
    pthread_mutex_unlock(&reader->mutex);
    return times;
}

static void destroy(hotbed_log_reader *reader) {
    for (uint32_t i = 0; reader->chunks != NULL && i < reader->num_chunks; i++) {
        free(reader->chunks[i].text);
        free(reader->chunks[i].keys);
        free(reader->chunks[i].labels);
        free(reader->chunks[i].bad);
    }
    free(reader->chunks);
    free(reader->fillings);
    hotbed_log_source_close(reader->source);
    pthread_cond_destroy(&reader->batch_filled);
    pthread_cond_destroy(&reader->batch_free);
    pthread_cond_destroy(&reader->chunk_placed);
    pthread_cond_destroy(&reader->chunk_read);
    pthread_cond_destroy(&reader->chunk_free);
    pthread_mutex_destroy(&reader->mutex);
    free(reader);
}

void hotbed_log_reader_stop(hotbed_log_reader *reader) {
    if (reader == NULL)
        return;
    pthread_mutex_lock(&reader->mutex);
    reader->stopping = true;
    pthread_cond_broadcast(&reader->chunk_free);
    pthread_cond_broadcast(&reader->chunk_read);
    pthread_cond_broadcast(&reader->chunk_placed);
    pthread_cond_broadcast(&reader->batch_free);
    pthread_mutex_unlock(&reader->mutex);
    for (uint32_t i = 0; i < reader->parsing_started; i++)
        pthread_join(reader->parsing[i], NULL);
    if (reader->reading_started)
        pthread_join(reader->reading, NULL);
    destroy(reader);
}
