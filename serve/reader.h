/* serve/reader.h - the open of a reader with other system calls, for tests. */
#pragma once

#include "checkpoint/format/io.h"
#include "hotbed/read.h"

/* hotbed_reader_open() with system calls of the caller, of which the reader uses `list`. They outlive the reader. */
hotbed_status hotbed_reader_open_with(
    const hotbed_io_calls *calls, const char *directory, const hotbed_reader_options *options,
    hotbed_reader **out);
