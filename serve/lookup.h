/* serve/lookup.h - the answer to one lookup, from one version. */
#ifndef HOTBED_SERVE_LOOKUP_H
#define HOTBED_SERVE_LOOKUP_H

#include "hotbed/read.h"
#include "serve/version.h"

/* Check a lookup. Errors: ARGUMENT, RANGE. */
hotbed_status hotbed_lookup_check(const hotbed_version *version, const hotbed_lookup *lookup);

/* Answer a lookup that was checked. Returns the number of missing keys. */
uint64_t hotbed_lookup_answer(const hotbed_version *version, const hotbed_lookup *lookup);

#endif
