/* checkpoint/tool/tool_args.h - what <table>_opt_args.json of a dynamicemb dump says about its files.
 *
 * The other files of a dump have no header: only this one says which optimizer wrote the states,
 * which type the rows have, whether scores are ages, and whether keys are positions. */
#pragma once

#include "checkpoint/format/io.h"
#include "hotbed/types.h"

typedef enum tool_arg {
    TOOL_ARG_OPT_TYPE,
    TOOL_ARG_LR,
    TOOL_ARG_BETA1,
    TOOL_ARG_BETA2,
    TOOL_ARG_EPS,
    TOOL_ARG_WEIGHT_DECAY,
    TOOL_ARG_INITIAL_ACCUMULATOR,
    TOOL_ARG_ITERS,
    TOOL_ARG_LEARNING_RATE_POWER,
    TOOL_ARG_FTRL_BETA,
    TOOL_ARG_L1_REG,
    TOOL_ARG_L2_REG,
    TOOL_ARG_EVICT_STRATEGY,
    TOOL_ARG_DIST_TYPE,
    TOOL_ARG_EMBEDDING_DTYPE,
    TOOL_ARG_EMBEDDING_DIM,
    TOOL_ARG_STATE_DTYPE,
    TOOL_ARG_SCORE_STRATEGY, /* Hotbed's: the order of two scores */
    TOOL_ARG_TIME,           /* Hotbed's: the time from which ages count, in microseconds */
    TOOL_ARGS,
} tool_arg;

enum { TOOL_ARG_BYTES = 64 };

typedef struct tool_args {
    char file[HOTBED_IO_NAME_BYTES];
    bool there;                             /* the file exists */
    char values[TOOL_ARGS][TOOL_ARG_BYTES]; /* "": not said, or null; a longer value is cut */
} tool_args;

/* Read the file; NULL: there is none, and nothing is said. Errors: CORRUPT (no JSON object), IO. */
hotbed_status tool_args_read(hotbed_io_file *file, tool_args *out);

/* Set *out to a number, if the file says it. Errors: CORRUPT (it is not a number; it is below 0,
 * which no parameter is that may be above 0; it is above `most`). */
hotbed_status tool_args_parameter(
    const tool_args *args, const hotbed_optimizer_parameter *parameter, float *out);
hotbed_status tool_args_integer(
    const tool_args *args, tool_arg which, uint64_t most, uint64_t *out);
