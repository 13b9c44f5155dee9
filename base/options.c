/* base/options.c - check and copy sized structs. */
#include "base/options.h"
#include "base/check.h"

#include "base/error.h"

#include <stdint.h>
#include <string.h>

/* The size that the caller set. */
static hotbed_status read_size(const void *from, size_t least, const char *name, uint32_t *size) {
    HOTBED_TRY(hotbed_check_pointer(name, from));
    memcpy(size, from, sizeof *size);
    if (*size < least || *size > HOTBED_OPTIONS_BYTES_MOST || *size % 4 != 0)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "size", *size, least,
            "%s: size %u is not in [%zu, %d] or no multiple of 4; set it to sizeof(%s) first", name,
            *size, least, (int)HOTBED_OPTIONS_BYTES_MOST, name);
    return HOTBED_OK;
}

hotbed_status hotbed_options_read(
    void *to, size_t known, size_t least, const void *from, const char *name) {
    uint32_t size = 0;
    HOTBED_TRY(read_size(from, least, name, &size));
    for (size_t i = known; i < size; i++)
        if (((const unsigned char *)from)[i] != 0)
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, name, i, known,
                "%s: byte %zu is set, but this library knows only %zu bytes", name, i, known);
    memset(to, 0, known);
    memcpy(to, from, size < known ? size : known);
    return HOTBED_OK;
}

hotbed_status hotbed_options_at(const void *array, uint32_t i, const char *what, const void **out) {
    uint32_t stride, size;
    memcpy(&stride, array, sizeof stride);
    *out = (const unsigned char *)array + (size_t)i * stride;
    memcpy(&size, *out, sizeof size);
    if (size != stride)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "size", size, stride, "%s %u: size %u is not %u, that of %s 0",
            what, i, size, stride, what);
    return HOTBED_OK;
}

hotbed_status hotbed_output_check(const void *to, const char *name) {
    uint32_t size = 0;
    return read_size(to, 2 * sizeof size, name, &size);
}

void hotbed_output_write(void *to, const void *from, size_t known) {
    uint32_t size;
    memcpy(&size, to, sizeof size);
    memset(to, 0, size);
    memcpy(to, from, size < known ? size : known);
    memcpy(to, &size, sizeof size);
}

void hotbed_options_init(void *options, size_t size) {
    uint32_t written = (uint32_t)size;
    memset(options, 0, size);
    memcpy(options, &written, sizeof written);
}
