/* hotbed/state_dict.h - a storage's tables under the names of a PyTorch state dict.
 *
 * A weight has two identities: the name that a checkpoint or an optimiser knows, and the memory that forward
 * and backward work on.  Here they are one: the tensors of weights and optimiser states are views of that
 * memory, with a stride, and what is written through one is read by the other.  Rows of a hash table lie by slot;
 * hotbed_state_dict_rows() says where a key's is.
 *
 *   <prefix>embeddings.<table>.weight                      view [rows, dim]
 *   <prefix>embeddings.<table>.weight_id                   made: [keys] keys, in canonical order
 *   <prefix>embeddings.<table>.bucket                      made: [65536] keys in each logical bucket
 *   <prefix>embeddings.<table>.metadata                    made: [keys] scores
 *   <prefix>optimizer.embeddings.<table>.weight.<table>.<state>   view [rows, state dim]
 *
 * The three in the middle are of HASH tables (TorchRec's virtual tables).  They do not lie anywhere; they are
 * made, in host memory, when the dict is collected, and are never missed when one is loaded.
 *
 * The steps of a save are those of state_dict(): hooks, flush, the tensors, hooks; of a load those of
 * load_state_dict(): hooks, what is generated is put aside, names are compared, rows are copied, hooks.
 * Idea: TorchRec's sharded modules (TableBatchedEmbeddingSlice, the state-dict hooks).
 */
#ifndef HOTBED_STATE_DICT_H
#define HOTBED_STATE_DICT_H

#include "hotbed/checkpoint.h"
#include "hotbed/dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hotbed_state_dict hotbed_state_dict; /* opaque; owned by the caller */

typedef enum hotbed_state_kind {
    HOTBED_STATE_WEIGHT = 0,
    HOTBED_STATE_WEIGHT_ID = 1,
    HOTBED_STATE_BUCKET = 2,
    HOTBED_STATE_METADATA = 3,
    HOTBED_STATE_OPTIMIZER = 4,
} hotbed_state_kind;

/* A tensor of the dict.  Plain data; valid while the dict is, made ones until the next collect. */
typedef struct hotbed_state_tensor {
    const char *name;
    hotbed_state_kind kind;
    uint32_t table; /* its number in the storage */
    uint32_t state; /* OPTIMIZER: number of the state */
    hotbed_element element;
    uint64_t rows;      /* views: of all its memories.  Row r of a STATIC table is key r with
                         * HBM_DIRECT; else see hotbed_state_dict_rows() */
    uint64_t columns;   /* 0: one dimension */
    uint64_t row_bytes; /* from one row to the next */
    void *data; /* views: memory that computes, the lower tier's with CACHE; NULL unless that
                         * is one, see hotbed_state_dict_piece().  Made ones: host memory, NULL
                         * before the first collect */
    bool made;
    uint32_t pieces; /* views: memories its rows lie in: 1; with DEFAULT 2, the upper tier's and the
                      * lower's; one more for each growth; 0 over an external store */
} hotbed_state_tensor;

/* One of a view's memories: rows [first_row, first_row + rows), row_bytes from one to the next. */
typedef struct hotbed_state_piece {
    void *data; /* of its first row */
    uint64_t first_row, rows;
} hotbed_state_piece;

/* Describe a storage, which outlives the dict.  `prefix` is put before each name, at most 127 characters;
 * NULL is "".  Errors: ARGUMENT, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_state_dict_create(hotbed_storage *storage, const char *prefix, hotbed_state_dict **out);
HOTBED_API void hotbed_state_dict_destroy(hotbed_state_dict *dict); /* NULL is allowed */

/* The tensors, in order of tables.  Errors: ARGUMENT (number out of range; there is no such name). */
HOTBED_API uint32_t hotbed_state_dict_size(const hotbed_state_dict *dict);
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_state_dict_tensor(const hotbed_state_dict *dict, uint32_t number, hotbed_state_tensor *out);
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_state_dict_find(const hotbed_state_dict *dict, const char *name, hotbed_state_tensor *out);

/* Memory number `piece` of view number `number`.  Errors: ARGUMENT (a number out of range; a tensor that is made). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_state_dict_piece(
    const hotbed_state_dict *dict, uint32_t number, uint32_t piece, hotbed_state_piece *out);

/* In which rows of a table's views keys were at the last collect.  With DEFAULT BY_SCORE a later prefetch moves
 * rows, otherwise a key keeps its row while it is in the table; with CACHE what is written there is read once
 * hotbed_storage_reset() has emptied the upper tier.
 *
 *   keys  in   [n] host
 *   rows  out  [n] host; HOTBED_SLOT_NONE where the key is not there, or in an external store
 *
 * Errors: ARGUMENT, STATE (there was no collect). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_state_dict_rows(
    const hotbed_state_dict *dict, uint32_t table, uint64_t n, const uint64_t *keys,
    uint64_t *rows);

/* --- hooks ------------------------------------------------------------------------------------------ */

typedef enum hotbed_state_moment {
    HOTBED_STATE_BEFORE_COLLECT = 0, /* before caches are flushed */
    HOTBED_STATE_AFTER_COLLECT = 1,  /* the tensors are there */
    HOTBED_STATE_BEFORE_LOAD = 2,    /* before names are looked at */
    HOTBED_STATE_AFTER_LOAD = 3,     /* rows are copied */
} hotbed_state_moment;

typedef hotbed_status (*hotbed_state_hook)(
    void *self, hotbed_state_dict *dict, hotbed_stream *stream);

/* Call `hook` at a moment, after those that were added before.  What it returns but OK ends the call that it is
 * in, which returns it.  Errors: ARGUMENT, MEMORY. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_state_dict_add_hook(
    hotbed_state_dict *dict, hotbed_state_moment moment, hotbed_state_hook hook, void *self);

/* --- out and in --------------------------------------------------------------------------------------- */

/* Flush what caches hold, and make the tensors that are made.  Synchronous: after it, views have every row's
 * newest bytes.  Errors: a hook's, MEMORY, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_state_dict_collect(hotbed_state_dict *dict, hotbed_stream *stream);

/* A tensor to load: host memory. */
typedef struct hotbed_state_source {
    const char *name;
    hotbed_element element;
    uint64_t rows, columns; /* columns 0: one dimension */
    uint64_t row_bytes;     /* 0: rows follow each other */
    const void *data;
} hotbed_state_source;

/* What did not match.  Names are the dict's or the sources', valid while those are. */
typedef struct hotbed_state_report {
    uint32_t num_missing, num_unexpected; /* all of them */
    const char *missing[16];              /* the first ones */
    const char *unexpected[16];
} hotbed_state_report;

/* Copy tensors into the tables.  Synchronous.
 *
 *   sources  in   [n]; STATIC tables: [capacity, dim].  HASH tables: weight and weight_id of as many rows, and
 *                 where there are metadata and states; rows are set by key, others stay; without weight_id the
 *                 table is left alone, since its rows come from a checkpoint.  bucket is not needed
 *   strict   in   STATE when names are missing or unexpected; nothing is copied then
 *   report   out  set in any case; may be NULL
 *
 * Nothing of a HASH table is ever missing.  Shapes and elements are looked at before anything is copied.
 * Errors: a hook's, ARGUMENT (shape or element, with name and both values; a name twice), STATE (strict), FULL,
 * MEMORY, DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_state_dict_load(
    hotbed_state_dict *dict, uint32_t n, const hotbed_state_source *sources, bool strict,
    hotbed_state_report *report, hotbed_stream *stream);

/* hotbed_checkpoint_save() and hotbed_checkpoint_load_with() with the hooks around them; a save collects.
 * Errors: theirs, and a hook's. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_state_dict_save_checkpoint(
    hotbed_state_dict *dict, const char *path, const hotbed_checkpoint_options *options,
    hotbed_stream *stream);
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_state_dict_load_checkpoint(
    hotbed_state_dict *dict, const char *path, const hotbed_checkpoint_load_options *options,
    uint64_t *step, hotbed_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
