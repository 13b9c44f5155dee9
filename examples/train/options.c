/* examples/train/options.c - the command line of hotbed-train. */
#include "examples/train/options.h"

#include "examples/train/log_reader.h"
#include "examples/train/model.h"
#include "hotbed/train.h"
#include "hotbed/version.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { PARSE_THREADS_MOST = 256 }; /* stated in --help too */

#define CAPACITY_MOST (UINT64_C(1) << 35) /* of a table of the library */

static const char usage_text[] =
    "usage: hotbed-train --data FILE|- [options]\n"
    "Train a factorization machine for click-through rates on a log in Criteo's format: each line "
    "has a\n"
    "label, 13 integers and 26 categories, separated by tabs; plain or gzip.\n"
    "\n"
    "  --data FILE|-       training rows; - is the standard input\n"
    "  --eval FILE         held-out rows: compute AUC and logloss after training\n"
    "  --dim N             factors per key, 1 to 256 (default 16)\n"
    "  --optimizer NAME    one of those below (default adagrad)\n"
    "  --dtype NAME        type of the rows: f32, f16, bf16, int8 or fp8 (default f32)\n"
    "  --state-dtype NAME  type of the optimizer's states: f32 or bf16 (default f32)\n"
    "  --rounding NAME     of updates of other types than f32: stochastic or nearest (default "
    "stochastic)\n"
    "  --lr X              learning rate, for the sum of the rows' losses (default: depends on "
    "the\n"
    "                      optimizer)\n"
    "  --batch N           rows per step (default 4096)\n"
    "  --epochs N          number of times to read the training rows (default 1)\n"
    "  --capacity N        keys that each categorical table can hold (default 1048576)\n"
    "  --max-capacity N    let tables grow to N keys: a table doubles when it is half full "
    "(default: tables\n"
    "                      do not grow)\n"
    "  --growth-every N    check how full the tables are every N steps (default 16)\n"
    "  --mode NAME         where rows are stored: auto, hbm, cache or default (default auto)\n"
    "  --hbm-mb N          budget for rows in device memory, MiB; required by --mode cache and "
    "default\n"
    "                      (default: no limit)\n"
    "  --lower-index KIND  memory of the lower tier's index: device or host (default device)\n"
    "  --store DIR         with --mode cache: keep all rows in a RocksDB database in DIR, which "
    "remains\n"
    "                      after the run; --hbm-mb must hold the rows of two batches, of three "
    "with sw-auto\n"
    "  --ranks N           share tables and batches among N threads; with cuda each has a GPU of "
    "its own\n"
    "                      (default 1; mpirun does the same among processes)\n"
    "  --plan NAME         exchanges among ranks: fixed, two-phase or one-sided (default "
    "two-phase)\n"
    "  --pipeline NAME     what runs ahead of a batch's step (default prefetch): none, "
    "sparse-dist,\n"
    "                      prefetch, jagged-prefetch, sw-serial, another plan of the library, or\n"
    "                      sw-auto: sw-serial for 12 steps, then a schedule made from their times\n"
    "  --backend NAME      auto, host or cuda (default auto: cuda if there is a GPU)\n"
    "  --save DIR          write a checkpoint DIR/step-NNNNNNNNNN at the end\n"
    "  --save-every N      also write one every N steps\n"
    "  --load DIR          continue from a checkpoint, or from the newest whole one in a directory "
    "of them\n"
    "  --resume            continue from the newest whole checkpoint in --save's directory, if "
    "there is\n"
    "                      one; rename damaged ones to NAME.damaged\n"
    "  --seed N            seed of the initial rows (default 1)\n"
    "  --parse-threads N   threads that parse rows, 1 to 256 (default: one per core, shared among "
    "ranks);\n"
    "                      one more thread reads and unpacks; results do not depend on N\n"
    "  --skip-bad N        leave out up to N malformed lines per file (default 0)\n"
    "  --json FILE         write results, loss curve and table statistics\n"
    "  --trace FILE        write a timeline of training for Perfetto or chrome://tracing\n"
    "  --picture FILE      draw the last steps of that timeline as SVG\n"
    "  --quiet             print only errors and warnings\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 done, 1 failed with a message, 2 wrong usage.\n";

void hotbed_train_say(const char *format, ...) {
    va_list arguments;
    char message[3 * 4096];
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    /* one write, because a message of mpirun or of another rank may come between two */
    (void)fprintf(stderr, "hotbed-train: %s\n", message);
}

/* The first four were chosen on rows of hotbed-datagen, one epoch of 400,000 in batches of 4096, by
 * the AUC on fresh rows; the others on 12,000 rows of 1,000 words, two epochs in batches of 500. */
float hotbed_train_default_rate(hotbed_optimizer_kind kind) {
    switch (kind) {
    case HOTBED_OPT_SGD:
        return 0.0003F;
    case HOTBED_OPT_ADAM:
    case HOTBED_OPT_ROW_STEPS_ADAM:
        return 0.002F;
    case HOTBED_OPT_ADAGRAD:
        return 0.015F;
    case HOTBED_OPT_ROWWISE_ADAGRAD:
    case HOTBED_OPT_FTRL:
        return 0.01F;
    case HOTBED_OPT_MOMENTUM:
    case HOTBED_OPT_NESTEROV:
        return 0.0003F;
    case HOTBED_OPT_RMSPROP:
        return 0.003F;
    case HOTBED_OPT_ADADELTA:
        return 3.0F;
    case HOTBED_OPT_LION:
    case HOTBED_OPT_PARTIAL_ROWWISE_ADAM:
    case HOTBED_OPT_ROWWISE_ADAM:
        return 0.002F;
    case HOTBED_OPT_LAMB:
        return 0.1F;
    case HOTBED_OPT_LARS:
        return 10.0F;
    }
    return 0.01F;
}

static bool parse_count(const char *text, uint64_t least, uint64_t most, uint64_t *value) {
    char *end;
    errno = 0;
    if (text[0] < '0' || text[0] > '9')
        return false;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && *value >= least && *value <= most;
}

static bool parse_rate(const char *text, float *value) {
    char *end;
    *value = strtof(text, &end);
    return end != text && *end == '\0' && *value > 0 && *value < 1e6F;
}

/* --- the options ------------------------------------------------------------------------------ */

/* What an option takes, and the type of the member that it sets. */
typedef enum setting_kind {
    SETTING_TEXT, /* const char *, not empty */
    SETTING_EVAL, /* the same, but not "-" */
    SETTING_PLAN, /* the same, a name that is_pipeline() knows */
    SETTING_U32,  /* a number from least to most */
    SETTING_U64,
    SETTING_MIB,    /* the same in MiB; uint64_t, in bytes */
    SETTING_RATE,   /* float */
    SETTING_CHOICE, /* an enumeration: one of the choices */
    SETTING_OPTIMIZER,
    SETTING_DTYPE,
    SETTING_FLAG, /* bool; no value */
    SETTING_HELP, /* sets nothing */
    SETTING_VERSION,
} setting_kind;

/* A name and its value. */
typedef struct choice {
    const char *name; /* NULL: the end */
    int value;
} choice;

typedef struct setting {
    const char *name;
    setting_kind kind;
    size_t offset;     /* of the member of hotbed_run_options */
    const char *takes; /* in messages; NULL: values_of() knows it */
    uint64_t least, most;
    const choice *choices;
} setting;

#define TEXT(name, kind, member, takes)                                                            \
    { name, SETTING_##kind, offsetof(hotbed_run_options, member), takes, 0, 0, NULL }
#define NUMBER(name, kind, member, least, most)                                                    \
    { name, SETTING_##kind, offsetof(hotbed_run_options, member), NULL, least, most, NULL }
#define CHOICE(name, member, choices)                                                              \
    { name, SETTING_CHOICE, offsetof(hotbed_run_options, member), NULL, 0, 0, choices }

static const choice modes[] = {
    {"auto", HOTBED_MODE_AUTO},
    {"hbm", HOTBED_MODE_HBM_DIRECT},
    {"cache", HOTBED_MODE_CACHE},
    {"default", HOTBED_MODE_DEFAULT},
    {NULL, 0}};
static const choice backends[] = {
    {"auto", 0}, {"host", HOTBED_BACKEND_HOST}, {"cuda", HOTBED_BACKEND_CUDA}, {NULL, 0}};
static const choice plans[] = {
    {"fixed", HOTBED_PLAN_FIXED},
    {"two-phase", HOTBED_PLAN_TWO_PHASE},
    {"one-sided", HOTBED_PLAN_ONE_SIDED},
    {NULL, 0}};
static const choice memories[] = {
    {"device", HOTBED_MEMORY_DEVICE}, {"host", HOTBED_MEMORY_PINNED}, {NULL, 0}};
static const choice state_types[] = {{"f32", HOTBED_F32}, {"bf16", HOTBED_BF16}, {NULL, 0}};
static const choice roundings[] = {
    {"stochastic", HOTBED_ROUND_STOCHASTIC}, {"nearest", HOTBED_ROUND_NEAREST}, {NULL, 0}};

static const setting settings[] = {
    TEXT("data", TEXT, data, "a file, or - for the standard input"),
    TEXT("eval", EVAL, eval, "a file, not the standard input"),
    NUMBER("dim", U32, dim, 1, HOTBED_FM_MAX_DIM),
    TEXT("optimizer", OPTIMIZER, optimizer, "a name that --help lists"),
    TEXT("dtype", DTYPE, dtype, NULL),
    CHOICE("state-dtype", state_dtype, state_types),
    CHOICE("rounding", rounding, roundings),
    TEXT("lr", RATE, learning_rate, "a number above 0 and below 1000000"),
    NUMBER("batch", U32, batch, 1, 1U << 20),
    NUMBER("epochs", U32, epochs, 1, 1U << 20),
    NUMBER("capacity", U64, capacity, 1, CAPACITY_MOST),
    NUMBER("max-capacity", U64, max_capacity, 1, CAPACITY_MOST),
    NUMBER("growth-every", U32, growth_every, 1, UINT32_MAX),
    CHOICE("mode", mode, modes),
    NUMBER("hbm-mb", MIB, hbm_bytes, 1, UINT64_C(1) << 40),
    CHOICE("lower-index", lower_index, memories),
    TEXT("store", TEXT, store, "a directory"),
    NUMBER("ranks", U32, ranks, 1, 64),
    CHOICE("plan", plan, plans),
    TEXT("pipeline", PLAN, pipeline, NULL),
    CHOICE("backend", backend, backends),
    TEXT("save", TEXT, save, "a directory"),
    NUMBER("save-every", U64, save_every, 1, UINT64_MAX),
    TEXT("load", TEXT, load, "a checkpoint, or a directory of them"),
    TEXT("resume", FLAG, resume, NULL),
    NUMBER("seed", U64, seed, 0, UINT64_MAX),
    NUMBER("parse-threads", U32, parse_threads, 1, PARSE_THREADS_MOST),
    NUMBER("skip-bad", U64, skip_bad, 0, UINT64_MAX),
    TEXT("json", TEXT, json, "a file"),
    TEXT("trace", TEXT, trace, "a file"),
    TEXT("picture", TEXT, picture, "a file"),
    TEXT("quiet", FLAG, quiet, NULL),
    TEXT("help", HELP, data, NULL),
    TEXT("version", VERSION, data, NULL),
};

enum { SETTINGS = sizeof settings / sizeof *settings, FIRST = 256 /* value of getopt_long() */ };

void hotbed_train_optimizer_name(hotbed_optimizer_kind kind, char name[32]) {
    snprintf(name, 32, "%s", hotbed_optimizer_name(kind)); /* with - for _ */
    for (char *c = name; *c != 0; c++)
        *c = *c == '_' ? '-' : *c;
}

static void print_usage(void) {
    const hotbed_optimizer_info *info;
    char name[32];
    fputs(usage_text, stdout);
    fputs("\nOptimizers:", stdout);
    for (int k = 1; (info = hotbed_optimizer_describe((hotbed_optimizer_kind)k)) != NULL; k++) {
        hotbed_train_optimizer_name(info->kind, name);
        printf("%s %s", k == 1 ? "" : ",", name);
    }
    putchar('\n');
}

static bool parse_optimizer(const char *text, hotbed_optimizer_kind *kind) {
    const hotbed_optimizer_info *info;
    char name[32];
    for (int k = 1; (info = hotbed_optimizer_describe((hotbed_optimizer_kind)k)) != NULL; k++) {
        hotbed_train_optimizer_name(info->kind, name);
        if (strcmp(text, name) == 0) {
            *kind = info->kind;
            return true;
        }
    }
    return false;
}

static bool parse_dtype(const char *text, hotbed_dtype *dtype) {
    for (int d = 1; hotbed_dtype_row_bytes((hotbed_dtype)d, 1) > 0; d++)
        if (strcmp(text, hotbed_dtype_name((hotbed_dtype)d)) == 0) {
            *dtype = (hotbed_dtype)d;
            return true;
        }
    return false;
}

static bool parse_choice(const char *text, const choice *choices, void *to) {
    for (; choices->name != NULL; choices++)
        if (strcmp(text, choices->name) == 0) {
            memcpy(to, &choices->value, sizeof choices->value);
            return true;
        }
    return false;
}

static bool is_pipeline(const char *text) {
    const char *name;
    for (uint32_t plan = 0; (name = hotbed_train_plan_name(plan)) != NULL; plan++)
        if (strcmp(name, text) == 0)
            return true;
    return strcmp(text, "sw-auto") == 0;
}

/* Set one option. False if the text is not one of its values. */
static bool set_option(const setting *s, const char *text, hotbed_run_options *o) {
    void *to = (char *)o + s->offset;
    uint64_t number = 0;
    bool good;
    switch (s->kind) {
    case SETTING_TEXT:
    case SETTING_EVAL:
        *(const char **)to = text;
        return text[0] != '\0' && (s->kind == SETTING_TEXT || strcmp(text, "-") != 0);
    case SETTING_PLAN:
        *(const char **)to = text;
        return is_pipeline(text);
    case SETTING_U32:
        good = parse_count(text, s->least, s->most, &number);
        *(uint32_t *)to = (uint32_t)number;
        return good;
    case SETTING_U64:
    case SETTING_MIB:
        good = parse_count(text, s->least, s->most, &number);
        *(uint64_t *)to = s->kind == SETTING_MIB ? number << 20 : number;
        return good;
    case SETTING_RATE:
        return parse_rate(text, to);
    case SETTING_CHOICE:
        return parse_choice(text, s->choices, to);
    case SETTING_OPTIMIZER:
        return parse_optimizer(text, to);
    case SETTING_DTYPE:
        return parse_dtype(text, to);
    case SETTING_FLAG:
        *(bool *)to = true;
        return true;
    case SETTING_HELP:
    case SETTING_VERSION:
        break;
    }
    return false;
}

static int usage(const char *format, ...) {
    char message[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    hotbed_train_say("%s; see --help", message);
    return HOTBED_EXIT_USAGE;
}

/* Flush the output. Returns the exit status. */
static int flush_output(void) {
    if (fflush(stdout) == 0 && ferror(stdout) == 0)
        return HOTBED_EXIT_OK;
    hotbed_train_say("cannot write to the standard output");
    return HOTBED_EXIT_USAGE;
}

/* The values that an option takes, for messages. */
static const char *values_of(const setting *s) {
    static char text[512];
    const char *name;
    int n = 0;
    if (s->takes != NULL)
        return s->takes;
    if (s->kind == SETTING_DTYPE) {
        for (int d = 1; hotbed_dtype_row_bytes((hotbed_dtype)d, 1) > 0; d++)
            n += snprintf(
                text + n, sizeof text - (size_t)n, "%s%s", d > 1 ? ", " : "",
                hotbed_dtype_name((hotbed_dtype)d));
    } else if (s->kind == SETTING_PLAN) {
        for (uint32_t plan = 0; (name = hotbed_train_plan_name(plan)) != NULL; plan++)
            n += snprintf(text + n, sizeof text - (size_t)n, "%s, ", name);
        snprintf(text + n, sizeof text - (size_t)n, "or sw-auto");
    } else if (s->kind == SETTING_CHOICE) {
        for (const choice *c = s->choices; c->name != NULL; c++)
            n += snprintf(
                text + n, sizeof text - (size_t)n, "%s%s",
                c == s->choices     ? ""
                : c[1].name == NULL ? " or "
                                    : ", ",
                c->name);
    } else {
        snprintf(
            text, sizeof text, "%llu to %llu", (unsigned long long)s->least,
            (unsigned long long)s->most);
    }
    return text;
}

bool hotbed_option_is_abbreviated(char **argv, const char *name) {
    const char *word = argv[optind - 1];
    if (word == optarg) /* the value is a word of its own */
        word = argv[optind - 2];
    const size_t length = strlen(name);
    if (strncmp(word, "--", 2) != 0 || (strncmp(word + 2, name, length) == 0 &&
                                        (word[length + 2] == '\0' || word[length + 2] == '=')))
        return false;
    (void)fprintf(
        stderr, "%s: unrecognized option '%s': did you mean --%s?\n", argv[0], word, name);
    return true;
}

int hotbed_run_options_parse(int argc, char **argv, hotbed_run_options *o) {
    struct option options[SETTINGS + 1] = {{0}};
    for (int i = 0; i < SETTINGS; i++)
        options[i] = (struct option){
            .name = settings[i].name,
            .has_arg = settings[i].kind >= SETTING_FLAG ? no_argument : required_argument,
            .val = FIRST + i};
    memset(o, 0, sizeof *o);
    o->dim = 16;
    o->optimizer = HOTBED_OPT_ADAGRAD;
    o->batch = 4096;
    o->epochs = 1;
    o->capacity = (uint64_t)1 << 20;
    o->seed = 1;
    o->ranks = 1;
    o->plan = HOTBED_PLAN_TWO_PHASE;
    o->pipeline = "prefetch";
    int option;
    static char program[] = "hotbed-train"; /* begins messages of getopt_long() */
    argv[0] = program;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option < FIRST)
            return HOTBED_EXIT_USAGE; /* getopt_long() has printed why */
        const setting *s = &settings[option - FIRST];
        if (hotbed_option_is_abbreviated(argv, s->name))
            return HOTBED_EXIT_USAGE;
        if (s->kind == SETTING_HELP) {
            print_usage();
            return flush_output();
        }
        if (s->kind == SETTING_VERSION) {
            printf("hotbed-train %s (library %s)\n", HOTBED_VERSION, hotbed_version());
            return flush_output();
        }
        if (!set_option(s, optarg, o)) {
            hotbed_train_say(
                "'%s' is not a value of --%s, which takes %s", optarg, s->name, values_of(s));
            return HOTBED_EXIT_USAGE;
        }
    }
    if (optind < argc) {
        hotbed_train_say("unexpected '%s'; see --help", argv[optind]);
        return HOTBED_EXIT_USAGE;
    }
    if (o->data == NULL)
        return usage("--data is missing");
    if (strcmp(o->data, "-") == 0 && o->epochs > 1)
        return usage("the standard input can be read once: --epochs needs a file");
    if (strcmp(o->data, "-") == 0 && o->ranks > 1)
        return usage("the standard input can be read by one: --ranks needs a file");
    if (o->store != NULL && o->mode != HOTBED_MODE_CACHE)
        return usage("--store needs --mode cache");
    if (o->max_capacity > 0 && o->max_capacity < o->capacity)
        return usage(
            "--max-capacity %llu is below --capacity %llu", (unsigned long long)o->max_capacity,
            (unsigned long long)o->capacity);
    if (o->max_capacity > 0 && o->store != NULL)
        return usage("--max-capacity is not for --store, which holds any number of keys");
    if (o->store != NULL && o->lower_index != 0)
        return usage("--store has no lower tier: it goes without --lower-index");
    if (o->mode == HOTBED_MODE_HBM_DIRECT && o->lower_index != 0)
        return usage("--mode hbm has no lower tier: it goes without --lower-index");
    if (o->growth_every > 0 && o->max_capacity == 0)
        return usage("--growth-every needs --max-capacity");
    if (o->growth_every == 0)
        o->growth_every = 16;
    if ((o->mode == HOTBED_MODE_CACHE || o->mode == HOTBED_MODE_DEFAULT) && o->hbm_bytes == 0)
        return usage("--mode cache and --mode default need --hbm-mb");
    if (o->save_every > 0 && o->save == NULL)
        return usage("--save-every needs --save");
    if (o->resume && (o->save == NULL || o->load != NULL))
        return usage("--resume needs --save, and cannot be given with --load");
    if (o->parse_threads == 0) {
        uint32_t cores = hotbed_log_reader_cores();
        o->parse_threads = cores <= o->ranks ? 1 : cores / o->ranks;
        o->parse_threads =
            o->parse_threads < PARSE_THREADS_MOST ? o->parse_threads : PARSE_THREADS_MOST;
    }
    return -1;
}
