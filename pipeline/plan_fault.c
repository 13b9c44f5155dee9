/* pipeline/plan_fault.c - names and messages of the faults of plans. */
#include "pipeline/program.h"

#include "base/error.h"
#include "base/text.h"

#include <stdarg.h>

const char *hotbed_pipeline_plan_fault_name(hotbed_pipeline_plan_fault fault) {
    static const char *const names[] = {"OK",          "SIZE",          "NAME",    "UNKNOWN",
                                        "UNSCHEDULED", "STAGE",         "CYCLE",   "STAGE_CYCLE",
                                        "LATER_STAGE", "STREAM_GROUPS", "WRITERS", "UNWRITTEN",
                                        "VALUE_ORDER", "STATE_ORDER",   "BACKWARD"};
    return HOTBED_NAME(names, fault, "UNKNOWN_FAULT");
}

hotbed_status hotbed_plan_fail(
    const hotbed_program *program, hotbed_pipeline_plan_fault fault, const char *format, ...) {
    hotbed_pipeline_plan_report own, *report = program->report == NULL ? &own : program->report;
    va_list values;
    report->fault = fault;
    va_start(values, format);
    (void)hotbed_vformat(report->text, sizeof report->text, format, values);
    va_end(values);
    return hotbed_fail(
        HOTBED_ERR_ARGUMENT, "%s: %s", hotbed_pipeline_plan_fault_name(fault), report->text);
}
