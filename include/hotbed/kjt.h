/* hotbed/kjt.h - a keyed jagged tensor: for each feature and sample a bag of keys.
 *
 * A *row* is the bag of one feature and sample.  Rows are feature-major: those of feature 0 in the order of
 * its samples, then those of feature 1, and so on; the keys stand in the order of the rows.  Features have
 * batch_size samples each, or, with `strides`, numbers of their own (a variable batch); another rank may
 * have other numbers.  Lengths or offsets say how many keys each row has.
 *
 * Arrays of keys, lengths, offsets and weights are device memory, names and strides host memory.  The calls
 * on the batch are async and check on the device: lengths or offsets that cannot be latch a fault RANGE on
 * the stream, which has the row's number, and the batch then counts as empty.  hotbed_kjt_validate() waits,
 * and says which feature and sample.
 *
 * Ideas: TorchRec's KeyedJaggedTensor.
 */
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

/* A view: it owns nothing.  Call hotbed_kjt_init(), then set fields. */
typedef struct hotbed_kjt {
    uint32_t size;               /* set by init */
    uint32_t num_features;       /* 1 .. 65535 */
    const char *const *features; /* [num_features] names; NULL: features are known by number only */
    uint32_t batch_size;     /* samples of each feature; with strides: of the longest, or more */
    const uint32_t *strides; /* [num_features] samples of each feature; NULL: batch_size each */
    uint64_t num_keys;       /* length of `keys`: a bound, the number follows from the rows */
    const void *keys;        /* [num_keys] int64 or uint64 */
    const int64_t *lengths;  /* [rows] keys of each row, or NULL */
    const int64_t *offsets;  /* [rows + 1] row r is keys[offsets[r]] up to keys[offsets[r + 1]],
                                  * offsets[0] = 0; goes before lengths.  Neither: one key a row */
    const float *weights;    /* [num_keys] weights of the keys; NULL is none */
} hotbed_kjt;

static inline void hotbed_kjt_init(hotbed_kjt *kjt) {
    memset(kjt, 0, sizeof *kjt);
    kjt->size = sizeof *kjt;
}

/* Number of rows: the sum of strides, or features * batch size. */
HOTBED_API uint64_t hotbed_kjt_rows(const hotbed_kjt *kjt);

/* Number of the feature called `name`, or num_features where there is none. */
HOTBED_API uint32_t hotbed_kjt_find(const hotbed_kjt *kjt, const char *name);

/* Check what the host knows.  Never waits.
 * Errors: ARGUMENT (no features; a name that is NULL; a stride over batch_size, with the feature's name; no
 * keys; over 2^30 rows or keys; one key a row, and num_keys is not the rows). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_kjt_check(const hotbed_kjt *kjt);

/* Check all, lengths or offsets too.  Synchronous: for tests and for finding faults.
 * Errors: as of hotbed_kjt_check(); ARGUMENT (feature, sample and what is wrong: a negative length, an
 * offset that descends, keys beyond num_keys), MEMORY, STATE (the stream records a graph), DEVICE. */
HOTBED_API HOTBED_MUST_USE hotbed_status
hotbed_kjt_validate(const hotbed_kjt *kjt, hotbed_stream *stream);

/* The batch that a storage takes: features of a variable batch get empty rows up to batch_size.  Keys and
 * weights stay where they are.  Async; uses the stream's workspace: the first call with more rows on a
 * stream allocates.
 *
 *   offsets  out  [num_features * batch_size + 1] device
 *   batch    out  a view of kjt's keys and weights and of offsets
 *
 * Errors: as of hotbed_kjt_check(), MEMORY, STATE (the workspace would have to grow while a graph is
 * recorded).  Faults: RANGE. */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_kjt_to_batch(
    const hotbed_kjt *kjt, int64_t *offsets, hotbed_batch *batch, hotbed_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
