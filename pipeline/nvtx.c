/* pipeline/nvtx.c - the only file that includes NVTX, which is headers only and does nothing
 * without a tool. */
#include "pipeline/nvtx.h"

#if defined(HOTBED_WITH_NVTX)
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

static void initialize(void) {
    nvtxInitialize(NULL);
}

void hotbed_nvtx_start(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, initialize);
}

void hotbed_nvtx_push(const char *name) {
    (void)nvtxRangePushA(name);
}

void hotbed_nvtx_pop(void) {
    (void)nvtxRangePop();
}
#else
void hotbed_nvtx_start(void) {
}

void hotbed_nvtx_push(const char *name) {
}

void hotbed_nvtx_pop(void) {
}
#endif
