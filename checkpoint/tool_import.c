/* checkpoint/tool_import.c - hotbed-ckpt convert --from: .npy files and dynamicemb's dumps.
 *
 *   npy         <table>.weight.npy, and optionally .weight_id, .metadata, .times, and all states of
 *               one optimizer: .exp_avg and .exp_avg_sq, .sum, or .momentum1. A table without
 *               .weight_id is static.
 *   dynamicemb  <table>_emb_keys.rank_<r>.world_size_<W>, _emb_values (f32), and optionally
 *               _emb_scores, _opt_values (f32), _counter_keys with _counter_frequencies, each for
 *               all ranks; <table>_opt_args.json
 *
 * A directory is imported completely or not at all: a file that no table uses is an error. */
#define _DEFAULT_SOURCE
#include "checkpoint/import.h"
#include "checkpoint/tool.h"

#include "base/error.h"
#include "base/stream.h"
#include "storage/types.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MOST = 4096, TABLES_MOST = 1024, NAME_BYTES = 256 };

typedef struct listed {
    char text[NAME_BYTES];
    bool taken;
} listed;

typedef struct source {
    const tool_options *options;
    hotbed_io_file directory;
    hotbed_io_file *files; /* [FILES_MOST] */
    uint32_t num_files;
    listed *names; /* of all files in the directory, sorted */
    size_t num_names;
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
    for (struct dirent *item; status == HOTBED_OK && (item = readdir(list)) != NULL;) {
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0)
            continue;
        if (s->num_names == FILES_MOST)
            status =
                hotbed_fail(HOTBED_ERR_UNSUPPORTED, "%s has more than %d files", path, FILES_MOST);
        else
            snprintf(s->names[s->num_names++].text, NAME_BYTES, "%s", item->d_name);
    }
    closedir(list);
    qsort(s->names, s->num_names, sizeof *s->names, by_name);
    return status;
}

static listed *find_name(const source *s, const char *text) {
    return bsearch(text, s->names, s->num_names, sizeof *s->names, by_name);
}

/* Whether a file has the name of an optimizer's state: <table>.<state>.npy. */
static bool is_state(const char *name) {
    char suffix[64];
    for (int kind = HOTBED_OPT_SGD; kind <= HOTBED_OPT_LAST; kind++)
        for (uint32_t i = 0; i < hotbed_optimizer_states((hotbed_optimizer_kind)kind); i++) {
            snprintf(
                suffix, sizeof suffix, ".%s.npy",
                hotbed_optimizer_state_name((hotbed_optimizer_kind)kind, i));
            size_t n = strlen(name), m = strlen(suffix);
            if (n > m && strcmp(name + n - m, suffix) == 0)
                return true;
        }
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
    if (found->taken || s->num_files == FILES_MOST)
        return hotbed_fail(HOTBED_ERR_CORRUPT, "%s belongs to two tables", text);
    found->taken = true;
    *out = &s->files[s->num_files++];
    return hotbed_io_open(tool_files(), &s->directory, text, HOTBED_IO_READ, *out);
}

/* Add a table, and allocate its parts. */
static hotbed_status add_table(
    source *s, const char *name, uint32_t num_parts, hotbed_import_table **out) {
    if (s->import.num_tables == TABLES_MOST)
        return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "more than %d tables", TABLES_MOST);
    hotbed_import_table *t = &s->import.tables[s->import.num_tables];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->num_parts = num_parts;
    t->ages = s->options->ages;
    t->parts = hotbed_new(num_parts * sizeof *t->parts);
    if (t->parts == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu32 " parts", num_parts);
    s->import.num_tables++;
    *out = t;
    return HOTBED_OK;
}

static hotbed_status wrong(const hotbed_io_file *file, const char *what) {
    return hotbed_fail(HOTBED_ERR_CORRUPT, "%s: %s", file->name, what);
}

static hotbed_status unknown_optimizer(const char *name) {
    char names[128];
    int n = 0;
    for (int i = HOTBED_OPT_SGD; i <= HOTBED_OPT_LAST; i++)
        n += snprintf(
            names + n, sizeof names - (size_t)n, "%s%s", i == HOTBED_OPT_SGD ? "" : ", ",
            hotbed_optimizer_name((hotbed_optimizer_kind)i));
    return hotbed_fail(HOTBED_ERR_ARGUMENT, "--optimizer takes one of %s, not '%s'", names, name);
}

/* Set the optimizer: the one that --optimizer names, or else the one that the files imply. */
static hotbed_status set_optimizer(source *s, hotbed_optimizer_kind seen) {
    hotbed_optimizer_kind kind = seen;
    if (s->options->optimizer != NULL) {
        kind = 0;
        for (int i = HOTBED_OPT_SGD; i <= HOTBED_OPT_LAST; i++)
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
        return hotbed_fail(
            HOTBED_ERR_CORRUPT,
            "%s has %" PRIu64 " rows of %" PRIu64 " elements of <%c%" PRIu32
            "; the weights have %" PRIu64 " rows, and need %" PRIu64 " of %" PRIu32 " bytes",
            out->file->name, npy.rows, npy.width, npy.type, npy.bytes, t->parts[0].rows, width,
            bytes);
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
        return hotbed_fail(
            HOTBED_ERR_CORRUPT, "%s has %" PRIu64 " keys for %" PRIu64 " rows of the weights",
            keys->file->name, npy.rows, t->parts[0].rows);
    hotbed_key_type seen = npy.type == 'u' ? HOTBED_KEY_U64 : HOTBED_KEY_I64;
    if (s->options->key_type != 0)
        return HOTBED_OK;
    if (s->import.key_type != 0 && s->import.key_type != seen)
        return wrong(keys->file, "its key type differs from other tables: choose one with --keys");
    s->import.key_type = seen;
    return HOTBED_OK;
}

static hotbed_status find_npy_optimizer(source *s) {
    hotbed_optimizer_kind seen = HOTBED_OPT_SGD;
    char table[64];
    for (size_t i = 0; i < s->num_names; i++) {
        const char *name = s->names[i].text;
        if (strip(name, ".exp_avg.npy", table))
            seen = HOTBED_OPT_ADAM;
        if (strip(name, ".sum.npy", table))
            seen = HOTBED_OPT_ADAGRAD;
        if (strip(name, ".momentum1.npy", table))
            seen = HOTBED_OPT_ROWWISE_ADAGRAD;
    }
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
    part->rows = npy.rows;
    HOTBED_TRY(open_keys_column(s, t));
    if (t->kind == HOTBED_TABLE_HASH) {
        HOTBED_TRY(open_column(s, t, "metadata", 1, "iu", 8, &columns[HOTBED_COLUMN_SCORES]));
        HOTBED_TRY(open_column(s, t, "times", 1, "iu", 8, &columns[HOTBED_COLUMN_TIMES]));
    }
    hotbed_optimizer_kind kind = s->import.optimizer.kind;
    for (uint32_t i = 0; i < hotbed_optimizer_states(kind); i++)
        HOTBED_TRY(open_column(
            s, t, hotbed_optimizer_state_name(kind, i), hotbed_optimizer_state_dim(kind, t->dim),
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
    return hotbed_fail(HOTBED_ERR_CORRUPT, "%s/%s is missing", s->directory.name, name);
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

/* Determine the optimizer from the bytes of state per row. */
static hotbed_status guess(source *s, const hotbed_import_table *t, uint64_t width) {
    hotbed_optimizer_kind seen = HOTBED_OPT_SGD;
    if (width > 0 && s->options->optimizer == NULL) {
        if (t->dim == 1 && width == 4)
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT,
                "table '%s' has dim 1, which fits two optimizers: choose one with --optimizer",
                t->name);
        seen = width == 4                      ? HOTBED_OPT_ROWWISE_ADAGRAD
               : width == (uint64_t)4 * t->dim ? HOTBED_OPT_ADAGRAD
               : width == (uint64_t)8 * t->dim ? HOTBED_OPT_ADAM
                                               : HOTBED_OPT_SGD;
    }
    HOTBED_TRY(set_optimizer(s, seen));
    hotbed_optimizer_kind kind = s->import.optimizer.kind;
    uint64_t right = (uint64_t)hotbed_optimizer_states(kind) *
                     hotbed_optimizer_state_dim(kind, t->dim) * sizeof(float);
    if (width == right || width == 0)
        return HOTBED_OK;
    return hotbed_fail(
        HOTBED_ERR_CORRUPT,
        "table '%s': %" PRIu64 " bytes of optimizer state per row, but %s has %" PRIu64, t->name,
        width, hotbed_optimizer_name(kind), right);
}

static hotbed_status add_raw_part(
    source *s, hotbed_import_table *t, uint32_t rank, uint64_t *state_bytes) {
    hotbed_import_part *part = &t->parts[rank];
    hotbed_import_column *columns = part->columns, states = {.file = NULL};
    uint64_t width = 0, counts = 0;
    uint32_t world = t->num_parts;
    HOTBED_TRY(
        open_keys(s, t->name, "emb_keys", rank, world, &part->rows, &columns[HOTBED_COLUMN_KEYS]));
    if (columns[HOTBED_COLUMN_KEYS].file == NULL)
        return missing(s, t->name, "emb_keys", rank, world);
    HOTBED_TRY(open_raw(
        s, t->name, "emb_values", rank, world, part->rows, &width, &columns[HOTBED_COLUMN_VALUES]));
    if (columns[HOTBED_COLUMN_VALUES].file == NULL)
        return missing(s, t->name, "emb_values", rank, world);
    if (part->rows > 0) {
        bool good = width % 4 == 0 && width >= 4 && width <= 4 * 4096 &&
                    (t->dim == 0 || width == (uint64_t)4 * t->dim);
        if (!good)
            return wrong(
                columns[HOTBED_COLUMN_VALUES].file, "rows are not of one number of f32 elements");
        t->dim = (uint32_t)(width / 4);
    }
    HOTBED_TRY(open_raw(
        s, t->name, "emb_scores", rank, world, part->rows, &width, &columns[HOTBED_COLUMN_SCORES]));
    if (width != 0 && width != sizeof(uint64_t))
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED, "table '%s': scores have %" PRIu64 " bytes, not 8", t->name,
            width);
    HOTBED_TRY(open_raw(s, t->name, "opt_values", rank, world, part->rows, &width, &states));
    if (part->rows > 0 && *state_bytes != UINT64_MAX && *state_bytes != width)
        return hotbed_fail(
            HOTBED_ERR_CORRUPT,
            "table '%s': rank %" PRIu32 " has %" PRIu64
            " bytes of optimizer state per row, the ranks before it %" PRIu64,
            t->name, rank, width, *state_bytes);
    if (part->rows > 0)
        *state_bytes = width;
    columns[HOTBED_COLUMN_STATE] = states;
    columns[HOTBED_COLUMN_STATE + 1] = states;
    columns[HOTBED_COLUMN_STATE + 1].offset = (uint64_t)4 * t->dim;
    HOTBED_TRY(
        open_keys(s, t->name, "counter_keys", rank, world, &part->counted, &part->counted_keys));
    HOTBED_TRY(open_raw(
        s, t->name, "counter_frequencies", rank, world,
        part->counted_keys.file == NULL ? 1 : part->counted, &counts, &part->counts));
    if ((part->counted_keys.file == NULL) != (part->counts.file == NULL))
        return missing(
            s, t->name, part->counts.file == NULL ? "counter_frequencies" : "counter_keys", rank,
            world);
    if (part->counted > 0 && counts != sizeof(uint64_t))
        return hotbed_fail(
            HOTBED_ERR_CORRUPT,
            "table '%s': counters of rank %" PRIu32 " have %" PRIu64 " bytes, not 8", t->name, rank,
            counts);
    return HOTBED_OK;
}

/* Check that each optional file exists for all ranks or for none. */
static hotbed_status check_ranks(const source *s, const hotbed_import_table *t) {
    enum { SCORES, STATES, COUNTED, COUNTS, PARTS };
    static const char *const names[] = {
        "emb_scores", "opt_values", "counter_keys", "counter_frequencies"};
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

static hotbed_status add_raw_table(source *s, const char *name, uint32_t world) {
    hotbed_import_table *t = NULL;
    char arguments[NAME_BYTES];
    uint64_t state_bytes = UINT64_MAX;
    HOTBED_TRY(add_table(s, name, world, &t));
    t->kind = HOTBED_TABLE_HASH;
    t->dtype = HOTBED_F32;
    for (uint32_t r = 0; r < world; r++)
        HOTBED_TRY(add_raw_part(s, t, r, &state_bytes));
    HOTBED_TRY(check_ranks(s, t));
    snprintf(arguments, sizeof arguments, "%.63s_opt_args.json", t->name);
    if (find_name(s, arguments) !=
        NULL) /* not used: a trainer has its own arguments, and no row depends on them */
        find_name(s, arguments)->taken = true;
    if (t->dim == 0)
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED, "table '%s' has no rows, so its dim is unknown", name);
    hotbed_optimizer_kind before = s->import.optimizer.kind;
    HOTBED_TRY(guess(s, t, state_bytes));
    if (before != 0 && before != s->import.optimizer.kind)
        return hotbed_fail(
            HOTBED_ERR_UNSUPPORTED, "table '%s' has another optimizer than the tables before it",
            name);
    return HOTBED_OK;
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
        if (!strip(file, at, table) || *end != '\0' || world < 1 || world > FILES_MOST)
            return hotbed_fail(HOTBED_ERR_CORRUPT, "%s: not a valid table name", file);
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
            return hotbed_fail(
                HOTBED_ERR_CORRUPT, "table '%s' has %" PRIu32 " of the %" PRIu32 " states of %s",
                t->name, n, states, hotbed_optimizer_name(s->import.optimizer.kind));
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

static hotbed_status check_path(const char *path) {
    const char *slash = strrchr(path, '/');
    if (strncmp(slash == NULL ? path : slash + 1, ".tmp-", 5) == 0)
        return hotbed_fail(HOTBED_ERR_STATE, "%s is an unfinished export", path);
    return HOTBED_OK;
}

static hotbed_status run(source *s) {
    HOTBED_TRY(check_path(s->options->paths[0]));
    s->files = hotbed_new(FILES_MOST * sizeof *s->files);
    s->names = hotbed_new(FILES_MOST * sizeof *s->names);
    s->import.tables = hotbed_new(TABLES_MOST * sizeof *s->import.tables);
    if (s->files == NULL || s->names == NULL || s->import.tables == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %d files", FILES_MOST);
    HOTBED_TRY(read_names(s, s->options->paths[0]));
    HOTBED_TRY(hotbed_io_open(
        &hotbed_io_system, NULL, s->options->paths[0], HOTBED_IO_DIRECTORY, &s->directory));
    HOTBED_TRY(strcmp(s->options->from, "npy") == 0 ? add_npy(s) : add_raw(s));
    if (s->import.num_tables == 0)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "%s has no tables in the format %s", s->options->paths[0],
            s->options->from);
    HOTBED_TRY(check_taken(s));
    HOTBED_TRY(check_states(s));
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
    if (status != HOTBED_OK)
        return tool_fail(status);
    if (o->json) {
        printf("{\"path\": ");
        tool_json_text(o->paths[1]);
        printf(", \"tables\": %" PRIu32 "}\n", s.import.num_tables);
    }
    return TOOL_SAME;
}
