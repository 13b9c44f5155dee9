/* storage/types.h - checks of names, initializers and optimizers, their form for kernels, and keys
 * in the texts of faults. */
#pragma once

#include "base/fault_text.h"
#include "hotbed/dlpack.h"
#include "hotbed/storage.h"
#include "hotbed/types.h"
#include "storage/step/init_core.h"
#include "storage/step/optimizer_core.h"

enum {
    HOTBED_TABLES_MOST = 65535,
    HOTBED_NAME_BYTES = 64, /* of a table's name, including the terminating 0 */
};

/* The type with this name; false: there is none. */
bool hotbed_dtype_read(const char *name, hotbed_dtype *out);

/* PyTorch's and NumPy's name of an element, such as "bfloat16". */
const char *hotbed_dtype_word(hotbed_dtype dtype);

/* The array that a row's embedding is for other programs: dim elements of the type, or bytes if only
 * rows have the type. */
hotbed_element hotbed_weights_element(hotbed_dtype dtype, uint32_t dim, uint64_t *columns);

/* The element of an .npy column of weights; "<f4" also for types that NumPy lacks. */
const char *hotbed_dtype_npy(hotbed_dtype dtype);

/* Read the embedding of a row of any type, or write one, rounded to nearest. */
void hotbed_weights_read(hotbed_dtype dtype, uint32_t dim, const void *row, float *out);
void hotbed_weights_write(hotbed_dtype dtype, uint32_t dim, const float *weights, void *row);

/* Whether rows of the type can have these values: a finite value too large for it is no value of it, and neither
 * are an infinity or a NaN that it lacks. *value is the first such value. */
bool hotbed_weights_fit(hotbed_dtype dtype, uint32_t dim, const float *weights, float *value);

/* A row of several, and the first value of it that the type to convert to does not have. */
typedef struct hotbed_unfit {
    uint64_t row;
    float value;
} hotbed_unfit;

/* The same as hotbed_dtype_convert(), without checks of arguments. Returns whether all values fit; otherwise
 * *unfit is one that does not. */
bool hotbed_weights_convert(
    hotbed_dtype from_dtype, const void *from, hotbed_dtype to_dtype, void *to, uint32_t dim,
    uint64_t n, hotbed_unfit *unfit);

/* Fail with ARGUMENT: the row of a key has a value that `dtype` does not have, in the embedding or, if it is not
 * NULL, in the state of this name. */
hotbed_status hotbed_unfit_fail(
    const char *table, uint64_t key, hotbed_key_type key_type, const char *state,
    hotbed_dtype dtype, float value);

/* Check the name of table number `number`. Errors: ARGUMENT. */
hotbed_status hotbed_name_check(const char *name, uint32_t number);

/* Check that the names of n structs are distinct. Each struct has `stride` bytes and begins with
 * its name. Errors: ARGUMENT, MEMORY. */
hotbed_status hotbed_names_check(const void *structs, uint32_t n, size_t stride);

/* Check that there are tables, and that features are of them. Errors: ARGUMENT. */
hotbed_status hotbed_features_check(const hotbed_storage_options *options);

/* Describe the keys of a table, before any work on it is enqueued: the texts of faults name them, and
 * rows are initialized, from the next clear on, and rounded by them. Errors: MEMORY, DEVICE. */
hotbed_status hotbed_storage_set_keys(
    hotbed_storage *storage, uint32_t table, const hotbed_table_keys *keys, hotbed_stream *stream);

/* Check an initializer or an optimizer. `what` names the initializer's owner in error messages.
 * Errors: ARGUMENT. */
hotbed_status hotbed_initializer_check(const hotbed_initializer *initializer, const char *what);
hotbed_status hotbed_optimizer_check(const hotbed_optimizer *optimizer);
hotbed_status hotbed_optimizer_check_rate(hotbed_optimizer_kind kind, float learning_rate);

/* Read or write the field of a parameter. */
float hotbed_optimizer_value(
    const hotbed_optimizer *optimizer, const hotbed_optimizer_parameter *parameter);
void hotbed_optimizer_set(
    hotbed_optimizer *optimizer, const hotbed_optimizer_parameter *parameter, float value);

/* Check a type of states, which may be 0. Errors: ARGUMENT. */
hotbed_status hotbed_state_dtype_check(hotbed_dtype dtype);

/* Bytes of state number `state` of a row; 0 if there is none. */
size_t hotbed_state_bytes(
    hotbed_optimizer_kind kind, uint32_t state, hotbed_dtype state_dtype, uint32_t dim);

/* The type of a table's states as a whole: `state_dtype` if one of them has it, otherwise F32. */
hotbed_dtype hotbed_states_dtype(hotbed_optimizer_kind kind, hotbed_dtype state_dtype);

/* Convert a checked initializer of the table called `name`. */
hotbed_init_view hotbed_init_make(
    const hotbed_initializer *initializer, const char *name, uint64_t seed);
hotbed_optimizer_view hotbed_optimizer_make(const hotbed_optimizer *optimizer);
