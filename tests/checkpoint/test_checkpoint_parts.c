/* tests/checkpoint/test_checkpoint_parts.c - the parts of a save and a load: key order, digests, file I/O,
 * imported scores, file layout. */
#define _DEFAULT_SOURCE /* fork() */
#include "base/error.h"
#include "checkpoint/chain.h"
#include "checkpoint/extent.h"
#include "checkpoint/format/bucket.h"
#include "checkpoint/format/io.h"
#include "checkpoint/format/sparse.h"
#include "checkpoint/format/write_behind.h"
#include "checkpoint/import.h"
#include "checkpoint/verify.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/harness.h"

#include <hdf5.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEYS = 5000 };

static void keys_are_sorted_by_bucket_then_key(hotbed_backend backend) {
    static uint64_t keys[KEYS], sorted[KEYS], counts[1 << 16];
    static const uint32_t bits[] = {0, 1, 7, 16};
    static const uint64_t extremes[] = {0, UINT64_MAX, (uint64_t)INT64_MAX, (uint64_t)INT64_MIN};
    uint64_t sum = 0;
    for (uint64_t i = 0; i < KEYS; i++) {
        keys[i] = i < 4 ? extremes[i] : hotbed_test_random();
        sum += keys[i];
    }
    for (int b = 0; b < 4; b++) {
        uint64_t sorted_sum = 0, counted = 0;
        CHECK_OK(hotbed_bucket_sort(KEYS, keys, HOTBED_KEY_U64, bits[b], sorted, counts));
        for (uint64_t i = 0; i < KEYS; i++) {
            sorted_sum += sorted[i];
            uint64_t bucket = hotbed_logical_bucket(sorted[i], bits[b]);
            counts[bucket]--;
            if (i == 0)
                continue;
            uint64_t last = hotbed_logical_bucket(sorted[i - 1], bits[b]);
            CHECK(last < bucket || (last == bucket && sorted[i - 1] < sorted[i]));
        }
        for (uint64_t i = 0; i < (uint64_t)1 << bits[b]; i++)
            counted += counts[i] == 0;
        CHECK_EQ(counted, (uint64_t)1 << bits[b]);
        CHECK_EQ(sorted_sum, sum);
    }
    static const hotbed_key_type types[] = {HOTBED_KEY_I64, HOTBED_KEY_U64};
    static const char *const texts[] = {
        "key -5 occurs twice", "key 18446744073709551611 occurs twice"};
    keys[7] = keys[KEYS - 1] = (uint64_t)-5;
    for (int t = 0; t < 2; t++) {
        CHECK_STATUS(
            hotbed_bucket_sort(KEYS, keys, types[t], 16, sorted, counts), HOTBED_ERR_STATE);
        CHECK_STRING(hotbed_last_error(), texts[t]);
    }
    CHECK_OK(hotbed_bucket_sort(0, keys, HOTBED_KEY_U64, 16, sorted, counts));
}

/* Known answers of the format's hash, on which existing files depend. */
static void the_bucket_hash_is_frozen(hotbed_backend backend) {
    CHECK_EQ(hotbed_logical_bucket(0, 16), 0);
    CHECK_EQ(hotbed_logical_bucket(1, 16), 0xb456);
    CHECK_EQ(hotbed_logical_bucket(UINT64_MAX, 16), 0x64b5);
    CHECK_EQ(hotbed_logical_bucket((uint64_t)INT64_MIN, 16), 0x8f78);
    CHECK_EQ(hotbed_logical_bucket(12345, 0), 0);
}

static void digests_are_xxh3_128(hotbed_backend backend) {
    CHECK_STRING(/* xxHash's own test vector */
                 hotbed_digest_text(hotbed_digest_of("", 0)).text,
                 "99aa06d3014798d86001c324468d497f");
    hotbed_digest one = {.low = 1, .high = 2}, most = {.low = UINT64_MAX, .high = UINT64_MAX};
    hotbed_digest sum = hotbed_digest_add(one, most); /* with a carry and a wrap-around */
    CHECK_EQ(sum.low, 0);
    CHECK_EQ(sum.high, 2);
    unsigned char data[1000];
    memset(data, 5, sizeof data);
    hotbed_digest blocks[3] = {
        hotbed_digest_of(data, 400), hotbed_digest_of(data, 400), hotbed_digest_of(data, 200)};
    CHECK(hotbed_digest_equal(
        hotbed_digest_root(data, 1000, 400), hotbed_digest_of(blocks, sizeof blocks)));
    CHECK(hotbed_digest_equal(hotbed_digest_root(data, 0, 400), hotbed_digest_of("", 0)));
}

static void files_are_written_whole(hotbed_backend backend) {
    static const sample_fault faults[] = {
        SAMPLE_FAULT_NONE, SAMPLE_FAULT_SHORT, SAMPLE_FAULT_EINTR};
    sample_directory();
    const char *path = sample_path("file");
    char data[777], back[777];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)hotbed_test_random();
    for (int i = 0; i < 3; i++) {
        sample_disk disk;
        hotbed_io_file file = HOTBED_IO_CLOSED;
        uint64_t bytes = 0;
        sample_disk_init(&disk, faults[i], 2);
        CHECK_OK(hotbed_io_open(&disk.calls, NULL, path, HOTBED_IO_CREATE, &file));
        CHECK_OK(hotbed_io_write(&file, data, sizeof data, 100));
        CHECK_OK(hotbed_io_size(&file, &bytes));
        CHECK_EQ(bytes, sizeof data + 100);
        CHECK_OK(hotbed_io_read(&file, back, sizeof back, 100));
        CHECK_BYTES(data, back, sizeof data);
        CHECK_STATUS(hotbed_io_read(&file, back, sizeof back, 101), HOTBED_ERR_CORRUPT);
        CHECK_OK(hotbed_io_close(&file));
        CHECK_OK(hotbed_io_close(&file));
        CHECK_EQ(disk.open_files, 0);
        /* Creating a file does not overwrite an existing one. */
        CHECK_STATUS(
            hotbed_io_open(&disk.calls, NULL, path, HOTBED_IO_CREATE, &file), HOTBED_ERR_IO);
        CHECK_EQ(disk.calls.remove(&disk, HOTBED_IO_HERE, path, false), 0);
    }
}

static hotbed_status read_npy(const void *data, size_t bytes, hotbed_npy *npy) {
    hotbed_io_file file = HOTBED_IO_CLOSED;
    sample_write_file(sample_path("x.npy"), data, bytes);
    CHECK_OK(hotbed_io_open(&hotbed_io_system, NULL, sample_path("x.npy"), HOTBED_IO_READ, &file));
    hotbed_status status = hotbed_npy_read(&file, npy);
    hotbed_io_drop(&file);
    return status;
}

/* Read headers as NumPy writes them, and thousands of malformed ones. */
static void malformed_npy_headers_are_refused(hotbed_backend backend) {
    enum { HEADER = 80, BYTES = HEADER + 3 * 4 * 4 };
    static const char right[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }";
    unsigned char data[BYTES], changed[BYTES];
    hotbed_npy npy;
    sample_directory();
    memset(data, ' ', HEADER);
    memset(data + HEADER, 1, BYTES - HEADER);
    memcpy(data, "\x93NUMPY\x01\x00", 8);
    data[8] = HEADER - 10;
    data[9] = 0;
    memcpy(data + 10, right, sizeof right - 1);
    data[HEADER - 1] = '\n';
    CHECK_OK(read_npy(data, BYTES, &npy));
    CHECK(npy.rows == 3 && npy.width == 4 && npy.bytes == 4 && npy.type == 'f');
    CHECK_EQ(npy.offset, HEADER);
    for (int i = 0; i < 3000; i++) {
        memcpy(changed, data, BYTES);
        for (uint64_t k = hotbed_test_below(4) + 1; k > 0; k--)
            changed[hotbed_test_below(HEADER)] =
                (unsigned char)("0123456789()<fiu',: x\xff"[hotbed_test_below(22)]);
        hotbed_status status = read_npy(changed, BYTES, &npy);
        CHECK(
            status == HOTBED_OK || status == HOTBED_ERR_CORRUPT ||
            status == HOTBED_ERR_UNSUPPORTED);
        CHECK(status != HOTBED_OK || npy.offset + npy.rows * npy.width * npy.bytes == BYTES);
    }
    for (size_t n = 0; n < BYTES; n++)
        CHECK_STATUS(read_npy(data, n, &npy), HOTBED_ERR_CORRUPT);
}

/* Take bytes [first, first + n) of the extent, and compare them. */
static hotbed_status take_part(
    hotbed_extent_stream *s, const unsigned char *data, uint64_t first, size_t n) {
    unsigned char taken[4096];
    hotbed_extent_seek(s, first);
    HOTBED_TRY(hotbed_extent_take(s, taken, n));
    CHECK_BYTES(taken, data + first, n);
    return HOTBED_OK;
}

/* Take some bytes of the first and the third block. */
static hotbed_status take_parts(hotbed_extent_stream *s, const unsigned char *data) {
    HOTBED_TRY(take_part(s, data, 40, 1000));
    HOTBED_TRY(take_part(s, data, 1100, 8));
    HOTBED_TRY(take_part(s, data, 2 * s->block_bytes + 1600, 500));
    return hotbed_extent_finish(s);
}

/* A block is not read if none of its bytes are taken. Any other block is read once, as a whole, and checked. */
static void blocks_taken_in_pieces_are_checked_whole(hotbed_backend backend) {
    enum { PIECE_BYTES = 512, SIZE = 4096, BYTES = 3 * SIZE + 700, BLOCKS_READ = 2 };
    static unsigned char data[BYTES];
    unsigned char buffer[PIECE_BYTES];
    hotbed_digest blocks[4];
    sample_directory();
    const char *path = sample_path("file");
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)hotbed_test_random();
    for (size_t i = 0; i < 4; i++)
        blocks[i] = hotbed_digest_of(data + i * SIZE, i < 3 ? SIZE : BYTES - 3 * SIZE);
    for (int i = 0; i < 200; i++) {
        /* Except in round 0, damage a byte that is not taken. */
        uint64_t at = hotbed_test_below(4) * SIZE + 3000 + hotbed_test_below(SIZE - 3000);
        bool bad = i > 0 && at < BYTES;
        bool found = bad && at / SIZE % 2 == 0;
        sample_disk disk;
        hotbed_io_file file = HOTBED_IO_CLOSED;
        hotbed_extent_stream s = {
            .file = &file,
            .extent = {.bytes = BYTES},
            .blocks = blocks,
            .block_bytes = SIZE,
            .buffer = buffer,
            .piece_bytes = PIECE_BYTES,
            .table = "t",
            .column = "c",
        };
        data[bad ? at : 0] ^= bad;
        sample_write_file(path, data, BYTES);
        sample_disk_init(&disk, SAMPLE_FAULT_NONE, 0);
        CHECK_OK(hotbed_io_open(&disk.calls, NULL, path, HOTBED_IO_READ, &file));
        CHECK_STATUS(take_parts(&s, data), found ? HOTBED_ERR_CORRUPT : HOTBED_OK);
        CHECK(found || disk.bytes_read == (uint64_t)BLOCKS_READ * SIZE);
        data[bad ? at : 0] ^= bad;
        hotbed_extent_stop(&s);
        hotbed_io_drop(&file);
    }
}

enum { BLOCK = 512, BLOCKS = 3 * HOTBED_WRITE_BEHIND_BLOCKS + 1 };

/* Write blocks filled with 0, 1, ... to a new file until one fails; the last block is not whole. */
static hotbed_status write_behind(
    const sample_disk *disk, const char *path, size_t block, uint64_t *bytes) {
    unsigned char *buffer = NULL;
    hotbed_digest digests[BLOCKS];
    hotbed_io_file file = HOTBED_IO_CLOSED;
    hotbed_write_behind behind;
    CHECK_OK(hotbed_io_open(&disk->calls, NULL, path, HOTBED_IO_CREATE, &file));
    CHECK_OK(hotbed_io_open_direct(&file, NULL, path, HOTBED_IO_WRITE_DIRECT));
    CHECK_OK(hotbed_write_behind_open(&behind, &file, HOTBED_IO_WORKERS, block, 1, &buffer));
    hotbed_status status = HOTBED_OK;
    *bytes = 0;
    for (uint64_t i = 0; i < BLOCKS && status == HOTBED_OK; i++) {
        size_t n = i == BLOCKS - 1 ? block - 7 : block;
        memset(buffer, (int)i, n);
        status = hotbed_write_behind_put(&behind, &buffer, n, *bytes, &digests[i]);
        *bytes += n;
    }
    if (status == HOTBED_OK)
        status = hotbed_write_behind_drain(&behind);
    for (uint64_t i = 0; i < BLOCKS && status == HOTBED_OK; i++) {
        size_t n = i == BLOCKS - 1 ? block - 7 : block;
        memset(buffer, (int)i, n);
        CHECK(hotbed_digest_equal(digests[i], hotbed_digest_of(buffer, n)));
    }
    hotbed_write_behind_close(&behind);
    hotbed_io_drop(&file);
    CHECK_EQ(disk->open_files, 0);
    return status;
}

static void check_blocks(const sample_disk *disk, size_t block) {
    uint64_t written = 0;
    size_t bytes = 0;
    const char *path = sample_path("whole");
    CHECK_OK(write_behind(disk, path, block, &written));
    unsigned char *data = sample_read_file(path, &bytes);
    CHECK_EQ(bytes, written);
    for (size_t i = 0; i < bytes; i++)
        CHECK_EQ(data[i], i / block);
    free(data);
    CHECK_EQ(remove(path), 0);
}

/* The file has every block as it was when it was submitted, though its memory was reused; whole pages bypass
 * the kernel's cache where the file system supports it. */
static void blocks_are_written_behind(hotbed_backend backend) {
    static const sample_fault faults[] = {
        SAMPLE_FAULT_NONE, SAMPLE_FAULT_SHORT, SAMPLE_FAULT_EINTR, SAMPLE_FAULT_NO_DIRECT,
        SAMPLE_FAULT_NO_DIRECT_OPEN};
    sample_directory();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        sample_disk disk;
        sample_disk_init(&disk, faults[i], 3);
        check_blocks(&disk, BLOCK);
        sample_disk_init(&disk, faults[i], 3);
        check_blocks(&disk, 2 * HOTBED_IO_PAGE);
        CHECK(
            (faults[i] != SAMPLE_FAULT_NO_DIRECT && faults[i] != SAMPLE_FAULT_NO_DIRECT_OPEN) ||
            disk.direct_bytes == 0);
    }
}

/* The caller receives a failure before its memory is handed out again. */
static void a_failed_write_is_reported_before_its_memory_is_reused(hotbed_backend backend) {
    enum { OPENS = 2, CLOSES = 2 };
    sample_directory();
    for (uint64_t n = 0; n < BLOCKS; n++) {
        sample_disk disk;
        uint64_t bytes = 0;
        const char *path = sample_path("short");
        sample_disk_init(&disk, SAMPLE_FAULT_EIO, n + OPENS + 1);
        CHECK_STATUS(write_behind(&disk, path, BLOCK, &bytes), HOTBED_ERR_IO);
        CHECK(strstr(hotbed_last_error(), "cannot write 5") != NULL);
        /* Any block in flight may fail; the caller receives the failure when it next asks for the block's
         * memory. */
        uint64_t most = n + 2 * HOTBED_WRITE_BEHIND_BLOCKS + OPENS + CLOSES;
        CHECK(disk.count > n + OPENS && disk.count <= most);
        CHECK_EQ(remove(path), 0);
    }
}

/* --- imported scores ------------------------------------------------------------------------ */

enum { IMPORTED = 400, HALF = 150 };

/* Create a file of n words in the test's directory, and open it for reading. */
static hotbed_io_file words_file(const char *name, const uint64_t *words, uint64_t n) {
    hotbed_io_file file = HOTBED_IO_CLOSED;
    sample_write_file(sample_path(name), words, n * sizeof *words);
    CHECK_OK(hotbed_io_open(&hotbed_io_system, NULL, sample_path(name), HOTBED_IO_READ, &file));
    return file;
}

/* Import a table of the keys 0, 1, ... with these scores, in two parts. */
static hotbed_status import_scores(const char *path, const uint64_t *scores, uint64_t count) {
    uint64_t keys[IMPORTED + 1], counts[1] = {count};
    for (uint64_t i = 0; i <= IMPORTED; i++)
        keys[i] = i;
    hotbed_io_file key_file = words_file("keys", keys, IMPORTED + 1);
    hotbed_io_file score_file = words_file("scores", scores, IMPORTED);
    hotbed_io_file count_file = words_file("counts", counts, 1);
    hotbed_import_part parts[2] = {{.rows = HALF}, {.rows = IMPORTED - HALF}};
    for (int i = 0; i < 2; i++) {
        uint64_t offset = i == 0 ? 0 : HALF * sizeof *keys;
        parts[i].columns[HOTBED_COLUMN_KEYS] =
            (hotbed_import_column){.file = &key_file, .offset = offset, .stride = 8};
        parts[i].columns[HOTBED_COLUMN_SCORES] =
            (hotbed_import_column){.file = &score_file, .offset = offset, .stride = 8};
    }
    parts[1].counted = 1;
    parts[1].counted_keys =
        (hotbed_import_column){.file = &key_file, .offset = IMPORTED * sizeof *keys, .stride = 8};
    parts[1].counts = (hotbed_import_column){.file = &count_file, .stride = 8};
    hotbed_import_table table = {
        .name = "t", .dtype = HOTBED_F32, .dim = 1, .num_parts = 2, .parts = parts};
    hotbed_import import = {.key_type = HOTBED_KEY_I64, .num_tables = 1, .tables = &table};
    hotbed_optimizer_init(&import.optimizer);
    import.optimizer.kind = HOTBED_OPT_SGD;
    hotbed_status status = hotbed_checkpoint_import(&hotbed_io_system, path, &import);
    hotbed_io_drop(&key_file);
    hotbed_io_drop(&score_file);
    hotbed_io_drop(&count_file);
    return status;
}

/* Create a storage and load that checkpoint. */
static hotbed_storage *load_scores(
    const char *path, hotbed_score_strategy score, hotbed_stream *stream) {
    hotbed_table_options table = {.size = sizeof table};
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    table.name = "t";
    table.dim = 1;
    table.capacity = 2 * (uint64_t)IMPORTED;
    table.score = score;
    hotbed_storage_options_init(&options);
    options.num_tables = 1;
    options.tables = &table;
    options.optimizer.kind = HOTBED_OPT_SGD;
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    CHECK_OK(hotbed_checkpoint_load(path, &storage, 1, NULL, NULL, stream));
    return storage;
}

/* Prefetch a batch with one new key, and return the score that it receives. */
static uint64_t score_of_new_key(hotbed_storage *storage, hotbed_stream *stream) {
    uint64_t key = 123456789, keys[2 * IMPORTED], scores[2 * IMPORTED], n = 0, at = 0;
    sample_see(storage, 1, 1, &key, stream);
    CHECK_OK(hotbed_storage_export_keys(storage, 0, 2 * IMPORTED, keys, scores, &n, stream));
    while (at < n && keys[at] != key)
        at++;
    CHECK(at < n);
    return scores[at];
}

/* The keys' scores have the order of `given`, and a later key has a higher score than all of them. */
static void check_order(
    const char *path, hotbed_score_strategy score, const uint64_t *given, bool same,
    hotbed_stream *stream) {
    static uint64_t keys[IMPORTED], scores[IMPORTED], by_key[IMPORTED];
    hotbed_storage *storage = load_scores(path, score, stream);
    uint64_t n = 0, most = 0;
    CHECK_OK(hotbed_storage_export_keys(storage, 0, IMPORTED, keys, scores, &n, stream));
    CHECK_EQ(n, IMPORTED);
    for (uint64_t i = 0; i < n; i++) {
        by_key[keys[i]] = scores[i];
        most = scores[i] > most ? scores[i] : most;
    }
    for (uint64_t i = 0; i < n; i++) {
        CHECK(!same || by_key[i] == given[i]);
        for (uint64_t k = 0; k < n; k++)
            CHECK((given[i] < given[k]) == (by_key[i] < by_key[k]));
    }
    CHECK(score_of_new_key(storage, stream) > most);
    hotbed_storage_destroy(storage);
}

/* Scores of more than 52 bits, such as the nanoseconds of dynamicemb, keep their order of eviction. */
static void imported_scores_keep_their_order(hotbed_backend backend) {
    static uint64_t scores[IMPORTED];
    hotbed_stream *stream = sample_stream(backend);
    for (int way = 0; way < 3; way++) {
        for (uint64_t i = 0; i < IMPORTED; i++) {
            uint64_t since_1970 = 1760000000000000000U; /* nanoseconds */
            if (way == 0) /* scores of 52 bits or less are unchanged */
                scores[i] = hotbed_test_below((uint64_t)1 << 50);
            else if (way == 1) /* several keys of one batch, and adjacent batches */
                scores[i] = since_1970 + hotbed_test_below(3) + (i % 4) * 1000000000U;
            else /* any 64-bit values */
                scores[i] = i < 2 ? UINT64_MAX - i : hotbed_test_random();
        }
        const char *path = sample_path("c");
        CHECK_OK(import_scores(path, scores, 7));
        CHECK_OK(hotbed_checkpoint_verify(&hotbed_io_system, path, NULL));
        check_order(path, HOTBED_SCORE_STEP, scores, way == 0, stream);
        check_order(path, HOTBED_SCORE_TIMESTAMP, scores, way == 0, stream);
        sample_remove(path);
    }
    CHECK_STATUS(
        import_scores(sample_path("c"), scores, (uint64_t)1 << 52), HOTBED_ERR_UNSUPPORTED);
    CHECK(strstr(hotbed_last_error(), "key 400 is counted 4503599627370496 times") != NULL);
    CHECK_FIELDS(
            .has = HOTBED_HAS_KEY | HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT, .key = 400,
            .key_type = HOTBED_KEY_I64, .value = 0x1p52, .limit = 0x1p52 - 1, .table = "t");
    hotbed_stream_destroy(stream);
}

/* --- file layouts --------------------------------------------------------------------------- */

/* Random writes and reads of a file in memory agree with an array. */
static void files_in_memory_hold_the_written_bytes(hotbed_backend backend) {
    enum { BYTES = 5 * HOTBED_SPARSE_PAGE, FAR = 1 << 30 };
    static unsigned char model[BYTES], data[BYTES];
    hotbed_sparse sparse = {.num = 0};
    CHECK(hotbed_sparse_is_zero(&sparse, 0));
    for (int i = 0; i < 300; i++) {
        uint64_t n = hotbed_test_below(i % 10 == 0 ? 2 * HOTBED_SPARSE_PAGE : 40);
        uint64_t at = hotbed_test_below(BYTES - n);
        for (uint64_t k = 0; k < n; k++)
            model[at + k] = (unsigned char)(hotbed_test_random() | 1);
        CHECK(hotbed_sparse_write(&sparse, FAR + at, model + at, n));
    }
    hotbed_sparse_read(&sparse, FAR, data, BYTES);
    CHECK_BYTES(data, model, BYTES);
    for (uint64_t at = 0; at < BYTES; at += 97) {
        uint64_t last = BYTES;
        while (last > at && model[last - 1] == 0)
            last--;
        CHECK_EQ(hotbed_sparse_is_zero(&sparse, FAR + at), last == at);
    }
    hotbed_sparse_read(&sparse, 0, data, BYTES);
    for (uint64_t i = 0; i < BYTES; i++)
        CHECK_EQ(data[i], 0);
    hotbed_sparse_free(&sparse);
}

/* Verify builds the layouts again, and needs no space on a disk or a file system in memory. */
static void layouts_need_no_disk_space(hotbed_backend backend) {
    struct rlimit before, none;
    sample_directory();
    sample_save_formula(sample_path("c"), "adam", 5, backend);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
    hotbed_status status = hotbed_checkpoint_verify(&hotbed_io_system, sample_path("c"), NULL);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    CHECK_OK(status);
}

/* Exit with an HDF5 file open: libhdf5 flushes it at exit, whatever this library did before. */
static void long_names_keep_their_end(hotbed_backend backend) {
    enum { MOST = HOTBED_IO_NAME_BYTES - 1 };
    char name[HOTBED_IO_NAME_BYTES], directory[MOST + 1] = "";
    hotbed_io_name(name, NULL, "a");
    CHECK_STRING(name, "a");
    hotbed_io_name(name, "d", "a");
    CHECK_STRING(name, "d/a");
    memset(directory, 'd', MOST - 2);
    hotbed_io_name(name, directory, "a"); /* just fits */
    CHECK_EQ(strlen(name), MOST);
    CHECK(name[0] == 'd' && strcmp(name + MOST - 3, "d/a") == 0);
    hotbed_io_name(name, directory, "ab");
    CHECK_EQ(strlen(name), MOST);
    CHECK(strncmp(name, "...d", 4) == 0 && strcmp(name + MOST - 4, "d/ab") == 0);
    /* One of the four cuts is before a character of four bytes, and three are inside of one. */
    for (size_t cut = 0; cut < 4; cut++) {
        char text[2 * MOST] = "xxx";
        for (size_t i = cut; i < sizeof text - 5; i += 4)
            for (size_t byte = 0; byte < 4; byte++)
                text[i + byte] = "\xf0\x9f\x98\x80"[byte];
        hotbed_io_name(name, text, "b");
        CHECK(strncmp(name, "...\xf0\x9f", 5) == 0 && strlen(name) > MOST - 4);
        CHECK_STRING(name + strlen(name) - 4, "\x98\x80/b");
    }
}

static void end_with_open_file(hotbed_backend backend, const char *path) {
    sample_save_formula(sample_path("saved"), "adam", 5, backend);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t group = H5Gcreate2(file, "mine", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    exit(group < 0 ? 1 : 0);
}

static void programs_that_use_libhdf5_keep_its_flush_at_exit(hotbed_backend backend) {
    int status = 0;
    sample_directory();
    const char *path = sample_path("own.h5");
    (void)fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        end_with_open_file(backend, path);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    CHECK(file >= 0 && H5Lexists(file, "mine", H5P_DEFAULT) > 0);
    CHECK(H5Fclose(file) >= 0);
}

static void columns_of_a_chunk_are_aligned(hotbed_backend backend) {
    const size_t row_bytes[HOTBED_ROW_COLUMNS] = {
        [HOTBED_COLUMN_KEYS] = 8,
        [HOTBED_COLUMN_VALUES] = 9,
        [HOTBED_COLUMN_STATE] = 20,
        [HOTBED_COLUMN_TIMES] = 8};
    hotbed_chunk chunk;
    CHECK_OK(hotbed_chunk_create(row_bytes, &chunk));
    CHECK(chunk.capacity % 2 == 1); /* else rows of 9 bytes end at an even address */
    for (uint32_t i = 0; i < HOTBED_ROW_COLUMNS; i++)
        CHECK_EQ((uintptr_t)chunk.columns[i] % 8, 0);
    hotbed_chunk_destroy(&chunk);
}

const hotbed_test hotbed_tests[] = {
    {TEST(programs_that_use_libhdf5_keep_its_flush_at_exit)},
    {TEST(layouts_need_no_disk_space)},
    {TEST(imported_scores_keep_their_order)},
    {TEST(files_in_memory_hold_the_written_bytes)},
    {TEST(blocks_are_written_behind)},
    {TEST(a_failed_write_is_reported_before_its_memory_is_reused)},
    {TEST(blocks_taken_in_pieces_are_checked_whole)},
    {TEST(malformed_npy_headers_are_refused)},
    {TEST(keys_are_sorted_by_bucket_then_key)},
    {TEST(the_bucket_hash_is_frozen)},
    {TEST(digests_are_xxh3_128)},
    {TEST(long_names_keep_their_end)},
    {TEST(files_are_written_whole)},
    {TEST(columns_of_a_chunk_are_aligned)},
    {NULL, NULL},
};
