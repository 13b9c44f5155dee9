/* examples/train/trainer_waits.c - find the stage of training that bounds a run. */
#include "examples/train/trainer.h"

static double waited(const hotbed_run *t, double busy) {
    double part = t->seconds > 0 ? 1 - busy / t->seconds : 0;
    return part < 0 ? 0 : part;
}

hotbed_run_waits hotbed_run_waits_of(const hotbed_run *t) {
    uint32_t threads = t->reader_times.threads > 0 ? t->reader_times.threads : 1;
    hotbed_run_waits w = {
        .reading = waited(t, t->reader_times.reading),
        .parsing = waited(t, t->reader_times.parsing / threads),
        .link = waited(t, t->linked),
        .compute = waited(t, t->seconds - t->starved)};
    const double waits[] = {w.compute, w.parsing, w.reading};
    static const char *const names[] = {"compute", "parsing", "reading"};
    int least = 0;
    for (int i = 1; i < 3; i++)
        if (waits[i] < waits[least])
            least = i;
    /* A step that waits for its copy counts as computing, so test first whether the link is always
     * busy. */
    w.bound = w.link < 0.1 ? "link" : names[least];
    return w;
}
