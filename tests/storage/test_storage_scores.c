/* tests/storage/test_storage_scores.c - score strategies, eviction, admission, and the options of `check`.
 *
 * Tables that evict have 32 slots in two buckets, and a key can be in one of them.  A model learns the bucket of a
 * key from its slot, which the ticket reports, and then predicts which key each insertion evicts.  Admission is
 * compared with tests/support/oracle.h, or with exact counts.
 */
#include "hotbed/export.h"
#include "tests/storage/fixture.h"

#include <stdlib.h>

#define SCORE_MOST (((uint64_t)1 << 52) - 1)

/* --- one table, one ticket ------------------------------------------------------------------- */

enum { SLOTS = 32, BUCKET = 16, MOST_KEYS = 64 };

/* A slot of the model. */
typedef struct place {
    uint64_t key, score;
    bool used, probation, hit;
} place;

typedef struct score_fixture {
    fixture r;
    setup s;
    hotbed_ticket *ticket;
    uint64_t *device_keys;
    place places[SLOTS];
    uint64_t step, custom, evictions;
    uint64_t not_lowest; /* evictions of a key whose score was not the lowest */
} score_fixture;

static void score_open(
    score_fixture *b, hotbed_backend backend, hotbed_score_strategy score,
    hotbed_insertion insertion) {
    memset(b, 0, sizeof *b);
    setup_start(&b->s, 1, 3, BUCKET);
    b->s.tables[0].evict = HOTBED_EVICT_LOWEST;
    b->s.tables[0].score = score;
    b->s.tables[0].insertion = insertion;
    fixture_open_bare(&b->r, backend, &b->s.options);
    CHECK_OK(hotbed_ticket_create(b->r.storage, MOST_KEYS, MOST_KEYS, b->r.stream, &b->ticket));
    b->device_keys = fixture_alloc(&b->r, MOST_KEYS * sizeof(uint64_t));
    b->custom = 1;
}

static void score_close(score_fixture *b) {
    hotbed_ticket_destroy(b->ticket);
    fixture_close(&b->r);
}

static void prefetch(score_fixture *b, uint32_t n, const uint64_t *keys) {
    hotbed_batch batch = {
        .size = sizeof batch, .batch_size = n, .num_keys = n, .keys = b->device_keys};
    fixture_upload(&b->r, b->device_keys, keys, n * sizeof *keys);
    CHECK_OK(hotbed_storage_prefetch(b->r.storage, &batch, b->ticket, b->r.stream));
    b->step++;
}

static uint64_t score_of(score_fixture *b, uint64_t key) {
    uint64_t score = 0;
    uint8_t found = 0;
    fixture_upload(&b->r, b->device_keys, &key, sizeof key);
    uint64_t *device = fixture_alloc(&b->r, 2 * sizeof *device);
    const hotbed_rows rows = {.scores = device};
    CHECK_OK(hotbed_storage_get_rows(
        b->r.storage, 0, 1, b->device_keys, &rows, (uint8_t *)(device + 1), b->r.stream));
    fixture_download(&b->r, &score, device, sizeof score);
    fixture_download(&b->r, &found, device + 1, 1);
    hotbed_memory_free(&b->r.memories[--b->r.num_memories]);
    CHECK_EQ(found, 1);
    return score;
}

/* The slot that a bucket evicts: a free one, or keys on probation first, then by score, then by slot. */
static uint64_t lowest(const score_fixture *b, uint64_t bucket) {
    uint64_t best = SLOTS;
    for (uint64_t i = bucket * BUCKET; i < (bucket + 1) * BUCKET; i++) {
        const place *p = &b->places[i];
        if (!p->used)
            return i; /* free: any will do */
        if (p->hit)
            continue; /* a key of this batch */
        const place *q = &b->places[best == SLOTS ? i : best];
        if (best == SLOTS || (p->probation && !q->probation) ||
            (!p->probation && !q->probation && p->score < q->score))
            best = i;
    }
    return best;
}

static void note_eviction(score_fixture *b, uint64_t slot) {
    uint64_t bucket = slot / BUCKET;
    b->evictions++;
    for (uint64_t i = bucket * BUCKET; i < (bucket + 1) * BUCKET; i++)
        if (!b->places[i].hit && b->places[i].score < b->places[slot].score) {
            b->not_lowest++;
            return;
        }
}

/* Prefetch a batch with at most one new key, in the storage and in the model, and cancel it. */
static void step(score_fixture *b, uint32_t n, const uint64_t *keys) {
    uint64_t unique[MOST_KEYS], slots[MOST_KEYS];
    uint64_t counts[MOST_KEYS];
    uint32_t uniques[2];
    hotbed_ticket_view view = {.size = sizeof view};
    hotbed_score_strategy kind = b->s.tables[0].score;
    prefetch(b, n, keys);
    CHECK_OK(hotbed_ticket_read(b->ticket, &view));
    fixture_download(&b->r, uniques, view.unique_offsets, sizeof uniques);
    fixture_download(&b->r, unique, view.unique_keys, uniques[1] * sizeof *unique);
    fixture_download(&b->r, slots, view.slots, uniques[1] * sizeof *slots);
    fixture_download(&b->r, counts, view.counts, uniques[1] * sizeof *counts);
    CHECK_OK(hotbed_ticket_cancel(b->ticket, b->r.stream));
    uint64_t now = kind == HOTBED_SCORE_TIMESTAMP ? score_of(b, unique[0]) : b->step;
    if (kind == HOTBED_SCORE_CUSTOM)
        now = b->custom;
    uint32_t new_key = uniques[1];
    for (uint32_t u = 0; u < uniques[1]; u++) {
        CHECK(slots[u] < SLOTS);
        place *p = &b->places[slots[u]];
        if (!p->used || p->key != unique[u]) {
            CHECK_EQ(new_key, uniques[1]);
            new_key = u;
            continue;
        }
        p->score = kind == HOTBED_SCORE_LFU ? p->score + counts[u] : now;
        p->probation = false;
        p->hit = true;
    }
    if (new_key < uniques[1]) {
        place *p = &b->places[slots[new_key]];
        if (p->used) {
            CHECK_EQ(slots[new_key], lowest(b, slots[new_key] / BUCKET));
            note_eviction(b, slots[new_key]);
        } else {
            CHECK(!b->places[lowest(b, slots[new_key] / BUCKET)].used);
        }
        p->used = true;
        p->key = unique[new_key];
        p->score = kind == HOTBED_SCORE_LFU ? counts[new_key] : now;
        p->probation = b->s.tables[0].insertion == HOTBED_INSERT_PROBATION;
    }
    for (uint32_t i = 0; i < SLOTS; i++)
        b->places[i].hit = false;
}

/* Check that exported keys and scores are the model's, without a sign of probation. */
static void check_export(score_fixture *b) {
    uint64_t keys[SLOTS], scores[SLOTS], n = 0, used = 0;
    CHECK_OK(hotbed_storage_export_keys(b->r.storage, 0, SLOTS, keys, scores, &n, b->r.stream));
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (!b->places[i].used)
            continue;
        used++;
        uint64_t at = 0;
        while (at < n && keys[at] != b->places[i].key)
            at++;
        CHECK(at < n);
        if (at < n)
            CHECK_EQ(scores[at], b->places[i].score);
    }
    CHECK_EQ(used, n);
    hotbed_table_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_storage_stats(b->r.storage, 0, &stats, b->r.stream));
    CHECK_EQ(stats.evictions, b->evictions);
    CHECK_EQ(stats.rejected, 0);
}

static void trace(score_fixture *b, rng *random, int steps) {
    uint64_t keys[MOST_KEYS], fresh = 1000;
    for (int i = 0; i < steps; i++) {
        uint32_t n = 0;
        if (b->s.tables[0].score == HOTBED_SCORE_CUSTOM && rng_below(random, 2) == 0) {
            b->custom = 1 + rng_below(random, 1000);
            CHECK_OK(hotbed_storage_set_score(b->r.storage, 0, b->custom, b->r.stream));
        }
        for (uint64_t k = rng_below(random, 6); k > 0; k--) { /* present keys, some twice */
            const place *p = &b->places[rng_below(random, SLOTS)];
            for (uint64_t times = 1 + rng_below(random, 3); p->used && times > 0; times--)
                keys[n++] = p->key;
        }
        if (rng_below(random, 4) != 0 || n == 0)
            for (uint64_t times = 1 + rng_below(random, 3), key = fresh++; times > 0; times--)
                keys[n++] = key;
        step(b, n, keys);
        if (i % 50 == 49)
            check_export(b);
    }
    CHECK(b->evictions > (uint64_t)steps / 4);
}

static void strategy(
    hotbed_backend backend, hotbed_score_strategy score, hotbed_insertion insertion) {
    static score_fixture b;
    rng random = rng_start((uint64_t)score * 2 + (uint64_t)insertion);
    score_open(&b, backend, score, insertion);
    trace(&b, &random, hotbed_test_is_small() ? 100 : 300);
    CHECK_EQ(b.not_lowest > 0, insertion == HOTBED_INSERT_PROBATION);
    score_close(&b);
}

static void the_oldest_step_is_evicted(hotbed_backend backend) {
    strategy(backend, HOTBED_SCORE_STEP, HOTBED_INSERT_PLAIN);
}

static void the_oldest_time_is_evicted(hotbed_backend backend) {
    strategy(backend, HOTBED_SCORE_TIMESTAMP, HOTBED_INSERT_PLAIN);
}

static void the_lowest_count_is_evicted(hotbed_backend backend) {
    strategy(backend, HOTBED_SCORE_LFU, HOTBED_INSERT_PLAIN);
}

static void the_lowest_custom_score_is_evicted(hotbed_backend backend) {
    strategy(backend, HOTBED_SCORE_CUSTOM, HOTBED_INSERT_PLAIN);
}

static void keys_on_probation_are_evicted_first(hotbed_backend backend) {
    strategy(backend, HOTBED_SCORE_STEP, HOTBED_INSERT_PROBATION);
    strategy(backend, HOTBED_SCORE_CUSTOM, HOTBED_INSERT_PROBATION);
}

/* --- values of scores ------------------------------------------------------------------------ */

static void set_scores(score_fixture *b, uint32_t n, const uint64_t *keys, const uint64_t *scores) {
    uint64_t *device = fixture_copy(&b->r, scores, n * sizeof *scores);
    fixture_upload(&b->r, b->device_keys, keys, n * sizeof *keys);
    const hotbed_rows rows = {.scores = device};
    CHECK_OK(hotbed_storage_set_rows(b->r.storage, 0, n, b->device_keys, &rows, b->r.stream));
    CHECK_OK(hotbed_stream_sync(b->r.stream));
}

/* Counts that a float cannot represent. */
static void counts_above_2_to_the_24_are_exact(hotbed_backend backend) {
    static score_fixture b;
    score_open(&b, backend, HOTBED_SCORE_LFU, HOTBED_INSERT_PLAIN);
    const uint64_t set_keys[] = {7, 8}, scores[] = {(1U << 24) - 1U, SCORE_MOST - 4U};
    set_scores(&b, 2, set_keys, scores);
    const uint64_t keys[] = {7, 8, 7, 8, 7, 9};
    for (uint64_t i = 1; i <= 5; i++) {
        prefetch(&b, 6, keys);
        CHECK_OK(hotbed_ticket_cancel(b.ticket, b.r.stream));
        CHECK_EQ(score_of(&b, 7), scores[0] + 3 * i);
        CHECK_EQ(score_of(&b, 8), i >= 2 ? SCORE_MOST : scores[1] + 2 * i); /* saturates */
        CHECK_EQ(score_of(&b, 9), i);
    }
    score_close(&b);
}

static void keys_of_a_batch_share_a_time_and_times_increase(hotbed_backend backend) {
    static score_fixture b;
    score_open(&b, backend, HOTBED_SCORE_TIMESTAMP, HOTBED_INSERT_PLAIN);
    uint64_t last = 0;
    for (uint64_t i = 0; i < 20; i++) {
        const uint64_t keys[] = {1, 2 + i % 3, 1};
        prefetch(&b, 3, keys);
        CHECK_OK(hotbed_ticket_cancel(b.ticket, b.r.stream));
        uint64_t now = score_of(&b, 1);
        CHECK_EQ(score_of(&b, 2 + i % 3), now);
        CHECK(now > last);
        last = now;
    }
    CHECK(last < UINT64_C(600) * 1000 * 1000); /* microseconds since the first prefetch */
    score_close(&b);
}

/* Times that are imported, from another storage or machine, count as the past. */
static void times_continue_after_imported_times(hotbed_backend backend) {
    static score_fixture b;
    score_open(&b, backend, HOTBED_SCORE_TIMESTAMP, HOTBED_INSERT_PLAIN);
    const uint64_t keys[] = {1, 2, 3}, times[] = {5, UINT64_C(1) << 50, 77};
    set_scores(&b, 3, keys, times);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_EQ(score_of(&b, keys[i]), times[i]);
    prefetch(&b, 1, keys);
    CHECK_OK(hotbed_ticket_cancel(b.ticket, b.r.stream));
    CHECK(score_of(&b, 1) > times[1]);
    CHECK(score_of(&b, 1) < times[1] + UINT64_C(600) * 1000 * 1000);
    const uint64_t old[] = {4}, time[] = {9}; /* an older time does not set the clock */
    uint64_t before = score_of(&b, 1);
    set_scores(&b, 1, old, time);
    prefetch(&b, 1, keys);
    CHECK_OK(hotbed_ticket_cancel(b.ticket, b.r.stream));
    CHECK(score_of(&b, 1) > before);
    score_close(&b);
}

/* The state has the time, and a later time that is set is the past of the next prefetch. */
static void times_continue_after_the_time_of_a_state(hotbed_backend backend) {
    static score_fixture b;
    score_open(&b, backend, HOTBED_SCORE_TIMESTAMP, HOTBED_INSERT_PLAIN);
    hotbed_stream *stream = b.r.stream;
    const uint64_t keys[] = {1}, late = UINT64_C(1) << 50;
    hotbed_storage_state state = {.size = sizeof state};
    prefetch(&b, 1, keys);
    CHECK_OK(hotbed_ticket_cancel(b.ticket, stream));
    CHECK_OK(hotbed_storage_get_state(b.r.storage, &state, stream));
    CHECK_EQ(state.time, score_of(&b, 1));
    for (uint64_t time = late; time <= late + 1; time++) {
        state.time = time - late == 0 ? late : late / 2; /* an earlier time has no effect */
        CHECK_OK(hotbed_storage_set_state(b.r.storage, &state, stream));
        CHECK_OK(hotbed_storage_get_state(b.r.storage, &state, stream));
        CHECK(state.time >= late && state.time < late + UINT64_C(600) * 1000 * 1000);
        uint64_t before = state.time;
        prefetch(&b, 1, keys);
        CHECK_OK(hotbed_ticket_cancel(b.ticket, stream));
        CHECK(score_of(&b, 1) > before);
    }
    state.time = SCORE_MOST + 1;
    CHECK_STATUS(hotbed_storage_set_state(b.r.storage, &state, stream), HOTBED_ERR_ARGUMENT);
    score_close(&b);
    score_open(&b, backend, HOTBED_SCORE_STEP, HOTBED_INSERT_PLAIN); /* no table has times */
    state.time = late;
    CHECK_OK(hotbed_storage_set_state(b.r.storage, &state, b.r.stream));
    CHECK_OK(hotbed_storage_get_state(b.r.storage, &state, b.r.stream));
    CHECK_EQ(state.time, 0);
    score_close(&b);
}

/* Scores that are exported and set in another table are unchanged there.  Keys that are set without a score get one
 * by the strategy. */
static void scores_survive_export_and_set(hotbed_backend backend) {
    static score_fixture a, b;
    for (int kind = HOTBED_SCORE_STEP; kind <= HOTBED_SCORE_CUSTOM; kind++) {
        rng random = rng_start((uint64_t)kind);
        uint64_t keys[SLOTS], scores[SLOTS], n = 0;
        score_open(&a, backend, (hotbed_score_strategy)kind, HOTBED_INSERT_PROBATION);
        score_open(&b, backend, (hotbed_score_strategy)kind, HOTBED_INSERT_PLAIN);
        trace(&a, &random, 100);
        CHECK_OK(hotbed_storage_export_keys(a.r.storage, 0, SLOTS, keys, scores, &n, a.r.stream));
        set_scores(&b, (uint32_t)n, keys, scores);
        CHECK_EQ(fixture_size(&b.r, 0), n);
        for (uint64_t i = 0; i < n; i++)
            CHECK_EQ(score_of(&b, keys[i]), scores[i]);
        const uint64_t key = 5;
        const hotbed_rows nothing = {0};
        fixture_upload(&a.r, a.device_keys, &key, sizeof key);
        CHECK_OK(hotbed_storage_set_rows(a.r.storage, 0, 1, a.device_keys, &nothing, a.r.stream));
        uint64_t last = 0;
        for (uint64_t i = 0; i < n; i++)
            last = scores[i] > last ? scores[i] : last;
        if (kind == HOTBED_SCORE_LFU)
            CHECK_EQ(score_of(&a, key), 1);
        else if (kind == HOTBED_SCORE_CUSTOM)
            CHECK_EQ(score_of(&a, key), a.custom);
        else
            CHECK_EQ(score_of(&a, key), last);
        score_close(&a);
        score_close(&b);
    }
}

static void bad_options_are_refused_and_named(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (int i = 0; i < 11; i++) {
        static const char *const names[] = {
            "score",
            "insertion",
            "admission",
            "admission_threshold",
            "static",
            "static",
            "admission_probability",
            "admission_probability",
            "check",
            "static",
            "admission_capacity"};
        setup s;
        setup_start(&s, 1, 4, 10);
        hotbed_storage *storage;
        hotbed_table_options *t = &s.tables[0];
        if (i == 4 || i == 5 || i == 9)
            t->kind = HOTBED_TABLE_STATIC;
        if (i == 0)
            t->score = (hotbed_score_strategy)9;
        if (i == 1 || i == 9)
            t->insertion = i == 1 ? (hotbed_insertion)3 : HOTBED_INSERT_PROBATION;
        if (i == 2)
            t->admission = (hotbed_admission)-1;
        if (i == 3 || i == 4 || i == 10)
            t->admission = HOTBED_ADMIT_FREQUENCY;
        if (i == 5)
            t->score = HOTBED_SCORE_LFU;
        if (i == 6 || i == 7)
            t->admission = HOTBED_ADMIT_PROBABILISTIC;
        if (i == 7)
            t->admission_probability = 1.5F;
        if (i == 8)
            s.options.check = (hotbed_check)3;
        if (i == 10) {
            t->admission_threshold = 2;
            t->admission_capacity = (UINT64_C(1) << 35) + 1;
        }
        CHECK_STATUS(hotbed_storage_create(&s.options, stream, &storage), HOTBED_ERR_ARGUMENT);
        if (strstr(hotbed_last_error(), names[i]) == NULL)
            CHECK_STRING(hotbed_last_error(), names[i]);
    }
    static score_fixture b;
    score_open(&b, backend, HOTBED_SCORE_LFU, HOTBED_INSERT_PLAIN);
    hotbed_stream *s = b.r.stream;
    CHECK_STATUS(hotbed_storage_set_score(b.r.storage, 0, 5, s), HOTBED_ERR_ARGUMENT);
    score_close(&b);
    score_open(&b, backend, HOTBED_SCORE_CUSTOM, HOTBED_INSERT_PLAIN);
    s = b.r.stream;
    char text[8];
    CHECK_STATUS(hotbed_storage_set_score(b.r.storage, 1, 5, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_set_score(b.r.storage, 0, 0, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_set_score(b.r.storage, 0, SCORE_MOST + 1, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_set_score(NULL, 0, 1, s), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_set_score(b.r.storage, 0, 1, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_warning(NULL, text, sizeof text, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_warning(b.r.storage, NULL, sizeof text, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_warning(b.r.storage, text, 0, NULL), HOTBED_ERR_ARGUMENT);
    score_close(&b);
    hotbed_stream_destroy(stream);
}

/* --- admission ------------------------------------------------------------------------------- */

/* A key, and the number of its occurrences so far. */
typedef struct tally {
    uint64_t key, count;
} tally;

static tally *find_tally(tally *tallies, uint64_t *n, uint64_t key) {
    uint64_t at = 0;
    while (at < *n && tallies[at].key != key)
        at++;
    CHECK(at < 512);
    if (at == *n)
        tallies[(*n)++] = (tally){key, 0};
    return &tallies[at];
}

/* With batch.counts a key counts for several occurrences; table 2 does not count. */
static void scores_are_sums_of_counts(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(19);
    setup_start(&s, 3, 4, 2000);
    s.tables[0].score = HOTBED_SCORE_LFU;
    s.tables[1].score = HOTBED_SCORE_TIMESTAMP_LFU;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 400, 40);
    batch_shape how = {.batch_size = 40, .max_bag = 3, .key_space = 30, .extremes = true};
    for (int round = 0; round < 9; round++) {
        how.counts = round % 3 != 2;
        test_ticket_fill(&l, &random, &how);
        test_ticket_prefetch(&l);
        test_ticket_check(&l);
        test_ticket_backward(&l, &random);
        fixture_check(&r);
    }
    fixture_close(&r);
}

/* Table 0 admits keys from their third occurrence on, table 1 all keys, table 2 is static.  Rows and outputs equal the
 * model's. */
static void keys_are_admitted_when_seen_often_enough(hotbed_backend backend) {
    static tally tallies[512];
    for (int pooling = 0; pooling < 2; pooling++) {
        setup s;
        fixture r;
        test_ticket l;
        rng random = rng_start(20 + (uint64_t)pooling);
        uint64_t n = 0, rejected = 0, admitted = 0;
        setup_start(&s, 3, 5, 1000);
        s.tables[0].admission = HOTBED_ADMIT_FREQUENCY;
        s.tables[0].admission_threshold = 3;
        s.tables[2].kind = HOTBED_TABLE_STATIC;
        s.tables[2].capacity = 10;
        s.options.pooling = (hotbed_pooling)pooling;
        s.options.optimizer.kind = HOTBED_OPT_ADAGRAD;
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 300, 40);
        batch_shape how = {.batch_size = 40, .max_bag = 3, .key_space = 250, .weights = true};
        for (int round = 0; round < 12; round++) {
            how.counts = round % 3 == 2;
            test_ticket_fill(&l, &random, &how);
            CHECK_OK(test_ticket_prefetch_with_slots(&l)); /* no fault */
            test_ticket_check(&l);
            for (uint32_t u = 0; u < l.model->unique_offsets[1]; u++) {
                tally *t = find_tally(tallies, &n, l.model->unique_keys[u]);
                t->count += l.model->counts[u];
                CHECK_EQ(l.model->rows[u] == UINT32_MAX, t->count < 3);
                rejected += t->count < 3;
            }
            test_ticket_forward(&l);
            test_ticket_forward(&l); /* a second forward reads the same rows */
            test_ticket_eval(&l);
            test_ticket_backward(&l, &random);
            CHECK_OK(hotbed_stream_sync(r.stream));
        }
        for (uint64_t i = 0; i < n; i++) {
            CHECK_EQ(oracle_find(r.model, 0, tallies[i].key) != NULL, tallies[i].count >= 3);
            admitted += tallies[i].count >= 3;
        }
        CHECK(admitted > 20 && admitted < n);
        hotbed_table_stats stats = {.size = sizeof stats};
        CHECK_OK(hotbed_storage_stats(r.storage, 0, &stats, r.stream));
        CHECK_EQ(stats.rejected, rejected);
        CHECK_EQ(stats.inserts, admitted);
        fixture_check(&r); /* keys, rows and statistics */
        fixture_close(&r);
    }
}

/* Prefetch a batch of these keys; got[i] is set if key i has a slot. */
static void admitted_of(score_fixture *b, uint32_t n, const uint64_t *keys, bool *got) {
    uint64_t slots[MOST_KEYS];
    hotbed_ticket_view view = {.size = sizeof view};
    prefetch(b, n, keys);
    CHECK_OK(hotbed_ticket_read(b->ticket, &view));
    fixture_download(&b->r, slots, view.slots, n * sizeof *slots);
    CHECK_OK(hotbed_ticket_cancel(b->ticket, b->r.stream));
    CHECK_OK(hotbed_stream_sync(b->r.stream));
    for (uint32_t i = 0; i < n; i++)
        got[i] = slots[i] != HOTBED_SLOT_NONE;
}

static void admission_setup(score_fixture *b, hotbed_admission admission) {
    memset(b, 0, sizeof *b);
    setup_start(&b->s, 1, 3, 20000);
    b->s.tables[0].admission = admission;
    b->s.tables[0].admission_threshold = 2;
    b->s.tables[0].admission_capacity = 1;
    b->s.tables[0].admission_probability = 0.25F;
}

static void admission_open(score_fixture *b, hotbed_backend backend) {
    fixture_open_bare(&b->r, backend, &b->s.options);
    CHECK_OK(hotbed_ticket_create(b->r.storage, MOST_KEYS, MOST_KEYS, b->r.stream, &b->ticket));
    b->device_keys = fixture_alloc(&b->r, MOST_KEYS * sizeof(uint64_t));
}

/* set_rows does not need admission; clear resets counts; an evicted key is counted from zero. */
static void set_bypasses_admission_and_clear_resets_counts(hotbed_backend backend) {
    static score_fixture b;
    admission_setup(&b, HOTBED_ADMIT_FREQUENCY);
    admission_open(&b, backend);
    bool got[2];
    const uint64_t keys[] = {(uint64_t)-5, 6}, scores[] = {1, 1};
    admitted_of(&b, 2, keys, got);
    CHECK(!got[0] && !got[1]);
    set_scores(&b, 1, keys + 1, scores);
    CHECK_EQ(score_of(&b, 6), 1);
    CHECK_OK(hotbed_storage_clear(b.r.storage, 0, b.r.stream));
    admitted_of(&b, 2, keys, got);
    CHECK(!got[0] && !got[1]);
    admitted_of(&b, 2, keys, got);
    CHECK(got[0] && got[1]);
    CHECK_OK(hotbed_storage_erase(b.r.storage, 0, 1, b.device_keys, NULL, b.r.stream));
    admitted_of(&b, 2, keys, got);
    CHECK(!got[0] && got[1]);
    admitted_of(&b, 2, keys, got);
    CHECK(got[0] && got[1]);
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(b.r.storage, 0, &info));
    CHECK_EQ(info.index_bytes, 16 * (info.slots + SLOTS));
    score_close(&b);
}

/* Far more keys than the counter can hold: low counts are forgotten, no key is admitted early, and frequent keys are
 * admitted. */
static void a_full_counter_forgets_low_counts(hotbed_backend backend) {
    static score_fixture b;
    admission_setup(&b, HOTBED_ADMIT_FREQUENCY);
    b.s.tables[0].admission_threshold = 5;
    admission_open(&b, backend);
    bool got[MOST_KEYS];
    uint64_t keys[MOST_KEYS], next = 100, rare = 0;
    for (int i = 0; i < 40; i++) {
        for (uint32_t k = 0; k < 30; k++)
            keys[k] = next++; /* keys that occur once */
        for (uint32_t k = 30; k < 34; k++)
            keys[k] = k;
        admitted_of(&b, 34, keys, got);
        for (uint32_t k = 0; k < 30; k++)
            rare += got[k];
        for (uint32_t k = 30; k < 34 && i < 4; k++)
            CHECK(!got[k]);
    }
    CHECK_EQ(rare, 0);
    CHECK(got[30] && got[31] && got[32] && got[33]);
    CHECK_EQ(fixture_size(&b.r, 0), 4);
    score_close(&b);
}

static uint64_t drawn(hotbed_backend backend, uint64_t seed, float probability, uint64_t *hash) {
    static score_fixture b;
    admission_setup(&b, HOTBED_ADMIT_PROBABILISTIC);
    b.s.options.seed = seed;
    b.s.tables[0].admission_probability = probability;
    admission_open(&b, backend);
    bool got[MOST_KEYS];
    uint64_t keys[MOST_KEYS], all = 0;
    *hash = 0;
    for (uint64_t i = 0; i < 50; i++) {
        for (uint64_t k = 0; k < MOST_KEYS; k++)
            keys[k] = i * MOST_KEYS + k;
        admitted_of(&b, MOST_KEYS, keys, got);
        for (uint32_t k = 0; k < MOST_KEYS; k++) {
            all += got[k];
            *hash = *hash * 31 + got[k];
        }
    }
    CHECK_EQ(fixture_size(&b.r, 0), all);
    admitted_of(&b, MOST_KEYS, keys, got); /* rejected keys are drawn again */
    uint64_t more = fixture_size(&b.r, 0) - all;
    CHECK_EQ(more > 0, probability < 1.0F);
    CHECK(more < MOST_KEYS);
    hotbed_table_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_storage_stats(b.r.storage, 0, &stats, b.r.stream));
    CHECK_EQ(stats.hits + stats.inserts + stats.rejected, stats.uniques);
    CHECK_EQ(stats.inserts, all + more);
    score_close(&b);
    return all;
}

static void a_share_of_new_keys_is_admitted(hotbed_backend backend) {
    uint64_t hash[4];
    /* expected 800 of 3200, standard deviation 24.5 */
    uint64_t first = drawn(backend, 1, 0.25F, &hash[0]);
    CHECK(first > 700 && first < 900);
    CHECK_EQ(drawn(backend, 1, 0.25F, &hash[1]), first);
    CHECK_EQ(hash[0], hash[1]);
    (void)drawn(backend, 2, 0.25F, &hash[2]);
    CHECK(hash[0] != hash[2]);
    CHECK_EQ(drawn(backend, 1, 1.0F, &hash[3]), 3200);
}

/* --- check ----------------------------------------------------------------------------------- */

typedef struct check_mode {
    setup s;
    fixture r;
    test_ticket l;
    rng random;
} check_mode;

static void check_mode_open(check_mode *c, hotbed_backend backend, hotbed_check check) {
    c->random = rng_start(30);
    setup_start(&c->s, 2, 4, 4);
    c->s.tables[1].kind = HOTBED_TABLE_STATIC;
    c->s.tables[1].capacity = 10;
    c->s.options.check = check;
    fixture_open(&c->r, backend, &c->s.options);
    test_ticket_open(&c->r, &c->l, 128, 64);
}

/* Run a step with 64 keys of table 0, which fill it, or with one; its last key is `key`, of table 1. */
static hotbed_status check_mode_batch(check_mode *c, bool fill, uint64_t key) {
    const batch_shape how = {.batch_size = fill ? 64 : 1, .key_space = fill ? 0 : 1};
    test_ticket_fill(&c->l, &c->random, &how);
    ((uint64_t *)c->l.host.keys)[fill ? 127 : 1] = key;
    test_ticket_upload(&c->l);
    hotbed_status status = test_ticket_prefetch_with_slots(&c->l);
    test_ticket_check(&c->l);
    test_ticket_forward(&c->l); /* initial values for keys without a slot */
    test_ticket_backward(&c->l, &c->random);
    return status;
}

static void check_mode_close(check_mode *c) {
    CHECK(c->r.model->tables[1].stats.refused > 0);
    CHECK_OK(hotbed_stream_sync(c->r.stream));
    fixture_check(&c->r); /* compares the counts of refused keys too */
    fixture_close(&c->r);
}

static void warning_is(check_mode *c, const char *part, const char *part2) {
    char text[256] = "unset";
    hotbed_error_detail detail = {.size = 0};
    CHECK_STATUS(
        hotbed_storage_warning(c->r.storage, text, sizeof text, &detail), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(text, "unset");
    CHECK_STATUS(hotbed_storage_warning(NULL, text, sizeof text, NULL), HOTBED_ERR_ARGUMENT);
    detail.size = sizeof detail;
    CHECK_OK(hotbed_storage_warning(c->r.storage, text, sizeof text, &detail));
    CHECK_EQ(detail.status == HOTBED_OK, part == NULL);
    CHECK_STRING(detail.table, part == NULL ? "" : part + sizeof "table");
    if (part != NULL)
        CHECK_EQ(detail.key, strtoull(part2, NULL, 10));
    CHECK_STRING(hotbed_last_error(), "storage is NULL"); /* an earlier error stays */
    if (part == NULL)
        CHECK_STRING(text, "");
    else if (strstr(text, part) == NULL || strstr(text, part2) == NULL)
        CHECK_STRING(text, part);
}

static void keys_without_a_slot_are_errors(hotbed_backend backend) {
    static check_mode c;
    check_mode_open(&c, backend, HOTBED_CHECK_ERROR);
    CHECK_EQ(check_mode_batch(&c, false, 10), HOTBED_ERR_RANGE);
    CHECK_EQ(check_mode_batch(&c, true, 9), HOTBED_ERR_FULL);
    warning_is(&c, NULL, NULL);
    check_mode_close(&c);
}

static void keys_without_a_slot_can_be_warnings(hotbed_backend backend) {
    static check_mode c;
    check_mode_open(&c, backend, HOTBED_CHECK_WARN);
    warning_is(&c, NULL, NULL);
    CHECK_EQ(check_mode_batch(&c, false, 4242), HOTBED_OK);
    warning_is(&c, "table table-1", "4242");
    warning_is(&c, NULL, NULL); /* a warning is returned once */
    CHECK_EQ(check_mode_batch(&c, true, 9), HOTBED_OK);
    char text[8] = "unset";
    CHECK_OK(hotbed_storage_warning(c.r.storage, text, sizeof text, NULL));
    CHECK_STRING(text, "table t"); /* truncated */
    const batch_shape one = {.batch_size = 1, .key_space = 1};
    test_ticket_fill(&c.l, &c.random, &one);
    ((uint64_t *)c.l.host.keys)[1] = 77;
    test_ticket_upload(&c.l);
    test_ticket_eval(&c.l);
    CHECK_OK(hotbed_stream_sync(c.r.stream));
    warning_is(&c, "table table-1", "77");
    /* Rows that the caller sets are always errors. */
    const hotbed_rows nothing = {0};
    CHECK_OK(hotbed_storage_set_rows(
        c.r.storage, 1, 1, (const uint64_t *)c.l.device.keys + 1, &nothing, c.r.stream));
    CHECK_STATUS(hotbed_stream_sync(c.r.stream), HOTBED_ERR_RANGE);
    check_mode_close(&c);
}

static void keys_without_a_slot_can_be_ignored(hotbed_backend backend) {
    static check_mode c;
    check_mode_open(&c, backend, HOTBED_CHECK_IGNORE);
    CHECK_EQ(check_mode_batch(&c, false, UINT64_MAX), HOTBED_OK);
    CHECK_EQ(check_mode_batch(&c, true, 10), HOTBED_OK);
    warning_is(&c, NULL, NULL);
    check_mode_close(&c);
}

/* Invalid offsets are errors whatever the option says. */
static void bad_offsets_are_always_errors(hotbed_backend backend) {
    static check_mode c;
    check_mode_open(&c, backend, HOTBED_CHECK_IGNORE);
    const batch_shape how = {.batch_size = 4, .max_bag = 3, .key_space = 3};
    test_ticket_fill(&c.l, &c.random, &how);
    ((int64_t *)c.l.host.offsets)[8] = 1000;
    test_ticket_upload(&c.l);
    const hotbed_batch batch = test_ticket_batch(&c.l);
    CHECK_OK(hotbed_storage_prefetch(c.r.storage, &batch, c.l.ticket, c.r.stream));
    CHECK_STATUS(hotbed_stream_sync(c.r.stream), HOTBED_ERR_RANGE);
    CHECK_OK(hotbed_ticket_cancel(c.l.ticket, c.r.stream));
    test_ticket_close(&c.l);
    CHECK_OK(hotbed_storage_clear(c.r.storage, 0, c.r.stream));
    fixture_close(&c.r);
}

/* --- the clock ------------------------------------------------------------------------------- */

/* Keys of later prefetches have scores above the value of hotbed_storage_now(). */
static void now_separates_earlier_and_later_keys(hotbed_backend backend) {
    static const hotbed_score_strategy kinds[] = {
        HOTBED_SCORE_STEP, HOTBED_SCORE_TIMESTAMP, HOTBED_SCORE_TIMESTAMP_LFU, HOTBED_SCORE_LFU,
        HOTBED_SCORE_CUSTOM};
    for (int k = 0; k < 5; k++) {
        static score_fixture b;
        score_open(&b, backend, kinds[k], HOTBED_INSERT_PLAIN);
        uint64_t now = 99, later = 0, count = 0;
        hotbed_stream *stream = b.r.stream;
        if (k >= 3) {
            CHECK_STATUS(hotbed_storage_now(b.r.storage, 0, &now, stream), HOTBED_ERR_ARGUMENT);
            score_close(&b);
            continue;
        }
        CHECK_OK(hotbed_storage_now(b.r.storage, 0, &now, stream));
        CHECK_EQ(now, 0);
        const uint64_t before[] = {1, 2, 3}, after[] = {2, 4};
        prefetch(&b, 3, before);
        CHECK_OK(hotbed_ticket_cancel(b.ticket, stream));
        if (kinds[k] == HOTBED_SCORE_TIMESTAMP) { /* an imported time, later than all so far */
            const uint64_t key = 9, score = UINT64_C(1) << 50;
            set_scores(&b, 1, &key, &score);
        }
        CHECK_OK(hotbed_storage_now(b.r.storage, 0, &now, stream));
        CHECK(now > 0);
        prefetch(&b, 2, after);
        CHECK_OK(hotbed_ticket_cancel(b.ticket, stream));
        CHECK_OK(hotbed_storage_now(b.r.storage, 0, &later, stream));
        CHECK(later > now);
        uint64_t *device = fixture_alloc(&b.r, 2 * SLOTS * sizeof *device);
        uint64_t *counted = fixture_alloc(&b.r, sizeof *counted), keys[SLOTS];
        hotbed_export e = {
            .size = sizeof e, .slots = 64, .capacity = SLOTS, .keys = device, .count = counted};
        if (kinds[k] == HOTBED_SCORE_TIMESTAMP_LFU)
            e.min_time = now + 1;
        else
            e.min_score = now + 1;
        CHECK_OK(hotbed_storage_export(b.r.storage, &e, stream));
        fixture_download(&b.r, &count, counted, sizeof count);
        CHECK_EQ(count, 2);
        fixture_download(&b.r, keys, device, count * sizeof *keys);
        CHECK(keys[0] + keys[1] == 6 && (keys[0] == 2 || keys[0] == 4));
        CHECK_STATUS(hotbed_storage_now(b.r.storage, 0, NULL, stream), HOTBED_ERR_ARGUMENT);
        CHECK_STATUS(hotbed_storage_now(b.r.storage, 1, &now, stream), HOTBED_ERR_ARGUMENT);
        hotbed_graph *graph;
        CHECK_OK(hotbed_graph_begin(stream));
        CHECK_STATUS(hotbed_storage_now(b.r.storage, 0, &now, stream), HOTBED_ERR_STATE);
        CHECK_OK(hotbed_graph_end(stream, &graph));
        hotbed_graph_destroy(graph);
        score_close(&b);
    }
}

/* --- parity ---------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b) {
    const tally *x = a, *y = b;
    return (x->key > y->key) - (x->key < y->key);
}

/* List keys and scores of a table, in the order of keys. */
static uint64_t listed(score_fixture *b, tally *out) {
    static uint64_t keys[4096], scores[4096];
    uint64_t n = 0;
    CHECK_OK(hotbed_storage_export_keys(b->r.storage, 0, 4096, keys, scores, &n, b->r.stream));
    for (uint64_t i = 0; i < n; i++)
        out[i] = (tally){keys[i], scores[i]};
    qsort(out, n, sizeof *out, by_key);
    return n;
}

static void eviction_and_admission_are_the_same_on_both_backends(hotbed_backend backend) {
    static score_fixture b[2];
    static tally lists[2][4096];
    static const hotbed_backend backends[] = {HOTBED_BACKEND_HOST, HOTBED_BACKEND_CUDA};
    if (hotbed_backend_probe(HOTBED_BACKEND_CUDA) != HOTBED_OK)
        SKIP(hotbed_last_error());
    static const hotbed_score_strategy kinds[] = {
        HOTBED_SCORE_STEP, HOTBED_SCORE_LFU, HOTBED_SCORE_CUSTOM};
    uint64_t n[2];
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < 2; i++) {
            rng random = rng_start((uint64_t)kind);
            score_open(&b[i], backends[i], kinds[kind], HOTBED_INSERT_PROBATION);
            trace(&b[i], &random, 200);
            n[i] = listed(&b[i], lists[i]);
            score_close(&b[i]);
        }
        CHECK_EQ(n[0], n[1]);
        CHECK_BYTES(lists[0], lists[1], (size_t)n[0] * sizeof(tally));
    }
    for (int kind = HOTBED_ADMIT_FREQUENCY; kind <= HOTBED_ADMIT_PROBABILISTIC; kind++) {
        for (int i = 0; i < 2; i++) {
            rng random = rng_start((uint64_t)kind);
            admission_setup(&b[i], (hotbed_admission)kind);
            b[i].s.tables[0].score = HOTBED_SCORE_LFU;
            b[i].s.tables[0].admission_capacity = 0;
            admission_open(&b[i], backends[i]);
            for (int batch = 0; batch < 50; batch++) {
                uint64_t keys[MOST_KEYS];
                for (uint32_t k = 0; k < MOST_KEYS; k++)
                    keys[k] = rng_below(&random, 2000);
                prefetch(&b[i], MOST_KEYS, keys);
                CHECK_OK(hotbed_ticket_cancel(b[i].ticket, b[i].r.stream));
                CHECK_OK(hotbed_stream_sync(b[i].r.stream));
            }
            n[i] = listed(&b[i], lists[i]);
            score_close(&b[i]);
        }
        CHECK_EQ(n[0], n[1]);
        CHECK(n[0] > 300);
        CHECK_BYTES(lists[0], lists[1], (size_t)n[0] * sizeof(tally));
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(the_oldest_step_is_evicted)},
    {TEST(the_oldest_time_is_evicted)},
    {TEST(the_lowest_count_is_evicted)},
    {TEST(the_lowest_custom_score_is_evicted)},
    {TEST(keys_on_probation_are_evicted_first)},
    {TEST(counts_above_2_to_the_24_are_exact)},
    {TEST(keys_of_a_batch_share_a_time_and_times_increase)},
    {TEST(times_continue_after_imported_times)},
    {TEST(times_continue_after_the_time_of_a_state)},
    {TEST(scores_survive_export_and_set)},
    {TEST(bad_options_are_refused_and_named)},
    {TEST(scores_are_sums_of_counts)},
    {TEST(keys_are_admitted_when_seen_often_enough)},
    {TEST(set_bypasses_admission_and_clear_resets_counts)},
    {TEST(a_full_counter_forgets_low_counts)},
    {TEST(a_share_of_new_keys_is_admitted)},
    {TEST(keys_without_a_slot_are_errors)},
    {TEST(keys_without_a_slot_can_be_warnings)},
    {TEST(keys_without_a_slot_can_be_ignored)},
    {TEST(bad_offsets_are_always_errors)},
    {TEST(now_separates_earlier_and_later_keys)},
    {TEST(eviction_and_admission_are_the_same_on_both_backends)},
    {NULL, NULL},
};
