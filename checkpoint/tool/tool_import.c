/* checkpoint/tool/tool_import.c - hotbed-ckpt convert --from: .npy files and dynamicemb's dumps.
 *
 *   npy         <table>.weight.npy, and optionally .weight_id, .metadata, .times, and all states of
 *               one optimizer: .exp_avg and .exp_avg_sq, .sum, or .momentum1. A table without
 *               .weight_id is static.
 *   dynamicemb  <table>_opt_args.json, <table>_emb_keys.rank_<r>.world_size_<W>, _emb_values, and
 *               optionally _emb_scores, _emb_opt_values (or _opt_values, the older name),
 *               _counter_keys with _counter_frequencies, each for all ranks
 *
 * A dump's other files have no header. The import takes from <table>_opt_args.json what they contain.
 * Where it says nothing, an option must, except where older dumps had no choice: their rows and
 * states are f32, and their ranks have keys by roundrobin.
 *
 * A directory is imported completely or not at all: a file that no table uses is an error. */
#define _DEFAULT_SOURCE
#include "checkpoint/format/manifest.h"
#include "checkpoint/import.h"
#include "checkpoint/tool/tool.h"
#include "checkpoint/tool/tool_args.h"

#include "base/error.h"
#include "base/stream.h"
#include "base/text.h"
#include "storage/types.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { NAME_BYTES = 256 };

typedef struct listed {
    char text[NAME_BYTES];
    bool taken;
} listed;

typedef struct source {
    const tool_options *options;
    hotbed_io_file directory;
    hotbed_io_file *files; /* [num_names] */
    uint32_t num_files;
    listed *names; /* of all files in the directory, sorted */
    uint64_t num_names, names_capacity;
    hotbed_import import;
} source;

/* --- names ------------------------------------------------------------------------------------------------- */

/* Compare texts: both arguments begin with one. */
static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

static hotbed_status read_names(source *s, const char *path) {
    DIR *list = opendir(path);
    if (list == NULL)
        return hotbed_io_fail("cannot read", path, -errno);
    hotbed_status status = HOTBED_OK;
    errno = 0;
    for (struct dirent *item; status == HOTBED_OK && (item = readdir(list)) != NULL;) {
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0)
            continue;
        if (!hotbed_reserve(&s->names, s->num_names, 1, &s->names_capacity, sizeof *s->names))
            status = hotbed_fail(
                HOTBED_ERR_MEMORY, "no memory for %" PRIu64 " files of %s", s->num_names + 1, path);
        else
            snprintf(s->names[s->num_names++].text, NAME_BYTES, "%s", item->d_name);
        errno = 0;
    }
    if (status == HOTBED_OK && errno != 0)
        status = hotbed_io_fail("cannot read", path, -errno);
    closedir(list);
    if (s->num_names > 0)
        qsort(s->names, s->num_names, sizeof *s->names, by_name);
    return status;
}

static listed *find_name(const source *s, const char *text) {
    return s->num_names == 0 ? NULL
                             : bsearch(text, s->names, s->num_names, sizeof *s->names, by_name);
}

static bool is_state_of(const char *name, hotbed_optimizer_kind kind, uint32_t state) {
    char suffix[64];
    snprintf(suffix, sizeof suffix, ".%s.npy", hotbed_optimizer_state_name(kind, state));
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* Whether a file has the name of an optimizer's state: <table>.<state>.npy. */
static bool is_state(const char *name) {
    for (int kind = 1; kind <= (int)HOTBED_OPT_LAST; kind++)
        for (uint32_t i = 0; i < hotbed_optimizer_states((hotbed_optimizer_kind)kind); i++)
            if (is_state_of(name, (hotbed_optimizer_kind)kind, i))
                return true;
    return false;
}

/* Check that a table uses every file. Errors: CORRUPT (a file is not used), ARGUMENT (it is a state
 * of another optimizer than --optimizer names). */
static hotbed_status check_taken(const source *s) {
    const char *optimizer = s->options->optimizer;
    for (size_t i = 0; i < s->num_names; i++)
        if (!s->names[i].taken && optimizer != NULL && is_state(s->names[i].text))
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "%s/%s is a state that --optimizer %s does not have",
                s->options->paths[0], s->names[i].text, optimizer);
        else if (!s->names[i].taken)
            return hotbed_fail(
                HOTBED_ERR_CORRUPT,
                "%s/%s belongs to no table that is imported as %s: move it away, or add the "
                "missing files",
                s->options->paths[0], s->names[i].text, s->options->from);
    return HOTBED_OK;
}

/* Set `table` to `name` without `suffix`. Returns false if `name` does not end so, or has invalid
 * characters. */
static bool strip(const char *name, const char *suffix, char table[64]) {
    size_t n = strlen(name), m = strlen(suffix);
    if (n <= m || n - m > 63 || strcmp(name + n - m, suffix) != 0)
        return false;
    memcpy(table, name, n - m);
    table[n - m] = '\0';
    return strspn(table, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") ==
           n - m;
}

/* Open a file of the directory, if it exists, and mark it as taken. It stays open to the end. *out
 * is NULL if it does not exist. */
static hotbed_status open_file(source *s, const char *text, hotbed_io_file **out) {
    listed *found = find_name(s, text);
    *out = NULL;
    if (found == NULL)
        return HOTBED_OK;
    if (found->taken)
        return hotbed_fail(HOTBED_ERR_CORRUPT, "%s belongs to two tables", text);
    found->taken = true;
    *out = &s->files[s->num_files++];
    return hotbed_io_open(tool_files(), &s->directory, text, HOTBED_IO_READ, *out);
}

/* Add a table, and allocate its parts. Each table has a file of its own. */
static hotbed_status add_table(
    source *s, const char *name, uint32_t num_parts, hotbed_import_table **out) {
    if (s->import.num_tables == HOTBED_TABLES_MOST)
        return hotbed_fail_bound(
            HOTBED_ERR_UNSUPPORTED, HOTBED_TABLES_MOST, "%s has more than %d tables",
            s->options->paths[0], HOTBED_TABLES_MOST);
    hotbed_import_table *t = &s->import.tables[s->import.num_tables];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->num_parts = num_parts;
    t->ages = s->options->ages;
    t->state_dtype = HOTBED_F32;
    t->parts = hotbed_new(num_parts * sizeof *t->parts);
    HOTBED_TRY_MEMORY(t->parts, "%" PRIu32 " parts", num_parts);
    s->import.num_tables++;
    *out = t;
    return HOTBED_OK;
}

static hotbed_status wrong(const hotbed_io_file *file, const char *what) {
    return hotbed_fail_path(HOTBED_ERR_CORRUPT, file->name, "%s: %s", file->name, what);
}

static hotbed_status unknown_optimizer(const char *name) {
#define HOTBED_WORD(KIND, name, ...) ", " #name
    const char *names = &HOTBED_OPTIMIZERS(HOTBED_WORD)[2];
#undef HOTBED_WORD
    return hotbed_fail(HOTBED_ERR_ARGUMENT, "--optimizer takes one of %s, not '%s'", names, name);
}

/* Set the optimizer: the one that --optimizer names, or else the one that the files imply. */
static hotbed_status set_optimizer(source *s, hotbed_optimizer_kind seen) {
    hotbed_optimizer_kind kind = seen;
    if (s->options->optimizer != NULL) {
        kind = 0;
        for (int i = 1; i <= (int)HOTBED_OPT_LAST; i++)
            if (strcmp(s->options->optimizer, hotbed_optimizer_name((hotbed_optimizer_kind)i)) == 0)
                kind = (hotbed_optimizer_kind)i;
        if (kind == 0)
            return unknown_optimizer(s->options->optimizer);
    }
    hotbed_optimizer_init(&s->import.optimizer);
    s->import.optimizer.kind = kind;
    return HOTBED_OK;
}

/* --- .npy --------------------------------------------------------------------------------------------------- */

/* Open <table>.<column>.npy, if it exists, as a column of a part. */
static hotbed_status open_npy(
    source *s, const char *table, const char *column, hotbed_npy *npy, hotbed_import_column *out) {
    char name[NAME_BYTES];
    hotbed_io_file *file = NULL;
    *npy = (hotbed_npy){.dims = 0};
    snprintf(name, sizeof name, "%.63s.%s.npy", table, column);
    HOTBED_TRY(open_file(s, name, &file));
    if (file == NULL)
        return HOTBED_OK;
    hotbed_status status = hotbed_npy_read(file, npy);
    *out = (hotbed_import_column){
        .file = file, .offset = npy->offset, .stride = npy->width * npy->bytes};
    return status;
}

/* Open a column that must have `width` elements of one of the types for each row of the weights. */
static hotbed_status open_column(
    source *s, const hotbed_import_table *t, const char *column, uint64_t width, const char *types,
    uint32_t bytes, hotbed_import_column *out) {
    hotbed_npy npy;
    hotbed_status status = open_npy(s, t->name, column, &npy, out);
    if (status != HOTBED_OK || npy.dims == 0)
        return status;
    if (npy.rows != t->parts[0].rows || npy.width != width || strchr(types, npy.type) == NULL ||
        npy.bytes != bytes)
        return hotbed_fail_path(
            HOTBED_ERR_CORRUPT, out->file->name,
            "%s has %" PRIu64 " rows of %" PRIu64 " elements of <%c%" PRIu32
            "; the weights have %" PRIu64 " rows, and need %" PRIu64 " of %" PRIu32 " bytes",
            out->file->name, npy.rows, npy.width, npy.type, npy.bytes, t->parts[0].rows, width,
            bytes);
    out->is_signed = npy.type == 'i';
    return HOTBED_OK;
}

/* Open the keys. Their type is the value of --keys, or else the type that all tables have. */
static hotbed_status open_keys_column(source *s, hotbed_import_table *t) {
    hotbed_npy npy;
    hotbed_import_column *keys = &t->parts[0].columns[HOTBED_COLUMN_KEYS];
    HOTBED_TRY(open_npy(s, t->name, "weight_id", &npy, keys));
    t->kind = keys->file == NULL ? HOTBED_TABLE_STATIC : HOTBED_TABLE_HASH;
    if (keys->file == NULL)
        return HOTBED_OK;
    if (npy.width != 1 || npy.type == 'f' || npy.bytes != 8)
        return wrong(keys->file, "there must be one key, <i8 or <u8, for each row of the weights");
    if (npy.rows != t->parts[0].rows)
        return hotbed_fail_path(
            HOTBED_ERR_CORRUPT, keys->file->name,
            "%s has %" PRIu64 " keys for %" PRIu64 " rows of the weights", keys->file->name,
            npy.rows, t->parts[0].rows);
    hotbed_key_type seen = npy.type == 'u' ? HOTBED_KEY_U64 : HOTBED_KEY_I64;
    if (s->options->key_type != 0)
        return HOTBED_OK;
    if (s->import.key_type != 0 && s->import.key_type != seen)
        return wrong(keys->file, "its key type differs from other tables: choose one with --keys");
    s->import.key_type = seen;
    return HOTBED_OK;
}

/* The number of an optimizer's states that some table has a file of. */
static uint32_t count_states(const source *s, hotbed_optimizer_kind kind) {
    uint32_t found = 0;
    for (uint32_t state = 0; state < hotbed_optimizer_states(kind); state++) {
        size_t i = 0;
        while (i < s->num_names && !is_state_of(s->names[i].text, kind, state))
            i++;
        found += i < s->num_names ? 1 : 0;
    }
    return found;
}

static bool same_states(hotbed_optimizer_kind a, hotbed_optimizer_kind b) {
    bool same = hotbed_optimizer_states(a) == hotbed_optimizer_states(b);
    for (uint32_t i = 0; i < hotbed_optimizer_states(a) && same; i++)
        same = strcmp(hotbed_optimizer_state_name(a, i), hotbed_optimizer_state_name(b, i)) == 0;
    return same;
}

/* Fail: several optimizers have the states of `kind`. */
static hotbed_status ambiguous(hotbed_optimizer_kind kind) {
    char names[256] = "";
    size_t n = 0;
    const char *first = hotbed_optimizer_state_name(kind, 0);
    const char *second = hotbed_optimizer_state_name(kind, 1);
    for (int i = 1; i <= (int)HOTBED_OPT_LAST; i++)
        if (same_states(kind, (hotbed_optimizer_kind)i) && n < sizeof names)
            n += (size_t)snprintf(
                names + n, sizeof names - n, "%s%s", n == 0 ? "" : ", ",
                hotbed_optimizer_name((hotbed_optimizer_kind)i));
    return hotbed_fail(
        HOTBED_ERR_ARGUMENT, "%s%s%s: states of several optimizers (%s): name one with --optimizer",
        first, second == NULL ? "" : " and ", second == NULL ? "" : second, names);
}

/* The optimizer with most of its states there, and of those the one that lacks fewest. */
static hotbed_status find_npy_optimizer(source *s) {
    hotbed_optimizer_kind seen = HOTBED_OPT_SGD;
    uint32_t most = 0;
    bool several = false;
    for (int i = 1; i <= (int)HOTBED_OPT_LAST; i++) {
        hotbed_optimizer_kind kind = (hotbed_optimizer_kind)i;
        const uint32_t found = count_states(s, kind);
        const uint32_t states = hotbed_optimizer_states(kind), best = hotbed_optimizer_states(seen);
        several = found > 0 && found == most && states == best ? true : several;
        if (found > most || (found > 0 && found == most && states < best)) {
            seen = kind;
            most = found;
            several = false;
        }
    }
    if (several && s->options->optimizer == NULL)
        return ambiguous(seen);
    return set_optimizer(s, seen);
}

static hotbed_status add_npy_table(source *s, const char *name) {
    hotbed_import_table *t = NULL;
    hotbed_npy npy;
    HOTBED_TRY(add_table(s, name, 1, &t));
    hotbed_import_part *part = &t->parts[0];
    hotbed_import_column *columns = part->columns;
    HOTBED_TRY(open_npy(s, name, "weight", &npy, &columns[HOTBED_COLUMN_VALUES]));
    bool good = npy.type == 'f' && npy.bytes <= 4 && npy.width >= 1 && npy.width <= 4096;
    if (!good)
        return wrong(columns[HOTBED_COLUMN_VALUES].file, "weights are <f4 or <f2, 1 to 4096 wide");
    t->dtype = npy.bytes == 4 ? HOTBED_F32 : HOTBED_F16;
    t->dim = (uint32_t)npy.width;
    t->exact_scores = true;
    part->rows = npy.rows;
    HOTBED_TRY(open_keys_column(s, t));
    if (t->kind == HOTBED_TABLE_HASH) {
        HOTBED_TRY(open_column(s, t, "metadata", 1, "iu", 8, &columns[HOTBED_COLUMN_SCORES]));
        HOTBED_TRY(open_column(s, t, "times", 1, "iu", 8, &columns[HOTBED_COLUMN_TIMES]));
    }
    hotbed_optimizer_kind kind = s->import.optimizer.kind;
    for (uint32_t i = 0; i < hotbed_optimizer_states(kind); i++)
        HOTBED_TRY(open_column(
            s, t, hotbed_optimizer_state_name(kind, i), hotbed_optimizer_state_dim(kind, i, t->dim),
            "f", 4, &columns[HOTBED_COLUMN_STATE + i]));
    return HOTBED_OK;
}

static hotbed_status add_npy(source *s) {
    char table[64];
    HOTBED_TRY(find_npy_optimizer(s));
    for (size_t i = 0; i < s->num_names; i++)
        if (strip(s->names[i].text, ".weight.npy", table))
            HOTBED_TRY(add_npy_table(s, table));
    return HOTBED_OK;
}

/* --- dynamicemb ------------------------------------------------------------------------------------------------ */

static void raw_name(
    char name[NAME_BYTES], const char *table, const char *part, uint32_t rank, uint32_t world) {
    snprintf(
        name, NAME_BYTES, "%.63s_%s.rank_%" PRIu32 ".world_size_%" PRIu32, table, part, rank,
        world);
}

/* Fail: a part that the others need has no file. */
static hotbed_status missing(
    const source *s, const char *table, const char *part, uint32_t rank, uint32_t world) {
    char name[NAME_BYTES];
    raw_name(name, table, part, rank, world);
    return hotbed_fail_path(
        HOTBED_ERR_CORRUPT, s->directory.name, "%s/%s is missing", s->directory.name, name);
}

/* Open <table>_<part>.rank_<r>.world_size_<W>, if it exists. It has `rows` rows; *stride is set to
 * the bytes of each. */
static hotbed_status open_raw(
    source *s, const char *table, const char *part, uint32_t rank, uint32_t world, uint64_t rows,
    uint64_t *stride, hotbed_import_column *out) {
    char name[NAME_BYTES];
    hotbed_io_file *file = NULL;
    uint64_t bytes = 0;
    raw_name(name, table, part, rank, world);
    *stride = 0;
    HOTBED_TRY(open_file(s, name, &file));
    if (file == NULL)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_io_size(file, &bytes));
    if (rows == 0 ? bytes != 0 : bytes % rows != 0)
        return wrong(file, "its size does not fit the number of keys");
    *stride = rows == 0 ? 0 : bytes / rows;
    *out = (hotbed_import_column){.file = file, .stride = *stride};
    return HOTBED_OK;
}

/* Open a file of keys, and count them. */
static hotbed_status open_keys(
    source *s, const char *table, const char *part, uint32_t rank, uint32_t world, uint64_t *rows,
    hotbed_import_column *out) {
    uint64_t bytes = 0, stride = 0;
    *rows = 0;
    HOTBED_TRY(open_raw(s, table, part, rank, world, 1, &stride, out));
    if (out->file == NULL)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_io_size(out->file, &bytes));
    if (bytes % sizeof(uint64_t) != 0)
        return wrong(out->file, "keys are 8 bytes each");
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
static hotbed_status set_types(const source *s, dump *d) {
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
static hotbed_status set_pair(const source *s, const dump *d) {
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

static hotbed_status set_scores(const source *s, const dump *d) {
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
    const source *s, const dump *d, hotbed_optimizer_kind *out) {
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
static hotbed_status set_raw_optimizer(source *s, const dump *d) {
    hotbed_optimizer_kind seen = HOTBED_OPT_SGD;
    const hotbed_import_table *t = d->table;
    if (d->states != NULL)
        HOTBED_TRY(find_raw_optimizer(s, d, &seen));
    HOTBED_TRY(set_optimizer(s, seen));
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

static hotbed_status add_raw_counts(source *s, hotbed_import_table *t, uint32_t rank) {
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

static hotbed_status add_raw_part(source *s, dump *d, uint32_t rank) {
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
static hotbed_status find_states(const source *s, dump *d) {
    static const char *const parts[] = {"emb_opt_values", "opt_values"};
    char name[NAME_BYTES];
    for (size_t i = 0; i < 2; i++)
        for (uint32_t r = 0; r < d->table->num_parts; r++) {
            raw_name(name, d->table->name, parts[i], r, d->table->num_parts);
            if (find_name(s, name) == NULL)
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
static void split_states(const source *s, const dump *d) {
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
static hotbed_status check_ranks(const source *s, const dump *d) {
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
static void report_lacking(const source *s, const dump *d) {
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
static hotbed_status check_assumed(const source *s, const dump *d) {
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

static hotbed_status add_raw_table(source *s, const char *name, uint32_t world) {
    dump d = {.score_bytes = UINT64_MAX, .state_bytes = UINT64_MAX};
    char arguments[NAME_BYTES];
    hotbed_io_file *file = NULL;
    HOTBED_TRY(add_table(s, name, world, &d.table));
    d.table->kind = HOTBED_TABLE_HASH;
    snprintf(arguments, sizeof arguments, "%.63s_opt_args.json", name);
    HOTBED_TRY(open_file(s, arguments, &file));
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

/* Add the tables, each found by its file <table>_emb_keys.rank_0.world_size_<W>. */
static hotbed_status add_raw(source *s) {
    static const char middle[] = "_emb_keys.rank_0.world_size_";
    for (size_t i = 0; i < s->num_names; i++) {
        const char *file = s->names[i].text, *at = strstr(file, middle);
        if (at == NULL)
            continue;
        char table[64], *end;
        unsigned long world = strtoul(at + strlen(middle), &end, 10);
        if (!strip(file, at, table) || *end != '\0' || world < 1)
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

/* --- the command ------------------------------------------------------------------------------------------------ */

/* Check that all tables have optimizer states, or none has. If none has, --optimizer may name an
 * optimizer that starts anew. */
static hotbed_status check_states(const source *s) {
    const hotbed_import_table *with = NULL, *without = NULL;
    uint32_t states = hotbed_optimizer_states(s->import.optimizer.kind);
    for (uint32_t i = 0; i < s->import.num_tables; i++) {
        const hotbed_import_table *t = &s->import.tables[i];
        uint32_t n = 0;
        for (uint32_t k = 0; k < states; k++)
            n += t->parts[0].columns[HOTBED_COLUMN_STATE + k].file != NULL;
        if (n != 0 && n != states)
            return hotbed_fail_table(
                HOTBED_ERR_CORRUPT, t->name,
                "table '%s' has %" PRIu32 " of the %" PRIu32 " states of %s", t->name, n, states,
                hotbed_optimizer_name(s->import.optimizer.kind));
        if (n == 0)
            without = t;
        else
            with = t;
    }
    if (with != NULL && without != NULL)
        return hotbed_fail(
            HOTBED_ERR_CORRUPT,
            "table '%s' has no optimizer states, but table '%s' has the states of %s",
            without->name, with->name, hotbed_optimizer_name(s->import.optimizer.kind));
    return HOTBED_OK;
}

/* Check that the files have the scores that the options describe. */
static hotbed_status check_scores(const source *s) {
    bool any = false, pairs = false;
    for (uint32_t i = 0; i < s->import.num_tables; i++) {
        const hotbed_import_column *columns = s->import.tables[i].parts[0].columns;
        any = any || columns[HOTBED_COLUMN_SCORES].file != NULL;
        pairs = pairs || columns[HOTBED_COLUMN_TIMES].file != NULL;
    }
    if (s->options->ages && !any)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "--ages: no table has scores");
    if (s->options->scores != NULL && !pairs)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "--scores %s: no table has two scores for each key",
            s->options->scores);
    return HOTBED_OK;
}

static hotbed_status check_path(const char *path) {
    const char *slash = strrchr(path, '/');
    if (strncmp(slash == NULL ? path : slash + 1, ".tmp-", 5) == 0)
        return hotbed_fail(HOTBED_ERR_STATE, "%s is an unfinished export", path);
    return HOTBED_OK;
}

static hotbed_status run(source *s) {
    HOTBED_TRY(check_path(s->options->paths[0]));
    HOTBED_TRY(read_names(s, s->options->paths[0]));
    s->files = hotbed_new((s->num_names + 1) * sizeof *s->files);
    s->import.tables = hotbed_new((s->num_names + 1) * sizeof *s->import.tables);
    HOTBED_TRY_MEMORY(
        s->files != NULL && s->import.tables != NULL, "%" PRIu64 " files", s->num_names);
    HOTBED_TRY(hotbed_io_open(
        &hotbed_io_system, NULL, s->options->paths[0], HOTBED_IO_DIRECTORY, &s->directory));
    HOTBED_TRY(strcmp(s->options->from, "npy") == 0 ? add_npy(s) : add_raw(s));
    if (s->import.num_tables == 0)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "%s has no tables in the format %s", s->options->paths[0],
            s->options->from);
    HOTBED_TRY(check_taken(s));
    HOTBED_TRY(check_states(s));
    HOTBED_TRY(check_scores(s));
    if (s->import.key_type == 0)
        s->import.key_type = HOTBED_KEY_I64;
    return hotbed_checkpoint_import(&hotbed_io_system, s->options->paths[1], &s->import);
}

int tool_import(const tool_options *o) {
    source s = {.options = o, .directory = HOTBED_IO_CLOSED};
    s.import.key_type = o->key_type;
    s.import.progress = &o->progress;
    hotbed_status status = run(&s);
    for (uint32_t i = 0; i < s.num_files; i++)
        hotbed_io_drop(&s.files[i]);
    for (uint32_t t = 0; t < s.import.num_tables; t++)
        hotbed_delete(s.import.tables[t].parts);
    hotbed_io_drop(&s.directory);
    hotbed_delete(s.import.tables);
    hotbed_delete(s.names);
    hotbed_delete(s.files);
    return tool_wrote(o, status, ", \"tables\": %" PRIu32, s.import.num_tables);
}
