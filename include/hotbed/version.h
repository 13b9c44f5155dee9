/* hotbed/version.h - the version of these headers, and of the library at run time.
 *
 * Stable: all calls.
 *
 * For bindings, and for programs that load the library at run time.
 *
 *       if (strcmp(hotbed_version(), HOTBED_VERSION) != 0)
 *           fprintf(stderr, "headers %s, library %s\n", HOTBED_VERSION, hotbed_version());
 *       if (hotbed_struct_bytes("hotbed_batch") != sizeof(hotbed_batch))
 *           fprintf(stderr, "the library's hotbed_batch has another size\n"); */
#ifndef HOTBED_VERSION_H
#define HOTBED_VERSION_H

#include "hotbed/status.h"

#include <stddef.h>

#define HOTBED_VERSION_MAJOR 0
#define HOTBED_VERSION_MINOR 1
#define HOTBED_VERSION_PATCH 0
#define HOTBED_VERSION       "0.1.0"

HOTBED_BEGIN_DECLS

/* Return the HOTBED_VERSION of the linked library. */
HOTBED_API const char *hotbed_version(void);

/* Return the bytes of a public struct in the linked library, by name:
 * hotbed_struct_bytes("hotbed_batch"). 0 if there is no such struct. Bindings compare the result
 * with their own declarations. */
HOTBED_API size_t hotbed_struct_bytes(const char *name);

HOTBED_END_DECLS
#endif
