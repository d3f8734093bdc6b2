#include <algorithm>
#include <cmath>

#include "apps/inspect_features.hpp"

namespace slip {
namespace {

constexpr size_t kOutliers = 8;
constexpr double kOutlierTimes = 6;  // root mean square of a channel over the median of all

double quantile(std::vector<float>& values, double q) {
  const size_t i = static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(i), values.end());
  return values[i];
}

Facts norm_facts(std::vector<float> norms) {
  Facts out = Facts::object();
  for (const auto& [name, q] :
       {std::pair{"p1", 0.01}, {"p10", 0.1}, {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1.0}})
    out[name] = norms.empty() ? Facts() : Facts(quantile(norms, q));
  // Between the smallest and the largest.
  std::vector<int64_t> bins(norms.empty() ? 0 : 40);
  if (!norms.empty()) {
    const auto [low, high] = std::minmax_element(norms.begin(), norms.end());
    const double from = *low,
                 width = std::max<double>(*high - *low, 1e-30) / static_cast<double>(bins.size());
    for (const float n : norms) ++bins[std::min(bins.size() - 1, static_cast<size_t>((n - from) / width))];
    out["histogram"] = {{"from", from}, {"to", *high}, {"counts", bins}};
  }
  return out;
}

Facts outlier_facts(const TapStatistics& t) {
  const int64_t tokens = static_cast<int64_t>(t.norms.size());
  Facts out = Facts::array();
  if (tokens == 0) return out;
  std::vector<std::pair<double, size_t>> rms;
  for (size_t c = 0; c < t.channel_squares.size(); ++c)
    rms.push_back({std::sqrt(t.channel_squares[c] / static_cast<double>(tokens)), c});
  std::sort(rms.begin(), rms.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  const double median = rms[rms.size() / 2].first;
  for (size_t i = 0;
       i < std::min(kOutliers, rms.size()) && median > 0 && rms[i].first > kOutlierTimes * median; ++i)
    out.push_back(
        {{"channel", rms[i].second}, {"rms", rms[i].first}, {"times_median", rms[i].first / median}});
  return out;
}

}  // namespace

void TapStatistics::add(const Bf16* row, int64_t hidden) {
  double squares_here = 0;
  for (int64_t c = 0; c < hidden; ++c) {
    const float v = to_float(row[c]);
    ++exponents[(row[c].bits >> 7) & 0xffu];
    if (!std::isfinite(v)) {
      ++(std::isnan(v) ? nan : inf);
      continue;
    }
    const double x = v;
    ++count;
    sum += x;
    squares_here += x * x;
    channel_squares[static_cast<size_t>(c)] += x * x;
    abs_max = std::max(abs_max, std::abs(x));
  }
  squares += squares_here;
  norms.push_back(static_cast<float>(std::sqrt(squares_here)));
}

double TapStatistics::deviation() const {
  if (count == 0) return 0;
  const double m = mean();
  return std::sqrt(std::max(0.0, squares / static_cast<double>(count) - m * m));
}

Facts tap_facts(const FeatureSpec& spec, const std::vector<TapStatistics>& taps) {
  Facts out = Facts::array();
  for (size_t k = 0; k < taps.size(); ++k) {
    const TapStatistics& t = taps[k];
    // Powers of two from the smallest that occurs to the largest; exponent 0 holds zeros and subnormals.
    Facts sizes = Facts::array();
    for (size_t e = 0; e < t.exponents.size(); ++e) {
      if (t.exponents[e] > 0 && e < 255) sizes.push_back({static_cast<int64_t>(e) - 127, t.exponents[e]});
    }
    out.push_back({{"layer", spec.taps[k]},
                   {"mean", t.mean()},
                   {"deviation", t.deviation()},
                   {"abs_max", t.abs_max},
                   {"nan", t.nan},
                   {"inf", t.inf},
                   {"norms", norm_facts(t.norms)},
                   {"outliers", outlier_facts(t)},
                   {"magnitudes", sizes}});
  }
  return out;
}

}  // namespace slip
