/* tests/storage/test_index_model.c - the calls of hotbed/index.h against a plain model, and both backends compared.
 *
 * Random batches are inserted, found, pinned, unpinned and erased.  The model is an array with an entry for each
 * slot; it checks that a refused key had no free candidate slot and that an evicted key had the lowest score.
 */
#include "hotbed/index.h"

#include "base/hash_core.h"
#include "storage/index/index_range.h"
#include "tests/storage/index_claim.h"
#include "tests/storage/index_fixture.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

enum { TABLES = 3, MODEL_SLOTS = 1024 };

/* --- the model ------------------------------------------------------------------------------- */

typedef struct entry {
    uint64_t key, score;
    uint32_t pins;
    bool live;
} entry;

static entry model[MODEL_SLOTS];
static hotbed_index_range ranges[TABLES];

static uint64_t model_find(uint32_t table, uint64_t key) {
    uint64_t first = hotbed_index_slot(ranges[table], 0);
    for (uint64_t s = first; s < first + hotbed_index_range_slots(ranges[table]); s++)
        if (model[s].live && model[s].key == key)
            return s;
    return HOTBED_SLOT_NONE;
}

/* The lowest score of the unpinned keys among a key's candidates.  UINT64_MAX if all are pinned; 0, with *free_slot
 * set, if a candidate is free. */
static uint64_t model_lowest(uint32_t table, uint64_t key, bool *free_slot) {
    hotbed_index_range range = ranges[table];
    uint64_t lowest = UINT64_MAX;
    *free_slot = false;
    for (uint32_t bucket = 0; bucket < range.buckets; bucket++) {
        if (!index_may_hold(range, key, bucket))
            continue;
        for (uint64_t i = 0; i < HOTBED_BUCKET_SLOTS; i++) {
            const entry *e = &model[hotbed_index_slot(range, bucket) + i];
            if (!e->live)
                *free_slot = true;
            else if (e->pins == 0 && e->score < lowest)
                lowest = e->score;
        }
    }
    return lowest;
}

static uint64_t ruled(hotbed_score_rule rule, uint64_t old, uint64_t given) {
    uint64_t score = rule == HOTBED_SCORE_KEEP     ? old
                     : rule == HOTBED_SCORE_ASSIGN ? given
                                                   : old + given;
    return score < HOTBED_SCORE_MOST ? score : HOTBED_SCORE_MOST;
}

/* Check the evictions of a batch, and remove the evicted keys from the model. */
static void model_evictions(const index_fixture *b) {
    const index_batch *h = b->host;
    CHECK_EQ(h->num_evicted, index_fixture_outcomes(b, HOTBED_INDEX_EVICTED));
    for (uint64_t i = 0; i < h->num_evicted; i++) {
        entry *e = &model[h->evicted_slots[i]];
        CHECK(e->live && e->pins == 0);
        CHECK_EQ(e->key, h->evicted_keys[i]);
        CHECK_EQ(e->score, h->evicted_scores[i]);
        uint32_t table = 0;
        while (table + 1 < TABLES && h->evicted_slots[i] >= hotbed_index_slot(ranges[table + 1], 0))
            table++;
        CHECK(ranges[table].evicts != 0);
        for (uint64_t k = 0; k < h->n; k++) /* the call must not evict its own keys */
            CHECK(h->tables[k] != table || h->keys[k] != e->key);
        e->live = false;
    }
}

static void model_insert(index_fixture *b, hotbed_score_rule rule, bool with_pin) {
    uint64_t lowest = 0;
    bool has_free = false;
    if (b->host->n == 1)
        lowest = model_lowest(b->host->tables[0], b->host->keys[0], &has_free);
    CHECK_OK(index_fixture_insert(b, rule, with_pin));
    const index_batch *h = b->host;
    for (uint64_t i = 0; i < h->n; i++)
        CHECK_EQ(
            h->outcomes[i] == HOTBED_INDEX_FOUND,
            model_find(h->tables[i], h->keys[i]) != HOTBED_SLOT_NONE);
    if (h->n == 1 && h->outcomes[0] != HOTBED_INDEX_FOUND) {
        CHECK_EQ(h->outcomes[0] == HOTBED_INDEX_INSERTED, has_free);
        if (h->outcomes[0] == HOTBED_INDEX_EVICTED)
            CHECK_EQ(h->evicted_scores[0], lowest);
        CHECK_EQ(
            h->outcomes[0] == HOTBED_INDEX_PINNED,
            !has_free && ranges[h->tables[0]].evicts != 0 && lowest == UINT64_MAX);
    }
    model_evictions(b);
    for (uint64_t i = 0; i < h->n; i++) {
        hotbed_index_range range = ranges[h->tables[i]];
        if (h->slots[i] == HOTBED_SLOT_NONE) {
            CHECK_EQ(h->outcomes[i], range.evicts != 0 ? HOTBED_INDEX_PINNED : HOTBED_INDEX_FULL);
            continue;
        }
        entry *e = &model[h->slots[i]];
        if (h->outcomes[i] == HOTBED_INDEX_FOUND) {
            CHECK(e->live && e->key == h->keys[i]);
            e->score = ruled(rule, e->score, h->scores[i]);
        } else {
            CHECK(!e->live);
            *e = (entry){.key = h->keys[i], .live = true};
            e->score = ruled(HOTBED_SCORE_ASSIGN, 0, h->scores[i]);
            CHECK(index_may_hold(
                range, e->key, (uint32_t)(h->slots[i] / HOTBED_BUCKET_SLOTS - range.first_bucket)));
        }
        e->pins += with_pin ? 1 : 0;
    }
    for (uint64_t i = 0; i < h->n; i++) { /* a refused key had no free slot */
        bool free_slot;
        if (h->slots[i] != HOTBED_SLOT_NONE)
            continue;
        (void)model_lowest(h->tables[i], h->keys[i], &free_slot);
        CHECK(!free_slot);
    }
}

/* Compare keys, slots, scores and pins of every table with the model. */
static void model_check(index_fixture *b) {
    for (uint32_t t = 0; t < TABLES; t++) {
        uint64_t live = 0, pinned = 0;
        uint64_t first = hotbed_index_slot(ranges[t], 0);
        CHECK_OK(hotbed_index_export(
            b->index, t, INDEX_BATCH_MOST, b->device->keys, b->device->slots, b->device->scores,
            b->device->counts, b->stream));
        CHECK_OK(index_fixture_download(b));
        for (uint64_t i = 0; i < b->host->counts[0]; i++) {
            const entry *e = &model[b->host->slots[i]];
            CHECK(e->live);
            CHECK_EQ(e->key, b->host->keys[i]);
            CHECK_EQ(e->score, b->host->scores[i]);
        }
        for (uint64_t s = first; s < first + hotbed_index_range_slots(ranges[t]); s++) {
            live += model[s].live ? 1 : 0;
            pinned += model[s].live && model[s].pins > 0 ? 1 : 0;
        }
        CHECK_EQ(b->host->counts[0], live);
        CHECK_EQ(b->host->counts[1], pinned);
    }
}

/* Make a batch of keys from a small key space, distinct within their table. */
static void random_keys(index_fixture *b, uint64_t n, uint64_t space) {
    static uint64_t edges[INDEX_BATCH_MOST];
    index_batch *h = b->host;
    uint64_t num_edges = index_fixture_edge_keys(edges);
    memset(h, 0, sizeof *h);
    while (h->n < n) {
        uint32_t table = (uint32_t)hotbed_test_below(TABLES);
        uint64_t number = hotbed_test_below(space);
        uint64_t key = number < num_edges ? edges[number] : hotbed_hash_u64(number);
        bool twice = false;
        for (uint64_t i = 0; i < h->n; i++)
            twice = twice || (h->keys[i] == key && h->tables[i] == table);
        if (twice)
            continue;
        h->keys[h->n] = key;
        h->tables[h->n] = table;
        h->scores[h->n++] = hotbed_test_below(30);
    }
}

static void model_erase(index_fixture *b) {
    index_fixture_erase(b);
    for (uint64_t i = 0; i < b->host->n; i++) {
        uint64_t slot = model_find(b->host->tables[i], b->host->keys[i]);
        bool gone = slot != HOTBED_SLOT_NONE && model[slot].pins == 0;
        CHECK_EQ(b->host->outcomes[i], gone);
        if (gone)
            model[slot].live = false;
    }
}

static void model_pin(index_fixture *b, bool on) {
    index_fixture_find(b);
    for (uint64_t i = 0; i < b->host->n; i++) {
        uint64_t slot = model_find(b->host->tables[i], b->host->keys[i]);
        CHECK_EQ(b->host->slots[i], slot);
        if (slot != HOTBED_SLOT_NONE && (on || model[slot].pins > 0))
            model[slot].pins += on ? 1U : UINT32_MAX;
    }
    index_fixture_pin(b, on);
}

static void random_operations_equal_the_model(hotbed_backend backend) {
    index_fixture b;
    const uint64_t capacities[TABLES] = {100, 60, 400};
    const hotbed_evict evict[TABLES] = {
        HOTBED_EVICT_NEVER, HOTBED_EVICT_LOWEST, HOTBED_EVICT_LOWEST};
    index_fixture_open(&b, backend, TABLES, capacities, evict);
    memset(model, 0, sizeof model);
    uint64_t buckets = 0;
    for (uint32_t t = 0; t < TABLES; t++) {
        ranges[t] = hotbed_index_range_make(capacities[t], evict[t] != 0, buckets);
        buckets += ranges[t].buckets;
    }
    CHECK(buckets * HOTBED_BUCKET_SLOTS <= MODEL_SLOTS);
    for (int step = 0; step < 250; step++) {
        uint64_t what = hotbed_test_below(20);
        random_keys(&b, what % 2 == 0 ? 1 : 1 + hotbed_test_below(80), 900);
        if (what < 12)
            model_insert(&b, (hotbed_score_rule)hotbed_test_below(3), hotbed_test_below(6) == 0);
        else if (what < 14)
            model_erase(&b);
        else if (what < 15)
            model_pin(&b, true);
        else if (what < 19)
            model_pin(&b, false);
        else if (hotbed_test_below(10) == 0) {
            uint32_t table = (uint32_t)hotbed_test_below(TABLES);
            CHECK_OK(hotbed_index_clear(b.index, table, b.stream));
            memset(
                model + hotbed_index_slot(ranges[table], 0), 0,
                hotbed_index_range_slots(ranges[table]) * sizeof model[0]);
        }
        model_check(&b);
    }
    index_fixture_close(&b);
}

/* --- backends -------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void both_backends_keep_the_same_keys(hotbed_backend backend) {
    enum { N = 900 };
    index_fixture b[2];
    const hotbed_backend backends[2] = {HOTBED_BACKEND_HOST, backend};
    for (int i = 0; i < 2; i++) {
        index_fixture_open_one(&b[i], backends[i], INDEX_BATCH_MOST, HOTBED_EVICT_NEVER);
        for (uint64_t round = 0; round < 4; round++) {
            index_fixture_number_keys(&b[i], round * 300, N);
            CHECK_OK(index_fixture_insert(&b[i], HOTBED_SCORE_ADD, round % 2 == 1));
            index_fixture_number_keys(&b[i], round * 300, 100);
            index_fixture_erase(&b[i]);
        }
        CHECK_OK(hotbed_index_export(
            b[i].index, 0, INDEX_BATCH_MOST, b[i].device->keys, NULL, NULL, b[i].device->counts,
            b[i].stream));
        CHECK_OK(index_fixture_download(&b[i]));
        qsort(b[i].host->keys, b[i].host->counts[0], sizeof(uint64_t), by_value);
    }
    CHECK_EQ(b[0].host->counts[0], b[1].host->counts[0]);
    CHECK_EQ(b[0].host->counts[1], b[1].host->counts[1]);
    CHECK_BYTES(b[0].host->keys, b[1].host->keys, b[0].host->counts[0] * sizeof(uint64_t));
    index_fixture_close(&b[0]);
    index_fixture_close(&b[1]);
}

const hotbed_test hotbed_tests[] = {
    {TEST(random_operations_equal_the_model)},
    {TEST(both_backends_keep_the_same_keys)},
    {NULL, NULL},
};
