/* checkpoint/shard_reader.c - the files of a checkpoint; each block is checked before it is
 * used. */
#include "checkpoint/shard_reader.h"

#include "base/error.h"
#include "base/stream.h"
#include "base/text.h"
#include "checkpoint/format/bucket_core.h"
#include "storage/index/index_layout_core.h"

#include <inttypes.h>
#include <string.h>

static hotbed_status read_text(hotbed_io_file *file, hotbed_manifest *out) {
    uint64_t bytes = 0;
    HOTBED_TRY(hotbed_io_size(file, &bytes));
    if (bytes > HOTBED_MANIFEST_BYTES_MAX)
        return hotbed_fail_path_value(
            HOTBED_ERR_CORRUPT, file->name, NULL, bytes,
            "%s has %" PRIu64 " bytes, more than is allowed", file->name, bytes);
    char *text = hotbed_new(bytes);
    HOTBED_TRY_MEMORY(text, "%" PRIu64 " bytes of a manifest", bytes);
    hotbed_status status = hotbed_io_read(file, text, bytes, 0);
    HOTBED_THEN(status, hotbed_manifest_parse(file->name, text, bytes, out));
    hotbed_delete(text);
    return status;
}

hotbed_status hotbed_manifest_read(const hotbed_io_file *directory, hotbed_manifest *out) {
    hotbed_io_file file = HOTBED_IO_CLOSED;
    *out = (hotbed_manifest){.world = 0};
    hotbed_status status = hotbed_io_open_member(directory, HOTBED_MANIFEST_NAME, &file);
    if (status == HOTBED_ERR_CORRUPT)
        return HOTBED_FAIL_AFTER(
            status, "%s: %s is damaged, or is not a checkpoint", hotbed_last_error(),
            directory->name);
    HOTBED_TRY(status);
    status = read_text(&file, out);
    hotbed_io_drop(&file);
    return status;
}

/* --- the shard ------------------------------------------------------------------------------------ */

hotbed_status hotbed_shard_reader_open(
    hotbed_shard_reader *r, const hotbed_io_file *directory, const hotbed_manifest *m,
    uint32_t number) {
    *r = (hotbed_shard_reader){.manifest = m, .number = number, .file = HOTBED_IO_CLOSED};
    const hotbed_manifest_shard *shard = &m->shards[number];
    uint64_t bytes = 0;
    HOTBED_TRY(
        hotbed_io_open_member(directory, hotbed_shard_name(number, m->world).text, &r->file));
    HOTBED_TRY(hotbed_io_size(&r->file, &bytes));
    if (bytes != shard->bytes)
        return hotbed_fail_path_limit(
            HOTBED_ERR_CORRUPT, r->file.name, NULL, bytes, shard->bytes,
            "%s has %" PRIu64 " bytes, expected %" PRIu64, r->file.name, bytes, shard->bytes);
    r->blocks = hotbed_new(shard->blocks.bytes);
    HOTBED_TRY_MEMORY(r->blocks, "%" PRIu64 " digests", shard->num_blocks);
    HOTBED_TRY(hotbed_io_read(&r->file, r->blocks, shard->blocks.bytes, shard->blocks.offset));
    hotbed_digest root = hotbed_digest_root(r->blocks, shard->blocks.bytes, m->block_bytes);
    if (!hotbed_digest_equal(root, shard->blocks.root))
        return hotbed_fail_path_value(
            HOTBED_ERR_CORRUPT, r->file.name, NULL, shard->blocks.offset,
            "%s: integrity/blocks is damaged at %" PRIu64, r->file.name, shard->blocks.offset);
    return HOTBED_OK;
}

hotbed_status hotbed_shard_reader_ahead(
    hotbed_shard_reader *r, const hotbed_io_file *directory, hotbed_io_workers *workers,
    bool alone) {
    r->workers = workers;
    return alone && workers != NULL
               ? hotbed_io_open_direct(
                     &r->file, directory, hotbed_shard_name(r->number, r->manifest->world).text,
                     HOTBED_IO_READ_DIRECT)
               : HOTBED_OK;
}

void hotbed_shard_reader_close(hotbed_shard_reader *r) {
    hotbed_io_drop(&r->file);
    hotbed_delete(r->blocks);
    for (uint32_t t = 0; r->kept != NULL && t < r->manifest->num_tables; t++)
        for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
            hotbed_delete(r->kept[t][i]);
    hotbed_delete(r->kept);
    *r = (hotbed_shard_reader){.file = HOTBED_IO_CLOSED};
}

static hotbed_extent_stream open_column(
    hotbed_shard_reader *r, const hotbed_manifest_table *table, uint32_t column,
    hotbed_extent extent, unsigned char *buffer) {
    return (hotbed_extent_stream){
        .file = &r->file,
        .table = table->name,
        .column =
            hotbed_manifest_column_name(hotbed_manifest_optimizer(r->manifest, table), column),
        .extent = extent,
        .blocks = r->blocks,
        .block_bytes = r->manifest->block_bytes,
        .buffer = buffer,
    };
}

hotbed_status hotbed_shard_reader_check(hotbed_shard_reader *r) {
    const hotbed_manifest *m = r->manifest;
    const hotbed_manifest_shard *shard = &m->shards[r->number];
    HOTBED_TRY(hotbed_extent_check_bytes(
        &r->file, "metadata", 0, shard->metadata_bytes, shard->metadata, m->block_bytes));
    for (uint32_t t = 0; t < m->num_tables; t++)
        for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
            if (!hotbed_manifest_has(m, &m->tables[t], i))
                continue;
            hotbed_extent_stream column = open_column(
                r, &m->tables[t], i, m->parts[(uint64_t)t * m->world + r->number].columns[i], NULL);
            HOTBED_TRY(hotbed_extent_check_root(&column));
        }
    return HOTBED_OK;
}

hotbed_status hotbed_shard_reader_blob(hotbed_shard_reader *r, uint32_t number, void *out) {
    const hotbed_manifest_blob *blob = &r->manifest->blobs[number];
    HOTBED_TRY(hotbed_io_read(&r->file, out, blob->extent.bytes, blob->extent.offset));
    hotbed_digest root = hotbed_digest_root(out, blob->extent.bytes, r->manifest->block_bytes);
    if (hotbed_digest_equal(root, blob->extent.root))
        return HOTBED_OK;
    return hotbed_fail_path_value(
        HOTBED_ERR_CORRUPT, r->file.name, NULL, blob->extent.offset,
        "%s: blob '%s' is damaged at %" PRIu64, r->file.name, blob->name, blob->extent.offset);
}

/* --- a part ------------------------------------------------------------------------------------------ */

static hotbed_status miscounted(const hotbed_part_reader *p) {
    return hotbed_error_path(
        hotbed_fail_table_value(
            HOTBED_ERR_CORRUPT, p->table->name, NULL, p->part->rows,
            "%s: %s: the bucket counts do not match the %" PRIu64 " rows of the part",
            p->shard->file.name, p->table->name, p->part->rows),
        p->shard->file.name);
}

/* Advance to bucket `bucket` of the part. The buckets before it must have no rows left. */
static hotbed_status count_to(hotbed_part_reader *p, uint64_t bucket) {
    while (p->buckets <= bucket) {
        if (p->count > 0)
            return miscounted(p);
        HOTBED_TRY(
            hotbed_extent_take(&p->columns[HOTBED_COLUMN_BUCKET], &p->count, sizeof p->count));
        p->buckets++;
    }
    return HOTBED_OK;
}

/* After the part's last row, check the remaining blocks of its columns, and that no bucket has rows
 * left. */
static hotbed_status end_rows(hotbed_part_reader *p) {
    if (p->row < p->part->rows)
        return HOTBED_OK;
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        if (i != HOTBED_COLUMN_BUCKET)
            HOTBED_TRY(hotbed_extent_finish(&p->columns[i]));
    if (!p->counts)
        return HOTBED_OK;
    uint64_t buckets = p->part->end - p->part->first;
    if (buckets > 0)
        HOTBED_TRY(count_to(p, buckets - 1));
    return p->count == 0 ? HOTBED_OK : miscounted(p);
}

/* Return the bytes of the buffer for a block of a column, rounded up to whole pages. */
static size_t buffer_bytes(const hotbed_part_reader *p, uint32_t column) {
    uint64_t bytes = p->part->columns[column].bytes, block = p->shard->manifest->block_bytes;
    if (p->shard->piece_bytes > 0 && p->shard->piece_bytes < block)
        block = p->shard->piece_bytes;
    uint64_t most = bytes < block ? bytes : block;
    return (size_t)((most + HOTBED_IO_PAGE - 1) / HOTBED_IO_PAGE * HOTBED_IO_PAGE);
}

/* Whether a column is read ahead: only columns with one entry per row are. */
static bool is_ahead(const hotbed_part_reader *p, uint32_t column) {
    return p->shard->workers != NULL && column < HOTBED_ROW_COLUMNS &&
           column != HOTBED_COLUMN_BUCKET && p->part->columns[column].bytes > 0;
}

/* Read a whole column and keep it in memory, if the limit allows it. */
static hotbed_status keep_column(hotbed_part_reader *p, uint32_t column, unsigned char **kept) {
    uint64_t bytes = p->part->columns[column].bytes, *left = p->shard->keep_bytes;
    if (bytes > *left)
        return HOTBED_OK;
    unsigned char *all = hotbed_new(bytes);
    HOTBED_TRY_MEMORY(all, "%" PRIu64 " bytes of a column", bytes);
    hotbed_status status = hotbed_extent_take(&p->columns[column], all, bytes);
    if (status != HOTBED_OK) {
        hotbed_delete(all);
        return status;
    }
    *kept = all;
    *left -= bytes;
    return HOTBED_OK;
}

/* Make columns that are kept, from now or from earlier, return their bytes from memory. */
static hotbed_status hold_columns(hotbed_part_reader *p) {
    hotbed_shard_reader *shard = p->shard;
    const hotbed_manifest *m = shard->manifest;
    if (shard->kept == NULL && shard->keep_columns != 0) {
        shard->kept = hotbed_new(m->num_tables * sizeof *shard->kept);
        HOTBED_TRY_MEMORY(shard->kept, "columns of %" PRIu32 " tables", m->num_tables);
    }
    for (uint32_t i = 0; i < HOTBED_COLUMNS && shard->kept != NULL; i++) {
        unsigned char **kept = &shard->kept[p->table - m->tables][i];
        if (*kept == NULL && (shard->keep_columns >> i & 1) != 0 && p->part->columns[i].bytes > 0)
            HOTBED_TRY(keep_column(p, i, kept));
        if (*kept != NULL)
            hotbed_extent_hold(&p->columns[i], *kept);
    }
    return HOTBED_OK;
}

static hotbed_status open_columns(hotbed_part_reader *p) {
    hotbed_shard_reader *shard = p->shard;
    const hotbed_manifest *m = shard->manifest;
    unsigned char *at = NULL;
    size_t bytes = 0;
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
        p->columns[i] = open_column(shard, p->table, i, p->part->columns[i], NULL);
        bytes += buffer_bytes(p, i) * (is_ahead(p, i) ? 1 + HOTBED_EXTENT_AHEAD : 1);
        if (hotbed_manifest_has(m, p->table, i))
            HOTBED_TRY(hotbed_extent_check_root(&p->columns[i]));
    }
    if (shard->workers != NULL)
        HOTBED_TRY(hotbed_io_memory(shard->workers, bytes, &p->memory, &at));
    else
        at = p->buffers = hotbed_new(bytes);
    HOTBED_TRY_MEMORY(at, "%zu bytes of blocks of a table", bytes);
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
        p->columns[i].buffer = at;
        at += buffer_bytes(p, i);
        if (shard->piece_bytes > 0 && shard->piece_bytes < m->block_bytes &&
            p->part->columns[i].bytes > shard->piece_bytes)
            p->columns[i].piece_bytes = shard->piece_bytes;
        if (!is_ahead(p, i))
            continue;
        p->columns[i].workers = shard->workers;
        for (uint32_t k = 0; k < HOTBED_EXTENT_AHEAD; k++, at += buffer_bytes(p, i)) {
            HOTBED_TRY(hotbed_io_job_create(shard->workers, &p->columns[i].ahead[k]));
            p->columns[i].ahead[k].buffer = at;
        }
    }
    return hold_columns(p);
}

hotbed_status hotbed_part_reader_open(
    hotbed_part_reader *p, hotbed_shard_reader *shard, uint32_t table, bool counts) {
    const hotbed_manifest *m = shard->manifest;
    *p = (hotbed_part_reader){
        .shard = shard,
        .table = &m->tables[table],
        .part = &m->parts[(uint64_t)table * m->world + shard->number],
    };
    HOTBED_TRY(open_columns(p));
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        p->row_bytes[i] = hotbed_manifest_row_bytes(m, p->table, i);
    p->numbers = hotbed_manifest_numbers(m, p->table, shard->number);
    p->end_row = p->part->rows;
    p->counts = counts && p->part->columns[HOTBED_COLUMN_BUCKET].bytes > 0;
    p->routed = p->table->kind == HOTBED_TABLE_HASH && p->table->route != 0 && m->world > 1;
    if (p->routed)
        HOTBED_TRY(hotbed_route_init(
            &p->route, (hotbed_route_kind)(p->table->route - 1), m->world, p->table->route_rows));
    return end_rows(p);
}

void hotbed_part_reader_close(hotbed_part_reader *p) {
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
        hotbed_extent_stop(&p->columns[i]);
    hotbed_delete(p->buffers);
    hotbed_memory_free(&p->memory);
    *p = (hotbed_part_reader){.shard = NULL};
}

static void seek_columns(hotbed_part_reader *p) {
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        if (i != HOTBED_COLUMN_BUCKET && p->part->columns[i].bytes > 0)
            hotbed_extent_seek(&p->columns[i], p->row * p->row_bytes[i]);
    p->skipped = false;
}

void hotbed_part_reader_range(hotbed_part_reader *p, uint64_t first, uint64_t end) {
    p->row = first;
    p->end_row = end;
    seek_columns(p);
}

static hotbed_key_type key_type_of(const hotbed_part_reader *p) {
    return hotbed_manifest_origin(p->shard->manifest, p->table)->key_type;
}

static hotbed_key_digits text_of(const hotbed_part_reader *p, uint64_t key) {
    return hotbed_key_text(key, key_type_of(p));
}

/* Check that a key is in the shard of the rank that the table's route assigns it to. A loading rank
 * looks for it only there. */
static hotbed_status check_owner(const hotbed_part_reader *p, const char *column, uint64_t key) {
    uint32_t owner = p->routed ? hotbed_route_rank(&p->route, key) : 0;
    if (!p->routed || owner == p->shard->number)
        return HOTBED_OK;
    return hotbed_error_path(
        hotbed_error_rank(
            hotbed_fail_table_key(
                HOTBED_ERR_CORRUPT, p->table->name, key, key_type_of(p),
                "%s: %s%s: key %s is in the wrong shard: the route %s gives it to rank "
                "%" PRIu32,
                p->shard->file.name, p->table->name, column, text_of(p, key).text,
                hotbed_route_name(p->route.kind), owner),
            owner),
        p->shard->file.name);
}

/* Check that the next key of a column is in canonical order and of the part. *bucket is its bucket, in the
 * part. */
static hotbed_status check_key(
    hotbed_part_reader *p, uint32_t column, uint64_t key, uint64_t *bucket) {
    const char *name = column == HOTBED_COLUMN_ERASED    ? "/erased"
                       : column == HOTBED_COLUMN_COUNTED ? "/admission/keys"
                                                         : "";
    const uint64_t at = hotbed_logical_bucket(key, p->table->bucket_bits);
    hotbed_last_key *last = &p->last[column];
    const bool ascends = !last->any || at > last->bucket || (at == last->bucket && key > last->key);
    if (!ascends || at < p->part->first || at >= p->part->end)
        return hotbed_error_path(
            hotbed_fail_table_key(
                HOTBED_ERR_CORRUPT, p->table->name, key, key_type_of(p),
                "%s: %s%s: key %s of bucket %" PRIu64 " is out of order or not of this part",
                p->shard->file.name, p->table->name, name, text_of(p, key).text, at),
            p->shard->file.name);
    *last = (hotbed_last_key){.any = true, .bucket = at, .key = key};
    *bucket = at - p->part->first;
    return check_owner(p, name, key);
}

/* Check that keys are in canonical order without duplicates, and that each bucket has as many as
 * the bucket column states. */
static hotbed_status check_keys(hotbed_part_reader *p, const uint64_t *keys, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t bucket = 0;
        HOTBED_TRY(check_key(p, HOTBED_COLUMN_KEYS, keys[i], &bucket));
        if (!p->counts)
            continue;
        HOTBED_TRY(count_to(p, bucket));
        if (p->count == 0)
            return miscounted(p);
        p->count--;
    }
    return HOTBED_OK;
}

/* Check that the numbers of changed rows ascend and are of the part. */
static hotbed_status check_rows(hotbed_part_reader *p, const uint64_t *keys, uint64_t n) {
    hotbed_last_key *last = &p->last[HOTBED_COLUMN_KEYS];
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t from = keys[i] - p->numbers.first; /* huge where the key is below */
        if ((last->any && keys[i] <= last->key) || keys[i] < p->numbers.first ||
            from % p->numbers.step != 0 || from / p->numbers.step >= p->part->end - p->part->first)
            return hotbed_error_path(
                hotbed_fail_table_key(
                    HOTBED_ERR_CORRUPT, p->table->name, keys[i], HOTBED_KEY_U64,
                    "%s: %s: row %" PRIu64 " is out of order or not of this shard",
                    p->shard->file.name, p->table->name, keys[i]),
                p->shard->file.name);
        *last = (hotbed_last_key){.any = true, .key = keys[i]};
    }
    return HOTBED_OK;
}

/* Check that scores, times or counts have 52 bits: a storage compares no more, so it would take any
 * larger one for the largest. [n] words, not aligned, because rows of other columns may precede
 * them. */
static hotbed_status check_words(
    const hotbed_part_reader *p, uint32_t column, const void *words, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t word;
        memcpy(&word, (const char *)words + i * sizeof word, sizeof word);
        if (word > HOTBED_SCORE_MOST)
            return hotbed_error_path(
                hotbed_fail_table_limit(
                    HOTBED_ERR_UNSUPPORTED, p->table->name, NULL, word, 0x1p52 - 1,
                    "%s: %s/%s: %" PRIu64 " is over 2^52 - 1", p->shard->file.name, p->table->name,
                    hotbed_manifest_column_name(
                        hotbed_manifest_optimizer(p->shard->manifest, p->table), column),
                    word),
                p->shard->file.name);
    }
    return HOTBED_OK;
}

static hotbed_status check(hotbed_part_reader *p, const uint64_t *keys, uint64_t n) {
    if (p->table->kind == HOTBED_TABLE_HASH)
        return check_keys(p, keys, n);
    return p->shard->manifest->increment ? check_rows(p, keys, n) : HOTBED_OK;
}

hotbed_status hotbed_part_reader_take(
    hotbed_part_reader *p, uint64_t n, void *const columns[HOTBED_ROW_COLUMNS]) {
    uint64_t *keys = columns[HOTBED_COLUMN_KEYS];
    if (p->skipped)
        seek_columns(p);
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        if (is_ahead(p, i))
            HOTBED_TRY(hotbed_extent_ahead(&p->columns[i], p->end_row * p->row_bytes[i]));
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        if (p->part->columns[i].bytes > 0 && i != HOTBED_COLUMN_BUCKET)
            HOTBED_TRY(hotbed_extent_take(&p->columns[i], columns[i], n * p->row_bytes[i]));
    if (p->part->columns[HOTBED_COLUMN_KEYS].bytes == 0)
        for (uint64_t i = 0; i < n; i++)
            keys[i] = hotbed_numbers_at(p->numbers, p->row + i);
    HOTBED_TRY(check(p, keys, n));
    static const uint32_t bounded[] = {HOTBED_COLUMN_SCORES, HOTBED_COLUMN_TIMES};
    for (int i = 0; i < 2; i++)
        if (p->row_bytes[bounded[i]] > 0)
            HOTBED_TRY(check_words(p, bounded[i], columns[bounded[i]], n));
    p->row += n;
    return end_rows(p);
}

hotbed_status hotbed_part_reader_key(hotbed_part_reader *p, uint64_t *key) {
    if (p->part->columns[HOTBED_COLUMN_KEYS].bytes == 0) {
        *key = hotbed_numbers_at(p->numbers, p->row);
        return HOTBED_OK;
    }
    hotbed_extent_seek(&p->columns[HOTBED_COLUMN_KEYS], p->row * sizeof *key);
    return hotbed_extent_peek(&p->columns[HOTBED_COLUMN_KEYS], key);
}

hotbed_status hotbed_part_reader_skip(hotbed_part_reader *p) {
    uint64_t key = 0;
    HOTBED_TRY(hotbed_part_reader_key(p, &key));
    HOTBED_TRY(check(p, &key, 1));
    p->row++;
    p->skipped = true;
    return end_rows(p);
}

hotbed_status hotbed_part_reader_keys(
    hotbed_part_reader *p, uint32_t column, uint64_t n, uint64_t *keys) {
    uint64_t bucket = 0;
    HOTBED_TRY(hotbed_extent_take(&p->columns[column], keys, n * sizeof *keys));
    for (uint64_t i = 0; i < n; i++)
        HOTBED_TRY(check_key(p, column, keys[i], &bucket));
    return HOTBED_OK;
}

hotbed_status hotbed_part_reader_counts(hotbed_part_reader *p, uint64_t n, uint64_t *counts) {
    HOTBED_TRY(hotbed_extent_take(&p->columns[HOTBED_COLUMN_COUNTS], counts, n * sizeof *counts));
    return check_words(p, HOTBED_COLUMN_COUNTS, counts, n);
}
