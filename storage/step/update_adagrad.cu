/* storage/step/update_adagrad.cu - the kernels of backward for AdaGrad. */
#include "storage/step/update.cuh"

update_kind hotbed_update_adagrad(uint32_t max_dim, update_form form) {
    return choose_width<HOTBED_OPT_ADAGRAD>(max_dim, form);
}
