/* checkpoint/tool.c - hotbed-ckpt: what one does with checkpoints without a trainer. */
#define _DEFAULT_SOURCE /* isatty() */
#include "checkpoint/tool.h"

#include "hotbed/route.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: hotbed-ckpt COMMAND [OPTION...] PATH...\n"
    "\n"
    "  list DIR             checkpoints of a directory, oldest first\n"
    "  inspect PATH         what is in a checkpoint, by its MANIFEST alone\n"
    "  verify PATH...       read every byte, and check it; --quick: MANIFEST, sizes, metadata, "
    "roots\n"
    "  diff A B             compare tables row by row\n"
    "  reshard IN OUT --ranks N [--route RULE]\n"
    "                       the same rows in N shards: by ranges of buckets, or as RULE deals keys "
    "out\n"
    "                       (hash_roundrobin, roundrobin)\n"
    "  compact IN OUT       an increment and all it follows as one full checkpoint\n"
    "  convert IN OUT --to npy|h5\n"
    "                       tables as .npy files in a new directory, or as one HDF5 file\n"
    "  convert IN OUT --from npy|dynamicemb [--optimizer KIND] [--keys i64|u64] [--ages]\n"
    "                       a checkpoint from a directory of such files; docs/tool.md has their "
    "names\n"
    "  gc DIR --keep N      remove all but the newest N full checkpoints and what follows them;\n"
    "                       --dry-run: say what; --unfinished: what killed saves left, too\n"
    "\n"
    "An increment as IN, A or B stands for the chain up to it; what it follows is looked for "
    "beside it.\n"
    "  --json      one JSON value on the standard output    --quiet     no progress bar\n"
    "  --progress  a progress bar, also if the standard error is no terminal\n"
    "\n"
    "Exit status: 0 all is well; 1 they differ, or something is damaged; 2 trouble.\n"
    "Digests find damage. They do not find forgery: XXH3 is not cryptographic.\n";

int tool_fail(hotbed_status status) {
    fprintf(stderr, "hotbed-ckpt: %s: %s\n", hotbed_status_name(status), hotbed_last_error());
    return status == HOTBED_ERR_CORRUPT ? TOOL_DIFFERS : TOOL_TROUBLE;
}

int tool_usage(const char *text, const char *value) {
    fprintf(stderr, "hotbed-ckpt: %s%s (--help lists what there is)\n", text, value);
    return TOOL_TROUBLE;
}

void tool_json_text(const char *text) {
    putchar('"');
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++)
        if (*p == '"' || *p == '\\')
            printf("\\%c", *p);
        else if (*p < 0x20 || *p == 0x7f)
            printf("\\u%04x", *p);
        else
            putchar(*p);
    putchar('"');
}

/* --- progress ------------------------------------------------------------------------------------------ */

static void show_progress(void *self, uint64_t done, uint64_t total) {
    static const char bar[] = "########################################";
    enum { WIDTH = sizeof bar - 1 };
    int *last = self;
    int part = total == 0 || done > total ? 1000 : (int)(done * 1000 / total);
    if (part == *last)
        return;
    *last = part;
    fprintf(
        stderr, "\r[%-*.*s] %3d.%d %%%s", WIDTH, part * WIDTH / 1000, bar, part / 10, part % 10,
        part == 1000 ? "\n" : "");
    fflush(stderr);
}

/* --- options ------------------------------------------------------------------------------------------- */

static bool read_number(const char *text, uint64_t most, uint64_t *out) {
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && text[0] >= '0' && text[0] <= '9' && *end == '\0' && *out >= 1 &&
           *out <= most;
}

static bool read_route(const char *text, uint32_t *out) {
    for (int kind = HOTBED_ROUTE_HASH_ROUND_ROBIN; kind <= HOTBED_ROUTE_ROUND_ROBIN; kind++)
        if (strcmp(text, hotbed_route_name((hotbed_route_kind)kind)) == 0) {
            *out = (uint32_t)kind + 1;
            return true;
        }
    return false;
}

/* An option with a value; false: the value is not one. */
static bool read_value(tool_options *o, const char *name, const char *value, bool *known) {
    uint64_t number = 0;
    *known = true;
    if (strcmp(name, "--ranks") == 0) {
        bool good = read_number(value, HOTBED_WORLD_MAX, &number);
        o->ranks = (uint32_t)number;
        return good;
    }
    if (strcmp(name, "--keep") == 0)
        return read_number(value, UINT32_MAX, &o->keep);
    if (strcmp(name, "--route") == 0)
        return read_route(value, &o->route);
    if (strcmp(name, "--from") == 0) {
        o->from = value;
        return strcmp(value, "npy") == 0 || strcmp(value, "dynamicemb") == 0;
    }
    if (strcmp(name, "--to") == 0) {
        o->to = value;
        return strcmp(value, "npy") == 0 || strcmp(value, "h5") == 0;
    }
    if (strcmp(name, "--optimizer") == 0) {
        o->optimizer = value;
        return true;
    }
    if (strcmp(name, "--keys") == 0) {
        o->key_type = strcmp(value, "u64") == 0 ? HOTBED_KEY_U64 : HOTBED_KEY_I64;
        return strcmp(value, "i64") == 0 || strcmp(value, "u64") == 0;
    }
    *known = false;
    return false;
}

static bool read_flag(tool_options *o, const char *name, bool *bar) {
    if (strcmp(name, "--json") == 0)
        o->json = true;
    else if (strcmp(name, "--quick") == 0)
        o->quick = true;
    else if (strcmp(name, "--dry-run") == 0)
        o->dry_run = true;
    else if (strcmp(name, "--unfinished") == 0)
        o->unfinished = true;
    else if (strcmp(name, "--ages") == 0)
        o->ages = true;
    else if (strcmp(name, "--progress") == 0)
        *bar = true;
    else if (strcmp(name, "--quiet") == 0)
        *bar = false;
    else
        return false;
    return true;
}

/* 0, or an exit status. */
static int read_options(tool_options *o, int argc, char **argv) {
    static int shown = -1;
    bool bar = isatty(STDERR_FILENO) != 0;
    for (int i = 2; i < argc; i++) {
        bool known = false;
        if (argv[i][0] != '-' || argv[i][1] == '\0') {
            if (o->num_paths == TOOL_PATHS)
                return tool_usage("too many paths: ", argv[i]);
            o->paths[o->num_paths++] = argv[i];
            continue;
        }
        if (read_flag(o, argv[i], &bar))
            continue;
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        bool good = read_value(o, argv[i], value == NULL ? "" : value, &known);
        if (!known)
            return tool_usage("unknown option ", argv[i]);
        if (value == NULL || !good)
            return tool_usage("bad or missing value of ", argv[i]);
        i++;
    }
    if (bar)
        o->progress = (hotbed_progress){.report = show_progress, .self = &shown};
    return 0;
}

typedef struct command {
    const char *name;
    int (*run)(const tool_options *options);
    uint32_t least, most; /* paths */
} command;

int main(int argc, char **argv) {
    static const command commands[] = {
        {"list", tool_list, 1, 1},       {"inspect", tool_inspect, 1, 1},
        {"verify", tool_verify, 1, 64},  {"diff", tool_diff, 2, 2},
        {"reshard", tool_reshard, 2, 2}, {"compact", tool_compact, 2, 2},
        {"convert", tool_convert, 2, 2}, {"gc", tool_gc, 1, 1},
    };
    tool_options options = {.key_type = HOTBED_KEY_I64};
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return TOOL_SAME;
        }
    if (argc < 2)
        return tool_usage("no command", "");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) != 0)
            continue;
        int status = read_options(&options, argc, argv);
        if (status != 0)
            return status;
        if (options.num_paths < commands[i].least || options.num_paths > commands[i].most)
            return tool_usage("wrong number of paths for ", argv[1]);
        status = commands[i].run(&options);
        if (fflush(stdout) != 0)
            return TOOL_TROUBLE;
        return status;
    }
    return tool_usage("unknown command ", argv[1]);
}
