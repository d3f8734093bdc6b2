// The gradient of a number by central differences, in double: what a backward pass is checked against.
#pragma once
#include "support/matrix.hpp"

namespace slip::testing {

// d f / d m, element by element; f reads m. The error is of order step^2.
template <class F> Matrix finite_difference(Matrix& m, F&& f, double step = 1e-5) {
  Matrix gradient(m.rows, m.cols);
  for (size_t i = 0; i < m.values.size(); ++i) {
    const double x = m.values[i];
    m.values[i] = x + step;
    const double above = f();
    m.values[i] = x - step;
    const double below = f();
    m.values[i] = x;
    gradient.values[i] = (above - below) / (2 * step);
  }
  return gradient;
}

inline double dot(const Matrix& a, const Matrix& b) {
  require(a.values.size() == b.values.size(), "dot: shapes differ");
  double sum = 0;
  for (size_t i = 0; i < a.values.size(); ++i) sum += a.values[i] * b.values[i];
  return sum;
}

// What central differences with the default step can show.
inline constexpr double kDifferenceAbs = 1e-8, kDifferenceRel = 1e-7;

}  // namespace slip::testing
