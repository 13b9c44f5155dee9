/* checkpoint/bucket_core.h - the logical bucket of a key: the order of rows on disk.
 *
 * The function is part of the file format and does not change; keys are unsigned in it.  The hash is a
 * bijection, so the 2^bits buckets partition the keys evenly.
 */
#ifndef HOTBED_CHECKPOINT_BUCKET_CORE_H
#define HOTBED_CHECKPOINT_BUCKET_CORE_H

#include "storage/hash_core.h"

enum {
    HOTBED_BUCKET_BITS = 16,    /* of a table that is saved for the first time: 65536 buckets */
    HOTBED_BUCKET_BITS_MAX = 24 /* most that a checkpoint may have */
};

/* Bucket of `key` among 2^bits, bits in [0, 24]. */
HOTBED_HD uint64_t hotbed_logical_bucket(uint64_t key, uint32_t bits) {
    return bits == 0 ? 0 : hotbed_hash_u64(key) >> (64 - bits);
}

#endif
