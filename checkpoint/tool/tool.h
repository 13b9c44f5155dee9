/* checkpoint/tool/tool.h - the parts of hotbed-ckpt. */
#pragma once

#include "base/error.h"
#include "checkpoint/chain.h"
#include "checkpoint/rewrite.h"
#include "hotbed/publish.h"

enum {
    TOOL_SAME = 0,         /* success; nothing differs or is damaged */
    TOOL_DIFFERS = 1,      /* the two differ, or something is damaged */
    TOOL_TROUBLE = 2,      /* the command failed */
    TOOL_NAME_BYTES = 320, /* of an entry */
    TOOL_FILES = 256,      /* the most files that tool_files() has open for reading */
};

typedef struct tool_options {
    bool json, quick, dry_run, unfinished, leave_damaged, ages, ignore_scores;
    bool bar;                 /* show the progress */
    uint32_t ranks;           /* reshard; 0: not given */
    uint32_t route;           /* as hotbed_rewrite_options.route */
    uint64_t keep;            /* gc; 0: all complete checkpoints */
    const char *from, *to;    /* convert */
    const char *optimizer;    /* convert --from; NULL: determined by the files */
    hotbed_key_type key_type; /* convert --from; 0: determined by the files */
    hotbed_dtype dtype;       /* convert; 0: determined by the files */
    hotbed_dtype state_dtype; /* convert; 0: as in the checkpoint */
    const char *scores;       /* convert --from dynamicemb; NULL: determined by the files */
    hotbed_encoding encoding; /* publish; 0: of each table's type */
    char **paths;             /* [num_paths] */
    uint32_t num_paths;
    hotbed_progress progress;
} tool_options;

/* Print the last error. Returns TOOL_DIFFERS for CORRUPT, otherwise TOOL_TROUBLE. */
int tool_fail(hotbed_status status);
/* Print a usage error, and return TOOL_TROUBLE. */
int tool_usage(const char *text, const char *value);

/* Print text as a JSON string. A byte that is not UTF-8 becomes the four characters \xNN. */
void tool_json_text(const char *text);

/* End a command that wrote paths[1], and return its exit status. With --json, print the path and what `format`
 * gives, further members that begin with a comma. */
HOTBED_PRINTF(3, 4)
int tool_wrote(const tool_options *options, hotbed_status status, const char *format, ...);

/* A name for a person to read: control characters, which a terminal would obey, are escaped. */
typedef struct tool_shown {
    char text[4 * 1024];
} tool_shown;
tool_shown tool_show(const char *name);

/* Return the system's calls, except that files for reading are closed and reopened as needed, so
 * that a command can read from any number of files. A file that was replaced meanwhile is an error,
 * ESTALE. For one thread only. Implemented in checkpoint/tool/tool_files.c. */
const hotbed_io_calls *tool_files(void);

/* --- a directory of checkpoints: checkpoint/tool/tool_directory.c -------------------------------------------- */

typedef enum tool_state {
    TOOL_WHOLE,      /* MANIFEST and all file sizes are right; for an increment, also its chain */
    TOOL_ORPHANED,   /* an increment with all its files, whose chain is damaged or missing */
    TOOL_DAMAGED,    /* a file is missing or has another size, or MANIFEST is wrong */
    TOOL_UNREADABLE, /* the system refuses to read it, or its format is newer */
    TOOL_UNFINISHED, /* .tmp-*: a save, export or removal that is running or was interrupted */
    TOOL_LINK,       /* a symbolic link */
    TOOL_OTHER,      /* a directory without files of a checkpoint */
} tool_state;

#define TOOL_NONE SIZE_MAX

typedef struct tool_entry {
    char name[TOOL_NAME_BYTES];
    tool_state state;
    char text[1024];        /* the error; for a link, its target path */
    uint64_t device, inode; /* of the directory or file; not set for links */
    bool file;              /* a plain file: an unfinished export */
    bool described; /* MANIFEST was read, and all fields below are set. Links: of the target */
    bool good;      /* its own files are right */
    bool increment;
    hotbed_digest id, digest, parent, parent_digest; /* digest: the last line of MANIFEST */
    uint64_t step, created_ns, rows, bytes;
    uint32_t world, tables;
    bool whole;    /* good, and so are all checkpoints that it follows */
    size_t before; /* the entry that an increment follows, or TOOL_NONE */
    size_t root;   /* the full checkpoint at the start of its chain, or TOOL_NONE */
    size_t depth;  /* number of checkpoints that it follows; 0 for the root */
    size_t target; /* of a link: the entry that it leads to or into, or TOOL_NONE */
    bool kept;     /* gc */
    size_t why;    /* gc: the entry that is the reason, or TOOL_NONE if it is among the newest */
} tool_entry;

/* Return the name of a state, as `list` prints it. */
const char *tool_state_name(tool_state state);

/* Whether an entry is, or may be, a checkpoint that cannot be used: DAMAGED, ORPHANED or
 * UNREADABLE. */
bool tool_is_broken(const tool_entry *entry);

/* Read all entries of a directory: first the checkpoints, in order of step, time and name, then
 * everything else, by name. Plain files are left out, except unfinished exports. A link is followed
 * only to find the checkpoint that it leads to. The caller frees *out with hotbed_delete().
 * Errors: IO, MEMORY. */
hotbed_status tool_read_directory(const char *path, tool_entry **out, size_t *n);

/* The same, and refuse a path that is itself a checkpoint. Errors: also ARGUMENT (it is one). */
hotbed_status tool_read_checkpoints(const char *path, tool_entry **out, size_t *n);

/* Whether a directory has cuts for readers (hotbed/publish.h), and is no checkpoint. */
bool tool_is_published(const char *path);

/* Say so if none of the entries is a checkpoint: `path` may be the wrong directory. */
void tool_note_empty(const char *path, const tool_entry *entries, size_t n);

/* Return "directory/name", or NULL if there is no memory. The caller frees it with free(). */
char *tool_join(const char *directory, const char *name);

/* Whether a name is ".tmp-<id>", which unfinished saves and exports have. */
bool tool_is_draft_name(const char *name);

/* Return `status`, of a call that could not open `path`. If it is CORRUPT and `path` contains
 * checkpoints or is a published directory, add that to the error's text. */
hotbed_status tool_explain(const char *path, hotbed_status status);

/* Open `path` and, if it is an increment, its parents. Parents are looked up in the directory of
 * `path`, and then, if `path` leads through links, in the directory of its target. The caller must
 * call hotbed_chain_close() even after an error. Errors: STATE (a member of the chain was not
 * found), CORRUPT (one is damaged), and the errors of hotbed_chain_open(). */
hotbed_status tool_open_chain(const char *path, hotbed_chain *out);

/* --- commands -------------------------------------------------------------------------------------------- */

int tool_list(const tool_options *options);
int tool_inspect(const tool_options *options);
int tool_verify(const tool_options *options);
int tool_diff(const tool_options *options);
int tool_reshard(const tool_options *options);
int tool_compact(const tool_options *options);
int tool_convert(const tool_options *options);
int tool_gc(const tool_options *options);
int tool_publish(const tool_options *options);

/* Run convert --from. Implemented in checkpoint/tool/tool_import.c. */
int tool_import(const tool_options *options);
