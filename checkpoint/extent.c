/* checkpoint/extent.c - read and write extents through a buffer of one block. */
#include "checkpoint/extent.h"

#include "base/error.h"
#include "base/stream.h"

#include <inttypes.h>
#include <string.h>

static hotbed_status flush(hotbed_extent_stream *s) {
    hotbed_digest *digest = &s->blocks[s->extent.first_block + s->done / s->block_bytes];
    uint64_t offset = s->extent.offset + s->done;
    if (s->behind != NULL) {
        HOTBED_TRY(hotbed_write_behind_put(s->behind, &s->buffer, s->filled, offset, digest));
    } else {
        *digest = hotbed_digest_of(s->buffer, s->filled);
        HOTBED_TRY(hotbed_io_write(s->file, s->buffer, s->filled, offset));
    }
    s->done += s->filled;
    s->filled = 0;
    if (s->done == s->extent.bytes)
        hotbed_extent_drop(s);
    return HOTBED_OK;
}

void hotbed_extent_drop(hotbed_extent_stream *s) {
    if (!s->owned)
        return;
    hotbed_delete(s->buffer);
    s->buffer = NULL;
    s->owned = false;
}

static hotbed_status own_buffer(hotbed_extent_stream *s) {
    size_t bytes = s->extent.bytes < s->block_bytes ? (size_t)s->extent.bytes : s->block_bytes;
    s->buffer = hotbed_new(bytes);
    s->owned = true;
    return HOTBED_CHECK_MEMORY(s->buffer, "%zu bytes of a block", bytes);
}

hotbed_status hotbed_extent_put(hotbed_extent_stream *s, const void *data, size_t bytes) {
    const unsigned char *from = data;
    if (bytes > s->extent.bytes - s->done - s->filled)
        return hotbed_error_limit(
            hotbed_fail_table(
                HOTBED_ERR_STATE, s->table,
                "%s/%s: more than the %" PRIu64 " bytes that were planned", s->table, s->column,
                s->extent.bytes),
            (double)s->extent.bytes);
    while (bytes > 0) {
        if (s->buffer == NULL)
            HOTBED_TRY(own_buffer(s));
        size_t space = s->block_bytes - s->filled;
        size_t n = bytes < space ? bytes : space;
        memcpy(s->buffer + s->filled, from, n);
        s->filled += n;
        from += n;
        bytes -= n;
        if (s->filled == s->block_bytes || s->done + s->filled == s->extent.bytes)
            HOTBED_TRY(flush(s));
    }
    return HOTBED_OK;
}

hotbed_digest hotbed_extent_root(
    const hotbed_extent *extent, const hotbed_digest *blocks, size_t block_bytes) {
    uint64_t n = extent->bytes / block_bytes + (extent->bytes % block_bytes != 0);
    return hotbed_digest_of(blocks + extent->first_block, n * sizeof *blocks);
}

hotbed_status hotbed_extent_end(hotbed_extent_stream *s) {
    if (s->done != s->extent.bytes)
        return hotbed_fail_table_limit(
            HOTBED_ERR_STATE, s->table, NULL, s->done, s->extent.bytes,
            "%s/%s: %" PRIu64 " bytes of the %" PRIu64 " that were planned", s->table, s->column,
            s->done, s->extent.bytes);
    return HOTBED_OK;
}

hotbed_status hotbed_extent_write(hotbed_extent_stream *s, const void *data, hotbed_digest *root) {
    hotbed_status status = hotbed_extent_put(s, data, s->extent.bytes);
    hotbed_extent_drop(s);
    HOTBED_TRY(status);
    *root = hotbed_extent_root(&s->extent, s->blocks, s->block_bytes);
    return HOTBED_OK;
}

static hotbed_status damaged(
    const char *file, const char *table, const char *column, uint64_t block, hotbed_digest found,
    hotbed_digest right) {
    return hotbed_error_path(
        hotbed_fail_table_value(
            HOTBED_ERR_CORRUPT, table, NULL, block,
            "%s: %s/%s: block %" PRIu64 " is damaged: digest %s, expected %s", file, table, column,
            block, hotbed_digest_text(found).text, hotbed_digest_text(right).text),
        file);
}

/* Return the number of bytes to read at a time: a block, or a piece of a block. */
static size_t unit(const hotbed_extent_stream *s) {
    return s->piece_bytes == 0 ? s->block_bytes : s->piece_bytes;
}

static size_t unit_at(const hotbed_extent_stream *s, uint64_t at) {
    uint64_t left = s->extent.bytes - at;
    return left < unit(s) ? (size_t)left : unit(s);
}

/* Start to read blocks up to `limit`, as many as there are free jobs. */
static hotbed_status begin(hotbed_extent_stream *s, uint64_t limit) {
    if (s->num_ahead == 0)
        s->begun = s->done;
    for (; s->num_ahead < HOTBED_EXTENT_AHEAD && s->begun < limit; s->num_ahead++) {
        hotbed_io_job *job = &s->ahead[(s->first + s->num_ahead) % HOTBED_EXTENT_AHEAD];
        job->file = s->file;
        job->bytes = unit_at(s, s->begun);
        job->offset = s->extent.offset + s->begun;
        HOTBED_TRY(hotbed_io_workers_begin(s->workers, job));
        s->begun += job->bytes;
    }
    return HOTBED_OK;
}

/* Wait for the oldest block that is being read, and remove it from the queue. */
static hotbed_status next_ahead(hotbed_extent_stream *s, hotbed_io_job **out) {
    *out = &s->ahead[s->first];
    HOTBED_TRY(hotbed_io_workers_await(*out));
    s->first = (s->first + 1) % HOTBED_EXTENT_AHEAD;
    s->num_ahead--;
    return HOTBED_OK;
}

hotbed_status hotbed_extent_ahead(hotbed_extent_stream *s, uint64_t limit) {
    s->limit = limit;
    return s->workers == NULL ? HOTBED_OK : begin(s, limit);
}

void hotbed_extent_stop(hotbed_extent_stream *s) {
    for (uint32_t i = 0; i < HOTBED_EXTENT_AHEAD; i++)
        hotbed_io_job_destroy(&s->ahead[i]);
    hotbed_digest_pieces_destroy(s->pieces);
    s->pieces = NULL;
}

/* Read the block at s->done into the buffer. */
static hotbed_status read_block(hotbed_extent_stream *s, hotbed_digest *found) {
    uint64_t offset = s->extent.offset + s->done;
    hotbed_io_job *job;
    if (s->workers == NULL) {
        HOTBED_TRY(hotbed_io_read(s->file, s->buffer, unit_at(s, s->done), offset));
        *found = hotbed_digest_of(s->buffer, unit_at(s, s->done));
        return HOTBED_OK;
    }
    while (s->num_ahead > 0 && s->ahead[s->first].offset != offset) /* skipped by a seek */
        HOTBED_TRY(next_ahead(s, &job));
    HOTBED_TRY(begin(s, s->limit > s->done ? s->limit : s->done + 1));
    HOTBED_TRY(next_ahead(s, &job));
    unsigned char *used = s->buffer;
    s->buffer = job->buffer;
    job->buffer = used;
    *found = job->digest;
    return HOTBED_OK;
}

static hotbed_status compare(const hotbed_extent_stream *s, uint64_t number, hotbed_digest found) {
    hotbed_digest right = s->blocks[s->extent.first_block + number];
    return hotbed_digest_equal(found, right)
               ? HOTBED_OK
               : damaged(s->file->name, s->table, s->column, number, found, right);
}

/* Read the next piece into the buffer. */
static hotbed_status read_piece(hotbed_extent_stream *s) {
    size_t bytes = unit_at(s, s->digested);
    uint64_t number = s->digested / s->block_bytes;
    HOTBED_TRY(hotbed_io_read(s->file, s->buffer, bytes, s->extent.offset + s->digested));
    hotbed_digest_pieces_add(s->pieces, s->buffer, bytes);
    s->digested += bytes;
    if (s->digested % s->block_bytes != 0 && s->digested < s->extent.bytes)
        return HOTBED_OK;
    return compare(s, number, hotbed_digest_pieces_end(s->pieces));
}

/* Read the piece at s->done into the buffer, after the pieces before it in its block. */
static hotbed_status read_pieces(hotbed_extent_stream *s) {
    uint64_t start = s->done / s->block_bytes * s->block_bytes;
    if (s->pieces == NULL) {
        s->pieces = hotbed_digest_pieces_create();
        HOTBED_TRY_MEMORY(s->pieces, "a digest");
    }
    if (s->digested < start) { /* skip the blocks in between */
        HOTBED_TRY(hotbed_extent_finish(s));
        s->digested = start;
    }
    while (s->digested <= s->done)
        HOTBED_TRY(read_piece(s));
    return HOTBED_OK;
}

hotbed_status hotbed_extent_finish(hotbed_extent_stream *s) {
    while (s->digested % s->block_bytes != 0 && s->digested < s->extent.bytes)
        HOTBED_TRY(read_piece(s));
    return HOTBED_OK;
}

static hotbed_status fill(hotbed_extent_stream *s) {
    size_t bytes = unit_at(s, s->done);
    if (s->piece_bytes > 0) {
        HOTBED_TRY(read_pieces(s));
    } else {
        hotbed_digest found = {0};
        HOTBED_TRY(read_block(s, &found));
        HOTBED_TRY(compare(s, s->done / s->block_bytes, found));
    }
    s->done += bytes;
    s->filled = bytes;
    s->taken = s->skip;
    s->skip = 0;
    return s->workers == NULL ? HOTBED_OK : begin(s, s->limit);
}

void hotbed_extent_seek(hotbed_extent_stream *s, uint64_t at) {
    uint64_t start = at / unit(s) * unit(s);
    if (s->filled > 0 && s->done - s->filled == start) {
        s->taken = (size_t)(at - start);
        return;
    }
    s->done = start;
    s->skip = (size_t)(at - start);
    s->filled = 0;
    s->taken = 0;
}

void hotbed_extent_hold(hotbed_extent_stream *s, unsigned char *all) {
    s->buffer = all;
    s->piece_bytes = s->filled = s->extent.bytes;
    s->done = s->extent.bytes;
    s->taken = 0;
}

/* Make at least one byte available in the buffer. `bytes` is what the caller wants, for the
 * message. */
static hotbed_status ready(hotbed_extent_stream *s, size_t bytes) {
    if (s->taken < s->filled)
        return HOTBED_OK;
    if (s->done == s->extent.bytes)
        return hotbed_error_path(
            hotbed_fail_table_value(
                HOTBED_ERR_CORRUPT, s->table, NULL, bytes, "%s: %s/%s ends %zu bytes early",
                s->file->name, s->table, s->column, bytes),
            s->file->name);
    return fill(s);
}

hotbed_status hotbed_extent_take(hotbed_extent_stream *s, void *data, size_t bytes) {
    unsigned char *to = data;
    while (bytes > 0) {
        HOTBED_TRY(ready(s, bytes));
        size_t n = s->filled - s->taken < bytes ? s->filled - s->taken : bytes;
        memcpy(to, s->buffer + s->taken, n);
        s->taken += n;
        to += n;
        bytes -= n;
    }
    return HOTBED_OK;
}

hotbed_status hotbed_extent_peek(hotbed_extent_stream *s, uint64_t *word) {
    HOTBED_TRY(ready(s, sizeof *word));
    memcpy(word, s->buffer + s->taken, sizeof *word);
    return HOTBED_OK;
}

hotbed_status hotbed_extent_check_root(const hotbed_extent_stream *s) {
    hotbed_digest found = hotbed_extent_root(&s->extent, s->blocks, s->block_bytes);
    if (hotbed_digest_equal(found, s->extent.root))
        return HOTBED_OK;
    return hotbed_fail_path_table(
        HOTBED_ERR_CORRUPT, s->file->name, s->table,
        "%s: %s/%s is damaged: its blocks' digests give root %s, expected %s", s->file->name,
        s->table, s->column, hotbed_digest_text(found).text,
        hotbed_digest_text(s->extent.root).text);
}

hotbed_status hotbed_extent_check_bytes(
    hotbed_io_file *file, const char *what, uint64_t offset, uint64_t bytes, hotbed_digest root,
    size_t block_bytes) {
    uint64_t n = bytes / block_bytes + (bytes % block_bytes != 0);
    size_t most = bytes < block_bytes ? (size_t)bytes : block_bytes;
    hotbed_digest *blocks = hotbed_new(n * sizeof *blocks);
    unsigned char *buffer = hotbed_new(most);
    hotbed_status status = HOTBED_CHECK_MEMORY(
        blocks != NULL && buffer != NULL, "%" PRIu64 " digests and %zu bytes", n, most);
    for (uint64_t i = 0; i < n && status == HOTBED_OK; i++) {
        uint64_t at = i * block_bytes;
        size_t part = bytes - at < block_bytes ? (size_t)(bytes - at) : block_bytes;
        status = hotbed_io_read(file, buffer, part, offset + at);
        blocks[i] = hotbed_digest_of(buffer, part);
    }
    hotbed_digest found = {0};
    if (status == HOTBED_OK)
        found = hotbed_digest_of(blocks, n * sizeof *blocks);
    hotbed_delete(buffer);
    hotbed_delete(blocks);
    if (status != HOTBED_OK || hotbed_digest_equal(found, root))
        return status;
    return hotbed_fail_path(
        HOTBED_ERR_CORRUPT, file->name, "%s: %s is damaged: digest %s, expected %s", file->name,
        what, hotbed_digest_text(found).text, hotbed_digest_text(root).text);
}
