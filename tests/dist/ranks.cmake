# tests/dist/ranks.cmake - entries that run programs over MPI and sockets, as threads on one GPU, and over NCCL, and that
# kill a rank.
add_executable(comm_death comm_death.c)
target_link_libraries(comm_death PRIVATE hotbed_test_world hotbed_testable hotbed_flags)
set(death_phases create idle before between middle end)
# Phases in which ranks end without destroying their communicators.
set(leave_phases_mpi exit finalize forget)
set(leave_phases_tcp exit)

# Add an entry for a program that runs as several ranks.  The environment is part of the command, so that the command
# can be run by hand and under a tool.
function(add_ranks_test entry labels environment)
  add_test(NAME ${entry} COMMAND env ${environment} ${ARGN})
  set_tests_properties(
    ${entry} PROPERTIES LABELS "${labels}" SKIP_RETURN_CODE 77
                        SKIP_REGULAR_EXPRESSION "[^0-9]0 passed, [0-9]+ skipped")
endfunction()

set(checkpoints)
if(HOTBED_HDF5)
  set(checkpoints test_checkpoint_world)
endif()

set(open_mpi OFF)
if(HOTBED_MPI)
  execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(version MATCHES "Open MPI|OpenRTE")
    set(open_mpi ON)
  else()
    message(STATUS "tests over MPI are skipped: they need Open MPI's mpirun")
  endif()
endif()
set(mpirun ${PROJECT_SOURCE_DIR}/tests/support/mpirun.sh ${MPIEXEC_EXECUTABLE})
if(open_mpi)
  add_test(NAME test_mpirun COMMAND ${PROJECT_SOURCE_DIR}/tests/support/test_mpirun.sh ${MPIEXEC_EXECUTABLE})
  set_tests_properties(test_mpirun PROPERTIES LABELS "host;once")
  set(environment HOTBED_TEST_TRANSPORT=mpi)
  if(HOTBED_SANITIZE MATCHES address) # MPI's own leaks
    list(APPEND environment ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0)
  endif()
  foreach(ranks IN ITEMS 2 3 4)
    foreach(program IN ITEMS test_comm test_comm_fail test_comm_next test_sharded test_sharded_agree
                             test_sharded_context test_sharded_growth test_balance ${checkpoints})
      add_ranks_test(${program}.mpi${ranks} host "${environment}" ${mpirun} -n ${ranks}
                     $<TARGET_FILE:${program}>)
    endforeach()
  endforeach()
  foreach(phase IN LISTS death_phases leave_phases_mpi)
    add_ranks_test(comm_death.${phase} host "${environment}" ${CMAKE_CURRENT_SOURCE_DIR}/comm_death.sh
                   ${phase} 3 300 ${mpirun} --enable-recovery -n 3 $<TARGET_FILE:comm_death>)
  endforeach()
endif()

set(environment HOTBED_TEST_TRANSPORT=sockets)
set(launch ${CMAKE_CURRENT_SOURCE_DIR}/launch.sh)
foreach(ranks IN ITEMS 2 3)
  foreach(program IN ITEMS test_comm test_comm_fail test_comm_next test_sharded test_sharded_agree test_sharded_packed
                           test_sharded_context test_balance ${checkpoints})
    add_ranks_test(${program}.tcp${ranks} host "${environment}" ${launch} ${ranks} $<TARGET_FILE:${program}>)
  endforeach()
endforeach()
foreach(phase IN LISTS death_phases leave_phases_tcp)
  add_ranks_test(comm_death.tcp.${phase} host "${environment}" ${CMAKE_CURRENT_SOURCE_DIR}/comm_death.sh
                 ${phase} 3 300 ${launch} 3 $<TARGET_FILE:comm_death>)
endforeach()

if(HOTBED_CUDA) # several ranks on one GPU
  foreach(program IN ITEMS test_comm test_comm_fail test_comm_window test_sharded test_sharded_agree
                           test_sharded_context test_sharded_contract test_sharded_growth test_sharded_packed
                           test_balance ${checkpoints})
    add_ranks_test(${program}.gpu gpu HOTBED_TEST_TRANSPORT=gpu $<TARGET_FILE:${program}>)
  endforeach()
endif()

if(HOTBED_NCCL)
  set(environment NCCL_NVLS_ENABLE=0) # not every machine has NVLink multicast, and the tests do not need it
  set(nccl ${environment} HOTBED_TEST_TRANSPORT=nccl)
  foreach(program IN ITEMS test_comm test_comm_window test_sharded test_sharded_context)
    add_ranks_test(${program}.nccl1 gpu "${nccl};HOTBED_TEST_GPUS=1" $<TARGET_FILE:${program}>)
  endforeach()
  add_ranks_test(test_comm_window_refused.nccl2 gpu "${nccl};HOTBED_TEST_GPUS=2;NCCL_WIN_ENABLE=0"
                 $<TARGET_FILE:test_comm_window> windows_are_refused)
  foreach(gpus IN ITEMS 2 4)
    foreach(program IN ITEMS test_comm test_comm_fail test_comm_next test_comm_window test_sharded
                             test_sharded_agree test_sharded_context test_sharded_growth test_sharded_packed
                             test_balance ${checkpoints})
      # A thread for each GPU, and a process for each GPU.
      add_ranks_test(${program}.nccl${gpus} "gpu;slow"
                     "${nccl};HOTBED_TEST_GPUS=${gpus}" $<TARGET_FILE:${program}>)
      add_ranks_test(${program}.ncclp${gpus} "gpu;slow"
                     "${environment};HOTBED_TEST_TRANSPORT=nccl-processes" ${launch} ${gpus} $<TARGET_FILE:${program}>)
    endforeach()
    foreach(program IN ITEMS test_train_ranks test_shortcut_ranks)
      add_ranks_test(${program}.nccl${gpus} "gpu;slow"
                     "${nccl};HOTBED_TEST_GPUS=${gpus}" $<TARGET_FILE:${program}> --backend cuda)
    endforeach()
    if(open_mpi)
      add_ranks_test(test_comm.ncclm${gpus} "gpu;slow"
                     "${environment};HOTBED_TEST_TRANSPORT=nccl-mpi"
                     ${mpirun} -n ${gpus} $<TARGET_FILE:test_comm>)
    endif()
    foreach(phase IN LISTS death_phases)
      add_ranks_test(
        comm_death.nccl${gpus}.${phase} "gpu;slow" "${environment};HOTBED_TEST_TRANSPORT=nccl-processes"
        ${CMAKE_CURRENT_SOURCE_DIR}/comm_death.sh ${phase} ${gpus} 300 ${launch} ${gpus}
        $<TARGET_FILE:comm_death>)
    endforeach()
  endforeach()
endif()
