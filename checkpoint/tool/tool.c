/* checkpoint/tool/tool.c - hotbed-ckpt: commands on checkpoints that need no trainer. */
#define _DEFAULT_SOURCE /* isatty() */
#include "checkpoint/tool/tool.h"

#include "base/text.h"
#include "hotbed/route.h"
#include "hotbed/version.h"
#include "storage/types.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

static const char help[] =
    "usage: hotbed-ckpt COMMAND [OPTION...] PATH...\n"
    "\n"
    "  list DIR             list the checkpoints of a directory, oldest first, with their state\n"
    "  inspect PATH         show the content of a checkpoint, from its MANIFEST alone\n"
    "  verify PATH... [--quick]\n"
    "                       read and check every byte (--quick: all but the rows); of a\n"
    "                       published directory, what readers use\n"
    "  diff A B [--ignore-scores]\n"
    "                       compare tables row by row, admission counts, state and blobs,\n"
    "                       and say of how many rows weights, optimizer states and scores differ.\n"
    "                       Scores that are times (LRU) differ in equal runs\n"
    "  reshard IN OUT --ranks N [--route RULE]\n"
    "                       write the same rows in N shards: by ranges of buckets, or by RULE\n"
    "                       (hash_roundrobin or roundrobin), which assigns keys to ranks\n"
    "  compact IN OUT [--ranks N] [--route RULE]\n"
    "                       write an increment and all that it follows as a full checkpoint,\n"
    "                       in one shard unless --ranks is given\n"
    "  convert IN OUT --to npy|h5\n"
    "                       write tables as .npy files in a new directory, or as one HDF5 file\n"
    "  convert IN OUT [--dtype f32|f16|bf16|int8|fp8] [--state-dtype f32|bf16]\n"
    "                       write the same checkpoint with rows or optimizer states of another\n"
    "                       type, rounded to nearest, in as many shards, by ranges of buckets\n"
    "  convert IN OUT --from npy|dynamicemb [--optimizer KIND] [--keys i64|u64] [--ages]\n"
    "                       make a checkpoint from a directory of such files. Every file of the\n"
    "                       directory must be used. --ages: the scores are ages.\n"
    "                         npy: TABLE.weight.npy, TABLE.weight_id.npy, and if present\n"
    "                              .metadata (scores), .times and optimizer states\n"
    "                         dynamicemb: TABLE_emb_keys.rank_R.world_size_W, _emb_values,\n"
    "                              TABLE_opt_args.json, and if present _emb_scores,\n"
    "                              _emb_opt_values or _opt_values, and _counter_keys with\n"
    "                              _counter_frequencies. Options for what\n"
    "                              TABLE_opt_args.json does not say: --optimizer, --ages,\n"
    "      --dtype f32|f16|bf16             the type of the rows\n"
    "      --scores time,count|count,time   the order of two scores per key\n"
    "  publish IN DIR [--encoding f32|f16|bf16|int8]\n"
    "                       write the rows as the next cut of a published directory, for readers\n"
    "                       (hotbed/read.h), encoded as in the tables unless --encoding is given\n"
    "  gc DIR --unfinished [--dry-run]\n"
    "                       remove what interrupted saves left, nothing else. Run it while\n"
    "                       nothing saves to DIR\n"
    "  gc DIR --keep N [--dry-run] [--leave-damaged] [--unfinished]\n"
    "                       remove all but the newest N full checkpoints and their increments.\n"
    "                       Refuses if a checkpoint is damaged; links are not followed, and\n"
    "                       their targets are kept. Reads no rows: run verify on the newest\n"
    "                       checkpoint before you remove older ones\n"
    "      --dry-run        print what would be removed\n"
    "      --leave-damaged  keep damaged checkpoints, and remove others\n"
    "      --unfinished     also remove what interrupted saves left\n"
    "\n"
    "Every command:\n"
    "  --json      print one JSON value to standard output\n"
    "verify, diff, reshard, compact, convert, publish:\n"
    "  --progress  a progress bar, even if standard error is not a terminal\n"
    "  --quiet     no progress bar\n"
    "Without a command: --help, --version. Only paths follow \"--\". A value is given as\n"
    "--keep 3 or --keep=3. An option that the command does not take is an error.\n"
    "\n"
    "An increment as IN, A or B stands for its chain. What it follows is\n"
    "searched for in its directory.\n"
    "\n"
    "Exit status: 0 success; 1 the two differ, or something is damaged; 2 the command failed.\n"
    "diff of a damaged checkpoint returns 2, because 1 would mean that the two differ.\n"
    "Digests detect damage, not forgery: XXH3 is not cryptographic.\n";

int tool_fail(hotbed_status status) {
    (void)fflush(stdout); /* both may be one file */
    fprintf(stderr, "hotbed-ckpt: %s: %s\n", hotbed_status_name(status), hotbed_last_error());
    return status == HOTBED_ERR_CORRUPT ? TOOL_DIFFERS : TOOL_TROUBLE;
}

int tool_usage(const char *text, const char *value) {
    (void)fflush(stdout);
    fprintf(stderr, "hotbed-ckpt: %s%s (see --help)\n", text, tool_show(value).text);
    return TOOL_TROUBLE;
}

/* Return the number of bytes of the UTF-8 character at `p`, or 0 if there is none. Overlong forms,
 * surrogates and values over U+10FFFF are not characters. */
static int utf8_bytes(const unsigned char *p) {
    static const struct {
        unsigned char first, last, low, high; /* of the first byte, and of the second one */
        int bytes;
    } forms[] = {
        {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
        {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
        {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    if (p[0] < 0x80)
        return 1;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (p[0] < forms[i].first || p[0] > forms[i].last)
            continue;
        int n = p[1] >= forms[i].low && p[1] <= forms[i].high ? 2 : 0;
        while (n >= 2 && n < forms[i].bytes)
            n = p[n] >= 0x80 && p[n] <= 0xbf ? n + 1 : 0;
        return n;
    }
    return 0;
}

void tool_json_text(const char *text) {
    putchar('"');
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0';) {
        int n = utf8_bytes(p);
        if (*p == '"' || *p == '\\')
            printf("\\%c", *p);
        else if (*p < 0x20 || *p == 0x7f)
            printf("\\u%04x", *p);
        else if (n == 0)
            printf("\\\\x%02x", *p);
        else
            fwrite(p, 1, (size_t)n, stdout);
        p += n == 0 ? 1 : n;
    }
    putchar('"');
}

int tool_wrote(const tool_options *o, hotbed_status status, const char *format, ...) {
    va_list values;
    if (status != HOTBED_OK)
        return tool_fail(status);
    if (!o->json)
        return TOOL_SAME;
    printf("{\"path\": ");
    tool_json_text(o->paths[1]);
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    printf("}\n");
    return TOOL_SAME;
}

tool_shown tool_show(const char *name) {
    tool_shown shown;
    snprintf(shown.text, sizeof shown.text, "%s", name);
    hotbed_escape(shown.text, sizeof shown.text);
    return shown;
}

/* --- progress ------------------------------------------------------------------------------------------ */

/* The columns of the terminal, or 80. */
static int columns(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* A line that is longer than the terminal would not be overwritten by the next one. */
static void show_progress(void *self, uint64_t done, uint64_t total) {
    static const char bar[] = "########################################";
    enum {
        MOST = sizeof bar - 1,
        OTHERS = 12
    }; /* brackets and "100.0 %", and a column that stays free */
    int *last = self;
    int part = total == 0 || done > total ? 1000 : (int)(done * 1000 / total);
    if (part == *last)
        return;
    *last = part;
    int width = columns() - OTHERS;
    width = width > MOST ? MOST : width;
    fputc('\r', stderr);
    if (width > 0)
        fprintf(stderr, "[%-*.*s] ", width, part * width / 1000, bar);
    fprintf(stderr, "%3d.%d %%%s", part / 10, part % 10, part == 1000 ? "\n" : "");
    fflush(stderr);
}

/* --- commands and options ------------------------------------------------------------------------------ */

typedef struct command {
    const char *name;
    int (*run)(const tool_options *options);
    uint32_t least, most; /* number of paths */
} command;

enum { LIST, INSPECT, VERIFY, DIFF, RESHARD, COMPACT, CONVERT, PUBLISH, GC, NUM_COMMANDS };

static const command commands[NUM_COMMANDS] = {
    [LIST] = {"list", tool_list, 1, 1},
    [INSPECT] = {"inspect", tool_inspect, 1, 1},
    [VERIFY] = {"verify", tool_verify, 1, UINT32_MAX},
    [DIFF] = {"diff", tool_diff, 2, 2},
    [RESHARD] = {"reshard", tool_reshard, 2, 2},
    [COMPACT] = {"compact", tool_compact, 2, 2},
    [CONVERT] = {"convert", tool_convert, 2, 2},
    [PUBLISH] = {"publish", tool_publish, 2, 2},
    [GC] = {"gc", tool_gc, 1, 1},
};

enum {
    EVERY = (1 << NUM_COMMANDS) - 1,
    WITH_BAR = 1 << VERIFY | 1 << DIFF | 1 << RESHARD | 1 << COMPACT | 1 << CONVERT | 1 << PUBLISH,
};

typedef struct option {
    const char *name;
    uint32_t commands;  /* that take it: bits 1 << LIST, ... */
    const char *values; /* that are allowed; NULL: the option takes none */
    size_t flag;        /* without a value: the field of tool_options */
} option;

#define FLAG(name) offsetof(tool_options, name)
static const option all_options[] = {
    {"--json", EVERY, NULL, FLAG(json)},
    {"--progress", WITH_BAR, NULL, FLAG(bar)},
    {"--quiet", WITH_BAR, NULL, FLAG(bar)},
    {"--quick", 1 << VERIFY, NULL, FLAG(quick)},
    {"--ranks", 1 << RESHARD | 1 << COMPACT, "1 to 65536", 0},
    {"--route", 1 << RESHARD | 1 << COMPACT, "hash_roundrobin or roundrobin", 0},
    {"--from", 1 << CONVERT, "npy or dynamicemb", 0},
    {"--to", 1 << CONVERT, "npy or h5", 0},
    {"--optimizer", 1 << CONVERT, "the name of an optimizer", 0},
    {"--keys", 1 << CONVERT, "i64 or u64", 0},
    {"--ages", 1 << CONVERT, NULL, FLAG(ages)},
    {"--dtype", 1 << CONVERT, "f32, f16, bf16, int8 or fp8", 0},
    {"--state-dtype", 1 << CONVERT, "f32 or bf16", 0},
    {"--scores", 1 << CONVERT, "time,count or count,time", 0},
    {"--encoding", 1 << PUBLISH, "f32, f16, bf16 or int8", 0},
    {"--keep", 1 << GC, "1 to 4294967295", 0},
    {"--ignore-scores", 1 << DIFF, NULL, FLAG(ignore_scores)},
    {"--dry-run", 1 << GC, NULL, FLAG(dry_run)},
    {"--leave-damaged", 1 << GC, NULL, FLAG(leave_damaged)},
    {"--unfinished", 1 << GC, NULL, FLAG(unfinished)},
};

static_assert(HOTBED_WORLD_MAX == 65536, "--ranks says so");

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

static bool read_encoding(const char *text, hotbed_encoding *out) {
    *out = HOTBED_ENCODING_F32;
    while (*out <= HOTBED_ENCODING_INT8 && strcmp(text, hotbed_encoding_name(*out)) != 0)
        ++*out;
    return *out <= HOTBED_ENCODING_INT8;
}

static bool read_word(const char *text, const char *one, const char *other, const char **out) {
    *out = text;
    return strcmp(text, one) == 0 || strcmp(text, other) == 0;
}

/* Read an option's value. Returns false if it is not allowed. */
static bool read_value(tool_options *o, const char *name, const char *value) {
    uint64_t number = 0;
    const char *word = NULL;
    if (strcmp(name, "--ranks") == 0) {
        if (!read_number(value, HOTBED_WORLD_MAX, &number))
            return false;
        o->ranks = (uint32_t)number;
        return true;
    }
    if (strcmp(name, "--keep") == 0)
        return read_number(value, UINT32_MAX, &o->keep);
    if (strcmp(name, "--route") == 0)
        return read_route(value, &o->route);
    if (strcmp(name, "--from") == 0)
        return read_word(value, "npy", "dynamicemb", &o->from);
    if (strcmp(name, "--to") == 0)
        return read_word(value, "npy", "h5", &o->to);
    if (strcmp(name, "--keys") == 0) {
        o->key_type = strcmp(value, "u64") == 0 ? HOTBED_KEY_U64 : HOTBED_KEY_I64;
        return read_word(value, "i64", "u64", &word);
    }
    if (strcmp(name, "--dtype") == 0)
        return hotbed_dtype_read(value, &o->dtype);
    if (strcmp(name, "--state-dtype") == 0)
        return hotbed_dtype_read(value, &o->state_dtype) &&
               (o->state_dtype == HOTBED_F32 || o->state_dtype == HOTBED_BF16);
    if (strcmp(name, "--scores") == 0)
        return read_word(value, "time,count", "count,time", &o->scores);
    if (strcmp(name, "--encoding") == 0)
        return read_encoding(value, &o->encoding);
    o->optimizer = value; /* --optimizer; an import checks the name */
    return true;
}

static const option *find_option(const char *name, size_t length) {
    for (size_t i = 0; i < sizeof all_options / sizeof *all_options; i++)
        if (strlen(all_options[i].name) == length &&
            strncmp(all_options[i].name, name, length) == 0)
            return &all_options[i];
    return NULL;
}

/* Report an option that the command does not take, with the commands that do. */
static void refuse_option(const option *given, const command *to) {
    char text[256];
    int n = snprintf(
        text, sizeof text, "%s does not take %s, which is an option of", to->name, given->name);
    const char *comma = " ";
    for (int i = 0; i < NUM_COMMANDS; i++)
        if ((given->commands >> i & 1) != 0) {
            n += snprintf(text + n, sizeof text - (size_t)n, "%s%s", comma, commands[i].name);
            comma = ", ";
        }
    tool_usage(text, "");
}

/* Report an option that no command takes, with the options that this command takes. */
static void refuse_unknown(const char *given, const command *to) {
    char text[256];
    int n = snprintf(text, sizeof text, "%s takes", to->name);
    for (size_t i = 0; i < sizeof all_options / sizeof *all_options; i++)
        if ((all_options[i].commands >> (to - commands) & 1) != 0)
            n += snprintf(text + n, sizeof text - (size_t)n, " %s,", all_options[i].name);
    snprintf(text + n, sizeof text - (size_t)n, " not ");
    tool_usage(text, given);
}

/* Read the option argv[i] of a command. Returns the number of arguments that it uses, or 0 after an
 * error. */
static int read_option(tool_options *o, const command *of, char **argv, int i, int argc) {
    char text[96];
    const char *equals = strchr(argv[i], '=');
    const char *value = equals != NULL ? equals + 1 : i + 1 < argc ? argv[i + 1] : NULL;
    const option *found =
        find_option(argv[i], equals == NULL ? strlen(argv[i]) : (size_t)(equals - argv[i]));
    if (found == NULL) {
        refuse_unknown(argv[i], of);
        return 0;
    }
    if ((found->commands >> (of - commands) & 1) == 0) {
        refuse_option(found, of);
        return 0;
    }
    if (found->values == NULL && equals != NULL) {
        tool_usage("this option takes no value: ", argv[i]);
        return 0;
    }
    if (found->values == NULL) {
        *(bool *)((char *)o + found->flag) = strcmp(found->name, "--quiet") != 0;
        return 1;
    }
    if (value == NULL || !read_value(o, found->name, value)) {
        snprintf(text, sizeof text, "%s takes %s, not ", found->name, found->values);
        tool_usage(text, value == NULL ? "nothing" : value);
        return 0;
    }
    return equals == NULL ? 2 : 1;
}

/* Read all options of a command, and move the paths to the front of argv. Returns 0, or an exit
 * status. */
static int read_options(tool_options *o, const command *of, int argc, char **argv) {
    static int shown = -1;
    bool only_paths = false;
    o->bar = isatty(STDERR_FILENO) != 0;
    o->paths = argv;
    for (int i = 2; i < argc;) {
        if (!only_paths && strcmp(argv[i], "--") == 0) {
            only_paths = true;
            i++;
        } else if (only_paths || argv[i][0] != '-' || argv[i][1] == '\0') {
            if (argv[i][0] == '\0')
                return tool_usage("a path is empty", "");
            argv[o->num_paths++] = argv[i++];
        } else {
            int n = read_option(o, of, argv, i, argc);
            if (n == 0)
                return TOOL_TROUBLE;
            i += n;
        }
    }
    if (o->bar)
        o->progress = (hotbed_progress){.report = show_progress, .self = &shown};
    return 0;
}

/* Flush the output. Reports a full disk or a closed pipe. */
static int flush_output(int result) {
    if (fflush(stdout) == 0 && ferror(stdout) == 0)
        return result;
    fprintf(stderr, "hotbed-ckpt: cannot write to the standard output\n");
    return TOOL_TROUBLE;
}

/* Raise the limit of open files to the maximum that the system allows. */
static void raise_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* Handle --help and --version, unless they follow "--". */
static bool print_about(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return true;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("hotbed-ckpt %s, formats to %d\n", hotbed_version(), HOTBED_FORMAT);
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv) {
    tool_options options = {.json = false};
    raise_limit();
    (void)signal(SIGXFSZ, SIG_IGN); /* a write beyond `ulimit -f` fails with a message */
    if (print_about(argc, argv))
        return flush_output(TOOL_SAME);
    if (argc < 2)
        return tool_usage("no command", "");
    for (int i = 0; i < NUM_COMMANDS; i++) {
        const command *c = &commands[i];
        if (strcmp(argv[1], c->name) != 0)
            continue;
        int status = read_options(&options, c, argc, argv);
        if (status != 0)
            return status;
        if (options.num_paths < c->least || options.num_paths > c->most) {
            char text[96];
            snprintf(
                text, sizeof text, "%s takes %s%" PRIu32 " path%s, not %" PRIu32, c->name,
                c->most > c->least ? "at least " : "", c->least, c->least == 1 ? "" : "s",
                options.num_paths);
            return tool_usage(text, "");
        }
        return flush_output(c->run(&options));
    }
    char text[128];
    int n = snprintf(text, sizeof text, "the commands are");
    for (int i = 0; i < NUM_COMMANDS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %s,", commands[i].name);
    snprintf(text + n, sizeof text - (size_t)n, " not ");
    return tool_usage(text, argv[1]);
}
