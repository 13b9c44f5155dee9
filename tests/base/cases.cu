/* tests/base/cases.cu - run_case() on CUDA. */
#include "base/cuda_launch.h"
#include "tests/base/cases.h"

enum { BLOCK = 256 };

static __global__ void case_kernel(case_kind kind, uint64_t n, const void *in, void *out) {
    for (uint64_t i = hotbed_cuda_thread(); i < n; i += hotbed_cuda_threads())
        run_case(kind, i, in, out);
}

hotbed_status cases_launch_cuda(
    case_kind kind, uint64_t n, const void *in, void *out, hotbed_stream *stream) {
    if (n == 0)
        return HOTBED_OK;
    case_kernel<<<hotbed_cuda_blocks(stream, n, BLOCK, 1), BLOCK, 0, hotbed_cuda_native(stream)>>>(
        kind, n, in, out);
    return hotbed_cuda_launched("case_kernel");
}
