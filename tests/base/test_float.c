/* tests/base/test_float.c - conversions between f32 and f16, bf16 or fp8, against a model that computes in double.
 *
 * Covers every narrow value, every tie between neighbouring values with the floats beside it, random floats, and NaNs.
 */
#include "tests/base/cases.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>

enum { VALUES = 65536 };

typedef struct format {
    int exponent_bits, fraction_bits;
    case_kind widen, narrow, random;
} format;

static const format formats[] = {
    {5, 10, CASE_F16_TO_F32, CASE_F32_TO_F16, CASE_TO_F16_RANDOM},
    {8, 7, CASE_BF16_TO_F32, CASE_F32_TO_BF16, CASE_TO_BF16_RANDOM},
};

static int bias(const format *f) {
    return (1 << (f->exponent_bits - 1)) - 1;
}

static bool is_nan16(const format *f, uint16_t bits) {
    return (bits & 0x7fff) > ((1 << f->exponent_bits) - 1) << f->fraction_bits;
}

/* The value of `bits` in the format, or NaN. */
static double model_value(const format *f, uint16_t bits) {
    int exponent = (bits & 0x7fff) >> f->fraction_bits;
    int fraction = bits & ((1 << f->fraction_bits) - 1);
    double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == (1 << f->exponent_bits) - 1)
        return fraction == 0 ? sign * (double)INFINITY : (double)NAN;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias(f) - f->fraction_bits);
    return sign * ldexp(fraction + (1 << f->fraction_bits), exponent - bias(f) - f->fraction_bits);
}

/* Round to the nearest value of the format, ties to even: rint() in units of the last place. */
static double model_round(const format *f, double value) {
    if (isnan(value) || isinf(value) || value == 0)
        return value;
    int exponent = ilogb(value);
    if (exponent < 1 - bias(f))
        exponent = 1 - bias(f);
    double rounded =
        ldexp(rint(ldexp(value, f->fraction_bits - exponent)), exponent - f->fraction_bits);
    if (fabs(rounded) >= ldexp(1, bias(f) + 1))
        return copysign((double)INFINITY, value);
    return rounded;
}

static void check_value(const format *f, uint16_t bits, float got) {
    double want = model_value(f, bits);
    if (isnan(want)) {
        CHECK(isnan(got));
        CHECK_EQ(signbit(got) != 0, (bits & 0x8000) != 0);
        return;
    }
    CHECK(want == (double)got);
    CHECK_EQ(signbit(got) != 0, signbit(want) != 0);
}

static void every_value_widens_and_comes_back(hotbed_backend backend) {
    static uint16_t bits[VALUES], back[VALUES];
    static float values[VALUES];
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (uint32_t i = 0; i < VALUES; i++)
        bits[i] = (uint16_t)i;
    for (size_t k = 0; k < sizeof formats / sizeof formats[0]; k++) {
        const format *f = &formats[k];
        cases_run(stream, f->widen, VALUES, bits, sizeof bits, values, sizeof values);
        cases_run(stream, f->narrow, VALUES, values, sizeof values, back, sizeof back);
        uint16_t quiet = (uint16_t)(1 << (f->fraction_bits - 1));
        for (uint32_t i = 0; i < VALUES; i++) {
            check_value(f, bits[i], values[i]);
            uint32_t want = is_nan16(f, bits[i]) ? bits[i] | quiet : bits[i];
            CHECK_EQ(back[i], want);
        }
    }
    hotbed_stream_destroy(stream);
}

/* Narrow n values and compare each result with the model's. */
static void check_rounding(
    hotbed_stream *stream, const format *f, uint64_t n, const float *values, uint16_t *rounded) {
    cases_run(stream, f->narrow, n, values, n * sizeof *values, rounded, n * sizeof *rounded);
    for (uint64_t i = 0; i < n; i++) {
        double want = model_round(f, (double)values[i]);
        double got = model_value(f, rounded[i]);
        if (!(isnan(want) ? isnan(got) : want == got))
            hotbed_check_failed(
                __FILE__, __LINE__, "%a gives %a (0x%04x), not %a", (double)values[i], got,
                rounded[i], want);
        CHECK_EQ((rounded[i] & 0x8000) != 0, signbit(values[i]) != 0);
    }
}

static void ties_and_their_neighbours_round_to_even(hotbed_backend backend) {
    enum { EACH = 6 };
    static float values[VALUES / 2 * EACH];
    static uint16_t rounded[VALUES / 2 * EACH];
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (size_t k = 0; k < sizeof formats / sizeof formats[0]; k++) {
        const format *f = &formats[k];
        uint64_t n = 0;
        uint16_t infinity = (uint16_t)(((1 << f->exponent_bits) - 1) << f->fraction_bits);
        for (uint16_t bits = 0; bits < infinity; bits++) {
            double low = model_value(f, bits);
            double high =
                bits + 1 == infinity ? ldexp(1, bias(f) + 1) : model_value(f, (uint16_t)(bits + 1));
            /* exact, except the last of bf16: 2^128 - 2^119 */
            float tie = (float)((low + high) / 2);
            float sides[3] = {nextafterf(tie, 0), tie, nextafterf(tie, INFINITY)};
            for (int side = 0; side < 3; side++) {
                values[n++] = sides[side];
                values[n++] = -sides[side];
            }
        }
        check_rounding(stream, f, n, values, rounded);
    }
    hotbed_stream_destroy(stream);
}

static void random_bits_round_as_the_model(hotbed_backend backend) {
    enum { N = 100000 };
    static float values[N];
    static uint16_t rounded[N];
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (size_t k = 0; k < sizeof formats / sizeof formats[0]; k++) {
        for (int i = 0; i < N; i++)
            values[i] = hotbed_bits_float((uint32_t)hotbed_test_random());
        check_rounding(stream, &formats[k], N, values, rounded);
    }
    hotbed_stream_destroy(stream);
}

/* The neighbour of a finite value that is nearer to zero, and its distance from it in units of their distance. */
static double model_floor(const format *f, double value, double *part, double *unit) {
    int exponent = value == 0 ? 1 - bias(f) : ilogb(value);
    if (exponent < 1 - bias(f))
        exponent = 1 - bias(f);
    *unit = ldexp(1, exponent - f->fraction_bits);
    const double units = fabs(value) / *unit, low = floor(units);
    *part = units - low;
    return low * *unit;
}

static void a_random_word_chooses_the_neighbour(hotbed_backend backend) {
    enum { N = 100000 };
    static random_case in[N];
    static uint16_t out[N];
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (size_t k = 0; k < sizeof formats / sizeof formats[0]; k++) {
        const format *f = &formats[k];
        for (int i = 0; i < N; i++) {
            const uint32_t bits = (uint32_t)hotbed_test_random();
            in[i].random = (uint32_t)hotbed_test_random();
            in[i].value = hotbed_bits_float(bits);
            if (i % 2 == 0) /* in the range of f16, subnormals too */
                in[i].value = hotbed_bits_float((bits & 0x8fffffffU) + (96U << 23));
            if (i % 4 == 1) /* a word next to the limit */
                in[i].random = (bits << (i % 8 == 1 ? 16 : 19)) - (uint32_t)i % 3;
        }
        cases_run(stream, f->random, N, in, sizeof in, out, sizeof out);
        for (int i = 0; i < N; i++) {
            const double value = (double)in[i].value, got = model_value(f, out[i]);
            double part = 0, unit = 0, want = value;
            if (isnan(value)) {
                CHECK(isnan(got));
                continue;
            }
            if (isfinite(value)) {
                want = model_floor(f, value, &part, &unit);
                want += (double)in[i].random < floor(part * 0x1p32) ? unit : 0;
                want = copysign(want >= ldexp(1, bias(f) + 1) ? (double)INFINITY : want, value);
            }
            if (want != got)
                hotbed_check_failed(
                    __FILE__, __LINE__, "%a with word %u gives %a, not %a", value, in[i].random,
                    got, want);
            CHECK_EQ((out[i] & 0x8000) != 0, signbit(in[i].value) != 0);
        }
    }
    hotbed_stream_destroy(stream);
}

static void special_values_keep_sign_and_payload(hotbed_backend backend) {
    static const uint32_t in[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001, 0x7fffffff,
                                  0x7f800000, 0xff800000, 0x80000000, 0x00000001, 0x80000001};
    static const uint16_t f16[] = {0x7e00, 0xfe00, 0x7e00, 0xfe00, 0x7fff,
                                   0x7c00, 0xfc00, 0x8000, 0x0000, 0x8000};
    static const uint16_t bf16[] = {0x7fc0, 0xffc0, 0x7fc0, 0xffc0, 0x7fff,
                                    0x7f80, 0xff80, 0x8000, 0x0000, 0x8000};
    enum { N = sizeof in / sizeof in[0] };
    uint16_t out[N];
    hotbed_stream *stream = hotbed_test_stream(backend);
    cases_run(stream, CASE_F32_TO_F16, N, in, sizeof in, out, sizeof out);
    CHECK_BYTES(out, f16, sizeof out);
    cases_run(stream, CASE_F32_TO_BF16, N, in, sizeof in, out, sizeof out);
    CHECK_BYTES(out, bf16, sizeof out);
    hotbed_stream_destroy(stream);
}

/* The value of an fp8 byte, or NaN. */
static double model_fp8(uint8_t byte) {
    const int exponent = byte >> 3 & 15, fraction = byte & 7;
    const double sign = (byte & 0x80) != 0 ? -1.0 : 1.0;
    if ((byte & 0x7f) == 0x7f)
        return (double)NAN;
    return sign * (exponent == 0 ? ldexp(fraction, -9) : ldexp(fraction + 8, exponent - 10));
}

static void every_fp8_widens_and_neighbours_round_to_even(hotbed_backend backend) {
    enum { BYTES = 256, EACH = 4 };
    static uint8_t bytes[BYTES], rounded[EACH * BYTES];
    static float values[BYTES], in[EACH * BYTES];
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)i;
    cases_run(stream, CASE_FP8_TO_F32, BYTES, bytes, sizeof bytes, values, sizeof values);
    for (int i = 0; i < BYTES; i++) {
        const double value = model_fp8(bytes[i]), next = model_fp8((uint8_t)(i + 1));
        CHECK(isnan(value) ? isnan(values[i]) : (double)values[i] == value);
        CHECK_EQ(signbit(values[i]) != 0, i >= 128);
        const bool last = (i & 0x7f) >= 0x7e; /* 448: larger values become 448, too */
        const float middle = last ? values[i] * 8.0F : (float)((value + next) / 2.0);
        in[EACH * i] = values[i];
        in[EACH * i + 1] = middle;
        in[EACH * i + 2] = last ? middle : nextafterf(middle, 0.0F);
        in[EACH * i + 3] = last ? middle : nextafterf(middle, middle * 2.0F);
    }
    cases_run(stream, CASE_F32_TO_FP8, EACH * BYTES, in, sizeof in, rounded, sizeof rounded);
    for (int i = 0; i < BYTES; i++) {
        const bool nan = (i & 0x7f) == 0x7f, last = (i & 0x7f) == 0x7e;
        const int up = nan || last ? 0 : 1, stored = nan ? 0x7f : i;
        CHECK_EQ(rounded[EACH * i], stored);
        CHECK_EQ(rounded[EACH * i + 1], stored + (i % 2 == 0 ? 0 : up));
        CHECK_EQ(rounded[EACH * i + 2], stored);
        CHECK_EQ(rounded[EACH * i + 3], stored + up);
    }
    hotbed_stream_destroy(stream);
}

/* Divisors are positive f16, normal and subnormal. */
static void a_quotient_by_the_inverse_is_exact(hotbed_backend backend) {
    enum { N = 200000 };
    static quotient_case in[N];
    static float out[N];
    hotbed_stream *stream = hotbed_test_stream(backend);
    for (int i = 0; i < N; i++) {
        const uint32_t bits = (uint32_t)hotbed_test_random();
        in[i].b = (float)model_value(&formats[0], (uint16_t)(1 + bits % 0x7bff));
        const float part = (float)(hotbed_test_random() >> 40) * 0x1p-24F; /* in [0, 1) */
        in[i].a = part * 255.0F * in[i].b; /* as elements of an int8 row are */
        if (i % 4 == 1)
            in[i].a = hotbed_bits_float((uint32_t)hotbed_test_random());
        if (i % 4 == 2) /* next to the middle of two bytes */
            in[i].a = nextafterf(((float)(bits % 255U) + 0.5F) * in[i].b, (float)(i % 8) * 1e30F);
    }
    cases_run(stream, CASE_QUOTIENT, N, in, sizeof in, out, sizeof out);
    for (int i = 0; i < N; i++) {
        const float want = in[i].a / in[i].b;
        if (want >= 0x1p-36F && want <= 256.0F)
            CHECK(out[i] == want);
        else if (want > 256.0F)
            CHECK(out[i] >= 256.0F);
        else
            CHECK(!(out[i] >= 0x1p-35F)); /* as 0 and NaN become the byte 0 */
    }
    hotbed_stream_destroy(stream);
}

const hotbed_test hotbed_tests[] = {
    {TEST(every_value_widens_and_comes_back)},
    {TEST(ties_and_their_neighbours_round_to_even)},
    {TEST(random_bits_round_as_the_model)},
    {TEST(a_random_word_chooses_the_neighbour)},
    {TEST(special_values_keep_sign_and_payload)},
    {TEST(every_fp8_widens_and_neighbours_round_to_even)},
    {TEST(a_quotient_by_the_inverse_is_exact)},
    {NULL, NULL},
};
