#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/bench.hpp"
#include "apps/version.hpp"

namespace slip {

void report(Bench& b, const BenchRow& r) {
  const double tflops = r.flops / r.time.median_ms * 1e-9, gb_s = r.bytes / r.time.median_ms * 1e-6;
  const double of_products = 100 * tflops / b.peak_tflops, of_copy = 100 * gb_s / b.peak_gb_s;
  const double percent = std::max(of_products, of_copy);  // the nearer limit
  nlohmann::ordered_json j{{"bench", r.bench}, {"model", r.model}, {"op", r.op}, {"name", r.name}};
  for (const auto& [key, value] : r.dims) j["shape"][key] = value;
  j["precision"] = b.precision;
  j["median_ms"] = r.time.median_ms;
  j["min_ms"] = r.time.min_ms;
  j["max_ms"] = r.time.max_ms;
  j["repeats"] = r.time.repeats;
  if (r.flops > 0) j["flops"] = r.flops, j["tflops"] = tflops;
  if (r.bytes > 0) j["bytes"] = r.bytes, j["gb_s"] = gb_s;
  if (percent > 0) j["percent_of_peak"] = percent, j["limit"] = of_products >= of_copy ? "product" : "copy";
  for (const auto& [key, value] : r.more) j[key] = value;
  j["peak_tflops"] = b.peak_tflops;
  j["peak_gb_s"] = b.peak_gb_s;
  j["device"] = b.machine.device;
  for (const auto& [key, value] : b.machine.clocks) j["clocks"][key] = value;
  j["commit"] = b.options.commit.empty() ? commit_text() : b.options.commit;
  const std::string line = j.dump() + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
  if (!b.options.out.empty()) {
    std::ofstream out(b.options.out, std::ios::app);
    if (!(out << line << std::flush))
      fail(fmt::format("--out {}: a row could not be written", b.options.out));
  }
  const auto column = [](double value, const char* unit) {
    return value > 0 ? fmt::format("{:9.2f} {}", value, unit)
                     : std::string(10 + std::string(unit).size(), ' ');
  };
  fmt::print(stderr, "{:<10} {:<20} {:<34} {:10.4f} ms {} {} {:5.1f} %{}{}\n", r.model, r.op, r.name,
             r.time.median_ms, column(tflops, "TFLOP/s"), column(gb_s, "GB/s"), percent,
             r.note.empty() ? "" : "  ", r.note);
  if (percent > 0 && percent < static_cast<double>(b.options.min_percent)) ++b.below;
}

}  // namespace slip
