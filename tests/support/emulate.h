/* tests/support/emulate.h - runs device code of tiles on the host, each lane as a fibre of one thread.
 *
 * A test defines HOTBED_TILE_EMULATE before it includes a core, so that base/tile.h makes the calls below, and runs
 * the core with hotbed_emulate_run().  Every lane runs until it makes a tile call (ballot, shuffle, sync) and waits
 * there; when all lanes of its tile have made the same call, they get its result and go on.  Reported are errors that
 * hang or give wrong results on a GPU: lanes of a tile at different calls or at calls of different widths, and a lane
 * that has ended while others of its tile wait.  Lanes run in rising and falling order by turns, so that code that
 * relies on an order between tile calls fails.
 *
 * hotbed_emulate_interleaved() runs several tiles that share memory, and switches between them at HOTBED_POINT()s
 * that a seed chooses.  It finds within a few thousand steps races that need an unlucky preemption among real
 * threads, and finds them again with the same seed.  Memory is sequentially consistent.
 *
 * TSan does not follow fibres, so these tests are not part of TSan builds.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Called by base/tile.h.  Outside of a run, and at width 1, a tile is one lane. */
uint32_t hotbed_emulate_rank(uint32_t width);
uint32_t hotbed_emulate_ballot(uint32_t width, bool predicate);
uint64_t hotbed_emulate_shuffle(uint32_t width, uint64_t value, uint32_t source);

/* Run function(arg) on `lanes` lanes (1, 2, 4, 8, 16 or 32).  Tile calls may have that width or a smaller one, as in a
 * warp of several tiles.  Lanes at different calls fail the test. */
void hotbed_emulate_run(uint32_t lanes, void (*function)(void *arg), void *arg);

/* As hotbed_emulate_run(), but returns a text that describes lanes at different calls, or NULL if there were none.  The
 * text is valid until the next run of this thread. */
const char *hotbed_emulate_try(uint32_t lanes, void (*function)(void *arg), void *arg);

/* Run function(arg) on `lanes` lanes, in tiles of `width` lanes.  Tile calls have that width or a smaller one.  The
 * tiles take turns; each turn lasts for a random number of points, from one to some thousands, drawn from *random
 * with hotbed_test_random_r(). */
void hotbed_emulate_interleaved(
    uint32_t lanes, uint32_t width, void (*function)(void *arg), void *arg, uint64_t *random);

/* Called by HOTBED_POINT(); base/port.h declares it, too. */
void hotbed_emulate_point(void); /* NOLINT(readability-redundant-declaration) */

/* Number of the running lane, in [0, lanes). */
uint32_t hotbed_emulate_lane(void);
