#include "train/step.hpp"

#include <algorithm>

#include "kernels/features.hpp"
#include "kernels/head_loss.hpp"

namespace slip {

template <class T>
PassBuffers<T> make_pass_buffers(const DrafterModel& m, const DrafterLimits& limits, Arena& a) {
  const int64_t rows = limits.blocks * m.block;
  constexpr int64_t kChunkBytes = int64_t{512}
                                  << 20;  // logits of a chunk: large enough for full-speed products
  const int64_t fit = kChunkBytes / (m.vocab * static_cast<int64_t>(sizeof(T)));
  PassBuffers<T> p;
  p.chunk_rows =
      std::clamp(fit / 256 * 256, std::min(rows, std::max<int64_t>(m.block, 256)), std::max(rows, m.block));
  p.ids = a.take<int>("pass.ids", rows);
  p.position = a.take<int>("pass.position", rows);
  p.label = a.take<int>("pass.label", rows);
  p.rows = a.take<int>("pass.rows", rows);
  p.anchor = a.take<int>("pass.anchor", limits.blocks);
  p.lo = a.take<int>("pass.lo", limits.blocks);
  p.valid = a.take<uint8_t>("pass.valid", rows);
  p.correct = a.take<uint8_t>("pass.correct", rows);
  p.nll = a.take<Acc<T>>("pass.nll", rows);
  p.weight = a.take<Acc<T>>("pass.weight", rows);
  p.chunk_hidden = a.take<T>("head.hidden", p.chunk_rows * m.hidden);
  p.chunk_dhidden = a.take<T>("head.dhidden", p.chunk_rows * m.hidden);
  p.chunk_logits = a.take<T>("head.logits", p.chunk_rows * m.vocab);
  p.non_finite = a.take<int>("pass.non_finite", 1);
  if (limits.fp8_head) {
    const auto take = [&](const std::string& name, int64_t r, int64_t k) {
      return Fp8Rows{a.take2<E4m3>("head.fp8." + name, r, k),
                     a.take<float>("head.fp8." + name + ".scale", r)};
    };
    p.fp8 = {take("rows", m.vocab, m.hidden), take("turned", m.hidden, m.vocab),
             take("hidden", p.chunk_rows, m.hidden), take("gradient", p.chunk_rows, m.vocab),
             a.take<uint32_t>("head.fp8.largest", std::max(m.vocab, p.chunk_rows) + m.hidden)};
  }
  p.host_nll.resize(static_cast<size_t>(rows));
  p.host_weight.resize(static_cast<size_t>(rows));
  p.host_correct.resize(static_cast<size_t>(rows));
  return p;
}

template <class T> void quantize_head(PassBuffers<T>& p, View2<const T> head, const Queue& queue) {
  if (!p.fp8.empty()) quantize_fp8<T>({head, p.fp8.head, p.fp8.turned, p.fp8.largest}, queue);
}

// Lists the drafter rows whose label counts, too.
template <class T>
Blocks upload_blocks(PassBuffers<T>& p, const RowBlocks& in, int64_t first, int64_t count,
                     const Queue& queue) {
  const int64_t row0 = first * in.block, rows = count * in.block;
  p.host_rows.clear();
  p.host_begin.assign(1, 0);
  for (int64_t b = 0; b < count; ++b) {
    for (int64_t r = b * in.block; r < (b + 1) * in.block; ++r) {
      if (in.valid[static_cast<size_t>(row0 + r)]) p.host_rows.push_back(static_cast<int>(r));
    }
    p.host_begin.push_back(static_cast<int>(p.host_rows.size()));
  }
  const auto put = [&](auto* to, const auto* from, int64_t n) {
    copy_to_device(to, from, n * static_cast<int64_t>(sizeof *from), queue);
  };
  put(p.ids, in.ids.data() + row0, rows);
  put(p.position, in.position.data() + row0, rows);
  put(p.label, in.label.data() + row0, rows);
  put(p.valid, in.valid.data() + row0, rows);
  put(p.rows, p.host_rows.data(), static_cast<int64_t>(p.host_rows.size()));
  put(p.anchor, in.anchor.data() + first, count);
  put(p.lo, in.lo.data() + first, count);
  const auto lo = in.lo.begin() + first;
  return {count, p.ids, p.position, p.anchor, p.lo, count > 0 && lo[0] == lo[count - 1]};
}

template <class T>
bool join_row(Drafter<T>& d, PassBuffers<T>& p, const Bf16* features, int64_t slot_tokens, int64_t tokens,
              const Queue& queue) {
  zero(p.non_finite, sizeof(int), queue);
  join_taps<T>({.slot = features,
                .slot_tokens = slot_tokens,
                .taps = static_cast<int>(d.model.taps.size()),
                .x = d.context.x.rows_from(0, tokens),
                .non_finite = p.non_finite},
               queue);
  int bad = 0;
  copy_to_host(&bad, p.non_finite, sizeof bad, queue);
  synchronize(queue);
  return bad == 0;
}

template <class T>
StepSums run_blocks(Drafter<T>& d, PassBuffers<T>& p, const int* position, const RowBlocks& in,
                    View2<const T> embed, View2<const T> head, const LossRule& rule, RowMode mode,
                    const Queue& queue, std::vector<T>* hidden_out, const OnReady& on_ready) {
  StepSums sums;
  const int64_t tokens = in.context();
  const bool train = mode == RowMode::train;
  d.fp8.on = train && d.limits.fp8;
  context_forward(d, tokens, position, queue);
  for (int64_t first = 0; first < in.count(); first += d.limits.blocks) {
    const int64_t count = std::min(d.limits.blocks, in.count() - first), rows = count * in.block;
    const Blocks blocks = upload_blocks(p, in, first, count, queue);
    blocks_forward(d, blocks, tokens, embed, queue);
    const View2<T> hidden = d.blocks.hidden.rows_from(0, rows);
    head_loss<T>({.hidden = hidden,
                  .head = head,
                  .block = static_cast<int>(in.block),
                  .rule = rule,
                  .labels = p.label,
                  .valid = p.valid,
                  .rows = p.rows,
                  .block_begin_host = p.host_begin.data(),
                  .dhidden = train ? d.blocks.dhidden.rows_from(0, rows) : View2<T>(),
                  .nll = p.nll,
                  .weight = p.weight,
                  .correct = p.correct,
                  .chunk_rows = p.chunk_rows,
                  .chunk_hidden = p.chunk_hidden,
                  .chunk_dhidden = p.chunk_dhidden,
                  .chunk_logits = p.chunk_logits,
                  .fp8 = train ? p.fp8 : Fp8Head()},
                 queue);
    copy_to_host(p.host_nll.data(), p.nll, rows * static_cast<int64_t>(sizeof(Acc<T>)), queue);
    copy_to_host(p.host_weight.data(), p.weight, rows * static_cast<int64_t>(sizeof(Acc<T>)), queue);
    copy_to_host(p.host_correct.data(), p.correct, rows, queue);
    if (hidden_out != nullptr) {
      const size_t at = hidden_out->size();
      hidden_out->resize(at + static_cast<size_t>(rows * hidden.cols));
      copy_to_host(hidden_out->data() + at, hidden.data, rows * hidden.cols * static_cast<int64_t>(sizeof(T)),
                   queue);
    }
    const bool last = first + count == in.count();
    if (train) blocks_backward(d, blocks, tokens, queue, last ? on_ready : OnReady());
    synchronize(queue);  // the host vectors of this pass are free again
    add_blocks(sums, in.block,
               std::span(in.valid).subspan(static_cast<size_t>(first * in.block), static_cast<size_t>(rows)),
               p.host_nll.data(), p.host_weight.data(), p.host_correct.data(),
               in.source.empty()
                   ? std::span<const int32_t>()
                   : std::span(in.source).subspan(static_cast<size_t>(first), static_cast<size_t>(count)));
  }
  if (train) context_backward(d, tokens, position, queue, on_ready);
  d.fp8.on = false;
  return sums;
}

template <class T>
std::optional<StepSums> run_row(Drafter<T>& d, PassBuffers<T>& p, const Bf16* features, int64_t slot_tokens,
                                const int* position, const RowBlocks& in, View2<const T> embed,
                                View2<const T> head, const LossRule& rule, RowMode mode, const Queue& queue,
                                const OnReady& on_ready) {
  if (!join_row(d, p, features, slot_tokens, in.context(), queue)) return std::nullopt;
  return run_blocks<T>(d, p, position, in, embed, head, rule, mode, queue, nullptr, on_ready);
}

#define SLIP_INSTANTIATE(T)                                                                                \
  template bool join_row(Drafter<T>&, PassBuffers<T>&, const Bf16*, int64_t, int64_t, const Queue&);       \
  template Blocks upload_blocks(PassBuffers<T>&, const RowBlocks&, int64_t, int64_t, const Queue&);        \
  template PassBuffers<T> make_pass_buffers(const DrafterModel&, const DrafterLimits&, Arena&);            \
  template void quantize_head(PassBuffers<T>&, View2<const T>, const Queue&);                              \
  template std::optional<StepSums> run_row(Drafter<T>&, PassBuffers<T>&, const Bf16*, int64_t, const int*, \
                                           const RowBlocks&, View2<const T>, View2<const T>,               \
                                           const LossRule&, RowMode, const Queue&, const OnReady&);        \
  template StepSums run_blocks(Drafter<T>&, PassBuffers<T>&, const int*, const RowBlocks&, View2<const T>, \
                               View2<const T>, const LossRule&, RowMode, const Queue&, std::vector<T>*,    \
                               const OnReady&);
SLIP_INSTANTIATE(float)
SLIP_INSTANTIATE(double)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
