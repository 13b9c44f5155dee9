/* hotbed/hotbed.h - all of Hotbed. */
#ifndef HOTBED_HOTBED_H
#define HOTBED_HOTBED_H

#include "hotbed/balance.h"
#include "hotbed/checkpoint.h"
#include "hotbed/comm.h"
#include "hotbed/context.h"
#include "hotbed/dlpack.h"
#include "hotbed/export.h"
#include "hotbed/external.h"
#include "hotbed/flat_table.h"
#include "hotbed/forward.h"
#include "hotbed/growth.h"
#include "hotbed/index.h"
#include "hotbed/kjt.h"
#include "hotbed/optimizer.h"
#include "hotbed/pipeline.h"
#include "hotbed/profile.h"
#include "hotbed/route.h"
#include "hotbed/sharded.h"
#include "hotbed/sharded_module.h"
#include "hotbed/state_dict.h"
#include "hotbed/stats.h"
#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"
#include "hotbed/timeline.h"
#include "hotbed/train.h"
#include "hotbed/types.h"
#include "hotbed/version.h"

#endif
