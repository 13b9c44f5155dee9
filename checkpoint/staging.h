/* checkpoint/staging.h - rows of one table between device memory and files.
 *
 * A staging holds the same chunk of rows twice: in device memory, which the storage reads and
 * writes, and in pinned host memory, which files use. On the host backend both are the same memory.
 * With two stagings, the copies of one chunk overlap the file transfers of the other. Together they
 * take a few MiB, whatever the size of the table. */
#pragma once

#include "checkpoint/format/manifest.h"
#include "hotbed/storage.h"

typedef struct hotbed_staging {
    uint64_t capacity;                    /* rows */
    size_t row_bytes[HOTBED_ROW_COLUMNS]; /* of one row in the file; 0: no such column */
    size_t width[HOTBED_ROW_COLUMNS];     /* of one row in the storage */
    /* of values and states: in the file, in the storage */
    hotbed_column_form from[HOTBED_ROW_COLUMNS], to[HOTBED_ROW_COLUMNS];
    void *columns[HOTBED_ROW_COLUMNS];        /* host, [capacity]; keys exist for every table */
    uint8_t *found;                           /* host, [capacity] */
    void *device_columns[HOTBED_ROW_COLUMNS]; /* the same columns on the device */
    uint8_t *device_found;
    hotbed_memory host, device;
    hotbed_event *done; /* end of the chunk's device work */
} hotbed_staging;

/* Allocate a staging for `rows` rows, or fewer at a time, whose row_bytes are set except of KEYS; `from` and
 * `to` are set, too, if the types differ. Errors: MEMORY, DEVICE; *staging is {0} then. */
hotbed_status hotbed_staging_open(uint64_t rows, hotbed_stream *stream, hotbed_staging *staging);

/* Create a staging for rows of `table` of a checkpoint, for a storage whose table has the types `to`.
 * The caller converts the host columns before hotbed_staging_store(). Errors: MEMORY, DEVICE. */
hotbed_status hotbed_staging_create(
    const hotbed_manifest *manifest, const hotbed_manifest_table *table, hotbed_row_types to,
    uint64_t rows, hotbed_stream *stream, hotbed_staging *out);

/* Destroy a staging. All its work must be done. {0} is allowed. */
void hotbed_staging_destroy(hotbed_staging *staging);

/* Enqueue: read the rows of the first n keys to the host columns, and set `found`. */
hotbed_status hotbed_staging_fetch(
    hotbed_staging *staging, hotbed_storage *storage, uint32_t table, uint64_t n,
    hotbed_stream *stream);

/* Enqueue: store the first n rows of the host columns, which have the storage's types. */
hotbed_status hotbed_staging_store(
    hotbed_staging *staging, hotbed_storage *storage, uint32_t table, uint64_t n,
    hotbed_stream *stream);

/* Enqueue: erase the first n keys. */
hotbed_status hotbed_staging_erase(
    hotbed_staging *staging, hotbed_storage *storage, uint32_t table, uint64_t n,
    hotbed_stream *stream);

/* Enqueue: add the first n keys to the keys that admission counts, with the SCORES column as
 * counts. */
hotbed_status hotbed_staging_count(
    hotbed_staging *staging, hotbed_storage *storage, uint32_t table, uint64_t n,
    hotbed_stream *stream);

/* Wait for the work that was enqueued last. */
hotbed_status hotbed_staging_wait(hotbed_staging *staging);
