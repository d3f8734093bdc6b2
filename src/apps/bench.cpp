// `bench`: timings of operations, of a drafter's step and of a target's capture.
#include "apps/bench.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>

#include "apps/bench_shapes.hpp"
#include "apps/commands.hpp"
#include "apps/with_queue.hpp"
#include "core/log.hpp"
#include "kernels/fp8.hpp"

namespace slip {
namespace {

void check_options(const BenchOptions& o, const std::string& what, bool bf16) {
  for (const auto& [name, value] : {std::pair{"tokens", o.tokens},
                                    {"anchors", o.anchors},
                                    {"documents", o.documents},
                                    {"rows", o.rows},
                                    {"blocks-per-pass", o.blocks_per_pass},
                                    {"repeat", o.repeat}}) {
    if (value < 0 || value > 1 << 24)
      fail_usage(fmt::format("--{}: {} is not between 1 and {}", name, value, 1 << 24));
  }
  if (o.warmup < -1 || o.warmup > 1 << 24)
    fail_usage(fmt::format("--warmup: {} is not between 0 and {}", o.warmup, 1 << 24));
  if (o.cudnn && (what != "target" || !bf16)) fail_usage("--cudnn: for `bench target` in bf16 on a GPU");
  if (o.profile && what != "drafter" && what != "target")
    fail_usage("--profile: `bench drafter` and `bench target` have one");
  if (what != "ops" && !o.names.empty())
    fail_usage(fmt::format("bench {}: unexpected '{}'", what, o.names.front()));
  const std::vector<std::string> known = op_names();
  for (const std::string& name : o.names) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail_usage(fmt::format("bench ops: no operation '{}'; there are {}", name, fmt::join(known, ", ")));
  }
  if (!o.out.empty() && !std::ofstream(o.out, std::ios::app))
    fail_usage(fmt::format("--out {}: cannot be written", o.out));
}

template <class T> int run(const BenchOptions& o, const std::string& what, const Queue& queue) {
  // What the command line got wrong is said before anything is timed.
  for (const std::string& shape : o.shapes) {
    if (what == "target" || what == "decode") bench_target_model(shape);
    if (what != "target") make_step_shape(o, shape);
  }
  Bench bench = make_bench<T>(o, queue);
  log_info(fmt::format("{}: {} product {:.4g} TFLOP/s, copy {:.4g} GB/s", bench.machine.device,
                       bench.precision, bench.peak_tflops, bench.peak_gb_s));
  for (const std::string& shape : o.shapes) {
    if (what == "ops") bench_ops<T>(bench, shape);
    if (what == "drafter") bench_drafter<T>(bench, shape);
    if (what == "target") bench_target<T>(bench, shape);
    if (what == "decode") bench_decode<T>(bench, shape);
  }
  if (bench.below == 0) return kOk;
  log_error(fmt::format("--min-percent {}: {} timings are below", o.min_percent, bench.below));
  return kFailed;
}

}  // namespace

int run_bench(const Arguments& arguments) {
  BenchOptions o;
  std::string precision = "auto", device_text = "auto";
  std::vector<std::string> words;
  Options options(
      "bench", "ops [NAME...] | target | drafter | decode",
      "Times operations, the capture of a row by a target, an optimizer step of a drafter, or the calls of "
      "speculative decoding, on\n"
      "synthetic weights. "
      "One JSON object a timing on standard output: median, FLOPs and bytes as the operation needs them, and "
      "what\n"
      "share of the nearer limit that is: a large matrix product or a large copy, measured first.");
  options.positional(&words, "what", "")
      .list("shape", &o.shapes,
            fmt::format("ops, drafter: {} or a drafter's config.json; target: {} or a target's folder; "
                        "decode: a name of both; "
                        "may be repeated",
                        fmt::join(drafter_shapes(), ", "), fmt::join(target_shapes(), ", ")))
      .text("device", &device_text, "auto, cpu or cuda")
      .text("precision", &precision,
            "bf16 or fp32; auto: bf16 on a GPU; drafter: also fp8, as train.precision")
      .number("tokens", &o.tokens, "of a row; default: 4096, tiny 288; decode: in the cache, 1024, tiny 200")
      .number("documents", &o.documents, "packed in a row; default 1")
      .number("anchors", &o.anchors, "of a row; default: 512, tiny 16")
      .number("rows", &o.rows, "of a step; default: 1, tiny 4")
      .number("blocks-per-pass", &o.blocks_per_pass, "blocks trained together; default: all of a row")
      .number("repeat", &o.repeat, "timed repeats; default: ops 20, others 10")
      .number("warmup", &o.warmup, "repeats before them; default 3")
      .flag("profile", &o.profile,
            "drafter: every operation of the step alone; they sum to the step. target: what share of the "
            "capture each operation has, timed inside it")
      .flag("cudnn", &o.cudnn, "target: with cuDNN's attention in place of ours")
      .text("out", &o.out, "append the JSON lines to this file")
      .text("commit", &o.commit, "what the rows call this build, where the build does not know")
      .number("min-percent", &o.min_percent, "exit code 1 when a timing reaches less of its limit");
  options.footer(fmt::format("Operations: {}\n", fmt::join(op_names(), ", ")));
  if (!options.parse(arguments)) return kOk;
  const std::string what = words.empty() ? "" : words.front();
  if (what != "ops" && what != "target" && what != "drafter" && what != "decode") {
    fail_usage(fmt::format("bench: {} ops, target, drafter, decode, dump, wire",
                           what.empty() ? "what? There are" : fmt::format("'{}' is not one of", what)));
  }
  o.names.assign(words.begin() + 1, words.end());
  const Device device = choose_device_kind(device_text);
  o.fp8 = precision == "fp8";
  if (o.fp8 && what != "drafter") fail_usage("--precision fp8: `bench drafter` has it");
  if (o.fp8 && device == Device::cuda) {
    const std::string problem = no_fp8(cuda_device_name(0), cuda_capability(0));
    if (!problem.empty()) fail_usage("--precision " + problem);
  }
  if (o.fp8 || precision == "auto") precision = device == Device::cpu ? "fp32" : "bf16";
  const bool bf16 = bf16_asked(precision, device);
  if (o.shapes.empty()) {
    if (device == Device::cpu) {
      o.shapes = {"tiny"};
    } else {
      o.shapes = what == "target"   ? std::vector<std::string>{"qwen3-8b", "llama-3.1-8b"}
                 : what == "decode" ? std::vector<std::string>{"qwen3-8b"}
                                    : std::vector<std::string>{"qwen3-8b", "qwen3.6-27b"};
    }
  }
  check_options(o, what, bf16);
  return with_queue(device, bf16, [&]<class T>(const Queue& queue) { return run<T>(o, what, queue); });
}

}  // namespace slip
