#include <algorithm>

#include "kernels/embedding.hpp"

namespace slip {

template <class T> void gather_rows_cpu(const GatherRows<T>& a) {
  require(a.table.cols == a.out.cols, "gather_rows: out must have the columns of the table");
  for (int64_t r = 0; r < a.out.rows; ++r) {
    require(a.index[r] >= 0 && a.index[r] < a.table.rows, "gather_rows: an index is outside the table");
    std::copy_n(a.table.row(a.index[r]), a.out.cols, a.out.row(r));
  }
}

template void gather_rows_cpu(const GatherRows<float>&);
template void gather_rows_cpu(const GatherRows<double>&);

}  // namespace slip
