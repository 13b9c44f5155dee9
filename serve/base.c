/* serve/base.c - rows in the order of a checkpoint become a base, in bounded memory.
 *
 * A file of rows has them in the order of the hashes of their keys. A hash table comes by the top bits of these
 * hashes, so the rows of one value of the bits are a *group* that is sorted and written when it is complete. A table
 * of numbered rows comes in another order. It is first written to a scratch file that is divided by the top bits of
 * the hashes into parts of a few MiB; each part is a group then. */
#define _DEFAULT_SOURCE /* getentropy() */
#include "serve/base.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/hash_core.h"
#include "base/stream.h"
#include "serve/directory.h"
#include "serve/encode.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PART_BYTES = 16 << 20,
    PARTS_BITS_MOST = 12,
    BUFFERS_BYTES = 32 << 20, /* of all parts */
    BUFFER_BYTES_MOST = 1 << 16
};

typedef struct order {
    uint64_t hash;
    uint64_t place;
} order;

/* Rows that are sorted together: records of a key and an embedding as tables store it. */
typedef struct group {
    uint64_t n, capacity;
    unsigned char *records; /* [capacity, record_bytes] */
    order *order;           /* [capacity] */
    size_t record_bytes;
    unsigned char *row; /* one encoded row */
} group;

typedef struct base {
    const hotbed_base_table *from;
    hotbed_base_next next;
    void *context;
    hotbed_directory directory;
    hotbed_cut_head head;
    hotbed_cut_table *tables;
    hotbed_rows_draft *draft;
} base;

/* --- groups ----------------------------------------------------------------------------------- */

static void group_close(group *g) {
    hotbed_delete(g->records);
    hotbed_delete(g->order);
    hotbed_delete(g->row);
}

static hotbed_status group_open(
    const hotbed_base_table *from, const hotbed_cut_table *to, group *g) {
    *g = (group){.record_bytes = sizeof(uint64_t) + hotbed_dtype_row_bytes(from->dtype, from->dim)};
    g->row = hotbed_new(hotbed_cut_row_bytes(to));
    return g->row != NULL
               ? HOTBED_OK
               : hotbed_fail_table(
                     HOTBED_ERR_MEMORY, from->name, "table '%s': no memory for a row", from->name);
}

/* Get memory for n records; those that are there stay. */
static hotbed_status group_reserve(const hotbed_base_table *from, group *g, uint64_t n) {
    if (n <= g->capacity)
        return HOTBED_OK;
    const uint64_t capacity = n + n / 2 + 64;
    unsigned char *records = hotbed_new(capacity * g->record_bytes);
    order *items = hotbed_new(capacity * sizeof *items);
    if (records == NULL || items == NULL) {
        hotbed_delete(records);
        hotbed_delete(items);
        return hotbed_fail_table_value(
            HOTBED_ERR_MEMORY, from->name, NULL, capacity,
            "table '%s': no memory for %" PRIu64 " rows", from->name, capacity);
    }
    if (g->n > 0)
        memcpy(records, g->records, g->n * g->record_bytes);
    hotbed_delete(g->records);
    hotbed_delete(g->order);
    g->records = records;
    g->order = items;
    g->capacity = capacity;
    return HOTBED_OK;
}

static void put_record(unsigned char *to, uint64_t key, const void *row, size_t record_bytes) {
    memcpy(to, &key, sizeof key);
    memcpy(to + sizeof key, row, record_bytes - sizeof key);
}

static uint64_t key_of(const unsigned char *record) {
    uint64_t key;
    memcpy(&key, record, sizeof key);
    return key;
}

static int by_hash(const void *a, const void *b) {
    const order *x = a, *y = b;
    return x->hash < y->hash ? -1 : x->hash > y->hash;
}

/* Write the rows of a group, which is empty then. */
static hotbed_status group_write(base *b, uint32_t table, group *g) {
    for (uint64_t i = 0; i < g->n; i++) {
        const uint64_t key = key_of(g->records + i * g->record_bytes);
        g->order[i] = (order){.hash = hotbed_hash_u64(key), .place = i};
    }
    if (g->n > 1)
        qsort(g->order, g->n, sizeof *g->order, by_hash);
    for (uint64_t i = 0; i < g->n; i++) {
        const unsigned char *record = g->records + g->order[i].place * g->record_bytes;
        HOTBED_TRY(hotbed_cut_row_encode(
            &b->tables[table], key_of(record), b->from[table].dtype, record + sizeof(uint64_t),
            NULL, g->row));
        HOTBED_TRY(hotbed_rows_add(b->draft, key_of(record), g->row));
    }
    g->n = 0;
    return HOTBED_OK;
}

/* --- a hash table ----------------------------------------------------------------------------- */

static hotbed_status write_hash(base *b, uint32_t table, group *g) {
    const hotbed_base_table *from = &b->from[table];
    const size_t bytes = g->record_bytes - sizeof(uint64_t);
    uint64_t bucket = 0;
    for (;;) {
        uint64_t n = 0;
        const uint64_t *keys = NULL;
        const unsigned char *rows = NULL;
        const void *any = NULL;
        HOTBED_TRY(b->next(b->context, table, &n, &keys, &any));
        if (n == 0)
            return group_write(b, table, g);
        rows = any;
        for (uint64_t i = 0; i < n; i++) {
            const uint64_t next = hotbed_rows_bucket(keys[i], from->bits);
            if (next != bucket)
                HOTBED_TRY(group_write(b, table, g));
            bucket = next;
            HOTBED_TRY(group_reserve(from, g, g->n + 1));
            put_record(
                g->records + g->n++ * g->record_bytes, keys[i], rows + i * bytes, g->record_bytes);
        }
    }
}

/* --- a table of numbered rows ------------------------------------------------------------------- */

typedef struct part {
    uint64_t rows, first; /* first record of the scratch file */
    uint64_t written;     /* records in the file, */
    uint64_t held;        /* and in the buffer */
} part;

typedef struct scratch {
    hotbed_io_file file;
    uint32_t bits;
    part *parts; /* [2^bits] */
    unsigned char *buffers;
    uint64_t buffer_rows;
    size_t record_bytes;
} scratch;

/* Divide the rows into parts, whose sizes follow from the numbers of the rows. */
static hotbed_status divide(const hotbed_base_table *from, size_t record_bytes, scratch *s) {
    *s = (scratch){.file = HOTBED_IO_CLOSED, .record_bytes = record_bytes};
    while (s->bits < PARTS_BITS_MOST && from->rows * record_bytes >> s->bits > PART_BYTES)
        s->bits++;
    const uint64_t parts = (uint64_t)1 << s->bits;
    const uint64_t bytes =
        BUFFERS_BYTES / parts < BUFFER_BYTES_MOST ? BUFFERS_BYTES / parts : BUFFER_BYTES_MOST;
    s->buffer_rows = bytes / record_bytes + 1;
    s->parts = hotbed_new(parts * sizeof *s->parts);
    s->buffers = hotbed_new(parts * s->buffer_rows * record_bytes);
    if (s->parts == NULL || s->buffers == NULL)
        return hotbed_fail_table_value(
            HOTBED_ERR_MEMORY, from->name, NULL, parts,
            "table '%s': no memory to divide rows into %" PRIu64 " parts", from->name, parts);
    for (uint64_t r = 0; r < from->rows; r++)
        s->parts[hotbed_rows_bucket(r, s->bits)].rows++;
    for (uint64_t p = 1; p < parts; p++)
        s->parts[p].first = s->parts[p - 1].first + s->parts[p - 1].rows;
    return HOTBED_OK;
}

static void scratch_close(scratch *s) {
    hotbed_io_drop(&s->file);
    hotbed_delete(s->parts);
    hotbed_delete(s->buffers);
}

static hotbed_status flush_part(scratch *s, uint64_t number) {
    part *p = &s->parts[number];
    const unsigned char *from = s->buffers + number * s->buffer_rows * s->record_bytes;
    HOTBED_TRY(hotbed_io_write(
        &s->file, from, p->held * s->record_bytes, (p->first + p->written) * s->record_bytes));
    p->written += p->held;
    p->held = 0;
    return HOTBED_OK;
}

static hotbed_status scatter(base *b, uint32_t table, scratch *s) {
    const size_t bytes = s->record_bytes - sizeof(uint64_t);
    uint64_t row = 0;
    for (uint64_t n = 1; n > 0;) {
        const uint64_t *keys = NULL;
        const void *rows = NULL;
        HOTBED_TRY(b->next(b->context, table, &n, &keys, &rows));
        if (n > b->from[table].rows - row)
            return hotbed_fail_table_limit(
                HOTBED_ERR_CORRUPT, b->from[table].name, "rows", row + n,
                (double)b->from[table].rows,
                "table '%s' has %" PRIu64 " rows or more; the cut was to have %" PRIu64,
                b->from[table].name, row + n, b->from[table].rows);
        for (uint64_t i = 0; i < n; i++, row++) {
            const uint64_t number = hotbed_rows_bucket(row, s->bits);
            part *p = &s->parts[number];
            unsigned char *to = s->buffers + (number * s->buffer_rows + p->held) * s->record_bytes;
            put_record(to, row, (const unsigned char *)rows + i * bytes, s->record_bytes);
            if (++p->held == s->buffer_rows)
                HOTBED_TRY(flush_part(s, number));
        }
    }
    for (uint64_t p = 0; p < (uint64_t)1 << s->bits; p++)
        if (s->parts[p].held > 0)
            HOTBED_TRY(flush_part(s, p));
    return HOTBED_OK;
}

static hotbed_status gather(base *b, uint32_t table, scratch *s, group *g) {
    for (uint64_t p = 0; p < (uint64_t)1 << s->bits; p++) {
        const uint64_t n = s->parts[p].written;
        if (n == 0)
            continue;
        HOTBED_TRY(group_reserve(&b->from[table], g, n));
        HOTBED_TRY(hotbed_io_read(
            &s->file, g->records, n * s->record_bytes, s->parts[p].first * s->record_bytes));
        g->n = n;
        HOTBED_TRY(group_write(b, table, g));
    }
    return HOTBED_OK;
}

static hotbed_status write_numbered(base *b, uint32_t table, group *g) {
    scratch s;
    hotbed_status status = divide(&b->from[table], g->record_bytes, &s);
    HOTBED_THEN(status, hotbed_directory_scratch(&b->directory, &b->head, &s.file));
    HOTBED_THEN(status, scatter(b, table, &s));
    hotbed_delete(s.buffers);
    s.buffers = NULL;
    HOTBED_THEN(status, gather(b, table, &s, g));
    scratch_close(&s);
    return status;
}

/* --- the cut ---------------------------------------------------------------------------------- */

static hotbed_status describe(base *b, uint32_t n, hotbed_encoding encoding) {
    b->tables = hotbed_new(n * sizeof *b->tables);
    if (b->tables == NULL)
        return hotbed_fail_value(HOTBED_ERR_MEMORY, NULL, n, "no memory for %" PRIu32 " tables", n);
    for (uint32_t t = 0; t < n; t++) {
        const hotbed_base_table *from = &b->from[t];
        if (from->rows > UINT32_MAX - 1)
            return hotbed_fail_table_limit(
                HOTBED_ERR_UNSUPPORTED, from->name, "rows", from->rows, UINT32_MAX - 1,
                "table '%s' has %" PRIu64 " rows; a cut has at most %" PRIu32, from->name,
                from->rows, UINT32_MAX - 1);
        b->tables[t] = (hotbed_cut_table){
            .dim = from->dim,
            .encoding =
                encoding == HOTBED_ENCODING_TABLE ? hotbed_encoding_of(from->dtype) : encoding,
            .key_type = from->key_type,
            .route = HOTBED_CUT_NO_ROUTE,
            .keys = from->rows,
        };
        snprintf(b->tables[t].name, sizeof b->tables[t].name, "%s", from->name);
    }
    return HOTBED_OK;
}

static hotbed_status write_table(base *b, uint32_t table) {
    group g;
    const hotbed_base_table *from = &b->from[table];
    hotbed_rows_table_begin(b->draft, table, &b->tables[table], from->rows, 0);
    hotbed_status status = group_open(from, &b->tables[table], &g);
    HOTBED_THEN(status, from->hash ? write_hash(b, table, &g) : write_numbered(b, table, &g));
    group_close(&g);
    return status == HOTBED_OK ? hotbed_rows_table_end(b->draft, NULL) : status;
}

/* Write the cut, whose head has a number. */
static hotbed_status write_cut(base *b) {
    hotbed_cut_part written;
    hotbed_digest digest;
    bool named = false;
    HOTBED_TRY(hotbed_rows_begin(&b->directory, &b->head, 0, &b->draft));
    hotbed_status status = HOTBED_OK;
    for (uint32_t t = 0; t < b->head.tables && status == HOTBED_OK; t++)
        status = write_table(b, t);
    if (status != HOTBED_OK) {
        hotbed_rows_drop(b->draft, status);
        return status;
    }
    HOTBED_TRY(hotbed_rows_end(b->draft, &written));
    status = hotbed_cut_write(&b->directory, &b->head, b->tables, &written, &digest, &named);
    if (status != HOTBED_OK && !named)
        hotbed_rows_remove(&b->directory, b->head.number, 0);
    return status;
}

static hotbed_status write_base(base *b, const char *path, uint32_t n, hotbed_encoding encoding) {
    hotbed_directory_list list;
    uint64_t failed = 0; /* files that stay are harmless, and the next base removes them */
    HOTBED_TRY(describe(b, n, encoding));
    HOTBED_TRY(hotbed_directory_open(&hotbed_io_system, path, 0, &b->directory));
    HOTBED_TRY(hotbed_directory_read(&b->directory, b->tables, n, &list));
    memcpy(b->head.magic, HOTBED_CUT_MAGIC, sizeof b->head.magic);
    b->head.version = HOTBED_CUT_VERSION;
    b->head.tables = n;
    b->head.world = 1;
    b->head.number = b->head.base = list.highest + 1;
    b->head.created_ns = hotbed_realtime_now();
    hotbed_status status = list.highest >= HOTBED_CUT_NUMBER_MOST
                               ? hotbed_fail(HOTBED_ERR_STATE, "all numbers of cuts are used")
                           : getentropy(&b->head.run, sizeof b->head.run) == 0
                               ? write_cut(b)
                               : hotbed_fail_os(HOTBED_ERR_IO, errno, "no random numbers");
    if (status == HOTBED_OK && list.num_bases + 1 > HOTBED_KEEP_BASES)
        status = hotbed_directory_trim(
            &b->directory, list.bases[list.num_bases + 1 - HOTBED_KEEP_BASES], &failed);
    hotbed_delete(list.bases);
    return status;
}

hotbed_status hotbed_base_write(
    const char *directory, const hotbed_base_table *tables, uint32_t n, hotbed_encoding encoding,
    uint64_t step, hotbed_base_next next, void *context, uint64_t *number) {
    base b = {
        .from = tables,
        .next = next,
        .context = context,
        .directory = {.file = HOTBED_IO_CLOSED, .lock = -1},
        .head = {.step = step},
    };
    const hotbed_status status = write_base(&b, directory, n, encoding);
    if (status != HOTBED_OK)
        hotbed_directory_discard(&hotbed_io_system, directory, &b.directory);
    hotbed_directory_close(&b.directory);
    hotbed_delete(b.tables);
    *number = status == HOTBED_OK ? b.head.number : 0;
    return status;
}
