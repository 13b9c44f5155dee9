/* base/cuda_bulk.h - Hopper's bulk copies between shared and global memory, started by one thread.
 *
 * Bulk copies access memory through the async proxy. A load completes on an mbarrier; a store
 * completes with the thread's bulk group. */
#pragma once

#include <stdint.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HOTBED_WITH_BULK 1

static __device__ uint32_t hotbed_bulk_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Initialize an mbarrier. Each phase completes after one arrival, which hotbed_bulk_load() makes,
 * and when all bytes of the load have arrived. */
static __device__ void hotbed_bulk_init(uint64_t *full) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(hotbed_bulk_address(full))
                 : "memory");
}

/* Order the thread's bulk copies after ordinary stores of this kernel and of earlier ones. Call it
 * once, after the thread's last hotbed_bulk_init() and before its first load.
 *
 * PTX orders an ordinary store and a bulk load of the same address only if a proxy fence lies on
 * the path of synchronization between them. The end of a kernel is such a fence for the kernel's
 * own stores. But a row may have been written by a backward on another stream whose kernel is still
 * running: it has released the row's pin, and a claim in an earlier kernel of this stream has seen
 * the release. No proxy fence is on that path, so each thread makes one here. One is enough,
 * because all rows that the kernel reads were claimed before it began. */
static __device__ void hotbed_bulk_begin(void) {
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* Start a copy from global to shared memory. `bytes` and both addresses are multiples of 16. */
static __device__ void hotbed_bulk_load(
    void *to, const void *from, uint32_t bytes, uint64_t *full) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(hotbed_bulk_address(full)),
        "r"(bytes)
        : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(hotbed_bulk_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(hotbed_bulk_address(full))
        : "memory");
}

/* Wait for the load of the phase with this parity. */
static __device__ void hotbed_bulk_wait(uint64_t *full, uint32_t parity) {
    uint32_t passed = 0;
    while (passed == 0)
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(passed)
                     : "r"(hotbed_bulk_address(full)), "r"(parity)
                     : "memory");
}

/* Start a copy from shared to global memory. */
static __device__ void hotbed_bulk_store(void *to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(hotbed_bulk_address(from)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Wait until all stores of the thread are complete and visible to it. */
static __device__ void hotbed_bulk_drain(void) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Wait until all stores of the thread have read shared memory, which may then be overwritten. */
static __device__ void hotbed_bulk_drain_reads(void) {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* Order later bulk stores of the thread after its earlier ordinary accesses to global memory. */
static __device__ void hotbed_bulk_fence(void) {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

#endif
