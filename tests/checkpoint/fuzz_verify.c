/* tests/checkpoint/fuzz_verify.c - libFuzzer entry: verifies a checkpoint that the input bytes change.
 *
 * Byte 0 chooses the checkpoint: a full one of two ranks, or an increment after it.  Each following 8 bytes
 * are one change of one file, see change().  The changed checkpoint is verified as it is, and again with all
 * digests recomputed, as an attacker could do: then the digests no longer reveal the changes.
 *
 * Configure with clang, -DHOTBED_FUZZ=ON and a sanitizer, and run build/.../fuzz_verify on
 * tests/checkpoint/corpus/verify.  test_fuzz_verify replays the corpus in every build. */
#include "base/stream.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/verify.h"
#include "tests/checkpoint/manifest_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes); /* NOLINT: libFuzzer's name */

enum { WORLD = 2, TABLES = 2, MANIFEST = 0, INDEX = 1, SHARDS = 2, PIECES = 4, BASES = 2 };
enum { SPARE = 8192, KEYS = 12, ROWS = 6 };

/* The files of a checkpoint, in memory. */
typedef struct files {
    unsigned char *data[PIECES];
    size_t bytes[PIECES];
    int open;
} files;

static void need(bool condition) {
    if (condition)
        return;
    fprintf(stderr, "last error: %s\n", hotbed_last_error());
    abort();
}

/* --- the checkpoints to change, saved by the library ---------------------------------------- */

static const char *const names[PIECES] = {
    HOTBED_MANIFEST_NAME, HOTBED_INDEX_NAME, "shard-00000-of-00002.h5", "shard-00001-of-00002.h5"};
static files bases[BASES];

typedef struct rank {
    hotbed_storage *storage;
    hotbed_checkpoint_mark *mark;
} rank;

/* Write to `keys` the keys number first, first + 3, ..., plus `after`, that rank `number` owns, and a count
 * for each. */
static uint64_t choose(
    uint32_t number, const hotbed_route *routes, uint64_t first, uint64_t after,
    uint64_t keys[KEYS], uint64_t counts[KEYS]) {
    uint64_t n = 0;
    for (uint64_t i = first; i < KEYS; i += 3)
        if (hotbed_route_rank(&routes[0], i * 0x9E3779B97F4A7C15U + after) == number) {
            counts[n] = i + 1;
            keys[n++] = i * 0x9E3779B97F4A7C15U + after;
        }
    return n;
}

/* Set the rows of keys number first, first + 3, ... of rank `number`, and admission counts of the keys that
 * lie `after` above them. */
static void fill(
    const rank *r, uint32_t number, const hotbed_route *routes, uint64_t first, uint64_t after,
    hotbed_stream *stream) {
    uint64_t keys[KEYS] = {0}, counts[KEYS] = {0};
    static float weights[KEYS * 2];
    uint64_t n = choose(number, routes, first, 0, keys, counts);
    hotbed_rows rows = {.weights = weights, .scores = counts};
    need(hotbed_storage_set_rows(r->storage, 0, n, keys, &rows, stream) == HOTBED_OK);
    need(hotbed_stream_sync(stream) == HOTBED_OK);
    n = choose(number, routes, first, after, keys, counts);
    need(hotbed_storage_import_counts(r->storage, 0, n, keys, counts, stream) == HOTBED_OK);
    need(hotbed_stream_sync(stream) == HOTBED_OK);
}

static void create(rank *r, uint32_t number, const hotbed_route *routes, hotbed_stream *stream) {
    hotbed_table_options tables[TABLES];
    hotbed_storage_options options;
    for (uint32_t t = 0; t < TABLES; t++)
        tables[t] = (hotbed_table_options){.size = sizeof tables[t]};
    tables[0].name = "hash";
    tables[0].dim = 2;
    tables[0].capacity = 2 * (uint64_t)KEYS;
    tables[0].admission = HOTBED_ADMIT_FREQUENCY;
    tables[0].admission_threshold = 100;
    tables[1].name = "static";
    tables[1].dim = 1;
    tables[1].kind = HOTBED_TABLE_STATIC;
    tables[1].dtype = HOTBED_F16;
    tables[1].capacity = hotbed_route_rows(&routes[1], number);
    hotbed_storage_options_init(&options);
    options.num_tables = TABLES;
    options.tables = tables;
    options.optimizer.kind = HOTBED_OPT_ROWWISE_ADAGRAD;
    need(hotbed_storage_create(&options, stream, &r->storage) == HOTBED_OK);
    need(hotbed_checkpoint_mark_create(&r->mark) == HOTBED_OK);
}

static void save(
    const char *path, const char *parent, rank *ranks, const hotbed_route *routes,
    hotbed_stream *stream) {
    hotbed_checkpoint_config config = {
        .calls = &hotbed_io_system, .bucket_bits = 3, .block_bytes = HOTBED_BLOCK_BYTES_LEAST};
    hotbed_checkpoint_id id;
    need(hotbed_save_begin(&config, path, &id) == HOTBED_OK);
    for (uint32_t i = 0; i < WORLD; i++) {
        hotbed_checkpoint_options options = {.size = sizeof options};
        const hotbed_checkpoint_blob blob = {"extra", "extra", 5};
        options.blobs = &blob;
        options.num_blobs = 1;
        options.share = (hotbed_checkpoint_share){.rank = i, .world = WORLD, .routes = routes};
        options.mark = ranks[i].mark;
        options.parent = parent;
        hotbed_storages storages;
        need(hotbed_storages_open("fuzz", &ranks[i].storage, 1, &storages) == HOTBED_OK);
        need(hotbed_save_shard(&config, path, id, &storages, &options, stream) == HOTBED_OK);
        hotbed_storages_close(&storages);
    }
    need(hotbed_save_commit(&config, path, id, WORLD) == HOTBED_OK);
}

/* Read the files of the checkpoint at `path` into memory, with capacity to grow, and remove the checkpoint. */
static files take(const char *path) {
    files out = {.open = 0};
    char name[256];
    for (int i = 0; i < PIECES; i++) {
        snprintf(name, sizeof name, "%s/%s", path, names[i]);
        FILE *file = fopen(name, "rb");
        need(file != NULL && fseek(file, 0, SEEK_END) == 0);
        out.bytes[i] = (size_t)ftell(file);
        out.data[i] = calloc(out.bytes[i] + SPARE, 1);
        need(out.data[i] != NULL && fseek(file, 0, SEEK_SET) == 0);
        need(fread(out.data[i], 1, out.bytes[i], file) == out.bytes[i]);
        fclose(file);
        need(unlink(name) == 0);
    }
    need(rmdir(path) == 0);
    return out;
}

static void make_bases(void) {
    rank ranks[WORLD];
    hotbed_route routes[TABLES];
    hotbed_stream *stream = NULL;
    const char *root = getenv("TMPDIR");
    char directory[128], full[160], increment[160];
    snprintf(directory, sizeof directory, "%.90s/hotbed-fuzz-XXXXXX", root == NULL ? "/tmp" : root);
    need(mkdtemp(directory) != NULL);
    snprintf(full, sizeof full, "%s/full", directory);
    snprintf(increment, sizeof increment, "%s/increment", directory);
    need(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream) == HOTBED_OK);
    need(hotbed_route_init(&routes[0], HOTBED_ROUTE_HASH_ROUND_ROBIN, WORLD, 0) == HOTBED_OK);
    need(hotbed_route_init(&routes[1], HOTBED_ROUTE_CONTINUOUS, WORLD, ROWS) == HOTBED_OK);
    for (uint32_t i = 0; i < WORLD; i++) {
        create(&ranks[i], i, routes, stream);
        for (uint64_t first = 0; first < 3; first++)
            fill(&ranks[i], i, routes, first, 1, stream);
    }
    save(full, NULL, ranks, routes, stream);
    for (uint32_t i = 0; i < WORLD; i++) {
        uint64_t gone = 3 * 0x9E3779B97F4A7C15U, row = 1;
        fill(&ranks[i], i, routes, 1, 2, stream);
        need(hotbed_storage_erase(ranks[i].storage, 0, 1, &gone, NULL, stream) == HOTBED_OK);
        hotbed_rows rows = {.weights = (uint16_t[]){7}};
        need(hotbed_storage_set_rows(ranks[i].storage, 1, 1, &row, &rows, stream) == HOTBED_OK);
        need(hotbed_stream_sync(stream) == HOTBED_OK);
    }
    save(increment, full, ranks, routes, stream);
    bases[1] = take(increment);
    bases[0] = take(full);
    need(rmdir(directory) == 0);
    for (uint32_t i = 0; i < WORLD; i++) {
        hotbed_storage_destroy(ranks[i].storage);
        hotbed_checkpoint_mark_destroy(ranks[i].mark);
    }
    hotbed_stream_destroy(stream);
}

/* --- the files in memory as a file system --------------------------------------------------- */

enum { DIRECTORY = PIECES };

static int open_file(void *self, int directory, const char *name, hotbed_io_open_kind kind) {
    files *f = self;
    int found = kind == HOTBED_IO_DIRECTORY ? DIRECTORY : -ENOENT;
    for (int i = 0; i < PIECES && directory == DIRECTORY; i++)
        if (strcmp(name, names[i]) == 0)
            found = i;
    f->open += found >= 0;
    return found;
}

static int close_file(void *self, int file) {
    ((files *)self)->open--;
    return 0;
}

static int info(void *self, int file, hotbed_io_info *out) {
    *out = (hotbed_io_info){.bytes = ((files *)self)->bytes[file], .regular = true};
    return 0;
}

static int64_t read_at(void *self, int file, void *data, size_t bytes, uint64_t offset) {
    const files *f = self;
    if (offset >= f->bytes[file])
        return 0;
    size_t left = f->bytes[file] - (size_t)offset, n = bytes < left ? bytes : left;
    memcpy(data, f->data[file] + offset, n);
    return (int64_t)n;
}

/* Verify returns, frees everything, and reports only what a reader may report. */
static void verify(files *f, bool unchanged) {
    const hotbed_io_calls calls = {
        .self = f, .open = open_file, .close = close_file, .info = info, .read_at = read_at};
    hotbed_status status = hotbed_checkpoint_verify(&calls, "c", NULL);
    need(
        status == HOTBED_OK || status == HOTBED_ERR_CORRUPT || status == HOTBED_ERR_UNSUPPORTED ||
        status == HOTBED_ERR_IO || status == HOTBED_ERR_MEMORY);
    need(f->open == 0 && (!unchanged || status == HOTBED_OK));
}

/* --- changes ---------------------------------------------------------------------------------- */

typedef struct edit {
    uint8_t kind, piece;
    uint16_t at;
    int32_t value;
} edit;

static void set_word(files *f, int piece, size_t at, uint64_t word) {
    if (f->bytes[piece] >= sizeof word)
        memcpy(f->data[piece] + at % (f->bytes[piece] - sizeof word + 1), &word, sizeof word);
}

/* Replace a number of MANIFEST: the digits after its `which`-th blank, if there are digits. */
static void set_number(files *f, uint32_t which, uint64_t value) {
    char *text = (char *)f->data[MANIFEST], digits[24];
    size_t at = 0, end, bytes = f->bytes[MANIFEST];
    for (uint32_t seen = 0; at < bytes && seen <= which; at++)
        seen += text[at] == ' ';
    for (end = at; end < bytes && text[end] >= '0' && text[end] <= '9';)
        end++;
    size_t n = (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    if (end == at || bytes - (end - at) + n > bytes + SPARE / 2)
        return;
    memmove(text + at + n, text + end, bytes - end);
    memcpy(text + at, digits, n);
    f->bytes[MANIFEST] = bytes - (end - at) + n;
}

/* Change a word of an extent.  Extents are a small part of a shard's bytes, so random offsets rarely hit
 * them. */
static void set_extent(files *f, const hotbed_manifest *m, const edit *e, uint64_t word) {
    uint32_t shard = e->piece % WORLD, column = e->piece / WORLD % HOTBED_COLUMNS;
    uint32_t table = e->piece / WORLD / HOTBED_COLUMNS % TABLES;
    const hotbed_extent *extent = &m->parts[table * WORLD + shard].columns[column];
    if (extent->bytes > 0)
        set_word(f, SHARDS + (int)shard, extent->offset + e->at % extent->bytes, word);
}

static void change(files *f, const hotbed_manifest *m, const edit *e) {
    int piece = e->piece % PIECES;
    uint64_t value = e->value < 0 ? (uint64_t)1 << ((uint32_t)e->value & 63) : (uint64_t)e->value;
    switch (e->kind % 6) {
    case 0:
        if (f->bytes[piece] > 0)
            f->data[piece][e->at % f->bytes[piece]] ^= (unsigned char)(value | (value == 0));
        break;
    case 1:
        set_word(f, piece, e->at, value);
        break;
    case 2:
        f->bytes[piece] = e->at % (f->bytes[piece] + 1);
        break;
    case 3:
        set_number(f, e->at, value);
        break;
    case 4:
        set_extent(f, m, e, value);
        break;
    case 5:
        set_extent(f, m, e, value * 0x9E3779B97F4A7C15U); /* spread over 64 bits, as keys are */
        break;
    }
}

/* --- recomputing digests -------------------------------------------------------------------- */

/* Recompute the digests of an extent's blocks, in the shard too. */
static void forge_extent(files *f, const hotbed_manifest *m, uint32_t shard, hotbed_extent *e) {
    unsigned char *data = f->data[SHARDS + shard];
    hotbed_digest *blocks =
        (hotbed_digest *)(void *)(data + m->shards[shard].blocks.offset) + e->first_block;
    for (uint64_t at = 0; at < e->bytes; at += m->block_bytes) {
        uint64_t left = e->bytes - at;
        hotbed_digest digest = hotbed_digest_of(
            data + e->offset + at, left < m->block_bytes ? (size_t)left : m->block_bytes);
        memcpy(blocks++, &digest, sizeof digest);
    }
    e->root = hotbed_digest_root(data + e->offset, e->bytes, m->block_bytes);
}

/* Recompute the digest of a part's rows. */
static void forge_content(
    files *f, const hotbed_manifest *m, uint32_t table, uint32_t shard, hotbed_digest *content) {
    const hotbed_manifest_part *part = &m->parts[table * m->world + shard];
    size_t row_bytes[HOTBED_ROW_COLUMNS], all = 0;
    void *columns[HOTBED_ROW_COLUMNS];
    uint64_t *keys = malloc(part->rows * sizeof *keys + 1);
    for (uint32_t c = 0; c < HOTBED_ROW_COLUMNS; c++) {
        row_bytes[c] = hotbed_manifest_row_bytes(m, &m->tables[table], c);
        columns[c] = f->data[SHARDS + shard] + part->columns[c].offset;
        all += row_bytes[c];
    }
    unsigned char *row = malloc(all + 1);
    need(keys != NULL && row != NULL);
    for (uint64_t i = 0; i < part->rows; i++)
        keys[i] = part->first + i;
    if (part->columns[HOTBED_COLUMN_KEYS].bytes == 0)
        columns[HOTBED_COLUMN_KEYS] = keys;
    hotbed_digest_rows(part->rows, columns, row_bytes, row, content, NULL);
    free(row);
    free(keys);
}

static void forge_shard(files *f, hotbed_manifest *m, uint32_t number) {
    hotbed_manifest_shard *shard = &m->shards[number];
    const unsigned char *data = f->data[SHARDS + number];
    shard->metadata = hotbed_digest_root(data, shard->metadata_bytes, m->block_bytes);
    for (uint32_t i = 0; number == 0 && i < m->num_blobs; i++)
        forge_extent(f, m, number, &m->blobs[i].extent);
    for (uint32_t t = 0; t < m->num_tables; t++) {
        for (uint32_t c = 0; c < HOTBED_COLUMNS; c++)
            forge_extent(f, m, number, &m->parts[t * m->world + number].columns[c]);
        forge_content(f, m, t, number, &m->tables[t].content);
    }
    shard->blocks.root =
        hotbed_digest_root(data + shard->blocks.offset, shard->blocks.bytes, m->block_bytes);
}

/* Recompute all digests; false: MANIFEST does not parse, whatever its last line is. */
static bool forge(files *f) {
    hotbed_manifest m;
    char *text = (char *)f->data[MANIFEST];
    size_t bytes = manifest_text_unsigned(text, f->bytes[MANIFEST]);
    bytes = manifest_text_sign(text, bytes);
    if (hotbed_manifest_parse("MANIFEST", text, bytes, &m) != HOTBED_OK)
        return false;
    hotbed_layout_writer(m.writer); /* verify does not compare the metadata of another writer */
    bool same = m.world == WORLD;
    for (uint32_t s = 0; s < m.world && same; s++)
        same = m.shards[s].bytes == f->bytes[SHARDS + s];
    for (uint32_t t = 0; t < m.num_tables; t++)
        m.tables[t].content = (hotbed_digest){.low = 0};
    for (uint32_t s = 0; s < m.world && same; s++)
        forge_shard(f, &m, s);
    m.index_bytes = f->bytes[INDEX] == 0 ? 1 : f->bytes[INDEX];
    m.index = hotbed_digest_root(f->data[INDEX], f->bytes[INDEX], m.block_bytes);
    char *again = NULL;
    need(hotbed_manifest_print(&m, &again, &bytes) == HOTBED_OK);
    same = same && bytes < f->bytes[MANIFEST] + SPARE / 2;
    if (same)
        memcpy(text, again, bytes);
    f->bytes[MANIFEST] = same ? bytes : f->bytes[MANIFEST];
    hotbed_delete(again);
    hotbed_manifest_free(&m);
    return same;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) { /* NOLINT: libFuzzer's name */
    static hotbed_manifest manifests[BASES];
    if (bases[0].data[0] == NULL) {
        make_bases();
        for (int i = 0; i < BASES; i++)
            need(
                hotbed_manifest_parse(
                    "MANIFEST", (const char *)bases[i].data[MANIFEST], bases[i].bytes[MANIFEST],
                    &manifests[i]) == HOTBED_OK);
    }
    if (bytes == 0)
        return 0;
    const files *base = &bases[data[0] % BASES];
    files f = {.open = 0};
    for (int i = 0; i < PIECES; i++) {
        f.bytes[i] = base->bytes[i];
        f.data[i] = malloc(f.bytes[i] + SPARE);
        need(f.data[i] != NULL);
        memcpy(f.data[i], base->data[i], f.bytes[i] + SPARE);
    }
    for (size_t at = 1; at + sizeof(edit) <= bytes && at < 128 * sizeof(edit); at += sizeof(edit)) {
        edit e;
        memcpy(&e, data + at, sizeof e);
        change(&f, &manifests[data[0] % BASES], &e);
    }
    bool unchanged = bytes < 1 + sizeof(edit);
    verify(&f, unchanged);
    if (forge(&f))
        verify(&f, unchanged);
    else
        need(!unchanged);
    for (int i = 0; i < PIECES; i++)
        free(f.data[i]);
    return 0;
}
