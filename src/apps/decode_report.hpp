// What `decode` found, as JSON and as text.
#pragma once
#include <string>
#include <vector>

#include "decode/acceptance.hpp"
#include "io/prompts.hpp"

namespace slip {

struct DecodeOptions {
  std::string target, drafter, prompts;
  int64_t max_new = 256, block = 0, seed = 0, show = 0, documents = 0, ranks = 1;
  double temperature = 0;
  bool baseline = false, untrained = false, synthetic = false;
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
