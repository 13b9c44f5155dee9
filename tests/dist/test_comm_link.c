/* tests/dist/test_comm_link.c - sockets between ranks: rendezvous, closing, deaths, and the
 * environment variables. */
#define _DEFAULT_SOURCE 1 /* setenv */
#include "base/clock.h"
#include "base/stream.h"
#include "dist/comm/comm_link.h"
#include "tests/dist/world.h"
#include "tests/support/harness.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 5 };

static uint64_t in_seconds(uint64_t seconds) {
    return hotbed_monotonic_now() + seconds * 1000000000U;
}

/* A communicator that only records faults, and announces them on its link. */
typedef struct linked_comm {
    hotbed_comm base;
    hotbed_link *link;
} linked_comm;

static void announce(hotbed_comm *comm) {
    if (((const linked_comm *)comm)->link != NULL)
        hotbed_link_announce(((const linked_comm *)comm)->link, comm);
}

static void destroy(hotbed_comm *comm) {
}

static hotbed_comm *create_linked(uint32_t number, uint32_t size) {
    static const hotbed_comm_ops ops = {
        .transport = HOTBED_TRANSPORT_SOCKETS, .announce = announce, .destroy = destroy};
    hotbed_comm *comm;
    CHECK_OK(hotbed_comm_new(sizeof(linked_comm), &ops, number, size, NULL, &comm));
    return comm;
}

/* Each rank connects to the others, then runs `body`. */
typedef struct rank {
    pthread_t thread;
    uint32_t number, size;
    hotbed_link_place place;
    int listener;
    hotbed_link *link;
    hotbed_comm *comm;
    void (*body)(struct rank *me);
} rank;

static void *rank_main(void *argument) {
    rank *me = argument;
    uint64_t payload[3] = {0};
    if (me->number == 0)
        payload[0] = payload[2] = 12345;
    me->comm = create_linked(me->number, me->size);
    CHECK_OK(hotbed_link_open(
        me->number, me->size, &me->place, me->listener, payload, sizeof payload, in_seconds(20),
        &me->link));
    ((linked_comm *)me->comm)->link = me->link;
    CHECK_EQ(payload[0], 12345);
    CHECK_EQ(payload[1], 0);
    CHECK_EQ(payload[2], 12345);
    me->body(me);
    hotbed_comm_destroy(me->comm);
    return NULL;
}

static pthread_barrier_t all_know; /* of the ranks that run */

static void run_ranks(uint32_t size, void (*body)(rank *me)) {
    rank ranks[RANKS];
    hotbed_link_place place;
    int listener = -1;
    CHECK_EQ(pthread_barrier_init(&all_know, NULL, size), 0);
    CHECK_OK(hotbed_link_listen(0, &listener, &place));
    CHECK(place.port > 0);
    CHECK(place.hosts[0][0] != '\0');
    for (uint32_t r = 0; r < size; r++) {
        ranks[r] = (rank){
            .number = r,
            .size = size,
            .place = place,
            .listener = r == 0 ? listener : -1,
            .body = body,
        };
        CHECK_EQ(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < size; r++)
        CHECK_EQ(pthread_join(ranks[r].thread, NULL), 0);
    CHECK_EQ(pthread_barrier_destroy(&all_know), 0);
}

/* Poll until the communicator has failed, and return its fault. */
static hotbed_comm_fault wait_for_fault(rank *me) {
    hotbed_comm_fault fault = {.size = sizeof fault};
    uint64_t until = in_seconds(20);
    while (!hotbed_comm_has_failed(me->comm) && hotbed_monotonic_now() < until)
        hotbed_link_poll(me->link, me->comm, 10);
    CHECK_OK(hotbed_comm_failure(me->comm, &fault));
    return fault;
}

/* The same for a rank whose operation `run` needs rank p. */
static hotbed_comm_fault wait_for_departure(rank *me, uint32_t p, uint64_t run) {
    uint64_t until = in_seconds(20);
    while (!hotbed_comm_has_failed(me->comm) && hotbed_monotonic_now() < until) {
        hotbed_link_poll(me->link, me->comm, 10);
        (void)hotbed_link_left(me->link, me->comm, p, run, NULL);
    }
    return wait_for_fault(me);
}

static void meet_body(rank *me) {
    uint32_t last = me->size - 1;
    if (me->number == last) {
        CHECK(!hotbed_link_close(me->link, 7));
        return;
    }
    hotbed_comm_fault fault = wait_for_departure(me, last, 8); /* seen here, or announced */
    CHECK_EQ(fault.reason, HOTBED_COMM_LEFT);
    CHECK_EQ(fault.rank, last);
    CHECK_EQ(fault.operation, 8);
    CHECK(!hotbed_link_left(me->link, me->comm, last, 7, NULL)); /* that operation it completed */
    CHECK(!hotbed_link_close(me->link, 8));
}

static void all_ranks_connect_and_close(hotbed_backend backend) {
    for (uint32_t size = 2; size <= RANKS; size++)
        run_ranks(size, meet_body);
}

static void alone_body(rank *me) {
    hotbed_link_poll(me->link, me->comm, 0);
    CHECK(!hotbed_comm_has_failed(me->comm));
    CHECK(!hotbed_link_close(me->link, 0));
}

static void a_single_rank_opens_no_connection(hotbed_backend backend) {
    run_ranks(1, alone_body);
}

/* One thread of rank 0 waits in the poll, as the watching thread of a communicator does; another
 * polls repeatedly, as every call of a communicator does.  Then the other ranks leave.  TSan checks
 * the state that both threads share. */
static void *watch_main(void *argument) {
    rank *me = argument;
    uint64_t until = in_seconds(20);
    bool left = false;
    while (!left && hotbed_monotonic_now() < until) {
        hotbed_link_poll(me->link, me->comm, 1);
        left = true;
        for (uint32_t p = 1; p < me->size; p++)
            left = left && hotbed_link_left(me->link, me->comm, p, 1, NULL);
    }
    CHECK(left);
    return NULL;
}

static void two_threads_body(rank *me) {
    if (me->number == 0) {
        pthread_t watcher;
        CHECK_EQ(pthread_create(&watcher, NULL, watch_main, me), 0);
        for (uint32_t i = 0; i < 2000; i++)
            hotbed_link_poll(me->link, me->comm, 0);
        (void)pthread_barrier_wait(&all_know);
        uint64_t until = in_seconds(20);
        while (!hotbed_link_left(me->link, me->comm, me->size - 1, 1, NULL) &&
               hotbed_monotonic_now() < until)
            hotbed_link_poll(me->link, me->comm, 0);
        CHECK_EQ(pthread_join(watcher, NULL), 0);
    } else {
        (void)pthread_barrier_wait(&all_know);
    }
    CHECK(!hotbed_link_close(me->link, 0));
}

static void two_threads_poll_one_link(hotbed_backend backend) {
    run_ranks(RANKS, two_threads_body);
}

static void spread_body(rank *me) {
    if (me->number == 1)
        (void)hotbed_comm_record_fault(
            me->comm, HOTBED_COMM_DEADLINE, 3, 42, "rank 3 sleeps in operation %d", 42);
    hotbed_comm_fault fault = wait_for_fault(me);
    CHECK_EQ(fault.reason, HOTBED_COMM_DEADLINE);
    CHECK_EQ(fault.rank, 3);
    CHECK_EQ(fault.operation, 42);
    CHECK_STRING(fault.text, "rank 3 sleeps in operation 42");
    (void)pthread_barrier_wait(&all_know);
    CHECK(!hotbed_link_close(me->link, 0));
}

static void a_failure_reaches_all_ranks(hotbed_backend backend) {
    run_ranks(RANKS, spread_body);
}

/* Rank 1 knows of a failure that the others have not heard of, and leaves: they learn the cause,
 * not only that rank 1 left. */
static void pass_on_body(rank *me) {
    if (me->number == 1) {
        (void)hotbed_comm_record_fault(
            me->comm, HOTBED_COMM_DEADLINE, 2, 42, "rank 2 sleeps in operation %d", 42);
        CHECK(!hotbed_link_close(me->link, 41));
        return;
    }
    hotbed_comm_fault fault = wait_for_departure(me, 1, 42);
    CHECK_EQ(fault.reason, HOTBED_COMM_DEADLINE);
    CHECK_EQ(fault.rank, 2);
    CHECK_EQ(fault.operation, 42);
    CHECK(!hotbed_link_close(me->link, 0));
}

static void a_leaving_rank_passes_the_cause_on(hotbed_backend backend) {
    run_ranks(RANKS, pass_on_body);
}

/* Rank 1's process ends without a word, and so does rank 0's, as soon as it has seen that.  Ranks that look only then
 * name rank 1. */
static void ends_later_body(rank *me) {
    if (me->number == 1)
        hotbed_link_drop(me->link);
    if (me->number == 0) {
        CHECK_EQ(wait_for_fault(me).rank, 1);
        hotbed_link_drop(me->link);
    }
    (void)pthread_barrier_wait(&all_know);
    if (me->number < 2)
        return;
    hotbed_comm_fault fault = wait_for_fault(me);
    CHECK_EQ(fault.reason, HOTBED_COMM_LEFT);
    CHECK_EQ(fault.rank, 1);
    CHECK_STRING(fault.text, "rank 1 is gone: its process ended without a word");
    CHECK(hotbed_link_close(me->link, 0));
}

static void a_rank_that_ends_after_a_failure_is_not_blamed(hotbed_backend backend) {
    run_ranks(RANKS, ends_later_body);
}

/* Rank 1 leaves in order, and rank 0, which needs it, ends its process. */
static void leaves_later_body(rank *me) {
    if (me->number == 1)
        CHECK(!hotbed_link_close(me->link, 7));
    if (me->number == 0) {
        CHECK_EQ(wait_for_departure(me, 1, 8).rank, 1);
        hotbed_link_drop(me->link);
    }
    (void)pthread_barrier_wait(&all_know);
    if (me->number < 2)
        return;
    hotbed_comm_fault fault = wait_for_fault(me);
    CHECK_EQ(fault.reason, HOTBED_COMM_LEFT);
    CHECK_EQ(fault.rank, 1);
    CHECK_EQ(fault.operation, 8);
    (void)hotbed_link_close(me->link, 0);
}

static void a_rank_that_ends_after_a_departure_is_not_blamed(hotbed_backend backend) {
    run_ranks(RANKS, leaves_later_body);
}

/* The processes of ranks 0 and 1 end, and neither has seen the other's end. */
static void end_together_body(rank *me) {
    if (me->number < 2)
        hotbed_link_drop(me->link);
    (void)pthread_barrier_wait(&all_know);
    if (me->number < 2)
        return;
    hotbed_comm_fault fault = wait_for_fault(me);
    CHECK_EQ(fault.reason, HOTBED_COMM_LEFT);
    CHECK_EQ(fault.rank, -1);
    CHECK_STRING(
        fault.text, "ranks 0, 1 are gone: their processes ended, it is not known which one first");
    (void)hotbed_link_close(me->link, 0);
}

static void processes_that_end_together_are_all_named(hotbed_backend backend) {
    run_ranks(RANKS, end_together_body);
}

static void check_says(const char *text) {
    if (strstr(hotbed_last_error(), text) == NULL)
        printf("%s\nlacks: %s\n", hotbed_last_error(), text);
    CHECK(strstr(hotbed_last_error(), text) != NULL);
}

/* A missing rank is an error within the deadline, at rank 0 and at the others. */
static void a_rendezvous_has_a_deadline(hotbed_backend backend) {
    hotbed_link_place place;
    int listener = -1;
    hotbed_link *link = NULL;
    CHECK_OK(hotbed_link_listen(0, &listener, &place));
    uint64_t soon = hotbed_monotonic_now() + 50000000U;
    CHECK_STATUS(hotbed_link_open(0, 2, &place, listener, NULL, 0, soon, &link), HOTBED_ERR_COMM);
    char expected[400];
    (void)snprintf(
        expected, sizeof expected, " s for rank 1 at %s:%u; check that", place.machine, place.port);
    check_says("rank 0 of 2 waited ");
    check_says(expected);
    soon = hotbed_monotonic_now() + 50000000U; /* no rank listens there any more */
    CHECK_STATUS(hotbed_link_open(1, 2, &place, -1, NULL, 0, soon, &link), HOTBED_ERR_COMM);
    check_says("rank 1 of 2 waited ");
    check_says(" s for rank 0 at ");
    CHECK(link == NULL);
}

typedef struct early_rank {
    hotbed_link_place place;
    char text[1024];
} early_rank;

static void *early_main(void *argument) {
    early_rank *me = argument;
    hotbed_link *link = NULL;
    CHECK_STATUS(
        hotbed_link_open(1, 4, &me->place, -1, NULL, 0, in_seconds(20), &link), HOTBED_ERR_COMM);
    (void)snprintf(me->text, sizeof me->text, "%s", hotbed_last_error());
    return NULL;
}

/* Ranks 0 and 1 of 4 come to the place that the environment gives.  Rank 1 learns from rank 0 which
 * ranks are missing, and does not wait for its own, later deadline. */
static void the_missing_ranks_are_named(hotbed_backend backend) {
    char expected[200];
    for (uint64_t ms = 250;; ms *= 2) { /* until rank 1 comes within rank 0's deadline */
        early_rank one = {.text = ""};
        hotbed_link_place place = {.hosts = {"127.0.0.1"}};
        int listener = -1;
        hotbed_link *link = NULL;
        pthread_t thread;
        CHECK_OK(hotbed_link_listen(0, &listener, &one.place));
        place.port = one.place.port;
        one.place = place;
        CHECK_EQ(pthread_create(&thread, NULL, early_main, &one), 0);
        uint64_t until = hotbed_monotonic_now() + ms * 1000000U;
        CHECK_STATUS(
            hotbed_link_open(0, 4, &place, listener, NULL, 0, until, &link), HOTBED_ERR_COMM);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        (void)snprintf(
            expected, sizeof expected,
            " s for ranks 2, 3 at 127.0.0.1:%u; start all ranks, or check MASTER_ADDR and "
            "MASTER_PORT",
            place.port);
        if (strstr(hotbed_last_error(), " ranks 1, 2, 3 at ") != NULL)
            continue;
        check_says("rank 0 of 4 waited ");
        check_says(expected);
        CHECK(strncmp(one.text, "rank 1 of 4 waited ", 19) == 0);
        CHECK(strstr(one.text, expected) != NULL);
        return;
    }
}

/* A rank that knows another number of ranks than rank 0. */
typedef struct sized_rank {
    pthread_t thread;
    pthread_barrier_t *start;
    hotbed_link_place place;
    int listener;
    uint32_t number, size;
    char text[1024];
} sized_rank;

static void *sized_main(void *argument) {
    sized_rank *me = argument;
    hotbed_link *link = NULL;
    (void)pthread_barrier_wait(me->start);
    CHECK_STATUS(
        hotbed_link_open(
            me->number, me->size, &me->place, me->listener, NULL, 0, in_seconds(600), &link),
        HOTBED_ERR_ARGUMENT);
    (void)snprintf(me->text, sizeof me->text, "%s", hotbed_last_error());
    return NULL;
}

/* Ranks whose numbers of ranks differ report both numbers and a rank with each, long before the
 * deadline.  sizes[r] is the number that rank r knows. */
static void check_sizes(uint32_t n, const uint32_t *sizes, bool environment) {
    sized_rank ranks[RANKS];
    pthread_barrier_t start;
    hotbed_link_place place;
    int listener = -1;
    uint64_t began = hotbed_monotonic_now();
    CHECK_EQ(pthread_barrier_init(&start, NULL, n), 0);
    CHECK_OK(hotbed_link_listen(0, &listener, &place));
    if (environment)
        place = (hotbed_link_place){.hosts = {"127.0.0.1"}, .port = place.port};
    for (uint32_t r = 0; r < n; r++) {
        ranks[r] = (sized_rank){
            .start = &start,
            .place = place,
            .listener = r == 0 ? listener : -1,
            .number = r,
            .size = sizes[r],
        };
        CHECK_EQ(pthread_create(&ranks[r].thread, NULL, sized_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < n; r++)
        CHECK_EQ(pthread_join(ranks[r].thread, NULL), 0);
    CHECK(hotbed_monotonic_now() - began < 300 * UINT64_C(1000000000));
    for (uint32_t r = 0; r < n; r++) {
        bool named = false;
        for (uint32_t p = 1; p < n; p++) {
            char expected[200];
            (void)snprintf(
                expected, sizeof expected,
                "rank %u: the number of ranks is %u on rank 0, but %u on rank %u; %s", r, sizes[0],
                sizes[p], p,
                environment ? "set WORLD_SIZE to the same number for all ranks"
                            : "pass the same number on all ranks");
            named = named || (sizes[p] != sizes[0] && strcmp(ranks[r].text, expected) == 0);
        }
        if (!named)
            printf("rank %u: %s\n", r, ranks[r].text);
        CHECK(named);
    }
    CHECK_EQ(pthread_barrier_destroy(&start), 0);
}

static void numbers_of_ranks_are_compared(hotbed_backend backend) {
    const uint32_t more[] = {3, 3, 4, 4}, fewer[] = {4, 2, 3, 4}, one[] = {2, 3, 3};
    for (int environment = 0; environment < 2; environment++) {
        check_sizes(4, more, environment == 1);
        check_sizes(4, fewer, environment == 1);
        check_sizes(3, one, environment == 1);
    }
}

/* A port in use is an error that names the port. */
static void a_port_in_use_is_an_error(hotbed_backend backend) {
    hotbed_link_place place, again;
    int listener = -1, second = -1;
    CHECK_OK(hotbed_link_listen(0, &listener, &place));
    CHECK_STATUS(hotbed_link_listen(place.port, &second, &again), HOTBED_ERR_COMM);
    check_says(strerror(EADDRINUSE));
    check_says("choose another MASTER_PORT");
    CHECK_EQ(second, -1);
    hotbed_link_unlisten(listener);
}

static void *stranger_main(void *argument) {
    const hotbed_link_place *place = argument;
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)place->port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    for (int i = 0; i < 3; i++) {
        int s = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(s >= 0);
        CHECK_EQ(connect(s, (struct sockaddr *)&address, sizeof address), 0);
        char noise[64];
        memset(noise, 'x', sizeof noise);
        CHECK_EQ(send(s, noise, sizeof noise, MSG_NOSIGNAL), sizeof noise);
        (void)close(s);
    }
    return NULL;
}

static void strangers_are_disconnected(hotbed_backend backend) {
    hotbed_link_place place;
    int listener = -1;
    CHECK_OK(hotbed_link_listen(0, &listener, &place));
    pthread_t stranger;
    CHECK_EQ(pthread_create(&stranger, NULL, stranger_main, &place), 0);
    CHECK_EQ(pthread_join(stranger, NULL), 0); /* the strangers are in the queue first */
    rank ranks[2];
    for (uint32_t r = 0; r < 2; r++) {
        ranks[r] = (rank){
            .number = r,
            .size = 2,
            .place = place,
            .listener = r == 0 ? listener : -1,
            .body = alone_body,
        };
        CHECK_EQ(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < 2; r++)
        CHECK_EQ(pthread_join(ranks[r].thread, NULL), 0);
}

/* Rank 1 is a child process of the test, and is killed. */
static void a_death_is_seen(hotbed_backend backend) {
    hotbed_link_place place;
    int listener = -1;
    CHECK_OK(hotbed_link_listen(0, &listener, &place));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        hotbed_link *link = NULL;
        if (hotbed_link_open(1, 2, &place, -1, NULL, 0, in_seconds(20), &link) == HOTBED_OK)
            (void)kill(getpid(), SIGKILL);
        _exit(1);
    }
    rank me = {.number = 0, .size = 2};
    me.comm = create_linked(0, 2);
    CHECK_OK(hotbed_link_open(0, 2, &place, listener, NULL, 0, in_seconds(20), &me.link));
    hotbed_comm_fault fault = wait_for_fault(&me);
    CHECK_EQ(fault.reason, HOTBED_COMM_LEFT);
    CHECK_EQ(fault.rank, 1);
    CHECK(hotbed_link_close(me.link, 0));
    hotbed_comm_destroy(me.comm);
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status));
}

/* Rank 1 is a child process, which forks a process of its own, such as a data loader's worker, and is killed.  That
 * process lives until this test ends, and keeps no socket open. */
static void a_death_is_seen_while_a_forked_process_lives(hotbed_backend backend) {
    hotbed_link_place place;
    int listener = -1, lives[2];
    CHECK_EQ(pipe(lives), 0);
    CHECK_OK(hotbed_link_listen(0, &listener, &place));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        hotbed_link *link = NULL;
        (void)close(lives[1]);
        if (hotbed_link_open(1, 2, &place, -1, NULL, 0, in_seconds(20), &link) != HOTBED_OK)
            _exit(1);
        if (fork() == 0) {
            char byte;
            _exit((int)read(lives[0], &byte, 1)); /* until the test closes the pipe */
        }
        (void)kill(getpid(), SIGKILL);
    }
    rank me = {.number = 0, .size = 2};
    me.comm = create_linked(0, 2);
    CHECK_OK(hotbed_link_open(0, 2, &place, listener, NULL, 0, in_seconds(20), &me.link));
    hotbed_comm_fault fault = wait_for_fault(&me);
    CHECK_EQ(fault.reason, HOTBED_COMM_LEFT);
    CHECK_EQ(fault.rank, 1);
    CHECK(hotbed_link_close(me.link, 0));
    hotbed_comm_destroy(me.comm);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    (void)close(lives[0]);
    (void)close(lives[1]);
}

static void set(const char *rank_text, const char *size, const char *host, const char *port) {
    CHECK_EQ(setenv("RANK", rank_text, 1), 0);
    CHECK_EQ(setenv("WORLD_SIZE", size, 1), 0);
    CHECK_EQ(setenv("MASTER_ADDR", host, 1), 0);
    CHECK_EQ(setenv("MASTER_PORT", port, 1), 0);
}

static void the_environment_is_checked(hotbed_backend backend) {
    uint32_t number = 9, size = 9;
    hotbed_link_place place;
    set("3", "4", "localhost", "29500");
    CHECK_OK(hotbed_link_read(NULL, &number, &size, &place));
    CHECK_EQ(number, 3);
    CHECK_EQ(size, 4);
    CHECK_EQ(place.port, 29500);
    CHECK_STRING(place.hosts[0], "localhost");
    const char *const bad[][4] = {
        {"4", "4", "localhost", "29500"}, {"-1", "4", "localhost", "29500"},
        {"", "4", "localhost", "29500"},  {"1x", "4", "localhost", "29500"},
        {"0", "0", "localhost", "29500"}, {"0", "1025", "localhost", "29500"},
        {"0", "4", "", "29500"},          {"0", "4", "localhost", "65536"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        set(bad[i][0], bad[i][1], bad[i][2], bad[i][3]);
        CHECK_STATUS(hotbed_link_read(NULL, &number, &size, &place), HOTBED_ERR_ARGUMENT);
    }
    CHECK_EQ(unsetenv("RANK"), 0);
    CHECK_STATUS(hotbed_link_read(NULL, &number, &size, &place), HOTBED_ERR_ARGUMENT);
}

/* Ranks that are threads exchange the rendezvous address through their communicator. */
static void bootstrap_body(world_rank *me) {
    uint32_t number = 0, size = 0;
    hotbed_link_place place;
    int listener = -1;
    hotbed_link *link = NULL;
    CHECK_OK(hotbed_link_read(me->comm, &number, &size, &place));
    CHECK_EQ(number, me->rank);
    CHECK_EQ(size, me->size);
    CHECK_OK(hotbed_link_find(me->comm, number, &place, &listener));
    CHECK_EQ(listener >= 0, me->rank == 0);
    CHECK_OK(hotbed_link_open(number, size, &place, listener, NULL, 0, in_seconds(20), &link));
    CHECK(!hotbed_link_close(link, 0));
}

static void a_communicator_gives_the_rendezvous_address(hotbed_backend backend) {
    world_run_all(NULL, bootstrap_body, NULL);
}

/* --- communicators of sockets ----------------------------------------------------------------- */

static bool broadcast_by_comm(void *self, void *data, uint64_t bytes) {
    const world_rank *me = self;
    return hotbed_comm_broadcast(me->comm, 0, bytes, data, me->stream) == HOTBED_OK &&
           hotbed_stream_sync(me->stream) == HOTBED_OK;
}

static bool broadcast_fails(void *self, void *data, uint64_t bytes) {
    memset(data, 0, bytes);
    return false;
}

static hotbed_rendezvous rendezvous_of(world_rank *me) {
    return (hotbed_rendezvous){
        .size = sizeof(hotbed_rendezvous),
        .rank = me->rank,
        .world = me->size,
        .broadcast = broadcast_by_comm,
        .self = me,
    };
}

/* Ranks that are threads find each other through another communicator, then sum over sockets. */
static void sockets_body(world_rank *me) {
    hotbed_rendezvous by = rendezvous_of(me);
    hotbed_comm *comm = NULL;
    CHECK_OK(hotbed_comm_create_sockets(NULL, &by, &comm));
    CHECK_EQ(hotbed_comm_rank(comm), me->rank);
    CHECK_EQ(hotbed_comm_size(comm), me->size);
    CHECK_STRING(hotbed_transport_name(hotbed_comm_transport(comm)), "sockets");
    float one = 1.0F, sum = 0.0F;
    CHECK_OK(hotbed_comm_all_reduce(comm, 1, 1.0F, &one, &sum, me->stream));
    CHECK_OK(hotbed_stream_sync(me->stream));
    CHECK(sum == (float)me->size);
    hotbed_comm_destroy(comm);
}

static void ranks_find_each_other_through_the_callers_broadcast(hotbed_backend backend) {
    world_run_all(NULL, sockets_body, NULL);
}

static void failing_body(world_rank *me) {
    hotbed_rendezvous by = rendezvous_of(me);
    hotbed_comm *comm = NULL;
    by.broadcast = broadcast_fails;
    CHECK_STATUS(hotbed_comm_create_sockets(NULL, &by, &comm), HOTBED_ERR_COMM);
    CHECK(comm == NULL);
    by.broadcast = NULL;
    CHECK_STATUS(hotbed_comm_create_sockets(NULL, &by, &comm), HOTBED_ERR_ARGUMENT);
    by = rendezvous_of(me);
    by.rank = me->size;
    CHECK_STATUS(hotbed_comm_create_sockets(NULL, &by, &comm), HOTBED_ERR_ARGUMENT);
    by.world = 0;
    CHECK_STATUS(hotbed_comm_create_sockets(NULL, &by, &comm), HOTBED_ERR_ARGUMENT);
    by = rendezvous_of(me);
    by.size = 3;
    CHECK_STATUS(hotbed_comm_create_sockets(NULL, &by, &comm), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_comm_create_sockets(NULL, NULL, NULL), HOTBED_ERR_ARGUMENT);
}

static void a_rendezvous_is_checked(hotbed_backend backend) {
    world_run_all(NULL, failing_body, NULL);
}

/* The last rank aborts, while the others wait for it. */
static void reason_body(world_rank *me) {
    hotbed_rendezvous by = rendezvous_of(me);
    hotbed_comm *comm = NULL;
    char expected[80];
    hotbed_comm_fault fault = {.size = sizeof fault};
    const hotbed_error_detail why = {
        .size = sizeof why,
        .status = HOTBED_ERR_RANGE,
        .has = HOTBED_HAS_KEY | HOTBED_HAS_RANK,
        .rank = 99, /* of another communicator */
        .key = 7,
        .key_type = HOTBED_KEY_I64,
        .table = "user"};
    CHECK_OK(hotbed_comm_create_sockets(NULL, &by, &comm));
    if (me->rank == me->size - 1)
        hotbed_comm_abort(comm, "key 7 is unknown", &why);
    else if (hotbed_comm_barrier(comm, me->stream) == HOTBED_OK)
        CHECK_STATUS(hotbed_stream_sync(me->stream), HOTBED_ERR_COMM);
    (void)snprintf(expected, sizeof expected, "rank %u aborted: key 7 is unknown", me->size - 1);
    CHECK_OK(hotbed_comm_failure(comm, &fault));
    CHECK_EQ(fault.reason, HOTBED_COMM_ABORTED);
    CHECK_EQ(fault.rank, (int32_t)me->size - 1);
    CHECK_STRING(fault.text, expected);
    CHECK_EQ(fault.error.status, HOTBED_ERR_RANGE);
    CHECK_STATUS(hotbed_comm_barrier(comm, me->stream), HOTBED_ERR_COMM);
    CHECK_FIELDS(
            .cause = HOTBED_CAUSE_COMM, .has = HOTBED_HAS_KEY | HOTBED_HAS_RANK,
            .rank = (int32_t)me->size - 1, .key = 7, .key_type = HOTBED_KEY_I64, .table = "user");
    hotbed_comm_abort(NULL, "nothing", NULL);
    hotbed_comm_destroy(comm);
}

static void an_abort_carries_its_reason(hotbed_backend backend) {
    world_run_all(NULL, reason_body, NULL);
}

const hotbed_test hotbed_tests[] = {
    {TEST(all_ranks_connect_and_close)},
    {TEST(a_single_rank_opens_no_connection)},
    {TEST(two_threads_poll_one_link)},
    {TEST(a_failure_reaches_all_ranks)},
    {TEST(a_leaving_rank_passes_the_cause_on)},
    {TEST(a_rank_that_ends_after_a_failure_is_not_blamed)},
    {TEST(a_rank_that_ends_after_a_departure_is_not_blamed)},
    {TEST(processes_that_end_together_are_all_named)},
    {TEST(a_rendezvous_has_a_deadline)},
    {TEST(the_missing_ranks_are_named)},
    {TEST(numbers_of_ranks_are_compared)},
    {TEST(a_port_in_use_is_an_error)},
    {TEST(strangers_are_disconnected)},
    {TEST(a_death_is_seen)},
    {TEST(a_death_is_seen_while_a_forked_process_lives)},
    {TEST(the_environment_is_checked)},
    {TEST(a_communicator_gives_the_rendezvous_address)},
    {TEST(ranks_find_each_other_through_the_callers_broadcast)},
    {TEST(a_rendezvous_is_checked)},
    {TEST(an_abort_carries_its_reason)},
    {NULL, NULL},
};
