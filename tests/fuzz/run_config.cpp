// The INI file of a run. What is accepted is printed as `train --print-config` does, and that reads back.
#include "apps/options.hpp"
#include "fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slip;
  testing::take_or_refuse([&] {
    const std::string path = testing::file_of({data, size}, "run.ini");
    const std::string printed = print_config(load_config(path, {}));
    testing::file_of({reinterpret_cast<const uint8_t*>(printed.data()), printed.size()}, "again.ini");
    const std::string again = path.substr(0, path.rfind('/')) + "/again.ini";
    if (print_config(load_config(again, {})) != printed) std::abort();
  });
  return 0;
}
