# cmake/hotbed_flags.cmake - target hotbed_flags: warnings, floating point and sanitizers.

# Contraction is off because host and CUDA must round alike: a*b+c is two roundings on both.  Nobody reads
# errno after sqrtf, which is one instruction without it.  Callbacks and tests need not use all parameters.
set(hotbed_c_flags
    -Wall -Wextra -Wno-unused-parameter -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes
    -Wmissing-prototypes
    -ffp-contract=off -fno-math-errno)
set(hotbed_cxx_flags -Wall -Wextra -Wshadow -ffp-contract=off)
# nvcc only warns about a call of a host function from a kernel: make it an error.
set(hotbed_cuda_flags
    -fmad=false -lineinfo -Werror=cross-execution-space-call
    -Xcompiler=-Wall,-Wextra,-ffp-contract=off)

add_library(hotbed_flags INTERFACE)
target_compile_options(
  hotbed_flags
  INTERFACE "$<$<COMPILE_LANGUAGE:C>:${hotbed_c_flags}>" "$<$<COMPILE_LANGUAGE:CXX>:${hotbed_cxx_flags}>"
            "$<$<COMPILE_LANGUAGE:CUDA>:${hotbed_cuda_flags}>")
target_compile_definitions(hotbed_flags INTERFACE _POSIX_C_SOURCE=200809L)

if(HOTBED_SANITIZE)
  set(hotbed_sanitize_flags -fsanitize=${HOTBED_SANITIZE} -fno-omit-frame-pointer)
  if(HOTBED_SANITIZE MATCHES undefined)
    list(APPEND hotbed_sanitize_flags -fno-sanitize-recover=undefined)
  endif()
  # For every target, so that no object or link of the build is left out.
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${hotbed_sanitize_flags}>")
  add_link_options(${hotbed_sanitize_flags})
endif()

# The fuzzers' counters, in all of the library.
option(HOTBED_FUZZ "tests/checkpoint/fuzz_*.c for libFuzzer; needs clang and HOTBED_SANITIZE" OFF)
if(HOTBED_FUZZ)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link>")
endif()
