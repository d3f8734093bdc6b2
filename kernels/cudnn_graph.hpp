// Operation graphs for cuDNN 9, in its C API: descriptors that close themselves, the few operations that
// attention is made of, and the plan that cuDNN compiles from them. Internal to the library.
#pragma once
#if SLIP_HAVE_CUDNN
#include <cudnn.h>

#include <array>
#include <memory>
#include <vector>

#include "core/check.hpp"

namespace slip {

void check(cudnnStatus_t, Where at = Where::current());  // with cuDNN's own last error
void warn_unless_ok(cudnnStatus_t) noexcept;             // for destructors

template <auto destroy> struct CudnnCloser {
  template <class H> void operator()(H h) const noexcept { warn_unless_ok(destroy(h)); }
};
using CudnnHandle = std::unique_ptr<cudnnContext, CudnnCloser<cudnnDestroy>>;
CudnnHandle make_cudnn_handle();  // on the current device

// One backend descriptor: attributes are set, then it is finalized.
class CudnnNode {
 public:
  CudnnNode() = default;
  explicit CudnnNode(cudnnBackendDescriptorType_t);
  cudnnBackendDescriptor_t get() const { return node_.get(); }
  bool empty() const { return node_ == nullptr; }

  using Name = cudnnBackendAttributeName_t;
  void set(Name, cudnnBackendAttributeType_t, int64_t count, const void* values, Where = Where::current());
  void set(Name, int64_t, Where = Where::current());
  void set(Name, bool, Where = Where::current());
  void set(Name, cudnnDataType_t, Where = Where::current());
  void set(Name, const CudnnNode&, Where = Where::current());
  void finalize(Where = Where::current());

 private:
  std::unique_ptr<void, CudnnCloser<cudnnBackendDestroyDescriptor>> node_;
};

struct CudnnPlan {
  CudnnNode node;
  int64_t workspace_bytes = 0;
};

// What a run binds to the tensors of a graph: device pointers, host pointers for scalars.
struct CudnnBinding {
  int64_t uid;
  const void* data;
};
void run_cudnn_plan(cudnnHandle_t, const CudnnPlan&, const std::vector<CudnnBinding>&, void* workspace);

// Operations in the order of the calls. Must live as long as its plan.
class CudnnGraph {
 public:
  using Dims = std::array<int64_t, 4>;
  // In memory, 16-byte aligned. `offsets`: where each index of the first dimension begins, in elements.
  static CudnnNode tensor(int64_t uid, cudnnDataType_t, const Dims&, const Dims& strides,
                          const CudnnNode* offsets = nullptr);
  static CudnnNode scalar(int64_t uid);           // fp32 in host memory, read when the plan is queued
  CudnnNode inner(cudnnDataType_t, const Dims&);  // between two operations, never in memory

  // c = a b; the lengths bound rows of a, columns of b and what is summed over, where they are not null.
  void matmul(const CudnnNode& a, const CudnnNode& b, const CudnnNode& c, const CudnnNode* rows,
              const CudnnNode* columns, const CudnnNode* depth);
  struct Operands {
    const CudnnNode* b = nullptr;     // the second operand
    const CudnnNode* pick = nullptr;  // BINARY_SELECT: x where true, else b
    int64_t axis = -1;                // GEN_INDEX
  };
  void pointwise(cudnnPointwiseMode_t, cudnnDataType_t compute, const CudnnNode& x, const Operands&,
                 const CudnnNode& y);
  void reduce(cudnnReduceTensorOp_t, const CudnnNode& x, const CudnnNode& y);

  // The first engine of cuDNN's list that compiles; fails with cuDNN's reason where there is none.
  CudnnPlan plan(cudnnHandle_t) const;

 private:
  void add(CudnnNode operation, CudnnNode descriptor);

  std::vector<CudnnNode> operations_, descriptors_;
  int64_t next_inner_ = 1000;  // UIDs of tensors in memory are below
};

}  // namespace slip
#endif
