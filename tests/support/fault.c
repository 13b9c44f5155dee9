/* tests/support/fault.c - wrappers of the allocation functions that count calls and let one of them fail.
 *
 * The linker's --wrap=malloc redirects calls of malloc to the symbol "__wrap_malloc" and provides the original as
 * "__real_malloc".  The asm labels keep these reserved names out of the source.
 */
#define _DEFAULT_SOURCE
#include "tests/support/fault.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/types.h>

static uint64_t fail_at; /* number of the allocation that fails; 0: none */
static uint64_t count;
static bool failed;
static void (*call_then)(void *argument); /* called instead of failing, unless NULL */
static void *call_argument;

void fault_arm(uint64_t n) {
    fault_arm_call(n, NULL, NULL);
}

void fault_arm_call(uint64_t n, void (*call)(void *argument), void *argument) {
    __atomic_store_n(&fail_at, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&count, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&failed, false, __ATOMIC_SEQ_CST);
    call_then = call;
    call_argument = argument;
    __atomic_store_n(&fail_at, n, __ATOMIC_SEQ_CST);
}

bool fault_disarm(void) {
    __atomic_store_n(&fail_at, 0, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&failed, __ATOMIC_SEQ_CST);
}

uint64_t fault_count(void) {
    return __atomic_load_n(&count, __ATOMIC_SEQ_CST);
}

/* Count an allocation.  If it is number fail_at, run call_then() and return true. */
static bool is_chosen(void) {
    uint64_t at = __atomic_load_n(&fail_at, __ATOMIC_SEQ_CST);
    if (at == 0 || __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST) != at)
        return false;
    __atomic_store_n(&failed, true, __ATOMIC_SEQ_CST);
    if (call_then != NULL)
        call_then(call_argument);
    return true;
}

static bool fails(void) {
    if (!is_chosen() || call_then != NULL)
        return false;
    errno = ENOMEM;
    return true;
}

void *real_malloc(size_t bytes) __asm__("__real_malloc");
void *real_calloc(size_t n, size_t bytes) __asm__("__real_calloc");
void *real_realloc(void *old, size_t bytes) __asm__("__real_realloc");
void *real_aligned_alloc(size_t alignment, size_t bytes) __asm__("__real_aligned_alloc");
int real_posix_memalign(void **out, size_t alignment, size_t bytes) __asm__(
    "__real_posix_memalign");
void *real_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) __asm__(
    "__real_mmap");

void *wrap_malloc(size_t bytes) __asm__("__wrap_malloc");
void *wrap_calloc(size_t n, size_t bytes) __asm__("__wrap_calloc");
void *wrap_realloc(void *old, size_t bytes) __asm__("__wrap_realloc");
void *wrap_aligned_alloc(size_t alignment, size_t bytes) __asm__("__wrap_aligned_alloc");
int wrap_posix_memalign(void **out, size_t alignment, size_t bytes) __asm__(
    "__wrap_posix_memalign");
void *wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) __asm__(
    "__wrap_mmap");

void *wrap_malloc(size_t bytes) {
    return fails() ? NULL : real_malloc(bytes);
}

void *wrap_calloc(size_t n, size_t bytes) {
    return fails() ? NULL : real_calloc(n, bytes);
}

void *wrap_realloc(void *old, size_t bytes) {
    return fails() ? NULL : real_realloc(old, bytes);
}

void *wrap_aligned_alloc(size_t alignment, size_t bytes) {
    return fails() ? NULL : real_aligned_alloc(alignment, bytes);
}

int wrap_posix_memalign(void **out, size_t alignment, size_t bytes) {
    return fails() ? ENOMEM : real_posix_memalign(out, alignment, bytes);
}

void *wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    return fails() ? MAP_FAILED : real_mmap(at, bytes, protection, flags, file, offset);
}

#if defined(HOTBED_WITH_CUDA)

/* cudaError_t is an int.  The host backend allocates pinned memory with a counted function; CUDA does not.  To give
 * fault_arm_call() the same places on both, it counts cudaHostAlloc(); fault_arm() does not, so it never fails. */
int real_host_alloc(void **out, size_t bytes, unsigned flags) __asm__("__real_cudaHostAlloc");
int wrap_host_alloc(void **out, size_t bytes, unsigned flags) __asm__("__wrap_cudaHostAlloc");

int wrap_host_alloc(void **out, size_t bytes, unsigned flags) {
    if (call_then != NULL)
        (void)is_chosen();
    return real_host_alloc(out, bytes, flags);
}

#endif
