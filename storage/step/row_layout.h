/* storage/step/row_layout.h - the layout of a row: the embedding, then each optimizer state. */
#pragma once

#include "hotbed/types.h"
#include "storage/step/row_core.h"

/* Parts of at least 16 bytes are aligned to 16, smaller ones to the next power of two. */
static inline uint64_t hotbed_part_alignment(uint64_t bytes) {
    uint64_t alignment = 2;
    while (alignment < bytes && alignment < 16)
        alignment *= 2;
    return alignment;
}

static inline uint64_t hotbed_round_up(uint64_t value, uint64_t to) {
    return (value + to - 1) / to * to;
}

/* Set what describes states, and row_bytes, from the view's dim and dtype, and no lower tier. Kind 0 is
 * a row without states; state_dtype 0 is F32. */
static inline void hotbed_row_lay_out(
    hotbed_table_view *view, hotbed_optimizer_kind kind, hotbed_dtype state_dtype) {
    view->lower_first = UINT64_MAX;
    view->state_dtype[0] = view->state_dtype[1] = HOTBED_F32;
    uint64_t bytes = hotbed_weights_bytes(view->dtype, view->dim);
    uint64_t widest = hotbed_part_alignment(bytes);
    view->states = hotbed_optimizer_states(kind);
    for (uint32_t s = 0; s < view->states; s++) {
        view->state_dtype[s] = (uint32_t)hotbed_optimizer_state_dtype(kind, s, state_dtype);
        view->state_bytes[s] = hotbed_optimizer_state_dim(kind, s, view->dim) *
                               hotbed_dtype_size(view->state_dtype[s]);
        uint64_t part = view->state_bytes[s];
        uint64_t alignment = hotbed_part_alignment(part);
        widest = alignment > widest ? alignment : widest;
        bytes = hotbed_round_up(bytes, alignment);
        view->state_offset[s] = (uint32_t)bytes;
        bytes += part;
    }
    view->row_bytes = hotbed_round_up(bytes, widest);
}

/* Whether a row has padding bytes. Rows are copied whole, to a store and between tiers, so the
 * memory of such rows is cleared at allocation: padding must not carry earlier contents. */
static inline bool hotbed_row_has_gaps(const hotbed_table_view *view) {
    uint64_t parts = (uint64_t)hotbed_weights_bytes(view->dtype, view->dim) + view->state_bytes[0] +
                     view->state_bytes[1];
    return view->row_bytes != parts;
}
