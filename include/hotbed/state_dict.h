/* hotbed/state_dict.h - a storage's tables under the names of a PyTorch state dict.
 *
 * Experimental: all calls.
 *
 * For programs that exchange weights with PyTorch or TorchRec. A weight has two identities: the
 * name that a checkpoint or an optimizer knows, and the memory that forward and backward use. Here
 * they are one: the tensors of weights and optimizer states are views of that memory, with a
 * stride, so a write through either is read by the other. Rows of a hash table are stored by slot;
 * hotbed_state_dict_rows() maps keys to rows.
 *
 *   <prefix><table>.weight                      view [rows, dim]
 *   <prefix><table>.weight_id                   made: [keys] keys, in canonical order
 *   <prefix><table>.bucket                      made: [65536] keys in each logical bucket
 *   <prefix><table>.metadata                    made: [keys] scores
 *   optimizer.<prefix><table>.weight.<table>.<state>   view [rows, state dim]
 *
 * The caller chooses the prefix, for example "embedding_bags." or "model.sparse.embeddings."; the
 * default is "embeddings.". weight_id, bucket and metadata exist for HASH tables only (TorchRec's
 * virtual tables). They are *made* tensors: copies in host memory, written when the dict is
 * collected. A load never reports them as missing.
 *
 * Copy the weights of table "user" from another program's arrays, then read all tensors:
 *
 *     hotbed_state_dict *dict;
 *     status = hotbed_state_dict_create(storage, "model.embeddings.", &dict);
 *     hotbed_state_source sources[] = {
 *         {.name = "model.embeddings.user.weight", .element = HOTBED_ELEMENT_F32, .rows = n,
 *          .columns = dim, .data = weights},
 *         {.name = "model.embeddings.user.weight_id", .element = HOTBED_ELEMENT_I64, .rows = n,
 *          .data = keys}};
 *     status = hotbed_state_dict_load(dict, 2, sources, false, NULL, stream);
 *     status = hotbed_state_dict_gather(dict, stream);
 *     for (uint32_t i = 0; i < hotbed_state_dict_size(dict); i++) {
 *         hotbed_state_tensor tensor = {.size = sizeof tensor};
 *         status = hotbed_state_dict_tensor(dict, i, &tensor);
 *         use(tensor.name, tensor.data);
 *     }
 *     hotbed_state_dict_destroy(dict);
 *
 * hotbed_state_dict_gather() copies weights and states to host memory as well; row i of a HASH
 * table is then the row of key i of weight_id. Every tensor can then be passed to
 * hotbed_state_dict_load(), of this dict or of another.
 *
 * The steps of a save are those in PyTorch's state_dict(): hooks, flush, the tensors, hooks. The
 * steps of a load are those in load_state_dict(): hooks, made tensors are set aside, names are
 * compared, rows are copied, hooks. Modelled on TorchRec's sharded modules
 * (TableBatchedEmbeddingSlice, the state-dict hooks). */
#ifndef HOTBED_STATE_DICT_H
#define HOTBED_STATE_DICT_H

#include "hotbed/dlpack.h"
#include "hotbed/storage.h"

HOTBED_BEGIN_DECLS

typedef struct hotbed_state_dict hotbed_state_dict; /* opaque; owned by the caller */

typedef enum hotbed_state_kind {
    HOTBED_STATE_WEIGHT = 0,
    HOTBED_STATE_WEIGHT_ID = 1,
    HOTBED_STATE_BUCKET = 2,
    HOTBED_STATE_METADATA = 3,
    HOTBED_STATE_OPTIMIZER = 4,
} hotbed_state_kind;

/* A tensor of the dict. Plain data; valid as long as the dict, made tensors until the next collect
 * or gather. */
typedef struct hotbed_state_tensor {
    uint32_t size; /* set by the caller: sizeof(hotbed_state_tensor) */
    const char *name;
    hotbed_state_kind kind;
    uint32_t table; /* number of the table in the storage */
    uint32_t state; /* OPTIMIZER: number of the state */
    hotbed_element element;
    /* Views: rows in all memories of the view. Row r of a STATIC table is key r with HBM_DIRECT;
     * otherwise see hotbed_state_dict_rows(). */
    uint64_t rows;
    uint64_t columns;   /* 0: one dimension */
    uint64_t row_bytes; /* from one row to the next */
    /* Views: the memory that forward and backward use, with CACHE the lower tier's; NULL unless the
     * view has exactly one memory, see hotbed_state_dict_piece(). Made tensors: host memory, NULL
     * before the first collect. */
    void *data;
    bool made; /* a copy in host memory, not a view */
    /* Views: number of memories that hold its rows: 1; with DEFAULT 2, the upper and the lower
     * tier's; one more for each growth; 0 over an external store. */
    uint32_t pieces;
} hotbed_state_tensor;

/* One of a view's memories: rows [first_row, first_row + rows), row_bytes from one to the next.
 * Frozen: it has no size field. */
typedef struct hotbed_state_piece {
    void *data; /* address of its first row */
    uint64_t first_row, rows;
} hotbed_state_piece;

/* Describe a storage, which must outlive the dict.
 *
 *   prefix  in  stands before each table's name, at most 127 characters; copied. NULL:
 *               "embeddings."
 *
 * Errors: ARGUMENT (NULL, a longer prefix), MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_state_dict_create(hotbed_storage *storage, const char *prefix, hotbed_state_dict **out);
HOTBED_API void hotbed_state_dict_destroy(hotbed_state_dict *dict); /* NULL is allowed */

/* Return the number of tensors, or a tensor by number or by name, in the order of the tables.
 * Errors: ARGUMENT (number out of range; no tensor has this name). */
HOTBED_API uint32_t hotbed_state_dict_size(const hotbed_state_dict *dict);
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_state_dict_tensor(const hotbed_state_dict *dict, uint32_t number, hotbed_state_tensor *out);
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_state_dict_find(const hotbed_state_dict *dict, const char *name, hotbed_state_tensor *out);

/* Return memory number `piece` of view number `number`. Errors: ARGUMENT (a number out of range; a
 * made tensor). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_state_dict_piece(
    const hotbed_state_dict *dict, uint32_t number, uint32_t piece, hotbed_state_piece *out);

/* Find the rows of keys in a table's views, as of the last collect. With DEFAULT BY_SCORE a later
 * prefetch moves rows; otherwise a key keeps its row while it is in the table. With CACHE, writes
 * to these rows take effect once hotbed_storage_reset() has emptied the upper tier.
 *
 *   keys  in   [n] host
 *   rows  out  [n] host; HOTBED_SLOT_NONE if the key is not in the table, or in an external store
 *
 * Errors: ARGUMENT, STATE (nothing has been collected). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_state_dict_rows(
    const hotbed_state_dict *dict, uint32_t table, uint64_t n, const uint64_t *keys,
    uint64_t *rows);

/* --- hooks ------------------------------------------------------------------------------------ */

typedef enum hotbed_state_moment {
    HOTBED_STATE_BEFORE_COLLECT = 0, /* before caches are flushed */
    HOTBED_STATE_AFTER_COLLECT = 1,  /* the tensors are complete */
    HOTBED_STATE_BEFORE_LOAD = 2,    /* before names are compared */
    HOTBED_STATE_AFTER_LOAD = 3,     /* rows are copied */
} hotbed_state_moment;

typedef hotbed_status (*hotbed_state_hook)(
    void *self, hotbed_state_dict *dict, hotbed_stream *stream);

/* Call `hook` at a moment, after the hooks that were added before. If a hook returns an error, the
 * call that it runs in ends and returns that error. Errors: ARGUMENT, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_state_dict_add_hook(
    hotbed_state_dict *dict, hotbed_state_moment moment, hotbed_state_hook hook, void *self);

/* --- collect and load ------------------------------------------------------------------------- */

/* Flush caches, and write the made tensors. Synchronous: afterwards, views have the newest bytes
 * of every row. Errors: those returned by a hook, MEMORY, STATE (the stream records a graph),
 * DEVICE. A fault of an earlier call stays latched on the stream; the call does not fail for it. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_state_dict_collect(hotbed_state_dict *dict, hotbed_stream *stream);

/* Collect, and copy the rows of all tables to host memory. Until the next collect, the tensors of
 * weights and states are made tensors too, that is packed copies: [keys] in the order of weight_id,
 * or, for STATIC tables, [capacity] by number. Works in every mode, and over an external store.
 * Each tensor can be passed to hotbed_state_dict_load() unchanged: name, element, rows, columns,
 * row_bytes and data. Times of TIMESTAMP_LFU tables are not included. Synchronous; no table may
 * change during the call. Needs as much host memory as the rows, and 8 MiB.
 * Errors: as hotbed_state_dict_collect(); STATE also if a row left a table during the call. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_state_dict_gather(hotbed_state_dict *dict, hotbed_stream *stream);

/* A tensor to load, in host memory. Frozen: it has no size field, since calls take arrays of it. */
typedef struct hotbed_state_source {
    const char *name;
    hotbed_element element;
    uint64_t rows, columns; /* columns 0: one dimension */
    /* From one row to the next, at least the size of a row; 0: rows are contiguous. */
    uint64_t row_bytes;
    const void *data;
} hotbed_state_source;

/* Names that did not match. They belong to the dict or to the sources, and are valid as long as
 * those. Frozen: it has no size field. */
typedef struct hotbed_state_report {
    uint32_t num_missing, num_unexpected; /* total numbers */
    const char *missing[16];              /* the first ones */
    const char *unexpected[16];
} hotbed_state_report;

/* Copy tensors into the tables. Synchronous.
 *
 *   sources  in   [n]. STATIC tables: [capacity, dim]. HASH tables: weight and weight_id with equal
 *                 numbers of rows, and metadata and states if available. Rows are set by key; other
 *                 rows do not change. A table without weight_id is not changed, since its rows come
 *                 from a checkpoint. bucket is not needed. A table with max_capacity grows so that
 *                 it holds the rows of weight_id, not counting other keys that it has
 *   strict   in   fail with STATE if names are missing or unexpected; nothing is copied then
 *   report   out  set in any case; may be NULL
 *
 * Names of HASH tables are never missing. Shapes, elements and keys are checked before anything is
 * copied; the check uses 16 bytes of host memory for each key.
 * Errors: those returned by a hook, ARGUMENT (shape, element or row_bytes, with name and both
 * values; more rows than memory can hold; a score over 2^52 - 1; a name or a key twice), STATE (strict; the
 * stream records a graph), FULL, MEMORY, DEVICE, and the fault of an earlier call on the stream;
 * nothing was copied then. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_state_dict_load(
    hotbed_state_dict *dict, uint32_t n, const hotbed_state_source *sources, bool strict,
    hotbed_state_report *report, hotbed_stream *stream);

HOTBED_END_DECLS
#endif
