/* checkpoint/format/bucket_core.h - the logical bucket of a key, which determines the order of rows on
 * disk.
 *
 * The function is part of the file format and never changes. It treats keys as unsigned. The hash
 * is a bijection, so the 2^bits buckets partition the keys evenly. */
#pragma once

#include "base/hash_core.h"

enum {
    HOTBED_BUCKET_BITS = 16,    /* for a table that is saved for the first time: 65536 buckets */
    HOTBED_BUCKET_BITS_MAX = 24 /* the largest value in a checkpoint */
};

/* Return the bucket of `key` among 2^bits buckets, bits in [0, 24]. */
HOTBED_HD uint64_t hotbed_logical_bucket(uint64_t key, uint32_t bits) {
    return bits == 0 ? 0 : hotbed_hash_u64(key) >> (64 - bits);
}

/* Whether a key precedes another one in canonical order. Row numbers are keys with 0 bits. */
HOTBED_HD bool hotbed_canonical_before(uint64_t key, uint64_t other, uint32_t bits) {
    const uint64_t bucket = hotbed_logical_bucket(key, bits);
    const uint64_t others = hotbed_logical_bucket(other, bits);
    return bucket < others || (bucket == others && key < other);
}
