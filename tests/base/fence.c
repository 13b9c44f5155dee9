/* tests/base/fence.c - compiled with -fsanitize=thread, it contains no fence, which TSan does not
 * understand. */
#include "base/port.h"

void fence(void);
void fence(void) {
    hotbed_fence();
}
