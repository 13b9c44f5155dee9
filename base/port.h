/* base/port.h - the differences between the host compiler and nvcc, for cores that compile as both.
 *
 * Cores use the common subset of C11 and C++17, these functions, and base/tile.h.  Floating point
 * in a core is + - * / sqrtf fmaf on float and + - * / on double, with contraction off
 * (cmake/hotbed_flags), so that both backends give the same bits.
 */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SANITIZE_THREAD__)
#define HOTBED_WITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HOTBED_WITH_TSAN 1
#endif
#endif

/* Use vectors of 16 bytes on the host. Not under TSan, which recognizes atomic reads of words
 * only. */
#if defined(__SSE2__) && !defined(__CUDACC__) && !defined(HOTBED_WITH_TSAN)
#define HOTBED_WITH_SSE2 1
#include <emmintrin.h>
#endif

#if defined(__CUDACC__)
#define HOTBED_HD           static __host__ __device__ __forceinline__
#define HOTBED_COLD         static __host__ __device__ __noinline__ __attribute__((unused))
#define HOTBED_APART        static __host__ __device__ __noinline__ __attribute__((unused))
#define HOTBED_HD_LARGE     HOTBED_HD
#define HOTBED_RESTRICT     __restrict__
#define HOTBED_ALIGN(bytes) __align__(bytes)
#else
/* Emulated tiles spend their time in switches between fibres, and sanitizers in their checks. Inlining the cores
 * would only slow the compiler, to minutes for one file. */
#if defined(HOTBED_TILE_EMULATE) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HOTBED_HD static __attribute__((unused))
#else
#define HOTBED_HD static inline __attribute__((always_inline, unused))
#endif
#define HOTBED_COLD         static __attribute__((noinline, cold, unused))
/* Large code that is compiled once and called, so that kernels which rarely need it stay small. */
#define HOTBED_APART        static __attribute__((noinline, unused))
/* Part of each kernel; on the host compiled once in a file and called, because its work takes longer than a call. */
#define HOTBED_HD_LARGE     static __attribute__((noinline, unused))
#define HOTBED_RESTRICT     restrict
#define HOTBED_ALIGN(bytes) __attribute__((aligned(bytes)))
#endif

/* Unroll the next loop, whose count is constant, so that nvcc keeps small arrays in registers. The
 * host compiler decides for itself. */
#if defined(__CUDA_ARCH__)
#define HOTBED_UNROLL _Pragma("unroll")
#else
#define HOTBED_UNROLL
#endif

/* A point where tests may switch from one emulated tile to another (tests/support/emulate.h). It is
 * at each access to a shared word or to a part of a row. Other builds compile it to nothing. */
#if defined(HOTBED_TILE_EMULATE)
void hotbed_emulate_point(void);
#define HOTBED_POINT() hotbed_emulate_point()
#else
#define HOTBED_POINT() ((void)0)
#endif

/* --- atomics: the order is in the name, the scope is the device ----------------------------- */

HOTBED_HD uint64_t hotbed_load_relaxed_u64(const uint64_t *p) {
#if defined(__CUDA_ARCH__)
    uint64_t value;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
    return value;
#else
    HOTBED_POINT();
    return __atomic_load_n(p, __ATOMIC_RELAXED);
#endif
}

HOTBED_HD uint64_t hotbed_load_acquire_u64(const uint64_t *p) {
#if defined(__CUDA_ARCH__)
    uint64_t value;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
    return value;
#else
    HOTBED_POINT();
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
}

HOTBED_HD void hotbed_store_relaxed_u64(uint64_t *p, uint64_t value) {
#if defined(__CUDA_ARCH__)
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
#else
    HOTBED_POINT();
    __atomic_store_n(p, value, __ATOMIC_RELAXED);
#endif
}

HOTBED_HD void hotbed_store_release_u64(uint64_t *p, uint64_t value) {
#if defined(__CUDA_ARCH__)
    asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
#else
    HOTBED_POINT();
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
#endif
}

/* Replace *p by `desired` if it is `expected`; acquires and releases. Returns whether it did. */
HOTBED_HD bool hotbed_cas_u64(uint64_t *p, uint64_t expected, uint64_t desired) {
#if defined(__CUDA_ARCH__)
    uint64_t old;
    asm volatile("atom.acq_rel.gpu.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(expected), "l"(desired)
                 : "memory");
    return old == expected;
#else
    HOTBED_POINT();
    return __atomic_compare_exchange_n(
        p, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
#endif
}

HOTBED_HD uint64_t hotbed_add_relaxed_u64(uint64_t *p, uint64_t value) {
#if defined(__CUDA_ARCH__)
    return atomicAdd((unsigned long long *)p, (unsigned long long)value);
#else
    HOTBED_POINT();
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
#endif
}

/* Add with acquire order: the caller's later accesses see what the thread that stored the word, with
 * release order, wrote before. Returns the
 * earlier value. */
HOTBED_HD uint64_t hotbed_add_acquire_u64(uint64_t *p, uint64_t value) {
#if defined(__CUDA_ARCH__)
    uint64_t old;
    asm volatile("atom.acquire.gpu.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(p), "l"(value)
                 : "memory");
    return old;
#else
    HOTBED_POINT();
    return __atomic_fetch_add(p, value, __ATOMIC_ACQUIRE);
#endif
}

/* Add with release order: a thread that acquires the sum sees the caller's earlier accesses. */
HOTBED_HD void hotbed_add_release_u64(uint64_t *p, uint64_t value) {
#if defined(__CUDA_ARCH__)
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
#else
    HOTBED_POINT();
    (void)__atomic_fetch_add(p, value, __ATOMIC_RELEASE);
#endif
}

/* hotbed_cas_u64() for callers that access the memory which the word guards only in a later pass.
 * Passes are ordered anyway, so CUDA needs no order here. */
HOTBED_HD bool hotbed_cas_pass_u64(uint64_t *p, uint64_t expected, uint64_t desired) {
#if defined(__CUDA_ARCH__)
    uint64_t old;
    asm volatile("atom.relaxed.gpu.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(expected), "l"(desired)
                 : "memory");
    return old == expected;
#else
    return hotbed_cas_u64(p, expected, desired);
#endif
}

/* hotbed_load_acquire_u64() for callers of hotbed_cas_pass_u64(). */
HOTBED_HD uint64_t hotbed_load_pass_u64(const uint64_t *p) {
#if defined(__CUDA_ARCH__)
    return hotbed_load_relaxed_u64(p);
#else
    return hotbed_load_acquire_u64(p);
#endif
}

HOTBED_HD uint32_t hotbed_load_relaxed_u32(const uint32_t *p) {
#if defined(__CUDA_ARCH__)
    uint32_t value;
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
#else
    return __atomic_load_n(p, __ATOMIC_RELAXED);
#endif
}

/* Replace *p by `desired` if it is `expected`; relaxed. Returns the earlier value. */
HOTBED_HD uint32_t hotbed_cas_relaxed_u32(uint32_t *p, uint32_t expected, uint32_t desired) {
#if defined(__CUDA_ARCH__)
    return atomicCAS(p, expected, desired);
#else
    __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
#endif
}

HOTBED_HD uint32_t hotbed_add_relaxed_u32(uint32_t *p, uint32_t value) {
#if defined(__CUDA_ARCH__)
    return atomicAdd(p, value);
#else
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
#endif
}

/* Set bits. On the host a word that has them is not written. */
HOTBED_HD void hotbed_or_relaxed_u32(uint32_t *p, uint32_t bits) {
#if defined(__CUDA_ARCH__)
    atomicOr(p, bits);
#else
    if ((__atomic_load_n(p, __ATOMIC_RELAXED) & bits) != bits)
        __atomic_fetch_or(p, bits, __ATOMIC_RELAXED);
#endif
}

/* Keep only `bits`. */
HOTBED_HD void hotbed_and_relaxed_u32(uint32_t *p, uint32_t bits) {
#if defined(__CUDA_ARCH__)
    atomicAnd(p, bits);
#else
    __atomic_fetch_and(p, bits, __ATOMIC_RELAXED);
#endif
}

HOTBED_HD void hotbed_min_relaxed_u32(uint32_t *p, uint32_t value) {
#if defined(__CUDA_ARCH__)
    atomicMin(p, value);
#else
    uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (value < old && !__atomic_compare_exchange_n(
                              p, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
#endif
}

/* A thread that sees an access after the fence sees every access of this thread before it. */
HOTBED_HD void hotbed_fence(void) {
#if defined(__CUDA_ARCH__)
    asm volatile("fence.acq_rel.gpu;" ::
                     : "memory"); /* __threadfence() is sequentially consistent */
#elif defined(HOTBED_WITH_TSAN)
    /* TSan does not support fences; on x86 a compiler barrier is enough */
    __asm__ volatile("" ::: "memory");
#else
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
#endif
}

/* Store to a word of host memory that host threads read while kernels run; relaxed. */
HOTBED_HD void hotbed_store_system_u64(uint64_t *p, uint64_t value) {
#if defined(__CUDA_ARCH__)
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
#else
    __atomic_store_n(p, value, __ATOMIC_RELAXED);
#endif
}

/* hotbed_fence() that also orders accesses as seen by host threads. */
HOTBED_HD void hotbed_fence_system(void) {
#if defined(__CUDA_ARCH__)
    __threadfence_system();
#else
    hotbed_fence();
#endif
}

/* --- pairs and quads: 16 bytes in one access ------------------------------------------------- */

typedef struct HOTBED_ALIGN(16) hotbed_u64x2 {
    uint64_t a, b;
} hotbed_u64x2;

typedef struct HOTBED_ALIGN(16) hotbed_f32x4 {
    float x, y, z, w;
} hotbed_f32x4;

/* Two neighbouring words, each read as by hotbed_load_relaxed_u64(); p is 16-byte aligned. */
HOTBED_HD hotbed_u64x2 hotbed_load_relaxed_u64x2(const uint64_t *p) {
    hotbed_u64x2 pair;
#if defined(__CUDA_ARCH__)
    asm volatile("ld.relaxed.gpu.v2.u64 {%0, %1}, [%2];"
                 : "=l"(pair.a), "=l"(pair.b)
                 : "l"(p)
                 : "memory");
#else
    HOTBED_POINT();
    pair.a = __atomic_load_n(p, __ATOMIC_RELAXED);
    pair.b = __atomic_load_n(p + 1, __ATOMIC_RELAXED);
#endif
    return pair;
}

/* hotbed_load_relaxed_u64x2(), but on CUDA the pair may come from the SM's L1 cache, and so may be as
 * old as the start of the kernel. */
HOTBED_HD hotbed_u64x2 hotbed_load_cached_u64x2(const uint64_t *p) {
#if defined(__CUDA_ARCH__)
    hotbed_u64x2 pair;
    asm volatile("ld.weak.v2.u64 {%0, %1}, [%2];" : "=l"(pair.a), "=l"(pair.b) : "l"(p));
    return pair;
#else
    return hotbed_load_relaxed_u64x2(p);
#endif
}

/* Read 2, 4 or 16 aligned bytes of a row that another stream may be writing. On CUDA the load
 * bypasses the SM's L1 cache, which may hold a line from before the row was written. */
HOTBED_HD uint16_t hotbed_load_shared_u16(const void *p) {
#if defined(__CUDA_ARCH__)
    uint16_t value;
    asm volatile("ld.relaxed.gpu.u16 %0, [%1];" : "=h"(value) : "l"(p) : "memory");
    return value;
#else
    return *(const uint16_t *)p;
#endif
}

HOTBED_HD float hotbed_load_shared_f32(const void *p) {
#if defined(__CUDA_ARCH__)
    float value;
    asm volatile("ld.relaxed.gpu.f32 %0, [%1];" : "=f"(value) : "l"(p) : "memory");
    return value;
#else
    return *(const float *)p;
#endif
}

HOTBED_HD hotbed_f32x4 hotbed_load_shared_f32x4(const void *p) {
#if defined(__CUDA_ARCH__)
    hotbed_f32x4 v;
    asm volatile("ld.relaxed.gpu.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
#else
    return *(const hotbed_f32x4 *)p;
#endif
}

/* Return one bit for each of the 16 words of a 128-byte line: whether it equals `word`. One lane
 * reads all words, each as by hotbed_load_relaxed_u64(), since x86 never splits an aligned word of
 * a vector. */
HOTBED_HD uint32_t hotbed_match16(const uint64_t *line, uint64_t word) {
#if defined(HOTBED_WITH_SSE2)
    HOTBED_POINT();
    const __m128i *pairs = (const __m128i *)(const void *)line;
    const __m128i same = _mm_set1_epi64x((long long)word);
    __m128i quads[4]; /* 16 bits for each half of a word */
    for (int i = 0; i < 4; i++)
        quads[i] = _mm_packs_epi32(
            _mm_cmpeq_epi32(_mm_loadu_si128(pairs + 2 * i), same),
            _mm_cmpeq_epi32(_mm_loadu_si128(pairs + 2 * i + 1), same));
    __m128i low = _mm_packs_epi16(quads[0], quads[1]); /* 8 bits for each half */
    __m128i high = _mm_packs_epi16(quads[2], quads[3]);
    low = _mm_and_si128(low, _mm_srli_epi16(low, 8)); /* both halves, in the low byte of the two */
    high = _mm_and_si128(high, _mm_srli_epi16(high, 8));
    const __m128i byte = _mm_set1_epi16(0xff);
    return (uint32_t)_mm_movemask_epi8(
        _mm_packus_epi16(_mm_and_si128(low, byte), _mm_and_si128(high, byte)));
#else
    uint32_t bits = 0;
    for (uint32_t pair = 0; pair < 8; pair++) {
        hotbed_u64x2 words = hotbed_load_relaxed_u64x2(line + (size_t)2 * pair);
        bits |= (words.a == word ? 1U : 0U) << (2 * pair);
        bits |= (words.b == word ? 2U : 0U) << (2 * pair);
    }
    return bits;
#endif
}

/* Write four floats that are not read soon, without displacing other lines from the cache. */
HOTBED_HD void hotbed_store_once(float *p, hotbed_f32x4 v) {
#if defined(__CUDA_ARCH__)
    __stcs((float4 *)p, make_float4(v.x, v.y, v.z, v.w));
#else
    *(hotbed_f32x4 *)(void *)p = v;
#endif
}

/* Prefetch the line at p into the cache; on CUDA, into L2. */
HOTBED_HD void hotbed_prefetch(const void *p) {
#if defined(__CUDA_ARCH__)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
    __builtin_prefetch(p);
    /* gcc takes a function that only prefetches for pure, and removes calls of it. */
    __asm__ volatile("");
#endif
}

/* Prefetch all lines of an item at p, at most its first 2048 bytes: the hardware prefetches the
 * rest of a long item, which is read in order. */
HOTBED_HD void hotbed_prefetch_item(const void *p, uint64_t bytes) {
    const uint64_t most = 2048;
    for (uint64_t at = 0; at < (bytes < most ? bytes : most); at += 64)
        hotbed_prefetch((const uint8_t *)p + at);
}

/* --- integers --------------------------------------------------------------------------------- */

/* Number of the lowest set bit; value is not 0. */
HOTBED_HD uint32_t hotbed_lowest_bit(uint32_t value) {
#if defined(__CUDA_ARCH__)
    return (uint32_t)__ffs((int)value) - 1;
#else
    return (uint32_t)__builtin_ctz(value);
#endif
}

HOTBED_HD uint32_t hotbed_bits_set(uint32_t value) {
#if defined(__CUDA_ARCH__)
    return (uint32_t)__popc(value);
#else
    return (uint32_t)__builtin_popcount(value);
#endif
}

HOTBED_HD uint32_t hotbed_float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

HOTBED_HD float hotbed_bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
