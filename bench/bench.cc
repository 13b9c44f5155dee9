/* bench/bench.cc - the microbenchmarks' program: registers the cases with Google Benchmark, and reports. */
#include "bench/bench_state.h"
#include "bench/limits.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

enum { WARM_UPS = 2, HOST_ITERATIONS = 10, CUDA_ITERATIONS = 30 };

void report(bench_state *state) {
    using benchmark::Counter;
    auto &counters = state->state->counters;
    if (state->skipped || state->seconds.empty())
        return;
    auto middle = state->seconds.begin() + static_cast<std::ptrdiff_t>(state->seconds.size() / 2);
    std::nth_element(state->seconds.begin(), middle, state->seconds.end());
    counters["median_us"] = *middle * 1e6;
    counters["best_us"] = *std::min_element(state->seconds.begin(), state->seconds.end()) * 1e6;
    int64_t iterations = static_cast<int64_t>(state->seconds.size());
    if (state->items > 0)
        state->state->SetItemsProcessed(state->items * iterations);
    if (state->bytes > 0)
        state->state->SetBytesProcessed(state->bytes * iterations);
    double limit = state->lines > 0
                       ? bench_lines_seconds(state->stream, state->lines, state->slots)
                       : static_cast<double>(state->bytes) / bench_copy_rate(state->stream);
    if (limit > 0) {
        counters["limit_us"] = limit * 1e6;
        counters["to_limit"] = *middle / limit;
    }
}

void run_case(benchmark::State &native, const bench_case *which, hotbed_stream *stream) {
    bench_state state{&native, stream, WARM_UPS, false, false, 0, 0, 0, 0, {}};
    which->run(&state);
    report(&state);
    if (hotbed_stream_sync(stream) != HOTBED_OK)
        bench_skip(&state, hotbed_last_error());
    bench_free_all();
}

void add_case(const bench_case *which, hotbed_backend backend, hotbed_stream *stream, int quick) {
    bool cuda = backend == HOTBED_BACKEND_CUDA;
    const int64_t *row = cuda && which->cuda_args != nullptr ? which->cuda_args : which->args;
    if (*row == INT64_MIN)
        return;
    std::string name = std::string(which->name) + "/" + hotbed_backend_name(backend);
    auto *b = benchmark::RegisterBenchmark(
        name.c_str(), [=](benchmark::State &native) { run_case(native, which, stream); });
    std::vector<std::string> names;
    for (const char *const *arg = which->arg_names; *arg != nullptr; arg++)
        names.push_back(*arg);
    b->ArgNames(names);
    for (; *row != INT64_MIN; row += names.size())
        b->Args(std::vector<int64_t>(row, row + names.size()));
    b->UseManualTime()->Unit(benchmark::kMicrosecond);
    b->Iterations(quick > 0 ? quick : cuda ? CUDA_ITERATIONS : HOST_ITERATIONS);
}

/* False if the machine cannot run the backend. */
bool add_backend(hotbed_backend backend, int quick) {
    static const bench_case *const tables[] = {
        bench_base_cases,   bench_index_cases,    bench_unique_cases,   bench_lookup_cases,
        bench_score_cases,  bench_update_cases,   bench_rows_cases,     bench_storage_cases,
        bench_growth_cases, bench_external_cases, bench_pipeline_cases, bench_checkpoint_cases,
        bench_peer_cases};
    hotbed_stream *stream = bench_open(backend);
    char device[128];
    char driver[64];
    if (stream == nullptr)
        return false;
    std::string name = hotbed_backend_name(backend);
    if (bench_device(stream, device, sizeof device, driver, sizeof driver) == HOTBED_OK) {
        benchmark::AddCustomContext(name + "_device", device);
        benchmark::AddCustomContext(name + "_driver", driver);
    }
    benchmark::AddCustomContext(
        name + "_copy_gb_per_s", std::to_string(bench_copy_rate(stream) * 1e-9));
    for (const bench_case *table : tables)
        for (const bench_case *which = table; which->name != nullptr; which++)
            add_case(which, backend, stream, quick);
    return true;
}

// Remove "--NAME VALUE" from the arguments, and return the value or NULL.
const char *take(int *argc, char **argv, const char *name) {
    for (int i = 1; i + 1 < *argc; i++) {
        if (std::string(argv[i]) != name)
            continue;
        const char *value = argv[i + 1];
        std::copy(argv + i + 2, argv + *argc, argv + i);
        *argc -= 2;
        argv[*argc] = nullptr;
        return value;
    }
    return nullptr;
}

} // namespace

int main(int argc, char **argv) {
    std::string command = "hotbed-bench";
    for (int i = 1; i < argc; i++)
        command += std::string(" ") + argv[i];
    const char *backend = take(&argc, argv, "--backend");       // host or cuda; both if not given
    const char *iterations = take(&argc, argv, "--iterations"); // number of iterations of each case
    const char *commit = take(&argc, argv, "--commit");
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv))
        return 2;
    benchmark::AddCustomContext("command", command);
    benchmark::AddCustomContext("commit", commit != nullptr ? commit : HOTBED_BENCH_COMMIT);
    int quick = iterations != nullptr ? std::max(1, std::atoi(iterations)) : 0;
    bool any = false;
    for (hotbed_backend b : {HOTBED_BACKEND_HOST, HOTBED_BACKEND_CUDA})
        if (backend == nullptr || std::string(backend) == hotbed_backend_name(b))
            any = add_backend(b, quick) || any;
    if (!any) {
        std::fprintf(stderr, "hotbed-bench: skipped: %s\n", hotbed_last_error());
        return 77;
    }
    size_t ran = benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    bench_close();
    return ran > 0 ? 0 : 1;
}
