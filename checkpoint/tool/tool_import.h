/* checkpoint/tool/tool_import.h - the directory that hotbed-ckpt convert --from reads. */
#pragma once

#include "checkpoint/import.h"
#include "checkpoint/tool/tool.h"

enum { TOOL_FILE_BYTES = 256 };

typedef struct tool_listed {
    char text[TOOL_FILE_BYTES];
    bool taken; /* by a table */
} tool_listed;

typedef struct tool_source {
    const tool_options *options;
    hotbed_io_file directory;
    hotbed_io_file *files; /* [num_names] */
    uint32_t num_files;
    tool_listed *names; /* of all files in the directory, sorted */
    uint64_t num_names, names_capacity;
    hotbed_import import;
} tool_source;

/* Return the file of this name; NULL: there is none. */
tool_listed *tool_find_name(const tool_source *s, const char *text);

/* Set `table` to `name` without `suffix`. Returns false if `name` does not end so, or has invalid characters. */
bool tool_strip(const char *name, const char *suffix, char table[64]);

/* Open a file of the directory, if it exists, and mark it as taken. It stays open to the end. *out is NULL if it does
 * not exist. Errors: CORRUPT (a table has it already), IO. */
hotbed_status tool_open_file(tool_source *s, const char *text, hotbed_io_file **out);

/* Return CORRUPT, with the file's name. */
hotbed_status tool_wrong(const hotbed_io_file *file, const char *what);

/* Add a table, and allocate its parts. Each table has a file of its own. Errors: UNSUPPORTED (too many), MEMORY. */
hotbed_status tool_add_table(
    tool_source *s, const char *name, uint32_t num_parts, hotbed_import_table **out);

/* Set the optimizer: the one that --optimizer names, or else `seen`, which the files imply. Errors: ARGUMENT
 * (an unknown name). */
hotbed_status tool_set_optimizer(tool_source *s, hotbed_optimizer_kind seen);

/* Add the tables of a dynamicemb dump: checkpoint/tool/tool_import_dump.c. */
hotbed_status tool_add_dump(tool_source *s);
