/* base/options.h - sized structs, passed by callers that may be older or newer than the library.
 *
 * A sized struct begins with a uint32_t: its size in bytes when the caller was compiled. Fields are
 * only appended, so a smaller size means an older caller, and a larger size a newer caller. */
#pragma once

#include "hotbed/status.h"

#include <stddef.h>

/* The largest size that is accepted. An uninitialized size is most likely larger, and is rejected
 * before anything is read or written. */
enum { HOTBED_OPTIONS_BYTES_MOST = 1024 };

/* Copy the caller's input struct into `to`, which has `known` bytes.  Fields that an older caller's struct
 * lacks become 0.  Any bytes of a newer caller's struct beyond `known` must be 0.
 *
 *   least  in  bytes up to the first field that was optional when the struct was first released; it never
 *              changes afterwards
 *   name   in  the struct's name, for messages
 *
 * Errors: ARGUMENT (NULL; a size below `least`, over HOTBED_OPTIONS_BYTES_MOST, or not a multiple of 4; an
 * unknown field that is set). */
hotbed_status hotbed_options_read(
    void *to, size_t known, size_t least, const void *from, const char *name);

/* hotbed_options_read() of a struct of a type, whose first optional field is `optional`. */
#define HOTBED_OPTIONS_READ(to, type, optional, from)                                              \
    hotbed_options_read((to), sizeof(type), offsetof(type, optional), (from), #type)

/* Find struct number i of an array whose stride is the size of the first one, all before i having been
 * read. `what` is the noun of a struct, for messages. Errors: ARGUMENT (another size than the first
 * one's). */
hotbed_status hotbed_options_at(const void *array, uint32_t i, const char *what, const void **out);

/* Check the caller's output struct, before a call has any effect. Errors: ARGUMENT (NULL; a size
 * below 8, over HOTBED_OPTIONS_BYTES_MOST, or not a multiple of 4). */
hotbed_status hotbed_output_check(const void *to, const char *name);

/* Fill an output struct that hotbed_output_check() accepted from `from`, which has `known` bytes.
 * Copies as many fields as the caller's struct has, and sets fields that only a newer library knows
 * to 0. Keeps the caller's size. */
void hotbed_output_write(void *to, const void *from, size_t known);

/* Set the caller's struct to 0 and its size field to `size`. */
void hotbed_options_init(void *options, size_t size);
