/* bench/bench_state.cc - the calls of a case: the C interface to Google Benchmark 1.7 and later. */
#include "bench/bench_state.h"

extern "C" {

bool bench_next(bench_state *state) {
    if (state->skipped)
        return false;
    state->counts = state->warm_ups == 0;
    if (!state->counts) {
        state->warm_ups--;
        return true;
    }
    return state->state->KeepRunning();
}

int64_t bench_arg(const bench_state *state, int index) {
    return state->state->range(static_cast<size_t>(index));
}

void bench_seconds(bench_state *state, double seconds) {
    if (!state->counts)
        return;
    state->seconds.push_back(seconds);
    state->state->SetIterationTime(seconds);
}

void bench_items(bench_state *state, int64_t per_iteration) {
    state->items = per_iteration;
}

void bench_bytes(bench_state *state, int64_t per_iteration) {
    state->bytes = per_iteration;
}

void bench_lines(bench_state *state, uint64_t n, uint64_t slots) {
    state->lines = n;
    state->slots = slots;
}

void bench_counter(bench_state *state, const char *name, double value) {
    state->state->counters[name] = value;
}

void bench_skip(bench_state *state, const char *why) {
    if (!state->skipped)
        state->state->SkipWithError(why);
    state->skipped = true;
}

hotbed_stream *bench_stream(const bench_state *state) {
    return state->stream;
}

} // extern "C"
