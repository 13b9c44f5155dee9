/* tests/base/test_sort.c - hotbed_sort_pairs() and hotbed_scan() against qsort() and a loop.
 *
 * The CUDA entry also compares both backends byte by byte.
 */
#include "base/sort.h"
#include "tests/base/cases.h"
#include "tests/support/harness.h"

#include <stdlib.h>

typedef struct pair {
    uint32_t key, value, masked, place;
} pair;

static int by_masked_then_place(const void *a, const void *b) {
    const pair *x = a, *y = b;
    if (x->masked != y->masked)
        return x->masked < y->masked ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static void *new_bytes(size_t bytes) {
    void *data = calloc(1, bytes == 0 ? 1 : bytes);
    CHECK(data != NULL);
    return data;
}

/* n pairs with random keys below `bound` (0: any 32-bit key) and random values. */
static pair *new_pairs(uint64_t n, uint64_t bound) {
    pair *pairs = new_bytes(n * sizeof *pairs);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t random = hotbed_test_random();
        pairs[i].key = (uint32_t)(bound == 0 ? random : random % bound);
        pairs[i].value = (uint32_t)(random >> 32);
        pairs[i].place = (uint32_t)i;
    }
    return pairs;
}

/* [2][n]: keys, then values. */
static uint32_t *split(uint64_t n, const pair *pairs) {
    uint32_t *words = new_bytes(2 * n * sizeof *words);
    for (uint64_t i = 0; i < n; i++) {
        words[i] = pairs[i].key;
        words[n + i] = pairs[i].value;
    }
    return words;
}

/* Sort `words` into `sorted`, host arrays [2][n]. Checks that the sort leaves its input unchanged. */
static void sort_words(
    hotbed_stream *stream, uint64_t n, uint32_t bits, const uint32_t *words, uint32_t *sorted) {
    size_t bytes = n * sizeof *words;
    size_t scratch_bytes = hotbed_sort_pairs_scratch(hotbed_stream_backend(stream), n);
    hotbed_memory in = cases_device(stream, 2 * bytes, n == 0 ? NULL : words);
    hotbed_memory out = cases_device(stream, 2 * bytes, NULL);
    hotbed_memory scratch = cases_device(stream, scratch_bytes, NULL);
    uint32_t *in_words = in.data, *out_words = out.data;
    CHECK_OK(hotbed_sort_pairs(
        n, in_words, n == 0 ? NULL : in_words + n, out_words, n == 0 ? NULL : out_words + n, bits,
        scratch.data, scratch_bytes, stream));
    uint32_t *kept = new_bytes(2 * bytes);
    cases_download(stream, kept, in.data, 2 * bytes);
    CHECK_BYTES(kept, words, 2 * bytes);
    cases_download(stream, sorted, out.data, 2 * bytes);
    free(kept);
    hotbed_memory_free(&scratch);
    hotbed_memory_free(&out);
    hotbed_memory_free(&in);
}

static void check_sort(hotbed_stream *stream, uint64_t n, uint32_t bits, uint64_t bound) {
    pair *pairs = new_pairs(n, bound);
    uint32_t *words = split(n, pairs);
    for (uint64_t i = 0; i < n; i++)
        pairs[i].masked = bits == 32 ? pairs[i].key : pairs[i].key & ((1U << bits) - 1U);
    qsort(pairs, n, sizeof *pairs, by_masked_then_place);
    uint32_t *want = split(n, pairs);
    uint32_t *got = new_bytes(2 * n * sizeof *got);
    sort_words(stream, n, bits, words, got);
    CHECK_BYTES(got, want, 2 * n * sizeof *got);
    free(got);
    free(want);
    free(words);
    free(pairs);
}

static void sorts_every_number_of_bits(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (uint32_t bits = 0; bits <= 32; bits++)
        check_sort(stream, 1000, bits, 0);
    hotbed_stream_destroy(stream);
}

static void sorts_sizes_around_a_block(hotbed_backend backend) {
    static const uint64_t sizes[] = {0, 1, 2, 255, 256, 257, 32767, 32768, 32769, 100003};
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_sort(stream, sizes[i], 20, 0);
    hotbed_stream_destroy(stream);
}

static void equal_keys_keep_their_order(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    check_sort(stream, 70001, 32, 1);
    check_sort(stream, 70001, 32, 3);
    check_sort(stream, 70001, 8, 300);
    hotbed_stream_destroy(stream);
}

static void check_scan(hotbed_stream *stream, uint64_t n, bool in_place) {
    size_t bytes = n * sizeof(uint32_t);
    size_t scratch_bytes = hotbed_scan_scratch(hotbed_stream_backend(stream), n);
    uint32_t *in = new_bytes(bytes), *want = new_bytes(bytes), *got = new_bytes(bytes);
    uint32_t sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        in[i] = (uint32_t)hotbed_test_random(); /* the sum wraps around */
        want[i] = sum;
        sum += in[i];
    }
    hotbed_memory from = cases_device(stream, bytes, n == 0 ? NULL : in);
    hotbed_memory to = cases_device(stream, bytes, NULL);
    hotbed_memory scratch = cases_device(stream, scratch_bytes, NULL);
    void *out = in_place ? from.data : to.data;
    CHECK_OK(hotbed_scan(n, from.data, out, scratch.data, scratch_bytes, stream));
    cases_download(stream, got, out, bytes);
    CHECK_BYTES(got, want, bytes);
    hotbed_memory_free(&scratch);
    hotbed_memory_free(&to);
    hotbed_memory_free(&from);
    free(got);
    free(want);
    free(in);
}

static void scans_modulo_two_to_the_32(hotbed_backend backend) {
    static const uint64_t sizes[] = {0, 1, 2, 1000, 32767, 32768, 32769, 200001};
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_scan(stream, sizes[i], false);
        check_scan(stream, sizes[i], true);
    }
    hotbed_stream_destroy(stream);
}

static void backends_give_the_same_bytes(hotbed_backend backend) {
    if (backend == HOTBED_BACKEND_HOST)
        SKIP("the cuda entry compares both");
    enum { N = 50021, BITS = 17 };
    size_t bytes = 2 * sizeof(uint32_t) * N;
    pair *pairs = new_pairs(N, 1 << 19);
    uint32_t *words = split(N, pairs);
    uint32_t *on_host = new_bytes(bytes);
    uint32_t *on_cuda = new_bytes(bytes);
    hotbed_stream *host = hotbed_test_stream(HOTBED_BACKEND_HOST);
    hotbed_stream *cuda = hotbed_test_stream(backend);
    sort_words(host, N, BITS, words, on_host);
    sort_words(cuda, N, BITS, words, on_cuda);
    CHECK_BYTES(on_host, on_cuda, bytes);
    hotbed_stream_destroy(cuda);
    hotbed_stream_destroy(host);
    free(on_cuda);
    free(on_host);
    free(words);
    free(pairs);
}

static void a_recorded_sort_runs_again_on_new_data(hotbed_backend backend) {
    enum { N = 5000, BITS = 16 };
    hotbed_stream *stream = hotbed_test_stream(backend);
    size_t bytes = N * sizeof(uint32_t);
    size_t scratch_bytes = hotbed_sort_pairs_scratch(backend, N);
    hotbed_memory in = cases_device(stream, 2 * bytes, NULL);
    hotbed_memory out = cases_device(stream, 2 * bytes, NULL);
    hotbed_memory scratch = cases_device(stream, scratch_bytes, NULL);
    uint32_t *from = in.data, *to = out.data;
    hotbed_graph *graph;
    CHECK_OK(hotbed_graph_begin(stream));
    CHECK_OK(hotbed_sort_pairs(
        N, from, from + N, to, to + N, BITS, scratch.data, scratch_bytes, stream));
    CHECK_OK(hotbed_graph_end(stream, &graph));
    for (int round = 0; round < 3; round++) {
        pair *pairs = new_pairs(N, 0);
        uint32_t *words = split(N, pairs);
        for (uint64_t i = 0; i < N; i++)
            pairs[i].masked = pairs[i].key & 0xffffU;
        qsort(pairs, N, sizeof *pairs, by_masked_then_place);
        uint32_t *want = split(N, pairs);
        uint32_t *got = new_bytes(2 * bytes);
        CHECK_OK(hotbed_copy(in.data, words, 2 * bytes, stream));
        CHECK_OK(hotbed_graph_launch(graph, stream));
        cases_download(stream, got, out.data, 2 * bytes);
        CHECK_BYTES(got, want, 2 * bytes);
        free(got);
        free(want);
        free(words);
        free(pairs);
    }
    hotbed_graph_destroy(graph);
    hotbed_memory_free(&scratch);
    hotbed_memory_free(&out);
    hotbed_memory_free(&in);
    hotbed_stream_destroy(stream);
}

static void bad_arguments_are_refused(hotbed_backend backend) {
    hotbed_stream *stream = hotbed_test_stream(backend);
    size_t bytes = hotbed_sort_pairs_scratch(backend, 100) + hotbed_scan_scratch(backend, 100);
    hotbed_memory memory = cases_device(stream, bytes + 1600, NULL);
    uint32_t *words = (void *)((unsigned char *)memory.data + bytes);
    uint32_t *a = words, *b = words + 100, *c = words + 200, *d = words + 300;
    CHECK_STATUS(
        hotbed_sort_pairs(100, a, b, c, d, 33, memory.data, bytes, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_sort_pairs((uint64_t)1 << 31, a, b, c, d, 32, memory.data, bytes, stream),
        HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_sort_pairs(100, a, b, c, d, 32, NULL, 0, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(
        hotbed_scan((uint64_t)1 << 31, a, b, memory.data, bytes, stream), HOTBED_ERR_ARGUMENT);
    CHECK_STATUS(hotbed_scan(100, a, b, NULL, 0, stream), HOTBED_ERR_ARGUMENT);
    CHECK_OK(hotbed_stream_sync(stream));
    hotbed_memory_free(&memory);
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(sorts_every_number_of_bits)},   {TEST(sorts_sizes_around_a_block)},
    {TEST(equal_keys_keep_their_order)},  {TEST(scans_modulo_two_to_the_32)},
    {TEST(backends_give_the_same_bytes)}, {TEST(a_recorded_sort_runs_again_on_new_data)},
    {TEST(bad_arguments_are_refused)},    {NULL, NULL},
};
