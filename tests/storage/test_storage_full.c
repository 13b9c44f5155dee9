/* tests/storage/test_storage_full.c - full tables, eviction, keys out of range and bad offsets, against the model.
 *
 * Which keys the library refuses or evicts is read from tickets and exports; the test checks that the choice is allowed
 * (lowest score, never a pinned row, never a key of the batch), and that all other rows equal the model's.
 */
#include "tests/storage/fixture.h"

#include <stdio.h>
#include <stdlib.h>

/* Check the status of a fault, and that its message names the table and the key. */
static void check_fault(hotbed_status fault, hotbed_status expected, const char *table) {
    CHECK_EQ(fault, expected);
    if (strstr(hotbed_last_error(), table) == NULL)
        (void)fprintf(stderr, "\"%s\" does not name %s\n", hotbed_last_error(), table);
    CHECK(strstr(hotbed_last_error(), table) != NULL);
}

/* --- refusal --------------------------------------------------------------------------------- */

static uint64_t refused(const test_ticket *l) {
    uint64_t n = 0;
    for (uint32_t u = 0; u < l->model->unique_offsets[l->r->model->num_tables]; u++)
        n += l->model->rows[u] == UINT32_MAX;
    return n;
}

static void a_full_table_refuses_and_serves_the_rest(hotbed_backend backend) {
    for (int pooling = 0; pooling < 3; pooling++) {
        setup s;
        fixture r;
        test_ticket l;
        rng random = rng_start((uint64_t)pooling);
        setup_start(&s, 2, 5, 100);
        s.tables[0].capacity = 5000; /* never full */
        s.tables[1].initializer.kind = HOTBED_INIT_NORMAL;
        s.tables[1].initializer.std = 1.0F;
        s.options.pooling = (hotbed_pooling)pooling;
        s.options.optimizer.kind = HOTBED_OPT_ADAGRAD;
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 400, 100);
        const batch_shape how = {
            .batch_size = 100, .max_bag = 3, .key_space = 400, .weights = true};
        uint64_t refusals = 0;
        for (int step = 0; step < 8; step++) {
            test_ticket_fill(&l, &random, &how);
            hotbed_status fault = test_ticket_prefetch_with_slots(&l);
            /* fixture_check() fails if keys other than new ones of table 1 were refused */
            test_ticket_check(&l);
            if (refused(&l) != 0)
                check_fault(fault, HOTBED_ERR_FULL, "table table-1");
            else
                CHECK_EQ(fault, HOTBED_OK);
            refusals += refused(&l);
            CHECK_EQ(r.model->tables[0].stats.refused, 0);
            test_ticket_forward(&l);
            test_ticket_forward(&l); /* a second forward reads the same initial rows */
            test_ticket_backward(&l, &random);
            CHECK_OK(hotbed_stream_sync(r.stream));
        }
        CHECK(refusals > 0);
        fixture_check(&r);
        fixture_close(&r);
    }
}

/* The message has the key as signed or unsigned number, by the storage's key type. */
static void a_refused_key_is_named(hotbed_backend backend) {
    static const char *const names[] = {"-4242", "18446744073709547374"};
    for (int type = HOTBED_KEY_I64; type <= HOTBED_KEY_U64; type++) {
        setup s;
        fixture r;
        test_ticket l;
        rng random = rng_start(5);
        setup_start(&s, 1, 3, 4);
        s.options.key_type = (hotbed_key_type)type;
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 64, 64);
        const batch_shape many = {.batch_size = 64};
        test_ticket_fill(&l, &random, &many);
        CHECK_EQ(test_ticket_prefetch_with_slots(&l), HOTBED_ERR_FULL);
        test_ticket_backward(&l, &random);
        const batch_shape one = {.batch_size = 1};
        test_ticket_fill(&l, &random, &one);
        *(uint64_t *)l.host.keys = (uint64_t)-4242;
        test_ticket_upload(&l);
        check_fault(test_ticket_prefetch_with_slots(&l), HOTBED_ERR_FULL, "table table-0");
        check_fault(HOTBED_ERR_FULL, HOTBED_ERR_FULL, names[type - HOTBED_KEY_I64]);
        hotbed_table_info info = {.size = sizeof info};
        CHECK_OK(hotbed_storage_table(r.storage, 0, &info));
        CHECK_FIELDS(
                .cause = HOTBED_CAUSE_TABLE_FULL,
                .has = HOTBED_HAS_TABLE_NUMBER | HOTBED_HAS_KEY | HOTBED_HAS_LIMIT,
                .table = "table-0", .key = (uint64_t)-4242, .key_type = (uint32_t)type,
                .limit = (double)info.slots);
        test_ticket_forward(&l);
        test_ticket_backward(&l, &random);
        fixture_check(&r);
        fixture_close(&r);
    }
}

/* The caller's sync returns the fault, though synchronous calls of the storage have run before it. */
static void faults_wait_for_the_callers_sync(hotbed_backend backend) {
    setup s;
    fixture r;
    hotbed_ticket *ticket;
    setup_start(&s, 2, 3, 4);
    fixture_open_bare(&r, backend, &s.options);
    uint64_t keys[128], n = 0, pinned = 0;
    hotbed_storage_state state = {.size = sizeof state};
    hotbed_table_stats stats = {.size = sizeof stats};
    for (uint64_t i = 0; i < 128; i++)
        keys[i] = i;
    hotbed_batch batch = {.size = sizeof batch, .batch_size = 64, .num_keys = 128};
    batch.keys = fixture_copy(&r, keys, sizeof keys);
    CHECK_OK(hotbed_ticket_create(r.storage, 128, 64, r.stream, &ticket));
    for (int call = 0; call < 7; call++) {
        CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, ticket, r.stream));
        CHECK_OK(hotbed_ticket_cancel(ticket, r.stream));
        if (call == 0)
            CHECK_OK(hotbed_storage_size(r.storage, 0, &n, &pinned, r.stream));
        if (call == 1)
            CHECK_OK(hotbed_storage_export_keys(r.storage, 0, 128, keys, NULL, &n, r.stream));
        if (call == 2)
            CHECK_OK(hotbed_storage_stats(r.storage, 0, &stats, r.stream));
        if (call == 3)
            CHECK_OK(hotbed_storage_get_state(r.storage, &state, r.stream));
        if (call == 4)
            CHECK_OK(hotbed_storage_set_state(r.storage, &state, r.stream));
        if (call == 5)
            CHECK_OK(hotbed_storage_clear(r.storage, 1, r.stream));
        if (call == 6)
            hotbed_ticket_destroy(ticket);
        CHECK_STATUS(hotbed_stream_sync(r.stream), HOTBED_ERR_FULL);
        CHECK_OK(hotbed_stream_sync(r.stream));
    }
    fixture_close(&r);
}

/* Erased slots are free for new keys. */
static void a_full_table_is_usable_after_erase(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(6);
    setup_start(&s, 1, 2, 50);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 300, 300);
    const batch_shape how = {.batch_size = 300};
    test_ticket_fill(&l, &random, &how);
    CHECK_EQ(test_ticket_prefetch_with_slots(&l), HOTBED_ERR_FULL);
    test_ticket_cancel(&l);
    CHECK_OK(hotbed_storage_erase(r.storage, 0, 300, l.device.keys, NULL, r.stream));
    for (uint64_t i = 0; i < 300; i++)
        (void)oracle_erase(r.model, 0, ((const uint64_t *)l.host.keys)[i]);
    CHECK_EQ(fixture_size(&r, 0), 0);
    const batch_shape fits = {.batch_size = 50};
    test_ticket_step(&l, &random, &fits);
    fixture_check(&r);
    fixture_close(&r);
}

/* --- eviction -------------------------------------------------------------------------------- */

static void evicting_setup(setup *s, uint64_t capacity) {
    setup_start(s, 1, 3, capacity);
    s->tables[0].evict = HOTBED_EVICT_LOWEST;
    s->options.optimizer.kind = HOTBED_OPT_ADAGRAD;
}

/* Make a batch of these n keys, one per bag. */
static void batch_of(test_ticket *l, rng *random, uint32_t n, const uint64_t *keys) {
    const batch_shape how = {.batch_size = n};
    test_ticket_fill(l, random, &how);
    memcpy((void *)l->host.keys, keys, n * sizeof *keys);
    test_ticket_upload(l);
}

/* Erase from the model the keys that the table has evicted.  Returns their number. */
static uint64_t follow_evictions(fixture *r) {
    uint64_t keys[4096], scores[4096], n = 0, dropped = 0;
    CHECK_OK(hotbed_storage_export_keys(r->storage, 0, 4096, keys, scores, &n, r->stream));
    oracle_table *table = &r->model->tables[0];
    bool *kept = calloc(table->num_rows, sizeof *kept);
    CHECK(kept != NULL);
    for (uint64_t i = 0; i < n; i++) {
        const oracle_row *row = oracle_find(r->model, 0, keys[i]);
        CHECK(row != NULL && row->score == scores[i]);
        kept[row - table->rows] = true;
    }
    for (uint32_t i = 0; i < table->num_rows; i++)
        if (table->rows[i].live && !kept[i]) {
            CHECK_EQ(table->rows[i].pins, 0); /* a pinned row is never evicted */
            dropped += oracle_erase(r->model, 0, table->rows[i].key);
        }
    free(kept);
    return dropped;
}

/* All slots of a bucket are candidates of a key that has one of them. */
enum { BUCKET = 16, TRACKED = 256 };

typedef struct tracked {
    uint64_t keys[TRACKED];   /* by slot */
    uint64_t scores[TRACKED]; /* by slot; 0: free */
} tracked;

/* Record that `key` is in `slot` now, and check that this was allowed: its old slot, a free one, or the slot of the
 * lowest score of the bucket.  Returns whether a key was evicted. */
static bool track(tracked *t, uint64_t key, uint64_t slot, uint64_t score) {
    CHECK(slot < TRACKED);
    for (uint64_t s = 0; s < TRACKED; s++)
        if (t->scores[s] != 0 && t->keys[s] == key)
            CHECK_EQ(s, slot);
    bool evicted = t->scores[slot] != 0 && t->keys[slot] != key;
    for (uint64_t s = slot / BUCKET * BUCKET; evicted && s < slot / BUCKET * BUCKET + BUCKET; s++)
        CHECK(t->scores[s] >= t->scores[slot]);
    t->keys[slot] = key;
    t->scores[slot] = score;
    return evicted;
}

static void the_lowest_score_is_evicted(hotbed_backend backend) {
    static tracked t;
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(7);
    memset(&t, 0, sizeof t);
    evicting_setup(&s, hotbed_test_is_small() ? 10 : 100);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 4, 4);
    uint64_t evictions = 0;
    const uint64_t steps = hotbed_test_is_small() ? 120 : 400;
    for (uint64_t step = 1; step <= steps; step++) {
        uint64_t key = step % 3 == 2 ? 1000 + rng_below(&random, step) : 1000 + step;
        uint64_t slot = 0;
        hotbed_ticket_view view = {.size = sizeof view};
        batch_of(&l, &random, 1, &key);
        test_ticket_prefetch(&l);
        CHECK_OK(hotbed_ticket_read(l.ticket, &view));
        fixture_download(&r, &slot, view.slots, sizeof slot); /* no key was refused */
        bool evicted = track(&t, key, slot, step);
        CHECK_EQ(follow_evictions(&r), evicted);
        evictions += evicted;
        test_ticket_check(&l);
        test_ticket_forward(&l); /* a key that was evicted before has its initial values */
        test_ticket_backward(&l, &random);
    }
    CHECK(evictions > 50);
    hotbed_table_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_storage_stats(r.storage, 0, &stats, r.stream));
    CHECK_EQ(stats.evictions, evictions);
    CHECK_EQ(stats.refused, 0);
    CHECK_EQ(stats.inserts - stats.evictions, fixture_size(&r, 0));
    fixture_close(&r);
}

/* A batch of present and new keys: new keys evict keys that are not in the batch. */
static void a_batch_does_not_evict_its_own_keys(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(13);
    evicting_setup(&s, 4);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 128, 128);
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(r.storage, 0, &info));
    uint64_t keys[128], scores[128], n = 0;
    for (uint64_t i = 0; i < 100; i++) { /* one at a time, until all slots are used */
        keys[0] = i;
        batch_of(&l, &random, 1, keys);
        test_ticket_prefetch(&l);
        test_ticket_backward(&l, &random);
        (void)follow_evictions(&r);
    }
    CHECK_OK(hotbed_storage_export_keys(r.storage, 0, 100, keys + 1, scores, &n, r.stream));
    keys[0] = 5000;
    batch_of(&l, &random, (uint32_t)n + 1, keys);
    hotbed_status fault = test_ticket_prefetch_with_slots(&l);
    if (n == info.slots)
        CHECK_EQ(fault, HOTBED_ERR_FULL);
    CHECK_EQ(follow_evictions(&r), 0);
    test_ticket_check(&l);
    test_ticket_forward(&l);
    test_ticket_backward(&l, &random);
    hotbed_table_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_storage_stats(r.storage, 0, &stats, r.stream));
    CHECK_EQ(stats.hits, r.model->tables[0].stats.hits);
    fixture_close(&r);
}

/* A larger table: no key is refused, recent keys stay, old keys are evicted. */
static void eviction_serves_every_batch(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(8);
    evicting_setup(&s, 1000);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 128, 128);
    uint64_t evictions = 0;
    for (int step = 0; step < 40; step++) {
        const batch_shape how = {.batch_size = 128, .key_space = 3000};
        test_ticket_fill(&l, &random, &how);
        test_ticket_prefetch(&l);
        evictions += follow_evictions(&r);
        test_ticket_check(&l);
        test_ticket_forward(&l);
        test_ticket_backward(&l, &random);
        CHECK_OK(hotbed_stream_sync(r.stream));
    }
    CHECK(evictions > 500);
    hotbed_table_stats stats = {.size = sizeof stats};
    CHECK_OK(hotbed_storage_stats(r.storage, 0, &stats, r.stream));
    CHECK_EQ(stats.evictions, evictions);
    CHECK_EQ(stats.inserts - stats.evictions, fixture_size(&r, 0));
    CHECK_EQ(stats.hits + stats.inserts, stats.uniques);
    fixture_close(&r);
}

/* Another ticket pins all rows, so no row can be evicted. */
static void pinned_rows_stay_and_new_keys_are_refused(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket holder, l;
    rng random = rng_start(9);
    evicting_setup(&s, 4);
    fixture_open(&r, backend, &s.options);
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(r.storage, 0, &info));
    uint32_t slots = (uint32_t)info.slots;
    CHECK(slots <= 64);
    test_ticket_open(&r, &holder, slots + 64, slots + 64);
    test_ticket_open(&r, &l, 8, 8);
    uint64_t keys[128];
    for (uint64_t i = 0; i < 128; i++)
        keys[i] = i;
    batch_of(&holder, &random, slots + 64, keys);
    hotbed_status fault = test_ticket_prefetch_with_slots(&holder);
    check_fault(fault, HOTBED_ERR_FULL, "table table-0");
    CHECK_EQ(fixture_size(&r, 0), fixture_pinned(&r));
    uint64_t size = fixture_size(&r, 0);
    CHECK(size >= 4);
    const uint64_t more[] = {5000, 0, 5001, 5000};
    batch_of(&l, &random, 4, more);
    fault = test_ticket_prefetch_with_slots(&l);
    check_fault(fault, HOTBED_ERR_FULL, "table table-0");
    CHECK_EQ(hotbed_last_error_detail()->cause, HOTBED_CAUSE_ALL_PINNED);
    CHECK_STRING(hotbed_last_error_detail()->table, "table-0");
    CHECK(refused(&l) >= 2);
    test_ticket_check(&l);
    test_ticket_forward(&l); /* refused keys read as initial rows */
    test_ticket_backward(&l, &random);
    CHECK_EQ(fixture_size(&r, 0), size);
    test_ticket_forward(&holder);
    test_ticket_backward(&holder, &random);
    CHECK_EQ(fixture_pinned(&r), 0);
    fixture_check(&r);
    batch_of(&l, &random, 4, more); /* now they get slots */
    test_ticket_prefetch(&l);
    CHECK_OK(hotbed_stream_sync(r.stream));
    test_ticket_check(&l);
    test_ticket_backward(&l, &random);
    fixture_close(&r);
}

/* Random batches beside a ticket that pins a fifth of the table. */
static void pinned_rows_survive_eviction(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket holder, l;
    rng random = rng_start(10);
    evicting_setup(&s, 500);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &holder, 100, 100);
    test_ticket_open(&r, &l, 64, 64);
    const batch_shape held = {.batch_size = 100};
    test_ticket_fill(&holder, &random, &held);
    test_ticket_prefetch(&holder);
    for (int step = 0; step < 40; step++) {
        const batch_shape how = {.batch_size = 64};
        test_ticket_fill(&l, &random, &how);
        test_ticket_prefetch(&l);
        (void)follow_evictions(&r); /* checks that none was pinned */
        test_ticket_backward(&l, &random);
    }
    test_ticket_check(&holder);
    test_ticket_forward(&holder);
    test_ticket_backward(&holder, &random);
    CHECK_OK(hotbed_stream_sync(r.stream));
    CHECK_EQ(fixture_pinned(&r), 0);
    fixture_close(&r);
}

/* --- keys out of range ----------------------------------------------------------------------- */

static void keys_outside_of_a_static_table_are_faults(hotbed_backend backend) {
    for (int pooling = 0; pooling < 3; pooling++) {
        setup s;
        fixture r;
        test_ticket l;
        rng random = rng_start(11);
        setup_start(&s, 2, 4, 100);
        s.tables[1].kind = HOTBED_TABLE_STATIC;
        s.tables[1].capacity = 10;
        s.options.pooling = (hotbed_pooling)pooling;
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 32, 16);
        static const uint64_t bad[] = {10, (uint64_t)-1, (uint64_t)INT64_MAX, (uint64_t)INT64_MIN};
        for (int i = 0; i < 4; i++) {
            const batch_shape how = {.batch_size = 16, .key_space = 20};
            test_ticket_fill(&l, &random, &how);
            ((uint64_t *)l.host.keys)[20] = bad[i];
            test_ticket_upload(&l);
            test_ticket_prefetch(&l);
            hotbed_status fault = hotbed_stream_sync(r.stream);
            check_fault(fault, HOTBED_ERR_RANGE, "table table-1");
            if (i < 2)
                CHECK(strstr(hotbed_last_error(), i == 0 ? "10" : "-1") != NULL);
            CHECK_FIELDS(
                    .cause = HOTBED_CAUSE_KEY_RANGE,
                    .has = HOTBED_HAS_TABLE_NUMBER | HOTBED_HAS_KEY | HOTBED_HAS_LIMIT,
                    .table_number = 1, .table = "table-1", .key = bad[i],
                    .key_type = HOTBED_KEY_I64, .limit = 10);
            test_ticket_check(&l);
            CHECK_EQ(refused(&l), 1);
            test_ticket_forward(&l);
            test_ticket_backward(&l, &random);
            CHECK_OK(hotbed_stream_sync(r.stream));
            fixture_check(&r);
        }
        const uint64_t outside = 10;
        const hotbed_rows nothing = {0};
        const uint64_t *key = fixture_copy(&r, &outside, sizeof outside);
        CHECK_OK(hotbed_storage_set_rows(r.storage, 1, 1, key, &nothing, r.stream));
        CHECK_EQ(hotbed_stream_sync(r.stream), HOTBED_ERR_RANGE);
        fixture_check(&r);
        fixture_close(&r);
    }
}

/* Also where they count as one distinct key: in a storage of static tables. */
static void keys_outside_of_static_tables_read_as_their_initial_rows(hotbed_backend backend) {
    for (int pooling = 0; pooling < 3; pooling++) {
        setup s;
        fixture r;
        test_ticket l;
        rng random = rng_start(13);
        setup_start(&s, 2, 4, 10);
        s.tables[0].kind = s.tables[1].kind = HOTBED_TABLE_STATIC;
        s.tables[0].initializer.kind = s.tables[1].initializer.kind = HOTBED_INIT_DEBUG;
        s.options.pooling = (hotbed_pooling)pooling;
        s.options.check = HOTBED_CHECK_IGNORE;
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 32, 16);
        for (int i = 0; i < 4; i++) {
            const batch_shape how = {.batch_size = 16, .key_space = 10};
            test_ticket_fill(&l, &random, &how);
            uint64_t *keys = (uint64_t *)l.host.keys;
            for (uint64_t k = 15; k < 22; k++) /* the last key of one table, six of the other */
                keys[k] = 10 + rng_below(&random, 5);
            test_ticket_upload(&l);
            test_ticket_prefetch(&l);
            test_ticket_check(&l);
            test_ticket_forward(&l);
            test_ticket_backward(&l, &random);
            fixture_check(&r);
        }
        fixture_close(&r);
    }
}

/* Offsets of three bags of each of two features, and the message, which names the bag whose end is invalid. */
typedef struct bad_offset {
    int64_t offsets[7];
    const char *text;
    bool sequence; /* also found with pooling NONE */
} bad_offset;

/* The fields of a fault with this text, of a batch of three samples. */
static void check_place(const char *text) {
    const hotbed_error_detail *d = hotbed_last_error_detail();
    if (strncmp(text, "bag ", 4) == 0) {
        const uint32_t bag = (uint32_t)strtoul(text + 4, NULL, 10);
        CHECK_FIELDS(
                .cause = HOTBED_CAUSE_OFFSET,
                .has = HOTBED_HAS_VALUE | HOTBED_HAS_FEATURE | HOTBED_HAS_SAMPLE,
                .feature = bag / 3, .sample = bag % 3, .key_type = d->key_type,
                .value = strtod(strstr(text, "at ") + 3, NULL));
    } else {
        CHECK_FIELDS(
                .cause = HOTBED_CAUSE_FIRST_OFFSET, .has = HOTBED_HAS_VALUE,
                .key_type = d->key_type, .value = strtod(text + sizeof "the first is", NULL));
    }
}

static void a_fault_names_the_bag_with_the_bad_offset(hotbed_backend backend) {
    static const bad_offset bad[] = {
        {{0, (int64_t)1 << 62, 1, 2, 3, 4, 5}, "bag 0 ends at 4611686018427387904,", false},
        {{0, 2, 1, 2, 3, 4, 5}, "bag 1 ends at 1,", false},
        {{0, 1, -7, 2, 3, 4, 5}, "bag 1 ends at -7,", false},
        {{0, 1, 2, 3, INT64_MIN, 4, 5}, "bag 3 ends at -9223372036854775808,", false},
        {{0, 1, 2, 3, 5, 6, 5}, "bag 4 ends at 6,", false},
        {{3, 3, 3, 3, 4, 5, 6}, "the first is 3, not 0", true},
        {{-1, 0, 0, 3, 4, 5, 6}, "the first is -1, not 0", true},
        {{0, 1, 2, 99, 3, 4, 5}, "bag 2 ends at 99,", true},
        {{0, 1, 2, -9, 3, 4, 5}, "bag 2 ends at -9,", true},
        {{0, 1, 2, 3, 4, 5, 99}, "bag 5 ends at 99,", true},
        {{0, 1, 2, 3, 4, 5, 2}, "bag 5 ends at 2,", true},
    };
    for (int pooling = HOTBED_POOL_NONE; pooling <= HOTBED_POOL_MEAN; pooling++) {
        setup s;
        fixture r;
        test_ticket l;
        rng random = rng_start(13);
        setup_start(&s, 2, 4, 200);
        s.options.pooling = (hotbed_pooling)pooling;
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, 8, 3);
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            const batch_shape how = {.batch_size = 3, .max_bag = 1, .key_space = 20};
            test_ticket_fill(&l, &random, &how);
            memset((uint64_t *)l.host.keys + l.num_keys, 0, (8 - l.num_keys) * sizeof(uint64_t));
            l.num_keys = l.host.num_keys = 8;
            memcpy((void *)l.host.offsets, bad[i].offsets, sizeof bad[i].offsets);
            test_ticket_upload(&l);
            const hotbed_batch batch = test_ticket_batch(&l);
            bool found = bad[i].sequence || pooling != HOTBED_POOL_NONE;
            for (int eval = 0; eval < 2; eval++) {
                if (eval == 0)
                    CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, l.ticket, r.stream));
                else
                    CHECK_OK(hotbed_storage_eval(r.storage, &batch, l.output, 0, r.stream));
                CHECK_STATUS(hotbed_stream_sync(r.stream), found ? HOTBED_ERR_RANGE : HOTBED_OK);
                if (found && strstr(hotbed_last_error(), bad[i].text) == NULL)
                    CHECK_STRING(hotbed_last_error(), bad[i].text);
                if (found)
                    check_place(bad[i].text);
            }
            CHECK_OK(hotbed_ticket_cancel(l.ticket, r.stream));
        }
        fixture_close(&r);
    }
}

/* Whether offsets of `bags` bags are valid, of which every `stride`-th and the last are read. */
static bool are_valid(const int64_t *offsets, uint32_t bags, uint32_t stride, int64_t num_keys) {
    bool valid = offsets[0] == 0 && offsets[bags] <= num_keys;
    for (uint32_t b = 0; b < bags; b += stride) {
        uint32_t next = b + stride < bags ? b + stride : bags;
        valid = valid && offsets[b] >= 0 && offsets[b] <= offsets[next] && offsets[b] <= num_keys;
    }
    return valid;
}

/* Valid offsets of random bags, up to two of which are then replaced. */
static void offsets_that_break_the_rules_are_faults(hotbed_backend backend) {
    enum { BAGS = 12, SAMPLES = 6, NUM_KEYS = 40 };
    for (int pooling = HOTBED_POOL_NONE; pooling <= HOTBED_POOL_MEAN; pooling++) {
        setup s;
        fixture r;
        test_ticket l;
        rng random = rng_start(14);
        uint32_t faults = 0, rounds = hotbed_test_is_small() ? 20 : 200;
        setup_start(&s, 2, 4, 200);
        s.options.pooling = (hotbed_pooling)pooling;
        fixture_open(&r, backend, &s.options);
        test_ticket_open(&r, &l, NUM_KEYS, SAMPLES);
        for (uint32_t round = 0; round < rounds; round++) {
            const batch_shape how = {.batch_size = SAMPLES, .max_bag = 3, .key_space = 20};
            test_ticket_fill(&l, &random, &how);
            int64_t *offsets = (int64_t *)l.host.offsets;
            const int64_t num_keys = (int64_t)l.host.num_keys;
            const int64_t odd[] = {-1,        num_keys,  num_keys + 1,
                                   INT64_MIN, INT64_MAX, (int64_t)1 << 32};
            for (uint64_t n = rng_below(&random, 3); n > 0; n--) {
                uint64_t which = rng_below(&random, 12);
                offsets[rng_below(&random, BAGS + 1)] =
                    which < 6 ? odd[which] : (int64_t)rng_below(&random, (uint64_t)num_keys + 1);
            }
            bool valid =
                are_valid(offsets, BAGS, pooling == HOTBED_POOL_NONE ? SAMPLES : 1, num_keys);
            faults += !valid;
            test_ticket_upload(&l);
            const hotbed_batch batch = test_ticket_batch(&l);
            CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, l.ticket, r.stream));
            CHECK_STATUS(hotbed_stream_sync(r.stream), valid ? HOTBED_OK : HOTBED_ERR_RANGE);
            CHECK_OK(hotbed_ticket_cancel(l.ticket, r.stream));
            CHECK_EQ(fixture_pinned(&r), 0);
            CHECK_OK(hotbed_storage_eval(r.storage, &batch, l.output, 0, r.stream));
            CHECK_STATUS(hotbed_stream_sync(r.stream), valid ? HOTBED_OK : HOTBED_ERR_RANGE);
        }
        CHECK(faults > rounds / 20 && faults < rounds - rounds / 20);
        test_ticket_close(&l);
        CHECK_OK(hotbed_storage_clear(r.storage, 0, r.stream));
        CHECK_OK(hotbed_storage_clear(r.storage, 1, r.stream));
        fixture_close(&r);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(a_full_table_refuses_and_serves_the_rest)},
    {TEST(a_refused_key_is_named)},
    {TEST(faults_wait_for_the_callers_sync)},
    {TEST(a_full_table_is_usable_after_erase)},
    {TEST(the_lowest_score_is_evicted)},
    {TEST(a_batch_does_not_evict_its_own_keys)},
    {TEST(eviction_serves_every_batch)},
    {TEST(pinned_rows_stay_and_new_keys_are_refused)},
    {TEST(pinned_rows_survive_eviction)},
    {TEST(keys_outside_of_a_static_table_are_faults)},
    {TEST(keys_outside_of_static_tables_read_as_their_initial_rows)},
    {TEST(a_fault_names_the_bag_with_the_bad_offset)},
    {TEST(offsets_that_break_the_rules_are_faults)},
    {NULL, NULL},
};
