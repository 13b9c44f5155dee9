/* serve/publisher.h - the creation of a publisher with other system calls, for tests. */
#pragma once

#include "checkpoint/format/io.h"
#include "hotbed/publish.h"

/* hotbed_publisher_create() with system calls of the caller, which outlive the publisher. */
hotbed_status hotbed_publisher_create_with(
    const hotbed_io_calls *calls, const char *directory, hotbed_storage *const *storages,
    uint32_t num_storages, const hotbed_publish_options *options, hotbed_stream *stream,
    hotbed_publisher **out);
