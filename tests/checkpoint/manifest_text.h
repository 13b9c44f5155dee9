/* tests/checkpoint/manifest_text.h - a manifest with every kind of line, and a function that appends a
 * correct last line. */
#pragma once

#include "checkpoint/format/digest.h"

#include <stdio.h>
#include <string.h>

/* Append "end <digest>" to `bytes` bytes of text; return the total length.  The text has capacity for 40
 * bytes more. */
static inline size_t manifest_text_sign(char *text, size_t bytes) {
    return bytes + (size_t)snprintf(
                       text + bytes, 40, "end %s\n",
                       hotbed_digest_text(hotbed_digest_of(text, bytes)).text);
}

/* The number of bytes before the last line. */
static inline size_t manifest_text_unsigned(const char *text, size_t bytes) {
    return bytes < 37 ? bytes : bytes - 37;
}
