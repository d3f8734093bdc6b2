// `inspect --html`: one page that needs nothing from anywhere; its pictures are SVG, drawn here.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/inspect_features.hpp"
#include "apps/inspect_text.hpp"

namespace slip {
namespace {

constexpr const char* kStyle =
    "body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 "
    "1em;color:#222;background:#fff}"
    "h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}table{border-collapse:collapse}td,th{padding:.2em "
    ".8em;text-align:right;"
    "border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}.key "
    "td{text-align:left;word-break:break-word}"
    ".taps{display:grid;grid-template-columns:repeat(auto-fill,minmax(22em,1fr));gap:1.5em}svg{width:100%;"
    "height:auto}"
    "svg text{font:11px "
    "system-ui,sans-serif;fill:#666}.bar{fill:#3b6ea8}.line{stroke:#3b6ea8;fill:none;stroke-width:2}.dot{"
    "fill:#3b6ea8}"
    ".bad{color:#b00020}@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td,th{border-"
    "color:#444}svg text{fill:#aaa}}";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

// Bars of equal width under labels for the first, the middle and the last.
std::string bars(const std::vector<double>& heights, const std::vector<std::string>& ends,
                 const std::string& title) {
  constexpr double kWidth = 360, kHeight = 120;
  const double top = heights.empty() ? 1 : std::max(1e-30, *std::max_element(heights.begin(), heights.end()));
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\"><title>{}</title>",
                                kWidth, kHeight + 20, escaped(title), escaped(title));
  const double step = kWidth / static_cast<double>(std::max<size_t>(1, heights.size()));
  for (size_t i = 0; i < heights.size(); ++i) {
    const double h = heights[i] / top * kHeight;
    out += fmt::format("<rect class=\"bar\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>",
                       static_cast<double>(i) * step, kHeight - h, step * 0.9, h);
  }
  out += fmt::format(
      "<text x=\"0\" y=\"{}\">{}</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text></svg>",
      kHeight + 15, escaped(ends[0]), kWidth, kHeight + 15, escaped(ends[1]));
  return out;
}

// One value a tap, over the layers.
std::string line(const Facts& taps, const char* title, double (*value)(const Facts&)) {
  constexpr double kWidth = 360, kHeight = 120;
  std::vector<double> v;
  for (const Facts& t : taps) v.push_back(value(t));
  const double top = std::max(1e-30, *std::max_element(v.begin(), v.end()));
  std::string points, dots;
  for (size_t i = 0; i < v.size(); ++i) {
    const double x = v.size() == 1
                         ? kWidth / 2
                         : 10 + static_cast<double>(i) * (kWidth - 20) / static_cast<double>(v.size() - 1),
                 y = kHeight - v[i] / top * (kHeight - 15);
    points += fmt::format("{:.1f},{:.1f} ", x, y);
    dots += fmt::format(
        "<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"><title>after layer {}: "
        "{}</title></circle><text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        x, y, taps[i].at("layer").dump(), value_text(v[i]), x, kHeight + 15, taps[i].at("layer").dump());
  }
  return fmt::format(
      "<figure><figcaption>{}; top {}</figcaption><svg viewBox=\"0 0 {} {}\"><polyline class=\"line\" "
      "points=\"{}\"/>{}</svg></figure>",
      title, value_text(top), kWidth, kHeight + 20, points, dots);
}

std::string tap_section(const Facts& t) {
  std::string out = fmt::format("<section><h3>After layer {}</h3>", t.at("layer").dump());
  if (const Facts h = value_or_null(t.at("norms"), "histogram"); !h.is_null()) {
    std::vector<double> counts;
    for (const Facts& c : h.at("counts")) counts.push_back(c.get<double>());
    out += "<p>Norms of tokens</p>" +
           bars(counts, {value_text(h.at("from")), value_text(h.at("to"))}, "histogram of token norms");
  }
  std::vector<double> sizes;
  const Facts& m = t.at("magnitudes");
  if (!m.empty()) {
    // Log scale: a few large values are what one looks for.
    const int64_t low = m.front()[0].get<int64_t>() == -127 && m.size() > 1 ? m[1][0].get<int64_t>()
                                                                            : m.front()[0].get<int64_t>(),
                  high = m.back()[0].get<int64_t>();
    sizes.resize(static_cast<size_t>(high - low + 1));
    for (const Facts& e : m) {
      if (e[0].get<int64_t>() >= low)
        sizes[static_cast<size_t>(e[0].get<int64_t>() - low)] = std::log10(1 + e[1].get<double>());
    }
    out += "<p>Magnitudes of values, by powers of two (log count)</p>" +
           bars(sizes, {fmt::format("2^{}", low), fmt::format("2^{}", high)}, "histogram of magnitudes");
  }
  std::string outliers;
  for (const Facts& c : t.at("outliers"))
    outliers += fmt::format("{} ({:.1f} times the median) ", c.at("channel").dump(),
                            c.at("times_median").get<double>());
  return out + fmt::format("<p>Outlier channels: {}</p></section>", outliers.empty() ? "none" : outliers);
}

}  // namespace

std::string dump_page(const Facts& f) {
  const std::string title = escaped(f.at("path").get<std::string>());
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>{}</title><style>{}</style></head><body><h1>{}</h1>\n",
      title, kStyle, title);
  for (const Facts& p : f.at("problems"))
    out += fmt::format("<p class=\"bad\">{}</p>\n", escaped(value_text(p)));
  const Facts& shape = f.at("shape");
  out += fmt::format(
      "<p>{} documents, {} tokens, features [{}, {}, {}] bfloat16 in {} shards, {}. Statistics of {} "
      "documents.</p>\n",
      f.at("documents").dump(), f.at("tokens").dump(), shape[0].dump(), shape[1].dump(), shape[2].dump(),
      f.at("shards").size(), size_text(f.at("bytes").get<int64_t>()), f.at("documents_read").dump());
  out +=
      "<h2>Taps</h2><table><tr><th>after "
      "layer</th><th>mean</th><th>deviation</th><th>|max|</th><th>NaN</th><th>Inf</th><th>norm "
      "p1</th><th>p50</th><th>p99</th><th>max</th></tr>\n";
  const Facts& taps = f.at("taps");
  for (const Facts& t : taps) {
    const Facts& n = t.at("norms");
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</"
        "td><td>{}</td></tr>\n",
        t.at("layer").dump(), value_text(t.at("mean")), value_text(t.at("deviation")),
        value_text(t.at("abs_max")), t.at("nan").dump(), t.at("inf").dump(), value_text(n.at("p1")),
        value_text(n.at("p50")), value_text(n.at("p99")), value_text(n.at("max")));
  }
  out += "</table>\n<h2>Over the layers</h2><div class=\"taps\">";
  out += line(taps, "Deviation", [](const Facts& t) { return t.at("deviation").get<double>(); });
  out += line(taps, "Median norm of a token", [](const Facts& t) {
    const Facts& n = t.at("norms").at("p50");
    return n.is_null() ? 0 : n.get<double>();
  });
  out += line(taps, "Largest absolute value", [](const Facts& t) { return t.at("abs_max").get<double>(); });
  out += "</div>\n<h2>Each tap</h2><div class=\"taps\">\n";
  for (const Facts& t : taps) out += tap_section(t) + "\n";
  out += "</div>\n<h2>Attributes</h2><table class=\"key\">";
  for (const auto& [name, value] : f.at("attributes").items())
    out += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escaped(name), escaped(value_text(value)));
  return out + "</table></body></html>\n";
}

}  // namespace slip
