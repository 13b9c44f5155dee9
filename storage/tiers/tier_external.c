/* storage/tiers/tier_external.c - a cache over an external store: prefetch, eval and flush. */
#include "base/sort.h"
#include "storage/external/external.h"
#include "storage/external_tier.h"
#include "storage/step/row_layout.h"
#include "storage/storage.h"
#include "storage/ticket.h"

#include <stdio.h>

/* --- the tables of the store ------------------------------------------------------------------ */

/* Describe the rows of a table, since others may have as many bytes. */
static void describe_rows(
    const hotbed_storage *storage, const hotbed_table *table,
    char out[HOTBED_EXTERNAL_LAYOUT_BYTES]) {
    const hotbed_table_view *view = &table->view;
    const hotbed_optimizer_kind kind = storage->optimizer.kind;
    const uint32_t states = hotbed_optimizer_states(kind);
    const char *types[2] = {"", ""};
    for (uint32_t s = 0; s < states; s++)
        types[s] = hotbed_dtype_name((hotbed_dtype)view->state_dtype[s]);
    snprintf(
        out, HOTBED_EXTERNAL_LAYOUT_BYTES, "%s[%u]%s%s%s%s%s%s%s", hotbed_dtype_name(table->dtype),
        view->dim, states > 0 ? ", " : "", states > 0 ? hotbed_optimizer_name(kind) : "",
        states > 0 ? " " : "", types[0], states > 1 ? " " : "", types[1],
        view->score == HOTBED_SCORE_TIMESTAMP_LFU ? ", times" : "");
}

static hotbed_status check_table(const hotbed_storage *storage, uint32_t t) {
    const hotbed_table *table = &storage->tables[t];
    hotbed_external_table of;
    char rows[HOTBED_EXTERNAL_LAYOUT_BYTES];
    HOTBED_TRY(hotbed_external_table_read(storage->external, t, &of));
    if (strcmp(of.name, table->name) != 0)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, table->name,
            "external: table number %u of the store is %s, not %s", t, of.name, table->name);
    if (of.row_bytes != table->view.row_bytes)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, table->name,
            "table %s: the store's rows have %llu bytes, not %llu", table->name,
            (unsigned long long)of.row_bytes, (unsigned long long)table->view.row_bytes);
    if (table->evicts)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, table->name,
            "table %s: evict is LOWEST, but an external store keeps all keys", table->name);
    describe_rows(storage, table, rows);
    return hotbed_external_check_layout(storage->external, t, rows);
}

hotbed_status hotbed_storage_check_external(const hotbed_storage *storage) {
    uint32_t tables = hotbed_external_num_tables(storage->external);
    if (tables != storage->num_tables)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, NULL, tables, storage->num_tables,
            "external: the store has %u tables, the storage %u", tables, storage->num_tables);
    for (uint32_t t = 0; t < tables; t++)
        HOTBED_TRY(check_table(storage, t));
    hotbed_external_set_key_type(storage->external, storage->key_type);
    return HOTBED_OK;
}

/* --- batches of tickets ----------------------------------------------------------------------- */

void hotbed_ticket_carve_external(hotbed_ticket *ticket, hotbed_carve *carve) {
    size_t n = ticket->max_keys;
    ticket->scan_scratch_bytes = hotbed_scan_scratch(ticket->storage->backend, n + 1);
    ticket->step.moves.items = hotbed_carve_take(carve, n * sizeof *ticket->step.moves.items);
    ticket->asked_ranks = hotbed_carve_take(carve, (n + 1) * sizeof(uint32_t));
    ticket->leaving_ranks = hotbed_carve_take(carve, (n + 1) * sizeof(uint32_t));
    ticket->scan_scratch = hotbed_carve_take(carve, ticket->scan_scratch_bytes);
}

hotbed_status hotbed_ticket_open_external(hotbed_ticket *ticket, hotbed_stream *stream) {
    hotbed_external *external = ticket->storage->external;
    HOTBED_TRY(hotbed_external_reserve(external, ticket->max_keys));
    HOTBED_TRY(
        hotbed_external_batch_create(&ticket->asked, external, NULL, ticket->max_keys, stream));
    return hotbed_external_batch_create(
        &ticket->leaving, external, ticket->storage->stored_changes, ticket->max_keys, stream);
}

static hotbed_status scan_ranks(
    const hotbed_ticket *ticket, uint32_t *ranks, hotbed_stream *stream) {
    return hotbed_scan(
        ticket->step.batch.bound + 1, ranks, ranks, ticket->scan_scratch,
        ticket->scan_scratch_bytes, stream);
}

hotbed_status hotbed_ticket_fetch(hotbed_ticket *ticket, hotbed_stream *stream) {
    const hotbed_storage *storage = ticket->storage;
    const hotbed_tier_external_kernels *kernels = storage->kernels.external;
    const hotbed_store_step args = {
        .s = ticket->step,
        .asked = {ticket->asked.view, ticket->asked_ranks},
        .leaving = {ticket->leaving.view, ticket->leaving_ranks},
    };
    size_t bytes = (args.s.batch.bound + 1) * sizeof(uint32_t);
    if (args.s.batch.bound == 0)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_fill(ticket->asked_ranks, 0, bytes, stream));
    HOTBED_TRY(hotbed_fill(ticket->leaving_ranks, 0, bytes, stream));
    HOTBED_TRY(kernels->step(&args, HOTBED_PASS_WANT, stream));
    HOTBED_TRY(scan_ranks(ticket, ticket->asked_ranks, stream));
    HOTBED_TRY(kernels->step(&args, HOTBED_PASS_ASK, stream));
    HOTBED_TRY(hotbed_external_batch_find(&ticket->asked, stream));
    HOTBED_TRY(kernels->step(&args, HOTBED_PASS_ANSWER, stream));
    if (storage->admits)
        HOTBED_TRY(storage->kernels.score->admit(&ticket->step, stream));
    HOTBED_TRY(kernels->step(&args, HOTBED_PASS_CLAIM, stream));
    HOTBED_TRY(scan_ranks(ticket, ticket->leaving_ranks, stream));
    HOTBED_TRY(kernels->step(&args, HOTBED_PASS_LEAVE, stream));
    HOTBED_TRY(hotbed_external_batch_insert(&ticket->leaving, stream));
    return kernels->step(&args, HOTBED_PASS_ARRIVE, stream);
}

/* --- batches of calls outside of tickets ------------------------------------------------------ */

enum { BATCH_LEAST = 256 };
#define BATCH_BYTES ((uint64_t)32 << 20) /* of rows per batch: larger calls take several batches */

uint64_t hotbed_call_batch_rows(const hotbed_storage *storage, uint64_t n) {
    uint64_t longest = 1;
    for (uint32_t t = 0; t < storage->num_tables; t++)
        if (storage->tables[t].view.row_bytes > longest)
            longest = storage->tables[t].view.row_bytes;
    uint64_t most = BATCH_BYTES / longest > BATCH_LEAST ? BATCH_BYTES / longest : BATCH_LEAST;
    return n < most ? n : most;
}

/* Create a batch; its number of rows is rounded up to a power of two. */
static hotbed_status open_call_batch(
    hotbed_storage *storage, uint64_t capacity, hotbed_stream *stream, hotbed_call_batch **out) {
    uint64_t larger = BATCH_LEAST;
    while (larger < capacity)
        larger *= 2;
    hotbed_call_batch *entry = hotbed_new(sizeof *entry);
    HOTBED_TRY_MEMORY(entry, "a batch");
    hotbed_status status = hotbed_external_batch_borrow(
        &entry->batch, storage->external, storage->stored_changes, larger, stream);
    if (status != HOTBED_OK) {
        hotbed_delete(entry);
        return status;
    }
    entry->stream = stream;
    entry->next = storage->call_batches;
    storage->call_batches = entry;
    *out = entry;
    return HOTBED_OK;
}

hotbed_status hotbed_call_batch_take(
    hotbed_storage *storage, uint64_t capacity, hotbed_stream *stream,
    hotbed_external_batch **out) {
    /* A new stream may have the address of a destroyed one. The workspace's address differs. */
    void *memory = NULL;
    HOTBED_TRY(hotbed_stream_pinned_workspace(stream, 0, &memory));
    hotbed_status status = HOTBED_OK;
    pthread_mutex_lock(&storage->call_batches_lock);
    hotbed_call_batch *entry = storage->call_batches;
    while (entry != NULL && (entry->stream != stream || entry->batch.capacity < capacity ||
                             entry->batch.view.starts != memory))
        entry = entry->next;
    if (entry == NULL)
        status = open_call_batch(storage, capacity, stream, &entry);
    pthread_mutex_unlock(&storage->call_batches_lock);
    if (status == HOTBED_OK)
        *out = &entry->batch;
    return status;
}

void hotbed_storage_close_external(hotbed_storage *storage) {
    while (storage->call_batches != NULL) {
        hotbed_call_batch *entry = storage->call_batches;
        storage->call_batches = entry->next;
        hotbed_delete(entry);
    }
    if (storage->external != NULL)
        pthread_mutex_destroy(&storage->call_batches_lock);
    hotbed_stored_changes_destroy(storage->stored_changes);
}

void hotbed_external_scratch_carve(
    const hotbed_storage *storage, uint64_t n, hotbed_carve *carve, hotbed_external_scratch *out) {
    out->scan_bytes = hotbed_scan_scratch(storage->backend, n + 1);
    out->ranks = hotbed_carve_take(carve, (n + 1) * sizeof(uint32_t));
    out->tables = hotbed_carve_take(carve, storage->num_tables * sizeof *out->tables);
    out->scan = hotbed_carve_take(carve, out->scan_bytes);
}

hotbed_status hotbed_external_scratch_take(
    const hotbed_storage *storage, uint64_t n, hotbed_stream *stream,
    hotbed_external_scratch *out) {
    hotbed_carve carve = {NULL, 0};
    void *memory;
    hotbed_external_scratch_carve(storage, n, &carve, out);
    HOTBED_TRY(hotbed_stream_workspace(stream, carve.used, &memory));
    carve = (hotbed_carve){memory, 0};
    hotbed_external_scratch_carve(storage, n, &carve, out);
    return HOTBED_OK;
}

hotbed_status hotbed_external_scratch_scan(
    const hotbed_external_scratch *scratch, uint64_t n, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_fill(scratch->ranks + n, 0, sizeof *scratch->ranks, stream));
    return hotbed_scan(
        n + 1, scratch->ranks, scratch->ranks, scratch->scan, scratch->scan_bytes, stream);
}

/* --- eval ------------------------------------------------------------------------------------- */

hotbed_status hotbed_storage_eval_external(
    hotbed_storage *storage, hotbed_step_view *step, const hotbed_external_scratch *scratch,
    hotbed_external_batch *batch, hotbed_stream *stream) {
    const hotbed_tier_external_kernels *kernels = storage->kernels.external;
    const hotbed_store_eval args = {
        .s = *step, .asked = {batch->view, scratch->ranks}, .batch_tables = scratch->tables};
    HOTBED_TRY(hotbed_fill(scratch->ranks, 0, step->batch.bound * sizeof *scratch->ranks, stream));
    HOTBED_TRY(kernels->eval(&args, HOTBED_PASS_WANT, stream));
    HOTBED_TRY(hotbed_external_scratch_scan(scratch, step->batch.bound, stream));
    HOTBED_TRY(kernels->eval(&args, HOTBED_PASS_ASK, stream));
    HOTBED_TRY(hotbed_external_batch_find(batch, stream));
    HOTBED_TRY(kernels->eval(&args, HOTBED_PASS_ANSWER, stream));
    step->storage.tables = scratch->tables;
    return HOTBED_OK;
}

/* --- flush ------------------------------------------------------------------------------------ */

hotbed_status hotbed_storage_flush_external(
    hotbed_storage *storage, uint32_t table, bool drop, hotbed_stream *stream) {
    const hotbed_tier_external_kernels *kernels = storage->kernels.external;
    const hotbed_table_view *view = &storage->tables[table].view;
    hotbed_external_scratch scratch;
    hotbed_external_batch *batch;
    uint64_t window = hotbed_call_batch_rows(storage, view->slots);
    HOTBED_TRY(hotbed_call_batch_take(storage, window, stream, &batch));
    HOTBED_TRY(hotbed_external_scratch_take(storage, window, stream, &scratch));
    for (uint64_t first = 0; first < view->slots; first += window) {
        uint64_t left = view->slots - first;
        const hotbed_store_flush args = {
            .table = *view,
            .index = storage->index,
            .tracker = storage->tracker,
            .tally = storage->tallies + table,
            .faults = hotbed_stream_table_faults(stream, storage->names),
            .leaving = {batch->view, scratch.ranks},
            .first = view->first_slot + first,
            .count = (uint32_t)(left < window ? left : window),
            .num_tables = storage->num_tables,
            .table_number = table,
        };
        HOTBED_TRY(kernels->flush(&args, HOTBED_PASS_WANT, stream));
        HOTBED_TRY(hotbed_external_scratch_scan(&scratch, args.count, stream));
        HOTBED_TRY(kernels->flush(&args, HOTBED_PASS_LEAVE, stream));
        HOTBED_TRY(hotbed_external_batch_insert(batch, stream));
        HOTBED_TRY(kernels->flush(&args, HOTBED_PASS_LEFT, stream));
        if (drop)
            HOTBED_TRY(kernels->flush(&args, HOTBED_PASS_DROP, stream));
    }
    return HOTBED_OK;
}
