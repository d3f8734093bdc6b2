// `bench drafter`: one optimizer step as `train` makes it, on random features and synthetic weights.
#include <fmt/format.h>

#include <algorithm>

#include "apps/bench_cases.hpp"
#include "kernels/fill.hpp"
#include "launch/plan.hpp"
#include "model/packed.hpp"
#include "model/synthetic.hpp"
#include "train/optimizer.hpp"
#include "train/step.hpp"

namespace slip {
namespace {

// A drafter rank without its peers.
template <class T> class Trainer {
 public:
  Trainer(const StepShape& s, Arena& a, const Queue& q)
      : s_(s),
        queue_(q),
        drafter_(make_drafter<T>(s.model, s.limits, a, q)),
        pass_(make_pass_buffers<T>(s.model, s.limits, a)),
        optimizer_(make_optimizer(drafter_, config_, a, q)),
        row_("row", s.tokens(), a),
        packed_(row_.set(s.row.ids, s.row.lengths, q)) {
    const int64_t values = static_cast<int64_t>(s.model.taps.size()) * s.tokens() * s.model.hidden;
    new_masters(optimizer_, drafter_, 1, q);
    embed_ = synthetic_matrix<T>("frozen.embed", s.model.vocab, s.model.hidden, 0.02f, 1, a, q);
    head_ = synthetic_matrix<T>("frozen.head", s.model.vocab, s.model.hidden, 0.02f, 1, a, q);
    features_ = a.take<Bf16>("features", values);
    fill_random<Bf16>({features_, values, 0, 1, 2, 0}, q);
    quantize_head<T>(pass_, head_, q);
  }

  void forward() { run(RowMode::evaluate); }
  void gradients() {
    zero(drafter_.grads, drafter_.layout.count * static_cast<int64_t>(sizeof(Acc<T>)), queue_);
    run(RowMode::train);
  }
  void update() {
    const double denominator = std::max(1.0, sums_.denominator(rule_.kind));
    optimizer_step(optimizer_, drafter_, config_, 1e-4, denominator,
                   gradient_norm(optimizer_, drafter_, denominator, queue_), queue_);
  }

 private:
  void run(RowMode mode) {
    sums_ = {};
    for (int64_t r = 0; r < s_.rows; ++r) {
      const auto sums = run_row<T>(drafter_, pass_, features_, s_.tokens(), packed_.position, s_.blocks,
                                   embed_, head_, rule_, mode, queue_);
      if (!sums) fail("bench drafter: the features hold NaN or infinity");
      sums_ += *sums;
    }
  }

  const StepShape& s_;
  Queue queue_;
  TrainConfig config_;
  LossRule rule_;
  Drafter<T> drafter_;
  PassBuffers<T> pass_;
  Optimizer<T> optimizer_;
  PackedRow row_;
  Packed packed_;
  View2<T> embed_, head_;
  Bf16* features_ = nullptr;
  StepSums sums_;
};

double attention_of_step(const StepShape& s) {
  double flops = 0;
  for (size_t l = 0; l < s.model.sliding.size(); ++l) {
    const AttentionShape shape =
        drafter_attention(s.model, s.model.sliding[l] ? s.model.window : 0, s.model.causal[l]);
    const double pairs = live_pairs(shape, s.blocks, 0, s.blocks.count());
    flops += attention_flops(shape, pairs, false) + attention_flops(shape, pairs, true);
  }
  return flops * static_cast<double>(s.rows);
}

// What `plan` expects: every slot has a label, anchors are spread evenly.
double planned_flops(const StepShape& s) {
  const auto documents = static_cast<int64_t>(s.row.lengths.size());
  return drafter_row_flops(s.model, {s.tokens(), documents, s.blocks.count()}) * static_cast<double>(s.rows);
}

Dims dims_of(const StepShape& s) {
  return {{"rows", s.rows},
          {"tokens", s.tokens()},
          {"documents", static_cast<int64_t>(s.row.lengths.size())},
          {"blocks", s.blocks.count()},
          {"block", s.model.block},
          {"blocks_per_pass", s.limits.blocks},
          {"parameters", parameter_count(s.model)}};
}

// Every operation of the step alone, at the step's shapes; the rest is launches, waits and copies.
template <class T> void profile(Bench& b, const StepShape& s, double step_ms) {
  double sum = 0;
  for (const Op<T>& op : all_ops<T>()) {
    for (const BenchCase& c : op.cases(s, b.queue)) {
      if (c.per_step == 0) continue;
      Arena arena(b.queue.device);
      const Work work = c.prepare(arena);
      const Timing t = measure(b.queue, b.repeats(10, false), work);
      const double total = t.median_ms * c.per_step;
      sum += total;
      report(b,
             {"profile",
              s.name,
              c.op,
              c.name,
              c.dims,
              t,
              c.flops,
              c.bytes,
              {{"per_step", c.per_step}, {"total_ms", total}, {"percent_of_step", 100 * total / step_ms}}});
    }
  }
  const double rest = step_ms - sum;
  report(b, {"profile",
             s.name,
             "rest",
             "launches, waits, copies",
             {},
             {rest, rest, rest, 1},
             0,
             0,
             {{"per_step", 1.0}, {"total_ms", rest}, {"percent_of_step", 100 * rest / step_ms}}});
  fmt::print(stderr, "{:<10} operations alone {:.3f} ms, step {:.3f} ms\n", s.name, sum, step_ms);
}

}  // namespace

template <class T> void bench_drafter(Bench& b, const std::string& shape) {
  const StepShape s = make_step_shape(b.options, shape);
  const Repeats repeats = b.repeats(10, false);
  BenchRow row{.bench = "drafter",
               .model = shape,
               .op = "step",
               .name = "forward, backward, optimizer",
               .dims = dims_of(s)};
  Arena measuring(b.queue.device, Arena::Mode::measure);
  const auto products = step_products(s, make_pass_buffers<T>(s.model, s.limits, measuring).chunk_rows);
  {
    Arena arena(b.queue.device);
    Trainer<T> trainer(s, arena, b.queue);
    row.time = measure(b.queue, repeats, [&] { trainer.gradients(), trainer.update(); });
    if (!b.options.fp8) {  // there the forward pass alone is the evaluation's, in the working type
      const double forward_ms = measure(b.queue, repeats, [&] { trainer.forward(); }).median_ms;
      const double row_ms = measure(b.queue, repeats, [&] { trainer.gradients(); }).median_ms;
      // The first with the loss, the second with the head's gradient and the zeroing of gradients.
      row.more = {{"forward_ms", forward_ms}, {"backward_ms", row_ms - forward_ms}};
    }
    const double update_ms = measure(b.queue, repeats, [&] { trainer.update(); }).median_ms;
    row.more.insert(row.more.end(),
                    {{"optimizer_ms", update_ms},  // norm, clip, AdamW, in fp8 quantizing of the weights
                     {"tokens_per_s", static_cast<double>(s.tokens() * s.rows) / row.time.median_ms * 1e3},
                     {"arena_bytes", static_cast<double>(arena.total_bytes())}});
    if (!b.queue.on_cpu())
      row.more.emplace_back("device_bytes_in_use", static_cast<double>(device_bytes_in_use()));
  }
  double products_ms = 0;
  {
    Arena arena(b.queue.device);
    products_ms = measure(b.queue, repeats, products_alone<T>(products, arena, b.queue)).median_ms;
  }
  row.flops = total_flops(products) + attention_of_step(s);
  row.more.emplace_back("products_flops", total_flops(products));
  row.more.emplace_back("planned_flops", planned_flops(s));
  row.more.emplace_back("products_ms", products_ms);  // the same products back to back, nothing between them
  row.more.emplace_back("rest_over_products", (row.time.median_ms - products_ms) / products_ms);
  report(b, row);
  for (const auto& [key, value] : row.more) fmt::print(stderr, "{:<10} {:<20} {:.6g}\n", "", key, value);
  if (b.options.profile) profile<T>(b, s, row.time.median_ms);
}

template void bench_drafter<float>(Bench&, const std::string&);
#if SLIP_HAVE_CUDA
template void bench_drafter<Bf16>(Bench&, const std::string&);
#endif

}  // namespace slip
