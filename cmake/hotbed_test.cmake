# cmake/hotbed_test.cmake - hotbed_add_test(): one test program, one CTest entry for each backend.
#
#   hotbed_add_test(<name> <source>... [BACKENDS host cuda] [LABELS slow ...] [LIBRARIES ...]
#                   [FAULT] [EMULATE])
#
# Entries are <name>.host (label host) and, in a build with CUDA, <name>.cuda (label gpu).  BACKENDS
# defaults to both.  The program has the table hotbed_tests[] of tests/support/harness.h.
#   FAULT    links tests/support/fault.h: allocations of the program can be made to fail
#   EMULATE  links the tile emulator; such a test is left out of TSan builds, which do not follow fibres

set(hotbed_fault_wraps malloc calloc realloc aligned_alloc posix_memalign mmap)
if(HOTBED_CUDA)
  list(APPEND hotbed_fault_wraps cudaHostAlloc)
endif()

function(hotbed_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "FAULT;EMULATE" "" "BACKENDS;MODES;LABELS;LIBRARIES")
  if(NOT test_BACKENDS)
    set(test_BACKENDS host cuda)
  endif()
  if(test_EMULATE AND HOTBED_SANITIZE MATCHES thread)
    message(STATUS "${name}: left out, TSan does not follow the tile emulator's fibres")
    return()
  endif()
  if(NOT HOTBED_CUDA)
    list(REMOVE_ITEM test_BACKENDS cuda)
  endif()
  if(NOT test_BACKENDS)
    return()
  endif()
  add_executable(${name} ${test_UNPARSED_ARGUMENTS})
  if("${test_UNPARSED_ARGUMENTS}" MATCHES "\\.cu")
    add_dependencies(cuda_code ${name})
  endif()
  target_link_libraries(
    ${name} PRIVATE hotbed_test_support hotbed_testable hotbed_flags ${test_LIBRARIES})
  if(test_FAULT)
    target_link_libraries(${name} PRIVATE hotbed_test_fault)
    foreach(function IN LISTS hotbed_fault_wraps)
      target_link_options(${name} PRIVATE -Wl,--wrap=${function})
    endforeach()
  endif()
  if(test_EMULATE)
    target_link_libraries(${name} PRIVATE hotbed_test_emulate)
    # The tests spend their time in switches between fibres, so -O3 would only slow the compiler.
    if(NOT CMAKE_BUILD_TYPE STREQUAL Debug)
      target_compile_options(${name} PRIVATE -O1)
    endif()
  endif()
  foreach(backend IN LISTS test_BACKENDS)
    set(entry ${name}.${backend})
    set(labels host ${test_LABELS})
    if(backend STREQUAL cuda)
      set(labels gpu ${test_LABELS})
    endif()
    add_test(NAME ${entry} COMMAND ${name} --backend ${backend})
    set_tests_properties(
      ${entry} PROPERTIES SKIP_RETURN_CODE 77 LABELS "${labels}")
    foreach(mode IN LISTS test_MODES)
      set(entry ${name}.${mode}.${backend})
      add_test(NAME ${entry} COMMAND ${name} --backend ${backend})
      set_tests_properties(
        ${entry} PROPERTIES SKIP_RETURN_CODE 77 LABELS "${labels};modes"
                            ENVIRONMENT "HOTBED_TEST_MODE=${mode}")
    endforeach()
  endforeach()
endfunction()
