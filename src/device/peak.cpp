#include "device/peak.hpp"

#if SLIP_HAVE_CUDA
#include "device/cuda.hpp"
#endif

namespace slip {

std::string gpu_name() {
#if SLIP_HAVE_CUDA
  int count = 0, device = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return "";
  cudaDeviceProp properties;
  check(cudaGetDevice(&device));
  check(cudaGetDeviceProperties(&properties, device));
  return properties.name;
#else
  return "";
#endif
}

double declared_bf16_flops(std::string_view gpu_name) {
  static constexpr struct {
    std::string_view part;
    double tflops;
  } kCards[] = {// a longer name stands before one that it contains
                {"GH200", 989.4},    {"H200 NVL", 835.5}, {"H200", 989.4}, {"H100 PCIe", 756},
                {"H100 NVL", 835.5}, {"H100", 989.4},     {"H800", 989.4}, {"GB200", 2500},
                {"B200", 2250},      {"A100", 312},       {"A800", 312}};
  for (const auto& card : kCards)
    if (gpu_name.find(card.part) != std::string_view::npos) return card.tflops * 1e12;
  return 0;
}

}  // namespace slip
