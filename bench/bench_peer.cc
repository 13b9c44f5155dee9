/* bench/bench_peer.cc - lookups in C++ hash maps of other libraries, with the keys and threads of
 * index/alone_find.
 *
 * A map holds a slot number for each key.  These maps do not allow changes during lookups; the
 * benchmark only looks up. */
#include "bench/bench.h"

extern "C" {
#include "base/host_launch.h"
}

#include <absl/container/flat_hash_map.h>
#include <tsl/robin_map.h>

#include <cstdlib>

namespace {

enum { GRAIN = 4096 };

template <typename Map> struct find_args {
    const Map *map;
    const uint64_t *keys;
    uint64_t *slots;
};

template <typename Map> void find_body(const void *args, uint64_t begin, uint64_t end) {
    const auto *a = static_cast<const find_args<Map> *>(args);
    for (uint64_t i = begin; i < end; i++) {
        auto found = a->map->find(a->keys[i]);
        a->slots[i] = found == a->map->end() ? UINT64_MAX : found->second;
    }
}

/* Takes the arguments of index/alone_find. */
template <typename Map> void find(bench_state *state) {
    hotbed_stream *stream = bench_stream(state);
    auto n = static_cast<uint64_t>(bench_arg(state, 0));
    auto filled = static_cast<uint64_t>(bench_arg(state, 1) * bench_arg(state, 2) / 100);
    auto *keys = static_cast<uint64_t *>(bench_alloc(state, n * sizeof(uint64_t)));
    auto *slots = static_cast<uint64_t *>(bench_alloc(state, n * sizeof(uint64_t)));
    if (keys == nullptr || slots == nullptr)
        return;
    Map map;
    map.reserve(filled);
    for (uint64_t i = 0; i < filled; i++)
        map.emplace(bench_key(i), i);
    bench_choose(n, filled, static_cast<uint64_t>(bench_arg(state, 3)), uint64_t{1} << 40, keys);
    for (uint64_t i = 0; i < n; i++)
        keys[i] = bench_key(keys[i]);
    find_args<Map> args{&map, keys, slots};
    while (bench_next(state)) {
        bench_flush_cache(stream);
        bench_start(stream);
        if (!bench_ok(
                state, hotbed_host_launch(stream, n, GRAIN, find_body<Map>, &args, sizeof args)))
            return;
        bench_stop(stream, state);
    }
    bench_items(state, static_cast<int64_t>(n));
    bench_lines(state, n, static_cast<uint64_t>(bench_arg(state, 1)));
    bench_counter(state, "load", static_cast<double>(map.load_factor()));
}

const char *const names[] = {"n", "slots", "load", "hits", nullptr};
const int64_t none[] = {INT64_MIN}; /* maps are in host memory */

} // namespace

extern "C" const bench_case bench_peer_cases[] = {
    {"peer/absl_flat_hash_map_find", find<absl::flat_hash_map<uint64_t, uint64_t>>, names,
     bench_find_host, none},
    {"peer/tsl_robin_map_find", find<tsl::robin_map<uint64_t, uint64_t>>, names, bench_find_host,
     none},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
