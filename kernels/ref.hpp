// What the references (*_ref.cpp) share: they compute in double whatever they read and write.
#pragma once
#include "core/bf16.hpp"

namespace slip {

template <class T> double to_double(T x) { return static_cast<double>(to_float(x)); }
template <class T> T from_double(double x) {
  if constexpr (__is_same(T, double)) {
    return x;
  } else {
    return from_float<T>(static_cast<float>(x));
  }
}

}  // namespace slip
