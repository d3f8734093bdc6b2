// Products through cuBLASLt, which knows column-major matrices: a row-major matrix is its transpose in that
// order, so C = A op B is asked for as C^T = (op B)^T A^T, with the operands swapped and no data moved.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "core/log.hpp"
#include "device/buffer.hpp"
#include "device/cuda.hpp"
#include "kernels/blas.hpp"
#include "kernels/few_rows.hpp"
#include "kernels/matmul.hpp"
#include "kernels/partials.hpp"

namespace slip {
namespace {

void check(cublasStatus_t rc, Where at = Where::current()) {
  if (rc != CUBLAS_STATUS_SUCCESS) fail(std::string("cuBLASLt: ") + cublasLtGetStatusString(rc), at);
}

template <class T> constexpr cudaDataType_t kType = sizeof(T) == 2 ? CUDA_R_16BF : CUDA_R_32F;

// All that the choice of an algorithm may depend on.
struct Problem {
  Product form;
  cudaDataType_t in, out;
  bool accumulate;
  int64_t m, n, k;                // of the row-major product
  int64_t lda, ldb, ldc;          // distance of rows
  int multiprocessors;            // at most; 0: all
  int align_a, align_b, align_c;  // bytes, at most 16
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
    const bool b_rows_are_n = p.form == Product::nt, a_rows_are_k = p.form == Product::tn;
    check(cublasLtMatrixLayoutInit(&b, p.in, b_rows_are_n ? p.k : p.n, b_rows_are_n ? p.n : p.k, p.ldb));
    check(cublasLtMatrixLayoutInit(&a, p.in, a_rows_are_k ? p.m : p.k, a_rows_are_k ? p.k : p.m, p.lda));
    check(cublasLtMatrixLayoutInit(&c, p.out, p.n, p.m, p.ldc));
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
         std::to_string(p.k) + (p.in == CUDA_R_32F ? " fp32" : " bf16") +
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
  const Problem problem{a.form,
                        kType<T>,
                        kType<Out>,
                        a.accumulate,
                        m,
                        n,
                        k,
                        leading(a.a),
                        leading(a.b),
                        leading(a.c),
                        q.blas->left > 0 ? multiprocessors() - q.blas->left : 0,
                        alignment(a.a.data),
                        alignment(a.b.data),
                        alignment(a.c.data)};
  Description d(problem);
  const cublasLtMatmulAlgo_t& algorithm = q.blas->algorithm(problem, d);
  const float one = 1, beta = a.accumulate ? 1 : 0;
  check(cublasLtMatmul(q.blas->handle, &d.product, &one, a.b.data, &d.b, a.a.data, &d.a, &beta, a.c.data,
                       &d.c, a.c.data, &d.c, &algorithm, q.blas->workspace.data(),
                       size_t(q.blas->workspace.bytes()), q.stream));
}

template void matmul_cuda(const Matmul<float, float>&, const Queue&);
template void matmul_cuda(const Matmul<Bf16, Bf16>&, const Queue&);
template void matmul_cuda(const Matmul<Bf16, float>&, const Queue&);

}  // namespace slip
