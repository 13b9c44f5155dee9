/* tests/storage/test_storage_race.c - several streams and threads on one storage.
 *
 * TSan checks that the documented events order all accesses.  Outputs and rows must equal the model's; where rows are
 * read while they are trained, each element shows to which key and step it belongs.
 */
#include "hotbed/storage.h"
#include "storage/storage.h"
#include "tests/storage/fixture.h"

#include <pthread.h>
#include <stdlib.h>

enum { STEPS = 30, TICKETS = 3, BATCH = 16, MAX_KEYS = 128 };

static void two_tables(setup *s) {
    setup_start(s, 2, 6, 800);
    s->tables[1].dim = 3;
    s->options.pooling = HOTBED_POOL_SUM;
    s->options.optimizer.kind = HOTBED_OPT_ADAM;
}

/* A training of STEPS batches, with prefetches on the stream `ahead`, and forward and backward on the fixture's
 * stream.  All batches are uploaded before and all outputs compared afterwards, so that only events order the work. */
typedef struct overlap {
    fixture r;
    bool evicts;
    hotbed_stream *ahead;
    /* batch and arrays of each step; the steps use the tickets of the first few in turn */
    test_ticket tickets[STEPS];
    hotbed_event *prefetched[STEPS], *trained[STEPS];
} overlap;

static void overlap_open(overlap *d, hotbed_backend backend, uint64_t seed, bool evicts) {
    setup s;
    rng random = rng_start(seed);
    two_tables(&s);
    for (int t = 0; t < 2 && evicts; t++) {
        s.tables[t].capacity = 150;
        s.tables[t].evict = HOTBED_EVICT_LOWEST;
        s.tables[t].initializer.kind = HOTBED_INIT_DEBUG;
    }
    if (evicts) {
        s.options.optimizer.kind = HOTBED_OPT_SGD;
        s.options.optimizer.learning_rate = 0.0F;
    }
    d->evicts = evicts;
    fixture_open(&d->r, backend, &s.options);
    CHECK_OK(hotbed_stream_create(backend, 0, &d->ahead));
    const batch_shape how = {
        .batch_size = BATCH, .max_bag = 3, .key_space = evicts ? 3000 : 60, .weights = true};
    for (int i = 0; i < STEPS; i++) {
        test_ticket *l = &d->tickets[i];
        test_ticket_open(&d->r, l, MAX_KEYS, BATCH);
        test_ticket_fill(l, &random, &how);
        float *gradient = l->scratch[0];
        for (uint64_t e = 0; e < l->output_bytes / sizeof(float); e++)
            gradient[e] = rng_float(&random);
        fixture_upload(&d->r, l->gradient, gradient, l->output_bytes);
        CHECK_OK(hotbed_fill(l->output, 0, l->output_bytes, d->r.stream));
        CHECK_OK(hotbed_event_create(d->r.stream, &d->prefetched[i]));
        CHECK_OK(hotbed_event_create(d->r.stream, &d->trained[i]));
    }
    CHECK_OK(hotbed_stream_sync(d->r.stream));
}

/* Train all batches in the model; outputs are kept in scratch[1]. */
static void overlap_model(overlap *d) {
    for (int i = 0; i < STEPS; i++) {
        test_ticket *l = &d->tickets[i];
        hotbed_batch batch = l->host;
        oracle_prefetch(d->r.model, &batch, l->model, NULL);
        memset(l->scratch[1], 0, (size_t)l->output_bytes);
        oracle_forward(l->model, l->scratch[1], l->stride);
        oracle_backward(l->model, l->scratch[0], l->stride);
    }
}

static void overlap_close(overlap *d) {
    CHECK_OK(hotbed_stream_sync(d->ahead));
    CHECK_OK(hotbed_stream_sync(d->r.stream));
    for (int i = 0; i < STEPS; i++) {
        test_ticket *l = &d->tickets[i];
        uint64_t stride = l->stride == 0 ? oracle_least_stride(d->r.model) : l->stride;
        void *seen = calloc(1, (size_t)l->output_bytes);
        CHECK(seen != NULL);
        fixture_download(&d->r, seen, l->output, l->output_bytes);
        CHECK_BYTES(seen, l->scratch[1], BATCH * stride * sizeof(float));
        free(seen);
    }
    if (!d->evicts)
        fixture_check(&d->r);
    for (int i = 0; i < STEPS; i++) {
        hotbed_event_destroy(d->prefetched[i]);
        hotbed_event_destroy(d->trained[i]);
        test_ticket_close(&d->tickets[i]);
    }
    fixture_close(&d->r);
    hotbed_stream_destroy(d->ahead);
}

static void prefetch(overlap *d, int i) {
    const hotbed_batch batch = test_ticket_batch(&d->tickets[i]);
    hotbed_ticket *ticket = d->tickets[i % TICKETS].ticket;
    if (i >= 2) /* the documented order of prefetches and backwards: p0 p1 b0 p2 b1 p3 b2 ... */
        CHECK_OK(hotbed_stream_wait(d->ahead, d->trained[i - 2]));
    CHECK_OK(hotbed_storage_prefetch(d->r.storage, &batch, ticket, d->ahead));
    CHECK_OK(hotbed_event_record(d->prefetched[i], d->ahead));
}

static void train(overlap *d, int i) {
    test_ticket *l = &d->tickets[i];
    hotbed_ticket *ticket = d->tickets[i % TICKETS].ticket;
    CHECK_OK(hotbed_stream_wait(d->r.stream, d->prefetched[i]));
    /* may run beside prefetch i + 1 */
    CHECK_OK(hotbed_storage_forward(d->r.storage, ticket, l->output, l->stride, d->r.stream));
    if (i + 1 < STEPS)
        CHECK_OK(hotbed_stream_wait(d->r.stream, d->prefetched[i + 1]));
    CHECK_OK(hotbed_storage_backward(d->r.storage, ticket, l->gradient, l->stride, d->r.stream));
    CHECK_OK(hotbed_event_record(d->trained[i], d->r.stream));
}

static void run_from_one_thread(overlap *d) {
    prefetch(d, 0);
    for (int i = 0; i < STEPS; i++) {
        if (i + 1 < STEPS)
            prefetch(d, i + 1);
        train(d, i);
    }
    overlap_model(d); /* while the streams run */
}

static void one_thread_may_use_two_streams(hotbed_backend backend) {
    static overlap d;
    memset(&d, 0, sizeof d);
    overlap_open(&d, backend, 1, false);
    run_from_one_thread(&d);
    overlap_close(&d);
}

/* Prefetches evict keys while a forward reads the rows that its ticket has pinned.  Rows depend on their keys only
 * and steps do not change them, so outputs are the same whichever keys are evicted. */
static void eviction_runs_beside_a_forward(hotbed_backend backend) {
    static overlap d;
    for (uint64_t seed = 3; seed < (hotbed_test_is_small() ? 5 : 8); seed++) {
        hotbed_table_stats stats = {.size = sizeof stats};
        memset(&d, 0, sizeof d);
        overlap_open(&d, backend, seed, true);
        run_from_one_thread(&d);
        CHECK_OK(hotbed_stream_sync(d.r.stream));
        CHECK_OK(hotbed_storage_stats(d.r.storage, 0, &stats, d.r.stream));
        CHECK(stats.evictions > 100);
        CHECK_EQ(stats.refused, 0);
        overlap_close(&d);
    }
}

/* --- two threads: one prefetches, one trains ------------------------------------------------- */

typedef struct turns {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int prefetched, trained; /* steps enqueued */
    overlap *d;
} turns;

static void wait_for(turns *t, const int *count, int least) {
    (void)pthread_mutex_lock(&t->lock);
    while (*count < least)
        (void)pthread_cond_wait(&t->changed, &t->lock);
    (void)pthread_mutex_unlock(&t->lock);
}

static void advance(turns *t, int *count) {
    (void)pthread_mutex_lock(&t->lock);
    (*count)++;
    (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->lock);
}

static void *prefetcher(void *argument) {
    turns *t = argument;
    for (int i = 0; i < STEPS; i++) {
        wait_for(t, &t->trained, i - 1);
        prefetch(t->d, i);
        advance(t, &t->prefetched);
    }
    return NULL;
}

static void two_threads_may_use_two_streams(hotbed_backend backend) {
    static overlap d;
    memset(&d, 0, sizeof d);
    overlap_open(&d, backend, 2, false);
    turns t = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .d = &d};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, prefetcher, &t), 0);
    for (int i = 0; i < STEPS; i++) {
        wait_for(&t, &t.prefetched, i + 2 < STEPS ? i + 2 : STEPS);
        train(&d, i);
        advance(&t, &t.trained);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    overlap_model(&d);
    overlap_close(&d);
}

/* --- concurrent storages and evals ----------------------------------------------------------- */

typedef struct worker {
    hotbed_backend backend;
    uint64_t seed;
} worker;

static void *train_alone(void *argument) {
    const worker *w = argument;
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(w->seed);
    two_tables(&s);
    fixture_open(&r, w->backend, &s.options);
    test_ticket_open(&r, &l, MAX_KEYS, BATCH);
    const batch_shape how = {.batch_size = BATCH, .max_bag = 3, .key_space = 40};
    for (int i = 0; i < 10; i++)
        test_ticket_step(&l, &random, &how);
    fixture_check(&r);
    fixture_close(&r);
    return NULL;
}

static void threads_may_use_storages_of_their_own(hotbed_backend backend) {
    pthread_t threads[4];
    worker workers[4];
    for (uint64_t i = 0; i < 4; i++) {
        workers[i] = (worker){backend, i};
        CHECK_EQ(pthread_create(&threads[i], NULL, train_alone, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

typedef struct evaluator {
    hotbed_storage *storage;
    hotbed_stream *stream;
    hotbed_batch batch;
    void *output;
    uint64_t stride;
} evaluator;

static void *evaluate(void *argument) {
    const evaluator *e = argument;
    for (int i = 0; i < (hotbed_test_is_small() ? 15 : 200); i++)
        CHECK_OK(hotbed_storage_eval(e->storage, &e->batch, e->output, e->stride, e->stream));
    CHECK_OK(hotbed_stream_sync(e->stream));
    return NULL;
}

/* A thread evaluates on its own stream while another prefetches known keys and reads them.  Neither writes rows. */
static void eval_runs_beside_prefetch_and_forward(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l, eval;
    rng random = rng_start(30);
    pthread_t thread;
    two_tables(&s);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, MAX_KEYS, BATCH);
    test_ticket_open(&r, &eval, MAX_KEYS, BATCH);
    const batch_shape how = {.batch_size = BATCH, .key_space = 20};
    test_ticket_step(&l, &random, &how);
    test_ticket_fill(&eval, &random, &how);
    test_ticket_eval(&eval);
    evaluator e = {
        .storage = r.storage,
        .batch = test_ticket_batch(&eval),
        .output = eval.output,
        .stride = eval.stride};
    CHECK_OK(hotbed_stream_create(backend, 0, &e.stream));
    CHECK_EQ(pthread_create(&thread, NULL, evaluate, &e), 0);
    for (int i = 0; i < 30; i++) {
        test_ticket_prefetch(&l);
        test_ticket_forward(&l);
        test_ticket_cancel(&l);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    fixture_check(&r);
    fixture_close(&r);
    hotbed_stream_destroy(e.stream);
}

typedef struct exporter {
    hotbed_storage *storage;
    hotbed_stream *stream;
    uint32_t over; /* atomic */
} exporter;

static void *export_keys(void *argument) {
    enum { MOST = 400 };
    exporter *e = argument;
    uint64_t keys[MOST], scores[MOST], n;
    while (hotbed_load_relaxed_u32(&e->over) == 0)
        for (uint32_t t = 0; t < 2; t++)
            CHECK_OK(hotbed_storage_export_keys(e->storage, t, MOST, keys, scores, &n, e->stream));
    return NULL;
}

/* A thread lists keys on its own stream while another one prefetches, which moves rows between the tiers. Both change
 * no row, and afterwards no slot is pinned. */
static void lists_of_keys_beside_prefetches_change_nothing(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(33);
    pthread_t thread;
    two_tables(&s);
    s.options.mode = HOTBED_MODE_CACHE;
    s.tables[0].upper_capacity = s.tables[1].upper_capacity = 64;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, MAX_KEYS, BATCH);
    exporter e = {.storage = r.storage};
    CHECK_OK(hotbed_stream_create(backend, 0, &e.stream));
    const batch_shape how = {.batch_size = BATCH, .max_bag = 3, .key_space = 200};
    for (int round = 0; round < (hotbed_test_is_small() ? 3 : 20); round++) {
        for (int i = 0; i < 6; i++)
            test_ticket_step(&l, &random, &how);
        e.over = 0;
        CHECK_EQ(pthread_create(&thread, NULL, export_keys, &e), 0);
        for (int i = 0; i < 30; i++) {
            test_ticket_fill(&l, &random, &how);
            test_ticket_prefetch(&l);
            test_ticket_cancel(&l);
            CHECK_OK(hotbed_stream_sync(r.stream));
        }
        hotbed_add_relaxed_u32(&e.over, 1);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        fixture_check(&r);
        CHECK_EQ(fixture_pinned(&r), 0);
    }
    test_ticket_close(&l);
    fixture_close(&r);
    hotbed_stream_destroy(e.stream);
}

/* --- eval beside training -------------------------------------------------------------------- */

/* Each element of a row is the key plus ROUND for each step that trained it, so it shows to which key it belongs.
 * Atomic: `done` is 1 + the finished steps of a key, or 0 before the first; `begun` counts steps that may have
 * begun. */
enum { WATCHED = 600, WATCHED_DIM = 12, ROUND = 1024, ASKED = 64 };

typedef struct watch {
    fixture r;
    hotbed_stream *other;
    bool loses; /* keys may be missing after they were inserted */
    uint64_t done[WATCHED], begun[WATCHED];
    pthread_rwlock_t growth; /* keeps growths and evals apart */
    uint32_t over;
    uint64_t *device_keys;
    float *device_output;
} watch;

static void check_watched(
    const watch *w, const uint64_t *keys, const float *rows, const uint64_t *least) {
    for (uint32_t i = 0; i < ASKED; i++)
        for (uint32_t e = 0; e < WATCHED_DIM; e++) {
            const int64_t value = (int64_t)rows[i * WATCHED_DIM + e];
            if (value == -1) {
                CHECK(w->loses || least[i] == 0);
                continue;
            }
            const uint64_t steps = (uint64_t)value / ROUND;
            CHECK_EQ(value % ROUND, keys[i]);
            CHECK(steps <= hotbed_load_acquire_u64(&w->begun[keys[i]]));
            CHECK(w->loses || steps + 1 >= least[i]);
        }
}

static void *watch_rows(void *argument) {
    watch *w = argument;
    uint64_t state = 7, keys[ASKED], least[ASKED];
    float rows[ASKED * WATCHED_DIM];
    hotbed_batch batch = {
        .size = sizeof batch, .keys = w->device_keys, .num_keys = ASKED, .batch_size = ASKED};
    while (hotbed_load_relaxed_u32(&w->over) == 0) {
        for (uint32_t i = 0; i < ASKED; i++)
            keys[i] = hotbed_test_random_r(&state) % WATCHED;
        (void)pthread_rwlock_rdlock(&w->growth);
        CHECK_OK(hotbed_copy(w->device_keys, keys, sizeof keys, w->other));
        for (uint32_t i = 0; i < ASKED; i++)
            least[i] = hotbed_load_acquire_u64(&w->done[keys[i]]);
        CHECK_OK(hotbed_storage_eval(w->r.storage, &batch, w->device_output, 0, w->other));
        CHECK_OK(hotbed_copy(rows, w->device_output, sizeof rows, w->other));
        CHECK_OK(hotbed_stream_sync(w->other));
        (void)pthread_rwlock_unlock(&w->growth);
        check_watched(w, keys, rows, least);
    }
    return NULL;
}

/* Train random keys, each by one step, and grow the table now and then. */
static void train_watched(watch *w, bool grows) {
    enum { TRAINED = 48 };
    uint64_t keys[TRAINED];
    float gradient[TRAINED * WATCHED_DIM];
    hotbed_ticket *ticket;
    hotbed_batch batch = {.size = sizeof batch};
    uint64_t *device_keys = fixture_alloc(&w->r, sizeof keys);
    float *output = fixture_alloc(&w->r, sizeof gradient);
    for (uint32_t i = 0; i < TRAINED * WATCHED_DIM; i++)
        gradient[i] = -ROUND;
    const float *device_gradient = fixture_copy(&w->r, gradient, sizeof gradient);
    batch.keys = device_keys;
    batch.num_keys = TRAINED;
    batch.batch_size = TRAINED;
    CHECK_OK(hotbed_ticket_create(w->r.storage, TRAINED, TRAINED, w->r.stream, &ticket));
    for (uint32_t step = 0; step < (hotbed_test_is_small() ? 15 : 600); step++) {
        uint64_t first = hotbed_test_below(WATCHED), stride = 1 + 2 * hotbed_test_below(6);
        for (uint32_t i = 0; i < TRAINED; i++) {
            keys[i] = (first + i * stride) % WATCHED;
            hotbed_store_release_u64(&w->begun[keys[i]], w->begun[keys[i]] + 1);
        }
        fixture_upload(&w->r, device_keys, keys, sizeof keys);
        CHECK_OK(hotbed_storage_prefetch(w->r.storage, &batch, ticket, w->r.stream));
        CHECK_OK(hotbed_storage_forward(w->r.storage, ticket, output, 0, w->r.stream));
        CHECK_OK(hotbed_storage_backward(w->r.storage, ticket, device_gradient, 0, w->r.stream));
        CHECK_OK(hotbed_stream_sync(w->r.stream));
        for (uint32_t i = 0; i < TRAINED; i++)
            hotbed_store_release_u64(&w->done[keys[i]], w->begun[keys[i]] + 1);
        if (grows && step % 200 == 100) {
            (void)pthread_rwlock_wrlock(&w->growth);
            CHECK_OK(hotbed_storage_grow(w->r.storage, 0, 300 + step, w->r.stream));
            CHECK_OK(hotbed_stream_sync(w->r.stream));
            (void)pthread_rwlock_unlock(&w->growth);
        }
    }
    hotbed_ticket_destroy(ticket);
}

/* In every mode, with and without eviction and growth, as a sequence and in bags of one key: an element is a value that
 * its key had during the eval. */
static void evals_beside_training_read_rows_of_their_keys(hotbed_backend backend) {
#if defined(HOTBED_WITH_TSAN)
    SKIP("an eval may read a row while it is updated");
#endif
    for (int kind = 0; kind < 8; kind++) {
        static watch w;
        setup s;
        pthread_t thread;
        const bool evicts = kind % 2 != 0, grows = kind / 2 % 2 != 0;
        const char *mode = getenv("HOTBED_TEST_MODE");
        if (grows && mode != NULL && strcmp(mode, "external") == 0)
            continue; /* tables over an external store have no bound, so they do not grow */
        setup_start(&s, 1, WATCHED_DIM, grows ? 300 : evicts ? 400 : WATCHED);
        s.tables[0].initializer.kind = HOTBED_INIT_DEBUG;
        s.tables[0].eval_initializer.value = -1;
        s.tables[0].max_capacity = grows ? 2 * WATCHED : 0;
        if (evicts)
            s.tables[0].evict = HOTBED_EVICT_LOWEST;
        s.options.optimizer.learning_rate = 1;
        s.options.check = HOTBED_CHECK_IGNORE;
        s.options.pooling = kind < 4 ? HOTBED_POOL_NONE : HOTBED_POOL_SUM;
        memset(&w, 0, sizeof w);
        fixture_open_bare(&w.r, backend, &s.options);
        /* A table that is full before it grows refuses keys. */
        w.loses = evicts || grows || w.r.store != NULL;
        w.device_keys = fixture_alloc(&w.r, ASKED * sizeof *w.device_keys);
        w.device_output = fixture_alloc(&w.r, (uint64_t)ASKED * WATCHED_DIM * sizeof(float));
        CHECK_OK(hotbed_stream_create(backend, 0, &w.other));
        CHECK_EQ(pthread_rwlock_init(&w.growth, NULL), 0);
        CHECK_EQ(pthread_create(&thread, NULL, watch_rows, &w), 0);
        train_watched(&w, grows);
        (void)hotbed_add_relaxed_u32(&w.over, 1);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_EQ(pthread_rwlock_destroy(&w.growth), 0);
        hotbed_stream_destroy(w.other);
        fixture_close(&w.r);
    }
}

/* --- update in the lower tier, and promotion ------------------------------------------------- */

/* Whether a slot of the lower tier is pinned.  Reads the index without ordering any work. */
static bool pinned_below(const fixture *r) {
    const hotbed_table_view *view = &r->storage->tables[0].view;
    for (uint64_t i = 0; i < view->lower_slots; i++)
        if ((hotbed_load_relaxed_u64(hotbed_index_meta(r->storage->index, view->lower_first + i)) &
             HOTBED_META_PINS) != 0)
            return true;
    return false;
}

/* A ticket's rows are used in the lower tier, because other tickets pin all slots of the upper tier.  After those
 * pins are released, backward updates the rows in the lower tier.  As soon as backward releases its own pins, a
 * prefetch on another stream promotes the rows.  Only the pins order the two. */
static void a_row_is_promoted_after_its_update_in_the_lower_tier(hotbed_backend backend) {
    enum { ABOVE = 16, FILL = 64, USED = 12 };
    for (int mode = 0; mode < 2; mode++) {
        setup s;
        fixture r;
        uint64_t keys[FILL + USED];
        hotbed_event *prefetched;
        hotbed_ticket *tickets[3];
        hotbed_batch batch[3];
        setup_start(&s, 1, 8, 400);
        s.tables[0].upper_capacity = ABOVE;
        s.options.mode = mode == 0 ? HOTBED_MODE_CACHE : HOTBED_MODE_DEFAULT;
        fixture_open_bare(&r, backend, &s.options);
        hotbed_stream *other = hotbed_test_stream(backend);
        CHECK_OK(hotbed_event_create(r.stream, &prefetched));
        for (uint64_t i = 0; i < FILL + USED; i++)
            keys[i] = i;
        const uint64_t *device_keys = fixture_copy(&r, keys, sizeof keys);
        float *gradient = fixture_alloc(&r, (uint64_t)FILL * 8 * sizeof(float));
        CHECK_OK(hotbed_fill(gradient, 0, (uint64_t)FILL * 8 * sizeof(float), r.stream));
        for (int t = 0; t < 3;
             t++) { /* one batch that fills the upper tier, two with the same keys */
            batch[t] = (hotbed_batch){.size = sizeof batch[t]};
            batch[t].keys = t == 0 ? device_keys : device_keys + FILL;
            batch[t].batch_size = t == 0 ? FILL : USED;
            batch[t].num_keys = batch[t].batch_size;
            CHECK_OK(hotbed_ticket_create(r.storage, FILL, FILL, r.stream, &tickets[t]));
        }
        CHECK_OK(hotbed_storage_prefetch(r.storage, &batch[0], tickets[0], r.stream));
        CHECK_OK(hotbed_storage_prefetch(r.storage, &batch[1], tickets[1], r.stream));
        CHECK_OK(hotbed_ticket_cancel(tickets[0], r.stream));
        CHECK_OK(hotbed_event_record(prefetched, r.stream));
        CHECK_OK(hotbed_stream_sync(r.stream));
        CHECK(backend != HOTBED_BACKEND_HOST || pinned_below(&r));
        CHECK_OK(hotbed_stream_wait(other, prefetched));
        CHECK_OK(hotbed_storage_backward(r.storage, tickets[1], gradient, 0, r.stream));
        while (backend == HOTBED_BACKEND_HOST && pinned_below(&r))
            continue;
        CHECK_OK(hotbed_storage_prefetch(r.storage, &batch[2], tickets[2], other));
        CHECK_OK(hotbed_stream_sync(other));
        CHECK_OK(hotbed_stream_sync(r.stream));
        hotbed_table_stats stats = {.size = sizeof stats};
        CHECK_OK(hotbed_storage_stats(r.storage, 0, &stats, r.stream));
        CHECK(backend != HOTBED_BACKEND_HOST || stats.fetches > 0);
        for (int t = 0; t < 3; t++)
            hotbed_ticket_destroy(tickets[t]);
        hotbed_event_destroy(prefetched);
        hotbed_stream_destroy(other);
        fixture_close(&r);
    }
}

/* All host threads insert into a table in which all keys have the same candidates: every key gets its own slot. */
static void concurrent_inserts_into_few_slots_place_every_key(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(31);
    setup_start(&s, 1, 2, 16);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 20000, 20000);
    for (int i = 0; i < 5; i++) {
        const batch_shape how = {.batch_size = 20000, .key_space = 16};
        test_ticket_fill(&l, &random, &how);
        test_ticket_prefetch(&l);
        test_ticket_check(&l);
        test_ticket_forward(&l);
        test_ticket_cancel(&l);
        CHECK_OK(hotbed_storage_clear(r.storage, 0, r.stream));
        oracle_clear(r.model, 0);
    }
    fixture_check(&r);
    fixture_close(&r);
}

/* Rows are set or offered in a full table that evicts; two thirds of the keys are present, the others need slots.
 * Keys of a set_rows do not evict each other, and some new keys find no slot.  Offered keys may evict each other, and
 * are ignored if all candidates have higher scores.  Afterwards each key of the table has its own row. */
static void rows_set_beside_evictions_stay_whole(hotbed_backend backend) {
    enum { CAPACITY = 2000, SET = 3000, DIM = 32, ROUNDS = 6 };
    setup s;
    fixture r;
    setup_start(&s, 1, DIM, CAPACITY);
    s.tables[0].evict = HOTBED_EVICT_LOWEST;
    s.tables[0].initializer.kind = HOTBED_INIT_DEBUG;
    fixture_open_bare(&r, backend, &s.options);
    uint64_t *keys = calloc(2 * SET, sizeof *keys), *scores = calloc(2 * SET, sizeof *scores);
    float *rows = calloc((size_t)2 * SET * DIM, sizeof *rows);
    CHECK(keys != NULL && scores != NULL && rows != NULL);
    uint64_t *device_keys = fixture_alloc(&r, 2 * SET * sizeof *keys);
    uint64_t *device_scores = fixture_alloc(&r, 2 * SET * sizeof *scores);
    float *device_rows = fixture_alloc(&r, (uint64_t)2 * SET * DIM * sizeof *rows);
    const hotbed_rows set = {.weights = device_rows, .scores = device_scores};
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        uint64_t present = 0, fresh = 0;
        if (round > 1)
            CHECK_OK(hotbed_storage_export_keys(
                r.storage, 0, 2 * SET, keys, scores, &present, r.stream));
        for (; present + fresh < SET + present / 2; fresh++) /* new keys among present ones */
            keys[present + fresh] = round * 10000 + fresh;
        uint64_t n = present + fresh;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t other = hotbed_test_below(n), key = keys[i];
            keys[i] = keys[other];
            keys[other] = key;
        }
        for (uint64_t i = 0; i < n; i++) {
            scores[i] = 1 + hotbed_test_below(1000);
            for (uint32_t e = 0; e < DIM; e++)
                rows[i * DIM + e] = (float)keys[i];
        }
        fixture_upload(&r, device_keys, keys, n * sizeof *keys);
        fixture_upload(&r, device_scores, scores, n * sizeof *scores);
        fixture_upload(&r, device_rows, rows, n * DIM * sizeof *rows);
        if (round % 2 == 0)
            CHECK_OK(hotbed_storage_set_rows(r.storage, 0, n, device_keys, &set, r.stream));
        else
            CHECK_OK(hotbed_storage_offer_rows(r.storage, 0, n, device_keys, &set, r.stream));
        CHECK_STATUS(hotbed_stream_sync(r.stream), round % 2 == 0 ? HOTBED_ERR_FULL : HOTBED_OK);
        uint64_t stored = 0;
        CHECK_OK(
            hotbed_storage_export_keys(r.storage, 0, 2 * SET, keys, scores, &stored, r.stream));
        fixture_upload(&r, device_keys, keys, stored * sizeof *keys);
        CHECK_OK(hotbed_storage_get_rows(r.storage, 0, stored, device_keys, &set, NULL, r.stream));
        fixture_download(&r, rows, device_rows, stored * DIM * sizeof *rows);
        for (uint64_t i = 0; i < stored; i++)
            for (uint32_t e = 0; e < DIM; e++)
                if (rows[i * DIM + e] != (float)keys[i])
                    CHECK_EQ((uint64_t)rows[i * DIM + e], keys[i]);
    }
    CHECK_EQ(fixture_pinned(&r), 0);
    free(keys);
    free(scores);
    free(rows);
    fixture_close(&r);
}

const hotbed_test hotbed_tests[] = {
    {TEST(one_thread_may_use_two_streams)},
    {TEST(eviction_runs_beside_a_forward)},
    {TEST(two_threads_may_use_two_streams)},
    {TEST(threads_may_use_storages_of_their_own)},
    {TEST(eval_runs_beside_prefetch_and_forward)},
    {TEST(lists_of_keys_beside_prefetches_change_nothing)},
    {TEST(concurrent_inserts_into_few_slots_place_every_key)},
    {TEST(rows_set_beside_evictions_stay_whole)},
    {TEST(evals_beside_training_read_rows_of_their_keys)},
    {TEST(a_row_is_promoted_after_its_update_in_the_lower_tier)},
    {NULL, NULL},
};
