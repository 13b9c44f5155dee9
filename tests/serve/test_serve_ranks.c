/* tests/serve/test_serve_ranks.c - several ranks publish one cut, or none. */
#include "hotbed/hotbed.h"
#include "tests/checkpoint/sample.h"
#include "tests/serve/served.h"
#include "tests/support/fault.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { WORLD = 3, RANK_KEYS = 200, RANK_ROWS = 50 };

typedef struct ranked {
    hotbed_comm *comms[WORLD];
    char directory[512];
    uint64_t late;  /* rank that publishes another step; WORLD: none */
    bool differ;    /* ranks have other base_every */
    bool kind;      /* of the routes */
    bool tracks;    /* the tables record their changes; rank 1 loses them before step 5 */
    uint64_t fault; /* the allocation that fails while ranks publish step 1; 0: none */
    bool reached;   /* there was such an allocation */
    pthread_barrier_t together;
    hotbed_status statuses[WORLD];
} ranked;

typedef struct member {
    ranked *all;
    uint32_t rank;
    pthread_t thread;
} member;

static float ranked_value(uint64_t key, uint64_t step) {
    return (float)(key % 1000) + 0.125F * (float)step;
}

static void set_keys(
    hotbed_storage *storage, uint32_t table, const hotbed_route *route, uint32_t rank, uint64_t n,
    uint64_t step, hotbed_stream *stream) {
    for (uint64_t key = step; key < n; key += step) {
        float row[2] = {ranked_value(key, step), (float)table};
        hotbed_rows rows = {.weights = row};
        uint64_t at = table == 1 ? hotbed_route_local(route, key) : key;
        if (hotbed_route_rank(route, key) != rank)
            continue;
        CHECK_OK(hotbed_storage_set_rows(storage, table, 1, &at, &rows, stream));
        CHECK_OK(hotbed_stream_sync(stream));
    }
}

/* Publish while an allocation fails, on some rank. It ends the publish of all ranks, or none. */
static void publish_with_fault(
    const member *m, hotbed_publisher *publisher, hotbed_stream *stream) {
    ranked *all = m->all;
    (void)pthread_barrier_wait(&all->together);
    if (m->rank == 0)
        fault_arm(all->fault);
    (void)pthread_barrier_wait(&all->together);
    hotbed_status status = hotbed_publisher_publish(publisher, 1, stream);
    if (status == HOTBED_OK)
        status = hotbed_publisher_wait(publisher);
    all->statuses[m->rank] = status;
    (void)pthread_barrier_wait(&all->together);
    if (m->rank == 0)
        all->reached = fault_disarm();
    (void)pthread_barrier_wait(&all->together);
    for (uint32_t r = 0; r < WORLD; r++)
        CHECK_EQ(all->statuses[r], all->statuses[0]);
    CHECK(status == HOTBED_OK || status == HOTBED_ERR_MEMORY || status == HOTBED_ERR_IO);
}

static void *ranked_body(void *argument) {
    member *m = argument;
    hotbed_stream *stream = hotbed_test_stream(HOTBED_BACKEND_HOST);
    hotbed_table_options tables[2];
    hotbed_storage_options options;
    hotbed_storage *storage = NULL;
    hotbed_route routes[2];
    hotbed_publish_options publish_options;
    hotbed_publisher *publisher = NULL;
    CHECK_OK(hotbed_route_init(&routes[0], HOTBED_ROUTE_HASH_ROUND_ROBIN, WORLD, 0));
    CHECK_OK(hotbed_route_init(
        &routes[1], m->all->kind ? HOTBED_ROUTE_CONTINUOUS : HOTBED_ROUTE_ROUND_ROBIN, WORLD,
        RANK_ROWS));
    for (uint32_t t = 0; t < 2; t++) {
        tables[t] = (hotbed_table_options){.size = sizeof tables[t]};
        tables[t].name = t == 0 ? "keys" : "rows";
        tables[t].dim = 2;
        tables[t].kind = t == 0 ? HOTBED_TABLE_HASH : HOTBED_TABLE_STATIC;
        tables[t].capacity = t == 0 ? RANK_KEYS : (RANK_ROWS + WORLD - 1) / WORLD;
        tables[t].track_changes = m->all->tracks;
    }
    hotbed_storage_options_init(&options);
    options.num_tables = 2, options.tables = tables;
    options.optimizer.kind = HOTBED_OPT_ADAM;
    CHECK_OK(hotbed_storage_create(&options, stream, &storage));
    publish_options = (hotbed_publish_options){.size = sizeof publish_options};
    publish_options.comm = m->all->comms[m->rank];
    publish_options.routes = routes;
    publish_options.base_every = 3;
    publish_options.states = m->all->kind;
    publish_options.base_every += m->all->differ ? m->rank : 0;
    CHECK_STATUS(
        hotbed_publisher_create(
            m->all->directory, &storage, 1, &publish_options, stream, &publisher),
        m->all->differ ? HOTBED_ERR_STATE : HOTBED_OK);
    for (uint64_t step = 1; step <= 5 && publisher != NULL; step++) {
        set_keys(storage, 0, &routes[0], m->rank, RANK_KEYS, step, stream);
        set_keys(storage, 1, &routes[1], m->rank, RANK_ROWS, step, stream);
        if (m->all->tracks && m->rank == 1 && step == 3) {
            CHECK_OK(hotbed_storage_clear(storage, 1, stream));
            for (uint64_t again = 1; again <= step; again++)
                set_keys(storage, 1, &routes[1], m->rank, RANK_ROWS, again, stream);
        }
        uint64_t told = m->rank == m->all->late && step == 5 ? 99 : step;
        if (m->all->fault != 0 && step == 1) {
            publish_with_fault(m, publisher, stream);
        } else {
            CHECK_OK(hotbed_publisher_publish(publisher, told, stream));
        }
    }
    if (publisher != NULL)
        CHECK_STATUS(
            hotbed_publisher_wait(publisher), m->all->late < WORLD ? HOTBED_ERR_STATE : HOTBED_OK);
    hotbed_publisher_destroy(publisher);
    hotbed_storage_destroy(storage);
    hotbed_stream_destroy(stream);
    return NULL;
}

static void run_ranks(ranked *all) {
    member members[WORLD];
    CHECK_OK(hotbed_comm_create_threads(NULL, WORLD, all->comms));
    for (uint32_t r = 0; r < WORLD; r++) {
        members[r] = (member){.all = all, .rank = r};
        CHECK_EQ(pthread_create(&members[r].thread, NULL, ranked_body, &members[r]), 0);
    }
    for (uint32_t r = 0; r < WORLD; r++)
        pthread_join(members[r].thread, NULL);
    for (uint32_t r = 0; r < WORLD; r++)
        hotbed_comm_destroy(all->comms[r]);
}

/* Check what readers have after `steps`. 0 cuts: some failed, whose number may have been used. */
static void check_ranks(const ranked *all, uint64_t steps, uint64_t cuts) {
    hotbed_reader *reader = NULL;
    CHECK_OK(hotbed_reader_open(all->directory, NULL, &reader));
    for (uint32_t t = 0; t < 2; t++)
        for (uint64_t key = 0; key < RANK_KEYS; key++) {
            float row[2], want = 0;
            hotbed_lookup lookup = {.table = t, .num_keys = 1, .keys = &key, .output = row};
            uint64_t version;
            CHECK_OK(hotbed_reader_lookup(reader, &lookup, 1, &version));
            CHECK(version == cuts || cuts == 0);
            for (uint64_t step = 1; step <= steps; step++)
                if (key >= step && key % step == 0 && (t == 0 || key < RANK_ROWS))
                    want = ranked_value(key, step);
            CHECK(row[0] == want);
        }
    hotbed_reader_close(reader);
}

static void ranks_publish_one_cut(hotbed_backend backend) {
    ranked all = {.late = WORLD};
    sample_directory();
    for (uint32_t kind = 0; kind < 4; kind++) {
        static const char *const names[] = {"deal", "block", "deal-tracked", "block-tracked"};
        all.kind = kind % 2 != 0;
        all.tracks = kind / 2 != 0;
        snprintf(all.directory, sizeof all.directory, "%s", sample_path(names[kind]));
        run_ranks(&all);
        check_ranks(&all, 5, 5);
    }
}

static void an_allocation_that_fails_on_a_rank_ends_the_publish_of_all(hotbed_backend backend) {
    ranked all = {.late = WORLD, .reached = true};
    sample_directory();
    CHECK_EQ(pthread_barrier_init(&all.together, NULL, WORLD), 0);
    for (all.fault = 1; all.reached; all.fault += hotbed_test_is_small() ? 7 : 1) {
        char name[32];
        snprintf(name, sizeof name, "fault-%u", (unsigned)all.fault);
        snprintf(all.directory, sizeof all.directory, "%s", sample_path(name));
        run_ranks(&all);
        check_ranks(&all, 5, all.statuses[0] == HOTBED_OK ? 5 : 0);
    }
    pthread_barrier_destroy(&all.together);
}

static void ranks_at_other_steps_publish_nothing(hotbed_backend backend) {
    ranked all = {.late = 1};
    sample_directory();
    snprintf(all.directory, sizeof all.directory, "%s", sample_path("published"));
    run_ranks(&all);
    check_ranks(&all, 4, 4);
    CHECK_EQ(served_newest(all.directory), 4);
}

static void ranks_with_other_options_leave_no_directory(hotbed_backend backend) {
    ranked all = {.late = WORLD, .differ = true};
    sample_directory();
    snprintf(all.directory, sizeof all.directory, "%s", sample_path("published"));
    run_ranks(&all);
    CHECK(access(all.directory, F_OK) != 0);
}

const hotbed_test hotbed_tests[] = {
    {TEST(ranks_publish_one_cut)},
    {TEST(an_allocation_that_fails_on_a_rank_ends_the_publish_of_all)},
    {TEST(ranks_at_other_steps_publish_nothing)},
    {TEST(ranks_with_other_options_leave_no_directory)},
    {NULL, NULL},
};
