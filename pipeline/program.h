/* pipeline/program.h - a program: a checked plan whose names are resolved. The engine runs
 * programs. */
#pragma once

#include "hotbed/pipeline.h"

typedef char hotbed_pipeline_plan_name[HOTBED_PIPELINE_NAME_BYTES];

typedef struct hotbed_program_edge {
    uint32_t on;      /* the step that comes first */
    int32_t distance; /* the step of iteration i comes after `on` of iteration i - distance */
} hotbed_program_edge;

/* A step with its task; masks have one bit per value, state or task. */
typedef struct hotbed_program_step {
    hotbed_pipeline_plan_name name;
    hotbed_task_function run;
    void *self;
    const hotbed_declared_io *io;
    uint32_t num_io;
    uint32_t stage, stream, group;
    bool ordered;
    bool always, by_buffer_set;
    char why[160]; /* reason for `always`; may be "" */
    bool root;     /* comes after no step of its own iteration */
    bool sink;     /* no step of its own iteration comes after it */
    uint64_t reads, writes, reads_grad, writes_grad;
    uint64_t states, in_order; /* in_order: the states used in the order of a serial run */
    uint32_t backward_of;      /* step, or HOTBED_STEP_NONE */
    uint32_t first_edge, num_edges;
} hotbed_program_step;

#define HOTBED_STEP_NONE UINT32_MAX

typedef struct hotbed_program_value {
    hotbed_pipeline_plan_name name;
    uint64_t bytes;
    bool grad;
} hotbed_program_value;

typedef struct hotbed_program {
    hotbed_pipeline_plan_name name;
    uint32_t depth, max_stage, max_distance; /* max_distance: largest |distance| of an edge */
    uint32_t num_steps, num_values, num_states, num_streams, num_groups, num_edges;
    hotbed_program_step steps[HOTBED_PIPELINE_TASKS_MOST]; /* as listed */
    uint32_t order[HOTBED_PIPELINE_TASKS_MOST];  /* steps of a period, in order of execution */
    uint32_t serial[HOTBED_PIPELINE_TASKS_MOST]; /* steps of an iteration, in serial order */
    hotbed_program_edge edges[HOTBED_PIPELINE_EDGES_MOST];
    hotbed_program_value values[HOTBED_PIPELINE_VALUES_MOST];
    hotbed_pipeline_plan_name states[HOTBED_PIPELINE_STATES_MOST];
    hotbed_pipeline_plan_name stream_names[HOTBED_PIPELINE_STREAMS_MOST];
    hotbed_stream *streams[HOTBED_PIPELINE_STREAMS_MOST];
    hotbed_pipeline_plan_name groups[HOTBED_PIPELINE_TASKS_MOST];
    hotbed_pipeline_plan_report *report; /* gets faults, while the plan is read; NULL: none does */
} hotbed_program;

/* Read and check a plan. *program is large: keep it off the stack. *report is zeros but for its size;
 * NULL is allowed. Errors: ARGUMENT, MEMORY. */
hotbed_status hotbed_program_read(
    const hotbed_pipeline_plan *plan, hotbed_program *program, hotbed_pipeline_plan_report *report);

/* --- inside of reading ------------------------------------------------------------------------ */

/* Record a fault in the report, and fail with it. */
__attribute__((format(printf, 3, 4))) hotbed_status hotbed_plan_fail(
    const hotbed_program *program, hotbed_pipeline_plan_fault fault, const char *format, ...);

/* Return the step of the task called `name`, which has `length` bytes, or HOTBED_STEP_NONE. */
uint32_t hotbed_program_find_word(const hotbed_program *program, const char *name, size_t length);
uint32_t hotbed_program_find(const hotbed_program *program, const char *name);

/* Compute the order of the steps within a period and within an iteration; check stages and cycles.
 * Errors: ARGUMENT. */
hotbed_status hotbed_program_arrange(hotbed_program *program, hotbed_pipeline_plan_order order);

/* Two tasks that access the same state, with no order between them. */
typedef struct hotbed_program_race {
    uint32_t first, second; /* steps */
    int32_t distance;       /* iterations that `second` is ahead of `first` */
    bool in_order;          /* `first` must come first; otherwise either may */
} hotbed_program_race;

/* Check that readers come after writers, and that tasks of a state are ordered, in all iterations.
 * With `race`, a missing order of a state is stored there instead of being a fault. Errors:
 * ARGUMENT, MEMORY. */
hotbed_status hotbed_program_check_order(
    const hotbed_program *program, hotbed_program_race *race, bool *raced);

/* Take the next word of a list of names separated by spaces. Returns its length, 0 at the end. */
size_t hotbed_next_word(const char **list, const char **word);
