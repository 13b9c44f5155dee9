/* base/sort_host.c - radix sort and scan on the host's threads. CUDA counterpart: sort.cu.
 *
 * The input is cut into blocks of BLOCK items. Each pass of a sort handles one digit of the key: it
 * counts the digits of each block, turns the counts into positions (by digit, then by block), and
 * moves the items of each block to their positions in order. So the sort is stable, and the result
 * does not depend on the number of threads. */
#include "base/error.h"
#include "base/host_launch.h"
#include "base/sort_backend.h"

#include <string.h>

enum { BLOCK = 1 << 15, DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS };

static uint64_t num_blocks(uint64_t n) {
    return (n + BLOCK - 1) / BLOCK;
}

static hotbed_status check_scratch(uint64_t n, size_t bytes, size_t needed) {
    if (bytes < needed)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, NULL, bytes, needed,
            "%zu bytes of scratch, %zu are needed for n = %llu", bytes, needed,
            (unsigned long long)n);
    return HOTBED_OK;
}

static size_t aligned(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

/* --- sort ----------------------------------------------------------------------------------- */

typedef struct pass_args {
    uint64_t n;
    const uint32_t *keys, *values;
    uint32_t *out_keys, *out_values;
    uint32_t *places; /* [num_blocks(n)][DIGITS] counts, then positions */
    uint32_t shift;
    uint32_t mask;
} pass_args;

/* begin and end count items; the ranges of a launch are whole blocks. */
static void count_body(const void *args, uint64_t begin, uint64_t end) {
    const pass_args *a = args;
    uint32_t *counts = a->places + begin / BLOCK * DIGITS;
    memset(counts, 0, DIGITS * sizeof *counts);
    for (uint64_t i = begin; i < end; i++)
        counts[(a->keys[i] >> a->shift) & a->mask]++;
}

static void place_body(const void *args, uint64_t begin, uint64_t end) {
    const pass_args *a = args;
    uint64_t blocks = num_blocks(end);
    uint32_t place = 0;
    for (uint32_t digit = 0; digit < DIGITS; digit++) {
        for (uint64_t block = 0; block < blocks; block++) {
            uint32_t *at = &a->places[block * DIGITS + digit];
            uint32_t count = *at;
            *at = place;
            place += count;
        }
    }
}

static void move_body(const void *args, uint64_t begin, uint64_t end) {
    const pass_args *a = args;
    uint32_t *places = a->places + begin / BLOCK * DIGITS;
    for (uint64_t i = begin; i < end; i++) {
        uint32_t place = places[(a->keys[i] >> a->shift) & a->mask]++;
        a->out_keys[place] = a->keys[i];
        a->out_values[place] = a->values[i];
    }
}

static size_t pairs_scratch(uint64_t n) {
    return 2 * aligned(n * sizeof(uint32_t)) + aligned(num_blocks(n) * DIGITS * sizeof(uint32_t));
}

static hotbed_status pairs(
    uint64_t n, const uint32_t *keys, const uint32_t *values, uint32_t *sorted_keys,
    uint32_t *sorted_values, uint32_t bits, void *scratch, size_t scratch_bytes,
    hotbed_stream *stream) {
    HOTBED_TRY(check_scratch(n, scratch_bytes, pairs_scratch(n)));
    unsigned char *bytes = scratch;
    uint32_t *other_keys = scratch;
    uint32_t *other_values = (void *)(bytes + aligned(n * sizeof(uint32_t)));
    pass_args args = {
        .n = n,
        .keys = keys,
        .values = values,
        .places = (void *)(bytes + 2 * aligned(n * sizeof(uint32_t))),
    };
    uint32_t passes = (bits + DIGIT_BITS - 1) / DIGIT_BITS;
    for (uint32_t pass = 0; pass < passes; pass++) {
        bool last_of_pair = (passes - pass) % 2 != 0; /* so the last pass writes the output */
        args.out_keys = last_of_pair ? sorted_keys : other_keys;
        args.out_values = last_of_pair ? sorted_values : other_values;
        args.shift = pass * DIGIT_BITS;
        uint32_t left = bits - args.shift;
        args.mask = (1U << (left < DIGIT_BITS ? left : DIGIT_BITS)) - 1U;
        HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, n, BLOCK, count_body, &args));
        HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, n, 0, place_body, &args));
        HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, n, BLOCK, move_body, &args));
        args.keys = args.out_keys;
        args.values = args.out_values;
    }
    return HOTBED_OK;
}

/* --- scan ----------------------------------------------------------------------------------- */

typedef struct scan_args {
    const uint32_t *in;
    uint32_t *out;
    uint32_t *starts; /* [num_blocks(n)] sums, then first values */
} scan_args;

static void sum_body(const void *args, uint64_t begin, uint64_t end) {
    const scan_args *a = args;
    uint32_t sum = 0;
    for (uint64_t i = begin; i < end; i++)
        sum += a->in[i];
    a->starts[begin / BLOCK] = sum;
}

static void start_body(const void *args, uint64_t begin, uint64_t end) {
    const scan_args *a = args;
    uint32_t sum = 0;
    for (uint64_t block = begin; block < end; block++) {
        uint32_t of_block = a->starts[block];
        a->starts[block] = sum;
        sum += of_block;
    }
}

static void scan_body(const void *args, uint64_t begin, uint64_t end) {
    const scan_args *a = args;
    uint32_t sum = a->starts[begin / BLOCK];
    for (uint64_t i = begin; i < end; i++) {
        uint32_t value = a->in[i]; /* read first: in and out may be the same */
        a->out[i] = sum;
        sum += value;
    }
}

static size_t scan_scratch(uint64_t n) {
    return aligned(num_blocks(n) * sizeof(uint32_t));
}

static hotbed_status scan(
    uint64_t n, const uint32_t *in, uint32_t *out, void *scratch, size_t scratch_bytes,
    hotbed_stream *stream) {
    HOTBED_TRY(check_scratch(n, scratch_bytes, scan_scratch(n)));
    scan_args args = {.in = in, .out = out, .starts = scratch};
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, n, BLOCK, sum_body, &args));
    HOTBED_TRY(HOTBED_HOST_LAUNCH(stream, num_blocks(n), 0, start_body, &args));
    return HOTBED_HOST_LAUNCH(stream, n, BLOCK, scan_body, &args);
}

const hotbed_sort_ops hotbed_sort_host = {
    .pairs_scratch = pairs_scratch,
    .pairs = pairs,
    .scan_scratch = scan_scratch,
    .scan = scan,
};
