/* base/cuda_bulk.h - Hopper's bulk copies between shared and global memory, by one thread.
 *
 * Their bytes go by the async proxy.  A load completes on an mbarrier; stores complete in bulk groups of the thread.
 */
#ifndef HOTBED_BASE_CUDA_BULK_H
#define HOTBED_BASE_CUDA_BULK_H

#include <stdint.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HOTBED_WITH_BULK 1

static __device__ uint32_t hotbed_bulk_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* A phase completes with one arrival, which hotbed_bulk_load() makes, and all bytes. */
static __device__ void hotbed_bulk_init(uint64_t *full) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(hotbed_bulk_address(full))
                 : "memory");
}

/* After the last hotbed_bulk_init() of a thread, and before its first load: what threads of this kernel and of earlier ones
 * wrote by ordinary stores comes before what this thread's bulk copies read.
 *
 * In PTX's memory model an ordinary store and a bulk load of the same address are ordered only if a proxy fence is on the
 * path of synchronisation from one to the other.  The end of a kernel is one for that kernel's own stores.  A row may have
 * been written, though, by a backward on another stream whose kernel still runs: it has released the row's pin, a claim
 * in an earlier kernel of this stream has seen that, and nothing on this path is a proxy fence.  So one is made here for
 * global memory, once a thread; all rows that the kernel reads were claimed before it began. */
static __device__ void hotbed_bulk_begin(void) {
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* Global to shared memory; bytes and both addresses are multiples of 16. */
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

/* Wait for the load that is the phase of this parity. */
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

/* Shared to global memory. */
static __device__ void hotbed_bulk_store(void *to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(hotbed_bulk_address(from)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until all stores of the thread are made, and seen by it. */
static __device__ void hotbed_bulk_drain(void) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Until all stores of the thread have read shared memory. */
static __device__ void hotbed_bulk_drain_reads(void) {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* Stores from here on come after what the thread wrote by other means. */
static __device__ void hotbed_bulk_fence(void) {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

#endif
#endif
