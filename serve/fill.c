/* serve/fill.c - write the rows of a reader's version to the tables of storages.
 *
 * Storages have the cut of an earlier call, so the files after it are written in order, each with its
 * removed keys first. If that cut is not among the version's files, the tables are cleared, and the base is
 * written, too. */
#include "base/backend.h"
#include "base/check.h"
#include "base/error.h"
#include "base/float.h"
#include "serve/encode.h"
#include "serve/version.h"
#include "storage/types.h"

#include "hotbed/read.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK_BYTES = 8 << 20, DIM_MOST = 4096, NO_STATE = UINT8_MAX };

typedef struct filling {
    const hotbed_version *v;
    hotbed_storage *const *storages;
    uint32_t num_storages;
    hotbed_stream *stream;
    hotbed_memory pinned, device; /* CHUNK_BYTES: keys, and their rows */
    uint64_t first;               /* number of the first file to write */
} filling;

/* A table of a storage, and of the version. */
typedef struct pair {
    hotbed_storage *storage;
    uint32_t to, from;
    hotbed_table_info info;
    /* elements of the states that are written with each row; 0: none */
    uint32_t state_dims[2];
} pair;

/* The table of the cut. The newest cut has the counts of steps. */
static const hotbed_cut_table *table_of(const filling *f, const pair *p) {
    return &f->v->files[f->v->num_files - 1]->cut.tables[p->from];
}

/* --- which tables ------------------------------------------------------------------------------ */

static hotbed_status find_table(
    const filling *f, hotbed_storage *storage, uint32_t number, pair *out) {
    const hotbed_cut *cut = &f->v->files[0]->cut;
    *out = (pair){.storage = storage, .to = number, .info = {.size = sizeof out->info}};
    HOTBED_TRY(hotbed_storage_table(storage, number, &out->info));
    const char *name = out->info.name;
    for (; out->from < f->v->num_tables; out->from++)
        if (strncmp(cut->tables[out->from].name, name, sizeof cut->tables[0].name) == 0)
            break;
    if (out->from == f->v->num_tables)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, name, "reader_fill: cut %" PRIu64 " has no table '%s'",
            f->v->number, name);
    const hotbed_cut_table *from = &cut->tables[out->from];
    if (from->dim != out->info.dim)
        return hotbed_fail_table_limit(
            HOTBED_ERR_ARGUMENT, name, "dim", out->info.dim, from->dim,
            "reader_fill: table '%s' has dim %" PRIu32 "; in the cut it has %" PRIu32, name,
            out->info.dim, from->dim);
    if (from->key_type != (uint32_t)hotbed_storage_key_type(storage))
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, name,
            "reader_fill: table '%s' has keys of another type in the cut", name);
    if (hotbed_float_bits(f->v->tables[out->from].missing) !=
        hotbed_float_bits(out->info.eval_value))
        return hotbed_fail_table_limit(
            HOTBED_ERR_ARGUMENT, name, "eval_initializer", out->info.eval_value,
            (double)f->v->tables[out->from].missing,
            "reader_fill: missing keys of table '%s' read as %g; in the cut they are %g", name,
            (double)out->info.eval_value, (double)f->v->tables[out->from].missing);
    /* Rows that the cut does not have would keep their initial values. */
    const uint64_t keys = f->v->tables[out->from].keys;
    if (out->info.kind == HOTBED_TABLE_STATIC && out->info.capacity > keys)
        return hotbed_fail_table_limit(
            HOTBED_ERR_ARGUMENT, name, "capacity", out->info.capacity, keys,
            "reader_fill: STATIC table '%s' has %" PRIu64 " rows; in the cut it has %" PRIu64, name,
            out->info.capacity, keys);
    return HOTBED_OK;
}

/* --- states -------------------------------------------------------------------------------------- */

/* "exp_avg[16], exp_avg_sq[16]" */
typedef struct state_text {
    char text[160];
} state_text;

static state_text states_of(hotbed_optimizer_kind kind, uint32_t dim) {
    state_text out = {"none"};
    for (uint32_t s = 0, at = 0; s < hotbed_optimizer_states(kind) && at < sizeof out.text; s++)
        at += (uint32_t)snprintf(
            out.text + at, sizeof out.text - at, "%s%s[%" PRIu32 "]", s == 0 ? "" : ", ",
            hotbed_optimizer_state_name(kind, s), hotbed_optimizer_state_dim(kind, s, dim));
    return out;
}

/* Set the states that a storage gets. A storage without states gets embeddings, as a reader's lookups do. */
static hotbed_status match_states(const filling *f, pair *p) {
    const hotbed_cut_table *from = table_of(f, p);
    const hotbed_optimizer_kind there = (hotbed_optimizer_kind)from->optimizer;
    const hotbed_optimizer_kind here = hotbed_storage_optimizer(p->storage)->kind;
    if (hotbed_optimizer_states(here) == 0 || hotbed_optimizer_states(there) == 0)
        return HOTBED_OK;
    const state_text has = states_of(there, from->dim), needs = states_of(here, from->dim);
    if (strcmp(has.text, needs.text) != 0)
        return hotbed_fail_table(
            HOTBED_ERR_UNSUPPORTED, p->info.name,
            "reader_fill: table '%s' is trained by %s with the states %s; in the cut by %s with %s",
            p->info.name, hotbed_optimizer_name(here), needs.text, hotbed_optimizer_name(there),
            has.text);
    for (uint32_t s = 0; s < 2; s++)
        p->state_dims[s] = hotbed_cut_state_dim(from, s);
    return HOTBED_OK;
}

static bool has_states(const pair *p) {
    return p->state_dims[0] != 0;
}

/* Set the count of steps of the table's storage. */
static hotbed_status set_steps(const filling *f, const pair *p) {
    const hotbed_cut_table *from = table_of(f, p);
    hotbed_storage_state state = {.size = sizeof state};
    if (!has_states(p))
        return HOTBED_OK;
    HOTBED_TRY(hotbed_storage_get_state(p->storage, &state, f->stream));
    state.optimizer_steps = from->optimizer_steps;
    state.beta1_power = from->beta1_power;
    state.beta2_power = from->beta2_power;
    return hotbed_storage_set_state(p->storage, &state, f->stream);
}

/* --- rows ---------------------------------------------------------------------------------------- */

/* Where the parts of n rows are in the memory of a chunk. */
typedef struct places {
    uint64_t weights, states[2], bytes;
} places;

static size_t state_bytes(const pair *p, uint32_t state) {
    return p->state_dims[state] * hotbed_dtype_bytes(p->info.state_dtypes[state]);
}

static places places_of(const pair *p, uint64_t n, size_t bytes) {
    places at = {.weights = n * sizeof(uint64_t)};
    at.bytes = (at.weights + n * bytes + 7) / 8 * 8;
    for (uint32_t s = 0; s < 2; s++) {
        at.states[s] = at.bytes;
        at.bytes += (n * state_bytes(p, s) + 7) / 8 * 8;
    }
    return at;
}

/* Convert a row of a key, or its state of this number, to the table's type. Errors: ARGUMENT (a value that the
 * type does not have). */
static hotbed_status convert(
    const pair *p, uint64_t key, uint32_t state, const float *from, hotbed_dtype dtype,
    uint32_t dim, void *to) {
    hotbed_unfit unfit;
    if (hotbed_weights_convert(HOTBED_F32, from, dtype, to, dim, 1, &unfit))
        return HOTBED_OK;
    return hotbed_unfit_fail(
        p->info.name, key, hotbed_storage_key_type(p->storage),
        hotbed_optimizer_state_name(hotbed_storage_optimizer(p->storage)->kind, state), dtype,
        unfit.value);
}

/* Copy the states of a row of a file to row number i of the chunk. */
static hotbed_status copy_states(
    const filling *f, const pair *p, const places *at, uint64_t i, uint64_t key,
    const unsigned char *row) {
    const unsigned char *from = row + hotbed_cut_states_at(table_of(f, p));
    for (uint32_t s = 0; s < 2; s++) {
        const size_t bytes = state_bytes(p, s);
        unsigned char *to = (unsigned char *)f->pinned.data + at->states[s] + i * bytes;
        if (p->info.state_dtypes[s] == HOTBED_F32)
            memcpy(to, from, bytes);
        else if (bytes > 0)
            HOTBED_TRY(convert(
                p, key, s, (const void *)from, p->info.state_dtypes[s], p->state_dims[s], to));
        from += p->state_dims[s] * sizeof(float);
    }
    return HOTBED_OK;
}

/* Decode rows [first, first + n) of a file to the pinned memory, behind their keys. */
static hotbed_status decode(
    const filling *f, const pair *p, const hotbed_rows_file *file, uint64_t first, uint64_t n,
    size_t bytes) {
    const places at = places_of(p, n, bytes);
    const hotbed_version_table *t = &f->v->tables[p->from];
    const unsigned char *row =
        (const unsigned char *)hotbed_rows_column_of(file, p->from, HOTBED_ROWS_VALUES) +
        first * t->row_bytes;
    unsigned char *to = (unsigned char *)f->pinned.data + at.weights;
    const uint64_t *keys =
        (const uint64_t *)hotbed_rows_column_of(file, p->from, HOTBED_ROWS_KEYS) + first;
    float values[DIM_MOST];
    for (uint64_t i = 0; i < n; i++, row += t->row_bytes, to += bytes) {
        if (t->encoding == HOTBED_ENCODING_INT8 && p->info.dtype == HOTBED_INT8) {
            hotbed_row_stored_int8(t->dim, row, to);
        } else {
            hotbed_row_decode(t->encoding, t->dim, row, values);
            HOTBED_TRY(convert(p, keys[i], NO_STATE, values, p->info.dtype, t->dim, to));
        }
        if (has_states(p))
            HOTBED_TRY(copy_states(f, p, &at, i, keys[i], row));
    }
    return HOTBED_OK;
}

static hotbed_status write_rows(const filling *f, const pair *p, const hotbed_rows_file *file) {
    const uint64_t *keys = hotbed_rows_column_of(file, p->from, HOTBED_ROWS_KEYS);
    const size_t bytes = hotbed_dtype_row_bytes(p->info.dtype, p->info.dim);
    const uint64_t all = file->tables[p->from].rows;
    const uint64_t most = (CHUNK_BYTES - 24) / (places_of(p, 8, bytes).bytes / 8);
    for (uint64_t at = 0; at < all; at += most) {
        const uint64_t n = all - at < most ? all - at : most;
        const places to = places_of(p, n, bytes);
        hotbed_rows rows = {.weights = (char *)f->device.data + to.weights};
        for (uint32_t s = 0; s < 2; s++)
            if (p->state_dims[s] > 0)
                rows.states[s] = (void *)((char *)f->device.data + to.states[s]);
        memcpy(f->pinned.data, keys + at, n * sizeof *keys);
        HOTBED_TRY(decode(f, p, file, at, n, bytes));
        HOTBED_TRY(hotbed_copy(f->device.data, f->pinned.data, to.bytes, f->stream));
        HOTBED_TRY(
            hotbed_storage_offer_rows(p->storage, p->to, n, f->device.data, &rows, f->stream));
        HOTBED_TRY(hotbed_stream_sync(f->stream)); /* before the memory is used again */
    }
    return HOTBED_OK;
}

static hotbed_status remove_keys(const filling *f, const pair *p, const hotbed_rows_file *file) {
    const uint64_t *keys = hotbed_rows_column_of(file, p->from, HOTBED_ROWS_ERASED);
    const uint64_t all = file->tables[p->from].erased, most = CHUNK_BYTES / sizeof *keys;
    for (uint64_t at = 0; at < all; at += most) {
        const uint64_t n = all - at < most ? all - at : most;
        memcpy(f->pinned.data, keys + at, n * sizeof *keys);
        HOTBED_TRY(hotbed_copy(f->device.data, f->pinned.data, n * sizeof *keys, f->stream));
        HOTBED_TRY(hotbed_storage_erase(p->storage, p->to, n, f->device.data, NULL, f->stream));
        HOTBED_TRY(hotbed_stream_sync(f->stream));
    }
    return HOTBED_OK;
}

/* Check that a hash table has all keys: one that evicts loses them without a fault. */
static hotbed_status check_size(const filling *f, const pair *p) {
    uint64_t keys = 0;
    const uint64_t wanted = f->v->tables[p->from].keys;
    if (p->info.kind == HOTBED_TABLE_STATIC)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_storage_size(p->storage, p->to, &keys, NULL, f->stream));
    return keys == wanted ? HOTBED_OK
                          : hotbed_fail_table_limit(
                                HOTBED_ERR_STATE, p->info.name, "capacity", wanted, keys,
                                "reader_fill: table '%s' holds %" PRIu64 " of the %" PRIu64
                                " keys of cut %" PRIu64 ": make it larger",
                                p->info.name, keys, wanted, f->v->number);
}

static hotbed_status fill_table(const filling *f, const pair *p) {
    if (f->first == 0)
        HOTBED_TRY(hotbed_storage_clear(p->storage, p->to, f->stream));
    for (uint64_t i = f->first * f->v->world; i < f->v->num_rows; i++) {
        HOTBED_TRY(remove_keys(f, p, f->v->rows[i]));
        HOTBED_TRY(write_rows(f, p, f->v->rows[i]));
    }
    return check_size(f, p);
}

/* --- the call ------------------------------------------------------------------------------------ */

/* The number of the file after the cut that the storages have; 0 if the base has to be written. */
static uint64_t first_file(const hotbed_version *v, uint64_t has) {
    for (uint64_t i = 0; has != 0 && i < v->num_files; i++)
        if (v->files[i]->cut.head->number == has)
            return i + 1;
    return 0;
}

/* Call a function for each table of all storages. */
static hotbed_status for_tables(
    const filling *f, hotbed_status (*call)(const filling *f, const pair *p)) {
    for (uint32_t s = 0; s < f->num_storages; s++)
        for (uint32_t t = 0; t < hotbed_storage_num_tables(f->storages[s]); t++) {
            pair p;
            HOTBED_TRY(find_table(f, f->storages[s], t, &p));
            HOTBED_TRY(match_states(f, &p));
            HOTBED_TRY(call(f, &p));
        }
    return HOTBED_OK;
}

/* Check that the tables of a storage, which has one count of steps, have one in the cut. */
static hotbed_status check_steps(const filling *f, hotbed_storage *storage) {
    const hotbed_cut_table *first = NULL;
    for (uint32_t t = 0; t < hotbed_storage_num_tables(storage); t++) {
        pair p;
        HOTBED_TRY(find_table(f, storage, t, &p));
        HOTBED_TRY(match_states(f, &p));
        const hotbed_cut_table *from = table_of(f, &p);
        if (!has_states(&p))
            continue;
        first = first == NULL ? from : first;
        if (from->optimizer_steps != first->optimizer_steps)
            return hotbed_fail_table_limit(
                HOTBED_ERR_UNSUPPORTED, p.info.name, "optimizer_steps", from->optimizer_steps,
                first->optimizer_steps,
                "reader_fill: in the cut, table '%s' has %" PRIu64
                " steps of the optimizer and table '%s' has %" PRIu64
                "; they cannot be in one storage",
                p.info.name, from->optimizer_steps, first->name, first->optimizer_steps);
    }
    return HOTBED_OK;
}

static hotbed_status fill(filling *f, uint64_t *version) {
    for (uint32_t s = 0; s < f->num_storages; s++)
        HOTBED_TRY(check_steps(f, f->storages[s]));
    f->first = first_file(f->v, *version);
    if (f->first == f->v->num_files)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_memory_alloc(f->stream, HOTBED_MEMORY_PINNED, CHUNK_BYTES, NULL, &f->pinned));
    HOTBED_TRY(hotbed_memory_alloc(f->stream, HOTBED_MEMORY_DEVICE, CHUNK_BYTES, NULL, &f->device));
    *version = 0;
    HOTBED_TRY(for_tables(f, fill_table));
    HOTBED_TRY(for_tables(f, set_steps));
    *version = f->v->number;
    return HOTBED_OK;
}

hotbed_status hotbed_reader_fill(
    hotbed_reader *reader, hotbed_storage *const *storages, uint32_t n, hotbed_stream *stream,
    uint64_t *version) {
    static const char call[] = "reader_fill";
    HOTBED_TRY(hotbed_check_pointer_of(call, "storages", storages));
    for (uint32_t s = 0; s < n; s++)
        HOTBED_TRY(hotbed_check_pointer_of(call, "storages", storages[s]));
    HOTBED_TRY(hotbed_check_pointer_of(call, "stream", stream));
    HOTBED_TRY(hotbed_check_pointer_of(call, "version", version));
    filling f = {.storages = storages, .num_storages = n, .stream = stream};
    HOTBED_TRY(hotbed_reader_take(reader, call, &f.v));
    const hotbed_status status = fill(&f, version);
    hotbed_error error;
    hotbed_error_copy(&error);
    if (f.pinned.data != NULL || f.device.data != NULL)
        (void)!hotbed_stream_sync(stream); /* after an error it may still use the memory */
    hotbed_memory_free(&f.device);
    hotbed_memory_free(&f.pinned);
    hotbed_reader_give(f.v);
    return status == HOTBED_OK ? HOTBED_OK : hotbed_error_return(&error, status);
}
