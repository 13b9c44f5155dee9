/* checkpoint/tool/tool_make.c - hotbed-ckpt reshard, compact, convert --to, --dtype and --state-dtype. */
#define _DEFAULT_SOURCE
#include "checkpoint/import.h"
#include "checkpoint/tool/tool.h"

#include "base/error.h"
#include "storage/types.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* --- reshard, compact ----------------------------------------------------------------------------------------- */

/* Check that one open file for each shard is allowed. Errors: ARGUMENT. */
static hotbed_status check_open_files(uint32_t world) {
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur == RLIM_INFINITY || (uint64_t)world + TOOL_FILES <= limit.rlim_cur)
        return HOTBED_OK;
    return hotbed_fail(
        HOTBED_ERR_ARGUMENT,
        "%" PRIu32 " ranks need %" PRIu64 " open files, but the limit is %" PRIu64 " (ulimit -n)",
        world, (uint64_t)world + TOOL_FILES, (uint64_t)limit.rlim_cur);
}

/* Without ranks in the options, write as many shards as the checkpoint has. */
static hotbed_status rewrite_chain(
    const char *from, const char *to, hotbed_rewrite_options *options) {
    hotbed_chain chain = {.n = 0};
    hotbed_status status = tool_open_chain(from, &chain);
    if (status == HOTBED_OK && options->world == 0)
        options->world = hotbed_chain_last(&chain)->world;
    HOTBED_THEN(status, check_open_files(options->world));
    HOTBED_THEN(status, hotbed_checkpoint_rewrite(tool_files(), &chain, to, options));
    hotbed_chain_close(&chain);
    return status;
}

static int rewrite(const tool_options *o, uint32_t ranks) {
    hotbed_rewrite_options options = {
        .world = ranks,
        .route = o->route,
        .types = {o->dtype, o->state_dtype},
        .progress = &o->progress};
    if (ranks == 1 && o->route != 0)
        return tool_usage("--route needs --ranks of 2 or more: one shard has all rows", "");
    hotbed_status status = rewrite_chain(o->paths[0], o->paths[1], &options);
    return tool_wrote(o, status, ", \"ranks\": %" PRIu32, options.world);
}

int tool_reshard(const tool_options *o) {
    if (o->ranks == 0)
        return tool_usage("reshard needs --ranks", "");
    return rewrite(o, o->ranks);
}

int tool_compact(const tool_options *o) {
    return rewrite(o, o->ranks == 0 ? 1 : o->ranks);
}

/* --- convert ---------------------------------------------------------------------------------------------------- */

int tool_convert(const tool_options *o) {
    if (o->from != NULL && o->to != NULL)
        return tool_usage("convert takes --from or --to, not both", "");
    if (o->from == NULL && o->to == NULL && o->dtype == 0 && o->state_dtype == 0)
        return tool_usage("convert needs --from, --to, --dtype or --state-dtype", "");
    if (o->state_dtype != 0 && (o->from != NULL || o->to != NULL))
        return tool_usage("convert takes --state-dtype neither with --from nor with --to", "");
    const bool npy = o->from != NULL && strcmp(o->from, "npy") == 0;
    if (o->dtype != 0 && (npy || o->to != NULL))
        return tool_usage("convert takes --dtype neither with --from npy nor with --to", "");
    if (npy && o->scores != NULL)
        return tool_usage("convert takes --scores only with --from dynamicemb", "");
    if (o->from != NULL && o->dtype != 0 && !hotbed_dtype_is_array((uint32_t)o->dtype))
        return tool_usage(
            "convert --from dynamicemb does not read rows of --dtype ",
            hotbed_dtype_name(o->dtype));
    if (o->from != NULL)
        return tool_import(o);
    const char *unused = o->optimizer != NULL ? "--optimizer"
                         : o->key_type != 0   ? "--keys"
                         : o->ages            ? "--ages"
                         : o->scores != NULL  ? "--scores"
                                              : NULL;
    if (unused != NULL)
        return tool_usage("convert takes this option only with --from: ", unused);
    if (o->to == NULL)
        return rewrite(o, 0);
    hotbed_chain chain;
    hotbed_status status = tool_open_chain(o->paths[0], &chain);
    if (status == HOTBED_OK && strcmp(o->to, "npy") == 0)
        status = hotbed_checkpoint_export_npy(&hotbed_io_system, &chain, o->paths[1], &o->progress);
    else if (status == HOTBED_OK)
        status = hotbed_checkpoint_export_h5(&hotbed_io_system, &chain, o->paths[1], &o->progress);
    hotbed_chain_close(&chain);
    return tool_wrote(o, status, "%s", "");
}
