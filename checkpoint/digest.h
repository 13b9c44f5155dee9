/* checkpoint/digest.h - XXH3-128 of blocks and rows, as a number and as text.
 *
 * The digest finds damage, not forgery: XXH3 is not cryptographic.
 */
#ifndef HOTBED_CHECKPOINT_DIGEST_H
#define HOTBED_CHECKPOINT_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A 128-bit digest; on disk it is low, then high, little-endian.  As text it is 32 lower-case hexadecimal
 * digits, high first, which is how xxhsum prints it. */
typedef struct hotbed_digest {
    uint64_t low, high;
} hotbed_digest;

enum { HOTBED_DIGEST_DIGITS = 32 };

/* XXH3-128 with seed 0. */
hotbed_digest hotbed_digest_of(const void *data, size_t bytes);

/* A digest of bytes that come in pieces.  Opaque; NULL: no memory. */
typedef struct hotbed_digest_pieces hotbed_digest_pieces;
hotbed_digest_pieces *hotbed_digest_pieces_create(void);
void hotbed_digest_pieces_destroy(hotbed_digest_pieces *pieces); /* NULL is allowed */

void hotbed_digest_pieces_add(hotbed_digest_pieces *pieces, const void *data, size_t bytes);

/* Of all pieces that were added; the next one is the first of another digest. */
hotbed_digest hotbed_digest_pieces_end(hotbed_digest_pieces *pieces);

/* Root of bytes: the digest of the digests of their blocks of `block_bytes`, the last one shorter.  No
 * bytes have no blocks. */
hotbed_digest hotbed_digest_root(const void *data, size_t bytes, size_t block_bytes);

/* Sum modulo 2^128: a digest of a set that does not depend on its order. */
hotbed_digest hotbed_digest_add(hotbed_digest a, hotbed_digest b);

bool hotbed_digest_equal(hotbed_digest a, hotbed_digest b);

/* 32 digits and a NUL. */
void hotbed_digest_text(hotbed_digest digest, char text[HOTBED_DIGEST_DIGITS + 1]);

#endif
