#include "apps/generate_journal.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/check.hpp"
#include "io/durable.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

std::string journal_path(const std::string& out, int rank) {
  return fmt::format("{}.journal-{:04}", out, rank);
}

std::vector<std::string> journals_of(const std::string& out) {
  const fs::path path(out);
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  const std::string begin = path.filename().string() + ".journal-";
  std::vector<std::string> found;
  std::error_code missing;
  for (const fs::directory_entry& e : fs::directory_iterator(folder, missing)) {
    const std::string name = e.path().filename().string();
    if (name.rfind(begin, 0) == 0 && name.size() == begin.size() + 4) found.push_back(e.path().string());
  }
  return found;
}

std::string line_of(int64_t document, const Answer& a) {
  return nlohmann::json{{"document", document}, {"stopped", a.stopped}, {"ids", a.ids}}.dump() + "\n";
}

}  // namespace

std::map<int64_t, Answer> read_journals(const std::string& out, const std::string& settings) {
  std::map<int64_t, Answer> answers;
  for (const std::string& path : journals_of(out)) {
    std::ifstream in(path);
    std::string line;
    if (!std::getline(in, line) || in.eof()) continue;  // killed before its first line was whole
    if (line != settings) {
      fail_usage(
          fmt::format("--out {}: {} holds answers of other settings ({}); remove it or name another "
                      "file",
                      out, path, line));
    }
    while (std::getline(in, line) && !in.eof()) {
      const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
      if (!j.is_object()) fail_input(fmt::format("{}: a line is no answer: {}", path, line.substr(0, 80)));
      try {
        answers[j.at("document").get<int64_t>()] = {j.at("ids").get<std::vector<int32_t>>(),
                                                    j.at("stopped").get<bool>()};
      } catch (const nlohmann::json::exception&) {
        fail_input(fmt::format("{}: a line is no answer: {}", path, line.substr(0, 80)));
      }
    }
  }
  return answers;
}

void remove_journals(const std::string& out) {
  for (const std::string& path : journals_of(out)) fs::remove(path);
}

void tidy_journals(const std::string& out, const std::string& settings,
                   const std::map<int64_t, Answer>& answers) {
  std::string text = settings + "\n";
  for (const auto& [document, answer] : answers) text += line_of(document, answer);
  write_text_durably(journal_path(out, 0), text);
  for (const std::string& path : journals_of(out))
    if (path != journal_path(out, 0) && fs::path(path) != fs::path(journal_path(out, 0))) fs::remove(path);
}

Journal::Journal(const std::string& out, int rank, const std::string& settings)
    : path_(journal_path(out, rank)) {
  const bool begun = fs::exists(path_);
  file_.reset(std::fopen(path_.c_str(), "a"));
  if (!file_) fail(fmt::format("{}: {}", path_, std::strerror(errno)));
  if (begun) return;
  if (std::fputs((settings + "\n").c_str(), file_.get()) < 0 || std::fflush(file_.get()) != 0)
    fail(fmt::format("{}: {}", path_, std::strerror(errno)));
}

void Journal::add(int64_t document, const Answer& a) {
  if (std::fputs(line_of(document, a).c_str(), file_.get()) < 0 || std::fflush(file_.get()) != 0)
    fail(fmt::format("{}: {}", path_, std::strerror(errno)));
}

}  // namespace slip
