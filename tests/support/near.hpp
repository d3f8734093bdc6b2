// Comparisons that can fail: NaN fails, nothing to compare fails, unequal lengths fail. And the one table of
// tolerances: a test may tighten them, never loosen.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <iomanip>
#include <span>

#include "core/bf16.hpp"

namespace slip::testing {

struct Tolerance {
  double abs, rel;  // element by element: |got - want| <= abs + rel |want|
  double norm;      // all together: |got - want| <= norm |want|, Euclidean
};
template <class T> inline constexpr Tolerance kTol = {2e-5, 2e-5, 5e-6};  // float
template <> inline constexpr Tolerance kTol<double> = {1e-10, 1e-10, 1e-11};
template <> inline constexpr Tolerance kTol<Bf16> = {3e-2, 2e-2, 1e-2};

namespace detail {
inline ::testing::AssertionResult comparable(std::span<const double> got, std::span<const double> want) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure() << "got " << got.size() << " elements, want " << want.size();
  }
  if (want.empty()) return ::testing::AssertionFailure() << "nothing to compare: 0 elements";
  return ::testing::AssertionSuccess();
}
}  // namespace detail

inline ::testing::AssertionResult near(std::span<const double> got, std::span<const double> want,
                                       double abs_tol, double rel_tol) {
  if (const auto ok = detail::comparable(got, want); !ok) return ok;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!(std::abs(got[i] - want[i]) <= abs_tol + rel_tol * std::abs(want[i]))) {
      return ::testing::AssertionFailure()
             << std::setprecision(10) << "element " << i << " of " << want.size() << ": got " << got[i]
             << ", want " << want[i] << " (abs_tol " << abs_tol << ", rel_tol " << rel_tol << ")";
    }
  }
  return ::testing::AssertionSuccess();
}

// |got - want| / |want|; NaN where anything is NaN or want is zero and got is not.
inline double relative_error(std::span<const double> got, std::span<const double> want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return difference == 0 ? 0 : norm > 0 ? std::sqrt(difference / norm) : std::nan("");
}

inline ::testing::AssertionResult near(std::span<const double> got, std::span<const double> want,
                                       const Tolerance& tol) {
  if (const auto ok = near(got, want, tol.abs, tol.rel); !ok) return ok;
  if (const double error = relative_error(got, want); !(error <= tol.norm)) {
    return ::testing::AssertionFailure()
           << "relative error of the norm is " << error << ", more than " << tol.norm;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace slip::testing
