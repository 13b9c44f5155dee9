/* tests/headers/example_names.h - what the examples of the public headers use without declaring it. */
#include "hotbed/hotbed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Objects of the program. */
extern hotbed_status status;
extern hotbed_stream *stream, *other_stream, *memcpy_stream, *agreement_stream;
extern hotbed_comm *comm, *agreement_comm;
extern hotbed_storage *storage;
extern hotbed_ticket *ticket;
extern hotbed_external *external;
extern hotbed_sharded *sharded, *collection;
extern hotbed_sharded_context *context;
extern hotbed_sharded_modules *modules;
extern hotbed_comm_agreement *agreement;
extern hotbed_balance *balance;
extern hotbed_rewrite *rewrite;
extern hotbed_pipeline *pipeline;
extern const hotbed_iteration *iteration;
extern hotbed_loader loader;
#ifdef EXAMPLE_OF_pipeline
hotbed_status copy(hotbed_iteration *iteration, void *self, hotbed_stream *stream);
hotbed_status train(hotbed_iteration *iteration, void *self, hotbed_stream *stream);
#else
extern hotbed_train *train;
#endif
extern hotbed_trainer trainer;
extern hotbed_schedule *schedule;
extern hotbed_dl_managed *tensor;

/* Options that the program has set up before. */
extern hotbed_storage_options storage_options;
#if defined(EXAMPLE_OF_storage) || defined(EXAMPLE_OF_external)
extern hotbed_storage_options options;
extern hotbed_table_options table;
#elif defined(EXAMPLE_OF_train)
extern hotbed_train_options options;
#elif defined(EXAMPLE_OF_stats)
extern uint32_t table;
#endif
extern hotbed_kjt kjt;

/* Numbers and arrays. */
extern uint64_t n, step, key, num_keys, max_keys;
extern uint32_t dim, steps, number, rank, world, device, max_batch_size, num_batches;
extern bool training;
#ifdef EXAMPLE_OF_export
extern uint64_t *keys;
#else
extern int64_t *keys;
#endif
extern int64_t *lengths;
extern uint64_t *slots, *count;
extern float *weights, *output, *gradient, *gradients, *labels, *new_labels;
#ifdef EXAMPLE_OF_storage
extern hotbed_batch batches[2];
extern hotbed_ticket *tickets[2];
extern hotbed_event *fetched[2], *trained[2];
extern hotbed_stream *ahead;
void fill(hotbed_batch *batch, hotbed_stream *stream);
#else
extern void *const *batches;
#endif
extern char text[4096];
#ifdef EXAMPLE_OF_optimizer
#define clock optimizer_clock /* not the one of time.h */
extern hotbed_optimizer_clock *clock;
#endif

/* Batches and functions of the program. */
#ifdef EXAMPLE_OF_forward
extern const void *batch;
#else
extern hotbed_batch batch;
#endif
#ifdef EXAMPLE_OF_storage
void model(const float *output, float *gradient, hotbed_stream *stream);
#else
extern hotbed_model model;
#endif
void train_step(hotbed_stream *stream);
struct my_model {
    hotbed_module *users;
    hotbed_ref output;
};
extern struct my_model *my;
extern hotbed_batch_type batch_type;
const void *get_sparse(const void *parent);
#ifndef EXAMPLE_OF_forward
hotbed_status forward(void *self, hotbed_ref batch, hotbed_stream *stream);
#endif
hotbed_status copy_batch(
    void *self, uint32_t set, void *host_batch, hotbed_stream *stream, void **batch);
hotbed_status dense_forward(void *self, uint32_t set, void *batch, hotbed_stream *stream);
hotbed_status dense_backward(void *self, uint32_t set, void *batch, hotbed_stream *stream);
hotbed_status dense_step(void *self, uint32_t set, void *batch, hotbed_stream *stream);
void write_rows(
    const uint64_t *keys, const float *weights, const uint64_t *count, hotbed_stream *stream);
void use(const char *name, const void *data);
