// The products of the drafter's linear layers, in the working type or in fp8. In fp8 what several products
// read is quantized once: `input` comes before `forward`, `gradient` before the two products of a gradient.
#pragma once
#include "kernels/matmul.hpp"
#include "model/drafter.hpp"

namespace slip {

template <class T> class Products {
 public:
  Products(const Drafter<T>& d, const Queue& queue) : f_(d.fp8), queue_(queue), frozen_(d.grads == nullptr) {}
  bool fp8() const { return f_.on; }
  // A layer of no memory where there is no fp8.
  const Fp8Layer& layer(size_t l) const {
    static const Fp8Layer none;
    return f_.layers.empty() ? none : f_.layers[l];
  }

  // x of the next forward products; its transpose goes to `kept`, for the weights' gradients.
  void input(View2<const T> x, const Fp8Rows& kept) const {
    if (f_.on) quantize_fp8<T>({x, rows_like(x), tokens_of(kept, x.rows), f_.largest}, queue_);
  }
  void forward(View2<const T> x, View2<const T> w, const Fp8Rows& w_rows, View2<T> y) const {
    if (f_.on) return fp8_matmul<T, T>({rows_like(x), w_rows, y, false, true}, queue_);
    matmul<T, T>({.form = Product::nt, .a = x, .b = w, .c = y, .b_settled = frozen_}, queue_);
  }

  // dy of the next products, and where there is no input gradient among them.
  void gradient(View2<const T> dy) const {
    if (f_.on) quantize_fp8<T>({dy, rows_like(dy), columns_like(dy), f_.largest}, queue_);
  }
  void gradient_of_weights(View2<const T> dy) const {
    if (f_.on) quantize_fp8<T>({dy, {}, columns_like(dy), f_.largest}, queue_);
  }
  void input_gradient(View2<const T> dy, View2<const T> w, const Fp8Rows& w_columns, View2<T> dx,
                      bool accumulate = false) const {
    if (f_.on) return fp8_matmul<T, T>({rows_like(dy), w_columns, dx, accumulate}, queue_);
    matmul<T, T>({Product::nn, dy, w, dx, accumulate}, queue_);
  }
  // Added to g, the rows of the gradient from `first` on. `kept`: x transposed, by `input` or `turned`.
  void weight_gradient(View2<const T> dy, View2<const T> x, const Fp8Rows& kept, View2<Acc<T>> g,
                       int64_t first = 0) const {
    if (f_.on)
      return fp8_matmul<T, Acc<T>>(
          {columns_like(dy).rows_from(first, g.rows), tokens_of(kept, dy.rows), g, true}, queue_);
    matmul<T, Acc<T>>({Product::tn, dy.cols_from(first, g.rows), x, g, true}, queue_);
  }
  // x transposed, in memory that the next call takes again.
  Fp8Rows turned(View2<const T> x) const {
    if (!f_.on) return {};
    const Fp8Rows to{{f_.input, x.cols, fp8_padded(x.rows)}, f_.input_scale};
    quantize_fp8<T>({x, {}, to, f_.largest}, queue_);
    return to;
  }

 private:
  template <class V> Fp8Rows rows_like(const V& x) const { return {{f_.rows, x.rows, x.cols}, f_.row_scale}; }
  template <class V> Fp8Rows columns_like(const V& x) const {
    return {{f_.columns, x.cols, fp8_padded(x.rows)}, f_.column_scale};
  }
  static Fp8Rows tokens_of(const Fp8Rows& kept, int64_t tokens) {
    return kept.empty() ? kept : kept.k_from(0, fp8_padded(tokens));
  }

  const DrafterFp8& f_;
  const Queue& queue_;
  bool frozen_;
};

}  // namespace slip
