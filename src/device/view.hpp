// Views: pointer with shape. They own nothing and copy nothing; everyone but the owner gets one by value.
#pragma once
#include <cstdint>

#include "core/host_device.hpp"

namespace slip {

// rows x cols, row-major; consecutive rows are `stride` elements apart.
template <class T> struct View2 {
  T* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;

  View2() = default;
  SLIP_HD View2(T* data, int64_t rows, int64_t cols) : View2(data, rows, cols, cols) {}
  SLIP_HD View2(T* data, int64_t rows, int64_t cols, int64_t stride)
      : data(data), rows(rows), cols(cols), stride(stride) {}
  // A view of U reads as a view of const U.
  template <class U>
  requires(!__is_same(U, T) && __is_same(const U, T)) SLIP_HD View2(const View2<U>& v)
      : View2(v.data, v.rows, v.cols, v.stride) {}

  SLIP_HD T* row(int64_t r) const { return data + r * stride; }
  SLIP_HD T& at(int64_t r, int64_t c) const { return data[r * stride + c]; }
  SLIP_HD View2 rows_from(int64_t first, int64_t count) const {
    return {data + first * stride, count, cols, stride};
  }
  SLIP_HD View2 cols_from(int64_t first, int64_t count) const { return {data + first, rows, count, stride}; }
  SLIP_HD bool empty() const { return data == nullptr; }
};

}  // namespace slip
