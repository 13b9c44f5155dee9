/* checkpoint/h5.h - the HDF5 metadata of a file whose bulk bytes are written by others.
 *
 * libhdf5 lays the file out in a nameless sparse file in /dev/shm: groups, attributes, and datasets that
 * have a place but no content.  What comes out is the metadata as bytes, and the place of each dataset.
 * So libhdf5 does not meet the checkpoint's disk, whose errors it may not survive, and never parses a
 * file: this module only writes.
 *
 * Datasets are contiguous, without filters; one of 4 KiB or more starts at a multiple of 4 KiB.  The
 * bounds are those of HDF5 1.10, whose metadata carries checksums.  Calls are serialised by a lock, so
 * that a libhdf5 that was built without threads does.
 */
#ifndef HOTBED_CHECKPOINT_H5_H
#define HOTBED_CHECKPOINT_H5_H

#include "hotbed/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum hotbed_h5_type {
    HOTBED_H5_U8 = 0,
    HOTBED_H5_I64 = 1,
    HOTBED_H5_U64 = 2,
    HOTBED_H5_F16 = 3,
    HOTBED_H5_BF16 = 4, /* a 16-bit float of our own making, which h5py reads as float32 */
    HOTBED_H5_F32 = 5,
} hotbed_h5_type;

/* Type and shape of a dataset; width 0 is one dimension. */
typedef struct hotbed_h5_shape {
    hotbed_h5_type type;
    uint64_t rows;
    uint64_t width;
} hotbed_h5_shape;

typedef struct hotbed_h5 hotbed_h5; /* opaque; a layout in the making */

/* Start a layout with room for `metadata_bytes` of metadata before the first dataset.
 * Errors: UNSUPPORTED (libhdf5 is another version than its headers), IO. */
hotbed_status hotbed_h5_create(size_t metadata_bytes, hotbed_h5 **out);

/* Give the layout up.  NULL is allowed. */
void hotbed_h5_destroy(hotbed_h5 *h5);

/* All of these: paths are absolute; groups on the way to `path` are made, with the time in them, which groups
 * that are made by themselves do not have.  Errors: IO. */
hotbed_status hotbed_h5_group(hotbed_h5 *h5, const char *path);

/* Set *offset to the dataset's first byte in the file; 0 when it has none. */
hotbed_status hotbed_h5_dataset(
    hotbed_h5 *h5, const char *path, hotbed_h5_shape shape, uint64_t *offset);

/* A dataset of which rows [first, first + shape.rows) are those of dataset `source` in `file`, which
 * is looked for beside this one (an HDF5 virtual dataset). */
typedef struct hotbed_h5_source {
    const char *file;
    const char *path;
    uint64_t first, rows;
} hotbed_h5_source;

hotbed_status hotbed_h5_view(
    hotbed_h5 *h5, const char *path, hotbed_h5_shape shape, const hotbed_h5_source *sources,
    uint32_t num_sources);

/* `path` also leads to the object at `target`.  A soft link. */
hotbed_status hotbed_h5_link(hotbed_h5 *h5, const char *path, const char *target);

hotbed_status hotbed_h5_text(
    hotbed_h5 *h5, const char *path, const char *attribute, const char *value);
hotbed_status hotbed_h5_number(
    hotbed_h5 *h5, const char *path, const char *attribute, uint64_t value);
hotbed_status hotbed_h5_real(hotbed_h5 *h5, const char *path, const char *attribute, double value);

/* A finished layout. */
typedef struct hotbed_h5_image {
    void *metadata;          /* [metadata_bytes], the file's first; free with hotbed_delete() */
    uint64_t metadata_bytes; /* up to the first dataset, or the whole file when there is none */
    uint64_t file_bytes;
} hotbed_h5_image;

/* Version of the libhdf5 that lays files out: "1.10.8". */
void hotbed_h5_version(char version[32]);

/* Finish.  *out->metadata is NULL when the metadata did not fit its room: make the layout again with
 * more.  The caller destroys h5 in any case.  Errors: IO, MEMORY. */
hotbed_status hotbed_h5_finish(hotbed_h5 *h5, hotbed_h5_image *out);

#endif
