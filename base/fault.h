/* base/fault.h - faults that kernels find, latched where hotbed_stream_sync() reads them. */
#pragma once

#include "base/port.h"
#include "hotbed/status.h"

/* The first fault that work on a stream found, in host memory that kernels can write. No word is
 * changed both by the host and by kernel atomics; such updates are not atomic across the bus. */
typedef struct hotbed_fault {
    uint32_t status; /* hotbed_status; 0: no fault. Set last; cleared by the host */
    uint32_t claim;  /* written by kernels: number of the fault that a thread has claimed */
    uint32_t taken;  /* written by the host: number of faults that the host has cleared */
    uint32_t what;   /* a hotbed_error_cause, with its values as below */
    uint32_t table;  /* table number */
    uint64_t key;
    uint64_t bound;
} hotbed_fault;

/* What a fault's values are, by its cause. hotbed_stream_sync() makes the text and the fields of them.
 *   TABLE_FULL    table, key; bound: the table's slots
 *   KEY_RANGE     table, key; bound: the table's rows
 *   OFFSET        key: number of the bag that ends there; bound: the offset found; table: the number of
 *                 bags of each feature, 0: unknown
 *   ALL_PINNED    table, key: every candidate is pinned
 *   TABLE_NUMBER  table, key; bound: the number of tables
 *   EXTERNAL      table; key: number of rows of the call
 *   COMM          table: rank blamed; key: operation, 0: unknown; bound: hotbed_comm_reason
 *   FIRST_OFFSET  bound: the first offset, which is not 0
 *   KEY_TWICE     table, key; bound: its two positions in the call, 32 bits each
 *   GRADIENT      table, key: its gradient is NaN or infinite */

/* Latch a fault unless one is latched already. Does nothing if `fault` is NULL. Called from kernels
 * and host bodies, and from a hotbed_stream_call() while the stream runs nothing else. */
HOTBED_HD void hotbed_fault_latch(
    hotbed_fault *fault, uint32_t status, uint32_t what, uint32_t table, uint64_t key,
    uint64_t bound) {
    if (fault == NULL)
        return;
#if defined(__CUDA_ARCH__)
    uint32_t number = *(volatile uint32_t *)&fault->taken + 1;
    uint32_t last = *(volatile uint32_t *)&fault->claim;
#else
    /* Acquires the release in take_latched(), after which nothing reads the previous fault. */
    uint32_t number = __atomic_load_n(&fault->taken, __ATOMIC_ACQUIRE) + 1;
    uint32_t last = hotbed_load_relaxed_u32(&fault->claim);
#endif
    /* If `number` is already claimed, another thread writes or has written this fault. */
    if ((int32_t)(number - last) <= 0 ||
        hotbed_cas_relaxed_u32(&fault->claim, last, number) != last)
        return;
    fault->what = what;
    fault->table = table;
    fault->key = key;
    fault->bound = bound;
#if defined(__CUDA_ARCH__)
    __threadfence_system();
    *(volatile uint32_t *)&fault->status = status;
#else
    __atomic_store_n(&fault->status, status, __ATOMIC_RELEASE);
#endif
}
