/* storage/step/update_narrow.cu - the kernels of backward for tables with states narrower than f32. */
#include "storage/step/update.cuh"

/* For all kinds of optimizer, which they read when they run, as they do the types of a table's states. */
update_kind hotbed_update_narrow(uint32_t max_dim, update_form form) {
    return max_dim <= 32 ? kind_of<8, HOTBED_OPT_ANY, true>(form)
                         : kind_of<32, HOTBED_OPT_ANY, true>(form);
}
