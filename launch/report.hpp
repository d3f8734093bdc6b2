// A run in pictures: one HTML page that needs no network, made from the files of run directories.
#pragma once
#include <string>
#include <vector>

namespace slip {

// Reads config.ini, command.txt, versions.txt, plan.json, metrics.jsonl and eval.jsonl of each directory (the
// last two may end within a line: the run may be going on). fail_input where a directory is none of a run.
std::string report_page(const std::vector<std::string>& run_directories);

// Replaces `path` by the page, at once.
void write_report(const std::vector<std::string>& run_directories, const std::string& path);

}  // namespace slip
