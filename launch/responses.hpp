// Prompts shared out over ranks: prompt i belongs to rank i mod size, and its response depends on nothing but
// the prompt and the rule. So the responses are the same on any number of ranks.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "comm/mpi.hpp"
#include "decode/speculate.hpp"
#include "io/prompts.hpp"

namespace slip {

// A response as whole numbers, and back; fail for numbers that are none.
std::vector<int64_t> response_words(const Response&);
Response response_from(std::span<const int64_t>);

// Sends responses to one rank without waiting for it. `finish` waits until all were taken.
class ResponsePost {
 public:
  ResponsePost(const Comm&, int to, double timeout_s);
  ~ResponsePost();
  ResponsePost(const ResponsePost&) = delete;
  ResponsePost& operator=(const ResponsePost&) = delete;
  void post(const Response&);
  void finish();

 private:
  struct Message;
  const Comm& comm_;
  int to_;
  double timeout_s_;
  std::vector<std::unique_ptr<Message>> sent_;
};
// The next response that `from` posted.
Response take_response(const Comm&, int from, double timeout_s, std::string_view what);

// Collective over `comm` (null: this process alone). Every rank answers its prompts; rank 0 returns all
// responses in the order of the prompts, the others none. Says how far it is every 5 s; `what` begins the
// line.
std::vector<Response> answer_together(const Comm* comm, const Prompts&, const char* what, double timeout_s,
                                      const std::function<Response(const Prompt&)>& answer);

}  // namespace slip
