/* tests/support/emulate.h - lanes of a tile as fibres of one thread, for base/tile.h.
 *
 * A test defines HOTBED_TILE_EMULATE before it includes a core, and runs code that makes tile calls with
 * hotbed_emulate_run().  Every lane runs until it reaches a tile call and waits there; when all lanes of
 * its tile are at the same call, they get its result and go on.  Lanes at different calls, a call of
 * another width, or a lane that ended while others wait are what would hang or go wrong on a GPU.
 * Lanes take turns in rising and falling order, so code that relies on an order between calls fails.
 * hotbed_emulate_beside() runs several tiles that share memory, and switches from one to another at HOTBED_POINT()s
 * that a seed chooses: what takes a preempted thread in a run of threads takes a few thousand steps there, and fails
 * again with the same seed.  Memory is sequentially consistent.
 * TSan does not follow fibres: such tests are not part of TSan builds.
 */
#ifndef HOTBED_TESTS_EMULATE_H
#define HOTBED_TESTS_EMULATE_H

#include <stdbool.h>
#include <stdint.h>

/* What base/tile.h calls.  Outside of a run, or at width 1, a tile is one lane. */
uint32_t hotbed_emulate_rank(uint32_t width);
uint32_t hotbed_emulate_ballot(uint32_t width, bool predicate);
uint64_t hotbed_emulate_shuffle(uint32_t width, uint64_t value, uint32_t source);

/* Run function(arg) on `lanes` lanes (1, 2, 4, 8, 16 or 32); tile calls may be of that width or a smaller
 * one, as in a warp of several tiles.  Lanes that do not meet fail the test. */
void hotbed_emulate_run(uint32_t lanes, void (*function)(void *arg), void *arg);

/* The same, but lanes that do not meet give a text that says so, valid until the next run of this
 * thread; NULL when all went well. */
const char *hotbed_emulate_try(uint32_t lanes, void (*function)(void *arg), void *arg);

/* Run function(arg) on `lanes` lanes, which are tiles of `width` lanes; tile calls are of that width or a smaller one.  A tile
 * runs for a number of points, from one to some thousands, before another one does: *random, a generator of
 * hotbed_test_random_r(), says which and how long. */
void hotbed_emulate_beside(
    uint32_t lanes, uint32_t width, void (*function)(void *arg), void *arg, uint64_t *random);

/* What HOTBED_POINT() calls; base/port.h declares it, too. */
void hotbed_emulate_point(void); /* NOLINT(readability-redundant-declaration) */

/* Number of the lane that runs, in [0, lanes). */
uint32_t hotbed_emulate_lane(void);

#endif
