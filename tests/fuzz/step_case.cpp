// Case files of `step`, as far as they are read.
#include "apps/step_case.hpp"

#include "fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slip;
  testing::take_or_refuse([&] { read_step_case(SafetensorsFile(testing::file_of({data, size}))); });
  return 0;
}
