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
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20 };

static const char unfinished[] = ".tmp-";
static const char lock_name[] = "lock";

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
    if (hotbed_reserve(&all->names, all->n, 1, &all->capacity, sizeof *all->names))
        snprintf(all->names[all->n++], HOTBED_CUT_NAME_BYTES, "%s", name);
    else
        all->memory = true;
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

static hotbed_status make_directory(const hotbed_io_calls *calls, const char *path, bool *made) {
    int error = calls->make_directory(calls->self, HOTBED_IO_HERE, path);
    *made = error == 0;
    return error == 0 || error == -EEXIST
               ? HOTBED_OK
               : hotbed_io_fail("cannot create the directory", path, error);
}

static void unlock(hotbed_directory *d) {
    if (d->lock >= 0) { /* unlock it: a process that was forked meanwhile has it open, too */
        (void)flock(d->lock, LOCK_UN);
        close(d->lock);
    }
    d->lock = -1;
}

/* Whether the file that is locked has the lock's name: hotbed_directory_discard() of another publisher removes it. */
static bool has_lock(const hotbed_directory *d) {
    struct stat held, named;
    return fstat(d->lock, &held) == 0 &&
           fstatat(d->file.handle, lock_name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

/* Lock the directory. The system releases the lock when the process ends, however it ends. */
static hotbed_status lock(hotbed_directory *d) {
    int error = 0;
    do {
        unlock(d);
        d->lock = openat(
            d->file.handle, lock_name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
            0666);
        if (d->lock < 0)
            return hotbed_fail_path_os(
                HOTBED_ERR_IO, d->file.name, errno, "cannot open %s/lock", d->file.name);
        error = flock(d->lock, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    } while (error == 0 && !has_lock(d));
    if (error == 0)
        return HOTBED_OK;
    close(d->lock);
    d->lock = -1;
    if (error == EWOULDBLOCK)
        return hotbed_fail_path(
            HOTBED_ERR_STATE, d->file.name,
            "another publisher writes to %s: it has locked the file 'lock'", d->file.name);
    return hotbed_fail_path_os(
        HOTBED_ERR_IO, d->file.name, error, "cannot lock %s/lock", d->file.name);
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

/* Whether a directory, `name` in `d`, has the files of a checkpoint. */
static bool has_checkpoint(const hotbed_directory *d, const char *name) {
    static const char *const files[] = {"MANIFEST", "index.h5"}; /* docs/formats.md */
    const hotbed_io_calls *calls = d->file.calls;
    char path[320]; /* a name has at most 255 bytes */
    bool found = false;
    for (size_t i = 0; !found && i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", name, files[i]);
        found = calls->exists(calls->self, d->file.handle, path) == 0;
    }
    return found;
}

typedef struct search {
    const hotbed_directory *directory;
    char found[256]; /* the name of a checkpoint; empty: none was found */
} search;

static void find_checkpoint(void *context, const char *name) {
    search *s = context;
    if (s->found[0] == '\0' && has_checkpoint(s->directory, name))
        snprintf(s->found, sizeof s->found, "%s", name);
}

static hotbed_status not_for_cuts(const hotbed_directory *d, const char *why) {
    return hotbed_error_parameter(
        hotbed_fail_path(
            HOTBED_ERR_ARGUMENT, d->file.name,
            "cannot publish to %s, which %s: use a directory for cuts alone", d->file.name, why),
        "directory");
}

/* Cuts in a checkpoint, or beside checkpoints, would be removed with them. */
static hotbed_status check_place(const hotbed_directory *d) {
    search s = {.directory = d};
    char why[320];
    if (has_checkpoint(d, "."))
        return not_for_cuts(d, "is a checkpoint");
    if (has_checkpoint(d, ".."))
        return not_for_cuts(d, "is in a checkpoint");
    const int error = d->file.calls->list(d->file.calls->self, d->file.handle, find_checkpoint, &s);
    if (error < 0)
        return hotbed_io_fail("cannot list", d->file.name, error);
    snprintf(why, sizeof why, "contains checkpoints (%s)", s.found);
    return s.found[0] == '\0' ? HOTBED_OK : not_for_cuts(d, why);
}

hotbed_status hotbed_directory_open(
    const hotbed_io_calls *calls, const char *path, uint32_t rank, hotbed_directory *out) {
    *out = (hotbed_directory){.file = HOTBED_IO_CLOSED, .lock = -1};
    if (rank == 0)
        HOTBED_TRY(make_directory(calls, path, &out->made));
    HOTBED_TRY(hotbed_io_open(calls, NULL, path, HOTBED_IO_DIRECTORY, &out->file));
    if (rank != 0)
        return HOTBED_OK;
    HOTBED_TRY(check_place(out));
    HOTBED_TRY(lock(out));
    return remove_drafts(out);
}

static void see_other(void *context, const char *name) {
    bool *others = context;
    *others = *others || strcmp(name, lock_name) != 0;
}

void hotbed_directory_discard(const hotbed_io_calls *calls, const char *path, hotbed_directory *d) {
    bool others = false;
    if (d->lock >= 0) {
        if (calls->list(calls->self, d->file.handle, see_other, &others) < 0 || others)
            return;
        (void)calls->remove(calls->self, d->file.handle, lock_name, false);
    }
    if (d->made)
        (void)calls->remove(calls->self, HOTBED_IO_HERE, path, true);
}

void hotbed_directory_close(hotbed_directory *d) {
    hotbed_io_drop(&d->file);
    unlock(d);
}

/* --- what is there ---------------------------------------------------------------------------- */

/* Read the first bytes of a file, at most `most`, into memory for hotbed_delete(). *out is NULL if it cannot be
 * read; *bytes is the size of the file. Errors: MEMORY. */
static hotbed_status read_front(
    hotbed_directory *d, const char *name, uint64_t most, void **out, uint64_t *bytes) {
    hotbed_io_file file = HOTBED_IO_CLOSED;
    *out = NULL;
    if (hotbed_io_open(d->file.calls, &d->file, name, HOTBED_IO_READ, &file) != HOTBED_OK)
        return HOTBED_OK;
    hotbed_status status = HOTBED_OK;
    if (hotbed_io_size(&file, bytes) == HOTBED_OK) {
        const uint64_t n = *bytes < most ? *bytes : most;
        *out = hotbed_new(n + 8);
        if (*out == NULL)
            status = hotbed_fail(HOTBED_ERR_MEMORY, "no %" PRIu64 " bytes for %s", n, name);
        else if (hotbed_io_read(&file, *out, n, 0) != HOTBED_OK) {
            hotbed_delete(*out);
            *out = NULL;
        }
    }
    hotbed_io_drop(&file);
    return status;
}

/* Whether the rows files of a cut are there, with their sizes and fronts. */
static hotbed_status has_rows(hotbed_directory *d, const hotbed_cut *cut, bool *whole) {
    *whole = true;
    for (uint32_t r = 0; r < cut->head->world && *whole; r++) {
        const hotbed_cut_file name = hotbed_rows_name(cut->head->number, r);
        hotbed_rows_file rows;
        void *data = NULL;
        uint64_t bytes = 0;
        HOTBED_TRY(
            read_front(d, name.text, hotbed_rows_front_bytes(cut->head->tables), &data, &bytes));
        *whole =
            data != NULL && hotbed_rows_parse(name.text, cut, r, data, bytes, &rows) == HOTBED_OK;
        hotbed_delete(data);
    }
    return HOTBED_OK;
}

/* Check that a cut has these tables. Errors: STATE (it is of another model). */
static hotbed_status check_model(
    const hotbed_directory *d, const char *cut, const hotbed_cut_table *there, uint32_t num_there,
    const hotbed_cut_table *tables, uint32_t n) {
    static const char remedy[] =
        "publish another model to another directory, or remove the cut-* files of this one";
    const char *path = d->file.name;
    if (n != num_there)
        return hotbed_error_path(
            hotbed_fail_limit(
                HOTBED_ERR_STATE, "tables", n, num_there,
                "%" PRIu32 " tables, but %s of %s has %" PRIu32 ": %s", n, cut, path, num_there,
                remedy),
            path);
    for (uint32_t t = 0; t < n; t++) {
        const char *name = tables[t].name;
        if (strncmp(name, there[t].name, sizeof there->name) != 0)
            return hotbed_error_path(
                hotbed_fail_table(
                    HOTBED_ERR_STATE, name,
                    "table number %" PRIu32 " is '%s', but '%.64s' in %s of %s: %s", t, name,
                    there[t].name, cut, path, remedy),
                path);
        if (there[t].dim != tables[t].dim)
            return hotbed_error_path(
                hotbed_fail_table_limit(
                    HOTBED_ERR_STATE, name, "dim", tables[t].dim, there[t].dim,
                    "table '%s' has dim %" PRIu32 ", but %" PRIu32 " in %s of %s: %s", name,
                    tables[t].dim, there[t].dim, cut, path, remedy),
                path);
        if (there[t].key_type != tables[t].key_type)
            return hotbed_error_path(
                hotbed_fail_table(
                    HOTBED_ERR_STATE, name, "table '%s' has %s keys, but %s keys in %s of %s: %s",
                    name, tables[t].key_type == HOTBED_KEY_I64 ? "i64" : "u64",
                    there[t].key_type == HOTBED_KEY_I64 ? "i64" : "u64", cut, path, remedy),
                path);
    }
    return HOTBED_OK;
}

/* Look at the file of a cut. *base: it is a base, and whole. Damaged files are not cuts: readers do not use
 * them. */
static hotbed_status look_at(
    hotbed_directory *d, const char *name, uint64_t number, const hotbed_cut_table *tables,
    uint32_t n, bool *base) {
    void *data = NULL;
    uint64_t bytes = 0;
    hotbed_cut cut;
    *base = false;
    HOTBED_TRY(read_front(
        d, name, hotbed_cut_bytes(HOTBED_CUT_TABLES_MOST, HOTBED_CUT_RANKS_MOST), &data, &bytes));
    hotbed_status status = HOTBED_OK;
    if (data != NULL && bytes <= hotbed_cut_bytes(HOTBED_CUT_TABLES_MOST, HOTBED_CUT_RANKS_MOST) &&
        hotbed_cut_parse(name, number, data, bytes, &cut) == HOTBED_OK) {
        status = check_model(d, name, cut.tables, cut.head->tables, tables, n);
        if (status == HOTBED_OK && cut.head->parent == 0)
            status = has_rows(d, &cut, base);
    }
    hotbed_delete(data);
    return status;
}

hotbed_status hotbed_directory_read(
    hotbed_directory *d, const hotbed_cut_table *tables, uint32_t n, hotbed_directory_list *out) {
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
            status = look_at(d, all.names[i], cut, tables, n, &base);
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

/* Bytes that follow each other in a file, behind a buffer. */
typedef struct column {
    uint64_t at; /* where the buffer begins in the file */
    size_t held;
    unsigned char *buffer;
    hotbed_digest_pieces *digest; /* of what is in the file */
} column;

typedef struct draft {
    hotbed_directory *directory;
    hotbed_io_file file;
    char name[HOTBED_CUT_NAME_BYTES + sizeof unfinished];
} draft;

static hotbed_status draft_open(draft *f, hotbed_directory *d, const char *name) {
    *f = (draft){.directory = d, .file = HOTBED_IO_CLOSED};
    snprintf(f->name, sizeof f->name, "%s%s", unfinished, name);
    return hotbed_io_open(d->file.calls, &d->file, f->name, HOTBED_IO_CREATE, &f->file);
}

static hotbed_status column_open(column *c, const draft *f) {
    *c = (column){.buffer = hotbed_new(BUFFER_BYTES), .digest = hotbed_digest_pieces_create()};
    return hotbed_error_path(
        HOTBED_CHECK_MEMORY(
            c->buffer != NULL && c->digest != NULL, "%s/%s", f->directory->file.name, f->name),
        f->directory->file.name);
}

static void column_close(column *c) {
    hotbed_delete(c->buffer);
    hotbed_digest_pieces_destroy(c->digest);
}

static hotbed_status column_flush(column *c, draft *f) {
    if (c->held == 0)
        return HOTBED_OK;
    hotbed_digest_pieces_add(c->digest, c->buffer, c->held);
    HOTBED_TRY(hotbed_io_write(&f->file, c->buffer, c->held, c->at));
    c->at += c->held;
    c->held = 0;
    return HOTBED_OK;
}

static hotbed_status column_add(column *c, draft *f, const void *data, size_t bytes) {
    for (const char *from = data; bytes > 0;) {
        const size_t n = BUFFER_BYTES - c->held < bytes ? BUFFER_BYTES - c->held : bytes;
        memcpy(c->buffer + c->held, from, n);
        from += n;
        c->held += n;
        bytes -= n;
        if (c->held == BUFFER_BYTES)
            HOTBED_TRY(column_flush(c, f));
    }
    return HOTBED_OK;
}

/* Put what is in the file on disk, and give it its name, which is not on disk yet. */
static hotbed_status draft_name(draft *f, const char *name) {
    const hotbed_io_calls *calls = f->directory->file.calls;
    HOTBED_TRY(hotbed_io_sync(&f->file));
    HOTBED_TRY(hotbed_io_close(&f->file));
    int error = calls->rename(calls->self, f->directory->file.handle, f->name, name);
    return error == 0 ? HOTBED_OK : hotbed_io_fail("cannot rename", f->name, error);
}

/* Close the draft, and remove its file if it was not renamed. Keeps the error text. */
static void draft_close(draft *f, hotbed_status status) {
    hotbed_io_drop(&f->file);
    if (status != HOTBED_OK)
        (void)remove_file(f->directory, f->name);
}

/* --- rows ------------------------------------------------------------------------------------- */

struct hotbed_rows_draft {
    draft file;
    hotbed_cut_file name;
    uint32_t rank, tables;
    hotbed_rows_head *front; /* and the tables */
    const char *table;       /* name of the present table, */
    hotbed_rows_table *to;   /* the table */
    uint64_t added, bucket;  /* its rows, and the first bucket without a start, so far */
    uint64_t end;            /* of the columns that have a place */
    column columns[HOTBED_ROWS_COLUMNS]; /* of the present table */
};

static hotbed_status put(
    hotbed_rows_draft *f, hotbed_rows_column c, const void *data, size_t bytes) {
    return column_add(&f->columns[c], &f->file, data, bytes);
}

hotbed_status hotbed_rows_begin(
    hotbed_directory *d, const hotbed_cut_head *head, uint32_t rank, hotbed_rows_draft **out) {
    hotbed_rows_draft *f = hotbed_new(sizeof *f);
    *out = NULL;
    HOTBED_TRY(hotbed_error_path(
        HOTBED_CHECK_MEMORY(f, "the rows of a cut in %s", d->file.name), d->file.name));
    f->name = hotbed_rows_name(head->number, rank);
    f->rank = rank;
    f->tables = head->tables;
    f->end = hotbed_rows_front_bytes(head->tables);
    f->front = hotbed_new(f->end);
    hotbed_status status = draft_open(&f->file, d, f->name.text);
    HOTBED_THEN(status, HOTBED_CHECK_MEMORY(f->front, "%s", f->name.text));
    for (uint32_t c = 0; c < HOTBED_ROWS_COLUMNS && status == HOTBED_OK; c++)
        status = column_open(&f->columns[c], &f->file);
    if (status != HOTBED_OK) {
        hotbed_rows_drop(f, status);
        return status;
    }
    memcpy(f->front->magic, HOTBED_ROWS_MAGIC, sizeof f->front->magic);
    f->front->version = HOTBED_CUT_VERSION;
    f->front->tables = head->tables;
    f->front->rank = rank;
    f->front->run = head->run;
    f->front->number = head->number;
    f->front->parent = head->parent;
    *out = f;
    return HOTBED_OK;
}

void hotbed_rows_drop(hotbed_rows_draft *f, hotbed_status status) {
    draft_close(&f->file, status);
    for (uint32_t c = 0; c < HOTBED_ROWS_COLUMNS; c++)
        column_close(&f->columns[c]);
    hotbed_delete(f->front);
    hotbed_delete(f);
}

void hotbed_rows_table_begin(
    hotbed_rows_draft *f, uint32_t table, const hotbed_cut_table *cut, uint64_t rows,
    uint64_t erased) {
    f->table = cut->name;
    f->to = (hotbed_rows_table *)(void *)(f->front + 1) + table;
    f->to->rows = rows;
    f->to->erased = erased;
    f->to->bits = hotbed_rows_bits(rows);
    f->to->row_bytes = hotbed_cut_row_bytes(cut);
    f->added = f->bucket = 0;
    for (uint32_t c = 0; c < HOTBED_ROWS_COLUMNS; c++) {
        const uint64_t bytes = hotbed_rows_column_bytes(f->to, c);
        if (bytes == 0)
            continue;
        f->end = (f->end + HOTBED_CUT_ALIGN - 1) / HOTBED_CUT_ALIGN * HOTBED_CUT_ALIGN;
        f->to->offsets[c] = f->columns[c].at = f->end;
        f->end += bytes;
    }
}

/* Write the starts of buckets up to `bucket`: the number of the next row. */
static hotbed_status add_starts(hotbed_rows_draft *f, uint64_t bucket) {
    const uint32_t at = (uint32_t)f->added;
    for (; f->bucket <= bucket; f->bucket++)
        HOTBED_TRY(put(f, HOTBED_ROWS_STARTS, &at, sizeof at));
    return HOTBED_OK;
}

static hotbed_status fail_count(const hotbed_rows_draft *f, const char *more) {
    return hotbed_fail_table_limit(
        HOTBED_ERR_CORRUPT, f->table, "rows", f->added, f->to->rows,
        "table '%s' has %" PRIu64 "%s rows; the cut was to have %" PRIu64, f->table, f->added, more,
        f->to->rows);
}

hotbed_status hotbed_rows_add(hotbed_rows_draft *f, uint64_t key, const unsigned char *row) {
    if (f->added == f->to->rows)
        return fail_count(f, " or more");
    HOTBED_TRY(add_starts(f, hotbed_rows_bucket(key, f->to->bits)));
    HOTBED_TRY(put(f, HOTBED_ROWS_KEYS, &key, sizeof key));
    f->added++;
    return put(f, HOTBED_ROWS_VALUES, row, f->to->row_bytes);
}

hotbed_status hotbed_rows_table_end(hotbed_rows_draft *f, const uint64_t *erased) {
    if (f->added != f->to->rows)
        return fail_count(f, "");
    if (f->to->rows > 0)
        HOTBED_TRY(add_starts(f, (uint64_t)1 << f->to->bits));
    HOTBED_TRY(put(f, HOTBED_ROWS_ERASED, erased, 8 * f->to->erased));
    for (uint32_t c = 0; c < HOTBED_ROWS_COLUMNS; c++) {
        HOTBED_TRY(column_flush(&f->columns[c], &f->file));
        f->to->digests[c] = hotbed_digest_pieces_end(f->columns[c].digest);
    }
    return HOTBED_OK;
}

hotbed_status hotbed_rows_end(hotbed_rows_draft *f, hotbed_cut_part *part) {
    hotbed_directory *d = f->file.directory;
    const uint64_t front = hotbed_rows_front_bytes(f->tables), number = f->front->number;
    const uint32_t rank = f->rank;
    *part = (hotbed_cut_part){.bytes = f->end};
    part->digest = hotbed_digest_of(f->front, front - sizeof part->digest);
    memcpy((char *)f->front + front - sizeof part->digest, &part->digest, sizeof part->digest);
    hotbed_status status = hotbed_io_write(&f->file.file, f->front, front, 0);
    HOTBED_THEN(status, draft_name(&f->file, f->name.text));
    hotbed_rows_drop(f, status);
    if (status == HOTBED_OK) {
        status = hotbed_io_sync(&d->file);
        if (status != HOTBED_OK)
            hotbed_rows_remove(d, number, rank);
    }
    return status;
}

/* Write the changes of a table; `row` has space for an encoded row. */
static hotbed_status write_changes(
    hotbed_rows_draft *f, const hotbed_cut_table *cut, hotbed_dtype dtype,
    const hotbed_changes *changes, unsigned char *row) {
    const size_t from = hotbed_dtype_row_bytes(dtype, cut->dim);
    for (uint64_t i = 0; i < changes->num_rows; i++) {
        const uint32_t place = changes->places[i];
        const hotbed_row_states states = hotbed_changes_states(cut, changes, place);
        HOTBED_TRY(hotbed_cut_row_encode(
            cut, changes->keys[i], dtype, (const char *)changes->rows + place * from, &states,
            row));
        HOTBED_TRY(hotbed_rows_add(f, changes->keys[i], row));
    }
    return hotbed_rows_table_end(f, changes->erased);
}

static hotbed_status write_table(
    hotbed_rows_draft *f, uint32_t table, const hotbed_cut_table *cut, hotbed_dtype dtype,
    const hotbed_changes *changes) {
    hotbed_rows_table_begin(f, table, cut, changes->num_rows, changes->num_erased);
    unsigned char *row = hotbed_new(f->to->row_bytes);
    const hotbed_status status =
        row != NULL
            ? write_changes(f, cut, dtype, changes, row)
            : hotbed_fail(HOTBED_ERR_MEMORY, "no %" PRIu32 " bytes for a row", f->to->row_bytes);
    hotbed_delete(row);
    return status;
}

hotbed_status hotbed_rows_write(
    hotbed_directory *d, const hotbed_cut_head *head, const hotbed_cut_table *tables, uint32_t rank,
    hotbed_source *source, const hotbed_dtype *dtypes, hotbed_cut_part *part, uint64_t *keys,
    uint64_t *num_rows, uint64_t *num_erased) {
    hotbed_rows_draft *f = NULL;
    hotbed_status status = HOTBED_OK;
    *num_rows = *num_erased = 0;
    HOTBED_TRY(hotbed_rows_begin(d, head, rank, &f));
    for (uint32_t t = 0; t < head->tables && status == HOTBED_OK; t++) {
        hotbed_changes changes;
        status = hotbed_source_changes(source, t, head->parent == 0, &changes);
        if (status != HOTBED_OK)
            break;
        keys[t] = changes.keys_after;
        *num_rows += changes.num_rows;
        *num_erased += changes.num_erased;
        status = write_table(f, t, &tables[t], dtypes[t], &changes);
    }
    if (status == HOTBED_OK)
        return hotbed_rows_end(f, part);
    hotbed_rows_drop(f, status);
    return status;
}

void hotbed_rows_remove(hotbed_directory *d, uint64_t number, uint32_t rank) {
    (void)remove_file(d, hotbed_rows_name(number, rank).text);
}

/* --- the cut ---------------------------------------------------------------------------------- */

hotbed_status hotbed_cut_write(
    hotbed_directory *d, const hotbed_cut_head *head, const hotbed_cut_table *tables,
    const hotbed_cut_part *parts, hotbed_digest *digest, bool *named) {
    draft f;
    column c = {.at = 0};
    const hotbed_cut_file name = hotbed_cut_name(head->number);
    *named = false;
    hotbed_status status = draft_open(&f, d, name.text);
    HOTBED_THEN(status, column_open(&c, &f));
    HOTBED_THEN(status, column_add(&c, &f, head, sizeof *head));
    HOTBED_THEN(status, column_add(&c, &f, tables, head->tables * sizeof *tables));
    HOTBED_THEN(status, column_add(&c, &f, parts, head->world * sizeof *parts));
    HOTBED_THEN(status, column_flush(&c, &f));
    if (status == HOTBED_OK) {
        *digest = hotbed_digest_pieces_end(c.digest);
        status = column_add(&c, &f, digest, sizeof *digest);
    }
    HOTBED_THEN(status, column_flush(&c, &f));
    if (status == HOTBED_OK) {
        *named = true;
        status = draft_name(&f, name.text);
    }
    column_close(&c);
    draft_close(&f, status);
    HOTBED_TRY(status);
    return hotbed_io_sync(&d->file);
}

hotbed_status hotbed_directory_scratch(
    hotbed_directory *d, const hotbed_cut_head *head, hotbed_io_file *out) {
    draft f;
    HOTBED_TRY(draft_open(&f, d, hotbed_rows_name(head->number, head->world).text)); /* no rank's */
    (void)remove_file(d, f.name); /* if that fails, the next publisher removes it */
    *out = f.file;
    return HOTBED_OK;
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
            status =
                hotbed_fail_path_os(HOTBED_ERR_IO, file.name, errno, "cannot map %s", file.name);
    }
    hotbed_io_drop(&file);
    if (data != MAP_FAILED) {
        const uint64_t before = hotbed_error_count();
        status = hotbed_callback_status(call(context, name, data, bytes), before, "publish file");
        munmap(data, bytes);
    }
    return status;
}
