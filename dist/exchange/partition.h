/* dist/exchange/partition.h - sets of equal size and nearly equal sums. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Bytes of memory that hotbed_partition() works in. */
size_t hotbed_partition_scratch(uint32_t sets, uint32_t items_a_set);

/* Divide items 0 .. sets * items_a_set - 1 into `sets` sets, in the caller's memory; calls nothing of
 * the library.
 *
 *   workloads  in   [sets * items_a_set]
 *   items      out  [sets * items_a_set] set s has items[s * items_a_set] and so on, ascending */
void hotbed_partition(
    uint32_t sets, uint32_t items_a_set, const uint64_t *workloads, uint32_t *items, void *scratch);
