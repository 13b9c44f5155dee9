/* tests/storage/test_index_candidates.c - the candidate buckets of keys, and the keys that mark free slots.
 *
 * They are functions of the key and the table's shape (storage/index/index_layout_core.h), the same at every
 * tile width, so one lane is enough here.
 */
#include "storage/index/index_range.h"
#include "tests/storage/index_claim.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_BUCKETS = 40 };

/* --- candidates ------------------------------------------------------------------------------ */

/* The candidate buckets of a key are distinct and inside of the table, for every shape. */
static void candidates_are_distinct(hotbed_backend backend) {
    for (uint32_t buckets = 2; buckets <= MAX_BUCKETS; buckets++) {
        for (int i = 0; i < 200; i++) {
            const hotbed_index_range range = {
                .buckets = buckets, .choices = buckets - 1, .region_bits = (uint16_t)(i % 4)};
            uint64_t key = i < 100 ? (uint64_t)i : hotbed_test_random();
            bool seen[MAX_BUCKETS] = {false};
            hotbed_candidates c = hotbed_index_candidates(range, key);
            CHECK(c.first != c.second && c.first < buckets && c.second < buckets);
            seen[c.first] = true;
            if (range.choices > 1)
                seen[c.second] = true;
            for (uint32_t choice = 2; choice < range.choices; choice++) {
                uint32_t bucket = hotbed_index_walk(range, c, choice);
                CHECK(bucket < buckets && !seen[bucket]);
                seen[bucket] = true;
            }
            for (uint32_t b = 0; b < buckets; b++)
                CHECK_EQ(index_may_hold(range, key, b), seen[b]);
        }
    }
}

/* In tables whose probe sequences have steps of their own, too; only the first bucket may come twice. */
static void candidates_of_large_tables_are_distinct(hotbed_backend backend) {
    enum { BUCKETS_MOST = 1500 };
    for (int i = 0; i < 3000; i++) {
        const uint32_t buckets = 2 * HOTBED_WALK_MOST + 1 +
                                 (uint32_t)hotbed_test_below(BUCKETS_MOST - 2 * HOTBED_WALK_MOST);
        const hotbed_index_range range = {.buckets = buckets, .choices = HOTBED_WALK_MOST};
        const uint64_t key = hotbed_test_random();
        const hotbed_candidates c = hotbed_index_candidates(range, key);
        bool seen[BUCKETS_MOST] = {false};
        for (uint32_t choice = 1; choice < range.choices; choice++) {
            const uint32_t bucket = hotbed_index_candidate(range, c, choice);
            CHECK(bucket < buckets && !seen[bucket]);
            seen[bucket] = true;
        }
        seen[c.first] = true;
        for (uint32_t b = 0; b < buckets; b++)
            CHECK_EQ(index_may_hold(range, key, b), seen[b]);
    }
}

/* With regions, both candidates of a key are near one point, which is at the same fraction of tables of all sizes. */
static void candidates_of_tables_with_regions_are_near(hotbed_backend backend) {
    static const uint64_t capacities[] = {70000, 262144, 1000003, 40000000};
    for (int i = 0; i < 4000; i++) {
        uint64_t key = hotbed_test_random();
        for (uint32_t a = 0; a < 8; a++) {
            hotbed_index_range range = hotbed_index_range_make(capacities[a / 2], a % 2 != 0, 0);
            hotbed_index_range_regions(&range);
            CHECK_EQ(range.region_bits > 0, capacities[a / 2] >= (a % 2 != 0 ? 65536 : 262144));
            CHECK(range.region_bits <= HOTBED_REGION_BITS_MOST);
            hotbed_candidates c = hotbed_index_candidates(range, key);
            double point =
                (double)(uint32_t)(hotbed_hash_u64(key) * 0x9e3779b97f4a7c15U) / 4294967296.0;
            double region = 1.0 / (double)(1U << range.region_bits), bucket = 1.0 / range.buckets;
            CHECK(fabs(c.first * bucket - point) <= bucket);
            /* wrapped around at the end */
            bool around = c.first + 1 == range.buckets && c.second == 0;
            CHECK(around || fabs(c.second * bucket - point) <= region + 2 * bucket);
        }
    }
}

/* --- where keys are placed -------------------------------------------------------------------- */

/* Finds read the second bucket only of keys that are not in the first, and the probe sequence of almost none. */
static void most_keys_are_in_their_first_bucket(hotbed_backend backend) {
    enum { BUCKETS = 1 << 14, SLOTS = BUCKETS * HOTBED_BUCKET_SLOTS };
    const hotbed_index_range range = {.buckets = BUCKETS, .choices = HOTBED_WALK_MOST};
    uint64_t *words = calloc((size_t)2 * SLOTS, sizeof *words);
    CHECK(words != NULL);
    const hotbed_index_view view = {words, words + SLOTS, NULL};
    hotbed_index_start(view, range);
    uint64_t placed = 0, first = 0, second = 0;
    for (uint64_t key = 0; key < (uint64_t)SLOTS * 97 / 100; key++) {
        const hotbed_candidates c = hotbed_index_candidates(range, key);
        const hotbed_index_result r =
            hotbed_index_place(view, range, key, hotbed_meta_new(1, 0), 1);
        CHECK_EQ(r.outcome, HOTBED_INDEX_INSERTED);
        hotbed_index_publish(view, r.slot, key);
        placed++;
        first += r.slot / HOTBED_BUCKET_SLOTS == c.first;
        second += r.slot / HOTBED_BUCKET_SLOTS == c.second;
        if (placed == (uint64_t)SLOTS * 3 / 4)
            CHECK(first * 100 > placed * 84);
    }
    CHECK(first * 100 > placed * 78);
    CHECK((first + second) * 1000 > placed * 985);
    free(words);
}

/* No key is refused, although regions get different numbers of keys. */
static void tables_with_regions_hold_as_many_keys_as_their_capacity(hotbed_backend backend) {
    enum { KEYS = 300000 };
    hotbed_index_range range = hotbed_index_range_make(KEYS, false, 0);
    hotbed_index_range_regions(&range);
    CHECK(range.region_bits > 0);
    const uint64_t slots = hotbed_index_range_slots(range);
    uint64_t *words = calloc(2 * slots, sizeof *words);
    CHECK(words != NULL);
    const hotbed_index_view view = {words, words + slots, NULL};
    for (uint64_t s = 0; s < slots; s++)
        view.keys[s] = hotbed_index_marker(range, (uint32_t)(s / HOTBED_BUCKET_SLOTS), false);
    for (uint64_t i = 0; i < KEYS; i++) {
        hotbed_index_result r = hotbed_index_place(view, range, i, hotbed_meta_new(1, 0), 1);
        CHECK(r.slot != HOTBED_SLOT_NONE);
        hotbed_index_publish(view, r.slot, i);
    }
    for (uint64_t i = 0; i < KEYS; i++)
        CHECK(hotbed_index_find(view, range, i, 1) != HOTBED_SLOT_NONE);
    free(words);
}

/* A table with many buckets, and keys to place in it. */
typedef struct large_table {
    hotbed_index_view view;
    hotbed_index_range range;
    uint64_t *words;
} large_table;

static void large_open(large_table *t, uint64_t capacity) {
    t->range = hotbed_index_range_make(capacity, false, 0);
    CHECK(hotbed_index_steps_differ(t->range));
    const uint64_t slots = hotbed_index_range_slots(t->range);
    t->words = aligned_alloc(128, 2 * slots * sizeof *t->words);
    CHECK(t->words != NULL);
    memset(t->words, 0, 2 * slots * sizeof *t->words);
    t->view = (hotbed_index_view){t->words, t->words + slots, NULL};
    hotbed_index_start(t->view, t->range);
}

/* Most candidates that a key looks at if many tiles place keys at once: each looks at one bucket in turn, then claims a
 * slot of the best one, which another may have claimed. */
static uint32_t place_at_once(const large_table *t, uint64_t keys) {
    typedef struct walker {
        hotbed_candidates c;
        uint64_t slots; /* the first one of the best bucket */
        uint32_t choice, free, from;
        bool claims;
    } walker;
    walker *walkers = calloc(keys, sizeof *walkers);
    uint32_t *left = malloc(keys * sizeof *left), most = 0;
    CHECK(walkers != NULL && left != NULL);
    for (uint32_t i = 0; i < keys; i++) {
        left[i] = i;
        walkers[i].c = hotbed_index_candidates(t->range, i);
        walkers[i].from = (uint32_t)hotbed_test_below(HOTBED_BUCKET_SLOTS);
    }
    for (uint64_t n = keys; n > 0;) {
        const uint64_t at = hotbed_test_below(n);
        walker *w = &walkers[left[at]];
        if (!w->claims) {
            const uint64_t slots =
                hotbed_index_slot(t->range, hotbed_index_candidate(t->range, w->c, w->choice));
            const uint32_t free = hotbed_line_match(t->view.metas + slots, 0, 1);
            if (hotbed_bits_set(free) > hotbed_bits_set(w->free)) {
                w->free = free;
                w->slots = slots;
            }
            w->claims =
                w->choice == 0 ? hotbed_bits_set(w->free) > HOTBED_BUCKET_SPARE : w->free != 0;
            most = w->choice > most ? w->choice : most;
            w->choice++;
            CHECK(w->claims || w->choice < t->range.choices); /* otherwise the key is refused */
            continue;
        }
        const uint32_t after = w->free >> w->from << w->from;
        uint64_t *meta = &t->view.metas[w->slots + hotbed_lowest_bit(after != 0 ? after : w->free)];
        if (*meta == 0) {
            *meta = HOTBED_META_OCCUPIED;
            left[at] = left[--n];
            continue;
        }
        w->claims = false;
        w->choice = w->free = 0;
    }
    free(walkers);
    free(left);
    return most;
}

/* Keys that are placed at the same time do not see each other, so they fill the buckets less evenly than keys that are
 * placed one by one. Still none comes near the end of its probe sequence. With equal steps, keys of the large table
 * look at 85 candidates and more. */
static void keys_placed_at_once_find_slots_early(hotbed_backend backend) {
    static const uint64_t capacities[] = {4000, 6000, 20000, 524288};
    for (uint32_t i = 0; i < (hotbed_test_is_small() ? 3 : 4); i++) {
        large_table t;
        large_open(&t, capacities[i]);
        CHECK(place_at_once(&t, capacities[i]) < (i < 3 ? HOTBED_WALK_MOST : HOTBED_WALK_MOST / 2));
        free(t.words);
    }
}

/* --- keys of free slots ------------------------------------------------------------------------ */

/* The two keys that mark free slots of a bucket differ, and the bucket is a candidate of neither. */
static void markers_may_not_be_stored(hotbed_backend backend) {
    static const uint64_t capacities[] = {
        1, 16, 140, 1000, 3950, 3990, 4000, 8000, 70000, 1000003, 1 << 25, HOTBED_CAPACITY_MOST};
    for (uint32_t i = 0; i < 2 * sizeof capacities / sizeof capacities[0]; i++) {
        hotbed_index_range range = hotbed_index_range_make(capacities[i / 2], i % 2 != 0, 0);
        hotbed_index_range_regions(&range);
        for (uint32_t n = 0; n < 1000; n++) {
            const uint32_t middle = range.buckets / 2 - (n < range.buckets / 2 ? n : 0);
            const uint32_t of[] = {
                n % range.buckets, middle, range.buckets - 1 - n % range.buckets,
                (uint32_t)hotbed_test_below(range.buckets)};
            for (uint32_t b = 0; b < 4; b++) {
                const uint64_t empty = hotbed_index_marker(range, of[b], false);
                const uint64_t erased = hotbed_index_marker(range, of[b], true);
                CHECK(empty != erased);
                CHECK(!index_may_hold(range, empty, of[b]));
                CHECK(!index_may_hold(range, erased, of[b]));
            }
        }
    }
}

/* Creation, which writes into zeroed memory, leaves the same words as clearing. */
static void creation_marks_all_slots_as_free(hotbed_backend backend) {
    for (int i = 0; i < 200; i++) {
        uint64_t capacity = 1 + hotbed_test_below((uint64_t)1 << (4 + i % 14));
        uint64_t first = hotbed_test_below(5);
        hotbed_index_range range = hotbed_index_range_make(capacity, i % 2 == 0, first);
        range.region_bits = (uint16_t)(i % 3);
        uint64_t slots = (range.first_bucket + range.buckets) * HOTBED_BUCKET_SLOTS;
        uint64_t *keys = calloc(slots, sizeof *keys);
        CHECK(keys != NULL);
        const hotbed_index_view view = {keys, NULL, NULL};
        hotbed_index_start(view, range);
        for (uint64_t s = 0; s < first * HOTBED_BUCKET_SLOTS; s++)
            CHECK_EQ(keys[s], 0);
        for (uint32_t b = 0; b < range.buckets; b++)
            for (uint64_t s = 0; s < HOTBED_BUCKET_SLOTS; s++)
                if (keys[hotbed_index_slot(range, b) + s] != hotbed_index_marker(range, b, false))
                    CHECK_EQ(
                        keys[hotbed_index_slot(range, b) + s],
                        hotbed_index_marker(range, b, false));
        free(keys);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(candidates_are_distinct)},
    {TEST(candidates_of_large_tables_are_distinct)},
    {TEST(candidates_of_tables_with_regions_are_near)},
    {TEST(most_keys_are_in_their_first_bucket)},
    {TEST(tables_with_regions_hold_as_many_keys_as_their_capacity)},
    {TEST(keys_placed_at_once_find_slots_early)},
    {TEST(markers_may_not_be_stored)},
    {TEST(creation_marks_all_slots_as_free)},
    {NULL, NULL},
};
