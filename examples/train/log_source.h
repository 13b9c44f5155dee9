/* examples/train/log_source.h - the bytes of a click log: a file or the standard input, plain or gzip. */
#pragma once

#include <stddef.h>

typedef struct hotbed_log_source hotbed_log_source;

/* The name of a path in messages. */
const char *hotbed_log_source_name(const char *path);

/* Open a file; "-" is the standard input. On failure returns NULL, with the reason, without the
 * path, in message[bytes]. */
hotbed_log_source *hotbed_log_source_open(const char *path, char *message, size_t bytes);

/* Read up to `bytes`, unpacked if the log begins like gzip data. Reads fewer bytes only at the end
 * of the log or before an error.
 *
 * Returns the number of bytes; 0 at the end, or on an error, whose text hotbed_log_source_error()
 * returns. */
size_t hotbed_log_source_read(hotbed_log_source *source, char *to, size_t bytes);

/* Why reading failed, without the path; NULL if it did not. */
const char *hotbed_log_source_error(const hotbed_log_source *source);

/* Fraction of the file that has been read, in [0, 1]; below 0 if it is not a regular file. */
double hotbed_log_source_fraction(const hotbed_log_source *source);

/* NULL is allowed. */
void hotbed_log_source_close(hotbed_log_source *source);
