/* serve/format.c - names of published files, and the checks that a reader makes of their bytes. */
#include "serve/format.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* --- names ------------------------------------------------------------------------------------ */

hotbed_cut_file hotbed_cut_name(uint64_t number) {
    hotbed_cut_file to;
    snprintf(to.text, sizeof to.text, "cut-%012" PRIu64, number);
    return to;
}

hotbed_cut_file hotbed_rows_name(uint64_t number, uint32_t rank) {
    hotbed_cut_file to;
    snprintf(to.text, sizeof to.text, "rows-%012" PRIu64 "-%05" PRIu32, number, rank);
    return to;
}

/* Parse exactly `digits` digits. */
static bool read_digits(const char *text, uint32_t digits, uint64_t *value) {
    *value = 0;
    for (uint32_t i = 0; i < digits; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        *value = *value * 10 + (uint64_t)(text[i] - '0');
    }
    return true;
}

uint64_t hotbed_cut_number(const char *name) {
    uint64_t number = 0;
    bool is = strncmp(name, "cut-", 4) == 0 && read_digits(name + 4, 12, &number) && name[16] == 0;
    return is ? number : 0;
}

uint64_t hotbed_rows_number(const char *name) {
    uint64_t number = 0, rank = 0;
    bool is = strncmp(name, "rows-", 5) == 0 && read_digits(name + 5, 12, &number) &&
              name[17] == '-' && read_digits(name + 18, 5, &rank) && name[23] == 0;
    return is ? number : 0;
}

/* --- sizes ------------------------------------------------------------------------------------ */

const char *hotbed_encoding_name(hotbed_encoding encoding) {
    static const char *const names[] = {"table", "f32", "f16", "bf16", "int8"};
    return (uint32_t)encoding < sizeof names / sizeof *names ? names[encoding] : NULL;
}

uint32_t hotbed_encoded_bytes(hotbed_encoding encoding, uint32_t dim) {
    switch (encoding) {
    case HOTBED_ENCODING_F32:
        return 4 * dim;
    case HOTBED_ENCODING_F16:
    case HOTBED_ENCODING_BF16:
        return 2 * dim;
    case HOTBED_ENCODING_INT8:
        return 4 + dim + dim % 2; /* scale and offset are aligned to 2 bytes */
    case HOTBED_ENCODING_TABLE:
        break;
    }
    return 0;
}

uint32_t hotbed_cut_state_dim(const hotbed_cut_table *table, uint32_t state) {
    return hotbed_optimizer_state_dim(
        (hotbed_optimizer_kind)table->optimizer, state, table->dim); /* 0 of kind 0 */
}

uint32_t hotbed_cut_states_at(const hotbed_cut_table *table) {
    return (hotbed_encoded_bytes((hotbed_encoding)table->encoding, table->dim) + 3) / 4 * 4;
}

uint32_t hotbed_cut_row_bytes(const hotbed_cut_table *table) {
    const uint32_t states = hotbed_cut_state_dim(table, 0) + hotbed_cut_state_dim(table, 1);
    return states == 0 ? hotbed_encoded_bytes((hotbed_encoding)table->encoding, table->dim)
                       : hotbed_cut_states_at(table) + states * (uint32_t)sizeof(float);
}

uint64_t hotbed_rows_column_bytes(const hotbed_rows_table *table, hotbed_rows_column column) {
    switch (column) {
    case HOTBED_ROWS_KEYS:
        return 8 * table->rows;
    case HOTBED_ROWS_STARTS:
        return table->rows == 0 ? 0 : 4 * (((uint64_t)1 << table->bits) + 1);
    case HOTBED_ROWS_VALUES:
        return table->row_bytes * table->rows;
    case HOTBED_ROWS_ERASED:
        return 8 * table->erased;
    case HOTBED_ROWS_COLUMNS:
        break;
    }
    return 0;
}

uint32_t hotbed_rows_bits(uint64_t rows) {
    uint32_t bits = 0;
    while (bits < HOTBED_CUT_BITS_MOST && rows >> bits > 4)
        bits++;
    return bits;
}

/* --- a cut's file ----------------------------------------------------------------------------- */

static bool is_name(const char name[64]) {
    size_t n = strnlen(name, 64);
    static const char known[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    return n > 0 && n < 64 && strspn(name, known) == n;
}

static bool is_power(double value) {
    return value >= 0.0 && value <= 1.0;
}

static const char *wrong_table(const hotbed_cut_head *head, const hotbed_cut_table *table) {
    if (!is_name(table->name))
        return "a table's name is not [A-Za-z0-9_.-]{1,63}";
    if (table->dim == 0 || table->dim > HOTBED_CUT_DIM_MOST)
        return "a dim is not in 1 .. 4096";
    if (table->encoding < HOTBED_ENCODING_F32 || table->encoding > HOTBED_ENCODING_INT8)
        return "an encoding is unknown";
    if (table->key_type != HOTBED_KEY_I64 && table->key_type != HOTBED_KEY_U64)
        return "a key type is unknown";
    if (table->optimizer != 0 &&
        hotbed_optimizer_describe((hotbed_optimizer_kind)table->optimizer) == NULL)
        return "an optimizer is unknown";
    if (!is_power(table->beta1_power) || !is_power(table->beta2_power))
        return "a power of beta is not in [0, 1]";
    if (head->world == 1)
        return table->route == HOTBED_CUT_NO_ROUTE ? NULL : "one rank has a route";
    hotbed_route route;
    bool known =
        table->route <= HOTBED_ROUTE_CONTINUOUS &&
        hotbed_route_init(
            &route, (hotbed_route_kind)table->route, head->world, table->route_rows) == HOTBED_OK;
    return known ? NULL : "a route is invalid";
}

static const char *wrong_head(const hotbed_cut_head *head, uint64_t number) {
    bool base = head->parent == 0;
    if (head->number != number)
        return "its number is another one";
    if (base ? head->base != number : head->base > head->parent || head->parent >= number)
        return "base, parent and number do not rise";
    if (base && (head->before.low != 0 || head->before.high != 0))
        return "a base has a parent's digest";
    return NULL;
}

static hotbed_status fail_damaged(const char *name, const char *what) {
    return hotbed_fail_path(HOTBED_ERR_CORRUPT, name, "%s %s", name, what);
}

static hotbed_status check_version(const char *name, uint32_t version) {
    return version == HOTBED_CUT_VERSION
               ? HOTBED_OK
               : hotbed_fail_path_limit(
                     HOTBED_ERR_UNSUPPORTED, name, "format", version, HOTBED_CUT_VERSION,
                     "%s has format %" PRIu32 "; this library reads %d", name, version,
                     HOTBED_CUT_VERSION);
}

hotbed_status hotbed_cut_parse(
    const char *name, uint64_t number, const void *data, uint64_t bytes, hotbed_cut *out) {
    const hotbed_cut_head *head = data;
    hotbed_digest end;
    if (bytes < hotbed_cut_bytes(1, 1))
        return hotbed_fail_path_value(
            HOTBED_ERR_CORRUPT, name, NULL, bytes, "%s has %" PRIu64 " bytes, no cut", name, bytes);
    memcpy(&end, (const char *)data + bytes - sizeof end, sizeof end);
    if (!hotbed_digest_equal(end, hotbed_digest_of(data, bytes - sizeof end)))
        return fail_damaged(name, "is damaged: its digest differs");
    if (memcmp(head->magic, HOTBED_CUT_MAGIC, sizeof head->magic) != 0)
        return fail_damaged(name, "is not the file of a cut");
    HOTBED_TRY(check_version(name, head->version));
    bool fits = head->tables >= 1 && head->tables <= HOTBED_CUT_TABLES_MOST && head->world >= 1 &&
                head->world <= HOTBED_CUT_RANKS_MOST &&
                bytes == hotbed_cut_bytes(head->tables, head->world);
    const char *wrong = fits ? wrong_head(head, number) : "its size does not fit its tables";
    const hotbed_cut_table *tables = (const void *)(head + 1);
    for (uint32_t t = 0; wrong == NULL && t < head->tables; t++)
        wrong = wrong_table(head, &tables[t]);
    if (wrong != NULL)
        return hotbed_fail_path(HOTBED_ERR_CORRUPT, name, "%s is damaged: %s", name, wrong);
    *out = (hotbed_cut){.head = head, .tables = tables, .digest = end};
    out->parts = (const void *)(tables + head->tables);
    return HOTBED_OK;
}

/* --- a rows file ------------------------------------------------------------------------------ */

/* Check the extents of a table. They follow each other: *end is the end of the last one. */
static bool extents_fit(const hotbed_rows_table *table, bool base, uint64_t bytes, uint64_t *end) {
    if (table->rows > UINT32_MAX - 1 || table->erased > bytes ||
        table->bits != hotbed_rows_bits(table->rows) || (base && table->erased != 0))
        return false;
    for (uint32_t c = 0; c < HOTBED_ROWS_COLUMNS; c++) {
        uint64_t at = table->offsets[c], n = hotbed_rows_column_bytes(table, c);
        if (n == 0) {
            if (at != 0)
                return false;
            continue;
        }
        if (at % HOTBED_CUT_ALIGN != 0 || at < *end || at > bytes || n > bytes - at)
            return false;
        *end = at + n;
    }
    return true;
}

static hotbed_digest front_digest(const void *data, uint64_t front) {
    hotbed_digest digest;
    memcpy(&digest, (const char *)data + front - sizeof digest, sizeof digest);
    return digest;
}

static bool front_fits(const void *data, uint64_t front) {
    return hotbed_digest_equal(
        front_digest(data, front), hotbed_digest_of(data, front - sizeof(hotbed_digest)));
}

hotbed_status hotbed_rows_parse(
    const char *name, const hotbed_cut *cut, uint32_t rank, const void *data, uint64_t bytes,
    hotbed_rows_file *out) {
    const hotbed_rows_head *head = data;
    const hotbed_cut_part *part = &cut->parts[rank];
    uint32_t tables = cut->head->tables;
    uint64_t front = hotbed_rows_front_bytes(tables), end = front;
    if (bytes != part->bytes || bytes < front)
        return hotbed_fail_path_limit(
            HOTBED_ERR_CORRUPT, name, NULL, bytes, part->bytes,
            "%s has %" PRIu64 " bytes; the cut names a file of %" PRIu64, name, bytes, part->bytes);
    if (!hotbed_digest_equal(front_digest(data, front), part->digest) || !front_fits(data, front))
        return fail_damaged(name, "is damaged, or is not the file that the cut names");
    const hotbed_rows_table *table = (const void *)(head + 1);
    bool fits = memcmp(head->magic, HOTBED_ROWS_MAGIC, sizeof head->magic) == 0 &&
                head->version == HOTBED_CUT_VERSION && head->tables == tables &&
                head->rank == rank && head->number == cut->head->number &&
                hotbed_digest_equal(head->run, cut->head->run);
    for (uint32_t t = 0; fits && t < tables; t++)
        fits = table[t].row_bytes == hotbed_cut_row_bytes(&cut->tables[t]) &&
               extents_fit(&table[t], cut->head->parent == 0, bytes, &end);
    if (!fits)
        return fail_damaged(name, "does not fit its cut");
    *out = (hotbed_rows_file){.data = data, .tables = table};
    return HOTBED_OK;
}

/* Whether keys are in the strict order of their hashes, and on their rank. */
static bool keys_fit(const hotbed_route *route, uint32_t rank, uint64_t n, const uint64_t *keys) {
    for (uint64_t i = 0; i < n; i++) {
        if (i > 0 && hotbed_hash_u64(keys[i - 1]) >= hotbed_hash_u64(keys[i]))
            return false;
        if (route != NULL && hotbed_route_rank(route, keys[i]) != rank)
            return false;
    }
    return true;
}

static bool starts_fit(
    const hotbed_rows_table *table, const uint64_t *keys, const uint32_t *starts) {
    if (table->rows == 0)
        return true;
    uint64_t at = 0;
    for (uint64_t b = 0; b < (uint64_t)1 << table->bits; b++) {
        if (starts[b] != at)
            return false;
        while (at < table->rows && hotbed_rows_bucket(keys[at], table->bits) == b)
            at++;
    }
    return at == table->rows && starts[(uint64_t)1 << table->bits] == at;
}

/* Whether no key is both in `keys` and in `erased`. */
static bool apart(const hotbed_rows_table *table, const uint64_t *keys, const uint64_t *erased) {
    for (uint64_t i = 0, k = 0; i < table->rows && k < table->erased;) {
        if (keys[i] == erased[k])
            return false;
        if (hotbed_hash_u64(keys[i]) < hotbed_hash_u64(erased[k]))
            i++;
        else
            k++;
    }
    return true;
}

/* `route` NULL: keys may belong to any rank. */
static const char *wrong_columns(
    const hotbed_route *route, uint32_t rank, const hotbed_rows_file *file, uint32_t t) {
    static const char *const damaged[] = {
        "its keys are damaged", "its buckets are damaged", "its rows are damaged",
        "its erased keys are damaged"};
    const hotbed_rows_table *table = &file->tables[t];
    for (uint32_t c = 0; c < HOTBED_ROWS_COLUMNS; c++)
        if (!hotbed_digest_equal(
                table->digests[c],
                hotbed_digest_of(
                    hotbed_rows_column_of(file, t, c), hotbed_rows_column_bytes(table, c))))
            return damaged[c];
    const uint64_t *keys = hotbed_rows_column_of(file, t, HOTBED_ROWS_KEYS);
    const uint64_t *erased = hotbed_rows_column_of(file, t, HOTBED_ROWS_ERASED);
    if (!keys_fit(route, rank, table->rows, keys) || !keys_fit(route, rank, table->erased, erased))
        return "its keys are not in order, or belong to another rank";
    if (!apart(table, keys, erased))
        return "a key is written and removed";
    return starts_fit(table, keys, hotbed_rows_column_of(file, t, HOTBED_ROWS_STARTS))
               ? NULL
               : "its buckets do not fit its keys";
}

hotbed_status hotbed_rows_verify(
    const char *name, const hotbed_cut *cut, uint32_t rank, const hotbed_rows_file *file) {
    const bool routed = cut->head->world > 1;
    for (uint32_t t = 0; t < cut->head->tables; t++) {
        const hotbed_cut_table *table = &cut->tables[t];
        hotbed_route route;
        const char *wrong = NULL;
        if (routed && hotbed_route_init(
                          &route, (hotbed_route_kind)table->route, cut->head->world,
                          table->route_rows) != HOTBED_OK)
            wrong = "its route is invalid";
        else
            wrong = wrong_columns(routed ? &route : NULL, rank, file, t);
        if (wrong != NULL)
            return hotbed_fail_table(
                HOTBED_ERR_CORRUPT, table->name, "%s: table '%s': %s", name, table->name, wrong);
    }
    return HOTBED_OK;
}

hotbed_status hotbed_rows_check(
    const char *name, const void *data, uint64_t bytes, hotbed_rows_file *out) {
    const hotbed_rows_head *head = data;
    if (bytes < sizeof *head || memcmp(head->magic, HOTBED_ROWS_MAGIC, sizeof head->magic) != 0)
        return fail_damaged(name, "is not a file of rows");
    HOTBED_TRY(check_version(name, head->version));
    const uint64_t front = hotbed_rows_front_bytes(head->tables);
    if (head->tables < 1 || head->tables > HOTBED_CUT_TABLES_MOST || bytes < front ||
        !front_fits(data, front))
        return fail_damaged(name, "is damaged: its digest differs");
    if (head->number == 0 || head->rank >= HOTBED_CUT_RANKS_MOST ||
        head->number > HOTBED_CUT_NUMBER_MOST ||
        strcmp(hotbed_rows_name(head->number, head->rank).text, name) != 0)
        return hotbed_fail_path_value(
            HOTBED_ERR_CORRUPT, name, "number", head->number,
            "%s has the rows of rank %" PRIu32 " in cut %" PRIu64, name, head->rank, head->number);
    const hotbed_rows_table *tables = (const void *)(head + 1);
    uint64_t end = front;
    *out = (hotbed_rows_file){.data = data, .tables = tables};
    for (uint32_t t = 0; t < head->tables; t++) {
        const char *wrong = "its columns do not lie in the file";
        if (extents_fit(&tables[t], head->parent == 0, bytes, &end))
            wrong = wrong_columns(NULL, head->rank, out, t);
        if (wrong != NULL)
            return hotbed_error_table_number(
                hotbed_fail_path(
                    HOTBED_ERR_CORRUPT, name, "%s: table %" PRIu32 ": %s", name, t, wrong),
                t);
    }
    return HOTBED_OK;
}
