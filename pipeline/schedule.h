/* pipeline/schedule.h - the model by which hotbed_schedule_find() chooses. */
#pragma once

#include "hotbed/profile.h"

/* Predict the seconds per iteration of a plan in the steady state, by the model. For tests.
 *
 *   costs  in  [plan->num_steps] seconds of each step, not below 0
 *
 * Errors: ARGUMENT (the plan, a cost), MEMORY. */
hotbed_status hotbed_schedule_predict(
    const hotbed_pipeline_plan *plan, const double *costs, double *seconds);
