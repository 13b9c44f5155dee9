/* storage/step/update_sgd.cu - the kernels of backward for SGD. */
#include "storage/step/update.cuh"

update_kind hotbed_update_sgd(uint32_t max_dim, update_form form) {
    return choose_width<HOTBED_OPT_SGD>(max_dim, form);
}
