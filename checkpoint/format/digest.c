/* checkpoint/format/digest.c - XXH3-128; the only file that includes xxhash.h. */
#include "checkpoint/format/digest.h"

#include "base/stream.h"

#include <inttypes.h>
#include <stdio.h>

/* Compiled into this file: no library is needed at run time, and the compiler can inline it. */
#define XXH_INLINE_ALL
#include <xxhash.h>

hotbed_digest hotbed_digest_of(const void *data, size_t bytes) {
    static const char nothing[1] = {0};
    XXH128_hash_t hash = XXH3_128bits(bytes == 0 ? nothing : data, bytes);
    return (hotbed_digest){.low = hash.low64, .high = hash.high64};
}

/* xxHash requires a state that is aligned to 64 bytes. */
struct hotbed_digest_pieces {
    unsigned char memory[sizeof(XXH3_state_t) + 64];
};

static XXH3_state_t *state_of(hotbed_digest_pieces *p) {
    return (XXH3_state_t *)(((uintptr_t)p->memory + 63) / 64 * 64);
}

hotbed_digest_pieces *hotbed_digest_pieces_create(void) {
    hotbed_digest_pieces *p = hotbed_new(sizeof *p);
    if (p != NULL)
        XXH3_128bits_reset(state_of(p));
    return p;
}

void hotbed_digest_pieces_destroy(hotbed_digest_pieces *p) {
    hotbed_delete(p);
}

void hotbed_digest_pieces_add(hotbed_digest_pieces *p, const void *data, size_t bytes) {
    XXH3_128bits_update(state_of(p), data, bytes);
}

hotbed_digest hotbed_digest_pieces_end(hotbed_digest_pieces *p) {
    XXH128_hash_t hash = XXH3_128bits_digest(state_of(p));
    XXH3_128bits_reset(state_of(p));
    return (hotbed_digest){.low = hash.low64, .high = hash.high64};
}

hotbed_digest hotbed_digest_root(const void *data, size_t bytes, size_t block_bytes) {
    hotbed_digest blocks[256];
    size_t held = 0;
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    for (size_t at = 0; at < bytes; at += block_bytes) {
        size_t n = bytes - at < block_bytes ? bytes - at : block_bytes;
        blocks[held++] = hotbed_digest_of((const char *)data + at, n);
        if (held == sizeof blocks / sizeof *blocks) {
            XXH3_128bits_update(&state, blocks, sizeof blocks);
            held = 0;
        }
    }
    XXH3_128bits_update(&state, blocks, held * sizeof *blocks);
    XXH128_hash_t hash = XXH3_128bits_digest(&state);
    return (hotbed_digest){.low = hash.low64, .high = hash.high64};
}

hotbed_digest hotbed_digest_add(hotbed_digest a, hotbed_digest b) {
    hotbed_digest sum = {.low = a.low + b.low, .high = a.high + b.high};
    sum.high += sum.low < a.low ? 1 : 0;
    return sum;
}

bool hotbed_digest_equal(hotbed_digest a, hotbed_digest b) {
    return a.low == b.low && a.high == b.high;
}

hotbed_digits hotbed_digest_text(hotbed_digest digest) {
    hotbed_digits to;
    snprintf(to.text, sizeof to.text, "%016" PRIx64 "%016" PRIx64, digest.high, digest.low);
    return to;
}
