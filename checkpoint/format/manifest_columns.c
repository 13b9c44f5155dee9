/* checkpoint/format/manifest_columns.c - the columns of a table in a checkpoint: names, sizes and blocks. */
#include "checkpoint/format/manifest.h"

#include "hotbed/route.h"
#include "storage/types.h"

#include <string.h>

bool hotbed_manifest_has(
    const hotbed_manifest *m, const hotbed_manifest_table *table, uint32_t column) {
    bool hash = table->kind == HOTBED_TABLE_HASH;
    switch (column) {
    case HOTBED_COLUMN_KEYS:
        return hash || m->increment;
    case HOTBED_COLUMN_VALUES:
        return true;
    case HOTBED_COLUMN_SCORES:
    case HOTBED_COLUMN_BUCKET:
        return hash;
    case HOTBED_COLUMN_TIMES:
        return hash && table->times;
    case HOTBED_COLUMN_COUNTED:
    case HOTBED_COLUMN_COUNTS:
        return hash;
    case HOTBED_COLUMN_ERASED:
        return hash && m->increment;
    default:
        return column - HOTBED_COLUMN_STATE <
               hotbed_optimizer_states(hotbed_manifest_optimizer(m, table));
    }
}

bool hotbed_manifest_same_rows(
    const hotbed_manifest *m, const hotbed_manifest_table *x, const hotbed_manifest *n,
    const hotbed_manifest_table *y) {
    return strcmp(x->name, y->name) == 0 && x->kind == y->kind && x->dtype == y->dtype &&
           x->state_dtype == y->state_dtype && x->dim == y->dim &&
           x->bucket_bits == y->bucket_bits && x->times == y->times &&
           hotbed_manifest_optimizer(m, x) == hotbed_manifest_optimizer(n, y);
}

uint64_t hotbed_manifest_range(const hotbed_manifest_table *table) {
    return table->kind == HOTBED_TABLE_HASH ? (uint64_t)1 << table->bucket_bits : table->capacity;
}

bool hotbed_manifest_deals(const hotbed_manifest *m, const hotbed_manifest_table *table) {
    return table->kind == HOTBED_TABLE_STATIC && m->world > 1 &&
           table->route == HOTBED_ROUTE_ROUND_ROBIN + 1;
}

hotbed_row_numbers hotbed_manifest_numbers(
    const hotbed_manifest *m, const hotbed_manifest_table *table, uint32_t shard) {
    if (hotbed_manifest_deals(m, table))
        return (hotbed_row_numbers){.first = shard, .step = m->world};
    const uint64_t part = (uint64_t)(table - m->tables) * m->world + shard;
    return (hotbed_row_numbers){.first = m->parts[part].first, .step = 1};
}

hotbed_column_form hotbed_manifest_form(
    const hotbed_manifest *m, const hotbed_manifest_table *table, hotbed_row_types types,
    uint32_t column) {
    if (column == HOTBED_COLUMN_VALUES)
        return (hotbed_column_form){types.values, table->dim};
    const uint32_t state = column - HOTBED_COLUMN_STATE;
    const hotbed_optimizer_kind kind = hotbed_manifest_optimizer(m, table);
    return (hotbed_column_form){
        hotbed_optimizer_state_dtype(kind, state, types.states),
        hotbed_optimizer_state_dim(kind, state, table->dim)};
}

size_t hotbed_manifest_row_bytes(
    const hotbed_manifest *m, const hotbed_manifest_table *table, uint32_t column) {
    if (column == HOTBED_COLUMN_KEYS)
        return sizeof(uint64_t);
    if (column == HOTBED_COLUMN_BUCKET || !hotbed_manifest_has(m, table, column))
        return 0;
    if (column == HOTBED_COLUMN_SCORES || column == HOTBED_COLUMN_TIMES)
        return sizeof(uint64_t);
    const hotbed_column_form form =
        hotbed_manifest_form(m, table, hotbed_manifest_types(table), column);
    return hotbed_dtype_row_bytes(form.dtype, form.dim);
}

uint64_t hotbed_manifest_column_bytes(
    const hotbed_manifest *m, const hotbed_manifest_table *table, const hotbed_manifest_part *part,
    uint32_t column) {
    if (!hotbed_manifest_has(m, table, column))
        return 0;
    uint64_t buckets = part->end - part->first;
    switch (column) {
    case HOTBED_COLUMN_BUCKET: /* no counts if the part has fewer rows than buckets */
        return part->rows < buckets ? 0 : buckets * sizeof(uint64_t);
    case HOTBED_COLUMN_COUNTED:
    case HOTBED_COLUMN_COUNTS:
        return part->counted * sizeof(uint64_t);
    case HOTBED_COLUMN_ERASED:
        return part->erased * sizeof(uint64_t);
    default:
        return part->rows * hotbed_manifest_row_bytes(m, table, column);
    }
}

const char *hotbed_manifest_column_name(hotbed_optimizer_kind optimizer, uint32_t column) {
    static const char *const words[HOTBED_COLUMN_STATE] = {"keys", "values", "scores", "bucket"};
    static const char *const more[] = {"times", "admission/keys", "admission/counts", "erased"};
    if (column < HOTBED_COLUMN_STATE)
        return words[column];
    if (column >= HOTBED_COLUMN_TIMES)
        return more[column - HOTBED_COLUMN_TIMES];
#define HOTBED_NAMES(KIND, name, state0, LENGTH0, START0, state1, ...)                             \
    [HOTBED_OPT_##KIND] = {"opt/" state0, "opt/" state1},
    static const char *const names[][2] = {
        {"opt/none", "opt/none"}, HOTBED_OPTIMIZERS(HOTBED_NAMES)};
#undef HOTBED_NAMES
    return names[optimizer][column - HOTBED_COLUMN_STATE];
}

hotbed_status hotbed_manifest_unfit_fail(
    const hotbed_manifest *m, const hotbed_manifest_table *table, uint32_t column, uint64_t key,
    hotbed_dtype dtype, float value) {
    const char *state = hotbed_optimizer_state_name(
        hotbed_manifest_optimizer(m, table), column - HOTBED_COLUMN_STATE);
    return hotbed_unfit_fail(
        table->name, key, hotbed_manifest_origin(m, table)->key_type,
        column == HOTBED_COLUMN_VALUES ? NULL : state, dtype, value);
}

static uint64_t number_extent(hotbed_extent *extent, uint64_t first, uint64_t block_bytes) {
    extent->first_block = first;
    return first + extent->bytes / block_bytes + (extent->bytes % block_bytes != 0 ? 1 : 0);
}

void hotbed_manifest_number_blocks(hotbed_manifest *m) {
    for (uint32_t shard = 0; shard < m->world; shard++) {
        uint64_t next = 0;
        for (uint32_t i = 0; shard == 0 && i < m->num_blobs; i++)
            next = number_extent(&m->blobs[i].extent, next, m->block_bytes);
        for (uint32_t t = 0; t < m->num_tables; t++)
            for (uint32_t i = 0; i < HOTBED_COLUMNS; i++)
                next = number_extent(
                    &m->parts[(uint64_t)t * m->world + shard].columns[i], next, m->block_bytes);
        m->shards[shard].num_blocks = next;
    }
}
