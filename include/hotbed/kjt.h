/* hotbed/kjt.h - a keyed jagged tensor: for each feature and sample a bag of keys.
 *
 * Needed to pass batches to sharded collections (hotbed/sharded.h) and to batch balance
 * (hotbed/balance.h). A *row* is the bag of one feature and sample. Rows are feature-major: first
 * the rows of feature 0 in the order of its samples, then the rows of feature 1, and so on; keys
 * are in the order of the rows. Every feature has batch_size samples, or, with `strides`, a number
 * of its own (a variable batch), which may differ between ranks. Lengths or offsets give the number
 * of keys of each row.
 *
 * Two features of 1024 samples, with arrays in device memory:
 *
 *     static const char *const names[] = {"user", "item"};
 *     hotbed_kjt kjt;
 *     hotbed_kjt_init(&kjt);
 *     kjt.num_features = 2;
 *     kjt.features = names;
 *     kjt.batch_size = 1024;
 *     kjt.num_keys = num_keys;
 *     kjt.keys = keys;
 *     kjt.lengths = lengths;
 *     status = hotbed_kjt_check(&kjt);
 *     status = hotbed_sharded_input_dist(context, &kjt, stream);
 *
 * Arrays of keys, lengths, offsets and weights are in device memory, names and strides in host
 * memory. The functions that use a batch are asynchronous and check it on the device: invalid
 * lengths or offsets latch a fault RANGE on the stream, which contains the number of the row, and
 * the batch then counts as empty. hotbed_kjt_validate() waits, and reports feature and sample.
 *
 * Modelled on TorchRec's KeyedJaggedTensor. */
#ifndef HOTBED_KJT_H
#define HOTBED_KJT_H

#include "hotbed/status.h"
#include "hotbed/storage.h"
#include "hotbed/stream.h"

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A view of a batch; it owns nothing. Call hotbed_kjt_init(), then set fields. */
typedef struct hotbed_kjt {
    uint32_t size;               /* set by init */
    uint32_t num_features;       /* 1 .. 65535 */
    const char *const *features; /* [num_features] names; NULL: features are known by number only */
    uint32_t batch_size; /* samples of each feature; with strides: the largest stride, or more */
    const uint32_t *strides; /* [num_features] samples of each feature; NULL: batch_size each */
    uint64_t num_keys; /* length of `keys`: an upper bound, since the rows give the exact number */
    const void *keys;  /* [num_keys] int64 or uint64 */
    const int64_t *lengths; /* [rows] keys of each row, or NULL */
    /* [rows + 1] row r is keys[offsets[r]] up to keys[offsets[r + 1]], offsets[0] = 0; has
     * precedence over lengths. Neither: one key per row. */
    const int64_t *offsets;
    const float *weights; /* [num_keys] weights of the keys; NULL: none */
} hotbed_kjt;

/* Set every field to its default. `size` is the caller's sizeof(hotbed_kjt); C programs call
 * hotbed_kjt_init(), which passes it. */
HOTBED_API void hotbed_kjt_init_sized(hotbed_kjt *kjt, size_t size);

static inline void hotbed_kjt_init(hotbed_kjt *kjt) {
    hotbed_kjt_init_sized(kjt, sizeof *kjt);
}

/* Return the number of rows: the sum of strides, or features * batch size. */
HOTBED_API uint64_t hotbed_kjt_rows(const hotbed_kjt *kjt);

/* Return the number of the feature called `name`, or num_features if there is none. */
HOTBED_API uint32_t hotbed_kjt_find(const hotbed_kjt *kjt, const char *name);

/* Check the fields that are known on the host. Never waits.
 * Errors: ARGUMENT (no features; a name that is NULL; a stride over batch_size, with the
 * feature's name; no keys; over 2^30 rows or keys; one key per row, and num_keys is not the
 * number of rows). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_kjt_check(const hotbed_kjt *kjt);

/* Check everything, including lengths or offsets. Synchronous: for tests and for finding faults.
 * Errors: as hotbed_kjt_check(); ARGUMENT (feature, sample and the fault: a negative length, a
 * descending offset, keys beyond num_keys), MEMORY, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_kjt_validate(const hotbed_kjt *kjt, hotbed_stream *stream);

/* Convert to the batch that a storage takes: features of a variable batch are extended by empty
 * rows to batch_size. Keys and weights are not copied. Asynchronous; uses the stream's workspace:
 * the first call on a stream with more rows than before allocates.
 *
 *   offsets  out  [num_features * batch_size + 1] device
 *   batch    out  a view of kjt's keys and weights, and of offsets
 *
 * Errors: as hotbed_kjt_check(), MEMORY, STATE (the workspace would have to grow while a graph is
 * recorded). Faults: RANGE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_kjt_to_batch(
    const hotbed_kjt *kjt, int64_t *offsets, hotbed_batch *batch, hotbed_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
