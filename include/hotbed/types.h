/* hotbed/types.h - element types, keys, slots, rows, initializers and optimizers.
 *
 * Experimental: hotbed_dtype_convert(). Stable: all other calls.
 *
 * For every program that uses tables: the structs and enums here are fields of the options in the
 * other headers. {0} is a valid initializer; hotbed_optimizer has an init function.
 *
 *       hotbed_table_options table = {.size = sizeof table};
 *       table.dtype = HOTBED_BF16;
 *       table.initializer.kind = HOTBED_INIT_UNIFORM;
 *       table.initializer.lower = -0.1F, table.initializer.upper = 0.1F;
 *
 *       hotbed_optimizer adam;
 *       hotbed_optimizer_init(&adam);
 *       adam.kind = HOTBED_OPT_ADAM;
 *       adam.learning_rate = 0.001F;
 *       for (uint32_t s = 0; s < hotbed_optimizer_states(adam.kind); s++)
 *           puts(hotbed_optimizer_state_name(adam.kind, s)); // exp_avg, exp_avg_sq */
#ifndef HOTBED_TYPES_H
#define HOTBED_TYPES_H

#include "hotbed/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

HOTBED_BEGIN_DECLS

/* Element type of rows, outputs and gradients. Sums and optimizer steps are computed in F32
 * whatever the type. Outputs are rounded to nearest even, rows as hotbed_rounding says. */
typedef enum hotbed_dtype {
    HOTBED_F32 = 1,
    HOTBED_F16 = 2,  /* IEEE binary16 */
    HOTBED_BF16 = 3, /* the upper half of an F32 */
    /* Of rows only. Behind its elements, a row has the numbers by which they are read; all are
     * little-endian bytes without alignment. A step computes the row in F32 and rounds it again. */
    /* dim unsigned bytes q, then an F16 scale and an F16 offset: q * scale + offset. A new row has the
     * largest offset and the least scale with which its values fit. A step keeps both if the new values
     * fit and span at least half of them; an element that it does not move keeps its byte. Otherwise it
     * chooses them again, for the range of the values and a sixteenth more on either side, and rounds
     * each element again. Values beyond 65,504 are clamped; a row with a NaN or
     * an infinity is NaN in each element. */
    HOTBED_INT8 = 4,
    /* dim e4m3fn (largest value 448), then an F32 scale for the row or, if dim is over 64, for each 32
     * elements: the least power of two by which they fit, or 1 if all are 0. NaN and infinity become
     * the byte 0x7f, which is NaN. */
    HOTBED_FP8 = 5,
} hotbed_dtype;

/* Return the bytes of one element of outputs and gradients; 0 if they cannot have the type. */
HOTBED_API size_t hotbed_dtype_bytes(hotbed_dtype dtype);
/* Return the bytes of the embedding of a row of `dim` elements; 0 for an unknown type. */
HOTBED_API size_t hotbed_dtype_row_bytes(hotbed_dtype dtype, uint32_t dim);
/* Return the name of a type: "f32", "f16", "bf16", "int8" or "fp8". */
HOTBED_API const char *hotbed_dtype_name(hotbed_dtype dtype);
/* Convert the embeddings of n rows of `dim` elements to another type, rounded to nearest. The type that
 * they have gives the same bytes. Values that the type does not have become what hotbed_dtype says, and too
 * large ones infinity; loads, fills and publishers refuse them. Blocks.
 *   from  in  host, [n, hotbed_dtype_row_bytes()] bytes
 *   to    out  host, likewise; may be `from`, but not overlap it otherwise
 * Errors: ARGUMENT (NULL; an unknown type; dim is not in [1, 4096]). */
HOTBED_API HOTBED_MUST_USE hotbed_status hotbed_dtype_convert(
    hotbed_dtype from_dtype, const void *from, hotbed_dtype to_dtype, void *to, uint32_t dim,
    uint64_t n);

/* How a 64-bit key is interpreted where its order or sign matters: in messages, files and static
 * tables. Tables accept every value of either type; hashing and routing treat keys as unsigned. */
typedef enum hotbed_key_type {
    HOTBED_KEY_I64 = 1,
    HOTBED_KEY_U64 = 2,
} hotbed_key_type;

typedef enum hotbed_pooling {
    HOTBED_POOL_NONE = 0, /* sequence: one output row per key */
    /* one output row per bag: the sum of weight * row; zeros for an empty bag */
    HOTBED_POOL_SUM = 1,
    HOTBED_POOL_MEAN = 2, /* as SUM, divided by the number of keys of the bag */
} hotbed_pooling;

/* --- slots and rows -------------------------------------------------------------------------- */

/* No slot: the key is absent, refused or out of range. */
#define HOTBED_SLOT_NONE UINT64_MAX

/* How an optimizer step rounds a row or a state from F32 to a narrower type. F32 is not rounded. Initial
 * rows and states are rounded to nearest. */
typedef enum hotbed_rounding {
    /* Up or down, with probabilities that make the expected value exact, so that steps much smaller
     * than the distance of two neighbouring values add up. The random numbers are a function of
     * (seed, table, key, element, number of the optimizer step) alone (Philox4x32-7): the bytes
     * do not depend on backend, mode, prefetch depth, number of ranks or time. A row and each of its
     * states have random numbers of their own.
     * INT8 and FP8 rows whose first state is F32 and has a number for each element are rounded to nearest
     * instead, and the lowest byte of that number takes what is left over, in 256ths of the distance to
     * the next value, -128 .. 127, rounded at random. The next step begins with the sum of both. */
    HOTBED_ROUND_STOCHASTIC = 0,
    /* To nearest, ties to even. A step smaller than half of that distance is lost: a bf16 element
     * of 1.0 does not move by steps of 0.001, and an average with beta2 0.999 stops changing.
     * hotbed_table_stats.rounded_away counts rows of which a step is lost; states are not counted. */
    HOTBED_ROUND_NEAREST = 1,
} hotbed_rounding;

typedef enum hotbed_evict {
    HOTBED_EVICT_NEVER = 0, /* a full table refuses new keys */
    /* a new key replaces the key with the lowest score among its candidates */
    HOTBED_EVICT_LOWEST = 1,
} hotbed_evict;

/* Parts of n rows of one table: dense arrays in device memory. NULL parts are skipped. Frozen: the
 * struct has no `size`, since it is a member of other structs. */
typedef struct hotbed_rows {
    /* [n, dim] elements of the table's dtype; of INT8 and FP8 [n, hotbed_dtype_row_bytes()] bytes */
    void *weights;
    /* [n, hotbed_optimizer_state_dim()] elements each, of type hotbed_optimizer_state_dtype() */
    void *states[2];
    /* [n]; of a storage. Scores over 2^52 - 1 are stored as 2^52 - 1. Keys of STATIC tables have
     * none: 0 is read, and scores to set are ignored. */
    uint64_t *scores;
    uint64_t *times; /* [n]; TIMESTAMP_LFU tables of a storage: when each key was last seen */
} hotbed_rows;

/* --- initializers -------------------------------------------------------------------------- */

typedef enum hotbed_initializer_kind {
    HOTBED_INIT_CONSTANT = 0,         /* value (0 unless set) */
    HOTBED_INIT_UNIFORM = 1,          /* [lower, upper) */
    HOTBED_INIT_NORMAL = 2,           /* mean, std */
    HOTBED_INIT_TRUNCATED_NORMAL = 3, /* mean, std, cut to [lower, upper] */
    HOTBED_INIT_DEBUG = 4,            /* key mod 100000, the key taken as unsigned */
} hotbed_initializer_kind;

/* The first value of each element of a row. It is a function of (seed, table, key, element) alone,
 * so it does not depend on mode, backend, number of ranks or time (Philox4x32-7, Salmon et al.
 * 2011). {0} gives zeros. Frozen: the struct has no `size`, since it is a member of
 * hotbed_table_options. */
typedef struct hotbed_initializer {
    hotbed_initializer_kind kind;
    float value;     /* CONSTANT */
    float mean, std; /* NORMAL, TRUNCATED_NORMAL; std > 0 */
    /* UNIFORM, TRUNCATED_NORMAL; lower < upper. UNIFORM: upper - lower is finite. TRUNCATED_NORMAL:
     * some of [lower, upper] is within 5 std of the mean */
    float lower, upper;
} hotbed_initializer;

/* --- optimizers ----------------------------------------------------------------------------- */

typedef enum hotbed_optimizer_kind {
    HOTBED_OPT_SGD = 1,
    HOTBED_OPT_ADAM = 2,
    HOTBED_OPT_ADAGRAD = 3,
    HOTBED_OPT_ROWWISE_ADAGRAD = 4,
    HOTBED_OPT_FTRL = 5,
    HOTBED_OPT_MOMENTUM = 6,
    HOTBED_OPT_RMSPROP = 7,
    HOTBED_OPT_ADADELTA = 8,
    HOTBED_OPT_LION = 9,
    HOTBED_OPT_PARTIAL_ROWWISE_ADAM = 10,
    HOTBED_OPT_LAMB = 11,
    HOTBED_OPT_LARS = 12,
    HOTBED_OPT_NESTEROV = 13,
    HOTBED_OPT_ROW_STEPS_ADAM = 14,
    HOTBED_OPT_ROWWISE_ADAM = 15,
} hotbed_optimizer_kind;

/* A sparse optimizer of all tables of a storage, some of whose parameters a table may have of its own
 * (hotbed_table_options). Call hotbed_optimizer_init(), then set fields. Rows that a step does not use are not
 * updated. In the formulas, g is the summed gradient of a row, plus l2_decay*w; t is the number of optimizer
 * steps of the storage so far, the present one included; and |x| is the norm of a row:
 *   SGD              w -= lr * (g + decay*w)
 *   ADAM             m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g*g
 *                    w -= lr * (m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + decay*w)
 *   ADAGRAD          G += g*g;             w -= lr * (g / (sqrt(G) + eps) + decay*w)
 *   ROWWISE_ADAGRAD  G += mean over the row of g*g; w as ADAGRAD, one G per row
 *   FTRL             z += g - ((n+g*g)^-p - n^-p)/lr * w;  n += g*g    (FTRL-proximal)
 *                    w = 0 where -l1 <= z <= l1, else (sign(z)*l1 - z) / ((beta + n^-p)/lr + l2)
 *   MOMENTUM         m = momentum*m + g;   w -= lr * (m + decay*w)
 *   RMSPROP          v = rho*v + (1-rho)*g*g;  w -= lr * (g / (sqrt(v) + eps) + decay*w)
 *   ADADELTA         v = rho*v + (1-rho)*g*g;  d = sqrt(u+eps) / sqrt(v+eps) * g
 *                    u = rho*u + (1-rho)*d*d;  w -= lr * (d + decay*w)
 *   LION             w -= lr * (sign(b1*m + (1-b1)*g) + decay*w);  m = b2*m + (1-b2)*g
 *   PARTIAL_ROWWISE_ADAM  as ADAM, but v = b2*v + (1-b2) * mean over the row of g*g, one v per row
 *   LAMB             as ADAM with the learning rate lr * |w| / |s|, where s is ADAM's step for a
 *                    learning rate of 1, decay included; lr itself if |w| or |s| is 0
 *   LARS             m = momentum*m + rate * (g + decay*w);  w -= m
 *                    rate = lr * trust * |w| / (|g| + decay*|w| + eps); lr if |w| or |g| is 0
 *   NESTEROV         m = momentum*m + g;   w -= lr * (g + momentum*m + decay*w)
 *   ROW_STEPS_ADAM   as ADAM, but t is the number of steps of the row, the present one included: a
 *                    row that is seen first after a million steps begins as Adam begins. t is the
 *                    last element of the second state, and stays at 2^24
 *   ROWWISE_ADAM     as PARTIAL_ROWWISE_ADAM, but m = b1*m + (1-b1) * mean over the row of g, one m
 *                    per row: all elements of a row take the same step, decay aside
 * n^-p is within one unit in the last place; TensorFlow's l2_regularization_strength is half of l2.
 * States are F32, or BF16 where a table's state_dtype says so, whatever the type of the row. Frozen at 128
 * bytes, since the struct is a member of hotbed_storage_options: a new parameter takes the place of a reserved
 * word. */
typedef struct hotbed_optimizer {
    uint32_t size;              /* set by init: 128 */
    hotbed_optimizer_kind kind; /* required */
    /* init: 0.01. FTRL: above 0, also when it is changed later */
    float learning_rate;
    /* ADAM, ROW_STEPS_ADAM, ROWWISE_ADAM, PARTIAL_ROWWISE_ADAM, LAMB, LION; init: 0.9, 0.999; in [0, 1) */
    float beta1, beta2;
    /* init: 1e-8; >= 0. With 0, an element whose state and gradient are both 0 becomes NaN (0 / 0);
     * ADAGRAD avoids this with an initial_accumulator above 0 */
    float eps;
    float weight_decay; /* decoupled: not a part of the gradient; all but FTRL; init: 0 */
    /* ADAM, ADAGRAD, ROWWISE_ADAGRAD: first value of the states of a new row. FTRL: of n. init: 0 */
    float initial_accumulator;
    /* each element of the incoming gradient is clamped to [-max_gradient, max_gradient] before any
     * sum; NaN stays NaN; 0: no clamping */
    float max_gradient;
    /* l2_decay*w is added to the gradient before everything else, as PyTorch's Adam does with its
     * weight_decay; for AdamW use weight_decay instead. init: 0 */
    float l2_decay;
    float momentum;            /* MOMENTUM, NESTEROV, LARS; init: 0.9; in [0, 1) */
    float rho;                 /* RMSPROP (PyTorch's alpha), ADADELTA; init: 0.9; in [0, 1) */
    float trust;               /* LARS; init: 0.001; >= 0 */
    float learning_rate_power; /* FTRL's p; init: -0.5; in [-2, 0]; -0.5 is the fastest */
    float ftrl_beta;           /* FTRL's beta; init: 0; >= 0 */
    float l1_reg, l2_reg;      /* FTRL; init: 0; >= 0 */
    uint32_t reserved[15];     /* for parameters of later versions; must be 0 */
} hotbed_optimizer;

/* A parameter: a float of hotbed_optimizer with a range. */
typedef struct hotbed_optimizer_parameter {
    const char *name; /* of the field */
    size_t offset;    /* of the field in hotbed_optimizer */
    float least, most;
    bool below_most; /* the value is below `most`, not equal to it */
} hotbed_optimizer_parameter;

/* What an optimizer has. Each state of a row is F32. */
typedef struct hotbed_optimizer_info {
    uint32_t size; /* set by the library */
    hotbed_optimizer_kind kind;
    const char *name;           /* "sgd", "adam", ... */
    uint32_t states;            /* of a row: 0, 1 or 2 */
    bool one_number[2];         /* the state is one number per row; false: one per element */
    bool counts_steps;          /* a step depends on the number of steps before it, as Adam's */
    bool positive_rate;         /* the learning rate must be above 0 */
    const char *state_names[2]; /* as hotbed_optimizer_state_name(); "" if there is none */
    uint32_t parameters;        /* bit p: the optimizer uses hotbed_optimizer_parameter_at(p) */
} hotbed_optimizer_info;

/* Return the description of an optimizer, or NULL for an unknown kind. The first kind is 1, and the
 * others follow without gaps. Parameters have the defaults of hotbed_optimizer_init(). */
HOTBED_API const hotbed_optimizer_info *hotbed_optimizer_describe(hotbed_optimizer_kind kind);
/* Return parameter number `number`, from 0; NULL after the last. */
HOTBED_API const hotbed_optimizer_parameter *hotbed_optimizer_parameter_at(uint32_t number);

/* Set every field to its default. */
HOTBED_API void hotbed_optimizer_init(hotbed_optimizer *optimizer);

/* Return the number of states of a row, and the length of state number `state` for a row
 * of `dim` elements: `dim`, 1, or dim + 1 (ROW_STEPS_ADAM). 0 for an unknown kind, or if there is no such state. */
HOTBED_API uint32_t hotbed_optimizer_states(hotbed_optimizer_kind kind);
HOTBED_API uint32_t
hotbed_optimizer_state_dim(hotbed_optimizer_kind kind, uint32_t state, uint32_t dim);
/* Return the type of state number `state` in a table whose state_dtype is `state_dtype`. A state that is as
 * long as the row has that type. A state of one number is F32, and so is ROW_STEPS_ADAM's second, whose last
 * element is a count. 0, or no such state: F32. */
HOTBED_API hotbed_dtype
hotbed_optimizer_state_dtype(hotbed_optimizer_kind kind, uint32_t state, hotbed_dtype state_dtype);
/* Return TorchRec's name of state number `state`, such as "exp_avg" and "exp_avg_sq" of ADAM; NULL
 * if there is no such state. */
HOTBED_API const char *hotbed_optimizer_state_name(hotbed_optimizer_kind kind, uint32_t state);
/* Return the name of an optimizer: "sgd", "adam", ... */
HOTBED_API const char *hotbed_optimizer_name(hotbed_optimizer_kind kind);

HOTBED_END_DECLS
#endif
