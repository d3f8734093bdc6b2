// manifest.json of a dump, in a folder with one shard: what it lists, and nothing outside.
#include "io/feature_manifest.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slip;
  namespace fs = std::filesystem;
  static const std::string folder = [] {
    const std::string root = fs::path(testing::file_of({nullptr, 0}, "features-000000.h5")).parent_path();
    fs::create_directories(root + "/dump");
    testing::file_of({reinterpret_cast<const uint8_t*>("12345678"), 8}, "dump/features-000000.h5");
    return root + "/dump";
  }();
  testing::take_or_refuse([&] {
    testing::file_of({data, size}, "dump/manifest.json");
    for (const std::string& path : expand_feature_paths(folder)) {
      if (fs::path(path).lexically_normal() != fs::path(folder) / "features-000000.h5") std::abort();
    }
    write_manifest(folder, read_manifest(folder).value());
    const DumpManifest once = read_manifest(folder).value();
    if (!spec_differences(once.spec, read_manifest(folder)->spec, "").empty()) std::abort();
  });
  return 0;
}
