/* tests/dist/test_comm.c - collectives give the same results on every transport. */
#include "dist/comm/comm.h"
#include "tests/dist/world.h"
#include "tests/support/harness.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* The byte at index i that rank `from` sends to rank `to` in exchange number `what`. */
static uint8_t byte_of(uint32_t from, uint32_t to, uint64_t i, uint32_t what) {
    uint64_t x =
        i * 0x9e3779b97f4a7c15U + from * 0x1000193U + to * 0x85ebca6bU + what * 0xc2b2ae35U;
    return (uint8_t)(x >> 40 ^ x >> 17 ^ x);
}

static void fill(uint8_t *at, uint64_t bytes, uint32_t from, uint32_t to, uint32_t what) {
    for (uint64_t i = 0; i < bytes; i++)
        at[i] = byte_of(from, to, i, what);
}

static void check(const uint8_t *at, uint64_t bytes, uint32_t from, uint32_t to, uint32_t what) {
    for (uint64_t i = 0; i < bytes; i++)
        if (at[i] != byte_of(from, to, i, what))
            CHECK_EQ(at[i], byte_of(from, to, i, what));
}

/* A random number that is equal on all ranks. */
static uint64_t shared_random(uint64_t *state, uint64_t bound) {
    return hotbed_test_random_r(state) % bound;
}

static const uint64_t even_sizes[] = {0, 1, 7, 8, 4096, 20011};
enum { NUM_EVEN_SIZES = sizeof even_sizes / sizeof even_sizes[0], ALL = 99 };

/* --- exchanges ------------------------------------------------------------------------------ */

static void all_gather_body(world_rank *me) {
    for (uint32_t s = 0; s < NUM_EVEN_SIZES; s++) {
        uint64_t bytes = even_sizes[s];
        world_bytes send = world_alloc(me, bytes), recv = world_alloc(me, me->size * bytes);
        fill(send.host, bytes, me->rank, ALL, s);
        world_upload(me, &send);
        CHECK_OK(hotbed_comm_all_gather(
            me->comm, bytes, send.device.data, recv.device.data, me->stream));
        world_download(me, &recv);
        for (uint32_t p = 0; p < me->size; p++)
            check(recv.host + p * bytes, bytes, p, ALL, s);
        /* in place */
        memset(recv.host, 0, recv.bytes);
        fill(recv.host + me->rank * bytes, bytes, me->rank, ALL, s + 1);
        world_upload(me, &recv);
        const uint8_t *own = bytes == 0 ? NULL : (uint8_t *)recv.device.data + me->rank * bytes;
        CHECK_OK(hotbed_comm_all_gather(me->comm, bytes, own, recv.device.data, me->stream));
        world_download(me, &recv);
        for (uint32_t p = 0; p < me->size; p++)
            check(recv.host + p * bytes, bytes, p, ALL, s + 1);
        world_free(&send);
        world_free(&recv);
    }
}

static void every_rank_gets_every_part(hotbed_backend backend) {
    world_run_all(NULL, all_gather_body, NULL);
}

static void all_to_all_body(world_rank *me) {
    for (uint32_t s = 0; s < NUM_EVEN_SIZES; s++) {
        uint64_t bytes = even_sizes[s];
        world_bytes send = world_alloc(me, me->size * bytes);
        world_bytes recv = world_alloc(me, me->size * bytes);
        for (uint32_t p = 0; p < me->size; p++)
            fill(send.host + p * bytes, bytes, me->rank, p, s);
        world_upload(me, &send);
        CHECK_OK(hotbed_comm_all_to_all(
            me->comm, bytes, send.device.data, recv.device.data, me->stream));
        world_download(me, &recv);
        for (uint32_t p = 0; p < me->size; p++)
            check(recv.host + p * bytes, bytes, p, me->rank, s);
        world_free(&send);
        world_free(&recv);
    }
}

static void each_part_goes_to_its_rank(hotbed_backend backend) {
    world_run_all(NULL, all_to_all_body, NULL);
}

/* Exchanges that leave a rank's part for itself in `send`: its part of `recv` keeps its bytes. */
static void others_body(world_rank *me) {
    enum { BYTES = 4096, RANKS_MOST = 64 };
    uint64_t sizes[RANKS_MOST];
    world_bytes send = world_alloc(me, me->size * BYTES);
    for (uint32_t p = 0; p < me->size; p++) {
        sizes[p] = BYTES;
        fill(send.host + p * BYTES, BYTES, me->rank, p, 0);
    }
    world_upload(me, &send);
    for (int exchange = 0; exchange < 2; exchange++) {
        uint8_t before[BYTES];
        world_bytes recv = world_alloc(me, me->size * BYTES);
        memcpy(before, recv.host + me->rank * BYTES, BYTES);
        hotbed_exchange x = {
            .send = send.device.data,
            .send_bytes = sizes,
            .recv = recv.device.data,
            .recv_bytes = sizes,
        };
        CHECK_OK(
            exchange == 1 ? hotbed_comm_exchange_others(me->comm, 1, &x, me->stream)
                          : hotbed_comm_all_to_others(
                                me->comm, BYTES, send.device.data, recv.device.data, me->stream));
        world_download(me, &recv);
        for (uint32_t p = 0; p < me->size; p++)
            if (p != me->rank)
                check(recv.host + p * BYTES, BYTES, p, me->rank, 0);
        CHECK_BYTES(recv.host + me->rank * BYTES, before, BYTES);
        world_free(&recv);
    }
    world_free(&send);
}

static void a_ranks_part_for_itself_can_stay(hotbed_backend backend) {
    world_run_all(NULL, others_body, NULL);
}

/* The transport's own all-to-all, which benchmarks compare with: a single operation of MPI or NCCL,
 * a copy of the rank's own bytes elsewhere. */
static void bare_body(world_rank *me) {
    enum { BYTES = 4096 };
    hotbed_transport transport = hotbed_comm_transport(me->comm);
    bool copies = transport != HOTBED_TRANSPORT_MPI && transport != HOTBED_TRANSPORT_NCCL;
    world_bytes send = world_alloc(me, me->size * BYTES), recv = world_alloc(me, me->size * BYTES);
    for (uint32_t p = 0; p < me->size; p++)
        fill(send.host + p * BYTES, BYTES, me->rank, p, 0);
    world_upload(me, &send);
    CHECK_OK(hotbed_comm_bare_all_to_all(
        me->comm, BYTES, send.device.data, recv.device.data, me->stream));
    world_download(me, &recv);
    for (uint32_t p = 0; p < me->size && !copies; p++)
        check(recv.host + p * BYTES, BYTES, p, me->rank, 0);
    if (copies)
        CHECK_BYTES(recv.host, send.host, me->size * BYTES);
    CHECK_OK(
        hotbed_comm_all_to_all(/* the communicator still works */
                               me->comm, BYTES, send.device.data, recv.device.data, me->stream));
    world_download(me, &recv);
    for (uint32_t p = 0; p < me->size; p++)
        check(recv.host + p * BYTES, BYTES, p, me->rank, 0);
    world_free(&send);
    world_free(&recv);
}

static void the_transports_own_all_to_all(hotbed_backend backend) {
    world_run_all(NULL, bare_body, NULL);
}

/* An exchange with sizes from matrix[from * size + to]. */
typedef struct ragged {
    hotbed_exchange x;
    uint64_t *numbers; /* memory of the four arrays */
    world_bytes send, recv;
} ragged;

static ragged make_ragged(
    const world_rank *me, const uint64_t *matrix, bool packed, uint32_t what) {
    uint32_t size = me->size;
    uint64_t *numbers = malloc(4 * size * sizeof *numbers);
    CHECK(numbers != NULL);
    uint64_t *send_bytes = numbers, *send_offsets = numbers + size;
    uint64_t *recv_bytes = numbers + 2 * size, *recv_offsets = numbers + 3 * size;
    uint64_t gap = packed ? 0 : 5, sent = 0, received = 0;
    for (uint32_t i = 0; i < size; i++) {
        uint32_t p = packed ? i : size - 1 - i; /* not in order of rank */
        send_bytes[p] = matrix[me->rank * size + p];
        send_offsets[p] = sent;
        sent += send_bytes[p] + gap;
        recv_bytes[p] = matrix[p * size + me->rank];
        recv_offsets[p] = received;
        received += recv_bytes[p] + gap;
    }
    ragged r = {
        .numbers = numbers,
        .send = world_alloc(me, sent),
        .recv = world_alloc(me, received),
    };
    for (uint32_t p = 0; p < size; p++)
        fill(r.send.host + send_offsets[p], send_bytes[p], me->rank, p, what);
    world_upload(me, &r.send);
    r.x = (hotbed_exchange){
        .send = r.send.device.data,
        .send_bytes = send_bytes,
        .send_offsets = packed ? NULL : send_offsets,
        .recv = r.recv.device.data,
        .recv_bytes = recv_bytes,
        .recv_offsets = packed ? NULL : recv_offsets,
    };
    return r;
}

static void check_ragged(const world_rank *me, ragged *r, uint32_t what) {
    world_download(me, &r->recv);
    const uint64_t *recv_bytes = r->numbers + 2 * me->size;
    const uint64_t *recv_offsets = r->numbers + 3 * me->size;
    for (uint32_t p = 0; p < me->size; p++)
        check(r->recv.host + recv_offsets[p], recv_bytes[p], p, me->rank, what);
    for (uint32_t p = 0; p < me->size && r->x.recv_offsets != NULL;
         p++) /* the gaps are untouched */
        for (uint64_t i = 0; i < 5; i++)
            CHECK_EQ(r->recv.host[recv_offsets[p] + recv_bytes[p] + i], 0xa5);
    world_free(&r->send);
    world_free(&r->recv);
    free(r->numbers);
}

/* Sizes as in training: some ranks send nothing, some receive nothing, some send much. */
static void draw_matrix(uint64_t *state, uint32_t size, uint64_t *matrix) {
    uint64_t silent = shared_random(state, size + 1), deaf = shared_random(state, size + 1);
    uint64_t most = (uint64_t)1 << shared_random(state, 15);
    for (uint32_t i = 0; i < size * size; i++) {
        matrix[i] = shared_random(state, 3) == 0 ? 0 : shared_random(state, most);
        if (i / size == silent || i % size == deaf)
            matrix[i] = 0;
    }
}

static void parts_body(world_rank *me) {
    uint64_t state = hotbed_test_seed();
    uint64_t *matrix = malloc(me->size * me->size * sizeof *matrix);
    CHECK(matrix != NULL);
    for (uint32_t round = 0; round < 12; round++) {
        draw_matrix(&state, me->size, matrix);
        ragged r = make_ragged(me, matrix, round % 2 == 0, round);
        CHECK_OK(hotbed_comm_exchange(me->comm, 1, &r.x, me->stream));
        check_ragged(me, &r, round);
    }
    memset(matrix, 0, me->size * me->size * sizeof *matrix); /* no rank sends */
    ragged r = make_ragged(me, matrix, true, 0);
    CHECK_OK(hotbed_comm_exchange(me->comm, 1, &r.x, me->stream));
    check_ragged(me, &r, 0);
    if (me->size <= 4) { /* more than a transport moves at once */
        for (uint32_t i = 0; i < me->size * me->size; i++)
            matrix[i] = 1500001 + 10 * i;
        r = make_ragged(me, matrix, false, 7);
        CHECK_OK(hotbed_comm_exchange(me->comm, 1, &r.x, me->stream));
        check_ragged(me, &r, 7);
    }
    free(matrix);
}

static void parts_have_sizes_of_their_own(hotbed_backend backend) {
    world_run_all(NULL, parts_body, NULL);
}

static void exchange_body(world_rank *me) {
    uint64_t state = hotbed_test_seed() + 1;
    uint64_t *matrix = malloc(me->size * me->size * sizeof *matrix);
    CHECK(matrix != NULL);
    for (uint32_t n = 1; n <= HOTBED_EXCHANGES_MAX; n++) {
        ragged r[HOTBED_EXCHANGES_MAX];
        hotbed_exchange list[HOTBED_EXCHANGES_MAX];
        for (uint32_t i = 0; i < n; i++) {
            draw_matrix(&state, me->size, matrix);
            r[i] = make_ragged(me, matrix, i % 2 == 1, n + i);
            list[i] = r[i].x;
        }
        CHECK_OK(hotbed_comm_exchange(me->comm, n, list, me->stream));
        memset(list, 0, sizeof list); /* the call copied the list */
        for (uint32_t i = 0; i < n; i++)
            check_ragged(me, &r[i], n + i);
    }
    free(matrix);
}

static void several_exchanges_at_once(hotbed_backend backend) {
    world_run_all(NULL, exchange_body, NULL);
}

static void broadcast_body(world_rank *me) {
    for (uint32_t root = 0; root < me->size; root++) {
        uint64_t bytes = even_sizes[root % NUM_EVEN_SIZES];
        world_bytes data = world_alloc(me, bytes);
        if (me->rank == root)
            fill(data.host, bytes, root, ALL, root);
        world_upload(me, &data);
        CHECK_OK(hotbed_comm_broadcast(me->comm, root, bytes, data.device.data, me->stream));
        world_download(me, &data);
        check(data.host, bytes, root, ALL, root);
        world_free(&data);
    }
}

static void broadcasts_work_from_every_root(hotbed_backend backend) {
    world_run_all(NULL, broadcast_body, NULL);
}

/* --- sums ----------------------------------------------------------------------------------- */

/* Numbers whose sum depends on the order. */
static float float_of(uint32_t rank, uint64_t i) {
    uint64_t state = rank * 1000003 + i;
    float x = (float)(int64_t)(hotbed_test_random_r(&state) >> 40) - 8388608.0F;
    return (hotbed_test_random_r(&state) & 1) != 0 ? x * 1e-6F : x;
}

static float sum_of(uint32_t size, uint64_t i, float scale) {
    float sum = float_of(0, i);
    for (uint32_t p = 1; p < size; p++)
        sum += float_of(p, i);
    return sum * scale;
}

static void check_sums(const float *got, uint64_t n, uint64_t first, uint32_t size, float scale) {
    for (uint64_t i = 0; i < n; i++) {
        float want = sum_of(size, first + i, scale);
        CHECK_BYTES(&got[i], &want, sizeof want);
    }
}

static void all_reduce_body(world_rank *me) {
    const uint64_t sizes[] = {0, 1, 2, me->size - 1, me->size + 1, 1000, 20011};
    for (uint32_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint64_t n = sizes[s];
        float scale = s % 2 == 0 ? 1.0F : 1.0F / (float)me->size;
        world_bytes send = world_alloc(me, n * sizeof(float));
        world_bytes recv = world_alloc(me, n * sizeof(float));
        for (uint64_t i = 0; i < n; i++)
            ((float *)(void *)send.host)[i] = float_of(me->rank, i);
        world_upload(me, &send);
        CHECK_OK(hotbed_comm_all_reduce(
            me->comm, n, scale, send.device.data, recv.device.data, me->stream));
        world_download(me, &recv);
        check_sums((float *)(void *)recv.host, n, 0, me->size, scale);
        CHECK_OK(hotbed_comm_all_reduce(
            me->comm, n, scale, send.device.data, send.device.data, me->stream));
        world_download(me, &send);
        CHECK_BYTES(send.host, recv.host, send.bytes);
        world_free(&send);
        world_free(&recv);
    }
}

static void sums_are_in_the_order_of_ranks(hotbed_backend backend) {
    world_run_all(NULL, all_reduce_body, NULL);
}

/* --- order ---------------------------------------------------------------------------------- */

static uint32_t entered; /* ranks of this process that have reached the barrier */

static void enter(void *argument) {
    __atomic_fetch_add(&entered, 1, __ATOMIC_RELAXED);
}

static void read_entered(void *argument) {
    *(uint32_t *)argument = __atomic_load_n(&entered, __ATOMIC_RELAXED);
}

static void barrier_body(world_rank *me) {
    bool together = hotbed_comm_transport(me->comm) == HOTBED_TRANSPORT_THREADS;
    for (uint32_t round = 1; round <= 20; round++) {
        uint32_t seen = 0;
        CHECK_OK(hotbed_stream_call(me->stream, enter, NULL));
        CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
        CHECK_OK(hotbed_stream_call(me->stream, read_entered, &seen));
        /* No rank enters again before all have left. */
        CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
        CHECK_OK(hotbed_stream_sync(me->stream));
        if (together)
            CHECK_EQ(seen, me->size * round);
    }
}

static void work_after_a_barrier_is_after_it(hotbed_backend backend) {
    const char *missing = world_missing();
    if (missing != NULL)
        SKIP(missing);
    for (const world *where = world_list(); where->size > 0; where++) {
        entered = 0;
        world_run(where, NULL, barrier_body, NULL);
    }
}

/* Each rank uses two streams in turn: operations run in call order, without events between the streams. */
static void two_streams_body(world_rank *me) {
    enum { ROUNDS = 40 };
    hotbed_stream *second = NULL;
    CHECK_OK(hotbed_stream_create(
        hotbed_stream_backend(me->stream), hotbed_stream_device(me->stream), &second));
    world_bytes send = world_alloc(me, ROUNDS * 8), recv = world_alloc(me, ROUNDS * 8 * me->size);
    for (uint32_t round = 0; round < ROUNDS; round++)
        fill(send.host + 8 * (size_t)round, 8, me->rank, ALL, round);
    world_upload(me, &send);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        hotbed_comm_set_tag(me->comm, round);
        CHECK_OK(hotbed_comm_all_gather(
            me->comm, 8, (uint8_t *)send.device.data + 8 * (size_t)round,
            (uint8_t *)recv.device.data + 8 * (size_t)round * me->size,
            round % 3 == 0 ? second : me->stream));
    }
    CHECK_OK(hotbed_stream_sync(second));
    world_download(me, &recv);
    for (uint32_t round = 0; round < ROUNDS; round++)
        for (uint32_t p = 0; p < me->size; p++)
            check(recv.host + 8 * ((size_t)round * me->size + p), 8, p, ALL, round);
    hotbed_stream_destroy(second);
    world_free(&send);
    world_free(&recv);
}

static void calls_on_two_streams_keep_their_order(hotbed_backend backend) {
    world_run_all(NULL, two_streams_body, NULL);
}

static void graph_body(world_rank *me) {
    if (!world_records(me))
        return;
    enum { BYTES = 1000, FLOATS = 500 };
    world_bytes send = world_alloc(me, BYTES), recv = world_alloc(me, (size_t)BYTES * me->size);
    world_bytes sums = world_alloc(me, FLOATS * sizeof(float));
    /* Run once outside of a graph first, so that the stream's scratch memory grows. */
    CHECK_OK(hotbed_comm_all_reduce(
        me->comm, FLOATS, 1, sums.device.data, sums.device.data, me->stream));
    hotbed_graph *graph = NULL;
    CHECK_OK(hotbed_graph_begin(me->stream));
    CHECK_OK(
        hotbed_comm_all_gather(me->comm, BYTES, send.device.data, recv.device.data, me->stream));
    CHECK_OK(hotbed_comm_all_reduce(
        me->comm, FLOATS, 1, sums.device.data, sums.device.data, me->stream));
    CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
    CHECK_OK(hotbed_graph_end(me->stream, &graph));
    for (uint32_t round = 0; round < 5; round++) {
        fill(send.host, BYTES, me->rank, ALL, round);
        for (uint64_t i = 0; i < FLOATS; i++)
            ((float *)(void *)sums.host)[i] = float_of(me->rank, i + round);
        world_upload(me, &send);
        world_upload(me, &sums);
        CHECK_OK(hotbed_graph_launch(graph, me->stream));
        world_download(me, &recv);
        world_download(me, &sums);
        for (uint32_t p = 0; p < me->size; p++)
            check(recv.host + (size_t)p * BYTES, BYTES, p, ALL, round);
        check_sums((float *)(void *)sums.host, FLOATS, round, me->size, 1);
    }
    hotbed_graph_destroy(graph);
    world_free(&send);
    world_free(&recv);
    world_free(&sums);
}

static void a_recorded_graph_exchanges_again(hotbed_backend backend) {
    world_run_all(NULL, graph_body, NULL);
}

/* Poll until the stream is idle, without a call that counts as a host wait. */
static void spin(const world_rank *me, hotbed_event *event) {
    bool done = false;
    CHECK_OK(hotbed_event_record(event, me->stream));
    while (!done) {
        sched_yield();
        CHECK_OK(hotbed_event_query(event, &done));
    }
}

/* All ranks enqueue many operations while no other thread of the process works; the counters do not
 * change. */
static void counters_body(world_rank *me) {
    enum { FLOATS = 5000 };
    world_bytes a = world_alloc(me, FLOATS * sizeof(float));
    world_bytes b = world_alloc(me, FLOATS * sizeof(float) * me->size);
    uint64_t *counts = malloc(me->size * sizeof *counts);
    CHECK(counts != NULL);
    for (uint32_t p = 0; p < me->size; p++)
        counts[p] = 64;
    hotbed_exchange x = {
        .send = a.device.data, .send_bytes = counts, .recv = b.device.data, .recv_bytes = counts};
    hotbed_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    hotbed_event *event = NULL;
    CHECK_OK(hotbed_event_create(me->stream, &event));
    for (uint32_t round = 0; round < 30; round++) {
        CHECK_OK(
            hotbed_comm_all_reduce(me->comm, FLOATS, 1, a.device.data, a.device.data, me->stream));
        CHECK_OK(hotbed_comm_all_gather(
            me->comm, FLOATS * sizeof(float), a.device.data, b.device.data, me->stream));
        CHECK_OK(hotbed_comm_all_to_all(me->comm, 64, a.device.data, b.device.data, me->stream));
        CHECK_OK(hotbed_comm_exchange(me->comm, 1, &x, me->stream));
        CHECK_OK(hotbed_comm_broadcast(me->comm, 0, 64, a.device.data, me->stream));
        /* Every rank has its scratch memory by now, and no wait follows in this round. */
        if (round == 9) {
            CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
            spin(me, event);
            hotbed_counters_read(&before);
        }
    }
    hotbed_counters_read(&after);
    CHECK_EQ(after.host_waits, before.host_waits);
    CHECK_EQ(after.allocations, before.allocations);
    /* All ranks have read the counters; they may wait again. */
    CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
    spin(me, event);
    hotbed_event_destroy(event);
    world_free(&a);
    world_free(&b);
    free(counts);
}

static void calls_neither_wait_nor_allocate(hotbed_backend backend) {
    world_run_all(NULL, counters_body, NULL);
}

/* --- order log ------------------------------------------------------------------------------ */

static void log_body(world_rank *me) {
    enum { CALLS = 30 };
    uint64_t state = hotbed_test_seed() + 3;
    uint64_t *matrix = malloc(me->size * me->size * sizeof *matrix);
    CHECK(matrix != NULL);
    for (uint32_t i = 0; i < CALLS;
         i++) { /* the counts differ between the ranks, the calls do not */
        draw_matrix(&state, me->size, matrix);
        ragged r = make_ragged(me, matrix, true, i);
        r.x.bound = (uint64_t)1 << 20;
        hotbed_comm_set_tag(me->comm, i);
        CHECK_OK(hotbed_comm_exchange(me->comm, 1, &r.x, me->stream));
        check_ragged(me, &r, i);
    }
    CHECK_STATUS(
        hotbed_comm_broadcast(me->comm, me->size, 0, NULL, me->stream), HOTBED_ERR_ARGUMENT);
    uint64_t calls = 0, digest = 0;
    CHECK_OK(hotbed_comm_log_digest(me->comm, &calls, &digest));
    CHECK_EQ(calls, CALLS); /* refused calls are not logged */
    world_bytes send = world_alloc(me, 8), recv = world_alloc(me, 8 * (size_t)me->size);
    memcpy(send.host, &digest, 8);
    world_upload(me, &send);
    CHECK_OK(hotbed_comm_all_gather(me->comm, 8, send.device.data, recv.device.data, me->stream));
    world_download(me, &recv);
    for (uint32_t p = 0; p < me->size; p++)
        CHECK_BYTES(recv.host + 8 * (size_t)p, &digest, 8);
    uint64_t other = 0; /* another call gives another digest */
    hotbed_comm_set_tag(me->comm, 77);
    CHECK_OK(hotbed_comm_barrier(me->comm, me->stream));
    CHECK_OK(hotbed_comm_log_digest(me->comm, NULL, &other));
    CHECK(other != digest);
    world_free(&send);
    world_free(&recv);
    free(matrix);
}

/* The digest after one barrier with that tag. */
static uint64_t digest_of(uint32_t tag) {
    hotbed_comm *comm = NULL;
    uint64_t digest = 0;
    CHECK_OK(hotbed_comm_create_self(NULL, &comm));
    hotbed_stream *stream = hotbed_test_stream(HOTBED_BACKEND_HOST);
    hotbed_comm_set_tag(comm, tag);
    CHECK_OK(hotbed_comm_barrier(comm, stream));
    CHECK_OK(hotbed_comm_log_digest(comm, NULL, &digest));
    hotbed_stream_destroy(stream);
    hotbed_comm_destroy(comm);
    return digest;
}

static void the_digest_of_a_log_contains_the_tags(hotbed_backend backend) {
    CHECK_EQ(digest_of(1), digest_of(1));
    CHECK(digest_of(1) != digest_of(2));
}

/* Sums that need more scratch memory than a recording can have are not sent, so they are not logged. */
static void unsent_body(world_rank *me) {
    enum { FLOATS = 1 << 16 };
    if (!world_records(me))
        return;
    world_bytes data = world_alloc(me, FLOATS * sizeof(float) * me->size);
    float *floats = data.device.data;
    uint64_t calls = 0;
    hotbed_graph *graph = NULL;
    CHECK_OK(hotbed_graph_begin(me->stream));
    CHECK_STATUS(
        hotbed_comm_all_reduce(me->comm, FLOATS, 1, floats, floats, me->stream), HOTBED_ERR_STATE);
    CHECK_OK(hotbed_graph_end(me->stream, &graph));
    hotbed_graph_destroy(graph);
    CHECK_OK(hotbed_comm_log_digest(me->comm, &calls, NULL));
    CHECK_EQ(calls, 0);
    world_free(&data);
}

static void sums_that_are_not_sent_are_not_logged(hotbed_backend backend) {
    world_run_all(NULL, unsent_body, NULL);
}

static void logs_are_the_same_on_all_ranks(hotbed_backend backend) {
    world_run_all(NULL, log_body, NULL);
}

/* --- arguments ------------------------------------------------------------------------------ */

static void arguments_body(world_rank *me) {
    hotbed_comm *comm = me->comm;
    hotbed_stream *s = me->stream;
    float x = 0;
    uint64_t big[64], counts[64] = {0};
    for (uint32_t p = 0; p < 64; p++)
        big[p] = UINT64_MAX / 2 + 1;
    const hotbed_status bad = HOTBED_ERR_ARGUMENT;
    CHECK_STATUS(hotbed_comm_all_gather(NULL, 0, NULL, NULL, s), bad);
    CHECK_STATUS(hotbed_comm_all_gather(comm, 0, NULL, NULL, NULL), bad);
    CHECK_STATUS(hotbed_comm_all_gather(comm, 4, NULL, &x, s), bad);
    CHECK_STATUS(hotbed_comm_all_gather(comm, 4, &x, NULL, s), bad);
    CHECK_STATUS(hotbed_comm_all_to_all(comm, 4, NULL, &x, s), bad);
    if (me->size > 1)
        CHECK_STATUS(hotbed_comm_all_to_all(comm, UINT64_MAX, &x, &x, s), bad);
    CHECK_STATUS(hotbed_comm_exchange(comm, 1, NULL, s), bad);
    hotbed_exchange e = {.send_bytes = counts};
    CHECK_STATUS(hotbed_comm_exchange(comm, 1, &e, s), bad);
    e = (hotbed_exchange){.recv_bytes = counts};
    CHECK_STATUS(hotbed_comm_exchange(comm, 1, &e, s), bad);
    e = (hotbed_exchange){.send = &x, .send_bytes = big, .recv = &x, .recv_bytes = counts};
    if (me->size > 1)
        CHECK_STATUS(hotbed_comm_exchange(comm, 1, &e, s), bad);
    counts[0] = 4;
    e = (hotbed_exchange){.send_bytes = counts, .recv = &x, .recv_bytes = counts};
    CHECK_STATUS(hotbed_comm_exchange(comm, 1, &e, s), bad);
    e = (hotbed_exchange){
        .send = &x, .send_bytes = counts, .recv = &x, .recv_bytes = counts, .bound = 3};
    CHECK_STATUS(hotbed_comm_exchange(comm, 1, &e, s), bad);
    uint64_t own[64] = {0}, more[64] = {0};
    own[me->rank] = 4;
    more[me->rank] = 8;
    e = (hotbed_exchange){.send = &x, .send_bytes = own, .recv = big, .recv_bytes = more};
    CHECK_STATUS(hotbed_comm_exchange(comm, 1, &e, s), bad);
    CHECK(strstr(hotbed_last_error(), "sends itself 4 bytes and receives 8") != NULL);
    CHECK_STATUS(hotbed_comm_exchange(comm, 0, &e, s), bad);
    CHECK_STATUS(hotbed_comm_exchange(comm, HOTBED_EXCHANGES_MAX + 1, &e, s), bad);
    CHECK_STATUS(hotbed_comm_broadcast(comm, 0, 1, NULL, s), bad);
    CHECK_STATUS(hotbed_comm_all_reduce(comm, 1, 1, NULL, &x, s), bad);
    CHECK_STATUS(hotbed_comm_all_reduce(comm, UINT64_MAX, 1, &x, &x, s), bad);
    CHECK_STATUS(hotbed_comm_all_reduce(comm, 4, 1, &x, NULL, s), bad);
    CHECK_STRING(hotbed_last_error(), "hotbed_comm_all_reduce: the data is NULL, but has 16 bytes");
    CHECK_STATUS(hotbed_comm_check_stream(comm, NULL), bad);
    CHECK_OK(hotbed_comm_check_stream(comm, s));
    CHECK_STATUS(hotbed_comm_failure(comm, NULL), bad);
    CHECK_STATUS(hotbed_comm_log_digest(NULL, NULL, NULL), bad);
    /* No refused call was enqueued or reached another rank. */
    CHECK_OK(hotbed_comm_barrier(comm, s));
    CHECK_OK(hotbed_stream_sync(s));
}

static void arguments_are_checked(hotbed_backend backend) {
    world_run_all(NULL, arguments_body, NULL);
    hotbed_comm *comm = NULL;
    hotbed_comm_options options = {0};
    CHECK_STATUS(hotbed_comm_create_self(&options, &comm), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_comm_create_self(NULL, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_comm_create_threads(NULL, 0, &comm), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_comm_create_threads(NULL, 1025, &comm), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_comm_create_threads(NULL, 1, NULL), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_transport_probe((hotbed_transport)9), HOTBED_ERR_ARGUMENT);
    CHECK_STRING(hotbed_transport_name(HOTBED_TRANSPORT_NCCL), "nccl");
    CHECK_STRING(hotbed_transport_name((hotbed_transport)9), "unknown");
    hotbed_comm_destroy(NULL);
    hotbed_comm_abort(NULL, NULL, NULL);
}

const hotbed_test hotbed_tests[] = {
    {TEST(every_rank_gets_every_part)},
    {TEST(each_part_goes_to_its_rank)},
    {TEST(a_ranks_part_for_itself_can_stay)},
    {TEST(the_transports_own_all_to_all)},
    {TEST(parts_have_sizes_of_their_own)},
    {TEST(several_exchanges_at_once)},
    {TEST(broadcasts_work_from_every_root)},
    {TEST(sums_are_in_the_order_of_ranks)},
    {TEST(work_after_a_barrier_is_after_it)},
    {TEST(calls_on_two_streams_keep_their_order)},
    {TEST(a_recorded_graph_exchanges_again)},
    {TEST(calls_neither_wait_nor_allocate)},
    {TEST(the_digest_of_a_log_contains_the_tags)},
    {TEST(sums_that_are_not_sent_are_not_logged)},
    {TEST(logs_are_the_same_on_all_ranks)},
    {TEST(arguments_are_checked)},
    {NULL, NULL},
};
