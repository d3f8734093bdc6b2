# The CPU kernels are compiled for the x86-64 level of the machine that configures the build, so that Eigen
# and the compiler use its vector units. `cpu_level_check` (src/device) refuses to run on a lesser processor.
set(SLIP_CPU_LEVEL "auto" CACHE STRING "x86-64 level of the CPU kernels: auto, x86-64, x86-64-v2, x86-64-v3, x86-64-v4")
set(SLIP_CPU_FLAGS "")
set(SLIP_CPU_LEVEL_USED "generic")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(level ${SLIP_CPU_LEVEL})
  if(level STREQUAL "auto")
    file(WRITE ${CMAKE_BINARY_DIR}/cpu_level.cpp [[
#include <cstdio>
int main() {
  __builtin_cpu_init();
  std::puts(__builtin_cpu_supports("x86-64-v4") ? "x86-64-v4" : __builtin_cpu_supports("x86-64-v3") ? "x86-64-v3" : "x86-64-v2");
}
]])
    try_run(ran compiled ${CMAKE_BINARY_DIR} ${CMAKE_BINARY_DIR}/cpu_level.cpp RUN_OUTPUT_VARIABLE level)
    if(NOT compiled OR NOT ran EQUAL 0)
      set(level "x86-64-v2")
    endif()
    string(STRIP "${level}" level)
  endif()
  set(SLIP_CPU_FLAGS -march=${level})
  if(level STREQUAL "x86-64-v4")
    list(APPEND SLIP_CPU_FLAGS -mprefer-vector-width=512)
  endif()
  set(SLIP_CPU_LEVEL_USED ${level})
endif()
message(STATUS "CPU kernels: ${SLIP_CPU_LEVEL_USED}")
