/* storage/ticket.c - tickets: prefetch, forward, backward, cancel; and eval. */
#include "storage/ticket.h"
#include "storage/external_tier.h"
#include "storage/storage.h"

#include "base/check.h"
#include "base/options.h"
#include "storage/step/scatter.h"

#define KEYS_MOST ((uint64_t)1 << 30) /* positions, and twice a position, must fit into 32 bits */

/* --- tickets ---------------------------------------------------------------------------------- */

/* Place the ticket's arrays. Called twice: to compute the size, and to place them. */
static size_t carve_ticket(hotbed_ticket *ticket, uint8_t *base) {
    hotbed_storage *storage = ticket->storage;
    hotbed_step_view *s = &ticket->step;
    hotbed_carve carve = {base, 0};
    size_t n = ticket->max_keys, words = n * sizeof(uint32_t);
    s->batch.feature_starts =
        hotbed_carve_take(&carve, ((size_t)storage->num_features + 1) * sizeof(uint32_t));
    s->batch.table_starts =
        hotbed_carve_take(&carve, ((size_t)storage->num_tables + 1) * sizeof(uint32_t));
    s->unique.offsets =
        hotbed_carve_take(&carve, ((size_t)storage->num_tables + 1) * sizeof(uint32_t));
    s->unique.num_missing = hotbed_carve_take(&carve, sizeof(uint32_t));
    s->unique.held = hotbed_carve_take(&carve, sizeof(uint32_t));
    s->unique.inverse = hotbed_carve_take(&carve, words);
    s->unique.keys = hotbed_carve_take(&carve, n * sizeof(uint64_t));
    s->unique.slots = hotbed_carve_take(&carve, n * sizeof(uint64_t));
    s->unique.starts = hotbed_carve_take(&carve, words + sizeof(uint32_t));
    s->unique.positions = hotbed_carve_take(&carve, words);
    s->unique.counts = hotbed_carve_take(&carve, n * sizeof(uint64_t));
    s->unique.missing = hotbed_carve_take(&carve, words);
    if (hotbed_storage_moves(storage)) {
        s->moves.items = hotbed_carve_take(&carve, n * sizeof *s->moves.items);
        s->moves.sort.order = hotbed_carve_take(&carve, words);
        s->moves.sort.bins = hotbed_carve_take(&carve, HOTBED_BIN_WORDS * sizeof(uint32_t));
    }
    if (storage->external != NULL)
        hotbed_ticket_carve_external(ticket, &carve);
    ticket->bags = hotbed_carve_take(&carve, storage->pooling == HOTBED_POOL_NONE ? 0 : words);
    ticket->unique_scratch = hotbed_carve_take(
        &carve, storage->kernels.unique->scratch(ticket->max_keys, storage->num_tables));
    if (storage->optimizer.kind != 0)
        ticket->update_scratch = hotbed_carve_take(
            &carve, storage->kernels.update->scratch(ticket->max_keys, storage->max_dim));
    return carve.used;
}

static hotbed_status make_ticket(
    hotbed_ticket *ticket, uint64_t max_keys, uint32_t max_batch_size, hotbed_stream *stream) {
    hotbed_storage *storage = ticket->storage;
    ticket->max_keys = max_keys;
    ticket->max_batch_size = max_batch_size;
    ticket->last = stream;
    ticket->step = hotbed_storage_step(storage);
    size_t bytes = carve_ticket(ticket, NULL);
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &ticket->memory));
    (void)carve_ticket(ticket, ticket->memory.data);
    HOTBED_TRY(hotbed_fill(ticket->step.unique.held, 0, sizeof *ticket->step.unique.held, stream));
    HOTBED_TRY(hotbed_stream_finish(stream)); /* the first call may be on another stream */
    return storage->external == NULL ? HOTBED_OK : hotbed_ticket_open_external(ticket, stream);
}

/* Count a new ticket. STATE if slots cannot hold one more pin. */
static hotbed_status count_ticket(hotbed_storage *storage) {
    if (__atomic_add_fetch(&storage->tickets, 1, __ATOMIC_RELAXED) <= HOTBED_TICKETS_MOST)
        return HOTBED_OK;
    __atomic_sub_fetch(&storage->tickets, 1, __ATOMIC_RELAXED);
    return hotbed_fail_bound(
        HOTBED_ERR_STATE, HOTBED_TICKETS_MOST, "%d tickets exist; destroy one to create another",
        HOTBED_TICKETS_MOST);
}

static void set_holds(hotbed_ticket *ticket, bool holds) {
    if (holds && !ticket->holds)
        __atomic_add_fetch(&ticket->storage->held, 1, __ATOMIC_RELAXED);
    if (!holds && ticket->holds)
        __atomic_sub_fetch(&ticket->storage->held, 1, __ATOMIC_RELAXED);
    ticket->holds = holds;
}

/* Record that a call on the ticket is enqueued, or recorded, on `stream`. */
static void use_on(hotbed_ticket *ticket, hotbed_stream *stream) {
    ticket->last = stream;
    ticket->recorded = ticket->recorded || hotbed_stream_recording(stream);
}

/* Release pins of kind `why`. Only the device knows whether there are any, and how many, because
 * launched graphs may have taken or released pins. */
static hotbed_status unpin(hotbed_ticket *ticket, uint32_t why, hotbed_stream *stream) {
    hotbed_step_view step = ticket->step;
    if (ticket->recorded)
        step.batch.bound = ticket->max_keys;
    return ticket->storage->kernels.lookup->unpin(&step, why, stream);
}

static hotbed_status release(hotbed_ticket *ticket, hotbed_stream *stream) {
    if (!ticket->holds && !ticket->recorded)
        return HOTBED_OK;
    HOTBED_TRY(unpin(ticket, HOTBED_HELD_BATCH, stream));
    HOTBED_TRY(
        ticket->storage->kernels.lookup->hold(&ticket->step, HOTBED_HELD_BATCH, false, stream));
    set_holds(ticket, false);
    return HOTBED_OK;
}

/* Record that the ticket no longer keeps its rows. */
static void drop_kept(hotbed_ticket *ticket) {
    if (!ticket->kept)
        return;
    __atomic_sub_fetch(&ticket->storage->tickets, 1, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&ticket->storage->held, 1, __ATOMIC_RELAXED);
    ticket->kept = false;
}

static hotbed_status forget(hotbed_ticket *ticket, hotbed_stream *stream) {
    if (!ticket->kept && !ticket->kept_recorded)
        return HOTBED_OK;
    HOTBED_TRY(unpin(ticket, HOTBED_HELD_KEPT, stream));
    HOTBED_TRY(
        ticket->storage->kernels.lookup->hold(&ticket->step, HOTBED_HELD_KEPT, false, stream));
    drop_kept(ticket);
    return HOTBED_OK;
}

void hotbed_ticket_destroy(hotbed_ticket *ticket) {
    if (ticket == NULL)
        return;
    if (ticket->memory.data != NULL) {
        (void)!release(ticket, ticket->last);
        (void)!forget(ticket, ticket->last);
        (void)!hotbed_stream_finish(ticket->last);
    }
    set_holds(ticket, false);
    drop_kept(ticket);
    __atomic_sub_fetch(&ticket->storage->tickets, 1, __ATOMIC_RELAXED);
    hotbed_external_batch_destroy(&ticket->asked);
    hotbed_external_batch_destroy(&ticket->leaving);
    hotbed_memory_free(&ticket->memory);
    hotbed_delete(ticket);
}

hotbed_status hotbed_ticket_create(
    hotbed_storage *storage, uint64_t max_keys, uint32_t max_batch_size, hotbed_stream *stream,
    hotbed_ticket **out) {
    HOTBED_TRY(hotbed_check_pointer("out", out));
    *out = NULL;
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    HOTBED_TRY(hotbed_check_range("max_keys", max_keys, 1, KEYS_MOST));
    if (max_batch_size < 1 || (uint64_t)max_batch_size * storage->num_features > KEYS_MOST)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "max_batch_size", max_batch_size,
            "max_batch_size %u * %u features = %llu bags is not in [1, 2^30]", max_batch_size,
            storage->num_features, (unsigned long long)max_batch_size * storage->num_features);
    if (hotbed_stream_recording(stream))
        return hotbed_fail(
            HOTBED_ERR_STATE, "cannot allocate a ticket while the stream records a graph");
    HOTBED_TRY(count_ticket(storage));
    hotbed_ticket *ticket = hotbed_new(sizeof *ticket);
    if (ticket == NULL) {
        __atomic_sub_fetch(&storage->tickets, 1, __ATOMIC_RELAXED);
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for a ticket");
    }
    ticket->storage = storage;
    hotbed_status status = make_ticket(ticket, max_keys, max_batch_size, stream);
    if (status != HOTBED_OK) {
        hotbed_ticket_destroy(ticket);
        return status;
    }
    *out = ticket;
    return HOTBED_OK;
}

/* --- the step --------------------------------------------------------------------------------- */

static hotbed_status read_batch(
    const hotbed_storage *storage, const hotbed_batch *from, hotbed_batch *batch) {
    HOTBED_TRY(HOTBED_OPTIONS_READ(batch, hotbed_batch, weights, from));
    HOTBED_TRY(hotbed_check_array("keys", batch->keys, batch->num_keys));
    uint64_t bags = (uint64_t)storage->num_features * batch->batch_size;
    if (batch->offsets == NULL && batch->num_keys != bags)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "num_keys", batch->num_keys, bags,
            "batch: without offsets num_keys %llu must be %u features * %u samples = %llu",
            (unsigned long long)batch->num_keys, storage->num_features, batch->batch_size,
            (unsigned long long)bags);
    if (batch->num_keys > KEYS_MOST || bags > KEYS_MOST)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, batch->num_keys > KEYS_MOST ? "num_keys" : "batch_size",
            (batch->num_keys > KEYS_MOST ? batch->num_keys : bags), KEYS_MOST,
            "batch: %llu keys and %llu bags are over 2^30", (unsigned long long)batch->num_keys,
            (unsigned long long)bags);
    return HOTBED_OK;
}

static void put_batch(
    const hotbed_storage *storage, hotbed_step_view *step, const hotbed_batch *batch,
    hotbed_stream *stream) {
    step->batch.keys = batch->keys;
    step->batch.offsets = batch->offsets;
    step->batch.weights = batch->weights;
    step->batch.counts = batch->counts;
    step->batch.bound = batch->num_keys;
    step->batch.size = batch->batch_size;
    hotbed_fault *faults = hotbed_stream_table_faults(stream, storage->names);
    step->batch.faults = hotbed_storage_faults(storage, faults);
    step->batch.offset_faults = faults; /* and faults of the external store */
}

static hotbed_status check_own(
    const hotbed_storage *storage, const hotbed_ticket *ticket, const hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    if (ticket == NULL || ticket->storage != storage)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, "ticket", "%s",
            ticket == NULL ? "ticket is NULL" : "the ticket is of another storage");
    return HOTBED_OK;
}

static hotbed_status read_prefetch(
    const hotbed_storage *storage, const hotbed_batch *from, const hotbed_ticket *ticket,
    const hotbed_stream *stream, hotbed_batch *batch) {
    HOTBED_TRY(check_own(storage, ticket, stream));
    HOTBED_TRY(read_batch(storage, from, batch));
    const bool many = batch->num_keys > ticket->max_keys;
    if (many || batch->batch_size > ticket->max_batch_size)
        return hotbed_error_cause_is(
            hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, many ? "num_keys" : "batch_size",
                many ? (double)batch->num_keys : batch->batch_size,
                many ? (double)ticket->max_keys : ticket->max_batch_size,
                "batch: %llu keys, %u samples; the ticket takes up to %llu keys, %u samples",
                (unsigned long long)batch->num_keys, batch->batch_size,
                (unsigned long long)ticket->max_keys, ticket->max_batch_size),
            HOTBED_CAUSE_BATCH_TOO_LARGE);
    return HOTBED_OK;
}

/* Enqueue a prefetch. With `branched`, the caller joins the stream's branch, which groups the
 * occurrences for backward. Pooling computes the slots of static tables from the keys, so then the
 * branch does all of the dedup. */
static hotbed_status enqueue_prefetch(
    hotbed_storage *storage, const hotbed_batch *batch, hotbed_ticket *ticket, bool branched,
    const uint32_t *overflow, hotbed_stream *stream) {
    hotbed_step_view *s = &ticket->step;
    /* Before unpin(), which reads `recorded`: a launched graph may have pinned another batch. */
    use_on(ticket, stream);
    s->unique.released = ticket->holds; /* layout() releases pins that the host does not know of */
    if (ticket->holds) {
        HOTBED_TRY(unpin(ticket, HOTBED_HELD_BATCH, stream)); /* layout() sets the word again */
        set_holds(ticket, false);
    }
    HOTBED_TRY(forget(ticket, stream));
    put_batch(storage, s, batch, stream);
    s->batch.overflow = overflow;
    bool pooled = storage->pooling != HOTBED_POOL_NONE;
    s->batch.bags = pooled && batch->offsets != NULL ? ticket->bags : NULL;
    s->unique.by_bag =
        s->batch.bags != NULL && batch->weights == NULL && batch->counts == NULL ? 1 : 0;
    HOTBED_TRY(storage->kernels.lookup->layout(s, stream));
    hotbed_stream *branch = stream;
    if (branched && (pooled || storage->indexed))
        HOTBED_TRY(hotbed_stream_branch(stream, &branch));
    hotbed_stream *dedup = pooled && !storage->indexed ? branch : stream;
    /* A score that counts occurrences needs their groups before the search. */
    hotbed_stream *grouping = storage->counts_score ? dedup : branch;
    if (s->batch.bags != NULL) /* groups are made of bags */
        HOTBED_TRY(storage->kernels.lookup->bags(s, grouping));
    HOTBED_TRY(storage->kernels.unique->unique(s, ticket->unique_scratch, dedup, grouping));
    HOTBED_TRY(storage->kernels.lookup->find(s, dedup));
    set_holds(ticket, true);
    if (!storage->indexed) /* static tables have all their rows */
        return HOTBED_OK;
    if (storage->external != NULL)
        return hotbed_ticket_fetch(ticket, stream);
    bool moves = hotbed_storage_moves(storage);
    if (moves)
        HOTBED_TRY(storage->kernels.tier->seek(s, stream));
    if (storage->admits)
        HOTBED_TRY(storage->kernels.score->admit(s, stream));
    return moves ? storage->kernels.tier->move(s, stream)
                 : storage->kernels.lookup->place(s, stream);
}

hotbed_status hotbed_storage_prefetch(
    hotbed_storage *storage, const hotbed_batch *batch, hotbed_ticket *ticket,
    hotbed_stream *stream) {
    hotbed_batch b;
    HOTBED_TRY(read_prefetch(storage, batch, ticket, stream, &b));
    return enqueue_prefetch(storage, &b, ticket, false, NULL, stream);
}

hotbed_status hotbed_storage_prefetch_branched(
    hotbed_storage *storage, const hotbed_batch *batch, hotbed_ticket *ticket,
    const uint32_t *overflow, hotbed_stream *stream) {
    hotbed_batch b;
    HOTBED_TRY(read_prefetch(storage, batch, ticket, stream, &b));
    return enqueue_prefetch(storage, &b, ticket, storage->external == NULL, overflow, stream);
}

static uint64_t least_stride(const hotbed_storage *storage) {
    return storage->pooling == HOTBED_POOL_NONE ? storage->max_dim
                                                : storage->columns[storage->num_features];
}

/* Argument checks of forward, backward and eval. *stride 0 becomes the smallest valid stride. */
static hotbed_status check_output(
    const hotbed_storage *storage, const void *output, const char *name, uint64_t rows,
    uint64_t *stride) {
    if (output == NULL && rows > 0)
        return hotbed_fail_null(name);
    uint64_t least = least_stride(storage);
    if (*stride == 0)
        *stride = least;
    if (*stride < least)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "stride", (*stride), least, "stride %llu is below %llu",
            (unsigned long long)*stride, (unsigned long long)least);
    if (rows > 0 && *stride > INT64_MAX / sizeof(float) / rows)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "stride", *stride,
            "stride %llu: %llu rows have more than 2^63 bytes", (unsigned long long)*stride,
            (unsigned long long)rows);
    return HOTBED_OK;
}

static uint64_t rows_of_output(
    const hotbed_storage *storage, uint64_t num_keys, uint32_t batch_size) {
    return storage->pooling == HOTBED_POOL_NONE ? num_keys : batch_size;
}

static uint64_t output_rows(const hotbed_storage *storage, const hotbed_step_view *step) {
    return rows_of_output(storage, step->batch.bound, step->batch.size);
}

static hotbed_status check_ticket(
    const hotbed_storage *storage, const hotbed_ticket *ticket, const hotbed_stream *stream) {
    HOTBED_TRY(check_own(storage, ticket, stream));
    if (!ticket->holds)
        return hotbed_error_cause_is(
            hotbed_fail(HOTBED_ERR_STATE, "the ticket is not prefetched"),
            HOTBED_CAUSE_NOT_PREFETCHED);
    return HOTBED_OK;
}

hotbed_status hotbed_storage_forward(
    hotbed_storage *storage, hotbed_ticket *ticket, void *output, uint64_t stride,
    hotbed_stream *stream) {
    HOTBED_TRY(check_ticket(storage, ticket, stream));
    HOTBED_TRY(
        check_output(storage, output, "output", output_rows(storage, &ticket->step), &stride));
    use_on(ticket, stream);
    return storage->kernels.lookup->forward(
        &ticket->step, output, stride, storage->max_dim, stream);
}

hotbed_status hotbed_storage_forward_scattered(
    hotbed_storage *storage, hotbed_ticket *ticket, const hotbed_scatter_view *to,
    hotbed_stream *stream) {
    HOTBED_TRY(check_ticket(storage, ticket, stream));
    use_on(ticket, stream);
    hotbed_step_view step = ticket->step;
    step.to = *to;
    return storage->kernels.lookup->forward(&step, NULL, 0, storage->max_dim, stream);
}

hotbed_status hotbed_storage_prefetch_forward(
    hotbed_storage *storage, const hotbed_batch *batch, hotbed_ticket *ticket, void *output,
    uint64_t stride, hotbed_stream *stream) {
    hotbed_batch b;
    HOTBED_TRY(read_prefetch(storage, batch, ticket, stream, &b));
    HOTBED_TRY(check_output(
        storage, output, "output", rows_of_output(storage, b.num_keys, b.batch_size), &stride));
    hotbed_status status = enqueue_prefetch(storage, &b, ticket, true, NULL, stream);
    if (status == HOTBED_OK)
        status = storage->kernels.lookup->forward(
            &ticket->step, output, stride, storage->max_dim, stream);
    hotbed_status joined = hotbed_stream_join(stream);
    return status != HOTBED_OK ? status : joined;
}

/* Argument checks of backward, reduce and apply. */
static hotbed_status check_update(
    const hotbed_storage *storage, const hotbed_ticket *ticket, const hotbed_stream *stream) {
    HOTBED_TRY(check_ticket(storage, ticket, stream));
    if (storage->optimizer.kind == 0)
        return hotbed_fail(HOTBED_ERR_STATE, "the storage was created without an optimizer");
    return HOTBED_OK;
}

/* The optimizer for a call on `stream`. */
static hotbed_optimizer_view optimizer_on(const hotbed_storage *storage, hotbed_stream *stream) {
    hotbed_optimizer_view view = storage->optimizer_view;
    if (storage->nonfinite == HOTBED_NONFINITE_ERROR)
        view.faults = hotbed_stream_table_faults(stream, storage->names);
    return view;
}

static hotbed_status check_sums(const hotbed_ticket *ticket, const float *unique_gradients) {
    if (unique_gradients == NULL && ticket->step.batch.bound > 0)
        return hotbed_fail_null("unique_gradients");
    return HOTBED_OK;
}

static hotbed_gradient_view gradient_view(
    const hotbed_storage *storage, const void *gradient, uint64_t stride) {
    hotbed_gradient_view view = {gradient, stride, (uint32_t)storage->output_dtype, NULL};
    return view;
}

static hotbed_status enqueue_update(
    hotbed_storage *storage, hotbed_ticket *ticket, const hotbed_gradient_view *gradient,
    hotbed_stream *stream) {
    const hotbed_optimizer_view optimizer = optimizer_on(storage, stream);
    HOTBED_TRY(storage->kernels.update->update(
        &ticket->step, &optimizer, *gradient, storage->max_dim, ticket->update_scratch, stream));
    set_holds(ticket, false);
    return HOTBED_OK;
}

hotbed_status hotbed_storage_backward(
    hotbed_storage *storage, hotbed_ticket *ticket, const void *gradient, uint64_t stride,
    hotbed_stream *stream) {
    HOTBED_TRY(check_update(storage, ticket, stream));
    HOTBED_TRY(
        check_output(storage, gradient, "gradient", output_rows(storage, &ticket->step), &stride));
    use_on(ticket, stream);
    const hotbed_gradient_view view = gradient_view(storage, gradient, stride);
    return enqueue_update(storage, ticket, &view, stream);
}

hotbed_status hotbed_storage_backward_from(
    hotbed_storage *storage, hotbed_ticket *ticket, const hotbed_gradient_view *gradient,
    hotbed_stream *stream) {
    HOTBED_TRY(check_update(storage, ticket, stream));
    use_on(ticket, stream);
    return enqueue_update(storage, ticket, gradient, stream);
}

hotbed_status hotbed_storage_reduce(
    hotbed_storage *storage, hotbed_ticket *ticket, const void *gradient, uint64_t stride, bool add,
    float *unique_gradients, hotbed_stream *stream) {
    HOTBED_TRY(check_update(storage, ticket, stream));
    HOTBED_TRY(
        check_output(storage, gradient, "gradient", output_rows(storage, &ticket->step), &stride));
    HOTBED_TRY(check_sums(ticket, unique_gradients));
    use_on(ticket, stream);
    const hotbed_gradient_view view = gradient_view(storage, gradient, stride);
    hotbed_sums_view sums = {.data = unique_gradients, .stride = storage->max_dim, .add = add};
    return storage->kernels.update->reduce(
        &ticket->step, &storage->optimizer_view, view, sums, storage->max_dim,
        ticket->update_scratch, stream);
}

hotbed_status hotbed_storage_apply(
    hotbed_storage *storage, hotbed_ticket *ticket, const float *unique_gradients,
    hotbed_stream *stream) {
    HOTBED_TRY(check_update(storage, ticket, stream));
    HOTBED_TRY(check_sums(ticket, unique_gradients));
    use_on(ticket, stream);
    hotbed_gradient_view sums = {unique_gradients, storage->max_dim, HOTBED_F32, NULL};
    const hotbed_optimizer_view optimizer = optimizer_on(storage, stream);
    HOTBED_TRY(storage->kernels.update->apply(
        &ticket->step, &optimizer, sums, storage->max_dim, ticket->update_scratch, stream));
    set_holds(ticket, false);
    return HOTBED_OK;
}

hotbed_status hotbed_ticket_cancel(hotbed_ticket *ticket, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer("ticket", ticket));
    HOTBED_TRY(hotbed_storage_same_device(ticket->storage, stream));
    use_on(ticket, stream);
    return release(ticket, stream);
}

static hotbed_status check_kept(const hotbed_ticket *ticket, const hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer("ticket", ticket));
    return hotbed_storage_same_device(ticket->storage, stream);
}

hotbed_status hotbed_ticket_keep(hotbed_ticket *ticket, hotbed_stream *stream) {
    HOTBED_TRY(check_kept(ticket, stream));
    HOTBED_TRY(check_ticket(ticket->storage, ticket, stream));
    if (ticket->storage->external != NULL)
        return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "tickets over an external store cannot be kept");
    if (ticket->kept)
        return HOTBED_OK;
    HOTBED_TRY(count_ticket(ticket->storage));
    __atomic_add_fetch(&ticket->storage->held, 1, __ATOMIC_RELAXED);
    ticket->kept = true;
    use_on(ticket, stream);
    ticket->kept_recorded = ticket->kept_recorded || hotbed_stream_recording(stream);
    const hotbed_lookup_kernels *kernels = ticket->storage->kernels.lookup;
    hotbed_status status = kernels->pin_again(&ticket->step, stream);
    HOTBED_THEN(status, kernels->hold(&ticket->step, HOTBED_HELD_KEPT, true, stream));
    if (status != HOTBED_OK)
        drop_kept(ticket);
    return status;
}

hotbed_status hotbed_ticket_retake(hotbed_ticket *ticket, hotbed_stream *stream) {
    HOTBED_TRY(check_kept(ticket, stream));
    if (!ticket->kept)
        return hotbed_fail(HOTBED_ERR_STATE, "the ticket is not kept");
    if (ticket->holds)
        return HOTBED_OK;
    use_on(ticket, stream);
    HOTBED_TRY(ticket->storage->kernels.lookup->pin_again(&ticket->step, stream));
    HOTBED_TRY(
        ticket->storage->kernels.lookup->hold(&ticket->step, HOTBED_HELD_BATCH, true, stream));
    set_holds(ticket, true);
    return HOTBED_OK;
}

hotbed_status hotbed_ticket_forget(hotbed_ticket *ticket, hotbed_stream *stream) {
    HOTBED_TRY(check_kept(ticket, stream));
    use_on(ticket, stream);
    return forget(ticket, stream);
}

hotbed_status hotbed_ticket_read(const hotbed_ticket *ticket, hotbed_ticket_view *out) {
    HOTBED_TRY(hotbed_check_pointer("ticket", ticket));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_ticket_view"));
    if (!ticket->holds)
        return hotbed_error_cause_is(
            hotbed_fail(HOTBED_ERR_STATE, "the ticket is not prefetched"),
            HOTBED_CAUSE_NOT_PREFETCHED);
    hotbed_ticket_view view = {
        .unique_keys = ticket->step.unique.keys,
        .inverse = ticket->step.unique.inverse,
        .unique_offsets = ticket->step.unique.offsets,
        .slots = ticket->step.unique.slots,
        .counts = ticket->step.unique.counts,
    };
    hotbed_output_write(out, &view, sizeof view);
    return HOTBED_OK;
}

/* --- eval ------------------------------------------------------------------------------------- */

/* Write the rows to `to`, or to `output` if `to` is NULL. */
static hotbed_status eval(
    hotbed_storage *storage, const hotbed_batch *batch, const hotbed_scatter_view *to, void *output,
    uint64_t stride, hotbed_stream *stream) {
    hotbed_batch b;
    void *memory;
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    HOTBED_TRY(read_batch(storage, batch, &b));
    hotbed_step_view step = hotbed_storage_step(storage);
    put_batch(storage, &step, &b, stream);
    step.eval.on = 1;
    hotbed_external_scratch scratch;
    hotbed_external_batch *missing = NULL;
    if (to != NULL)
        step.to = *to;
    else
        HOTBED_TRY(check_output(storage, output, "output", output_rows(storage, &step), &stride));
    hotbed_carve carve = {NULL, 0};
    for (int pass = 0; pass < 2; pass++) {
        carve.used = 0;
        step.batch.feature_starts =
            hotbed_carve_take(&carve, ((size_t)storage->num_features + 1) * sizeof(uint32_t));
        step.batch.table_starts =
            hotbed_carve_take(&carve, ((size_t)storage->num_tables + 1) * sizeof(uint32_t));
        step.unique.slots = hotbed_carve_take(&carve, b.num_keys * sizeof(uint64_t));
        step.eval.begun = hotbed_carve_take(&carve, sizeof *step.eval.begun);
        step.eval.rereads = hotbed_carve_take(&carve, b.num_keys * sizeof *step.eval.rereads);
        step.eval.num_rereads = hotbed_carve_take(&carve, sizeof *step.eval.num_rereads);
        if (storage->pooling == HOTBED_POOL_NONE && storage->tiers != HOTBED_TIERS_ONE &&
            storage->external == NULL) {
            step.eval.deferred = step.unique.slots; /* eval_rows() does not use the slots */
            step.eval.sort.order = hotbed_carve_take(&carve, b.num_keys * sizeof(uint32_t));
            step.eval.sort.bins = hotbed_carve_take(&carve, HOTBED_BIN_WORDS * sizeof(uint32_t));
        }
        if (storage->external != NULL)
            hotbed_external_scratch_carve(storage, b.num_keys, &carve, &scratch);
        if (pass == 0) {
            HOTBED_TRY(hotbed_stream_workspace(stream, carve.used, &memory));
            carve.base = memory;
        }
    }
    if (storage->external != NULL && b.num_keys > 0)
        HOTBED_TRY(hotbed_call_batch_take(storage, b.num_keys, stream, &missing));
    const hotbed_lookup_kernels *lookup = storage->kernels.lookup;
    HOTBED_TRY(lookup->layout(&step, stream));
    if (storage->pooling == HOTBED_POOL_NONE && missing == NULL) {
        HOTBED_TRY(lookup->eval_rows(&step, output, stride, storage->max_dim, stream));
    } else {
        if (storage->indexed) /* otherwise pooling computes the slots */
            HOTBED_TRY(lookup->find_keys(&step, stream));
        if (missing != NULL)
            HOTBED_TRY(hotbed_storage_eval_external(storage, &step, &scratch, missing, stream));
        HOTBED_TRY(lookup->forward(&step, output, stride, storage->max_dim, stream));
    }
    return storage->keys_leave ? lookup->again(&step, output, stride, stream) : HOTBED_OK;
}

hotbed_status hotbed_storage_eval(
    hotbed_storage *storage, const hotbed_batch *batch, void *output, uint64_t stride,
    hotbed_stream *stream) {
    return eval(storage, batch, NULL, output, stride, stream);
}

hotbed_status hotbed_storage_eval_scattered(
    hotbed_storage *storage, const hotbed_batch *batch, const hotbed_scatter_view *to,
    hotbed_stream *stream) {
    return eval(storage, batch, to, NULL, 0, stream);
}

uint64_t hotbed_ticket_bytes(const hotbed_ticket *ticket) {
    return ticket == NULL
               ? 0
               : ticket->memory.bytes + ticket->asked.memory.bytes + ticket->leaving.memory.bytes;
}

static hotbed_status check_rate(const hotbed_storage *storage, float learning_rate) {
    HOTBED_TRY(hotbed_check_finite("learning_rate", learning_rate));
    return hotbed_optimizer_check_rate(storage->optimizer.kind, learning_rate);
}

hotbed_status hotbed_storage_set_learning_rate(
    hotbed_storage *storage, float learning_rate, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    HOTBED_TRY(check_rate(storage, learning_rate));
    return storage->kernels.update->set_learning_rate(
        &storage->clock->optimizer.learning_rate, learning_rate, stream);
}

hotbed_status hotbed_storage_set_table_learning_rate(
    hotbed_storage *storage, uint32_t table, float learning_rate, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_check_table(storage, table, stream));
    if (storage->rates == NULL || storage->tables[table].rates.own == 0)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, storage->tables[table].name,
            "table %s has no optimizer of its own: set hotbed_table_options.optimizer, or the "
            "learning rate of the storage",
            storage->tables[table].name);
    HOTBED_TRY(check_rate(storage, learning_rate));
    return storage->kernels.update->set_learning_rate(
        &storage->rates[table].learning_rate, learning_rate, stream);
}

hotbed_status hotbed_storage_set_score(
    hotbed_storage *storage, uint32_t table, uint64_t value, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_check_table(storage, table, stream));
    if (storage->tables[table].view.score != HOTBED_SCORE_CUSTOM)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, storage->tables[table].name, "table %s: its scores are not CUSTOM",
            storage->tables[table].name);
    HOTBED_TRY(hotbed_check_range("score", value, 1, HOTBED_SCORE_MOST));
    return storage->kernels.score->set(storage->custom_scores + table, value, stream);
}
