// The loop of speculative decoding for one response (dflash.md 5.1), over any `Models` with
//   Choice prefill(prompt)               runs the prompt, chooses the token after it
//   void propose(start, block)           block[0] is the token at position `start`; fills block[1..] with
//   drafts void verify(start, block, choices)   choices[j]: the target's token for position start + j + 1
//   void commit(count)                   the first `count` tokens of the block are accepted; the rest is
//   forgotten
// Every token of a response is the target's choice: drafts only decide how many choices one call yields.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/check.hpp"

namespace slip {

struct Choice {
  int32_t token;
  float margin;  // how far it is ahead of the next best: where it is tiny, rounding decides
};

struct SpeculateRule {
  int64_t block;    // tokens of a verification: the known one and block - 1 drafts; 1 is plain decoding
  int64_t max_new;  // tokens of a response
  std::vector<int32_t> stops;
};

struct Cycle {
  int64_t start;  // position of the block's known token
  int advance;    // accepted drafts + 1, also where the response ends earlier
};
struct Response {
  std::vector<Choice> tokens;  // after the prompt, up to the stop token (included) or max_new
  std::vector<Cycle> cycles;   // calls of the target after the prompt's
  bool stopped = false;        // at a stop token
};

template <class Models>
Response speculate(Models& models, std::span<const int32_t> prompt, const SpeculateRule& rule) {
  require(rule.block >= 1 && rule.max_new >= 1 && !prompt.empty(), "speculate: nothing to do");
  Response r;
  const auto emit = [&](const Choice& c) {  // false: the response has ended
    r.tokens.push_back(c);
    r.stopped = std::find(rule.stops.begin(), rule.stops.end(), c.token) != rule.stops.end();
    return !r.stopped && static_cast<int64_t>(r.tokens.size()) < rule.max_new;
  };
  std::vector<int32_t> block(static_cast<size_t>(rule.block));
  std::vector<Choice> choices(block.size());
  int64_t start = static_cast<int64_t>(prompt.size());
  bool more = emit(models.prefill(prompt));
  while (more) {
    block[0] = r.tokens.back().token;
    models.propose(start, std::span(block));
    models.verify(start, std::span<const int32_t>(block), std::span(choices));
    size_t accepted = 0;
    while (accepted + 1 < block.size() && block[accepted + 1] == choices[accepted].token) ++accepted;
    const int advance = static_cast<int>(accepted) + 1;
    r.cycles.push_back({start, advance});
    for (size_t j = 0; j <= accepted && more; ++j) more = emit(choices[j]);
    if (more) models.commit(advance);
    start += advance;
  }
  return r;
}

}  // namespace slip
