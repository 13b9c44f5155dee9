/* storage/index/index.cu - launches the core of index calls on CUDA. Host counterpart: index_host.c. */
#include "base/cuda_launch.h"
#include "storage/index/index_kernels.h"

/* A key per lane and tiles as in storage/step/lookup.cu. There are more blocks than fit at once:
 * registers limit occupancy to less than 2048 threads per SM, and with a single round of blocks the
 * last ones would run almost alone. */
enum { TILE = 8, PLACE_TILE = 4, BLOCK = 256, WAVES = 64, WARP = 32 };

static __global__ void __launch_bounds__(BLOCK, 4) index_find_kernel(hotbed_index_args a) {
    for (uint64_t i = hotbed_cuda_thread() / TILE * TILE; i < a.n; i += hotbed_cuda_threads())
        hotbed_call_find(&a, i, TILE);
}

static __global__ void __launch_bounds__(BLOCK, 4) index_claim_kernel(hotbed_index_args a) {
    for (uint64_t i = hotbed_cuda_thread() / TILE * TILE; i < a.n; i += hotbed_cuda_threads())
        hotbed_call_claim(&a, i, TILE);
}

static __global__ void __launch_bounds__(BLOCK, 4) index_hold_kernel(hotbed_index_args a) {
    for (uint64_t i = hotbed_cuda_thread() / TILE * TILE; i < a.n; i += hotbed_cuda_threads())
        hotbed_call_hold(&a, i, TILE);
}

/* The tiles of a warp loop together, so that one lane adds to num_evicted for all of them: a
 * million additions to one word would take longer than the rest of the kernel. */
static __global__ void __launch_bounds__(BLOCK, 2) index_place_kernel(hotbed_index_args a) {
    for (uint64_t first = hotbed_cuda_thread() / WARP * WARP; first < a.n;
         first += hotbed_cuda_threads()) {
        const hotbed_index_result r =
            hotbed_call_place(&a, first + threadIdx.x % WARP / PLACE_TILE * PLACE_TILE, PLACE_TILE);
        if (a.num_evicted == NULL)
            continue;
        bool evicted = r.outcome == HOTBED_INDEX_EVICTED;
        __syncwarp();
        uint32_t all = hotbed_tile_ballot(WARP, evicted);
        if (all == 0)
            continue;
        uint64_t at = 0;
        if (threadIdx.x % WARP == 0)
            at = hotbed_add_relaxed_u64(a.num_evicted, hotbed_bits_set(all));
        at = hotbed_tile_shuffle_u64(WARP, at, 0);
        if (evicted)
            hotbed_call_evicted(
                &a, r, at + hotbed_bits_set(all & ((1U << threadIdx.x % WARP) - 1U)));
    }
}

static __global__ void __launch_bounds__(BLOCK) index_release_kernel(hotbed_index_args a) {
    for (uint64_t i = hotbed_cuda_thread(); i < a.n; i += hotbed_cuda_threads())
        hotbed_call_release(&a, i);
}

static __global__ void __launch_bounds__(BLOCK) index_erase_kernel(hotbed_index_args a) {
    for (uint64_t i = hotbed_cuda_thread() / TILE; i < a.n; i += hotbed_cuda_threads() / TILE)
        hotbed_call_erase(&a, i, TILE);
}

static __global__ void __launch_bounds__(BLOCK) index_pin_kernel(hotbed_index_args a) {
    for (uint64_t i = hotbed_cuda_thread(); i < a.n; i += hotbed_cuda_threads())
        hotbed_call_pin(&a, i);
}

static __global__ void __launch_bounds__(BLOCK) index_unpin_kernel(hotbed_index_args a) {
    for (uint64_t i = hotbed_cuda_thread(); i < a.n; i += hotbed_cuda_threads())
        hotbed_call_unpin(&a, i);
}

static __global__ void __launch_bounds__(BLOCK) index_clear_kernel(hotbed_index_args a) {
    uint64_t slots = hotbed_index_range_slots(a.range);
    for (uint64_t i = hotbed_cuda_thread(); i < slots; i += hotbed_cuda_threads())
        hotbed_call_clear(&a, i);
}

/* One addition per count, block and round, since a table may have hundreds of millions of slots. */
static __global__ void __launch_bounds__(BLOCK) index_export_keys_kernel(hotbed_index_args a) {
    __shared__ uint64_t base;
    __shared__ uint32_t occupied, pinned;
    uint64_t slots = hotbed_index_range_slots(a.range);
    for (uint64_t first = (uint64_t)blockIdx.x * BLOCK; first < slots;
         first += hotbed_cuda_threads()) {
        if (threadIdx.x == 0)
            occupied = pinned = 0;
        __syncthreads();
        uint64_t i = first + threadIdx.x;
        uint64_t meta = i < slots ? hotbed_call_meta(&a, i) : 0;
        uint32_t at = 0;
        if (meta != 0)
            at = atomicAdd(&occupied, 1U);
        if ((meta & HOTBED_META_PINS) != 0)
            atomicAdd(&pinned, 1U);
        __syncthreads();
        if (threadIdx.x == 0) {
            base = occupied == 0 ? 0 : hotbed_add_relaxed_u64(&a.export_counts[0], occupied);
            if (pinned != 0)
                hotbed_add_relaxed_u64(&a.export_counts[1], pinned);
        }
        __syncthreads();
        if (meta != 0)
            hotbed_call_export(&a, i, meta, base + at);
        __syncthreads();
    }
}

/* Define a call: its kernel with at least `threads` threads. */
#define CALL(call, threads)                                                                        \
    static hotbed_status call(const hotbed_index_args *args, hotbed_stream *stream) {              \
        return HOTBED_CUDA_LAUNCH(index_##call##_kernel, threads, BLOCK, WAVES, stream, *args);    \
    }

CALL(find, args->n)
CALL(claim, args->n)
CALL(hold, args->n)
CALL(place, args->n)
CALL(release, args->n)
CALL(erase, args->n *TILE)
CALL(pin, args->n)
CALL(unpin, args->n)
CALL(clear, hotbed_index_range_slots(args->range))
CALL(export_keys, hotbed_index_range_slots(args->range))

const hotbed_index_kernels hotbed_index_kernels_cuda = {
    find, claim, hold, place, release, erase, pin, unpin, clear, export_keys,
};
