# slip_test, slip_mpi_test and slip_script_test: how a test is declared. One executable is one ctest.
set(SLIP_TEST_TIMEOUT 120)
set(SLIP_TEST_ENVIRONMENT OMP_NUM_THREADS=1)
set(SLIP_MPI_TEST_ENVIRONMENT OMP_NUM_THREADS=1 GTEST_COLOR=no OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_mpi_yield_when_idle=1  # ranks poll: without it more ranks than cores are a thousand times slower
  OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none)  # containers forbid the single copy
if(SLIP_SANITIZE)
  set(SLIP_TEST_TIMEOUT 600)
  list(APPEND SLIP_MPI_TEST_ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)  # OpenMPI and hwloc leak by design
endif()
set(SLIP_TIMEOUT_FACTOR 1)
if(SLIP_TSAN)
  set(SLIP_TIMEOUT_FACTOR 5)  # so much slower are threads that are watched
endif()

# The main of MPI tests. An archive: a test that has its own main keeps it.
add_library(slip_mpi_test_main STATIC ${CMAKE_CURRENT_LIST_DIR}/mpi_main.cpp)
target_link_libraries(slip_mpi_test_main PUBLIC slip_flags GTest::gtest MPI::MPI_CXX)

function(slip_test_executable name main sources libs)
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${libs} slip_flags ${main} GTest::gmock GTest::gtest)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE
    SLIP_SOURCE_DIR="${CMAKE_SOURCE_DIR}" SLIP_BINARY_DIR="${CMAKE_BINARY_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
endfunction()

# A gpu test in a build without CUDA: skipped, or failed where a GPU is required.
function(slip_skipped_gpu_test name)
  add_test(NAME ${name} COMMAND sh -c
    "echo 'skipped: this build has no CUDA'; if test \"$SLIP_REQUIRE_GPU\" = 1; then exit 1; fi; exit 77")
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 LABELS gpu)
endfunction()

# slip_test(NAME [SOURCES] a.cpp b.cu... [LABEL cpu|gpu] [LIBS slip_kernels...] [TIMEOUT seconds])
# A GoogleTest executable with gtest_main. A gpu test without a device returns 77: skipped.
function(slip_test name)
  cmake_parse_arguments(PARSE_ARGV 1 t "" "LABEL;TIMEOUT" "SOURCES;LIBS")
  set(sources ${t_SOURCES} ${t_UNPARSED_ARGUMENTS})
  if(NOT t_LABEL)
    set(t_LABEL cpu)
  endif()
  if(NOT t_LABEL MATCHES "^(cpu|gpu)$" OR NOT sources)
    message(FATAL_ERROR "slip_test(${name}): needs sources, and LABEL cpu or gpu (found '${t_LABEL}')")
  endif()
  if(NOT t_TIMEOUT)
    set(t_TIMEOUT ${SLIP_TEST_TIMEOUT})
  endif()
  math(EXPR timeout "${t_TIMEOUT} * ${SLIP_TIMEOUT_FACTOR}")
  if(t_LABEL STREQUAL "gpu" AND NOT SLIP_HAVE_CUDA)
    slip_skipped_gpu_test(${name})
    return()
  endif()
  slip_test_executable(${name} GTest::gtest_main "${sources}" "${t_LIBS}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${t_LABEL} TIMEOUT ${timeout} SKIP_RETURN_CODE 77
    ENVIRONMENT "${SLIP_TEST_ENVIRONMENT}")
  if(t_LABEL STREQUAL "gpu")
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK gpu)
  endif()
endfunction()

# slip_mpi_test(NAME [SOURCES] a.cpp... [RANKS 2 4] [LABEL mpi|gpu] [LIBS slip_comm...] [TIMEOUT seconds])
# One ctest per number of ranks, NAME_2 and NAME_4. support/mpi_main.cpp is its main: initialises MPI, and the
# verdict is the worst of all ranks. A gpu test (LIBS with slip_kernels) without a device returns 77: skipped.
function(slip_mpi_test name)
  cmake_parse_arguments(PARSE_ARGV 1 t "" "TIMEOUT;LABEL" "SOURCES;LIBS;RANKS")
  set(sources ${t_SOURCES} ${t_UNPARSED_ARGUMENTS})
  if(NOT t_RANKS)
    set(t_RANKS 2 4)
  endif()
  if(NOT t_LABEL)
    set(t_LABEL mpi)
  endif()
  if(NOT t_TIMEOUT)
    set(t_TIMEOUT ${SLIP_TEST_TIMEOUT})
  endif()
  math(EXPR timeout "${t_TIMEOUT} * ${SLIP_TIMEOUT_FACTOR}")
  if(t_LABEL STREQUAL "gpu" AND NOT SLIP_HAVE_CUDA)
    slip_skipped_gpu_test(${name})
    return()
  endif()
  if(t_LABEL STREQUAL "gpu")
    list(APPEND sources ${CMAKE_SOURCE_DIR}/tests/support/mpi_main.cpp)
  endif()
  slip_test_executable(${name} slip_mpi_test_main "${sources}" "${t_LIBS}")
  if(t_LABEL STREQUAL "gpu")
    target_compile_definitions(${name} PRIVATE SLIP_TEST_GPU=1)
  endif()
  foreach(ranks IN LISTS t_RANKS)
    add_test(NAME ${name}_${ranks} COMMAND
      ${MPIEXEC_EXECUTABLE} -n ${ranks} --map-by :OVERSUBSCRIBE --bind-to none $<TARGET_FILE:${name}>)
    set_tests_properties(${name}_${ranks} PROPERTIES LABELS ${t_LABEL} TIMEOUT ${timeout} PROCESSORS 2
      SKIP_RETURN_CODE 77 ENVIRONMENT "${SLIP_MPI_TEST_ENVIRONMENT}")
    if(t_LABEL STREQUAL "gpu")
      set_tests_properties(${name}_${ranks} PROPERTIES RESOURCE_LOCK gpu)
    endif()
  endforeach()
endfunction()

# slip_script_test(NAME COMMAND program args... [LABEL cpu|mpi|gpu] [TIMEOUT seconds])
# Any other program, in Python or shell; runs in the project root with the MPI test environment. 77: skipped.
function(slip_script_test name)
  cmake_parse_arguments(PARSE_ARGV 1 t "" "LABEL;TIMEOUT" "COMMAND")
  if(NOT t_LABEL)
    set(t_LABEL cpu)
  endif()
  if(NOT t_TIMEOUT)
    set(t_TIMEOUT ${SLIP_TEST_TIMEOUT})
  endif()
  math(EXPR timeout "${t_TIMEOUT} * ${SLIP_TIMEOUT_FACTOR}")
  add_test(NAME ${name} COMMAND ${t_COMMAND} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS ${t_LABEL} TIMEOUT ${timeout} SKIP_RETURN_CODE 77
    ENVIRONMENT "${SLIP_MPI_TEST_ENVIRONMENT};PYTHONDONTWRITEBYTECODE=1;SLIP_BINARY_DIR=${CMAKE_BINARY_DIR}")
  if(NOT t_LABEL STREQUAL "cpu")
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
  endif()
endfunction()
