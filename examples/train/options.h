/* examples/train/options.h - the command line of hotbed-train. */
#pragma once

#include "hotbed/sharded.h"

typedef struct hotbed_run_options {
    const char *data; /* "-" is the standard input */
    const char *eval; /* NULL: none */
    const char *save; /* NULL: do not save */
    const char *load;
    const char *json;
    const char *trace;
    const char *picture;
    const char *pipeline; /* a plan of hotbed/train.h, or "sw-auto" */
    uint32_t dim;
    hotbed_optimizer_kind optimizer;
    hotbed_dtype dtype;       /* of rows; 0: f32 */
    hotbed_dtype state_dtype; /* 0: f32 */
    hotbed_rounding rounding;
    float learning_rate; /* 0: not given; the default of the optimizer or the checkpoint's rate */
    uint32_t batch;
    uint32_t epochs;
    hotbed_mode mode;
    uint64_t hbm_bytes;
    hotbed_memory_kind lower_index;
    const char *store;      /* NULL: none */
    hotbed_backend backend; /* 0: auto */
    uint64_t capacity;      /* keys of each categorical table */
    uint64_t max_capacity;  /* keys to which it may grow; 0: it does not grow */
    uint32_t growth_every;  /* steps between two polls of the tables' load */
    uint64_t save_every;    /* steps; 0: at the end only */
    uint64_t seed;
    uint64_t skip_bad;
    uint32_t parse_threads; /* per rank; never 0 */
    bool resume;
    uint32_t ranks; /* threads of this process; each has a share of the tables and of each batch */
    hotbed_plan plan;
    bool quiet;
} hotbed_run_options;

enum { HOTBED_EXIT_OK = 0, HOTBED_EXIT_FAILED = 1, HOTBED_EXIT_USAGE = 2 };

/* Read the command line. Returns -1 to go on, or the exit code after printing help, or a message on
 * stderr. */
int hotbed_run_options_parse(int argc, char **argv, hotbed_run_options *options);

/* The learning rate to use if none is given. */
float hotbed_train_default_rate(hotbed_optimizer_kind kind);

/* The name of an optimizer that --optimizer takes. */
void hotbed_train_optimizer_name(hotbed_optimizer_kind kind, char name[32]);

/* Print "hotbed-train: " and the message on stderr. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
void
hotbed_train_say(const char *format, ...);

/* Whether the option that getopt_long() has just returned was given by a part of its `name`, which
 * hotbed-ckpt does not accept either; it is then reported. */
bool hotbed_option_is_abbreviated(char **argv, const char *name);
