/* tests/examples/test_trainer_ranks.c - what the ranks of hotbed-train exchange, on more ranks than
 * --ranks allows, as MPI may start them. */
#include "examples/train/trainer.h"
#include "tests/support/harness.h"

#include <stdlib.h>

enum { RANKS = 200, FAILING = 150 };

typedef struct rank_thread {
    hotbed_run run;
    pthread_t thread;
    uint32_t first, none;
    bool found, agreed, disagreed;
} rank_thread;

static void *exchange(void *argument) {
    rank_thread *self = argument;
    hotbed_run *t = &self->run;
    self->found = hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &t->stream) == HOTBED_OK &&
                  hotbed_run_find(t, t->rank >= FAILING, &self->first) &&
                  hotbed_run_find(t, false, &self->none);
    self->agreed = self->found && hotbed_run_agree(t, true);
    self->disagreed = self->agreed && !hotbed_run_agree(t, t->rank != FAILING);
    hotbed_stream_destroy(t->stream);
    return NULL;
}

static void many_ranks_agree(hotbed_backend backend) {
    static hotbed_comm *comms[RANKS];
    hotbed_comm_options options = {.size = sizeof options};
    CHECK_OK(hotbed_comm_create_threads(&options, RANKS, comms));
    rank_thread *ranks = calloc(RANKS, sizeof *ranks);
    CHECK(ranks != NULL);
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r].run.rank = r;
        ranks[r].run.ranks = RANKS;
        ranks[r].run.comm = comms[r];
        CHECK(pthread_create(&ranks[r].thread, NULL, exchange, &ranks[r]) == 0);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        CHECK(ranks[r].found && ranks[r].first == FAILING && ranks[r].none == RANKS);
        CHECK(ranks[r].agreed && ranks[r].disagreed);
        CHECK(r == FAILING || strcmp(ranks[r].run.error, "rank 150 has failed") == 0);
        hotbed_comm_destroy(comms[r]);
    }
    free(ranks);
}

const hotbed_test hotbed_tests[] = {
    {TEST(many_ranks_agree)},
    {NULL, NULL},
};
