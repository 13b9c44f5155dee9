/* tests/support/comma.h - a locale with a decimal comma, for tests of text that machines read. */
#pragma once

/* Give the calling thread a locale in which printf("%g") writes 0,5: de_DE, which localedef compiles from the C
 * library's sources.  Returns NULL, or why there is none, for SKIP(). */
const char *comma_begin(void);
void comma_end(void);
