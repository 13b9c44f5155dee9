/* dist/balance.c - batch balance: gather the workloads of all ranks, compute a partition, exchange
 * samples. */
#include "hotbed/balance.h"

#include "base/carve.h"
#include "base/check.h"
#include "base/error.h"
#include "base/options.h"
#include "base/sort.h"
#include "base/stream.h"
#include "dist/balance_kernels.h"
#include "dist/comm/comm.h"
#include "dist/exchange/kjt.h"
#include "dist/exchange/partition.h"

#define ITEMS_MOST     ((uint64_t)1 << 30)
#define ROW_BYTES_MOST ((uint64_t)1 << 30) /* so ITEMS_MOST samples have at most 2^60 bytes */

/* Memory that a callback of the stream reads and writes: all of it pinned. */
typedef struct plan {
    uint32_t world, rank, batch_size;
    const uint64_t *gathered; /* [world][batch_size + 1] workloads, then how many are real */
    uint64_t *workloads;      /* [world * batch_size] */
    uint32_t *items;          /* [world * batch_size] */
    /* [batch_size + 2] of this rank: its samples, real ones first; how many are real; unused */
    uint32_t *samples;
    uint64_t *workload; /* sum of their workloads */
    void *scratch;
} plan;

struct hotbed_balance {
    hotbed_comm *comm;
    hotbed_balance_options options;
    uint32_t rank, world;
    hotbed_backend backend;
    int device;
    const hotbed_balance_kernels *kernels;
    hotbed_memory memory, pinned;
    plan plan;
    uint32_t *kjt_starts, *bad, *bases; /* of the new batch */
    uint32_t *sources;
    uint64_t *workloads, *gathered; /* device: [batch_size + 1], and [world] of them */
    uint8_t *message;               /* this rank's features */
    uint32_t *samples;              /* device: [batch_size + 2] */
    uint64_t *workload;             /* device */
    uint8_t *all_rows;
    void *scratch;
    size_t scratch_bytes;
    hotbed_balance_view view;
    uint32_t real; /* samples of this rank's batch */
    bool started, finished;
};

/* --- create and destroy ------------------------------------------------------------------------------ */

static hotbed_status check_options(const hotbed_balance_options *o, uint32_t world) {
    uint64_t rows = (uint64_t)o->num_features * o->batch_size;
    if (o->num_features < 1 || o->batch_size < 1 || rows > ITEMS_MOST ||
        (uint64_t)o->batch_size * world > ITEMS_MOST)
        return hotbed_fail_value(
            HOTBED_ERR_ARGUMENT, o->num_features < 1 ? "num_features" : "batch_size",
            o->num_features < 1 ? 0 : o->batch_size,
            "balance: %u features of %u samples on %u ranks are not in [1, 2^30]", o->num_features,
            o->batch_size, world);
    HOTBED_TRY(hotbed_check_range("max_keys", o->max_keys, 1, ITEMS_MOST));
    HOTBED_TRY(hotbed_check_range("max_new_keys", o->max_new_keys, 0, ITEMS_MOST));
    HOTBED_TRY(hotbed_check_range("max_row_bytes", o->max_row_bytes, 0, ROW_BYTES_MOST));
    return HOTBED_OK;
}

static size_t starts_bytes(const hotbed_balance *b) {
    return ((size_t)b->options.num_features * b->options.batch_size + 1) * sizeof(uint32_t);
}

/* Lay out the device's arrays; called twice, first to count their bytes. */
static size_t carve_device(hotbed_balance *b, uint8_t *base) {
    const hotbed_balance_options *o = &b->options;
    hotbed_balance_view *v = &b->view;
    hotbed_carve carve = {base, 0};
    size_t workloads = ((size_t)o->batch_size + 1) * sizeof(uint64_t);
    b->kjt_starts = hotbed_carve_take(&carve, starts_bytes(b));
    b->bad = hotbed_carve_take(&carve, sizeof *b->bad);
    b->bases = hotbed_carve_take(&carve, ((size_t)o->num_features + 1) * sizeof *b->bases);
    b->sources = hotbed_carve_take(&carve, o->max_keys * sizeof *b->sources);
    b->workloads = hotbed_carve_take(&carve, workloads);
    b->gathered = hotbed_carve_take(&carve, workloads * b->world);
    b->message = hotbed_carve_take(&carve, v->message_bytes);
    b->samples = hotbed_carve_take(&carve, ((size_t)o->batch_size + 2) * sizeof *b->samples);
    b->workload = hotbed_carve_take(&carve, sizeof *b->workload);
    b->all_rows = hotbed_carve_take(&carve, (size_t)o->batch_size * b->world * o->max_row_bytes);
    b->scratch = hotbed_carve_take(&carve, b->scratch_bytes);
    v->messages = hotbed_carve_take(&carve, v->message_bytes * b->world);
    v->starts = hotbed_carve_take(&carve, starts_bytes(b));
    v->offsets = hotbed_carve_take(&carve, 2 * starts_bytes(b));
    v->keys = hotbed_carve_take(&carve, v->bound * sizeof *v->keys);
    v->weights = o->weighted ? hotbed_carve_take(&carve, v->bound * sizeof *v->weights) : NULL;
    v->samples = b->samples;
    return carve.used;
}

static size_t carve_pinned(hotbed_balance *b, uint8_t *base) {
    hotbed_carve carve = {base, 0};
    plan *p = &b->plan;
    size_t items = (size_t)b->world * b->options.batch_size;
    p->gathered = hotbed_carve_take(&carve, (items + b->world) * sizeof(uint64_t));
    p->workloads = hotbed_carve_take(&carve, items * sizeof(uint64_t));
    p->items = hotbed_carve_take(&carve, items * sizeof(uint32_t));
    p->samples = hotbed_carve_take(&carve, ((size_t)b->options.batch_size + 2) * sizeof(uint32_t));
    p->workload = hotbed_carve_take(&carve, sizeof *p->workload);
    p->scratch =
        hotbed_carve_take(&carve, hotbed_partition_scratch(b->world, b->options.batch_size));
    return carve.used;
}

static hotbed_status create(hotbed_balance *b, hotbed_stream *stream) {
    const hotbed_balance_options *o = &b->options;
    hotbed_balance_view *v = &b->view;
    uint64_t most = b->world * o->max_keys, rows = (uint64_t)o->num_features * o->batch_size;
    v->shape = (hotbed_message_shape){(uint32_t)rows, o->weighted ? 1 : 0, 0};
    v->message_bytes = hotbed_message_bytes(v->shape, o->max_keys);
    v->capacity = o->max_keys;
    v->num_features = o->num_features;
    v->batch_size = o->batch_size;
    v->world = b->world;
    v->bound = o->max_new_keys == 0 || o->max_new_keys > most ? most : o->max_new_keys;
    v->bound = v->bound > ITEMS_MOST ? ITEMS_MOST : v->bound;
    b->scratch_bytes = hotbed_kjt_scratch(stream, rows);
    size_t bytes = carve_device(b, NULL);
    HOTBED_TRY(hotbed_memory_alloc(stream, HOTBED_MEMORY_DEVICE, bytes, NULL, &b->memory));
    (void)carve_device(b, b->memory.data);
    HOTBED_TRY(
        hotbed_memory_alloc(stream, HOTBED_MEMORY_PINNED, carve_pinned(b, NULL), NULL, &b->pinned));
    (void)carve_pinned(b, b->pinned.data);
    b->plan.world = b->world;
    b->plan.rank = b->rank;
    b->plan.batch_size = o->batch_size;
    /* Unused capacity of messages travels too, so it is cleared. */
    HOTBED_TRY(hotbed_fill(b->memory.data, 0, bytes, stream));
    return hotbed_stream_finish(stream);
}

hotbed_status hotbed_balance_create(
    const hotbed_balance_options *options, hotbed_comm *comm, hotbed_stream *stream,
    hotbed_balance **out) {
    hotbed_balance_options o;
    HOTBED_TRY_OUT(out);
    HOTBED_TRY(HOTBED_OPTIONS_READ(&o, hotbed_balance_options, max_new_keys, options));
    HOTBED_TRY(hotbed_check_pointer("comm", comm));
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    HOTBED_TRY(hotbed_comm_check_stream(comm, stream));
    HOTBED_TRY(check_options(&o, hotbed_comm_size(comm)));
    if (o.max_row_bytes == 0)
        o.max_row_bytes = 64;
    hotbed_balance *b = hotbed_new(sizeof *b);
    HOTBED_TRY_MEMORY(b, "a balance");
    b->comm = comm;
    b->options = o;
    b->rank = hotbed_comm_rank(comm);
    b->world = hotbed_comm_size(comm);
    b->backend = hotbed_stream_backend(stream);
    b->device = hotbed_stream_device(stream);
    b->kernels = HOTBED_OF_BACKEND(b->backend, hotbed_balance_kernels);
    hotbed_status status = create(b, stream);
    if (status == HOTBED_OK)
        *out = b;
    else
        hotbed_balance_destroy(b);
    return status;
}

void hotbed_balance_destroy(hotbed_balance *balance) {
    if (balance == NULL)
        return;
    hotbed_memory_free(&balance->memory);
    hotbed_memory_free(&balance->pinned);
    hotbed_delete(balance);
}

/* --- the partition ------------------------------------------------------------------------------------- */

/* On a callback thread of the stream: choose this rank's set, real samples first. */
static void partition_call(void *argument) {
    const plan *p = argument;
    uint32_t n = p->batch_size;
    for (uint32_t r = 0; r < p->world; r++)
        memcpy(
            p->workloads + (size_t)r * n, p->gathered + (size_t)r * (n + 1),
            n * sizeof *p->workloads);
    hotbed_partition(p->world, n, p->workloads, p->items, p->scratch);
    const uint32_t *set = p->items + (size_t)p->rank * n;
    uint32_t filled = 0;
    *p->workload = 0;
    for (int real = 1; real >= 0; real--) {
        for (uint32_t i = 0; i < n; i++) {
            uint32_t rank = set[i] / n;
            if ((set[i] - rank * n < p->gathered[(size_t)rank * (n + 1) + n]) == (real == 1))
                p->samples[filled++] = set[i];
        }
        if (real == 1)
            p->samples[n] = filled;
    }
    for (uint32_t i = 0; i < n; i++)
        *p->workload += p->workloads[set[i]];
}

/* --- start and finish ------------------------------------------------------------------------------------- */

/* The communicator may accept streams of several backends and devices, but the memory is of one. */
static hotbed_status check_stream(const hotbed_balance *b, const hotbed_stream *stream) {
    HOTBED_TRY(hotbed_comm_check_stream(b->comm, stream));
    return hotbed_check_stream(stream, "balance", b->backend, b->device);
}

static hotbed_status check_kjt(const hotbed_balance *b, const hotbed_kjt *kjt) {
    const hotbed_balance_options *o = &b->options;
    if (kjt->num_features != o->num_features)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "num_features", kjt->num_features, o->num_features,
            "kjt: %u features; the balance takes %u", kjt->num_features, o->num_features);
    if (kjt->batch_size > o->batch_size)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "batch_size", kjt->batch_size, o->batch_size,
            "kjt: %u samples; the balance takes up to %u", kjt->batch_size, o->batch_size);
    if (kjt->num_keys > o->max_keys)
        return hotbed_fail_limit(
            HOTBED_ERR_ARGUMENT, "num_keys", kjt->num_keys, o->max_keys,
            "kjt: %llu keys; the balance takes up to %llu", (unsigned long long)kjt->num_keys,
            (unsigned long long)o->max_keys);
    if (kjt->weights != NULL && !o->weighted)
        return hotbed_fail(
            HOTBED_ERR_ARGUMENT, "kjt: it has weights, but the balance is not weighted");
    return HOTBED_OK;
}

/* Write this rank's features as a message: rows of all batch_size samples. */
static hotbed_status write_message(
    hotbed_balance *b, const hotbed_kjt *kjt, hotbed_stream *stream) {
    const hotbed_balance_view *v = &b->view;
    hotbed_pick_view pick = {
        .kjt = hotbed_kjt_view_of(kjt, b->kjt_starts, b->bad, stream),
        .bases = kjt->strides == NULL ? NULL : b->bases,
        .stride = kjt->batch_size,
        .num_features = v->num_features,
        .batch_size = v->batch_size,
        .starts = hotbed_message_starts(b->message),
        .keys = hotbed_message_keys(b->message, v->shape),
        .sources = b->sources,
        .weights = v->shape.weighted == 0
                       ? NULL
                       : hotbed_message_weights(b->message, v->shape, v->capacity),
    };
    if (kjt->strides != NULL)
        HOTBED_TRY(hotbed_kjt_put_bases(kjt, b->bases, stream));
    HOTBED_TRY(hotbed_kjt_start(&pick.kjt, b->scratch, b->scratch_bytes, stream));
    return hotbed_kjt_pick(&pick, b->scratch, b->scratch_bytes, stream);
}

hotbed_status hotbed_balance_start(
    hotbed_balance *balance, const hotbed_kjt *kjt, const uint64_t *workloads,
    hotbed_stream *stream) {
    hotbed_kjt k;
    HOTBED_TRY(hotbed_check_pointer("balance", balance));
    HOTBED_TRY(hotbed_check_pointer("stream", stream));
    hotbed_balance *b = balance;
    HOTBED_TRY(check_stream(b, stream));
    HOTBED_TRY(hotbed_kjt_read(kjt, &k));
    HOTBED_TRY(check_kjt(b, &k));
    size_t bytes = ((size_t)b->options.batch_size + 1) * sizeof(uint64_t);
    HOTBED_TRY(write_message(b, &k, stream));
    hotbed_workload_args args = {
        .given = workloads,
        .starts = hotbed_message_starts(b->message),
        .bad = b->bad,
        .num_features = b->options.num_features,
        .batch_size = b->options.batch_size,
        .real = k.batch_size,
        .workloads = b->workloads,
    };
    HOTBED_TRY(b->kernels->workloads(&args, stream));
    HOTBED_TRY(hotbed_comm_all_gather(b->comm, bytes, b->workloads, b->gathered, stream));
    HOTBED_TRY(
        hotbed_copy((void *)(uintptr_t)b->plan.gathered, b->gathered, bytes * b->world, stream));
    HOTBED_TRY(hotbed_stream_call(stream, partition_call, &b->plan));
    HOTBED_TRY(hotbed_copy(
        b->samples, b->plan.samples, ((size_t)b->options.batch_size + 2) * sizeof(uint32_t),
        stream));
    HOTBED_TRY(hotbed_copy(b->workload, b->plan.workload, sizeof *b->workload, stream));
    HOTBED_TRY(hotbed_comm_all_gather(
        b->comm, b->view.message_bytes, b->message, b->view.messages, stream));
    b->real = k.batch_size;
    b->started = true;
    b->finished = false;
    return HOTBED_OK;
}

hotbed_status hotbed_balance_finish(
    hotbed_balance *balance, hotbed_balanced *out, hotbed_stream *stream) {
    if (balance == NULL || stream == NULL)
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "balance or stream is NULL");
    HOTBED_TRY(hotbed_output_check(out, "hotbed_balanced"));
    hotbed_balance *b = balance;
    HOTBED_TRY(check_stream(b, stream));
    if (!b->started)
        return hotbed_fail(HOTBED_ERR_STATE, "the balance was not started");
    hotbed_balance_view *v = &b->view;
    HOTBED_TRY(b->kernels->lengths(v, stream));
    HOTBED_TRY(hotbed_scan(
        (uint64_t)v->shape.rows + 1, v->starts, v->starts, b->scratch, b->scratch_bytes, stream));
    HOTBED_TRY(b->kernels->fill(v, stream));
    hotbed_balanced made = {
        .samples = b->samples,
        .num_samples = b->samples + v->batch_size,
        .workload = b->workload,
        .kjt =
            {
                .num_features = v->num_features,
                .batch_size = v->batch_size,
                .num_keys = v->bound,
                .keys = v->keys,
                .offsets = v->offsets,
                .weights = v->weights,
            },
    };
    made.kjt.size = out->size < sizeof made ? out->size : (uint32_t)sizeof made;
    made.kjt.size -= (uint32_t)offsetof(hotbed_balanced, kjt);
    hotbed_output_write(out, &made, sizeof made);
    b->finished = true;
    return HOTBED_OK;
}

hotbed_status hotbed_balance_rows(
    hotbed_balance *balance, uint64_t row_bytes, const void *rows, void *new_rows,
    hotbed_stream *stream) {
    if (balance == NULL || new_rows == NULL || stream == NULL ||
        (rows == NULL && balance->real > 0))
        return hotbed_fail(HOTBED_ERR_ARGUMENT, "balance, rows, new_rows or stream is NULL");
    hotbed_balance *b = balance;
    HOTBED_TRY(check_stream(b, stream));
    HOTBED_TRY(hotbed_check_range("row_bytes", row_bytes, 1, b->options.max_row_bytes));
    if (!b->finished)
        return hotbed_fail(HOTBED_ERR_STATE, "the balance was not finished");
    const uint32_t n = b->options.batch_size;
    /* All ranks send n rows; `rows` has only those of this rank's samples. */
    uint8_t *own = b->all_rows + (uint64_t)b->rank * n * row_bytes;
    HOTBED_TRY(hotbed_copy(own, rows, b->real * row_bytes, stream));
    HOTBED_TRY(hotbed_comm_all_gather(b->comm, n * row_bytes, own, b->all_rows, stream));
    return b->kernels->rows(
        n, row_bytes, b->all_rows, b->samples, b->samples + n, new_rows, stream);
}
