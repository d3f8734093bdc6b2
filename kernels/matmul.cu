// Products through cuBLASLt, which knows column-major matrices: a row-major matrix is its transpose in that
// order, so C = A op B is asked for as C^T = (op B)^T A^T, with the operands swapped and no data moved.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <type_traits>

#include "core/log.hpp"
#include "device/buffer.hpp"
#include "device/cuda.hpp"
#include "kernels/blas.hpp"
#include "kernels/few_rows.hpp"
#include "kernels/fp8.hpp"
#include "kernels/matmul.hpp"
#include "kernels/partials.hpp"

namespace slip {
namespace {

void check(cublasStatus_t rc, Where at = Where::current()) {
  if (rc != CUBLAS_STATUS_SUCCESS) fail(std::string("cuBLASLt: ") + cublasLtGetStatusString(rc), at);
}

template <class T>
constexpr cudaDataType_t kType = sizeof(T) == 1   ? CUDA_R_8F_E4M3
                                 : sizeof(T) == 2 ? CUDA_R_16BF
                                                  : CUDA_R_32F;

// All that the choice of an algorithm may depend on.
struct Problem {
  Product form;
  cudaDataType_t in, out;
  bool accumulate;
  int64_t m, n, k;                // of the row-major product
  int64_t lda, ldb, ldc;          // distance of rows
  int multiprocessors;            // at most; 0: all
  int align_a, align_b, align_c;  // bytes, at most 16
  bool fast = false;              // fp8: sums in short accumulators
  auto operator<=>(const Problem&) const = default;
};

int alignment(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return int(std::min<uintptr_t>(16, address & (~address + 1)));
}
// The rows of a matrix with one row have no distance; cuBLASLt wants one all the same.
template <class T> int64_t leading(const View2<T>& v) {
  return v.rows > 1 ? v.stride : std::max(v.stride, v.cols);
}

// Descriptions on the stack: nothing to own. The first operand of cuBLASLt is our b.
struct Description {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, c;

  explicit Description(const Problem& p) {
    // COMPUTE_32F: fp32 sums for bf16, and true fp32 products (no TF32) for fp32.
    check(cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.form == Product::nt ? CUBLAS_OP_T : CUBLAS_OP_N);  // of b
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.form == Product::tn ? CUBLAS_OP_T : CUBLAS_OP_N);  // of a
    if (p.multiprocessors > 0) set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, p.multiprocessors);
    if (p.fast) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
    const bool b_rows_are_n = p.form == Product::nt, a_rows_are_k = p.form == Product::tn;
    check(cublasLtMatrixLayoutInit(&b, p.in, b_rows_are_n ? p.k : p.n, b_rows_are_n ? p.n : p.k, p.ldb));
    check(cublasLtMatrixLayoutInit(&a, p.in, a_rows_are_k ? p.m : p.k, a_rows_are_k ? p.k : p.m, p.lda));
    check(cublasLtMatrixLayoutInit(&c, p.out, p.n, p.m, p.ldc));
  }

  // One factor for each row of our a and of our b.
  void scale_rows(const float* of_a, const float* of_b) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a);
  }

 private:
  template <class V> void set(cublasLtMatmulDescAttributes_t attribute, V value) {
    check(cublasLtMatmulDescSetAttribute(&product, attribute, &value, sizeof value));
  }
};

int multiprocessors() {
  int device = 0, count = 0;
  slip::check(cudaGetDevice(&device));
  slip::check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

std::string words(const Problem& p) {
  const char* forms[] = {"nt", "nn", "tn"};
  return std::string(forms[int(p.form)]) + " " + std::to_string(p.m) + "x" + std::to_string(p.n) + "x" +
         std::to_string(p.k) +
         (p.in == CUDA_R_32F       ? " fp32"
          : p.in == CUDA_R_8F_E4M3 ? " fp8 (one scale a row, which needs sm_90)"
                                   : " bf16") +
         (p.out == CUDA_R_32F ? " to fp32" : " to bf16");
}

}  // namespace

struct BlasContext {
  cublasLtHandle_t handle = nullptr;
  Buffer workspace;
  Buffer tickets;  // of products of few rows
  std::map<Problem, cublasLtMatmulAlgo_t> algorithms;
  int left = 0;  // multiprocessors

  BlasContext() : workspace(Place::device, kBlasWorkspaceBytes), tickets(Place::device, kFewRowsBlocks * 4) {
    check(cublasLtCreate(&handle));
  }
  ~BlasContext() {
    if (handle != nullptr && cublasLtDestroy(handle) != CUBLAS_STATUS_SUCCESS)
      log_warn("the cuBLASLt handle would not close");
  }
  BlasContext(const BlasContext&) = delete;
  BlasContext& operator=(const BlasContext&) = delete;

  // The first answer of the heuristic, kept: a repeated product takes the same path and has the same bits. Of
  // the ways to split K only the one that adds fp32 parts in a step of its own, in order.
  const cublasLtMatmulAlgo_t& algorithm(const Problem& p, Description& d) {
    const auto found = algorithms.find(p);
    if (found != algorithms.end()) return found->second;
    cublasLtMatmulPreferenceOpaque_t preference;
    check(cublasLtMatmulPreferenceInit(&preference));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace.bytes()));
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(p.align_b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(p.align_a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(p.align_c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(p.align_c));
    cublasLtMatmulHeuristicResult_t result = {};
    int count = 0;
    const cublasStatus_t rc = cublasLtMatmulAlgoGetHeuristic(handle, &d.product, &d.b, &d.a, &d.c, &d.c,
                                                             &preference, 1, &result, &count);
    if (rc == CUBLAS_STATUS_NOT_SUPPORTED || count == 0)
      fail("cuBLASLt has no algorithm for the product " + words(p));
    check(rc);
    check(result.state);
    return algorithms.emplace(p, result.algo).first->second;
  }
};

void BlasCloser::operator()(BlasContext* blas) const noexcept { delete blas; }
Blas make_blas() { return Blas(new BlasContext); }
int64_t blas_algorithms(const BlasContext& blas) { return int64_t(blas.algorithms.size()); }

void leave_multiprocessors(const Queue& q, int count) {
  require(count >= 0 && count < multiprocessors(), "leave_multiprocessors: none would be left");
  q.blas->left = count;
}
int left_multiprocessors(const Queue& q) { return q.blas == nullptr ? 0 : q.blas->left; }

namespace {

template <class T, class Out>
Problem problem_of(const View2<T>& a, const View2<T>& b, const View2<Out>& c, Product form, bool accumulate,
                   int left) {
  const bool tn = form == Product::tn;
  return {form,
          kType<std::remove_const_t<T>>,
          kType<Out>,
          accumulate,
          c.rows,
          c.cols,
          tn ? a.rows : a.cols,
          leading(a),
          leading(b),
          leading(c),
          left > 0 ? multiprocessors() - left : 0,
          alignment(a.data),
          alignment(b.data),
          alignment(c.data)};
}

void multiply(BlasContext& blas, const Problem& p, Description& d, const void* a, const void* b, void* c,
              CudaStream stream) {
  const cublasLtMatmulAlgo_t& algorithm = blas.algorithm(p, d);
  const float one = 1, beta = p.accumulate ? 1 : 0;
  check(cublasLtMatmul(blas.handle, &d.product, &one, b, &d.b, a, &d.a, &beta, c, &d.c, c, &d.c, &algorithm,
                       blas.workspace.data(), size_t(blas.workspace.bytes()), stream));
}

}  // namespace

template <class T, class Out> void matmul_cuda(const Matmul<T, Out>& a, const Queue& q) {
  const bool nt = a.form == Product::nt, tn = a.form == Product::tn;
  const int64_t m = a.c.rows, n = a.c.cols, k = tn ? a.a.rows : a.a.cols;
  require((tn ? a.a.cols : a.a.rows) == m, "matmul: a does not fit c");
  require((nt ? a.b.rows : a.b.cols) == n && (nt ? a.b.cols : a.b.rows) == k,
          "matmul: b does not fit a and c");
  require(q.blas != nullptr, "matmul: the queue has no BlasContext");
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (a.accumulate) return;
    check(cudaMemset2DAsync(a.c.data, size_t(leading(a.c)) * sizeof(Out), 0, size_t(n) * sizeof(Out),
                            size_t(m), q.stream));
    return;
  }
  if constexpr (sizeof(T) == 2) {
    const FewRowsScratch scratch{q.blas->workspace.as<float>(), q.blas->tickets.as<unsigned>(),
                                 q.blas->workspace.bytes() / int64_t(sizeof(float))};
    if (few_rows_takes(a) && scratch.part_count >= few_rows_parts(n, k))
      return few_rows_matmul(a, scratch, q.stream);
  }
  const Problem problem = problem_of(a.a, a.b, a.c, a.form, a.accumulate, q.blas->left);
  Description d(problem);
  multiply(*q.blas, problem, d, a.a.data, a.b.data, a.c.data, q.stream);
}

template <class T, class Out> void fp8_matmul_cuda(const Fp8Matmul<T, Out>& a, const Queue& q) {
  const View2<E4m3>&left = a.a.q, &right = a.b.q;
  require(a.c.rows == left.rows && a.c.cols == right.rows && left.cols == right.cols,
          "fp8_matmul: shapes do not fit");
  require(left.cols > 0 && left.cols % 16 == 0 && right.rows % 16 == 0,
          "fp8_matmul: K and the rows of b must be multiples of 16");
  require(q.blas != nullptr, "fp8_matmul: the queue has no BlasContext");
  if (a.c.rows == 0 || a.c.cols == 0) return;
  Problem problem = problem_of(left, right, a.c, Product::nt, a.accumulate, q.blas->left);
  problem.fast = a.fast;
  Description d(problem);
  d.scale_rows(a.a.scale, a.b.scale);
  multiply(*q.blas, problem, d, left.data, right.data, a.c.data, q.stream);
}

template void fp8_matmul_cuda(const Fp8Matmul<float, float>&, const Queue&);
template void fp8_matmul_cuda(const Fp8Matmul<Bf16, Bf16>&, const Queue&);
template void fp8_matmul_cuda(const Fp8Matmul<Bf16, float>&, const Queue&);
template void matmul_cuda(const Matmul<float, float>&, const Queue&);
template void matmul_cuda(const Matmul<Bf16, Bf16>&, const Queue&);
template void matmul_cuda(const Matmul<Bf16, float>&, const Queue&);

}  // namespace slip
