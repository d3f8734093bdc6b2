#include "io/prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "io/h5_whole.hpp"
#include "io/json_file.hpp"
#include "io/token_shard.hpp"

namespace slip {
namespace {

// Index of each document's family, and the names, which shards share.
std::vector<int> read_families(const TokenShard& s, std::vector<std::string>& names) {
  std::vector<int> out(static_cast<size_t>(s.info.documents), -1);
  const std::string& path = s.info.path;
  if (!h5_has(s.file, "family") || !h5_has(s.file, "family_names")) return out;
  const std::vector<int64_t> family = h5_integers(path, s.file, "family", s.info.documents);
  const std::vector<std::string> own = h5_texts(path, s.file, "family_names");
  for (size_t d = 0; d < out.size(); ++d) {
    const int64_t count = static_cast<int64_t>(own.size());
    if (family[d] < -1 || family[d] >= count) {
      fail_input(
          fmt::format("{}: family: document {} has {}, -1 to {} is expected", path, d, family[d], count - 1));
    }
    if (family[d] < 0) continue;
    const auto at = std::find(names.begin(), names.end(), own[static_cast<size_t>(family[d])]);
    out[d] = static_cast<int>(at - names.begin());
    if (at == names.end()) names.push_back(own[static_cast<size_t>(family[d])]);
  }
  return out;
}

std::vector<int32_t> read_prompt(const TokenShard& s, int64_t document, int64_t most) {
  const int64_t first = s.offsets[static_cast<size_t>(document)],
                length = s.offsets[static_cast<size_t>(document) + 1] - first;
  std::vector<uint8_t> mask(static_cast<size_t>(length));
  read_mask(s, first, length, mask.data());
  const int64_t prompt = std::find(mask.begin(), mask.end(), uint8_t{1}) - mask.begin();
  const std::string place = fmt::format("{}: document {}", s.info.path, document);
  if (prompt == 0) fail_input(place + " begins with a supervised token: there is no prompt before it");
  if (prompt >= most) {
    fail_input(fmt::format("{}: the prompt has {} tokens, the target takes {} (max_position_embeddings)",
                           place, prompt, most));
  }
  std::vector<int32_t> ids(static_cast<size_t>(prompt));
  read_ids(s, first, prompt, ids.data());
  return ids;
}

void add_stops(const std::string& path, int64_t vocab, std::vector<int32_t>& out) {
  if (!std::filesystem::exists(path)) return;
  const nlohmann::json j = read_json_file(path);
  const auto at = j.find("eos_token_id");
  if (at == j.end() || at->is_null()) return;
  for (const nlohmann::json& id : at->is_array() ? *at : nlohmann::json::array({*at})) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab) {
      fail_input(fmt::format("{}: eos_token_id: {} is no id from 0 to {}", path, id.dump(), vocab - 1));
    }
    const auto stop = id.get<int32_t>();
    if (std::find(out.begin(), out.end(), stop) == out.end()) out.push_back(stop);
  }
}

}  // namespace

std::string TokenText::operator()(const std::vector<int32_t>& ids) const {
  std::string out;
  for (const int32_t id : ids) {
    const size_t i = static_cast<size_t>(id);
    if (i + 1 < at_.size() && at_[i + 1] > at_[i]) {
      out += bytes_.substr(static_cast<size_t>(at_[i]), static_cast<size_t>(at_[i + 1] - at_[i]));
    } else {
      out += empty() ? fmt::format("{} ", id) : fmt::format("<{}>", id);
    }
  }
  return out;
}

int64_t Prompts::longest() const {
  size_t n = 0;
  for (const Prompt& p : list) n = std::max(n, p.ids.size());
  return static_cast<int64_t>(n);
}

Prompts read_prompts(const std::string& globs, int64_t vocab, int64_t max_position, int64_t most) {
  const std::vector<std::string> paths = expand_globs(globs);
  TokenCorpus(paths, 0).validate(vocab);
  Prompts out;
  int64_t document = 0;
  for (const std::string& path : paths) {
    const TokenShard s = open_token_shard(path);
    const std::vector<int> family = read_families(s, out.families);
    if (out.text.empty() && h5_has(s.file, "token_bytes")) {
      out.text = TokenText(h5_integers(path, s.file, "token_byte_offsets", s.info.vocab_size + 1),
                           h5_bytes(path, s.file, "token_bytes"));
    }
    for (int64_t d = 0; d < s.info.documents; ++d, ++document) {
      if (most > 0 && document >= most) break;
      out.list.push_back({document, read_prompt(s, d, max_position), family[static_cast<size_t>(d)]});
    }
  }
  if (out.list.empty()) fail_input(fmt::format("{}: no documents", globs));
  return out;
}

std::vector<int32_t> stop_tokens(const std::string& target_folder, int64_t vocab) {
  std::vector<int32_t> out;
  add_stops(target_folder + "/generation_config.json", vocab, out);
  add_stops(target_folder + "/config.json", vocab, out);
  return out;
}

}  // namespace slip
