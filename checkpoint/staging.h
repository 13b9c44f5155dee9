/* checkpoint/staging.h - rows of one table on their way between device memory and files.
 *
 * A staging holds the same chunk of rows twice: in device memory, where the storage reads and writes,
 * and in pinned host memory, where files do; on the host backend the two are one.  Two of them overlap the copies of one chunk with the file
 * work of the other.  Together they are a few MiB, whatever the table's size is.
 */
#ifndef HOTBED_CHECKPOINT_STAGING_H
#define HOTBED_CHECKPOINT_STAGING_H

#include "checkpoint/manifest.h"
#include "hotbed/storage.h"

typedef struct hotbed_staging {
    uint64_t capacity;                        /* rows */
    size_t row_bytes[HOTBED_ROW_COLUMNS];     /* of one row; 0: no such column */
    void *columns[HOTBED_ROW_COLUMNS];        /* host, [capacity]; keys are there for every table */
    uint8_t *found;                           /* host, [capacity] */
    void *device_columns[HOTBED_ROW_COLUMNS]; /* device twins */
    uint8_t *device_found;
    hotbed_memory host, device;
    hotbed_event *done; /* the chunk's device work */
} hotbed_staging;

/* For `rows` rows of `table`, or fewer at a time.  Errors: MEMORY, DEVICE. */
hotbed_status hotbed_staging_create(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table, uint64_t rows,
    hotbed_stream *stream, hotbed_staging *out);

/* All work on it is done.  {0} is allowed. */
void hotbed_staging_destroy(hotbed_staging *staging);

/* Enqueue: the rows of the staging's first n keys to the host columns, and whether they were found. */
hotbed_status hotbed_staging_fetch(
    hotbed_staging *staging, hotbed_storage *storage, uint32_t table, uint64_t n,
    hotbed_stream *stream);

/* Enqueue: the first n rows of the host columns into the storage. */
hotbed_status hotbed_staging_store(
    hotbed_staging *staging, hotbed_storage *storage, uint32_t table, uint64_t n,
    hotbed_stream *stream);

/* Enqueue: the first n keys out of the storage. */
hotbed_status hotbed_staging_erase(
    hotbed_staging *staging, hotbed_storage *storage, uint32_t table, uint64_t n,
    hotbed_stream *stream);

/* Enqueue: the first n keys as often as the scores say into what admission counts. */
hotbed_status hotbed_staging_count(
    hotbed_staging *staging, hotbed_storage *storage, uint32_t table, uint64_t n,
    hotbed_stream *stream);

/* Wait for what was enqueued last. */
hotbed_status hotbed_staging_wait(hotbed_staging *staging);

/* Wait for what a failure left enqueued; returns `status`, and keeps its text. */
hotbed_status hotbed_staging_settle(hotbed_stream *stream, hotbed_status status);

#endif
