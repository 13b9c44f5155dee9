/* checkpoint/format/sparse.h - bytes of a file in memory, most of which were never written.
 *
 * Bytes that were not written read as zeros and take no memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HOTBED_SPARSE_PAGE = 16 << 10 };

/* A page that was written to. */
typedef struct hotbed_sparse_page {
    uint64_t number; /* its bytes begin at number * HOTBED_SPARSE_PAGE */
    unsigned char *bytes;
} hotbed_sparse_page;

/* The bytes of a file. {0} is all zeros. */
typedef struct hotbed_sparse {
    hotbed_sparse_page *pages; /* [num], in order of number */
    uint64_t num, capacity;
} hotbed_sparse;

/* Copy `bytes` bytes to `offset`. Returns false if there was no memory; some of the bytes may then
 * be missing. */
bool hotbed_sparse_write(hotbed_sparse *sparse, uint64_t offset, const void *data, uint64_t bytes);

void hotbed_sparse_read(const hotbed_sparse *sparse, uint64_t offset, void *data, uint64_t bytes);

/* Whether all bytes from `offset` on are zero. */
bool hotbed_sparse_is_zero(const hotbed_sparse *sparse, uint64_t offset);

/* Free the pages, and set *sparse to {0}. */
void hotbed_sparse_free(hotbed_sparse *sparse);
