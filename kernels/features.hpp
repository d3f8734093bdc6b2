// The input of the drafter: features travel as bf16, one tap after the other (rmsnorm.hpp `capture` rounds
// them), and are used concatenated per token (dflash.md 1.2: X = [tokens, K*H], tap m in columns m*H..).
#pragma once
#include "device/queue.hpp"
#include "device/view.hpp"

namespace slip {

template <class T> struct JoinTaps {
  const Bf16* slot;  // [taps][slot_tokens][H]
  int64_t slot_tokens;
  int taps;
  View2<T> x;       // (tokens <= slot_tokens, taps*H)
  int* non_finite;  // (1) set to 1 where a value is NaN or infinite, never cleared here
};
template <class T> void join_taps_cpu(const JoinTaps<T>&);
template <class T> void join_taps_cuda(const JoinTaps<T>&, CudaStream);
template <class T> void join_taps(const JoinTaps<T>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { join_taps_cpu(a); }, [&](auto s) { join_taps_cuda(a, s); });
}

// Element-wise conversion; From and To among float, double, Bf16.
template <class From, class To> struct Cast {
  View2<const From> from;
  View2<To> to;
};
template <class From, class To> void cast_cpu(const Cast<From, To>&);
template <class From, class To> void cast_cuda(const Cast<From, To>&, CudaStream);
// T names the back ends: the working type of the model that asks.
template <class T, class From, class To> void cast(const Cast<From, To>& a, const Queue& q) {
  dispatch<T>(
      q, [&](auto) { cast_cpu(a); }, [&](auto s) { cast_cuda(a, s); });
}

}  // namespace slip
