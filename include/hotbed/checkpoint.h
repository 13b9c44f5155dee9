/* hotbed/checkpoint.h - save a storage in HDF5, and load it.
 *
 * A checkpoint is a directory.  It is written under a temporary name and renamed when it is complete and
 * on disk, so a name that exists is a whole checkpoint.  Inside, one HDF5 file a rank holds the rows in
 * canonical order (logical bucket, then key), and MANIFEST, written last, names every extent with its
 * digest.  docs/formats.md has the bytes; h5py and h5dump read the files as they are.
 */
#ifndef HOTBED_CHECKPOINT_H
#define HOTBED_CHECKPOINT_H

#include "hotbed/storage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Call hotbed_checkpoint_options_init(), then set fields. */
typedef struct hotbed_checkpoint_options {
    uint32_t size; /* set by init */
    uint64_t step; /* recorded; the caller's count of training steps */
    const void
        *extra; /* [extra_bytes] host bytes of the caller's own: the dense model, the reader's
                        * place; kept and given back as they are */
    uint64_t extra_bytes; /* at most 1 GiB */
} hotbed_checkpoint_options;

static inline void hotbed_checkpoint_options_init(hotbed_checkpoint_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* Write the storage to the new directory `path`.  Synchronous: returns when it is on disk under its
 * name.  On any error nothing named `path` exists, and the storage is unchanged.  (One exception: when the
 * name cannot be put on disk, and cannot be taken back either; the text then says so.)
 * Errors: ARGUMENT, STATE (`path` exists; tickets hold pins), IO (no space, with path and reason),
 * MEMORY, UNSUPPORTED (a build without HDF5). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_save(
    const char *path, hotbed_storage *storage, const hotbed_checkpoint_options *options,
    hotbed_stream *stream);

/* Fill the storage's tables from the checkpoint at `path`, tables matched by name, every block's digest
 * checked before its rows are used.  Keys that the storage had are removed first.  Synchronous.
 * The storage may have other capacities, eviction and backend than the one that was saved; dim, dtype,
 * key type and kind of optimiser must be the same.  A table that evicts keeps the rows of the highest scores
 * when not all fit; one that does not is FULL.
 *
 *   step         out  may be NULL
 *   extra        out  host buffer of extra_bytes; may be NULL
 *   extra_bytes  in/out  in: room in `extra`; out: bytes saved.  May be NULL
 *
 * Errors: ARGUMENT (room too small, with the bytes needed), IO, CORRUPT (file, extent, block), STATE
 * (table missing or of another shape, with both values; tickets hold pins), FULL, MEMORY, UNSUPPORTED.
 * After an error in the middle of the rows, the storage's tables are empty. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_checkpoint_load(
    const char *path, hotbed_storage *storage, uint64_t *step, void *extra, uint64_t *extra_bytes,
    hotbed_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
