/* pipeline/plan_fault.c - names and messages of the faults of plans. */
#include "pipeline/program.h"

#include "base/error.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

const char *hotbed_pipeline_plan_fault_name(hotbed_pipeline_plan_fault fault) {
    switch (fault) {
    case HOTBED_PIPELINE_OK:
        return "OK";
    case HOTBED_PIPELINE_SIZE:
        return "SIZE";
    case HOTBED_PIPELINE_NAME:
        return "NAME";
    case HOTBED_PIPELINE_UNKNOWN:
        return "UNKNOWN";
    case HOTBED_PIPELINE_UNSCHEDULED:
        return "UNSCHEDULED";
    case HOTBED_PIPELINE_STAGE:
        return "STAGE";
    case HOTBED_PIPELINE_CYCLE:
        return "CYCLE";
    case HOTBED_PIPELINE_STAGE_CYCLE:
        return "STAGE_CYCLE";
    case HOTBED_PIPELINE_LATER_STAGE:
        return "LATER_STAGE";
    case HOTBED_PIPELINE_STREAM_GROUPS:
        return "STREAM_GROUPS";
    case HOTBED_PIPELINE_WRITERS:
        return "WRITERS";
    case HOTBED_PIPELINE_UNWRITTEN:
        return "UNWRITTEN";
    case HOTBED_PIPELINE_VALUE_ORDER:
        return "VALUE_ORDER";
    case HOTBED_PIPELINE_STATE_ORDER:
        return "STATE_ORDER";
    case HOTBED_PIPELINE_BACKWARD:
        return "BACKWARD";
    }
    return "UNKNOWN_FAULT";
}

hotbed_status hotbed_pipeline_plan_fail(
    hotbed_pipeline_plan_report *report, hotbed_pipeline_plan_fault fault, const char *format,
    ...) {
    va_list values;
    report->fault = fault;
    va_start(values, format);
    (void)hotbed_vformat(report->text, sizeof report->text, format, values);
    va_end(values);
    return hotbed_fail(
        HOTBED_ERR_ARGUMENT, "%s: %s", hotbed_pipeline_plan_fault_name(fault), report->text);
}
