/* bench/workload_replay.c - runs whose bytes must agree: backends, modes, replayed graphs. */
#include "bench/workload.h"

#include "base/error.h"

static bool same_digest(const workload_digest *a, const workload_digest *b) {
    return a->rows == b->rows && a->table[0] == b->table[0] && a->table[1] == b->table[1] &&
           a->output == b->output;
}

/* --- digest ----------------------------------------------------------------------------------- */

static hotbed_status digest(
    const workload *what, const workload_input *input, hotbed_insertion insertion,
    hotbed_backend backend, uint32_t steps, workload_digest *out) {
    workload_run run;
    HOTBED_TRY(workload_run_create(what, input, insertion, backend, &run));
    hotbed_status status = HOTBED_OK;
    for (uint32_t s = 0; s < steps && status == HOTBED_OK; s++)
        status = workload_step(&run);
    if (status == HOTBED_OK)
        status = hotbed_stream_sync(run.stream);
    if (status == HOTBED_OK)
        status = workload_run_digest(&run, out);
    workload_run_destroy(&run);
    if (status == HOTBED_OK)
        printf(
            "%s%s %s %s: %u steps, %llu rows, rows %016llx%016llx, output %016llx\n", what->name,
            workload_variant(what, insertion), hotbed_optimizer_name(what->optimizer),
            hotbed_backend_name(backend), steps, (unsigned long long)out->rows,
            (unsigned long long)out->table[0], (unsigned long long)out->table[1],
            (unsigned long long)out->output);
    return status;
}

/* The first digest of each optimizer, element type and key stream.  All later ones must equal it,
 * for any mode, kind of table, cache size, score, insertion policy and backend. */
typedef struct first_digests {
    const workload *of[WORKLOADS];
    workload_digest digests[WORKLOADS];
    size_t count;
} first_digests;

static bool same_bytes(const workload *a, const workload *b) {
    const bool tiered = a->stream == WORKLOAD_POWER_ONE && workload_tiered(a);
    return tiered == (b->stream == WORKLOAD_POWER_ONE && workload_tiered(b)) &&
           a->optimizer == b->optimizer && a->stream == b->stream && a->samples == b->samples &&
           a->dtype == b->dtype;
}

static hotbed_status digest_next(
    const workload *what, const workload_input *input, hotbed_insertion insertion,
    hotbed_backend backend, uint32_t steps, first_digests *all) {
    workload_digest made;
    HOTBED_TRY(digest(what, input, insertion, backend, steps, &made));
    size_t k = 0;
    while (k < all->count && !same_bytes(all->of[k], what))
        k++;
    if (k == all->count) {
        all->of[k] = what;
        all->digests[k] = made;
        all->count++;
        return HOTBED_OK;
    }
    if (!same_digest(&all->digests[k], &made))
        return hotbed_fail(
            HOTBED_ERR_CORRUPT, "%s on %s: not the bytes of the first run of its keys", what->name,
            hotbed_backend_name(backend));
    printf("%s: the same bytes\n", what->name);
    return HOTBED_OK;
}

/* Only one mode is in the list for keys that drift. */
static hotbed_status digest_one_tier(
    const workload *what, const workload_program *p, const workload_input *input,
    first_digests *all) {
    static workload one_tier;
    one_tier = *what;
    one_tier.mode = HOTBED_MODE_HBM_DIRECT;
    return digest_next(
        &one_tier, input, HOTBED_INSERT_PLAIN, p->backend == 0 ? HOTBED_BACKEND_HOST : p->backend,
        p->steps, all);
}

static hotbed_status digest_workload(
    const workload *what, const workload_program *p, workload_input *input, first_digests *all) {
    HOTBED_TRY(workload_input_for(what, p->scale, input));
    for (int i = HOTBED_INSERT_PLAIN; i <= HOTBED_INSERT_PROBATION; i++) {
        if (!workload_has_insertion(p, what, (hotbed_insertion)i))
            continue;
        for (int b = HOTBED_BACKEND_HOST; b <= HOTBED_BACKEND_CUDA; b++)
            if (p->backend == 0 || (int)p->backend == b)
                HOTBED_TRY(digest_next(
                    what, input, (hotbed_insertion)i, (hotbed_backend)b, p->steps, all));
    }
    return what->stream == WORKLOAD_POWER_DRIFT ? digest_one_tier(what, p, input, all) : HOTBED_OK;
}

hotbed_status workload_digest_all(const workload_program *p) {
    workload_input input = {0};
    first_digests all = {0};
    hotbed_status status = HOTBED_OK;
    for (size_t w = 0; w < WORKLOADS && status == HOTBED_OK; w++)
        if (workload_chosen(p, &workloads[w]))
            status = digest_workload(&workloads[w], p, &input, &all);
    workload_input_destroy(&input);
    return status;
}

/* --- replay ----------------------------------------------------------------------------------- */

/* One eager step, so that both runs have allocated their buffers; then n steps, and their digest. */
static hotbed_status replay_one(
    const workload *what, const workload_input *input, hotbed_insertion insertion,
    const workload_program *p, bool graph, workload_host *host, workload_digest *out) {
    workload_run run;
    workload_times times = {0};
    HOTBED_TRY(workload_run_create(what, input, insertion, p->backend, &run));
    hotbed_status status = workload_step(&run);
    if (status == HOTBED_OK)
        status = graph ? workload_pass_graph(&run, p->replays, &times, host)
                       : workload_pass_eager(&run, p->replays, &times, &times, host);
    if (status == HOTBED_OK)
        status = workload_run_digest(&run, out);
    workload_run_destroy(&run);
    return status;
}

static hotbed_status replay(
    const workload *what, const workload_input *input, hotbed_insertion insertion,
    const workload_program *p) {
    workload_digest digests[2];
    workload_host hosts[2] = {{0}, {0}};
    for (int graph = 0; graph < 2; graph++)
        HOTBED_TRY(replay_one(what, input, insertion, p, graph, &hosts[graph], &digests[graph]));
    if (!same_digest(&digests[0], &digests[1]))
        return hotbed_fail(HOTBED_ERR_CORRUPT, "%s: replayed and eager steps differ", what->name);
    if (hosts[1].waits != 0 || hosts[1].allocations != 0)
        return hotbed_fail(
            HOTBED_ERR_STATE, "%s: %llu host waits and %llu allocations in %llu replays",
            what->name, (unsigned long long)hosts[1].waits,
            (unsigned long long)hosts[1].allocations, (unsigned long long)hosts[1].steps);
    printf(
        "%s%s %s: one graph of a step, replayed %u times with changing keys, left the same bytes "
        "as "
        "eager steps: %llu rows, %016llx%016llx; host waits 0, allocations 0\n",
        what->name, workload_variant(what, insertion), hotbed_backend_name(p->backend), p->replays,
        (unsigned long long)digests[1].rows, (unsigned long long)digests[1].table[0],
        (unsigned long long)digests[1].table[1]);
    return HOTBED_OK;
}

hotbed_status workload_replay_all(const workload_program *p) {
    workload_input input = {0};
    hotbed_status status = HOTBED_OK;
    for (size_t w = 0; w < WORKLOADS; w++) {
        for (int i = HOTBED_INSERT_PLAIN; i <= HOTBED_INSERT_PROBATION; i++) {
            hotbed_insertion insertion = (hotbed_insertion)i;
            if (!workload_chosen(p, &workloads[w]) ||
                !workload_has_insertion(p, &workloads[w], insertion))
                continue;
            if (status == HOTBED_OK)
                status = workload_input_for(&workloads[w], p->scale, &input);
            if (status == HOTBED_OK)
                status = replay(&workloads[w], &input, insertion, p);
        }
    }
    workload_input_destroy(&input);
    return status;
}
