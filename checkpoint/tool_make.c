/* checkpoint/tool_make.c - hotbed-ckpt reshard, compact, convert --to. */
#define _DEFAULT_SOURCE
#include "checkpoint/import.h"
#include "checkpoint/tool.h"

#include "base/error.h"

#include <errno.h>
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

static int rewrite(const tool_options *o, const hotbed_rewrite_options *rewrite_options) {
    hotbed_chain chain = {.n = 0};
    hotbed_status status = check_open_files(rewrite_options->world);
    if (status == HOTBED_OK)
        status = tool_open_chain(o->paths[0], &chain);
    if (status == HOTBED_OK)
        status = hotbed_checkpoint_rewrite(tool_files(), &chain, o->paths[1], rewrite_options);
    hotbed_chain_close(&chain);
    if (status != HOTBED_OK)
        return tool_fail(status);
    if (o->json) {
        printf("{\"path\": ");
        tool_json_text(o->paths[1]);
        printf(", \"ranks\": %" PRIu32 "}\n", rewrite_options->world);
    }
    return TOOL_SAME;
}

int tool_reshard(const tool_options *o) {
    if (o->ranks == 0)
        return tool_usage("reshard needs --ranks", "");
    hotbed_rewrite_options options = {
        .world = o->ranks, .route = o->route, .progress = &o->progress};
    return rewrite(o, &options);
}

int tool_compact(const tool_options *o) {
    hotbed_rewrite_options options = {
        .world = o->ranks == 0 ? 1 : o->ranks, .route = o->route, .progress = &o->progress};
    return rewrite(o, &options);
}

/* --- convert ---------------------------------------------------------------------------------------------------- */

int tool_convert(const tool_options *o) {
    if ((o->from == NULL) == (o->to == NULL))
        return tool_usage(
            o->to == NULL ? "convert needs --from or --to"
                          : "convert takes --from or --to, not both",
            "");
    if (o->from != NULL)
        return tool_import(o);
    const char *unused = o->optimizer != NULL ? "--optimizer"
                         : o->key_type != 0   ? "--keys"
                         : o->ages            ? "--ages"
                                              : NULL;
    if (unused != NULL)
        return tool_usage("convert takes this option only with --from: ", unused);
    hotbed_chain chain;
    hotbed_status status = tool_open_chain(o->paths[0], &chain);
    if (status == HOTBED_OK && strcmp(o->to, "npy") == 0)
        status = hotbed_checkpoint_export_npy(&hotbed_io_system, &chain, o->paths[1], &o->progress);
    else if (status == HOTBED_OK)
        status = hotbed_checkpoint_export_h5(&hotbed_io_system, &chain, o->paths[1], &o->progress);
    hotbed_chain_close(&chain);
    if (status != HOTBED_OK)
        return tool_fail(status);
    if (o->json) {
        printf("{\"path\": ");
        tool_json_text(o->paths[1]);
        printf("}\n");
    }
    return TOOL_SAME;
}
