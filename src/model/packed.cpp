#include "model/packed.hpp"

#include <cmath>
#include <numeric>

namespace slip {

PackedRow::PackedRow(const std::string& name, int64_t max_tokens, Arena& arena)
    : max_tokens_(max_tokens),
      ids_(arena.take<int>(name + ".ids", max_tokens)),
      position_(arena.take<int>(name + ".position", max_tokens)),
      cu_(arena.take<int>(name + ".cu", max_tokens + 1)),
      documents_(arena.take<DeltaDocument>(name + ".documents", max_tokens)),
      chunks_(arena.take<DeltaChunk>(name + ".chunks", max_tokens)) {}

Packed PackedRow::set(std::span<const int32_t> ids, std::span<const int64_t> lengths, const Queue& queue) {
  const int64_t tokens = static_cast<int64_t>(ids.size());
  require(tokens <= max_tokens_, "PackedRow: more tokens than the row was made for");
  require(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == tokens,
          "PackedRow: lengths do not add up");
  synchronize(queue);  // the last row's copies may still read the host vectors
  host_ids_.assign(ids.begin(), ids.end());
  host_position_.clear();
  host_cu_.assign(1, 0);
  for (const int64_t n : lengths) {
    for (int64_t p = 0; p < n; ++p) host_position_.push_back(static_cast<int>(p));
    host_cu_.push_back(host_cu_.back() + static_cast<int>(n));
  }
  const int64_t word = sizeof(int);
  copy_to_device(ids_, host_ids_.data(), tokens * word, queue);
  copy_to_device(position_, host_position_.data(), tokens * word, queue);
  copy_to_device(cu_, host_cu_.data(), static_cast<int64_t>(host_cu_.size()) * word, queue);
  cut_chunks(lengths, host_documents_, host_chunks_);
  const auto upload = [&]<class V>(V* to, const std::vector<V>& from) {
    copy_to_device(to, from.data(), static_cast<int64_t>(from.size() * sizeof(V)), queue);
    return static_cast<int>(from.size());
  };
  return {.tokens = tokens,
          .documents = static_cast<int>(lengths.size()),
          .ids = ids_,
          .position = position_,
          .cu = cu_,
          .cu_host = host_cu_.data(),
          .delta = {.documents = documents_,
                    .chunks = chunks_,
                    .documents_host = host_documents_.data(),
                    .document_count = upload(documents_, host_documents_),
                    .chunk_count = upload(chunks_, host_chunks_)}};
}

RopeTable make_rope_table(const std::string& name, const RopeConfig& rope, int64_t head_dim,
                          int64_t positions, Arena& arena, const Queue& queue) {
  const std::vector<double> frequency = rope_frequencies(rope, head_dim);
  const int64_t half = static_cast<int64_t>(frequency.size());
  View2<float> cos = arena.take2<float>(name + ".cos", positions, half);
  View2<float> sin = arena.take2<float>(name + ".sin", positions, half);
  if (arena.measuring()) return {};
  std::vector<float> host_cos, host_sin;
  for (int64_t p = 0; p < positions; ++p) {
    for (const double f : frequency) {
      host_cos.push_back(static_cast<float>(std::cos(static_cast<double>(p) * f)));
      host_sin.push_back(static_cast<float>(std::sin(static_cast<double>(p) * f)));
    }
  }
  const int64_t bytes = positions * half * static_cast<int64_t>(sizeof(float));
  copy_to_device(cos.data, host_cos.data(), bytes, queue);
  copy_to_device(sin.data, host_sin.data(), bytes, queue);
  synchronize(queue);
  return {cos, sin};
}

}  // namespace slip
