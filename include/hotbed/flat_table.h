/* hotbed/flat_table.h - rows addressed by slot, in any memory.
 *
 * Experimental: all calls.
 *
 * For programs that manage keys themselves and need only the rows. A flat table has `capacity`
 * rows, each an embedding followed by its optimizer state, addressed by slots 0 .. capacity-1. The
 * caller chooses the slots: from a hotbed_index (hotbed/index.h), or row numbers. Storages keep
 * their rows in the same layout.
 *
 *       hotbed_flat_table_options options = {.size = sizeof options};
 *       options.dim = 64, options.capacity = 1000000;
 *       options.optimizer = HOTBED_OPT_ADAM;
 *       options.memory = HOTBED_MEMORY_PINNED;
 *       hotbed_flat_table *table;
 *       hotbed_flat_table_create(&options, stream, &table);
 *       hotbed_rows rows = {.weights = weights}; // device [n, 64]; states stay as they are
 *       hotbed_flat_table_store(table, n, slots, &rows, stream);
 *       hotbed_flat_table_load(table, n, slots, &rows, stream);
 *       hotbed_stream_sync(stream);
 *       hotbed_flat_table_destroy(table);
 *
 * The rows are in device or host memory. Kernels access DEVICE and PINNED memory directly. For a
 * CUDA table in PAGEABLE or FILE memory, a thread of the library reads and writes the rows through
 * a pinned staging buffer of the table, still in stream order and without a host wait; the caller
 * must order all calls on such a table one after another. The host backend accesses all kinds
 * directly. */
#ifndef HOTBED_FLAT_TABLE_H
#define HOTBED_FLAT_TABLE_H

#include "hotbed/status.h"
#include "hotbed/stream.h"
#include "hotbed/types.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_flat_table hotbed_flat_table; /* opaque; owned by the caller */

/* Options of a flat table. 0 is the default of every field but `size`. Fields are only ever
 * appended. */
typedef struct hotbed_flat_table_options {
    uint32_t size;                   /* sizeof(hotbed_flat_table_options) */
    uint32_t dim;                    /* elements of an embedding, 1 .. 4096; required */
    uint64_t capacity;               /* rows, 1 .. 2^36; required */
    hotbed_dtype dtype;              /* of the embedding; 0 is F32 */
    hotbed_optimizer_kind optimizer; /* the optimizer whose state a row has; 0 is none */
    hotbed_memory_kind memory;       /* 0 is DEVICE */
    const char *directory;           /* FILE: as for hotbed_memory_alloc() */
    hotbed_dtype state_dtype;        /* F32 (0 is the same) or BF16, as in hotbed_table_options */
} hotbed_flat_table_options;

/* Create a flat table on the backend and device of `stream`. Synchronous. The contents of a row are
 * undefined until it is stored (FILE: zeros). *out is NULL on error.
 * Errors: ARGUMENT (the field and its value), MEMORY, IO (FILE: the directory, a full disk), STATE
 * (the stream records a graph). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_flat_table_create(
    const hotbed_flat_table_options *options, hotbed_stream *stream, hotbed_flat_table **out);

/* Free the table. All work that uses it must be done. NULL is allowed. */
HOTBED_API void hotbed_flat_table_destroy(hotbed_flat_table *table);

/* Copy rows from the table (load) or to the table (store). Asynchronous. The counterparts of
 * dynamicemb's load_from_flat and store_to_flat.
 *
 *   slots  in   [n] device; HOTBED_SLOT_NONE and other numbers that are no row are skipped. store:
 *               the slots must be distinct
 *   rows   out  load: the parts to copy; items of skipped slots are left unchanged
 *          in   store: parts that are NULL keep their values in the table
 *
 * Errors: ARGUMENT (NULL; scores; a state that the optimizer does not have). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_flat_table_load(
    hotbed_flat_table *table, uint64_t n, const uint64_t *slots, const hotbed_rows *rows,
    hotbed_stream *stream);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_flat_table_store(
    hotbed_flat_table *table, uint64_t n, const uint64_t *slots, const hotbed_rows *rows,
    hotbed_stream *stream);

/* The memory of a flat table: row `slot` is at rows + slot * row_bytes and starts with its
 * embedding. */
typedef struct hotbed_flat_table_view {
    uint32_t size; /* set by the caller: sizeof(hotbed_flat_table_view) */
    /* DEVICE: a device address; others: a host address, which kernels can also use for PINNED */
    void *rows;
    uint64_t row_bytes; /* embedding + state + padding */
    uint64_t capacity;
    /* bytes from the start of a row to each state; 0 if the row has no such state */
    uint64_t state_offsets[2];
    uint32_t dim;
    uint32_t state_dim[2]; /* elements of each state */
    hotbed_dtype dtype;
    hotbed_optimizer_kind optimizer; /* 0: none */
    hotbed_memory_kind memory;
    hotbed_dtype state_dtypes[2]; /* of each state; F32 if the row has no such state */
} hotbed_flat_table_view;

/* Get the memory layout of a table; valid while the table exists.
 * Errors: ARGUMENT (NULL). */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_flat_table_read(const hotbed_flat_table *table, hotbed_flat_table_view *out);

HOTBED_END_DECLS
#endif
