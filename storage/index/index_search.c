/* storage/index/index_search.c - the host's search for many keys; see index_search.h. */
#include "storage/index/index_search.h"
#include "storage/index/index_find_core.h"

enum { KEYS = HOTBED_SEARCH_KEYS };

/* Which words of a line equal `word`, one bit each: hotbed_match16(). */
typedef uint32_t match_line(const uint64_t *line, uint64_t word);

static inline const uint64_t *line_of(const hotbed_search *q, uint32_t bucket) {
    return q->lines + (size_t)bucket * HOTBED_BUCKET_SLOTS;
}

static inline void prefetch_bucket(const hotbed_search *q, uint32_t bucket) {
    hotbed_prefetch_item(line_of(q, bucket), HOTBED_BUCKET_SLOTS * sizeof(uint64_t));
}

/* --- the calls, compiled for each instruction set; `match` is a literal ----------------------- */

/* Compute the candidates of all keys, and prefetch the first ones. */
HOTBED_HD void start_as(hotbed_search *q) {
    const hotbed_index_range range = q->range;
    for (uint32_t k = 0; k < KEYS; k++) {
        const hotbed_candidates c = hotbed_index_candidates(range, q->keys[k]);
        q->first[k] = c.first;
        q->second[k] = range.choices > 1 ? c.second : c.first;
    }
    for (uint32_t k = 0; k < q->n; k++)
        prefetch_bucket(q, q->first[k]);
}

/* Store the slot of key number k, which is undefined if `bits` is 0. */
HOTBED_HD void store_slot(
    const hotbed_search *q, uint64_t *slots, uint32_t k, uint32_t bucket, uint32_t bits) {
    slots[k] = hotbed_index_slot(q->range, bucket) + hotbed_lowest_bit(bits | 1U << 31);
}

/* Most keys are in their first candidate, but the processor cannot predict which, so the others are
 * appended to `left` without a branch. */
HOTBED_HD void first_as(hotbed_search *q, uint64_t *slots, match_line *match) {
    uint32_t left = 0;
    for (uint32_t k = 0; k < q->n; k++) {
        const uint32_t bits = match(line_of(q, q->first[k]), q->keys[k]);
        store_slot(q, slots, k, q->first[k], bits);
        q->left[left] = k;
        left += bits == 0;
    }
    for (uint32_t j = 0; j < left; j++)
        prefetch_bucket(q, q->second[q->left[j]]);
    q->num_left = left;
}

HOTBED_HD void second_as(hotbed_search *q, uint64_t *slots, match_line *match) {
    uint32_t left = 0;
    for (uint32_t j = 0; j < q->num_left; j++) {
        const uint32_t k = q->left[j];
        const uint32_t bits = match(line_of(q, q->second[k]), q->keys[k]);
        store_slot(q, slots, k, q->second[k], bits);
        q->left[left] = k;
        left += bits == 0;
    }
    q->num_left = left;
}

/* Whether a slot of the bucket was never used. */
HOTBED_HD bool never_full(const hotbed_search *q, uint32_t bucket, match_line *match) {
    return match(line_of(q, bucket), hotbed_index_marker(q->range, bucket, false)) != 0;
}

/* The bucket after `bucket` in the probe sequence of key number k. */
HOTBED_HD uint32_t bucket_after(const hotbed_search *q, uint32_t k, uint32_t bucket) {
    const uint32_t left = q->range.buckets - bucket;
    bucket = q->step[k] < left ? bucket + q->step[k] : q->step[k] - left;
    if (bucket == q->first[k] && !hotbed_index_steps_differ(q->range))
        bucket = bucket + 1 == q->range.buckets ? 0 : bucket + 1;
    return bucket;
}

/* Search the probe sequences of the keys in `left`, a bucket of each in turn. */
HOTBED_HD void walk_as(hotbed_search *q, uint64_t *slots, match_line *match) {
    const bool ends = q->range.choices > HOTBED_WALK_EVICT; /* as in hotbed_index_walk_ends() */
    uint32_t left = 0;
    for (uint32_t j = 0; j < q->num_left; j++) {
        const uint32_t k = q->left[j];
        const hotbed_candidates c = {q->first[k], q->second[k], 0};
        q->step[k] = hotbed_index_step(q->range, c);
        slots[k] = HOTBED_SLOT_NONE;
        q->left[left] = k;
        left +=
            !ends || (!never_full(q, q->second[k], match) && !never_full(q, q->first[k], match));
    }
    for (uint32_t choice = 2; choice < q->range.choices && left > 0; choice++) {
        q->num_left = left;
        left = 0;
        for (uint32_t j = 0; j < q->num_left; j++) {
            const uint32_t k = q->left[j];
            q->second[k] = bucket_after(q, k, q->second[k]);
            prefetch_bucket(q, q->second[k]);
        }
        for (uint32_t j = 0; j < q->num_left; j++) {
            const uint32_t k = q->left[j];
            const uint32_t bits = match(line_of(q, q->second[k]), q->keys[k]);
            if (bits != 0)
                store_slot(q, slots, k, q->second[k], bits);
            q->left[left] = k;
            left += bits == 0 && (!ends || !never_full(q, q->second[k], match));
        }
    }
}

/* --- instruction sets ------------------------------------------------------------------------- */

typedef struct search_code {
    void (*start)(hotbed_search *);
    void (*first)(hotbed_search *, uint64_t *slots);
    void (*second)(hotbed_search *, uint64_t *slots);
    void (*walk)(hotbed_search *, uint64_t *slots);
} search_code;

/* NOLINTBEGIN(bugprone-macro-parentheses): `target` is an attribute */
#define SEARCH_CODE(set, target)                                                                   \
    target static void start_##set(hotbed_search *q) {                                             \
        start_as(q);                                                                               \
    }                                                                                              \
    target static void first_##set(hotbed_search *q, uint64_t *slots) {                            \
        first_as(q, slots, match_##set);                                                           \
    }                                                                                              \
    target static void second_##set(hotbed_search *q, uint64_t *slots) {                           \
        second_as(q, slots, match_##set);                                                          \
    }                                                                                              \
    target static void walk_##set(hotbed_search *q, uint64_t *slots) {                             \
        walk_as(q, slots, match_##set);                                                            \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

static inline uint32_t match_plain(const uint64_t *line, uint64_t word) {
    return hotbed_match16(line, word);
}

SEARCH_CODE(plain, )

#if defined(HOTBED_WITH_SETS)
HOTBED_AVX2 static inline uint32_t match4(const uint64_t *words, __m256i word) {
    const __m256i four = _mm256_loadu_si256((const __m256i *)(const void *)words);
    return (uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(four, word)));
}

HOTBED_AVX2 static inline uint32_t match_avx2(const uint64_t *line, uint64_t word) {
    const __m256i same = _mm256_set1_epi64x((long long)word);
    return match4(line, same) | match4(line + 4, same) << 4 | match4(line + 8, same) << 8 |
           match4(line + 12, same) << 12;
}

HOTBED_AVX512 static inline uint32_t match_avx512(const uint64_t *line, uint64_t word) {
    const __m512i same = _mm512_set1_epi64((long long)word);
    const uint32_t low = _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(line), same);
    const uint32_t high = _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(line + 8), same);
    return low | high << 8;
}

SEARCH_CODE(avx2, HOTBED_AVX2)
SEARCH_CODE(avx512, HOTBED_AVX512)
#endif

static const search_code codes[] = {
    [HOTBED_HOST_PLAIN] = {start_plain, first_plain, second_plain, walk_plain},
#if defined(HOTBED_WITH_SETS)
    [HOTBED_HOST_AVX2] = {start_avx2, first_avx2, second_avx2, walk_avx2},
    [HOTBED_HOST_AVX512] = {start_avx512, first_avx512, second_avx512, walk_avx512},
#endif
};

void hotbed_search_start(
    hotbed_search *q, hotbed_host_set set, hotbed_index_view index, hotbed_index_range range,
    const uint64_t *keys, uint32_t n) {
    q->index = index;
    q->range = range;
    q->lines = hotbed_index_key(index, hotbed_index_slot(range, 0));
    q->set = set;
    q->n = n;
    if (n < KEYS)
        memset(q->keys, 0, sizeof q->keys);
    memcpy(q->keys, keys, n * sizeof *keys);
    codes[set].start(q);
}

void hotbed_search_first(hotbed_search *q, uint64_t *slots) {
    codes[q->set].first(q, slots);
}

/* Search the second candidates and probe sequences within the range. */
static void search_rest(hotbed_search *q, uint64_t *slots) {
    codes[q->set].second(q, slots);
    if (q->num_left > 0)
        codes[q->set].walk(q, slots);
}

/* Search the segments of a table that has grown for the keys that have no slot. */
static void search_grown(const hotbed_search *q, uint64_t *slots) {
    for (uint32_t grown = 0; hotbed_index_grown(q->index, q->range, grown) != 0; grown++) {
        const hotbed_index_part part = hotbed_index_part_at(q->index, q->range, grown + 1);
        hotbed_search in;
        uint32_t left[KEYS], n = 0;
        uint64_t keys[KEYS], found[KEYS];
        for (uint32_t k = 0; k < q->n; k++) {
            left[n] = k;
            keys[n] = q->keys[k];
            n += slots[k] == HOTBED_SLOT_NONE;
        }
        if (n == 0)
            return;
        hotbed_search_start(&in, q->set, part.index, part.range, keys, n);
        hotbed_search_first(&in, found);
        search_rest(&in, found);
        for (uint32_t j = 0; j < n; j++)
            if (found[j] != HOTBED_SLOT_NONE)
                slots[left[j]] = part.first + found[j];
    }
}

void hotbed_search_second(hotbed_search *q, uint64_t *slots) {
    search_rest(q, slots);
    if (hotbed_index_grows(q->index, q->range))
        search_grown(q, slots);
}
