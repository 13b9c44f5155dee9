/* tests/dist/test_dist.c - input dist and output dist of several ranks on one device, against a
 * plain model.
 *
 * Each rank has its own arrays; a message is written directly to where the receiving rank reads it.
 */
#include "dist/exchange/dist.h"

#include "tests/dist/arrays.h"

#include <stdlib.h>

enum { RANKS = 33, FEATURES = 5, BATCH = 7, KEYS = 2500 };

/* One rank: its batch, and the batch that the model expects it to receive. */
typedef struct rank {
    uint32_t n, starts[FEATURES * BATCH + 1];
    uint64_t keys[KEYS];
    float weights[KEYS];
    uint64_t counts[KEYS];
    hotbed_bucketize_view b;
    hotbed_gather_view g;
    void *to, *from;
} rank;

typedef struct world {
    arrays a;
    uint32_t size, features, batch_size;
    bool weighted, counted, by_sample;
    uint64_t capacity; /* 0: messages of exact size */
    hotbed_feature_route routes[FEATURES];
    rank ranks[RANKS];
    uint8_t *messages[RANKS][RANKS]; /* [to][from], in device memory */
} world;

static world *world_make(hotbed_backend backend, uint32_t size, uint32_t features, uint32_t batch) {
    world *w = calloc(1, sizeof *w);
    CHECK(w != NULL);
    w->a = arrays_open(backend);
    w->size = size;
    w->features = features;
    w->batch_size = batch;
    return w;
}

static void world_free(world *w) {
    arrays_close(&w->a);
    free(w);
}

static hotbed_message_shape shape_of(const world *w) {
    return (hotbed_message_shape){
        w->features * w->batch_size, w->weighted ? 1 : 0, w->counted ? 1 : 0};
}

/* Take a part of one block per rank: struct arrays holds a limited number of arrays. */
static void *take(uint8_t **at, uint64_t bytes) {
    void *p = *at;
    *at += hotbed_round16(bytes);
    return p;
}

static void rank_upload(world *w, uint32_t r) {
    rank *k = &w->ranks[r];
    uint32_t rows = w->features * w->batch_size;
    uint64_t received = (uint64_t)w->size * KEYS, bags = (uint64_t)rows * w->size;
    uint8_t *at = arrays_alloc(
        &w->a, 48 * KEYS + 20 * received + 40 * bags + 1000 * (uint64_t)w->size + 100000);
    uint64_t *keys = take(&at, sizeof k->keys);
    uint32_t *starts = take(&at, sizeof k->starts);
    float *weights = take(&at, sizeof k->weights);
    uint64_t *key_counts = take(&at, sizeof k->counts);
    hotbed_feature_route *routes = take(&at, sizeof w->routes);
    CHECK_OK(hotbed_copy(keys, k->keys, sizeof k->keys, w->a.stream));
    CHECK_OK(hotbed_copy(starts, k->starts, sizeof k->starts, w->a.stream));
    CHECK_OK(hotbed_copy(weights, k->weights, sizeof k->weights, w->a.stream));
    CHECK_OK(hotbed_copy(key_counts, k->counts, sizeof k->counts, w->a.stream));
    CHECK_OK(hotbed_copy(routes, w->routes, sizeof w->routes, w->a.stream));
    uint64_t pointers = w->size * sizeof(void *);
    uint8_t **to = take(&at, pointers), **from = take(&at, pointers);
    uint8_t *to_host[RANKS], *from_host[RANKS];
    for (uint32_t p = 0; p < w->size; p++) {
        to_host[p] = w->messages[p][r];
        from_host[p] = w->messages[r][p];
    }
    CHECK_OK(hotbed_copy(to, to_host, pointers, w->a.stream));
    CHECK_OK(hotbed_copy(from, from_host, pointers, w->a.stream));
    CHECK_OK(hotbed_stream_sync(w->a.stream));
    k->b = (hotbed_bucketize_view){
        .keys = keys,
        .weights = weights,
        .key_counts = key_counts,
        .starts = starts,
        .routes = routes,
        .bound = KEYS,
        .batch_size = w->batch_size,
        .world = w->size,
        .targets = take(&at, KEYS * 4),
        .tile_starts = take(&at, hotbed_bucketize_words(w->size, KEYS) * 4),
        .sorted = take(&at, KEYS * 4),
        .places = take(&at, KEYS * 4),
        .ranks = take(&at, (w->size + 1) * 4),
        .counts = take(&at, w->size * 4),
        .overflow = take(&at, 4),
        .to = to,
        .capacity = w->capacity,
        .shape = shape_of(w),
    };
    k->g = (hotbed_gather_view){
        .from = from,
        .capacity = w->capacity,
        .capacities = take(&at, w->size * 4),
        .capacity_stride = 1,
        .shape = shape_of(w),
        .num_features = w->features,
        .batch_size = w->batch_size,
        .world = w->size,
        .segments = take(&at, ((uint64_t)w->features * w->size + 1) * 4),
        .firsts = take(&at, (uint64_t)w->features * w->size * 4),
        .overflow = take(&at, 4),
        .keys = take(&at, received * 8),
        .weights = take(&at, received * 4),
        .counts = take(&at, received * 4),
        .offsets = take(&at, (bags + 1) * 8),
        .by_sample = w->by_sample ? 1 : 0,
        .bound = received,
    };
}

/* Run the input dist of all ranks. */
static void world_run(world *w) {
    uint64_t bytes = hotbed_message_bytes(shape_of(w), KEYS);
    uint8_t *all = arrays_alloc(&w->a, bytes * w->size * w->size);
    for (uint32_t p = 0; p < w->size; p++)
        for (uint32_t r = 0; r < w->size; r++)
            w->messages[p][r] = all + ((uint64_t)p * w->size + r) * bytes;
    size_t scratch_bytes = hotbed_dist_scratch(w->a.stream, w->size, KEYS);
    void *scratch = arrays_alloc(&w->a, scratch_bytes);
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(w->a.stream);
    for (uint32_t r = 0; r < w->size; r++) {
        rank_upload(w, r);
        CHECK_OK(hotbed_fill(w->ranks[r].b.overflow, 0, 4, w->a.stream));
        CHECK_OK(hotbed_fill(w->ranks[r].g.overflow, 0, 4, w->a.stream));
        CHECK_OK(hotbed_bucketize(&w->ranks[r].b, scratch, scratch_bytes, w->a.stream));
        CHECK_OK(kernels->place(&w->ranks[r].b, w->a.stream));
    }
    for (uint32_t r = 0; r < w->size; r++) {
        uint32_t *capacities = (uint32_t *)(uintptr_t)w->ranks[r].g.capacities;
        for (uint32_t p = 0; p < w->size; p++)
            CHECK_OK(hotbed_copy(capacities + p, w->ranks[p].b.counts + r, 4, w->a.stream));
        CHECK_OK(hotbed_gather(&w->ranks[r].g, w->a.stream));
    }
    CHECK_OK(hotbed_stream_sync(w->a.stream));
}

/* Append the keys, weights and counts of row r of rank `from` that rank `to` must receive, at *n. */
static void model_row(
    const world *w, uint32_t to, uint32_t from, uint32_t r, uint64_t *keys, float *weights,
    uint32_t *counts, uint64_t *n) {
    const rank *k = &w->ranks[from];
    const hotbed_feature_route *route = &w->routes[r / w->batch_size];
    for (uint32_t i = k->starts[r]; i < k->starts[r + 1]; i++)
        if (hotbed_route_rank(&route->route, k->keys[i]) == to) {
            keys[*n] =
                route->local != 0 ? hotbed_route_local(&route->route, k->keys[i]) : k->keys[i];
            weights[*n] = k->weights[i];
            counts[(*n)++] = (uint32_t)k->counts[i];
        }
}

static void check_received(world *w, bool empty) {
    uint64_t bags = (uint64_t)w->features * w->size * w->batch_size, most = w->size * KEYS;
    uint64_t *want = calloc(most + 1, 8), *got = calloc(most + 1, 8);
    float *want_weights = calloc(most + 1, 4), *got_weights = calloc(most + 1, 4);
    uint32_t *want_counts = calloc(most + 1, 4), *got_counts = calloc(most + 1, 4);
    int64_t *offsets = calloc(bags + 1, 8);
    CHECK(want_counts != NULL && got_counts != NULL && offsets != NULL);
    CHECK(want != NULL && got != NULL && want_weights != NULL && got_weights != NULL);
    for (uint32_t to = 0; to < w->size; to++) {
        const hotbed_gather_view *g = &w->ranks[to].g;
        uint64_t n = 0, bag = 0;
        uint32_t overflow;
        arrays_read(&w->a, &overflow, g->overflow, 4);
        CHECK_EQ(overflow, empty);
        arrays_read(&w->a, offsets, g->offsets, (w->by_sample ? bags + 1 : w->features + 1U) * 8);
        for (uint32_t f = 0; f < w->features; f++) {
            if (!w->by_sample)
                CHECK_EQ(offsets[f], empty ? 0 : n);
            for (uint32_t from = 0; from < w->size; from++)
                for (uint32_t b = 0; b < w->batch_size; b++, bag++) {
                    if (w->by_sample)
                        CHECK_EQ(offsets[bag], empty ? 0 : n);
                    model_row(
                        w, to, from, f * w->batch_size + b, want, want_weights, want_counts, &n);
                }
        }
        n = empty ? 0 : n;
        CHECK_EQ(offsets[w->by_sample ? bags : w->features], n);
        arrays_read(&w->a, got, g->keys, n * 8);
        CHECK_BYTES(got, want, n * 8);
        arrays_read(&w->a, got_weights, g->weights, n * 4);
        if (w->weighted)
            CHECK_BYTES(got_weights, want_weights, n * 4);
        arrays_read(&w->a, got_counts, g->counts, n * 4);
        if (w->counted)
            CHECK_BYTES(got_counts, want_counts, n * 4);
    }
    free(want), free(got), free(want_weights), free(got_weights), free(offsets);
    free(want_counts), free(got_counts);
}

/* places is a permutation that leads back to each key; counts are summed. */
static void check_places(world *w) {
    for (uint32_t r = 0; r < w->size; r++) {
        rank *k = &w->ranks[r];
        uint32_t places[KEYS], ranks[RANKS + 1], sorted[KEYS];
        bool seen[KEYS] = {false};
        arrays_read(&w->a, places, k->b.places, sizeof places);
        arrays_read(&w->a, sorted, k->b.sorted, sizeof sorted);
        arrays_read(&w->a, ranks, k->b.ranks, (w->size + 1) * 4);
        CHECK_EQ(ranks[0], 0);
        CHECK_EQ(ranks[w->size], k->n);
        for (uint32_t row = 0; row < w->features * w->batch_size; row++)
            for (uint32_t i = k->starts[row]; i < k->starts[row + 1]; i++) {
                uint32_t p = hotbed_route_rank(&w->routes[row / w->batch_size].route, k->keys[i]);
                CHECK(places[i] >= ranks[p] && places[i] < ranks[p + 1]);
                CHECK(!seen[places[i]]);
                seen[places[i]] = true;
                CHECK_EQ(sorted[places[i]], i);
            }
    }
}

static void fill_rank(world *w, uint32_t r, uint32_t most) {
    rank *k = &w->ranks[r];
    const uint64_t edges[4] = {(uint64_t)INT64_MIN, UINT64_MAX, 0, INT64_MAX};
    uint32_t rows = w->features * w->batch_size, empty = (uint32_t)hotbed_test_below(4);
    for (uint32_t row = 0; row < rows; row++) {
        k->starts[row] = k->n;
        uint32_t length = most == 0 ? 0 : (uint32_t)hotbed_test_below(most + 1);
        if (row / w->batch_size == empty)
            length = 0;
        for (uint32_t i = 0; i < length && k->n < KEYS; i++, k->n++) {
            k->keys[k->n] = hotbed_test_below(5) == 0
                                ? edges[hotbed_test_below(4)]
                                : hotbed_test_random() >> hotbed_test_below(64);
            k->weights[k->n] = hotbed_test_float();
            k->counts[k->n] = hotbed_test_random() >> (32 + hotbed_test_below(32));
        }
    }
    k->starts[rows] = k->n;
}

static void random_world(hotbed_backend backend, uint32_t size, uint64_t capacity) {
    world *w = world_make(
        backend, size, 1 + (uint32_t)hotbed_test_below(FEATURES),
        1 + (uint32_t)hotbed_test_below(BATCH));
    w->weighted = hotbed_test_below(2) == 0;
    w->counted = hotbed_test_below(2) == 0;
    w->by_sample = hotbed_test_below(2) == 0;
    w->capacity = capacity;
    for (uint32_t f = 0; f < w->features; f++) {
        CHECK_OK(hotbed_route_init(
            &w->routes[f].route, (hotbed_route_kind)hotbed_test_below(3), size,
            1 + hotbed_test_below(1000)));
        w->routes[f].local = hotbed_test_below(2);
    }
    for (uint32_t r = 0; r < size; r++)
        fill_rank(w, r, hotbed_test_below(4) == 0 ? 0 : hotbed_test_below(3) == 0 ? 120 : 12);
    world_run(w);
    check_places(w);
    check_received(w, false);
    world_free(w);
}

/* The host walks rows and keys in order; a GPU searches the row of each key.  Run both on the host
 * and compare. */
static void searches_equal_walks(hotbed_backend backend) {
    if (backend != HOTBED_BACKEND_HOST) {
        hotbed_test_skip("the arrays are read by the host");
        return;
    }
    for (int round = 0; round < 8; round++) {
        world *w = world_make(backend, 1 + (uint32_t)hotbed_test_below(5), FEATURES, BATCH);
        w->capacity = hotbed_test_below(2) == 0 ? 0 : KEYS;
        w->weighted = true;
        for (uint32_t f = 0; f < w->features; f++)
            CHECK_OK(
                hotbed_route_init(&w->routes[f].route, HOTBED_ROUTE_HASH_ROUND_ROBIN, w->size, 1));
        for (uint32_t r = 0; r < w->size; r++)
            fill_rank(w, r, round == 0 ? 0 : round % 2 == 0 ? 120 : 12);
        world_run(w);
        uint64_t bytes = hotbed_message_bytes(shape_of(w), KEYS) * w->size * w->size;
        uint8_t *messages = w->messages[0][0], *walked = malloc(bytes);
        CHECK(walked != NULL);
        memcpy(walked, messages, bytes);
        for (uint32_t r = 0; r < w->size; r++) {
            const hotbed_bucketize_view *b = &w->ranks[r].b;
            for (uint32_t p = 0; p < w->size; p++) {
                uint32_t *starts = hotbed_message_starts(hotbed_bucketize_message(b, p));
                memset(starts, 0xff, (b->shape.rows + 1) * sizeof *starts);
                for (uint32_t row = 0; row <= b->shape.rows; row++)
                    hotbed_bucketize_start(b, p, row);
            }
            for (uint32_t i = 0; i < w->ranks[r].n; i++) {
                uint32_t low, high;
                hotbed_bucketize_features(b, i / HOTBED_BUCKETIZE_TILE, &low, &high);
                const uint32_t f = hotbed_bucketize_feature(b, low, high, i);
                CHECK_EQ(f, hotbed_bucketize_feature(b, 0, w->features, i));
                CHECK_EQ(b->targets[i], hotbed_bucketize_target(b, i, f));
            }
        }
        CHECK_BYTES(messages, walked, bytes);
        free(walked);
        world_free(w);
    }
}

static const uint32_t sizes[] = {1, 2, 3, 4, 8, 33};

static void messages_of_exact_size_equal_the_model(hotbed_backend backend) {
    const int rounds = hotbed_test_is_small() ? 1 : 4;
    for (int i = 0; i < 6; i++)
        for (int round = 0; round < rounds; round++)
            random_world(backend, sizes[i], 0);
}

static void messages_of_fixed_size_equal_the_model(hotbed_backend backend) {
    const int rounds = hotbed_test_is_small() ? 1 : 4;
    for (int i = 0; i < 6; i++)
        for (int round = 0; round < rounds; round++)
            random_world(backend, sizes[i], KEYS);
}

/* One rank has one key too many for one other rank: all ranks see the overflow, and none uses the
 * messages. */
static void every_rank_sees_an_overflow(hotbed_backend backend) {
    for (uint32_t size = 1; size <= 4; size++)
        for (int over = 0; over < 2; over++) {
            world *w = world_make(backend, size, 2, 3);
            w->by_sample = true;
            w->capacity = 9;
            for (uint32_t f = 0; f < 2; f++)
                CHECK_OK(hotbed_route_init(&w->routes[f].route, HOTBED_ROUTE_ROUND_ROBIN, size, 0));
            for (uint32_t r = 0; r < size; r++)
                fill_rank(w, r, 1);
            rank *k = &w->ranks[size - 1];
            k->n = 9 + (uint32_t)over;
            for (uint32_t i = 0; i < k->n; i++)
                k->keys[i] = (uint64_t)i * size;
            k->starts[0] = 0;
            for (uint32_t row = 1; row <= 6; row++)
                k->starts[row] = k->n;
            world_run(w);
            check_received(w, over == 1);
            world_free(w);
        }
}

/* Damage a message as a failed exchange does: from some byte on it has the bytes of another
 * message, or random ones. */
static void spoil(world *w, uint32_t to, uint32_t from, int round) {
    uint64_t bytes = hotbed_message_bytes(shape_of(w), w->capacity);
    uint64_t cut = hotbed_test_below(hotbed_message_keys_at(shape_of(w)) / 4) * 4;
    uint64_t left = bytes - cut;
    uint8_t *message = w->messages[to][from] + cut;
    uint32_t junk[1024];
    CHECK(bytes <= sizeof junk);
    for (size_t i = 0; i < 1024; i++)
        junk[i] = (uint32_t)(hotbed_test_random() >> (32 + hotbed_test_below(32)));
    if (round % 3 == 0)
        CHECK_OK(hotbed_copy(message, junk, left, w->a.stream));
    else if (round % 3 == 1)
        CHECK_OK(hotbed_fill(message, 0xff, left, w->a.stream));
    else
        CHECK_OK(hotbed_copy(message, w->messages[from][to] + cut, left, w->a.stream));
    CHECK_OK(hotbed_stream_sync(w->a.stream));
}

/* Gather keys and find their rows as on a stream whose exchange failed.  Arrays have the exact required size, so that
 * sanitizers see accesses outside of them, and each row must be among those for its requester.  Returns whether the
 * batch counts as empty. */
static bool use_messages(world *w, hotbed_gather_view g) {
    const hotbed_dist_kernels *kernels = hotbed_dist_kernels_of(w->a.stream);
    uint32_t segments = hotbed_gather_segments(&g), overflow, starts[FEATURES * 3 + 1];
    uint64_t part = w->capacity * 16;
    uint8_t *rows = arrays_alloc(&w->a, w->size * part), *ends[3];
    for (uint32_t p = 0; p < w->size; p++)
        ends[p] = rows + p * part;
    g.bound = w->size * w->capacity;
    g.keys = arrays_alloc(&w->a, g.bound * 8);
    g.weights = arrays_alloc(&w->a, g.bound * 4);
    g.counts = arrays_alloc(&w->a, g.bound * 4);
    hotbed_deliver_view d = {
        .segments = g.segments,
        .firsts = g.firsts,
        .num_segments = segments,
        .overflow = g.overflow,
        .received_bound = g.bound,
        .world = w->size,
        .rows = arrays_copy(&w->a, ends, sizeof ends),
        .row_bytes = 16,
    };
    CHECK_OK(hotbed_fill(g.overflow, 0, 4, w->a.stream));
    CHECK_OK(hotbed_gather(&g, w->a.stream));
    arrays_read(&w->a, &overflow, g.overflow, 4);
    arrays_read(&w->a, starts, g.segments, ((uint64_t)segments + 1) * 4);
    if (overflow != 0)
        return true;
    CHECK(starts[segments] <= g.bound && g.bound <= KEYS * 3);
    uint32_t places[KEYS * 3] = {0};
    for (uint32_t m = 0; m < starts[segments]; m++)
        places[m] = m;
    uint32_t *at = arrays_copy(&w->a, places, sizeof places);
    CHECK_OK(kernels->find_places(&d, rows, g.segments + segments, at, w->a.stream));
    arrays_read(&w->a, places, at, sizeof places);
    for (uint32_t q = 0; q < segments; q++)
        for (uint32_t m = starts[q]; m < starts[q + 1]; m++)
            CHECK_EQ(places[m] / w->capacity, q % w->size);
    return false;
}

static void damaged_messages_do_no_harm(hotbed_backend backend) {
    int empty = 0;
    const int rounds = hotbed_test_is_small() ? 15 : 60;
    for (int round = 0; round < rounds; round++) {
        world *w = world_make(backend, 3, 4, 5);
        w->weighted = w->counted = true;
        w->by_sample = round % 2 == 0;
        w->capacity = 60;
        for (uint32_t f = 0; f < 4; f++)
            CHECK_OK(hotbed_route_init(&w->routes[f].route, HOTBED_ROUTE_ROUND_ROBIN, 3, 0));
        for (uint32_t r = 0; r < 3; r++)
            fill_rank(w, r, 4);
        world_run(w);
        check_received(w, false);
        CHECK(!use_messages(w, w->ranks[1].g));
        spoil(w, 1, 2, round);
        empty += use_messages(w, w->ranks[1].g);
        world_free(w);
    }
    CHECK(empty >= rounds / 3);
}

/* Two tables of 10 and 6 rows on two ranks with two samples each, worked out by hand. */
typedef struct known {
    hotbed_route_kind kind;
    uint32_t starts[2][2][5]; /* [from][to] */
    uint64_t keys[2][6];      /* of each rank, by target */
    uint32_t places[2][6];
    int64_t received_offsets[2][9]; /* [to] */
    uint64_t received[2][8];
} known;

static void known_messages(hotbed_backend backend) {
    static const known cases[3] = {
        {HOTBED_ROUTE_CONTINUOUS,
         {{{0, 1, 2, 3, 4}, {0, 1, 1, 1, 2}}, {{0, 0, 1, 1, 1}, {0, 0, 2, 4, 4}}},
         {{1, 4, 0, 2, 2, 2}, {3, 4, 2, 2, 2}},
         {{4, 0, 1, 2, 5, 3}, {1, 0, 2, 3, 4}},
         {{0, 1, 2, 2, 3, 4, 5, 5, 5}, {0, 1, 1, 1, 3, 3, 4, 6, 6}},
         {{1, 4, 3, 0, 2}, {2, 4, 2, 2, 2, 2}}},
        {HOTBED_ROUTE_ROUND_ROBIN,
         {{{0, 0, 1, 2, 3}, {0, 2, 2, 2, 3}}, {{0, 0, 0, 0, 0}, {0, 0, 3, 5, 5}}},
         {{4, 0, 2, 7, 1, 5}, {9, 3, 7, 5, 5}},
         {{3, 4, 0, 1, 5, 2}, {0, 1, 2, 3, 4}},
         {{0, 0, 1, 1, 1, 2, 3, 3, 3}, {0, 2, 2, 2, 5, 5, 6, 8, 8}},
         {{4, 0, 2}, {7, 1, 9, 3, 7, 5, 5, 5}}},
        {HOTBED_ROUTE_HASH_ROUND_ROBIN,
         {{{0, 1, 1, 2, 2}, {0, 1, 2, 2, 4}}, {{0, 0, 1, 1, 1}, {0, 0, 2, 4, 4}}},
         {{1, 0, 7, 4, 5, 2}, {3, 9, 7, 5, 5}},
         {{2, 0, 3, 1, 4, 5}, {1, 0, 2, 3, 4}},
         {{0, 1, 1, 1, 2, 3, 3, 3, 3}, {0, 1, 2, 2, 4, 4, 6, 8, 8}},
         {{1, 3, 0}, {7, 4, 9, 7, 5, 2, 5, 5}}},
    };
    for (int c = 0; c < 3; c++) {
        const known *k = &cases[c];
        world *w = world_make(backend, 2, 2, 2);
        w->by_sample = true;
        const uint64_t keys[2][6] = {{7, 1, 4, 0, 5, 2}, {9, 3, 7, 5, 5}};
        const uint32_t starts[2][5] = {{0, 2, 3, 4, 6}, {0, 0, 3, 5, 5}};
        for (uint32_t f = 0; f < 2; f++) {
            const uint64_t rows = f == 0 ? 10 : 6;
            CHECK_OK(hotbed_route_init(
                &w->routes[f].route, k->kind, 2, k->kind == HOTBED_ROUTE_ROUND_ROBIN ? 0 : rows));
            w->routes[f].local = 1;
        }
        for (uint32_t r = 0; r < 2; r++) {
            w->ranks[r].n = starts[r][4];
            memcpy(w->ranks[r].keys, keys[r], sizeof keys[r]);
            memcpy(w->ranks[r].starts, starts[r], sizeof starts[r]);
        }
        world_run(w);
        for (uint32_t r = 0; r < 2; r++) {
            uint32_t places[6], ranks[3];
            arrays_read(&w->a, places, w->ranks[r].b.places, sizeof places);
            arrays_read(&w->a, ranks, w->ranks[r].b.ranks, sizeof ranks);
            CHECK_BYTES(places, k->places[r], w->ranks[r].n * sizeof *places);
            for (uint32_t p = 0; p < 2; p++) {
                uint32_t got[5];
                uint64_t sent[6];
                uint8_t *message = w->messages[p][r];
                uint64_t n = ranks[p + 1] - ranks[p];
                arrays_read(&w->a, got, hotbed_message_starts(message), sizeof got);
                CHECK_BYTES(got, k->starts[r][p], sizeof got);
                arrays_read(&w->a, sent, hotbed_message_keys(message, shape_of(w)), n * 8);
                CHECK_BYTES(sent, k->keys[r] + ranks[p], n * 8);
            }
            int64_t offsets[9];
            uint64_t received[8];
            arrays_read(&w->a, offsets, w->ranks[r].g.offsets, sizeof offsets);
            CHECK_BYTES(offsets, k->received_offsets[r], sizeof offsets);
            arrays_read(&w->a, received, w->ranks[r].g.keys, (uint64_t)offsets[8] * 8);
            CHECK_BYTES(received, k->received[r], (uint64_t)offsets[8] * 8);
        }
        world_free(w);
    }
}

/* Sizes larger than any buffer of a test: the arithmetic only. */
static void sizes_beyond_2_to_the_31(hotbed_backend backend) {
    hotbed_message_shape shape = {1U << 30, 1, 1};
    CHECK_EQ(
        hotbed_message_bytes(shape, 1U << 30),
        16 + (((uint64_t)1 << 32) + 16) + ((uint64_t)1 << 33) + 2 * ((uint64_t)1 << 32));
    uint32_t counts[3] = {1U << 30, 1U << 30, 7};
    static uint8_t base[1];
    uint8_t *to[3];
    hotbed_aim_view aim = {
        .base = base, .counts = counts, .stride = 1, .to = to, .row_bytes = 8192, .world = 3};
    hotbed_aim(&aim);
    CHECK_EQ((uintptr_t)to[2] - (uintptr_t)base, (uint64_t)1 << 44);
    const uint32_t segments[2] = {0, 1U << 30}, firsts[1] = {0};
    hotbed_deliver_view d = {
        .segments = segments,
        .firsts = firsts,
        .num_segments = 1,
        .world = 1,
        .rows = to,
        .row_bytes = 8192};
    CHECK_EQ(
        (uintptr_t)hotbed_owner_row(&d, (1U << 30) - 1) - (uintptr_t)base, (((uint64_t)1 << 30) - 1)
                                                                               << 13);
}

const hotbed_test hotbed_tests[] = {
    {TEST(known_messages)},
    {TEST(searches_equal_walks)},
    {TEST(messages_of_exact_size_equal_the_model)},
    {TEST(messages_of_fixed_size_equal_the_model)},
    {TEST(every_rank_sees_an_overflow)},
    {TEST(damaged_messages_do_no_harm)},
    {TEST(sizes_beyond_2_to_the_31)},
    {NULL, NULL},
};
