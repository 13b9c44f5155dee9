/* examples/train/trainer_ranks.c - what the ranks of a run exchange besides keys, rows and
 * gradients. */
#include "examples/train/trainer.h"

#include <stdlib.h>

/* Goes through device memory, since the tables' communicator exchanges device memory. */
bool hotbed_run_gather(hotbed_run *t, size_t bytes, const void *mine, void *all) {
    hotbed_memory memory = {0};
    size_t begin = (bytes + 255) & ~(size_t)255;
    bool ok = hotbed_run_ok(
        t,
        hotbed_memory_alloc(
            t->stream, HOTBED_MEMORY_DEVICE, begin + bytes * t->ranks, NULL, &memory),
        "memory for all ranks");
    char *own = memory.data, *gathered = own + begin;
    ok = ok && hotbed_run_ok(t, hotbed_copy(own, mine, bytes, t->stream), "copy") &&
         hotbed_run_ok(
             t, hotbed_comm_all_gather(t->comm, bytes, own, gathered, t->stream), "all ranks") &&
         hotbed_run_ok(t, hotbed_copy(all, gathered, bytes * t->ranks, t->stream), "copy");
    ok = hotbed_run_sync(t) && ok;
    hotbed_memory_free(&memory);
    return ok;
}

bool hotbed_run_share(hotbed_run *t, size_t bytes, void *data) {
    char *all = malloc(bytes * t->ranks);
    if (all == NULL)
        return hotbed_run_fail(t, "no memory for %u ranks", t->ranks);
    bool ok = hotbed_run_gather(t, bytes, data, all);
    if (ok)
        memcpy(data, all, bytes);
    free(all);
    return ok;
}

bool hotbed_run_find(hotbed_run *t, bool flag, uint32_t *first) {
    uint8_t mine = flag ? 1 : 0, *all = malloc(t->ranks);
    *first = 0;
    if (all == NULL)
        return hotbed_run_fail(t, "no memory for %u ranks", t->ranks);
    bool ok = hotbed_run_gather(t, sizeof mine, &mine, all);
    while (ok && *first < t->ranks && all[*first] == 0)
        ++*first;
    free(all);
    return ok;
}

bool hotbed_run_agree(hotbed_run *t, bool well) {
    char error[sizeof t->error];
    uint32_t first = 0;
    memcpy(error, t->error, sizeof error); /* keep an earlier error apart */
    t->error[0] = '\0';
    bool ok = hotbed_run_find(t, !well, &first);
    if (ok && well && first < t->ranks)
        return hotbed_run_fail(t, "rank %u has failed", first);
    if (!well)
        memcpy(t->error, error, sizeof error);
    return ok && well;
}
