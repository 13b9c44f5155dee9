/* storage/step/update_adam.cu - the kernels of backward for Adam. */
#include "storage/step/update.cuh"

update_kind hotbed_update_adam(uint32_t max_dim, update_form form) {
    return choose_width<HOTBED_OPT_ADAM>(max_dim, form);
}
