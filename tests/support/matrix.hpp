// What a test computes with on the host: a dense matrix of doubles, and reproducible random ones.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "core/bf16.hpp"
#include "core/check.hpp"
#include "core/random.hpp"
#include "device/view.hpp"

namespace slip::testing {

// The value as an element of T: one rounding.
template <class T> T make_element(double x) {
  if constexpr (__is_same(T, Bf16)) {
    return to_bf16(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}
inline double element_value(Bf16 x) { return to_float(x); }
template <class T> double element_value(T x) { return static_cast<double>(x); }

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<double> values;  // row-major

  Matrix() = default;
  Matrix(int64_t rows, int64_t cols) : rows(rows), cols(cols), values(static_cast<size_t>(rows * cols)) {}
  Matrix(int64_t rows, int64_t cols, std::vector<double> v) : rows(rows), cols(cols), values(std::move(v)) {
    require(static_cast<int64_t>(values.size()) == rows * cols, "Matrix: values do not fit the shape");
  }
  double& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * cols + c)]; }
  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * cols + c)]; }
  View2<double> view() { return {values.data(), rows, cols}; }
  View2<const double> view() const { return {values.data(), rows, cols}; }
};

inline Matrix plus(Matrix a, const Matrix& b) {
  require(a.values.size() == b.values.size(), "plus: shapes differ");
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] += b.values[i];
  return a;
}

// A row of values: what a kernel takes as a plain pointer.
template <class N> Matrix row_of(const std::vector<N>& v) {
  return Matrix(1, static_cast<int64_t>(v.size()), std::vector<double>(v.begin(), v.end()));
}

// Each value as T holds it, so that the reference in double sees what the kernel sees.
template <class T> Matrix rounded(Matrix m) {
  for (double& x : m.values) x = element_value(make_element<T>(x));
  return m;
}

template <class T>
Matrix random_matrix(uint64_t seed, int64_t rows, int64_t cols, double scale = 1, double offset = 0) {
  Matrix m(rows, cols);
  for (size_t i = 0; i < m.values.size(); ++i) m.values[i] = offset + scale * random_normal(seed, 0, i);
  return rounded<T>(std::move(m));
}

// Whole numbers in [-limit, limit]: sums of products of them are exact in any order.
inline Matrix random_integers(uint64_t seed, int64_t rows, int64_t cols, int64_t limit) {
  Matrix m(rows, cols);
  for (size_t i = 0; i < m.values.size(); ++i) {
    m.values[i] = static_cast<double>(random_u64(seed, 1, i) % static_cast<uint64_t>(2 * limit + 1)) -
                  static_cast<double>(limit);
  }
  return m;
}

}  // namespace slip::testing
