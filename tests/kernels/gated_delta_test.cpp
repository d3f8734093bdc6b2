#include "kernels/gated_delta.hpp"

#include <numeric>

#include "kernels/gated_delta_hopper.hpp"
#include "support/kernel_test.hpp"

namespace slip::testing {
namespace {

using Lengths = std::vector<int64_t>;

struct Case {
  DeltaShape shape;
  Lengths lengths;
};
void PrintTo(const Case& c, std::ostream* os) {
  *os << c.shape.key_heads << "/" << c.shape.value_heads << " heads of " << c.shape.key_dim << "/"
      << c.shape.value_dim << ", documents of " << ::testing::PrintToString(c.lengths);
}
// Every border of a chunk, and a document of many.
const Lengths kBorders = {1, 2, 3, 4, 63, 64, 65, 127, 128, 129, 1000};
#if SLIP_TEST_GPU
const Lengths kWideBorders = kBorders;
#else  // one code for every dim: the long documents would only cost time
const Lengths kWideBorders = {1, 3, 63, 64, 65, 129};
#endif
// One, two, three and four value heads a key head; 128 columns are the tensor-core kernels' on a GPU.
const Case kCases[] = {
    {{2, 6, 16, 16}, kBorders},
    {{1, 1, 32, 8}, {1}},
    {{2, 2, 40, 24}, {70, 9}},
    {{1, 2, 256, 64}, {65, 3}},
    {{1, 1, 128, 128}, {1}},
    {{2, 2, 128, 128}, {64, 0, 200}},
    {{1, 2, 128, 128}, {129, 63}},
    {{2, 6, 128, 128}, kWideBorders},
    {{1, 4, 128, 128}, {5, 130, 64, 1}},
};

struct Problem {
  Matrix q, k, v, a, b, a_log, dt_bias;
};

// Rows of unit length, as the convolution leaves them.
template <class T> Matrix unit_heads(Matrix m, int64_t dim) {
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; c += dim) {
      double squares = 1e-6;
      for (int64_t i = 0; i < dim; ++i) squares += m.at(r, c + i) * m.at(r, c + i);
      for (int64_t i = 0; i < dim; ++i) m.at(r, c + i) /= std::sqrt(squares);
    }
  }
  return rounded<T>(std::move(m));
}

// `hard`: neighbouring keys are nearly parallel, what is written nearly replaces what was there, and decays
// are slow, so that the triangular system is far from the identity.
template <class T> Problem make_problem(const Case& c, uint64_t seed, bool hard = false) {
  const DeltaShape& s = c.shape;
  const int64_t tokens = std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0});
  const auto keys = [&](uint64_t n) {
    Matrix m = random_matrix<T>(seed + n, tokens, int64_t{s.key_heads} * s.key_dim, hard ? 0.3 : 1);
    const Matrix common = random_matrix<T>(seed + n + 100, 1, m.cols, 2);
    for (int64_t r = 0; hard && r < m.rows; ++r) {
      for (int64_t i = 0; i < m.cols; ++i) m.at(r, i) += common.at(0, i);
    }
    return unit_heads<T>(std::move(m), s.key_dim);
  };
  return {keys(0),
          keys(1),
          random_matrix<T>(seed + 2, tokens, int64_t{s.value_heads} * s.value_dim),
          random_matrix<T>(seed + 3, tokens, s.value_heads),
          random_matrix<T>(seed + 4, tokens, s.value_heads, 1, hard ? 4 : 0),
          random_matrix<float>(seed + 5, 1, s.value_heads, 1, hard ? -2 : 0),
          random_matrix<float>(seed + 6, 1, s.value_heads, 1, hard ? -8 : -3)};
}

struct HostRow {
  std::vector<DeltaDocument> documents;
  std::vector<DeltaChunk> chunks;
  explicit HostRow(const Lengths& lengths) { cut_chunks(lengths, documents, chunks); }
  DeltaRow row() const {
    return {documents.data(), chunks.data(), documents.data(), static_cast<int>(documents.size()),
            static_cast<int>(chunks.size())};
  }
};
template <class V> std::vector<int> words(const std::vector<V>& v) {
  const int* p = reinterpret_cast<const int*>(v.data());
  return {p, p + v.size() * sizeof(V) / sizeof(int)};
}

// `state`: what documents begin with, as one row (empty: zero); `state_out`: that of their ends.
Matrix reference(const Case& c, const Problem& p, const Matrix& state = {}, Matrix* state_out = nullptr) {
  const std::vector<float> a_log(p.a_log.values.begin(), p.a_log.values.end()),
      dt_bias(p.dt_bias.values.begin(), p.dt_bias.values.end());
  const HostRow host(c.lengths);
  Matrix out(p.v.rows, p.v.cols);
  gated_delta_fwd_ref<double>({c.shape, p.q.view(), p.k.view(), p.v.view(), p.a.view(), p.b.view(),
                               a_log.data(), dt_bias.data(), host.row(), out.view(), nullptr, 0,
                               state.rows > 0 ? state.values.data() : nullptr,
                               state_out != nullptr ? state_out->values.data() : nullptr});
  return out;
}

// room: chunks that scratch has room for; -1: what gated_delta_scratch says.
template <class T> DeviceArray<T> run(const Case& c, const Problem& p, const Queue& q, int64_t room = -1) {
  const DeviceArray<T> mq(q, p.q), k(q, p.k), v(q, p.v), a(q, p.a), b(q, p.b);
  const DeviceArray<float> a_log(q, p.a_log), dt_bias(q, p.dt_bias);
  DeviceArray<T> out(q, p.v.rows, p.v.cols);
  const HostRow host(c.lengths);
  const DeviceArray<int> documents(q, row_of(words(host.documents))), chunks(q, row_of(words(host.chunks)));
  DeltaRow row = host.row();
  row.documents = reinterpret_cast<const DeltaDocument*>(documents.data());
  row.chunks = reinterpret_cast<const DeltaChunk*>(chunks.data());
  const int64_t bytes = room < 0 ? gated_delta_scratch<T>(c.shape, p.v.rows, q.device)
                                 : room * c.shape.value_heads * kDeltaBlockBytes;
  const DeviceArray<uint8_t> scratch(q, 1, bytes);
  gated_delta_fwd<T>({c.shape, mq.view(), k.view(), v.view(), a.view(), b.view(), a_log.data(),
                      dt_bias.data(), row, out.view(), scratch.data(), bytes},
                     q);
  EXPECT_TRUE(out.intact());  // waits
  EXPECT_TRUE(scratch.intact());
  return out;
}

// Tokens first .. first + count of a problem of one document.
Problem part_of(const Problem& p, int64_t first, int64_t count) {
  const auto part = [&](const Matrix& m) {
    return Matrix(count, m.cols,
                  {m.values.begin() + first * m.cols, m.values.begin() + (first + count) * m.cols});
  };
  return {part(p.q), part(p.k), part(p.v), part(p.a), part(p.b), p.a_log, p.dt_bias};
}

// Output and state of a run that begins with a state (empty: zero). `step`: token by token, of one document;
// in_place: the state after takes the place of the state before.
template <class T> struct Carried {
  DeviceArray<T> out;
  DeviceArray<Acc<T>> state;
};
enum class How { rows, step, step_in_place, step_state_only };
template <class T>
Carried<T> run_from(const Case& c, const Problem& p, const Queue& q, const Matrix& state,
                    How how = How::rows) {
  const DeviceArray<T> mq(q, p.q), k(q, p.k), v(q, p.v), a(q, p.a), b(q, p.b);
  const DeviceArray<float> a_log(q, p.a_log), dt_bias(q, p.dt_bias);
  const HostRow host(c.lengths);
  const DeviceArray<int> documents(q, row_of(words(host.documents))), chunks(q, row_of(words(host.chunks)));
  const int64_t size = delta_state_size(c.shape) * static_cast<int64_t>(host.documents.size());
  const DeviceArray<Acc<T>> before(q, state.rows > 0 ? state : Matrix(1, size));
  Carried<T> r{DeviceArray<T>(q, p.v.rows, p.v.cols),
               how == How::step_in_place ? DeviceArray<Acc<T>>(q, state) : DeviceArray<Acc<T>>(q, 1, size)};
  DeltaRow row = host.row();
  row.documents = reinterpret_cast<const DeltaDocument*>(documents.data());
  row.chunks = reinterpret_cast<const DeltaChunk*>(chunks.data());
  const int64_t bytes = gated_delta_scratch<T>(c.shape, p.v.rows, q.device);
  const DeviceArray<uint8_t> scratch(q, 1, bytes);
  GatedDeltaFwd<T> args{c.shape,      mq.view(),      k.view(), v.view(),     a.view(),       b.view(),
                        a_log.data(), dt_bias.data(), row,      r.out.view(), scratch.data(), bytes};
  args.state = state.rows == 0 ? nullptr : how == How::step_in_place ? r.state.data() : before.data();
  args.state_out = r.state.data();
  if (how == How::step_state_only) args.out = {};
  if (how == How::rows) {
    gated_delta_fwd<T>(args, q);
  } else {
    args.row = {};
    args.scratch = nullptr;
    gated_delta_step<T>(args, q);
  }
  EXPECT_TRUE(r.out.intact());  // waits
  EXPECT_TRUE(r.state.intact());
  EXPECT_TRUE(scratch.intact());
  return r;
}

template <class B> class GatedDelta : public KernelTest<B> {};
TYPED_TEST_SUITE(GatedDelta, BackEnds, BackEndName);

TYPED_TEST(GatedDelta, AgreesWithTheRecurrence) {
  using T = typename TypeParam::Type;
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Problem p = make_problem<T>(c, 1);
    const DeviceArray<T> out = run<T>(c, p, this->queue());
    EXPECT_TRUE(agrees(out, reference(c, p)));
    EXPECT_TRUE(same_bits(out, run<T>(c, p, this->queue())));
  }
}

TYPED_TEST(GatedDelta, KeysThatAreNearlyParallel) {
  using T = typename TypeParam::Type;
  if (sizeof(T) == 2) GTEST_SKIP() << "operands in bf16 lose 2 % of the norm here, wherever they are rounded";
  for (const Case& c : {Case{{1, 3, 16, 16}, {300}}, Case{{1, 1, 128, 128}, {200}}}) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Problem p = make_problem<T>(c, 11, true);
    EXPECT_TRUE(agrees(run<T>(c, p, this->queue()), reference(c, p)));
  }
}

// A document in a row is the document alone. On a GPU bit by bit; products of the CPU may sum in another
// order where memory lies differently.
TYPED_TEST(GatedDelta, PackedEqualsAlone) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const DeltaShape& s : {DeltaShape{2, 6, 16, 16}, DeltaShape{1, 3, 128, 128}}) {
    const Case c{s, s.key_dim == 128 ? kWideBorders : kBorders};
    const Problem p = make_problem<T>(c, 21);
    const Matrix packed = run<T>(c, p, q).matrix();
    int64_t first = 0;
    for (const int64_t n : c.lengths) {
      SCOPED_TRACE(::testing::Message() << "document of " << n);
      const auto part = [&](const Matrix& m) {
        return Matrix(n, m.cols,
                      {m.values.begin() + first * m.cols, m.values.begin() + (first + n) * m.cols});
      };
      const Problem alone{part(p.q), part(p.k), part(p.v), part(p.a), part(p.b), p.a_log, p.dt_bias};
      const Matrix got = run<T>({s, {n}}, alone, q).matrix(), want = part(packed);
      if (q.on_cpu()) {
        EXPECT_TRUE(near(got.values, want.values, 1e-6, 1e-6));
      } else {
        EXPECT_EQ(got.values, want.values);
      }
      first += n;
    }
  }
}

// A token's value reaches itself and what follows in its document.
TYPED_TEST(GatedDelta, WhoSeesWhom) {
  using T = typename TypeParam::Type;
  for (const DeltaShape& s : {DeltaShape{1, 1, 16, 16}, DeltaShape{1, 1, 128, 128}}) {
    const Case c{s, {3, 1, 4}};
    Problem p = make_problem<T>(c, 31);
    const Matrix before = run<T>(c, p, this->queue()).matrix();
    int64_t first = 0;
    for (const int64_t n : c.lengths) {
      for (int64_t t = first; t < first + n; ++t) {
        Problem changed = p;
        for (int64_t i = 0; i < p.v.cols; ++i) changed.v.at(t, i) += 8;
        const Matrix after = run<T>(c, changed, this->queue()).matrix();
        for (int64_t row = 0; row < before.rows; ++row) {
          bool differs = false;
          for (int64_t i = 0; i < before.cols; ++i)
            differs = differs || after.at(row, i) != before.at(row, i);
          EXPECT_EQ(differs, row >= t && row < first + n) << "token " << t << ", row " << row;
        }
      }
      first += n;
    }
  }
}

// A document in two pieces: the second begins with the state that the first left.
TYPED_TEST(GatedDelta, InPieces) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const DeltaShape& s : {DeltaShape{2, 6, 16, 16}, DeltaShape{2, 2, 40, 24}, DeltaShape{1, 3, 128, 128},
                              DeltaShape{1, 1, 128, 128}}) {
    const Lengths whole = {150, 140, 130};
    const Problem p = make_problem<T>({s, whole}, 61);
    Matrix want_state(1, 3 * delta_state_size(s));
    const Matrix want = reference({s, whole}, p, {}, &want_state);
    const bool slow = q.on_cpu() && s.key_dim == 128;  // one code for every dim
    for (const int64_t cut : slow ? Lengths{65} : Lengths{1, 3, 63, 64, 65, 128}) {
      const Lengths ahead(3, cut);
      Lengths rest;
      for (const int64_t n : whole) rest.push_back(n - cut);
      SCOPED_TRACE(::testing::PrintToString(Case{s, whole}) + " cut at " + std::to_string(cut));
      // The pieces of all documents, first the beginnings, then the rests.
      const auto pieces = [&](const Matrix& m, bool second) {
        Matrix out(second ? 420 - 3 * cut : 3 * cut, m.cols);
        auto to = out.values.begin();
        int64_t first = 0;
        for (const int64_t n : whole) {
          const auto from = m.values.begin() + first * m.cols, mid = from + cut * m.cols;
          to = second ? std::copy(mid, from + n * m.cols, to) : std::copy(from, mid, to);
          first += n;
        }
        return out;
      };
      const auto half = [&](bool second) {
        return Problem{pieces(p.q, second),
                       pieces(p.k, second),
                       pieces(p.v, second),
                       pieces(p.a, second),
                       pieces(p.b, second),
                       p.a_log,
                       p.dt_bias};
      };
      const Carried<T> first = run_from<T>({s, ahead}, half(false), q, {});
      const Carried<T> second = run_from<T>({s, rest}, half(true), q, first.state.matrix());
      EXPECT_TRUE(agrees(first.out, pieces(want, false)));
      EXPECT_TRUE(agrees(second.out, pieces(want, true)));
      EXPECT_TRUE(agrees_as<T>(second.state, want_state));
    }
  }
}

// Few tokens after a state, as a verification has them: their number does not reach, bit by bit, what the
// first of them give and leave, nor do one call or two, nor whether the output is wanted.
TYPED_TEST(GatedDelta, TokenByToken) {
  using T = typename TypeParam::Type;
  const Queue& q = this->queue();
  for (const DeltaShape& s : {DeltaShape{2, 6, 16, 16}, DeltaShape{2, 4, 40, 24}, DeltaShape{1, 3, 128, 128},
                              DeltaShape{1, 2, 256, 64}}) {
    const int64_t before = 70, block = 16, all = before + block;
    const Problem p = make_problem<T>({s, {all}}, 71), tail = part_of(p, before, block);
    SCOPED_TRACE(::testing::PrintToString(Case{s, {all}}));
    Matrix state(1, delta_state_size(s)), want_state = state;
    reference({s, {before}}, part_of(p, 0, before), {}, &state);
    state = rounded<float>(state);
    const Matrix want = reference({s, {block}}, tail, state, &want_state);
    const Carried<T> whole = run_from<T>({s, {block}}, tail, q, state, How::step);
    EXPECT_TRUE(agrees(whole.out, want));
    EXPECT_TRUE(near(whole.state.values(), want_state.values, kTol<Acc<T>>));  // the state stays fp32
    EXPECT_TRUE(same_bits(whole.state, run_from<T>({s, {block}}, tail, q, state, How::step_in_place).state));
    for (const int64_t accepted : {1, 2, 7, 15}) {
      const Problem few = part_of(tail, 0, accepted), rest = part_of(tail, accepted, block - accepted);
      const Carried<T> got = run_from<T>({s, {accepted}}, few, q, state, How::step);
      std::vector<double> first = whole.out.values();
      first.resize(static_cast<size_t>(accepted * p.v.cols));
      EXPECT_EQ(got.out.values(), first);
      EXPECT_TRUE(
          same_bits(got.state, run_from<T>({s, {accepted}}, few, q, state, How::step_state_only).state));
      const Carried<T> after = run_from<T>({s, {block - accepted}}, rest, q, got.state.matrix(), How::step);
      EXPECT_TRUE(same_bits(after.state, whole.state));
    }
    const Carried<T> fresh = run_from<T>({s, {block}}, tail, q, {}, How::step);
    EXPECT_TRUE(agrees(fresh.out, reference({s, {block}}, tail)));
  }
}

// Scratch with room for some of the documents: they are run in groups, with the same result.
TYPED_TEST(GatedDelta, InGroups) {
  using T = typename TypeParam::Type;
  const Case c{{1, 3, 128, 128}, {300, 1, 64, 65, 130}};
  const Problem p = make_problem<T>(c, 41);
  EXPECT_TRUE(same_bits(run<T>(c, p, this->queue(), 5), run<T>(c, p, this->queue(), 100)));
}

TYPED_TEST(GatedDelta, NoTokens) {
  using T = typename TypeParam::Type;
  for (const Lengths& lengths : {Lengths{}, Lengths{0, 0}}) {
    const Case c{{1, 2, 128, 128}, lengths};
    EXPECT_TRUE(run<T>(c, make_problem<T>(c, 51), this->queue()).intact());
  }
}

// Worked out by hand.
TEST(GatedDeltaExample, ThreeTokens) {
  Problem p{unit_heads<double>(Matrix(3, 2, {3, 4, 1, 0, 0, 2}), 2),
            unit_heads<double>(Matrix(3, 2, {1, 0, 1, 1, 0, 1}), 2),
            Matrix(3, 2, {1, 2, 3, -1, 0.5, 4}),
            Matrix(3, 1, {0, 1, -1}),
            Matrix(3, 1, {0, 2, -2}),
            Matrix(1, 1, {std::log(2.0)}),
            Matrix(1, 1, {0.5})};
  const Case c{{1, 1, 2, 2}, {3}};
  const std::vector<double> want = {0.212131924,  0.424263848, 1.327778853,
                                    -0.427229755, 0.491260241, 0.183325182};
  EXPECT_TRUE(near(reference(c, p).values, want, 1e-7, 0));  // a_log is a float
  EXPECT_TRUE(near(run<double>(c, p, make_queue(Device::cpu).get()).values(), want, 1e-7, 0));
}

TEST(DeltaChunks, LongestDocumentFirstAndNoChunkSpansTwo) {
  std::vector<DeltaDocument> documents;
  std::vector<DeltaChunk> chunks;
  cut_chunks(Lengths{5, 0, 130, 64}, documents, chunks);
  EXPECT_EQ(words(documents), (std::vector<int>{5, 130, 0, 0, 135, 64, 3, 0, 0, 5, 4, 0}));
  EXPECT_EQ(words(chunks), (std::vector<int>{5, 64, 69, 64, 133, 2, 135, 64, 0, 5}));
}

// As measured on an H200 with 48 heads: narrow slices for one document, wide ones where many keep it busy.
TEST(DeltaChunks, SlicesByHowMuchThereIsToDo) {
  EXPECT_EQ(delta_slice(48, 64, 64, 132), 64);
  EXPECT_EQ(delta_slice(48, 512, 512, 132), 64);
  EXPECT_EQ(delta_slice(48, 140, 18, 132), 128);
  EXPECT_EQ(delta_slice(48, 512, 64, 132), 128);
}

}  // namespace
}  // namespace slip::testing
