// safetensors files: the header, then every tensor's bytes, as they are and as numbers.
#include "io/safetensors.hpp"

#include "fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slip;
  testing::take_or_refuse([&] {
    const SafetensorsFile file(testing::file_of({data, size}));
    for (const TensorInfo& t : file.tensors()) {
      std::vector<char> raw(static_cast<size_t>(t.bytes));
      file.read(t, raw.data());
      if (t.dtype != Dtype::f32 && t.dtype != Dtype::bf16 && t.dtype != Dtype::f16 && t.dtype != Dtype::f64)
        continue;
      std::vector<float> values(static_cast<size_t>(t.count()));
      file.read_float(t, values.data());
      std::vector<Bf16> rounded(values.size());
      file.read_bf16(t, rounded.data());
    }
  });
  return 0;
}
