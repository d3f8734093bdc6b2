// The Hopper attention kernels against a float64 reference on the CPU, and their speed.
//
//   attention_hopper_check [--only TEXT]           every case whose name contains TEXT; exit code 0: all
//   agree attention_hopper_check --bench [--only TEXT]   JSON lines, one for each shape, and one for S=4096
//
// A case fails where the relative L2 error of any result is above 1e-2 or not a number, where something
// beside a result changed, or where a second run gives other bits. Inputs are views inside matrices of NaN,
// results start as NaN, the gradients that are added to start from random numbers.
#include "attention_hopper_check.hpp"

namespace slip::hopper_check {
namespace {

int run(int argc, char** argv) {
  bool timing = false;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--bench"))
      timing = true;
    else if (!std::strcmp(argv[i], "--only") && i + 1 < argc)
      only = argv[++i];
    else {
      std::fprintf(stderr, "usage: %s [--bench] [--only TEXT]\n", argv[0]);
      return 2;
    }
  }
  if (!hopper_available()) {
    std::printf("no sm_90a device, or no code for it: nothing to check\n");
    const char* must = std::getenv("SLIP_REQUIRE_GPU");
    return must && *must == '1' ? 1 : 77;  // 77: skipped
  }
  const Stream owned = make_stream();
  CudaStream stream = owned.get();
  if (timing) {
    bench(stream, only);
    return 0;
  }
  int failed = 0, done = 0;
  auto wanted = [&](const std::string& name) { return name.find(only) != std::string::npos; };
  for (const Case& c : cases())
    if (wanted(c.name)) failed += !run_case(c, stream), ++done;
  const std::vector<int> mix{1, 63, 64, 65, 300, 127, 128, 129, 700, 2, 80, 81, 160};
  std::vector<int> many;
  for (int i = 0; i < 150; ++i) many.push_back(i * 29 % 47);  // some of no token at all
  for (int d : {64, 128, 256})
    for (auto [heads, kv] : {std::pair{8, 2}, {4, 4}, {3, 1}, {6, 1}, {8, 1}}) {
      const std::string name =
          "causal d" + std::to_string(d) + " heads " + std::to_string(heads) + "/" + std::to_string(kv);
      if (wanted(name)) failed += !run_causal(name + ", mixed", shape(heads, kv, d, 0), mix, stream), ++done;
      if (wanted(name)) failed += !run_causal(name + ", many", shape(heads, kv, d, 0), many, stream), ++done;
    }
  if (wanted("causal long"))
    failed += !run_causal("causal long", shape(8, 2, 128, 0), {4096, 1000}, stream), ++done;
  if (wanted("causal one token"))
    failed += !run_causal("causal one token", shape(2, 1, 256, 0), {1}, stream), ++done;
  std::printf("%d of %d cases failed\n", failed, done);
  return failed || !done ? 1 : 0;
}

}  // namespace
}  // namespace slip::hopper_check

int main(int argc, char** argv) {
  try {
    return slip::hopper_check::run(argc, argv);
  } catch (const slip::Error& e) {
    std::fprintf(stderr, "%s:%u: %s\n", e.where().file_name(), e.where().line(), e.what());
    return 1;
  }
}
