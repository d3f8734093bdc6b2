// Who does what: a pure function of the number of ranks, the roles asked for, and what a row costs on each
// side. Drafters come first: rank 0 is drafter 0, which writes the log of the run, metrics, checkpoints and
// evaluations, and the drafters, which reduce gradients every step, are neighbours. Target ranks follow. One
// rank does both in turn.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/config.hpp"
#include "device/arena.hpp"
#include "model/config.hpp"
#include "train/mixture.hpp"

namespace slip {

// A full row as training meets it.
struct RowShape {
  int64_t tokens = 0;
  int64_t documents = 1;  // packed in it; attention does not cross documents
  int64_t blocks = 0;     // anchors of all its documents
};

// FLOPs (2 per multiply-add) of the forward that captures: layers 0..last_tap, no head. Per token and layer
//   2 (H (N + 2 Nkv) D + N D H + 3 H I)  products, and  2 N D S  causal attention over documents of S tokens;
//   2 H N D  more where the attention has an output gate. A gated delta net has, with K key heads of k and V
//   value heads of v columns, products of 2 (H (2 K k + 2 V v + 2 V) + V v H + 3 H I), and in chunks of C =
//   64 tokens  2 V (C (k + 2 v) + 3 k v) + 4 K C k.
double target_row_flops(const TargetModel&, int64_t last_tap, const RowShape&);
double gated_delta_flops(const DeltaNetConfig&);  // of a token in one layer, without products by weights

// FLOPs of one training row: b = block, K taps, L layers, S tokens a document, V rows of the head, P = blocks
// * b.
//   context  tokens * (2 K H H + L 2 H 2 Nkv D) forward, backward the weights of fc once and K/V twice;
//   layers   P * L * 2 (H (N + 2 Nkv) D + N D H + 3 H I) forward, twice that backward;
//   attention P * keys * 4 N D a layer forward, 2.5 times that backward; keys = b + S/2, with a window W < S
//            b + W - W W / 2S (a context of uniform length);
//   head     blocks * (b - 1) * 2 H V forward and the same backward (it is frozen, nothing is recomputed).
double drafter_row_flops(const DrafterModel&, const RowShape&);

// The first epoch; where weights are no whole numbers others differ by a document of each source.
struct EpochSize {
  struct Part {
    std::string pattern;  // of an entry of data.tokens
    int64_t weight = kWeightOnce;
    SourceSize there, drawn;
  };
  SourceSize drawn;
  int64_t rows = 0, steps = 0;
  std::vector<Part> sources;
};

struct PlanCosts {
  double target_flops = 0, drafter_flops = 0;  // of a row
  double drafter_speed = 1;                    // FLOPs in the time of one of the target: more in fp8
  int64_t row_bytes = 0;                       // of a row's features
  int64_t rows_per_step = 1;
  bool offline = false;  // features come from shards and nothing is decoded: no rank runs the target
  EpochSize epoch = {};
  std::vector<Arena::Entry> target_memory, drafter_memory;  // by name, when known
};

enum class Role { target, drafter, both };

struct RankPlan {
  int rank = 0;
  Role role = Role::both;
  std::vector<int> peers;  // of a target: the drafters it sends to; of a drafter: the targets it hears from
  std::vector<Arena::Entry> memory;
};

struct Plan {
  int ranks = 1, targets = 1, drafters = 1;  // both 1 with one rank, which has both roles
  bool offline = false;
  EpochSize epoch = {};
  std::vector<RankPlan> rank;
  double target_flops = 0, drafter_flops = 0;  // of a row
  int64_t row_bytes = 0, rows_per_step = 1, queue_rows = 1;
  double target_busy = 1, drafter_busy = 1;  // expected, as a share of the time; at equal speed of all ranks
  std::vector<std::string> notes;            // what the user may want to change

  int first_target() const { return ranks == 1 ? 0 : drafters; }
  Role role(int r) const { return rank.at(static_cast<size_t>(r)).role; }
  // The rank that runs the target for row `index` of an epoch, and the rank that trains row `r` of a step.
  int target_rank(int64_t index) const { return first_target() + static_cast<int>(index % targets); }
  int drafter_rank(int64_t r) const { return static_cast<int>(r % drafters); }
};

// Refuses with exit code 2 roles that do not add up to the ranks. Auto: the split that minimises
// max(target_flops / targets, drafter_flops / drafter_speed / drafters), at a tie the one with more drafters.
Plan make_plan(int world_size, const RolesConfig&, const PlanCosts&);

std::string plan_text(const Plan&);         // roles, peers, costs, balance, an epoch; a line for each rank
std::string plan_memory_text(const Plan&);  // by name, a table for each role
std::string plan_json(const Plan&);

// The device of a rank among the `visible` ones. One visible device is a launcher's mask per task: it is
// ours. Otherwise there must be one for each rank of the host, unless they agreed to share.
int choose_device(int local_rank, int local_ranks, int visible, bool share = false);

}  // namespace slip
