/* bench/workload_digest.c - digests of whole storages. */
#include "bench/workload.h"
#include "bench/workload_rows.h"

#include "base/error.h"
#include "base/host_launch.h"
#include "base/port.h"

#include <stdlib.h>

enum { CHUNK = 1 << 15 }; /* rows read at once */

/* Two hashes of a stream of words.  The hashes of rows are added, so that the order of rows does
 * not matter. */
static void hash_words(uint64_t hash[2], const void *data, size_t bytes) {
    const char *p = data;
    for (size_t i = 0; i < bytes; i += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, p + i, sizeof word);
        hash[0] = (hash[0] ^ word) * 0x9e3779b97f4a7c15U;
        hash[0] ^= hash[0] >> 29;
        hash[1] = (hash[1] + word) * 0xc2b2ae3d27d4eb4fU;
        hash[1] ^= hash[1] >> 31;
    }
}

/* Host memory of a digest. */
typedef struct digest_buffers {
    workload_row_buffers rows;
    hotbed_stream *host; /* its threads compute the hashes */
    uint64_t *keys;
    uint64_t *stored; /* [CHUNK] keys in the storage */
    float *weights;   /* [CHUNK][dim] */
    void *states[2];  /* [CHUNK][state_bytes] */
} digest_buffers;

typedef struct hash_args {
    const digest_buffers *buffers;
    const uint64_t *keys;
    workload_row_form form;
    uint32_t table;
    uint64_t *sums; /* [2] */
} hash_args;

/* Hash rows [begin, end) of a chunk. */
static void hash_body(const void *args, uint64_t begin, uint64_t end) {
    const hash_args *a = args;
    uint64_t sums[2] = {0, 0};
    for (uint64_t i = begin; i < end; i++) {
        uint64_t key = a->keys[i];
        uint64_t hash[2] = {workload_mix(key + a->table), workload_mix(~key - a->table)};
        hash_words(hash, a->buffers->weights + i * a->form.dim, a->form.dim * sizeof(float));
        for (uint32_t s = 0; s < a->form.states; s++)
            hash_words(
                hash, (const char *)a->buffers->states[s] + i * a->form.state_bytes[s],
                a->form.state_bytes[s]);
        sums[0] += workload_mix(hash[0]);
        sums[1] += workload_mix(hash[1]);
    }
    for (int s = 0; s < 2; s++) /* the host reads them after a sync */
        (void)hotbed_add_relaxed_u64(&a->sums[s], sums[s]);
}

static hotbed_status digest_chunk(
    workload_run *run, uint32_t table, const uint64_t *keys, uint64_t n, digest_buffers *buffers,
    workload_digest *out) {
    for (uint64_t i = 0; i < n; i++)
        buffers->stored[i] = workload_stored_key(run, table, keys[i]);
    const workload_place place = workload_place_of(run, table);
    HOTBED_TRY(workload_rows_read(
        place.storage, place.table, n, buffers->stored, &buffers->rows, buffers->weights,
        buffers->states, run->stream));
    const hash_args args = {buffers, keys, buffers->rows.form, table, out->table};
    HOTBED_TRY(hotbed_host_launch(buffers->host, n, 1024, hash_body, &args, sizeof args));
    out->rows += n;
    return hotbed_stream_sync(buffers->host);
}

/* The distinct keys of table t in all batches that the run has trained on, and of its rank, in any
 * order. */
static hotbed_status keys_of_input(
    const workload_run *run, uint32_t t, uint64_t *keys, uint64_t *n) {
    const workload_shape *shape = &run->input->shape;
    const uint64_t steps = run->steps * (run->ranks > 0 ? run->ranks : 1);
    uint8_t *seen = calloc(shape->table_rows[t], 1);
    if (!seen)
        return hotbed_fail(HOTBED_ERR_MEMORY, "digest: no memory");
    for (uint64_t b = 0; b < shape->batches && b < steps; b++) {
        const int64_t *of = run->input->keys + b * workload_keys_a_step(shape);
        for (uint64_t i = workload_first_key(shape, t); i < workload_first_key(shape, t + 1); i++) {
            if (!seen[of[i]] && workload_owns(run, t, (uint64_t)of[i]))
                keys[(*n)++] = (uint64_t)of[i];
            seen[of[i]] = 1;
        }
    }
    free(seen);
    return HOTBED_OK;
}

/* Digest one table.  Of a static table, which has rows for keys of no batch too, only rows with
 * keys of batches, as a hash table has them. */
static hotbed_status digest_table(
    workload_run *run, uint32_t table, digest_buffers *buffers, workload_digest *out) {
    uint64_t n = 0;
    uint64_t most = run->input->shape.table_rows[table];
    if (run->input->shape.pooled)
        HOTBED_TRY(keys_of_input(run, table, buffers->keys, &n));
    else
        HOTBED_TRY(hotbed_storage_export_keys(
            run->storage, table, most, buffers->keys, NULL, &n, run->stream));
    for (uint64_t first = 0; first < n; first += CHUNK) {
        uint64_t part = n - first < CHUNK ? n - first : CHUNK;
        HOTBED_TRY(digest_chunk(run, table, buffers->keys + first, part, buffers, out));
    }
    return HOTBED_OK;
}

hotbed_status workload_run_digest_output(workload_run *run, uint64_t *out) {
    float *output = NULL;
    uint64_t hash[2] = {1, 2};
    HOTBED_TRY(workload_read_output(run, &output));
    hash_words(hash, output, run->output.bytes);
    free(output);
    *out = hash[0] ^ hash[1];
    return HOTBED_OK;
}

hotbed_status workload_run_digest(workload_run *run, workload_digest *out) {
    const workload_shape *shape = &run->input->shape;
    size_t chunk = (size_t)CHUNK * shape->dim;
    digest_buffers buffers = {.keys = malloc(shape->rows * sizeof(uint64_t))};
    buffers.stored = malloc(CHUNK * sizeof *buffers.stored);
    buffers.weights = malloc(3 * chunk * sizeof(float));
    *out = (workload_digest){0};
    hotbed_status status = HOTBED_OK;
    if (!buffers.keys || !buffers.stored || !buffers.weights)
        status = hotbed_fail(HOTBED_ERR_MEMORY, "digest: no memory");
    else
        status = hotbed_stream_create(HOTBED_BACKEND_HOST, 0, &buffers.host);
    if (status == HOTBED_OK)
        status = workload_rows_alloc(
            CHUNK, workload_form_of(run->what, shape), run->stream, &buffers.rows);
    if (status == HOTBED_OK) {
        buffers.states[0] = buffers.weights + chunk;
        buffers.states[1] = buffers.weights + 2 * chunk;
        for (uint32_t t = 0; t < shape->tables && status == HOTBED_OK; t++)
            status = digest_table(run, t, &buffers, out);
        workload_rows_free(&buffers.rows);
    }
    hotbed_stream_destroy(buffers.host);
    free(buffers.keys);
    free(buffers.stored);
    free(buffers.weights);
    return status == HOTBED_OK ? workload_run_digest_output(run, &out->output) : status;
}
