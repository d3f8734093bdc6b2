// The specification of kernels/matmul.hpp: three loops and a double sum.
#include "kernels/matmul.hpp"
#include "kernels/ref.hpp"

namespace slip {

template <class T, class Out> void matmul_ref(const Matmul<T, Out>& p) {
  const int64_t inner = p.form == Product::tn ? p.a.rows : p.a.cols;
  for (int64_t m = 0; m < p.c.rows; ++m) {
    for (int64_t n = 0; n < p.c.cols; ++n) {
      double sum = p.accumulate ? to_double(p.c.at(m, n)) : 0;
      for (int64_t k = 0; k < inner; ++k) {
        const T a = p.form == Product::tn ? p.a.at(k, m) : p.a.at(m, k);
        const T b = p.form == Product::nt ? p.b.at(n, k) : p.b.at(k, n);
        sum += to_double(a) * to_double(b);
      }
      p.c.at(m, n) = from_double<Out>(sum);
    }
  }
}

template void matmul_ref(const Matmul<float, float>&);
template void matmul_ref(const Matmul<double, double>&);
template void matmul_ref(const Matmul<Bf16, Bf16>&);
template void matmul_ref(const Matmul<Bf16, float>&);

}  // namespace slip
