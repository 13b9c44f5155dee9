/* tests/base/test_philox.c - Philox4x32-7 against the known answers that its authors publish.
 *
 * Each backend runs hotbed_philox() through tests/base/cases.h.
 */
#include "tests/base/cases.h"
#include "tests/support/harness.h"

static void known_answers(hotbed_backend backend) {
    static const philox_case in[] = {
        {{0, 0, 0, 0}, 0, 0},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0},
    };
    static const hotbed_u32x4 want[] = {
        {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48},
        {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662},
        {0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a},
    };
    enum { N = sizeof in / sizeof in[0] };
    hotbed_u32x4 out[N];
    hotbed_stream *stream = hotbed_test_stream(backend);
    cases_run(stream, CASE_PHILOX, N, in, sizeof in, out, sizeof out);
    CHECK_BYTES(out, want, sizeof out);
    hotbed_stream_destroy(stream);
}

/* Counts bit by bit, because clang 14 miscompiles a sum of four popcounts that is compared with a range. */
static int differing_bits(const void *a, const void *b, size_t bytes) {
    const unsigned char *left = a, *right = b;
    int count = 0;
    for (size_t i = 0; i < bytes; i++) {
        for (unsigned differ = left[i] ^ right[i]; differ != 0; differ &= differ - 1)
            count++;
    }
    return count;
}

/* Flip each of the 192 input bits of a random input.  The output must also equal a direct call of hotbed_philox(). */
static void each_bit_of_the_input_changes_about_half_of_the_output(hotbed_backend backend) {
    enum { BITS = 192, N = BITS + 1 };
    philox_case in[N];
    hotbed_u32x4 out[N];
    uint32_t words[6];
    for (int w = 0; w < 6; w++)
        words[w] = (uint32_t)hotbed_test_random();
    for (int i = 0; i < N; i++) {
        uint32_t flipped[6];
        memcpy(flipped, words, sizeof words);
        if (i < BITS)
            flipped[i / 32] ^= 1U << (i % 32);
        in[i] =
            (philox_case){{flipped[0], flipped[1], flipped[2], flipped[3]}, flipped[4], flipped[5]};
    }
    hotbed_stream *stream = hotbed_test_stream(backend);
    cases_run(stream, CASE_PHILOX, N, in, sizeof in, out, sizeof out);
    for (int i = 0; i < N; i++) {
        hotbed_u32x4 own = hotbed_philox(in[i].counter, in[i].key0, in[i].key1);
        CHECK_BYTES(&out[i], &own, sizeof own);
        int changed = differing_bits(&out[i], &out[BITS], sizeof own);
        if (i < BITS) /* expected 64 of 128, standard deviation 5.7 */
            CHECK(changed > 34 && changed < 94);
    }
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(known_answers)},
    {TEST(each_bit_of_the_input_changes_about_half_of_the_output)},
    {NULL, NULL},
};
