/* checkpoint/format/codec.h - one description of a text that serves both writing and reading.
 *
 * Each field function either prints a value at the current position, or reads one and checks its
 * range. A literal is printed or compared. After its first failure a codec does nothing more, so
 * a description needs error paths only where it loops or allocates. Text that is read is not
 * trusted. */
#pragma once

#include "checkpoint/format/digest.h"
#include "hotbed/status.h"

enum { HOTBED_CODEC_NAME_BYTES = 64 };

typedef struct hotbed_codec {
    bool writing;
    const char *name;     /* of the text, for messages */
    const char *at, *end; /* reading: the rest of the text */
    char *text;           /* writing; the caller frees it with hotbed_delete() */
    size_t bytes;         /* writing */
    uint64_t capacity;
    unsigned line; /* from 1 */
    hotbed_status status;
} hotbed_codec;

/* Fail with CORRUPT: "`name` line n: expected `what`, found '...'". */
void hotbed_codec_expected(hotbed_codec *codec, const char *what);

/* Print or compare fixed text: words, spaces, the newline. */
void hotbed_codec_literal(hotbed_codec *codec, const char *text);

/* The same for text that may be absent. Writing: print it if it is `there`. Returns whether it is
 * there. */
bool hotbed_codec_optional(hotbed_codec *codec, const char *text, bool there);

/* The functions of fields begin with the fixed text before the field, `before`.
 *
 * Print or read a decimal number in [least, most], without leading zeros. */
void hotbed_codec_number(
    hotbed_codec *codec, const char *before, uint64_t *value, uint64_t least, uint64_t most);
void hotbed_codec_number32(
    hotbed_codec *codec, const char *before, uint32_t *value, uint32_t least, uint32_t most);

void hotbed_codec_digest(hotbed_codec *codec, const char *before, hotbed_digest *value);

/* Print or read a float as its bits, which is exact and independent of the locale. */
void hotbed_codec_float(hotbed_codec *codec, const char *before, float *value);
void hotbed_codec_double(hotbed_codec *codec, const char *before, double *value);

/* Print or read a name: 1 to 63 characters of [A-Za-z0-9_.-]. */
void hotbed_codec_name(
    hotbed_codec *codec, const char *before, char value[HOTBED_CODEC_NAME_BYTES]);

/* Whether a text is such a name. */
bool hotbed_codec_is_name(const char *text);

/* Print or read one of the words. Returns its index, or `value` if none is read. */
uint32_t hotbed_codec_choice(
    hotbed_codec *codec, const char *before, uint32_t value, const char *const *words,
    uint32_t num_words);
