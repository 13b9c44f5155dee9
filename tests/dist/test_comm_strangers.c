/* tests/dist/test_comm_strangers.c - a rendezvous among programs that are no ranks, and ranks among programs that
 * send anything.
 *
 * The environment variable HOTBED_TEST_SECONDS=N fuzzes for N seconds instead of a few rounds. */
#define _DEFAULT_SOURCE 1 /* setenv() */
#include "base/clock.h"
#include "base/stream.h"
#include "dist/comm/comm_handshake.h"
#include "dist/comm/comm_socket.h"
#include "tests/dist/world.h"
#include "tests/support/harness.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static uint64_t in_ms(uint64_t ms) {
    return hotbed_monotonic_now() + ms * 1000000U;
}

/* --- sockets of programs that are no ranks ----------------------------------------------------- */

static int connect_here(uint32_t port) {
    const struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    int s = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(s >= 0);
    if (connect(s, (const struct sockaddr *)&address, sizeof address) == 0)
        return s;
    (void)close(s);
    return -1;
}

static void check_text(const char *text) {
    for (const char *c = text; *c != '\0'; c++)
        CHECK((unsigned char)*c >= ' ' && *c != 0x7f);
}

static void check_says(const char *text) {
    if (strstr(hotbed_last_error(), text) == NULL)
        printf("%s\nlacks: %s\n", hotbed_last_error(), text);
    CHECK(strstr(hotbed_last_error(), text) != NULL);
    check_text(hotbed_last_error());
}

static hotbed_link_place place_here(uint32_t port, uint64_t cookie) {
    return (hotbed_link_place){.hosts = {"127.0.0.1"}, .port = port, .cookie = cookie};
}

/* --- ranks among them --------------------------------------------------------------------------- */

enum { RANKS = 4 };

typedef struct rank {
    pthread_t thread;
    uint32_t number, size;
    hotbed_link_place place;
    int listener;
    hotbed_link *link;
} rank;

static void *rank_main(void *argument) {
    rank *me = argument;
    uint64_t payload[2] = {0};
    if (me->number == 0)
        payload[1] = 77;
    CHECK_OK(hotbed_link_open(
        me->number, me->size, &me->place, me->listener, payload, sizeof payload, in_ms(60000),
        &me->link));
    CHECK_EQ(payload[1], 77);
    for (uint32_t p = 0; p < me->size; p++)
        CHECK_EQ(hotbed_link_socket(me->link, p) >= 0, p != me->number);
    return NULL;
}

static void start_ranks(rank *ranks, uint32_t size, const hotbed_link_place *place, int listener) {
    for (uint32_t r = 0; r < size; r++) {
        ranks[r] = (rank){.number = r, .size = size, .place = *place};
        ranks[r].listener = r == 0 ? listener : -1;
        CHECK_EQ(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
}

static void join_ranks(rank *ranks, uint32_t size) {
    for (uint32_t r = 0; r < size; r++)
        CHECK_EQ(pthread_join(ranks[r].thread, NULL), 0);
    for (uint32_t r = 0; r < size; r++)
        hotbed_link_drop(ranks[r].link);
}

/* More connections than rank 0 reads side by side, all before the ranks.  One after the other they would take ten
 * minutes, and the ranks' deadline is one. */
static void silent_strangers_cost_no_time(hotbed_backend backend) {
    enum { STRANGERS = 300 };
    struct rlimit most;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &most), 0);
    if (most.rlim_cur < STRANGERS * 2 + 100)
        SKIP("fewer than 700 open files are allowed");
    hotbed_link_place place;
    int listener = -1, strangers[STRANGERS];
    rank ranks[RANKS];
    CHECK_OK(hotbed_link_listen(0, &listener, &place));
    for (uint32_t i = 0; i < STRANGERS; i++) {
        strangers[i] = connect_here(place.port);
        CHECK(strangers[i] >= 0);
    }
    start_ranks(ranks, RANKS, &place, listener);
    join_ranks(ranks, RANKS);
    for (uint32_t i = 0; i < STRANGERS; i++)
        (void)close(strangers[i]);
}

/* A process of rank 1 that ended before the others came, and its successor. */
static void a_rank_that_starts_again_is_accepted(hotbed_backend backend) {
    hotbed_link_place place;
    int listener = -1;
    rank ranks[RANKS];
    CHECK_OK(hotbed_link_listen(0, &listener, &place));
    int s = connect_here(place.port);
    const hotbed_hello early = {
        .magic = HOTBED_HELLO_MAGIC,
        .version = HOTBED_HANDSHAKE_VERSION,
        .cookie = place.cookie,
        .rank = 1,
        .size = RANKS,
        .port = 9,
    };
    CHECK_EQ(send(s, &early, sizeof early, MSG_NOSIGNAL), sizeof early);
    (void)close(s);
    start_ranks(ranks, RANKS, &place, listener);
    join_ranks(ranks, RANKS);
}

/* --- a program in rank 0's place ---------------------------------------------------------------- */

/* What a program does with each connection. */
typedef struct stranger {
    pthread_t thread;
    uint32_t port;
    int listener;
    uint32_t stop; /* atomic */
    const void *says;
    size_t bytes; /* 0: it stays silent */
} stranger;

static void *stranger_main(void *argument) {
    enum { HELD = 64 };
    stranger *me = argument;
    int held[HELD];
    uint32_t n = 0;
    while (__atomic_load_n(&me->stop, __ATOMIC_ACQUIRE) == 0) {
        struct pollfd fd = {.fd = me->listener, .events = POLLIN};
        if (poll(&fd, 1, 5) <= 0)
            continue;
        if (n >= HELD)
            (void)close(held[n % HELD]);
        held[n % HELD] = accept(me->listener, NULL, NULL);
        if (me->bytes > 0)
            (void)send(held[n % HELD], me->says, me->bytes, MSG_NOSIGNAL);
        n++;
    }
    for (uint32_t i = 0; i < n && i < HELD; i++)
        (void)close(held[i]);
    return NULL;
}

/* Rank 1 of 2 is refused at a place, with a text that has `expected`. Until its deadline it goes on trying. What
 * answers there is a thread, which a busy machine may not run before the deadline: then there is a longer one. */
static void refused(const hotbed_link_place *place, const char *expected) {
    for (uint64_t ms = 100; ms < 60000; ms *= 4) {
        hotbed_link *link = NULL;
        uint64_t payload = 0;
        CHECK_STATUS(
            hotbed_link_open(1, 2, place, -1, &payload, sizeof payload, in_ms(ms), &link),
            HOTBED_ERR_COMM);
        if (strstr(hotbed_last_error(), expected) != NULL)
            break;
    }
    check_says(expected);
}

/* The same at a program that sends these bytes. */
static void meet_stranger(const void *says, size_t bytes, const char *expected) {
    stranger them = {.says = says, .bytes = bytes};
    them.listener = hotbed_socket_listen(&them.port);
    CHECK(them.listener >= 0);
    CHECK_EQ(pthread_create(&them.thread, NULL, stranger_main, &them), 0);
    const hotbed_link_place place = place_here(them.port, 5);
    refused(&place, expected);
    __atomic_store_n(&them.stop, 1, __ATOMIC_RELEASE);
    CHECK_EQ(pthread_join(them.thread, NULL), 0);
    hotbed_socket_close(&them.listener);
}

static const hotbed_welcome well = {
    .magic = HOTBED_WELCOME_MAGIC, .version = HOTBED_HANDSHAKE_VERSION, .cookie = 5};

static void a_program_in_the_place_of_rank_0_is_named(hotbed_backend backend) {
    const char http[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    const hotbed_hello echo = {
        .magic = HOTBED_HELLO_MAGIC, .version = HOTBED_HANDSHAKE_VERSION, .cookie = 5};
    hotbed_welcome other = well;
    meet_stranger(http, sizeof http, "another program answers there");
    meet_stranger(&echo, sizeof echo, "another program answers there");
    meet_stranger(NULL, 0, "a program accepts connections there and does not answer");
    other.version = 9;
    meet_stranger(&other, sizeof other, "a rank with version 9 of the rendezvous");
    other = well, other.cookie = 6;
    meet_stranger(&other, sizeof other, "another program answers there");
    other.cookie = 0;
    meet_stranger(&other, sizeof other, "a rank of another job answers there");
}

/* A rank 0 that sends a list of ranks in which a host's name does not end, or is no address. */
static void an_answer_without_addresses_is_refused(hotbed_backend backend) {
    struct {
        hotbed_welcome welcome;
        hotbed_answer answer;
        hotbed_seat table[2];
    } says = {.welcome = well, .answer = {.size = 2}};
    const char *expected = "rank 0 sent a list of ranks without addresses";
    memset(says.table[1].host, '7', sizeof says.table[1].host);
    says.table[1].port = 80;
    meet_stranger(&says, sizeof says, expected);
    memset(&says.table[1], 0, sizeof says.table[1]);
    says.table[1].port = 80;
    meet_stranger(&says, sizeof says, expected);
    (void)snprintf(says.table[1].host, sizeof says.table[1].host, "1.2.3.4");
    says.table[1].port = 65536 + 80;
    meet_stranger(&says, sizeof says, expected);
    (void)snprintf(says.table[1].host, sizeof says.table[1].host, "\x1b[2J");
    says.table[1].port = 80;
    meet_stranger(&says, sizeof says, expected);
    says.answer.size = 1347703880;
    meet_stranger(&says, sizeof says, "rank 0 answers for 1347703880 ranks");
}

/* A host that the name service does not know is named as such. */
static void an_unknown_host_is_named(hotbed_backend backend) {
    hotbed_link_place place = {.hosts = {"no-such-host.invalid"}, .port = 29500};
    hotbed_link *link = NULL;
    CHECK_STATUS(hotbed_link_open(1, 2, &place, -1, NULL, 0, in_ms(50), &link), HOTBED_ERR_COMM);
    check_says(" s for rank 0 at no-such-host.invalid:29500; the name of the host is unknown: ");
}

/* --- the word of a job -------------------------------------------------------------------------- */

static uint64_t cookie_of(const char *job, const char *run) {
    uint32_t number, size;
    hotbed_link_place place;
    CHECK_EQ(job == NULL ? unsetenv("HOTBED_JOB") : setenv("HOTBED_JOB", job, 1), 0);
    CHECK_EQ(
        run == NULL ? unsetenv("TORCHELASTIC_RUN_ID") : setenv("TORCHELASTIC_RUN_ID", run, 1), 0);
    CHECK_OK(hotbed_link_read(NULL, &number, &size, &place));
    return place.cookie;
}

/* Ranks of two jobs on one port do not mix: rank 1 of job b refuses rank 0 of job a. */
static void jobs_with_two_words_do_not_mix(hotbed_backend backend) {
    CHECK_EQ(setenv("RANK", "1", 1), 0);
    CHECK_EQ(setenv("WORLD_SIZE", "2", 1), 0);
    CHECK_EQ(setenv("MASTER_ADDR", "127.0.0.1", 1), 0);
    CHECK_EQ(setenv("MASTER_PORT", "29500", 1), 0);
    CHECK(cookie_of("a", NULL) != cookie_of("b", NULL));
    CHECK(cookie_of(NULL, "a") != cookie_of(NULL, NULL));
    CHECK_EQ(cookie_of("a", "x"), cookie_of("a", "y"));
    CHECK_EQ(cookie_of("", "a"), cookie_of(NULL, "a"));

    hotbed_link_place place;
    int listener = -1;
    rank ranks[2];
    CHECK_OK(hotbed_link_listen(0, &listener, &place));
    hotbed_link_place ours = place_here(place.port, cookie_of("a", NULL));
    const hotbed_link_place theirs = place_here(place.port, cookie_of("b", NULL));
    ranks[0] = (rank){.size = 2, .place = ours, .listener = listener};
    CHECK_EQ(pthread_create(&ranks[0].thread, NULL, rank_main, &ranks[0]), 0);
    refused(&theirs, "a rank of another job answers there");
    ranks[1] = (rank){.number = 1, .size = 2, .place = ours, .listener = -1};
    CHECK_EQ(pthread_create(&ranks[1].thread, NULL, rank_main, &ranks[1]), 0);
    join_ranks(ranks, 2);
}

/* --- fuzzing ------------------------------------------------------------------------------------ */

/* A program that plays ranks badly.  All its random numbers come from one state. */
typedef struct player {
    pthread_t thread;
    uint64_t random;
    uint64_t cookie; /* that it knows */
    uint32_t port;   /* where it connects to; 0: it listens instead */
    uint32_t connections;
    int listener; /* the place of rank 0 */
    int second;   /* the seats of ranks that it plays */
    uint32_t second_port;
    uint32_t rank, size; /* of the rank that is tested */
    uint32_t stop;       /* atomic */
    bool honest;         /* it makes no changes */
} player;

static uint64_t below(player *me, uint64_t bound) {
    return hotbed_test_random_r(&me->random) % bound;
}

/* Change some bytes, or none. */
static void mutate(player *me, void *data, size_t bytes) {
    static const uint32_t edges[] = {0, 1, 2, 3, 255, 256, 65535, 65536, 0x7fffffff, 0xffffffff};
    uint8_t *at = data;
    if (me->honest)
        return;
    switch (below(me, 6)) {
    case 0:
        for (uint64_t n = 1 + below(me, 4); n > 0; n--)
            at[below(me, bytes)] ^= (uint8_t)(1U << below(me, 8));
        break;
    case 1: {
        const uint32_t edge = edges[below(me, sizeof edges / sizeof edges[0])];
        memcpy(at + below(me, bytes / sizeof edge) * sizeof edge, &edge, sizeof edge);
        break;
    }
    case 2: {
        const size_t from = below(me, bytes), n = 1 + below(me, bytes - from);
        const int value = (int)below(me, 256);
        memset(at + from, value, n);
        break;
    }
    case 3:
        for (size_t i = 0; i < bytes; i++)
            at[i] = (uint8_t)below(me, 256);
        break;
    default:
        break;
    }
}

/* Send the bytes whole, in pieces, or only some of them.  False: not all. */
static bool say(player *me, int s, const void *data, size_t bytes) {
    const char *at = data;
    const uint64_t way = me->honest ? 0 : below(me, 12);
    const size_t most = way == 1 ? below(me, bytes + 1) : bytes;
    for (size_t sent = 0; sent < most;) {
        size_t n = way == 2 ? 1 + below(me, 64) : most - sent;
        n = n < most - sent ? n : most - sent;
        if (send(s, at + sent, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            return false;
        sent += n;
    }
    return most == bytes;
}

static hotbed_hello hello_of(player *me, uint32_t number, uint32_t to, uint32_t port) {
    hotbed_hello h = {
        .magic = HOTBED_HELLO_MAGIC,
        .version = HOTBED_HANDSHAKE_VERSION,
        .cookie = me->cookie,
        .rank = number,
        .size = me->size,
        .to = to,
        .port = port,
    };
    return h;
}

/* Play a rank, or any program, that connects to the tested one. */
static void call(player *me, int s) {
    uint8_t noise[256];
    hotbed_hello h = hello_of(
        me, me->rank + 1 + (uint32_t)below(me, 3), me->rank, 1 + (uint32_t)below(me, 65535));
    switch (below(me, 5)) {
    case 0: /* silent */
        return;
    case 1: /* another program */
        for (size_t i = 0; i < sizeof noise; i++)
            noise[i] = (uint8_t)below(me, 256);
        (void)say(me, s, noise, 1 + below(me, sizeof noise));
        return;
    case 2: /* it resets the connection */
        (void)setsockopt(
            s, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
        return;
    default:
        mutate(me, &h, sizeof h);
        (void)say(me, s, &h, sizeof h);
        return;
    }
}

/* Play rank 0 to the rank that has connected. */
static void play_host(player *me, int s) {
    hotbed_hello theirs;
    memset(&theirs, 0, sizeof theirs);
    (void)hotbed_socket_recv(s, &theirs, sizeof theirs, in_ms(20));
    hotbed_welcome w = {
        .magic = HOTBED_WELCOME_MAGIC, .version = HOTBED_HANDSHAKE_VERSION, .cookie = me->cookie};
    hotbed_answer a = {.size = me->size};
    hotbed_seat table[RANKS];
    uint64_t payload[2] = {0, 77};
    memset(table, 0, sizeof table);
    for (uint32_t p = 1; p < me->size; p++) {
        (void)snprintf(table[p].host, sizeof table[p].host, "127.0.0.1");
        table[p].port = p == me->rank ? theirs.port : me->second_port;
    }
    mutate(me, &w, sizeof w);
    if (below(me, 8) == 0)
        mutate(me, &a, sizeof a);
    if (below(me, 2) == 0)
        mutate(me, table, me->size * sizeof table[0]);
    if (!say(me, s, &w, sizeof w) || !say(me, s, &a, sizeof a) ||
        !say(me, s, table, me->size * sizeof table[0]) || !say(me, s, payload, sizeof payload))
        return;
    /* Play the ranks with larger numbers, which connect to the tested one. */
    for (uint32_t p = me->rank + 1; p < me->size && theirs.port > 0; p++) {
        int to = connect_here(theirs.port);
        if (to < 0)
            continue;
        hotbed_hello h = hello_of(me, p, me->rank, 9);
        if (below(me, 3) == 0)
            mutate(me, &h, sizeof h);
        (void)say(me, to, &h, sizeof h);
        (void)hotbed_socket_recv(to, &w, sizeof w, in_ms(5));
        hotbed_link_news n = {.kind = HOTBED_NEWS_FAILED, .fault = {.reason = HOTBED_COMM_LEFT}};
        mutate(me, &n, sizeof n);
        (void)say(me, to, &n, sizeof n);
        (void)close(to);
    }
    hotbed_link_news n = {.kind = HOTBED_NEWS_BYE, .runs = 1};
    for (uint64_t i = below(me, 3); i > 0; i--) {
        mutate(me, &n, sizeof n);
        (void)say(me, s, &n, sizeof n);
    }
}

/* Play a rank with a smaller number, to which the tested one connects. */
static void play_seat(player *me, int s) {
    hotbed_hello theirs;
    memset(&theirs, 0, sizeof theirs);
    (void)hotbed_socket_recv(s, &theirs, sizeof theirs, in_ms(20));
    hotbed_welcome w = {
        .magic = HOTBED_WELCOME_MAGIC,
        .version = HOTBED_HANDSHAKE_VERSION,
        .cookie = me->cookie,
        .rank = theirs.to,
    };
    mutate(me, &w, sizeof w);
    (void)say(me, s, &w, sizeof w);
}

static void *player_main(void *argument) {
    player *me = argument;
    int held[64];
    uint32_t n = 0;
    for (; me->port > 0 && n < me->connections; n++) {
        held[n] = connect_here(me->port);
        if (held[n] >= 0)
            call(me, held[n]);
        if (held[n] >= 0 && below(me, 3) == 0)
            (void)close(held[n]), held[n] = -1;
    }
    while (__atomic_load_n(&me->stop, __ATOMIC_ACQUIRE) == 0) {
        struct pollfd fds[2] = {
            {.fd = me->port > 0 ? -1 : me->listener, .events = POLLIN},
            {.fd = me->port > 0 ? -1 : me->second, .events = POLLIN},
        };
        if (poll(fds, 2, 2) <= 0)
            continue;
        for (int i = 0; i < 2; i++) {
            if (fds[i].revents == 0 || n == 64)
                continue;
            held[n] = accept(fds[i].fd, NULL, NULL);
            if (held[n] < 0)
                continue;
            if (i == 0)
                play_host(me, held[n]);
            else
                play_seat(me, held[n]);
            if (below(me, 3) == 0)
                (void)close(held[n]);
            else
                n++;
        }
    }
    for (uint32_t i = 0; i < n; i++)
        if (held[i] >= 0)
            (void)close(held[i]);
    return NULL;
}

static void start_player(player *p) {
    CHECK_EQ(pthread_create(&p->thread, NULL, player_main, p), 0);
}

static void stop_player(player *p) {
    __atomic_store_n(&p->stop, 1, __ATOMIC_RELEASE);
    CHECK_EQ(pthread_join(p->thread, NULL), 0);
}

/* What came of the rounds. */
typedef struct counts {
    uint64_t rounds, well, comm, argument;
} counts;

static void count(counts *c, hotbed_status status) {
    CHECK(status == HOTBED_OK || status == HOTBED_ERR_COMM || status == HOTBED_ERR_ARGUMENT);
    if (status != HOTBED_OK)
        check_text(hotbed_last_error());
    c->rounds++;
    c->well += status == HOTBED_OK ? 1 : 0;
    c->comm += status == HOTBED_ERR_COMM ? 1 : 0;
    c->argument += status == HOTBED_ERR_ARGUMENT ? 1 : 0;
}

/* Ranks find each other among programs that do not know the cookie. */
static void fuzz_outsiders(counts *c) {
    hotbed_link_place place;
    int listener = -1;
    rank ranks[RANKS];
    const uint32_t size = 2 + (uint32_t)hotbed_test_below(RANKS - 1);
    CHECK_OK(hotbed_link_listen(0, &listener, &place));
    player them = {
        .random = hotbed_test_random(),
        .cookie = ~place.cookie, /* which no change of a few bits makes right */
        .port = place.port,
        .connections = 1 + (uint32_t)hotbed_test_below(20),
        .size = size,
    };
    start_player(&them);
    start_ranks(ranks, size, &place, listener);
    join_ranks(ranks, size);
    stop_player(&them);
    count(c, HOTBED_OK);
}

/* Rank 0 alone, among programs that know the cookie. */
static void fuzz_host(counts *c) {
    hotbed_link_place place;
    int listener = -1;
    hotbed_link *link = NULL;
    const uint32_t size = 2 + (uint32_t)hotbed_test_below(RANKS - 1);
    uint64_t payload[2] = {0, 77};
    CHECK_OK(hotbed_link_listen(0, &listener, &place));
    player them = {
        .random = hotbed_test_random(),
        .cookie = place.cookie,
        .port = place.port,
        .connections = 1 + (uint32_t)hotbed_test_below(20),
        .size = size,
    };
    start_player(&them);
    count(
        c, hotbed_link_open(0, size, &place, listener, payload, sizeof payload, in_ms(40), &link));
    stop_player(&them);
    hotbed_link_drop(link);
}

static void nothing(hotbed_comm *comm) {
}

/* Poll the link until it has failed, or nothing more comes. */
static void hear_news(hotbed_link *link, uint32_t number, uint32_t size) {
    static const hotbed_comm_ops ops = {.transport = HOTBED_TRANSPORT_SOCKETS, .destroy = nothing};
    hotbed_comm *comm;
    CHECK_OK(hotbed_comm_new(sizeof *comm, &ops, number, size, NULL, &comm));
    for (uint32_t i = 0; i < 5 && !hotbed_comm_has_failed(comm); i++)
        hotbed_link_poll(link, comm, 2);
    if (hotbed_comm_has_failed(comm)) {
        CHECK(comm->fault.rank >= -1 && comm->fault.rank < (int32_t)size);
        check_text(comm->fault.text);
    }
    hotbed_comm_destroy(comm);
}

/* One rank, to which a program plays all others. */
static void fuzz_guest(counts *c) {
    const uint32_t size = 2 + (uint32_t)hotbed_test_below(RANKS - 1);
    player them = {
        .random = hotbed_test_random(),
        .cookie = hotbed_test_random(),
        .rank = 1 + (uint32_t)hotbed_test_below(size - 1),
        .size = size,
        .honest = hotbed_test_below(8) == 0,
    };
    uint64_t payload[2] = {0};
    hotbed_link *link = NULL;
    uint32_t port = 0;
    them.listener = hotbed_socket_listen(&port);
    them.second = hotbed_socket_listen(&them.second_port);
    CHECK(them.listener >= 0 && them.second >= 0);
    const hotbed_link_place place = place_here(port, them.cookie);
    start_player(&them);
    count(
        c,
        hotbed_link_open(them.rank, size, &place, -1, payload, sizeof payload, in_ms(40), &link));
    if (link != NULL)
        hear_news(link, them.rank, size);
    stop_player(&them);
    hotbed_link_drop(link);
    hotbed_socket_close(&them.listener);
    hotbed_socket_close(&them.second);
}

/* --- communicators ------------------------------------------------------------------------------ */

/* Rank 0 of 2 is a communicator, and a program plays rank 1, up to the data.  Both rendezvous places come by the
 * broadcast and the payload, as for a rank. */
typedef struct false_rank {
    pthread_t thread;
    pthread_barrier_t placed;
    hotbed_link_place place;
    player how;
} false_rank;

static bool give_place(void *self, void *data, uint64_t bytes) {
    false_rank *f = self;
    CHECK_EQ(bytes, sizeof f->place);
    memcpy(&f->place, data, bytes);
    (void)pthread_barrier_wait(&f->placed);
    return true;
}

static void *false_rank_main(void *argument) {
    false_rank *f = argument;
    player *me = &f->how;
    hotbed_link *link = NULL, *data = NULL;
    hotbed_link_place next;
    (void)pthread_barrier_wait(&f->placed);
    if (hotbed_link_open(1, 2, &f->place, -1, &next, sizeof next, in_ms(2000), &link) != HOTBED_OK)
        return NULL;
    if (hotbed_link_open(1, 2, &next, -1, NULL, 0, in_ms(2000), &data) == HOTBED_OK) {
        const int s = hotbed_link_socket(data, 0);
        hotbed_comm_header h;
        uint8_t bytes[sizeof h + 64];
        (void)hotbed_socket_recv(s, &h, sizeof h, in_ms(2000)); /* what rank 0 does is right */
        memcpy(bytes, &h, sizeof h);
        memset(bytes + sizeof h, 1, sizeof bytes - sizeof h);
        mutate(me, bytes, sizeof h);
        (void)say(me, s, bytes, sizeof bytes);
        hotbed_link_news n = {.kind = HOTBED_NEWS_BYE};
        mutate(me, &n, sizeof n);
        (void)say(me, hotbed_link_socket(link, 0), &n, sizeof n);
    }
    hotbed_link_drop(data);
    hotbed_link_drop(link);
    return NULL;
}

static void fuzz_data(counts *c) {
    false_rank f = {.how = {.random = hotbed_test_random()}};
    hotbed_comm_options options = {.size = sizeof options};
    hotbed_comm *comm = NULL;
    const hotbed_rendezvous by = {
        .size = sizeof by, .rank = 0, .world = 2, .broadcast = give_place, .self = &f};
    options.deadline_ms = 2000;
    hotbed_stream *stream = hotbed_test_stream(HOTBED_BACKEND_HOST);
    CHECK_EQ(pthread_barrier_init(&f.placed, NULL, 2), 0);
    CHECK_EQ(pthread_create(&f.thread, NULL, false_rank_main, &f), 0);
    CHECK_OK(hotbed_comm_create_sockets(&options, &by, &comm));
    uint64_t own[4] = {1, 2, 3, 4}, all[8] = {0};
    hotbed_status status = hotbed_comm_all_gather(comm, sizeof own, own, all, stream);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(stream);
    count(c, status);
    if (status != HOTBED_OK) {
        hotbed_comm_fault fault = {.size = sizeof fault};
        CHECK_OK(hotbed_comm_failure(comm, &fault));
        check_text(fault.text);
    }
    CHECK_EQ(pthread_join(f.thread, NULL), 0);
    CHECK_EQ(pthread_barrier_destroy(&f.placed), 0);
    hotbed_comm_destroy(comm);
    hotbed_stream_destroy(stream);
}

static void anything_may_come_over_the_network(hotbed_backend backend) {
    static const struct {
        const char *name;
        void (*run)(counts *c);
    } parts[] = {
        {"ranks among strangers", fuzz_outsiders},
        {"rank 0", fuzz_host},
        {"another rank", fuzz_guest},
        {"data", fuzz_data},
    };
    enum { PARTS = sizeof parts / sizeof parts[0] };
    counts c[PARTS] = {{0}};
    const char *limit = getenv("HOTBED_TEST_SECONDS");
    const uint64_t least = hotbed_test_is_small() ? 4 : 8;
    const uint64_t begin = hotbed_monotonic_now();
    const uint64_t end = limit == NULL ? 0 : begin + strtoull(limit, NULL, 10) * 1000000000U;
    uint64_t shown = begin;
    for (uint64_t i = 0; i < least || hotbed_monotonic_now() < end; i++) {
        for (uint32_t p = 0; p < PARTS; p++)
            parts[p].run(&c[p]);
        const uint64_t now = hotbed_monotonic_now();
        const bool last = i + 1 >= least && now >= end;
        if (!last && now - shown < 60 * UINT64_C(1000000000))
            continue;
        shown = now;
        for (uint32_t p = 0; p < PARTS; p++)
            printf(
                "%s: %llu rounds: %llu well, %llu COMM, %llu ARGUMENT\n", parts[p].name,
                (unsigned long long)c[p].rounds, (unsigned long long)c[p].well,
                (unsigned long long)c[p].comm, (unsigned long long)c[p].argument);
        (void)fflush(stdout);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(silent_strangers_cost_no_time)},
    {TEST(a_rank_that_starts_again_is_accepted)},
    {TEST(a_program_in_the_place_of_rank_0_is_named)},
    {TEST(an_answer_without_addresses_is_refused)},
    {TEST(an_unknown_host_is_named)},
    {TEST(jobs_with_two_words_do_not_mix)},
    {TEST(anything_may_come_over_the_network)},
    {NULL, NULL},
};
