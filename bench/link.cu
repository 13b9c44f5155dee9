/* bench/link.cu - ways to move rows over the link. */
#include "bench/link.h"

#include "base/cuda_launch.h"
#include "storage/tier_kernels.h"

#include <cuda_pipeline.h>

namespace {

enum { ROW = 32, LINK_BLOCK = BENCH_LINK_WARPS * 32, BLOCK = 256 };

__device__ uint8_t *from_of(const bench_link &l, bench_link_row row) {
    return l.writes ? l.device + (uint64_t)row.device * l.bytes
                    : l.host + (uint64_t)row.host * l.bytes;
}

__device__ uint8_t *to_of(const bench_link &l, bench_link_row row) {
    return l.writes ? l.host + (uint64_t)row.host * l.bytes
                    : l.device + (uint64_t)row.device * l.bytes;
}

/* --- loads: as haul_rows() of storage/tier.cu ------------------------------------------------------ */

enum { TURN = 8 };

__global__ void __launch_bounds__(LINK_BLOCK) loads_kernel(const bench_link l) {
    const uint32_t lane = hotbed_tile_rank(ROW);
    for (;;) {
        uint32_t first = lane == 0 ? atomicAdd(l.taken, (uint32_t)TURN) : 0;
        first = hotbed_tile_shuffle_u32(ROW, first, 0);
        if (first >= l.n)
            return;
        const uint32_t count = l.n - first < TURN ? l.n - first : TURN;
        bench_link_row mine = {0, 0};
        if (lane < count)
            mine = l.rows[first + lane];
        for (uint32_t k = 0; k < count; k++) {
            const bench_link_row row = {
                hotbed_tile_shuffle_u32(ROW, mine.host, k),
                hotbed_tile_shuffle_u32(ROW, mine.device, k)};
            hotbed_row_copy(to_of(l, row), from_of(l, row), l.bytes, ROW);
            if (l.writes)
                hotbed_fence();
        }
    }
}

/* --- bulk: one warp a block, and shared memory so large that the SM has no room for another -------- */

/* Rows go through a ring of stages, up to 32 rows each, a lane a row; all rows of a stage complete on its mbarrier.
 * Round t of a block is in stage t mod `stages`:
 *
 *   issue    the stage's mbarrier is told how many bytes come, and each lane starts the copy of its row into shared memory
 *   store    once they are there, each lane starts the copy of its row out of it: a bulk group of the lane
 *   again    once the lane's group of LAG rounds ago has been read, that stage is issued for a later round
 *
 * so `stages` - LAG rounds are on their way in.  Rows enter and leave shared memory by the async proxy alone, in an
 * order that mbarriers and groups make: the only fence is of the mbarriers, which are initialised by stores. */
enum { LAG = 2, STAGE_BYTES = 16 << 10, STAGES_MOST = 16 };

/* Which rows a round has is read AHEAD rounds before it is issued, and needed until its rows are stored. */
enum { AHEAD = 8, ROUNDS = 32 };

static_assert(STAGES_MOST + AHEAD <= ROUNDS, "numbers are kept until they were used");

typedef struct bulk_shared {
    uint64_t full[STAGES_MOST]; /* mbarriers */
    bench_link_row rows[ROUNDS][32];
} bulk_shared;

static_assert(sizeof(bulk_shared) % 128 == 0, "slots follow it");

typedef struct bulk_args {
    bench_link link;
    uint32_t rows, stages; /* rows of a stage */
} bulk_args;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

/* A wait that takes longer will never end: some 10 seconds. */
const long long CYCLES_MOST = 20000000000;

__device__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* The phase completes with one arrival and all bytes. */
__device__ void full_init(uint64_t *full) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(full)) : "memory");
}

__device__ void full_expect(uint64_t *full, uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)),
        "r"(bytes)
        : "memory");
}

__device__ bool full_passed(uint64_t *full, uint32_t parity) {
    uint32_t passed;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(passed)
                 : "r"(shared_address(full)), "r"(parity)
                 : "memory");
    return passed != 0;
}

__device__ void full_wait(uint64_t *full, uint32_t parity) {
    const long long start = clock64();
    while (!full_passed(full, parity))
        if (clock64() - start > CYCLES_MOST)
            __trap();
}

__device__ void bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *full) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(full))
        : "memory");
}

__device__ void bulk_store(void *to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}

/* One block's part: rounds blockIdx.x, blockIdx.x + gridDim.x, ... of all. */
typedef struct bulk_part {
    const bulk_args *a;
    bulk_shared *s;
    uint8_t *slots; /* [stages][rows][bytes]; this lane's of stage 0 */
    uint32_t lane, turns;
} bulk_part;

/* Rows of the block's round t, from *first on. */
__device__ uint32_t rows_of(const bulk_part &p, uint32_t t, uint32_t *first) {
    *first = (blockIdx.x + t * gridDim.x) * p.a->rows;
    const uint32_t left = p.a->link.n - *first;
    return left < p.a->rows ? left : p.a->rows;
}

/* Begin to read the numbers of round t's rows; each lane reads its own. */
__device__ void read_numbers(const bulk_part &p, uint32_t t) {
    uint32_t first = 0;
    if (t < p.turns && p.lane < rows_of(p, t, &first))
        __pipeline_memcpy_async(
            &p.s->rows[t % ROUNDS][p.lane], &p.a->link.rows[first + p.lane],
            sizeof(bench_link_row));
    __pipeline_commit();
}

/* Numbers are on their way up to round t + AHEAD - 1. */
__device__ void issue(const bulk_part &p, uint32_t t, uint32_t stage) {
    read_numbers(p, t + AHEAD);
    __pipeline_wait_prior(AHEAD);
    if (t >= p.turns)
        return;
    const uint32_t bytes = p.a->link.bytes;
    uint32_t first = 0;
    const uint32_t count = rows_of(p, t, &first);
    if (p.lane == 0)
        full_expect(&p.s->full[stage], count * bytes);
    __syncwarp(); /* and no lane waits for the phase before any more */
    if (p.lane < count)
        bulk_load(
            p.slots + stage * p.a->rows * bytes, from_of(p.a->link, p.s->rows[t % ROUNDS][p.lane]),
            bytes, &p.s->full[stage]);
}

__device__ void store(const bulk_part &p, uint32_t t, uint32_t stage) {
    const uint32_t bytes = p.a->link.bytes;
    uint32_t first = 0;
    if (p.lane < rows_of(p, t, &first))
        bulk_store(
            to_of(p.a->link, p.s->rows[t % ROUNDS][p.lane]), p.slots + stage * p.a->rows * bytes,
            bytes);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__global__ void __launch_bounds__(32) bulk_kernel(const __grid_constant__ bulk_args a) {
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t rounds = (a.link.n + a.rows - 1) / a.rows;
    bulk_part p = {&a, (bulk_shared *)shared, shared + sizeof(bulk_shared), threadIdx.x, 0};
    p.slots += p.lane * a.link.bytes;
    if (blockIdx.x < rounds)
        p.turns = (rounds - blockIdx.x + gridDim.x - 1) / gridDim.x;
    if (p.lane < a.stages)
        full_init(&p.s->full[p.lane]);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    for (uint32_t t = 0; t < AHEAD; t++)
        read_numbers(p, t);
    for (uint32_t t = 0; t < a.stages; t++)
        issue(p, t, t);
    uint32_t stage = 0, parity = 0, again = 0;
    for (uint32_t t = 0; t < p.turns; t++) {
        full_wait(&p.s->full[stage], parity);
        store(p, t, stage);
        stage++;
        if (stage == a.stages) {
            stage = 0;
            parity ^= 1;
        }
        if (t < LAG)
            continue;
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"((int)LAG) : "memory");
        issue(p, t - LAG + a.stages, again);
        again = again + 1 == a.stages ? 0 : again + 1;
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); /* all is written */
}

#else

__global__ void bulk_kernel(const __grid_constant__ bulk_args a) { /* see bench_link_bulk() */
    __trap();
}

#endif

/* --- what rows hold -------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(BLOCK) words_kernel(const bench_link l, uint32_t *wrong) {
    const uint32_t words = l.bytes / sizeof(uint64_t);
    for (uint64_t i = hotbed_cuda_thread(); i < (uint64_t)l.n * words; i += hotbed_cuda_threads()) {
        const bench_link_row row = l.rows[i / words];
        const uint32_t w = (uint32_t)(i % words);
        uint64_t *at = (uint64_t *)(void *)(l.device + (uint64_t)row.device * l.bytes) + w;
        const uint64_t word = bench_link_word(row.host, w);
        if (wrong == NULL)
            *at = word;
        else if (*at != word)
            atomicAdd(wrong, 1U);
    }
}

hotbed_status launch_words(const bench_link *link, uint32_t *wrong, hotbed_stream *stream) {
    const unsigned blocks =
        hotbed_cuda_blocks(stream, (uint64_t)link->n * (link->bytes / sizeof(uint64_t)), BLOCK, 1);
    words_kernel<<<blocks, BLOCK, 0, hotbed_cuda_native(stream)>>>(*link, wrong);
    return hotbed_cuda_launched("words_kernel");
}

} // namespace

hotbed_status bench_link_loads(const bench_link *link, uint32_t warps, hotbed_stream *stream) {
    cudaStream_t native = hotbed_cuda_native(stream);
    HOTBED_TRY(hotbed_cuda_check(
        cudaMemsetAsync(link->taken, 0, sizeof *link->taken, native), "cudaMemsetAsync"));
    loads_kernel<<<warps / BENCH_LINK_WARPS, LINK_BLOCK, 0, native>>>(*link);
    return hotbed_cuda_launched("loads_kernel");
}

hotbed_status bench_link_bulk(const bench_link *link, uint32_t sms, hotbed_stream *stream) {
    cudaStream_t native = hotbed_cuda_native(stream);
    const int device = hotbed_stream_device(stream);
    int major = 0, most = 0;
    HOTBED_TRY(hotbed_cuda_check(
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "cudaDeviceGetAttribute"));
    if (major < 9)
        return hotbed_fail(HOTBED_ERR_UNSUPPORTED, "link: no bulk copies before Hopper");
    HOTBED_TRY(hotbed_cuda_check(
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "cudaDeviceGetAttribute"));
    HOTBED_TRY(hotbed_cuda_check(
        cudaFuncSetAttribute(bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
        "cudaFuncSetAttribute"));
    bulk_args args = {*link, STAGE_BYTES / link->bytes, 0};
    args.rows = args.rows == 0 ? 1 : args.rows > 32 ? 32 : args.rows;
    args.stages = ((uint32_t)most - (uint32_t)sizeof(bulk_shared)) / (args.rows * link->bytes);
    if (args.stages > STAGES_MOST)
        args.stages = STAGES_MOST;
    bulk_kernel<<<sms, 32, (size_t)most, native>>>(args);
    return hotbed_cuda_launched("bulk_kernel");
}

hotbed_status bench_link_fill(const bench_link *link, hotbed_stream *stream) {
    return launch_words(link, NULL, stream);
}

hotbed_status bench_link_check(const bench_link *link, uint32_t *wrong, hotbed_stream *stream) {
    return launch_words(link, wrong, stream);
}
