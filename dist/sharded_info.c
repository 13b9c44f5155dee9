/* dist/sharded_info.c - getters of a sharded collection, and its description as text. */
#include "dist/sharded.h"

#include "base/check.h"
#include "base/options.h"
#include "base/text.h"

hotbed_status hotbed_sharded_set_training(hotbed_sharded *sharded, bool training) {
    HOTBED_TRY(hotbed_check_pointer("sharded", sharded));
    sharded->training = training;
    return HOTBED_OK;
}

bool hotbed_sharded_training(const hotbed_sharded *sharded) {
    return sharded != NULL && sharded->training;
}

hotbed_status hotbed_sharded_set_learning_rate(
    hotbed_sharded *sharded, float learning_rate, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer("sharded", sharded));
    for (uint32_t g = 0; g < sharded->num_groups; g++)
        HOTBED_TRY(
            hotbed_storage_set_learning_rate(sharded->groups[g].lookup, learning_rate, stream));
    return HOTBED_OK;
}

hotbed_status hotbed_sharded_set_table_learning_rate(
    hotbed_sharded *sharded, uint32_t table, float learning_rate, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_check_pointer("sharded", sharded));
    HOTBED_TRY(hotbed_check_below("table", table, sharded->num_tables));
    const hotbed_sharded_table *info = &sharded->table_info[table];
    return hotbed_storage_set_table_learning_rate(
        sharded->groups[info->lookup].lookup, info->table, learning_rate, stream);
}

uint32_t hotbed_sharded_num_lookups(const hotbed_sharded *sharded) {
    return sharded == NULL ? 0 : sharded->num_groups;
}

hotbed_storage *hotbed_sharded_lookup(const hotbed_sharded *sharded, uint32_t lookup) {
    if (sharded == NULL || lookup >= sharded->num_groups)
        return NULL;
    return sharded->groups[lookup].lookup;
}

uint64_t hotbed_sharded_columns(const hotbed_sharded *sharded) {
    return sharded == NULL ? 0 : sharded->feature_columns[sharded->num_features];
}

hotbed_status hotbed_sharded_table_read(
    const hotbed_sharded *sharded, uint32_t table, hotbed_sharded_table *out) {
    HOTBED_TRY(hotbed_check_pointer("sharded", sharded));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_sharded_table"));
    HOTBED_TRY(hotbed_check_below("table", table, sharded->num_tables));
    hotbed_output_write(out, &sharded->table_info[table], sizeof *sharded->table_info);
    return HOTBED_OK;
}

const char *hotbed_plan_name(hotbed_plan plan) {
    static const char *const names[] = {"fixed", "two-phase", "one-sided", "auto"};
    return HOTBED_NAME(names, plan, "unknown");
}

static void put_group(hotbed_writer *w, const hotbed_sharded *c, uint32_t number) {
    const hotbed_group *g = &c->groups[number];
    hotbed_write(
        w, "  (input_dists): %s, %u features%s", hotbed_route_name(g->kind), g->num_features,
        g->dedup ? ", dedup" : "");
    if (g->counted)
        hotbed_write(w, " with counts");
    if (g->capacity != 0)
        hotbed_write(w, ", messages of %llu keys", (unsigned long long)g->capacity);
    hotbed_write(w, "\n  (lookups): lookup %u, %u tables\n", number, g->num_tables);
    for (uint32_t i = 0; i < g->num_tables; i++) {
        const hotbed_table_options *o = &c->tables[g->tables[i]];
        hotbed_table_info info = {.size = sizeof info};
        if (hotbed_storage_table(g->lookup, i, &info) != HOTBED_OK)
            continue;
        hotbed_write(
            w, "    %s.weight: %s, dim %u, %s, %llu rows of %llu here", o->name,
            info.kind == HOTBED_TABLE_STATIC ? "static" : "hash", info.dim,
            hotbed_dtype_name(info.dtype), (unsigned long long)info.capacity,
            (unsigned long long)o->capacity);
        if (o->max_capacity > o->capacity)
            hotbed_write(w, ", growing to %llu", (unsigned long long)info.max_capacity);
        const char *separator = "; features ";
        for (uint32_t f = 0; f < c->num_features; f++)
            if (c->feature_tables[f] == g->tables[i]) {
                if (c->features != NULL)
                    hotbed_write(w, "%s%s", separator, c->features[f]);
                else
                    hotbed_write(w, "%s%u", separator, f);
                separator = ", ";
            }
        hotbed_write(w, "\n");
    }
    if (c->pooling == HOTBED_POOL_NONE)
        hotbed_write(
            w, "  (output_dists): rows of %u %s, gradients of %s\n", c->dim,
            hotbed_dtype_name(g->row_dtype), hotbed_dtype_name(g->gradient_dtype));
    else if (!g->sums)
        hotbed_write(
            w, "  (output_dists): by rows, %llu columns, rows of %s, gradients of %s\n",
            (unsigned long long)g->columns, hotbed_dtype_name(g->row_dtype),
            hotbed_dtype_name(g->gradient_dtype));
    else if (c->world > 1)
        hotbed_write(
            w, "  (output_dists): by sums, %llu columns, sums of %s, gradients of %s\n",
            (unsigned long long)g->columns, hotbed_dtype_name(g->row_dtype),
            hotbed_dtype_name(g->gradient_dtype));
    else
        hotbed_write(w, "  (output_dists): %llu columns\n", (unsigned long long)g->columns);
}

hotbed_status hotbed_sharded_print(
    const hotbed_sharded *sharded, char *text, size_t capacity, size_t *length) {
    HOTBED_TRY(hotbed_check_pointer("sharded", sharded));
    HOTBED_TRY(hotbed_check_array("text", text, capacity));
    static const char *const poolings[] = {"none", "sum", "mean"};
    hotbed_writer w = {text, capacity, 0};
    if (capacity > 0)
        text[0] = 0;
    hotbed_write(
        &w, "%s(pooling %s, rank %u of %u, %s, plan %s, optimizer %s, %s\n",
        sharded->pooling == HOTBED_POOL_NONE ? "ShardedEmbeddingCollection"
                                             : "ShardedEmbeddingBagCollection",
        poolings[sharded->pooling], sharded->rank, sharded->world,
        hotbed_transport_name(hotbed_comm_transport(sharded->comm)),
        hotbed_plan_name(sharded->options.plan),
        sharded->optimizer.kind == 0 ? "none" : hotbed_optimizer_name(sharded->optimizer.kind),
        sharded->training ? "training" : "eval");
    for (uint32_t g = 0; g < sharded->num_groups; g++)
        put_group(&w, sharded, g);
    hotbed_write(&w, ")\n");
    if (length != NULL)
        *length = w.length;
    return HOTBED_OK;
}

uint64_t hotbed_sharded_context_bytes(const hotbed_sharded_context *context) {
    if (context == NULL)
        return 0;
    uint64_t bytes = context->memory.bytes + context->pinned.bytes + context->window_bytes;
    for (uint32_t i = 0; i < context->num_members; i++)
        bytes += context->members[i].memory.bytes;
    for (uint32_t i = 0; i < context->num_parts; i++) {
        const hotbed_part *part = &context->parts[i];
        bytes += part->memory.bytes;
        for (uint32_t r = 0; r < 2; r++)
            bytes += part->paths[r].memory.bytes + hotbed_ticket_bytes(part->paths[r].ticket);
    }
    return bytes;
}
