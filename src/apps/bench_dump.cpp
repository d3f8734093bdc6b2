// `bench dump`: feature shards against the same disk without them, in the same run: writing against write and
// fsync, reading rows against pread; and, asked for, what the filters of HDF5 save and cost.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/bench_dump_filters.hpp"
#include "apps/dump_commands.hpp"
#include "apps/version.hpp"
#include "core/log.hpp"
#include "device/buffer.hpp"
#include "io/durable.hpp"
#include "launch/feature_disk.hpp"
#include "launch/feature_dump.hpp"

namespace slip {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kPiece = 8 << 20;
constexpr double kTimeout = 600;
constexpr int64_t kTaps = 5, kHidden = 4096, kTokens = 4096;  // rows of Qwen3-8B

struct Files {
  std::string folder;
  DumpPlan plan;
  std::vector<RowTokens> rows;
  int64_t bytes() const { return static_cast<int64_t>(rows.size()) * kTokens * plan.spec.bytes_per_token(); }
};

Files make_files(const std::string& folder, int64_t rows, int64_t shard_rows) {
  Files f{folder, {}, {}};
  f.plan.spec.hidden = kHidden;
  for (int64_t k = 0; k < kTaps; ++k) f.plan.spec.taps.push_back(k);
  f.plan.spec.writer = program_text();
  f.plan.row_values = kTokens * kTaps * kHidden;
  for (int64_t i = 0; i < rows; ++i) {
    RowTokens row;
    row.ids.resize(kTokens, static_cast<int32_t>(i));
    row.mask.resize(kTokens, 1);
    row.lengths = {kTokens / 4, kTokens / 4, kTokens / 2};
    row.document_ids = {3 * i, 3 * i + 1, 3 * i + 2};
    f.rows.push_back(std::move(row));
    if (i % shard_rows == 0) f.plan.shards.push_back({.number = i / shard_rows});
    ShardPlan& s = f.plan.shards.back();
    s.rows.push_back(i);
    s.size = {s.size.documents + 3, s.size.tokens + kTokens, s.size.feature_rows + kTokens};
  }
  return f;
}

[[noreturn]] void bad(const std::string& path) { fail(fmt::format("{}: {}", path, std::strerror(errno))); }

// The same bytes in as many files, each synced.
double write_raw(const Files& f, const Buffer& data) {
  const Clock::time_point begin = Clock::now();
  for (const ShardPlan& s : f.plan.shards) {
    const std::string path = fmt::format("{}/raw-{}", f.folder, s.number);
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) bad(path);
    for (int64_t at = 0, bytes = s.size.feature_rows * f.plan.spec.bytes_per_token(); at < bytes;) {
      const ssize_t n =
          write(fd, data.as<char>() + at % data.bytes(),
                static_cast<size_t>(std::min({kPiece, bytes - at, data.bytes() - at % data.bytes()})));
      if (n <= 0) bad(path);
      at += n;
    }
    if (fsync(fd) != 0) bad(path);
    close(fd);
  }
  return seconds_since(begin);
}

double write_dump(const Files& f, const Buffer& data, double& waited) {
  const Peers alone;
  FeatureDump dump({f.folder, 3, f.plan.row_values, Device::cpu, true}, f.plan);
  for (const int slot : {0, 1, 2})
    std::memcpy(dump.memory(slot), data.data(), static_cast<size_t>(data.bytes()));
  const Clock::time_point begin = Clock::now();
  for (const ShardPlan& s : f.plan.shards) {
    for (const int64_t row : s.rows)
      dump.submit(dump.acquire(alone, kTimeout), f.rows[static_cast<size_t>(row)], s, Queue{});
  }
  dump.finish(alone, kTimeout);
  waited = dump.stats().wait_s;
  return seconds_since(begin);
}

// Out of the page cache, where the file system lets us.
void forget(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) bad(path);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
}

double read_raw(const Files& f) {
  for (const ShardPlan& s : f.plan.shards) forget(fmt::format("{}/raw-{}", f.folder, s.number));
  const Buffer piece(Place::host, kPiece);
  const Clock::time_point begin = Clock::now();
  for (const ShardPlan& s : f.plan.shards) {
    const std::string path = fmt::format("{}/raw-{}", f.folder, s.number);
    const InputFile file(path);
    for (int64_t at = 0; at < file.size(); at += kPiece)
      file.read(at, std::min(kPiece, file.size() - at), piece.data());
  }
  return seconds_since(begin);
}

double read_rows(const Files& f, int64_t threads) {
  std::vector<std::string> paths;
  for (const ShardPlan& s : f.plan.shards)
    paths.push_back((fs::path(f.folder) / shard_name(s.number)).string());
  for (const std::string& p : paths) forget(p);
  const FeatureFiles files(paths);
  const Buffer slots(Place::host, (threads + 1) * kTokens * files.spec().bytes_per_token());
  FeatureDisk disk(&files, nullptr, {threads + 1, threads, kTokens, slots.as<Bf16>()});
  const Peers alone;
  const Clock::time_point begin = Clock::now();
  size_t asked = 0;
  for (size_t i = 0; i < f.rows.size(); ++i) {
    while (asked < f.rows.size() &&
           disk.try_request({kTrainRow, 0, 0, static_cast<int64_t>(asked)}, f.rows[asked]))
      ++asked;
    disk.release(disk.receive({kTrainRow, 0, 0, static_cast<int64_t>(i)}, alone, kTimeout).slot);
  }
  return seconds_since(begin);
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void show(const nlohmann::ordered_json& row, const std::string& out) {
  std::cout << row.dump() << std::endl;
  if (!out.empty() && !(std::ofstream(out, std::ios::app) << row.dump() << "\n"))
    fail(fmt::format("--out {}: a row could not be written", out));
}

// What `compress` = `deflate` saves and costs: each candidate for its filters on one core, then shards.
void filters(const Files& plain, const Buffer& data, int64_t repeat, int64_t threads, const std::string& out,
             const std::string& commit) {
  const int64_t sample = 800 * plain.plan.spec.bytes_per_token();
  for (const Filter& filter : kFilters) {
    std::vector<double> write, read;
    int64_t stored = 0;
    for (int64_t i = 0; i < repeat; ++i) {
      const FilterTimes t = time_filter(filter, data.as<Bf16>(), sample, kTaps * kHidden);
      write.push_back(t.write_s), read.push_back(t.read_s), stored = t.stored;
    }
    const double gigabytes = static_cast<double>(sample) * 1e-9,
                 share = static_cast<double>(stored) / static_cast<double>(sample);
    show({{"bench", "dump"},
          {"op", "filter"},
          {"filter", filter.name},
          {"bytes", sample},
          {"stored_share", share},
          {"repeats", repeat},
          {"write_gb_s", gigabytes / median(write)},
          {"read_gb_s", gigabytes / median(read)},
          {"threads", 1},
          {"device", host_name()},
          {"commit", commit}},
         out);
    log_info(fmt::format("{:<20} {:5.1f} % stored, writing {:6.3f} GB/s, reading {:6.3f} GB/s on one core",
                         filter.name, 100 * share, gigabytes / median(write), gigabytes / median(read)));
  }
  Files f = make_files(plain.folder, std::min<int64_t>(static_cast<int64_t>(plain.rows.size()), 2), 2);
  f.plan.spec.compress = "deflate";
  double waited = 0;
  const double write = write_dump(f, data, waited);
  int64_t stored = 0;
  for (const ShardPlan& s : f.plan.shards)
    stored += static_cast<int64_t>(fs::file_size(fs::path(f.folder) / shard_name(s.number)));
  const double read = read_rows(f, threads), gigabytes = static_cast<double>(f.bytes()) * 1e-9,
               share = static_cast<double>(stored) / static_cast<double>(f.bytes());
  for (const auto& [op, seconds] : {std::pair{"write", write}, {"read", read}}) {
    show({{"bench", "dump"},
          {"op", op},
          {"compress", "deflate"},
          {"bytes", f.bytes()},
          {"stored_share", share},
          {"repeats", 1},
          {"median_ms", 1e3 * seconds},
          {"gb_s", gigabytes / seconds},
          {"threads", threads},
          {"device", host_name()},
          {"commit", commit}},
         out);
    log_info(fmt::format("{:<6} {:7.3f} GB/s with dump.compress=deflate, {:.1f} % stored", op,
                         gigabytes / seconds, 100 * share));
  }
}

}  // namespace

int run_bench_dump(const Arguments& arguments) {
  std::string dir = ".", out, commit = commit_text();
  int64_t rows = 12, shard_rows = 6, repeat = 5, threads = 2, min_percent = 0;
  bool compress = false;
  Options options("bench dump", "[--dir DIR] [--rows N] [--repeat N] [--compress] [--out FILE]",
                  "Times writing and reading feature shards of a synthetic target (5 taps of 4096, rows of "
                  "4096 tokens, 168 MB each) in a\n"
                  "folder's file system, beside plain write + fsync and pread of the same bytes, in turns. "
                  "Shards include their checksums.");
  options.text("dir", &dir, "a folder on the disk to time")
      .number("rows", &rows, "of a repeat")
      .number("shard-rows", &shard_rows, "rows of a shard")
      .number("repeat", &repeat, "timed repeats; the median counts")
      .number("threads", &threads, "that read")
      .flag("compress", &compress, "also what the filters of HDF5 save and cost (dump.compress)")
      .text("out", &out, "append the JSON lines to this file")
      .text("commit", &commit, "what the rows call this build, where the build does not know")
      .number("min-percent", &min_percent,
              "exit code 1 when a rate is less than this share of the plain one");
  if (!options.parse(arguments)) return kOk;
  if (rows < 1 || shard_rows < 1 || repeat < 1 || threads < 1)
    fail_usage("bench dump: numbers must be at least 1");
  std::string folder = (fs::path(dir) / "slipstream-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) fail(fmt::format("--dir {}: {}", dir, std::strerror(errno)));
  const std::unique_ptr<std::string, void (*)(std::string*)> cleanup(new std::string(folder),
                                                                     [](std::string* p) {
                                                                       std::error_code ignored;
                                                                       fs::remove_all(*p, ignored);
                                                                       delete p;
                                                                     });
  const Files f = make_files(folder, rows, shard_rows);
  if (const int64_t free = free_bytes(folder); free >= 0 && free < 2 * f.bytes() + (int64_t{1} << 28))
    fail(fmt::format("--dir {}: {} bytes are needed, {} are free", dir, 2 * f.bytes(), free));
  const Buffer data(Place::host, f.plan.row_values * 2);
  make_features(data.as<Bf16>(), f.plan.row_values, kTaps * kHidden);

  std::vector<double> raw_write, dump_write, raw_read, row_read, waits;
  for (int64_t i = -1; i < repeat; ++i) {  // one to warm up
    double waited = 0;
    const double a = write_raw(f, data), b = write_dump(f, data, waited), c = read_raw(f),
                 d = read_rows(f, threads);
    if (i < 0) continue;
    raw_write.push_back(a), dump_write.push_back(b), raw_read.push_back(c), row_read.push_back(d),
        waits.push_back(waited);
  }
  bool below = false;
  const double gigabytes = static_cast<double>(f.bytes()) * 1e-9;
  for (const auto& [op, plain, ours] :
       {std::tuple{"write", &raw_write, &dump_write}, {"read", &raw_read, &row_read}}) {
    const double percent = 100 * median(*plain) / median(*ours);
    const nlohmann::ordered_json j{
        {"bench", "dump"},
        {"op", op},
        {"bytes", f.bytes()},
        {"shards", f.plan.shards.size()},
        {"repeats", repeat},
        {"median_ms", 1e3 * median(*ours)},
        {"gb_s", gigabytes / median(*ours)},
        {"plain", std::string(op) == "write" ? "write + fsync" : "pread"},
        {"peak_gb_s", gigabytes / median(*plain)},
        {"percent_of_peak", percent},
        {"threads", threads},
        {"producer_waited_share", std::string(op) == "write" ? median(waits) / median(*ours) : 0.0},
        {"device", host_name()},
        {"commit", commit}};
    show(j, out);
    log_info(fmt::format("{:<6} {:7.3f} GB/s, plain {:7.3f} GB/s: {:.1f} %", op, gigabytes / median(*ours),
                         gigabytes / median(*plain), percent));
    below = below || percent < static_cast<double>(min_percent);
  }
  if (compress) filters(f, data, repeat, threads, out, commit);
  return below ? kFailed : kOk;
}

}  // namespace slip
