/* hotbed/version.h - the version of these headers, and of the library at run time. */
#ifndef HOTBED_VERSION_H
#define HOTBED_VERSION_H

#include "hotbed/status.h"

#define HOTBED_VERSION_MAJOR 0
#define HOTBED_VERSION_MINOR 1
#define HOTBED_VERSION_PATCH 0
#define HOTBED_VERSION       "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* HOTBED_VERSION of the library that is linked. */
HOTBED_API const char *hotbed_version(void);

#ifdef __cplusplus
}
#endif
#endif
