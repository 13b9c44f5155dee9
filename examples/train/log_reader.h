/* examples/train/log_reader.h - a click log, plain or gzip, parsed ahead by several threads into a
 * ring of batches.
 *
 * One thread reads and unpacks the file, and cuts it into chunks at the ends of lines. Other
 * threads parse one chunk each and copy its rows into batches. Batches hold the rows in the order
 * of the file, whatever the number of threads. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A longer line is malformed. */
enum { HOTBED_READER_LINE_BYTES = 1 << 14 };

/* A batch, or this rank's share of it: consecutive rows. The caller owns keys and labels; the
 * reader fills them and the other members of a batch that is taken. Every rank gets the same number
 * of batches; at the end of an epoch some may have no samples. */
typedef struct hotbed_log_reader_batch {
    int64_t *keys; /* [fields * samples], feature-major; capacity fields * share */
    float *labels; /* [samples]; capacity hotbed_log_reader_share() */
    uint32_t samples;
    uint32_t rows;   /* of all ranks; below batch_size only at the end of an epoch */
    uint32_t epoch;  /* from 0 */
    uint64_t lines;  /* lines of this epoch up to the batch's end, malformed ones included */
    uint64_t bad;    /* malformed lines among them */
    double fraction; /* fraction of the file read up to the batch's end; below 0: not known */
} hotbed_log_reader_batch;

typedef struct hotbed_log_reader_options {
    const char *path;     /* "-" is the standard input */
    uint32_t batch_size;  /* of all ranks together */
    uint32_t rank, ranks; /* which share of each batch to keep; ranks 0: 1 */
    uint32_t num_batches; /* length of the ring */
    hotbed_log_reader_batch *batches;
    uint32_t epochs;      /* number of times the file is read */
    uint64_t skip_bad;    /* malformed lines to leave out per epoch; one more is an error */
    uint32_t first_epoch; /* where to begin: in this epoch, after first_line lines, of which */
    uint64_t first_line;  /* first_bad were malformed */
    uint64_t first_bad;
    uint32_t threads;     /* parsing threads; one more thread reads; 0: 1 */
    uint32_t chunk_bytes; /* bytes to read at a time; 0: 256 KiB */
} hotbed_log_reader_options;

/* How long the reader's threads have worked, without the time in which they waited. */
typedef struct hotbed_log_reader_times {
    double reading; /* seconds, unpacking included */
    double parsing; /* seconds of all parsing threads together */
    uint32_t threads;
} hotbed_log_reader_times;

typedef struct hotbed_log_reader hotbed_log_reader;

/* Largest number of samples in a rank's share of a batch. */
static inline uint32_t hotbed_log_reader_share(uint32_t batch_size, uint32_t ranks) {
    return ranks <= 1 ? batch_size : (batch_size - 1) / ranks + 1;
}

/* Number of cores that this process may use. */
uint32_t hotbed_log_reader_cores(void);

/* Open the file and start the threads; copies `options`. On failure returns NULL, with the reason
 * in message[bytes]. */
hotbed_log_reader *hotbed_log_reader_start(
    const hotbed_log_reader_options *options, char *message, size_t bytes);

/* Wait for the next batch. NULL at the end, or on an error, which hotbed_log_reader_error() returns. */
hotbed_log_reader_batch *hotbed_log_reader_take(hotbed_log_reader *reader);

/* Return the oldest taken batch to the ring. From any thread. */
void hotbed_log_reader_give(hotbed_log_reader *reader);

/* Call it after take() has returned NULL. Returns NULL if all went well, else file, line, field and
 * reason. */
const char *hotbed_log_reader_error(const hotbed_log_reader *reader);

/* Number of malformed lines left out so far, in all epochs. */
uint64_t hotbed_log_reader_bad(hotbed_log_reader *reader);

hotbed_log_reader_times hotbed_log_reader_times_of(hotbed_log_reader *reader);

/* Stop the threads and close the file.  NULL is allowed. */
void hotbed_log_reader_stop(hotbed_log_reader *reader);
