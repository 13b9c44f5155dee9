/* storage/storage_options.c - reads and checks the options of a storage and of its tables. */
#include "storage/storage.h"

#include "base/check.h"
#include "base/options.h"
#include "storage/index/index_range.h"
#include "storage/step/row_layout.h"
#include "storage/types.h"

#include <math.h>
#include <stdio.h>

#define REMOVED_MOST ((uint64_t)1 << 32)
#define CHANGED_MOST ((uint64_t)1 << 40)

/* --- checks ----------------------------------------------------------------------------------- */

/* The checks of a table's options; the caller adds the table's name to their texts. */
static hotbed_status check_scoring(const hotbed_table_options *o) {
    const float share = o->admission_probability;
    HOTBED_TRY(
        hotbed_check_choice("score", o->score, HOTBED_SCORE_STEP, HOTBED_SCORE_TIMESTAMP_LFU));
    HOTBED_TRY(hotbed_check_choice(
        "insertion", o->insertion, HOTBED_INSERT_AUTO, HOTBED_INSERT_PROBATION));
    HOTBED_TRY(hotbed_check_choice(
        "admission", o->admission, HOTBED_ADMIT_ALL, HOTBED_ADMIT_PROBABILISTIC));
    bool plain = o->score == HOTBED_SCORE_STEP && o->insertion != HOTBED_INSERT_PROBATION &&
                 o->admission == HOTBED_ADMIT_ALL;
    if (o->kind == HOTBED_TABLE_STATIC && !plain)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "a static table has no score, insertion or admission");
    if (o->admission == HOTBED_ADMIT_FREQUENCY)
        HOTBED_TRY(hotbed_check_range(
            "admission_threshold", o->admission_threshold, 1, HOTBED_SCORE_MOST));
    HOTBED_TRY(
        hotbed_check_range("admission_capacity", o->admission_capacity, 0, HOTBED_CAPACITY_MOST));
    if (o->admission == HOTBED_ADMIT_PROBABILISTIC && !(share > 0.0F && share <= 1.0F))
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "admission_probability", share, hotbed_bound((double)share, 0, 1),
            "admission_probability %g is not in (0, 1]", (double)share);
    return HOTBED_OK;
}

static hotbed_status check_growth(const hotbed_table_options *o) {
    if (o->max_capacity != 0 && o->kind == HOTBED_TABLE_STATIC)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "a static table cannot grow");
    if (o->max_capacity != 0)
        HOTBED_TRY(
            hotbed_check_range("max_capacity", o->max_capacity, o->capacity, HOTBED_CAPACITY_MOST));
    return hotbed_check_interval("growth_load", (double)o->growth_load, 0, 1);
}

/* Check a table's own optimizer, which may differ from the storage's in few parameters. */
static hotbed_status check_own(const hotbed_table_options *o, const hotbed_optimizer *all) {
    const hotbed_optimizer *own = o->optimizer;
    if (own == NULL)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_optimizer_check(own));
    if (own->kind != all->kind)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "optimizer", own->kind,
            "its optimizer is %s, but the storage's is %s", hotbed_optimizer_name(own->kind),
            all->kind == 0 ? "none" : hotbed_optimizer_name(all->kind));
    const hotbed_optimizer_parameter *p;
    for (uint32_t i = 0; (p = hotbed_optimizer_parameter_at(i)) != NULL; i++) {
        const float value = hotbed_optimizer_value(own, p), others = hotbed_optimizer_value(all, p);
        if ((HOTBED_USES_OWN >> i & 1U) == 0 && value != others)
            return hotbed_fail_limit(
                HOTBED_ERR_ARGUMENT, p->name, value, others,
                "%s of its optimizer is %g, but the storage's is %g; only learning_rate, "
                "weight_decay, l2_decay and max_gradient may differ",
                p->name, (double)value, (double)others);
    }
    return HOTBED_OK;
}

static hotbed_status check_table(const hotbed_table_options *o, const hotbed_optimizer *all) {
    HOTBED_TRY(hotbed_check_range("dim", o->dim, 1, HOTBED_DIM_MOST));
    HOTBED_TRY(hotbed_check_range("capacity", o->capacity, 1, HOTBED_CAPACITY_MOST));
    HOTBED_TRY(hotbed_check_choice("kind", o->kind, HOTBED_TABLE_HASH, HOTBED_TABLE_STATIC));
    if (o->dtype != 0 && hotbed_dtype_row_bytes(o->dtype, 1) == 0)
        return hotbed_fail_unknown("dtype", o->dtype);
    HOTBED_TRY(hotbed_state_dtype_check(o->state_dtype));
    HOTBED_TRY(hotbed_check_choice(
        "rounding", o->rounding, HOTBED_ROUND_STOCHASTIC, HOTBED_ROUND_NEAREST));
    HOTBED_TRY(hotbed_check_choice("evict", o->evict, HOTBED_EVICT_NEVER, HOTBED_EVICT_LOWEST));
    if (o->evict != HOTBED_EVICT_NEVER && o->kind == HOTBED_TABLE_STATIC)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "a static table cannot evict");
    HOTBED_TRY(check_scoring(o));
    HOTBED_TRY(check_growth(o));
    HOTBED_TRY(hotbed_initializer_check(&o->initializer, "initializer"));
    HOTBED_TRY(hotbed_initializer_check(&o->eval_initializer, "eval_initializer"));
    if (o->eval_initializer.kind != HOTBED_INIT_CONSTANT)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "eval_initializer", o->eval_initializer.kind,
            "eval_initializer kind %d is not CONSTANT", (int)o->eval_initializer.kind);
    return check_own(o, all);
}

/* Check the options about rows that are not in device memory. */
static hotbed_status check_lower_tier(const hotbed_storage_options *o) {
    if ((int)o->lower_memory != 0 &&
        (o->lower_memory < HOTBED_MEMORY_PINNED || o->lower_memory > HOTBED_MEMORY_FILE))
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "lower_memory", o->lower_memory,
            "lower_memory %d is not PINNED, PAGEABLE or FILE", (int)o->lower_memory);
    if ((int)o->lower_index_memory != 0 && (o->lower_index_memory < HOTBED_MEMORY_DEVICE ||
                                            o->lower_index_memory > HOTBED_MEMORY_FILE))
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "lower_index_memory", o->lower_index_memory,
            "lower_index_memory %d is not DEVICE, PINNED, PAGEABLE or FILE",
            (int)o->lower_index_memory);
    HOTBED_TRY(hotbed_check_range("move_sms", o->move_sms, 0, HOTBED_MOVE_SMS_MOST));
    if (o->external == NULL)
        return HOTBED_OK;
    if (o->lower_memory != 0 || o->lower_index_memory != 0 || o->lower_directory != NULL)
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, "external", "external and %s are set: set only one of them",
            o->lower_memory != 0         ? "lower_memory"
            : o->lower_index_memory != 0 ? "lower_index_memory"
                                         : "lower_directory");
    if (o->mode != HOTBED_MODE_AUTO && o->mode != HOTBED_MODE_CACHE)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "mode", o->mode, "external is set, but mode %d is not CACHE",
            (int)o->mode);
    return HOTBED_OK;
}

static hotbed_status check_storage(const hotbed_storage_options *o) {
    HOTBED_TRY(hotbed_features_check(o));
    for (uint32_t f = 1; f < o->num_features; f++)
        if (o->feature_tables[f] < o->feature_tables[f - 1])
            return hotbed_fail_feature(
                HOTBED_ERR_ARGUMENT, f, "feature %u: table %u comes after table %u; sort features",
                f, o->feature_tables[f], o->feature_tables[f - 1]);
    if (o->key_type != 0 && o->key_type != HOTBED_KEY_I64 && o->key_type != HOTBED_KEY_U64)
        return hotbed_fail_unknown("key_type", o->key_type);
    HOTBED_TRY(hotbed_check_choice("pooling", o->pooling, HOTBED_POOL_NONE, HOTBED_POOL_MEAN));
    if (o->output_dtype != 0 && hotbed_dtype_bytes(o->output_dtype) == 0)
        return hotbed_fail_unknown("output_dtype", o->output_dtype);
    if (o->optimizer.kind != 0)
        HOTBED_TRY(hotbed_optimizer_check(&o->optimizer));
    HOTBED_TRY(hotbed_check_choice("mode", o->mode, HOTBED_MODE_AUTO, HOTBED_MODE_DEFAULT));
    HOTBED_TRY(hotbed_check_choice(
        "placement", o->placement, HOTBED_PLACE_BY_SCORE, HOTBED_PLACE_BY_HASH));
    HOTBED_TRY(hotbed_check_choice("budget", o->budget, HOTBED_BUDGET_SLOTS, HOTBED_BUDGET_KEYS));
    HOTBED_TRY(check_lower_tier(o));
    HOTBED_TRY(hotbed_check_choice("check", o->check, HOTBED_CHECK_ERROR, HOTBED_CHECK_IGNORE));
    HOTBED_TRY(hotbed_check_choice(
        "nonfinite", o->nonfinite, HOTBED_NONFINITE_PASS, HOTBED_NONFINITE_ERROR));
    HOTBED_TRY(hotbed_check_range("removed_capacity", o->removed_capacity, 0, REMOVED_MOST));
    HOTBED_TRY(hotbed_check_range("changed_capacity", o->changed_capacity, 0, CHANGED_MOST));
    return HOTBED_OK;
}

/* --- the description of a table --------------------------------------------------------------- */

static hotbed_dtype table_dtype(const hotbed_table_options *o) {
    return o->dtype == 0 ? HOTBED_F32 : o->dtype;
}

/* Compute the row layout. With an external store, rows of tables that keep times have space for
 * the time at their end. */
static void lay_out_row(
    hotbed_table_view *view, hotbed_optimizer_kind kind, const hotbed_table_options *o,
    bool external) {
    hotbed_row_lay_out(view, kind, o->state_dtype);
    if (external && o->score == HOTBED_SCORE_TIMESTAMP_LFU)
        view->row_bytes = hotbed_round_up(view->row_bytes, HOTBED_ROW_TIME) + HOTBED_ROW_TIME;
}

static void make_table(
    hotbed_storage *storage, hotbed_table *table, const hotbed_table_options *o) {
    hotbed_table_view *view = &table->view;
    memcpy(table->name, o->name, strlen(o->name) + 1);
    table->kind = o->kind;
    table->dtype = table_dtype(o);
    table->capacity = table->first = o->capacity;
    table->most = o->max_capacity == 0 ? o->capacity : o->max_capacity;
    table->growth_load = o->growth_load == 0.0F ? 0.9F : o->growth_load;
    table->counted = o->admission_capacity == 0 ? o->capacity : o->admission_capacity;
    view->capacity = o->capacity;
    view->dim = o->dim;
    view->dtype = (uint32_t)table->dtype;
    view->is_static = o->kind == HOTBED_TABLE_STATIC;
    view->eval_value = o->eval_initializer.value;
    const hotbed_state_form form = hotbed_state_form_of((uint32_t)storage->optimizer.kind);
    for (int s = 0; s < 2; s++)
        view->state_value[s] = form.starts[s] == HOTBED_STARTS_ACCUMULATOR
                                   ? storage->optimizer.initial_accumulator
                                   : 0.0F;
    view->init = hotbed_init_make(&o->initializer, o->name, storage->seed);
    lay_out_row(view, storage->optimizer.kind, o, storage->external != NULL);
    const bool narrow = hotbed_table_has_narrow_states(view);
    view->random = (table->dtype != HOTBED_F32 || narrow) && o->rounding == HOTBED_ROUND_STOCHASTIC;
    if (hotbed_row_carries(view, form, view->random != 0))
        (void)hotbed_remainder_take1(&view->state_value[0]);
    storage->optimizer_view.narrow = storage->optimizer_view.narrow || narrow;
    const hotbed_optimizer *rates = o->optimizer == NULL ? &storage->optimizer : o->optimizer;
    table->rates = (hotbed_table_rates){
        rates->learning_rate, rates->weight_decay, rates->l2_decay, rates->max_gradient,
        o->optimizer != NULL};
    storage->own_rates = storage->own_rates || o->optimizer != NULL;
    if (rates->max_gradient > storage->optimizer_view.max_gradient)
        storage->optimizer_view.max_gradient = rates->max_gradient;
    table->evicts = o->evict == HOTBED_EVICT_LOWEST;
    table->tracks = o->track_changes;
    storage->tracks = storage->tracks || o->track_changes;
    table->upper_capacity = o->upper_capacity;
    view->score = (uint32_t)o->score;
    table->insertion = o->insertion;
    view->admission = (uint32_t)o->admission;
    if (o->admission == HOTBED_ADMIT_FREQUENCY)
        view->admit = o->admission_threshold;
    if (o->admission == HOTBED_ADMIT_PROBABILISTIC)
        view->admit = (uint64_t)ceil((double)o->admission_probability * 4294967296.0);
    storage->timed = storage->timed || o->score == HOTBED_SCORE_TIMESTAMP ||
                     o->score == HOTBED_SCORE_TIMESTAMP_LFU;
    storage->admits = storage->admits || o->admission != HOTBED_ADMIT_ALL;
    storage->counts_score = storage->counts_score || o->admission != HOTBED_ADMIT_ALL ||
                            o->score == HOTBED_SCORE_LFU || o->score == HOTBED_SCORE_TIMESTAMP_LFU;
}

/* Read and check table number t of `options`. */
static hotbed_status read_table(
    const hotbed_storage_options *options, uint32_t t, hotbed_table_options *o) {
    const void *table;
    HOTBED_TRY(
        hotbed_error_table_number(hotbed_options_at(options->tables, t, "table", &table), t));
    HOTBED_TRY(HOTBED_OPTIONS_READ(o, hotbed_table_options, kind, table));
    hotbed_status status = hotbed_name_check(o->name, t);
    if (status == HOTBED_OK) {
        status = check_table(o, &options->optimizer);
        if (status != HOTBED_OK)
            HOTBED_FAIL_AFTER(status, "table %s: %s", o->name, hotbed_last_error());
    }
    return hotbed_error_table_number(hotbed_error_table(status, o->name), t);
}

hotbed_status hotbed_storage_read_tables(
    hotbed_storage *storage, const hotbed_storage_options *options) {
    for (uint32_t t = 0; t < storage->num_tables; t++) {
        hotbed_table_options o;
        HOTBED_TRY(read_table(options, t, &o));
        make_table(storage, &storage->tables[t], &o);
        if (o.dim > storage->max_dim)
            storage->max_dim = o.dim;
        const hotbed_table_view *view = &storage->tables[t].view;
        const hotbed_rows_form form = hotbed_rows_form_of(view->dtype, view->dim, view->row_bytes);
        storage->rows_form = t == 0 || form == storage->rows_form ? form : HOTBED_ROWS_ANY;
    }
    return hotbed_names_check(storage->tables, storage->num_tables, sizeof *storage->tables);
}

hotbed_status hotbed_storage_read_options(
    const hotbed_storage_options *options, hotbed_storage_options *out) {
    HOTBED_TRY(HOTBED_OPTIONS_READ(out, hotbed_storage_options, num_features, options));
    return check_storage(out);
}

/* Describe the rows of table t for an external store. */
static hotbed_status describe_external(
    const hotbed_storage_options *all, uint32_t t, hotbed_external_table *out) {
    hotbed_table_options o;
    HOTBED_TRY(read_table(all, t, &o));
    hotbed_table_view view = {.dim = o.dim, .dtype = (uint32_t)table_dtype(&o)};
    lay_out_row(&view, all->optimizer.kind, &o, true);
    *out = (hotbed_external_table){o.name, view.row_bytes};
    return HOTBED_OK;
}

hotbed_status hotbed_storage_external_tables(
    const hotbed_storage_options *options, hotbed_external_table *tables) {
    hotbed_storage_options all;
    hotbed_external_table one;
    HOTBED_TRY(hotbed_check_pointer("tables", tables));
    HOTBED_TRY(hotbed_storage_read_options(options, &all));
    char(*names)[HOTBED_NAME_BYTES] = hotbed_new(all.num_tables * sizeof *names);
    hotbed_status status = HOTBED_OK;
    HOTBED_TRY_MEMORY(names, "%u names", all.num_tables);
    for (uint32_t t = 0; t < all.num_tables && status == HOTBED_OK; t++) {
        status = describe_external(&all, t, &one);
        if (status == HOTBED_OK)
            (void)snprintf(names[t], sizeof names[t], "%s", one.name);
    }
    HOTBED_THEN(status, hotbed_names_check(names, all.num_tables, sizeof *names));
    hotbed_delete(names);
    for (uint32_t t = 0; t < all.num_tables && status == HOTBED_OK; t++)
        status = describe_external(&all, t, &tables[t]);
    return status;
}
