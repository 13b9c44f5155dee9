/* base/options.c - reading options structs of callers that are older or newer than the library. */
#include "base/options.h"

#include "base/error.h"

#include <stdint.h>
#include <string.h>

hotbed_status hotbed_options_read(
    void *to, size_t known, size_t least, const void *from, const char *name) {
    uint32_t size;
    if (from == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "%s is NULL", name);
    memcpy(&size, from, sizeof size);
    if (size < least)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "%s: size %u is less than %zu; call its init function first", name,
            size, least);
    for (size_t i = known; i < size; i++)
        if (((const unsigned char *)from)[i] != 0)
            return hotbed_fail(
                HOTBED_ERR_ARGUMENT, "%s: byte %zu is set, but this library knows only %zu bytes",
                name, i, known);
    memset(to, 0, known);
    memcpy(to, from, size < known ? size : known);
    return HOTBED_OK;
}
