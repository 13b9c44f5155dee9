/* storage/step/update_rowwise_adagrad.cu - the kernels of backward for row-wise AdaGrad. */
#include "storage/step/update.cuh"

update_kind hotbed_update_rowwise_adagrad(uint32_t max_dim, update_form form) {
    return choose_width<HOTBED_OPT_ROWWISE_ADAGRAD>(max_dim, form);
}
