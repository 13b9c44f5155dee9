/* storage/types.h - checks of the public descriptions, and what kernels take of them. */
#ifndef HOTBED_STORAGE_TYPES_H
#define HOTBED_STORAGE_TYPES_H

#include "hotbed/types.h"
#include "storage/init_core.h"
#include "storage/optimizer_core.h"

enum {
    HOTBED_TABLES_MOST = 65535,
    HOTBED_NAME_BYTES = 64, /* of a table's name, with the 0 */
};

/* The name of table number `number`.  Errors: ARGUMENT. */
hotbed_status hotbed_name_check(const char *name, uint32_t number);

/* That names differ: of n structs of `stride` bytes that begin with one.  Errors: ARGUMENT, MEMORY. */
hotbed_status hotbed_names_check(const void *structs, uint32_t n, size_t stride);

/* `what` names the owner in messages.  Errors: ARGUMENT. */
hotbed_status hotbed_initializer_check(const hotbed_initializer *initializer, const char *what);
hotbed_status hotbed_optimizer_check(const hotbed_optimizer *optimizer);

/* The kernels' form of a checked initialiser of the table called `name`. */
hotbed_init_view hotbed_init_make(
    const hotbed_initializer *initializer, const char *name, uint64_t seed);
hotbed_optimizer_view hotbed_optimizer_make(const hotbed_optimizer *optimizer);

#endif
