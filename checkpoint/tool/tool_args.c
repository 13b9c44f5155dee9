/* checkpoint/tool/tool_args.c - reads <table>_opt_args.json of a dynamicemb dump. */
#include "checkpoint/tool/tool_args.h"

#include "base/error.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MOST = 65536, DEPTH_MOST = 16 };

static const char *const names[TOOL_ARGS] = {
    [TOOL_ARG_OPT_TYPE] = "opt_type",
    [TOOL_ARG_LR] = "lr",
    [TOOL_ARG_BETA1] = "beta1",
    [TOOL_ARG_BETA2] = "beta2",
    [TOOL_ARG_EPS] = "eps",
    [TOOL_ARG_WEIGHT_DECAY] = "weight_decay",
    [TOOL_ARG_INITIAL_ACCUMULATOR] = "initial_accumulator_value",
    [TOOL_ARG_ITERS] = "iters",
    [TOOL_ARG_LEARNING_RATE_POWER] = "learning_rate_power",
    [TOOL_ARG_FTRL_BETA] = "ftrl_beta",
    [TOOL_ARG_L1_REG] = "l1_reg",
    [TOOL_ARG_L2_REG] = "l2_reg",
    [TOOL_ARG_EVICT_STRATEGY] = "evict_strategy",
    [TOOL_ARG_DIST_TYPE] = "dist_type",
    [TOOL_ARG_EMBEDDING_DTYPE] = "embedding_dtype",
    [TOOL_ARG_EMBEDDING_DIM] = "embedding_dim",
    [TOOL_ARG_STATE_DTYPE] = "optim_state_dtype",
    [TOOL_ARG_SCORE_STRATEGY] = "score_strategy",
    [TOOL_ARG_TIME] = "hotbed_time",
};

/* The text that is not read yet. After an error `at` is at its final NUL. */
typedef struct text {
    const char *at;
    bool bad;
} text;

static void fail(text *t) {
    t->bad = true;
    t->at += strlen(t->at);
}

static void skip_space(text *t) {
    t->at += strspn(t->at, " \t\r\n");
}

static bool take(text *t, char c) {
    skip_space(t);
    if (*t->at != c)
        return false;
    t->at++;
    return true;
}

static void add(char out[TOOL_ARG_BYTES], size_t *n, char c) {
    if (*n + 1 < TOOL_ARG_BYTES)
        out[(*n)++] = c;
}

/* Read a string. A character that is escaped as \u becomes '?': no value of interest has one. */
static void read_string(text *t, char out[TOOL_ARG_BYTES]) {
    size_t n = 0;
    if (!take(t, '"'))
        fail(t);
    while (!t->bad && *t->at != '"') {
        if ((unsigned char)*t->at < 0x20) { /* also the end of the text */
            fail(t);
            break;
        }
        bool escaped = *t->at == '\\';
        char c = escaped ? *++t->at : *t->at;
        bool four = escaped && c == 'u' && strspn(t->at + 1, "0123456789abcdefABCDEF") >= 4;
        if (escaped && (c == '\0' || strchr("\"\\/bfnrt", c) == NULL) && !four)
            fail(t);
        else
            t->at += four ? 5 : 1;
        add(out, &n, escaped && strchr("\"\\/", c) == NULL ? '?' : c);
    }
    if (!t->bad)
        t->at++;
    out[n] = '\0';
}

/* Read a number or a word such as true. */
static void read_word(text *t, char out[TOOL_ARG_BYTES]) {
    size_t n = strcspn(t->at, " \t\r\n,:[]{}\""), kept = 0;
    if (n == 0)
        fail(t);
    for (size_t i = 0; i < n && !t->bad; i++)
        add(out, &kept, t->at[i]);
    if (!t->bad)
        t->at += n;
    out[kept] = '\0';
    if (strcmp(out, "null") == 0)
        out[0] = '\0';
}

/* Read any value. An array or object is skipped; the text that it gives is valid nowhere. */
static void read_value(text *t, int depth, char out[TOOL_ARG_BYTES]) {
    skip_space(t);
    char open = *t->at;
    if (open == '"') {
        read_string(t, out);
        return;
    }
    if (open != '{' && open != '[') {
        read_word(t, out);
        return;
    }
    char close = open == '{' ? '}' : ']', inner[TOOL_ARG_BYTES];
    t->at++;
    if (depth == DEPTH_MOST)
        fail(t);
    if (!take(t, close)) {
        do {
            if (open == '{')
                read_string(t, inner);
            if (open == '{' && !take(t, ':'))
                fail(t);
            read_value(t, depth + 1, inner);
        } while (!t->bad && take(t, ','));
        if (!take(t, close))
            fail(t);
    }
    snprintf(out, TOOL_ARG_BYTES, "%c...%c", open, close);
}

/* Read the members of the object that the file consists of. Of equal names the last one counts. */
static void read_members(text *t, tool_args *out) {
    char name[TOOL_ARG_BYTES], value[TOOL_ARG_BYTES];
    if (!take(t, '{'))
        fail(t);
    else if (!take(t, '}')) {
        do {
            read_string(t, name);
            if (!take(t, ':'))
                fail(t);
            read_value(t, 0, value);
            for (int i = 0; i < TOOL_ARGS && !t->bad; i++)
                if (strcmp(name, names[i]) == 0)
                    memcpy(out->values[i], value, sizeof value);
        } while (!t->bad && take(t, ','));
        if (!take(t, '}'))
            fail(t);
    }
    skip_space(t);
    t->bad = t->bad || *t->at != '\0';
}

hotbed_status tool_args_read(hotbed_io_file *file, tool_args *out) {
    static char buffer[FILE_BYTES_MOST + 1];
    uint64_t bytes = 0;
    *out = (tool_args){.there = file != NULL};
    if (file == NULL)
        return HOTBED_OK;
    snprintf(out->file, sizeof out->file, "%s", file->name);
    HOTBED_TRY(hotbed_io_size(file, &bytes));
    if (bytes > FILE_BYTES_MOST)
        return hotbed_fail_path_limit(
            HOTBED_ERR_CORRUPT, file->name, NULL, bytes, FILE_BYTES_MOST,
            "%s has %" PRIu64 " bytes, at most %d are read", file->name, bytes, FILE_BYTES_MOST);
    HOTBED_TRY(hotbed_io_read(file, buffer, (size_t)bytes, 0));
    buffer[bytes] = '\0';
    text t = {.at = buffer};
    read_members(&t, out);
    if (t.bad || strlen(buffer) != bytes)
        return hotbed_fail_path(
            HOTBED_ERR_CORRUPT, file->name, "%s is not a JSON object", file->name);
    return HOTBED_OK;
}

static hotbed_status wrong(const tool_args *args, tool_arg which, const char *right) {
    return hotbed_fail(
        HOTBED_ERR_CORRUPT, "%s: %s is '%s', not %s", args->file, names[which], args->values[which],
        right);
}

/* The file's name of a parameter; TOOL_ARGS: dynamicemb has no such parameter. */
static tool_arg arg_of(const hotbed_optimizer_parameter *parameter) {
    static const struct {
        const char *ours, *theirs;
    } renamed[] = {{"learning_rate", "lr"}, {"initial_accumulator", "initial_accumulator_value"}};
    const char *name = parameter->name;
    int which = 0;
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
        name = strcmp(name, renamed[i].ours) == 0 ? renamed[i].theirs : name;
    while (which < TOOL_ARGS && strcmp(names[which], name) != 0)
        which++;
    return (tool_arg)which;
}

hotbed_status tool_args_parameter(
    const tool_args *args, const hotbed_optimizer_parameter *parameter, float *out) {
    const tool_arg which = arg_of(parameter);
    if (which == TOOL_ARGS || args->values[which][0] == '\0')
        return HOTBED_OK;
    char *end;
    const double number = strtod(args->values[which], &end);
    if (*end != '\0' || !isfinite((float)number) || (number < 0 && parameter->most > 0.0F))
        return wrong(args, which, parameter->most > 0.0F ? "a number from 0 on" : "a number");
    *out = (float)number;
    return HOTBED_OK;
}

hotbed_status tool_args_integer(
    const tool_args *args, tool_arg which, uint64_t most, uint64_t *out) {
    const char *value = args->values[which];
    char *end, right[64];
    errno = 0;
    uint64_t number = strtoull(value, &end, 10);
    if (value[0] == '\0')
        return HOTBED_OK;
    snprintf(right, sizeof right, "an integer from 0 to %" PRIu64, most);
    if (value[0] < '0' || value[0] > '9' || *end != '\0' || errno != 0 || number > most)
        return wrong(args, which, right);
    *out = number;
    return HOTBED_OK;
}
