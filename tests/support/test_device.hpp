// Where a test of a model runs: one source, two executables, as the kernels have them (kernel_test.hpp).
#pragma once
#include <vector>

#include "device/buffer.hpp"
#include "support/matrix.hpp"
#include "support/queue.hpp"

namespace slip::testing {

#if SLIP_TEST_GPU
inline constexpr Device kTestDevice = Device::cuda;
#else
inline constexpr Device kTestDevice = Device::cpu;
#endif

// `count` elements of the queue's memory, in host memory. Waits for the queue.
template <class T> std::vector<T> downloaded(const T* from, int64_t count, const Queue& queue) {
  std::vector<T> out(static_cast<size_t>(count));
  copy_to_host(out.data(), from, count * static_cast<int64_t>(sizeof(T)), queue);
  synchronize(queue);
  return out;
}
template <class T> void upload(T* to, const std::vector<T>& from, const Queue& queue) {
  copy_to_device(to, from.data(), static_cast<int64_t>(from.size() * sizeof(T)), queue);
  synchronize(queue);
}

// The elements of a view, rows one after the other.
template <class T> std::vector<double> values_of(const View2<T>& v, const Queue& queue) {
  std::vector<double> out;
  if (v.rows == 0) return out;
  const auto all = downloaded<std::remove_const_t<T>>(v.data, (v.rows - 1) * v.stride + v.cols, queue);
  for (int64_t r = 0; r < v.rows; ++r) {
    for (int64_t c = 0; c < v.cols; ++c)
      out.push_back(element_value(all[static_cast<size_t>(r * v.stride + c)]));
  }
  return out;
}
// Fills the first rows of a view whose rows follow one another.
template <class T> void fill_rows(const View2<T>& to, const Matrix& from, const Queue& queue) {
  require(to.stride == to.cols && to.cols == from.cols && from.rows <= to.rows,
          "fill_rows: shapes do not fit");
  std::vector<T> elements;
  for (const double x : from.values) elements.push_back(make_element<T>(x));
  upload(to.data, elements, queue);
}

}  // namespace slip::testing
