/* checkpoint/format/manifest.c - one description of MANIFEST's text, for writing and for reading. */
#include "checkpoint/format/manifest.h"

#include "base/error.h"
#include "base/stream.h"
#include "checkpoint/format/bucket_core.h"
#include "checkpoint/format/codec.h"
#include "hotbed/route.h"
#include "storage/types.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    ROWS_MAX_BITS = 48, /* rows of a table times dim times element size do not overflow */
    DIM_MAX = 4096,
    TABLES_MAX = 65535,
    END_BYTES = 4 + HOTBED_DIGEST_DIGITS + 1, /* "end <digest>\n" */
};

#define ROWS_MAX  ((uint64_t)1 << ROWS_MAX_BITS)
#define BYTES_MAX ((uint64_t)INT64_MAX)

/* --- the description ---------------------------------------------------------------------------- */

static const char *const kind_words[] = {"hash", "static"};
#define HOTBED_WORD(DTYPE, name, ...) #name,
static const char *const dtype_words[] = {HOTBED_DTYPES(HOTBED_WORD)};
#undef HOTBED_WORD
static const char *const key_words[] = {"i64", "u64"};
#define HOTBED_WORD(KIND, name, ...) [HOTBED_OPT_##KIND] = #name,
static const char *const optimizer_words[] = {"none", HOTBED_OPTIMIZERS(HOTBED_WORD)};
#undef HOTBED_WORD

/* The names of hotbed_route_name(). */
static const char *const route_words[] = {"none", "hash_roundrobin", "roundrobin", "continuous"};
static const char *const spread_words[] = {"bucket", "any"};
static const char *const full_words[] = {"full", "delta"};
static const char *const times_words[] = {"no", "yes"};
static const char *const pooling_words[] = {"none", "sum", "mean"};

/* The subject of a text. */
typedef struct scope {
    bool whole;          /* true: MANIFEST; false: the description of one shard */
    uint32_t first, end; /* shards */
} scope;

static void describe_head(hotbed_codec *c, hotbed_manifest *m, const scope *s) {
    char written[48];
    uint64_t block = m->block_bytes;
    snprintf(
        written, sizeof written, "hotbed-%s %d\nid ", s->whole ? "checkpoint" : "shard",
        HOTBED_FORMAT);
    hotbed_codec_digest(c, written, &m->id);
    m->increment = hotbed_codec_choice(c, " kind ", m->increment, full_words, 2) == 1;
    hotbed_codec_number(c, " step ", &m->step, 0, UINT64_MAX);
    hotbed_codec_number(c, " created ", &m->created_ns, 0, UINT64_MAX);
    hotbed_codec_name(c, "\nwriter ", m->writer);
    if (m->increment) {
        hotbed_codec_digest(c, "\nparent ", &m->parent);
        hotbed_codec_digest(c, " ", &m->parent_digest);
    } else {
        hotbed_codec_literal(c, "\nparent - -");
    }
    hotbed_codec_number32(c, "\nworld ", &m->world, 1, HOTBED_WORLD_MAX);
    hotbed_codec_number(c, " block ", &block, HOTBED_BLOCK_BYTES_LEAST, HOTBED_BLOCK_BYTES_MOST);
    if ((block & (block - 1)) != 0)
        hotbed_codec_expected(c, "a power of two");
    m->block_bytes = (uint32_t)block;
    hotbed_codec_number32(
        c, " digest xxh3_128\nstorages ", &m->num_storages, 1, HOTBED_STORAGES_MAX);
    hotbed_codec_number32(c, " tables ", &m->num_tables, 1, TABLES_MAX);
    hotbed_codec_number32(
        c, " blobs ", &m->num_blobs, 0, s->whole || s->first == 0 ? HOTBED_BLOBS_MAX : 0);
    hotbed_codec_literal(c, "\n");
}

/* The parameters that every optimizer has in its line, and after them the others that it uses and
 * that are not 0. */
static void describe_parameters(hotbed_codec *c, hotbed_optimizer *o) {
    const hotbed_optimizer_info *info = hotbed_optimizer_describe(o->kind);
    const uint32_t used = (info == NULL ? 0 : info->parameters) | HOTBED_USES_IN_EVERY_LINE;
    const hotbed_optimizer_parameter *p;
    for (uint32_t i = 0; (p = hotbed_optimizer_parameter_at(i)) != NULL; i++) {
        if ((used >> i & 1U) == 0)
            continue;
        char word[48];
        snprintf(word, sizeof word, " %s ", p->name);
        float value = hotbed_optimizer_value(o, p);
        const bool always = (HOTBED_USES_IN_EVERY_LINE >> i & 1U) != 0;
        if (!always && !hotbed_codec_optional(c, word, value != 0.0F))
            continue;
        hotbed_codec_float(c, always ? word : "", &value);
        if (value == 0.0F && !always)
            hotbed_codec_expected(c, "another value than 0");
        hotbed_optimizer_set(o, p, value);
    }
}

static void describe_storage(hotbed_codec *c, hotbed_manifest_storage *m) {
    const uint32_t key = (uint32_t)m->key_type - HOTBED_KEY_I64;
    hotbed_codec_name(c, "storage ", m->name);
    m->pooling =
        (hotbed_pooling)hotbed_codec_choice(c, " pooling ", (uint32_t)m->pooling, pooling_words, 3);
    m->key_type =
        (hotbed_key_type)(hotbed_codec_choice(c, " key ", key, key_words, 2) + HOTBED_KEY_I64);
    hotbed_codec_number(c, " seed ", &m->seed, 0, UINT64_MAX);

    m->optimizer.size = sizeof m->optimizer;
    m->optimizer.kind = (hotbed_optimizer_kind)hotbed_codec_choice(
        c, "\noptimizer ", (uint32_t)m->optimizer.kind, optimizer_words, HOTBED_OPT_LAST + 1);
    describe_parameters(c, &m->optimizer);

    m->state.size = sizeof m->state;
    hotbed_codec_number(c, "\nstate optimizer_steps ", &m->state.optimizer_steps, 0, UINT64_MAX);
    hotbed_codec_number(c, " clock ", &m->state.clock, 0, UINT64_MAX);
    hotbed_codec_double(c, " beta1_power ", &m->state.beta1_power);
    hotbed_codec_double(c, " beta2_power ", &m->state.beta2_power);
    hotbed_codec_float(c, " learning_rate ", &m->state.learning_rate);
    hotbed_codec_number(c, " time ", &m->state.time, 0, UINT64_MAX);
    hotbed_codec_literal(c, "\n");
}

static void describe_extent(hotbed_codec *c, hotbed_extent *extent) {
    hotbed_codec_number(c, " off ", &extent->offset, 0, BYTES_MAX);
    hotbed_codec_number(c, " len ", &extent->bytes, 0, BYTES_MAX);
    hotbed_codec_digest(c, " root ", &extent->root);
    hotbed_codec_literal(c, "\n");
}

/* Print or check the number of the shard that a line describes, which the line's position
 * determines. */
static void shard_number(hotbed_codec *c, const char *word, uint32_t shard) {
    uint64_t value = shard;
    hotbed_codec_number(c, word, &value, shard, shard);
}

/* The same of a line that begins with a word and the name of a table. */
static void part_number(
    hotbed_codec *c, const char *word, const hotbed_manifest_table *table, uint32_t shard) {
    hotbed_codec_literal(c, word);
    hotbed_codec_literal(c, table->name);
    shard_number(c, " ", shard);
}

static void describe_shard(hotbed_codec *c, hotbed_manifest *m, uint32_t number_of) {
    hotbed_manifest_shard *shard = &m->shards[number_of];
    shard_number(c, "shard ", number_of);
    hotbed_codec_number(c, " size ", &shard->bytes, 1, BYTES_MAX);
    hotbed_codec_number(c, " meta ", &shard->metadata_bytes, 1, shard->bytes);
    hotbed_codec_digest(c, " root ", &shard->metadata);
    shard_number(c, "\nblocks ", number_of);
    describe_extent(c, &shard->blocks);
    for (uint32_t i = 0; number_of == 0 && i < m->num_blobs && c->status == HOTBED_OK; i++) {
        hotbed_codec_name(c, "blob ", m->blobs[i].name);
        describe_extent(c, &m->blobs[i].extent);
    }
}

static void describe_part(
    hotbed_codec *c, hotbed_manifest *m, hotbed_manifest_table *table, hotbed_manifest_part *part,
    uint32_t shard) {
    part_number(c, "part ", table, shard);
    hotbed_codec_number(c, " rows ", &part->rows, 0, table->rows);
    hotbed_codec_number(c, " first ", &part->first_row, 0, table->rows);
    const bool hash = table->kind == HOTBED_TABLE_HASH;
    const uint64_t most = hash ? hotbed_manifest_range(table) : ROWS_MAX;
    hotbed_codec_number(c, " buckets ", &part->first, 0, most);
    hotbed_codec_number(c, " ", &part->end, part->first, most);
    hotbed_codec_number(c, " counted ", &part->counted, 0, hash ? ROWS_MAX : 0);
    hotbed_codec_number(c, " erased ", &part->erased, 0, m->increment && hash ? ROWS_MAX : 0);
    hotbed_codec_literal(c, "\n");
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
        if (!hotbed_manifest_has(m, table, i))
            continue;
        part_number(c, "extent ", table, shard);
        hotbed_codec_literal(c, " ");
        hotbed_codec_literal(
            c, hotbed_manifest_column_name(hotbed_manifest_optimizer(m, table), i));
        describe_extent(c, &part->columns[i]);
    }
}

static void describe_route(hotbed_codec *c, hotbed_manifest_table *table) {
    table->route = hotbed_codec_choice(c, " route ", table->route, route_words, 4);
    bool numbered =
        table->route == HOTBED_ROUTE_CONTINUOUS + 1 ||
        (table->kind == HOTBED_TABLE_STATIC && table->route == HOTBED_ROUTE_ROUND_ROBIN + 1);
    hotbed_codec_number(c, " ", &table->route_rows, 0, numbered ? UINT64_MAX : 0);
}

static void describe_hash(hotbed_codec *c, hotbed_manifest_table *table) {
    hotbed_codec_number(c, " keys ", &table->keys, table->rows, ROWS_MAX);
    hotbed_codec_number32(c, " bucket_bits ", &table->bucket_bits, 0, HOTBED_BUCKET_BITS_MAX);
    hotbed_codec_literal(c, " hash fmix64 order bucket,key");
    table->spread =
        (hotbed_spread)hotbed_codec_choice(c, " spread ", (uint32_t)table->spread, spread_words, 2);
    describe_route(c, table);
    table->times = hotbed_codec_choice(c, " times ", table->times, times_words, 2) == 1;
    hotbed_codec_literal(c, "\n");
}

static void describe_static(hotbed_codec *c, hotbed_manifest_table *table) {
    hotbed_codec_number(c, " order row of ", &table->capacity, table->rows, ROWS_MAX);
    describe_route(c, table);
    hotbed_codec_literal(c, "\n");
}

/* The type of states, unless it is f32. */
static void describe_states(hotbed_codec *c, hotbed_manifest *m, hotbed_manifest_table *table) {
    if (!hotbed_codec_optional(c, " states bf16", table->state_dtype == HOTBED_BF16)) {
        table->state_dtype = HOTBED_F32;
        return;
    }
    table->state_dtype = HOTBED_BF16;
    if (c->status == HOTBED_OK &&
        hotbed_states_dtype(hotbed_manifest_optimizer(m, table), HOTBED_BF16) != HOTBED_BF16)
        hotbed_codec_expected(c, "an optimizer that may have states of bf16");
}

static void describe_table(
    hotbed_codec *c, hotbed_manifest *m, uint32_t number_of, const scope *s) {
    hotbed_manifest_table *table = &m->tables[number_of];
    const uint32_t dtype = (uint32_t)table->dtype - HOTBED_F32;
    hotbed_codec_name(c, "table ", table->name);
    hotbed_codec_number32(c, " storage ", &table->storage, 0, m->num_storages - 1);
    table->kind =
        (hotbed_table_kind)hotbed_codec_choice(c, " kind ", (uint32_t)table->kind, kind_words, 2);
    hotbed_codec_number32(c, " dim ", &table->dim, 1, DIM_MAX);
    table->dtype =
        (hotbed_dtype)(hotbed_codec_choice(c, " value ", dtype, dtype_words, HOTBED_DTYPE_LAST) + HOTBED_F32);
    describe_states(c, m, table);
    hotbed_codec_number(c, " rows ", &table->rows, 0, ROWS_MAX);
    if (table->kind == HOTBED_TABLE_HASH)
        describe_hash(c, table);
    else
        describe_static(c, table);
    for (uint32_t shard = s->first; shard < s->end && c->status == HOTBED_OK; shard++)
        describe_part(c, m, table, &m->parts[(uint64_t)number_of * m->world + shard], shard);
    hotbed_codec_literal(c, "content ");
    hotbed_codec_literal(c, table->name);
    hotbed_codec_digest(c, " ", &table->content);
    hotbed_codec_literal(c, "\n");
}

/* Refuse numbers of storages, blobs, tables or shards that the rest of the text cannot hold, even
 * with the shortest lines, before memory is allocated for them. */
static void check_counts(hotbed_codec *c, const hotbed_manifest *m, bool whole) {
    enum { STORAGE_LINES = 200, SHARD_LINE = 60, PART_LINE = 40, BLOB_LINE = 40 };
    uint64_t left = (uint64_t)(c->end - c->at), shards = whole ? m->world : 1;
    uint64_t bytes = (uint64_t)m->num_storages * STORAGE_LINES +
                     (uint64_t)m->num_blobs * BLOB_LINE + shards * SHARD_LINE +
                     m->num_tables * shards * PART_LINE;
    if (c->status == HOTBED_OK && bytes > left)
        c->status = hotbed_error_path(
            hotbed_fail_bound(
                HOTBED_ERR_CORRUPT, left,
                "%s: %" PRIu32 " storages, %" PRIu32 " blobs and %" PRIu32 " tables of %" PRIu32
                " shards do not fit in the %" PRIu64 " bytes that are left",
                c->name, m->num_storages, m->num_blobs, m->num_tables, m->world, left),
            c->name);
}

/* Describe a manifest. Allocates the shards and tables of *m if it has none. */
static void describe(hotbed_codec *c, hotbed_manifest *m, scope s) {
    describe_head(c, m, &s);
    if (s.whole)
        s.end = m->world;
    if (!c->writing && m->shards == NULL) {
        check_counts(c, m, s.whole);
        if (c->status == HOTBED_OK)
            c->status = hotbed_manifest_reserve(m);
    }
    for (uint32_t i = 0; c->status == HOTBED_OK && i < m->num_storages; i++)
        describe_storage(c, &m->storages[i]);
    for (uint32_t i = s.first; c->status == HOTBED_OK && i < s.end; i++)
        describe_shard(c, m, i);
    if (s.whole) {
        hotbed_codec_number(c, "index size ", &m->index_bytes, 1, BYTES_MAX);
        hotbed_codec_digest(c, " root ", &m->index);
        hotbed_codec_literal(c, "\n");
    }
    for (uint32_t i = 0; c->status == HOTBED_OK && i < m->num_tables; i++)
        describe_table(c, m, i, &s);
}

/* --- the module's functions ----------------------------------------------------------------------- */

hotbed_status hotbed_manifest_reserve(hotbed_manifest *m) {
    uint64_t parts = (uint64_t)m->num_tables * m->world;
    m->storages = hotbed_new(m->num_storages * sizeof *m->storages);
    m->blobs = hotbed_new(m->num_blobs * sizeof *m->blobs);
    m->shards = hotbed_new(m->world * sizeof *m->shards);
    m->tables = hotbed_new(m->num_tables * sizeof *m->tables);
    m->parts = hotbed_new(parts * sizeof *m->parts);
    m->by_name = hotbed_new(m->num_tables * sizeof *m->by_name);
    if (m->storages == NULL || m->blobs == NULL || m->shards == NULL || m->tables == NULL ||
        m->parts == NULL || m->by_name == NULL) {
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
    hotbed_delete(m->storages);
    hotbed_delete(m->blobs);
    hotbed_delete(m->shards);
    hotbed_delete(m->tables);
    hotbed_delete(m->parts);
    hotbed_delete(m->by_name);
    *m = (hotbed_manifest){.world = 0};
}

static hotbed_status print_scope(
    const hotbed_manifest *m, scope s, const char *name, char **text, size_t *bytes) {
    hotbed_codec c = {.writing = true, .name = name, .line = 1};
    hotbed_manifest copy =
        *m; /* a writing codec changes nothing, but takes a pointer that is not const */
    describe(&c, &copy, s);
    if (c.status == HOTBED_OK) {
        const hotbed_digits end = hotbed_digest_text(hotbed_digest_of(c.text, c.bytes));
        hotbed_codec_literal(&c, "end ");
        hotbed_codec_literal(&c, end.text);
        hotbed_codec_literal(&c, "\n");
    }
    if (c.status == HOTBED_OK && c.bytes > HOTBED_MANIFEST_BYTES_MAX)
        c.status = hotbed_fail_limit(
            HOTBED_ERR_UNSUPPORTED, NULL, c.bytes, HOTBED_MANIFEST_BYTES_MAX,
            "%" PRIu32 " tables in %" PRIu32 " shards need a %s of %zu bytes, at most %d",
            m->num_tables, m->world, c.name, c.bytes, HOTBED_MANIFEST_BYTES_MAX);
    if (c.status != HOTBED_OK) {
        hotbed_delete(c.text);
        return c.status;
    }
    *text = c.text;
    *bytes = c.bytes;
    return HOTBED_OK;
}

hotbed_status hotbed_manifest_print(const hotbed_manifest *m, char **text, size_t *bytes) {
    scope s = {.whole = true};
    return print_scope(m, s, HOTBED_MANIFEST_NAME, text, bytes);
}

hotbed_status hotbed_manifest_print_shard(
    const hotbed_manifest *m, uint32_t shard, char **text, size_t *bytes) {
    scope s = {.first = shard, .end = shard + 1};
    return print_scope(m, s, "description", text, bytes);
}

/* Refuse a format that this library does not know, with both numbers in the message. */
static void check_version(hotbed_codec *c) {
    hotbed_codec ahead = *c;
    uint32_t format = 0;
    hotbed_codec_number32(&ahead, "hotbed-checkpoint ", &format, 0, UINT32_MAX);
    if (ahead.status == HOTBED_OK && format > HOTBED_FORMAT)
        ahead.status = hotbed_fail_path_limit(
            HOTBED_ERR_UNSUPPORTED, c->name, "format", format, HOTBED_FORMAT,
            "%s has format %" PRIu32
            ", and this library reads formats up to %d: use a newer version of Hotbed",
            c->name, format, HOTBED_FORMAT);
    c->status = ahead.status;
}

/* Check that the text is complete: its last line is the digest of all lines before. Sets *c to the
 * first line. */
static hotbed_status open_text(
    const char *name_of, const char *text, size_t bytes, hotbed_codec *c) {
    if (bytes < END_BYTES || bytes > HOTBED_MANIFEST_BYTES_MAX)
        return hotbed_fail_path_limit(
            HOTBED_ERR_CORRUPT, name_of, NULL, bytes,
            hotbed_bound((double)bytes, END_BYTES, HOTBED_MANIFEST_BYTES_MAX),
            "%s has %zu bytes, expected %d to %d", name_of, bytes, END_BYTES,
            HOTBED_MANIFEST_BYTES_MAX);
    hotbed_codec end = {
        .name = name_of, .at = text + bytes - END_BYTES, .end = text + bytes, .line = 1};
    hotbed_digest right = hotbed_digest_of(text, bytes - END_BYTES), found = {0};
    hotbed_codec_digest(&end, "end ", &found);
    hotbed_codec_literal(&end, "\n");
    if (end.status != HOTBED_OK || !hotbed_digest_equal(right, found))
        return hotbed_fail_path(
            HOTBED_ERR_CORRUPT, name_of,
            "%s is damaged or cut short: its last line is not 'end %s'", name_of,
            hotbed_digest_text(right).text);
    *c = (hotbed_codec){.name = name_of, .at = text, .end = text + bytes - END_BYTES, .line = 1};
    return HOTBED_OK;
}

static hotbed_status read_scope(hotbed_codec *c, hotbed_manifest *m, scope s) {
    describe(c, m, s);
    if (c->status == HOTBED_OK && c->at != c->end)
        hotbed_codec_expected(c, "nothing more");
    return c->status;
}

hotbed_status hotbed_manifest_parse(
    const char *name_of, const char *text, size_t bytes, hotbed_manifest *out) {
    hotbed_codec c;
    scope s = {.whole = true};
    *out = (hotbed_manifest){.world = 0};
    HOTBED_TRY(open_text(name_of, text, bytes, &c));
    check_version(&c);
    hotbed_status status = c.status;
    HOTBED_THEN(status, read_scope(&c, out, s));
    HOTBED_THEN(status, hotbed_manifest_check(name_of, out));
    out->digest = hotbed_digest_of(text, bytes - END_BYTES);
    if (status != HOTBED_OK)
        hotbed_manifest_free(out);
    return status;
}

/* --- putting shards together --------------------------------------------------------------------------- */

/* A value at two ranks. */
typedef struct pair {
    const char *what;
    uint64_t found, right; /* at the rank of a shard, and at rank 0 */
} pair;

static hotbed_status same_values(const char *table, size_t n, const pair *values, uint32_t shard) {
    for (const pair *v = values; v < values + n; v++)
        if (v->found != v->right)
            return hotbed_error_rank(
                hotbed_fail_table_limit(
                    HOTBED_ERR_STATE, table, NULL, v->found, v->right,
                    "%s%s%s is %" PRIu64 " at rank %" PRIu32 ", %" PRIu64 " at rank 0", table,
                    table[0] == '\0' ? "" : ": ", v->what, v->found, shard, v->right),
                shard);
    return HOTBED_OK;
}

static hotbed_status same_table(
    const hotbed_manifest_table *a, const hotbed_manifest_table *b, uint32_t shard) {
    if (strcmp(a->name, b->name) != 0)
        return hotbed_error_rank(
            hotbed_fail_table(
                HOTBED_ERR_STATE, b->name, "rank %" PRIu32 " has table '%s' where rank 0 has '%s'",
                shard, a->name, b->name),
            shard);
    const pair values[] = {
        {"the kind", a->kind, b->kind},
        {"the dtype", a->dtype, b->dtype},
        {"state_dtype", a->state_dtype, b->state_dtype},
        {"dim", a->dim, b->dim},
        {"the storage", a->storage, b->storage},
        {"the route", a->route, b->route},
        {"the route's rows", a->route_rows, b->route_rows},
        {"whether it has times", a->times, b->times},
        {"bucket_bits", a->bucket_bits, b->bucket_bits},
    };
    return same_values(a->name, sizeof values / sizeof *values, values, shard);
}

bool hotbed_manifest_same_arguments(const hotbed_optimizer *a, const hotbed_optimizer *b) {
    const hotbed_optimizer_info *info = hotbed_optimizer_describe(a->kind);
    const uint32_t used = (info == NULL ? 0 : info->parameters) | HOTBED_USES_IN_EVERY_LINE;
    const hotbed_optimizer_parameter *p;
    for (uint32_t i = 0; (p = hotbed_optimizer_parameter_at(i)) != NULL; i++)
        if ((used >> i & 1U) != 0 && hotbed_optimizer_value(a, p) != hotbed_optimizer_value(b, p))
            return false;
    return true;
}

static hotbed_status same_storage(
    const hotbed_manifest_storage *a, const hotbed_manifest_storage *b, uint32_t shard) {
    if (strcmp(a->name, b->name) != 0)
        return hotbed_fail_rank(
            HOTBED_ERR_STATE, shard, "rank %" PRIu32 " has storage '%s' where rank 0 has '%s'",
            shard, a->name, b->name);
    const pair values[] = {
        {"the key type", a->key_type, b->key_type},
        {"the kind of optimizer", a->optimizer.kind, b->optimizer.kind},
        {"the seed", a->seed, b->seed},
    };
    HOTBED_TRY(same_values("", sizeof values / sizeof *values, values, shard));
    if (!hotbed_manifest_same_arguments(&a->optimizer, &b->optimizer))
        return hotbed_fail_rank(
            HOTBED_ERR_STATE, shard,
            "the optimizer's arguments at rank %" PRIu32 " differ from rank 0", shard);
    return HOTBED_OK;
}

static hotbed_status same_head(const hotbed_manifest *a, const hotbed_manifest *b, uint32_t shard) {
    if (!hotbed_digest_equal(a->id, b->id))
        return hotbed_fail_rank(
            HOTBED_ERR_STATE, shard, "rank %" PRIu32 " wrote to another checkpoint than rank 0",
            shard);
    if (a->increment != b->increment || !hotbed_digest_equal(a->parent, b->parent) ||
        !hotbed_digest_equal(a->parent_digest, b->parent_digest))
        return hotbed_fail_rank(
            HOTBED_ERR_STATE, shard, "rank %" PRIu32 " has another parent than rank 0", shard);
    const pair values[] = {
        {"world", a->world, b->world},
        {"step", a->step, b->step},
        {"the number of storages", a->num_storages, b->num_storages},
        {"the number of tables", a->num_tables, b->num_tables},
        {"block", a->block_bytes, b->block_bytes},
    };
    return same_values("", sizeof values / sizeof *values, values, shard);
}

static hotbed_status add_tables(hotbed_manifest *m, const hotbed_manifest *read, uint32_t shard) {
    for (uint32_t i = 0; i < m->num_storages; i++)
        HOTBED_TRY(same_storage(&read->storages[i], &m->storages[i], shard));
    for (uint32_t i = 0; i < m->num_tables; i++) {
        HOTBED_TRY(same_table(&read->tables[i], &m->tables[i], shard));
        m->tables[i].rows += read->tables[i].rows;
        m->tables[i].keys += read->tables[i].keys;
        m->tables[i].capacity += read->tables[i].capacity;
        if (read->tables[i].spread == HOTBED_SPREAD_ANY)
            m->tables[i].spread = HOTBED_SPREAD_ANY;
        m->tables[i].content = hotbed_digest_add(m->tables[i].content, read->tables[i].content);
    }
    return HOTBED_OK;
}

hotbed_status hotbed_manifest_add_shard(
    const char *name_of, const char *text, size_t bytes, uint32_t shard, hotbed_manifest *m) {
    hotbed_codec c;
    scope s = {.first = shard, .end = shard + 1};
    HOTBED_TRY(open_text(name_of, text, bytes, &c));
    if (shard == 0)
        return read_scope(&c, m, s);
    hotbed_codec ahead = c;
    hotbed_manifest head = {.world = 0};
    describe_head(&ahead, &head, &s); /* its counts determine what read_scope() writes to */
    HOTBED_TRY(ahead.status);
    HOTBED_TRY(same_head(&head, m, shard));
    /* Read the head, the storages and the tables beside the ones of shard 0, the shard and its parts
     * into the arrays of *m. */
    hotbed_manifest read = *m;
    read.storages = hotbed_new(m->num_storages * sizeof *read.storages);
    read.tables = hotbed_new(m->num_tables * sizeof *read.tables);
    hotbed_status status = HOTBED_CHECK_MEMORY(
        read.storages != NULL && read.tables != NULL, "%" PRIu32 " tables", m->num_tables);
    HOTBED_THEN(status, read_scope(&c, &read, s));
    HOTBED_THEN(status, add_tables(m, &read, shard));
    hotbed_delete(read.storages);
    hotbed_delete(read.tables);
    return status;
}

hotbed_status hotbed_manifest_complete(hotbed_manifest *m) {
    for (uint32_t t = 0; t < m->num_tables; t++) {
        uint64_t row = 0;
        for (uint32_t shard = 0; shard < m->world; shard++) {
            hotbed_manifest_part *part = &m->parts[(uint64_t)t * m->world + shard];
            part->first_row = row;
            row += part->rows;
        }
    }
    return hotbed_manifest_check(HOTBED_MANIFEST_NAME, m);
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

const hotbed_manifest_blob *hotbed_manifest_find_blob(
    const hotbed_manifest *m, const char *name_of) {
    for (uint32_t i = 0; i < m->num_blobs; i++)
        if (strcmp(m->blobs[i].name, name_of) == 0)
            return &m->blobs[i];
    return NULL;
}

static hotbed_file_name shard_file(uint32_t shard, uint32_t world, const char *kind) {
    hotbed_file_name to;
    snprintf(
        to.text, sizeof to.text, "shard-%05" PRIu32 "-of-%05" PRIu32 ".%s", shard, world, kind);
    return to;
}

hotbed_file_name hotbed_shard_name(uint32_t shard, uint32_t world) {
    return shard_file(shard, world, "h5");
}

hotbed_file_name hotbed_shard_part_name(uint32_t shard, uint32_t world) {
    return shard_file(shard, world, "part");
}
