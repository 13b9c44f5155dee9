/* examples/train/log_reader.h - a click log, plain or gzip, parsed ahead into a ring of batches. */
#ifndef HOTBED_EXAMPLES_LOG_READER_H
#define HOTBED_EXAMPLES_LOG_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A batch, or this rank's share of one: rows in the middle of it.  The caller owns keys and labels; the
 * reader fills what a taken batch holds.  Every rank gets as many batches, some without samples of its own
 * at the end of an epoch. */
typedef struct hotbed_reader_batch {
    int64_t *keys; /* [fields * samples], feature-major; room for fields * share */
    float *labels; /* [samples]; room for a share: hotbed_reader_share() */
    uint32_t samples;
    uint32_t rows;   /* of all ranks; below batch_size at the end of an epoch only */
    uint32_t epoch;  /* from 0 */
    uint64_t lines;  /* lines of this epoch read up to the batch's end, bad ones included */
    uint64_t bad;    /* bad ones among them */
    double fraction; /* part of the file read up to the batch's end; below 0: not known */
} hotbed_reader_batch;

typedef struct hotbed_reader_options {
    const char *path;     /* "-" is the standard input */
    uint32_t batch_size;  /* of all ranks together */
    uint32_t rank, ranks; /* which share of each batch is kept; ranks 0: 1 */
    uint32_t num_batches; /* length of the ring */
    hotbed_reader_batch *batches;
    uint32_t epochs;      /* times the file is read */
    uint64_t skip_bad;    /* bad lines that are left out, an epoch; one more is an error */
    uint32_t first_epoch; /* where to begin: this epoch, after first_line lines, of which */
    uint64_t first_line;  /* first_bad were bad */
    uint64_t first_bad;
} hotbed_reader_options;

typedef struct hotbed_reader hotbed_reader;

/* Samples of a rank's share of a batch, at most. */
static inline uint32_t hotbed_reader_share(uint32_t batch_size, uint32_t ranks) {
    return ranks <= 1 ? batch_size : (batch_size - 1) / ranks + 1;
}

/* Open the file and start the thread; `options` is copied.  On failure NULL, and the reason in
 * message[bytes]. */
hotbed_reader *hotbed_reader_start(
    const hotbed_reader_options *options, char *message, size_t bytes);

/* The next batch; waits for it.  NULL at the end, or on an error: then hotbed_reader_error() has it. */
hotbed_reader_batch *hotbed_reader_take(hotbed_reader *reader);

/* Give the oldest batch that was taken back to the ring.  Any thread. */
void hotbed_reader_give(hotbed_reader *reader);

/* NULL when all went well so far; else file, line, field and reason. */
const char *hotbed_reader_error(const hotbed_reader *reader);

/* Lines left out so far, in all epochs. */
uint64_t hotbed_reader_bad(const hotbed_reader *reader);

/* Stop the thread and close the file.  NULL is allowed. */
void hotbed_reader_stop(hotbed_reader *reader);

#endif
