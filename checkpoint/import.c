/* checkpoint/import.c - write rows of flat files as a checkpoint, in canonical order. */
#include "checkpoint/import.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/stream.h"
#include "base/text.h"
#include "checkpoint/format/bucket_core.h"
#include "checkpoint/shard_writer.h"
#include "storage/index/index_layout_core.h"
#include "storage/types.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The position of a key's row in the files. */
typedef struct place {
    uint64_t key;
    uint64_t row;    /* in its part */
    uint64_t number; /* counted over all parts */
    uint32_t part;
    uint32_t unused;
} place;

/* Scores and times of all rows of a table, with the values that the shards get. NULL: the table has
 * none. */
typedef struct score_columns {
    uint64_t *scores, *times; /* [rows], part after part */
} score_columns;

typedef struct importer {
    const hotbed_import *import;
    hotbed_manifest manifest;
    hotbed_shard_writer shard;
    uint64_t done, total;
} importer;

/* --- order ------------------------------------------------------------------------------------------------ */

/* Compare by (bucket, key). The bucket follows from the key, so qsort() needs nothing else. */
static int by_bucket_then_key(const void *a, const void *b) {
    uint64_t x = ((const place *)a)->key, y = ((const place *)b)->key;
    uint64_t p = hotbed_logical_bucket(x, HOTBED_BUCKET_BITS);
    uint64_t q = hotbed_logical_bucket(y, HOTBED_BUCKET_BITS);
    if (p != q)
        return p < q ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int by_key(const void *a, const void *b) {
    uint64_t x = ((const place *)a)->key, y = ((const place *)b)->key;
    return x < y ? -1 : x > y;
}

/* Read n words that are `stride` bytes apart. */
static hotbed_status read_words(const hotbed_import_column *column, uint64_t n, uint64_t *words) {
    if (column->file == NULL) {
        memset(words, 0, n * sizeof *words);
        return HOTBED_OK;
    }
    if (column->stride == sizeof *words)
        return hotbed_io_read(column->file, words, n * sizeof *words, column->offset);
    for (uint64_t i = 0; i < n; i++)
        HOTBED_TRY(hotbed_io_read(
            column->file, &words[i], sizeof *words, column->offset + i * column->stride));
    return HOTBED_OK;
}

/* Sort the positions of a table's rows (with `counted`: of its counted keys) into canonical
 * order. */
static hotbed_status find_places(
    const importer *w, const hotbed_import_table *t, bool counted, uint64_t *n, place **out) {
    *n = 0;
    for (uint32_t p = 0; p < t->num_parts; p++)
        *n += counted ? t->parts[p].counted : t->parts[p].rows;
    place *places = hotbed_new(*n * sizeof *places);
    uint64_t *keys = hotbed_new(*n * sizeof *keys);
    hotbed_status status = HOTBED_OK;
    if (places == NULL || keys == NULL)
        status = hotbed_fail_table(
            HOTBED_ERR_MEMORY, t->name, "no memory to sort %" PRIu64 " rows of table '%s'", *n,
            t->name);
    uint64_t at = 0;
    bool hash = t->kind == HOTBED_TABLE_HASH;
    for (uint32_t p = 0; p < t->num_parts && status == HOTBED_OK; p++) {
        const hotbed_import_part *part = &t->parts[p];
        uint64_t rows = counted ? part->counted : part->rows;
        if (hash)
            status = read_words(
                counted ? &part->counted_keys : &part->columns[HOTBED_COLUMN_KEYS], rows, keys);
        for (uint64_t i = 0; i < rows && status == HOTBED_OK; i++, at++)
            places[at] = (place){.key = hash ? keys[i] : at, .row = i, .number = at, .part = p};
    }
    hotbed_delete(keys);
    if (status == HOTBED_OK)
        qsort(places, *n, sizeof *places, hash ? by_bucket_then_key : by_key);
    for (uint64_t i = 1; i < *n && status == HOTBED_OK; i++)
        if (places[i].key == places[i - 1].key)
            status = hotbed_fail_table_key(
                HOTBED_ERR_STATE, t->name, places[i].key, w->import->key_type,
                "table '%s': key %s occurs twice", t->name,
                hotbed_key_text(places[i].key, w->import->key_type).text);
    if (status != HOTBED_OK) {
        hotbed_delete(places);
        return status;
    }
    *out = places;
    return HOTBED_OK;
}

/* --- scores and times ---------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Replace each of n words by its rank among the distinct words, 1 for the lowest. */
static hotbed_status rank_words(uint64_t n, uint64_t *words) {
    uint64_t *sorted = hotbed_new(n * sizeof *sorted), distinct = 0;
    HOTBED_TRY_MEMORY(sorted, "sorting %" PRIu64 " scores", n);
    memcpy(sorted, words, n * sizeof *words);
    qsort(sorted, n, sizeof *sorted, by_value);
    for (uint64_t i = 0; i < n; i++)
        if (distinct == 0 || sorted[distinct - 1] != sorted[i])
            sorted[distinct++] = sorted[i];
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t *found = bsearch(&words[i], sorted, distinct, sizeof *sorted, by_value);
        words[i] = (uint64_t)(found - sorted) + 1;
    }
    hotbed_delete(sorted);
    return HOTBED_OK;
}

static uint64_t largest(uint64_t n, const uint64_t *words) {
    uint64_t most = 0;
    for (uint64_t i = 0; i < n; i++)
        most = words[i] > most ? words[i] : most;
    return most;
}

/* Replace each age by the time that it counts from. A unit of time is `unit` units of age. */
static hotbed_status invert_ages(
    const hotbed_import_table *t, uint64_t n, uint64_t unit, uint64_t *words) {
    uint64_t most = largest(n, words);
    if (most > INT64_MAX)
        return hotbed_fail_table_value(
            HOTBED_ERR_CORRUPT, t->name, NULL, (double)(int64_t)most,
            "table '%s': age %" PRId64 " is negative", t->name, (int64_t)most);
    uint64_t now = t->now > most / unit ? t->now : most / unit + 1;
    for (uint64_t i = 0; i < n; i++)
        words[i] = now - words[i] / unit;
    return HOTBED_OK;
}

/* Check that no word of a signed column of a part is negative: scores, times or ages. */
static hotbed_status check_sign(
    const importer *w, const hotbed_import_table *t, const hotbed_import_part *part,
    const hotbed_import_column *column, const uint64_t *words) {
    const hotbed_import_column *keys = &part->columns[HOTBED_COLUMN_KEYS];
    const hotbed_key_type type = w->import->key_type;
    uint64_t i = 0, key = 0;
    while (i < part->rows && (!column->is_signed || words[i] <= INT64_MAX))
        i++;
    if (i == part->rows)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_io_read(keys->file, &key, sizeof key, keys->offset + i * keys->stride));
    return hotbed_error_key(
        hotbed_fail_table_value(
            HOTBED_ERR_CORRUPT, t->name, NULL, (double)(int64_t)words[i],
            "%s: row %" PRIu64 " of table '%s', key %s, has %" PRId64
            "; scores, times and ages are not negative",
            column->file->name, i, t->name, hotbed_key_text(key, type).text, (int64_t)words[i]),
        key, type);
}

/* Check that eviction can compare all words. */
static hotbed_status check_exact(const hotbed_import_table *t, uint64_t n, const uint64_t *words) {
    for (uint64_t i = 0; i < n; i++)
        if (words[i] > HOTBED_SCORE_MOST)
            return hotbed_fail_table_limit(
                HOTBED_ERR_UNSUPPORTED, t->name, NULL, words[i], 0x1p52 - 1,
                "table '%s', row %" PRIu64 ": score or time %" PRIu64
                " is over 2^52 - 1: replace the column by smaller numbers of the same order",
                t->name, i, words[i]);
    return HOTBED_OK;
}

/* Read a column of words for all rows. Eviction compares 52 bits. If any word is larger, all words
 * are replaced by their ranks, which have the same order. */
static hotbed_status read_column(
    const importer *w, const hotbed_import_table *t, uint32_t column, bool ages, uint64_t **out) {
    uint64_t n = 0, at = 0;
    bool any = false;
    *out = NULL;
    for (uint32_t p = 0; p < t->num_parts; p++) {
        n += t->parts[p].rows;
        any = any || t->parts[p].columns[column].file != NULL;
    }
    if (!any)
        return HOTBED_OK;
    uint64_t *words = hotbed_new(n * sizeof *words);
    HOTBED_TRY(hotbed_error_table(
        HOTBED_CHECK_MEMORY(words, "%" PRIu64 " scores of table '%s'", n, t->name), t->name));
    hotbed_status status = HOTBED_OK;
    for (uint32_t p = 0; p < t->num_parts && status == HOTBED_OK; at += t->parts[p++].rows) {
        const hotbed_import_column *from = &t->parts[p].columns[column];
        status = read_words(from, t->parts[p].rows, words + at);
        HOTBED_THEN(status, check_sign(w, t, &t->parts[p], from, words + at));
    }
    uint64_t unit = t->nanoseconds ? 1000 : 1;
    for (uint64_t i = 0; i < n && column == HOTBED_COLUMN_TIMES; i++)
        words[i] /= unit;
    if (status == HOTBED_OK && ages)
        status = invert_ages(t, n, unit, words);
    if (status == HOTBED_OK && t->exact_scores)
        status = check_exact(t, n, words);
    if (status == HOTBED_OK && largest(n, words) > HOTBED_SCORE_MOST)
        status = rank_words(n, words);
    if (status == HOTBED_OK)
        *out = words;
    else
        hotbed_delete(words);
    return status;
}

static void free_scores(score_columns *m) {
    hotbed_delete(m->scores);
    hotbed_delete(m->times);
    *m = (score_columns){.scores = NULL};
}

static hotbed_status read_scores(
    const importer *w, const hotbed_import_table *t, score_columns *out) {
    *out = (score_columns){.scores = NULL};
    if (t->kind == HOTBED_TABLE_STATIC)
        return HOTBED_OK;
    hotbed_status status = read_column(w, t, HOTBED_COLUMN_SCORES, t->ages, &out->scores);
    HOTBED_THEN(status, read_column(w, t, HOTBED_COLUMN_TIMES, false, &out->times));
    if (status != HOTBED_OK)
        free_scores(out);
    return status;
}

/* --- writing ------------------------------------------------------------------------------------------------ */

/* Read n elements of a state as F32. */
static hotbed_status read_state(
    const hotbed_import_column *column, hotbed_dtype dtype, uint64_t row, size_t n, float *out) {
    float stored[HOTBED_DIM_MOST]; /* large enough for every type of an element */
    const uint64_t offset = column->offset + row * column->stride;
    HOTBED_TRY(
        hotbed_io_read(column->file, stored, hotbed_dtype_row_bytes(dtype, (uint32_t)n), offset));
    hotbed_weights_read(dtype, (uint32_t)n, stored, out);
    return HOTBED_OK;
}

static hotbed_status read_row(
    const hotbed_import_table *t, const place *at, const score_columns *words,
    const size_t row_bytes[HOTBED_ROW_COLUMNS], void *const columns[HOTBED_ROW_COLUMNS],
    uint64_t to) {
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        if (row_bytes[i] == 0)
            continue;
        const hotbed_import_column *column = &t->parts[at->part].columns[i];
        const uint64_t *made = i == HOTBED_COLUMN_SCORES  ? words->scores
                               : i == HOTBED_COLUMN_TIMES ? words->times
                                                          : NULL;
        char *row = (char *)columns[i] + to * row_bytes[i];
        if (i == HOTBED_COLUMN_KEYS)
            memcpy(row, &at->key, sizeof at->key);
        else if (made != NULL)
            memcpy(row, &made[at->number], sizeof *made);
        else if (column->file == NULL)
            memset(row, 0, row_bytes[i]);
        else if (i >= HOTBED_COLUMN_STATE && i <= HOTBED_COLUMN_STATE + 1)
            HOTBED_TRY(read_state(
                column, t->state_dtype, at->row, row_bytes[i] / sizeof(float), (float *)row));
        else
            HOTBED_TRY(hotbed_io_read(
                column->file, row, row_bytes[i], column->offset + at->row * column->stride));
    }
    return HOTBED_OK;
}

static hotbed_status write_rows(
    importer *w, const hotbed_import_table *t, const place *places, uint64_t n) {
    hotbed_chunk chunk;
    score_columns words;
    HOTBED_TRY(read_scores(w, t, &words));
    hotbed_status status = hotbed_chunk_create(w->shard.row_bytes, &chunk);
    if (status != HOTBED_OK) {
        free_scores(&words);
        return status;
    }
    for (uint64_t first = 0; first < n && status == HOTBED_OK; first += chunk.capacity) {
        uint64_t rows = n - first < chunk.capacity ? n - first : chunk.capacity;
        for (uint64_t i = 0; i < rows && status == HOTBED_OK; i++)
            status = read_row(t, &places[first + i], &words, w->shard.row_bytes, chunk.columns, i);
        HOTBED_THEN(status, hotbed_shard_writer_rows(&w->shard, rows, chunk.columns, NULL));
        w->done += rows;
        hotbed_progress_report(w->import->progress, w->done, w->total);
    }
    hotbed_chunk_destroy(&chunk);
    free_scores(&words);
    return status;
}

/* Check how often a key was counted. Counts are signed. */
static hotbed_status check_count(
    const importer *w, const hotbed_import_table *t, uint64_t key, uint64_t count) {
    const hotbed_key_type type = w->import->key_type;
    if (count > INT64_MAX)
        return hotbed_error_key(
            hotbed_fail_table_value(
                HOTBED_ERR_CORRUPT, t->name, NULL, (double)(int64_t)count,
                "table '%s': key %s is counted %" PRId64 " times; counts are not negative", t->name,
                hotbed_key_text(key, type).text, (int64_t)count),
            key, type);
    if (count > HOTBED_SCORE_MOST)
        return hotbed_error_key(
            hotbed_fail_table_limit(
                HOTBED_ERR_UNSUPPORTED, t->name, NULL, count, 0x1p52 - 1,
                "table '%s': key %s is counted %" PRIu64 " times, at most 2^52 - 1", t->name,
                hotbed_key_text(key, type).text, count),
            key, type);
    return HOTBED_OK;
}

static hotbed_status write_counted(importer *w, const hotbed_import_table *t) {
    uint64_t n = 0;
    place *places = NULL;
    HOTBED_TRY(find_places(w, t, true, &n, &places));
    hotbed_status status = HOTBED_OK;
    for (uint64_t i = 0; i < n && status == HOTBED_OK; i++) {
        const hotbed_import_column *counts = &t->parts[places[i].part].counts;
        uint64_t count = 0;
        status = hotbed_io_read(
            counts->file, &count, sizeof count, counts->offset + places[i].row * counts->stride);
        HOTBED_THEN(status, check_count(w, t, places[i].key, count));
        if (status == HOTBED_OK)
            status = hotbed_shard_writer_column(
                &w->shard, HOTBED_COLUMN_COUNTED, &places[i].key, sizeof places[i].key);
        if (status == HOTBED_OK)
            status =
                hotbed_shard_writer_column(&w->shard, HOTBED_COLUMN_COUNTS, &count, sizeof count);
    }
    hotbed_delete(places);
    return status;
}

static hotbed_status write_table(importer *w, uint32_t number) {
    const hotbed_import_table *t = &w->import->tables[number];
    place *places = NULL;
    uint64_t n = 0;
    HOTBED_TRY(hotbed_shard_writer_begin(&w->shard, number));
    HOTBED_TRY(find_places(w, t, false, &n, &places));
    hotbed_status status = write_rows(w, t, places, n);
    if (status == HOTBED_OK && t->kind == HOTBED_TABLE_HASH)
        status = hotbed_shard_writer_buckets(&w->shard, places, sizeof *places);
    hotbed_delete(places);
    if (status == HOTBED_OK && t->kind == HOTBED_TABLE_HASH)
        status = write_counted(w, t);
    HOTBED_TRY(status);
    return hotbed_shard_writer_end(&w->shard);
}

/* Set the clock to the highest score, so that keys which a STEP table sees next are evicted after
 * the imported keys, and the time to the time of the files. */
static hotbed_status plan_clock(importer *w) {
    for (uint32_t i = 0; i < w->import->num_tables; i++) {
        const hotbed_import_table *t = &w->import->tables[i];
        uint64_t most = 0;
        score_columns words;
        HOTBED_TRY(read_scores(w, t, &words));
        if (words.scores != NULL)
            most = largest(w->manifest.tables[i].rows, words.scores);
        free_scores(&words);
        hotbed_storage_state *state = &w->manifest.storages[0].state;
        if (most > state->clock)
            state->clock = most;
        if (t->now > state->time)
            state->time = t->now;
    }
    return HOTBED_OK;
}

/* Set Adam's step count and the powers that belong to it, multiplied step by step as an update
 * does. */
static void set_steps(hotbed_storage_state *state, const hotbed_optimizer *optimizer, uint64_t n) {
    state->optimizer_steps = n;
    state->beta1_power = 1;
    state->beta2_power = 1;
    for (uint64_t i = 0; i < n && (state->beta1_power > 0 || state->beta2_power > 0); i++) {
        state->beta1_power *= (double)optimizer->beta1;
        state->beta2_power *= (double)optimizer->beta2;
    }
}

static hotbed_status plan(importer *w, hotbed_checkpoint_id id) {
    const hotbed_import *from = w->import;
    hotbed_manifest *m = &w->manifest;
    m->id = (hotbed_digest){.low = id.low, .high = id.high};
    m->created_ns = hotbed_realtime_now();
    m->step = from->step;
    hotbed_layout_writer(m->writer);
    m->world = 1;
    m->block_bytes = HOTBED_BLOCK_BYTES;
    m->num_storages = 1;
    m->num_tables = from->num_tables;
    HOTBED_TRY(hotbed_manifest_reserve(m));
    m->storages[0] = (hotbed_manifest_storage){
        .name = "0",
        .key_type = from->key_type,
        .optimizer = from->optimizer,
        .state = {.learning_rate = from->optimizer.learning_rate},
    };
    set_steps(&m->storages[0].state, &from->optimizer, from->optimizer_steps);
    for (uint32_t i = 0; i < m->num_tables; i++) {
        hotbed_manifest_table *t = &m->tables[i];
        snprintf(t->name, sizeof t->name, "%s", from->tables[i].name);
        t->kind = from->tables[i].kind;
        t->dtype = from->tables[i].dtype;
        t->dim = from->tables[i].dim;
        t->bucket_bits = t->kind == HOTBED_TABLE_HASH ? HOTBED_BUCKET_BITS : 0;
        for (uint32_t p = 0; p < from->tables[i].num_parts; p++) {
            if (from->tables[i].parts[p].columns[HOTBED_COLUMN_TIMES].file != NULL)
                t->times = true;
            t->rows += from->tables[i].parts[p].rows;
            m->parts[i].counted += from->tables[i].parts[p].counted;
        }
        t->capacity = t->kind == HOTBED_TABLE_STATIC ? t->rows : 0;
        t->keys = t->kind == HOTBED_TABLE_HASH ? t->rows : 0;
        m->parts[i].rows = t->rows;
        m->parts[i].end = hotbed_manifest_range(t);
        w->total += t->rows;
    }
    return plan_clock(w);
}

static hotbed_status write_all(importer *w, hotbed_draft *draft, hotbed_checkpoint_id id) {
    HOTBED_TRY(plan(w, id));
    HOTBED_TRY(hotbed_draft_enter(draft));
    HOTBED_TRY(hotbed_shard_writer_open(&w->shard, &draft->directory, &w->manifest, 0, NULL));
    for (uint32_t i = 0; i < w->manifest.num_tables; i++)
        HOTBED_TRY(write_table(w, i));
    HOTBED_TRY(hotbed_shard_writer_finish(&w->shard));
    HOTBED_TRY(hotbed_draft_manifest(draft, &w->manifest));
    return hotbed_draft_commit(draft, &w->manifest);
}

hotbed_status hotbed_checkpoint_import(
    const hotbed_io_calls *calls, const char *path, const hotbed_import *import) {
    importer w = {.import = import, .shard = {.file = HOTBED_IO_CLOSED}};
    hotbed_checkpoint_id id;
    hotbed_draft draft;
    hotbed_status status = hotbed_draft_create(calls, path, &id, &draft);
    if (status == HOTBED_OK) {
        status = write_all(&w, &draft, id);
        if (status != HOTBED_OK)
            hotbed_draft_remove(&draft);
    }
    hotbed_shard_writer_close(&w.shard);
    hotbed_draft_close(&draft);
    hotbed_manifest_free(&w.manifest);
    return status;
}
