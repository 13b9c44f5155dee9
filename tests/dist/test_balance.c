/* tests/dist/test_balance.c - batch balance: partitions of samples by workload, and the exchange of
 * samples by a partition. */
#include "hotbed/balance.h"

#include "dist/exchange/partition.h"
#include "tests/dist/sharded_fixture.h"
#include "tests/dist/world.h"
#include "tests/support/harness.h"

#include <stdlib.h>

/* --- partitions ------------------------------------------------------------------------------- */

static uint64_t sum_of(const uint64_t *workloads, const uint32_t *items, uint32_t n) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += workloads[items[i]];
    return sum;
}

/* Each item is in one set, and the items of a set ascend; return the difference of the largest and
 * smallest sum. */
static uint64_t check_partition(
    uint32_t sets, uint32_t n, const uint64_t *workloads, const uint32_t *items) {
    uint64_t least = UINT64_MAX, most = 0;
    bool *seen = calloc((size_t)sets * n, sizeof *seen);
    CHECK(seen != NULL);
    for (uint32_t s = 0; s < sets; s++) {
        for (uint32_t i = 0; i < n; i++) {
            uint32_t item = items[s * n + i];
            CHECK(item < sets * n && !seen[item]);
            CHECK(i == 0 || items[s * n + i - 1] < item);
            seen[item] = true;
        }
        uint64_t sum = sum_of(workloads, items + s * n, n);
        least = sum < least ? sum : least;
        most = sum > most ? sum : most;
    }
    free(seen);
    return most - least;
}

static void partition(
    uint32_t sets, uint32_t items_a_set, const uint64_t *workloads, uint32_t *items) {
    void *scratch = malloc(hotbed_partition_scratch(sets, items_a_set));
    CHECK(scratch != NULL);
    hotbed_partition(sets, items_a_set, workloads, items, scratch);
    free(scratch);
}

static void known_partitions(hotbed_backend backend) {
    /* The differences of neighbours, 8-7, 6-5, 4-3 and 2-1, cancel. */
    const uint64_t eight[] = {8, 7, 6, 5, 4, 3, 2, 1}, zeros[6] = {0};
    const uint64_t one_large[] = {1, 1, 100, 1, 1, 1};
    uint32_t items[8];
    partition(2, 4, eight, items);
    CHECK_EQ(check_partition(2, 4, eight, items), 0);
    partition(4, 2, eight, items);
    CHECK_EQ(check_partition(4, 2, eight, items), 0);
    partition(3, 2, zeros, items);
    CHECK_EQ(check_partition(3, 2, zeros, items), 0);
    partition(3, 2, one_large, items);
    CHECK_EQ(check_partition(3, 2, one_large, items), 99);
    /* The pairs differ by 10, 1 and 5: 10 - 5 - 1 if the largest differences are joined first. */
    const uint64_t uneven[] = {20, 10, 9, 8, 7, 2};
    partition(2, 3, uneven, items);
    CHECK_EQ(check_partition(2, 3, uneven, items), 4);
    partition(1, 8, eight, items);
    CHECK_EQ(check_partition(1, 8, eight, items), 0);
    partition(8, 1, eight, items);
    CHECK_EQ(check_partition(8, 1, eight, items), 7);
}

/* Long-tailed workloads: for many items, sums differ by less than a twentieth (a thirtieth at most
 * with 1,500 seeds), and by less than if items were assigned in turn.  Of each two items the larger comes
 * first, so that assigning in turn is never even by chance. */
static void sums_are_nearly_equal(hotbed_backend backend) {
    static const uint32_t sets[] = {2, 3, 4, 8, 33};
    for (int k = 0; k < 5; k++)
        for (uint32_t n = 16; n <= 256; n *= 4) {
            uint64_t *workloads = calloc((size_t)sets[k] * n, sizeof *workloads);
            uint32_t *items = calloc((size_t)sets[k] * n, sizeof *items);
            uint32_t *again = calloc((size_t)sets[k] * n, sizeof *again);
            CHECK(workloads != NULL && items != NULL && again != NULL);
            uint64_t total = 0;
            for (uint32_t i = 0; i < sets[k] * n; i++) {
                uint64_t length = 1 + hotbed_test_below(1000) * hotbed_test_below(1000) / 1000;
                workloads[i] = length * length;
                total += workloads[i];
            }
            for (uint32_t i = 0, j = sets[k] * n - 1; i < j; i++, j--) {
                uint64_t a = workloads[i], b = workloads[j];
                workloads[i] = a > b ? a : b;
                workloads[j] = a > b ? b : a;
            }
            partition(sets[k], n, workloads, items);
            partition(sets[k], n, workloads, again);
            CHECK_BYTES(items, again, (size_t)sets[k] * n * sizeof *items);
            for (uint32_t i = 0; i < sets[k] * n; i++)
                again[i] = i;
            uint64_t spread = check_partition(sets[k], n, workloads, items);
            CHECK(spread < check_partition(sets[k], n, workloads, again));
            CHECK(n < 64 || spread <= total / sets[k] / 20);
            free(workloads), free(items), free(again);
        }
}

/* --- samples ---------------------------------------------------------------------------------- */

enum {
    FEATURES = 3,
    BATCH = 6,
    BAG = 5,
    ROWS = FEATURES * BATCH,
    KEYS = ROWS * BAG,
    ROW_BYTES = 7
};

typedef struct batch {
    uint32_t samples, strides[FEATURES];
    int64_t lengths[ROWS];
    uint32_t starts[FEATURES][BATCH + 1];
    uint64_t keys[KEYS], workloads[BATCH];
    float weights[KEYS];
    uint8_t rows[BATCH * ROW_BYTES];
    uint64_t n;
} batch;

typedef struct balance_case {
    bool given, weighted, variable;
} balance_case;

static void make_batch(batch *b, uint64_t seed, uint32_t rank, const balance_case *how) {
    uint64_t random = seed * 7919 + rank, row = 0;
    memset(b, 0, sizeof *b);
    b->samples = (uint32_t)(hotbed_test_random_r(&random) % (BATCH + 1));
    if (rank % 2 == 0)
        b->samples = BATCH;
    for (uint32_t f = 0; f < FEATURES; f++) {
        b->strides[f] = b->samples;
        if (how->variable)
            b->strides[f] = (uint32_t)(hotbed_test_random_r(&random) % (b->samples + 1));
        for (uint32_t s = 0; s < BATCH; s++) {
            b->starts[f][s] = (uint32_t)b->n;
            if (s >= b->strides[f])
                continue;
            b->lengths[row] = (int64_t)(hotbed_test_random_r(&random) % (BAG + 1));
            for (int64_t i = 0; i < b->lengths[row]; i++) {
                b->weights[b->n] = (float)(hotbed_test_random_r(&random) % 100);
                b->keys[b->n++] = hotbed_test_random_r(&random);
            }
            row++;
        }
        b->starts[f][BATCH] = (uint32_t)b->n;
    }
    for (uint32_t s = 0; s < BATCH; s++) {
        uint64_t keys = 0;
        for (uint32_t f = 0; f < FEATURES; f++)
            keys += b->starts[f][s + 1] - b->starts[f][s];
        b->workloads[s] = how->given ? 1 + hotbed_test_random_r(&random) % 50 : keys;
        if (s >= b->samples)
            b->workloads[s] = 0;
    }
    for (size_t i = 0; i < sizeof b->rows; i++)
        b->rows[i] = (uint8_t)(1 + hotbed_test_random_r(&random) % 255);
}

static world_bytes upload(world_rank *me, const void *data, size_t bytes) {
    world_bytes b = world_alloc(me, bytes);
    memcpy(b.host, data, bytes);
    world_upload(me, &b);
    return b;
}

static void download(world_rank *me, void *to, const void *device, size_t bytes) {
    CHECK_OK(hotbed_copy(to, device, bytes, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
}

/* This rank's new batch has the samples that the partition assigns to it. */
static void check_new_batch(
    world_rank *me, const batch *all, const hotbed_balanced *got, const uint8_t *new_rows) {
    uint32_t n = me->size * BATCH, want[BATCH], filled = 0, num = 0;
    uint64_t *workloads = calloc(n, sizeof *workloads), sum = 0, got_sum;
    uint32_t *items = calloc(n, sizeof *items), samples[BATCH], num_samples;
    CHECK(workloads != NULL && items != NULL);
    for (uint32_t i = 0; i < n; i++)
        workloads[i] = all[i / BATCH].workloads[i % BATCH];
    partition(me->size, BATCH, workloads, items);
    for (int real = 1; real >= 0; real--)
        for (uint32_t i = 0; i < BATCH; i++) {
            uint32_t item = items[me->rank * BATCH + i];
            bool is_real = item % BATCH < all[item / BATCH].samples;
            if (is_real == (real == 1))
                want[filled++] = item;
            num += real == 1 && is_real;
            sum += real == 1 ? workloads[item] : 0;
        }
    download(me, samples, got->samples, sizeof samples);
    download(me, &num_samples, got->num_samples, sizeof num_samples);
    download(me, &got_sum, got->workload, sizeof got_sum);
    CHECK_BYTES(samples, want, sizeof want);
    CHECK_EQ(num_samples, num);
    CHECK_EQ(got_sum, sum);
    int64_t offsets[ROWS + 1];
    download(me, offsets, got->kjt.offsets, sizeof offsets);
    uint64_t capacity = got->kjt.num_keys, at = 0;
    uint64_t *keys = calloc(capacity + 1, sizeof *keys);
    float *weights = calloc(capacity + 1, sizeof *weights);
    CHECK(keys != NULL && weights != NULL);
    download(me, keys, got->kjt.keys, capacity * sizeof *keys);
    if (got->kjt.weights != NULL)
        download(me, weights, got->kjt.weights, capacity * sizeof *weights);
    for (uint32_t r = 0; r < ROWS; r++) {
        const batch *b = &all[want[r % BATCH] / BATCH];
        const uint32_t *starts = b->starts[r / BATCH] + want[r % BATCH] % BATCH;
        CHECK_EQ(offsets[r], at);
        for (uint32_t i = starts[0]; i < starts[1]; i++, at++) {
            CHECK_EQ(keys[at], b->keys[i]);
            if (got->kjt.weights != NULL)
                CHECK(weights[at] == b->weights[i]);
        }
    }
    CHECK_EQ(offsets[ROWS], at);
    const uint8_t zeros[ROW_BYTES] = {0};
    for (uint32_t i = 0; i < BATCH; i++)
        CHECK_BYTES(
            new_rows + i * ROW_BYTES,
            i < num ? all[want[i] / BATCH].rows + want[i] % BATCH * ROW_BYTES : zeros, ROW_BYTES);
    free(workloads), free(items), free(keys), free(weights);
}

static void balance_body(world_rank *me) {
    const balance_case *how = me->argument;
    hotbed_balance_options o = {.size = sizeof o};
    hotbed_balance *balance[2];
    o.num_features = FEATURES;
    o.batch_size = BATCH;
    o.weighted = how->weighted;
    o.max_keys = KEYS;
    for (int i = 0; i < 2; i++)
        CHECK_OK(hotbed_balance_create(&o, me->comm, me->stream, &balance[i]));
    batch *all = calloc(2 * (size_t)me->size, sizeof *all);
    CHECK(all != NULL);
    const uint64_t rounds = hotbed_test_is_small() ? 1 : 3;
    for (uint64_t round = 0; round < rounds; round++) {
        world_bytes arrays[2][5], new_rows[2];
        hotbed_balanced got[2] = {{0}};
        for (uint32_t i = 0; i < 2; i++) { /* two batches in flight */
            batch *own = &all[i * me->size + me->rank];
            for (uint32_t r = 0; r < me->size; r++)
                make_batch(&all[i * me->size + r], 2 * round + i + hotbed_test_seed(), r, how);
            arrays[i][0] = upload(me, own->keys, sizeof own->keys);
            arrays[i][1] = upload(me, own->lengths, sizeof own->lengths);
            arrays[i][2] = upload(me, own->weights, sizeof own->weights);
            uint64_t given[BATCH]; /* the library reads none past the last sample */
            for (uint32_t b = 0; b < BATCH; b++)
                given[b] = b < own->samples ? own->workloads[b] : 1000;
            arrays[i][3] = upload(me, given, sizeof given);
            arrays[i][4] = upload(me, own->rows, own->samples * ROW_BYTES); /* perhaps NULL */
            new_rows[i] = world_alloc(me, sizeof own->rows);
        }
        hotbed_counters before = hotbed_test_counters();
        for (uint32_t i = 0; i < 2; i++) {
            const batch *own = &all[i * me->size + me->rank];
            hotbed_kjt kjt = {.size = sizeof kjt};
            kjt.num_features = FEATURES;
            kjt.batch_size = own->samples;
            kjt.strides = how->variable ? own->strides : NULL;
            kjt.num_keys = own->n;
            kjt.keys = arrays[i][0].device.data;
            kjt.lengths = arrays[i][1].device.data;
            kjt.weights = how->weighted ? arrays[i][2].device.data : NULL;
            CHECK_OK(hotbed_balance_start(
                balance[i], &kjt, how->given ? arrays[i][3].device.data : NULL, me->stream));
        }
        for (uint32_t i = 0; i < 2; i++) {
            got[i].size = sizeof got[i];
            CHECK_OK(hotbed_balance_finish(balance[i], &got[i], me->stream));
            CHECK_OK(hotbed_balance_rows(
                balance[i], ROW_BYTES, arrays[i][4].device.data, new_rows[i].device.data,
                me->stream));
        }
        hotbed_counters after = hotbed_test_counters();
        if (me->size == 1) {
            CHECK_EQ(after.host_waits, before.host_waits);
            CHECK_EQ(after.allocations, before.allocations);
        }
        CHECK_OK(hotbed_stream_sync(me->stream));
        for (uint32_t i = 0; i < 2; i++) {
            world_download(me, &new_rows[i]);
            check_new_batch(me, all + i * me->size, &got[i], new_rows[i].host);
            for (int k = 0; k < 5; k++)
                world_free(&arrays[i][k]);
            world_free(&new_rows[i]);
        }
    }
    free(all);
    hotbed_balance_destroy(balance[0]);
    hotbed_balance_destroy(balance[1]);
}

static void samples_follow_the_partition(hotbed_backend backend) {
    for (int i = 0; i < 8; i++) {
        balance_case how = {(i & 1) != 0, (i & 2) != 0, (i & 4) != 0};
        sharded_fixture_run(8, balance_body, &how);
    }
}

/* --- refusals --------------------------------------------------------------------------------- */

/* Create a balance with one invalid option: ARGUMENT, with a message that contains `text`. */
static void refuse(world_rank *me, const hotbed_balance_options *options, const char *text) {
    hotbed_balance *balance;
    CHECK_STATUS(
        hotbed_balance_create(options, me->comm, me->stream, &balance), HOTBED_ERR_ARGUMENT);
    CHECK(balance == NULL);
    if (strstr(hotbed_last_error(), text) == NULL)
        CHECK_STRING(hotbed_last_error(), text);
}

static void refusals_body(world_rank *me) {
    hotbed_balance_options good, o;
    hotbed_balance *balance;
    hotbed_balanced got = {.size = sizeof got};
    good = (hotbed_balance_options){
        .size = sizeof good, .num_features = 2, .batch_size = 3, .max_keys = 6, .max_new_keys = 6};
    memset(&o, 0, sizeof o);
    refuse(me, &o, "size 0 is not in");
    o = good;
    o.num_features = 0;
    refuse(me, &o, "0 features");
    o = good;
    o.batch_size = 1U << 30;
    refuse(me, &o, "1073741824 samples");
    o = good;
    o.max_keys = 0;
    refuse(me, &o, "max_keys 0");
    o = good;
    o.max_row_bytes = ((uint64_t)1 << 63) + 1; /* times the 6 samples of two ranks: 6 bytes */
    refuse(me, &o, "max_row_bytes 9223372036854775809 is not in [0, 2^30]");
    CHECK_OK(hotbed_balance_create(&good, me->comm, me->stream, &balance));
    world_bytes keys = world_alloc(me, 64), rows = world_alloc(me, 64);
    CHECK_STATUS(hotbed_balance_finish(balance, &got, me->stream), HOTBED_ERR_STATE);
    CHECK_STATUS(
        hotbed_balance_rows(balance, 4, rows.device.data, keys.device.data, me->stream),
        HOTBED_ERR_STATE);
    hotbed_kjt kjt = {.size = sizeof kjt};
    kjt.num_features = 2;
    kjt.batch_size = 4;
    kjt.num_keys = 8;
    kjt.keys = keys.device.data;
    CHECK_STATUS(hotbed_balance_start(balance, &kjt, NULL, me->stream), HOTBED_ERR_ARGUMENT);
    kjt.num_features = 3;
    kjt.batch_size = 2;
    kjt.num_keys = 6;
    CHECK_STATUS(hotbed_balance_start(balance, &kjt, NULL, me->stream), HOTBED_ERR_ARGUMENT);
    kjt.num_features = 2;
    kjt.batch_size = 3;
    kjt.weights = rows.device.data;
    CHECK_STATUS(hotbed_balance_start(balance, &kjt, NULL, me->stream), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "it has weights, but the balance is not weighted") != NULL);
    kjt.weights = NULL;
    CHECK_OK(hotbed_balance_start(balance, &kjt, NULL, me->stream));
    CHECK_OK(hotbed_balance_finish(balance, &got, me->stream));
    CHECK_STATUS(
        hotbed_balance_rows(balance, 65, rows.device.data, keys.device.data, me->stream),
        HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_stream_sync(me->stream));
    hotbed_balance_destroy(balance);
    hotbed_balance_destroy(NULL);
    world_free(&keys);
    world_free(&rows);
}

static void wrong_arguments_are_refused(hotbed_backend backend) {
    sharded_fixture_run(2, refusals_body, NULL);
}

/* A communicator of threads accepts streams of both backends, but the balance's memory is of one. */
static void a_stream_of_another_backend_is_refused(hotbed_backend backend) {
    if (hotbed_backend_probe(HOTBED_BACKEND_CUDA) != HOTBED_OK)
        SKIP(hotbed_last_error());
    static const char text[] = "the stream is of host 0, the balance of cuda 0";
    hotbed_comm *comm;
    hotbed_stream *host, *cuda;
    hotbed_balance *balance;
    hotbed_balance_options o = {.size = sizeof o};
    hotbed_balanced got = {.size = sizeof got};
    hotbed_kjt kjt = {.size = sizeof kjt};
    uint64_t word = 0;
    CHECK_OK(hotbed_comm_create_threads(NULL, 1, &comm));
    CHECK_OK(hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &host));
    CHECK_OK(hotbed_stream_create(HOTBED_BACKEND_CUDA, 0, &cuda));
    o.num_features = o.batch_size = 1;
    o.max_keys = 1;
    CHECK_OK(hotbed_balance_create(&o, comm, cuda, &balance));
    kjt.num_features = kjt.batch_size = 1;
    kjt.num_keys = 1;
    kjt.keys = &word;
    CHECK_STATUS(hotbed_balance_start(balance, &kjt, NULL, host), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), text);
    CHECK_STATUS(hotbed_balance_finish(balance, &got, host), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), text);
    CHECK_STATUS(hotbed_balance_rows(balance, 8, &word, &word, host), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_last_error(), text);
    hotbed_balance_destroy(balance);
    hotbed_stream_destroy(cuda);
    hotbed_stream_destroy(host);
    hotbed_comm_destroy(comm);
}

const hotbed_test hotbed_tests[] = {
    {TEST(known_partitions)},
    {TEST(sums_are_nearly_equal)},
    {TEST(samples_follow_the_partition)},
    {TEST(wrong_arguments_are_refused)},
    {TEST(a_stream_of_another_backend_is_refused)},
    {NULL, NULL},
};
