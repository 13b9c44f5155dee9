/* storage/step/unique.cu - dedup on CUDA: a hash of first occurrences, then a sort by unique key; in
 * storages of static tables a sort by row alone. Host counterpart: unique_host.c.
 *
 * Each table's keys have a part of one scratch hash table. An entry is the position of an
 * occurrence, and atomicMin makes it the first one. Bits mark the first occurrences, and prefix
 * sums over their words number the unique keys in that order. A stable radix sort of (unique key,
 * position) groups the occurrences.
 */
#include "base/carve.h"
#include "base/cuda_launch.h"
#include "base/hash_core.h"
#include "base/sort.h"
#include "base/stream.h"
#include "storage/step/unique_kernels.h"

enum { BLOCK = 256, WAVES = 1 };

#define NO_ENTRY UINT32_MAX

typedef struct unique_scratch {
    uint32_t *entries; /* [2 * bound] hash table; table t's part begins at 2 * table_starts[t] */
    uint32_t *places;  /* [bound] entry of each key */
    uint32_t *firsts;  /* [words] one bit per key: whether it is a first occurrence */
    uint32_t *before;  /* [words] number of first occurrences before each word of 32 keys */
    uint32_t *order;   /* [bound] 0, 1, 2, ...; not used if bags are sorted instead */
    uint32_t *sorted;  /* [bound] numbers of unique keys, or of rows, sorted */
    void *memory;      /* scratch memory of scan and sort */
    size_t memory_bytes;
} unique_scratch;

static size_t lay_out(uint64_t bound, void *base, unique_scratch *scratch) {
    size_t marks = bound / 32 + 1; /* words for `bound` keys and one more */
    size_t scan = hotbed_scan_scratch(HOTBED_BACKEND_CUDA, marks);
    size_t sort = hotbed_sort_pairs_scratch(HOTBED_BACKEND_CUDA, bound);
    const size_t words[6] = {2 * (size_t)bound, bound, marks, marks, bound, bound};
    uint32_t **const parts[6] = {&scratch->entries, &scratch->places, &scratch->firsts,
                                 &scratch->before,  &scratch->order,  &scratch->sorted};
    hotbed_carve carve = {(uint8_t *)base, 0};
    for (int p = 0; p < 6; p++)
        *parts[p] = (uint32_t *)hotbed_carve_take(&carve, words[p] * sizeof(uint32_t));
    scratch->memory_bytes = scan > sort ? scan : sort;
    scratch->memory = hotbed_carve_take(&carve, scratch->memory_bytes);
    return carve.used;
}

/* Insert each key into its table's part of the hash; the entry becomes the key's first position. */
static __global__ void __launch_bounds__(BLOCK)
    insert_kernel(hotbed_step_view s, unique_scratch scratch) {
    uint32_t n = s.batch.table_starts[s.storage.num_tables];
    for (uint64_t i = hotbed_cuda_thread(); i < n; i += hotbed_cuda_threads()) {
        uint32_t t = hotbed_part_of(s.batch.table_starts, s.storage.num_tables, (uint32_t)i);
        uint32_t start = s.batch.table_starts[t],
                 capacity = 2 * (s.batch.table_starts[t + 1] - start);
        uint32_t *entries = scratch.entries + 2 * (uint64_t)start;
        uint64_t key = s.batch.keys[i];
        uint32_t at = hotbed_place_u32(key, capacity);
        for (;;) {
            uint32_t held = hotbed_load_relaxed_u32(&entries[at]);
            if (held == NO_ENTRY) {
                held = hotbed_cas_relaxed_u32(&entries[at], NO_ENTRY, (uint32_t)i);
                if (held == NO_ENTRY)
                    break;
            }
            if (s.batch.keys[held] == key) {
                if (held > i)
                    hotbed_min_relaxed_u32(&entries[at], (uint32_t)i);
                break;
            }
            at = at + 1 == capacity ? 0 : at + 1;
        }
        scratch.places[i] = 2 * start + at;
    }
}

/* Write a word of `firsts` and its count. A warp calls it together, with `first` of its 32 bits. */
static __device__ void mark_word(const unique_scratch &scratch, uint64_t word, bool first) {
    uint32_t bits = __ballot_sync(0xffffffffU, first);
    if (threadIdx.x % 32 == 0) {
        scratch.firsts[word] = bits;
        scratch.before[word] = hotbed_bits_set(bits);
    }
}

/* Mark and count first occurrences; a warp handles a word of 32 keys. */
static __global__ void __launch_bounds__(BLOCK)
    first_kernel(hotbed_step_view s, unique_scratch scratch) {
    uint32_t n = s.batch.table_starts[s.storage.num_tables];
    for (uint64_t word = hotbed_cuda_thread() / 32; word <= s.batch.bound / 32;
         word += hotbed_cuda_threads() / 32) {
        uint64_t i = word * 32 + threadIdx.x % 32;
        mark_word(scratch, word, i < n && scratch.entries[scratch.places[i]] == i);
    }
}

/* Number of first occurrences before key i. */
static __device__ uint32_t number_of(const unique_scratch &scratch, uint64_t i) {
    uint32_t below = (1U << (i % 32)) - 1U;
    return scratch.before[i / 32] + hotbed_bits_set(scratch.firsts[i / 32] & below);
}

/* Write the first unique key of table t, and add to its tally. */
static __device__ void put_offset(
    const hotbed_step_view &s, const unique_scratch &scratch, uint32_t t) {
    uint32_t start = s.batch.table_starts[t], before = number_of(scratch, start);
    s.unique.offsets[t] = before;
    if (t < s.storage.num_tables) {
        uint32_t next = s.batch.table_starts[t + 1];
        hotbed_tally *tally = &s.storage.tallies[t]; /* a meter may read it meanwhile */
        (void)hotbed_add_relaxed_u64(&tally->keys, next - start);
        (void)hotbed_add_relaxed_u64(&tally->uniques, number_of(scratch, next) - before);
    }
}

static __global__ void __launch_bounds__(BLOCK)
    number_kernel(hotbed_step_view s, unique_scratch scratch) {
    uint32_t n = s.batch.table_starts[s.storage.num_tables];
    for (uint64_t i = hotbed_cuda_thread(); i < s.batch.bound; i += hotbed_cuda_threads()) {
        if (s.unique.by_bag == 0)
            scratch.order[i] = (uint32_t)i;
        if (i >= n) {
            s.unique.inverse[i] = UINT32_MAX;
            continue;
        }
        uint32_t first = scratch.entries[scratch.places[i]];
        uint32_t unique = number_of(scratch, first);
        s.unique.inverse[i] = unique;
        if (first == i)
            s.unique.keys[unique] = s.batch.keys[i];
    }
    for (uint64_t t = hotbed_cuda_thread(); t <= s.storage.num_tables; t += hotbed_cuda_threads())
        put_offset(s, scratch, (uint32_t)t);
}

/* Find where each unique key's occurrences begin in the sorted order. */
static __global__ void __launch_bounds__(BLOCK)
    start_kernel(hotbed_step_view s, unique_scratch scratch) {
    uint32_t n = s.batch.table_starts[s.storage.num_tables];
    for (uint64_t j = hotbed_cuda_thread(); j < n; j += hotbed_cuda_threads()) {
        uint32_t unique = scratch.sorted[j];
        if (j == 0 || scratch.sorted[j - 1] != unique)
            s.unique.starts[unique] = (uint32_t)j;
    }
    if (hotbed_cuda_thread() == 0)
        s.unique.starts[s.unique.offsets[s.storage.num_tables]] = n;
}

static __global__ void __launch_bounds__(BLOCK) count_kernel(hotbed_step_view s) {
    uint32_t uniques = s.unique.offsets[s.storage.num_tables];
    for (uint64_t u = hotbed_cuda_thread(); u < uniques; u += hotbed_cuda_threads())
        s.unique.counts[u] = s.unique.starts[u + 1] - s.unique.starts[u];
}

/* Add batch.counts to unique.counts, which are 0. Occurrences of a unique key are adjacent in the
 * sorted order, so a warp sums its own and adds once. */
static __global__ void __launch_bounds__(BLOCK) sum_kernel(hotbed_step_view s) {
    uint32_t n = s.batch.table_starts[s.storage.num_tables], lane = threadIdx.x % 32;
    for (uint64_t j = hotbed_cuda_thread(); j - lane < n; j += hotbed_cuda_threads()) {
        uint32_t position = j < n ? s.unique.positions[j] : 0;
        uint32_t unique = j < n ? s.unique.inverse[position] : UINT32_MAX;
        uint64_t count = j < n ? s.batch.counts[position] : 0;
        for (uint32_t apart = 1; apart < 32; apart *= 2) {
            uint32_t other = __shfl_down_sync(0xffffffffU, unique, apart);
            uint64_t more = __shfl_down_sync(0xffffffffU, count, apart);
            if (lane + apart < 32 && other == unique)
                count += more;
        }
        uint32_t before = __shfl_up_sync(0xffffffffU, unique, 1);
        if (j < n && (lane == 0 || before != unique))
            hotbed_add_relaxed_u64(&s.unique.counts[unique], count);
    }
}

static size_t scratch_bytes_of(uint64_t bound, uint32_t num_tables) {
    unique_scratch scratch;
    (void)num_tables;
    return lay_out(bound, NULL, &scratch);
}

/* Count the occurrences of each unique key. */
static hotbed_status count(const hotbed_step_view *step, hotbed_stream *stream) {
    const uint64_t bound = step->batch.bound;
    if (step->batch.counts == NULL)
        return HOTBED_CUDA_LAUNCH(count_kernel, bound + 1, BLOCK, WAVES, stream, *step);
    const hotbed_cuda_native native(stream);
    HOTBED_TRY(hotbed_cuda_check(
        cudaMemsetAsync(step->unique.counts, 0, (size_t)bound * sizeof(uint64_t), native),
        "cudaMemsetAsync"));
    return HOTBED_CUDA_LAUNCH(sum_kernel, bound + 1, BLOCK, WAVES, stream, *step);
}

/* Group the occurrences by unique key. */
static hotbed_status group(
    const hotbed_step_view *step, const unique_scratch &scratch, hotbed_stream *stream) {
    uint64_t bound = step->batch.bound;
    uint32_t bits = 1;
    while (bits < 31 && (uint64_t)1 << bits <= bound)
        bits++;
    if (bound > 0)
        HOTBED_TRY(hotbed_sort_pairs(
            bound, step->unique.inverse,
            step->unique.by_bag != 0 ? step->batch.bags : scratch.order, scratch.sorted,
            step->unique.positions, bits, scratch.memory, scratch.memory_bytes, stream));
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(start_kernel, bound + 1, BLOCK, WAVES, stream, *step, scratch));
    return count(step, stream);
}

/* --- storages of static tables ---------------------------------------------------------------- */

static __global__ void __launch_bounds__(BLOCK)
    row_kernel(hotbed_step_view s, uint32_t *rows, uint32_t *order) {
    uint32_t n = s.batch.table_starts[s.storage.num_tables];
    for (uint64_t i = hotbed_cuda_thread(); i < s.batch.bound; i += hotbed_cuda_threads()) {
        uint32_t t =
            i < n ? hotbed_part_of(s.batch.table_starts, s.storage.num_tables, (uint32_t)i) : 0;
        rows[i] = i < n ? hotbed_row_number(&s, t, s.batch.keys[i]) : UINT32_MAX; /* sorted last */
        order[i] = (uint32_t)i;
    }
}

/* Mark and count the first occurrences in the sorted order; a warp handles a word of 32. */
static __global__ void __launch_bounds__(BLOCK)
    mark_kernel(hotbed_step_view s, unique_scratch scratch) {
    uint32_t n = s.batch.table_starts[s.storage.num_tables];
    for (uint64_t word = hotbed_cuda_thread() / 32; word <= s.batch.bound / 32;
         word += hotbed_cuda_threads() / 32) {
        uint64_t j = word * 32 + threadIdx.x % 32;
        mark_word(scratch, word, j < n && (j == 0 || scratch.sorted[j - 1] != scratch.sorted[j]));
    }
}

/* Number the unique keys; a table's occurrences are at its positions in the sorted order, too. */
static __global__ void __launch_bounds__(BLOCK)
    number_rows_kernel(hotbed_step_view s, unique_scratch scratch) {
    uint32_t n = s.batch.table_starts[s.storage.num_tables];
    for (uint64_t j = hotbed_cuda_thread(); j < s.batch.bound; j += hotbed_cuda_threads()) {
        if (j >= n) {
            s.unique.inverse[j] = UINT32_MAX;
            continue;
        }
        uint32_t position = s.unique.positions[j];
        bool first = (scratch.firsts[j / 32] >> (j % 32) & 1U) != 0;
        uint32_t unique = number_of(scratch, j) - (first ? 0 : 1);
        s.unique.inverse[position] = unique;
        if (s.unique.by_bag != 0)
            s.unique.positions[j] = s.batch.bags[position];
        if (first) {
            s.unique.starts[unique] = (uint32_t)j;
            s.unique.keys[unique] = s.batch.keys[position];
        }
    }
    for (uint64_t t = hotbed_cuda_thread(); t <= s.storage.num_tables; t += hotbed_cuda_threads())
        put_offset(s, scratch, (uint32_t)t);
    if (hotbed_cuda_thread() == 0)
        s.unique.starts[number_of(scratch, n)] = n;
}

static hotbed_status unique_rows(
    const hotbed_step_view *step, const unique_scratch &scratch, hotbed_stream *stream) {
    const uint64_t bound = step->batch.bound;
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(
        row_kernel, bound + 1, BLOCK, WAVES, stream, *step, scratch.entries, scratch.order));
    if (bound > 0)
        HOTBED_TRY(hotbed_sort_pairs(
            bound, scratch.entries, scratch.order, scratch.sorted, step->unique.positions,
            step->storage.row_bits, scratch.memory, scratch.memory_bytes, stream));
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(mark_kernel, bound + 1, BLOCK, WAVES, stream, *step, scratch));
    HOTBED_TRY(hotbed_scan(
        bound / 32 + 1, scratch.before, scratch.before, scratch.memory, scratch.memory_bytes,
        stream));
    HOTBED_TRY(
        HOTBED_CUDA_LAUNCH(number_rows_kernel, bound + 1, BLOCK, WAVES, stream, *step, scratch));
    return count(step, stream);
}

static hotbed_status unique(
    const hotbed_step_view *step, void *memory, hotbed_stream *stream, hotbed_stream *grouping) {
    unique_scratch scratch;
    uint64_t bound = step->batch.bound;
    (void)lay_out(bound, memory, &scratch);
    if (step->storage.row_bits != 0)
        return unique_rows(step, scratch, stream);
    const hotbed_cuda_native native(stream);
    HOTBED_TRY(hotbed_cuda_check(
        cudaMemsetAsync(scratch.entries, 0xff, 2 * (size_t)bound * sizeof(uint32_t), native),
        "cudaMemsetAsync"));
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(insert_kernel, bound + 1, BLOCK, WAVES, stream, *step, scratch));
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(first_kernel, bound + 1, BLOCK, WAVES, stream, *step, scratch));
    HOTBED_TRY(hotbed_scan(
        bound / 32 + 1, scratch.before, scratch.before, scratch.memory, scratch.memory_bytes,
        stream));
    HOTBED_TRY(HOTBED_CUDA_LAUNCH(number_kernel, bound + 1, BLOCK, WAVES, stream, *step, scratch));
    if (grouping == NULL)
        return HOTBED_OK;
    if (grouping != stream)
        HOTBED_TRY(hotbed_stream_branch(stream, &grouping));
    return group(step, scratch, grouping);
}

const hotbed_unique_kernels hotbed_unique_kernels_cuda = {scratch_bytes_of, unique};
