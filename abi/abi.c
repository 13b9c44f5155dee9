/* abi/abi.c - what bindings need of public structs: their sizes, and their init functions as symbols.
 *
 * An init function gets the size that the caller was compiled with, and writes no byte beyond it.
 */
#include "base/options.h"
#include "hotbed/hotbed.h"

/* --- sizes ------------------------------------------------------------------------------------ */

typedef struct known_struct {
    const char *name;
    size_t bytes;
} known_struct;

#define KNOWN(name)                                                                                \
    { #name, sizeof(name) }

static const known_struct known_structs[] = {
    KNOWN(hotbed_agreement),
    KNOWN(hotbed_allocator),
    KNOWN(hotbed_awaitable),
    KNOWN(hotbed_balance_options),
    KNOWN(hotbed_balanced),
    KNOWN(hotbed_batch),
    KNOWN(hotbed_batch_type),
    KNOWN(hotbed_change_position),
    KNOWN(hotbed_checkpoint_blob),
    KNOWN(hotbed_checkpoint_found),
    KNOWN(hotbed_checkpoint_id),
    KNOWN(hotbed_checkpoint_load_options),
    KNOWN(hotbed_checkpoint_options),
    KNOWN(hotbed_checkpoint_report),
    KNOWN(hotbed_checkpoint_share),
    KNOWN(hotbed_checkpoint_skipped),
    KNOWN(hotbed_checkpoint_table),
    KNOWN(hotbed_comm_fault),
    KNOWN(hotbed_comm_options),
    KNOWN(hotbed_counters),
    KNOWN(hotbed_declared_io),
    KNOWN(hotbed_dl_array),
    KNOWN(hotbed_dl_device),
    KNOWN(hotbed_dl_dtype),
    KNOWN(hotbed_dl_managed),
    KNOWN(hotbed_dl_managed_versioned),
    KNOWN(hotbed_dl_tensor),
    KNOWN(hotbed_dl_view),
    KNOWN(hotbed_dl_want),
    KNOWN(hotbed_error_detail),
    KNOWN(hotbed_exchange),
    KNOWN(hotbed_exchange_stats),
    KNOWN(hotbed_expiry),
    KNOWN(hotbed_export),
    KNOWN(hotbed_external_call),
    KNOWN(hotbed_external_calls),
    KNOWN(hotbed_external_metadata),
    KNOWN(hotbed_external_options),
    KNOWN(hotbed_external_stats),
    KNOWN(hotbed_external_table),
    KNOWN(hotbed_field),
    KNOWN(hotbed_flat_table_options),
    KNOWN(hotbed_flat_table_view),
    KNOWN(hotbed_forward),
    KNOWN(hotbed_index_info),
    KNOWN(hotbed_index_insert),
    KNOWN(hotbed_index_options),
    KNOWN(hotbed_initializer),
    KNOWN(hotbed_kjt),
    KNOWN(hotbed_loader),
    KNOWN(hotbed_log_entry),
    KNOWN(hotbed_lookup),
    KNOWN(hotbed_memory),
    KNOWN(hotbed_model),
    KNOWN(hotbed_module),
    KNOWN(hotbed_module_calls),
    KNOWN(hotbed_optimizer),
    KNOWN(hotbed_optimizer_clock),
    KNOWN(hotbed_optimizer_info),
    KNOWN(hotbed_optimizer_parameter),
    KNOWN(hotbed_pipeline_options),
    KNOWN(hotbed_pipeline_plan),
    KNOWN(hotbed_pipeline_plan_report),
    KNOWN(hotbed_pipeline_plan_stream),
    KNOWN(hotbed_pipeline_stats),
    KNOWN(hotbed_postproc),
    KNOWN(hotbed_profile),
    KNOWN(hotbed_profile_options),
    KNOWN(hotbed_profile_task),
    KNOWN(hotbed_change_filter),
    KNOWN(hotbed_publish_options),
    KNOWN(hotbed_publish_stats),
    KNOWN(hotbed_reader_options),
    KNOWN(hotbed_reader_stats),
    KNOWN(hotbed_reader_table),
    KNOWN(hotbed_reading),
    KNOWN(hotbed_redis_options),
    KNOWN(hotbed_redis_stats),
    KNOWN(hotbed_ref),
    KNOWN(hotbed_rendezvous),
    KNOWN(hotbed_removed),
    KNOWN(hotbed_rewrite_report),
    KNOWN(hotbed_rocksdb_options),
    KNOWN(hotbed_route),
    KNOWN(hotbed_row_update),
    KNOWN(hotbed_rows),
    KNOWN(hotbed_schedule_options),
    KNOWN(hotbed_segment_info),
    KNOWN(hotbed_sharded_options),
    KNOWN(hotbed_sharded_output),
    KNOWN(hotbed_sharded_table),
    KNOWN(hotbed_state_piece),
    KNOWN(hotbed_state_report),
    KNOWN(hotbed_state_source),
    KNOWN(hotbed_state_tensor),
    KNOWN(hotbed_step),
    KNOWN(hotbed_storage_options),
    KNOWN(hotbed_storage_state),
    KNOWN(hotbed_stream_options),
    KNOWN(hotbed_table_info),
    KNOWN(hotbed_table_options),
    KNOWN(hotbed_table_stats),
    KNOWN(hotbed_task),
    KNOWN(hotbed_ticket_view),
    KNOWN(hotbed_train_options),
    KNOWN(hotbed_trainer),
    KNOWN(hotbed_trainer_io),
    KNOWN(hotbed_tune_options),
    KNOWN(hotbed_value_options),
};

size_t hotbed_struct_bytes(const char *name) {
    for (size_t i = 0; name != NULL && i < sizeof known_structs / sizeof *known_structs; i++)
        if (strcmp(known_structs[i].name, name) == 0)
            return known_structs[i].bytes;
    return 0;
}

/* --- init functions --------------------------------------------------------------------------- */

void hotbed_storage_options_init_sized(hotbed_storage_options *options, size_t size) {
    hotbed_options_init(options, size);
    if (size >= offsetof(hotbed_storage_options, optimizer) + sizeof options->optimizer)
        hotbed_optimizer_init(&options->optimizer);
}

void hotbed_sharded_options_init_sized(hotbed_sharded_options *options, size_t size) {
    hotbed_options_init(options, size);
    if (size >= offsetof(hotbed_sharded_options, plan) + sizeof options->plan)
        options->plan = HOTBED_PLAN_AUTO;
    if (size >= offsetof(hotbed_sharded_options, gradient_scale) + sizeof options->gradient_scale)
        options->gradient_scale = 1.0F;
}

void hotbed_optimizer_init(hotbed_optimizer *optimizer) {
    hotbed_options_init(optimizer, sizeof *optimizer);
    optimizer->learning_rate = 0.01F;
    optimizer->beta1 = 0.9F;
    optimizer->beta2 = 0.999F;
    optimizer->eps = 1e-8F;
    optimizer->momentum = 0.9F;
    optimizer->rho = 0.9F;
    optimizer->trust = 0.001F;
    optimizer->learning_rate_power = -0.5F;
}

void hotbed_optimizer_clock_init(hotbed_optimizer_clock *clock, const hotbed_optimizer *optimizer) {
    memset(clock, 0, sizeof *clock);
    clock->beta1_power = clock->beta2_power = 1.0;
    clock->learning_rate = optimizer->learning_rate;
}
