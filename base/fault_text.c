/* base/fault_text.c - the texts of faults, with the names of tables. */
#include "base/fault_text.h"

#include "base/stream.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* --- names ---------------------------------------------------------------------------------- */

typedef struct named_table {
    const char *name;
    hotbed_key_type type;
    hotbed_table_keys keys;
} named_table;

struct hotbed_table_names {
    uint32_t references; /* atomic */
    uint32_t num;
    named_table tables[]; /* [num]; the text of the names follows */
};

hotbed_table_names *hotbed_table_names_create(
    const void *structs, uint32_t n, size_t stride, hotbed_key_type type) {
    size_t bytes = 0;
    for (uint32_t t = 0; t < n; t++)
        bytes += strlen((const char *)structs + t * stride) + 1;
    hotbed_table_names *names = hotbed_new(sizeof *names + n * sizeof *names->tables + bytes);
    if (names == NULL)
        return NULL;
    names->references = 1;
    names->num = n;
    char *text = (char *)(void *)(names->tables + n);
    for (uint32_t t = 0; t < n; t++) {
        const char *name = (const char *)structs + t * stride;
        const size_t length = strlen(name) + 1;
        names->tables[t].name = memcpy(text, name, length);
        names->tables[t].type = type;
        text += length;
    }
    return names;
}

void hotbed_table_names_set_keys(
    hotbed_table_names *names, uint32_t table, const hotbed_table_keys *keys) {
    names->tables[table].keys = *keys;
}

void hotbed_table_names_release(hotbed_table_names *names) {
    if (names != NULL && __atomic_sub_fetch(&names->references, 1, __ATOMIC_ACQ_REL) == 0)
        hotbed_delete(names);
}

/* --- sources -------------------------------------------------------------------------------- */

void hotbed_fault_sources_add(
    hotbed_fault_sources *sources, hotbed_table_names *names, bool recorded) {
    uint32_t at = 0;
    sources->recorded = sources->recorded || recorded;
    while (at < sources->num && sources->names[at] != names)
        at++;
    if (names == NULL || at == HOTBED_FAULT_SOURCES_MOST) {
        sources->unnamed = true;
    } else if (at == sources->num) {
        /* Relaxed: the caller has a reference, so the count does not reach 0 meanwhile. */
        (void)__atomic_add_fetch(&names->references, 1, __ATOMIC_RELAXED);
        sources->names[sources->num++] = names;
    }
}

void hotbed_fault_sources_passed(hotbed_fault_sources *sources, bool done) {
    uint32_t kept = 0;
    const bool all = done && !sources->recorded;
    for (uint32_t i = 0; i < sources->num; i++) {
        /* Acquires the storage's release of the names: only this stream has them now. */
        bool last = __atomic_load_n(&sources->names[i]->references, __ATOMIC_ACQUIRE) == 1;
        if (all || last)
            hotbed_table_names_release(sources->names[i]);
        else
            sources->names[kept++] = sources->names[i];
    }
    sources->num = kept;
    if (all)
        sources->unnamed = false;
}

void hotbed_fault_sources_clear(hotbed_fault_sources *sources) {
    for (uint32_t i = 0; i < sources->num; i++)
        hotbed_table_names_release(sources->names[i]);
    *sources = (hotbed_fault_sources){.num = 0};
}

/* --- texts ---------------------------------------------------------------------------------- */

/* The text of a communicator's fault. Reasons are as in hotbed/comm.h. */
static void write_comm(hotbed_writer *w, const hotbed_fault *fault) {
    static const char *const reasons[] = {
        "was not done",
        "was aborted",
        "lost a rank",
        "passed its deadline",
        "did not match another rank's",
        "failed in the transport",
    };
    hotbed_write(w, "communicator");
    if (fault->key != 0) /* else the rank was lost between operations, or the number is unknown */
        hotbed_write(w, ": operation %" PRIu64, fault->key);
    hotbed_write(w, " %s", HOTBED_NAME(reasons, fault->bound, reasons[0]));
    if (fault->table != UINT32_MAX)
        hotbed_write(w, " (rank %u)", fault->table);
    hotbed_write(w, "; hotbed_comm_failure() says more");
}

/* Find the tables that may have latched a fault; returns their number. */
static uint32_t find_tables(
    const hotbed_fault_sources *sources, const hotbed_fault *fault,
    const named_table *found[HOTBED_FAULT_SOURCES_MOST]) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < sources->num && !sources->unnamed; i++) {
        const hotbed_table_names *names = sources->names[i];
        if (fault->table < names->num &&
            !(fault->what == HOTBED_CAUSE_KEY_RANGE && names->tables[fault->table].keys.any))
            found[n++] = &names->tables[fault->table];
    }
    return n;
}

/* Put the table of a fault into the fields, and write its text: "table user" or, if several storages
 * may have latched the fault, "table number 0 (user or item)". */
static void write_table(
    hotbed_writer *w, const named_table *const *tables, uint32_t num, uint32_t table,
    hotbed_error_detail *fields) {
    const char *found[HOTBED_FAULT_SOURCES_MOST];
    uint32_t n = 0;
    for (uint32_t i = 0; i < num; i++) {
        bool fresh = true;
        for (uint32_t k = 0; k < n && fresh; k++)
            fresh = strcmp(found[k], tables[i]->name) != 0;
        if (fresh)
            found[n++] = tables[i]->name;
    }
    fields->has |= HOTBED_HAS_TABLE_NUMBER;
    fields->table_number = table;
    if (n == 1) {
        hotbed_write(w, "table %s", found[0]);
        snprintf(fields->table, sizeof fields->table, "%s", found[0]);
        return;
    }
    hotbed_write(w, "table number %" PRIu32, table);
    for (uint32_t k = 0; k < n; k++)
        hotbed_write(w, "%s%s%s", k == 0 ? " (" : " or ", found[k], k == n - 1 ? ")" : "");
}

/* The type of the tables' keys; 0: it is not the same, or not known. */
static hotbed_key_type key_type(const named_table *const *tables, uint32_t n) {
    hotbed_key_type type = n == 0 ? (hotbed_key_type)0 : tables[0]->type;
    for (uint32_t i = 1; i < n; i++)
        type = tables[i]->type == type ? type : (hotbed_key_type)0;
    return type;
}

/* --- fields --------------------------------------------------------------------------------- */

static void set_value(hotbed_error_detail *fields, double value) {
    fields->has |= HOTBED_HAS_VALUE;
    fields->value = value;
}

static void set_limit(hotbed_error_detail *fields, double limit) {
    fields->has |= HOTBED_HAS_LIMIT;
    fields->limit = limit;
}

static void set_rank(hotbed_error_detail *fields, uint32_t rank) {
    fields->has |= HOTBED_HAS_RANK;
    fields->rank = (int32_t)rank;
}

/* Whether a fault of a table has the number of a row of its rank instead of a key. */
static bool is_row(const hotbed_fault *fault, const hotbed_table_keys *keys) {
    return keys != NULL && fault->key < keys->rows;
}

static void set_key(
    hotbed_error_detail *fields, const hotbed_fault *fault, const hotbed_table_keys *keys) {
    fields->has |= HOTBED_HAS_KEY;
    fields->key = fault->key;
    if (is_row(fault, keys))
        set_rank(fields, keys->rank);
}

/* Whether a fault's `table` is the number of a table. */
static bool is_of_table(uint32_t cause) {
    return cause != HOTBED_CAUSE_COMM && cause != HOTBED_CAUSE_OFFSET &&
           cause != HOTBED_CAUSE_FIRST_OFFSET && cause != HOTBED_CAUSE_TABLE_NUMBER;
}

/* Write the text of a fault of `table` and `key`, and set its numbers. */
static void write_fault(
    hotbed_writer *w, const hotbed_fault *fault, const hotbed_table_keys *keys, const char *table,
    const char *key, hotbed_error_detail *fields) {
    const double bound = (double)fault->bound, offset = (double)(int64_t)fault->bound;
    switch ((hotbed_error_cause)fault->what) {
    case HOTBED_CAUSE_TABLE_FULL:
        hotbed_write(
            w, "%s is full: no slot for key %s, the table has %" PRIu64 " slots", table, key,
            fault->bound);
        set_key(fields, fault, keys);
        set_limit(fields, bound);
        return;
    case HOTBED_CAUSE_KEY_RANGE: {
        /* A row that is out of range is of a caller that uses the storage directly. */
        const uint64_t rows =
            keys == NULL || keys->rows == 0 || is_row(fault, keys) ? fault->bound : keys->rows;
        if (is_row(fault, keys))
            hotbed_write(w, "%s: row %" PRIu64 " of rank %" PRIu32, table, fault->key, keys->rank);
        else
            hotbed_write(w, "%s: key %s", table, key);
        hotbed_write(w, " is not in [0, %" PRIu64 ")", rows);
        set_key(fields, fault, keys);
        set_limit(fields, (double)rows);
        return;
    }
    case HOTBED_CAUSE_OFFSET:
        hotbed_write(
            w,
            "offsets: bag %" PRIu64 " ends at %" PRId64 ", before its start or after the last key",
            fault->key, (int64_t)fault->bound);
        if (fault->table != 0) {
            fields->has |= HOTBED_HAS_FEATURE | HOTBED_HAS_SAMPLE;
            fields->feature = (uint32_t)(fault->key / fault->table);
            fields->sample = (uint32_t)(fault->key % fault->table);
        }
        set_value(fields, offset);
        return;
    case HOTBED_CAUSE_FIRST_OFFSET:
        hotbed_write(w, "offsets: the first is %" PRId64 ", not 0", (int64_t)fault->bound);
        set_value(fields, offset);
        return;
    case HOTBED_CAUSE_ALL_PINNED:
        hotbed_write(w, "%s: no slot for key %s, all rows it could replace are in use", table, key);
        set_key(fields, fault, keys);
        return;
    case HOTBED_CAUSE_KEY_TWICE:
        hotbed_write(
            w,
            "%s: key %s occurs twice, at positions %" PRIu64 " and %" PRIu64
            " of the call, which has set nothing; pass each key once",
            table, key, fault->bound >> 32, fault->bound & UINT32_MAX);
        set_key(fields, fault, keys);
        set_limit(fields, (double)(fault->bound >> 32));
        set_value(fields, (double)(fault->bound & UINT32_MAX));
        return;
    case HOTBED_CAUSE_GRADIENT:
        if (keys != NULL && keys->rows != 0)
            hotbed_write(
                w, "%s: the gradient of row %" PRIu64 " of rank %" PRIu32, table, fault->key,
                keys->rank);
        else
            hotbed_write(w, "%s: the gradient of key %s", table, key);
        hotbed_write(w, " is NaN or infinite; its row was not updated");
        set_key(fields, fault, keys);
        return;
    case HOTBED_CAUSE_TABLE_NUMBER:
        hotbed_write(
            w, "table %u of key %s is not below %" PRIu64, fault->table, key, fault->bound);
        set_key(fields, fault, keys);
        set_value(fields, (double)fault->table);
        set_limit(fields, bound);
        return;
    case HOTBED_CAUSE_EXTERNAL:
        hotbed_write(
            w,
            "external store: a call for %" PRIu64
            " rows of %s failed; hotbed_external_failure() says why",
            fault->key, table);
        set_value(fields, (double)fault->key);
        return;
    case HOTBED_CAUSE_COMM:
        write_comm(w, fault);
        if (fault->table != UINT32_MAX)
            set_rank(fields, fault->table);
        if (fault->key != 0)
            set_value(fields, (double)fault->key);
        return;
    case HOTBED_CAUSE_OTHER:
    case HOTBED_CAUSE_NOT_PREFETCHED:
    case HOTBED_CAUSE_HELD:
    case HOTBED_CAUSE_BATCH_TOO_LARGE:
    case HOTBED_CAUSE_NO_WINDOWS:
        break;
    }
    hotbed_write(
        w, "fault %u: table %u, key %s, bound %" PRIu64, fault->what, fault->table, key,
        fault->bound);
}

void hotbed_fault_describe(
    hotbed_fault fault, const hotbed_fault_sources *sources, hotbed_error *out) {
    const named_table *tables[HOTBED_FAULT_SOURCES_MOST] = {NULL};
    char table[HOTBED_ERROR_BYTES / 2];
    const uint32_t n = find_tables(sources, &fault, tables);
    hotbed_error_detail *fields = &out->fields;
    *fields =
        (hotbed_error_detail){.size = sizeof *fields, .cause = (hotbed_error_cause)fault.what};
    fields->status = (hotbed_status)fault.status;
    fields->key_type = (uint32_t)key_type(tables, n);
    write_table(&(hotbed_writer){table, sizeof table, 0}, tables, n, fault.table, fields);
    if (!is_of_table(fault.what)) {
        fields->has = fields->table_number = 0;
        fields->table[0] = '\0';
    }
    const hotbed_key_digits key = hotbed_key_text(fault.key, key_type(tables, n));
    write_fault(
        &(hotbed_writer){out->text, sizeof out->text, 0}, &fault, n == 1 ? &tables[0]->keys : NULL,
        table, key.text, fields);
}
