/* storage/rows/change_filter.c - which changed rows a receiver gets. */
#include "base/check.h"
#include "base/error.h"
#include "base/stream.h"
#include "hotbed/changes.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* A limit that the table does not have, with the reason; NULL: it has all. */
static const char *wrong_limit(
    const hotbed_change_filter *f, const hotbed_table_info *info, uint64_t *value,
    const char **why) {
    const bool counts =
        info->score == HOTBED_SCORE_LFU || info->score == HOTBED_SCORE_TIMESTAMP_LFU;
    const bool scored = info->kind != HOTBED_TABLE_STATIC;
    *why = scored ? "the table's scores do not count occurrences; LFU and TIMESTAMP_LFU do"
                  : "keys of a STATIC table have no score";
    *value = f->min_occurrences;
    if (f->min_occurrences != 0 && !(scored && counts))
        return "min_occurrences";
    *value = f->min_score != 0 ? f->min_score : f->most_rows;
    if (scored || *value == 0)
        return NULL;
    return f->min_score != 0 ? "min_score" : "most_rows";
}

hotbed_status hotbed_change_filter_check(
    const hotbed_storage *storage, uint32_t table, const hotbed_change_filter *filter) {
    hotbed_table_info info = {.size = sizeof info};
    uint64_t value = 0;
    const char *why = NULL;
    HOTBED_TRY(hotbed_storage_table(storage, table, &info));
    HOTBED_TRY(hotbed_check_pointer("filter", filter));
    if (filter->unused != 0)
        return hotbed_fail_table_value(
            HOTBED_ERR_ARGUMENT, info.name, "unused", filter->unused,
            "the filter of table '%s' has unused %" PRIu32 ", not 0", info.name, filter->unused);
    if (!(filter->min_change >= 0) || !isfinite(filter->min_change))
        return hotbed_fail_table_value(
            HOTBED_ERR_ARGUMENT, info.name, "min_change", filter->min_change,
            "the filter of table '%s' has min_change %g, not a finite number from 0 on", info.name,
            (double)filter->min_change);
    const char *wrong = wrong_limit(filter, &info, &value, &why);
    if (wrong != NULL)
        return hotbed_fail_table_value(
            HOTBED_ERR_ARGUMENT, info.name, wrong, value,
            "the filter of table '%s' has %s %" PRIu64 "; %s", info.name, wrong, value, why);
    return HOTBED_OK;
}

/* A row and its score. */
typedef struct scored {
    uint64_t score, number;
} scored;

/* The highest score first; of equal ones, the first row. */
static int by_falling_score(const void *a, const void *b) {
    const scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Leave the rows with the highest scores. */
static hotbed_status limit_rows(uint64_t most, uint64_t n, const uint64_t *scores, bool *passes) {
    uint64_t passed = 0;
    scored *all = hotbed_new((n + 1) * sizeof *all);
    if (all == NULL)
        return hotbed_fail_value(
            HOTBED_ERR_MEMORY, NULL, n, "no memory to choose among %" PRIu64 " rows", n);
    for (uint64_t i = 0; i < n; i++)
        if (passes[i])
            all[passed++] = (scored){.score = scores[i], .number = i};
    if (passed > most)
        qsort(all, passed, sizeof *all, by_falling_score);
    for (uint64_t i = most; i < passed; i++)
        passes[all[i].number] = false;
    hotbed_delete(all);
    return HOTBED_OK;
}

hotbed_status hotbed_change_filter_select(
    const hotbed_change_filter *filter, uint64_t n, const uint64_t *scores,
    const uint64_t *occurrences, const double *changes, bool *passes) {
    HOTBED_TRY(hotbed_check_pointer("filter", filter));
    HOTBED_TRY(hotbed_check_pointer("passes", passes));
    if (filter->min_score != 0 || filter->most_rows != 0)
        HOTBED_TRY(hotbed_check_pointer("scores", scores));
    if (filter->min_occurrences != 0)
        HOTBED_TRY(hotbed_check_pointer("occurrences", occurrences));
    if (filter->min_change > 0)
        HOTBED_TRY(hotbed_check_pointer("changes", changes));
    for (uint64_t i = 0; i < n; i++)
        passes[i] = (filter->min_score == 0 || scores[i] >= filter->min_score) &&
                    (filter->min_occurrences == 0 || occurrences[i] >= filter->min_occurrences) &&
                    (!(filter->min_change > 0) || !(changes[i] < (double)filter->min_change));
    return filter->most_rows == 0 ? HOTBED_OK : limit_rows(filter->most_rows, n, scores, passes);
}
