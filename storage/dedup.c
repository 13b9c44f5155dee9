/* storage/dedup.c - dedup and gradient sums for sharded collections, by a storage's kernels. */
#include "storage/dedup.h"

#include "storage/storage.h"
#include "storage/ticket.h"

void hotbed_dedup_init(const hotbed_storage *storage, hotbed_step_view *view) {
    hotbed_tally *tallies = view->storage.tallies;
    view->storage = hotbed_storage_step(storage).storage;
    view->storage.pooling = HOTBED_POOL_NONE;
    view->storage.tallies = tallies;
    view->storage.row_bits = 0; /* the keys may be rows of other ranks */
}

void hotbed_dedup_pooled(const hotbed_dedup_features *features, hotbed_step_view *view) {
    view->storage.pooling = (uint32_t)features->pooling;
    view->storage.output_dtype = (uint32_t)features->output_dtype;
    view->storage.num_features = features->num_features;
    view->storage.feature_tables = features->tables;
    view->storage.columns = features->columns;
    if (!features->aligned)
        view->storage.rows_form = HOTBED_ROWS_ANY;
}

enum { PACKED_ALIGNMENT = 4 }; /* of rows with scales that other ranks have sent */

hotbed_status hotbed_dedup_rows_make(
    const hotbed_storage *storage, hotbed_dtype dtype, bool aligned, hotbed_dedup_rows *rows,
    hotbed_stream *stream) {
    const size_t bytes = storage->num_tables * sizeof *rows->tables;
    hotbed_memory staging;
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, bytes, NULL, &staging));
    hotbed_table_view *tables = staging.data;
    rows->form = HOTBED_ROWS_ANY;
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        tables[t] = storage->tables[t].view;
        tables[t].dtype = (uint32_t)dtype;
        const hotbed_rows_form form =
            hotbed_rows_form_of(tables[t].dtype, tables[t].dim, PACKED_ALIGNMENT);
        rows->form = aligned && (t == 0 || form == rows->form) ? form : HOTBED_ROWS_ANY;
    }
    hotbed_status status = hotbed_copy(rows->tables, tables, bytes, stream);
    const hotbed_status finished = hotbed_stream_finish(stream);
    hotbed_memory_free(&staging);
    return status != HOTBED_OK ? status : finished;
}

hotbed_status hotbed_dedup_bags(
    const hotbed_storage *storage, hotbed_step_view *view, uint32_t *bags, hotbed_stream *stream) {
    view->batch.bags = view->batch.offsets == NULL ? NULL : bags;
    view->unique.by_bag = view->batch.bags != NULL && view->batch.weights == NULL ? 1 : 0;
    view->batch.offset_faults = hotbed_stream_table_faults(stream, storage->names);
    return view->batch.bags == NULL ? HOTBED_OK : storage->kernels.lookup->bags(view, stream);
}

hotbed_status hotbed_dedup_pool(
    const hotbed_storage *storage, const hotbed_step_view *view, const hotbed_dedup_rows *rows,
    uint8_t *const *at, void *output, uint64_t stride, hotbed_stream *stream) {
    hotbed_step_view step = *view;
    step.storage.tables = rows->tables;
    step.storage.rows_form = rows->form;
    step.unique.rows = at;
    return storage->kernels.lookup->forward(&step, output, stride, storage->max_dim, stream);
}

size_t hotbed_dedup_scratch(const hotbed_storage *storage, uint64_t bound, uint32_t dim) {
    size_t keys = storage->kernels.unique->scratch(bound, storage->num_tables);
    size_t sums = storage->kernels.update->scratch(bound, dim);
    return keys > sums ? keys : sums;
}

hotbed_status hotbed_dedup_keys(
    const hotbed_storage *storage, const hotbed_step_view *view, void *scratch,
    hotbed_stream *stream, hotbed_stream *grouping) {
    return storage->kernels.unique->unique(view, scratch, stream, grouping);
}

hotbed_dedup_occurrences hotbed_dedup_occurrences_of(const hotbed_ticket *ticket) {
    hotbed_dedup_occurrences occurrences = {
        ticket->step.unique.positions,
        ticket->step.batch.table_starts + ticket->step.storage.num_tables};
    return occurrences;
}

hotbed_status hotbed_dedup_sums(
    const hotbed_storage *storage, const hotbed_step_view *view,
    const hotbed_optimizer_view *optimizer, hotbed_gradient_view gradient, hotbed_sums_view sums,
    uint32_t dim, void *scratch, hotbed_stream *stream) {
    return storage->kernels.update->reduce(view, optimizer, gradient, sums, dim, scratch, stream);
}
