/* tests/storage/test_storage_pair.c - score TIMESTAMP_LFU: keys with a count and a time.
 *
 * Tables have 32 slots in two buckets, and a key can be in one of them.  A model learns the bucket of a key from its
 * slot, which the ticket reports, and then predicts which key each insertion evicts.  Also tested: export, set, and
 * graphs.
 */
#include "hotbed/export.h"
#include "tests/storage/fixture.h"

enum { SLOTS = 32, BUCKET = 16, MOST_KEYS = 64 };

typedef struct place {
    uint64_t key, count, step; /* step: the last prefetch of the key */
    bool used, probation, hit;
} place;

typedef struct pair_fixture {
    fixture r;
    setup s;
    hotbed_ticket *ticket;
    uint64_t *device_keys;
    place places[SLOTS];
    uint64_t step;
    uint64_t times[2000]; /* of each step, as read from the table */
    uint64_t by_time;     /* evictions that the time decided, not the slot */
    uint64_t by_count;    /* evictions of a key that was not the oldest */
    /* evictions of a key on probation, although another one had a lower count */
    uint64_t by_probation;
} pair_fixture;

static void pair_open(pair_fixture *b, hotbed_backend backend, hotbed_insertion insertion) {
    memset(b, 0, sizeof *b);
    setup_start(&b->s, 1, 3, BUCKET);
    b->s.tables[0].evict = HOTBED_EVICT_LOWEST;
    b->s.tables[0].score = HOTBED_SCORE_TIMESTAMP_LFU;
    b->s.tables[0].insertion = insertion;
    fixture_open_bare(&b->r, backend, &b->s.options);
    CHECK_OK(hotbed_ticket_create(b->r.storage, MOST_KEYS, MOST_KEYS, b->r.stream, &b->ticket));
    b->device_keys = fixture_alloc(&b->r, MOST_KEYS * sizeof(uint64_t));
}

static void pair_close(pair_fixture *b) {
    hotbed_ticket_destroy(b->ticket);
    fixture_close(&b->r);
}

typedef struct words {
    uint64_t keys[SLOTS], counts[SLOTS], times[SLOTS], n;
} words;

/* Export the keys of at least this count and time, with counts and times. */
static void export_words(fixture *r, uint64_t min_score, uint64_t min_time, words *out) {
    hotbed_memory pinned;
    CHECK_OK(hotbed_memory_alloc(r->stream, HOTBED_MEMORY_PINNED, sizeof(words), NULL, &pinned));
    words *w = pinned.data;
    hotbed_export e = {.size = sizeof e};
    e.slots = SLOTS;
    e.min_score = min_score;
    e.min_time = min_time;
    e.keys = w->keys;
    e.rows.scores = w->counts;
    e.rows.times = w->times;
    e.count = &w->n;
    CHECK_OK(hotbed_storage_export(r->storage, &e, r->stream));
    CHECK_OK(hotbed_stream_sync(r->stream));
    *out = *w;
    hotbed_memory_free(&pinned);
}

static void get_words(pair_fixture *b, uint64_t key, uint64_t *count, uint64_t *time) {
    uint64_t seen[3] = {0};
    fixture_upload(&b->r, b->device_keys, &key, sizeof key);
    uint64_t *device = fixture_copy(&b->r, seen, sizeof seen);
    const hotbed_rows rows = {.scores = device, .times = device + 1};
    CHECK_OK(hotbed_storage_get_rows(
        b->r.storage, 0, 1, b->device_keys, &rows, (uint8_t *)(device + 2), b->r.stream));
    fixture_download(&b->r, seen, device, sizeof seen);
    hotbed_memory_free(&b->r.memories[--b->r.num_memories]);
    CHECK_EQ(seen[2] & 0xff, 1);
    *count = seen[0];
    *time = seen[1];
}

/* `counts` or `times` may be NULL. */
static void set_words(
    pair_fixture *b, uint32_t n, const uint64_t *keys, const uint64_t *counts,
    const uint64_t *times) {
    hotbed_rows rows = {0};
    fixture_upload(&b->r, b->device_keys, keys, n * sizeof *keys);
    if (counts != NULL)
        rows.scores = fixture_copy(&b->r, counts, n * sizeof *counts);
    if (times != NULL)
        rows.times = fixture_copy(&b->r, times, n * sizeof *times);
    CHECK_OK(hotbed_storage_set_rows(b->r.storage, 0, n, b->device_keys, &rows, b->r.stream));
    CHECK_OK(hotbed_stream_sync(b->r.stream));
}

/* --- eviction -------------------------------------------------------------------------------- */

/* Whether p is evicted before q: keys on probation first, in slot order; then by count, time and slot. */
static bool before(const place *p, const place *q) {
    if (p->probation != q->probation)
        return p->probation;
    if (p->count != q->count && !p->probation)
        return p->count < q->count;
    return p->step != q->step && !p->probation ? p->step < q->step : p < q;
}

static void check_evicted(pair_fixture *b, uint64_t slot) {
    const place *evicted = &b->places[slot];
    for (uint64_t i = slot / BUCKET * BUCKET; i < (slot / BUCKET + 1) * BUCKET; i++) {
        const place *p = &b->places[i];
        CHECK(p->used); /* evicts only if no slot is free */
        if (p->hit || i == slot)
            continue;
        CHECK(before(evicted, p));
        if (p->probation == evicted->probation && p->count == evicted->count && i < slot &&
            evicted->step < p->step)
            b->by_time++;
        if (p->step < evicted->step)
            b->by_count++;
        if (evicted->probation && !p->probation && p->count < evicted->count)
            b->by_probation++;
    }
}

static uint32_t prefetch(
    pair_fixture *b, uint32_t n, const uint64_t *keys, hotbed_ticket_view *view) {
    uint32_t uniques[2];
    hotbed_batch batch = {
        .size = sizeof batch, .batch_size = n, .num_keys = n, .keys = b->device_keys};
    fixture_upload(&b->r, b->device_keys, keys, n * sizeof *keys);
    CHECK_OK(hotbed_storage_prefetch(b->r.storage, &batch, b->ticket, b->r.stream));
    b->step++;
    CHECK_OK(hotbed_ticket_read(b->ticket, view));
    fixture_download(&b->r, uniques, view->unique_offsets, sizeof uniques);
    return uniques[1];
}

/* Prefetch a batch with at most one new key, in the storage and in the model. */
static void step(pair_fixture *b, uint32_t n, const uint64_t *keys) {
    uint64_t unique[MOST_KEYS], slots[MOST_KEYS], count = 0;
    uint64_t counts[MOST_KEYS];
    uint32_t new_key = UINT32_MAX;
    hotbed_ticket_view view = {.size = sizeof view};
    uint32_t uniques = prefetch(b, n, keys, &view);
    fixture_download(&b->r, unique, view.unique_keys, uniques * sizeof *unique);
    fixture_download(&b->r, slots, view.slots, uniques * sizeof *slots);
    fixture_download(&b->r, counts, view.counts, uniques * sizeof *counts);
    CHECK_OK(hotbed_ticket_cancel(b->ticket, b->r.stream));
    get_words(b, unique[0], &count, &b->times[b->step]);
    for (uint32_t u = 0; u < uniques; u++) {
        CHECK(slots[u] < SLOTS);
        place *p = &b->places[slots[u]];
        if (!p->used || p->key != unique[u]) {
            CHECK_EQ(new_key, UINT32_MAX);
            new_key = u;
            continue;
        }
        p->count += counts[u];
        p->step = b->step;
        p->probation = false;
        p->hit = true;
    }
    if (new_key != UINT32_MAX) {
        place *p = &b->places[slots[new_key]];
        if (p->used)
            check_evicted(b, slots[new_key]);
        p->used = true;
        p->key = unique[new_key];
        p->count = counts[new_key];
        p->step = b->step;
        p->probation = b->s.tables[0].insertion == HOTBED_INSERT_PROBATION;
    }
    for (uint32_t i = 0; i < SLOTS; i++)
        b->places[i].hit = false;
}

static const place *place_of(const pair_fixture *b, uint64_t key) {
    for (uint32_t i = 0; i < SLOTS; i++)
        if (b->places[i].used && b->places[i].key == key)
            return &b->places[i];
    hotbed_check_failed(__FILE__, __LINE__, "the model has no key %llu", (unsigned long long)key);
}

/* Check counts and times of all keys, and exports with a minimum count and time. */
static void check_words(pair_fixture *b) {
    words w;
    uint64_t used = 0;
    for (uint32_t i = 0; i < SLOTS; i++)
        used += b->places[i].used;
    export_words(&b->r, 0, 0, &w);
    CHECK_EQ(w.n, used);
    for (uint64_t i = 0; i < w.n; i++) {
        const place *p = place_of(b, w.keys[i]);
        CHECK_EQ(w.counts[i], p->count);
        CHECK_EQ(w.times[i], b->times[p->step]);
    }
    uint64_t count = 3, since = b->step - b->step / 4, expected = 0;
    for (uint32_t i = 0; i < SLOTS; i++)
        expected += b->places[i].used && b->places[i].count >= count && b->places[i].step >= since;
    export_words(&b->r, count, b->times[since], &w);
    CHECK_EQ(w.n, expected);
    for (uint64_t i = 0; i < w.n; i++)
        CHECK(place_of(b, w.keys[i])->count >= count && place_of(b, w.keys[i])->step >= since);
}

/* Run random batches of present and new keys.  The newest key is repeated in every other batch, and an eighth of the
 * new keys occur 8 times.  So some evicted keys have passed probation, and keys on probation have different counts. */
static void trace(pair_fixture *b, rng *random, int steps) {
    uint64_t keys[MOST_KEYS], newest = 0, fresh = 1000 + b->step;
    for (int i = 0; i < steps; i++) {
        uint32_t n = 0;
        for (uint64_t k = rng_below(random, 4); k > 0; k--) {
            const place *p = &b->places[rng_below(random, SLOTS)];
            for (uint64_t more = 1 + rng_below(random, 2); p->used && more > 0; more--)
                keys[n++] = p->key;
        }
        if (newest != 0 && rng_below(random, 2) == 0)
            keys[n++] = newest;
        if (rng_below(random, 4) != 0 || n == 0) {
            uint64_t more = rng_below(random, 8) == 0 ? 8 : 1 + rng_below(random, 2);
            for (newest = fresh++; more > 0; more--)
                keys[n++] = newest;
        }
        step(b, n, keys);
        if (i % 40 == 39)
            check_words(b);
    }
}

static void the_lowest_count_then_the_oldest_time_is_evicted(hotbed_backend backend) {
    static pair_fixture b;
    rng random = rng_start(1);
    pair_open(&b, backend, HOTBED_INSERT_PLAIN);
    trace(&b, &random, hotbed_test_is_small() ? 120 : 600);
    CHECK(b.by_time > 0 && b.by_count > 0);
    for (uint64_t i = 2; i <= b.step; i++)
        CHECK(b.times[i] > b.times[i - 1]); /* each batch has a later time */
    pair_close(&b);
}

static void keys_on_probation_are_evicted_first(hotbed_backend backend) {
    static pair_fixture b;
    rng random = rng_start(2);
    pair_open(&b, backend, HOTBED_INSERT_PROBATION);
    trace(&b, &random, 300);
    CHECK(b.by_time > 0 && b.by_probation > 0);
    pair_close(&b);
}

/* --- set and kept ---------------------------------------------------------------------------- */

/* Counts and times that are exported and set in another table are unchanged there, and order evictions as before. */
static void counts_and_times_survive_export_and_set(hotbed_backend backend) {
    static pair_fixture a, b;
    rng random = rng_start(3);
    words w;
    hotbed_ticket_view view = {.size = sizeof view};
    uint64_t slots[MOST_KEYS], count = 0, time = 0;
    pair_open(&a, backend, HOTBED_INSERT_PLAIN);
    pair_open(&b, backend, HOTBED_INSERT_PLAIN);
    const int steps = hotbed_test_is_small() ? 60 : 200;
    trace(&a, &random, steps);
    export_words(&a.r, 0, 0, &w);
    set_words(&b, (uint32_t)w.n, w.keys, w.counts, w.times);
    for (uint64_t i = 0; i < w.n; i++) {
        get_words(&b, w.keys[i], &count, &time);
        CHECK_EQ(count, w.counts[i]);
        CHECK_EQ(time, w.times[i]);
    }
    /* The keys may have other slots now.  Find them with a batch of all keys, which does not change their order. */
    memcpy(b.places, a.places, sizeof b.places);
    memcpy(b.times, a.times, sizeof b.times);
    b.step = a.step;
    CHECK_EQ(prefetch(&b, (uint32_t)w.n, w.keys, &view), w.n);
    fixture_download(&b.r, slots, view.slots, w.n * sizeof *slots);
    CHECK_OK(hotbed_ticket_cancel(b.ticket, b.r.stream));
    memset(b.places, 0, sizeof b.places);
    get_words(&b, w.keys[0], &count, &b.times[b.step]);
    CHECK(b.times[b.step] > b.times[b.step - 1]); /* later than the times that were set */
    for (uint64_t i = 0; i < w.n; i++) {
        const place moved = {w.keys[i], w.counts[i] + 1, b.step, true, false, false};
        b.places[slots[i]] = moved;
    }
    trace(&b, &random, steps);
    pair_close(&a);
    pair_close(&b);
}

static void counts_and_times_can_be_set_alone(hotbed_backend backend) {
    static pair_fixture b;
    uint64_t count = 0, time = 0;
    pair_open(&b, backend, HOTBED_INSERT_PLAIN);
    const uint64_t batch[] = {1, 1, 2}, keys[] = {1, 3}, counts[] = {77, 88}, times[] = {5, 6};
    hotbed_ticket_view view = {.size = sizeof view};
    CHECK_EQ(prefetch(&b, 3, batch, &view), 2);
    CHECK_OK(hotbed_ticket_cancel(b.ticket, b.r.stream));
    uint64_t now = 0;
    get_words(&b, 2, &count, &now);
    /* a present key keeps its time, a new one gets the last prefetch's */
    set_words(&b, 2, keys, counts, NULL);
    get_words(&b, 1, &count, &time);
    CHECK(count == 77 && time == now);
    get_words(&b, 3, &count, &time);
    CHECK(count == 88 && time == now);
    set_words(&b, 2, keys, NULL, times); /* a present key keeps its count */
    get_words(&b, 1, &count, &time);
    CHECK(count == 77 && time == 5);
    get_words(&b, 3, &count, &time);
    CHECK(count == 88 && time == 6);
    const uint64_t fresh[] = {4}, late[] = {UINT64_C(1) << 50};
    set_words(&b, 1, fresh, NULL, late); /* a new key gets count 1 */
    get_words(&b, 4, &count, &time);
    CHECK(count == 1 && time == late[0]);
    const uint64_t plain[] = {5};
    set_words(&b, 1, plain, NULL, NULL);
    get_words(&b, 5, &count, &time);
    CHECK(count == 1 && time == now);
    const uint64_t most[] = {UINT64_MAX};
    CHECK_OK(hotbed_storage_erase(b.r.storage, 0, 1, b.device_keys, NULL, b.r.stream));
    const uint64_t again[] = {2, 5};
    /* Later prefetches have times after the imported time, also in a slot that is used again. */
    CHECK_EQ(prefetch(&b, 2, again, &view), 2);
    CHECK_OK(hotbed_ticket_cancel(b.ticket, b.r.stream));
    get_words(&b, 5, &count, &time);
    CHECK(count == 1 && time > late[0]);
    get_words(&b, 2, &count, &time);
    CHECK(count == 2 && time > late[0]);
    set_words(&b, 1, plain, most, most);
    get_words(&b, 5, &count, &time);
    CHECK_EQ(count, ((uint64_t)1 << 52) - 1);
    CHECK_EQ(time, ((uint64_t)1 << 52) - 1);
    pair_close(&b);
}

/* Each launch of a recorded prefetch increases counts and has a later time. */
static void launches_update_counts_and_times(hotbed_backend backend) {
    static pair_fixture b;
    hotbed_graph *graph;
    hotbed_batch batch = {.size = sizeof batch};
    uint64_t count = 0, time = 0, last = 0;
    const uint64_t keys[] = {1, 2, 1};
    pair_open(&b, backend, HOTBED_INSERT_PLAIN);
    batch.batch_size = 3;
    batch.num_keys = 3;
    batch.keys = fixture_copy(&b.r, keys, sizeof keys);
    CHECK_OK(hotbed_graph_begin(b.r.stream));
    CHECK_OK(hotbed_storage_prefetch(b.r.storage, &batch, b.ticket, b.r.stream));
    CHECK_OK(hotbed_ticket_cancel(b.ticket, b.r.stream));
    CHECK_OK(hotbed_graph_end(b.r.stream, &graph));
    for (uint64_t i = 1; i <= 5; i++) {
        CHECK_OK(hotbed_graph_launch(graph, b.r.stream));
        get_words(&b, 2, &count, &time);
        CHECK_EQ(count, i);
        CHECK(time > last);
        last = time;
        get_words(&b, 1, &count, &time);
        CHECK(count == 2 * i && time == last);
    }
    hotbed_graph_destroy(graph);
    pair_close(&b);
}

/* --- memory, and tables without it ----------------------------------------------------------- */

static void other_tables_have_no_times(hotbed_backend backend) {
    setup s;
    fixture r;
    hotbed_table_info info = {.size = sizeof info};
    hotbed_export e;
    setup_start(&s, 3, 2, 100);
    s.tables[1].score = HOTBED_SCORE_TIMESTAMP_LFU;
    s.tables[2].kind = HOTBED_TABLE_STATIC;
    fixture_open_bare(&r, backend, &s.options);
    uint64_t *words_of = fixture_alloc(&r, 256 * sizeof *words_of);
    CHECK_OK(hotbed_fill(words_of, 0, 256 * sizeof *words_of, r.stream));
    const hotbed_rows rows = {.times = words_of};
    for (uint32_t t = 0; t < 3; t++) {
        hotbed_status expected = t == 1 ? HOTBED_OK : HOTBED_ERR_ARGUMENT;
        CHECK_OK(hotbed_storage_table(r.storage, t, &info));
        CHECK_EQ(info.index_bytes, t == 2 ? 0 : info.slots * (t == 1 ? 24 : 16));
        CHECK_STATUS(
            hotbed_storage_get_rows(r.storage, t, 1, words_of, &rows, NULL, r.stream), expected);
        CHECK_STATUS(hotbed_storage_set_rows(r.storage, t, 1, words_of, &rows, r.stream), expected);
        e = (hotbed_export){.size = sizeof e};
        e.table = t;
        e.slots = 128;
        e.count = words_of;
        e.rows.times = words_of + 1;
        CHECK_STATUS(hotbed_storage_export(r.storage, &e, r.stream), expected);
        e.rows.times = NULL;
        e.min_time = 1;
        CHECK_STATUS(hotbed_storage_export(r.storage, &e, r.stream), expected);
    }
    CHECK_OK(hotbed_stream_sync(r.stream));
    fixture_close(&r);
}

static void static_tables_refuse_counts_and_times(hotbed_backend backend) {
    setup s;
    hotbed_storage *storage;
    hotbed_stream *stream = hotbed_test_stream(backend);
    setup_start(&s, 1, 2, 100);
    s.tables[0].kind = HOTBED_TABLE_STATIC;
    s.tables[0].score = HOTBED_SCORE_TIMESTAMP_LFU;
    CHECK_STATUS(hotbed_storage_create(&s.options, stream, &storage), HOTBED_ERR_ARGUMENT);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(the_lowest_count_then_the_oldest_time_is_evicted)},
    {TEST(keys_on_probation_are_evicted_first)},
    {TEST(counts_and_times_survive_export_and_set)},
    {TEST(counts_and_times_can_be_set_alone)},
    {TEST(launches_update_counts_and_times)},
    {TEST(other_tables_have_no_times)},
    {TEST(static_tables_refuse_counts_and_times)},
    {NULL, NULL},
};
