/* checkpoint/tool/tool_import_dump.c - hotbed-ckpt convert --from dynamicemb: a dump's tables.
 *
 * A table's files, each for all ranks or for none: <table>_emb_keys.rank_<r>.world_size_<W>, _emb_values, and
 * optionally _emb_scores, _emb_opt_values (or _opt_values, the older name), _counter_keys with
 * _counter_frequencies. They have no header: <table>_opt_args.json says what they contain. Where it says
 * nothing, an option must, except where older dumps had no choice: their rows and states are f32, and their
 * ranks have keys by roundrobin. */
#define _DEFAULT_SOURCE
#include "checkpoint/format/manifest.h"
#include "checkpoint/tool/tool_args.h"
#include "checkpoint/tool/tool_import.h"

#include "base/error.h"
#include "base/text.h"
#include "storage/types.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void raw_name(
    char name[TOOL_FILE_BYTES], const char *table, const char *part, uint32_t rank,
    uint32_t world) {
    snprintf(
        name, TOOL_FILE_BYTES, "%.63s_%s.rank_%" PRIu32 ".world_size_%" PRIu32, table, part, rank,
        world);
}

/* Fail: a part that the others need has no file. */
static hotbed_status missing(
    const tool_source *s, const char *table, const char *part, uint32_t rank, uint32_t world) {
    char name[TOOL_FILE_BYTES];
    raw_name(name, table, part, rank, world);
    return hotbed_fail_path(
        HOTBED_ERR_CORRUPT, s->directory.name, "%s/%s is missing", s->directory.name, name);
}

/* Open <table>_<part>.rank_<r>.world_size_<W>, if it exists. It has `rows` rows; *stride is set to
 * the bytes of each. */
static hotbed_status open_raw(
    tool_source *s, const char *table, const char *part, uint32_t rank, uint32_t world,
    uint64_t rows, uint64_t *stride, hotbed_import_column *out) {
    char name[TOOL_FILE_BYTES];
    hotbed_io_file *file = NULL;
    uint64_t bytes = 0;
    raw_name(name, table, part, rank, world);
    *stride = 0;
    HOTBED_TRY(tool_open_file(s, name, &file));
    if (file == NULL)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_io_size(file, &bytes));
    if (rows == 0 ? bytes != 0 : bytes % rows != 0)
        return tool_wrong(file, "its size does not fit the number of keys");
    *stride = rows == 0 ? 0 : bytes / rows;
    *out = (hotbed_import_column){.file = file, .stride = *stride};
    return HOTBED_OK;
}

/* Open a file of keys, and count them. */
static hotbed_status open_keys(
    tool_source *s, const char *table, const char *part, uint32_t rank, uint32_t world,
    uint64_t *rows, hotbed_import_column *out) {
    uint64_t bytes = 0, stride = 0;
    *rows = 0;
    HOTBED_TRY(open_raw(s, table, part, rank, world, 1, &stride, out));
    if (out->file == NULL)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_io_size(out->file, &bytes));
    if (bytes % sizeof(uint64_t) != 0)
        return tool_wrong(out->file, "keys are 8 bytes each");
    *rows = bytes / sizeof(uint64_t);
    out->stride = sizeof(uint64_t);
    return HOTBED_OK;
}

/* A table of a dump. */
typedef struct dump {
    hotbed_import_table *table;
    tool_args args;
    uint64_t score_bytes, state_bytes; /* per row; UINT64_MAX: no rank before had rows */
    const char *states;                /* the name of the files of states; NULL: there are none */
} dump;

/* Fail: the file does not say something that an option can say. */
static hotbed_status not_said(const dump *d, const char *what, const char *option) {
    if (!d->args.there)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, d->table->name,
            "table '%s' has no %s_opt_args.json, which has %s: give it with %s", d->table->name,
            d->table->name, what, option);
    return hotbed_fail(
        HOTBED_ERR_ARGUMENT, "%s does not say %s: give it with %s", d->args.file, what, option);
}

/* Fail: an option contradicts the file. */
static hotbed_status contradicts(
    const dump *d, const char *option, const char *given, const char *what, tool_arg which) {
    return hotbed_fail(
        HOTBED_ERR_ARGUMENT, "%s%s%s contradicts %s, where %s is '%s'", option,
        given[0] == '\0' ? "" : " ", given, d->args.file, what, d->args.values[which]);
}

static hotbed_status unknown_value(
    const dump *d, const char *what, tool_arg which, const char *known) {
    return hotbed_fail(
        HOTBED_ERR_UNSUPPORTED, "%s: %s is '%s', not %s", d->args.file, what, d->args.values[which],
        known);
}

/* Read a PyTorch dtype such as "torch.float16". *out stays if the file does not say it. */
static hotbed_status read_dtype(
    const dump *d, tool_arg which, const char *what, hotbed_dtype *out) {
    const char *value = d->args.values[which];
    if (value[0] == '\0')
        return HOTBED_OK;
    for (int i = 1; i <= (int)HOTBED_DTYPE_LAST; i++)
        if (hotbed_dtype_is_array((uint32_t)i) &&
            strcmp(
                strncmp(value, "torch.", 6) == 0 ? value + 6 : value,
                hotbed_dtype_word((hotbed_dtype)i)) == 0) {
            *out = (hotbed_dtype)i;
            return HOTBED_OK;
        }
    return unknown_value(d, what, which, "float32, float16 or bfloat16");
}

/* Set the types of rows and states, and the dim if the file says it. */
static hotbed_status set_types(const tool_source *s, dump *d) {
    uint64_t dim = 0;
    hotbed_dtype stated = 0;
    HOTBED_TRY(read_dtype(d, TOOL_ARG_EMBEDDING_DTYPE, "embedding_dtype", &stated));
    HOTBED_TRY(read_dtype(d, TOOL_ARG_STATE_DTYPE, "optim_state_dtype", &d->table->state_dtype));
    HOTBED_TRY(tool_args_integer(&d->args, TOOL_ARG_EMBEDDING_DIM, 4096, &dim));
    d->table->dim = (uint32_t)dim;
    hotbed_dtype given = s->options->dtype;
    if (given != 0 && stated != 0 && given != stated)
        return contradicts(
            d, "--dtype", hotbed_dtype_name(given), "embedding_dtype", TOOL_ARG_EMBEDDING_DTYPE);
    d->table->dtype = given != 0 ? given : stated != 0 ? stated : HOTBED_F32;
    return HOTBED_OK;
}

/* Compare the end of a value such as "EvictStrategy.KLru". */
static bool ends_with(const char *value, const char *word) {
    const char *dot = strrchr(value, '.');
    return strcasecmp(dot == NULL ? value : dot + 1, word) == 0;
}

/* Set what the scores are: dynamicemb writes KLru's as ages, and all times in nanoseconds. */
static hotbed_status set_order(dump *d) {
    static const char *const known[] = {"KLru", "KLfu", "KEpochLru", "KEpochLfu", "KCustomized"};
    const char *value = d->args.values[TOOL_ARG_EVICT_STRATEGY];
    bool found = value[0] == '\0';
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        found = found || ends_with(value, known[i]);
    if (!found)
        return unknown_value(
            d, "evict_strategy", TOOL_ARG_EVICT_STRATEGY,
            "KLru, KLfu, KEpochLru, KEpochLfu or KCustomized");
    if (d->table->ages && value[0] != '\0' && !ends_with(value, "KLru"))
        return contradicts(d, "--ages", "", "evict_strategy", TOOL_ARG_EVICT_STRATEGY);
    d->table->ages = d->table->ages || ends_with(value, "KLru");
    d->table->nanoseconds = true;
    return tool_args_integer(&d->args, TOOL_ARG_TIME, HOTBED_SCORE_MOST, &d->table->now);
}

/* Two scores per key: find their order, which the files do not show. */
static hotbed_status set_pair(const tool_source *s, const dump *d) {
    const char *value = d->args.values[TOOL_ARG_SCORE_STRATEGY], *given = s->options->scores;
    const char *stated = strcmp(value, "TIMESTAMP,LFU") == 0   ? "time,count"
                         : strcmp(value, "LFU,TIMESTAMP") == 0 ? "count,time"
                                                               : NULL;
    if (value[0] != '\0' && stated == NULL)
        return unknown_value(
            d, "score_strategy", TOOL_ARG_SCORE_STRATEGY, "TIMESTAMP,LFU or LFU,TIMESTAMP");
    if (given != NULL && stated != NULL && strcmp(given, stated) != 0)
        return contradicts(d, "--scores", given, "score_strategy", TOOL_ARG_SCORE_STRATEGY);
    if (given == NULL && stated == NULL)
        return not_said(d, "the order of the two scores of each key", "--scores");
    if (d->table->ages)
        return hotbed_fail_table(
            HOTBED_ERR_UNSUPPORTED, d->table->name,
            "table '%s' has two scores for each key, and they are ages", d->table->name);
    bool time_first = strcmp(given != NULL ? given : stated, "time,count") == 0;
    for (uint32_t r = 0; r < d->table->num_parts; r++) {
        hotbed_import_column *columns = d->table->parts[r].columns;
        columns[HOTBED_COLUMN_TIMES] = columns[HOTBED_COLUMN_SCORES];
        columns[time_first ? HOTBED_COLUMN_SCORES : HOTBED_COLUMN_TIMES].offset = sizeof(uint64_t);
    }
    return HOTBED_OK;
}

static hotbed_status set_scores(const tool_source *s, const dump *d) {
    if (d->score_bytes == 2 * sizeof(uint64_t))
        return set_pair(s, d);
    if (d->score_bytes != sizeof(uint64_t) && d->score_bytes != UINT64_MAX)
        return hotbed_fail_table(
            HOTBED_ERR_UNSUPPORTED, d->table->name,
            "table '%s': scores have %" PRIu64 " bytes, not 8 or 16", d->table->name,
            d->score_bytes);
    return HOTBED_OK;
}

/* Check that the keys of several ranks are keys, and not positions in a rank's block of them. Dumps
 * that do not say which rank has which key are roundrobin, if the keys agree. */
static hotbed_status check_owners(const dump *d, hotbed_key_type type) {
    const char *value = d->args.values[TOOL_ARG_DIST_TYPE];
    const hotbed_import_table *t = d->table;
    if (strcmp(value, "roundrobin") == 0 || strcmp(value, "hash_roundrobin") == 0 ||
        t->num_parts == 1)
        return HOTBED_OK;
    if (strcmp(value, "continuous") == 0)
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED,
            "%s: dist_type is 'continuous', with which the files of %" PRIu32
            " ranks have positions instead of keys: dump with 'roundrobin', or on one rank",
            d->args.file, t->num_parts);
    if (value[0] != '\0')
        return unknown_value(
            d, "dist_type", TOOL_ARG_DIST_TYPE, "roundrobin, hash_roundrobin or continuous");
    uint64_t keys[512];
    for (uint32_t r = 0; r < t->num_parts; r++)
        for (uint64_t at = 0; at < t->parts[r].rows; at += 512) {
            size_t n = t->parts[r].rows - at < 512 ? (size_t)(t->parts[r].rows - at) : 512;
            HOTBED_TRY(hotbed_io_read(
                t->parts[r].columns[HOTBED_COLUMN_KEYS].file, keys, n * sizeof *keys,
                at * sizeof *keys));
            for (size_t i = 0; i < n; i++)
                if (keys[i] % t->num_parts != r)
                    return hotbed_error_rank(
                        hotbed_fail_table_key(
                            HOTBED_ERR_UNSUPPORTED, t->name, keys[i], type,
                            "table '%s': nothing says which dist_type it has, and it is not "
                            "roundrobin: rank %" PRIu32 " of %" PRIu32 " has key %s",
                            t->name, r, t->num_parts, hotbed_key_text(keys[i], type).text),
                        r);
        }
    return HOTBED_OK;
}

/* Determine which optimizer wrote the states. */
static hotbed_status find_raw_optimizer(
    const tool_source *s, const dump *d, hotbed_optimizer_kind *out) {
    static const struct {
        const char *name;
        hotbed_optimizer_kind kind;
    } known[] = {
        {"sgd", HOTBED_OPT_SGD},
        {"exact_sgd", HOTBED_OPT_SGD},
        {"adam", HOTBED_OPT_ADAM},
        {"exact_adagrad", HOTBED_OPT_ADAGRAD},
        {"exact_row_wise_adagrad", HOTBED_OPT_ROWWISE_ADAGRAD},
        {"ftrl", HOTBED_OPT_FTRL},
    };
    const char *value = d->args.values[TOOL_ARG_OPT_TYPE], *given = s->options->optimizer;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcasecmp(value, known[i].name) != 0)
            continue;
        if (given != NULL && strcmp(given, hotbed_optimizer_name(known[i].kind)) != 0)
            return contradicts(d, "--optimizer", given, "opt_type", TOOL_ARG_OPT_TYPE);
        *out = known[i].kind;
        return HOTBED_OK;
    }
    if (value[0] != '\0')
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED,
            "%s: opt_type is '%s', whose states cannot be imported; without the files %s the rows "
            "can",
            d->args.file, value, d->states);
    return given != NULL ? HOTBED_OK : not_said(d, "opt_type", "--optimizer");
}

/* Read the parameters that the optimizer uses, under dynamicemb's names. */
static hotbed_status read_parameters(const dump *d, hotbed_optimizer *o) {
    const hotbed_optimizer_parameter *p;
    for (uint32_t i = 0; (p = hotbed_optimizer_parameter_at(i)) != NULL; i++) {
        float value = hotbed_optimizer_value(o, p);
        if ((hotbed_optimizer_describe(o->kind)->parameters >> i & 1U) == 0)
            continue;
        HOTBED_TRY(tool_args_parameter(&d->args, p, &value));
        hotbed_optimizer_set(o, p, value);
    }
    return HOTBED_OK;
}

/* Set the optimizer and its arguments, and check the width of its states. A row-wise state is one
 * number, which older dumps pad to 16 bytes or, beside rows of 16 bits, to 32. */
static hotbed_status set_raw_optimizer(tool_source *s, const dump *d) {
    hotbed_optimizer_kind seen = HOTBED_OPT_SGD;
    const hotbed_import_table *t = d->table;
    if (d->states != NULL)
        HOTBED_TRY(find_raw_optimizer(s, d, &seen));
    HOTBED_TRY(tool_set_optimizer(s, seen));
    s->import.optimizer_steps = 0;
    if (d->states == NULL)
        return HOTBED_OK;
    hotbed_optimizer *o = &s->import.optimizer;
    HOTBED_TRY(read_parameters(d, o));
    HOTBED_TRY(hotbed_optimizer_check(o));
    HOTBED_TRY(tool_args_integer(&d->args, TOOL_ARG_ITERS, UINT32_MAX, &s->import.optimizer_steps));
    uint64_t element = hotbed_dtype_bytes(t->state_dtype), width = d->state_bytes;
    uint64_t right = element * (hotbed_optimizer_state_dim(o->kind, 0, t->dim) +
                                hotbed_optimizer_state_dim(o->kind, 1, t->dim));
    bool padded = o->kind == HOTBED_OPT_ROWWISE_ADAGRAD && (width == 16 || width == 32);
    if (width == right || padded || width == UINT64_MAX)
        return HOTBED_OK;
    return hotbed_fail_table(
        HOTBED_ERR_CORRUPT, t->name,
        "table '%s': %" PRIu64 " bytes of optimizer state per row, but %s with dim %" PRIu32
        " has %" PRIu64,
        t->name, width, hotbed_optimizer_name(o->kind), t->dim, right);
}

/* Check that a rank's file has as many bytes per row as the files of the ranks before it. */
static hotbed_status check_width(
    const hotbed_import_table *t, uint32_t rank, const char *what, uint32_t column, uint64_t *all) {
    uint64_t width = t->parts[rank].columns[column].stride;
    if (t->parts[rank].rows == 0 || t->parts[rank].columns[column].file == NULL)
        return HOTBED_OK;
    if (*all != UINT64_MAX && *all != width)
        return hotbed_error_rank(
            hotbed_fail_table(
                HOTBED_ERR_CORRUPT, t->name,
                "table '%s': rank %" PRIu32 " has %" PRIu64
                " bytes of %s per row, the ranks before it %" PRIu64,
                t->name, rank, width, what, *all),
            rank);
    *all = width;
    return HOTBED_OK;
}

static hotbed_status set_dim(const dump *d, const hotbed_io_file *file, uint64_t width) {
    hotbed_import_table *t = d->table;
    uint64_t element = hotbed_dtype_bytes(t->dtype), dim = width / element;
    if (dim < 1 || dim > 4096 || width % element != 0 || (t->dim != 0 && t->dim != dim))
        return hotbed_fail_path(
            HOTBED_ERR_CORRUPT, file->name,
            "%s: %" PRIu64 " bytes per row are not %s%" PRIu32 " elements of %s", file->name, width,
            t->dim == 0 ? "1 to " : "", t->dim == 0 ? 4096 : t->dim, hotbed_dtype_name(t->dtype));
    t->dim = (uint32_t)dim;
    return HOTBED_OK;
}

static hotbed_status add_raw_counts(tool_source *s, hotbed_import_table *t, uint32_t rank) {
    hotbed_import_part *part = &t->parts[rank];
    uint32_t world = t->num_parts;
    uint64_t width = 0;
    HOTBED_TRY(
        open_keys(s, t->name, "counter_keys", rank, world, &part->counted, &part->counted_keys));
    HOTBED_TRY(open_raw(
        s, t->name, "counter_frequencies", rank, world,
        part->counted_keys.file == NULL ? 1 : part->counted, &width, &part->counts));
    if ((part->counted_keys.file == NULL) != (part->counts.file == NULL))
        return missing(
            s, t->name, part->counts.file == NULL ? "counter_frequencies" : "counter_keys", rank,
            world);
    if (part->counted > 0 && width != sizeof(uint64_t))
        return hotbed_error_rank(
            hotbed_fail_table(
                HOTBED_ERR_CORRUPT, t->name,
                "table '%s': counters of rank %" PRIu32 " have %" PRIu64 " bytes, not 8", t->name,
                rank, width),
            rank);
    return HOTBED_OK;
}

static hotbed_status add_raw_part(tool_source *s, dump *d, uint32_t rank) {
    hotbed_import_table *t = d->table;
    hotbed_import_part *part = &t->parts[rank];
    hotbed_import_column *columns = part->columns;
    uint64_t width = 0;
    uint32_t world = t->num_parts;
    HOTBED_TRY(
        open_keys(s, t->name, "emb_keys", rank, world, &part->rows, &columns[HOTBED_COLUMN_KEYS]));
    if (columns[HOTBED_COLUMN_KEYS].file == NULL)
        return missing(s, t->name, "emb_keys", rank, world);
    HOTBED_TRY(open_raw(
        s, t->name, "emb_values", rank, world, part->rows, &width, &columns[HOTBED_COLUMN_VALUES]));
    if (columns[HOTBED_COLUMN_VALUES].file == NULL)
        return missing(s, t->name, "emb_values", rank, world);
    if (part->rows > 0)
        HOTBED_TRY(set_dim(d, columns[HOTBED_COLUMN_VALUES].file, width));
    HOTBED_TRY(open_raw(
        s, t->name, "emb_scores", rank, world, part->rows, &width, &columns[HOTBED_COLUMN_SCORES]));
    columns[HOTBED_COLUMN_SCORES].is_signed = true;
    HOTBED_TRY(check_width(t, rank, "scores", HOTBED_COLUMN_SCORES, &d->score_bytes));
    if (d->states != NULL) {
        HOTBED_TRY(open_raw(
            s, t->name, d->states, rank, world, part->rows, &width, &columns[HOTBED_COLUMN_STATE]));
        HOTBED_TRY(check_width(t, rank, "optimizer state", HOTBED_COLUMN_STATE, &d->state_bytes));
    }
    return add_raw_counts(s, t, rank);
}

/* Find the name of the files of states, of any rank. */
static hotbed_status find_states(const tool_source *s, dump *d) {
    static const char *const parts[] = {"emb_opt_values", "opt_values"};
    char name[TOOL_FILE_BYTES];
    for (size_t i = 0; i < 2; i++)
        for (uint32_t r = 0; r < d->table->num_parts; r++) {
            raw_name(name, d->table->name, parts[i], r, d->table->num_parts);
            if (tool_find_name(s, name) == NULL)
                continue;
            if (d->states != NULL && d->states != parts[i])
                return hotbed_fail_path(
                    HOTBED_ERR_CORRUPT, s->directory.name, "%s/%s exists beside files named %s",
                    s->directory.name, name, d->states);
            d->states = parts[i];
        }
    return HOTBED_OK;
}

/* The second state follows the first one in a row. */
static void split_states(const tool_source *s, const dump *d) {
    hotbed_import_table *t = d->table;
    if (hotbed_optimizer_states(s->import.optimizer.kind) != 2)
        return;
    for (uint32_t r = 0; r < t->num_parts; r++) {
        hotbed_import_column *columns = t->parts[r].columns;
        columns[HOTBED_COLUMN_STATE + 1] = columns[HOTBED_COLUMN_STATE];
        columns[HOTBED_COLUMN_STATE + 1].offset =
            hotbed_dtype_bytes(t->state_dtype) *
            hotbed_optimizer_state_dim(s->import.optimizer.kind, 0, t->dim);
    }
}

/* Check that each optional file exists for all ranks or for none. */
static hotbed_status check_ranks(const tool_source *s, const dump *d) {
    enum { SCORES, STATES, COUNTED, COUNTS, PARTS };
    const hotbed_import_table *t = d->table;
    const char *const names[] = {"emb_scores", d->states, "counter_keys", "counter_frequencies"};
    bool first[PARTS] = {false};
    for (uint32_t r = 0; r < t->num_parts; r++) {
        const hotbed_import_part *part = &t->parts[r];
        const hotbed_io_file *files[PARTS] = {
            part->columns[HOTBED_COLUMN_SCORES].file, part->columns[HOTBED_COLUMN_STATE].file,
            part->counted_keys.file, part->counts.file};
        for (int i = 0; i < PARTS; i++) {
            bool here = files[i] != NULL;
            if (r == 0)
                first[i] = here;
            if (here != first[i])
                return missing(s, t->name, names[i], here ? 0 : r, t->num_parts);
        }
    }
    return HOTBED_OK;
}

/* Report what the import does not take from a file that is there, or assumes because it lacks a
 * member: the optimizer of rows without states, and the number of steps. */
static void report_lacking(const tool_source *s, const dump *d) {
    const hotbed_optimizer_kind kind = s->import.optimizer.kind;
    const char *type = d->args.values[TOOL_ARG_OPT_TYPE];
    const bool stateless =
        type[0] == '\0' || strcasecmp(type, "sgd") == 0 || strcasecmp(type, "exact_sgd") == 0;
    if (d->states == NULL && !stateless && s->options->optimizer == NULL)
        fprintf(
            stderr,
            "hotbed-ckpt: warning: %s: opt_type is '%s', but table '%s' has no files of states: "
            "the "
            "rows are imported without an optimizer's states; with --optimizer the states of one "
            "start anew\n",
            d->args.file, type, d->table->name);
    if (d->states != NULL && hotbed_optimizer_describe(kind)->counts_steps &&
        d->args.values[TOOL_ARG_ITERS][0] == '\0')
        fprintf(
            stderr,
            "hotbed-ckpt: warning: %s does not say iters: the states of table '%s' are read as "
            "those of %s before its first step\n",
            d->args.file, d->table->name, hotbed_optimizer_name(kind));
}

/* Report what is assumed of a table without <table>_opt_args.json. A width alone does not show the
 * type of the rows, so there must be states with a width that fits too. */
static hotbed_status check_assumed(const tool_source *s, const dump *d) {
    if (d->args.there)
        report_lacking(s, d);
    if (d->args.there || s->options->dtype != 0)
        return HOTBED_OK;
    if (d->states == NULL)
        return not_said(d, "the type of the rows", "--dtype");
    fprintf(
        stderr,
        "hotbed-ckpt: warning: table '%s' has no %s_opt_args.json: its rows are read as %" PRIu32
        " elements of f32, its states as the states of %s before the first step, its scores as "
        "%s\n",
        d->table->name, d->table->name, d->table->dim,
        hotbed_optimizer_name(s->import.optimizer.kind), d->table->ages ? "ages" : "values");
    return HOTBED_OK;
}

static hotbed_status add_raw_table(tool_source *s, const char *name, uint32_t world) {
    dump d = {.score_bytes = UINT64_MAX, .state_bytes = UINT64_MAX};
    char arguments[TOOL_FILE_BYTES];
    hotbed_io_file *file = NULL;
    HOTBED_TRY(tool_add_table(s, name, world, &d.table));
    d.table->kind = HOTBED_TABLE_HASH;
    snprintf(arguments, sizeof arguments, "%.63s_opt_args.json", name);
    HOTBED_TRY(tool_open_file(s, arguments, &file));
    HOTBED_TRY(tool_args_read(file, &d.args));
    HOTBED_TRY(set_types(s, &d));
    HOTBED_TRY(set_order(&d));
    HOTBED_TRY(find_states(s, &d));
    for (uint32_t r = 0; r < world; r++)
        HOTBED_TRY(add_raw_part(s, &d, r));
    HOTBED_TRY(check_ranks(s, &d));
    HOTBED_TRY(check_owners(&d, s->import.key_type == 0 ? HOTBED_KEY_I64 : s->import.key_type));
    HOTBED_TRY(set_scores(s, &d));
    if (d.table->dim == 0)
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED, "table '%s' has no rows, so its dim is unknown", name);
    const hotbed_optimizer before = s->import.optimizer;
    uint64_t steps = s->import.optimizer_steps;
    HOTBED_TRY(set_raw_optimizer(s, &d));
    if (before.kind != 0 && (before.kind != s->import.optimizer.kind ||
                             !hotbed_manifest_same_arguments(&before, &s->import.optimizer) ||
                             steps != s->import.optimizer_steps))
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED,
            "table '%s' has another optimizer, or other arguments of it, than the tables before it "
            "(%s after %" PRIu64 " steps, before %s after %" PRIu64 "): import it by itself",
            name, hotbed_optimizer_name(s->import.optimizer.kind), s->import.optimizer_steps,
            hotbed_optimizer_name(before.kind), steps);
    split_states(s, &d);
    return check_assumed(s, &d);
}

/* Each table is found by its file <table>_emb_keys.rank_0.world_size_<W>. */
hotbed_status tool_add_dump(tool_source *s) {
    static const char middle[] = "_emb_keys.rank_0.world_size_";
    for (size_t i = 0; i < s->num_names; i++) {
        const char *file = s->names[i].text, *at = strstr(file, middle);
        if (at == NULL)
            continue;
        char table[64], *end;
        unsigned long world = strtoul(at + strlen(middle), &end, 10);
        if (!tool_strip(file, at, table) || *end != '\0' || world < 1)
            return hotbed_fail(HOTBED_ERR_CORRUPT, "%s: not a valid table name", file);
        if (world > s->num_names)
            return hotbed_fail(
                HOTBED_ERR_CORRUPT, "%s: %lu ranks, but %s has only %" PRIu64 " files", file, world,
                s->options->paths[0], s->num_names);
        for (uint32_t t = 0; t < s->import.num_tables; t++)
            if (strcmp(s->import.tables[t].name, table) == 0)
                return hotbed_fail(
                    HOTBED_ERR_CORRUPT, "table '%s' has files for two numbers of ranks", table);
        HOTBED_TRY(add_raw_table(s, table, (uint32_t)world));
    }
    return HOTBED_OK;
}
