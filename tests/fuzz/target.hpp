// What the fuzz targets share. Each is a LLVMFuzzerTestOneInput that hands bytes to one reader, as a file,
// and ends the process where the reader does anything but take them or refuse them as the user should see it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace slip::testing {

struct Bytes {
  const uint8_t* data;
  size_t size;
};

// The path of a file that holds these bytes, in memory; overwritten by the next call with the same name.
std::string file_of(const Bytes&, const std::string& name = "input");

// Runs `read`, which may throw an Error with exit code 2 or 3 whose message is one line. All else aborts.
void take_or_refuse(const std::function<void()>& read);

}  // namespace slip::testing
