/* tests/support/forgets_sync.c - reads what a stream writes, with and without waiting for it.
 *
 * Part of TSan builds only (CMakeLists.txt): the host backend's streams run on threads, so TSan finds the
 * missing hotbed_stream_sync() on a machine without a GPU.
 */
#include "hotbed/stream.h"
#include "tests/support/harness.h"

typedef struct letter {
    uint64_t value;
    int posted; /* relaxed: says when, orders nothing */
} letter;

static void post(void *argument) {
    letter *l = argument;
    l->value = 7;
    __atomic_store_n(&l->posted, 1, __ATOMIC_RELAXED);
}

static uint64_t read_letter(hotbed_backend backend, bool sync) {
    letter l = {0};
    hotbed_stream *stream = NULL;
    CHECK_OK(hotbed_stream_create(backend, 0, &stream));
    CHECK_OK(hotbed_stream_call(stream, post, &l));
    if (sync)
        CHECK_OK(hotbed_stream_sync(stream));
    /* So that the forgetful reader comes late every time, as it does when its luck holds. */
    while (__atomic_load_n(&l.posted, __ATOMIC_RELAXED) == 0) {
    }
    uint64_t value = l.value;
    hotbed_stream_destroy(stream);
    return value;
}

static void waits(hotbed_backend backend) {
    CHECK_EQ(read_letter(backend, true), 7);
}

static void forgets(hotbed_backend backend) {
    CHECK_EQ(read_letter(backend, false), 7); /* right by luck: TSan reports the race */
}

const hotbed_test hotbed_tests[] = {
    {"waits", waits},
    {"forgets", forgets},
    {NULL, NULL},
};
