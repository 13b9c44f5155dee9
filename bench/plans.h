/* bench/plans.h - the modules of hotbed-plans: a trainer of a workload with a stand-in for a dense
 * model, and the timing of plans. */
#pragma once

#include "bench/model.h"
#include "bench/workload.h"

#include "hotbed/train.h"

enum { PLANS_SLOTS = 6, PLANS_ENTRIES_MOST = 16 };

/* A sharded collection of one rank with the workload's tables and keys, and a dense model of `layers` layers in
 * each of forward and backward. */
typedef struct plans_trainer {
    hotbed_backend backend;
    hotbed_insertion insertion;
    uint32_t move_sms;
    hotbed_stream *stream;
    workload_input input;
    hotbed_comm *comm;
    hotbed_sharded *collection;
    hotbed_sharded_modules *modules;
    hotbed_module *module;
    hotbed_model model;
    hotbed_trainer trainer;
    hotbed_memory host, device, gradient;
    bench_model dense;
    hotbed_kjt kjts[PLANS_SLOTS];
    const hotbed_sharded_output *outputs[PLANS_SLOTS];
    uint32_t layers;
    hotbed_event *passed[2]; /* events of the last two steps */
    uint64_t pulled; /* number of batches that loaders returned; batches repeat after the last */
} plans_trainer;

hotbed_status plans_open(
    const workload *what, double scale, hotbed_insertion insertion, uint32_t move_sms,
    hotbed_backend backend, plans_trainer *example);
void plans_close(plans_trainer *example);

/* Set `layers` so that the dense model takes about `wanted` seconds. *seconds is the time that it
 * takes alone. */
hotbed_status plans_set_dense(plans_trainer *example, double wanted, double *seconds);

/* An endless loader of batches, and batch number i. */
hotbed_loader plans_loader(plans_trainer *example);
void *plans_batch(const plans_trainer *example, uint64_t i);

/* A plan to time. */
typedef struct plans_entry {
    const char *name;         /* name in the results */
    const char *plan;         /* name for hotbed_train_options */
    const hotbed_step *steps; /* NULL: the steps of `plan` */
    uint32_t num_steps;
    bool same_priority;
    const char
        *ahead; /* names of the tasks of exchange and prefetch; NULL: the plan has no such tasks */
    double *step, *without; /* [rounds] seconds of a step, and of a step with those tasks skipped */
} plans_entry;

void plans_options(
    const plans_trainer *example, const plans_entry *entry, uint64_t log,
    hotbed_train_options *options);
hotbed_status plans_make(
    plans_trainer *example, const plans_entry *entry, uint64_t log, hotbed_train **out);

/* Measure the seconds of a step in the steady state: the mean of `steps` after `warmup`.
 * Measurements always start at the first batch, because earlier batches decide which rows a cache
 * lacks. The host is at most one step ahead. Drains the pipeline at the end. */
hotbed_status plans_time(
    plans_trainer *example, hotbed_train *train, uint32_t warmup, uint32_t steps, double *seconds);
