// Runs a fuzz target without a fuzzer: every file of the corpus, then changed copies of them for a while.
//   replay CORPUS_FOLDER [SECONDS [FIRST]]
// Change number n of a corpus is always the same; where one ends the process, its number is said and the
// input is kept in the current folder. Watched: time of one input, and the size of single allocations of C++.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*)());

namespace {

using Input = std::vector<uint8_t>;
constexpr unsigned kSeconds = 20;            // of one input, under a sanitizer and on a busy machine
constexpr size_t kSlack = size_t{64} << 20;  // buffers of fixed size
constexpr size_t kFactor = 1200;             // deflate makes data at most 1032 times smaller

Input g_input;
std::string g_name;
size_t g_allowed = SIZE_MAX;

// Only calls that are legal in a signal handler.
void say_and_keep() {
  const int file = creat("fuzz-input", 0644);
  const bool kept = file >= 0 && write(file, g_input.data(), g_input.size()) >= 0;
  for (const std::string& part : {std::string("fuzz: the input was ")})
    (void)!write(2, part.data(), part.size());
  (void)!write(2, g_name.data(), g_name.size());
  if (kept) (void)!write(2, "; kept as fuzz-input\n", 21);
}
void on_signal(int number) {
  const char* what = number == SIGALRM ? "fuzz: took too long\n" : "fuzz: crashed\n";
  (void)!write(2, what, number == SIGALRM ? 20 : 14);
  say_and_keep();
  std::signal(number, SIG_DFL);
  std::raise(number == SIGALRM ? SIGKILL : number);
}

void run(Input input, std::string name) {
  g_input = std::move(input), g_name = std::move(name);
  g_allowed = kSlack + kFactor * g_input.size();
  alarm(kSeconds);
  LLVMFuzzerTestOneInput(g_input.data(), g_input.size());
  alarm(0);
  g_allowed = SIZE_MAX;
}

// One to four changes: bits, bytes, numbers at the edge, pieces removed, repeated or taken from another file.
Input changed(const std::vector<Input>& corpus, uint64_t n) {
  std::mt19937_64 random(n);
  const auto below = [&](size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(random() % limit); };
  Input in = corpus[below(corpus.size())];
  constexpr std::array<uint64_t, 12> edges = {
      0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, INT64_MAX, UINT64_MAX};
  for (size_t k = 1 + below(4); k > 0; --k) {
    const size_t at = below(in.size());
    const size_t length = std::min(in.size() - at, 1 + below(below(2) == 0 ? 8 : 64));
    const auto place = in.begin() + static_cast<std::ptrdiff_t>(at);
    switch (in.empty() ? 5 : below(7)) {
      case 0:
        in[at] ^= static_cast<uint8_t>(1 << below(8));
        break;
      case 1:
        in[at] = static_cast<uint8_t>(random());
        break;
      case 2: {
        const uint64_t edge = edges[below(edges.size())];
        for (size_t i = 0; i < std::min<size_t>(size_t{1} << below(4), in.size() - at); ++i)
          in[at + i] = static_cast<uint8_t>(edge >> (8 * i));
        break;
      }
      case 3:
        in.erase(place, place + static_cast<std::ptrdiff_t>(length));
        break;
      case 4: {
        const Input piece(place, place + static_cast<std::ptrdiff_t>(length));
        in.insert(place, piece.begin(), piece.end());
        break;
      }
      case 5: {
        const Input& other = corpus[below(corpus.size())];
        if (other.empty()) break;
        const size_t from = below(other.size()), size = std::min(other.size() - from, 1 + below(64));
        in.insert(in.begin() + static_cast<std::ptrdiff_t>(at),
                  other.begin() + static_cast<std::ptrdiff_t>(from),
                  other.begin() + static_cast<std::ptrdiff_t>(from + size));
        break;
      }
      case 6:
        in.resize(at);
        break;
    }
  }
  return in;
}

void* allocate(size_t size) {
  if (size > g_allowed) {
    std::fprintf(stderr, "fuzz: %zu bytes at once for an input of %zu\n", size, g_input.size());
    std::abort();
  }
  void* p = std::malloc(size == 0 ? 1 : size);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

void* operator new(size_t size) { return allocate(size); }
void* operator new[](size_t size) { return allocate(size); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0;
  for (const int number : {SIGABRT, SIGALRM, SIGSEGV, SIGFPE, SIGBUS, SIGILL}) {
    if (__sanitizer_set_death_callback == nullptr || number == SIGABRT || number == SIGALRM)
      std::signal(number, on_signal);
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(say_and_keep);
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(argv[1])) names.push_back(file.path().string());
  std::sort(names.begin(), names.end());
  if (names.empty()) return std::fprintf(stderr, "%s is empty\n", argv[1]), 2;
  std::vector<Input> corpus;
  for (const std::string& name : names) {
    std::ifstream in(name, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    run(corpus.back(), name);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const uint64_t first = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0;
  uint64_t n = first;
  for (; std::chrono::steady_clock::now() < end; ++n) run(changed(corpus, n), "change " + std::to_string(n));
  std::printf("%zu files, %llu changes\n", names.size(), static_cast<unsigned long long>(n - first));
  return 0;
}
