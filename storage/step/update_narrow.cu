/* storage/step/update_narrow.cu - the kernels of backward for tables with states narrower than f32. */
#include "storage/step/update.cuh"

/* One kernel for all kinds of optimizer and all forms of rows. It reads the types of a table when it runs. */
template <uint32_t WIDTH> static update_kind narrow_of(void) {
    return {
        WIDTH,
        WIDTH,
        update_kernel<WIDTH, HOTBED_OPT_ANY, false, false, true>,
        update_kernel<WIDTH, HOTBED_OPT_ANY, false, true, true>,
        NULL,
        update_rows_kernel<WIDTH, HOTBED_OPT_ANY, true>};
}

update_kind hotbed_update_narrow(uint32_t max_dim) {
    return max_dim <= 32 ? narrow_of<8>() : narrow_of<32>();
}
