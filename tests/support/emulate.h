/* tests/support/emulate.h - lanes of a tile as fibres of one thread, for base/tile.h.
 *
 * A test defines HOTBED_TILE_EMULATE before it includes a core, and runs code that makes tile calls with
 * hotbed_emulate_run().  Every lane runs until it reaches a tile call and waits there; when all lanes of
 * its tile are at the same call, they get its result and go on.  Lanes at different calls, a call of
 * another width, or a lane that ended while others wait are what would hang or go wrong on a GPU.
 * Lanes take turns in rising and falling order, so code that relies on an order between calls fails.
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

/* Number of the lane that runs, in [0, lanes). */
uint32_t hotbed_emulate_lane(void);

#endif
