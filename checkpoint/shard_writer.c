/* checkpoint/shard_writer.c - one shard file, block by block. */
#include "checkpoint/shard_writer.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/format/bucket_core.h"

#include <inttypes.h>
#include <string.h>

static hotbed_extent_stream open_column(
    hotbed_shard_writer *w, const char *table, const char *column, hotbed_extent extent,
    unsigned char *buffer) {
    return (hotbed_extent_stream){
        .file = &w->file,
        .table = table,
        .column = column,
        .extent = extent,
        .blocks = w->blocks,
        .block_bytes = w->manifest->block_bytes,
        .buffer = buffer,
    };
}

static hotbed_status write_blobs(hotbed_shard_writer *w, const void *const *blobs) {
    for (uint32_t i = 0; w->number == 0 && i < w->manifest->num_blobs; i++) {
        hotbed_manifest_blob *blob = &w->manifest->blobs[i];
        hotbed_extent_stream column = open_column(w, "", blob->name, blob->extent, NULL);
        HOTBED_TRY(hotbed_extent_write(&column, blobs[i], &blob->extent.root));
    }
    return HOTBED_OK;
}

hotbed_status hotbed_shard_writer_open(
    hotbed_shard_writer *w, const hotbed_io_file *directory, hotbed_manifest *m, uint32_t number,
    const void *const *blobs) {
    *w = (hotbed_shard_writer){.manifest = m, .number = number, .file = HOTBED_IO_CLOSED};
    hotbed_manifest_shard *shard = &m->shards[number];
    for (uint32_t t = 0; t < m->num_tables; t++) {
        hotbed_manifest_part *part = &m->parts[(uint64_t)t * m->world + number];
        for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
            part->columns[i].bytes = hotbed_manifest_column_bytes(m, &m->tables[t], part, i);
    }
    hotbed_manifest_number_blocks(m);
    shard->blocks.bytes = shard->num_blocks * sizeof(hotbed_digest);
    HOTBED_TRY(hotbed_layout_shard(m, number, &w->metadata));
    w->blocks = hotbed_new(shard->blocks.bytes);
    HOTBED_TRY_MEMORY(w->blocks, "%" PRIu64 " digests", shard->num_blocks);
    HOTBED_TRY(hotbed_io_open(
        directory->calls, directory, hotbed_shard_name(number, m->world).text, HOTBED_IO_CREATE,
        &w->file));
    HOTBED_TRY(hotbed_io_allocate(&w->file, shard->bytes));
    HOTBED_TRY(hotbed_io_write(&w->file, w->metadata, shard->metadata_bytes, 0));
    return write_blobs(w, blobs);
}

hotbed_status hotbed_shard_writer_behind(hotbed_shard_writer *w, const hotbed_io_file *directory) {
    unsigned char *blocks = NULL;
    size_t block_bytes = w->manifest->block_bytes;
    uint32_t workers = hotbed_io_workers_for(w->manifest->shards[w->number].num_blocks);
    if (workers == 0)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_io_open_direct(
        &w->file, directory, hotbed_shard_name(w->number, w->manifest->world).text,
        HOTBED_IO_WRITE_DIRECT));
    HOTBED_TRY(hotbed_write_behind_open(
        &w->behind, &w->file, workers, block_bytes, HOTBED_COLUMNS, &blocks));
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
        w->columns[i].buffer = blocks + (size_t)i * block_bytes;
    return HOTBED_OK;
}

hotbed_status hotbed_shard_writer_begin(hotbed_shard_writer *w, uint32_t table) {
    hotbed_manifest *m = w->manifest;
    size_t row = 0;
    w->table = &m->tables[table];
    w->part = &m->parts[(uint64_t)table * m->world + w->number];
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
        /* Keep the buffer that the previous table was left with: hotbed_write_behind_put() replaces
         * buffers. */
        unsigned char *buffer = w->behind.file == NULL ? NULL : w->columns[i].buffer;
        w->columns[i] = open_column(
            w, w->table->name,
            hotbed_manifest_column_name(hotbed_manifest_optimizer(m, w->table), i),
            w->part->columns[i], buffer);
        w->columns[i].behind = w->behind.file == NULL ? NULL : &w->behind;
    }
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++) {
        w->row_bytes[i] = hotbed_manifest_row_bytes(m, w->table, i);
        row += w->row_bytes[i];
    }
    hotbed_delete(w->row);
    w->row = hotbed_new(row);
    return HOTBED_CHECK_MEMORY(w->row, "%zu bytes of a row", row);
}

void hotbed_digest_rows(
    uint64_t n, void *const columns[HOTBED_ROW_COLUMNS], const size_t row_bytes[HOTBED_ROW_COLUMNS],
    unsigned char *row, hotbed_digest *sum, hotbed_digest *digests) {
    for (uint64_t i = 0; i < n; i++) {
        size_t bytes = 0;
        for (uint32_t c = 0; c < HOTBED_ROW_COLUMNS; c++) {
            size_t width = row_bytes[c];
            if (width == 0)
                continue;
            memcpy(row + bytes, (const char *)columns[c] + i * width, width);
            bytes += width;
        }
        hotbed_digest digest = hotbed_digest_of(row, bytes);
        *sum = hotbed_digest_add(*sum, digest);
        if (digests != NULL)
            digests[i] = digest;
    }
}

hotbed_status hotbed_shard_writer_rows(
    hotbed_shard_writer *w, uint64_t n, void *const columns[HOTBED_ROW_COLUMNS],
    hotbed_digest *digests) {
    hotbed_digest_rows(n, columns, w->row_bytes, w->row, &w->table->content, digests);
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        if (w->part->columns[i].bytes > 0 && i != HOTBED_COLUMN_BUCKET)
            HOTBED_TRY(hotbed_extent_put(&w->columns[i], columns[i], n * w->row_bytes[i]));
    return HOTBED_OK;
}

hotbed_status hotbed_shard_writer_column(
    hotbed_shard_writer *w, uint32_t column, const void *data, uint64_t bytes) {
    return hotbed_extent_put(&w->columns[column], data, bytes);
}

hotbed_status hotbed_shard_writer_buckets(hotbed_shard_writer *w, const void *keys, size_t stride) {
    uint64_t key;
    uint64_t bytes = w->part->columns[HOTBED_COLUMN_BUCKET].bytes;
    if (bytes == 0)
        return HOTBED_OK;
    uint64_t *counts = hotbed_new(bytes);
    HOTBED_TRY_MEMORY(counts, "%" PRIu64 " bytes of bucket counts", bytes);
    for (uint64_t i = 0; i < w->part->rows; i++) {
        memcpy(&key, (const char *)keys + i * stride, sizeof key);
        counts[hotbed_logical_bucket(key, w->table->bucket_bits)]++;
    }
    hotbed_status status = hotbed_shard_writer_column(w, HOTBED_COLUMN_BUCKET, counts, bytes);
    hotbed_delete(counts);
    return status;
}

hotbed_status hotbed_shard_writer_alone(
    hotbed_shard_writer *w, const uint64_t *keys, const uint64_t *counted, const uint64_t *erased) {
    const hotbed_manifest_part *part = w->part;
    if (w->table->kind == HOTBED_TABLE_STATIC)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_shard_writer_buckets(w, keys, sizeof *keys));
    uint64_t bytes = part->counted * sizeof(uint64_t);
    if (part->counted > 0) {
        HOTBED_TRY(hotbed_shard_writer_column(w, HOTBED_COLUMN_COUNTED, counted, bytes));
        HOTBED_TRY(
            hotbed_shard_writer_column(w, HOTBED_COLUMN_COUNTS, counted + part->counted, bytes));
    }
    if (part->erased == 0)
        return HOTBED_OK;
    return hotbed_shard_writer_column(
        w, HOTBED_COLUMN_ERASED, erased, part->erased * sizeof(uint64_t));
}

hotbed_status hotbed_shard_writer_end(hotbed_shard_writer *w) {
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
        if (hotbed_manifest_has(w->manifest, w->table, i))
            HOTBED_TRY(hotbed_extent_end(&w->columns[i]));
    return HOTBED_OK;
}

/* Set the roots of all extents. The digests of all blocks must be known. */
static void set_roots(hotbed_shard_writer *w) {
    hotbed_manifest *m = w->manifest;
    for (uint32_t t = 0; t < m->num_tables; t++)
        for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
            hotbed_extent *extent = &m->parts[(uint64_t)t * m->world + w->number].columns[i];
            if (hotbed_manifest_has(m, &m->tables[t], i))
                extent->root = hotbed_extent_root(extent, w->blocks, m->block_bytes);
        }
}

hotbed_status hotbed_shard_writer_finish(hotbed_shard_writer *w) {
    hotbed_manifest_shard *shard = &w->manifest->shards[w->number];
    uint64_t bytes = 0;
    HOTBED_TRY(hotbed_write_behind_drain(&w->behind));
    set_roots(w);
    HOTBED_TRY(hotbed_io_write(&w->file, w->blocks, shard->blocks.bytes, shard->blocks.offset));
    shard->blocks.root =
        hotbed_digest_root(w->blocks, shard->blocks.bytes, w->manifest->block_bytes);
    /* If the file system could not reserve space, the file may lack its last gap. */
    HOTBED_TRY(hotbed_io_size(&w->file, &bytes));
    if (bytes < shard->bytes)
        HOTBED_TRY(hotbed_io_write(&w->file, "", 1, shard->bytes - 1));
    HOTBED_TRY(hotbed_io_sync(&w->file));
    return hotbed_io_close(&w->file);
}

void hotbed_shard_writer_close(hotbed_shard_writer *w) {
    hotbed_write_behind_close(&w->behind);
    hotbed_io_drop(&w->file);
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
        hotbed_extent_drop(&w->columns[i]);
    hotbed_delete(w->row);
    hotbed_delete(w->blocks);
    hotbed_delete(w->metadata);
    *w = (hotbed_shard_writer){.file = HOTBED_IO_CLOSED};
}
