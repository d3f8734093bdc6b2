// Answers of `generate` as they come, so that a killed job goes on: one file a rank, OUT.journal-NNNN, of
// JSON lines; the first says what the answers are of, each other one is an answer. A half-written last line
// is no answer. When the shard is written they go.
#pragma once
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace slip {

struct Answer {
  std::vector<int32_t> ids;
  bool stopped = false;  // at a stop token
};

// All answers so far, by document. fail_usage when a journal is of other settings than `settings` (JSON).
std::map<int64_t, Answer> read_journals(const std::string& out, const std::string& settings);
// Puts them into one whole file; what a kill has cut goes.
void tidy_journals(const std::string& out, const std::string& settings, const std::map<int64_t, Answer>&);
void remove_journals(const std::string& out);

class Journal {
 public:
  Journal(const std::string& out, int rank, const std::string& settings);  // appends
  void add(int64_t document, const Answer&);                               // there before it returns

 private:
  struct CloseFile {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
};

}  // namespace slip
