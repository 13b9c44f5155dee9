/* bench/bench_peer_none.c - a build without other libraries' hash maps. */
#include "bench/bench.h"

const bench_case bench_peer_cases[] = {{NULL, NULL, NULL, NULL, NULL}};
