// `inspect` of tensors: counts, dtypes, and the statistics of every tensor's values, read in pieces.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "apps/inspect.hpp"
#include "apps/inspect_statistics.hpp"
#include "apps/inspect_text.hpp"

namespace slip {
namespace {

// "layers.2" before "layers.10".
bool natural_less(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    size_t m = i, n = j;
    while (m < a.size() && digit(a[m])) ++m;
    while (n < b.size() && digit(b[n])) ++n;
    if (m > i && n > j) {
      if (m - i != n - j) return m - i < n - j;  // no leading zeros in names
      const int order = a.compare(i, m - i, b, j, n - j);
      if (order != 0) return order < 0;
      i = m, j = n;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
    }
  }
  return a.size() < b.size();
}

}  // namespace

void add_tensor_facts(Facts& facts, std::vector<TensorInfo> tensors, const InspectOptions& o) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return natural_less(a.name, b.name); });
  int64_t parameters = 0, bytes = 0, to_read = 0;
  std::map<std::string, int64_t> dtypes;  // tensors of each
  const int64_t n = static_cast<int64_t>(tensors.size()), rows = o.tensors < 0 ? n : std::min(o.tensors, n);
  const int64_t read = o.verify ? n : rows;
  for (int64_t i = 0; i < n; ++i) {
    const TensorInfo& t = tensors[static_cast<size_t>(i)];
    parameters += t.count();
    bytes += t.bytes;
    to_read += i < read ? t.bytes : 0;
    ++dtypes[t.dtype_text];
  }
  Facts table = Facts::array();
  int64_t nan = 0, inf = 0;
  std::map<std::string, SafetensorsFile> files;
  Progress progress("reading", static_cast<double>(to_read), "bytes");
  for (int64_t i = 0; i < read; ++i) {
    const TensorInfo& t = tensors[static_cast<size_t>(i)];
    const SafetensorsFile& file = files.try_emplace(t.file, t.file).first->second;
    Facts row{{"name", t.name}, {"dtype", t.dtype_text}, {"shape", t.shape}};
    const Facts values = tensor_statistics(file, t, progress);
    if (!values.is_null()) {
      row.update(values);
      nan += values.at("nan").get<int64_t>();
      inf += values.at("inf").get<int64_t>();
    }
    if (i < rows) table.push_back(row);
  }
  facts["tensors"] = n;
  facts["parameters"] = parameters;
  facts["tensor_bytes"] = bytes;
  facts["dtypes"] = dtypes;
  facts["tensors_read"] = read;
  facts["nan"] = nan;
  facts["inf"] = inf;
  facts["table"] = table;
}

std::string tensor_table_text(const Facts& f) {
  const auto number = [&](const char* key) { return f.at(key).get<int64_t>(); };
  std::string dtypes;
  for (const auto& [name, count] : f.at("dtypes").items())
    dtypes += fmt::format("{}{} {}", dtypes.empty() ? "" : ", ", count.dump(), name);
  std::string out = fact_row("tensors", fmt::format("{} ({}), {} numbers, {}", number("tensors"), dtypes,
                                                    number("parameters"), size_text(number("tensor_bytes"))));
  if (number("tensors_read") > 0) {
    out += fact_row("not finite", fmt::format("{} NaN, {} infinite in {} tensors read", number("nan"),
                                              number("inf"), number("tensors_read")));
  }
  const Facts& table = f.at("table");
  if (table.empty()) return out;
  size_t wide = 4, shape_wide = 5;
  for (const Facts& t : table) {
    wide = std::max(wide, printable(t.at("name").get<std::string>()).size());
    shape_wide = std::max(shape_wide, t.at("shape").dump().size());
  }
  const auto line = [&](const auto& name, const auto& dtype, const auto& shape, const auto&... rest) {
    out += fmt::format("    {:<{}}  {:<5} {:<{}}", name, wide, dtype, shape, shape_wide);
    ((out += fmt::format(" {:>11}", rest)), ...);
    out += "\n";
  };
  line("name", "dtype", "shape", "mean", "deviation", "min", "max", "NaN", "Inf");
  for (const Facts& t : table) {
    const auto value = [&](const char* key) { return value_text(value_or_null(t, key)); };
    line(printable(t.at("name").get<std::string>()), value("dtype"), value("shape"), value("mean"),
         value("deviation"), value("min"), value("max"), value("nan"), value("inf"));
  }
  if (static_cast<int64_t>(table.size()) < number("tensors"))
    out += fmt::format("    and {} more\n", number("tensors") - static_cast<int64_t>(table.size()));
  return out;
}

Facts safetensors_facts(const std::string& path, const InspectOptions& o) {
  const SafetensorsFile file(path);
  Facts facts{{"path", path},
              {"kind", "safetensors file"},
              {"problems", Facts::array()},
              {"bytes", std::filesystem::file_size(path)}};
  facts["metadata"] = file.metadata();
  add_tensor_facts(facts, file.tensors(), o);
  return facts;
}

std::string safetensors_text(const Facts& f) {
  std::string out = fact_row("size", size_text(f.at("bytes").get<int64_t>()));
  for (const auto& [key, value] : f.at("metadata").items())
    out += fact_row("metadata", fmt::format("{} = {}", printable(key), value_text(value)));
  return out + tensor_table_text(f);
}

}  // namespace slip
