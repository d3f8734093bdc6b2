// What `decode` found, as JSON and as text.
#pragma once
#include <string>
#include <vector>

#include "apps/answer_options.hpp"
#include "decode/acceptance.hpp"
#include "io/prompts.hpp"

namespace slip {

struct DecodeOptions {
  AnswerOptions answers;
  int64_t show = 0, ranks = 1;
  bool baseline = false;
};

struct Decoded {
  std::vector<Response> responses, plain;  // one a prompt; plain: empty without --baseline
  double seconds = 0, plain_seconds = 0;   // prompts included
};

// First token where two responses differ; -1: nowhere.
int64_t first_difference(const Response& a, const Response& b);

// `kind`: device and precision in words.
std::string decode_json(const DecodeOptions&, const std::string& kind, const Prompts&, const Decoded&);
std::string decode_text(const DecodeOptions&, const std::string& kind, const Prompts&, const Decoded&);

}  // namespace slip
