#include "kernels/cudnn_graph.hpp"

#include <string>

#include "core/log.hpp"

namespace slip {
namespace {

std::string last_error() {
  char text[1024] = {};
  cudnnGetLastErrorString(text, sizeof text);
  return text;
}

// A vector of descriptors as cuDNN takes it.
std::vector<cudnnBackendDescriptor_t> raw(const std::vector<CudnnNode>& nodes) {
  std::vector<cudnnBackendDescriptor_t> out;
  for (const CudnnNode& n : nodes) out.push_back(n.get());
  return out;
}

// The engines that cuDNN proposes for a graph, best first. None is no error to cuDNN: only its last error
// says why.
std::vector<CudnnNode> engines(const CudnnNode& graph) {
  CudnnNode heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  heuristics.finalize();
  const auto results = [&](int64_t room, cudnnBackendDescriptor_t* into) {
    int64_t count = 0;
    check(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, room, &count, into));
    return count;
  };
  const int64_t count = results(0, nullptr);
  if (count == 0) fail("cuDNN has no engine for this graph: " + last_error());
  std::vector<CudnnNode> out;
  for (int64_t i = 0; i < count; ++i) out.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  const int64_t filled = results(count, raw(out).data());
  out.resize(static_cast<size_t>(filled));
  return out;
}

}  // namespace

void check(cudnnStatus_t rc, Where at) {
  if (rc == CUDNN_STATUS_SUCCESS) return;
  fail(std::string(cudnnGetErrorString(rc)) + ": " + last_error(), at);
}

void warn_unless_ok(cudnnStatus_t rc) noexcept {
  if (rc != CUDNN_STATUS_SUCCESS)
    log_warn(std::string("a cuDNN handle would not close: ") + cudnnGetErrorString(rc));
}

CudnnHandle make_cudnn_handle() {
  cudnnHandle_t handle = nullptr;
  check(cudnnCreate(&handle));
  return CudnnHandle(handle);
}

CudnnNode::CudnnNode(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t node = nullptr;
  check(cudnnBackendCreateDescriptor(type, &node));
  node_.reset(node);
}

void CudnnNode::set(Name name, cudnnBackendAttributeType_t type, int64_t count, const void* values,
                    Where at) {
  check(cudnnBackendSetAttribute(get(), name, type, count, values), at);
}
void CudnnNode::set(Name name, int64_t v, Where at) { set(name, CUDNN_TYPE_INT64, 1, &v, at); }
void CudnnNode::set(Name name, bool v, Where at) { set(name, CUDNN_TYPE_BOOLEAN, 1, &v, at); }
void CudnnNode::set(Name name, cudnnDataType_t v, Where at) { set(name, CUDNN_TYPE_DATA_TYPE, 1, &v, at); }
void CudnnNode::set(Name name, const CudnnNode& v, Where at) {
  const cudnnBackendDescriptor_t node = v.get();
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &node, at);
}
void CudnnNode::finalize(Where at) { check(cudnnBackendFinalize(get()), at); }

void run_cudnn_plan(cudnnHandle_t handle, const CudnnPlan& plan, const std::vector<CudnnBinding>& bindings,
                    void* workspace) {
  std::vector<int64_t> uids;
  std::vector<const void*> data;
  for (const CudnnBinding& b : bindings) {
    uids.push_back(b.uid);
    data.push_back(b.data);
  }
  const auto count = static_cast<int64_t>(bindings.size());
  CudnnNode pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finalize();
  check(cudnnBackendExecute(handle, plan.node.get(), pack.get()));
}

namespace {

CudnnNode make_tensor(int64_t uid, cudnnDataType_t type, const CudnnGraph::Dims& dims,
                      const CudnnGraph::Dims& strides) {
  CudnnNode t(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, uid);
  t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data());
  t.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16});
  return t;
}

}  // namespace

CudnnNode CudnnGraph::tensor(int64_t uid, cudnnDataType_t type, const Dims& dims, const Dims& strides,
                             const CudnnNode* offsets) {
  CudnnNode t = make_tensor(uid, type, dims, strides);
  if (offsets != nullptr) t.set(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, *offsets);
  t.finalize();
  return t;
}

CudnnNode CudnnGraph::scalar(int64_t uid) {
  CudnnNode t = make_tensor(uid, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1});
  t.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
  t.finalize();
  return t;
}

CudnnNode CudnnGraph::inner(cudnnDataType_t type, const Dims& d) {
  CudnnNode t = make_tensor(next_inner_++, type, d, {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1});
  t.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  t.finalize();
  return t;
}

void CudnnGraph::matmul(const CudnnNode& a, const CudnnNode& b, const CudnnNode& c, const CudnnNode* rows,
                        const CudnnNode* columns, const CudnnNode* depth) {
  CudnnNode d(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  d.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  d.finalize();
  CudnnNode op(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, d);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  if (rows != nullptr) op.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, *rows);
  if (columns != nullptr) op.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, *columns);
  if (depth != nullptr) op.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, *depth);
  op.finalize();
  add(std::move(op), std::move(d));
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t compute, const CudnnNode& x,
                           const Operands& more, const CudnnNode& y) {
  CudnnNode d(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  d.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  d.set(CUDNN_ATTR_POINTWISE_MATH_PREC, compute);
  if (more.axis >= 0) d.set(CUDNN_ATTR_POINTWISE_AXIS, more.axis);
  d.finalize();
  CudnnNode op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (more.b != nullptr) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *more.b);
  if (more.pick != nullptr) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *more.pick);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  op.finalize();
  add(std::move(op), std::move(d));
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t mode, const CudnnNode& x, const CudnnNode& y) {
  CudnnNode d(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  d.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
  d.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  d.finalize();
  CudnnNode op(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, d);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  op.finalize();
  add(std::move(op), std::move(d));
}

void CudnnGraph::add(CudnnNode operation, CudnnNode descriptor) {
  operations_.push_back(std::move(operation));
  descriptors_.push_back(std::move(descriptor));
}

CudnnPlan CudnnGraph::plan(cudnnHandle_t handle) const {
  const std::vector<cudnnBackendDescriptor_t> ops = raw(operations_);
  CudnnNode graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(ops.size()),
            ops.data());
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph.finalize();
  std::string why;
  for (const CudnnNode& engine : engines(graph)) {
    CudnnPlan p{CudnnNode(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)};
    p.node.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine);
    if (cudnnBackendFinalize(p.node.get()) != CUDNN_STATUS_SUCCESS) {  // the kernel is compiled here
      why = last_error();
      continue;
    }
    int64_t count = 0;
    check(cudnnBackendGetAttribute(p.node.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                   1, &count, &p.workspace_bytes));
    return p;
  }
  fail("none of cuDNN's engines for this graph compiles: " + why);
}

}  // namespace slip
