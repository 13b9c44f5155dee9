/* tests/base/fence.c - hotbed_fence() for the CTest entry fence_under_tsan.
 *
 * TSan does not model fences, so a build with -fsanitize=thread must use another operation.  The entry compiles this
 * file and searches the assembly for a fence.
 */
#include "base/port.h"

void fence(void);
void fence(void) {
    hotbed_fence();
}
