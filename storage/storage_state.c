/* storage/storage_state.c - reads and sets a storage's clock and optimizer state; reads its
 * counts. */
#include "storage/storage.h"

#include "base/check.h"
#include "base/options.h"

/* The count of prefetches, as scores and states have it. The count itself must not stop at the
 * limit, because evals detect prefetches by its changes. */
static uint64_t clock_of(const hotbed_clock *clock) {
    return clock->prefetches < HOTBED_SCORE_MOST ? clock->prefetches : HOTBED_SCORE_MOST;
}

/* The time of the last prefetch, or a later time that was set. */
static uint64_t time_of(const hotbed_timer *timer) {
    return timer->now > timer->newest ? timer->now : timer->newest;
}

hotbed_status hotbed_storage_get_state(
    hotbed_storage *storage, hotbed_storage_state *out, hotbed_stream *stream) {
    hotbed_clock clock;
    hotbed_timer timer = {0};
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_storage_state"));
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    HOTBED_TRY(hotbed_copy(&clock, storage->clock, sizeof clock, stream));
    if (storage->timer != NULL)
        HOTBED_TRY(hotbed_copy(&timer, storage->timer, sizeof timer, stream));
    HOTBED_TRY(hotbed_stream_finish(stream));
    hotbed_storage_state state = {
        .optimizer_steps = clock.optimizer.steps,
        .clock = clock_of(&clock),
        .beta1_power = clock.optimizer.beta1_power,
        .beta2_power = clock.optimizer.beta2_power,
        .learning_rate = clock.optimizer.learning_rate,
        .time = time_of(&timer),
    };
    hotbed_output_write(out, &state, sizeof state);
    return HOTBED_OK;
}

hotbed_status hotbed_storage_check_state(
    const hotbed_storage_state *s, hotbed_optimizer_kind kind) {
    HOTBED_TRY(hotbed_check_interval("beta1_power", s->beta1_power, 0, 1));
    HOTBED_TRY(hotbed_check_interval("beta2_power", s->beta2_power, 0, 1));
    HOTBED_TRY(hotbed_check_range("clock", s->clock, 0, HOTBED_SCORE_MOST));
    HOTBED_TRY(hotbed_check_range("time", s->time, 0, HOTBED_SCORE_MOST));
    HOTBED_TRY(hotbed_check_finite("learning_rate", s->learning_rate));
    return hotbed_optimizer_check_rate(kind, s->learning_rate);
}

hotbed_status hotbed_storage_set_state(
    hotbed_storage *storage, const hotbed_storage_state *state, hotbed_stream *stream) {
    hotbed_storage_state s;
    HOTBED_TRY(hotbed_storage_same_device(storage, stream));
    HOTBED_TRY(hotbed_options_read(
        &s, sizeof s, offsetof(hotbed_storage_state, learning_rate) + sizeof s.learning_rate, state,
        "hotbed_storage_state"));
    HOTBED_TRY(hotbed_storage_check_state(&s, storage->optimizer.kind));
    hotbed_clock clock = {
        .prefetches = s.clock,
        .optimizer =
            {.steps = s.optimizer_steps,
             .beta1_power = s.beta1_power,
             .beta2_power = s.beta2_power,
             .learning_rate = s.learning_rate},
    };
    hotbed_clock_correct(&clock);
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    HOTBED_TRY(hotbed_copy(storage->clock, &clock, sizeof clock, stream));
    if (storage->timer == NULL || s.time == 0)
        return hotbed_stream_finish(stream);
    hotbed_timer timer;
    HOTBED_TRY(hotbed_copy(&timer, storage->timer, sizeof timer, stream));
    HOTBED_TRY(hotbed_stream_finish(stream));
    if (s.time <= timer.newest)
        return HOTBED_OK;
    timer.newest = s.time;
    HOTBED_TRY(hotbed_copy(storage->timer, &timer, sizeof timer, stream));
    return hotbed_stream_finish(stream);
}

hotbed_status hotbed_storage_now(
    hotbed_storage *storage, uint32_t table, uint64_t *now, hotbed_stream *stream) {
    HOTBED_TRY(hotbed_storage_check_table(storage, table, stream));
    HOTBED_TRY(hotbed_check_pointer("now", now));
    const hotbed_table_view *view = &storage->tables[table].view;
    bool timed = view->score == HOTBED_SCORE_TIMESTAMP || view->score == HOTBED_SCORE_TIMESTAMP_LFU;
    if (view->is_static != 0 || (!timed && view->score != HOTBED_SCORE_STEP))
        return hotbed_fail_table(
            HOTBED_ERR_ARGUMENT, storage->tables[table].name, "table %s has no clock: it is %s",
            storage->tables[table].name,
            view->is_static != 0                 ? "STATIC"
            : view->score == HOTBED_SCORE_CUSTOM ? "CUSTOM"
                                                 : "LFU");
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    hotbed_timer timer = {0};
    hotbed_clock clock = {0};
    if (timed)
        HOTBED_TRY(hotbed_copy(&timer, storage->timer, sizeof timer, stream));
    else
        HOTBED_TRY(hotbed_copy(&clock, storage->clock, sizeof clock, stream));
    HOTBED_TRY(hotbed_stream_finish(stream));
    *now = timed ? time_of(&timer) : clock_of(&clock);
    return HOTBED_OK;
}

hotbed_status hotbed_storage_stats(
    hotbed_storage *storage, uint32_t table, hotbed_table_stats *out, hotbed_stream *stream) {
    hotbed_tally tally;
    HOTBED_TRY(hotbed_storage_check_table(storage, table, stream));
    HOTBED_TRY(hotbed_output_check(out, "hotbed_table_stats"));
    HOTBED_TRY(hotbed_stream_may_wait(stream));
    HOTBED_TRY(hotbed_copy(&tally, storage->tallies + table, sizeof tally, stream));
    HOTBED_TRY(hotbed_stream_finish(stream));
    hotbed_table_stats stats = hotbed_stats_of(tally, storage->tables[table].view.row_bytes);
    hotbed_output_write(out, &stats, sizeof stats);
    return HOTBED_OK;
}

hotbed_table_stats hotbed_stats_of(hotbed_tally tally, uint64_t row_bytes) {
    /* A meter that runs beside a prefetch may know the keys' outcomes and not yet their number. */
    const uint64_t missed = tally.inserts + tally.refused + tally.rejected;
    hotbed_table_stats stats = {
        .size = sizeof stats,
        .keys = tally.keys,
        .uniques = tally.uniques,
        .hits = tally.uniques > missed ? tally.uniques - missed : 0,
        .inserts = tally.inserts,
        .evictions = tally.evictions,
        .refused = tally.refused,
        .rejected = tally.rejected,
        .fetches = tally.fetches,
        .in_place = tally.in_place,
        .nonfinite = tally.nonfinite,
        .rounded_away = tally.rounded_away,
        .expired = tally.expired,
        .write_backs = tally.write_backs,
        .link_read_bytes = tally.fetches * row_bytes,
        .link_write_bytes = tally.write_backs * row_bytes,
    };
    return stats;
}
