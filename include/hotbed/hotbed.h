/* hotbed/hotbed.h - all public headers of Hotbed.
 *
 * For programs that prefer one include over single headers. A program that compiles and links
 * starts like this:
 *
 *     #include "hotbed/hotbed.h"
 *     #include <stdio.h>
 *
 *     int main(void) {
 *         hotbed_stream *stream;
 *         if (hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &stream) != HOTBED_OK) {
 *             fprintf(stderr, "%s\n", hotbed_last_error());
 *             return 1;
 *         }
 *         hotbed_status status = hotbed_stream_sync(stream);
 *         hotbed_stream_destroy(stream);
 *         return status == HOTBED_OK ? 0 : 1;
 *     }
 *
 * In all headers: a call that takes no stream works on the calling thread and waits for no device,
 * rank or disk, unless its comment or its section says otherwise.
 */
#ifndef HOTBED_HOTBED_H
#define HOTBED_HOTBED_H

#include "hotbed/balance.h"
#include "hotbed/changes.h"
#include "hotbed/checkpoint.h"
#include "hotbed/comm.h"
#include "hotbed/dlpack.h"
#include "hotbed/export.h"
#include "hotbed/external.h"
#include "hotbed/flat_table.h"
#include "hotbed/forward.h"
#include "hotbed/index.h"
#include "hotbed/optimizer.h"
#include "hotbed/pipeline.h"
#include "hotbed/profile.h"
#include "hotbed/publish.h"
#include "hotbed/read.h"
#include "hotbed/redis.h"
#include "hotbed/route.h"
#include "hotbed/sharded.h"
#include "hotbed/state_dict.h"
#include "hotbed/stats.h"
#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"
#include "hotbed/train.h"
#include "hotbed/types.h"
#include "hotbed/version.h"

#endif
