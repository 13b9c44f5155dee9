/* tests/dist/test_kjt.c - KJTs: invalid ones are refused with a message that names the fault, valid
 * ones become the batch of a storage. */
#include "dist/exchange/kjt.h"

#include "tests/dist/arrays.h"

enum { MAX_ROWS = 4096, MAX_KEYS = 20000, MAX_FEATURES = 300 };

/* A random batch in host memory. */
typedef struct sample {
    hotbed_kjt kjt;
    uint32_t strides[MAX_FEATURES];
    int64_t lengths[MAX_ROWS], offsets[MAX_ROWS + 1];
    uint64_t keys[MAX_KEYS];
    float weights[MAX_KEYS];
} sample;

static sample make_sample(uint32_t features, uint32_t batch_size, bool variable) {
    static sample s;
    s.kjt = (hotbed_kjt){.size = sizeof s.kjt, .num_features = features, .batch_size = batch_size};
    uint64_t r = 0, n = 0;
    for (uint32_t f = 0; f < features; f++) {
        s.strides[f] = variable ? (uint32_t)hotbed_test_below(batch_size + 1) : batch_size;
        for (uint32_t b = 0; b < s.strides[f]; b++, r++) {
            s.lengths[r] = (int64_t)hotbed_test_below(4) * (int64_t)hotbed_test_below(3);
            s.offsets[r] = (int64_t)n;
            n += (uint64_t)s.lengths[r];
        }
    }
    CHECK(r <= MAX_ROWS && n <= MAX_KEYS);
    s.offsets[r] = (int64_t)n;
    for (uint64_t i = 0; i < n; i++) {
        s.keys[i] = hotbed_test_random();
        s.weights[i] = hotbed_test_float();
    }
    s.kjt.num_keys = n;
    return s;
}

/* Upload the batch, with lengths or offsets. */
static hotbed_kjt upload(arrays *a, const sample *s, bool variable, bool by_offsets) {
    hotbed_kjt kjt = s->kjt;
    uint64_t rows = 0;
    for (uint32_t f = 0; f < kjt.num_features; f++)
        rows += s->strides[f];
    kjt.strides = variable ? s->strides : NULL;
    CHECK_EQ(hotbed_kjt_rows(&kjt), rows);
    kjt.keys = arrays_copy(a, s->keys, kjt.num_keys * sizeof *s->keys);
    kjt.weights = arrays_copy(a, s->weights, kjt.num_keys * sizeof *s->weights);
    if (by_offsets)
        kjt.offsets = arrays_copy(a, s->offsets, (rows + 1) * sizeof *s->offsets);
    else
        kjt.lengths = arrays_copy(a, s->lengths, rows * sizeof *s->lengths);
    return kjt;
}

/* The offsets of a storage's batch, as a collection of one rank makes them. */
static void make_offsets(arrays *a, const hotbed_kjt *kjt, int64_t *offsets) {
    const uint64_t rows = hotbed_kjt_rows(kjt);
    const size_t scratch_bytes = hotbed_kjt_scratch(a->stream, rows);
    void *scratch = arrays_alloc(a, scratch_bytes);
    uint32_t *bases = arrays_alloc(a, (kjt->num_features + 1) * sizeof *bases);
    const hotbed_pick_view pick = {
        .kjt =
            hotbed_kjt_view_of(kjt, arrays_alloc(a, (rows + 1) * 4), arrays_alloc(a, 4), a->stream),
        .bases = kjt->strides == NULL ? NULL : bases,
        .stride = kjt->batch_size,
        .num_features = kjt->num_features,
        .batch_size = kjt->batch_size,
    };
    if (kjt->strides != NULL)
        CHECK_OK(hotbed_kjt_put_bases(kjt, bases, a->stream));
    CHECK_OK(hotbed_kjt_start(&pick.kjt, scratch, scratch_bytes, a->stream));
    CHECK_OK(hotbed_kjt_pick_offsets(&pick, offsets, a->stream));
}

static void random_batches_become_batches_of_a_storage(hotbed_backend backend) {
    for (int round = 0; round < 40; round++) {
        arrays a = arrays_open(backend);
        bool variable = round % 2 == 1;
        uint32_t features = 1 + (uint32_t)hotbed_test_below(round % 10 == 0 ? MAX_FEATURES : 9);
        uint32_t batch_size = (uint32_t)hotbed_test_below(MAX_ROWS / features + 1) % 40;
        sample s = make_sample(features, batch_size, variable);
        hotbed_kjt kjt = upload(&a, &s, variable, round % 4 < 2);
        CHECK_OK(hotbed_kjt_validate(&kjt, a.stream));
        uint64_t n = (uint64_t)features * batch_size + 1;
        int64_t *device = arrays_alloc(&a, n * sizeof *device);
        make_offsets(&a, &kjt, device);
        static int64_t got[MAX_ROWS + MAX_FEATURES * 40];
        arrays_read(&a, got, device, n * sizeof *got);
        uint64_t row = 0, at = 0;
        for (uint32_t f = 0; f < features; f++) {
            for (uint32_t b = 0; b < batch_size; b++)
                CHECK_EQ(got[at++], s.offsets[b < s.strides[f] ? row + b : row + s.strides[f]]);
            row += s.strides[f];
        }
        CHECK_EQ(got[at], kjt.num_keys);
        arrays_close(&a);
    }
}

/* Select features in another order, some twice, some not at all, with more samples than they have. */
static void selected_features_have_all_their_keys(hotbed_backend backend) {
    for (int round = 0; round < 30; round++) {
        arrays a = arrays_open(backend);
        bool variable = round % 2 == 1;
        uint32_t features = 1 + (uint32_t)hotbed_test_below(7);
        sample s = make_sample(features, 1 + (uint32_t)hotbed_test_below(12), variable);
        hotbed_kjt kjt = upload(&a, &s, variable, round % 4 < 2);
        uint64_t rows = hotbed_kjt_rows(&kjt);
        uint32_t picks[4], picked = 1 + (uint32_t)hotbed_test_below(4);
        for (uint32_t f = 0; f < picked; f++)
            picks[f] = (uint32_t)hotbed_test_below(features);
        uint32_t batch_size = s.kjt.batch_size + (uint32_t)hotbed_test_below(3);
        uint64_t picked_rows = (uint64_t)picked * batch_size, bound = 4 * kjt.num_keys;
        size_t scratch_bytes = hotbed_kjt_scratch(a.stream, rows + picked_rows);
        void *scratch = arrays_alloc(&a, scratch_bytes);
        uint32_t *bases = arrays_alloc(&a, (features + 1) * sizeof *bases);
        hotbed_pick_view p = {
            .kjt = hotbed_kjt_view_of(
                &kjt, arrays_alloc(&a, (rows + 1) * 4), arrays_alloc(&a, 4), a.stream),
            .features = arrays_copy(&a, picks, picked * sizeof *picks),
            .bases = variable ? bases : NULL,
            .stride = kjt.batch_size,
            .num_features = picked,
            .batch_size = batch_size,
            .starts = arrays_alloc(&a, (picked_rows + 1) * 4),
            .keys = arrays_alloc(&a, bound * 8),
            .sources = arrays_alloc(&a, bound * 4),
            .weights = arrays_alloc(&a, bound * 4),
        };
        if (variable)
            CHECK_OK(hotbed_kjt_put_bases(&kjt, bases, a.stream));
        CHECK_OK(hotbed_kjt_start(&p.kjt, scratch, scratch_bytes, a.stream));
        p.kjt.bound = bound; /* features that are selected twice have more keys than the batch */
        CHECK_OK(hotbed_kjt_pick(&p, scratch, scratch_bytes, a.stream));
        static uint32_t starts[MAX_ROWS];
        static uint64_t keys[MAX_KEYS];
        static uint32_t sources[MAX_KEYS];
        static float weights[MAX_KEYS];
        arrays_read(&a, starts, p.starts, (picked_rows + 1) * 4);
        uint32_t n = starts[picked_rows];
        arrays_read(&a, keys, p.keys, n * sizeof *keys);
        arrays_read(&a, sources, p.sources, n * sizeof *sources);
        arrays_read(&a, weights, p.weights, n * sizeof *weights);
        uint32_t at = 0, row = 0;
        for (uint32_t f = 0; f < picked; f++) {
            uint32_t base = 0;
            for (uint32_t g = 0; g < picks[f]; g++)
                base += s.strides[g];
            for (uint32_t b = 0; b < batch_size; b++, row++) {
                CHECK_EQ(starts[row], at);
                if (b >= s.strides[picks[f]])
                    continue;
                for (int64_t i = s.offsets[base + b]; i < s.offsets[base + b + 1]; i++, at++) {
                    CHECK_EQ(keys[at], s.keys[i]);
                    CHECK_EQ(sources[at], i);
                    CHECK(weights[at] == s.weights[i]);
                }
            }
        }
        CHECK_EQ(n, at);
        arrays_close(&a);
    }
}

static const char *const names[] = {"user", "item", "shop"};

static void bad_rows_are_named(hotbed_backend backend) {
    arrays a = arrays_open(backend);
    const int64_t good[] = {1, 0, 2, 1, 1, 1}, negative[] = {1, 0, 2, 1, -1, 1};
    const int64_t descends[] = {0, 1, 3, 2, 4, 5, 6}, late[] = {1, 2, 3, 4, 5, 6, 6};
    const uint64_t keys[6] = {0};
    hotbed_kjt kjt = {
        .size = sizeof kjt, .num_features = 3, .features = names, .batch_size = 2, .num_keys = 6};
    kjt.keys = arrays_copy(&a, keys, sizeof keys);
    CHECK_OK(hotbed_kjt_validate(&kjt, a.stream));
    kjt.lengths = arrays_copy(&a, good, sizeof good);
    CHECK_OK(hotbed_kjt_validate(&kjt, a.stream));
    kjt.num_keys = 5;
    CHECK_STATUS(hotbed_kjt_validate(&kjt, a.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(
        hotbed_last_error(),
        "kjt: feature 2 (shop), sample 1: its 1 keys begin at 5 and end beyond "
        "num_keys 5");
    CHECK_FIELDS(
            .has = HOTBED_HAS_FEATURE | HOTBED_HAS_SAMPLE | HOTBED_HAS_VALUE | HOTBED_HAS_LIMIT,
            .feature = 2, .sample = 1, .parameter = "lengths", .value = 6, .limit = 5);
    kjt.num_keys = 6;
    kjt.lengths = arrays_copy(&a, negative, sizeof negative);
    CHECK_STATUS(hotbed_kjt_validate(&kjt, a.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "kjt: feature 2 (shop), sample 0: its length is -1");
    kjt.offsets = arrays_copy(&a, descends, sizeof descends);
    CHECK_STATUS(hotbed_kjt_validate(&kjt, a.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "kjt: feature 1 (item), sample 0: its length is -1");
    kjt.offsets = arrays_copy(&a, late, sizeof late);
    CHECK_STATUS(hotbed_kjt_validate(&kjt, a.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "kjt: the first offset is 1, not 0");
    arrays_close(&a);
}

/* The device finds the same faults, names the row, and treats the batch as empty. */
static void bad_rows_are_faults(hotbed_backend backend) {
    arrays a = arrays_open(backend);
    const int64_t bad[4][5] = {
        {1, -1, 2, 1, 0}, {1, 2, 3, 4, 5}, {INT64_MAX, 1, 1, 1, 1}, {1, 1, 1, INT64_MIN, 1}};
    const int64_t offsets[6][5] = {{0, 2, 1, 4, 4},         {1, 1, 2, 3, 4},
                                   {0, 1, 2, 3, 5},         {0, INT64_MIN, 1, 3, 4},
                                   {0, 1, INT64_MAX, 1, 4}, {INT64_MIN, 0, 1, 3, 4}};
    const char *const texts[10] = {
        "bag 1 ends at -1,",
        NULL, /* bag 2 or 3: both end after the last key */
        "bag 0 ends at 9223372036854775807,",
        "bag 3 ends at -9223372036854775808,",
        "bag 1 ends at 1,",
        "the first is 1, not 0",
        "bag 3 ends at 5,",
        "bag 0 ends at -9223372036854775808,",
        "bag 1 ends at 9223372036854775807,",
        "the first is -9223372036854775808, not 0",
    };
    const uint64_t keys[4] = {0};
    for (int i = 0; i < 10; i++) {
        hotbed_kjt kjt = {.size = sizeof kjt};
        kjt.num_features = 2;
        kjt.batch_size = 2;
        kjt.num_keys = 4;
        kjt.keys = arrays_copy(&a, keys, sizeof keys);
        if (i < 4)
            kjt.lengths = arrays_copy(&a, bad[i], sizeof bad[i]);
        else
            kjt.offsets = arrays_copy(&a, offsets[i - 4], sizeof offsets[0]);
        int64_t *device = arrays_alloc(&a, 5 * sizeof *device), got[5];
        make_offsets(&a, &kjt, device);
        CHECK_STATUS(hotbed_stream_sync(a.stream), HOTBED_ERR_RANGE);
        if (texts[i] != NULL && strstr(hotbed_last_error(), texts[i]) == NULL)
            CHECK_STRING(hotbed_last_error(), texts[i]);
        arrays_read(&a, got, device, sizeof got);
        for (int r = 0; r < 5; r++)
            CHECK_EQ(got[r], 0);
    }
    arrays_close(&a);
}

static void refusals_name_the_feature(hotbed_backend backend) {
    const char *const nameless[] = {"user", NULL, "shop"};
    const uint32_t strides[] = {2, 2, 3};
    const uint64_t keys[6] = {0};
    hotbed_kjt kjt = {0};
    CHECK_STATUS(hotbed_kjt_check(NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_kjt_check(&kjt), HOTBED_ERR_ARGUMENT);
    kjt = (hotbed_kjt){.size = sizeof kjt};
    CHECK_STATUS(hotbed_kjt_check(&kjt), HOTBED_ERR_ARGUMENT);
    kjt.num_features = 3;
    kjt.features = names;
    kjt.batch_size = 2;
    kjt.num_keys = 6;
    CHECK_STATUS(hotbed_kjt_check(&kjt), HOTBED_ERR_ARGUMENT);
    kjt.keys = keys;
    CHECK_OK(hotbed_kjt_check(&kjt));
    CHECK_EQ(hotbed_kjt_find(&kjt, "shop"), 2);
    CHECK_EQ(hotbed_kjt_find(&kjt, "house"), 3);
    CHECK_EQ(hotbed_kjt_find(&kjt, NULL), 3);
    kjt.strides = strides;
    CHECK_STATUS(hotbed_kjt_check(&kjt), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), "kjt: feature 2 (shop) has 3 samples, over batch_size 2");
    kjt.strides = NULL;
    kjt.features = nameless;
    CHECK_STATUS(hotbed_kjt_check(&kjt), HOTBED_ERR_ARGUMENT);
    kjt.features = NULL;
    CHECK_EQ(hotbed_kjt_find(&kjt, "shop"), 3);
    kjt.num_keys = 5;
    CHECK_STATUS(hotbed_kjt_check(&kjt), HOTBED_ERR_ARGUMENT);
    kjt.batch_size = 1U << 30;
    CHECK_STATUS(hotbed_kjt_check(&kjt), HOTBED_ERR_ARGUMENT);
}

const hotbed_test hotbed_tests[] = {
    {TEST(random_batches_become_batches_of_a_storage)},
    {TEST(selected_features_have_all_their_keys)},
    {TEST(bad_rows_are_named)},
    {TEST(bad_rows_are_faults)},
    {TEST(refusals_name_the_feature)},
    {NULL, NULL},
};
