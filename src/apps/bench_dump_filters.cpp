#include "apps/bench_dump_filters.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numbers>
#include <vector>

#include "core/check.hpp"
#include "core/random.hpp"
#include "io/feature_format.hpp"
#include "io/h5_items.hpp"

namespace slip {
namespace {

// Box and Muller's, number i of a stream.
double normal(uint64_t stream, uint64_t i) {
  const double u = (static_cast<double>(random_u64(1, stream, 2 * i) >> 11) + 1) * 0x1p-53;
  const double v = static_cast<double>(random_u64(1, stream, 2 * i + 1) >> 11) * 0x1p-53;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

// Of this thread: what a busy machine does meanwhile does not count.
double cpu_s() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

void make_features(Bf16* out, int64_t values, int64_t width) {
  constexpr uint64_t kNormals = 1 << 16;
  std::vector<float> normals(kNormals), scales(static_cast<size_t>(width));
  for (uint64_t i = 0; i < kNormals; ++i) normals[i] = static_cast<float>(normal(0, i));
  for (size_t c = 0; c < scales.size(); ++c) scales[c] = static_cast<float>(std::exp(0.7 * normal(1, c)));
  for (int64_t i = 0; i < values; i += 4) {
    const uint64_t random = random_u64(1, 2, static_cast<uint64_t>(i));
    for (int64_t k = 0; k < std::min<int64_t>(4, values - i); ++k)
      out[i + k] =
          to_bf16(normals[(random >> (16 * k)) % kNormals] * scales[static_cast<size_t>((i + k) % width)]);
  }
}

FilterTimes time_filter(const Filter& filter, const Bf16* features, int64_t bytes, int64_t width) {
  const hsize_t tokens = static_cast<hsize_t>(bytes / (2 * width));
  const hsize_t shape[2] = {tokens, static_cast<hsize_t>(width)},
                chunk[2] = {
                    std::max<hsize_t>(1, std::min<hsize_t>(tokens, (hsize_t{8} << 20) / (2 * shape[1]))),
                    shape[1]};
  const H5Id memory(H5Pcreate(H5P_FILE_ACCESS), H5Pclose), access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose),
      how(H5Pcreate(H5P_DATASET_CREATE), H5Pclose), space(H5Screate_simple(2, shape, nullptr), H5Sclose);
  check_h5(H5Pset_fapl_core(memory.get(), 64 << 20, 0), "a file in memory");
  check_h5(H5Pset_chunk_cache(access.get(), 0, 0, 0), "no cache");  // or reading would find what was written
  check_h5(H5Pset_chunk(how.get(), 2, chunk), "chunks");
  if (filter.shuffle) check_h5(H5Pset_shuffle(how.get()), "shuffle");
  check_h5(H5Pset_deflate(how.get(), static_cast<unsigned>(filter.deflate)), "deflate");
  const H5Id file(H5Fcreate("filters.h5", H5F_ACC_TRUNC, H5P_DEFAULT, memory.get()), H5Fclose);
  check_h5(file.get(), "a file in memory");
  const H5Id type = bf16_type(), dataset(H5Dcreate2(file.get(), "features", type.get(), space.get(),
                                                    H5P_DEFAULT, how.get(), access.get()),
                                         H5Dclose);
  check_h5(dataset.get(), "features");
  FilterTimes t;
  double begin = cpu_s();
  check_h5(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, features), "writing");
  t.write_s = cpu_s() - begin;
  t.stored = static_cast<int64_t>(H5Dget_storage_size(dataset.get()));
  std::vector<Bf16> back(tokens * shape[1]);
  begin = cpu_s();
  check_h5(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, back.data()), "reading");
  t.read_s = cpu_s() - begin;
  if (!std::equal(back.begin(), back.end(), features)) fail("bench dump: a filter changed the features");
  return t;
}

}  // namespace slip
