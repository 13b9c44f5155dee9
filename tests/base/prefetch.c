/* tests/base/prefetch.c - compiled to assembly, which must have a prefetch: gcc takes a function that
 * only prefetches for pure, and removes calls of it unless hotbed_prefetch() prevents that. */
#include "base/port.h"

static __attribute__((noinline)) void only_prefetches(const void *p) {
    hotbed_prefetch(p);
}

void calls_what_prefetches(const void *p);
void calls_what_prefetches(const void *p) {
    only_prefetches(p);
}
