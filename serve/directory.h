/* serve/directory.h - write the files of a cut, and remove old ones. */
#pragma once

#include "checkpoint/format/io.h"
#include "serve/format.h"
#include "serve/source.h"

enum {
    HOTBED_KEEP_BASES = 2
}; /* that stay in a directory, unless the caller says another number */

/* A directory that this process publishes to. */
typedef struct hotbed_directory {
    hotbed_io_file file;
    int lock;  /* below 0: this rank has none */
    bool made; /* this rank has created the directory */
} hotbed_directory;

/* Open the directory; rank 0 creates it, locks it and removes unfinished files. The caller must call
 * hotbed_directory_close(), even after an error. Errors: IO, STATE (another publisher has it), ARGUMENT (it is
 * a checkpoint, or in one, or contains one). */
hotbed_status hotbed_directory_open(
    const hotbed_io_calls *calls, const char *path, uint32_t rank, hotbed_directory *out);
void hotbed_directory_close(hotbed_directory *directory);

/* Before the close after an error: remove the lock of a directory without files, and the directory if it was created by
 * the open, with the same arguments. Keeps the error text. */
void hotbed_directory_discard(
    const hotbed_io_calls *calls, const char *path, hotbed_directory *directory);

/* What the names in the directory say. */
typedef struct hotbed_directory_list {
    uint64_t highest; /* number of a cut or rows file; 0: there is none */
    uint64_t num_bases;
    uint64_t *bases; /* [num_bases] numbers of bases that are whole cuts, rising; hotbed_delete() */
} hotbed_directory_list;

/* Read the names, the heads of the cuts, and the fronts of the rows files of bases. Errors: IO, MEMORY, STATE (a
 * cut has other tables than these, [n]: other names, dims or key types, or another order). */
hotbed_status hotbed_directory_read(
    hotbed_directory *directory, const hotbed_cut_table *tables, uint32_t n,
    hotbed_directory_list *out);

/* A rows file that is written. hotbed_rows_begin() is followed by hotbed_rows_drop(), or, if nothing fails:
 * for each table hotbed_rows_table_begin(), the rows in the order of their keys' hashes, and
 * hotbed_rows_table_end() with the keys to remove, in the same order; then hotbed_rows_end(), which gives the
 * file its name and frees the draft also after an error. Tables come in order. Host memory: 4 MiB. Errors:
 * IO, MEMORY, CORRUPT (another number of rows than was said). */
typedef struct hotbed_rows_draft hotbed_rows_draft;
hotbed_status hotbed_rows_begin(
    hotbed_directory *directory, const hotbed_cut_head *head, uint32_t rank,
    hotbed_rows_draft **out);
void hotbed_rows_table_begin(
    hotbed_rows_draft *f, uint32_t table, const hotbed_cut_table *cut, uint64_t rows,
    uint64_t erased);
hotbed_status hotbed_rows_add(hotbed_rows_draft *f, uint64_t key, const unsigned char *row);
hotbed_status hotbed_rows_table_end(hotbed_rows_draft *f, const uint64_t *erased);
hotbed_status hotbed_rows_end(hotbed_rows_draft *f, hotbed_cut_part *part);
void hotbed_rows_drop(hotbed_rows_draft *f, hotbed_status status);

/* Write the rows file of this rank, from the source's changes, under its name. Sets part and keys, which
 * has [head->tables] elements. After an error there is no file. Errors: IO, and the source's. */
hotbed_status hotbed_rows_write(
    hotbed_directory *directory, const hotbed_cut_head *head, const hotbed_cut_table *tables,
    uint32_t rank, hotbed_source *source, const hotbed_dtype *dtypes, hotbed_cut_part *part,
    uint64_t *keys, uint64_t *num_rows, uint64_t *num_erased);

/* Write the file of a cut, and give it its name: the cut exists. *named says whether the name may exist
 * after an error. Errors: IO, MEMORY. */
hotbed_status hotbed_cut_write(
    hotbed_directory *directory, const hotbed_cut_head *head, const hotbed_cut_table *tables,
    const hotbed_cut_part *parts, hotbed_digest *digest, bool *named);

/* Remove a rows file of a cut that has no name. Keeps the error text. */
void hotbed_rows_remove(hotbed_directory *directory, uint64_t number, uint32_t rank);

/* Remove all cuts before number `first`, and their rows files, oldest first. *failed is increased for
 * each file that stays. Errors: IO (the directory cannot be read), MEMORY. */
hotbed_status hotbed_directory_trim(hotbed_directory *directory, uint64_t first, uint64_t *failed);

/* Open a new file without a name, which ends when it is closed. Errors: IO. */
hotbed_status hotbed_directory_scratch(
    hotbed_directory *directory, const hotbed_cut_head *head, hotbed_io_file *out);

/* Call a caller's function with a file. Errors: IO, and the function's. */
hotbed_status hotbed_directory_show(
    hotbed_directory *directory, const char *name, hotbed_publish_file call, void *context);
