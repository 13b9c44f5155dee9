/* tests/pipeline/test_nvtx.c - each task is an NVTX range with its name, on the thread that submits
 * it.
 *
 * CTest sets NVTX_INJECTION64_PATH to nvtx_record.c's module, which NVTX loads as it loads a
 * profiler. */
#include "tests/pipeline/example.h"
#include "tests/pipeline/nvtx_record.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* The tool's function that returns its records; NULL if no tool is loaded. */
static nvtx_record_take_function find_tool(void) {
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *tool = path == NULL ? NULL : dlopen(path, RTLD_NOW);
    void *found = tool == NULL ? NULL : dlsym(tool, "nvtx_record_take");
    nvtx_record_take_function take = NULL;
    memcpy(&take, &found, sizeof take);
    return take;
}

/* The ranges of each thread are those in the log, and are not nested. */
static void tasks_are_ranges_with_their_names(hotbed_backend backend) {
    enum { BATCHES = 9, LOG = 2048, GROUPS = 8 };
    static nvtx_record records[NVTX_RECORDS_MOST];
    static hotbed_log_entry log[LOG];
    static const char *const plans[] = {"jagged-prefetch-async", "sw-pipelined", "prefetch"};
    nvtx_record_take_function take = find_tool();
    if (take == NULL)
        SKIP("there is no tool for NVTX: NVTX_INJECTION64_PATH is not set, or the build has no "
             "NVTX");
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        example s;
        const hotbed_step *steps;
        uint32_t num_steps;
        uint64_t n, ranges = 0;
        unsigned thread_of[GROUPS], at[GROUPS] = {0};
        example_open(&s, backend);
        hotbed_train *train = example_train(&s, plans[p], 0);
        (void)take(records);
        example_bind(&s, train, 0, BATCHES);
        CHECK_EQ(example_run(train), BATCHES);
        CHECK_OK(hotbed_train_plan_steps(plans[p], &steps, &num_steps));
        CHECK_OK(hotbed_pipeline_log(hotbed_train_pipeline(train), LOG, log, &n));
        const unsigned num_records = take(records);
        CHECK_EQ(n, (uint64_t)BATCHES * num_steps);
        CHECK_EQ(num_records, 2 * n);
        for (int g = 0; g < GROUPS; g++)
            thread_of[g] = UINT32_MAX;
        for (uint64_t i = 0; i < n; i++) {
            uint32_t g = log[i].group;
            CHECK(g < GROUPS);
            /* The thread of a group is the thread of the first range with the name of its first task. */
            for (unsigned r = 0; thread_of[g] == UINT32_MAX && r < num_records; r++)
                if (strcmp(records[r].name, steps[log[i].task].task) == 0)
                    thread_of[g] = records[r].thread;
            while (at[g] < num_records && records[at[g]].thread != thread_of[g])
                at[g]++;
            CHECK(at[g] < num_records);
            CHECK_STRING(records[at[g]].name, steps[log[i].task].task);
            CHECK_EQ(records[at[g]].depth, 1);
            do
                at[g]++;
            while (at[g] < num_records && records[at[g]].thread != thread_of[g]);
            CHECK(at[g] < num_records);
            CHECK_STRING(records[at[g]].name, "");
            CHECK_EQ(records[at[g]].depth, 0);
            at[g]++;
            ranges++;
        }
        CHECK_EQ(ranges, n);
        CHECK_OK(hotbed_pipeline_run_serial(/* on this thread, in the plan's order */
                                            hotbed_train_pipeline(train), &s.batches[0],
                                            hotbed_train_stream(train, "default"), NULL));
        CHECK_EQ(take(records), 2 * num_steps);
        CHECK_EQ(records[0].depth, 1);
        CHECK_EQ(records[2 * num_steps - 1].depth, 0);
        hotbed_train_destroy(train);
        example_close(&s);
    }
}

const hotbed_test hotbed_tests[] = {
    {TEST(tasks_are_ranges_with_their_names)},
    {NULL, NULL},
};
