/* base/options.h - reading options structs of callers that are older or newer than the library. */
#ifndef HOTBED_BASE_OPTIONS_H
#define HOTBED_BASE_OPTIONS_H

#include "hotbed/status.h"

#include <stddef.h>

/* Copy the caller's struct into `to`, which has `known` bytes; both begin with a uint32_t size in bytes.
 * What an older caller's struct does not have reads as 0.  What a newer caller's struct has beyond
 * `known` must be 0.  `name` is the struct's, for messages.
 * Errors: ARGUMENT (NULL; size below `least`, so not initialised; an unknown field that is set). */
hotbed_status hotbed_options_read(
    void *to, size_t known, size_t least, const void *from, const char *name);

#endif
