/* storage/dedup.h - dedup of a batch, and the gradient sums of its distinct keys, without a ticket.
 *
 * For the exchanges of sharded collections (dist/): the rank that has the batch finds the distinct
 * keys and sums their gradients, and other ranks have the rows. */
#pragma once

#include "hotbed/storage.h"
#include "storage/step/update_core.h"

/* Set view->storage, except for its tallies, for batches without pooling. The caller sets the batch,
 * and the arrays that unique_kernels.h names. */
void hotbed_dedup_init(const hotbed_storage *storage, hotbed_step_view *view);

/* The features of a batch that is pooled. The arrays are in device memory. */
typedef struct hotbed_dedup_features {
    hotbed_pooling pooling;
    hotbed_dtype output_dtype;
    uint32_t num_features;
    const uint32_t *tables;  /* [num_features] */
    const uint64_t *columns; /* [num_features] first output column of each */
    bool aligned;            /* all columns are multiples of 4 */
} hotbed_dedup_features;

/* Called after hotbed_dedup_init(): the batches are pooled, although the storage's are not. */
void hotbed_dedup_pooled(const hotbed_dedup_features *features, hotbed_step_view *view);

/* Pooled: compute which bag each key of the batch is in, in `bags`; before hotbed_dedup_keys(). The
 * caller has set feature_starts. Async. */
hotbed_status hotbed_dedup_bags(
    const hotbed_storage *storage, hotbed_step_view *view, uint32_t *bags, hotbed_stream *stream);

/* The form of rows that are pooled, which need not have the tables' types. */
typedef struct hotbed_dedup_rows {
    hotbed_table_view *tables; /* [tables of the storage] device */
    hotbed_rows_form form;
} hotbed_dedup_rows;

/* Set *rows for rows of `dtype`, except for rows->tables, which the caller has set: the array is written.
 * `aligned` is hotbed_dedup_features'. Waits. */
hotbed_status hotbed_dedup_rows_make(
    const hotbed_storage *storage, hotbed_dtype dtype, bool aligned, hotbed_dedup_rows *rows,
    hotbed_stream *stream);

/* Pool the rows at at[u] of the distinct keys, which are aligned to 16 bytes, those of types with scales
 * to 4; NULL: zeros. Async. */
hotbed_status hotbed_dedup_pool(
    const hotbed_storage *storage, const hotbed_step_view *view, const hotbed_dedup_rows *rows,
    uint8_t *const *at, void *output, uint64_t stride, hotbed_stream *stream);

/* Bytes of device memory that the next two calls need for batches of `bound` keys and rows of `dim`
 * elements. */
size_t hotbed_dedup_scratch(const hotbed_storage *storage, uint64_t bound, uint32_t dim);

/* Find the distinct keys of each table and their occurrences, as unique_kernels.h says. Starts,
 * positions and counts are computed on `grouping`: `stream`, a branch of it or, if they are not wanted,
 * NULL. Async. */
hotbed_status hotbed_dedup_keys(
    const hotbed_storage *storage, const hotbed_step_view *view, void *scratch,
    hotbed_stream *stream, hotbed_stream *grouping);

/* Occurrences of the distinct keys of a prefetched batch. */
typedef struct hotbed_dedup_occurrences {
    /* Read by backward and reduce only: the row of the gradients that belongs to each occurrence.
     * Until the next prefetch, the caller may change it to rows of another order. */
    uint32_t *positions;
    const uint32_t *num_keys; /* one word */
} hotbed_dedup_occurrences;

hotbed_dedup_occurrences hotbed_dedup_occurrences_of(const hotbed_ticket *ticket);

/* Sum the gradients of each distinct key, of tables of `dim`. Async. */
hotbed_status hotbed_dedup_sums(
    const hotbed_storage *storage, const hotbed_step_view *view,
    const hotbed_optimizer_view *optimizer, hotbed_gradient_view gradient, hotbed_sums_view sums,
    uint32_t dim, void *scratch, hotbed_stream *stream);
