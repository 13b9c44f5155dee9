/* dist/sharded.c - create and destroy a sharded collection: options, groups and their lookups. */
#include "dist/sharded.h"

#include "base/check.h"
#include "base/options.h"
#include "dist/comm/comm.h"
#include "storage/types.h"

#include <math.h>

/* routing rules; and what travels: sequences or sums, or pooled rows of one type */
enum { KINDS = 3, EXCHANGES = HOTBED_DTYPE_LAST + 1 };
/* Bytes that two H200s exchange over NVLink in the time that a second exchange takes. */
#define SECOND_BYTES ((double)(16 << 20))
#define ROWS_MOST    ((uint64_t)1 << 30) /* limit of rows, keys and bags: positions are 32-bit words */

/* --- checks ------------------------------------------------------------------------------------------- */

static hotbed_status check_sizes(
    uint32_t features, uint32_t max_batch_size, uint64_t max_keys, uint64_t capacity) {
    if (max_batch_size < 1 || (uint64_t)max_batch_size * features > ROWS_MOST)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, "max_batch_size", max_batch_size,
            "max_batch_size %u of %u features: rows are not in [1, 2^30]", max_batch_size,
            features);
    HOTBED_TRY(hotbed_check_range("max_keys", max_keys, 1, ROWS_MOST));
    return hotbed_check_range("capacity", capacity, 0, ROWS_MOST);
}

static hotbed_status check_options(
    const hotbed_sharded_options *o, const hotbed_storage_options *s) {
    HOTBED_TRY(hotbed_features_check(s));
    HOTBED_TRY(hotbed_check_choice("plan", o->plan, HOTBED_PLAN_FIXED, HOTBED_PLAN_AUTO));
    HOTBED_TRY(hotbed_check_choice(
        "overflow", o->overflow, HOTBED_OVERFLOW_REPLAY, HOTBED_OVERFLOW_REPORT));
    HOTBED_TRY(hotbed_check_choice("dedup", o->dedup, HOTBED_DEDUP_AUTO, HOTBED_DEDUP_OFF));
    HOTBED_TRY(hotbed_check_finite("gradient_scale", o->gradient_scale));
    uint32_t features = s->num_features == 0 ? s->num_tables : s->num_features;
    HOTBED_TRY(check_sizes(features, o->max_batch_size, o->max_keys, o->capacity));
    HOTBED_TRY(hotbed_check_choice("pooling", s->pooling, HOTBED_POOL_NONE, HOTBED_POOL_MEAN));
    if (s->output_dtype != 0 && hotbed_dtype_bytes(s->output_dtype) == 0)
        return hotbed_fail_unknown("output_dtype", s->output_dtype);
    if (o->large_overflows &&
        (o->overflow != HOTBED_OVERFLOW_REPORT || o->plan == HOTBED_PLAN_TWO_PHASE))
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "large_overflows needs HOTBED_OVERFLOW_REPORT, and a plan other "
                                 "than TWO_PHASE");
    if (o->weighted && s->pooling == HOTBED_POOL_NONE)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "weighted, but pooling is NONE");
    return HOTBED_OK;
}

/* --- reading the options -------------------------------------------------------------------------------- */

static hotbed_status fail_memory(const hotbed_sharded *c) {
    return hotbed_fail(
        HOTBED_ERR_MEMORY, "no memory to describe %u tables and %u features", c->num_tables,
        c->num_features);
}

/* Copy the own optimizer of table t. */
static hotbed_status keep_optimizer(hotbed_sharded *c, uint32_t t) {
    if (c->tables[t].optimizer == NULL)
        return HOTBED_OK;
    HOTBED_TRY(hotbed_error_table_number(hotbed_optimizer_check(c->tables[t].optimizer), t));
    c->own[t] = *c->tables[t].optimizer;
    c->tables[t].optimizer = &c->own[t];
    if (c->own[t].max_gradient > c->optimizer_view.max_gradient)
        c->optimizer_view.max_gradient = c->own[t].max_gradient;
    return HOTBED_OK;
}

/* Names of tables are distinct in a storage, but here two tables may be in different lookups. */
static hotbed_status check_names(const hotbed_sharded *c) {
    char(*names)[HOTBED_NAME_BYTES] = hotbed_new(c->num_tables * sizeof *names);
    if (names == NULL)
        return fail_memory(c);
    for (uint32_t t = 0; t < c->num_tables; t++)
        memcpy(names[t], c->tables[t].name, strlen(c->tables[t].name) + 1);
    const hotbed_status status = hotbed_names_check(names, c->num_tables, sizeof *names);
    hotbed_delete(names);
    return status;
}

static hotbed_status read_tables(hotbed_sharded *c, const hotbed_storage_options *s) {
    const void *table;
    for (uint32_t t = 0; t < c->num_tables; t++) {
        HOTBED_TRY(hotbed_error_table_number(hotbed_options_at(s->tables, t, "table", &table), t));
        HOTBED_TRY(HOTBED_OPTIONS_READ(&c->tables[t], hotbed_table_options, kind, table));
        c->tables[t].size = sizeof c->tables[t];
        if (c->tables[t].dtype != 0 && hotbed_dtype_row_bytes(c->tables[t].dtype, 1) == 0)
            return hotbed_error_table_number(hotbed_fail_unknown("dtype", c->tables[t].dtype), t);
        HOTBED_TRY(keep_optimizer(c, t));
        HOTBED_TRY(hotbed_name_check(c->tables[t].name, t));
    }
    return check_names(c);
}

/* Copy all names, of tables and then of features, into one block. */
static hotbed_status copy_names(hotbed_sharded *c, const char *const *features) {
    size_t bytes = 0;
    for (uint32_t t = 0; t < c->num_tables; t++)
        bytes += strlen(c->tables[t].name) + 1;
    for (uint32_t f = 0; features != NULL && f < c->num_features; f++) {
        if (features[f] == NULL)
            return hotbed_fail_feature(HOTBED_ERR_ARGUMENT, f, "the name of feature %u is NULL", f);
        bytes += strlen(features[f]) + 1;
    }
    c->texts = hotbed_new(bytes);
    if (c->texts == NULL)
        return fail_memory(c);
    char *at = c->texts;
    for (uint32_t t = 0; t < c->num_tables; t++) {
        size_t n = strlen(c->tables[t].name) + 1;
        c->tables[t].name = memcpy(at, c->tables[t].name, n);
        at += n;
    }
    for (uint32_t f = 0; f < c->num_features; f++) {
        if (features == NULL) {
            c->features[f] = c->tables[c->feature_tables[f]].name;
            continue;
        }
        size_t n = strlen(features[f]) + 1;
        c->features[f] = memcpy(at, features[f], n);
        at += n;
        for (uint32_t g = 0; g < f; g++)
            if (strcmp(c->features[g], c->features[f]) == 0)
                return hotbed_fail_feature(
                    HOTBED_ERR_ARGUMENT, f, "features %u and %u are both called %s", g, f,
                    c->features[f]);
    }
    return HOTBED_OK;
}

static hotbed_status read_routes(hotbed_sharded *c, const hotbed_route_kind *routes) {
    for (uint32_t t = 0; t < c->num_tables; t++) {
        const hotbed_table_options *o = &c->tables[t];
        hotbed_sharded_table *info = &c->table_info[t];
        bool is_static = o->kind == HOTBED_TABLE_STATIC;
        hotbed_route_kind kind =
            is_static ? HOTBED_ROUTE_CONTINUOUS : HOTBED_ROUTE_HASH_ROUND_ROBIN;
        if (routes != NULL)
            kind = routes[t];
        if (is_static && kind != HOTBED_ROUTE_CONTINUOUS && kind != HOTBED_ROUTE_ROUND_ROBIN)
            return hotbed_fail_table(
                HOTBED_ERR_ARGUMENT, o->name,
                "table %s: a static table is routed CONTINUOUS or ROUND_ROBIN, not %s", o->name,
                hotbed_route_name(kind) == NULL ? "so" : hotbed_route_name(kind));
        info->name = o->name;
        info->capacity = o->capacity;
        info->max_capacity = o->max_capacity > o->capacity ? o->max_capacity : o->capacity;
        /* Route by max_capacity: a key keeps its rank when the table grows. */
        const bool numbered = is_static || kind == HOTBED_ROUTE_CONTINUOUS;
        const hotbed_status status =
            hotbed_route_init(&info->route, kind, c->world, numbered ? info->max_capacity : 0);
        if (status != HOTBED_OK)
            return hotbed_error_table(
                HOTBED_FAIL_AFTER(status, "table %s: %s", o->name, hotbed_last_error()), o->name);
        info->local_ids = is_static;
    }
    return HOTBED_OK;
}

/* Check that a pooled lookup can number the bags of all ranks. */
static hotbed_status check_bags(const hotbed_sharded *c, const hotbed_group *g) {
    uint64_t rows = (uint64_t)g->num_features * c->options.max_batch_size; /* at most 2^30 */
    if (!g->sums || rows * c->world <= ROWS_MOST)
        return HOTBED_OK;
    return hotbed_fail_value(
        HOTBED_ERR_ARGUMENT, "max_batch_size", c->options.max_batch_size,
        "max_batch_size %u: a lookup of %u features on %u ranks has %llu bags, over 2^30",
        c->options.max_batch_size, g->num_features, c->world, (unsigned long long)rows * c->world);
}

/* The keys of a feature in a batch of the largest size, on average. */
static double keys_of_feature(const hotbed_sharded *c, uint32_t f) {
    const hotbed_sharded_options *o = &c->options;
    if (o->pooling_factors == NULL)
        return (double)o->max_keys / c->num_features;
    return (double)o->pooling_factors[f] * o->max_batch_size;
}

static hotbed_status check_travel(const char *name, hotbed_dtype dtype) {
    if (dtype == 0 || hotbed_dtype_size((uint32_t)dtype) != 0)
        return HOTBED_OK;
    return hotbed_fail_value(
        HOTBED_ERR_ARGUMENT, name, dtype, "%s %d is not f32, f16, bf16, int8 or fp8", name,
        (int)dtype);
}

/* The type of a pooled table's rows that travel, of sums, and of gradients. */
static hotbed_dtype row_type(const hotbed_sharded *c, uint32_t t) {
    if (c->options.forward_dtype != 0)
        return c->options.forward_dtype;
    return c->tables[t].dtype == 0 ? HOTBED_F32 : c->tables[t].dtype;
}

static hotbed_dtype sum_type(const hotbed_sharded *c) {
    return c->options.forward_dtype == 0 ? HOTBED_F32 : c->options.forward_dtype;
}

static hotbed_dtype gradient_type(const hotbed_sharded *c, bool sums) {
    if (c->options.backward_dtype != 0)
        return c->options.backward_dtype;
    return sums && !hotbed_part_sends_plainly(c) ? HOTBED_F32 : c->output_dtype;
}

static double travel_bytes(hotbed_dtype dtype, uint32_t dim) {
    return (double)hotbed_dtype_row_bytes(dtype, dim);
}

/* Choose what travels for a pooled table; see hotbed_pooled_exchange. Add to *saved the bytes that a
 * rank is expected to receive less by rows. */
static hotbed_status choose_exchange(
    hotbed_sharded *c, uint32_t t, double *saved, bool *chosen_by_rule) {
    const hotbed_sharded_options *o = &c->options;
    const hotbed_table_options *table = &c->tables[t];
    const double batch = o->max_batch_size, others = c->world - 1.0;
    hotbed_pooled_exchange chosen = HOTBED_POOLED_AUTO;
    double keys = 0.0, sums = 0.0;
    uint32_t first = c->num_features;
    for (uint32_t f = 0; f < c->num_features; f++) {
        if (c->feature_tables[f] != t)
            continue;
        const hotbed_pooled_exchange given =
            o->exchanges == NULL ? HOTBED_POOLED_AUTO : o->exchanges[f];
        if ((int)given < HOTBED_POOLED_AUTO || given > HOTBED_POOLED_SUMS)
            return hotbed_error_feature(
                hotbed_fail_value(
                    HOTBED_ERR_ARGUMENT, "exchange", given, "feature %u: unknown exchange %d", f,
                    (int)given),
                f);
        if (first < c->num_features && given != chosen)
            return hotbed_fail_table(
                HOTBED_ERR_ARGUMENT, table->name,
                "features %u and %u of table %s have exchanges %d and %d; features of a table "
                "have "
                "one",
                first, f, table->name, (int)chosen, (int)given);
        if (first == c->num_features)
            first = f;
        chosen = given;
        const double of_feature = keys_of_feature(c, f);
        keys += of_feature;
        sums += others * batch * (1.0 - pow(others / c->world, of_feature / batch));
    }
    if (chosen == HOTBED_POOLED_AUTO && (c->external || o->plan == HOTBED_PLAN_FIXED))
        chosen = HOTBED_POOLED_SUMS;
    if (chosen != HOTBED_POOLED_AUTO) {
        c->by_rows[t] = chosen == HOTBED_POOLED_ROWS;
        return HOTBED_OK;
    }
    const double distinct = fmin((double)table->capacity, keys / 3.0);
    const double row = travel_bytes(row_type(c, t), table->dim);
    const double sum = travel_bytes(sum_type(c), table->dim);
    const double back = travel_bytes(gradient_type(c, false), table->dim);
    const double gradient = travel_bytes(gradient_type(c, true), table->dim);
    const double by_rows = distinct * others / c->world * (row + back);
    const double by_sums = sums * (sum + gradient);
    c->by_rows[t] = by_rows <= by_sums;
    *saved += c->by_rows[t] ? by_sums - by_rows : 0.0;
    *chosen_by_rule = true;
    return HOTBED_OK;
}

static hotbed_status choose_exchanges(hotbed_sharded *c) {
    const float *factors = c->options.pooling_factors;
    if (c->pooling == HOTBED_POOL_NONE && (factors != NULL || c->options.exchanges != NULL))
        return hotbed_fail_parameter(
            HOTBED_ERR_ARGUMENT, factors != NULL ? "pooling_factors" : "exchanges",
            "%s is given, but pooling is NONE", factors != NULL ? "pooling_factors" : "exchanges");
    for (uint32_t f = 0; factors != NULL && f < c->num_features; f++)
        if (!isfinite(factors[f]) || factors[f] < 0.0F)
            return hotbed_fail_feature(
                HOTBED_ERR_ARGUMENT, f, "feature %u: pooling factor %g is negative or not finite",
                f, (double)factors[f]);
    double saved = 0.0;
    uint32_t rows = 0, ruled = 0;
    for (uint32_t t = 0; c->pooling != HOTBED_POOL_NONE && t < c->num_tables; t++) {
        bool by_rule = false;
        HOTBED_TRY(choose_exchange(c, t, &saved, &by_rule));
        rows += c->by_rows[t] ? 1 : 0;
        ruled += by_rule ? 1 : 0;
    }
    /* One exchange, unless the second one saves more than it costs. */
    const bool all_sums = ruled == c->num_tables && rows < c->num_tables && saved < SECOND_BYTES;
    for (uint32_t t = 0; t < c->num_tables; t++) {
        if (c->world == 1 || all_sums)
            c->by_rows[t] = false; /* with one rank nothing travels */
        if (c->world > 1 && c->pooling != HOTBED_POOL_NONE)
            c->table_info[t].exchange = c->by_rows[t] ? HOTBED_POOLED_ROWS : HOTBED_POOLED_SUMS;
    }
    return HOTBED_OK;
}

/* What travels for a table, as a number: sequences and sums, or pooled rows of one type. */
static int exchange_of(const hotbed_sharded *c, uint32_t t) {
    if (!c->by_rows[t])
        return 0;
    return (int)row_type(c, t);
}

static float clip_of(const hotbed_sharded *c, uint32_t t) {
    return c->tables[t].optimizer == NULL ? c->optimizer.max_gradient
                                          : c->tables[t].optimizer->max_gradient;
}

/* Whether an earlier table has the clipping of table t. */
static bool clip_is_known(const hotbed_sharded *c, uint32_t t) {
    uint32_t first = 0;
    while (clip_of(c, first) != clip_of(c, t))
        first++;
    return first < t;
}

/* Make a group of the tables that share a rule of routing, what travels, and clipping, if there are
 * any. */
static hotbed_status make_group_of(
    hotbed_sharded *c, hotbed_route_kind kind, int exchange, float clip, uint32_t *placed) {
    hotbed_group *g = &c->groups[c->num_groups];
    g->kind = kind;
    g->sums = c->pooling != HOTBED_POOL_NONE && exchange == 0;
    g->first_feature = *placed;
    g->max_gradient = clip;
    g->tables = hotbed_new(c->num_tables * sizeof *g->tables);
    c->num_groups++; /* before the first error, so that the group is freed */
    if (g->tables == NULL)
        return fail_memory(c);
    for (uint32_t t = 0; t < c->num_tables; t++) {
        if (c->table_info[t].route.kind != kind || exchange_of(c, t) != exchange ||
            clip_of(c, t) != clip)
            continue;
        if (c->tables[t].dim > g->max_dim)
            g->max_dim = c->tables[t].dim;
        c->table_info[t].lookup = c->num_groups - 1;
        c->table_info[t].table = g->num_tables;
        g->tables[g->num_tables++] = t;
        for (uint32_t f = 0; f < c->num_features; f++)
            if (c->feature_tables[f] == t) {
                c->order[(*placed)++] = f;
                g->columns += c->tables[t].dim;
            }
    }
    g->num_features = *placed - g->first_feature;
    if (g->num_tables > 0 && g->num_features == 0)
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, c->tables[g->tables[0]].name,
            "tables routed %s, as %s, have no feature", hotbed_route_name(g->kind),
            c->tables[g->tables[0]].name);
    HOTBED_TRY(check_bags(c, g));
    if (g->num_tables == 0) { /* the next group gets the place */
        hotbed_delete(g->tables);
        memset(g, 0, sizeof *g);
        c->num_groups--;
    }
    return HOTBED_OK;
}

/* Order features by group, and within a group by table as a storage requires; columns in the
 * caller's order. */
static hotbed_status make_groups(hotbed_sharded *c) {
    uint32_t placed = 0;
    for (int number = 0; number < KINDS * EXCHANGES; number++)
        for (uint32_t t = 0; t < c->num_tables; t++)
            if (!clip_is_known(c, t))
                HOTBED_TRY(make_group_of(
                    c, (hotbed_route_kind)(number / EXCHANGES), number % EXCHANGES, clip_of(c, t),
                    &placed));
    for (uint32_t f = 0; f < c->num_features; f++)
        c->feature_columns[f + 1] = c->feature_columns[f] + c->tables[c->feature_tables[f]].dim;
    return HOTBED_OK;
}

/* --- groups ----------------------------------------------------------------------------------------------- */

/* Rows of a rank's share of a table's `capacity`: for a HASH table the mean plus six standard
 * deviations, so that with even routing no rank is full before the whole table is. */
static uint64_t share_of(const hotbed_sharded *c, uint32_t table, uint64_t capacity) {
    if (c->world <= 1 || capacity == 0)
        return capacity;
    if (c->tables[table].kind == HOTBED_TABLE_STATIC) {
        uint64_t rows = hotbed_route_rows(&c->table_info[table].route, c->rank);
        return rows == 0 ? 1 : rows;
    }
    uint64_t mean = (capacity - 1) / c->world + 1;
    uint64_t share = mean + (uint64_t)ceil(6.0 * sqrt((double)mean));
    return share < capacity ? share : capacity;
}

static bool counts_keys(const hotbed_sharded *c, const hotbed_group *g) {
    for (uint32_t t = 0; t < g->num_tables; t++) {
        const hotbed_table_options *o = &c->tables[g->tables[t]];
        if (o->score == HOTBED_SCORE_LFU || o->score == HOTBED_SCORE_TIMESTAMP_LFU ||
            o->admission == HOTBED_ADMIT_FREQUENCY)
            return true;
    }
    return false;
}

/* The number of keys that a message holds; 0: exact, or there are no messages. */
static uint64_t capacity_of(const hotbed_sharded *c, const hotbed_group *g) {
    uint64_t n = c->options.max_keys;
    double expected = 0.0;
    if (c->options.plan == HOTBED_PLAN_TWO_PHASE || c->world <= 1)
        return 0;
    uint64_t capacity = c->options.capacity;
    for (uint32_t f = 0; f < g->num_features; f++)
        expected += 1.25 * keys_of_feature(c, c->order[g->first_feature + f]);
    if (capacity == 0) {
        if (c->options.pooling_factors != NULL && expected < (double)n)
            n = (uint64_t)expected + 1;
        uint64_t share = (n - 1) / c->world + 1;
        capacity = share + share / 4 + 64;
        n = c->options.max_keys;
    }
    return capacity < n ? capacity : n;
}

/* Have faults name keys, and rows be initialized and rounded by them, where the lookup stores row
 * numbers. */
static hotbed_status describe_keys(
    const hotbed_sharded *c, const hotbed_group *g, hotbed_stream *stream) {
    for (uint32_t t = 0; t < g->num_tables; t++) {
        const hotbed_sharded_table *info = &c->table_info[g->tables[t]];
        const hotbed_route *route = &info->route;
        const bool blocks = route->kind == HOTBED_ROUTE_CONTINUOUS;
        const hotbed_table_keys keys = {
            .rank = c->rank,
            .rows = route->rows,
            .first = blocks ? c->rank * route->block : c->rank,
            .step = blocks ? 1 : c->world};
        if (info->local_ids && c->world > 1)
            HOTBED_TRY(hotbed_storage_set_keys(g->lookup, t, &keys, stream));
    }
    return HOTBED_OK;
}

static hotbed_status make_lookup(
    hotbed_sharded *c, hotbed_group *g, const hotbed_storage_options *storage,
    hotbed_stream *stream) {
    hotbed_storage_options o = *storage;
    hotbed_table_options *tables = hotbed_new(g->num_tables * sizeof *tables);
    /* The rank that has the batch clamps gradients, before it sums or scales them. */
    const float clip = c->world > 1 || c->pooling != HOTBED_POOL_NONE ? 0.0F : g->max_gradient;
    /* By sums, bags of different ranks are of different features of the lookup. */
    const uint32_t each = g->sums ? c->world : 1;
    const bool packs = hotbed_packed_type((uint32_t)g->row_dtype) != 0; /* hotbed_scatter_view */
    const hotbed_dtype written = packs ? HOTBED_F32 : g->row_dtype;
    uint32_t *features = hotbed_new((size_t)g->num_features * each * sizeof *features);
    hotbed_status status = HOTBED_OK;
    if (tables == NULL || features == NULL) {
        status = fail_memory(c);
        goto done;
    }
    for (uint32_t t = 0; t < g->num_tables; t++) {
        tables[t] = c->tables[g->tables[t]];
        tables[t].capacity = share_of(c, g->tables[t], tables[t].capacity);
        tables[t].max_capacity = share_of(c, g->tables[t], tables[t].max_capacity);
        if (tables[t].optimizer != NULL)
            c->own[g->tables[t]].max_gradient = clip;
    }
    for (uint32_t f = 0; f < g->num_features * each; f++)
        features[f] = c->table_info[c->feature_tables[c->order[g->first_feature + f / each]]].table;
    o.num_tables = g->num_tables;
    o.tables = tables;
    o.num_features = g->dedup ? 0 : g->num_features * each;
    o.feature_tables = g->dedup ? NULL : features;
    o.optimizer.max_gradient = clip;
    if (g->sums) { /* means are computed where the sums of all ranks are */
        o.pooling = HOTBED_POOL_SUM;
        o.output_dtype = written;
    } else if (c->world > 1 || c->pooling != HOTBED_POOL_NONE) {
        o.pooling = HOTBED_POOL_NONE; /* the requester pools */
        o.output_dtype = written;
    }
    status = hotbed_storage_create(&o, stream, &g->lookup);
    HOTBED_THEN(status, describe_keys(c, g, stream));
done:
    hotbed_delete(tables);
    hotbed_delete(features);
    return status;
}

/* Lay out what kernels read of a group; called twice, first to count its bytes. */
static size_t carve_group(hotbed_group *g, uint8_t *base) {
    hotbed_carve carve = {base, 0};
    g->routes = hotbed_carve_take(&carve, g->message_features * sizeof *g->routes);
    g->table_features = hotbed_carve_take(&carve, ((size_t)g->num_tables + 1) * sizeof(uint32_t));
    g->columns32 = hotbed_carve_take(&carve, ((size_t)g->num_features + 1) * sizeof(uint32_t));
    g->output_columns = hotbed_carve_take(&carve, g->num_features * sizeof(uint32_t));
    g->columns64 = hotbed_carve_take(&carve, g->num_features * sizeof(uint64_t));
    g->dims = hotbed_carve_take(&carve, g->num_features * sizeof(uint32_t));
    g->feature_tables = hotbed_carve_take(&carve, g->num_features * sizeof(uint32_t));
    g->numbers = hotbed_carve_take(&carve, ((size_t)g->num_features + 1) * sizeof(uint32_t));
    return carve.used;
}

static void describe_group(const hotbed_sharded *c, const hotbed_group *g, hotbed_group *host) {
    uint32_t f = 0, column = 0;
    for (uint32_t t = 0; t < g->num_tables; t++) {
        const hotbed_sharded_table *info = &c->table_info[g->tables[t]];
        hotbed_feature_route route = {info->route, info->local_ids ? 1 : 0};
        host->table_features[t] = f;
        if (g->dedup)
            host->routes[t] = route;
        for (; f < g->num_features &&
               c->feature_tables[c->order[g->first_feature + f]] == g->tables[t];
             f++) {
            if (!g->dedup)
                host->routes[f] = route;
            host->columns32[f] = column;
            host->columns64[f] = c->feature_columns[c->order[g->first_feature + f]];
            host->output_columns[f] = (uint32_t)host->columns64[f];
            host->dims[f] = c->tables[g->tables[t]].dim;
            host->feature_tables[f] = t;
            host->numbers[f] = f;
            column += c->tables[g->tables[t]].dim;
        }
    }
    host->table_features[g->num_tables] = f;
    host->columns32[g->num_features] = column;
    host->numbers[g->num_features] = g->num_features;
}

static hotbed_status upload_group(hotbed_sharded *c, hotbed_group *g, hotbed_stream *stream) {
    hotbed_group host = *g;
    size_t bytes = carve_group(g, NULL);
    hotbed_memory staging = {0};
    hotbed_status status =
        hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &g->described);
    HOTBED_THEN(status, hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, bytes, NULL, &staging));
    if (status != HOTBED_OK)
        goto done;
    memset(staging.data, 0, bytes);
    (void)carve_group(&host, staging.data);
    (void)carve_group(g, g->described.data);
    describe_group(c, g, &host);
    status = hotbed_copy(g->described.data, staging.data, bytes, stream);
    HOTBED_THEN(status, hotbed_stream_finish(stream));
done:
    hotbed_memory_free(&staging);
    return status;
}

/* Whether the only group has the columns of the output. */
static bool has_output_columns(const hotbed_sharded *c) {
    uint32_t f = 0;
    while (f < c->num_features && c->order[f] == f)
        f++;
    return c->num_groups == 1 && f == c->num_features;
}

/* Set what follows from the sizes; what travels for a pooled table was chosen at creation. */
static void size_group(const hotbed_sharded *c, hotbed_group *g) {
    g->message_batch = g->dedup ? 1 : c->options.max_batch_size;
    g->capacity = capacity_of(c, g);
}

hotbed_status hotbed_sharded_resize(
    hotbed_sharded *sharded, uint32_t max_batch_size, uint64_t max_keys, uint64_t capacity) {
    HOTBED_TRY(hotbed_check_pointer("sharded", sharded));
    if (sharded->num_contexts > 0)
        return hotbed_fail_value(
            HOTBED_ERR_STATE, NULL, sharded->num_contexts,
            "the collection has %u contexts; destroy them before it is resized",
            sharded->num_contexts);
    const hotbed_sharded_options before = sharded->options;
    HOTBED_TRY(check_sizes(sharded->num_features, max_batch_size, max_keys, capacity));
    sharded->options.max_batch_size = max_batch_size;
    sharded->options.max_keys = max_keys;
    sharded->options.capacity = capacity;
    hotbed_status status = HOTBED_OK;
    for (uint32_t g = 0; g < sharded->num_groups && status == HOTBED_OK; g++)
        status = check_bags(sharded, &sharded->groups[g]);
    if (status != HOTBED_OK)
        sharded->options = before;
    for (uint32_t g = 0; g < sharded->num_groups; g++)
        size_group(sharded, &sharded->groups[g]);
    return status;
}

static hotbed_status make_group(
    hotbed_sharded *c, hotbed_group *g, const hotbed_storage_options *storage,
    hotbed_stream *stream) {
    const bool sequence = c->pooling == HOTBED_POOL_NONE;
    g->dedup = c->world > 1 && !g->sums && (!sequence || c->options.dedup != HOTBED_DEDUP_OFF);
    g->plain = c->world == 1 && c->pooling == HOTBED_POOL_SUM && c->output_dtype == HOTBED_F32 &&
               c->options.gradient_scale == 1.0F && c->optimizer_view.max_gradient <= 0.0F &&
               has_output_columns(c);
    g->counted = g->dedup && counts_keys(c, g);
    g->message_features = g->dedup ? g->num_tables : g->num_features;
    size_group(c, g);
    g->row_dtype = g->sums ? sum_type(c) : row_type(c, g->tables[0]);
    if (sequence && c->options.forward_dtype == 0)
        g->row_dtype = c->output_dtype;
    g->gradient_dtype = gradient_type(c, g->sums);
    g->row_bytes = hotbed_travel_bytes((uint32_t)g->row_dtype, g->max_dim);
    g->gradient_bytes = hotbed_travel_bytes((uint32_t)g->gradient_dtype, g->max_dim);
    if (hotbed_packed_type((uint32_t)g->gradient_dtype) != 0 ||
        (g->sums && hotbed_packed_type((uint32_t)g->row_dtype) != 0))
        g->wide_stride = (g->max_dim + 3U) / 4 * 4;
    g->aligned = true;
    for (uint32_t f = 0; f < g->num_features; f++)
        g->aligned = g->aligned && c->feature_columns[c->order[g->first_feature + f]] % 4 == 0;
    HOTBED_TRY(make_lookup(c, g, storage, stream));
    HOTBED_TRY(upload_group(c, g, stream));
    for (uint32_t t = 0; t < g->num_tables; t++) {
        const hotbed_table_options *o = &c->tables[g->tables[t]];
        if (c->world > 1 && o->kind == HOTBED_TABLE_STATIC &&
            o->initializer.kind != HOTBED_INIT_CONSTANT) {
            if (storage->external !=
                NULL) /* an external store may have rows already, which are kept */
                return hotbed_fail_table(
                    HOTBED_ERR_UNSUPPORTED, o->name,
                    "table %s: a STATIC table of several ranks over an external store", o->name);
            HOTBED_TRY(hotbed_storage_clear(g->lookup, t, stream)); /* now that it knows its keys */
        }
    }
    return HOTBED_OK;
}

static hotbed_status create(
    hotbed_sharded *c, const hotbed_sharded_options *options, const hotbed_storage_options *s,
    hotbed_stream *stream) {
    c->options = *options;
    c->pooling = s->pooling;
    c->output_dtype = s->output_dtype == 0 ? HOTBED_F32 : s->output_dtype;
    c->optimizer = s->optimizer;
    c->external = s->external != NULL;
    c->seed = s->seed;
    if (s->optimizer.kind != 0)
        HOTBED_TRY(hotbed_optimizer_check(&s->optimizer));
    else
        c->optimizer.max_gradient = 0.0F; /* not checked; groups of tables compare it */
    c->optimizer_view = hotbed_optimizer_make(&s->optimizer);
    c->num_tables = s->num_tables;
    c->num_features = s->num_features == 0 ? s->num_tables : s->num_features;
    c->training = true;
    c->tables = hotbed_new(c->num_tables * sizeof *c->tables);
    c->table_info = hotbed_new(c->num_tables * sizeof *c->table_info);
    c->feature_tables = hotbed_new(c->num_features * sizeof *c->feature_tables);
    c->features = hotbed_new(c->num_features * sizeof *c->features);
    c->order = hotbed_new(c->num_features * sizeof *c->order);
    c->feature_columns = hotbed_new(((size_t)c->num_features + 1) * sizeof *c->feature_columns);
    c->by_rows = hotbed_new(c->num_tables * sizeof *c->by_rows);
    c->groups = hotbed_new(((size_t)c->num_tables + 1) * sizeof *c->groups);
    c->own = hotbed_new(c->num_tables * sizeof *c->own);
    if (c->tables == NULL || c->table_info == NULL || c->feature_tables == NULL ||
        c->features == NULL || c->order == NULL || c->feature_columns == NULL ||
        c->groups == NULL || c->by_rows == NULL || c->own == NULL)
        return fail_memory(c);
    HOTBED_TRY(read_tables(c, s));
    for (uint32_t f = 0; f < c->num_features; f++)
        c->feature_tables[f] = s->num_features == 0 ? f : s->feature_tables[f];
    HOTBED_TRY(copy_names(c, options->features));
    if (options->features == NULL && s->num_features > 0) {
        hotbed_delete(c->features);
        c->features = NULL;
    }
    HOTBED_TRY(read_routes(c, options->routes));
    HOTBED_TRY(check_travel("forward_dtype", options->forward_dtype));
    HOTBED_TRY(check_travel("backward_dtype", options->backward_dtype));
    if (c->world == 1) /* nothing travels */
        c->options.forward_dtype = c->options.backward_dtype = 0;
    HOTBED_TRY(choose_exchanges(c));
    HOTBED_TRY(make_groups(c));
    c->dim = c->tables[0].dim;
    for (uint32_t t = 1; c->pooling == HOTBED_POOL_NONE && t < c->num_tables; t++)
        if (c->tables[t].dim != c->dim)
            return hotbed_fail_table_value(
                HOTBED_ERR_ARGUMENT, c->tables[t].name, "dim", (double)c->tables[t].dim,
                "table %s: dim %u is not the first table's %u", c->tables[t].name, c->tables[t].dim,
                c->dim);
    HOTBED_TRY(hotbed_wire_create(c, stream));
    for (uint32_t g = 0; g < c->num_groups; g++) {
        c->groups[g].number = g;
        HOTBED_TRY(make_group(c, &c->groups[g], s, stream));
    }
    return hotbed_sharded_growth_create(c, stream);
}

/* Create this rank's part, and copy the storage's options to *storage. */
static hotbed_status create_part(
    const hotbed_sharded_options *options, hotbed_comm *comm, hotbed_stream *stream,
    hotbed_storage_options *storage, hotbed_sharded **out) {
    hotbed_sharded_options o;
    HOTBED_TRY(HOTBED_OPTIONS_READ(&o, hotbed_sharded_options, capacity, options));
    if (o.plan == HOTBED_PLAN_AUTO) /* chosen before anything that depends on it */
        o.plan = comm->windows == HOTBED_WINDOWS_WORK ? HOTBED_PLAN_ONE_SIDED : HOTBED_PLAN_FIXED;
    HOTBED_TRY(HOTBED_OPTIONS_READ(storage, hotbed_storage_options, num_features, o.storage));
    storage->size = sizeof *storage;
    HOTBED_TRY(check_options(&o, storage));
    hotbed_sharded *c = hotbed_new(sizeof *c);
    HOTBED_TRY_MEMORY(c, "a sharded collection");
    c->comm = comm;
    c->rank = hotbed_comm_rank(comm);
    c->world = hotbed_comm_size(comm);
    c->number = comm->collections;
    c->backend = hotbed_stream_backend(stream);
    c->device = hotbed_stream_device(stream);
    hotbed_status status = create(c, &o, storage, stream);
    if (status == HOTBED_OK)
        *out = c;
    else
        hotbed_sharded_destroy(c);
    return status;
}

hotbed_status hotbed_sharded_create(
    const hotbed_sharded_options *options, hotbed_comm *comm, hotbed_stream *stream,
    hotbed_sharded **out) {
    hotbed_storage_options storage;
    hotbed_sharded *c = NULL;
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(hotbed_check_pointer("comm", comm));
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    HOTBED_TRY(hotbed_comm_check_stream(comm, stream));
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    HOTBED_TRY(hotbed_window_probe(comm, stream));
    hotbed_status status = create_part(options, comm, stream, &storage, &c);
    status = hotbed_sharded_agree(comm, c, &storage, status, stream);
    if (status != HOTBED_OK) {
        hotbed_sharded_destroy(c);
        return status;
    }
    comm->collections++; /* on all ranks, or none */
    *out = c;
    return HOTBED_OK;
}

void hotbed_sharded_destroy(hotbed_sharded *sharded) {
    if (sharded == NULL)
        return;
    for (uint32_t g = 0; g < sharded->num_groups; g++) {
        hotbed_group *group = &sharded->groups[g];
        hotbed_storage_destroy(group->lookup);
        hotbed_memory_free(&group->described);
        hotbed_delete(group->tables);
    }
    hotbed_sharded_growth_destroy(sharded);
    hotbed_memory_free(&sharded->wire);
    hotbed_delete(sharded->groups);
    hotbed_delete(sharded->by_rows);
    hotbed_delete(sharded->feature_columns);
    hotbed_delete(sharded->order);
    hotbed_delete(sharded->features);
    hotbed_delete(sharded->feature_tables);
    hotbed_delete(sharded->table_info);
    hotbed_delete(sharded->own);
    hotbed_delete(sharded->tables);
    hotbed_delete(sharded->texts);
    hotbed_delete(sharded);
}
