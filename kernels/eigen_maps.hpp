// Views as Eigen maps, for the CPU kernels only.
#pragma once
#include <Eigen/Core>

#include "device/view.hpp"

namespace slip {

template <class T> using RowMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T> using MatrixMap = Eigen::Map<RowMatrix<T>, 0, Eigen::OuterStride<>>;
template <class T> using ConstMatrixMap = Eigen::Map<const RowMatrix<T>, 0, Eigen::OuterStride<>>;
template <class T> using RowArray = Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>;
template <class T> using ConstRowArray = Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>>;

template <class T> MatrixMap<T> map(const View2<T>& v) {
  return {v.data, v.rows, v.cols, Eigen::OuterStride<>(v.stride)};
}
template <class T> ConstMatrixMap<T> map(const View2<const T>& v) {
  return {v.data, v.rows, v.cols, Eigen::OuterStride<>(v.stride)};
}
template <class T> RowArray<T> array(T* p, int64_t n) { return {p, n}; }
template <class T> ConstRowArray<T> array(const T* p, int64_t n) { return {p, n}; }

}  // namespace slip
