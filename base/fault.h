/* base/fault.h - a fault found by a kernel, latched where hotbed_stream_sync() finds it. */
#ifndef HOTBED_BASE_FAULT_H
#define HOTBED_BASE_FAULT_H

#include "base/port.h"

/* The first fault that work on a stream found.  In host memory that kernels can write. */
typedef struct hotbed_fault {
    uint32_t status; /* hotbed_status; 0 is none; set last */
    uint32_t claim;  /* 0 until one lane takes it */
    uint32_t what;   /* a hotbed_fault_what: which sentence */
    uint32_t table;  /* table number */
    uint64_t key;
    uint64_t bound;
} hotbed_fault;

/* Sentences of faults; hotbed_stream_sync() writes them with the values. */
typedef enum hotbed_fault_what {
    HOTBED_FAULT_TABLE_FULL = 1, /* table, key; bound: the table's slots */
    HOTBED_FAULT_KEY_RANGE = 2,  /* table, key; bound: the table's rows */
    HOTBED_FAULT_OFFSET = 3,     /* key: bag number; bound: the offset found */
    HOTBED_FAULT_ALL_PINNED = 4, /* table, key: every candidate is pinned */
} hotbed_fault_what;

/* Latch a fault unless one is latched.  Called from kernels and host bodies. */
HOTBED_HD void hotbed_fault_latch(
    hotbed_fault *fault, uint32_t status, uint32_t what, uint32_t table, uint64_t key,
    uint64_t bound) {
    if (hotbed_cas_relaxed_u32(&fault->claim, 0, 1) != 0)
        return;
#if !defined(__CUDA_ARCH__)
    /* Acquires what hotbed_stream_fault() released when it cleared the last fault. */
    (void)__atomic_load_n(&fault->claim, __ATOMIC_ACQUIRE);
#endif
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

#endif
