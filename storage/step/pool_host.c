/* storage/step/pool_host.c - adding rows on the host; see pool_host.h. */
#include "storage/step/pool_host.h"

#include "storage/step/row_core.h"

/* sum[e] += row[e] * weight for e in [0, dim). */
typedef void add_row(float *sum, const uint8_t *row, float weight, uint32_t dim);

/* Compiled for each set and type of elements; `add` is a literal. */
HOTBED_HD void add_rows(
    const hotbed_pool_rows *rows, uint32_t first, uint32_t n, uint64_t row_bytes, uint32_t dim,
    float *sum, add_row *add) {
    for (uint32_t i = first; i < first + n; i++) {
        const uint8_t *ahead = rows->row[(i + HOTBED_POOL_AHEAD) % HOTBED_POOL_RING];
        if (i + HOTBED_POOL_AHEAD < rows->end && ahead != NULL)
            hotbed_prefetch_item(ahead, row_bytes);
        add(sum, rows->row[i % HOTBED_POOL_RING], rows->weight[i % HOTBED_POOL_RING], dim);
    }
}

/* Elements from `e` on, one by one. */
HOTBED_HD void add_tail(
    uint32_t dtype, float *sum, const uint8_t *row, float weight, uint32_t e, uint32_t dim) {
    for (; e < dim; e++)
        sum[e] = sum[e] + hotbed_load1(dtype, row, e) * weight;
}

#define ADD_ROWS(name, target)                                                                     \
    target static void name##_rows(                                                                \
        const hotbed_pool_rows *rows, uint32_t first, uint32_t n, uint64_t row_bytes,              \
        uint32_t dim, float *sum) {                                                                \
        add_rows(rows, first, n, row_bytes, dim, sum, name);                                       \
    }

#define ADD_PLAIN(name, dtype)                                                                     \
    static inline void name(float *sum, const uint8_t *row, float weight, uint32_t dim) {          \
        add_tail(dtype, sum, row, weight, 0, dim);                                                 \
    }                                                                                              \
    ADD_ROWS(name, )

ADD_PLAIN(plain_f32, HOTBED_F32)
ADD_PLAIN(plain_f16, HOTBED_F16)
ADD_PLAIN(plain_bf16, HOTBED_BF16)

/* Rows with scales, group by group; the compiler makes vectors of it. */
HOTBED_HD void add_scaled(
    uint32_t dtype, float *sum, const uint8_t *row, float weight, uint32_t dim) {
    for (uint32_t e = 0; e < dim; e += 4) {
        const uint32_t count = hotbed_count4(dim, e);
        const hotbed_f32x4 v = hotbed_scale4(
            hotbed_scaled4_to_f32(
                dtype, hotbed_scale_load(false, dtype, dim, row, e),
                hotbed_load_word(false, row + e)),
            weight);
        sum[e] = sum[e] + v.x;
        if (count > 1)
            sum[e + 1] = sum[e + 1] + v.y;
        if (count > 2)
            sum[e + 2] = sum[e + 2] + v.z;
        if (count > 3)
            sum[e + 3] = sum[e + 3] + v.w;
    }
}

#define ADD_SCALED(name, target, dtype)                                                            \
    target static inline void name(float *sum, const uint8_t *row, float weight, uint32_t dim) {   \
        add_scaled(dtype, sum, row, weight, dim);                                                  \
    }                                                                                              \
    ADD_ROWS(name, target)

ADD_SCALED(plain_int8, , HOTBED_INT8)
ADD_SCALED(plain_fp8, , HOTBED_FP8)

#if defined(HOTBED_WITH_SETS)

ADD_SCALED(avx2_int8, HOTBED_AVX2, HOTBED_INT8)
ADD_SCALED(avx2_fp8, HOTBED_AVX2, HOTBED_FP8)
ADD_SCALED(avx512_int8, HOTBED_AVX512, HOTBED_INT8)
ADD_SCALED(avx512_fp8, HOTBED_AVX512, HOTBED_FP8)

/* `load` is a function for `width` elements, which fill a vector. */
#define ADD_VECTORS(name, target, dtype, vector, prefix, width, load)                              \
    target static inline void name(float *sum, const uint8_t *row, float weight, uint32_t dim) {   \
        const vector factor = prefix##_set1_ps(weight);                                            \
        uint32_t e = 0;                                                                            \
        for (; e + (width) <= dim; e += (width)) {                                                 \
            const vector part = prefix##_mul_ps(load(row, e), factor);                             \
            prefix##_storeu_ps(sum + e, prefix##_add_ps(prefix##_loadu_ps(sum + e), part));        \
        }                                                                                          \
        add_tail(dtype, sum, row, weight, e, dim);                                                 \
    }                                                                                              \
    ADD_ROWS(name, target)

HOTBED_AVX2 static inline __m256 load8_f32(const uint8_t *row, uint32_t e) {
    return _mm256_loadu_ps((const float *)(const void *)row + e);
}

HOTBED_AVX2 static inline __m128i load8_u16(const uint8_t *row, uint32_t e) {
    return _mm_loadu_si128((const __m128i *)(const void *)(row + 2 * (size_t)e));
}

HOTBED_AVX2 static inline __m256 load8_f16(const uint8_t *row, uint32_t e) {
    return _mm256_cvtph_ps(load8_u16(row, e));
}

HOTBED_AVX2 static inline __m256 load8_bf16(const uint8_t *row, uint32_t e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load8_u16(row, e)), 16));
}

HOTBED_AVX512 static inline __m512 load16_f32(const uint8_t *row, uint32_t e) {
    return _mm512_loadu_ps((const float *)(const void *)row + e);
}

HOTBED_AVX512 static inline __m256i load16_u16(const uint8_t *row, uint32_t e) {
    return _mm256_loadu_si256((const __m256i *)(const void *)(row + 2 * (size_t)e));
}

HOTBED_AVX512 static inline __m512 load16_f16(const uint8_t *row, uint32_t e) {
    return _mm512_cvtph_ps(load16_u16(row, e));
}

HOTBED_AVX512 static inline __m512 load16_bf16(const uint8_t *row, uint32_t e) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load16_u16(row, e)), 16));
}

ADD_VECTORS(avx2_f32, HOTBED_AVX2, HOTBED_F32, __m256, _mm256, 8, load8_f32)
ADD_VECTORS(avx2_f16, HOTBED_AVX2, HOTBED_F16, __m256, _mm256, 8, load8_f16)
ADD_VECTORS(avx2_bf16, HOTBED_AVX2, HOTBED_BF16, __m256, _mm256, 8, load8_bf16)
ADD_VECTORS(avx512_f32, HOTBED_AVX512, HOTBED_F32, __m512, _mm512, 16, load16_f32)
ADD_VECTORS(avx512_f16, HOTBED_AVX512, HOTBED_F16, __m512, _mm512, 16, load16_f16)
ADD_VECTORS(avx512_bf16, HOTBED_AVX512, HOTBED_BF16, __m512, _mm512, 16, load16_bf16)
#endif

typedef void pool_rows(
    const hotbed_pool_rows *, uint32_t first, uint32_t n, uint64_t row_bytes, uint32_t dim,
    float *sum);

/* The functions of each type. */
#define PLAIN(DTYPE, name, ...) plain_##name##_rows,
static pool_rows *const code[][HOTBED_DTYPE_LAST] = {
    [HOTBED_HOST_PLAIN] = {HOTBED_DTYPES(PLAIN)},
#if defined(HOTBED_WITH_SETS)
#define AVX2(DTYPE, name, ...)   avx2_##name##_rows,
#define AVX512(DTYPE, name, ...) avx512_##name##_rows,
    [HOTBED_HOST_AVX2] = {HOTBED_DTYPES(AVX2)},
    [HOTBED_HOST_AVX512] = {HOTBED_DTYPES(AVX512)},
#endif
};

void hotbed_pool_add(
    hotbed_host_set set, const hotbed_pool_rows *rows, uint32_t first, uint32_t n, uint32_t dtype,
    uint32_t dim, float *sum) {
    code[set][dtype - 1](rows, first, n, hotbed_weights_bytes(dtype, dim), dim, sum);
}
