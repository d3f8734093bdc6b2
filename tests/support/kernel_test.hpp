// A kernel test runs once for every back end and type that its executable is for: one source, two
// executables. With SLIP_TEST_GPU (the label gpu) CUDA in fp32 and bf16, without it the CPU in fp32 and fp64.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "support/device_array.hpp"
#include "support/near.hpp"
#include "support/queue.hpp"

namespace slip::testing {

template <Device device, class T> struct BackEnd {
  static constexpr Device kDevice = device;
  using Type = T;
};
#if SLIP_TEST_GPU
using BackEnds = ::testing::Types<BackEnd<Device::cuda, float>, BackEnd<Device::cuda, Bf16>>;
#else
using BackEnds = ::testing::Types<BackEnd<Device::cpu, float>, BackEnd<Device::cpu, double>>;
#endif

struct BackEndName {
  template <class B> static std::string GetName(int) {
    using T = typename B::Type;
    const char* type = sizeof(T) == 2 ? "bf16" : sizeof(T) == 4 ? "float" : "double";
    return std::string(B::kDevice == Device::cpu ? "cpu_" : "cuda_") + type;
  }
};

template <class B> class KernelTest : public ::testing::Test {
 protected:
  const Queue& queue() const { return queue_.get(); }

 private:
  TestQueue queue_ = make_queue(B::kDevice);
};

// got agrees with the reference as well as its type allows
template <class T>::testing::AssertionResult agrees(const DeviceArray<T>& got, const Matrix& want) {
  return near(got.values(), want.values, kTol<T>);
}
// An fp32 result of bf16 arithmetic has the tolerance of bf16.
template <class T, class U>
::testing::AssertionResult agrees_as(const DeviceArray<U>& got, const Matrix& want) {
  return near(got.values(), want.values, kTol<T>);
}
// the same bits: for copies, whole numbers, and the same call made twice
template <class T>::testing::AssertionResult same_bits(const DeviceArray<T>& a, const DeviceArray<T>& b) {
  const std::vector<T> x = a.elements(), y = b.elements();
  if (x.size() != y.size() || x.empty()) {
    return ::testing::AssertionFailure() << x.size() << " and " << y.size() << " elements";
  }
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::memcmp(&x[i], &y[i], sizeof(T)) != 0) {
      return ::testing::AssertionFailure() << "element " << i << " of " << x.size() << ": "
                                           << element_value(x[i]) << " and " << element_value(y[i]);
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace slip::testing
