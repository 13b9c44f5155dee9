/* checkpoint/tool.h - the parts of hotbed-ckpt. */
#ifndef HOTBED_CHECKPOINT_TOOL_H
#define HOTBED_CHECKPOINT_TOOL_H

#include "checkpoint/chain.h"
#include "checkpoint/rewrite.h"

enum {
    TOOL_SAME = 0,    /* all is well */
    TOOL_DIFFERS = 1, /* two differ, or one is damaged */
    TOOL_TROUBLE = 2, /* it could not be found out, or not be done */
    TOOL_PATHS = 66,
    TOOL_PATH_BYTES = 4096,
};

typedef struct tool_options {
    bool json, quick, dry_run, unfinished, ages;
    uint32_t ranks;        /* reshard; 0: not given */
    uint32_t route;        /* as hotbed_rewrite_options.route */
    uint64_t keep;         /* gc; 0: not given */
    const char *from, *to; /* convert */
    const char *optimizer; /* convert --from; NULL: by what is there */
    hotbed_key_type key_type;
    const char *paths[TOOL_PATHS];
    uint32_t num_paths;
    hotbed_progress progress;
} tool_options;

/* Print the last error, and return TOOL_DIFFERS for CORRUPT, else TOOL_TROUBLE. */
int tool_fail(hotbed_status status);
/* A usage error. */
int tool_usage(const char *text, const char *value);

/* Text in quotes for JSON. */
void tool_json_text(const char *text);

/* A directory's checkpoints. */
typedef struct tool_entry {
    char name[256];
    bool whole; /* has a MANIFEST that is right */
    bool unfinished;
    char error[256];
    hotbed_digest id, parent;
    bool increment, kept;
    uint64_t step, created_ns, rows, bytes;
    uint32_t world, tables;
} tool_entry;

/* All of a directory in order of step and time; free(*out).  False: an error was printed. */
bool tool_read_directory(const char *path, tool_entry **out, size_t *n);

/* Open `path`; of an increment the checkpoints that it follows are looked for beside it. */
hotbed_status tool_open_chain(const char *path, hotbed_chain *out);

int tool_list(const tool_options *options);
int tool_inspect(const tool_options *options);
int tool_verify(const tool_options *options);
int tool_diff(const tool_options *options);
int tool_reshard(const tool_options *options);
int tool_compact(const tool_options *options);
int tool_convert(const tool_options *options);
int tool_gc(const tool_options *options);

/* convert --from: checkpoint/tool_import.c */
int tool_import(const tool_options *options);

#endif
