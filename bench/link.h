/* bench/link.h - kernels of hotbed-link, which move rows between host and device memory. */
#ifndef HOTBED_BENCH_LINK_H
#define HOTBED_BENCH_LINK_H

#include "base/port.h"
#include "hotbed/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers of a row in host memory and in device memory. */
typedef struct bench_link_row {
    uint32_t host, device;
} bench_link_row;

typedef struct bench_link {
    uint32_t n, bytes;          /* number of rows; bytes of a row, a multiple of 16 */
    bool writes;                /* device to host; else host to device */
    const bench_link_row *rows; /* [n], device memory */
    uint8_t *host, *device;     /* the memory that the numbers index; host memory is pinned */
    uint32_t *taken;            /* one word of device memory, which one move uses at a time */
} bench_link;

/* Largest row in bytes; warps per block on shared SMs; warps per block that has its SM alone. */
enum { BENCH_LINK_BYTES_MOST = 64 << 10, BENCH_LINK_WARPS = 4, BENCH_LINK_OWN_WARPS = 8 };

/* Move the rows with `warps` warps, a multiple of BENCH_LINK_WARPS, spread over all SMs.
 * Asynchronous. */
hotbed_status bench_link_spread(const bench_link *link, uint32_t warps, hotbed_stream *stream);

/* Move the rows with BENCH_LINK_OWN_WARPS warps on each of `sms` SMs, which run nothing else
 * meanwhile, as storage/tiers/tier.cu does. Asynchronous. */
hotbed_status bench_link_own(const bench_link *link, uint32_t sms, hotbed_stream *stream);

/* Word w (8 bytes) of the row with number `row` in host memory: the known content of rows. */
HOTBED_HD uint64_t bench_link_word(uint32_t row, uint32_t w) {
    return (((uint64_t)row << 32 | w) + 1) * 0x9e3779b97f4a7c15U;
}

/* Write the known words to the device's rows, or add the number of wrong words to *wrong (device
 * memory). Asynchronous. */
hotbed_status bench_link_fill(const bench_link *link, hotbed_stream *stream);
hotbed_status bench_link_check(const bench_link *link, uint32_t *wrong, hotbed_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
