/* tests/base/test_null.c - functions that return a value return 0 or NULL for an object that is NULL.
 *
 * Functions that return a status return ARGUMENT; the tests of their modules show that.
 */
#include "hotbed/checkpoint.h"
#include "hotbed/comm.h"
#include "hotbed/forward.h"
#include "hotbed/pipeline.h"
#include "hotbed/profile.h"
#include "hotbed/sharded.h"
#include "hotbed/state_dict.h"
#include "hotbed/storage.h"
#include "hotbed/train.h"
#include "tests/support/harness.h"

#include <string.h>

/* Each getter of an object, with arguments that have NULL for the object. */
#define GETTERS(X)                                                                                 \
    X(hotbed_checkpoint_snapshot_bytes, (NULL, HOTBED_MEMORY_PINNED))                              \
    X(hotbed_comm_rank, (NULL))                                                                    \
    X(hotbed_comm_size, (NULL))                                                                    \
    X(hotbed_comm_transport, (NULL))                                                               \
    X(hotbed_iteration_batch, (NULL))                                                              \
    X(hotbed_iteration_buffer_set, (NULL))                                                         \
    X(hotbed_iteration_number, (NULL))                                                             \
    X(hotbed_iteration_value, (NULL, 0))                                                           \
    X(hotbed_pipeline_depth, (NULL))                                                               \
    X(hotbed_pipeline_stream, (NULL))                                                              \
    X(hotbed_rewrite_modules, (NULL))                                                              \
    X(hotbed_schedule_candidates, (NULL))                                                          \
    X(hotbed_schedule_seconds, (NULL))                                                             \
    X(hotbed_schedule_serial_seconds, (NULL))                                                      \
    X(hotbed_schedule_steps, (NULL, NULL))                                                         \
    X(hotbed_schedule_taken, (NULL))                                                               \
    X(hotbed_sharded_columns, (NULL))                                                              \
    X(hotbed_sharded_lookup, (NULL, 0))                                                            \
    X(hotbed_sharded_modules_get, (NULL, 0))                                                       \
    X(hotbed_sharded_num_lookups, (NULL))                                                          \
    X(hotbed_sharded_training, (NULL))                                                             \
    X(hotbed_state_dict_size, (NULL))                                                              \
    X(hotbed_storage_columns, (NULL))                                                              \
    X(hotbed_storage_key_type, (NULL))                                                             \
    X(hotbed_storage_mode, (NULL))                                                                 \
    X(hotbed_storage_num_tables, (NULL))                                                           \
    X(hotbed_storage_optimizer, (NULL))                                                            \
    X(hotbed_stream_backend, (NULL))                                                               \
    X(hotbed_stream_device, (NULL))                                                                \
    X(hotbed_stream_native, (NULL))                                                                \
    X(hotbed_train_pipeline, (NULL))                                                               \
    X(hotbed_train_rewrite, (NULL))                                                                \
    X(hotbed_train_stream, (NULL, "default"))

#define DEFINE(name, arguments)                                                                    \
    static bool name##_is_zero(void) {                                                             \
        return name arguments == 0;                                                                \
    }
GETTERS(DEFINE)

static void getters_return_zero_for_null(hotbed_backend backend) {
#define ENTRY(name, arguments) {#name, name##_is_zero},
    static const struct {
        const char *name;
        bool (*is_zero)(void);
    } getters[] = {GETTERS(ENTRY)};
    for (size_t i = 0; i < sizeof getters / sizeof getters[0]; i++)
        CHECK_STRING(getters[i].is_zero() ? getters[i].name : "another value", getters[i].name);
}

/* Outputs are set, so that a loop over the result ends. */
static void no_steps_have_number_zero(hotbed_backend backend) {
    uint32_t num_steps = 7;
    CHECK(hotbed_schedule_steps(NULL, &num_steps) == NULL);
    CHECK_EQ(num_steps, 0);
}

/* A setter without a result ignores NULL; an agreement of NULL fails where it is used. */
static void other_calls_with_null_do_nothing(hotbed_backend backend) {
    uint64_t least = 5;
    const hotbed_agreement agreement = hotbed_comm_agreement_of(NULL);
    hotbed_comm_set_tag(NULL, 1);
    CHECK_STATUS(agreement.least(agreement.self, 1, &least), HOTBED_ERR_ARGUMENT);
    CHECK(strstr(hotbed_last_error(), "agreement is NULL") != NULL);
    CHECK_EQ(least, 5);
}

const hotbed_test hotbed_tests[] = {
    {TEST(getters_return_zero_for_null)},
    {TEST(no_steps_have_number_zero)},
    {TEST(other_calls_with_null_do_nothing)},
    {NULL, NULL},
};
