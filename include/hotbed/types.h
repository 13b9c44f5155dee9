/* hotbed/types.h - element types, slots and rows, and the descriptions of initialisers and optimisers. */
#ifndef HOTBED_TYPES_H
#define HOTBED_TYPES_H

#include "hotbed/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element type of rows, outputs and gradients.  Sums and optimiser steps are done in F32 whatever the
 * type; results are rounded to nearest even. */
typedef enum hotbed_dtype {
    HOTBED_F32 = 1,
    HOTBED_F16 = 2,  /* IEEE binary16 */
    HOTBED_BF16 = 3, /* the upper half of an F32 */
} hotbed_dtype;

/* Bytes of one element; 0 for an unknown type. */
HOTBED_API size_t hotbed_dtype_bytes(hotbed_dtype dtype);
HOTBED_API const char *hotbed_dtype_name(hotbed_dtype dtype); /* "f32", "f16", "bf16" */

/* How a 64-bit key is read where its order or sign matters (messages, files, static tables).  Every
 * value of either type can be stored; hashing and routing treat keys as unsigned. */
typedef enum hotbed_key_type {
    HOTBED_KEY_I64 = 1,
    HOTBED_KEY_U64 = 2,
} hotbed_key_type;

typedef enum hotbed_pooling {
    HOTBED_POOL_NONE = 0, /* sequence: one output row a key */
    HOTBED_POOL_SUM = 1,  /* one output row a bag: sum of weight * row; zeros for an empty bag */
    HOTBED_POOL_MEAN = 2, /* the same divided by the number of keys of the bag */
} hotbed_pooling;

/* --- slots and rows -------------------------------------------------------------------------- */

#define HOTBED_SLOT_NONE UINT64_MAX /* no slot: absent, refused or out of range */

typedef enum hotbed_evict {
    HOTBED_EVICT_NEVER = 0, /* a full table refuses new keys */
    HOTBED_EVICT_LOWEST =
        1, /* a new key takes the place of the lowest score among its candidates */
} hotbed_evict;

/* Parts of n rows of one table, dense arrays in device memory; a NULL part is skipped. */
typedef struct hotbed_rows {
    void *weights;    /* [n, dim] of the table's dtype */
    float *states[2]; /* [n, hotbed_optimizer_state_dim()] */
    uint64_t *scores; /* [n]; HASH tables of a storage */
    uint64_t *times;  /* [n]; TIMESTAMP_LFU tables of a storage: when last seen */
} hotbed_rows;

/* --- initialisers -------------------------------------------------------------------------- */

typedef enum hotbed_initializer_kind {
    HOTBED_INIT_CONSTANT = 0,         /* value (0 unless set) */
    HOTBED_INIT_UNIFORM = 1,          /* [lower, upper) */
    HOTBED_INIT_NORMAL = 2,           /* mean, std */
    HOTBED_INIT_TRUNCATED_NORMAL = 3, /* mean, std, cut to [lower, upper] */
    HOTBED_INIT_DEBUG = 4,            /* key mod 100000, the key read as unsigned */
} hotbed_initializer_kind;

/* The first value of a row's elements: a function of (seed, table, key, element) alone, so that it does
 * not depend on mode, backend, rank count or time (Philox4x32-10, Salmon et al. 2011).  {0} is zeros.
 * Plain struct without a size: it is only ever a member. */
typedef struct hotbed_initializer {
    hotbed_initializer_kind kind;
    float value;        /* CONSTANT */
    float mean, std;    /* NORMAL, TRUNCATED_NORMAL; std > 0 */
    float lower, upper; /* UNIFORM, TRUNCATED_NORMAL; lower < upper */
} hotbed_initializer;

/* --- optimisers ----------------------------------------------------------------------------- */

typedef enum hotbed_optimizer_kind {
    HOTBED_OPT_SGD = 1,
    HOTBED_OPT_ADAM = 2,
    HOTBED_OPT_ADAGRAD = 3,
    HOTBED_OPT_ROWWISE_ADAGRAD = 4,
} hotbed_optimizer_kind;

/* One sparse optimiser for all tables of a storage.  Call hotbed_optimizer_init(), then set fields.
 * With g a row's summed gradient and t the number of optimiser steps of the storage so far, this one
 * included (rows that a step does not touch are not updated):
 *   SGD              w -= lr * (g + decay*w)
 *   ADAM             m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g*g
 *                    w -= lr * (m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + decay*w)
 *   ADAGRAD          G += g*g;             w -= lr * (g / (sqrt(G) + eps) + decay*w)
 *   ROWWISE_ADAGRAD  G += mean over the row of g*g; w as ADAGRAD, one G a row
 * Optimiser state is F32 whatever the row's type. */
typedef struct hotbed_optimizer {
    uint32_t size;              /* set by init */
    hotbed_optimizer_kind kind; /* required */
    float learning_rate;        /* init: 0.01 */
    float beta1, beta2;         /* ADAM; init: 0.9, 0.999; in [0, 1) */
    float eps;                  /* init: 1e-8; >= 0 */
    float weight_decay;         /* decoupled; init: 0 */
    float initial_accumulator;  /* first value of a new row's state; init: 0 */
    float max_gradient;         /* each element of the incoming gradient is clamped to
                                 * [-max_gradient, max_gradient] before any sum; 0: no clamp */
} hotbed_optimizer;

static inline void hotbed_optimizer_init(hotbed_optimizer *optimizer) {
    memset(optimizer, 0, sizeof *optimizer);
    optimizer->size = sizeof *optimizer;
    optimizer->learning_rate = 0.01F;
    optimizer->beta1 = 0.9F;
    optimizer->beta2 = 0.999F;
    optimizer->eps = 1e-8F;
}

/* Number of F32 state vectors a row has (SGD 0, ADAM 2, ADAGRAD 1, ROWWISE_ADAGRAD 1), and the length of
 * each for a row of `dim` elements (dim, or 1 for ROWWISE_ADAGRAD).  0 for an unknown kind. */
HOTBED_API uint32_t hotbed_optimizer_states(hotbed_optimizer_kind kind);
HOTBED_API uint32_t hotbed_optimizer_state_dim(hotbed_optimizer_kind kind, uint32_t dim);
/* TorchRec's name of state number `state`: "exp_avg", "exp_avg_sq" (ADAM), "sum" (ADAGRAD,
 * ROWWISE_ADAGRAD: momentum1); NULL when there is none. */
HOTBED_API const char *hotbed_optimizer_state_name(hotbed_optimizer_kind kind, uint32_t state);
HOTBED_API const char *hotbed_optimizer_name(hotbed_optimizer_kind kind); /* "sgd", "adam", ... */

#ifdef __cplusplus
}
#endif
#endif
