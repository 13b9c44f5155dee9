/* hotbed/flat_table.h - rows by slot, in any memory.
 *
 * A flat table has `capacity` rows, each an embedding followed by its optimiser state, addressed by slot:
 * 0 .. capacity-1.  Where a slot comes from is the caller's matter: a hotbed_index, a row number.  A
 * storage keeps its rows in the same layout.
 *
 * The rows are in device memory or in host memory.  Kernels read DEVICE and PINNED memory directly;
 * PAGEABLE and FILE memory of a table on CUDA is read and written by a thread of the library, and goes
 * through a pinned staging area of the table, still in stream order and without a wait: calls on such a
 * table are ordered by the caller, one after the other.  On the host backend all kinds are used directly.
 */
#ifndef HOTBED_FLAT_TABLE_H
#define HOTBED_FLAT_TABLE_H

#include "hotbed/status.h"
#include "hotbed/stream.h"
#include "hotbed/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_flat_table hotbed_flat_table; /* opaque; owned by the caller */

/* A flat table.  Call hotbed_flat_table_options_init(), then set fields; 0 is every other field's
 * default.  Fields are only ever appended. */
typedef struct hotbed_flat_table_options {
    uint32_t size;                   /* set by init */
    uint32_t dim;                    /* elements of an embedding, 1 .. 4096; required */
    uint64_t capacity;               /* rows, 1 .. 2^36; required */
    hotbed_dtype dtype;              /* of the embedding; 0 is F32 */
    hotbed_optimizer_kind optimizer; /* whose state a row has; 0 is none */
    hotbed_memory_kind memory;       /* 0 is DEVICE */
    const char *directory;           /* FILE: as of hotbed_memory_alloc() */
} hotbed_flat_table_options;

static inline void hotbed_flat_table_options_init(hotbed_flat_table_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* Create a table on the backend and device of `stream`.  What is in its rows is undefined until they are
 * stored (FILE: zeros).  Synchronous.  *out is NULL on error.
 * Errors: ARGUMENT (the field and its value), MEMORY, IO (FILE: the directory, a full disk), STATE (the
 * stream records a graph). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_flat_table_create(
    const hotbed_flat_table_options *options, hotbed_stream *stream, hotbed_flat_table **out);

/* Free the table.  All work that uses it must be done.  NULL is allowed. */
HOTBED_API void hotbed_flat_table_destroy(hotbed_flat_table *table);

/* Copy rows out of the table, or into it.  Async.  dynamicemb's load_from_flat and
 * store_to_flat.
 *
 *   slots  in   [n] device; HOTBED_SLOT_NONE and others that are no row are skipped.  store: distinct
 *   rows   out  load: what is wanted; what belongs to a skipped slot is left as it is
 *          in   store: parts that are NULL keep what they have in the table
 *
 * Errors: ARGUMENT (NULL; scores; a state that the optimiser does not have). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_flat_table_load(
    hotbed_flat_table *table, uint64_t n, const uint64_t *slots, const hotbed_rows *rows,
    hotbed_stream *stream);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_flat_table_store(
    hotbed_flat_table *table, uint64_t n, const uint64_t *slots, const hotbed_rows *rows,
    hotbed_stream *stream);

/* Where the rows are: row `slot` is at rows + slot * row_bytes, its embedding first. */
typedef struct hotbed_flat_table_view {
    void *rows; /* DEVICE: a device address; others: a host address, PINNED's for kernels too */
    uint64_t row_bytes; /* embedding + state + padding */
    uint64_t capacity;
    uint64_t
        state_offsets[2]; /* bytes from a row's start to each F32 state; 0: it has no such one */
    uint32_t dim;
    uint32_t state_dim; /* elements of each state */
    hotbed_dtype dtype;
    hotbed_optimizer_kind optimizer; /* 0: none */
    hotbed_memory_kind memory;
} hotbed_flat_table_view;

/* Valid while the table is.  Errors: ARGUMENT (NULL). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_flat_table_read(const hotbed_flat_table *table, hotbed_flat_table_view *out);

#ifdef __cplusplus
}
#endif
#endif
