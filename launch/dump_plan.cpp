#include "launch/dump_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "core/log.hpp"
#include "io/feature_shard.hpp"
#include "io/h5_items.hpp"
#include "io/token_shard.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

std::string base_name(const std::string& path) {
  fs::path p = fs::path(path).lexically_normal();
  if (p.filename().empty()) p = p.parent_path();
  return p.filename().string();
}

DecodeTable read_decode_table(const std::string& path) {
  DecodeTable t;
  const TokenShard shard = open_token_shard(path);
  if (!h5_has(shard.file, "token_bytes")) return t;
  const H5Id bytes = h5_dataset(path, shard.file, "token_bytes", H5T_STD_U8LE);
  t.bytes.resize(static_cast<size_t>(h5_length(bytes)));
  h5_read(path, "token_bytes", bytes, H5T_NATIVE_UINT8, 0, h5_length(bytes), t.bytes.data());
  const H5Id at = h5_dataset(path, shard.file, "token_byte_offsets", H5T_STD_I64LE);
  t.at = h5_integers(path, "token_byte_offsets", at);
  return t;
}

// What manifest.json and all.h5 may take on top of the shards.
int64_t index_bytes(int64_t shards, int64_t documents) {
  return (128 << 10) + shards * 1024 + documents * 48;
}

struct Cut {
  const DumpPlan& plan;
  int64_t shard_bytes;
  std::vector<ShardPlan> shards;

  int64_t bytes(const ShardSize& s) const { return shard_bytes_bound(plan.spec, plan.table, s); }
  void add(int64_t row, const ShardSize& size, int64_t writer) {
    ShardPlan* open = shards.empty() ? nullptr : &shards.back();
    ShardSize sum = size;
    if (open != nullptr) {
      sum.documents += open->size.documents;
      sum.tokens += open->size.tokens;
      sum.feature_rows += open->size.feature_rows;
    }
    if (open == nullptr || bytes(sum) > shard_bytes) {
      open = &shards.emplace_back();
      open->writer = writer;
      sum = size;
      if (bytes(sum) > shard_bytes) {
        fail_usage(fmt::format("dump.shard_bytes: {}, but row {} alone ({} tokens) needs {}", shard_bytes,
                               row, size.tokens, bytes(sum)));
      }
    }
    open->rows.push_back(row);
    open->size = sum;
    open->bytes = bytes(sum);
  }
};

}  // namespace

int64_t kept_rows(const FeatureSpec& spec, std::span<const uint8_t> mask) {
  const int64_t tokens = static_cast<int64_t>(mask.size());
  return spec.span == "all" ? tokens : supervised_span(mask.data(), tokens);
}

FeatureSpec dump_spec(const RunOptions& o, const RunInputs& in) {
  const Config& c = o.config;
  FeatureSpec s;
  s.target = base_name(c.target.path);
  s.architecture = in.target.model_type;
  s.target_fingerprint = target_fingerprint(o);
  s.target_layers = in.target.layers;
  s.taps = in.drafter.taps;
  s.hidden = in.target.hidden;
  s.precision = o.device == Device::cpu || c.train.precision == "fp32" ? "fp32" : "bf16";
  s.rope_theta = in.target.rope.theta;
  s.rope_type = in.target.rope.type;
  const TokenShardInfo& first = in.corpus->shards().front();
  s.vocab_size = first.vocab_size;
  s.mask_token_id = first.mask_token_id;
  s.tokenizer_sha256 = first.tokenizer_sha256;
  s.template_sha256 = first.template_sha256;
  for (const TokenShardInfo& shard : in.corpus->shards())
    s.source += fmt::format("{}{}", s.source.empty() ? "" : "\n", base_name(shard.path));
  s.span = c.dump.span;
  s.bf16 = c.dump.bf16;
  s.compress = c.dump.compress;
  s.seed = static_cast<int64_t>(c.data.seed);
  s.shuffle = c.data.shuffle ? 1 : 0;
  s.row_tokens = c.data.row_tokens;
  s.max_length = c.data.max_length > 0 ? c.data.max_length : c.data.row_tokens;
  s.corpus_documents = static_cast<int64_t>(in.corpus->documents().size());
  for (const auto& d : in.corpus->documents()) s.corpus_tokens += d.length;
  s.writer = o.program;
  return s;
}

DumpPlan plan_dump(const RunOptions& o, const RunInputs& in, const DumpWriters& writers) {
  const Config& c = o.config;
  DumpPlan p;
  p.spec = dump_spec(o, in);
  p.table = read_decode_table(in.corpus->shards().front().path);
  std::unordered_set<int64_t> there;
  int64_t next = 0;
  if (const std::optional<DumpManifest> m = read_manifest(c.dump.dir)) {
    for (const ShardEntry& e : m->shards) {
      const FeatureShard shard((fs::path(c.dump.dir) / e.name).string());
      there.insert(shard.tables().document_ids.begin(), shard.tables().document_ids.end());
      p.bytes_there += e.bytes;
      next = std::max(next, shard_number(e.name).value() + 1);
    }
    p.shards_there = static_cast<int64_t>(m->shards.size());
  }
  p.documents_there = static_cast<int64_t>(there.size());

  // One list of shards, or one for each writer.
  std::vector<Cut> cuts(static_cast<size_t>(writers.by_rows ? writers.count : 1),
                        Cut{p, c.dump.shard_bytes, {}});
  const std::vector<Row> rows =
      epoch_rows(in.corpus->documents(), c.data.row_tokens, c.data.shuffle, c.data.seed, 0);
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  for (int64_t i = writers.first_row; i < static_cast<int64_t>(rows.size()); ++i) {
    const Row& row = rows[static_cast<size_t>(i)];
    const bool known = there.count(row.documents.front().id) != 0;
    ShardSize size;
    for (const TokenCorpus::Document& d : row.documents) {
      if ((there.count(d.id) != 0) != known)
        fail_input(fmt::format(
            "{}: holds a part of row {} of this configuration: it was made from other rows", c.dump.dir, i));
      ++size.documents;
      size.tokens += d.length;
      if (known) continue;
      if (p.spec.span != "all") in.corpus->read(d.id, ids, mask);
      size.feature_rows += p.spec.span == "all" ? d.length : kept_rows(p.spec, mask);
    }
    p.row_values = std::max(p.row_values, size.tokens * p.spec.values_per_token());
    if (known) continue;
    const int64_t writer = writers.by_rows ? i % writers.count : 0;
    cuts[writers.by_rows ? static_cast<size_t>(writer) : 0].add(i, size, writer);
  }
  // In the order of their numbers, as long as dump.max_bytes holds them.
  std::vector<int64_t> room(cuts.size(), INT64_MAX);
  if (c.dump.max_bytes > 0) {
    const int64_t left = c.dump.max_bytes - p.bytes_there - index_bytes(p.shards_there, p.documents_there);
    std::fill(room.begin(), room.end(), left / static_cast<int64_t>(cuts.size()));
  }
  for (size_t k = 0, any = 1; any != 0; ++k) {
    any = 0;
    for (size_t w = 0; w < cuts.size(); ++w) {
      if (k >= cuts[w].shards.size()) continue;
      any = 1;
      ShardPlan& s = cuts[w].shards[k];
      const int64_t needs = s.bytes + index_bytes(1, s.size.documents) - index_bytes(0, 0);
      if (room[w] < needs) {
        room[w] = -1;  // no smaller one after it either: a dump has no holes
        p.documents_left_out += s.size.documents;
        continue;
      }
      room[w] -= needs;
      const int64_t turn = static_cast<int64_t>(k);
      s.number = writers.by_rows ? next + turn * writers.count + static_cast<int64_t>(w) : next + turn;
      if (!writers.by_rows) s.writer = turn % writers.count;
      p.documents += s.size.documents;
      p.rows += static_cast<int64_t>(s.rows.size());
      p.bytes += s.bytes;
      p.shards.push_back(std::move(s));
    }
  }
  if (!p.shards.empty()) p.bytes += index_bytes(static_cast<int64_t>(p.shards.size()), p.documents);
  return p;
}

}  // namespace slip
