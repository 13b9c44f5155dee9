/* tests/storage/test_storage_tiers.c - modes CACHE and DEFAULT: choice of the mode, moves between tiers, pins.
 *
 * Rows and outputs must equal the model's in every mode.  Counters of fetches, write-backs and link bytes are
 * compared with the numbers that follow from the documented rules.
 */
#include "hotbed/storage.h"
#include "storage/storage.h"
#include "tests/storage/fixture.h"

#include <string.h>

/* --- the mode -------------------------------------------------------------------------------- */

static void explains(
    hotbed_backend backend, setup *s, hotbed_mode mode, const char *needle, const char *end) {
    fixture r;
    char text[256];
    fixture_open_bare(&r, backend, &s->options);
    CHECK_EQ(hotbed_storage_mode(r.storage), mode);
    CHECK_OK(hotbed_storage_explain(r.storage, text, sizeof text));
    CHECK(strstr(text, needle) != NULL);
    char *rest = strstr(text, "; index "); /* test_storage_lower checks this part */
    CHECK(rest != NULL);
    *rest = 0;
    CHECK(strlen(text) > strlen(end));
    CHECK_STRING(text + strlen(text) - strlen(end), end);
    CHECK_OK(hotbed_storage_explain(r.storage, text, 6));
    CHECK_EQ(strlen(text), 5);
    CHECK_STATUS(hotbed_storage_explain(NULL, text, 6), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_explain(r.storage, NULL, 6), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_explain(r.storage, text, 0), HOTBED_ERR_ARGUMENT);
    fixture_close(&r);
}

static void the_mode_follows_from_bytes_and_budget(hotbed_backend backend) {
    setup s;
    setup_start(&s, 2, 16, 970); /* twice 1,008 slots of 64 bytes: 129 KB */
    explains(backend, &s, HOTBED_MODE_HBM_DIRECT, "needs 129 KB, budget none", "HBM_DIRECT");
    s.options.hbm_bytes = 130000;
    explains(backend, &s, HOTBED_MODE_HBM_DIRECT, "budget 130 KB", "caching off: HBM_DIRECT");
    s.options.hbm_bytes = 64000;
    explains(backend, &s, HOTBED_MODE_DEFAULT, "budget 64 KB", "caching off: DEFAULT by score");
    s.options.placement = HOTBED_PLACE_BY_HASH;
    explains(backend, &s, HOTBED_MODE_DEFAULT, "needs 129 KB", "caching off: DEFAULT by hash");
    s.options.caching = true;
    explains(backend, &s, HOTBED_MODE_CACHE, "needs 129 KB", "caching on: CACHE");
    s.options.mode = HOTBED_MODE_HBM_DIRECT;
    explains(backend, &s, HOTBED_MODE_HBM_DIRECT, "needs", "HBM_DIRECT (as asked for)");
    s.options.mode = HOTBED_MODE_DEFAULT;
    explains(backend, &s, HOTBED_MODE_DEFAULT, "needs", "DEFAULT by hash (as asked for)");
    /* Optimizer states count, too. */
    s.options.mode = HOTBED_MODE_AUTO;
    s.options.hbm_bytes = 130000;
    s.options.optimizer.kind = HOTBED_OPT_ADAM;
    explains(backend, &s, HOTBED_MODE_CACHE, "needs 387 KB", "CACHE");
}

/* A budget of keys * row_bytes, as dynamicemb computes it, is enough for these keys. */
static void a_budget_of_keys_does_not_count_spare_slots(hotbed_backend backend) {
    setup s;
    fixture r;
    hotbed_table_info info = {.size = sizeof info};
    setup_start(&s, 1, 104, 10000); /* 416 bytes, in a cache 448 */
    fixture_open_bare(&r, backend, &s.options);
    CHECK_OK(hotbed_storage_table(r.storage, 0, &info));
    const uint64_t row_bytes = info.row_bytes;
    CHECK(info.slots > 10000);
    fixture_close(&r);
    s.options.hbm_bytes = 10000 * row_bytes;
    explains(backend, &s, HOTBED_MODE_DEFAULT, "needs", "DEFAULT by score");
    s.options.budget = HOTBED_BUDGET_KEYS;
    explains(backend, &s, HOTBED_MODE_HBM_DIRECT, "needs", "HBM_DIRECT");
    s.options.hbm_bytes = 10000 * row_bytes - 1;
    explains(backend, &s, HOTBED_MODE_DEFAULT, "needs", "DEFAULT by score");
    s.options.mode = HOTBED_MODE_CACHE;
    s.options.hbm_bytes = 1234 * row_bytes;
    fixture_open_bare(&r, backend, &s.options);
    CHECK_OK(hotbed_storage_table(r.storage, 0, &info));
    CHECK_EQ(info.upper_capacity, 1234);
    CHECK_EQ(info.row_bytes, 448);
    fixture_close(&r);
}

/* The upper tiers share the budget by bytes, and stay within it. */
static void upper_tiers_share_the_budget(hotbed_backend backend) {
    setup s;
    fixture r;
    hotbed_table_info info[3];
    setup_start(&s, 3, 16, 10000);
    s.tables[1].dim = 64;
    s.tables[2].upper_capacity = 123;
    s.options.mode = HOTBED_MODE_CACHE;
    s.options.hbm_bytes = 1 << 20;
    fixture_open_bare(&r, backend, &s.options);
    for (uint32_t t = 0; t < 3; t++) {
        info[t].size = sizeof info[t];
        CHECK_OK(hotbed_storage_table(r.storage, t, &info[t]));
    }
    CHECK(info[0].slots * info[0].row_bytes + info[1].slots * info[1].row_bytes <= 1 << 20);
    CHECK(info[1].upper_capacity * 10 > info[0].upper_capacity * 9); /* about as many keys */
    CHECK(info[0].upper_capacity > 2000);
    CHECK_EQ(info[2].upper_capacity, 123);
    CHECK(info[0].lower_slots >= 10000 && info[0].lower_slots < 10400);
    CHECK_EQ(info[0].index_bytes, (info[0].slots + info[0].lower_slots) * 16);
    CHECK(info[0].lower_weights != NULL);
    fixture_close(&r);
}

/* With two tiers, tables have regions, also after a growth: a key is at about the same fraction of both tiers. */
static void tables_whose_rows_move_have_regions(hotbed_backend backend) {
    static const hotbed_mode modes[] = {
        HOTBED_MODE_CACHE, HOTBED_MODE_DEFAULT, HOTBED_MODE_DEFAULT, HOTBED_MODE_HBM_DIRECT};
    for (int m = 0; m < 4; m++) {
        setup s;
        fixture r;
        setup_start(&s, 1, 4, 400000);
        s.tables[0].max_capacity = 1000000;
        s.tables[0].upper_capacity = m == 3 ? 0 : 100000;
        s.options.mode = modes[m];
        s.options.placement = m == 2 ? HOTBED_PLACE_BY_HASH : HOTBED_PLACE_BY_SCORE;
        fixture_open_bare(&r, backend, &s.options);
        /* four rows a page of 2 MiB */
        const uint32_t from = hotbed_storage_step(r.storage).eval.below_from;
        CHECK(m == 3 ? from == 1 : from >= 9);
        CHECK_OK(hotbed_storage_grow(r.storage, 0, 800000, r.stream));
        const uint32_t grown_from = hotbed_storage_step(r.storage).eval.below_from;
        CHECK(m == 3 ? grown_from == 1 : grown_from >= from + 8);
        const hotbed_table *table = &r.storage->tables[0];
        const bool move = m < 2;
        CHECK_EQ(table->view.range.region_bits > 0, move);
        CHECK_EQ(table->view.lower.region_bits > 0, move);
        CHECK_EQ(table->grown->segment.range.region_bits > 0, move);
        if (!hotbed_test_is_under("initcheck")) /* under it the fixture turns bulk copies off */
            CHECK_EQ(r.storage->bulk_bytes, move ? table->view.row_bytes : 0);
        CHECK_OK(hotbed_stream_sync(r.stream));
        fixture_close(&r);
    }
}

/* Rows that move between tiers are lengthened to whole lines of 128 or 64 bytes, by at most an eighth, and the
 * budget counts them so. */
static void rows_that_move_fill_lines(hotbed_backend backend) {
    static const struct {
        hotbed_dtype dtype;
        uint32_t dim;
        hotbed_optimizer_kind optimizer;
        uint64_t alone, moved;
    } rows[] = {
        {HOTBED_INT8, 128, HOTBED_OPT_ADAM, 1168, 1280},
        {HOTBED_F32, 104, HOTBED_OPT_SGD, 416, 448},
        {HOTBED_F32, 128, HOTBED_OPT_ADAM, 1536, 1536},
        {HOTBED_F32, 16, HOTBED_OPT_SGD, 64, 64},
        {HOTBED_INT8, 128, HOTBED_OPT_SGD, 144, 144},
        {HOTBED_F16, 3, HOTBED_OPT_SGD, 8, 8},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++)
        for (int m = 0; m < 4; m++) {
            setup s;
            fixture r;
            setup_start(&s, 1, rows[k].dim, 5000);
            s.tables[0].dtype = rows[k].dtype;
            s.options.optimizer.kind = rows[k].optimizer;
            s.options.mode = m == 0   ? HOTBED_MODE_HBM_DIRECT
                             : m == 1 ? HOTBED_MODE_CACHE
                                      : HOTBED_MODE_DEFAULT;
            s.options.placement = m == 3 ? HOTBED_PLACE_BY_HASH : HOTBED_PLACE_BY_SCORE;
            s.options.hbm_bytes = 2000 * rows[k].alone;
            fixture_open_bare(&r, backend, &s.options);
            hotbed_table_info info = {.size = sizeof info};
            CHECK_OK(hotbed_storage_table(r.storage, 0, &info));
            const bool moves = m == 1 || m == 2;
            CHECK_EQ(info.row_bytes, moves ? rows[k].moved : rows[k].alone);
            CHECK(!moves || info.slots * info.row_bytes <= s.options.hbm_bytes);
            fixture_close(&r);
        }
}

/* --- traffic --------------------------------------------------------------------------------- */

typedef struct work {
    setup s;
    fixture r;
    hotbed_ticket *ticket;
    hotbed_batch batch;
    uint64_t n;
    void *output;
} work;

enum { DIM = 8, ROW = DIM * 4 };

/* Options of one table with SGD, with `capacity` keys, `upper` of them in the upper tier. */
static void work_start(work *w, hotbed_mode mode, uint64_t capacity, uint64_t upper, uint64_t n) {
    memset(w, 0, sizeof *w);
    setup_start(&w->s, 1, DIM, capacity);
    w->s.tables[0].upper_capacity = upper;
    w->s.tables[0].score = HOTBED_SCORE_LFU;
    w->s.options.mode = mode;
    w->n = n;
}

static void work_open(work *w, hotbed_backend backend) {
    fixture_open_bare(&w->r, backend, &w->s.options);
    CHECK_OK(hotbed_ticket_create(w->r.storage, w->n, (uint32_t)w->n, w->r.stream, &w->ticket));
    w->batch = (hotbed_batch){.size = sizeof w->batch};
    w->batch.keys = fixture_alloc(&w->r, w->n * sizeof(uint64_t));
    w->output = fixture_alloc(&w->r, w->n * DIM * sizeof(float));
}

static void work_close(work *w) {
    hotbed_ticket_destroy(w->ticket);
    CHECK_EQ(fixture_pinned(&w->r), 0);
    fixture_close(&w->r);
}

/* Prefetch keys [first, first + n), then forward, and backward if `train`. */
static void work_step(work *w, uint64_t first, uint64_t n, bool train) {
    uint64_t keys[1024];
    CHECK(n <= w->n && n <= 1024);
    for (uint64_t i = 0; i < n; i++)
        keys[i] = (first + i) * UINT64_C(0x9e3779b97f4a7c15);
    fixture_upload(&w->r, (void *)w->batch.keys, keys, n * sizeof keys[0]);
    w->batch.num_keys = n;
    w->batch.batch_size = (uint32_t)n;
    CHECK_OK(hotbed_storage_prefetch(w->r.storage, &w->batch, w->ticket, w->r.stream));
    CHECK_OK(hotbed_storage_forward(w->r.storage, w->ticket, w->output, 0, w->r.stream));
    if (train) /* the output serves as gradient */
        CHECK_OK(hotbed_storage_backward(w->r.storage, w->ticket, w->output, 0, w->r.stream));
    else
        CHECK_OK(hotbed_ticket_cancel(w->ticket, w->r.stream));
    CHECK_OK(hotbed_stream_sync(w->r.stream));
}

static hotbed_table_stats work_stats(work *w) {
    hotbed_table_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_storage_stats(w->r.storage, 0, &stats, w->r.stream));
    return stats;
}

/* 1,000 keys, of which 500 fit into the upper tier, are visited in turn. */
static void only_changed_rows_are_written_back(hotbed_backend backend) {
    work w;
    work_start(&w, HOTBED_MODE_CACHE, 1000, 500, 100);
    w.s.tables[0].score = HOTBED_SCORE_STEP;
    work_open(&w, backend);
    for (uint64_t step = 0; step < 10; step++)
        work_step(&w, step * 100, 100, true);
    hotbed_table_stats stats = work_stats(&w);
    CHECK_EQ(stats.inserts, 1000);
    CHECK_EQ(stats.fetches, 0); /* all keys are new */
    CHECK_EQ(stats.in_place, 0);
    /* the upper tier has 33 buckets, 528 slots */
    CHECK(stats.write_backs >= 1000 - 528 && stats.write_backs <= 500);
    CHECK_EQ(stats.link_write_bytes, stats.write_backs * ROW);
    /* After a flush, rows are unchanged and are evicted from the upper tier without a write. */
    CHECK_OK(hotbed_storage_flush(w.r.storage, w.r.stream));
    hotbed_table_stats flushed = work_stats(&w);
    CHECK_EQ(flushed.write_backs, 1000);
    for (uint64_t step = 0; step < 20; step++)
        work_step(&w, step % 10 * 100, 100, false);
    stats = work_stats(&w);
    CHECK_EQ(stats.write_backs, flushed.write_backs);
    CHECK(stats.fetches >= 1000); /* LRU misses every key of a cycle */
    CHECK_EQ(stats.link_read_bytes, stats.fetches * ROW);
    CHECK_EQ(stats.hits, 2000);
    CHECK_EQ(fixture_size(&w.r, 0), 1000);
    work_close(&w);
}

/* A row with a copy in the upper tier is not evicted, so the cache of a table that evicts has a largest size: with it,
 * every new key finds a row to evict. */
static void a_cache_leaves_rows_to_evict(hotbed_backend backend) {
    for (int policy = 0; policy < 2; policy++) {
        work w;
        hotbed_table_info info = {.size = sizeof info};
        work_start(&w, HOTBED_MODE_CACHE, 1000, 1000, 20);
        w.s.tables[0].evict = HOTBED_EVICT_LOWEST;
        w.s.tables[0].insertion = policy == 0 ? HOTBED_INSERT_PLAIN : HOTBED_INSERT_PROBATION;
        work_open(&w, backend);
        CHECK_OK(hotbed_storage_table(w.r.storage, 0, &info));
        CHECK_EQ(info.upper_capacity, 600);
        for (uint64_t step = 0; step < 200; step++) /* each sync would return FULL */
            work_step(&w, step * 20, 20, true);
        CHECK_EQ(work_stats(&w).refused, 0);
        work_close(&w);
    }
}

/* Keys on probation are evicted first, so rows that were used twice stay in the upper tier. */
static void probation_keeps_rows_that_are_used_twice(hotbed_backend backend) {
    const uint64_t n = hotbed_test_is_small() ? 200 : 100;
    uint64_t fetches[HOTBED_INSERT_PROBATION + 1];
    for (int i = HOTBED_INSERT_AUTO; i <= HOTBED_INSERT_PROBATION; i++) {
        work w;
        work_start(&w, HOTBED_MODE_CACHE, 2000, 800, n);
        w.s.tables[0].score = HOTBED_SCORE_STEP;
        w.s.tables[0].insertion = (hotbed_insertion)i;
        work_open(&w, backend);
        for (uint64_t first = 0; first < 8000; first += n)
            work_step(&w, first % 1000, n, true); /* cycles over 1,000 keys */
        fetches[i] = work_stats(&w).fetches;
        work_close(&w);
    }
    CHECK(fetches[HOTBED_INSERT_PLAIN] >= 5000);
    CHECK(fetches[HOTBED_INSERT_PROBATION] * 2 < fetches[HOTBED_INSERT_PLAIN]);
    CHECK(fetches[HOTBED_INSERT_AUTO] * 2 < fetches[HOTBED_INSERT_PLAIN]);
}

/* An upper tier of as many keys as are used has few misses in cycles over them. */
static void a_cache_as_large_as_the_footprint_misses_little(hotbed_backend backend) {
    enum { KEYS = 8192 };
    const uint64_t batch = hotbed_test_is_small() ? 1024 : 512;
    for (uint64_t slack = 0; slack < 2; slack++) {
        work w;
        work_start(&w, HOTBED_MODE_CACHE, 2 * KEYS, KEYS + slack * KEYS / 50, batch);
        w.s.tables[0].score = HOTBED_SCORE_STEP;
        w.s.tables[0].insertion = HOTBED_INSERT_PROBATION;
        work_open(&w, backend);
        for (uint64_t first = 0; first < 2 * KEYS; first += batch)
            work_step(&w, first % KEYS, batch, true);
        uint64_t before = work_stats(&w).fetches;
        for (uint64_t first = 0; first < 2 * KEYS; first += batch)
            work_step(&w, first % KEYS, batch, true);
        uint64_t misses = work_stats(&w).fetches - before;
        CHECK(misses * 1000 < 2 * KEYS * (slack == 0 ? 25 : 1));
        work_close(&w);
    }
}

/* Counts stay exact while rows move between the tiers. */
static void scores_move_between_tiers_with_their_rows(hotbed_backend backend) {
    static const struct {
        hotbed_mode mode;
        hotbed_placement placement;
    } modes[] = {
        {HOTBED_MODE_CACHE, HOTBED_PLACE_BY_SCORE},
        {HOTBED_MODE_DEFAULT, HOTBED_PLACE_BY_SCORE},
        {HOTBED_MODE_DEFAULT, HOTBED_PLACE_BY_HASH}};
    for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
        enum { KEYS = 400 };
        uint64_t times[KEYS] = {0}, keys[KEYS], scores[KEYS], n;
        work w;
        rng random = rng_start(m);
        work_start(&w, modes[m].mode, KEYS, 60, 100);
        w.s.options.placement = modes[m].placement;
        work_open(&w, backend);
        for (int step = 0; step < (hotbed_test_is_small() ? 20 : 60); step++) {
            uint64_t count = 1 + rng_below(&random, 80);
            uint64_t first = rng_below(&random, KEYS - count + 1);
            work_step(&w, first, count, rng_below(&random, 2) == 0);
            for (uint64_t i = 0; i < count; i++)
                times[first + i]++;
        }
        CHECK_OK(hotbed_storage_export_keys(w.r.storage, 0, KEYS, keys, scores, &n, w.r.stream));
        uint64_t seen = 0;
        for (uint64_t i = 0; i < KEYS; i++)
            seen += times[i] > 0;
        CHECK_EQ(n, seen);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t number = 0;
            while (number < KEYS && number * UINT64_C(0x9e3779b97f4a7c15) != keys[i])
                number++;
            CHECK(number < KEYS);
            CHECK_EQ(scores[i], times[number]);
        }
        work_close(&w);
    }
}

/* A reset writes all rows back and empties the upper tier; rows are unchanged. */
static void reset_empties_the_upper_tier(hotbed_backend backend) {
    work w;
    work_start(&w, HOTBED_MODE_CACHE, 400, 150, 100);
    work_open(&w, backend);
    for (uint64_t step = 0; step < 8; step++)
        work_step(&w, step % 4 * 100, 100, true);
    uint64_t before = work_stats(&w).fetches;
    work_step(&w, 100, 100, true);
    CHECK(work_stats(&w).fetches > before);
    before = work_stats(&w).fetches;
    work_step(&w, 100, 100, true); /* now in the upper tier */
    CHECK_EQ(work_stats(&w).fetches, before);
    CHECK_OK(hotbed_storage_prefetch(w.r.storage, &w.batch, w.ticket, w.r.stream));
    CHECK_STATUS(hotbed_storage_reset(w.r.storage, w.r.stream), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_ticket_cancel(w.ticket, w.r.stream));
    CHECK_OK(hotbed_storage_reset(w.r.storage, w.r.stream));
    before = work_stats(&w).fetches;
    work_step(&w, 100, 100, true);
    CHECK_EQ(work_stats(&w).fetches, before + 100);
    CHECK_EQ(fixture_size(&w.r, 0), 400);
    CHECK_STATUS(hotbed_storage_reset(NULL, w.r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_flush(NULL, w.r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_flush(w.r.storage, NULL), HOTBED_ERR_ARGUMENT);
    work_close(&w);
}

/* --- pins ------------------------------------------------------------------------------------ */

/* More rows are pinned than the upper tier holds.  The others are used in the lower tier, none is refused, and all
 * equal the model's. */
static void keys_are_not_refused_while_the_upper_tier_is_pinned(hotbed_backend backend) {
    static const hotbed_mode modes[] = {HOTBED_MODE_CACHE, HOTBED_MODE_DEFAULT};
    for (int m = 0; m < 2; m++) {
        setup s;
        fixture r;
        test_ticket tickets[8];
        setup_start(&s, 3, 8, 600);
        s.tables[1].capacity = 2000;
        s.tables[2].capacity = 300; /* tables of different sizes */
        for (uint32_t t = 0; t < 3; t++)
            s.tables[t].upper_capacity = 20;
        s.options.mode = modes[m];
        s.options.optimizer.kind = HOTBED_OPT_ADAM;
        fixture_open(&r, backend, &s.options);
        for (int i = 0; i < 8; i++)
            test_ticket_open(&r, &tickets[i], 256, 32);
        rng random = rng_start((uint64_t)m);
        const batch_shape how = {.batch_size = 32, .key_space = 200};
        for (int step = 0; step < 24; step++) {
            test_ticket *l = &tickets[step % 8];
            if (step >= 8) {
                test_ticket_forward(l);
                test_ticket_backward(l, &random);
            }
            if (step < 16) {
                test_ticket_fill(l, &random, &how);
                test_ticket_prefetch(l);
            }
        }
        fixture_check(&r);
        hotbed_table_stats stats = {.size = sizeof stats};
        CHECK_OK(hotbed_storage_stats(r.storage, 1, &stats, r.stream));
        CHECK(stats.in_place > 100);
        CHECK_EQ(stats.refused, 0);
        fixture_close(&r);
    }
}

/* The upper tier is small and pinned, the lower tier nearly full.  In one prefetch some keys claim slots of the lower
 * tier while others leave theirs; no row may be lost. */
static void take_and_leave(hotbed_backend backend, uint64_t round) {
    setup s;
    fixture r;
    test_ticket tickets[6];
    setup_start(&s, 1, 1, 600);
    s.tables[0].upper_capacity = 60;
    s.options.mode = HOTBED_MODE_DEFAULT;
    fixture_open(&r, backend, &s.options);
    for (int i = 0; i < 6; i++)
        test_ticket_open(&r, &tickets[i], 64, 64);
    rng random = rng_start(108 + round);
    for (int step = hotbed_test_is_small() ? 90 : 0; step < 150;
         step++) { /* the lower tier is nearly full at the end */
        test_ticket *l = &tickets[step % 6];
        const batch_shape how = {.batch_size = 64, .key_space = 100 + (uint64_t)step * 4};
        test_ticket_cancel(l);
        test_ticket_fill(l, &random, &how);
        hotbed_status status = test_ticket_prefetch_with_slots(l);
        CHECK(status == HOTBED_OK || status == HOTBED_ERR_FULL);
        if (step % 10 == 9)
            fixture_check(&r);
    }
    fixture_close(&r);
}

static void lower_slots_are_claimed_and_freed_in_one_prefetch(hotbed_backend backend) {
    for (uint64_t round = 0; round < (hotbed_test_is_small() ? 1 : 8); round++)
        take_and_leave(backend, round);
}

/* A full lower tier refuses new keys with a fault; the keys of the table stay usable. */
static void a_full_lower_tier_refuses(hotbed_backend backend) {
    static const hotbed_mode modes[] = {HOTBED_MODE_CACHE, HOTBED_MODE_DEFAULT};
    for (int m = 0; m < 2; m++) {
        work w;
        work_start(&w, modes[m], 100, 32, 400);
        work_open(&w, backend);
        for (uint64_t first = 0; first < 100; first += 25)
            work_step(&w, first, 25, true);
        CHECK_EQ(work_stats(&w).refused, 0);
        uint64_t keys[300];
        for (uint64_t i = 0; i < 300; i++)
            keys[i] = i * UINT64_C(0x9e3779b97f4a7c15);
        fixture_upload(&w.r, (void *)w.batch.keys, keys, sizeof keys);
        w.batch.num_keys = 300;
        w.batch.batch_size = 300;
        CHECK_OK(hotbed_storage_prefetch(w.r.storage, &w.batch, w.ticket, w.r.stream));
        CHECK_STATUS(hotbed_stream_sync(w.r.stream), HOTBED_ERR_FULL);
        hotbed_table_stats stats = work_stats(&w);
        CHECK_EQ(stats.inserts + stats.refused, 300);
        CHECK(stats.inserts >= 100 && stats.refused > 50);
        CHECK_EQ(fixture_size(&w.r, 0), stats.inserts);
        CHECK_OK(hotbed_storage_forward(w.r.storage, w.ticket, w.output, 0, w.r.stream));
        CHECK_OK(hotbed_storage_backward(w.r.storage, w.ticket, w.output, 0, w.r.stream));
        CHECK_OK(hotbed_stream_sync(w.r.stream));
        for (uint64_t first = 0; first < 100; first += 25)
            work_step(&w, first, 25, true); /* all keys still have their rows */
        CHECK_EQ(work_stats(&w).refused, stats.refused);
        CHECK_EQ(fixture_size(&w.r, 0), stats.inserts);
        work_close(&w);
    }
}

/* --- bytes ----------------------------------------------------------------------------------- */

/* 50 steps in which rows move, in every mode: all optimizers, types, dimensions and poolings.  With HOTBED_TEST_SMALL
 * 20 steps, and one optimizer for each mode.  Optimizers after the first four have one mode each. */
static void every_mode_equals_the_model(hotbed_backend backend) {
    const int steps = hotbed_test_is_small() ? 20 : 50;
    static const uint32_t dims[] = {1, 3, 8, 16, 17, 64, 100, 128, 129, 1024};
    static const hotbed_pooling poolings[] = {HOTBED_POOL_NONE, HOTBED_POOL_SUM, HOTBED_POOL_MEAN};
    static const uint32_t move_sms[] = {0, 1, 4, HOTBED_MOVE_SMS_MOST};
    for (uint32_t way = 0; way < 4; way++) {
        for (uint32_t o = 0; o < HOTBED_OPT_LAST; o++) {
            if (hotbed_test_is_small() ? o != way : o >= 4 && o % 4 != way)
                continue;
            setup s;
            fixture r;
            test_ticket l;
            rng random = rng_start(way * 4 + o);
            setup_start(&s, 10, 8, 120);
            for (uint32_t t = 0; t < 10; t++) {
                s.tables[t].dim = dims[t];
                s.tables[t].dtype = (hotbed_dtype)(1 + (t + o + way) % HOTBED_DTYPE_LAST);
                s.tables[t].state_dtype = (t + o) % 2 == 0 ? HOTBED_BF16 : HOTBED_F32;
                s.tables[t].upper_capacity = way == 1 ? 96 : 12; /* 80 % or 10 % of the keys */
                s.tables[t].insertion = t % 2 == 0 ? HOTBED_INSERT_PLAIN : HOTBED_INSERT_PROBATION;
            }
            s.tables[7].kind = HOTBED_TABLE_STATIC;
            s.tables[7].insertion = HOTBED_INSERT_PLAIN;
            s.options.mode = way < 2 ? HOTBED_MODE_CACHE : HOTBED_MODE_DEFAULT;
            s.options.placement = way == 3 ? HOTBED_PLACE_BY_HASH : HOTBED_PLACE_BY_SCORE;
            s.options.move_sms = move_sms[o % 4];
            s.options.optimizer.kind = (hotbed_optimizer_kind)(1 + o);
            setup_decay(&s.options.optimizer, 0.0625F);
            s.options.pooling = poolings[(o + way) % 3];
            fixture_open(&r, backend, &s.options);
            test_ticket_open(&r, &l, 400, 12);
            batch_shape how = {.batch_size = 12, .max_bag = 3, .key_space = 100};
            for (int step = 0; step < steps; step++) {
                how.weights = step % 2 == 0 && s.options.pooling != HOTBED_POOL_NONE;
                test_ticket_fill(&l, &random, &how);
                test_ticket_prefetch(&l);
                test_ticket_forward(&l);
                test_ticket_backward(&l, &random);
                if (step % 10 == 5)
                    CHECK_OK(hotbed_storage_flush(r.storage, r.stream));
                if (step == steps * 3 / 5)
                    CHECK_OK(hotbed_storage_reset(r.storage, r.stream));
                if (step % (steps / 2) == steps * 2 / 5)
                    test_ticket_eval(&l);
            }
            fixture_check(&r);
            hotbed_table_stats stats = {.size = sizeof stats};
            CHECK_OK(hotbed_storage_stats(r.storage, 2, &stats, r.stream));
            if (way == 0 || way == 2)
                CHECK(stats.fetches > 100 && stats.write_backs > 100);
            fixture_close(&r);
        }
    }
}

/* The lower tier in each kind of host memory. */
static void lower_tiers_may_be_in_every_kind_of_memory(hotbed_backend backend) {
    static const hotbed_memory_kind kinds[] = {
        HOTBED_MEMORY_PINNED, HOTBED_MEMORY_PAGEABLE, HOTBED_MEMORY_FILE};
    for (int k = 0; k < (backend == HOTBED_BACKEND_CUDA ? 1 : 3); k++) {
        setup s;
        fixture r;
        test_ticket l;
        rng random = rng_start((uint64_t)k);
        setup_start(&s, 2, 16, 300);
        s.tables[0].upper_capacity = s.tables[1].upper_capacity = 40;
        s.options.mode = HOTBED_MODE_CACHE;
        s.options.lower_memory = kinds[k];
        s.options.lower_directory = kinds[k] == HOTBED_MEMORY_FILE ? hotbed_test_directory() : NULL;
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 64, 16);
        const batch_shape how = {.batch_size = 16, .key_space = 250};
        for (int step = 0; step < 30; step++)
            test_ticket_step(&l, &random, &how);
        fixture_check(&r);
        fixture_close(&r);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(the_mode_follows_from_bytes_and_budget)},
    {TEST(a_budget_of_keys_does_not_count_spare_slots)},
    {TEST(upper_tiers_share_the_budget)},
    {TEST(tables_whose_rows_move_have_regions)},
    {TEST(rows_that_move_fill_lines)},
    {TEST(only_changed_rows_are_written_back)},
    {TEST(a_cache_leaves_rows_to_evict)},
    {TEST(probation_keeps_rows_that_are_used_twice)},
    {TEST(a_cache_as_large_as_the_footprint_misses_little)},
    {TEST(scores_move_between_tiers_with_their_rows)},
    {TEST(reset_empties_the_upper_tier)},
    {TEST(keys_are_not_refused_while_the_upper_tier_is_pinned)},
    {TEST(lower_slots_are_claimed_and_freed_in_one_prefetch)},
    {TEST(a_full_lower_tier_refuses)},
    {TEST(every_mode_equals_the_model)},
    {TEST(lower_tiers_may_be_in_every_kind_of_memory)},
    {NULL, NULL},
};
