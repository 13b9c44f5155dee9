/* tests/checkpoint/test_manifest.c - MANIFEST's parser reads what the writer writes, and refuses any other
 * text. */
#include "base/stream.h"
#include "checkpoint/format/bucket_core.h"
#include "checkpoint/format/manifest.h"
#include "hotbed/route.h"
#include "storage/types.h"
#include "tests/checkpoint/manifest_text.h"
#include "tests/support/harness.h"

#include <stdlib.h>

enum { TEXT_BYTES = 1 << 16 };

/* Create a manifest of two tables in two storages and two blobs in `world` shards, with consecutive
 * extents. */
static hotbed_manifest make(uint32_t world) {
    hotbed_manifest m = {
        .block_bytes = HOTBED_BLOCK_BYTES,
        .id = {.low = 0x0123456789abcdef, .high = 0xfedcba9876543210},
        .step = 5,
        .created_ns = 1700000000000000000,
        .writer = "hotbed-0.1.0",
        .world = world,
        .num_storages = 2,
        .num_tables = 2,
        .num_blobs = 2,
        .index_bytes = 4096,
    };
    CHECK_OK(hotbed_manifest_reserve(&m));
    m.storages[0] = (hotbed_manifest_storage){
        .name = "sums",
        .pooling = HOTBED_POOL_SUM,
        .key_type = HOTBED_KEY_U64,
        .seed = UINT64_MAX,
        .optimizer = {.kind = HOTBED_OPT_ADAM, .learning_rate = 0.5F, .beta1 = 0.9F},
        .state = {.optimizer_steps = 9, .clock = 10, .beta1_power = 0.3, .learning_rate = 0.25F},
    };
    m.storages[1] = (hotbed_manifest_storage){
        .name = "rest", .key_type = HOTBED_KEY_I64, .optimizer = {.kind = HOTBED_OPT_SGD}};
    m.tables[1].storage = 1;
    strcpy(m.tables[0].name, "zeta");
    strcpy(m.tables[1].name, "a.b-c_D");
    m.tables[0].kind = HOTBED_TABLE_HASH;
    m.tables[0].bucket_bits = 8;
    m.tables[0].times = true;
    m.tables[1].kind = HOTBED_TABLE_STATIC;
    for (uint32_t t = 0; t < 2; t++) {
        m.tables[t].dim = 4 + t;
        m.tables[t].dtype = t == 0 ? HOTBED_F32 : HOTBED_BF16;
        m.tables[t].state_dtype = t == 0 ? HOTBED_BF16 : HOTBED_F32;
        m.tables[t].rows = (uint64_t)10 * world;
        m.tables[t].keys = t == 0 ? m.tables[t].rows : 0;
        m.tables[t].capacity = t == 0 ? 0 : m.tables[t].rows;
        for (uint32_t s = 0; s < world; s++) {
            hotbed_manifest_part *part = &m.parts[(uint64_t)t * world + s];
            part->rows = 10;
            part->first_row = (uint64_t)10 * s;
            part->first = t == 0 ? (uint64_t)s * 256 / world : part->first_row;
            part->end = t == 0 ? (uint64_t)(s + 1) * 256 / world : part->first_row + 10;
            part->counted = t == 0 ? 3 : 0;
            uint64_t at = 4096 + (uint64_t)t * 100000;
            for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
                part->columns[i].bytes = hotbed_manifest_column_bytes(&m, &m.tables[t], part, i);
                part->columns[i].offset = part->columns[i].bytes == 0 ? 0 : at;
                at += part->columns[i].bytes;
            }
        }
    }
    strcpy(m.blobs[0].name, "dense");
    strcpy(m.blobs[1].name, "empty");
    m.blobs[0].extent = (hotbed_extent){.offset = 300000, .bytes = 77};
    hotbed_manifest_number_blocks(&m);
    for (uint32_t s = 0; s < world; s++) {
        m.shards[s].bytes = 1000000;
        m.shards[s].metadata_bytes = 4096;
        m.shards[s].blocks = (hotbed_extent){
            .offset = 500000, .bytes = m.shards[s].num_blocks * sizeof(hotbed_digest)};
    }
    return m;
}

/* Write the text of make(), with capacity to append. */
static size_t make_text(char *text, uint32_t world) {
    hotbed_manifest m = make(world);
    char *printed = NULL;
    size_t bytes = 0;
    CHECK_OK(hotbed_manifest_print(&m, &printed, &bytes));
    CHECK(bytes + 1000 < TEXT_BYTES);
    memcpy(text, printed, bytes);
    text[bytes] = '\0';
    hotbed_delete(printed);
    hotbed_manifest_free(&m);
    return bytes;
}

static hotbed_status parse(const char *text, size_t bytes) {
    hotbed_manifest m;
    /* Copy to a buffer of the exact length, so that a sanitizer sees reads past its end. */
    char *copy = malloc(bytes == 0 ? 1 : bytes);
    CHECK(copy != NULL);
    memcpy(copy, text, bytes);
    hotbed_status status = hotbed_manifest_parse("MANIFEST", copy, bytes, &m);
    if (status == HOTBED_OK)
        hotbed_manifest_free(&m);
    else
        CHECK(m.tables == NULL && m.parts == NULL);
    free(copy);
    return status;
}

static void a_written_manifest_is_read_back(hotbed_backend backend) {
    static char text[TEXT_BYTES];
    for (uint32_t world = 1; world <= 4; world++) {
        size_t bytes = make_text(text, world), again = 0;
        hotbed_manifest m;
        char *printed = NULL;
        CHECK_OK(hotbed_manifest_parse("MANIFEST", text, bytes, &m));
        CHECK_EQ(m.world, world);
        CHECK_EQ(m.num_storages, 2);
        CHECK_STRING(m.storages[1].name, "rest");
        CHECK_EQ(m.storages[0].seed, UINT64_MAX);
        CHECK_EQ(hotbed_manifest_optimizer(&m, &m.tables[0]), HOTBED_OPT_ADAM);
        CHECK_EQ(hotbed_manifest_optimizer(&m, &m.tables[1]), HOTBED_OPT_SGD);
        CHECK(hotbed_manifest_find_blob(&m, "empty") == &m.blobs[1]);
        CHECK(hotbed_manifest_find_blob(&m, "other") == NULL);
        CHECK_EQ(m.tables[1].dtype, HOTBED_BF16);
        CHECK_EQ(m.tables[0].state_dtype, HOTBED_BF16);
        CHECK_EQ(m.tables[1].state_dtype, HOTBED_F32);
        CHECK_EQ(hotbed_manifest_find(&m, "zeta"), 0);
        CHECK_EQ(hotbed_manifest_find(&m, "a.b-c_D"), 1);
        CHECK_EQ(hotbed_manifest_find(&m, "b"), UINT32_MAX);
        CHECK_OK(hotbed_manifest_print(&m, &printed, &again));
        CHECK_EQ(again, bytes);
        CHECK_BYTES(printed, text, bytes);
        hotbed_delete(printed);
        hotbed_manifest_free(&m);
    }
}

static void every_flipped_bit_is_found(hotbed_backend backend) {
    static char text[TEXT_BYTES];
    size_t bytes = make_text(text, 1);
    for (size_t bit = 0; bit < bytes * 8; bit++) {
        text[bit / 8] = (char)(text[bit / 8] ^ (1 << bit % 8));
        CHECK_STATUS(parse(text, bytes), HOTBED_ERR_CORRUPT);
        text[bit / 8] = (char)(text[bit / 8] ^ (1 << bit % 8));
    }
    CHECK_OK(parse(text, bytes));
}

static void every_shorter_text_is_refused(hotbed_backend backend) {
    static char text[TEXT_BYTES];
    size_t bytes = make_text(text, 2);
    for (size_t n = 0; n < bytes; n++)
        CHECK_STATUS(parse(text, n), HOTBED_ERR_CORRUPT);
    /* The same with a correct last line: texts that stop after any line, or within one. */
    size_t lines = manifest_text_unsigned(text, bytes);
    for (size_t n = 0; n < lines; n += n % 7 + 1) {
        make_text(text, 2);
        CHECK_STATUS(parse(text, manifest_text_sign(text, n)), HOTBED_ERR_CORRUPT);
    }
}

/* A deliberate change, with a correct last line. The first is UNSUPPORTED, all others are CORRUPT. */
typedef struct edit {
    const char *from, *to;
    const char *word; /* a word of the expected message; NULL: any */
} edit;

static const edit edits[] = {
    {"hotbed-checkpoint 1", "hotbed-checkpoint 2",
     "has format 2, and this library reads formats up to 1: use a newer version"},
    {"hotbed-checkpoint 1", "hotbed-checkpoint 0", "line 1"},
    {"hotbed-checkpoint 1", "hotbed-checkpoint 1 3", "line 1"},
    {"hotbed-checkpoint", "Hotbed-checkpoint", "line 1"},
    {"kind full", "kind delta", "line 4"},
    {"step 5", "step 05", "line 2"},
    {"step 5", "step  5", NULL},
    {"step 5", "step -5", NULL},
    {"step 5", "step +5", NULL},
    {"step 5", "step 18446744073709551616", NULL},
    {"step 5", "step 99999999999999999999999999", NULL},
    {"\nparent", "\r\nparent", "line 3"},
    {"world 2", "world 0", "line 5"},
    {"world 2", "world 65536", NULL},
    {"world 2", "world 65537", "line 5"},
    {"world 2", "world 18446744073709551615", NULL},
    {"block 1048576", "block 0", NULL},
    {"block 1048576", "block 1", NULL},
    {"block 1048576", "block 9223372036854775808", NULL},
    {"block 1048576", "block 8388608", NULL},
    {"key u64", "key u640", NULL},
    {"key u64", "key f32", NULL},
    {"of 20 route none 0", "of 20 route roundrobin 0", "the route's rows"},
    {"of 20 route none 0", "of 20 route roundrobin 21", "the route's rows"},
    {"of 20 route none 0", "of 20 route hash_roundrobin 20", NULL},
    {"bucket route none 0", "bucket route roundrobin 20", NULL},
    {"tables 2", "tables 0", NULL},
    {"tables 2", "tables 1", NULL},
    {"tables 2", "tables 3", NULL},
    {"tables 2", "tables 65535", "do not fit"},
    {"tables 2", "tables 1000000", NULL},
    {"storages 2", "storages 0", NULL},
    {"storages 2", "storages 1", NULL},
    {"storages 2", "storages 3", NULL},
    {"storages 2", "storages 65535", "do not fit"},
    {"blobs 2", "blobs 1", NULL},
    {"blobs 2", "blobs 3", NULL},
    {"blobs 2", "blobs 1024", "do not fit"},
    {"blobs 2", "blobs 1025", NULL},
    {"pooling sum", "pooling max", NULL},
    {"zeta storage 0", "zeta storage 1", NULL},
    {"zeta storage 0", "zeta storage 2", NULL},
    {"keys 20", "keys 19", NULL},
    {"keys 20", "keys 21", "the number of keys"},
    {"optimizer adam", "optimizer sgd", NULL},
    {"optimizer adam", "optimizer none", NULL},
    {"optimizer adam", "optimizer adamw", NULL},
    {"shard 1", "shard 0", NULL},
    {"size 1000000", "size 0", NULL},
    {"size 1000000", "size 100000", "not within the free bytes"},
    {"size 1000000", "size 9223372036854775808", NULL},
    {"meta 4096", "meta 0", NULL},
    {"meta 4096", "meta 1000001", NULL},
    {"meta 4096", "meta 4097", "not within the free bytes"},
    {"blocks 0 off 500000", "blocks 0 off 4097", "not within the free bytes"},
    {"blocks 0 off 500000", "blocks 0 off 999999", "not within the free bytes"},
    {"blocks 0 off 500000 len 160", "blocks 0 off 500000 len 176", "blocks"},
    {"blob dense off 300000 len 77", "blob dense off 300000 len 1073741825", NULL},
    {"blob dense off 300000", "blob dense off 9223372036854775807", NULL},
    {"blob dense off 300000 len 77", "blob dense off 300000 len 9223372036854775807", NULL},
    {"blob empty", "blob dense", "two blobs 'dense'"},
    {"blob empty", "blob em/ty", NULL},
    {"table zeta", "table ../zeta", NULL},
    {"table zeta", "table /etc", NULL},
    {"table zeta", "table ze ta", NULL},
    {"table zeta", "table ", NULL},
    {"table zeta", "table z\x01ta", NULL},
    {"table zeta",
     "table aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
     NULL},
    {"part zeta 0", "part zeta 1", NULL},
    {"part zeta 0", "part beta 0", NULL},
    {"kind hash", "kind static", NULL},
    {"dim 4", "dim 0", NULL},
    {"dim 4", "dim 5", "values"},
    {"dim 4", "dim 4097", NULL},
    {"dim 4", "dim 2147483648", NULL},
    {"value f32", "value f16", "values"},
    {"value f32", "value f64", NULL},
    {"rows 20 keys", "rows 21 keys", NULL},
    {"rows 20 keys", "rows 281474976710657 keys", NULL},
    {"rows 20 keys", "rows 18446744073709551615 keys", NULL},
    {"bucket_bits 8", "bucket_bits 7", NULL},
    {"bucket_bits 8", "bucket_bits 64", NULL},
    {"times yes", "times no", NULL},
    {"times yes", "times 1", NULL},
    {"hash fmix64", "hash modulo", NULL},
    {"part zeta 0 rows 10", "part zeta 0 rows 11", NULL},
    {"part zeta 1 rows 10 first 10", "part zeta 1 rows 10 first 9", "first row"},
    {"buckets 128 256", "buckets 127 256", "first bucket"},
    {"buckets 128 256", "buckets 128 255", NULL},
    {"buckets 128 256", "buckets 128 257", NULL},
    {"buckets 0 128", "buckets 128 0", NULL},
    {"keys off 4096 len 80", "keys off 4095 len 80", "not within the free bytes"},
    {"keys off 4096 len 80", "keys off 4097 len 80", "not within the free bytes"},
    {"keys off 4096 len 80", "keys off 4096 len 79", "keys"},
    {"keys off 4096 len 80", "keys off 4096 len 18446744073709551615", NULL},
    {"keys off 4096", "keys off 18446744073709551615", NULL},
    {"keys off 4096", "keys off 9223372036854775807", NULL},
    {"bucket off 0 len 0", "bucket off 200000 len 1024",
     "zeta: bucket is 1024, expected 0"}, /* ten rows in 128 buckets are not counted */
    {"table a.b-c_D", "table zeta", NULL},
    {"content zeta", "content a.b-c_D", NULL},
};

/* Replace the first `from` of the text by `to`. */
static size_t replace(char *text, size_t bytes, const char *from, const char *to) {
    char *at = strstr(text, from);
    if (at == NULL)
        hotbed_check_failed(__FILE__, __LINE__, "the text has no '%s'", from);
    size_t n = strlen(from), m = strlen(to), rest = bytes - (size_t)(at - text) - n;
    memmove(at + m, at + n, rest);
    memcpy(at, to, m); /* NOLINT: in the middle of a text */
    return bytes - n + m;
}

static void a_hostile_manifest_is_refused(hotbed_backend backend) {
    static char text[TEXT_BYTES];
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const edit *e = &edits[i];
        size_t bytes = manifest_text_unsigned(text, make_text(text, 2));
        bytes = manifest_text_sign(text, replace(text, bytes, e->from, e->to));
        hotbed_status status = parse(text, bytes);
        if (status != (i == 0 ? HOTBED_ERR_UNSUPPORTED : HOTBED_ERR_CORRUPT) ||
            (e->word != NULL && strstr(hotbed_last_error(), e->word) == NULL))
            hotbed_check_failed(
                __FILE__, __LINE__, "'%s' for '%s': %s: %s", e->to, e->from,
                hotbed_status_name(status), hotbed_last_error());
    }
}

/* Each rank has the rows that its number and the number of ranks give, neither more nor fewer. */
static void a_rank_has_the_rows_that_are_dealt_to_it(hotbed_backend backend) {
    for (uint64_t own = 9; own <= 11; own++) {
        hotbed_manifest m = make(2);
        hotbed_manifest_table *table = &m.tables[1];
        table->route = HOTBED_ROUTE_ROUND_ROBIN + 1;
        table->route_rows = table->capacity;
        for (uint32_t s = 0; s < 2; s++) {
            hotbed_manifest_part *part = &m.parts[2 + s];
            part->first = part->first_row = s * own;
            part->end = s == 0 ? own : table->rows;
            part->rows = part->end - part->first;
            for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
                part->columns[i].bytes = hotbed_manifest_column_bytes(&m, table, part, i);
        }
        CHECK_STATUS(hotbed_manifest_check("m", &m), own == 10 ? HOTBED_OK : HOTBED_ERR_CORRUPT);
        CHECK(own == 10 || strstr(hotbed_last_error(), "a part's range of rows") != NULL);
        hotbed_manifest_free(&m);
    }
}

/* Though each line is valid. */
static void two_tables_of_one_name_are_refused(hotbed_backend backend) {
    hotbed_manifest m = make(1);
    char *text = NULL;
    size_t bytes = 0;
    strcpy(m.tables[1].name, "zeta");
    CHECK_OK(hotbed_manifest_print(&m, &text, &bytes));
    CHECK_STATUS(parse(text, bytes), HOTBED_ERR_CORRUPT);
    CHECK(strstr(hotbed_last_error(), "two tables 'zeta'") != NULL);
    hotbed_delete(text);
    hotbed_manifest_free(&m);
}

static void overlapping_extents_are_refused(hotbed_backend backend) {
    for (uint32_t i = 0; i < HOTBED_COLUMNS; i++) {
        hotbed_manifest m = make(1);
        char *text = NULL;
        size_t bytes = 0;
        uint64_t other = m.parts[1].columns[HOTBED_COLUMN_VALUES].offset;
        if (m.parts[0].columns[i].bytes == 0) { /* only increments have this column */
            hotbed_manifest_free(&m);
            continue;
        }
        m.parts[0].columns[i].offset = other - m.parts[0].columns[i].bytes + 1;
        CHECK_OK(hotbed_manifest_print(&m, &text, &bytes));
        CHECK_STATUS(parse(text, bytes), HOTBED_ERR_CORRUPT);
        CHECK(strstr(hotbed_last_error(), "free bytes") != NULL);
        hotbed_delete(text);
        hotbed_manifest_free(&m);
    }
}

/* Random changes with a correct last line are refused, or read and written again without a difference. */
static void random_changes_do_no_harm(hotbed_backend backend) {
    static char text[TEXT_BYTES];
    for (int i = 0; i < 20000; i++) {
        size_t bytes = manifest_text_unsigned(text, make_text(text, 2));
        for (uint64_t k = hotbed_test_below(3) + 1; k > 0; k--) {
            size_t at = hotbed_test_below(bytes);
            if (hotbed_test_below(2) == 0)
                text[at] = (char)("0123456789abf -.\n"[hotbed_test_below(17)]);
            else
                text[at] = text[hotbed_test_below(bytes)];
        }
        bytes = manifest_text_sign(text, bytes);
        hotbed_manifest m;
        if (hotbed_manifest_parse("MANIFEST", text, bytes, &m) != HOTBED_OK)
            continue;
        char *again = NULL;
        size_t again_bytes = 0;
        CHECK_OK(hotbed_manifest_print(&m, &again, &again_bytes));
        CHECK_EQ(again_bytes, bytes);
        CHECK_BYTES(again, text, bytes);
        hotbed_delete(again);
        hotbed_manifest_free(&m);
    }
}

static void column_names_are_the_optimizers(hotbed_backend backend) {
    for (int kind = HOTBED_OPT_SGD; kind <= HOTBED_OPT_LAST; kind++)
        for (uint32_t i = 0; i < hotbed_optimizer_states((hotbed_optimizer_kind)kind); i++) {
            const char *column =
                hotbed_manifest_column_name((hotbed_optimizer_kind)kind, HOTBED_COLUMN_STATE + i);
            CHECK_STRING(column + 4, hotbed_optimizer_state_name((hotbed_optimizer_kind)kind, i));
        }
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_written_manifest_is_read_back)},
    {TEST(every_flipped_bit_is_found)},
    {TEST(every_shorter_text_is_refused)},
    {TEST(a_hostile_manifest_is_refused)},
    {TEST(a_rank_has_the_rows_that_are_dealt_to_it)},
    {TEST(two_tables_of_one_name_are_refused)},
    {TEST(overlapping_extents_are_refused)},
    {TEST(random_changes_do_no_harm)},
    {TEST(column_names_are_the_optimizers)},
    {NULL, NULL},
};
