/* storage/step/update_narrow.cu - the kernels of backward for tables with states narrower than f32. */
#include "storage/step/update.cuh"

template <uint32_t KIND> static update_kind narrow(uint32_t max_dim, update_form form) {
    return max_dim <= 32 ? kind_of<8, KIND, true>(form) : kind_of<32, KIND, true>(form);
}

/* One set of kernels for Adam, and one for all other kinds, which reads the kind when it runs. Both read the
 * types of a table's states when they run. */
update_kind hotbed_update_narrow(uint32_t kind, uint32_t max_dim, update_form form) {
    return kind == HOTBED_OPT_ADAM ? narrow<HOTBED_OPT_ADAM>(max_dim, form)
                                   : narrow<HOTBED_OPT_ANY>(max_dim, form);
}
