/* checkpoint/format/digest.h - XXH3-128 of blocks and rows, as a number and as text.
 *
 * The digest detects damage, not forgery: XXH3 is not cryptographic. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A 128-bit digest. On disk it is low, then high, little-endian. As text it is 32 lower-case
 * hexadecimal digits, high half first, as xxhsum prints it. */
typedef struct hotbed_digest {
    uint64_t low, high;
} hotbed_digest;

enum { HOTBED_DIGEST_DIGITS = 32 };

/* Return the XXH3-128 of the bytes, with seed 0. */
hotbed_digest hotbed_digest_of(const void *data, size_t bytes);

/* A digest of bytes that are added in pieces. Opaque. create() returns NULL if it is out of
 * memory. */
typedef struct hotbed_digest_pieces hotbed_digest_pieces;
hotbed_digest_pieces *hotbed_digest_pieces_create(void);
void hotbed_digest_pieces_destroy(hotbed_digest_pieces *pieces); /* NULL is allowed */

void hotbed_digest_pieces_add(hotbed_digest_pieces *pieces, const void *data, size_t bytes);

/* Return the digest of all added pieces, and start a new digest. */
hotbed_digest hotbed_digest_pieces_end(hotbed_digest_pieces *pieces);

/* Return the root of bytes: the digest of the digests of their blocks. A block has `block_bytes`
 * bytes, the last one may be shorter. Zero bytes have no blocks. */
hotbed_digest hotbed_digest_root(const void *data, size_t bytes, size_t block_bytes);

/* Add digests modulo 2^128. The sum is the digest of a set and does not depend on its order. */
hotbed_digest hotbed_digest_add(hotbed_digest a, hotbed_digest b);

bool hotbed_digest_equal(hotbed_digest a, hotbed_digest b);

/* A digest as 32 digits. */
typedef struct hotbed_digits {
    char text[HOTBED_DIGEST_DIGITS + 1];
} hotbed_digits;
hotbed_digits hotbed_digest_text(hotbed_digest digest);
