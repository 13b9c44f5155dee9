/* checkpoint/format/bucket.h - the canonical order of keys: logical bucket, then key, both unsigned. */
#pragma once

#include "checkpoint/format/bucket_core.h"
#include "hotbed/status.h"
#include "hotbed/types.h"

/* Sort n distinct keys into canonical order.
 *
 *   keys    in   [n]
 *   type    in   of the keys, for the error text
 *   sorted  out  [n], must not overlap keys
 *   counts  out  [2^bits] number of keys in each bucket
 *
 * Errors: MEMORY, STATE (a key occurs twice). */
hotbed_status hotbed_bucket_sort(
    uint64_t n, const uint64_t *keys, hotbed_key_type type, uint32_t bits, uint64_t *sorted,
    uint64_t *counts);

/* Sort keys that have a number each. `pairs` is [2 * n]: the keys in canonical order, then their
 * numbers. */
hotbed_status hotbed_bucket_sort_pairs(
    uint64_t n, const uint64_t *keys, hotbed_key_type type, const uint64_t *numbers, uint32_t bits,
    uint64_t *pairs);
