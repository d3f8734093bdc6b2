// What the check of the Hopper attention kernels and its bench share: tensors inside matrices of NaN, the
// cases, and the calls on them.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda.hpp"
#include "kernels/attention_hopper.hpp"

namespace slip::hopper_check {

constexpr double kTolerance = 1e-2;
constexpr int kGuardRows = 70;  // after the last row of a view: more than the tallest box of a tile but one

// --- tensors ---------------------------------------------------------------------------------------------
struct Normal {  // standard normal numbers, cheap: windows of a table, each with its own factor
  std::vector<float> table;
  Normal() : table(1 << 18) {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    for (auto& x : table) x = normal(rng);
  }
  void fill(float* to, int64_t n, uint32_t seed, float sigma) const {
    std::mt19937 rng(seed);
    for (int64_t i = 0; i < n; i += 256) {
      const uint32_t from = rng() % (table.size() - 256);
      const float f = sigma * (0.75f + (rng() % 1000) * 0.0005f);
      for (int64_t k = i; k < std::min(n, i + 256); ++k) to[k] = table[from + k - i] * f;
    }
  }
};
inline const Normal& normal() {
  static const Normal n;
  return n;
}

// A view inside a wider and longer matrix, on the device, with a copy of the matrix on the host.
template <class T> struct Tensor {
  int64_t rows, cols, stride, offset;
  std::vector<T> host;
  T* device = nullptr;

  Tensor(int64_t rows, int64_t cols, bool wide)
      : rows(rows),
        cols(cols),
        stride(wide ? cols + 3 * 64 : cols),
        offset(wide ? 64 : 0),
        host((rows + kGuardRows) * stride) {
    std::memset(host.data(), 0xff, host.size() * sizeof(T));  // NaN
    check(cudaMalloc(&device, host.size() * sizeof(T)));
  }
  Tensor(const Tensor&) = delete;
  ~Tensor() { cudaFree(device); }
  T& at(int64_t r, int64_t c) { return host[r * stride + offset + c]; }
  Tensor& random(uint32_t seed, float sigma) {
    std::vector<float> x(rows * cols);
    normal().fill(x.data(), rows * cols, seed, sigma);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) at(r, c) = from_float<T>(x[r * cols + c]);
    return upload();
  }
  Tensor& upload() {
    check(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return *this;
  }
  View2<T> view() { return {device + offset, rows, cols, stride}; }
  std::vector<T> download() const {
    std::vector<T> x(host.size());
    check(cudaMemcpy(x.data(), device, x.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return x;
  }
  std::vector<double> doubles() {
    std::vector<double> x(rows * cols);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) x[r * cols + c] = to_float(at(r, c));
    return x;
  }
  // Relative L2 error of (got - what it started from, where `added`) against `want`; infinite where anything
  // outside the view changed.
  double error(const std::vector<T>& got, const std::vector<double>& want, bool added) {
    double num = 0, den = 0;
    for (int64_t r = 0; r < rows + kGuardRows; ++r)
      for (int64_t c = 0; c < stride; ++c) {
        const T x = got[r * stride + c], start = host[r * stride + c];
        const bool inside = r < rows && c >= offset && c < offset + cols;
        if (!inside) {
          if (std::memcmp(&x, &start, sizeof(T)) != 0) return INFINITY;
          continue;
        }
        const double w = want[r * cols + c - offset], e = to_float(x) - (added ? to_float(start) : 0.0) - w;
        num += e * e;
        den += w * w;
      }
    return den == 0 ? (num == 0 ? 0 : INFINITY) : std::sqrt(num / den);
  }
};

struct Ints {
  int* device = nullptr;
  explicit Ints(const std::vector<int>& x) {
    check(cudaMalloc(&device, std::max<size_t>(1, x.size()) * 4));
    check(cudaMemcpy(device, x.data(), x.size() * 4, cudaMemcpyHostToDevice));
  }
  Ints(const Ints&) = delete;
  ~Ints() { cudaFree(device); }
};

inline double dot(const double* a, const double* b, int n) {
  double s[8] = {};
  for (int i = 0; i < n; i += 8)
    for (int k = 0; k < 8; ++k) s[k] += a[i + k] * b[i + k];
  return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}
inline void add(double* y, const double* x, double f, int n) {
  for (int i = 0; i < n; ++i) y[i] += f * x[i];
}

inline void parallel_for(int64_t n, const std::function<void(int64_t)>& f) {
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back([&] {
      for (int64_t k; (k = next++) < n;) f(k);
    });
  for (auto& t : threads) t.join();
}

// --- a case of block-diffusion attention ---------------------------------------------------------------
struct Case {
  std::string name;
  AttentionShape shape;
  int context;
  std::vector<int> anchor, lo;
  bool wide = true;
};

struct BlockRun {  // the tensors of a case and the two calls
  Case x;
  Tensor<Bf16> q, kc, vc, kb, vb, dout, out, dq, dkb, dvb;
  Tensor<float> dk, dv, lse;
  Ints anchor, lo;
  int64_t scratch_size;
  BackwardForm form;
  int leave = 0;  // multiprocessors
  float* scratch = nullptr;

  explicit BlockRun(const Case& x, BackwardForm form = BackwardForm::fastest)
      : x(x),
        q(rows(), heads(), x.wide),
        kc(x.context, kv(), x.wide),
        vc(x.context, kv(), x.wide),
        kb(rows(), kv(), x.wide),
        vb(rows(), kv(), x.wide),
        dout(rows(), heads(), x.wide),
        out(rows(), heads(), x.wide),
        dq(rows(), heads(), x.wide),
        dkb(rows(), kv(), x.wide),
        dvb(rows(), kv(), x.wide),
        dk(x.context, kv(), x.wide),
        dv(x.context, kv(), x.wide),
        lse(rows(), x.shape.heads, false),
        anchor(x.anchor),
        lo(x.lo),
        scratch_size(block_attention_bwd_hopper_scratch(x.shape, int64_t(x.anchor.size()), x.context, form)),
        form(form) {
    q.random(1, 1.5f), kc.random(2, 1), vc.random(3, 1), kb.random(4, 1), vb.random(5, 1), dout.random(6, 1);
    dk.random(7, 1), dv.random(8, 1);
    check(cudaMalloc(&scratch, scratch_size * 4));
  }
  BlockRun(const BlockRun&) = delete;
  ~BlockRun() { cudaFree(scratch); }
  int64_t rows() const { return int64_t(x.anchor.size()) * x.shape.block; }
  int64_t heads() const { return int64_t(x.shape.heads) * x.shape.head_dim; }
  int64_t kv() const { return int64_t(x.shape.kv_heads) * x.shape.head_dim; }
  BlockAttentionFwd<Bf16> fwd() {
    return {x.shape,   q.view(),      kc.view(), vc.view(),  kb.view(),
            vb.view(), anchor.device, lo.device, out.view(), lse.device};
  }
  BlockAttentionBwd<Bf16> bwd() {
    return {x.shape,
            q.view(),
            kc.view(),
            vc.view(),
            kb.view(),
            vb.view(),
            anchor.device,
            lo.device,
            out.view(),
            dout.view(),
            lse.device,
            dq.view(),
            dkb.view(),
            dvb.view(),
            dk.view(),
            dv.view(),
            scratch,
            leave,
            !x.lo.empty() && x.lo.front() == x.lo.back()};
  }
  void backward(CudaStream stream) { block_attention_bwd_hopper(bwd(), stream, form); }
  void reset() {  // results to NaN, or to what is added to
    out.upload(), dq.upload(), dkb.upload(), dvb.upload(), dk.upload(), dv.upload(), lse.upload();
    check(cudaMemset(scratch, 0xff, scratch_size * 4));
  }
};

// --- a case of causal attention ------------------------------------------------------------------------
struct CausalRun {
  AttentionShape shape;
  std::vector<int> cu{0};
  int64_t tokens = 0;
  Tensor<Bf16> q, k, v, out;
  Ints cu_device;
  static std::vector<int> starts(const std::vector<int>& lengths) {
    std::vector<int> cu{0};
    for (int n : lengths) cu.push_back(cu.back() + n);
    return cu;
  }
  CausalRun(const AttentionShape& s, const std::vector<int>& lengths, bool wide)
      : shape(s),
        cu(starts(lengths)),
        tokens(cu.back()),
        q(tokens, int64_t(s.heads) * s.head_dim, wide),
        k(tokens, int64_t(s.kv_heads) * s.head_dim, wide),
        v(tokens, int64_t(s.kv_heads) * s.head_dim, wide),
        out(tokens, int64_t(s.heads) * s.head_dim, wide),
        cu_device(cu) {
    q.random(1, 1.5f), k.random(2, 1), v.random(3, 1);
  }
  CausalAttentionFwd<Bf16> args() {
    return {shape, q.view(), k.view(), v.view(), cu_device.device, cu.data(), int(cu.size()) - 1, out.view()};
  }
};

// --- verdicts ------------------------------------------------------------------------------------------
template <class T> bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

inline bool report(const std::string& name, const std::vector<std::pair<const char*, double>>& errors,
                   bool bits) {
  bool ok = bits;
  std::string line;
  for (auto& [what, e] : errors) {
    char text[64];
    std::snprintf(text, sizeof text, " %s %.1e", what, e);
    line += text;
    if (!(e <= kTolerance)) ok = false, line += "(!)";
  }
  std::printf("%s %-44s%s%s\n", ok ? "ok  " : "FAIL", name.c_str(), line.c_str(),
              bits ? "" : " OTHER BITS THE SECOND TIME");
  std::fflush(stdout);
  return ok;
}

// --- shapes --------------------------------------------------------------------------------------------
inline AttentionShape shape(int heads, int kv_heads, int d, int block, int window = 0, bool causal = false) {
  return {heads, kv_heads, d, 1.f / std::sqrt(float(d)), block, window, causal};
}

// Anchors spread over the documents, sorted; of each document about its share.
inline void draw_anchors(Case& c, const std::vector<int>& documents, int n, uint32_t seed) {
  std::mt19937 rng(seed);
  c.context = std::accumulate(documents.begin(), documents.end(), 0);
  std::vector<int> at(n);
  std::vector<int> all(c.context);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), rng);
  for (int i = 0; i < n; ++i) at[i] = all[i % c.context];
  std::sort(at.begin(), at.end());
  c.anchor = at;
  c.lo.clear();
  for (int a : at) {
    int start = 0;
    for (int len : documents) {
      if (a < start + len) break;
      start += len;
    }
    c.lo.push_back(start);
  }
}
inline Case drawn(const std::string& name, const AttentionShape& s, const std::vector<int>& documents, int n,
                  uint32_t seed = 3) {
  Case c{name, s, 0, {}, {}};
  draw_anchors(c, documents, n, seed);
  return c;
}

// attention_hopper_check_block.cu, attention_hopper_check_causal.cu, attention_hopper_check_bench.cu
bool run_case(const Case&, CudaStream);
std::vector<Case> cases();
bool run_causal(const std::string& name, const AttentionShape&, const std::vector<int>& lengths, CudaStream);
void bench(CudaStream, const std::string& only);

}  // namespace slip::hopper_check
