/* checkpoint/format/h5.h - HDF5 metadata for a file whose bulk data is written by other code.
 *
 * libhdf5 lays out the file in memory: groups, attributes, and datasets that have an offset but no
 * content. The result is the metadata as bytes, and the offset of each dataset. Therefore libhdf5
 * never touches a disk, whose errors it may not survive, leaves no file behind when the process is
 * killed, and never parses a file: this module only writes.
 *
 * The program may use libhdf5 too. This module changes none of libhdf5's state and leaves nothing
 * in it. A lock serializes the calls of this module. With a libhdf5 built without thread safety,
 * the program must also make no calls of its own while a checkpoint is saved or verified.
 *
 * Datasets are contiguous, without filters. A dataset of 4 KiB or more starts at a multiple of 4
 * KiB. The version bounds are V110 and V110, because the metadata of HDF5 1.10 has checksums. */
#pragma once

#include "hotbed/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum hotbed_h5_type {
    HOTBED_H5_U8 = 0,
    HOTBED_H5_I64 = 1,
    HOTBED_H5_U64 = 2,
    HOTBED_H5_F16 = 3,
    HOTBED_H5_BF16 = 4, /* a custom 16-bit float type, which h5py reads as float32 */
    HOTBED_H5_F32 = 5,
} hotbed_h5_type;

/* Type and shape of a dataset; width 0 means one dimension. */
typedef struct hotbed_h5_shape {
    hotbed_h5_type type;
    uint64_t rows;
    uint64_t width;
} hotbed_h5_shape;

typedef struct hotbed_h5 hotbed_h5; /* opaque; a layout that is being made */

/* Start a layout that reserves `metadata_bytes` for metadata before the first dataset. Errors:
 * UNSUPPORTED (the version of libhdf5 differs from its headers), IO (libhdf5 failed), MEMORY. */
hotbed_status hotbed_h5_create(size_t metadata_bytes, hotbed_h5 **out);

/* Destroy a layout. NULL is allowed. */
void hotbed_h5_destroy(hotbed_h5 *h5);

/* Add an object to the layout. All paths are absolute. Intermediate groups of `path` are created if
 * missing; such groups contain their creation time, unlike groups created by hotbed_h5_group().
 * Errors: IO, MEMORY. */
hotbed_status hotbed_h5_group(hotbed_h5 *h5, const char *path);

/* Add a dataset. *offset is the position of its first byte in the file, or 0 if it has no bytes. */
hotbed_status hotbed_h5_dataset(
    hotbed_h5 *h5, const char *path, hotbed_h5_shape shape, uint64_t *offset);

/* Add a view (an HDF5 virtual dataset). Row k of dataset `path` in `file`, which is looked up beside
 * this file, is row first + k * step of the view. */
typedef struct hotbed_h5_source {
    const char *file;
    const char *path;
    uint64_t first, step, rows;
} hotbed_h5_source;

hotbed_status hotbed_h5_view(
    hotbed_h5 *h5, const char *path, hotbed_h5_shape shape, const hotbed_h5_source *sources,
    uint32_t num_sources);

/* Add a soft link: `path` also leads to the object at `target`. */
hotbed_status hotbed_h5_link(hotbed_h5 *h5, const char *path, const char *target);

hotbed_status hotbed_h5_text(
    hotbed_h5 *h5, const char *path, const char *attribute, const char *value);
hotbed_status hotbed_h5_number(
    hotbed_h5 *h5, const char *path, const char *attribute, uint64_t value);
hotbed_status hotbed_h5_real(hotbed_h5 *h5, const char *path, const char *attribute, double value);

/* A finished layout. */
typedef struct hotbed_h5_image {
    void *metadata; /* [metadata_bytes], the file's first bytes; free with hotbed_delete() */
    uint64_t metadata_bytes; /* up to the first dataset, or the whole file if there is none */
    uint64_t file_bytes;
} hotbed_h5_image;

/* Write the version of the libhdf5 that lays out files: "1.10.8". */
void hotbed_h5_version(char version[32]);

/* Finish a layout. *out->metadata is NULL if the metadata did not fit into the reserved bytes:
 * repeat the layout with more. The caller must destroy h5 even after an error. Errors: IO,
 * MEMORY. */
hotbed_status hotbed_h5_finish(hotbed_h5 *h5, hotbed_h5_image *out);
