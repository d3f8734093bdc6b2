#include "train/replay.hpp"

#include "kernels/features.hpp"
#include "kernels/matmul.hpp"
#include "kernels/sample.hpp"

namespace slip {
namespace {

int count_labels(const RowBlocks& in, int64_t block) {
  int n = 0;
  while (n + 1 < in.block && in.valid[static_cast<size_t>(block * in.block + n + 1)] != 0) ++n;
  return n;
}

// Of the block whose final hidden states are `hidden`.
template <class T>
ReplayedBlock replay_block(const ReplayBuffers<T>& b, View2<const T> hidden, const int* label, int labels,
                           View2<const T> head, const Queue& queue) {
  ReplayedBlock out{.labels = labels, .accepted = 0, .lead = {}};
  if (labels == 0) return out;
  const View2<Acc<T>> logits = b.logits.rows_from(0, labels);
  matmul<T, Acc<T>>({Product::nt, hidden.rows_from(1, labels), head, logits}, queue);
  sample_rows<T>({.logits = logits, .temperature = 0, .token = b.token, .margin = b.margin}, queue);
  std::vector<int> token(static_cast<size_t>(labels));
  std::vector<float> margin(token.size());
  copy_to_host(token.data(), b.token, labels * static_cast<int64_t>(sizeof(int)), queue);
  copy_to_host(margin.data(), b.margin, labels * static_cast<int64_t>(sizeof(float)), queue);
  synchronize(queue);
  for (; out.accepted < labels; ++out.accepted) {
    const size_t i = static_cast<size_t>(out.accepted);
    if (token[i] != label[i + 1]) break;
    out.lead.push_back(margin[i]);
  }
  if (out.accepted == labels) return out;
  const size_t i = static_cast<size_t>(out.accepted);
  Acc<T> best = 0, wanted = 0;
  copy_to_host(&best, &logits.at(out.accepted, token[i]), sizeof best, queue);
  copy_to_host(&wanted, &logits.at(out.accepted, label[i + 1]), sizeof wanted, queue);
  synchronize(queue);
  out.lead.push_back(static_cast<float>(wanted - best));
  return out;
}

}  // namespace

template <class T> ReplayBuffers<T> make_replay_buffers(const DrafterModel& m, Arena& a) {
  return {a.take2<Acc<T>>("replay.logits", m.block, m.vocab), a.take<int>("replay.token", m.block),
          a.take<float>("replay.margin", m.block)};
}

template <class T>
std::optional<std::vector<ReplayedBlock>> replay_row(Drafter<T>& d, PassBuffers<T>& p,
                                                     const ReplayBuffers<T>& b, const Bf16* features,
                                                     int64_t slot_tokens, const int* position,
                                                     const RowBlocks& in, View2<const T> embed,
                                                     View2<const T> head, const Queue& queue) {
  std::vector<ReplayedBlock> out;
  if (in.count() == 0) return out;
  const int64_t tokens = in.context();
  if (!join_row(d, p, features, slot_tokens, tokens, queue)) return std::nullopt;
  context_forward(d, tokens, position, queue);
  for (int64_t first = 0; first < in.count(); first += d.limits.blocks) {
    const int64_t count = std::min(d.limits.blocks, in.count() - first);
    blocks_forward(d, upload_blocks(p, in, first, count, queue), tokens, embed, queue);
    for (int64_t i = 0; i < count; ++i) {
      const View2<const T> hidden = d.blocks.hidden.rows_from(i * in.block, in.block);
      const int* label = in.label.data() + (first + i) * in.block;
      out.push_back(replay_block<T>(b, hidden, label, count_labels(in, first + i), head, queue));
    }
  }
  return out;
}

#define SLIP_INSTANTIATE(T)                                                                    \
  template ReplayBuffers<T> make_replay_buffers(const DrafterModel&, Arena&);                  \
  template std::optional<std::vector<ReplayedBlock>> replay_row(                               \
      Drafter<T>&, PassBuffers<T>&, const ReplayBuffers<T>&, const Bf16*, int64_t, const int*, \
      const RowBlocks&, View2<const T>, View2<const T>, const Queue&);
SLIP_INSTANTIATE(float)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
