/* storage/step/update_any.cu - the kernels of backward for any kind of optimizer. */
#include "storage/step/update.cuh"

/* Fewer widths than for one kind: half of them take as long to compile. */
update_kind hotbed_update_any(uint32_t max_dim, update_form form) {
    return max_dim <= 32 ? kind_of<8, HOTBED_OPT_ANY>(form) : kind_of<32, HOTBED_OPT_ANY>(form);
}
