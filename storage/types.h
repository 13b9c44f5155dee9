/* storage/types.h - checks of the public descriptions, and what kernels take of them. */
#ifndef HOTBED_STORAGE_TYPES_H
#define HOTBED_STORAGE_TYPES_H

#include "hotbed/types.h"
#include "storage/init_core.h"
#include "storage/optimizer_core.h"

/* `what` names the owner in messages.  Errors: ARGUMENT. */
hotbed_status hotbed_initializer_check(const hotbed_initializer *initializer, const char *what);
hotbed_status hotbed_optimizer_check(const hotbed_optimizer *optimizer);

/* The kernels' form of a checked initialiser of the table called `name`. */
hotbed_init_view hotbed_init_make(
    const hotbed_initializer *initializer, const char *name, uint64_t seed);
hotbed_optimizer_view hotbed_optimizer_make(const hotbed_optimizer *optimizer);

#endif
