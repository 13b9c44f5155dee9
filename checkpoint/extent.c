/* checkpoint/extent.c - extents through a buffer of one block. */
#include "checkpoint/extent.h"

#include "base/error.h"
#include "base/stream.h"

#include <inttypes.h>
#include <string.h>

static hotbed_status flush(hotbed_extent_stream *s) {
    uint64_t block = s->extent.first_block + s->done / HOTBED_BLOCK_BYTES;
    s->blocks[block] = hotbed_digest_of(s->buffer, s->filled);
    HOTBED_TRY(hotbed_io_write(s->file, s->buffer, s->filled, s->extent.offset + s->done));
    s->done += s->filled;
    s->filled = 0;
    return HOTBED_OK;
}

hotbed_status hotbed_extent_put(hotbed_extent_stream *s, const void *data, size_t bytes) {
    const unsigned char *from = data;
    if (bytes > s->extent.bytes - s->done - s->filled)
        return hotbed_fail(
            HOTBED_ERR_STATE, "%s/%s: more than the %" PRIu64 " bytes that were planned", s->table,
            s->column, s->extent.bytes);
    while (bytes > 0) {
        size_t room = HOTBED_BLOCK_BYTES - s->filled;
        size_t n = bytes < room ? bytes : room;
        memcpy(s->buffer + s->filled, from, n);
        s->filled += n;
        from += n;
        bytes -= n;
        if (s->filled == HOTBED_BLOCK_BYTES)
            HOTBED_TRY(flush(s));
    }
    return HOTBED_OK;
}

static uint64_t num_blocks(const hotbed_extent_stream *s) {
    return s->extent.bytes / HOTBED_BLOCK_BYTES + (s->extent.bytes % HOTBED_BLOCK_BYTES != 0);
}

static hotbed_digest root_of(const hotbed_extent_stream *s) {
    return hotbed_digest_of(s->blocks + s->extent.first_block, num_blocks(s) * sizeof *s->blocks);
}

hotbed_status hotbed_extent_end(hotbed_extent_stream *s, hotbed_digest *root) {
    if (s->filled > 0)
        HOTBED_TRY(flush(s));
    if (s->done != s->extent.bytes)
        return hotbed_fail(
            HOTBED_ERR_STATE, "%s/%s: %" PRIu64 " bytes of the %" PRIu64 " that were planned",
            s->table, s->column, s->done, s->extent.bytes);
    *root = root_of(s);
    return HOTBED_OK;
}

hotbed_status hotbed_extent_write(hotbed_extent_stream *s, const void *data, hotbed_digest *root) {
    HOTBED_TRY(hotbed_extent_put(s, data, s->extent.bytes));
    return hotbed_extent_end(s, root);
}

static hotbed_status damaged(
    const char *file, const char *table, const char *column, uint64_t block, hotbed_digest found,
    hotbed_digest right) {
    char a[HOTBED_DIGEST_DIGITS + 1], b[HOTBED_DIGEST_DIGITS + 1];
    hotbed_digest_text(found, a);
    hotbed_digest_text(right, b);
    return hotbed_fail(
        HOTBED_ERR_CORRUPT, "%s: %s/%s: block %" PRIu64 " is damaged: digest %s, expected %s", file,
        table, column, block, a, b);
}

static hotbed_status fill(hotbed_extent_stream *s) {
    uint64_t left = s->extent.bytes - s->done;
    size_t bytes = left < HOTBED_BLOCK_BYTES ? (size_t)left : HOTBED_BLOCK_BYTES;
    uint64_t number = s->done / HOTBED_BLOCK_BYTES;
    HOTBED_TRY(hotbed_io_read(s->file, s->buffer, bytes, s->extent.offset + s->done));
    hotbed_digest found = hotbed_digest_of(s->buffer, bytes);
    hotbed_digest right = s->blocks[s->extent.first_block + number];
    if (!hotbed_digest_equal(found, right))
        return damaged(s->file->name, s->table, s->column, number, found, right);
    s->done += bytes;
    s->filled = bytes;
    s->taken = 0;
    return HOTBED_OK;
}

hotbed_status hotbed_extent_take(hotbed_extent_stream *s, void *data, size_t bytes) {
    unsigned char *to = data;
    while (bytes > 0) {
        if (s->taken == s->filled) {
            if (s->done == s->extent.bytes)
                return hotbed_fail(
                    HOTBED_ERR_CORRUPT, "%s: %s/%s ends %zu bytes early", s->file->name, s->table,
                    s->column, bytes);
            HOTBED_TRY(fill(s));
        }
        size_t n = s->filled - s->taken < bytes ? s->filled - s->taken : bytes;
        memcpy(to, s->buffer + s->taken, n);
        s->taken += n;
        to += n;
        bytes -= n;
    }
    return HOTBED_OK;
}

hotbed_status hotbed_extent_check_root(const hotbed_extent_stream *s) {
    hotbed_digest found = root_of(s);
    char a[HOTBED_DIGEST_DIGITS + 1], b[HOTBED_DIGEST_DIGITS + 1];
    if (hotbed_digest_equal(found, s->extent.root))
        return HOTBED_OK;
    hotbed_digest_text(found, a);
    hotbed_digest_text(s->extent.root, b);
    return hotbed_fail(
        HOTBED_ERR_CORRUPT, "%s: %s/%s: its blocks' digests give root %s, expected %s",
        s->file->name, s->table, s->column, a, b);
}

hotbed_status hotbed_extent_check_bytes(
    hotbed_io_file *file, const char *what, uint64_t offset, uint64_t bytes, hotbed_digest root,
    unsigned char *buffer) {
    uint64_t n = bytes / HOTBED_BLOCK_BYTES + (bytes % HOTBED_BLOCK_BYTES != 0);
    hotbed_digest *blocks = hotbed_new(n * sizeof *blocks);
    if (blocks == NULL && n > 0)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu64 " digests", n);
    hotbed_status status = HOTBED_OK;
    for (uint64_t i = 0; i < n && status == HOTBED_OK; i++) {
        uint64_t at = i * HOTBED_BLOCK_BYTES;
        size_t part = bytes - at < HOTBED_BLOCK_BYTES ? (size_t)(bytes - at) : HOTBED_BLOCK_BYTES;
        status = hotbed_io_read(file, buffer, part, offset + at);
        blocks[i] = hotbed_digest_of(buffer, part);
    }
    hotbed_digest found = hotbed_digest_of(blocks, n * sizeof *blocks);
    hotbed_delete(blocks);
    if (status != HOTBED_OK || hotbed_digest_equal(found, root))
        return status;
    char a[HOTBED_DIGEST_DIGITS + 1], b[HOTBED_DIGEST_DIGITS + 1];
    hotbed_digest_text(found, a);
    hotbed_digest_text(root, b);
    return hotbed_fail(HOTBED_ERR_CORRUPT, "%s: %s: root %s, expected %s", file->name, what, a, b);
}
