/* tests/dist/test_dist_wide.c - positions beyond 2^31 elements and 2^32 bytes, in address space of
 * which only those pages are touched. */
#define _DEFAULT_SOURCE 1 /* MAP_NORESERVE */
#include "dist/balance_core.h"
#include "dist/comm/comm.h"
#include "dist/comm/comm_sum_core.h"
#include "dist/exchange/deliver_core.h"
#include "dist/exchange/gather_core.h"
#include "tests/support/harness.h"

#include <sys/mman.h>

#define GIB ((size_t)1 << 30)

/* Address space that reads as zeros; NULL if the machine cannot reserve it. */
typedef struct space {
    uint8_t *at;
    size_t bytes;
} space;

static bool open_spaces(space *s, int n) {
    int open = 0;
    for (; open < n; open++) {
        void *at = mmap(
            NULL, s[open].bytes, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED)
            break;
        s[open].at = at;
    }
    for (int i = 0; open < n && i < open; i++)
        CHECK_EQ(munmap(s[i].at, s[i].bytes), 0);
    return open == n;
}

static void close_spaces(const space *s, int n) {
    for (int i = 0; i < n; i++)
        CHECK_EQ(munmap(s[i].at, s[i].bytes), 0);
}

/* Rows of ROW bytes; their floats count up from a number. */
enum { ROW = 8192, DIM = ROW / 4 };

static void make_row(uint8_t *row, uint32_t number) {
    for (uint32_t i = 0; i < DIM; i++) {
        float value = (float)(number + i);
        memcpy(row + (size_t)i * 4, &value, 4);
    }
}

static void check_row(const uint8_t *row, uint32_t number, float scale) {
    for (uint32_t i = 0; i < DIM; i++) {
        float value, want = (float)(number + i) * scale;
        memcpy(&value, row + (size_t)i * 4, 4);
        CHECK(value == want);
    }
}

/* Received row FAR lies 4 GiB behind the first. */
static void owners_reach_rows_beyond_4_gib(hotbed_backend backend) {
    enum { FAR = (1 << 19) + 3, FIRST = (1 << 19) + 7 };
    space s[1] = {{.bytes = 9 * GIB}};
    if (!open_spaces(s, 1))
        SKIP("no address space without memory");
    const uint32_t segments[2] = {0, FAR + 1}, firsts[1] = {FIRST}, overflow = 0;
    uint8_t *const rows[1] = {s[0].at};
    const hotbed_deliver_view d = {
        .segments = segments,
        .firsts = firsts,
        .num_segments = 1,
        .overflow = &overflow,
        .world = 1,
        .rows = rows,
        .row_bytes = ROW,
    };
    make_row(hotbed_owner_row(&d, FAR), 1000);
    check_row(s[0].at + ((size_t)FAR + FIRST) * ROW, 1000, 1);
    CHECK_EQ(hotbed_owner_place(&d, s[0].at, FAR), FAR + FIRST);
    close_spaces(s, 1);
}

/* A key's row lies 4 GiB into a message, and 2^31 elements into the output; its gradient too. */
static void requesters_reach_rows_beyond_4_gib(hotbed_backend backend) {
    enum { FAR = (1 << 19) + 3, KEYS = 2 };
    const uint64_t stride = ((uint64_t)1 << 31) + 8;
    space s[2] = {{.bytes = 5 * GIB}, {.bytes = 17 * GIB}};
    if (!open_spaces(s, 2))
        SKIP("no address space without memory");
    const uint32_t ranks[2] = {0, FAR + 1}, places[KEYS] = {0, FAR}, sources[KEYS] = {0, 1};
    const uint32_t overflow = 0;
    uint8_t *const rows[1] = {s[0].at};
    const hotbed_deliver_view d = {
        .ranks = ranks,
        .places = places,
        .sources = sources,
        .overflow = &overflow,
        .world = 1,
        .rows = rows,
        .row_bytes = ROW,
        .dim = DIM,
        .dtype = HOTBED_F32,
        .travel = HOTBED_F32,
        .scale = 2.0F,
    };
    uint8_t *sent = s[0].at + (size_t)FAR * ROW, *own = s[1].at + stride * sizeof(float);
    for (int plain = 0; plain < 2; plain++) {
        make_row(sent, 3000U + (uint32_t)plain);
        hotbed_take_row(&d, 1, s[1].at, stride * sizeof(float), plain == 1, 1);
        check_row(own, 3000U + (uint32_t)plain, 1);
    }
    make_row(own, 4000);
    hotbed_send_gradient(&d, 1, s[1].at, stride, 1);
    check_row(sent, 4000, 2);
    CHECK(hotbed_send_sum_to(&d, 1) == sent);
    close_spaces(s, 2);
}

/* Three samples of 2^30 columns: element 2^31 and above of sums, output and gradient. */
static void pooled_sums_reach_beyond_2_to_the_31(hotbed_backend backend) {
    enum { WIDTH = 1 << 30, SAMPLE = 2, COLUMN = WIDTH - 3 };
    const uint64_t at = (uint64_t)SAMPLE * WIDTH + COLUMN, stride = WIDTH + 5;
    space s[2] = {{.bytes = 12 * GIB}, {.bytes = 13 * GIB}};
    if (!open_spaces(s, 2))
        SKIP("no address space without memory");
    const uint32_t starts[SAMPLE + 2] = {0, 0, 1, 5}, columns[2] = {0, WIDTH}, output[1] = {0};
    const hotbed_pool_view p = {
        .starts = starts,
        .columns = columns,
        .output_columns = output,
        .num_features = 1,
        .batch_size = SAMPLE + 1,
        .samples = SAMPLE + 1,
        .mean = 1,
        .dtype = HOTBED_F32,
        .scale = 2.0F,
    };
    float *sums = (float *)(void *)s[0].at, *rows = (float *)(void *)s[1].at;
    sums[at] = 12.0F;
    hotbed_pool_finish(&p, at, sums, rows, stride);
    CHECK(rows[SAMPLE * stride + COLUMN] == 3.0F);
    rows[SAMPLE * stride + COLUMN] = 20.0F;
    hotbed_pool_start(&p, at, rows, stride, sums);
    CHECK(sums[at] == 10.0F);
    close_spaces(s, 2);
}

/* The last of 2^31 + 5 elements that three ranks sum. */
static void reductions_reach_beyond_2_to_the_31(hotbed_backend backend) {
    enum { RANKS = 3 };
    const uint64_t n = ((uint64_t)1 << 31) + 5;
    space s[2] = {{.bytes = 25 * GIB}, {.bytes = 9 * GIB}};
    if (!open_spaces(s, 2))
        SKIP("no address space without memory");
    float *parts = (float *)(void *)s[0].at, *out = (float *)(void *)s[1].at;
    for (uint64_t p = 0; p < RANKS; p++)
        parts[p * n + n - 1] = (float)(p + 1);
    const hotbed_comm_sum_args args = {
        .parts = parts, .n = n, .size = RANKS, .scale = 0.5F, .out = out};
    hotbed_comm_sum_one(&args, n - 1);
    CHECK(out[n - 1] == 3.0F);
    close_spaces(s, 2);
}

/* Offset number 2^32 and above, of the last of 4,100 ranks with 2^20 samples each. */
static void offsets_reach_beyond_2_to_the_32(hotbed_backend backend) {
    enum { RANKS = 4100, SAMPLES = 1 << 20, SAMPLE = 77 };
    const uint64_t r = (uint64_t)(RANKS - 1) * SAMPLES + SAMPLE;
    space s[2] = {{.bytes = 33 * GIB}, {.bytes = GIB}};
    if (!open_spaces(s, 2))
        SKIP("no address space without memory");
    static uint8_t *from[RANKS];
    static uint32_t segments[RANKS + 1], firsts[RANKS];
    uint32_t overflow = 0;
    for (int p = 0; p < RANKS; p++)
        from[p] = s[1].at;
    segments[RANKS - 1] = segments[RANKS] = 500;
    hotbed_message_starts(s[1].at)[SAMPLE] = 9;
    const hotbed_gather_view g = {
        .from = from,
        .num_features = 1,
        .batch_size = SAMPLES,
        .world = RANKS,
        .segments = segments,
        .firsts = firsts,
        .overflow = &overflow,
        .offsets = (int64_t *)(void *)s[0].at,
        .by_sample = 1,
    };
    CHECK_EQ(hotbed_gather_offsets(&g), (uint64_t)RANKS * SAMPLES + 1);
    hotbed_gather_offset(&g, r);
    CHECK_EQ(g.offsets[r], 509);
    hotbed_gather_offset(&g, (uint64_t)RANKS * SAMPLES);
    CHECK_EQ(g.offsets[(uint64_t)RANKS * SAMPLES], 500);
    close_spaces(s, 2);
}

/* The features and sample bytes that rank 3 sent lie 6 GiB behind rank 0's. */
static void balanced_samples_reach_beyond_4_gib(hotbed_backend backend) {
    enum { RANK = 3, KEYS = 5, ROW_BYTES = 1 << 20, SAMPLE = 5000, PLACE = 4097 };
    space s[1] = {{.bytes = 9 * GIB}};
    if (!open_spaces(s, 1))
        SKIP("no address space without memory");
    static uint32_t samples[PLACE + 1];
    uint32_t starts[2] = {0};
    uint64_t keys[KEYS] = {0};
    samples[0] = RANK;
    hotbed_balance_view v = {
        .messages = s[0].at,
        .message_bytes = 2 * GIB,
        .capacity = KEYS,
        .shape = {.rows = 1},
        .num_features = 1,
        .batch_size = 1,
        .world = RANK + 1,
        .samples = samples,
        .starts = starts,
        .keys = keys,
        .bound = KEYS,
    };
    uint8_t *message = s[0].at + RANK * v.message_bytes;
    hotbed_message_starts(message)[1] = KEYS;
    hotbed_message_keys(message, v.shape)[KEYS - 1] = 42;
    hotbed_balance_length(&v, 0);
    CHECK_EQ(starts[0], KEYS);
    starts[0] = 0; /* as sums of lengths */
    starts[1] = KEYS;
    hotbed_balance_key(&v, KEYS - 1);
    CHECK_EQ(keys[KEYS - 1], 42);
    samples[PLACE] = SAMPLE;
    s[0].at[(size_t)SAMPLE * ROW_BYTES + 7] = 99;
    CHECK_EQ(
        hotbed_balance_byte(
            s[0].at, samples, PLACE + 1, ROW_BYTES, (uint64_t)PLACE * ROW_BYTES + 7),
        99);
    close_spaces(s, 1);
}

/* Offset and size of the parts of a message: the arithmetic only. */
static void message_parts_reach_beyond_4_gib(hotbed_backend backend) {
    enum { RANKS = 5 };
    const uint64_t large = ((uint64_t)1 << 32) + 12;
    static uint8_t base[1];
    const hotbed_comm comm = {.rank = 3, .size = RANKS};
    const uint64_t counts[RANKS] = {large, large, large, large, 8};
    uint64_t bytes;
    hotbed_comm_part part = {.kind = HOTBED_PART_EQUAL, .bytes = large, .send = base, .recv = base};
    CHECK_EQ((uintptr_t)hotbed_comm_sends(&comm, &part, 4, &bytes) - (uintptr_t)base, 4 * large);
    CHECK_EQ(bytes, large);
    CHECK_EQ((uintptr_t)hotbed_comm_receives(&comm, &part, 4, &bytes) - (uintptr_t)base, 4 * large);
    CHECK_EQ(bytes, large);
    part = (hotbed_comm_part){
        .kind = HOTBED_PART_COUNTS,
        .send = base,
        .send_bytes = counts,
        .recv = base,
        .recv_bytes = counts,
    };
    CHECK_EQ((uintptr_t)hotbed_comm_sends(&comm, &part, 3, &bytes) - (uintptr_t)base, 3 * large);
    CHECK_EQ(bytes, large);
    CHECK_EQ((uintptr_t)hotbed_comm_receives(&comm, &part, 4, &bytes) - (uintptr_t)base, 4 * large);
    CHECK_EQ(bytes, 8);
    /* Parts of a sum, where the last rank has the remainder. */
    const uint64_t all = (4 * large + 8) * sizeof(float);
    const uint64_t each = (4 * large + 8 + RANKS - 1) / RANKS * sizeof(float);
    part =
        (hotbed_comm_part){.kind = HOTBED_PART_SCATTER, .bytes = all, .send = base, .recv = base};
    CHECK_EQ((uintptr_t)hotbed_comm_sends(&comm, &part, 4, &bytes) - (uintptr_t)base, 4 * each);
    CHECK_EQ(bytes, all - 4 * each);
    CHECK_EQ((uintptr_t)hotbed_comm_receives(&comm, &part, 4, &bytes) - (uintptr_t)base, 4 * each);
    CHECK_EQ(bytes, each);
    part.kind = HOTBED_PART_COLLECT;
    CHECK_EQ((uintptr_t)hotbed_comm_sends(&comm, &part, 1, &bytes) - (uintptr_t)base, 3 * each);
    CHECK_EQ(bytes, each);
    CHECK_EQ((uintptr_t)hotbed_comm_receives(&comm, &part, 4, &bytes) - (uintptr_t)base, 4 * each);
    CHECK_EQ(bytes, all - 4 * each);
}

const hotbed_test hotbed_tests[] = {
    {TEST(owners_reach_rows_beyond_4_gib)},       {TEST(requesters_reach_rows_beyond_4_gib)},
    {TEST(pooled_sums_reach_beyond_2_to_the_31)}, {TEST(reductions_reach_beyond_2_to_the_31)},
    {TEST(offsets_reach_beyond_2_to_the_32)},     {TEST(balanced_samples_reach_beyond_4_gib)},
    {TEST(message_parts_reach_beyond_4_gib)},     {NULL, NULL},
};
