/* base/hash_core.h - the hash of a key, used by the index, routes and checkpoints. */
#pragma once

#include "base/port.h"

/* A bijection on 64-bit words in which every output bit depends on every input bit: the finalizer
 * of MurmurHash3 (Appleby, public domain). Frozen: checkpoint files and the routing of keys depend
 * on it. */
HOTBED_HD uint64_t hotbed_hash_u64(uint64_t key) {
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdU;
    key ^= key >> 33;
    key *= 0xc4ceb9fe1a85ec53U;
    key ^= key >> 33;
    return key;
}

/* FNV-1a (Fowler, Noll and Vo) of bytes, going on from the hash of the bytes before, at first
 * HOTBED_FNV_FIRST. */
#define HOTBED_FNV_FIRST UINT64_C(0xcbf29ce484222325)
static inline uint64_t hotbed_fnv(uint64_t hash, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const uint8_t *)data)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* The key with that hash. */
HOTBED_HD uint64_t hotbed_unhash_u64(uint64_t hash) {
    hash ^= hash >> 33;
    hash *= 0x9cb4b2f8129337dbU;
    hash ^= hash >> 33;
    hash *= 0x4f74430c22a54005U;
    hash ^= hash >> 33;
    return hash;
}

/* Scale `word` from [0, 2^32) to [0, n). */
HOTBED_HD uint32_t hotbed_scale_u32(uint32_t word, uint32_t n) {
    return (uint32_t)(((uint64_t)word * n) >> 32);
}

/* The place of a key in a hash table of `n` places for the keys of one call. Not by the hash of the key
 * itself: checkpoints and published files have keys in its order, and the keys of a call would have
 * neighbouring places. */
HOTBED_HD uint32_t hotbed_place_u32(uint64_t key, uint32_t n) {
    return hotbed_scale_u32((uint32_t)(hotbed_hash_u64(key ^ 0x9e3779b97f4a7c15U) >> 32), n);
}
