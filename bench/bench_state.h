/* bench/bench_state.h - what a case of the microbenchmarks reports, in C++; see bench.h. */
#pragma once

#include "bench/bench.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

struct bench_state {
    benchmark::State *state;
    hotbed_stream *stream;
    int warm_ups; // warm-up iterations left
    bool counts;  // whether this iteration counts
    bool skipped;
    int64_t items, bytes;
    uint64_t lines, slots; // lines 0: the limit is a copy of the bytes
    std::vector<double> seconds;
};
