#include "kernels/eigen_maps.hpp"
#include "kernels/matmul.hpp"

namespace slip {

template <class T, class Out> void matmul_cpu(const Matmul<T, Out>& a) {
  const int64_t rows = a.form == Product::tn ? a.a.cols : a.a.rows;
  const int64_t inner_a = a.form == Product::tn ? a.a.rows : a.a.cols;
  const int64_t inner_b = a.form == Product::nt ? a.b.cols : a.b.rows;
  const int64_t cols = a.form == Product::nt ? a.b.rows : a.b.cols;
  require(a.c.rows == rows && a.c.cols == cols && inner_a == inner_b, "matmul: shapes do not fit");
  if (rows == 0 || cols == 0) return;
  auto c = map(a.c);
  const auto left = map(a.a);
  const auto right = map(a.b);
  const auto put = [&](const auto& product) {
    if (a.accumulate) {
      c.noalias() += product;
    } else {
      c.noalias() = product;
    }
  };
  switch (a.form) {
    case Product::nt:
      return put(left * right.transpose());
    case Product::nn:
      return put(left * right);
    case Product::tn:
      return put(left.transpose() * right);
  }
}

template void matmul_cpu(const Matmul<float, float>&);
template void matmul_cpu(const Matmul<double, double>&);

}  // namespace slip
