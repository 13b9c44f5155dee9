/* bench/bench_peer_none.c - an empty table of cases, for builds without the hash maps of other libraries. */
#include "bench/bench.h"

const bench_case bench_peer_cases[] = {{NULL, NULL, NULL, NULL, NULL}};
