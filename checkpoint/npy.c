/* checkpoint/npy.c - headers of NumPy's .npy files. */
#include "checkpoint/import.h"

#include "base/error.h"

#include <inttypes.h>
#include <string.h>

enum { PREFIX = 10, HEADER_MOST = 1024 };

static hotbed_status bad(const hotbed_io_file *file, const char *what) {
    return hotbed_fail_path(HOTBED_ERR_CORRUPT, file->name, "%s: %s", file->name, what);
}

/* Return the text after "'key':" and blanks, or NULL. */
static const char *value_of(const char *text, const char *key) {
    const char *at = strstr(text, key);
    if (at == NULL)
        return NULL;
    at += strlen(key);
    while (*at == ' ' || *at == ':')
        at++;
    return at;
}

static bool read_number(const char **at, uint64_t *value) {
    while (**at == ' ')
        ++*at;
    if (**at < '0' || **at > '9')
        return false;
    *value = 0;
    for (; **at >= '0' && **at <= '9'; ++*at) {
        if (*value > ((uint64_t)1 << 50))
            return false;
        *value = *value * 10 + (uint64_t)(**at - '0');
    }
    while (**at == ' ')
        ++*at;
    return true;
}

/* "(3,)" or "(3, 4)" */
static bool read_shape(const char *at, hotbed_npy *out) {
    if (at == NULL || *at++ != '(' || !read_number(&at, &out->rows) || *at++ != ',')
        return false;
    out->dims = 1;
    out->width = 1;
    if (*at == ')')
        return true;
    out->dims = 2;
    return read_number(&at, &out->width) && *at == ')';
}

static hotbed_status parse(const hotbed_io_file *file, const char *text, hotbed_npy *out) {
    const char *type = value_of(text, "'descr'");
    const char *order = value_of(text, "'fortran_order'");
    if (type == NULL || order == NULL || !read_shape(value_of(text, "'shape'"), out))
        return bad(file, "not a .npy header of one or two dimensions");
    if (strncmp(order, "False", 5) != 0)
        return hotbed_fail_path(
            HOTBED_ERR_UNSUPPORTED, file->name, "%s: Fortran order is not supported", file->name);
    bool known = type[0] == '\'' && type[1] == '<' && type[2] != '\0' &&
                 strchr("fiu", type[2]) != NULL && strchr("248", type[3]) != NULL &&
                 type[3] != '\0' && type[4] == '\'';
    if (!known)
        return hotbed_fail_path(
            HOTBED_ERR_UNSUPPORTED, file->name, "%s: the element type is not <f2, <f4, <i8 or <u8",
            file->name);
    out->type = type[2];
    out->bytes = (uint32_t)(type[3] - '0');
    return HOTBED_OK;
}

hotbed_status hotbed_npy_read(hotbed_io_file *file, hotbed_npy *out) {
    unsigned char prefix[PREFIX];
    char text[HEADER_MOST + 1] = "";
    uint64_t bytes = 0;
    HOTBED_TRY(hotbed_io_size(file, &bytes));
    if (bytes < PREFIX)
        return bad(file, "too short for a .npy file");
    HOTBED_TRY(hotbed_io_read(file, prefix, sizeof prefix, 0));
    if (memcmp(prefix, "\x93NUMPY\x01\x00", 8) != 0)
        return bad(file, "not a .npy file of version 1.0");
    size_t length = (size_t)prefix[8] | (size_t)prefix[9] << 8;
    if (length > HEADER_MOST || PREFIX + length > bytes)
        return bad(file, "its header is too long");
    HOTBED_TRY(hotbed_io_read(file, text, length, PREFIX));
    hotbed_npy npy = {.offset = PREFIX + length};
    HOTBED_TRY(parse(file, text, &npy));
    if (npy.width > 1 << 20 || npy.rows > ((uint64_t)1 << 48) / (npy.width * npy.bytes + 1) ||
        bytes != npy.offset + npy.rows * npy.width * npy.bytes)
        return hotbed_fail_path_value(
            HOTBED_ERR_CORRUPT, file->name, NULL, bytes,
            "%s has %" PRIu64 " bytes, but its header states %" PRIu64 " rows of %" PRIu64,
            file->name, bytes, npy.rows, npy.width);
    *out = npy;
    return HOTBED_OK;
}
