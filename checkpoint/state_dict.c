/* checkpoint/state_dict.c - tensors of a storage by name: views, collected tensors, hooks, and
 * loading. */
#include "hotbed/state_dict.h"

#include "base/check.h"
#include "base/error.h"
#include "base/options.h"
#include "base/stream.h"
#include "base/text.h"
#include "checkpoint/format/bucket.h"
#include "checkpoint/staging.h"
#include "checkpoint/state_view.h"
#include "storage/index/index_layout_core.h"
#include "storage/storage.h"
#include "storage/types.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { PREFIX_MOST = 127, NAME_BYTES = 384, HOOKS = 16, MOMENTS = 4 };

typedef struct entry {
    hotbed_state_tensor tensor;
    char name[NAME_BYTES];
    void *made; /* owned */
} entry;

struct hotbed_state_dict {
    hotbed_storage *storage;
    uint32_t num_entries;
    entry *entries;
    hotbed_view_rows *rows; /* [tables], as of the last collect */
    bool collected;
    uint32_t num_hooks[MOMENTS];
    hotbed_state_hook hooks[MOMENTS][HOOKS];
    void *selves[MOMENTS][HOOKS];
};

/* --- the tensors ----------------------------------------------------------------------------------------- */

static entry *add(
    hotbed_state_dict *d, const char *prefix, uint32_t table, hotbed_state_kind kind,
    const char *words, const char *name, const char *last) {
    entry *e = &d->entries[d->num_entries++];
    const char *optimizer = kind == HOTBED_STATE_OPTIMIZER ? "optimizer." : "";
    snprintf(
        e->name, sizeof e->name, "%s%.*s%.63s.%s%.63s%s", optimizer, PREFIX_MOST, prefix, name,
        words, kind == HOTBED_STATE_OPTIMIZER ? name : "", last);
    e->tensor = (hotbed_state_tensor){.name = e->name, .kind = kind, .table = table};
    return e;
}

/* Set a view's address to the current one, since the table may have grown. */
static hotbed_status place_view(const hotbed_state_dict *d, hotbed_state_tensor *t) {
    hotbed_table_info info = {.size = sizeof info};
    hotbed_state_piece piece = {.rows = 0};
    if (t->made)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_storage_table(d->storage, t->table, &info));
    HOTBED_TRY(hotbed_view_pieces(d->storage, t->table, &t->pieces));
    if (t->pieces > 0)
        HOTBED_TRY(hotbed_view_piece(d->storage, t->table, t->pieces - 1, &piece));
    t->row_bytes = info.row_bytes;
    t->rows = piece.first_row + piece.rows;
    t->data = t->pieces == 1 ? piece.data : NULL;
    if (t->data != NULL && t->kind == HOTBED_STATE_OPTIMIZER)
        t->data = (char *)t->data + info.state_offsets[t->state];
    return HOTBED_OK;
}

static void add_made(
    hotbed_state_dict *d, const char *prefix, uint32_t table, const hotbed_table_info *info) {
    static const char *const words[] = {"", "weight_id", "bucket", "metadata"};
    for (int kind = HOTBED_STATE_WEIGHT_ID; kind <= HOTBED_STATE_METADATA; kind++) {
        entry *e = add(d, prefix, table, (hotbed_state_kind)kind, words[kind], info->name, "");
        e->tensor.made = true;
        e->tensor.row_bytes = sizeof(uint64_t);
        e->tensor.element =
            kind == HOTBED_STATE_WEIGHT_ID && hotbed_storage_key_type(d->storage) == HOTBED_KEY_I64
                ? HOTBED_ELEMENT_I64
                : HOTBED_ELEMENT_U64;
    }
}

static hotbed_status add_table(hotbed_state_dict *d, const char *prefix, uint32_t table) {
    hotbed_table_info info = {.size = sizeof info};
    hotbed_optimizer_kind kind = hotbed_storage_optimizer(d->storage)->kind;
    HOTBED_TRY(hotbed_storage_table(d->storage, table, &info));
    entry *e = add(d, prefix, table, HOTBED_STATE_WEIGHT, "weight", info.name, "");
    e->tensor.element = hotbed_weights_element(info.dtype, info.dim, &e->tensor.columns);
    if (info.kind == HOTBED_TABLE_HASH)
        add_made(d, prefix, table, &info);
    for (uint32_t s = 0; s < hotbed_optimizer_states(kind); s++) {
        char last[32];
        snprintf(last, sizeof last, ".%s", hotbed_optimizer_state_name(kind, s));
        e = add(d, prefix, table, HOTBED_STATE_OPTIMIZER, "weight.", info.name, last);
        e->tensor.state = s;
        e->tensor.element = hotbed_weights_element(
            info.state_dtypes[s], hotbed_optimizer_state_dim(kind, s, info.dim),
            &e->tensor.columns);
        if (hotbed_state_is_one((uint32_t)kind, s))
            e->tensor.columns = 0;
    }
    return HOTBED_OK;
}

hotbed_status hotbed_state_dict_create(
    hotbed_storage *storage, const char *prefix, hotbed_state_dict **out) {
    enum { MOST_A_TABLE = 6 };
    HOTBED_TRY(hotbed_check_pointer_of("state_dict_create", "out", out));
    *out = NULL;
    HOTBED_TRY(hotbed_check_pointer_of("state_dict_create", "storage", storage));
    if (prefix != NULL && strlen(prefix) > PREFIX_MOST)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "prefix", strlen(prefix), PREFIX_MOST,
            "state_dict_create: the prefix has %zu characters, at most %d are allowed",
            strlen(prefix), PREFIX_MOST);
    uint32_t tables = hotbed_storage_num_tables(storage);
    hotbed_state_dict *d = hotbed_new(sizeof *d);
    entry *entries = hotbed_new((size_t)tables * MOST_A_TABLE * sizeof *entries);
    hotbed_view_rows *rows = hotbed_new(tables * sizeof *rows);
    hotbed_status status = HOTBED_OK;
    if (d == NULL || entries == NULL || rows == NULL) {
        hotbed_delete(d);
        hotbed_delete(entries);
        hotbed_delete(rows);
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory to name %" PRIu32 " tables", tables);
    }
    d->storage = storage;
    d->entries = entries;
    d->rows = rows;
    for (uint32_t t = 0; t < tables && status == HOTBED_OK; t++)
        status = add_table(d, prefix == NULL ? "embeddings." : prefix, t);
    if (status == HOTBED_OK)
        *out = d;
    else
        hotbed_state_dict_destroy(d);
    return status;
}

void hotbed_state_dict_destroy(hotbed_state_dict *d) {
    if (d == NULL)
        return;
    for (uint32_t i = 0; i < d->num_entries; i++)
        hotbed_delete(d->entries[i].made);
    for (uint32_t t = 0; t < hotbed_storage_num_tables(d->storage); t++)
        hotbed_delete(d->rows[t].pairs);
    hotbed_delete(d->rows);
    hotbed_delete(d->entries);
    hotbed_delete(d);
}

uint32_t hotbed_state_dict_size(const hotbed_state_dict *d) {
    return d == NULL ? 0 : d->num_entries;
}

hotbed_status hotbed_state_dict_tensor(
    const hotbed_state_dict *d, uint32_t number, hotbed_state_tensor *out) {
    if (d == NULL || number >= d->num_entries)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "number", number,
            "state_dict: dict is NULL, or no tensor %" PRIu32, number);
    HOTBED_TRY(hotbed_output_check(out, "hotbed_state_tensor"));
    hotbed_state_tensor t = d->entries[number].tensor;
    HOTBED_TRY(place_view(d, &t));
    hotbed_output_write(out, &t, sizeof t);
    return HOTBED_OK;
}

static entry *find(const hotbed_state_dict *d, const char *name) {
    for (uint32_t i = 0; i < d->num_entries; i++)
        if (strcmp(d->entries[i].name, name) == 0)
            return &d->entries[i];
    return NULL;
}

hotbed_status hotbed_state_dict_find(
    const hotbed_state_dict *d, const char *name, hotbed_state_tensor *out) {
    if (d == NULL || name == NULL || out == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "state_dict: dict, name or out is NULL");
    const entry *e = find(d, name);
    if (e == NULL)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, "name", "state_dict: there is no '%s'", name);
    return hotbed_state_dict_tensor(d, (uint32_t)(e - d->entries), out);
}

hotbed_status hotbed_state_dict_piece(
    const hotbed_state_dict *d, uint32_t number, uint32_t piece, hotbed_state_piece *out) {
    hotbed_table_info info = {.size = sizeof info};
    hotbed_state_tensor t = {.size = sizeof t};
    hotbed_state_piece found;
    HOTBED_TRY(hotbed_check_pointer_of("state_dict_piece", "out", out));
    HOTBED_TRY(hotbed_state_dict_tensor(d, number, &t));
    if (t.made)
        return hotbed_error_parameter(
            hotbed_fail_table(
                HOTBED_ERR_ARGUMENT, t.name, "state_dict_piece: '%s' is no view", t.name),
            "number");
    HOTBED_TRY(hotbed_storage_table(d->storage, t.table, &info));
    HOTBED_TRY(hotbed_view_piece(d->storage, t.table, piece, &found));
    if (t.kind == HOTBED_STATE_OPTIMIZER)
        found.data = (char *)found.data + info.state_offsets[t.state];
    *out = found;
    return HOTBED_OK;
}

hotbed_status hotbed_state_dict_rows(
    const hotbed_state_dict *d, uint32_t table, uint64_t n, const uint64_t *keys, uint64_t *rows) {
    if (d == NULL || table >= hotbed_storage_num_tables(d->storage) ||
        (n > 0 && (keys == NULL || rows == NULL)))
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "table", table,
            "state_dict_rows: dict, keys or rows is NULL, or no table %" PRIu32, table);
    if (!d->collected)
        return hotbed_fail(HOTBED_ERR_STATE, "state_dict_rows: the dict was not collected");
    for (uint64_t i = 0; i < n; i++)
        rows[i] = hotbed_view_row(&d->rows[table], keys[i]);
    return HOTBED_OK;
}

/* --- hooks ------------------------------------------------------------------------------------------------ */

hotbed_status hotbed_state_dict_add_hook(
    hotbed_state_dict *d, hotbed_state_moment moment, hotbed_state_hook hook, void *self) {
    if (d == NULL || hook == NULL || (int)moment < 0 || (int)moment >= MOMENTS)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "moment", moment,
            "state_dict: dict or hook is NULL, or no moment %d", (int)moment);
    if (d->num_hooks[moment] == HOOKS)
        return hotbed_fail(HOTBED_ERR_MEMORY, "state_dict: over %d hooks of a moment", HOOKS);
    d->hooks[moment][d->num_hooks[moment]] = hook;
    d->selves[moment][d->num_hooks[moment]++] = self;
    return HOTBED_OK;
}

static hotbed_status call(hotbed_state_dict *d, hotbed_state_moment moment, hotbed_stream *stream) {
    for (uint32_t i = 0; i < d->num_hooks[moment]; i++)
        HOTBED_TRY_CALLBACK("a hook", d->hooks[moment][i](d->selves[moment][i], d, stream));
    return HOTBED_OK;
}

/* --- out --------------------------------------------------------------------------------------------------- */

static size_t element_bytes(hotbed_element element) {
    switch (element) {
    case HOTBED_ELEMENT_F32:
    case HOTBED_ELEMENT_U32:
        return 4;
    case HOTBED_ELEMENT_F16:
    case HOTBED_ELEMENT_BF16:
        return 2;
    case HOTBED_ELEMENT_U8:
        return 1;
    case HOTBED_ELEMENT_I64:
    case HOTBED_ELEMENT_U64:
    case HOTBED_ELEMENT_KEY:
        break;
    }
    return 8;
}

/* Return the bytes of a row of a tensor. */
static size_t item_bytes(uint64_t columns, hotbed_element element) {
    return (columns == 0 ? 1 : columns) * element_bytes(element);
}

static void give(entry *e, void *data, uint64_t rows) {
    hotbed_delete(e->made);
    e->made = data;
    e->tensor.data = data;
    e->tensor.rows = rows;
}

/* Collect weight_id, bucket and metadata of a table: three entries, from `e` on. */
static hotbed_status make(hotbed_state_dict *d, entry *e, hotbed_stream *stream) {
    uint32_t table = e->tensor.table;
    uint64_t n = 0, buckets = (uint64_t)1 << HOTBED_BUCKET_BITS;
    hotbed_key_type type = hotbed_storage_key_type(d->storage);
    HOTBED_TRY(hotbed_storage_export_keys(d->storage, table, 0, NULL, NULL, &n, stream));
    size_t bytes = n * sizeof(uint64_t);
    uint64_t *keys = hotbed_new(bytes), *scores = hotbed_new(bytes), *pairs = hotbed_new(2 * bytes);
    uint64_t *sorted = hotbed_new(bytes), *counts = hotbed_new(buckets * sizeof *counts);
    hotbed_status status = HOTBED_CHECK_MEMORY(
        keys != NULL && scores != NULL && pairs != NULL && sorted != NULL && counts != NULL,
        "%" PRIu64 " keys", n);
    HOTBED_THEN(status, hotbed_storage_export_keys(d->storage, table, n, keys, scores, &n, stream));
    HOTBED_THEN(status, hotbed_bucket_sort(n, keys, type, HOTBED_BUCKET_BITS, sorted, counts));
    HOTBED_THEN(status, hotbed_bucket_sort_pairs(n, keys, type, scores, HOTBED_BUCKET_BITS, pairs));
    if (status == HOTBED_OK) {
        memcpy(scores, pairs + n, bytes);
        give(e, sorted, n);
        give(e + 1, counts, buckets);
        give(e + 2, scores, n);
        sorted = counts = scores = NULL;
    }
    hotbed_delete(keys);
    hotbed_delete(scores);
    hotbed_delete(pairs);
    hotbed_delete(sorted);
    hotbed_delete(counts);
    return status;
}

static bool is_row(const entry *e) {
    return e->tensor.kind == HOTBED_STATE_WEIGHT || e->tensor.kind == HOTBED_STATE_OPTIMIZER;
}

/* Free the gathered rows, so that weights and states are views again. */
static void drop_rows(hotbed_state_dict *d) {
    for (uint32_t i = 0; i < d->num_entries; i++) {
        entry *e = &d->entries[i];
        if (!is_row(e) || !e->tensor.made)
            continue;
        hotbed_delete(e->made);
        e->made = NULL;
        e->tensor.made = false;
    }
}

/* The column of a checkpoint that has what a tensor has. */
static uint32_t column_of(const hotbed_state_tensor *t) {
    switch (t->kind) {
    case HOTBED_STATE_WEIGHT:
        return HOTBED_COLUMN_VALUES;
    case HOTBED_STATE_WEIGHT_ID:
        return HOTBED_COLUMN_KEYS;
    case HOTBED_STATE_METADATA:
        return HOTBED_COLUMN_SCORES;
    case HOTBED_STATE_OPTIMIZER:
        return HOTBED_COLUMN_STATE + t->state;
    case HOTBED_STATE_BUCKET:
        break;
    }
    return HOTBED_COLUMN_BUCKET;
}

/* Rows of a table that are copied to the host. */
typedef struct gatherer {
    hotbed_state_dict *d;
    hotbed_stream *stream;
    uint32_t table;
    const uint64_t *keys; /* NULL: rows of a static table, by number */
    uint64_t rows;
    entry *columns[HOTBED_ROW_COLUMNS]; /* weights and states; NULL: the table has none */
    hotbed_staging staging;
} gatherer;

/* Allocate memory for all rows, and for a chunk of them. */
static hotbed_status gather_open(gatherer *g) {
    hotbed_table_info info = {.size = sizeof info};
    size_t *widths = g->staging.row_bytes;
    HOTBED_TRY(hotbed_storage_table(g->d->storage, g->table, &info));
    g->rows = info.capacity;
    for (uint32_t i = 0; i < g->d->num_entries; i++) {
        entry *e = &g->d->entries[i];
        if (e->tensor.table == g->table && e->tensor.kind == HOTBED_STATE_WEIGHT_ID) {
            g->keys = e->tensor.data;
            g->rows = e->tensor.rows;
        } else if (e->tensor.table == g->table && is_row(e)) {
            g->columns[column_of(&e->tensor)] = e;
            widths[column_of(&e->tensor)] = item_bytes(e->tensor.columns, e->tensor.element);
        }
    }
    for (uint32_t c = 0; c < HOTBED_ROW_COLUMNS; c++) {
        if (g->columns[c] == NULL)
            continue;
        g->columns[c]->made = hotbed_new(g->rows * widths[c]);
        HOTBED_TRY(hotbed_error_table(
            HOTBED_CHECK_MEMORY(
                g->columns[c]->made, "%" PRIu64 " rows of table '%s'", g->rows, info.name),
            info.name));
        g->columns[c]->tensor.made = true;
    }
    return hotbed_staging_open(g->rows, g->stream, &g->staging);
}

/* Copy rows [first, first + n). */
static hotbed_status gather_chunk(gatherer *g, uint64_t first, uint64_t n) {
    const hotbed_staging *from = &g->staging;
    const hotbed_key_type type = hotbed_storage_key_type(g->d->storage);
    uint64_t *keys = from->columns[HOTBED_COLUMN_KEYS];
    for (uint64_t i = 0; i < n; i++)
        keys[i] = g->keys == NULL ? first + i : g->keys[first + i];
    HOTBED_TRY(hotbed_staging_fetch(&g->staging, g->d->storage, g->table, n, g->stream));
    HOTBED_TRY(hotbed_stream_sync(g->stream));
    for (uint64_t i = 0; i < n; i++)
        if (from->found[i] != 1)
            return hotbed_error_key(
                hotbed_error_table_number(
                    hotbed_fail(
                        HOTBED_ERR_STATE,
                        "table %" PRIu32 " was changed while it was gathered: key %s is gone",
                        g->table, hotbed_key_text(keys[i], type).text),
                    g->table),
                keys[i], type);
    for (uint32_t c = 0; c < HOTBED_ROW_COLUMNS; c++)
        if (g->columns[c] != NULL)
            memcpy(
                (char *)g->columns[c]->made + first * from->row_bytes[c], from->columns[c],
                n * from->row_bytes[c]);
    return HOTBED_OK;
}

/* Copy a table's weights and states to host memory, in the order of weight_id. */
static hotbed_status gather_table(hotbed_state_dict *d, uint32_t table, hotbed_stream *stream) {
    gatherer g = {.d = d, .stream = stream, .table = table};
    hotbed_status status = gather_open(&g);
    const uint64_t chunk = g.staging.capacity;
    for (uint64_t first = 0; first < g.rows && status == HOTBED_OK; first += chunk)
        status = gather_chunk(&g, first, g.rows - first < chunk ? g.rows - first : chunk);
    if (status != HOTBED_OK)
        status = hotbed_stream_settle(stream, status);
    for (uint32_t c = 0; status == HOTBED_OK && c < HOTBED_ROW_COLUMNS; c++) {
        entry *e = g.columns[c];
        if (e == NULL)
            continue;
        e->tensor.data = e->made;
        e->tensor.rows = g.rows;
        e->tensor.row_bytes = g.staging.row_bytes[c];
        e->tensor.pieces = 0;
    }
    hotbed_staging_destroy(&g.staging);
    return status;
}

static hotbed_status gather_tables(hotbed_state_dict *d, hotbed_stream *stream) {
    hotbed_status status = HOTBED_OK;
    for (uint32_t t = 0; t < hotbed_storage_num_tables(d->storage) && status == HOTBED_OK; t++)
        status = gather_table(d, t, stream);
    if (status != HOTBED_OK)
        drop_rows(d);
    return status;
}

static hotbed_status collect_tensors(hotbed_state_dict *d, bool rows_too, hotbed_stream *stream) {
    drop_rows(d);
    HOTBED_TRY(hotbed_storage_flush(d->storage, stream));
    HOTBED_TRY(hotbed_stream_sync(stream));
    for (uint32_t i = 0; i < d->num_entries; i++)
        if (d->entries[i].tensor.kind == HOTBED_STATE_WEIGHT_ID)
            HOTBED_TRY(make(d, &d->entries[i], stream));
    for (uint32_t t = 0; t < hotbed_storage_num_tables(d->storage); t++) {
        hotbed_view_rows rows;
        HOTBED_TRY(hotbed_view_rows_read(d->storage, t, &rows, stream));
        hotbed_delete(d->rows[t].pairs);
        d->rows[t] = rows;
    }
    d->collected = true;
    return rows_too ? gather_tables(d, stream) : HOTBED_OK;
}

static hotbed_status collect(hotbed_state_dict *d, bool rows_too, hotbed_stream *stream) {
    hotbed_held_fault held; /* of earlier work: stays for the caller's own hotbed_stream_sync() */
    HOTBED_TRY(call(d, HOTBED_STATE_BEFORE_COLLECT, stream));
    HOTBED_TRY(hotbed_stream_hold_fault(stream, &held));
    const hotbed_status status = collect_tensors(d, rows_too, stream);
    hotbed_stream_return_fault(stream, &held);
    HOTBED_TRY(status);
    return call(d, HOTBED_STATE_AFTER_COLLECT, stream);
}

hotbed_status hotbed_state_dict_collect(hotbed_state_dict *d, hotbed_stream *stream) {
    if (d == NULL || stream == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "state_dict_collect: dict or stream is NULL");
    return collect(d, false, stream);
}

hotbed_status hotbed_state_dict_gather(hotbed_state_dict *d, hotbed_stream *stream) {
    if (d == NULL || stream == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "state_dict_gather: dict or stream is NULL");
    return collect(d, true, stream);
}

/* --- in ----------------------------------------------------------------------------------------------------- */

/* The sources of one table. */
typedef struct table_sources {
    const hotbed_state_source *columns[HOTBED_ROW_COLUMNS]; /* NULL: there is none */
    uint64_t rows;
} table_sources;

static size_t row_bytes_of(const hotbed_state_source *s) {
    return item_bytes(s->columns, s->element);
}

static const hotbed_state_source *source_of(
    uint32_t n, const hotbed_state_source *sources, const char *name) {
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(sources[i].name, name) == 0)
            return &sources[i];
    return NULL;
}

static bool of_hash_table(const hotbed_state_dict *d, uint32_t table) {
    hotbed_table_info info = {.size = sizeof info};
    return hotbed_storage_table(d->storage, table, &info) == HOTBED_OK &&
           info.kind == HOTBED_TABLE_HASH;
}

static void compare_names(
    const hotbed_state_dict *d, uint32_t n, const hotbed_state_source *sources,
    hotbed_state_report *report) {
    enum { SHOWN = sizeof report->missing / sizeof *report->missing };
    for (uint32_t i = 0; i < d->num_entries; i++) {
        const entry *e = &d->entries[i];
        if (of_hash_table(d, e->tensor.table) || source_of(n, sources, e->name) != NULL)
            continue;
        if (report->num_missing < SHOWN)
            report->missing[report->num_missing] = e->name;
        report->num_missing++;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (find(d, sources[i].name) != NULL)
            continue;
        if (report->num_unexpected < SHOWN)
            report->unexpected[report->num_unexpected] = sources[i].name;
        report->num_unexpected++;
    }
}

/* Check that scores have 52 bits: eviction compares no more, so larger scores would compare as
 * equal. */
static hotbed_status check_scores(const hotbed_state_source *s) {
    uint64_t stride = s->row_bytes == 0 ? sizeof(uint64_t) : s->row_bytes;
    for (uint64_t i = 0; i < s->rows; i++) {
        uint64_t score;
        memcpy(&score, (const char *)s->data + i * stride, sizeof score);
        if (score > HOTBED_SCORE_MOST)
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, s->name, score, 0x1p52 - 1,
                "state_dict_load: '%s' has %" PRIu64 " in row %" PRIu64
                "; scores are at most 2^52 - 1: load ranks or coarser times",
                s->name, score, i);
    }
    return HOTBED_OK;
}

/* Check that no key occurs twice. The storage would find it only among the rows of one chunk. */
static hotbed_status check_keys(const hotbed_state_dict *d, const hotbed_state_source *s) {
    const uint64_t stride = s->row_bytes == 0 ? sizeof(uint64_t) : s->row_bytes;
    uint64_t *keys = hotbed_new(s->rows * sizeof *keys),
             *sorted = hotbed_new(s->rows * sizeof *keys);
    uint64_t *counts = hotbed_new(((size_t)1 << HOTBED_BUCKET_BITS) * sizeof *counts);
    hotbed_status status = HOTBED_OK;
    if (keys == NULL || sorted == NULL || counts == NULL)
        status = hotbed_fail(
            HOTBED_ERR_MEMORY, "state_dict_load: no memory to sort the %" PRIu64 " keys of '%s'",
            s->rows, s->name);
    for (uint64_t i = 0; i < s->rows && status == HOTBED_OK; i++)
        memcpy(&keys[i], (const char *)s->data + i * stride, sizeof *keys);
    if (status == HOTBED_OK) {
        status = hotbed_bucket_sort(
            s->rows, keys, hotbed_storage_key_type(d->storage), HOTBED_BUCKET_BITS, sorted, counts);
        if (status == HOTBED_ERR_STATE)
            status = HOTBED_FAIL_AFTER(
                HOTBED_ERR_ARGUMENT, "state_dict_load: '%s': %s; pass each key once", s->name,
                hotbed_last_error());
    }
    hotbed_delete(keys);
    hotbed_delete(sorted);
    hotbed_delete(counts);
    return status;
}

static hotbed_status check_sources(
    const hotbed_state_dict *d, uint32_t n, const hotbed_state_source *sources) {
    for (uint32_t i = 0; i < n; i++) {
        const hotbed_state_source *s = &sources[i];
        if (s->name == NULL || (s->data == NULL && s->rows > 0))
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, "sources", i,
                "state_dict_load: source %" PRIu32 " has no name or data", i);
        const entry *e = find(d, s->name);
        if (source_of(i, sources, s->name) != NULL)
            return hotbed_fail_parameter(
                HOTBED_ERR_ARGUMENT, s->name, "state_dict_load: '%s' occurs twice", s->name);
        if (e == NULL || e->tensor.kind == HOTBED_STATE_BUCKET)
            continue;
        const uint64_t stride = s->row_bytes == 0 ? row_bytes_of(s) : s->row_bytes;
        if (s->rows > PTRDIFF_MAX / (stride == 0 ? 1 : stride))
            return hotbed_fail_value(
                HOTBED_ERR_ARGUMENT, s->name, s->rows,
                "state_dict_load: '%s' has %" PRIu64 " rows of %" PRIu64
                " bytes, more than memory can hold",
                s->name, s->rows, stride);
        if (s->row_bytes != 0 && s->row_bytes < row_bytes_of(s))
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, "row_bytes", s->row_bytes, row_bytes_of(s),
                "state_dict_load: '%s' has row_bytes %" PRIu64 ", but its rows have %zu bytes each",
                s->name, s->row_bytes, row_bytes_of(s));
        bool key =
            e->tensor.kind == HOTBED_STATE_WEIGHT_ID || e->tensor.kind == HOTBED_STATE_METADATA;
        bool element = key ? s->element == HOTBED_ELEMENT_I64 || s->element == HOTBED_ELEMENT_U64
                           : s->element == e->tensor.element;
        if (!element || s->columns != e->tensor.columns)
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, "columns", s->columns, e->tensor.columns,
                "state_dict_load: '%s' has element %d and %" PRIu64
                " columns, expected %d and %" PRIu64,
                s->name, (int)s->element, s->columns, (int)e->tensor.element, e->tensor.columns);
    }
    return HOTBED_OK;
}

/* Find the sources of a table. If it has 0 rows, nothing can be loaded. */
static hotbed_status find_sources(
    const hotbed_state_dict *d, uint32_t table, uint32_t n, const hotbed_state_source *sources,
    table_sources *out) {
    hotbed_table_info info = {.size = sizeof info};
    *out = (table_sources){.rows = 0};
    HOTBED_TRY(hotbed_storage_table(d->storage, table, &info));
    bool any = false, hash = info.kind == HOTBED_TABLE_HASH;
    out->rows = hash ? 0 : info.capacity;
    for (uint32_t i = 0; i < d->num_entries; i++) {
        const entry *e = &d->entries[i];
        const hotbed_state_source *s =
            e->tensor.table == table ? source_of(n, sources, e->name) : NULL;
        if (s == NULL || e->tensor.kind == HOTBED_STATE_BUCKET)
            continue;
        out->columns[column_of(&e->tensor)] = s;
        if (hash && !any)
            out->rows = s->rows;
        any = true;
        if (s->rows != out->rows)
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, "rows", s->rows, out->rows,
                "state_dict_load: '%s' has %" PRIu64 " rows, expected %" PRIu64, s->name, s->rows,
                out->rows);
    }
    if (!any || (hash && out->columns[HOTBED_COLUMN_KEYS] == NULL))
        out->rows = 0;
    return HOTBED_OK;
}

/* Copy rows [first, first + n) of the sources. */
static hotbed_status copy_chunk(
    hotbed_state_dict *d, uint32_t table, const table_sources *from, uint64_t first, uint64_t n,
    hotbed_staging *to, hotbed_stream *stream) {
    uint64_t *numbers = to->columns[HOTBED_COLUMN_KEYS];
    for (uint64_t i = 0; i < n; i++)
        numbers[i] = first + i; /* of a static table */
    for (uint32_t c = 0; c < HOTBED_ROW_COLUMNS; c++) {
        const hotbed_state_source *s = from->columns[c];
        if (s == NULL)
            continue;
        const size_t width = to->row_bytes[c], stride = s->row_bytes == 0 ? width : s->row_bytes;
        for (uint64_t i = 0; i < n; i++)
            memcpy(
                (char *)to->columns[c] + i * width, (const char *)s->data + (first + i) * stride,
                width);
    }
    HOTBED_TRY(hotbed_staging_store(to, d->storage, table, n, stream));
    return hotbed_stream_sync(stream);
}

static hotbed_status copy_table(
    hotbed_state_dict *d, uint32_t table, const table_sources *from, hotbed_stream *stream) {
    hotbed_staging s = {.capacity = 0};
    for (uint32_t c = 0; c < HOTBED_ROW_COLUMNS; c++)
        s.row_bytes[c] = from->columns[c] == NULL ? 0 : row_bytes_of(from->columns[c]);
    hotbed_status status = hotbed_staging_open(from->rows, stream, &s);
    for (uint64_t first = 0; first < from->rows && status == HOTBED_OK; first += s.capacity) {
        const uint64_t left = from->rows - first;
        status =
            copy_chunk(d, table, from, first, left < s.capacity ? left : s.capacity, &s, stream);
    }
    if (status != HOTBED_OK)
        status = hotbed_stream_settle(stream, status);
    hotbed_staging_destroy(&s);
    return status;
}

hotbed_status hotbed_state_dict_load(
    hotbed_state_dict *d, uint32_t n, const hotbed_state_source *sources, bool strict,
    hotbed_state_report *report, hotbed_stream *stream) {
    hotbed_state_report found = {.num_missing = 0};
    if (report != NULL)
        *report = found;
    if (d == NULL || stream == NULL || (n > 0 && sources == NULL))
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "state_dict_load: dict, sources or stream is NULL");
    HOTBED_TRY(call(d, HOTBED_STATE_BEFORE_LOAD, stream));
    HOTBED_TRY(check_sources(d, n, sources));
    compare_names(d, n, sources, &found);
    if (report != NULL)
        *report = found;
    if (strict && found.num_missing + found.num_unexpected > 0)
        return hotbed_fail_parameter(
            HOTBED_ERR_STATE, found.num_missing == 0 ? found.unexpected[0] : found.missing[0],
            "state_dict_load: %" PRIu32 " names are missing ('%s'), %" PRIu32 " unexpected ('%s')",
            found.num_missing, found.num_missing == 0 ? "" : found.missing[0], found.num_unexpected,
            found.num_unexpected == 0 ? "" : found.unexpected[0]);
    uint32_t tables = hotbed_storage_num_tables(d->storage);
    table_sources s;
    for (uint32_t t = 0; t < tables; t++) { /* check all of them before anything changes */
        HOTBED_TRY(find_sources(d, t, n, sources, &s));
        if (s.columns[HOTBED_COLUMN_SCORES] != NULL)
            HOTBED_TRY(check_scores(s.columns[HOTBED_COLUMN_SCORES]));
    }
    HOTBED_TRY(
        hotbed_stream_sync(stream)); /* a fault of earlier work must not end the load later */
    for (uint32_t t = 0; t < tables; t++) {
        HOTBED_TRY(find_sources(d, t, n, sources, &s));
        if (s.columns[HOTBED_COLUMN_KEYS] != NULL)
            HOTBED_TRY(check_keys(d, s.columns[HOTBED_COLUMN_KEYS]));
    }
    for (uint32_t t = 0; t < tables; t++) {
        HOTBED_TRY(find_sources(d, t, n, sources, &s));
        const hotbed_status status = hotbed_growth_reserve(d->storage, t, s.rows, stream);
        if (status != HOTBED_OK && status != HOTBED_ERR_STATE) /* STATE: it cannot grow further */
            return status;
    }
    for (uint32_t t = 0; t < tables; t++) {
        HOTBED_TRY(find_sources(d, t, n, sources, &s));
        if (s.rows > 0)
            HOTBED_TRY(copy_table(d, t, &s, stream));
    }
    return call(d, HOTBED_STATE_AFTER_LOAD, stream);
}
