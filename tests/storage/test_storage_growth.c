/* tests/storage/test_storage_growth.c - contract of hotbed/storage.h: tables that grow while they are trained.
 *
 * Rows and outputs must equal the model's across growths.  Also tested: slots, memory, graphs, polls, eviction,
 * concurrent streams, and documented errors.
 */
#include "hotbed/storage.h"

#include "hotbed/export.h"
#include "hotbed/stats.h"
#include "storage/storage.h"
#include "tests/storage/fixture.h"
#include "tests/support/fault.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIRST = 40, MOST = 1500, BATCH = 16, MAX_KEYS = 64, DEPTH_MOST = 8, KEYS = 1200 };

static void growing(setup *s, uint32_t num_tables) {
    setup_start(s, num_tables, 5, FIRST);
    for (uint32_t t = 0; t < num_tables; t++)
        s->tables[t].max_capacity = MOST;
    s->options.optimizer.kind = HOTBED_OPT_ADAM;
}

static hotbed_table_info info_of(const fixture *r, uint32_t table) {
    hotbed_table_info info = {.size = sizeof info};
    CHECK_OK(hotbed_storage_table(r->storage, table, &info));
    return info;
}

/* Prefetch in the model, a batch with one key per bag. */
static void model_prefetch(test_ticket *l) {
    hotbed_batch host = l->host;
    host.offsets = NULL;
    host.weights = NULL;
    oracle_prefetch(l->r->model, &host, l->model, NULL);
}

/* Grow every table to `capacity`, and check that keys and pins stay. */
static void grow_all(fixture *r, uint64_t capacity) {
    uint64_t pinned = fixture_pinned(r);
    for (uint32_t t = 0; t < hotbed_storage_num_tables(r->storage); t++) {
        uint64_t keys = fixture_size(r, t);
        CHECK_OK(hotbed_storage_grow(r->storage, t, capacity, r->stream));
        CHECK_EQ(fixture_size(r, t), keys);
        CHECK_EQ(info_of(r, t).capacity, capacity);
    }
    CHECK_EQ(fixture_pinned(r), pinned);
}

/* Train with batches prefetched `depth` steps ahead, and grow the tables in between. */
static void train_and_grow(hotbed_backend backend, uint32_t depth) {
    setup s;
    fixture r;
    test_ticket tickets[DEPTH_MOST];
    rng random = rng_start(depth);
    growing(&s, 2);
    s.tables[1].dim = 8;
    s.options.pooling = HOTBED_POOL_SUM;
    fixture_open(&r, backend, &s.options);
    for (uint32_t i = 0; i < depth; i++)
        test_ticket_open(&r, &tickets[i], MAX_KEYS, BATCH);
    uint64_t capacity = FIRST;
    for (uint32_t step = 0; step < 40 + depth; step++) {
        test_ticket *l = &tickets[step % depth];
        if (step >= depth) {
            test_ticket_check(l);
            test_ticket_forward(l);
            test_ticket_backward(l, &random);
        }
        if (step % 8 == 7 && capacity < MOST) {
            capacity = 2 * capacity < MOST ? 2 * capacity : MOST;
            grow_all(&r, capacity);
        }
        if (step < 40) {
            const batch_shape how = {
                .batch_size = BATCH, .max_bag = 3, .key_space = capacity, .weights = true};
            test_ticket_fill(l, &random, &how);
            test_ticket_prefetch(l);
        }
        CHECK_OK(hotbed_stream_sync(r.stream)); /* no key is refused */
        if (step % 10 == 0)
            test_ticket_eval(l);
    }
    CHECK(info_of(&r, 0).segments >= 5);
    fixture_check(&r);
    fixture_close(&r);
}

static void tables_grow_under_tickets_at_depth_1_to_8(hotbed_backend backend) {
    for (uint32_t depth = 1; depth <= DEPTH_MOST; depth += hotbed_test_is_small() ? 7 : 1)
        train_and_grow(backend, depth);
}

/* --- slots ----------------------------------------------------------------------------------- */

/* A storage of one table without a model, and a ticket for up to KEYS keys. */
typedef struct plain {
    fixture r;
    hotbed_ticket *ticket;
    uint64_t *device_keys;
    uint64_t keys[KEYS], slots[KEYS];
} plain;

static void plain_open(plain *p, hotbed_backend backend, const setup *s) {
    fixture_open_bare(&p->r, backend, &s->options);
    for (uint64_t i = 0; i < KEYS; i++) {
        rng key = {i};
        p->keys[i] = rng_next(&key);
    }
    p->device_keys = fixture_copy(&p->r, p->keys, sizeof p->keys);
    CHECK_OK(hotbed_ticket_create(p->r.storage, KEYS, KEYS, p->r.stream, &p->ticket));
}

static void plain_close(plain *p) {
    hotbed_ticket_destroy(p->ticket);
    CHECK_EQ(fixture_pinned(&p->r), 0);
    fixture_close(&p->r);
}

/* Prefetch keys [first, first + n), and read their slots. */
static hotbed_status plain_prefetch(plain *p, uint64_t first, uint64_t n) {
    hotbed_batch batch = {.size = sizeof batch};
    hotbed_ticket_view view = {.size = sizeof view};
    batch.batch_size = (uint32_t)n;
    batch.num_keys = n;
    batch.keys = p->device_keys + first;
    CHECK_OK(hotbed_storage_prefetch(p->r.storage, &batch, p->ticket, p->r.stream));
    hotbed_status status = hotbed_stream_sync(p->r.stream);
    CHECK_OK(hotbed_ticket_read(p->ticket, &view));
    fixture_download(&p->r, p->slots + first, view.slots, n * sizeof(uint64_t));
    return status;
}

static void keys_keep_their_slots(hotbed_backend backend) {
    static plain p;
    static uint64_t before[KEYS];
    setup s;
    growing(&s, 1);
    plain_open(&p, backend, &s);
    uint64_t capacity = FIRST;
    hotbed_mode mode = hotbed_storage_mode(p.r.storage);
    bool stay = mode == HOTBED_MODE_HBM_DIRECT; /* with two tiers, rows move */
    for (uint64_t n = FIRST; n <= KEYS; n = 2 * n < KEYS || n == KEYS ? 2 * n : KEYS) {
        if (n > capacity) {
            /* The ticket is in use, and its slots are the same after the growth. */
            CHECK_OK(hotbed_storage_grow(p.r.storage, 0, n, p.r.stream));
            capacity = n;
        }
        memcpy(before, p.slots, sizeof before);
        CHECK_OK(plain_prefetch(&p, 0, n));
        for (uint64_t i = 0; i < n; i++)
            CHECK(p.slots[i] != HOTBED_SLOT_NONE);
        if (stay && n > FIRST)
            CHECK_BYTES(p.slots, before, n / 2 * sizeof(uint64_t));
        CHECK_EQ(fixture_size(&p.r, 0), n);
        CHECK(fixture_pinned(&p.r) >= n);
    }
    CHECK_EQ(fixture_size(&p.r, 0), KEYS);
    plain_close(&p);
}

/* A refused key gets a row in the first prefetch after the growth. */
static void refused_keys_get_rows_after_a_growth(hotbed_backend backend) {
    static plain p;
    setup s;
    growing(&s, 1);
    plain_open(&p, backend, &s);
    CHECK_STATUS(plain_prefetch(&p, 0, KEYS), HOTBED_ERR_FULL);
    uint64_t kept = fixture_size(&p.r, 0);
    CHECK(kept >= FIRST && kept < KEYS);
    CHECK_OK(hotbed_storage_grow(p.r.storage, 0, KEYS, p.r.stream));
    CHECK_OK(plain_prefetch(&p, 0, KEYS));
    CHECK_EQ(fixture_size(&p.r, 0), KEYS);
    plain_close(&p);
}

static void keys_are_evicted_from_all_segments(hotbed_backend backend) {
    static plain p;
    setup s;
    hotbed_table_stats stats = {.size = sizeof stats};
    growing(&s, 1);
    s.tables[0].max_capacity = 4 * FIRST;
    s.tables[0].evict = HOTBED_EVICT_LOWEST;
    plain_open(&p, backend, &s);
    CHECK_OK(hotbed_storage_grow(p.r.storage, 0, 2 * FIRST, p.r.stream));
    CHECK_OK(hotbed_storage_grow(p.r.storage, 0, 4 * FIRST, p.r.stream));
    for (uint64_t n = 0; n < 3 * FIRST; n += 8)
        CHECK_OK(plain_prefetch(&p, n, 8));
    CHECK_OK(hotbed_storage_stats(p.r.storage, 0, &stats, p.r.stream));
    CHECK_EQ(stats.refused, 0);
    CHECK_EQ(fixture_size(&p.r, 0) + stats.evictions, 3 * FIRST);
    for (uint64_t n = 3 * FIRST; n + 8 <= KEYS; n += 8)
        CHECK_OK(plain_prefetch(&p, n, 8));
    CHECK_OK(hotbed_ticket_cancel(p.ticket, p.r.stream));
    CHECK_OK(hotbed_storage_stats(p.r.storage, 0, &stats, p.r.stream));
    CHECK_EQ(stats.refused, 0);
    CHECK_EQ(fixture_size(&p.r, 0) + stats.evictions, KEYS);
    /* The oldest keys were in all segments, and are evicted. */
    uint8_t found[3 * FIRST], *device = fixture_alloc(&p.r, sizeof found);
    CHECK_OK(hotbed_storage_get_rows(
        p.r.storage, 0, sizeof found, p.device_keys, NULL, device, p.r.stream));
    fixture_download(&p.r, found, device, sizeof found);
    for (size_t i = 0; i < sizeof found; i++)
        CHECK_EQ(found[i], 0);
    plain_close(&p);
}

/* --- graphs ---------------------------------------------------------------------------------- */

static void a_recorded_step_uses_new_slots(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    hotbed_graph *graph;
    rng random = rng_start(3);
    growing(&s, 1);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, MAX_KEYS, MAX_KEYS);
    batch_shape how = {.batch_size = 32, .key_space = FIRST};
    test_ticket_step(&l, &random, &how);
    test_ticket_fill(&l, &random, &how);
    const hotbed_batch batch = test_ticket_batch(&l);
    CHECK_OK(hotbed_graph_begin(r.stream));
    CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, l.ticket, r.stream));
    CHECK_OK(hotbed_storage_forward(r.storage, l.ticket, l.output, l.stride, r.stream));
    CHECK_OK(hotbed_storage_backward(r.storage, l.ticket, l.gradient, l.stride, r.stream));
    CHECK_OK(hotbed_graph_end(r.stream, &graph));
    for (int launch = 0; launch < 60; launch++) {
        if (launch == 10 || launch == 30) {
            how.key_space *= 5;
            CHECK_OK(hotbed_storage_grow(r.storage, 0, how.key_space, r.stream));
        }
        test_ticket_fill(&l, &random, &how);
        float *gradient = l.scratch[0];
        uint64_t stride = l.stride == 0 ? oracle_least_stride(r.model) : l.stride;
        for (uint64_t e = 0; e < how.batch_size * stride; e++)
            gradient[e] = rng_float(&random);
        fixture_upload(&r, l.gradient, gradient, how.batch_size * stride * sizeof(float));
        hotbed_counters before = hotbed_test_counters();
        CHECK_OK(hotbed_graph_launch(graph, r.stream));
        hotbed_counters after = hotbed_test_counters();
        CHECK_EQ(after.host_waits - before.host_waits, 0);
        CHECK_EQ(after.allocations - before.allocations, 0);
        CHECK_OK(hotbed_stream_sync(r.stream));
        model_prefetch(&l);
        oracle_backward(l.model, gradient, l.stride);
    }
    CHECK(fixture_size(&r, 0) > 10 * FIRST);
    fixture_check(&r);
    hotbed_graph_destroy(graph);
    fixture_close(&r);
}

/* --- memory ---------------------------------------------------------------------------------- */

/* Steps beside a growth neither allocate nor wait. */
static void a_growth_allocates_the_memory_of_its_segment(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(4);
    growing(&s, 1);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, MAX_KEYS, BATCH);
    const batch_shape how = {.batch_size = BATCH, .key_space = FIRST};
    test_ticket_step(&l, &random, &how);
    for (uint64_t capacity = 2 * FIRST; capacity <= 16 * FIRST; capacity *= 2) {
        hotbed_segment_info segment = {.size = sizeof segment};
        uint64_t index_bytes = info_of(&r, 0).index_bytes;
        hotbed_counters before = hotbed_test_counters();
        CHECK_OK(hotbed_storage_grow(r.storage, 0, capacity, r.stream));
        hotbed_counters after = hotbed_test_counters();
        hotbed_table_info info = info_of(&r, 0);
        CHECK_EQ(after.host_waits - before.host_waits, 0);
        CHECK_OK(hotbed_storage_segment(r.storage, 0, info.segments - 1, &segment));
        CHECK(segment.slots <= capacity / 2 * 103 / 100 + 64);
        CHECK_EQ(info.index_bytes - index_bytes, segment.slots * 16);
        uint64_t bytes = segment.slots * (16 + info.row_bytes);
        uint64_t taken = after.allocated_bytes - before.allocated_bytes;
        CHECK(taken >= bytes && taken <= bytes + 1024);
        CHECK(after.allocations - before.allocations <= 4);
        test_ticket_fill(&l, &random, &how);
        const hotbed_batch batch = test_ticket_batch(&l);
        before = hotbed_test_counters();
        CHECK_OK(hotbed_storage_prefetch(r.storage, &batch, l.ticket, r.stream));
        after = hotbed_test_counters();
        CHECK_EQ(after.host_waits - before.host_waits, 0);
        CHECK_EQ(after.allocations - before.allocations, 0);
        model_prefetch(&l);
        test_ticket_cancel(&l);
    }
    CHECK_OK(hotbed_stream_sync(r.stream));
    fixture_check(&r);
    fixture_close(&r);
}

static void a_growth_without_memory_leaves_the_table_unchanged(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l, outstanding;
    rng random = rng_start(5);
    growing(&s, 2);
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, MAX_KEYS, BATCH);
    test_ticket_open(&r, &outstanding, MAX_KEYS, BATCH);
    batch_shape how = {.batch_size = BATCH, .key_space = FIRST};
    test_ticket_fill(&outstanding, &random, &how);
    test_ticket_prefetch(&outstanding);
    uint64_t failures = 0;
    for (uint32_t t = 0; t < 2; t++) {
        for (uint64_t n = 1;; n++) {
            fault_arm(n);
            hotbed_status status = hotbed_storage_grow(r.storage, t, 8 * FIRST, r.stream);
            if (!fault_disarm()) {
                CHECK_OK(status);
                break;
            }
            CHECK_STATUS(status, HOTBED_ERR_MEMORY);
            CHECK(strstr(hotbed_last_error(), s.names[t]) != NULL);
            CHECK_EQ(info_of(&r, t).capacity, FIRST);
            CHECK_EQ(info_of(&r, t).segments, 0);
            test_ticket_step(&l, &random, &how);
            failures++;
        }
        CHECK_EQ(info_of(&r, t).segments, 1);
    }
    CHECK(failures >= 2);
    how.key_space = 8 * FIRST;
    for (int step = 0; step < 20; step++)
        test_ticket_step(&l, &random, &how);
    test_ticket_forward(&outstanding);
    test_ticket_backward(&outstanding, &random);
    fixture_check(&r);
    fixture_close(&r);
}

/* A segment in a file needs the directory again, with space. */
static void a_growth_names_the_directory_of_its_file(hotbed_backend backend) {
    setup s;
    fixture r;
    char directory[600];
    if (backend != HOTBED_BACKEND_HOST)
        return; /* lower tiers in files are the host's */
    snprintf(directory, sizeof directory, "%s/rows", hotbed_test_directory());
    CHECK_EQ(mkdir(directory, 0700), 0);
    growing(&s, 1);
    s.tables[0].upper_capacity = FIRST / 2;
    s.options.mode = HOTBED_MODE_CACHE;
    s.options.lower_memory = HOTBED_MEMORY_FILE;
    s.options.lower_directory = directory;
    fixture_open_bare(&r, backend, &s.options);
    CHECK_EQ(rmdir(directory), 0);
    CHECK_STATUS(hotbed_storage_grow(r.storage, 0, 8 * FIRST, r.stream), HOTBED_ERR_IO);
    const hotbed_error_detail *detail = hotbed_last_error_detail();
    CHECK_STRING(detail->path, directory);
    CHECK_STRING(detail->table, s.names[0]);
    CHECK_EQ(detail->os_error, ENOENT);
    CHECK(strstr(hotbed_last_error(), directory) != NULL);
    fixture_close(&r);
}

/* Space for keys to come is optional. */
static void a_reservation_without_memory_holds_its_keys(hotbed_backend backend) {
    setup s;
    fixture r;
    growing(&s, 1);
    fixture_open(&r, backend, &s.options);
    fault_arm(1);
    CHECK_OK(hotbed_growth_reserve(r.storage, 0, 2 * FIRST, r.stream));
    CHECK(fault_disarm());
    CHECK_EQ(info_of(&r, 0).capacity, 2 * FIRST);
    CHECK_OK(hotbed_growth_reserve(r.storage, 0, 2 * FIRST, r.stream));
    CHECK(info_of(&r, 0).capacity > 2 * FIRST);
    fixture_close(&r);
}

/* --- polls ----------------------------------------------------------------------------------- */

/* Polls grow a table before it is full, without a wait.  They do not grow a table without max_capacity. */
static void polls_grow_tables_that_are_nearly_full(hotbed_backend backend) {
    setup s;
    fixture r;
    test_ticket l;
    rng random = rng_start(6);
    growing(&s, 3);
    s.tables[1].max_capacity = 0;
    s.tables[2].growth_load = 0.6F;
    fixture_open(&r, backend, &s.options);
    test_ticket_open(&r, &l, 3 * 4, 4);
    uint32_t growths = 0;
    const uint64_t spaces[] = {10, FIRST - 6, FIRST, 100, 200, 300};
    for (uint32_t phase = 0; phase < 6; phase++) {
        const int steps = (phase < 3 ? 60 : 30) / (hotbed_test_is_small() ? 2 : 1);
        for (int step = 0; step < steps; step++) {
            uint32_t grown;
            const batch_shape how = {.batch_size = 4, .key_space = spaces[phase < 2 ? phase : 2]};
            test_ticket_step(&l, &random, &how);
            hotbed_counters before = hotbed_test_counters();
            CHECK_OK(hotbed_storage_poll_growth(r.storage, r.stream, &grown));
            hotbed_counters after = hotbed_test_counters();
            CHECK_EQ(after.host_waits - before.host_waits, 0);
            if (grown == 0)
                CHECK_EQ(after.allocations - before.allocations, 0);
            growths += grown;
        }
        if (phase == 0) {
            CHECK_EQ(growths, 0);
        } else if (phase == 1) { /* load above 0.6, below 0.9 */
            CHECK_EQ(info_of(&r, 0).segments, 0);
            CHECK_EQ(info_of(&r, 2).segments, 1);
            CHECK_EQ(info_of(&r, 2).capacity, 2 * FIRST);
        }
    }
    CHECK_EQ(info_of(&r, 0).capacity, 2 * FIRST);
    CHECK_EQ(info_of(&r, 1).capacity, FIRST);
    CHECK_EQ(info_of(&r, 2).capacity, 2 * FIRST);
    CHECK_EQ(growths, 2);
    fixture_check(&r);
    fixture_close(&r);
}

/* Keys arrive faster than polls count them; growths double the table, up to max_capacity. */
static void polls_end_at_max_capacity(hotbed_backend backend) {
    static plain p;
    setup s;
    uint32_t grown, growths = 0;
    growing(&s, 1);
    s.tables[0].max_capacity = 5 * FIRST;
    plain_open(&p, backend, &s);
    for (uint64_t n = 0; n < 5 * FIRST; n += 4) {
        CHECK_OK(plain_prefetch(&p, n, 4));
        CHECK_OK(hotbed_storage_poll_growth(p.r.storage, p.r.stream, &grown));
        growths += grown;
        CHECK_OK(hotbed_stream_sync(p.r.stream));
    }
    CHECK_EQ(fixture_size(&p.r, 0), 5 * FIRST);
    CHECK_EQ(info_of(&p.r, 0).capacity, 5 * FIRST);
    CHECK_EQ(growths, 3); /* 80, 160, 200 */
    hotbed_counters before = hotbed_test_counters();
    CHECK_OK(hotbed_storage_poll_growth(p.r.storage, p.r.stream, NULL));
    CHECK_OK(hotbed_storage_poll_growth(p.r.storage, p.r.stream, NULL));
    hotbed_counters after = hotbed_test_counters();
    CHECK_EQ(after.launches, before.launches); /* a table at max_capacity is not counted any more */
    plain_close(&p);
}

/* --- rows by key ----------------------------------------------------------------------------- */

static uint64_t exported(plain *p) {
    uint64_t all = 0, window = 100, *count = fixture_alloc(&p->r, sizeof *count);
    hotbed_table_info info = info_of(&p->r, 0);
    uint64_t slots = info.slots + info.lower_slots;
    for (uint32_t g = 0; g < info.segments; g++) {
        hotbed_segment_info segment = {.size = sizeof segment};
        CHECK_OK(hotbed_storage_segment(p->r.storage, 0, g, &segment));
        slots += segment.slots;
    }
    CHECK_EQ(slots, info.slots + info.lower_slots + info.segment_slots);
    for (uint64_t first = 0; first < slots + window; first += window) {
        uint64_t n;
        hotbed_export batch = {
            .size = sizeof batch, .first = first, .slots = window, .count = count};
        CHECK_OK(hotbed_storage_export(p->r.storage, &batch, p->r.stream));
        fixture_download(&p->r, &n, count, sizeof n);
        CHECK(n == 0 || first < slots);
        all += n;
    }
    return all;
}

static void calls_by_key_reach_all_segments(hotbed_backend backend) {
    static plain p;
    setup s;
    static uint64_t keys[KEYS];
    static uint8_t flags[KEYS];
    uint64_t loads[HOTBED_LOADS], n, loaded = 0;
    growing(&s, 1);
    s.tables[0].score = HOTBED_SCORE_TIMESTAMP_LFU;
    plain_open(&p, backend, &s);
    float *weights = fixture_alloc(&p.r, KEYS * 5 * sizeof(float));
    uint8_t *device_flags = fixture_alloc(&p.r, KEYS);
    uint64_t *device_loads = fixture_alloc(&p.r, sizeof loads);
    float values[5] = {1, 2, 3, 4, 5}, back[5];
    const hotbed_rows rows = {.weights = weights};
    const hotbed_rows nothing = {0};
    for (uint64_t capacity = FIRST, first = 0; capacity <= 8 * FIRST; capacity *= 2) {
        CHECK_OK(hotbed_storage_grow(p.r.storage, 0, capacity, p.r.stream));
        CHECK_OK(hotbed_storage_set_rows(
            p.r.storage, 0, capacity - first, p.device_keys + first, &nothing, p.r.stream));
        CHECK_OK(hotbed_stream_sync(p.r.stream));
        first = capacity;
    }
    uint64_t all = 8 * FIRST;
    CHECK_EQ(fixture_size(&p.r, 0), all);
    CHECK_EQ(exported(&p), all);
    CHECK_OK(hotbed_storage_export_keys(p.r.storage, 0, KEYS, keys, NULL, &n, p.r.stream));
    CHECK_EQ(n, all);
    CHECK_OK(hotbed_storage_load_histogram(p.r.storage, 0, device_loads, p.r.stream));
    fixture_download(&p.r, loads, device_loads, sizeof loads);
    for (uint64_t i = 0; i < HOTBED_LOADS; i++)
        loaded += i * loads[i];
    CHECK_EQ(loaded, all);
    /* Write and read a row of the oldest and of the newest part. */
    for (uint64_t i = 0; i < all; i += all - 1) {
        fixture_upload(&p.r, weights, values, sizeof values);
        CHECK_OK(hotbed_storage_set_rows(p.r.storage, 0, 1, p.device_keys + i, &rows, p.r.stream));
        fixture_upload(&p.r, weights, back, sizeof back);
        CHECK_OK(
            hotbed_storage_get_rows(p.r.storage, 0, 1, p.device_keys + i, &rows, NULL, p.r.stream));
        fixture_download(&p.r, back, weights, sizeof back);
        CHECK_BYTES(back, values, sizeof back);
    }
    /* Freed slots are used again. */
    CHECK_OK(
        hotbed_storage_erase(p.r.storage, 0, 2 * FIRST, p.device_keys, device_flags, p.r.stream));
    fixture_download(&p.r, flags, device_flags, 2 * FIRST);
    for (uint64_t i = 0; i < 2 * FIRST; i++)
        CHECK_EQ(flags[i], 1);
    CHECK_EQ(fixture_size(&p.r, 0), all - 2 * FIRST);
    CHECK_OK(plain_prefetch(&p, 0, all));
    CHECK_EQ(fixture_size(&p.r, 0), all);
    uint64_t *device_times = fixture_alloc(&p.r, KEYS * sizeof(uint64_t));
    const hotbed_rows times = {.times = device_times};
    CHECK_OK(hotbed_storage_get_rows(p.r.storage, 0, all, p.device_keys, &times, NULL, p.r.stream));
    fixture_download(&p.r, keys, device_times, all * sizeof keys[0]);
    for (uint64_t i = 0; i < all; i++)
        CHECK(keys[i] > 0 && keys[i] == keys[0]);
    CHECK_OK(hotbed_ticket_cancel(p.ticket, p.r.stream));
    CHECK_OK(hotbed_storage_clear(p.r.storage, 0, p.r.stream));
    CHECK_EQ(fixture_size(&p.r, 0), 0);
    CHECK_EQ(exported(&p), 0);
    CHECK_OK(plain_prefetch(&p, 0, all));
    plain_close(&p);
}

/* --- two streams ----------------------------------------------------------------------------- */

/* Exported counts are of keys without rows; admitted keys are in the segments. */
static void exported_counts_exclude_admitted_keys(hotbed_backend backend) {
    static plain p;
    setup s;
    uint64_t keys[FIRST], counts[FIRST], n;
    growing(&s, 1);
    s.tables[0].admission = HOTBED_ADMIT_FREQUENCY;
    s.tables[0].admission_threshold = 3;
    s.tables[0].admission_capacity = 10 * FIRST;
    plain_open(&p, backend, &s);
    CHECK_OK(hotbed_storage_grow(p.r.storage, 0, 4 * FIRST, p.r.stream));
    for (int times = 0; times < 3; times++)
        CHECK_OK(plain_prefetch(&p, 0, 2 * FIRST));
    for (int times = 0; times < 2; times++)
        CHECK_OK(plain_prefetch(&p, 2 * FIRST, FIRST / 2));
    CHECK_OK(hotbed_ticket_cancel(p.ticket, p.r.stream));
    CHECK_EQ(fixture_size(&p.r, 0), 2 * FIRST);
    CHECK_OK(hotbed_storage_export_counts(p.r.storage, 0, FIRST, keys, counts, &n, p.r.stream));
    CHECK_EQ(n, FIRST / 2);
    for (uint64_t i = 0; i < n; i++)
        CHECK_EQ(counts[i], 2);
    plain_close(&p);
}

/* Forwards and backwards of earlier prefetches need not wait for a growth. */
static void forwards_run_beside_a_growth(hotbed_backend backend) {
    static plain p;
    setup s;
    hotbed_event *prefetched;
    hotbed_ticket *tickets[5];
    growing(&s, 1);
    plain_open(&p, backend, &s);
    hotbed_stream *other = hotbed_test_stream(backend);
    CHECK_OK(hotbed_event_create(p.r.stream, &prefetched));
    float *gradient = fixture_alloc(&p.r, KEYS * 5 * sizeof(float));
    float *outputs = fixture_alloc(&p.r, KEYS * 5 * sizeof(float));
    CHECK_OK(hotbed_fill(gradient, 0, KEYS * 5 * sizeof(float), p.r.stream));
    for (int i = 0; i < 5; i++)
        CHECK_OK(hotbed_ticket_create(p.r.storage, KEYS, KEYS, p.r.stream, &tickets[i]));
    uint64_t capacity = FIRST;
    for (int i = 0; i < 5; i++, capacity *= 2) {
        hotbed_batch batch = {.size = sizeof batch};
        batch.batch_size = (uint32_t)capacity;
        batch.num_keys = capacity;
        batch.keys = p.device_keys;
        CHECK_OK(hotbed_storage_grow(p.r.storage, 0, capacity, p.r.stream));
        CHECK_OK(hotbed_storage_prefetch(p.r.storage, &batch, tickets[i], p.r.stream));
        CHECK_OK(hotbed_event_record(prefetched, p.r.stream));
        CHECK_OK(hotbed_stream_wait(other, prefetched));
        CHECK_OK(hotbed_storage_forward(p.r.storage, tickets[i], outputs, 0, other));
        CHECK_OK(hotbed_storage_backward(p.r.storage, tickets[i], gradient, 0, other));
    }
    CHECK_OK(hotbed_stream_sync(p.r.stream));
    CHECK_OK(hotbed_stream_sync(other));
    CHECK_EQ(fixture_size(&p.r, 0), capacity / 2);
    for (int i = 0; i < 5; i++)
        hotbed_ticket_destroy(tickets[i]);
    hotbed_event_destroy(prefetched);
    hotbed_stream_destroy(other);
    plain_close(&p);
}

/* --- refusals -------------------------------------------------------------------------------- */

static void growth_refuses_bad_arguments(hotbed_backend backend) {
    setup s;
    fixture r;
    hotbed_segment_info segment = {.size = sizeof segment};
    hotbed_storage *none = NULL;
    growing(&s, 2);
    s.tables[1].max_capacity = FIRST; /* equal to capacity: the table cannot grow */
    fixture_open_bare(&r, backend, &s.options);
    CHECK_STATUS(hotbed_storage_grow(NULL, 0, MOST, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_grow(r.storage, 0, MOST, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_grow(r.storage, 2, MOST, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_grow(r.storage, 1, MOST, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "max_capacity is not above its capacity") != NULL);
    CHECK_STATUS(hotbed_storage_grow(r.storage, 0, MOST + 1, r.stream), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_storage_grow(r.storage, 0, FIRST, r.stream));
    CHECK_OK(hotbed_storage_grow(r.storage, 0, 1, r.stream));
    CHECK_EQ(info_of(&r, 0).segments, 0);
    CHECK_EQ(info_of(&r, 0).max_capacity, MOST);
    CHECK_EQ(info_of(&r, 1).max_capacity, FIRST);
    CHECK_STATUS(hotbed_storage_segment(r.storage, 0, 0, &segment), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_segment(r.storage, 2, 0, &segment), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_segment(NULL, 0, 0, &segment), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_segment(r.storage, 0, 0, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_poll_growth(NULL, r.stream, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_storage_poll_growth(r.storage, NULL, NULL), HOTBED_ERR_ARGUMENT);
    hotbed_graph *graph;
    CHECK_OK(hotbed_graph_begin(r.stream));
    CHECK_STATUS(hotbed_storage_grow(r.storage, 0, MOST, r.stream), HOTBED_ERR_STATE);
    CHECK_STATUS(hotbed_storage_poll_growth(r.storage, r.stream, NULL), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_graph_end(r.stream, &graph));
    hotbed_graph_destroy(graph);
    for (uint64_t i = 1; i <= HOTBED_GROWTHS_MOST; i++)
        CHECK_OK(hotbed_storage_grow(r.storage, 0, FIRST + i, r.stream));
    CHECK_STATUS(hotbed_storage_grow(r.storage, 0, MOST, r.stream), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_growth_reserve(
        r.storage, 0, MOST, r.stream)); /* a load uses the slots that there are */
    CHECK_OK(hotbed_storage_segment(r.storage, 0, HOTBED_GROWTHS_MOST - 1, &segment));
    CHECK_OK(hotbed_stream_sync(r.stream));
    s.tables[0].max_capacity = FIRST - 1;
    CHECK_STATUS(hotbed_storage_create(&s.options, r.stream, &none), HOTBED_ERR_ARGUMENT);
    s.tables[0].max_capacity = (UINT64_C(1) << 35) + 1;
    CHECK_STATUS(hotbed_storage_create(&s.options, r.stream, &none), HOTBED_ERR_ARGUMENT);
    s.tables[0].max_capacity = MOST;
    s.tables[0].growth_load = 1.5F;
    CHECK_STATUS(hotbed_storage_create(&s.options, r.stream, &none), HOTBED_ERR_ARGUMENT);
    s.tables[0].growth_load = 0;
    s.tables[0].kind = HOTBED_TABLE_STATIC;
    CHECK_STATUS(hotbed_storage_create(&s.options, r.stream, &none), HOTBED_ERR_ARGUMENT);
    fixture_close(&r);
}

/* Tables of random capacities grow in random steps, with random upper tiers.  Each growth succeeds, and all keys get
 * rows. */
static void tables_of_any_capacities_grow(hotbed_backend backend) {
    static const uint64_t worst[][3] = {{29, 100, 100}, {64, 164, 164}, {114, 164, 164}};
    const uint32_t rounds = hotbed_test_is_small() ? 6 : 60;
    for (uint32_t round = 0; round < rounds; round++) {
        static plain p;
        setup s;
        uint64_t most = 2 + hotbed_test_below(KEYS - 1), first = 1 + hotbed_test_below(most - 1);
        uint64_t upper = 1 + hotbed_test_below(most);
        upper = round % 3 == 0 ? most : upper;
        if (round < sizeof worst / sizeof worst[0])
            first = worst[round][0], most = worst[round][1], upper = worst[round][2];
        setup_start(&s, 1, 4, first);
        s.tables[0].max_capacity = most;
        s.tables[0].upper_capacity = upper;
        static const hotbed_mode modes[] = {
            HOTBED_MODE_DEFAULT, HOTBED_MODE_CACHE, HOTBED_MODE_DEFAULT, HOTBED_MODE_HBM_DIRECT};
        s.options.mode = modes[round % 4];
        s.options.placement = round % 4 == 2 ? HOTBED_PLACE_BY_SCORE : HOTBED_PLACE_BY_HASH;
        if (round < sizeof worst / sizeof worst[0]) {
            s.options.mode = HOTBED_MODE_DEFAULT;
            s.options.placement = HOTBED_PLACE_BY_HASH;
        }
        plain_open(&p, backend, &s);
        for (uint64_t capacity = first; capacity < most;) {
            capacity += 1 + hotbed_test_below(most - capacity);
            CHECK_OK(hotbed_storage_grow(p.r.storage, 0, capacity, p.r.stream));
        }
        for (uint32_t n = 0; n < info_of(&p.r, 0).segments; n++) {
            hotbed_segment_info segment = {.size = sizeof segment};
            CHECK_OK(hotbed_storage_segment(p.r.storage, 0, n, &segment));
            /* two buckets, because each needs a marker from keys that cannot be in it */
            CHECK(segment.slots >= 32);
        }
        CHECK_OK(plain_prefetch(&p, 0, most));
        CHECK_EQ(fixture_size(&p.r, 0), most);
        CHECK_OK(hotbed_ticket_cancel(p.ticket, p.r.stream));
        plain_close(&p);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(tables_of_any_capacities_grow)},
    {TEST(tables_grow_under_tickets_at_depth_1_to_8)},
    {TEST(keys_keep_their_slots)},
    {TEST(refused_keys_get_rows_after_a_growth)},
    {TEST(keys_are_evicted_from_all_segments)},
    {TEST(a_recorded_step_uses_new_slots)},
    {TEST(a_growth_allocates_the_memory_of_its_segment)},
    {TEST(a_growth_without_memory_leaves_the_table_unchanged)},
    {TEST(a_growth_names_the_directory_of_its_file)},
    {TEST(a_reservation_without_memory_holds_its_keys)},
    {TEST(polls_grow_tables_that_are_nearly_full)},
    {TEST(polls_end_at_max_capacity)},
    {TEST(calls_by_key_reach_all_segments)},
    {TEST(exported_counts_exclude_admitted_keys)},
    {TEST(forwards_run_beside_a_growth)},
    {TEST(growth_refuses_bad_arguments)},
    {NULL, NULL},
};
