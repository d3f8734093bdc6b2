// The Hopper attention kernels against a float64 reference on the CPU, and their speed.
//
//   attention_hopper_check [--only TEXT]     every case whose name contains TEXT; exit code 0: all agree
//   attention_hopper_check --bench           JSON lines, one for each shape
//
// A case fails where the relative L2 error of any result is above 1e-2 or not a number, where something
// beside a result changed, or where a second run gives other bits. Inputs are views inside matrices of NaN,
// results start as NaN, the gradients that are added to start from random numbers.
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

namespace slip {
namespace {

constexpr double kTolerance = 1e-2;
constexpr int kGuardRows = 70;  // after the last row of a view: more than the tallest box of a tile but one

void parallel_for(int64_t n, const std::function<void(int64_t)>& f) {
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back([&] {
      for (int64_t k; (k = next++) < n;) f(k);
    });
  for (auto& t : threads) t.join();
}

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
const Normal& normal() {
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

double dot(const double* a, const double* b, int n) {
  double s[8] = {};
  for (int i = 0; i < n; i += 8)
    for (int k = 0; k < 8; ++k) s[k] += a[i + k] * b[i + k];
  return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}
void add(double* y, const double* x, double f, int n) {
  for (int i = 0; i < n; ++i) y[i] += f * x[i];
}

// --- block-diffusion attention ---------------------------------------------------------------------------
struct Case {
  std::string name;
  AttentionShape shape;
  int context;
  std::vector<int> anchor, lo;
  bool wide = true;
};

struct Reference {
  std::vector<double> out, lse, dq, dk_block, dv_block, dk, dv;
};

// The mask is written out once more here, not taken from the header.
Reference reference(const Case& x, const std::vector<double>& q, const std::vector<double>& kc,
                    const std::vector<double>& vc, const std::vector<double>& kb,
                    const std::vector<double>& vb, const std::vector<double>& dout) {
  const AttentionShape& s = x.shape;
  const int H = s.heads, K = s.kv_heads, G = H / K, D = s.head_dim, b = s.block, N = int(x.anchor.size());
  const int64_t rows = int64_t(N) * b, hd = int64_t(H) * D, kd = int64_t(K) * D;
  Reference y;
  y.out.resize(rows * hd), y.lse.resize(rows * H), y.dq.resize(rows * hd);
  y.dk_block.resize(rows * kd), y.dv_block.resize(rows * kd);
  y.dk.resize(x.context * kd), y.dv.resize(x.context * kd);
  std::vector<double> delta(rows * H);
  auto first_key = [&](int i, int j) {
    int first = x.lo[i];
    if (s.window > 0) first = std::max(first, x.anchor[i] + j - (s.window - 1));
    return std::min(first, x.anchor[i]);
  };
  parallel_for(int64_t(N) * K, [&](int64_t task) {
    const int i = int(task / K), g = int(task % K), a = x.anchor[i];
    std::vector<double> p, dp;
    for (int h = g * G; h < (g + 1) * G; ++h)
      for (int j = 0; j < b; ++j) {
        const int64_t r = int64_t(i) * b + j;
        const int first = first_key(i, j), n = a - first, own = s.causal ? j + 1 : b;
        auto key = [&](int k) {
          return k < n ? &kc[(first + k) * kd + g * D] : &kb[(int64_t(i) * b + k - n) * kd + g * D];
        };
        auto value = [&](int k) {
          return k < n ? &vc[(first + k) * kd + g * D] : &vb[(int64_t(i) * b + k - n) * kd + g * D];
        };
        p.resize(n + own), dp.resize(n + own);
        double m = -INFINITY, l = 0, d = 0;
        for (int k = 0; k < n + own; ++k)
          m = std::max(m, p[k] = dot(&q[r * hd + h * D], key(k), D) * double(s.scale));
        for (auto& v : p) l += v = std::exp(v - m);
        y.lse[r * H + h] = m + std::log(l);
        for (int k = 0; k < n + own; ++k) {
          p[k] /= l;
          add(&y.out[r * hd + h * D], value(k), p[k], D);
          dp[k] = dot(&dout[r * hd + h * D], value(k), D);
          d += p[k] * dp[k];
        }
        delta[r * H + h] = d;
        for (int k = 0; k < n + own; ++k) {
          const double ds = p[k] * (dp[k] - d) * double(s.scale);
          add(&y.dq[r * hd + h * D], key(k), ds, D);
          if (k < n) continue;
          const int64_t at = (int64_t(i) * b + k - n) * kd + g * D;
          add(&y.dk_block[at], &q[r * hd + h * D], ds, D);
          add(&y.dv_block[at], &dout[r * hd + h * D], p[k], D);
        }
      }
  });
  const int chunk = 16, chunks = (x.context + chunk - 1) / chunk;
  parallel_for(int64_t(chunks) * K, [&](int64_t task) {
    const int g = int(task % K), k0 = int(task / K) * chunk, k1 = std::min(k0 + chunk, x.context);
    for (int i = 0; i < N; ++i)
      for (int j = 0; j < b; ++j) {
        const int64_t r = int64_t(i) * b + j;
        for (int k = std::max(k0, first_key(i, j)); k < std::min(k1, x.anchor[i]); ++k)
          for (int h = g * G; h < (g + 1) * G; ++h) {
            const double *qr = &q[r * hd + h * D], *dr = &dout[r * hd + h * D];
            const double p = std::exp(dot(qr, &kc[k * kd + g * D], D) * double(s.scale) - y.lse[r * H + h]);
            add(&y.dv[k * kd + g * D], dr, p, D);
            add(&y.dk[k * kd + g * D], qr,
                p * (dot(dr, &vc[k * kd + g * D], D) - delta[r * H + h]) * double(s.scale), D);
          }
      }
  });
  return y;
}

struct BlockRun {  // the tensors of a case and the two calls
  Case x;
  Tensor<Bf16> q, kc, vc, kb, vb, dout, out, dq, dkb, dvb;
  Tensor<float> dk, dv, lse;
  Ints anchor, lo;
  int64_t scratch_size;
  float* scratch = nullptr;

  explicit BlockRun(const Case& x)
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
        scratch_size(block_attention_bwd_hopper_scratch(x.shape, int64_t(x.anchor.size()), x.context)) {
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
    return {x.shape,       q.view(),   kc.view(),  vc.view(),   kb.view(),  vb.view(),
            anchor.device, lo.device,  out.view(), dout.view(), lse.device, dq.view(),
            dkb.view(),    dvb.view(), dk.view(),  dv.view(),   scratch};
  }
  void reset() {  // results to NaN, or to what is added to
    out.upload(), dq.upload(), dkb.upload(), dvb.upload(), dk.upload(), dv.upload(), lse.upload();
    check(cudaMemset(scratch, 0xff, scratch_size * 4));
  }
};

template <class T> bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

bool report(const std::string& name, const std::vector<std::pair<const char*, double>>& errors, bool bits) {
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

bool run_case(const Case& x, CudaStream stream) {
  BlockRun t(x);
  if (!hopper_supports(t.fwd()) || !hopper_supports(t.bwd())) {
    std::printf("FAIL %-44s not supported\n", x.name.c_str());
    return false;
  }
  auto go = [&] {
    t.reset();
    check(cudaDeviceSynchronize());
    block_attention_fwd_hopper(t.fwd(), stream);
    block_attention_bwd_hopper(t.bwd(), stream);
    check(cudaStreamSynchronize(stream));
  };
  go();
  const auto out = t.out.download(), dq = t.dq.download(), dkb = t.dkb.download(), dvb = t.dvb.download();
  const auto dk = t.dk.download(), dv = t.dv.download(), lse = t.lse.download();
  go();
  const bool bits = same(out, t.out.download()) && same(dq, t.dq.download()) && same(dkb, t.dkb.download()) &&
                    same(dvb, t.dvb.download()) && same(dk, t.dk.download()) && same(dv, t.dv.download()) &&
                    same(lse, t.lse.download());
  const Reference r = reference(x, t.q.doubles(), t.kc.doubles(), t.vc.doubles(), t.kb.doubles(),
                                t.vb.doubles(), t.dout.doubles());
  return report(x.name,
                {{"out", t.out.error(out, r.out, false)},
                 {"lse", t.lse.error(lse, r.lse, false)},
                 {"dq", t.dq.error(dq, r.dq, false)},
                 {"dkb", t.dkb.error(dkb, r.dk_block, false)},
                 {"dvb", t.dvb.error(dvb, r.dv_block, false)},
                 {"dk", t.dk.error(dk, r.dk, true)},
                 {"dv", t.dv.error(dv, r.dv, true)}},
                bits);
}

AttentionShape shape(int heads, int kv_heads, int d, int block, int window = 0, bool causal = false) {
  return {heads, kv_heads, d, 1.f / std::sqrt(float(d)), block, window, causal};
}

// Anchors spread over the documents, sorted; of each document about its share.
void draw_anchors(Case& c, const std::vector<int>& documents, int n, uint32_t seed) {
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
Case drawn(const std::string& name, const AttentionShape& s, const std::vector<int>& documents, int n,
           uint32_t seed = 3) {
  Case c{name, s, 0, {}, {}};
  draw_anchors(c, documents, n, seed);
  return c;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  // Edges of tiles, anchors at 0 and twice the same, the last token; windows and both causalities.
  for (auto [window, causal] :
       {std::pair{0, false}, {0, true}, {100, true}, {100, false}, {40, true}, {16, false}}) {
    Case c{"edges w" + std::to_string(window) + (causal ? " causal" : ""),
           shape(8, 2, 128, 16, window, causal),
           700,
           {0, 0, 1, 127, 128, 129, 255, 256, 300, 600, 601, 699},
           std::vector<int>(12, 0)};
    all.push_back(c);
  }
  // Documents: lo == anchor (no context), a gap between neighbours, a document without a block, one of a
  // token.
  for (auto [window, causal] : {std::pair{0, false}, {64, true}}) {
    Case c{"packed by hand w" + std::to_string(window),
           shape(8, 2, 128, 16, window, causal),
           1000,
           {0, 5, 5, 130, 131, 200, 500, 501, 502, 629, 630, 631, 900, 999},
           {0, 0, 0, 130, 131, 131, 500, 500, 500, 500, 630, 630, 640, 999}};
    all.push_back(c);
  }
  all.push_back({"no context at all", shape(8, 2, 128, 16), 64, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}});
  all.push_back({"empty context", shape(8, 2, 128, 16, 0, true), 0, {0, 0, 0}, {0, 0, 0}});
  all.push_back(
      {"every document one block at its start", shape(8, 2, 128, 16), 96, {0, 32, 64}, {0, 32, 64}});
  all.push_back({"one block", shape(4, 1, 128, 16), 1000, {777}, {0}});
  all.push_back({"one block of one token before it", shape(4, 1, 128, 8), 1, {1}, {0}});
  // Blocks, groups, head dims; odd numbers of blocks, so that units and pairs have tails.
  for (int d : {64, 128})
    for (int block : {4, 8, 16, 32})
      for (int group : {1, 2, 3, 4, 6, 8}) {
        if (d == 64 && (group == 3 || group == 6)) continue;
        const int window = (block + group) % 3 == 0 ? 90 : 0;
        const bool causal = (block / 4 + group) % 2 == 0;
        Case c =
            drawn("d" + std::to_string(d) + " b" + std::to_string(block) + " group " + std::to_string(group) +
                      (window ? " w90" : "") + (causal ? " causal" : ""),
                  shape(2 * group, 2, d, block, window, causal), {150, 37, 313}, 11 + block % 3, 50 + group);
        all.push_back(c);
      }
  all.push_back(drawn("group 5", shape(5, 1, 128, 16), {333}, 9));
  all.push_back(drawn("group 7", shape(7, 1, 128, 16, 0, true), {100, 200}, 9));
  all.push_back(drawn("group 16", shape(16, 1, 128, 16), {100, 200}, 9));
  // Many short documents; more blocks than a unit can pair; dense matrices; the real heads.
  all.push_back(drawn(
      "40 documents of 1 to 79", shape(8, 2, 128, 16),
      [] {
        std::vector<int> d;
        for (int i = 0; i < 40; ++i) d.push_back(1 + i * 37 % 79);
        return d;
      }(),
      200));
  all.push_back(drawn(
      "40 documents of 1 to 79, b8", shape(8, 2, 128, 8, 20, true),
      [] {
        std::vector<int> d;
        for (int i = 0; i < 40; ++i) d.push_back(1 + i * 37 % 79);
        return d;
      }(),
      203));
  for (bool wide : {false, true}) {
    Case c = drawn(std::string("32/8 heads, 2 documents") + (wide ? "" : ", dense"), shape(32, 8, 128, 16),
                   {800, 733}, 75);
    c.wide = wide;
    all.push_back(c);
  }
  all.push_back(drawn("32/8 heads, 4096 tokens", shape(32, 8, 128, 16), {4096}, 64));
  all.push_back(
      drawn("32/8 heads, 4096 tokens, w1024 causal", shape(32, 8, 128, 16, 1024, true), {4096}, 64));
  all.push_back(drawn("many items", shape(4, 1, 64, 4), {600, 77, 423}, 1000));
  all.push_back(drawn("long, 128-key tiles", shape(2, 2, 64, 16), {20000, 16000}, 40));
  all.push_back(drawn("very long", shape(8, 8, 64, 8), {40000}, 13));
  return all;
}

// --- causal attention ------------------------------------------------------------------------------------
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

bool run_causal(const std::string& name, const AttentionShape& s, const std::vector<int>& lengths,
                CudaStream stream) {
  CausalRun t(s, lengths, true);
  if (!hopper_supports(t.args())) {
    std::printf("FAIL %-44s not supported\n", name.c_str());
    return false;
  }
  auto go = [&] {
    t.out.upload();
    check(cudaDeviceSynchronize());
    causal_attention_fwd_hopper(t.args(), stream);
    check(cudaStreamSynchronize(stream));
    return t.out.download();
  };
  const auto out = go();
  const bool bits = same(out, go());
  const auto q = t.q.doubles(), k = t.k.doubles(), v = t.v.doubles();
  const int H = s.heads, K = s.kv_heads, D = s.head_dim;
  std::vector<double> want(t.tokens * H * D);
  std::vector<int> start(t.tokens);
  for (size_t i = 0; i + 1 < t.cu.size(); ++i)
    std::fill(start.begin() + t.cu[i], start.begin() + t.cu[i + 1], t.cu[i]);
  parallel_for(t.tokens, [&](int64_t i) {
    std::vector<double> p(i + 1 - start[i]);
    for (int h = 0; h < H; ++h) {
      const int64_t g = h / (H / K);
      double m = -INFINITY, l = 0;
      for (size_t n = 0; n < p.size(); ++n)
        m = std::max(m,
                     p[n] = dot(&q[(i * H + h) * D], &k[((start[i] + n) * K + g) * D], D) * double(s.scale));
      for (auto& x : p) l += x = std::exp(x - m);
      for (size_t n = 0; n < p.size(); ++n)
        add(&want[(i * H + h) * D], &v[((start[i] + n) * K + g) * D], p[n] / l, D);
    }
  });
  return report(name, {{"out", t.out.error(out, want, false)}}, bits);
}

// --- bench -----------------------------------------------------------------------------------------------
struct Bench {
  cudaEvent_t begin, end;
  void* flush = nullptr;
  static constexpr size_t kFlush = 256 << 20;
  std::string device;
  Bench() {
    check(cudaEventCreate(&begin)), check(cudaEventCreate(&end));
    check(cudaMalloc(&flush, kFlush));
    cudaDeviceProp p;
    check(cudaGetDeviceProperties(&p, 0));
    device = p.name;
  }
  double median_ms(CudaStream stream, const std::function<void()>& go) {
    for (int i = 0; i < 5; ++i) go();
    std::vector<float> ms;
    for (int i = 0; i < 31; ++i) {
      check(cudaMemsetAsync(flush, i, kFlush, stream));
      check(cudaEventRecord(begin, stream));
      go();
      check(cudaEventRecord(end, stream));
      check(cudaEventSynchronize(end));
      ms.push_back(0);
      check(cudaEventElapsedTime(&ms.back(), begin, end));
    }
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2];
  }
};

double live_pairs(const Case& c) {
  double n = 0;
  for (size_t i = 0; i < c.anchor.size(); ++i)
    for (int j = 0; j < c.shape.block; ++j) {
      int first = c.lo[i];
      if (c.shape.window > 0) first = std::max(first, c.anchor[i] + j - c.shape.window + 1);
      n += std::max(0, c.anchor[i] - first) + (c.shape.causal ? j + 1 : c.shape.block);
    }
  return n;
}

void bench(CudaStream stream) {
  Bench b;
  struct Row {
    const char* name;
    std::vector<int> documents;
    int window;
    bool causal;
    double goal_fwd, goal_bwd;
  };
  const std::vector<Row> rows{
      {"S=4096", {4096}, 0, false, 0.41, 1.45},
      {"S=3072", {3072}, 0, false, 0, 0},
      {"S=4096 window 2048", {4096}, 2048, true, 0.749 / 2.3, 3.29 / 2.3},
      {"S=16384", {16384}, 0, false, 1.45, 5.0},
      {"S=16384 window 2048", {16384}, 2048, true, 1.18 / 2.3, 4.19 / 2.3},
      {"2 documents of 2048", {2048, 2048}, 0, false, 0, 0},
      {"4 documents of 1024", {1024, 1024, 1024, 1024}, 0, false, 0, 0},
      {"8 documents of 512", std::vector<int>(8, 512), 0, false, 0, 0},
      {"documents 3000 500 120 400 76", {3000, 500, 120, 400, 76}, 0, false, 0, 0},
      {"16384 tokens: 3000 500 4096 120 1500 2500 900 3768",
       {3000, 500, 4096, 120, 1500, 2500, 900, 3768},
       0,
       false,
       0,
       0},
  };
  double per_pair_fwd = 0, per_pair_bwd = 0;  // of the first row
  for (const Row& r : rows) {
    Case c = drawn(r.name, shape(32, 8, 128, 16, r.window, r.causal), r.documents, 512, 11);
    c.wide = false;
    const double pairs = live_pairs(c), flop = 4.0 * 32 * 128 * pairs;
    BlockRun t(c);
    t.reset();
    const double fwd = b.median_ms(stream, [&] { block_attention_fwd_hopper(t.fwd(), stream); });
    const double bwd = b.median_ms(stream, [&] { block_attention_bwd_hopper(t.bwd(), stream); });
    if (per_pair_fwd == 0) per_pair_fwd = fwd / pairs, per_pair_bwd = bwd / pairs;
    auto line = [&](const char* op, double ms, double flops, double goal, double per_pair) {
      std::printf(
          "{\"op\": \"%s\", \"impl\": \"hopper\", \"device\": \"%s\", \"shape\": \"%s\", \"heads\": "
          "\"32/8\", "
          "\"head_dim\": 128, \"anchors\": 512, \"block\": 16, \"pairs\": %.0f, \"ms\": %.4f, \"tflops\": "
          "%.1f, "
          "\"goal_ms\": %.3f, \"time_per_pair_against_full\": %.3f}\n",
          op, b.device.c_str(), r.name, pairs, ms, flops / ms * 1e-9, goal, ms / pairs / per_pair);
      std::fflush(stdout);
    };
    line("block_attention_fwd", fwd, flop, r.goal_fwd, per_pair_fwd);
    line("block_attention_bwd", bwd, 2.5 * flop, r.goal_bwd, per_pair_bwd);
  }
  for (int d : {128, 256}) {
    const std::vector<std::pair<const char*, std::vector<int>>> lists{
        {"4 x 4096", std::vector<int>(4, 4096)},
        {"1 x 4096", {4096}},
        {"1 x 16384", {16384}},
        {"3000 500 4096 120 1500 2500 900 3768", {3000, 500, 4096, 120, 1500, 2500, 900, 3768}}};
    for (auto& [name, lengths] : lists) {
      const AttentionShape s = d == 128 ? shape(32, 8, 128, 0) : shape(24, 4, 256, 0);
      CausalRun t(s, lengths, false);
      t.out.upload();
      double pairs = 0;
      for (int n : lengths) pairs += 0.5 * n * (n + 1.0);
      const double ms = b.median_ms(stream, [&] { causal_attention_fwd_hopper(t.args(), stream); });
      std::printf(
          "{\"op\": \"causal_attention_fwd\", \"impl\": \"hopper\", \"device\": \"%s\", \"shape\": \"%s\", "
          "\"heads\": "
          "\"%d/%d\", \"head_dim\": %d, \"pairs\": %.0f, \"ms\": %.4f, \"tflops\": %.1f}\n",
          b.device.c_str(), name, s.heads, s.kv_heads, d, pairs, ms, 4.0 * s.heads * d * pairs / ms * 1e-9);
      std::fflush(stdout);
    }
  }
}

int run(int argc, char** argv) {
  bool timing = false;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--bench"))
      timing = true;
    else if (!std::strcmp(argv[i], "--only") && i + 1 < argc)
      only = argv[++i];
    else {
      std::fprintf(stderr, "usage: %s [--bench | --only TEXT]\n", argv[0]);
      return 2;
    }
  }
  if (!hopper_available()) {
    std::printf("no sm_90a device, or no code for it: nothing to check\n");
    const char* must = std::getenv("SLIP_REQUIRE_GPU");
    return must && *must == '1' ? 1 : 77;  // 77: skipped
  }
  const Stream owned = make_stream();
  CudaStream stream = owned.get();
  if (timing) {
    bench(stream);
    return 0;
  }
  int failed = 0, done = 0;
  auto wanted = [&](const std::string& name) { return name.find(only) != std::string::npos; };
  for (const Case& c : cases())
    if (wanted(c.name)) failed += !run_case(c, stream), ++done;
  const std::vector<int> mix{1, 63, 64, 65, 300, 127, 128, 129, 700, 2, 80, 81, 160};
  std::vector<int> many;
  for (int i = 0; i < 150; ++i) many.push_back(i * 29 % 47);  // some of no token at all
  for (int d : {64, 128, 256})
    for (auto [heads, kv] : {std::pair{8, 2}, {4, 4}, {3, 1}, {6, 1}, {8, 1}}) {
      const std::string name =
          "causal d" + std::to_string(d) + " heads " + std::to_string(heads) + "/" + std::to_string(kv);
      if (wanted(name)) failed += !run_causal(name + ", mixed", shape(heads, kv, d, 0), mix, stream), ++done;
      if (wanted(name)) failed += !run_causal(name + ", many", shape(heads, kv, d, 0), many, stream), ++done;
    }
  if (wanted("causal long"))
    failed += !run_causal("causal long", shape(8, 2, 128, 0), {4096, 1000}, stream), ++done;
  if (wanted("causal one token"))
    failed += !run_causal("causal one token", shape(2, 1, 256, 0), {1}, stream), ++done;
  std::printf("%d of %d cases failed\n", failed, done);
  return failed || !done ? 1 : 0;
}

}  // namespace
}  // namespace slip

int main(int argc, char** argv) {
  try {
    return slip::run(argc, argv);
  } catch (const slip::Error& e) {
    std::fprintf(stderr, "%s:%u: %s\n", e.where().file_name(), e.where().line(), e.what());
    return 1;
  }
}
