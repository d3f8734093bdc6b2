#include "decode/delta_cache.hpp"

#include <algorithm>

#include "kernels/delta_conv.hpp"
#include "kernels/features.hpp"

namespace slip {
namespace {

template <class T> View2<T> rows_of(const DeltaCache<T>& c, int64_t place) {
  return c.rows.rows_from(place * (c.history + c.kept), c.history + c.kept);
}

}  // namespace

template <class T>
DeltaCache<T> make_delta_cache(const TargetModel& m, int64_t choices, int64_t tokens, Arena& arena) {
  DeltaCache<T> c;
  for (int64_t l = 0; l < m.layers; ++l) c.place.push_back(m.is_linear(l) ? c.layers++ : -1);
  if (c.layers == 0) return c;
  const char* key = "--block";
  c.history = m.delta.taps - 1;
  c.kept = std::max(choices, c.history);  // a longer pass fills the history by itself
  const int64_t columns = delta_columns(m);
  c.rows = arena.take2<T>("cache.delta.rows", c.layers * (c.history + c.kept), columns, key);
  c.conv = arena.take2<T>("cache.delta.conv", c.layers * c.kept, m.delta.channels(), key);
  c.state_size = delta_state_size(target_delta(m));
  c.state = arena.take<Acc<T>>("cache.delta.state", c.layers * c.state_size);
  c.piece = arena.take2<T>("cache.delta.piece", c.history + tokens, columns);
  c.piece_conv = arena.take2<T>("cache.delta.piece_conv", tokens, m.delta.channels());
  c.document = arena.take<DeltaDocument>("cache.delta.document", 1);
  c.chunks = arena.take<DeltaChunk>("cache.delta.chunks", (tokens + kDeltaChunk - 1) / kDeltaChunk);
  return c;
}

template <class T> DeltaRow begin_delta_pass(DeltaCache<T>& c, int64_t tokens, const Queue& queue) {
  if (c.layers == 0) return {};
  require(c.passed <= c.kept, "a pass that changed the state must be accepted before the next");
  c.passed = tokens;
  if (tokens <= c.kept) return {};
  cut_chunks(std::span(&tokens, 1), c.host_document, c.host_chunks);
  copy_to_device(c.document, c.host_document.data(), sizeof(DeltaDocument), queue);
  copy_to_device(c.chunks, c.host_chunks.data(),
                 static_cast<int64_t>(c.host_chunks.size() * sizeof(DeltaChunk)), queue);
  return {c.document, c.chunks, c.host_document.data(), 1, static_cast<int>(c.host_chunks.size())};
}

template <class T>
DeltaCarry<T> delta_carry(const DeltaCache<T>& c, int64_t layer, int64_t length, const Queue& queue) {
  const int64_t place = c.place.at(static_cast<size_t>(layer)), n = c.passed;
  const View2<T> rows = rows_of(c, place);
  Acc<T>* const state = c.state + place * c.state_size;
  DeltaCarry<T> out;
  out.state = length == 0 ? nullptr : state;
  out.few = n <= c.kept;
  if (out.few) {
    out.in = rows.rows_from(c.history, n);
    out.conv = c.conv.rows_from(place * c.kept, n);
    return out;
  }
  cast<T, T, T>({rows.rows_from(0, c.history), c.piece.rows_from(0, c.history)}, queue);
  out.in = c.piece.rows_from(c.history, n);
  out.conv = c.piece_conv.rows_from(0, n);
  out.keep = rows.rows_from(0, c.history).cols_from(0, c.conv.cols);
  out.state_out = state;
  return out;
}

template <class T>
void accept_delta(DeltaCache<T>& c, const Target<T>& target, int64_t length, int64_t count,
                  const Queue& queue) {
  if (c.layers == 0) return;
  require(count <= c.passed && (c.passed <= c.kept || count == c.passed),
          "accept_delta: more tokens than the pass had, or a part of a piece");
  const bool few = c.passed <= c.kept;
  c.passed = 0;
  if (!few || count == 0) return;
  for (size_t l = 0; l < c.place.size(); ++l) {
    const int64_t place = c.place[l];
    if (place < 0) continue;
    GatedDeltaFwd<T> rule =
        delta_rule<T>(target, static_cast<int64_t>(l), rows_of(c, place).rows_from(c.history, count),
                      c.conv.rows_from(place * c.kept, count));
    rule.state_out = c.state + place * c.state_size;
    rule.state = length == 0 ? nullptr : rule.state_out;
    gated_delta_step<T>(rule, queue);
  }
  keep_rows<T>({c.rows.cols_from(0, c.conv.cols), c.history + c.kept, static_cast<int>(c.history), count},
               queue);
}

#define SLIP_INSTANTIATE(T)                                                                 \
  template DeltaCache<T> make_delta_cache(const TargetModel&, int64_t, int64_t, Arena&);    \
  template DeltaRow begin_delta_pass(DeltaCache<T>&, int64_t, const Queue&);                \
  template DeltaCarry<T> delta_carry(const DeltaCache<T>&, int64_t, int64_t, const Queue&); \
  template void accept_delta(DeltaCache<T>&, const Target<T>&, int64_t, int64_t, const Queue&);
SLIP_INSTANTIATE(float)
#if SLIP_HAVE_CUDA
SLIP_INSTANTIATE(Bf16)
#endif

}  // namespace slip
