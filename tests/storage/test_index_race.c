/* tests/storage/test_index_race.c - threads claim, find, pin, evict and erase keys in one small index.
 *
 * TSan checks the memory order.  A found key must have its row, which its thread wrote before it published the key;
 * after each run every key has a slot of its own.
 */
#include "tests/storage/index_claim.h"
#include "tests/support/harness.h"

#include <pthread.h>

enum { BUCKETS = 12, SLOTS = BUCKETS * HOTBED_BUCKET_SLOTS, THREADS = 4, MAX_KEYS = 400 };

typedef struct table {
    uint64_t keys[SLOTS] __attribute__((aligned(128)));
    uint64_t metas[SLOTS] __attribute__((aligned(128)));
    uint64_t rows[SLOTS]; /* stands for the row: ~key, written before the key is published */
    hotbed_index_view view;
    hotbed_index_range range;
} table;

static table shared;
static uint64_t all_keys[MAX_KEYS];
static uint64_t slots[MAX_KEYS]; /* that the claims returned, by key number */
static pthread_barrier_t started;

static void clear(bool evicts) {
    memset(&shared, 0, sizeof shared);
    shared.view.keys = shared.keys;
    shared.view.metas = shared.metas;
    shared.range = (hotbed_index_range){.buckets = BUCKETS, .choices = 4, .evicts = evicts};
    for (uint32_t b = 0; b < BUCKETS; b++)
        for (uint64_t s = 0; s < HOTBED_BUCKET_SLOTS; s++)
            shared.keys[hotbed_index_slot(shared.range, b) + s] =
                hotbed_index_marker(shared.range, b, false);
    for (int i = 0; i < MAX_KEYS; i++)
        all_keys[i] = i < 20 ? (uint64_t)i : hotbed_test_random();
}

static void check_row(uint64_t slot, uint64_t key) {
    CHECK_EQ(hotbed_load_relaxed_u64(&shared.rows[slot]), ~key);
}

/* The keys of one thread; no other thread has them. */
typedef struct share {
    uint32_t first, count, step;
    uint64_t score;
    pthread_t thread;
} share;

static void *claim_share(void *argument) {
    const share *s = argument;
    (void)pthread_barrier_wait(&started);
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t k = s->first + i * s->step;
        hotbed_index_result r = index_claim(
            shared.view, shared.range, all_keys[k], HOTBED_SCORE_ASSIGN, s->score, 1, 1);
        slots[k] = r.slot;
        if (r.outcome == HOTBED_INDEX_INSERTED || r.outcome == HOTBED_INDEX_EVICTED) {
            hotbed_store_relaxed_u64(&shared.rows[r.slot], ~all_keys[k]);
            hotbed_index_publish(shared.view, r.slot, all_keys[k]);
        } else if (r.outcome == HOTBED_INDEX_FOUND) {
            check_row(r.slot, all_keys[k]);
        }
    }
    return NULL;
}

static void *erase_share(void *argument) {
    const share *s = argument;
    (void)pthread_barrier_wait(&started);
    for (uint32_t i = 0; i < s->count; i++)
        (void)hotbed_index_erase(shared.view, shared.range, all_keys[s->first + i * s->step], 1);
    return NULL;
}

/* Find all keys; a key that is found must have its row. */
static void *find_all(void *argument) {
    (void)pthread_barrier_wait(&started);
    for (int round = 0; round < 3; round++)
        for (int k = 0; k < MAX_KEYS; k++) {
            uint64_t slot = hotbed_index_find(shared.view, shared.range, all_keys[k], 1);
            if (slot == HOTBED_SLOT_NONE || shared.range.evicts != 0)
                continue;
            CHECK_EQ(hotbed_load_acquire_u64(&shared.keys[slot]), all_keys[k]);
            check_row(slot, all_keys[k]);
        }
    return NULL;
}

/* Run `work` on keys [0, n) by THREADS threads, each with every THREADS-th key, beside `others` threads of
 * find_all(). */
static void run(void *(*work)(void *argument), uint32_t n, uint64_t score, unsigned others) {
    share shares[THREADS];
    pthread_t finders[2];
    CHECK_EQ(pthread_barrier_init(&started, NULL, THREADS + others), 0);
    for (uint32_t t = 0; t < THREADS; t++) {
        shares[t] = (share){.first = t, .count = n / THREADS, .step = THREADS, .score = score};
        CHECK_EQ(pthread_create(&shares[t].thread, NULL, work, &shares[t]), 0);
    }
    for (unsigned o = 0; o < others; o++)
        CHECK_EQ(pthread_create(&finders[o], NULL, find_all, NULL), 0);
    for (uint32_t t = 0; t < THREADS; t++)
        CHECK_EQ(pthread_join(shares[t].thread, NULL), 0);
    for (unsigned o = 0; o < others; o++)
        CHECK_EQ(pthread_join(finders[o], NULL), 0);
    CHECK_EQ(pthread_barrier_destroy(&started), 0);
}

/* Number of keys in the table.  Checks that each has a slot of its own, and its row. */
static uint32_t check_table(void) {
    bool taken[SLOTS] = {false};
    uint32_t found = 0, occupied = 0;
    for (int k = 0; k < MAX_KEYS; k++) {
        uint64_t slot = hotbed_index_find(shared.view, shared.range, all_keys[k], 1);
        if (slot == HOTBED_SLOT_NONE)
            continue;
        CHECK(!taken[slot]);
        taken[slot] = true;
        check_row(slot, all_keys[k]);
        found++;
    }
    for (int s = 0; s < SLOTS; s++) {
        CHECK_EQ(shared.metas[s] & HOTBED_META_LOCKED, 0);
        occupied += shared.metas[s] != 0;
    }
    CHECK_EQ(found, occupied);
    return found;
}

/* Number of keys in [first, end) whose claim got a slot.  The candidates of a key may be full before the table is. */
static uint32_t claimed(uint32_t first, uint32_t end) {
    uint32_t n = 0;
    for (uint32_t k = first; k < end; k++)
        n += slots[k] != HOTBED_SLOT_NONE;
    return n;
}

static void unpin_all(uint32_t n) {
    for (uint32_t k = 0; k < n; k++)
        if (slots[k] != HOTBED_SLOT_NONE)
            hotbed_index_unpin(shared.view, slots[k], shared.range.evicts != 0);
    for (int s = 0; s < SLOTS; s++)
        CHECK_EQ(shared.metas[s] & HOTBED_META_PINS, 0);
}

static void threads_insert_and_find(hotbed_backend backend) {
    for (int round = 0; round < 10; round++) {
        clear(false);
        run(claim_share, 100, 1, 2);
        CHECK_EQ(check_table(), 100);
        run(claim_share, 100, 2, 2); /* all keys exist */
        for (uint32_t k = 0; k < 100; k++)
            CHECK_EQ(shared.metas[slots[k]] & HOTBED_META_PINS, 2);
    }
}

static void threads_fill_the_last_slots(hotbed_backend backend) {
    for (int round = 0; round < 10; round++) {
        clear(false);
        run(claim_share, MAX_KEYS, 1, 0);
        uint32_t kept = claimed(0, MAX_KEYS);
        CHECK_EQ(check_table(), kept);
        CHECK(kept <= SLOTS && kept > SLOTS * 9 / 10);
        unpin_all(MAX_KEYS);
    }
}

static void threads_erase_beside_finds(hotbed_backend backend) {
    for (int round = 0; round < 10; round++) {
        clear(false);
        run(claim_share, 180, 1, 0);
        unpin_all(180);
        run(erase_share, 120, 0, 0);
        for (int k = 0; k < 120; k++)
            CHECK_EQ(
                hotbed_index_find(shared.view, shared.range, all_keys[k], 1), HOTBED_SLOT_NONE);
        uint32_t kept = claimed(120, 180);
        CHECK_EQ(check_table(), kept);
        run(claim_share, 120, 2, 0); /* erased slots are used again */
        CHECK_EQ(check_table(), kept + claimed(0, 120));
        CHECK(kept + claimed(0, 120) > 170);
        unpin_all(120);
    }
}

static void threads_evict(hotbed_backend backend) {
    for (int round = 0; round < 10; round++) {
        clear(true);
        run(claim_share, 120, 1, 0);
        unpin_all(120);
        for (int k = 0; k < MAX_KEYS / 2; k++) { /* claim the second half of the keys */
            uint64_t key = all_keys[k];
            all_keys[k] = all_keys[MAX_KEYS / 2 + k];
            all_keys[MAX_KEYS / 2 + k] = key;
        }
        run(claim_share, 160, 2, 1);
        for (int k = 0; k < 160; k++) /* pinned keys keep their slots */
            CHECK_EQ(hotbed_index_find(shared.view, shared.range, all_keys[k], 1), slots[k]);
        (void)check_table();
        unpin_all(160);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(threads_insert_and_find)},
    {TEST(threads_fill_the_last_slots)},
    {TEST(threads_erase_beside_finds)},
    {TEST(threads_evict)},
    {NULL, NULL},
};
