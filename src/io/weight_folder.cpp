#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <set>

#include "core/check.hpp"
#include "core/log.hpp"
#include "io/json_file.hpp"
#include "io/safetensors.hpp"
#include "io/safetensors_header.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

constexpr size_t kShown = 20;  // names in a message

// "a, b, c and 7 more"
template <class Names> std::string some_of(const Names& names) {
  std::string text;
  size_t n = 0;
  for (const std::string& name : names) {
    if (n++ == kShown) return text + fmt::format(" and {} more", names.size() - kShown);
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

struct Index {
  std::map<std::string, std::string> file_of;  // tensor -> plain file name
  std::optional<int64_t> total_size;
};

Index read_index(const std::string& path) {
  const nlohmann::json index = read_json_file(path, kMaxHeaderBytes);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) fail_input(fmt::format("{}: no object weight_map", path));
  if (map->empty()) fail_input(fmt::format("{}: weight_map is empty", path));
  if (map->size() > kMaxTensors) fail_input(fmt::format("{}: more than {} tensors", path, kMaxTensors));
  Index result;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string())
      fail_input(
          fmt::format("{}: weight_map: {} names {}, a file name is expected", path, tensor, file.dump()));
    const std::string name = file;
    if (name.empty() || name == "." || name.find("..") != std::string::npos ||
        name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      fail_input(fmt::format("{}: weight_map: {} names {}, a plain file name in the same folder is expected",
                             path, tensor, file.dump()));
    }
    result.file_of.emplace(tensor, name);
  }
  if (const auto meta = index.find("metadata"); meta != index.end() && meta->is_object()) {
    const auto size = meta->find("total_size");
    if (size != meta->end() && size->is_number_integer()) result.total_size = size->get<int64_t>();
  }
  return result;
}

void check_exist(const fs::path& folder, const std::string& index_path, const std::set<std::string>& files) {
  std::vector<std::string> missing;
  for (const std::string& name : files) {
    std::error_code ignored;
    if (!fs::exists(folder / name, ignored)) missing.push_back(name);
  }
  if (!missing.empty()) {
    fail_input(fmt::format("{}: {} of {} files that it names are missing: {}", index_path, missing.size(),
                           files.size(), some_of(missing)));
  }
}

}  // namespace

WeightFolder::WeightFolder(const std::string& folder) : folder_(folder) {
  const fs::path single = fs::path(folder) / "model.safetensors",
                 index_file = fs::path(folder) / "model.safetensors.index.json";
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) fail_input(fmt::format("{}: no such folder", folder));
  const bool have_single = fs::exists(single, ignored), have_index = fs::exists(index_file, ignored);
  if (!have_single && !have_index) {
    fail_input(
        fmt::format("{}: neither model.safetensors nor model.safetensors.index.json is there", folder));
  }
  Index index;
  if (have_index) index = read_index(index_file.string());
  if (have_single) {
    auto file = std::make_shared<SafetensorsFile>(single.string());
    bool whole = true;
    for (const auto& [tensor, name] : index.file_of) whole = whole && file->find(tensor) != nullptr;
    if (whole) {
      files_.push_back(file);
      for (const TensorInfo& t : file->tensors()) where_.emplace(t.name, std::pair(0, &t));
      return;
    }
    log_info(fmt::format("{}: lacks tensors that {} lists: the shards are read", single.string(),
                         index_file.filename().string()));
  }

  std::set<std::string> names;
  for (const auto& [tensor, file] : index.file_of) names.insert(file);
  check_exist(folder, index_file.string(), names);
  std::map<std::string, std::pair<int, const TensorInfo*>> found;
  std::map<std::string, std::string> twice;  // tensor -> second file
  for (const std::string& name : names) {
    files_.push_back(std::make_shared<SafetensorsFile>((fs::path(folder) / name).string()));
    for (const TensorInfo& t : files_.back()->tensors()) {
      if (!found.emplace(t.name, std::pair(static_cast<int>(files_.size()) - 1, &t)).second)
        twice.emplace(t.name, name);
    }
  }
  const auto plain = [](const TensorInfo& t) { return fs::path(t.file).filename().string(); };
  std::vector<std::string> wrong;
  for (const auto& [tensor, file] : twice) {
    wrong.push_back(fmt::format("{} lies in {} and in {}", tensor, plain(*found.at(tensor).second), file));
  }
  int64_t total = 0;
  for (const auto& [tensor, file] : index.file_of) {
    const auto at = found.find(tensor);
    if (at == found.end()) {
      wrong.push_back(fmt::format("{} is not in {} nor in another shard", tensor, file));
    } else if (twice.count(tensor) == 0 && plain(*at->second.second) != file) {
      wrong.push_back(fmt::format("{} is not in {} but in {}", tensor, file, plain(*at->second.second)));
    } else {
      total += at->second.second->bytes;
      where_.emplace(tensor, at->second);
    }
  }
  if (!wrong.empty())
    fail_input(fmt::format("{}: the shards are not as listed: {}", index_file.string(), some_of(wrong)));
  if (index.total_size && *index.total_size != total) {
    log_warn(fmt::format("{}: total_size is {}, the tensors have {} bytes", index_file.string(),
                         *index.total_size, total));
  }
}

const TensorInfo* WeightFolder::find(const std::string& name) const {
  const auto at = where_.find(name);
  return at == where_.end() ? nullptr : at->second.second;
}

std::vector<std::string> WeightFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, where] : where_) names.push_back(name);
  return names;
}

const TensorInfo& WeightFolder::need(const std::string& name, const std::vector<int64_t>& shape) const {
  const TensorInfo* t = find(name);
  if (t == nullptr)
    fail_input(fmt::format("{}: no tensor {}; there are: {}", folder_, name, some_of(names())));
  if (t->shape != shape) {
    fail_input(fmt::format("{}: tensor {}: shape is {}, the configuration needs {}", t->file, name,
                           shape_text(t->shape), shape_text(shape)));
  }
  require_float(*t);
  return *t;
}

void WeightFolder::read_float(const TensorInfo& t, float* out) const { file_of(t).read_float(t, out); }
void WeightFolder::read_bf16(const TensorInfo& t, Bf16* out) const { file_of(t).read_bf16(t, out); }
void WeightFolder::read_bytes(const TensorInfo& t, int64_t offset, int64_t bytes, void* out) const {
  file_of(t).read_bytes(t, offset, bytes, out);
}
void WeightFolder::check_sizes() const {
  for (const auto& file : files_) file->check_size();
}

const SafetensorsFile& WeightFolder::file_of(const TensorInfo& t) const {
  const auto at = where_.find(t.name);
  require(at != where_.end(), "WeightFolder: a tensor of another folder");
  return *files_[static_cast<size_t>(at->second.first)];
}

}  // namespace slip
