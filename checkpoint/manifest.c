/* checkpoint/manifest.c - one description of MANIFEST's text, for writing and for reading.
 *
 * A codec stands at a place in a text.  Each field function either prints a value there, or reads one
 * and checks its range; a literal is printed or compared.  After the first failure a codec does nothing
 * more, so that the description is free of error paths but where it loops or allocates.
 */
#include "checkpoint/manifest.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/bucket_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS_MAX_BITS = 48, /* of a table: with dim and element size no product below wraps */
    DIM_MAX = 4096,
    TABLES_MAX = 65535,
    NAME_BYTES = 64,
    END_BYTES = 4 + HOTBED_DIGEST_DIGITS + 1, /* "end <digest>\n" */
};

#define ROWS_MAX  ((uint64_t)1 << ROWS_MAX_BITS)
#define BYTES_MAX ((uint64_t)INT64_MAX)

typedef struct codec {
    bool writing;
    const char *name;     /* of the text, for messages */
    const char *at, *end; /* reading: what is left */
    char *text;           /* writing */
    size_t bytes, room;   /* writing */
    unsigned line;        /* from 1 */
    hotbed_status status;
} codec;

/* --- fields ------------------------------------------------------------------------------------ */

/* The rest of the line, short enough for a message, control characters as dots. */
static const char *shown(const codec *c, char text[33]) {
    size_t n = 0;
    for (const char *p = c->at; p < c->end && *p != '\n' && n < 32; p++)
        text[n++] = *p;
    for (size_t i = 0; i < n; i++)
        if (text[i] < ' ' || text[i] > '~')
            text[i] = '.';
    text[n] = '\0';
    return text;
}

static void expected(codec *c, const char *what) {
    char found[33];
    if (c->status == HOTBED_OK)
        c->status = hotbed_fail(
            HOTBED_ERR_CORRUPT, "%s line %u: expected %s, found '%s'", c->name, c->line, what,
            shown(c, found));
}

static void print(codec *c, const char *text) {
    size_t n = strlen(text);
    if (c->status != HOTBED_OK)
        return;
    if (n > c->room - c->bytes) {
        size_t room = 2 * c->room + n;
        char *grown = hotbed_new(room);
        if (grown == NULL) {
            c->status = hotbed_fail(HOTBED_ERR_MEMORY, "no %zu bytes for %s", room, c->name);
            return;
        }
        if (c->bytes > 0)
            memcpy(grown, c->text, c->bytes);
        hotbed_delete(c->text);
        c->text = grown;
        c->room = room;
    }
    memcpy(c->text + c->bytes, text, n);
    c->bytes += n;
}

/* Fixed text: words, spaces, the newline. */
static void literal(codec *c, const char *text) {
    if (c->writing) {
        print(c, text);
        return;
    }
    size_t n = strlen(text);
    if (c->status != HOTBED_OK)
        return;
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n) != 0) {
        char what[48];
        snprintf(what, sizeof what, text[0] == '\n' ? "the end of the line" : "'%.40s'", text);
        expected(c, what);
        return;
    }
    c->at += n;
    for (size_t i = 0; i < n; i++)
        c->line += text[i] == '\n' ? 1 : 0;
}

static void number(codec *c, uint64_t *value, uint64_t least, uint64_t most) {
    char text[64];
    if (c->writing) {
        snprintf(text, sizeof text, "%" PRIu64, *value);
        print(c, text);
        return;
    }
    if (c->status != HOTBED_OK)
        return;
    const char *p = c->at;
    uint64_t read = 0;
    bool fits = true;
    while (p < c->end && *p >= '0' && *p <= '9') {
        uint64_t digit = (uint64_t)(*p - '0');
        fits = fits && (read < UINT64_MAX / 10 || (read == UINT64_MAX / 10 && digit <= 5));
        read = read * 10 + digit;
        p++;
    }
    bool canonical = p > c->at && (*c->at != '0' || p == c->at + 1);
    if (!fits || !canonical || read < least || read > most) {
        snprintf(text, sizeof text, "a number in [%" PRIu64 ", %" PRIu64 "]", least, most);
        expected(c, text);
        return;
    }
    c->at = p;
    *value = read;
}

static void number32(codec *c, uint32_t *value, uint32_t least, uint32_t most) {
    uint64_t wide = *value;
    number(c, &wide, least, most);
    if (c->status == HOTBED_OK)
        *value = (uint32_t)wide;
}

/* Exactly `digits` lower-case hexadecimal digits. */
static void hex(codec *c, uint64_t *value, int digits) {
    if (c->writing) {
        char text[24];
        snprintf(text, sizeof text, "%0*" PRIx64, digits, *value);
        print(c, text);
        return;
    }
    if (c->status != HOTBED_OK)
        return;
    uint64_t read = 0;
    bool good = c->end - c->at >= digits;
    for (int i = 0; good && i < digits; i++) {
        char d = c->at[i];
        good = (d >= '0' && d <= '9') || (d >= 'a' && d <= 'f');
        read = read << 4 | (uint64_t)(d <= '9' ? d - '0' : d - 'a' + 10);
    }
    if (!good) {
        expected(c, "hexadecimal digits");
        return;
    }
    c->at += digits;
    *value = read;
}

static void digest(codec *c, hotbed_digest *value) {
    hex(c, &value->high, 16);
    hex(c, &value->low, 16);
}

/* A float is written as its bits: exact, whatever the locale. */
static void float_bits(codec *c, float *value) {
    uint64_t bits = hotbed_float_bits(*value);
    hex(c, &bits, 8);
    *value = hotbed_bits_float((uint32_t)bits);
}

static void double_bits(codec *c, double *value) {
    uint64_t bits;
    memcpy(&bits, value, sizeof bits);
    hex(c, &bits, 16);
    memcpy(value, &bits, sizeof bits);
}

/* Characters that a name in the file may have. */
static bool name_character(char d) {
    return (d >= 'a' && d <= 'z') || (d >= 'A' && d <= 'Z') || (d >= '0' && d <= '9') || d == '_' ||
           d == '.' || d == '-';
}

/* 1 to 63 characters of [A-Za-z0-9_.-]. */
static void name(codec *c, char value[NAME_BYTES]) {
    if (c->writing) {
        print(c, value);
        return;
    }
    if (c->status != HOTBED_OK)
        return;
    size_t n = 0;
    while (n < NAME_BYTES && c->at + n < c->end && name_character(c->at[n]))
        n++;
    if (n == 0 || n == NAME_BYTES) {
        expected(c, "a name of 1 to 63 characters");
        return;
    }
    memcpy(value, c->at, n);
    value[n] = '\0';
    c->at += n;
}

/* One of the words; *value is its number. */
static void choice(codec *c, uint32_t *value, const char *const *words, uint32_t num_words) {
    if (c->writing) {
        print(c, words[*value]);
        return;
    }
    for (uint32_t i = 0; c->status == HOTBED_OK && i < num_words; i++) {
        size_t n = strlen(words[i]);
        /* No word may be taken for another that it begins. */
        if ((size_t)(c->end - c->at) > n && memcmp(c->at, words[i], n) == 0 &&
            !name_character(c->at[n])) {
            c->at += n;
            *value = i;
            return;
        }
    }
    expected(c, "a known word");
}

/* --- the description ---------------------------------------------------------------------------- */

static const char *const kind_words[] = {"hash", "static"};
static const char *const dtype_words[] = {"f32", "f16", "bf16"};
static const char *const key_words[] = {"i64", "u64"};
static const char *const optimizer_words[] = {"none", "sgd", "adam", "adagrad", "rowwise_adagrad"};

static void describe_head(codec *c, hotbed_manifest *m) {
    char written[48];
    snprintf(
        written, sizeof written, "hotbed-checkpoint %d %d\n", HOTBED_FORMAT_MAJOR,
        HOTBED_FORMAT_MINOR);
    literal(c, written);
    literal(c, "id ");
    digest(c, &m->id);
    literal(c, " kind full step ");
    number(c, &m->step, 0, UINT64_MAX);
    literal(c, " created ");
    number(c, &m->created_ns, 0, UINT64_MAX);
    literal(c, "\nwriter ");
    name(c, m->writer);
    literal(c, "\nparent - -\nworld ");
    number32(c, &m->world, 1, HOTBED_WORLD_MAX);
    snprintf(written, sizeof written, " block %d digest xxh3_128\n", HOTBED_BLOCK_BYTES);
    literal(c, written);
}

static void describe_storage(codec *c, hotbed_manifest *m) {
    uint32_t key = (uint32_t)m->key_type - HOTBED_KEY_I64;
    literal(c, "storage key ");
    choice(c, &key, key_words, 2);
    m->key_type = (hotbed_key_type)(key + HOTBED_KEY_I64);
    literal(c, " seed ");
    number(c, &m->seed, 0, UINT64_MAX);
    literal(c, " tables ");
    number32(c, &m->num_tables, 1, TABLES_MAX);

    uint32_t kind = (uint32_t)m->optimizer.kind;
    literal(c, "\noptimizer ");
    choice(c, &kind, optimizer_words, 5);
    m->optimizer.size = sizeof m->optimizer;
    m->optimizer.kind = (hotbed_optimizer_kind)kind;
    literal(c, " learning_rate ");
    float_bits(c, &m->optimizer.learning_rate);
    literal(c, " beta1 ");
    float_bits(c, &m->optimizer.beta1);
    literal(c, " beta2 ");
    float_bits(c, &m->optimizer.beta2);
    literal(c, " eps ");
    float_bits(c, &m->optimizer.eps);
    literal(c, " weight_decay ");
    float_bits(c, &m->optimizer.weight_decay);
    literal(c, " initial_accumulator ");
    float_bits(c, &m->optimizer.initial_accumulator);
    literal(c, " max_gradient ");
    float_bits(c, &m->optimizer.max_gradient);

    literal(c, "\nstate optimizer_steps ");
    number(c, &m->state.optimizer_steps, 0, UINT64_MAX);
    literal(c, " clock ");
    number(c, &m->state.clock, 0, UINT64_MAX);
    literal(c, " beta1_power ");
    double_bits(c, &m->state.beta1_power);
    literal(c, " beta2_power ");
    double_bits(c, &m->state.beta2_power);
    literal(c, " learning_rate ");
    float_bits(c, &m->state.learning_rate);
    literal(c, "\n");
}

static void describe_extent(codec *c, hotbed_extent *extent) {
    literal(c, " off ");
    number(c, &extent->offset, 0, BYTES_MAX);
    literal(c, " len ");
    number(c, &extent->bytes, 0, BYTES_MAX);
    literal(c, " root ");
    digest(c, &extent->root);
    literal(c, "\n");
}

/* The number of the shard that a line is about, which is fixed by its place. */
static void shard_number(codec *c, uint32_t shard) {
    uint64_t value = shard;
    number(c, &value, shard, shard);
}

static void describe_shard(codec *c, hotbed_manifest *m, uint32_t number_of) {
    hotbed_manifest_shard *shard = &m->shards[number_of];
    literal(c, "shard ");
    shard_number(c, number_of);
    literal(c, " size ");
    number(c, &shard->bytes, 1, BYTES_MAX);
    literal(c, " meta ");
    number(c, &shard->metadata_bytes, 1, shard->bytes);
    literal(c, " root ");
    digest(c, &shard->metadata);
    literal(c, "\nblocks ");
    shard_number(c, number_of);
    describe_extent(c, &shard->blocks);
    if (number_of == 0) {
        literal(c, "extra 0");
        describe_extent(c, &shard->extra);
    }
}

static void describe_part(
    codec *c, hotbed_manifest *m, hotbed_manifest_table *table, hotbed_manifest_part *part,
    uint32_t shard) {
    uint64_t buckets = table->kind == HOTBED_TABLE_HASH ? (uint64_t)1 << table->bucket_bits : 0;
    literal(c, "part ");
    literal(c, table->name);
    literal(c, " ");
    shard_number(c, shard);
    literal(c, " rows ");
    number(c, &part->rows, 0, table->rows);
    literal(c, " first ");
    number(c, &part->first_row, 0, table->rows);
    literal(c, " buckets ");
    number(c, &part->first_bucket, 0, buckets);
    literal(c, " ");
    number(c, &part->end_bucket, part->first_bucket, buckets);
    literal(c, "\n");
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
        if (!hotbed_manifest_has(table->kind, m->optimizer.kind, i))
            continue;
        literal(c, "extent ");
        literal(c, table->name);
        literal(c, " ");
        shard_number(c, shard);
        literal(c, " ");
        literal(c, hotbed_manifest_column_name(m->optimizer.kind, i));
        describe_extent(c, &part->columns[i]);
    }
}

static void describe_table(codec *c, hotbed_manifest *m, uint32_t number_of) {
    hotbed_manifest_table *table = &m->tables[number_of];
    uint32_t kind = (uint32_t)table->kind;
    uint32_t dtype = (uint32_t)table->dtype - HOTBED_F32;
    literal(c, "table ");
    name(c, table->name);
    literal(c, " kind ");
    choice(c, &kind, kind_words, 2);
    table->kind = (hotbed_table_kind)kind;
    literal(c, " dim ");
    number32(c, &table->dim, 1, DIM_MAX);
    literal(c, " value ");
    choice(c, &dtype, dtype_words, 3);
    table->dtype = (hotbed_dtype)(dtype + HOTBED_F32);
    literal(c, " rows ");
    number(c, &table->rows, 0, ROWS_MAX);
    if (table->kind == HOTBED_TABLE_HASH) {
        literal(c, " bucket_bits ");
        number32(c, &table->bucket_bits, 0, HOTBED_BUCKET_BITS_MAX);
        literal(c, " hash fmix64 order bucket,key\n");
    } else {
        literal(c, " order row\n");
    }
    for (uint32_t shard = 0; shard < m->world && c->status == HOTBED_OK; shard++)
        describe_part(c, m, table, &m->parts[(uint64_t)number_of * m->world + shard], shard);
    literal(c, "content ");
    literal(c, table->name);
    literal(c, " ");
    digest(c, &table->content);
    literal(c, "\n");
}

/* Shortest text that so many tables and shards can have: a count that the rest of the text cannot hold
 * is refused before anything is allocated by it. */
static void check_counts(codec *c, const hotbed_manifest *m) {
    enum { SHARD_LINE = 60, PART_LINE = 40 };
    uint64_t left = (uint64_t)(c->end - c->at);
    uint64_t parts = (uint64_t)m->num_tables * m->world;
    if (c->status == HOTBED_OK && parts * PART_LINE + (uint64_t)m->world * SHARD_LINE > left)
        c->status = hotbed_fail(
            HOTBED_ERR_CORRUPT,
            "%s: %" PRIu32 " tables of %" PRIu32 " shards are not in the %" PRIu64
            " bytes that are left",
            c->name, m->num_tables, m->world, left);
}

static void describe(codec *c, hotbed_manifest *m) {
    describe_head(c, m);
    describe_storage(c, m);
    if (!c->writing) {
        check_counts(c, m);
        if (c->status == HOTBED_OK)
            c->status = hotbed_manifest_reserve(m);
    }
    for (uint32_t i = 0; c->status == HOTBED_OK && i < m->world; i++)
        describe_shard(c, m, i);
    literal(c, "index size ");
    number(c, &m->index_bytes, 1, BYTES_MAX);
    literal(c, " root ");
    digest(c, &m->index);
    literal(c, "\n");
    for (uint32_t i = 0; c->status == HOTBED_OK && i < m->num_tables; i++)
        describe_table(c, m, i);
}

/* --- what must agree ------------------------------------------------------------------------------ */

static hotbed_status wrong(
    const char *file, const char *table, const char *what, uint64_t found, uint64_t right) {
    return hotbed_fail(
        HOTBED_ERR_CORRUPT, "%s: %s: %s is %" PRIu64 ", expected %" PRIu64, file, table, what,
        found, right);
}

/* Parts of a table follow each other without gap or overlap, and their columns have the bytes that
 * their rows need. */
static hotbed_status check_table(const char *file, const hotbed_manifest *m, uint32_t number_of) {
    const hotbed_manifest_table *table = &m->tables[number_of];
    uint64_t row = 0, bucket = 0;
    for (uint32_t shard = 0; shard < m->world; shard++) {
        const hotbed_manifest_part *part = &m->parts[(uint64_t)number_of * m->world + shard];
        if (part->first_row != row)
            return wrong(file, table->name, "a part's first row", part->first_row, row);
        if (part->first_bucket != bucket)
            return wrong(file, table->name, "a part's first bucket", part->first_bucket, bucket);
        row += part->rows; /* at most 2^16 parts of 2^48 rows */
        bucket = part->end_bucket;
        for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
            uint64_t bytes = hotbed_manifest_column_bytes(m, table, part, i);
            if (part->columns[i].bytes != bytes)
                return wrong(
                    file, table->name, hotbed_manifest_column_name(m->optimizer.kind, i),
                    part->columns[i].bytes, bytes);
        }
    }
    if (row != table->rows)
        return wrong(file, table->name, "the parts' sum of rows", row, table->rows);
    uint64_t buckets = table->kind == HOTBED_TABLE_HASH ? (uint64_t)1 << table->bucket_bits : 0;
    if (bucket != buckets)
        return wrong(file, table->name, "the parts' last bucket", bucket, buckets);
    return HOTBED_OK;
}

/* Where an extent lies. */
typedef struct span {
    uint64_t offset, bytes;
} span;

static int by_offset(const void *a, const void *b) {
    const span *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static span span_of(const hotbed_extent *extent) {
    return (span){.offset = extent->offset, .bytes = extent->bytes};
}

/* Extents of a shard lie behind its metadata, inside the file, and apart.  `spans` has room for all. */
static hotbed_status check_shard(
    const char *file, const hotbed_manifest *m, uint32_t number_of, span *spans) {
    const hotbed_manifest_shard *shard = &m->shards[number_of];
    size_t n = 0;
    if (shard->extra.bytes > (uint64_t)1 << 30)
        return wrong(file, "extra", "length", shard->extra.bytes, (uint64_t)1 << 30);
    if (shard->blocks.bytes != shard->num_blocks * sizeof(hotbed_digest))
        return wrong(
            file, "blocks", "length", shard->blocks.bytes,
            shard->num_blocks * sizeof(hotbed_digest));
    spans[n++] = span_of(&shard->blocks);
    spans[n++] = span_of(&shard->extra);
    for (uint32_t t = 0; t < m->num_tables; t++)
        for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
            spans[n++] = span_of(&m->parts[(uint64_t)t * m->world + number_of].columns[i]);
    qsort(spans, n, sizeof *spans, by_offset);
    uint64_t end = shard->metadata_bytes;
    for (size_t i = 0; i < n; i++) {
        if (spans[i].bytes == 0 && spans[i].offset != 0)
            return wrong(file, "an empty extent", "offset", spans[i].offset, 0);
        if (spans[i].bytes == 0)
            continue;
        if (spans[i].offset < end || spans[i].bytes > shard->bytes ||
            spans[i].offset > shard->bytes - spans[i].bytes)
            return hotbed_fail(
                HOTBED_ERR_CORRUPT,
                "%s: an extent of %" PRIu64 " bytes at %" PRIu64
                " is not in the free bytes %" PRIu64 " to %" PRIu64 " of shard %" PRIu32,
                file, spans[i].bytes, spans[i].offset, end, shard->bytes, number_of);
        end = spans[i].offset + spans[i].bytes;
    }
    return HOTBED_OK;
}

typedef struct named {
    const char *name;
    uint32_t number;
} named;

static int by_name(const void *a, const void *b) {
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

static hotbed_status sort_names(const char *file, hotbed_manifest *m) {
    named *names = hotbed_new(m->num_tables * sizeof *names);
    if (names == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %" PRIu32 " names", m->num_tables);
    for (uint32_t i = 0; i < m->num_tables; i++)
        names[i] = (named){.name = m->tables[i].name, .number = i};
    qsort(names, m->num_tables, sizeof *names, by_name);
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < m->num_tables; i++) {
        m->by_name[i] = names[i].number;
        if (i > 0 && strcmp(names[i].name, names[i - 1].name) == 0)
            status = hotbed_fail(HOTBED_ERR_CORRUPT, "%s: two tables '%s'", file, names[i].name);
    }
    hotbed_delete(names);
    return status;
}

static hotbed_status check(const char *file, hotbed_manifest *m) {
    HOTBED_TRY(sort_names(file, m));
    for (uint32_t i = 0; i < m->num_tables; i++)
        HOTBED_TRY(check_table(file, m, i));
    hotbed_manifest_number_blocks(m);
    size_t most = (size_t)m->num_tables * HOTBED_COLUMNS + 2;
    span *spans = hotbed_new(most * sizeof *spans);
    if (spans == NULL)
        return hotbed_fail(HOTBED_ERR_MEMORY, "no memory for %zu extents", most);
    hotbed_status status = HOTBED_OK;
    for (uint32_t i = 0; i < m->world && status == HOTBED_OK; i++)
        status = check_shard(file, m, i, spans);
    hotbed_delete(spans);
    return status;
}

/* --- the module's functions ----------------------------------------------------------------------- */

hotbed_status hotbed_manifest_reserve(hotbed_manifest *m) {
    uint64_t parts = (uint64_t)m->num_tables * m->world;
    m->shards = hotbed_new(m->world * sizeof *m->shards);
    m->tables = hotbed_new(m->num_tables * sizeof *m->tables);
    m->parts = hotbed_new(parts * sizeof *m->parts);
    m->by_name = hotbed_new(m->num_tables * sizeof *m->by_name);
    if (m->shards == NULL || m->tables == NULL || m->parts == NULL || m->by_name == NULL) {
        hotbed_manifest_free(m);
        return hotbed_fail(
            HOTBED_ERR_MEMORY, "no memory to describe %" PRIu32 " tables in %" PRIu32 " shards",
            m->num_tables, m->world);
    }
    return HOTBED_OK;
}

void hotbed_manifest_free(hotbed_manifest *m) {
    if (m == NULL)
        return;
    hotbed_delete(m->shards);
    hotbed_delete(m->tables);
    hotbed_delete(m->parts);
    hotbed_delete(m->by_name);
    *m = (hotbed_manifest){.world = 0};
}

bool hotbed_manifest_has(hotbed_table_kind kind, hotbed_optimizer_kind optimizer, uint32_t column) {
    if (column >= HOTBED_COLUMN_STATE)
        return column - HOTBED_COLUMN_STATE < hotbed_optimizer_states(optimizer);
    return column == HOTBED_COLUMN_VALUES || kind == HOTBED_TABLE_HASH;
}

uint64_t hotbed_manifest_column_bytes(
    const hotbed_manifest *m, const hotbed_manifest_table *table, const hotbed_manifest_part *part,
    uint32_t column) {
    if (!hotbed_manifest_has(table->kind, m->optimizer.kind, column))
        return 0;
    if (column == HOTBED_COLUMN_BUCKET)
        return (part->end_bucket - part->first_bucket) * sizeof(uint64_t);
    if (column == HOTBED_COLUMN_VALUES)
        return part->rows * table->dim * hotbed_dtype_bytes(table->dtype);
    if (column >= HOTBED_COLUMN_STATE)
        return part->rows * hotbed_optimizer_state_dim(m->optimizer.kind, table->dim) *
               sizeof(float);
    return part->rows * sizeof(uint64_t);
}

const char *hotbed_manifest_column_name(hotbed_optimizer_kind optimizer, uint32_t column) {
    /* One table of words for all: names are part of the format, and are not made up of others. */
    static const char *const words[HOTBED_COLUMN_STATE] = {"keys", "values", "scores", "bucket"};
    if (column < HOTBED_COLUMN_STATE)
        return words[column];
    switch (optimizer) {
    case HOTBED_OPT_ADAM:
        return column == HOTBED_COLUMN_STATE ? "opt/exp_avg" : "opt/exp_avg_sq";
    case HOTBED_OPT_ADAGRAD:
        return "opt/sum";
    case HOTBED_OPT_ROWWISE_ADAGRAD:
        return "opt/momentum1";
    case HOTBED_OPT_SGD:
        break;
    }
    return "opt/none";
}

static uint64_t number_extent(hotbed_extent *extent, uint64_t first) {
    extent->first_block = first;
    return first + extent->bytes / HOTBED_BLOCK_BYTES +
           (extent->bytes % HOTBED_BLOCK_BYTES != 0 ? 1 : 0);
}

void hotbed_manifest_number_blocks(hotbed_manifest *m) {
    for (uint32_t shard = 0; shard < m->world; shard++) {
        uint64_t next = number_extent(&m->shards[shard].extra, 0);
        for (uint32_t t = 0; t < m->num_tables; t++)
            for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
                next = number_extent(&m->parts[(uint64_t)t * m->world + shard].columns[i], next);
        m->shards[shard].num_blocks = next;
    }
}

hotbed_status hotbed_manifest_print(const hotbed_manifest *m, char **text, size_t *bytes) {
    codec c = {.writing = true, .name = HOTBED_MANIFEST_NAME, .line = 1};
    hotbed_manifest copy = *m; /* a codec that writes changes nothing, but its type says it may */
    describe(&c, &copy);
    if (c.status == HOTBED_OK) {
        char end[HOTBED_DIGEST_DIGITS + 1];
        hotbed_digest_text(hotbed_digest_of(c.text, c.bytes), end);
        literal(&c, "end ");
        literal(&c, end);
        literal(&c, "\n");
    }
    if (c.status == HOTBED_OK && c.bytes > HOTBED_MANIFEST_BYTES_MAX)
        c.status = hotbed_fail(
            HOTBED_ERR_UNSUPPORTED, "%" PRIu32 " tables need a %s of %zu bytes, at most %d",
            m->num_tables, c.name, c.bytes, HOTBED_MANIFEST_BYTES_MAX);
    if (c.status != HOTBED_OK) {
        hotbed_delete(c.text);
        return c.status;
    }
    *text = c.text;
    *bytes = c.bytes;
    return HOTBED_OK;
}

/* Refuse a format that this library does not know, with words that say so. */
static void check_version(codec *c) {
    codec ahead = *c;
    uint32_t major = 0, minor = 0;
    literal(&ahead, "hotbed-checkpoint ");
    number32(&ahead, &major, 0, UINT32_MAX);
    literal(&ahead, " ");
    number32(&ahead, &minor, 0, UINT32_MAX);
    if (ahead.status == HOTBED_OK &&
        (major > HOTBED_FORMAT_MAJOR ||
         (major == HOTBED_FORMAT_MAJOR && minor > HOTBED_FORMAT_MINOR)))
        ahead.status = hotbed_fail(
            HOTBED_ERR_UNSUPPORTED,
            "%s: format %" PRIu32 ".%" PRIu32 "; this library reads up to %d.%d", c->name, major,
            minor, HOTBED_FORMAT_MAJOR, HOTBED_FORMAT_MINOR);
    c->status = ahead.status;
}

hotbed_status hotbed_manifest_parse(
    const char *name_of, const char *text, size_t bytes, hotbed_manifest *out) {
    *out = (hotbed_manifest){.world = 0};
    if (bytes < END_BYTES || bytes > HOTBED_MANIFEST_BYTES_MAX)
        return hotbed_fail(
            HOTBED_ERR_CORRUPT, "%s has %zu bytes, expected %d to %d", name_of, bytes, END_BYTES,
            HOTBED_MANIFEST_BYTES_MAX);
    codec c = {.name = name_of, .at = text + bytes - END_BYTES, .end = text + bytes, .line = 1};
    hotbed_digest right = hotbed_digest_of(text, bytes - END_BYTES), found = {0};
    literal(&c, "end ");
    digest(&c, &found);
    literal(&c, "\n");
    if (c.status != HOTBED_OK || !hotbed_digest_equal(right, found)) {
        char expect[HOTBED_DIGEST_DIGITS + 1];
        hotbed_digest_text(right, expect);
        return hotbed_fail(
            HOTBED_ERR_CORRUPT, "%s is damaged or cut short: its last line is not 'end %s'",
            name_of, expect);
    }
    c.at = text;
    c.end = text + bytes - END_BYTES;
    c.line = 1;
    check_version(&c);
    if (c.status == HOTBED_OK)
        describe(&c, out);
    if (c.status == HOTBED_OK && c.at != c.end)
        expected(&c, "nothing more");
    if (c.status == HOTBED_OK)
        c.status = check(name_of, out);
    if (c.status != HOTBED_OK)
        hotbed_manifest_free(out);
    return c.status;
}

uint32_t hotbed_manifest_find(const hotbed_manifest *m, const char *name_of) {
    uint32_t low = 0, high = m->num_tables;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(m->tables[m->by_name[middle]].name, name_of);
        if (order == 0)
            return m->by_name[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return UINT32_MAX;
}

void hotbed_shard_name(uint32_t shard, uint32_t world, char name_of[32]) {
    snprintf(name_of, 32, "shard-%05" PRIu32 "-of-%05" PRIu32 ".h5", shard, world);
}
