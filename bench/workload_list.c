/* bench/workload_list.c - the definitions of the workloads, and published results of other
 * libraries (docs/performance.md). */
#include "bench/workload.h"

#include "storage/types.h"

workload workloads[WORKLOADS] = {
    {
        .name = "W1",
        .optimizer = HOTBED_OPT_ADAM,
        .mode = HOTBED_MODE_HBM_DIRECT,
        .upper = 1,
        .floor = {.train = 0.71, .eval = 0.20},
        .goal = {.train = 0.85, .eval = 0.24},
        .dynamicemb = {0.920, 0.673, 1.601, 0.566},
        .tbe = {0.41, 0.96, 1.37, 0.36},
    },
    {
        .name = "W2",
        .optimizer = HOTBED_OPT_SGD,
        .mode = HOTBED_MODE_HBM_DIRECT,
        .upper = 1,
        .floor = {.train = 0.54, .eval = 0.20},
        .goal = {.train = 0.65, .eval = 0.24},
        .dynamicemb = {0.983, 0.500, 1.481, 0.568},
        .tbe = {0.38, 0.57, 0.96, 0.35},
    },
    {
        .name = "W3",
        .optimizer = HOTBED_OPT_ADAM,
        .mode = HOTBED_MODE_CACHE,
        .upper = 1,
        .floor = {.train = 0.75},
        .goal = {.train = 1.2, .eval = 0.35},
        .dynamicemb = {10.08, 0.74, 10.8, 0.91},
        .tbe = {3.17, 11.0, 14.2, 3.12},
    },
    {
        .name = "W4",
        .optimizer = HOTBED_OPT_SGD,
        .mode = HOTBED_MODE_CACHE,
        .upper = 1,
        .floor = {.train = 0.58},
        .goal = {.train = 1.0, .eval = 0.35},
        .dynamicemb = {9.33, 0.51, 9.84, 0.91},
        .tbe = {3.18, 0.73, 3.91, 3.12},
    },
    {
        .name = "W5",
        .optimizer = HOTBED_OPT_ADAM,
        .mode = HOTBED_MODE_CACHE,
        .upper = 0.8,
        .floor = {.train = 5.2},
        .goal = {.train = 6.5},
        .goal_overlap = 5.6,
        .dynamicemb = {21.4, 0.74, 22.2, 1.38},
        .tbe = {4.24, 11.0, 15.3, 4.16},
    },
    {
        .name = "W6",
        .optimizer = HOTBED_OPT_SGD,
        .mode = HOTBED_MODE_CACHE,
        .upper = 0.8,
        .floor = {.train = 1.7},
        .goal = {.train = 2.9},
        .dynamicemb = {19.4, 0.51, 19.9, 1.37},
        .tbe = {4.22, 0.73, 4.95, 4.15},
    },
    /* The next two: published results of TBE with rows in unified memory, on an H100. */
    {
        .name = "W7",
        .optimizer = HOTBED_OPT_ADAM,
        .mode = HOTBED_MODE_DEFAULT,
        .upper = 0.1,
        .floor = {.train = 7.4},
        .goal = {.train = 9.5},
        .dynamicemb = {14.9, 14.8, 29.8, 18.0},
        .tbe = {.train = 24.1, .eval = 8.1},
    },
    {
        .name = "W8",
        .optimizer = HOTBED_OPT_SGD,
        .mode = HOTBED_MODE_DEFAULT,
        .upper = 0.1,
        .floor = {.train = 2.5},
        .goal = {.train = 4.2},
        .dynamicemb = {12.9, 12.5, 25.3, 16.8},
        .tbe = {.train = 13.6, .eval = 8.0},
    },
    /* Multi-hot bags.  TBE's tables are static. */
    {
        .name = "W9",
        .optimizer = HOTBED_OPT_ROWWISE_ADAGRAD,
        .mode = HOTBED_MODE_HBM_DIRECT,
        .stream = WORKLOAD_POWER_BAGS,
        .samples = 8192,
        .kind = HOTBED_TABLE_STATIC,
        .dtype = HOTBED_F32,
        .upper = 1,
        .goal = {.train = 0.60, .eval = 0.11},
        .tbe = {.train = 0.830, .eval = 0.135},
    },
    {
        .name = "W9",
        .optimizer = HOTBED_OPT_ROWWISE_ADAGRAD,
        .mode = HOTBED_MODE_HBM_DIRECT,
        .stream = WORKLOAD_POWER_BAGS,
        .samples = 8192,
        .kind = HOTBED_TABLE_HASH,
        .dtype = HOTBED_F32,
        .upper = 1,
        .goal = {.train = 0.70, .eval = 0.15},
        .tbe = {.train = 0.830, .eval = 0.135},
    },
    {
        .name = "W10",
        .optimizer = HOTBED_OPT_ROWWISE_ADAGRAD,
        .mode = HOTBED_MODE_HBM_DIRECT,
        .stream = WORKLOAD_UNIFORM_BAGS,
        .samples = 8192,
        .kind = HOTBED_TABLE_STATIC,
        .dtype = HOTBED_F32,
        .upper = 1,
        .goal = {.train = 1.0, .eval = 0.20},
        .tbe = {.train = 1.353, .eval = 0.240},
    },
    {
        .name = "W10",
        .optimizer = HOTBED_OPT_ROWWISE_ADAGRAD,
        .mode = HOTBED_MODE_HBM_DIRECT,
        .stream = WORKLOAD_UNIFORM_BAGS,
        .samples = 8192,
        .kind = HOTBED_TABLE_HASH,
        .dtype = HOTBED_F32,
        .upper = 1,
        .goal = {.train = 1.15, .eval = 0.27},
        .tbe = {.train = 1.353, .eval = 0.240},
    },
    {
        .name = "W11",
        .optimizer = HOTBED_OPT_ROWWISE_ADAGRAD,
        .mode = HOTBED_MODE_HBM_DIRECT,
        .stream = WORKLOAD_POWER_BAGS,
        .samples = 8192,
        .kind = HOTBED_TABLE_STATIC,
        .dtype = HOTBED_F16,
        .upper = 1,
        .goal = {.train = 0.50, .eval = 0.08},
        .tbe = {.train = 0.909, .eval = 0.126},
    },
    {
        .name = "W11",
        .optimizer = HOTBED_OPT_ROWWISE_ADAGRAD,
        .mode = HOTBED_MODE_HBM_DIRECT,
        .stream = WORKLOAD_POWER_BAGS,
        .samples = 8192,
        .kind = HOTBED_TABLE_HASH,
        .dtype = HOTBED_F16,
        .upper = 1,
        .goal = {.train = 0.58, .eval = 0.12},
        .tbe = {.train = 0.909, .eval = 0.126},
    },
    {
        .name = "W12",
        .optimizer = HOTBED_OPT_ROWWISE_ADAGRAD,
        .mode = HOTBED_MODE_HBM_DIRECT,
        .stream = WORKLOAD_POWER_BAGS,
        .samples = 1024,
        .kind = HOTBED_TABLE_STATIC,
        .dtype = HOTBED_F32,
        .upper = 1,
        .goal = {.train = 0.20, .eval = 0.04},
        .tbe = {.train = 0.277, .eval = 0.053},
    },
    {
        .name = "W12",
        .optimizer = HOTBED_OPT_ROWWISE_ADAGRAD,
        .mode = HOTBED_MODE_HBM_DIRECT,
        .stream = WORKLOAD_POWER_BAGS,
        .samples = 1024,
        .kind = HOTBED_TABLE_HASH,
        .dtype = HOTBED_F32,
        .upper = 1,
        .goal = {.train = 0.23, .eval = 0.05},
        .tbe = {.train = 0.277, .eval = 0.053},
    },
    {
        .name = "W12-256",
        .optimizer = HOTBED_OPT_ROWWISE_ADAGRAD,
        .mode = HOTBED_MODE_HBM_DIRECT,
        .stream = WORKLOAD_POWER_BAGS,
        .samples = 256,
        .kind = HOTBED_TABLE_STATIC,
        .dtype = HOTBED_F32,
        .upper = 1,
    },
    {
        .name = "W12-256",
        .optimizer = HOTBED_OPT_ROWWISE_ADAGRAD,
        .mode = HOTBED_MODE_HBM_DIRECT,
        .stream = WORKLOAD_POWER_BAGS,
        .samples = 256,
        .kind = HOTBED_TABLE_HASH,
        .dtype = HOTBED_F32,
        .upper = 1,
        .goal = {.train = 0.13, .eval = 0.03},
    },
    /* Fresh keys in each step, and a popularity that drifts. */
    {
        .name = "W13",
        .optimizer = HOTBED_OPT_ADAM,
        .mode = HOTBED_MODE_CACHE,
        .stream = WORKLOAD_POWER_DRIFT,
        .upper = 0.8,
    },
    {
        .name = "W13",
        .optimizer = HOTBED_OPT_ADAM,
        .mode = HOTBED_MODE_CACHE,
        .stream = WORKLOAD_POWER_DRIFT,
        .score = HOTBED_SCORE_LFU,
        .upper = 0.8,
    },
    /* The same with a small cache. */
    {
        .name = "W13-10",
        .optimizer = HOTBED_OPT_ADAM,
        .mode = HOTBED_MODE_CACHE,
        .stream = WORKLOAD_POWER_DRIFT,
        .upper = 0.1,
    },
    {
        .name = "W13-10",
        .optimizer = HOTBED_OPT_ADAM,
        .mode = HOTBED_MODE_CACHE,
        .stream = WORKLOAD_POWER_DRIFT,
        .score = HOTBED_SCORE_LFU,
        .upper = 0.1,
    },
};

bool workload_set_dtype(const char *name) {
    hotbed_dtype dtype;
    if (name == NULL || !hotbed_dtype_read(name, &dtype))
        return false;
    for (size_t w = 0; w < WORKLOADS; w++)
        workloads[w].dtype = dtype;
    return true;
}

void workload_set_random(void) {
    for (size_t w = 0; w < WORKLOADS; w++)
        workloads[w].random = true;
}

bool workload_set_states(const char *name) {
    hotbed_dtype dtype;
    if (name == NULL || !hotbed_dtype_read(name, &dtype) ||
        (dtype != HOTBED_F32 && dtype != HOTBED_BF16))
        return false;
    for (size_t w = 0; w < WORKLOADS; w++)
        workloads[w].state_dtype = dtype;
    if (dtype != HOTBED_F32)
        workload_set_random();
    return true;
}

void workload_set_tracks(void) {
    for (size_t w = 0; w < WORKLOADS; w++)
        workloads[w].tracks = true;
}

bool workload_chosen(const workload_program *p, const workload *what) {
    size_t n = strlen(what->name);
    if (strcmp(p->chosen, "all") == 0)
        return true;
    for (const char *at = p->chosen; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, what->name, n) == 0 && (at[n] == 0 || at[n] == ','))
            return true;
    }
    return false;
}

bool workload_has_insertion(
    const workload_program *p, const workload *what, hotbed_insertion insertion) {
    return workload_tiered(what) ? p->insertions[insertion] : insertion == HOTBED_INSERT_PLAIN;
}
