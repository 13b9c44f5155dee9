/* serve/directory.c - files get their names when they are complete and on disk; a cut's comes last. */
#define _GNU_SOURCE /* flock() */
#include "serve/directory.h"

#include "base/error.h"
#include "base/stream.h"
#include "serve/encode.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20 };

static const char unfinished[] = ".tmp-";

/* --- names ------------------------------------------------------------------------------------ */

/* The names of a directory that are files of cuts, in order. */
typedef struct names {
    uint64_t n, capacity;
    char (*names)[HOTBED_CUT_NAME_BYTES];
    bool memory; /* an allocation failed */
    bool drafts; /* collect the unfinished ones, not the others */
} names;

static void add_name(void *context, const char *name) {
    names *all = context;
    bool draft = strncmp(name, unfinished, sizeof unfinished - 1) == 0;
    const char *of = draft ? name + sizeof unfinished - 1 : name;
    if (draft != all->drafts || (hotbed_cut_number(of) == 0 && hotbed_rows_number(of) == 0))
        return;
    if (all->n == all->capacity) {
        uint64_t capacity = all->capacity == 0 ? 64 : 2 * all->capacity;
        void *more = hotbed_new(capacity * sizeof *all->names);
        if (more == NULL) {
            all->memory = true;
            return;
        }
        if (all->n > 0)
            memcpy(more, all->names, all->n * sizeof *all->names);
        hotbed_delete(all->names);
        all->names = more;
        all->capacity = capacity;
    }
    snprintf(all->names[all->n++], HOTBED_CUT_NAME_BYTES, "%s", name);
}

static int by_text(const void *a, const void *b) {
    return strcmp(a, b);
}

/* The caller frees out->names. Cuts come before rows files, lower numbers before higher ones. */
static hotbed_status list_names(hotbed_directory *d, bool drafts, names *out) {
    *out = (names){.drafts = drafts};
    int error = d->file.calls->list(d->file.calls->self, d->file.handle, add_name, out);
    if (error < 0)
        return hotbed_io_fail("cannot list", d->file.name, error);
    if (out->memory)
        return hotbed_fail_path(
            HOTBED_ERR_MEMORY, d->file.name, "no memory for the names in %s", d->file.name);
    if (out->n > 0)
        qsort(out->names, out->n, sizeof *out->names, by_text);
    return HOTBED_OK;
}

static bool remove_file(hotbed_directory *d, const char *name) {
    int error = d->file.calls->remove(d->file.calls->self, d->file.handle, name, false);
    return error == 0 || error == -ENOENT;
}

/* --- open and close --------------------------------------------------------------------------- */

static hotbed_status make_directory(const hotbed_io_calls *calls, const char *path) {
    int error = calls->make_directory(calls->self, HOTBED_IO_HERE, path);
    return error == 0 || error == -EEXIST
               ? HOTBED_OK
               : hotbed_io_fail("cannot create the directory", path, error);
}

/* Lock the directory. The system releases the lock when the process ends, however it ends. */
static hotbed_status lock(hotbed_directory *d) {
    d->lock = openat(
        d->file.handle, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
    if (d->lock < 0)
        return hotbed_fail_os(HOTBED_ERR_IO, errno, "cannot open %s/lock", d->file.name);
    if (flock(d->lock, LOCK_EX | LOCK_NB) == 0)
        return HOTBED_OK;
    int error = errno;
    close(d->lock);
    d->lock = -1;
    if (error == EWOULDBLOCK)
        return hotbed_fail_path(
            HOTBED_ERR_STATE, d->file.name,
            "another publisher writes to %s: it has locked the file 'lock'", d->file.name);
    return hotbed_fail_os(HOTBED_ERR_IO, error, "cannot lock %s/lock", d->file.name);
}

static hotbed_status remove_drafts(hotbed_directory *d) {
    names all;
    hotbed_status status = list_names(d, true, &all);
    for (uint64_t i = 0; i < all.n && status == HOTBED_OK; i++)
        if (!remove_file(d, all.names[i]))
            status = hotbed_fail_path(
                HOTBED_ERR_IO, d->file.name, "cannot remove %s/%s, which an earlier publisher left",
                d->file.name, all.names[i]);
    hotbed_delete(all.names);
    return status;
}

hotbed_status hotbed_directory_open(
    const hotbed_io_calls *calls, const char *path, uint32_t rank, hotbed_directory *out) {
    *out = (hotbed_directory){.file = HOTBED_IO_CLOSED, .lock = -1};
    if (rank == 0)
        HOTBED_TRY(make_directory(calls, path));
    HOTBED_TRY(hotbed_io_open(calls, NULL, path, HOTBED_IO_DIRECTORY, &out->file));
    if (rank != 0)
        return HOTBED_OK;
    HOTBED_TRY(lock(out));
    return remove_drafts(out);
}

void hotbed_directory_close(hotbed_directory *d) {
    hotbed_io_drop(&d->file);
    if (d->lock >= 0)
        close(d->lock);
    d->lock = -1;
}

/* --- what is there ---------------------------------------------------------------------------- */

/* Whether the file is a whole base. Every other file is no base: readers do not use it. */
static hotbed_status is_base(hotbed_directory *d, const char *name, uint64_t number, bool *base) {
    hotbed_io_file file = HOTBED_IO_CLOSED;
    uint64_t bytes = 0;
    hotbed_cut cut;
    *base = false;
    if (hotbed_io_open(d->file.calls, &d->file, name, HOTBED_IO_READ, &file) != HOTBED_OK)
        return HOTBED_OK;
    hotbed_status status = HOTBED_OK;
    if (hotbed_io_size(&file, &bytes) == HOTBED_OK &&
        bytes <= hotbed_cut_bytes(HOTBED_CUT_TABLES_MOST, HOTBED_CUT_RANKS_MOST)) {
        void *data = hotbed_new(bytes + 8);
        if (data == NULL)
            status = hotbed_fail(HOTBED_ERR_MEMORY, "no %" PRIu64 " bytes for %s", bytes, name);
        else if (hotbed_io_read(&file, data, bytes, 0) == HOTBED_OK)
            *base = hotbed_cut_parse(name, number, data, bytes, &cut) == HOTBED_OK &&
                    cut.head->parent == 0;
        hotbed_delete(data);
    }
    hotbed_io_drop(&file);
    return status;
}

hotbed_status hotbed_directory_read(hotbed_directory *d, hotbed_directory_list *out) {
    names all;
    *out = (hotbed_directory_list){.highest = 0};
    hotbed_status status = list_names(d, false, &all);
    out->bases = status != HOTBED_OK ? NULL : hotbed_new((all.n + 1) * sizeof *out->bases);
    if (status == HOTBED_OK && out->bases == NULL)
        status = hotbed_fail_path(
            HOTBED_ERR_MEMORY, d->file.name, "no memory for the names in %s", d->file.name);
    for (uint64_t i = 0; status == HOTBED_OK && i < all.n; i++) {
        uint64_t cut = hotbed_cut_number(all.names[i]);
        uint64_t number = cut > 0 ? cut : hotbed_rows_number(all.names[i]);
        bool base = false;
        if (cut > 0)
            status = is_base(d, all.names[i], cut, &base);
        if (base)
            out->bases[out->num_bases++] = cut;
        out->highest = number > out->highest ? number : out->highest;
    }
    hotbed_delete(all.names);
    if (status != HOTBED_OK) {
        hotbed_delete(out->bases);
        out->bases = NULL;
    }
    return status;
}

hotbed_status hotbed_directory_trim(hotbed_directory *d, uint64_t first, uint64_t *failed) {
    names all;
    hotbed_status status = list_names(d, false, &all);
    for (uint64_t i = 0; i < all.n && status == HOTBED_OK; i++) { /* cuts come first */
        uint64_t cut = hotbed_cut_number(all.names[i]);
        uint64_t number = cut > 0 ? cut : hotbed_rows_number(all.names[i]);
        if (number < first && !remove_file(d, all.names[i]))
            ++*failed;
    }
    hotbed_delete(all.names);
    return status;
}

/* --- a new file ------------------------------------------------------------------------------- */

/* A file that is written from front to back, except for its front. */
typedef struct draft {
    hotbed_directory *directory;
    hotbed_io_file file;
    char name[HOTBED_CUT_NAME_BYTES + sizeof unfinished];
    uint64_t written, held; /* bytes of the file on disk, and after them in the buffer */
    unsigned char *buffer;
    hotbed_digest_pieces *digest; /* of the column that is being written */
} draft;

static hotbed_status draft_open(draft *f, hotbed_directory *d, const char *name) {
    *f = (draft){.directory = d, .file = HOTBED_IO_CLOSED};
    snprintf(f->name, sizeof f->name, "%s%s", unfinished, name);
    f->buffer = hotbed_new(BUFFER_BYTES);
    f->digest = hotbed_digest_pieces_create();
    if (f->buffer == NULL || f->digest == NULL)
        return hotbed_fail_path(
            HOTBED_ERR_MEMORY, d->file.name, "no memory for %s/%s", d->file.name, name);
    return hotbed_io_open(d->file.calls, &d->file, f->name, HOTBED_IO_CREATE, &f->file);
}

static hotbed_status draft_flush(draft *f) {
    HOTBED_TRY(hotbed_io_write(&f->file, f->buffer, f->held, f->written));
    f->written += f->held;
    f->held = 0;
    return HOTBED_OK;
}

/* Append bytes; `data` NULL appends zeros, which are in no digest. */
static hotbed_status draft_add(draft *f, const void *data, size_t bytes) {
    if (data != NULL)
        hotbed_digest_pieces_add(f->digest, data, bytes);
    for (const char *from = data; bytes > 0;) {
        size_t n = BUFFER_BYTES - f->held < bytes ? BUFFER_BYTES - f->held : bytes;
        if (data == NULL)
            memset(f->buffer + f->held, 0, n);
        else
            memcpy(f->buffer + f->held, from, n);
        from = data == NULL ? NULL : from + n;
        f->held += n;
        bytes -= n;
        if (f->held == BUFFER_BYTES)
            HOTBED_TRY(draft_flush(f));
    }
    return HOTBED_OK;
}

static uint64_t draft_end(const draft *f) {
    return f->written + f->held;
}

/* Append zeros up to a multiple of the alignment. */
static hotbed_status draft_align(draft *f) {
    uint64_t over = draft_end(f) % HOTBED_CUT_ALIGN;
    return over == 0 ? HOTBED_OK : draft_add(f, NULL, HOTBED_CUT_ALIGN - over);
}

/* Put what is in the file on disk, and give it its name, which is not on disk yet. */
static hotbed_status draft_name(draft *f, const char *name) {
    const hotbed_io_calls *calls = f->directory->file.calls;
    HOTBED_TRY(hotbed_io_sync(&f->file));
    HOTBED_TRY(hotbed_io_close(&f->file));
    int error = calls->rename(calls->self, f->directory->file.handle, f->name, name);
    return error == 0 ? HOTBED_OK : hotbed_io_fail("cannot rename", f->name, error);
}

/* Free what the draft has, and remove its file if it was not renamed. Keeps the error text. */
static void draft_close(draft *f, hotbed_status status) {
    hotbed_io_drop(&f->file);
    if (status != HOTBED_OK)
        (void)remove_file(f->directory, f->name);
    hotbed_delete(f->buffer);
    hotbed_digest_pieces_destroy(f->digest);
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Begin a column, and end it. */
static hotbed_status begin(draft *f, hotbed_rows_table *table, hotbed_rows_column column) {
    if (hotbed_rows_column_bytes(table, column) == 0)
        return HOTBED_OK;
    HOTBED_TRY(draft_align(f));
    table->offsets[column] = draft_end(f);
    return HOTBED_OK;
}

static void end(draft *f, hotbed_rows_table *table, hotbed_rows_column column) {
    table->digests[column] = hotbed_digest_pieces_end(f->digest);
}

static hotbed_status write_starts(
    draft *f, const hotbed_rows_table *table, const hotbed_changes *changes) {
    uint32_t at = 0;
    for (uint64_t b = 0; table->rows > 0 && b <= (uint64_t)1 << table->bits; b++) {
        while (at < table->rows && hotbed_rows_bucket(changes->keys[at], table->bits) < b)
            at++;
        HOTBED_TRY(draft_add(f, &at, sizeof at));
    }
    return HOTBED_OK;
}

static hotbed_status write_values(
    draft *f, const hotbed_cut_table *cut, hotbed_dtype dtype, const hotbed_rows_table *table,
    const hotbed_changes *changes) {
    const size_t from = hotbed_dtype_row_bytes(dtype, cut->dim);
    unsigned char *row = hotbed_new(table->row_bytes);
    hotbed_status status =
        row != NULL
            ? HOTBED_OK
            : hotbed_fail(HOTBED_ERR_MEMORY, "no %" PRIu32 " bytes for a row", table->row_bytes);
    for (uint64_t i = 0; i < table->rows && status == HOTBED_OK; i++) {
        const uint32_t place = changes->places[i];
        const hotbed_row_states states = hotbed_changes_states(cut, changes->states, place);
        status = hotbed_cut_row_encode(
            cut, changes->keys[i], dtype, (const char *)changes->rows + place * from, states.of,
            row);
        if (status == HOTBED_OK)
            status = draft_add(f, row, table->row_bytes);
    }
    hotbed_delete(row);
    return status;
}

static hotbed_status write_table(
    draft *f, const hotbed_cut_table *cut, hotbed_dtype dtype, const hotbed_changes *changes,
    hotbed_rows_table *table) {
    table->rows = changes->num_rows;
    table->erased = changes->num_erased;
    table->bits = hotbed_rows_bits(table->rows);
    table->row_bytes = hotbed_cut_row_bytes(cut);
    HOTBED_TRY(begin(f, table, HOTBED_ROWS_KEYS));
    HOTBED_TRY(draft_add(f, changes->keys, 8 * table->rows));
    end(f, table, HOTBED_ROWS_KEYS);
    HOTBED_TRY(begin(f, table, HOTBED_ROWS_STARTS));
    HOTBED_TRY(write_starts(f, table, changes));
    end(f, table, HOTBED_ROWS_STARTS);
    HOTBED_TRY(begin(f, table, HOTBED_ROWS_VALUES));
    HOTBED_TRY(write_values(f, cut, dtype, table, changes));
    end(f, table, HOTBED_ROWS_VALUES);
    HOTBED_TRY(begin(f, table, HOTBED_ROWS_ERASED));
    HOTBED_TRY(draft_add(f, changes->erased, 8 * table->erased));
    end(f, table, HOTBED_ROWS_ERASED);
    return HOTBED_OK;
}

hotbed_status hotbed_rows_write(
    hotbed_directory *d, const hotbed_cut_head *head, const hotbed_cut_table *tables, uint32_t rank,
    hotbed_source *source, const hotbed_dtype *dtypes, hotbed_cut_part *part, uint64_t *keys,
    uint64_t *num_rows, uint64_t *num_erased) {
    draft f;
    char name[HOTBED_CUT_NAME_BYTES];
    uint64_t front_bytes = hotbed_rows_front_bytes(head->tables);
    hotbed_rows_name(name, head->number, rank);
    *num_rows = *num_erased = 0;
    hotbed_rows_head *front = hotbed_new(front_bytes);
    hotbed_status status = draft_open(&f, d, name);
    if (status == HOTBED_OK && front == NULL)
        status = hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %s", name);
    if (status == HOTBED_OK)
        status = draft_add(&f, NULL, front_bytes);
    hotbed_rows_table *out = front == NULL ? NULL : (void *)(front + 1);
    for (uint32_t t = 0; t < head->tables && status == HOTBED_OK; t++) {
        hotbed_changes changes;
        status = hotbed_source_changes(source, t, head->parent == 0, &changes);
        if (status != HOTBED_OK)
            break;
        keys[t] = changes.keys_after;
        *num_rows += changes.num_rows;
        *num_erased += changes.num_erased;
        status = write_table(&f, &tables[t], dtypes[t], &changes, &out[t]);
    }
    if (status == HOTBED_OK)
        status = draft_flush(&f);
    if (status == HOTBED_OK) {
        memcpy(front->magic, HOTBED_ROWS_MAGIC, sizeof front->magic);
        front->version = HOTBED_CUT_VERSION;
        front->tables = head->tables;
        front->rank = rank;
        front->run = head->run;
        front->number = head->number;
        front->parent = head->parent;
        *part = (hotbed_cut_part){.bytes = f.written};
        part->digest = hotbed_digest_of(front, front_bytes - sizeof part->digest);
        memcpy(
            (char *)front + front_bytes - sizeof part->digest, &part->digest, sizeof part->digest);
        status = hotbed_io_write(&f.file, front, front_bytes, 0);
    }
    if (status == HOTBED_OK)
        status = draft_name(&f, name);
    draft_close(&f, status);
    hotbed_delete(front);
    if (status == HOTBED_OK) {
        status = hotbed_io_sync(&d->file);
        if (status != HOTBED_OK)
            hotbed_rows_remove(d, head->number, rank);
    }
    return status;
}

void hotbed_rows_remove(hotbed_directory *d, uint64_t number, uint32_t rank) {
    char name[HOTBED_CUT_NAME_BYTES];
    hotbed_rows_name(name, number, rank);
    (void)remove_file(d, name);
}

/* --- the cut ---------------------------------------------------------------------------------- */

hotbed_status hotbed_cut_write(
    hotbed_directory *d, const hotbed_cut_head *head, const hotbed_cut_table *tables,
    const hotbed_cut_part *parts, hotbed_digest *digest, bool *named) {
    draft f;
    char name[HOTBED_CUT_NAME_BYTES];
    hotbed_cut_name(name, head->number);
    *named = false;
    hotbed_status status = draft_open(&f, d, name);
    if (status == HOTBED_OK)
        status = draft_add(&f, head, sizeof *head);
    if (status == HOTBED_OK)
        status = draft_add(&f, tables, head->tables * sizeof *tables);
    if (status == HOTBED_OK)
        status = draft_add(&f, parts, head->world * sizeof *parts);
    if (status == HOTBED_OK) {
        *digest = hotbed_digest_pieces_end(f.digest);
        status = draft_add(&f, digest, sizeof *digest);
    }
    if (status == HOTBED_OK)
        status = draft_flush(&f);
    if (status == HOTBED_OK) {
        *named = true;
        status = draft_name(&f, name);
    }
    draft_close(&f, status);
    HOTBED_TRY(status);
    return hotbed_io_sync(&d->file);
}

hotbed_status hotbed_directory_show(
    hotbed_directory *d, const char *name, hotbed_publish_file call, void *context) {
    hotbed_io_file file = HOTBED_IO_CLOSED;
    uint64_t bytes = 0;
    HOTBED_TRY(hotbed_io_open(d->file.calls, &d->file, name, HOTBED_IO_READ, &file));
    hotbed_status status = hotbed_io_size(&file, &bytes);
    void *data = MAP_FAILED;
    if (status == HOTBED_OK) {
        data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file.handle, 0);
        if (data == MAP_FAILED)
            status = hotbed_fail_os(HOTBED_ERR_IO, errno, "cannot map %s", file.name);
    }
    hotbed_io_drop(&file);
    if (data != MAP_FAILED) {
        const uint64_t before = hotbed_error_count();
        status = hotbed_callback_status(call(context, name, data, bytes), before, "publish file");
        munmap(data, bytes);
    }
    return status;
}
