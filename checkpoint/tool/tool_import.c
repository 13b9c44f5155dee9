/* checkpoint/tool/tool_import.c - hotbed-ckpt convert --from: the command, and .npy files.
 *
 *   npy         <table>.weight.npy, and optionally .weight_id, .metadata, .times, and all states of
 *               one optimizer: .exp_avg and .exp_avg_sq, .sum, or .momentum1. A table without
 *               .weight_id is static.
 *   dynamicemb  tool_import_dump.c
 *
 * A directory is imported completely or not at all: a file that no table uses is an error. */
#define _DEFAULT_SOURCE
#include "checkpoint/tool/tool_import.h"

#include "base/error.h"
#include "base/stream.h"
#include "storage/types.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- names ------------------------------------------------------------------------------------------------- */

/* Compare texts: both arguments begin with one. */
static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

static hotbed_status read_names(tool_source *s, const char *path) {
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
            snprintf(s->names[s->num_names++].text, TOOL_FILE_BYTES, "%s", item->d_name);
        errno = 0;
    }
    if (status == HOTBED_OK && errno != 0)
        status = hotbed_io_fail("cannot read", path, -errno);
    closedir(list);
    if (s->num_names > 0)
        qsort(s->names, s->num_names, sizeof *s->names, by_name);
    return status;
}

tool_listed *tool_find_name(const tool_source *s, const char *text) {
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
static hotbed_status check_taken(const tool_source *s) {
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

bool tool_strip(const char *name, const char *suffix, char table[64]) {
    size_t n = strlen(name), m = strlen(suffix);
    if (n <= m || n - m > 63 || strcmp(name + n - m, suffix) != 0)
        return false;
    memcpy(table, name, n - m);
    table[n - m] = '\0';
    return strspn(table, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") ==
           n - m;
}

hotbed_status tool_open_file(tool_source *s, const char *text, hotbed_io_file **out) {
    tool_listed *found = tool_find_name(s, text);
    *out = NULL;
    if (found == NULL)
        return HOTBED_OK;
    if (found->taken)
        return hotbed_fail(HOTBED_ERR_CORRUPT, "%s belongs to two tables", text);
    found->taken = true;
    *out = &s->files[s->num_files++];
    return hotbed_io_open(tool_files(), &s->directory, text, HOTBED_IO_READ, *out);
}

hotbed_status tool_add_table(
    tool_source *s, const char *name, uint32_t num_parts, hotbed_import_table **out) {
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

hotbed_status tool_wrong(const hotbed_io_file *file, const char *what) {
    return hotbed_fail_path(HOTBED_ERR_CORRUPT, file->name, "%s: %s", file->name, what);
}

static hotbed_status unknown_optimizer(const char *name) {
#define HOTBED_WORD(KIND, name, ...) ", " #name
    const char *names = &HOTBED_OPTIMIZERS(HOTBED_WORD)[2];
#undef HOTBED_WORD
    return hotbed_fail(HOTBED_ERR_ARGUMENT, "--optimizer takes one of %s, not '%s'", names, name);
}

hotbed_status tool_set_optimizer(tool_source *s, hotbed_optimizer_kind seen) {
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
    tool_source *s, const char *table, const char *column, hotbed_npy *npy,
    hotbed_import_column *out) {
    char name[TOOL_FILE_BYTES];
    hotbed_io_file *file = NULL;
    *npy = (hotbed_npy){.dims = 0};
    snprintf(name, sizeof name, "%.63s.%s.npy", table, column);
    HOTBED_TRY(tool_open_file(s, name, &file));
    if (file == NULL)
        return HOTBED_OK;
    hotbed_status status = hotbed_npy_read(file, npy);
    *out = (hotbed_import_column){
        .file = file, .offset = npy->offset, .stride = npy->width * npy->bytes};
    return status;
}

/* Open a column that must have `width` elements of one of the types for each row of the weights. */
static hotbed_status open_column(
    tool_source *s, const hotbed_import_table *t, const char *column, uint64_t width,
    const char *types, uint32_t bytes, hotbed_import_column *out) {
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
static hotbed_status open_keys_column(tool_source *s, hotbed_import_table *t) {
    hotbed_npy npy;
    hotbed_import_column *keys = &t->parts[0].columns[HOTBED_COLUMN_KEYS];
    HOTBED_TRY(open_npy(s, t->name, "weight_id", &npy, keys));
    t->kind = keys->file == NULL ? HOTBED_TABLE_STATIC : HOTBED_TABLE_HASH;
    if (keys->file == NULL)
        return HOTBED_OK;
    if (npy.width != 1 || npy.type == 'f' || npy.bytes != 8)
        return tool_wrong(
            keys->file, "there must be one key, <i8 or <u8, for each row of the weights");
    if (npy.rows != t->parts[0].rows)
        return hotbed_fail_path(
            HOTBED_ERR_CORRUPT, keys->file->name,
            "%s has %" PRIu64 " keys for %" PRIu64 " rows of the weights", keys->file->name,
            npy.rows, t->parts[0].rows);
    hotbed_key_type seen = npy.type == 'u' ? HOTBED_KEY_U64 : HOTBED_KEY_I64;
    if (s->options->key_type != 0)
        return HOTBED_OK;
    if (s->import.key_type != 0 && s->import.key_type != seen)
        return tool_wrong(
            keys->file, "its key type differs from other tables: choose one with --keys");
    s->import.key_type = seen;
    return HOTBED_OK;
}

/* The number of an optimizer's states that some table has a file of. */
static uint32_t count_states(const tool_source *s, hotbed_optimizer_kind kind) {
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
static hotbed_status find_npy_optimizer(tool_source *s) {
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
    return tool_set_optimizer(s, seen);
}

static hotbed_status add_npy_table(tool_source *s, const char *name) {
    hotbed_import_table *t = NULL;
    hotbed_npy npy;
    HOTBED_TRY(tool_add_table(s, name, 1, &t));
    hotbed_import_part *part = &t->parts[0];
    hotbed_import_column *columns = part->columns;
    HOTBED_TRY(open_npy(s, name, "weight", &npy, &columns[HOTBED_COLUMN_VALUES]));
    bool good = npy.type == 'f' && npy.bytes <= 4 && npy.width >= 1 && npy.width <= 4096;
    if (!good)
        return tool_wrong(
            columns[HOTBED_COLUMN_VALUES].file, "weights are <f4 or <f2, 1 to 4096 wide");
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

static hotbed_status add_npy(tool_source *s) {
    char table[64];
    HOTBED_TRY(find_npy_optimizer(s));
    for (size_t i = 0; i < s->num_names; i++)
        if (tool_strip(s->names[i].text, ".weight.npy", table))
            HOTBED_TRY(add_npy_table(s, table));
    return HOTBED_OK;
}

/* --- the command ------------------------------------------------------------------------------------------------ */

/* Check that all tables have optimizer states, or none has. If none has, --optimizer may name an
 * optimizer that starts anew. */
static hotbed_status check_states(const tool_source *s) {
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
static hotbed_status check_scores(const tool_source *s) {
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
    char *real = realpath(path, NULL); /* the name behind ".", a link and a trailing slash */
    if (real == NULL)
        return hotbed_io_fail("cannot read", path, -errno);
    const bool unfinished = strncmp(strrchr(real, '/') + 1, ".tmp-", 5) == 0;
    free(real);
    if (unfinished)
        return hotbed_fail(HOTBED_ERR_STATE, "%s is an unfinished export", path);
    return HOTBED_OK;
}

static hotbed_status run(tool_source *s) {
    HOTBED_TRY(check_path(s->options->paths[0]));
    HOTBED_TRY(read_names(s, s->options->paths[0]));
    s->files = hotbed_new((s->num_names + 1) * sizeof *s->files);
    s->import.tables = hotbed_new((s->num_names + 1) * sizeof *s->import.tables);
    HOTBED_TRY_MEMORY(
        s->files != NULL && s->import.tables != NULL, "%" PRIu64 " files", s->num_names);
    HOTBED_TRY(hotbed_io_open(
        &hotbed_io_system, NULL, s->options->paths[0], HOTBED_IO_DIRECTORY, &s->directory));
    HOTBED_TRY(strcmp(s->options->from, "npy") == 0 ? add_npy(s) : tool_add_dump(s));
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
    tool_source s = {.options = o, .directory = HOTBED_IO_CLOSED};
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
