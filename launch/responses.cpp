#include "launch/responses.hpp"

#include <fmt/format.h>

#include <bit>
#include <exception>

#include "comm/collectives.hpp"
#include "core/progress.hpp"

namespace slip {
namespace {

enum Tag : int { kWords = 11, kResponse = 12 };
constexpr int64_t kMostWords = int64_t{1} << 26;  // of a response: more is no response

}  // namespace

std::vector<int64_t> response_words(const Response& r) {
  std::vector<int64_t> out = {static_cast<int64_t>(r.tokens.size()), static_cast<int64_t>(r.cycles.size()),
                              r.stopped};
  for (const Choice& c : r.tokens) {
    out.push_back(c.token);
    out.push_back(std::bit_cast<int32_t>(c.margin));
  }
  for (const Cycle& c : r.cycles) {
    out.push_back(c.start);
    out.push_back(c.advance);
  }
  return out;
}

Response response_from(std::span<const int64_t> words) {
  const size_t most = static_cast<size_t>(kMostWords);
  const bool sound = words.size() >= 3 && words[0] >= 0 && words[1] >= 0 && words.size() <= most &&
                     static_cast<size_t>(words[0]) < most && static_cast<size_t>(words[1]) < most &&
                     words.size() == 3 + 2 * static_cast<size_t>(words[0] + words[1]);
  if (!sound) fail("a response between ranks is not whole");
  Response r;
  size_t at = 3;
  for (int64_t t = 0; t < words[0]; ++t, at += 2) {
    r.tokens.push_back(
        {static_cast<int32_t>(words[at]), std::bit_cast<float>(static_cast<int32_t>(words[at + 1]))});
  }
  for (int64_t c = 0; c < words[1]; ++c, at += 2)
    r.cycles.push_back({words[at], static_cast<int>(words[at + 1])});
  r.stopped = words[2] != 0;
  return r;
}

struct ResponsePost::Message {
  int64_t count = 0;
  std::vector<int64_t> words;
  MPI_Request request[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
};

ResponsePost::ResponsePost(const Comm& comm, int to, double timeout_s)
    : comm_(comm), to_(to), timeout_s_(timeout_s) {}

ResponsePost::~ResponsePost() {
  if (std::uncaught_exceptions() > 0) {  // the job aborts; what MPI still reads must not go before it
    for (auto& m : sent_) m.release();
  }
}

void ResponsePost::post(const Response& r) {
  Message& m = *sent_.emplace_back(std::make_unique<Message>());
  m.words = response_words(r);
  m.count = static_cast<int64_t>(m.words.size());
  check_mpi(MPI_Isend(&m.count, sizeof m.count, MPI_BYTE, to_, kWords, comm_.get(), &m.request[0]));
  check_mpi(MPI_Isend(m.words.data(), static_cast<int>(m.count * 8), MPI_BYTE, to_, kResponse, comm_.get(),
                      &m.request[1]));
}

void ResponsePost::finish() {
  for (auto& m : sent_) {
    for (MPI_Request& r : m->request) wait(comm_, r, to_, deadline_in(timeout_s_), "to take a response");
  }
  sent_.clear();
}

Response take_response(const Comm& comm, int from, double timeout_s, std::string_view what) {
  const int64_t count = recv<int64_t>(comm, from, kWords, deadline_in(timeout_s), what);
  if (count < 3 || count > kMostWords) fail("a response between ranks is not whole");
  std::vector<int64_t> words(static_cast<size_t>(count));
  recv_bytes(comm, from, kResponse, words.data(), count * 8, deadline_in(timeout_s), what);
  return response_from(words);
}

std::vector<Response> answer_together(const Comm* comm, const Prompts& prompts, const char* what,
                                      double timeout_s,
                                      const std::function<Response(const Prompt&)>& answer) {
  const size_t size = comm != nullptr ? static_cast<size_t>(comm->size()) : 1,
               me = comm != nullptr ? static_cast<size_t>(comm->rank()) : 0, count = prompts.list.size();
  std::vector<Response> out(me == 0 ? count : 0);
  std::optional<ResponsePost> post;
  if (me != 0) post.emplace(*comm, 0, timeout_s);
  Progress progress(what, static_cast<double>(count), "prompts");
  for (size_t i = me; i < count; i += size) {
    if (comm != nullptr && comm->peers().watch) comm->peers().watch();
    Response r = answer(prompts.list[i]);
    if (post) {
      post->post(r);
    } else {
      out[i] = std::move(r);
    }
    if (me == 0) progress.at(static_cast<double>(std::min(i + size, count)));
  }
  if (post) post->finish();
  for (size_t i = 0; me == 0 && i < count; ++i) {
    if (const size_t from = i % size; from != 0)
      out[i] = take_response(*comm, static_cast<int>(from), timeout_s, "its responses");
  }
  return out;
}

}  // namespace slip
