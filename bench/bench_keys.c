/* bench/bench_keys.c - keys and numbers of the microbenchmarks. */
#include "bench/bench.h"

#include <math.h>

uint64_t bench_key(uint64_t i) {
    /* splitmix64 (Steele et al. 2014) */
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

uint64_t bench_random(uint64_t i, uint64_t n) {
    return bench_key(i ^ 0x5851f42d4c957f2dU) % n;
}

void bench_zipf(double alpha, uint64_t range, uint64_t n, uint64_t seed, uint64_t *out) {
    double g = 1.0 - alpha;
    double span = pow((double)range, g) - 1.0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t bits = bench_key(seed * n + i);
        double u = (double)(bits >> 11) * 0x1p-53;
        double x = alpha == 0 ? u * (double)range : pow(u * span + 1.0, 1.0 / g);
        uint64_t number = (uint64_t)x;
        out[i] = number < range ? number : range - 1;
    }
}

void bench_choose(uint64_t n, uint64_t filled, uint64_t hits, uint64_t fresh, uint64_t *out) {
    uint64_t stride = filled / (n > filled ? filled : n);
    for (uint64_t i = 0; i < n; i++) {
        bool hit = bench_random(i, 100) < hits;
        out[i] = hit ? (i * stride + bench_random(n + i, stride)) % filled : fresh + i;
    }
}
