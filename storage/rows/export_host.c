/* storage/rows/export_host.c - launches the core of exports on host threads. CUDA counterpart:
 * export.cu. */
#include "storage/rows/export_kernels.h"

#include "base/host_launch.h"

enum { GRAIN = 64 };

HOTBED_HOST_EACH(choose_body, hotbed_export_select(args, i, 1))
HOTBED_HOST_EACH(write_rows_body, hotbed_export_write(args, i, 1))

HOTBED_HOST_CALL(choose, hotbed_export_args, a->groups + 1, GRAIN)
HOTBED_HOST_CALL(write_rows, hotbed_export_args, a->groups + 1, GRAIN)

const hotbed_export_kernels hotbed_export_kernels_host = {choose, write_rows};
