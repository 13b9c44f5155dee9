/* tests/pipeline/test_shortcut_ranks.c - replayed stages of sharded collections, on 1, 2 and 4
 * ranks.
 *
 * Each round has the same batches in the same buffer sets, so training with skipped stages gives the
 * bytes of training without. */
#include "tests/pipeline/ranks.h"

#include <string.h>

enum { ROUNDS = 4 };

static const char *skipped; /* one group of ranks at a time */

static hotbed_status skip(hotbed_train *train, const char *tasks) {
    return hotbed_pipeline_shortcut(hotbed_train_pipeline(train), tasks);
}

/* The first round runs all tasks; the results of the last round overwrite its results. */
static void train_rounds(rank *r) {
    rank_open(r);
    hotbed_train *train = rank_train(r, NULL);
    const uint32_t depth = hotbed_pipeline_depth(hotbed_train_pipeline(train));
    r->period = depth;
    CHECK_OK(rank_run(r, train, depth));
    CHECK_OK(skip(train, skipped));
    CHECK_OK(rank_run(r, train, (uint64_t)(ROUNDS - 1) * depth));
    CHECK_OK(skip(train, NULL));
    CHECK_EQ(rank_pinned(r), 0);
    CHECK_OK(rank_run(r, train, (uint64_t)ROUNDS * depth));
    CHECK_EQ(r->iterations, (uint64_t)ROUNDS * depth);
    hotbed_train_destroy(train);
    CHECK_EQ(rank_pinned(r), 0);
}

static void train_expected(rank *r) {
    train_rounds(r);
    memcpy(*r->all->expected[r->number], r->kept, sizeof(results));
    rank_close(r);
}

static void train_and_compare(rank *r) {
    train_rounds(r);
    CHECK_BYTES(r->kept, *r->all->expected[r->number], sizeof(results));
    rank_close(r);
}

typedef struct skippable {
    const char *plan;
    const char *tasks[6];
} skippable;

static const skippable lists[] = {
    {"prefetch",
     {"start_sparse_data_dist", "wait_sparse_data_dist", "prefetch",
      "copy_batch_to_gpu start_sparse_data_dist wait_sparse_data_dist prefetch"}},
    {"sparse-dist", {"start_sparse_data_dist wait_sparse_data_dist"}},
    {"sw-pipelined",
     {"EmbPrefetch", "H2DAndShuffle EmbInputDistStart EmbInputDistWait EmbPrefetch"}},
};

static void check_lists(
    hotbed_backend backend, hotbed_plan exchange, const uint32_t *sizes, uint64_t capacity,
    size_t plans) {
    static ranks t;
    ranks_open(&t);
    t.capacity = capacity;
    sizes = ranks_sizes_of(sizes);
    for (int n = 0; sizes[n] != 0; n++)
        for (size_t l = 0; l < plans; l++) {
            skipped = NULL;
            ranks_run(backend, sizes[n], exchange, lists[l].plan, train_expected, &t);
            for (int i = 0; lists[l].tasks[i] != NULL; i++) {
                if (hotbed_test_is_small() && lists[l].tasks[i + 1] != NULL)
                    continue; /* the last list has the most tasks */
                skipped = lists[l].tasks[i];
                ranks_run(backend, sizes[n], exchange, lists[l].plan, train_and_compare, &t);
            }
        }
    ranks_close(&t);
}

static const uint32_t one[] = {1, 0}, one_or_two[] = {1, 2, 0}, two[] = {2, 0}, four[] = {4, 0},
                      two_or_four[] = {2, 4, 0};

static void skipped_stages_give_the_same_bytes(hotbed_backend backend) {
    const uint32_t *sizes = hotbed_test_is_small() ? one : one_or_two;
    check_lists(backend, HOTBED_PLAN_FIXED, sizes, 0, sizeof lists / sizeof *lists);
}

static void skipped_stages_give_the_same_bytes_on_four_ranks(hotbed_backend backend) {
    check_lists(backend, HOTBED_PLAN_FIXED, hotbed_test_is_small() ? two : four, 0, 1);
}

static void skipped_two_phase_exchanges_give_the_same_bytes(hotbed_backend backend) {
    check_lists(backend, HOTBED_PLAN_TWO_PHASE, two, 0, hotbed_test_is_small() ? 1 : 2);
}

static void skipped_one_sided_exchanges_give_the_same_bytes(hotbed_backend backend) {
    check_lists(backend, HOTBED_PLAN_ONE_SIDED, two, 0, hotbed_test_is_small() ? 1 : 2);
}

/* Every batch overflows; its prefetch sends it again. */
static void skipped_overflows_give_the_same_bytes(hotbed_backend backend) {
    check_lists(backend, HOTBED_PLAN_FIXED, two, 2, 1);
}

/* With a shuffle, whose exchanges are skipped too. */
static void skipped_shuffles_give_the_same_bytes(hotbed_backend backend) {
    static const char *const all =
        "copy_batch_to_gpu start_shuffle finish_shuffle start_sparse_data_dist "
        "wait_sparse_data_dist prefetch";
    static ranks t;
    ranks_open(&t);
    t.shuffled = true;
    for (const uint32_t *size = ranks_sizes(); *size != 0; size++) {
        skipped = NULL;
        ranks_run(backend, *size, HOTBED_PLAN_FIXED, "jagged-prefetch-async", train_expected, &t);
        skipped = all;
        ranks_run(
            backend, *size, HOTBED_PLAN_FIXED, "jagged-prefetch-async", train_and_compare, &t);
    }
    ranks_close(&t);
}

/* Replay a forward: the results are equal, and no rank's rows change. */
static void replay_forwards(rank *r) {
    static results results_of[RANKS_MOST];
    rank_open(r);
    hotbed_train *train = rank_train(r, NULL);
    const uint32_t depth = hotbed_pipeline_depth(hotbed_train_pipeline(train));
    r->period = depth;
    CHECK_OK(rank_run(r, train, depth));
    CHECK_OK(skip(train, "forward"));
    CHECK_OK(rank_run(r, train, 2 * depth)); /* captured and trained */
    memcpy(results_of[r->number], r->kept, sizeof(results));
    CHECK_OK(rank_run(r, train, 4 * depth));
    CHECK_BYTES(r->kept, results_of[r->number], sizeof(results));
    CHECK_OK(skip(train, NULL));
    CHECK_OK(rank_run(r, train, 5 * depth)); /* equal to the third round without replays */
    CHECK_BYTES(r->kept, *r->all->expected[r->number], sizeof(results));
    hotbed_train_destroy(train);
    rank_close(r);
}

static void train_three_rounds(rank *r) {
    rank_open(r);
    hotbed_train *train = rank_train(r, NULL);
    r->period = hotbed_pipeline_depth(hotbed_train_pipeline(train));
    CHECK_OK(rank_run(r, train, 3 * r->period));
    memcpy(*r->all->expected[r->number], r->kept, sizeof(results));
    hotbed_train_destroy(train);
    rank_close(r);
}

static void replayed_forwards_train_nothing(hotbed_backend backend) {
    static const hotbed_plan exchanges[] = {HOTBED_PLAN_FIXED, HOTBED_PLAN_TWO_PHASE};
    static ranks t;
    ranks_open(&t);
    for (const uint32_t *size = ranks_sizes(); *size != 0; size++)
        for (int e = 0; e < (hotbed_test_is_small() ? 1 : 2); e++) {
            ranks_run(backend, *size, exchanges[e], "prefetch", train_three_rounds, &t);
            ranks_run(backend, *size, exchanges[e], "prefetch", replay_forwards, &t);
        }
    ranks_close(&t);
}

/* Ranks that name different tasks get an error, and none has changed anything. */
static void name_different_tasks(rank *r) {
    hotbed_pipeline_options options = {.size = sizeof options};
    hotbed_stream *stream;
    bool last = r->number == r->all->size - 1;
    rank_open(r);
    hotbed_comm_agreement *agreement = rank_agree(r, &stream);
    options.agreement = hotbed_comm_agreement_of(agreement);
    hotbed_train *train = rank_train(r, &options);
    CHECK_STATUS(skip(train, last ? "prefetch" : "copy_batch_to_gpu"), HOTBED_ERR_COMM);
    CHECK_STATUS(
        skip(train, last ? "embedding_backward" : "prefetch"),
        last ? HOTBED_ERR_UNSUPPORTED : HOTBED_ERR_COMM);
    CHECK_OK(rank_run(r, train, ranks_batches()));
    CHECK_BYTES(r->kept, *r->all->expected[r->number], sizeof(results));
    CHECK_OK(skip(train, "prefetch"));
    hotbed_train_destroy(train);
    hotbed_comm_agreement_destroy(agreement);
    hotbed_stream_destroy(stream);
    rank_close(r);
}

static void ranks_skip_the_same_tasks(hotbed_backend backend) {
    static ranks t;
    ranks_open(&t);
    const uint32_t *size = ranks_sizes_of(hotbed_test_is_small() ? two : two_or_four);
    for (; *size != 0; size++) {
        ranks_run(backend, *size, HOTBED_PLAN_FIXED, NULL, rank_train_plainly, &t);
        ranks_run(backend, *size, HOTBED_PLAN_FIXED, "prefetch", name_different_tasks, &t);
    }
    ranks_close(&t);
}

const hotbed_test hotbed_tests[] = {
    {TEST(skipped_stages_give_the_same_bytes)},
    {TEST(skipped_stages_give_the_same_bytes_on_four_ranks)},
    {TEST(skipped_two_phase_exchanges_give_the_same_bytes)},
    {TEST(skipped_one_sided_exchanges_give_the_same_bytes)},
    {TEST(skipped_overflows_give_the_same_bytes)},
    {TEST(skipped_shuffles_give_the_same_bytes)},
    {TEST(replayed_forwards_train_nothing)},
    {TEST(ranks_skip_the_same_tasks)},
    {NULL, NULL},
};
