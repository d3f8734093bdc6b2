// What a drafter takes from the arena.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/rmsnorm.hpp"
#include "model/drafter_widths.hpp"

namespace slip {
namespace {

template <class T> ContextBuffers<T> make_context(const DrafterModel& m, int64_t tokens, Arena& a) {
  const DrafterWidths n = widths(m);
  const char* key = "data.row_tokens";
  ContextBuffers<T> c;
  c.x = a.take2<T>("drafter.context.x", tokens, static_cast<int64_t>(m.taps.size()) * n.h, key);
  c.fc = a.take2<T>("drafter.context.fc", tokens, n.h, key);
  c.c = a.take2<T>("drafter.context.c", tokens, n.h, key);
  c.inv_rms = a.take<Acc<T>>("drafter.context.inv_rms", tokens, key);
  c.kv = a.take2<T>("drafter.context.kv", tokens, m.layers * 2 * n.kv, key);
  c.k = a.take2<T>("drafter.context.k", tokens, m.layers * n.kv, key);
  c.k_inv_rms = a.take<Acc<T>>("drafter.context.k_inv_rms", m.layers * tokens * m.kv_heads, key);
  c.dkv = a.take2<Acc<T>>("drafter.context.dkv", tokens, m.layers * 2 * n.kv, key);
  return c;
}

template <class T>
BlockBuffers<T> make_blocks(const DrafterModel& m, const DrafterLimits& limits, Device device, Arena& a) {
  const DrafterWidths n = widths(m);
  const int64_t rows = limits.blocks * m.block;
  const char* key = "train.blocks_per_pass";
  const auto matrix = [&](const std::string& name, int64_t cols) {
    return a.take2<T>("drafter." + name, rows, cols, key);
  };
  const auto vector = [&](const std::string& name, int64_t per_row) {
    return a.take<Acc<T>>("drafter." + name, rows * per_row, key);
  };
  BlockBuffers<T> b;
  int64_t scratch =
      std::max({rmsnorm_bwd_scratch(rows, n.h, device), rmsnorm_bwd_scratch(limits.context, n.h, device),
                head_rope_bwd_scratch(rows, n.heads, n.d, device),
                head_rope_bwd_scratch(limits.context, n.kv_heads, n.d, device)});
  for (int64_t l = 0; l < m.layers; ++l) {
    const std::string p = "layers." + std::to_string(l) + ".";
    b.layers.push_back({.z = matrix(p + "z", n.h),
                        .u = matrix(p + "u", n.h),
                        .q_project = matrix(p + "q_project", n.q),
                        .kv = matrix(p + "kv", 2 * n.kv),
                        .q = matrix(p + "q", n.q),
                        .k = matrix(p + "k", n.kv),
                        .attention = matrix(p + "attention", n.q),
                        .z_mid = matrix(p + "z_mid", n.h),
                        .y = matrix(p + "y", n.h),
                        .gate_up = matrix(p + "gate_up", 2 * m.intermediate),
                        .inv_rms = vector(p + "inv_rms", 1),
                        .q_inv_rms = vector(p + "q_inv_rms", m.heads),
                        .k_inv_rms = vector(p + "k_inv_rms", m.kv_heads),
                        .mid_inv_rms = vector(p + "mid_inv_rms", 1),
                        .lse = vector(p + "lse", m.heads)});
    scratch = std::max(scratch, block_attention_bwd_scratch(layer_shape(m, static_cast<size_t>(l)),
                                                            limits.blocks, limits.context, device));
  }
  b.z_out = matrix("z_out", n.h);
  b.hidden = matrix("hidden", n.h);
  b.inv_rms = vector("inv_rms", 1);
  b.delta = matrix("delta", n.h);
  b.act = matrix("act", m.intermediate);
  b.dhidden = matrix("dhidden", n.h);
  b.dattention = matrix("dattention", n.q);
  b.dq = matrix("dq", n.q);
  b.dkv = matrix("dkv", 2 * n.kv);
  b.scratch = a.take<Acc<T>>("drafter.scratch", scratch, key);
  return b;
}

Fp8Rows take_fp8(const std::string& name, int64_t rows, int64_t k, Arena& a, const char* key = "") {
  return {a.take2<E4m3>("drafter.fp8." + name, rows, k, key),
          a.take<float>("drafter.fp8." + name + ".scale", rows, key)};
}

DrafterFp8 make_fp8(const DrafterModel& m, const DrafterLimits& limits, Arena& a) {
  const DrafterWidths n = widths(m);
  const int64_t rows = limits.blocks * m.block, all_kv = m.layers * 2 * n.kv, mid = m.intermediate;
  const int64_t taps = static_cast<int64_t>(m.taps.size()) * n.h;
  const char* key = "train.blocks_per_pass";
  const auto weight = [&](const std::string& name, int64_t out, int64_t in) {
    return Fp8Weight{take_fp8(name, out, in, a), take_fp8(name + ".turned", in, out, a)};
  };
  const auto kept = [&](const std::string& name, int64_t width) {
    return take_fp8(name, width, fp8_padded(rows), a, key);
  };
  DrafterFp8 f;
  f.fc = take_fp8("fc", n.h, taps, a);
  f.kv_all = weight("kv_all", all_kv, n.h);
  for (int64_t l = 0; l < m.layers; ++l) {
    const std::string p = "layers." + std::to_string(l) + ".";
    f.layers.push_back({.q = weight(p + "q", n.q, n.h),
                        .kv = {f.kv_all.rows.rows_from(l * 2 * n.kv, 2 * n.kv),
                               f.kv_all.columns.k_from(l * 2 * n.kv, 2 * n.kv)},
                        .o = weight(p + "o", n.h, n.q),
                        .gate_up = weight(p + "gate_up", 2 * mid, n.h),
                        .down = weight(p + "down", n.h, mid),
                        .u = kept(p + "u", n.h),
                        .attention = kept(p + "attention", n.q),
                        .y = kept(p + "y", n.h),
                        .act = kept(p + "act", mid)});
  }
  const int64_t wide = std::max({2 * mid, n.q, 2 * n.kv, n.h}), context = std::max({taps, all_kv, n.h});
  const int64_t wide_padded = std::max(wide * fp8_padded(rows), context * fp8_padded(limits.context));
  f.rows = a.take<E4m3>("drafter.fp8.rows", std::max(wide * rows, context * limits.context), key);
  f.row_scale = a.take<float>("drafter.fp8.rows.scale", std::max(rows, limits.context), key);
  f.columns = a.take<E4m3>("drafter.fp8.columns", wide_padded, key);
  f.column_scale = a.take<float>("drafter.fp8.columns.scale", std::max(wide, context), key);
  f.input = a.take<E4m3>("drafter.fp8.input", std::max(taps, n.h) * fp8_padded(limits.context));
  f.input_scale = a.take<float>("drafter.fp8.input.scale", std::max(taps, n.h));
  f.largest = a.take<uint32_t>("drafter.fp8.largest",
                               std::max({rows, limits.context, wide, context}) + std::max(wide, context));
  return f;
}

}  // namespace

template <class T>
Drafter<T> make_drafter(const DrafterModel& m, const DrafterLimits& limits, Arena& a, const Queue& queue) {
  Drafter<T> d{.model = m, .limits = limits, .layout = parameter_layout(m)};
  d.weights = a.take<T>("drafter.weights", d.layout.count);
  d.grads = a.take<Acc<T>>("drafter.grads", d.layout.count);
  d.w = drafter_views<T>(m, d.layout, d.weights);
  d.g = drafter_views<Acc<T>>(m, d.layout, d.grads);
  d.rope = make_rope_table("drafter.rope", m.rope, m.head_dim, limits.positions, a, queue);
  d.context = make_context<T>(m, limits.context, a);
  d.blocks = make_blocks<T>(m, limits, queue.device, a);
  if (limits.fp8) d.fp8 = make_fp8(m, limits, a);
  return d;
}

template <class T> void set_weights(Drafter<T>& d, const std::vector<float>& flat, const Queue& queue) {
  require(static_cast<int64_t>(flat.size()) == d.layout.count, "set_weights: wrong number of values");
  std::vector<T> typed(flat.size());
  std::transform(flat.begin(), flat.end(), typed.begin(), [](float x) { return from_float<T>(x); });
  copy_to_device(d.weights, typed.data(), d.layout.count * static_cast<int64_t>(sizeof(T)), queue);
  synchronize(queue);
  quantize_weights(d, queue);
}

void check_fp8_sizes(const DrafterModel& m, const char* asked) {
  for (const auto& [name, size] : {std::pair{"hidden_size", m.hidden},
                                   {"intermediate_size", m.intermediate},
                                   {"num_attention_heads * head_dim", m.heads * m.head_dim},
                                   {"num_key_value_heads * head_dim", m.kv_heads * m.head_dim}}) {
    if (size % 16 != 0) {
      fail_usage(fmt::format("{}: on a GPU fp8 needs multiples of 16, the drafter's {} is {}; use bf16",
                             asked, name, size));
    }
  }
}

template <class T> void quantize_weights(Drafter<T>& d, const Queue& queue) {
  if (!d.limits.fp8) return;
  const DrafterFp8& f = d.fp8;
  const auto quantize = [&](View2<const T> w, const Fp8Rows& rows, const Fp8Rows& columns) {
    quantize_fp8<T>({w, rows, columns, f.largest}, queue);
  };
  quantize(d.w.fc, f.fc, {});
  quantize(d.w.kv_all, f.kv_all.rows, f.kv_all.columns);
  for (size_t l = 0; l < f.layers.size(); ++l) {
    const auto& w = d.w.layers[l];
    const Fp8Layer& to = f.layers[l];
    quantize(w.q, to.q.rows, to.q.columns);
    quantize(w.o, to.o.rows, to.o.columns);
    quantize(w.gate_up, to.gate_up.rows, to.gate_up.columns);
    quantize(w.down, to.down.rows, to.down.columns);
  }
}

#define SLIP_INSTANTIATE(T)                                                                          \
  template Drafter<T> make_drafter(const DrafterModel&, const DrafterLimits&, Arena&, const Queue&); \
  template void set_weights(Drafter<T>&, const std::vector<float>&, const Queue&);                   \
  template void quantize_weights(Drafter<T>&, const Queue&);
SLIP_INSTANTIATE(float)
SLIP_INSTANTIATE(double)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
